//! What the MPI library does to files while a life repeats what former lives did.
//!
//! MPI-IO lets several ranks write one file. A rank that repeats alone what it did would harm the file:
//!
//! - cut it off once more where it was new;
//! - remove it;
//! - write old bytes over what others have written since (also between its own: ROMIO reads, changes and writes back
//!   whole blocks).
//!
//! None of this is necessary: what a former life did to a file stays done while the machine runs. So it is left out, by
//! way of the MPI library's own imports.
//!
//! The [`read_log`] decides: what it has next has been done, and ends as it did, also where it failed; what it has not is
//! done now, and goes into it. Reads get from it what former lives have found. Where the log is not whole, a life that
//! former ones were ahead of leaves out what it would do to files older than itself. Where a file system does not tell how
//! old files are, everything is done again.
//!
//! Files that the MPI library has opened never get back their content of an image: they would lack what was done since.
//! Only those are meant here.
//!
//! The program's own calls of these functions are not touched: a rank that writes its own file anew has to cut it off
//! first.
//!
//! No image is taken between the look whether a call has been made, and the call: the process that is woken from it would
//! make it again. Nor is one taken while the library holds a lock on a file, which no image has.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::zeroed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_image::Guard;
use resurgo_wire::node_memory::{PHASE_REPLAY, control};

use crate::about::{about, inode, is_regular};
use crate::clock::file_time;
use crate::deeds;
use crate::engine::images;
use crate::file_notes;
use crate::lost_reads;
use crate::node::Node;
use crate::read_log::{self, Call, Former, OUTCOME, Outcome};
use crate::under_lock;
use crate::undo;
use resurgo_wire::undo::{self as undo_log, Inode};

/// This rank's phase, and the beginning of its life, in the node memory.
static PHASE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static BEGAN: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// A later life repeats what former ones did.
static REPLAYS: AtomicBool = AtomicBool::new(false);
/// Images of ranks are not of one moment: none has the content of a file that fits all.
static APART: AtomicBool = AtomicBool::new(false);
/// Keeps images away while the MPI library holds a lock on a file.
static WHILE_LOCKED: Mutex<Option<Guard>> = Mutex::new(None);
/// Files without names that stand for some that have been removed.
static STAND_INS: Mutex<Vec<Inode>> = Mutex::new(Vec::new());
/// A descriptor of /dev/null; -1: none yet.
static NOWHERE: AtomicI32 = AtomicI32::new(-1);

/// From here on leaves out calls, depending on what this rank does.
pub fn watch(node: &Node) {
    let phase = node.control(node.rank, control::PHASE);
    let began = node.control(node.rank, control::BEGAN_NS);
    BEGAN.store(std::ptr::from_ref(began).cast_mut(), Ordering::Release);
    PHASE.store(std::ptr::from_ref(phase).cast_mut(), Ordering::Release);
    lost_reads::watch(node);
    file_notes::watch(node);
    undo::watch(node);
    read_log::watch(node);
    REPLAYS.store(node.replays(), Ordering::Relaxed);
    APART.store(node.replays() || node.waves_pass || node.in_groups, Ordering::Relaxed);
}

/// Image `number` of this process is being taken.
pub fn note_image(number: u64) {
    lost_reads::note_image(number);
    undo::note_image(number);
    read_log::note_image(number);
}

/// Whether former lives came further than this one.
fn repeats() -> bool {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    let Some(phase) = (unsafe { PHASE.load(Ordering::Acquire).as_ref() }) else {
        return false;
    };
    if phase.load(Ordering::Acquire) == PHASE_REPLAY {
        // The agent has said so, but perhaps the last life died just after the image.
        images::look_around();
    }
    phase.load(Ordering::Acquire) == PHASE_REPLAY
}

/// While former lives came further: device and inode of a regular file that they may have changed.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn was_there(directory: c_int, path: *const c_char, flags: c_int) -> Option<Inode> {
    if !repeats() {
        return None;
    }
    let known = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_BTIME;
    // SAFETY: as the caller says.
    let about = unsafe { about(directory, path, flags, known) }?;
    // SAFETY: what the agent has written stays, as the phase does.
    let began = unsafe { BEGAN.load(Ordering::Acquire).as_ref() }?.load(Ordering::Acquire);
    let is_known = about.stx_mask & known == known && is_regular(&about);
    (is_known && file_time(about.stx_btime) < i128::from(began)).then(|| inode(&about))
}

/// How the call went in a former life.
fn outcome(call: Call) -> Outcome {
    images::look_around();
    read_log::outcome(call)
}

/// Whether a former life has done this to the file.
fn has_been_done(fd: c_int, call: Call) -> bool {
    match outcome(call) {
        Outcome::Unknown => {
            // SAFETY: an empty path, which stands for the descriptor itself.
            let file = unsafe { was_there(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
            file.is_some_and(resurgo_image::is_mpi_file)
        }
        outcome => outcome == Outcome::Done,
    }
}

/// The call has been made: zero or an error.
fn has_done(file: Inode, call: Call, error: c_int) {
    if !read_log::is_whole() || read_log::is_locked() {
        return;
    }
    let former = read_log::former(call, &mut [0; OUTCOME]);
    has_found(file, former, call, &(error as u64).to_le_bytes());
}

fn stand_ins() -> MutexGuard<'static, Vec<Inode>> {
    STAND_INS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This life does what no former one has done, with a file that has been removed: others have it open, and this rank
/// cannot.
fn goes_beyond(file: Inode) {
    if stand_ins().contains(&file)
        && let Some(node) = images::node()
    {
        lost_reads::end(node, &undo_log::removed(node.rank));
    }
}

/// The regular file behind a descriptor, and its length.
fn regular(fd: c_int) -> Option<(Inode, u64)> {
    // SAFETY: an all-zero stat is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::stat = zeroed();
        let is_regular = libc::fstat(fd, &mut about) == 0 && about.st_mode & libc::S_IFMT == libc::S_IFREG;
        is_regular.then_some(((about.st_dev, about.st_ino), about.st_size as u64))
    }
}

/// When the file was made, in nanoseconds; 0: nobody knows.
fn born(fd: c_int) -> i128 {
    // SAFETY: an empty path, which stands for the descriptor itself.
    let about = unsafe { about(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_BTIME) };
    about.map_or(0, |about| file_time(about.stx_btime))
}

/// The file and its length, if the MPI library opened it. Its own shared memory, which comes from `shm_open`, is no such
/// file.
fn mpi_file(fd: c_int) -> Option<(Inode, u64)> {
    lost_reads::has_files()
        .then(|| regular(fd))?
        .filter(|(file, _)| lost_reads::is_known(*file))
}

/// The read and its file, if it is one that is logged. An image has all that is done with it before the guard ends, or
/// nothing. If it came before, the process may have been woken from it.
fn logged(fd: c_int, from: libc::off_t, length: usize) -> Option<(Inode, Call, Guard)> {
    let is_meant = length > 0 && from >= 0;
    let (file, _) = is_meant.then(|| mpi_file(fd))??;
    let guard = Guard::new();
    images::look_around();
    Some((file, Call::read(from as u64, length as u64), guard))
}

/// A read has found this. Ends the life where former ones have found something else.
fn has_found(file: Inode, former: Former, call: Call, bytes: &[u8]) {
    let is_known = matches!(former, Former::Served(_) | Former::Digest(..));
    let differs = match former {
        Former::Again => return,
        Former::Served(_) | Former::Nothing => false,
        Former::Digest(length, digest) => (length, digest) != (bytes.len() as u64, undo_log::digest(bytes)),
        Former::Other => images::node().is_some_and(lost_reads::are_lost),
    };
    if differs && let Some(node) = images::node() {
        lost_reads::end(node, &undo_log::lost_reads(node.rank));
    }
    if !is_known {
        goes_beyond(file);
    }
    match read_log::is_locked() {
        true => under_lock::has_found(file, call, bytes, is_known),
        false if is_known => {}
        false => read_log::note(call, bytes),
    }
}

/// The MPI library is about to write this to a file that has `end` bytes, unless it `is_done`.
///
/// # Safety
/// There are so many bytes.
unsafe fn will_write(
    fd: c_int,
    (file, end): (Inode, u64),
    bytes: *const c_void,
    length: usize,
    from: libc::off_t,
    is_done: bool,
) {
    if length > 0 && from >= 0 {
        // SAFETY: as the caller says.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
        under_lock::will_write(file, from as u64, from as u64 + length as u64);
        let is_lost = lost_reads::will_write(fd, file, from as u64, bytes, is_done);
        let is_kept = !is_done && undo::will_write(fd, file, end, from as u64, bytes);
        if is_lost || is_kept {
            file_notes::keep(true);
        }
    }
}

/// Fails as a former life did.
fn fails(error: c_int) -> c_int {
    deeds::set_errno(error);
    -1
}

/// A call that names a file has been made, and returns this.
fn has_named(call: Call, returned: c_int) -> c_int {
    let error = if returned < 0 { deeds::errno() } else { 0 };
    has_done((0, 0), call, error);
    deeds::set_errno(error);
    returned
}

/// A file without a name, for one that has been removed.
fn stand_in() -> c_int {
    // SAFETY: makes a file.
    let fd = unsafe { libc::memfd_create(c"removed".as_ptr(), libc::MFD_CLOEXEC) };
    stand_ins().extend(regular(fd).map(|(file, _)| file));
    fd
}

/// `open` has a mode only if it may make a file; then the mode comes in the same register.
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    unsafe {
        let opening = deeds::Opening::new(images::node(), path);
        let fd = match REPLAYS.load(Ordering::Relaxed) {
            // Do not cut off a file that a former life made: others have written to it.
            true => open_as_before(path, |was_open| match was_open {
                // Nor make it anew: it would stay.
                true => deeds::open_again(path, flags),
                false => opening.open(flags, mode, |flags, mode| deeds::open_uncut(path, flags, mode)),
            }),
            false => opening.open(flags, mode, |flags, mode| deeds::open(path, flags, mode)),
        };
        opening.has_opened(fd);
        if fd >= 0
            && let Some((file, _)) = regular(fd)
        {
            if APART.load(Ordering::Relaxed) && flags & libc::O_ACCMODE != libc::O_RDONLY {
                resurgo_image::note_mpi_file(file);
            }
            lost_reads::has_opened(CStr::from_ptr(path).to_bytes(), file, born(fd));
            undo::has_opened(file);
        }
        fd
    }
}

/// What former lives could not open fails again. What they could open may have been removed since: then what they have
/// read is in the log, and what they have written is of no use, so any file will do.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn open_as_before(path: *const c_char, open: impl FnOnce(bool) -> c_int) -> c_int {
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let call = Call::open(name);
    match outcome(call) {
        Outcome::Failed(error) => fails(error),
        Outcome::Done => {
            let fd = open(true);
            // The library's own shared memory is of no use without others.
            match fd < 0 && deeds::errno() == libc::ENOENT && !name.starts_with(b"/dev/shm/") {
                true => stand_in(),
                false => fd,
            }
        }
        Outcome::Unknown | Outcome::New => {
            let fd = open(false);
            // Not each call is in the log.
            match fd < 0 || regular(fd).is_some() {
                true => has_named(call, fd),
                false => fd,
            }
        }
    }
}

pub unsafe extern "C" fn ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    let _guard = Guard::new();
    let Some((file, end)) = mpi_file(fd).filter(|_| length >= 0) else {
        // SAFETY: as the caller calls it.
        return unsafe { libc::ftruncate(fd, length) };
    };
    let call = Call::cut(length as u64);
    if has_been_done(fd, call) {
        return 0;
    }
    if undo::will_cut(fd, file, end, length as u64) {
        file_notes::keep(true);
    }
    // SAFETY: as the caller calls it.
    let done = unsafe { libc::ftruncate(fd, length) };
    if done == 0 {
        has_written(file, call);
    }
    done
}

/// The file has been changed.
fn has_written(file: Inode, call: Call) {
    goes_beyond(file);
    match read_log::is_locked() {
        true => under_lock::has_found(file, call, &[0; OUTCOME], false),
        false => has_done(file, call, 0),
    }
}

pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    unsafe {
        if path.is_null() || !REPLAYS.load(Ordering::Relaxed) {
            return deeds::unlink(path);
        }
        let call = Call::unlink(CStr::from_ptr(path).to_bytes());
        let has_been_done = match outcome(call) {
            Outcome::Failed(error) => return fails(error),
            Outcome::Unknown => was_there(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW).is_some(),
            outcome => outcome == Outcome::Done,
        };
        if has_been_done {
            deeds::has_been_removed(path);
            return 0;
        }
        has_named(call, deeds::unlink(path))
    }
}

/// The MPI library writes this, unless a former life has.
pub unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, length: usize, offset: libc::off_t) -> isize {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let really = || unsafe { libc::pwrite(fd, bytes, length, offset) };
    let Some((file, end)) = mpi_file(fd) else {
        return really();
    };
    let call = Call::write(offset as u64, length as u64);
    let is_done = has_been_done(fd, call);
    // SAFETY: as the caller calls it.
    unsafe { will_write(fd, (file, end), bytes, length, offset, is_done) };
    if is_done {
        return length as isize;
    }
    let written = really();
    if written == length as isize {
        has_written(file, call);
    }
    written
}

/// The MPI library reads this, unless former lives have.
pub unsafe extern "C" fn pread(fd: c_int, bytes: *mut c_void, length: usize, offset: libc::off_t) -> isize {
    // SAFETY: as the caller calls it.
    let really = || unsafe { libc::pread(fd, bytes, length, offset) };
    let Some((file, read, _guard)) = logged(fd, offset, length) else {
        return really();
    };
    // SAFETY: there is room for so many bytes, as the caller says.
    let into = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
    let former = read_log::former(read, into);
    let got = match former {
        Former::Served(bytes) => bytes as isize,
        _ => really(),
    };
    if let Ok(bytes) = usize::try_from(got) {
        lost_reads::has_read(file, read.from, bytes as u64);
        has_found(file, former, read, &into[..bytes]);
    }
    got
}

/// A read or write where the descriptor is, which it moves. It is made `at` an offset if that is in a file of the MPI
/// library; sockets and pipes have none.
fn at_offset(fd: c_int, really: impl FnOnce() -> isize, at: impl FnOnce(libc::off_t) -> isize) -> isize {
    if mpi_file(fd).is_none() {
        return really();
    }
    let _guard = Guard::new();
    // SAFETY: asks for an offset, and moves it as the call does.
    let seek = |by| unsafe { libc::lseek(fd, by, libc::SEEK_CUR) };
    let done = at(seek(0));
    if done > 0 {
        seek(done as libc::off_t);
    }
    done
}

pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    // SAFETY: as the caller calls it.
    unsafe {
        at_offset(
            fd,
            || libc::write(fd, bytes, length),
            |from| pwrite(fd, bytes, length, from),
        )
    }
}

pub unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, length: usize) -> isize {
    // SAFETY: as the caller calls it.
    unsafe {
        at_offset(
            fd,
            || libc::read(fd, bytes, length),
            |from| pread(fd, bytes, length, from),
        )
    }
}

/// The library asks for the end of a file, which former lives may have seen elsewhere.
pub unsafe extern "C" fn lseek(fd: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t {
    let mut end = [0; 8];
    let is_end = whence == libc::SEEK_END;
    let Some((file, _, _guard)) = is_end.then(|| logged(fd, 0, end.len())).flatten() else {
        // SAFETY: as the caller calls it.
        return unsafe { libc::lseek(fd, offset, whence) };
    };
    let former = read_log::former(Call::END, &mut end);
    if let Former::Served(_) = former {
        // SAFETY: moves the offset as the caller wants it.
        return unsafe { libc::lseek(fd, libc::off_t::from_le_bytes(end) + offset, libc::SEEK_SET) };
    }
    // SAFETY: as the caller calls it.
    let found = unsafe { libc::lseek(fd, offset, whence) };
    if found >= offset {
        has_found(file, former, Call::END, &(found - offset).to_le_bytes());
    }
    found
}

/// Locks of files: the library reads and writes back whole blocks under one.
pub unsafe extern "C" fn fcntl(fd: c_int, what: c_int, argument: usize) -> c_int {
    if ![libc::F_SETLK, libc::F_SETLKW].contains(&what) {
        // SAFETY: as the caller calls it.
        return unsafe { libc::fcntl(fd, what, argument) };
    }
    // Whoever has the lock soon gives it up: it is guarded, too.
    let guard = Guard::new();
    // SAFETY: as the caller calls it.
    let done = unsafe { libc::fcntl(fd, what, argument) };
    if done != 0 {
        return done;
    }
    // SAFETY: these have a lock as their argument.
    let kind = c_int::from(unsafe { (*(argument as *const libc::flock)).l_type });
    read_log::has_locked(kind == libc::F_WRLCK);
    let held = || WHILE_LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    if kind == libc::F_UNLCK {
        under_lock::is_over();
        let last = held().take();
        // It may take an image as it ends, when nothing is locked here any more.
        drop(last);
    } else {
        held().get_or_insert(guard);
    }
    done
}

/// Nonblocking reads. Where ranks repeat alone what they did, they are made before this returns, as other reads are.
pub unsafe extern "C" fn aio_read(request: *mut libc::aiocb) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let about = unsafe { &*request };
    let (fd, into, length, from) = (about.aio_fildes, about.aio_buf, about.aio_nbytes, about.aio_offset);
    match mpi_file(fd) {
        Some(_) if REPLAYS.load(Ordering::Relaxed) => {
            // SAFETY: as the caller calls it.
            let got = unsafe { pread(fd, into, length, from) };
            // SAFETY: as the caller calls it.
            return usize::try_from(got).map_or(-1, |got| unsafe { ends_with(request, got) });
        }
        Some((file, _)) if from >= 0 => lost_reads::has_read(file, from as u64, length as u64),
        _ => {}
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::aio_read(request) }
}

/// Where ranks repeat alone what they did, the bytes are written before this returns: a write that is under way when an
/// image is taken would be made again by the process that is woken from it, over what has been written since.
pub unsafe extern "C" fn aio_write(request: *mut libc::aiocb) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let about = unsafe { &*request };
    let (fd, bytes, length, from) = (about.aio_fildes, about.aio_buf, about.aio_nbytes, about.aio_offset);
    match mpi_file(fd) {
        Some(_) if REPLAYS.load(Ordering::Relaxed) => {
            let mut done = 0;
            while done < length {
                // SAFETY: a part of what the caller has.
                match unsafe { pwrite(fd, bytes.add(done), length - done, from + done as libc::off_t) } {
                    written @ 1.. => done += written as usize,
                    _ => return -1,
                }
            }
            // SAFETY: as the caller calls it.
            return unsafe { ends_with(request, length) };
        }
        // SAFETY: as the caller calls it.
        Some(file) => unsafe { will_write(fd, file, bytes, length, from, false) },
        None => {}
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::aio_write(request) }
}

/// What the request is for has been done with so many bytes: writes them to where nobody reads them. The library asks for
/// the outcome by way of the request, not of the descriptor.
///
/// # Safety
/// The request is one that may be made.
unsafe fn ends_with(request: *mut libc::aiocb, bytes: usize) -> c_int {
    let Some(nowhere) = nowhere() else { return -1 };
    // SAFETY: as the caller says.
    unsafe {
        ((*request).aio_fildes, (*request).aio_nbytes) = (nowhere, bytes);
        libc::aio_write(request)
    }
}

/// A descriptor that takes any number of bytes.
fn nowhere() -> Option<c_int> {
    let known = NOWHERE.load(Ordering::Relaxed);
    if known >= 0 {
        return Some(known);
    }
    // SAFETY: opens a file.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    NOWHERE.store(fd, Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// The function that the MPI library's import of this name is pointed to.
pub fn replacement(import: &CStr) -> Option<usize> {
    match import.to_bytes() {
        b"ftruncate" | b"ftruncate64" => Some(ftruncate as *const () as usize),
        b"unlink" => Some(unlink as *const () as usize),
        b"open" | b"open64" => Some(open as *const () as usize),
        b"pwrite" | b"pwrite64" => Some(pwrite as *const () as usize),
        b"write" => Some(write as *const () as usize),
        b"pread" | b"pread64" => Some(pread as *const () as usize),
        b"read" => Some(read as *const () as usize),
        b"lseek" | b"lseek64" => Some(lseek as *const () as usize),
        b"fcntl" | b"fcntl64" => Some(fcntl as *const () as usize),
        b"aio_read" | b"aio_read64" => Some(aio_read as *const () as usize),
        b"aio_write" | b"aio_write64" => Some(aio_write as *const () as usize),
        _ => None,
    }
}

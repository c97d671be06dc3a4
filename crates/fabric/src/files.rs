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
//! way of the MPI library's own imports. Once the life is behind everything that former ones are known to have done,
//! these calls work as ever.
//!
//! A file that no longer existed when the life began is an exception: it is made anew. Where a file system does not
//! tell how old files are, everything is done again. Files that the MPI library has opened never get back their content
//! of an image: they would lack what was done since. Only those are meant here.
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

use crate::deeds;
use crate::engine::images;
use crate::lost_reads;
use crate::node::Node;
use crate::read_log::{self, Call, Former, OUTCOME};
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
    // SAFETY: an all-zero statx is valid, and the kernel fills it. What the agent has written stays, as the phase does.
    let (about, began) = unsafe {
        let mut about: libc::statx = zeroed();
        if libc::statx(directory, path, flags, known, &mut about) != 0 {
            return None;
        }
        (about, BEGAN.load(Ordering::Acquire).as_ref()?.load(Ordering::Acquire))
    };
    let is_regular = u32::from(about.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    let made = birth(&about);
    let device = libc::makedev(about.stx_dev_major, about.stx_dev_minor);
    (about.stx_mask & known == known && is_regular && made < i128::from(began)).then_some((device, about.stx_ino))
}

/// Whether a former life has done this to the file. The library's own shared memory, which comes from `shm_open`, is no
/// such file.
fn has_been_done_to(fd: c_int, call: Call) -> bool {
    if mpi_file(fd).is_none() {
        return false;
    }
    outcome(call).map_or_else(
        || {
            // SAFETY: an empty path, which stands for the descriptor itself.
            let file = unsafe { was_there(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
            file.is_some_and(resurgo_image::is_mpi_file)
        },
        |outcome| outcome == Some(0),
    )
}

/// How the call went in a former life, if one has made it: zero or an error. None: the log does not know.
fn outcome(call: Call) -> Option<Option<c_int>> {
    images::look_around();
    if !read_log::is_whole() {
        return None;
    }
    let mut outcome = [0; OUTCOME];
    let is_known = read_log::is_next(call) && read_log::former(call, &mut outcome) == Former::Served(OUTCOME);
    Some(is_known.then(|| u64::from_le_bytes(outcome) as c_int))
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
    // SAFETY: an all-zero statx is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::statx = zeroed();
        match libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_BTIME, &mut about) {
            0 => birth(&about),
            _ => 0,
        }
    }
}

fn birth(about: &libc::statx) -> i128 {
    i128::from(about.stx_btime.tv_sec) * 1_000_000_000 + i128::from(about.stx_btime.tv_nsec)
}

/// The file and its length, if the MPI library opened it.
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

/// The MPI library reads this, unless former lives have. `really` reads it, too, and says how many bytes were there.
///
/// # Safety
/// There is room for so many bytes.
unsafe fn read_at(
    fd: c_int,
    into: *mut c_void,
    length: usize,
    from: libc::off_t,
    really: impl FnOnce() -> isize,
) -> isize {
    let Some((file, read, _guard)) = logged(fd, from, length) else {
        return really();
    };
    // SAFETY: as the caller says.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), length) };
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

/// The MPI library is about to write this, unless it `is_done`.
///
/// # Safety
/// There are so many bytes.
unsafe fn will_write(fd: c_int, bytes: *const c_void, length: usize, from: libc::off_t, is_done: bool) {
    if length > 0
        && from >= 0
        && let Some((file, end)) = mpi_file(fd)
    {
        // SAFETY: as the caller says.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
        under_lock::will_write(file, from as u64, from as u64 + length as u64);
        lost_reads::will_write(fd, file, from as u64, bytes, is_done);
        if !is_done {
            undo::will_write(fd, file, end, from as u64, bytes);
        }
    }
}

/// `open` has a mode only if it may make a file; then the mode comes in the same register.
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    unsafe {
        let fd = match REPLAYS.load(Ordering::Relaxed) {
            // Do not cut off a file that a former life made: others have written to it.
            true => open_as_before(path, |was_open| match was_open {
                // Nor make it anew: it would stay.
                true => deeds::open_again(path, flags),
                false => deeds::open_uncut(path, flags, mode),
            }),
            false => deeds::open(path, flags, mode),
        };
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
    let call = Call::open(unsafe { CStr::from_ptr(path) }.to_bytes());
    let before = outcome(call).flatten();
    if let Some(error) = before.filter(|error| *error != 0) {
        deeds::set_errno(error);
        return -1;
    }
    let fd = open(before.is_some());
    let error = if fd < 0 { deeds::errno() } else { 0 };
    // The library's own shared memory is of no use without others.
    // SAFETY: as the caller says.
    let is_memory = unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(b"/dev/shm/");
    if before.is_some() && error == libc::ENOENT && !is_memory {
        // SAFETY: makes a file without a name.
        let fd = unsafe { libc::memfd_create(c"removed".as_ptr(), libc::MFD_CLOEXEC) };
        stand_ins().extend(regular(fd).map(|(file, _)| file));
        return fd;
    }
    // Not each call is in the log.
    if before.is_none() && (fd < 0 || regular(fd).is_some()) {
        has_done((0, 0), call, error);
        deeds::set_errno(error);
    }
    fd
}

pub unsafe extern "C" fn ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    let _guard = Guard::new();
    let call = Call::cut(length as u64);
    if has_been_done_to(fd, call) {
        return 0;
    }
    let about = mpi_file(fd).filter(|_| length >= 0);
    if let Some((file, end)) = about {
        undo::will_cut(fd, file, end, length as u64);
    }
    // SAFETY: as the caller calls it.
    let done = unsafe { libc::ftruncate(fd, length) };
    if let Some((file, _)) = about.filter(|_| done == 0) {
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
        let was_there = || was_there(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
        match outcome(call) {
            None => match was_there() {
                Some(_) => {
                    deeds::has_been_removed(path);
                    0
                }
                None => deeds::unlink(path),
            },
            Some(Some(0)) => {
                deeds::has_been_removed(path);
                0
            }
            Some(Some(error)) => {
                deeds::set_errno(error);
                -1
            }
            Some(None) => {
                let done = deeds::unlink(path);
                let error = if done < 0 { deeds::errno() } else { 0 };
                has_done((0, 0), call, error);
                deeds::set_errno(error);
                done
            }
        }
    }
}

pub unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, length: usize, offset: libc::off_t) -> isize {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    unsafe { write_at(fd, bytes, length, offset, || libc::pwrite(fd, bytes, length, offset)) }
}

/// The MPI library writes this, unless a former life has.
///
/// # Safety
/// There are so many bytes.
unsafe fn write_at(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    from: libc::off_t,
    really: impl FnOnce() -> isize,
) -> isize {
    let call = Call::write(from as u64, length as u64);
    let is_done = has_been_done_to(fd, call);
    // SAFETY: as the caller says.
    unsafe { will_write(fd, bytes, length, from, is_done) };
    if is_done {
        return length as isize;
    }
    let written = really();
    if let Some((file, _)) = mpi_file(fd).filter(|_| written == length as isize) {
        has_written(file, call);
    }
    written
}

pub unsafe extern "C" fn pread(fd: c_int, bytes: *mut c_void, length: usize, offset: libc::off_t) -> isize {
    // SAFETY: as the caller calls it.
    unsafe { read_at(fd, bytes, length, offset, || libc::pread(fd, bytes, length, offset)) }
}

/// The MPI library reads from sockets and pipes, too: those have no offset.
pub unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, length: usize) -> isize {
    if !lost_reads::has_files() {
        // SAFETY: as the caller calls it.
        return unsafe { libc::read(fd, bytes, length) };
    }
    // SAFETY: as the caller calls it; asks for an offset, and moves it as a read does.
    unsafe {
        let from = libc::lseek(fd, 0, libc::SEEK_CUR);
        let mut is_read = false;
        let got = read_at(fd, bytes, length, from, || {
            is_read = true;
            libc::read(fd, bytes, length)
        });
        if !is_read {
            libc::lseek(fd, got as libc::off_t, libc::SEEK_CUR);
        }
        got
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
    // SAFETY: as the caller calls it: these have a lock as their argument.
    unsafe {
        let done = libc::fcntl(fd, what, argument);
        if done == 0 {
            let kind = c_int::from((*(argument as *const libc::flock)).l_type);
            read_log::has_locked(kind == libc::F_WRLCK);
            let held = || WHILE_LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
            let is_over = match kind {
                libc::F_UNLCK => {
                    under_lock::is_over();
                    held().take()
                }
                _ => {
                    held().get_or_insert(guard);
                    None
                }
            };
            drop(is_over);
        }
        done
    }
}

/// Nonblocking reads. Where ranks repeat alone what they did, they are made before this returns, as other reads are.
pub unsafe extern "C" fn aio_read(request: *mut libc::aiocb) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let about = unsafe { &*request };
    let (fd, into, length, from) = (about.aio_fildes, about.aio_buf, about.aio_nbytes, about.aio_offset);
    let file = mpi_file(fd);
    if !REPLAYS.load(Ordering::Relaxed) || file.is_none() {
        if let Some((file, _)) = file.filter(|_| from >= 0) {
            lost_reads::has_read(file, from as u64, length as u64);
        }
        // SAFETY: as the caller calls it.
        return unsafe { libc::aio_read(request) };
    }
    // SAFETY: as the caller calls it.
    match unsafe { pread(fd, into, length, from) } {
        ..0 => -1,
        // SAFETY: as the caller calls it.
        got => unsafe { ends_with(request, got as usize) },
    }
}

/// Where ranks repeat alone what they did, the bytes are written before this returns: a write that is under way when an
/// image is taken would be made again by the process that is woken from it, over what has been written since.
pub unsafe extern "C" fn aio_write(request: *mut libc::aiocb) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let about = unsafe { &*request };
    let (fd, bytes, length, from) = (about.aio_fildes, about.aio_buf, about.aio_nbytes, about.aio_offset);
    if !REPLAYS.load(Ordering::Relaxed) || mpi_file(fd).is_none() {
        // SAFETY: as the caller calls it.
        unsafe {
            will_write(fd, bytes, length, from, false);
            return libc::aio_write(request);
        }
    }
    let mut done = 0;
    while done < length {
        // SAFETY: a part of what the caller has.
        match unsafe { pwrite(fd, bytes.add(done), length - done, from + done as libc::off_t) } {
            written @ 1.. => done += written as usize,
            _ => return -1,
        }
    }
    // SAFETY: as the caller calls it.
    unsafe { ends_with(request, length) }
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

pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    if regular(fd).is_none() {
        // SAFETY: as the caller calls it.
        return unsafe { libc::write(fd, bytes, length) };
    }
    let _guard = Guard::new();
    // SAFETY: as the caller calls it; asks for an offset, and moves it as a write does.
    unsafe {
        let from = libc::lseek(fd, 0, libc::SEEK_CUR);
        let mut is_written = false;
        let written = write_at(fd, bytes, length, from, || {
            is_written = true;
            libc::write(fd, bytes, length)
        });
        if !is_written {
            libc::lseek(fd, written as libc::off_t, libc::SEEK_CUR);
        }
        written
    }
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

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
use std::sync::{Mutex, PoisonError};

use resurgo_image::Guard;
use resurgo_wire::node_memory::{PHASE_REPLAY, control};

use crate::deeds;
use crate::engine::images;
use crate::lost_reads;
use crate::node::Node;
use crate::read_log::{self, Former, Read};
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
    let made = i128::from(about.stx_btime.tv_sec) * 1_000_000_000 + i128::from(about.stx_btime.tv_nsec);
    let device = libc::makedev(about.stx_dev_major, about.stx_dev_minor);
    (about.stx_mask & known == known && is_regular && made < i128::from(began)).then_some((device, about.stx_ino))
}

/// Whether a file holds what former lives did to it. The library's own shared memory, which comes from `shm_open`, is
/// no such file.
fn has_been_done_to(fd: c_int) -> bool {
    // SAFETY: an empty path, which stands for the descriptor itself.
    let file = unsafe { was_there(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
    file.is_some_and(resurgo_image::is_mpi_file)
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

/// The file and its length, if the MPI library opened it.
fn mpi_file(fd: c_int) -> Option<(Inode, u64)> {
    lost_reads::has_files()
        .then(|| regular(fd))?
        .filter(|(file, _)| lost_reads::is_known(*file))
}

/// The read and its file, if it is one that is logged. An image has all that is done with it before the guard ends, or
/// nothing. If it came before, the process may have been woken from it.
fn logged(fd: c_int, from: libc::off_t, length: usize) -> Option<(Inode, Read, Guard)> {
    let is_meant = length > 0 && from >= 0 && !lost_reads::is_locked();
    let (file, _) = is_meant.then(|| mpi_file(fd))??;
    let guard = Guard::new();
    images::look_around();
    let read = Read {
        from: from as u64,
        wanted: length as u64,
    };
    Some((file, read, guard))
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
    let former = read_log::former(read, Some(into));
    let got = match former {
        Former::Served(bytes) => bytes as isize,
        _ => really(),
    };
    if let Ok(bytes) = usize::try_from(got) {
        lost_reads::has_read(file, read.from, bytes as u64);
        has_found(former, read, &into[..bytes], false);
    }
    got
}

/// A read has found this. Ends the life where former ones have found something else.
fn has_found(former: Former, read: Read, bytes: &[u8], is_glance: bool) {
    let differs = match former {
        Former::Served(_) => return,
        Former::Nothing => false,
        Former::Digest(length, digest) => (length, digest) != (bytes.len() as u64, undo_log::digest(bytes)),
        Former::Other => images::node().is_some_and(lost_reads::are_lost),
    };
    if differs && let Some(node) = images::node() {
        lost_reads::end(node);
    }
    if !matches!(former, Former::Digest(..)) {
        read_log::note(read, bytes, is_glance);
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
        lost_reads::will_write(fd, file, from as u64, bytes, is_done);
        if !is_done {
            undo::will_write(fd, file, end, from as u64, bytes);
        }
    }
}

/// `open` has a mode only if it may make a file; then the mode comes in the same register.
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it; an all-zero stat is valid, and the kernel fills it.
    unsafe {
        let replays = REPLAYS.load(Ordering::Relaxed);
        let fd = match replays {
            // Do not cut off a file that a former life made: others have written to it.
            true => deeds::open_uncut(path, flags, mode),
            false => deeds::open(path, flags, mode),
        };
        if fd >= 0
            && let Some((file, _)) = regular(fd)
        {
            if APART.load(Ordering::Relaxed) && flags & libc::O_ACCMODE != libc::O_RDONLY {
                resurgo_image::note_mpi_file(file);
            }
            lost_reads::has_opened(CStr::from_ptr(path).to_bytes(), file);
        }
        fd
    }
}

pub unsafe extern "C" fn ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    let _guard = Guard::new();
    if has_been_done_to(fd) {
        return 0;
    }
    if length >= 0
        && let Some((file, end)) = mpi_file(fd)
    {
        undo::will_cut(fd, file, end, length as u64);
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::ftruncate(fd, length) }
}

pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    unsafe {
        if !path.is_null() && was_there(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW).is_some() {
            deeds::has_been_removed(path);
            return 0;
        }
        deeds::unlink(path)
    }
}

pub unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, length: usize, offset: libc::off_t) -> isize {
    let _guard = Guard::new();
    let is_done = has_been_done_to(fd);
    // SAFETY: as the caller calls it.
    unsafe {
        will_write(fd, bytes, length, offset, is_done);
        match is_done {
            true => length as isize,
            false => libc::pwrite(fd, bytes, length, offset),
        }
    }
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
    let Some((.., _guard)) = is_end.then(|| logged(fd, 0, end.len())).flatten() else {
        // SAFETY: as the caller calls it.
        return unsafe { libc::lseek(fd, offset, whence) };
    };
    let former = read_log::former(Read::END, Some(&mut end));
    if let Former::Served(_) = former {
        // SAFETY: moves the offset as the caller wants it.
        return unsafe { libc::lseek(fd, libc::off_t::from_le_bytes(end) + offset, libc::SEEK_SET) };
    }
    // SAFETY: as the caller calls it.
    let found = unsafe { libc::lseek(fd, offset, whence) };
    if found >= offset {
        has_found(former, Read::END, &(found - offset).to_le_bytes(), false);
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
            lost_reads::has_locked(kind == libc::F_WRLCK);
            let held = || WHILE_LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
            let is_over = match kind {
                libc::F_UNLCK => held().take(),
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

/// Nonblocking reads and writes of files. What such a read will find is read twice.
pub unsafe extern "C" fn aio_read(request: *mut libc::aiocb) -> c_int {
    // SAFETY: as the caller calls it.
    let about = unsafe { &*request };
    let (fd, from, length) = (about.aio_fildes, about.aio_offset, about.aio_nbytes);
    if let Some((file, read, _guard)) = logged(fd, from, length) {
        let mut bytes = vec![0; length];
        // SAFETY: there is so much room.
        let got = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), length, from) };
        lost_reads::has_read(file, read.from, read.wanted);
        has_found(
            read_log::former(read, None),
            read,
            &bytes[..usize::try_from(got).unwrap_or(0)],
            true,
        );
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::aio_read(request) }
}

/// Where ranks repeat alone what they did, the bytes are written before this returns: a write that is under way when an
/// image is taken would be made again by the process that is woken from it, over what has been written since.
pub unsafe extern "C" fn aio_write(request: *mut libc::aiocb) -> c_int {
    let _guard = Guard::new();
    // SAFETY: as the caller calls it.
    let about = unsafe { &mut *request };
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
    let Some(nowhere) = nowhere() else { return -1 };
    about.aio_fildes = nowhere;
    // SAFETY: as the caller calls it. The library asks for the outcome by way of the request, not of the descriptor.
    unsafe { libc::aio_write(request) }
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
    // SAFETY: moves an offset of the caller's, or as the caller calls it.
    unsafe {
        let is_done = has_been_done_to(fd);
        will_write(fd, bytes, length, libc::lseek(fd, 0, libc::SEEK_CUR), is_done);
        if is_done && libc::lseek(fd, length as libc::off_t, libc::SEEK_CUR) >= 0 {
            return length as isize;
        }
        libc::write(fd, bytes, length)
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

//! A process that fills the memory of a process that is being rebuilt. It has several threads, and uses a call that
//! makes a page and copies into it at once (UFFDIO_COPY). With `read()` into new memory the kernel clears every page
//! first and finds it by a fault, which takes twice as long.
//!
//! The restorer makes a userfaultfd of its own memory and sends it here. One that takes faults from user mode only
//! needs no rights. No fault comes: nothing of the program runs before all its memory is there. The restorer itself
//! reads memory that is not anonymous, or that wants huge pages. With rights, and with much memory to fill, the program
//! runs meanwhile (`lazy.rs`).
//!
//! The process has another number than the one in the image, and the locks that the main thread holds contain the old
//! one. The filler looks for them while the pages are in the cache.

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::IMAGE_FD;

use super::steps::Plan;
use crate::changes::{API, UFFDIO_API, UFFDIO_REGISTER, USER_MODE_ONLY, userfaultfd};
use crate::file::format::{Mapping, MappingKind, PLAIN};
use crate::file::plan::{KEEP, KEPT};
use crate::file::reader::Image;
use crate::locks::Renamed;
use crate::sys::{self, Errno};
use crate::talk;
use memory::{copy_some, failed, find, rename};

mod lazy;
mod memory;

/// Below so many bytes another process is not worth it.
const LEAST: u64 = 1 << 20;
const REGISTER_MISSING: u64 = 1;
const DONT_WAKE: u64 = 1;

pub struct Filler {
    pub socket: OwnedFd,
    /// What the filler fills, in ascending order.
    ranges: Vec<Range<u64>>,
    fills_all: bool,
    is_lazy: bool,
}

impl Filler {
    /// Starts the filler if there is much to fill and the kernel has what it needs. The filler ends when it has filled
    /// the memory, or when the other end of its socket is closed.
    pub fn start(image: &Image) -> Option<Filler> {
        if image.header.compression != PLAIN {
            return None;
        }
        let (ranges, fills_all) = ranges(image);
        let extents = image.extents.iter();
        let filled = extents.filter(|extent| find(&ranges, extent.address).is_some());
        let bytes = filled.map(|extent| extent.length).sum::<u64>();
        if bytes < LEAST {
            return None;
        }
        let is_lazy = bytes >= lazy::LEAST && lazy::is_possible();
        let main = image.threads.iter().find(|thread| thread.is_main != 0)?;
        let renamed = (main.tid, sys::getpid());
        userfaultfd(USER_MODE_ONLY, 0).map(sys::close).ok()?;
        // SAFETY: owns the sockets just made; copies this process, which has one thread.
        unsafe {
            let (ours, theirs) = talk::pair().ok()?;
            let (ours, theirs) = (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs));
            // The program must not find it among its children: its parent ends.
            match libc::fork() {
                -1 => None,
                0 => {
                    let child = libc::fork();
                    if child == 0 {
                        libc::prctl(libc::PR_SET_NAME, c"resurgo-filler".as_ptr());
                        drop(ours);
                        run(image, &ranges, renamed, is_lazy, theirs);
                    }
                    libc::_exit(i32::from(child < 0))
                }
                parent => {
                    let mut status = -1;
                    libc::waitpid(parent, &mut status, 0);
                    (status == 0).then_some(Filler {
                        socket: ours,
                        ranges,
                        fills_all,
                        is_lazy,
                    })
                }
            }
        }
    }

    /// Whether the filler fills the mapping that begins at `start`.
    pub fn fills(&self, start: u64) -> bool {
        find(&self.ranges, start).is_some()
    }

    /// Whether the rest is memory of files only.
    pub fn fills_all(&self) -> bool {
        self.fills_all
    }

    /// Once everything is mapped: the steps after which the memory is filled, or will be when the program touches it.
    /// `socket`: the one to the filler; `spare`: a number for the userfaultfd.
    pub fn plan(&self, plan: &mut Plan, (socket, spare): (i32, i32)) {
        let (socket, spare) = (socket as u64, spare as u64);
        let (mode, features) = match self.is_lazy {
            true => (libc::O_NONBLOCK, lazy::FEATURES),
            false => (USER_MODE_ONLY, 0),
        };
        let flags = (libc::O_CLOEXEC | mode) as u64;
        plan.step(libc::SYS_userfaultfd, &[flags], KEEP);
        plan.step(libc::SYS_dup3, &[KEPT, spare, libc::O_CLOEXEC as u64], spare);
        plan.step(libc::SYS_close, &[KEPT], 0);
        let api = plan.place_words(&[API, features, 0]);
        plan.step(libc::SYS_ioctl, &[spare, UFFDIO_API.into(), api], 0);
        for range in &self.ranges {
            let register = plan.place_words(&[range.start, range.end - range.start, REGISTER_MISSING, 0]);
            plan.step(libc::SYS_ioctl, &[spare, UFFDIO_REGISTER.into(), register], 0);
        }
        let (bytes, length) = Datagram::new(Kind::Go, 0, 0, 0).encode();
        let length = length as u64;
        let bytes = plan.place(&bytes);
        let piece = plan.place_words(&[bytes, length]);
        // The length of this, SOL_SOCKET and SCM_RIGHTS, and the descriptor.
        let beside = plan.place_words(&[20, 1 | 1 << 32, spare]);
        let message = plan.place_words(&[0, 0, piece, 1, beside, 24, 0]);
        plan.step(libc::SYS_sendmsg, &[socket, message, 0], length);
        // The other end must not stay open here: when the filler is gone, the read must return nothing.
        plan.step(libc::SYS_read, &[socket, bytes, length], length);
    }
}

/// What the filler can fill: private memory of no file, in pages that would be small in any case. Also whether that is
/// all such memory.
fn ranges(image: &Image) -> (Vec<Range<u64>>, bool) {
    let always = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if always.is_ok_and(|modes| modes.contains("[always]")) {
        return (Vec::new(), false);
    }
    let has_data = |mapping: &&Mapping| {
        let at = image.extents.partition_point(|extent| extent.address < mapping.start);
        image.extents.get(at).is_some_and(|extent| extent.address < mapping.end)
    };
    let is_private = |mapping: &&Mapping| {
        mapping.kind == MappingKind::Anonymous as u32 && mapping.flags & libc::MAP_PRIVATE as u32 != 0
    };
    let (huge, small): (Vec<&Mapping>, Vec<&Mapping>) = image
        .mappings
        .iter()
        .filter(is_private)
        .filter(has_data)
        .partition(|mapping| mapping.advice == libc::MADV_HUGEPAGE as u32);
    let ranges = small.iter().map(|mapping| mapping.start..mapping.end);
    (ranges.collect(), huge.is_empty())
}

/// The process: fills what it was given, says so, and ends.
fn run(image: &Image, ranges: &[Range<u64>], renamed: Renamed, is_lazy: bool, socket: OwnedFd) -> ! {
    let code = match talk::receive(socket.as_raw_fd(), 0) {
        Ok(Some(given)) if given.count == 1 => {
            let memory = given.descriptors[0];
            let filled = if is_lazy {
                lazy::fill(image, ranges, renamed, memory, socket)
            } else {
                fill(image, ranges, renamed, memory, &socket)
            };
            i32::from(filled.is_err())
        }
        _ => 1,
    };
    // SAFETY: ends this process; nothing of the one it was copied from is to be tidied up here.
    unsafe { libc::_exit(code) }
}

/// Fills all of the memory while its process waits.
fn fill(image: &Image, ranges: &[Range<u64>], renamed: Renamed, memory: i32, socket: &OwnedFd) -> Result<(), Errno> {
    let each = |address: u64, bytes: &mut [u8]| match find(ranges, address) {
        Some(_) => {
            rename(image, address, bytes, renamed)?;
            copy(memory, address, bytes).map_err(|errno| image.not_filled(errno))
        }
        None => Ok(()),
    };
    match image.each_share(&each) {
        Ok(()) => talk::send(socket.as_raw_fd(), &Datagram::new(Kind::Ready, 0, 0, 0), &[]),
        Err(defect) => talk::send(IMAGE_FD, &failed(&defect), &[]),
    }
}

/// Makes pages at `address` in the process that `memory`, a userfaultfd, belongs to.
fn copy(memory: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match copy_some(memory, address + done as u64, &bytes[done..], DONT_WAKE) {
            Ok(copied) => done += copied,
            Err(libc::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

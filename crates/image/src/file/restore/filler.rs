//! A process that fills the memory of one that is being rebuilt: with several threads, and by a call that makes a page and copies
//! into it at once (UFFDIO_COPY). With `read()` into new memory every page is cleared first, and found by a fault, which takes
//! twice as long.
//!
//! The restorer makes a userfaultfd of its own memory and sends it here. One that takes faults from user mode only needs no
//! rights, and no fault ever comes: nothing of the program runs before all is there. What is not anonymous, or wants huge pages, the
//! restorer reads itself.

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::IMAGE_FD;

use super::Plan;
use crate::changes::{API, UFFDIO_API, UFFDIO_REGISTER, USER_MODE_ONLY};
use crate::file::format::{Mapping, MappingKind, PLAIN};
use crate::file::plan::{KEEP, KEPT};
use crate::file::reader::Image;
use crate::sys::{Errno, call};
use crate::talk;

/// Bytes below which a process more is not worth it.
const LEAST: u64 = 1 << 20;
const REGISTER_MISSING: u64 = 1;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const DONT_WAKE: u64 = 1;

pub struct Filler {
    pub socket: OwnedFd,
    /// What it fills, in ascending order.
    ranges: Vec<Range<u64>>,
}

impl Filler {
    /// Starts it, if there is much to be filled and the kernel has what it needs. It ends when it has filled the memory, or when the
    /// other end of its socket is closed.
    pub fn start(image: &Image) -> Option<Filler> {
        if image.header.compression != PLAIN {
            return None;
        }
        let ranges = ranges(image);
        let extents = image.extents.iter();
        let filled = extents.filter(|extent| find(&ranges, extent.address).is_some());
        if filled.map(|extent| extent.length).sum::<u64>() < LEAST {
            return None;
        }
        // SAFETY: makes a descriptor and closes it; owns the sockets just made; copies this process, which has one thread.
        unsafe {
            let possible = call!(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY).ok()?;
            libc::close(possible as i32);
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
                        run(image, &ranges, &theirs);
                    }
                    libc::_exit(i32::from(child < 0))
                }
                parent => {
                    let mut status = -1;
                    libc::waitpid(parent, &mut status, 0);
                    (status == 0).then_some(Filler { socket: ours, ranges })
                }
            }
        }
    }

    /// Whether it fills the mapping that begins at `start`.
    pub fn fills(&self, start: u64) -> bool {
        find(&self.ranges, start).is_some()
    }

    /// Everything is mapped: the steps after which all of it is filled. `socket`: this one, and `spare` a number that is used as well.
    pub fn plan(&self, plan: &mut Plan, (socket, spare): (i32, i32)) {
        let (socket, spare) = (socket as u64, spare as u64);
        let flags = (libc::O_CLOEXEC | USER_MODE_ONLY) as u64;
        plan.step(libc::SYS_userfaultfd, &[flags], KEEP);
        plan.step(libc::SYS_dup3, &[KEPT, spare, libc::O_CLOEXEC as u64], spare);
        plan.step(libc::SYS_close, &[KEPT], 0);
        let api = plan.place_words(&[API, 0, 0]);
        plan.step(libc::SYS_ioctl, &[spare, UFFDIO_API.into(), api], 0);
        for range in &self.ranges {
            let register = plan.place_words(&[range.start, range.end - range.start, REGISTER_MISSING, 0]);
            plan.step(libc::SYS_ioctl, &[spare, UFFDIO_REGISTER.into(), register], 0);
        }
        let (bytes, length) = Datagram::new(Kind::Go, 0, 0, 0).encode();
        let length = length as u64;
        let bytes = plan.place(&bytes);
        let piece = plan.place_words(&[bytes, length]);
        // Its length, SOL_SOCKET and SCM_RIGHTS, and the number.
        let beside = plan.place_words(&[20, 1 | 1 << 32, spare]);
        let message = plan.place_words(&[0, 0, piece, 1, beside, 24, 0]);
        plan.step(libc::SYS_sendmsg, &[socket, message, 0], length);
        // The other end must not stay open here: when the filler has gone the answer is nothing.
        plan.step(libc::SYS_read, &[socket, bytes, length], length);
    }
}

/// What can be filled: private memory of no file, in pages that would be small in any case.
fn ranges(image: &Image) -> Vec<Range<u64>> {
    let always = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if always.is_ok_and(|modes| modes.contains("[always]")) {
        return Vec::new();
    }
    let fits = |mapping: &&Mapping| {
        mapping.kind == MappingKind::Anonymous as u32
            && mapping.flags & libc::MAP_PRIVATE as u32 != 0
            && mapping.advice != libc::MADV_HUGEPAGE as u32
    };
    let mappings = image.mappings.iter().filter(fits);
    let has_data = |range: &Range<u64>| {
        let at = image.extents.partition_point(|extent| extent.address < range.start);
        image.extents.get(at).is_some_and(|extent| extent.address < range.end)
    };
    mappings
        .map(|mapping| mapping.start..mapping.end)
        .filter(has_data)
        .collect()
}

/// The range that has `address`.
fn find(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let at = ranges.partition_point(|range| range.end <= address);
    ranges.get(at).filter(|range| range.contains(&address))
}

/// The process: fills what it is given, says so, and ends.
fn run(image: &Image, ranges: &[Range<u64>], socket: &OwnedFd) -> ! {
    let socket = socket.as_raw_fd();
    let code = match talk::receive(socket, 0) {
        Ok(Some(given)) if given.count == 1 => {
            let memory = given.descriptors[0];
            let fill = |address: u64, bytes: &[u8]| match find(ranges, address) {
                Some(_) => copy(memory, address, bytes).map_err(|errno| image.not_filled(errno)),
                None => Ok(()),
            };
            let (to, said) = match image.each_share(&fill) {
                Ok(()) => (socket, Datagram::new(Kind::Ready, 0, 0, 0)),
                Err(defect) => (
                    IMAGE_FD,
                    Datagram::new(Kind::Failed, 0, 0, 0).with_text(&defect.to_string()),
                ),
            };
            i32::from(talk::send(to, &said, &[]).is_err())
        }
        _ => 1,
    };
    // SAFETY: ends this process; nothing of the one it was copied from is to be tidied up here.
    unsafe { libc::_exit(code) }
}

/// Makes pages at `address` of the process whose memory this is.
fn copy(memory: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let mut request = [
            address + done as u64,
            rest.as_ptr() as u64,
            rest.len() as u64,
            DONT_WAKE,
            0,
        ];
        // SAFETY: reads the bytes, and writes to memory of another process, which waits for it.
        let result = unsafe { call!(libc::SYS_ioctl, memory, UFFDIO_COPY, request.as_mut_ptr()) };
        // How many, or an error.
        match (result, request[4] as i64) {
            (Ok(_), _) => return Ok(()),
            (Err(_), copied @ 1..) => done += copied as usize,
            (Err(libc::EAGAIN), _) => {}
            (Err(errno), _) => return Err(errno),
        }
    }
    Ok(())
}

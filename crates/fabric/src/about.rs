//! What the kernel says of a file.

use std::ffi::{c_char, c_int};
use std::mem::zeroed;

use resurgo_wire::undo::Inode;

/// Asks for these facts (`STATX_…`), with flags `AT_…`. None: there is no such file, or it cannot be asked.
///
/// # Safety
/// `path` ends with a zero.
pub unsafe fn about(directory: c_int, path: *const c_char, flags: c_int, facts: u32) -> Option<libc::statx> {
    // SAFETY: an all-zero statx is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::statx = zeroed();
        (libc::statx(directory, path, flags, facts, &mut about) == 0).then_some(about)
    }
}

pub fn is_regular(about: &libc::statx) -> bool {
    u32::from(about.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

pub fn inode(about: &libc::statx) -> Inode {
    (libc::makedev(about.stx_dev_major, about.stx_dev_minor), about.stx_ino)
}

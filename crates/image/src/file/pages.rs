//! Asking the kernel what it knows of the pages of this process (PAGEMAP_SCAN, Linux 6.7).

use crate::sys::{Errno, call};

pub const IS_WRITTEN: u64 = 1 << 1;
pub const IS_FILE: u64 = 1 << 2;
pub const IS_PRESENT: u64 = 1 << 3;
pub const IS_SWAPPED: u64 = 1 << 4;
pub const IS_ZERO: u64 = 1 << 5;
/// Protect what is found against writes that are not noticed.
pub const PROTECT: u64 = 1;
/// EPERM for memory that is not tracked.
pub const ONLY_TRACKED: u64 = 2;

/// struct page_region of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    _categories: u64,
}

impl Range {
    pub const NONE: Range = Range {
        start: 0,
        end: 0,
        _categories: 0,
    };
}

/// Ranges that one system call finds.
pub const AT_ONCE: usize = 256;

/// struct pm_scan_arg of the kernel.
#[repr(C)]
pub struct Scan {
    size: u64,
    pub flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_length: u64,
    /// 0: all.
    pub most_pages: u64,
    pub inverted: u64,
    pub all_of: u64,
    pub any_of: u64,
    pub returned: u64,
}

impl Scan {
    /// Of the pages from `start` to `end`, with no condition.
    pub fn new((start, end): (usize, usize)) -> Scan {
        Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            found: 0,
            found_length: 0,
            most_pages: 0,
            inverted: 0,
            all_of: 0,
            any_of: 0,
            returned: 0,
        }
    }

    /// The next ranges of such pages, in ascending order; None: that was all. `file`: /proc/self/pagemap.
    pub fn next<'a>(&mut self, file: i32, found: &'a mut [Range; AT_ONCE]) -> Result<Option<&'a [Range]>, Errno> {
        const PAGEMAP_SCAN: u32 = 0xc060_6610;
        if self.start >= self.end {
            return Ok(None);
        }
        (self.found, self.found_length) = (found.as_mut_ptr() as u64, found.len() as u64);
        loop {
            // SAFETY: fills `found`.
            match unsafe { call!(libc::SYS_ioctl, file, PAGEMAP_SCAN, &raw mut *self) } {
                Ok(count) => {
                    self.start = self.walk_end;
                    return Ok(Some(&found[..count]));
                }
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// What has not been looked at.
    pub fn rest(&self) -> (usize, usize) {
        (self.start as usize, self.end as usize)
    }
}

//! Pages of memory, and what the kernel knows of this process's (PAGEMAP_SCAN, Linux 6.7).

use crate::sys::{Errno, call};

pub const PAGE: usize = 4096;
/// MADV_GUARD_INSTALL (Linux 6.13).
pub const GUARD: u32 = 102;

pub const IS_WRITTEN: u64 = 1 << 1;
pub const IS_FILE: u64 = 1 << 2;
pub const IS_PRESENT: u64 = 1 << 3;
pub const IS_SWAPPED: u64 = 1 << 4;
pub const IS_ZERO: u64 = 1 << 5;
/// Linux 6.15.
pub const IS_GUARD: u64 = 1 << 8;
/// Protect what is found against writes that nobody notices.
pub const PROTECT: u64 = 1;
/// EPERM for memory that is not tracked.
pub const ONLY_TRACKED: u64 = 2;

/// struct page_region of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    /// The categories of [`Scan::returned`] that its pages have.
    pub categories: u64,
}

impl Range {
    pub const NONE: Range = Range {
        start: 0,
        end: 0,
        categories: 0,
    };
}

/// How many ranges one system call finds.
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
    /// Scans the pages from `start` to `end`, with no condition.
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

    /// The next ranges of such pages, in ascending order. None: there are no more. `file`: /proc/self/pagemap.
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

    /// What is left to look at.
    pub fn rest(&self) -> (usize, usize) {
        (self.start as usize, self.end as usize)
    }
}

/// Makes the kernel read in these pages. Asked this way, it says so where it cannot, instead of killing the process.
pub fn read_in((start, end): (usize, usize)) -> Result<(), Errno> {
    const MADV_POPULATE_READ: i32 = 22;
    // SAFETY: reads.
    unsafe { call!(libc::SYS_madvise, start, end - start, MADV_POPULATE_READ) }.map(|_| ())
}

/// How guard pages are recognised: pages that stop every reader and are no mappings of their own (MADV_GUARD_INSTALL).
#[derive(Clone, Copy, PartialEq)]
pub enum Guards {
    /// There are none: the kernel is older than Linux 6.13.
    None,
    /// They look swapped, before 6.15 or where PAGEMAP_SCAN is forbidden: see [`is_guard`].
    Swapped,
    /// They are [`IS_GUARD`], and look swapped as well.
    Told,
}

/// `file`: /proc/self/pagemap.
pub fn guards(file: i32) -> Guards {
    let mut scan = Scan::new((0, PAGE));
    (scan.any_of, scan.returned) = (IS_GUARD, IS_GUARD);
    match scan.next(file, &mut [Range::NONE; AT_ONCE]) {
        Ok(_) => Guards::Told,
        Err(_) if can_guard() => Guards::Swapped,
        Err(_) => Guards::None,
    }
}

/// Whether this kernel can guard pages. (In memory of files it can only from Linux 6.15 on.)
pub fn can_guard() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a page of its own.
    unsafe {
        let page = call!(libc::SYS_mmap, 0, PAGE, libc::PROT_READ, flags, -1i64, 0);
        page.is_ok_and(|page| {
            let guarded = call!(libc::SYS_madvise, page, PAGE, GUARD).is_ok();
            let _ = call!(libc::SYS_munmap, page, PAGE);
            guarded
        })
    }
}

/// Whether a page that looks swapped, in a readable mapping, is a guard.
pub fn is_guard(page: usize) -> bool {
    read_in((page, page + PAGE)) == Err(libc::EFAULT)
}

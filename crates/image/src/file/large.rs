//! The file in large pages. Writing to a memory file system page by page is slow: the kernel looks up each small page,
//! and in a new file also makes it. So the writer maps the file and makes 2 MiB at a time one large page. The kernel
//! does that without special rights, with any options of the file system (MADV_COLLAPSE, Linux 6.1).

use std::ops::Range;

use resurgo_wire::node_memory::LARGE_PAGE;

use crate::sys::{self, Errno, call};
use crate::zone;

const LARGE: u64 = LARGE_PAGE as u64;
/// Made at once: each time the kernel first looks around on all processors.
const AT_ONCE: u64 = 8 * LARGE;

pub struct LargePages {
    file: i32,
    /// Large pages may lie below this offset of the file: not beyond what is needed.
    whole: u64,
    /// Where they are, as far as known.
    made: Range<u64>,
    /// Length of the file.
    length: u64,
}

impl LargePages {
    /// For a file that will hold data up to `data_end`. None: no large pages.
    pub fn map(file: i32, data_end: u64) -> Option<LargePages> {
        let whole = data_end / LARGE * LARGE;
        if whole == 0 || whole > zone::FILE.len() as u64 {
            return None;
        }
        let length = sys::stat(file).ok()?.st_size as u64;
        // SAFETY: address space that nobody has (NOREPLACE).
        let mapped = unsafe {
            call!(
                libc::SYS_mmap,
                zone::FILE.start,
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                file,
                0
            )
        };
        mapped.ok()?;
        Some(LargePages {
            file,
            whole,
            made: 0..0,
            length,
        })
    }

    /// The address of `bytes` bytes from `offset` on. None: they do not lie in large pages. Write only in large pages:
    /// elsewhere the kernel reports a full file system by nothing but a signal.
    pub fn at(&mut self, offset: u64, bytes: usize) -> Option<usize> {
        let wanted = offset..offset + bytes as u64;
        if wanted.start < self.made.start || wanted.end > self.made.end {
            let from = wanted.start / LARGE * LARGE;
            let to = (wanted.end.next_multiple_of(LARGE)).max(from + AT_ONCE).min(self.whole);
            if wanted.end > to {
                return None;
            }
            match self.make(from..to) {
                Ok(true) => {}
                // Use these, but make no more: small pages would have been quicker.
                Ok(false) => self.whole = to,
                Err(_) => {
                    // Never ask again: each write would try it again.
                    self.whole = 0;
                    return None;
                }
            }
            self.made = from..to;
        }
        Some(zone::FILE.start + offset as usize)
    }

    /// See [`sys::make_large_pages`].
    fn make(&mut self, range: Range<u64>) -> Result<bool, Errno> {
        if range.end > self.length {
            // SAFETY: about the file; the writer cuts it to its length in the end.
            unsafe { call!(libc::SYS_ftruncate, self.file, range.end)? };
            self.length = range.end;
        }
        sys::make_large_pages(
            zone::FILE.start + range.start as usize,
            (range.end - range.start) as usize,
        )
    }
}

impl Drop for LargePages {
    fn drop(&mut self) {
        // SAFETY: nobody else has memory there.
        let _ = unsafe { call!(libc::SYS_munmap, zone::FILE.start, zone::FILE.len()) };
    }
}

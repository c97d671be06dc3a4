//! Getting pages into the file. On a memory file system they are copied into the mapped file, on a disk by way of buffers.

use std::ops::Range;

use super::checksum::PAGE;
use super::format::DATA_OFFSET;
use super::helper::{Batch, Helper};
use super::tables::Trouble;
use super::work::{self, Area};
use crate::sys::{self, Errno, call};

/// Bytes handed to the kernel at once.
const BATCH: usize = 8 << 20;
/// Bytes of room on a disk that are taken at once; and written bytes after which the kernel is asked to bring them to the disk,
/// when they go through its cache.
const STEP: u64 = 32 << 20;
/// Bytes of room in memory that are taken at once.
const LITTLE: u64 = 256 << 10;
/// Bytes of the mapped file whose pages the kernel finds at once, and from how many on it is asked to.
const FIND: u64 = 2 << 20;
const FEW: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Memory file systems: copied into the mapped file.
    Mapped,
    /// From the process's memory to the disk.
    Direct,
    /// Through the kernel's cache.
    Cached,
}

/// What will be written, as far as it is known before.
#[derive(Clone, Copy)]
pub struct Expected {
    /// The data ends here at the latest.
    pub data_end: u64,
    /// Bytes of tables and checksums, at most.
    pub rest: u64,
    /// Here and there in a file that is written over, in many small pieces, instead of from the first page to the last.
    pub scattered: bool,
    /// Only parts of a file that is written over.
    pub partly: bool,
    /// The process's memory is its own: it can have the file mapped there, and threads.
    pub is_alone: bool,
}

pub struct Output {
    file: i32,
    way: Way,
    expected: Expected,
    /// Room that has been taken.
    taken: u64,
    /// What has not been handed to the kernel yet. Written from the program's own memory, every page that the snapshot
    /// shares with the rank would be copied in the kernel, and kept.
    buffer: Area,
    /// Which half of it is being filled; the other one is being written, if there is somebody to do so.
    half: usize,
    helper: Option<Helper>,
    /// What that one has been given.
    given: Option<Batch>,
    waiting: usize,
    /// Where that goes in the file.
    at: u64,
    /// Of the mapped file: what the kernel has found the pages of.
    found: Range<u64>,
    /// Bytes in the kernel's cache since it was last asked to bring them to the disk.
    cached: u64,
    /// Bytes written.
    pub written: u64,
}

fn cannot(errno: Errno) -> Trouble {
    Trouble::new("the file cannot be written", errno)
}

impl Output {
    pub fn open(file: i32, expected: Expected) -> Result<Output, Trouble> {
        let mut buffer = Area::new(10);
        let mut way = Way::Cached;
        if expected.is_alone && is_in_memory(file) {
            map(file, expected.data_end + expected.rest)?;
            way = Way::Mapped;
        } else {
            buffer.resize(2 * BATCH).map_err(Trouble::memory)?;
            let scattered = expected.scattered || !expected.is_alone;
            if !scattered && sys::fcntl(file, libc::F_SETFL, libc::O_DIRECT as usize).is_ok() {
                way = Way::Direct;
            }
        }
        let taken = match crate::descriptors::stat(file) {
            // Written over: it has its room.
            Ok(stat) if stat.st_blocks * 512 >= stat.st_size => stat.st_size as u64 & !(PAGE as u64 - 1),
            _ => 0,
        };
        Ok(Output {
            file,
            way,
            expected,
            taken,
            buffer,
            half: 0,
            // Through the cache, writing is copying.
            helper: if way == Way::Direct {
                Some(Helper::start()?)
            } else {
                None
            },
            given: None,
            waiting: 0,
            at: 0,
            found: 0..0,
            cached: 0,
            written: 0,
        })
    }

    /// Takes room up to `end`: so a full disk says so early, and a full memory file system does not kill us when we write to
    /// it.
    fn take(&mut self, end: u64) -> Result<(), Trouble> {
        if end <= self.taken {
            return Ok(());
        }
        let step = if self.way == Way::Mapped { LITTLE } else { STEP };
        let more = end.max(self.expected.data_end.min(self.taken + step));
        // What is too much is given back in the end. Without room for that, what is needed will do.
        self.taken = self.allocate(more).or_else(|_| self.allocate(end)).map_err(cannot)?;
        Ok(())
    }

    fn allocate(&self, end: u64) -> Result<u64, Errno> {
        // SAFETY: about a file that is ours.
        match unsafe { call!(libc::SYS_fallocate, self.file, 0, self.taken, end - self.taken) } {
            Err(libc::EOPNOTSUPP | libc::ENOSYS) if self.way != Way::Mapped => Ok(end),
            took => took.map(|_| end),
        }
    }

    /// Writes whole pages to a place in the file.
    pub fn put_at(&mut self, offset: u64, pages: &[u8]) -> Result<(), Trouble> {
        self.take(offset + pages.len() as u64)?;
        self.written += pages.len() as u64;
        if self.way == Way::Mapped {
            // SAFETY: inside of the mapped file.
            unsafe {
                std::ptr::copy_nonoverlapping(pages.as_ptr(), (work::FILE + offset as usize) as *mut u8, pages.len())
            };
            return Ok(());
        }
        self.settle()?;
        self.write(self.batch(pages.as_ptr() as usize, pages.len(), offset))
    }

    fn batch(&self, from: usize, bytes: usize, offset: u64) -> Batch {
        Batch {
            file: self.file,
            from,
            bytes,
            offset,
        }
    }

    /// The memory to put up to `bytes` of data into, for `offset` in the file, where `wanted` will follow one another; say
    /// with [`Output::filled`] how many they are.
    pub fn room(&mut self, offset: u64, bytes: usize, wanted: u64) -> Result<*mut u8, Trouble> {
        self.take(offset + bytes as u64)?;
        if self.way == Way::Mapped {
            self.find(offset, bytes as u64, wanted);
            return Ok((work::FILE + offset as usize) as *mut u8);
        }
        if self.waiting + bytes > BATCH || offset != self.at + self.waiting as u64 {
            self.flush()?;
            self.at = offset;
        }
        Ok((self.filling() + self.waiting) as *mut u8)
    }

    /// The half of the buffer that is being filled.
    fn filling(&self) -> usize {
        self.buffer.bytes().as_ptr() as usize + self.half * BATCH
    }

    pub fn filled(&mut self, bytes: usize) {
        self.written += bytes as u64;
        if self.way != Way::Mapped {
            self.waiting += bytes;
        }
    }

    /// Has the kernel find the pages of the mapped file from `offset` on: faster than by faults. A kernel before 5.14 has those
    /// instead.
    fn find(&mut self, offset: u64, bytes: u64, wanted: u64) {
        const MADV_POPULATE_WRITE: i32 = 23;
        let wanted = if self.expected.partly { wanted } else { FIND };
        if wanted < FEW || self.found.start <= offset && offset + bytes <= self.found.end {
            return;
        }
        let end = (offset + wanted.min(FIND).max(bytes)).min(self.taken);
        self.found = offset..end;
        // SAFETY: inside of the mapped file, or refused.
        let _ = unsafe {
            call!(
                libc::SYS_madvise,
                work::FILE as u64 + offset,
                end - offset,
                MADV_POPULATE_WRITE
            )
        };
    }

    /// Hands over what is waiting.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.settle()?;
        let batch = self.batch(self.filling(), self.waiting, self.at);
        match &self.helper {
            Some(helper) if self.way == Way::Direct => {
                helper.write(batch);
                self.given = Some(batch);
                self.half = 1 - self.half;
            }
            _ => self.write(batch)?,
        }
        self.at += self.waiting as u64;
        self.cached += self.waiting as u64;
        self.waiting = 0;
        if self.way == Way::Cached && self.cached >= STEP {
            let all =
                libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: about the file. So the sync at the end, which cannot be interrupted, is short.
            let _ = unsafe { call!(libc::SYS_sync_file_range, self.file, 0, 0, all) };
            self.cached = 0;
        }
        Ok(())
    }

    /// What was given to the helper has been written.
    fn settle(&mut self) -> Result<(), Trouble> {
        let (Some(helper), Some(batch)) = (&self.helper, self.given.take()) else {
            return Ok(());
        };
        let written = helper.wait();
        self.or_cached(written, batch)
    }

    fn write(&mut self, batch: Batch) -> Result<(), Trouble> {
        self.or_cached(batch.write(), batch)
    }

    /// Some file systems take O_DIRECT and then refuse to write so.
    fn or_cached(&mut self, written: Result<(), Errno>, batch: Batch) -> Result<(), Trouble> {
        match written {
            Err(libc::EINVAL) if self.way == Way::Direct => {
                self.way = Way::Cached;
                sys::fcntl(self.file, libc::F_SETFL, 0).map_err(cannot)?;
                batch.write().map_err(cannot)
            }
            written => written.map_err(cannot),
        }
    }

    /// Cuts the file to its length and brings it to the disk.
    pub fn finish(&mut self, length: u64) -> Result<(), Trouble> {
        self.settle()?;
        // SAFETY: about the file.
        unsafe {
            call!(libc::SYS_ftruncate, self.file, length)
                .and_then(|_| call!(libc::SYS_fsync, self.file))
                .map(|_| ())
                .map_err(cannot)
        }
    }
}

fn is_in_memory(file: i32) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    // SAFETY: an all-zero statfs is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        call!(libc::SYS_fstatfs, file, &raw mut about).is_ok() && about.f_type == TMPFS
    }
}

/// Maps the file at [`work::FILE`], and the addresses behind its end: it grows.
fn map(file: i32, length: u64) -> Result<(), Trouble> {
    if length > (work::ZONE_END - work::FILE) as u64 {
        return Err(cannot(libc::EFBIG));
    }
    // SAFETY: address space that nobody has (NOREPLACE).
    unsafe {
        call!(
            libc::SYS_mmap,
            work::FILE,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            file,
            0
        )
    }
    .map(|_| ())
    .map_err(cannot)
}

const _: () = assert!(DATA_OFFSET.is_multiple_of(PAGE as u64) && BATCH.is_multiple_of(PAGE));

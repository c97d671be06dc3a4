//! Getting pages into the file. On a memory file system they are written from where they are, on a disk by way of buffers.

use super::checksum::{PAGE, Sum, copy_and_sum, sum_each};
use super::format::DATA_OFFSET;
use super::helper::{Batch, Helper};
use super::tables::Trouble;
use super::work::Area;
use crate::sys::{self, Errno, call};

/// Bytes handed to the kernel at once.
const BATCH: usize = 8 << 20;
/// Bytes of room on a disk that are taken at once; and written bytes after which the kernel is asked to bring them to the disk,
/// when they go through its cache.
const STEP: u64 = 32 << 20;
/// Bytes from which on it is worth waking the helper.
const MUCH: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Memory file systems: from where the pages are. It is the kernel that copies them.
    Memory,
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
    /// Here and there in a file that is written over, in many small pieces, instead of from the first page to the last.
    pub scattered: bool,
    /// The process's memory is its own: it can have threads.
    pub is_alone: bool,
    /// What is to be written stays where it is until the end.
    pub stays: bool,
}

pub struct Output {
    file: i32,
    way: Way,
    expected: Expected,
    /// Room that has been taken.
    taken: u64,
    /// What has not been handed to the kernel yet. Brought to a disk from the program's own memory, every page that the
    /// snapshot shares with the rank would be copied in the kernel, and kept.
    buffer: Area,
    /// Which half of it is being filled; the other one is being written, if there is somebody to do so.
    half: usize,
    helper: Option<Helper>,
    /// What that one has been given.
    given: Option<Batch>,
    waiting: usize,
    /// Where that goes in the file.
    at: u64,
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
        if is_in_memory(file) {
            way = Way::Memory;
        } else {
            buffer.resize(2 * BATCH).map_err(Trouble::memory)?;
            let scattered = expected.scattered || !expected.is_alone;
            if !scattered && sys::fcntl(file, libc::F_SETFL, libc::O_DIRECT as usize).is_ok() {
                way = Way::Direct;
            }
        }
        let helper = match way {
            Way::Memory if expected.is_alone && expected.stays && sys::has_several_processors() => Helper::start().ok(),
            Way::Direct => Some(Helper::start()?),
            // Others bring that to the disk.
            _ => None,
        };
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
            helper,
            given: None,
            waiting: 0,
            at: 0,
            cached: 0,
            written: 0,
        })
    }

    /// Takes room on a disk up to `end`: so a full one says so early.
    fn take(&mut self, end: u64) -> Result<(), Trouble> {
        if end <= self.taken || self.way == Way::Memory {
            return Ok(());
        }
        let more = end.max(self.expected.data_end.min(self.taken + STEP));
        // What is too much is given back in the end. Without room for that, what is needed will do.
        self.taken = self.allocate(more).or_else(|_| self.allocate(end)).map_err(cannot)?;
        Ok(())
    }

    fn allocate(&self, end: u64) -> Result<u64, Errno> {
        // SAFETY: about a file that is ours.
        match unsafe { call!(libc::SYS_fallocate, self.file, 0, self.taken, end - self.taken) } {
            Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(end),
            took => took.map(|_| end),
        }
    }

    /// Writes whole pages to a place in the file.
    pub fn put_at(&mut self, offset: u64, pages: &[u8]) -> Result<(), Trouble> {
        self.take(offset + pages.len() as u64)?;
        self.written += pages.len() as u64;
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

    /// Writes pages to `offset`, as many as there are `sums`, which it sums up; if `skip_zeros`, up to the first page of zeros.
    /// Returns how many bytes.
    ///
    /// # Safety
    /// `from` is aligned to pages, can be read, and nobody writes there: until the end where that was said to be so.
    pub unsafe fn put(
        &mut self,
        offset: u64,
        from: *const u8,
        sums: &mut [Sum],
        skip_zeros: bool,
    ) -> Result<usize, Trouble> {
        if self.way == Way::Memory {
            // SAFETY: as required.
            let bytes = PAGE * unsafe { sum_each(from, sums, skip_zeros, |_, _| ()) };
            self.written += bytes as u64;
            let batch = self.batch(from as usize, bytes, offset);
            match &self.helper {
                Some(helper) if bytes >= MUCH && !helper.is_busy() => self.give(batch)?,
                _ => self.write(batch)?,
            }
            return Ok(bytes);
        }
        let to = self.room(offset, sums.len() * PAGE)?;
        // SAFETY: as required, and there is room for so much.
        let bytes = PAGE * unsafe { copy_and_sum(from, to, sums, skip_zeros) };
        self.waiting += bytes;
        self.written += bytes as u64;
        Ok(bytes)
    }

    /// The part of the buffer to put up to `bytes` of data into, for `offset` in the file.
    fn room(&mut self, offset: u64, bytes: usize) -> Result<*mut u8, Trouble> {
        self.take(offset + bytes as u64)?;
        if self.waiting + bytes > BATCH || offset != self.at + self.waiting as u64 {
            self.flush()?;
            self.at = offset;
        }
        Ok((self.filling() + self.waiting) as *mut u8)
    }

    /// Has the helper, which is there, write a batch.
    fn give(&mut self, batch: Batch) -> Result<(), Trouble> {
        self.settle()?;
        if let Some(helper) = &self.helper {
            helper.write(batch);
            self.given = Some(batch);
        }
        Ok(())
    }

    /// The half of the buffer that is being filled.
    fn filling(&self) -> usize {
        self.buffer.bytes().as_ptr() as usize + self.half * BATCH
    }

    /// Hands over what is waiting.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.settle()?;
        let batch = self.batch(self.filling(), self.waiting, self.at);
        if self.way == Way::Direct {
            self.give(batch)?;
            self.half = 1 - self.half;
        } else {
            self.write(batch)?;
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

const _: () = assert!(DATA_OFFSET.is_multiple_of(PAGE as u64) && BATCH.is_multiple_of(PAGE));

//! Getting pages into the file. On a memory file system they are copied, on a disk they are written, from where they are.

use super::checksum::{Sum, copy_and_sum, sum_each};
use super::format::DATA_OFFSET;
use super::helper::{Batch, Helper, Pipe, Step, part};
use super::large::LargePages;
use crate::changes;
use crate::pages::PAGE;
use crate::sys::{self, Errno, call};
use crate::trouble::Trouble;
use crate::zone::Area;

/// Bytes handed to the kernel at once, and in how many parts at most.
const BATCH: usize = 8 << 20;
const MOST: usize = 1024;
/// Bytes of room on a disk that are taken at once; and written bytes after which the kernel is asked to bring them to the disk,
/// when they go through its cache.
const STEP: u64 = 32 << 20;
/// Bytes from which on it is worth sharing them with the helper.
const MUCH: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Memory file systems: from where the pages are.
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
    /// What is to be written stays as it is until the end, but for this library's own memory.
    pub stays: bool,
}

pub struct Output {
    file: i32,
    way: Way,
    pipe: Option<Pipe>,
    expected: Expected,
    /// Room that has been taken.
    taken: u64,
    /// On a disk: parts of memory that have been summed up and not handed to the kernel yet, in two lists. One is being made, the other
    /// one written, if there is somebody to do so.
    lists: Area,
    list: usize,
    count: usize,
    /// Bytes on the list, and where they go in the file.
    waiting: usize,
    at: u64,
    /// Of this library's own memory.
    copy: Area,
    helper: Option<Helper>,
    /// What that one has been given to write.
    given: Option<Batch>,
    large: Option<LargePages>,
    /// The last pages that were taken had one of zeros behind them.
    had_zeros: bool,
    /// Bytes in the kernel's cache since it was last asked to bring them to the disk.
    cached: u64,
    /// Bytes written.
    pub written: u64,
}

fn cannot(errno: Errno) -> Trouble {
    Trouble::new("the file cannot be written", errno)
}

impl Output {
    pub fn open(file: i32, pipe: Option<Pipe>, expected: Expected) -> Result<Output, Trouble> {
        let (mut way, mut helper, mut large) = (Way::Cached, None, None);
        let mut lists = Area::new(10);
        if is_in_memory(file) {
            way = Way::Memory;
            if expected.is_alone && sys::has_several_processors() {
                helper = Helper::start().ok();
            }
            if expected.is_alone && !expected.scattered {
                large = LargePages::map(file, expected.data_end);
            }
        } else {
            lists
                .resize(2 * MOST * size_of::<libc::iovec>())
                .map_err(Trouble::memory)?;
            let direct = pipe.is_some() && !expected.scattered;
            if direct && sys::fcntl(file, libc::F_SETFL, libc::O_DIRECT as usize).is_ok() {
                way = Way::Direct;
                helper = Some(Helper::start()?);
            }
        }
        let taken = match sys::stat(file) {
            // Written over: it has its room.
            Ok(stat) if stat.st_blocks * 512 >= stat.st_size => stat.st_size as u64 & !(PAGE as u64 - 1),
            _ => 0,
        };
        Ok(Output {
            file,
            way,
            pipe,
            expected,
            taken,
            lists,
            list: 0,
            count: 0,
            waiting: 0,
            at: 0,
            copy: Area::new(32),
            helper,
            given: None,
            large,
            had_zeros: false,
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
        // SAFETY: pages that are there.
        unsafe { self.write(Batch::of(self.file, &part(pages.as_ptr(), pages.len()), offset)) }
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
            let step = Step {
                file: self.file,
                from,
                pages: sums.len(),
                offset,
                mapped: None,
                sums: sums.as_mut_ptr(),
                skip_zeros,
            };
            // SAFETY: as required; the places in the file are for these pages.
            let bytes = PAGE * unsafe { self.take_step(step) }.map_err(cannot)?;
            self.written += bytes as u64;
            return Ok(bytes);
        }
        self.take(offset + (sums.len() * PAGE) as u64)?;
        let memory = from as usize..from as usize + sums.len() * PAGE;
        let stays = self.expected.stays && !changes::is_own(memory);
        // SAFETY: as required; the copy has room for it.
        let (from, pages) = unsafe {
            if stays || !self.expected.stays {
                (from, sum_each(from, sums, skip_zeros, |_, _| ()))
            } else {
                self.copy.resize(sums.len() * PAGE).map_err(Trouble::memory)?;
                let to = self.copy.bytes_mut().as_mut_ptr();
                (to.cast_const(), copy_and_sum(from, to, sums, skip_zeros))
            }
        };
        let bytes = pages * PAGE;
        if bytes == 0 {
            return Ok(0);
        }
        if self.waiting + bytes > BATCH || self.count == MOST || offset != self.at + self.waiting as u64 {
            self.flush()?;
            self.at = offset;
        }
        // SAFETY: a list has room for one more.
        unsafe { self.list().add(self.count).write(part(from, bytes)) };
        self.count += 1;
        self.waiting += bytes;
        self.written += bytes as u64;
        if !stays {
            self.flush()?;
            self.settle()?;
        }
        Ok(bytes)
    }

    /// The list that is being made.
    fn list(&mut self) -> *mut libc::iovec {
        let lists = self.lists.bytes_mut().as_mut_ptr().cast::<libc::iovec>();
        lists.wrapping_add(self.list * MOST)
    }

    /// Sums up pages and writes them, together with the helper if it is likely that there is no page of zeros before the last.
    ///
    /// # Safety
    /// See [`Step::take`].
    unsafe fn take_step(&mut self, mut step: Step) -> Result<usize, Errno> {
        if let Some(large) = &mut self.large {
            step.mapped = large.at(step.offset, step.pages * PAGE);
        }
        let is_much = step.pages * PAGE >= MUCH && !self.had_zeros;
        // SAFETY: as required.
        let taken = unsafe {
            match &self.helper {
                Some(helper) if is_much => helper.share(step)?,
                _ => step.take()?,
            }
        };
        self.had_zeros = taken < step.pages;
        Ok(taken)
    }

    /// Has the helper, which is there, write a batch.
    fn give(&mut self, batch: Batch) -> Result<(), Trouble> {
        self.settle()?;
        if let Some(helper) = &self.helper {
            // SAFETY: nobody writes to it before it has been settled.
            unsafe { helper.give(batch) };
            self.given = Some(batch);
        }
        Ok(())
    }

    /// Hands over what is waiting.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.settle()?;
        let batch = Batch {
            file: self.file,
            parts: self.list(),
            count: self.count,
            bytes: self.waiting,
            offset: self.at,
            pipe: self.pipe.filter(|_| self.way == Way::Direct),
        };
        if self.way == Way::Direct {
            self.give(batch)?;
            self.list = 1 - self.list;
        } else {
            // SAFETY: what was put on the list.
            unsafe { self.write(batch)? };
        }
        self.at += self.waiting as u64;
        self.cached += self.waiting as u64;
        (self.count, self.waiting) = (0, 0);
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
        // SAFETY: what was given.
        unsafe { self.or_cached(written, batch) }
    }

    /// # Safety
    /// See [`Batch::write`].
    unsafe fn write(&mut self, batch: Batch) -> Result<(), Trouble> {
        // SAFETY: as required.
        unsafe { self.or_cached(batch.write(), batch) }
    }

    /// Some file systems take O_DIRECT and then refuse to write so.
    ///
    /// # Safety
    /// See [`Batch::write`].
    unsafe fn or_cached(&mut self, written: Result<(), Errno>, mut batch: Batch) -> Result<(), Trouble> {
        match written {
            Err(libc::EINVAL) if self.way == Way::Direct => {
                self.way = Way::Cached;
                batch.pipe = None;
                sys::fcntl(self.file, libc::F_SETFL, 0).map_err(cannot)?;
                // SAFETY: as required.
                unsafe { batch.write().map_err(cannot) }
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
    sys::file_system(file) == TMPFS
}

const _: () = assert!(DATA_OFFSET.is_multiple_of(PAGE as u64));

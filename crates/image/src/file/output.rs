//! Getting pages into the file. On a memory file system the writer copies them; to a disk it writes them from where
//! they are.

use super::checksum::{Sum, copy_and_sum, sum_each};
use super::format::DATA_OFFSET;
use super::helper::{Batch, Helper, Pipe, Step, part};
use super::large::LargePages;
use crate::changes;
use crate::pages::PAGE;
use crate::sys::{self, Errno, call};
use crate::trouble::Trouble;
use crate::zone::Area;

/// Bytes handed to the kernel at once, and the most parts that they may be in.
const BATCH: usize = 8 << 20;
const MOST: usize = 1024;
/// Bytes of room on a disk that are taken at once. For writes through the kernel's cache also: after so many bytes the
/// kernel is asked to bring them to the disk.
const STEP: u64 = 32 << 20;
/// From so many bytes on, sharing with the helper is worth it.
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

/// What the writer knows beforehand about its output.
#[derive(Clone, Copy)]
pub struct Expected {
    /// The data ends here at the latest.
    pub data_end: u64,
    /// Many small pieces here and there in a file that is written over, instead of all from the first page to the last.
    pub scattered: bool,
    /// The process's memory is its own: it can have threads.
    pub is_alone: bool,
    /// What is written stays unchanged until the end, except this library's own memory.
    pub stays: bool,
}

pub struct Output {
    file: i32,
    way: Way,
    pipe: Option<Pipe>,
    expected: Expected,
    /// Up to where room has been taken.
    taken: u64,
    /// On a disk: two lists of memory parts that are summed up but not handed to the kernel. One is filled while the
    /// helper, if there is one, writes the other.
    lists: Area,
    list: usize,
    count: usize,
    /// Bytes on the list, and their offset in the file.
    waiting: usize,
    at: u64,
    /// A copy of this library's own memory.
    copy: Area,
    helper: Option<Helper>,
    /// What the helper was given to write.
    given: Option<Batch>,
    large: Option<LargePages>,
    /// A page of zeros came right after the last pages taken.
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
            // A file that is written over has its room.
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

    /// Takes room on a disk up to `end`, so that a full disk says so early.
    fn take(&mut self, end: u64) -> Result<(), Trouble> {
        if end <= self.taken || self.way == Way::Memory {
            return Ok(());
        }
        let more = end.max(self.expected.data_end.min(self.taken + STEP));
        // Room in excess is given back in the end. If there is not that much, what is needed will do.
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

    /// Writes pages to `offset`, as many as there are `sums`, and sums them up. With `skip_zeros` it ends at the first
    /// page of zeros. Returns how many bytes.
    ///
    /// # Safety
    /// `from` is aligned to pages and can be read. Nobody writes there: until the end, where `expected.stays` says so.
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

    /// The list that is being filled.
    fn list(&mut self) -> *mut libc::iovec {
        let lists = self.lists.bytes_mut().as_mut_ptr().cast::<libc::iovec>();
        lists.wrapping_add(self.list * MOST)
    }

    /// Sums up pages and writes them; together with the helper if a page of zeros before the last is unlikely.
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

    /// Gives a batch to the helper, which exists, to write.
    fn give(&mut self, batch: Batch) -> Result<(), Trouble> {
        self.settle()?;
        if let Some(helper) = &self.helper {
            // SAFETY: nobody writes to it before it has been settled.
            unsafe { helper.give(batch) };
            self.given = Some(batch);
        }
        Ok(())
    }

    /// Hands over what waits.
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
            // SAFETY: about the file. This keeps the sync at the end short, which cannot be interrupted.
            let _ = unsafe { call!(libc::SYS_sync_file_range, self.file, 0, 0, all) };
            self.cached = 0;
        }
        Ok(())
    }

    /// Waits until the helper has written what it was given.
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

    /// Writes again through the cache if need be: some file systems accept O_DIRECT and then refuse to write that way.
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

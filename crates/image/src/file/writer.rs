//! Writing the image file, in the sleeping snapshot: one thread, no allocation, and never long without looking whether
//! the agent wants something.

use std::ops::Range;

use super::checksum::{PAGE, Sum, copy_and_sum, sum_of};
use super::format::{self, DATA_OFFSET, Extent, FORMAT_VERSION, Header, MAGIC, MappingKind, Name, Part, Table};
use super::format::{bytes_of, page_up};
use super::layout::{self, Former};
use super::scan;
use super::tables::{Tables, Trouble, memory_numbers};
use super::work::{self, Area};
use crate::changes;
use crate::sys::{self, Errno, call};

/// Bytes handed to the kernel at once.
const BATCH: usize = 8 << 20;
/// Written bytes after which the kernel is asked to bring them to the disk, when they go through its cache.
const FLUSH: usize = 32 << 20;
/// Bytes between two looks at what the agent wants, and with them their checksums.
const CHUNK: usize = 256 << 10;

/// What the writer has to know of the process besides its memory.
pub struct About {
    pub number: u64,
    /// Where a rebuilt process begins.
    pub entry: usize,
    pub stack: usize,
    pub thread_pointer: usize,
    /// Memory that changes while it is written and that nobody needs: the writer's own stack.
    pub hole: (usize, usize),
}

/// Writes the image into `file`, whose second page the agent has written, and syncs it. Of an earlier image of the same
/// process that it holds, what has not changed stays. Returns the bytes written. `look` is called again and again.
pub fn write(file: i32, about: &About, look: &mut dyn FnMut()) -> Result<u64, Trouble> {
    let mut tables = Tables::new();
    let result = write_all(file, about, &mut tables, look);
    scan::protect_again(&tables);
    forget();
    result
}

/// In a copy of the process that was made while it wrote: nothing of the writer's is left.
pub fn forget() {
    work::clear();
    changes::forget();
}

fn write_all(file: i32, about: &About, tables: &mut Tables, look: &mut dyn FnMut()) -> Result<u64, Trouble> {
    let mut header = header(about)?;
    scan::mappings(tables)?;
    header.vdso = vdso_sum(tables);
    look();
    let mut former = Former::read(file, about.number);
    scan::pieces(tables, &mut former, about.hole)?;
    look();
    tables.note_threads()?;
    tables.note_descriptors()?;
    header.directory = tables.note_directory()?;
    tables.note_auxv()?;
    let former_length = former.as_ref().map_or(0, |former| former.data_length);
    header.data_length = layout::place(tables, former_length)?;
    place_parts(tables, &mut header)?;

    let mut sums = former.map_or(Area::new(8), |former| former.sums);
    sums.resize(header.sums.length as usize).map_err(Trouble::memory)?;
    let mut page = Area::new(9);
    page.resize(PAGE).map_err(Trouble::memory)?;
    let mut output = Output::open(file, header.length, tables)?;
    // From here on it is no image until the header says so again.
    output.put_at(0, page.bytes())?;
    output.put_data(tables, &mut sums, look)?;
    sums.bytes_mut()[layout::sum_at(header.sums.offset)..].fill(0);
    header.sums.sum = sum_of(sums.bytes());
    output.put_at(header.sums.offset, sums.bytes())?;
    output.put_at(header.tables.offset, tables.all.bytes())?;
    let first: &mut [u8; PAGE] = page.bytes_mut().try_into().expect("one page");
    first[..size_of::<Header>()].copy_from_slice(bytes_of(&header));
    format::seal(first);
    output.put_at(0, page.bytes())?;
    output.finish()?;
    Ok(output.written)
}

fn header(about: &About) -> Result<Header, Trouble> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time; sets the mask of new files and gives it back.
    let umask = unsafe {
        let _ = call!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut time);
        let umask = call!(libc::SYS_umask, 0o77).unwrap_or(0o22);
        let _ = call!(libc::SYS_umask, umask);
        umask
    };
    Ok(Header {
        magic: MAGIC,
        version: FORMAT_VERSION,
        page: PAGE as u32,
        length: 0,
        number: about.number,
        unix_time: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        umask: umask as u32,
        reserved: 0,
        tracking: changes::name(),
        tables: Part::default(),
        sums: Part::default(),
        data_length: 0,
        mappings: Table::default(),
        files: Table::default(),
        descriptors: Table::default(),
        threads: Table::default(),
        extents: Table::default(),
        strings: Table::default(),
        auxv: Table::default(),
        entry: about.entry as u64,
        stack: about.stack as u64,
        thread_pointer: about.thread_pointer as u64,
        memory: memory_numbers()?,
        directory: Name::default(),
        vdso: Sum::default(),
    })
}

fn vdso_sum(tables: &Tables) -> Sum {
    let vdso = (0..tables.mapping_count())
        .map(|index| tables.mapping(index))
        .find(|mapping| mapping.kind == MappingKind::Vdso as u32);
    match vdso {
        // SAFETY: a mapping of the process that can be read.
        Some(vdso) => {
            sum_of(unsafe { std::slice::from_raw_parts(vdso.start as *const u8, (vdso.end - vdso.start) as usize) })
        }
        None => Sum::default(),
    }
}

/// Decides where sums and tables lie, behind the data.
fn place_parts(tables: &mut Tables, header: &mut Header) -> Result<(), Trouble> {
    tables.assemble(header)?;
    let pages = header.data_length / PAGE as u64;
    header.sums = Part {
        offset: DATA_OFFSET + header.data_length,
        length: page_up(pages * size_of::<Sum>() as u64),
        sum: Sum::default(),
    };
    header.tables = Part {
        offset: header.sums.offset + header.sums.length,
        length: tables.all.bytes().len() as u64,
        sum: sum_of(tables.all.bytes()),
    };
    header.length = header.tables.offset + header.tables.length;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Memory file systems: copied into the mapped file.
    Mapped,
    /// From the process's memory to the disk.
    Direct,
    /// Through the kernel's cache.
    Cached,
}

struct Output {
    file: i32,
    way: Way,
    /// What has not been handed to the kernel yet. Written from the program's own memory, every page that the snapshot
    /// shares with the rank would be copied in the kernel, and kept.
    buffer: Area,
    waiting: usize,
    /// Where that goes in the file.
    at: u64,
    /// Of the mapped file: what the kernel has found the pages of.
    found: Range<u64>,
    /// Bytes in the kernel's cache since it was last asked to bring them to the disk.
    cached: usize,
    written: u64,
}

fn cannot(errno: Errno) -> Trouble {
    Trouble::new("the file cannot be written", errno)
}

impl Output {
    fn open(file: i32, length: u64, tables: &Tables) -> Result<Output, Trouble> {
        // Takes the room now: so a full disk says so, and a full memory file system does not kill us when we write to it.
        // SAFETY: about a file that is ours.
        let (room, cut) = unsafe {
            let room = match crate::descriptors::stat(file) {
                // Written over: it has its room.
                Ok(stat) if stat.st_blocks as u64 * 512 >= length && stat.st_size as u64 >= length => Ok(0),
                _ => call!(libc::SYS_fallocate, file, 0, 0, length),
            };
            (room, call!(libc::SYS_ftruncate, file, length))
        };
        let in_memory = is_in_memory(file);
        match room {
            Err(libc::EOPNOTSUPP | libc::ENOSYS) if !in_memory => {}
            room => room.map(|_| ()).map_err(cannot)?,
        }
        cut.map_err(cannot)?;
        let mut buffer = Area::new(10);
        buffer.resize(BATCH).map_err(Trouble::memory)?;
        let mut way = Way::Cached;
        if in_memory {
            map(file, length)?;
            way = Way::Mapped;
        } else if !is_scattered(tables) && sys::fcntl(file, libc::F_SETFL, libc::O_DIRECT as usize).is_ok() {
            way = Way::Direct;
        }
        Ok(Output {
            file,
            way,
            buffer,
            waiting: 0,
            at: 0,
            found: 0..0,
            cached: 0,
            written: 0,
        })
    }

    /// Writes whole pages to a place in the file.
    fn put_at(&mut self, offset: u64, pages: &[u8]) -> Result<(), Trouble> {
        self.written += pages.len() as u64;
        if self.way == Way::Mapped {
            // SAFETY: inside of the mapped file.
            unsafe {
                std::ptr::copy_nonoverlapping(pages.as_ptr(), (work::FILE + offset as usize) as *mut u8, pages.len())
            };
            return Ok(());
        }
        self.write(pages.as_ptr() as usize, pages.len(), offset)
    }

    /// Writes the data that is to be written, and the sums of its pages into `sums`.
    fn put_data(&mut self, tables: &Tables, sums: &mut Area, look: &mut dyn FnMut()) -> Result<(), Trouble> {
        let mut since_look = 0;
        for index in 0..tables.write_count() {
            let Extent {
                address,
                length,
                offset,
            } = tables.write(index);
            for done in (0..length).step_by(CHUNK) {
                let bytes = CHUNK.min((length - done) as usize);
                let to = self.room(offset + done, bytes, (length - done) as usize, look)?;
                let sums = sums.sums_mut(layout::sum_at(offset + done), bytes / PAGE);
                // SAFETY: memory that the scan has found, readable, and of nobody who runs.
                unsafe { copy_and_sum((address + done) as *const u8, to as *mut u8, sums) };
                since_look += bytes;
                if since_look >= CHUNK {
                    since_look = 0;
                    look();
                }
            }
            self.written += length;
        }
        self.flush(look)
    }

    /// Has the kernel find the pages of the mapped file from `offset` on: faster than by faults. A kernel before 5.14 has those
    /// instead. New files are written from the first page to the last, others here and there.
    fn find(&mut self, offset: u64, wanted: usize) {
        const MADV_POPULATE_WRITE: i32 = 23;
        if self.found.contains(&offset) {
            return;
        }
        self.found = offset..offset + wanted.min(FLUSH) as u64;
        // SAFETY: inside of the mapped file, or refused.
        let _ = unsafe {
            call!(
                libc::SYS_madvise,
                work::FILE as u64 + offset,
                self.found.end - offset,
                MADV_POPULATE_WRITE
            )
        };
    }

    /// Where the next `bytes`, at most a chunk, for a place in the file go; `wanted` follow there.
    fn room(&mut self, offset: u64, bytes: usize, wanted: usize, look: &mut dyn FnMut()) -> Result<usize, Trouble> {
        if self.way == Way::Mapped {
            self.find(offset, wanted);
            return Ok(work::FILE + offset as usize);
        }
        if self.waiting + bytes > BATCH || offset != self.at + self.waiting as u64 {
            self.flush(look)?;
            self.at = offset;
        }
        self.waiting += bytes;
        Ok(self.buffer.bytes().as_ptr() as usize + self.waiting - bytes)
    }

    fn flush(&mut self, look: &mut dyn FnMut()) -> Result<(), Trouble> {
        self.write(self.buffer.bytes().as_ptr() as usize, self.waiting, self.at)?;
        self.at += self.waiting as u64;
        self.cached += self.waiting;
        self.waiting = 0;
        if self.way != Way::Cached || self.cached >= FLUSH {
            look();
        }
        if self.way == Way::Cached && self.cached >= FLUSH {
            let all =
                libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: about the file. So the sync at the end, which cannot be interrupted, is short.
            let _ = unsafe { call!(libc::SYS_sync_file_range, self.file, 0, 0, all) };
            self.cached = 0;
        }
        Ok(())
    }

    fn write(&mut self, mut from: usize, mut bytes: usize, mut offset: u64) -> Result<(), Trouble> {
        while bytes > 0 {
            // SAFETY: memory of ours.
            match unsafe { call!(libc::SYS_pwrite64, self.file, from, bytes, offset) } {
                Ok(0) => return Err(cannot(libc::EIO)),
                Ok(written) => {
                    offset += written as u64;
                    from += written;
                    bytes -= written;
                }
                Err(libc::EINTR) => {}
                // Some file systems take the flag and then refuse.
                Err(libc::EINVAL) if self.way == Way::Direct => {
                    self.way = Way::Cached;
                    sys::fcntl(self.file, libc::F_SETFL, 0).map_err(cannot)?;
                }
                Err(errno) => return Err(cannot(errno)),
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        // SAFETY: about the file.
        unsafe { call!(libc::SYS_fsync, self.file) }.map(|_| ()).map_err(cannot)
    }
}

/// Many small pieces: the kernel writes them from its cache several at a time.
fn is_scattered(tables: &Tables) -> bool {
    const PIECE: u64 = 256 << 10;
    let count = tables.write_count();
    let bytes: u64 = (0..count).map(|index| tables.write(index).length).sum();
    bytes < PIECE * count as u64
}

fn is_in_memory(file: i32) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    // SAFETY: an all-zero statfs is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        call!(libc::SYS_fstatfs, file, &raw mut about).is_ok() && about.f_type == TMPFS
    }
}

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

//! Writing the image file, in the sleeping snapshot: one thread, no allocation, and never long without looking whether
//! the agent wants something.

use super::checksum::{PAGE, Sum, Summer, sum_of};
use super::format::{
    self, CHUNK, Extent, FORMAT_VERSION, Header, MAGIC, MappingKind, Name, Part, TABLES_OFFSET, Table,
};
use super::format::{bytes_of, page_up};
use super::scan::{self, Origin};
use super::tables::{Tables, Trouble, memory_numbers};
use super::work::{self, Area};
use crate::sys::{self, Errno, call};

/// Bytes handed to the kernel at once.
const BATCH: usize = 8 << 20;
/// Written bytes after which the kernel is asked to bring them to the disk, when they go through its cache.
const FLUSH: u64 = 32 << 20;

/// What the writer has to know of the process besides its memory.
pub struct About {
    pub number: u64,
    /// Where a rebuilt process begins.
    pub entry: usize,
    pub stack: usize,
    pub thread_pointer: usize,
    /// Memory that changes while it is written and that nobody needs: the writer's own stack.
    pub hole: (usize, usize),
    pub origin: Origin,
}

/// Writes the image into `file`, whose second page the agent has written, and syncs it. Returns its length. `look` is
/// called again and again.
pub fn write(file: i32, about: &About, look: &mut dyn FnMut()) -> Result<u64, Trouble> {
    let mut tables = Tables::new();
    let result = write_all(file, about, &mut tables, look);
    scan::protect_again(&tables);
    work::clear();
    result
}

/// In a copy of the process that was made while it wrote: nothing of the writer's is left.
pub fn forget() {
    work::clear();
}

fn write_all(file: i32, about: &About, tables: &mut Tables, look: &mut dyn FnMut()) -> Result<u64, Trouble> {
    let mut header = header(about)?;
    scan::mappings(tables, about.origin)?;
    header.vdso = vdso_sum(tables);
    look();
    scan::extents(tables, about.hole)?;
    look();
    tables.note_threads()?;
    tables.note_descriptors()?;
    header.directory = tables.note_directory()?;
    tables.note_auxv()?;
    place_data(tables, &mut header)?;

    let mut sums = Area::new(8);
    let mut page = Area::new(9);
    page.grow(PAGE).map_err(Trouble::memory)?;
    let mut output = Output::open(file, header.length, header.data_offset)?;
    // From here on it is no image until the header says so again.
    output.put_at(0, page.bytes())?;
    output.put_at(TABLES_OFFSET, tables.all.bytes())?;
    output.put_data(tables, &mut sums, look)?;
    let padding = header.sums.length as usize - sums.bytes().len();
    sums.grow(padding).map_err(Trouble::memory)?;
    header.sums.sum = sum_of(sums.bytes());
    output.put_at(header.sums.offset, sums.bytes())?;
    let first: &mut [u8; PAGE] = page.bytes_mut().try_into().expect("one page");
    first[..size_of::<Header>()].copy_from_slice(bytes_of(&header));
    format::seal(first);
    output.put_at(0, page.bytes())?;
    output.finish()?;
    Ok(header.length)
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
        tables: Part::default(),
        sums: Part::default(),
        data_offset: 0,
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

/// Decides where everything lies in the file.
fn place_data(tables: &mut Tables, header: &mut Header) -> Result<(), Trouble> {
    let parts = [
        &tables.mappings,
        &tables.files,
        &tables.descriptors,
        &tables.threads,
        &tables.extents,
    ];
    let length: usize = parts.iter().map(|area| area.bytes().len()).sum();
    let length = page_up((length + tables.auxv.bytes().len() + tables.strings.bytes().len()) as u64);
    header.data_offset = TABLES_OFFSET + length;
    header.data_length = tables.data_length;
    for index in 0..tables.extent_count() {
        let mut extent = tables.extent(index);
        extent.offset += header.data_offset;
        let size = size_of::<Extent>();
        tables.extents.bytes_mut()[index * size..][..size].copy_from_slice(bytes_of(&extent));
    }
    tables.assemble(header)?;
    header.tables = Part {
        offset: TABLES_OFFSET,
        length,
        sum: sum_of(tables.all.bytes()),
    };
    header.sums = Part {
        offset: header.data_offset + header.data_length,
        length: page_up(header.data_length.div_ceil(CHUNK as u64) * size_of::<Sum>() as u64),
        sum: Sum::default(),
    };
    header.length = header.sums.offset + header.sums.length;
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
    /// Where the next data goes.
    at: u64,
    /// What has not been handed to the kernel yet. Written from the program's own memory, every page that the snapshot
    /// shares with the rank would be copied in the kernel, and kept.
    buffer: Area,
    waiting: usize,
    flushed: u64,
}

fn cannot(errno: Errno) -> Trouble {
    Trouble::new("the file cannot be written", errno)
}

impl Output {
    fn open(file: i32, length: u64, data: u64) -> Result<Output, Trouble> {
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
        buffer.grow(BATCH).map_err(Trouble::memory)?;
        let mut way = Way::Cached;
        if in_memory {
            map(file, length)?;
            way = Way::Mapped;
        } else if sys::fcntl(file, libc::F_SETFL, libc::O_DIRECT as usize).is_ok() {
            way = Way::Direct;
        }
        Ok(Output {
            file,
            way,
            at: data,
            buffer,
            waiting: 0,
            flushed: data,
        })
    }

    /// Writes whole pages to a place in the file.
    fn put_at(&mut self, offset: u64, pages: &[u8]) -> Result<(), Trouble> {
        if self.way == Way::Mapped {
            // SAFETY: inside of the mapped file.
            unsafe {
                std::ptr::copy_nonoverlapping(pages.as_ptr(), (work::FILE + offset as usize) as *mut u8, pages.len())
            };
            return Ok(());
        }
        self.write(pages.as_ptr() as usize, pages.len(), offset)
    }

    /// Writes all data, and the sums of its chunks into `sums`.
    fn put_data(&mut self, tables: &Tables, sums: &mut Area, look: &mut dyn FnMut()) -> Result<(), Trouble> {
        let mut summer = Summer::new();
        let mut room = CHUNK;
        for index in 0..tables.extent_count() {
            let extent = tables.extent(index);
            let mut from = extent.address as usize;
            let end = from + extent.length as usize;
            while from < end {
                let bytes = room.min(end - from);
                // SAFETY: memory that the scan has found, readable, and of nobody who runs.
                unsafe { summer.add_and_copy(from as *const u8, self.room(bytes, look)? as *mut u8, bytes / PAGE) };
                from += bytes;
                room -= bytes;
                if room == 0 {
                    sums.push(bytes_of(&summer.finish())).map_err(Trouble::memory)?;
                    summer = Summer::new();
                    room = CHUNK;
                    look();
                }
            }
        }
        if room < CHUNK {
            sums.push(bytes_of(&summer.finish())).map_err(Trouble::memory)?;
        }
        self.flush(look)
    }

    /// Has the kernel find the next pages of the mapped file: faster than by faults. A kernel before 5.14 has those instead.
    fn populate(&mut self) {
        const MADV_POPULATE_WRITE: i32 = 23;
        if self.at >= self.flushed {
            // SAFETY: inside of the mapped file, or refused.
            let _ = unsafe {
                call!(
                    libc::SYS_madvise,
                    work::FILE as u64 + (self.at & !4095),
                    FLUSH,
                    MADV_POPULATE_WRITE
                )
            };
            self.flushed = self.at + FLUSH;
        }
    }

    /// Where the next `bytes` go, at most a chunk.
    fn room(&mut self, bytes: usize, look: &mut dyn FnMut()) -> Result<usize, Trouble> {
        if self.way == Way::Mapped {
            self.populate();
            self.at += bytes as u64;
            return Ok(work::FILE + self.at as usize - bytes);
        }
        if self.waiting + bytes > BATCH {
            self.flush(look)?;
        }
        self.waiting += bytes;
        Ok(self.buffer.bytes().as_ptr() as usize + self.waiting - bytes)
    }

    fn flush(&mut self, look: &mut dyn FnMut()) -> Result<(), Trouble> {
        self.write(self.buffer.bytes().as_ptr() as usize, self.waiting, self.at)?;
        self.at += self.waiting as u64;
        self.waiting = 0;
        look();
        if self.way == Way::Cached && self.at - self.flushed >= FLUSH {
            let all =
                libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: about the file. So the sync at the end, which cannot be interrupted, is short.
            let _ = unsafe {
                call!(
                    libc::SYS_sync_file_range,
                    self.file,
                    self.flushed,
                    self.at - self.flushed,
                    all
                )
            };
            self.flushed = self.at;
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

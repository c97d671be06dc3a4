//! Writing the image file, in the sleeping snapshot: one thread, no allocation, and frequent looks for requests of the
//! agent.

use super::checksum::{self, Sum, copy_and_sum, sum_of};
use super::digest::{Digest, digest};
use super::format::{
    self, DATA_OFFSET, FORMAT_VERSION, Header, Index, MAGIC, MappingKind, Name, Part, bytes_of, page_up,
};
use super::helper::{self, Pipe};
use super::layout::{self, Former, Layout};
use super::output::{Expected, Output};
use super::packer::{self, Packer};
use super::piece::Piece;
use super::scan;
use super::tables::{Tables, memory_numbers};
use crate::pages::PAGE;
use crate::sys::call;
use crate::trouble::Trouble;
use crate::zone::{self, Area};
use crate::{changes, threads};

/// Bytes between two looks at what the agent wants, with their checksums; fewer when they are compressed.
const STEP: usize = 4 << 20;
const _: () = assert!(STEP / PAGE <= helper::MOST_SHARED, "a step can be shared");

/// What the writer must know about the process besides its memory.
pub struct About {
    pub number: u64,
    /// Where a rebuilt process begins.
    pub entry: usize,
    pub stack: usize,
    pub thread_pointer: usize,
    /// Level of zstd, 0: the data is not compressed.
    pub level: u8,
    /// Memory that changes while it is written and that no later life needs: the writer's own stack.
    pub hole: (usize, usize),
}

/// Writes the image into `file`, whose second page the agent has written, and syncs it. What is unchanged since an
/// earlier image of the same process in the file stays. Returns the bytes written, and the file's digest. It calls
/// `look` again and again. `pipe`: for a file on a disk. Then call [`super::warm::forget_all`].
pub fn write(file: i32, pipe: Option<Pipe>, about: &About, look: &mut dyn FnMut()) -> Result<(u64, Digest), Trouble> {
    zone::clear_scratch();
    let mut tables = Tables::new();
    // Compressed data cannot be changed page by page.
    let mut former = match about.level {
        0 => Former::read(file, about.number),
        _ => None,
    };
    let found = collect(about, &mut tables, &mut former, false, look);
    let result = found.and_then(|header| {
        put(
            (file, pipe),
            header,
            &mut tables,
            former,
            (Sources::Memory, about.level),
            look,
        )
    });
    scan::protect_again(&tables);
    result
}

/// Finds everything that the file is to hold; `quickly`: see [`scan::mappings`]. Then call [`scan::protect_again`].
pub fn collect(
    about: &About,
    tables: &mut Tables,
    former: &mut Option<Former>,
    quickly: bool,
    look: &mut dyn FnMut(),
) -> Result<Header, Trouble> {
    let mut header = header(about)?;
    scan::mappings(tables, former.as_mut(), quickly)?;
    note_vdso(tables, &mut header)?;
    look();
    scan::pieces(tables, former, about.hole)?;
    look();
    tables.note_threads()?;
    tables.note_descriptors()?;
    header.directory = tables.note_directory()?;
    tables.note_auxv()?;
    Ok(header)
}

/// The place of the pages to write.
pub enum Sources {
    /// Where the program has them.
    Memory,
    /// In buffers, in the order of the pieces: addresses and lengths of the parts, the index of the current part, and
    /// its written bytes.
    Buffers(Area, usize, u64),
}

impl Sources {
    /// Where the bytes of `piece` from `from` on are, and how many of them one after the other.
    fn next(&self, piece: &Piece, from: u64) -> (*const u8, u64) {
        match self {
            Sources::Memory => ((piece.address + from) as *const u8, piece.length - from),
            Sources::Buffers(parts, at, done) => {
                let part = &parts.words()[*at..*at + 2];
                ((part[0] + done) as *const u8, part[1] - done)
            }
        }
    }

    /// Notes that so many bytes are written or need not be.
    fn done(&mut self, bytes: u64) {
        if let Sources::Buffers(parts, at, done) = self {
            *done += bytes;
            if *done == parts.words()[*at + 1] {
                (*at, *done) = (*at + 2, 0);
            }
        }
    }
}

/// Writes what [`collect`] found; returns what [`write`] does.
pub fn put(
    (file, pipe): (i32, Option<Pipe>),
    mut header: Header,
    tables: &mut Tables,
    former: Option<Former>,
    (mut sources, level): (Sources, u8),
    look: &mut dyn FnMut(),
) -> Result<(u64, Digest), Trouble> {
    let former_length = former.as_ref().map_or(0, |former| former.data_length);
    let is_alone = matches!(sources, Sources::Memory);
    // A snapshot has done so before.
    if !is_alone {
        tables.note_sharing();
    }
    let expected = expected(tables, former_length, level, is_alone);
    let mut sums = former.map_or(Area::new(8), |former| former.sums);
    let mut page = Area::new(9);
    page.resize(PAGE).map_err(Trouble::memory)?;
    let mut output = Output::open(file, pipe, expected)?;
    // From here on the file is no image until the header says so again.
    output.put_at(0, page.bytes())?;
    sums.resize(layout::sum_at(expected.data_end))
        .map_err(Trouble::memory)?;
    let mut packer = match level {
        0 => None,
        level => Some(Packer::new(level)?),
    };
    header.plain_length = put_data(
        tables,
        former_length,
        &mut sources,
        &mut output,
        &mut packer,
        &mut sums,
        look,
    )?;
    header.data_length = match packer {
        Some(packer) => packer.end(&mut output, &mut sums)?,
        None => header.plain_length,
    };
    output.flush()?;
    place_parts(tables, &mut header)?;
    let used = layout::sum_at(header.sums.offset);
    sums.resize(used).map_err(Trouble::memory)?;
    sums.pad(header.sums.length as usize).map_err(Trouble::memory)?;
    header.sums.sum = sum_of(sums.bytes());
    output.put_at(header.sums.offset, sums.bytes())?;
    output.put_at(header.tables.offset, tables.all.bytes())?;
    let first: &mut [u8; PAGE] = page.bytes_mut().try_into().expect("one page");
    first[..size_of::<Header>()].copy_from_slice(bytes_of(&header));
    format::seal(first);
    output.put_at(0, page.bytes())?;
    let digest = digest(page.bytes(), tables.all.bytes(), sums.bytes());
    output.finish(header.length)?;
    Ok((output.written, digest))
}

/// The most that will be written: it is not known yet which pages are zeros.
fn expected(tables: &Tables, former_length: u64, level: u8, is_alone: bool) -> Expected {
    const SMALL: u64 = 256 << 10;
    let partly = former_length > 0;
    let (mut count, mut bytes, mut new) = (0, 0, 0);
    for piece in tables.all_pieces().filter(|piece| piece.has(Piece::WRITE)) {
        count += 1;
        bytes += piece.length;
        new += if piece.is_new() { piece.length } else { 0 };
    }
    if level > 0 {
        new = page_up(packer::most(new));
    }
    let data_end = DATA_OFFSET + former_length + new;
    Expected {
        data_end,
        scattered: partly && bytes < SMALL * count,
        is_alone,
        // Compressed data comes from a buffer that is used again.
        stays: level == 0,
    }
}

/// Writes the data that is to be written, and the sums of its pages into `sums`; makes the table of extents. Returns
/// the length of all data, before it is compressed.
fn put_data(
    tables: &mut Tables,
    former_length: u64,
    sources: &mut Sources,
    output: &mut Output,
    packer: &mut Option<Packer>,
    sums: &mut Area,
    look: &mut dyn FnMut(),
) -> Result<u64, Trouble> {
    let mut layout = Layout::new(tables, former_length)?;
    let most = if packer.is_some() { packer::CHUNK } else { STEP };
    let mut since_look = 0;
    for index in 0..tables.piece_count() {
        let piece = tables.piece(index);
        let mut from = 0;
        while from < piece.length {
            let (offset, wanted) = layout.place(&piece, from);
            if !piece.has(Piece::WRITE) {
                layout.lies(&piece, from, (offset, wanted), tables)?;
                from += wanted;
                continue;
            }
            let (memory, together) = sources.next(&piece, from);
            let bytes = most.min(wanted.min(together) as usize);
            let skip_zeros = piece.has(Piece::SKIP_ZEROS);
            let copied = match packer {
                Some(packer) => {
                    let (to, page_sums) = packer.room();
                    // SAFETY: memory that the scan found: it is readable, and no thread runs that writes to it.
                    let copied = PAGE * unsafe { copy_and_sum(memory, to, &mut page_sums[..bytes / PAGE], skip_zeros) };
                    packer.filled(copied, output, sums)?;
                    copied
                }
                None => {
                    let page_sums = checksum::sums_mut(sums, layout::sum_at(offset), bytes / PAGE);
                    // SAFETY: as above.
                    unsafe { output.put(offset, memory, page_sums, skip_zeros)? }
                }
            };
            layout.lies(&piece, from, (offset, copied as u64), tables)?;
            // If a page of zeros ended it, that page is done, too.
            let done = if copied < bytes { copied + PAGE } else { copied } as u64;
            sources.done(done);
            from += done;
            since_look += copied + PAGE;
            if since_look >= most {
                since_look = 0;
                look();
            }
        }
    }
    Ok(layout.data_length())
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
        compression: if about.level == 0 { format::PLAIN } else { format::ZSTD },
        tracking: if about.level == 0 { changes::name() } else { 0 },
        tables: Part::default(),
        sums: Part::default(),
        data_length: 0,
        plain_length: 0,
        index: Index::default(),
        entry: about.entry as u64,
        stack: about.stack as u64,
        thread_pointer: about.thread_pointer as u64,
        memory: memory_numbers()?,
        directory: Name::default(),
        vdso: Name::default(),
        in_vdso: 0,
    })
}

fn note_vdso(tables: &mut Tables, header: &mut Header) -> Result<(), Trouble> {
    let mut mappings = (0..tables.mapping_count()).map(|index| tables.mapping(index));
    let Some(vdso) = mappings.find(|mapping| mapping.kind == MappingKind::Vdso as u32) else {
        return Ok(());
    };
    // SAFETY: a mapping of the process that can be read.
    let code = unsafe { std::slice::from_raw_parts(vdso.start as *const u8, (vdso.end - vdso.start) as usize) };
    header.vdso = tables.name(code)?;
    let at = threads::parked().iter().map(|thread| thread.stopped_at() as u64);
    header.in_vdso = at.filter(|at| (vdso.start..vdso.end).contains(at)).count() as u64;
    Ok(())
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

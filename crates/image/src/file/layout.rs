//! Where each page lies in the file. Of a file that is written over, every page stays where it is as long as the process has
//! that page: only what has changed since is written.

use super::checksum::{PAGE, Sum, sum_of};
use super::format::{DATA_OFFSET, Extent, Header, Record, bytes_of, is_image, record_at};
use super::tables::{Tables, Trouble};
use super::work::Area;
use crate::changes::Since;
use crate::sys::{Errno, call};

/// A file is packed anew when less than half of its data, and a MiB, is in use.
const SPARE: u64 = 1 << 20;

/// The file that is written over: a whole image of this very process, of which it is known what has changed since.
pub struct Former {
    since: Since,
    tables: Area,
    extents: std::ops::Range<usize>,
    /// Of its data, one after the other.
    pub sums: Area,
    pub data_length: u64,
}

/// The beginning of a range of memory, as far as the same is true of all of it.
pub struct Part {
    pub end: usize,
    /// Where it lies in the file.
    pub offset: Option<u64>,
    pub changed: bool,
}

impl Part {
    /// Memory that nothing is known of.
    pub fn new(end: usize) -> Part {
        Part {
            end,
            offset: None,
            changed: true,
        }
    }
}

fn read(file: i32, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        // SAFETY: fills the slice.
        match unsafe {
            call!(
                libc::SYS_pread64,
                file,
                rest.as_mut_ptr(),
                rest.len(),
                offset + done as u64
            )
        } {
            Ok(0) => return Err(libc::EIO),
            Ok(bytes) => done += bytes,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl Former {
    /// What `file` holds; None: nothing that image `number` has any use for.
    pub fn read(file: i32, number: u64) -> Option<Former> {
        let mut page = [0u8; PAGE];
        read(file, 0, &mut page).ok()?;
        if !is_image(&page) {
            return None;
        }
        let header: Header = record_at(&page, 0)?;
        let since = Since::new(header.tracking, header.number, number)?;
        let part = |area: usize, part: super::format::Part| {
            let mut area = Area::new(area);
            area.grow(usize::try_from(part.length).ok()?).ok()?;
            read(file, part.offset, area.bytes_mut()).ok()?;
            (sum_of(area.bytes()) == part.sum).then_some(area)
        };
        let tables = part(11, header.tables)?;
        let first = header.extents.at as usize;
        let extents = first..first + header.extents.count as usize * size_of::<Extent>();
        let stored = tables.bytes().get(extents.clone())?.chunks_exact(size_of::<Extent>());
        let used: u64 = stored
            .filter_map(|bytes| record_at::<Extent>(bytes, 0))
            .map(|extent| extent.length)
            .sum();
        if header.data_length > 2 * used + SPARE {
            return None;
        }
        Some(Former {
            since,
            tables,
            extents,
            sums: part(8, header.sums)?,
            data_length: header.data_length,
        })
    }

    /// What it has of the memory from `start` on, at most to `end`. Asked for in ascending order.
    pub fn look(&mut self, start: usize, end: usize) -> Part {
        let (from, to) = (start as u64, end as u64);
        while let Some(extent) = self.extent()
            && extent.address + extent.length <= from
        {
            self.extents.start += size_of::<Extent>();
        }
        let (end, offset) = match self.extent() {
            Some(extent) if extent.address <= from => {
                let offset = extent.offset + (from - extent.address);
                (to.min(extent.address + extent.length), Some(offset))
            }
            Some(extent) => (to.min(extent.address), None),
            None => (to, None),
        };
        let (changed, end) = self.since.look(start, end as usize);
        Part { end, offset, changed }
    }

    fn extent(&self) -> Option<Extent> {
        record_at(self.tables.bytes().get(self.extents.clone())?, 0)
    }
}

/// Memory to store whose pages follow one another, in the file too if they have a place there.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Piece {
    address: u64,
    length: u64,
    /// In the file, or [`NOWHERE`].
    offset: u64,
    pub flags: u64,
}

// SAFETY: words.
unsafe impl Record for Piece {}

/// Not in the file yet.
const NOWHERE: u64 = u64::MAX;

impl Piece {
    /// To be written.
    pub const WRITE: u64 = 1;
    /// The first of its mapping.
    const FIRST: u64 = 2;

    pub fn new(start: usize, end: usize, offset: Option<u64>, mapping: usize) -> Piece {
        Piece {
            address: start as u64,
            length: (end - start) as u64,
            offset: offset.unwrap_or(NOWHERE),
            flags: if start == mapping { Piece::FIRST } else { 0 },
        }
    }

    /// The piece of it from `start` to `end`.
    pub fn part(&self, start: usize, end: usize) -> Piece {
        let skipped = start as u64 - self.address;
        Piece {
            address: start as u64,
            length: (end - start) as u64,
            offset: if self.offset == NOWHERE {
                NOWHERE
            } else {
                self.offset + skipped
            },
            flags: if skipped == 0 {
                self.flags
            } else {
                self.flags & !Piece::FIRST
            },
        }
    }

    pub fn push(&self, tables: &mut Tables) -> Result<(), Trouble> {
        tables.pieces.push(bytes_of(self)).map_err(Trouble::memory)
    }
}

/// Gives every piece its place: those without one get what the others leave free below `data_length`, the length of the data
/// so far, and then what follows. Makes the table of extents and the list of what is to be written, and returns the new
/// length of the data.
pub fn place(tables: &mut Tables, data_length: u64) -> Result<u64, Trouble> {
    let count = tables.pieces.bytes().len() / size_of::<Piece>();
    let mut free = Free::new(data_length)?;
    for index in 0..count {
        let piece = tables.piece(index);
        if piece.offset != NOWHERE {
            free.take(piece.offset, piece.length);
        }
    }
    let mut end = DATA_OFFSET;
    for index in 0..count {
        let mut piece = tables.piece(index);
        let mut rest = piece.length;
        while rest > 0 {
            if piece.offset == NOWHERE {
                (piece.offset, piece.length) = free.next(rest);
            }
            end = end.max(piece.offset + piece.length);
            let extent = Extent {
                address: piece.address,
                length: piece.length,
                offset: piece.offset,
            };
            let may_join = piece.flags & Piece::FIRST == 0;
            append(&mut tables.extents, extent, may_join)?;
            if piece.flags & Piece::WRITE != 0 {
                append(&mut tables.writes, extent, true)?;
            }
            rest -= piece.length;
            piece.address += piece.length;
            piece.offset = NOWHERE;
            piece.flags &= !Piece::FIRST;
        }
    }
    Ok(end - DATA_OFFSET)
}

/// Adds an extent, or makes the last one longer.
fn append(area: &mut Area, extent: Extent, may_join: bool) -> Result<(), Trouble> {
    let last = area.bytes().len().checked_sub(size_of::<Extent>());
    if let Some(at) = last
        && let Some(mut last) = record_at::<Extent>(area.bytes(), at)
        && may_join
        && (last.address + last.length, last.offset + last.length) == (extent.address, extent.offset)
    {
        last.length += extent.length;
        area.bytes_mut()[at..].copy_from_slice(bytes_of(&last));
        return Ok(());
    }
    area.push(bytes_of(&extent)).map_err(Trouble::memory)
}

/// The places in the data that nobody has: a bit for each page that is taken.
struct Free {
    taken: Area,
    pages: usize,
    /// All before are taken or have been given away.
    next: usize,
}

impl Free {
    fn new(data_length: u64) -> Result<Free, Trouble> {
        let pages = data_length as usize / PAGE;
        let mut taken = Area::new(16);
        taken.grow(pages.div_ceil(64) * 8).map_err(Trouble::memory)?;
        Ok(Free { taken, pages, next: 0 })
    }

    fn take(&mut self, offset: u64, length: u64) {
        let first = (offset - DATA_OFFSET) as usize / PAGE;
        let taken = self.taken.words_mut();
        for page in first..first + length as usize / PAGE {
            taken[page / 64] |= 1 << (page % 64);
        }
    }

    fn is_taken(&self, page: usize) -> bool {
        let words = self.taken.words();
        words[page / 64] >> (page % 64) & 1 != 0
    }

    /// The next free place: offset and length, at most `wanted` bytes.
    fn next(&mut self, wanted: u64) -> (u64, u64) {
        while self.next < self.pages && self.is_taken(self.next) {
            self.next += 1;
        }
        let first = self.next;
        let most = first + wanted as usize / PAGE;
        while self.next < most && (self.next >= self.pages || !self.is_taken(self.next)) {
            self.next += 1;
        }
        (DATA_OFFSET + (first * PAGE) as u64, ((self.next - first) * PAGE) as u64)
    }
}

/// The checksum of the page at `offset` in the file.
pub fn sum_at(offset: u64) -> usize {
    (offset - DATA_OFFSET) as usize / PAGE * size_of::<Sum>()
}

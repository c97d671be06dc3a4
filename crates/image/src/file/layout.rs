//! Where each page lies in the file. When the writer writes over a file, each page that the process still has keeps its
//! place: only changed pages are written.

use super::checksum::{Sum, sum_of};
use super::format::{DATA_OFFSET, Extent, Header, Mapping, bytes_of, is_image, record_at};
use super::piece::{NOWHERE, Piece};
use super::tables::Tables;
use crate::changes::Since;
use crate::pages::{GUARD, PAGE};
use crate::sys::{self, Errno};
use crate::trouble::Trouble;
use crate::zone::Area;

/// The writer packs a file again when its data is longer than twice the used part, plus a MiB.
const SPARE: u64 = 1 << 20;

/// The file to write over: a whole image of this very process. The tracking knows what changed since.
pub struct Former {
    since: Since,
    tables: Area,
    extents: std::ops::Range<usize>,
    mappings: std::ops::Range<usize>,
    /// Checksums of its data, in order, once they are read.
    pub sums: Area,
    sums_part: super::format::Part,
    pub data_length: u64,
}

/// The first part of a range of memory, up to where another answer begins.
pub struct Stretch {
    pub end: usize,
    /// Its offset in the file.
    pub offset: Option<u64>,
    pub changed: bool,
}

impl Stretch {
    /// Memory about which nothing is known.
    pub fn new(end: usize) -> Stretch {
        Stretch {
            end,
            offset: None,
            changed: true,
        }
    }
}

fn read(file: i32, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
    match sys::read_at(file, to, offset)? {
        length if length == to.len() => Ok(()),
        _ => Err(libc::EIO),
    }
}

/// Reads a part of a file if its checksum is right.
fn read_part(file: i32, area: usize, part: super::format::Part) -> Option<Area> {
    let mut area = Area::new(area);
    area.grow(usize::try_from(part.length).ok()?).ok()?;
    read(file, part.offset, area.bytes_mut()).ok()?;
    (sum_of(area.bytes()) == part.sum).then_some(area)
}

impl Former {
    /// What `file` holds. None: nothing that image `number` can use.
    pub fn read(file: i32, number: u64) -> Option<Former> {
        let mut former = Former::find(file, number)?;
        former.read_sums(file)?;
        Some(former)
    }

    /// The same without the checksums of its pages, which are most of what there is to read.
    pub fn find(file: i32, number: u64) -> Option<Former> {
        let mut page = [0u8; PAGE];
        read(file, 0, &mut page).ok()?;
        if !is_image(&page) {
            return None;
        }
        let header: Header = record_at(&page, 0)?;
        let since = Since::new(header.tracking, header.number, number)?;
        let tables = read_part(file, 11, header.tables)?;
        let table = |table: super::format::Table, size: usize| {
            let first = table.at as usize;
            first..first + table.count as usize * size
        };
        let extents = table(header.index.extents, size_of::<Extent>());
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
            mappings: table(header.index.mappings, size_of::<Mapping>()),
            sums: Area::new(8),
            sums_part: header.sums,
            data_length: header.data_length,
        })
    }

    /// Reads the checksums of its pages. None: they cannot be read, or are damaged.
    pub fn read_sums(&mut self, file: i32) -> Option<()> {
        self.sums = read_part(file, 8, self.sums_part)?;
        Some(())
    }

    /// The file's mapping of the same kind that holds a part of `mapping`. Where guards divide it in the file, it is
    /// one again. Ask in ascending order.
    pub fn mapping(&mut self, mapping: &Mapping) -> Option<Mapping> {
        let mut table = self.mappings.clone();
        let mut found: Option<Mapping> = None;
        let mut after_guard = false;
        while let Some(known) = record_at::<Mapping>(self.tables.bytes().get(table.clone())?, 0)
            && known.start < mapping.end
        {
            table.start += size_of::<Mapping>();
            if known.end <= mapping.start {
                self.mappings.start = table.start;
                continue;
            }
            let shared = |mapping: &Mapping| mapping.flags & libc::MAP_SHARED as u32;
            let same = known.kind == mapping.kind
                && known.protection == mapping.protection
                && shared(&known) == shared(mapping);
            let is_guard = known.advice == GUARD;
            match &mut found {
                None if same => found = Some(known),
                Some(found) if same && found.end == known.start && (is_guard || after_guard) => {
                    found.end = known.end;
                    if found.advice == GUARD {
                        found.advice = known.advice;
                    }
                }
                None => continue,
                Some(_) => break,
            }
            after_guard = is_guard;
        }
        found.filter(|found| found.advice != GUARD)
    }

    /// What the file has of the memory from `start` on, at most to `end`. Ask in ascending order.
    pub fn look(&mut self, start: usize, end: usize) -> Stretch {
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
        Stretch { end, offset, changed }
    }

    fn extent(&self) -> Option<Extent> {
        record_at(self.tables.bytes().get(self.extents.clone())?, 0)
    }
}

/// Gives pieces their places in the file. Pieces without one get what the others leave free of the data so far, then
/// places behind it.
pub struct Layout {
    free: Free,
    /// The end of the data.
    end: u64,
}

impl Layout {
    /// `data_length`: of the data so far.
    pub fn new(tables: &Tables, data_length: u64) -> Result<Layout, Trouble> {
        let mut free = Free::new(data_length)?;
        for piece in tables.all_pieces().filter(|piece| piece.offset != NOWHERE) {
            free.take(piece.offset, piece.length);
        }
        Ok(Layout { free, end: DATA_OFFSET })
    }

    /// Where the piece goes from its byte `from` on, and how many bytes may follow there.
    pub fn place(&mut self, piece: &Piece, from: u64) -> (u64, u64) {
        let rest = piece.length - from;
        match piece.offset {
            NOWHERE => self.free.next(rest),
            offset => (offset + from, rest),
        }
    }

    /// Notes that so many bytes lie there now, also in the table of extents.
    pub fn lies(
        &mut self,
        piece: &Piece,
        from: u64,
        (offset, length): (u64, u64),
        tables: &mut Tables,
    ) -> Result<(), Trouble> {
        if length == 0 {
            return Ok(());
        }
        if piece.offset == NOWHERE {
            self.free.give(length);
        }
        self.end = self.end.max(offset + length);
        let extent = Extent {
            address: piece.address + from,
            length,
            offset,
        };
        append(&mut tables.extents, extent, from > 0 || !piece.has(Piece::FIRST))
    }

    pub fn data_length(&self) -> u64 {
        self.end - DATA_OFFSET
    }
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

/// The free places in the data: a bit for each page, set when the page is taken.
struct Free {
    taken: Area,
    pages: usize,
    /// All pages before this one are taken or given away.
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
        page < self.pages && self.taken.words()[page / 64] >> (page % 64) & 1 != 0
    }

    /// The next free place: offset and length, at most `wanted` bytes.
    fn next(&mut self, wanted: u64) -> (u64, u64) {
        while self.is_taken(self.next) {
            self.next += 1;
        }
        let most = self.next + wanted as usize / PAGE;
        let mut end = self.next + 1;
        if self.next >= self.pages {
            end = most;
        }
        while end < most && !self.is_taken(end) {
            end += 1;
        }
        (
            DATA_OFFSET + (self.next * PAGE) as u64,
            ((end - self.next) * PAGE) as u64,
        )
    }

    /// Gives away this much of the free place.
    fn give(&mut self, length: u64) {
        self.next += length as usize / PAGE;
    }
}

/// The place of the checksum of the page at `offset` in the file.
pub fn sum_at(offset: u64) -> usize {
    (offset - DATA_OFFSET) as usize / PAGE * size_of::<Sum>()
}

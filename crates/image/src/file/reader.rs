//! Reads image files and refuses damaged ones. The reader trusts a part of a file only after its checksum. It
//! follows an offset only after it has checked that the offset lies inside.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::checksum::{Sum, sum_of};
use super::digest::{Digest, digest};
use super::format::{
    self, DATA_OFFSET, DESCRIPTOR_KINDS, Descriptor, Extent, FORMAT_VERSION, Header, MAGIC, MAPPING_KINDS, Mapping,
    Name, PLAIN, Record, Table, Thread, ZSTD, page_up, record_at,
};
use super::plan;
use crate::pages::PAGE;
use crate::zone;

mod data;

/// Why an image file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Defect {
    #[error("image file {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("image file {path}: this is no image file")]
    Foreign { path: PathBuf },
    #[error(
        "image file {path}: it has format {found}, and this resurgo reads {} to {FORMAT_VERSION}",
        format::OLDEST_VERSION
    )]
    Version { path: PathBuf, found: u32 },
    #[error("image file {path}: it has {found} bytes instead of {expected}")]
    Length { path: PathBuf, found: u64, expected: u64 },
    #[error("image file {path}: the checksum of its {part} is wrong (bytes {from} to {to})")]
    Sum {
        path: PathBuf,
        part: &'static str,
        from: u64,
        to: u64,
    },
    #[error("image file {path}: its data cannot be decompressed from byte {from} on ({why})")]
    Compression { path: PathBuf, from: u64, why: String },
    #[error("image file {path}: it is whole, but it is not the image that this job has written there")]
    Exchanged { path: PathBuf },
    #[error("image file {path}: {why}")]
    Note { path: PathBuf, why: String },
    #[error("image file {path}: there is no room to decompress it: {source}")]
    NoRoom { path: PathBuf, source: io::Error },
    #[error("image file {path}: memory for its data cannot be had: {source}")]
    NotFilled { path: PathBuf, source: io::Error },
    #[error("image file {path}: its {part} make no sense ({what})")]
    Nonsense {
        path: PathBuf,
        part: &'static str,
        what: String,
    },
}

/// An image file whose header and tables are right.
#[derive(Debug)]
pub struct Image {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) header: Header,
    pub(super) note: String,
    pub(super) mappings: Vec<Mapping>,
    pub(super) files: Vec<format::File>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) threads: Vec<Thread>,
    pub(super) extents: Vec<Extent>,
    pub(super) auxv: Vec<u8>,
    strings: Vec<u8>,
    /// The digest of header, tables and checksums.
    digest: Digest,
}

fn nonsense(path: &Path, part: &'static str, what: impl Into<String>) -> Defect {
    Defect::Nonsense {
        path: path.to_owned(),
        part,
        what: what.into(),
    }
}

fn table<T: Record>(tables: &[u8], table: Table) -> Option<Vec<T>> {
    let at = usize::try_from(table.at).ok()?;
    let length = usize::try_from(table.count).ok()?.checked_mul(size_of::<T>())?;
    let bytes = tables.get(at..at.checked_add(length)?)?;
    (0..table.count as usize)
        .map(|index| record_at(bytes, index * size_of::<T>()))
        .collect()
}

fn bytes(tables: &[u8], table: Table) -> Option<Vec<u8>> {
    let at = usize::try_from(table.at).ok()?;
    Some(
        tables
            .get(at..at.checked_add(usize::try_from(table.count).ok()?)?)?
            .to_vec(),
    )
}

/// An open file that may be an image.
struct Source<'a> {
    path: &'a Path,
    file: File,
}

impl Source<'_> {
    fn read(&self, to: &mut [u8], offset: u64) -> Result<(), Defect> {
        self.file
            .read_exact_at(to, offset)
            .map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: io::Error) -> Defect {
        Defect::Unreadable {
            path: self.path.to_owned(),
            source,
        }
    }

    fn foreign(&self) -> Defect {
        Defect::Foreign {
            path: self.path.to_owned(),
        }
    }

    fn has_length(&self, found: u64, expected: u64) -> Defect {
        Defect::Length {
            path: self.path.to_owned(),
            found,
            expected,
        }
    }

    fn is_damaged(&self, part: &'static str, from: u64, to: u64) -> Defect {
        Defect::Sum {
            path: self.path.to_owned(),
            part,
            from,
            to,
        }
    }

    fn length(&self) -> Result<u64, Defect> {
        let metadata = self.file.metadata().map_err(|source| self.unreadable(source))?;
        match metadata.is_file() {
            true => Ok(metadata.len()),
            false => Err(self.foreign()),
        }
    }

    /// The first page of a file of this length, and the header in it.
    fn header(&self, length: u64) -> Result<([u8; PAGE], Header), Defect> {
        if length < 12 {
            return Err(self.foreign());
        }
        let mut page = [0u8; PAGE];
        self.read(&mut page[..PAGE.min(length as usize)], 0)?;
        if page[..MAGIC.len()] != MAGIC {
            return Err(self.foreign());
        }
        let version = u32::from_le_bytes([page[8], page[9], page[10], page[11]]);
        if !(format::OLDEST_VERSION..=FORMAT_VERSION).contains(&version) {
            return Err(Defect::Version {
                path: self.path.to_owned(),
                found: version,
            });
        }
        if length < DATA_OFFSET {
            return Err(self.has_length(length, DATA_OFFSET));
        }
        if !format::is_sealed(&page) {
            return Err(self.is_damaged("header", 0, PAGE as u64));
        }
        let header: Header = record_at(&page, 0).expect("a page has room for a header");
        if header.length > length {
            return Err(self.has_length(length, header.length));
        }
        check_places(&header).ok_or_else(|| nonsense(self.path, "header", "parts do not follow one another"))?;
        Ok((page, header))
    }

    /// The agent's note in a file of this length. Nothing else may lie behind what the header describes.
    fn note(&self, header: &Header, length: u64) -> Result<String, Defect> {
        let mut page = [0u8; PAGE];
        self.read(&mut page, format::NOTE_OFFSET)?;
        if !format::is_sealed(&page) {
            return Err(self.is_damaged("note", format::NOTE_OFFSET, DATA_OFFSET));
        }
        let (text, rest, beyond) = format::note_in(&page);
        if header.length.checked_add(rest) != Some(length) {
            return Err(self.has_length(length, header.length.saturating_add(rest)));
        }
        let mut text = text.to_vec();
        if rest > 0 {
            let mut pages = vec![0; rest as usize];
            self.read(&mut pages, header.length)?;
            let more = format::note_rest(&pages, beyond);
            text.extend(more.ok_or_else(|| self.is_damaged("note", header.length, length))?);
        }
        String::from_utf8(text).map_err(|_| nonsense(self.path, "note", "it is no text"))
    }

    fn tables(&self, header: &Header) -> Result<Vec<u8>, Defect> {
        let mut tables = vec![0u8; header.tables.length as usize];
        self.read(&mut tables, header.tables.offset)?;
        match sum_of(&tables) == header.tables.sum {
            true => Ok(tables),
            false => Err(self.is_damaged("tables", header.tables.offset, header.length)),
        }
    }
}

/// The agent's note in an open image file. Besides, only the header is verified. `path` is for messages.
pub fn note_of(path: &Path, file: File) -> Result<String, Defect> {
    let source = Source { path, file };
    let length = source.length()?;
    let (_, header) = source.header(length)?;
    source.note(&header, length)
}

impl Image {
    /// Opens the file `path` and checks everything but the data.
    pub fn open(path: &Path) -> Result<Image, Defect> {
        let mut options = File::options();
        // O_NONBLOCK: opening a pipe of that name would wait for a writer.
        options.read(true).custom_flags(libc::O_NONBLOCK);
        match options.open(path) {
            Ok(file) => Image::of(path, file),
            Err(source) => Err(Defect::Unreadable {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The same for an open file; `path` is for messages.
    pub fn of(path: &Path, file: File) -> Result<Image, Defect> {
        let source = Source { path, file };
        let length = source.length()?;
        let (first, header) = source.header(length)?;
        let note = source.note(&header, length)?;
        let tables = source.tables(&header)?;
        let outside = |what: &str| nonsense(path, "tables", format!("{what} lie outside"));
        let index = &header.index;
        let mut image = Image {
            path: path.to_owned(),
            mappings: table(&tables, index.mappings).ok_or_else(|| outside("mappings"))?,
            files: table(&tables, index.files).ok_or_else(|| outside("files"))?,
            descriptors: table(&tables, index.descriptors).ok_or_else(|| outside("descriptors"))?,
            threads: table(&tables, index.threads).ok_or_else(|| outside("threads"))?,
            extents: table(&tables, index.extents).ok_or_else(|| outside("extents"))?,
            auxv: bytes(&tables, index.auxv).ok_or_else(|| outside("the auxiliary vector"))?,
            strings: bytes(&tables, index.strings).ok_or_else(|| outside("strings"))?,
            digest: [0; 64],
            file: source.file,
            header,
            note,
        };
        image.check_tables().map_err(|what| nonsense(path, "tables", what))?;
        image.digest = digest(&first, &tables, &image.sums()?);
        Ok(image)
    }

    /// Checks that the image has this digest. Nobody can know the digest of an image that is not written yet.
    pub fn must_be(&self, digest: &[u8]) -> Result<(), Defect> {
        match self.digest == digest {
            true => Ok(()),
            false => Err(Defect::Exchanged {
                path: self.path.clone(),
            }),
        }
    }

    /// The text of a name; [`Image::open`] has checked that it is there.
    pub(super) fn text(&self, name: Name) -> &[u8] {
        self.name(name).unwrap_or(b"?")
    }

    fn name(&self, name: Name) -> Option<&[u8]> {
        self.strings.get(name.at as usize..)?.get(..name.length as usize)
    }

    fn check_tables(&self) -> Result<(), String> {
        let whole = |number: u64| number.is_multiple_of(PAGE as u64);
        let mut last = PAGE as u64;
        for mapping in &self.mappings {
            let place = format!("mapping {:x}-{:x}", mapping.start, mapping.end);
            if mapping.start < last || mapping.end <= mapping.start || mapping.end > 0x7fff_ffff_f000 {
                return Err(format!("{place} is out of order"));
            }
            if !whole(mapping.start) || !whole(mapping.end) || !whole(mapping.offset) {
                return Err(format!("{place} is not of whole pages"));
            }
            if mapping.start < zone::ZONE_END as u64 && mapping.end > plan::RESTORER as u64 {
                return Err(format!("{place} lies where the restorer works"));
            }
            if mapping.kind as usize >= MAPPING_KINDS.len() {
                return Err(format!("{place} is of unknown kind {}", mapping.kind));
            }
            if mapping.kind == format::MappingKind::File as u32 && mapping.file as usize >= self.files.len() {
                return Err(format!("{place} is of file {}", mapping.file));
            }
            last = mapping.end;
        }
        let data = DATA_OFFSET..DATA_OFFSET + self.header.plain_length;
        let (mut last, mut stored) = (0, 0u64);
        let mut mappings = self.mappings.iter().peekable();
        for extent in &self.extents {
            let place = format!("stored memory at {:x}", extent.address);
            let end = extent.address.checked_add(extent.length).ok_or_else(|| place.clone())?;
            if extent.address < last || extent.length == 0 || !whole(extent.length) || !whole(extent.address) {
                return Err(format!("{place} is out of order"));
            }
            let end_in_file = extent.offset.checked_add(extent.length).ok_or_else(|| place.clone())?;
            if extent.offset < data.start || end_in_file > data.end || !whole(extent.offset) {
                return Err(format!("{place} is not in the file"));
            }
            while mappings.next_if(|mapping| mapping.end <= extent.address).is_some() {}
            if !mappings
                .peek()
                .is_some_and(|mapping| mapping.start <= extent.address && end <= mapping.end)
            {
                return Err(format!("{place} belongs to no mapping"));
            }
            last = end;
            stored = stored.saturating_add(extent.length);
        }
        if stored > self.header.plain_length {
            return Err("two pieces of memory lie at one place of the file".to_string());
        }
        for descriptor in &self.descriptors {
            if descriptor.kind as usize >= DESCRIPTOR_KINDS.len() || !(0..1 << 20).contains(&descriptor.fd) {
                return Err(format!("descriptor {} is of kind {}", descriptor.fd, descriptor.kind));
            }
        }
        let names = self.files.iter().map(|file| file.path);
        let own = self.descriptors.iter().flat_map(|own| [own.path, own.content]);
        let names = names.chain(own);
        for name in names.chain([self.header.directory, self.header.vdso]) {
            if self.name(name).is_none() {
                return Err("a name lies outside".to_string());
            }
        }
        if self
            .files
            .iter()
            .any(|file| file.build_id_length > format::BUILD_ID as u64)
        {
            return Err("a build id is too long".to_string());
        }
        Ok(())
    }
}

/// Checks that the parts lie one after the other and fill the file.
fn check_places(header: &Header) -> Option<()> {
    let sums = (header.data_length / PAGE as u64).checked_mul(size_of::<Sum>() as u64)?;
    let after = DATA_OFFSET.checked_add(header.data_length)?;
    let good = header.page == PAGE as u32
        && header.sums.offset == after
        && sums <= header.length
        && header.sums.length == page_up(sums)
        && header.tables.offset == after.checked_add(header.sums.length)?
        && header.tables.offset.checked_add(header.tables.length)? == header.length
        && DATA_OFFSET.checked_add(header.plain_length).is_some()
        && (header.compression == ZSTD || header.compression == PLAIN && header.plain_length == header.data_length)
        && [header.tables.length, header.data_length, header.plain_length]
            .iter()
            .all(|length| length.is_multiple_of(PAGE as u64));
    good.then_some(())
}

#[cfg(test)]
mod tests;

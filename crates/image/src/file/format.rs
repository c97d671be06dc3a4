//! The bytes of an image file. Everything is little-endian and in records of a fixed shape; the file is read on the
//! kind of machine that wrote it.
//!
//! ```text
//! 0        header: one page, written last
//! 4096     note: the agent's, JSON; one page
//! 8192     data: pages of memory, in the order in which they came; the extents say where each is.
//!          Or one zstd frame of them
//! ...      sums: a checksum for every page of data
//! ...      tables: mappings, files, descriptors, threads, extents, strings, auxiliary vector
//! ...      the rest of a note that is longer than its page, where the file ends by its header
//! ```
//!
//! Every part is whole pages, padded with zeros, and covered by a checksum. Header and note have theirs in their own
//! last 16 bytes; the header has those of tables and sums. Data that no extent names has no meaning.

use super::checksum::{Sum, sum_of};
use crate::pages::PAGE;

pub const MAGIC: [u8; 8] = *b"resurgoI";
/// Changes whenever the meaning of any byte changes.
pub const FORMAT_VERSION: u32 = 9;
/// The oldest version that the reader accepts. Its notes have no more than a page. Before version 9 no file has a birth.
pub const OLDEST_VERSION: u32 = 7;
/// Where the agent's page lies in the file.
pub const NOTE_OFFSET: u64 = PAGE as u64;
pub const DATA_OFFSET: u64 = 2 * PAGE as u64;

/// Kinds of [`Header::compression`]: none, and data that is one frame of zstd, padded with zeros.
pub const PLAIN: u32 = 0;
pub const ZSTD: u32 = 1;

/// A type that the file holds as its bytes.
///
/// # Safety
/// The type is `repr(C)` and has no padding; any bytes are a value of it.
pub unsafe trait Record: Copy {}

/// The bytes of a record.
pub fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: a record has no padding.
    unsafe { std::slice::from_raw_parts((record as *const T).cast(), size_of::<T>()) }
}

/// The record at `at`, if all of it is there.
pub fn record_at<T: Record>(bytes: &[u8], at: usize) -> Option<T> {
    let bytes = bytes.get(at..at.checked_add(size_of::<T>())?)?;
    // SAFETY: that many bytes are there, and any bytes are a value.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A part of the file, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Part {
    pub offset: u64,
    pub length: u64,
    pub sum: Sum,
}

/// A table: where it begins in the tables part, and its number of records (bytes for strings and the auxiliary vector).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Table {
    pub at: u64,
    pub count: u64,
}

/// Where each table is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Index {
    pub mappings: Table,
    pub files: Table,
    pub descriptors: Table,
    pub threads: Table,
    pub extents: Table,
    pub strings: Table,
    pub auxv: Table,
}

/// A piece of the strings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Name {
    pub at: u32,
    pub length: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub page: u32,
    /// Length of the file, without the rest of a long note.
    pub length: u64,
    /// The image's number, counted per rank from 1.
    pub number: u64,
    /// Nanoseconds since 1970, when writing began.
    pub unix_time: u64,
    pub umask: u32,
    /// [`PLAIN`] or [`ZSTD`].
    pub compression: u32,
    /// Names the tracking of the process's memory: the next image of the same process needs to write only what changed.
    /// 0: none.
    pub tracking: u64,
    pub tables: Part,
    pub sums: Part,
    pub data_length: u64,
    /// Length of the data before compression.
    pub plain_length: u64,
    pub index: Index,
    /// Where the process goes on, on which stack and with which thread pointer.
    pub entry: u64,
    pub stack: u64,
    pub thread_pointer: u64,
    /// As PR_SET_MM_MAP takes them: code, data, brk, stack, arguments, environment.
    pub memory: [u64; 11],
    pub directory: Name,
    /// The kernel's own code in the process (vDSO), whole: another one means another kernel. Empty: the process has
    /// none.
    pub vdso: Name,
    /// How many threads were stopped in it.
    pub in_vdso: u64,
}

/// What a mapping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MappingKind {
    Anonymous = 0,
    /// Of a file; private or shared.
    File = 1,
    /// Of the node memory.
    Node = 2,
    Vvar = 3,
    VvarClock = 4,
    Vdso = 5,
}

pub const MAPPING_KINDS: [MappingKind; 6] = [
    MappingKind::Anonymous,
    MappingKind::File,
    MappingKind::Node,
    MappingKind::Vvar,
    MappingKind::VvarClock,
    MappingKind::Vdso,
];

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub kind: u32,
    /// PROT_*.
    pub protection: u32,
    /// MAP_*: private or shared, MAP_NORESERVE, MAP_GROWSDOWN.
    pub flags: u32,
    /// Index of the file.
    pub file: u32,
    /// Memory advice to repeat, 0: none. A guard ([`GUARD`]) is always a mapping of its own here, even where the kernel
    /// has it inside another.
    pub advice: u32,
    /// 1: the file was (or may be) written through it.
    pub may_write: u32,
}

/// Build ids are at most this long.
pub const BUILD_ID: usize = 32;

/// A mapped file as it was.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct File {
    pub size: u64,
    pub modified_s: i64,
    pub modified_ns: u64,
    pub path: Name,
    pub build_id_length: u64,
    pub build_id: [u8; BUILD_ID],
}

/// What an open descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DescriptorKind {
    /// Standard output (1) or error (2) of the rank; `same_as` has which.
    Output = 0,
    Input = 1,
    /// Regular file or directory.
    File = 2,
    /// Character device.
    Device = 3,
    /// One that every life is given: PMI, node memory, spill file, images.
    Given = 4,
    /// Memory that the MPI library shared with nobody: only its descriptor is left.
    Leftover = 5,
    /// An end of a pipe inside of the process. One of them has what waits in it.
    Pipe = 6,
    /// eventfd, timerfd, signalfd, epoll: kind and state lie in this library's memory.
    Object = 7,
    /// A regular file whose name is gone.
    Removed = 8,
}

pub const DESCRIPTOR_KINDS: [DescriptorKind; 9] = [
    DescriptorKind::Output,
    DescriptorKind::Input,
    DescriptorKind::File,
    DescriptorKind::Device,
    DescriptorKind::Given,
    DescriptorKind::Leftover,
    DescriptorKind::Pipe,
    DescriptorKind::Object,
    DescriptorKind::Removed,
];

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Descriptor {
    pub fd: i32,
    pub kind: u32,
    /// F_GETFL; F_GETFD, and [`OTHERS_WRITE`].
    pub status: i32,
    pub flags: i32,
    pub offset: i64,
    /// Length of a regular file when the image was taken.
    pub length: u64,
    pub device: u32,
    /// A digest of when the file was made; 0: its file system does not say. A later file may have the same inode.
    pub birth: u32,
    pub inode: u64,
    /// The descriptor with the same open file, -1: none.
    pub same_as: i32,
    pub mode: u32,
    pub path: Name,
    pub content: Name,
}

/// In the flags of a descriptor by which a file is written: another process had the file open for writing too, so the
/// rebuilt process leaves it as it is.
pub const OTHERS_WRITE: i32 = 1 << 8;

/// Only for `resurgo image show`: what a restored thread needs lies in its memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Thread {
    pub tid: i32,
    pub is_main: u32,
    pub name: [u8; 16],
}

/// Stored memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Extent {
    pub address: u64,
    pub length: u64,
    /// Offset in the file. For compressed data: as if it were not compressed.
    pub offset: u64,
}

// SAFETY: integers and arrays of them, arranged without gaps: the sizes below are the sums of their fields'.
unsafe impl Record for Header {}
// SAFETY: as above.
unsafe impl Record for Mapping {}
// SAFETY: as above.
unsafe impl Record for File {}
// SAFETY: as above.
unsafe impl Record for Descriptor {}
// SAFETY: as above.
unsafe impl Record for Thread {}
// SAFETY: as above.
unsafe impl Record for Extent {}
// SAFETY: as above.
unsafe impl Record for Sum {}
// SAFETY: an integer.
unsafe impl Record for u32 {}
const _: () = assert!(size_of::<Header>() == 48 + 64 + 24 + 7 * 16 + 24 + 88 + 8 + 16);
const _: () = assert!(size_of::<Mapping>() == 48 && size_of::<File>() == 40 + BUILD_ID);
const _: () = assert!(size_of::<Descriptor>() == 72 && size_of::<Thread>() == 24 && size_of::<Extent>() == 24);

/// Length of `bytes` in whole pages.
pub const fn page_up(bytes: u64) -> u64 {
    (bytes + PAGE as u64 - 1) & !(PAGE as u64 - 1)
}

/// Puts the checksum of whole pages into their last 16 bytes.
pub fn seal(pages: &mut [u8]) {
    let end = pages.len() - size_of::<Sum>();
    pages[end..].fill(0);
    let sum = sum_of(pages);
    pages[end..].copy_from_slice(bytes_of(&sum));
}

/// True when a page is as it was sealed.
pub fn is_sealed(page: &[u8; PAGE]) -> bool {
    let mut copy = *page;
    seal(&mut copy);
    copy == *page
}

/// True for the header of an image in this format.
pub fn is_image(page: &[u8; PAGE]) -> bool {
    let version = record_at::<u32>(page, MAGIC.len());
    let is_known = version.is_some_and(|version| (OLDEST_VERSION..=FORMAT_VERSION).contains(&version));
    page.starts_with(&MAGIC) && is_known && is_sealed(page)
}

/// Bytes of a note that lie in its page: behind the length, before the checksum.
const NOTE_ROOM: usize = PAGE - size_of::<u32>() - size_of::<Sum>();

/// The agent's note: one JSON object with what only the agent knows about an image.
#[derive(Clone)]
pub struct Note {
    /// Lies at [`NOTE_OFFSET`].
    pub page: Vec<u8>,
    /// Goes to the end of the file after everything else; empty when the page has room for all.
    pub rest: Vec<u8>,
}

impl Note {
    /// None: longer than any file may be.
    pub fn new(text: &str) -> Option<Note> {
        let length = u32::try_from(text.len()).ok()?;
        let (here, beyond) = text.as_bytes().split_at(text.len().min(NOTE_ROOM));
        let mut page = vec![0; PAGE];
        page[..4].copy_from_slice(&length.to_le_bytes());
        page[4..4 + here.len()].copy_from_slice(here);
        seal(&mut page);
        let mut rest = beyond.to_vec();
        if !rest.is_empty() {
            rest.resize(rest_length(rest.len()) as usize, 0);
            seal(&mut rest);
        }
        Some(Note { page, rest })
    }
}

/// Bytes of the rest of a note in the file.
fn rest_length(bytes: usize) -> u64 {
    match bytes {
        0 => 0,
        bytes => page_up((bytes + size_of::<Sum>()) as u64),
    }
}

/// For a page of a note with a right checksum: its text, the bytes of its rest in the file, and those of the rest's
/// text.
pub fn note_in(page: &[u8; PAGE]) -> (&[u8], u64, usize) {
    let length = u32::from_le_bytes([page[0], page[1], page[2], page[3]]) as usize;
    let here = length.min(NOTE_ROOM);
    (&page[4..4 + here], rest_length(length - here), length - here)
}

/// The text, `length` bytes, in the rest of a note. None: its checksum is wrong.
pub fn note_rest(rest: &[u8], length: usize) -> Option<&[u8]> {
    let mut copy = rest.to_vec();
    seal(&mut copy);
    (copy == rest).then_some(&rest[..length])
}

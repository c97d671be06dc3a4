//! Small image files made of parts, without a process, the same ones in every run.

use super::*;
use crate::file::format::{Note, Record};
use crate::pages::PAGE;

/// A whole image in parts.
#[derive(Clone)]
pub struct Parts {
    pub header: Header,
    note: Note,
    pub data: Vec<u8>,
    /// The same as it comes into the file.
    pub packed: Vec<u8>,
    /// Each as bytes, in the order of the file.
    pub tables: [Vec<u8>; 7],
}

/// Which of the tables that of the extents is.
pub const EXTENTS: usize = 4;

pub fn bytes_of_all<T: Record>(records: &[T]) -> Vec<u8> {
    let bytes = records.iter().flat_map(|record| format::bytes_of(record).to_vec());
    bytes.collect()
}

/// A record of zeros.
fn blank<T: Record>() -> T {
    record_at(&vec![0; size_of::<T>()], 0).unwrap()
}

impl Parts {
    /// Of a process with a bit of everything, the same in every run.
    pub fn new(compression: u32, random: &mut Random) -> Parts {
        let mut strings = Vec::new();
        let mut name = |text: String| {
            strings.extend(text.as_bytes());
            Name {
                at: (strings.len() - text.len()) as u32,
                length: text.len() as u32,
            }
        };
        let (mut mappings, mut extents) = (Vec::new(), Vec::new());
        // With free places between some pages, as in a file that was written over.
        let mut free = DATA_OFFSET;
        for index in 0..30 {
            let start = 0x5555_0000_0000 + 0x10_0000 * index;
            mappings.push(Mapping {
                start,
                end: start + 16 * PAGE as u64,
                kind: if index < 24 {
                    index as u32 % 3
                } else {
                    index as u32 - 24
                },
                file: index as u32 % 4,
                protection: 3,
                flags: libc::MAP_PRIVATE as u32,
                ..blank()
            });
            for (first, count) in [(0, 1 + index % 3), (8, index % 2)] {
                let (address, length) = (start + first * PAGE as u64, count * PAGE as u64);
                if count > 0 {
                    extents.push(Extent {
                        address,
                        length,
                        offset: free,
                    });
                    free += length
                        + if index % 5 == 4 && compression == PLAIN {
                            PAGE as u64
                        } else {
                            0
                        };
                }
            }
        }
        let files = [0, 1, 2, 3].map(|index| format::File {
            path: name(format!("/usr/lib/lib{index}.so")),
            build_id_length: 20,
            ..blank()
        });
        let descriptors = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|index| Descriptor {
            fd: index,
            kind: index as u32,
            path: name(format!("/scratch/file-{index}")),
            content: name("what is in it".repeat(index as usize % 3)),
            ..blank()
        });
        let threads = [7, 8, 9].map(|tid| Thread {
            tid,
            name: *b"a thread\0\0\0\0\0\0\0\0",
            is_main: u32::from(tid == 7),
        });
        let header = Header {
            magic: MAGIC,
            version: FORMAT_VERSION,
            page: PAGE as u32,
            number: 7,
            compression,
            directory: name("/scratch".to_string()),
            ..blank()
        };
        // As memory is: it can be compressed, but not to nothing.
        let byte = |at: usize| {
            if at % 64 < 24 {
                random.below(256) as u8
            } else {
                (at / PAGE) as u8
            }
        };
        let data: Vec<u8> = (0..(free - DATA_OFFSET) as usize).map(byte).collect();
        Parts {
            header,
            // One with room in its page, and one without.
            note: note(if compression == PLAIN { 0 } else { 5000 }),
            packed: packed(&data, compression),
            data,
            tables: [
                bytes_of_all(&mappings),
                bytes_of_all(&files),
                bytes_of_all(&descriptors),
                bytes_of_all(&threads),
                bytes_of_all(&extents),
                vec![6; 320],
                strings,
            ],
        }
    }

    /// Another image of the same process: other bytes in some pages.
    pub fn sibling(&self) -> Parts {
        let mut other = self.clone();
        other.header.number += 1;
        let pages = other.data.chunks_mut(PAGE);
        pages.step_by(3).for_each(|page| page[100] ^= 1);
        other.packed = packed(&other.data, self.header.compression);
        other
    }

    /// The file, with right checksums for any content.
    pub fn file(&self) -> Vec<u8> {
        let packed = &self.packed;
        let mut header = self.header;
        let mut tables = Vec::new();
        let sizes = [
            size_of::<Mapping>(),
            size_of::<format::File>(),
            size_of::<Descriptor>(),
            size_of::<Thread>(),
            size_of::<Extent>(),
            1,
            1,
        ];
        let places: Vec<Table> = self
            .tables
            .iter()
            .zip(sizes)
            .map(|(bytes, size)| {
                let place = Table {
                    at: tables.len() as u64,
                    count: (bytes.len() / size) as u64,
                };
                tables.extend(bytes);
                place
            })
            .collect();
        [
            header.index.mappings,
            header.index.files,
            header.index.descriptors,
            header.index.threads,
            header.index.extents,
            header.index.auxv,
            header.index.strings,
        ] = places.try_into().unwrap();
        tables.resize(page_up(tables.len() as u64) as usize, 0);
        let mut sums: Vec<u8> = packed
            .chunks(PAGE)
            .flat_map(|page| format::bytes_of(&sum_of(page)).to_vec())
            .collect();
        sums.resize(page_up(sums.len() as u64) as usize, 0);
        (header.data_length, header.plain_length) = (packed.len() as u64, self.data.len() as u64);
        header.sums = format::Part {
            offset: DATA_OFFSET + packed.len() as u64,
            length: sums.len() as u64,
            sum: sum_of(&sums),
        };
        header.tables = format::Part {
            offset: header.sums.offset + header.sums.length,
            length: tables.len() as u64,
            sum: sum_of(&tables),
        };
        header.length = header.tables.offset + header.tables.length;
        let mut first = [0; PAGE];
        put_header(&mut first, &header);
        let Note { page, rest } = &self.note;
        [&first[..], page, packed, &sums, &tables, rest].concat()
    }
}

pub fn put_header(page: &mut [u8; PAGE], header: &Header) {
    page[..size_of::<Header>()].copy_from_slice(format::bytes_of(header));
    format::seal(page);
}

/// One frame, and zeros up to the end of its last page.
fn packed(data: &[u8], compression: u32) -> Vec<u8> {
    if compression == PLAIN {
        return data.to_vec();
    }
    let mut bytes = vec![0; data.len() + data.len() / 100 + PAGE];
    let (to, from) = (bytes.as_mut_ptr().cast(), data.as_ptr().cast());
    // SAFETY: both are as long as they say.
    let length = unsafe { zstd_sys::ZSTD_compress(to, bytes.len(), from, data.len(), 1) };
    bytes.truncate(length);
    bytes.resize(length.next_multiple_of(PAGE), 0);
    bytes
}

//! The undo log of a rank: before-images of what its MPI library has overwritten in files since its images (Gray &
//! Reuter, *Transaction Processing*, 10.2). Where all ranks return to a wave, the agents write these bytes back, before
//! any rank begins. So files are as they were in the wave.
//!
//! ```text
//! STATE, SINCE   words below
//! HEAD           two halves of HALF bytes; one of them counts. It holds records one behind the other
//! ```
//!
//! A record has eight words: its bytes, kind, device, inode, image, time, and two more that depend on the kind. Then:
//!
//! ```text
//! PATH     path, padded to words                             (0, bytes of the path)
//! CHANGED  runs: offset, length, old bytes padded to words   (from, to) of the write
//! LONGER   where the file ended                              (from, to), which the rank has added
//! READ     length, bytes padded to words                     (offset, bytes asked for)
//! GLANCED  length, digest                                    the same
//! ```
//!
//! The last two are in a log of the same form, the *read log*: what the MPI library has read from files, and done to
//! them. In place of a device they have the kind of the call. A life that repeats alone what former ones did gets it from
//! there: the files are of a later moment.

/// Bytes of a half.
pub const HALF: usize = 32 << 20;
/// Where the halves begin.
pub const HEAD: usize = 4096;
/// Bytes of a log.
pub const BYTES: usize = HEAD + 2 * HALF;

/// Most bytes of an undo log that are kept off the node. Of more, the rank cannot return to its images before.
pub const MOST_ELSEWHERE: usize = 4 << 20;

/// `u64`: the half that counts, and how many bytes of it: see [`state`].
pub const STATE: usize = 0;
/// `u64`: the log is whole for returns to this image of the rank, and to later ones; 0: to the beginning.
pub const SINCE: usize = 8;

/// In place of the number there: the log is not whole for the next life's image, whichever that is.
pub const ELSEWHERE: u64 = u64::MAX;

/// Bytes of a record before what depends on its kind.
pub const RECORD: usize = 64;
/// Where a record has its image.
pub const IMAGE: usize = 32;

const PATH: u64 = 1;
const CHANGED: u64 = 2;
const LONGER: u64 = 3;
const READ: u64 = 4;
const GLANCED: u64 = 5;

/// In the name of a file in which ROMIO keeps a shared file pointer.
const POINTER: &[u8] = b".shfp.";

/// Device and inode.
pub type Inode = (u64, u64);

/// Whether ROMIO keeps a shared file pointer in the file of this name. Ranks of all nodes overwrite it in turn.
pub fn holds_pointer(name: &[u8]) -> bool {
    name.windows(POINTER.len()).any(|part| part == POINTER)
}

/// The half that counts, and how many bytes of it, as a word.
pub const fn state(half: usize, used: usize) -> u64 {
    (half as u64) << 63 | used as u64
}

/// Half and bytes of such a word.
pub const fn of_state(word: u64) -> (usize, usize) {
    ((word >> 63) as usize, (word & !(1 << 63)) as usize)
}

/// Bytes of a text or a run with its padding.
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Why a rank cannot begin from an image.
pub fn lost_reads(rank: usize) -> String {
    format!(
        "rank {rank} has read by MPI-IO what it has overwritten since, or used a shared file pointer. When it repeats that, it would \
         get other data, so it cannot be recovered; docs/guide/recovery.md, section Files, says what helps"
    )
}

/// Why a life cannot go on where former ones were.
pub fn removed(rank: usize) -> String {
    format!(
        "rank {rank} has a file open by MPI-IO that was removed meanwhile. It cannot open it again, so it cannot be recovered; \
         docs/guide/recovery.md, section Files, says what helps"
    )
}

/// Why a life cannot open what former ones opened.
pub fn replaced(rank: usize, path: &str) -> String {
    format!(
        "rank {rank} has opened {path} by MPI-IO, and ranks have removed or replaced it since. No process has it any more, so it \
         cannot be opened again, and the job cannot be recovered; docs/guide/recovery.md, section Files, says what helps"
    )
}

/// Why a life cannot tell whether it has to do something to a file.
pub fn notes_are_lost(rank: usize, path: &str) -> String {
    format!(
        "rank {rank} cannot know what it did to {path}: its former lives were on a node, or in a run, that is lost, and others may have \
         made that file. So it cannot be recovered; docs/guide/recovery.md, section What a rank makes and removes, says what helps"
    )
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    pub file: Inode,
    /// The rank's last image before.
    pub image: u64,
    /// When, by CLOCK_MONOTONIC in nanoseconds: it orders the records of all ranks of a node.
    pub time: u64,
    pub what: What<'a>,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What<'a> {
    /// The file has this path.
    Path(&'a [u8]),
    /// From the first offset to the second has been written. These places had these bytes: see [`runs`].
    Changed(u64, u64, &'a [u8]),
    /// The rank has written from the first offset to the second; the file ended at the third, which may be before.
    Longer(u64, u64, u64),
    /// There, so many bytes were asked for, and these were found.
    Read(u64, u64, &'a [u8]),
    /// The same of more bytes: their number, and their [`digest`].
    Glanced(u64, u64, u64, u64),
}

/// Tells contents apart that differ by chance.
pub fn digest(bytes: &[u8]) -> u64 {
    let mix = |state: u64, word: u64| {
        let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    // Several at a time: none waits for the one before.
    let mut lanes = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut take = |words: &[u8; 64]| {
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        lanes
            .iter_mut()
            .zip(words)
            .for_each(|(lane, word)| *lane = mix(*lane, word));
    };
    let (whole, rest) = bytes.as_chunks::<64>();
    whole.iter().for_each(&mut take);
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    take(&last);
    lanes.into_iter().fold(bytes.len() as u64, mix)
}

impl Record<'_> {
    /// The first words of the record, with so many bytes behind them.
    pub fn head(&self, behind: usize) -> [u8; RECORD] {
        let (kind, more) = match self.what {
            What::Path(path) => (PATH, (0, path.len() as u64)),
            What::Changed(from, to, _) => (CHANGED, (from, to)),
            What::Longer(from, to, _) => (LONGER, (from, to)),
            What::Read(from, wanted, _) => (READ, (from, wanted)),
            What::Glanced(from, wanted, ..) => (GLANCED, (from, wanted)),
        };
        let (device, inode) = self.file;
        let bytes = (RECORD + behind) as u64;
        let words = [bytes, kind, device, inode, self.image, self.time, more.0, more.1];
        let mut head = [0; RECORD];
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        head
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The records that lie there, with their places; ends before the first that is not whole.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], Record<'_>)> {
    std::iter::from_fn(move || {
        let length = word(bytes, 0)? as usize;
        let (whole, rest) = bytes.split_at_checked(length)?;
        let behind = whole.get(RECORD..)?;
        bytes = rest;
        let at = |number: usize| word(whole, number * 8);
        let what = match at(1)? {
            PATH => What::Path(behind.get(..at(7)? as usize)?),
            CHANGED => What::Changed(at(6)?, at(7)?, behind),
            LONGER => What::Longer(at(6)?, at(7)?, word(behind, 0)?),
            READ => What::Read(at(6)?, at(7)?, behind.get(8..)?.get(..word(behind, 0)? as usize)?),
            GLANCED => What::Glanced(at(6)?, at(7)?, word(behind, 0)?, word(behind, 8)?),
            _ => return None,
        };
        let record = Record {
            file: (at(2)?, at(3)?),
            image: at(4)?,
            time: at(5)?,
            what,
        };
        Some((whole, record))
    })
}

/// Offsets and old bytes of a [`What::Changed`].
pub fn runs(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (from, length) = (word(bytes, 0)?, word(bytes, 8)? as usize);
        let old = bytes.get(16..)?.get(..length)?;
        bytes = bytes.get(16 + padded(length)..)?;
        Some((from, old))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let of = |what| Record {
            file: (1, 2),
            image: 3,
            time: 4,
            what,
        };
        let mut changed = Vec::new();
        for (at, old) in [(100u64, &b"old"[..]), (200, b"more than a word")] {
            changed.extend(at.to_le_bytes());
            changed.extend((old.len() as u64).to_le_bytes());
            changed.extend(old);
            changed.resize(padded(changed.len()), 0);
        }
        let all = [
            (of(What::Path(b"/tmp/x")), b"/tmp/x\0\0".to_vec()),
            (of(What::Changed(100, 216, &changed)), changed.clone()),
            (of(What::Longer(7, 9, 6)), b"\x06\0\0\0\0\0\0\0".to_vec()),
            (
                of(What::Read(7, 9, b"read")),
                b"\x04\0\0\0\0\0\0\0read\0\0\0\0".to_vec(),
            ),
            (
                of(What::Glanced(7, 9, 2, 1)),
                [[2, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat(),
            ),
        ];
        let mut bytes = Vec::new();
        for (record, behind) in &all {
            bytes.extend(record.head(behind.len()));
            bytes.extend(behind);
        }
        let read: Vec<Record> = records(&bytes).map(|(_, record)| record).collect();
        assert_eq!(read, all.map(|(record, _)| record));
        let What::Changed(100, 216, places) = read[1].what else {
            panic!()
        };
        assert_eq!(
            runs(places).collect::<Vec<_>>(),
            [(100, &b"old"[..]), (200, b"more than a word")]
        );
        assert_eq!(
            records(&bytes[..bytes.len() - 1]).count(),
            4,
            "of what is cut off, what is whole"
        );
        assert_eq!(of_state(state(1, 77)), (1, 77));
    }

    #[test]
    fn other_contents_have_other_digests() {
        let all = [
            &b""[..],
            b"\0",
            b"\0\0",
            b"12345678",
            b"12345678\0",
            b"22345678",
            b"87654321",
            b"1234567",
        ];
        let digests: std::collections::BTreeSet<u64> = all.into_iter().map(digest).collect();
        assert_eq!(digests.len(), all.len());
    }
}

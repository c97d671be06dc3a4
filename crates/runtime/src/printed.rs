//! The output since a job's file was written, and how much of it the launcher has written to its own streams. With
//! these a later run neither loses nor repeats output.
//!
//! A journal, `printed-N` in the job's directory, gets all output, in order, before it goes to its destination. Each
//! file of a job names the journal that begins with it; journals with higher numbers continue it.
//!
//! ```text
//! entries: 0   u32 bytes that have been printed
//!          4   u32 rank
//!          8   u32 0: standard output, 1: standard error, 2: the rank prints no more, 3: neither does anybody else
//!          12  u32 0
//!          16  the first 16 bytes of a keyed BLAKE3 of the journal's number, the entry's place, its first 16 bytes and what was printed
//!          32  what was printed
//! ```
//!
//! The file `written` counts the bytes written to each stream, and names the regular file that standard output leads
//! to. They survive the launcher, not the machine. After a loss of the machine the job's file counts, and the length of
//! the output's file.
//!
//! ```text
//! 0    for each stream: u64 bytes written so far, u64 bytes that are being written (to a regular file)
//! 32   u64 device, u64 inode (0: no regular file), u64 its length less the bytes written, when the run began
//! 64   identity of the running kernel
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::fcntl::OFlag;
use resurgo_wire::control::Stream;
use serde::{Deserialize, Serialize};

use crate::job_key::{KEY, Key};
use crate::machine::boot;
use resurgo_store::own_directory::Directory;

const JOURNAL: &str = "printed-";
const WRITTEN: &str = "written";
const HEAD: usize = 16;
const MAC: usize = 16;
/// Longest text of an entry that is accepted.
const MOST: usize = 64 << 20;
const FILE: u64 = 32;
const KERNEL: u64 = 64;

/// The position of a job's output when its file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The journal that begins there.
    pub journal: u64,
    /// Bytes printed to each of the launcher's streams; all of them were written.
    pub printed: [u64; 2],
}

/// One event of ranks' output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Printed {
        rank: usize,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// The rank prints no more.
    End {
        rank: usize,
    },
    EndAll,
}

fn key_of(directory: &Directory) -> io::Result<Key> {
    let key = Key::try_from(directory.read(KEY)?);
    key.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the job's key is damaged"))
}

fn mac(key: &Key, number: u64, at: u64, head: &[u8], bytes: &[u8]) -> [u8; MAC] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&number.to_le_bytes()).update(&at.to_le_bytes());
    hasher.update(head).update(bytes);
    *hasher.finalize().as_bytes().first_chunk().unwrap_or(&[0; MAC])
}

/// The numbers of the existing journals, in order.
fn numbers(directory: &Directory) -> Vec<u64> {
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(JOURNAL)?.parse().ok();
    let mut numbers: Vec<u64> = directory.names().into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn name(number: u64) -> String {
    format!("{JOURNAL}{number}")
}

/// The journal that is being written.
pub struct Journal {
    file: File,
    key: Key,
    number: u64,
    at: u64,
}

impl Journal {
    /// Begins the next one.
    pub fn create(directory: &Directory) -> io::Result<Journal> {
        let number = numbers(directory).last().map_or(1, |last| last + 1);
        let file = directory.open_file(name(number), OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        Ok(Journal {
            file,
            key: key_of(directory)?,
            number,
            at: 0,
        })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn append(&mut self, rank: usize, kind: u32, bytes: &[u8]) -> io::Result<()> {
        let mut entry = Vec::with_capacity(HEAD + MAC + bytes.len());
        for word in [bytes.len() as u32, rank as u32, kind, 0] {
            entry.extend(word.to_le_bytes());
        }
        let mac = mac(&self.key, self.number, self.at, &entry, bytes);
        entry.extend(mac);
        entry.extend(bytes);
        self.at += entry.len() as u64;
        self.file.write_all(&entry)
    }
}

/// Calls `each` with all output from journal `from` on. A journal ends at an incomplete entry: its writer was killed
/// there, or the machine was lost.
pub fn read(directory: &Directory, from: u64, mut each: impl FnMut(Entry)) -> io::Result<()> {
    let key = key_of(directory)?;
    for number in numbers(directory).into_iter().filter(|number| *number >= from) {
        let mut input = BufReader::new(directory.open_file(name(number), OFlag::O_RDONLY)?);
        let mut at = 0;
        while let Some((entry, bytes)) = next(&mut input, &key, number, at)? {
            at += bytes;
            each(entry);
        }
    }
    Ok(())
}

fn next(input: &mut impl Read, key: &Key, number: u64, at: u64) -> io::Result<Option<(Entry, u64)>> {
    let mut head = [0u8; HEAD + MAC];
    let mut bytes = Vec::new();
    let word =
        |head: &[u8], at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let whole = input.read_exact(&mut head).and_then(|()| {
        let length = word(&head, 0);
        if length > MOST {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.resize(length, 0);
        input.read_exact(&mut bytes)
    });
    match whole {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        whole => whole?,
    }
    if mac(key, number, at, &head[..HEAD], &bytes) != head[HEAD..] {
        return Ok(None);
    }
    let (rank, length) = (word(&head, 4), (head.len() + bytes.len()) as u64);
    let entry = match word(&head, 8) {
        kind @ (0 | 1) => Entry::Printed {
            rank,
            stream: Stream::ALL[kind],
            bytes,
        },
        2 => Entry::End { rank },
        _ => Entry::EndAll,
    };
    Ok(Some((entry, length)))
}

/// Removes the journals before `number`.
pub fn forget_before(directory: &Directory, number: u64) {
    for old in numbers(directory).into_iter().take_while(|old| *old < number) {
        let _ = directory.remove(name(old));
    }
}

/// The job cannot be resumed any more.
pub fn remove(directory: &Directory) {
    forget_before(directory, u64::MAX);
    let _ = directory.remove(WRITTEN);
}

fn kernel() -> Vec<u8> {
    boot().unwrap_or_default().into_bytes()
}

/// Counts the bytes written to one stream.
pub struct Tally {
    file: File,
    stream: usize,
    /// The stream leads to a regular file.
    is_file: bool,
}

impl Tally {
    /// Sets the bytes written and, before a write to a regular file, the bytes that this write adds.
    pub fn set(&self, written: u64, writing: u64) {
        if writing == 0 || self.is_file {
            let mut words = [0u8; 16];
            words[..8].copy_from_slice(&written.to_le_bytes());
            words[8..].copy_from_slice(&writing.to_le_bytes());
            // Without it a run after a killed launcher prints some text twice.
            let _ = self.file.write_all_at(&words, self.stream as u64 * 16);
        }
    }
}

/// A regular file that standard output leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regular {
    device: u64,
    inode: u64,
    length: u64,
}

impl Regular {
    /// Standard output `out`, if its length tells what was written to it: not if others write there.
    pub fn of(out: &File, err: &File) -> Option<Regular> {
        let of = |stream: &File| {
            let about = stream.metadata().ok().filter(|about| about.is_file())?;
            Some(Regular {
                device: about.dev(),
                inode: about.ino(),
                length: about.len(),
            })
        };
        let is_shared =
            |own: &Regular| of(err).is_some_and(|other| (other.device, other.inode) == (own.device, own.inode));
        of(out).filter(|own| !is_shared(own))
    }
}

/// Begins to count the bytes that a run writes. At its beginning earlier runs had `written` so much to each stream, and
/// standard output led to `out`.
pub fn count(directory: &Directory, out: Option<Regular>, before: u64, written: [u64; 2]) -> io::Result<[Tally; 2]> {
    let file = directory.open_file(WRITTEN, OFlag::O_RDWR | OFlag::O_CREAT)?;
    // Held while this launcher lives. Some file systems have no locks.
    let _ = file.try_lock();
    let words = out.map_or([0; 3], |out| [out.device, out.inode, out.length.wrapping_sub(before)]);
    let words: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    file.write_all_at(&words, FILE)?;
    file.write_all_at(&kernel(), KERNEL)?;
    let tally = |stream: usize| -> io::Result<Tally> {
        let tally = Tally {
            file: file.try_clone()?,
            stream,
            is_file: stream == 0 && out.is_some(),
        };
        tally.set(written[stream], 0);
        Ok(tally)
    };
    Ok([tally(0)?, tally(1)?])
}

/// A living launcher counts its writes: the job runs, and is not left over from a killed launcher.
pub fn is_counted(directory: &Directory) -> bool {
    directory.is_locked(WRITTEN)
}

/// How much all earlier runs have written to each stream, at least `printed`. `out`: the target of standard output now.
pub fn written(directory: &Directory, out: Option<Regular>, printed: [u64; 2]) -> [u64; 2] {
    let Ok(known) = directory.read(WRITTEN) else {
        return printed;
    };
    let word = |at: usize| {
        let bytes = known.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let at = FILE as usize;
    let own = kernel();
    let is_same_kernel = !own.is_empty() && known.get(KERNEL as usize..) == Some(&own[..]);
    let is_same_file = |out: &Regular| (out.device, out.inode) == (word(at), word(at + 8));
    let in_file = out
        .filter(is_same_file)
        .map(|out| out.length.wrapping_sub(word(at + 16)));
    let (out, writing, err) = (word(0), word(8), word(16));
    let counted = match (in_file, is_same_kernel) {
        // The launcher was killed in the middle of a write.
        (Some(in_file), true) if (out..=out + writing).contains(&in_file) => [in_file, err],
        (_, true) => [out, err],
        // The data on the disk when the machine was lost.
        (Some(in_file), false) if in_file >> 63 == 0 => [in_file, printed[1]],
        (_, false) => printed,
    };
    [counted[0].max(printed[0]), counted[1].max(printed[1])]
}

#[cfg(test)]
mod tests;

//! What lies beside images of logs, as bytes: the length of a head (u64, little-endian), the head (JSON), and parts whose
//! lengths the head has. And what is read of a log's segments.

use std::io;

use resurgo_wire::entry::{KINDS, Kind, Mark};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::in_transit::damaged;

/// # Errors
/// The head cannot be written as JSON.
pub fn pack<'a>(head: &impl Serialize, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let mut all = (head.len() as u64).to_le_bytes().to_vec();
    all.extend(head);
    parts.for_each(|part| all.extend_from_slice(part));
    Ok(all)
}

/// The head, and what follows it.
///
/// # Errors
/// The bytes are too short, or their head is another one.
pub fn unpack<H: DeserializeOwned>(all: &[u8]) -> io::Result<(H, Parts<'_>)> {
    let (length, rest) = all.split_first_chunk::<8>().ok_or_else(short)?;
    let head = usize::try_from(u64::from_le_bytes(*length)).ok();
    let (head, rest) = head.and_then(|head| rest.split_at_checked(head)).ok_or_else(short)?;
    Ok((serde_json::from_slice(head)?, Parts(rest)))
}

fn short() -> io::Error {
    damaged("the log of an image is too short")
}

/// The parts that have not been taken.
pub struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    pub fn next(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let part;
        (part, self.0) = self.0.split_at_checked(length).ok_or_else(short)?;
        Ok(part.to_vec())
    }
}

/// What lies beside image `of` (rank and number) is that of `image`.
pub fn is_of(of: (usize, u64), image: (usize, u64)) -> io::Result<()> {
    match of == image {
        true => Ok(()),
        false => Err(damaged("the log is of another image")),
    }
}

/// A word of a segment.
pub fn word(bytes: &[u8], at: usize) -> io::Result<u64> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    word.map(|word| u64::from_le_bytes(*word))
        .ok_or_else(|| damaged("a log goes beyond its segment"))
}

/// None: there is no entry yet.
pub fn kind_of(mark: Mark) -> io::Result<Option<Kind>> {
    match mark.0 & 0xff {
        0 => Ok(None),
        kind if kind as usize <= KINDS.len() => Ok(Some(mark.kind())),
        _ => Err(damaged("a log has an entry of no kind")),
    }
}

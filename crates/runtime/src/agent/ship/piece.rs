//! The file of a piece of parity:
//!
//! ```text
//! 8 bytes   MAGIC
//! u32       length of the head
//! head      JSON: what the piece is, its set, and the digest of its bytes
//! 32 bytes  BLAKE3 of all that: it identifies the piece
//! bytes     the piece itself, as long as the shards of its set
//! ```
//!
//! The shard of an image is its file and then what lies beside it; [`Offer`] has both lengths. What the file does not
//! need counts as zeros, and so does what is missing to the length of shards.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use resurgo_parity::{GRAIN, Shape};
use resurgo_wire::control::Piece;
use resurgo_wire::replica::{Offer, What};
use serde::{Deserialize, Serialize};

use super::keeper::Contents;

const MAGIC: &[u8; 8] = b"RsgPiece";
const VERSION: u32 = 1;
/// Bytes before the head.
const BEFORE: usize = MAGIC.len() + 4;
/// The most bytes of a head.
const MOST: usize = 4 << 20;
const DIGEST: usize = blake3::OUT_LEN;

/// What a piece says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    version: u32,
    pub number: u64,
    pub set: u64,
    /// Which of so many pieces it is.
    pub index: u32,
    pub pieces: u32,
    /// The images of the set, in order.
    pub members: Vec<Offer>,
    /// The length of shards.
    pub shard: u64,
    /// BLAKE3 of the piece's own bytes.
    digest: String,
}

/// The length of the shards of a set with these members.
///
/// # Errors
/// Nothing is so long.
pub fn shard_of(members: &[Offer]) -> Result<u64, String> {
    let lengths = members.iter().map(|member| member.length.checked_add(member.beside));
    let longest = lengths.collect::<Option<Vec<u64>>>();
    let longest = longest.and_then(|lengths| {
        lengths
            .into_iter()
            .max()
            .unwrap_or(0)
            .max(1)
            .checked_next_multiple_of(GRAIN as u64)
    });
    longest
        .filter(|longest| *longest <= i64::MAX as u64 - (BEFORE + MOST + DIGEST) as u64)
        .ok_or_else(|| "an image says that it is longer than any file".to_string())
}

impl Head {
    /// The head of a piece, whose digest is still to come.
    ///
    /// # Errors
    /// There is no such piece.
    pub fn new(number: u64, set: u64, index: u32, pieces: u32, members: Vec<Offer>) -> Result<Head, String> {
        let head = Head {
            version: VERSION,
            number,
            set,
            index,
            pieces,
            shard: shard_of(&members)?,
            members,
            digest: blake3::Hash::from([0; DIGEST]).to_hex().to_string(),
        };
        head.check().map(|()| head)
    }

    pub fn shape(&self) -> Option<Shape> {
        Shape::new(self.members.len(), self.pieces as usize)
    }

    pub fn what(&self) -> What {
        What::Piece {
            number: self.number,
            set: self.set,
            index: self.index,
        }
    }

    /// All of this is possible.
    fn check(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("it is no piece of parity: its {what}"));
        if self.version != VERSION {
            return Err(format!(
                "it is of version {}, and this resurgo knows {VERSION}",
                self.version
            ));
        }
        if self.shape().is_none() || self.index >= self.pieces {
            return wrong("set cannot be");
        }
        let ranks = self.members.iter().map(|member| match member.what {
            What::Image { rank, number } if number == self.number => Some(rank),
            _ => None,
        });
        let Some(mut ranks) = ranks.collect::<Option<Vec<u32>>>() else {
            return wrong("members are not of its wave");
        };
        ranks.sort_unstable();
        if ranks.windows(2).any(|pair| pair[0] == pair[1]) {
            return wrong("members are named twice");
        }
        match shard_of(&self.members)? == self.shard {
            true => Ok(()),
            false => wrong("length is not that of its members"),
        }
    }

    /// The file's bytes before the piece's own, whose digest is this.
    ///
    /// # Errors
    /// There are too many.
    pub fn encode(&mut self, digest: blake3::Hash) -> Result<(Vec<u8>, Offer), String> {
        self.digest = digest.to_hex().to_string();
        let head = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if head.len() > MOST {
            return Err("too much is to be said about the images of a set".to_string());
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&head);
        let digest = blake3::hash(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        let offer = Offer {
            what: self.what(),
            length: bytes.len() as u64 + self.shard,
            beside: 0,
            digest: digest.to_hex().to_string(),
            about: Vec::new(),
        };
        Ok((bytes, offer))
    }

    /// Reads the head, and no more; with the digest that identifies the piece, and the length of what was read.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is something else.
    pub fn read(mut from: impl FnMut(&mut [u8]) -> io::Result<()>) -> Result<(Head, blake3::Hash, u64), String> {
        let mut read = |length: usize| {
            let mut bytes = vec![0; length];
            from(&mut bytes).map(|()| bytes).map_err(|error| error.to_string())
        };
        let mut bytes = read(BEFORE)?;
        let length = bytes[MAGIC.len()..]
            .first_chunk()
            .map_or(0, |length| u32::from_le_bytes(*length));
        if bytes[..MAGIC.len()] != *MAGIC || length as usize > MOST {
            return Err("it is no piece of parity".to_string());
        }
        bytes.extend(read(length as usize)?);
        let digest = blake3::hash(&bytes);
        if digest != *read(DIGEST)? {
            return Err("its head is damaged".to_string());
        }
        let head: Head = serde_json::from_slice(&bytes[BEFORE..]).map_err(|error| error.to_string())?;
        head.check()?;
        Ok((head, digest, (bytes.len() + DIGEST) as u64))
    }

    /// The same of a file.
    ///
    /// # Errors
    /// See [`Head::read`].
    pub fn of(file: &File) -> Result<(Head, blake3::Hash, u64), String> {
        let mut at = 0;
        let read = Head::read(|bytes| {
            let length = bytes.len() as u64;
            file.read_exact_at(bytes, at)?;
            at += length;
            Ok(())
        })?;
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        match read.0.shard.checked_add(read.2) == Some(length) {
            true => Ok(read),
            false => Err("it is not as long as it says".to_string()),
        }
    }
}

/// The piece in a file, and what others must know of it. None: it is something else, or its head is damaged.
pub fn piece_in(file: &File) -> Option<(Piece, Offer)> {
    let (head, digest, body) = Head::of(file).ok()?;
    let ranks = head.members.iter().filter_map(|member| member.what.image());
    let offer = Offer {
        what: head.what(),
        length: body + head.shard,
        beside: 0,
        digest: digest.to_hex().to_string(),
        about: Vec::new(),
    };
    let piece = Piece {
        number: head.number,
        set: head.set,
        index: head.index,
        members: ranks.map(|(rank, _)| rank).collect(),
    };
    Some((piece, offer))
}

fn whole(file: &File) -> io::Result<Vec<Range<u64>>> {
    let all = 0..file.metadata()?.len();
    Ok(vec![all])
}

fn is_it(file: File, offer: &Offer) -> Result<(), String> {
    let (_, digest, _) = Head::of(&file)?;
    match digest.to_hex().as_str() == offer.digest {
        true => Ok(()),
        false => Err("it is another piece".to_string()),
    }
}

fn is_whole(mut file: File, offer: &Offer) -> Result<(), String> {
    let (head, digest, body) = Head::of(&file)?;
    if digest.to_hex().as_str() != offer.digest || head.what() != offer.what {
        return Err("it is another piece".to_string());
    }
    let mut hasher = blake3::Hasher::new();
    let read = io::Seek::seek(&mut file, io::SeekFrom::Start(body)).and_then(|_| {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                length => drop(hasher.update(&buffer[..length])),
            }
        }
    });
    read.map_err(|error| error.to_string())?;
    match hasher.finalize().to_hex().as_str() == head.digest {
        true => Ok(()),
        false => Err("its bytes are damaged".to_string()),
    }
}

/// The content is a piece.
pub const PIECES: Contents = Contents {
    parts: whole,
    is_it,
    is_whole,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(rank: u32, length: u64, beside: u64) -> Offer {
        Offer {
            what: What::Image { rank, number: 7 },
            length,
            beside,
            digest: "d".repeat(64),
            about: vec![1; 100],
        }
    }

    fn read(bytes: &[u8]) -> Result<Head, String> {
        let mut left = bytes;
        Head::read(|to| left.read_exact(to)).map(|(head, ..)| head)
    }

    #[test]
    fn a_head_comes_back_as_it_was_and_is_nothing_else() {
        let members = vec![offer(3, 1000, 24), offer(1, 10, 0)];
        let mut head = Head::new(7, 5, 1, 2, members).unwrap();
        assert_eq!(head.shard, 1024);
        let (bytes, offer) = head.encode(blake3::hash(b"bytes")).unwrap();
        assert_eq!((offer.length, offer.beside), (bytes.len() as u64 + 1024, 0));
        assert_eq!(read(&bytes), Ok(head));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "byte {at}");
            assert!(read(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn hostile_heads_are_refused_before_anything_is_allocated() {
        let two = |one, other| Head::new(7, 5, 0, 1, vec![one, other]);
        assert!(two(offer(1, u64::MAX, 1), offer(2, 1, 0)).is_err());
        assert!(two(offer(1, i64::MAX as u64, 0), offer(2, 1, 0)).is_err());
        assert!(two(offer(1, 1, 0), offer(1, 1, 0)).is_err());
        assert!(Head::new(7, 5, 1, 1, vec![offer(1, 1, 0)]).is_err());
        assert!(Head::new(7, 5, 0, 1, Vec::new()).is_err());
        assert!(
            Head::new(8, 5, 0, 1, vec![offer(1, 1, 0)]).is_err(),
            "an image of another wave"
        );
        assert!(Head::new(7, 5, 0, u32::MAX, vec![offer(1, 1, 0)]).is_err());
        let long = [&MAGIC[..], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(read(&long).unwrap_err(), "it is no piece of parity");
        // Its digest is right, and what it says is not.
        let sealed = |head: &Head| {
            let json = serde_json::to_vec(head).unwrap();
            let mut bytes = [&MAGIC[..], &(json.len() as u32).to_le_bytes(), &json].concat();
            let digest = blake3::hash(&bytes);
            bytes.extend_from_slice(digest.as_bytes());
            bytes
        };
        let right = two(offer(1, 9, 0), offer(2, 1, 0)).unwrap();
        assert_eq!(read(&sealed(&right)), Ok(right.clone()));
        for wrong in [
            Head {
                shard: 1 << 60,
                ..right.clone()
            },
            Head {
                index: 1,
                ..right.clone()
            },
            Head {
                version: 2,
                ..right.clone()
            },
            Head { number: 8, ..right },
        ] {
            assert!(read(&sealed(&wrong)).is_err(), "{wrong:?}");
        }
    }
}

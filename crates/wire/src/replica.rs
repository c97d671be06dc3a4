//! What the agents of two nodes say when one copies an image of a rank from the other, or a piece of parity.
//!
//! Frames as in [`crate::frame`]. Both agents have proved the job's key ([`crate::handshake`]). Either may give, and
//! either may take:
//!
//! ```text
//! giver                                        taker
//!                              ← Want          only where the taker has called: what, u8: 1 if the giver must look at
//!                                              all of it first
//! Offer                        →               what, u64 length, u64 beside, u16 length of the digest, digest, about
//!                              ← From          u64 position: from here on it is missing (or No)
//! Run                          →               u64 position, bytes: they lie there in the file. All else is zeros
//! Beside, Beside, …            →               bytes of the image that are not in its file; as many as Offer says
//! End                          →               nothing: that is all of it
//!                              ← Whole         nothing: it is on the taker's disk, and is that image (or No)
//! No                                           a reason
//! ```
//!
//! *What* is u8 kind, u32 rank or index, u64 number, u64 set (0 for an image).
//!
//! Each of these frames ends with 32 bytes: BLAKE3, keyed with the connection's own key, of the frame and of how many
//! frames came before it in its direction. So if anything is changed, left out or repeated on the way, that frame shows
//! it. All integers are little-endian.

use std::fmt;

use crate::frame::{Error, Reader, begin, end, split};
use crate::handshake::{Bytes32, KEY_BYTES, NAMES as WORDS, OWN, Word};

/// The most bytes of a Run, and of the text about an image.
pub const MOST: usize = 256 << 10;
/// The most bytes of a frame, without its length.
const MAX_FRAME: usize = MOST + 1024;
/// The kind of a Run.
const RUN: u8 = 8;
/// The kinds of [`What`].
const IMAGE: u8 = 0;
const PIECE: u8 = 1;
/// Bytes of a Run before the file's bytes, with its length.
pub const RUN_HEAD: usize = 4 + 1 + 8;

const NAMES: [&str; 12] = [
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Want", "Offer", "From", "Run", "End", "Whole", "No", "Beside",
];

/// What an agent has in a file for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize), serde(untagged))]
pub enum What {
    /// The piece of parity with this index, of a set of images of wave `number`.
    Piece { number: u64, set: u64, index: u32 },
    /// The image of a rank.
    Image { rank: u32, number: u64 },
}

impl What {
    /// The number of the image, or of those that it is a piece of.
    pub fn number(self) -> u64 {
        match self {
            What::Image { number, .. } | What::Piece { number, .. } => number,
        }
    }

    /// The rank and number of an image.
    pub fn image(self) -> Option<(u32, u64)> {
        match self {
            What::Image { rank, number } => Some((rank, number)),
            What::Piece { .. } => None,
        }
    }

    fn put(self, out: &mut Vec<u8>) {
        let (kind, one, number, set) = match self {
            What::Image { rank, number } => (IMAGE, rank, number, 0),
            What::Piece { number, set, index } => (PIECE, index, number, set),
        };
        out.push(kind);
        out.extend_from_slice(&one.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&set.to_le_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<What, Error> {
        let [kind] = reader.array()?;
        let (one, number, set) = (reader.u32()?, reader.u64()?, reader.u64()?);
        match (kind, set) {
            (IMAGE, 0) => Ok(What::Image { rank: one, number }),
            (PIECE, _) => Ok(What::Piece {
                number,
                set,
                index: one,
            }),
            _ => Err(reader.malformed()),
        }
    }
}

/// In words.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Image { rank, number } => write!(f, "image {number} of rank {rank}"),
            What::Piece { number, set, index } => write!(f, "piece {index} of set {set} of wave {number}"),
        }
    }
}

/// A file that an agent offers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
pub struct Offer {
    #[cfg_attr(feature = "control", serde(flatten))]
    pub what: What,
    /// Length of its file.
    pub length: u64,
    /// Bytes that belong to it and are not in its file.
    pub beside: u64,
    /// The digest that identifies it.
    pub digest: String,
    /// What else an agent must know, in words of its own.
    pub about: Vec<u8>,
}

/// One frame. Bytes of a file are borrowed from where they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    Handshake(Word),
    /// `checked`: only if all of it is right.
    Want {
        what: What,
        checked: bool,
    },
    Offer(Offer),
    From {
        position: u64,
    },
    Run {
        position: u64,
        bytes: &'a [u8],
    },
    End,
    Whole,
    No {
        reason: String,
    },
    Beside {
        bytes: &'a [u8],
    },
}

/// The calling or the called side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Visitor,
    Server,
}

/// The seals that prove the frames of one side of one connection genuine.
pub struct Seal {
    key: Bytes32,
    frames: u64,
}

impl Seal {
    /// The seals of what `side` says; the nonces are those of the Hello and the Challenge.
    pub fn new(job_key: &Bytes32, side: Side, hello: &Bytes32, challenge: &Bytes32) -> Seal {
        let label: &[u8; 24] = match side {
            Side::Visitor => b"resurgo replica: visitor",
            Side::Server => b"resurgo replica: server ",
        };
        let mut bytes = Vec::with_capacity(label.len() + 2 * KEY_BYTES);
        bytes.extend_from_slice(label);
        bytes.extend_from_slice(hello);
        bytes.extend_from_slice(challenge);
        Seal {
            key: *blake3::keyed_hash(job_key, &bytes).as_bytes(),
            frames: 0,
        }
    }

    /// The seal of the next frame.
    fn of(&self, frame: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.frames.to_le_bytes());
        hasher.update(frame);
        hasher.finalize()
    }

    /// Appends the seal to a whole frame, whose length already counts it.
    fn close(&mut self, frame: &mut Vec<u8>) {
        let seal = self.of(frame);
        frame.extend_from_slice(seal.as_bytes());
        self.frames += 1;
    }

    /// Makes the bytes behind the first [`RUN_HEAD`] ones a frame, a [`Frame::Run`], without copying them.
    pub fn close_run(&mut self, run: &mut Vec<u8>, position: u64) {
        run[4] = RUN;
        run[5..RUN_HEAD].copy_from_slice(&position.to_le_bytes());
        end(run, 0, KEY_BYTES);
        self.close(run);
    }
}

impl Frame<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Handshake(word) => word.kind(),
            Self::Want { .. } => OWN,
            Self::Offer(_) => 6,
            Self::From { .. } => 7,
            Self::Run { .. } => RUN,
            Self::End => 9,
            Self::Whole => 10,
            Self::No { .. } => 11,
            Self::Beside { .. } => 12,
        }
    }

    /// The frame's name in messages.
    pub const fn name(&self) -> &'static str {
        NAMES[self.kind() as usize - 1]
    }

    /// The frame in bytes, with its length. `seal`: this side's; words of the handshake have none.
    pub fn encode(&self, seal: Option<&mut Seal>) -> Vec<u8> {
        let mut out = Vec::new();
        let start = begin(&mut out, self.kind());
        match self {
            Self::Handshake(word) => word.put(&mut out),
            Self::Want { what, checked } => {
                what.put(&mut out);
                out.push((*checked).into());
            }
            Self::Offer(offer) => {
                offer.what.put(&mut out);
                out.extend_from_slice(&offer.length.to_le_bytes());
                out.extend_from_slice(&offer.beside.to_le_bytes());
                out.extend_from_slice(&(offer.digest.len() as u16).to_le_bytes());
                out.extend_from_slice(offer.digest.as_bytes());
                out.extend_from_slice(&offer.about);
            }
            Self::From { position } => out.extend_from_slice(&position.to_le_bytes()),
            Self::Run { position, bytes } => {
                out.extend_from_slice(&position.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Beside { bytes } => out.extend_from_slice(bytes),
            Self::End | Self::Whole => {}
            Self::No { reason } => Word::Refused { reason: reason.clone() }.put(&mut out),
        }
        end(&mut out, start, seal.as_ref().map_or(0, |_| KEY_BYTES));
        if let Some(seal) = seal {
            seal.close(&mut out);
        }
        out
    }

    /// Length of the frame that begins with `bytes`, as soon as enough bytes are there.
    ///
    /// # Errors
    /// It is longer than any frame.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some(length) = bytes.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)) else {
            return Ok(None);
        };
        match length as usize {
            length @ ..=MAX_FRAME => Ok(Some(4 + length)),
            length => Err(Error::FrameTooLong { bytes: length as u64 }),
        }
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or None while it is not whole. `seal`: the
    /// other side's. Without one the other side has not proved the key, and only words of the handshake are due.
    ///
    /// # Errors
    /// The bytes are no valid frame, or the frame was changed on its way.
    pub fn decode<'a>(bytes: &'a [u8], seal: Option<&mut Seal>) -> Result<Option<(Frame<'a>, usize)>, Error> {
        let Some((kind, mut reader)) = split(bytes, MAX_FRAME, &NAMES)? else {
            return Ok(None);
        };
        let used = 5 + reader.bytes.len();
        let frame = match (kind, seal) {
            (..OWN, None) => Frame::Handshake(Word::take(kind, &mut reader)?),
            (OWN.., Some(seal)) => {
                let at = reader.bytes.len().checked_sub(KEY_BYTES);
                let (fields, theirs) = reader.bytes.split_at(at.ok_or_else(|| reader.malformed())?);
                if seal.of(&bytes[..used - KEY_BYTES]) != *theirs {
                    return Err(Error::NotAuthentic);
                }
                seal.frames += 1;
                reader.bytes = fields;
                Self::decode_fields(kind, &mut reader)?
            }
            _ => {
                let frame = NAMES[kind as usize - 1];
                return Err(Error::Unexpected { frame });
            }
        };
        reader.end()?;
        Ok(Some((frame, used)))
    }

    fn decode_fields<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Frame<'a>, Error> {
        Ok(match kind {
            OWN => Frame::Want {
                what: What::take(reader)?,
                checked: reader.array()? != [0],
            },
            6 => Frame::Offer(take_offer(reader)?),
            7 => Frame::From {
                position: reader.u64()?,
            },
            RUN => Frame::Run {
                position: reader.u64()?,
                bytes: std::mem::take(&mut reader.bytes),
            },
            9 => Frame::End,
            10 => Frame::Whole,
            11 => Frame::No {
                reason: reader.reason()?,
            },
            _ => Frame::Beside {
                bytes: std::mem::take(&mut reader.bytes),
            },
        })
    }
}

fn take_offer(reader: &mut Reader<'_>) -> Result<Offer, Error> {
    let (what, length, beside) = (What::take(reader)?, reader.u64()?, reader.u64()?);
    let digits = u16::from_le_bytes(reader.array()?) as usize;
    let digest = reader.bytes.get(..digits).ok_or_else(|| reader.malformed())?;
    let about = reader.bytes[digits..].to_vec();
    let digest = str::from_utf8(digest).map_err(|_| reader.malformed())?.to_string();
    reader.bytes = &[];
    Ok(Offer {
        what,
        length,
        beside,
        digest,
        about,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(side: Side) -> Seal {
        Seal::new(&[7; 32], side, &[1; 32], &[2; 32])
    }

    fn frames() -> Vec<Frame<'static>> {
        vec![
            Frame::Want {
                what: What::Piece {
                    number: 2,
                    set: 3,
                    index: 4,
                },
                checked: true,
            },
            Frame::Offer(Offer {
                what: What::Image { rank: 1, number: 2 },
                length: 3 << 40,
                beside: 9,
                digest: "0123".to_string(),
                about: vec![4, 5],
            }),
            Frame::From { position: 5 },
            Frame::Run {
                position: 6,
                bytes: &[7; 100],
            },
            Frame::End,
            Frame::Whole,
            Frame::No {
                reason: "no room".to_string(),
            },
            Frame::Beside { bytes: &[8; 9] },
        ]
    }

    #[test]
    fn frames_come_back_as_they_were_and_whole() {
        let (mut ours, mut theirs) = (seal(Side::Visitor), seal(Side::Visitor));
        for frame in frames() {
            let mut bytes = frame.encode(Some(&mut ours));
            assert_eq!(Frame::length(&bytes), Ok(Some(bytes.len())));
            for length in 0..bytes.len() {
                let part = Frame::decode(&bytes[..length], Some(&mut theirs));
                assert_eq!(part, Ok(None), "{}", frame.name());
            }
            let length = bytes.len();
            bytes.push(9);
            let whole = Frame::decode(&bytes, Some(&mut theirs));
            assert_eq!(whole, Ok(Some((frame, length))));
        }
        let mut run = vec![7; RUN_HEAD + 100];
        seal(Side::Server).close_run(&mut run, 6);
        assert_eq!(run, frames()[3].encode(Some(&mut seal(Side::Server))));
    }

    #[test]
    fn a_frame_that_was_changed_left_out_or_repeated_is_noticed() {
        for frame in frames() {
            let bytes = frame.encode(Some(&mut seal(Side::Visitor)));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                let read = Frame::decode(&changed, Some(&mut seal(Side::Visitor)));
                assert!(!matches!(read, Ok(Some(_))), "byte {at} of {}", frame.name());
            }
            let mut behind = seal(Side::Visitor);
            behind.frames = 1;
            assert_eq!(Frame::decode(&bytes, Some(&mut behind)), Err(Error::NotAuthentic));
            let from_us = Frame::decode(&bytes, Some(&mut seal(Side::Server))).err();
            assert_eq!(from_us, Some(Error::NotAuthentic));
        }
    }

    #[test]
    fn a_stranger_is_heard_on_nothing_but_the_handshake() {
        for frame in frames() {
            let bytes = frame.encode(None);
            let name = frame.name();
            assert_eq!(Frame::decode(&bytes, None), Err(Error::Unexpected { frame: name }));
        }
        let word = Frame::Handshake(Word::Proof {
            proof: [1; 32],
            claim: None,
        });
        let bytes = word.encode(None);
        assert_eq!(Frame::decode(&bytes, None), Ok(Some((word, bytes.len()))));
        assert!(Frame::decode(&bytes, Some(&mut seal(Side::Visitor))).is_err());
        let long = [0xff, 0xff, 0xff, 0, 8];
        assert!(matches!(Frame::decode(&long, None), Err(Error::FrameTooLong { .. })));
        assert!(matches!(Frame::length(&long), Err(Error::FrameTooLong { .. })));
    }
}

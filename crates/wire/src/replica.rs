//! What goes between the agents of two nodes when one gets a copy of an image of a rank that the other has.
//!
//! Frames as in [`crate::frame`]. Who calls has proved the job's key, and so has who is called ([`crate::handshake`]). Either may give,
//! and either may take:
//!
//! ```text
//! giver                                        taker
//!                              ← Want          only where the taker has called: u32 rank, u64 number
//! Offer                        →               u32 rank, u64 number, u64 length, u64 beside, u16 length of the digest, digest, about
//!                              ← From          u64 position: from here on it is missing (or No)
//! Run                          →               u64 position, bytes: they lie there in the file. What no Run has is zeros
//! Beside, Beside, …            →               bytes: so many as the Offer says, which belong to the image and are not in its file
//! End                          →               nothing: that is all of it
//!                              ← Whole         nothing: it is on the taker's disk, and is that image (or No)
//! No                                           a reason
//! ```
//!
//! Each of these frames ends with 32 bytes: BLAKE3, keyed with the connection's own key, of how many frames came before it in its
//! direction, and of all of it. So nothing on the way can be changed, left out or repeated without being noticed at that frame.
//! All integers are little-endian.

use crate::frame::{Error, Reader, begin, end, split};
use crate::handshake::{Bytes32, KEY_BYTES, NAMES as WORDS, OWN, Word};

/// Most bytes of a Run, and of what is told of an image.
pub const MOST: usize = 256 << 10;
/// Most bytes of a frame, without its length.
const MAX_FRAME: usize = MOST + 1024;
/// The kind of a Run.
const RUN: u8 = 8;
/// Bytes of a Run before what lies in the file, with its length.
pub const RUN_HEAD: usize = 4 + 1 + 8;

const NAMES: [&str; 12] = [
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Want", "Offer", "From", "Run", "End", "Whole", "No", "Beside",
];

/// An image that can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
pub struct Offer {
    pub rank: u32,
    pub number: u64,
    /// Of its file.
    pub length: u64,
    /// Bytes that belong to it and are not in its file.
    pub beside: u64,
    /// By which it is known.
    pub digest: String,
    /// What an agent has to know beside, in words of its own.
    pub about: Vec<u8>,
}

/// One frame. Bytes of a file are borrowed from where they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    Handshake(Word),
    Want { rank: u32, number: u64 },
    Offer(Offer),
    From { position: u64 },
    Run { position: u64, bytes: &'a [u8] },
    End,
    Whole,
    No { reason: String },
    Beside { bytes: &'a [u8] },
}

/// Who has called, or who has been called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Visitor,
    Server,
}

/// What makes the frames of one side of one connection known for genuine.
pub struct Seal {
    key: Bytes32,
    frames: u64,
}

impl Seal {
    /// That of what `side` says; the nonces are those of the Hello and the Challenge.
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

    /// That of the next frame.
    fn of(&self, frame: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.frames.to_le_bytes());
        hasher.update(frame);
        hasher.finalize()
    }

    /// Appends it to a whole frame, whose length counts it already.
    fn close(&mut self, frame: &mut Vec<u8>) {
        let seal = self.of(frame);
        frame.extend_from_slice(seal.as_bytes());
        self.frames += 1;
    }

    /// Makes a frame of the bytes behind the first [`RUN_HEAD`] ones: a [`Frame::Run`], without copying them.
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

    /// The frame in bytes, with its length. `seal`: of this side; words of the handshake have none.
    pub fn encode(&self, seal: Option<&mut Seal>) -> Vec<u8> {
        let mut out = Vec::new();
        let start = begin(&mut out, self.kind());
        match self {
            Self::Handshake(word) => word.put(&mut out),
            Self::Want { rank, number } => {
                out.extend_from_slice(&rank.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Offer(offer) => {
                out.extend_from_slice(&offer.rank.to_le_bytes());
                out.extend_from_slice(&offer.number.to_le_bytes());
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

    /// How long the frame is that begins with `bytes`, as soon as that can be known.
    ///
    /// # Errors
    /// It is longer than any.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some(length) = bytes.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)) else {
            return Ok(None);
        };
        match length as usize {
            length @ ..=MAX_FRAME => Ok(Some(4 + length)),
            length => Err(Error::FrameTooLong { bytes: length as u64 }),
        }
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or nothing while it is not whole. `seal`: of the other side;
    /// none: it has not proved the key, and only words of the handshake are due.
    ///
    /// # Errors
    /// The other side says what none says, or it was changed on its way.
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
                rank: reader.u32()?,
                number: reader.u64()?,
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
    let (rank, number, length, beside) = (reader.u32()?, reader.u64()?, reader.u64()?, reader.u64()?);
    let digits = u16::from_le_bytes(reader.array()?) as usize;
    let digest = reader.bytes.get(..digits).ok_or_else(|| reader.malformed())?;
    let about = reader.bytes[digits..].to_vec();
    let digest = str::from_utf8(digest).map_err(|_| reader.malformed())?.to_string();
    reader.bytes = &[];
    Ok(Offer {
        rank,
        number,
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
            Frame::Want { rank: 1, number: 2 },
            Frame::Offer(Offer {
                rank: 1,
                number: 2,
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

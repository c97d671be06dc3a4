//! The connection between a rank and a channel memory, without the socket: bytes in, frames out, and back.
//!
//! ```text
//! rank                                     channel memory
//! the handshake                            ↔                 (claim: deliveries in the image that the life has)
//!                    ← Welcome  reported received…
//! Message  destination ssn envelope bytes  →                 (a long one goes on in Piece frames, right behind)
//! Report   rclock polls                    →   ← Reported  rclock   (where there are several memories)
//!                 ← Served  source polls envelope bytes      (the rank's own memory; Piece frames as in Message)
//! Forget   rclock                          →                 (no later life begins before this delivery)
//! Sync                                     →   ← Synced      (all earlier words are stored and compared)
//!                 ← Differs  destination ssn where before now   (a message sent again differs from the first)
//! ```
//! [Frames](crate::frame) and the [handshake](crate::handshake) are those of every server. This module copies no
//! payloads: frames borrow the received bytes.

mod handshake;

pub use handshake::{Doorkeeper, Greeting, Identity, Life};
use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::Admission;

pub use crate::frame::Error;
use crate::frame::{Reader, begin, end, split};
use crate::handshake::{NAMES as WORDS, OWN, Word};
pub use crate::output::Output;

/// The most payload bytes of one frame.
pub const MAX_PIECE: usize = 128 << 10;
/// Bytes of the fields of a Message before its payload.
const MESSAGE_HEAD: usize = 1 + 4 + 8 + ENVELOPE_BYTES + size_of::<Unset>();
const ENVELOPE_BYTES: usize = 1 + 1 + 8 + 8 + 8;
/// The most bytes of a frame after its length.
const MAX_FRAME: usize = MESSAGE_HEAD + MAX_PIECE;
/// In a Served: no life has reported the read.
const UNKNOWN: u64 = u64::MAX;

/// Bytes of a message that the MPI library never sets, each from one offset up to another: a comparison of a message
/// sent again leaves them out.
pub type Unset = [(u16, u16); 4];

/// What a message has besides its bytes; kind, flags, tag and data are the provider's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    pub kind: u8,
    pub flags: u8,
    pub tag: u64,
    pub data: u64,
    /// Bytes of the whole message.
    pub total: u64,
}

/// Where a message sent again differs from the one sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    Envelope,
    Length,
    /// From this byte on.
    Content(u64),
}

/// One frame of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    Handshake(Word),
    Welcome(Admission),
    Message {
        destination: Rank,
        ssn: u64,
        envelope: Envelope,
        unset: Unset,
        bytes: &'a [u8],
    },
    Piece {
        bytes: &'a [u8],
    },
    Report {
        rclock: u64,
        polls: u64,
    },
    Reported {
        rclock: u64,
    },
    Served {
        source: Rank,
        polls: Option<u64>,
        envelope: Envelope,
        bytes: &'a [u8],
    },
    Sync,
    Synced,
    Differs {
        destination: Rank,
        ssn: u64,
        difference: Difference,
        before: Envelope,
        now: Envelope,
    },
    Forget {
        rclock: u64,
    },
}

const NAMES: [&str; 14] = [
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Welcome", "Message", "Piece", "Report", "Reported", "Served", "Sync",
    "Synced", "Differs", "Forget",
];

impl Frame<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Handshake(word) => word.kind(),
            Self::Welcome(_) => OWN,
            Self::Message { .. } => 6,
            Self::Piece { .. } => 7,
            Self::Report { .. } => 8,
            Self::Reported { .. } => 9,
            Self::Served { .. } => 10,
            Self::Sync => 11,
            Self::Synced => 12,
            Self::Differs { .. } => 13,
            Self::Forget { .. } => 14,
        }
    }

    /// The frame's name in messages.
    pub const fn name(&self) -> &'static str {
        NAMES[self.kind() as usize - 1]
    }

    /// Appends the frame with its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_before(out, 0);
    }

    /// Appends the frame as if `more` bytes of payload followed its own: the caller appends those.
    pub fn encode_before(&self, out: &mut Vec<u8>, more: usize) {
        let start = begin(out, self.kind());
        match self {
            Self::Handshake(word) => word.put(out),
            Self::Welcome(Admission { reported, received }) => {
                out.extend_from_slice(&reported.to_le_bytes());
                for (rank, messages) in received {
                    out.extend_from_slice(&rank.to_le_bytes());
                    out.extend_from_slice(&messages.to_le_bytes());
                }
            }
            Self::Message {
                destination,
                ssn,
                envelope,
                unset,
                bytes,
            } => {
                out.extend_from_slice(&destination.to_le_bytes());
                out.extend_from_slice(&ssn.to_le_bytes());
                put_envelope(out, envelope);
                for (from, to) in unset {
                    out.extend_from_slice(&from.to_le_bytes());
                    out.extend_from_slice(&to.to_le_bytes());
                }
                out.extend_from_slice(bytes);
            }
            Self::Piece { bytes } => out.extend_from_slice(bytes),
            Self::Report { rclock, polls } => {
                out.extend_from_slice(&rclock.to_le_bytes());
                out.extend_from_slice(&polls.to_le_bytes());
            }
            Self::Reported { rclock } | Self::Forget { rclock } => out.extend_from_slice(&rclock.to_le_bytes()),
            Self::Served {
                source,
                polls,
                envelope,
                bytes,
            } => {
                out.extend_from_slice(&source.to_le_bytes());
                out.extend_from_slice(&polls.unwrap_or(UNKNOWN).to_le_bytes());
                put_envelope(out, envelope);
                out.extend_from_slice(bytes);
            }
            Self::Sync | Self::Synced => {}
            Self::Differs {
                destination,
                ssn,
                difference,
                before,
                now,
            } => {
                out.extend_from_slice(&destination.to_le_bytes());
                out.extend_from_slice(&ssn.to_le_bytes());
                let (kind, at) = match difference {
                    Difference::Envelope => (0, 0),
                    Difference::Length => (1, 0),
                    Difference::Content(at) => (2, *at),
                };
                out.push(kind);
                out.extend_from_slice(&at.to_le_bytes());
                put_envelope(out, before);
                put_envelope(out, now);
            }
        }
        let length = end(out, start, more);
        assert!(length <= MAX_FRAME, "a {} frame of {length} bytes", self.name());
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or None while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Error> {
        let Some((kind, reader)) = split(bytes, MAX_FRAME, &NAMES)? else {
            return Ok(None);
        };
        let used = 5 + reader.bytes.len();
        Ok(Some((decode_fields(kind, reader)?, used)))
    }
}

fn decode_fields(kind: u8, mut reader: Reader<'_>) -> Result<Frame<'_>, Error> {
    let frame = match kind {
        ..OWN => Frame::Handshake(Word::take(kind, &mut reader)?),
        OWN => {
            let reported = reader.u64()?;
            let mut received = Vec::with_capacity(reader.bytes.len() / 12);
            while !reader.bytes.is_empty() {
                received.push((reader.u32()?, reader.u64()?));
            }
            Frame::Welcome(Admission { reported, received })
        }
        6 => Frame::Message {
            destination: reader.u32()?,
            ssn: reader.u64()?,
            envelope: envelope(&mut reader)?,
            unset: unset(&mut reader)?,
            bytes: std::mem::take(&mut reader.bytes),
        },
        7 => Frame::Piece {
            bytes: std::mem::take(&mut reader.bytes),
        },
        8 => Frame::Report {
            rclock: reader.u64()?,
            polls: reader.u64()?,
        },
        9 => Frame::Reported { rclock: reader.u64()? },
        10 => Frame::Served {
            source: reader.u32()?,
            polls: Some(reader.u64()?).filter(|polls| *polls != UNKNOWN),
            envelope: envelope(&mut reader)?,
            bytes: std::mem::take(&mut reader.bytes),
        },
        11 => Frame::Sync,
        12 => Frame::Synced,
        13 => Frame::Differs {
            destination: reader.u32()?,
            ssn: reader.u64()?,
            difference: match (reader.array()?, reader.u64()?) {
                ([0], _) => Difference::Envelope,
                ([1], _) => Difference::Length,
                ([2], at) => Difference::Content(at),
                _ => return Err(reader.malformed()),
            },
            before: envelope(&mut reader)?,
            now: envelope(&mut reader)?,
        },
        _ => Frame::Forget { rclock: reader.u64()? },
    };
    reader.end()?;
    Ok(frame)
}

fn unset(reader: &mut Reader<'_>) -> Result<Unset, Error> {
    let mut unset = Unset::default();
    for (from, to) in &mut unset {
        *from = u16::from_le_bytes(reader.array()?);
        *to = u16::from_le_bytes(reader.array()?);
    }
    Ok(unset)
}

fn put_envelope(out: &mut Vec<u8>, envelope: &Envelope) {
    out.push(envelope.kind);
    out.push(envelope.flags);
    out.extend_from_slice(&envelope.tag.to_le_bytes());
    out.extend_from_slice(&envelope.data.to_le_bytes());
    out.extend_from_slice(&envelope.total.to_le_bytes());
}

fn envelope(reader: &mut Reader<'_>) -> Result<Envelope, Error> {
    let [kind, flags] = reader.array()?;
    Ok(Envelope {
        kind,
        flags,
        tag: reader.u64()?,
        data: reader.u64()?,
        total: reader.u64()?,
    })
}

/// Received bytes that are not used yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Input {
    /// Room for the next bytes, at least `least` of them.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.begin > 0 && self.bytes.len() - self.end < least {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.bytes.len() - self.end < least {
            self.bytes.resize(self.end + least, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that the first `bytes` of [`Self::room`] have been filled.
    pub fn came(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(
            self.end <= self.bytes.len(),
            "{bytes} bytes have come where less room was"
        );
    }

    /// Whether the next frame is whole.
    pub fn peek(&self) -> Result<bool, Error> {
        Ok(Frame::decode(&self.bytes[self.begin..self.end])?.is_some())
    }

    /// The next frame, if it is whole.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let Some((frame, used)) = Frame::decode(&self.bytes[self.begin..self.end])? else {
            return Ok(None);
        };
        self.begin += used;
        Ok(Some(frame))
    }
}

impl Output {
    pub fn push(&mut self, frame: &Frame) {
        frame.encode(self.end());
    }
}

#[cfg(test)]
mod tests;

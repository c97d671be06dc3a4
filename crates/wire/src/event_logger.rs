//! The connection between a rank and the event logger, without the socket: bytes in, events out, and back.
//!
//! ```text
//! rank                                     event logger
//! Hello  version rank size incarnation nonce →
//!                  ← Challenge  version epoch nonce proof
//! Proof  proof acknowledged                →
//!                                 ← Welcome  stored          (or Refused, at any time)
//! Log    first_rclock deliveries           →   ← Ack  rclock
//! Clocks clocks                            ↔   Clocks  clocks      (what is stable, of any rank, and is news)
//! Forget rclock                            →   ← Ack  rclock       (an image covers so many deliveries)
//! Query  above_rclock                      →   ← Answer  first_rclock more records …  (or NotWhole)
//! ```
//!
//! A frame is a `u32` length of what follows, a `u8` kind, and its fields; integers are little-endian. Both sides
//! prove that they hold the job's key: a proof is BLAKE3, keyed with it, of a label for the side, the Hello and the
//! Challenge without its proof. An event logger may connect to another, as rank [`LOGGER`] plus its number; it says Clocks and
//! nothing else. [`Client`] is the rank's half, [`LoggerSide`] the event logger's; both treat what they
//! read as hostile until then, and as untrusted after.

mod client;
mod logger_side;

pub use client::{Client, ClientEvent, Identity};
pub use logger_side::{LoggerSide, Request};

use crate::output::Output;
use resurgo_protocol::{Rank, Recorded};

/// Changes whenever the meaning of any byte changes.
pub const VERSION: u16 = 4;
/// First bytes of a Hello, so that a stranger is told from a rank of another version.
const MAGIC: [u8; 4] = *b"RSEL";
/// Most deliveries in one Log or Answer.
pub const MAX_RECORDS: usize = 4096;
/// Bytes of one delivery in an Answer, and in a Log, which also says what it depends on.
const RECORD_BYTES: usize = 12;
pub const DELIVERY_BYTES: usize = RECORD_BYTES + 8;
/// Bytes of one clock.
const CLOCK_BYTES: usize = 12;
/// What says Hello with this bit is event logger number `rank - LOGGER`.
pub const LOGGER: Rank = 1 << 31;
/// Most bytes of the text of a Refused.
const MAX_REASON: usize = 512;
/// Most bytes of a frame after its length.
pub const MAX_FRAME: usize = 1 + 8 + 1 + 4 + MAX_RECORDS * DELIVERY_BYTES;

/// Bytes of a key, a nonce and a proof.
pub const KEY_BYTES: usize = 32;
type Bytes32 = [u8; KEY_BYTES];

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the peer is not of a Resurgo job")]
    NotResurgo,
    #[error("the peer is of version {theirs}, this is version {VERSION}")]
    Version { theirs: u16 },
    #[error("a frame of {bytes} bytes, more than is allowed")]
    FrameTooLong { bytes: u64 },
    #[error("a frame of unknown kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("a malformed {frame} frame")]
    Malformed { frame: &'static str },
    #[error("a {frame} frame where none is due")]
    Unexpected { frame: &'static str },
    #[error("the peer does not hold the job's key")]
    NotAuthentic,
    #[error("it refuses: {reason}")]
    Refused { reason: String },
}

/// What a rank says of itself before it is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub rank: u32,
    /// Ranks in the job.
    pub size: u32,
    pub incarnation: u64,
    pub nonce: Bytes32,
}

/// A delivery to be stored, and its antecedent: deliveries that its source had made when it sent the message, 0 where they do
/// not matter (`resurgo_protocol::causal::Event`).
pub type Delivery = (Recorded, u64);

/// One frame of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Hello(Hello),
    Challenge {
        epoch: u64,
        nonce: Bytes32,
        proof: Bytes32,
    },
    Proof {
        proof: Bytes32,
        acknowledged: Option<u64>,
    },
    Welcome {
        stored: u64,
    },
    Refused {
        reason: String,
    },
    Log {
        first_rclock: u64,
        deliveries: Vec<Delivery>,
    },
    Ack {
        rclock: u64,
    },
    Query {
        above_rclock: u64,
    },
    Answer {
        first_rclock: u64,
        more: bool,
        records: Vec<Recorded>,
    },
    NotWhole {
        stored: u64,
    },
    Clocks {
        clocks: Vec<(Rank, u64)>,
    },
    Forget {
        rclock: u64,
    },
}

const NAMES: [&str; 12] = [
    "Hello",
    "Challenge",
    "Proof",
    "Welcome",
    "Refused",
    "Log",
    "Ack",
    "Query",
    "Answer",
    "NotWhole",
    "Clocks",
    "Forget",
];

impl Frame {
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Challenge { .. } => 2,
            Self::Proof { .. } => 3,
            Self::Welcome { .. } => 4,
            Self::Refused { .. } => 5,
            Self::Log { .. } => 6,
            Self::Ack { .. } => 7,
            Self::Query { .. } => 8,
            Self::Answer { .. } => 9,
            Self::NotWhole { .. } => 10,
            Self::Clocks { .. } => 11,
            Self::Forget { .. } => 12,
        }
    }

    /// The frame's name in messages.
    pub const fn name(&self) -> &'static str {
        NAMES[self.kind() as usize - 1]
    }

    /// Appends the frame with its length. A Log or Answer has at most [`MAX_RECORDS`] records.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        match self {
            Self::Hello(hello) => put_hello(out, hello),
            Self::Challenge { epoch, nonce, proof } => {
                out.extend_from_slice(&VERSION.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(nonce);
                out.extend_from_slice(proof);
            }
            Self::Proof { proof, acknowledged } => {
                out.extend_from_slice(proof);
                out.push(u8::from(acknowledged.is_some()));
                out.extend_from_slice(&acknowledged.unwrap_or(0).to_le_bytes());
            }
            Self::Welcome { stored } | Self::NotWhole { stored } => out.extend_from_slice(&stored.to_le_bytes()),
            Self::Refused { reason } => put_reason(out, reason),
            Self::Log {
                first_rclock,
                deliveries,
            } => {
                out.extend_from_slice(&first_rclock.to_le_bytes());
                put_count(out, deliveries.len());
                for (record, antecedent) in deliveries {
                    put_record(out, record);
                    out.extend_from_slice(&antecedent.to_le_bytes());
                }
            }
            Self::Clocks { clocks } => {
                put_count(out, clocks.len());
                for (rank, clock) in clocks {
                    out.extend_from_slice(&rank.to_le_bytes());
                    out.extend_from_slice(&clock.to_le_bytes());
                }
            }
            Self::Ack { rclock } | Self::Forget { rclock } => out.extend_from_slice(&rclock.to_le_bytes()),
            Self::Query { above_rclock } => out.extend_from_slice(&above_rclock.to_le_bytes()),
            Self::Answer {
                first_rclock,
                more,
                records,
            } => {
                out.extend_from_slice(&first_rclock.to_le_bytes());
                out.push(u8::from(*more));
                put_records(out, records);
            }
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or nothing while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Error> {
        let Some((kind, reader)) = split(bytes, MAX_FRAME, &NAMES)? else {
            return Ok(None);
        };
        let used = 5 + reader.bytes.len();
        Ok(Some((Self::decode_fields(kind, reader)?, used)))
    }

    fn decode_fields(kind: u8, mut reader: Reader<'_>) -> Result<Self, Error> {
        let frame = match kind {
            1 => Self::Hello(reader.hello()?),
            2 => {
                reader.version()?;
                Self::Challenge {
                    epoch: reader.u64()?,
                    nonce: reader.array()?,
                    proof: reader.array()?,
                }
            }
            3 => {
                let (proof, some, value) = (reader.array()?, reader.bool()?, reader.u64()?);
                Self::Proof {
                    proof,
                    acknowledged: some.then_some(value),
                }
            }
            4 => Self::Welcome { stored: reader.u64()? },
            5 => Self::Refused {
                reason: reader.reason()?,
            },
            6 => Self::Log {
                first_rclock: reader.u64()?,
                deliveries: reader.entries(DELIVERY_BYTES, |reader| Ok((reader.record()?, reader.u64()?)))?,
            },
            7 => Self::Ack { rclock: reader.u64()? },
            8 => Self::Query {
                above_rclock: reader.u64()?,
            },
            9 => Self::Answer {
                first_rclock: reader.u64()?,
                more: reader.bool()?,
                records: reader.entries(RECORD_BYTES, Reader::record)?,
            },
            10 => Self::NotWhole { stored: reader.u64()? },
            11 => Self::Clocks {
                clocks: reader.entries(CLOCK_BYTES, |reader| Ok((reader.u32()?, reader.u64()?)))?,
            },
            _ => Self::Forget { rclock: reader.u64()? },
        };
        if !reader.bytes.is_empty() {
            return Err(reader.malformed());
        }
        Ok(frame)
    }
}

/// The first frame of `bytes`, if it is whole: its kind, from 1, and its fields. `names`: of all kinds.
pub(crate) fn split<'a>(
    bytes: &'a [u8],
    most: usize,
    names: &[&'static str],
) -> Result<Option<(u8, Reader<'a>)>, Error> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > most {
        return Err(Error::FrameTooLong { bytes: length as u64 });
    }
    if length == 0 {
        return Err(Error::UnknownKind { kind: 0 });
    }
    // A stranger is told from the first byte of kind, not after it has sent what it announced.
    let Some((&kind, fields)) = rest.split_first() else {
        return Ok(None);
    };
    let Some(&frame) = (kind as usize).checked_sub(1).and_then(|index| names.get(index)) else {
        return Err(Error::UnknownKind { kind });
    };
    let reader = |bytes| Reader { frame, bytes };
    Ok(fields.get(..length - 1).map(|fields| (kind, reader(fields))))
}

pub(crate) fn put_reason(out: &mut Vec<u8>, reason: &str) {
    let end = (0..=reason.len().min(MAX_REASON))
        .rev()
        .find(|end| reason.is_char_boundary(*end));
    out.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
}

pub(crate) fn put_hello(out: &mut Vec<u8>, hello: &Hello) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&hello.rank.to_le_bytes());
    out.extend_from_slice(&hello.size.to_le_bytes());
    out.extend_from_slice(&hello.incarnation.to_le_bytes());
    out.extend_from_slice(&hello.nonce);
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    assert!(count <= MAX_RECORDS, "{count} entries in one frame");
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_record(out: &mut Vec<u8>, record: &Recorded) {
    out.extend_from_slice(&record.source.to_le_bytes());
    out.extend_from_slice(&record.polls.to_le_bytes());
}

fn put_records(out: &mut Vec<u8>, records: &[Recorded]) {
    put_count(out, records.len());
    records.iter().for_each(|record| put_record(out, record));
}

/// Takes fields off a frame.
pub(crate) struct Reader<'a> {
    pub frame: &'static str,
    pub bytes: &'a [u8],
}

impl Reader<'_> {
    pub fn malformed(&self) -> Error {
        Error::Malformed { frame: self.frame }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (array, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(Error::Malformed { frame: self.frame })?;
        self.bytes = rest;
        Ok(*array)
    }

    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Result<bool, Error> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub fn version(&mut self) -> Result<(), Error> {
        let theirs = self.array().map(u16::from_le_bytes)?;
        if theirs == VERSION {
            Ok(())
        } else {
            Err(Error::Version { theirs })
        }
    }

    pub fn hello(&mut self) -> Result<Hello, Error> {
        if self.array()? != MAGIC {
            return Err(Error::NotResurgo);
        }
        self.version()?;
        Ok(Hello {
            rank: self.u32()?,
            size: self.u32()?,
            incarnation: self.u64()?,
            nonce: self.array()?,
        })
    }

    /// The rest of a Refused.
    pub fn reason(&mut self) -> Result<String, Error> {
        let text = std::mem::take(&mut self.bytes);
        if text.len() > MAX_REASON {
            return Err(self.malformed());
        }
        // The text ends up in messages for people: nothing in it may steer a terminal.
        Ok(String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " "))
    }

    fn record(&mut self) -> Result<Recorded, Error> {
        Ok(Recorded {
            source: self.u32()?,
            polls: self.u64()?,
        })
    }

    /// The rest of the frame: a count, and so many entries of `bytes` bytes.
    fn entries<T>(&mut self, bytes: usize, read: impl Fn(&mut Self) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        let count = self.u32()? as usize;
        if count > MAX_RECORDS || self.bytes.len() != count * bytes {
            return Err(self.malformed());
        }
        (0..count).map(|_| read(self)).collect()
    }
}

/// Who makes a proof.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Rank,
    EventLogger,
    RankToMemory,
    ChannelMemory,
}

/// Compares in constant time, as `blake3::Hash` does.
pub(crate) fn proof(key: &Bytes32, side: Side, hello: &Hello, epoch: u64, nonce: &Bytes32) -> blake3::Hash {
    let mut bytes = Vec::with_capacity(160);
    let label: &[u8; 28] = match side {
        Side::Rank => b"resurgo event logger: rank  ",
        Side::EventLogger => b"resurgo event logger: logger",
        Side::RankToMemory => b"resurgo channel memory: rank",
        Side::ChannelMemory => b"resurgo channel memory: here",
    };
    bytes.extend_from_slice(label);
    put_hello(&mut bytes, hello);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(nonce);
    blake3::keyed_hash(key, &bytes)
}

/// Bytes that have come and are not decoded, and bytes that are to go.
#[derive(Debug, Default)]
struct Buffers {
    input: Vec<u8>,
    used: usize,
    output: Output,
}

impl Buffers {
    fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.used);
        self.used = 0;
        self.input.extend_from_slice(bytes);
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, Error> {
        let Some((frame, used)) = Frame::decode(&self.input[self.used..])? else {
            return Ok(None);
        };
        self.used += used;
        Ok(Some(frame))
    }

    fn send(&mut self, frame: &Frame) {
        frame.encode(self.output.end());
    }

    fn output(&self) -> &[u8] {
        self.output.bytes()
    }

    fn sent(&mut self, bytes: usize) {
        self.output.sent(bytes);
    }
}

#[cfg(test)]
mod tests;

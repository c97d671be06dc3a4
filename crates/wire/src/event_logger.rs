//! The connection between a rank and the event logger, without the socket: bytes in, events out, and back.
//!
//! ```text
//! rank                                     event logger
//! the handshake                            ↔                  (claim: acknowledged deliveries)
//!                                 ← Welcome  stored
//! Log    first_rclock deliveries           →   ← Ack  rclock
//! Clocks clocks                            ↔   Clocks  clocks      (newly stable deliveries, of any rank)
//! Forget rclock                            →   ← Ack  rclock       (an image covers so many deliveries)
//! Query  above_rclock                      →   ← Answer  first_rclock more records …  (or NotWhole)
//! ```
//!
//! [Frames](crate::frame) and the [handshake](crate::handshake) are those of every server. An event logger may connect
//! to another, as rank [`LOGGER`] plus its number; it says Clocks and nothing else. [`Client`] is the rank's half,
//! [`LoggerSide`] the event logger's.

mod client;
mod logger_side;

pub use client::{Client, ClientEvent, Identity};
pub use logger_side::{LoggerSide, Request};

pub use crate::frame::Error;
use crate::frame::{Reader, begin, end, split};
pub use crate::handshake::LOGGER;
use crate::handshake::{NAMES as WORDS, OWN, Word};
use crate::output::Output;
use resurgo_protocol::{Rank, Recorded};

/// The most deliveries in one Log or Answer.
pub const MAX_RECORDS: usize = 4096;
/// Bytes of one delivery in an Answer, and in a Log, which also says what the delivery depends on.
const RECORD_BYTES: usize = 12;
pub const DELIVERY_BYTES: usize = RECORD_BYTES + 8;
/// Bytes of one clock.
const CLOCK_BYTES: usize = 12;
/// The most bytes of a frame after its length.
pub const MAX_FRAME: usize = 1 + 8 + 1 + 4 + MAX_RECORDS * DELIVERY_BYTES;

/// A delivery to store, and its antecedent (`resurgo_protocol::causal::Event`): how many deliveries its source had made
/// when it sent the message. It is 0 where that does not matter.
pub type Delivery = (Recorded, u64);

/// One frame of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Handshake(Word),
    Welcome {
        stored: u64,
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
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Welcome", "Log", "Ack", "Query", "Answer", "NotWhole", "Clocks", "Forget",
];

impl Frame {
    const fn kind(&self) -> u8 {
        match self {
            Self::Handshake(word) => word.kind(),
            Self::Welcome { .. } => OWN,
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
        let start = begin(out, self.kind());
        match self {
            Self::Handshake(word) => word.put(out),
            Self::Welcome { stored } | Self::NotWhole { stored } => out.extend_from_slice(&stored.to_le_bytes()),
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
        end(out, start, 0);
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or None while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Error> {
        let Some((kind, reader)) = split(bytes, MAX_FRAME, &NAMES)? else {
            return Ok(None);
        };
        let used = 5 + reader.bytes.len();
        Ok(Some((Self::decode_fields(kind, reader)?, used)))
    }

    fn decode_fields(kind: u8, mut reader: Reader<'_>) -> Result<Self, Error> {
        let frame = match kind {
            ..OWN => Self::Handshake(Word::take(kind, &mut reader)?),
            OWN => Self::Welcome { stored: reader.u64()? },
            6 => Self::Log {
                first_rclock: reader.u64()?,
                deliveries: entries(&mut reader, DELIVERY_BYTES, |reader| {
                    Ok((take_record(reader)?, reader.u64()?))
                })?,
            },
            7 => Self::Ack { rclock: reader.u64()? },
            8 => Self::Query {
                above_rclock: reader.u64()?,
            },
            9 => Self::Answer {
                first_rclock: reader.u64()?,
                more: reader.bool()?,
                records: entries(&mut reader, RECORD_BYTES, take_record)?,
            },
            10 => Self::NotWhole { stored: reader.u64()? },
            11 => Self::Clocks {
                clocks: entries(&mut reader, CLOCK_BYTES, |reader| Ok((reader.u32()?, reader.u64()?)))?,
            },
            _ => Self::Forget { rclock: reader.u64()? },
        };
        reader.end()?;
        Ok(frame)
    }
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

fn take_record(reader: &mut Reader) -> Result<Recorded, Error> {
    Ok(Recorded {
        source: reader.u32()?,
        polls: reader.u64()?,
    })
}

/// The rest of the frame: a count, and that many entries of `bytes` bytes.
fn entries<T>(
    reader: &mut Reader,
    bytes: usize,
    read: impl Fn(&mut Reader) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = reader.u32()? as usize;
    if count > MAX_RECORDS || reader.bytes.len() != count * bytes {
        return Err(reader.malformed());
    }
    (0..count).map(|_| read(reader)).collect()
}

/// Received bytes that are not decoded, and bytes to send.
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

//! What goes between the agents of two nodes: a copy of each message log that a rank there reads, and of the words that peers read.
//!
//! Frames as in [`crate::frame`]. The node with the higher number calls, and both prove the job's key ([`crate::handshake`]). Then
//! each says how far its copies go, so that the other goes on there, and then what is new:
//!
//! ```text
//! 5  Epoch     u64 number: what follows belongs to it. One begins whenever logs are emptied on all nodes
//! 6  Position  u32 source, u32 destination, u64 reference, u32 place: the sender's copy of this channel is complete up to here
//! 7  Begin     nothing: all positions have been told
//! 8  Head      u32 source, u64 reference, u64 begun: a segment begins, in which nothing lies yet; so many messages begin before it
//! 9  Run       u32 source, u32 destination, u64 reference, u32 place, u64 next, bytes: entries from this place of the segment on.
//!              next 0: the log ends behind them, for now; else the last one leads to that segment
//! 10 Tell      u32 rank, u8 table, u32 index, u64 value: a word of that rank's arena has changed ([`Table`])
//! 11 Flush     u64 number: asks for Flushed when everything before it lies in the memory
//! 12 Flushed   u64 number
//! ```
//!
//! References and places are those of the source's arena ([`crate::node_memory`]), the same on every node. All integers are
//! little-endian.

use crate::frame::{Error, Reader, begin, end, split};
use crate::handshake::{NAMES as WORDS, OWN, Word};
use crate::node_memory::{CutTable, Layout, SEGMENT, arena};

/// Most bytes of a frame: a segment and what stands before it.
pub const MAX_FRAME: usize = SEGMENT + 64;
/// Bytes of a Run before its entries, with the length.
const RUN_HEAD: usize = 5 + 4 + 4 + 8 + 4 + 8;

const NAMES: [&str; 12] = [
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Epoch", "Position", "Begin", "Head", "Run", "Tell", "Flush", "Flushed",
];

/// Where a word lies in the arena of its rank. For each: who reads it from afar, and what if it comes late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Reference of the first segment of the channel to rank `index`. The receiver's new life begins there: it is told behind the
    /// segment's Head, and before anything takes the place of a segment that was in front of it.
    Channel,
    /// Segments of the channel from rank `index` that this rank has read. The sender uses them again, later.
    Consumed,
    /// Messages sent on the channel to rank `index` when a wave stopped this rank. The receiver compares it with what it has: it must not
    /// be that of an earlier wave, so it is flushed before anybody is told that the rank has stopped.
    Announced,
    /// Serial of the segment of the channel from rank `index` that this rank's oldest image was reading, in this slot. The sender forgets
    /// what is before it, later. Told before the Oldest that leads there.
    Cursor(u8),
    /// [`arena::OLDEST_IMAGE`].
    Oldest,
    /// [`arena::IMAGE_NUMBERS`] of this slot, told behind its cursors. The sender's agent looks from where on a wave needs its logs; as long
    /// as it does not find that it takes more.
    Number(u8),
    /// A table of the rank's last cut. Its receiver's agent looks there for what was in transit, and the sender of what it receives for
    /// what must stay: they are told before [`Table::CutWave`], and that before Consumed goes on.
    Cut(CutTable),
    /// [`arena::CUT`], to rank `index`.
    CutWave,
}

impl Table {
    fn number(self) -> u8 {
        match self {
            Table::Channel => 0,
            Table::Consumed => 1,
            Table::Announced => 2,
            Table::Oldest => 3,
            Table::CutWave => 4,
            Table::Cut(table) => 8 + table as u8,
            Table::Cursor(slot) => 16 + slot,
            Table::Number(slot) => 32 + slot,
        }
    }

    fn numbered(number: u8) -> Option<Table> {
        Some(match number {
            0 => Table::Channel,
            1 => Table::Consumed,
            2 => Table::Announced,
            3 => Table::Oldest,
            4 => Table::CutWave,
            8..12 => Table::Cut(CutTable::ALL[usize::from(number - 8)]),
            16.. if usize::from(number) < 16 + arena::IMAGE_SLOTS => Table::Cursor(number - 16),
            32.. if usize::from(number) < 32 + arena::IMAGE_SLOTS => Table::Number(number - 32),
            _ => return None,
        })
    }

    /// Offset in the arena of its word number `index`.
    pub fn place(self, layout: &Layout, index: usize) -> usize {
        match self {
            Table::Channel => arena::CHANNELS + index * 8,
            Table::Consumed => layout.consumed() + index * 8,
            Table::Announced => layout.announced() + index * 8,
            Table::Cursor(slot) => layout.cursors(slot.into()) + index * 8,
            Table::Oldest => arena::OLDEST_IMAGE.at,
            Table::Number(slot) => arena::IMAGE_NUMBERS.item(slot.into()).at,
            Table::Cut(table) => layout.cut(table) + index * 8,
            Table::CutWave => arena::CUT.at,
        }
    }
}

/// One frame. Entries are borrowed from where they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    Handshake(Word),
    Epoch {
        number: u64,
    },
    Position {
        source: u32,
        destination: u32,
        reference: u64,
        place: u32,
    },
    Begin,
    Head {
        source: u32,
        reference: u64,
        begun: u64,
    },
    Run {
        source: u32,
        destination: u32,
        reference: u64,
        place: u32,
        next: u64,
        entries: &'a [u8],
    },
    Tell {
        rank: u32,
        table: Table,
        index: u32,
        value: u64,
    },
    Flush {
        number: u64,
    },
    Flushed {
        number: u64,
    },
}

impl Frame<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Handshake(word) => word.kind(),
            Self::Epoch { .. } => OWN,
            Self::Position { .. } => 6,
            Self::Begin => 7,
            Self::Head { .. } => 8,
            Self::Run { .. } => 9,
            Self::Tell { .. } => 10,
            Self::Flush { .. } => 11,
            Self::Flushed { .. } => 12,
        }
    }

    /// The frame's name in messages.
    pub const fn name(&self) -> &'static str {
        NAMES[self.kind() as usize - 1]
    }

    /// Appends the frame with its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin(out, self.kind());
        let mut put = |words: &[u64], bytes: &[usize]| {
            let words = words.iter().zip(bytes);
            words.for_each(|(word, bytes)| out.extend_from_slice(&word.to_le_bytes()[..*bytes]));
        };
        match self {
            Self::Handshake(word) => word.put(out),
            Self::Epoch { number } | Self::Flush { number } | Self::Flushed { number } => put(&[*number], &[8]),
            Self::Position {
                source,
                destination,
                reference,
                place,
            } => put(
                &[(*source).into(), (*destination).into(), *reference, (*place).into()],
                &[4, 4, 8, 4],
            ),
            Self::Begin => {}
            Self::Head {
                source,
                reference,
                begun,
            } => put(&[(*source).into(), *reference, *begun], &[4, 8, 8]),
            Self::Run {
                source,
                destination,
                reference,
                place,
                next,
                entries,
            } => {
                put(
                    &[
                        (*source).into(),
                        (*destination).into(),
                        *reference,
                        (*place).into(),
                        *next,
                    ],
                    &[4, 4, 8, 4, 8],
                );
                out.extend_from_slice(entries);
            }
            Self::Tell {
                rank,
                table,
                index,
                value,
            } => put(
                &[(*rank).into(), table.number().into(), (*index).into(), *value],
                &[4, 1, 4, 8],
            ),
        }
        end(out, start, 0);
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or nothing while it is not whole.
    ///
    /// # Errors
    /// The peer says what no peer says.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Error> {
        let Some((kind, reader)) = split(bytes, MAX_FRAME, &NAMES)? else {
            return Ok(None);
        };
        let used = 5 + reader.bytes.len();
        Ok(Some((Self::decode_fields(kind, reader)?, used)))
    }

    fn decode_fields(kind: u8, mut reader: Reader<'_>) -> Result<Frame<'_>, Error> {
        let frame = match kind {
            ..OWN => Frame::Handshake(Word::take(kind, &mut reader)?),
            OWN => Frame::Epoch { number: reader.u64()? },
            6 => Frame::Position {
                source: reader.u32()?,
                destination: reader.u32()?,
                reference: reader.u64()?,
                place: reader.u32()?,
            },
            7 => Frame::Begin,
            8 => Frame::Head {
                source: reader.u32()?,
                reference: reader.u64()?,
                begun: reader.u64()?,
            },
            9 => Frame::Run {
                source: reader.u32()?,
                destination: reader.u32()?,
                reference: reader.u64()?,
                place: reader.u32()?,
                next: reader.u64()?,
                entries: std::mem::take(&mut reader.bytes),
            },
            10 => Frame::Tell {
                rank: reader.u32()?,
                table: Table::numbered(reader.array::<1>()?[0]).ok_or_else(|| reader.malformed())?,
                index: reader.u32()?,
                value: reader.u64()?,
            },
            11 => Frame::Flush { number: reader.u64()? },
            _ => Frame::Flushed { number: reader.u64()? },
        };
        reader.end()?;
        Ok(frame)
    }
}

/// Appends a Run of `bytes` bytes of entries, which `fill` writes: nothing is copied twice.
pub fn encode_run(out: &mut Vec<u8>, run: &Frame<'_>, bytes: usize, fill: impl FnOnce(&mut [u8])) {
    let start = out.len();
    run.encode(out);
    debug_assert_eq!(out.len() - start, RUN_HEAD);
    out.resize(start + RUN_HEAD + bytes, 0);
    fill(&mut out[start + RUN_HEAD..]);
    end(out, start, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_and_whole() {
        let entries = [7u8; 96];
        let run = Frame::Run {
            source: 1,
            destination: 2,
            reference: 3 << 40,
            place: 64,
            next: 5,
            entries: &entries,
        };
        let mut all = vec![
            Frame::Epoch { number: 1 << 50 },
            Frame::Position {
                source: 1,
                destination: 2,
                reference: 3,
                place: 4,
            },
            Frame::Begin,
            Frame::Head {
                source: 1,
                reference: 2,
                begun: 3,
            },
            run.clone(),
            Frame::Flush { number: 1 },
            Frame::Flushed { number: 2 },
        ];
        let tables = [
            Table::Channel,
            Table::Consumed,
            Table::Announced,
            Table::Oldest,
            Table::CutWave,
            Table::Cut(CutTable::Reading),
            Table::Cut(CutTable::WritingAt),
            Table::Cursor(0),
            Table::Cursor(7),
            Table::Number(0),
            Table::Number(7),
        ];
        all.extend(tables.map(|table| Frame::Tell {
            rank: 1,
            table,
            index: 2,
            value: u64::MAX,
        }));
        for frame in &all {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for length in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..length]).unwrap(), None, "{}", frame.name());
            }
            let length = bytes.len();
            bytes.push(9);
            assert_eq!(Frame::decode(&bytes).unwrap(), Some((frame.clone(), length)));
        }
        let mut bytes = Vec::new();
        let Frame::Run {
            source,
            destination,
            reference,
            place,
            next,
            ..
        } = run
        else {
            unreachable!()
        };
        let head = Frame::Run {
            source,
            destination,
            reference,
            place,
            next,
            entries: &[],
        };
        encode_run(&mut bytes, &head, 96, |to| to.fill(7));
        assert_eq!(Frame::decode(&bytes).unwrap().unwrap().0, all[4]);
    }

    #[test]
    fn what_no_peer_says_is_refused() {
        let mut bytes = Vec::new();
        let table = Table::Cursor(7);
        Frame::Tell {
            rank: 1,
            table,
            index: 2,
            value: 3,
        }
        .encode(&mut bytes);
        bytes[9] = 24;
        assert_eq!(Frame::decode(&bytes), Err(Error::Malformed { frame: "Tell" }));
        let long = (MAX_FRAME as u32 + 1).to_le_bytes();
        assert!(matches!(Frame::decode(&long), Err(Error::FrameTooLong { .. })));
    }
}

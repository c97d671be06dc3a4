//! The connection between the agents of two nodes. It carries a copy of each message log that a rank of the other node
//! reads, and of the words that its peers read.
//!
//! Frames as in [`crate::frame`]. The node with the higher number calls, and both prove the job's key
//! ([`crate::handshake`]). Then each says how far its copies go, so that the other goes on there. Then each sends its
//! news:
//!
//! ```text
//! 5  Epoch     u64 number: what follows belongs to it. One begins whenever logs are emptied on all nodes
//! 6  Position  u32 source, u32 destination, u64 reference, u32 place: the sender's copy of this channel ends here
//! 7  Begin     nothing: all positions have been told
//! 8  Head      u32 source, u64 reference, u64 begun: an empty segment begins; so many messages begin before it
//! 9  Run       u32 source, u32 destination, u64 reference, u32 place, u64 next, bytes: entries from this place of the
//!              segment on. next 0: the log ends behind them, for now; else the last one leads to that segment
//! 10 Tell      u32 rank, u8 table, u32 index, u64 value: a word of that rank's arena has changed ([`Table`])
//! 11 Flush     u64 number: asks for Flushed when everything before it lies in the memory
//! 12 Flushed   u64 number
//! 13 Ranks     u32 count: the next frames are of so many ranks. It comes first, and again when ranks are spawned
//! 14 Lacks     u32 source: this rank comes from a lost node. Asks for the other node's copies of its logs
//! 15 Returned  u32 source: these have been told, as Head, Run and Tell, and what is known there, as Known
//! 16 Hand      u32 source, u32 destination, u64 generation, u64 reference, u32 place: from here on the ranks' own
//!              connection carries the channel ([`crate::direct`]). First word of such a connection, too
//! 17 Back      u32 source, u32 destination, u64 generation: it no longer does; asks for Behind
//! 18 Behind    u32 source, u32 destination, u64 generation, u64 reference, u32 place: the receiver has come so far,
//!              and takes nothing more from that connection
//! 19 Known     bytes: deliveries that are known there, as in [`crate::node_memory::event_words`] (causal)
//! ```
//!
//! References and places are those of the source's arena ([`crate::node_memory`]), the same on every node. All integers
//! are little-endian.

use crate::frame::{Error, Reader, begin, end, split};
use crate::handshake::{NAMES as WORDS, OWN, Word};
use crate::node_memory::{CutTable, Layout, SEGMENT, arena};

/// TCP_RTO_MAX_MS of Linux 6.15 and later: the longest pause before the kernel sends again what has not arrived.
pub const TCP_RTO_MAX_MS: i32 = 44;
/// That pause on connections between nodes, in milliseconds: the shortest that the kernel allows.
pub const LONGEST_PAUSE: u32 = 1_000;
/// How long the kernel then tries (TCP_USER_TIMEOUT), in milliseconds: as long as without that limit.
pub const TRIES: u32 = 924_600;

/// Most bytes of a frame: a segment and what stands before it.
pub const MAX_FRAME: usize = SEGMENT + 64;
const RUN: u8 = 9;
/// Bytes of a Run before its entries, with the length.
pub const RUN_HEAD: usize = 5 + 4 + 4 + 8 + 4 + 8;

const NAMES: [&str; 19] = [
    WORDS[0], WORDS[1], WORDS[2], WORDS[3], "Epoch", "Position", "Begin", "Head", "Run", "Tell", "Flush", "Flushed",
    "Ranks", "Lacks", "Returned", "Hand", "Back", "Behind", "Known",
];

/// Where a word lies in the arena of its rank. For each: its reader on another node, and the effect if it comes late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Reference of the first segment of the channel to rank `index`. The receiver's new life begins there. The mover
    /// tells it after the segment's Head, and before anything takes the place of a segment in front of it.
    Channel,
    /// Segments of the channel from rank `index` that this rank has read. The sender uses them again, later. Where
    /// nodes are lost with logs: messages of that rank in this rank's record. A later life of the sender waits for
    /// that.
    Consumed,
    /// Messages sent on the channel to rank `index` when a wave stopped this rank. The receiver compares it with its
    /// own count. It must not be that of an earlier wave, so the mover flushes it before it reports the stopped rank.
    Announced,
    /// Serial of the segment of the channel from rank `index` that this rank's oldest image was reading, in this slot.
    /// The sender forgets segments before it, later. The mover tells it before the Oldest that leads there.
    Cursor(u8),
    /// [`arena::IMAGE_CLOCKS`] of this slot. Where messages carry the order of deliveries, ranks forget this rank's
    /// deliveries before that, later. The mover tells it before the Oldest that leads there.
    Clock(u8),
    /// [`arena::OLDEST_IMAGE`].
    Oldest,
    /// [`arena::DOOR`]. The sender calls a rank there, later.
    Door,
    /// [`arena::IMAGE_NUMBERS`] of this slot, told after its cursors. The sender's agent finds there from where on a
    /// wave needs its logs. Until it does, it takes more.
    Number(u8),
    /// A table of the rank's last cut. The agent of its receiver looks there for messages in transit. The sender of its
    /// messages looks there for segments that must stay. The mover tells it before [`Table::CutWave`], and that before
    /// Consumed goes on.
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
            Table::Door => 5,
            Table::Cursor(slot) => 16 + slot,
            Table::Number(slot) => 32 + slot,
            Table::Clock(slot) => 48 + slot,
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
            5 => Table::Door,
            16.. if usize::from(number) < 16 + arena::IMAGE_SLOTS => Table::Cursor(number - 16),
            32.. if usize::from(number) < 32 + arena::IMAGE_SLOTS => Table::Number(number - 32),
            48.. if usize::from(number) < 48 + arena::IMAGE_SLOTS => Table::Clock(number - 48),
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
            Table::Door => arena::DOOR.at,
            Table::Number(slot) => arena::IMAGE_NUMBERS.item(slot.into()).at,
            Table::Clock(slot) => arena::IMAGE_CLOCKS.item(slot.into()).at,
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
    Ranks {
        count: u32,
    },
    Lacks {
        source: u32,
    },
    Returned {
        source: u32,
    },
    Hand {
        source: u32,
        destination: u32,
        generation: u64,
        reference: u64,
        place: u32,
    },
    Back {
        source: u32,
        destination: u32,
        generation: u64,
    },
    Behind {
        source: u32,
        destination: u32,
        generation: u64,
        reference: u64,
        place: u32,
    },
    Known {
        events: &'a [u8],
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
            Self::Ranks { .. } => 13,
            Self::Lacks { .. } => 14,
            Self::Returned { .. } => 15,
            Self::Hand { .. } => 16,
            Self::Back { .. } => 17,
            Self::Behind { .. } => 18,
            Self::Known { .. } => 19,
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

    /// The same for a Run whose entries, `more` bytes, the caller sends after it in another way.
    pub fn encode_before(&self, out: &mut Vec<u8>, more: usize) {
        let start = begin(out, self.kind());
        let mut put = |words: &[u64], bytes: &[usize]| {
            let words = words.iter().zip(bytes);
            words.for_each(|(word, bytes)| out.extend_from_slice(&word.to_le_bytes()[..*bytes]));
        };
        match self {
            Self::Handshake(word) => word.put(out),
            Self::Epoch { number } | Self::Flush { number } | Self::Flushed { number } => put(&[*number], &[8]),
            Self::Ranks { count } => put(&[(*count).into()], &[4]),
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
            Self::Known { events } => out.extend_from_slice(events),
            Self::Lacks { source } | Self::Returned { source } => put(&[(*source).into()], &[4]),
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
                let (source, destination, place) = (u64::from(*source), u64::from(*destination), u64::from(*place));
                put(&[source, destination, *reference, place, *next], &[4, 4, 8, 4, 8]);
                out.extend_from_slice(entries);
            }
            Self::Hand {
                source,
                destination,
                generation,
                reference,
                place,
            }
            | Self::Behind {
                source,
                destination,
                generation,
                reference,
                place,
            } => put(
                &[
                    (*source).into(),
                    (*destination).into(),
                    *generation,
                    *reference,
                    (*place).into(),
                ],
                &[4, 4, 8, 8, 4],
            ),
            Self::Back {
                source,
                destination,
                generation,
            } => put(&[(*source).into(), (*destination).into(), *generation], &[4, 4, 8]),
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
        end(out, start, more);
    }

    /// The Run at the beginning of `bytes`, as if it had no entries, and how many bytes of entries it has. At least
    /// [`RUN_HEAD`] bytes must be there. Nothing if it is another frame.
    ///
    /// # Errors
    /// As of [`Self::decode`].
    pub fn decode_run_head(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Error> {
        let (Some((length, _)), Some(head)) = (bytes.split_first_chunk::<4>(), bytes.get(..RUN_HEAD)) else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(Error::FrameTooLong { bytes: length as u64 });
        }
        if head[4] != RUN || length + 4 < RUN_HEAD {
            return Ok(None);
        }
        let reader = Reader {
            frame: NAMES[RUN as usize - 1],
            bytes: &head[5..],
        };
        Ok(Some((Self::decode_fields(RUN, reader)?, length + 4 - RUN_HEAD)))
    }

    /// Takes the first frame off `bytes`: the frame and the bytes used, or nothing while it is not whole.
    ///
    /// # Errors
    /// The bytes are no valid frame.
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
            19 => Frame::Known {
                events: std::mem::take(&mut reader.bytes),
            },
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
            12 => Frame::Flushed { number: reader.u64()? },
            13 => Frame::Ranks { count: reader.u32()? },
            14 => Frame::Lacks { source: reader.u32()? },
            15 => Frame::Returned { source: reader.u32()? },
            16 => Frame::Hand {
                source: reader.u32()?,
                destination: reader.u32()?,
                generation: reader.u64()?,
                reference: reader.u64()?,
                place: reader.u32()?,
            },
            17 => Frame::Back {
                source: reader.u32()?,
                destination: reader.u32()?,
                generation: reader.u64()?,
            },
            _ => Frame::Behind {
                source: reader.u32()?,
                destination: reader.u32()?,
                generation: reader.u64()?,
                reference: reader.u64()?,
                place: reader.u32()?,
            },
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
            Frame::Ranks { count: 3 },
            Frame::Lacks { source: 3 },
            Frame::Returned { source: 4 },
            Frame::Known { events: &[7; 64] },
            Frame::Hand {
                source: 1,
                destination: 2,
                generation: 3 << 40,
                reference: 4 << 40,
                place: 5,
            },
            Frame::Back {
                source: 1,
                destination: 2,
                generation: 3,
            },
            Frame::Behind {
                source: 1,
                destination: 2,
                generation: 3,
                reference: 4,
                place: 5,
            },
        ];
        let tables = [
            Table::Channel,
            Table::Consumed,
            Table::Announced,
            Table::Oldest,
            Table::CutWave,
            Table::Cut(CutTable::Reading),
            Table::Cut(CutTable::WritingAt),
            Table::Door,
            Table::Cursor(0),
            Table::Cursor(7),
            Table::Number(0),
            Table::Number(7),
            Table::Clock(0),
            Table::Clock(7),
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

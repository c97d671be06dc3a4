//! What is in transit in a wave that stops no rank: each channel's log between the receiver's cut and the sender's cut.
//! The agent takes it out of the node memory when all ranks are copied, and puts it into an empty one before they
//! return. With image files it is in a file of its own beside theirs.
//!
//! ```text
//! 0   8    "resurgoW"
//! 8   u32  format 1
//! 12  u32  channels
//! 16  u64  number of the wave
//! 24  ...  channels: u32 source, u32 destination, u32 pieces; then for each piece u32 length and so many bytes: entries of
//!          the log as they lie in one segment
//! end-32   BLAKE3 of all before
//! ```
//!
//! Numbers are little-endian.

use std::io;

use resurgo_wire::entry::{self, ALIGN, Kind, Mark};
use resurgo_wire::node_memory::{self as nm, CutTable, SEGMENT, arena, header};

use super::node::NodeMemory;

const MAGIC: &[u8; 8] = b"resurgoW";
const FORMAT: u32 = 1;
const HASH: usize = 32;

/// What is in transit between all ranks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InTransit {
    channels: Vec<Channel>,
}

#[derive(Debug, PartialEq, Eq)]
struct Channel {
    source: u32,
    destination: u32,
    /// Entries, segment by segment.
    pieces: Vec<Vec<u8>>,
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    reference: u64,
    offset: usize,
}

pub(super) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl InTransit {
    /// Adds what was in transit to other ranks.
    pub fn add(&mut self, other: InTransit) {
        self.channels.extend(other.channels);
    }

    pub fn encode(&self, wave: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
        word(&mut bytes, FORMAT);
        word(&mut bytes, self.channels.len() as u32);
        bytes.extend(wave.to_le_bytes());
        for channel in &self.channels {
            word(&mut bytes, channel.source);
            word(&mut bytes, channel.destination);
            word(&mut bytes, channel.pieces.len() as u32);
            for piece in &channel.pieces {
                word(&mut bytes, piece.len() as u32);
                bytes.extend(piece);
            }
        }
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    /// What was in transit in wave `wave` of `ranks` ranks: the parts of one node, or of several, one after the other.
    pub fn decode(bytes: &[u8], wave: u64, ranks: usize) -> io::Result<InTransit> {
        let (mut rest, mut all) = (bytes, InTransit::default());
        loop {
            all.add(InTransit::decode_part(&mut rest, wave, ranks)?);
            if rest.is_empty() {
                return Ok(all);
            }
        }
    }

    fn decode_part(rest: &mut &[u8], wave: u64, ranks: usize) -> io::Result<InTransit> {
        let whole = *rest;
        if take(rest, MAGIC.len())? != MAGIC || take_u32(rest)? != FORMAT {
            return Err(damaged("another version of resurgo has written the file"));
        }
        let count = take_u32(rest)?;
        if take(rest, 8)? != wave.to_le_bytes() {
            return Err(damaged("the file is of another wave"));
        }
        let mut channels = Vec::new();
        for _ in 0..count {
            let (source, destination) = (take_u32(rest)?, take_u32(rest)?);
            if source.max(destination) as usize >= ranks {
                return Err(damaged("there is no such rank"));
            }
            let mut pieces = Vec::new();
            for _ in 0..take_u32(rest)? {
                let length = take_u32(rest)? as usize;
                if length > SEGMENT - 2 * ALIGN || !length.is_multiple_of(ALIGN) {
                    return Err(damaged("a piece has a wrong length"));
                }
                pieces.push(take(rest, length)?.to_vec());
            }
            channels.push(Channel {
                source,
                destination,
                pieces,
            });
        }
        let content = &whole[..whole.len() - rest.len()];
        match blake3::hash(content) == *take(rest, HASH)? {
            true => Ok(InTransit { channels }),
            false => Err(damaged("the checksum is wrong")),
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> io::Result<&'a [u8]> {
    rest.split_off(..length).ok_or_else(|| damaged("the file is too short"))
}

fn take_u32(rest: &mut &[u8]) -> io::Result<u32> {
    let word = take(rest, 4)?.first_chunk::<4>();
    word.map(|word| u32::from_le_bytes(*word))
        .ok_or_else(|| damaged("the file is too short"))
}

impl NodeMemory {
    /// How far the waves that stop no rank have come.
    pub fn set_waves(&self, asked: u64, over: u64) -> io::Result<()> {
        self.set_header(header::WAVES_ASKED, asked)?;
        self.set_header(header::WAVES_OVER, over)
    }

    /// What is in transit in wave `wave` to ranks on this node. All `ranks` ranks are copied, or had ended before, and
    /// no segment that it needs is reused yet.
    ///
    /// # Errors
    /// A rank has written something else than it should.
    pub fn in_transit(
        &self,
        ranks: usize,
        wave: u64,
        is_here: impl Fn(usize) -> bool,
        has_ended: impl Fn(usize) -> bool,
    ) -> io::Result<InTransit> {
        if !(0..ranks).any(&is_here) {
            return Ok(InTransit::default());
        }
        let tables = |rank: usize, at: CutTable, offset: CutTable| -> io::Result<Vec<Place>> {
            let references = self.table(self.layout.arena(rank) + self.layout.cut(at), ranks)?;
            let offsets = self.table(self.layout.arena(rank) + self.layout.cut(offset), ranks)?;
            let places = references.into_iter().zip(offsets);
            let place = |(reference, offset): (u64, u64)| Place {
                reference,
                offset: offset as usize,
            };
            Ok(places.map(place).collect())
        };
        let mut cuts = Vec::new();
        for rank in 0..ranks {
            let cut = self.arena(rank, arena::CUT)?;
            cuts.push(match cut == wave {
                true => Some((
                    tables(rank, CutTable::Reading, CutTable::ReadingAt)?,
                    tables(rank, CutTable::Writing, CutTable::WritingAt)?,
                )),
                false if has_ended(rank) => None,
                false => {
                    return Err(damaged(&format!(
                        "rank {rank} has noted its channels for wave {cut} and not for wave {wave}"
                    )));
                }
            });
        }
        let mut channels = Vec::new();
        for (source, of_source) in cuts.iter().enumerate() {
            // Who has ended reads nothing any more.
            let reading = cuts
                .iter()
                .enumerate()
                .filter_map(|(rank, cut)| Some((rank, &cut.as_ref()?.0)));
            for (destination, from) in reading.filter(|(rank, _)| is_here(*rank)) {
                let end = of_source.as_ref().map(|(_, writing)| writing[destination]);
                let from = from[source];
                let pieces = self.between((source, is_here(source)), destination, from, end)?;
                if !pieces.is_empty() {
                    channels.push(Channel {
                        source: source as u32,
                        destination: destination as u32,
                        pieces,
                    });
                }
            }
        }
        Ok(InTransit { channels })
    }

    /// The entries of a channel between two places, segment by segment. `source`: the rank, and whether its log is this
    /// node's own and not a copy. Without an `end` all that it has: the sender has ended.
    fn between(
        &self,
        (source, is_own): (usize, bool),
        destination: usize,
        from: Place,
        end: Option<Place>,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut pieces = Vec::new();
        let mut at = from;
        if at.reference == 0 {
            let first = self.channel_word(source, destination);
            (at.reference, at.offset) = (self.read_u64(first)?, ALIGN);
        }
        if end.map_or(at.reference, |end| end.reference) == 0 {
            // The sender had sent nothing.
            return Ok(pieces);
        }
        loop {
            let segment = self.kept_segment(source, is_own, at.reference)?;
            let (stop, next) = match end.filter(|end| end.reference == at.reference) {
                Some(end) => (end.offset, None),
                None => to_jump(&segment, at.offset)?,
            };
            if next.is_none() && end.is_some_and(|end| end.reference != at.reference) {
                return Err(damaged("a log ends too early"));
            }
            let entries = segment
                .get(at.offset..stop)
                .ok_or_else(|| damaged("a log goes beyond its segment"))?;
            if !entries.is_empty() {
                pieces.push(entries.to_vec());
            }
            let Some(next) = next else {
                return Ok(pieces);
            };
            (at.reference, at.offset) = (next, ALIGN);
        }
    }

    /// A segment that the log of `source` must still have.
    fn kept_segment(&self, source: usize, is_own: bool, reference: u64) -> io::Result<Vec<u8>> {
        if reference == 0 {
            return Err(damaged("a log ends too early"));
        }
        let (serial, slot) = nm::dereference(reference);
        let arena = self.layout.arena(source);
        let lies_there = |at: usize| self.read_u64(at).map(|there| there == serial + 1);
        if slot >= self.layout.log_segments || (is_own && !lies_there(arena + self.layout.serials() + slot * 8)?) {
            return Err(damaged(&format!(
                "segment {serial} of rank {source}'s log has been used again too early"
            )));
        }
        let mut bytes = vec![0; SEGMENT];
        let offset = arena + self.layout.segments() + slot * SEGMENT;
        self.read(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Puts what is in transit to this node's ranks into their channels: all ranks have ended, and the memory is empty.
    pub fn put_in_transit(&self, what: &InTransit, is_here: impl Fn(usize) -> bool) -> io::Result<()> {
        let ranks = what.channels.iter().map(|channel| channel.source).max();
        for source in (0..ranks.map_or(0, |most| most as usize + 1)).filter(|source| is_here(*source)) {
            let arena = self.layout.arena(source);
            // Segments and their slots are numbered in order of arrival.
            let mut taken = 0;
            for channel in what.channels.iter().filter(|channel| channel.source as usize == source) {
                let destination = channel.destination as usize * 8;
                let first = taken;
                let mut place = ALIGN;
                for (index, piece) in channel.pieces.iter().enumerate() {
                    if taken == self.layout.log_segments {
                        return Err(damaged("what was in transit has no room in the log"));
                    }
                    let start = arena + self.layout.segments() + taken * SEGMENT;
                    self.write(piece, start + ALIGN)?;
                    self.write_u64(arena + self.layout.serials() + taken * 8, taken as u64 + 1)?;
                    place = ALIGN + piece.len();
                    taken += 1;
                    if index + 1 < channel.pieces.len() {
                        self.write_u64(start + place + entry::TOTAL, nm::reference(taken as u64, taken))?;
                        self.write_u64(start + place, Mark::new(Kind::Jump, 0, 0, 0).0)?;
                    }
                }
                let reference = |slot: usize| nm::reference(slot as u64, slot);
                self.write_u64(arena + arena::CHANNELS + destination, reference(first))?;
                let cut = |table| arena + self.layout.cut(table) + destination;
                self.write_u64(cut(CutTable::Writing), reference(taken - 1))?;
                self.write_u64(cut(CutTable::WritingAt), place as u64)?;
            }
            self.set_arena(source, arena::NEXT_SERIAL, taken as u64)?;
            self.set_arena(source, arena::SLOTS_TAKEN, taken as u64)?;
        }
        Ok(())
    }
}

/// The end of the entries in this segment, from `at` on, and the reference of the next segment, if there is one.
fn to_jump(segment: &[u8], mut at: usize) -> io::Result<(usize, Option<u64>)> {
    let word = |at: usize| {
        let bytes = segment.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes
            .map(|bytes| u64::from_le_bytes(*bytes))
            .ok_or_else(|| damaged("a log goes beyond its segment"))
    };
    loop {
        match word(at)? {
            0 => return Ok((at, None)),
            mark if Mark(mark).is_jump() => return Ok((at, Some(word(at + entry::TOTAL)?))),
            mark => at = entry::next(at, Mark(mark).bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::tests::job;

    fn some() -> InTransit {
        // An entry of 40 payload bytes takes two lines.
        let piece = |byte: u8, entries: usize| {
            let mut bytes = vec![byte; 128 * entries];
            for entry in 0..entries {
                let mark = Mark::new(Kind::Tagged, 0, 0, 40).0;
                bytes[128 * entry..128 * entry + 8].copy_from_slice(&mark.to_le_bytes());
            }
            bytes
        };
        let channel = |source, destination, pieces| Channel {
            source,
            destination,
            pieces,
        };
        InTransit {
            channels: vec![
                channel(0, 1, vec![piece(1, 3), piece(2, 1), piece(3, 511)]),
                channel(0, 2, vec![piece(4, 2)]),
                channel(2, 2, vec![piece(5, 1), piece(6, 1)]),
            ],
        }
    }

    #[test]
    fn what_is_put_into_the_channels_is_found_there_again() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        memory.put_in_transit(&some(), |_| true).unwrap();
        for rank in 0..3 {
            memory.set_arena(rank, arena::CUT, 7).unwrap();
        }
        assert_eq!(memory.in_transit(3, 7, |_| true, |_| false).unwrap(), some());
        let other = memory.in_transit(3, 8, |_| true, |_| false).unwrap_err().to_string();
        assert!(other.contains("wave 7 and not for wave 8"), "{other}");
        // Rank 0's second segment holds something else.
        let serial = memory.layout.arena(0) + memory.layout.serials() + 8;
        memory.write_u64(serial, 99).unwrap();
        let used = memory.in_transit(3, 7, |_| true, |_| false).unwrap_err().to_string();
        assert!(used.contains("used again too early"), "{used}");
    }

    #[test]
    fn each_node_takes_what_was_on_its_way_to_its_ranks_and_puts_back_what_they_had_sent() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        memory.put_in_transit(&some(), |_| true).unwrap();
        for rank in 0..3 {
            memory.set_arena(rank, arena::CUT, 7).unwrap();
        }
        // The serials of a copied log do not tell which segment is in which slot.
        let serial = memory.layout.arena(0) + memory.layout.serials();
        memory.write_u64(serial, 0).unwrap();
        let mut all = memory.in_transit(3, 7, |rank| rank == 1, |_| false).unwrap();
        assert!(
            all.channels.len() == 1
                && memory.in_transit(3, 7, |rank| rank == 0, |_| false).unwrap() == InTransit::default()
        );
        all.add(memory.in_transit(3, 7, |rank| rank == 2, |_| false).unwrap());
        assert_eq!(all, some());
        let other = NodeMemory::create(&job(), 3).unwrap();
        other.put_in_transit(&all, |rank| rank == 2).unwrap();
        let first = |source: usize, to: usize| {
            other
                .read_u64(other.layout.arena(source) + arena::CHANNELS + to * 8)
                .unwrap()
        };
        assert!(first(0, 1) == 0 && first(2, 2) != 0);
    }

    #[test]
    fn all_that_a_rank_has_sent_that_has_ended_is_in_transit_and_nothing_to_it() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        memory.put_in_transit(&some(), |_| true).unwrap();
        (1..3).for_each(|rank| memory.set_arena(rank, arena::CUT, 7).unwrap());
        let in_transit = |ended: usize| memory.in_transit(3, 7, |_| true, |rank| rank == ended);
        assert!(in_transit(2).is_err(), "rank 0 has not ended, nor noted this wave");
        assert_eq!(in_transit(0).unwrap(), some());
        (0..3).for_each(|rank| memory.set_arena(rank, arena::CUT, 7).unwrap());
        memory.set_arena(2, arena::CUT, 6).unwrap();
        let mut others = some();
        others.channels.truncate(1);
        assert_eq!(in_transit(2).unwrap(), others);
        // Rank 1 has sent nothing.
        memory.set_arena(2, arena::CUT, 7).unwrap();
        memory.set_arena(1, arena::CUT, 6).unwrap();
        let mut others = some();
        others.channels.remove(0);
        assert_eq!(in_transit(1).unwrap(), others);
    }

    #[test]
    fn a_log_that_makes_no_sense_is_an_error() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        memory.put_in_transit(&some(), |_| true).unwrap();
        for rank in 0..3 {
            memory.set_arena(rank, arena::CUT, 7).unwrap();
        }
        let first = memory.layout.arena(0) + memory.layout.segments() + ALIGN;
        for mark in [0, u64::MAX - 255] {
            memory.write_u64(first, mark).unwrap();
            assert!(memory.in_transit(3, 7, |_| true, |_| false).is_err());
        }
    }

    #[test]
    fn a_file_says_what_it_was_made_of_or_that_it_is_damaged() {
        let bytes = some().encode(7);
        assert_eq!(InTransit::decode(&bytes, 7, 3).unwrap(), some());
        let mut twice = some();
        twice.add(some());
        assert_eq!(InTransit::decode(&bytes.repeat(2), 7, 3).unwrap(), twice);
        assert!(InTransit::decode(&bytes, 8, 3).is_err());
        assert!(InTransit::decode(&bytes, 7, 2).is_err());
        assert!(InTransit::decode(&bytes[..bytes.len() - 1], 7, 3).is_err());
        assert!(InTransit::decode(&[], 7, 3).is_err());
        let mut flipped = bytes;
        flipped[100] ^= 1;
        assert!(InTransit::decode(&flipped, 7, 3).is_err());
    }
}

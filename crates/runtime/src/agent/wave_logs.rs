//! The parts of logs and records that a wave needs when the rest of the node memory is lost: what was under way in each
//! channel, and the segment where each image continues its record. A channel's part goes from the segment that the
//! receiver's image reads to the last message of the sender's image.
//!
//! These parts were written before the wave and stay until two later waves are in files, so ranks may run meanwhile.
//! Segments keep their places and serials, which images know.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use resurgo_wire::entry::{self, ALIGN, Kind, Mark};
use resurgo_wire::node_memory::{self as nm, SEGMENT, arena};
use serde::{Deserialize, Serialize};

use super::in_transit::damaged;
use super::node::NodeMemory;
use super::packed::{self, kind_of};

/// The words of a rank's arena that lead to its kept parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveLog {
    next_serial: u64,
    /// Segments that have had a place so far.
    taken: u64,
    /// Reference of the record's segment, 0: it is empty.
    record: u64,
    /// Of the rank's image.
    #[serde(default)]
    slot: usize,
    /// Destination and first segment of each channel that has one.
    channels: Vec<(usize, u64)>,
    /// Messages sent on each of these channels.
    #[serde(default)]
    sent: Vec<u64>,
    /// References of all kept segments.
    segments: Vec<u64>,
}

/// A copy of what a wave needs of one rank's arena: places in the memory, and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOfWave {
    log: WaveLog,
    parts: Vec<(usize, Vec<u8>)>,
}

impl LogOfWave {
    /// `image`: the rank and number of the image that needs it.
    pub fn encode(&self, image: (usize, u64)) -> io::Result<Vec<u8>> {
        let places: Vec<(usize, usize)> = self.parts.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        packed::pack(
            &(image, &self.log, places),
            self.parts.iter().map(|(_, bytes)| &bytes[..]),
        )
    }

    /// # Errors
    /// The bytes are not a log, or belong to another image.
    pub fn decode(all: &[u8], image: (usize, u64)) -> io::Result<LogOfWave> {
        type Head = ((usize, u64), WaveLog, Vec<(usize, usize)>);
        let ((of, log, places), mut parts) = packed::unpack::<Head>(all)?;
        packed::is_of(of, image)?;
        let part = |(at, length)| Ok((at, parts.next(length)?));
        let parts = places.into_iter().map(part).collect::<io::Result<_>>()?;
        Ok(LogOfWave { log, parts })
    }
}

/// The end of the part of a segment that lies before a wave.
struct Part {
    end: usize,
    /// The next segment with such a part.
    next: u64,
}

impl NodeMemory {
    /// Copies what the wave with cursors in `slots`, one per rank, needs of a rank's arena. Where a slot is not known,
    /// all messages to that rank that are still there count as needed.
    ///
    /// # Errors
    /// A rank has written something else than it should, or has no image of the wave.
    pub fn take_log(&self, rank: usize, slots: &[Option<usize>]) -> io::Result<LogOfWave> {
        let mut needed = Vec::new();
        let log = self.log_of_wave(rank, slots, &mut needed)?;
        let part = |part: Range<u64>| {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            self.read(&mut bytes, part.start as usize)?;
            Ok((part.start as usize, bytes))
        };
        let parts = needed.into_iter().map(part).collect::<io::Result<_>>()?;
        Ok(LogOfWave { log, parts })
    }

    /// Puts a log into the rank's empty arena.
    pub fn put_log(&self, rank: usize, log: &LogOfWave) -> io::Result<()> {
        let start = self.layout.arena(rank) + self.layout.segments();
        let end = start + self.layout.log_segments * SEGMENT;
        for (at, bytes) in &log.parts {
            if *at < start || *at > end || bytes.len() > end - at {
                return Err(damaged("the log of an image is of another rank"));
            }
            self.write(bytes, *at)?;
        }
        self.put_words(rank, &log.log)
    }

    /// The slot with the cursors of a rank's image `number`, as far as it has come here.
    pub fn slot_of_image(&self, rank: usize, number: u64) -> io::Result<Option<usize>> {
        let numbers = self.table(self.layout.arena(rank) + arena::IMAGE_NUMBERS.at, arena::IMAGE_SLOTS)?;
        Ok(numbers.into_iter().position(|known| known == number))
    }

    fn log_of_wave(&self, rank: usize, slots: &[Option<usize>], needed: &mut Vec<Range<u64>>) -> io::Result<WaveLog> {
        let slot = slots[rank].ok_or(io::ErrorKind::NotFound)?;
        let arena = self.layout.arena(rank);
        let taken = (self.arena(rank, arena::SLOTS_TAKEN)? as usize).min(self.layout.log_segments);
        let serials = self.table(arena + self.layout.serials(), taken)?;
        let places: HashMap<u64, usize> = serials.into_iter().zip(0..).filter(|(serial, _)| *serial > 0).collect();
        let mut log = WaveLog {
            next_serial: self.arena(rank, arena::NEXT_SERIAL)?,
            taken: taken as u64,
            record: self.arena(rank, arena::RECORD_CURSORS.item(slot))?,
            slot,
            ..WaveLog::default()
        };
        let segments = arena + self.layout.segments();
        let mut keep = |reference: u64, bytes: usize| -> io::Result<()> {
            let (serial, slot) = nm::dereference(reference);
            if places.get(&(serial + 1)) != Some(&slot) {
                let used = format!("segment {serial} of rank {rank}'s log has been used again too early");
                return Err(damaged(&used));
            }
            let start = (segments + slot * SEGMENT) as u64;
            needed.push(start..start + bytes as u64);
            log.segments.push(reference);
            Ok(())
        };
        if log.record != 0 {
            keep(log.record, SEGMENT)?;
        }
        let mut channels = Vec::new();
        let sent = self.table(arena + self.layout.announced(), slots.len())?;
        for (destination, sent) in sent.into_iter().enumerate().filter(|(_, sent)| *sent > 0) {
            let head = self.read_u64(self.channel_word(rank, destination))?;
            let cursors = slots[destination].map(|slot| self.layout.arena(destination) + self.layout.cursors(slot));
            let serial = cursors.map_or(Ok(0), |cursors| self.read_u64(cursors + rank * 8))?;
            let mut at = match serial {
                0 => head,
                serial => match places.get(&(serial + 1)) {
                    Some(slot) => nm::reference(serial, *slot),
                    None => return Err(damaged("what a receiver was reading is not there any more")),
                },
            };
            channels.push((destination, at));
            log.sent.push(sent);
            while at != 0 {
                let part = self.before_wave(segments, nm::dereference(at).1, sent)?;
                keep(at, part.end)?;
                at = part.next;
            }
        }
        log.channels = channels;
        Ok(log)
    }

    /// The part of the segment in `slot` with messages up to number `sent` of its channel.
    fn before_wave(&self, segments: usize, slot: usize, sent: u64) -> io::Result<Part> {
        let mut segment = vec![0; SEGMENT];
        self.read(&mut segment, segments + slot * SEGMENT)?;
        let word = |at: usize| packed::word(&segment, at);
        let (mut begun, mut place) = (word(0)?, ALIGN);
        loop {
            let mark = Mark(word(place)?);
            match kind_of(mark)? {
                None => return Ok(Part { end: place, next: 0 }),
                Some(Kind::Jump) => {
                    let next = word(place + entry::TOTAL)?;
                    let first = segments + nm::dereference(next.max(1)).1 * SEGMENT + ALIGN;
                    // The rest of the last message, if that is long.
                    let goes_on = begun < sent || kind_of(Mark(self.read_u64(first)?))? == Some(Kind::More);
                    return Ok(match goes_on {
                        true => Part {
                            end: place + ALIGN,
                            next,
                        },
                        false => Part { end: place, next: 0 },
                    });
                }
                Some(Kind::More | Kind::Ahead) => {}
                Some(_) if begun == sent => return Ok(Part { end: place, next: 0 }),
                Some(_) => begun += 1,
            }
            place = entry::next(place, mark.bytes());
        }
    }

    fn put_words(&self, rank: usize, log: &WaveLog) -> io::Result<()> {
        let arena = self.layout.arena(rank);
        self.set_arena(rank, arena::NEXT_SERIAL, log.next_serial)?;
        self.set_arena(rank, arena::SLOTS_TAKEN, log.taken)?;
        self.set_arena(rank, arena::DETERMINANTS, log.record)?;
        // Ranks may return to the wave again.
        self.set_arena(
            rank,
            arena::RECORD_CURSORS.item(log.slot % arena::IMAGE_SLOTS),
            log.record,
        )?;
        let sent = log.sent.iter().copied().chain(std::iter::repeat(u64::MAX));
        for ((destination, first), sent) in log.channels.iter().zip(sent) {
            self.write_u64(self.channel_word(rank, *destination), *first)?;
            self.write_u64(arena + self.layout.announced() + destination * 8, sent)?;
        }
        for reference in &log.segments {
            let (serial, slot) = nm::dereference(*reference);
            self.write_u64(arena + self.layout.serials() + slot * 8, serial + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::tests::job;

    /// A segment of rank 0's log: its first word, and entries (kind and payload bytes, or the segment that follows).
    fn put_segment(memory: &NodeMemory, serial: u64, slot: usize, begun: u64, entries: &[(Kind, u64)]) -> usize {
        let arena = memory.layout.arena(0);
        let start = arena + memory.layout.segments() + slot * SEGMENT;
        memory
            .write_u64(arena + memory.layout.serials() + slot * 8, serial + 1)
            .unwrap();
        memory.write_u64(start, begun).unwrap();
        let mut place = ALIGN;
        for (kind, what) in entries {
            let bytes = if *kind == Kind::Jump { 0 } else { *what as usize };
            if *kind == Kind::Jump {
                memory.write_u64(start + place + entry::TOTAL, *what).unwrap();
            }
            memory
                .write_u64(start + place, Mark::new(*kind, 0, 0, bytes).0)
                .unwrap();
            place = if *kind == Kind::Jump {
                place
            } else {
                entry::next(place, bytes)
            };
        }
        place
    }

    #[test]
    fn what_is_under_way_at_a_wave_is_found_and_nothing_else() {
        use Kind::{Jump, More, Tagged};
        let memory = NodeMemory::create(&job(), 2).unwrap();
        let (arena, layout) = (memory.layout.arena(0), memory.layout);
        memory.set_arena(0, arena::SLOTS_TAKEN, 5).unwrap();
        memory.set_arena(0, arena::NEXT_SERIAL, 9).unwrap();
        // The receiver's image has read messages 1 and 2; message 3 continues in the next segment; the sender sent 4
        // after the wave.
        let [old, first, second, third] =
            [(3, 2), (5, 0), (6, 4), (7, 1)].map(|(serial, slot)| nm::reference(serial, slot));
        put_segment(&memory, 3, 2, 0, &[(Tagged, 100), (Tagged, 100), (Jump, first)]);
        let first_end = put_segment(&memory, 5, 0, 2, &[(Tagged, 12_000), (More, 12_000), (Jump, second)]);
        let second_end = put_segment(&memory, 6, 4, 3, &[(More, 500), (Tagged, 40), (Jump, third)]) - 128;
        put_segment(&memory, 7, 1, 4, &[(Tagged, 40)]);
        memory.write_u64(arena + arena::CHANNELS + 8, old).unwrap();
        memory.write_u64(arena + layout.announced() + 8, 3).unwrap();
        memory.write_u64(layout.arena(1) + layout.cursors(6), 5).unwrap();
        let both = [Some(1), Some(6)];
        let nothing = WaveLog {
            slot: 6,
            ..WaveLog::default()
        };
        assert_eq!(memory.take_log(1, &both).unwrap().log, nothing);
        let needed = memory.take_log(0, &both).unwrap();
        assert_eq!(
            (&needed.log.channels, &needed.log.segments),
            (&vec![(1, first)], &vec![first, second])
        );
        let start = |slot: usize| arena + layout.segments() + slot * SEGMENT;
        let parts: Vec<(usize, usize)> = needed.parts.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(parts, [(start(0), first_end + ALIGN), (start(4), second_end)]);

        // Without the receiver's cursors all that is there counts, and the restored log can be copied again.
        memory.set_arena(0, arena::RECORD_CURSORS.item(1), third).unwrap();
        let other = NodeMemory::create(&job(), 2).unwrap();
        for (slots, segments) in [([Some(1), Some(6)], 3), ([Some(1), None], 4)] {
            let taken = memory.take_log(0, &slots).unwrap();
            assert_eq!(taken.log.segments.len(), segments);
            let bytes = taken.encode((0, 3)).unwrap();
            assert_eq!(LogOfWave::decode(&bytes, (0, 3)).unwrap(), taken);
            assert!(LogOfWave::decode(&bytes, (0, 4)).is_err());
            assert!(LogOfWave::decode(&bytes[..bytes.len() - 1], (0, 3)).is_err());
            other.reset(&job(), 2).unwrap();
            other.put_log(0, &taken).unwrap();
            assert_eq!(
                other.take_log(0, &[Some(1), None]).unwrap().log.segments,
                taken.log.segments
            );
            assert!(other.put_log(1, &taken).is_err(), "that is another rank's place");
        }
        assert!(memory.take_log(0, &[None, Some(6)]).is_err());
        memory.set_arena(0, arena::RECORD_CURSORS.item(1), 0u64).unwrap();

        let again = NodeMemory::create(&job(), 2).unwrap();
        again.put_log(0, &needed).unwrap();
        assert_eq!(again.read_u64(arena + arena::CHANNELS + 8).unwrap(), first);
        assert_eq!(again.table(arena + layout.serials(), 5).unwrap(), [6, 0, 0, 0, 7]);
        // An error reports that the sender has reused one of them.
        memory.write_u64(arena + layout.serials() + 4 * 8, 99).unwrap();
        assert!(memory.take_log(0, &both).is_err());
    }
}

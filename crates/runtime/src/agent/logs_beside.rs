//! What lies beside an image that its rank has alone, where nodes are lost with logs: what the rank had sent by then
//! and its log still has. On another node that is put behind what has come back of the log.
//!
//! It has the entries of each channel, and not the places where they lie: who reads them there knows how many messages
//! it has had.

use std::collections::{HashMap, HashSet};
use std::io;

use resurgo_wire::entry::{self, ALIGN, Kind, Mark, PAYLOAD_END, padded};
use resurgo_wire::node_memory::{self as nm, SEGMENT};

use super::in_transit::damaged;
use super::node::NodeMemory;
use super::packed::{self, kind_of, word};

/// How often a log is looked at that its rank is shortening meanwhile.
const ATTEMPTS: usize = 1000;

/// A part of a channel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Channel {
    destination: usize,
    /// So many messages begin before it.
    begun: u64,
    /// Its entries, one behind the other.
    entries: Vec<u8>,
}

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogBeside {
    channels: Vec<Channel>,
}

/// The rank and number of an image; and of each channel the destination, the messages before it, and the bytes.
type Head = ((usize, u64), Vec<(usize, u64, usize)>);

impl LogBeside {
    /// `image`: the rank and number of the image that needs it.
    pub fn encode(&self, image: (usize, u64)) -> io::Result<Vec<u8>> {
        let channels = self.channels.iter();
        let channels = channels.map(|channel| (channel.destination, channel.begun, channel.entries.len()));
        let head: Head = (image, channels.collect());
        packed::pack(&head, self.channels.iter().map(|channel| &channel.entries[..]))
    }

    /// # Errors
    /// That is no such thing, or belongs to another image.
    pub fn decode(all: &[u8], image: (usize, u64)) -> io::Result<LogBeside> {
        let ((of, places), mut parts) = packed::unpack::<Head>(all)?;
        packed::is_of(of, image)?;
        let channel = |(destination, begun, length)| {
            let entries = parts.next(length)?;
            Ok(Channel {
                destination,
                begun,
                entries,
            })
        };
        let channels = places.into_iter().map(channel).collect::<io::Result<_>>()?;
        Ok(LogBeside { channels })
    }
}

/// How far a channel has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Reached {
    /// Messages begun.
    begun: u64,
    /// All of the last one is there.
    is_whole: bool,
    /// Entries of the last one behind its first; if it is whole, Ahead entries of the next.
    more: u64,
}

impl Reached {
    /// Where a log begins: perhaps in the middle of a message that its receiver's images have.
    fn beginning(begun: u64) -> Self {
        Self {
            begun,
            is_whole: true,
            more: 0,
        }
    }

    /// The entry that follows is of this kind. Answers whether that belongs to a message which began before the log.
    fn goes_on_with(&mut self, kind: Kind) -> bool {
        let is_more = kind == Kind::More;
        if !is_more && !self.is_whole {
            (self.is_whole, self.more) = (true, 0);
        }
        is_more && self.is_whole
    }

    /// Behind that entry.
    fn step(&mut self, kind: Kind) {
        self.goes_on_with(kind);
        match kind {
            Kind::More if self.is_whole => {}
            Kind::More | Kind::Ahead => self.more += 1,
            _ => (self.begun, self.is_whole, self.more) = (self.begun + 1, false, 0),
        }
    }
}

/// What lies at a place of a log.
enum At {
    End,
    Jump(u64),
    /// An entry of so many bytes.
    Entry(Kind, usize),
}

/// Where a log ends.
#[derive(Debug, Clone, Copy)]
struct End {
    reached: Reached,
    slot: usize,
    place: usize,
}

/// The segments of a rank's arena, and where its logs end.
#[derive(Default)]
struct Found {
    used: HashSet<usize>,
    next_serial: u64,
    ends: HashMap<usize, End>,
}

impl Found {
    /// A segment in which nothing lies.
    fn take(&mut self, bound: usize) -> io::Result<(u64, usize)> {
        let slot = (0..bound).find(|slot| !self.used.contains(slot));
        let slot =
            slot.ok_or_else(|| io::Error::other("the message log has no room for what lies beside the image"))?;
        self.used.insert(slot);
        self.next_serial += 1;
        Ok((nm::reference(self.next_serial - 1, slot), slot))
    }
}

impl NodeMemory {
    /// What lies at `place` of these bytes.
    fn look(&self, bytes: &[u8], place: usize) -> io::Result<At> {
        let mark = Mark(word(bytes, place)?);
        let kind = match kind_of(mark)? {
            None => return Ok(At::End),
            Some(Kind::Jump) => return Ok(At::Jump(word(bytes, place + entry::TOTAL)?)),
            Some(kind) => kind,
        };
        let (piggyback, _) = match self.layout.piggybacks {
            true => mark.piggyback(),
            false => (0, false),
        };
        let length = entry::next(ALIGN, padded(piggyback) + mark.bytes()) - ALIGN;
        match place + length <= PAYLOAD_END.max(bytes.len()) {
            true => Ok(At::Entry(kind, length)),
            false => Err(damaged("an entry of a log goes beyond its segment")),
        }
    }

    fn segment_of(&self, rank: usize, slot: usize) -> io::Result<usize> {
        match slot < self.layout.log_segments {
            true => Ok(self.layout.arena(rank) + self.layout.segments() + slot * SEGMENT),
            false => Err(damaged("a log leads to no segment")),
        }
    }

    /// What `rank` had sent to the first `ranks` ranks by the image whose counts are in `slot`, and has not forgotten.
    /// It may be running.
    ///
    /// # Errors
    /// The rank has written something else than it should.
    pub fn take_log_beside(&self, rank: usize, slot: usize, ranks: usize) -> io::Result<LogBeside> {
        let sent = self.table(self.layout.arena(rank) + self.layout.image_sent(slot), ranks)?;
        let mut log = LogBeside::default();
        for (destination, sent) in sent.into_iter().enumerate().filter(|(_, sent)| *sent > 0) {
            let mut attempts = (0..ATTEMPTS).map(|_| self.channel_up_to(rank, destination, sent));
            let found = attempts.find_map(Result::transpose);
            log.channels
                .push(found.ok_or_else(|| damaged("a log is shortened all the time"))??);
        }
        Ok(log)
    }

    /// The entries of a channel up to its message `sent`. None: some of them have been forgotten meanwhile.
    fn channel_up_to(&self, rank: usize, destination: usize, sent: u64) -> io::Result<Option<Channel>> {
        let mut at = self.read_u64(self.channel_word(rank, destination))?;
        let (mut begun, mut entries) = (None, Vec::new());
        let mut reached = Reached::default();
        let mut segment = vec![0; SEGMENT];
        loop {
            if at == 0 {
                return Err(damaged("a log lacks what its rank had sent"));
            }
            let (serial, slot) = nm::dereference(at);
            self.read(&mut segment, self.segment_of(rank, slot)?)?;
            let serials = self.layout.arena(rank) + self.layout.serials();
            if self.read_u64(serials + slot * 8)? != serial + 1 {
                return Ok(None);
            }
            if begun.is_none() {
                reached = Reached::beginning(word(&segment, 0)?);
                begun = Some(reached.begun);
            }
            let mut place = ALIGN;
            at = loop {
                match self.look(&segment, place)? {
                    At::Jump(next) => break next,
                    At::Entry(kind, length) if reached.begun < sent || kind == Kind::More => {
                        entries.extend_from_slice(&segment[place..place + length]);
                        reached.step(kind);
                        place += length;
                    }
                    At::End if reached.begun < sent => return Err(damaged("a log lacks what its rank had sent")),
                    At::Entry(..) | At::End => {
                        let begun = begun.unwrap_or_default();
                        return Ok(Some(Channel {
                            destination,
                            begun,
                            entries,
                        }));
                    }
                }
            };
        }
    }

    /// Puts it behind what is here of the logs of `rank`, which does not run; its receivers may.
    ///
    /// # Errors
    /// It does not fit, or what is here is no log.
    pub fn put_log_beside(&self, rank: usize, ranks: usize, log: &LogBeside) -> io::Result<()> {
        let mut found = self.find_logs(rank, ranks)?;
        log.channels
            .iter()
            .try_for_each(|channel| self.append(rank, channel, &mut found))
    }

    fn find_logs(&self, rank: usize, ranks: usize) -> io::Result<Found> {
        let mut found = Found::default();
        let mut segment = vec![0; SEGMENT];
        for destination in 0..ranks {
            let mut at = self.read_u64(self.channel_word(rank, destination))?;
            let mut end: Option<End> = None;
            while at != 0 {
                let (serial, slot) = nm::dereference(at);
                self.read(&mut segment, self.segment_of(rank, slot)?)?;
                found.used.insert(slot);
                found.next_serial = found.next_serial.max(serial + 1);
                let reached = match end {
                    Some(end) => end.reached,
                    None => Reached::beginning(word(&segment, 0)?),
                };
                let mut here = End {
                    reached,
                    slot,
                    place: ALIGN,
                };
                at = loop {
                    match self.look(&segment, here.place)? {
                        At::End => break 0,
                        At::Jump(next) => break next,
                        At::Entry(kind, length) => {
                            here.reached.step(kind);
                            here.place += length;
                        }
                    }
                };
                end = Some(here);
            }
            found.ends.extend(end.map(|end| (destination, end)));
        }
        Ok(found)
    }

    fn append(&self, rank: usize, channel: &Channel, found: &mut Found) -> io::Result<()> {
        let mut reached = Reached::beginning(channel.begun);
        let mut head = None;
        let mut end = match found.ends.get(&channel.destination) {
            Some(end) if end.reached.begun < reached.begun => {
                return Err(damaged("between two parts of a log something is missing"));
            }
            Some(end) => *end,
            None => {
                let (reference, slot) = self.begin_segment(rank, reached.begun, found)?;
                head = Some(reference);
                End {
                    reached,
                    slot,
                    place: ALIGN,
                }
            }
        };
        let mut at = 0;
        while at < channel.entries.len() {
            let At::Entry(kind, length) = self.look(&channel.entries, at)? else {
                return Err(damaged("what lies beside an image is no log"));
            };
            let bytes = channel.entries.get(at..at + length);
            let bytes = bytes.ok_or_else(|| damaged("what lies beside an image is cut off"))?;
            let is_rest = reached.goes_on_with(kind);
            let is_lacking = match is_rest {
                true => head.is_some(),
                false => reached >= end.reached,
            };
            if is_lacking {
                self.append_entry(rank, bytes, &mut end, found)?;
                end.reached = reached;
                end.reached.step(kind);
            }
            reached.step(kind);
            at += length;
        }
        head.map_or(Ok(()), |head| {
            self.write_u64(self.channel_word(rank, channel.destination), head)
        })
    }

    /// What is published is written last: receivers may be reading.
    fn append_entry(&self, rank: usize, bytes: &[u8], end: &mut End, found: &mut Found) -> io::Result<()> {
        if end.place + bytes.len() > PAYLOAD_END {
            let place = self.segment_of(rank, end.slot)? + end.place;
            let (reference, slot) = self.begin_segment(rank, end.reached.begun, found)?;
            self.write_u64(place + entry::TOTAL, reference)?;
            self.write_u64(place, Mark::new(Kind::Jump, 0, 0, 0).0)?;
            (end.slot, end.place) = (slot, ALIGN);
        }
        let place = self.segment_of(rank, end.slot)? + end.place;
        self.write_u64(place + bytes.len(), 0)?;
        self.write(&bytes[8..], place + 8)?;
        self.write(&bytes[..8], place)?;
        end.place += bytes.len();
        Ok(())
    }

    fn begin_segment(&self, rank: usize, begun: u64, found: &mut Found) -> io::Result<(u64, usize)> {
        let (reference, slot) = found.take(self.layout.log_segments)?;
        let segment = self.segment_of(rank, slot)?;
        self.write_u64(segment, begun)?;
        self.write_u64(segment + ALIGN, 0)?;
        Ok((reference, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::tests::job;

    /// An entry with so many bytes, all of them `fill`.
    fn entry(kind: Kind, bytes: usize, fill: u8) -> Vec<u8> {
        let mut entry = vec![fill; entry::next(ALIGN, bytes) - ALIGN];
        entry[..8].copy_from_slice(&Mark::new(kind, 0, 0, bytes).0.to_le_bytes());
        entry
    }

    fn log(begun: u64, entries: &[Vec<u8>]) -> LogBeside {
        LogBeside {
            channels: vec![Channel {
                destination: 1,
                begun,
                entries: entries.concat(),
            }],
        }
    }

    /// As a life of rank 0 finds it: all of its segments are in use.
    fn take(memory: &NodeMemory, sent: u64) -> io::Result<LogBeside> {
        let arena = memory.layout.arena(0);
        let mut at = memory.read_u64(memory.channel_word(0, 1))?;
        while at != 0 {
            let (serial, slot) = nm::dereference(at);
            memory.write_u64(arena + memory.layout.serials() + slot * 8, serial + 1)?;
            let mut segment = vec![0; SEGMENT];
            memory.read(&mut segment, memory.segment_of(0, slot)?)?;
            let mut place = ALIGN;
            at = loop {
                match memory.look(&segment, place)? {
                    At::End => break 0,
                    At::Jump(next) => break next,
                    At::Entry(_, length) => place += length,
                }
            };
        }
        memory.write_u64(arena + memory.layout.image_sent(3) + 8, sent)?;
        memory.take_log_beside(0, 3, 2)
    }

    #[test]
    fn what_lies_beside_an_image_is_put_behind_what_has_come_back() {
        use Kind::{More, Tagged};
        // Messages 8 to 12 in five segments. The fourth of them goes on in another one.
        let entries: Vec<Vec<u8>> = [(Tagged, 40_000), (Tagged, 30_000), (More, 30_000), (Tagged, 9)]
            .into_iter()
            .chain([(Tagged, 40_000), (More, 40_000), (More, 1), (Tagged, 0)])
            .zip(1..)
            .map(|((kind, bytes), fill)| entry(kind, bytes, fill))
            .collect();
        let whole = log(7, &entries);
        let bytes = whole.encode((0, 3)).unwrap();
        assert_eq!(LogBeside::decode(&bytes, (0, 3)).unwrap(), whole);
        assert!(LogBeside::decode(&bytes, (0, 4)).is_err());
        assert!(LogBeside::decode(&bytes[..bytes.len() - 1], (0, 3)).is_err());
        for came_back in 0..=entries.len() {
            let memory = NodeMemory::create(&job(), 2).unwrap();
            if came_back > 0 {
                memory.put_log_beside(0, 2, &log(7, &entries[..came_back])).unwrap();
            }
            memory.put_log_beside(0, 2, &whole).unwrap();
            assert_eq!(take(&memory, 12).unwrap(), whole, "{came_back}");
            // The image had not sent the last one, or the rank has forgotten the first.
            assert_eq!(take(&memory, 11).unwrap(), log(7, &entries[..7]));
            assert!(take(&memory, 13).is_err());
            memory.put_log_beside(0, 2, &log(8, &entries[1..3])).unwrap();
            assert_eq!(take(&memory, 12).unwrap(), whole);
            assert!(
                memory.put_log_beside(0, 2, &log(13, &entries[..1])).is_err(),
                "message 13 is missing"
            );
        }
        let full = vec![entry(Tagged, 60_000, 1); 17];
        let memory = NodeMemory::create(&job(), 2).unwrap();
        assert!(
            memory.put_log_beside(0, 2, &log(0, &full)).is_err(),
            "there are 16 segments"
        );
    }

    #[test]
    fn a_log_may_begin_in_the_middle_of_a_message() {
        use Kind::{Ahead, More, Tagged};
        // The rest of message 8, and two messages, one of which carries much.
        let entries: Vec<Vec<u8>> = [More, More, Ahead, Ahead, Tagged, More, Tagged]
            .into_iter()
            .zip(1..)
            .map(|(kind, fill)| entry(kind, 9, fill))
            .collect();
        let before = [entry(Tagged, 9, 20), entry(More, 9, 21)];
        let (cut, whole) = (log(8, &entries), log(7, &[&before[..], &entries].concat()));
        for came_back in 2..=entries.len() {
            let some = &entries[..came_back];
            for (there, beside, result) in [
                (log(8, some), &whole, &cut),
                (log(8, some), &cut, &cut),
                (log(7, &[&before[..], some].concat()), &cut, &whole),
                (log(7, &[&before[..], some].concat()), &whole, &whole),
            ] {
                let memory = NodeMemory::create(&job(), 2).unwrap();
                memory.put_log_beside(0, 2, &there).unwrap();
                memory.put_log_beside(0, 2, beside).unwrap();
                assert_eq!(&take(&memory, 10).unwrap(), result, "{came_back}");
            }
        }
        let memory = NodeMemory::create(&job(), 2).unwrap();
        memory.put_log_beside(0, 2, &cut).unwrap();
        assert_eq!(take(&memory, 10).unwrap(), cut);
    }

    #[test]
    fn a_log_of_which_all_is_forgotten_goes_on_with_the_right_number() {
        let memory = NodeMemory::create(&job(), 2).unwrap();
        memory.put_log_beside(0, 2, &log(50, &[])).unwrap();
        assert_eq!(take(&memory, 40).unwrap(), log(50, &[]));
    }
}

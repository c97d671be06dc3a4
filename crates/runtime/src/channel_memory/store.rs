//! What a channel memory holds: in memory up to a bound, beyond it in the spill file, oldest messages first.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Held;
use resurgo_protocol::channel_memory::{Admission, ChannelMemory, Put};
use resurgo_protocol::{ChannelMemory as Protocol, Rank};
use resurgo_wire::channel_memory::{Difference, Envelope, MAX_PIECE, Unset};

/// What is written to the spill file at once, at least: 1 MiB.
const SPILLED_AT_ONCE: u64 = 1 << 20;

/// Why something cannot be done.
#[derive(Debug)]
pub enum Trouble {
    /// The connection has said what it must not.
    Refused(String),
    /// This channel memory cannot go on, and so the job ends.
    Fatal(String),
}

impl From<resurgo_protocol::channel_memory::Error> for Trouble {
    fn from(error: resurgo_protocol::channel_memory::Error) -> Self {
        Trouble::Refused(error.to_string())
    }
}

/// A message that was sent again is not what was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Differs {
    pub difference: Difference,
    pub before: Envelope,
    pub now: Envelope,
}

/// Where the bytes of a message are.
#[derive(Debug)]
enum Place {
    Memory(Box<[u8]>),
    /// At this offset of the spill file.
    Spilled(u64),
}

/// A message: its bytes are read with [`Store::read`].
#[derive(Debug)]
struct Content {
    envelope: Envelope,
    place: Place,
}

/// A message that is to be served.
#[derive(Debug, PartialEq, Eq)]
pub struct Next {
    pub rclock: u64,
    pub source: Rank,
    pub polls: Option<u64>,
    pub envelope: Envelope,
}

pub struct Store {
    protocol: Protocol<Content>,
    spill: Option<File>,
    /// Most bytes of messages in memory.
    bound: u64,
    in_memory: u64,
    /// Messages in memory, oldest first: receiver and number.
    oldest: VecDeque<(Rank, u64)>,
    held: Held,
}

impl Store {
    /// `bound`: most bytes of messages in memory; what is beyond it goes to `spill`.
    pub fn new(bound: u64, spill: Option<File>) -> Store {
        Store {
            protocol: ChannelMemory::default(),
            spill,
            bound,
            in_memory: 0,
            oldest: VecDeque::new(),
            held: Held::default(),
        }
    }

    /// What there has been so far.
    pub fn held(&self) -> Held {
        self.held
    }

    pub fn may_admit(&self, rank: Rank, incarnation: u64) -> Result<(), Trouble> {
        Ok(self.protocol.may_admit(rank, incarnation)?)
    }

    pub fn admit(&mut self, rank: Rank, incarnation: u64) -> Result<Admission, Trouble> {
        Ok(self.protocol.admit(rank, incarnation)?)
    }

    pub fn report(&mut self, rank: Rank, incarnation: u64, rclock: u64, polls: u64) -> Result<(), Trouble> {
        Ok(self.protocol.report(rank, incarnation, rclock, polls)?)
    }

    pub fn reported(&self, rank: Rank) -> u64 {
        self.protocol.reported(rank)
    }

    pub fn has_more(&self, rank: Rank) -> bool {
        self.protocol.has_more(rank)
    }

    /// A whole message has come. One that a former life has sent is compared with that, but for what is `unset`.
    pub fn put(
        &mut self,
        (source, incarnation): (Rank, u64),
        destination: Rank,
        ssn: u64,
        envelope: Envelope,
        unset: &Unset,
        bytes: Vec<u8>,
    ) -> Result<Option<Differs>, Trouble> {
        let length = bytes.len() as u64;
        let place = Place::Memory(bytes.into_boxed_slice());
        let content = Content { envelope, place };
        match self.protocol.put(source, incarnation, destination, ssn, content)? {
            Put::New { rclock } => {
                self.oldest.push_back((destination, rclock));
                self.in_memory += length;
                self.held.messages += 1;
                self.held.bytes += length;
                if self.in_memory > self.bound {
                    self.spill_oldest()?;
                }
                self.held.most_memory_bytes = self.held.most_memory_bytes.max(self.in_memory);
                Ok(None)
            }
            Put::Again { before, now } => {
                let Place::Memory(bytes) = &now.place else {
                    unreachable!("it has just come");
                };
                let difference =
                    compare(before, &now.envelope, unset, bytes, self.spill.as_ref()).map_err(unreadable)?;
                Ok(difference.map(|difference| Differs {
                    difference,
                    before: before.envelope,
                    now: now.envelope,
                }))
            }
        }
    }

    /// The next message for `rank`.
    pub fn next(&mut self, rank: Rank) -> Option<Next> {
        let served = self.protocol.serve(rank)?;
        Some(Next {
            rclock: served.rclock,
            source: served.source,
            polls: served.polls,
            envelope: served.content.envelope,
        })
    }

    /// Appends `length` bytes of message `rclock` for `rank` to `out`, from `offset` on.
    pub fn read(
        &mut self,
        rank: Rank,
        rclock: u64,
        offset: u64,
        length: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let Some(content) = self.protocol.content(rank, rclock) else {
            unreachable!("message {rclock} for rank {rank} has been served");
        };
        match &content.place {
            Place::Memory(bytes) => {
                out.extend_from_slice(&bytes[offset as usize..offset as usize + length]);
                Ok(())
            }
            Place::Spilled(at) => {
                let begin = out.len();
                out.resize(begin + length, 0);
                read_spilled(self.spill.as_ref(), &mut out[begin..], at + offset).map_err(unreadable)
            }
        }
    }

    /// Writes messages to the spill file until there is room.
    fn spill_oldest(&mut self) -> Result<(), Trouble> {
        let Some(file) = &self.spill else {
            return Err(Trouble::Fatal(format!(
                "it is full ({} MiB of messages): give it more with --log-memory, or let it spill to a file with --spill-dir",
                self.bound >> 20
            )));
        };
        while self.in_memory > self.bound {
            let mut part: Vec<(Rank, u64)> = Vec::new();
            let mut bytes: Vec<u8> = Vec::new();
            while (bytes.len() as u64) < SPILLED_AT_ONCE
                && let Some((rank, rclock)) = self.oldest.pop_front()
            {
                if let Some(Content {
                    place: Place::Memory(content),
                    ..
                }) = self.protocol.content(rank, rclock)
                {
                    bytes.extend_from_slice(content);
                    part.push((rank, rclock));
                }
            }
            file.write_all_at(&bytes, self.held.spilled_bytes).map_err(|error| {
                Trouble::Fatal(format!(
                    "it cannot write messages to its spill file: {error}: free space in --spill-dir or name another folder"
                ))
            })?;
            for (rank, rclock) in part {
                if let Some(content) = self.protocol.content(rank, rclock) {
                    content.place = Place::Spilled(self.held.spilled_bytes);
                    self.held.spilled_bytes += content.envelope.total;
                    self.in_memory -= content.envelope.total;
                }
            }
        }
        Ok(())
    }
}

fn unreadable(error: io::Error) -> Trouble {
    Trouble::Fatal(format!("it cannot read messages back from its spill file: {error}"))
}

fn read_spilled(file: Option<&File>, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let file = file.ok_or_else(|| io::Error::other("there is none"))?;
    file.read_exact_at(bytes, at)
}

/// Where what is sent now is not what was sent before.
fn compare(
    before: &Content,
    envelope: &Envelope,
    unset: &Unset,
    now: &[u8],
    file: Option<&File>,
) -> io::Result<Option<Difference>> {
    let same = Envelope {
        total: envelope.total,
        ..before.envelope
    };
    if same != *envelope {
        return Ok(Some(Difference::Envelope));
    }
    if before.envelope.total != envelope.total {
        return Ok(Some(Difference::Length));
    }
    let is_set = |at: usize| {
        !unset
            .iter()
            .any(|&(from, to)| (from as usize..to as usize).contains(&at))
    };
    let first = |offset: usize, before: &[u8], now: &[u8]| {
        if before == now {
            return None;
        }
        let mut differences = (offset..)
            .zip(before.iter().zip(now))
            .filter(|(_, (before, now))| before != now);
        let (at, _) = differences.find(|(at, _)| is_set(*at))?;
        Some(Difference::Content(at as u64))
    };
    match &before.place {
        Place::Memory(bytes) => Ok(first(0, bytes, now)),
        Place::Spilled(place) => {
            let mut piece = vec![0; MAX_PIECE];
            for (number, now) in now.chunks(MAX_PIECE).enumerate() {
                let offset = number * MAX_PIECE;
                let piece = &mut piece[..now.len()];
                read_spilled(file, piece, place + offset as u64)?;
                if let Some(difference) = first(offset, piece, now) {
                    return Ok(Some(difference));
                }
            }
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(total: usize) -> Envelope {
        Envelope {
            kind: 1,
            flags: 0,
            tag: 5,
            data: 0,
            total: total as u64,
        }
    }

    fn bytes(ssn: u64, length: usize) -> Vec<u8> {
        (0..length).map(|at| (at as u64 * 7 + ssn * 31) as u8).collect()
    }

    fn put(store: &mut Store, life: u64, ssn: u64, bytes: Vec<u8>) -> Result<Option<Differs>, Trouble> {
        store.put(
            (1, life),
            0,
            ssn,
            envelope(bytes.len()),
            &[(3, 5), (0, 0), (0, 0), (0, 0)],
            bytes,
        )
    }

    fn spill() -> File {
        crate::agent::open_nameless(std::env::temp_dir().as_os_str()).unwrap()
    }

    #[test]
    fn what_is_spilled_is_served_and_compared_as_what_is_not() {
        let mut store = Store::new(3 << 20, Some(spill()));
        store.admit(0, 1).unwrap();
        store.admit(1, 1).unwrap();
        let length = |ssn: u64| (ssn as usize * 77_777) % 500_000;
        for ssn in 1..=60 {
            assert_eq!(put(&mut store, 1, ssn, bytes(ssn, length(ssn))).unwrap(), None);
            assert!(store.in_memory <= 3 << 20);
        }
        let held = store.held();
        assert!(
            held.spilled_bytes > 5 << 20 && held.most_memory_bytes <= 3 << 20,
            "{held:?}"
        );
        for life in 1..3 {
            store.admit(0, 1 + life).unwrap();
            for ssn in 1..=60 {
                let next = store.next(0).unwrap();
                assert_eq!(
                    (next.rclock, next.source, next.envelope),
                    (ssn, 1, envelope(length(ssn)))
                );
                let mut got = Vec::new();
                let half = length(ssn) / 2;
                store.read(0, ssn, 0, half, &mut got).unwrap();
                store.read(0, ssn, half as u64, length(ssn) - half, &mut got).unwrap();
                assert_eq!(got, bytes(ssn, length(ssn)));
            }
            assert_eq!(store.next(0), None);
        }
        store.admit(1, 2).unwrap();
        for ssn in 1..=60 {
            assert_eq!(put(&mut store, 2, ssn, bytes(ssn, length(ssn))).unwrap(), None);
            let mut other = bytes(ssn, length(ssn));
            if let Some(last) = other.last_mut() {
                *last ^= 1;
                let differs = put(&mut store, 2, ssn, other).unwrap().unwrap();
                assert_eq!(differs.difference, Difference::Content(length(ssn) as u64 - 1));
            }
        }
        let mut padded = bytes(1, length(1));
        padded[3] ^= 1;
        padded[4] ^= 1;
        assert_eq!(put(&mut store, 2, 1, padded).unwrap(), None);
        let longer = put(&mut store, 2, 1, bytes(1, length(1) + 1)).unwrap().unwrap();
        assert_eq!(longer.difference, Difference::Length);
    }

    #[test]
    fn a_full_memory_without_a_file_says_what_to_do() {
        let mut store = Store::new(1 << 20, None);
        store.admit(1, 1).unwrap();
        assert!(put(&mut store, 1, 1, bytes(1, 1 << 20)).is_ok());
        let Err(Trouble::Fatal(reason)) = put(&mut store, 1, 2, bytes(2, 1)) else {
            panic!("there is no room");
        };
        assert!(reason.contains("1 MiB") && reason.contains("--spill-dir"), "{reason}");
    }

    #[test]
    fn a_full_disk_is_told() {
        let full = File::options().write(true).read(true).open("/dev/full").unwrap();
        let mut store = Store::new(1 << 20, Some(full));
        store.admit(1, 1).unwrap();
        put(&mut store, 1, 1, bytes(1, 1 << 20)).unwrap();
        let Err(Trouble::Fatal(reason)) = put(&mut store, 1, 2, bytes(2, 1)) else {
            panic!("there is no room");
        };
        assert!(reason.contains("No space left"), "{reason}");
    }
}

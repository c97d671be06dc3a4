//! What a channel memory holds: in memory up to a bound, beyond it in the spill file. Each rank's oldest messages go
//! there first.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;

use super::Held;
use super::spill::{Part, Spill};
use resurgo_protocol::channel_memory::{Admission, ChannelMemory, Put};
use resurgo_protocol::{ChannelMemory as Protocol, Rank};
use resurgo_wire::channel_memory::{Difference, Envelope, MAX_PIECE, Unset};

/// The least that is written to the spill file at once: 1 MiB.
const SPILLED_AT_ONCE: u64 = 1 << 20;
/// A rank gets no more messages while it has not reported the delivery of so many served bytes: 8 MiB. Whenever a rank
/// asks whether everything it said is here, as before each image, it takes all messages that have come. It must not
/// come to hold what is held here.
const AHEAD: u64 = 8 << 20;

/// Why something is impossible.
#[derive(Debug)]
pub enum Trouble {
    /// The connection said what it must not.
    Refused(String),
    /// This channel memory cannot go on, so the job ends.
    Fatal(String),
}

impl From<resurgo_protocol::channel_memory::Error> for Trouble {
    fn from(error: resurgo_protocol::channel_memory::Error) -> Self {
        Trouble::Refused(error.to_string())
    }
}

/// How a message sent again differs from the one sent before.
#[derive(Debug, PartialEq, Eq)]
pub struct Differs {
    pub difference: Difference,
    pub before: Envelope,
    pub now: Envelope,
}

/// Where the bytes of a message lie.
#[derive(Debug)]
enum Place {
    Memory(Box<[u8]>),
    /// At this offset of the spill file.
    Spilled(u64),
}

/// A message; [`Store::read`] reads its bytes.
#[derive(Debug)]
struct Content {
    envelope: Envelope,
    place: Place,
}

/// A message to serve.
#[derive(Debug, PartialEq, Eq)]
pub struct Next {
    pub rclock: u64,
    pub source: Rank,
    pub polls: Option<u64>,
    pub envelope: Envelope,
}

/// Where the messages for one rank lie.
#[derive(Default)]
struct Receiver {
    /// Bytes of its messages in memory.
    in_memory: u64,
    /// The last message that is in the spill file, or has been forgotten.
    spilled_to: u64,
    /// Bytes of messages that its present life has been served and has not reported.
    ahead: u64,
    /// Parts of the spill file, the oldest first, each with the last message in it.
    parts: VecDeque<(u64, Part)>,
}

pub struct Store {
    protocol: Protocol<Content>,
    spill: Option<Spill>,
    /// The most bytes of messages in memory.
    bound: u64,
    in_memory: u64,
    /// Bytes in memory when it last said that it fills, or fewer since.
    told: u64,
    receivers: BTreeMap<Rank, Receiver>,
    held: Held,
}

impl Store {
    /// `bound`: the most bytes of messages in memory; messages beyond it go to `spill`.
    pub fn new(bound: u64, spill: Option<File>) -> Store {
        Store {
            protocol: ChannelMemory::default(),
            spill: spill.map(Spill::new),
            bound,
            in_memory: 0,
            told: 0,
            receivers: BTreeMap::new(),
            held: Held::default(),
        }
    }

    /// What it has had so far.
    pub fn held(&self) -> Held {
        self.held
    }

    pub fn may_admit(&self, rank: Rank, incarnation: u64) -> Result<(), Trouble> {
        Ok(self.protocol.may_admit(rank, incarnation)?)
    }

    /// `delivered`: how many deliveries the life has made already.
    pub fn admit(&mut self, rank: Rank, incarnation: u64, delivered: u64) -> Result<Admission, Trouble> {
        let admission = self.protocol.admit(rank, incarnation, delivered)?;
        self.receivers.entry(rank).or_default().ahead = 0;
        Ok(admission)
    }

    pub fn report(&mut self, rank: Rank, incarnation: u64, rclock: u64, polls: u64) -> Result<(), Trouble> {
        self.protocol.report(rank, incarnation, rclock, polls)?;
        let delivered = self.protocol.content(rank, rclock);
        let delivered = delivered.map_or(0, |content| content.envelope.total);
        let receiver = self.receivers.entry(rank).or_default();
        receiver.ahead = receiver.ahead.saturating_sub(delivered);
        Ok(())
    }

    pub fn reported(&self, rank: Rank) -> u64 {
        self.protocol.reported(rank)
    }

    /// Whether there is a message that `rank` should be served now.
    pub fn has_more(&self, rank: Rank) -> bool {
        let ahead = self.receivers.get(&rank).map_or(0, |receiver| receiver.ahead);
        ahead < AHEAD && self.protocol.has_more(rank)
    }

    /// Whether images are needed: more than half of the memory is used, and there is no file. After saying so, it says
    /// so again only when a sixteenth more is used.
    pub fn fills(&mut self) -> bool {
        let scarce = self.spill.is_none() && self.in_memory > self.bound / 2;
        let fills = scarce && self.in_memory >= self.told + self.bound / 16;
        if fills {
            self.told = self.in_memory;
        }
        fills
    }

    /// Stores a whole message. If a former life sent it, the two are compared, except what is `unset`.
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
            Put::New { .. } => {
                self.receivers.entry(destination).or_default().in_memory += length;
                self.in_memory += length;
                self.held.messages += 1;
                self.held.bytes += length;
                if self.in_memory > self.bound {
                    self.make_room()?;
                }
                let held = &mut self.held;
                held.most_memory_bytes = held.most_memory_bytes.max(self.in_memory);
                held.most_bytes = held.most_bytes.max(held.bytes - held.forgotten_bytes);
                Ok(None)
            }
            Put::Forgotten => Ok(None),
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
        if !self.has_more(rank) {
            return None;
        }
        let served = self.protocol.serve(rank)?;
        let next = Next {
            rclock: served.rclock,
            source: served.source,
            polls: served.polls,
            envelope: served.content.envelope,
        };
        if next.polls.is_none() {
            self.receivers.entry(rank).or_default().ahead += next.envelope.total;
        }
        Some(next)
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
            let reason = format!("message {rclock} for rank {rank} is being served, and was to be forgotten");
            return Err(Trouble::Refused(reason));
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

    /// No life of `rank` will begin before delivery `rclock` any more: forgets the messages before it.
    pub fn forget(&mut self, rank: Rank, incarnation: u64, rclock: u64) -> Result<(), Trouble> {
        let receiver = self.receivers.entry(rank).or_default();
        for content in self.protocol.forget(rank, incarnation, rclock)? {
            self.held.forgotten_bytes += content.envelope.total;
            if let Place::Memory(bytes) = content.place {
                self.in_memory -= bytes.len() as u64;
                receiver.in_memory -= bytes.len() as u64;
            }
        }
        self.told = self.told.min(self.in_memory);
        receiver.spilled_to = receiver.spilled_to.max(rclock);
        while let Some((_, part)) = receiver.parts.pop_front_if(|(last, _)| *last <= rclock) {
            self.spill.iter_mut().for_each(|spill| spill.give_back(part));
        }
        Ok(())
    }

    /// Writes messages to the spill file until there is room: the oldest of the rank with the most in memory.
    fn make_room(&mut self) -> Result<(), Trouble> {
        let Some(spill) = &mut self.spill else {
            return Err(Trouble::Fatal(format!(
                "it is full ({} MiB of messages): give it more with --log-memory, let it forget more with images \
                 (--checkpoint-every), or let it spill to a file with --spill-dir",
                self.bound >> 20
            )));
        };
        while self.in_memory > self.bound {
            let most = self.receivers.iter_mut().max_by_key(|(_, receiver)| receiver.in_memory);
            let Some((&rank, receiver)) = most else { break };
            let first = receiver.spilled_to + 1;
            let mut bytes: Vec<u8> = Vec::new();
            while (bytes.len() as u64) < SPILLED_AT_ONCE
                && let Some(content) = self.protocol.content(rank, receiver.spilled_to + 1)
            {
                if let Place::Memory(content) = &content.place {
                    bytes.extend_from_slice(content);
                }
                receiver.spilled_to += 1;
            }
            let part = spill.write(&bytes).map_err(|error| {
                Trouble::Fatal(format!(
                    "it cannot write messages to its spill file: {error}: free space in --spill-dir or name another folder"
                ))
            })?;
            let mut at = part.at;
            for rclock in first..=receiver.spilled_to {
                if let Some(content) = self.protocol.content(rank, rclock) {
                    content.place = Place::Spilled(at);
                    at += content.envelope.total;
                }
            }
            receiver.parts.push_back((receiver.spilled_to, part));
            receiver.in_memory -= part.length;
            self.in_memory -= part.length;
            self.held.spilled_bytes += part.length;
            self.held.spill_file_bytes = spill.length();
        }
        Ok(())
    }
}

fn unreadable(error: io::Error) -> Trouble {
    Trouble::Fatal(format!("it cannot read messages back from its spill file: {error}"))
}

fn read_spilled(spill: Option<&Spill>, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let spill = spill.ok_or_else(|| io::Error::other("there is none"))?;
    spill.read(bytes, at)
}

/// Where a message sent now differs from the one sent before.
fn compare(
    before: &Content,
    envelope: &Envelope,
    unset: &Unset,
    now: &[u8],
    spill: Option<&Spill>,
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
                read_spilled(spill, piece, place + offset as u64)?;
                if let Some(difference) = first(offset, piece, now) {
                    return Ok(Some(difference));
                }
            }
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;

//! Channel memories (MPICH-V1; Bouteiller 2006, §III.B). A stable process holds every message to a rank, in the order
//! in which the rank is to deliver them. It serves them again when the rank has failed.
//!
//! Messages are delivered in the order in which they arrive. Chance decides only in which completion-queue read the
//! rank makes each delivery. The rank tells its own channel memory: this is the *report*, stable once the memory has
//! it. No other rank may see a send after a delivery before the delivery's report is stable. On the connection to the
//! rank's own memory the send follows the report anyway; for other memories it waits ([`Departures`]).
//!
//! A life that begins from an image connects like any other and says how many deliveries it has made. The memory serves
//! it the messages after them. The memory forgets what the oldest usable image covers ([`ChannelMemory::forget`]).
//! Before an image is taken, the memories must have everything that the rank has said. What is on its way may be lost
//! with the process, and a life from the image does not say it again.
//!
//! A [`crate::Pessimistic`] made with [`crate::Tolerate::Process`] counts, replays and holds nothing. Beside it stands
//! [`Departures`]; at the other end of each of the rank's connections stands a [`ChannelMemory`].

use std::collections::{BTreeMap, VecDeque};

use crate::{Rank, Recorded};

/// Number of the channel memory that holds what is sent to `rank`.
pub const fn memory_of(rank: Rank, memories: usize) -> usize {
    rank as usize % memories
}

/// Why a channel memory refuses a rank's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("life {incarnation} of rank {rank} speaks after life {admitted} was admitted")]
    Superseded {
        rank: Rank,
        incarnation: u64,
        admitted: u64,
    },
    #[error("rank {source_rank} sends message {ssn} to rank {destination} after message {received}")]
    Gap {
        source_rank: Rank,
        destination: Rank,
        ssn: u64,
        received: u64,
    },
    #[error(
        "rank {rank} begins after delivery {delivered}; {forgotten} of its deliveries are forgotten, {reported} reported"
    )]
    Begin {
        rank: Rank,
        delivered: u64,
        forgotten: u64,
        reported: u64,
    },
    #[error(
        "rank {rank} lets its first {rclock} deliveries be forgotten; {reported} are reported, and it has been served {served}"
    )]
    Forget {
        rank: Rank,
        rclock: u64,
        reported: u64,
        served: u64,
    },
    #[error("rank {rank} reports delivery {rclock} after delivery {reported}; {messages} messages are here for it")]
    Report {
        rank: Rank,
        rclock: u64,
        reported: u64,
        messages: u64,
    },
}

/// What a new life of a rank learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Deliveries of this rank whose reads are known; 0 where its messages are in another memory.
    pub reported: u64,
    /// Of this rank's messages to each rank that this memory serves, how many it has; none left out that are not 0.
    pub received: Vec<(Rank, u64)>,
}

/// What becomes of an arrived message.
#[derive(Debug, PartialEq, Eq)]
pub enum Put<'a, C> {
    /// It is the receiver's delivery of this number, from 1, for ever.
    New { rclock: u64 },
    /// A former life sent it: the two contents, to compare.
    Again { before: &'a mut C, now: C },
    /// A former life sent it, and it is forgotten: there is nothing to compare it with.
    Forgotten,
}

/// A message as it is served.
#[derive(Debug)]
pub struct Served<'a, C> {
    pub rclock: u64,
    pub source: Rank,
    /// The read in which it was delivered, if reported.
    pub polls: Option<u64>,
    pub content: &'a mut C,
}

#[derive(Debug)]
struct Message<C> {
    source: Rank,
    content: C,
}

/// The messages of one source for one receiver.
#[derive(Debug, Default)]
struct Channel {
    /// Messages that are forgotten.
    forgotten: u64,
    /// The rclocks of the other messages, in the order of their numbers.
    rclocks: VecDeque<u64>,
}

impl Channel {
    fn received(&self) -> u64 {
        self.forgotten + self.rclocks.len() as u64
    }
}

/// The messages held for one receiver.
#[derive(Debug)]
struct Held<C> {
    /// Deliveries that are forgotten, from the first.
    forgotten: u64,
    /// The others, in the order of delivery.
    messages: VecDeque<Message<C>>,
    /// Per source.
    channels: BTreeMap<Rank, Channel>,
    /// For the first deliveries behind the forgotten ones, the read in which each was made.
    polls: VecDeque<u64>,
    /// Deliveries served to the present life, or made before it began.
    served: u64,
}

impl<C> Held<C> {
    /// The place of delivery `rclock` among the held ones.
    fn place(&self, rclock: u64) -> Option<usize> {
        let place = rclock.checked_sub(self.forgotten + 1)?;
        Some(place as usize)
    }

    fn reported(&self) -> u64 {
        self.forgotten + self.polls.len() as u64
    }

    fn received(&self) -> u64 {
        self.forgotten + self.messages.len() as u64
    }
}

/// The state of one channel memory, for all ranks that it serves. `C`: the content of a message, or its place.
#[derive(Debug)]
pub struct ChannelMemory<C> {
    held: BTreeMap<Rank, Held<C>>,
    /// The latest life of each rank that has connected.
    lives: BTreeMap<Rank, u64>,
}

impl<C> Default for ChannelMemory<C> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            lives: BTreeMap::new(),
        }
    }
}

impl<C> ChannelMemory<C> {
    fn held(&mut self, receiver: Rank) -> &mut Held<C> {
        self.held.entry(receiver).or_insert_with(|| Held {
            forgotten: 0,
            messages: VecDeque::new(),
            channels: BTreeMap::new(),
            polls: VecDeque::new(),
            served: 0,
        })
    }

    /// Whether this life of `rank` is later than all lives that have connected.
    pub fn may_admit(&self, rank: Rank, incarnation: u64) -> Result<(), Error> {
        match self.lives.get(&rank) {
            Some(&admitted) if incarnation <= admitted => Err(Error::Superseded {
                rank,
                incarnation,
                admitted,
            }),
            _ => Ok(()),
        }
    }

    /// A life of `rank` connects; it does so once for each memory. From here on the memory takes nothing of earlier
    /// lives: its answer stays true. It serves the messages after the first `delivered` deliveries: those are in the
    /// image that the life begins from. `delivered` is 0 where its messages are in another memory.
    pub fn admit(&mut self, rank: Rank, incarnation: u64, delivered: u64) -> Result<Admission, Error> {
        self.may_admit(rank, incarnation)?;
        let (forgotten, reported) = (self.forgotten(rank), self.reported(rank));
        if delivered < forgotten || delivered > reported {
            return Err(Error::Begin {
                rank,
                delivered,
                forgotten,
                reported,
            });
        }
        self.lives.insert(rank, incarnation);
        if let Some(held) = self.held.get_mut(&rank) {
            held.served = delivered;
        }
        let received = self.held.iter().filter_map(|(receiver, held)| {
            let channel = held.channels.get(&rank)?;
            Some((*receiver, channel.received()))
        });
        Ok(Admission {
            reported,
            received: received.collect(),
        })
    }

    /// This life of `rank` is the latest admitted one.
    pub fn is_life(&self, rank: Rank, incarnation: u64) -> bool {
        self.lives.get(&rank) == Some(&incarnation)
    }

    fn check_life(&self, rank: Rank, incarnation: u64) -> Result<(), Error> {
        if self.is_life(rank, incarnation) {
            return Ok(());
        }
        Err(Error::Superseded {
            rank,
            incarnation,
            admitted: self.lives.get(&rank).copied().unwrap_or(0),
        })
    }

    /// Message `ssn` of channel (`source` → `destination`) has arrived.
    pub fn put(
        &mut self,
        source: Rank,
        incarnation: u64,
        destination: Rank,
        ssn: u64,
        content: C,
    ) -> Result<Put<'_, C>, Error> {
        self.check_life(source, incarnation)?;
        let held = self.held(destination);
        let next = held.received() + 1;
        let channel = held.channels.entry(source).or_default();
        let received = channel.received();
        if ssn == 0 || ssn > received + 1 {
            return Err(Error::Gap {
                source_rank: source,
                destination,
                ssn,
                received,
            });
        }
        if ssn <= channel.forgotten {
            return Ok(Put::Forgotten);
        }
        if ssn <= received {
            let rclock = channel.rclocks[(ssn - channel.forgotten) as usize - 1];
            let place = (rclock - held.forgotten) as usize - 1;
            return Ok(Put::Again {
                before: &mut held.messages[place].content,
                now: content,
            });
        }
        channel.rclocks.push_back(next);
        held.messages.push_back(Message { source, content });
        Ok(Put::New { rclock: next })
    }

    /// `rank` has made delivery `rclock` in read `polls` after the delivery before.
    pub fn report(&mut self, rank: Rank, incarnation: u64, rclock: u64, polls: u64) -> Result<(), Error> {
        self.check_life(rank, incarnation)?;
        let held = self.held(rank);
        let (reported, messages) = (held.reported(), held.received());
        if rclock != reported + 1 || rclock > messages {
            return Err(Error::Report {
                rank,
                rclock,
                reported,
                messages,
            });
        }
        held.polls.push_back(polls);
        Ok(())
    }

    /// No life of `rank` will begin before delivery `rclock` any more: the oldest image that one may begin from covers so many.
    /// Returns these deliveries, in order; those forgotten before are left out.
    pub fn forget(&mut self, rank: Rank, incarnation: u64, rclock: u64) -> Result<impl Iterator<Item = C>, Error> {
        self.check_life(rank, incarnation)?;
        let held = self.held(rank);
        let (reported, served) = (held.reported(), held.served);
        if rclock > reported.min(served) {
            return Err(Error::Forget {
                rank,
                rclock,
                reported,
                served,
            });
        }
        let count = rclock.saturating_sub(held.forgotten) as usize;
        held.forgotten += count as u64;
        held.polls.drain(..count);
        for message in held.messages.range(..count) {
            let channel = held.channels.entry(message.source).or_default();
            channel.rclocks.pop_front();
            channel.forgotten += 1;
        }
        Ok(held.messages.drain(..count).map(|message| message.content))
    }

    /// Deliveries of `rank` that are forgotten.
    pub fn forgotten(&self, rank: Rank) -> u64 {
        self.held.get(&rank).map_or(0, |held| held.forgotten)
    }

    /// Messages that are held for `rank`.
    pub fn kept(&self, rank: Rank) -> u64 {
        self.held.get(&rank).map_or(0, |held| held.messages.len() as u64)
    }

    /// Deliveries that `rank` has reported, with those that are forgotten.
    pub fn reported(&self, rank: Rank) -> u64 {
        self.held.get(&rank).map_or(0, Held::reported)
    }

    /// Delivery `rclock` of `rank`, if its read is known and it is not forgotten.
    pub fn delivery(&self, rank: Rank, rclock: u64) -> Option<Recorded> {
        let held = self.held.get(&rank)?;
        let at = held.place(rclock)?;
        Some(Recorded {
            source: held.messages.get(at)?.source,
            polls: *held.polls.get(at)?,
        })
    }

    /// The present life of `rank` has yet to be served some message.
    pub fn has_more(&self, rank: Rank) -> bool {
        self.held.get(&rank).is_some_and(|held| held.served < held.received())
    }

    /// The next message for `rank`.
    pub fn serve(&mut self, rank: Rank) -> Option<Served<'_, C>> {
        let held = self.held.get_mut(&rank)?;
        let at = held.place(held.served + 1)?;
        let message = held.messages.get_mut(at)?;
        held.served += 1;
        Some(Served {
            rclock: held.served,
            source: message.source,
            polls: held.polls.get(at).copied(),
            content: &mut message.content,
        })
    }

    /// The content of message `rclock` for `rank`, if it is not forgotten.
    pub fn content(&mut self, rank: Rank, rclock: u64) -> Option<&mut C> {
        let held = self.held.get_mut(&rank)?;
        let at = held.place(rclock)?;
        Some(&mut held.messages.get_mut(at)?.content)
    }
}

/// Which sends of a rank may leave: none to another memory before the rank's own memory has the reports of all
/// deliveries made.
#[derive(Debug, Clone)]
pub struct Departures {
    own: usize,
    /// Deliveries whose reports the rank's own memory has.
    acknowledged: u64,
    /// Destination memory and deliveries made, in order of sending.
    held: VecDeque<(usize, u64)>,
}

impl Departures {
    /// `own`: the memory of this rank. `reported`: the memory's count at the beginning of this life.
    pub fn new(own: usize, reported: u64) -> Self {
        Self {
            own,
            acknowledged: reported,
            held: VecDeque::new(),
        }
    }

    /// A message for `memory` is sent after `rclock` deliveries: whether it may leave now. Otherwise [`Self::release`] says when.
    pub fn may_leave(&mut self, memory: usize, rclock: u64) -> bool {
        if memory == self.own || rclock <= self.acknowledged {
            return true;
        }
        self.held.push_back((memory, rclock));
        false
    }

    /// The rank's own memory has the reports of so many deliveries.
    pub fn acknowledge(&mut self, rclock: u64) {
        self.acknowledged = self.acknowledged.max(rclock);
    }

    /// Deliveries whose reports the rank's own memory has confirmed.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The memory to which the next held message may now leave, in order of sending.
    pub fn release(&mut self) -> Option<usize> {
        let acknowledged = self.acknowledged;
        let (memory, _) = self.held.pop_front_if(|(_, after)| *after <= acknowledged)?;
        Some(memory)
    }

    /// The number of waiting messages.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests;

//! Channel memories (MPICH-V1; Bouteiller 2006, §III.B): a stable process holds every message to a rank, in the order in which
//! the rank is to deliver them, and serves them again from the first when the rank has failed.
//!
//! The order in which messages arrive is the order in which they are delivered, so what is left to chance, and must be told by the
//! receiver, is only in which completion-queue read it makes each delivery: its *report*. It is stable when its own channel memory
//! has it. What leaves the rank after a delivery must not be seen before that: on the connection to the own memory it comes
//! behind the report anyway, to other memories it waits ([`Departures`]).
//!
//! A [`crate::Pessimistic`] made with [`crate::Tolerate::Process`] counts, replays and holds nothing; beside it stands [`Departures`],
//! and at the other ends of the rank's connections a [`ChannelMemory`] each.

use std::collections::{BTreeMap, VecDeque};

use crate::{Rank, Recorded};

/// Number of the channel memory that holds what is sent to `rank`.
pub const fn memory_of(rank: Rank, memories: usize) -> usize {
    rank as usize % memories
}

/// Why a channel memory does not take what a rank says.
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
    #[error("rank {rank} reports delivery {rclock} after delivery {reported}; {messages} messages are here for it")]
    Report {
        rank: Rank,
        rclock: u64,
        reported: u64,
        messages: u64,
    },
}

/// What a new life of a rank is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Deliveries of this rank whose reads are known; 0 where its messages are in another memory.
    pub reported: u64,
    /// Of this rank's messages to each rank that this memory serves, how many it has; none left out that are not 0.
    pub received: Vec<(Rank, u64)>,
}

/// What becomes of a message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Put<'a, C> {
    /// It is the receiver's delivery of this number, from 1, for ever.
    New { rclock: u64 },
    /// A former life has sent it: here is what it sent, to be compared.
    Again { before: &'a mut C, now: C },
}

/// A message as it is served.
#[derive(Debug)]
pub struct Served<'a, C> {
    pub rclock: u64,
    pub source: Rank,
    /// In which read it was delivered, if that has been reported.
    pub polls: Option<u64>,
    pub content: &'a mut C,
}

#[derive(Debug)]
struct Message<C> {
    source: Rank,
    content: C,
}

/// What is held for one receiver.
#[derive(Debug)]
struct Held<C> {
    /// In the order of delivery.
    messages: Vec<Message<C>>,
    /// Per source, the places of its messages, in the order of their numbers.
    places: BTreeMap<Rank, Vec<u64>>,
    /// Of the first deliveries, the read in which each was made.
    polls: Vec<u64>,
    /// Messages served to the present life.
    served: u64,
}

/// The state of one channel memory, for all ranks that it serves. `C`: the content of a message, or where it lies.
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
            messages: Vec::new(),
            places: BTreeMap::new(),
            polls: Vec::new(),
            served: 0,
        })
    }

    /// Whether this life of `rank` is later than all that have connected.
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

    /// A life of `rank` connects. From here on nothing of its earlier lives is taken, so that the answer stays true; and it
    /// is served from the first message on. A life connects to each memory once.
    pub fn admit(&mut self, rank: Rank, incarnation: u64) -> Result<Admission, Error> {
        self.may_admit(rank, incarnation)?;
        self.lives.insert(rank, incarnation);
        let received = self.held.iter().filter_map(|(receiver, held)| {
            let places = held.places.get(&rank)?;
            Some((*receiver, places.len() as u64))
        });
        let received = received.collect();
        let reported = self.held.get_mut(&rank).map_or(0, |held| {
            held.served = 0;
            held.polls.len() as u64
        });
        Ok(Admission { reported, received })
    }

    /// This life of `rank` is the latest that has been admitted.
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
        let places = held.places.entry(source).or_default();
        let received = places.len() as u64;
        if ssn == 0 || ssn > received + 1 {
            return Err(Error::Gap {
                source_rank: source,
                destination,
                ssn,
                received,
            });
        }
        if ssn <= received {
            let place = places[ssn as usize - 1];
            return Ok(Put::Again {
                before: &mut held.messages[place as usize].content,
                now: content,
            });
        }
        places.push(held.messages.len() as u64);
        held.messages.push(Message { source, content });
        Ok(Put::New {
            rclock: held.messages.len() as u64,
        })
    }

    /// `rank` has made delivery `rclock` in read `polls` after the delivery before.
    pub fn report(&mut self, rank: Rank, incarnation: u64, rclock: u64, polls: u64) -> Result<(), Error> {
        self.check_life(rank, incarnation)?;
        let held = self.held(rank);
        let (reported, messages) = (held.polls.len() as u64, held.messages.len() as u64);
        if rclock != reported + 1 || rclock > messages {
            return Err(Error::Report {
                rank,
                rclock,
                reported,
                messages,
            });
        }
        held.polls.push(polls);
        Ok(())
    }

    /// Deliveries that `rank` has reported.
    pub fn reported(&self, rank: Rank) -> u64 {
        self.held.get(&rank).map_or(0, |held| held.polls.len() as u64)
    }

    /// Delivery `rclock` of `rank`, if its read is known.
    pub fn delivery(&self, rank: Rank, rclock: u64) -> Option<Recorded> {
        let held = self.held.get(&rank)?;
        let at = (rclock as usize).checked_sub(1)?;
        Some(Recorded {
            source: held.messages.get(at)?.source,
            polls: *held.polls.get(at)?,
        })
    }

    /// There is something that the present life of `rank` has not been served.
    pub fn has_more(&self, rank: Rank) -> bool {
        self.held
            .get(&rank)
            .is_some_and(|held| held.served < held.messages.len() as u64)
    }

    /// The next message for `rank`.
    pub fn serve(&mut self, rank: Rank) -> Option<Served<'_, C>> {
        let held = self.held.get_mut(&rank)?;
        let at = held.served as usize;
        let message = held.messages.get_mut(at)?;
        held.served += 1;
        Some(Served {
            rclock: held.served,
            source: message.source,
            polls: held.polls.get(at).copied(),
            content: &mut message.content,
        })
    }

    /// The content of message `rclock` for `rank`.
    pub fn content(&mut self, rank: Rank, rclock: u64) -> Option<&mut C> {
        let held = self.held.get_mut(&rank)?;
        let message = held.messages.get_mut((rclock as usize).checked_sub(1)?)?;
        Some(&mut message.content)
    }
}

/// Which sends of a rank may leave: none to another memory than the own before the own has the reports of all deliveries made.
#[derive(Debug, Clone)]
pub struct Departures {
    own: usize,
    /// Deliveries whose reports the own memory has.
    acknowledged: u64,
    /// Destination memory and deliveries made, in order of sending.
    held: VecDeque<(usize, u64)>,
}

impl Departures {
    /// `own`: the memory of this rank. `reported`: what it says at the beginning of this life.
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

    /// The own memory has the reports of so many deliveries.
    pub fn acknowledge(&mut self, rclock: u64) {
        self.acknowledged = self.acknowledged.max(rclock);
    }

    /// The memory to which the next held message may now leave, in order of sending.
    pub fn release(&mut self) -> Option<usize> {
        let acknowledged = self.acknowledged;
        let (memory, _) = self.held.pop_front_if(|(_, after)| *after <= acknowledged)?;
        Some(memory)
    }

    /// Messages that wait.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_the_order_of_their_arrival_and_again_from_the_first() {
        let mut memory = ChannelMemory::default();
        for rank in 0..3 {
            assert_eq!(memory.admit(rank, 1).map(|admission| admission.reported), Ok(0));
        }
        assert_eq!(memory.put(1, 1, 0, 1, 'a'), Ok(Put::New { rclock: 1 }));
        assert_eq!(memory.put(2, 1, 0, 1, 'b'), Ok(Put::New { rclock: 2 }));
        assert_eq!(memory.put(1, 1, 0, 2, 'c'), Ok(Put::New { rclock: 3 }));
        let take = |memory: &mut ChannelMemory<char>| {
            let served = memory.serve(0)?;
            Some((served.rclock, served.source, served.polls, *served.content))
        };
        assert_eq!(take(&mut memory), Some((1, 1, None, 'a')));
        assert_eq!(take(&mut memory), Some((2, 2, None, 'b')));
        assert_eq!(memory.report(0, 1, 1, 7), Ok(()));
        assert_eq!(memory.admit(0, 2).map(|admission| admission.reported), Ok(1));
        assert_eq!(take(&mut memory), Some((1, 1, Some(7), 'a')));
        assert_eq!(take(&mut memory), Some((2, 2, None, 'b')));
        assert_eq!(take(&mut memory), Some((3, 1, None, 'c')));
        assert_eq!(take(&mut memory), None);
        assert!(!memory.has_more(0));
    }

    #[test]
    fn what_is_sent_again_is_compared_and_what_is_missing_or_of_a_dead_life_is_refused() {
        let mut memory = ChannelMemory::default();
        memory.admit(1, 1).unwrap();
        memory.put(1, 1, 0, 1, 'a').unwrap();
        let admission = memory.admit(1, 2).unwrap();
        assert_eq!(admission.received, [(0, 1)]);
        let superseded = Error::Superseded {
            rank: 1,
            incarnation: 1,
            admitted: 2,
        };
        assert_eq!(memory.put(1, 1, 0, 2, 'b'), Err(superseded));
        assert_eq!(memory.report(1, 1, 1, 1), Err(superseded));
        assert_eq!(memory.admit(1, 1), Err(superseded));
        let again = Put::Again {
            before: &mut 'a',
            now: 'x',
        };
        assert_eq!(memory.put(1, 2, 0, 1, 'x'), Ok(again));
        assert!(matches!(
            memory.put(1, 2, 0, 3, 'c'),
            Err(Error::Gap { received: 1, .. })
        ));
        memory.admit(0, 1).unwrap();
        assert!(matches!(
            memory.report(0, 1, 2, 1),
            Err(Error::Report { reported: 0, .. })
        ));
        memory.report(0, 1, 1, 1).unwrap();
        assert!(matches!(
            memory.report(0, 1, 2, 1),
            Err(Error::Report { messages: 1, .. })
        ));
    }

    #[test]
    fn a_send_to_another_memory_waits_until_the_own_has_all_reports() {
        let mut departures = Departures::new(0, 3);
        assert!(departures.may_leave(1, 3));
        assert!(departures.may_leave(0, 4));
        assert!(!departures.may_leave(1, 4));
        assert!(!departures.may_leave(2, 5));
        departures.acknowledge(4);
        assert_eq!(departures.release(), Some(1));
        assert_eq!(departures.release(), None);
        departures.acknowledge(5);
        assert_eq!(departures.release(), Some(2));
        assert_eq!(departures.held(), 0);
    }
}

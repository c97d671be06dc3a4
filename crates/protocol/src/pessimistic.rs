//! Pessimistic sender-based message logging (MPICH-V2; Bouteiller 2006, §III.C), one rank's side.
//!
//! The rank's transport asks [`Pessimistic::next`] which channel a completion-queue read may deliver from. It reports
//! what it did with [`Pessimistic::deliver`] and [`Pessimistic::send`]. Payloads, the record of deliveries and the
//! connections belong to the caller; this type only counts.
//!
//! A life that recovers passes through three states:
//!
//! 1. It repeats the record.
//! 2. The record is used up. It delivers nothing until it has redone every send that a former life made visible. That
//!    life made no delivery there, and its later messages may depend on how many reads found nothing.
//! 3. It is live.
//!
//! A process image holds this value as plain memory of the process. The process that wakes up from it calls
//! [`Pessimistic::restored`]; a life without an image is one restored from its beginning.

use std::collections::VecDeque;

use crate::{Determinant, Rank, Recorded, Tolerate};

/// What the current completion-queue read may deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A message of any channel, or none.
    Any,
    /// The next message of this channel and no other. The record has it in this very read: if it is not there yet,
    /// the read waits for it, because reads are counted.
    From(Rank),
    /// Nothing: the read ends here.
    Nothing,
    /// The caller must first hand in the record of delivery `rclock() + 1` with [`Pessimistic::expect`].
    NeedRecord,
}

/// What to do with a message that the program sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// New: append to the log and publish now.
    Now {
        /// Its number on the channel, from 1.
        ssn: u64,
    },
    /// New: append to the log; [`Pessimistic::release`] says when to publish.
    Hold {
        /// Its number on the channel, from 1.
        ssn: u64,
    },
    /// A former life made this send visible: compare with the log where it is kept, append where it is lost. Do not
    /// hand it to a receiver that has seen it. Where the receiver's checkpoint covers it, the log may have dropped
    /// it: then there is nothing to compare, and nothing to append.
    Redo {
        /// Its number on the channel, from 1.
        ssn: u64,
    },
}

/// How a frame relates to the receiver's cursor on its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The one to deliver next.
    Next,
    /// Delivered before: drop it.
    Duplicate,
    /// Others before it are missing.
    Early,
}

#[derive(Debug, Clone, Copy, Default)]
struct Channel {
    delivered: u64,
    sent: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    destination: Rank,
    ssn: u64,
    /// Deliveries made before the send: all must be stable before the frame leaves.
    after: u64,
}

/// State of the pessimistic protocol in one life of one rank.
#[derive(Debug, Clone)]
pub struct Pessimistic {
    rank: Rank,
    tolerate: Tolerate,
    live: bool,
    /// Reads begun since the last delivery.
    polls: u64,
    rclock: u64,
    /// Deliveries that survive the tolerated failures; `u64::MAX` when every delivery does at once.
    stable: u64,
    held: VecDeque<Held>,
    channels: Vec<Channel>,
    /// Deliveries that the record holds.
    recorded: u64,
    expected: Option<Recorded>,
    /// Per destination, the messages that former lives made visible; empty in a first life. As all counts here,
    /// from the beginning of the job.
    sent_before: Vec<u64>,
    /// How many of them this life has not redone.
    to_redo: u64,
}

impl Pessimistic {
    /// A rank's first life.
    pub fn new(rank: Rank, size: usize, tolerate: Tolerate) -> Self {
        assert!((rank as usize) < size, "rank {rank} is not one of {size}");
        Self {
            rank,
            tolerate,
            live: true,
            polls: 0,
            rclock: 0,
            stable: match tolerate {
                Tolerate::Process => u64::MAX,
                Tolerate::Node => 0,
            },
            held: VecDeque::new(),
            channels: vec![Channel::default(); size],
            recorded: 0,
            expected: None,
            sent_before: Vec::new(),
            to_redo: 0,
        }
    }

    /// A later life without an image: it starts at the beginning of its program. For the arguments see
    /// [`Self::restored`].
    pub fn recovering(rank: Rank, size: usize, tolerate: Tolerate, deliveries: u64, sent_before: Vec<u64>) -> Self {
        let mut life = Self::new(rank, size, tolerate);
        life.restored(deliveries, sent_before);
        life
    }

    /// Whether an image of the process may be taken now: nothing of former lives is left to repeat, no frame is held,
    /// and every delivery is stable.
    ///
    /// A frame held in an image would be neither visible nor to be sent again. A delivery that the event logger lacks
    /// would be in this image, but could not be repeated from an older one. To reach such a moment a live rank may
    /// deliver nothing for some reads.
    pub fn may_checkpoint(&self) -> bool {
        self.live && self.held.is_empty() && self.stable >= self.rclock
    }

    /// This value comes from an image, taken when [`Self::may_checkpoint`], and its process wakes up as a later life.
    ///
    /// All counts are from the beginning of the job. `deliveries`: how many the record knows of, with those that
    /// were dropped from it; at least [`Self::rclock`]; all count as stable. A record that was not read from the
    /// event logger may be longer than what that holds: under [`Tolerate::Node`], call [`Self::event_logger_lost`]
    /// at once. `sent_before[d]`: messages to `d` that former lives made visible, at least [`Self::sent`]; one that
    /// was still held is not.
    pub fn restored(&mut self, deliveries: u64, sent_before: Vec<u64>) {
        let size = self.channels.len();
        assert!(
            sent_before.len() == size,
            "{} channels counted in a job of {size} ranks",
            sent_before.len()
        );
        assert!(
            self.may_checkpoint(),
            "rank {}: the image was taken while replaying, with frames held, or with deliveries that are not stable",
            self.rank
        );
        assert!(
            self.rclock <= deliveries,
            "rank {}: the image has {} deliveries, the record {deliveries}",
            self.rank,
            self.rclock
        );
        self.to_redo = 0;
        for (to, (channel, before)) in self.channels.iter().zip(&sent_before).enumerate() {
            assert!(
                channel.sent <= *before,
                "rank {}: the image has {} sends to {to}, of which {before} were visible",
                self.rank,
                channel.sent
            );
            self.to_redo += before - channel.sent;
        }
        self.recorded = deliveries;
        self.sent_before = sent_before;
        if self.tolerate == Tolerate::Node {
            self.stable = deliveries;
        }
        self.settle();
    }

    /// A completion-queue read begins.
    #[inline]
    pub fn begin_poll(&mut self) {
        self.polls += 1;
    }

    /// Reads begun since the last delivery.
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// What the current read may deliver next. Ask again after every delivery.
    #[inline]
    pub fn next(&self) -> Next {
        if self.live { Next::Any } else { self.next_of_record() }
    }

    #[cold]
    fn next_of_record(&self) -> Next {
        if self.rclock == self.recorded {
            return Next::Nothing;
        }
        let Some(expected) = self.expected else {
            return Next::NeedRecord;
        };
        assert!(
            self.polls <= expected.polls,
            "rank {}: delivery {} belongs into read {} after the one before, and read {} has begun",
            self.rank,
            self.rclock + 1,
            expected.polls,
            self.polls
        );
        if self.polls == expected.polls {
            Next::From(expected.source)
        } else {
            Next::Nothing
        }
    }

    /// The record of delivery `rclock() + 1`, for [`Next::NeedRecord`].
    pub fn expect(&mut self, record: Recorded) {
        assert!(
            self.rclock < self.recorded,
            "the record of {} deliveries is used up",
            self.recorded
        );
        assert!(
            self.expected.is_none(),
            "delivery {} is already dictated",
            self.rclock + 1
        );
        assert!(
            (record.source as usize) < self.channels.len(),
            "the record names rank {}",
            record.source
        );
        self.expected = Some(record);
    }

    /// The next message of channel (source → this rank) is handed to tag matching. Returns the determinant,
    /// and whether it is new: then it must be in the record before anything else happens.
    #[inline]
    pub fn deliver(&mut self, source: Rank) -> (Determinant, bool) {
        let new = self.live;
        if !new {
            self.check_dictated(source);
        }
        let channel = &mut self.channels[source as usize];
        channel.delivered += 1;
        self.rclock += 1;
        let polls = std::mem::take(&mut self.polls);
        let determinant = Determinant {
            receiver: self.rank,
            rclock: self.rclock,
            source,
            ssn: channel.delivered,
            polls,
        };
        if !new {
            self.expected = None;
            self.settle();
        }
        (determinant, new)
    }

    #[cold]
    fn check_dictated(&self, source: Rank) {
        let next = self.next_of_record();
        assert!(
            next == Next::From(source),
            "rank {} delivers from {source} where the record says {next:?} (delivery {})",
            self.rank,
            self.rclock + 1
        );
    }

    /// The program sends its next message to `destination`.
    #[inline]
    pub fn send(&mut self, destination: Rank) -> Sending {
        let channel = &mut self.channels[destination as usize];
        channel.sent += 1;
        let ssn = channel.sent;
        if !self.live && self.redoes(destination, ssn) {
            return Sending::Redo { ssn };
        }
        if self.stable >= self.rclock && self.held.is_empty() {
            return Sending::Now { ssn };
        }
        self.held.push_back(Held {
            destination,
            ssn,
            after: self.rclock,
        });
        Sending::Hold { ssn }
    }

    #[cold]
    fn redoes(&mut self, destination: Rank, ssn: u64) -> bool {
        if self.sent_before[destination as usize] < ssn {
            return false;
        }
        self.to_redo -= 1;
        self.settle();
        true
    }

    /// The life is live once nothing of the former ones is left to repeat.
    fn settle(&mut self) {
        self.live = self.rclock == self.recorded && self.to_redo == 0;
    }

    /// Sends of former lives left to repeat when all their deliveries are repeated; 0 before and after. None of them
    /// needs another delivery.
    pub fn owed(&self) -> u64 {
        if self.rclock == self.recorded { self.to_redo } else { 0 }
    }

    /// The event logger holds every delivery up to `rclock`.
    pub fn acknowledge(&mut self, rclock: u64) {
        let known = self.rclock.max(self.recorded);
        assert!(
            rclock <= known,
            "rank {}: delivery {rclock} acknowledged, {known} made",
            self.rank
        );
        self.stable = self.stable.max(rclock);
    }

    /// The event logger came back empty: nothing is stable until it acknowledges again. The caller sends it the
    /// record from [`Self::first_unacknowledged`] on, and must not pass in acknowledgements of the lost logger any
    /// more.
    pub fn event_logger_lost(&mut self) {
        if self.tolerate == Tolerate::Node {
            self.stable = 0;
        }
    }

    /// The first delivery that the event logger has not acknowledged; one more than [`Self::rclock`] when all are.
    pub fn first_unacknowledged(&self) -> u64 {
        self.stable.min(self.rclock.max(self.recorded)) + 1
    }

    /// The next held frame that may now leave, in order of sending.
    pub fn release(&mut self) -> Option<(Rank, u64)> {
        let front = self.held.front()?;
        if front.after > self.stable {
            return None;
        }
        let Held { destination, ssn, .. } = self.held.pop_front()?;
        Some((destination, ssn))
    }

    /// The record is not used up, or not every send of former lives is redone.
    #[inline]
    pub fn is_replaying(&self) -> bool {
        !self.live
    }

    /// Deliveries made, with those before the image this life began from.
    #[inline]
    pub fn rclock(&self) -> u64 {
        self.rclock
    }

    /// Deliveries that the record held when this life began.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Messages of channel (source → this rank) delivered, with those before the image this life began from. When an
    /// image is complete and no life will begin from an older one, `source` may drop its log up to this.
    #[inline]
    pub fn delivered(&self, source: Rank) -> u64 {
        self.channels[source as usize].delivered
    }

    /// Messages sent to `destination`, with those before the image this life began from.
    #[inline]
    pub fn sent(&self, destination: Rank) -> u64 {
        self.channels[destination as usize].sent
    }

    /// Frames that wait for the event logger.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// How message `ssn` from `source` relates to the delivered ones.
    #[inline]
    pub fn accepts(&self, source: Rank, ssn: u64) -> Arrival {
        let next = self.delivered(source) + 1;
        match ssn.cmp(&next) {
            std::cmp::Ordering::Less => Arrival::Duplicate,
            std::cmp::Ordering::Equal => Arrival::Next,
            std::cmp::Ordering::Greater => Arrival::Early,
        }
    }
}

#[cfg(test)]
mod tests;

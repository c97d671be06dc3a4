//! Pessimistic sender-based message logging (MPICH-V2; Bouteiller 2006, §III.C), one rank's side.
//!
//! The rank's transport asks [`Pessimistic::next`] which channel a completion-queue read may deliver from and
//! reports what it did with [`Pessimistic::deliver`] and [`Pessimistic::send`]. Payloads, the record of
//! deliveries and the connections belong to the caller; this type only counts.
//!
//! A life that recovers passes through three states: it repeats the record; then, with the record used up, it
//! delivers nothing until it has redone every send that a former life made visible (that life made no
//! delivery there, and its later messages may depend on how many reads found nothing); then it is live.

use std::collections::VecDeque;

use crate::{Determinant, Rank, Recorded, Tolerate};

/// What the current completion-queue read may deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A message of any channel, or none.
    Any,
    /// The next message of this channel and no other. The record says that it was delivered in this very
    /// read: when it has not come yet, the read waits for it, since reads are counted.
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
    /// A former life made this send visible: compare with the log where it is kept, append where it is lost,
    /// and do not hand it to a receiver that has seen it.
    Redo {
        /// Its number on the channel, from 1.
        ssn: u64,
    },
}

/// How a frame stands to the receiver's cursor on its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The one to deliver next.
    Next,
    /// Delivered before: drop it.
    Duplicate,
    /// Something is missing before it.
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
    /// Deliveries that survive what must be tolerated; `u64::MAX` when every delivery does at once.
    stable: u64,
    held: VecDeque<Held>,
    channels: Vec<Channel>,
    /// Deliveries that the record holds.
    recorded: u64,
    expected: Option<Recorded>,
    /// Per destination, the messages that former lives made visible; empty in a first life.
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

    /// A later life. `deliveries`: how many the record holds; all of them count as stable, since the record
    /// was read from what survived. `sent_before[d]`: messages to `d` that former lives made visible.
    pub fn recovering(rank: Rank, size: usize, tolerate: Tolerate, deliveries: u64, sent_before: Vec<u64>) -> Self {
        assert!(
            sent_before.len() == size,
            "{} channels counted in a job of {size} ranks",
            sent_before.len()
        );
        let mut life = Self::new(rank, size, tolerate);
        life.recorded = deliveries;
        life.to_redo = sent_before.iter().sum();
        life.sent_before = sent_before;
        if tolerate == Tolerate::Node {
            life.stable = deliveries;
        }
        life.live = deliveries == 0 && life.to_redo == 0;
        life
    }

    /// A completion-queue read begins.
    #[inline]
    pub fn begin_poll(&mut self) {
        self.polls += 1;
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

    /// The record of delivery `rclock() + 1`, as [`Next::NeedRecord`] asked.
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

    /// The event logger came back empty: nothing is stable until it acknowledges again. The caller sends it
    /// the record from [`Self::first_unacknowledged`] on, and no acknowledgement of the lost logger may be
    /// handed in any more.
    pub fn event_logger_lost(&mut self) {
        if self.tolerate == Tolerate::Node {
            self.stable = 0;
        }
    }

    /// The first delivery that the event logger has not acknowledged; one more than [`Self::rclock`] when
    /// none is waited for.
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

    /// Deliveries made in this life.
    #[inline]
    pub fn rclock(&self) -> u64 {
        self.rclock
    }

    /// Deliveries that the record held when this life began.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Messages of channel (source → this rank) delivered in this life.
    #[inline]
    pub fn delivered(&self, source: Rank) -> u64 {
        self.channels[source as usize].delivered
    }

    /// Messages that this life has sent to `destination`.
    #[inline]
    pub fn sent(&self, destination: Rank) -> u64 {
        self.channels[destination as usize].sent
    }

    /// Frames that wait for the event logger.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// How message `ssn` from `source` stands to what has been delivered.
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
mod tests {
    use super::*;

    fn record(source: Rank, polls: u64) -> Recorded {
        Recorded { source, polls }
    }

    #[test]
    fn a_delivery_counts_the_reads_since_the_one_before() {
        let mut life = Pessimistic::new(1, 3, Tolerate::Process);
        life.begin_poll();
        life.begin_poll();
        assert_eq!(life.next(), Next::Any);
        let first = Determinant {
            receiver: 1,
            rclock: 1,
            source: 2,
            ssn: 1,
            polls: 2,
        };
        assert_eq!(life.deliver(2), (first, true));
        assert_eq!(
            life.deliver(2),
            (
                Determinant {
                    rclock: 2,
                    ssn: 2,
                    polls: 0,
                    ..first
                },
                true
            )
        );
        life.begin_poll();
        assert_eq!(
            life.deliver(0),
            (
                Determinant {
                    rclock: 3,
                    source: 0,
                    ssn: 1,
                    polls: 1,
                    ..first
                },
                true
            )
        );
        assert_eq!((life.rclock(), life.delivered(2), life.delivered(0)), (3, 2, 1));
    }

    #[test]
    fn a_process_never_waits() {
        let mut life = Pessimistic::new(0, 2, Tolerate::Process);
        for ssn in 1..5 {
            life.begin_poll();
            life.deliver(1);
            assert_eq!(life.send(1), Sending::Now { ssn });
        }
        life.event_logger_lost();
        assert_eq!(
            (life.send(0), life.held(), life.release()),
            (Sending::Now { ssn: 1 }, 0, None)
        );
        assert_eq!(life.first_unacknowledged(), 5);
    }

    #[test]
    fn sends_wait_for_every_delivery_before_them_and_leave_in_order() {
        let mut life = Pessimistic::new(0, 3, Tolerate::Node);
        assert_eq!(life.send(1), Sending::Now { ssn: 1 });
        life.begin_poll();
        life.deliver(1);
        assert_eq!(life.send(1), Sending::Hold { ssn: 2 });
        life.deliver(2);
        assert_eq!(life.send(2), Sending::Hold { ssn: 1 });
        assert_eq!(life.release(), None);
        life.acknowledge(1);
        assert_eq!((life.release(), life.release()), (Some((1, 2)), None));
        assert_eq!(life.send(1), Sending::Hold { ssn: 3 }, "an earlier one is still held");
        life.acknowledge(2);
        assert_eq!(
            (life.release(), life.release(), life.release()),
            (Some((2, 1)), Some((1, 3)), None)
        );
        assert_eq!(life.send(1), Sending::Now { ssn: 4 });
    }

    #[test]
    fn a_later_life_repeats_deliveries_in_the_same_reads() {
        let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 3, vec![0, 1]);
        assert_eq!(life.next(), Next::NeedRecord);
        life.expect(record(1, 2));
        assert_eq!(life.next(), Next::Nothing);
        life.begin_poll();
        assert_eq!(life.next(), Next::Nothing);
        life.begin_poll();
        assert_eq!(life.next(), Next::From(1));
        assert!(!life.deliver(1).1);
        life.expect(record(0, 0));
        assert_eq!(life.next(), Next::From(0));
        life.deliver(0);
        life.expect(record(1, 1));
        assert_eq!(life.next(), Next::Nothing);
        life.begin_poll();
        let last = Determinant {
            receiver: 0,
            rclock: 3,
            source: 1,
            ssn: 2,
            polls: 1,
        };
        assert_eq!(life.deliver(1), (last, false));
        // The former life sent once more before it delivered anything else.
        for _ in 0..3 {
            life.begin_poll();
            assert_eq!((life.next(), life.is_replaying()), (Next::Nothing, true));
        }
        assert_eq!(life.send(0), Sending::Now { ssn: 1 });
        assert_eq!(life.send(1), Sending::Redo { ssn: 1 });
        assert_eq!((life.next(), life.is_replaying()), (Next::Any, false));
        assert_eq!(life.send(1), Sending::Now { ssn: 2 });
        assert_eq!(life.deliver(1).0.polls, 3);
    }

    #[test]
    fn a_later_life_that_repeats_nothing_is_live_at_once() {
        let life = Pessimistic::recovering(0, 2, Tolerate::Node, 0, vec![0, 0]);
        assert_eq!((life.next(), life.is_replaying()), (Next::Any, false));
    }

    #[test]
    fn a_record_from_the_event_logger_is_stable_until_that_is_lost() {
        let mut life = Pessimistic::recovering(0, 2, Tolerate::Node, 2, vec![0, 1]);
        life.expect(record(1, 0));
        life.deliver(1);
        assert_eq!(
            (life.send(1), life.first_unacknowledged()),
            (Sending::Redo { ssn: 1 }, 3)
        );
        assert_eq!(life.send(1), Sending::Now { ssn: 2 });
        life.event_logger_lost();
        assert_eq!(
            (life.send(1), life.first_unacknowledged()),
            (Sending::Hold { ssn: 3 }, 1)
        );
        // The whole record is logged again, also what this life has not repeated yet.
        life.acknowledge(2);
        assert_eq!((life.release(), life.first_unacknowledged()), (Some((1, 3)), 3));
    }

    #[test]
    fn frames_stand_to_the_cursor() {
        let mut life = Pessimistic::new(0, 2, Tolerate::Process);
        life.deliver(1);
        assert_eq!(life.accepts(1, 1), Arrival::Duplicate);
        assert_eq!(life.accepts(1, 2), Arrival::Next);
        assert_eq!(life.accepts(1, 3), Arrival::Early);
    }

    #[test]
    #[should_panic(expected = "where the record says From(1)")]
    fn a_delivery_that_is_not_dictated_is_refused() {
        let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 1, vec![0, 0]);
        life.expect(record(1, 0));
        life.deliver(0);
    }

    #[test]
    #[should_panic(expected = "belongs into read 1")]
    fn a_dictated_delivery_may_not_be_skipped() {
        let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 1, vec![0, 0]);
        life.expect(record(1, 1));
        life.begin_poll();
        life.begin_poll();
        life.next();
    }

    #[test]
    #[should_panic(expected = "delivery 1 acknowledged, 0 made")]
    fn an_acknowledgement_of_the_future_is_refused() {
        Pessimistic::new(0, 2, Tolerate::Node).acknowledge(1);
    }
}

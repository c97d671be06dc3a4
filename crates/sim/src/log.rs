//! What a rank's node keeps for it: the logs of its channels and the record of its deliveries, without what
//! checkpoints cover.

use std::collections::{BTreeMap, VecDeque};

use resurgo_protocol::causal::Event;
use resurgo_protocol::{Node, Rank, Recorded};

/// A message in its sender's channel log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub tag: u32,
    pub content: u64,
    /// Deliveries that the sender had made.
    pub after: u64,
    /// It may leave.
    pub released: bool,
}

/// The log of one channel. Numbers are those of the messages, from 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    dropped: u64,
    /// Without those dropped from its middle.
    entries: VecDeque<Option<Entry>>,
}

impl Log {
    /// Messages dropped from the front.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Messages dropped or here.
    pub fn end(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, ssn: u64) -> Option<&Entry> {
        self.entries.get(ssn.checked_sub(self.dropped + 1)? as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, ssn: u64) -> Option<&mut Entry> {
        self.entries
            .get_mut(ssn.checked_sub(self.dropped + 1)? as usize)?
            .as_mut()
    }

    pub fn push(&mut self, entry: Entry) {
        self.entries.push_back(Some(entry));
    }

    /// Keeps only the messages whose numbers are `needed`.
    pub fn keep(&mut self, needed: impl Fn(u64) -> bool) {
        for (ssn, entry) in (self.dropped + 1..).zip(&mut self.entries) {
            if !needed(ssn) {
                *entry = None;
            }
        }
        while self.entries.front().is_some_and(Option::is_none) {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// The receiver will never ask for the first `ssn` messages again, nor for those of them that are still to be
    /// repeated.
    pub fn drop_to(&mut self, ssn: u64) {
        let dropped = ssn.saturating_sub(self.dropped);
        self.entries.drain(..self.entries.len().min(dropped as usize));
        self.dropped += dropped;
    }

    /// Drops all after message `ssn`.
    pub fn cut(&mut self, ssn: u64) {
        self.entries.truncate(ssn.saturating_sub(self.dropped) as usize);
        self.dropped = self.dropped.min(ssn);
    }

    /// Drops held entries: they are not part of the history.
    pub fn drop_held(&mut self) {
        self.entries
            .retain(|entry| entry.as_ref().is_none_or(|entry| entry.released));
    }
}

/// A rank's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub rclock: u64,
    /// Per source.
    pub delivered: Vec<u64>,
}

impl Cursor {
    pub fn beginning(size: usize) -> Self {
        Self {
            rclock: 0,
            delivered: vec![0; size],
        }
    }
}

/// A rank's deliveries, without those before `base`.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// No recovery begins before it.
    pub base: Cursor,
    entries: Vec<Recorded>,
}

impl Record {
    pub fn new(base: Cursor, entries: Vec<Recorded>) -> Self {
        Self { base, entries }
    }

    /// Deliveries dropped or here.
    pub fn end(&self) -> u64 {
        self.base.rclock + self.entries.len() as u64
    }

    /// Delivery `rclock`.
    pub fn get(&self, rclock: u64) -> Option<Recorded> {
        let at = rclock.checked_sub(self.base.rclock + 1)?;
        self.entries.get(at as usize).copied()
    }

    /// Those that are here.
    pub fn entries(&self) -> &[Recorded] {
        &self.entries
    }

    pub fn push(&mut self, record: Recorded) {
        self.entries.push(record);
    }

    /// Deliveries from `source`, dropped or here.
    pub fn of_source(&self, source: Rank) -> u64 {
        let here = self.entries.iter().filter(|record| record.source == source).count();
        self.base.delivered[source as usize] + here as u64
    }

    /// Drops all after delivery `rclock`.
    pub fn cut(&mut self, rclock: u64) {
        self.entries.truncate(rclock.saturating_sub(self.base.rclock) as usize);
    }

    /// No recovery begins before `base` any more.
    pub fn drop_to(&mut self, base: Cursor) {
        let Some(dropped) = base.rclock.checked_sub(self.base.rclock) else {
            return;
        };
        self.entries.drain(..self.entries.len().min(dropped as usize));
        self.base = base;
    }
}

/// A rank on nodes that are lost.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// It has lost its node once.
    pub has_moved: bool,
    /// What nodes have told of what is known since the last time.
    pub pieces: BTreeMap<Node, Vec<Event>>,
    /// Deliveries that it had made when it printed something last. The user has read that.
    pub printed: u64,
}

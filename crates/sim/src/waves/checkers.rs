//! The invariants of coordinated waves, from a view of the whole job that no rank has. They share no code with the
//! protocol.
//!
//! A history here is that of the whole job: the pieces of each channel, in order. A return cuts it off at the wave;
//! later pieces may differ.

use std::collections::{HashMap, HashSet};

use resurgo_protocol::Rank;

use crate::checkers::{Violation, violation};

const CUT: &str = "consistent cut";
pub(super) const DRAINED: &str = "when all have drained, every rank has all that was sent";
const EXACTLY_ONCE: &str = "exactly once, in order";
const COMPLETE: &str = "a wave is complete or is nothing";
const TOGETHER: &str = "all go on together, from one wave";
const NOTHING_PASSES: &str = "nothing passes between a group that has been copied and one that has not";
const DEFERRED: &str = "what is deferred is bounded, and leaves when the wave is over";
const PASSIVE: &str = "a rank that computes holds no wave up";
const STORED: &str = "all begin from the newest wave that is stored";
const IN_TURN: &str = "no more groups write at a time than may";

/// Ticks within which a rank answers that is outside of the group, or must stop.
pub(super) const FORCED: u64 = 100;
/// Most further ticks until a new copy is reported.
const TELLING: u64 = 150;
/// Most small messages that a rank buffers.
pub(super) const BUFFERED: usize = 4;

/// The history of one channel.
#[derive(Debug, Clone, Default)]
struct Channel {
    /// Messages, with their numbers of pieces and their contents, in the order of sending.
    sent: Vec<(u64, u64, u64)>,
    /// Messages that are completely published, and pieces of the next.
    left: usize,
    pieces: u64,
    /// All pieces: message and index.
    published: Vec<(u64, u64)>,
    consumed: usize,
    /// Messages that arrived completely.
    whole: usize,
}

/// A rank's position when it was copied: in its channels to and from each rank.
#[derive(Debug, Clone)]
struct Copied {
    to: Vec<Channel>,
    from: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Checkers {
    size: usize,
    /// `channels[from][to]`.
    channels: Vec<Vec<Channel>>,
    copied: HashMap<(u64, Rank), Copied>,
    /// The last complete wave; 0: the beginning.
    complete: u64,
    /// Complete waves that all ranks may return to.
    waves: Vec<u64>,
    /// The wave of groups that is under way, and each rank's group.
    in_groups: Option<(u64, Vec<u32>)>,
    /// Ranks whose images are being written.
    writing: Vec<bool>,
    generation: u64,
    /// Ranks that have not returned, while all return.
    returning: Vec<bool>,
    /// All ranks may go on.
    gone_on: bool,
}

impl Checkers {
    pub fn new(size: usize) -> Self {
        Self {
            size,
            channels: vec![vec![Channel::default(); size]; size],
            copied: HashMap::new(),
            complete: 0,
            waves: Vec::new(),
            in_groups: None,
            writing: vec![false; size],
            generation: 0,
            returning: vec![false; size],
            gone_on: true,
        }
    }

    /// A process does what others can see.
    fn acts(&self, rank: Rank, generation: u64) -> Result<(), Violation> {
        if generation != self.generation {
            let what = format!("a process of {rank} from before the return is still at work");
            return violation(TOGETHER, what);
        }
        Ok(())
    }

    /// A program takes a step.
    pub fn runs(&self, rank: Rank, generation: u64) -> Result<(), Violation> {
        self.acts(rank, generation)?;
        if self.returning.contains(&true) || !self.gone_on {
            return violation(TOGETHER, format!("{rank} runs, and not all have returned"));
        }
        Ok(())
    }

    pub fn send(&mut self, from: Rank, to: Rank, id: u64, pieces: u64, content: u64) {
        self.channels[from as usize][to as usize]
            .sent
            .push((id, pieces, content));
    }

    /// A wave of groups begins.
    pub fn begin_groups(&mut self, wave: u64, groups: Vec<u32>) {
        self.in_groups = Some((wave, groups));
    }

    /// It is dropped.
    pub fn end_groups(&mut self) {
        self.in_groups = None;
    }

    fn passes(&self, from: Rank, to: Rank) -> Result<(), Violation> {
        let Some((wave, groups)) = &self.in_groups else {
            return Ok(());
        };
        let is_copied = |rank: Rank| self.copied.contains_key(&(*wave, rank));
        if groups[from as usize] != groups[to as usize] && is_copied(from) != is_copied(to) {
            let what = format!("{from} sends to {to}, and one of them has been copied for wave {wave}");
            return violation(NOTHING_PASSES, what);
        }
        Ok(())
    }

    /// `rank` defers a message; its buffer has so many.
    pub fn defers(&self, rank: Rank, buffered: usize) -> Result<(), Violation> {
        if self.in_groups.is_none() {
            return violation(DEFERRED, format!("{rank} defers a message, and there is no wave"));
        }
        if buffered > BUFFERED {
            return violation(DEFERRED, format!("{rank} has buffered {buffered} messages"));
        }
        Ok(())
    }

    /// `rank` answers after so many ticks.
    pub fn answers(&self, rank: Rank, waited: u64) -> Result<(), Violation> {
        if waited > FORCED + TELLING {
            return violation(PASSIVE, format!("{rank} answers after {waited} ticks"));
        }
        Ok(())
    }

    /// `rank` begins to write its image, or has ended; at most `at_once` of `groups` may.
    pub fn writes(&mut self, rank: Rank, begins: bool, groups: &[u32], at_once: u32) -> Result<(), Violation> {
        self.writing[rank as usize] = begins;
        let writing = groups.iter().zip(&self.writing).filter(|(_, writing)| **writing);
        let busy: HashSet<u32> = writing.map(|(group, _)| *group).collect();
        if busy.len() > at_once as usize {
            return violation(IN_TURN, format!("groups {busy:?} write, and {at_once} may"));
        }
        Ok(())
    }

    pub fn publish(&mut self, from: Rank, to: Rank, generation: u64, id: u64, index: u64) -> Result<(), Violation> {
        self.acts(from, generation)?;
        self.passes(from, to)?;
        let channel = &mut self.channels[from as usize][to as usize];
        let due = channel.sent.get(channel.left).map(|(id, ..)| (*id, channel.pieces));
        if due != Some((id, index)) {
            let what = format!("{from}→{to}: piece {index} of message {id} is published, where {due:?} was due");
            return violation(EXACTLY_ONCE, what);
        }
        channel.published.push((id, index));
        channel.pieces += 1;
        if channel
            .sent
            .get(channel.left)
            .is_some_and(|(_, of, _)| *of == channel.pieces)
        {
            channel.left += 1;
            channel.pieces = 0;
        }
        Ok(())
    }

    pub fn consume(&mut self, from: Rank, to: Rank, generation: u64, id: u64, index: u64) -> Result<(), Violation> {
        self.acts(to, generation)?;
        let channel = &mut self.channels[from as usize][to as usize];
        let due = channel.published.get(channel.consumed);
        if due != Some(&(id, index)) {
            let what = format!("{from}→{to}: piece {index} of message {id} is taken, where {due:?} was due");
            return violation(EXACTLY_ONCE, what);
        }
        channel.consumed += 1;
        Ok(())
    }

    /// All of a message has arrived, with this content.
    pub fn whole(&mut self, from: Rank, to: Rank, id: u64, content: u64) -> Result<(), Violation> {
        let channel = &mut self.channels[from as usize][to as usize];
        let due = channel.sent.get(channel.whole).map(|(id, _, content)| (*id, *content));
        if due != Some((id, content)) {
            let what = format!("{from}→{to}: message {id} comes whole and says {content:x}, where {due:x?} was due");
            return violation(EXACTLY_ONCE, what);
        }
        channel.whole += 1;
        Ok(())
    }

    pub fn copied(&mut self, rank: Rank, wave: u64) {
        let from = self.channels.iter().map(|channels| {
            let channel = &channels[rank as usize];
            (channel.consumed, channel.whole)
        });
        let copied = Copied {
            to: self.channels[rank as usize].clone(),
            from: from.collect(),
        };
        self.copied.insert((wave, rank), copied);
    }

    /// The wave counts. `state` from one rank to another: the pieces in transit by its own account. No rank returns to
    /// a wave before `oldest` any more.
    pub fn complete(
        &mut self,
        wave: u64,
        oldest: u64,
        state: impl Fn(usize, usize) -> Vec<(u64, u64)>,
    ) -> Result<(), Violation> {
        for from in 0..self.size as Rank {
            let Some(sender) = self.copied.get(&(wave, from)) else {
                return violation(COMPLETE, format!("wave {wave} counts without a copy of {from}"));
            };
            for to in 0..self.size as Rank {
                let Some(receiver) = self.copied.get(&(wave, to)) else {
                    continue;
                };
                let consumed = receiver.from[from as usize].0;
                let published = &sender.to[to as usize].published;
                let state = state(from as usize, to as usize);
                if published.get(consumed..) != Some(&state[..]) {
                    let what = format!(
                        "wave {wave}: {from} had sent {} pieces to {to}, which has {consumed}, and {} are in the wave",
                        published.len(),
                        state.len()
                    );
                    return violation(CUT, what);
                }
            }
        }
        self.complete = wave;
        self.in_groups = None;
        self.waves.push(wave);
        self.waves.retain(|number| *number >= oldest);
        let waves = &self.waves;
        self.copied
            .retain(|(number, _), _| *number >= wave || waves.contains(number));
        Ok(())
    }

    /// The copies that the agent holds.
    pub fn kept(&self, copies: impl Iterator<Item = (Rank, u64)>, current: Option<u64>) -> Result<(), Violation> {
        for (rank, wave) in copies {
            if wave != self.complete && Some(wave) != current {
                let what = format!(
                    "{rank} has a copy of wave {wave}; the last complete one is {}",
                    self.complete
                );
                return violation(COMPLETE, what);
            }
        }
        Ok(())
    }

    /// Complete waves that all ranks may return to.
    pub fn waves(&self) -> &[u64] {
        &self.waves
    }

    /// A wave with this number is asked for.
    pub fn asked(&self, wave: u64) -> Result<(), Violation> {
        if wave <= self.complete {
            let what = format!("wave {wave} is asked for; the last complete one is {}", self.complete);
            return violation(COMPLETE, what);
        }
        Ok(())
    }

    pub fn nobody_writes(&mut self) {
        self.writing.fill(false);
    }

    fn chooses(&self, wave: u64, usable: u64) -> Result<(), Violation> {
        if wave < usable {
            let what = format!("all begin from wave {wave}, and could have begun from {usable}");
            return violation(STORED, what);
        }
        Ok(())
    }

    /// All ranks must start from the beginning, and could have begun from `usable`.
    pub fn may_begin_anew(&self, usable: u64, is_resumed: bool) -> Result<(), Violation> {
        self.chooses(0, usable)?;
        if is_resumed {
            return violation(STORED, "a resumed job begins at the beginning".into());
        }
        Ok(())
    }

    /// All ranks begin, from nothing.
    pub fn begin_anew(&mut self, generation: u64) {
        *self = Self {
            generation,
            ..Self::new(self.size)
        };
    }

    /// All ranks get new processes that return to `wave`. All could have begun from `usable`.
    pub fn begin(&mut self, generation: u64, wave: u64, usable: u64) -> Result<(), Violation> {
        self.chooses(wave, usable)?;
        if !self.waves.contains(&wave) {
            let what = format!("all return to wave {wave}; complete are {:?}", self.waves);
            return violation(TOGETHER, what);
        }
        self.complete = wave;
        self.generation = generation;
        self.returning.fill(true);
        self.gone_on = false;
        Ok(())
    }

    /// `rank` begins from its image of `wave`, and the first did from that of `first`.
    pub fn begins_from(&self, rank: Rank, wave: u64, first: Option<u64>) -> Result<(), Violation> {
        match first {
            Some(first) if first != wave => violation(
                TOGETHER,
                format!("{rank} begins from wave {wave}, and others from {first}"),
            ),
            _ => Ok(()),
        }
    }

    /// `rank` has restored its part of the shared state.
    pub fn returned(&mut self, rank: Rank, generation: u64) -> Result<(), Violation> {
        self.acts(rank, generation)?;
        let Some(copied) = self.copied.get(&(self.complete, rank)) else {
            return violation(TOGETHER, format!("{rank} returns to a wave that it has no part in"));
        };
        self.returning[rank as usize] = false;
        for other in 0..self.size {
            let to = &mut self.channels[rank as usize][other];
            let there = &copied.to[other];
            // A return to an older wave may have cut off some of it before.
            to.sent.clone_from(&there.sent);
            to.published.clone_from(&there.published);
            (to.left, to.pieces) = (there.left, there.pieces);
        }
        for other in 0..self.size {
            let from = &mut self.channels[other][rank as usize];
            (from.consumed, from.whole) = copied.from[other];
        }
        Ok(())
    }

    /// The agent lets all go.
    pub fn all_go_on(&mut self) -> Result<(), Violation> {
        // Until now a job whose launcher is lost may be resumed from a newer wave that could not be read.
        let complete = self.complete;
        self.waves.retain(|number| *number <= complete);
        self.copied.retain(|(number, _), _| *number <= complete);
        if self.returning.contains(&true) {
            let what = format!("all are let go, and not all have returned: {:?}", self.returning);
            return violation(TOGETHER, what);
        }
        self.gone_on = true;
        Ok(())
    }
}

//! The setting `auto`: message logging as in `process`, with images in waves. A rank that fails begins again alone, as under
//! logging; now and then all ranks return to the last complete wave, as they do when a replay has turned out to be
//! something else.
//!
//! A wave stops every rank at a step of its own. When all stand still each is copied at a moment of its own, and goes on while
//! others have yet to be copied. Nothing is drained: what is on its way when all stand still lies in the logs, between the
//! receiver's copy and the sender's. A return cuts logs and records off where the
//! wave was, before anybody reads them; then every rank begins from its image like any other that has failed.
//!
//! Groups of ranks have waves of their own in the setting `hierarchical` ([`crate::hierarchical`]); here all ranks are one.

use resurgo_protocol::Rank;
use resurgo_protocol::group::Groups;

use crate::checkers::Checkers;
use crate::mutation::Mutation;
use crate::process::{Process, State};
use crate::world::{Event, World};

/// The waves of a job.
#[derive(Debug)]
pub(crate) struct Waves {
    pub groups: Groups,
    /// Per group.
    of: Vec<OfGroup>,
    pub returns: u64,
}

/// The waves of a group.
#[derive(Debug, Default)]
struct OfGroup {
    asked: u64,
    /// The ranks that stand still for the wave under way.
    current: Option<Vec<Rank>>,
    /// All have stood still, and it is not complete yet: what the checkers knew then.
    stopped: Option<Box<Checkers>>,
    /// Ranks that still do, until they have been copied.
    to_copy: Vec<Rank>,
    /// What they knew at the complete ones, oldest first, with their numbers. Every rank of the group has its image of each.
    complete: Vec<(u64, Checkers)>,
}

impl Waves {
    pub fn new(groups: Groups) -> Self {
        Self {
            of: (0..groups.count()).map(|_| OfGroup::default()).collect(),
            groups,
            returns: 0,
        }
    }

    fn of(&mut self, rank: Rank) -> &mut OfGroup {
        let group = self.groups.of(rank);
        &mut self.of[group as usize - 1]
    }

    /// The last wave that the group of `rank` was asked for.
    pub fn asked(&mut self, rank: Rank) -> u64 {
        self.of(rank).asked
    }

    /// The oldest wave that the group of `rank` may return to; 0: the beginning.
    pub fn oldest(&mut self, rank: Rank) -> u64 {
        self.of(rank).complete.first().map_or(0, |(number, _)| *number)
    }

    /// The last complete wave of the group of `rank`; 0: none.
    pub fn newest(&mut self, rank: Rank) -> u64 {
        self.of(rank).complete.last().map_or(0, |(number, _)| *number)
    }

    /// The ranks that have waves with `rank`.
    pub fn members(&self, rank: Rank) -> Vec<Rank> {
        self.groups.members(self.groups.of(rank)).collect()
    }
}

impl World {
    /// The ranks that have waves with `rank`.
    pub(crate) fn members(&self, rank: Rank) -> Vec<Rank> {
        self.waves.as_ref().map_or(vec![rank], |waves| waves.members(rank))
    }

    /// Perhaps a wave is asked for. Whether `rank` stands still for one.
    pub(crate) fn stands_still(&mut self, rank: Rank) -> bool {
        let asked = self.image_one_in.is_some_and(|n| self.random.one_in(n));
        let members = self.members(rank);
        let is_up = |process: &Process| matches!(process.state, State::Up(_)) && !process.finished;
        let all_up = members.iter().all(|rank| is_up(&self.ranks[*rank as usize]));
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return false;
        };
        if waves.current.is_none() && waves.stopped.is_none() && asked && all_up {
            waves.asked += 1;
            waves.current = Some(Vec::new());
        }
        if waves.current.is_none() {
            return false;
        }
        let ready = matches!(&self.ranks[rank as usize].state, State::Up(life) if life.subject.may_checkpoint());
        if !ready {
            self.drop_wave(rank);
            return false;
        }
        let at_once = self.is(Mutation::CopyWhenStopped);
        let is_new = |waves: &mut Waves| {
            let current = &waves.of(rank).current;
            current.as_ref().is_some_and(|current| !current.contains(&rank))
        };
        if at_once && self.waves.as_mut().is_some_and(is_new) {
            self.note_cut(rank);
            self.copy(rank);
        }
        let Some(current) = self.waves.as_mut().and_then(|waves| waves.of(rank).current.as_mut()) else {
            return false;
        };
        if !current.contains(&rank) {
            current.push(rank);
        }
        if current.len() == members.len() {
            self.all_stand_still(rank);
        }
        !at_once
    }

    /// All ranks of the group of `rank` stand still, or have finished: each is copied before long.
    fn all_stand_still(&mut self, rank: Rank) {
        let members = self.members(rank);
        let known = Box::new(self.checkers.clone());
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return;
        };
        let number = waves.asked;
        waves.current = None;
        waves.stopped = Some(known);
        self.note(|| format!("{members:?} stand still for wave {number}"));
        // A broken variant has copied them when they stopped.
        let is_copied = |rank: &Rank| self.ranks[*rank as usize].images.under_way.is_some();
        let to_copy: Vec<Rank> = members.into_iter().filter(|rank| !is_copied(rank)).collect();
        for rank in &to_copy {
            if !self.is(Mutation::NoteWhenCopied) {
                self.note_cut(*rank);
            }
            let delay = self.random.below(3 * self.latency);
            self.schedule(delay, Event::CopyForWave { rank: *rank, number });
        }
        if to_copy.is_empty() {
            self.all_copied(rank, number);
        } else if let Some(waves) = &mut self.waves {
            waves.of(rank).to_copy = to_copy;
        }
    }

    /// `rank`, which stands still for wave `number`, is copied and goes on.
    pub(crate) fn copy_for_wave(&mut self, rank: Rank, number: u64) {
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return;
        };
        if waves.asked != number || !waves.to_copy.contains(&rank) {
            return;
        }
        waves.to_copy.retain(|other| *other != rank);
        let is_last = waves.to_copy.is_empty();
        if self.is(Mutation::NoteWhenCopied) {
            self.note_cut(rank);
        }
        self.copy(rank);
        self.note(|| format!("{rank} is copied for wave {number}"));
        self.go_on(rank);
        if is_last {
            self.all_copied(rank, number);
        }
    }

    /// The wave is complete when this is known.
    fn all_copied(&mut self, rank: Rank, number: u64) {
        let delay = 1 + self.random.below(self.image_time);
        self.schedule(delay, Event::WaveComplete { rank, number });
    }

    fn go_on(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if !process.finished {
            let incarnation = process.incarnation;
            self.schedule(1, Event::Step { rank, incarnation });
        }
    }

    /// Every rank has finished, and the group of `rank` takes a wave more if all are still there.
    pub(crate) fn last_wave(&mut self, rank: Rank) {
        let has_time = |process: &Process| process.finished && process.images.under_way.is_none();
        let all = self
            .members(rank)
            .iter()
            .all(|rank| has_time(&self.ranks[*rank as usize]));
        let waves = self.waves.as_mut().filter(|_| all).map(|waves| waves.of(rank));
        if let Some(waves) = waves.filter(|waves| waves.stopped.is_none()) {
            waves.asked += 1;
            self.all_stand_still(rank);
        }
    }

    /// Whoever stands still for a wave of the group of `rank` goes on.
    fn let_go(&mut self, rank: Rank) {
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return;
        };
        let mut still = waves.current.take().unwrap_or_default();
        still.append(&mut waves.to_copy);
        if !self.is(Mutation::CopyWhenStopped) {
            still.into_iter().for_each(|rank| self.go_on(rank));
        }
    }

    pub(crate) fn complete_wave(&mut self, rank: Rank, number: u64) {
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return;
        };
        if waves.asked != number {
            return;
        }
        let Some(known) = waves.stopped.take() else { return };
        waves.complete.push((number, *known));
        self.members(rank)
            .into_iter()
            .for_each(|rank| self.complete_image(rank));
        let kept = self.ranks[rank as usize].images.complete.len();
        if let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) {
            let gone = waves.complete.len().saturating_sub(kept);
            waves.complete.drain(..gone);
        }
    }

    /// The wave under way in the group of `rank` will not become complete.
    pub(crate) fn drop_wave(&mut self, rank: Rank) {
        let Some(waves) = self.waves.as_mut().map(|waves| waves.of(rank)) else {
            return;
        };
        if waves.current.is_none() && waves.stopped.is_none() {
            return;
        }
        self.fallbacks += 1;
        waves.stopped = None;
        let keeps = self.is(Mutation::DropKeepsACopy);
        self.let_go(rank);
        self.note(|| "the wave is dropped".into());
        let members = self.members(rank);
        for rank in &members {
            let process = &mut self.ranks[*rank as usize];
            if let Some(image) = process.images.under_way.take()
                && keeps
                && *rank == members[0]
                && let Some(last) = process.images.complete.last_mut()
            {
                *last = *image;
            }
        }
    }

    /// The newest image of `rank` is destroyed, and with it the wave.
    pub(crate) fn lose_newest_wave(&mut self, rank: Rank) {
        for rank in self.members(rank) {
            self.ranks[rank as usize].images.complete.pop();
        }
        if let Some(waves) = &mut self.waves {
            waves.of(rank).complete.pop();
        }
    }

    /// All ranks return to the last complete wave, or to the beginning if there has been none.
    pub(crate) fn return_all(&mut self) {
        self.drop_wave(0);
        let Some(waves) = &mut self.waves else { return };
        let to = waves.of(0).complete.last().map(|(_, known)| known.clone());
        if to.is_none() && self.ranks.iter().any(|process| process.images.collects) {
            return;
        }
        waves.returns += 1;
        self.note(|| "all return".into());
        let size = self.ranks.len();
        (0..size as Rank).for_each(|rank| self.crash(rank));
        let known = to.unwrap_or_else(|| Checkers::new(size, self.tolerate, self.memory_survives, false));
        self.checkers.returned(known);
        let at_once = !self.is(Mutation::CutWhenRestarted);
        let old_news_counts = self.is(Mutation::RevealLostFuture);
        for rank in 0..size as Rank {
            if at_once {
                self.cut(rank);
            }
            for to in 0..size {
                let sent = self.ranks[rank as usize].images.complete.last();
                let sent = sent.map_or(0, |image| image.life.subject.sent(to as Rank));
                let wire = &mut self.wires[rank as usize][to];
                if !old_news_counts {
                    wire.connection += 1;
                    wire.revealed = sent;
                }
            }
        }
    }

    /// What the logs and the record of `rank` hold beyond its newest image is void.
    pub(crate) fn cut(&mut self, rank: Rank) {
        let size = self.ranks.len();
        let (keep_logs, keep_record) = (self.is(Mutation::LogsKeepFuture), self.is(Mutation::RecordKeepsFuture));
        let process = &mut self.ranks[rank as usize];
        let image = process.images.complete.last();
        let rclock = image.map_or(0, |image| image.cursor().rclock);
        let sent = |to: usize| image.map_or(0, |image| image.life.subject.sent(to as Rank));
        for to in (0..size).filter(|_| !keep_logs) {
            process.logs[to].cut(sent(to));
            process.pushed[to] = process.pushed[to].min(sent(to));
        }
        if !keep_record {
            process.record.cut(rclock);
        }
    }
}

//! The setting `auto`: message logging as in `process`, with images in waves. A failed rank begins again alone, as
//! under logging. Now and then all ranks return to the last complete wave, as they do when a replay differs from the
//! record.
//!
//! A wave stops every rank at a step of its own. When all stand still each is copied at a moment of its own, and goes
//! on while others have yet to be copied. Nothing is drained: messages on their way when all stand still stay in the
//! logs, between the receiver's copy and the sender's. A return cuts logs and records off at the wave, before any rank
//! reads them. Then every rank begins from its image, like any rank that has failed.
//!
//! The real [`Coordinator`](resurgo_protocol::Coordinator) decides all of that; this module carries it out. Groups of
//! ranks have waves of their own in the setting `hierarchical` ([`crate::hierarchical`]); here all ranks are one.

pub(crate) mod ends;
pub(crate) mod nodes;
pub(crate) mod parity;

use std::collections::BTreeMap;
use std::time::Duration;

use resurgo_protocol::coordinator::{Complete, From, Manner};
use resurgo_protocol::{Command, Fact, Rank};

use crate::checkers::{Checkers, KEPT, Violation, violation};
use crate::kept::{copied, is_live, stopped};
use crate::log::Cursor;
use crate::mutation::Mutation;
use crate::process::{Process, State};
use crate::world::{Event, World};

/// Waves, apart from the coordinator's part.
#[derive(Debug)]
pub(crate) struct Waves {
    /// The checkers' state at each wave, when all stood still; by unit and number.
    known: BTreeMap<(usize, u64), Checkers>,
    /// Ranks that stand still for a wave, and have no order to copy themselves yet.
    standing: BTreeMap<Rank, u64>,
    /// Ranks that will be copied soon.
    to_copy: BTreeMap<Rank, u64>,
    /// The failed rank, in a variant that returns it alone.
    pub alone: Option<Rank>,
}

impl Waves {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            standing: BTreeMap::new(),
            to_copy: BTreeMap::new(),
            alone: None,
        }
    }
}

impl World {
    /// Reports to the coordinator, and carries out its commands.
    pub(crate) fn coordinate(&mut self, fact: Fact) {
        self.coordinator.handle(fact, Duration::from_millis(self.now));
        while let Some(command) = self.coordinator.poll() {
            self.carry_out(&command);
        }
    }

    fn carry_out(&mut self, command: &Command) {
        match *command {
            Command::Survey { number, ref ranks, .. } => {
                for rank in ranks {
                    self.coordinate(is_live(*rank, number));
                }
            }
            Command::Ask {
                rank,
                number,
                manner: Manner::Alone,
            } => self.coordinate(stopped(rank, number)),
            Command::Ask { rank, number, .. } => self.ranks[rank as usize].images.asked = Some(number),
            // Messages in its channels stay in the logs.
            Command::Drain { rank, number } => self.coordinate(Fact::Drained { rank, number, moved: 0 }),
            Command::Copy { rank, number } if self.waves.is_none() => {
                match self.ranks[rank as usize].images.late.take() {
                    Some(image) if self.is(Mutation::LateImage) => {
                        self.ranks[rank as usize].images.under_way = Some((number, image));
                    }
                    _ => self.copy(rank, number),
                }
                self.coordinate(copied(rank, number, false));
            }
            Command::Copy { rank, number } => self.will_copy(rank, number),
            Command::Abandon { rank, number } => self.abandon(rank, number),
            Command::EndCopy { rank, number } => self.end_copy(rank, number),
            Command::Complete(Complete { unit, number, .. }) => {
                let rank = self.coordinator.members(unit)[0];
                let delay = 1 + self.random.below(self.imaging.time);
                self.schedule(delay, Event::WaveComplete { rank, number });
            }
            Command::Dropped { ref why, .. } if !why.is_before() => self.wave_is_dropped(),
            Command::Kill { rank, life } => self.kill(rank, life),
            Command::Reset => self.reset(),
            Command::Go { rank } => self.has_read(rank),
            Command::LogsOfWave { number, .. } => self.logs_of_wave(number),
            Command::Replicate { rank, number, from, to } => self.replicate(rank, number, from, to),
            Command::Encode { .. }
            | Command::DropCopy { .. }
            | Command::Rebuild { .. }
            | Command::CollectSet { .. } => self.mind_parity(command),
            Command::Begin {
                rank,
                life,
                from,
                together,
                node,
                ..
            } => {
                self.placed(rank, node, from);
                self.comes_back(rank);
                self.ranks[rank as usize].images.carry_out(command);
                if together {
                    self.begins_together(rank, life, from);
                }
            }
            // The node is switched off.
            Command::EndNode { node } => self.will_end(node),
            Command::Left { node } if self.moves() => self.will_end(node),
            Command::Left { node } => self.lose_node(node),
            Command::Returned { unit, wave } => self.has_returned(unit, wave),
            Command::Forget { rank, .. } | Command::ForgetEnded { rank, .. } => {
                self.ranks[rank as usize].images.carry_out(command);
                if self.waves.is_some() || self.moves() {
                    self.will_collect(rank);
                }
            }
            Command::LetGo { rank } => self.will_let_go(rank),
            Command::Write { rank, .. } | Command::GiveUp { rank, .. } | Command::Collect { rank, .. } => {
                self.ranks[rank as usize].images.carry_out(command)
            }
            // The dispatcher's answer.
            Command::CannotRecoverAlone { rank } => self.coordinate(Fact::Return { rank }),
            Command::Fail(ref cause) => self.failure = Some(cause.to_string()),
            _ => {}
        }
    }

    /// An error if the job cannot go on.
    pub(crate) fn goes_on(&mut self) -> Result<(), Violation> {
        match self.failure.take() {
            Some(why) => violation(KEPT, why),
            None => Ok(()),
        }
    }

    /// The ranks that have waves with `rank`.
    pub(crate) fn members(&self, rank: Rank) -> Vec<Rank> {
        match self.waves {
            Some(_) => self.coordinator.members(self.coordinator.unit(rank)).to_vec(),
            None => vec![rank],
        }
    }

    /// The newest complete wave of the unit of `rank`; 0: none.
    pub(crate) fn newest_wave(&self, rank: Rank) -> u64 {
        let complete = &self.ranks[rank as usize].images.complete;
        complete.last().map_or(0, |(number, _)| *number)
    }

    /// Perhaps asks for a wave. Returns whether `rank` stands still for one.
    pub(crate) fn stands_still(&mut self, rank: Rank) -> bool {
        let asked = self.imaging.one_in.is_some_and(|n| self.random.one_in(n));
        let members = self.members(rank);
        let is_up = |process: &Process| process.is_up() && (!process.finished || process.has_left);
        let all_up = members.iter().all(|rank| is_up(&self.ranks[*rank as usize]));
        if asked && all_up && !self.coordinator.is_in_wave(rank) {
            self.want_wave(rank);
        }
        let Some(number) = self.ranks[rank as usize].images.asked else {
            return false;
        };
        let ready = matches!(&self.ranks[rank as usize].state, State::Up(life) if life.subject.may_checkpoint());
        if !ready {
            // Its deliveries may become stable in time.
            if !self.moves() || self.random.one_in(20) {
                self.refuse_wave(rank);
            }
            return false;
        }
        let at_once = self.is(Mutation::CopyWhenStopped);
        if at_once {
            self.note_cut(rank, number);
            self.copy(rank, number);
        }
        self.stand_still(rank, number);
        !at_once
    }

    /// `rank` cannot be copied for the wave that it has been asked for, if any.
    pub(crate) fn refuse_wave(&mut self, rank: Rank) {
        if let Some(number) = self.ranks[rank as usize].images.asked {
            let reason = "it repeats what it has done".to_string();
            self.coordinate(Fact::Refused { rank, number, reason });
        }
    }

    fn want_wave(&mut self, rank: Rank) {
        let unit = self.coordinator.unit(rank);
        self.coordinate(Fact::Wanted { unit });
    }

    fn stand_still(&mut self, rank: Rank, number: u64) {
        self.ranks[rank as usize].images.asked = None;
        let at_once = self.is(Mutation::CopyWhenStopped);
        if let Some(waves) = self.waves.as_mut().filter(|_| !at_once) {
            waves.standing.insert(rank, number);
        }
        self.coordinate(stopped(rank, number));
    }

    /// `rank` stands still for a wave.
    pub(crate) fn is_standing(&self, rank: Rank) -> bool {
        let waves = self.waves.as_ref();
        waves.is_some_and(|waves| waves.standing.contains_key(&rank) || waves.to_copy.contains_key(&rank))
    }

    /// All ranks of the unit of `rank` stand still, or have finished: each is copied before long.
    fn will_copy(&mut self, rank: Rank, number: u64) {
        let unit = self.coordinator.unit(rank);
        let is_copied = self.ranks[rank as usize].images.get(number).is_some();
        let checkers = &self.checkers;
        let Some(waves) = &mut self.waves else { return };
        let mut is_first = false;
        waves.known.entry((unit, number)).or_insert_with(|| {
            is_first = true;
            checkers.clone()
        });
        waves.standing.remove(&rank);
        if !is_copied {
            waves.to_copy.insert(rank, number);
        }
        if is_first {
            self.note(|| format!("all stand still for wave {number}"));
        }
        // A broken variant copied them when they stopped.
        if is_copied {
            return self.coordinate(copied(rank, number, true));
        }
        if !self.is(Mutation::NoteWhenCopied) {
            self.note_cut(rank, number);
        }
        let delay = self.random.below(3 * self.pace.latency);
        self.schedule(delay, Event::CopyForWave { rank, number });
    }

    /// `rank`, which stands still for wave `number`, is copied and goes on.
    pub(crate) fn copy_for_wave(&mut self, rank: Rank, number: u64) {
        let Some(waves) = &mut self.waves else { return };
        if waves.to_copy.get(&rank) != Some(&number) {
            return;
        }
        waves.to_copy.remove(&rank);
        if let Some(ended) = self.awaits_ended(rank) {
            self.go_on(rank);
            let reason = format!("messages of {ended} are on their way to it");
            return self.coordinate(Fact::Refused { rank, number, reason });
        }
        if self.is(Mutation::NoteWhenCopied) {
            self.note_cut(rank, number);
        }
        self.copy(rank, number);
        self.note(|| format!("{rank} is copied for wave {number}"));
        self.go_on(rank);
        self.coordinate(copied(rank, number, true));
    }

    fn go_on(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if !process.finished {
            let incarnation = process.incarnation;
            self.schedule(1, Event::Step { rank, incarnation });
        }
    }

    /// Every rank has finished: the group of `rank` takes one more wave if all are still there.
    pub(crate) fn last_wave(&mut self, rank: Rank) {
        let members = self.members(rank);
        let has_time = |rank: &Rank| {
            let process = &self.ranks[*rank as usize];
            let is_stable = matches!(&process.state, State::Up(life) if life.subject.may_checkpoint());
            process.finished && process.images.writing.is_none() && is_stable
        };
        if !members.iter().all(has_time) || self.coordinator.is_in_wave(rank) {
            return;
        }
        self.want_wave(rank);
        for rank in members {
            if let Some(number) = self.ranks[rank as usize].images.asked {
                self.stand_still(rank, number);
            }
        }
    }

    /// The wave will not become complete: ranks that stand still for it go on.
    fn abandon(&mut self, rank: Rank, number: u64) {
        self.ranks[rank as usize].images.asked = None;
        let Some(waves) = &mut self.waves else { return };
        let stood = waves.standing.remove(&rank).is_some() | waves.to_copy.remove(&rank).is_some();
        let unit = self.coordinator.unit(rank);
        waves.known.remove(&(unit, number));
        if stood {
            self.go_on(rank);
        }
    }

    fn end_copy(&mut self, rank: Rank, number: u64) {
        let images = &mut self.ranks[rank as usize].images;
        let is_first = self.coordinator.members(self.coordinator.unit(rank))[0] == rank;
        let is_dropped = number == self.coordinator.asked(rank) && !self.coordinator.is_in_wave(rank);
        if self.mutation == Some(Mutation::DropKeepsACopy)
            && is_first
            && is_dropped
            && let Some((_, image)) = images.copies.pop_if(|(copy, _)| *copy == number)
        {
            images
                .complete
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|(_, last)| *last = image.clone());
            images
                .copies
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|(_, last)| *last = image.clone());
        }
        images.carry_out(&Command::EndCopy { rank, number });
    }

    /// All have written their images of the wave, if they still do.
    pub(crate) fn complete_wave(&mut self, rank: Rank, number: u64) {
        for rank in self.members(rank) {
            if self.ranks[rank as usize].images.writing == Some(number) {
                self.complete_image(rank);
            }
        }
    }

    /// Perhaps another thing than a process fails: a copy, or a node.
    pub(crate) fn loses_more(&mut self) -> bool {
        match () {
            () if self.rules.lets_go && !self.imaging.closing && self.random.one_in(3) => self.log_is_full(),
            () if self.random.one_in(6) => self.lose_copy(),
            () if self.nodes.are() && self.random.one_in(3) => self.lose_some_nodes(),
            () if self.nodes.are() && !self.rules.hierarchical && self.random.one_in(4) => self.leave_some_node(),
            () => return false,
        }
        true
    }

    /// Some rank has no images for which others could forget.
    fn log_is_full(&mut self) {
        let rank = self.random.below(self.ranks.len() as u64) as Rank;
        let images = self.ranks[rank as usize].images.clone();
        self.coordinate(Fact::LetGo { rank });
        if self.is(Mutation::KeepImagesOfLetGo) {
            self.ranks[rank as usize].images = images;
        }
    }

    fn wave_is_dropped(&mut self) {
        self.counts.fallbacks += 1;
        self.note(|| "the wave is dropped".into());
    }

    fn will_let_go(&mut self, rank: Rank) {
        let incarnation = self.ranks[rank as usize].incarnation;
        let asked = self.coordinator.asked(rank);
        let delay = self.random.below(3 * self.pace.latency);
        self.schedule(delay, Event::LetGo(rank, incarnation, asked));
    }

    /// Forgets what an image of `rank` would not need now. A rank does what it is asked for in order: here it has
    /// forgotten that when a wave has begun since.
    pub(crate) fn let_go(&mut self, rank: Rank, incarnation: u64, asked: u64) {
        let process = &self.ranks[rank as usize];
        let State::Up(life) = &process.state else { return };
        let is_late = self.coordinator.asked(rank) != asked && !self.is(Mutation::LetGoLate);
        if process.incarnation != incarnation || is_late {
            return;
        }
        let delivered = (0..self.ranks.len() as Rank).map(|source| life.subject.delivered(source));
        let base = Cursor {
            rclock: life.subject.rclock(),
            delivered: delivered.collect(),
        };
        self.note(|| {
            format!(
                "what the logs have for {rank} is let go of, up to its delivery {}",
                base.rclock
            )
        });
        self.checkers.collects(rank, base.rclock);
        self.ranks[rank as usize].record.drop_to(base);
        self.announce_base(rank);
    }

    /// The newest copy of some rank is lost.
    fn lose_copy(&mut self) {
        let rank = self.random.below(self.ranks.len() as u64) as Rank;
        self.lose_copy_of(rank);
    }

    /// The newest copy of the rank is lost, with the file that it was writing. False: it has none.
    pub(crate) fn lose_copy_of(&mut self, rank: Rank) -> bool {
        let images = &mut self.ranks[rank as usize].images;
        let Some((number, _)) = images.copies.pop() else {
            return false;
        };
        images.writing.take_if(|writing| *writing == number);
        let stored = images.complete.iter().any(|(file, _)| *file == number);
        self.note(|| format!("the copy of {rank} for wave {number} is lost"));
        self.coordinate(Fact::CopyLost {
            rank,
            number,
            stored,
            reason: "it has ended".to_string(),
        });
        true
    }

    /// Returns all ranks to the last complete wave, or to the beginning if there is none.
    pub(crate) fn return_all(&mut self) {
        self.note(|| "all return".into());
        self.coordinate(Fact::Return { rank: 0 });
    }

    fn kill(&mut self, rank: Rank, life: u64) {
        let alone = self.waves.as_ref().and_then(|waves| waves.alone);
        if alone.is_some_and(|alone| alone != rank) {
            let orderly = false;
            return self.coordinate(Fact::Ended { rank, life, orderly });
        }
        if !self.ranks[rank as usize].is_down() {
            return self.end_now(rank);
        }
        self.ranks[rank as usize].images.begins = None;
        self.coordinate(Fact::NotBegun { rank, life });
    }

    /// The rank will begin from this image, and so will its whole unit: restores its part of the shared state.
    fn begins_together(&mut self, rank: Rank, life: u64, from: From) {
        if let Some(alone) = self.waves.as_ref().and_then(|waves| waves.alone)
            && alone != rank
        {
            self.ranks[rank as usize].images.begins = None;
            self.coordinate(Fact::Started { rank, life });
            return self.coordinate(Fact::Ready { rank, life });
        }
        if self.rules.hierarchical {
            if !self.is_found(rank, from) {
                return self.coordinate(Fact::NotBegun { rank, life });
            }
            let number = self.ranks[rank as usize].images.begins.map_or(0, From::number);
            self.cut_inside(rank, number);
        } else {
            self.rewind(rank, from.number());
        }
        if from != From::Beginning {
            self.coordinate(Fact::Ready { rank, life });
        }
    }

    /// All sends of the rank after this wave are void, and no rank will see them.
    fn rewind(&mut self, rank: Rank, number: u64) {
        if !self.is(Mutation::CutWhenRestarted) {
            self.cut(rank, number);
        }
        let old_news_counts = self.is(Mutation::RevealLostFuture);
        for to in 0..self.ranks.len() {
            let sent = self.ranks[rank as usize].images.get(number);
            let sent = sent.map_or(0, |image| image.life.subject.sent(to as Rank));
            let wire = &mut self.wires[rank as usize][to];
            if !old_news_counts {
                wire.connection += 1;
                wire.revealed = sent;
            }
        }
    }

    fn has_returned(&mut self, unit: usize, wave: u64) {
        if self.coordinator.plan().begins_anew {
            return;
        }
        let size = self.ranks.len();
        let known = self.waves.as_ref().and_then(|waves| waves.known.get(&(unit, wave)));
        let known = known.cloned();
        let known =
            known.unwrap_or_else(|| Checkers::new(size, self.rules.tolerate, self.rules.memory_survives, false));
        self.checkers.returned(known, wave == 0);
        for rank in 0..size as Rank {
            if self.ranks[rank as usize].has_left {
                self.checkers.has_left(rank);
            }
        }
    }

    /// Entries in the logs and the record of `rank` beyond its image of this wave are void.
    pub(crate) fn cut(&mut self, rank: Rank, number: u64) {
        let size = self.ranks.len();
        let (keep_logs, keep_record) = (self.is(Mutation::LogsKeepFuture), self.is(Mutation::RecordKeepsFuture));
        let process = &mut self.ranks[rank as usize];
        let image = process.images.get(number);
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

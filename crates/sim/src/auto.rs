//! The setting `auto`: message logging as in `process`, with images in waves. A rank that fails begins again alone, as under
//! logging; now and then all ranks return to the last complete wave, as they do when a replay has turned out to be
//! something else.
//!
//! A wave stops every rank at a step of its own and copies all of them when all stand still. Nothing is drained: what is on
//! its way then lies in the logs, between the receiver's copy and the sender's. A return cuts logs and records off where the
//! wave was, before anybody reads them; then every rank begins from its image like any other that has failed.

use resurgo_protocol::Rank;

use crate::checkers::Checkers;
use crate::mutation::Mutation;
use crate::process::State;
use crate::world::{Event, World};

/// The waves of a job.
#[derive(Debug, Default)]
pub(crate) struct Waves {
    asked: u64,
    /// The ranks that stand still for the wave under way.
    current: Option<Vec<bool>>,
    /// It has been copied and is not complete yet: what the checkers knew then.
    copied: Option<Box<Checkers>>,
    /// The same of the complete ones, oldest first. Every rank has its image of each.
    complete: Vec<Checkers>,
    pub returns: u64,
}

impl World {
    /// Perhaps a wave is asked for. Whether `rank` stands still for one.
    pub(crate) fn stands_still(&mut self, rank: Rank) -> bool {
        let asked = self.image_one_in.is_some_and(|n| self.random.one_in(n));
        let size = self.ranks.len();
        let all_up = self
            .ranks
            .iter()
            .all(|process| matches!(process.state, State::Up(_)) && !process.finished);
        let Some(waves) = &mut self.waves else { return false };
        if waves.current.is_none() && waves.copied.is_none() && asked && all_up {
            waves.asked += 1;
            waves.current = Some(vec![false; size]);
        }
        if waves.current.is_none() {
            return false;
        }
        let ready = matches!(&self.ranks[rank as usize].state, State::Up(life) if life.subject.may_checkpoint());
        if !ready {
            self.drop_wave();
            return false;
        }
        let at_once = self.is(Mutation::CopyWhenStopped);
        if at_once {
            self.copy(rank);
        }
        let Some(current) = self.waves.as_mut().and_then(|waves| waves.current.as_mut()) else {
            return false;
        };
        current[rank as usize] = true;
        if current.iter().all(|stands| *stands) {
            if !at_once {
                self.copy_all();
            }
            self.all_copied();
            self.let_go(rank);
            return false;
        }
        !at_once
    }

    /// All ranks stand still, or have finished.
    fn copy_all(&mut self) {
        (0..self.ranks.len() as Rank).for_each(|rank| self.copy(rank));
    }

    /// The wave is complete when this is known.
    fn all_copied(&mut self) {
        let known = Box::new(self.checkers.clone());
        let delay = 1 + self.random.below(self.image_time);
        let Some(waves) = &mut self.waves else { return };
        waves.copied = Some(known);
        let number = waves.asked;
        self.note(|| format!("all stand still and are copied for wave {number}"));
        self.schedule(delay, Event::WaveComplete { number });
    }

    /// Every rank has finished, and a wave more is taken if all are still there.
    pub(crate) fn last_wave(&mut self) {
        let all = self
            .ranks
            .iter()
            .all(|process| process.finished && process.image_under_way.is_none());
        if let Some(waves) = self.waves.as_mut().filter(|_| all) {
            waves.asked += 1;
            self.copy_all();
            self.all_copied();
        }
    }

    /// Whoever stands still for a wave goes on, but `except`, who does already.
    fn let_go(&mut self, except: Rank) {
        let current = self.waves.as_mut().and_then(|waves| waves.current.take());
        for rank in (0..).zip(current.unwrap_or_default()).filter(|(_, stands)| *stands) {
            let (rank, _) = rank;
            let incarnation = self.ranks[rank as usize].incarnation;
            if rank != except && !self.is(Mutation::CopyWhenStopped) {
                self.schedule(1, Event::Step { rank, incarnation });
            }
        }
    }

    pub(crate) fn complete_wave(&mut self, number: u64) {
        let Some(waves) = &mut self.waves else { return };
        if waves.asked != number {
            return;
        }
        let Some(known) = waves.copied.take() else { return };
        waves.complete.push(*known);
        (0..self.ranks.len() as Rank).for_each(|rank| self.complete_image(rank));
        let kept = self.ranks[0].images.len();
        if let Some(waves) = &mut self.waves {
            let gone = waves.complete.len() - kept;
            waves.complete.drain(..gone);
        }
    }

    /// The wave under way will not become complete.
    pub(crate) fn drop_wave(&mut self) {
        let Some(waves) = &mut self.waves else { return };
        if waves.current.is_none() && waves.copied.is_none() {
            return;
        }
        self.fallbacks += 1;
        waves.copied = None;
        let keeps = self.is(Mutation::DropKeepsACopy);
        self.let_go(Rank::MAX);
        self.note(|| "the wave is dropped".into());
        for process in self.ranks.iter_mut() {
            if let Some(image) = process.image_under_way.take()
                && keeps
                && process.rank == 0
                && let Some(last) = process.images.last_mut()
            {
                *last = *image;
            }
        }
    }

    /// The newest image of a rank is destroyed, and with it the wave.
    pub(crate) fn lose_newest_wave(&mut self) {
        for process in &mut self.ranks {
            process.images.pop();
        }
        if let Some(waves) = &mut self.waves {
            waves.complete.pop();
        }
    }

    /// All ranks return to the last complete wave, or to the beginning if there has been none.
    pub(crate) fn return_all(&mut self) {
        self.drop_wave();
        let Some(waves) = &mut self.waves else { return };
        let to = waves.complete.last().cloned();
        if to.is_none() && self.ranks.iter().any(|process| process.collects) {
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
                let sent = self.ranks[rank as usize].images.last();
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
        let image = process.images.last();
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

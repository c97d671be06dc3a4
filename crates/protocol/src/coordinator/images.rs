//! The images of one rank, and those that ranks have alone.

use std::time::Duration;

use super::state::{Process, patience_for};
use super::{Command, Coordinator, Manner, State, Why};
use crate::Rank;

impl Coordinator {
    /// Asks `rank` for an image of it alone.
    pub(super) fn begin_image(&mut self, rank: Rank, state: State, held: u64, now: Duration) {
        let member = &self.ranks[rank as usize];
        let why = match state {
            _ if member.images.taking.is_some() => Why::Taking,
            _ if member.images.writing.is_some() => Why::Writing,
            _ if member.process != Process::Known || self.is_halted => Why::NotRunning,
            // It is about to end, and so it will not answer.
            _ if self.is_returning(rank) => Why::Again,
            State::Filling => Why::Filling,
            State::Writing => Why::Writing,
            State::Closed => Why::Closed,
            State::NotOpened => Why::NotOpened,
            State::Repeats => Why::Repeats,
            State::Behind => Why::Behind,
            State::Live => {
                let images = self.images(rank);
                images.asked += 1;
                images.taking = Some(now + patience_for(held));
                let number = images.asked;
                let manner = Manner::Alone;
                return self.tell(Command::Ask { rank, number, manner });
            }
        };
        self.tell(Command::Dropped { rank, why });
    }

    pub(super) fn stopped_alone(&mut self, rank: Rank, number: u64, accounted: bool) {
        match accounted {
            true => self.tell(Command::Copy { rank, number }),
            // The rank reports that there is none.
            false => self.tell(Command::Abandon { rank, number }),
        }
    }

    pub(super) fn copied_alone(&mut self, rank: Rank, number: u64, sleeps: bool, stood: Duration) {
        self.images(rank).taking = None;
        if sleeps {
            self.keep_copy(rank, number);
        } else {
            self.images(rank).writer = Some(number);
        }
        self.tell(Command::Taken {
            rank,
            number,
            stood,
            sleeps,
        });
        if self.plan.files {
            self.write(rank, number);
        }
    }

    /// The copy counts: the one before it goes.
    pub(super) fn keep_copy(&mut self, rank: Rank, number: u64) {
        if let Some(former) = self.images(rank).copy.replace(number) {
            self.tell(Command::EndCopy { rank, number: former });
        }
        self.forget_without_files(rank, number);
    }

    /// The rank has finished, and its end counts as its image of this wave.
    pub(super) fn keep_end(&mut self, rank: Rank, wave: u64) {
        if let Some(number) = self.images(rank).copy.take() {
            self.tell(Command::EndCopy { rank, number });
        }
        self.forget_without_files(rank, wave);
    }

    fn forget_without_files(&mut self, rank: Rank, number: u64) {
        // With files, what is needed is what they need.
        if self.plan.protocol.recovers_alone() && !self.plan.files {
            self.forget_before(rank, number);
        }
    }

    pub(super) fn forget_before(&mut self, rank: Rank, before: u64) {
        if self.plan.keeps_logs {
            return;
        }
        self.images(rank).begun = true;
        self.tell(match self.has_end(rank, before) {
            true => Command::ForgetEnded { rank, before },
            false => Command::Forget { rank, before },
        });
    }

    /// Whether all ranks can begin at the beginning when this one fails, and logs can be let go of now for its sake.
    pub fn may_let_go(&self, rank: Rank) -> bool {
        let (member, unit) = (&self.ranks[rank as usize], &self.units[self.unit(rank)]);
        let return_together = self.plan.protocol.logs() && self.plan.protocol.can_return_together();
        let has_spawned = self.ranks.len() > self.plan.units.ranks();
        // Another one may have yet to begin from its image of the last wave.
        let asked = |rank: &Rank| self.ranks[*rank as usize].process == Process::Asked;
        let begins = self.has_waves() && unit.members.iter().any(asked);
        let is_written = unit.writing.is_none() && member.images.writing.is_none();
        let is_quiet = unit.current.is_none() && unit.returning.is_none() && member.images.taking.is_none();
        (self.may_begin_again || return_together && !self.is_resumed)
            && !(self.plan.moves || has_spawned || self.is_halted || self.all_begin)
            && is_quiet
            && is_written
            && !begins
            && member.process == Process::Known
    }

    /// Logs are full, and nobody waits for an image of the rank. What it has so far needs what is forgotten now.
    pub(super) fn let_go(&mut self, rank: Rank) {
        if !self.may_let_go(rank) {
            return;
        }
        if self.has_waves() {
            let unit = self.unit(rank);
            self.forget_copies(unit, |_| false);
            self.collect_files(unit, |_| true);
        } else {
            self.end_copies(rank);
            self.collect_files_of(rank, |_| true);
        }
        self.images(rank).begun = true;
        self.tell(Command::LetGo { rank });
    }

    /// A life of the rank ends, or an image of it is not needed: gives up the one that it is taking.
    pub(super) fn end_taking(&mut self, rank: Rank, why: Why) {
        if self.images(rank).taking.take().is_some() {
            self.tell(Command::Dropped { rank, why });
        }
    }

    /// All copies of the rank end, and what they write.
    pub(super) fn end_copies(&mut self, rank: Rank) {
        let images = self.images(rank);
        images.taking = None;
        let copies = [images.copy.take(), images.writer.take(), images.candidate.take()];
        if let Some(number) = images.writing.take() {
            self.tell(Command::GiveUp { rank, number });
        }
        for number in copies.into_iter().flatten() {
            self.tell(Command::EndCopy { rank, number });
        }
    }

    /// A copy of the rank has gone. `stored`: all of the file that it wrote is there.
    pub(super) fn copy_lost(&mut self, rank: Rank, number: u64, stored: bool, reason: String) {
        if self.images(rank).copy == Some(number) {
            self.tell(Command::ImageLost { rank, number, reason });
        }
        let images = self.images(rank);
        let wrote = images.writing == Some(number);
        if images.candidate == Some(number) {
            return self.drop_wave(rank, Why::CopyLost);
        }
        let was_newest = images.copy.take_if(|copy| *copy == number).is_some();
        if wrote {
            match stored {
                true => self.written(rank, number),
                false => self.not_written(rank, number, "the process that wrote it has ended".to_string()),
            }
        }
        if was_newest && (!self.plan.protocol.recovers_alone() || self.is_hierarchical()) {
            self.wave_lost(rank, number);
        }
    }
}

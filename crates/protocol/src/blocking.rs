//! Blocking coordinated checkpointing (LAM/MPI's bookmarks; MPICH-V's Pcl; Gao 2007, §II): all ranks stop, the channels are
//! drained, every rank copies itself, all go on. On a failure every rank returns to the last complete wave.
//!
//! [`Wave`] is the coordinator's side of one wave. A rank that stands still announces how many messages it has sent on each
//! of its channels. It drains its own until it has taken as many as their senders announced. Taking a message may send another (an
//! answer to a remote read), so the ranks drain in rounds until a round has moved nothing. [`Return`] is its side of the way
//! back.
//!
//! Where groups have their turns one after the other ([`crate::group`]), only the ranks of one group at a time do so. The
//! others hold back messages that must not pass.

use std::fmt;

use crate::Rank;
use crate::group::Groups;

/// What the coordinator does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wait for the other ranks.
    Wait,
    /// Tell every rank of the group to drain its channels (again).
    Drain,
    /// Tell every rank of the group to copy itself and to go on.
    Copy,
    /// The next group has its turn: ask its ranks to stop, and all others to hold back messages that must not pass.
    Turn,
    /// The wave is complete: the one before it is not needed any more.
    Complete,
    /// The wave cannot become complete: every rank that stands still goes on, and copies made for it are dropped.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Stopping,
    Draining,
    Copying,
    Over,
}

/// One wave, as its coordinator sees it.
#[derive(Debug, Clone)]
pub struct Wave {
    number: u64,
    phase: Phase,
    groups: Groups,
    /// The group whose turn it is, from 1.
    turn: u32,
    /// Ranks that have not done this phase's part.
    missing: Vec<bool>,
    count: usize,
    /// Something was taken from a channel in this round.
    moved: bool,
}

impl Wave {
    /// Wave `number` of `size` ranks, all of them asked to stop.
    pub fn new(number: u64, size: usize) -> Wave {
        Wave::in_groups(number, Groups::one(size))
    }

    /// Wave `number` of groups that have their turns one after the other. The ranks of the first are asked to stop, and
    /// all others to hold back messages that must not pass.
    pub fn in_groups(number: u64, groups: Groups) -> Wave {
        let size = groups.ranks();
        assert!(size > 0, "a wave has ranks");
        Wave {
            number,
            phase: Phase::Stopping,
            groups,
            turn: 1,
            missing: vec![true; size],
            count: size,
            moved: false,
        }
    }

    /// The same for ranks that copy themselves, each at a moment of its own (see [`crate::chandy_lamport`]).
    pub fn non_blocking(number: u64, size: usize) -> Wave {
        Wave {
            phase: Phase::Copying,
            ..Wave::new(number, size)
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The group whose turn it is.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// It is the turn of this rank's group.
    pub fn is_in_turn(&self, rank: Rank) -> bool {
        self.groups.of(rank) == self.turn
    }

    /// A rank that has not done this phase's part.
    pub fn awaited(&self) -> Option<Rank> {
        let place = self.missing.iter().position(|missing| *missing)?;
        Some(place as Rank)
    }

    fn done(&mut self, rank: Rank, phase: Phase) -> bool {
        assert!(
            self.phase == phase && self.missing[rank as usize],
            "rank {rank} has done {phase:?} in a wave that is {:?}",
            self.phase
        );
        self.missing[rank as usize] = false;
        self.count -= 1;
        self.count == 0
    }

    fn enter(&mut self, phase: Phase, step: Step) -> Step {
        self.phase = phase;
        // Ranks outside the group only take part in the beginning.
        for (rank, missing) in self.missing.iter_mut().enumerate() {
            *missing = phase == Phase::Stopping || self.groups.of(rank as Rank) == self.turn;
        }
        self.count = self.missing.iter().filter(|missing| **missing).count();
        self.moved = false;
        step
    }

    /// All threads of `rank` stand still, or it is outside of the group and holds back messages that must not pass. Its
    /// sends are announced.
    pub fn stopped(&mut self, rank: Rank) -> Step {
        if self.phase == Phase::Over {
            return Step::Wait;
        }
        if self.done(rank, Phase::Stopping) {
            return self.enter(Phase::Draining, Step::Drain);
        }
        Step::Wait
    }

    /// `rank` has taken `moved` messages or parts of them from its channels, which are empty now.
    pub fn drained(&mut self, rank: Rank, moved: u64) -> Step {
        if self.phase == Phase::Over {
            return Step::Wait;
        }
        self.moved |= moved > 0;
        if !self.done(rank, Phase::Draining) {
            return Step::Wait;
        }
        if self.moved {
            self.enter(Phase::Draining, Step::Drain)
        } else {
            self.enter(Phase::Copying, Step::Copy)
        }
    }

    /// `rank`'s copy exists.
    pub fn copied(&mut self, rank: Rank) -> Step {
        if self.phase == Phase::Over {
            return Step::Wait;
        }
        if !self.done(rank, Phase::Copying) {
            return Step::Wait;
        }
        if self.turn < self.groups.count() {
            self.turn += 1;
            return self.enter(Phase::Stopping, Step::Turn);
        }
        self.phase = Phase::Over;
        Step::Complete
    }

    /// `rank` had finished before: its end is its image, and nothing of it is in the way. None: nothing is missing of
    /// it now.
    pub fn passes(&mut self, rank: Rank) -> Option<Step> {
        if !self.missing[rank as usize] {
            return None;
        }
        match self.phase {
            Phase::Stopping => Some(self.stopped(rank)),
            Phase::Draining => Some(self.drained(rank, 0)),
            Phase::Copying => Some(self.copied(rank)),
            Phase::Over => None,
        }
    }

    /// A rank has failed or cannot be copied.
    pub fn failed(&mut self) -> Step {
        if std::mem::replace(&mut self.phase, Phase::Over) == Phase::Over {
            Step::Wait
        } else {
            Step::Drop
        }
    }
}

fn those(missing: &[bool]) -> Vec<usize> {
    let missing = missing.iter().enumerate().filter(|(_, missing)| **missing);
    missing.map(|(rank, _)| rank).collect()
}

/// What it waits for.
impl fmt::Display for Wave {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let (number, phase, missing) = (self.number, self.phase, those(&self.missing));
        write!(
            out,
            "wave {number}, group {}: {phase:?}, without {missing:?}",
            self.turn
        )
    }
}

/// What the coordinator does next while all ranks return to a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Wait for others.
    Wait,
    /// End every process that runs, and each one that was asked for, as soon as it is there.
    End,
    /// Give every rank a process. Only these touch the channels now.
    Begin,
    /// Every rank is as it was at the wave: let all go on.
    Go,
}

/// The return of all ranks to the last complete wave, as its coordinator sees it.
///
/// A new process changes shared state (it finds its channels empty) before it reports that it is ready. So no rank gets
/// a process before every former one has ended, and none goes on before all are ready.
#[derive(Debug, Clone)]
pub struct Return {
    attempts: u32,
    beginning: bool,
    /// Ranks whose former process has not ended; or, when all begin, that are not ready.
    missing: Vec<bool>,
}

impl Return {
    /// `alive`: the ranks that have a process, or for which one has been asked.
    pub fn new(alive: Vec<bool>) -> (Return, Turn) {
        let mut this = Return {
            attempts: 1,
            beginning: false,
            missing: alive,
        };
        let turn = if this.missing.contains(&true) {
            Turn::End
        } else {
            this.begin()
        };
        (this, turn)
    }

    fn begin(&mut self) -> Turn {
        self.beginning = true;
        self.missing.fill(true);
        Turn::Begin
    }

    /// How often processes were ended, or are about to be, to begin from a wave.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// An image was unusable, so there is one less: this attempt does not count.
    pub fn image_lost(&mut self) {
        self.attempts = self.attempts.saturating_sub(1);
    }

    /// Former processes have not all ended.
    pub fn is_ending(&self) -> bool {
        !self.beginning
    }

    /// The process of `rank` has ended, or will not exist.
    pub fn ended(&mut self, rank: Rank) -> Turn {
        if self.beginning {
            // Other ranks may have begun to wait for it.
            self.attempts += 1;
            self.beginning = false;
            self.missing.fill(true);
            self.missing[rank as usize] = false;
            return if self.missing.contains(&true) {
                Turn::End
            } else {
                self.begin()
            };
        }
        self.missing[rank as usize] = false;
        if self.missing.contains(&true) {
            Turn::Wait
        } else {
            self.begin()
        }
    }

    /// The new process of `rank` is as it was at the wave.
    pub fn ready(&mut self, rank: Rank) -> Turn {
        if !self.beginning {
            return Turn::Wait;
        }
        self.missing[rank as usize] = false;
        if self.missing.contains(&true) {
            Turn::Wait
        } else {
            Turn::Go
        }
    }
}

/// What it waits for.
impl fmt::Display for Return {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let what = match self.beginning {
            true => "ready",
            false => "ended",
        };
        let missing = those(&self.missing);
        write!(out, "return, attempt {}: {missing:?} not {what}", self.attempts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_told() {
        let mut wave = Wave::new(7, 3);
        wave.stopped(1);
        assert_eq!(wave.to_string(), "wave 7, group 1: Stopping, without [0, 2]");
        let (mut back, _) = Return::new(vec![true, false, true]);
        assert_eq!(back.to_string(), "return, attempt 1: [0, 2] not ended");
        back.ended(0);
        back.ended(2);
        back.ready(1);
        assert_eq!(back.to_string(), "return, attempt 1: [0, 2] not ready");
    }

    #[test]
    fn a_wave_drains_until_nothing_moves() {
        let mut wave = Wave::new(1, 2);
        assert_eq!(wave.stopped(1), Step::Wait);
        assert_eq!(wave.stopped(0), Step::Drain);
        assert_eq!(wave.drained(0, 0), Step::Wait);
        assert_eq!(wave.drained(1, 3), Step::Drain);
        assert_eq!(wave.drained(1, 0), Step::Wait);
        assert_eq!(wave.drained(0, 1), Step::Drain);
        assert_eq!(wave.drained(0, 0), Step::Wait);
        assert_eq!(wave.drained(1, 0), Step::Copy);
        assert_eq!(wave.copied(0), Step::Wait);
        assert_eq!(wave.copied(1), Step::Complete);
    }

    #[test]
    fn groups_are_copied_in_turn_when_all_others_hold_back() {
        let mut wave = Wave::in_groups(4, Groups::consecutive(3, 2));
        assert_eq!((wave.turn(), wave.is_in_turn(1), wave.is_in_turn(2)), (1, true, false));
        assert_eq!(wave.stopped(0), Step::Wait);
        assert_eq!(wave.stopped(1), Step::Wait);
        assert_eq!(wave.stopped(2), Step::Drain);
        assert_eq!(wave.drained(0, 0), Step::Wait);
        assert_eq!(wave.drained(1, 0), Step::Copy);
        assert_eq!(wave.copied(1), Step::Wait);
        assert_eq!(wave.copied(0), Step::Turn);
        assert_eq!((wave.turn(), wave.is_in_turn(1), wave.is_in_turn(2)), (2, false, true));
        assert_eq!(wave.stopped(2), Step::Wait);
        assert_eq!(wave.stopped(0), Step::Wait);
        assert_eq!(wave.stopped(1), Step::Drain);
        assert_eq!(wave.drained(2, 1), Step::Drain);
        assert_eq!(wave.drained(2, 0), Step::Copy);
        assert_eq!(wave.copied(2), Step::Complete);
    }

    #[test]
    fn who_has_finished_holds_nobody_up() {
        let mut wave = Wave::new(1, 2);
        assert_eq!(wave.passes(1), Some(Step::Wait));
        assert_eq!(wave.passes(1), None);
        assert_eq!(wave.stopped(0), Step::Drain);
        assert_eq!(wave.drained(0, 1), Step::Wait);
        // What the others take may lead to another round.
        assert_eq!(wave.passes(1), Some(Step::Drain));
        assert_eq!(wave.passes(1), Some(Step::Wait));
        assert_eq!(wave.drained(0, 0), Step::Copy);
        assert_eq!(wave.copied(0), Step::Wait);
        assert_eq!(wave.passes(1), Some(Step::Complete));
        assert_eq!(wave.passes(1), None);
    }

    #[test]
    #[should_panic(expected = "rank 2 has done Draining")]
    fn who_is_outside_of_the_group_drains_nothing() {
        let mut wave = Wave::in_groups(1, Groups::consecutive(3, 2));
        (0..3).for_each(|rank| _ = wave.stopped(rank));
        wave.drained(2, 0);
    }

    #[test]
    fn a_wave_that_stops_nobody_is_complete_with_the_last_copy() {
        let mut wave = Wave::non_blocking(1, 2);
        assert_eq!(wave.copied(1), Step::Wait);
        assert_eq!(wave.copied(0), Step::Complete);
        assert_eq!(wave.failed(), Step::Wait);
    }

    #[test]
    fn a_wave_with_a_failure_is_dropped_once_and_hears_no_more() {
        let mut wave = Wave::new(1, 3);
        wave.stopped(0);
        assert_eq!(wave.failed(), Step::Drop);
        assert_eq!(wave.failed(), Step::Wait);
        assert_eq!(wave.stopped(1), Step::Wait);
        assert_eq!(wave.stopped(2), Step::Wait);
        assert_eq!(wave.drained(2, 0), Step::Wait);
    }

    #[test]
    #[should_panic(expected = "rank 0 has done Stopping")]
    fn a_rank_stops_once() {
        let mut wave = Wave::new(1, 2);
        wave.stopped(0);
        wave.stopped(0);
    }

    #[test]
    fn all_end_before_any_begins_and_all_are_ready_before_any_goes_on() {
        let (mut back, turn) = Return::new(vec![true, false, true]);
        assert_eq!(turn, Turn::End);
        assert_eq!(back.ready(0), Turn::Wait);
        assert_eq!(back.ended(2), Turn::Wait);
        assert_eq!(back.ended(0), Turn::Begin);
        assert_eq!(back.ready(1), Turn::Wait);
        assert_eq!(back.ready(0), Turn::Wait);
        assert_eq!(back.ready(2), Turn::Go);
        assert_eq!(back.attempts(), 1);
    }

    #[test]
    fn a_failure_among_those_that_begin_ends_them_all() {
        let (mut back, turn) = Return::new(vec![false, false]);
        assert_eq!(turn, Turn::Begin);
        assert_eq!(back.ready(0), Turn::Wait);
        assert_eq!(back.ended(0), Turn::End);
        assert_eq!((back.attempts(), back.is_ending()), (2, true));
        back.image_lost();
        assert_eq!(back.attempts(), 1);
        assert_eq!(back.ended(1), Turn::Begin);
        assert_eq!(back.ready(1), Turn::Wait);
        assert_eq!(back.ready(0), Turn::Go);
        let (mut alone, _) = Return::new(vec![false]);
        assert_eq!(alone.ended(0), Turn::Begin);
        assert_eq!(alone.ready(0), Turn::Go);
    }
}

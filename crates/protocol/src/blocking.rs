//! Blocking coordinated checkpointing (LAM/MPI's bookmarks; MPICH-V's Pcl; Gao 2007, §II): all ranks stop, the channels are
//! drained, every rank copies itself, all go on. On a failure every rank returns to the last complete wave.
//!
//! [`Wave`] is the coordinator's side of one wave. A rank that stands still announces how many messages it has sent on each
//! of its channels, and drains its own until it has taken as many as were announced. Taking a message may send another (an
//! answer to a remote read), so the ranks drain in rounds until a round has moved nothing.

use crate::Rank;

/// What the coordinator does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wait for the other ranks.
    Wait,
    /// Tell every rank to drain its channels (again).
    Drain,
    /// Tell every rank to copy itself and to go on.
    Copy,
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
    /// Ranks that have not done this phase's part.
    missing: Vec<bool>,
    count: usize,
    /// Something was taken from a channel in this round.
    moved: bool,
}

impl Wave {
    /// Wave `number` of `size` ranks, all of which have been asked to stop.
    pub fn new(number: u64, size: usize) -> Wave {
        assert!(size > 0, "a wave has ranks");
        Wave {
            number,
            phase: Phase::Stopping,
            missing: vec![true; size],
            count: size,
            moved: false,
        }
    }

    pub fn number(&self) -> u64 {
        self.number
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
        self.missing.fill(true);
        self.count = self.missing.len();
        self.moved = false;
        step
    }

    /// All threads of `rank` stand still, and what it has sent is announced.
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
        if self.done(rank, Phase::Copying) {
            self.phase = Phase::Over;
            return Step::Complete;
        }
        Step::Wait
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! FT-MPI's rules for a communicator (Gabriel 2003, §3.1.1).

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use resurgo_protocol::modes::Modes;
use resurgo_protocol::survivors::Verdict;

use crate::mpi::{ERR_IN_STATUS, ERR_OTHER, ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED};
use crate::provider;

/// A communicator's states, with their numbers in `resurgo_ft.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Whole = 0,
    Detected = 1,
    Recovering = 2,
    Recovered = 3,
    Failed = 4,
}

/// A failed member, for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Its rank in the communicator.
    pub place: c_int,
    /// The job's number of it.
    pub rank: u32,
}

/// What FT-MPI knows of a communicator.
#[derive(Debug, Clone)]
pub struct OfFtMpi {
    pub modes: Modes,
    /// Ranks that had failed, or finished, when it was made: it is whole without them.
    pub absorbed: Vec<u32>,
    pub state: State,
    /// The failures that the last rebuilding has dealt with.
    pub last: Vec<Failure>,
    /// Failed members in whose places others are being started.
    pub joining: Vec<u32>,
}

impl OfFtMpi {
    pub fn new(modes: Modes, absorbed: Vec<u32>) -> OfFtMpi {
        if modes.is_strict {
            closes();
        }
        OfFtMpi {
            modes,
            absorbed,
            state: State::Whole,
            last: Vec::new(),
            joining: Vec::new(),
        }
    }

    /// It is whole without those that this verdict counts.
    pub fn is_rebuilt(&mut self, verdict: &Verdict) {
        let are_counted = |rank: &u32| (1..=verdict.failures).contains(&provider::failure(*rank));
        self.absorbed.extend(&verdict.failed);
        self.absorbed.extend((0..provider::ranks()).filter(are_counted));
        self.absorbed.sort_unstable();
        self.absorbed.dedup();
        self.joining.clear();
        self.state = State::Recovered;
    }

    /// A failure ends all calls on it, also between survivors.
    pub fn stops(&self) -> bool {
        !self.modes.messages_go_on
    }

    /// The ranks whose failures count, of a communicator with these members. Where calls stop, all of the job: a member
    /// may be on its way to rebuild another communicator. (A communicator of one rank waits for nobody.)
    pub fn watched(&self, members: &[u32]) -> Vec<u32> {
        let all = self.stops() && members.len() > 1;
        let counts = |rank: &u32| !self.absorbed.contains(rank);
        match all {
            true => (0..provider::ranks()).filter(counts).collect(),
            false => members.iter().copied().filter(counts).collect(),
        }
    }
}

/// Values that the program has pointers to, until it asks for the same again.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    pub numbers: [Vec<c_int>; 9],
    pub times: Vec<f64>,
}

/// The job goes by these rules.
pub fn is_on() -> bool {
    provider::modes().is_some()
}

pub fn all_failed() -> Vec<u32> {
    (0..provider::ranks())
        .filter(|rank| provider::failure(*rank) != 0)
        .collect()
}

/// A class of errors as the program sees it.
pub fn shown(class: c_int) -> c_int {
    let is_failure = [ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED, ERR_IN_STATUS].contains(&class);
    match is_failure && is_on() {
        true => ERR_OTHER,
        false => class,
    }
}

/// Collective calls of some communicator have a closing barrier.
static ARE_CLOSED: AtomicBool = AtomicBool::new(false);

pub fn closes() {
    ARE_CLOSED.store(true, Ordering::Release);
}

#[inline]
pub fn are_closed() -> bool {
    ARE_CLOSED.load(Ordering::Relaxed)
}

/// There are communicators with gaps.
static ARE_GAPS: AtomicBool = AtomicBool::new(false);

#[inline]
pub fn are_gaps() -> bool {
    ARE_GAPS.load(Ordering::Relaxed)
}

/// Who is, or was, where, as the program counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The job's number of each rank.
    pub ranks: Vec<u32>,
    /// MPI's number of it; none: a gap.
    pub live: Vec<Option<c_int>>,
}

impl Places {
    /// Of a communicator with these members, of which others had these places before.
    pub fn new(ranks: Vec<u32>, members: &[u32]) -> Places {
        let live_as = |rank: &u32| members.iter().position(|member| member == rank);
        let live = ranks.iter().map(|rank| live_as(rank).map(|at| at as c_int)).collect();
        ARE_GAPS.store(true, Ordering::Release);
        Places { ranks, live }
    }

    /// The place of MPI's rank.
    pub fn place(&self, of: c_int) -> c_int {
        let place = self.live.iter().position(|live| *live == Some(of));
        place.map_or(of, |place| place as c_int)
    }

    /// The places that are taken, in MPI's order.
    pub fn taken(&self) -> Vec<usize> {
        let mut taken: Vec<(c_int, usize)> = self
            .live
            .iter()
            .enumerate()
            .filter_map(|(at, live)| Some(((*live)?, at)))
            .collect();
        taken.sort_unstable();
        taken.into_iter().map(|(_, at)| at).collect()
    }
}

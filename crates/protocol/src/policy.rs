//! What follows from the end of a rank's process: the failure policy.

use crate::{Protocol, Rank};

/// A rank that fails so many times in a row by the same cause at the same place is not started again.
pub const SAME_FAILURES: u32 = 3;

/// The number of SIGKILL, which says nothing about the program: whoever sends it may do so again and again.
const KILLED: i32 = 9;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum End {
    Exited(i32),
    Signalled(i32),
}

impl End {
    /// As shells have it.
    pub fn exit_code(self) -> i32 {
        match self {
            End::Exited(code) => code,
            End::Signalled(signal) => 128 + signal,
        }
    }
}

/// Why a rank has ended itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Its program does not repeat what a former life did.
    Diverged,
    /// Something else, after which no other life could go on.
    Other,
}

/// The end of one life of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    pub rank: Rank,
    pub end: End,
    /// It had begun MPI in this life.
    pub initialised: bool,
    /// It had ended MPI in this life, for the last time.
    pub finalised: bool,
    /// There is no MPI in its program.
    pub is_plain: bool,
    pub report: Option<Report>,
    /// The messages that it had sent and received.
    pub messages: u64,
}

/// How many restarts a job may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Limits {
    pub restarts: u64,
    pub restarts_per_rank: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The rank has finished; its exit code counts.
    Finished,
    /// The rank has failed and is to be started again.
    Restart,
    /// The job ends, with the exit code of [`Why::exit_code`].
    EndJob(Why),
}

/// Why a job ends with the end of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The rank has said why it ended itself.
    Report,
    /// It ended before it began MPI: the others would wait for it for ever, and another life would come to the same.
    BeforeMpi,
    /// It is no MPI program.
    NoMpi,
    /// Nothing is kept from which it could go on.
    NothingKept,
    /// It has failed so many times in a row by the same cause, after so many messages.
    SamePlace { times: u32, messages: u64 },
    /// It has had so many restarts, and may have no more.
    LimitOfRank { restarts: u64, has_images: bool },
    /// The job has had so many restarts, and may have no more.
    LimitOfJob { restarts: u64, has_images: bool },
}

impl Why {
    /// What the job ends with. A job that has lost a rank must not look like one that has succeeded. `report`: the code of
    /// ranks that say why they end themselves.
    pub fn exit_code(self, end: End, report: i32) -> i32 {
        match self {
            Why::Report => report,
            _ => end.exit_code().max(1),
        }
    }
}

#[derive(Debug, Default, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct OfRank {
    exit_code: Option<i32>,
    ever_initialised: bool,
    restarts: u64,
    /// The last failure and the messages the rank had made by then.
    last: Option<(End, u64)>,
    same: u32,
}

/// What has happened to the ranks of a job, which outlives a suspension.
#[derive(Debug, Default, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Failures {
    ranks: Vec<OfRank>,
    restarts: u64,
}

/// The failure policy of a job.
#[derive(Debug, Clone)]
pub struct Policy {
    protocol: Protocol,
    limits: Limits,
    failures: Failures,
    /// There have been images.
    has_images: bool,
}

impl Policy {
    pub fn new(size: usize, protocol: Protocol, limits: Limits) -> Policy {
        let mut policy = Policy {
            protocol,
            limits,
            failures: Failures::default(),
            has_images: false,
        };
        policy.grow(size);
        policy
    }

    /// Goes on from `before`, within the present limits.
    pub fn resume(&mut self, before: Failures) {
        self.failures = before;
        self.has_images = true;
    }

    /// What [`Policy::resume`] goes on from.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// There are images, or have been.
    pub fn has_images(&mut self) {
        self.has_images = true;
    }

    /// Waves have been given up, or are taken again: the job goes on with this protocol.
    pub fn goes_on_with(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Restarts so far.
    pub fn restarts(&self) -> u64 {
        self.failures.restarts
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize) {
        self.failures.ranks.resize_with(ranks, OfRank::default);
    }

    /// Every rank has finished.
    pub fn all_finished(&self) -> bool {
        self.failures.ranks.iter().all(|rank| rank.exit_code.is_some())
    }

    /// These ranks have returned to a moment at which none of them had finished.
    pub fn go_on(&mut self, ranks: &[usize]) {
        for rank in ranks {
            self.failures.ranks[*rank].exit_code = None;
        }
    }

    /// `rank` has finished.
    pub fn has_finished(&self, rank: usize) -> bool {
        self.failures.ranks[rank].exit_code.is_some()
    }

    /// The job's exit status when every rank has finished: the first that is not zero, by rank.
    pub fn exit_code(&self) -> i32 {
        let mut codes = self.failures.ranks.iter().filter_map(|rank| rank.exit_code);
        codes.find(|code| *code != 0).unwrap_or(0)
    }

    /// A rank has ended.
    pub fn ended(&mut self, ending: &Ending) -> Decision {
        let rank = &mut self.failures.ranks[ending.rank as usize];
        rank.ever_initialised |= ending.initialised;
        match ending.report {
            None => {}
            Some(Report::Diverged) if self.protocol.can_return_together() => {}
            Some(_) => return Decision::EndJob(Why::Report),
        }
        match ending.end {
            End::Exited(code) if ending.finalised => {
                rank.exit_code = Some(code);
                return Decision::Finished;
            }
            // Nobody waits for a program without MPI.
            End::Exited(code) if !rank.ever_initialised && (code == 0 || ending.is_plain) => {
                rank.exit_code = Some(code);
                return Decision::Finished;
            }
            End::Exited(_) if !rank.ever_initialised => return Decision::EndJob(Why::BeforeMpi),
            End::Signalled(_) if !rank.ever_initialised && ending.is_plain => return Decision::EndJob(Why::NoMpi),
            _ => {}
        }
        if !self.protocol.has_images() {
            return Decision::EndJob(Why::NothingKept);
        }
        self.why_not_again(ending).map_or(Decision::Restart, Decision::EndJob)
    }

    /// Why a rank that has failed is not started again. If it is, that is counted.
    fn why_not_again(&mut self, ending: &Ending) -> Option<Why> {
        let rank = &mut self.failures.ranks[ending.rank as usize];
        let messages = ending.messages;
        rank.same = match rank.last {
            Some(last) if last == (ending.end, messages) => rank.same + 1,
            _ => 1,
        };
        rank.last = Some((ending.end, messages));
        let (restarts, times, has_images) = (rank.restarts, rank.same, self.has_images);
        if times >= SAME_FAILURES && ending.end != End::Signalled(KILLED) {
            return Some(Why::SamePlace { times, messages });
        }
        if restarts >= self.limits.restarts_per_rank {
            return Some(Why::LimitOfRank { restarts, has_images });
        }
        let of_job = self.failures.restarts;
        if of_job >= self.limits.restarts {
            return Some(Why::LimitOfJob {
                restarts: of_job,
                has_images,
            });
        }
        rank.restarts += 1;
        self.failures.restarts += 1;
        None
    }
}

#[cfg(test)]
mod tests;

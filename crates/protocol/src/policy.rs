//! The failure policy: what follows from the end of a rank's process.

use crate::survivors::Survivors;
use crate::{Node, Protocol, Rank};

/// A rank that fails so many times in a row by the same cause at the same place does not start again.
pub const SAME_FAILURES: u32 = 3;

/// The number of SIGKILL, which says nothing about the program: its sender may send it again and again.
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
    /// Its program has no MPI.
    pub is_plain: bool,
    pub report: Option<Report>,
    /// The messages that it had sent and received.
    pub messages: u64,
}

/// The restarts that a job may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Limits {
    pub restarts: u64,
    pub restarts_per_rank: u64,
    /// Restarts of a rank before a program that deals with failures is told that it has failed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub untold: u64,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The rank has finished; its exit code counts.
    Finished,
    /// The rank has failed and starts again.
    Restart,
    /// The rank has failed, and the program deals with that.
    Lost,
    /// The job ends, with the exit code of [`Why::exit_code`].
    EndJob(Why),
}

/// Why a job ends with the end of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The rank has reported why it ended itself.
    Report,
    /// It ended before it began MPI: the others would wait for it for ever, and another life would do the same.
    BeforeMpi,
    /// It is not an MPI program.
    NoMpi,
    /// The others have been told of failures, or more ranks were spawned. So it cannot recover, and they cannot go on
    /// without it, as it had not left MPI_Init.
    NotBegun,
    /// Nothing is kept to go on from.
    NothingKept,
    /// It has failed so many times in a row by the same cause, after so many messages.
    SamePlace { times: u32, messages: u64 },
    /// It has had so many restarts, and may have no more.
    LimitOfRank { restarts: u64, has_images: bool },
    /// The job has had so many restarts, and may have no more.
    LimitOfJob { restarts: u64, has_images: bool },
}

/// Why no new rank may take the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// This rank runs.
    Runs { rank: Rank },
    /// So many have been in this place already.
    LimitOfPlace { place: Rank, restarts: u64 },
    /// The job has had so many.
    LimitOfJob { restarts: u64 },
}

impl Why {
    /// The exit code of the job. A job that lost a rank must not look successful. `report`: the code of ranks that say
    /// why they end themselves.
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
    /// It has failed, and does not begin again.
    #[cfg_attr(feature = "serde", serde(default))]
    is_lost: bool,
    ever_initialised: bool,
    restarts: u64,
    /// The last failure and the messages the rank had made by then.
    last: Option<(End, u64)>,
    same: u32,
}

/// The failures of a job's ranks, which outlive a suspension.
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
    /// There were images.
    has_images: bool,
    /// The program deals with failures itself.
    pub survivors: Option<Survivors>,
}

impl Policy {
    pub fn new(size: usize, protocol: Protocol, limits: Limits) -> Policy {
        let mut policy = Policy {
            protocol,
            limits,
            failures: Failures::default(),
            has_images: false,
            survivors: None,
        };
        policy.grow(size);
        policy
    }

    /// The same, in a job whose program deals with failures itself if it `survives`. `nodes`: that of each rank.
    pub fn surviving(self, survives: bool, nodes: Vec<Node>) -> Policy {
        let survivors = survives.then(|| match self.limits.untold {
            0 => Survivors::on(nodes),
            _ => Survivors::on(nodes).recovering(),
        });
        Policy { survivors, ..self }
    }

    /// The node of these ranks is lost, and the program deals with that. Returns those that have failed with it. None:
    /// the others cannot go on without one of them.
    pub fn lost_with_node(&mut self, ranks: &[usize]) -> Option<Vec<usize>> {
        let survivors = self.survivors.as_ref()?;
        let of = |rank: usize| &self.failures.ranks[rank];
        let ran = ranks.iter().copied();
        let failed: Vec<usize> = ran
            .filter(|rank| of(*rank).exit_code.is_none() && !of(*rank).is_lost)
            .collect();
        if !failed.iter().all(|rank| survivors.can_do_without(*rank as Rank)) {
            return None;
        }
        failed.iter().for_each(|rank| self.failures.ranks[*rank].is_lost = true);
        Some(failed)
    }

    /// Goes on from `before`, within the present limits.
    pub fn resume(&mut self, before: Failures) {
        self.failures = before;
        self.has_images = true;
    }

    /// The state for [`Policy::resume`].
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// There are images, or have been.
    pub fn has_images(&mut self) {
        self.has_images = true;
    }

    /// Waves were given up, or are taken again: the job goes on with this protocol.
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

    /// New ranks are to start in the places of these, which do not run any more. They count as restarts; or why there
    /// may be no more.
    pub fn replace(&mut self, ranks: &[Rank]) -> Result<(), Refused> {
        let Some(survivors) = &self.survivors else {
            return Err(Refused::Runs { rank: 0 });
        };
        let of = |rank: Rank| &self.failures.ranks[rank as usize];
        let runs = |rank: &&Rank| of(**rank).exit_code.is_none() && !of(**rank).is_lost;
        if let Some(rank) = ranks.iter().find(runs) {
            return Err(Refused::Runs { rank: *rank });
        }
        let places: Vec<Rank> = ranks.iter().map(|rank| survivors.place(*rank)).collect();
        let has_enough = |place: &&Rank| of(**place).restarts >= self.limits.restarts_per_rank;
        if let Some(place) = places.iter().find(has_enough) {
            let restarts = of(*place).restarts;
            return Err(Refused::LimitOfPlace {
                place: *place,
                restarts,
            });
        }
        let restarts = self.failures.restarts;
        if restarts + places.len() as u64 > self.limits.restarts {
            return Err(Refused::LimitOfJob { restarts });
        }
        places
            .iter()
            .for_each(|place| self.failures.ranks[*place as usize].restarts += 1);
        self.failures.restarts += places.len() as u64;
        Ok(())
    }

    /// Every rank has finished, or is lost.
    pub fn all_finished(&self) -> bool {
        self.failures
            .ranks
            .iter()
            .all(|rank| rank.exit_code.is_some() || rank.is_lost)
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

    /// It has failed, and does not begin again.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.failures.ranks[rank].is_lost
    }

    /// The job's exit status when every rank has finished: the first that is not zero, by rank. Lost ranks have none;
    /// when all are lost, nobody has finished the job.
    pub fn exit_code(&self) -> i32 {
        let codes = self.failures.ranks.iter().filter_map(|rank| rank.exit_code);
        let mut bad = codes.clone().filter(|code| *code != 0);
        bad.next().unwrap_or(i32::from(codes.count() == 0))
    }

    /// A rank has ended.
    pub fn ended(&mut self, ending: &Ending) -> Decision {
        self.failures.ranks[ending.rank as usize].ever_initialised |= ending.initialised;
        match ending.report {
            None => {}
            Some(Report::Diverged) if self.protocol.can_return_together() || self.can_be_told(ending.rank) => {}
            Some(_) => return Decision::EndJob(Why::Report),
        }
        let rank = &mut self.failures.ranks[ending.rank as usize];
        match ending.end {
            End::Exited(code) if ending.finalised => {
                rank.exit_code = Some(code);
                return Decision::Finished;
            }
            // No rank waits for a program without MPI.
            End::Exited(code) if !rank.ever_initialised && (code == 0 || ending.is_plain) => {
                rank.exit_code = Some(code);
                return Decision::Finished;
            }
            End::Exited(_) if !rank.ever_initialised => return Decision::EndJob(Why::BeforeMpi),
            End::Signalled(_) if !rank.ever_initialised && ending.is_plain => return Decision::EndJob(Why::NoMpi),
            _ => {}
        }
        if self.survivors.is_some() && self.limits.untold > 0 {
            return self.recovers_or_is_lost(ending);
        }
        if let Some(survivors) = &self.survivors
            && survivors.can_do_without(ending.rank)
        {
            rank.is_lost = true;
            return Decision::Lost;
        }
        if !self.protocol.has_images() {
            return Decision::EndJob(Why::NothingKept);
        }
        self.why_not_again(ending).map_or(Decision::Restart, Decision::EndJob)
    }

    /// Ranks recover before their failures are told, and others can go on without this one.
    fn can_be_told(&self, rank: Rank) -> bool {
        let survivors = self.survivors.as_ref().filter(|_| self.limits.untold > 0);
        survivors.is_some_and(|survivors| survivors.can_do_without(rank))
    }

    /// The rank recovers by itself as long as it can. Then the program is told, if others can go on without the rank.
    fn recovers_or_is_lost(&mut self, ending: &Ending) -> Decision {
        let rank = ending.rank as usize;
        let may_recover = self.survivors.as_ref().is_some_and(Survivors::may_recover);
        let can_be_told = self.can_be_told(ending.rank);
        let is_enough = can_be_told && self.failures.ranks[rank].restarts >= self.limits.untold;
        let why_not = match may_recover && ending.report.is_none() && !is_enough {
            true => self.why_not_again(ending),
            false => Some(Why::NotBegun),
        };
        match why_not {
            None => {
                let survivors = self.survivors.iter_mut();
                survivors.for_each(|survivors| survivors.begins_again(ending.rank));
                Decision::Restart
            }
            Some(_) if can_be_told => {
                self.failures.ranks[rank].is_lost = true;
                Decision::Lost
            }
            Some(why) => Decision::EndJob(why),
        }
    }

    /// Why a failed rank does not start again. If it does, counts that.
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

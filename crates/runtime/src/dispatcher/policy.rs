//! What follows from the end of a rank: the failure policy, in one place and without I/O.

use nix::sys::signal::Signal;
use resurgo_protocol::Protocol;
use resurgo_wire::control::{End, Ended, protocol_number};
use resurgo_wire::node_memory::EXIT_REPORT;
use serde::{Deserialize, Serialize};

/// A rank that fails so many times in a row by the same cause at the same place is not started again.
pub const SAME_FAILURES: u32 = 3;

/// How many restarts a job may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub restarts: u64,
    pub restarts_per_rank: u64,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The rank has finished; its exit code counts.
    Finished,
    /// The rank has failed and is to be started again.
    Restart,
    /// The job ends with this exit status, for this reason.
    EndJob { code: i32, reason: String },
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct RankRecord {
    exit_code: Option<i32>,
    ever_initialised: bool,
    restarts: u64,
    /// The last failure and the messages the rank had made by then.
    last: Option<(End, u64)>,
    same: u32,
}

/// The state the policy keeps of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Policy {
    #[serde(with = "protocol_number")]
    protocol: Protocol,
    limits: Limits,
    ranks: Vec<RankRecord>,
    restarts: u64,
    /// There have been images.
    #[serde(skip)]
    has_images: bool,
}

/// `SIGKILL` for 9.
pub fn signal_name(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_string(),
        Err(_) => format!("signal {number}"),
    }
}

/// How the process of an event logger has ended.
pub fn how_ended(end: End) -> String {
    match end {
        End::Signalled(signal) => format!("killed by {}", signal_name(signal)),
        End::Exited(code) => format!("exited with code {code}"),
    }
}

/// "rank 2 killed by SIGKILL": so begins every reason for the end of a job that is the failure of a rank.
pub fn of_rank(ended: &Ended) -> String {
    format!("rank {} {}", ended.rank, describe(ended))
}

/// "killed by SIGKILL".
pub fn describe(ended: &Ended) -> String {
    match ended.end {
        _ if ended.diverged() => "did not repeat what it had done".to_string(),
        _ if ended.report.is_some() => "ended itself".to_string(),
        End::Signalled(signal) => format!("killed by {}", signal_name(signal)),
        End::Exited(code) if ended.initialised => format!("exited with code {code} without MPI_Finalize"),
        End::Exited(code) if ended.is_plain => format!("exited with code {code}"),
        End::Exited(code) => format!("exited with code {code} before MPI_Init"),
    }
}

impl Policy {
    pub fn new(size: usize, protocol: Protocol, limits: Limits) -> Policy {
        let ranks = (0..size).map(|_| RankRecord::default()).collect();
        Policy {
            protocol,
            limits,
            ranks,
            restarts: 0,
            has_images: false,
        }
    }

    /// Goes on from `before`, within the present limits.
    pub fn resume(&mut self, before: Policy) {
        (self.ranks, self.restarts) = (before.ranks, before.restarts);
        self.has_images = true;
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
        self.restarts
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize) {
        self.ranks.resize_with(ranks, RankRecord::default);
    }

    /// Every rank has finished.
    pub fn all_finished(&self) -> bool {
        self.ranks.iter().all(|rank| rank.exit_code.is_some())
    }

    /// These ranks have returned to a moment at which none of them had finished.
    pub fn go_on(&mut self, ranks: &[usize]) {
        ranks.iter().for_each(|rank| self.ranks[*rank].exit_code = None);
    }

    /// `rank` has finished.
    pub fn has_finished(&self, rank: usize) -> bool {
        self.ranks[rank].exit_code.is_some()
    }

    /// The job's exit status when every rank has finished: the first that is not zero, by rank.
    pub fn exit_code(&self) -> i32 {
        self.ranks
            .iter()
            .filter_map(|rank| rank.exit_code)
            .find(|code| *code != 0)
            .unwrap_or(0)
    }

    /// A rank has ended.
    pub fn ended(&mut self, ended: &Ended) -> Decision {
        let rank = ended.rank;
        let record = &mut self.ranks[rank];
        record.ever_initialised |= ended.initialised;
        if let Some(report) = &ended.report
            && !(ended.diverged() && self.protocol.can_return_together())
        {
            return Decision::EndJob {
                code: EXIT_REPORT,
                reason: report.clone(),
            };
        }
        let code = match ended.end {
            End::Exited(code) if ended.finalised => {
                record.exit_code = Some(code);
                return Decision::Finished;
            }
            // Nobody waits for a program without MPI.
            End::Exited(code) if !record.ever_initialised && (code == 0 || ended.is_plain) => {
                record.exit_code = Some(code);
                return Decision::Finished;
            }
            // The others would wait for it for ever, and starting it again would come to the same.
            End::Exited(code) if !record.ever_initialised => {
                return Decision::EndJob {
                    code,
                    reason: of_rank(ended),
                };
            }
            End::Signalled(signal) if !record.ever_initialised && ended.is_plain => {
                return Decision::EndJob {
                    code: 128 + signal,
                    reason: format!("{}; it is not an MPI program, and not started again", of_rank(ended)),
                };
            }
            // A job that lost a rank must not look like one that succeeded.
            End::Exited(code) => code.max(1),
            End::Signalled(signal) => 128 + signal,
        };
        if !self.protocol.has_images() {
            let reason = format!("{}; with --protocol auto the rank would be restarted", of_rank(ended));
            return Decision::EndJob { code, reason };
        }
        match self.why_not_again(ended) {
            Some(reason) => Decision::EndJob { code, reason },
            None => Decision::Restart,
        }
    }

    /// Why a rank that has failed is not started again. If it is, that is counted.
    fn why_not_again(&mut self, ended: &Ended) -> Option<String> {
        let record = &mut self.ranks[ended.rank];
        let place = ended.statistics.deliveries + ended.statistics.sends();
        record.same = match record.last {
            Some(last) if last == (ended.end, place) => record.same + 1,
            _ => 1,
        };
        record.last = Some((ended.end, place));
        // A rank that dies more often than its whole run takes never comes to its end.
        let hint = if self.has_images {
            ""
        } else {
            "; without images a rank begins again each time: with --checkpoint-every 1m, for example, it goes on from its last one"
        };
        Some(
            if record.same >= SAME_FAILURES && ended.end != End::Signalled(Signal::SIGKILL as i32) {
                format!(
                    "{} {} times in a row at the same place, after {place} messages: \
                 the program itself fails there, and starting it again does not help",
                    of_rank(ended),
                    record.same,
                )
            } else if record.restarts >= self.limits.restarts_per_rank {
                format!(
                    "{}, after {} restarts of this rank: --max-restarts-per-rank allows no more{hint}",
                    of_rank(ended),
                    record.restarts
                )
            } else if self.restarts >= self.limits.restarts {
                format!(
                    "{}, after {} restarts in this job: --max-restarts allows no more{hint}",
                    of_rank(ended),
                    self.restarts
                )
            } else {
                record.restarts += 1;
                self.restarts += 1;
                return None;
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::control::LifeStatistics;
    use resurgo_wire::node_memory::EXIT_DIVERGED;

    const LIMITS: Limits = Limits {
        restarts: 5,
        restarts_per_rank: 4,
    };

    fn ended(rank: usize, end: End, initialised: bool, finalised: bool) -> Ended {
        Ended {
            end,
            initialised,
            finalised,
            ..crate::dispatcher::killed(rank, LifeStatistics::default())
        }
    }

    fn policy() -> Policy {
        Policy::new(3, Protocol::Pessimistic, LIMITS)
    }

    #[test]
    fn ranks_that_finish_give_the_job_its_code() {
        let mut p = policy();
        assert_eq!(p.ended(&ended(2, End::Exited(5), true, true)), Decision::Finished);
        assert_eq!(p.ended(&ended(1, End::Exited(3), true, true)), Decision::Finished);
        assert!(!p.all_finished());
        assert_eq!(p.ended(&ended(0, End::Exited(0), false, false)), Decision::Finished);
        assert!(p.all_finished());
        assert_eq!(p.exit_code(), 3);
    }

    #[test]
    fn spawned_ranks_count_like_all_others() {
        let mut p = policy();
        (0..3).for_each(|rank| drop(p.ended(&ended(rank, End::Exited(0), true, true))));
        p.grow(4);
        assert!(!p.all_finished());
        assert_eq!(p.ended(&ended(3, End::Signalled(9), true, false)), Decision::Restart);
        assert_eq!(p.ended(&ended(3, End::Exited(6), true, true)), Decision::Finished);
        assert!(p.all_finished());
        assert_eq!(p.exit_code(), 6);
    }

    #[test]
    fn failures_are_restarted() {
        for (end, initialised, finalised) in [
            (End::Signalled(9), true, false),
            (End::Signalled(11), false, false),
            (End::Signalled(9), true, true),
            (End::Exited(0), true, false),
            (End::Exited(4), true, false),
        ] {
            assert_eq!(
                policy().ended(&ended(1, end, initialised, finalised)),
                Decision::Restart
            );
        }
    }

    #[test]
    fn an_exit_before_mpi_init_ends_the_job_unless_an_earlier_life_was_further() {
        let mut p = policy();
        assert!(matches!(
            p.ended(&ended(1, End::Exited(4), false, false)),
            Decision::EndJob { code: 4, .. }
        ));
        let mut p = policy();
        p.ended(&ended(1, End::Signalled(9), true, false));
        assert_eq!(p.ended(&ended(1, End::Exited(4), false, false)), Decision::Restart);
    }

    #[test]
    fn a_program_without_mpi_ends_as_it_does() {
        let plain = |rank, end| Ended {
            is_plain: true,
            ..ended(rank, end, false, false)
        };
        let mut p = policy();
        assert_eq!(p.ended(&plain(1, End::Exited(4))), Decision::Finished);
        assert_eq!(p.ended(&plain(0, End::Exited(0))), Decision::Finished);
        assert!(!p.all_finished());
        assert_eq!(p.ended(&plain(2, End::Exited(5))), Decision::Finished);
        assert!(p.all_finished());
        assert_eq!(p.exit_code(), 4);
        assert!(matches!(
            policy().ended(&plain(1, End::Signalled(9))),
            Decision::EndJob { code: 137, .. }
        ));
        // It has started a program with MPI.
        let mut p = policy();
        let started = Ended {
            initialised: true,
            ..plain(1, End::Signalled(9))
        };
        assert_eq!(p.ended(&started), Decision::Restart);
    }

    #[test]
    fn without_a_protocol_a_failure_ends_the_job_and_says_what_would_have_helped() {
        let mut p = Policy::new(3, Protocol::None, LIMITS);
        let Decision::EndJob { code, reason } = p.ended(&ended(2, End::Signalled(11), true, false)) else {
            panic!("the job goes on");
        };
        assert_eq!(code, 139);
        assert!(reason.contains("rank 2 killed by SIGSEGV") && reason.contains("--protocol auto"));
        let mut p = Policy::new(3, Protocol::None, LIMITS);
        assert!(matches!(
            p.ended(&ended(0, End::Exited(0), true, false)),
            Decision::EndJob { code: 1, .. }
        ));
    }

    #[test]
    fn a_program_that_fails_at_the_same_place_is_given_up() {
        let mut p = policy();
        let crash = ended(1, End::Signalled(11), true, false);
        assert_eq!(p.ended(&crash), Decision::Restart);
        assert_eq!(p.ended(&crash), Decision::Restart);
        let Decision::EndJob { code, reason } = p.ended(&crash) else {
            panic!("a loop")
        };
        assert_eq!(code, 139);
        assert!(reason.contains("the program itself"));
        // Elsewhere each time: it makes progress.
        let mut p = policy();
        for place in 0..4 {
            let mut crash = crash.clone();
            crash.statistics.sizes[1] = [place, place];
            assert_eq!(p.ended(&crash), Decision::Restart);
        }
    }

    #[test]
    fn restarts_are_bounded_by_rank_and_by_job() {
        let mut p = policy();
        let kill = ended(0, End::Signalled(9), true, false);
        for _ in 0..4 {
            assert_eq!(p.ended(&kill), Decision::Restart);
        }
        let Decision::EndJob { reason, .. } = p.ended(&kill) else {
            panic!("no bound")
        };
        assert!(reason.contains("--max-restarts-per-rank") && reason.contains("--checkpoint-every"));
        p.has_images();
        assert_eq!(p.ended(&ended(1, End::Signalled(9), true, false)), Decision::Restart);
        let Decision::EndJob { reason, .. } = p.ended(&ended(2, End::Signalled(9), true, false)) else {
            panic!("no bound")
        };
        assert!(reason.ends_with("--max-restarts allows no more"));
        assert_eq!(p.restarts, 5);
    }

    #[test]
    fn a_report_ends_the_job() {
        let mut crash = ended(1, End::Exited(EXIT_REPORT), true, false);
        crash.report = Some("it diverged".into());
        let reason = "it diverged".to_string();
        assert_eq!(
            policy().ended(&crash),
            Decision::EndJob {
                code: EXIT_REPORT,
                reason
            }
        );
    }

    #[test]
    fn a_program_that_does_not_repeat_ends_the_job_unless_there_are_waves() {
        let mut diverged = ended(1, End::Exited(EXIT_DIVERGED), true, false);
        diverged.report = Some("it diverged".into());
        assert!(matches!(
            policy().ended(&diverged),
            Decision::EndJob { code: EXIT_REPORT, .. }
        ));
        let mut auto = Policy::new(3, Protocol::Auto, LIMITS);
        assert_eq!(auto.ended(&diverged), Decision::Restart);
        let mut groups = Policy::new(3, Protocol::Hierarchical, LIMITS);
        assert!(matches!(groups.ended(&diverged), Decision::EndJob { .. }));
        auto.goes_on_with(Protocol::Pessimistic);
        assert!(matches!(auto.ended(&diverged), Decision::EndJob { .. }));
        auto.goes_on_with(Protocol::Auto);
        assert_eq!(auto.ended(&diverged), Decision::Restart);
    }
}

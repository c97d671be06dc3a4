//! Ends of processes, in words and for the failure policy.

use nix::sys::signal::Signal;
use resurgo_protocol::policy::{End, Ending, Report, Why};
use resurgo_wire::control::Ended;

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

/// "rank 2 killed by SIGKILL": the beginning of every report that a rank's failure ends the job.
pub fn of_rank(ended: &Ended) -> String {
    format!("rank {} {}", ended.rank, describe(ended))
}

/// "killed by SIGKILL".
pub fn describe(ended: &Ended) -> String {
    match ended.end {
        _ if ended.diverged() => "did not repeat what it had done".to_string(),
        _ if ended.report.is_some() => "ended itself".to_string(),
        End::Signalled(_) => how_ended(ended.end),
        End::Exited(code) if ended.initialised => format!("exited with code {code} without MPI_Finalize"),
        End::Exited(code) if ended.is_plain => format!("exited with code {code}"),
        End::Exited(code) => format!("exited with code {code} before MPI_Init"),
    }
}

/// The end as the failure policy wants it.
pub fn ending(ended: &Ended) -> Ending {
    let report = if ended.diverged() {
        Report::Diverged
    } else {
        Report::Other
    };
    Ending {
        rank: ended.rank as u32,
        end: ended.end,
        initialised: ended.initialised,
        finalised: ended.finalised,
        is_plain: ended.is_plain,
        report: ended.report.is_some().then_some(report),
        messages: ended.statistics.deliveries + ended.statistics.sends(),
    }
}

/// Why the job ends with the end of this rank.
pub fn reason(ended: &Ended, why: Why) -> String {
    let of_rank = of_rank(ended);
    match why {
        Why::Report => ended.report.clone().unwrap_or(of_rank),
        Why::BeforeMpi => of_rank,
        Why::NoMpi => format!("{of_rank}; it is not an MPI program, and not started again"),
        Why::NotBegun => format!(
            "{of_rank}; it had not left MPI_Init, so the others cannot go on without it, and --ft-after restarts no rank once a \
             failure was told or ranks were spawned"
        ),
        Why::NothingKept => format!("{of_rank}; with --protocol auto the rank would be restarted"),
        Why::SamePlace { times, messages } => format!(
            "{of_rank} {times} times in a row at the same place, after {messages} messages: the program itself fails there, and \
             starting it again does not help"
        ),
        Why::LimitOfRank { restarts, has_images } => format!(
            "{of_rank}, after {restarts} restarts of this rank: --max-restarts-per-rank allows no more{}",
            hint(has_images)
        ),
        Why::LimitOfJob { restarts, has_images } => format!(
            "{of_rank}, after {restarts} restarts in this job: --max-restarts allows no more{}",
            hint(has_images)
        ),
    }
}

/// A rank that dies more often than its whole run takes never finishes.
fn hint(has_images: bool) -> &'static str {
    if has_images {
        return "";
    }
    "; without images a rank begins again each time: with --checkpoint-every 1m, for example, it goes on from its last one"
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::control::LifeStatistics;

    #[test]
    fn reasons_name_rank_and_remedy() {
        let mut ended = crate::dispatcher::killed(2, LifeStatistics::default());
        ended.end = End::Signalled(11);
        let said = |why| reason(&ended, why);
        let nothing = said(Why::NothingKept);
        assert!(nothing.starts_with("rank 2 killed by SIGSEGV; ") && nothing.contains("--protocol auto"));
        let same = said(Why::SamePlace { times: 3, messages: 7 });
        assert!(
            same.contains("3 times in a row")
                && same.contains("after 7 messages")
                && same.contains("the program itself")
        );
        let limit = |has_images| {
            said(Why::LimitOfRank {
                restarts: 4,
                has_images,
            })
        };
        assert!(limit(false).contains("--max-restarts-per-rank") && limit(false).contains("--checkpoint-every"));
        assert!(limit(true).ends_with("--max-restarts-per-rank allows no more"));
        let limit = said(Why::LimitOfJob {
            restarts: 5,
            has_images: true,
        });
        assert!(limit.ends_with("--max-restarts allows no more"));
        ended.report = Some("it diverged".into());
        assert_eq!(reason(&ended, Why::Report), "it diverged");
    }
}

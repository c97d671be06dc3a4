//! What a trace tells: times by call, late senders, load balance, and costs of failures. All times are nanoseconds.

use std::collections::BTreeMap;

use crate::course::{Course, Image, Loss, State, images};
use crate::reader::Read;
use crate::times::Times;

/// A call of MPI by a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Call {
    pub count: u64,
    pub time: u64,
    pub longest: u64,
}

/// What a rank has done with its time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OfRank {
    /// Of all its processes.
    pub total: u64,
    /// Repeating what former lives did.
    pub replaying: u64,
    /// Outside of MPI and of replays.
    pub computing: u64,
    /// In calls of MPI, outside of replays; none: the trace names no calls.
    pub in_mpi: Option<u64>,
    /// The part of it in which it slept, or waited for a message that had not been sent.
    pub waiting: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub received: u64,
    pub calls: BTreeMap<String, Call>,
    /// Records that are not in the trace, and how long the rank lived without them.
    pub missing: u64,
    pub unrecorded: u64,
    pub course: Course,
}

/// A rank waited for messages that another one sent later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Late {
    pub messages: u64,
    pub time: u64,
    pub longest: u64,
}

/// A failure, and what it cost this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub rank: usize,
    /// The life that begins after it.
    pub life: u64,
    /// How the rank ended; none: it returned with others.
    pub cause: Option<String>,
    /// Since the beginning of the trace.
    pub at: u64,
    /// From the death to the end of the replay.
    pub cost: u64,
    /// From the death until the next life begins to repeat, and the replay.
    pub begins: Option<u64>,
    pub replay: u64,
    /// The rank has caught up.
    pub is_over: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// By the trace's clock.
    pub begin: u64,
    pub total: u64,
    pub ranks: BTreeMap<usize, OfRank>,
    /// By receiver, sender and call (empty: not known).
    pub late: BTreeMap<(usize, usize, String), Late>,
    pub failures: Vec<Failure>,
    pub waves: Vec<Image>,
    /// By their names, by time.
    pub lost_nodes: Vec<Loss>,
}

/// The longest and the mean of some times; the mean as a share of the longest, which is 1 if all are the same.
pub fn balance(times: impl ExactSizeIterator<Item = u64> + Clone) -> Option<f64> {
    let longest = times.clone().max().filter(|longest| *longest > 0)?;
    let count = times.len() as f64;
    Some(times.map(|time| time as f64).sum::<f64>() / count / longest as f64)
}

impl Report {
    /// `spans`: by time.
    pub fn of(spans: &[Read]) -> Report {
        let first = spans.first().map_or(0, |span| span.begin);
        let last = spans.iter().map(|span| span.end.unwrap_or(span.begin)).max();
        let mut report = Report {
            begin: first,
            waves: images(spans.iter(), "waves", "wave"),
            lost_nodes: lost_nodes(spans),
            total: last.unwrap_or(0) - first,
            ..Report::default()
        };
        let mut by_rank: BTreeMap<usize, Vec<&Read>> = BTreeMap::new();
        for span in spans {
            if let Some(rank) = span.rank() {
                by_rank.entry(rank).or_default().push(span);
            }
        }
        let sent = sends(&by_rank);
        for (rank, spans) in by_rank {
            report.add_rank(rank, &spans, &sent);
            report.add_failures(rank, &spans, first);
        }
        report.failures.sort_by_key(|failure| (failure.at, failure.rank));
        report
    }

    fn add_rank(&mut self, rank: usize, spans: &[&Read], sent: &BTreeMap<u64, Sent>) {
        let late = self.add_late(rank, spans, sent);
        let course = Course::of(spans, &late, &self.lost_nodes, self.begin + self.total);
        let of_rank = self.ranks.entry(rank).or_default();
        of_rank.total = course.alive.length();
        of_rank.replaying = course.replays.length();
        of_rank.in_mpi = Some(course.calls.length()).filter(|time| *time > 0);
        of_rank.waiting = course.waits.length();
        of_rank.computing = course.times(State::Computing).length();
        of_rank.unrecorded = course.times(State::Unrecorded).length();
        of_rank.course = course;
        for span in spans {
            match span.category.as_str() {
                "message" if span.name.starts_with("send") => {
                    of_rank.sent += 1;
                    of_rank.sent_bytes += span.number("bytes").unwrap_or(0);
                }
                "message" => of_rank.received += 1,
                "missing" => of_rank.missing += span.number("missing").unwrap_or(0),
                "mpi" => {
                    let call = of_rank.calls.entry(span.name.clone()).or_default();
                    call.count += 1;
                    call.time += span.length();
                    call.longest = call.longest.max(span.length());
                }
                _ => {}
            }
        }
    }

    /// Waits of `rank` for messages that had not been sent: in a call, since that began; where no calls are named, in
    /// sleep since the message before.
    fn add_late(&mut self, rank: usize, spans: &[&Read], sent: &BTreeMap<u64, Sent>) -> Times {
        let mut waits = Vec::new();
        let (mut call, mut slept): (Option<&Read>, Option<u64>) = (None, None);
        // How far the waits in the present call have been counted.
        let mut counted = 0;
        for span in spans.iter().filter(|span| span.track == "MPI") {
            match span.category.as_str() {
                "mpi" if call.is_none_or(|call| call.end <= Some(span.begin)) => call = Some(span),
                "wait" => slept = slept.or(Some(span.begin)),
                "message" if span.gets.is_some() => {
                    let inside = call.filter(|call| call.end > Some(span.begin));
                    let since = inside.map(|call| call.begin).or(slept);
                    slept = None;
                    let Some((since, sent)) = since.zip(span.gets.and_then(|flow| sent.get(&flow))) else {
                        continue;
                    };
                    let (from, to) = (since.max(counted), sent.at.min(span.begin));
                    if from < to {
                        let name = inside.map_or(String::new(), |call| call.name.clone());
                        let late = self.late.entry((rank, sent.by, name)).or_default();
                        late.messages += 1;
                        late.time += to - from;
                        late.longest = late.longest.max(to - from);
                        waits.push((from, to));
                        counted = to;
                    }
                }
                _ => {}
            }
        }
        Times::of(waits.into_iter())
    }

    fn add_failures(&mut self, rank: usize, spans: &[&Read], first: u64) {
        for span in spans.iter().filter(|span| span.category == "recovery") {
            let life = span.number("life").unwrap_or(0);
            let failed = |other: &&&Read| other.name == "failed" && other.begin == span.begin;
            let cause = spans.iter().find(failed).and_then(|failed| failed.text("cause"));
            let of_life = |other: &&&Read| other.track == "replay" && other.number("life") == Some(life);
            let replay = spans.iter().find(of_life);
            let begins = replay.map(|replay| replay.begin.saturating_sub(span.begin));
            self.failures.push(Failure {
                rank,
                life,
                cause: cause.map(str::to_string),
                at: span.begin - first,
                cost: span.length(),
                begins,
                replay: replay.map_or(0, |replay| replay.length()),
                is_over: span.is("complete"),
            });
        }
    }
}

fn lost_nodes(spans: &[Read]) -> Vec<Loss> {
    let name = |node: Option<u64>| {
        let of_node = |span: &&Read| span.category == "node" && span.number("node") == node;
        let name = spans.iter().find(of_node)?.name.strip_prefix("node ")?;
        Some(name.to_string())
    };
    let lost = spans.iter().filter(|span| span.name == "node_lost");
    lost.filter_map(|span| {
        Some(Loss {
            at: span.begin,
            what: name(span.number("node"))?,
        })
    })
    .collect()
}

/// A message that was sent.
struct Sent {
    at: u64,
    by: usize,
}

fn sends(by_rank: &BTreeMap<usize, Vec<&Read>>) -> BTreeMap<u64, Sent> {
    let all = by_rank
        .iter()
        .flat_map(|(rank, spans)| spans.iter().map(move |span| (*rank, span)));
    all.filter_map(|(by, span)| Some((span.sends?, Sent { at: span.begin, by })))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::span_of_rank as span;
    use crate::span::Fact;

    #[test]
    fn a_receive_waits_for_a_late_sender() {
        let mut send = span(1, "MPI", "message", "send to 0", 60, None);
        send.sends = Some(5);
        let mut receive = span(0, "MPI", "message", "receive from 1", 70, None);
        receive.gets = Some(5);
        let spans = [
            span(0, "lives", "life", "life 1", 0, Some(100)),
            span(0, "MPI", "mpi", "MPI_Recv", 10, Some(80)),
            span(0, "MPI", "wait", "asleep", 20, Some(65)),
            send,
            receive,
        ];
        let report = Report::of(&spans);
        let late = report.late[&(0, 1, "MPI_Recv".to_string())];
        assert_eq!((late.messages, late.time, late.longest), (1, 50, 50));
        let rank = &report.ranks[&0];
        assert_eq!(
            (rank.total, rank.in_mpi, rank.waiting, rank.computing),
            (100, Some(70), 55, 30)
        );
        assert_eq!((rank.received, report.ranks[&1].sent), (1, 1));
        assert_eq!(rank.calls["MPI_Recv"].time, 70);
    }

    #[test]
    fn a_failure_costs_what_passes_until_the_replay_has_ended() {
        let mut failed = span(0, "lives", "failure", "failed", 40, None);
        failed.facts.insert("cause".into(), Fact::Text("killed".into()));
        let mut recovery = span(0, "recovery", "recovery", "recovery", 40, Some(90));
        recovery.facts.insert("life".into(), Fact::Number(2));
        recovery.facts.insert("complete".into(), Fact::Truth(true));
        let mut replay = span(0, "replay", "replay", "replay", 70, Some(85));
        replay.facts.insert("life".into(), Fact::Number(2));
        let spans = [
            span(0, "lives", "life", "life 1", 10, Some(40)),
            failed,
            recovery,
            span(0, "lives", "life", "life 2", 50, Some(100)),
            replay,
        ];
        let report = Report::of(&spans);
        let expected = Failure {
            rank: 0,
            life: 2,
            cause: Some("killed".into()),
            at: 30,
            cost: 50,
            begins: Some(30),
            replay: 15,
            is_over: true,
        };
        assert_eq!(report.failures, [expected]);
        let rank = &report.ranks[&0];
        assert_eq!(
            (rank.total, rank.replaying, rank.computing, rank.in_mpi),
            (80, 15, 65, None)
        );
        assert_eq!(balance([50, 100].into_iter()), Some(0.75));
    }
}

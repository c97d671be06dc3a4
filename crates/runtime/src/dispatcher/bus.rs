//! Hands events to all sinks that the user wants.

mod journal;
mod json_lines;
mod notices;
mod recent;
mod records;
mod trace;
mod words;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use resurgo_wire::console::Loss;
use resurgo_wire::control::{Ended, LifeStatistics};

use super::ends::{describe, of_rank};
use super::events::{Event, Sink};
use super::stats::{Outcome, Stats};
pub use journal::Journal;
use json_lines::JsonLines;
pub use notices::Notices;
use recent::Recent;
use records::Records;
use trace::Trace;
use words::Words;
pub use words::unusable_image;

/// The reports that the user wants.
#[derive(Default)]
pub struct Wanted {
    /// Errors only, on standard error.
    pub quiet: bool,
    /// Every life, too.
    pub verbose: bool,
    /// Events, into this file.
    pub json: Option<File>,
    /// The measurements at the end: a table for people.
    pub table: bool,
    /// The same as JSON, into this file.
    pub figures: Option<File>,
    /// A command for news of failures.
    pub notices: Option<Notices>,
    /// The journal of the system, or why there is none.
    pub journal: Option<io::Result<Journal>>,
    /// A trace, into this file.
    pub trace: Option<(PathBuf, File)>,
}

/// Hands events to all sinks.
pub struct Bus {
    start: Instant,
    stats: Stats,
    words: Words,
    json: JsonLines,
    records: Records,
    recent: Recent,
    notices: Option<Notices>,
    journal: Option<Journal>,
    trace: Option<Trace>,
    table: bool,
    figures: Option<File>,
}

impl Bus {
    /// A job of `size` ranks began at `start`.
    pub fn new(size: usize, wanted: Wanted, start: Instant) -> Bus {
        let (journal, none) = match wanted.journal.transpose() {
            Ok(journal) => (journal, None),
            Err(error) => (None, Some(error)),
        };
        let trace = wanted.trace.map(|file| Trace::begin(file, start)).transpose();
        let (trace, untraced) = match trace {
            Ok(trace) => (trace, None),
            Err(error) => (None, Some(error)),
        };
        let mut bus = Bus {
            start,
            stats: Stats::new(size, start),
            words: Words::new(wanted.quiet, wanted.verbose),
            json: JsonLines::new(wanted.json, start),
            records: Records::default(),
            recent: Recent::new(start),
            notices: wanted.notices,
            journal,
            trace,
            table: wanted.table,
            figures: wanted.figures,
        };
        if let Some(error) = none {
            let reason = format!("{}: {error}", journal::SOCKET);
            bus.tell_at(Event::NoJournal { reason: &reason }, start);
        }
        if let Some(error) = untraced {
            bus.error(&format!("there will be no trace: a thread cannot be started: {error}"));
        }
        bus
    }

    /// The failures that the program deals with itself.
    pub fn losses(&self) -> Vec<Loss> {
        self.records.all()
    }

    pub fn tell(&mut self, event: Event) {
        self.tell_at(event, Instant::now());
    }

    fn tell_at(&mut self, event: Event, now: Instant) {
        let sinks: [&mut dyn Sink; 8] = [
            &mut self.stats,
            &mut self.words,
            &mut self.json,
            &mut self.records,
            &mut self.recent,
            &mut self.notices,
            &mut self.journal,
            &mut self.trace,
        ];
        for sink in sinks {
            sink.take(&event, now);
        }
        if let Some(error) = self.json.failure() {
            let reason = format!("the file of --json-events: {error}");
            self.words.take(&Event::Error { reason: &reason }, now);
        }
    }

    /// The job ends early, for this reason.
    pub fn error(&mut self, reason: &str) {
        self.tell(Event::Error { reason });
    }

    /// A rank, spawned by another or not, has failed. `error`: why that ends the job, if it does; then this report
    /// replaces the failure's own.
    pub fn failed(&mut self, ended: &Ended, spawned_by: Option<usize>, error: Option<&str>) {
        self.failed_at(ended, spawned_by, error, Instant::now());
    }

    fn failed_at(&mut self, ended: &Ended, spawned_by: Option<usize>, error: Option<&str>, now: Instant) {
        let origin = spawned_by
            .map(|by| format!(", spawned by rank {by}"))
            .unwrap_or_default();
        let rank = self.words.rank(ended.rank);
        let words = format!("{rank} {} (pid {}{origin})", describe(ended), ended.pid);
        let rest = error.and_then(|error| error.strip_prefix(&of_rank(ended)));
        self.tell_at(Event::failed(ended, Some(&*words).filter(|_| rest.is_none())), now);
        let reason = rest.map(|rest| format!("{words}{rest}"));
        if let Some(reason) = reason.as_deref().or(error) {
            self.tell_at(Event::Error { reason }, now);
        }
    }

    /// The rank has reached the point where its former life ended.
    pub fn caught_up(&mut self, rank: usize, life: u64, statistics: &LifeStatistics, now: Instant) {
        let event = Event::CaughtUp {
            rank,
            life,
            deliveries: statistics.replay_deliveries,
            replay: match statistics.first_delivery_ns {
                0 => Duration::ZERO,
                first => Duration::from_nanos(statistics.caught_up_ns.saturating_sub(first)),
            },
            lost: self.stats.lost_since_failure(rank, now),
            statistics,
        };
        self.tell_at(event, now);
    }

    /// All ranks go on from `wave`, 0: the beginning.
    pub fn returned(&mut self, wave: u64, now: Instant) {
        let lost = Some(self.stats.lost_by_return(wave, now));
        self.tell_at(
            Event::Returned {
                wave,
                ranks: None,
                lost,
            },
            now,
        );
    }

    /// The job is over. `statistics` are those of every rank's last life; none if the agent could not tell them.
    pub fn ended(&mut self, exit_code: i32, statistics: &[LifeStatistics], now: Instant) {
        self.tell_at(Event::LastCounters { statistics }, now);
        let (wall, is_complete) = (now.duration_since(self.start), !statistics.is_empty());
        let ended = Event::JobEnded {
            exit_code,
            wall,
            summary: &self.stats.summary(),
            is_complete,
        };
        self.tell_at(ended, now);
        if let Some((entries, error)) = self.journal.as_mut().and_then(Journal::missed) {
            let reason = error.to_string();
            self.tell_at(
                Event::JournalMissed {
                    entries,
                    reason: &reason,
                },
                now,
            );
        }
        let outcome = Outcome {
            code: exit_code,
            wall,
            is_complete,
        };
        if self.table {
            let mut lines = self.stats.table(outcome);
            lines.extend(crate::advice::line(&self.stats.json(outcome)));
            self.tell_at(Event::Table { lines: &lines }, now);
        }
        if let Some(mut file) = self.figures.take() {
            let text = format!("{:#}\n", self.stats.json(outcome));
            if let Err(error) = file.write_all(text.as_bytes()) {
                self.error(&format!("the file of --stats-json could not be written: {error}"));
            }
        }
    }

    /// All measurements so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The trace, if there is one.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    pub fn trace_mut(&mut self) -> Option<&mut Trace> {
        self.trace.as_mut()
    }

    /// Nothing more happens: writes the rest of the trace.
    pub fn end_trace(&mut self) {
        if let Some(Err(why)) = self.trace.take().map(Trace::end) {
            self.error(&why);
        }
    }

    /// The process that runs the command for news.
    pub fn notifier(&self) -> Option<u32> {
        self.notices.as_ref().map(Notices::pid)
    }

    /// The job is over: waits for the last commands for news.
    pub fn end_notices(&mut self, deadline: Option<Instant>) {
        if let Some(mut notices) = self.notices.take() {
            notices.end(deadline);
        }
    }

    /// The last events.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Text to write to standard error.
    pub fn take_text(&mut self) -> Vec<u8> {
        self.words.take_text()
    }
}

#[cfg(test)]
mod tests;

//! The trace of the job (`--trace`): what ranks have noted, and events of the dispatcher.
//!
//! A thread has the file. The dispatcher only hands on what comes, and what it knows itself when the job is over.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use resurgo_trace::book::{Book, Told};
use resurgo_trace::{Fact, Span, Track};
use resurgo_wire::trace::Piece;
use serde_json::Value;

use super::json_lines;
use crate::dispatcher::events::{Event, Sink};
use crate::monotonic_ns;

/// How often nodes are asked for news.
const PERIOD: Duration = Duration::from_secs(1);
/// The most spans of events that are kept until the end.
const MOST: usize = 200_000;

/// A life of a rank.
struct Life {
    number: u64,
    began: u64,
    /// The failure after which it began, until the rank has caught up.
    failed: Option<u64>,
}

pub struct Trace {
    path: PathBuf,
    to: Sender<Told>,
    thread: JoinHandle<io::Result<()>>,
    /// When nodes are asked for news next.
    due: Instant,
    /// The shortest round trip to each node so far, in nanoseconds.
    trips: BTreeMap<usize, u64>,
    start: Instant,
    start_ns: u64,
    spans: Vec<Span>,
    /// Events that are not kept.
    missing: u64,
    lives: BTreeMap<usize, Life>,
    /// For ranks that have failed and not begun again: when that was.
    failed: BTreeMap<usize, u64>,
    /// The last failure of any rank or node: lives of ranks that have not failed themselves begin because of it.
    last_failure: Option<u64>,
    /// When nodes came and went.
    came: BTreeMap<usize, u64>,
    went: BTreeMap<usize, u64>,
}

impl Trace {
    /// A job that began at `start` is traced into this file.
    pub fn begin((path, file): (PathBuf, File), start: Instant) -> io::Result<Trace> {
        let (to, told) = channel::<Told>();
        let thread = std::thread::Builder::new().name("trace".to_string());
        let thread = thread.spawn(move || {
            let mut book = Book::new(BufWriter::with_capacity(1 << 20, file));
            told.into_iter().try_for_each(|told| book.take(told))?;
            book.end()
        })?;
        Ok(Trace {
            path,
            to,
            thread,
            due: start + PERIOD,
            trips: BTreeMap::new(),
            start,
            start_ns: monotonic_ns(),
            spans: Vec::new(),
            missing: 0,
            lives: BTreeMap::new(),
            failed: BTreeMap::new(),
            last_failure: None,
            came: BTreeMap::new(),
            went: BTreeMap::new(),
        })
    }

    /// When nodes are to be asked for news.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// They are asked now. Returns this moment by CLOCK_MONOTONIC.
    pub fn asks(&mut self, now: Instant) -> u64 {
        self.due = now + PERIOD;
        monotonic_ns()
    }

    /// A part of the trace of a rank on `node`. If the thread cannot write, its answer at the end says so.
    pub fn takes(&self, node: usize, piece: Piece) {
        let _ = self.to.send(Told::Piece(node, piece));
    }

    /// The clock of `node` was `own_ns` when it answered what was asked at `asked_ns` by this one. The shortest trip
    /// tells most. Clocks that differ by less than the trip are the same.
    pub fn hears_time(&mut self, node: usize, asked_ns: u64, own_ns: u64) {
        let trip = monotonic_ns().saturating_sub(asked_ns);
        if self.trips.get(&node).is_some_and(|shortest| *shortest <= trip) {
            return;
        }
        self.trips.insert(node, trip);
        let offset = (asked_ns + trip / 2).wrapping_sub(own_ns) as i64;
        let offset = if offset.unsigned_abs() <= trip { 0 } else { offset };
        let _ = self.to.send(Told::Offset(node, offset));
    }

    /// The job is over.
    ///
    /// # Errors
    /// The file is not whole, and why.
    pub fn end(mut self) -> Result<(), String> {
        let now = monotonic_ns();
        for (rank, life) in std::mem::take(&mut self.lives) {
            self.ends(rank, life, now);
        }
        if self.missing > 0 {
            let name = format!("{} events are missing", self.missing);
            let span = Span::moment(Track::Job, "missing", name, now);
            self.spans.push(span.with("missing", self.missing));
        }
        let _ = self.to.send(Told::Spans(self.spans));
        drop(self.to);
        let written = self.thread.join();
        let written = written.unwrap_or_else(|_| Err(io::Error::other("its thread has failed")));
        written.map_err(|error| format!("the file of --trace, {}, is not whole: {error}", self.path.display()))
    }

    fn push(&mut self, span: Span) {
        match self.spans.len() < MOST {
            true => self.spans.push(span),
            false => self.missing += 1,
        }
    }

    /// The present life of the rank is over.
    fn ends(&mut self, rank: usize, life: Life, at: u64) {
        self.recovers(rank, life.number, life.failed, at, false);
        let name = format!("life {}", life.number);
        let span = Span::lasting(Track::Lives(rank), "life", name, life.began, at);
        self.push(span.with("life", life.number));
    }

    /// What the failure before this life has cost.
    fn recovers(&mut self, rank: usize, life: u64, failed: Option<u64>, at: u64, is_complete: bool) {
        if let Some(failed) = failed {
            let span = Span::lasting(Track::Recoveries(rank), "recovery", "recovery", failed, at);
            let span = span.with("life", life).with("complete", Fact::Truth(is_complete));
            self.push(span);
        }
    }

    fn begins(&mut self, rank: usize, number: u64, at: u64) {
        if let Some(former) = self.lives.remove(&rank) {
            self.ends(rank, former, at);
        }
        let failed = self.failed.remove(&rank).or(self.last_failure);
        self.lives.insert(
            rank,
            Life {
                number,
                began: at,
                failed: failed.filter(|_| number > 1),
            },
        );
    }

    fn fails(&mut self, rank: usize, at: u64) {
        self.last_failure = Some(at);
        if let Some(life) = self.lives.remove(&rank) {
            self.ends(rank, life, at);
        }
        self.failed.insert(rank, at);
    }

    fn caught_up(&mut self, rank: usize, at: u64) {
        let Some(life) = self.lives.get_mut(&rank) else { return };
        let (number, failed) = (life.number, life.failed.take());
        self.recovers(rank, number, failed, at, true);
    }

    /// The lives of nodes.
    fn add_nodes(&mut self, names: impl Iterator<Item = String>, at: u64) {
        for (node, name) in names.enumerate() {
            let came = self.came.get(&node).copied().unwrap_or(self.start_ns);
            let went = self.went.get(&node).copied().unwrap_or(at);
            let span = Span::lasting(Track::Node(node), "node", format!("node {name}"), came, went);
            self.push(span.with("node", node as u64));
        }
    }

    /// The event itself, as programs get it.
    fn note(&mut self, event: &Event, at: u64, now: Instant) {
        let Some(mut fields) = json_lines::object(event, now.duration_since(self.start)) else {
            return;
        };
        let Some(Value::String(name)) = fields.remove("event") else {
            return;
        };
        let number = |name: &str| fields.get(name).and_then(Value::as_u64).map(|number| number as usize);
        let track = match (number("rank"), number("node")) {
            (Some(rank), _) => Track::Lives(rank),
            (None, Some(node)) => Track::Node(node),
            (None, None) => Track::Job,
        };
        let category = match name.as_str() {
            "failed" | "lost" | "node_lost" | "aborted" | "error" => "failure",
            _ => "event",
        };
        let mut span = Span::moment(track, category, name, at);
        for (name, value) in fields {
            let value = match value {
                Value::Bool(is_so) => Fact::Truth(is_so),
                Value::Number(number) => match number.as_i64() {
                    Some(number) => Fact::Number(number),
                    None => Fact::Real(number.as_f64().unwrap_or_default()),
                },
                Value::String(text) => Fact::Text(text),
                other => Fact::Text(other.to_string()),
            };
            span = span.with(name, value);
        }
        self.push(span);
    }
}

impl Sink for Trace {
    fn take(&mut self, event: &Event, now: Instant) {
        let at = monotonic_ns();
        self.note(event, at, now);
        let before = |time: Duration| at.saturating_sub(time.as_nanos() as u64);
        match event {
            Event::Started { rank, life, .. } => self.begins(*rank, *life, at),
            Event::Failed { rank, .. } => self.fails(*rank, at),
            Event::Finished { rank, .. } => {
                if let Some(life) = self.lives.remove(rank) {
                    self.ends(*rank, life, at);
                }
            }
            Event::CaughtUp { rank, .. } => self.caught_up(*rank, at),
            Event::Checkpointed { rank, image, stall, .. } => {
                let name = format!("image {image}");
                let span = Span::lasting(Track::Images(*rank), "image", name, before(*stall), at);
                self.push(span.with("image", *image));
            }
            Event::ImageWritten {
                rank,
                image,
                bytes,
                time,
                ..
            } => {
                let name = format!("image {image}");
                let span = Span::lasting(Track::Files(*rank), "image", name, before(*time), at);
                self.push(span.with("image", *image).with("bytes", *bytes));
            }
            Event::WaveComplete { wave, total, .. } => {
                let span = Span::lasting(Track::Waves, "wave", format!("wave {wave}"), before(*total), at);
                self.push(span.with("wave", *wave));
            }
            Event::NodeCame { node, .. } => drop(self.came.insert(*node, at)),
            Event::NodeLeft { node, .. } => drop(self.went.insert(*node, at)),
            Event::NodeLost { node, .. } => {
                self.went.insert(*node, at);
                self.last_failure = Some(at);
            }
            Event::NodesWere { nodes, .. } => self.add_nodes(nodes.iter().map(|node| node.name.clone()), at),
            _ => {}
        }
    }
}

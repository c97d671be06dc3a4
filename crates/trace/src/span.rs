//! Spans of time on tracks.

use std::borrow::Cow;
use std::fmt;

/// A line of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// What concerns the whole job.
    Job,
    /// Waves of images.
    Waves,
    Node(usize),
    /// Messages of a rank, and its sleep.
    Messages(usize),
    /// Calls of MPI by another thread.
    Thread(usize, u32),
    /// Its replays.
    Replays(usize),
    /// Its lives.
    Lives(usize),
    /// The times from its failures to the ends of its replays.
    Recoveries(usize),
    /// The moments at which it stands still for images.
    Images(usize),
    /// Its images, while they are written into files.
    Files(usize),
}

/// What a track belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    Job,
    Nodes,
    Rank(usize),
}

impl Track {
    pub fn owner(self) -> Owner {
        match self {
            Track::Job | Track::Waves => Owner::Job,
            Track::Node(_) => Owner::Nodes,
            Track::Messages(rank)
            | Track::Thread(rank, _)
            | Track::Replays(rank)
            | Track::Lives(rank)
            | Track::Recoveries(rank)
            | Track::Images(rank)
            | Track::Files(rank) => Owner::Rank(rank),
        }
    }

    /// A number that no other track has, and no owner.
    pub fn number(self) -> u64 {
        let kind = match self {
            Track::Job => 1,
            Track::Waves => 2,
            Track::Node(_) => 3,
            Track::Messages(_) => 4,
            Track::Replays(_) => 5,
            Track::Lives(_) => 6,
            Track::Recoveries(_) => 7,
            Track::Images(_) => 8,
            Track::Files(_) => 9,
            Track::Thread(_, thread) => 16 + u64::from(thread & 0x7fff),
        };
        let of = match (self, self.owner()) {
            (Track::Node(node), _) => node as u64,
            (_, Owner::Rank(rank)) => rank as u64,
            _ => 0,
        };
        kind << 32 | of
    }
}

impl Owner {
    /// See [`Track::number`].
    pub fn number(self) -> u64 {
        match self {
            Owner::Job => 1 << 48,
            Owner::Nodes => 2 << 48,
            Owner::Rank(rank) => 3 << 48 | rank as u64,
        }
    }

    /// The number of the process that it is in the picture: ranks come in their order, and behind the job and its nodes.
    pub fn process(self) -> u64 {
        match self {
            Owner::Job => 1,
            Owner::Nodes => 2,
            Owner::Rank(rank) => rank as u64 + 10,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Job => f.write_str("job"),
            Owner::Nodes => f.write_str("nodes"),
            Owner::Rank(rank) => write!(f, "rank {rank}"),
        }
    }
}

impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Track::Job => f.write_str("job"),
            Track::Waves => f.write_str("waves"),
            Track::Node(node) => write!(f, "node {node}"),
            Track::Messages(_) => f.write_str("MPI"),
            Track::Thread(_, thread) => write!(f, "MPI, thread {thread}"),
            Track::Replays(_) => f.write_str("replay"),
            Track::Lives(_) => f.write_str("lives"),
            Track::Recoveries(_) => f.write_str("recovery"),
            Track::Images(_) => f.write_str("images"),
            Track::Files(_) => f.write_str("image files"),
        }
    }
}

/// A value beside a span.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    Number(i64),
    Real(f64),
    Text(String),
    Truth(bool),
}

impl From<u64> for Fact {
    fn from(number: u64) -> Fact {
        Fact::Number(number as i64)
    }
}

impl From<&str> for Fact {
    fn from(text: &str) -> Fact {
        Fact::Text(text.to_string())
    }
}

/// Something that has happened, or has lasted.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub track: Track,
    pub category: &'static str,
    pub name: String,
    /// By the dispatcher's CLOCK_MONOTONIC, in nanoseconds.
    pub begin: u64,
    /// None: a moment.
    pub end: Option<u64>,
    pub facts: Vec<(Cow<'static, str>, Fact)>,
    /// The number of a message: an arrow goes from the span that sends it to the one that gets it.
    pub sends: Option<u64>,
    pub gets: Option<u64>,
}

impl Span {
    pub fn moment(track: Track, category: &'static str, name: impl Into<String>, at: u64) -> Span {
        Span {
            track,
            category,
            name: name.into(),
            begin: at,
            end: None,
            facts: Vec::new(),
            sends: None,
            gets: None,
        }
    }

    pub fn lasting(track: Track, category: &'static str, name: impl Into<String>, begin: u64, end: u64) -> Span {
        Span {
            end: Some(end.max(begin)),
            ..Span::moment(track, category, name, begin)
        }
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Fact>) -> Span {
        self.facts.push((name.into(), value.into()));
        self
    }
}

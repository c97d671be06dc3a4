//! What other commands (`resurgo ps`, `checkpoint`, `kill`) say to a running job's dispatcher, and its answers, in the
//! frames of [`crate::control`].

mod state;

use serde::{Deserialize, Serialize};

use crate::control::{FrameError, Message, from_json, json};
pub use state::{Doing, ImageState, NodeState, RankState, Standing, State};

/// The longest frame accepted, in bytes: the other side may be a process of another user.
const LONGEST: usize = 1 << 20;

/// The longest reply: the state of a job of some thousand ranks.
const LONGEST_REPLY: usize = 8 << 20;

/// The most bytes of events in a reply.
pub const MOST_EVENTS: usize = 1 << 20;

/// The longest command line in a reply, in bytes: however its characters are written, the reply stays below the longest
/// frame.
pub const LONGEST_COMMAND: usize = 64 << 10;

/// A request to a dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answered by [`Reply::Status`].
    Status,
    /// Answered by [`Reply::State`], with the events behind number `after` that are still known.
    State { after: u64 },
    /// Answered by [`Reply::Output`] again and again, when ranks have printed something behind byte `after`; the last time
    /// at the end of the job.
    Output { after: u64 },
    /// Take an image of every rank now; answered by [`Reply::Done`] or [`Reply::Refused`] when all have one or cannot.
    Checkpoint,
    /// Suspend the job; answered by [`Reply::Done`] when it has ended and can be resumed, or [`Reply::Refused`].
    Suspend,
    /// Let this node's ranks go on elsewhere, then end its agent if it is to be removed. Answered by [`Reply::Done`] or
    /// [`Reply::Refused`].
    Drain { node: String, removed: bool },
    /// Kill this rank on purpose, as an injected fault does. Answered by [`Reply::Done`] or [`Reply::Refused`].
    KillRank { rank: usize },
    /// Start an agent on this host. Answered by [`Reply::Done`] when it is there, or by [`Reply::Refused`].
    AddHost { host: String, slots: u32 },
    /// Answered by [`Reply::Losses`], or [`Reply::Refused`] if the program does not deal with failures itself.
    Losses,
    /// End the job; answered by [`Reply::Done`] at once.
    Kill,
}

/// A job as `resurgo ps` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub ranks: usize,
    /// The ranks among them that have a process now.
    pub running: usize,
    pub protocol: String,
    pub seconds: f64,
    pub restarts: u64,
    /// Images taken, or complete waves.
    pub images: u64,
    /// Seconds since the last of them.
    pub seconds_since_image: Option<f64>,
    /// The command line of its programs, or its beginning.
    pub command: String,
}

/// The loss of a rank in a job whose program deals with failures itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// From 1.
    pub number: u64,
    pub rank: u32,
    /// Seconds since 1970.
    pub unix_time: f64,
    /// How it ended, or why its node was lost.
    pub how: String,
    /// Ranks that lived then.
    pub left: usize,
}

/// What ranks have printed on the launcher's own streams, as far as it is still known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Where `parts` begin, and where they end, in bytes since the job began.
    pub from: u64,
    pub end: u64,
    pub parts: Vec<PrintedPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrintedPart {
    /// On standard error.
    pub is_error: bool,
    /// Bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// How far something has come that takes long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done or waited for, in words.
    pub text: String,
    /// How many of its parts are done, and how many there are, if that is known.
    pub done: Option<(u64, u64)>,
}

impl Progress {
    /// It has no parts that could be counted.
    pub fn of(text: impl Into<String>) -> Progress {
        let text = text.into();
        Progress { text, done: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Status(Status),
    State(Box<State>),
    Output(Printed),
    /// The last ones, at most some thousands.
    Losses(Vec<Loss>),
    /// The progress, once a second; another answer follows.
    Progress(Progress),
    Done(String),
    Refused(String),
}

impl Message for Request {
    const LONGEST: usize = LONGEST;

    fn encode(&self, out: &mut Vec<u8>) {
        json(out, self);
    }

    fn decode(frame: &[u8]) -> Result<Request, FrameError> {
        from_json(frame)
    }
}

impl Message for Reply {
    const LONGEST: usize = LONGEST_REPLY;

    fn encode(&self, out: &mut Vec<u8>) {
        json(out, self);
    }

    fn decode(frame: &[u8]) -> Result<Reply, FrameError> {
        from_json(frame)
    }
}

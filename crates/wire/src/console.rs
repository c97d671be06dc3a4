//! What other commands (`resurgo ps`, `checkpoint`, `kill`) say to a running job's dispatcher, and its answers, in the frames
//! of [`crate::control`].

use serde::{Deserialize, Serialize};

use crate::control::{FrameError, Message, from_json, json};

/// Longest frame accepted, in bytes: the other side may be a process of another user.
const LONGEST: usize = 1 << 20;

/// Longest command line that is told, in bytes: a reply stays below the longest frame however its characters are written.
pub const LONGEST_COMMAND: usize = 64 << 10;

/// Asked of a dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answered by [`Reply::Status`].
    Status,
    /// Take an image of every rank now; answered by [`Reply::Done`] or [`Reply::Refused`] when all have one or cannot.
    Checkpoint,
    /// Suspend the job; answered by [`Reply::Done`] when it has ended and can be resumed, or [`Reply::Refused`].
    Suspend,
    /// Have the ranks of this node go on elsewhere, and then end its agent if it is to be removed: answered by [`Reply::Done`] or
    /// [`Reply::Refused`].
    Drain { node: String, removed: bool },
    /// Start an agent on this host: answered by [`Reply::Done`] or [`Reply::Refused`] when it is there or cannot be.
    AddHost { host: String, slots: u32 },
    /// End the job; answered by [`Reply::Done`] at once.
    Kill,
}

/// A job as `resurgo ps` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub ranks: usize,
    /// Of them, those with a process now.
    pub running: usize,
    pub protocol: String,
    pub seconds: f64,
    pub restarts: u64,
    /// Images taken, or complete waves.
    pub images: u64,
    /// Since the last of them.
    pub seconds_since_image: Option<f64>,
    /// The command line of its programs, or its beginning.
    pub command: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Status(Status),
    /// How far it has come, once a second; another answer follows.
    Progress(String),
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
    const LONGEST: usize = LONGEST;

    fn encode(&self, out: &mut Vec<u8>) {
        json(out, self);
    }

    fn decode(frame: &[u8]) -> Result<Reply, FrameError> {
        from_json(frame)
    }
}

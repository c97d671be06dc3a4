//! The state of a running job, as `resurgo ps JOB --json` prints it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a rank does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// It has not begun MPI.
    BeforeMpi,
    Computing,
    /// It sleeps in MPI until a message comes.
    Waiting,
    /// An image of it, or a wave of its ranks, is being taken.
    TakingImage,
    Replaying,
    /// It goes back to a wave with others.
    Returning,
    /// It has no process now, and will begin again.
    Down,
    /// It has failed, and the program goes on without it.
    Lost,
    /// It has ended MPI.
    AfterMpi,
    Finished,
    /// Its node does not answer.
    Unknown,
}

impl Doing {
    pub const ALL: [Doing; 11] = [
        Doing::BeforeMpi,
        Doing::Computing,
        Doing::Waiting,
        Doing::TakingImage,
        Doing::Replaying,
        Doing::Returning,
        Doing::Down,
        Doing::Lost,
        Doing::AfterMpi,
        Doing::Finished,
        Doing::Unknown,
    ];

    /// As it is in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Doing::BeforeMpi => "before_mpi",
            Doing::Computing => "computing",
            Doing::Waiting => "waiting",
            Doing::TakingImage => "taking_image",
            Doing::Replaying => "replaying",
            Doing::Returning => "returning",
            Doing::Down => "down",
            Doing::Lost => "lost",
            Doing::AfterMpi => "after_mpi",
            Doing::Finished => "finished",
            Doing::Unknown => "unknown",
        }
    }
}

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    There,
    /// Its ranks are about to go elsewhere, or have.
    Leaving,
    /// Its connection is broken, and its ranks may run.
    Broken,
    Lost,
    /// It has left the job.
    Left,
}

impl Standing {
    pub const ALL: [Standing; 5] = [
        Standing::There,
        Standing::Leaving,
        Standing::Broken,
        Standing::Lost,
        Standing::Left,
    ];

    /// As it is in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Standing::There => "there",
            Standing::Leaving => "leaving",
            Standing::Broken => "broken",
            Standing::Lost => "lost",
            Standing::Left => "left",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    pub node: usize,
    /// None: the job has one node.
    pub name: Option<String>,
    pub state: Standing,
    /// Ranks that are there, or were last.
    pub ranks: usize,
    /// Bytes of memory that logs and records of these ranks hold.
    pub log_bytes: u64,
    /// Bytes that it holds of other nodes' images.
    pub held_bytes: u64,
    /// Since its last message, where there are several.
    pub silent_seconds: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankState {
    pub rank: usize,
    pub node: usize,
    pub pid: Option<i32>,
    /// From 1; 0: none has begun.
    pub life: u64,
    pub state: Doing,
    /// While it replays or waits: the rank whose message it waits for, unless any may send it.
    pub waits_for: Option<u32>,
    /// While it replays: the part that it has repeated, from 0 to 1.
    pub replayed: Option<f64>,
    /// Its last image is being written, or copied to another node.
    pub writes_image: bool,
    pub restarts: u64,
    /// Messages that it has sent and their bytes, and those that it has got.
    pub messages: u64,
    pub bytes: u64,
    pub deliveries: u64,
    pub log_bytes: u64,
    /// Other ranks, and the messages to each by its newest image. A return to a wave without logs begins to count anew.
    #[serde(default)]
    pub sent_to: Vec<(u32, u64)>,
}

/// The last image or wave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageState {
    pub number: u64,
    /// None: it is a wave.
    pub rank: Option<usize>,
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub job: u32,
    pub command: String,
    pub protocol: String,
    /// Its last ranks are being ended.
    pub is_ending: bool,
    pub seconds: f64,
    pub failures: u64,
    pub restarts: u64,
    /// Images taken, or complete waves.
    pub images: u64,
    pub last_image: Option<ImageState>,
    /// Messages that ranks have sent, and their bytes.
    pub messages: u64,
    pub bytes: u64,
    pub log_bytes: u64,
    pub nodes: Vec<NodeState>,
    pub ranks: Vec<RankState>,
    /// The number of the last event, from 1.
    pub last_event: u64,
    /// Events as `--json-events` has them, each with its `number`.
    pub events: Vec<Value>,
}

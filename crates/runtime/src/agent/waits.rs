//! What an agent has seen of waits in replays: see `vain.rs`.

use std::time::Instant;

/// What the agent has seen of waits.
#[derive(Default)]
pub struct Vain {
    pub at: Option<Instant>,
    /// Per rank, at the last look: its life and its wait.
    pub seen: Vec<Option<(u64, u64)>>,
    /// Second questions without an answer.
    pub asked: Vec<Asked>,
}

/// A question that is answered when the rank has looked again.
pub struct Asked {
    pub rank: u32,
    pub life: u64,
    pub wait: u64,
    pub number: u64,
    /// `control::WAITS_FOR` when the question came.
    pub word: u64,
}

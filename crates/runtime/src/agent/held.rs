//! Sends that ranks hold until an event logger has the deliveries before them (pessimistic logging, where nodes may be
//! lost). A rank releases them when it calls MPI; the agent makes a computing rank do so. In MPICH-V2 another process
//! of the node does it.

use std::io;
use std::time::{Duration, Instant};

use resurgo_protocol::group::Turn;
use resurgo_wire::node_memory::control;

use super::node::NodeMemory;
use super::{Agent, Work};

/// How often the agent looks for held sends. If the same send is still held, its rank computes, or an event logger does
/// not answer.
const LOOK: Duration = Duration::from_millis(50);

/// The state at the last look.
pub(super) struct Held {
    at: Instant,
    /// Per rank, [`control::HELD`].
    oldest: Vec<u64>,
}

impl Held {
    pub fn new() -> Held {
        Held {
            at: Instant::now(),
            oldest: Vec::new(),
        }
    }
}

impl Work {
    /// When the next look is due, if ranks can hold sends.
    pub(super) fn looks_at_held(&self) -> Option<Instant> {
        let holds = self.job.tolerate_node && !self.job.piggybacks();
        holds.then_some(self.held.at)
    }
}

impl Agent {
    /// Makes computing ranks release what they hold.
    pub(super) fn mind_held(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let work = &mut self.work;
        if work.looks_at_held().is_none_or(|at| at > now) {
            return Ok(());
        }
        work.held.at = now + LOOK;
        work.held.oldest.resize(work.ranks.len(), 0);
        for (rank, this) in work.ranks.iter().enumerate() {
            let oldest = work.memory.oldest_held(rank)?;
            let before = std::mem::replace(&mut work.held.oldest[rank], oldest);
            if oldest > 0 && oldest == before && this.life.is_some() {
                // A dead rank is not an error here. The turn matters only to groups.
                let _ = this.notice(Turn { wave: 0, group: 0 });
            }
        }
        Ok(())
    }
}

impl NodeMemory {
    fn oldest_held(&self, rank: usize) -> io::Result<u64> {
        self.control(rank, control::HELD)
    }
}

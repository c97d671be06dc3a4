//! What the ranks of this node do now: read from the node memory when someone asks. Ranks do nothing for it.

use std::io;

use resurgo_wire::control::{Seen, ToDispatcher};
use resurgo_wire::node_memory::{AT_SOCKETS, PHASE_REPLAY, WAIT_SOURCE_BITS, control};

use super::{Agent, Work};

/// See [`control::SLEEPING`].
const SLEEPS: [u32; 2] = [1, AT_SOCKETS];

impl Agent {
    pub(super) fn look(&mut self, number: u64) -> io::Result<()> {
        let work = &self.work;
        let ranks = (0..work.ranks.len()).filter(|rank| work.is_here(*rank) && work.ranks[*rank].number > 0);
        let ranks = ranks.map(|rank| work.seen(rank)).collect::<io::Result<_>>()?;
        self.send(&ToDispatcher::Looked { number, ranks })
    }
}

impl Work {
    fn seen(&self, rank: usize) -> io::Result<Seen> {
        let this = &self.ranks[rank];
        let statistics = self.statistics(rank)?;
        let before = match this.images.slot_of(this.began_from) {
            Some(slot) => self.memory.deliveries_of_image(rank, slot)?,
            None => 0,
        };
        let waits_for = self.memory.control(rank, control::WAITS_FOR)?;
        // The source is there plus 1.
        let source = waits_for & ((1 << WAIT_SOURCE_BITS) - 1);
        let source = source.checked_sub(1).filter(|_| statistics.phase == PHASE_REPLAY);
        Ok(Seen {
            rank,
            life: this.number,
            sleeps: SLEEPS.contains(&self.memory.control(rank, control::SLEEPING)?),
            waits_for: source.map(|source| source as u32),
            repeated: statistics.deliveries.saturating_sub(before),
            statistics,
        })
    }
}

//! What the ranks of this node do now: read from the node memory when someone asks. Ranks do nothing for it.

use std::io;

use resurgo_wire::control::{Seen, ToDispatcher};
use resurgo_wire::node_memory::{AT_SOCKETS, PHASE_REPLAY, WAIT_SOURCE_BITS, control};

use super::{Agent, Work};

/// Larger jobs do not tell who sends to whom.
const MOST_TOLD: usize = 128;

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
        let sleeps = SLEEPS.contains(&self.memory.control(rank, control::SLEEPING)?);
        // The source is there plus 1.
        let source = match statistics.phase {
            PHASE_REPLAY => self.memory.control(rank, control::WAITS_FOR)? & ((1 << WAIT_SOURCE_BITS) - 1),
            _ if sleeps => self.memory.control(rank, control::AWAITS)?,
            _ => 0,
        };
        let source = source.checked_sub(1);
        Ok(Seen {
            rank,
            life: this.number,
            sleeps,
            waits_for: source.map(|source| source as u32),
            repeated: statistics.deliveries.saturating_sub(before),
            sent_to: self.sent_to(rank)?,
            statistics,
        })
    }

    fn sent_to(&self, rank: usize) -> io::Result<Vec<(u32, u64)>> {
        let newest = self.ranks[rank].images.newest_slot();
        let Some(slot) = newest.filter(|_| self.ranks.len() <= MOST_TOLD) else {
            return Ok(Vec::new());
        };
        let channels = self.memory.counts(rank, slot, self.ranks.len())?.channels.into_iter();
        let sent = channels.map(|channel| (channel.peer as u32, channel.sent));
        Ok(sent.filter(|(_, sent)| *sent > 0).collect())
    }
}

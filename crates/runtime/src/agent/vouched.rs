//! What ranks know of deliveries goes to the dispatcher with what they print and say to PMI, and before an image counts
//! (causal logging on several nodes): the user depends on that then, or a later life, and this node may be lost with it.

use std::io;

use resurgo_protocol::causal::Event;
use resurgo_wire::control::{MOST_DELIVERIES, ToDispatcher};
use resurgo_wire::node_memory::{EVENT_BYTES, arena, control, event_words, events_of, knowledge_of};

use super::node::NodeMemory;

/// What the dispatcher has been told.
#[derive(Default)]
pub struct Vouched {
    /// Per rank of this node, how far its knowledge has been told.
    told: Vec<u64>,
    /// Per rank of the job, its last delivery that has been told of.
    latest: Vec<u64>,
}

impl Vouched {
    /// Something is about to depend on all that `rank` knows: what it has printed or said to PMI, or an image that is to
    /// count. Answers what must be told first, in a job of `ranks` ranks. `epoch`: that of the memory.
    ///
    /// # Errors
    /// The node memory cannot be read.
    pub fn before(
        &mut self,
        rank: usize,
        ranks: usize,
        memory: &NodeMemory,
        epoch: u64,
    ) -> io::Result<Vec<ToDispatcher>> {
        self.told.resize(ranks, 0);
        self.latest.resize(ranks, 0);
        let mut events = memory.known_since(rank, &mut self.told[rank])?;
        events.retain(|event| {
            let latest = self.latest.get(event.receiver as usize);
            latest.is_some_and(|latest| event.rclock > *latest)
        });
        for event in &events {
            let latest = &mut self.latest[event.receiver as usize];
            *latest = event.rclock.max(*latest);
        }
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let stable = (0..ranks).map(|rank| Ok((rank as u32, memory.stable(rank)?)));
        let mut stable: Vec<(u32, u64)> = stable.collect::<io::Result<_>>()?;
        stable.retain(|(_, stable)| *stable > 0);
        let parts = events.chunks(MOST_DELIVERIES).map(|some| {
            let stable = std::mem::take(&mut stable);
            let events = some.iter().map(event_words).collect();
            ToDispatcher::Deliveries { epoch, events, stable }
        });
        Ok(parts.collect())
    }
}

impl NodeMemory {
    /// The event logger of `rank` has all of its deliveries.
    pub fn is_stable(&self, rank: usize) -> io::Result<bool> {
        Ok(self.control(rank, control::DELIVERIES)? <= self.control(rank, control::STABLE)?)
    }

    /// Deliveries of `rank`, of this node, that its event logger has, or that the older of its images covers.
    fn stable(&self, rank: usize) -> io::Result<u64> {
        let logged = self.control(rank, control::STABLE)?;
        match self.oldest_image(rank)? {
            Some(slot) => Ok(logged.max(self.deliveries_of_image(rank, slot)?)),
            None => Ok(logged),
        }
    }

    /// What `rank` has got to know since it was looked `so_far`; all that it knows when it has put that together anew.
    fn known_since(&self, rank: usize, so_far: &mut u64) -> io::Result<Vec<Event>> {
        loop {
            let word = self.arena(rank, arena::KNOWLEDGE)?;
            let (half, count) = knowledge_of(word);
            let is_same = word >> 32 == *so_far >> 32;
            let first = if is_same { knowledge_of(*so_far).1.min(count) } else { 0 };
            let mut bytes = vec![0; (count - first) * EVENT_BYTES];
            let at = self.layout.arena(rank) + self.layout.knowledge(half) + first * EVENT_BYTES;
            self.read(&mut bytes, at)?;
            if self.arena(rank, arena::KNOWLEDGE)? >> 32 == word >> 32 {
                *so_far = word;
                return Ok(events_of(&bytes).collect());
            }
        }
    }
}

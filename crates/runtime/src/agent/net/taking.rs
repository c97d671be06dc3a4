//! The receiver's mover's part of [`resurgo_wire::direct`]: which channels ranks of this node take themselves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use resurgo_protocol::handover::Taker;
use resurgo_wire::direct::Word;
use resurgo_wire::node_memory::control;

use super::giving::Channel;
use super::mapped::Mapped;
use super::tail::{Damaged, Tail};

pub struct Taking {
    memory: Arc<Mapped>,
    /// Only channels whose copies the mover does not write.
    takers: HashMap<Channel, Taker>,
    /// Sources from which ranks here have taken messages themselves.
    sources: HashSet<u32>,
}

/// A channel whose copy the mover writes again: the ended generation, and where the mover continues.
pub struct Settled {
    pub channel: Channel,
    pub generation: u64,
    pub tail: Tail,
}

impl Taking {
    pub fn new(memory: Arc<Mapped>) -> Taking {
        Taking {
            memory,
            takers: HashMap::new(),
            sources: HashSet::new(),
        }
    }

    /// The receiver takes the channel itself from `tail` on, in this generation.
    pub fn hand(&mut self, channel: Channel, generation: u64, tail: Tail) {
        let (source, destination) = channel;
        self.sources.insert(source);
        self.takers.entry(channel).or_default().hand(generation);
        let word = |word| self.memory.direct(destination as usize, source as usize, word);
        word(Word::Wrote).store(tail.word(), Ordering::SeqCst);
        word(Word::Hand).store(generation, Ordering::SeqCst);
        self.memory.ring(source as usize, destination as usize);
    }

    /// The other node takes the channel back from this generation.
    pub fn back(&mut self, channel: Channel, generation: u64) {
        if self.takers.get(&channel).is_some_and(|taker| taker.is_of(generation)) {
            self.revoke(|other| other == channel);
        }
    }

    /// Orders receivers to stop writing copies of these channels.
    pub fn revoke(&mut self, which: impl Fn(Channel) -> bool) {
        for (channel, taker) in self.takers.iter_mut().filter(|(channel, _)| which(**channel)) {
            taker.revoke();
            let word = self.memory.direct(channel.1 as usize, channel.0 as usize, Word::Hand);
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Channels whose receivers have stopped writing.
    ///
    /// # Errors
    /// A receiver has written a damaged log.
    pub fn settle(&mut self) -> Result<Vec<Settled>, Damaged> {
        let mut settled = Vec::new();
        for (channel, taker) in &mut self.takers {
            let (source, destination) = (channel.0 as usize, channel.1 as usize);
            let is_writing = self.memory.control(destination, control::WRITES).load(Ordering::SeqCst) != 0;
            if let Some(generation) = taker.settle(is_writing) {
                // A killed receiver may have written more than it has reported.
                let wrote = self
                    .memory
                    .direct(destination, source, Word::Wrote)
                    .load(Ordering::SeqCst);
                settled.push(Settled {
                    channel: *channel,
                    generation,
                    tail: Tail::of(wrote).end(&self.memory, source)?,
                });
            }
        }
        self.takers.retain(|_, taker| *taker != Taker::Writes);
        Ok(settled)
    }

    /// Some receiver has the order to stop, and may still write.
    pub fn waits(&self) -> bool {
        self.takers.values().any(|taker| matches!(taker, Taker::Waits { .. }))
    }

    /// Ranks here may know words of this source that its mover has yet to send.
    pub fn knows(&self, source: u32) -> bool {
        self.sources.contains(&source)
    }

    pub fn clear(&mut self) {
        self.takers.clear();
        self.sources.clear();
    }
}

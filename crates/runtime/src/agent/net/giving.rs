//! The sender's mover's part of [`resurgo_wire::direct`]: which channels ranks of this node carry to another one
//! themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use resurgo_protocol::handover::Giver;
use resurgo_wire::direct::Word;
use resurgo_wire::mesh::Frame;

use super::mapped::Mapped;
use super::tail::{Damaged, Tail};

/// Source and destination.
pub type Channel = (u32, u32);

/// If a channel has not moved for so long, its sender computes and does not push.
const PATIENCE: Duration = Duration::from_millis(4);

/// A channel with something in its log that its sender has yet to push.
struct Watched {
    channel: Channel,
    /// [`Word::Sent`] and [`Word::Looks`].
    seen: [u64; 2],
    until: Instant,
}

pub struct Giving {
    memory: Arc<Mapped>,
    /// Only channels that the mover does not carry.
    givers: HashMap<Channel, Giver>,
    /// No two channels, and no two nodes, have the same one.
    generation: u64,
    watched: Vec<Watched>,
}

impl Giving {
    /// `from`: the first generation, a random number.
    pub fn new(memory: Arc<Mapped>, from: u64) -> Giving {
        Giving {
            memory,
            givers: HashMap::new(),
            generation: from,
            watched: Vec::new(),
        }
    }

    fn word(&self, (source, destination): Channel, word: Word) -> &AtomicU64 {
        self.memory.direct(source as usize, destination as usize, word)
    }

    /// Whether the mover carries the channel.
    pub fn carries(&self, channel: Channel) -> bool {
        !self.givers.contains_key(&channel)
    }

    /// The other node has the channel up to its present end, `tail`. Hands it to the connection that its sender offers,
    /// if there is one.
    pub fn offer(&mut self, channel: Channel, tail: Tail, out: &mut Vec<u8>) {
        let offer = self.word(channel, Word::Offer).load(Ordering::SeqCst);
        let mut giver = Giver::default();
        let generation = self.generation.wrapping_add(1).max(1);
        if tail.reference == 0 || !giver.offered(offer, generation) {
            return;
        }
        self.generation = generation;
        self.givers.insert(channel, giver);
        let (source, destination) = channel;
        let frame = Frame::Hand {
            source,
            destination,
            generation,
            reference: tail.reference,
            place: tail.place as u32,
        };
        frame.encode(out);
        for (word, value) in [
            (Word::Generation, generation),
            (Word::From, tail.word()),
            (Word::Sent, tail.word()),
            (Word::Given, offer),
        ] {
            self.word(channel, word).store(value, Ordering::SeqCst);
        }
    }

    /// The sender of a channel that the mover does not carry has rung. Some: the mover takes the channel back from this
    /// generation.
    ///
    /// # Errors
    /// A rank of this node has written a damaged log.
    pub fn look(&mut self, channel: Channel) -> Result<Option<u64>, Damaged> {
        let offer = self.word(channel, Word::Offer).load(Ordering::SeqCst);
        if self.givers.get(&channel).is_none_or(|giver| giver.is_doubtful(offer)) {
            return Ok(self.take_back(channel));
        }
        let is_watched = self.watched.iter().any(|watched| watched.channel == channel);
        if !is_watched && let Some(seen) = self.left(channel)? {
            self.watch(channel, seen);
        }
        Ok(None)
    }

    fn watch(&mut self, channel: Channel, seen: [u64; 2]) {
        self.watched.push(Watched {
            channel,
            seen,
            until: Instant::now() + PATIENCE,
        });
    }

    /// The sender's position, if its log has more than it has pushed.
    fn left(&self, channel: Channel) -> Result<Option<[u64; 2]>, Damaged> {
        if !matches!(self.givers.get(&channel), Some(Giver::Given { .. })) {
            return Ok(None);
        }
        loop {
            let sent = self.word(channel, Word::Sent).load(Ordering::SeqCst);
            let is_more = Tail::of(sent).has_more(&self.memory, channel.0 as usize);
            let looks = self.word(channel, Word::Looks).load(Ordering::SeqCst);
            // The place may belong to another channel when the sender goes on.
            if self.word(channel, Word::Sent).load(Ordering::SeqCst) == sent {
                return Ok(is_more?.then_some([sent, looks]));
            }
        }
    }

    /// When [`Self::look_again`] is due.
    pub fn due(&self) -> Option<Instant> {
        self.watched.iter().map(|watched| watched.until).min()
    }

    /// Channels whose senders have pushed nothing since the last look: the mover takes them back from these
    /// generations.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub fn look_again(&mut self, now: Instant) -> Result<Vec<(Channel, u64)>, Damaged> {
        let mut over = Vec::new();
        let due: Vec<Watched> = self.watched.extract_if(.., |watched| watched.until <= now).collect();
        for Watched { channel, seen, .. } in due {
            let offer = self.word(channel, Word::Offer).load(Ordering::SeqCst);
            let doubtful = self.givers.get(&channel).is_some_and(|giver| giver.is_doubtful(offer));
            match self.left(channel)? {
                Some(still) if doubtful || still == seen => {
                    over.extend(self.take_back(channel).map(|generation| (channel, generation)));
                }
                Some(seen) => self.watch(channel, seen),
                None => {}
            }
        }
        Ok(over)
    }

    /// Takes the channel back. Some: the generation that the other node must learn is over.
    pub fn take_back(&mut self, channel: Channel) -> Option<u64> {
        let generation = self.givers.get_mut(&channel)?.take_back()?;
        self.refuse(channel);
        Some(generation)
    }

    /// The same for all channels from `source`; None: from all.
    pub fn take_all_back(&mut self, of: Option<u32>) -> Vec<(Channel, u64)> {
        let channels = self.givers.keys().copied();
        let channels: Vec<Channel> = channels
            .filter(|(source, _)| of.is_none_or(|of| *source == of))
            .collect();
        let taken = channels.into_iter();
        taken
            .filter_map(|channel| Some((channel, self.take_back(channel)?)))
            .collect()
    }

    /// The other node reports the end of a generation. True: the mover continues there.
    pub fn behind(&mut self, channel: Channel, generation: u64) -> bool {
        let ends = self
            .givers
            .get_mut(&channel)
            .is_some_and(|giver| giver.behind(generation));
        if ends {
            self.refuse(channel);
            self.givers.remove(&channel);
        }
        ends
    }

    /// The given channel is no longer given, and must not be given again: its connection may have bytes under way.
    fn refuse(&self, channel: Channel) {
        let given = self.word(channel, Word::Given).swap(0, Ordering::SeqCst);
        let offer = self.word(channel, Word::Offer);
        // The sender may offer another connection now.
        let _ = offer.compare_exchange(given, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether the other node has yet to report the end of some channel.
    pub fn waits(&self) -> bool {
        self.givers.values().any(|giver| matches!(giver, Giver::Waits { .. }))
    }

    /// The connection with the other node is broken; its successor brings the ends of all channels.
    pub fn clear(&mut self) {
        for channel in self.givers.keys() {
            self.refuse(*channel);
        }
        self.givers.clear();
        self.watched.clear();
    }
}

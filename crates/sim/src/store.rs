//! A store of images; its users share its bandwidth equally, for writing and for reading.

use resurgo_protocol::Rank;

/// The store that all ranks use.
#[derive(Debug, Clone, Copy)]
pub struct Storage {
    /// Bytes a second, together.
    pub bandwidth: u64,
    /// Bytes a second that one rank reaches alone.
    pub client: u64,
    /// Bytes of an image.
    pub image: u64,
}

/// One direction of it.
pub(crate) struct Store {
    storage: Storage,
    /// Its users, with their missing bytes.
    users: Vec<(Rank, f64)>,
    /// When that was so.
    since: u64,
    changes: u64,
}

/// Bytes that are no bytes: an image is whole.
const NOTHING: f64 = 1e-3;

impl Store {
    pub fn new(storage: Storage) -> Self {
        Self {
            storage,
            users: Vec::new(),
            since: 0,
            changes: 0,
        }
    }

    /// How often a user has begun, stopped or ended.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Bytes in a nanosecond for each.
    fn rate(&self) -> f64 {
        let share = self.storage.bandwidth as f64 / self.users.len() as f64;
        share.min(self.storage.client as f64) * 1e-9
    }

    fn advance(&mut self, now: u64) {
        let moved = self.rate() * (now - self.since) as f64;
        self.users.iter_mut().for_each(|(_, left)| *left -= moved);
        self.since = now;
        self.changes += 1;
    }

    pub fn begin(&mut self, rank: Rank, now: u64) {
        self.advance(now);
        self.users.push((rank, self.storage.image as f64));
    }

    /// Stops a use, if there is one.
    pub fn stop(&mut self, rank: Rank, now: u64) {
        self.advance(now);
        self.users.retain(|(user, _)| *user != rank);
    }

    /// The ranks whose images are complete `now`.
    pub fn end(&mut self, now: u64) -> Vec<Rank> {
        self.advance(now);
        let ended = |user: &(Rank, f64)| user.1 < NOTHING;
        let ranks = self.users.iter().filter(|user| ended(user));
        let ranks = ranks.map(|(rank, _)| *rank).collect();
        self.users.retain(|user| !ended(user));
        ranks
    }

    /// When the next image is complete, if no other user begins.
    pub fn next_end(&self) -> Option<u64> {
        let least = self.users.iter().map(|(_, left)| *left).reduce(f64::min)?;
        // Not before it is complete.
        Some(self.since + (least.max(0.0) / self.rate()).ceil() as u64)
    }
}

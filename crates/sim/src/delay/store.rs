//! A store whose bandwidth is shared by those who write to it, equally.

use resurgo_protocol::Rank;

use super::Storage;

pub(super) struct Store {
    storage: Storage,
    /// Who writes, and how many bytes are missing.
    writers: Vec<(Rank, f64)>,
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
            writers: Vec::new(),
            since: 0,
            changes: 0,
        }
    }

    /// How often somebody has begun or ended.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Bytes in a nanosecond for each that writes.
    fn rate(&self) -> f64 {
        let share = self.storage.bandwidth as f64 / self.writers.len() as f64;
        share.min(self.storage.client as f64) * 1e-9
    }

    fn advance(&mut self, now: u64) {
        let written = self.rate() * (now - self.since) as f64;
        self.writers.iter_mut().for_each(|(_, left)| *left -= written);
        self.since = now;
        self.changes += 1;
    }

    pub fn begin(&mut self, rank: Rank, now: u64) {
        self.advance(now);
        self.writers.push((rank, self.storage.image as f64));
    }

    /// Whose images are in the store `now`.
    pub fn end(&mut self, now: u64) -> Vec<Rank> {
        self.advance(now);
        let ended = |writer: &(Rank, f64)| writer.1 < NOTHING;
        let ranks = self.writers.iter().filter(|writer| ended(writer));
        let ranks = ranks.map(|(rank, _)| *rank).collect();
        self.writers.retain(|writer| !ended(writer));
        ranks
    }

    /// When the next image is there, as long as nobody begins.
    pub fn next_end(&self) -> Option<u64> {
        let least = self.writers.iter().map(|(_, left)| *left).reduce(f64::min)?;
        // Not before it is whole.
        Some(self.since + (least.max(0.0) / self.rate()).ceil() as u64)
    }
}

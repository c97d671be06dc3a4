//! Places beyond the nodes, and what is there. A launcher that goes on from files does not know it.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::Rank;

use super::nodes::Life;
use crate::random::Random;

/// What happens in the launcher numbered first.
#[derive(Debug)]
pub(super) enum InPlace {
    /// The wave on its way is there.
    Copied(u64),
    /// The image is on this node, or cannot be read in the place.
    Fetched(u64, Rank, u64, Life),
}

/// The places of a job; without randomness there are none. `W`: a wave, as a place has it.
#[derive(Debug)]
pub(super) struct Places<W> {
    pub random: Option<Random>,
    /// Waves that stay.
    pub keep: usize,
    pub launcher: u64,
    pub on_its_way: Option<(u64, W)>,
    pub whole: BTreeMap<u64, W>,
    /// Waves there that cannot be read, or that the job has left for older ones.
    pub bad: BTreeSet<u64>,
    pub fetched: BTreeSet<(Rank, u64)>,
}

impl<W> Places<W> {
    pub fn new(mut random: Option<Random>) -> Self {
        Self {
            keep: random.as_mut().map_or(0, |random| random.between(1, 3) as usize),
            random,
            launcher: 0,
            on_its_way: None,
            whole: BTreeMap::new(),
            bad: BTreeSet::new(),
            fetched: BTreeSet::new(),
        }
    }

    /// The oldest wave that is there, or comes there.
    pub fn oldest(&self) -> Option<u64> {
        let coming = self.on_its_way.as_ref().map(|(number, _)| *number);
        self.whole.keys().copied().chain(coming).min()
    }

    /// All can return to it.
    pub fn has(&self, wave: u64) -> bool {
        self.whole.contains_key(&wave) && !self.bad.contains(&wave)
    }

    /// The job goes on from `wave`, and later ones count no more.
    pub fn leave_later(&mut self, wave: u64, asked: u64) {
        self.bad.extend(wave + 1..=asked);
    }

    /// The launcher is lost, with all that it knew of places.
    pub fn begin_again(&mut self) {
        *self = Self {
            random: self.random.take(),
            keep: self.keep,
            launcher: self.launcher + 1,
            ..Self::new(None)
        };
    }
}

//! Waits of ranks in their replays, rings of them, and questions about these: see `vain.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::Rank;

/// A wait of a rank's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub life: u64,
    /// Which wait of this life it is, and for whom.
    pub wait: u64,
    pub source: Rank,
}

/// A question around a ring.
#[derive(Debug)]
pub(super) struct Probe {
    pub number: u64,
    pub ring: Vec<(Rank, Wait)>,
    pub answered: BTreeSet<Rank>,
    /// It is the second one.
    pub again: bool,
}

/// What is known of waits.
#[derive(Debug, Default)]
pub(super) struct Vain {
    pub waits: BTreeMap<Rank, Wait>,
    /// Of each ring; no two have a rank in common.
    pub probes: Vec<Probe>,
    /// How many questions there were.
    pub asked: u64,
}

impl Vain {
    /// The ring of waits that `rank` is in; none: there is no ring.
    pub fn ring(&self, rank: Rank) -> Option<Vec<(Rank, Wait)>> {
        let mut ring = Vec::new();
        let mut next = rank;
        loop {
            let wait = *self.waits.get(&next)?;
            ring.push((next, wait));
            next = wait.source;
            if next == rank {
                // Every rank of it begins with the same.
                let first = ring.iter().enumerate().min_by_key(|(_, (rank, _))| *rank);
                let first = first.map_or(0, |(place, _)| place);
                ring.rotate_left(first);
                return Some(ring);
            }
            if ring.len() > self.waits.len() {
                return None;
            }
        }
    }
}

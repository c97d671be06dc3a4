//! What a rank has of checkpoints.

use std::collections::BTreeMap;
use std::ffi::c_int;

use resurgo_protocol::diskless::{Id, Kept};

use super::region::{Region, Spare};
use super::set::Set;

/// What a rank has.
#[derive(Default)]
pub struct Memory {
    pub regions: BTreeMap<c_int, Region>,
    /// The checkpoint of which this rank knows that all have it.
    pub counts: Option<Set>,
    /// One after it, which this rank has whole.
    pub newer: Option<Set>,
    /// The last that this rank has begun.
    pub begun: Option<Id>,
    pub spare: Spare,
}

/// The length of what [`Memory::kept_words`] gives.
pub const KEPT_WORDS: usize = 6;

/// What a member has, from its words.
pub fn kept_of(words: &[u64]) -> Kept {
    let id = |number: u64, of: u64| (number != 0).then_some(Id { number, of });
    Kept {
        counts: id(words[0], words[1]),
        newer: id(words[2], words[3]),
        begun: id(words[4], words[5]),
    }
}

impl Memory {
    /// What it has, in [`KEPT_WORDS`] words for the others.
    pub fn kept_words(&self) -> Vec<u64> {
        let of = |set: &Option<Set>| set.as_ref().map(|set| set.id);
        let ids = [of(&self.counts), of(&self.newer), self.begun];
        ids.map(|id| id.map_or([0, 0], |id| [id.number, id.of])).concat()
    }

    /// This one counts, and no other.
    pub fn settle(&mut self, id: Option<Id>) {
        let Some(id) = id else { return };
        if self.newer.as_ref().is_some_and(|set| set.id == id) {
            self.newer_counts();
        }
        let others = [&mut self.counts, &mut self.newer].map(|set| set.take_if(|set| set.id != id));
        let buffers = others.into_iter().flatten().flat_map(Set::into_buffers);
        self.spare.0.extend(buffers);
    }

    pub fn newer_counts(&mut self) {
        let before = std::mem::replace(&mut self.counts, self.newer.take());
        self.spare.0 = before.map(Set::into_buffers).unwrap_or_default();
    }

    /// Ranks whose data this one keeps, although it does not stand for them.
    pub fn inherited(&self) -> Vec<c_int> {
        let Some(set) = &self.counts else { return Vec::new() };
        let own = set.directory.own;
        let kept = set.directory.keepers.iter().zip(&set.labels).enumerate();
        let inherited = kept.filter(|(place, (keeper, _))| **keeper == own && set.place != Some(*place));
        inherited.map(|(_, (_, label))| *label).collect()
    }
}

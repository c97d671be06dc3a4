//! Waves of which nodes lack images: if there is no newer wave that all ranks can return to, nodes get these from sets
//! with parity, or from places beyond the nodes. No rank begins before all are there.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Fetching, From, Place};
use super::{Command, Coordinator};
use crate::Rank;

impl Coordinator {
    /// These waves are whole in places, and no others.
    pub(super) fn are_beyond(&mut self, waves: Vec<u64>) {
        self.beyond.waves = waves.into_iter().collect();
    }

    /// The job goes on from `wave`: later ones, up to `asked`, are of a course that it has left.
    pub(super) fn leave_later(&mut self, wave: u64, asked: u64) {
        self.beyond.bad.extend(wave + 1..=asked);
    }

    /// There will be no waves any more, or none that have all ranks.
    pub(super) fn nothing_is_beyond(&mut self) {
        let waves = std::mem::take(&mut self.beyond.waves);
        self.beyond.bad.extend(waves);
    }

    /// The newest wave in places that is newer than `wave`.
    pub(super) fn newest_beyond(&self, wave: u64) -> Option<u64> {
        let may_be = self.has_waves() && self.units.len() == 1;
        let newest = self.beyond.waves.difference(&self.beyond.bad).last().copied();
        newest.filter(|newest| may_be && *newest > wave)
    }

    /// Some image of the wave has come from a place: logs in memory may not reach back to it.
    pub(super) fn is_from_beyond(&self, wave: u64) -> bool {
        self.beyond.fetched.iter().any(|(_, number)| *number == wave)
    }

    /// The ranks that cannot return to the wave with what is on nodes. Where messages are logged, an image in memory
    /// alone is not enough: what the wave needs of the log lies beside the file. A rank whose end is part of the wave
    /// needs nothing.
    pub(super) fn without(&self, unit: usize, wave: u64) -> Vec<Rank> {
        let logs = self.plan.protocol.logs();
        let lacks = |rank: &Rank| {
            let images = &self.ranks[*rank as usize].images;
            !images.has_file(wave) && (logs || !images.has(wave)) && !self.has_end(*rank, wave)
        };
        let members = self.units[unit].members.iter().copied();
        members.filter(lacks).collect()
    }

    /// Nodes get what they lack of the wave from sets, or else from places; the ranks of the unit return to it then.
    pub(super) fn fetch(&mut self, unit: usize, wave: u64) {
        self.nodes.logs_lost |= self.plan.protocol.logs();
        if self.is_passing() && !self.transit.contains(&wave) {
            // It comes when it is read.
            self.transit_files.insert(wave);
        }
        let before = self.units[unit].fetching.take().filter(|before| before.wave == wave);
        let mut rebuilding = BTreeMap::new();
        let (before, mut coming) = before.map_or_else(Default::default, |before| (before.missing, before.rebuilding));
        let missing: BTreeSet<Rank> = self.without(unit, wave).into_iter().collect();
        for rank in missing.iter().copied() {
            if before.contains(&rank) && self.nodes.up.contains_key(&self.ranks[rank as usize].node) {
                rebuilding.extend(coming.remove(&rank).map(|made| (rank, made)));
                continue;
            }
            let Some(to) = self.choose_node(rank, From::File(wave)) else {
                return;
            };
            let number = wave;
            match self.rebuildable(rank, number) {
                Some(set) => _ = rebuilding.insert(rank, self.rebuild(rank, set, to)),
                None => self.tell(Command::Fetch { rank, number, to }),
            }
        }
        match missing.is_empty() {
            true => self.read_or_begin(unit, wave),
            false => {
                self.units[unit].fetching = Some(Fetching {
                    wave,
                    missing,
                    rebuilding,
                })
            }
        }
    }

    /// A node is lost: images on their way to it go elsewhere. Another wave may have to do.
    pub(super) fn mind_fetching(&mut self) {
        for unit in 0..self.units.len() {
            let Some(Fetching { wave, ref missing, .. }) = self.units[unit].fetching else {
                continue;
            };
            let comes = |rank: &Rank| {
                let is_coming = || missing.contains(rank) && self.nodes.up.contains_key(&self.node(*rank));
                self.is_beyond(wave) || is_coming() || self.rebuildable(*rank, wave).is_some()
            };
            match self.without(unit, wave).iter().all(comes) {
                true => self.fetch(unit, wave),
                false => self.choose_wave(unit),
            }
        }
    }

    /// Places have the wave; without parity it comes from nowhere else.
    fn is_beyond(&self, wave: u64) -> bool {
        self.parity().is_none() || self.beyond.waves.contains(&wave) && !self.beyond.bad.contains(&wave)
    }

    /// The rank's image has come from a set or a place, and can be read there.
    pub(super) fn fetched(&mut self, rank: Rank, number: u64, place: Place) {
        let unit = self.unit(rank);
        let fetching = self.units[unit].fetching.as_mut();
        let fetching = fetching.filter(|fetching| fetching.wave == number && fetching.missing.contains(&rank));
        let Some(fetching) = fetching else {
            // Unless it is there by other ways.
            return match self.images(rank).has_file(number) {
                true => {}
                false => self.tell(Command::Collect { rank, number }),
            };
        };
        fetching.missing.remove(&rank);
        let is_rebuilt = fetching.rebuilding.remove(&rank).is_some();
        let images = self.images(rank);
        images.has_come(number, place);
        // It was nowhere, so it goes nowhere.
        images.going.remove(&number);
        if !is_rebuilt {
            self.beyond.fetched.insert((rank, number));
        }
        self.units[unit]
            .fetching
            .take_if(|fetching| fetching.missing.is_empty())
            .into_iter()
            .for_each(|_| self.choose_wave(unit));
    }

    /// No place has it whole, or it cannot be made anew: it comes from elsewhere, or another wave must do.
    pub(super) fn not_fetched(&mut self, rank: Rank, number: u64, reason: String) {
        let unit = self.unit(rank);
        let fetching = self.units[unit].fetching.as_mut();
        let fetching = fetching.filter(|fetching| fetching.wave == number && fetching.missing.contains(&rank));
        let Some(fetching) = fetching else {
            return;
        };
        match fetching.rebuilding.remove(&rank) {
            Some(rebuilding) => {
                fetching.missing.remove(&rank);
                if !rebuilding.is_stale {
                    self.is_not_made_from(rebuilding.set, rebuilding.sources);
                    self.tell(Command::ImageLost { rank, number, reason });
                }
                self.choose_again(unit);
            }
            None => {
                self.units[unit].fetching = None;
                self.tell(Command::ImageLost { rank, number, reason });
                self.is_bad_beyond(number);
                self.choose_wave(unit);
            }
        }
    }

    /// What the places have of this wave is of no use.
    pub(super) fn is_bad_beyond(&mut self, number: u64) {
        self.beyond.bad.insert(number);
    }

    /// No node has this file any more. If a place has given it, it would give the same again.
    pub(super) fn is_useless(&mut self, rank: Rank, number: u64) {
        if self.beyond.fetched.remove(&(rank, number)) {
            self.is_bad_beyond(number);
        }
    }
}

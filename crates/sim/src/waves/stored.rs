//! Files of images and of transit, which may be damaged, missing, or never written; and the loss of the launcher, after
//! which the job goes on from stored files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use resurgo_protocol::coordinator::{Former, Place};
use resurgo_protocol::{Coordinator, Fact, Rank};

use super::agent::Agent;
use super::nodes::Storage;
use super::{Snapshot, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

/// By image: the nodes that have its file.
type Disks = BTreeMap<(Rank, u64), BTreeSet<usize>>;

/// Each rank's image of the wave is on some node.
fn is_whole(disks: &Disks, wave: u64) -> bool {
    let mut of_wave = disks.iter().filter(|((_, of), _)| *of == wave);
    of_wave.all(|(_, nodes)| !nodes.is_empty())
}

/// Where the rank's files can be read, as a resumed job learns it.
fn places_of(disks: &Disks, rank: Rank, waves: &[u64]) -> BTreeMap<u64, BTreeSet<Place>> {
    let of_wave = |wave: &u64| {
        let nodes = disks.get(&(rank, *wave))?.iter();
        Some((*wave, nodes.map(|node| Place::Node(*node as u32)).collect()))
    };
    waves.iter().filter_map(of_wave).collect()
}

impl World {
    /// The waves of which every rank has its file, and what was in transit is in one.
    pub(super) fn whole_in_files(&self) -> Vec<u64> {
        let files = &self.agent.files;
        let waves: BTreeSet<u64> = files.keys().map(|(_, wave)| *wave).collect();
        // The dispatcher records what it knows.
        let nodes = &self.nodes;
        let has = |image: &(Rank, u64)| {
            files.contains_key(image)
                && !nodes.given_up.contains(image)
                && (!nodes.linked || nodes.told.contains(image))
                && (nodes.storage != Storage::Shared || !nodes.is_damaged(image.0, image.1, 0))
        };
        let ends = &self.agent.ends;
        let all_have =
            |wave: &u64| (0..self.size as Rank).all(|rank| has(&(rank, *wave)) || ends.contains(&(rank, *wave)));
        waves
            .into_iter()
            .filter(|wave| all_have(wave) && (!self.non_blocking || self.agent.has_transit_file(*wave)))
            .collect()
    }

    /// The newest wave that all can begin from, as it really is; 0: there is none.
    pub(super) fn newest_usable(&self) -> u64 {
        let agent = &self.agent;
        let nodes = &self.nodes;
        let has_file = |image: (Rank, u64)| {
            let can_be_read = match nodes.storage {
                Storage::Shared => !nodes.is_damaged(image.0, image.1, 0),
                _ => nodes.can_read_file(image.0, image.1) || self.can_be_rebuilt(image, |_| true),
            };
            agent.files.contains_key(&image)
                && !nodes.given_up.contains(&image)
                && (!nodes.linked || nodes.told.contains(&image))
                && can_be_read
        };
        let has = |rank: Rank, wave: u64| {
            let copy = agent.copies.get(&(rank, wave)).map(|copy| &self.snapshots[*copy]);
            let counts =
                |copy: &Snapshot| nodes.counts(copy.node, copy.serial) && !nodes.copies.ending.contains(&(rank, wave));
            let is_there = |copy: &Snapshot| copy.alive && (!nodes.linked || counts(copy));
            copy.is_some_and(is_there) || has_file((rank, wave)) || agent.ends.contains(&(rank, wave))
        };
        let known =
            |wave: u64| !self.non_blocking || self.transit.state.contains_key(&wave) || agent.has_transit_file(wave);
        let waves = self.checkers.waves().iter().copied();
        let on_nodes = |wave: u64| (0..self.size as Rank).all(|rank| has(rank, wave)) && known(wave);
        let usable = waves.filter(|wave| on_nodes(*wave) || self.places.has(*wave));
        usable.max().unwrap_or(0)
    }

    /// Whether a file of this wave may be damaged: there must be another way to go on.
    pub(super) fn may_be_damaged(&self, wave: u64) -> bool {
        let is_shared = self.nodes.storage == Storage::Shared;
        !self.agent.is_resumed || is_shared && self.whole_in_files().iter().any(|other| *other < wave)
    }

    pub(super) fn read_transit(&mut self, number: u64) -> Result<(), Violation> {
        let damaged = self.random.one_in(4) && self.may_be_damaged(number);
        let state = self.agent.read_transit_file(number, damaged).filter(|_| !damaged);
        let state = state.or_else(|| self.transit_from_place(number));
        match state {
            Some(state) => {
                self.transit.state.insert(number, state);
                self.coordinate(Fact::TransitKnown { number })
            }
            // As if nothing had been in transit.
            None if self.is(Mutation::TakeDamagedTransit) => self.coordinate(Fact::TransitKnown { number }),
            None => {
                self.note(|| format!("what was in transit in wave {number} cannot be read"));
                self.report.fallbacks += 1;
                self.is_bad_in_places(number);
                let reason = "it is damaged".to_string();
                self.coordinate(Fact::TransitLost { number, reason })
            }
        }
    }

    pub(super) fn write_transit(&mut self, number: u64) -> Result<(), Violation> {
        match self.transit.state.get(&number).cloned() {
            Some(state) if !self.random.one_in(20) => {
                self.agent.keep_transit_file(number, state);
                Ok(())
            }
            _ => {
                let reason = "the disk is full".to_string();
                self.coordinate(Fact::TransitNotWritten { number, reason })
            }
        }
    }

    /// The disks' contents of recorded waves when everything ends at once; none where all see the same. The disks of some
    /// lost nodes are back. Other nodes never come back, but not those without which there would be no wave.
    fn on_disks(&mut self, recorded: &[u64]) -> (Disks, BTreeSet<usize>) {
        let nodes = &self.nodes;
        let (mut disks, mut lost) = (Disks::default(), BTreeSet::new());
        if nodes.storage == Storage::Shared {
            return (disks, lost);
        }
        let (random, all) = (&mut self.random, 0..self.nodes.of.len());
        let come_back: Vec<usize> = all.clone().filter(|_| random.one_in(3)).collect();
        let there = |rank: Rank, wave: u64| -> BTreeSet<usize> {
            // As it was in any life of the node.
            let was_there = |node: &usize| {
                let mut stored = nodes.stored.get(&(rank, wave)).into_iter().flatten();
                come_back.contains(node) && stored.any(|(of, _)| of == node)
            };
            let has = |node: &usize| nodes.has_file(*node, rank, wave) || was_there(node);
            all.clone().filter(has).collect()
        };
        for wave in recorded {
            let images = (0..self.size as Rank).map(|rank| (rank, *wave));
            let images = images.filter(|image| !self.agent.ends.contains(image));
            disks.extend(images.map(|(rank, wave)| ((rank, wave), there(rank, wave))));
        }
        for node in 0..self.nodes.of.len() {
            let mut fewer = disks.clone();
            for nodes in fewer.values_mut() {
                nodes.remove(&node);
            }
            let stays = |other: usize| other != node && !lost.contains(&other);
            if self.random.one_in(3) && recorded.iter().any(|wave| self.is_whole(&fewer, *wave, stays)) {
                self.note(|| format!("the disk of node {node} is lost"));
                disks = fewer;
                lost.insert(node);
            }
        }
        (disks, lost)
    }

    /// Each rank's image of the wave is on some node, or can be made anew from what is on those that stay.
    fn is_whole(&self, disks: &Disks, wave: u64, stays: impl Fn(usize) -> bool) -> bool {
        match self.nodes.sets.rule {
            None => is_whole(disks, wave),
            Some(_) => self.is_whole_with_pieces(disks, wave, stays),
        }
    }

    /// The waves that a new launcher may begin from: those of the record, whatever wave the job has returned to since.
    fn resumable(&self) -> Vec<u64> {
        let nodes = &self.nodes;
        let can_be_read = |rank: Rank, wave: u64| match nodes.storage {
            Storage::Shared => !nodes.is_damaged(rank, wave, 0),
            // That is found out where it lies.
            _ => true,
        };
        let ends = &self.agent.ends;
        let has = |rank: Rank, wave: u64| {
            let is_there = self.agent.files.contains_key(&(rank, wave)) && can_be_read(rank, wave);
            is_there || ends.contains(&(rank, wave))
        };
        let recorded = self.agent.record.iter().copied();
        recorded
            .filter(|wave| (0..self.size as Rank).all(|rank| has(rank, *wave)))
            .filter(|wave| !self.non_blocking || self.agent.has_transit_file(*wave))
            .collect()
    }

    /// These waves are what the job can be resumed from: their files stay, and those that were kept for others go.
    pub(super) fn write_down(&mut self, waves: RangeInclusive<u64>) {
        let is_older = self.agent.record.last().is_some_and(|newest| waves.end() < newest);
        if is_older && self.is(Mutation::KeepRecordOfLeftWave) {
            return;
        }
        let nodes = &self.nodes;
        // Agents tell of the files that they are to keep, and have.
        let has = |rank: Rank, wave: u64| {
            let is_there = nodes.storage == Storage::Shared
                || nodes.can_read_file(rank, wave)
                || self.can_be_rebuilt((rank, wave), |_| true);
            is_there && !nodes.given_up.contains(&(rank, wave)) || self.agent.ends.contains(&(rank, wave))
        };
        let is_kept = |wave: &u64| (0..self.size as Rank).all(|rank| has(rank, *wave));
        self.agent.record = waves.filter(is_kept).collect();
        let record = self.agent.record.clone();
        self.note(|| format!("what is written down is {record:?}"));
        let (agent, nodes) = (&self.agent, &self.nodes);
        let is_needed = |image: &(Rank, u64)| !nodes.given_up.contains(image) || nodes.come_back.contains(image);
        let goes = |image: &(Rank, u64)| !is_needed(image) && !agent.is_recorded(image.1);
        let gone: Vec<(Rank, u64)> = agent.files.keys().copied().filter(goes).collect();
        for image in gone {
            match self.nodes.storage {
                Storage::Shared => drop(self.agent.files.remove(&image)),
                _ => drop(self.nodes.stored.remove(&image)),
            }
        }
        self.drop_unrecorded();
    }

    /// What could not be read is gone, or can be read again by the next launcher.
    fn end_damage(&mut self) {
        for (rank, number, node) in std::mem::take(&mut self.nodes.damaged) {
            if self.random.one_in(2) {
                continue;
            }
            match (self.nodes.storage, self.nodes.stored.get_mut(&(rank, number))) {
                (Storage::Shared, _) => drop(self.agent.files.remove(&(rank, number))),
                (_, Some(stored)) => stored.retain(|(of, _)| *of != node),
                (_, None) => {}
            }
        }
        let random = &mut self.random;
        self.agent.end_transit_damage(|| random.one_in(2));
    }

    /// Everything can be lost at once: there is a wave to go on from.
    pub(super) fn may_resume(&self) -> bool {
        let recorded = self.resumable();
        let ranks = || 0..self.size as Rank;
        let there = |rank: Rank, wave: u64| {
            let nodes = 0..self.nodes.of.len();
            nodes
                .filter(|node| self.nodes.has_file(*node, rank, wave))
                .collect::<BTreeSet<_>>()
        };
        let is_there = |wave: u64| {
            let images = ranks().filter(|rank| !self.agent.ends.contains(&(*rank, wave)));
            let disks = images.map(|rank| ((rank, wave), there(rank, wave))).collect();
            self.nodes.storage == Storage::Shared || self.is_whole(&disks, wave, |_| true)
        };
        recorded.into_iter().any(is_there)
    }

    /// The launcher is lost, with all processes and copies. The job goes on from its files, on nodes that have other ranks than before, or
    /// is started anew if there are none.
    pub(super) fn lose_launcher(&mut self) -> Result<(), Violation> {
        self.end_damage();
        let mut recorded = self.resumable();
        let (mut disks, lost) = self.on_disks(&recorded);
        if self.nodes.storage != Storage::Shared {
            recorded.retain(|wave| self.is_whole(&disks, *wave, |node| !lost.contains(&node)));
            // Agents remove what the job does not go on from.
            disks.retain(|(_, wave), _| recorded.contains(wave));
        }
        self.note(|| format!("the launcher is lost; in files are {recorded:?}"));
        self.report.crashes += 1;
        self.processes.iter_mut().for_each(|process| process.alive = false);
        self.snapshots
            .iter_mut()
            .for_each(|copy| (copy.alive, copy.under_way) = (false, false));
        self.transit.state.clear();
        self.all_words().for_each(|words| words.turn.group = 0);
        self.checkers.end_groups();
        self.checkers.nobody_writes();
        let sets = self.sets_again(&recorded, |node| !lost.contains(&node));
        let first = (self.processes.len(), self.snapshots.len());
        let anew = recorded.is_empty() || self.is(Mutation::BeginResumedAnew);
        let mut agent = Agent::again(&self.agent, self.size, &recorded, first);
        if !anew {
            let newest = recorded.last().copied().unwrap_or(0);
            let former = Former {
                asked: if self.is(Mutation::NumbersAgain) { 0 } else { newest },
                begun: false,
                ..Former::default()
            };
            let is_shared = self.nodes.storage == Storage::Shared;
            let formers = (0..self.size as Rank).map(|rank| {
                let places = places_of(&disks, rank, &recorded);
                let is_there = |wave: &&u64| is_shared || places.get(wave).is_some_and(|nodes| !nodes.is_empty());
                let has_end = |wave: &u64| agent.ends.contains(&(rank, *wave));
                let files = recorded.iter().filter(is_there).copied();
                let files: Vec<u64> = files.filter(|wave| !has_end(wave)).collect();
                let finished = recorded.iter().any(has_end);
                Former {
                    asked: match finished {
                        true => files.last().copied().unwrap_or(0),
                        false => former.asked,
                    },
                    finished,
                    files,
                    places,
                    ..former.clone()
                }
            });
            let coordinator = Coordinator::resume(agent.plan().clone(), formers.collect(), recorded.clone());
            agent.coordinator = coordinator.with_sets(sets.clone());
            agent.is_resumed = true;
        }
        if anew {
            agent.record.clear();
        }
        self.agent = agent;
        self.nodes.go_on_from(self.agent.files.keys().copied().collect());
        self.nodes.begin_again();
        self.places.begin_again();
        self.nodes
            .of
            .iter_mut()
            .for_each(|node| node.alive &= !self.nodes.linked);
        if self.nodes.linked {
            let workers = self.nodes.of.iter().filter(|node| !node.spare).count() as u64;
            for placed in &mut self.nodes.placed {
                *placed = self.random.below(workers) as usize;
            }
        }
        self.files_again(disks);
        self.open_links()?;
        if anew {
            self.agent.usable_is(recorded.last().copied().unwrap_or(0));
            self.reset()?;
            return self.coordinate(Fact::Launched);
        }
        self.pieces_again(&sets);
        self.coordinate(Fact::GoOn { together: false })
    }

    /// A disk's contents are there when the next life of its node begins.
    fn files_again(&mut self, disks: Disks) {
        for ((rank, wave), nodes) in disks {
            let lives = nodes.into_iter().map(|node| (node, self.nodes.next_serial(node)));
            let lives: Vec<_> = lives.collect();
            self.nodes
                .known
                .entry((rank, wave))
                .or_default()
                .extend(lives.iter().copied());
            self.nodes.stored.entry((rank, wave)).or_default().extend(lives);
        }
    }
}

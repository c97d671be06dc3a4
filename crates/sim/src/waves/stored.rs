//! Files of images and of what was in transit, which may be damaged, missing, or never be written; and the loss of the launcher, after
//! which the job goes on from what is stored.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::coordinator::{Former, Place};
use resurgo_protocol::{Coordinator, Fact, Rank};

use super::agent::Agent;
use super::nodes::Storage;
use super::{Snapshot, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

/// By image: the nodes that have its file.
type Disks = BTreeMap<(Rank, u64), BTreeSet<usize>>;

/// Each rank's image of the wave is somewhere.
fn is_whole(disks: &Disks, wave: u64) -> bool {
    let mut of_wave = disks.iter().filter(|((_, of), _)| *of == wave);
    of_wave.all(|(_, nodes)| !nodes.is_empty())
}

/// Where the rank's files can be read, as a resumed job is told.
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
        let waves = files.keys().filter(|(rank, _)| *rank == 0).map(|(_, wave)| *wave);
        // The dispatcher records what it has been told of.
        let has =
            |image: &(Rank, u64)| files.contains_key(image) && (!self.nodes.linked || self.nodes.told.contains(image));
        let all_have = |wave: &u64| (0..self.size as Rank).all(|rank| has(&(rank, *wave)));
        waves
            .filter(|wave| all_have(wave) && (!self.non_blocking || self.agent.has_transit_file(*wave)))
            .collect()
    }

    /// The newest wave that all can begin from, as it really is; 0: there is none.
    pub(super) fn newest_usable(&self) -> u64 {
        let agent = &self.agent;
        let nodes = &self.nodes;
        let has_file = |image: (Rank, u64)| {
            agent.files.contains_key(&image)
                && (!nodes.linked || nodes.told.contains(&image))
                && (nodes.storage == Storage::Shared || nodes.can_read_file(image.0, image.1))
        };
        let has = |rank: Rank, wave: u64| {
            let copy = agent.copies.get(&(rank, wave)).map(|copy| &self.snapshots[*copy]);
            let is_there = |copy: &Snapshot| copy.alive && (!nodes.linked || nodes.counts(copy.node, copy.serial));
            copy.is_some_and(is_there) || has_file((rank, wave))
        };
        let known =
            |wave: u64| !self.non_blocking || self.transit.state.contains_key(&wave) || agent.has_transit_file(wave);
        let waves = self.checkers.waves().iter().copied();
        let usable = waves.filter(|wave| (0..self.size as Rank).all(|rank| has(rank, *wave)) && known(*wave));
        usable.max().unwrap_or(0)
    }

    /// Whether something of this wave may turn out to be damaged: there must be another way to go on.
    pub(super) fn may_be_damaged(&self, wave: u64) -> bool {
        let is_shared = self.nodes.storage == Storage::Shared;
        !self.agent.is_resumed || is_shared && self.whole_in_files().iter().any(|other| *other < wave)
    }

    pub(super) fn read_transit(&mut self, number: u64) -> Result<(), Violation> {
        let damaged = self.random.one_in(4) && self.may_be_damaged(number);
        let state = self.agent.take_transit_file(number, damaged);
        match state.filter(|_| !damaged) {
            Some(state) => {
                self.transit.state.insert(number, state);
                self.coordinate(Fact::TransitKnown { number })
            }
            // As if nothing had been in transit.
            None if self.is(Mutation::TakeDamagedTransit) => self.coordinate(Fact::TransitKnown { number }),
            None => {
                self.note(|| format!("what was in transit in wave {number} cannot be read"));
                self.report.fallbacks += 1;
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

    /// What is on the disks of nodes when everything ends at once, of the waves that are written down; none where all see the same.
    /// Some nodes never come back, but not those without which there would be no wave.
    fn on_disks(&mut self, recorded: &[u64]) -> Disks {
        let nodes = &self.nodes;
        let mut disks = Disks::default();
        if nodes.storage == Storage::Shared {
            return disks;
        }
        let there = |rank: Rank, wave: u64| -> BTreeSet<usize> {
            let all = 0..nodes.of.len();
            all.filter(|node| nodes.has_file(*node, rank, wave)).collect()
        };
        for wave in recorded {
            disks.extend((0..self.size as Rank).map(|rank| ((rank, *wave), there(rank, *wave))));
        }
        for node in 0..self.nodes.of.len() {
            let mut fewer = disks.clone();
            for nodes in fewer.values_mut() {
                nodes.remove(&node);
            }
            if self.random.one_in(3) && recorded.iter().any(|wave| is_whole(&fewer, *wave)) {
                self.note(|| format!("the disk of node {node} is lost"));
                disks = fewer;
            }
        }
        disks
    }

    /// Everything can be lost at once: there is a wave to go on from.
    pub(super) fn may_resume(&self) -> bool {
        let recorded = self.whole_in_files();
        let is_there = |rank: Rank, wave: u64| {
            let mut nodes = 0..self.nodes.of.len();
            self.nodes.storage == Storage::Shared || nodes.any(|node| self.nodes.has_file(node, rank, wave))
        };
        recorded
            .iter()
            .any(|wave| (0..self.size as Rank).all(|rank| is_there(rank, *wave)))
    }

    /// The launcher is lost, with all processes and copies. The job goes on from its files, on nodes that have other ranks than before, or
    /// is started anew if there are none.
    pub(super) fn lose_launcher(&mut self) -> Result<(), Violation> {
        let mut recorded = self.whole_in_files();
        let disks = self.on_disks(&recorded);
        if self.nodes.storage != Storage::Shared {
            recorded.retain(|wave| is_whole(&disks, *wave));
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
        let first = (self.processes.len(), self.snapshots.len());
        let anew = recorded.is_empty() || self.is(Mutation::BeginResumedAnew);
        let mut agent = Agent::again(&self.agent, self.size, &recorded, first);
        if !anew {
            let newest = recorded.last().copied().unwrap_or(0);
            let former = Former {
                asked: if self.is(Mutation::NumbersAgain) { 0 } else { newest },
                begun: false,
                files: recorded.clone(),
                ..Former::default()
            };
            let formers = (0..self.size as Rank).map(|rank| Former {
                places: places_of(&disks, rank, &recorded),
                ..former.clone()
            });
            agent.coordinator = Coordinator::resume(agent.plan().clone(), formers.collect(), recorded.clone());
            agent.is_resumed = true;
        }
        self.agent = agent;
        self.nodes.begin_again();
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
        self.open_links()?;
        // What is on a disk is there for the node's next life.
        for ((rank, wave), nodes) in disks {
            let lives = nodes.into_iter().map(|node| (node, self.nodes.of[node].life.serial));
            self.nodes.stored.entry((rank, wave)).or_default().extend(lives);
        }
        if anew {
            self.agent.usable_is(recorded.last().copied().unwrap_or(0));
            self.reset()?;
            return self.coordinate(Fact::Launched);
        }
        self.coordinate(Fact::GoOn { together: false })
    }
}

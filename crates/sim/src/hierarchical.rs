//! The setting `hierarchical`: message logging between groups of ranks, and waves inside each. A failed rank takes its
//! group with it: all return to the group's last complete wave and repeat what their records say. Other groups go on.
//!
//! Everything is as in `process`, with the waves of `auto`, except the channels inside a group. Their logs keep what
//! [`Kept`](resurgo_protocol::hierarchical::Kept) says, and a return cuts them off where the wave was. It cuts no record.

use resurgo_protocol::group::Groups;
use resurgo_protocol::{Fact, Rank};

use crate::image::Image;
use crate::mutation::Mutation;
use crate::process::State;
use crate::random::Random;
use crate::world::World;

/// One to four groups, of any ranks.
pub(crate) fn groups(size: usize, random: &mut Random) -> Groups {
    let most = random.between(1, 4);
    let drawn: Vec<u64> = (0..size).map(|_| random.below(most)).collect();
    let mut used = drawn.clone();
    used.sort_unstable();
    used.dedup();
    let number = |drawn: &u64| used.partition_point(|group| group < drawn) as u32 + 1;
    Groups::new(drawn.iter().map(number).collect())
}

impl World {
    /// A channel between ranks that return together, which keeps less. Where nodes are lost all channels keep the same.
    pub(crate) fn is_inside(&self, from: Rank, to: Rank) -> bool {
        let keeps_all = self.moves() && !self.is(Mutation::KeepLessOnNodes);
        self.rules.hierarchical && !keeps_all && self.coordinator.unit(from) == self.coordinator.unit(to)
    }

    /// At the beginning each group is on one node.
    pub(crate) fn keep_groups_together(&mut self) {
        for rank in (0..self.ranks.len() as Rank).filter(|_| self.rules.hierarchical) {
            let first = self.members(rank)[0];
            self.nodes.of[rank as usize] = self.nodes.of[first as usize];
        }
    }

    /// The groups of these ranks, which were on a lost node, return.
    pub(crate) fn return_groups(&mut self, there: &[Rank]) {
        for rank in there {
            if !self.coordinator.is_alive(*rank) {
                self.coordinate(Fact::Return { rank: *rank });
            }
        }
    }

    /// The other ends of the channels of `rank` inside its group, itself included.
    fn partners(&self, rank: Rank) -> Vec<Rank> {
        let all = 0..self.ranks.len() as Rank;
        all.filter(|other| self.is_inside(rank, *other)).collect()
    }

    /// Notes what is in transit from `rank` to its group, which stands still as a whole.
    pub(crate) fn note_cut(&mut self, rank: Rank, wave: u64) {
        for to in self.partners(rank) {
            let reads = self.ranks[to as usize].consumed[rank as usize] + 1;
            if let Some(life) = self.ranks[rank as usize].life() {
                let sent = life.subject.sent(to);
                life.kept[to as usize].cut(wave, reads, sent);
            }
        }
    }

    /// Now and then `rank` drops unneeded entries of its logs.
    pub(crate) fn tidy_inside(&mut self, rank: Rank) {
        if self.rules.hierarchical && self.random.one_in(4) {
            for to in self.partners(rank) {
                self.tidy(rank, to);
            }
        }
        if self.is(Mutation::DropBetweenGroups) && self.random.one_in(4) {
            for to in 0..self.ranks.len() {
                let read = self.ranks[to].consumed[rank as usize];
                self.ranks[rank as usize].logs[to].drop_to(read);
            }
        }
    }

    /// `from` drops unneeded entries of its log inside the group.
    pub(crate) fn tidy(&mut self, from: Rank, to: Rank) {
        let oldest = match self.mutation {
            Some(Mutation::KeepOfNewestWave) => self.newest_wave(from),
            _ => self.ranks[from as usize].images.forgets(),
        };
        let reads = self.ranks[to as usize].consumed[from as usize] + 1;
        let (forgets, keeps) = (self.is(Mutation::ForgetInTransit), self.is(Mutation::KeepInside));
        let process = &mut self.ranks[from as usize];
        if let State::Up(life) = &mut process.state
            && !keeps
        {
            let kept = &mut life.kept[to as usize];
            kept.forget_before(oldest);
            process.logs[to as usize].keep(|ssn| {
                if forgets {
                    ssn >= reads
                } else {
                    kept.is_needed(ssn, reads)
                }
            });
        }
    }

    /// Now and then the images of `rank` are lost with it, and so are all waves of its group.
    pub(crate) fn lose_images(&mut self, rank: Rank) {
        if self.moves() || self.ranks[rank as usize].is_down() || self.now % 16 != 7 {
            return;
        }
        self.note(|| format!("the images of {rank} are lost"));
        while self.lose_copy_of(rank) {}
        for (number, _) in std::mem::take(&mut self.ranks[rank as usize].images.complete) {
            let reason = "it is damaged".to_string();
            self.coordinate(Fact::FileLost { rank, number, reason });
        }
    }

    /// `rank` has failed: all of its group return to the last wave whose images can be used.
    pub(crate) fn return_group(&mut self, rank: Rank) {
        if self.ranks[rank as usize].is_down() {
            return;
        }
        if let Some(waves) = self
            .waves
            .as_mut()
            .filter(|_| self.mutation == Some(Mutation::ReturnAlone))
        {
            waves.alone = Some(rank);
        }
        self.end_process(rank);
        self.destroyed = self.is_destroyed(rank).then_some(rank);
        self.coordinate(Fact::Return { rank });
        self.destroyed = None;
    }

    /// Entries in the logs of `rank` inside its group beyond its image of this wave are void, and its partners will
    /// read from theirs.
    pub(crate) fn cut_inside(&mut self, rank: Rank, number: u64) {
        for to in self.partners(rank) {
            let image = self.ranks[rank as usize].images.get(number);
            let sent = image.map_or(0, |image| image.life.subject.sent(to));
            let read = self.ranks[to as usize].images.get(number).map(Image::cursor);
            let read = read.map_or(0, |cursor| cursor.delivered[rank as usize]);
            if !self.is(Mutation::PlacesKeepFuture) {
                self.ranks[to as usize].consumed[rank as usize] = read;
            }
            let process = &mut self.ranks[rank as usize];
            if self.mutation != Some(Mutation::LogsKeepFuture) {
                process.logs[to as usize].cut(sent);
            }
            process.pushed[to as usize] = process.pushed[to as usize].min(sent);
            self.checkers.rewound(rank, to, sent);
            let revealed = !self.is(Mutation::RevealLostFuture);
            let wire = &mut self.wires[rank as usize][to as usize];
            if revealed {
                wire.connection += 1;
                wire.revealed = sent;
            }
        }
        if self.is(Mutation::RecordsReturn) {
            let process = &mut self.ranks[rank as usize];
            let rclock = process.images.get(number).map_or(0, |image| image.cursor().rclock);
            process.record.cut(rclock);
        }
    }

    /// Sends of former lives of `rank` inside its group count by number; the logs do not hold them.
    pub(crate) fn sent_inside(&self, rank: Rank, sent_before: &mut [u64]) {
        if self.is(Mutation::ForgetWhatWasSent) {
            return;
        }
        for to in self.partners(rank) {
            sent_before[to as usize] = self.ranks[rank as usize].sent_ever[to as usize];
        }
    }
}

//! Replicas: copies of files of images on other nodes. (Images of waves may have [parity](super::parity) instead.)
//!
//! One node after the other gets a file, each from one that has it: the rank's own node sends it once. What a lost node
//! had goes to another one.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::state::{Member, Place};
use super::{Command, Coordinator};
use crate::placement::{self, Shelf};
use crate::{Node, Rank};

impl Coordinator {
    /// The nodes that have an image of `own`, or may get it: those without ranks, if there are any, and none that is to
    /// be left.
    fn keepers(&self, own: Node, has: impl Fn(Node) -> bool) -> Vec<Node> {
        let up = self.nodes.up.iter().filter(|(node, _)| **node != own);
        let mut stays = up.clone().filter(|(node, _)| !self.is_leaving(**node));
        let are_only = stays.any(|(_, slots)| slots.count == 0);
        let may_get = |node: Node, slots: u32| !self.is_leaving(node) && (!are_only || slots == 0);
        let may = up.filter(|(node, slots)| has(**node) || may_get(**node, slots.count));
        may.map(|(node, _)| *node).collect()
    }

    pub(super) fn rack(&self, node: Node) -> Option<&str> {
        self.nodes.up.get(&node)?.rack.as_deref()
    }

    /// The nodes that are to have the file, and have not, in the order in which they get it.
    fn lacking(&self, rank: Rank, number: u64) -> Vec<Node> {
        let Member { node, ref images, .. } = self.ranks[rank as usize];
        let places = images.places.get(&number);
        let Some(places) = places.filter(|places| !places.contains(&Place::Everywhere)) else {
            return Vec::new();
        };
        let replicas = self.replicas() as usize;
        // All of them may be lost with the rank's node but one.
        let count = replicas + usize::from(replicas > 0 && !places.contains(&Place::Node(node)));
        let has = |keeper: Node| places.contains(&Place::Node(keeper));
        let shelf = |keeper: Node| Shelf {
            node: keeper,
            rack: self.rack(keeper),
            has: has(keeper),
        };
        let keepers = self.keepers(node, has).into_iter();
        let keepers = keepers.filter(|keeper| !images.refused.contains(&(number, *keeper)));
        let shelves: Vec<Shelf> = keepers.map(shelf).collect();
        let draw = placement::draw(self.plan.seed, node, number);
        placement::copies(count, self.rack(node), &shelves, draw)
    }

    /// A node that sends the file to others: one with a replica, if there is one, or else the rank's own.
    fn source(&self, rank: Rank, number: u64) -> Option<Node> {
        let Member { node, ref images, .. } = self.ranks[rank as usize];
        let places = images.places.get(&number)?.iter();
        let nodes = places.filter_map(|place| match place {
            Place::Node(node) => self.nodes.up.contains_key(node).then_some(*node),
            Place::Everywhere => None,
        });
        nodes.min_by_key(|from| (self.is_leaving(*from), *from == node))
    }

    /// The file counts if all that are to have it do. Otherwise the next one gets it.
    fn spread(&mut self, rank: Rank, number: u64) {
        if self.is_in_parity(rank, number) {
            return;
        }
        match self.lacking(rank, number).first() {
            Some(to) => {
                let (to, from) = (*to, self.source(rank, number));
                let images = self.images(rank);
                if let Some(from) = from.filter(|_| !images.going.contains_key(&number)) {
                    images.going.insert(number, (from, to));
                    self.tell(Command::Replicate { rank, number, from, to });
                }
            }
            None if self.images(rank).writing == Some(number) => match self.is_refused(rank, number) {
                true => self.not_written(rank, number, "no node that is left takes it".to_string()),
                false => self.complete_file(rank, number),
            },
            None => {}
        }
    }

    /// It has no replica, and not for want of nodes.
    fn is_refused(&self, rank: Rank, number: u64) -> bool {
        let images = &self.ranks[rank as usize].images;
        let places = images.places.get(&number).map_or(0, BTreeSet::len);
        places < 2 && images.refused.iter().any(|(of, _)| *of == number)
    }

    /// The rank's file is complete on its own node.
    pub(super) fn written(&mut self, rank: Rank, number: u64) {
        let node = self.ranks[rank as usize].node;
        if self.images(rank).writing == Some(number) {
            self.images(rank).is_at(number, Place::Node(node));
            match self.is_in_parity(rank, number) {
                // Others of its set may not be written before.
                true => self.writing_ended(rank),
                false => self.spread(rank, number),
            }
        }
    }

    /// Nodes get the file that no set has, once it is on its own node.
    pub(super) fn spread_if_written(&mut self, rank: Rank, number: u64) {
        let Member { node, ref images, .. } = self.ranks[rank as usize];
        let places = images.places.get(&number);
        if places.is_some_and(|places| places.contains(&Place::Node(node))) {
            self.spread(rank, number);
        }
    }

    /// A life has begun from a file of another node: its own node has the file now, too.
    pub(super) fn has_read(&mut self, rank: Rank) {
        let node = self.ranks[rank as usize].node;
        let replicas = self.plan.replicas;
        let images = self.images(rank);
        if let Some((number, Place::Node(_))) = images.reads
            && replicas > 0
        {
            // All other nodes with the file may be lost.
            images.has_come(number, Place::Node(node));
        }
    }

    /// Makes replicas of the rank's files that were lost. A rank without a life has none made before it begins.
    pub(super) fn replicate(&mut self, rank: Rank) {
        let member = &self.ranks[rank as usize];
        if member.is_alive() || member.finished {
            let files = member.images.files.clone();
            files.into_iter().for_each(|number| self.spread(rank, number));
        }
    }

    pub(super) fn replicate_all(&mut self) {
        self.sets.look_again = true;
        (0..self.ranks.len() as Rank).for_each(|rank| self.replicate(rank));
    }

    /// Gives other nodes the images that a lost one was to have.
    pub(super) fn replicate_again(&mut self) {
        for rank in 0..self.ranks.len() as Rank {
            let member = &self.ranks[rank as usize];
            let own = Place::Node(member.node);
            let places = &member.images.places;
            let is_here = |number: &u64| places.get(number).is_some_and(|places| places.contains(&own));
            if let Some(number) = member.images.writing.filter(is_here) {
                self.spread(rank, number);
            }
        }
    }

    /// The file can be read there, too.
    pub(super) fn stored(&mut self, rank: Rank, number: u64, place: Place) {
        if matches!(place, Place::Node(node) if !self.nodes.up.contains_key(&node)) {
            return;
        }
        let images = self.images(rank);
        if images.writing != Some(number) && !images.has_file(number) {
            // The file was given up, or is not needed any more.
            return self.tell(Command::Collect { rank, number });
        }
        images
            .going
            .retain(|of, (_, to)| *of != number || place != Place::Node(*to));
        images.is_at(number, place);
        self.spread(rank, number);
        self.end_ready_nodes();
    }

    /// The node does not get the file, for this reason: another one does, if there is one.
    pub(super) fn not_stored(&mut self, rank: Rank, number: u64, node: Node, reason: String) {
        let images = self.images(rank);
        if images.going.get(&number).is_none_or(|(_, to)| *to != node) {
            return;
        }
        images.going.remove(&number);
        images.refused.insert((number, node));
        let is_writing = images.writing == Some(number);
        match is_writing && self.is_refused(rank, number) && self.lacking(rank, number).is_empty() {
            true => self.not_written(rank, number, reason),
            false => self.spread(rank, number),
        }
    }
}

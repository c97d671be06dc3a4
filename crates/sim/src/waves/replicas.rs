//! Copies of images' files on other nodes, and what is checked of them.

use std::collections::BTreeSet;

use resurgo_protocol::coordinator::Place;
use resurgo_protocol::{Fact, Rank};

use super::nodes::{Happening, Life, Storage};
use super::{Event, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

const STORED: &str = "an image counts when as many nodes have its file as are to have it";
const REMADE: &str = "a lost replica is made anew";
const RACKS: &str = "no two nodes of a rack have an image while others have none";

type Image = (Rank, u64);

impl World {
    /// One node sends a rank's file to another one.
    pub(super) fn replicate(&mut self, node: usize, rank: Rank, number: u64, to: usize) -> Result<(), Violation> {
        let place = Place::Node(to as u32);
        let is_again = self
            .nodes
            .stored
            .get(&(rank, number))
            .is_some_and(|nodes| nodes.len() > 1);
        if self.is(Mutation::CountBeforePartner) || self.is(Mutation::SameNodeTwice) && is_again {
            return self.tell_from(node, Fact::Stored { rank, number, place });
        }
        let (from, to) = (self.nodes.of[node].life, self.nodes.of[to].life);
        let after = self.soon(self.pace.latency * 6);
        self.schedule(after, Event::Node(Happening::Replicated(rank, number, from, to)));
        Ok(())
    }

    /// All of it has arrived, or it is refused.
    pub(super) fn replicated(&mut self, rank: Rank, number: u64, from: Life, to: Life) -> Result<(), Violation> {
        let nodes = &mut self.nodes;
        let both = [from, to]
            .into_iter()
            .all(|life| nodes.is_alive(life.node, life.serial));
        let Some(stored) = nodes.stored.get_mut(&(rank, number)).filter(|_| both) else {
            return Ok(());
        };
        if !stored.contains(&(from.node, from.serial)) {
            return Ok(());
        }
        if self.random.one_in(40) {
            let (node, reason) = (to.node as u32, "it has no room".to_string());
            return self.tell_from(
                from.node,
                Fact::NotStored {
                    rank,
                    number,
                    node,
                    reason,
                },
            );
        }
        stored.insert((to.node, to.serial));
        let place = Place::Node(to.node as u32);
        let after = self.soon(self.pace.latency * 4);
        self.nodes.of[to.node].last.0 = self.nodes.of[to.node].last.0.max(self.now + after);
        self.tell_from(to.node, Fact::Stored { rank, number, place })?;
        self.spite(to.node)
    }

    /// The dispatcher orders it.
    pub(super) fn is_ordered(&mut self, image: Image, from: usize, to: usize) -> Result<(), Violation> {
        if self.is(Mutation::LoseReplicas) && self.nodes.told.contains(&image) {
            return Ok(());
        }
        let lives = (self.nodes.joined[from], self.nodes.joined[to]);
        let (Some(from), Some(to)) = lives else {
            return violation(
                STORED,
                format!("image {image:?} is to go from {from} to {to}: {lives:?}"),
            );
        };
        let having = self.having(image);
        if !having.contains(&from.node) || having.contains(&to.node) {
            let what = format!(
                "image {image:?} is to go from {} to {}, and {having:?} have it",
                from.node, to.node
            );
            return violation(STORED, what);
        }
        self.nodes.going.insert(image, (from, to));
        let own = self.agent.coordinator.node(image.0) as usize;
        let used: Vec<_> = having
            .iter()
            .chain([&own])
            .filter_map(|node| self.nodes.rack(*node))
            .collect();
        let is_used = |node: usize| self.nodes.rack(node).is_some_and(|rack| used.contains(&rack));
        // A node that was to be left when this was decided may stay by now.
        let may_stay = self.nodes.leaves.is_some();
        let free = self
            .may_have(image)
            .into_iter()
            .find(|node| !is_used(*node) && !may_stay);
        match free.filter(|_| is_used(to.node) && self.nodes.sets.rule.is_none()) {
            Some(free) => violation(RACKS, format!("image {image:?} goes to {}, and not to {free}", to.node)),
            None => Ok(()),
        }
    }

    /// The nodes that have the file, as the dispatcher knows.
    pub(super) fn having(&self, image: Image) -> BTreeSet<usize> {
        let known = self.nodes.known.get(&image).into_iter().flatten();
        let known = known.filter(|(node, serial)| self.nodes.counts(*node, *serial));
        known.map(|(node, _)| *node).collect()
    }

    /// Other nodes than the rank's own that may get the file.
    fn may_have(&self, image: Image) -> Vec<usize> {
        let (having, coordinator) = (self.having(image), &self.agent.coordinator);
        let own = coordinator.node(image.0) as usize;
        let refused = |node: usize| self.nodes.refused.contains(&(image.0, image.1, node));
        let up = self.nodes.up().into_iter().map(|life| life.node);
        up.filter(|node| *node != own && !having.contains(node))
            .filter(|node| !refused(*node) && !coordinator.is_leaving(*node as u32))
            .collect()
    }

    /// How many nodes lack the file that are to have it.
    fn lacking(&self, image: Image) -> usize {
        let wanted = self.nodes.replicas as usize + 1;
        let having = self.having(image).len();
        wanted.saturating_sub(having).min(self.may_have(image).len())
    }

    /// The dispatcher learns that a node has the file.
    pub(super) fn is_stored(&mut self, rank: Rank, number: u64, place: Place) -> Result<(), Violation> {
        let (image, nodes) = ((rank, number), &mut self.nodes);
        let Place::Node(node) = place else {
            if nodes.storage != Storage::Partners && !nodes.given_up.contains(&image) {
                nodes.told.insert(image);
            }
            return Ok(());
        };
        let Some(life) = nodes.joined[node as usize] else {
            return Ok(());
        };
        let has = (life.node, life.serial);
        if !nodes.given_up.contains(&image) && !nodes.stored.get(&image).is_some_and(|stored| stored.contains(&has)) {
            return violation(
                STORED,
                format!("image {image:?} counts, and node {node} does not have it"),
            );
        }
        nodes.is_known_on(node as usize, rank, number);
        nodes.going.retain(|of, (_, to)| *of != image || to.node != life.node);
        Ok(())
    }

    pub(super) fn has_refused(&mut self, rank: Rank, number: u64, node: usize) {
        let image = (rank, number);
        if self.nodes.going.get(&image).is_some_and(|(_, to)| to.node == node) {
            self.nodes.going.remove(&image);
            self.nodes.refused.insert((rank, number, node));
        }
    }

    /// The rank cannot use the file that its life was to read.
    pub(super) fn is_unreadable(&mut self, rank: Rank, number: u64) {
        let reads = self.nodes.reads.remove(&rank).filter(|(of, _)| *of == number);
        let known = self.nodes.known.get_mut(&(rank, number));
        if let Some(((_, node), known)) = reads.zip(known) {
            known.retain(|(of, _)| *of != node);
            self.nodes.refused.insert((rank, number, node));
        }
    }

    /// Images that count now: all nodes have them that are to have them, and one of them beside the rank's own, unless
    /// there is no other.
    pub(super) fn mind_told(&mut self) {
        if self.nodes.storage != Storage::Partners {
            return;
        }
        let parity = self.nodes.sets.rule;
        self.mind_sets();
        let counts = |image: &&Image| {
            let own = self.agent.coordinator.node(image.0) as usize;
            if parity.is_some() && !self.has_replicas(**image) {
                return false;
            }
            let having = self.having(**image);
            let is_refused = || {
                self.nodes
                    .refused
                    .range((image.0, image.1, 0)..=(image.0, image.1, usize::MAX))
                    .next()
            };
            let is_known = self.nodes.told.contains(*image) || self.nodes.given_up.contains(*image);
            !is_known
                && having.contains(&own)
                && self.lacking(**image) == 0
                && (having.len() > 1 || is_refused().is_none())
        };
        let counting: Vec<Image> = self.nodes.known.keys().filter(counts).copied().collect();
        self.nodes.told.extend(counting);
    }

    /// While all ranks run, lost replicas are on their way again.
    pub(super) fn check_replicas(&self) -> Result<(), Violation> {
        let coordinator = &self.agent.coordinator;
        let runs = |rank: Rank| coordinator.is_alive(rank) || self.agent.finished[rank as usize];
        if self.nodes.storage != Storage::Partners || self.agent.is_returning() || !(0..self.size as Rank).all(runs) {
            return Ok(());
        }
        if let Some(rule) = self.nodes.sets.rule {
            return self.check_parity(rule);
        }
        let goes = |image: &Image| {
            let going = self.nodes.going.get(image);
            going.is_some_and(|(from, to)| {
                [from, to]
                    .into_iter()
                    .all(|life| self.nodes.counts(life.node, life.serial))
            })
        };
        let told = self
            .nodes
            .told
            .iter()
            .filter(|image| !self.nodes.given_up.contains(*image))
            // An unreadable file may lie on a node while all readable ones are lost.
            .filter(|(rank, number)| coordinator.has_file(*rank, *number));
        let mut lost =
            told.filter(|image| !self.having(**image).is_empty() && self.lacking(**image) > 0 && !goes(image));
        match lost.next() {
            Some(image) => {
                let having = self.having(*image);
                violation(
                    REMADE,
                    format!("of image {image:?}, which {having:?} have and others may have"),
                )
            }
            None => Ok(()),
        }
    }
}

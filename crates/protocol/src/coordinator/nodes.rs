//! Nodes: which are up, which rank is on which, where files of images can be read, and what the loss of a node takes away.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::state::{From, Member, Place, Process, Slots};
use super::{Cause, Command, Coordinator, Why};
use crate::placement::{self, Room};
use crate::{Node, Rank};

const NODE_LOST: &str = "its node is lost";

impl Coordinator {
    pub(super) fn node_comes(&mut self, node: Node, slots: u32, spare: bool) {
        self.nodes.up.insert(node, Slots { count: slots, spare });
    }

    /// The nodes that are up, with their ranks that have not finished. Those that are to have no ranks are none for a life of `rank` that
    /// can begin elsewhere.
    fn rooms(&self, rank: Rank, from: From) -> Vec<Room> {
        let room = |(node, slots): (&Node, &Slots)| {
            let is_there = |member: &&super::Member| member.node == *node && !member.finished;
            Room {
                node: *node,
                slots: slots.count,
                ranks: self.ranks.iter().filter(is_there).count() as u32,
                spare: slots.spare,
            }
        };
        // Who cannot leave its node yet stays.
        let own = self.ranks.get(rank as usize).map(|member| member.node);
        let may_stay = |node: &Node| own == Some(*node) && !self.is_elsewhere(rank, from);
        let up = self.nodes.up.iter();
        up.filter(|(node, _)| !self.is_leaving(**node) || may_stay(node))
            .map(room)
            .collect()
    }

    pub(super) fn placed(&mut self, nodes: &[Node]) {
        for (member, node) in self.ranks.iter_mut().zip(nodes) {
            member.node = *node;
        }
    }

    /// Where a rank runs that is added.
    pub(super) fn roomiest(&self) -> Node {
        placement::roomiest(&self.rooms(Rank::MAX, From::Beginning)).unwrap_or(0)
    }

    /// The rank's next life is on a node that is up: the node, and another one from which it reads what it begins from, if it does not
    /// have that itself. None: there is none, and that has been told.
    pub(super) fn place(&mut self, rank: Rank, from: From) -> Option<(Node, Option<Node>)> {
        if !self.nodes.up.is_empty() || self.nodes.lost {
            let former = self.ranks[rank as usize].node;
            if self.rooms(rank, from).is_empty() {
                self.nobody_leaves();
            }
            let Some(node) = placement::next(former, &self.rooms(rank, from)) else {
                let fail = Command::Fail(Cause::NoNode);
                if !self.commands.contains(&fail) {
                    self.tell(fail);
                }
                return None;
            };
            self.ranks[rank as usize].node = node;
        }
        let node = self.ranks[rank as usize].node;
        let leaving = self.nodes.leaving.clone();
        let images = self.images(rank);
        let From::File(number) = from else {
            images.reads = None;
            return Some((node, None));
        };
        let places = images.places.get(&number);
        let has = |place: Place| places.is_none_or(|places| places.contains(&place));
        let place = match [Place::Node(node), Place::Everywhere]
            .into_iter()
            .find(|place| has(*place))
        {
            Some(place) => place,
            None => {
                let is_leaving = |place: &&Place| matches!(place, Place::Node(node) if leaving.contains_key(node));
                let stays_best = places.into_iter().flatten().min_by_key(is_leaving);
                stays_best.map_or(Place::Everywhere, |place| *place)
            }
        };
        images.reads = Some((number, place));
        match place {
            Place::Node(other) if other != node => Some((node, Some(other))),
            _ => Some((node, None)),
        }
    }

    /// Who is to have the images of the ranks of `node`, too. None: nobody, or nobody could.
    fn partner(&self, node: Node) -> Option<Node> {
        let up = self.nodes.up.keys().copied();
        let up = up.filter(|other| !self.is_leaving(*other));
        self.plan.partners.then(|| placement::partner(node, up)).flatten()
    }

    /// The rank's file is whole on its own node.
    pub(super) fn written(&mut self, rank: Rank, number: u64) {
        let node = self.ranks[rank as usize].node;
        if self.images(rank).writing != Some(number) {
            return;
        }
        self.images(rank).is_at(number, Place::Node(node));
        match self.partner(node) {
            Some(to) => self.tell(Command::Replicate { rank, number, to }),
            None => self.complete_file(rank, number),
        }
    }

    /// A life has begun from a file of another node: its own has that now, too.
    pub(super) fn has_read(&mut self, rank: Rank) {
        let node = self.ranks[rank as usize].node;
        let partners = self.plan.partners;
        let images = self.images(rank);
        if let Some((number, Place::Node(_))) = images.reads
            && partners
            && images.has_file(number)
        {
            images.is_at(number, Place::Node(node));
        }
    }

    /// Files that nobody has but the rank's node go to another one again.
    pub(super) fn replicate_alone(&mut self, rank: Rank) {
        let Member { node, ref images, .. } = self.ranks[rank as usize];
        let own = BTreeSet::from([Place::Node(node)]);
        let alone = images
            .files
            .iter()
            .filter(|number| images.places.get(number) == Some(&own));
        let alone: Vec<u64> = alone.copied().collect();
        let to = self.partner(node);
        for (number, to) in alone.into_iter().zip(to.into_iter().cycle()) {
            self.tell(Command::Replicate { rank, number, to });
        }
    }

    /// The file can be read there, too.
    pub(super) fn stored(&mut self, rank: Rank, number: u64, place: Place) {
        if matches!(place, Place::Node(node) if !self.nodes.up.contains_key(&node)) {
            return;
        }
        let images = self.images(rank);
        let is_written = images.writing == Some(number);
        if !is_written && !images.has_file(number) {
            // It has been given up, or is not needed any more.
            return self.tell(Command::Collect { rank, number });
        }
        images.is_at(number, place);
        if is_written {
            self.complete_file(rank, number);
        }
    }

    /// The file cannot be used where the rank has read it.
    pub(super) fn file_lost(&mut self, rank: Rank, number: u64, reason: String) {
        self.tell(Command::ImageLost { rank, number, reason });
        let images = self.images(rank);
        let read = images.reads.take().filter(|(of, _)| *of == number);
        if let Some(((_, place), places)) = read.zip(images.places.get_mut(&number)) {
            places.remove(&place);
            if !places.is_empty() {
                return;
            }
        }
        images.files.retain(|file| *file != number);
    }

    /// The node is there no more, with everything on it.
    pub(super) fn lost(&mut self, node: Node) {
        self.nodes.up.remove(&node);
        self.nodes.leaving.remove(&node);
        self.nodes.lost = true;
        let ranks = 0..self.ranks.len() as Rank;
        let there: Vec<Rank> = ranks.filter(|rank| self.ranks[*rank as usize].node == node).collect();
        let lived: Vec<Rank> = there
            .iter()
            .copied()
            .filter(|rank| self.ranks[*rank as usize].is_alive())
            .collect();
        // First everything that is gone, so that nothing that follows counts on it.
        self.nodes.logs_lost |=
            !there.is_empty() && self.plan.protocol.logs() && self.plan.protocol.can_return_together();
        for member in &mut self.ranks {
            member.images.is_nowhere_on(node);
        }
        for rank in &lived {
            let member = &mut self.ranks[*rank as usize];
            (member.process, member.finished) = (Process::None, false);
        }
        let (returning, failed): (Vec<Rank>, Vec<Rank>) = lived.into_iter().partition(|rank| self.is_returning(*rank));
        for rank in &failed {
            match self.has_waves() {
                true => self.drop_wave(*rank, Why::NodeLost),
                false => self.end_taking(*rank, Why::NodeLost),
            }
        }
        self.drop_surveys(&Why::NodeLost, |rank| there.contains(&rank));
        if there.is_empty() || !self.has_waves() {
            // Others do not return, and may have had their files there.
            (0..self.ranks.len() as Rank).for_each(|rank| self.replicate_alone(rank));
        }
        for rank in there {
            self.images_lost(rank);
        }
        self.replicate_again(node);
        returning.into_iter().for_each(|rank| self.ended_for_return(rank));
        self.tell(Command::Lost { node, ranks: failed });
        (0..self.units.len()).for_each(|unit| self.mind_leaving(unit));
    }

    /// The rank's copies have gone with their node, and what it was writing there.
    fn images_lost(&mut self, rank: Rank) {
        let images = self.images(rank);
        let copies = BTreeSet::from_iter([images.copy, images.writer, images.candidate].into_iter().flatten());
        copies
            .into_iter()
            .for_each(|number| self.copy_lost(rank, number, false, NODE_LOST.to_string()));
        if let Some(number) = self.images(rank).writing {
            self.not_written(rank, number, NODE_LOST.to_string());
        }
    }

    /// What `lost` was to have, too, another node gets.
    fn replicate_again(&mut self, lost: Node) {
        for rank in 0..self.ranks.len() as Rank {
            let member = &self.ranks[rank as usize];
            let own = Place::Node(member.node);
            let on_own = |number: &u64| {
                member
                    .images
                    .places
                    .get(number)
                    .is_some_and(|places| places.contains(&own))
            };
            if member.node != lost
                && let Some(number) = member.images.writing.filter(on_own)
            {
                self.written(rank, number);
            }
        }
    }
}

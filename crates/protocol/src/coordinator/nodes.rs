//! Nodes: which are up, which rank is on which, where files of images can be read, and what the loss of a node takes away.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;

use super::state::{From, Place, Process, Slots};
use super::{Cause, Command, Coordinator, Why};
use crate::placement::{self, Room};
use crate::{Node, Rank};

const NODE_LOST: &str = "its node is lost";

impl Coordinator {
    pub(super) fn node_comes(&mut self, node: Node, slots: u32, spare: bool, rack: Option<String>) {
        let count = slots;
        self.nodes.up.insert(node, Slots { count, spare, rack });
        self.replicate_all();
    }

    /// The nodes that are up, with their ranks that have not finished, nor failed for good. Nodes that must have no ranks do not count for a
    /// life of `rank` that can begin elsewhere.
    fn rooms(&self, rank: Rank, from: From) -> Vec<Room> {
        let room = |(node, slots): (&Node, &Slots)| {
            let begins_again = self.plan.protocol.has_images();
            let is_there = |member: &&super::Member| {
                member.node == *node && !member.finished && (begins_again || member.is_alive())
            };
            Room {
                node: *node,
                slots: slots.count,
                ranks: self.ranks.iter().filter(is_there).count() as u32,
                spare: slots.spare,
            }
        };
        // A rank that cannot leave its node yet stays. Where a lost node takes logs along none can while it is up.
        let own = self.ranks.get(rank as usize).map(|member| member.node);
        let may_stay = |node: &Node| own == Some(*node) && (self.plan.moves || !self.is_elsewhere(rank, from));
        let up = self.nodes.up.iter();
        up.filter(|(_, slots)| slots.count > 0)
            .filter(|(node, _)| !self.is_leaving(**node) || may_stay(node))
            .map(room)
            .collect()
    }

    pub(super) fn placed(&mut self, nodes: &[Node]) {
        for (member, node) in self.ranks.iter_mut().zip(nodes) {
            member.node = *node;
        }
    }

    /// Where a rank runs that is added: on one of these nodes, if any are named.
    pub(super) fn for_one_more(&self, named: &[Node]) -> Node {
        let mut rooms = self.rooms(Rank::MAX, From::Beginning);
        if !named.is_empty() {
            rooms.retain(|room| named.contains(&room.node));
        }
        placement::added(&rooms).or(named.first().copied()).unwrap_or(0)
    }

    /// The node of the rank's next life, which is up. None: there is no node, and the decision says so.
    pub(super) fn choose_node(&mut self, rank: Rank, from: From) -> Option<Node> {
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
            if node != former {
                self.forget_waits();
            }
        }
        Some(self.ranks[rank as usize].node)
    }

    /// The node of the rank's next life, and another one from which it reads its image, if need be.
    pub(super) fn place(&mut self, rank: Rank, from: From) -> Option<(Node, Option<Node>)> {
        let node = self.choose_node(rank, from)?;
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

    /// The rank has read the file, and it is unusable there.
    pub(super) fn file_lost(&mut self, rank: Rank, number: u64, reason: String) {
        self.tell(Command::ImageLost { rank, number, reason });
        let unit = self.unit(rank);
        if let Some(returning) = &mut self.units[unit].returning {
            returning.image_lost();
        }
        let images = self.images(rank);
        let read = images.reads.take().filter(|(of, _)| *of == number);
        if let Some((_, Place::Node(node))) = read {
            images.refused.insert((number, node));
        }
        if let Some(((_, place), places)) = read.zip(images.places.get_mut(&number)) {
            places.remove(&place);
            if !places.is_empty() {
                return;
            }
        }
        images.files.retain(|file| *file != number);
        self.is_useless(rank, number);
        // Nodes that have not read it do not know.
        self.tell(Command::Collect { rank, number });
    }

    /// The node is lost, with everything on it.
    pub(super) fn lost(&mut self, node: Node) {
        self.nodes.up.remove(&node);
        let had_left = self.nodes.leaving.remove(&node) == Some(true);
        self.nodes.lost = true;
        self.forget_waits();
        let ranks = 0..self.ranks.len() as Rank;
        let there: Vec<Rank> = ranks.filter(|rank| self.ranks[*rank as usize].node == node).collect();
        let lived: Vec<Rank> = there
            .iter()
            .copied()
            .filter(|rank| self.ranks[*rank as usize].is_alive())
            .collect();
        // First removes everything that is gone: nothing after this counts on it.
        let had_ranks = !there.is_empty();
        self.nodes.logs_lost |=
            had_ranks && !had_left && self.plan.protocol.logs() && self.plan.protocol.can_return_together();
        self.lose_pieces(node);
        for member in &mut self.ranks {
            member.images.is_nowhere_on(node);
        }
        for rank in &lived {
            let member = &mut self.ranks[*rank as usize];
            (member.process, member.finished) = (Process::None, false);
        }
        let none_lived = lived.is_empty();
        let (returning, failed): (Vec<Rank>, Vec<Rank>) = lived.into_iter().partition(|rank| self.is_returning(*rank));
        for rank in &failed {
            match self.has_waves() {
                true => self.drop_wave(*rank, Why::NodeLost),
                false => self.end_taking(*rank, Why::NodeLost),
            }
        }
        self.drop_surveys(&Why::NodeLost, |rank| there.contains(&rank));
        if none_lived || !self.plan.protocol.can_return_together() {
            // Nobody returns for it, or other units do not; and these may have had their files there.
            self.replicate_all();
        }
        for rank in there {
            self.images_lost(rank);
        }
        self.replicate_again();
        let mut units = BTreeSet::new();
        for rank in returning {
            let unit = self.unit(rank);
            let is_first = units.insert(unit);
            // The first rank of a unit that had begun speaks for all: they may have begun once more by now.
            if is_first
                || self.units[unit]
                    .returning
                    .as_ref()
                    .is_some_and(|returning| returning.is_ending())
            {
                self.ended_for_return(rank);
            }
        }
        self.tell(Command::Lost { node, ranks: failed });
        if had_ranks && !self.outlives_nodes() && self.may_begin_anew() && !self.is_halted {
            self.all_begin_again();
        }
        (0..self.units.len()).for_each(|unit| self.mind_leaving(unit));
        self.mind_fetching();
        self.end_ready_nodes();
    }

    /// Ranks go on without what lay in the memory of a lost node: with images and logs on others, or with servers.
    fn outlives_nodes(&self) -> bool {
        let protocol = self.plan.protocol;
        self.plan.moves || protocol.can_return_together() || !protocol.logs()
    }

    /// The rank's copies are gone with their node, and so is the file that it was writing there.
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
}

//! Nodes that leave on purpose: their ranks go on elsewhere, from a wave that has just been taken, so that nothing is lost.
//!
//! When the wave is complete all ranks return to it at once, and have done nothing since. None begins before the images of those that
//! leave are on other nodes. Whoever stays wakes its own copy.

use super::state::From;
use super::{Command, Coordinator};
use crate::{Node, Rank};

const NO_OTHER: &str = "there is no other node that its ranks could go to";

impl Coordinator {
    /// The node is to have no ranks any more. What comes of it is told: [`Command::Left`] or [`Command::Stays`].
    pub(super) fn leave(&mut self, node: Node) {
        let mut others = self
            .nodes
            .up
            .keys()
            .filter(|other| !self.nodes.leaving.contains_key(other));
        let why = if !self.nodes.up.contains_key(&node) {
            Some("there is no such node")
        } else if others.all(|other| *other == node) {
            Some(NO_OTHER)
        } else if !self.plan.files || !self.has_waves() || self.units.len() > 1 {
            Some("its ranks have no images that other nodes have")
        } else if self.plan.protocol.logs() {
            Some("its ranks log their messages, and logs stay on their node; --protocol blocking has none")
        } else {
            None
        };
        if let Some(why) = why.filter(|_| !self.is_empty(node) || !self.nodes.up.contains_key(&node)) {
            let reason = why.to_string();
            return self.tell(Command::Stays { node, reason });
        }
        self.nodes.leaving.insert(node, false);
        self.tell_who_has_left(false, "");
    }

    /// The node need not leave any more, if it has not.
    pub(super) fn stay(&mut self, node: Node) {
        self.nodes
            .leaving
            .retain(|leaving, has_left| *leaving != node || *has_left);
    }

    /// Only nodes that were to be left are left over: ranks must go there.
    pub(super) fn nobody_leaves(&mut self) {
        for (node, has_left) in std::mem::take(&mut self.nodes.leaving) {
            if !has_left {
                let reason = NO_OTHER.to_string();
                self.tell(Command::Stays { node, reason });
            }
        }
    }

    /// No rank of the node has anything to do yet.
    fn is_empty(&self, node: Node) -> bool {
        let mut members = self.ranks.iter();
        members.all(|member| member.node != node || member.finished)
    }

    /// It is to have no rank that can begin elsewhere.
    pub(super) fn is_leaving(&self, node: Node) -> bool {
        self.nodes.leaving.contains_key(&node)
    }

    /// Some node is to be left, and still has ranks.
    pub(super) fn somebody_leaves(&self) -> bool {
        let mut leaving = self.nodes.leaving.iter();
        leaving.any(|(node, has_left)| !has_left && !self.is_empty(*node))
    }

    /// A wave is complete: if nodes leave, their ranks do now.
    pub(super) fn leave_with_wave(&mut self, unit: usize) {
        if self.somebody_leaves() {
            self.units[unit].leaves = true;
            self.return_unit(self.units[unit].members[0]);
        }
    }

    /// The images of ranks that leave are not elsewhere yet: nobody begins.
    pub(super) fn waits_to_leave(&mut self, unit: usize) -> bool {
        let this = &self.units[unit];
        let waits = |rank: &Rank| {
            let member = &self.ranks[*rank as usize];
            member.images.writing.is_some() && self.is_leaving(member.node)
        };
        let is_held = this.leaves && this.members.iter().any(waits);
        self.units[unit].is_held = is_held;
        is_held
    }

    /// What was waited for may be there.
    pub(super) fn mind_leaving(&mut self, unit: usize) {
        if self.units[unit].is_held && !self.waits_to_leave(unit) {
            self.choose_wave(unit);
        }
    }

    /// Copies of ranks that leave do not go with them, where their images can be read elsewhere.
    pub(super) fn leave_copies(&mut self, unit: usize, wave: u64) {
        for rank in self.units[unit].members.clone() {
            let node = self.ranks[rank as usize].node;
            if self.is_leaving(node) && self.is_elsewhere(rank, From::File(wave)) {
                let images = self.images(rank);
                let copies = [images.copy.take(), images.writer.take(), images.candidate.take()];
                for number in copies.into_iter().flatten() {
                    self.tell(Command::EndCopy { rank, number });
                }
            }
        }
    }

    /// A life that begins so can do that on another node than the one that its rank leaves.
    pub(super) fn is_elsewhere(&self, rank: Rank, from: From) -> bool {
        let member = &self.ranks[rank as usize];
        let number = match from {
            From::Beginning => return true,
            From::Copy(_) => return false,
            From::File(number) => number,
        };
        let places = member.images.places.get(&number);
        let is_other = |place: &super::Place| !matches!(place, super::Place::Node(node) if self.is_leaving(*node));
        member.images.has_file(number) && places.is_none_or(|places| places.iter().any(is_other))
    }

    /// Ranks have new places. `is_over`: who has not left now does not.
    pub(super) fn tell_who_has_left(&mut self, is_over: bool, reason: &str) {
        let waiting = self.nodes.leaving.iter().filter(|(_, has_left)| !**has_left);
        let waiting: Vec<Node> = waiting.map(|(node, _)| *node).collect();
        for node in waiting {
            if self.is_empty(node) {
                self.nodes.leaving.insert(node, true);
                self.tell(Command::Left { node });
            } else if is_over {
                self.nodes.leaving.remove(&node);
                let reason = reason.to_string();
                self.tell(Command::Stays { node, reason });
            }
        }
    }
}

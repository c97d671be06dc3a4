//! Nodes that leave on purpose: their ranks go on elsewhere.
//!
//! If only lost ranks begin again, each rank moves by itself, while others go on. It takes an image, another node gets
//! the file, and its next life begins there and repeats the rank's later deliveries.
//!
//! If a lost node takes logs along, the ranks of a leaving node must not begin elsewhere while it is up: others would
//! still get what they had sent. All of them take images. When other nodes have the files, with the logs beside them,
//! the node ends, and is lost.
//!
//! With waves of all ranks nothing is repeated. When a new wave is complete all ranks return to it at once, with no
//! work lost. None begins before the images of leaving ranks are on other nodes. Staying ranks wake their own copies.

use super::state::{From, Member, Place, Process};
use super::{Command, Coordinator};
use crate::{Node, Rank};

const NO_OTHER: &str = "there is no other node that its ranks could go to";
pub(super) const NOT_COPIED: &str = "an image of one of its ranks could not be copied to another node";

impl Coordinator {
    /// The node must have no ranks any more. What comes of it is told: [`Command::Left`] or [`Command::Stays`].
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
        } else if self.has_waves() && (self.units.len() > 1 || self.plan.moves) {
            Some("groups with waves of their own do not leave a node that is up")
        } else if !self.moves_alone() && (!self.plan.files || !self.has_waves()) {
            Some("its ranks have no images that other nodes have")
        } else {
            None
        };
        if let Some(why) = why.filter(|_| !self.is_empty(node) || !self.nodes.up.contains_key(&node)) {
            let reason = why.to_string();
            return self.tell(Command::Stays { node, reason });
        }
        if self.nodes.leaving.insert(node, false).is_none() {
            let there = self.ranks.iter_mut().filter(|member| member.node == node);
            there.for_each(|member| member.images.stale = member.images.asked);
            // It may have been the last one that could have a file.
            self.replicate_again();
            self.sets.look_again = true;
        }
        self.tell_who_has_left(false, "");
    }

    /// The node need not leave any more, if it has not.
    pub(super) fn stay(&mut self, node: Node) {
        self.nodes
            .leaving
            .retain(|leaving, has_left| *leaving != node || *has_left);
        self.replicate_all();
    }

    /// The node was to leave, and stays for this reason.
    fn cannot_leave(&mut self, node: Node, reason: &str) {
        self.nodes.leaving.remove(&node);
        let reason = reason.to_string();
        self.tell(Command::Stays { node, reason });
        self.replicate_all();
    }

    /// Only nodes that were to leave remain: ranks must go there.
    pub(super) fn nobody_leaves(&mut self) {
        for (node, has_left) in std::mem::take(&mut self.nodes.leaving) {
            if !has_left {
                let reason = NO_OTHER.to_string();
                self.tell(Command::Stays { node, reason });
            }
        }
        self.replicate_all();
    }

    /// No rank of the node is at work, and no other rank needs its logs. Where messages are logged, that is so after all
    /// have returned to a wave with the ends of the node's ranks: images of it have what these ranks had sent.
    fn is_empty(&self, node: Node) -> bool {
        let is_in_wave = |rank: Rank| self.has_end(rank, self.units[self.unit(rank)].chosen);
        let is_done = |rank: Rank, member: &Member| member.finished && (!self.plan.protocol.logs() || is_in_wave(rank));
        let mut members = (0..).zip(&self.ranks);
        members.all(|(rank, member)| member.node != node || is_done(rank, member))
    }

    /// It was to leave, and no rank needs anything of it any more.
    pub fn has_left(&self, node: Node) -> bool {
        self.nodes.leaving.get(&node) == Some(&true)
    }

    /// Lives are about to begin from files that only this node may have.
    fn is_read(&self, node: Node) -> bool {
        let reads = |rank: &Rank| {
            let member = &self.ranks[*rank as usize];
            let is_from = matches!(member.images.reads, Some((_, Place::Node(from))) if from == node);
            let begins = member.process == Process::Asked || self.is_returning(*rank);
            is_from && begins && member.node != node
        };
        (0..self.ranks.len() as Rank).any(|rank| reads(&rank))
    }

    /// No rank that can begin elsewhere goes there.
    pub fn is_leaving(&self, node: Node) -> bool {
        self.nodes.leaving.contains_key(&node)
    }

    /// Some node is to leave, and still has ranks.
    pub(super) fn somebody_leaves(&self) -> bool {
        let mut leaving = self.nodes.leaving.iter();
        leaving.any(|(node, has_left)| !has_left && !self.is_empty(*node))
    }

    /// Each rank that leaves a node begins with an image of its own.
    pub fn moves_alone(&self) -> bool {
        self.plan.files && !self.has_waves() && self.plan.protocol.recovers_alone() && !self.plan.keeps_logs
    }

    /// Nodes that leave end, if their ranks can begin elsewhere with new images.
    pub(super) fn end_ready_nodes(&mut self) {
        if !self.plan.moves {
            return;
        }
        let leaving = self.nodes.leaving.iter().filter(|(_, has_left)| !**has_left);
        let ready: Vec<Node> = leaving
            .map(|(node, _)| *node)
            .filter(|node| self.may_end(*node))
            .collect();
        for node in ready {
            self.nodes.leaving.insert(node, true);
            self.tell(Command::EndNode { node });
        }
    }

    /// Each rank there can begin elsewhere, with an image that was asked for when it was to leave. One that has finished
    /// can begin with any, as on the loss of its node.
    fn may_end(&self, node: Node) -> bool {
        let is_ready = |rank: Rank, member: &Member| {
            let mut files = member.images.files.iter().rev();
            let newest = files.find(|number| self.is_elsewhere(rank, From::File(**number)));
            match newest {
                _ if member.finished => newest.is_some() || !member.images.begun,
                newest => newest.is_some_and(|number| *number > member.images.stale),
            }
        };
        let mut ranks = (0..).zip(&self.ranks);
        !self.is_read(node) && ranks.all(|(rank, member)| member.node != node || is_ready(rank, member))
    }

    /// The rank has a new file. If the rank must leave its node and another node has the file, its process ends.
    pub(super) fn move_away(&mut self, rank: Rank) {
        let Member {
            node,
            process,
            ref images,
            ..
        } = self.ranks[rank as usize];
        let Some(newest) = images.files.last().copied() else {
            return;
        };
        if !self.is_leaving(node) || process != Process::Known && !self.plan.moves {
            return;
        }
        if !self.is_elsewhere(rank, From::File(newest)) {
            return self.cannot_leave(node, NOT_COPIED);
        }
        if self.plan.moves {
            return self.end_ready_nodes();
        }
        self.end_copies(rank);
        self.ranks[rank as usize].moves = true;
        self.kill(rank);
    }

    /// The rank's process is known. Another node may have got its file while it began.
    pub(super) fn move_late(&mut self, rank: Rank) {
        let images = &self.ranks[rank as usize].images;
        let is_new = |number: &u64| *number > images.stale && self.is_elsewhere(rank, From::File(*number));
        if self.moves_alone() && images.files.last().is_some_and(is_new) {
            self.move_away(rank);
        }
    }

    /// A wave is complete: ranks of leaving nodes now go.
    pub(super) fn leave_with_wave(&mut self, unit: usize) {
        if self.somebody_leaves() {
            self.units[unit].leaves = true;
            // Logs of leaving ranks come with their images, not with them.
            self.nodes.logs_lost |= self.plan.protocol.logs();
            self.return_unit(self.units[unit].members[0]);
        }
    }

    /// The images of leaving ranks are not elsewhere yet: no rank begins.
    pub(super) fn waits_to_leave(&mut self, unit: usize) -> bool {
        let this = &self.units[unit];
        let waits = |rank: &Rank| {
            let member = &self.ranks[*rank as usize];
            let writing = this.writing.as_ref();
            let will_write = || writing.is_some_and(|writing| !writing.has_begun(this.place(*rank)));
            self.is_leaving(member.node) && (member.images.writing.is_some() || will_write())
        };
        let is_held = this.leaves && this.members.iter().any(waits);
        self.units[unit].is_held = is_held;
        is_held
    }

    /// Checks whether the awaited images are there.
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

    /// A life with this start can be on another node than the one that its rank leaves.
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

    /// Ranks have new places, or a node is to be left. `is_over`: ranks that have not left now stay.
    pub(super) fn tell_who_has_left(&mut self, is_over: bool, reason: &str) {
        let waiting = self.nodes.leaving.iter().filter(|(_, has_left)| !**has_left);
        let waiting: Vec<Node> = waiting.map(|(node, _)| *node).collect();
        for node in waiting {
            let is_fetching = self.units.iter().any(|unit| unit.fetching.is_some());
            if self.is_empty(node) && (is_fetching || self.is_read(node)) {
                // It has left when they have begun.
            } else if self.is_empty(node) {
                self.nodes.leaving.insert(node, true);
                self.tell(Command::Left { node });
            } else if is_over {
                self.cannot_leave(node, reason);
            }
        }
        self.end_ready_nodes();
    }
}

//! Nodes that leave a running job: by a user's command, or because their machines are about to be taken away.
//!
//! The coordinator begins their ranks elsewhere, from a new wave or each from its own image. The dispatcher asks for
//! these images, and answers waiting clients.

use nix::sys::signal::Signal;
use resurgo_protocol::Fact;
use resurgo_wire::console::Reply;
use resurgo_wire::control::ToAgent;

use super::Dispatcher;
use super::events::Event;
use super::guests::Leaving;

/// Stands for the leaving nodes among the clients that wait for images.
pub(super) const CLIENT: u64 = u64::MAX;

impl Dispatcher {
    /// A user wants the node of this name (or number) to have no ranks, and with `removed` to leave the job.
    pub(super) fn drain(&mut self, client: u64, name: &str, removed: bool) {
        let by_name = |node: &usize| self.agents.name(*node) == Some(name);
        let by_number = |node: &usize| name.parse() == Ok(*node);
        let numbers = self.agents.numbers();
        let node = numbers.iter().find(|node| by_name(node));
        let node = node.or_else(|| numbers.iter().find(|node| by_number(node))).copied();
        let why = match node {
            _ if self.coming.is_none() => {
                "it runs on one node, or has been resumed; nodes of others can leave".to_string()
            }
            _ if self.verdict.is_some() => "it is ending".to_string(),
            Some(node) => return self.begin_to_leave(node, Some(client), removed),
            None => {
                let names: Vec<&str> = numbers.iter().filter_map(|node| self.agents.name(*node)).collect();
                format!("it has no node {name}; its nodes are {}", names.join(", "))
            }
        };
        self.front.console.answer(client, &Reply::Refused(why));
    }

    /// The machine of a node is about to be taken away.
    pub(super) fn is_preempted(&mut self, node: usize, reason: &str) {
        let is_known = self.leaving().iter().any(|leaving| leaving.node == node);
        if self.verdict.is_some() || is_known {
            return;
        }
        let name = self.name_of(node);
        self.bus.tell(Event::NodeLeaves {
            node,
            name: &name,
            reason,
        });
        self.begin_to_leave(node, None, false);
    }

    /// The machine of this process is about to be taken away: its node is to have no ranks. False: it has none, or there
    /// is no other node, or the user has been heard already.
    pub(super) fn is_preempted_here(&mut self, signal: Signal) -> bool {
        let Some(coming) = &self.coming else { return false };
        let is_here = |node: usize| {
            self.agents
                .name(node)
                .is_some_and(|name| coming.launching.is_here(name))
        };
        let (here, elsewhere): (Vec<usize>, Vec<usize>) =
            self.agents.numbers().into_iter().partition(|node| is_here(*node));
        let has_ranks = |node: &usize| (0..self.pids.len()).any(|rank| self.node_of(rank) == *node);
        let is_known = |node: &usize| coming.leaving.iter().any(|leaving| leaving.node == *node);
        let leave: Vec<usize> = here
            .into_iter()
            .filter(|node| has_ranks(node) && !is_known(node))
            .collect();
        if elsewhere.is_empty() || leave.is_empty() || self.verdict.is_some() {
            return false;
        }
        let reason = format!("resurgo run has got {signal}");
        leave.into_iter().for_each(|node| self.is_preempted(node, &reason));
        true
    }

    fn name_of(&self, node: usize) -> String {
        self.agents.name(node).unwrap_or_default().to_string()
    }

    fn leaving(&self) -> &[Leaving] {
        self.coming.as_ref().map_or(&[], |coming| &coming.leaving)
    }

    fn begin_to_leave(&mut self, node: usize, client: Option<u64>, removed: bool) {
        let Some(coming) = &mut self.coming else { return };
        coming.leaving.push(Leaving {
            node,
            client,
            removed,
            ends: false,
        });
        self.coordinate(Fact::Leave { node: node as u32 });
        // It may have had no ranks, or cannot leave.
        if self.leaving().iter().any(|leaving| leaving.node == node) {
            self.want_images_for_leaving();
        }
    }

    /// Ranks that move for themselves have their images one after the other; otherwise all have them at one moment.
    fn want_images_for_leaving(&mut self) {
        if !self.coordinator.moves_alone() {
            return self.want_images(Some(CLIENT));
        }
        let is_left = |rank: &usize| {
            let node = self.node_of(*rank);
            self.leaving().iter().any(|leaving| leaving.node == node) && !self.policy.has_finished(*rank)
        };
        let ranks: Vec<usize> = (0..self.pids.len()).filter(is_left).collect();
        self.checkpoints
            .want(ranks.into_iter(), Some(CLIENT), self.start.elapsed());
    }

    /// The image of `rank` is in no file: it cannot move by that.
    pub(super) fn not_written_for_leaving(&mut self, rank: usize, reason: &str) {
        let node = self.node_of(rank);
        // What a node that ends was writing is of no importance.
        let mut waiting = self.leaving().iter().filter(|leaving| !leaving.ends);
        if self.coordinator.moves_alone() && waiting.any(|leaving| leaving.node == node) {
            self.images_for_leaving(Some(&format!("that of rank {rank} could not be written: {reason}")));
        }
    }

    /// Its ranks can begin elsewhere when the node is lost: its agent ends now, with them. [`Self::node_lost`] follows.
    pub(super) fn end_node(&mut self, node: usize) {
        let leaving = self.coming.iter_mut().flat_map(|coming| &mut coming.leaving);
        leaving
            .filter(|leaving| leaving.node == node)
            .for_each(|leaving| leaving.ends = true);
        self.agents.node(node).queue(&ToAgent::Leave);
    }

    /// The node is lost because it was to leave with its ranks.
    pub(super) fn ends(&self, node: usize) -> bool {
        self.leaving()
            .iter()
            .any(|leaving| leaving.node == node && leaving.ends)
    }

    /// The node has no rank any more.
    pub(super) fn has_left(&mut self, node: usize) {
        let removed = self.tell_who_left(node);
        if removed && self.verdict.is_none() {
            self.agents.let_go(node);
            if let Some(plan) = &mut self.plan {
                plan.mesh[node].clear();
            }
            // Ranks that have finished may have been there.
            self.agents.queue_all(&ToAgent::NodeLost { node: node as u32 });
            self.is_gone(node);
            self.coordinate(Fact::Down { node: node as u32 });
        }
    }

    /// Returns whether the node is to leave the job.
    fn tell_who_left(&mut self, node: usize) -> bool {
        let name = self.name_of(node);
        self.bus.tell(Event::NodeLeft { node, name: &name });
        let reply = Reply::Done(format!("no rank is on node {name} any more"));
        self.answer_leaving(&reply, |leaving| leaving.node == node)
    }

    /// A host of this name may be added again.
    fn is_gone(&mut self, node: usize) {
        let name = self.name_of(node);
        if let Some(coming) = &mut self.coming {
            coming.launching.has_gone(&name);
        }
    }

    /// The ranks of the node could not leave.
    pub(super) fn stays(&mut self, node: usize, reason: &str) {
        let name = self.name_of(node);
        if self
            .leaving()
            .iter()
            .any(|leaving| leaving.node == node && leaving.client.is_none())
        {
            self.bus.tell(Event::NodeStays {
                node,
                name: &name,
                reason,
            });
        }
        let reply = Reply::Refused(format!("node {name} keeps its ranks: {reason}"));
        self.answer_leaving(&reply, |leaving| leaving.node == node);
    }

    /// The images for leaving nodes are there, or cannot be taken, for this reason. Without a waiting client the
    /// dispatcher tries again: the machine will be taken away.
    pub(super) fn images_for_leaving(&mut self, failed: Option<&str>) {
        let Some(why) = failed else { return };
        let waiting: Vec<usize> = self
            .leaving()
            .iter()
            .filter(|leaving| leaving.client.is_some() && !leaving.ends)
            .map(|leaving| leaving.node)
            .collect();
        for node in waiting {
            self.coordinate(Fact::Stay { node: node as u32 });
            let what = if self.has_waves() { "wave" } else { "image" };
            self.stays(node, &format!("no {what} can be taken: {why}"));
        }
        if self.leaving().iter().any(|leaving| !leaving.ends) && self.verdict.is_none() {
            self.want_images_for_leaving();
        }
    }

    /// Answers waiting clients. Returns whether one of them wants the node to leave the job.
    fn answer_leaving(&mut self, reply: &Reply, is_meant: impl Fn(&Leaving) -> bool) -> bool {
        let Some(coming) = &mut self.coming else { return false };
        let done: Vec<Leaving> = coming.leaving.extract_if(.., |leaving| is_meant(leaving)).collect();
        for client in done.iter().filter_map(|leaving| leaving.client) {
            self.front.console.answer(client, reply);
        }
        done.iter().any(|leaving| leaving.removed)
    }

    /// The node is lost, before it could leave or because it did.
    pub(super) fn is_lost_or_left(&mut self, node: usize) {
        if self.ends(node) {
            self.tell_who_left(node);
            return self.is_gone(node);
        }
        let reply = Reply::Refused("the node was lost before that, and its ranks have gone elsewhere".to_string());
        self.answer_leaving(&reply, |leaving| leaving.node == node);
    }
}

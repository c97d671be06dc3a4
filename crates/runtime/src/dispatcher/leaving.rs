//! Nodes that leave while the job goes on: because somebody wants that, or because their machines are about to be taken away.
//!
//! The coordinator has their ranks begin elsewhere from a wave that has just been taken. Here it is seen to that there is one, and that
//! those who wait are answered.

use resurgo_protocol::Fact;
use resurgo_wire::console::Reply;

use super::Dispatcher;
use super::events::Event;
use super::guests::Leaving;

/// Stands for those who wait for nodes to be empty, among those who wait for images.
pub(super) const CLIENT: u64 = u64::MAX;

impl Dispatcher {
    /// Somebody wants the node of this name (or number) to have no ranks, and with `removed` to leave the job.
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

    fn name_of(&self, node: usize) -> String {
        self.agents.name(node).unwrap_or_default().to_string()
    }

    fn leaving(&self) -> &[Leaving] {
        self.coming.as_ref().map_or(&[], |coming| &coming.leaving)
    }

    fn begin_to_leave(&mut self, node: usize, client: Option<u64>, removed: bool) {
        let Some(coming) = &mut self.coming else { return };
        coming.leaving.push(Leaving { node, client, removed });
        self.coordinate(Fact::Leave { node: node as u32 });
        // It may have had no ranks, or cannot leave.
        if self.leaving().iter().any(|leaving| leaving.node == node) {
            self.want_images(Some(CLIENT));
        }
    }

    /// No rank is on the node any more.
    pub(super) fn has_left(&mut self, node: usize) {
        let name = self.name_of(node);
        self.bus.tell(Event::NodeLeft { node, name: &name });
        let reply = Reply::Done(format!("no rank is on node {name} any more"));
        let removed = self.answer_leaving(&reply, |leaving| leaving.node == node);
        if removed && self.verdict.is_none() {
            self.agents.let_go(node);
            if let Some(plan) = &mut self.plan {
                plan.mesh[node].clear();
            }
            if let Some(coming) = &mut self.coming {
                coming.launching.has_gone(&name);
            }
            self.coordinate(Fact::Down { node: node as u32 });
        }
    }

    /// The node could not be left.
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

    /// The images that were wanted so that nodes can be left are there, or cannot be taken, for this reason. What is not wanted by
    /// anybody is tried again: the machine will be taken away.
    pub(super) fn images_for_leaving(&mut self, failed: Option<&str>) {
        let Some(why) = failed else { return };
        let waiting: Vec<usize> = self
            .leaving()
            .iter()
            .filter(|leaving| leaving.client.is_some())
            .map(|leaving| leaving.node)
            .collect();
        for node in waiting {
            self.coordinate(Fact::Stay { node: node as u32 });
            self.stays(node, &format!("no wave can be taken: {why}"));
        }
        if !self.leaving().is_empty() && self.verdict.is_none() {
            self.want_images(Some(CLIENT));
        }
    }

    /// Answers those who wait. Whether one of them wants the node to leave the job.
    fn answer_leaving(&mut self, reply: &Reply, is_meant: impl Fn(&Leaving) -> bool) -> bool {
        let Some(coming) = &mut self.coming else { return false };
        let done: Vec<Leaving> = coming.leaving.extract_if(.., |leaving| is_meant(leaving)).collect();
        for client in done.iter().filter_map(|leaving| leaving.client) {
            self.front.console.answer(client, reply);
        }
        done.iter().any(|leaving| leaving.removed)
    }

    /// The node is lost before that.
    pub(super) fn is_lost_instead(&mut self, node: usize) {
        let reply = Reply::Refused("the node was lost before that, and its ranks have gone elsewhere".to_string());
        self.answer_leaving(&reply, |leaving| leaving.node == node);
    }
}

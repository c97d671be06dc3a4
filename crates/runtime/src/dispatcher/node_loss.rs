//! One of several nodes is lost, with its processes and its memory.
//!
//! Where all ranks can return together they do, on the nodes that are left: of what the lost ranks had logged only as much is elsewhere as
//! their last wave needs, so nobody can go on as if only they had failed. Where channel memories have everything only the lost ranks begin
//! again. Otherwise the job ends.

use std::time::Duration;

use resurgo_protocol::kinds::Kept;
use resurgo_protocol::{Command, Fact, Rank};
use resurgo_wire::control::{Nodes, ToAgent};

use super::events::Event;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    /// Nothing of the node runs any more.
    pub(super) fn node_lost(&mut self, node: usize) {
        let coming = self.coming.iter().flat_map(|coming| coming.launching.processes());
        let others = coming.chain(self.servers.pids());
        let agent = self.agents.lose(node, others);
        if let Some(plan) = &mut self.plan {
            plan.mesh[node].clear();
        }
        if self.agents.have_stopped() {
            self.gather_statistics();
        }
        if self.verdict.is_some() {
            return;
        }
        self.mind_measured();
        // Waves that were given up for images of single ranks: logs are of no use now, and all can begin again.
        self.have_waves_again();
        let protocol = self.coordinator.protocol();
        let is_elsewhere = protocol.kept() == Kept::InChannelMemory;
        let returns = protocol.can_return_together();
        if !is_elsewhere && !returns {
            let name = protocol.name();
            self.bus.error(&format!(
                "{agent}; under --protocol {name} what its ranks need to go on is lost with it, so the job ends; those with waves of all \
                 ranks, and channel-memory, go on"
            ));
            return self.end(FAILURE, Duration::ZERO);
        }
        self.bus.tell(Event::NodeLost { node, reason: &agent });
        self.give_up_gathering();
        self.coordinate(Fact::Down { node: node as u32 });
        self.is_lost_instead(node);
        if is_elsewhere {
            return;
        }
        self.mind_transit_taken();
        // Also when all of its ranks have finished: others may need again what they had sent.
        let rank = (0..self.pids.len()).find(|rank| self.node_of(*rank) == node);
        if let Some(rank) = rank.filter(|_| self.verdict.is_none()) {
            self.checkpoints.failed();
            self.return_all(rank);
        }
    }

    /// These ranks ran on a node that is lost. Where they begin again alone they do, on others.
    pub(super) fn ranks_lost(&mut self, ranks: &[Rank]) {
        if self.coordinator.protocol().kept() != Kept::InChannelMemory {
            return;
        }
        self.checkpoints.failed();
        for rank in ranks {
            let lost = *rank as usize;
            self.pids[lost] = None;
            self.bus.tell(Event::Restarting { rank: lost });
            // No node strikes the rank's next life with what was for its first.
            let messages = self.faults.next_life(lost, 0);
            self.agents.tell(&ToAgent::FaultAt { rank: lost, messages });
            self.coordinate(Fact::Restart { rank: *rank });
        }
    }

    /// Agents hear first where ranks will be, if that is new: before the memories of all nodes are emptied, and before a life begins where
    /// nothing is in the memory that others need.
    pub(super) fn tell_places(&mut self, command: &Command) {
        if let Command::Begin { rank, node, .. } = command
            && self.coordinator.protocol().kept() == Kept::InChannelMemory
        {
            return self.tell_place(*rank as usize, *node);
        }
        if !matches!(
            command,
            Command::Reset | Command::EmptyLogs | Command::LogsOfWave { .. }
        ) {
            return;
        }
        let places: Vec<u32> = self.nodes_of_ranks().into_iter().map(|node| node as u32).collect();
        let Some(told) = &mut self.plan else { return };
        told.epoch += 1;
        if told.of_rank == places {
            return;
        }
        // The command that follows begins another epoch.
        told.of_rank = places;
        let plan = told.clone();
        told.epoch += 1;
        self.tell_plan(plan);
    }

    /// A life begins on this node.
    fn tell_place(&mut self, rank: usize, node: u32) {
        if let Some(told) = &mut self.plan
            && told.of_rank[rank] != node
        {
            told.of_rank[rank] = node;
            let plan = told.clone();
            self.tell_plan(plan);
        }
    }

    fn tell_plan(&mut self, mut plan: Nodes) {
        for node in self.agents.numbers() {
            plan.own = node as u32;
            self.agents.node(node).queue(&ToAgent::Places(plan.clone()));
        }
    }
}

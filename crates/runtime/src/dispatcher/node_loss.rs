//! One of several nodes is lost, with its processes and its memory.
//!
//! Where all ranks can return together they do, on the nodes that are left: of what the lost ranks had logged only as much is elsewhere as
//! their last wave needs, so nobody can go on as if only they had failed. Otherwise the job ends.

use std::time::Duration;

use resurgo_protocol::{Command, Fact, Protocol};
use resurgo_wire::control::ToAgent;

use super::events::Event;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    /// Nothing of the node runs any more.
    pub(super) fn node_lost(&mut self, node: usize) {
        let others = self.coming.iter().flat_map(|coming| coming.launching.processes());
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
        if !matches!(protocol, Protocol::Auto | Protocol::Blocking) || !self.has_waves() {
            let name = protocol.name();
            self.bus.error(&format!(
                "{agent}; under --protocol {name} what its ranks need to go on is lost with it, so the job ends; auto and blocking \
                 go on"
            ));
            return self.end(FAILURE, Duration::ZERO);
        }
        self.bus.tell(Event::NodeLost { node, reason: &agent });
        self.give_up_gathering();
        self.coordinate(Fact::Down { node: node as u32 });
        self.is_lost_instead(node);
        // Also when all of its ranks have finished: others may need again what they had sent.
        let rank = (0..self.pids.len()).find(|rank| self.node_of(*rank) == node);
        if let Some(rank) = rank.filter(|_| self.verdict.is_none()) {
            self.checkpoints.failed();
            self.return_all(rank);
        }
    }

    /// The memories of all nodes are about to be emptied: agents hear first where ranks will be, if that is new.
    pub(super) fn tell_places(&mut self, command: &Command) {
        if !matches!(
            command,
            Command::Reset | Command::EmptyLogs | Command::LogsOfWave { .. }
        ) {
            return;
        }
        let places: Vec<u32> = (0..self.pids.len()).map(|rank| self.node_of(rank) as u32).collect();
        let Some(told) = &mut self.plan else { return };
        told.epoch += 1;
        if told.of_rank == places {
            return;
        }
        // The command that follows begins another epoch.
        told.of_rank = places;
        let mut plan = told.clone();
        told.epoch += 1;
        for node in self.agents.numbers() {
            plan.own = node as u32;
            self.agents.node(node).queue(&ToAgent::Places(plan.clone()));
        }
    }
}

//! One of several nodes is lost, with its processes and its memory.
//!
//! - Where all ranks can return together, they do, on the remaining nodes: of the lost ranks' logs only what their last
//!   wave needs is elsewhere.
//! - Where channel memories hold all messages, only the lost ranks begin again.
//! - Where event loggers or other ranks have the order of deliveries, also: senders' nodes hold the messages, receivers' nodes what
//!   the lost ranks sent. If all images of one are lost, all ranks begin again.
//! - Where the program deals with failures, it is told that they have failed.
//! - Where messages are logged on nodes alone, all ranks begin again, from the beginning.
//! - Otherwise the job ends.

use std::time::Duration;

use resurgo_protocol::kinds::Kept;
use resurgo_protocol::membership::Death;
use resurgo_protocol::{Command, Fact, Rank};
use resurgo_wire::control::{MOST_DELIVERIES, Nodes, ToAgent};
use resurgo_wire::node_memory::event_words;

use super::events::Event;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    /// No process of the node runs any more.
    pub(super) fn node_lost(&mut self, node: usize, why: Death) {
        let coming = self.coming.iter().flat_map(|coming| coming.launching.processes());
        let others = coming
            .chain(self.servers.pids())
            .chain(self.store_pids())
            .chain(self.bus.notifier());
        let lost = self.agents.lose(node, why, others);
        if let Some(plan) = &mut self.plan {
            plan.mesh[node].clear();
        }
        if self.agents.have_stopped() {
            self.gather_statistics();
        }
        if self.verdict.is_some() {
            return self.end_servers();
        }
        if self.suspension.is_copying() {
            // The job is suspended; only its places may lack the files of this node.
            return self.flushes_lack(node as u32);
        }
        if self.servers_lost(node, &lost.words) {
            return;
        }
        self.mind_measured();
        if self.policy.survivors.is_some() {
            return self.node_of_survivors_lost(node, &lost);
        }
        // Waves were given up for images of single ranks: logs are of no use now, and all ranks can begin again.
        self.have_waves_again();
        let protocol = self.coordinator.protocol();
        let begins_alone = self.begins_alone();
        let returns = protocol.can_return_together();
        if !begins_alone && !returns && !self.coordinator.may_begin_anew() {
            return self.ends_with_node(&lost.words);
        }
        if !self.ends(node) {
            self.bus.tell(Event::NodeLost {
                node,
                reason: &lost.words,
                cause: &lost.cause,
                restarts: true,
            });
        }
        self.give_up_gathering();
        self.flushes_lack(node as u32);
        let there: Vec<usize> = (0..self.pids.len())
            .filter(|rank| self.node_of(*rank) == node)
            .collect();
        let finished: Vec<usize> = there
            .iter()
            .copied()
            .filter(|rank| self.policy.has_finished(*rank))
            .collect();
        // Others have what these ranks have sent; of logs on a lost node only what the last wave needs.
        let is_over = |rank: &usize| self.coordinator.has_finished(*rank as u32);
        let is_needed = protocol.logs() && !self.coordinator.has_left(node as u32);
        let nobody_returns = self.ends_count() && !is_needed && there.iter().all(is_over);
        if !begins_alone {
            self.agents.queue_all(&ToAgent::NodeLost { node: node as u32 });
        }
        if !begins_alone && !returns && !there.is_empty() {
            // All begin again.
            self.checkpoints.failed();
            there.iter().for_each(|rank| self.pids[*rank] = None);
        }
        self.coordinate(Fact::Down { node: node as u32 });
        self.is_lost_or_left(node);
        if self.moves_ranks() {
            // Other ranks may need their messages again.
            self.policy.go_on(&finished);
            let finished: Vec<Rank> = finished.into_iter().map(|rank| rank as Rank).collect();
            self.ranks_lost(&finished);
        }
        if returns && !begins_alone {
            self.return_from_lost_node(there.first().copied().filter(|_| !nobody_returns));
        }
    }

    /// The job cannot do without a lost node.
    fn ends_with_node(&mut self, lost: &str) {
        let protocol = self.coordinator.protocol();
        let why = match self.spawning.by.is_empty() {
            _ if !protocol.logs() => "",
            true => " (a resumed job does not begin again)",
            false => " (with spawned ranks it does not begin again)",
        };
        let name = protocol.name();
        self.bus.error(&format!(
            "{lost}; under --protocol {name} what its ranks need to go on is lost with it, so the job ends{why}; those with waves of all \
             ranks, channel-memory, and pessimistic, causal and hierarchical with --tolerate node go on"
        ));
        self.end(FAILURE, Duration::ZERO);
    }

    /// `rank` was on a lost node: all return. Where ends do not count, also when all of its ranks had finished: others may
    /// need their messages again.
    fn return_from_lost_node(&mut self, rank: Option<usize>) {
        self.mind_transit_taken();
        if let Some(rank) = rank.filter(|_| self.verdict.is_none()) {
            self.checkpoints.failed();
            self.return_all(rank);
        }
    }

    /// Only the ranks of a lost node begin again, on other nodes, and those that return with them.
    fn begins_alone(&self) -> bool {
        self.coordinator.protocol().kept() == Kept::InChannelMemory || self.moves_ranks()
    }

    /// They do so with the data of event loggers and of other nodes.
    pub(super) fn moves_ranks(&self) -> bool {
        self.coordinator.plan().moves
    }

    /// These ranks ran on a lost node. Where they can begin again alone, or with their groups, they do, on other nodes.
    pub(super) fn ranks_lost(&mut self, ranks: &[Rank]) {
        if !self.begins_alone() {
            return;
        }
        self.checkpoints.failed();
        for rank in ranks {
            if self.verdict.is_some() {
                return;
            }
            let lost = *rank as usize;
            self.pids[lost] = None;
            self.bus.tell(Event::Restarting { rank: lost });
            // A fault that was for the rank's first life does not strike its next one.
            let messages = self.faults.next_life(lost, 0);
            self.agents.tell(&ToAgent::FaultAt { rank: lost, messages });
            match self.is_hierarchical() {
                // Its group has returned with another of these.
                true if self.coordinator.is_alive(*rank) => {}
                true => self.return_all(lost),
                false => self.coordinate(Fact::Restart { rank: *rank }),
            }
        }
    }

    /// Tells agents the new places of ranks first: before all node memories are emptied, and before a life begins whose
    /// peers need nothing from the memory.
    pub(super) fn tell_places(&mut self, command: &Command) {
        if matches!(command, Command::Undo { .. } | Command::Reset | Command::EmptyLogs) {
            self.hand_over_file_notes();
        }
        if let Command::Begin { rank, node, .. } = command
            && self.begins_alone()
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
        let moves_ranks = self.moves_ranks();
        self.hand_over_file_notes();
        if let Some(told) = &mut self.plan
            && told.of_rank[rank] != node
        {
            told.of_rank[rank] = node;
            // Data from the lost node does not count any more.
            told.epoch += u64::from(moves_ranks);
            let plan = told.clone();
            self.tell_plan(plan);
        }
    }

    fn tell_plan(&mut self, mut plan: Nodes) {
        let vouched: Vec<_> = self.ledger.vouched.events().map(event_words).collect();
        for node in self.agents.numbers() {
            for events in vouched.chunks(MOST_DELIVERIES) {
                let events = events.to_vec();
                self.agents.node(node).queue(&ToAgent::Deliveries { events });
            }
            plan.own = node as u32;
            self.agents.node(node).queue(&ToAgent::Places(plan.clone()));
        }
    }
}

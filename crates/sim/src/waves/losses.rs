//! Nodes that are lost and come back: agents that end, with all that is on their nodes, stand still, or are cut off.

use resurgo_protocol::Fact;

use super::links::FENCED;
use super::nodes::{Downward, Happening, Life, Storage};
use super::{Event, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

impl World {
    /// A node, or several at once: their agents end, stand still, or are cut off one way or both. One healthy node stays.
    pub(super) fn fail_nodes(&mut self) -> Result<(), Violation> {
        let mut well = self.well();
        let most = well.len().saturating_sub(1) as u64;
        let several = if self.nodes.storage == Storage::Partners {
            self.nodes.replicas.max(2)
        } else {
            2
        };
        let victims = if self.random.one_in(3) { several.into() } else { 1 };
        for _ in 0..most.min(victims) {
            let victim = well.swap_remove(self.random.below(well.len() as u64) as usize);
            if !self.may_lose(victim) {
                continue;
            }
            self.report.crashes += 1;
            self.fail_node(victim)?;
        }
        Ok(())
    }

    /// Nodes without a problem that the dispatcher also takes for such.
    fn well(&self) -> Vec<Life> {
        let up = self.nodes.up().into_iter();
        let well = up.filter(|life| {
            self.nodes.is_alive(life.node, life.serial)
                && self.nodes.of[life.node].is_well(self.now, self.nodes.lease() / 2)
        });
        well.collect()
    }

    /// A resumed job never starts from the beginning: all nodes but this one are well, and those that stay have a wave,
    /// as far as the dispatcher knows.
    fn may_lose(&self, victim: Life) -> bool {
        if !self.agent.is_resumed || self.nodes.storage == Storage::Shared {
            return true;
        }
        let others = self.well().into_iter().filter(|life| life.node != victim.node);
        let others: Vec<usize> = others.map(|life| life.node).collect();
        let leaves = |node: usize| self.agent.coordinator.is_leaving(node as u32);
        let stays = |node: usize| others.contains(&node) && !leaves(node);
        let is_there = |rank: u32, wave: u64| {
            let mut stay = others.iter().filter(|node| stays(**node));
            let is_read = stay.any(|node| self.nodes.can_read_on(*node, rank, wave));
            is_read || self.can_be_rebuilt((rank, wave), stays)
        };
        let whole = |wave: &u64| (0..self.size as u32).all(|rank| is_there(rank, *wave));
        let waves = self.whole_in_files();
        // The next one takes the place of one that they have, while nobody knows of the loss.
        let coordinator = &self.agent.coordinator;
        let is_idle = |rank: u32| !coordinator.is_in_wave(rank) && !coordinator.writes(rank);
        let is_elsewhere = self.nodes.storage == Storage::Partners;
        let stays = is_elsewhere || waves.iter().all(whole) && (0..self.size as u32).all(is_idle);
        others.len() + 1 == self.nodes.up().len() && stays && waves.iter().any(whole)
    }

    /// Delays a node's last messages, and loses the node, while there is another one.
    pub(super) fn spite(&mut self, node: usize) -> Result<(), Violation> {
        let is_other = |life: &Life| life.node != node;
        if self.crashes.left == 0
            || !self.crashes.spiteful
            || !self.random.one_in(6)
            || !self.well().iter().any(is_other)
            || !self.may_lose(self.nodes.of[node].life)
        {
            return Ok(());
        }
        self.crashes.left -= 1;
        self.report.crashes += 1;
        let longest = self.nodes.lease();
        let late = self.now + self.soon(longest);
        self.nodes.over.late.insert(self.nodes.of[node].life.serial, late);
        self.note(|| format!("the agent of node {node} is killed"));
        self.node_dies(node)
    }

    fn fail_node(&mut self, life: Life) -> Result<(), Violation> {
        let longest = self.nodes.lease() * 9 / 4;
        let until = self.now + self.soon(longest);
        let node = &mut self.nodes.of[life.node];
        match self.random.below(6) {
            0..=2 => {
                self.note(|| format!("the agent of node {} is killed", life.node));
                if self.random.one_in(2) {
                    self.nodes.over.late.insert(life.serial, until);
                }
                return self.node_dies(life.node);
            }
            3 => {
                node.frozen = true;
                self.note(|| format!("the agent of node {} stands still until {until}", life.node));
                self.schedule(until - self.now, Event::Node(Happening::Thaw(life)));
            }
            way => {
                let lease = self.nodes.lease();
                let (both, other) = (self.random.one_in(2), self.now + self.soon(lease));
                let node = &mut self.nodes.of[life.node];
                if both || way == 4 {
                    node.held.0 = until;
                }
                if both || way == 5 {
                    node.held.1 = other;
                }
                let held = node.held;
                self.note(|| format!("the link of node {} is cut until {held:?}", life.node));
            }
        }
        Ok(())
    }

    /// The agent ends, and with it everything there. The dispatcher sees the end of the connection behind all messages.
    /// The agent's starter may see its end at any time, or never.
    pub(super) fn node_dies(&mut self, node: usize) -> Result<(), Violation> {
        let this = &mut self.nodes.of[node];
        let life = this.life;
        (this.alive, this.frozen) = (false, false);
        this.waiting.clear();
        self.nodes.over.lives.insert(life.serial);
        let late = self.nodes.over.late.get(&life.serial).copied().unwrap_or(0);
        let broken = this.last.0.max(this.held.0).max(late).max(self.now) + 1;
        let is_here = |of: usize, serial: u64| (of, serial) == (node, life.serial);
        for process in &mut self.processes {
            process.alive &= !is_here(process.node, process.serial);
        }
        for copy in self.snapshots.iter_mut().filter(|copy| is_here(copy.node, copy.serial)) {
            (copy.alive, copy.under_way) = (false, false);
        }
        let (snapshots, processes) = (&self.snapshots, &self.processes);
        self.agent
            .copies
            .retain(|_, copy| !is_here(snapshots[*copy].node, snapshots[*copy].serial));
        self.agent
            .unclaimed
            .retain(|(process, _)| !is_here(processes[*process].node, processes[*process].serial));
        for rank in 0..self.size as u32 {
            if self.agent.ranks[rank as usize].node == node {
                // What is on its way is lost.
                let channels = self.transit.channels[rank as usize].iter_mut();
                channels.for_each(|channel| channel.lose_coming(self.now));
                self.agent.ranks[rank as usize].is_gone();
                self.stop_writing(rank, None)?;
            }
        }
        self.schedule(broken - self.now, Event::Node(Happening::Broken(life)));
        if self.random.one_in(2) {
            let after = self.soon(self.pace.latency * 2);
            self.schedule(after, Event::Node(Happening::Confirmed(life)));
        }
        let longest = self.nodes.lease() * 2;
        let after = if self.random.one_in(2) { 30 } else { longest };
        let after = self.soon(after);
        self.schedule(after, Event::Node(Happening::Join(node)));
        Ok(())
    }

    /// Makes the ranks of some node go on elsewhere with the next wave.
    pub(super) fn leave_some_node(&mut self) -> Result<(), Violation> {
        let mut up = self.nodes.up();
        if self.agent.is_resumed {
            // The others may be about to be lost.
            let well = self.well();
            up.retain(|life| well.iter().any(|other| other.node != life.node));
        }
        // If some node were left with each wave, all would return with each, and ranks that are copied early come to nothing.
        let leaves = self.nodes.leaves.as_mut();
        let Some((left, random)) = leaves.filter(|(left, _)| *left > 0 && self.nodes.linked && !up.is_empty()) else {
            return Ok(());
        };
        if !random.one_in(4) {
            return Ok(());
        }
        *left -= 1;
        let node = up[random.below(up.len() as u64) as usize].node;
        self.note(|| format!("node {node} is to be left"));
        self.coordinate(Fact::Leave { node: node as u32 })
    }

    /// The coordinator decides that no rank is there any more.
    pub(super) fn has_left(&mut self, node: usize) -> Result<(), Violation> {
        self.note(|| format!("node {node} is left"));
        let is_there = |rank: &usize| self.nodes.placed[*rank] == node && !self.agent.finished[*rank];
        match (0..self.size).find(is_there) {
            Some(rank) => violation(FENCED, format!("{rank} is on node {node}, which has been left")),
            None => Ok(()),
        }
    }

    /// A new agent wants to join; it waits until its node's former life has ended for sure.
    pub(super) fn join(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes.of[node].alive {
            return Ok(());
        }
        let joined = self
            .nodes
            .membership
            .join(node as u32, std::time::Duration::from_millis(self.now));
        self.node_changes()?;
        let Ok(epoch) = joined else {
            let after = self.soon(100);
            self.schedule(after, Event::Node(Happening::Join(node)));
            return Ok(());
        };
        let life = self.nodes.start(node, epoch, self.now, self.size);
        self.note(|| format!("node {node} is there, epoch {epoch}"));
        self.schedule(1, Event::Node(Happening::Tick(life)));
        let (slots, spare) = (self.nodes.of[node].slots, self.nodes.of[node].spare);
        let rack = self.nodes.rack(node);
        self.coordinate(Fact::Up {
            node: node as u32,
            slots,
            spare,
            rack,
        })
    }

    /// The agent goes on, with its waiting input.
    pub(super) fn thaw(&mut self, life: Life) -> Result<(), Violation> {
        if !self.nodes.is_alive(life.node, life.serial) {
            return Ok(());
        }
        self.note(|| format!("the agent of node {} goes on", life.node));
        let this = &mut self.nodes.of[life.node];
        this.frozen = false;
        let waiting = std::mem::take(&mut this.waiting);
        for event in waiting {
            self.happen(event)?;
        }
        Ok(())
    }

    /// The event is for an agent that stands still. Or it is for a rank whose node has no lease, which checks that
    /// itself; or an order to its agent.
    pub(super) fn must_wait(&self, event: &Event) -> Option<usize> {
        if !self.nodes.linked {
            return None;
        }
        let node = match *event {
            Event::ToAgent(process, _) | Event::Ended(process, _) => self.processes[process].node,
            Event::Woken(copy, _) | Event::CopyGone(_, copy) => self.snapshots[copy].node,
            Event::Written(rank, _) => self.agent.ranks[rank as usize].node,
            Event::Node(Happening::Down(life, Downward::Do(_)))
                if self.nodes.is_alive(life.node, life.serial) && self.is_held(life.node).is_some() =>
            {
                return Some(life.node);
            }
            Event::Node(Happening::Down(life, _) | Happening::Tick(life) | Happening::Flushed(life, _)) => life.node,
            Event::Step(process)
            | Event::Force(process)
            | Event::ToRank(process, _)
            | Event::Tell(process, _)
            | Event::Rewind(process) => return self.is_held(self.processes[process].node),
            _ => return None,
        };
        self.nodes.of[node].frozen.then_some(node)
    }

    /// The node, if it has no lease.
    fn is_held(&self, node: usize) -> Option<usize> {
        let this = &self.nodes.of[node];
        let unfenced = self.is(Mutation::RanksIgnoreLease) || self.is(Mutation::LeaseNeverEnds);
        (this.lease.until() <= this.clock(self.now) && !unfenced).then_some(node)
    }

    /// The event comes from an ended life of a node.
    pub(super) fn is_fenced(&self, event: &Event) -> bool {
        if !self.nodes.linked {
            return false;
        }
        let (node, serial) = match *event {
            Event::ToAgent(process, _) | Event::Ended(process, _) => {
                (self.processes[process].node, self.processes[process].serial)
            }
            Event::Wake(copy, ..) | Event::Woken(copy, _) | Event::CopyGone(_, copy) => {
                (self.snapshots[copy].node, self.snapshots[copy].serial)
            }
            Event::Step(process)
            | Event::Force(process)
            | Event::ToRank(process, _)
            | Event::Tell(process, _)
            | Event::Rewind(process) => (self.processes[process].node, self.processes[process].serial),
            _ => return false,
        };
        !self.nodes.is_alive(node, serial)
    }
}

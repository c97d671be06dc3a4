//! Links between the dispatcher and agents: facts and commands take time, and the dispatcher refuses messages of a node
//! that it has given up. Without links all this happens at once.

use std::collections::BTreeSet;
use std::time::Duration;

use resurgo_protocol::coordinator::{From, Whom};
use resurgo_protocol::membership::{Change, Duty};
use resurgo_protocol::{Command, Fact, Rank};

use super::nodes::{Downward, Happening, Life, Storage, Upward, Words};
use super::{Event, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

pub(super) const FENCED: &str = "what is on a lost node is lost";

/// Ticks between two looks of the dispatcher.
const WATCH: u64 = 15;

impl World {
    /// What ranks of this process's node see.
    pub(super) fn words(&self, process: usize) -> &Words {
        &self.nodes.of[self.processes[process].node].words
    }

    pub(super) fn all_words(&mut self) -> impl Iterator<Item = &mut Words> {
        self.nodes.of.iter_mut().map(|node| &mut node.words)
    }

    fn clock(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// All nodes come, and ranks are placed on them.
    pub(super) fn open_links(&mut self) -> Result<(), Violation> {
        if !self.nodes.linked {
            return Ok(());
        }
        for node in 0..self.nodes.of.len() {
            self.join(node)?;
        }
        let nodes = self.nodes.placed.iter().map(|node| *node as u32).collect();
        self.coordinate(Fact::Placed { nodes })
    }

    /// The agent of the node reports.
    pub(super) fn tell_from(&mut self, node: usize, fact: Fact) -> Result<(), Violation> {
        match self.nodes.linked {
            true => {
                self.send_up(node, Upward::Fact(fact));
                Ok(())
            }
            false => self.heard(fact),
        }
    }

    /// The agent that has the rank reports.
    pub(super) fn tell_of(&mut self, rank: Rank, fact: Fact) -> Result<(), Violation> {
        self.tell_from(self.agent.ranks[rank as usize].node, fact)
    }

    /// The rank's agent reports, when all writes of its node's ranks are where others read them.
    pub(super) fn tell_flushed(&mut self, rank: Rank, fact: Fact) -> Result<(), Violation> {
        let node = self.agent.ranks[rank as usize].node;
        let last = self.nodes.mesh[node].iter().copied().max().unwrap_or(0);
        let life = self.nodes.of[node].life;
        if last <= self.now && !self.misses_answers(life) || self.is(Mutation::SayUnflushed) {
            return self.tell_from(node, fact);
        }
        let after = last.saturating_sub(self.now);
        self.schedule(after, Event::Node(Happening::Flushed(life, fact)));
        Ok(())
    }

    /// Another node is lost, and this one has not heard of it: it waits for that one's answer to its flush.
    fn misses_answers(&self, life: Life) -> bool {
        let nodes = &self.nodes;
        nodes.linked && !nodes.over.lives.is_subset(&nodes.of[life.node].gone)
    }

    /// All that the node's ranks had written before this report is on the other nodes, unless one of these is lost.
    fn flushed(&mut self, life: Life, fact: Fact) -> Result<(), Violation> {
        if !self.nodes.is_alive(life.node, life.serial) {
            return Ok(());
        }
        if self.misses_answers(life) {
            self.schedule(WATCH, Event::Node(Happening::Flushed(life, fact)));
            return Ok(());
        }
        self.tell_from(life.node, fact)
    }

    /// Nodes learn which ranks have finished.
    pub(super) fn tell_ends(&mut self) {
        let finished = (0..self.size as Rank).filter(|rank| self.agent.coordinator.has_finished(*rank));
        let ends: BTreeSet<Rank> = finished.collect();
        if self.nodes.linked && self.nodes.over.ranks != ends {
            self.nodes.over.ranks = ends;
            self.send_ends();
        }
    }

    fn send_ends(&mut self) {
        let ends = self.nodes.over.ranks.clone();
        for life in self.nodes.up() {
            self.send_down(life, Downward::Ends(ends.clone()));
        }
    }

    /// When a rank can read what this process writes now: at once, or when it has arrived on another node.
    pub(super) fn arrives_at(&mut self, process: usize, to: usize) -> u64 {
        let (from, to) = (self.processes[process].node, self.nodes.placed[to]);
        if from == to {
            return 0;
        }
        let is_slow = self.random.one_in(40);
        let after = self.soon(self.pace.latency * if is_slow { 12 } else { 1 });
        let last = &mut self.nodes.mesh[from][to];
        *last = (*last).max(self.now + after);
        *last
    }

    pub(super) fn send_up(&mut self, node: usize, word: Upward) {
        let after = self.soon(self.pace.latency);
        let this = &mut self.nodes.of[node];
        if this.alive {
            this.last.0 = (self.now + after).max(this.held.0).max(this.last.0);
            let (at, life) = (this.last.0, this.life);
            self.schedule(at - self.now, Event::Node(Happening::Up(life, word)));
        }
    }

    fn send_down(&mut self, life: Life, word: Downward) {
        let after = self.soon(self.pace.latency);
        let this = &mut self.nodes.of[life.node];
        this.last.1 = (self.now + after).max(this.held.1).max(this.last.1);
        let at = this.last.1;
        self.schedule(at - self.now, Event::Node(Happening::Down(life, word)));
    }

    pub(super) fn happens_to_node(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Up(life, _) | Happening::Broken(life) | Happening::Confirmed(life)
                if life.serial < self.nodes.first =>
            {
                Ok(())
            }
            Happening::Up(life, word) => match self.nodes.over.late.get(&life.serial) {
                Some(late) if *late > self.now => {
                    let after = late - self.now;
                    self.schedule(after, Event::Node(Happening::Up(life, word)));
                    Ok(())
                }
                _ => self.arrives(life, word),
            },
            Happening::Down(life, word) => self.is_told(life, word),
            Happening::Flushed(life, fact) => self.flushed(life, fact),
            Happening::Tick(life) => self.tick(life),
            Happening::Thaw(life) => self.thaw(life),
            Happening::Watch => {
                self.schedule(WATCH, Event::Node(Happening::Watch));
                self.nodes.membership.pass(Duration::from_millis(self.now));
                self.node_changes()
            }
            Happening::Broken(life) => {
                self.nodes.membership.broken(life.node as u32, life.epoch);
                self.node_changes()
            }
            Happening::Confirmed(life) => {
                self.nodes.membership.ended(life.node as u32, life.epoch);
                self.node_changes()
            }
            Happening::Join(node) => self.join(node),
            Happening::Replicated(rank, number, from, to) => self.replicated(rank, number, from, to),
            Happening::Piece(set, index, from, to) => self.piece_comes(set, index, from, to),
            Happening::Rebuilt(rebuild) => self.rebuilt(rebuild),
        }
    }

    /// The dispatcher reads an agent's message.
    fn arrives(&mut self, life: Life, word: Upward) -> Result<(), Violation> {
        let taken = self.nodes.membership.heard(life.node as u32, life.epoch, self.clock());
        self.node_changes()?;
        match (word, taken) {
            (Upward::Beat(number), Ok(())) => self.send_down(life, Downward::Answer(number)),
            (Upward::Beat(_), Err(_)) => self.send_down(life, Downward::Refused),
            (Upward::Fact(fact), Err(refused)) if !self.is(Mutation::ForgetEpoch) => {
                self.note(|| format!("{refused}: {fact:?}"));
            }
            (Upward::Fact(fact), _) => return self.heard(fact),
        }
        Ok(())
    }

    /// The dispatcher reacts to changes of nodes.
    pub(super) fn node_changes(&mut self) -> Result<(), Violation> {
        while let Some(change) = self.nodes.membership.poll() {
            self.note(|| format!("{change:?}"));
            match change {
                Change::Suspected { node, epoch } if self.is(Mutation::LostWhenSuspected) => {
                    self.nodes.membership.ended(node, epoch);
                }
                Change::Dead { node, .. } if !self.is(Mutation::TellNobodyOfLoss) => {
                    let lost = self.nodes.joined[node as usize].take();
                    self.tell_loss(lost);
                    self.coordinate(Fact::Down { node })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The other nodes do not wait for this one.
    fn tell_loss(&mut self, lost: Option<Life>) {
        if self.is(Mutation::FlushForLostNode) {
            return;
        }
        if let Some(Life { serial, .. }) = lost {
            let up = self.nodes.up().into_iter();
            up.for_each(|life| self.send_down(life, Downward::Lost(serial)));
        }
    }

    /// The dispatcher takes in a fact that counts.
    pub(super) fn heard(&mut self, fact: Fact) -> Result<(), Violation> {
        if self.nodes.linked {
            self.is_known(&fact)?;
        }
        self.hears_of_places(&fact);
        self.hears_of_pieces(&fact)?;
        let Fact::Ended { rank, life, orderly } = fact else {
            return self.coordinate(fact);
        };
        let returning = self.agent.is_returning();
        let is_present = self.agent.lives[rank as usize] == life;
        if is_present {
            self.agent.finished[rank as usize] = orderly && !returning;
        }
        self.coordinate(fact)?;
        if is_present && !returning && !orderly {
            self.answer_failure(rank);
        }
        Ok(())
    }

    /// The dispatcher's knowledge now, for the checkers.
    fn is_known(&mut self, fact: &Fact) -> Result<(), Violation> {
        match *fact {
            Fact::Copied { rank, number, .. } => _ = self.nodes.copies.known.insert((rank, number)),
            Fact::Written { rank, number } => {
                let node = self.agent.coordinator.node(rank) as usize;
                self.nodes.is_known_on(node, rank, number);
                if self.nodes.storage != Storage::Partners && !self.nodes.given_up.contains(&(rank, number)) {
                    self.nodes.told.insert((rank, number));
                }
            }
            Fact::FileLost { rank, number, .. } => self.is_unreadable(rank, number),
            Fact::Stored { rank, number, place } => return self.is_stored(rank, number, place),
            Fact::NotStored { rank, number, node, .. } => self.has_refused(rank, number, node as usize),
            Fact::Ready { rank, life } if self.agent.lives[rank as usize] == life => {
                let node = self.agent.coordinator.node(rank) as usize;
                self.nodes.begins_there(node, rank);
            }
            _ => {}
        }
        Ok(())
    }

    /// A command of the coordinator: the dispatcher carries out its own part now, and sends the rest to nodes.
    pub(super) fn carry_out(&mut self, mut command: Command) -> Result<(), Violation> {
        if !self.break_parity(&mut command)? {
            return Ok(());
        }
        self.before(&command)?;
        if !self.nodes.linked {
            return self.do_as_told(0, command);
        }
        if let Command::Fetch { to, .. } | Command::Rebuild { to, .. } = command {
            let life = self.nodes.up().into_iter().find(|life| life.node == to as usize);
            if let Some(life) = life {
                self.send_down(life, Downward::Do(command));
            }
            return Ok(());
        }
        let rank = match (command.whom(), &command) {
            (Whom::Node(node), Command::Replicate { .. } | Command::Encode { .. } | Command::DropCopy { .. }) => {
                let from = self.nodes.up().into_iter().find(|life| life.node == node as usize);
                from.into_iter()
                    .for_each(|life| self.send_down(life, Downward::Do(command.clone())));
                return Ok(());
            }
            (Whom::Of(rank), _) => Some(rank),
            (_, Command::Begin { rank, .. }) => Some(*rank),
            (
                Whom::All,
                Command::Survey { .. }
                | Command::Waves { .. }
                | Command::Groups(_)
                | Command::Turn(_)
                | Command::GiveUp { .. }
                | Command::Collect { .. }
                | Command::CollectSet { .. },
            ) => None,
            (_, Command::Reset | Command::EmptyLogs) => {
                self.send_ends();
                let up = self.nodes.up().into_iter();
                up.for_each(|life| self.send_down(life, Downward::Empty));
                return self.do_as_told(0, command);
            }
            // The dispatcher gathers what was in transit.
            _ => return self.do_as_told(0, command),
        };
        let placed = rank.map(|rank| self.nodes.placed[rank as usize]);
        for life in self.nodes.up() {
            if placed.is_none_or(|node| node == life.node) {
                self.send_down(life, Downward::Do(command.clone()));
            }
        }
        Ok(())
    }

    /// The dispatcher is about to carry this out, or to order it.
    pub(super) fn before(&mut self, command: &Command) -> Result<(), Violation> {
        self.before_parity(command)?;
        match *command {
            Command::Waves { asked, over } if asked != over => {
                self.agent.asked = asked;
                self.note(|| format!("wave {asked} is asked for"));
                self.checkers.asked(asked)
            }
            Command::Groups(ref groups) => {
                let of = (0..self.size as Rank).map(|rank| groups.of(rank)).collect();
                self.checkers.begin_groups(self.agent.asked, of);
                self.grouping.last = groups.clone();
                Ok(())
            }
            Command::Turn(turn) => {
                self.agent.turn = turn;
                self.agent.in_turn.clear();
                self.agent.outside.clear();
                Ok(())
            }
            Command::Replicate { rank, number, from, to } => {
                self.is_ordered((rank, number), from as usize, to as usize)
            }
            Command::GiveUp { rank, number } | Command::Collect { rank, number } => {
                self.nodes.told.remove(&(rank, number));
                self.nodes.given_up.insert((rank, number));
                // The node may not know it yet.
                match self.agent.writing[rank as usize] == Some(number) {
                    true => self.check_writing(rank, false),
                    false => Ok(()),
                }
            }
            Command::EndCopy { rank, number } => {
                self.nodes.copies.ending.insert((rank, number));
                Ok(())
            }
            Command::Begin {
                rank,
                life,
                from,
                node,
                reads,
                ..
            } => {
                (self.agent.lives[rank as usize], self.agent.finished[rank as usize]) = (life, false);
                self.agent
                    .ends
                    .retain(|(of, wave)| *of != rank || *wave <= from.number());
                let reads = reads.unwrap_or(node) as usize;
                self.nodes.reads.insert(rank, (from.number(), reads));
                self.may_begin(rank, from, node as usize)?;
                let is_lost = |node: usize| !self.nodes.up().iter().any(|life| life.node == node);
                let former = self.nodes.placed[rank as usize];
                if !self.is(Mutation::BeginOnLostNode) || !is_lost(former) {
                    self.nodes.placed[rank as usize] = node as usize;
                }
                if self.agent.beginning.is_some() {
                    return Ok(());
                }
                self.agent.beginning = Some(from.number());
                self.places.leave_later(from.number(), self.agent.asked);
                self.checkers
                    .begin(self.agent.generation, from.number(), self.agent.usable)
            }
            _ => Ok(()),
        }
    }

    /// A life begins there: with surviving data, as far as the dispatcher could know.
    fn may_begin(&self, rank: Rank, from: From, node: usize) -> Result<(), Violation> {
        let nodes = &self.nodes;
        if !nodes.linked {
            return Ok(());
        }
        if !nodes.up().iter().any(|life| life.node == node) {
            return violation(FENCED, format!("{rank} begins on node {node}"));
        }
        let is_there = match from {
            From::Beginning => true,
            From::Copy(number) => self.agent.copies.get(&(rank, number)).is_none_or(|copy| {
                let copy = &self.snapshots[*copy];
                nodes.counts(copy.node, copy.serial)
            }),
            From::File(number) if nodes.given_up.contains(&(rank, number)) => false,
            From::File(_) if nodes.storage == Storage::Shared => true,
            From::File(number) => nodes.could_have_file(rank, number),
        };
        match is_there {
            true => Ok(()),
            false => violation(
                FENCED,
                format!("{rank} begins from {from:?}, which is on no node that is there"),
            ),
        }
    }

    /// The agent gets a message of the dispatcher.
    fn is_told(&mut self, life: Life, word: Downward) -> Result<(), Violation> {
        if !self.nodes.is_alive(life.node, life.serial) {
            return Ok(());
        }
        let this = &self.nodes.of[life.node];
        let clock = this.clock(self.now);
        // An agent that has stood still checks its lease first.
        if this.lease.until() <= clock && !self.is(Mutation::LeaseNeverEnds) {
            return self.node_dies(life.node);
        }
        match word {
            Downward::Answer(_) if self.is(Mutation::LeaseFromAnswer) => self.nodes.renew(life.node, self.now),
            Downward::Answer(number) => self.nodes.of[life.node].lease.answered(number, clock),
            Downward::Refused => self.nodes.of[life.node].lease.refused(),
            Downward::Empty => self.empty(life.node),
            Downward::Ends(_) if self.is(Mutation::KeepEndsToOneself) => {
                let here = |rank: &Rank| self.nodes.placed[*rank as usize] == life.node;
                let ends = self.nodes.over.ranks.iter().copied().filter(here).collect();
                self.nodes.of[life.node].words.ends = ends;
            }
            Downward::Ends(ends) => self.nodes.of[life.node].words.ends = ends,
            Downward::Lost(serial) => _ = self.nodes.of[life.node].gone.insert(serial),
            Downward::Do(command) => return self.do_as_told(life.node, command),
        }
        Ok(())
    }

    /// Data that arrived here since the dispatcher ordered empty logs is of the new epoch.
    fn empty(&mut self, node: usize) {
        // Nodes are told anew where ranks are, and so which nodes are lost.
        let gone = self.nodes.gone();
        self.nodes.of[node].gone.extend(gone);
        if !self.is(Mutation::LoseEarlyEpoch) {
            return;
        }
        let here: Vec<usize> = (0..self.size).filter(|rank| self.nodes.placed[*rank] == node).collect();
        for from in &mut self.transit.channels {
            here.iter().for_each(|to| from[*to].lose_arrived(self.now));
        }
    }

    /// The agent sends a heartbeat. When its lease has run out it stops its ranks, and in the end ends.
    fn tick(&mut self, life: Life) -> Result<(), Violation> {
        if !self.nodes.is_alive(life.node, life.serial) {
            return Ok(());
        }
        let this = &mut self.nodes.of[life.node];
        let duty = this.lease.poll(this.clock(self.now));
        let after = this.until(this.lease.due(), self.now);
        match duty {
            Some(Duty::End) if self.is(Mutation::LeaseNeverEnds) => return Ok(()),
            Some(Duty::End) => {
                self.note(|| format!("the lease of node {} is over", life.node));
                return self.node_dies(life.node);
            }
            Some(Duty::Beat { number }) => self.send_up(life.node, Upward::Beat(number)),
            Some(Duty::Hold) => self.note(|| format!("ranks of node {} stand still", life.node)),
            Some(Duty::GoOn) => {
                self.note(|| format!("ranks of node {} go on", life.node));
                let waiting = std::mem::take(&mut self.nodes.of[life.node].waiting);
                for event in waiting {
                    self.happen(event)?;
                }
            }
            None => {}
        }
        self.schedule(after, Event::Node(Happening::Tick(life)));
        Ok(())
    }

    /// The file is not needed any more, unless the job could be resumed from it.
    pub(super) fn remove_file(&mut self, node: usize, rank: Rank, number: u64) {
        if self.agent.is_recorded(number) {
            return;
        }
        let life = self.nodes.of[node].life;
        if let Some(stored) = self.nodes.stored.get_mut(&(rank, number)) {
            stored.remove(&(life.node, life.serial));
        }
        if self.nodes.storage == Storage::Shared {
            self.agent.files.remove(&(rank, number));
        }
    }
}

//! The setting `pessimistic-on-nodes`: ranks are on several nodes, which are lost for ever with processes, logs and records. The
//! ranks of a lost node begin again on others, and no other rank goes back. Processes fail, too, in their places.
//!
//! - The record of a rank that was lost with its node comes from the event logger.
//! - Of its logs those parts come back that had arrived on the nodes of their receivers. Between ranks of one lost node
//!   there are none.
//! - So each life with its record from the event logger reports how many messages of each source the record has. A
//!   later life begins when all have reported. Its sends so far are those in its logs, or in its receiver's record, if
//!   that is more.
//!
//! An image counts when a partner has it, with those earlier sends of its rank that others may still need. So a rank of
//! a lost node begins from its newest image on another node. The log beside that image extends the logs that have come
//! back.
//!
//! In `hierarchical-on-nodes` images are those of waves, and with a lost rank all of its group return to one. All else is
//! the same: no channel keeps less, and none is cut off.
//!
//! Under causal logging nodes tell what is known of the deliveries of ranks that have lost theirs ([`crate::pieces`]).

use resurgo_protocol::{Fact, Node, Rank};

use crate::checkers::{Violation, violation};
use crate::image::Image;
use crate::log::{Cursor, Log, Record};
use crate::mutation::Mutation;
use crate::process::{Recovery, State};
use crate::world::{Event, World};

/// The source of a record that has survived its process.
const IN_PLACE: u64 = 0;

impl World {
    /// Ranks of lost nodes begin elsewhere, alone.
    pub(crate) fn moves(&self) -> bool {
        self.rules.moves
    }

    /// Loses a node with everything on it, but not the last one.
    pub(crate) fn lose_with_logs(&mut self, node: Node) {
        let there = self.ranks_on(node);
        if self.nodes.up.len() < 2 || !there.iter().all(|rank| self.may_lose_record(*rank)) {
            return;
        }
        if !self.nodes.lose_all && (0..self.ranks.len() as Rank).any(|rank| self.needs(node, rank)) {
            return;
        }
        self.note(|| format!("node {node} is lost with {there:?}"));
        self.lose_files(node, &there);
        for rank in &there {
            // What it was to begin from is void.
            self.ranks[*rank as usize].images.begins = None;
        }
        self.coordinate(Fact::Down { node });
        for rank in &there {
            self.end_process(*rank);
        }
        let size = self.ranks.len();
        for rank in 0..size as Rank {
            let is_lost = there.contains(&rank);
            for to in 0..size as Rank {
                match (is_lost, there.contains(&to)) {
                    (true, true) => self.keep_arrived(rank, to, 0),
                    (true, false) => self.keep_arrived(rank, to, self.wires[rank as usize][to as usize].revealed),
                    (false, true) => self.send_log_again(rank, to),
                    (false, false) => {}
                }
            }
            if is_lost {
                let keeps_counts = self.is(Mutation::CountsOfFormerLives);
                let process = &mut self.ranks[rank as usize];
                process.record = Record::new(Cursor::beginning(size), Vec::new());
                process.record_lost = true;
                if !keeps_counts {
                    process.counts = None;
                }
            }
        }
        self.lose_pieces(&there);
        if self.rules.hierarchical {
            self.return_groups(&there);
        }
    }

    /// A node that was to leave ends with its ranks, which were told to when so many were up.
    pub(crate) fn end_node(&mut self, node: Node, up: usize) -> Result<(), Violation> {
        if !self.nodes.up.contains(&node) || self.ranks.iter().all(|process| process.finished) {
            return Ok(());
        }
        // Another node may have been lost with the other copies.
        if up == self.nodes.up.len() {
            let new_enough = |(rank, before): &(Rank, u64)| {
                let process = &self.ranks[*rank as usize];
                let mut images = process.images.complete.iter().map(|(number, _)| *number);
                let is_new = images.any(|number| number > *before && self.is_beside(*rank, number, node));
                is_new || process.finished && !self.needs(node, *rank)
            };
            let leaving = self.nodes.leaving.get(&node).into_iter().flatten();
            if let Some((rank, before)) = leaving.into_iter().find(|rank| !new_enough(rank)) {
                let text = format!("{rank} leaves node {node} without an image after {before} on another node");
                return violation("ranks that leave lose no work", text);
            }
        }
        self.lose_with_logs(node);
        if self.nodes.up.contains(&node) {
            // It cannot be lost at the moment: later.
            self.will_end_as_of(node, up);
        }
        Ok(())
    }

    /// Messages before some image of `rank` are forgotten, and other nodes do not have one, with those of all that
    /// return with it.
    fn needs(&self, node: Node, rank: Rank) -> bool {
        let images = &self.ranks[rank as usize].images;
        let mut numbers = images.complete.iter().map(|(number, _)| *number);
        let members = self.members(rank);
        let is_left = |number| members.iter().all(|rank| self.is_beside(*rank, number, node));
        images.forgets() > 0 && !numbers.any(is_left)
    }

    /// Of this log only the part on its receiver's node is left: so many messages.
    pub(crate) fn keep_arrived(&mut self, from: Rank, to: Rank, arrived: u64) {
        let still_comes = self.is(Mutation::TakeFromLostNode);
        let wire = &mut self.wires[from as usize][to as usize];
        wire.connection += u64::from(!still_comes);
        wire.revealed = arrived;
        wire.carried.truncate(arrived as usize);
        let process = &mut self.ranks[from as usize];
        process.logs[to as usize].cut(arrived);
        process.pushed[to as usize] = arrived;
        self.checkers.rewound(from, to, arrived);
    }

    /// Sends all of this log to the new node of `to`. If it had not come back completely from the former node of `to`,
    /// only a part.
    fn send_log_again(&mut self, from: Rank, to: Rank) {
        let process = &self.ranks[from as usize];
        if process.record_lost {
            // What it carries may be known nowhere else.
            let some = self.rules.causal.is_none();
            let arrived = if some {
                self.random.below(process.logs[to as usize].end() + 1)
            } else {
                0
            };
            self.keep_arrived(from, to, arrived);
        }
        self.see_anew(from, to);
    }

    /// The receiver sees of this log nothing but what comes now.
    pub(crate) fn see_anew(&mut self, from: Rank, to: Rank) {
        let wire = &mut self.wires[from as usize][to as usize];
        let log = &self.ranks[from as usize].logs[to as usize];
        wire.connection += 1;
        wire.revealed = log.dropped();
        let released = (log.dropped() + 1..).take_while(|ssn| log.get(*ssn).is_some_and(|entry| entry.released));
        for _ in 0..released.count() {
            self.reveal_later(from, to);
        }
    }

    /// A later life of `rank` has its record, or asks the event logger; under causal logging also for what nodes know.
    pub(crate) fn begin_on_nodes(&mut self, rank: Rank, image: Option<Box<Image>>) -> Result<(), Violation> {
        let size = self.ranks.len();
        let standing = image.as_ref().map(|image| image.standing.clone());
        self.checkers.begins_from(rank, standing.as_ref())?;
        let collection = self.begin_collection(rank, image.as_deref());
        let process = &mut self.ranks[rank as usize];
        let is_lost = process.record_lost;
        // The record is to be good for the older image, too.
        let above = match &process.images.complete[..] {
            _ if !is_lost => process.record.base.clone(),
            [.., (_, older), _] if image.is_some() => older.cursor(),
            _ => Cursor::beginning(size),
        };
        let mut recovery = Recovery::new(size, image, above, collection);
        if recovery.collection.is_some() {
            process.state = State::Recovering(recovery);
            return self.find_pieces(rank);
        }
        recovery.record_from = (!is_lost).then_some(IN_PLACE);
        process.state = State::Recovering(recovery);
        if is_lost {
            self.connect_logger(rank);
            return Ok(());
        }
        let record = &process.record;
        self.checkers
            .recover(rank, standing.as_ref(), record.base.rclock, record.entries())?;
        match process.counts {
            Some(_) => self.look_at_counts(rank),
            // The memory has begun anew.
            None => self.count_record(rank),
        }
        Ok(())
    }

    /// `rank` has its record, and reports its counts.
    pub(crate) fn count_record(&mut self, rank: Rank) {
        let size = self.ranks.len() as Rank;
        let forgets_base = self.is(Mutation::SeenForgetsBase);
        let process = &mut self.ranks[rank as usize];
        let dropped = |source: Rank| match forgets_base {
            true => process.record.base.delivered[source as usize],
            false => 0,
        };
        let counts = (0..size).map(|source| process.record.of_source(source) - dropped(source));
        process.counts = Some(counts.collect());
        self.look_at_counts(rank);
    }

    pub(crate) fn look_at_counts(&mut self, rank: Rank) {
        let incarnation = self.ranks[rank as usize].incarnation;
        let pause = 1 + self.random.below(self.pace.latency);
        self.schedule(pause, Event::Look { rank, incarnation });
    }

    /// Begins the life if all ranks have reported the counts of their records.
    pub(crate) fn begin_when_counted(&mut self, rank: Rank) -> Result<(), Violation> {
        let is_early = self.is(Mutation::BeginWithPart);
        if self.ranks.iter().any(|process| process.counts.is_none()) {
            self.look_at_counts(rank);
            return Ok(());
        }
        if is_early {
            let to = self.random.below(self.ranks.len() as u64) as Rank;
            let part = self.random.below(self.ranks[rank as usize].logs[to as usize].end() + 1);
            self.keep_arrived(rank, to, part);
        }
        let process = &mut self.ranks[rank as usize];
        let Some(recovery) = process.recovery() else {
            return Ok(());
        };
        let (record_from, begun) = (recovery.record_from, recovery.begun.take());
        let was_lost = std::mem::take(&mut process.record_lost);
        process.logs.iter_mut().for_each(Log::drop_held);
        let image = process.recovery().and_then(|recovery| recovery.image.take());
        if let Some(image) = image.as_ref().filter(|_| was_lost) {
            self.put_back(rank, image);
        }
        let process = &mut self.ranks[rank as usize];
        let mut sent_before: Vec<u64> = process.logs.iter().map(|log| log.end()).collect();
        self.sent_to_lost(rank, &mut sent_before);
        let standing = image.as_ref().map(|image| &image.standing);
        self.checkers.life_starts(rank, standing, &sent_before)?;
        let connected = self.ranks[rank as usize].logger_epoch;
        let vouched = match record_from {
            // It may be more than the event logger has acknowledged.
            Some(IN_PLACE) => self.is(Mutation::TrustOwnRecord),
            from => from == Some(connected),
        };
        self.begin_life(rank, image, sent_before, vouched, begun.map(|causal| *causal));
        self.connect_logger(rank);
        Ok(())
    }

    /// Appends the log beside the image to the logs of `rank` that have come back: its life does not send these
    /// messages again.
    fn put_back(&mut self, rank: Rank, image: &Image) {
        for (to, beside) in (0..).zip(&image.logs) {
            let wire = &mut self.wires[rank as usize][to as usize];
            let process = &mut self.ranks[rank as usize];
            let log = &mut process.logs[to as usize];
            if log.end() < beside.dropped() || self.mutation == Some(Mutation::ReadBesideOnly) {
                log.cut(0);
                log.drop_to(beside.dropped());
            }
            while let Some(entry) = beside.get(log.end() + 1) {
                log.push(*entry);
                let at = (log.end() - beside.dropped()) as usize - 1;
                wire.carry(
                    log.end(),
                    image.carried[to as usize].get(at).cloned().unwrap_or_default(),
                );
            }
            let end = log.end();
            // Messages from the former place do not count, and those that receivers have seen stay.
            wire.connection += 1;
            wire.revealed = wire.revealed.max(log.dropped());
            process.pushed[to as usize] = end;
            for _ in wire.revealed..end {
                self.reveal_later(rank, to);
            }
            self.checkers.rewound(rank, to, end);
        }
    }

    /// Deliveries recorded by receivers that were lost together with the log to them.
    pub(crate) fn sent_to_lost(&self, rank: Rank, sent_before: &mut [u64]) {
        if self.is(Mutation::TellLogsOnly) {
            return;
        }
        for (before, process) in sent_before.iter_mut().zip(&self.ranks) {
            let recorded = process.counts.as_ref().map_or(0, |counts| counts[rank as usize]);
            *before = recorded.max(*before);
        }
    }
}

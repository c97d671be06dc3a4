//! Causal logging on several nodes (the settings `…-on-nodes`). What a rank knows lies on its node, which outlives its
//! process. So a life that begins again there knows what its former one knew, and its event logger has the rest.
//!
//! When a node is lost, every other one tells what is known there, for the ranks that have lost theirs: a *piece*.
//!
//! - All that the node's ranks know, whether they run or not.
//! - What messages carry that have come there from ranks that have ever lost their nodes: their senders may know it no
//!   more.
//!
//! The dispatcher is one of those nodes: with what a rank prints it gets what the rank knows and what is not stable. It
//! gets the same before an image of the rank counts: that may be all that is left of the rank.
//!
//! When all nodes have done so, the rank counts as one that knows all of that; until then it knows nothing. When
//! another node is lost meanwhile, all pieces are told anew. A message to a rank that knows nothing has not arrived: it
//! may leave out what only the former life had been told.

use resurgo_protocol::causal::{Contradiction, Event, Gathering};
use resurgo_protocol::{Node, Rank};

use crate::checkers::{COLLECTED, NO_ORPHAN, Violation, violation};
use crate::log::Record;
use crate::mutation::Mutation;
use crate::process::{Process, State};
use crate::world::{self, World};

/// It is on no node.
const DISPATCHER: Node = Node::MAX;
/// A rank prints something at one of so many steps.
const PRINTS: u64 = 12;

/// What all of them say together.
fn gathered<'a>(ranks: usize, events: impl Iterator<Item = &'a Event>) -> Result<Gathering, Violation> {
    let mut gathering = Gathering::new(ranks);
    for event in events {
        if let Err(contradiction) = gathering.add(*event) {
            return violation(NO_ORPHAN, contradiction.to_string());
        }
    }
    Ok(gathering)
}

impl Process {
    /// Its deliveries that it knows to be stable.
    fn stable(&self) -> u64 {
        match &self.state {
            State::Up(life) => life
                .subject
                .causal
                .as_ref()
                .map_or(0, |causal| causal.stable()[self.rank as usize]),
            _ => 0,
        }
    }

    /// What it knows can be read on its node.
    fn is_known(&self) -> bool {
        self.has_told || self.is_up()
    }
}

impl World {
    /// How often nodes have been lost.
    fn losses(&self) -> u64 {
        self.nodes.losses
    }

    /// The node of these ranks is lost, and with it what they knew.
    pub(crate) fn lose_pieces(&mut self, lost: &[Rank]) {
        self.nodes.losses += 1;
        if self.rules.causal.is_none() {
            return;
        }
        for rank in lost {
            let process = &mut self.ranks[*rank as usize];
            (process.has_told, process.moving.has_moved) = (false, true);
            process.left_behind.clear();
        }
        let unknown: Vec<Rank> = (0..self.ranks.len() as Rank)
            .filter(|rank| !self.ranks[*rank as usize].is_known())
            .collect();
        for to in &unknown {
            if !self.is(Mutation::ArriveUnknown) {
                lost.iter().for_each(|from| self.keep_arrived(*from, *to, 0));
            }
            self.ask_for_pieces(*to);
        }
    }

    /// All nodes tell what is known there for `rank`, if it has a node again.
    fn ask_for_pieces(&mut self, rank: Rank) {
        if !self.is(Mutation::KeepFormerPieces) {
            self.ranks[rank as usize].moving.pieces.clear();
        }
        if self.ranks[rank as usize].is_down() {
            return;
        }
        let vouched = self.nodes.vouched.clone();
        self.ranks[rank as usize].moving.pieces.insert(DISPATCHER, vouched);
        for node in self.nodes.up.clone() {
            self.send_piece(rank, node, None);
        }
    }

    /// Time passes before `node` looks (no events), or before what it has found comes to where `rank` is.
    fn send_piece(&mut self, rank: Rank, node: Node, events: Option<Vec<Event>>) {
        let pause = 1 + self.random.below(self.pace.latency);
        let epoch = self.losses();
        let piece = world::Event::Piece {
            rank,
            node,
            epoch,
            events,
        };
        self.schedule(pause, piece);
    }

    /// `node` looks up what is known there, or that has come to where `rank` is.
    pub(crate) fn hear_piece(
        &mut self,
        rank: Rank,
        node: Node,
        epoch: u64,
        events: Option<Vec<Event>>,
    ) -> Result<(), Violation> {
        if epoch != self.losses() {
            return Ok(());
        }
        let Some(events) = events else {
            let found = self.known_on(node)?;
            self.send_piece(rank, node, Some(found));
            return Ok(());
        };
        self.ranks[rank as usize].moving.pieces.insert(node, events);
        let process = &self.ranks[rank as usize];
        let lacking = self
            .nodes
            .up
            .iter()
            .filter(|node| !process.moving.pieces.contains_key(node));
        let most = usize::from(self.is(Mutation::LackOnePiece));
        if process.is_known() || lacking.count() > most {
            return Ok(());
        }
        let pieces = process.moving.pieces.values().flatten();
        let events = gathered(self.ranks.len(), pieces)?.ordered();
        self.note(|| format!("{rank} has all pieces, {} deliveries", events.len()));
        let process = &mut self.ranks[rank as usize];
        (process.left_behind, process.has_told) = (events, true);
        self.crashes.provoked = Some(rank);
        self.ask_logger(rank)
    }

    fn known_on(&self, node: Node) -> Result<Vec<Event>, Violation> {
        let mut events = Vec::new();
        let here = self.ranks.iter().zip(&self.nodes.of);
        for (process, _) in here.filter(|(process, of)| **of == node && process.is_known()) {
            events.extend(process.published());
            let moved = self.ranks.iter().filter(|from| from.moving.has_moved);
            for from in moved.filter(|_| !self.is(Mutation::PiecesWithoutMessages)) {
                let arrived = self.wires[from.rank as usize][process.rank as usize].revealed;
                let carried = self
                    .carried(from.rank, process.rank, 0)?
                    .into_iter()
                    .take(arrived as usize);
                events.extend(carried.flat_map(|(_, piggyback)| piggyback.events));
            }
        }
        Ok(events)
    }

    /// `rank` may print something: the dispatcher gets what that depends on.
    pub(crate) fn print(&mut self, rank: Rank) {
        if self.rules.causal.is_none() || !self.moves() || !self.random.one_in(PRINTS) {
            return;
        }
        let process = &mut self.ranks[rank as usize];
        let Some(life) = process.life() else { return };
        let printed = life.subject.rclock();
        process.moving.printed = printed.max(process.moving.printed);
        if !self.is(Mutation::PrintAlone) {
            self.vouch(rank);
        }
    }

    /// The dispatcher gets what `rank` knows: something depends on that which outlives its node.
    pub(crate) fn vouch(&mut self, rank: Rank) {
        if self.rules.causal.is_none() || !self.moves() {
            return;
        }
        let known = self.ranks[rank as usize].published();
        let stable: Vec<u64> = self.ranks.iter().map(|process| process.stable()).collect();
        let vouched = &mut self.nodes.vouched;
        vouched.extend(
            known
                .into_iter()
                .filter(|event| !vouched.contains(event))
                .collect::<Vec<_>>(),
        );
        vouched.retain(|event| event.rclock > stable[event.receiver as usize]);
    }

    /// A later life of `rank` has what its node has of its former ones, or waits for it.
    pub(crate) fn find_pieces(&mut self, rank: Rank) -> Result<(), Violation> {
        if !self.ranks[rank as usize].has_told {
            self.ask_for_pieces(rank);
        }
        self.ask_logger(rank)
    }

    /// What is not known here the event logger has.
    fn ask_logger(&mut self, rank: Rank) -> Result<(), Violation> {
        let process = &self.ranks[rank as usize];
        if !process.has_told || !matches!(process.state, State::Recovering(_)) {
            return Ok(());
        }
        match self.logging.sites.is_empty() {
            true => self.take_pieces(rank),
            false => {
                self.connect_logger(rank);
                Ok(())
            }
        }
    }

    /// The event logger has answered, if there is one: the record is known.
    pub(crate) fn take_pieces(&mut self, rank: Rank) -> Result<(), Violation> {
        let size = self.ranks.len();
        let process = &mut self.ranks[rank as usize];
        let gathering = gathered(size, process.left_behind.iter())?;
        let only = match &process.images.complete[..] {
            // There were two before, and what the older one covered is dropped.
            [(_, only)] => Some(only.cursor()),
            _ => None,
        };
        let Some(recovery) = process.recovery() else {
            return Ok(());
        };
        let Some(collection) = recovery.collection.as_deref().cloned() else {
            return Ok(());
        };
        recovery.record_from = Some(recovery.answered);
        let mut above = recovery.above.clone();
        let mut begun = gathering.clone().begin(collection.clone(), above.rclock);
        if let (Err(Contradiction::Lost { .. }), Some(only)) = (&begun, only) {
            begun = gathering.begin(collection, only.rclock);
            above = only;
        }
        let (causal, record) = match begun {
            Ok(begun) => begun,
            Err(contradiction @ Contradiction::Lost { .. }) => return violation(COLLECTED, contradiction.to_string()),
            Err(contradiction) => return violation(NO_ORPHAN, contradiction.to_string()),
        };
        recovery.begun = Some(Box::new(causal));
        let standing = recovery.image.as_ref().map(|image| image.standing.clone());
        let (base, end) = (above.rclock, above.rclock + record.len() as u64);
        let printed = process.moving.printed;
        if end < printed {
            return violation(
                NO_ORPHAN,
                format!("{rank} has printed after delivery {printed}, and {end} can be repeated"),
            );
        }
        self.checkers.recover(rank, standing.as_ref(), base, &record)?;
        self.checkers.collects(rank, base);
        self.note(|| format!("{rank} has a record of the deliveries {} to {end}", base + 1));
        let process = &mut self.ranks[rank as usize];
        process.record = Record::new(above, record);
        match process.counts {
            Some(_) => self.look_at_counts(rank),
            None => self.count_record(rank),
        }
        Ok(())
    }
}

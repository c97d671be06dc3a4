//! Causal logging where the loss of a node is tolerated: what messages carry, what a delivery takes in, and how a new
//! life begins.

use super::pace::Pace;
use crate::clock::ticks;
use crate::event_logger::{EventLogger, Found};
use crate::knowledge::{self, Knowledge, Lives};
use crate::log::{Entry, Reader};
use crate::node::Node;
use crate::record::Cursor;
use resurgo_protocol::causal::{Causal, Collection, Event, Piggyback, Reduction};
use resurgo_protocol::{Determinant, Rank, Recorded};
use resurgo_wire::counters::Cost;
use resurgo_wire::event_logger::Delivery;
use resurgo_wire::node_memory::{self as nm, control};
use resurgo_wire::piggyback;
use std::sync::atomic::Ordering;

/// Time between two exchanges with the event logger, unless many deliveries are pending: no rank waits for it. Messages
/// no longer carry what it acknowledges, which matters with more than two ranks.
const EXCHANGE_US: u64 = 1000;
const EXCHANGE_SOON_US: u64 = 300;
/// With two ranks each tells the other of an event once, stable or not.
const EXCHANGE_OF_TWO_US: u64 = 10_000;
const MUCH: usize = 2048;
/// A bound of what a message carries beside what events take: the clock and three counts.
const HEAD: usize = 64;
/// Bytes of room asked for before a message is sent; a larger piggyback finds room or ends the job.
const MOST_ROOM: usize = 64 << 10;

/// One of so many piggybacks is timed, each way: reading the clock for all would take a good part of that time.
/// Programs do not repeat themselves in such numbers.
const TIMED: u32 = 17;

/// When to time the next one.
#[derive(Default)]
struct Timer(u32);

impl Timer {
    #[inline]
    fn begin(&mut self) -> Option<u64> {
        self.0 += 1;
        (self.0 == TIMED).then(|| {
            self.0 = 0;
            ticks()
        })
    }
}

/// What this life knows, and what its messages carried.
pub struct Causality {
    causal: Causal,
    reduction: Reduction,
    knowledge: Knowledge,
    /// The record that this life repeats, until it is in the node memory.
    pub collected: Vec<Recorded>,
    /// The event logger's part of it.
    pub found: Option<Found>,
    /// Buffers for one piggyback each way and its contents: a message allocates nothing.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    piggyback: Piggyback,
    news: Vec<Event>,
    preparing: Timer,
    absorbing: Timer,
    exchanged_at: u64,
    /// Messages since then, and the events that they carried.
    carried: (usize, usize),
    /// Per rank, the stable clock told to the own event logger, where ranks tell it.
    told_logger: Vec<u64>,
}

impl Causality {
    /// At the beginning of the program.
    pub fn new(node: &Node) -> Causality {
        let (rank, size) = (node.rank as Rank, node.ranks());
        let reduction = Reduction::numbered(node.reduction);
        let several = node.event_loggers.len() > 1;
        let spreads = several && node.clock_spread == nm::SPREAD_PIGGYBACK;
        let causal = Causal::new(rank, size, reduction, spreads);
        let told_logger = several && node.clock_spread != nm::SPREAD_MULTICAST;
        Causality {
            knowledge: Knowledge::new(node, causal.latest()),
            causal,
            reduction,
            collected: Vec::new(),
            found: None,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            piggyback: Piggyback::default(),
            news: Vec::new(),
            preparing: Timer::default(),
            absorbing: Timer::default(),
            exchanged_at: 0,
            carried: (0, 0),
            told_logger: if told_logger { vec![0; size] } else { Vec::new() },
        }
    }

    /// Ranks may have been spawned since this rank looked last. Call before the job's ranks are counted, or named.
    #[inline]
    fn grow(&mut self, ranks: usize) {
        if ranks > self.causal.latest().len() {
            self.causal.grow(ranks);
            self.knowledge.grow(ranks);
            if !self.told_logger.is_empty() {
                self.told_logger.resize(ranks, 0);
            }
        }
    }

    /// A life begins; its process has made `above` deliveries and read its channels up to these places. A later life
    /// begins with all that is known anywhere, except to this rank's former lives. `lost`: its record is lost, and is
    /// needed from there on.
    pub fn begin(&mut self, node: &Node, above: u64, lost: Option<u64>, places: &[u64]) {
        self.knowledge = Knowledge::new(node, self.causal.latest());
        self.told_logger.fill(0);
        if node.control(node.rank, control::INCARNATION).load(Ordering::Acquire) > 1 {
            let covered = lost.unwrap_or_else(|| Cursor::covered(node));
            self.collect(node, above, covered, places);
        } else {
            self.knowledge.tell(node, &[]);
        }
    }

    /// A later life, after `above` deliveries, takes in all that is known anywhere, and finds what to repeat. On several
    /// nodes its own node has that: what its former life knew there, or what all other nodes have told. This rank may have
    /// to go back to older images: the record goes back to its `covered` deliveries, so it can be logged again.
    fn collect(&mut self, node: &Node, above: u64, covered: u64, places: &[u64]) {
        let fail = |reason: String| -> ! { node.report(&format!("rank {} cannot be recovered: {reason}", node.rank)) };
        let life = node.control(node.rank, control::INCARNATION).load(Ordering::Acquire);
        let has_logger = !node.event_loggers.is_empty();
        let logged = has_logger.then(|| {
            let (found, records) = EventLogger::recover(node, covered);
            self.found = Some(found);
            records
        });
        loop {
            let found = match node.moves {
                true => knowledge::own(node),
                false => knowledge::gather(node, self.reduction),
            };
            let (gathering, lives) = found.unwrap_or_else(|reason| fail(reason));
            if !node.moves {
                // It reads its channels from there: others must find there what it does not know yet.
                for (source, place) in places.iter().enumerate() {
                    node.consumed(source, node.rank).store(*place, Ordering::Release);
                }
            }
            self.grow(node.ranks());
            let mut collection = Collection::new(self.causal.clone(), life, has_logger);
            if let Some(records) = &logged {
                collection.logged(covered, records.clone());
            }
            let begun = gathering.begin(collection, above);
            let (causal, record) = begun.unwrap_or_else(|contradiction| fail(contradiction.to_string()));
            self.knowledge.tell(node, &causal.all());
            if node.moves || lives == Lives::now(node) {
                (self.causal, self.collected) = (causal, record);
                return;
            }
            self.knowledge.take_back(node);
        }
    }

    /// An image of this rank is taken.
    pub fn note_image(&mut self, node: &Node) {
        self.knowledge.note_image(node, self.causal.latest());
    }

    /// No rank needs to know deliveries that images cover.
    pub fn hear_images(&mut self, node: &Node) {
        let ranks = node.ranks();
        self.grow(ranks);
        let covered = (0..ranks).map(|rank| (rank as Rank, node.covered(rank)));
        self.causal.learn_stable(covered);
    }

    /// This rank delivers a message. Returns the clock of the sender that the event logger must have first; 0: none.
    #[inline]
    pub fn deliver(&mut self, node: &Node, determinant: &Determinant, clock: u64) -> u64 {
        let known = self.causal.latest()[determinant.receiver as usize];
        if let Err(error) = self.causal.deliver(determinant, clock) {
            node.report(&error.to_string());
        }
        if determinant.rclock > known {
            let event = Event {
                receiver: determinant.receiver,
                rclock: determinant.rclock,
                record: determinant.recorded(),
                antecedent: clock,
            };
            self.publish(node, &[event]);
        }
        if clock > self.causal.stable()[determinant.source as usize] {
            clock
        } else {
            0
        }
    }

    /// Publishes events that this rank has just learned.
    #[inline]
    fn publish(&mut self, node: &Node, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        match self.knowledge.has_room(events.len()) {
            true => self.knowledge.add(node, events),
            false => self.knowledge.replace(node, &self.causal.all()),
        }
    }

    /// The deliveries that the event logger lacks.
    pub fn to_log(&self, above: u64, records: &[Recorded]) -> Vec<Delivery> {
        let events = self.causal.to_log(above, records);
        events
            .into_iter()
            .map(|event| (event.record, event.antecedent))
            .collect()
    }

    /// The event loggers report what is stable.
    pub fn hear(&mut self, node: &Node, logger: &mut EventLogger, clocks: &[(Rank, u64)]) {
        let own = (node.rank as Rank, logger.acknowledged());
        // An event logger may know ranks that this node does not know yet.
        let named = clocks.iter().map(|(rank, _)| *rank as usize + 1).max();
        self.grow(named.unwrap_or(0).min(node.size));
        self.causal.learn_stable(clocks.iter().copied().chain([own]));
        if self.told_logger.is_empty() {
            return;
        }
        let stable = self.causal.stable();
        let news = (0..).zip(stable).zip(&self.told_logger);
        let news: Vec<(Rank, u64)> = news
            .filter(|((rank, stable), told)| stable > told && *rank != own.0)
            .map(|((rank, stable), _)| (rank, *stable))
            .collect();
        logger.heard(&news);
        self.told_logger.copy_from_slice(stable);
    }

    /// No message carries more, except for what does not fit in [`MOST_ROOM`].
    #[inline]
    pub fn most_bytes(&self) -> usize {
        (HEAD + self.causal.kept() * piggyback::MAX_EVENT_BYTES).min(MOST_ROOM)
    }

    /// The piggyback of the message that now leaves for `destination`, after `rclock` deliveries; `again`: one that was
    /// lost with the node, and that its receiver has recorded. Give it back with [`Self::keep_room`].
    pub fn piggyback(&mut self, node: &Node, pace: &Pace, destination: usize, rclock: u64, again: bool) -> Vec<u8> {
        let began = self.preparing.begin();
        self.grow(node.ranks());
        match again {
            true => self.causal.carry_again(&mut self.piggyback),
            false => self.causal.carry(destination as Rank, &mut self.piggyback),
        }
        let mut bytes = std::mem::take(&mut self.outgoing);
        bytes.clear();
        piggyback::encode(self.reduction, rclock, &self.piggyback, &mut bytes);
        let events = self.piggyback.events.len();
        self.carried = (self.carried.0 + 1, self.carried.1 + events);
        node.add(Cost::Piggybacks, 1);
        node.add(Cost::PiggybackBytes, bytes.len() as u64);
        match events {
            0 => node.add(Cost::EmptyPiggybacks, 1),
            events => node.add(Cost::PiggybackEvents, events as u64),
        }
        has_taken(node, pace, Cost::PrepareNs, began);
        bytes
    }

    #[inline]
    pub fn keep_room(&mut self, bytes: Vec<u8>) {
        self.outgoing = bytes;
    }

    /// A message is about to be delivered: takes in its piggyback. Returns the number of deliveries that its sender had
    /// made.
    #[inline]
    pub fn take_in(&mut self, node: &Node, pace: &Pace, reader: &mut Reader, source: usize, entry: &Entry) -> u64 {
        let began = self.absorbing.begin();
        self.grow(node.ranks());
        reader.piggyback(node, entry, &mut self.incoming);
        let mut piggyback = std::mem::take(&mut self.piggyback);
        let clock = knowledge::decode(self.reduction, source as Rank, &self.incoming, &mut piggyback)
            .unwrap_or_else(|reason| node.report(&reason));
        let latest = self.causal.latest();
        let mut news = std::mem::take(&mut self.news);
        news.clear();
        let is_new = |event: &&Event| {
            latest
                .get(event.receiver as usize)
                .is_some_and(|latest| event.rclock > *latest)
        };
        news.extend(piggyback.events.iter().filter(is_new));
        if let Err(error) = self.causal.absorb(source as Rank, &piggyback) {
            node.report(&error.to_string());
        }
        // Before a send can depend on it.
        self.publish(node, &news);
        (self.news, self.piggyback) = (news, piggyback);
        node.most(Cost::LargestGraph, self.causal.kept() as u64);
        has_taken(node, pace, Cost::AbsorbNs, began);
        clock
    }

    /// No rank waits for the event logger, so exchanges are rare; the rank looks as often for what images cover.
    /// `pending`: deliveries not sent to it yet.
    #[inline]
    pub fn is_due(&mut self, node: &Node, pace: &Pace, pending: usize) -> bool {
        let now = ticks();
        let (messages, events) = self.carried;
        let pause = match node.ranks() {
            ..=2 => EXCHANGE_OF_TWO_US,
            _ if events > messages => EXCHANGE_SOON_US,
            _ => EXCHANGE_US,
        };
        if pending < MUCH && now - self.exchanged_at < pace.us(pause) {
            return false;
        }
        (self.exchanged_at, self.carried) = (now, (0, 0));
        true
    }
}

#[inline]
fn has_taken(node: &Node, pace: &Pace, cost: Cost, began: Option<u64>) {
    if let Some(began) = began {
        node.add(cost, pace.ns_since(began) * u64::from(TIMED));
    }
}

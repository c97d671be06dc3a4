//! Causal logging where the loss of a node is tolerated: what messages carry, what is taken in when they are delivered, and how a
//! new life begins.

use super::pace::Pace;
use crate::clock::ticks;
use crate::event_logger::{EventLogger, Found};
use crate::knowledge::{self, Knowledge, Lives};
use crate::log::{Entry, Reader};
use crate::node::Node;
use resurgo_protocol::causal::{Causal, Collection, Event, Piggyback, Reduction};
use resurgo_protocol::{Determinant, Rank, Recorded};
use resurgo_wire::counters::Cost;
use resurgo_wire::event_logger::Delivery;
use resurgo_wire::node_memory::{self as nm, control};
use resurgo_wire::piggyback;
use std::sync::atomic::Ordering;

/// Time between two exchanges with the event logger, unless there is much to say: nobody waits for it. What it acknowledges is
/// carried no more, which matters when events are carried to more than one.
const EXCHANGE_US: u64 = 1000;
const EXCHANGE_SOON_US: u64 = 300;
/// Of two ranks each tells the other of an event once, stable or not.
const EXCHANGE_OF_TWO_US: u64 = 10_000;
const MUCH: usize = 2048;
/// A bound of what a message carries beside what events take: the clock and three counts.
const HEAD: usize = 64;
/// Bytes that room is asked for before a message is sent; what is more finds room or ends the job.
const MOST_ROOM: usize = 64 << 10;

/// One of so many piggybacks is timed, each way: to read the clock for all would take a good part of that time. Programs do not repeat
/// themselves in such numbers.
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

/// What this life knows, and what it has carried.
pub struct Causality {
    causal: Causal,
    reduction: Reduction,
    knowledge: Knowledge,
    /// The record that this life repeats, until it lies in the node memory.
    pub collected: Vec<Recorded>,
    /// What the event logger had of it.
    pub found: Option<Found>,
    /// Room for one piggyback each way, and for what it says: nothing is allocated for a message.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    piggyback: Piggyback,
    news: Vec<Event>,
    preparing: Timer,
    absorbing: Timer,
    exchanged_at: u64,
    /// Messages that have left since then, and events that they have carried.
    carried: (usize, usize),
    /// Per rank, the stable clock told to the own event logger, where ranks tell it.
    told_logger: Vec<u64>,
}

fn reduction(node: &Node) -> Reduction {
    match node.reduction {
        0 => Reduction::Vcausal,
        1 => Reduction::Manetho,
        _ => Reduction::LogOn,
    }
}

impl Causality {
    /// At the beginning of the program.
    pub fn new(node: &Node) -> Causality {
        let (rank, size) = (node.rank as Rank, node.size);
        let reduction = reduction(node);
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

    /// A life begins in which the process has made `above` deliveries and read its channels up to these places: a later one with all that is
    /// known anywhere, but to this rank's former lives.
    pub fn begin(&mut self, node: &Node, above: u64, places: &[u64]) {
        self.knowledge = Knowledge::new(node, self.causal.latest());
        self.told_logger.fill(0);
        if node.control(node.rank, control::INCARNATION).load(Ordering::Acquire) > 1 {
            self.collect(node, above, places);
        } else {
            self.knowledge.tell(node, &[]);
        }
    }

    /// A later life, which has made `above` deliveries, takes in all that is known anywhere, and finds what it has to repeat.
    fn collect(&mut self, node: &Node, above: u64, places: &[u64]) {
        let fail = |reason: String| -> ! { node.report(&format!("rank {} cannot be recovered: {reason}", node.rank)) };
        let life = node.control(node.rank, control::INCARNATION).load(Ordering::Acquire);
        let has_logger = !node.event_loggers.is_empty();
        // Older images may have to be gone back to: the record goes back to them, so that it can be logged again.
        let covered = node.covered(node.rank);
        let mut collection = Collection::new(self.causal.clone(), life, has_logger);
        if has_logger {
            let (found, records) = EventLogger::recover(node, covered);
            self.found = Some(found);
            collection.logged(covered, records);
        }
        loop {
            let (gathering, lives) = knowledge::gather(node, self.reduction).unwrap_or_else(|reason| fail(reason));
            // It reads its channels from there: others must find there what it does not know yet.
            for (source, place) in places.iter().enumerate() {
                node.consumed(source, node.rank).store(*place, Ordering::Release);
            }
            let begun = gathering.begin(collection.clone(), above);
            let (causal, record) = begun.unwrap_or_else(|contradiction| fail(contradiction.to_string()));
            self.knowledge.tell(node, &causal.all());
            if lives == Lives::now(node) {
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

    /// What images cover need not be known by anybody.
    pub fn hear_images(&mut self, node: &Node) {
        let covered = (0..node.ranks()).map(|rank| (rank as Rank, node.covered(rank)));
        self.causal.learn_stable(covered);
    }

    /// This rank delivers a message. Returns what the event logger must have before it has this.
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

    /// What has just become known here.
    #[inline]
    fn publish(&mut self, node: &Node, events: &[Event]) {
        for event in events {
            if self.knowledge.is_full() {
                self.knowledge.replace(node, &self.causal.all());
                return;
            }
            self.knowledge.add(node, event);
        }
    }

    /// What the event logger misses.
    pub fn to_log(&self, above: u64, records: &[Recorded]) -> Vec<Delivery> {
        let events = self.causal.to_log(above, records);
        events
            .into_iter()
            .map(|event| (event.record, event.antecedent))
            .collect()
    }

    /// The event loggers have said what is stable.
    pub fn hear(&mut self, node: &Node, logger: &mut EventLogger, clocks: &[(Rank, u64)]) {
        let own = (node.rank as Rank, logger.acknowledged());
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

    /// What the message that now leaves for `destination` carries, after `rclock` deliveries. Give it back with [`Self::keep_room`].
    pub fn piggyback(&mut self, node: &Node, pace: &Pace, destination: usize, rclock: u64) -> Vec<u8> {
        let began = self.preparing.begin();
        self.causal.carry(destination as Rank, &mut self.piggyback);
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

    /// A message is about to be delivered: takes in what it carries. Returns the deliveries that its sender had made.
    #[inline]
    pub fn take_in(&mut self, node: &Node, pace: &Pace, reader: &mut Reader, source: usize, entry: &Entry) -> u64 {
        let began = self.absorbing.begin();
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
        // Before anything can depend on it.
        self.publish(node, &news);
        (self.news, self.piggyback) = (news, piggyback);
        node.most(Cost::LargestGraph, self.causal.kept() as u64);
        has_taken(node, pace, Cost::AbsorbNs, began);
        clock
    }

    /// Nobody waits for the event logger, so it is spoken to now and then; and what images cover is looked at as often. `pending`:
    /// deliveries that it has not been sent.
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

//! One rank's transport: appends sends to channel logs, takes deliveries from them, and asks the protocol before either.
//!
//! The two rules on which replay stands: a delivery happens only inside a completion-queue read ([`Engine::poll`]), and a
//! send under a logging protocol is finished when the call returns.

mod causality;
mod channel_memory;
mod deferring;
pub mod images;
mod receiving;
mod recovery;
mod reopening;
mod sending;
#[cfg(test)]
mod tests;
mod waiting;

use crate::arena::Arena;
use crate::channel_memories::ChannelMemories;
use crate::clock::{measure_ticks, monotonic_ns, ticks};
use crate::completion::{Completion, SendContext};
use crate::doorbell;
use crate::event_logger::{EventLogger, Found};
use crate::log::{Entry, HeldMark, Progress, Reader, Writer};
use crate::matching::{Matching, Receive, Unexpected};
use crate::message::{Envelope, Kind, Message, Pieces};
use crate::node::Node;
use crate::ofi::*;
use crate::record::Cursor;
use crate::rma::Rma;
use causality::Causality;
use recovery::Survey;
use reopening::Endpoints;
use resurgo_image::Guard;
use resurgo_protocol::chandy_lamport::Cut;
use resurgo_protocol::group::Buffer;
use resurgo_protocol::{Next, Pessimistic, Recorded, Sending};
use resurgo_wire::counters::{self, Cost};
use resurgo_wire::node_memory::{self as nm, control};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// Where the pieces of the message being read from a channel go.
enum Filling {
    Nothing,
    Receive {
        receive: Receive,
        envelope: Envelope,
        total: usize,
        done: usize,
    },
    Unexpected(*mut Unexpected),
    /// Nobody wants it.
    Dropped {
        total: usize,
        done: usize,
    },
    /// The answer to a remote read or write of this rank's.
    Answer {
        operation: u64,
        total: usize,
        done: usize,
    },
    /// Pieces of another rank's remote read or write, gathered before they are served.
    Rma {
        envelope: Envelope,
        total: usize,
        bytes: Vec<u8>,
    },
}

/// The receiving end of one channel.
struct Incoming {
    reader: Reader,
    filling: Filling,
}

/// A send that has not found room yet (only without retention), or has been deferred.
struct Waiting {
    destination: usize,
    envelope: Envelope,
    iov: Box<[libc::iovec]>,
    /// What `iov` points to when the caller has its memory back already.
    _copy: Box<[u8]>,
    total: usize,
    progress: Progress,
    completion: Option<Completion>,
    /// When it was deferred, in ticks; 0: it was not.
    deferred_at: u64,
    /// It is in the buffer of deferred messages: its send is over.
    buffered: bool,
}

/// Deliveries one completion-queue read makes at most when none of them completes anything.
const DELIVERIES_A_POLL: usize = 16;
/// Deliveries from the same channel in a row before others are looked at.
const HOT_RUN: u32 = 16;
/// Two reads are in quick succession when there is no more time between them than a progress loop needs that gives its
/// core to others in every round.
const QUICK_US: u64 = 5;
/// A progress loop that does nothing else needs less between two reads.
const BARE_LOOP_US: u64 = 2;
/// Longest look for news inside one read while the program still polls.
const LOOK_US: u64 = 1;
/// How long a rank that waits gives its core to others, and looks again when it gets it back, before it sleeps: with a few ranks
/// on each core that costs less than sleeping and being woken.
const YIELD_US: u64 = 30;
/// When others keep the core for longer than this they compute, and a rank that sleeps gets it back sooner than one that has
/// given it away: so for a while it does not.
const LONG_YIELD_US: u64 = 200;
const NO_YIELD_US: u64 = 50_000;
const SHORT_SLEEP_NS: u64 = 50_000;
const FIRST_SLEEP_NS: u64 = 1_000_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// A program that repeats sends reads this many times as often as a former life before them, and for so long, before it is said not to
/// repeat them at all. How often it reads depends on the machine too, where it waits for something that is no message.
const OWED_READS: u64 = 100;
const OWED_US: u64 = 5_000_000;
/// Changes between threads that call in before a rank counts as one that uses MPI from several threads: handing MPI
/// over from one thread to another once in a while can be replayed, calling it from both cannot.
const THREAD_CHANGES: u32 = 64;
/// How long a rank that has finished waits until the event logger has its last deliveries.
const LAST_WORDS_NS: u64 = 200_000_000;

pub struct Engine {
    pub node: Node,
    arena: Arena,
    outgoing: Vec<Option<Box<Writer>>>,
    incoming: Vec<Option<Box<Incoming>>>,
    ready: VecDeque<u32>,
    queued: Vec<bool>,
    hot: u32,
    hot_run: u32,
    protocol: Option<Pessimistic>,
    /// The part in waves that stop nobody.
    cut: Cut,
    /// Some channel has a message from behind a cut that is not the own yet.
    holds_back: bool,
    record: Cursor,
    /// Where the log of each channel is compared with what is sent again.
    redo: Vec<Option<Box<Reader>>>,
    /// Per destination, messages at the beginning of the channel that the log does not hold any more, because an image of
    /// the receiver's covers them: there is nothing to compare them with.
    forgotten: Vec<u64>,
    /// What is piggybacked, under causal logging where the loss of a node is tolerated.
    causality: Option<Box<Causality>>,
    /// Where determinants become stable when the loss of a node is tolerated; under pessimistic logging before a send leaves.
    logger: Option<EventLogger>,
    /// Where all messages go and come from, under channel-memory.
    memories: Option<Box<ChannelMemories>>,
    /// With the ticks at which each was held.
    held: VecDeque<(u32, HeldMark, u64)>,
    /// How many have been.
    held_so_far: u64,
    waiting: VecDeque<Waiting>,
    /// Waits in the replay so far.
    waits: u32,
    /// While only sends are left to repeat: how many, and the ticks since when.
    owed: (u64, u64),
    /// Room for small messages that are deferred.
    buffer: Buffer,
    /// Per source, messages taken from its channel (without a logging protocol; waves announce them).
    taken: Vec<u64>,
    pub matching: Matching,
    pub completions: VecDeque<Completion>,
    pub min_multi_recv: usize,
    pub rma: Rma,
    /// Open endpoints; all are the same to the engine.
    pub endpoints: u32,
    /// A domain is open.
    pub in_use: bool,
    numbers: Endpoints,
    replaying: bool,
    /// The agent has not seen again all that former lives printed: nothing new may be delivered yet.
    output_gate: bool,
    /// In this life.
    has_delivered: bool,
    deliveries: u64,
    delivered_bytes: u64,
    sends: u64,
    sizes: counters::Sizes,
    fault_at: u64,
    image_at: u64,
    /// The smaller of the two.
    event_at: u64,
    thread: usize,
    thread_changes: u32,
    ticks_per_us: u64,
    last_read: u64,
    idle_since: u64,
    /// When it woke up the last time, and how long it had slept.
    slept: (u64, u64),
    spin_ticks: u64,
    /// No core is given away before.
    yields_from: u64,
}

/// A life has made or is to repeat `made` deliveries. `found`: what its event logger had of them, where that was asked for.
fn start_logging(node: &Node, protocol: &mut Pessimistic, made: u64, found: Option<&Found>) -> EventLogger {
    // The record lies in this node's memory: only what the logger holds outlives the node, and what images cover.
    protocol.event_logger_lost();
    protocol.acknowledge(node.covered(node.rank));
    EventLogger::new(node, made, found)
}

/// A former life may have taken ready bits without reading what they announced: every channel is looked at once.
fn channels_with_entries(node: &Node) -> VecDeque<u32> {
    (0..node.ranks() as u32)
        .filter(|&source| node.channel(source as usize, node.rank).load(Ordering::Acquire) != 0)
        .collect()
}

impl Engine {
    /// Takes over the rank's part of the node memory: new in a first life, as the former life left it in a later one.
    pub fn new(node: Node) -> Engine {
        let began_ns = monotonic_ns();
        let size = node.size;
        let mut arena = Arena::new(&node);
        let mut found = Survey::nothing(size);
        let mut record = Cursor::start(&node);
        let mut protocol = None;
        let mut logger = None;
        let mut causality = None;
        if node.logs {
            let rank = node.rank as u32;
            let tolerate = if node.tolerate_node && !node.piggybacking {
                resurgo_protocol::Tolerate::Node
            } else {
                resurgo_protocol::Tolerate::Process
            };
            if node.piggybacking {
                causality = Some(Box::new(Causality::begin(&node)));
            }
            found = Survey::of(&node, &mut arena, |_| 0, Vec::new());
            if let Some(causality) = &mut causality {
                let mut record = Cursor::start(&node);
                for recorded in causality.collected.drain(..) {
                    record.write(&node, &mut arena, recorded, 0);
                }
            }
            // Where its first segment is, is known only now.
            record = Cursor::start(&node);
            let deliveries = record.clone().count(&node);
            node.set(control::REPLAY_DELIVERIES, deliveries);
            let sent_before = std::mem::take(&mut found.sent_before);
            let mut recovering = Pessimistic::recovering(rank, size, tolerate, deliveries, sent_before);
            if !node.event_logger_ports.is_empty() {
                let found = causality.as_ref().and_then(|causality| causality.found.as_ref());
                logger = Some(start_logging(&node, &mut recovering, deliveries, found));
            }
            protocol = Some(recovering);
        }
        let mut memories = None;
        if !node.channel_memory_ports.is_empty() {
            let (joined, recovering) = channel_memory::join(&node);
            (memories, protocol) = (Some(Box::new(joined)), Some(recovering));
        }
        let replaying = protocol.as_ref().is_some_and(Pessimistic::is_replaying);
        let output_gate = node.control(node.rank, control::OUTPUT_BEHIND).load(Ordering::Acquire) != 0;
        node.control_u32(node.rank, control::SLEEPING)
            .store(0, Ordering::SeqCst);
        if node.control(node.rank, control::INCARNATION).load(Ordering::Acquire) > 1 {
            doorbell::begin_life(&node);
        }
        waiting::ask_for_short_slices();
        let ticks_per_us = measure_ticks();
        let mut engine = Engine {
            arena,
            outgoing: found.outgoing,
            incoming: (0..size).map(|_| None).collect(),
            ready: channels_with_entries(&node),
            queued: vec![false; size],
            hot: node.rank as u32,
            hot_run: 0,
            protocol,
            cut: Cut::default(),
            holds_back: false,
            record,
            redo: found.redo,
            forgotten: found.forgotten,
            causality,
            logger,
            memories,
            held: VecDeque::new(),
            held_so_far: 0,
            waiting: VecDeque::new(),
            waits: 0,
            owed: (0, 0),
            buffer: Buffer::default(),
            taken: vec![0; size],
            matching: Matching::default(),
            completions: VecDeque::with_capacity(1024),
            min_multi_recv: 0,
            rma: Rma::default(),
            endpoints: 0,
            in_use: false,
            numbers: Endpoints::new(size),
            replaying,
            output_gate,
            has_delivered: false,
            deliveries: 0,
            delivered_bytes: 0,
            sends: 0,
            sizes: counters::Sizes::default(),
            fault_at: node.fault_at(),
            image_at: node.image_at(),
            event_at: node.fault_at().min(node.image_at()),
            thread: 0,
            thread_changes: 0,
            ticks_per_us,
            last_read: 0,
            idle_since: 0,
            slept: (0, 0),
            spin_ticks: ticks_per_us * node.spin_ns / 1000,
            yields_from: 0,
            node,
        };
        for &source in &engine.ready {
            engine.queued[source as usize] = true;
        }
        engine.collected(began_ns);
        engine.publish_phase();
        engine
    }

    /// The life knows what it has to repeat; finding that out began at `began_ns`.
    fn collected(&self, began_ns: u64) {
        let now = monotonic_ns();
        self.node.set(control::COLLECTED_NS, now);
        self.node.set(control::COLLECTING_NS, now - began_ns);
    }

    fn publish_phase(&self) {
        let phase = if self.replaying {
            nm::PHASE_REPLAY
        } else {
            nm::PHASE_LIVE
        };
        if !self.replaying {
            self.node.set(control::CAUGHT_UP_NS, monotonic_ns());
        }
        self.node
            .control_u32(self.node.rank, control::PHASE)
            .store(phase, Ordering::Release);
    }

    /// The endpoint is closed: sends that were reported as finished must leave first.
    pub fn close(&mut self) {
        self.send_deferred();
        resurgo_image::disable();
        let _guard = Guard::new();
        self.enter();
        self.hear_differences();
        let since = monotonic_ns();
        loop {
            self.exchange();
            // Held frames must leave. That others may forget what this rank has delivered is worth a little time.
            let waits = !self.held.is_empty() || monotonic_ns() - since < LAST_WORDS_NS;
            let Some(logger) = self.logger.as_mut().filter(|logger| waits && logger.is_behind()) else {
                break;
            };
            logger.wait(10);
        }
        self.keep_waiting_sends();
        // Former lives have done more: this one will open another endpoint.
        if !self.replaying {
            self.node
                .control_u32(self.node.rank, control::PHASE)
                .store(nm::PHASE_CLOSED, Ordering::Release);
        }
    }

    #[inline]
    fn settle(&mut self) {
        if self.replaying && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_replaying()) {
            self.replaying = false;
            self.hear_differences();
            self.publish_phase();
        }
    }

    /// Every call of the program passes here: an injected fault strikes, and threads are noticed.
    #[inline]
    fn enter(&mut self) {
        if resurgo_image::take_restored() {
            self.restored();
        }
        let thread = resurgo_image::thread_pointer();
        if thread != self.thread {
            self.thread_changed(thread);
        }
    }

    #[cold]
    fn thread_changed(&mut self, thread: usize) {
        self.thread_changes += (self.thread != 0) as u32;
        self.thread = thread;
        if self.thread_changes == 1 {
            self.node
                .control_u32(self.node.rank, control::THREADS)
                .store(2, Ordering::Relaxed);
        }
        if self.thread_changes > THREAD_CHANGES && self.protocol.is_some() {
            if self.node.returns_together {
                self.node
                    .control_u32(self.node.rank, control::THREADS)
                    .store(nm::MANY_THREADS, Ordering::Relaxed);
                return;
            }
            self.node.report(&format!(
                "rank {} calls MPI from several threads: the order of their calls cannot be replayed. Let one \
                 thread make all MPI calls, or run with --protocol auto, under which all ranks return to images of \
                 one moment instead",
                self.node.rank
            ));
        }
    }

    #[inline]
    fn count_event(&mut self) {
        if self.deliveries + self.sends >= self.event_at {
            self.event_is_due();
        }
    }

    #[cold]
    fn event_is_due(&mut self) {
        if self.deliveries + self.sends >= self.fault_at {
            self.node.set(control::KILLED_NS, monotonic_ns());
            // SAFETY: the injected fault.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if resurgo_image::is_enabled() {
            resurgo_image::wants_image();
        }
        (self.image_at, self.event_at) = (u64::MAX, self.fault_at);
    }

    /// One completion-queue read that found no finished operation: delivers what has come, or waits a little.
    pub fn poll(&mut self) {
        let _guard = Guard::new();
        self.enter();
        let delivered = self.deliveries;
        if self.memories.is_some() {
            self.poll_served();
        } else if self.protocol.is_some() {
            self.poll_logged();
        } else {
            self.poll_plain();
        }
        self.last_read = ticks();
        // What a program probes for completes nothing.
        if !self.completions.is_empty() || self.deliveries != delivered {
            self.idle_since = self.last_read;
        }
    }

    /// [`poll`](Self::poll) for a program that waits for nothing.
    pub fn look(&mut self) {
        self.last_read = 0;
        self.poll();
    }

    fn poll_plain(&mut self) {
        if self.holds_back {
            self.look_again();
        }
        for attempt in 0..2 {
            for _ in 0..DELIVERIES_A_POLL {
                let Some(source) = self.find_ready() else { break };
                self.deliver(source);
                if !self.completions.is_empty() {
                    return;
                }
            }
            if !self.waiting.is_empty() {
                self.progress_sends();
            }
            if !self.completions.is_empty() || attempt > 0 || !self.wait_if_idle() {
                return;
            }
        }
    }

    fn poll_logged(&mut self) {
        self.pump_logger();
        self.protocol_mut().begin_poll();
        let mut waited = false;
        let mut made = 0;
        while made < DELIVERIES_A_POLL && self.completions.is_empty() {
            match self.protocol_mut().next() {
                Next::Any => {
                    if self.output_gate && !self.output_seen() {
                        return;
                    }
                    match self.find_ready() {
                        Some(source) => {
                            self.deliver(source);
                            made += 1;
                        }
                        None if made == 0 && !waited && self.wait_if_idle() => waited = true,
                        None => return,
                    }
                }
                Next::From(source) => {
                    self.wait_for(source as usize);
                    self.deliver(source as usize);
                    made = 0;
                }
                Next::Nothing => return self.mind_owed_sends(),
                Next::NeedRecord => {
                    let recorded = self.record.read(&self.node).expect("the record holds what was counted");
                    if self.protocol_mut().polls() > recorded.polls {
                        self.reads_differ();
                    }
                    self.protocol_mut().expect(recorded);
                }
            }
        }
    }

    fn protocol_mut(&mut self) -> &mut Pessimistic {
        self.protocol.as_mut().expect("a logging protocol is in use")
    }
}

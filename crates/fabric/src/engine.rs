//! One rank's transport: sends leave through their receiver's carrier, deliveries come from their senders' carriers.
//! The engine asks the protocol before either.
//!
//! Replay rests on two rules. A delivery happens only inside a completion-queue read ([`Engine::poll`]). A send under a
//! logging protocol is finished when the call returns.
//!
//! The engine is made of parts. No part knows another that is not passed to it; work for several is a method of the
//! engine, in a file named after the work.

mod apart;
mod begin;
mod calls;
mod causality;
mod channel_memory;
mod ending;
mod endpoints;
mod exchange;
mod failures;
mod habit;
mod history;
pub mod images;
mod introductions;
mod life;
mod meters;
mod outbox;
mod pace;
mod peers;
mod receiving;
mod recovery;
mod remote;
mod reopening;
mod sending;
mod survey;
#[cfg(test)]
mod tests;
mod tracing;
mod waiting;

use crate::arena::Arena;
use crate::channel_memories::{Arrived, ChannelMemories};
use crate::clock::{monotonic_ns, ticks};
use crate::completion::{Completion, SendContext};
use crate::doorbell;
use crate::event_logger::EventLogger;
use crate::log::{Entry, HeldMark, Progress, Reader};
use crate::lost_reads;
use crate::matching::{Matching, Receive, Unexpected};
use crate::message::{Envelope, Kind, Message, Pieces};
use crate::node::Node;
use crate::ofi::*;
use crate::record::Cursor;
use crate::survivors;
use apart::Apart;
use calls::Calls;
use endpoints::For;
use failures::Failures;
use history::{History, Stable};
use life::{From, Life};
use meters::Meters;
use outbox::Outbox;
use pace::Pace;
use peers::{Carrier, Filling, Incoming, Outgoing, Peers};
use resurgo_image::Guard;
use resurgo_protocol::{Next, Pessimistic, Recorded, Sending};
use resurgo_wire::counters::Cost;
use resurgo_wire::node_memory::{self as nm, control};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use survey::Survey;

/// Most deliveries of one completion-queue read.
const DELIVERIES_A_POLL: usize = 16;
/// Most operations that complete in one read of many in a row: so many does MPICH take at once.
const COMPLETIONS_A_POLL: usize = 8;
/// How long a finished rank waits until the event logger has its last deliveries.
const LAST_WORDS_NS: u64 = 200_000_000;

pub struct Engine {
    pub node: Node,
    /// The MPI library's requests.
    pub calls: Calls,
    /// The ranks that it talks to.
    peers: Peers,
    /// How the order of deliveries becomes stable.
    history: History,
    /// Sends that have not left.
    outbox: Outbox,
    life: Life,
    pace: Pace,
    apart: Apart,
    meters: Meters,
    /// Where the program deals with failures itself.
    failures: Failures,
}

impl Engine {
    /// Takes over the rank's part of the node memory: new in a first life, otherwise as the former life left it.
    pub fn new(node: Node) -> Engine {
        pace::ask_for_short_slices();
        if node.survives {
            survivors::show(&node);
        }
        let mut engine = Engine {
            calls: Calls::new(node.size),
            peers: Peers::new(&node),
            history: History::new(&node),
            outbox: Outbox::default(),
            life: Life::new(&node),
            pace: Pace::new(node.spin_ns),
            apart: Apart::default(),
            meters: Meters::default(),
            failures: Failures::default(),
            node,
        };
        engine.begin(From::FormerLives);
        engine
    }

    /// The endpoint closes: sends reported as finished must leave first.
    pub fn close(&mut self) {
        self.send_deferred();
        resurgo_image::disable();
        let _guard = Guard::new();
        self.enter();
        self.hear_differences();
        self.say_last_words();
        self.outbox.keep_copies();
        if self.node.logs && self.node.returns_together {
            // Its end may be its image: it says what images say.
            self.announce();
            self.note_end();
        }
        // Former lives did more: this life will open another endpoint.
        if !self.life.replaying {
            self.node
                .control(self.node.rank, control::PHASE)
                .store(nm::PHASE_CLOSED, Ordering::Release);
        }
    }

    /// The same at the end of the process, after MPI_Finalize has failed.
    pub fn close_unfinalised(&mut self) {
        self.node.set(control::FINALIZE_FAILED, 1);
        self.close();
    }

    /// The replay may have ended.
    #[inline]
    fn settle(&mut self) {
        if self.life.has_caught_up() {
            self.life.replaying = false;
            self.trace_replay();
            self.hear_differences();
            self.life.enter_phase(&self.node);
        }
    }

    /// Every call of the program passes here: a woken process looks around, and the engine notices threads.
    #[inline]
    fn enter(&mut self) {
        if resurgo_image::take_restored() {
            self.begin(From::FormerLives);
        }
        self.life.called_by(&self.node, resurgo_image::thread_pointer());
    }

    /// One completion-queue read that found no finished operation: delivers messages, or waits a little.
    pub fn poll(&mut self) {
        let _guard = Guard::new();
        self.enter();
        let delivered = self.meters.deliveries;
        if failures::are_news(&self.node, self.failures.heard) && !self.life.replaying {
            self.hear_of_failures();
        }
        self.exchange_if_due();
        self.hear_memories();
        if self.peers.direct.is_some() {
            self.pace.begin_at_sockets();
        }
        if self.life.holds_back {
            self.look_again();
        }
        if self.peers.has_cares() {
            self.peers.care(&self.node);
        }
        if !self.outbox.waiting.is_empty() {
            self.progress_sends();
        }
        if self.failures.heard != 0 && self.calls.completions.is_empty() && survivors::are_on_windows() {
            self.leave_window();
        }
        self.read();
        if let Some(memories) = &mut self.peers.memories {
            // The program sees these deliveries when this read ends.
            memories.say(&self.node);
        }
        let has_delivered = self.meters.deliveries != delivered;
        if has_delivered && self.node.moves && !self.node.piggybacking {
            self.make_stable();
        }
        let found = !self.calls.completions.is_empty() || has_delivered;
        self.pace.has_read(found);
        if self.peers.direct.is_some() {
            self.pace.has_read_sockets(found);
        }
    }

    /// [`poll`](Self::poll) for a program that waits for nothing.
    pub fn look(&mut self) {
        self.pace.forget_reads();
        self.poll();
    }

    /// Whether a read ends that has made so many deliveries. An operation that completes ends it, unless the reads before
    /// found something, too: then messages come faster than the program takes them, and it takes several at once. Chance
    /// decides here, and the record tells which deliveries share a read.
    ///
    /// Where the program deals with failures, MPICH has no remote reads. If it then takes two requests for long answers at
    /// once, it overwrites the header of the second answer.
    #[inline]
    fn has_enough(&self, made: usize) -> bool {
        let most = match self.pace.is_flooded() && !self.node.survives {
            true if made > 0 => COMPLETIONS_A_POLL,
            _ => 1,
        };
        made >= DELIVERIES_A_POLL || self.calls.completions.len() >= most
    }

    #[inline]
    fn read(&mut self) {
        self.life.begin_read();
        let mut waited = false;
        let mut made = 0;
        loop {
            match self.life.next() {
                Next::Any => {
                    if self.has_enough(made) {
                        return;
                    }
                    if self.life.output_gate && !self.life.output_seen(&self.node) {
                        return;
                    }
                    if self.node.survives && survivors::owes_wishes() {
                        return;
                    }
                    match self.find_ready() {
                        Some(source) => {
                            if failures::are_news(&self.node, self.failures.heard) {
                                // Its sender may have heard of them, and have sent what means nothing.
                                self.hear_of_failures();
                                continue;
                            }
                            self.deliver(source);
                            made += 1;
                        }
                        None if made == 0 && !waited && self.wait_if_idle() => {
                            self.pace.waits();
                            waited = true;
                        }
                        None => return,
                    }
                }
                Next::From(source) => {
                    self.wait_for(source as usize);
                    self.deliver(source as usize);
                    made = 0;
                }
                Next::Nothing => {
                    if let Some(owed) = self.life.owes_in_vain(&self.node, self.pace.us(life::OWED_US)) {
                        self.sends_nothing(owed);
                    }
                    return;
                }
                Next::NeedRecord => {
                    let recorded = self.next_recorded();
                    if self.life.protocol().polls() > recorded.polls {
                        self.reads_differ();
                    }
                    self.life.protocol().expect(recorded);
                }
            }
        }
    }
}

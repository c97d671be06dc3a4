//! One rank's transport: sends leave through the carrier of their receiver, deliveries come from those of their senders, and the
//! protocol is asked before either.
//!
//! The two rules on which replay stands: a delivery happens only inside a completion-queue read ([`Engine::poll`]), and a
//! send under a logging protocol is finished when the call returns.
//!
//! The engine is made of parts. None of them knows another that is not handed to it; what needs several is a method of the engine, in
//! the files named after what it does.

mod begin;
mod calls;
mod causality;
mod channel_memory;
mod endpoints;
mod exchange;
mod history;
pub mod images;
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
mod waiting;

use crate::arena::Arena;
use crate::channel_memories::{Arrived, ChannelMemories};
use crate::clock::{monotonic_ns, ticks};
use crate::completion::{Completion, SendContext};
use crate::doorbell;
use crate::event_logger::EventLogger;
use crate::log::{Entry, HeldMark, Progress, Reader};
use crate::matching::{Matching, Receive, Unexpected};
use crate::message::{Envelope, Kind, Message, Pieces};
use crate::node::Node;
use crate::ofi::*;
use crate::record::Cursor;
use calls::Calls;
use endpoints::For;
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

/// Deliveries one completion-queue read makes at most when none of them completes anything.
const DELIVERIES_A_POLL: usize = 16;
/// How long a rank that has finished waits until the event logger has its last deliveries.
const LAST_WORDS_NS: u64 = 200_000_000;

pub struct Engine {
    pub node: Node,
    /// What the MPI library has asked for.
    pub calls: Calls,
    /// Those it talks to.
    peers: Peers,
    /// How the order of deliveries becomes stable.
    history: History,
    /// Sends that have not left.
    outbox: Outbox,
    life: Life,
    pace: Pace,
    meters: Meters,
}

impl Engine {
    /// Takes over the rank's part of the node memory: new in a first life, as the former life left it in a later one.
    pub fn new(node: Node) -> Engine {
        pace::ask_for_short_slices();
        let mut engine = Engine {
            calls: Calls::new(node.size),
            peers: Peers::new(&node),
            history: History::new(&node),
            outbox: Outbox::default(),
            life: Life::new(&node),
            pace: Pace::new(node.spin_ns),
            meters: Meters::default(),
            node,
        };
        engine.begin(From::FormerLives);
        engine
    }

    /// The endpoint is closed: sends that were reported as finished must leave first.
    pub fn close(&mut self) {
        self.send_deferred();
        resurgo_image::disable();
        let _guard = Guard::new();
        self.enter();
        self.hear_differences();
        self.say_last_words();
        self.outbox.keep_copies();
        // Former lives have done more: this one will open another endpoint.
        if !self.life.replaying {
            self.node
                .control(self.node.rank, control::PHASE)
                .store(nm::PHASE_CLOSED, Ordering::Release);
        }
    }

    /// The replay may have ended.
    #[inline]
    fn settle(&mut self) {
        if self.life.has_caught_up() {
            self.life.replaying = false;
            self.hear_differences();
            self.life.enter_phase(&self.node);
        }
    }

    /// Every call of the program passes here: a process that has woken up looks around, and threads are noticed.
    #[inline]
    fn enter(&mut self) {
        if resurgo_image::take_restored() {
            self.begin(From::FormerLives);
        }
        self.life.called_by(&self.node, resurgo_image::thread_pointer());
    }

    /// One completion-queue read that found no finished operation: delivers what has come, or waits a little.
    pub fn poll(&mut self) {
        let _guard = Guard::new();
        self.enter();
        let delivered = self.meters.deliveries;
        self.exchange_if_due();
        self.hear_memories();
        if self.life.holds_back {
            self.look_again();
        }
        if !self.outbox.waiting.is_empty() {
            self.progress_sends();
        }
        self.read();
        if let Some(memories) = &mut self.peers.memories {
            // The program sees what was delivered when this read ends.
            memories.say(&self.node);
        }
        self.pace
            .has_read(!self.calls.completions.is_empty() || self.meters.deliveries != delivered);
    }

    /// [`poll`](Self::poll) for a program that waits for nothing.
    pub fn look(&mut self) {
        self.pace.forget_reads();
        self.poll();
    }

    #[inline]
    fn read(&mut self) {
        self.life.begin_read();
        let mut waited = false;
        let mut made = 0;
        while made < DELIVERIES_A_POLL && self.calls.completions.is_empty() {
            match self.life.next() {
                Next::Any => {
                    if self.life.output_gate && !self.life.output_seen(&self.node) {
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

//! One rank's transport: appends sends to channel logs, takes deliveries from them, and asks the protocol before either.
//!
//! The two rules on which replay stands: a delivery happens only inside a completion-queue read ([`Engine::poll`]), and a
//! send under a logging protocol is finished when the call returns.

use crate::arena::Arena;
use crate::doorbell;
use crate::event_logger::EventLogger;
use crate::log::{Entry, Envelope, HeldMark, Kind, Message, Pieces, Progress, Reader, Writer};
use crate::matching::{Match, Matching, Receive, Unexpected, flags};
use crate::node::Node;
use crate::ofi::*;
use crate::record::Cursor;
use crate::rma::Rma;
use resurgo_protocol::{Next, Pessimistic, Recorded, Sending};
use resurgo_wire::node_memory::{self as nm, control};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// A finished operation, as `fi_cq_read` (error 0) or `fi_cq_readerr` reports it.
#[derive(Clone, Copy)]
pub struct Completion {
    pub entry: FiCqTaggedEntry,
    pub error: c_int,
    /// Bytes that did not fit (FI_ETRUNC).
    pub overflow: usize,
    pub source: u32,
}

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

/// A send that has not found room yet (only without retention).
struct Waiting {
    destination: usize,
    envelope: Envelope,
    iov: Box<[libc::iovec]>,
    /// What `iov` points to when the caller has its memory back already.
    _copy: Box<[u8]>,
    total: usize,
    progress: Progress,
    completion: Option<Completion>,
}

/// What a send reports when it is done.
#[derive(Clone, Copy)]
pub struct SendContext {
    pub context: *mut c_void,
    pub flags: u64,
    /// False: nobody wants to know.
    pub completes: bool,
    /// The memory is the caller's again on return: it cannot wait for room.
    pub inject: bool,
}

/// Deliveries one completion-queue read makes at most when none of them completes anything.
const DELIVERIES_A_POLL: usize = 16;
/// Deliveries from the same channel in a row before others are looked at.
const HOT_RUN: u32 = 16;
/// Two reads are in quick succession when there is no more time between them than a progress loop needs that gives its
/// core to others in every round.
const QUICK_US: u64 = 5;
/// Longest look for news inside one read while the program still polls.
const LOOK_US: u64 = 1;
const SHORT_SLEEP_NS: u64 = 50_000;
const FIRST_SLEEP_NS: u64 = 1_000_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// Changes between threads that call in before a rank counts as one that uses MPI from several threads: handing MPI
/// over from one thread to another once in a while can be replayed, calling it from both cannot.
const THREAD_CHANGES: u32 = 64;

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
    record: Cursor,
    /// Where the log of each channel is compared with what is sent again.
    redo: Vec<Option<Box<Reader>>>,
    /// Where determinants must be before a send leaves, when the loss of a node is tolerated.
    logger: Option<EventLogger>,
    held: VecDeque<(u32, HeldMark)>,
    held_since: u64,
    held_ticks: u64,
    waiting: VecDeque<Waiting>,
    pub matching: Matching,
    pub completions: VecDeque<Completion>,
    pub min_multi_recv: usize,
    pub rma: Rma,
    /// Open endpoints; all are the same to the engine.
    pub endpoints: u32,
    replaying: bool,
    /// The agent has not seen again all that former lives printed: nothing new may be delivered yet.
    output_gate: bool,
    deliveries: u64,
    sends: u64,
    sent_bytes: u64,
    fault_at: u64,
    thread: usize,
    thread_changes: u32,
    ticks_per_us: u64,
    last_read: u64,
    idle_since: u64,
    spin_ticks: u64,
    sleeps: u64,
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Time-stamp counter ticks in a microsecond.
fn measure_ticks() -> u64 {
    let (from_ns, from) = (monotonic_ns(), ticks());
    while monotonic_ns() - from_ns < 50_000 {
        std::hint::spin_loop();
    }
    let (ns, count) = (monotonic_ns() - from_ns, ticks() - from);
    (count * 1000 / ns).max(1)
}

#[inline]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 Linux the first word of the thread control block is its own address.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

impl Engine {
    /// Takes over the rank's part of the node memory: new in a first life, as the former life left it in a later one.
    pub fn new(node: Node) -> Engine {
        let size = node.size;
        let mut arena = Arena::new(&node);
        let mut outgoing: Vec<Option<Box<Writer>>> = (0..size).map(|_| None).collect();
        let mut redo: Vec<Option<Box<Reader>>> = (0..size).map(|_| None).collect();
        let mut record = Cursor::start(&node);
        let mut protocol = None;
        let mut logger = None;
        if node.pessimistic {
            let rank = node.rank as u32;
            let tolerate = if node.tolerate_node {
                resurgo_protocol::Tolerate::Node
            } else {
                resurgo_protocol::Tolerate::Process
            };
            let (sent_before, deliveries) = Self::survey(&node, &mut arena, &mut outgoing, &mut redo);
            node.set(control::REPLAY_DELIVERIES, deliveries);
            let mut recovering = Pessimistic::recovering(rank, size, tolerate, deliveries, sent_before);
            if node.tolerate_node {
                let kept: Vec<Recorded> = std::iter::from_fn(|| record.read(&node)).collect();
                let connection = EventLogger::open(&node, &kept);
                // The record lies in this node's memory: only what the logger holds outlives the node.
                recovering.event_logger_lost();
                recovering.acknowledge(connection.acknowledged());
                logger = Some(connection);
            }
            protocol = Some(recovering);
            record = Cursor::start(&node);
        }
        let replaying = protocol.as_ref().is_some_and(Pessimistic::is_replaying);
        let output_gate = node.control(node.rank, control::OUTPUT_BEHIND).load(Ordering::Acquire) != 0;
        let fault_at = node
            .control(node.rank, control::FAULT_AT_MESSAGES)
            .load(Ordering::Acquire);
        node.control_u32(node.rank, control::SLEEPING)
            .store(0, Ordering::SeqCst);
        let ticks_per_us = measure_ticks();
        let mut engine = Engine {
            arena,
            outgoing,
            incoming: (0..size).map(|_| None).collect(),
            // A former life may have taken ready bits without reading what they announced: look at every channel once.
            ready: (0..size as u32)
                .filter(|&source| node.channel(source as usize, node.rank).load(Ordering::Acquire) != 0)
                .collect(),
            queued: vec![false; size],
            hot: node.rank as u32,
            hot_run: 0,
            protocol,
            record,
            redo,
            logger,
            held: VecDeque::new(),
            held_since: 0,
            held_ticks: 0,
            waiting: VecDeque::new(),
            matching: Matching::default(),
            completions: VecDeque::with_capacity(1024),
            min_multi_recv: 0,
            rma: Rma::default(),
            endpoints: 0,
            replaying,
            output_gate,
            deliveries: 0,
            sends: 0,
            sent_bytes: 0,
            fault_at: if fault_at == 0 { u64::MAX } else { fault_at },
            thread: 0,
            thread_changes: 0,
            ticks_per_us,
            last_read: 0,
            idle_since: 0,
            spin_ticks: ticks_per_us * node.spin_ns / 1000,
            sleeps: 0,
            node,
        };
        for &source in &engine.ready {
            engine.queued[source as usize] = true;
        }
        engine.publish_phase();
        engine
    }

    /// Reads what a former life left in the own arena: how many messages each channel holds and how many deliveries the
    /// record does; puts the writers behind the one and frees segments that were taken but not linked.
    fn survey(
        node: &Node,
        arena: &mut Arena,
        outgoing: &mut [Option<Box<Writer>>],
        redo: &mut [Option<Box<Reader>>],
    ) -> (Vec<u64>, u64) {
        let taken = node.own(nm::arena::SLOTS_TAKEN).load(Ordering::Acquire) as usize;
        let mut linked = vec![false; taken];
        let mut full = Vec::new();
        let mut sent_before = vec![0u64; node.size];
        for destination in 0..node.size {
            if node.channel(node.rank, destination).load(Ordering::Acquire) == 0 {
                continue;
            }
            let mut reader = Reader::new(node.rank, destination);
            let mut last = None;
            while let Some(entry) = reader.peek(node) {
                let position = reader.position();
                if last != Some(position) {
                    full.extend(last.take());
                    last = Some(position);
                }
                if entry.envelope.kind != Kind::More {
                    sent_before[destination] += 1;
                }
                reader.advance(entry.bytes);
            }
            // The walk may have gone on into a segment that is still empty.
            let open = reader.position();
            full.extend(last.filter(|&position| position != open));
            linked[open.1] = true;
            outgoing[destination] = Some(Box::new(Writer::behind(destination, &reader)));
            redo[destination] = Some(Box::new(Reader::new(node.rank, destination)));
        }
        full.retain(|&(serial, slot)| node.serial_in(node.rank, slot).load(Ordering::Relaxed) == serial + 1);
        for &(_, slot) in &full {
            linked[slot] = true;
        }
        Cursor::slots(node, |slot| linked[slot] = true);
        for (slot, linked) in linked.iter().enumerate() {
            if !linked {
                arena.free(slot);
            }
        }
        if node.spill {
            arena.adopt(full);
        }
        let mut deliveries = 0;
        let mut cursor = Cursor::start(node);
        while cursor.read(node).is_some() {
            deliveries += 1;
        }
        (sent_before, deliveries)
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
        while !self.held.is_empty() {
            self.pump_logger();
            if let Some(logger) = &mut self.logger
                && !self.held.is_empty()
            {
                logger.wait(100);
            }
        }
        self.node
            .control_u32(self.node.rank, control::PHASE)
            .store(nm::PHASE_CLOSED, Ordering::Release);
    }

    #[inline]
    fn settle(&mut self) {
        if self.replaying && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_replaying()) {
            self.replaying = false;
            self.publish_phase();
        }
    }

    /// Every call of the program passes here: an injected fault strikes, and threads are noticed.
    #[inline]
    fn enter(&mut self) {
        let thread = thread_pointer();
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
            self.node.report(&format!(
                "rank {} calls MPI from several threads: the order of their calls cannot be replayed. Run it with \
                 --protocol none, or let one thread make all MPI calls",
                self.node.rank
            ));
        }
    }

    #[inline]
    fn count_event(&mut self) {
        if self.deliveries + self.sends >= self.fault_at {
            // SAFETY: the injected fault.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }

    // ---- sending ----

    /// Sends one message. Answers 0 or -FI_EAGAIN (an inject that finds no room, only without retention).
    pub fn send(&mut self, destination: usize, envelope: Envelope, iov: &[libc::iovec], context: SendContext) -> isize {
        self.enter();
        let message = Message {
            envelope,
            iov,
            total: iov.iter().map(|piece| piece.iov_len).sum(),
        };
        let completion = Completion {
            entry: FiCqTaggedEntry {
                op_context: context.context,
                flags: context.flags,
                len: 0,
                buf: std::ptr::null_mut(),
                data: 0,
                tag: 0,
            },
            error: 0,
            overflow: 0,
            source: 0,
        };
        let completion = context.completes.then_some(completion);
        if !self.put(destination, message, completion, context.inject) {
            return -FI_EAGAIN;
        }
        0
    }

    fn put(&mut self, destination: usize, message: Message, completion: Option<Completion>, inject: bool) -> bool {
        let mut progress = Progress::default();
        self.pump_logger();
        match self.protocol.as_mut().map(|protocol| protocol.send(destination as u32)) {
            Some(Sending::Redo { ssn }) => self.redo(destination, ssn, message),
            Some(Sending::Hold { .. }) => {
                let held = self.append(destination, message, &mut progress, true).1;
                if self.held.is_empty() {
                    self.held_since = ticks();
                }
                self.held
                    .push_back((destination as u32, held.expect("the first mark is held")));
            }
            Some(Sending::Now { .. }) => {
                self.append(destination, message, &mut progress, false);
                doorbell::ring(&self.node, destination);
            }
            None => {
                let behind =
                    !self.waiting.is_empty() && self.waiting.iter().any(|send| send.destination == destination);
                let done = if behind {
                    false
                } else if inject && !self.writer_has_room(destination) {
                    return false;
                } else {
                    let done = self.append(destination, message, &mut progress, false).0;
                    if progress.started {
                        doorbell::ring(&self.node, destination);
                    }
                    done
                };
                if !done {
                    if inject && !progress.started {
                        return false;
                    }
                    self.queue(destination, message, progress, completion, inject);
                    self.count_send(message.total);
                    return true;
                }
            }
        }
        self.count_send(message.total);
        self.completions.extend(completion);
        self.settle();
        true
    }

    /// Exchanges with the event logger, if there is one and some delivery is not acknowledged; sends that waited for it
    /// leave.
    #[inline]
    fn pump_logger(&mut self) {
        if self.logger.as_ref().is_some_and(EventLogger::is_behind) {
            self.exchange();
        }
    }

    #[cold]
    fn exchange(&mut self) {
        let (Some(logger), Some(protocol)) = (&mut self.logger, &mut self.protocol) else {
            return;
        };
        logger.pump(&self.node);
        protocol.acknowledge(logger.acknowledged());
        while protocol.release().is_some() {
            let (destination, mark) = self
                .held
                .pop_front()
                .expect("the protocol and the queue hold the same sends");
            mark.publish();
            doorbell::ring(&self.node, destination as usize);
            if self.held.is_empty() {
                self.held_ticks += ticks() - self.held_since;
                self.node
                    .set(control::HELD_NS, self.held_ticks * 1000 / self.ticks_per_us);
            }
        }
    }

    #[inline]
    fn count_send(&mut self, total: usize) {
        self.sends += 1;
        self.sent_bytes += total as u64;
        self.node.set(control::SENDS, self.sends);
        self.node.set(control::SENT_BYTES, self.sent_bytes);
        self.count_event();
    }

    fn writer_has_room(&mut self, destination: usize) -> bool {
        let writer = self.outgoing[destination].get_or_insert_with(|| Box::new(Writer::new(destination)));
        writer.has_room(&mut self.arena, &self.node)
    }

    fn append(
        &mut self,
        destination: usize,
        message: Message,
        progress: &mut Progress,
        hold: bool,
    ) -> (bool, Option<HeldMark>) {
        let writer = self.outgoing[destination].get_or_insert_with(|| Box::new(Writer::new(destination)));
        writer.append(&mut self.arena, &self.node, message, progress, hold)
    }

    #[cold]
    fn queue(
        &mut self,
        destination: usize,
        message: Message,
        progress: Progress,
        completion: Option<Completion>,
        inject: bool,
    ) {
        let Message { envelope, total, .. } = message;
        let mut iov: Box<[libc::iovec]> = message.iov.into();
        let mut copy = Box::default();
        if inject {
            // The caller takes its memory back. Injected messages are small.
            copy = vec![0u8; total].into_boxed_slice();
            Pieces::new(&iov).copy_all(&mut copy);
            iov = Box::new([libc::iovec {
                iov_base: copy.as_mut_ptr().cast(),
                iov_len: total,
            }]);
        }
        self.waiting.push_back(Waiting {
            destination,
            envelope,
            iov,
            _copy: copy,
            total,
            progress,
            completion,
        });
    }

    /// Goes on with sends that had found no room.
    fn progress_sends(&mut self) {
        let mut blocked: Vec<usize> = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() {
            let destination = self.waiting[index].destination;
            if blocked.contains(&destination) {
                index += 1;
                continue;
            }
            let mut send = self.waiting.remove(index).expect("index is in range");
            let before = send.progress.done;
            let iov = std::mem::take(&mut send.iov);
            let message = Message {
                envelope: send.envelope,
                iov: &iov,
                total: send.total,
            };
            let done = self.append(destination, message, &mut send.progress, false).0;
            if send.progress.done > before || done {
                doorbell::ring(&self.node, destination);
            }
            if done {
                self.completions.extend(send.completion);
            } else {
                send.iov = iov;
                self.waiting.insert(index, send);
                blocked.push(destination);
                index += 1;
            }
        }
    }

    /// A send that a former life made: must be the same, byte for byte.
    #[cold]
    fn redo(&mut self, destination: usize, ssn: u64, message: Message) {
        let mut reader = self.redo[destination]
            .take()
            .expect("a channel with sends to redo has a log");
        let mut pieces = Pieces::new(message.iov);
        let first = reader.peek(&self.node).expect("the log holds every send to redo");
        if first.envelope != message.envelope {
            self.diverged(destination, ssn, first, message, "its envelope");
        }
        if first.total != message.total as u64 {
            self.diverged(destination, ssn, first, message, "its length");
        }
        let mut progress = Progress { done: 0, started: true };
        let mut entry = Some(first);
        while let Some(piece) = entry {
            if !reader.payload_equals(&mut pieces, piece.bytes) {
                self.diverged(destination, ssn, first, message, "its bytes");
            }
            reader.advance(piece.bytes);
            progress.done += piece.bytes;
            entry = if progress.done < message.total {
                reader.peek(&self.node)
            } else {
                None
            };
        }
        if progress.done < message.total {
            // The former life was killed in the middle of this message: its receiver may be waiting for the rest.
            self.append(destination, message, &mut progress, false);
        }
        self.redo[destination] = Some(reader);
        doorbell::ring(&self.node, destination);
    }

    fn diverged(&self, destination: usize, ssn: u64, before: Entry, now: Message, what: &str) -> ! {
        let describe = |envelope: Envelope, bytes: u64| match envelope.kind {
            Kind::Tagged => {
                format!(
                    "tag {} ({bytes} bytes, match bits {:#x})",
                    envelope.tag & 0x7fff_ffff,
                    envelope.tag
                )
            }
            _ => format!("no tag, an internal message of MPI ({bytes} bytes)"),
        };
        self.node.report(&format!(
            "the program is not piecewise deterministic: in its replay rank {} sent something else to rank {destination} as \
             send number {ssn}; {what} differs: before the failure {}, now {}. Messages must not depend on measured time, \
             unseeded random numbers, process ids or several threads calling MPI; find the source of that message, or run \
             with --protocol none",
            self.node.rank,
            describe(before.envelope, before.total),
            describe(now.envelope, now.total as u64),
        ));
    }

    // ---- receiving ----

    /// Posts a receive; a message that already waits for it is taken at once.
    pub fn receive(&mut self, receive: Receive, tagged: bool) {
        self.enter();
        let mut receive = receive;
        while let Some(message) = self.matching.take(&receive, tagged) {
            if receive.multi.is_none() {
                self.give(message, receive);
                return;
            }
            // A multi-receive buffer takes everything that waits, as long as there is room.
            let part = receive.part(message.total, self.min_multi_recv);
            let last = part.last_of_multi;
            self.give(message, part);
            if last {
                return;
            }
        }
        self.matching.post(receive, tagged);
    }

    /// Hands a message that came early to its receive, now or when its last piece is there.
    pub fn give(&mut self, mut message: Box<Unexpected>, receive: Receive) {
        if !message.complete() {
            message.taken_by = Some(receive);
            // Its channel still points to it and gives it on when it is complete.
            Box::leak(message);
            return;
        }
        let total = message.total;
        receive.room.fill(0, total, |from, to, bytes| {
            // SAFETY: `fill` keeps to the receive's memory, `from + bytes` to the message's.
            unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr().add(from), to, bytes) };
        });
        self.received(&receive, message.envelope, total, message.source);
    }

    fn received(&mut self, receive: &Receive, envelope: Envelope, total: usize, source: u32) {
        let room = receive.room.bytes();
        let overflow = total.saturating_sub(room);
        if !receive.completes && overflow == 0 {
            return;
        }
        self.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: receive.context,
                flags: flags(envelope) | if receive.last_of_multi { FI_MULTI_RECV } else { 0 },
                len: total.min(room),
                buf: receive.room.start(),
                data: envelope.data,
                tag: if envelope.kind == Kind::Tagged { envelope.tag } else { 0 },
            },
            error: if overflow > 0 { FI_ETRUNC } else { 0 },
            overflow,
            source,
        });
    }

    /// Takes back a receive; it completes with FI_ECANCELED.
    pub fn cancel(&mut self, context: *mut c_void) -> isize {
        self.enter();
        let Some((receive, tagged)) = self.matching.cancel(context) else {
            return -FI_ENOENT;
        };
        self.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: receive.context,
                flags: FI_RECV | if tagged { FI_TAGGED } else { FI_MSG },
                len: 0,
                buf: receive.room.start(),
                data: 0,
                tag: receive.tag,
            },
            error: FI_ECANCELED,
            overflow: 0,
            source: 0,
        });
        0
    }

    /// One completion-queue read that found no finished operation: delivers what has come, or waits a little.
    pub fn poll(&mut self) {
        self.enter();
        if self.protocol.is_some() {
            self.poll_logged();
        } else {
            self.poll_plain();
        }
        self.last_read = ticks();
        if !self.completions.is_empty() {
            self.idle_since = self.last_read;
        }
    }

    fn poll_plain(&mut self) {
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
                Next::Nothing => return,
                Next::NeedRecord => {
                    let recorded = self.record.read(&self.node).expect("the record holds what was counted");
                    self.protocol_mut().expect(recorded);
                }
            }
        }
    }

    fn protocol_mut(&mut self) -> &mut Pessimistic {
        self.protocol.as_mut().expect("a logging protocol is in use")
    }

    #[cold]
    fn output_seen(&mut self) -> bool {
        if self
            .node
            .control(self.node.rank, control::OUTPUT_BEHIND)
            .load(Ordering::Acquire)
            == 0
        {
            self.output_gate = false;
            return true;
        }
        // The program may not have printed it yet: let it run on, slowly.
        doorbell::sleep(&self.node, 100_000, || false);
        false
    }

    fn incoming(&mut self, source: usize) -> &mut Incoming {
        let rank = self.node.rank;
        self.incoming[source].get_or_insert_with(|| {
            Box::new(Incoming {
                reader: Reader::new(source, rank),
                filling: Filling::Nothing,
            })
        })
    }

    fn has_entry(&mut self, source: usize) -> bool {
        let mut incoming = self.incoming[source].take();
        let found = match &mut incoming {
            Some(incoming) => incoming.reader.peek(&self.node).is_some(),
            None => false,
        };
        self.incoming[source] = incoming;
        found
    }

    /// A channel that has something to deliver: the one of the last delivery first, then those that rang, in turn.
    fn find_ready(&mut self) -> Option<usize> {
        let hot = self.hot as usize;
        if self.hot_run < HOT_RUN && self.has_entry(hot) {
            self.hot_run += 1;
            return Some(hot);
        }
        let (ready, queued) = (&mut self.ready, &mut self.queued);
        doorbell::take_ready(&self.node, |source| {
            if !std::mem::replace(&mut queued[source], true) {
                ready.push_back(source as u32);
            }
        });
        self.hot_run = 0;
        while let Some(source) = self.ready.pop_front() {
            self.incoming(source as usize);
            if self.has_entry(source as usize) {
                self.ready.push_back(source);
                self.hot = source;
                return Some(source as usize);
            }
            self.queued[source as usize] = false;
        }
        self.has_entry(hot).then_some(hot)
    }

    /// Takes the next entry of a channel.
    fn deliver(&mut self, source: usize) {
        let mut incoming = self.incoming[source]
            .take()
            .expect("a channel with an entry has a reader");
        let entry = incoming.reader.peek(&self.node).expect("the channel has an entry");
        if entry.envelope.kind == Kind::More {
            self.go_on(&mut incoming, source, entry);
        } else {
            self.count_delivery(source as u32);
            self.begin(&mut incoming, source, entry);
            // Under a logging protocol a message is delivered whole: when its pieces become visible depends on time.
            while self.protocol.is_some() && !matches!(incoming.filling, Filling::Nothing) {
                match incoming.reader.peek(&self.node) {
                    Some(piece) => self.go_on(&mut incoming, source, piece),
                    None => {
                        self.pump_logger();
                        self.pause_for(&mut incoming);
                    }
                }
            }
        }
        self.incoming[source] = Some(incoming);
    }

    #[inline]
    fn count_delivery(&mut self, source: u32) {
        if let Some(protocol) = &mut self.protocol {
            let (determinant, new) = protocol.deliver(source);
            if new {
                let recorded = Recorded {
                    source,
                    polls: determinant.polls,
                };
                self.record.write(&self.node, &mut self.arena, recorded);
                if let Some(logger) = &mut self.logger {
                    logger.log(recorded);
                }
            }
        }
        if self.deliveries == 0 {
            self.node.set(control::FIRST_DELIVERY_NS, monotonic_ns());
        }
        self.deliveries += 1;
        self.node.set(control::DELIVERIES, self.deliveries);
        self.count_event();
        if self.replaying && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_replaying()) {
            // Behind the last recorded delivery: the record goes on where reading it ended.
            self.settle();
        }
    }

    fn begin(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
        let (envelope, total) = (entry.envelope, entry.total as usize);
        incoming.filling = match envelope.kind {
            Kind::Tagged | Kind::Untagged => {
                match self
                    .matching
                    .arrive(source as u32, envelope, total, self.min_multi_recv)
                {
                    Match::Receive(receive) => Filling::Receive {
                        receive,
                        envelope,
                        total,
                        done: 0,
                    },
                    Match::None => {
                        let mut message = Box::new(Unexpected {
                            source: source as u32,
                            envelope,
                            total,
                            arrived: 0,
                            bytes: Vec::with_capacity(total),
                            taken_by: None,
                            claimed_by: std::ptr::null_mut(),
                        });
                        let place: *mut Unexpected = &mut *message;
                        self.matching.keep(message);
                        Filling::Unexpected(place)
                    }
                }
            }
            Kind::ReadAnswer | Kind::WriteDone => Filling::Answer {
                operation: envelope.tag,
                total,
                done: 0,
            },
            _ => Filling::Rma {
                envelope,
                total,
                bytes: Vec::with_capacity(total),
            },
        };
        self.go_on(incoming, source, entry);
    }

    /// Copies one piece to where the message goes, and finishes the message with its last.
    fn go_on(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
        let bytes = entry.bytes;
        let reader = &mut incoming.reader;
        let node = &self.node;
        let complete = match &mut incoming.filling {
            Filling::Nothing => unreachable!("a further piece follows its first"),
            Filling::Receive {
                receive, total, done, ..
            } => {
                receive.room.fill(*done, bytes, |from, to, run| {
                    // SAFETY: `fill` keeps to the receive's memory and to the entry's bytes.
                    unsafe { reader.copy_payload(node, from, to, run) };
                });
                *done += bytes;
                *done == *total
            }
            Filling::Unexpected(message) => {
                // SAFETY: the message lives in the matching queues, among the claimed ones, or leaked with `taken_by`,
                // until its last piece is there; boxed, so that its place does not change.
                let message = unsafe { &mut **message };
                // SAFETY: the capacity is the whole message's.
                unsafe {
                    reader.copy_payload(node, 0, message.bytes.as_mut_ptr().add(message.arrived), bytes);
                    message.arrived += bytes;
                    message.bytes.set_len(message.arrived);
                }
                message.complete()
            }
            Filling::Answer { operation, total, done } => {
                self.rma.room(*operation).fill(*done, bytes, |from, to, run| {
                    // SAFETY: `fill` keeps to the operation's memory and to the entry's bytes.
                    unsafe { reader.copy_payload(node, from, to, run) };
                });
                *done += bytes;
                *done == *total
            }
            Filling::Rma {
                total, bytes: gathered, ..
            } => {
                let done = gathered.len();
                // SAFETY: the capacity is the whole message's.
                unsafe {
                    reader.copy_payload(node, 0, gathered.as_mut_ptr().add(done), bytes);
                    gathered.set_len(done + bytes);
                }
                done + bytes == *total
            }
        };
        reader.advance(bytes);
        if !complete {
            return;
        }
        match std::mem::replace(&mut incoming.filling, Filling::Nothing) {
            Filling::Nothing => unreachable!("something was filled"),
            Filling::Receive {
                receive,
                envelope,
                total,
                ..
            } => {
                self.received(&receive, envelope, total, source as u32);
            }
            Filling::Unexpected(message) => {
                // SAFETY: as above.
                if let Some(receive) = unsafe { (*message).taken_by.take() } {
                    // SAFETY: leaked by `give` when the receive took it.
                    self.give(unsafe { Box::from_raw(message) }, receive);
                }
            }
            Filling::Answer { operation, total, .. } => crate::rma::finish(self, source, operation, total),
            Filling::Rma { envelope, bytes, .. } => crate::rma::serve(self, source, envelope, bytes),
        }
    }

    // ---- waiting ----

    /// True: waited inside this read, look again.
    ///
    /// Reads that follow one another quickly and find nothing come from a program that waits. It polls for as long as
    /// `--spin` says and then gives its core away, never for longer than it has polled in vain: a program that does a
    /// little work between its polls is slowed down by a factor of two at most.
    fn wait_if_idle(&mut self) -> bool {
        let now = ticks();
        if now.wrapping_sub(self.last_read) > self.ticks_per_us * QUICK_US {
            self.idle_since = now;
            return false;
        }
        let idle = now - self.idle_since;
        if !self.held.is_empty() {
            // Own sends wait for the event logger, and others for them: its answer is what to wait for.
            if idle > self.spin_ticks
                && let Some(logger) = &mut self.logger
            {
                logger.wait(1);
            }
            return false;
        }
        if idle < self.spin_ticks {
            // A round through the MPI library's own wait loop costs more than looking again here.
            let until = now + idle.min(self.ticks_per_us * LOOK_US);
            while ticks() < until {
                if self.has_entry(self.hot as usize) || doorbell::any_ready(&self.node) {
                    return true;
                }
                std::hint::spin_loop();
            }
            return false;
        }
        let idle_ns = idle * 1000 / self.ticks_per_us;
        // Another thread of this process may want MPI's lock: do not sleep on it for long.
        let longest = if self.thread_changes > 0 {
            SHORT_SLEEP_NS
        } else {
            LONGEST_SLEEP_NS
        };
        self.doze(idle_ns.clamp(SHORT_SLEEP_NS, longest));
        if !self.waiting.is_empty() {
            self.progress_sends();
        }
        true
    }

    fn doze(&mut self, longest_ns: u64) {
        self.sleeps += 1;
        self.node.set(control::SLEEPS, self.sleeps);
        let hot = self.hot as usize;
        let mut incoming = self.incoming[hot].take();
        let node = &self.node;
        doorbell::sleep(node, longest_ns, || {
            doorbell::any_ready(node)
                || incoming
                    .as_mut()
                    .is_some_and(|incoming| incoming.reader.peek(node).is_some())
        });
        self.incoming[hot] = incoming;
    }

    /// Waits until channel `source` has an entry: the record says that the next delivery is from there.
    fn wait_for(&mut self, source: usize) {
        self.incoming(source);
        if self.has_entry(source) {
            return;
        }
        let mut incoming = self.incoming[source].take().expect("made above");
        while incoming.reader.peek(&self.node).is_none() {
            self.pump_logger();
            self.pause_for(&mut incoming);
        }
        self.incoming[source] = Some(incoming);
    }

    /// Spins and then sleeps until the channel has another entry, or a while has passed.
    fn pause_for(&mut self, incoming: &mut Incoming) {
        let until = ticks() + self.spin_ticks;
        while ticks() < until {
            if incoming.reader.peek(&self.node).is_some() {
                return;
            }
            std::hint::spin_loop();
        }
        let node = &self.node;
        doorbell::sleep(node, FIRST_SLEEP_NS, || incoming.reader.peek(node).is_some());
    }
}

//! Sends: appends to a channel's log, and the steps when a message may not leave yet.

use super::*;
use crate::log;
use crate::trace;

/// How long a rank with a full log waits for images of others.
const ROOM_PATIENCE_NS: u64 = 10_000_000_000;
/// How long a rank that leaves MPI sleeps between two looks at its deferred messages.
const LOOK_NS: u64 = 1_000_000;

/// The outcome of a send.
pub(super) enum Fate {
    /// The message is where its receiver finds it.
    Gone,
    /// So much of it is; the rest waits for room.
    Waits(Progress),
    /// There was no room, and it cannot wait.
    Refused,
}

impl Engine {
    /// Sends one message. Returns 0 or -FI_EAGAIN (an inject without room, only without retention).
    pub fn send(&mut self, destination: usize, envelope: Envelope, iov: &[libc::iovec], context: SendContext) -> isize {
        if self.calls.endpoints.some_are_new {
            self.say_endpoint(destination);
        }
        let mut guard = Guard::new();
        self.enter();
        if self.is_not_sent(destination, envelope.tag) {
            self.calls.completions.extend(context.completion());
            return 0;
        }
        let message = Message {
            envelope,
            iov,
            total: iov.iter().map(|piece| piece.iov_len).sum(),
            piggyback: &[],
        };
        let mut waiting_since = 0;
        while !self.has_room(destination, message.total) {
            // The message has changed nothing yet, so this rank can have an image, too.
            drop(guard);
            self.wait_for_room(&mut waiting_since, destination, message.total);
            guard = Guard::new();
            self.enter();
        }
        match self.put(destination, message, context.completion(), context.inject) {
            true => 0,
            false => -FI_EAGAIN,
        }
    }

    pub(super) fn put(
        &mut self,
        destination: usize,
        message: Message,
        completion: Option<Completion>,
        inject: bool,
    ) -> bool {
        self.exchange_if_due();
        if self.node.in_groups && !self.node.passes(destination) {
            return self.defer(destination, message, completion, inject);
        }
        let sending = self.number(destination);
        let is_repeated = matches!(sending, Some(Sending::Redo { .. }));
        // Its receiver may have it before this rank can note it.
        let time = trace::moment();
        let fate = match self.peers.outgoing(&self.node, destination) {
            Outgoing::SharedLog(_) => self.put_into_log(destination, sending, message, inject),
            Outgoing::Memory => self.put_into_memory(destination, sending, message),
        };
        if time > 0 {
            let has_begun = !matches!(&fate, Fate::Waits(progress) if !progress.started);
            self.trace_send(time, destination, &message, has_begun, is_repeated);
        }
        match fate {
            Fate::Gone => self.calls.completions.extend(completion),
            Fate::Waits(progress) => self.outbox.queue(destination, message, progress, completion, inject),
            Fate::Refused => return false,
        }
        self.count_send(destination, message.total);
        self.settle();
        true
    }

    /// The protocol's number for the next message to `destination`; None: nothing is repeated.
    #[inline]
    fn number(&mut self, destination: usize) -> Option<Sending> {
        let protocol = self.life.protocol.as_mut()?;
        let reads = protocol.polls();
        let sending = protocol.send(destination as u32);
        if !matches!(sending, Sending::Redo { .. }) {
            self.node.set(control::READS_AT_SEND, reads + 1);
        }
        Some(sending)
    }

    /// The log is the transmission: a message in it is sent.
    #[inline]
    fn put_into_log(&mut self, destination: usize, sending: Option<Sending>, message: Message, inject: bool) -> Fate {
        let mut progress = Progress::default();
        let done = match sending {
            None => {
                let waits = self.outbox.is_before(destination) || inject && !self.writer_has_room(destination);
                !waits && self.append(destination, message, &mut progress, false).0
            }
            Some(sending) if self.node.is_inside(destination) => {
                self.note_inside(destination, sending);
                self.append(destination, message, &mut progress, false).0
            }
            Some(Sending::Redo { ssn }) => {
                self.redo(destination, ssn, message);
                return Fate::Gone;
            }
            Some(Sending::Hold { .. }) => {
                let held = self.append(destination, message, &mut progress, true).1;
                let mark = held.expect("the first mark is held");
                self.outbox.hold(&self.node, destination, mark);
                return Fate::Gone;
            }
            Some(Sending::Now { .. }) if self.history.is_causal() => {
                self.append_with_piggyback(destination, message, &mut progress, false)
            }
            Some(Sending::Now { .. }) => self.append(destination, message, &mut progress, false).0,
        };
        if progress.started {
            self.peers.ring(&self.node, destination);
        }
        match done {
            true => Fate::Gone,
            false if inject && !progress.started => Fate::Refused,
            false => Fate::Waits(progress),
        }
    }

    /// With what it carries under causal logging; `again`: a former life has sent it.
    pub(super) fn append_with_piggyback(
        &mut self,
        destination: usize,
        message: Message,
        progress: &mut Progress,
        again: bool,
    ) -> bool {
        let rclock = self.life.protocol().rclock();
        let Some(causality) = self.history.causality() else {
            return self.append(destination, message, progress, false).0;
        };
        let piggyback = causality.piggyback(&self.node, &self.pace, destination, rclock, again);
        let message = Message {
            piggyback: &piggyback,
            ..message
        };
        let done = self.append(destination, message, progress, false).0;
        if let Some(causality) = self.history.causality() {
            causality.keep_room(piggyback);
        }
        done
    }

    /// A send inside the group. The log no longer has those of former lives. Their number must outlive the log, so it
    /// is noted before the receiver can have the message.
    fn note_inside(&mut self, destination: usize, sending: Sending) {
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        let sent_ever = self.node.announced(self.node.rank, destination);
        if ssn > sent_ever.load(Ordering::Relaxed) {
            sent_ever.store(ssn, Ordering::Release);
        }
        if matches!(sending, Sending::Now { .. }) && self.life.protocol().is_replaying() {
            // All sends before those still to be repeated were visible.
            self.sent_more(destination);
        }
    }

    #[inline]
    fn count_send(&mut self, destination: usize, total: usize) {
        self.meters.sent(&self.node, total);
        if self.node.is_elsewhere(destination) {
            self.node.add(Cost::RemoteMessages, 1);
            self.node.add(Cost::RemoteBytes, total as u64);
        }
        self.life.count(&self.node, self.meters.messages());
    }

    fn writer_has_room(&mut self, destination: usize) -> bool {
        let (log, arena) = self.peers.log(&self.node, destination);
        log.writer.has_room(arena, &self.node)
    }

    pub(super) fn append(
        &mut self,
        destination: usize,
        message: Message,
        progress: &mut Progress,
        hold: bool,
    ) -> (bool, Option<HeldMark>) {
        let (log, arena) = self.peers.log(&self.node, destination);
        let (done, held) = log.writer.append(arena, &self.node, message, progress, hold);
        if self.node.in_groups {
            // Counts sends per destination, for forming groups.
            self.node.sent(destination).store(log.writer.begun(), Ordering::Relaxed);
        }
        if !done && self.life.protocol.is_some() {
            // An answer sent in the middle of a delivery, or by a rank that repeats its sends.
            Arena::report_full(&self.node);
        }
        (done, held)
    }

    /// Whether the log has room for a whole message, if need be after forgetting unneeded parts. A receiver that waits for
    /// the rest of a message cannot have an image. Repeated sends need no room.
    #[inline]
    fn has_room(&mut self, destination: usize, bytes: usize) -> bool {
        let bytes = bytes + self.history.causality().map_or(0, |causality| causality.most_bytes());
        let needed = self.segments_for(destination, bytes);
        let compared = self.life.replaying && !self.node.is_inside(destination);
        needed == 0 || self.peers.arena.has(&self.node, needed) || compared || self.forget_for(needed)
    }

    /// Segments that a message of `bytes` may need besides the open one of its channel.
    #[inline]
    fn segments_for(&self, destination: usize, bytes: usize) -> usize {
        let writer = self.peers.writer(destination);
        writer.map_or_else(|| log::segments_for(bytes), |writer| writer.segments_for(bytes))
    }

    #[cold]
    fn forget_for(&mut self, segments: usize) -> bool {
        self.peers.reclaim(&self.node);
        self.peers.arena.has(&self.node, segments)
    }

    /// The log is full: waits a little for images of the ranks that receive from this one, and in the end gives up.
    #[cold]
    fn wait_for_room(&mut self, since_ns: &mut u64, destination: usize, bytes: usize) {
        let now = monotonic_ns();
        if *since_ns == 0 {
            *since_ns = now;
        }
        let needed = self.segments_for(destination, bytes);
        let never = !resurgo_image::is_enabled() || !Arena::could_have(&self.node, needed);
        if never || now - *since_ns > ROOM_PATIENCE_NS {
            Arena::report_full(&self.node);
        }
        self.peers.arena.call_for_images();
        doorbell::sleep(&self.node, 1_000_000, || false);
    }

    /// Continues sends that had no room, or were deferred.
    pub(super) fn progress_sends(&mut self) {
        let mut blocked: Vec<usize> = Vec::new();
        let mut index = 0;
        while index < self.outbox.waiting.len() {
            let destination = self.outbox.waiting[index].destination;
            let passes = !self.node.in_groups || self.node.passes(destination);
            if !passes && !blocked.contains(&destination) {
                // It may pass from now on; later ones must not overtake this one.
                blocked.push(destination);
            }
            if blocked.contains(&destination) {
                index += 1;
                continue;
            }
            let mut send = self.outbox.waiting.remove(index).expect("index is in range");
            let before = send.progress;
            let mut progress = before;
            let done = self.append(destination, send.message(), &mut progress, false).0;
            send.progress = progress;
            if progress.done > before.done || done {
                self.peers.ring(&self.node, destination);
            }
            if done {
                self.calls.completions.extend(send.completion);
                if send.deferred_at > 0 {
                    self.outbox.has_left(&self.node, &self.pace, &send);
                }
            } else {
                self.outbox.waiting.insert(index, send);
                blocked.push(destination);
                index += 1;
            }
        }
    }

    /// A message that may not leave now, in a wave of groups. False: it can neither be copied nor wait.
    #[cold]
    fn defer(&mut self, destination: usize, message: Message, completion: Option<Completion>, inject: bool) -> bool {
        let deferred = self.outbox.defer(&self.node, destination, message, completion, inject);
        let Ok(now) = deferred else { return false };
        self.trace_send(trace::moment(), destination, &message, false, false);
        self.calls.completions.extend(now);
        self.count_send(destination, message.total);
        true
    }

    /// Publishes how many messages went to each rank, in an emptied node memory.
    pub(super) fn show_sent(&self) {
        for destination in 0..self.node.size {
            if let Some(writer) = self.peers.writer(destination) {
                self.node.sent(destination).store(writer.begun(), Ordering::Relaxed);
            }
        }
    }

    /// The rank leaves MPI: messages that the program takes for sent must leave. It may be part of a wave meanwhile.
    pub(super) fn send_deferred(&mut self) {
        while self.outbox.has_buffered() {
            let guard = Guard::new();
            self.enter();
            self.progress_sends();
            let node = &self.node;
            // A rank that has left MPI takes no more.
            let phase = |rank: usize| node.control(rank, control::PHASE).load(Ordering::Acquire);
            let is_left = self.outbox.keep_for(node, |rank| phase(rank) != nm::PHASE_CLOSED);
            drop(guard);
            if is_left {
                doorbell::sleep(&self.node, LOOK_NS, || false);
            }
        }
    }
}

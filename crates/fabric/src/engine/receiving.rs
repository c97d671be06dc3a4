//! Deliveries and receives: messages taken from their carriers, matched, and copied to where they belong.

use super::*;
use crate::matching::Match;
use crate::trace;

impl Engine {
    /// Posts a receive, which takes a waiting message at once.
    pub fn receive(&mut self, receive: Receive, tagged: bool) {
        let _guard = Guard::new();
        self.enter();
        match self.node.survives {
            false => self.calls.receive(receive, tagged),
            true => self.receive_or_end(receive, tagged),
        }
    }

    /// Cancels a receive; it completes with FI_ECANCELED.
    pub fn cancel(&mut self, context: *mut c_void) -> isize {
        let _guard = Guard::new();
        self.enter();
        self.calls.cancel(context)
    }

    /// Whether the channel from `source` has a message that may be delivered.
    #[inline]
    pub(super) fn has_entry(&mut self, source: usize) -> bool {
        if self.is_lost_on(source) {
            // Its node may be lost, and with it a part of what it sent.
            return false;
        }
        let Some(incoming) = &mut self.peers.incoming[source] else {
            return false;
        };
        let Some(entry) = incoming.carrier.peek(&self.node) else {
            return false;
        };
        if !self.node.waves_pass {
            return true;
        }
        let may = self.life.cut.may_deliver(entry.mark, self.node.waves());
        self.life.holds_back |= !may;
        may
    }

    /// Messages were held back: once they need not be, looks at every channel.
    #[cold]
    pub(super) fn look_again(&mut self) {
        let waves = self.node.waves();
        if self.life.cut.wave() >= waves.asked || waves.over >= waves.asked {
            self.life.holds_back = false;
            self.peers.ready.look_at_all(&self.node);
        }
    }

    /// A peer with a message that can be delivered now.
    #[inline]
    pub(super) fn find_ready(&mut self) -> Option<usize> {
        if self.peers.memories.is_some() {
            return self.find_served();
        }
        let hot = self.peers.ready.hot;
        if self.peers.ready.stays() && self.has_entry(hot) {
            self.peers.ready.stayed();
            return Some(hot);
        }
        self.peers.receive(&self.node);
        self.peers.ready.hear(&self.node);
        while let Some(source) = self.peers.ready.next() {
            self.peers.incoming(&self.node, source);
            if self.has_entry(source) {
                self.peers.ready.found(source);
                return Some(source);
            }
        }
        self.has_entry(hot).then_some(hot)
    }

    /// Takes the next entry from `source`.
    pub(super) fn deliver(&mut self, source: usize) {
        let incoming = self.peers.incoming[source].take();
        let mut incoming = incoming.expect("a channel with an entry has a reader");
        let entry = incoming.carrier.peek(&self.node).expect("the channel has an entry");
        if entry.envelope.kind == Kind::More {
            self.go_on(&mut incoming, source, entry);
        } else {
            self.count_delivery(&mut incoming.carrier, source, &entry);
            self.begin_message(&mut incoming, source, entry);
            // Under a logging protocol a delivery is of a whole message: when its pieces become visible depends on
            // time.
            while self.life.protocol.is_some() && !matches!(incoming.filling, Filling::Nothing) {
                match incoming.carrier.peek(&self.node) {
                    Some(piece) => self.go_on(&mut incoming, source, piece),
                    None if self.is_cut_off(&mut incoming.carrier, source) => break,
                    None => {
                        self.exchange_if_due();
                        self.pause_for(&mut incoming.carrier, source);
                    }
                }
            }
        }
        if self.history.is_causal() && !self.node.moves {
            // The rank has taken in, and knows, what is before this.
            let place = self.node.consumed(source, self.node.rank);
            let reached = incoming.carrier.log().map_or(0, Reader::reached);
            place.store(reached, Ordering::Release);
        }
        self.peers.incoming[source] = Some(incoming);
    }

    /// The rest of a message will not come: its sender has failed, and the program is told of that. Then it is buried with
    /// half a message.
    fn is_cut_off(&self, carrier: &mut Carrier, source: usize) -> bool {
        self.node.survives
            && self.node.control(source, control::BURIED).load(Ordering::Acquire) != 0
            && carrier.peek(&self.node).is_none()
    }

    /// A message is delivered: before a send can depend on it, notes its place in the order.
    #[inline]
    fn count_delivery(&mut self, carrier: &mut Carrier, source: usize, entry: &Entry) {
        match &self.life.protocol {
            Some(_) => self.note_delivery(carrier, source, entry),
            None => self.peers.taken[source] += 1,
        }
        self.meters.delivered(&self.node, entry.total);
        let time = trace::now();
        if time > 0 {
            self.trace_delivery(time, source, entry);
        }
        self.life.count(&self.node, self.meters.messages());
        if self.life.replaying {
            let protocol = self.life.protocol();
            if protocol.rclock() == protocol.recorded() {
                self.node.set(control::REPLAYED_NS, monotonic_ns());
            }
            // Behind the last recorded delivery: the record continues where reading it ended.
            self.settle();
        }
    }

    /// The same where a later life repeats it.
    #[inline]
    fn note_delivery(&mut self, carrier: &mut Carrier, source: usize, entry: &Entry) {
        let node = &self.node;
        let clock = match (&mut self.history.stable, carrier) {
            (Stable::Causal(causality, _), Carrier::SharedLog(reader)) => {
                causality.take_in(node, &self.pace, reader, source, entry)
            }
            _ => 0,
        };
        // Logs tell whether a message is the same again, but inside a group.
        let stamp = if node.is_inside(source) { entry.stamp() } else { 0 };
        let (determinant, is_new) = self.life.protocol().deliver(source as u32);
        let antecedent = match self.history.causality() {
            Some(causality) => causality.deliver(node, &determinant, clock),
            None => 0,
        };
        if is_new {
            match (&self.history.stable, &mut self.peers.memories) {
                (Stable::Reported, Some(memories)) => memories.report(determinant.rclock, determinant.polls),
                _ => self
                    .history
                    .write(node, &mut self.peers.arena, &determinant, stamp, antecedent),
            }
        } else if self.history.record.stamp() != stamp {
            self.sent_other(source, "something else");
        }
    }

    /// The first entry of a message: finds its destination.
    fn begin_message(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
        let (envelope, total) = (entry.envelope, entry.total as usize);
        let later = match self.calls.endpoints.hear(source, envelope) {
            For::This => None,
            For::Later(number) => Some(number),
            For::None => {
                incoming.filling = Filling::Dropped { total, done: 0 };
                return self.go_on(incoming, source, entry);
            }
        };
        incoming.filling = match envelope.kind {
            Kind::Tagged | Kind::Untagged => {
                let met = match later {
                    None => self.calls.arrive(source as u32, envelope, total),
                    Some(_) => Match::None,
                };
                match met {
                    Match::Receive(receive) => Filling::Receive {
                        receive,
                        envelope,
                        total,
                        done: 0,
                    },
                    Match::None => {
                        let bytes = incoming.carrier.keep(total);
                        let mut message = Box::new(Unexpected {
                            source: source as u32,
                            envelope,
                            total,
                            arrived: bytes.len(),
                            bytes,
                            taken_by: None,
                            claimed_by: std::ptr::null_mut(),
                        });
                        let place: *mut Unexpected = &mut *message;
                        match later {
                            None => self.calls.matching.keep(message),
                            Some(number) => self.keep_early(number, message),
                        }
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
                bytes: incoming.carrier.keep(total),
            },
        };
        self.go_on(incoming, source, entry);
    }

    /// Copies one piece to its destination, and ends the message with its last piece.
    fn go_on(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
        let bytes = entry.bytes;
        let carrier = &mut incoming.carrier;
        let node = &self.node;
        let complete = match &mut incoming.filling {
            Filling::Nothing => unreachable!("a further piece follows its first"),
            Filling::Receive {
                receive, total, done, ..
            } => {
                receive.room.fill(*done, bytes, |from, to, run| {
                    // SAFETY: `fill` keeps to the receive's memory and to the entry's bytes.
                    unsafe { carrier.copy(node, from, to, run) };
                });
                *done += bytes;
                *done == *total
            }
            Filling::Unexpected(message) => {
                // SAFETY: the message lives in the matching queues, among the claimed ones, or leaked with `taken_by`,
                // until its last piece is there; boxed, so its place is fixed.
                let message = unsafe { &mut **message };
                // The part that the carrier gave away is there already.
                if !message.complete() {
                    // SAFETY: the capacity is the whole message's.
                    unsafe {
                        carrier.copy(node, 0, message.bytes.as_mut_ptr().add(message.arrived), bytes);
                        message.arrived += bytes;
                        message.bytes.set_len(message.arrived);
                    }
                }
                message.complete()
            }
            Filling::Dropped { total, done } => {
                *done += bytes;
                *done == *total
            }
            Filling::Answer { operation, total, done } => {
                self.calls.rma.room(*operation).fill(*done, bytes, |from, to, run| {
                    // SAFETY: `fill` keeps to the operation's memory and to the entry's bytes.
                    unsafe { carrier.copy(node, from, to, run) };
                });
                *done += bytes;
                *done == *total
            }
            Filling::Rma {
                total, bytes: gathered, ..
            } => {
                let done = gathered.len();
                if done < *total {
                    // SAFETY: the capacity is the whole message's.
                    unsafe {
                        carrier.copy(node, 0, gathered.as_mut_ptr().add(done), bytes);
                        gathered.set_len(done + bytes);
                    }
                }
                gathered.len() == *total
            }
        };
        carrier.advance(bytes);
        if complete {
            let filled = std::mem::replace(&mut incoming.filling, Filling::Nothing);
            self.end_message(source, filled);
        }
    }

    /// All pieces of a message are where they belong.
    #[inline]
    fn end_message(&mut self, source: usize, filled: Filling) {
        match filled {
            Filling::Nothing => unreachable!("something was filled"),
            Filling::Dropped { .. } => {}
            Filling::Receive {
                receive,
                envelope,
                total,
                ..
            } => {
                self.calls.received(&receive, envelope, total, source as u32);
            }
            Filling::Unexpected(message) => {
                // SAFETY: it lives until its last piece is there, which is now: see `go_on`.
                if let Some(receive) = unsafe { (*message).taken_by.take() } {
                    // SAFETY: leaked by `give` when the receive took it.
                    self.calls.give(unsafe { Box::from_raw(message) }, receive);
                }
            }
            Filling::Answer { operation, total, .. } => {
                let done = self.calls.rma.finish(source, operation, total);
                self.calls.completions.extend(done);
            }
            Filling::Rma { envelope, bytes, .. } => self.serve(source, envelope, bytes),
        }
    }
}

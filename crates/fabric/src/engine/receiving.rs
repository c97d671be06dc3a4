//! Deliveries and receives: messages taken from channels, matched, and copied to where they belong.

use super::reopening::For;
use super::*;
use crate::matching::{Match, Unexpected, flags};

impl Engine {
    /// Posts a receive; a message that already waits for it is taken at once.
    pub fn receive(&mut self, receive: Receive, tagged: bool) {
        let _guard = Guard::new();
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

    pub(super) fn received(&mut self, receive: &Receive, envelope: Envelope, total: usize, source: u32) {
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
        let _guard = Guard::new();
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

    pub(super) fn incoming(&mut self, source: usize) -> &mut Incoming {
        let rank = self.node.rank;
        self.incoming[source].get_or_insert_with(|| {
            Box::new(Incoming {
                reader: Reader::new(source, rank),
                filling: Filling::Nothing,
            })
        })
    }

    pub(super) fn has_entry(&mut self, source: usize) -> bool {
        let mut incoming = self.incoming[source].take();
        let found = match &mut incoming {
            Some(incoming) => match incoming.reader.peek(&self.node) {
                Some(entry) => !self.node.chandy_lamport || self.may_deliver(entry.mark),
                None => false,
            },
            None => false,
        };
        self.incoming[source] = incoming;
        found
    }

    #[inline]
    fn may_deliver(&mut self, mark: u16) -> bool {
        let may = self.cut.may_deliver(mark, self.node.waves());
        self.holds_back |= !may;
        may
    }

    /// Messages were held back: when they need not be any more, every channel is looked at.
    #[cold]
    pub(super) fn look_again(&mut self) {
        let waves = self.node.waves();
        if self.cut.wave() >= waves.asked || waves.over >= waves.asked {
            self.holds_back = false;
            self.look_at_all();
        }
    }

    pub(super) fn look_at_all(&mut self) {
        self.ready = channels_with_entries(&self.node);
        self.queued.fill(false);
        for &source in &self.ready {
            self.queued[source as usize] = true;
        }
    }

    /// A channel that has something to deliver: the one of the last delivery first, then those that rang, in turn.
    pub(super) fn find_ready(&mut self) -> Option<usize> {
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
    pub(super) fn deliver(&mut self, source: usize) {
        let mut incoming = self.incoming[source]
            .take()
            .expect("a channel with an entry has a reader");
        let entry = incoming.reader.peek(&self.node).expect("the channel has an entry");
        if entry.envelope.kind == Kind::More {
            self.go_on(&mut incoming, source, entry);
        } else {
            let clock = self.take_in(&mut incoming.reader, source, &entry);
            let inside = self.node.is_inside(source);
            let stamp = if inside { entry.stamp() } else { 0 };
            self.count_delivery(source as u32, entry.total, stamp, clock);
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
        if self.causality.is_some() {
            // What is before this has been taken in, and is known.
            let place = self.node.consumed(source, self.node.rank);
            place.store(incoming.reader.reached(), Ordering::Release);
        }
        self.incoming[source] = Some(incoming);
    }

    /// `stamp`: of what came from inside the group; 0 where logs tell whether it is the same again. `clock`: deliveries that the
    /// sender had made, where that matters.
    #[inline]
    pub(super) fn count_delivery(&mut self, source: u32, bytes: u64, stamp: u64, clock: u64) {
        if let Some(protocol) = &mut self.protocol {
            let (determinant, new) = protocol.deliver(source);
            let antecedent = match &mut self.causality {
                Some(causality) => causality.deliver(&self.node, &determinant, clock),
                None => 0,
            };
            if let Some(memories) = self.memories.as_mut().filter(|_| new) {
                memories.report(determinant.rclock, determinant.polls);
            } else if new {
                let recorded = Recorded {
                    source,
                    polls: determinant.polls,
                };
                self.record.write(&self.node, &mut self.arena, recorded, stamp);
                if let Some(logger) = &mut self.logger {
                    logger.log((recorded, antecedent));
                }
            }
            if !new && self.record.stamp() != stamp {
                self.sent_other(source as usize, "something else");
            }
        } else {
            self.taken[source as usize] += 1;
        }
        if !std::mem::replace(&mut self.has_delivered, true) {
            self.node.set(control::FIRST_DELIVERY_NS, monotonic_ns());
        }
        self.deliveries += 1;
        self.delivered_bytes += bytes;
        self.node.set(control::DELIVERIES, self.deliveries);
        self.node.set(control::DELIVERED_BYTES, self.delivered_bytes);
        self.count_event();
        if self.replaying
            && self
                .protocol
                .as_ref()
                .is_some_and(|protocol| protocol.rclock() == protocol.recorded())
        {
            self.node.set(control::REPLAYED_NS, monotonic_ns());
        }
        if self.replaying && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_replaying()) {
            // Behind the last recorded delivery: the record goes on where reading it ended.
            self.settle();
        }
    }

    pub(super) fn begin(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
        let (envelope, total) = (entry.envelope, entry.total as usize);
        let later = match self.is_for(source, envelope) {
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
                    None => self
                        .matching
                        .arrive(source as u32, envelope, total, self.min_multi_recv),
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
                        match later {
                            None => self.matching.keep(message),
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
                bytes: Vec::with_capacity(total),
            },
        };
        self.go_on(incoming, source, entry);
    }

    /// Copies one piece to where the message goes, and finishes the message with its last.
    pub(super) fn go_on(&mut self, incoming: &mut Incoming, source: usize, entry: Entry) {
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
            Filling::Dropped { total, done } => {
                *done += bytes;
                *done == *total
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
            Filling::Dropped { .. } => {}
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
}

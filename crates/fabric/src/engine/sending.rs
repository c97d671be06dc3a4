//! Sends: appended to a channel's log, and what happens when one may not leave yet.

use super::*;
use crate::channel_memories::STANDSTILL_NS;
use crate::log;

/// How long a rank whose log is full waits for images of others.
const ROOM_PATIENCE_NS: u64 = 10_000_000_000;

impl Engine {
    /// Sends one message. Answers 0 or -FI_EAGAIN (an inject that finds no room, only without retention).
    pub fn send(&mut self, destination: usize, envelope: Envelope, iov: &[libc::iovec], context: SendContext) -> isize {
        if self.numbers.some_are_new {
            self.say_endpoint(destination);
        }
        let mut guard = Guard::new();
        self.enter();
        let message = Message {
            envelope,
            iov,
            total: iov.iter().map(|piece| piece.iov_len).sum(),
            piggyback: &[],
        };
        let mut waiting_since = 0;
        while !self.has_room(destination, message.total) {
            // Nothing has been done for this message yet, so that this rank can have an image, too.
            drop(guard);
            self.wait_for_room(&mut waiting_since, destination, message.total);
            guard = Guard::new();
            self.enter();
        }
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

    pub(super) fn put(
        &mut self,
        destination: usize,
        message: Message,
        completion: Option<Completion>,
        inject: bool,
    ) -> bool {
        if self.memories.is_some() {
            self.put_into_memory(destination, message, completion);
            return true;
        }
        let mut progress = Progress::default();
        self.pump_logger();
        let sending = self.protocol.is_some().then(|| self.number(destination));
        if let Some(sending) = sending
            && self.node.is_inside(destination)
        {
            return self.put_inside(destination, sending, message, completion);
        }
        match sending {
            Some(Sending::Redo { ssn }) => self.redo(destination, ssn, message),
            Some(Sending::Hold { .. }) => {
                let held = self.append(destination, message, &mut progress, true).1;
                self.held
                    .push_back((destination as u32, held.expect("the first mark is held"), ticks()));
                self.held_so_far += 1;
                if self.held.len() == 1 {
                    self.show_held();
                }
            }
            Some(Sending::Now { .. }) if self.causality.is_some() => {
                let piggyback = self.piggyback(destination);
                let message = Message {
                    piggyback: &piggyback,
                    ..message
                };
                self.append(destination, message, &mut progress, false);
                doorbell::ring(&self.node, destination);
                self.keep_room(piggyback);
            }
            Some(Sending::Now { .. }) => {
                self.append(destination, message, &mut progress, false);
                doorbell::ring(&self.node, destination);
            }
            None if self.node.in_groups && !self.node.passes(destination) => {
                return self.defer(destination, message, completion, inject);
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

    /// Under a logging protocol: what becomes of the next message to `destination`.
    #[inline]
    pub(super) fn number(&mut self, destination: usize) -> Sending {
        let protocol = self.protocol_mut();
        let reads = protocol.polls();
        let sending = protocol.send(destination as u32);
        if !matches!(sending, Sending::Redo { .. }) {
            self.node.set(control::READS_AT_SEND, reads + 1);
        }
        sending
    }

    /// A send inside the group. Those of former lives are not in the log any more; how many there were must outlive it, and so is
    /// noted before the receiver can have the message.
    fn put_inside(
        &mut self,
        destination: usize,
        sending: Sending,
        message: Message,
        completion: Option<Completion>,
    ) -> bool {
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        let sent_ever = self.node.announced(self.node.rank, destination);
        if ssn > sent_ever.load(Ordering::Relaxed) {
            sent_ever.store(ssn, Ordering::Release);
        }
        let is_new = matches!(sending, Sending::Now { .. });
        if is_new && self.protocol.as_ref().is_some_and(Pessimistic::is_replaying) {
            // All that was sent before what is still to be repeated has been visible.
            self.sent_more(destination);
        }
        self.append(destination, message, &mut Progress::default(), false);
        doorbell::ring(&self.node, destination);
        self.count_send(message.total);
        self.completions.extend(completion);
        self.settle();
        true
    }

    /// Exchanges with the event logger, if there is one and some delivery is not acknowledged; sends that waited for it
    /// leave.
    #[inline]
    pub(super) fn pump_logger(&mut self) {
        let is_behind = match &self.logger {
            Some(logger) => logger.is_behind(),
            None => self.causality.is_some(),
        };
        if is_behind && self.may_exchange() {
            self.exchange();
        }
    }

    #[cold]
    pub(super) fn exchange(&mut self) {
        if let Some(causality) = &mut self.causality {
            causality.hear_images(&self.node);
        }
        let (Some(logger), Some(protocol)) = (&mut self.logger, &mut self.protocol) else {
            return;
        };
        let news = logger.pump(&self.node);
        if news.replaced {
            protocol.event_logger_lost();
            protocol.acknowledge(self.node.covered(self.node.rank));
        }
        if let Some(above) = news.wanted_above {
            let made = protocol.rclock().max(protocol.recorded());
            if above > made {
                self.node.report(&format!(
                    "the event logger holds {above} deliveries of rank {}, which has made {made}",
                    self.node.rank
                ));
            }
            let records = Cursor::read_above(&self.node, above);
            logger.log_again(match &self.causality {
                Some(causality) => causality.to_log(above, &records),
                None => records.into_iter().map(|record| (record, 0)).collect(),
            });
            logger.pump(&self.node);
        }
        match &mut self.causality {
            Some(causality) => causality.hear(&self.node, logger, &news.clocks),
            None => protocol.acknowledge(logger.acknowledged()),
        }
        let held = self.held.len();
        while protocol.release().is_some() {
            let (destination, mark, since) = self
                .held
                .pop_front()
                .expect("the protocol and the queue hold the same sends");
            mark.publish();
            doorbell::ring(&self.node, destination as usize);
            let held_ns = (ticks() - since) * 1000 / self.ticks_per_us;
            self.node.add(Cost::HeldSends, 1);
            self.node.add(Cost::HeldNs, held_ns);
            self.node.most(Cost::MostHeldNs, held_ns);
        }
        if self.held.len() < held {
            self.show_held();
        }
    }

    /// So that the agent can make this rank go on with them when it computes.
    pub(super) fn show_held(&self) {
        let held = self.held.len() as u64;
        self.node
            .set(control::HELD, if held == 0 { 0 } else { 1 + self.held_so_far - held });
    }

    /// The rank stands still for an image, which must not have sends that are held, nor deliveries that could be lost.
    pub(super) fn wait_until_stable(&mut self) {
        let since = monotonic_ns();
        while self.causality.is_none() && monotonic_ns() - since < STANDSTILL_NS {
            self.exchange();
            match &self.logger {
                Some(logger) if logger.is_behind() => logger.wait(1),
                _ => return,
            }
        }
    }

    #[inline]
    pub(super) fn count_send(&mut self, total: usize) {
        self.sends += 1;
        let class = counters::class(total);
        let [messages, bytes] = &mut self.sizes[class];
        *messages += 1;
        *bytes += total as u64;
        self.show_sizes(class);
        self.count_event();
    }

    #[inline]
    pub(super) fn show_sizes(&self, class: usize) {
        let place = control::SIZES + class * size_of::<[u64; 2]>();
        let [messages, bytes] = self.sizes[class];
        self.node.set(place, messages);
        self.node.set(place + size_of::<u64>(), bytes);
    }

    pub(super) fn writer_has_room(&mut self, destination: usize) -> bool {
        let writer = self.outgoing[destination].get_or_insert_with(|| Box::new(Writer::new(destination)));
        writer.has_room(&mut self.arena, &self.node)
    }

    pub(super) fn append(
        &mut self,
        destination: usize,
        message: Message,
        progress: &mut Progress,
        hold: bool,
    ) -> (bool, Option<HeldMark>) {
        let writer = self.outgoing[destination].get_or_insert_with(|| Box::new(Writer::new(destination)));
        let (done, held) = writer.append(&mut self.arena, &self.node, message, progress, hold);
        if self.node.in_groups {
            // Who talks to whom.
            self.node.sent(destination).store(writer.begun(), Ordering::Relaxed);
        }
        if !done && self.protocol.is_some() {
            // An answer that is sent in the middle of a delivery, or by a rank that repeats its sends.
            Arena::report_full(&self.node);
        }
        (done, held)
    }

    /// Whether the log has room for a whole message (a receiver that waits for the rest of one cannot have an image), if need
    /// be after forgetting what nobody needs any more. What is sent again needs no room.
    #[inline]
    fn has_room(&mut self, destination: usize, bytes: usize) -> bool {
        let bytes = bytes + self.causality.as_ref().map_or(0, |causality| causality.most_bytes());
        let needed = self.segments_for(destination, bytes);
        let compared = self.replaying && !self.node.is_inside(destination);
        needed == 0 || self.arena.has(&self.node, needed) || compared || self.forget_for(needed)
    }

    /// Segments that a message of `bytes` may need besides the open one of its channel.
    #[inline]
    fn segments_for(&self, destination: usize, bytes: usize) -> usize {
        let writer = self.outgoing[destination].as_deref();
        writer.map_or_else(|| log::segments_for(bytes), |writer| writer.segments_for(bytes))
    }

    #[cold]
    fn forget_for(&mut self, segments: usize) -> bool {
        let (arena, node) = (&mut self.arena, &self.node);
        let writers = self.outgoing.iter_mut().flatten();
        writers.for_each(|writer| writer.reclaim(arena, node));
        self.arena.has(&self.node, segments)
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
        self.arena.call_for_images();
        doorbell::sleep(&self.node, 1_000_000, || false);
    }

    #[cold]
    pub(super) fn queue(
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
            Pieces::new(&iov).copy_next(&mut copy);
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
            deferred_at: 0,
            buffered: false,
        });
    }

    /// Goes on with sends that had found no room, or have been deferred.
    pub(super) fn progress_sends(&mut self) {
        let mut blocked: Vec<usize> = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() {
            let destination = self.waiting[index].destination;
            if blocked.contains(&destination) {
                index += 1;
                continue;
            }
            if self.node.in_groups && !self.node.passes(destination) {
                // It may pass from now on; what comes behind this one must not be earlier.
                blocked.push(destination);
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
                piggyback: &[],
            };
            let done = self.append(destination, message, &mut send.progress, false).0;
            if send.progress.done > before || done {
                doorbell::ring(&self.node, destination);
            }
            if done {
                self.completions.extend(send.completion);
                if send.deferred_at > 0 {
                    self.has_left(&send);
                }
            } else {
                send.iov = iov;
                self.waiting.insert(index, send);
                blocked.push(destination);
                index += 1;
            }
        }
    }
}

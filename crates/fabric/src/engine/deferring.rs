//! Messages that must not pass now because of a wave of groups (Gao 2007, §4.3): small ones are copied into a buffer, and their
//! sends are over; large ones stay with the program, and their sends are not.

use super::*;

/// How long a rank that leaves MPI sleeps until it looks again whether its deferred messages may leave.
const LOOK_NS: u64 = 1_000_000;

impl Engine {
    /// A message that may not leave now. False: it can neither be copied nor wait.
    #[cold]
    pub(super) fn defer(
        &mut self,
        destination: usize,
        message: Message,
        completion: Option<Completion>,
        inject: bool,
    ) -> bool {
        let total = message.total;
        let buffered = self.buffer.takes(total);
        if inject && !buffered {
            return false;
        }
        let mut later = completion;
        if buffered {
            self.buffer.add(total);
            self.completions.extend(later.take());
        }
        self.queue(destination, message, Progress::default(), later, buffered);
        if let Some(send) = self.waiting.back_mut() {
            send.buffered = buffered;
            send.deferred_at = ticks();
        }
        self.show_buffer();
        self.count_send(total);
        true
    }

    /// A deferred message has left.
    #[cold]
    pub(super) fn has_left(&mut self, send: &Waiting) {
        if send.buffered {
            self.buffer.remove(send.total);
            self.show_buffer();
        }
        let held_ns = ticks().saturating_sub(send.deferred_at) * 1000 / self.ticks_per_us;
        self.node.add(Cost::HeldSends, 1);
        self.node.add(Cost::HeldNs, held_ns);
        self.node.most(Cost::MostHeldNs, held_ns);
    }

    /// How many messages have been sent to whom, in a node memory that was emptied.
    pub(super) fn show_sent(&self) {
        for (destination, writer) in self.outgoing.iter().enumerate() {
            if let Some(writer) = writer {
                self.node.sent(destination).store(writer.begun(), Ordering::Relaxed);
            }
        }
    }

    pub(super) fn show_buffer(&self) {
        self.node.set(control::BUFFERED, self.buffer.messages() as u64);
    }

    /// MPI is being left: what the program takes for sent must leave. It may be part of a wave meanwhile.
    pub(super) fn send_deferred(&mut self) {
        while self.buffer.messages() > 0 {
            let guard = Guard::new();
            self.enter();
            self.progress_sends();
            let node = &self.node;
            // Who has left MPI takes nothing more.
            let phase = |rank: usize| node.control_u32(rank, control::PHASE).load(Ordering::Acquire);
            self.waiting
                .retain(|send| !send.buffered || phase(send.destination) != nm::PHASE_CLOSED);
            let buffered = self.waiting.iter().any(|send| send.buffered);
            drop(guard);
            if !buffered {
                self.buffer = Buffer::default();
                return self.show_buffer();
            }
            doorbell::sleep(&self.node, LOOK_NS, || false);
        }
    }
}

//! One life of a rank: what it has to repeat, what it may not do yet, and which faults strike it.

use crate::clock::{monotonic_ns, ticks};
use crate::node::Node;
use resurgo_protocol::chandy_lamport::Cut;
use resurgo_protocol::{Next, Pessimistic, Tolerate};
use resurgo_wire::node_memory::{self as nm, control};
use std::sync::atomic::Ordering;

/// Changes of the calling thread after which a rank counts as one with several MPI threads. Handing MPI over once in
/// a while can be replayed, alternating calls cannot.
const THREAD_CHANGES: u32 = 64;
/// A new life counts as not repeating its sends after this many times the reads of the former life, and after this
/// long. How often it reads depends on the machine, too, when it waits for other things than messages.
const OWED_READS: u64 = 100;
pub const OWED_US: u64 = 5_000_000;

/// Where a life goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At this engine's state, the beginning of the program or an image: it repeats what former lives did since.
    FormerLives,
    /// At an image of a wave to which all other ranks return: nothing later counts.
    Wave,
}

pub struct Life {
    /// Counts and replays, where a life can begin alone.
    pub protocol: Option<Pessimistic>,
    pub replaying: bool,
    /// The agent has not seen all output of former lives again: the life may make no new delivery yet.
    pub output_gate: bool,
    /// Its part in waves that stop no rank.
    pub cut: Cut,
    /// Some channel has a message from behind a cut that this rank has not reached.
    pub holds_back: bool,
    /// Waits in the replay so far.
    pub waits: u32,
    /// While only sends are left to repeat: how many, and the ticks since when.
    owed: (u64, u64),
    thread: usize,
    thread_changes: u32,
    /// Messages before a fault strikes, before the rank wants an image, and the lesser of both.
    fault_at: u64,
    image_at: u64,
    event_at: u64,
}

impl Life {
    /// A life that has done nothing.
    pub fn new(node: &Node) -> Life {
        let tolerate = match node.logs && node.tolerate_node && !node.piggybacking {
            true => Tolerate::Node,
            false => Tolerate::Process,
        };
        let rank = node.rank as u32;
        Life {
            protocol: node.replays().then(|| Pessimistic::new(rank, node.size, tolerate)),
            replaying: false,
            output_gate: false,
            cut: Cut::default(),
            holds_back: false,
            waits: 0,
            owed: (0, 0),
            thread: 0,
            thread_changes: 0,
            fault_at: u64::MAX,
            image_at: u64::MAX,
            event_at: u64::MAX,
        }
    }

    /// It begins, or goes on from an image at which it had sent and delivered so many messages.
    pub fn begin(&mut self, node: &Node, messages: u64) {
        self.replaying = self.protocol.as_ref().is_some_and(Pessimistic::is_replaying);
        let behind = node.control(node.rank, control::OUTPUT_BEHIND).load(Ordering::Acquire);
        self.output_gate = self.protocol.is_some() && behind != 0;
        self.owed = (0, 0);
        self.fault_at = node.fault_at();
        self.image_at = match node.image_at() {
            reached if reached <= messages => u64::MAX,
            messages => messages,
        };
        self.event_at = self.fault_at.min(self.image_at);
    }

    /// Publishes its state.
    pub fn show(&self, node: &Node) {
        let phase = match self.replaying {
            true => nm::PHASE_REPLAY,
            false => nm::PHASE_LIVE,
        };
        node.control(node.rank, control::PHASE).store(phase, Ordering::Release);
    }

    /// The same, when it has reached this state by itself.
    pub fn enter_phase(&self, node: &Node) {
        if !self.replaying {
            node.set(control::CAUGHT_UP_NS, monotonic_ns());
        }
        self.show(node);
    }

    #[inline]
    pub fn protocol(&mut self) -> &mut Pessimistic {
        self.protocol.as_mut().expect("a protocol that replays is in use")
    }

    /// A completion-queue read begins.
    #[inline]
    pub fn begin_read(&mut self) {
        if let Some(protocol) = &mut self.protocol {
            protocol.begin_poll();
        }
    }

    /// What it may deliver next.
    #[inline]
    pub fn next(&self) -> Next {
        self.protocol.as_ref().map_or(Next::Any, Pessimistic::next)
    }

    /// Nothing is left to repeat.
    #[inline]
    pub fn has_caught_up(&self) -> bool {
        self.replaying && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_replaying())
    }

    /// Whether the agent has yet to see output of former lives again.
    pub fn awaits_output(&mut self, node: &Node) -> bool {
        self.output_gate &= node.control(node.rank, control::OUTPUT_BEHIND).load(Ordering::Acquire) != 0;
        self.output_gate
    }

    /// Whether the agent has seen all of it, after a short wait if it has not.
    #[cold]
    pub fn output_seen(&mut self, node: &Node) -> bool {
        if !self.awaits_output(node) {
            return true;
        }
        node.set(control::OUTPUT_AWAITED, 1);
        // The program may not have printed it yet: lets it run on, slowly.
        crate::doorbell::sleep(node, 100_000, || false);
        false
    }

    /// A read delivers nothing while sends of a former life are still to be repeated: that life needed no delivery for
    /// them. A program that reads on, far more often than before, waits for one. Returns how many sends it owes then.
    /// `patience`: the ticks of [`OWED_US`].
    pub fn owes_in_vain(&mut self, node: &Node, patience: u64) -> Option<u64> {
        let (owed, reads) = (self.protocol().owed(), self.protocol().polls());
        if owed == 0 {
            return None;
        }
        let now = ticks();
        if self.owed.0 != owed {
            self.owed = (owed, now);
        }
        let formerly = node.control(node.rank, control::READS_AT_SEND).load(Ordering::Acquire);
        let is_vain = formerly > 0 && reads > OWED_READS * (formerly + 10) && now - self.owed.1 > patience;
        is_vain.then_some(owed)
    }

    /// Another thread of the program may call MPI.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.thread_changes > 0
    }

    /// This thread of the program calls.
    #[inline]
    pub fn called_by(&mut self, node: &Node, thread: usize) {
        if thread != self.thread {
            self.thread_changed(node, thread);
        }
    }

    #[cold]
    fn thread_changed(&mut self, node: &Node, thread: usize) {
        self.thread_changes += (self.thread != 0) as u32;
        self.thread = thread;
        let threads = node.control(node.rank, control::THREADS);
        if self.thread_changes == 1 {
            threads.store(2, Ordering::Relaxed);
        }
        if self.thread_changes > THREAD_CHANGES && self.protocol.is_some() {
            // Or others are told of its failure.
            if node.returns_together || node.survives {
                return threads.store(nm::MANY_THREADS, Ordering::Relaxed);
            }
            node.report(&format!(
                "rank {} calls MPI from several threads: the order of their calls cannot be replayed. Let one \
                 thread make all MPI calls, or run with --protocol auto, under which all ranks return to images of \
                 one moment instead",
                node.rank
            ));
        }
    }

    /// The rank has sent and delivered so many messages: an injected fault may strike, or an image be due.
    #[inline]
    pub fn count(&mut self, node: &Node, messages: u64) {
        if messages >= self.event_at {
            self.event_is_due(node, messages);
        }
    }

    #[cold]
    fn event_is_due(&mut self, node: &Node, messages: u64) {
        if messages >= self.fault_at {
            node.set(control::KILLED_NS, monotonic_ns());
            // SAFETY: the injected fault.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if resurgo_image::is_enabled() {
            resurgo_image::wants_image();
        }
        (self.image_at, self.event_at) = (u64::MAX, self.fault_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    #[test]
    fn a_life_repeats_what_its_protocol_says_and_waits_for_its_output() {
        let (node, _other) = pair(1, true);
        let mut life = Life::new(&node);
        node.set(control::OUTPUT_BEHIND, 1);
        life.protocol().restored(0, vec![0, 3]);
        life.begin(&node, 0);
        assert!(life.replaying && life.output_gate && !life.has_caught_up());
        life.show(&node);
        let phase = || node.control(0, control::PHASE).load(Ordering::Relaxed);
        assert_eq!(phase(), nm::PHASE_REPLAY);
        (0..3).for_each(|_| _ = life.protocol().send(1));
        assert!(life.has_caught_up());
        assert!(!life.output_seen(&node));
        node.set(control::OUTPUT_BEHIND, 0);
        assert!(life.output_seen(&node) && !life.output_gate);
        life.begin(&node, 0);
        life.show(&node);
        assert_eq!(phase(), nm::PHASE_LIVE);
    }

    #[test]
    fn sends_that_are_owed_are_given_up_after_many_reads_and_a_while() {
        let (node, _other) = pair(1, true);
        let mut life = Life::new(&node);
        life.protocol().restored(0, vec![0, 2]);
        node.set(control::READS_AT_SEND, 1);
        (0..OWED_READS * 11).for_each(|_| life.protocol().begin_poll());
        assert_eq!(life.owes_in_vain(&node, 0), None, "not so many reads");
        life.protocol().begin_poll();
        assert_eq!(life.owes_in_vain(&node, u64::MAX / 2), None, "not so long");
        assert_eq!(life.owes_in_vain(&node, 0), Some(2));
        _ = life.protocol().send(1);
        assert_eq!(life.owes_in_vain(&node, u64::MAX / 2), None, "one has been repeated");
    }

    #[test]
    fn an_image_is_wanted_once_and_not_again_behind_it() {
        let (node, _other) = pair(1, true);
        node.set(control::IMAGE_AT_MESSAGES, 5);
        let mut life = Life::new(&node);
        life.begin(&node, 0);
        assert_eq!(life.event_at, 5);
        life.count(&node, 5);
        assert_eq!(life.event_at, u64::MAX);
        life.begin(&node, 5);
        assert_eq!(life.event_at, u64::MAX);
    }
}

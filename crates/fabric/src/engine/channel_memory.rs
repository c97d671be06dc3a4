//! The data path under channel-memory: all messages go to the receivers' channel memories, and come from the rank's own
//! one, in the order that it decides.

use super::sending::Fate;
use super::*;
use crate::channel_memories::Diverged;

/// Longest sleep in a replay before looking again.
const LONGEST_WAIT_NS: u64 = 100_000_000;

impl Engine {
    fn memories(&mut self) -> &mut ChannelMemories {
        self.peers.memories.as_mut().expect("there are channel memories")
    }

    /// A life connects to the channel memories, which serve it the messages after its deliveries. Returns how many
    /// deliveries to repeat.
    pub(super) fn join(&mut self) -> u64 {
        if let Some(former) = self.peers.memories.take() {
            former.abandon();
        }
        let protocol = self.life.protocol();
        let delivered = protocol.rclock();
        let joined = ChannelMemories::join(&self.node, delivered);
        protocol.restored(joined.reported, joined.sent_before);
        self.peers.memories = Some(Box::new(joined.memories));
        joined.reported - delivered
    }

    /// A read begins.
    pub(super) fn hear_memories(&mut self) {
        let Some(memories) = &mut self.peers.memories else {
            return;
        };
        memories.forget(self.node.covered(self.node.rank));
        if self.life.replaying
            && let Some(diverged) = memories.look_now_and_then(&self.node)
        {
            self.report_difference(diverged);
        }
        self.pace.began = ticks();
    }

    /// Hands the next served message, if any, to the channel of its source.
    pub(super) fn find_served(&mut self) -> Option<usize> {
        let memories = self.peers.memories.as_mut().expect("there are channel memories");
        memories.first(&self.node)?;
        let arrived = memories.take()?;
        let source = arrived.source as usize;
        self.peers.incoming(&self.node, source).carrier = Carrier::Memory(Some(arrived));
        Some(source)
    }

    /// The next message is one that a former life delivered: waits for it, and returns in which read that was.
    pub(super) fn wait_until_served(&mut self) -> Recorded {
        loop {
            let memories = self.peers.memories.as_mut().expect("there are channel memories");
            if let Some(Arrived { source, polls, .. }) = memories.first(&self.node) {
                return Recorded {
                    source: *source,
                    polls: polls.expect("what was reported is served with its read"),
                };
            }
            memories.wait(LONGEST_WAIT_NS);
            // A replay on another course may wait for ever.
            if let Some(diverged) = memories.look(&self.node) {
                self.report_difference(diverged);
            }
        }
    }

    fn report_difference(&self, diverged: Diverged) -> ! {
        let Diverged {
            destination,
            ssn,
            what,
            before,
            now,
        } = diverged;
        self.diverged(destination as usize, ssn, before, now, &what)
    }

    /// No message is there. True: waited inside this read, look again. The rules are as for channels in shared memory,
    /// except that looking is a system call, and another process needs a core.
    pub(super) fn wait_if_nothing_is_served(&mut self) -> bool {
        let began = self.pace.began;
        let Some(idle) = self.pace.idle(began).filter(|idle| *idle >= self.pace.spin) else {
            return false;
        };
        let Some(nanoseconds) = self.pace.sleep_due(began, idle, self.life.is_shared()) else {
            return false;
        };
        self.node.add(Cost::Sleeps, 1);
        self.memories().wait(nanoseconds);
        self.pace.has_slept(began);
        true
    }

    /// A send, new or repeated. The channel memory knows which, and compares.
    pub(super) fn put_into_memory(&mut self, destination: usize, sending: Option<Sending>, message: Message) -> Fate {
        let sending = sending.expect("a protocol counts what channel memories are sent");
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        let rclock = self.life.protocol().rclock();
        if let Some(memories) = &mut self.peers.memories {
            let again = matches!(sending, Sending::Redo { .. });
            memories.send(&self.node, destination, ssn, again, message, rclock);
        }
        Fate::Gone
    }

    /// Under channel-memory: waits until the channel memory has stored all messages, and has compared the repeated
    /// ones.
    pub(super) fn hear_differences(&mut self) {
        if let Some(memories) = &mut self.peers.memories
            && let Some(diverged) = memories.sync(&self.node)
        {
            self.report_difference(diverged);
        }
    }
}

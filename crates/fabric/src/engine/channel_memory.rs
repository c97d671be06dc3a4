//! The data path under channel-memory: everything goes to the receivers' channel memories, and comes from the own one, in the order
//! in which that says.

use super::reopening::For;
use super::*;
use crate::channel_memories::{Arrived, Diverged, Joined};
use crate::matching::{Match, Unexpected};
use resurgo_protocol::Tolerate;

/// Longest sleep in a replay, or while others still work, before looking again.
const LONGEST_WAIT_NS: u64 = 100_000_000;

/// A life without an image begins with what the channel memories have of former ones, and with nothing else.
pub(super) fn join(node: &Node) -> (ChannelMemories, Pessimistic) {
    let Joined {
        memories,
        reported,
        sent_before,
    } = ChannelMemories::join(node, 0);
    node.set(control::REPLAY_DELIVERIES, reported);
    let rank = node.rank as u32;
    let protocol = Pessimistic::recovering(rank, node.size, Tolerate::Process, reported, sent_before);
    (memories, protocol)
}

impl Engine {
    fn memories(&mut self) -> &mut ChannelMemories {
        self.memories.as_mut().expect("there are channel memories")
    }

    /// This process has woken up from an image: it connects again, and is served what comes after that. Answers how many deliveries
    /// it has to repeat.
    pub(super) fn join_again(&mut self) -> u64 {
        let protocol = self
            .protocol
            .as_mut()
            .expect("a protocol stands beside channel memories");
        let delivered = protocol.rclock();
        if let Some(former) = self.memories.take() {
            former.abandon();
        }
        let joined = ChannelMemories::join(&self.node, delivered);
        protocol.restored(joined.reported, joined.sent_before);
        self.memories = Some(Box::new(joined.memories));
        joined.reported - delivered
    }

    pub(super) fn poll_served(&mut self) {
        if let Some(memories) = &mut self.memories {
            memories.forget(self.node.covered(self.node.rank));
        }
        if self.replaying
            && let Some(memories) = &mut self.memories
            && let Some(diverged) = memories.look_now_and_then(&self.node)
        {
            self.report_difference(diverged);
        }
        // Looking takes system calls, which are not the program's time.
        let begun = ticks();
        self.protocol_mut().begin_poll();
        let (mut waited, mut made) = (false, 0);
        while made < DELIVERIES_A_POLL && self.completions.is_empty() {
            match self.protocol_mut().next() {
                Next::Any => {
                    if self.output_gate && !self.output_seen() {
                        break;
                    }
                    if self.has_served() {
                        self.deliver_served();
                        made += 1;
                    } else if made > 0 || waited || !self.wait_if_nothing_is_served(begun) {
                        break;
                    } else {
                        waited = true;
                    }
                }
                Next::From(_) => {
                    self.wait_until_served();
                    self.deliver_served();
                    made = 0;
                }
                Next::Nothing => {
                    self.mind_owed_sends();
                    break;
                }
                Next::NeedRecord => {
                    let recorded = self.wait_until_served();
                    self.protocol_mut().expect(recorded);
                }
            }
        }
        // The program sees what was delivered when this read ends.
        if let Some(memories) = &mut self.memories {
            memories.say();
        }
    }

    fn has_served(&mut self) -> bool {
        let memories = self.memories.as_mut().expect("there are channel memories");
        memories.first(&self.node).is_some()
    }

    /// The next message is one that a former life has delivered: waits for it, and answers in which read that was.
    fn wait_until_served(&mut self) -> Recorded {
        loop {
            let memories = self.memories.as_mut().expect("there are channel memories");
            if let Some(Arrived { source, polls, .. }) = memories.first(&self.node) {
                return Recorded {
                    source: *source,
                    polls: polls.expect("what was reported is served with its read"),
                };
            }
            memories.wait(LONGEST_WAIT_NS);
            // A replay that has taken another way may wait for ever.
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

    /// Takes the next message.
    fn deliver_served(&mut self) {
        let arrived = self.memories().take().expect("a message has been served");
        let Arrived {
            source,
            envelope,
            bytes,
            ..
        } = arrived;
        let total = bytes.len();
        self.count_delivery(source, total as u64, 0, 0);
        let later = match self.is_for(source as usize, envelope) {
            For::This => None,
            For::Later(number) => Some(number),
            For::None => return,
        };
        let copy = |from: usize, to: *mut u8, run: usize| {
            // SAFETY: `fill` keeps to the room and to the message's bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), to, run) };
        };
        match envelope.kind {
            Kind::Tagged | Kind::Untagged => {
                if later.is_none()
                    && let Match::Receive(receive) = self.matching.arrive(source, envelope, total, self.min_multi_recv)
                {
                    receive.room.fill(0, total, copy);
                    return self.received(&receive, envelope, total, source);
                }
                let message = Box::new(Unexpected {
                    source,
                    envelope,
                    total,
                    arrived: total,
                    bytes,
                    taken_by: None,
                    claimed_by: std::ptr::null_mut(),
                });
                match later {
                    None => self.matching.keep(message),
                    Some(number) => self.keep_early(number, message),
                }
            }
            Kind::ReadAnswer | Kind::WriteDone => {
                self.rma.room(envelope.tag).fill(0, total, copy);
                crate::rma::finish(self, source as usize, envelope.tag, total);
            }
            _ => crate::rma::serve(self, source as usize, envelope, bytes),
        }
    }

    /// Nothing has come in a read that has begun `now`. True: waited inside this read, look again. The same rules as for
    /// [`wait_if_idle`](Engine::wait_if_idle), but that looking is a system call, and there is somebody else who needs a core.
    fn wait_if_nothing_is_served(&mut self, now: u64) -> bool {
        let Some(idle) = self.idle(now).filter(|idle| *idle >= self.spin_ticks) else {
            return false;
        };
        let Some(nanoseconds) = self.sleep_due(now, idle) else {
            return false;
        };
        self.node.add(Cost::Sleeps, 1);
        self.memories().wait(nanoseconds);
        self.has_slept(now);
        true
    }

    /// A send: new, or one that a former life has made. The channel memory knows which, and compares.
    pub(super) fn put_into_memory(&mut self, destination: usize, message: Message, completion: Option<Completion>) {
        let sending = self.number(destination);
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        let rclock = self.protocol_mut().rclock();
        if let Some(memories) = &mut self.memories {
            let again = matches!(sending, Sending::Redo { .. });
            memories.send(&self.node, destination, ssn, again, message, rclock);
        }
        self.count_send(message.total);
        self.completions.extend(completion);
        self.settle();
    }

    /// Under channel-memory: waits until everything that was said is stored, and what was sent again has been compared.
    pub(super) fn hear_differences(&mut self) {
        if let Some(memories) = &mut self.memories
            && let Some(diverged) = memories.sync(&self.node)
        {
            self.report_difference(diverged);
        }
    }
}

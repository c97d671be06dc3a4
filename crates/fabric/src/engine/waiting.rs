//! What a rank does while nothing has come: look again, then give its core away until another rank rings.

use super::*;

impl Engine {
    #[cold]
    pub(super) fn output_seen(&mut self) -> bool {
        if self
            .node
            .control(self.node.rank, control::OUTPUT_BEHIND)
            .load(Ordering::Acquire)
            == 0
        {
            self.output_gate = false;
            return true;
        }
        self.node.set(control::OUTPUT_AWAITED, 1);
        // The program may not have printed it yet: let it run on, slowly.
        doorbell::sleep(&self.node, 100_000, || false);
        false
    }

    /// True: waited inside this read, look again.
    ///
    /// Reads that follow one another quickly and find nothing come from a program that waits. It polls for as long as
    /// `--spin` says and then gives its core away, never for longer than it has waited. If it does a little work between its reads,
    /// it goes on after each sleep for as long as that lasted: it is slowed down by a factor of two at most.
    pub(super) fn wait_if_idle(&mut self) -> bool {
        let now = ticks();
        let Some(idle) = self.idle(now) else { return false };
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
                self.warm_up(self.hot as usize);
                std::hint::spin_loop();
            }
            return false;
        }
        if idle < self.spin_ticks + self.ticks_per_us * YIELD_US && self.give_way(now) {
            return true;
        }
        let Some(mut nanoseconds) = self.sleep_due(now, idle) else {
            return false;
        };
        if self.buffer.messages() > 0 || self.waiting.iter().any(|send| send.deferred_at > 0) {
            // Nobody rings when they may leave.
            nanoseconds = nanoseconds.min(FIRST_SLEEP_NS);
        }
        self.doze(nanoseconds);
        self.has_slept(now);
        if !self.waiting.is_empty() {
            self.progress_sends();
        }
        true
    }

    /// For how long the program has read in quick succession and found nothing, in ticks; None: it has not.
    pub(super) fn idle(&mut self, now: u64) -> Option<u64> {
        if now.wrapping_sub(self.last_read) > self.ticks_per_us * QUICK_US {
            self.idle_since = now;
            return None;
        }
        Some(now - self.idle_since)
    }

    /// For how long to sleep now, in nanoseconds, after `idle` ticks of waiting; None: not at all.
    pub(super) fn sleep_due(&self, now: u64, idle: u64) -> Option<u64> {
        let does_something = now.wrapping_sub(self.last_read) > self.ticks_per_us * BARE_LOOP_US;
        if does_something && now.wrapping_sub(self.slept.0) < self.slept.1 {
            return None;
        }
        // Another thread of this process may want MPI's lock: do not sleep on it for long.
        let short = does_something || self.thread_changes > 0;
        let longest = if short { SHORT_SLEEP_NS } else { LONGEST_SLEEP_NS };
        Some((idle * 1000 / self.ticks_per_us).clamp(SHORT_SLEEP_NS, longest))
    }

    /// It has slept since `from`.
    pub(super) fn has_slept(&mut self, from: u64) {
        let now = ticks();
        self.slept = (now, now - from);
    }

    /// Lets others use the core, unless that has taken long lately.
    fn give_way(&mut self, now: u64) -> bool {
        if now < self.yields_from {
            return false;
        }
        // SAFETY: has no arguments.
        unsafe { libc::sched_yield() };
        let after = ticks();
        if after - now > self.ticks_per_us * LONG_YIELD_US {
            self.yields_from = after + self.ticks_per_us * NO_YIELD_US;
        }
        true
    }

    pub(super) fn doze(&mut self, longest_ns: u64) {
        self.node.add(Cost::Sleeps, 1);
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

    /// Whoever is waited for is probably sent to next, and a retained log always goes on in cold memory.
    #[inline]
    fn warm_up(&mut self, destination: usize) {
        if self.protocol.is_some()
            && let Some(writer) = &mut self.outgoing[destination]
        {
            writer.warm_up(&self.arena, &self.node);
        }
    }

    /// Waits until channel `source` has an entry: the record says that the next delivery is from there.
    pub(super) fn wait_for(&mut self, source: usize) {
        self.incoming(source);
        if self.has_entry(source) {
            return;
        }
        let mut incoming = self.incoming[source].take().expect("made above");
        self.waits = self.waits.wrapping_add(1);
        let mut vain = Vain::default();
        while incoming.reader.peek(&self.node).is_none() {
            if vain.look(&self.node, self.waits, source) {
                self.waits_in_vain(source);
            }
            self.pump_logger();
            self.pause_for(&mut incoming);
        }
        self.node.set(control::WAITS_FOR, 0);
        self.incoming[source] = Some(incoming);
    }

    /// A read that delivers nothing because sends of a former life are to be repeated first: that life needed no delivery for them.
    /// A program that goes on reading, far more often than it did then, waits for one.
    pub(super) fn mind_owed_sends(&mut self) {
        let (owed, reads) = (self.protocol_mut().owed(), self.protocol_mut().polls());
        if owed == 0 {
            return;
        }
        let now = ticks();
        if self.owed.0 != owed {
            self.owed = (owed, now);
        }
        let formerly = self
            .node
            .control(self.node.rank, control::READS_AT_SEND)
            .load(Ordering::Acquire);
        if formerly > 0 && reads > OWED_READS * (formerly + 10) && now - self.owed.1 > OWED_US * self.ticks_per_us {
            self.sends_nothing(owed);
        }
    }

    /// Spins and then sleeps until the channel has another entry, or a while has passed.
    pub(super) fn pause_for(&mut self, incoming: &mut Incoming) {
        let until = ticks() + self.spin_ticks;
        while ticks() < until {
            if incoming.reader.peek(&self.node).is_some() {
                return;
            }
            self.warm_up(incoming.reader.source);
            std::hint::spin_loop();
        }
        let until = until + self.ticks_per_us * YIELD_US;
        loop {
            let now = ticks();
            if now >= until || !self.give_way(now) {
                break;
            }
            if incoming.reader.peek(&self.node).is_some() {
                return;
            }
        }
        let node = &self.node;
        doorbell::sleep(node, FIRST_SLEEP_NS, || incoming.reader.peek(node).is_some());
    }
}

/// A wait in a replay, which would last for ever if all that are waited for wait too, in a ring: some of them does not repeat what it
/// has sent.
#[derive(Default)]
struct Vain {
    looks: u64,
    /// The ranks of the ring but this one, with what they said of their waits.
    ring: Vec<(usize, u64)>,
}

const SOURCE_BITS: u32 = 16;
const LOOKS_BITS: u32 = 24;
const LOOKS: u64 = (1 << LOOKS_BITS) - 1;
/// Looks between two walks around the ring.
const WALK: u64 = 16;

impl Vain {
    /// Says that this rank has looked again, in its wait number `wait`, and found nothing from `source`. True: nothing will come.
    ///
    /// That is certain when every rank of the ring has looked in vain, twice, since all of them were seen to wait: no message was on
    /// its way then, and none has been sent since.
    fn look(&mut self, node: &Node, wait: u32, source: usize) -> bool {
        self.looks += 1;
        let word =
            (source as u64 + 1) | (self.looks & LOOKS) << SOURCE_BITS | u64::from(wait) << (SOURCE_BITS + LOOKS_BITS);
        node.control(node.rank, control::WAITS_FOR)
            .store(word, Ordering::Release);
        if !self.looks.is_multiple_of(WALK) {
            return false;
        }
        let ring = ring(node, source);
        let looked = |(before, now): (&(usize, u64), &(usize, u64))| {
            let looks = |word: u64| word >> SOURCE_BITS & LOOKS;
            let same = |word: u64| word & !(LOOKS << SOURCE_BITS);
            before.0 == now.0
                && same(before.1) == same(now.1)
                && looks(now.1).wrapping_sub(looks(before.1)) & LOOKS >= 2
        };
        let is_vain = !ring.is_empty() && ring.len() == self.ring.len() && self.ring.iter().zip(&ring).all(looked);
        self.ring = ring;
        is_vain
    }
}

/// Who waits for whom, from `source` on until that comes to this rank; empty when it does not.
fn ring(node: &Node, source: usize) -> Vec<(usize, u64)> {
    let mut ring = Vec::new();
    let mut rank = source;
    while rank != node.rank {
        let word = node.control(rank, control::WAITS_FOR).load(Ordering::Acquire);
        let next = word & ((1 << SOURCE_BITS) - 1);
        if next == 0 || ring.len() == node.ranks() {
            return Vec::new();
        }
        ring.push((rank, word));
        rank = next as usize - 1;
    }
    ring
}

/// Asks the kernel (Linux 6.12 and newer; older ones ignore it) for the shortest slices of time: a rank that wakes up then need
/// not wait until another process has used up its slice, some milliseconds. Its share of the core stays the same.
pub(super) fn ask_for_short_slices() {
    const SHORTEST_NS: u64 = 100_000;
    // SAFETY: plain numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the calling thread's attributes are written to the struct, and set from it. Failing leaves them as they are.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0
            && attributes.sched_policy == libc::SCHED_OTHER as u32
        {
            attributes.sched_runtime = SHORTEST_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    #[test]
    fn a_wait_is_in_vain_when_all_of_the_ring_have_looked_since_all_waited() {
        let (node, other) = pair(16, true);
        let (mut vain, mut others) = (Vain::default(), Vain::default());
        let mut looks = |count: u64, wait: u32| (0..count).any(|_| vain.look(&node, wait, 1));
        assert!(!looks(3 * WALK, 1), "the other one does not wait");
        others.look(&other, 1, 0);
        assert!(!looks(3 * WALK, 1), "it has not looked again");
        (0..2).for_each(|_| assert!(!others.look(&other, 1, 0)));
        assert!(looks(WALK, 1));
        (0..2).for_each(|_| assert!(!others.look(&other, 2, 0)));
        assert!(!looks(WALK, 1), "another wait");
        others.look(&other, 2, 1);
        assert!(!looks(3 * WALK, 1), "not for this one");
    }
}

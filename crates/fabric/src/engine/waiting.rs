//! The steps of a rank without news: it looks again, then yields its core until another rank rings.

use super::pace::YIELD_US;
use super::*;

/// Longest look for news inside one read while the program still polls.
const LOOK_US: u64 = 1;
const FIRST_SLEEP_NS: u64 = 1_000_000;

impl Engine {
    /// True: waited inside this read, look again.
    ///
    /// Quick reads in a row that find nothing come from a waiting program. It polls for the time of `--spin` and then
    /// yields its core, never for longer than it has waited. If it does a little work between its reads, it goes on
    /// after each sleep for as long as that lasted. So it is at most half as fast.
    pub(super) fn wait_if_idle(&mut self) -> bool {
        if self.peers.memories.is_some() {
            return self.wait_if_nothing_is_served();
        }
        // Looking at sockets takes system calls, which are not the program's time.
        let now = match self.peers.direct {
            Some(_) => self.pace.began,
            None => ticks(),
        };
        let Some(idle) = self.pace.idle(now) else { return false };
        if self.outbox.holds() {
            // This rank's sends wait for the event logger, and other ranks for them: it waits for that answer.
            if idle > self.pace.spin
                && let Some(logger) = self.history.logger()
            {
                logger.wait(1);
            }
            return false;
        }
        let looks = self.looks();
        if looks && self.apart.is_due() {
            self.keep_apart();
        }
        if looks && idle < self.pace.spin {
            // A round through the MPI library's wait loop costs more than looking again here.
            let until = ticks() + idle.min(self.pace.us(LOOK_US));
            let hot = self.peers.ready.hot;
            while ticks() < until {
                if self.has_entry(hot) || doorbell::any_ready(&self.node) || self.peers.receive(&self.node) {
                    return true;
                }
                self.warm_up(hot);
                std::hint::spin_loop();
            }
            return false;
        }
        if looks && self.pace.is_yielding(idle) && self.pace.give_way(ticks()) {
            return true;
        }
        let Some(mut nanoseconds) = self.pace.sleep_due(now, idle, self.life.is_shared()) else {
            return false;
        };
        if self.outbox.has_deferred() {
            nanoseconds = nanoseconds.min(FIRST_SLEEP_NS);
        }
        if self.peers.has_cares() && self.peers.wait_for_room(&self.node) {
            nanoseconds = nanoseconds.min(FIRST_SLEEP_NS);
        }
        self.peers.mind_ends(&self.node);
        self.doze(nanoseconds);
        self.pace.has_slept(now);
        if !self.outbox.waiting.is_empty() {
            self.progress_sends();
        }
        true
    }

    /// This rank probably waits for the one that it has heard of last.
    #[cold]
    fn keep_apart(&mut self) {
        let hot = self.peers.ready.hot;
        let theirs = match self.node.is_elsewhere(hot) {
            true => self.peers.direct.as_ref().and_then(|direct| direct.processor_of(hot)),
            false => apart::processor_of(&self.node, hot).filter(|_| hot != self.node.rank),
        };
        self.apart.mind(&self.node, theirs, self.pace.us(1));
    }

    /// Whether to look for a while before sleeping.
    fn looks(&self) -> bool {
        self.peers.direct.is_none() || self.pace.looks()
    }

    fn doze(&mut self, longest_ns: u64) {
        self.node.add(Cost::Sleeps, 1);
        let awaits = self.calls.matching.awaits();
        self.node
            .set(control::AWAITS, awaits.map_or(0, |source| u64::from(source) + 1));
        let node = &self.node;
        let incoming = &mut self.peers.incoming[self.peers.ready.hot];
        let heard = self.failures.heard;
        let ready = || {
            let hot = incoming.as_mut();
            doorbell::any_ready(node)
                || failures::are_news(node, heard)
                || hot.is_some_and(|hot| hot.carrier.peek(node).is_some())
        };
        match &mut self.peers.direct {
            Some(direct) => direct.sleep(node, longest_ns, ready),
            None => doorbell::sleep(node, longest_ns, ready),
        }
    }

    /// This rank probably sends next to the rank that it waits for, and a retained log always continues in cold memory.
    #[inline]
    fn warm_up(&mut self, destination: usize) {
        if self.life.protocol.is_some()
            && let Some(outgoing) = &mut self.peers.outgoing[destination]
            && let Outgoing::SharedLog(log) = outgoing
        {
            log.writer.warm_up(&self.peers.arena, &self.node);
        }
    }

    /// Waits for a message from `source`: by the record, the next delivery is from there.
    pub(super) fn wait_for(&mut self, source: usize) {
        if self.peers.memories.is_some() {
            self.wait_until_served();
            self.find_served();
            return;
        }
        self.peers.incoming(&self.node, source);
        if self.has_entry(source) {
            return;
        }
        let mut incoming = self.peers.incoming[source].take().expect("made above");
        self.life.waits = self.life.waits.wrapping_add(1);
        let mut vain = Vain::default();
        while incoming.carrier.peek(&self.node).is_none() {
            if vain.look(&self.node, self.life.waits, source) {
                self.waits_in_vain(source);
            }
            self.exchange_if_due();
            self.pause_for(&mut incoming.carrier, source);
        }
        self.node.set(control::WAITS_FOR, 0);
        self.peers.incoming[source] = Some(incoming);
    }

    /// The next delivery of a former life.
    pub(super) fn next_recorded(&mut self) -> Recorded {
        match self.history.stable {
            Stable::Reported => self.wait_until_served(),
            Stable::Own | Stable::Logged(_) | Stable::Causal(..) => {
                let recorded = self.history.record.read(&self.node);
                recorded.expect("the record holds what was counted")
            }
        }
    }

    /// Spins and gives the core away for a while. True: `carrier` has another entry from `source`.
    fn look_for(&mut self, carrier: &mut Carrier, source: usize) -> bool {
        let until = ticks() + self.pace.spin;
        while ticks() < until {
            self.peers.receive(&self.node);
            if carrier.peek(&self.node).is_some() {
                return true;
            }
            self.warm_up(source);
            std::hint::spin_loop();
        }
        let until = until + self.pace.us(YIELD_US);
        loop {
            let now = ticks();
            if now >= until || !self.pace.give_way(now) {
                return false;
            }
            self.peers.receive(&self.node);
            if carrier.peek(&self.node).is_some() {
                return true;
            }
        }
    }

    /// Spins and then sleeps until `carrier` has another entry from `source`, or a while has passed.
    pub(super) fn pause_for(&mut self, carrier: &mut Carrier, source: usize) {
        if self.looks() && self.look_for(carrier, source) {
            return;
        }
        self.peers.wait_for_room(&self.node);
        self.peers.mind_ends(&self.node);
        self.peers.receive(&self.node);
        let node = &self.node;
        let ready = || carrier.peek(node).is_some();
        match &mut self.peers.direct {
            Some(direct) => direct.sleep(node, FIRST_SLEEP_NS, ready),
            None => doorbell::sleep(node, FIRST_SLEEP_NS, ready),
        }
    }
}

/// A wait in a replay. It would last for ever if all awaited ranks wait, too, in a ring: one of them does not repeat
/// its sends. The coordinator finds rings of several nodes.
#[derive(Default)]
struct Vain {
    looks: u64,
    /// The other ranks of the ring, with their states.
    ring: Vec<(usize, u64)>,
}

const SOURCE_BITS: u32 = nm::WAIT_SOURCE_BITS;
const LOOKS_BITS: u32 = nm::WAIT_LOOKS_BITS;
const LOOKS: u64 = nm::WAIT_LOOKS >> SOURCE_BITS;
/// Looks between two walks around the ring.
const WALK: u64 = 16;

impl Vain {
    /// Publishes that this rank has looked again, in its wait number `wait`, and found nothing from `source`. True: no
    /// message will come.
    ///
    /// That is certain when every rank of the ring has looked in vain, twice, since all were seen to wait. No message
    /// was on its way then, and none was sent since.
    fn look(&mut self, node: &Node, wait: u32, source: usize) -> bool {
        self.looks += 1;
        let word =
            (source as u64 + 1) | (self.looks & LOOKS) << SOURCE_BITS | u64::from(wait) << (SOURCE_BITS + LOOKS_BITS);
        node.control(node.rank, control::WAITS_FOR)
            .store(word, Ordering::Release);
        if node.control(node.rank, control::IN_VAIN).load(Ordering::Acquire) == word & !nm::WAIT_LOOKS {
            return true;
        }
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

/// The chain of waiting ranks from `source` on until this rank; empty when it does not come here.
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

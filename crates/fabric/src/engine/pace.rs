//! How long a rank that waits looks for news, gives its core to others, and sleeps.

use crate::clock::{measure_ticks, ticks};

/// Two reads are in quick succession when there is no more time between them than a progress loop needs that gives its
/// core to others in every round.
const QUICK_US: u64 = 5;
/// A progress loop that does nothing else needs less between two reads.
const BARE_LOOP_US: u64 = 2;
/// How long a rank that waits gives its core to others, and looks again when it gets it back, before it sleeps: with a few ranks
/// on each core that costs less than sleeping and being woken.
pub const YIELD_US: u64 = 30;
/// When others keep the core for longer than this they compute, and a rank that sleeps gets it back sooner than one that has
/// given it away: so for a while it does not.
const LONG_YIELD_US: u64 = 200;
const NO_YIELD_US: u64 = 50_000;
const SHORT_SLEEP_NS: u64 = 50_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;

/// All times are in ticks of the processor's counter, unless their names say otherwise.
pub struct Pace {
    ticks_per_us: u64,
    /// How long to look before anything else is done.
    pub spin: u64,
    last_read: u64,
    idle_since: u64,
    /// When the rank woke up the last time, and how long it had slept.
    slept: (u64, u64),
    /// No core is given away before.
    yields_from: u64,
    /// When the present read began, where looking takes system calls: they are not the program's time.
    pub began: u64,
}

impl Pace {
    pub fn new(spin_ns: u64) -> Pace {
        Pace::at(measure_ticks(), spin_ns)
    }

    fn at(ticks_per_us: u64, spin_ns: u64) -> Pace {
        Pace {
            ticks_per_us,
            spin: ticks_per_us * spin_ns / 1000,
            last_read: 0,
            idle_since: 0,
            slept: (0, 0),
            yields_from: 0,
            began: 0,
        }
    }

    #[inline]
    pub fn us(&self, microseconds: u64) -> u64 {
        microseconds * self.ticks_per_us
    }

    /// Nanoseconds since `begun`.
    #[inline]
    pub fn ns_since(&self, begun: u64) -> u64 {
        ticks().saturating_sub(begun) * 1000 / self.ticks_per_us
    }

    /// A life begins or goes on: counts may be those of another run of the machine.
    pub fn begin(&mut self) {
        self.yields_from = 0;
        self.begin_again();
    }

    /// The program reads anew.
    pub fn begin_again(&mut self) {
        self.last_read = 0;
        self.idle_since = ticks();
    }

    /// It waits for nothing.
    pub fn forget_reads(&mut self) {
        self.last_read = 0;
    }

    /// A read ends. `found`: what it delivered, or something to report.
    #[inline]
    pub fn has_read(&mut self, found: bool) {
        self.last_read = ticks();
        // What a program probes for completes nothing.
        if found {
            self.idle_since = self.last_read;
        }
    }

    /// For how long the program has read in quick succession and found nothing; None: it has not.
    #[inline]
    pub fn idle(&mut self, now: u64) -> Option<u64> {
        if now.wrapping_sub(self.last_read) > self.us(QUICK_US) {
            self.idle_since = now;
            return None;
        }
        Some(now - self.idle_since)
    }

    /// For how many nanoseconds to sleep now, after `idle` ticks of waiting; None: not at all. `shared`: another thread of this
    /// process may want MPI's lock, so the rank does not sleep on it for long.
    pub fn sleep_due(&self, now: u64, idle: u64, shared: bool) -> Option<u64> {
        let does_something = now.wrapping_sub(self.last_read) > self.us(BARE_LOOP_US);
        if does_something && now.wrapping_sub(self.slept.0) < self.slept.1 {
            return None;
        }
        let longest = match does_something || shared {
            true => SHORT_SLEEP_NS,
            false => LONGEST_SLEEP_NS,
        };
        Some((idle * 1000 / self.ticks_per_us).clamp(SHORT_SLEEP_NS, longest))
    }

    /// It has slept since `from`.
    pub fn has_slept(&mut self, from: u64) {
        let now = ticks();
        self.slept = (now, now - from);
    }

    /// Whether the core is given to others between looking and sleeping.
    pub fn is_yielding(&self, idle: u64) -> bool {
        idle < self.spin + self.us(YIELD_US)
    }

    /// Lets others use the core, unless that has taken long lately.
    pub fn give_way(&mut self, now: u64) -> bool {
        if now < self.yields_from {
            return false;
        }
        // SAFETY: has no arguments.
        unsafe { libc::sched_yield() };
        self.has_given_way(now, ticks());
        true
    }

    fn has_given_way(&mut self, from: u64, to: u64) {
        if to - from > self.us(LONG_YIELD_US) {
            self.yields_from = to + self.us(NO_YIELD_US);
        }
    }
}

/// Asks the kernel (Linux 6.12 and newer; older ones ignore it) for the shortest slices of time: a rank that wakes up then need
/// not wait until another process has used up its slice, some milliseconds. Its share of the core stays the same.
pub fn ask_for_short_slices() {
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

    /// A tick is a nanosecond.
    fn pace() -> Pace {
        Pace::at(1000, 20_000)
    }

    #[test]
    fn reads_with_work_between_them_are_no_wait() {
        let mut pace = pace();
        pace.last_read = 1_000_000;
        assert_eq!(pace.idle(1_000_000 + QUICK_US * 1000 + 1), None);
        // It waits from here on.
        pace.last_read = 1_006_000;
        assert_eq!(pace.idle(1_010_000), Some(1_010_000 - 1_005_001));
    }

    #[test]
    fn a_rank_sleeps_as_long_as_it_has_waited_within_bounds() {
        let mut pace = pace();
        pace.last_read = 1_000_000_000;
        let due = |pace: &Pace, idle| pace.sleep_due(1_000_000_500, idle, false);
        assert_eq!(due(&pace, 10), Some(SHORT_SLEEP_NS));
        assert_eq!(due(&pace, 700_000), Some(700_000));
        assert_eq!(due(&pace, 700_000_000), Some(LONGEST_SLEEP_NS));
        assert_eq!(pace.sleep_due(1_000_000_500, 700_000, true), Some(SHORT_SLEEP_NS));
        // A program that does a little between its reads goes on for as long as it slept.
        let now = 1_000_003_000;
        pace.slept = (now - 40_000, 50_000);
        assert_eq!(pace.sleep_due(now, 700_000, false), None);
        pace.slept = (now - 60_000, 50_000);
        assert_eq!(pace.sleep_due(now, 700_000, false), Some(SHORT_SLEEP_NS));
    }

    #[test]
    fn a_rank_that_got_its_core_back_late_keeps_it_for_a_while() {
        let mut pace = pace();
        assert!(pace.is_yielding(pace.spin + 1) && !pace.is_yielding(pace.spin + 31_000));
        pace.has_given_way(1_000, 1_000 + LONG_YIELD_US * 1000);
        assert_eq!(pace.yields_from, 0);
        let back = 1_001 + LONG_YIELD_US * 1000;
        pace.has_given_way(1_000, back);
        assert!(!pace.give_way(back + NO_YIELD_US * 1000 - 1));
        pace.begin();
        assert!(pace.give_way(1));
    }
}

//! How long a waiting rank looks for news, yields its core, and sleeps.

use super::habit::Habit;
use crate::clock::{measure_ticks, own_ns, ticks};

/// The longest time between two reads that are in quick succession: a progress loop that yields its core in every round
/// needs no more.
const QUICK_US: u64 = 5;
/// A progress loop that does nothing else needs less between two reads.
const BARE_LOOP_US: u64 = 2;
/// The time that a progress loop may take after others have had the core.
const COLD_US: u64 = 50;
/// How long a waiting rank yields its core, and looks each time it gets it back, before it sleeps. With few ranks on
/// each core this costs less than sleeping and being woken.
pub const YIELD_US: u64 = 30;
/// If others keep the core for longer they compute, and a sleeping rank gets it back sooner than a yielding one: for a
/// while the rank does not yield.
const LONG_YIELD_US: u64 = 200;
const NO_YIELD_US: u64 = 50_000;
const SHORT_SLEEP_NS: u64 = 50_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// Reads in a row that found something at once, from which on one takes several messages. An answer to a message, or a
/// step of a collective, is no flood: looking for another message would only delay it.
const FLOOD: u32 = 4;

/// All times are in ticks of the processor's counter, unless their names say otherwise.
pub struct Pace {
    ticks_per_us: u64,
    /// How long to look before other steps.
    pub spin: u64,
    last_read: u64,
    /// Reads in a row that found something.
    finds: u32,
    idle_since: u64,
    /// When the rank last woke up, and how long it had slept.
    slept: (u64, u64),
    /// Before this time the rank does not yield.
    yields_from: u64,
    /// When the present read began, where looking takes system calls, which are not the program's time.
    pub began: u64,
    /// When the first unsuccessful read of a wait began; 0: none.
    vain_since: u64,
    /// This thread's processor time at the end of the last unsuccessful read.
    used_ns: u64,
    habit: Habit,
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
            finds: 0,
            idle_since: 0,
            slept: (0, 0),
            yields_from: 0,
            began: 0,
            vain_since: 0,
            used_ns: 0,
            habit: Habit::default(),
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

    /// A life begins or goes on: counts may be from another boot of the machine.
    pub fn begin(&mut self) {
        self.yields_from = 0;
        self.begin_again();
    }

    /// The program reads anew.
    pub fn begin_again(&mut self) {
        self.last_read = 0;
        self.vain_since = 0;
        self.idle_since = ticks();
    }

    /// It waits for nothing.
    pub fn forget_reads(&mut self) {
        self.last_read = 0;
        self.vain_since = 0;
    }

    /// A read ends. `found`: a delivery, or something to report.
    #[inline]
    pub fn has_read(&mut self, found: bool) {
        self.last_read = ticks();
        // A probe completes nothing.
        if found {
            self.idle_since = self.last_read;
            self.finds = self.finds.saturating_add(1);
        } else {
            self.finds = 0;
        }
    }

    /// The present read waits inside.
    #[inline]
    pub fn waits(&mut self) {
        self.finds = 0;
    }

    /// Whether messages come faster than the program reads.
    #[inline]
    pub fn is_flooded(&self) -> bool {
        self.finds >= FLOOD
    }

    /// A read of sockets begins. A program that yields between its reads may get its core back late: the others' time
    /// is not its own.
    #[inline]
    pub fn begin_at_sockets(&mut self) {
        self.began = ticks();
        if self.vain_since != 0 && self.began.wrapping_sub(self.last_read) > self.us(BARE_LOOP_US) {
            let own = own_ns().saturating_sub(self.used_ns) * self.ticks_per_us / 1000;
            // A rank that gets its core back after long finds cold caches.
            let own = match own < self.us(COLD_US) && self.began - self.last_read > own * 4 {
                true => own.min(self.us(1)),
                false => own,
            };
            self.last_read = self.last_read.max(self.began.saturating_sub(own));
        }
    }

    /// A read of sockets ends: the rank learns how to wait.
    pub fn has_read_sockets(&mut self, found: bool) {
        if !found {
            self.used_ns = own_ns();
            if self.vain_since == 0 {
                self.vain_since = self.began;
            }
        } else if self.vain_since != 0 {
            self.habit.waited(self.last_read.saturating_sub(self.vain_since));
            self.vain_since = 0;
        }
    }

    /// Whether a rank waiting at sockets looks at them for a while before it sleeps.
    #[inline]
    pub fn looks(&self) -> bool {
        self.habit.looks()
    }

    /// How long the program has read in quick succession and found nothing; None: it has not.
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

    /// Yields the core, unless that took long lately.
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

/// Asks the kernel (Linux 6.12 and newer; older ones ignore it) for the shortest time slices: a woken rank then need
/// not wait for the end of another process's slice, some milliseconds. Its share of the core stays the same.
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
        // A program that does little between its reads goes on for as long as it slept.
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

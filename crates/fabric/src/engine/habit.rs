//! Whether a rank that waits at its sockets looks at them for a while before it sleeps: it prefers the way that was
//! quicker lately.
//!
//! A rank with a core of its own is several times quicker by looking. Where other ranks want the core it is the other
//! way round: the awaited rank may need this very core, and looking uses up this rank's share.

/// Waits after which a way is judged, and those of a trial of the other way. The first waits of a trial do not count:
/// the kernel takes a while to give looking ranks cores of their own.
const WAITS: u32 = 64;
const TRIAL: u32 = 64;
const FIRST: u32 = 48;
/// Periods between two trials: after a useful one, and most after others.
const SOON: u32 = 2;
const LATE: u32 = 64;
/// The other way must be quicker by so much, or both would alternate: about an eighth, in the unit of [`weight`].
const BETTER: u64 = 3;

pub struct Habit {
    looks: bool,
    is_trial: bool,
    /// The number of waits in the present period, and the sum of their weights.
    waits: u32,
    sum: u64,
    /// The average weight of a wait in the last period without a trial.
    usual: u64,
    /// Periods until the next trial, and between the last two.
    left: u32,
    pause: u32,
}

impl Default for Habit {
    fn default() -> Habit {
        Habit {
            looks: true,
            is_trial: false,
            waits: 0,
            sum: 0,
            usual: 0,
            left: 1,
            pause: SOON,
        }
    }
}

impl Habit {
    /// Whether to look before sleeping.
    #[inline]
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// A wait has taken so many ticks.
    pub fn waited(&mut self, took: u64) {
        self.waits += 1;
        let (first, last) = if self.is_trial { (FIRST, TRIAL) } else { (0, WAITS) };
        if self.waits > first {
            self.sum += weight(took);
        }
        if self.waits < last {
            return;
        }
        let weight = self.sum / u64::from(last - first);
        (self.waits, self.sum) = (0, 0);
        if self.is_trial {
            self.is_trial = false;
            if weight + BETTER < self.usual {
                self.pause = SOON;
            } else {
                self.looks = !self.looks;
                self.pause = (self.pause * 2).min(LATE);
            }
            self.left = self.pause;
            return;
        }
        self.usual = weight;
        self.left -= 1;
        if self.left == 0 {
            self.is_trial = true;
            self.looks = !self.looks;
        }
    }
}

/// Sixteen times the logarithm, about: a few waits that last a thousand times longer show that others compute, not
/// which way is better.
fn weight(took: u64) -> u64 {
    let took = took.max(16);
    let digits = u64::from(took.ilog2());
    digits * 16 + (took >> (digits - 4) & 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many waits a rank looked, where looking and sleeping take so long.
    fn looked(habit: &mut Habit, waits: u32, looking: u64, sleeping: u64) -> u32 {
        let mut looked = 0;
        for _ in 0..waits {
            looked += u32::from(habit.looks());
            habit.waited(1000 * if habit.looks() { looking } else { sleeping });
        }
        looked
    }

    #[test]
    fn it_becomes_what_is_quicker_and_changes_when_that_changes() {
        let mut habit = Habit::default();
        assert!(looked(&mut habit, 1000, 7, 23) > 800);
        assert!(looked(&mut habit, 4 * WAITS * LATE, 80, 10) < 2 * WAITS * LATE);
        assert!(looked(&mut habit, 10_000, 80, 10) < 400);
        looked(&mut habit, WAITS * LATE, 7, 23);
        assert!(looked(&mut habit, 10_000, 7, 23) > 9300);
    }

    #[test]
    fn a_few_long_waits_change_nothing() {
        let mut habit = Habit::default();
        let mut looked = 0;
        for number in 0..10_000 {
            looked += u32::from(habit.looks());
            let usual = if habit.looks() { 7_000 } else { 23_000 };
            habit.waited(if number % 50 == 0 { 7_000_000 } else { usual });
        }
        assert!(looked > 9300, "{looked}");
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let mut habit = Habit::default();
        assert!(looked(&mut habit, 10_000, 100, 95) > 9300);
    }
}

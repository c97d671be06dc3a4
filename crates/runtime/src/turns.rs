//! How long the loops of dispatcher, agent and mover keep others waiting.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The longest turn of a loop, from the end of one wait to the beginning of the next, in processor time of its thread. A
/// turn that waits for a processor is no longer for that.
#[derive(Debug, Default)]
pub struct Turns {
    begun: Option<Duration>,
    longest: Duration,
}

impl Turns {
    /// A wait is over.
    pub fn begin(&mut self) {
        self.begun = Some(used());
    }

    /// The next wait begins. Returns the longest turn so far.
    pub fn end(&mut self) -> Duration {
        if let Some(begun) = self.begun.take() {
            self.longest = self.longest.max(used().saturating_sub(begun));
        }
        self.longest
    }

    pub fn longest(&self) -> Duration {
        self.longest
    }
}

/// Processor time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_of_work_and_not_of_waits() {
        let mut turns = Turns::default();
        assert_eq!(turns.end(), Duration::ZERO);
        turns.begin();
        let begun = used();
        while used() - begun < Duration::from_millis(5) {}
        let worked = turns.end();
        assert!(worked >= Duration::from_millis(5));
        turns.begin();
        std::thread::sleep(worked * 4);
        assert_eq!(turns.end(), worked);
    }
}

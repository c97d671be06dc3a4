//! When images are taken: each rank in its turn, one at a time.

use std::time::Duration;

/// How soon a rank that could not have an image is asked again, at most; never later than the usual time.
const AGAIN: Duration = Duration::from_millis(200);

/// The times of the next images, since the start of the job.
pub struct Checkpoints {
    every: Option<Duration>,
    due: Vec<Duration>,
    /// The rank whose image is being taken.
    taking: Option<usize>,
}

impl Checkpoints {
    /// An image of each of `size` ranks every so often (never: None), evenly spread.
    pub fn new(every: Option<Duration>, size: usize) -> Checkpoints {
        let due = match every {
            Some(every) => (1..=size as u32).map(|turn| every * turn / size as u32).collect(),
            None => Vec::new(),
        };
        Checkpoints {
            every,
            due,
            taking: None,
        }
    }

    /// The job has so many ranks now; the new ones have their first turns from now on.
    pub fn grow(&mut self, ranks: usize, now: Duration) {
        let Some(every) = self.every else { return };
        let new = ranks.saturating_sub(self.due.len()) as u32;
        self.due.extend((1..=new).map(|turn| now + every * turn / new));
    }

    /// The rank that is to be asked now. The answer must come back with [`Checkpoints::answered`].
    pub fn next(&mut self, now: Duration, runs: impl Fn(usize) -> bool) -> Option<usize> {
        if self.taking.is_some() {
            return None;
        }
        let ready = (0..self.due.len()).filter(|rank| self.due[*rank] <= now && runs(*rank));
        self.taking = ready.min_by_key(|rank| self.due[*rank]);
        self.taking
    }

    /// The rank has an image (or not).
    pub fn answered(&mut self, rank: usize, now: Duration, taken: bool) {
        if self.taking == Some(rank) {
            self.taking = None;
        }
        if let (Some(every), Some(due)) = (self.every, self.due.get_mut(rank)) {
            *due = now + if taken { every } else { every.min(AGAIN) };
        }
    }

    /// When somebody is to be asked next, if nobody is being asked.
    pub fn next_time(&self, runs: impl Fn(usize) -> bool) -> Option<Duration> {
        if self.taking.is_some() {
            return None;
        }
        (0..self.due.len())
            .filter(|rank| runs(*rank))
            .map(|rank| self.due[rank])
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_rank_has_its_turn_and_one_at_a_time() {
        let mut checkpoints = Checkpoints::new(Some(4 * SECOND), 4);
        assert_eq!(checkpoints.next_time(|_| true), Some(SECOND));
        assert_eq!(checkpoints.next(SECOND / 2, |_| true), None);
        assert_eq!(checkpoints.next(2 * SECOND, |_| true), Some(0));
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), None);
        assert_eq!(checkpoints.next_time(|_| true), None);
        checkpoints.answered(0, 3 * SECOND, true);
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(1));
        checkpoints.answered(1, 3 * SECOND, false);
        assert_eq!(checkpoints.next(3 * SECOND, |rank| rank != 2), None);
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(2));
        checkpoints.answered(2, 3 * SECOND, true);
        assert_eq!(checkpoints.next_time(|_| true), Some(3 * SECOND + AGAIN));
    }

    #[test]
    fn ranks_that_come_later_have_their_turns_too() {
        let mut checkpoints = Checkpoints::new(Some(4 * SECOND), 1);
        checkpoints.grow(3, 5 * SECOND);
        assert_eq!(checkpoints.next(6 * SECOND, |rank| rank > 0), None);
        assert_eq!(checkpoints.next(7 * SECOND, |rank| rank > 0), Some(1));
        checkpoints.answered(1, 7 * SECOND, true);
        assert_eq!(checkpoints.next(9 * SECOND, |rank| rank > 0), Some(2));
    }

    #[test]
    fn without_a_period_nobody_is_asked() {
        let mut checkpoints = Checkpoints::new(None, 3);
        assert_eq!(checkpoints.next(100 * SECOND, |_| true), None);
        checkpoints.answered(1, SECOND, true);
        assert_eq!(checkpoints.next_time(|_| true), None);
    }
}

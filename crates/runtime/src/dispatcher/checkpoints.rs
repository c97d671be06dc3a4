//! When images are taken: each rank in its turn, one at a time. With coordinated waves the whole job is one "rank" here.

use std::collections::BTreeMap;
use std::time::Duration;

/// How soon a rank that could not have an image is asked again, at most; never later than the usual time.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a rank is asked because somebody wants an image now.
const ATTEMPTS: u32 = 25;

/// What has become of the images that were wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Who waits for them.
    pub clients: Vec<u64>,
    /// Ranks of which there is none, and why.
    pub failed: Vec<(usize, String)>,
}

/// The times of the next images, since the start of the job.
pub struct Checkpoints {
    every: Option<Duration>,
    due: Vec<Option<Duration>>,
    /// The rank whose image is being taken.
    taking: Option<usize>,
    /// Ranks whose images somebody waits for, with the attempts so far.
    wanted: BTreeMap<usize, u32>,
    /// Why there is none of what was wanted.
    failed: Vec<(usize, String)>,
    /// Who waits for the wanted images.
    waiting: Vec<u64>,
}

impl Checkpoints {
    /// An image of each of `size` ranks every so often (never: None), evenly spread.
    pub fn new(every: Option<Duration>, size: usize) -> Checkpoints {
        Checkpoints {
            every,
            due: (1..=size as u32)
                .map(|turn| every.map(|every| every * turn / size as u32))
                .collect(),
            taking: None,
            wanted: BTreeMap::new(),
            failed: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// So many ranks have joined the job.
    pub fn grow(&mut self, ranks: usize, now: Duration) {
        let size = self.due.len() + ranks;
        self.due.resize(size, self.every.map(|every| now + every));
    }

    /// Images of all of these are wanted now. `client` hears of it by [`Checkpoints::finished`].
    pub fn want(&mut self, ranks: impl Iterator<Item = usize>, client: Option<u64>, now: Duration) {
        for rank in ranks {
            if let Some(due) = self.due.get_mut(rank) {
                *due = Some(now);
                self.wanted.insert(rank, 0);
            }
        }
        self.waiting.extend(client);
    }

    /// When everything that was wanted is there or cannot be.
    pub fn finished(&mut self) -> Option<Outcome> {
        if self.waiting.is_empty() || !self.wanted.is_empty() {
            return None;
        }
        Some(Outcome {
            clients: std::mem::take(&mut self.waiting),
            failed: std::mem::take(&mut self.failed),
        })
    }

    /// The rank that is to be asked now. The answer must come back with [`Checkpoints::answered`].
    pub fn next(&mut self, now: Duration, runs: impl Fn(usize) -> bool) -> Option<usize> {
        if self.taking.is_some() {
            return None;
        }
        let due = |rank: usize| self.due[rank].filter(|due| *due <= now && runs(rank));
        self.taking = (0..self.due.len())
            .filter_map(|rank| Some((due(rank)?, rank)))
            .min()
            .map(|(_, rank)| rank);
        self.taking
    }

    /// The rank has an image, or has none because of `refusal`.
    pub fn answered(&mut self, rank: usize, now: Duration, refusal: Option<&str>) {
        if self.taking == Some(rank) {
            self.taking = None;
        }
        match (self.wanted.get_mut(&rank), refusal) {
            (Some(attempts), Some(reason)) => {
                *attempts += 1;
                if *attempts >= ATTEMPTS {
                    self.wanted.remove(&rank);
                    self.failed.push((rank, reason.to_string()));
                }
            }
            (Some(_), None) => drop(self.wanted.remove(&rank)),
            (None, _) => {}
        }
        let soon = refusal.map(|_| self.every.map_or(AGAIN, |every| every.min(AGAIN)));
        if let Some(due) = self.due.get_mut(rank) {
            *due = match soon {
                Some(soon) if self.every.is_some() || self.wanted.contains_key(&rank) => Some(now + soon),
                _ => self.every.map(|every| now + every),
            };
        }
    }

    /// The rank has finished: nobody needs an image of it.
    pub fn left(&mut self, rank: usize) {
        self.wanted.remove(&rank);
        if self.taking == Some(rank) {
            self.taking = None;
        }
    }

    /// When somebody is to be asked next, if nobody is being asked.
    pub fn next_time(&self, runs: impl Fn(usize) -> bool) -> Option<Duration> {
        if self.taking.is_some() {
            return None;
        }
        (0..self.due.len())
            .filter(|rank| runs(*rank))
            .filter_map(|rank| self.due[rank])
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
        checkpoints.answered(0, 3 * SECOND, None);
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(1));
        checkpoints.answered(1, 3 * SECOND, Some("busy"));
        assert_eq!(checkpoints.next(3 * SECOND, |rank| rank != 2), None);
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(2));
        checkpoints.answered(2, 3 * SECOND, None);
        assert_eq!(checkpoints.next_time(|_| true), Some(3 * SECOND + AGAIN));
    }

    #[test]
    fn without_a_period_nobody_is_asked() {
        let mut checkpoints = Checkpoints::new(None, 3);
        assert_eq!(checkpoints.next(100 * SECOND, |_| true), None);
        checkpoints.answered(1, SECOND, None);
        assert_eq!(checkpoints.next_time(|_| true), None);
    }

    #[test]
    fn whoever_wants_images_hears_of_all() {
        let mut checkpoints = Checkpoints::new(None, 3);
        checkpoints.want(0..2, Some(7), SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
        checkpoints.answered(0, SECOND, None);
        assert_eq!(checkpoints.finished(), None);
        for attempt in 1..=ATTEMPTS {
            let now = SECOND + AGAIN * attempt;
            assert_eq!(checkpoints.next(now, |_| true), Some(1));
            checkpoints.answered(1, now, Some("it has an open socket"));
        }
        let Outcome { clients, failed } = checkpoints.finished().unwrap();
        assert_eq!(
            (clients, failed),
            (vec![7], vec![(1, "it has an open socket".to_string())])
        );
        assert_eq!(checkpoints.next(1000 * SECOND, |_| true), None);
        assert_eq!(checkpoints.finished(), None);
    }

    #[test]
    fn a_rank_that_has_left_is_not_waited_for() {
        let mut checkpoints = Checkpoints::new(None, 1);
        checkpoints.want(0..1, Some(1), SECOND);
        checkpoints.left(0);
        assert!(
            checkpoints
                .finished()
                .is_some_and(|outcome| outcome.clients == [1] && outcome.failed.is_empty())
        );
    }

    #[test]
    fn ranks_that_join_have_their_turn() {
        let mut checkpoints = Checkpoints::new(Some(SECOND), 1);
        checkpoints.grow(2, 5 * SECOND);
        assert_eq!(checkpoints.next(6 * SECOND, |rank| rank == 2), Some(2));
    }
}

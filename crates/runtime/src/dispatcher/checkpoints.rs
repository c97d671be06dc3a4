//! When images are taken: each rank in its turn, one at a time. With coordinated waves the whole job is one "rank" here.

use std::collections::BTreeMap;
use std::time::Duration;

/// How often images are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Only when somebody asks.
    Never,
    Every(Duration),
    /// As often as is best for the time to solution (Daly 2006, equation 37), from what images have cost so far and the
    /// mean time between failures of the job: given, or observed, or [`CAUTIOUS_MTBF`] before the first failure.
    Daly {
        mtbf: Option<Duration>,
    },
}

/// Mean time between failures that is assumed before one has been seen.
const CAUTIOUS_MTBF: Duration = Duration::from_secs(24 * 3600);
/// The first images under [`Period::Daly`], when nothing has been measured.
const FIRST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(100);

/// The best time between checkpoints that cost `cost`, when failures are `mtbf` apart on average (Daly 2006, equation 37).
fn daly(cost: Duration, mtbf: Duration) -> Duration {
    let (cost, mtbf) = (cost.as_secs_f64(), mtbf.as_secs_f64());
    if cost >= 2.0 * mtbf {
        return Duration::from_secs_f64(mtbf);
    }
    let part = cost / (2.0 * mtbf);
    let best = (2.0 * cost * mtbf).sqrt() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - cost;
    Duration::from_secs_f64(best.max(0.0))
}

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

/// Growth of the message logs, in bytes a second of standstill, from which on images of all ranks are worth what they cost.
/// Into fresh memory a log grows by some 2 GiB a second, into memory that it has used before by four times as much; what a rank
/// writes to after an image may cost several times the standstill again. With this, images take some twentieth of the time that a
/// program does nothing but send.
const WORTH: f64 = 320.0 * (1u64 << 30) as f64;
/// Least growth for which images are taken.
const LEAST_GROWTH: u64 = 128 << 20;

/// The times of the next images, since the start of the job.
pub struct Checkpoints {
    period: Period,
    /// Of all message logs, in bytes, since images were last taken for that reason.
    growth: u64,
    /// Doubled whenever such an image was refused: others may be refused for the same reason.
    patience: u64,
    /// What each rank's (or the job's) last image has cost.
    costs: Vec<Option<Duration>>,
    failures: u32,
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
    /// An image of each of `size` ranks every so often, evenly spread.
    pub fn new(period: Period, size: usize) -> Checkpoints {
        let every = match period {
            Period::Never => None,
            Period::Every(every) => Some(every),
            Period::Daly { .. } => Some(FIRST),
        };
        Checkpoints {
            period,
            growth: 0,
            patience: 1,
            costs: vec![None; size],
            failures: 0,
            due: (1..=size as u32)
                .map(|turn| every.map(|every| every * turn / size as u32))
                .collect(),
            taking: None,
            wanted: BTreeMap::new(),
            failed: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// A rank has failed.
    pub fn failed(&mut self) {
        self.failures += 1;
    }

    /// Time between two images of a rank, as it is at `now`.
    pub fn every(&self, now: Duration) -> Option<Duration> {
        match self.period {
            Period::Never => None,
            Period::Every(every) => Some(every),
            Period::Daly { mtbf } => {
                // Each image holds up the whole job, since ranks wait for one another: a round of all costs their sum.
                let cost = self.costs.iter().flatten().sum::<Duration>();
                if cost.is_zero() {
                    return Some(FIRST);
                }
                let observed = (self.failures > 0).then(|| now / self.failures);
                let mtbf = mtbf.or(observed).unwrap_or(CAUTIOUS_MTBF);
                Some(daly(cost, mtbf).max(SHORTEST))
            }
        }
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize, now: Duration) {
        self.due.resize(ranks, self.every(now).map(|every| now + every));
        self.costs.resize(ranks, None);
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

    /// Images let logs forget, so that they use the same memory again. They are taken when that saves much more time than
    /// the images cost; a rank that cannot have one now is not asked again.
    pub fn logs_have_grown(&mut self, bytes: u64, now: Duration) {
        self.growth += bytes;
        let cost = self.costs.iter().flatten().sum::<Duration>();
        let enough = LEAST_GROWTH.max((cost.as_secs_f64() * WORTH) as u64);
        if self.growth < enough.saturating_mul(self.patience) {
            return;
        }
        self.growth = 0;
        for due in &mut self.due {
            *due = Some(due.map_or(now, |due| due.min(now)));
        }
    }

    /// Whether somebody relies on an image of this rank.
    pub fn is_expected(&self, rank: usize) -> bool {
        self.period != Period::Never || self.wanted.contains_key(&rank)
    }

    /// When everything that was wanted is there or cannot be.
    pub fn finished(&mut self) -> Option<Outcome> {
        if !self.wanted.is_empty() {
            return None;
        }
        // Also when nobody waits: whoever comes later is not to hear of it.
        let failed = std::mem::take(&mut self.failed);
        let clients = std::mem::take(&mut self.waiting);
        (!clients.is_empty()).then_some(Outcome { clients, failed })
    }

    /// Somebody waits for images.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
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

    /// The rank has an image, which has cost so much time, or has none for this reason.
    pub fn answered(&mut self, rank: usize, now: Duration, answer: Result<Duration, &str>) {
        let refusal = answer.err();
        if let (Ok(cost), Some(place)) = (answer, self.costs.get_mut(rank)) {
            *place = Some(cost);
        }
        if self.taking == Some(rank) {
            self.taking = None;
        }
        self.patience = match refusal {
            None => 1,
            Some(_) => self.patience.saturating_mul(2),
        };
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
        let every = self.every(now);
        let soon = refusal.map(|_| every.map_or(AGAIN, |every| every.min(AGAIN)));
        if let Some(due) = self.due.get_mut(rank) {
            *due = match soon {
                Some(soon) if every.is_some() || self.wanted.contains_key(&rank) => Some(now + soon),
                _ => every.map(|every| now + every),
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

    /// There can be no image of the rank any more.
    pub fn give_up(&mut self, rank: usize, why: &str) {
        if self.wanted.remove(&rank).is_some() {
            self.failed.push((rank, why.to_string()));
        }
        self.left(rank);
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
    fn the_best_period_follows_costs_and_failures() {
        // Young's first order: sqrt(2 * 1 s * 5000 s) = 100 s.
        let best = daly(SECOND, 5000 * SECOND);
        assert!((99.0..=100.5).contains(&best.as_secs_f64()), "{best:?}");
        assert_eq!(daly(10 * SECOND, SECOND), SECOND);
        let mut checkpoints = Checkpoints::new(Period::Daly { mtbf: None }, 2);
        assert_eq!(checkpoints.every(SECOND), Some(FIRST));
        checkpoints.answered(0, FIRST, Ok(SECOND / 2));
        checkpoints.answered(1, FIRST, Ok(SECOND / 2));
        let rare = checkpoints.every(FIRST).unwrap();
        assert_eq!(rare, daly(SECOND, CAUTIOUS_MTBF));
        checkpoints.failed();
        checkpoints.failed();
        assert_eq!(checkpoints.every(1000 * SECOND), Some(daly(SECOND, 500 * SECOND)));
    }

    #[test]
    fn every_rank_has_its_turn_and_one_at_a_time() {
        let mut checkpoints = Checkpoints::new(Period::Every(4 * SECOND), 4);
        assert_eq!(checkpoints.next_time(|_| true), Some(SECOND));
        assert_eq!(checkpoints.next(SECOND / 2, |_| true), None);
        assert_eq!(checkpoints.next(2 * SECOND, |_| true), Some(0));
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), None);
        assert_eq!(checkpoints.next_time(|_| true), None);
        checkpoints.answered(0, 3 * SECOND, Ok(Duration::ZERO));
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(1));
        checkpoints.answered(1, 3 * SECOND, Err("busy"));
        assert_eq!(checkpoints.next(3 * SECOND, |rank| rank != 2), None);
        assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(2));
        checkpoints.answered(2, 3 * SECOND, Ok(Duration::ZERO));
        assert_eq!(checkpoints.next_time(|_| true), Some(3 * SECOND + AGAIN));
    }

    #[test]
    fn without_a_period_nobody_is_asked() {
        let mut checkpoints = Checkpoints::new(Period::Never, 3);
        assert_eq!(checkpoints.next(100 * SECOND, |_| true), None);
        checkpoints.answered(1, SECOND, Ok(Duration::ZERO));
        assert_eq!(checkpoints.next_time(|_| true), None);
    }

    #[test]
    fn whoever_wants_images_hears_of_all() {
        let mut checkpoints = Checkpoints::new(Period::Never, 3);
        checkpoints.want(0..2, Some(7), SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
        checkpoints.answered(0, SECOND, Ok(Duration::ZERO));
        assert_eq!(checkpoints.finished(), None);
        for attempt in 1..=ATTEMPTS {
            let now = SECOND + AGAIN * attempt;
            assert_eq!(checkpoints.next(now, |_| true), Some(1));
            checkpoints.answered(1, now, Err("it has an open socket"));
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
        let mut checkpoints = Checkpoints::new(Period::Never, 1);
        checkpoints.want(0..1, Some(1), SECOND);
        checkpoints.left(0);
        assert!(
            checkpoints
                .finished()
                .is_some_and(|outcome| outcome.clients == [1] && outcome.failed.is_empty())
        );
    }

    #[test]
    fn whoever_waits_for_what_cannot_be_is_told() {
        let mut checkpoints = Checkpoints::new(Period::Never, 1);
        checkpoints.want(0..1, Some(1), SECOND);
        checkpoints.give_up(0, "rank 3 has finished");
        let outcome = checkpoints.finished().unwrap();
        assert_eq!(outcome.failed, [(0, "rank 3 has finished".to_string())]);
    }

    #[test]
    fn nobody_hears_of_what_was_before() {
        let mut checkpoints = Checkpoints::new(Period::Never, 1);
        checkpoints.want(0..1, None, SECOND);
        checkpoints.give_up(0, "it has left MPI");
        assert_eq!(checkpoints.finished(), None);
        checkpoints.want(0..1, Some(1), SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
        checkpoints.answered(0, SECOND, Ok(SECOND));
        assert!(checkpoints.finished().unwrap().failed.is_empty());
    }

    #[test]
    fn logs_that_grow_are_worth_images_that_are_cheap() {
        let mut checkpoints = Checkpoints::new(Period::Never, 2);
        checkpoints.logs_have_grown(LEAST_GROWTH - 1, SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), None);
        checkpoints.logs_have_grown(1, SECOND);
        for rank in 0..2 {
            assert_eq!(checkpoints.next(SECOND, |_| true), Some(rank));
            assert!(!checkpoints.is_expected(rank));
            checkpoints.answered(rank, SECOND, Ok(SECOND / 20));
        }
        assert_eq!(checkpoints.next(SECOND, |_| true), None);
        // 0.1 s of standstill.
        checkpoints.logs_have_grown(31 << 30, SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), None);
        checkpoints.logs_have_grown(1 << 30, SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
        checkpoints.answered(0, SECOND, Err("it has an open socket"));
        assert_eq!(
            checkpoints.next(2 * SECOND, |rank| rank == 0),
            None,
            "it is not asked again"
        );
        checkpoints.logs_have_grown(32 << 30, SECOND);
        assert_eq!(checkpoints.next(2 * SECOND, |rank| rank == 0), None, "nor soon");
        checkpoints.logs_have_grown(32 << 30, SECOND);
        assert_eq!(checkpoints.next(2 * SECOND, |rank| rank == 0), Some(0));
    }

    #[test]
    fn ranks_that_join_have_their_turn() {
        let mut checkpoints = Checkpoints::new(Period::Every(SECOND), 1);
        checkpoints.grow(3, 5 * SECOND);
        assert_eq!(checkpoints.next(6 * SECOND, |rank| [false, false, true][rank]), Some(2));
    }
}

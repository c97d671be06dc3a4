//! The checkpoint scheduler: when images are taken, and of whom, one at a time. With coordinated waves the whole job is one
//! "rank" here, and so there are never two waves at once. Times are handed in, and nothing is sent or read here.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use turns::Order;
use turns::Turns;

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
    /// When each rank's next image is due; none where ranks take turns, but for images that somebody wants.
    due: Vec<Option<Duration>>,
    turns: Option<Turns>,
    /// The rank whose image is being taken.
    taking: Option<usize>,
    /// Because it is its turn.
    in_turn: bool,
    /// Ranks whose images are being written into files.
    writing: BTreeSet<usize>,
    /// Most images that are taken or written at the same time.
    at_most: usize,
    /// Ranks whose images somebody waits for, with the attempts so far.
    wanted: BTreeMap<usize, u32>,
    /// Why there is none of what was wanted.
    failed: Vec<(usize, String)>,
    /// Who waits for the wanted images.
    waiting: Vec<u64>,
}

impl Checkpoints {
    /// An image of each of `size` ranks every so often, evenly spread, at most so many under way.
    pub fn new(period: Period, order: Order, size: usize, at_most: usize) -> Checkpoints {
        let every = match period {
            Period::Never => None,
            Period::Every(every) => Some(every),
            Period::Daly { .. } => Some(FIRST),
        };
        let turns = every.and_then(|every| Turns::new(order, every / size as u32));
        Checkpoints {
            period,
            growth: 0,
            patience: 1,
            costs: vec![None; size],
            failures: 0,
            due: (1..=size as u32)
                .map(|turn| {
                    every
                        .filter(|_| turns.is_none())
                        .map(|every| every * turn / size as u32)
                })
                .collect(),
            turns,
            taking: None,
            in_turn: false,
            writing: BTreeSet::new(),
            at_most,
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

    /// When a rank that has just had an image is to have the next.
    fn regularly(&self, now: Duration) -> Option<Duration> {
        let every = self.every(now).filter(|_| self.turns.is_none());
        every.map(|every| now + every)
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize, now: Duration) {
        self.due.resize(ranks, self.regularly(now));
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
        if self.is_busy() {
            return None;
        }
        let due = |rank: usize| self.due[rank].filter(|due| *due <= now && runs(rank));
        let wanted = (0..self.due.len()).filter_map(|rank| Some((due(rank)?, rank))).min();
        self.in_turn = wanted.is_none();
        self.taking = match wanted {
            Some((_, rank)) => Some(rank),
            None => self.take_turn(now, runs),
        };
        self.taking
    }

    /// The rank whose turn has come. Those that are still writing have had theirs.
    fn take_turn(&mut self, now: Duration, runs: impl Fn(usize) -> bool) -> Option<usize> {
        let every = self.every(now)?;
        let turns = self.turns.as_mut()?;
        let running: Vec<usize> = (0..self.due.len()).filter(|rank| runs(*rank)).collect();
        let able: Vec<usize> = running
            .iter()
            .copied()
            .filter(|rank| !self.writing.contains(rank))
            .collect();
        if able.is_empty() {
            turns.postpone(now + every.min(AGAIN));
            return None;
        }
        turns.take(now, &able, every / running.len() as u32)
    }

    /// Whether the agent is to tell how much each rank's image would free ([`Checkpoints::logs_are`]); the turn waits for it.
    pub fn wants_logs(&mut self, now: Duration) -> bool {
        !self.is_busy() && self.turns.as_mut().is_some_and(|turns| turns.wants_logs(now))
    }

    /// An image of each rank would let senders forget so many bytes.
    pub fn logs_are(&mut self, bytes: Vec<u64>) {
        if let Some(turns) = &mut self.turns {
            turns.logs_are(bytes);
        }
    }

    /// No image can be asked for now: one is being taken, or so many are being written.
    fn is_busy(&self) -> bool {
        self.taking.is_some() || self.writing.len() >= self.at_most
    }

    /// The image that the rank has got is written into a file from now on.
    pub fn is_written(&mut self, rank: usize) {
        self.writing.insert(rank);
    }

    /// It has been written, or cannot be.
    pub fn has_been_written(&mut self, rank: usize) {
        self.writing.remove(&rank);
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
        let soon = now + self.every(now).map_or(AGAIN, |every| every.min(AGAIN));
        let regularly = self.regularly(now);
        if let Some(due) = self.due.get_mut(rank) {
            *due = match refusal {
                Some(_) if regularly.is_some() || self.wanted.contains_key(&rank) => Some(soon),
                _ => regularly,
            };
        }
        match (&mut self.turns, refusal) {
            (Some(turns), Some(_)) if self.in_turn => turns.refused(rank, soon),
            (Some(turns), None) => turns.taken(),
            _ => {}
        }
    }

    /// The rank has finished: nobody needs an image of it.
    pub fn left(&mut self, rank: usize) {
        self.wanted.remove(&rank);
        self.writing.remove(&rank);
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
        if self.is_busy() {
            return None;
        }
        let mut running = (0..self.due.len()).filter(|rank| runs(*rank)).peekable();
        let turn = self.turns.as_ref().filter(|_| running.peek().is_some());
        let wanted = running.filter_map(|rank| self.due[rank]);
        wanted.chain(turn.and_then(Turns::next_time)).min()
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
        let mut checkpoints = Checkpoints::new(Period::Daly { mtbf: None }, Order::Periodic, 2, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Every(4 * SECOND), Order::Periodic, 4, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 3, usize::MAX);
        assert_eq!(checkpoints.next(100 * SECOND, |_| true), None);
        checkpoints.answered(1, SECOND, Ok(Duration::ZERO));
        assert_eq!(checkpoints.next_time(|_| true), None);
    }

    #[test]
    fn whoever_wants_images_hears_of_all() {
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 3, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
        checkpoints.want(0..1, Some(1), SECOND);
        checkpoints.give_up(0, "rank 3 has finished");
        let outcome = checkpoints.finished().unwrap();
        assert_eq!(outcome.failed, [(0, "rank 3 has finished".to_string())]);
    }

    #[test]
    fn nobody_hears_of_what_was_before() {
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 2, usize::MAX);
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
        let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX);
        checkpoints.grow(3, 5 * SECOND);
        assert_eq!(checkpoints.next(6 * SECOND, |rank| [false, false, true][rank]), Some(2));
    }

    #[test]
    fn turns_are_spread_over_the_period() {
        let mut checkpoints = Checkpoints::new(Period::Every(4 * SECOND), Order::RoundRobin, 4, usize::MAX);
        let mut chosen = Vec::new();
        for tick in 1..=60 {
            let now = SECOND / 10 * tick;
            if let Some(rank) = checkpoints.next(now, |rank| rank != 1) {
                chosen.push((rank, tick));
                checkpoints.answered(rank, now, Ok(Duration::ZERO));
            }
        }
        // Three of four ranks run: a third of the period apart.
        assert_eq!(chosen, [(0, 10), (2, 24), (3, 38), (0, 52)]);
        assert_eq!(checkpoints.next_time(|_| false), None, "nobody runs");
    }

    #[test]
    fn whoever_wants_an_image_does_not_wait_for_a_turn() {
        let mut checkpoints = Checkpoints::new(Period::Every(30 * SECOND), Order::RoundRobin, 3, usize::MAX);
        checkpoints.want(2..3, Some(1), SECOND);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(2));
        checkpoints.answered(2, SECOND, Err("it computes"));
        assert_eq!(checkpoints.next(SECOND + AGAIN, |_| true), Some(2), "asked again");
        checkpoints.answered(2, 2 * SECOND, Ok(SECOND));
        assert!(checkpoints.finished().is_some());
        assert_eq!(checkpoints.next(9 * SECOND, |_| true), None);
        assert_eq!(checkpoints.next(10 * SECOND, |_| true), Some(0));
    }

    #[test]
    fn a_turn_waits_for_what_is_known_of_the_logs() {
        let mut checkpoints = Checkpoints::new(Period::Every(2 * SECOND), Order::MostLog, 2, usize::MAX);
        assert!(!checkpoints.wants_logs(SECOND / 2));
        assert!(checkpoints.wants_logs(SECOND));
        assert_eq!(
            (checkpoints.next(SECOND, |_| true), checkpoints.next_time(|_| true)),
            (None, None)
        );
        checkpoints.logs_are(vec![1, 2]);
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(1));
        assert!(!checkpoints.wants_logs(3 * SECOND), "one is being taken");
    }

    #[test]
    fn no_more_images_are_under_way_than_may_be() {
        let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 4, 2);
        let now = 2 * SECOND;
        for rank in 0..2 {
            assert_eq!(checkpoints.next(now, |_| true), Some(rank));
            checkpoints.answered(rank, now, Ok(Duration::ZERO));
            checkpoints.is_written(rank);
        }
        assert_eq!(
            (checkpoints.next(now, |_| true), checkpoints.next_time(|_| true)),
            (None, None)
        );
        checkpoints.has_been_written(0);
        assert_eq!(checkpoints.next(now, |_| true), Some(2));
        checkpoints.answered(2, now, Ok(Duration::ZERO));
        checkpoints.is_written(2);
        assert_eq!(checkpoints.next(now, |_| true), None);
        checkpoints.left(1);
        assert_eq!(
            checkpoints.next(now, |_| true),
            Some(3),
            "what a rank that has left was writing is over"
        );
    }

    #[test]
    fn ranks_that_write_have_had_their_turn() {
        let mut checkpoints = Checkpoints::new(Period::Every(2 * SECOND), Order::RoundRobin, 2, usize::MAX);
        for rank in 0..2 {
            checkpoints.is_written(rank);
        }
        assert_eq!(checkpoints.next(SECOND, |_| true), None);
        assert_eq!(checkpoints.next_time(|_| true), Some(SECOND + AGAIN));
        checkpoints.has_been_written(1);
        assert_eq!(checkpoints.next(SECOND + AGAIN, |_| true), Some(1));
    }
}

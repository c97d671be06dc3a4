//! The checkpoint scheduler: when images are taken, and of which rank, one at a time. With coordinated waves the whole
//! job is one "rank" here, so there are never two waves at once. Callers pass the time in; this module sends and reads
//! nothing.

#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use turns::Order;
use turns::Turns;

/// How often images are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Only on request.
    Never,
    Every(Duration),
    /// As often as is best for the time to solution (Daly 2006, equation 37). Inputs are the cost of images so far and
    /// the job's mean time between failures: given, observed, or [`CAUTIOUS_MTBF`] before the first failure.
    Daly {
        mtbf: Option<Duration>,
    },
}

/// The assumed mean time between failures before the first failure.
const CAUTIOUS_MTBF: Duration = Duration::from_secs(24 * 3600);
/// The first images under [`Period::Daly`], before any measurement.
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
/// A rank refused for long is asked after pauses of this part of that time, up to [`LONGEST_PAUSE`]: each refused
/// attempt may cost a fork.
const PART: u32 = 10;
/// How often a rank is asked for a requested image.
const ATTEMPTS: u32 = 25;

/// The outcome of requested images.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The clients that wait for them.
    pub clients: Vec<u64>,
    /// Ranks without one, with reasons.
    pub failed: Vec<(usize, String)>,
}

/// The extra cost of a byte in memory that a log has never used, in seconds.
const FRESH: f64 = 0.5e-9;
/// The whole cost of an image, in standstills: the rank's later writes are copied page by page.
const AFTERMATH: f64 = 4.0;
/// The longest pause before an image that was lost again and again is asked for.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A loss after so long is unrelated to the one before.
const CALM: Duration = Duration::from_secs(2);
/// Least growth for which images are taken while the log is far from full: in available large pages it costs 15 ms.
const LEAST_GROWTH: u64 = 256 << 20;

/// The times of the next images, since the start of the job.
pub struct Checkpoints {
    period: Period,
    /// Of all message logs, in bytes, since images were last taken for that reason.
    growth: u64,
    /// The same since the start of the job.
    logged: u64,
    /// Doubled whenever such an image was refused: others may be refused for the same reason.
    patience: u64,
    /// Since when ranks (or the job) could not have one.
    refused: BTreeMap<usize, Duration>,
    /// The cost of each rank's (or the job's) last image.
    costs: Vec<Option<Duration>>,
    failures: u32,
    /// The part of the job's time that images may take, at most.
    share: f64,
    /// Before then no rank is asked for an unrequested image: the last ones have used up their share.
    not_before: Duration,
    /// After some image the pause was clearly longer than the period, and the user knows.
    is_held_back: bool,
    is_told: bool,
    /// When each rank's next image is due; where ranks take turns, only requested images.
    due: Vec<Option<Duration>>,
    turns: Option<Turns>,
    /// The rank that takes an image, and since when.
    taking: Option<(usize, Duration)>,
    /// It takes it because of its turn.
    in_turn: bool,
    /// Ranks whose images are being written into files.
    writing: BTreeSet<usize>,
    /// Most images that are taken or written at the same time.
    at_most: usize,
    /// Per rank, the time of its last lost image, and how long its next one waits if that is lost, too.
    losses: BTreeMap<usize, (Duration, Duration)>,
    /// Ranks with requested images, and the attempts so far.
    wanted: BTreeMap<usize, u32>,
    /// Why requested images are missing.
    failed: Vec<(usize, String)>,
    /// The clients that wait for requested images.
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
            logged: 0,
            patience: 1,
            refused: BTreeMap::new(),
            costs: vec![None; size],
            failures: 0,
            share: 1.0,
            not_before: Duration::ZERO,
            is_held_back: false,
            is_told: false,
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
            losses: BTreeMap::new(),
            wanted: BTreeMap::new(),
            failed: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Images take at most this part of the job's time, except for requested ones. It is the job's, not a rank's: while
    /// one rank's image is taken, others wait for its messages.
    pub fn with_share(self, share: f64) -> Checkpoints {
        Checkpoints { share, ..self }
    }

    /// Once, when images have begun to come clearly less often than planned because of their share. Returns the planned
    /// period, and the share.
    pub fn begins_to_hold_back(&mut self) -> Option<(Duration, f64)> {
        let Period::Every(every) = self.period else { return None };
        let begins = self.is_held_back && !std::mem::replace(&mut self.is_told, self.is_held_back);
        begins.then_some((every, self.share))
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
                // Each image holds up the whole job, because ranks wait for one another: a round of all costs their
                // sum.
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

    /// When a rank with a new image is due for the next.
    fn regularly(&self, now: Duration) -> Option<Duration> {
        let every = self.every(now).filter(|_| self.turns.is_none());
        every.map(|every| now + every)
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize, now: Duration) {
        self.due.resize(ranks, self.regularly(now));
        self.costs.resize(ranks, None);
    }

    /// An image is lost, and without another the rank may have nothing to go on from: it is asked at once. If that one
    /// is lost, too, memory is used up, and images make it worse: further ones follow after pauses that double.
    pub fn lost(&mut self, rank: usize, now: Duration) {
        if self.wanted.contains_key(&rank) {
            return;
        }
        let (last, pause) = self.losses.entry(rank).or_insert((now, Duration::ZERO));
        if now > *last + CALM.max(*pause * 2) {
            *pause = Duration::ZERO;
        }
        let due = now + *pause;
        (*last, *pause) = (now, (*pause * 2).clamp(AGAIN, LONGEST_PAUSE));
        self.want(std::iter::once(rank), None, due);
    }

    /// Images of all of these are requested for `time`. `client` gets the outcome from [`Checkpoints::finished`].
    pub fn want(&mut self, ranks: impl Iterator<Item = usize>, client: Option<u64>, time: Duration) {
        for rank in ranks {
            if let Some(due) = self.due.get_mut(rank) {
                *due = Some(time);
                self.wanted.insert(rank, 0);
            }
        }
        self.waiting.extend(client);
    }

    /// After images, logs use the same memory again. Future traffic is unknown. If it equals the traffic so far, s
    /// bytes, images every g bytes cost s ÷ g times one image; the first g bytes cost fresh memory. The g used here
    /// makes both equal, and their sum the least. A rank that cannot have an image now is not asked again.
    pub fn logs_have_grown(&mut self, bytes: u64, now: Duration) {
        self.growth += bytes;
        self.logged += bytes;
        let cost = AFTERMATH * self.costs.iter().flatten().sum::<Duration>().as_secs_f64();
        let enough = LEAST_GROWTH.max((cost * self.logged as f64 / FRESH).sqrt() as u64);
        if self.growth < enough.saturating_mul(self.patience) {
            return;
        }
        self.growth = 0;
        for due in &mut self.due {
            *due = Some(due.map_or(now, |due| due.min(now)));
        }
    }

    /// When the image that this rank takes was asked for.
    pub fn asked_at(&self, rank: usize) -> Option<Duration> {
        let (_, since) = self.taking.filter(|(taking, _)| *taking == rank)?;
        Some(since)
    }

    /// Whether a client or the job relies on an image of this rank.
    pub fn is_expected(&self, rank: usize) -> bool {
        self.period != Period::Never || self.wanted.contains_key(&rank)
    }

    /// The outcome, when each requested image is there or impossible.
    pub fn finished(&mut self) -> Option<Outcome> {
        if !self.wanted.is_empty() {
            return None;
        }
        // Also without a waiting client: a later one must not get it.
        let failed = std::mem::take(&mut self.failed);
        let clients = std::mem::take(&mut self.waiting);
        (!clients.is_empty()).then_some(Outcome { clients, failed })
    }

    /// A client waits for images.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The clients that wait for requested images.
    pub fn waiting(&self) -> &[u64] {
        &self.waiting
    }

    /// How many requested images are not taken, and how many are being written.
    pub fn left_to_do(&self) -> (usize, usize) {
        (self.wanted.len(), self.writing.len())
    }

    /// The rank to ask now. The answer must come back with [`Checkpoints::answered`].
    pub fn next(&mut self, now: Duration, runs: impl Fn(usize) -> bool) -> Option<usize> {
        if self.is_busy() {
            return None;
        }
        // In the order in which they were due: ranks that wait for the same moment all get a turn.
        let may = |rank: usize| self.due(rank).is_some_and(|due| due <= now) && runs(rank);
        let due = |rank: usize| self.due[rank].filter(|_| may(rank));
        let wanted = (0..self.due.len()).filter_map(|rank| Some((due(rank)?, rank))).min();
        self.in_turn = wanted.is_none();
        let rank = match wanted {
            Some((_, rank)) => Some(rank),
            None if now < self.not_before => None,
            None => self.take_turn(now, runs),
        };
        self.taking = rank.map(|rank| (rank, now));
        rank
    }

    /// When the next image of `rank` may be asked for.
    fn due(&self, rank: usize) -> Option<Duration> {
        let due = self.due[rank]?;
        match self.wanted.contains_key(&rank) {
            true => Some(due),
            false => Some(due.max(self.not_before)),
        }
    }

    /// The rank whose turn it is. Those that are still writing have had theirs.
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

    /// Whether the agent must report how much each rank's image would free ([`Checkpoints::logs_are`]); the turn waits
    /// for it.
    pub fn wants_logs(&mut self, now: Duration) -> bool {
        !self.is_busy() && now >= self.not_before && self.turns.as_mut().is_some_and(|turns| turns.wants_logs(now))
    }

    /// An image of each rank would let senders forget so many bytes.
    pub fn logs_are(&mut self, bytes: Vec<u64>) {
        if let Some(turns) = &mut self.turns {
            turns.logs_are(bytes);
        }
    }

    /// No rank can be asked now: one takes an image, or the most are being written.
    fn is_busy(&self) -> bool {
        self.taking.is_some() || self.writing.len() >= self.at_most
    }

    /// The rank's new image is being written into a file.
    pub fn begin_writing(&mut self, rank: usize) {
        self.writing.insert(rank);
    }

    /// It is in its file, or cannot be written.
    pub fn end_writing(&mut self, rank: usize) {
        self.writing.remove(&rank);
    }

    /// The rank has an image, which cost so much time, or has none for this reason.
    pub fn answered(&mut self, rank: usize, now: Duration, answer: Result<Duration, &str>) {
        let refusal = answer.err();
        if let (Ok(cost), Some(place)) = (answer, self.costs.get_mut(rank)) {
            *place = Some(cost);
        }
        let taken = self.taking.take_if(|(taken, _)| *taken == rank);
        let took = taken.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
        if !self.wanted.contains_key(&rank) {
            let pause = took.mul_f64(1.0 / self.share - 1.0);
            self.not_before = now + pause;
            let is_long = self.every(now).is_some_and(|every| pause > every * 2);
            self.is_held_back |= is_long && refusal.is_none();
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
        let soon = now + self.pause_after(rank, refusal.is_some(), now);
        // A pause as long as the image took, at least: a job that stands still for images would do little else.
        let regularly = self.regularly(now).map(|due| due.max(now + took));
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

    /// How long to leave alone a rank that could not have an image; resets the pause of one that had.
    fn pause_after(&mut self, rank: usize, is_refused: bool, now: Duration) -> Duration {
        let every = self.every(now);
        let soon = every.map_or(AGAIN, |every| every.min(AGAIN));
        if !is_refused || self.wanted.contains_key(&rank) {
            self.refused.remove(&rank);
            return soon;
        }
        let since = *self.refused.entry(rank).or_insert(now);
        let most = LONGEST_PAUSE.max(every.unwrap_or_default());
        soon.max((now.saturating_sub(since) / PART).min(most))
    }

    /// The rank has finished: its image is not needed.
    pub fn left(&mut self, rank: usize) {
        self.wanted.remove(&rank);
        self.writing.remove(&rank);
        self.taking.take_if(|(taken, _)| *taken == rank);
    }

    /// No image of the rank is possible any more.
    pub fn give_up(&mut self, rank: usize, why: &str) {
        if self.wanted.remove(&rank).is_some() {
            self.failed.push((rank, why.to_string()));
        }
        self.left(rank);
    }

    /// When the next rank is due, if none takes an image now.
    pub fn next_time(&self, runs: impl Fn(usize) -> bool) -> Option<Duration> {
        if self.is_busy() {
            return None;
        }
        let mut running = (0..self.due.len()).filter(|rank| runs(*rank)).peekable();
        let turn = self.turns.as_ref().filter(|_| running.peek().is_some());
        let wanted = running.filter_map(|rank| self.due(rank));
        let turn = turn.and_then(Turns::next_time).map(|due| due.max(self.not_before));
        wanted.chain(turn).min()
    }
}

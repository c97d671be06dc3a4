//! The job's measurements of itself: what ranks sent and its costs (counted by them, [`counters`]), every checkpoint,
//! every recovery. This module decides and reports nothing; see [`report`] and [`super::events`].

mod report;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use resurgo_wire::control::{Ended, LifeStatistics};
use resurgo_wire::counters::{Cost, Costs, Sizes};

use super::events::{Event, Sink};
use super::node::NodeFigures;
use crate::channel_memory::Held;
pub use report::Outcome;

/// Checkpoints and recoveries that are kept one by one, the last ones. Sums count all.
const KEPT: usize = 10_000;

/// Seconds between two moments, which are nanoseconds of CLOCK_MONOTONIC; none when one of them is not known.
fn between(from: Option<Duration>, to: Option<Duration>) -> Option<f64> {
    Some(to?.saturating_sub(from?).as_secs_f64())
}

/// One rank.
#[derive(Debug, Clone, Default)]
struct RankStats {
    restarts: u64,
    /// Of the most advanced life: one that ends during its replay has counted less than the log holds.
    deliveries: u64,
    delivered_bytes: u64,
    sizes: Sizes,
    /// Of all lives.
    costs: Costs,
}

/// What a rank has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankFigures {
    pub restarts: u64,
    pub messages: u64,
    pub bytes: u64,
    pub deliveries: u64,
    pub log_bytes: u64,
}

impl RankStats {
    fn figures(&self) -> RankFigures {
        RankFigures {
            restarts: self.restarts,
            messages: self.sizes.iter().map(|[messages, _]| messages).sum(),
            bytes: self.sizes.iter().map(|[_, bytes]| bytes).sum(),
            deliveries: self.deliveries,
            log_bytes: self.costs[Cost::LogBytes as usize],
        }
    }

    fn take(&mut self, life: &LifeStatistics) {
        let messages = |sizes: &Sizes| sizes.iter().map(|[messages, _]| messages).sum::<u64>();
        if life.deliveries + messages(&life.sizes) >= self.deliveries + messages(&self.sizes) {
            (self.deliveries, self.delivered_bytes) = (life.deliveries, life.delivered_bytes);
            self.sizes = life.sizes;
        }
        self.costs = life.costs;
    }
}

/// An image of a rank, or a wave (Gao 2007, §5).
#[derive(Debug, Clone)]
struct Checkpoint {
    /// None: a wave.
    rank: Option<usize>,
    /// Of these ranks; none: of all.
    group: Option<Vec<usize>>,
    number: u64,
    /// When it was complete, since the start of the job.
    at: Duration,
    /// How long a rank stood still for it: the mean, and the longest.
    individual: Duration,
    longest: Duration,
    /// From the request.
    total: Duration,
    /// The delay of the job if standstills are its only cost: the mean over all ranks.
    effective: Duration,
    /// In files: ranks, bytes, written bytes, the longest write time.
    files: usize,
    bytes: u64,
    written: u64,
    write: Duration,
}

/// Ranks' standstills for images.
#[derive(Debug, Default)]
struct Stalls {
    count: u64,
    /// Their total time, and with each in the mean over all ranks.
    all: Duration,
    mean: Duration,
    longest: Duration,
}

/// One return of a failed rank. Moments are by the dispatcher's clock, since the start of the job; none: not reached,
/// or unknown.
#[derive(Debug, Clone, Default)]
struct Recovery {
    rank: usize,
    /// Number of the new life.
    life: u64,
    image: u64,
    from_file: bool,
    /// The wave all ranks returned to.
    wave: Option<u64>,
    killed: Option<Duration>,
    noticed: Duration,
    asked: Option<Duration>,
    runs: Option<Duration>,
    /// How long that took.
    collecting: Duration,
    collected: Option<Duration>,
    replayed: Option<Duration>,
    caught_up: Option<Duration>,
    deliveries: u64,
}

/// A place that recorded waves are copied to.
#[derive(Debug, Clone, Default)]
struct PlaceStats {
    place: String,
    /// Waves that are there or were, and that could not be copied.
    waves: u64,
    failed: u64,
    /// Bytes of their files, and bytes that went there: other parts of the files were there already.
    bytes: u64,
    put: u64,
    /// How long that took.
    time: Duration,
    /// The last wave there, and since when, since the start of the job.
    last: Option<(u64, Duration)>,
}

/// A list of which the last entries are kept.
#[derive(Debug)]
struct Last<T> {
    kept: VecDeque<T>,
    left_out: u64,
}

impl<T> Last<T> {
    const NEW: Last<T> = Last {
        kept: VecDeque::new(),
        left_out: 0,
    };

    fn push(&mut self, entry: T) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.left_out += 1;
        }
        self.kept.push_back(entry);
    }
}

/// All measurements.
pub struct Stats {
    start: Instant,
    protocol: String,
    /// All ranks return when one has failed.
    coordinated: bool,
    ranks: Vec<RankStats>,
    failures: u64,
    /// When ranks failed that have not caught up since.
    failed_at: Vec<Option<Instant>>,
    /// The total time whose work is lost.
    lost: Duration,
    replay: Duration,
    replayed_deliveries: u64,
    recoveries: Last<Recovery>,
    /// The last failure, until its consequence is decided.
    failing: Recovery,
    /// When an image of each rank was asked for.
    asked_at: Vec<Option<Instant>>,
    images: u64,
    waves: u64,
    last_image: Option<Instant>,
    /// What each channel memory held, if it has reported.
    channel_memories: Vec<Option<Held>>,
    places: Vec<PlaceStats>,
    /// Several nodes, and which each rank is on.
    nodes: (Vec<NodeFigures>, Vec<usize>),
    /// Of the dispatcher's loop.
    longest_turn: Duration,
    /// From requests to complete images or waves.
    checkpoint_time: Duration,
    /// Written to files.
    image_bytes: u64,
    stalls: Stalls,
    checkpoints: Last<Checkpoint>,
    /// The ranks' work since then is not lost yet: it began with a wave or a return.
    work_since: Instant,
}

impl Stats {
    pub fn new(size: usize, start: Instant) -> Stats {
        Stats {
            start,
            protocol: String::new(),
            coordinated: false,
            ranks: vec![RankStats::default(); size],
            failures: 0,
            failed_at: vec![None; size],
            lost: Duration::ZERO,
            replay: Duration::ZERO,
            replayed_deliveries: 0,
            recoveries: Last::NEW,
            failing: Recovery::default(),
            asked_at: vec![None; size],
            images: 0,
            waves: 0,
            last_image: None,
            channel_memories: Vec::new(),
            places: Vec::new(),
            nodes: Default::default(),
            longest_turn: Duration::ZERO,
            checkpoint_time: Duration::ZERO,
            image_bytes: 0,
            stalls: Stalls::default(),
            checkpoints: Last::NEW,
            work_since: start,
        }
    }

    /// There are so many ranks now.
    fn grow(&mut self, ranks: usize) {
        self.ranks.resize(ranks, RankStats::default());
        self.failed_at.resize(ranks, None);
        self.asked_at.resize(ranks, None);
    }

    /// Images (or complete waves) so far, and when the last was taken.
    pub fn images(&self) -> (u64, Option<Instant>) {
        (self.images + self.waves, self.last_image)
    }

    /// The number of the last one, its rank (none: it is a wave), and when it was taken.
    pub fn last_image(&self) -> Option<(u64, Option<usize>, Instant)> {
        let last = self.checkpoints.kept.back()?;
        Some((last.number, last.rank, self.start + last.at))
    }

    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// What a rank has done so far. `life`: the counters of its present life.
    pub fn rank(&self, rank: usize, life: Option<&LifeStatistics>) -> RankFigures {
        let mut known = self.ranks[rank].clone();
        life.iter().for_each(|life| known.take(life));
        known.figures()
    }

    pub fn restarts(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.restarts).sum()
    }

    /// Messages and bytes that ranks have sent.
    fn sent(&self) -> (u64, u64) {
        let classes = self.ranks.iter().flat_map(|rank| rank.sizes.iter());
        classes.fold((0, 0), |(messages, bytes), class| {
            (messages + class[0], bytes + class[1])
        })
    }

    fn costs(&self) -> Costs {
        resurgo_wire::counters::together(self.ranks.iter().map(|rank| &rank.costs))
    }

    /// How long a rank stands still for one image, in the mean.
    fn individual(&self) -> Option<f64> {
        mean(self.stalls.all, self.stalls.count)
    }

    /// How long an image, or a wave, takes from the request, in the mean.
    fn total(&self) -> Option<f64> {
        mean(self.checkpoint_time, self.images + self.waves)
    }

    fn effective(&self) -> Duration {
        self.stalls.mean
    }

    fn checkpointed(&mut self, rank: usize, number: u64, stall: Duration, now: Instant) {
        self.images += 1;
        self.stood_still(1, stall, stall / self.ranks.len() as u32, stall, now);
        let asked = self.asked_at[rank].take().unwrap_or(now);
        self.checkpoint_time += now.duration_since(asked);
        self.checkpoints.push(Checkpoint {
            rank: Some(rank),
            group: None,
            number,
            at: now.duration_since(self.start),
            individual: stall,
            longest: stall,
            total: now.duration_since(asked),
            effective: stall / self.ranks.len() as u32,
            files: 0,
            bytes: 0,
            written: 0,
            write: Duration::ZERO,
        });
    }

    /// `group`: it is a wave of these ranks.
    fn wave_complete(
        &mut self,
        number: u64,
        total: Duration,
        longest: Duration,
        mean: Duration,
        group: Option<&[usize]>,
        now: Instant,
    ) {
        self.waves += 1;
        self.checkpoint_time += total;
        self.work_since = now;
        let ranks = group.map_or(self.ranks.len(), <[usize]>::len) as u32;
        let all = mean * ranks;
        let effective = all / self.ranks.len() as u32;
        self.stood_still(ranks.into(), all, effective, longest, now);
        self.checkpoints.push(Checkpoint {
            rank: None,
            group: group.map(<[usize]>::to_vec),
            number,
            at: now.duration_since(self.start),
            individual: mean,
            longest,
            total,
            effective,
            files: 0,
            bytes: 0,
            written: 0,
            write: Duration::ZERO,
        });
    }

    fn stood_still(&mut self, count: u64, all: Duration, mean: Duration, longest: Duration, now: Instant) {
        self.last_image = Some(now);
        self.stalls.count += count;
        self.stalls.all += all;
        self.stalls.mean += mean;
        self.stalls.longest = self.stalls.longest.max(longest);
    }

    fn image_written(&mut self, rank: usize, number: u64, bytes: u64, written: u64, time: Duration) {
        self.image_bytes += written;
        let is_of = |one: &&mut Checkpoint| {
            let in_group = one.group.as_ref().is_none_or(|group| group.contains(&rank));
            one.number == number && one.rank.is_none_or(|of| of == rank) && in_group
        };
        let mut newest_first = self.checkpoints.kept.iter_mut().rev();
        if let Some(checkpoint) = newest_first.find(is_of) {
            checkpoint.files += 1;
            checkpoint.bytes += bytes;
            checkpoint.written += written;
            checkpoint.write = checkpoint.write.max(time);
        }
    }

    fn place(&mut self, place: &str) -> &mut PlaceStats {
        let known = self.places.iter().position(|known| known.place == place);
        let at = known.unwrap_or_else(|| {
            self.places.push(PlaceStats {
                place: place.to_string(),
                ..PlaceStats::default()
            });
            self.places.len() - 1
        });
        &mut self.places[at]
    }

    fn failed(&mut self, ended: &Ended, now: Instant) {
        let rank = ended.rank;
        self.failures += 1;
        // A failure during the replay of another: the time runs since the first.
        self.failed_at[rank].get_or_insert(now);
        self.ranks[rank].take(&ended.statistics);
        let noticed = self
            .since_start(now)
            .saturating_sub(Duration::from_nanos(ended.ending_ns));
        self.failing = Recovery {
            rank,
            life: ended.life + 1,
            killed: ended
                .unnoticed_ns
                .map(|unnoticed| noticed.saturating_sub(Duration::from_nanos(unnoticed))),
            noticed,
            ..Recovery::default()
        };
    }

    /// The rank that failed last starts again, or one whose node is lost.
    fn restarting(&mut self, rank: usize, now: Instant) {
        self.ranks[rank].restarts += 1;
        let mut failing = std::mem::take(&mut self.failing);
        if failing.life == 0 {
            (failing.rank, failing.noticed) = (rank, self.since_start(now));
            self.failed_at[rank].get_or_insert(now);
        }
        self.recoveries.push(failing);
    }

    /// The last recovery of `rank`, unless it is over.
    fn recovery(&mut self, rank: usize) -> Option<&mut Recovery> {
        let mut newest_first = self.recoveries.kept.iter_mut().rev();
        let last = newest_first.find(|recovery| recovery.rank == rank);
        last.filter(|recovery| recovery.caught_up.is_none())
    }

    /// Ranks that have failed and have not caught up.
    pub fn behind(&self) -> impl Iterator<Item = usize> {
        let failed = self.failed_at.iter().enumerate();
        failed.filter_map(|(rank, failed)| failed.map(|_| rank))
    }

    fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// A life runs now, so long after it was asked for. `image`: its number, and whether it is from a file.
    fn started(&mut self, rank: usize, life: u64, (image, from_file): (u64, bool), beginning: Duration, now: Instant) {
        let runs = self.since_start(now);
        if let Some(recovery) = self.recovery(rank) {
            (recovery.life, recovery.image, recovery.from_file) = (life, image, from_file);
            (recovery.asked, recovery.runs) = (Some(runs.saturating_sub(beginning)), Some(runs));
        }
    }

    /// The time since the failure before the present life of `rank`; none if there was no failure.
    pub fn lost_since_failure(&self, rank: usize, now: Instant) -> Option<Duration> {
        self.failed_at[rank].map(|failed| now.duration_since(failed))
    }

    fn caught_up(&mut self, rank: usize, life: &LifeStatistics, replay: Duration, lost: Option<Duration>) {
        self.replay += replay;
        self.replayed_deliveries += life.replay_deliveries;
        if let Some(recovery) = self.recovery(rank) {
            let asked = recovery.asked.unwrap_or_default();
            let after = |ns: u64| (ns > 0).then(|| asked + Duration::from_nanos(ns));
            recovery.collecting = Duration::from_nanos(life.collecting_ns);
            recovery.collected = after(life.collected_ns);
            recovery.replayed = after(life.replayed_ns);
            recovery.caught_up = after(life.caught_up_ns);
            recovery.deliveries = life.replay_deliveries;
        }
        self.failed_at[rank] = None;
        self.lost += lost.unwrap_or_default();
    }

    /// The time whose work is lost when all ranks go on from `wave`, 0: the beginning.
    pub fn lost_by_return(&self, wave: u64, now: Instant) -> Duration {
        match wave {
            // All of it; some was lost before.
            0 => now.duration_since(self.start).saturating_sub(self.lost),
            _ => now.saturating_duration_since(self.work_since),
        }
    }

    fn returned(&mut self, wave: u64, lost: Duration, now: Instant) {
        self.failed_at.fill(None);
        let returned = self.since_start(now);
        for recovery in self
            .recoveries
            .kept
            .iter_mut()
            .filter(|recovery| recovery.caught_up.is_none())
        {
            (recovery.wave, recovery.caught_up) = (Some(wave), Some(returned));
        }
        self.lost += lost;
        self.work_since = now;
    }

    /// The job is over. `statistics` are those of every rank's last life; none if the agent could not tell them.
    fn ended(&mut self, statistics: &[LifeStatistics], now: Instant) {
        for (rank, life) in self.ranks.iter_mut().zip(statistics) {
            rank.take(life);
        }
        // Time is lost even if a failed rank never catches up.
        let failed: Vec<Instant> = self.failed_at.iter_mut().filter_map(Option::take).collect();
        if self.coordinated && !failed.is_empty() {
            self.lost += now.saturating_duration_since(self.work_since);
        } else {
            self.lost += failed
                .iter()
                .map(|failed| now.duration_since(*failed))
                .sum::<Duration>();
        }
    }
}

impl Sink for Stats {
    fn take(&mut self, event: &Event, now: Instant) {
        match *event {
            Event::JobStarted {
                protocol, coordinated, ..
            } => {
                (self.protocol, self.coordinated) = (protocol.to_string(), coordinated);
            }
            Event::Started {
                rank,
                life,
                image,
                from_file,
                beginning,
                ..
            } => self.started(rank, life, (image, from_file), beginning, now),
            Event::Finished { ended, .. } => self.ranks[ended.rank].take(&ended.statistics),
            Event::Failed { ended, .. } => self.failed(ended, now),
            Event::Restarting { rank } => self.restarting(rank, now),
            Event::CaughtUp {
                rank,
                statistics,
                replay,
                lost,
                ..
            } => self.caught_up(rank, statistics, replay, lost),
            Event::Spawned { ranks, .. } | Event::Replaced { ranks, .. } => self.grow(self.ranks.len() + ranks.len()),
            Event::WaveFlushed {
                wave,
                place,
                bytes,
                put,
                took,
            } => {
                let at = self.since_start(now);
                let place = self.place(place);
                place.waves += 1;
                place.bytes += bytes;
                place.put += put;
                place.time += took;
                place.last = Some((wave, at));
            }
            Event::WaveNotFlushed { place, .. } => self.place(place).failed += 1,
            Event::ImageAsked { rank } => self.asked_at[rank] = Some(now),
            Event::Checkpointed { rank, image, stall, .. } => self.checkpointed(rank, image, stall, now),
            Event::WaveComplete {
                wave,
                total,
                longest,
                mean,
                ranks,
                ..
            } => {
                self.wave_complete(wave, total, longest, mean, ranks, now);
            }
            Event::ImageWritten {
                rank,
                image,
                bytes,
                written,
                time,
            } => {
                self.image_written(rank, image, bytes, written, time);
            }
            Event::Returned {
                wave, lost: Some(lost), ..
            } => self.returned(wave, lost, now),
            Event::ReturnsTogether { .. } => self.coordinated = true,
            Event::NodesWere { nodes, of_rank, turn } => {
                self.nodes = (nodes.to_vec(), of_rank.to_vec());
                self.longest_turn = turn;
            }
            Event::ChannelMemoriesHeld { held } => self.channel_memories = held.to_vec(),
            Event::LastCounters { statistics } => self.ended(statistics, now),
            _ => {}
        }
    }
}

fn mean(sum: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| sum.as_secs_f64() / count as f64)
}

#[cfg(test)]
mod tests;

//! The setting `channel-memory`: ranks that talk only to channel memories, over connections of their own making. A
//! crash takes everything of the rank but its images. On each connection, messages on their way arrive up to some
//! moment.
//!
//! Connections keep order, and are as fast as they like, each for itself. Channel memories do not fail: with one the job ends.

mod image;
mod memory;
mod rank;

use std::collections::VecDeque;

use resurgo_protocol::channel_memory::{Admission, ChannelMemory, Departures, memory_of};
use resurgo_protocol::coordinator::{KEPT as KEPT_IMAGES, Plan};
use resurgo_protocol::group::Groups;
use resurgo_protocol::group::formation::Grouping;
use resurgo_protocol::{Coordinator, Fact, Rank, Tolerate};

use crate::checkers::{Checkers, KEPT, LIVENESS, MAX_RANKS, Violation, violation};
use crate::kept::KeptImages;
use crate::mutation::Mutation;
use crate::program::{Job, Program};
use crate::queue::Queue;
use crate::random::Random;
use crate::subject::Subject;
use crate::trace::Trace;
use crate::world::{Failure, Options, Outcome, Report};
use image::Image;

/// Events after the last failure by which every rank must have finished.
const PATIENCE: u64 = 200_000;
/// Most deliveries of one completion-queue read, as MPICH asks for.
const READ_ENTRIES: u64 = 8;

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    ssn: u64,
    tag: u32,
    value: u64,
}

/// From a rank to a channel memory.
#[derive(Debug, Clone, Copy)]
enum ToMemory {
    /// The life begins behind so many deliveries.
    Hello {
        delivered: u64,
    },
    Message {
        destination: Rank,
        content: Content,
    },
    Report {
        rclock: u64,
        polls: u64,
    },
    Forget {
        rclock: u64,
    },
    Sync,
}

/// From a channel memory to a rank.
#[derive(Debug, Clone)]
enum ToRank {
    Welcome(Admission),
    Acknowledge(u64),
    Synced,
    Served(Served),
}

#[derive(Debug, Clone, Copy)]
struct Served {
    source: Rank,
    polls: Option<u64>,
    content: Content,
}

#[derive(Debug)]
enum Event {
    Step(Rank, u64),
    Restart(Rank),
    /// The life named arrives at the memory with this.
    ToMemory(usize, Rank, u64, ToMemory),
    ToRank(usize, Rank, u64, ToRank),
    /// The memory serves a life what it has not served yet, or a part of it.
    Serve(usize, Rank, u64),
    /// The image taken by this life of the rank is complete.
    ImageComplete(Rank, u64),
    /// This life of the rank reports what may be forgotten.
    Collect(Rank, u64),
    LastImages(Rank),
}

/// A life that runs its program.
#[derive(Debug, Clone)]
struct Life {
    subject: Subject,
    program: Program,
    departures: Departures,
    /// Deliveries of the read under way.
    read: Option<u64>,
    held: VecDeque<(usize, ToMemory)>,
}

struct Process {
    incarnation: u64,
    up: bool,
    finished: bool,
    life: Option<Box<Life>>,
    /// Per memory, its report on former lives.
    welcomes: Vec<Option<Admission>>,
    /// Served and not delivered.
    inbox: VecDeque<Served>,
    /// Per memory, when the last frame in each direction arrives.
    arrives: Vec<(u64, u64)>,
    /// Frames to memories that have not arrived.
    under_way: u64,
    /// Per former life and memory, the time after which messages on their way are lost.
    cuts: Vec<Vec<u64>>,
    /// A broken variant's report that waits for the next send.
    late: Option<ToMemory>,
    /// Memories that have yet to confirm everything: the rank stands still.
    to_sync: usize,
    images: KeptImages<Image>,
    /// Images to take when the programs have ended.
    images_due: usize,
    /// The image that the present life begins from.
    from: Option<Image>,
}

impl Process {
    fn image_is_under_way(&self) -> bool {
        self.to_sync > 0 || self.images.writing.is_some()
    }

    fn is_cut(&self, incarnation: u64, memory: usize, now: u64) -> bool {
        let former = self.cuts.get(incarnation as usize - 1);
        former.is_some_and(|cuts| now > cuts[memory])
    }
}

struct World {
    mutation: Option<Mutation>,
    random: Random,
    now: u64,
    queue: Queue<Event>,
    job: Job,
    checkers: Checkers,
    memories: Vec<ChannelMemory<Content>>,
    ranks: Vec<Process>,
    coordinator: Coordinator,
    /// Why the job cannot go on, from the coordinator.
    failure: Option<String>,
    // How rough the run is; times are in ticks, and each is the longest.
    pace: u64,
    latency: u64,
    repair: u64,
    crash_one_in: u64,
    failures_left: u64,
    /// Events before the first random failure.
    calm: u64,
    /// Ranks tend to crash while they join and replay.
    spiteful: bool,
    crashes: u64,
    /// How often an image is asked for, in steps of a rank.
    image_one_in: Option<u64>,
    /// The longest that one is being written.
    image_time: u64,
    /// All programs have ended; ranks take their last images.
    closing: bool,
    images: u64,
    from_images: u64,
    fallbacks: u64,
    trace: Trace,
}

/// Runs `seed`. With `trace`, the report has the last events.
pub(crate) fn simulate(seed: u64, options: Options, trace: bool) -> Result<Report, Failure> {
    let mut world = World::new(seed, options, trace);
    world.run().map_err(|violation| Failure {
        violation,
        trace: world.trace.take(),
    })
}

impl World {
    fn new(seed: u64, options: Options, trace: bool) -> Self {
        let mut random = Random::new(crate::random::mix(seed, 3));
        let size = random.between(2, MAX_RANKS as u64) as usize;
        let memories = random.between(1, 3) as usize;
        let job = Job::random(size, &mut random);
        let process = || Process {
            incarnation: 0,
            up: false,
            finished: false,
            life: None,
            welcomes: Vec::new(),
            inbox: VecDeque::new(),
            arrives: Vec::new(),
            under_way: 0,
            cuts: Vec::new(),
            late: None,
            to_sync: 0,
            images: KeptImages::default(),
            images_due: 0,
            from: None,
        };
        let mut world = Self {
            mutation: options.mutation,
            now: 0,
            queue: Queue::new(),
            job,
            checkers: Checkers::new(size, Tolerate::Node, false, false),
            memories: (0..memories).map(|_| ChannelMemory::default()).collect(),
            ranks: (0..size).map(|_| process()).collect(),
            coordinator: Coordinator::new(Plan {
                protocol: options.setting.protocol(),
                units: Groups::one(size),
                groups: Grouping::One,
                files: true,
                replicas: 0,
                parity: None,
                seed: 0,
                moves: false,
                keeps_logs: false,
                kept: KEPT_IMAGES,
                local_copies: true,
                groups_at_once: 1,
                ends_count: false,
                begins_anew: true,
            }),
            failure: None,
            pace: random.pick([1, 3, 10, 30]),
            latency: random.pick([1, 5, 20, 60]),
            repair: random.pick([1, 10, 50, 150]),
            crash_one_in: random.pick([15, 50, 150, 400]),
            failures_left: random.below(9),
            calm: random.pick([0, 100, 400, 1000]),
            spiteful: random.one_in(3),
            crashes: 0,
            image_one_in: [None, Some(10), Some(40), Some(150)][random.below(4) as usize],
            image_time: random.pick([1, 10, 50, 200]),
            closing: false,
            images: 0,
            from_images: 0,
            fallbacks: 0,
            trace: Trace::new(trace),
            random,
        };
        world.note(|| format!("{size} ranks, {memories} channel memories"));
        world.coordinate(Fact::Launched);
        (0..size as Rank).for_each(|rank| world.join(rank));
        world
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.queue.push(self.now + after, event);
    }

    fn run(&mut self) -> Result<Report, Violation> {
        let (mut events, mut last_failure) = (0, 0);
        loop {
            let finished = self.ranks.iter().all(|process| process.finished);
            if finished && self.image_one_in.is_some() {
                self.close();
            }
            if finished && (!self.closing || self.queue.is_empty()) {
                if self.closing {
                    self.nothing_is_kept()?;
                }
                break;
            }
            let Some((at, event)) = self.queue.pop() else {
                return violation(LIVENESS, "nothing is left to happen".into());
            };
            self.now = at;
            let provoked = match event {
                Event::ToRank(_, rank, _, ToRank::Welcome(_)) => Some(rank),
                Event::Step(rank, _) if self.replays(rank) => Some(rank),
                Event::ImageComplete(rank, _) => Some(rank),
                _ => None,
            };
            self.happen(event)?;
            if let Some(why) = self.failure.take() {
                return violation(KEPT, why);
            }
            events += 1;
            if self.failures_left > 0 {
                last_failure = events;
                if let Some(rank) = provoked.filter(|_| self.spiteful)
                    && self.random.one_in(5)
                {
                    self.failures_left -= 1;
                    self.crash(rank);
                } else if events > self.calm && self.random.one_in(self.crash_one_in) {
                    self.failures_left -= 1;
                    self.fail();
                }
            }
            if events - last_failure > PATIENCE {
                return violation(LIVENESS, "not all ranks have finished".into());
            }
        }
        Ok(Report {
            outcome: Outcome::Finished {
                answers: self.checkers.replay_alone(&self.job)?,
            },
            events,
            deliveries: self.checkers.deliveries(),
            crashes: self.crashes,
            images: self.images,
            from_images: self.from_images,
            fallbacks: self.fallbacks,
            trace: self.trace.take(),
            ..Report::nothing_yet(self.ranks.len())
        })
    }

    fn replays(&self, rank: Rank) -> bool {
        let life = self.ranks[rank as usize].life.as_ref();
        life.is_some_and(|life| life.subject.is_replaying())
    }

    fn is_life(&self, rank: Rank, incarnation: u64) -> bool {
        let process = &self.ranks[rank as usize];
        process.up && process.incarnation == incarnation
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Step(rank, incarnation) if self.ranks[rank as usize].incarnation == incarnation => self.step(rank),
            Event::Step(..) => Ok(()),
            Event::Restart(rank) => {
                self.join(rank);
                Ok(())
            }
            Event::ToMemory(memory, rank, incarnation, frame) => {
                let process = &mut self.ranks[rank as usize];
                if process.is_cut(incarnation, memory, self.now) {
                    return Ok(());
                }
                if process.incarnation == incarnation {
                    process.under_way -= 1;
                }
                self.memory_hears(memory, rank, incarnation, frame)
            }
            Event::ToRank(memory, rank, incarnation, frame) => {
                let process = &self.ranks[rank as usize];
                if process.incarnation == incarnation && process.up {
                    self.rank_hears(memory, rank, frame)?;
                }
                Ok(())
            }
            Event::Serve(memory, rank, incarnation) => {
                self.serve(memory, rank, incarnation);
                Ok(())
            }
            Event::ImageComplete(rank, incarnation) => {
                if self.is_life(rank, incarnation) {
                    self.complete_image(rank);
                } else if self.is(Mutation::LateImage) && self.ranks[rank as usize].images.late.is_some() {
                    self.coordinate(Fact::Wanted { unit: rank as usize });
                    self.all_stands(rank);
                    self.complete_image(rank);
                }
                Ok(())
            }
            Event::Collect(rank, incarnation) => {
                if self.is_life(rank, incarnation) {
                    self.collect(rank);
                }
                Ok(())
            }
            Event::LastImages(rank) => {
                self.last_images(rank);
                Ok(())
            }
        }
    }

    /// Ranks crash: one, several, all.
    fn fail(&mut self) {
        let size = self.ranks.len() as u64;
        let victims = match self.random.below(8) {
            0..=4 => 1,
            5 | 6 => self.random.between(2, size),
            _ => {
                (0..size as Rank).for_each(|rank| self.crash(rank));
                0
            }
        };
        for _ in 0..victims {
            let rank = self.random.below(size) as Rank;
            self.crash(rank);
        }
    }

    fn crash(&mut self, rank: Rank) {
        if self.ranks[rank as usize].up {
            self.lose_images(rank);
            self.end(rank);
        }
    }

    /// The process of `rank`, which is up, ends.
    fn end(&mut self, rank: Rank) {
        self.note(|| format!("{rank} crashes"));
        self.crashes += 1;
        let cuts = (0..self.memories.len())
            .map(|_| self.now + self.random.below(2 * self.latency) * self.random.below(2))
            .collect();
        let process = &mut self.ranks[rank as usize];
        process.cuts.push(cuts);
        (process.up, process.finished, process.life) = (false, false, None);
        self.checkers.crash(rank);
        let after = 1 + self.random.below(self.repair);
        self.schedule(after, Event::Restart(rank));
        let life = self.ranks[rank as usize].images.life;
        self.coordinate(Fact::Ended {
            rank,
            life,
            orderly: false,
        });
    }

    /// A new life of `rank` connects to every memory.
    fn join(&mut self, rank: Rank) {
        let memories = self.memories.len();
        let from = self.find_image(rank);
        let process = &mut self.ranks[rank as usize];
        process.incarnation += 1;
        process.up = true;
        process.welcomes = vec![None; memories];
        process.inbox.clear();
        process.arrives = vec![(self.now, self.now); memories];
        process.under_way = 0;
        process.late = None;
        process.to_sync = 0;
        let delivered = from.as_ref().map_or(0, |image| image.life.subject.rclock());
        process.from = from;
        self.note(|| format!("{rank} begins"));
        for memory in 0..memories {
            let delivered = if memory == memory_of(rank, memories) {
                delivered
            } else {
                0
            };
            self.tell_memory(memory, rank, ToMemory::Hello { delivered });
        }
    }

    fn tell_memory(&mut self, memory: usize, rank: Rank, frame: ToMemory) {
        let delay = 1 + self.random.below(self.latency);
        let process = &mut self.ranks[rank as usize];
        let arrives = &mut process.arrives[memory].0;
        *arrives = (*arrives).max(self.now + delay);
        process.under_way += 1;
        let (at, incarnation) = (*arrives, process.incarnation);
        self.queue.push(at, Event::ToMemory(memory, rank, incarnation, frame));
    }

    fn tell_rank(&mut self, memory: usize, rank: Rank, frame: ToRank) {
        let delay = 1 + self.random.below(self.latency);
        let process = &mut self.ranks[rank as usize];
        let arrives = &mut process.arrives[memory].1;
        *arrives = (*arrives).max(self.now + delay);
        let (at, incarnation) = (*arrives, process.incarnation);
        self.queue.push(at, Event::ToRank(memory, rank, incarnation, frame));
    }
}

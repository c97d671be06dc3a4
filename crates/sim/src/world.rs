//! The run: events in order of time, failures, and the end.

use resurgo_protocol::coordinator::{KEPT, Plan};
use resurgo_protocol::group::Groups;
use resurgo_protocol::group::formation::Grouping;
use resurgo_protocol::hierarchical::Kept;
use resurgo_protocol::placement::Parity;
use resurgo_protocol::{Command, Coordinator, EventLogger, Fact, Node, Rank, Tolerate, causal, kinds};

use crate::auto::Waves;
use crate::auto::ends::with_ends;
use crate::auto::nodes::Nodes;
use crate::causal::{Flavour, Loggers, Piggybacks};
use crate::checkers::{Checkers, LIVENESS, MAX_RANKS, Violation, violation};
use crate::logger::{FromLogger, ToLogger};
use crate::mutation::Mutation;
use crate::network::{Packet, Partition, Wire};
use crate::process::{Life, Process};
use crate::program::Job;
use crate::queue::Queue;
use crate::random::Random;
use crate::setting::Setting;
use crate::subject::Subject;
use crate::trace::Trace;

/// Events after the last failure by which every rank must have finished.
const PATIENCE: u64 = 200_000;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub setting: Setting,
    /// A protocol broken on purpose.
    pub mutation: Option<Mutation>,
    /// Causal logging's event loggers; none: by the seed.
    pub loggers: Option<Loggers>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank finished, with these answers.
    Finished { answers: Vec<u64> },
    /// The event logger and then a rank were lost before the rank had told the new logger all: more than is
    /// tolerated, and reported.
    HistoryLost { rank: Rank },
}

/// A run in which every invariant held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub outcome: Outcome,
    pub ranks: usize,
    pub events: u64,
    pub deliveries: u64,
    pub crashes: u64,
    pub logger_crashes: u64,
    /// Images completed; waves, with coordinated ones.
    pub images: u64,
    /// Lives that began from one; returns of all to a wave.
    pub from_images: u64,
    /// Images found destroyed; waves dropped.
    pub fallbacks: u64,
    pub piggybacks: Piggybacks,
    /// The last events, one a line; empty unless asked for.
    pub trace: Vec<String>,
}

impl Report {
    /// Of a run of so many ranks that has not begun.
    pub(crate) fn nothing_yet(ranks: usize) -> Report {
        Report {
            outcome: Outcome::Finished { answers: Vec::new() },
            ranks,
            events: 0,
            deliveries: 0,
            crashes: 0,
            logger_crashes: 0,
            images: 0,
            from_images: 0,
            fallbacks: 0,
            piggybacks: Piggybacks::default(),
            trace: Vec::new(),
        }
    }
}

/// A run in which an invariant broke.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{violation}")]
pub struct Failure {
    pub violation: Violation,
    /// The last events, one a line; empty unless asked for.
    pub trace: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Step {
        rank: Rank,
        incarnation: u64,
    },
    Reveal {
        from: Rank,
        to: Rank,
        connection: u64,
    },
    Arrive(Packet),
    ToLogger {
        rank: Rank,
        incarnation: u64,
        epoch: u64,
        message: ToLogger,
    },
    FromLogger {
        rank: Rank,
        incarnation: u64,
        epoch: u64,
        message: FromLogger,
    },
    ConnectLogger {
        rank: Rank,
    },
    LoggerRestarts {
        site: usize,
    },
    /// An event logger learns what another has.
    LoggerClocks {
        to: usize,
        clocks: Vec<u64>,
    },
    /// A rank learns what another event logger than its own has.
    Clocks {
        rank: Rank,
        clocks: Vec<u64>,
    },
    Restart {
        rank: Rank,
    },
    /// The process of a rank that has finished may be gone.
    Leaves {
        rank: Rank,
        incarnation: u64,
    },
    /// A later life of `rank` looks at the next known item.
    Look {
        rank: Rank,
        incarnation: u64,
    },
    /// What is known on `node`, for `rank`, which has lost its own: it is to be looked up, or has come.
    Piece {
        rank: Rank,
        node: Node,
        epoch: u64,
        events: Option<Vec<causal::Event>>,
    },
    ImageComplete {
        rank: Rank,
        incarnation: u64,
    },
    /// What the images of `rank` cover is dropped.
    Collect {
        rank: Rank,
        incarnation: u64,
    },
    /// The logs are full: what they have for this rank and incarnation is let go of, and its record. The last wave that
    /// it had been asked for.
    LetGo(Rank, u64, u64),
    /// `from` looks at what the checkpoints of `to` cover.
    DropEntries {
        from: Rank,
        to: Rank,
    },
    LastImages {
        rank: Rank,
    },
    /// A node that leaves ends; so many were up when it was told to.
    NodeEnds {
        node: Node,
        up: usize,
    },
    CopyForWave {
        rank: Rank,
        number: u64,
    },
    /// A complete file of an image has arrived on another node.
    Stored {
        rank: Rank,
        number: u64,
        from: Node,
        to: Node,
    },
    /// A piece of a set has arrived on its node.
    Parity {
        set: u64,
        index: u32,
    },
    /// An image has been made anew from its set.
    Rebuilt(Box<Command>),
    WaveComplete {
        /// One of its group.
        rank: Rank,
        number: u64,
    },
}

/// The place of an event logger.
#[derive(Debug)]
pub(crate) struct Site {
    pub state: Option<EventLogger>,
    pub epoch: u64,
    /// The clocks that others were last told.
    pub spread: Vec<u64>,
}

/// The setting's rules for the whole run.
pub(crate) struct Rules {
    pub tolerate: Tolerate,
    /// A crash leaves the rank's logs behind,
    pub memory_survives: bool,
    /// and its record.
    pub record_survives: bool,
    pub causal: Option<Flavour>,
    /// Each group takes waves by itself, and only its ranks return.
    pub hierarchical: bool,
    /// Nodes are lost with logs and records, and only their ranks begin elsewhere.
    pub moves: bool,
    /// Logs become full.
    pub lets_go: bool,
}

impl Rules {
    fn new(seed: u64, options: Options) -> Self {
        let setting = options.setting;
        let causal = match setting {
            Setting::Causal(reduction) | Setting::Gathering(reduction) | Setting::CausalOnNodes(reduction) => {
                Some(Flavour::new(seed, reduction, options.loggers))
            }
            _ => None,
        };
        let memory_survives = !matches!(setting, Setting::Node | Setting::Causal(_));
        Self {
            tolerate: setting.tolerate(),
            memory_survives,
            record_survives: memory_survives && causal.is_none(),
            causal,
            hierarchical: setting.is_hierarchical(),
            moves: setting.moves(),
            lets_go: setting == Setting::AutoWithFullLogs,
        }
    }

    /// Those of a course that begins.
    pub(crate) fn checkers(&self, size: usize) -> Checkers {
        let survives = self.record_survives && !self.moves;
        Checkers::new(size, self.tolerate, survives, self.causal.is_some())
    }

    fn first_life(&self, rank: Rank, job: &Job, mutation: Option<Mutation>) -> Process {
        let size = job.size;
        let first = self.causal.map(|causal| causal.first(rank, size));
        let life = Life {
            subject: Subject::new(rank, size, self.tolerate, mutation, first),
            program: job.start(rank),
            read: None,
            acknowledged: 0,
            logged: 0,
            kept: vec![Kept::default(); size],
        };
        Process::new(rank, size, life)
    }
}

/// The event loggers, and what the run knows of each rank's connection to its own.
pub(crate) struct Logging {
    /// Rank r logs to number r modulo their count.
    pub sites: Vec<Site>,
    /// Last arrival on each rank's connection to the event logger, and back.
    pub to: Vec<u64>,
    pub from: Vec<u64>,
    /// The epoch of each rank's last report of what was acknowledged to it, and the report.
    pub declared: Vec<(u64, u64)>,
    /// The present event logger has had the whole history of the rank.
    pub whole: Vec<bool>,
    /// A rank whose history is lost everywhere.
    pub lost: Option<Rank>,
}

impl Logging {
    fn new(sites: usize, size: usize) -> Self {
        let site = |_| Site {
            state: Some(EventLogger::new(size)),
            epoch: 1,
            spread: Vec::new(),
        };
        Self {
            sites: (0..sites).map(site).collect(),
            to: vec![0; size],
            from: vec![0; size],
            declared: vec![(1, 0); size],
            whole: vec![true; size],
            lost: None,
        }
    }
}

/// How long things take at most, in ticks.
pub(crate) struct Pace {
    /// One step of a rank.
    pub step: u64,
    pub latency: u64,
    pub logger_latency: u64,
    pub repair: u64,
}

/// What fails, and when.
pub(crate) struct Crashes {
    one_in: u64,
    left: u64,
    /// Events before the first random failure.
    calm: u64,
    /// Failures that are more than tolerated happen too.
    pub ruthless: bool,
    /// Ranks tend to crash in the middle of a recovery, their own or another's.
    spiteful: bool,
    /// A rank that has just taken part in a recovery.
    pub provoked: Option<Rank>,
}

/// How images are taken.
pub(crate) struct Imaging {
    /// How often an image is asked for, in steps of a rank.
    pub one_in: Option<u64>,
    /// The longest that one is being written.
    pub time: u64,
    /// A rank that is asked for an image delivers nothing before it is taken.
    pub quiet: bool,
    /// All programs have ended; ranks take their last images.
    pub closing: bool,
}

pub(crate) struct World {
    pub seed: u64,
    pub rules: Rules,
    pub coordinator: Coordinator,
    /// Why the job cannot go on, from the coordinator.
    pub failure: Option<String>,
    /// The newest file of this rank is destroyed.
    pub destroyed: Option<Rank>,
    /// Images are taken in waves.
    pub waves: Option<Waves>,
    pub nodes: Nodes,
    pub piggybacks: Piggybacks,
    pub mutation: Option<Mutation>,
    pub random: Random,
    pub now: u64,
    pub queue: Queue<Event>,
    pub job: Job,
    pub checkers: Checkers,
    pub ranks: Vec<Process>,
    /// `wires[from][to]`.
    pub wires: Vec<Vec<Wire>>,
    pub logging: Logging,
    pub partition: Partition,
    pub pace: Pace,
    pub crashes: Crashes,
    pub imaging: Imaging,
    pub counts: Counts,
    trace: Trace,
}

/// Counts of events, see [`Report`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub images: u64,
    pub from_images: u64,
    pub fallbacks: u64,
    crashes: u64,
    logger_crashes: u64,
}

fn most_nodes(setting: Setting) -> u64 {
    match () {
        () if setting.has_parity() => 7,
        () if setting.moves() => 6,
        () => 4,
    }
}

/// The coordinator's plan.
fn plan(seed: u64, setting: Setting, size: usize, random: &mut Random) -> Plan {
    Plan {
        protocol: setting.protocol(),
        units: match setting.is_hierarchical() {
            true => crate::hierarchical::groups(size, random),
            false => Groups::one(size),
        },
        groups: Grouping::One,
        files: true,
        parity: setting.has_parity().then(|| Parity {
            data: crate::random::mix(seed, 8) as u32 % 4 + 1,
            parity: crate::random::mix(seed, 9) as u32 % 2 + 1,
        }),
        replicas: match setting.has_nodes() {
            true if setting.has_parity() => 1,
            true => crate::random::mix(seed, 6) as u32 % 3 + 1,
            false => 0,
        },
        seed,
        moves: setting.moves(),
        keeps_logs: false,
        kept: KEPT,
        local_copies: crate::random::mix(seed, 5).is_multiple_of(2),
        groups_at_once: 1,
        ends_count: setting.protocol().can_return_together(),
        begins_anew: setting.begins_anew(),
    }
}

/// Runs `seed`. With `trace`, the report has the last events.
pub fn simulate(seed: u64, options: Options, trace: bool) -> Result<Report, Failure> {
    if matches!(options.setting, Setting::Survivors | Setting::RecoveringSurvivors) {
        return crate::survivors::simulate(seed, options, trace);
    }
    match options.setting.protocol().kept() {
        kinds::Kept::Nowhere => return crate::waves::simulate(seed, options, trace),
        kinds::Kept::InChannelMemory => return crate::channel_memory::simulate(seed, options, trace),
        kinds::Kept::BySender | kinds::Kept::BetweenGroups => {}
    }
    let mut world = World::new(seed, options, trace);
    world.run().map_err(|violation| Failure {
        violation,
        trace: world.trace.take(),
    })
}

impl World {
    fn new(seed: u64, options: Options, trace: bool) -> Self {
        let Options { setting, mutation, .. } = options;
        let rules = Rules::new(seed, options);
        let sites = rules
            .causal
            .map_or(usize::from(rules.tolerate == Tolerate::Node), |causal| {
                causal.loggers.count
            });
        let mut random = Random::new(crate::random::mix(seed, 1));
        let size = random.between(2, MAX_RANKS as u64) as usize;
        let ends = setting.protocol().can_return_together();
        let job = with_ends(Job::random(size, &mut random), seed, ends);
        let ranks = (0..size as Rank)
            .map(|rank| rules.first_life(rank, &job, mutation))
            .collect();
        let plan = plan(seed, setting, size, &mut random);
        let mut world = Self {
            seed,
            mutation,
            now: 0,
            queue: Queue::new(),
            job,
            waves: setting.protocol().has_waves().then(Waves::new),
            coordinator: Coordinator::new(plan),
            failure: None,
            destroyed: None,
            nodes: Nodes::default(),
            piggybacks: Piggybacks::default(),
            checkers: rules.checkers(size),
            rules,
            ranks,
            wires: vec![vec![Wire::default(); size]; size],
            logging: Logging::new(sites, size),
            partition: Partition::default(),
            // The order of these draws fixes the runs of all seeds.
            pace: Pace {
                step: random.pick([1, 3, 10, 30]),
                latency: random.pick([1, 5, 20, 60]),
                logger_latency: random.pick([1, 5, 20, 60]),
                repair: random.pick([1, 10, 50, 150]),
            },
            crashes: Crashes {
                one_in: random.pick([15, 50, 150, 400]),
                left: random.below(8),
                ruthless: random.one_in(6),
                spiteful: random.one_in(3),
                provoked: None,
                calm: 0,
            },
            imaging: Imaging {
                one_in: None,
                time: 1,
                quiet: false,
                closing: false,
            },
            counts: Counts::default(),
            trace: Trace::new(trace),
            random,
        };
        if !world.random.one_in(4) {
            world.imaging.one_in = Some(world.random.pick([4, 15, 50, 150]));
            world.imaging.time = world.random.pick([1, 10, 50, 200]);
            world.imaging.quiet = world.random.one_in(2);
            // So that there are images when it comes.
            world.crashes.calm = world.random.pick([0, 0, 200, 600]);
        }
        if setting.has_nodes() {
            world.nodes = Nodes::new(size, most_nodes(setting), &mut world.random);
            world.keep_groups_together();
            world.nodes.lose_all = world.moves() && crate::random::mix(seed, 12).is_multiple_of(3);
        }
        world.nodes.leave = world.moves() && world.waves.is_none() && seed % 4 == 3 && world.imaging.one_in.is_some();
        world.launch();
        world
    }

    /// Every rank begins to run.
    fn launch(&mut self) {
        let size = self.ranks.len();
        self.note(|| format!("{size} ranks"));
        self.tell_nodes();
        self.coordinate(Fact::Launched);
        for rank in 0..size as Rank {
            self.ranks[rank as usize].images.begins = None;
            self.coordinate(Fact::Started { rank, life: 1 });
            self.schedule(0, Event::Step { rank, incarnation: 1 });
            if self.rules.tolerate == Tolerate::Node {
                self.connect_logger(rank);
            }
        }
    }

    /// The place of the event logger of `rank`.
    pub(crate) fn site(&self, rank: Rank) -> Option<&Site> {
        self.logging.sites.get(rank as usize % self.logging.sites.len().max(1))
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(crate) fn schedule(&mut self, delay: u64, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }

    fn run(&mut self) -> Result<Report, Violation> {
        let mut events = 0;
        let mut last_failure = 0;
        let outcome = loop {
            let finished = self.ranks.iter().all(|process| process.finished);
            if finished && self.imaging.one_in.is_some() && !self.imaging.closing {
                self.close();
            }
            if finished && (!self.imaging.closing || self.queue.is_empty()) {
                if self.imaging.closing {
                    self.nothing_is_kept()?;
                }
                break Outcome::Finished {
                    answers: self.checkers.replay_alone(&self.job)?,
                };
            }
            if let Some(rank) = self.logging.lost {
                break Outcome::HistoryLost { rank };
            }
            let Some((at, event)) = self.queue.pop() else {
                return violation(LIVENESS, "nothing is left to happen".into());
            };
            self.now = at;
            self.happen(event)?;
            self.check_knowledge()?;
            events += 1;
            let provoked = self.crashes.provoked.take();
            if self.crashes.left > 0 {
                last_failure = events;
                if let Some(rank) = provoked.filter(|_| self.crashes.spiteful)
                    && self.random.one_in(3)
                {
                    self.crashes.left -= 1;
                    match self.waves {
                        Some(_) if !self.rules.hierarchical && self.random.one_in(2) => self.return_all(),
                        _ => self.crash(rank),
                    }
                } else if events > self.crashes.calm && self.random.one_in(self.crashes.one_in) {
                    self.crashes.left -= 1;
                    self.fail();
                }
            }
            if events - last_failure > PATIENCE {
                let waiting: Vec<Rank> = self
                    .ranks
                    .iter()
                    .filter(|process| !process.finished || self.is_image_due(process.rank))
                    .map(|process| process.rank)
                    .collect();
                return violation(LIVENESS, format!("{waiting:?} have not finished"));
            }
        };
        Ok(Report {
            outcome,
            ranks: self.ranks.len(),
            events,
            deliveries: self.checkers.deliveries(),
            crashes: self.counts.crashes,
            logger_crashes: self.counts.logger_crashes,
            images: self.counts.images,
            from_images: self.counts.from_images,
            fallbacks: self.counts.fallbacks,
            piggybacks: self.piggybacks,
            trace: self.trace.take(),
        })
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Step { rank, incarnation } => {
                if self.ranks[rank as usize].incarnation == incarnation {
                    self.step(rank)?;
                }
            }
            Event::Reveal { from, to, connection } => {
                let wire = &mut self.wires[from as usize][to as usize];
                wire.revealed += u64::from(wire.connection == connection);
            }
            Event::Arrive(packet) => self.arrive(packet)?,
            Event::ToLogger {
                rank,
                incarnation,
                epoch,
                message,
            } => {
                self.logger_hears(rank, incarnation, epoch, message)?;
            }
            Event::FromLogger {
                rank,
                incarnation,
                epoch,
                message,
            } => {
                self.rank_hears(rank, incarnation, epoch, message)?;
            }
            // A rank that stands still looks at nothing.
            Event::ConnectLogger { rank } if self.is_standing(rank) => self.schedule(1, event),
            Event::ConnectLogger { rank } => self.connect_logger(rank),
            Event::LoggerRestarts { site } => self.restart_logger(site),
            Event::LoggerClocks { to, clocks } => self.logger_learns(to, &clocks)?,
            Event::Clocks { rank, clocks } => self.hear_clocks(rank, &clocks),
            // It is held for ever if the job cannot go on.
            Event::Restart { rank } if self.is_held(rank) => self.goes_on()?,
            Event::Restart { rank } => self.restart(rank)?,
            Event::Leaves { rank, incarnation } => self.leaves(rank, incarnation),
            Event::Look { rank, incarnation } => {
                if self.ranks[rank as usize].incarnation == incarnation {
                    match self.moves() {
                        true => self.begin_when_counted(rank)?,
                        false => self.look(rank)?,
                    }
                }
            }
            Event::Piece {
                rank,
                node,
                epoch,
                events,
            } => self.hear_piece(rank, node, epoch, events)?,
            Event::ImageComplete { rank, incarnation } => {
                if self.ranks[rank as usize].is_life(incarnation) {
                    self.complete_image(rank);
                } else if self.is(Mutation::LateImage) && self.ranks[rank as usize].images.late.is_some() {
                    self.coordinate(Fact::Wanted { unit: rank as usize });
                    self.complete_image(rank);
                }
            }
            Event::Collect { rank, incarnation } => {
                if self.ranks[rank as usize].is_life(incarnation) {
                    self.collect(rank);
                }
            }
            Event::LetGo(rank, incarnation, asked) => self.let_go(rank, incarnation, asked),
            Event::DropEntries { from, to } => self.drop_entries(from, to),
            Event::LastImages { rank } => self.last_images(rank),
            Event::Stored { rank, number, from, to } => self.stored(rank, number, from, to),
            Event::Parity { set, index } => self.piece_comes(set, index),
            Event::Rebuilt(rebuild) => self.rebuilt(&rebuild),
            Event::NodeEnds { node, up } => self.end_node(node, up)?,
            Event::CopyForWave { rank, number } => self.copy_for_wave(rank, number),
            Event::WaveComplete { rank, number } => self.complete_wave(rank, number),
        }
        Ok(())
    }

    /// A failure: of a rank, several, all, a copy, a wire, the network, the event logger.
    fn fail(&mut self) {
        if self.waves.is_some() && self.loses_more() {
            return;
        }
        if self.nodes.leave && self.random.one_in(3) {
            return self.leave_some_node();
        }
        let size = self.ranks.len() as u64;
        let node = self.rules.tolerate == Tolerate::Node;
        let kinds = match self.waves {
            _ if node && !self.rules.memory_survives => 15,
            _ if node => 12,
            Some(_) if !self.rules.hierarchical => 10,
            _ => 8,
        };
        match self.random.below(kinds) {
            0..=4 => {
                let rank = self.random.below(size) as Rank;
                self.crash(rank);
            }
            5 | 6 => {
                for _ in 0..self.random.between(2, size) {
                    let rank = self.random.below(size) as Rank;
                    self.crash(rank);
                }
            }
            7 => (0..size as Rank).for_each(|rank| self.crash(rank)),
            8 | 9 if self.waves.is_some() && !self.rules.hierarchical => self.return_all(),
            8 | 9 if self.nodes.are() => {
                self.lose_some_nodes();
            }
            12..=14 => self.part(),
            8 | 9 => {
                let from = self.random.below(size) as Rank;
                let to = self.random.below(size) as Rank;
                if from != to {
                    self.break_wire(from, to);
                }
            }
            _ => {
                // Losing the logger while it alone knows a rank's history is more than is tolerated.
                let is_sole = |process: &Process| !process.knows_record();
                let is_lost = |process: &&Process| !self.rules.record_survives || process.record_lost;
                let sole = self.ranks.iter().filter(is_lost).any(is_sole);
                if !sole || self.crashes.ruthless {
                    let site = match self.logging.sites.len() {
                        0 => return,
                        1 => 0,
                        several => self.random.below(several as u64) as usize,
                    };
                    self.counts.logger_crashes += u64::from(self.logging.sites[site].state.is_some());
                    self.crash_logger(site);
                }
            }
        }
    }

    /// `rank` fails; inside of a group, all return.
    pub(crate) fn crash(&mut self, rank: Rank) {
        if self.moves() && self.random.one_in(3) {
            self.lose_with_logs(self.nodes.of[rank as usize]);
        } else if self.rules.hierarchical {
            self.lose_images(rank);
            self.return_group(rank);
        } else {
            if self.loses_images_in_place() {
                self.lose_images(rank);
            }
            self.end_process(rank);
        }
    }

    /// The record of `rank` may be lost: its event logger has the needed part, or the run may lose more than is
    /// tolerated.
    pub(crate) fn may_lose_record(&self, rank: Rank) -> bool {
        let told = self
            .site(rank)
            .is_none_or(|site| site.state.is_some() && self.logging.whole[rank as usize]);
        told || self.crashes.ruthless
    }

    pub(crate) fn end_process(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if process.is_down() || process.has_left || !self.rules.record_survives && !self.may_lose_record(rank) {
            return;
        }
        self.end_now(rank);
    }

    /// The same, also where more is lost than may be: what it had does not count any more.
    pub(crate) fn end_now(&mut self, rank: Rank) {
        self.note(|| format!("{rank} crashes"));
        self.counts.crashes += 1;
        self.take_down(rank);
        let life = self.ranks[rank as usize].images.life;
        self.coordinate(Fact::Ended {
            rank,
            life,
            orderly: false,
        });
    }
}

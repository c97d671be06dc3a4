//! The settings `blocking`, `chandy-lamport` and `group`: ranks over channels without retention, with crashes at every
//! step. Waves are coordinated by real [`Wave`]s, [`Cut`](resurgo_protocol::chandy_lamport::Cut)s and [`Turn`]s; all
//! ranks return by real [`Return`]s.
//!
//! The real [`Coordinator`](resurgo_protocol::Coordinator) decides what follows from events, and a simulated agent
//! ([`agent`]) carries it out. Every process has a number that the agent may not know yet. Datagrams and the news of
//! ends arrive late, and a killed process lives on for a moment.

mod agent;
mod channel;
mod checkers;
mod fetching;
mod groups;
mod links;
mod lives;
mod losses;
mod nodes;
mod parity;
mod places;
mod rank;
mod replicas;
mod sets;
mod stored;

use std::collections::BTreeMap;

use resurgo_protocol::coordinator::{KEPT, Plan};
use resurgo_protocol::group::formation;
use resurgo_protocol::group::{Groups, Turn};
use resurgo_protocol::{Fact, Rank, kinds};

use crate::auto::ends::with_ends;
use crate::checkers::{LIVENESS, MAX_RANKS, Violation, violation};
use crate::mutation::Mutation;
use crate::program::Job;
use crate::queue::Queue;
use crate::random::Random;
use crate::trace::Trace;
use crate::world::{Failure, Options, Outcome, Report};
use agent::Agent;
use channel::Channel;
use checkers::Checkers;
use nodes::{Happening, Nodes, Storage};
use places::{InPlace, Places};
use rank::{Memory, Phase, Piece, Process};

/// Events after the last failure by which every rank must have finished.
const PATIENCE: u64 = 50_000;
/// The same where ranks compute for long while others look for messages, or where nodes have heartbeats.
const MORE_PATIENCE: u64 = 300_000;
/// How often nodes are left on purpose, at most.
const MOST_LEFT: u32 = 20;

/// From the agent to a process. Numbers are those of waves.
#[derive(Debug, Clone, Copy)]
enum ToRank {
    Checkpoint(u64),
    /// Hold back messages that must not pass now.
    Notice(Turn),
    Drain(u64),
    Go(u64),
    Abandon(u64),
}

/// From a process to the agent.
#[derive(Debug, Clone, Copy)]
enum ToAgent {
    Stopped(u64),
    Noticed(Turn),
    Drained(u64, u64),
    Taken(u64, usize),
    Refused(u64),
    Ready,
}

impl ToAgent {
    /// The wave that it is about; 0: none.
    fn wave(self) -> u64 {
        match self {
            Self::Stopped(wave) | Self::Drained(wave, _) | Self::Taken(wave, _) | Self::Refused(wave) => wave,
            Self::Noticed(turn) => turn.wave,
            Self::Ready => 0,
        }
    }
}

/// A copy of a rank's process: it sleeps until its socket is closed.
#[derive(Debug)]
struct Snapshot {
    rank: Rank,
    /// The node that it is on, and that one's life.
    node: usize,
    serial: u64,
    wave: u64,
    memory: Memory,
    alive: bool,
    /// The agent does not know it yet.
    under_way: bool,
    /// When all of its reports are read, and the process that it made has closed its end of the socket.
    heard: u64,
    /// It was lost before it could report the number of the process that it made.
    mute: bool,
}

/// Processes and copies are named by their places in [`World::processes`] and [`World::snapshots`].
#[derive(Debug)]
enum Event {
    Step(usize),
    /// A process that may be computing must read its orders.
    Force(usize),
    /// The image of a rank in this wave is in its file.
    Written(Rank, u64),
    ToRank(usize, ToRank),
    ToAgent(usize, ToAgent),
    /// A process reports that its copy exists.
    Tell(usize, ToAgent),
    /// The signal that ends a process arrives.
    Dies(usize),
    /// The agent learns that a process has ended, in order or not.
    Ended(usize, bool),
    /// A wave is requested.
    Wave,
    /// The agent learns what follows from the failure of a rank.
    Return(Rank),
    /// A copy is asked for a process of this generation and life.
    Wake(usize, u64, u64),
    /// The agent learns the number of a process that this copy has made.
    Woken(usize, usize),
    /// A new process has a process group of its own.
    Grouped(usize),
    /// A new process restores its part of the node memory to the wave.
    Rewind(usize),
    /// The agent learns that a copy is gone.
    CopyGone(Rank, usize),
    Node(Happening),
    Place(InPlace),
}

/// How waves go from group to group.
struct Grouping {
    /// Waves stop one group after the other.
    one_by_one: bool,
    /// The groups of the last wave.
    last: Groups,
    at_once: u32,
}

/// Messages begun on a channel, when the sender stood still; until this arrives at the receiver's node, that sees the former count.
#[derive(Debug, Clone, Copy, Default)]
struct Announced {
    count: u64,
    arrives: u64,
    former: u64,
}

/// Messages on their way between ranks.
struct Transit {
    /// `channels[from][to]`.
    channels: Vec<Vec<Channel>>,
    /// `state[from][to]`: what was in transit in these waves.
    state: BTreeMap<u64, Vec<Vec<Vec<Piece>>>>,
    /// The correct contents, in a variant.
    checked: Option<Vec<Vec<Vec<Piece>>>>,
    /// `announced[from][to]`.
    announced: Vec<Vec<Announced>>,
    /// Most pieces in a channel.
    room: usize,
    /// Most pieces of a message.
    longest: u64,
    /// How many messages there have been.
    messages: u64,
}

/// A wave, as a place has it.
#[derive(Debug, Clone)]
struct Whole {
    /// None: the end of the rank is part of the wave.
    images: Vec<Option<Memory>>,
    transit: Option<Vec<Vec<Vec<Piece>>>>,
}

/// How long things take at most, in ticks.
struct Pace {
    /// One step of a process.
    step: u64,
    latency: u64,
    between_waves: u64,
}

/// What fails, and when.
struct Crashes {
    one_in: u64,
    left: u64,
    /// Events before the first random failure.
    calm: u64,
    /// Processes tend to crash while all return, or while a wave is taken.
    spiteful: bool,
}

struct World {
    mutation: Option<Mutation>,
    random: Random,
    now: u64,
    queue: Queue<Event>,
    job: Job,
    size: usize,
    checkers: Checkers,
    agent: Agent,
    /// All processes so far.
    processes: Vec<Process>,
    snapshots: Vec<Snapshot>,
    /// Waves stop no rank.
    non_blocking: bool,
    grouping: Grouping,
    nodes: Nodes<Event>,
    places: Places<Whole>,
    transit: Transit,
    pace: Pace,
    crashes: Crashes,
    report: Report,
    trace: Trace,
}

/// Runs `seed`. With `trace`, the report has the last events.
pub(crate) fn simulate(seed: u64, options: Options, trace: bool) -> Result<Report, Failure> {
    let mut world = World::new(seed, options, trace);
    match world.run() {
        Ok(()) => Ok(Report {
            trace: world.trace.take(),
            ..world.report
        }),
        Err(violation) => Err(Failure {
            violation,
            trace: world.trace.take(),
        }),
    }
}

/// The coordinator's plan, and how many groups may write their images at the same time, whatever a variant does.
fn plan<E>(options: &Options, size: usize, nodes: &Nodes<E>, random: &mut Random) -> (Plan, u32) {
    let one_by_one = options.setting.protocol().waves() == kinds::Waves::GroupByGroup;
    let has_files = random.one_in(2) || nodes.linked && nodes.storage != Storage::Own;
    let at_once = if one_by_one { random.between(1, 2) as u32 } else { 1 };
    let plan = Plan {
        protocol: options.setting.protocol(),
        units: Groups::one(size),
        groups: match one_by_one {
            true => formation::Grouping::Dynamic {
                size: random.between(1, size as u64) as usize,
            },
            false => formation::Grouping::One,
        },
        files: has_files,
        parity: nodes.sets.rule,
        replicas: match nodes.storage {
            Storage::Partners if nodes.sets.rule.is_some() => 1,
            Storage::Partners => nodes.replicas,
            Storage::Shared | Storage::Own => 0,
        },
        seed: nodes.replicas.into(),
        moves: false,
        keeps_logs: false,
        kept: KEPT,
        local_copies: random.one_in(2),
        groups_at_once: match options.mutation {
            Some(Mutation::WriteAllAtOnce) => u32::MAX,
            _ => at_once,
        },
        ends_count: false,
        begins_anew: false,
    };
    (plan, at_once)
}

impl World {
    fn new(seed: u64, options: Options, trace: bool) -> Self {
        let mut random = Random::new(crate::random::mix(seed, 2));
        let size = random.between(2, MAX_RANKS as u64) as usize;
        // Other runs are as they are without.
        let has_places = (seed % 5).is_multiple_of(3);
        let job = with_ends(Job::random(size, &mut random).with_barrier(), seed, has_places);
        let waves = options.setting.protocol().waves();
        let non_blocking = waves == kinds::Waves::Passing;
        let grain = if non_blocking { random.between(1, 4) } else { 0 };
        let one_by_one = waves == kinds::Waves::GroupByGroup;
        let linked = options.setting.has_nodes();
        let mut of_nodes = Random::new(crate::random::mix(seed, 3));
        let mut nodes = match options.setting.has_parity() {
            true => Nodes::with_parity(size, &mut of_nodes),
            false => Nodes::new(linked, size, &mut of_nodes),
        };
        let replicas = crate::random::mix(seed, 6) as u32 % 3 + 1;
        // As many nodes may be lost at once, in either way.
        nodes.replicas = nodes.sets.rule.map_or(replicas, |rule| rule.parity);
        nodes.racks = crate::random::mix(seed, 7).is_multiple_of(3);
        nodes.leaves = (seed % 4 == 3).then(|| (MOST_LEFT, Random::new(crate::random::mix(seed, 4))));
        let (mut plan, at_once) = plan(&options, size, &nodes, &mut random);
        let in_memory = nodes.storage == Storage::Partners && nodes.sets.rule.is_none();
        if in_memory && !has_places && crate::random::mix(seed, 10).is_multiple_of(2) {
            plan.kept = 1;
        }
        plan.ends_count = true;
        let mut this = Self {
            mutation: options.mutation,
            non_blocking,
            grouping: Grouping {
                one_by_one,
                last: Groups::one(size),
                at_once,
            },
            nodes,
            places: Places::new(has_places.then(|| Random::new(crate::random::mix(seed, 5)))),
            now: 0,
            queue: Queue::new(),
            checkers: Checkers::new(size),
            agent: Agent::new(plan, size),
            processes: Vec::new(),
            snapshots: Vec::new(),
            // The order of these draws fixes the runs of all seeds.
            transit: Transit {
                channels: vec![vec![Channel::new(grain); size]; size],
                state: BTreeMap::new(),
                checked: None,
                announced: vec![vec![Announced::default(); size]; size],
                room: random.between(1, 6) as usize,
                longest: random.between(1, 5),
                messages: 0,
            },
            pace: Pace {
                step: random.pick([1, 3, 10, 30]),
                latency: random.pick([1, 5, 20, 60]),
                between_waves: random.pick([10, 30, 80, 200]),
            },
            crashes: Crashes {
                one_in: random.pick([15, 50, 150, 400]),
                left: random.below(10),
                calm: random.below(500),
                spiteful: random.one_in(2),
            },
            report: Report::nothing_yet(size),
            trace: Trace::new(trace),
            random,
            job,
            size,
        };
        this.nodes.set_latency(this.pace.latency);
        if one_by_one {
            // Waves of groups take long, and their deferred messages must leave between them.
            let latencies = if linked { 20 } else { 2 };
            this.pace.between_waves = this.pace.between_waves.max(latencies * this.pace.latency);
        }
        this
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

    /// A random time of at most `longest`.
    fn soon(&mut self, longest: u64) -> u64 {
        1 + self.random.below(longest)
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.open_links()?;
        self.coordinate(Fact::Launched)?;
        self.schedule(1, Event::Wave);
        if self.nodes.linked {
            self.schedule(1, Event::Node(Happening::Watch));
        }
        let mut last_failure = 0;
        while !self.agent.all_finished() {
            let Some((at, event)) = self.queue.pop() else {
                return violation(LIVENESS, format!("nothing is left to happen: {}", self.state_of_all()));
            };
            self.now = at;
            let returning = matches!(
                event,
                Event::Woken(..) | Event::Wake(..) | Event::Rewind(_) | Event::ToAgent(_, ToAgent::Ready)
            );
            let in_wave = matches!(event, Event::ToRank(..) | Event::ToAgent(..) | Event::Tell(..));
            let is_routine = matches!(&event, Event::Node(happening) if happening.is_routine());
            self.happen(event)?;
            self.mind_silence()?;
            self.report.events += 1;
            let events = self.report.events;
            if self.crashes.left > 0 {
                last_failure = events;
                let spite =
                    self.crashes.spiteful && (returning && self.random.one_in(6) || in_wave && self.random.one_in(20));
                if spite || !is_routine && events > self.crashes.calm && self.random.one_in(self.crashes.one_in) {
                    self.crashes.left -= 1;
                    self.fail()?;
                }
            }
            let patience = match self.grouping.one_by_one || self.nodes.linked {
                true => MORE_PATIENCE,
                false => PATIENCE,
            };
            if events - last_failure > patience {
                return violation(
                    LIVENESS,
                    format!("not all ranks have finished: {}", self.state_of_all()),
                );
            }
        }
        let answers = (0..self.size as Rank).map(|rank| self.answer(rank)).collect();
        self.report.outcome = Outcome::Finished { answers };
        Ok(())
    }

    /// The result of the last process of `rank`.
    fn answer(&self, rank: Rank) -> u64 {
        let last = self.processes.iter().rev().find(|process| process.rank == rank);
        last.map_or(0, |process| process.memory.program.state())
    }

    /// Messages from before the loss of the launcher are dropped.
    fn is_lost(&self, event: &Event) -> bool {
        match event {
            Event::ToAgent(process, _) | Event::Ended(process, _) | Event::Tell(process, _) => {
                self.agent.is_gone(*process)
            }
            Event::Wake(copy, ..) | Event::Woken(copy, _) | Event::CopyGone(_, copy) => self.agent.is_copy_gone(*copy),
            _ => false,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        if self.is_lost(&event) || self.is_fenced(&event) {
            return Ok(());
        }
        if let Some(node) = self.must_wait(&event) {
            self.nodes.of[node].waiting.push_back(event);
            return Ok(());
        }
        match event {
            Event::Step(process) => self.step(process),
            Event::Force(process) => self.force(process),
            Event::Written(rank, wave) => self.written(rank, wave),
            Event::ToRank(process, datagram) => {
                self.processes[process].inbox.push_back(datagram);
                self.will_be_forced(process, datagram);
                self.hear(process)
            }
            Event::ToAgent(process, datagram) => self.said(process, datagram),
            Event::Tell(process, datagram) => {
                self.processes[process].telling = false;
                if self.processes[process].alive {
                    self.tell_agent(process, datagram);
                } else {
                    self.lose(datagram);
                }
                Ok(())
            }
            Event::Dies(process) => {
                self.dies(process);
                Ok(())
            }
            Event::Ended(process, orderly) => self.ended(process, orderly),
            Event::Wave => self.want_wave(),
            Event::Return(rank) => self.return_to_wave(rank),
            Event::Wake(copy, generation, life) => {
                self.wake(copy, generation, life);
                Ok(())
            }
            Event::Woken(copy, _) if self.snapshots[copy].mute => Ok(()),
            Event::Woken(copy, process) => self.woken(self.snapshots[copy].rank, process),
            Event::Grouped(process) => {
                self.processes[process].grouped = true;
                Ok(())
            }
            Event::Rewind(process) => self.rewind(process),
            Event::CopyGone(rank, copy) => self.copy_gone(rank, copy),
            Event::Node(happening) => self.happens_to_node(happening),
            Event::Place(what) => self.happens_in_place(what),
        }
    }

    /// A failure: of a process, several, all, a copy, the launcher.
    fn fail(&mut self) -> Result<(), Violation> {
        if self.may_resume() && self.random.one_in(4) {
            return self.lose_launcher();
        }
        if self.nodes.linked && self.random.one_in(3) {
            return self.fail_nodes();
        }
        let alive: Vec<usize> = (0..self.processes.len())
            .filter(|process| self.processes[*process].alive)
            .collect();
        let victims = match self.random.below(10) {
            _ if self.agent.is_returning() && self.random.one_in(6) => {
                self.lose_copy();
                0
            }
            _ if alive.is_empty() => 0,
            0..=5 => 1,
            6 | 7 => self.random.between(2, self.size as u64),
            8 => {
                alive.iter().for_each(|process| self.crash(*process));
                0
            }
            _ => {
                self.lose_copy();
                0
            }
        };
        for _ in 0..victims {
            let victim = alive[self.random.below(alive.len() as u64) as usize];
            self.crash(victim);
        }
        Ok(())
    }

    fn lose_copy(&mut self) {
        let rank = self.random.below(self.size as u64) as usize;
        let Some(copy) = self.agent.newest(rank as Rank) else {
            return;
        };
        self.note(|| format!("the copy of {rank} is lost"));
        let soon = self.now + self.soon(self.pace.latency);
        let mute = self.random.one_in(2);
        let this = &mut self.snapshots[copy];
        (this.alive, this.mute) = (false, mute);
        let after = soon.max(this.heard + 1) - self.now;
        self.schedule(after, Event::CopyGone(rank as Rank, copy));
    }

    fn crash(&mut self, process: usize) {
        if self.processes[process].alive {
            self.report.crashes += 1;
            self.dies(process);
        }
    }

    /// A process is gone; the agent learns it after all that the process has sent.
    fn dies(&mut self, process: usize) {
        let this = &mut self.processes[process];
        if !std::mem::replace(&mut this.alive, false) {
            return;
        }
        let (rank, phase) = (this.rank, this.phase);
        self.note(|| format!("{rank} (process {process}, {phase:?}) dies"));
        self.tell_end(process, false);
    }

    fn tell_end(&mut self, process: usize, orderly: bool) {
        let after = self
            .soon(self.pace.latency)
            .max(self.processes[process].last_told.saturating_sub(self.now));
        self.schedule(after, Event::Ended(process, orderly));
    }

    fn tell_agent(&mut self, process: usize, datagram: ToAgent) {
        let after = self.soon(self.pace.latency);
        let this = &mut self.processes[process];
        this.last_told = (self.now + after).max(this.last_told + 1);
        let after = this.last_told - self.now;
        self.schedule(after, Event::ToAgent(process, datagram));
    }

    fn tell_rank(&mut self, process: usize, datagram: ToRank) {
        let after = self.soon(self.pace.latency);
        let this = &mut self.processes[process];
        this.last_heard = (self.now + after).max(this.last_heard + 1);
        let after = this.last_heard - self.now;
        self.schedule(after, Event::ToRank(process, datagram));
    }

    /// The agent drops a process's datagram: the copy that came with it sees the end of its socket.
    fn lose(&mut self, datagram: ToAgent) {
        if let ToAgent::Taken(_, copy) = datagram {
            self.snapshots[copy].alive = false;
            self.snapshots[copy].under_way = false;
        }
    }

    fn new_process(&mut self, rank: Rank, generation: u64, phase: Phase, memory: Memory, node: usize) -> usize {
        self.processes.push(Process {
            node,
            serial: self.nodes.of[node].life.serial,
            ..Process::new(rank, generation, phase, memory, self.now)
        });
        self.processes.len() - 1
    }
}

//! Model programs with the communication of the kernels, on many ranks under causal message logging. They show the
//! piggybacks, with and without event loggers, and what a lost rank collects (Bouteiller 2005, Figures 6 to 8 and 10).
//!
//! No failures and no checkers. The protocol is the real one, and so are the bytes of every piggyback; its time is measured on
//! the processor that runs this. Time on the network, in the event loggers and in the programs is modelled.

mod kernel;

pub use kernel::Kernel;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use resurgo_protocol::causal::{Answer, Collection, Event, Reduction};
use resurgo_protocol::{Causal, Determinant, EventLogger, Rank, Recorded, event_logger};
use resurgo_wire::piggyback;

use crate::queue::Queue;
pub(crate) use kernel::Step;

/// Bytes of an envelope, and of a frame to or from an event logger without what it is about.
pub(crate) const HEAD: u64 = 32;
/// Bytes of a delivery in a frame to an event logger, and in its answer to a new life.
const RECORD: u64 = 16;
/// Bytes of a clock in an acknowledgement.
const CLOCK: u64 = 8;

/// Costs. Times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// From leaving a network interface to arriving at another.
    pub latency: u64,
    /// Bytes a second through an interface, each way.
    pub bandwidth: u64,
    /// Of an event logger, for each frame.
    pub logger: u64,
    /// Of a program, for each point of its grid in each step; none: the kernel's own.
    pub point: Option<u64>,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Study {
    pub kernel: Kernel,
    pub ranks: Rank,
    /// None: nothing is piggybacked nor logged.
    pub reduction: Option<Reduction>,
    pub event_loggers: usize,
    /// The run ends after so many deliveries.
    pub messages: u64,
    pub costs: Costs,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    pub messages: u64,
    pub payload_bytes: u64,
    pub piggyback_bytes: u64,
    pub events: u64,
    /// Messages that carry no event.
    pub empty: u64,
    /// Most events that a rank kept, and the mean over the ranks at the end: vertices of antecedence graphs.
    pub most_kept: usize,
    pub mean_kept: f64,
    /// Modelled time of the run, in nanoseconds.
    pub time: u64,
    /// Spent in this process on making piggybacks, and on taking them in.
    pub making: Duration,
    pub taking_in: Duration,
    pub collection: Collected,
}

/// What rank 0 collects when it is lost at the end of the run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Collected {
    pub bytes: u64,
    pub events: u64,
    /// Modelled, in nanoseconds: questions, and answers that all come through one interface.
    pub time: u64,
    /// Spent in this process on taking the answers in.
    pub taking_in: Duration,
}

/// Why a run is not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kernel} does not run on {ranks} ranks: {accepts}")]
    Ranks {
        kernel: &'static str,
        ranks: Rank,
        accepts: &'static str,
    },
    #[error("{kernel} on {ranks} ranks needs more than {limit} MiB of memory; ask for fewer messages or ranks")]
    Memory {
        kernel: &'static str,
        ranks: Rank,
        limit: u64,
    },
    #[error(transparent)]
    Causal(#[from] resurgo_protocol::causal::Error),
    #[error(transparent)]
    Piggyback(#[from] piggyback::Error),
    #[error(transparent)]
    EventLogger(#[from] event_logger::Error),
    #[error("{kernel} on {ranks} ranks waits for ever")]
    Stuck { kernel: &'static str, ranks: Rank },
}

struct Message {
    from: Rank,
    bytes: Vec<u8>,
}

enum Happening {
    Run(Rank),
    Arrive { to: Rank, message: Message },
    ToLogger(Event),
    Served(usize),
    Ack { rank: Rank, clocks: Rc<Vec<u64>> },
    Clocks { logger: usize, clocks: Rc<Vec<u64>> },
}

struct Process {
    causal: Option<Causal>,
    steps: VecDeque<Step>,
    deliveries: u64,
    arrived: VecDeque<Message>,
    /// Delivered and not asked for yet, by source.
    unclaimed: HashMap<Rank, u32>,
    waiting: bool,
    /// Events that it kept after its last delivery.
    kept: u64,
    /// When its interface can send again.
    free_at: u64,
}

struct Logger {
    store: EventLogger,
    frames: Vec<Event>,
    /// Those that are being stored.
    serving: Vec<Event>,
    free_at: u64,
}

struct World {
    study: Study,
    now: u64,
    queue: Queue<Happening>,
    processes: Vec<Process>,
    loggers: Vec<Logger>,
    /// Events that all ranks keep, when each last delivered a message; and the most that they may.
    kept: u64,
    most: u64,
    measured: Measured,
}

/// Runs `study` with at most `limit` MiB of memory for ranks' knowledge.
pub fn run(study: Study, limit: u64) -> Result<Measured, Error> {
    let accepts = study.kernel.accepts();
    if !study.kernel.runs_on(study.ranks) {
        return Err(Error::Ranks {
            kernel: study.kernel.name(),
            ranks: study.ranks,
            accepts,
        });
    }
    let rows = study.bytes_of_rows();
    let limit_bytes = limit << 20;
    if rows > limit_bytes {
        return Err(study.out_of_memory(limit));
    }
    let most = (limit_bytes - rows) / size_of::<Event>() as u64;
    let mut world = World::new(study, most);
    match world.go()? {
        true => world.finish(),
        false => Err(study.out_of_memory(limit)),
    }
}

impl Study {
    /// Memory for the clocks that ranks keep of each peer, at most.
    fn bytes_of_rows(&self) -> u64 {
        let ranks = u64::from(self.ranks);
        let rows = ranks * self.kernel.peers(self.ranks);
        self.reduction.map_or(0, |_| rows * ranks * CLOCK)
    }

    fn out_of_memory(&self, limit: u64) -> Error {
        Error::Memory {
            kernel: self.kernel.name(),
            ranks: self.ranks,
            limit,
        }
    }
}

impl World {
    fn new(study: Study, most: u64) -> Self {
        let size = study.ranks as usize;
        let process = |rank| Process {
            causal: study
                .reduction
                .map(|reduction| Causal::new(rank, size, reduction, false)),
            steps: VecDeque::new(),
            deliveries: 0,
            arrived: VecDeque::new(),
            unclaimed: HashMap::new(),
            waiting: false,
            kept: 0,
            free_at: 0,
        };
        let loggers = if study.reduction.is_some() {
            study.event_loggers
        } else {
            0
        };
        let logger = |_| Logger {
            store: EventLogger::new(size),
            frames: Vec::new(),
            serving: Vec::new(),
            free_at: 0,
        };
        let mut queue = Queue::new();
        (0..study.ranks).for_each(|rank| queue.push(0, Happening::Run(rank)));
        Self {
            study,
            now: 0,
            queue,
            processes: (0..study.ranks).map(process).collect(),
            loggers: (0..loggers).map(logger).collect(),
            kept: 0,
            most,
            measured: Measured::default(),
        }
    }

    /// False: the ranks keep too much.
    fn go(&mut self) -> Result<bool, Error> {
        let clients = self.loggers.len().max(1);
        for rank in 0..self.study.ranks {
            if let Some(logger) = self.loggers.get_mut(rank as usize % clients) {
                logger.store.admit(rank, 1, Some(0))?;
            }
        }
        while self.measured.messages < self.study.messages {
            let Some((now, happening)) = self.queue.pop() else {
                return Err(Error::Stuck {
                    kernel: self.study.kernel.name(),
                    ranks: self.study.ranks,
                });
            };
            if self.kept > self.most {
                return Ok(false);
            }
            self.now = now;
            match happening {
                Happening::Run(rank) => self.step(rank)?,
                Happening::Arrive { to, message } => {
                    let process = &mut self.processes[to as usize];
                    process.arrived.push_back(message);
                    if std::mem::take(&mut process.waiting) {
                        self.step(to)?;
                    }
                }
                Happening::ToLogger(event) => self.logged(event),
                Happening::Served(logger) => self.serve(logger)?,
                Happening::Ack { rank, clocks } => {
                    if let Some(causal) = &mut self.processes[rank as usize].causal {
                        let start = Instant::now();
                        causal.acknowledge(&clocks);
                        self.measured.taking_in += start.elapsed();
                    }
                }
                Happening::Clocks { logger, clocks } => self.loggers[logger].store.learn(&clocks),
            }
        }
        Ok(true)
    }

    /// `rank` goes on until it computes or waits.
    fn step(&mut self, rank: Rank) -> Result<(), Error> {
        loop {
            let process = &mut self.processes[rank as usize];
            let Some(&step) = process.steps.front() else {
                self.study
                    .kernel
                    .steps(rank, self.study.ranks, &self.study.costs, &mut process.steps);
                if process.steps.is_empty() {
                    return Ok(());
                }
                continue;
            };
            match step {
                Step::Compute(time) => {
                    process.steps.pop_front();
                    self.queue.push(self.now + time, Happening::Run(rank));
                    return Ok(());
                }
                Step::Send { to, bytes } => {
                    process.steps.pop_front();
                    self.send(rank, to, bytes);
                }
                Step::Receive { from } => {
                    self.deliver_all(rank)?;
                    let process = &mut self.processes[rank as usize];
                    let Some(left) = process.unclaimed.get_mut(&from).filter(|left| **left > 0) else {
                        process.waiting = true;
                        return Ok(());
                    };
                    *left -= 1;
                    process.steps.pop_front();
                }
            }
        }
    }

    fn send(&mut self, from: Rank, to: Rank, payload: u64) {
        let process = &mut self.processes[from as usize];
        let mut bytes = Vec::new();
        if let (Some(causal), Some(reduction)) = (&mut process.causal, self.study.reduction) {
            let start = Instant::now();
            let carried = causal.piggyback(to);
            piggyback::encode(reduction, process.deliveries, &carried, &mut bytes);
            self.measured.making += start.elapsed();
            self.measured.events += carried.events.len() as u64;
            self.measured.empty += u64::from(carried.events.is_empty());
        }
        self.measured.payload_bytes += payload;
        self.measured.piggyback_bytes += bytes.len() as u64;
        let at = leave(
            &mut process.free_at,
            self.now,
            HEAD + payload + bytes.len() as u64,
            &self.study.costs,
        );
        let message = Message { from, bytes };
        self.queue
            .push(at + self.study.costs.latency, Happening::Arrive { to, message });
    }

    /// Delivers arrived messages in order, whatever the program waits for.
    fn deliver_all(&mut self, rank: Rank) -> Result<(), Error> {
        while let Some(message) = self.processes[rank as usize].arrived.pop_front() {
            let process = &mut self.processes[rank as usize];
            process.deliveries += 1;
            *process.unclaimed.entry(message.from).or_default() += 1;
            self.measured.messages += 1;
            let (Some(causal), Some(reduction)) = (&mut process.causal, self.study.reduction) else {
                continue;
            };
            let rclock = process.deliveries;
            let determinant = Determinant {
                receiver: rank,
                rclock,
                source: message.from,
                ssn: 0, // nobody repeats it
                polls: 1,
            };
            let start = Instant::now();
            let (antecedent, carried) = piggyback::decode(reduction, &message.bytes)?;
            causal.absorb(message.from, &carried)?;
            causal.deliver(&determinant, antecedent)?;
            self.measured.taking_in += start.elapsed();
            let kept = causal.kept();
            self.measured.most_kept = self.measured.most_kept.max(kept);
            self.kept += kept as u64;
            self.kept -= std::mem::replace(&mut process.kept, kept as u64);
            if !self.loggers.is_empty() {
                let event = Event {
                    receiver: rank,
                    rclock,
                    record: determinant.recorded(),
                    antecedent,
                };
                let at = leave(&mut process.free_at, self.now, HEAD + RECORD, &self.study.costs);
                self.queue
                    .push(at + self.study.costs.latency, Happening::ToLogger(event));
            }
        }
        Ok(())
    }

    fn logged(&mut self, event: Event) {
        let index = event.receiver as usize % self.loggers.len();
        let logger = &mut self.loggers[index];
        logger.frames.push(event);
        if logger.serving.is_empty() {
            self.begin_serving(index);
        }
    }

    /// Serves together what has arrived meanwhile.
    fn begin_serving(&mut self, index: usize) {
        let logger = &mut self.loggers[index];
        logger.serving = std::mem::take(&mut logger.frames);
        let frames = logger.serving.len() as u64;
        if frames > 0 {
            let begins = self.now.max(logger.free_at);
            let ends = begins + frames * self.study.costs.logger;
            self.queue.push(ends, Happening::Served(index));
        }
    }

    /// One thread: it stores arrived deliveries, and then sends their senders the stable clocks of all ranks (§IV.B.4).
    fn serve(&mut self, index: usize) -> Result<(), Error> {
        let costs = self.study.costs;
        let others = self.loggers.len();
        let logger = &mut self.loggers[index];
        let mut clients = Vec::new();
        for event in std::mem::take(&mut logger.serving) {
            logger.store.log_events(event.receiver, 1, event.rclock, &[event])?;
            clients.push(event.receiver);
        }
        clients.sort_unstable();
        clients.dedup();
        let clocks: Rc<Vec<u64>> = Rc::new(logger.store.stable_clocks().collect());
        let bytes = HEAD + CLOCK * clocks.len() as u64;
        for rank in clients {
            let at = leave(&mut logger.free_at, self.now, bytes, &costs);
            let clocks = Rc::clone(&clocks);
            self.queue.push(at + costs.latency, Happening::Ack { rank, clocks });
        }
        for other in (0..others).filter(|other| *other != index) {
            let at = leave(&mut logger.free_at, self.now, bytes, &costs);
            let clocks = Rc::clone(&clocks);
            self.queue
                .push(at + costs.latency, Happening::Clocks { logger: other, clocks });
        }
        self.begin_serving(index);
        Ok(())
    }

    fn finish(mut self) -> Result<Measured, Error> {
        self.measured.time = self.now;
        let kept = self.processes.iter().filter_map(|process| process.causal.as_ref());
        let kept: usize = kept.map(Causal::kept).sum();
        self.measured.mean_kept = kept as f64 / f64::from(self.study.ranks);
        if let Some(reduction) = self.study.reduction {
            self.measured.collection = self.collect(reduction)?;
        }
        Ok(self.measured)
    }

    /// Rank 0 is lost, asks the event logger and all others, and takes in their answers.
    fn collect(&mut self, reduction: Reduction) -> Result<Collected, Error> {
        let size = self.study.ranks as usize;
        let costs = self.study.costs;
        let anew = Causal::new(0, size, reduction, false);
        let mut collection = Collection::new(anew, 2, !self.loggers.is_empty());
        let mut collected = Collected::default();
        // The questions leave one after the other.
        let asked = u64::from(self.study.ranks) * (HEAD * 1_000_000_000 / costs.bandwidth);
        if let Some(logger) = self.loggers.first() {
            let records: Vec<Recorded> = logger.store.query(0, 0)?.to_vec();
            collected.bytes += HEAD + RECORD * records.len() as u64;
            collected.events += records.len() as u64;
            collection.logged(0, records);
        }
        let mut lives = vec![1; size];
        lives[0] = 2;
        for from in 1..self.study.ranks {
            let process = &mut self.processes[from as usize];
            let Some(causal) = &mut process.causal else { continue };
            causal.connected(0);
            let known = causal.everything(0);
            let mut bytes = Vec::new();
            piggyback::encode(reduction, process.deliveries, &known, &mut bytes);
            collected.bytes += HEAD + bytes.len() as u64;
            collected.events += known.events.len() as u64;
            let start = Instant::now();
            let (_, known) = piggyback::decode(reduction, &bytes)?;
            let answer = Answer {
                complete: true,
                lives: lives.clone(),
                known,
            };
            collection.answer(from, 1, &answer)?;
            collected.taking_in += start.elapsed();
        }
        assert!(collection.is_over(), "everybody has answered");
        collected.time = asked + 2 * costs.latency + collected.bytes * 1_000_000_000 / costs.bandwidth;
        Ok(collected)
    }
}

/// When `bytes` that are to leave at `now` have left an interface that is free at `free_at`.
pub(crate) fn leave(free_at: &mut u64, now: u64, bytes: u64, costs: &Costs) -> u64 {
    *free_at = now.max(*free_at) + bytes * 1_000_000_000 / costs.bandwidth;
    *free_at
}

#[cfg(test)]
mod tests;

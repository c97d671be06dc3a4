//! How faults slow down a job whose images all go to one server, and at which rate it makes no more progress. It is a
//! model program around the real [`Pessimistic`], [`Wave`] and [`Cut`] (Bouteiller 2006, §IV.C.2 and Figure 9).
//!
//! A fault takes a node with its process, its disk and its messages on their way; another replaces it at once. No
//! checkers. Time on the network, in the program and in the store is modelled.

mod logging;
mod waves;

use std::collections::VecDeque;

use resurgo_protocol::chandy_lamport::{Cut, Waves};
use resurgo_protocol::{Pessimistic, Rank, Recorded, Wave};

use crate::queue::Queue;
use crate::random::Random;
use crate::store::{Storage, Store};
use crate::study::{Costs, HEAD, Kernel, Step, leave};
use logging::Log;

/// The protocol that makes the job survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Pessimistic message logging with an event logger; one rank's image after the other, without a pause.
    Pessimistic,
    /// Waves of images of all ranks, to which all ranks return.
    ChandyLamport {
        /// Images are on the ranks' own disks, too; only a rank that has lost its disk reads the server.
        local_copies: bool,
    },
}

/// One run. Times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub protocol: Protocol,
    pub kernel: Kernel,
    pub ranks: Rank,
    /// Steps of the kernel.
    pub rounds: u64,
    /// From one fault to the next; none: there are none.
    pub interval: Option<u64>,
    /// The seed that picks the ranks.
    pub seed: u64,
    /// When the run is given up.
    pub limit: u64,
    pub costs: Costs,
    pub storage: Storage,
    /// Bytes a second that are read from a rank's own disk.
    pub disk: u64,
    /// From the beginning, the end of a wave or of a return to the next wave.
    pub pause: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// When the last rank ended; none: not before the limit.
    pub time: Option<u64>,
    pub faults: u64,
}

/// Why a run is not made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{kernel} does not run on {ranks} ranks: {accepts}")]
pub struct Error {
    kernel: &'static str,
    ranks: Rank,
    accepts: &'static str,
}

enum Happening {
    /// The computation of this number is over, if its rank has not begun again since.
    Computed {
        rank: Rank,
        computation: u64,
    },
    Arrive(Message),
    Fault,
    /// An image may be in the store; or be read from it.
    Stored(u64),
    Fetched(u64),
    /// From the rank's own disk.
    Read {
        rank: Rank,
        life: u64,
    },
    /// A rank learns of a wave.
    Asked {
        rank: Rank,
        life: u64,
        number: u64,
    },
    /// The next image, or wave, is due.
    Turn,
    Wave(u64),
    ToLogger {
        rank: Rank,
        life: u64,
        record: Recorded,
    },
    Logged {
        rank: Rank,
        life: u64,
        rclock: u64,
    },
}

struct Message {
    from: Rank,
    to: Rank,
    /// On its channel, from 1.
    number: u64,
    mark: u16,
    /// Of both ends: it is lost with either.
    lives: (u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Going,
    /// For so long, from when it began.
    Computing(u64),
    Receiving(Rank),
    Ended,
}

/// The contents of an image.
#[derive(Clone)]
struct Point {
    steps: VecDeque<Step>,
    rounds: u64,
    doing: Doing,
    /// Messages by destination and by source.
    sent: Vec<u64>,
    taken: Vec<u64>,
    cut: Cut,
    /// Of a rank that logs.
    pessimistic: Option<Pessimistic>,
    log: Vec<Log>,
}

struct Process {
    point: Point,
    /// The last complete image, and the one on its way; none: the beginning.
    image: Option<Point>,
    copy: Option<Point>,
    is_up: bool,
    life: u64,
    /// The number of computations begun, and when the last.
    computations: u64,
    begun: u64,
    /// Arrived messages, by source; and those behind a cut that is not the rank's own.
    arrived: Vec<u64>,
    early: Vec<Message>,
    free_at: u64,
    /// Its last image is on its own disk.
    has_copy: bool,
    /// The event logger's records of it.
    records: Vec<Recorded>,
}

struct World {
    run: Run,
    now: u64,
    queue: Queue<Happening>,
    random: Random,
    processes: Vec<Process>,
    faults: u64,
    /// To the server, and from it.
    writing: Store,
    reading: Store,
    wave: Option<Wave>,
    waves: Waves,
    /// Ended, or cut short by a fault.
    pauses: u64,
    /// The rank whose image is due, or on its way.
    in_turn: Option<Rank>,
    /// The rank of the last turn.
    last_turn: Rank,
}

/// Makes the run.
///
/// # Errors
/// The kernel does not run on so many ranks.
pub fn run(run: Run) -> Result<Outcome, Error> {
    let Run { kernel, ranks, .. } = run;
    if !kernel.runs_on(ranks) {
        return Err(Error {
            kernel: kernel.name(),
            ranks,
            accepts: kernel.accepts(),
        });
    }
    Ok(World::new(run).go())
}

impl Point {
    fn beginning(rank: Rank, run: &Run) -> Self {
        let size = run.ranks as usize;
        let logs = run.protocol == Protocol::Pessimistic;
        Self {
            steps: VecDeque::new(),
            rounds: 0,
            doing: Doing::Going,
            sent: vec![0; size],
            taken: vec![0; size],
            cut: Cut::default(),
            pessimistic: logs.then(|| logging::beginning(rank, size)),
            log: if logs { vec![Log::default(); size] } else { Vec::new() },
        }
    }
}

impl World {
    fn new(run: Run) -> Self {
        let process = |rank| Process {
            point: Point::beginning(rank, &run),
            image: None,
            copy: None,
            is_up: true,
            life: 0,
            computations: 0,
            begun: 0,
            arrived: vec![0; run.ranks as usize],
            early: Vec::new(),
            free_at: 0,
            has_copy: false,
            records: Vec::new(),
        };
        Self {
            run,
            now: 0,
            queue: Queue::new(),
            random: Random::new(run.seed),
            processes: (0..run.ranks).map(process).collect(),
            faults: 0,
            writing: Store::new(run.storage),
            reading: Store::new(run.storage),
            wave: None,
            waves: Waves::default(),
            pauses: 0,
            in_turn: None,
            last_turn: run.ranks - 1,
        }
    }

    fn go(mut self) -> Outcome {
        (0..self.run.ranks).for_each(|rank| self.go_on(rank));
        match self.run.protocol {
            Protocol::Pessimistic => self.queue.push(0, Happening::Turn),
            Protocol::ChandyLamport { .. } => self.pause(),
        }
        self.queue.push(self.run.interval.unwrap_or(u64::MAX), Happening::Fault);
        while let Some((now, happening)) = self.queue.pop() {
            if now > self.run.limit {
                break;
            }
            self.now = now;
            self.handle(happening);
            if self.processes.iter().all(|process| process.point.doing == Doing::Ended) {
                self.check();
                return self.outcome(Some(now));
            }
        }
        self.outcome(None)
    }

    fn outcome(&self, time: Option<u64>) -> Outcome {
        Outcome {
            time,
            faults: self.faults,
        }
    }

    /// No message is lost, and none taken twice.
    fn check(&self) {
        for (from, sender) in self.processes.iter().enumerate() {
            for (to, receiver) in self.processes.iter().enumerate() {
                let (sent, taken) = (sender.point.sent[to], receiver.point.taken[from]);
                assert_eq!(sent, taken, "messages from {from} to {to}");
            }
        }
    }

    fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Computed { rank, computation } => {
                let process = &mut self.processes[rank as usize];
                if process.computations == computation && process.is_up {
                    process.point.doing = Doing::Going;
                    self.go_on(rank);
                }
            }
            Happening::Arrive(message) => self.arrive(message),
            Happening::Fault => self.strike(),
            Happening::Stored(change) => {
                if self.writing.changes() == change {
                    let ended = self.writing.end(self.now);
                    ended.into_iter().for_each(|rank| self.stored(rank));
                    self.look_at_stores();
                }
            }
            Happening::Fetched(change) => {
                if self.reading.changes() == change {
                    let ended = self.reading.end(self.now);
                    ended.into_iter().for_each(|rank| self.fetched(rank));
                    self.look_at_stores();
                }
            }
            Happening::Read { rank, life } if self.is(rank, life) => self.fetched(rank),
            Happening::Asked { rank, life, number } if self.is(rank, life) => self.cut(rank, number),
            Happening::Turn => self.next_turn(),
            Happening::Wave(pause) => self.begin_wave(pause),
            Happening::ToLogger { rank, life, record } if self.is(rank, life) => self.log(rank, record),
            Happening::Logged { rank, life, rclock } if self.is(rank, life) => self.logged(rank, rclock),
            Happening::Read { .. }
            | Happening::Asked { .. }
            | Happening::ToLogger { .. }
            | Happening::Logged { .. } => {}
        }
    }

    fn is(&self, rank: Rank, life: u64) -> bool {
        self.processes[rank as usize].life == life
    }

    /// Nanoseconds from now.
    fn after(&mut self, time: u64, happening: Happening) {
        self.queue.push(self.now.saturating_add(time), happening);
    }

    /// The program of `rank` goes on until it computes, waits or ends.
    fn go_on(&mut self, rank: Rank) {
        loop {
            let process = &mut self.processes[rank as usize];
            if !process.is_up {
                return;
            }
            match process.point.doing {
                Doing::Ended | Doing::Computing(_) => return,
                Doing::Receiving(from) => {
                    if !self.take(rank, from) {
                        return;
                    }
                }
                Doing::Going => {}
            }
            let process = &mut self.processes[rank as usize];
            let point = &mut process.point;
            point.doing = Doing::Going;
            let Some(step) = point.steps.pop_front() else {
                if point.rounds == self.run.rounds {
                    point.doing = Doing::Ended;
                } else {
                    point.rounds += 1;
                    let Run {
                        kernel, ranks, costs, ..
                    } = &self.run;
                    kernel.steps(rank, *ranks, costs, &mut point.steps);
                }
                continue;
            };
            match step {
                Step::Compute(time) => self.compute(rank, time),
                Step::Receive { from } => {
                    point.doing = Doing::Receiving(from);
                    if let Some(pessimistic) = &mut point.pessimistic {
                        pessimistic.begin_poll();
                    }
                }
                Step::Send { to, bytes } => {
                    point.sent[to as usize] += 1;
                    let number = point.sent[to as usize];
                    match self.run.protocol {
                        Protocol::Pessimistic => self.send_logged(rank, to, bytes),
                        Protocol::ChandyLamport { .. } => self.depart(rank, to, number, bytes),
                    }
                }
            }
        }
    }

    fn compute(&mut self, rank: Rank, time: u64) {
        let process = &mut self.processes[rank as usize];
        process.point.doing = Doing::Computing(time);
        process.begun = self.now;
        process.computations += 1;
        let computation = process.computations;
        self.after(time, Happening::Computed { rank, computation });
    }

    /// The next message of that channel, if it has arrived and may be taken.
    fn take(&mut self, rank: Rank, from: Rank) -> bool {
        let process = &mut self.processes[rank as usize];
        let source = from as usize;
        if process.arrived[source] == process.point.taken[source] || !self.delivers(rank, from) {
            return false;
        }
        self.processes[rank as usize].point.taken[source] += 1;
        true
    }

    fn depart(&mut self, from: Rank, to: Rank, number: u64, bytes: u64) {
        let receiver = self.processes[to as usize].life;
        let process = &mut self.processes[from as usize];
        let message = Message {
            from,
            to,
            number,
            mark: process.point.cut.mark(),
            lives: (process.life, receiver),
        };
        let at = leave(&mut process.free_at, self.now, HEAD + bytes, &self.run.costs);
        self.queue.push(at + self.run.costs.latency, Happening::Arrive(message));
    }

    fn arrive(&mut self, message: Message) {
        let Message {
            from,
            to,
            number,
            lives,
            ..
        } = message;
        if !self.is(from, lives.0) || !self.is(to, lives.1) || !self.processes[to as usize].is_up {
            return;
        }
        let waves = self.waves;
        let process = &mut self.processes[to as usize];
        if !process.point.cut.may_deliver(message.mark, waves) {
            process.early.push(message);
        } else if number > process.arrived[from as usize] {
            assert_eq!(number, process.arrived[from as usize] + 1, "a channel keeps its order");
            process.arrived[from as usize] = number;
            self.go_on(to);
        }
    }

    /// Sends a copy of the process, as it is now, to the server.
    fn copy(&mut self, rank: Rank) {
        let process = &mut self.processes[rank as usize];
        let mut copy = process.point.clone();
        if let Doing::Computing(time) = &mut copy.doing {
            *time -= self.now - process.begun;
        }
        process.copy = Some(copy);
        self.writing.begin(rank, self.now);
        self.look_at_stores();
    }

    fn look_at_stores(&mut self) {
        if let Some(at) = self.writing.next_end() {
            self.queue.push(at, Happening::Stored(self.writing.changes()));
        }
        if let Some(at) = self.reading.next_end() {
            self.queue.push(at, Happening::Fetched(self.reading.changes()));
        }
    }

    fn stored(&mut self, rank: Rank) {
        match self.run.protocol {
            Protocol::Pessimistic => self.stored_alone(rank),
            Protocol::ChandyLamport { .. } => self.stored_of_wave(rank),
        }
    }

    fn strike(&mut self) {
        let rank = self.random.below(u64::from(self.run.ranks)) as Rank;
        self.faults += 1;
        self.processes[rank as usize].has_copy = false;
        match self.run.protocol {
            Protocol::Pessimistic => self.lose(rank),
            Protocol::ChandyLamport { local_copies } => self.go_back(local_copies),
        }
        self.look_at_stores();
        if let Some(interval) = self.run.interval {
            self.after(interval, Happening::Fault);
        }
    }

    /// It begins again when it has its image.
    fn end(&mut self, rank: Rank) {
        self.writing.stop(rank, self.now);
        self.reading.stop(rank, self.now);
        let process = &mut self.processes[rank as usize];
        process.is_up = false;
        process.life += 1;
        process.computations += 1;
        process.copy = None;
        process.early.clear();
    }

    /// Its last image: from its own disk, where it `has_copy`, or from the server. The beginning is at hand.
    fn fetch(&mut self, rank: Rank, has_copy: bool) {
        let process = &self.processes[rank as usize];
        let life = process.life;
        if process.image.is_none() {
            self.after(0, Happening::Read { rank, life });
        } else if has_copy {
            let time = self.run.storage.image as f64 / self.run.disk as f64 * 1e9;
            self.after(time as u64, Happening::Read { rank, life });
        } else {
            self.reading.begin(rank, self.now);
        }
    }

    fn fetched(&mut self, rank: Rank) {
        match self.run.protocol {
            Protocol::Pessimistic => self.begin_again(rank),
            Protocol::ChandyLamport { .. } => self.has_fetched(rank),
        }
    }

    /// The process is as at its last image.
    fn rebuild(&mut self, rank: Rank) {
        let beginning = || Point::beginning(rank, &self.run);
        let process = &mut self.processes[rank as usize];
        process.point = process.image.clone().unwrap_or_else(beginning);
        process.is_up = true;
        // Messages to it in the meantime are lost as well.
        process.life += 1;
        process.free_at = self.now;
        if let Doing::Computing(left) = process.point.doing {
            self.compute(rank, left);
        }
    }
}

#[cfg(test)]
mod tests;

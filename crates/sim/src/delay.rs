//! The effective delay of a checkpoint (Gao 2007, §5 and Figures 3 to 6): model programs around the real [`Wave`],
//! [`Turn`] and [`Buffer`]. Ranks stand still, group after group, until their images are in a shared store.
//!
//! No failures, no checkers, and nothing is saved. Time on the network, in the programs and in the store is modelled.

mod program;

pub use program::Program;

use std::collections::{HashMap, VecDeque};

use resurgo_protocol::group::{Buffer, Groups, Turn};
use resurgo_protocol::{Rank, Step as Next, Wave};

use crate::queue::Queue;
use crate::store::{Storage, Store};
use crate::study::{Costs, HEAD, Step, leave};

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub program: Program,
    pub ranks: Rank,
    /// Ranks that are checkpointed together.
    pub group: Rank,
    /// When the checkpoint is requested, in nanoseconds; none: never.
    pub moment: Option<u64>,
    pub costs: Costs,
    pub storage: Storage,
}

/// The result, in nanoseconds (§5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Until the last rank ended.
    pub run: u64,
    /// Of the wave, from the request to the last image; 0: the program was over before.
    pub total: u64,
    /// The longest standstill of a rank.
    pub individual: u64,
}

/// Why a run is not made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{program} does not run on {ranks} ranks: {accepts}")]
    Ranks {
        program: &'static str,
        ranks: Rank,
        accepts: &'static str,
    },
    #[error("groups of {group} ranks cannot be made of {ranks}")]
    Group { group: Rank, ranks: Rank },
}

enum Happening {
    /// A rank's computation is over, if it has not stopped since.
    Computed {
        rank: Rank,
        pause: u64,
    },
    Arrive {
        from: Rank,
        to: Rank,
    },
    Request,
    ToRank {
        rank: Rank,
        what: Order,
    },
    ToCoordinator(Report),
    /// Images may be in the store, if no rank has begun or ended to write since.
    Stored(u64),
}

/// The coordinator's order to a rank.
#[derive(Clone, Copy)]
enum Order {
    /// The turn: stop, or hold back messages that must not pass.
    Turn(Turn),
    Drain,
    Copy,
}

enum Report {
    Stopped(Rank),
    Drained(Rank, u64),
    Copied(Rank),
}

struct Deferred {
    to: Rank,
    bytes: u64,
    is_copied: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until then.
    Computing(u64),
    /// For a message of this rank.
    Receiving(Rank),
    /// For a message of its own that must not pass now and does not fit into the buffer.
    Sending,
    Ended,
}

struct Process {
    steps: VecDeque<Step>,
    rounds: u64,
    state: State,
    /// Since when it stands still.
    standing: Option<u64>,
    /// How often it has stood still; its events from before are void.
    pauses: u64,
    seen: Turn,
    deferred: VecDeque<Deferred>,
    buffer: Buffer,
    /// Messages sent to it, and those that have arrived.
    announced: u64,
    arrived: u64,
    /// Not asked for yet, by source.
    unclaimed: HashMap<Rank, u64>,
    /// Messages that arrived since it began to drain.
    draining: Option<u64>,
    free_at: u64,
}

struct World {
    run: Run,
    now: u64,
    queue: Queue<Happening>,
    groups: Groups,
    processes: Vec<Process>,
    wave: Option<Wave>,
    store: Store,
    begun: u64,
    times: Times,
}

/// Makes the run.
///
/// # Errors
/// The program does not run on so many ranks, or not in such groups.
pub fn run(run: Run) -> Result<Times, Error> {
    let Run {
        program, ranks, group, ..
    } = run;
    if !program.runs_on(ranks) {
        return Err(Error::Ranks {
            program: program.name(),
            ranks,
            accepts: program.accepts(),
        });
    }
    if !(1..=ranks).contains(&group) {
        return Err(Error::Group { group, ranks });
    }
    Ok(World::new(run).go())
}

impl World {
    fn new(run: Run) -> Self {
        let size = run.ranks as usize;
        let process = |_| Process {
            steps: VecDeque::new(),
            rounds: 0,
            state: State::Computing(0),
            standing: None,
            pauses: 0,
            seen: Turn::default(),
            deferred: VecDeque::new(),
            buffer: Buffer::default(),
            announced: 0,
            arrived: 0,
            unclaimed: HashMap::new(),
            draining: None,
            free_at: 0,
        };
        Self {
            run,
            now: 0,
            queue: Queue::new(),
            groups: Groups::consecutive(size, run.group as usize),
            processes: (0..size).map(process).collect(),
            wave: None,
            store: Store::new(run.storage),
            begun: 0,
            times: Times::default(),
        }
    }

    fn go(mut self) -> Times {
        (0..self.run.ranks).for_each(|rank| self.go_on(rank));
        if let Some(moment) = self.run.moment {
            self.queue.push(moment, Happening::Request);
        }
        while let Some((now, happening)) = self.queue.pop() {
            self.now = now;
            match happening {
                Happening::Computed { rank, pause } => {
                    if self.processes[rank as usize].pauses == pause {
                        self.go_on(rank);
                    }
                }
                Happening::Arrive { from, to } => self.arrive(from, to),
                Happening::Request => self.begin_wave(),
                Happening::ToRank { rank, what } => self.hear(rank, what),
                Happening::ToCoordinator(report) => self.coordinate(report),
                Happening::Stored(change) => self.stored(change),
            }
        }
        let ended = self.processes.iter().all(|process| process.state == State::Ended);
        assert!(ended, "nobody waits for ever");
        self.times
    }

    /// The program of `rank` goes on until it computes, waits or ends.
    fn go_on(&mut self, rank: Rank) {
        loop {
            let now = self.now;
            let process = &mut self.processes[rank as usize];
            if process.standing.is_some() {
                return;
            }
            match process.state {
                State::Ended => return,
                State::Computing(until) if until > now => return,
                State::Receiving(from) => match process.unclaimed.get_mut(&from) {
                    None | Some(0) => return,
                    Some(left) => *left -= 1,
                },
                State::Sending if process.deferred.iter().any(|message| !message.is_copied) => return,
                State::Computing(_) | State::Sending => {}
            }
            // Its last computation is over.
            process.state = State::Computing(now);
            let Some(step) = process.steps.pop_front() else {
                let (program, ranks) = (self.run.program, self.run.ranks);
                program.steps(rank, ranks, process.rounds, &mut process.steps);
                process.rounds += 1;
                if process.steps.is_empty() {
                    process.state = State::Ended;
                    self.times.run = self.times.run.max(now);
                }
                continue;
            };
            match step {
                Step::Compute(time) => self.compute(rank, time),
                Step::Receive { from } => process.state = State::Receiving(from),
                Step::Send { to, bytes } => self.send(rank, to, bytes),
            }
        }
    }

    fn compute(&mut self, rank: Rank, time: u64) {
        let process = &mut self.processes[rank as usize];
        process.state = State::Computing(self.now + time);
        let pause = process.pauses;
        self.queue.push(self.now + time, Happening::Computed { rank, pause });
    }

    fn passes(&self, from: Rank, to: Rank) -> bool {
        let seen = self.processes[from as usize].seen;
        seen.passes(self.groups.of(from), self.groups.of(to))
    }

    fn send(&mut self, from: Rank, to: Rank, bytes: u64) {
        let passes = self.passes(from, to);
        let process = &mut self.processes[from as usize];
        if passes && process.deferred.iter().all(|message| message.to != to) {
            return self.depart(from, to, bytes);
        }
        let is_copied = process.buffer.takes(bytes as usize);
        if is_copied {
            process.buffer.add(bytes as usize);
        } else {
            process.state = State::Sending;
        }
        process.deferred.push_back(Deferred { to, bytes, is_copied });
    }

    fn depart(&mut self, from: Rank, to: Rank, bytes: u64) {
        self.processes[to as usize].announced += 1;
        let process = &mut self.processes[from as usize];
        let at = leave(&mut process.free_at, self.now, HEAD + bytes, &self.run.costs);
        self.queue
            .push(at + self.run.costs.latency, Happening::Arrive { from, to });
    }

    /// The turn has changed: messages that may pass now leave, in order.
    fn send_deferred(&mut self, rank: Rank) {
        for message in std::mem::take(&mut self.processes[rank as usize].deferred) {
            if !self.passes(rank, message.to) {
                self.processes[rank as usize].deferred.push_back(message);
                continue;
            }
            if message.is_copied {
                self.processes[rank as usize].buffer.remove(message.bytes as usize);
            }
            self.depart(rank, message.to, message.bytes);
        }
        self.go_on(rank);
    }

    fn arrive(&mut self, from: Rank, to: Rank) {
        let process = &mut self.processes[to as usize];
        process.arrived += 1;
        *process.unclaimed.entry(from).or_default() += 1;
        if let Some(moved) = &mut process.draining {
            *moved += 1;
            return self.drain(to);
        }
        self.go_on(to);
    }

    fn begin_wave(&mut self) {
        if self.processes.iter().any(|process| process.state == State::Ended) {
            return;
        }
        self.begun = self.now;
        self.wave = Some(Wave::in_groups(1, self.groups.clone()));
        self.tell_turn();
    }

    fn tell(&mut self, rank: Rank, what: Order) {
        let at = self.now + self.run.costs.latency;
        self.queue.push(at, Happening::ToRank { rank, what });
    }

    fn report(&mut self, report: Report) {
        let at = self.now + self.run.costs.latency;
        self.queue.push(at, Happening::ToCoordinator(report));
    }

    /// Tells all ranks whose turn it is, or that the wave is over.
    fn tell_turn(&mut self) {
        let turn = self.wave.as_ref().map_or(Turn { wave: 1, group: 0 }, |wave| Turn {
            wave: wave.number(),
            group: wave.turn(),
        });
        (0..self.run.ranks).for_each(|rank| self.tell(rank, Order::Turn(turn)));
    }

    fn hear(&mut self, rank: Rank, what: Order) {
        match what {
            Order::Turn(turn) => {
                self.processes[rank as usize].seen = turn;
                if turn.group == self.groups.of(rank) {
                    self.stop(rank);
                } else {
                    self.send_deferred(rank);
                }
                if turn.group != 0 {
                    self.report(Report::Stopped(rank));
                }
            }
            Order::Drain => {
                self.processes[rank as usize].draining = Some(0);
                self.drain(rank);
            }
            Order::Copy => {
                self.store.begin(rank, self.now);
                self.look_at_store();
            }
        }
    }

    /// In the middle of a computation, or wherever it waits.
    fn stop(&mut self, rank: Rank) {
        let process = &mut self.processes[rank as usize];
        process.standing = Some(self.now);
        process.pauses += 1;
    }

    /// No rank sends it more: only messages on their way are left.
    fn drain(&mut self, rank: Rank) {
        let process = &mut self.processes[rank as usize];
        if process.arrived == process.announced
            && let Some(moved) = process.draining.take()
        {
            self.report(Report::Drained(rank, moved));
        }
    }

    fn stored(&mut self, change: u64) {
        if self.store.changes() != change {
            return;
        }
        for rank in self.store.end(self.now) {
            let now = self.now;
            let process = &mut self.processes[rank as usize];
            let stood = now
                - process
                    .standing
                    .take()
                    .expect("it has been standing since it was asked");
            self.times.individual = self.times.individual.max(stood);
            self.report(Report::Copied(rank));
            let process = &mut self.processes[rank as usize];
            if let State::Computing(until) = process.state {
                // It does the rest of its work.
                let left = (until + stood).saturating_sub(now);
                self.compute(rank, left);
            }
            self.go_on(rank);
        }
        self.look_at_store();
    }

    fn look_at_store(&mut self) {
        if let Some(at) = self.store.next_end() {
            self.queue.push(at, Happening::Stored(self.store.changes()));
        }
    }

    fn coordinate(&mut self, report: Report) {
        let Some(wave) = &mut self.wave else { return };
        let next = match report {
            Report::Stopped(rank) => wave.stopped(rank),
            Report::Drained(rank, moved) => wave.drained(rank, moved),
            Report::Copied(rank) => wave.copied(rank),
        };
        let in_turn: Vec<Rank> = self.groups.members(wave.turn()).collect();
        match next {
            Next::Wait | Next::Drop => {}
            Next::Drain => in_turn.into_iter().for_each(|rank| self.tell(rank, Order::Drain)),
            Next::Copy => in_turn.into_iter().for_each(|rank| self.tell(rank, Order::Copy)),
            Next::Turn => self.tell_turn(),
            Next::Complete => {
                self.times.total = self.now - self.begun;
                self.wave = None;
                self.tell_turn();
            }
        }
    }
}

#[cfg(test)]
mod tests;

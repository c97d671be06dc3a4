//! Random MPI-like programs: deterministic functions of their own state, the deliveries they are given and the
//! reads in which they were given them.
//!
//! A program is a list of phases, the same on every rank; a rank turns each into steps (send, receive, probe,
//! read). What a rank sends is a running hash of all it has seen. In phases that *leak* this includes how many
//! reads found nothing, as in an idle loop around `MPI_Test`.

use std::collections::VecDeque;
use std::sync::Arc;

use resurgo_protocol::Rank;

use crate::random::{Random, mix};

/// A message for tag matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    pub source: Rank,
    pub tag: u32,
    pub content: u64,
}

/// The next action of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Send {
        to: Rank,
        tag: u32,
        content: u64,
    },
    /// One completion-queue read.
    Read,
    Done,
}

#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// All ranks send a few messages to some others and receive as many as are due, from any source.
    Exchange {
        dense: u64,
    },
    /// Around a ring, directed receives.
    Ring {
        rounds: u64,
    },
    Barrier,
    Broadcast {
        root: Rank,
    },
    Allreduce,
    /// Pairwise, including a message to oneself.
    Alltoall,
    /// Rank 0 hands out tasks to the first rank that asks; workers idle between tasks.
    MasterWorker {
        tasks: u64,
    },
    /// All ranks send to the root, which probes before it receives.
    ProbeGather {
        root: Rank,
        each: u64,
    },
    /// Reads whose outcome is part of the state.
    Idle {
        reads: u64,
    },
    /// Around a ring of ranks that go on when the others, whose bits are set, have nothing more to do.
    Without {
        others: u64,
        rounds: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Phase {
    pattern: Pattern,
    seed: u64,
    leaks: bool,
}

/// The programs of a job's ranks.
#[derive(Debug, Clone)]
pub struct Job {
    pub size: usize,
    phases: Arc<Vec<Phase>>,
}

impl Job {
    /// A random job of `size` ranks.
    pub fn random(size: usize, random: &mut Random) -> Self {
        let ranks = size as u64;
        let phases = (0..random.between(2, 7))
            .map(|_| {
                let pattern = match random.below(10) {
                    0 | 1 => Pattern::Exchange {
                        dense: random.between(1, 4),
                    },
                    2 => Pattern::Ring {
                        rounds: random.between(1, 4),
                    },
                    3 => Pattern::Barrier,
                    4 => Pattern::Broadcast {
                        root: random.below(ranks) as Rank,
                    },
                    5 => Pattern::Allreduce,
                    6 => Pattern::Alltoall,
                    7 => Pattern::MasterWorker {
                        tasks: random.between(1, 12),
                    },
                    8 => Pattern::ProbeGather {
                        root: random.below(ranks) as Rank,
                        each: random.between(1, 3),
                    },
                    _ => Pattern::Idle {
                        reads: random.between(1, 6),
                    },
                };
                Phase {
                    pattern,
                    seed: random.draw(),
                    leaks: !random.one_in(4),
                }
            })
            .collect();
        Self {
            size,
            phases: Arc::new(phases),
        }
    }

    /// With a barrier at the end, as in MPI_Finalize.
    pub fn with_barrier(mut self) -> Self {
        let barrier = Phase {
            pattern: Pattern::Barrier,
            seed: 0,
            leaks: false,
        };
        Arc::make_mut(&mut self.phases).push(barrier);
        self
    }

    /// These ranks have their ends before the others, which go on.
    pub fn ends_early(mut self, early: impl Fn(Rank) -> bool, seed: u64) -> Self {
        let others = (0..self.size as Rank).filter(|rank| early(*rank));
        let others = others.fold(0, |bits, rank| bits | 1 << rank);
        if others != 0 {
            let rounds = 5 + seed % 20;
            let (pattern, leaks) = (Pattern::Without { others, rounds }, seed.is_multiple_of(2));
            Arc::make_mut(&mut self.phases).push(Phase { pattern, seed, leaks });
        }
        self
    }

    /// The program of `rank`, at its beginning.
    pub fn start(&self, rank: Rank) -> Program {
        Program {
            rank,
            size: self.size as Rank,
            phases: Arc::clone(&self.phases),
            phase: 0,
            todo: VecDeque::new(),
            unexpected: VecDeque::new(),
            state: mix(0x0052_6573_7572_676f, u64::from(rank)),
            waited: 0,
            leaks: false,
        }
    }
}

const REQUEST: u32 = 0;
const WORK: u32 = 1;
const STOP: u32 = 2;
const TAGS_PER_PHASE: u32 = 4;

#[derive(Debug, Clone, Copy)]
enum Step {
    Send {
        to: Rank,
        tag: u32,
    },
    Receive {
        from: Option<Rank>,
        tags: (u32, u32),
    },
    Probe {
        tag: u32,
    },
    Read,
    Master {
        tasks: u64,
        workers: u32,
    },
    Worker,
    /// The worker looks at the master's last answer.
    Answered,
}

/// One rank's program in the middle of its run.
#[derive(Debug, Clone)]
pub struct Program {
    rank: Rank,
    size: Rank,
    phases: Arc<Vec<Phase>>,
    phase: usize,
    todo: VecDeque<Step>,
    /// Delivered, and not received yet.
    unexpected: VecDeque<Message>,
    state: u64,
    /// Reads made for the receive or probe under way.
    waited: u64,
    leaks: bool,
}

impl Program {
    /// The running hash: at the end, the program's answer.
    pub fn state(&self) -> u64 {
        self.state
    }

    /// A value that no replay repeats: a clock's time, a neighbour's memory.
    pub fn surprise(&mut self, value: u64) {
        self.state = mix(self.state, value);
    }

    /// The last phase of all ranks has begun.
    pub fn is_in_last_phase(&self) -> bool {
        let is_of_some = |phase: &Phase| matches!(phase.pattern, Pattern::Without { .. });
        self.phase + usize::from(self.phases.last().is_some_and(is_of_some)) >= self.phases.len()
    }

    /// A message is delivered.
    pub fn deliver(&mut self, message: Message) {
        self.unexpected.push_back(message);
    }

    /// The read that [`Action::Read`] asked for ends, with so many deliveries.
    pub fn read_ends(&mut self, deliveries: u64) {
        if self.leaks {
            self.state = mix(self.state, deliveries);
        }
    }

    /// The next thing to do; [`Action::Done`] for ever at the end.
    pub fn advance(&mut self) -> Action {
        loop {
            let Some(&step) = self.todo.front() else {
                let Some(&phase) = self.phases.get(self.phase) else {
                    return Action::Done;
                };
                self.leaks = phase.leaks;
                self.expand(phase);
                self.phase += 1;
                continue;
            };
            match step {
                Step::Send { to, tag } => {
                    self.todo.pop_front();
                    self.state = mix(self.state, u64::from(tag));
                    return Action::Send {
                        to,
                        tag,
                        content: mix(self.state, u64::from(to)),
                    };
                }
                Step::Read => {
                    self.todo.pop_front();
                    return Action::Read;
                }
                Step::Receive { from, tags } => {
                    let Some(at) = self.find(from, tags) else {
                        return self.wait();
                    };
                    self.todo.pop_front();
                    self.receive(at);
                }
                Step::Probe { tag } => {
                    let Some(at) = self.find(None, (tag, tag)) else {
                        return self.wait();
                    };
                    let from = Some(self.unexpected[at].source);
                    self.found();
                    self.todo[0] = Step::Receive { from, tags: (tag, tag) };
                }
                Step::Master { tasks, workers } => self.serve(tasks, workers),
                Step::Worker => {
                    let tag = self.tag(REQUEST);
                    self.todo[0] = Step::Send { to: 0, tag };
                    self.todo.push_back(Step::Receive {
                        from: Some(0),
                        tags: (self.tag(WORK), self.tag(STOP)),
                    });
                    self.todo.push_back(Step::Answered);
                }
                Step::Answered => {
                    self.todo.pop_front();
                    if self.waited == u64::from(WORK) {
                        for _ in 0..self.state % 4 {
                            self.todo.push_back(Step::Read);
                        }
                        self.todo.push_back(Step::Worker);
                    }
                    self.waited = 0;
                }
            }
        }
    }

    /// Tag of the current phase (`phase` has been advanced past it by now).
    fn tag(&self, kind: u32) -> u32 {
        self.phase as u32 * TAGS_PER_PHASE + kind
    }

    fn wait(&mut self) -> Action {
        self.waited += 1;
        Action::Read
    }

    fn found(&mut self) {
        if self.leaks {
            self.state = mix(self.state, self.waited);
        }
        self.waited = 0;
    }

    fn find(&self, from: Option<Rank>, tags: (u32, u32)) -> Option<usize> {
        self.unexpected.iter().position(|message| {
            from.is_none_or(|from| from == message.source) && (tags.0..=tags.1).contains(&message.tag)
        })
    }

    fn receive(&mut self, at: usize) {
        self.found();
        let Some(message) = self.unexpected.remove(at) else {
            return;
        };
        self.state = mix(mix(self.state, message.content), u64::from(message.source));
        if matches!(self.todo.front(), Some(Step::Answered)) {
            self.waited = u64::from(message.tag % TAGS_PER_PHASE);
        }
    }

    fn serve(&mut self, tasks: u64, workers: u32) {
        if workers == 0 {
            self.todo.pop_front();
            return;
        }
        let request = self.tag(REQUEST);
        let Some(at) = self.find(None, (request, request)) else {
            self.waited += 1;
            self.todo.push_front(Step::Read);
            return;
        };
        let worker = self.unexpected[at].source;
        self.receive(at);
        let (tag, left, workers) = if tasks > 0 {
            (self.tag(WORK), tasks - 1, workers)
        } else {
            (self.tag(STOP), 0, workers - 1)
        };
        self.todo[0] = Step::Master { tasks: left, workers };
        self.todo.push_front(Step::Send { to: worker, tag });
    }

    fn expand(&mut self, phase: Phase) {
        let tag = (self.phase as u32 + 1) * TAGS_PER_PHASE;
        let (me, size) = (self.rank, self.size);
        let mut own = Random::new(mix(phase.seed, u64::from(me)));
        let todo = &mut self.todo;
        let any = |tag| Step::Receive {
            from: None,
            tags: (tag, tag),
        };
        let from = |source| Step::Receive {
            from: Some(source),
            tags: (tag, tag),
        };
        match phase.pattern {
            Pattern::Exchange { dense } => {
                let count = |s: Rank, d: Rank| mix(mix(phase.seed, u64::from(s)), u64::from(d)) % (dense + 1);
                for to in 0..size {
                    for _ in 0..count(me, to) {
                        todo.push_back(Step::Send { to, tag });
                        if own.one_in(3) {
                            todo.push_back(Step::Read);
                        }
                    }
                }
                let due: u64 = (0..size).map(|source| count(source, me)).sum();
                todo.extend((0..due).map(|_| any(tag)));
            }
            Pattern::Ring { rounds } => {
                let all: Vec<Rank> = (0..size).collect();
                ring(todo, me, &all, rounds, tag);
            }
            Pattern::Barrier => {
                let mut distance = 1;
                while distance < size {
                    todo.push_back(Step::Send {
                        to: (me + distance) % size,
                        tag,
                    });
                    todo.push_back(from((me + size - distance) % size));
                    distance *= 2;
                }
            }
            Pattern::Broadcast { root } => broadcast(todo, me, size, root, tag),
            Pattern::Allreduce => {
                reduce(todo, me, size, tag);
                broadcast(todo, me, size, 0, tag + 1);
            }
            Pattern::Alltoall => {
                todo.extend((0..size).map(|step| Step::Send {
                    to: (me + step) % size,
                    tag,
                }));
                todo.extend((0..size).map(|step| from((me + size - step) % size)));
            }
            Pattern::MasterWorker { tasks } if me == 0 => todo.push_back(Step::Master {
                tasks,
                workers: size - 1,
            }),
            Pattern::MasterWorker { .. } => todo.push_back(Step::Worker),
            Pattern::ProbeGather { root, each } => {
                if me == root {
                    todo.extend((0..each * u64::from(size - 1)).map(|_| Step::Probe { tag }));
                } else {
                    for _ in 0..each {
                        todo.push_back(Step::Read);
                        todo.push_back(Step::Send { to: root, tag });
                    }
                }
            }
            Pattern::Idle { reads } => todo.extend((0..reads + own.below(3)).map(|_| Step::Read)),
            Pattern::Without { others, .. } if others >> me & 1 == 1 => {}
            Pattern::Without { others, rounds } => {
                let left: Vec<Rank> = (0..size).filter(|rank| others >> rank & 1 == 0).collect();
                ring(todo, me, &left, rounds, tag);
            }
        }
    }
}

/// Binomial tree to rank 0.
fn reduce(todo: &mut VecDeque<Step>, me: Rank, size: Rank, tag: u32) {
    let mut bit = 1;
    while bit < size && me & bit == 0 {
        if me + bit < size {
            todo.push_back(Step::Receive {
                from: Some(me + bit),
                tags: (tag, tag),
            });
        }
        bit *= 2;
    }
    if me != 0 {
        todo.push_back(Step::Send { to: me - bit, tag });
    }
}

/// Each of these ranks sends to the next one, and receives from the one before.
fn ring(todo: &mut VecDeque<Step>, me: Rank, ring: &[Rank], rounds: u64, tag: u32) {
    let at = ring.iter().position(|rank| *rank == me).unwrap_or(0);
    let before = ring[(at + ring.len() - 1) % ring.len()];
    for _ in 0..rounds {
        let to = ring[(at + 1) % ring.len()];
        todo.push_back(Step::Send { to, tag });
        todo.push_back(Step::Receive {
            from: Some(before),
            tags: (tag, tag),
        });
    }
}

/// Binomial tree from `root`.
fn broadcast(todo: &mut VecDeque<Step>, me: Rank, size: Rank, root: Rank, tag: u32) {
    let relative = (me + size - root) % size;
    let mut bit = 1;
    while bit < size && relative & bit == 0 {
        bit *= 2;
    }
    if relative != 0 {
        let parent = (relative - bit + root) % size;
        todo.push_back(Step::Receive {
            from: Some(parent),
            tags: (tag, tag),
        });
    }
    while bit > 1 {
        bit /= 2;
        if relative + bit < size {
            todo.push_back(Step::Send {
                to: (relative + bit + root) % size,
                tag,
            });
        }
    }
}

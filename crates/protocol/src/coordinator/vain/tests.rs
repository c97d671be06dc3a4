//! Ranks on two nodes, stepped from seeds: each sends to another one or waits for one, messages and answers take their
//! time, and a move may come in between. A ring is found exactly when no message of it is on its way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::*;
use crate::coordinator::{KEPT, Plan};
use crate::group::Groups;
use crate::group::formation::Grouping;
use crate::kinds::Protocol;
use crate::{Fact, Node};

const RANKS: u32 = 4;

fn plan() -> Plan {
    Plan {
        protocol: Protocol::Pessimistic,
        units: Groups::consecutive(RANKS as usize, 1),
        groups: Grouping::default(),
        files: false,
        replicas: 0,
        parity: None,
        seed: 0,
        moves: true,
        keeps_logs: true,
        kept: KEPT,
        local_copies: true,
        groups_at_once: 1,
        ends_count: false,
        begins_anew: false,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A rank: messages that it has yet to send or wait for, and the wait that it is in.
#[derive(Clone, Default)]
struct Process {
    steps: VecDeque<Step>,
    wait: u64,
    looks: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Send(u32),
    Receive(u32),
}

#[derive(Default)]
struct World {
    processes: Vec<Process>,
    /// Per channel (from, to): messages with their receiver, and those on their way to its node.
    arrived: BTreeMap<(u32, u32), u64>,
    moving: BTreeMap<(u32, u32), u64>,
    /// Questions that agents have got, with the messages that had to arrive first; and the looks at that time.
    asked: Vec<(u32, u64, u64, bool, Option<u64>)>,
    answers: VecDeque<(u32, u64)>,
}

impl World {
    fn waiting(&self, rank: u32) -> Option<u32> {
        match self.processes[rank as usize].steps.front() {
            Some(Step::Receive(source)) => Some(*source),
            _ => None,
        }
    }

    /// The rank does one step, if it can.
    fn step(&mut self, rank: u32, from_here: impl Fn(u32, u32) -> bool) {
        let process = &mut self.processes[rank as usize];
        match process.steps.front().copied() {
            Some(Step::Send(to)) => {
                process.steps.pop_front();
                let way = if from_here(rank, to) {
                    &mut self.arrived
                } else {
                    &mut self.moving
                };
                *way.entry((rank, to)).or_default() += 1;
            }
            Some(Step::Receive(source)) => {
                process.looks += 1;
                let there = self.arrived.entry((source, rank)).or_default();
                if *there > 0 {
                    *there -= 1;
                    process.steps.pop_front();
                    process.wait += 1;
                    process.looks = 0;
                }
            }
            None => {}
        }
    }

    /// The agent of `rank` answers what it can.
    fn answer(&mut self) {
        let mut left = Vec::new();
        for (rank, number, wait, again, looks) in std::mem::take(&mut self.asked) {
            let process = &self.processes[rank as usize];
            let still = self.waiting(rank).is_some() && process.wait == wait;
            let is_moved = !self.moving.iter().any(|((from, _), count)| *from == rank && *count > 0);
            match looks {
                _ if !still && again => {}
                None if is_moved => self.answers.push_back((rank, number)),
                Some(before) if process.looks >= before + 2 => self.answers.push_back((rank, number)),
                _ => left.push((rank, number, wait, again, looks)),
            }
        }
        self.asked = left;
    }
}

/// Runs one seed. Returns whether a ring was found.
fn run(seed: u64) -> bool {
    let mut random = Random(seed);
    let mut coordinator = Coordinator::new(plan());
    let node = |rank: u32| rank % 2;
    for node in 0..2 {
        let (slots, spare) = (4, false);
        coordinator.handle(
            Fact::Up {
                node,
                slots,
                spare,
                rack: None,
            },
            Duration::ZERO,
        );
    }
    let nodes: Vec<Node> = (0..RANKS).map(node).collect();
    coordinator.handle(Fact::Placed { nodes }, Duration::ZERO);
    coordinator.handle(Fact::Launched, Duration::ZERO);
    for rank in 0..RANKS {
        coordinator.handle(Fact::Started { rank, life: 1 }, Duration::ZERO);
    }
    let mut world = World::default();
    for rank in 0..RANKS {
        let mut process = Process::default();
        for _ in 0..random.below(8) {
            let other = (rank + 1 + random.below(u64::from(RANKS) - 1) as u32) % RANKS;
            process.steps.push_back(match random.below(2) {
                0 => Step::Send(other),
                _ => Step::Receive(other),
            });
        }
        world.processes.push(process);
    }
    let mut has_found = false;
    for _ in 0..3000 {
        while let Some(command) = coordinator.poll() {
            match command {
                Command::Probe {
                    rank,
                    wait,
                    number,
                    again,
                    ..
                } => {
                    let process = &world.processes[rank as usize];
                    if world.waiting(rank).is_some() && process.wait == wait {
                        let looks = again.then_some(process.looks);
                        world.asked.push((rank, number, wait, again, looks));
                    }
                }
                Command::InVain { rank, wait, .. } => {
                    assert_eq!(world.processes[rank as usize].wait, wait, "seed {seed}");
                    has_found = true;
                }
                _ => {}
            }
        }
        let rank = random.below(u64::from(RANKS)) as u32;
        match random.below(6) {
            0 | 1 => world.step(rank, |from, to| node(from) == node(to)),
            2 => {
                let ways = world.moving.iter_mut().filter(|(_, count)| **count > 0);
                let ways: Vec<_> = ways.collect();
                let many = ways.len() as u64;
                if many > 0 {
                    let (channel, count) = ways.into_iter().nth(random.below(many) as usize).unwrap();
                    *count -= 1;
                    *world.arrived.entry(*channel).or_default() += 1;
                }
            }
            3 => world.answer(),
            4 => {
                if let Some((rank, number)) = world.answers.pop_front() {
                    coordinator.handle(Fact::Probed { rank, number }, Duration::ZERO);
                }
            }
            _ => {
                let process = &world.processes[rank as usize];
                if let Some(source) = world.waiting(rank).filter(|_| process.looks > 0) {
                    let (life, wait) = (1, process.wait);
                    coordinator.handle(
                        Fact::Waits {
                            rank,
                            life,
                            wait,
                            source,
                        },
                        Duration::ZERO,
                    );
                }
            }
        }
        if has_found {
            break;
        }
    }
    has_found == is_stuck(&mut world) || panic!("seed {seed}: found {has_found}, although it is not so")
}

/// Whether some ranks wait in a ring when everything that is on its way has arrived, and nobody can go on.
fn is_stuck(world: &mut World) -> bool {
    for _ in 0..1000 {
        for (channel, count) in std::mem::take(&mut world.moving) {
            *world.arrived.entry(channel).or_default() += count;
        }
        (0..RANKS).for_each(|rank| world.step(rank, |_, _| true));
    }
    let in_ring = |first: u32| {
        let mut next = world.waiting(first);
        for _ in 0..RANKS {
            match next {
                Some(rank) if rank == first => return true,
                Some(rank) => next = world.waiting(rank),
                None => return false,
            }
        }
        false
    };
    (0..RANKS).any(in_ring)
}

#[test]
fn a_ring_is_found_exactly_when_nobody_can_go_on() {
    (0..4000).for_each(|seed| assert!(run(seed)));
}

#[test]
fn answers_from_before_a_move_do_not_count() {
    let mut coordinator = Coordinator::new(plan());
    coordinator.handle(Fact::Launched, Duration::ZERO);
    let mut ask = |fact: Fact| {
        coordinator.handle(fact, Duration::ZERO);
        let commands = std::iter::from_fn(|| coordinator.poll());
        commands
            .filter(|command| matches!(command, Command::Probe { .. } | Command::InVain { .. }))
            .count()
    };
    for rank in 0..2 {
        assert_eq!(ask(Fact::Started { rank, life: 1 }), 0);
    }
    let waits = |rank| Fact::Waits {
        rank,
        life: 1,
        wait: 7,
        source: 1 - rank,
    };
    assert_eq!((ask(waits(0)), ask(waits(1))), (0, 2));
    assert_eq!(ask(Fact::Probed { rank: 0, number: 1 }), 0);
    assert_eq!(ask(Fact::Down { node: 9 }), 0);
    assert_eq!(
        ask(Fact::Probed { rank: 1, number: 1 }),
        0,
        "what was moved then may be lost"
    );
    assert_eq!((ask(waits(1)), ask(waits(0))), (0, 2), "all is asked anew");
    let old = Fact::Waits {
        rank: 0,
        life: 3,
        wait: 7,
        source: 1,
    };
    assert_eq!(ask(old), 0, "no present life");
}

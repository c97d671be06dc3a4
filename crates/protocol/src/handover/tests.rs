//! Sender, receiver and both movers of one channel, in every order of steps that chance makes, with deaths and breaks.

use super::*;
use std::collections::{BTreeMap, VecDeque};

/// Steps of a run, and messages in it.
const STEPS: usize = 4000;
const MESSAGES: usize = 300;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 ^ self.0 >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % bound
    }
}

#[derive(Debug, Clone, Copy)]
enum Frame {
    /// So many entries from this place on; the place behind them is cleared.
    Run(usize, usize),
    Hand(u64, usize),
    Back(u64),
    Behind(u64, usize),
    /// The connection begins: the copies end here.
    Position(usize),
}

/// Data in the kernel, on a connection of a life of the sender with one of the receiver: generations and places of
/// entries.
type UnderWay = VecDeque<(u64, usize)>;

/// The step that a process is in, where it can be killed, or another one can get its turn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Writing {
    #[default]
    No,
    /// It has announced its write.
    Said,
    /// It has seen that it may write at this place.
    Checked(usize),
    /// The entry at this place is written, and not reported.
    Written(usize),
}

#[derive(Debug, Default)]
struct World {
    /// The sender's node: its log's length, and the words.
    log: usize,
    offer: u64,
    given: u64,
    generation: u64,
    from: u64,
    next_offer: u64,
    /// How far the sender has sent on its connection; None: it has not seen that it is given.
    sending: Option<(u64, usize)>,
    /// The number of its connection, 0: it has none. Those that there are, with the one that the receiver reads.
    connection: u64,
    connections: BTreeMap<u64, UnderWay>,
    accepted: u64,
    giver: Giver,
    copied: usize,
    is_positioned: bool,
    /// The movers' connection, in both directions. It has a number: what was under way before is lost.
    to: VecDeque<Frame>,
    back: VecDeque<Frame>,
    /// The receiver's node: the copy, 0 where it is empty; and the words.
    copy: Vec<bool>,
    hand: u64,
    wrote: usize,
    taker: Taker,
    end: usize,
    is_open: bool,
    writes: bool,
    writing: Writing,
    read: usize,
}

impl World {
    fn new() -> World {
        World {
            copy: vec![false; MESSAGES + 2],
            ..World::default()
        }
    }

    fn refuse(&mut self) {
        if self.offer == std::mem::take(&mut self.given) {
            self.offer = 0;
        }
    }

    fn take_back(&mut self) {
        if let Some(generation) = self.giver.take_back() {
            self.refuse();
            self.to.push_back(Frame::Back(generation));
        }
    }

    fn sender_steps(&mut self, random: &mut Random) {
        match random.below(4) {
            0 => self.log = (self.log + 1).min(MESSAGES),
            1 if self.connection == 0 => {
                self.next_offer += 1;
                (self.connection, self.offer, self.sending) = (self.next_offer, self.next_offer, None);
                self.connections.insert(self.connection, UnderWay::new());
            }
            _ if self.connection == 0 => {}
            _ => match (self.sending, self.connections.get_mut(&self.connection)) {
                (None, Some(_)) if self.given == self.connection => {
                    self.sending = Some((self.generation, self.from as usize));
                }
                (Some((generation, place)), Some(under_way)) if self.given == self.connection => {
                    if place < self.log {
                        under_way.push_back((generation, place));
                        self.sending = Some((generation, place + 1));
                    }
                }
                (None, Some(_)) => {}
                // The channel was taken back, or the other side has closed the connection.
                _ => self.hang_up(),
            },
        }
    }

    fn hang_up(&mut self) {
        (self.connection, self.offer, self.sending) = (0, 0, None);
    }

    /// Data in the kernel may still come, or not. The new life has no connection, and its mover knows of the end.
    fn sender_dies(&mut self) {
        self.hang_up();
        self.take_back();
    }

    fn sender_mover_steps(&mut self, random: &mut Random) {
        if !self.is_positioned {
            return;
        }
        match random.below(8) {
            0 => self.take_back(),
            _ if !self.giver.carries() => {
                if self.giver.is_doubtful(self.offer) {
                    self.take_back();
                }
            }
            _ if self.copied < self.log => {
                let count = 1 + random.below(self.log - self.copied);
                self.to.push_back(Frame::Run(self.copied, count));
                self.copied += count;
            }
            _ => {
                let generation = self.generation + 1;
                if self.copied > 0 && self.giver.offered(self.offer, generation) {
                    self.to.push_back(Frame::Hand(generation, self.copied));
                    self.generation = generation;
                    self.from = self.copied as u64;
                    self.given = self.offer;
                }
            }
        }
    }

    fn sender_mover_hears(&mut self) {
        match self.back.pop_front() {
            Some(Frame::Position(place)) => {
                (self.copied, self.is_positioned) = (place, true);
            }
            Some(Frame::Behind(generation, place)) if self.giver.behind(generation) => {
                self.refuse();
                self.copied = place;
            }
            _ => {}
        }
    }

    fn write(&mut self, place: usize, count: usize) {
        self.copy[place + count] = false;
        self.copy[place..place + count].fill(true);
    }

    fn receiver_mover_steps(&mut self, random: &mut Random) {
        if random.below(20) == 0 {
            // In whatever doubt.
            self.taker.revoke();
            self.hand = 0;
        }
        if let Some(generation) = self.taker.settle(self.writes) {
            self.end = (self.wrote..).find(|place| !self.copy[*place]).expect("an end");
            if self.is_open {
                self.back.push_back(Frame::Behind(generation, self.end));
            }
        }
        if !self.is_open {
            // Until then the end is uncertain.
            if self.taker == Taker::Writes {
                self.is_open = true;
                self.back.push_back(Frame::Position(self.end));
            }
            return;
        }
        match self.to.pop_front() {
            Some(Frame::Run(place, count)) => {
                assert_eq!(self.taker, Taker::Writes, "one of them at a time");
                assert!(place <= self.end, "no gap");
                self.write(place, count);
                self.end = place + count;
            }
            Some(Frame::Hand(generation, place)) => {
                assert_eq!(place, self.end, "complete up to there");
                self.taker.hand(generation);
                (self.wrote, self.hand) = (place, generation);
            }
            Some(Frame::Back(generation)) if self.taker.is_of(generation) => {
                self.taker.revoke();
                self.hand = 0;
            }
            _ => {}
        }
    }

    fn movers_break(&mut self) {
        self.to.clear();
        self.back.clear();
        self.refuse();
        (self.giver, self.is_positioned, self.is_open) = (Giver::default(), false, false);
        self.taker.revoke();
        self.hand = 0;
    }

    fn receiver_steps(&mut self, random: &mut Random) {
        match self.writing {
            Writing::No => match random.below(3) {
                0 if self.copy[self.read] => {
                    self.read += 1;
                    assert!(self.read <= self.log, "nothing that was not sent");
                }
                1 => {
                    // A new connection replaces the one before.
                    self.accepted = self.connections.keys().next_back().copied().unwrap_or(0);
                    self.connections.retain(|offer, _| *offer >= self.accepted);
                }
                _ => {
                    let first = self.connections.get(&self.accepted).and_then(VecDeque::front);
                    if first.is_some_and(|(generation, _)| *generation == self.hand) {
                        (self.writes, self.writing) = (true, Writing::Said);
                    }
                }
            },
            Writing::Said => {
                let first = self.connections.get_mut(&self.accepted).and_then(VecDeque::pop_front);
                match first {
                    Some((generation, place)) if generation == self.hand => self.writing = Writing::Checked(place),
                    _ => {
                        // It does not count any more.
                        self.connections.remove(&self.accepted);
                        (self.writes, self.writing) = (false, Writing::No);
                    }
                }
            }
            Writing::Checked(place) => {
                assert_eq!(place, self.wrote, "no gap on the connection");
                assert_ne!(self.taker, Taker::Writes, "one of them at a time");
                self.write(place, 1);
                self.writing = Writing::Written(place);
            }
            Writing::Written(place) => {
                self.wrote = place + 1;
                (self.writes, self.writing) = (false, Writing::No);
            }
        }
    }

    fn receiver_dies(&mut self) {
        (self.writes, self.writing, self.read) = (false, Writing::No, 0);
        self.connections.clear();
        self.taker.revoke();
        self.hand = 0;
    }
}

/// True: the connection has carried entries.
fn run(seed: u64) -> bool {
    let mut random = Random(seed);
    let mut world = World::new();
    let mut generations = 0;
    for step in 0.. {
        // In the end only the necessary steps happen.
        let is_rough = step < STEPS;
        assert!(step < STEPS * 20, "seed {seed}: it does not end: {world:?}");
        match random.below(if is_rough { 240 } else { 200 }) {
            200 => world.sender_dies(),
            201 => world.receiver_dies(),
            202 => world.movers_break(),
            203 => {
                world.connections.clear();
            }
            choice => match choice % 5 {
                0 => world.sender_steps(&mut random),
                1 => world.sender_mover_steps(&mut random),
                2 => world.sender_mover_hears(),
                3 => world.receiver_mover_steps(&mut random),
                _ => world.receiver_steps(&mut random),
            },
        }
        generations = generations.max(world.generation);
        if !is_rough && world.log == MESSAGES && world.read == MESSAGES {
            return generations > 0;
        }
    }
    unreachable!()
}

#[test]
fn every_message_arrives_whoever_carries_it_and_whoever_dies() {
    let carried = (0..2000).filter(|seed| run(*seed)).count();
    assert!(carried > 1900, "{carried}");
}

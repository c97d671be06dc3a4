//! Nodes, as the waves run on them: each has an agent with a real [`Lease`], a memory and a disk, and a link to the dispatcher, which has
//! a real [`Membership`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use resurgo_protocol::chandy_lamport::Waves;
use resurgo_protocol::group::{Groups, Turn};
use resurgo_protocol::membership::Timing;
use resurgo_protocol::placement::Parity;
use resurgo_protocol::{Command, Fact, Lease, Membership, Rank};

use super::sets::{Alive, Sets};
use crate::random::Random;

/// Most nodes of a job; most and least with parity.
const MOST: u64 = 4;
const WITH_PARITY: (u64, u64) = (3, 7);

/// The timing where a message takes up to `latency` ticks. Clocks run a tenth too fast or too slow.
fn timing(latency: u64) -> Timing {
    let lease = Duration::from_millis(100 + 5 * latency);
    Timing {
        heartbeat: lease / 10,
        suspect: lease * 3 / 10,
        lease,
        margin: lease * 2 / 5,
        hold: lease * 3,
    }
}

/// One life of a node, which is that of its agent. No two have the same `serial`, even across launchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub node: usize,
    pub serial: u64,
    pub epoch: u64,
}

/// A message of an agent.
#[derive(Debug)]
pub(super) enum Upward {
    Beat(u64),
    Fact(Fact),
}

/// A message to an agent.
#[derive(Debug)]
pub(super) enum Downward {
    Answer(u64),
    Refused,
    Do(Command),
    /// The logs begin anew, empty.
    Empty,
    /// These ranks have finished.
    Ends(BTreeSet<Rank>),
    /// This life of another node is lost.
    Lost(u64),
}

#[derive(Debug)]
pub(super) enum Happening {
    Up(Life, Upward),
    Down(Life, Downward),
    /// The agent has work of its own.
    Tick(Life),
    /// All that its ranks had written before this report is on the other nodes.
    Flushed(Life, Fact),
    /// It goes on, after it has stood still.
    Thaw(Life),
    /// The dispatcher looks for silent nodes.
    Watch,
    /// It sees that the connection is broken.
    Broken(Life),
    /// The agent's starter sees that it has ended.
    Confirmed(Life),
    /// An agent on this node wants to join.
    Join(usize),
    /// A rank's complete file has arrived on another node.
    Replicated(Rank, u64, Life, Life),
    /// A piece of a set has arrived on its node.
    Piece(u64, u32, Life, Life),
    /// A node has read what it needs to make an image anew.
    Rebuilt(Rebuild),
}

impl Happening {
    /// No failure is under way at this moment.
    pub fn is_routine(&self) -> bool {
        !matches!(
            self,
            Happening::Up(_, Upward::Fact(_))
                | Happening::Down(_, Downward::Do(_))
                | Happening::Replicated(..)
                | Happening::Piece(..)
                | Happening::Rebuilt(_)
        )
    }
}

/// An image to be made anew.
#[derive(Debug, Clone)]
pub(super) struct Rebuild {
    pub rank: Rank,
    pub number: u64,
    pub set: u64,
    pub to: Life,
    pub members: Vec<(Rank, Alive)>,
    pub pieces: Vec<(u32, Alive)>,
}

/// Where files of images are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// In one directory, for all nodes.
    Shared,
    /// On the disk of the rank's node.
    Own,
    /// There, and on those of others.
    Partners,
}

/// What all ranks of a node can see.
#[derive(Debug, Clone)]
pub(super) struct Words {
    pub waves: Waves,
    pub turn: Turn,
    /// The groups of the last wave, and of the one before it.
    pub groups: [Groups; 2],
    /// Ranks that have finished.
    pub ends: BTreeSet<Rank>,
}

impl Words {
    fn new(size: usize) -> Self {
        Self {
            waves: Waves::default(),
            turn: Turn::default(),
            groups: [Groups::one(size), Groups::one(size)],
            ends: BTreeSet::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Node<E> {
    pub life: Life,
    pub alive: bool,
    pub lease: Lease,
    /// Its clock: what it showed first, and how much faster than the dispatcher's it runs, in thousandths.
    first: u64,
    faster: i64,
    pub slots: u32,
    pub spare: bool,
    /// The agent stands still, and this waits for it.
    pub frozen: bool,
    pub waiting: VecDeque<E>,
    /// Until when the link holds back messages up and down; when the last one arrives.
    pub held: (u64, u64),
    pub last: (u64, u64),
    pub words: Words,
    /// Lives of other nodes that its flushes do not wait for.
    pub gone: BTreeSet<u64>,
}

impl<E> Node<E> {
    pub fn clock(&self, now: u64) -> Duration {
        Duration::from_millis(self.first + (now as i64 * (1000 + self.faster) / 1000) as u64)
    }

    /// Ticks until its clock shows `at`.
    pub fn until(&self, at: Duration, now: u64) -> u64 {
        let left = at.saturating_sub(self.clock(now)).as_millis() as i64;
        (left * 1000 / (1000 + self.faster)) as u64 + 1
    }

    /// Neither its link nor its agent has a problem, and its lease lasts so long.
    pub fn is_well(&self, now: u64, longer: u64) -> bool {
        let is_held = self.held.0.max(self.held.1) > now;
        self.alive && !self.frozen && !is_held && self.until(self.lease.until(), now) > longer
    }
}

/// Copies of processes.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Those that the dispatcher knows, and those that it has ordered to end.
    pub known: BTreeSet<(Rank, u64)>,
    pub ending: BTreeSet<(Rank, u64)>,
}

/// All nodes. `E`: an event of the world.
#[derive(Debug)]
pub(super) struct Nodes<E> {
    /// There are links; otherwise the dispatcher and the agent of the only node are one.
    pub linked: bool,
    pub of: Vec<Node<E>>,
    pub membership: Membership,
    timing: Timing,
    pub storage: Storage,
    /// So many others, if there are as many; and whether the nodes are in two racks.
    pub replicas: u32,
    pub racks: bool,
    /// Files on their way, as the dispatcher has ordered it: from where, and to where.
    pub going: BTreeMap<(Rank, u64), (Life, Life)>,
    /// The image that each rank's life begins from, and the node from which it reads it.
    pub reads: BTreeMap<Rank, (u64, usize)>,
    /// Nodes that have refused a file, or have an unreadable one, as it knows.
    pub refused: BTreeSet<(Rank, u64, usize)>,
    /// Of the next agent; of the first one of this launcher.
    pub serial: u64,
    pub first: u64,
    /// The life of each node that has joined, and whose end the coordinator does not know.
    pub joined: Vec<Option<Life>>,
    /// When the last data from ranks of one node arrives at another.
    pub mesh: Vec<Vec<u64>>,
    /// The node of each rank's placement.
    pub placed: Vec<usize>,
    /// Images whose files the dispatcher knows, so that they count; those that it has given up, or collected.
    pub told: BTreeSet<(Rank, u64)>,
    pub given_up: BTreeSet<(Rank, u64)>,
    /// Those that have come back to a node since; the dispatcher has yet to hear of it.
    pub come_back: BTreeSet<(Rank, u64)>,
    pub copies: Copies,
    /// By image: the nodes that had its complete file, with their lives at that time.
    pub stored: BTreeMap<(Rank, u64), BTreeSet<(usize, u64)>>,
    /// The same, as far as the dispatcher knows.
    pub known: BTreeMap<(Rank, u64), BTreeSet<(usize, u64)>>,
    /// How many nodes may yet be left on purpose, with a randomness of their own: other runs stay as they are.
    pub leaves: Option<(u32, Random)>,
    /// Files that are unreadable on this node while this launcher lives, known or not.
    pub damaged: BTreeSet<(Rank, u64, usize)>,
    pub sets: Sets,
    pub over: Over,
}

/// What is over.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// Lives of nodes that have ended.
    pub lives: BTreeSet<u64>,
    /// When the last messages of these, sent before their loss, arrive.
    pub late: BTreeMap<u64, u64>,
    /// The ranks of which nodes were last told that they have finished.
    pub ranks: BTreeSet<Rank>,
}

impl<E> Nodes<E> {
    /// Several, at random, on which images have parity.
    pub fn with_parity(size: usize, random: &mut Random) -> Self {
        let count = random.between(WITH_PARITY.0, WITH_PARITY.1) as usize;
        let mut this = Self::of(true, count, size, random);
        this.storage = Storage::Partners;
        this.sets.rule = Some(Parity {
            data: random.between(1, 4) as u32,
            parity: random.between(1, 2) as u32,
        });
        this
    }

    /// One node; or several with links, at random.
    pub fn new(linked: bool, size: usize, random: &mut Random) -> Self {
        let count = if linked { random.between(1, MOST) as usize } else { 1 };
        Self::of(linked, count, size, random)
    }

    fn of(linked: bool, count: usize, size: usize, random: &mut Random) -> Self {
        let has_spare = count > 2 && random.one_in(3);
        let mut of = Vec::new();
        for node in 0..count {
            let (first, faster) = match linked {
                true => (random.below(100_000), random.below(201) as i64 - 100),
                false => (0, 0),
            };
            of.push(Node {
                life: Life {
                    node,
                    serial: 0,
                    epoch: 0,
                },
                alive: !linked,
                lease: Lease::new(Timing::default(), Duration::ZERO),
                first,
                faster,
                slots: if linked { random.between(1, 4) as u32 } else { 1 },
                spare: has_spare && node + 1 == count,
                frozen: false,
                waiting: VecDeque::new(),
                held: (0, 0),
                last: (0, 0),
                words: Words::new(size),
                gone: BTreeSet::new(),
            });
        }
        let workers = (count - usize::from(has_spare)) as u64;
        let placed = (0..size).map(|_| if linked { random.below(workers) as usize } else { 0 });
        Self {
            linked,
            joined: vec![None; count],
            mesh: vec![vec![0; count]; count],
            placed: placed.collect(),
            of,
            membership: Membership::default(),
            timing: Timing::default(),
            storage: match linked.then(|| random.below(5)) {
                None | Some(0 | 1) => Storage::Shared,
                Some(2) => Storage::Own,
                Some(_) => Storage::Partners,
            },
            replicas: 1,
            racks: false,
            going: BTreeMap::new(),
            reads: BTreeMap::new(),
            refused: BTreeSet::new(),
            serial: 0,
            first: 0,
            told: BTreeSet::new(),
            given_up: BTreeSet::new(),
            come_back: BTreeSet::new(),
            copies: Copies::default(),
            stored: BTreeMap::new(),
            known: BTreeMap::new(),
            leaves: None,
            damaged: BTreeSet::new(),
            sets: Sets::default(),
            over: Over::default(),
        }
    }

    /// A message takes up to so many ticks.
    pub fn set_latency(&mut self, latency: u64) {
        self.timing = timing(latency);
        self.membership = Membership::new(self.timing);
    }

    /// In ticks.
    pub fn lease(&self) -> u64 {
        self.timing.lease.as_millis() as u64
    }

    /// The launcher is lost, with all that it knew.
    pub fn begin_again(&mut self) {
        self.membership = Membership::new(self.timing);
        self.first = self.serial + 1;
        self.joined.fill(None);
        self.copies = Copies::default();
        self.come_back.clear();
        self.over.ranks.clear();
        (self.going, self.refused) = (BTreeMap::new(), BTreeSet::new());
    }

    /// The number of the next life of the node, after [`Nodes::begin_again`]: they join in order.
    pub fn next_serial(&self, node: usize) -> u64 {
        match self.linked {
            true => self.first + node as u64,
            false => self.of[node].life.serial,
        }
    }

    /// A new agent has joined.
    pub fn start(&mut self, node: usize, epoch: u64, now: u64, size: usize) -> Life {
        self.serial += 1;
        let life = Life {
            node,
            serial: self.serial,
            epoch,
        };
        let timing = self.timing;
        let gone = self.gone();
        let this = &mut self.of[node];
        this.lease = Lease::new(timing, this.clock(now));
        (this.life, this.alive, this.frozen) = (life, true, false);
        (this.held, this.last) = ((0, 0), (now, now));
        this.words = Words::new(size);
        this.gone = gone;
        self.joined[node] = Some(life);
        life
    }

    /// Former lives, which those that begin now know to be lost.
    pub fn gone(&self) -> BTreeSet<u64> {
        let is_joined = |serial: &u64| self.joined.iter().flatten().any(|life| life.serial == *serial);
        (0..=self.serial).filter(|serial| !is_joined(serial)).collect()
    }

    /// The agent counts its lease from now, in a variant.
    pub fn renew(&mut self, node: usize, now: u64) {
        let timing = self.timing;
        let this = &mut self.of[node];
        this.lease = Lease::new(timing, this.clock(now));
    }

    /// This life of the node is there.
    pub fn is_alive(&self, node: usize, serial: u64) -> bool {
        self.of[node].alive && self.of[node].life.serial == serial
    }

    /// The coordinator counts it as present.
    pub fn counts(&self, node: usize, serial: u64) -> bool {
        self.joined[node].is_some_and(|life| life.serial == serial)
    }

    /// The nodes that the dispatcher counts as present.
    pub fn up(&self) -> Vec<Life> {
        let lives = self.joined.iter().flatten();
        lives
            .copied()
            .filter(|life| self.counts(life.node, life.serial))
            .collect()
    }

    /// The file is where the coordinator could know it to be.
    pub fn could_have_file(&self, rank: Rank, number: u64) -> bool {
        let stored = self.stored.get(&(rank, number)).into_iter().flatten();
        stored.copied().any(|(node, serial)| self.counts(node, serial))
    }

    pub fn rack(&self, node: usize) -> Option<String> {
        self.racks.then(|| (node % 2).to_string())
    }

    /// And it can be read there, as the dispatcher knows.
    pub fn can_read_file(&self, rank: Rank, number: u64) -> bool {
        (0..self.of.len()).any(|node| self.can_read_on(node, rank, number))
    }

    /// The same of one node.
    pub fn can_read_on(&self, node: usize, rank: Rank, number: u64) -> bool {
        let serial = self.of[node].life.serial;
        let known = self.known.get(&(rank, number));
        self.counts(node, serial)
            && known.is_some_and(|known| known.contains(&(node, serial)))
            && self.has_file(node, rank, number)
    }

    /// The dispatcher learns that the node has it.
    pub fn is_known_on(&mut self, node: usize, rank: Rank, number: u64) {
        if let Some(life) = self.joined[node] {
            self.known
                .entry((rank, number))
                .or_default()
                .insert((node, life.serial));
        }
    }

    /// The dispatcher knows that a life of the rank has begun there: from an image that is there now.
    pub fn begins_there(&mut self, node: usize, rank: Rank) {
        if self.storage != Storage::Partners {
            return;
        }
        let is_there = |nodes: &BTreeSet<(usize, u64)>| {
            nodes
                .iter()
                .any(|(of, serial)| *of == node && self.counts(node, *serial))
        };
        let of_rank = self.stored.range((rank, 0)..(rank + 1, 0));
        let there: Vec<u64> = of_rank
            .filter(|(_, nodes)| is_there(nodes))
            .map(|((_, number), _)| *number)
            .collect();
        there
            .into_iter()
            .for_each(|number| self.is_known_on(node, rank, number));
    }

    /// A life on the node has begun from it, wherever it read it.
    pub fn has_read(&mut self, node: usize, rank: Rank, number: u64) {
        let serial = self.of[node].life.serial;
        if self.storage == Storage::Partners {
            self.stored.entry((rank, number)).or_default().insert((node, serial));
        }
    }

    /// This node has it.
    pub fn has_file(&self, node: usize, rank: Rank, number: u64) -> bool {
        let this = &self.of[node];
        let stored = self.stored.get(&(rank, number));
        let is_stored = stored.is_some_and(|stored| stored.contains(&(node, this.life.serial)));
        this.alive && is_stored && !self.is_damaged(rank, number, node)
    }

    /// Where a file lies that this node reads.
    pub fn disk_of(&self, node: usize) -> usize {
        if self.storage == Storage::Shared { 0 } else { node }
    }

    /// The file cannot be read there.
    pub fn is_damaged(&self, rank: Rank, number: u64, node: usize) -> bool {
        self.damaged.contains(&(rank, number, self.disk_of(node)))
    }

    /// A new launcher knows of these images.
    pub fn go_on_from(&mut self, images: BTreeSet<(Rank, u64)>) {
        (self.told, self.given_up) = (images, BTreeSet::new());
    }
}

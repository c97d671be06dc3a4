//! Nodes, as the waves run on them: each has an agent with a real [`Lease`], a memory and a disk, and a link to the dispatcher, which has
//! a real [`Membership`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use resurgo_protocol::chandy_lamport::Waves;
use resurgo_protocol::group::{Groups, Turn};
use resurgo_protocol::membership::Timing;
use resurgo_protocol::{Command, Fact, Lease, Membership, Rank};

use crate::random::Random;

/// Most nodes of a job.
const MOST: u64 = 4;

/// The timing where a message takes up to `latency` ticks. Clocks run a tenth too fast or too slow.
fn timing(latency: u64) -> Timing {
    let lease = Duration::from_millis(100 + 5 * latency);
    Timing {
        heartbeat: lease / 10,
        suspect: lease * 3 / 10,
        lease,
        margin: lease * 2 / 5,
    }
}

/// One life of a node, which is that of its agent. No two have the same `serial`, whatever launchers are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub node: usize,
    pub serial: u64,
    pub epoch: u64,
}

/// What an agent says.
#[derive(Debug)]
pub(super) enum Upward {
    Beat(u64),
    Fact(Fact),
}

/// What an agent is told.
#[derive(Debug)]
pub(super) enum Downward {
    Answer(u64),
    Refused,
    Do(Command),
    /// The logs begin anew, empty.
    Empty,
}

#[derive(Debug)]
pub(super) enum Happening {
    Up(Life, Upward),
    Down(Life, Downward),
    /// The agent has something to do by itself.
    Tick(Life),
    /// All that its ranks had written when one of them said this lies on the other nodes.
    Flushed(Life, Fact),
    /// It goes on, after it has stood still.
    Thaw(Life),
    /// The dispatcher looks whom it has not heard of.
    Watch,
    /// It sees that the connection is broken.
    Broken(Life),
    /// Who has started the agent sees that it has ended.
    Confirmed(Life),
    /// An agent on this node wants to join.
    Join(usize),
    /// The file of a rank has come whole from one node to another.
    Replicated(Rank, u64, Life, Life),
}

impl Happening {
    /// It is no moment at which something is under way.
    pub fn is_routine(&self) -> bool {
        !matches!(
            self,
            Happening::Up(_, Upward::Fact(_)) | Happening::Down(_, Downward::Do(_)) | Happening::Replicated(..)
        )
    }
}

/// Where files of images are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// In one directory, for all nodes.
    Shared,
    /// On the disk of the rank's node.
    Own,
    /// There, and on that of a partner.
    Partners,
}

/// What all ranks of a node can see.
#[derive(Debug, Clone)]
pub(super) struct Words {
    pub waves: Waves,
    pub turn: Turn,
    /// The groups of the last wave, and of the one before it.
    pub groups: [Groups; 2],
}

impl Words {
    fn new(size: usize) -> Self {
        Self {
            waves: Waves::default(),
            turn: Turn::default(),
            groups: [Groups::one(size), Groups::one(size)],
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
    /// Until when the link holds back what goes up and down; when the last comes that has been sent.
    pub held: (u64, u64),
    pub last: (u64, u64),
    pub words: Words,
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

/// All nodes. `E`: an event of the world.
#[derive(Debug)]
pub(super) struct Nodes<E> {
    /// There are links; if not, the dispatcher and the agent of the only node are one.
    pub linked: bool,
    pub of: Vec<Node<E>>,
    pub membership: Membership,
    timing: Timing,
    pub storage: Storage,
    /// Of the next agent; of the first one of this launcher.
    pub serial: u64,
    pub first: u64,
    /// The life of each node that has joined, and that the coordinator has not been told the end of.
    pub joined: Vec<Option<Life>>,
    /// When the last arrives that ranks of one node have written for another.
    pub mesh: Vec<Vec<u64>>,
    /// When that comes which these lives have said last, before they were lost.
    pub late: BTreeMap<u64, u64>,
    /// The node that each rank has been placed on.
    pub placed: Vec<usize>,
    /// Images whose files the dispatcher has been told of, so that they count; those that it has given up, or collected.
    pub told: BTreeSet<(Rank, u64)>,
    pub given_up: BTreeSet<(Rank, u64)>,
    /// Copies that it has been told of, and those that it has told to end.
    pub copied: BTreeSet<(Rank, u64)>,
    pub ending: BTreeSet<(Rank, u64)>,
    /// By image: the nodes that have had its file whole, with the lives in which they had it.
    pub stored: BTreeMap<(Rank, u64), BTreeSet<(usize, u64)>>,
    /// The same, as far as the dispatcher has been told.
    pub known: BTreeMap<(Rank, u64), BTreeSet<(usize, u64)>>,
    /// Nodes are left on purpose, by a randomness of their own: other runs stay as they are.
    pub leaves: Option<Random>,
    /// Files that cannot be read any more on this node, whoever knows it.
    pub damaged: BTreeSet<(Rank, u64, usize)>,
}

impl<E> Nodes<E> {
    /// One node; or several with links, at random.
    pub fn new(linked: bool, size: usize, random: &mut Random) -> Self {
        let count = if linked { random.between(1, MOST) as usize } else { 1 };
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
            });
        }
        let workers = (count - usize::from(has_spare)) as u64;
        let placed = (0..size).map(|_| if linked { random.below(workers) as usize } else { 0 });
        Self {
            linked,
            joined: vec![None; count],
            mesh: vec![vec![0; count]; count],
            late: BTreeMap::new(),
            placed: placed.collect(),
            of,
            membership: Membership::default(),
            timing: Timing::default(),
            storage: match linked.then(|| random.below(5)) {
                None | Some(0 | 1) => Storage::Shared,
                Some(2) => Storage::Own,
                Some(_) => Storage::Partners,
            },
            serial: 0,
            first: 0,
            told: BTreeSet::new(),
            given_up: BTreeSet::new(),
            copied: BTreeSet::new(),
            ending: BTreeSet::new(),
            stored: BTreeMap::new(),
            known: BTreeMap::new(),
            leaves: None,
            damaged: BTreeSet::new(),
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

    /// The launcher has been lost, and all that it knew.
    pub fn begin_again(&mut self) {
        self.membership = Membership::new(self.timing);
        self.first = self.serial + 1;
        self.joined.fill(None);
        (self.copied, self.ending) = (BTreeSet::new(), BTreeSet::new());
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
        let this = &mut self.of[node];
        this.lease = Lease::new(timing, this.clock(now));
        (this.life, this.alive, this.frozen) = (life, true, false);
        (this.held, this.last) = ((0, 0), (now, now));
        this.words = Words::new(size);
        self.joined[node] = Some(life);
        life
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

    /// The coordinator takes it for that.
    pub fn counts(&self, node: usize, serial: u64) -> bool {
        self.joined[node].is_some_and(|life| life.serial == serial)
    }

    /// The nodes that the dispatcher takes for being there.
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

    /// And it can be read there, as the dispatcher knows.
    pub fn can_read_file(&self, rank: Rank, number: u64) -> bool {
        let known = self.known.get(&(rank, number));
        let is_known = |node: usize, serial: u64| known.is_some_and(|known| known.contains(&(node, serial)));
        let mut lives = self.of.iter().map(|node| (node.life.node, node.life.serial));
        lives.any(|(node, serial)| {
            self.counts(node, serial) && is_known(node, serial) && self.has_file(node, rank, number)
        })
    }

    /// The dispatcher hears that the node has it.
    pub fn is_known_on(&mut self, node: usize, rank: Rank, number: u64) {
        if let Some(life) = self.joined[node] {
            self.known
                .entry((rank, number))
                .or_default()
                .insert((node, life.serial));
        }
    }

    /// It knows that a life of the rank has begun there: from an image that is there by now.
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

    /// A life on the node has begun from it, wherever it was read.
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
        this.alive && is_stored && !self.damaged.contains(&(rank, number, node))
    }
}

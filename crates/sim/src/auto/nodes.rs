//! The setting `auto-on-nodes`: ranks are on several nodes, which are lost for ever with all that is on them:
//! processes, copies, files, logs and records. A file counts when a partner has it, too, and with it goes what the wave
//! needs of its rank's log. All ranks return to the newest wave that is left, and logs begin anew with it.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::causal::Event;
use resurgo_protocol::coordinator::{From, Place};
use resurgo_protocol::{Fact, Node, Rank};

use crate::image::Image;
use crate::log::{Cursor, Log, Record};
use crate::mutation::Mutation;
use crate::random::Random;
use crate::world::{self, World};

#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub number: u64,
    pub members: Vec<Rank>,
    pub holders: Vec<Node>,
}

#[derive(Debug, Default)]
pub(crate) struct Sets {
    pub of: BTreeMap<u64, Set>,
    /// The pieces that are on nodes.
    pub pieces: BTreeMap<(u64, u32), Node>,
    /// What images were that no node has.
    pub lost: BTreeMap<(Rank, u64), Image>,
}

impl Sets {
    /// No node has the image any more.
    pub fn loses(&mut self, rank: Rank, number: u64, image: Image) {
        let mut sets = self.of.values();
        if sets.any(|set| set.number == number && set.members.contains(&rank)) {
            self.lost.insert((rank, number), image);
        }
    }

    pub fn lose_node(&mut self, node: Node) {
        self.pieces.retain(|_, at| *at != node);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// Those that are there; none: the setting has no nodes.
    pub up: BTreeSet<Node>,
    /// The node of each rank.
    pub of: Vec<Node>,
    /// What the dispatcher knows of deliveries, as it came with what ranks have printed.
    pub vouched: Vec<Event>,
    /// They are in two racks.
    pub racks: bool,
    /// How many have been lost.
    pub losses: u64,
    /// Some leave on purpose; and those that are to, with the newest image of each of their ranks at that moment.
    pub leave: bool,
    pub leaving: BTreeMap<Node, Vec<(Rank, u64)>>,
    /// By image: the nodes that have its file.
    pub stored: BTreeMap<(Rank, u64), BTreeSet<Node>>,
    pub sets: Sets,
    /// Ranks whose logs were lost with their nodes, and are not put back.
    lacking: BTreeSet<Rank>,
    /// So many may be lost at once that a rank has no image left.
    pub lose_all: bool,
    /// The wave with which logs begin, after they began anew.
    logs_since: u64,
}

impl Nodes {
    /// Those of a job of `size` ranks, `most` at most.
    pub fn new(size: usize, most: u64, random: &mut Random) -> Self {
        let count = random.between(2, most) as Node;
        Self {
            up: (0..count).collect(),
            racks: size.is_multiple_of(2),
            of: (0..size).map(|_| random.below(count.into()) as Node).collect(),
            ..Self::default()
        }
    }

    pub fn are(&self) -> bool {
        !self.up.is_empty()
    }
}

/// The entries of the rank's logs that `image` needs: those missing from `delivered`, up to its own sends.
fn log_of(image: &Image, logs: &[Log], delivered: impl Fn(Rank) -> u64) -> Vec<Log> {
    let mut logs = logs.to_vec();
    for (to, log) in (0..).zip(&mut logs) {
        log.cut(image.life.subject.sent(to));
        log.drop_to(delivered(to).min(image.life.subject.sent(to)));
    }
    logs
}

impl World {
    /// Reports the nodes, before the job begins.
    pub(crate) fn tell_nodes(&mut self) {
        for node in self.nodes.up.clone() {
            let (slots, spare, rack) = (2, false, self.nodes.racks.then(|| (node % 2).to_string()));
            self.coordinate(Fact::Up {
                node,
                slots,
                spare,
                rack,
            });
        }
        if self.nodes.are() {
            let nodes = self.nodes.of.clone();
            self.coordinate(Fact::Placed { nodes });
        }
    }

    /// Deliveries of `rank` from `source` by its image of this wave.
    fn delivered_by(&self, rank: Rank, source: Rank, number: u64) -> u64 {
        let image = self.ranks[rank as usize].images.get(number);
        image.map_or(0, |image| image.life.subject.delivered(source))
    }

    /// The file of `rank` is complete: the log that the wave needs goes beside it.
    pub(crate) fn keep_log(&mut self, rank: Rank, number: u64) {
        let process = &self.ranks[rank as usize];
        if let Some(image) = process.images.get(number).filter(|_| self.nodes.are()) {
            let is_missing = self.is(Mutation::ImageWithoutLogs);
            // This node does not always know the receivers' places; then it sends more.
            let knows = self.now.is_multiple_of(2) && !self.moves();
            let delivered = |to: Rank| self.delivered_by(to, rank, number);
            let logs = match is_missing {
                true => vec![Log::default(); process.logs.len()],
                false => log_of(image, &process.logs, |to| if knows { delivered(to) } else { 0 }),
            };
            let wires = self.wires[rank as usize].iter().zip(&logs);
            let carried: Vec<_> = wires.map(|(wire, log)| wire.carried_by(log)).collect();
            let images = self.ranks[rank as usize].images.all(number);
            let is_short = self.mutation == Some(Mutation::LogBesideEndsEarly);
            images.for_each(|image| {
                image.logs.clone_from(&logs);
                image.carried.clone_from(&carried);
                for log in image.logs.iter_mut().filter(|log| is_short && !log.is_empty()) {
                    log.cut(log.end() - 1);
                }
            });
            let own = self.nodes.of[rank as usize];
            self.nodes.stored.entry((rank, number)).or_default().insert(own);
        }
    }

    /// The file of `rank` goes from one node to another one, with its log.
    pub(crate) fn replicate(&mut self, rank: Rank, number: u64, from: Node, to: Node) {
        if from == self.nodes.of[rank as usize] {
            self.nodes.stored.entry((rank, number)).or_default().insert(from);
        }
        // It may have been ordered before a node was lost.
        let are_up = [from, to].iter().all(|node| self.nodes.up.contains(node));
        let has = |node: Node| {
            self.nodes
                .stored
                .get(&(rank, number))
                .is_some_and(|nodes| nodes.contains(&node))
        };
        if are_up && (!has(from) || has(to)) {
            self.failure = Some(format!("image {number} of {rank} is to go from node {from} to {to}"));
        }
        let delay = 1 + self.random.below(self.imaging.time * 3);
        if self.is(Mutation::CountBeforeStored) {
            let place = Place::Node(to);
            self.coordinate(Fact::Stored { rank, number, place });
        }
        self.schedule(delay, world::Event::Stored { rank, number, from, to });
    }

    /// All of it has arrived.
    pub(crate) fn stored(&mut self, rank: Rank, number: u64, from: Node, to: Node) {
        let up = &self.nodes.up;
        let has = |node: &Node| {
            self.nodes
                .stored
                .get(&(rank, number))
                .is_some_and(|nodes| nodes.contains(node))
        };
        if has(&from) && up.contains(&to) && self.ranks[rank as usize].images.get(number).is_some() {
            self.nodes.stored.entry((rank, number)).or_default().insert(to);
            let place = Place::Node(to);
            self.coordinate(Fact::Stored { rank, number, place });
        }
    }

    /// A node that may be lost: not the last one.
    pub(crate) fn victim(&mut self) -> Option<Node> {
        let count = self.nodes.up.len() as u64;
        let victim = self.random.below(count.max(1)) as usize;
        self.nodes.up.iter().copied().nth(victim).filter(|_| count > 1)
    }

    /// The ranks on this node.
    pub(crate) fn ranks_on(&self, node: Node) -> Vec<Rank> {
        let ranks = (0..).zip(&self.nodes.of);
        ranks.filter(|(_, of)| **of == node).map(|(rank, _)| rank).collect()
    }

    /// As many nodes are lost at once as images have replicas, or fewer, but not the last one.
    pub(crate) fn lose_some_nodes(&mut self) {
        let plan = self.coordinator.plan();
        let most: u64 = plan.parity.map_or(plan.replicas, |parity| parity.parity).into();
        for _ in 0..self.random.between(1, most + u64::from(self.nodes.lose_all)) {
            match self.victim() {
                Some(node) if self.moves() => self.lose_with_logs(node),
                Some(node) => self.lose_node(node),
                None => {}
            }
        }
    }

    /// All ranks return, and this one's start is unknown before images of leaving ranks are elsewhere: it begins later.
    pub(crate) fn is_held(&mut self, rank: Rank) -> bool {
        let has_begun = self.ranks[rank as usize].images.begins.is_some();
        let is_held = self.nodes.are() && self.coordinator.is_returning(rank) && !has_begun;
        if is_held {
            self.schedule(1, world::Event::Restart { rank });
        }
        is_held
    }

    /// Makes the ranks of some node go on elsewhere, with the next wave or with images of their own.
    pub(crate) fn leave_some_node(&mut self) {
        let Some(node) = self.victim() else { return };
        self.note(|| format!("node {node} is to be left"));
        let there = self.ranks_on(node);
        let newest = |rank: &Rank| (*rank, self.ranks[*rank as usize].images.last);
        let newest = there.iter().map(newest).collect();
        self.nodes.leaving.entry(node).or_insert(newest);
        for rank in there.into_iter().filter(|_| self.waves.is_none()) {
            self.ranks[rank as usize].image_wanted = true;
        }
        if self.is(Mutation::EndBeforeImages) {
            self.will_end(node);
        }
        self.coordinate(Fact::Leave { node });
    }

    /// The node has been told to end.
    pub(crate) fn will_end(&mut self, node: Node) {
        self.will_end_as_of(node, self.nodes.up.len());
    }

    /// The same, when so many nodes were up.
    pub(crate) fn will_end_as_of(&mut self, node: Node, up: usize) {
        let delay = 1 + self.random.below(3 * self.pace.latency);
        self.schedule(delay, world::Event::NodeEnds { node, up });
    }

    /// The node is lost, and all that was on it.
    pub(crate) fn lose_node(&mut self, node: Node) {
        self.note(|| format!("node {node} is lost"));
        let there = self.ranks_on(node);
        let is_needed = !self.coordinator.has_left(node);
        let left_only = there.iter().all(|rank| self.ranks[*rank as usize].has_left);
        self.lose_files(node, &there);
        let size = self.ranks.len();
        for rank in &there {
            let process = &mut self.ranks[*rank as usize];
            process.logs.iter_mut().for_each(|log| *log = Log::default());
            process.record = Record::new(Cursor::beginning(size), Vec::new());
            self.nodes.lacking.insert(*rank);
            // What it was to begin from is void.
            self.ranks[*rank as usize].images.begins = None;
        }
        self.coordinate(Fact::Down { node });
        for rank in &there {
            // Its end is known already.
            self.end_process(*rank);
        }
        match there.first() {
            Some(rank) if self.is(Mutation::OnlyLostReturn) => self.ranks[*rank as usize].images.begins = None,
            // Others may need what they had sent.
            Some(_) if left_only && (!is_needed || self.is(Mutation::StayWhenEndsAreLost)) => {}
            Some(rank) => self.coordinate(Fact::Return { rank: *rank }),
            None => {}
        }
    }

    /// The files on the node are lost, and what the ranks that were there were writing.
    pub(crate) fn lose_files(&mut self, node: Node, there: &[Rank]) {
        self.nodes.up.remove(&node);
        let stored = &mut self.nodes.stored;
        stored.values_mut().for_each(|nodes| _ = nodes.remove(&node));
        let stored = &self.nodes.stored;
        for (rank, process) in (0..).zip(&mut self.ranks) {
            let is_nowhere = |number: u64| stored.get(&(rank, number)).is_some_and(BTreeSet::is_empty);
            let complete = std::mem::take(&mut process.images.complete);
            let (gone, stay) = complete.into_iter().partition(|(number, _)| is_nowhere(*number));
            process.images.complete = stay;
            let gone: Vec<(u64, Image)> = gone;
            gone.into_iter()
                .for_each(|(number, image)| self.nodes.sets.loses(rank, number, image));
        }
        self.nodes.sets.lose_node(node);
        for rank in there {
            let images = &mut self.ranks[*rank as usize].images;
            images.copies.clear();
            (images.writing, images.asked, images.under_way) = (None, None, None);
        }
    }

    /// Another node than `node` has this image.
    pub(crate) fn is_beside(&self, rank: Rank, number: u64, node: Node) -> bool {
        let nodes = self.nodes.stored.get(&(rank, number));
        nodes.is_some_and(|nodes| nodes.iter().any(|other| *other != node))
    }

    /// Logs and records begin anew with what the images of this wave need.
    pub(crate) fn logs_of_wave(&mut self, number: u64) {
        self.note(|| format!("logs begin anew with what wave {number} needs"));
        let size = self.ranks.len();
        let is_too_new = self.nodes.logs_since > number;
        self.nodes.logs_since = number;
        for rank in 0..size as Rank {
            let is_lacking = self.nodes.lacking.remove(&rank) || is_too_new;
            if self.has_end(rank, number) {
                self.log_of_end(rank);
                continue;
            }
            let process = &self.ranks[rank as usize];
            let Some(image) = process.images.get(number) else {
                self.failure = Some(format!("{rank} has no image of wave {number}"));
                return;
            };
            let logs = match is_lacking {
                true if self.is(Mutation::LogsStayLost) => vec![Log::default(); size],
                true => image.logs.clone(),
                false => log_of(image, &process.logs, |to| self.delivered_by(to, rank, number)),
            };
            let cursor = image.cursor();
            let process = &mut self.ranks[rank as usize];
            process.logs = logs;
            process.record = Record::new(cursor, Vec::new());
        }
    }

    /// A life has begun from its image, which its node has now, wherever it read it.
    pub(crate) fn has_read(&mut self, rank: Rank) {
        let images = &self.ranks[rank as usize].images;
        let number = images.begins.map_or(images.from, From::number);
        let node = self.nodes.of.get(rank as usize);
        if let Some((stored, node)) = self.nodes.stored.get_mut(&(rank, number)).zip(node) {
            stored.insert(*node);
        }
    }

    /// A life begins on `node`.
    pub(crate) fn placed(&mut self, rank: Rank, node: Node, from: From) {
        if !self.nodes.are() {
            return;
        }
        self.nodes.of[rank as usize] = node;
        if from != From::Beginning && self.ranks[rank as usize].images.get(from.number()).is_none() {
            self.failure = Some(format!(
                "{rank} is to begin from image {}, which is nowhere",
                from.number()
            ));
        }
    }

    /// All logs are empty, including lost ones.
    pub(crate) fn nothing_is_lacking(&mut self) {
        self.nodes.lacking.clear();
        self.nodes.logs_since = 0;
    }
}

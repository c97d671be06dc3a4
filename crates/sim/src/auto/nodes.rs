//! The setting `auto-on-nodes`: ranks are on several nodes, which are lost for ever with all that is on them: processes, copies, files,
//! logs and records. A file counts when a partner has it, too, and with it goes what the wave needs of its rank's log. All return to the
//! newest wave that is left, and logs begin anew with that.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::coordinator::{From, Place};
use resurgo_protocol::{Fact, Node, Rank};

use crate::image::Image;
use crate::log::{Cursor, Log, Record};
use crate::mutation::Mutation;
use crate::random::Random;
use crate::world::{Event, World};

/// Most nodes of a job.
const MOST: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// Those that are there; none: the setting has no nodes.
    pub up: BTreeSet<Node>,
    /// The node of each rank.
    pub of: Vec<Node>,
    /// By image: the nodes that have its file.
    stored: BTreeMap<(Rank, u64), BTreeSet<Node>>,
    /// Ranks whose logs were lost with their nodes, and have not been put back.
    lacking: BTreeSet<Rank>,
}

impl Nodes {
    pub fn new(size: usize, random: &mut Random) -> Self {
        let count = random.between(2, MOST) as Node;
        Self {
            up: (0..count).collect(),
            of: (0..size).map(|_| random.below(count.into()) as Node).collect(),
            ..Self::default()
        }
    }

    pub fn are(&self) -> bool {
        !self.up.is_empty()
    }
}

/// What `image` needs of the logs of its rank: what `delivered` does not have, up to what it had sent itself.
fn log_of(image: &Image, logs: &[Log], delivered: impl Fn(Rank) -> u64) -> Vec<Log> {
    let mut logs = logs.to_vec();
    for (to, log) in (0..).zip(&mut logs) {
        log.cut(image.life.subject.sent(to));
        log.drop_to(delivered(to).min(image.life.subject.sent(to)));
    }
    logs
}

impl World {
    /// The job has nodes, before anything begins.
    pub(crate) fn tell_nodes(&mut self) {
        for node in self.nodes.up.clone() {
            let (slots, spare) = (2, false);
            self.coordinate(Fact::Up { node, slots, spare });
        }
        if self.nodes.are() {
            let nodes = self.nodes.of.clone();
            self.coordinate(Fact::Placed { nodes });
        }
    }

    /// What `rank` has delivered from `source` by its image of this wave.
    fn delivered_by(&self, rank: Rank, source: Rank, number: u64) -> u64 {
        let image = self.ranks[rank as usize].images.get(number);
        image.map_or(0, |image| image.life.subject.delivered(source))
    }

    /// The file of `rank` goes to node `to`, with what the wave needs of its log.
    pub(crate) fn replicate(&mut self, rank: Rank, number: u64, to: Node) {
        let from = self.nodes.of[rank as usize];
        self.nodes.stored.entry((rank, number)).or_default().insert(from);
        let process = &self.ranks[rank as usize];
        if let Some(image) = process.images.get(number) {
            // Where the receivers are is not always known here; then more is sent.
            let knows = self.now.is_multiple_of(2);
            let delivered = |to: Rank| self.delivered_by(to, rank, number);
            let logs = log_of(image, &process.logs, |to| if knows { delivered(to) } else { 0 });
            let images = self.ranks[rank as usize].images.all(number);
            images.for_each(|image| image.logs.clone_from(&logs));
        }
        let delay = 1 + self.random.below(self.imaging.time * 3);
        if self.is(Mutation::CountBeforeStored) {
            let place = Place::Node(to);
            self.coordinate(Fact::Stored { rank, number, place });
        }
        self.schedule(delay, Event::Stored { rank, number, from, to });
    }

    /// All of it has come.
    pub(crate) fn stored(&mut self, rank: Rank, number: u64, from: Node, to: Node) {
        let up = &self.nodes.up;
        if up.contains(&from) && up.contains(&to) && self.ranks[rank as usize].images.get(number).is_some() {
            self.nodes.stored.entry((rank, number)).or_default().insert(to);
            let place = Place::Node(to);
            self.coordinate(Fact::Stored { rank, number, place });
            // Only now something may be forgotten.
            for rank in 0..self.ranks.len() as Rank {
                let incarnation = self.ranks[rank as usize].incarnation;
                self.schedule(0, Event::Collect { rank, incarnation });
            }
        }
    }

    /// A node is lost, but not the last one.
    pub(crate) fn lose_node(&mut self) {
        if self.nodes.up.len() < 2 {
            return;
        }
        let victim = self.random.below(self.nodes.up.len() as u64) as usize;
        let Some(node) = self.nodes.up.iter().copied().nth(victim) else {
            return;
        };
        self.nodes.up.remove(&node);
        self.note(|| format!("node {node} is lost"));
        let stored = &mut self.nodes.stored;
        stored.values_mut().for_each(|nodes| _ = nodes.remove(&node));
        let there: Vec<Rank> = (0..)
            .zip(&self.nodes.of)
            .filter(|(_, of)| **of == node)
            .map(|(rank, _)| rank)
            .collect();
        let size = self.ranks.len();
        for (rank, process) in (0..).zip(&mut self.ranks) {
            let is_nowhere = |number: u64| stored.get(&(rank, number)).is_some_and(BTreeSet::is_empty);
            process.images.complete.retain(|(number, _)| !is_nowhere(*number));
        }
        for rank in &there {
            let process = &mut self.ranks[*rank as usize];
            process.images.copies.clear();
            (process.images.writing, process.images.asked) = (None, None);
            process.logs.iter_mut().for_each(|log| *log = Log::default());
            process.record = Record::new(Cursor::beginning(size), Vec::new());
            self.nodes.lacking.insert(*rank);
        }
        self.coordinate(Fact::Down { node });
        for rank in &there {
            // It is known already.
            self.end_process(*rank);
        }
        match there.first() {
            Some(rank) if self.is(Mutation::OnlyLostReturn) => self.ranks[*rank as usize].images.begins = None,
            Some(rank) => self.coordinate(Fact::Return { rank: *rank }),
            None => {}
        }
    }

    /// Logs and records begin anew with what the images of this wave need.
    pub(crate) fn logs_of_wave(&mut self, number: u64) {
        self.note(|| format!("logs begin anew with what wave {number} needs"));
        let size = self.ranks.len();
        for rank in 0..size as Rank {
            let is_lacking = self.nodes.lacking.remove(&rank);
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

    /// A life has begun from its image, which its node has now, wherever it was read.
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

    /// The logs of all are empty, also where they were lost.
    pub(crate) fn nothing_is_lacking(&mut self) {
        self.nodes.lacking.clear();
    }
}

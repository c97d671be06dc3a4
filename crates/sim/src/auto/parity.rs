//! The setting `auto-with-parity`: images of waves are in sets with pieces of parity, and go with the logs beside them.

use std::collections::BTreeSet;

use resurgo_protocol::coordinator::Place;
use resurgo_protocol::{Command, Fact, Node, Rank};

use super::nodes::Set;
use crate::mutation::Mutation;
use crate::world::{self, World};

impl World {
    /// Carries out commands about sets.
    pub(crate) fn mind_parity(&mut self, command: &Command) {
        match *command {
            Command::Encode {
                number,
                set,
                ref members,
                ref holders,
            } => self.encode(number, set, members, holders),
            Command::DropCopy { rank, number, node } => {
                let others = self.is_beside(rank, number, node);
                if !others {
                    self.failure = Some(format!("node {node} forgets the only file {number} of {rank}"));
                }
                let nodes = self.nodes.stored.get_mut(&(rank, number));
                nodes.into_iter().for_each(|nodes| _ = nodes.remove(&node));
            }
            Command::Rebuild { .. } => {
                let delay = 1 + self.random.below(self.imaging.time * 3);
                self.schedule(delay, world::Event::Rebuilt(Box::new(command.clone())));
            }
            Command::CollectSet { set, .. } => {
                let sets = &mut self.nodes.sets;
                sets.of.remove(&set);
                sets.pieces.retain(|(of, _), _| *of != set);
                let of = &sets.of;
                let is_in = |(rank, number): &(Rank, u64)| {
                    let mut sets = of.values();
                    sets.any(|set| set.number == *number && set.members.contains(rank))
                };
                sets.lost.retain(|image, _| is_in(image));
            }
            _ => {}
        }
    }

    fn has_stored(&self, rank: Rank, number: u64, node: Node) -> bool {
        let nodes = self.nodes.stored.get(&(rank, number));
        self.nodes.up.contains(&node) && nodes.is_some_and(|nodes| nodes.contains(&node))
    }

    fn encode(&mut self, number: u64, set: u64, members: &[Rank], holders: &[Node]) {
        let own = members.iter().map(|rank| self.nodes.of[*rank as usize]);
        let all: BTreeSet<Node> = own.chain(holders.iter().copied()).collect();
        let lacks = |rank: &Rank| !self.has_stored(*rank, number, holders[0]);
        let is_beside = all.len() < members.len() + holders.len() && !self.coordinator.is_returning(0);
        if is_beside || members.iter().any(lacks) && self.nodes.up.contains(&holders[0]) {
            self.failure = Some(format!(
                "set {set} of images {number} of {members:?} on nodes {holders:?}"
            ));
        }
        let of = Set {
            number,
            members: members.to_vec(),
            holders: holders.to_vec(),
        };
        self.nodes.sets.of.insert(set, of);
        for (index, node) in (0..).zip(holders) {
            let delay = 1 + self.random.below(self.imaging.time * 3);
            self.schedule(delay, world::Event::Parity { set, index });
            if self.is(Mutation::CountBeforePieces) {
                let node = *node;
                self.coordinate(Fact::Encoded { number, set, node });
            }
        }
    }

    /// A piece is on its node.
    pub(crate) fn piece_comes(&mut self, set: u64, index: u32) {
        let Some(Set { number, holders, .. }) = self.nodes.sets.of.get(&set).cloned() else {
            return;
        };
        let node = holders[index as usize];
        if [holders[0], node].iter().all(|node| self.nodes.up.contains(node)) {
            self.nodes.sets.pieces.insert((set, index), node);
            self.coordinate(Fact::Encoded { number, set, node });
        }
    }

    /// The image of a [`Command::Rebuild`] is made anew, if enough of its set is there.
    pub(crate) fn rebuilt(&mut self, command: &Command) {
        let Command::Rebuild {
            rank,
            number,
            set,
            to,
            ref members,
            ref pieces,
        } = *command
        else {
            return;
        };
        if !self.nodes.up.contains(&to) {
            return;
        }
        let needed = self.nodes.sets.of.get(&set).map_or(usize::MAX, |set| set.members.len());
        if members.len() + pieces.len() < needed && needed < usize::MAX {
            self.failure = Some(format!("image {number} of {rank} is to be made from too little"));
        }
        let files = members
            .iter()
            .filter(|(rank, node)| self.has_stored(*rank, number, *node));
        let there = &self.nodes.sets.pieces;
        let pieces = pieces
            .iter()
            .filter(|(index, node)| there.get(&(set, *index)) == Some(node));
        let is_enough = files.count() + pieces.count() >= needed;
        let image = self.nodes.sets.lost.get(&(rank, number)).filter(|_| is_enough).cloned();
        let Some(image) = image else {
            let reason = "too much of its set is lost".to_string();
            return self.coordinate(Fact::NotFetched { rank, number, reason });
        };
        self.note(|| format!("image {number} of {rank} is made anew on node {to}"));
        let complete = &mut self.ranks[rank as usize].images.complete;
        if !complete.iter().any(|(of, _)| *of == number) {
            complete.push((number, image));
            complete.sort_by_key(|(number, _)| *number);
        }
        self.nodes.stored.entry((rank, number)).or_default().insert(to);
        let place = Place::Node(to);
        self.coordinate(Fact::Fetched { rank, number, place });
    }
}

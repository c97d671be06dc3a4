//! Parity: images of a wave that are lost with their nodes are made anew from those of others.
//!
//! The images of a wave are in sets ([`sets`](crate::placement::sets)), and each set has *pieces* of parity on nodes without members.
//! As many nodes can be lost as there are pieces. The first holder of a set makes the pieces: it gets the members' files,
//! of one set at a time, and forgets them when all pieces are there. Then the files count.
//!
//! What follows from the state of sets and files is looked for after each fact (`mind_sets`):
//!
//! - A set that cannot be made any more is forgotten, and its ranks form others.
//! - A set with a lost piece, or with a member that is now beside another one or beside a piece, is *broken*. While all
//!   ranks run, its ranks form sets anew. The broken one stays until these are made.
//! - Ranks that leave their node are in no set: other nodes get replicas, as many as there would be pieces.

mod making;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::state::{FormerSet, Making, Member, Place, Rebuilding, Set, Source};
use super::{Command, Coordinator};
use crate::placement::Parity;
use crate::{Node, Rank};

impl Coordinator {
    /// Images of waves have parity, as there are waves of all ranks.
    pub(super) fn parity(&self) -> Option<Parity> {
        let may_be = self.has_waves() && self.units.len() == 1 && self.plan.files && !self.plan.moves;
        self.plan.parity.filter(|_| may_be)
    }

    pub(super) fn has_sets(&mut self, sets: Vec<FormerSet>) {
        for former in sets {
            let pieces: BTreeMap<u32, Node> = former.pieces.into_iter().collect();
            self.sets.last = self.sets.last.max(former.set);
            let set = Set {
                number: former.number,
                members: former.members,
                holders: pieces.values().copied().collect(),
                pieces,
                step: Making::Made,
                failed: BTreeSet::new(),
            };
            self.sets.insert(former.set, set);
        }
    }

    /// The file is in a set, or will be; otherwise it has replicas.
    pub(super) fn is_in_parity(&self, rank: Rank, number: u64) -> bool {
        let Member { node, ref images, .. } = self.ranks[rank as usize];
        let places = images.places.get(&number);
        let is_everywhere = places.is_some_and(|places| places.contains(&Place::Everywhere));
        self.parity().is_some()
            && !is_everywhere
            && (!self.is_leaving(node) || self.sets.with(number, rank).next().is_some())
    }

    /// How many replicas a file has that is in no set.
    pub(super) fn replicas(&self) -> u32 {
        self.parity().map_or(self.plan.replicas, |parity| parity.parity)
    }

    /// A node that is up and has the complete file: the rank's own, if that has.
    fn location(&self, rank: Rank, number: u64) -> Option<Node> {
        let own = self.ranks[rank as usize].node;
        let mut nodes = self.nodes_with(rank, number);
        let first = nodes.next()?;
        Some(if nodes.any(|node| node == own) { own } else { first })
    }

    /// All nodes with the file, the rank's own first.
    fn locations(&self, rank: Rank, number: u64) -> Vec<Node> {
        let own = self.ranks[rank as usize].node;
        let mut nodes: Vec<Node> = self.nodes_with(rank, number).collect();
        nodes.sort_by_key(|node| *node != own);
        nodes
    }

    /// The nodes that are up and have the complete file.
    fn nodes_with(&self, rank: Rank, number: u64) -> impl Iterator<Item = Node> {
        let places = self.ranks[rank as usize].images.places.get(&number);
        let nodes = places.into_iter().flatten().filter_map(|place| match place {
            Place::Node(node) => Some(*node),
            Place::Everywhere => None,
        });
        nodes.filter(|node| self.nodes.up.contains_key(node))
    }

    /// The rank's file is written, being written, or will be.
    fn has_or_writes(&self, rank: Rank, number: u64) -> bool {
        let images = &self.ranks[rank as usize].images;
        let unit = &self.units[0];
        let writing = unit.writing.as_ref().filter(|writing| writing.number() == number);
        let will_write = || writing.is_some_and(|writing| !writing.has_begun(unit.place(rank)));
        images.has_file(number) || images.writing == Some(number) || will_write()
    }

    /// No image is on its way back, and none of a rank that begins.
    fn all_run(&self) -> bool {
        let runs = |member: &Member| member.is_alive() || member.finished;
        self.units[0].returning.is_none() && !self.is_halted && self.ranks.iter().all(runs)
    }

    /// The members' files that are there, and where.
    fn files_of(&self, set: &Set) -> Vec<(Rank, Node)> {
        let has = |rank: &&Rank| self.ranks[**rank as usize].images.has_file(set.number);
        let members = set.members.iter().filter(has);
        // One that was of no use before comes last.
        let at = |rank: &Rank| {
            let nodes = self.locations(*rank, set.number);
            let fails = |node: &Node| set.failed.contains(&Source::File(*rank, *node));
            let node = nodes.iter().find(|node| !fails(node)).or(nodes.first())?;
            Some((*rank, *node))
        };
        members.filter_map(at).collect()
    }

    /// The pieces that are there, and where.
    fn pieces_of(&self, set: &Set) -> Vec<(u32, Node)> {
        let pieces = set.pieces.iter().map(|(index, node)| (*index, *node));
        pieces.filter(|(_, node)| self.nodes.up.contains_key(node)).collect()
    }

    fn sources(&self, set: &Set) -> BTreeSet<Source> {
        let files = self.files_of(set).into_iter();
        let files = files.map(|(rank, node)| Source::File(rank, node));
        let pieces = self.pieces_of(set).into_iter();
        files
            .chain(pieces.map(|(index, node)| Source::Piece(index, node)))
            .collect()
    }

    /// As many nodes can be lost as the set has pieces.
    fn is_sound(&self, set: &Set) -> bool {
        if set.step != Making::Made || !set.failed.is_empty() || set.pieces.len() != set.holders.len() {
            return false;
        }
        let has = |rank: Rank| self.ranks[rank as usize].images.has_file(set.number);
        let at = |rank: &Rank| self.location(*rank, set.number).filter(|_| has(*rank));
        let piece = |node: &Node| Some(*node).filter(|node| self.nodes.up.contains_key(node));
        let files = set.members.iter().map(at);
        let mut nodes = Vec::with_capacity(set.members.len() + set.pieces.len());
        files.chain(set.pieces.values().map(piece)).all(|node| {
            let is_another = node.filter(|node| !nodes.contains(node));
            nodes.extend(is_another);
            is_another.is_some()
        })
    }

    /// The set from which the rank's file, which no node has, can be made anew.
    pub(super) fn rebuildable(&self, rank: Rank, number: u64) -> Option<u64> {
        let is_written = self.ranks[rank as usize].images.writing == Some(number);
        let can = |set: &Set| {
            let sources = self.sources(set);
            // What is there does not make the others, as was found out.
            let has_failed = !set.failed.is_empty() && sources.is_subset(&set.failed);
            !has_failed && sources.len() >= set.members.len()
        };
        let made = self.sets.with(number, rank).filter(|(_, set)| set.step == Making::Made);
        let mut sets = made.filter(|(_, set)| !is_written && can(set));
        sets.next().map(|(id, _)| id)
    }

    /// Some node has the rank's file, or it can be made anew.
    pub(super) fn is_kept(&self, rank: Rank, number: u64) -> bool {
        self.ranks[rank as usize].images.has_file(number) || self.rebuildable(rank, number).is_some()
    }

    /// The newest wave above `wave` that all ranks can return to if some files are made anew.
    pub(super) fn newest_by_parity(&self, unit: usize, wave: u64) -> Option<u64> {
        self.parity()?;
        let can = |number: &u64| {
            let has_transit = self.transit.contains(number) || self.transit_files.contains(number);
            let mut missing = self.without(unit, *number).into_iter();
            (has_transit || !self.is_passing()) && missing.all(|rank| self.rebuildable(rank, *number).is_some())
        };
        let numbers = self.sets.of.values().map(|set| set.number);
        numbers.filter(|number| *number > wave && can(number)).max()
    }

    /// Makes the file anew on node `to`.
    pub(super) fn rebuild(&mut self, rank: Rank, set: u64, to: Node) -> Rebuilding {
        let of = &self.sets.of[&set];
        let (number, members, pieces) = (of.number, self.files_of(of), self.pieces_of(of));
        let sources = self.sources(of);
        self.tell(Command::Rebuild {
            rank,
            number,
            set,
            to,
            members,
            pieces,
        });
        let is_stale = false;
        Rebuilding { set, sources, is_stale }
    }

    /// It could not be made, although all of these were there.
    pub(super) fn is_not_made_from(&mut self, set: u64, sources: BTreeSet<Source>) {
        if let Some(set) = self.sets.of.get_mut(&set) {
            set.failed.extend(sources);
        }
    }

    /// The node is lost.
    pub(super) fn lose_pieces(&mut self, node: Node) {
        self.sets.look_again = true;
        let sets = self.sets.of.values_mut();
        sets.for_each(|set| set.pieces.retain(|_, at| *at != node));
        for fetching in self.units.iter_mut().filter_map(|unit| unit.fetching.as_mut()) {
            let made = fetching.rebuilding.values_mut();
            made.for_each(|made| made.is_stale |= made.sources.iter().any(|source| source.node() == node));
        }
    }

    /// The node has its piece.
    pub(super) fn encoded(&mut self, number: u64, set: u64, node: Node) {
        let Some(of) = self.sets.of.get_mut(&set) else {
            return self.tell(Command::CollectSet { number, set });
        };
        let place = of.holders.iter().position(|holder| *holder == node);
        let Some(place) = place.filter(|_| of.step == Making::Encoding && self.nodes.up.contains_key(&node)) else {
            return;
        };
        of.pieces.insert(place as u32, node);
        if of.pieces.len() == of.holders.len() {
            of.step = Making::Made;
            let members = of.members.clone();
            members.into_iter().for_each(|rank| self.complete_file(rank, number));
        }
    }

    /// The node has no piece, or has it no more.
    pub(super) fn not_encoded(&mut self, number: u64, set: u64, node: Node, reason: String) {
        let Some(of) = self.sets.of.get_mut(&set) else {
            return;
        };
        of.pieces.retain(|_, at| *at != node);
        let members = of.members.clone();
        for rank in members {
            self.images(rank).refused.insert((number, node));
        }
        self.sets.reason = Some(reason);
    }

    /// Sets of these waves are not needed any more.
    pub(super) fn collect_sets(&mut self, goes: impl Fn(u64) -> bool) {
        let gone = self.sets.of.iter().filter(|(_, set)| goes(set.number));
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.collect_set(id));
    }

    fn collect_set(&mut self, set: u64) {
        let gone = self.sets.remove(set);
        if let Some(gone) = gone.filter(|gone| matches!(gone.step, Making::Encoding | Making::Made)) {
            let number = gone.number;
            self.tell(Command::CollectSet { number, set });
        }
    }

    /// There will be no waves any more: files get replicas instead.
    pub(super) fn end_parity(&mut self) {
        if self.plan.parity.is_some() {
            self.collect_sets(|_| true);
            self.replicate_again();
            self.replicate_all();
        }
    }
}

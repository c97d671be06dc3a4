//! Images with parity: sets, their pieces on nodes, and what is checked of them.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::coordinator::{FormerSet, Place};
use resurgo_protocol::placement::Parity;
use resurgo_protocol::{Command, Fact, Rank};

use super::nodes::{Happening, Life, Rebuild};
use super::sets::{Alive, Image, Set, Sets, Source};
use super::{Event, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

const COUNTS: &str = "an image counts when its set has all of its pieces";
const APART: &str = "no two images or pieces of a set are on one node";
const ENOUGH: &str = "an image is made from as many others and pieces as its set has images";
const IN_USE: &str = "no piece of a wave in use is removed";
const COPIES: &str = "a holder forgets files when their pieces are there";
const REMADE: &str = "a broken set is made anew";
const NOT_FOR_EVER: &str = "nothing is kept for ever";

impl World {
    fn life(&self, node: u32) -> Option<Life> {
        self.nodes.joined[node as usize]
    }

    fn alive(&self, node: u32) -> Alive {
        self.life(node)
            .map_or((node as usize, 0), |life| (life.node, life.serial))
    }

    /// What a broken coordinator would say instead, or before.
    pub(super) fn break_parity(&mut self, command: &mut Command) -> Result<bool, Violation> {
        match command {
            Command::Encode {
                number,
                members,
                holders,
                set,
            } => {
                let (number, set) = (*number, *set);
                let is_again = members.iter().all(|rank| self.nodes.told.contains(&(*rank, number)));
                if self.is(Mutation::LeaveSetsBroken) && is_again {
                    return Ok(false);
                }
                if self.is(Mutation::HolderIsMember)
                    && let Some(last) = holders.last_mut()
                {
                    *last = self.agent.coordinator.node(members[0]);
                }
                if self.is(Mutation::CollectOlderSets) {
                    let older = self.nodes.sets.of.iter();
                    let older = older.filter(|(_, of)| of.made && of.collected.is_none() && of.number < number);
                    for (set, number) in older.map(|(set, of)| (*set, of.number)).collect::<Vec<_>>() {
                        self.before(&Command::CollectSet { number, set })?;
                    }
                }
                if self.is(Mutation::DropCopiesEarly) {
                    let (rank, node) = (members[0], holders[0]);
                    self.ordered(set, number, members, holders)?;
                    self.before(&Command::DropCopy { rank, number, node })?;
                }
            }
            Command::Rebuild {
                set, members, pieces, ..
            } if self.is(Mutation::RebuildWithTooFew) => {
                let enough = self.nodes.sets.of.get(set).map_or(0, |set| set.members.len());
                while members.len() + pieces.len() >= enough && pieces.pop().or(members.pop().map(|_| (0, 0))).is_some()
                {
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// The dispatcher orders something about sets.
    pub(super) fn before_parity(&mut self, command: &Command) -> Result<(), Violation> {
        let is_noted = matches!(
            command,
            Command::Encode { .. } | Command::DropCopy { .. } | Command::Rebuild { .. } | Command::CollectSet { .. }
        );
        if is_noted || self.nodes.sets.rule.is_some() && matches!(command, Command::Replicate { .. }) {
            self.note(|| format!("{command:?}"));
        }
        match *command {
            Command::Encode {
                number,
                set,
                ref members,
                ref holders,
            } => self.ordered(set, number, members, holders),
            Command::DropCopy { rank, number, node } => self.is_dropped((rank, number), node as usize),
            Command::Rebuild {
                rank,
                number,
                set,
                ref members,
                ref pieces,
                ..
            } => self.is_rebuilding((rank, number), set, members, pieces),
            Command::CollectSet { set, .. } => self.is_collected(set),
            _ => Ok(()),
        }
    }

    fn ordered(&mut self, set: u64, number: u64, members: &[Rank], holders: &[u32]) -> Result<(), Violation> {
        let first = holders[0] as usize;
        let own = |rank: &Rank| {
            let having = self.having((*rank, number));
            let own = self.agent.coordinator.node(*rank) as usize;
            let others = having.iter().copied().find(|node| *node != first);
            if having.contains(&own) { Some(own) } else { others }
        };
        let nodes: Vec<usize> = members.iter().filter_map(own).collect();
        let all: BTreeSet<usize> = nodes
            .iter()
            .copied()
            .chain(holders.iter().map(|node| *node as usize))
            .collect();
        let size = members.len() + holders.len();
        if !self.agent.is_returning() && all.len() < size {
            let what = format!("set {set} of images {number} of {members:?} on {nodes:?}, with pieces on {holders:?}");
            return violation(APART, what);
        }
        let lacks = |rank: &&Rank| !self.having((**rank, number)).contains(&first);
        if let Some(rank) = members.iter().find(lacks) {
            return violation(
                APART,
                format!("node {first} is to make pieces of image {number} of {rank}, and has not"),
            );
        }
        let most = self.nodes.sets.rule.map_or(0, |rule| rule.parity as usize);
        if holders.is_empty() || holders.len() > most || holders.iter().any(|node| self.life(*node).is_none()) {
            return violation(APART, format!("set {set} has pieces on {holders:?}"));
        }
        let set_now = Set {
            number,
            members: members.to_vec(),
            holders: holders.iter().map(|node| *node as usize).collect(),
            known: BTreeMap::new(),
            made: false,
            failed: BTreeSet::new(),
            collected: None,
        };
        self.nodes.sets.of.insert(set, set_now);
        Ok(())
    }

    /// Sets of the image that the dispatcher has not given up.
    fn sets_of(&self, image: Image) -> impl Iterator<Item = (u64, &Set)> {
        let sets = self.nodes.sets.of.iter().map(|(id, set)| (*id, set));
        sets.filter(move |(_, set)| set.number == image.1 && set.members.contains(&image.0) && set.collected.is_none())
    }

    fn is_dropped(&mut self, image: Image, node: usize) -> Result<(), Violation> {
        let makes = |(_, set): (u64, &Set)| !set.made && set.holders[0] == node;
        let is_protected = self.sets_of(image).any(|(_, set)| self.is_sound(set));
        let others = self.having(image).into_iter().filter(|other| *other != node).count();
        let counts = self.nodes.told.contains(&image);
        if others == 0 || counts && !is_protected || self.sets_of(image).any(makes) {
            return violation(COPIES, format!("node {node} is to forget image {image:?}"));
        }
        let alive = self.alive(node as u32);
        let known = self.nodes.known.get_mut(&image);
        known.into_iter().for_each(|known| _ = known.remove(&alive));
        Ok(())
    }

    fn is_rebuilding(
        &mut self,
        image: Image,
        set: u64,
        members: &[(Rank, u32)],
        pieces: &[(u32, u32)],
    ) -> Result<(), Violation> {
        let what = || format!("image {image:?} of set {set} from {members:?} and pieces {pieces:?}");
        let Some(of) = self.nodes.sets.of.get(&set) else {
            return violation(ENOUGH, what());
        };
        let has = |(rank, node): &(Rank, u32)| self.having((*rank, image.1)).contains(&(*node as usize));
        let has_piece = |(index, node): &(u32, u32)| of.known.get(index) == Some(&self.alive(*node));
        let are_there = members.iter().all(has) && pieces.iter().all(has_piece);
        if members.len() + pieces.len() < of.members.len() || !are_there || !of.made || of.collected.is_some() {
            return violation(ENOUGH, what());
        }
        let files = members.iter().map(|(rank, node)| (Some(*rank), 0, self.alive(*node)));
        let pieces = pieces.iter().map(|(index, node)| (None, *index, self.alive(*node)));
        let sources = files.chain(pieces).collect();
        self.nodes.sets.coming.insert(image.0, (set, sources));
        Ok(())
    }

    /// It may be forgotten if its wave is of no use any more, or if its images are in other sets.
    fn is_collected(&mut self, set: u64) -> Result<(), Violation> {
        let Some(of) = self.nodes.sets.of.get(&set).filter(|of| of.collected.is_none()) else {
            return Ok(());
        };
        let number = of.number;
        let is_elsewhere = |rank: &Rank| {
            let mut others = self.sets_of((*rank, number));
            others.any(|(other, of)| other != set && self.is_sound(of))
        };
        let is_replaced = of.members.iter().all(is_elsewhere);
        let is_usable = |rank: Rank, wave: u64| {
            let image = (rank, wave);
            let counts = self.nodes.told.contains(&image) && !self.nodes.given_up.contains(&image);
            counts && (!self.having(image).is_empty() || self.can_be_rebuilt(image, |_| true))
        };
        // Two waves stay.
        let newer: BTreeSet<u64> = self
            .nodes
            .told
            .iter()
            .map(|(_, wave)| *wave)
            .filter(|wave| *wave > number)
            .collect();
        let can_use = |wave: &u64| (0..self.size as Rank).all(|rank| is_usable(rank, *wave));
        let has = |rank: Rank, wave: u64| self.agent.coordinator.has_file(rank, wave) || is_usable(rank, wave);
        let are_there = |wave: &u64| (0..self.size as Rank).all(|rank| has(rank, *wave));
        let is_old = newer.into_iter().filter(are_there).count() >= 2;
        if of.made && !is_replaced && !is_old && can_use(&number) {
            let others: Vec<_> = of
                .members
                .iter()
                .flat_map(|rank| self.sets_of((*rank, number)))
                .collect();
            let what = format!("set {set} of wave {number} is to be forgotten: {of:?}; there are {others:?}");
            return violation(IN_USE, what);
        }
        let now = self.now;
        let of = self.nodes.sets.of.get_mut(&set);
        of.into_iter().for_each(|of| of.collected = Some(now));
        Ok(())
    }

    /// As many nodes can be lost as it has pieces, as far as the dispatcher knows.
    fn is_sound(&self, set: &Set) -> bool {
        let own = |rank: &Rank| {
            let having = self.having((*rank, set.number));
            let own = self.agent.coordinator.node(*rank) as usize;
            having.get(&own).or(having.first()).copied()
        };
        let files: Vec<usize> = set.members.iter().filter_map(own).collect();
        let pieces = set
            .known
            .values()
            .filter(|(node, serial)| self.nodes.counts(*node, *serial));
        let pieces: Vec<usize> = pieces.map(|(node, _)| *node).collect();
        let all: BTreeSet<usize> = files.iter().chain(&pieces).copied().collect();
        let size = set.members.len() + set.holders.len();
        set.made && set.failed.is_empty() && files.len() + pieces.len() == size && all.len() == size
    }

    /// The image can be made anew from what is whole on nodes, as the dispatcher could know, if only these stay.
    pub(super) fn can_be_rebuilt(&self, image: Image, stays: impl Fn(usize) -> bool) -> bool {
        let nodes = &self.nodes;
        let file = |rank: &Rank| {
            let image = (*rank, image.1);
            let counts = nodes.told.contains(&image) && !nodes.given_up.contains(&image);
            let mut all = 0..nodes.of.len();
            let at = all.find(|node| counts && stays(*node) && nodes.can_read_on(*node, image.0, image.1))?;
            Some((Some(*rank), 0, self.alive(at as u32)))
        };
        let is_there = |id: u64, (index, (node, serial)): (&u32, &Alive)| {
            let at = nodes.sets.pieces.get(&(id, *index));
            let is_whole = at == Some(&(*node, *serial)) && !nodes.sets.damaged.contains(&(id, *index));
            is_whole && nodes.is_alive(*node, *serial) && nodes.counts(*node, *serial) && stays(*node)
        };
        let can = |(id, set): (u64, &Set)| {
            let pieces = set.known.iter().filter(|piece| is_there(id, *piece));
            let pieces = pieces.map(|(index, alive)| (None, *index, *alive));
            let sources: BTreeSet<Source> = set.members.iter().filter_map(file).chain(pieces).collect();
            let is_tried = !set.failed.is_empty() && sources.is_subset(&set.failed);
            set.made && !is_tried && sources.len() >= set.members.len()
        };
        self.sets_of(image).any(can)
    }

    /// The holder makes the pieces of a set.
    pub(super) fn encode(&mut self, node: usize, number: u64, set: u64, holders: &[u32]) -> Result<(), Violation> {
        let from = self.nodes.of[node].life;
        let members = self
            .nodes
            .sets
            .of
            .get(&set)
            .map_or(Vec::new(), |set| set.members.clone());
        let lacks = |rank: &Rank| !self.nodes.has_file(node, *rank, number);
        if members.iter().any(lacks) {
            let (node, reason) = (node as u32, "a file is damaged".to_string());
            return self.tell_from(from.node, not_encoded(number, set, node, reason));
        }
        for (index, holder) in (0..).zip(holders) {
            let to = self.nodes.of[*holder as usize].life;
            let after = self.soon(self.pace.latency * 6);
            self.schedule(after, Event::Node(Happening::Piece(set, index, from, to)));
            if self.is(Mutation::CountBeforePieces) {
                let node = *holder;
                self.tell_from(from.node, Fact::Encoded { number, set, node })?;
            }
        }
        Ok(())
    }

    /// A piece is on its node, or is refused.
    pub(super) fn piece_comes(&mut self, set: u64, index: u32, from: Life, to: Life) -> Result<(), Violation> {
        let mut both = [from, to].into_iter();
        if !both.all(|life| self.nodes.is_alive(life.node, life.serial)) {
            return Ok(());
        }
        let number = self.nodes.sets.of.get(&set).map_or(0, |set| set.number);
        let node = to.node as u32;
        if self.random.one_in(40) {
            let reason = "it has no room".to_string();
            return self.tell_from(from.node, not_encoded(number, set, node, reason));
        }
        self.nodes.sets.pieces.insert((set, index), (to.node, to.serial));
        if self.is(Mutation::CountBeforePieces) {
            return Ok(());
        }
        self.tell_from(to.node, Fact::Encoded { number, set, node })?;
        self.spite(to.node)
    }

    /// The dispatcher hears of a piece.
    pub(super) fn hears_of_pieces(&mut self, fact: &Fact) -> Result<(), Violation> {
        match *fact {
            Fact::Encoded { set, node, .. } => {
                let alive = self.alive(node);
                let sets = &mut self.nodes.sets;
                let Some(of) = sets.of.get_mut(&set).filter(|of| of.collected.is_none()) else {
                    return Ok(());
                };
                let Some(index) = of.holders.iter().position(|holder| *holder == node as usize) else {
                    return violation(COUNTS, format!("node {node} is no holder of set {set}"));
                };
                if sets.pieces.get(&(set, index as u32)) != Some(&alive) {
                    return violation(COUNTS, format!("node {node} does not have its piece of set {set}"));
                }
                of.known.insert(index as u32, alive);
                of.made |= of.known.len() == of.holders.len();
            }
            Fact::NotEncoded {
                set,
                node,
                number,
                ref reason,
            } => {
                self.note(|| format!("node {node} has no piece of set {set}: {reason}"));
                let Some(of) = self.nodes.sets.of.get_mut(&set) else {
                    return Ok(());
                };
                of.known.retain(|_, (at, _)| *at != node as usize);
                let refused = of.members.iter().map(|rank| (*rank, number, node as usize));
                self.nodes.refused.extend(refused);
            }
            Fact::Fetched { rank, .. } => _ = self.nodes.sets.coming.remove(&rank),
            Fact::NotFetched { rank, .. } => {
                if let Some((set, sources)) = self.nodes.sets.coming.remove(&rank) {
                    let counts = |(_, _, (node, serial)): &Source| self.nodes.counts(*node, *serial);
                    let are_there = sources.iter().all(counts);
                    let of = self.nodes.sets.of.get_mut(&set).filter(|_| are_there);
                    of.into_iter().for_each(|of| of.failed.extend(&sources));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The node makes an image anew, some time later.
    pub(super) fn rebuild_file(&mut self, command: &Command) {
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
        let rebuild = Rebuild {
            rank,
            number,
            set,
            to: self.nodes.of[to as usize].life,
            members: members.iter().map(|(rank, node)| (*rank, self.alive(*node))).collect(),
            pieces: pieces.iter().map(|(index, node)| (*index, self.alive(*node))).collect(),
        };
        self.note(|| format!("node {to} makes image {number} of {rank} anew"));
        let after = self.soon(self.pace.latency * 10);
        self.schedule(after, Event::Node(Happening::Rebuilt(rebuild)));
    }

    /// It reads what others have; some of that may be damaged.
    pub(super) fn rebuilt(&mut self, rebuild: Rebuild) -> Result<(), Violation> {
        let Rebuild {
            rank,
            number,
            set,
            to,
            members,
            pieces,
        } = rebuild;
        if !self.nodes.is_alive(to.node, to.serial) {
            return Ok(());
        }
        let may_be_damaged = self.may_be_damaged(number);
        let mut found = 0;
        for (member, (node, serial)) in members {
            if self.random.one_in(16) && may_be_damaged {
                self.nodes.damaged.insert((member, number, node));
            }
            let is_there = self.nodes.is_alive(node, serial) && self.nodes.has_file(node, member, number);
            found += usize::from(is_there);
        }
        let mut is_wrong = false;
        for (index, (node, serial)) in pieces {
            if self.random.one_in(12) && may_be_damaged {
                self.nodes.sets.damaged.insert((set, index));
            }
            let is_damaged = self.nodes.sets.damaged.contains(&(set, index));
            let is_there =
                self.nodes.is_alive(node, serial) && self.nodes.sets.pieces.get(&(set, index)) == Some(&(node, serial));
            if is_damaged && is_there && !self.is(Mutation::UseDamagedPiece) {
                let (node, reason) = (node as u32, "a piece is damaged".to_string());
                self.tell_from(to.node, not_encoded(number, set, node, reason))?;
                continue;
            }
            is_wrong |= is_damaged && is_there;
            found += usize::from(is_there);
        }
        let needed = self.nodes.sets.of.get(&set).map_or(0, |set| set.members.len());
        if found < needed {
            self.note(|| format!("image {number} of {rank} cannot be made anew"));
            let reason = "too much of its set is damaged or lost".to_string();
            return self.tell_from(to.node, Fact::NotFetched { rank, number, reason });
        }
        if is_wrong {
            self.spoil(rank, number);
        }
        self.nodes.damaged.remove(&(rank, number, to.node));
        let stored = self.nodes.stored.entry((rank, number)).or_default();
        stored.insert((to.node, to.serial));
        self.nodes.come_back.insert((rank, number));
        let place = Place::Node(to.node as u32);
        self.tell_from(to.node, Fact::Fetched { rank, number, place })?;
        self.spite(to.node)
    }

    /// In a variant, the image is not what it was.
    fn spoil(&mut self, rank: Rank, number: u64) {
        let files = self.agent.files.iter();
        let other = files.filter(|((of, other), _)| *of == rank && *other != number);
        let other = other.map(|(_, memory)| memory.clone()).next();
        if let Some(other) = other {
            self.agent.files.insert((rank, number), other);
        }
    }

    /// The node forgets a copy.
    pub(super) fn drop_copy(&mut self, node: usize, rank: Rank, number: u64) {
        let life = self.nodes.of[node].life;
        if let Some(stored) = self.nodes.stored.get_mut(&(rank, number)) {
            stored.remove(&(life.node, life.serial));
        }
    }

    /// The node forgets its piece, unless the job could be resumed from it.
    pub(super) fn drop_pieces(&mut self, node: usize, number: u64, set: u64) {
        if !self.agent.is_recorded(number) && !self.is(Mutation::KeepPieces) {
            let pieces = &mut self.nodes.sets.pieces;
            pieces.retain(|(of, _), (at, _)| *of != set || *at != node);
        }
    }

    /// The record has changed: pieces that were kept for it go.
    pub(super) fn drop_unrecorded(&mut self) {
        if self.is(Mutation::KeepPieces) {
            return;
        }
        let (agent, sets) = (&self.agent, &mut self.nodes.sets);
        let of = &sets.of;
        let goes = |set: &Set| set.collected.is_some() && !agent.is_recorded(set.number);
        sets.pieces.retain(|(set, _), _| !of.get(set).is_some_and(goes));
    }

    /// Images in sets count now: they are on their own nodes, and all pieces were there.
    pub(super) fn mind_sets(&mut self) {
        let sets = self
            .nodes
            .sets
            .of
            .values()
            .filter(|set| set.made && set.collected.is_none());
        let images = sets.flat_map(|set| set.members.iter().map(|rank| (*rank, set.number)));
        let counts = |image: &Image| !self.nodes.given_up.contains(image) && !self.having(*image).is_empty();
        let counting: Vec<Image> = images.filter(counts).collect();
        self.nodes.told.extend(counting);
    }

    /// The image is in no set, as its rank leaves its node, or there is no other node; the dispatcher has not begun to
    /// form one.
    pub(super) fn has_replicas(&self, image: Image) -> bool {
        let coordinator = &self.agent.coordinator;
        let own = coordinator.node(image.0);
        let up = self.nodes.up().into_iter();
        let staying = up.filter(|life| !coordinator.is_leaving(life.node as u32)).count();
        let may_have = coordinator.is_leaving(own) || staying < 2;
        may_have && self.sets_of(image).next().is_none() && coordinator.has_file(image.0, image.1)
    }

    /// How many pieces each set has at least, over the nodes that stay.
    fn least_pieces(&self, rule: Parity) -> usize {
        let coordinator = &self.agent.coordinator;
        let up = self.nodes.up().into_iter();
        let staying = up.filter(|life| !coordinator.is_leaving(life.node as u32)).count();
        let size = (rule.data + rule.parity) as usize;
        let smallest = match (staying / size, staying % size) {
            (0, _) => staying,
            (_, 0 | 1) => size,
            (_, rest) => rest,
        };
        smallest.saturating_sub(1).min(rule.parity as usize)
    }

    /// While all ranks run, each image that counts is in a whole set, or sets are being made.
    pub(super) fn check_parity(&self, rule: Parity) -> Result<(), Violation> {
        let sets = &self.nodes.sets.of;
        let is_at_work = |set: &Set| {
            let mut nodes = set.holders.iter();
            !set.made && set.collected.is_none() && nodes.all(|node| self.nodes.joined[*node].is_some())
        };
        let goes = |(from, to): &(Life, Life)| {
            let mut both = [from, to].into_iter();
            both.all(|life| self.nodes.counts(life.node, life.serial))
        };
        if sets.values().any(is_at_work) || self.nodes.going.values().any(goes) {
            return Ok(());
        }
        let least = self.least_pieces(rule);
        let is_whole = |(_, set): (u64, &Set)| self.is_sound(set) && set.holders.len() >= least;
        let told = self
            .nodes
            .told
            .iter()
            .filter(|image| !self.nodes.given_up.contains(*image));
        let mut lacking = told.filter(|image| self.can_be_protected(**image) && !self.sets_of(**image).any(is_whole));
        match lacking.next() {
            Some(image) if least > 0 => {
                let sets: Vec<_> = self.sets_of(*image).collect();
                let having = self.having(*image);
                violation(
                    REMADE,
                    format!("of image {image:?}, which {having:?} have; {least} pieces; {sets:?}"),
                )
            }
            _ => Ok(()),
        }
    }

    /// No node has refused the image or a piece, and none of its set is lost.
    fn can_be_protected(&self, image: Image) -> bool {
        let coordinator = &self.agent.coordinator;
        let having = self.having(image);
        let own = coordinator.node(image.0) as usize;
        let at = having.get(&own).or(having.first());
        let is_leaving = |node: usize| coordinator.is_leaving(node as u32);
        let is_refused = |rank: Rank| {
            let of_image = (rank, image.1, 0)..=(rank, image.1, usize::MAX);
            self.nodes.refused.range(of_image).next().is_some()
        };
        let has_all = |(_, set): (u64, &Set)| set.members.iter().all(|rank| !self.having((*rank, image.1)).is_empty());
        let mut ranks = 0..self.size as Rank;
        at.is_some_and(|at| !is_leaving(*at) && !is_leaving(own))
            && !ranks.any(is_refused)
            && (self.sets_of(image).next().is_none() || self.sets_of(image).any(has_all))
    }

    /// Pieces that were to be forgotten long ago.
    pub(super) fn check_forgotten(&self) -> Result<(), Violation> {
        let patience = 4 * self.nodes.lease() + 40 * self.pace.latency;
        let is_over = |set: &Set| {
            let is_old = set.collected.is_some_and(|at| at + patience < self.now);
            is_old && !self.agent.is_recorded(set.number)
        };
        for ((set, _), (node, serial)) in &self.nodes.sets.pieces {
            let is_over = self.nodes.sets.of.get(set).is_some_and(is_over);
            let is_well = self.nodes.of[*node].is_well(self.now, 0) && self.nodes.counts(*node, *serial);
            if is_over && is_well && self.nodes.is_alive(*node, *serial) {
                return violation(NOT_FOR_EVER, format!("node {node} has a piece of set {set}"));
            }
        }
        Ok(())
    }

    /// The wave is whole on these disks: `files` by image, and pieces on nodes for which `stays` holds.
    pub(super) fn is_whole_with_pieces(
        &self,
        files: &BTreeMap<Image, BTreeSet<usize>>,
        wave: u64,
        stays: impl Fn(usize) -> bool,
    ) -> bool {
        let has = |rank: Rank| files.get(&(rank, wave)).is_some_and(|nodes| !nodes.is_empty());
        let sets = self
            .nodes
            .sets
            .of
            .iter()
            .filter(|(_, set)| set.made && set.number == wave);
        let can = |rank: Rank| {
            let mut sets = sets.clone().filter(|(_, set)| set.members.contains(&rank));
            sets.any(|(id, set)| {
                let files = set.members.iter().filter(|rank| has(**rank)).count();
                let pieces = self.pieces_on_disks(*id).into_iter().filter(|(_, node)| stays(*node));
                files + pieces.count() >= set.members.len()
            })
        };
        let has_end = |rank: Rank| self.agent.ends.contains(&(rank, wave));
        (0..self.size as Rank).all(|rank| has(rank) || can(rank) || has_end(rank))
    }

    /// Whole pieces of the set.
    fn pieces_on_disks(&self, set: u64) -> Vec<(u32, usize)> {
        let sets = &self.nodes.sets;
        let pieces = sets.pieces.range((set, 0)..=(set, u32::MAX));
        let is_there = |((set, index), (node, serial)): &(&(u64, u32), &Alive)| {
            !sets.damaged.contains(&(*set, *index)) && self.nodes.is_alive(*node, *serial)
        };
        pieces
            .filter(is_there)
            .map(|((_, index), (node, _))| (*index, *node))
            .collect()
    }

    /// A new launcher finds these sets, with their pieces on nodes for which `stays` holds; all others are gone.
    pub(super) fn sets_again(&mut self, waves: &[u64], stays: impl Fn(usize) -> bool) -> Vec<FormerSet> {
        let made = self
            .nodes
            .sets
            .of
            .iter()
            .filter(|(_, set)| set.made && waves.contains(&set.number));
        let mut formers = Vec::new();
        for (id, set) in made {
            let pieces = self.pieces_on_disks(*id).into_iter().filter(|(_, node)| stays(*node));
            formers.push(FormerSet {
                number: set.number,
                set: *id,
                members: set.members.clone(),
                pieces: pieces.map(|(index, node)| (index, node as u32)).collect(),
            });
        }
        formers.retain(|former| !former.pieces.is_empty());
        let sets = &mut self.nodes.sets;
        *sets = Sets {
            rule: sets.rule,
            ..Sets::default()
        };
        formers
    }

    /// Their nodes have new lives.
    pub(super) fn pieces_again(&mut self, formers: &[FormerSet]) {
        for former in formers {
            let alive = |(index, node): &(u32, u32)| (*index, self.alive(*node));
            let known: BTreeMap<u32, Alive> = former.pieces.iter().map(alive).collect();
            let sets = &mut self.nodes.sets;
            let pieces = known.iter().map(|(index, alive)| ((former.set, *index), *alive));
            sets.pieces.extend(pieces);
            let set = Set {
                number: former.number,
                members: former.members.clone(),
                holders: former.pieces.iter().map(|(_, node)| *node as usize).collect(),
                known,
                made: true,
                failed: BTreeSet::new(),
                collected: None,
            };
            sets.of.insert(former.set, set);
        }
    }
}

fn not_encoded(number: u64, set: u64, node: u32, reason: String) -> Fact {
    Fact::NotEncoded {
        number,
        set,
        node,
        reason,
    }
}

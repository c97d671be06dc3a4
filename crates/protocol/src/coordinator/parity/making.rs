//! How sets come to be, and go.

use std::collections::{BTreeMap, BTreeSet};

use super::super::state::{Making, Place, Process, Set};
use super::super::{Command, Coordinator};
use crate::placement::{self, Parity, Shelf};
use crate::{Node, Rank};

/// How the image of a rank is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// By a set that has lost something.
    Broken,
    /// It will be.
    Forms,
    /// By this number of pieces.
    Sound(usize),
}

impl Coordinator {
    /// Something may have changed: forms sets, makes the next ones, and forgets those that are of no use.
    pub(in super::super) fn mind_sets(&mut self) {
        let Some(parity) = self.parity() else {
            return;
        };
        let made = self.sets.of.iter().filter(|(_, set)| self.is_sound(set));
        let sound: BTreeSet<u64> = made.map(|(id, _)| *id).collect();
        loop {
            self.drop_hopeless();
            if !self.form_sets(parity, &sound) {
                break;
            }
        }
        if self.all_run() && std::mem::take(&mut self.sets.look_again) {
            self.improve_sets(parity, &sound);
        }
        self.gather();
        self.drop_replaced(&sound);
        if self.all_run() {
            self.drop_copies();
        }
    }

    /// Sets that are not made, and cannot be any more.
    fn drop_hopeless(&mut self) {
        let is_no_holder = |set: &Set, node: Node| {
            let mut members = set.members.iter();
            let is_refused = members.any(|rank| self.has_refused(*rank, set.number, node));
            !self.nodes.up.contains_key(&node) || is_refused || set.step == Making::Waits && self.is_leaving(node)
        };
        // A rank may have come to a holder meanwhile, or its own node may have lost the file.
        let is_at = |rank: Rank, number: u64, node: Node| {
            self.ranks[rank as usize].node == node || self.location(rank, number) == Some(node)
        };
        let is_beside = |set: &Set, node: Node| {
            let mut members = set.members.iter();
            set.step != Making::Encoding && members.any(|rank| is_at(*rank, set.number, node))
        };
        // What has lost its node may be where another one is.
        let are_together = |set: &Set| {
            let mut nodes = BTreeSet::new();
            let mut members = set.members.iter();
            set.step != Making::Encoding && !members.all(|rank| nodes.insert(self.image_at(*rank, set.number)))
        };
        let is_hopeless = |set: &Set| {
            let mut members = set.members.iter();
            let are_there = members.all(|rank| self.has_or_writes(*rank, set.number));
            let mut holders = set.holders.iter();
            !are_there || are_together(set) || holders.any(|node| is_no_holder(set, *node) || is_beside(set, *node))
        };
        let unmade = self.sets.of.iter().filter(|(_, set)| set.step != Making::Made);
        let gone: Vec<u64> = unmade.filter(|(_, set)| is_hopeless(set)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.collect_set(id));
    }

    fn has_refused(&self, rank: Rank, number: u64, node: Node) -> bool {
        self.ranks[rank as usize].images.refused.contains(&(number, node))
    }

    /// How the image of this number of each rank is protected, if it is in a set.
    fn standings(&self, number: u64, sound: &BTreeSet<u64>) -> Vec<Option<Standing>> {
        let mut standings = vec![None; self.ranks.len()];
        for (id, set) in self.sets.of.iter().filter(|(_, set)| set.number == number) {
            let standing = match set.step {
                Making::Made if sound.contains(id) => Standing::Sound(set.holders.len()),
                Making::Made => Standing::Broken,
                _ => Standing::Forms,
            };
            for rank in &set.members {
                let best = &mut standings[*rank as usize];
                *best = (*best).max(Some(standing));
            }
        }
        standings
    }

    /// Broken sets none of whose files is lost: their ranks can form others.
    fn can_be_mended(&self, rank: Rank, number: u64) -> bool {
        let mut sets = self.sets.with(number, rank);
        sets.any(|(_, set)| self.files_of(set).len() == set.members.len())
    }

    /// Images that are in no set, or only in broken ones, form sets. False: nothing has changed.
    fn form_sets(&mut self, parity: Parity, sound: &BTreeSet<u64>) -> bool {
        let all_run = self.all_run();
        let mut has_changed = false;
        let members = self.units[0].members.clone();
        for number in self.numbers() {
            let standings = self.standings(number, sound);
            let lacks = |rank: &Rank| {
                let is_counted = self.ranks[*rank as usize].images.has_file(number);
                match standings[*rank as usize] {
                    _ if !self.has_or_writes(*rank, number) || is_counted && !all_run => false,
                    None => true,
                    Some(Standing::Broken) => is_counted && self.can_be_mended(*rank, number),
                    Some(_) => false,
                }
            };
            let lacking: Vec<Rank> = members.iter().copied().filter(lacks).collect();
            let ranks: Vec<Rank> = lacking
                .into_iter()
                .filter(|rank| self.is_at_home(*rank, number))
                .collect();
            if ranks.is_empty() {
                continue;
            }
            let (sets, left) = self.sets_for(parity, number, &ranks);
            has_changed |= !sets.is_empty();
            sets.into_iter().for_each(|set| self.add_set(number, set));
            for rank in left {
                has_changed |= self.goes_without(rank, number);
            }
        }
        has_changed
    }

    /// The file is on its rank's node, if it is anywhere. Otherwise it goes there first.
    fn is_at_home(&mut self, rank: Rank, number: u64) -> bool {
        let own = self.ranks[rank as usize].node;
        let is_away = self.location(rank, number).is_some_and(|at| at != own);
        if is_away && !self.has_refused(rank, number, own) && !self.is_leaving(own) {
            self.is_gathered(rank, number, own);
        }
        !is_away
    }

    /// The node that has the image, or will have it.
    fn image_at(&self, rank: Rank, number: u64) -> Node {
        let own = self.ranks[rank as usize].node;
        self.location(rank, number).unwrap_or(own)
    }

    /// The numbers of images that there are, or will be.
    fn numbers(&self) -> BTreeSet<u64> {
        let images = self.ranks.iter().map(|member| &member.images);
        let numbers = images.flat_map(|images| images.files.iter().chain(&images.writing));
        let next = self.units[0].writing.as_ref().map(|writing| writing.number());
        numbers.copied().chain(next).collect()
    }

    /// Sets for these images over the present nodes, and those for which there are none.
    fn sets_for(&self, parity: Parity, number: u64, ranks: &[Rank]) -> (Vec<placement::Set>, Vec<Rank>) {
        let staying = self.nodes.up.keys().filter(|node| !self.is_leaving(**node));
        let shelf = |node: &Node| Shelf {
            node: *node,
            rack: self.rack(*node),
            has: false,
        };
        let shelves: Vec<Shelf> = staying.map(shelf).collect();
        let of_number = self.sets.of.values().filter(|set| set.number == number);
        let mut held = BTreeMap::new();
        for node in of_number.flat_map(|set| &set.holders) {
            *held.entry(*node).or_default() += 1;
        }
        let at = ranks.iter().map(|rank| (*rank, self.image_at(*rank, number)));
        let at: Vec<(Rank, Node)> = at.collect();
        let draw = |number: u64| placement::draw(self.plan.seed, 0, number);
        let (mut all, mut left) = (Vec::new(), Vec::new());
        let mut away: BTreeSet<Rank> = ranks.iter().copied().collect();
        for group in parity.groups(&shelves, draw(0)) {
            let here = at.iter().filter(|(_, node)| group.contains(node));
            let here: Vec<(Rank, Node)> = here.copied().collect();
            here.iter().for_each(|(rank, _)| _ = away.remove(rank));
            let takes = |node: Node| !here.iter().any(|(rank, _)| self.has_refused(*rank, number, node));
            let lost = parity.of(group.len() as u32);
            let (sets, without) = placement::sets(&group, lost, &here, takes, &mut held, draw(number));
            all.extend(sets);
            left.extend(without);
        }
        left.extend(away);
        (all, left)
    }

    fn add_set(&mut self, number: u64, set: placement::Set) {
        self.sets.last += 1;
        let placement::Set { members, holders } = set;
        let set = Set {
            number,
            members,
            holders,
            pieces: BTreeMap::new(),
            step: Making::Waits,
            failed: BTreeSet::new(),
        };
        self.sets.insert(self.sets.last, set);
    }

    /// There is no set for this image: it has replicas if its node is to be left, or nothing for want of nodes. False:
    /// nothing has changed.
    fn goes_without(&mut self, rank: Rank, number: u64) -> bool {
        if !self.is_in_parity(rank, number) {
            self.spread_if_written(rank, number);
            return false;
        }
        let images = &self.ranks[rank as usize].images;
        if images.writing != Some(number) || self.location(rank, number).is_none() {
            return false;
        }
        match images.refused.iter().any(|(of, _)| *of == number) {
            true => {
                let reason = self.sets.reason.clone();
                let reason = reason.unwrap_or_else(|| "no node that is left takes it".to_string());
                self.not_written(rank, number, reason);
            }
            false => self.complete_file(rank, number),
        }
        true
    }

    /// Nodes have come or gone: sets with fewer pieces than wanted are made anew if they get more.
    fn improve_sets(&mut self, parity: Parity, sound: &BTreeSet<u64>) {
        for number in self.numbers() {
            let mut of_number = self.sets.of.values().filter(|set| set.number == number);
            if of_number.any(|set| set.step != Making::Made) {
                self.sets.look_again = true;
                continue;
            }
            let standings = self.standings(number, sound);
            // A broken set is made anew, or is whole again when an image is back on its node: perhaps with fewer pieces.
            self.sets.look_again |= standings.contains(&Some(Standing::Broken));
            let is_weak = |standing: &Option<Standing>| matches!(standing, Some(Standing::Sound(pieces)) if *pieces < parity.parity as usize);
            let weak = (0..).zip(&standings).filter(|(_, standing)| is_weak(standing));
            let mut weak: Vec<Rank> = weak.map(|(rank, _)| rank).collect();
            let all = weak.len();
            weak.retain(|rank| self.is_at_home(*rank, number));
            self.sets.look_again |= weak.len() < all;
            let (sets, _) = self.sets_for(parity, number, &weak);
            let is_better = |set: &placement::Set| {
                let mut members = set.members.iter();
                members.all(|rank| standings[*rank as usize] < Some(Standing::Sound(set.holders.len())))
            };
            let better: Vec<placement::Set> = sets.into_iter().filter(is_better).collect();
            better.into_iter().for_each(|set| self.add_set(number, set));
        }
    }

    /// Sets whose files are all written go to their first holders, one set at a time for each. When these have them, they
    /// make the pieces.
    fn gather(&mut self) {
        let at_work = |set: &&Set| matches!(set.step, Making::Gathers | Making::Encoding);
        let busy = self.sets.of.values().filter(at_work);
        let mut busy: BTreeSet<Node> = busy.filter_map(|set| set.holders.first().copied()).collect();
        let unmade = self.sets.of.iter().filter(|(_, set)| set.step < Making::Encoding);
        for id in unmade.map(|(id, _)| *id).collect::<Vec<u64>>() {
            let Set {
                number,
                step,
                ref members,
                ref holders,
                ..
            } = self.sets.of[&id];
            if step == Making::Waits {
                let mut members = members.iter();
                let are_written = members.all(|rank| self.location(*rank, number).is_some());
                if !are_written || !busy.insert(holders[0]) {
                    continue;
                }
                self.is_at_step(id, Making::Gathers);
            }
            self.gather_set(id);
        }
    }

    fn gather_set(&mut self, set: u64) {
        let of = &self.sets.of[&set];
        let (number, members, holders) = (of.number, of.members.clone(), of.holders.clone());
        let mut waits = false;
        for rank in &members {
            waits |= !self.is_gathered(*rank, number, holders[0]);
        }
        if !waits {
            self.is_at_step(set, Making::Encoding);
            self.tell(Command::Encode {
                number,
                set,
                members,
                holders,
            });
        }
    }

    fn is_at_step(&mut self, set: u64, step: Making) {
        if let Some(set) = self.sets.of.get_mut(&set) {
            set.step = step;
        }
    }

    /// The holder has the file; otherwise it is on its way.
    fn is_gathered(&mut self, rank: Rank, number: u64, to: Node) -> bool {
        let from = self.location(rank, number);
        let images = self.images(rank);
        let places = images.places.get(&number);
        if places.is_some_and(|places| places.contains(&Place::Node(to))) {
            return true;
        }
        if let Some(from) = from.filter(|_| !images.going.contains_key(&number)) {
            images.going.insert(number, (from, to));
            self.tell(Command::Replicate { rank, number, from, to });
        }
        false
    }

    /// Sets all of whose members are in newer ones.
    fn drop_replaced(&mut self, sound: &BTreeSet<u64>) {
        let is_replaced = |(id, set): &(&u64, &Set)| {
            let mut members = set.members.iter();
            let is_newer = |(other, _): (u64, &Set)| other > **id && sound.contains(&other);
            set.step == Making::Made && members.all(|rank| self.sets.with(set.number, *rank).any(is_newer))
        };
        let gone: Vec<u64> = self.sets.of.iter().filter(is_replaced).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.collect_set(id));
    }

    /// Files in sets are on the ranks' own nodes only, and on the holders that make pieces of them.
    fn drop_copies(&mut self) {
        let mut copies = Vec::new();
        for (rank, member) in (0..).zip(&self.ranks) {
            for (number, places) in &member.images.places {
                let own = Place::Node(member.node);
                let is_there = member.images.has_file(*number) || member.images.writing == Some(*number);
                if !is_there || places.len() < 2 || !places.contains(&own) || !self.is_in_parity(rank, *number) {
                    continue;
                }
                let others = places.iter().filter(|place| **place != own);
                let nodes = others.filter_map(|place| match place {
                    Place::Node(node) => Some(*node),
                    Place::Everywhere => None,
                });
                let dropped = nodes.filter(|node| !self.needs_copy(rank, *number, *node));
                copies.extend(dropped.map(|node| (rank, *number, node)));
            }
        }
        for (rank, number, node) in copies {
            let places = self.images(rank).places.get_mut(&number);
            places
                .into_iter()
                .for_each(|places| _ = places.remove(&Place::Node(node)));
            self.tell(Command::DropCopy { rank, number, node });
        }
    }

    /// The node makes pieces of the file, or a life reads it there, or it is the replica of an image without pieces.
    fn needs_copy(&self, rank: Rank, number: u64, node: Node) -> bool {
        let member = &self.ranks[rank as usize];
        let is_read = member.images.reads == Some((number, Place::Node(node))) && member.process == Process::Asked;
        let makes = |set: &Set| set.step != Making::Made && set.holders.first() == Some(&node);
        let is_protected = self.sets.with(number, rank).any(|(_, set)| self.is_sound(set));
        let is_replica = member.images.has_file(number) && !is_protected;
        is_read || is_replica || self.sets.with(number, rank).any(|(_, set)| makes(set))
    }
}

//! Groups of nodes that protect one another's images by parity, and the sets that these images form.

use std::collections::{BTreeMap, VecDeque};

use super::{Shelf, mixed};
use crate::{Node, Rank};

/// Groups of `data` + `parity` nodes, each of which can lose any `parity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Parity {
    pub data: u32,
    pub parity: u32,
}

impl Parity {
    /// How many of its nodes a group of this size can lose: one always stays.
    pub fn of(self, size: u32) -> u32 {
        self.parity.min(size.saturating_sub(1))
    }

    /// The sizes of the groups of so many nodes, and how many there are of each. The last group may be smaller; a single
    /// node joins another group. [`survival`](crate::survival) counts on the same.
    pub fn sizes(self, nodes: u32) -> Vec<(u32, u32)> {
        let size = self.data.saturating_add(self.parity).clamp(2, nodes.max(2));
        let (full, rest) = (nodes / size, nodes % size);
        let sizes = match (full, rest) {
            (0, _) => vec![(nodes, 1)],
            (_, 1) => vec![(size, full - 1), (size + 1, 1)],
            _ => vec![(size, full), (rest, 1)],
        };
        sizes.into_iter().filter(|(size, count)| size * count > 0).collect()
    }

    /// Deals the nodes into groups. Racks are spread evenly over these, so no group has more than `parity` nodes of one
    /// while there are enough racks. Otherwise `draw` decides.
    pub fn groups(self, nodes: &[Shelf<'_>], draw: u64) -> Vec<Vec<Node>> {
        let sizes = self.sizes(nodes.len() as u32).into_iter();
        let rooms = sizes.flat_map(|(size, count)| std::iter::repeat_n(size as usize, count as usize));
        let mut groups: Vec<(usize, Vec<&Shelf<'_>>)> = rooms.map(|room| (room, Vec::new())).collect();
        let drawn = |node: Node| mixed(draw ^ mixed(node.into()));
        let of_rack = |shelf: &Shelf| match shelf.rack {
            Some(rack) => nodes.iter().filter(|other| other.rack == Some(rack)).count(),
            None => 1,
        };
        let mut order: Vec<&Shelf> = nodes.iter().collect();
        // Large racks first: they need most groups.
        order.sort_by_cached_key(|shelf| (std::cmp::Reverse(of_rack(shelf)), shelf.rack, drawn(shelf.node)));
        for shelf in order {
            let beside = |group: &[&Shelf]| {
                let same = group
                    .iter()
                    .filter(|other| other.rack.is_some() && other.rack == shelf.rack);
                same.count()
            };
            let open = groups.iter_mut().filter(|(room, group)| group.len() < *room);
            let best = open.min_by_key(|(room, group)| (beside(group), group.len() * 1000 / *room));
            best.into_iter().for_each(|(_, group)| group.push(shelf));
        }
        let groups = groups.into_iter().map(|(_, group)| group);
        groups
            .map(|group| group.into_iter().map(|shelf| shelf.node).collect())
            .collect()
    }
}

/// Images that are made anew from one another and from pieces of parity, if not more of them are lost than there are
/// pieces. All are on different nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub members: Vec<Rank>,
    /// The nodes of the pieces.
    pub holders: Vec<Node>,
}

/// The sets of a group of nodes that can lose `parity` of them. `ranks`: those with images, and the nodes that have
/// these. `may_hold`: the node takes pieces. `held`: how many it has. Returns the sets, and the ranks for which there
/// are no holders.
///
/// The nodes with fewest ranks that are in no set yet hold the pieces of the next one; each other one gives a rank. So
/// nodes without ranks hold pieces first, and there are few sets.
pub fn sets(
    group: &[Node],
    parity: u32,
    ranks: &[(Rank, Node)],
    may_hold: impl Fn(Node) -> bool,
    held: &mut BTreeMap<Node, u32>,
    draw: u64,
) -> (Vec<Set>, Vec<Rank>) {
    let mut left: BTreeMap<Node, VecDeque<Rank>> = group.iter().map(|node| (*node, VecDeque::new())).collect();
    for (rank, node) in ranks {
        left.entry(*node).or_default().push_back(*rank);
    }
    let mut sets = Vec::new();
    loop {
        let key = |node: &Node| {
            let ranks = left.get(node).map_or(0, VecDeque::len);
            let pieces = held.get(node).copied().unwrap_or(0);
            (ranks, pieces, mixed(draw ^ mixed((*node).into())))
        };
        let mut holders: Vec<Node> = group.iter().copied().filter(|node| may_hold(*node)).collect();
        holders.sort_by_cached_key(key);
        holders.truncate(parity as usize);
        let gives = |holders: &[Node]| {
            left.iter()
                .any(|(node, ranks)| !ranks.is_empty() && !holders.contains(node))
        };
        // Where few take pieces, some images have fewer.
        while !holders.is_empty() && !gives(&holders) {
            holders.pop();
        }
        if holders.is_empty() {
            break;
        }
        let givers = left.iter_mut().filter(|(node, _)| !holders.contains(node));
        let members = givers.filter_map(|(_, ranks)| ranks.pop_front()).collect();
        holders.iter().for_each(|node| *held.entry(*node).or_default() += 1);
        sets.push(Set { members, holders });
    }
    (sets, left.into_values().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelves(racks: &[&'static str]) -> Vec<Shelf<'static>> {
        let named = |rack: &&'static str| Some(*rack).filter(|rack| !rack.is_empty());
        let shelf = |(node, rack): (Node, &&'static str)| Shelf {
            node,
            rack: named(rack),
            has: false,
        };
        (0..).zip(racks).map(shelf).collect()
    }

    fn sorted_sizes(groups: &[Vec<Node>]) -> Vec<usize> {
        let mut sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn all_nodes_are_in_groups_and_none_is_alone() {
        let parity = Parity { data: 3, parity: 1 };
        let sizes: [&[usize]; 12] = [
            &[1],
            &[2],
            &[3],
            &[4],
            &[5],
            &[2, 4],
            &[3, 4],
            &[4, 4],
            &[4, 5],
            &[2, 4, 4],
            &[3, 4, 4],
            &[4, 4, 4],
        ];
        for (count, sizes) in (1..).zip(sizes) {
            for draw in 0..20 {
                let groups = parity.groups(&shelves(&vec![""; count]), draw);
                assert_eq!(sorted_sizes(&groups), sizes, "{count} nodes");
                let mut all: Vec<Node> = groups.concat();
                all.sort_unstable();
                assert_eq!(all, (0..count as Node).collect::<Vec<_>>());
            }
        }
        assert!(parity.groups(&[], 1).is_empty());
    }

    #[test]
    fn nodes_are_in_one_group_by_chance() {
        let parity = Parity { data: 1, parity: 1 };
        let nodes = shelves(&[""; 6]);
        let mut together = [0; 6];
        for draw in 0..3000 {
            let groups = parity.groups(&nodes, draw);
            let first = groups.iter().find(|group| group.contains(&0)).unwrap();
            first.iter().for_each(|node| together[*node as usize] += 1);
        }
        assert!(
            together[1..].iter().all(|times| (500..700).contains(times)),
            "{together:?}"
        );
    }

    #[test]
    fn no_group_has_more_nodes_of_a_rack_than_it_can_lose() {
        let most = |groups: &[Vec<Node>], racks: &[&str]| {
            let of = |group: &Vec<Node>, rack: &str| group.iter().filter(|node| racks[**node as usize] == rack).count();
            let each = groups.iter().flat_map(|group| racks.iter().map(|rack| of(group, rack)));
            each.max().unwrap()
        };
        let cases: [(&[&str], Parity, usize); 5] = [
            (&["a", "a", "b", "b", "c", "c"], Parity { data: 2, parity: 1 }, 1),
            (
                &["a", "a", "a", "b", "b", "b", "c", "c", "d", "d", "d", "e"],
                Parity { data: 3, parity: 1 },
                1,
            ),
            (
                &["a", "b", "a", "b", "a", "b", "a", "b"],
                Parity { data: 2, parity: 2 },
                2,
            ),
            (
                &["a", "a", "b", "b", "c", "c", "d", "d", "d"],
                Parity { data: 3, parity: 1 },
                2,
            ),
            // It cannot be avoided.
            (&["a", "a", "a", "b"], Parity { data: 3, parity: 1 }, 3),
        ];
        for (racks, parity, allowed) in cases {
            for draw in 0..100 {
                let groups = parity.groups(&shelves(racks), draw);
                assert_eq!(most(&groups, racks), allowed, "{racks:?} {groups:?}");
            }
        }
    }

    /// On each of so many nodes so many ranks.
    fn ranks_on(counts: &[u32]) -> Vec<(Rank, Node)> {
        let nodes = (0..)
            .zip(counts)
            .flat_map(|(node, count)| std::iter::repeat_n(node, *count as usize));
        (0..).zip(nodes).collect()
    }

    fn all_sets(counts: &[u32], parity: u32, draw: u64) -> Vec<Set> {
        let group: Vec<Node> = (0..counts.len() as Node).collect();
        let (ranks, mut held) = (ranks_on(counts), BTreeMap::new());
        let (sets, left) = sets(&group, parity, &ranks, |_| true, &mut held, draw);
        assert!(left.is_empty(), "{left:?}");
        let mut members: Vec<Rank> = sets.iter().flat_map(|set| set.members.clone()).collect();
        members.sort_unstable();
        assert_eq!(
            members,
            (0..ranks.len() as Rank).collect::<Vec<_>>(),
            "each is in one set"
        );
        for set in &sets {
            let at = set.members.iter().map(|rank| ranks[*rank as usize].1);
            let mut nodes: Vec<Node> = at.chain(set.holders.iter().copied()).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let all = set.members.len() + set.holders.len();
            assert_eq!((nodes.len(), set.holders.len()), (all, parity as usize), "{set:?}");
        }
        sets
    }

    #[test]
    fn a_set_survives_the_loss_of_as_many_nodes_as_it_has_pieces() {
        for draw in 0..200 {
            for (counts, parity) in [
                (&[1, 1][..], 1),
                (&[3, 0, 0], 2),
                (&[1, 2, 3, 4], 1),
                (&[4, 4, 4, 4, 4], 2),
                (&[0, 9, 0, 1, 2, 5, 1], 3),
            ] {
                all_sets(counts, parity, draw);
            }
        }
    }

    #[test]
    fn pieces_take_little_memory_and_that_of_nodes_without_ranks_first() {
        for draw in 0..100 {
            // 8 ranks on each of 4 nodes: 32 images in sets of 3.
            assert_eq!(all_sets(&[8; 4], 1, draw).len(), 11);
            assert_eq!(all_sets(&[8; 6], 2, draw).len(), 12);
            let sets = all_sets(&[4, 4, 4, 0], 1, draw);
            assert!(sets.len() == 4 && sets.iter().all(|set| set.holders == [3]), "{sets:?}");
            let pieces = |sets: &[Set], node| sets.iter().filter(|set| set.holders.contains(&node)).count();
            let sets = all_sets(&[8; 4], 1, draw);
            assert!((0..4).all(|node| (2..=3).contains(&pieces(&sets, node))), "{sets:?}");
        }
    }

    #[test]
    fn nodes_that_take_no_pieces_still_give_ranks() {
        let ranks = ranks_on(&[2, 2, 2]);
        let only = |node: Node| move |other: Node| other == node;
        let (made, left) = sets(&[0, 1, 2], 2, &ranks, only(1), &mut BTreeMap::new(), 7);
        assert!(
            made.iter().all(|set| set.holders == [1] && set.members.len() == 2),
            "{made:?}"
        );
        assert_eq!((made.len(), left), (2, vec![2, 3]));
        let (made, left) = sets(&[0, 1, 2], 2, &ranks, |_| false, &mut BTreeMap::new(), 7);
        assert!(made.is_empty() && left.len() == 6);
    }
}

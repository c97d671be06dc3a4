//! On which nodes ranks run, and which nodes have copies of their images, or parity.

mod parity;

use crate::Node;
use crate::random::splitmix;
pub use parity::{Parity, Set, sets};

/// A node that is up, with its room for ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub node: Node,
    pub slots: u32,
    /// Ranks that run there, or will.
    pub ranks: u32,
    /// It is kept free for ranks whose nodes are lost.
    pub spare: bool,
}

impl Room {
    /// Slots without ranks; below 0 where ranks share slots.
    fn free(&self) -> i64 {
        i64::from(self.slots) - i64::from(self.ranks)
    }
}

/// The node of a rank's next life, after a process on `former`. After a failure of the process alone it is the same
/// node. After a loss of that, it is a spare one with free slots, or else the one with most of them. `rooms`: the nodes
/// that are up, with the ranks placed so far. None: no node is up.
pub fn next(former: Node, rooms: &[Room]) -> Option<Node> {
    if rooms.iter().any(|room| room.node == former) {
        return Some(former);
    }
    let is_spare = |room: &&Room| room.spare && room.free() > 0;
    let spare = rooms.iter().filter(is_spare).min_by_key(|room| room.node);
    spare.map(|room| room.node).or_else(|| roomiest(rooms))
}

/// The node with most free slots; of several the first.
fn roomiest(rooms: &[Room]) -> Option<Node> {
    let room = rooms
        .iter()
        .max_by_key(|room| (room.free(), std::cmp::Reverse(room.node)));
    room.map(|room| room.node)
}

/// The node of a rank added after the start. Spare nodes stay free, unless there are no others.
pub fn added(rooms: &[Room]) -> Option<Node> {
    let kept: Vec<Room> = rooms.iter().copied().filter(|room| !room.spare).collect();
    roomiest(&kept).or_else(|| roomiest(rooms))
}

/// The first nodes of ranks, as mpiexec places them. `turns`: (node, slots) in the order in which the user names nodes,
/// one more than once if it is named so. Ranks fill the slots of each turn, and begin again with the first if there are
/// more; with `per_node` a turn takes so many, whatever its slots. Returns the node of each rank; none: there are no
/// slots.
pub fn initial(turns: &[(Node, u32)], ranks: usize, per_node: Option<u32>) -> Option<Vec<Node>> {
    let round = turns.iter().flat_map(|(node, slots)| {
        let slots = per_node.unwrap_or(*slots) as usize;
        std::iter::repeat_n(*node, slots.min(ranks))
    });
    let round: Vec<Node> = round.take(ranks).collect();
    let is_possible = ranks == 0 || !round.is_empty();
    is_possible.then(|| round.into_iter().cycle().take(ranks).collect())
}

/// The same for several programs, in the order of their ranks: how many, and turns of their own. Programs without any
/// take the common ones, each from where the one before it has ended.
pub fn of_programs(
    common: &[(Node, u32)],
    programs: &[(usize, Vec<(Node, u32)>)],
    per_node: Option<u32>,
) -> Option<Vec<Node>> {
    let others = programs.iter().filter(|(_, own)| own.is_empty());
    let others: usize = others.map(|(ranks, _)| ranks).sum();
    let mut others = initial(common, others, per_node)?.into_iter();
    let mut nodes = Vec::new();
    for (ranks, own) in programs {
        match own.is_empty() {
            true => nodes.extend(others.by_ref().take(*ranks)),
            false => nodes.extend(initial(own, *ranks, per_node)?),
        }
    }
    Some(nodes)
}

/// A node that may have a copy of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shelf<'a> {
    pub node: Node,
    /// Nodes of one rack may be lost together. Those whose rack is unnamed are in racks of their own.
    pub rack: Option<&'a str>,
    /// It has one.
    pub has: bool,
}

/// The nodes that get copies of an image of `own`, in this order: `count` are to have one, with those that have. `own`
/// is the rack of its own node. Racks without a copy come first; otherwise every node is as likely as every other one,
/// and `draw` decides. Fewer: there are no more nodes.
pub fn copies(count: usize, own: Option<&str>, shelves: &[Shelf<'_>], draw: u64) -> Vec<Node> {
    let having = shelves.iter().filter(|shelf| shelf.has);
    let mut racks: Vec<&str> = having.clone().filter_map(|shelf| shelf.rack).chain(own).collect();
    let mut chosen = Vec::new();
    for _ in having.count()..count {
        let lacking = shelves
            .iter()
            .filter(|shelf| !shelf.has && !chosen.contains(&shelf.node));
        let is_beside = |shelf: &Shelf| shelf.rack.is_some_and(|rack| racks.contains(&rack));
        let next = lacking.min_by_key(|shelf| (is_beside(shelf), mixed(draw ^ mixed(shelf.node.into()))));
        let Some(next) = next else { break };
        chosen.push(next.node);
        racks.extend(next.rack);
    }
    chosen
}

/// The draw for an image of a rank of this node.
pub fn draw(seed: u64, own: Node, number: u64) -> u64 {
    mixed(mixed(seed ^ u64::from(own)) ^ number)
}

/// Bits without a pattern.
fn mixed(mut bits: u64) -> u64 {
    splitmix(&mut bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(node: Node, slots: u32, ranks: u32) -> Room {
        Room {
            node,
            slots,
            ranks,
            spare: false,
        }
    }

    fn spare(node: Node, slots: u32, ranks: u32) -> Room {
        Room {
            spare: true,
            ..room(node, slots, ranks)
        }
    }

    /// The new nodes of so many ranks of the lost node 9, one after the other.
    fn lost(ranks: usize, mut rooms: Vec<Room>) -> Vec<Node> {
        let next = (0..ranks).map(|_| {
            let node = next(9, &rooms).expect("some node is up");
            let place = rooms.iter().position(|room| room.node == node);
            rooms[place.expect("it is one of them")].ranks += 1;
            node
        });
        next.collect()
    }

    #[test]
    fn a_process_that_fails_begins_again_where_it_was() {
        assert_eq!(next(1, &[room(0, 9, 0), room(1, 1, 1), spare(2, 9, 0)]), Some(1));
    }

    #[test]
    fn ranks_of_a_lost_node_go_to_spare_ones_first() {
        let rooms = vec![room(0, 4, 3), room(1, 4, 2), spare(2, 2, 0), spare(3, 1, 0)];
        assert_eq!(lost(5, rooms), [2, 2, 3, 1, 0]);
    }

    #[test]
    fn without_spare_ones_they_go_where_most_slots_are_free() {
        assert_eq!(lost(4, vec![room(0, 4, 3), room(1, 4, 1)]), [1, 1, 0, 1]);
        assert_eq!(
            lost(3, vec![room(0, 2, 2), room(1, 2, 2)]),
            [0, 1, 0],
            "ranks share slots"
        );
        assert_eq!(next(9, &[]), None);
    }

    #[test]
    fn a_node_that_comes_later_takes_what_is_lost_next() {
        assert_eq!(lost(2, vec![room(0, 2, 2), room(7, 2, 0)]), [7, 7]);
    }

    #[test]
    fn ranks_that_are_added_leave_spare_nodes_alone() {
        assert_eq!(added(&[spare(0, 9, 0), room(1, 2, 2), room(2, 2, 1)]), Some(2));
        assert_eq!(added(&[spare(0, 9, 0), room(1, 2, 2), room(2, 2, 4)]), Some(1));
        assert_eq!(added(&[spare(3, 1, 0), spare(4, 2, 0)]), Some(4));
        assert_eq!(added(&[]), None);
    }

    #[test]
    fn ranks_fill_slots_as_at_mpiexec() {
        // As Hydra 5.0.2 does it.
        let of = |turns: &[(Node, u32)], ranks, per_node| initial(turns, ranks, per_node).unwrap();
        assert_eq!(of(&[(0, 2), (1, 3)], 4, None), [0, 0, 1, 1]);
        assert_eq!(of(&[(0, 2), (1, 3)], 7, None), [0, 0, 1, 1, 1, 0, 0]);
        assert_eq!(of(&[(0, 2), (1, 3)], 7, Some(2)), [0, 0, 1, 1, 0, 0, 1]);
        assert_eq!(of(&[(0, 1), (1, 1)], 4, None), [0, 1, 0, 1]);
        assert_eq!(of(&[(0, 1), (0, 1), (1, 1)], 4, None), [0, 0, 1, 0]);
        assert_eq!(of(&[(0, 2), (1, 2), (0, 2)], 6, None), [0, 0, 1, 1, 0, 0]);
        assert_eq!(of(&[(0, 9), (1, 9)], 3, Some(1)), [0, 1, 0]);
        assert_eq!(of(&[(0, u32::MAX)], 2, None), [0, 0]);
        assert_eq!((initial(&[], 1, None), initial(&[(0, 0)], 1, None)), (None, None));
        assert_eq!(initial(&[], 0, None), Some(Vec::new()));
    }

    #[test]
    fn programs_with_turns_of_their_own_leave_those_of_others_alone() {
        let of = |programs: &[(usize, Vec<(Node, u32)>)], per_node| of_programs(&[(0, 1), (1, 1)], programs, per_node);
        let own = |turns: &[(Node, u32)]| turns.to_vec();
        assert_eq!(of(&[(1, own(&[])), (2, own(&[]))], None), Some(vec![0, 1, 0]));
        assert_eq!(
            of(&[(1, own(&[])), (3, own(&[(2, 2), (0, 1)])), (1, own(&[]))], None),
            Some(vec![0, 2, 2, 0, 1])
        );
        assert_eq!(
            of(&[(1, own(&[])), (2, own(&[(2, 1), (3, 1)]))], Some(2)),
            Some(vec![0, 2, 2])
        );
        assert_eq!(of_programs(&[], &[(1, own(&[]))], None), None);
    }

    fn shelf(node: Node, rack: Option<&str>) -> Shelf<'_> {
        let has = false;
        Shelf { node, rack, has }
    }

    #[test]
    fn every_other_node_is_as_likely_to_have_a_copy() {
        let shelves: Vec<Shelf> = (1..5).map(|node| shelf(node, None)).collect();
        let mut times = [0; 5];
        for number in 0..4000 {
            let chosen = copies(2, None, &shelves, draw(7, 0, number));
            assert!(chosen.len() == 2 && chosen[0] != chosen[1], "{chosen:?}");
            chosen.iter().for_each(|node| times[*node as usize] += 1);
        }
        assert!(times[1..].iter().all(|times| (1900..2100).contains(times)), "{times:?}");
        assert_eq!(copies(9, None, &shelves[..2], 3).len(), 2);
        assert!(copies(2, None, &[], 3).is_empty());
    }

    #[test]
    fn copies_that_are_there_stay_and_the_others_go_where_they_would_have_gone() {
        for number in 0..100 {
            let mut shelves: Vec<Shelf> = (1..6).map(|node| shelf(node, None)).collect();
            let drawn = draw(7, 0, number);
            let first = copies(3, None, &shelves, drawn);
            shelves[first[0] as usize - 1].has = true;
            assert_eq!(copies(3, None, &shelves, drawn), first[1..]);
            shelves.retain(|shelf| shelf.node != first[1]);
            assert_eq!(copies(3, None, &shelves, drawn)[0], first[2]);
        }
    }

    #[test]
    fn no_two_copies_are_in_one_rack_while_there_are_others() {
        let shelves = [(1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")].map(|(node, rack)| shelf(node, Some(rack)));
        for number in 0..200 {
            let drawn = draw(1, 0, number);
            let mut two = copies(2, Some("a"), &shelves, drawn);
            two.sort_unstable();
            assert!([2, 3].contains(&two[0]) && [4, 5].contains(&two[1]), "{two:?}");
            let three = copies(3, Some("a"), &shelves, drawn);
            assert!(
                three.len() == 3 && !two.iter().any(|node| !three.contains(node)),
                "{three:?}"
            );
            let mut having = shelves;
            having[2].has = true;
            assert!([4, 5].contains(&copies(2, Some("a"), &having, drawn)[0]));
        }
    }
}

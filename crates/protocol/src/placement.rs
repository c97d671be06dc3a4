//! On which nodes ranks run.

use crate::Node;

/// A node that is up, as far as ranks may be placed there.
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

/// Where a rank runs next whose last process was on `former`. After a failure of the process alone it is the same node; where that is
/// lost, a spare one as long as it has free slots, or else the one with most of them. `rooms`: the nodes that are up, with the ranks
/// that have been placed so far. None: no node is up.
pub fn next(former: Node, rooms: &[Room]) -> Option<Node> {
    if rooms.iter().any(|room| room.node == former) {
        return Some(former);
    }
    let is_spare = |room: &&Room| room.spare && room.free() > 0;
    let spare = rooms.iter().filter(is_spare).min_by_key(|room| room.node);
    spare.map(|room| room.node).or_else(|| roomiest(rooms))
}

/// The node with most free slots; of several the first.
pub fn roomiest(rooms: &[Room]) -> Option<Node> {
    let room = rooms
        .iter()
        .max_by_key(|room| (room.free(), std::cmp::Reverse(room.node)));
    room.map(|room| room.node)
}

/// Where ranks run at first, as mpiexec has it. `turns`: (node, slots) in the order in which the user names nodes, one more than once if it
/// is named so. Ranks fill the slots of each turn and begin again with the first where there are more; with `per_node` a turn takes so
/// many, whatever its slots are. Returns the node of each rank; none: there are no slots.
pub fn initial(turns: &[(Node, u32)], ranks: usize, per_node: Option<u32>) -> Option<Vec<Node>> {
    let round = turns.iter().flat_map(|(node, slots)| {
        let slots = per_node.unwrap_or(*slots) as usize;
        std::iter::repeat_n(*node, slots.min(ranks))
    });
    let round: Vec<Node> = round.take(ranks).collect();
    let is_possible = ranks == 0 || !round.is_empty();
    is_possible.then(|| round.into_iter().cycle().take(ranks).collect())
}

/// The node that has the images of `node`, too: the next one that is up. None: there is no other.
pub fn partner(node: Node, up: impl Iterator<Item = Node> + Clone) -> Option<Node> {
    let others = up.filter(|other| *other != node);
    let later = others.clone().filter(|other| *other > node);
    later.min().or_else(|| others.min())
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

    /// Where so many ranks of node 9, which is lost, go one after the other.
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
    fn the_partner_of_a_node_is_the_next_that_is_up() {
        let up = [0, 2, 3];
        let of = |node| partner(node, up.into_iter());
        assert_eq!((of(0), of(1), of(2), of(3)), (Some(2), Some(2), Some(3), Some(0)));
        assert_eq!(partner(0, [0].into_iter()), None);
    }
}

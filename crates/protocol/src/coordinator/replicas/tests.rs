use std::collections::BTreeMap;

use super::super::nodes::tests::{launched, on, stored, up, with_partners};
use super::super::tests::{after, begins, ended, file_lost, image, wave};
use super::super::{Fact, Former, From, Plan};
use super::*;
use crate::kinds::Protocol;

/// A job of two ranks, on the first two of so many nodes, whose images have so many replicas.
fn job(protocol: Protocol, replicas: u32, nodes: Node) -> Coordinator {
    let plan = Plan {
        replicas,
        ..with_partners(protocol, 2)
    };
    launched(plan, &(0..nodes).collect::<Vec<_>>(), 2, &[0, 1])
}

/// Sends that these commands order: rank, number, from, to.
fn sends(commands: &[Command]) -> Vec<(Rank, u64, Node, Node)> {
    let sends = commands.iter().filter_map(|command| match *command {
        Command::Replicate { rank, number, from, to } => Some((rank, number, from, to)),
        _ => None,
    });
    sends.collect()
}

/// The image is written, and goes to one node after the other. Returns these, and the commands after the last.
fn spread(job: &mut Coordinator, rank: Rank, number: u64) -> (Vec<Node>, Vec<Command>) {
    let mut last = after(job, Fact::Written { rank, number });
    let mut nodes = Vec::new();
    while let [(of, _, from, to)] = sends(&last)[..] {
        let due = nodes.iter().copied().min().unwrap_or_else(|| job.node(rank));
        assert_eq!((of, from), (rank, due), "a node that has it sends it");
        assert!(to != job.node(rank) && !nodes.contains(&to), "{nodes:?} {to}");
        nodes.push(to);
        last = after(job, stored(rank, number, Place::Node(to)));
    }
    (nodes, last)
}

#[test]
fn a_file_counts_when_all_its_replicas_are_there() {
    let mut job = job(Protocol::Blocking, 2, 5);
    wave(&mut job, 1);
    spread(&mut job, 0, 1);
    let first = sends(&after(&mut job, Fact::Written { rank: 1, number: 1 }))[0];
    let second = sends(&after(&mut job, stored(1, 1, Place::Node(first.3))))[0];
    assert!(job.writes(1) && job.waves_in_files(0).is_empty());
    after(&mut job, stored(1, 1, Place::Node(second.3)));
    assert_eq!((job.writes(1), job.waves_in_files(0)), (false, vec![1]));
}

#[test]
fn as_many_nodes_can_be_lost_at_once_as_there_are_replicas() {
    for k in 1..=3 {
        let mut job = job(Protocol::Blocking, k, 6);
        wave(&mut job, 1);
        let mut lost = vec![1];
        lost.extend(spread(&mut job, 1, 1).0);
        spread(&mut job, 0, 1);
        assert_eq!(lost.len(), k as usize + 1, "rank 1 is on so many nodes");
        let last = lost.pop().unwrap();
        lost.iter()
            .for_each(|node| drop(after(&mut job, Fact::Down { node: *node })));
        after(&mut job, Fact::Return { rank: 1 });
        let all = match job.is_alive(0) {
            true => after(&mut job, ended(0, 1)),
            false => Vec::new(),
        };
        let begun = begins(&all);
        assert!(begun.iter().all(|(_, from)| from.number() == 1), "{k}: {all:?}");
        if let Some(place) = on(&all).get(1) {
            assert!(*place == (last, None) || place.1 == Some(last), "{k}: {place:?}");
        }
    }
}

#[test]
fn with_fewer_nodes_all_have_it() {
    let mut job = job(Protocol::Blocking, 3, 3);
    wave(&mut job, 1);
    assert_eq!(spread(&mut job, 0, 1).0.len(), 2);
    // The one that it is on its way to is lost, and there is no other one.
    let to = sends(&after(&mut job, Fact::Written { rank: 1, number: 1 }))[0].3;
    after(&mut job, stored(1, 1, Place::Node(to)));
    let other = 2 - to;
    after(&mut job, Fact::Down { node: other });
    assert!(!job.writes(1));
}

#[test]
fn none_are_made_where_none_are_wanted() {
    let mut job = job(Protocol::Blocking, 0, 3);
    wave(&mut job, 1);
    assert!(spread(&mut job, 0, 1).0.is_empty() && !job.writes(0));
}

#[test]
fn racks_are_different_while_there_are_enough() {
    let plan = Plan {
        replicas: 2,
        ..with_partners(Protocol::ChannelMemory, 1)
    };
    let mut job = launched(plan, &[], 2, &[0]);
    for (node, rack) in [(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c")] {
        let (slots, spare, rack) = (2, false, Some(rack.to_string()));
        let fact = Fact::Up {
            node,
            slots,
            spare,
            rack,
        };
        after(&mut job, fact);
    }
    for number in 1..=20 {
        image(&mut job, 0, number);
        let mut at = Vec::new();
        while let Some((_, (_, to))) = job.images(0).going.clone().into_iter().next() {
            at.push(to);
            after(&mut job, stored(0, number, Place::Node(to)));
        }
        at.sort_unstable();
        assert!(at.len() == 2 && [2, 3].contains(&at[0]) && at[1] == 4, "{at:?}");
    }
}

/// Both ranks have an image under channel memories, with two replicas each on five nodes.
fn with_two() -> (Coordinator, Vec<Node>) {
    let mut job = job(Protocol::ChannelMemory, 2, 5);
    let mut of_first = Vec::new();
    for rank in 0..2 {
        let mut told = image(&mut job, rank, 1);
        while let [(_, number, _, to)] = sends(&told)[..] {
            if rank == 0 {
                of_first.push(to);
            }
            told = after(&mut job, stored(rank, number, Place::Node(to)));
        }
    }
    (job, of_first)
}

#[test]
fn a_lost_replica_is_made_anew_from_any_node_that_has_one() {
    let (mut job, nodes) = with_two();
    let lost = after(&mut job, Fact::Down { node: nodes[0] });
    let sent: Vec<_> = sends(&lost).into_iter().filter(|(rank, ..)| *rank == 0).collect();
    let [(_, 1, from, to)] = sent[..] else {
        panic!("{lost:?}")
    };
    assert_eq!(from, nodes[1], "the rank's node sends it once only");
    assert!(to != 0 && !nodes.contains(&to));
    // The sender is lost, too: now only the rank's own node has it.
    let lost = after(&mut job, Fact::Down { node: nodes[1] });
    let again: Vec<_> = sends(&lost).into_iter().filter(|(rank, ..)| *rank == 0).collect();
    assert_eq!(again, [(0, 1, 0, to)]);
    let next = after(&mut job, stored(0, 1, Place::Node(to)));
    assert_eq!(sends(&next).len(), 1, "two are wanted: {next:?}");
}

#[test]
fn what_a_node_without_processes_had_is_made_anew() {
    let mut job = job(Protocol::Blocking, 1, 4);
    wave(&mut job, 1);
    let (nodes, _) = spread(&mut job, 0, 1);
    spread(&mut job, 1, 1);
    let (rank, life, orderly) = (0, 1, true);
    after(&mut job, Fact::Ended { rank, life, orderly });
    let lost = after(&mut job, Fact::Down { node: 0 });
    let sent = sends(&lost);
    assert!(
        sent.iter().any(|(rank, _, from, _)| (*rank, *from) == (0, nodes[0])),
        "nobody returns, so no other moment does it: {sent:?}"
    );
}

#[test]
fn replicas_that_no_node_could_have_are_made_when_one_comes() {
    let (mut job, nodes) = with_two();
    let others: Vec<Node> = (1..5).filter(|node| !nodes.contains(node)).collect();
    others
        .iter()
        .for_each(|node| drop(after(&mut job, Fact::Down { node: *node })));
    after(&mut job, Fact::Down { node: nodes[0] });
    let comes = after(&mut job, up(7, 1));
    assert!(sends(&comes).contains(&(0, 1, nodes[1], 7)), "{comes:?}");
}

#[test]
fn another_node_gets_what_one_does_not_take() {
    let mut job = job(Protocol::Blocking, 1, 4);
    wave(&mut job, 1);
    let (rank, number, reason) = (0, 1, "no room".to_string());
    let mut told = after(&mut job, Fact::Written { rank, number });
    let mut asked = Vec::new();
    while let [(_, _, 0, node)] = sends(&told)[..] {
        asked.push(node);
        let reason = reason.clone();
        told = after(
            &mut job,
            Fact::NotStored {
                rank,
                number,
                node,
                reason,
            },
        );
    }
    asked.sort_unstable();
    assert_eq!(asked, [1, 2, 3]);
    assert!(told.contains(&Command::NotWritten { rank, number, reason }), "{told:?}");
}

#[test]
fn a_node_that_has_damaged_its_replica_gets_no_other_one() {
    let (mut job, nodes) = with_two();
    after(&mut job, Fact::Down { node: 0 });
    let begun = after(&mut job, Fact::Restart { rank: 0 });
    let (on, reads) = on(&begun)[0];
    let damaged = reads.unwrap_or(on);
    assert!(nodes.contains(&damaged));
    after(&mut job, file_lost(0, 1));
    let again = after(&mut job, Fact::NotBegun { rank: 0, life: 2 });
    assert_eq!(begins(&again), [(0, From::File(1))]);
    let sent = sends(&after(&mut job, Fact::Started { rank: 0, life: 3 }));
    assert!(sent.iter().all(|(_, _, _, to)| *to != damaged), "{sent:?}");
}

#[test]
fn the_oldest_image_counts_also_where_the_ranks_new_node_never_had_it() {
    let mut job = job(Protocol::Blocking, 2, 5);
    assert_eq!(job.oldest_image(1), None);
    for number in 1..=2 {
        wave(&mut job, number);
        (0..2).for_each(|rank| drop(spread(&mut job, rank, number)));
    }
    let node = job.node(1);
    after(&mut job, Fact::Down { node });
    after(&mut job, Fact::Return { rank: 1 });
    assert_eq!((job.waves_in_files(0), job.oldest_image(1)), (vec![2, 1], Some(1)));
}

/// A resumed job whose ranks have their files on the last of three nodes.
fn resumed(finished: bool) -> Coordinator {
    let former = Former {
        asked: 7,
        finished,
        files: vec![7],
        places: BTreeMap::from([(7, BTreeSet::from([Place::Node(2)]))]),
        ..Former::default()
    };
    let plan = with_partners(Protocol::Blocking, 2);
    Coordinator::resume(plan, vec![former.clone(), former], [])
}

#[test]
fn a_node_that_has_yet_to_come_sends_no_file() {
    let mut job = resumed(true);
    assert_eq!(sends(&after(&mut job, up(0, 1))), []);
    assert_eq!(sends(&after(&mut job, up(1, 1))), []);
    let sent = sends(&after(&mut job, up(2, 1)));
    assert!(sent.len() == 2 && sent.iter().all(|(.., from, to)| *from == 2 && *to < 2));
}

#[test]
fn a_node_has_the_file_that_was_read_there_although_the_life_has_ended() {
    let mut job = resumed(false);
    (0..3).for_each(|node| drop(after(&mut job, up(node, 1))));
    after(&mut job, Fact::Placed { nodes: vec![0, 1] });
    let begun = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(on(&begun), [(0, Some(2)), (1, Some(2))]);
    after(&mut job, ended(0, 1));
    let (rank, life) = (0, 1);
    after(&mut job, Fact::Ready { rank, life });
    let again = after(&mut job, ended(1, 1));
    assert_eq!(on(&again), [(0, None), (1, Some(2))]);
}

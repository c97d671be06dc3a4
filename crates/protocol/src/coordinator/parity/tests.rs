use super::super::nodes::tests::{launched, stored, up, with_partners};
use super::super::tests::{after, begins, ended, wave};
use super::super::{Fact, From, Plan};
use super::*;
use crate::kinds::Protocol;

/// A job of `ranks`, one on each of the first nodes.
fn job(protocol: Protocol, ranks: u32, nodes: Node, data: u32, parity: u32) -> Coordinator {
    let plan = Plan {
        parity: Some(Parity { data, parity }),
        ..with_partners(protocol, ranks as usize)
    };
    let all: Vec<Node> = (0..nodes).collect();
    launched(plan, &all, 2, &(0..ranks).collect::<Vec<_>>())
}

/// Carries out what is ordered about sets, until nothing more is; `lost` nodes do nothing. Returns all commands.
fn carried_out(job: &mut Coordinator, first: Vec<Command>, lost: &[Node]) -> Vec<Command> {
    let mut all = Vec::new();
    let mut next = first;
    while !next.is_empty() {
        let mut facts = Vec::new();
        for command in &next {
            match command.clone() {
                Command::Replicate { rank, number, to, .. } => facts.push(stored(rank, number, Place::Node(to))),
                Command::Encode {
                    number, set, holders, ..
                } => {
                    facts.extend(holders.into_iter().map(|node| Fact::Encoded { number, set, node }));
                }
                Command::Rebuild { rank, number, to, .. } => facts.push(Fact::Fetched {
                    rank,
                    number,
                    place: Place::Node(to),
                }),
                _ => {}
            }
        }
        all.append(&mut next);
        facts.retain(|fact| !matches!(fact, Fact::Encoded { node, .. } if lost.contains(node)));
        facts.into_iter().for_each(|fact| next.extend(after(job, fact)));
    }
    all
}

/// A wave is written, and in sets. Returns the commands.
fn in_sets(job: &mut Coordinator, number: u64) -> Vec<Command> {
    wave(job, number);
    let mut all = Vec::new();
    for rank in 0..job.ranks.len() as Rank {
        let first = after(job, Fact::Written { rank, number });
        all.extend(carried_out(job, first, &[]));
    }
    assert_eq!(job.waves_in_files(0).first(), Some(&number));
    all
}

/// Sets: number, members, holders.
fn sets(commands: &[Command]) -> Vec<(u64, Vec<Rank>, Vec<Node>)> {
    let sets = commands.iter().filter_map(|command| match command {
        Command::Encode {
            set, members, holders, ..
        } => Some((*set, members.clone(), holders.clone())),
        _ => None,
    });
    sets.collect()
}

/// Rank, node, members, pieces.
type Made = (Rank, Node, Vec<(Rank, Node)>, Vec<(u32, Node)>);

fn rebuilds(commands: &[Command]) -> Vec<Made> {
    let rebuilds = commands.iter().filter_map(|command| match command.clone() {
        Command::Rebuild {
            rank,
            to,
            members,
            pieces,
            ..
        } => Some((rank, to, members, pieces)),
        _ => None,
    });
    rebuilds.collect()
}

/// These nodes are lost at once, and all ranks return: the commands until they begin.
fn lose(job: &mut Coordinator, nodes: &[Node]) -> Vec<Command> {
    nodes
        .iter()
        .for_each(|node| drop(after(job, Fact::Down { node: *node })));
    let mut all = after(job, Fact::Return { rank: nodes[0] });
    for rank in 0..job.ranks.len() as Rank {
        if job.is_alive(rank) {
            let life = job.ranks[rank as usize].life;
            all.extend(after(job, ended(rank, life)));
        }
    }
    all
}

/// All ranks are ready and go on.
fn go_on(job: &mut Coordinator) -> Vec<Command> {
    let mut all = Vec::new();
    for rank in 0..job.ranks.len() as Rank {
        let life = job.ranks[rank as usize].life;
        after(job, Fact::Started { rank, life });
        all = after(job, Fact::Ready { rank, life });
    }
    all
}

#[test]
fn files_count_when_all_pieces_are_there_and_the_holder_forgets_them() {
    let mut job = job(Protocol::Blocking, 3, 4, 3, 1);
    wave(&mut job, 1);
    for rank in 0..2 {
        assert_eq!(after(&mut job, Fact::Written { rank, number: 1 }), []);
    }
    let sent = after(&mut job, Fact::Written { rank: 2, number: 1 });
    let to = |command: &Command| matches!(command, Command::Replicate { to: 3, .. });
    assert!(sent.len() == 3 && sent.iter().all(to), "node 3 has no rank: {sent:?}");
    assert_eq!(after(&mut job, stored(0, 1, Place::Node(3))), []);
    assert_eq!(after(&mut job, stored(1, 1, Place::Node(3))), []);
    let all = after(&mut job, stored(2, 1, Place::Node(3)));
    let (number, set) = (1, sets(&all)[0].0);
    assert_eq!(sets(&all), [(set, vec![0, 1, 2], vec![3])]);
    assert!(job.writes(0) && job.waves_in_files(0).is_empty());
    let all = after(&mut job, Fact::Encoded { number, set, node: 3 });
    assert_eq!((job.writes(0), job.waves_in_files(0)), (false, vec![1]));
    let dropped = |command: &&Command| matches!(command, Command::DropCopy { node: 3, number: 1, .. });
    assert_eq!(all.iter().filter(dropped).count(), 3);
}

#[test]
fn as_many_nodes_can_be_lost_at_once_as_there_are_pieces() {
    for (one, other) in [(0, 1), (0, 5), (2, 3), (4, 5)] {
        let mut job = job(Protocol::Blocking, 6, 6, 4, 2);
        in_sets(&mut job, 1);
        let all = lose(&mut job, &[one, other]);
        let made = rebuilds(&all);
        let ranks: Vec<Rank> = made.iter().map(|made| made.0).collect();
        assert_eq!(ranks, [one, other]);
        for (_, to, members, pieces) in &made {
            let nodes = members
                .iter()
                .map(|(_, node)| node)
                .chain(pieces.iter().map(|(_, node)| node));
            assert!(![one, other].contains(to) && nodes.clone().all(|node| ![one, other].contains(node)));
            assert!(begins(&all).is_empty());
        }
        let all = carried_out(&mut job, all, &[]);
        let begun = begins(&all);
        assert!(
            begun.len() == 6 && begun.iter().all(|(_, from)| from.number() == 1),
            "{begun:?}"
        );
        let last = go_on(&mut job);
        let mended = carried_out(&mut job, last, &[]);
        assert!(!sets(&mended).is_empty(), "broken sets are made anew: {mended:?}");
        assert!(job.sets.of.values().all(|set| job.is_sound(set)), "{:?}", job.sets);
    }
}

#[test]
fn three_at_once_are_too_many_for_two_pieces() {
    let mut job = job(Protocol::Blocking, 6, 6, 4, 2);
    in_sets(&mut job, 1);
    let all = lose(&mut job, &[0, 1, 2]);
    assert!(all.contains(&Command::Reset), "{all:?}");
}

#[test]
fn what_is_found_out_too_late_leads_to_other_sources_or_another_wave() {
    let mut job = job(Protocol::Blocking, 3, 5, 3, 1);
    (1..=2).for_each(|number| drop(in_sets(&mut job, number)));
    let all = lose(&mut job, &[0]);
    let (rank, number, reason) = (0, 2, "a piece is damaged".to_string());
    assert_eq!(rebuilds(&all).len(), 1);
    let all = after(&mut job, Fact::NotFetched { rank, number, reason });
    // The older one has a set of its own.
    assert!(matches!(rebuilds(&all)[..], [(0, ..)]), "{all:?}");
    let all = carried_out(&mut job, all, &[]);
    assert!(begins(&all).iter().all(|(_, from)| *from == From::File(1)), "{all:?}");
}

#[test]
fn a_refused_piece_goes_elsewhere_and_with_none_left_the_file_is_not_written() {
    let mut job = job(Protocol::Blocking, 1, 3, 2, 1);
    wave(&mut job, 1);
    let mut all = after(&mut job, Fact::Written { rank: 0, number: 1 });
    for turn in 0..2 {
        let Some(Command::Replicate { to, .. }) = all.first().cloned() else {
            panic!("{all:?}")
        };
        let asked = after(&mut job, stored(0, 1, Place::Node(to)));
        let (number, set, node, reason) = (1, sets(&asked)[0].0, to, "its disk is full".to_string());
        all = after(
            &mut job,
            Fact::NotEncoded {
                number,
                set,
                node,
                reason,
            },
        );
        assert!(all.contains(&Command::CollectSet { number, set }));
        all.retain(|command| matches!(command, Command::Replicate { .. } | Command::NotWritten { .. }));
        assert_eq!(job.writes(0), turn == 0);
    }
    let reason = "its disk is full".to_string();
    assert_eq!(
        all,
        [Command::NotWritten {
            rank: 0,
            number: 1,
            reason
        }]
    );
}

#[test]
fn a_holder_is_lost_before_all_pieces_are_there() {
    let mut job = job(Protocol::Blocking, 2, 5, 2, 2);
    wave(&mut job, 1);
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    let first = after(&mut job, Fact::Written { rank: 1, number: 1 });
    let all = carried_out(&mut job, first, &[2, 3, 4]);
    let (set, _, holders) = sets(&all)[0].clone();
    assert!(job.writes(0));
    let next = after(&mut job, Fact::Down { node: holders[1] });
    assert!(next.contains(&Command::CollectSet { number: 1, set }), "{next:?}");
    carried_out(&mut job, next, &[]);
    assert!(!job.writes(0) && job.waves_in_files(0) == [1]);
    // It comes too late.
    let node = holders[0];
    let late = after(&mut job, Fact::Encoded { number: 1, set, node });
    assert_eq!(late, [Command::CollectSet { number: 1, set }]);
}

#[test]
fn pieces_of_older_waves_go_with_their_files() {
    let mut job = job(Protocol::Blocking, 3, 4, 3, 1);
    let mut all = Vec::new();
    (1..=3).for_each(|number| all.extend(in_sets(&mut job, number)));
    let collected: Vec<u64> = all
        .iter()
        .filter_map(|command| match command {
            Command::CollectSet { number, .. } => Some(*number),
            _ => None,
        })
        .collect();
    assert_eq!(collected, [1], "two waves stay");
}

#[test]
fn ranks_that_leave_have_replicas() {
    let mut job = job(Protocol::Blocking, 3, 5, 3, 2);
    after(&mut job, Fact::Leave { node: 0 });
    wave(&mut job, 1);
    let mut nodes = Vec::new();
    let mut next = after(&mut job, Fact::Written { rank: 0, number: 1 });
    while let Some(Command::Replicate { rank: 0, to, .. }) = next.first().cloned() {
        nodes.push(to);
        next = after(&mut job, stored(0, 1, Place::Node(to)));
    }
    assert!(
        nodes.len() == 2 && !nodes.contains(&0),
        "as many as there would be pieces: {nodes:?}"
    );
}

#[test]
fn a_later_node_improves_weak_sets() {
    let mut job = job(Protocol::Blocking, 2, 2, 2, 2);
    let all = in_sets(&mut job, 1);
    assert!(sets(&all).iter().all(|(_, _, holders)| holders.len() == 1), "{all:?}");
    let next = after(&mut job, up(2, 2));
    let all = carried_out(&mut job, next, &[]);
    assert!(
        sets(&all).iter().all(|(_, _, holders)| holders.len() == 2) && !sets(&all).is_empty(),
        "{all:?}"
    );
    assert!(job.sets.of.values().all(|set| set.holders.len() == 2), "{:?}", job.sets);
}

#[test]
fn without_waves_files_get_a_replica() {
    let mut job = job(Protocol::Auto, 2, 3, 2, 1);
    in_sets(&mut job, 1);
    let all = after(&mut job, Fact::OnlyLogs);
    let sent = all
        .iter()
        .filter(|command| matches!(command, Command::Replicate { .. }));
    assert_eq!(sent.count(), 2, "{all:?}");
    assert!(job.sets.of.is_empty() && all.iter().any(|command| matches!(command, Command::CollectSet { .. })));
}

#[test]
fn a_resumed_job_makes_lost_images_from_the_sets_that_it_finds() {
    let plan = Plan {
        parity: Some(Parity { data: 2, parity: 1 }),
        ..with_partners(Protocol::Blocking, 2)
    };
    let former = |files: Vec<u64>, node: Node| super::super::Former {
        asked: 1,
        places: files
            .iter()
            .map(|file| (*file, BTreeSet::from([Place::Node(node)])))
            .collect(),
        files,
        ..Default::default()
    };
    let set = FormerSet {
        number: 1,
        set: 7,
        members: vec![0, 1],
        pieces: vec![(0, 2)],
    };
    let resumed = Coordinator::resume(plan, vec![former(vec![1], 0), former(vec![], 0)], []);
    let mut job = resumed.with_sets(vec![set]);
    (0..3).for_each(|node| drop(after(&mut job, up(node, 2))));
    after(&mut job, Fact::Placed { nodes: vec![0, 1] });
    let all = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(rebuilds(&all), [(1, 1, vec![(0, 0)], vec![(0, 2)])]);
}

#[test]
fn no_pieces_are_made_of_images_that_come_to_be_on_one_node() {
    let mut job = job(Protocol::Blocking, 2, 4, 2, 1);
    let made = sets(&in_sets(&mut job, 1));
    let [(_, members, holders)] = &made[..] else {
        panic!("{made:?}")
    };
    assert_eq!(members[..], [0, 1]);
    // Its piece is lost: the files go to another holder. Meanwhile node 1 still has a copy of the other's file.
    let first = holders[0];
    let asked = after(&mut job, Fact::Down { node: first });
    let sent = asked
        .iter()
        .filter(|command| matches!(command, Command::Replicate { .. }));
    assert_eq!(sent.count(), 2, "{asked:?}");
    after(&mut job, stored(0, 1, Place::Node(1)));
    // Now that is the only one.
    after(&mut job, Fact::Down { node: 0 });
    let second = 5 - first;
    let all = [0, 1]
        .map(|rank| after(&mut job, stored(rank, 1, Place::Node(second))))
        .concat();
    assert_eq!(sets(&all), [], "{all:?}");
}

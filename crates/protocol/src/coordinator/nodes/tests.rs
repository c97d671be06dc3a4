mod moving;
mod returning;

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::tests::{after, begins, copied, ended, file_lost, image, plan, spawned, stopped, wave};
use super::super::{Fact, Former, Plan};
use super::*;
use crate::group::formation::Grouping;
use crate::group::{Groups, Turn};
use crate::kinds::Protocol;

/// So that of three nodes the next one gets the first two images of each.
const SEED: u64 = 138;

/// The node comes.
pub(in super::super) fn up(node: Node, slots: u32) -> Fact {
    let (spare, rack) = (false, None);
    Fact::Up {
        node,
        slots,
        spare,
        rack,
    }
}

pub(in super::super) fn replicate(rank: Rank, number: u64, from: Node, to: Node) -> Command {
    Command::Replicate { rank, number, from, to }
}

/// A job of which every rank runs, on these nodes of `slots` each; `of`: the node of each rank.
pub(in super::super) fn launched(plan: Plan, nodes: &[Node], slots: u32, of: &[Node]) -> Coordinator {
    let mut job = Coordinator::new(plan);
    for node in nodes {
        after(&mut job, up(*node, slots));
    }
    after(&mut job, Fact::Placed { nodes: of.to_vec() });
    let begun = after(&mut job, Fact::Launched);
    assert_eq!(on(&begun), of.iter().map(|node| (*node, None)).collect::<Vec<_>>());
    (0..of.len() as Rank).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 1 })));
    job
}

/// The nodes on which ranks begin, with those from which they read, in order.
pub(in super::super) fn on(commands: &[Command]) -> Vec<(Node, Option<Node>)> {
    let on = commands.iter().filter_map(|command| match command {
        Command::Begin { node, reads, .. } => Some((*node, *reads)),
        _ => None,
    });
    on.collect()
}

pub(in super::super) fn with_partners(protocol: Protocol, ranks: usize) -> Plan {
    Plan {
        replicas: 1,
        parity: None,
        seed: SEED,
        ..plan(protocol, ranks, true)
    }
}

/// What lies in memory, or beside files.
#[rustfmt::skip]
fn logs_of(number: u64) -> Command { Command::LogsOfWave { number, only_files: false } }

pub(in super::super) fn stored(rank: Rank, number: u64, place: Place) -> Fact {
    Fact::Stored { rank, number, place }
}

/// Both ranks' files of a wave are written, and their partners have them.
fn wave_with_partners(job: &mut Coordinator, number: u64, partners: [Node; 2]) -> Vec<Command> {
    wave(job, number);
    let mut last = Vec::new();
    for (rank, to) in (0..).zip(partners) {
        let written = after(job, Fact::Written { rank, number });
        assert_eq!(written, [replicate(rank, number, job.node(rank), to)]);
        last = after(job, stored(rank, number, Place::Node(to)));
    }
    last
}

#[test]
fn all_ranks_of_a_lost_node_have_failed_and_begin_again_elsewhere() {
    let mut job = launched(plan(Protocol::Pessimistic, 4, false), &[0, 1, 2], 3, &[0, 1, 1, 2]);
    after(&mut job, ended(1, 1));
    let lost = after(&mut job, Fact::Down { node: 1 });
    let ranks = vec![2];
    assert_eq!(lost, [Command::Lost { node: 1, ranks }], "rank 1 had failed before");
    assert_eq!(after(&mut job, ended(2, 1)), [], "that is old news");
    let one = after(&mut job, Fact::Restart { rank: 1 });
    let other = after(&mut job, Fact::Restart { rank: 2 });
    assert_eq!((on(&one), on(&other)), (vec![(0, None)], vec![(2, None)]));
}

#[test]
fn the_group_of_a_lost_node_returns_with_all_that_its_logs_hold() {
    let (units, moves) = (Groups::new(vec![1, 1, 2, 2]), true);
    let plan = plan(Protocol::Hierarchical, 4, false);
    let mut job = launched(Plan { units, moves, ..plan }, &[0, 1, 2], 2, &[0, 0, 1, 1]);
    after(&mut job, Fact::Down { node: 1 });
    let all = after(&mut job, Fact::Return { rank: 2 });
    assert_eq!((on(&all), job.is_alive(3)), (vec![(2, None); 2], true));
    assert!(!all.iter().any(|command| matches!(command, Command::CutInside { .. })));
}

#[test]
fn a_process_that_fails_alone_begins_again_on_its_node() {
    let mut job = launched(plan(Protocol::Pessimistic, 2, false), &[0, 1], 9, &[0, 1]);
    after(&mut job, ended(1, 1));
    assert_eq!(on(&after(&mut job, Fact::Restart { rank: 1 })), [(1, None)]);
}

#[test]
fn copies_go_with_their_node_and_the_wave_with_them() {
    let mut job = launched(plan(Protocol::Blocking, 2, false), &[0, 1], 2, &[0, 1]);
    wave(&mut job, 1);
    let lost = after(&mut job, Fact::Down { node: 1 });
    assert!(lost.contains(&Command::EndCopy { rank: 0, number: 1 }), "{lost:?}");
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert!(all.contains(&Command::Reset));
    assert_eq!(
        (begins(&all), on(&all)),
        (vec![(0, From::Beginning), (1, From::Beginning)], vec![(0, None); 2])
    );
}

#[test]
fn a_wave_under_way_is_dropped_with_a_node() {
    let mut job = launched(plan(Protocol::Blocking, 2, false), &[0, 1], 2, &[0, 1]);
    after(&mut job, Fact::Wanted { unit: 0 });
    (0..2).for_each(|rank| drop(after(&mut job, stopped(rank, 1))));
    (0..2).for_each(|rank| {
        drop(after(
            &mut job,
            Fact::Drained {
                rank,
                number: 1,
                moved: 0,
            },
        ))
    });
    after(&mut job, copied(1, 1));
    let lost = after(&mut job, Fact::Down { node: 1 });
    let why = Why::NodeLost;
    assert!(lost.contains(&Command::Dropped { rank: 1, why }), "{lost:?}");
    assert_eq!(after(&mut job, copied(0, 1)), [Command::EndCopy { rank: 0, number: 1 }]);
}

#[test]
fn all_return_to_the_newest_wave_whose_files_can_still_be_read() {
    let mut job = launched(plan(Protocol::Blocking, 2, true), &[0, 1], 2, &[0, 1]);
    for number in [1, 2] {
        wave(&mut job, number);
        after(&mut job, stored(0, number, Place::Everywhere));
        after(&mut job, Fact::Written { rank: 1, number });
    }
    after(&mut job, stored(1, 1, Place::Everywhere));
    after(&mut job, Fact::Down { node: 1 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
    assert_eq!(on(&all), [(0, None); 2], "both can read the first wave");
}

#[test]
fn a_file_counts_when_the_partner_has_it() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 1, &[0, 1]);
    wave_with_partners(&mut job, 1, [1, 2]);
    assert_eq!(job.waves_in_files(0), [1]);
    wave(&mut job, 2);
    for (rank, to) in [(0, 1), (1, 2)] {
        let replicate = replicate(rank, 2, rank, to);
        assert_eq!(after(&mut job, Fact::Written { rank, number: 2 }), [replicate]);
    }
    after(&mut job, stored(0, 2, Place::Node(1)));
    assert_eq!(job.waves_in_files(0), [1]);
    let busy = after(&mut job, Fact::Wanted { unit: 0 });
    assert!(matches!(busy[..], [Command::Dropped { why: Why::Writing, .. }]));
    // The second wave of rank 1 is on node 1 only.
    after(&mut job, Fact::Down { node: 1 });
    after(&mut job, stored(1, 2, Place::Node(2)));
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
    assert_eq!(on(&all), [(0, None), (2, None)]);
}

#[test]
fn a_file_is_read_from_the_node_that_has_it() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 1, &[0, 2]);
    wave_with_partners(&mut job, 1, [1, 0]);
    after(&mut job, Fact::Down { node: 2 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(begins(&all), [(0, From::Copy(1)), (1, From::File(1))]);
    assert_eq!(on(&all), [(0, None), (1, Some(0))]);
}

#[test]
fn what_a_life_has_read_is_on_its_node_although_all_others_that_had_it_are_lost() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 2]);
    wave_with_partners(&mut job, 1, [1, 0]);
    after(&mut job, Fact::Down { node: 2 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(on(&all), [(0, None), (1, Some(0))]);
    after(&mut job, Fact::Started { rank: 1, life: 2 });
    after(&mut job, Fact::Down { node: 0 });
    after(&mut job, Fact::Ready { rank: 1, life: 2 });
    let again = after(&mut job, ended(1, 2));
    assert_eq!(begins(&again), [(0, From::File(1)), (1, From::File(1))]);
    assert_eq!(on(&again), [(1, None), (1, None)]);
}

#[test]
fn a_life_does_not_bring_back_the_file_that_it_has_read_and_that_has_been_collected() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 1]);
    wave(&mut job, 1);
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    after(&mut job, stored(0, 1, Place::Node(1)));
    let gone = |rank| Fact::CopyLost {
        rank,
        number: 1,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, gone(0));
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::Copy(1))]);
    let lost = after(&mut job, gone(1));
    let collects = Command::Collect { rank: 0, number: 1 };
    assert!(lost.contains(&collects), "rank 1 has no image of the wave: {lost:?}");
    after(&mut job, Fact::Started { rank: 0, life: 2 });
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    assert!(!job.images(0).has_file(1));
}

#[test]
fn a_damaged_file_is_read_from_the_partner_and_then_from_nowhere() {
    let plan = with_partners(Protocol::Pessimistic, 1);
    let mut job = launched(plan, &[0, 1], 1, &[0]);
    image(&mut job, 0, 1);
    after(&mut job, stored(0, 1, Place::Node(1)));
    let gone = Fact::CopyLost {
        rank: 0,
        number: 1,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, gone);
    after(&mut job, ended(0, 1));
    let own = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!((begins(&own), on(&own)), (vec![(0, From::File(1))], vec![(0, None)]));
    after(&mut job, file_lost(0, 1));
    let other = after(&mut job, Fact::NotBegun { rank: 0, life: 2 });
    assert_eq!(
        (begins(&other), on(&other)),
        (vec![(0, From::File(1))], vec![(0, Some(1))])
    );
    let lost = after(&mut job, file_lost(0, 1));
    assert!(lost.contains(&Command::Collect { rank: 0, number: 1 }), "{lost:?}");
    let nowhere = after(&mut job, Fact::NotBegun { rank: 0, life: 3 });
    assert_eq!(begins(&nowhere), [(0, From::Beginning)]);
}

#[test]
fn what_was_to_go_to_a_lost_partner_goes_to_the_next() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 0]);
    wave(&mut job, 1);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Written { rank, number: 1 })));
    let lost = after(&mut job, Fact::Down { node: 1 });
    for rank in 0..2 {
        assert!(lost.contains(&replicate(rank, 1, 0, 2)), "{lost:?}");
    }
    assert_eq!(after(&mut job, stored(0, 1, Place::Node(1))), [], "it is gone");
    after(&mut job, Fact::Down { node: 2 });
    assert_eq!(job.waves_in_files(0), [1], "there is nobody else who could have it");
}

#[test]
fn what_a_lost_partner_had_goes_to_the_next() {
    let mut job = launched(with_partners(Protocol::ChannelMemory, 2), &[0, 1, 2], 2, &[0, 1]);
    for (rank, to) in [(0, 1), (1, 2)] {
        image(&mut job, rank, 1);
        after(&mut job, stored(rank, 1, Place::Node(to)));
    }
    let lost = after(&mut job, Fact::Down { node: 1 });
    assert!(lost.contains(&replicate(0, 1, 0, 2)), "{lost:?}");
    after(&mut job, stored(0, 1, Place::Node(2)));
    // So does what a rank begins from on another node.
    let moved = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(on(&moved), [(2, None)]);
    let began = after(&mut job, Fact::Started { rank: 1, life: 2 });
    assert_eq!(began, [replicate(1, 1, 2, 0)]);
    after(&mut job, stored(1, 1, Place::Node(0)));
    after(&mut job, Fact::Down { node: 2 });
    let again = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(
        (begins(&again), on(&again)),
        (vec![(1, From::File(1))], vec![(0, None)])
    );
}

#[test]
fn nothing_is_forgotten_before_partners_have_two_images() {
    let mut job = launched(with_partners(Protocol::Pessimistic, 1), &[0, 1], 1, &[0]);
    for number in [1, 2] {
        assert_eq!(image(&mut job, 0, number), [replicate(0, number, 0, 1)]);
        let forgets = Command::Forget { rank: 0, before: 1 };
        let expected = if number == 2 { vec![forgets] } else { vec![] };
        assert_eq!(after(&mut job, stored(0, number, Place::Node(1))), expected);
    }
    after(&mut job, Fact::Down { node: 0 });
    let moved = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!(
        (begins(&moved), on(&moved)),
        (vec![(0, From::File(2))], vec![(1, None)])
    );
}

#[test]
fn a_rank_whose_images_are_all_lost_cannot_begin_and_the_cause_is_told() {
    let mut job = launched(plan(Protocol::Pessimistic, 1, true), &[0, 1], 1, &[0]);
    (1..=2).for_each(|number| drop(image(&mut job, 0, number)));
    after(&mut job, Fact::Down { node: 0 });
    let nowhere = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!(nowhere, [Command::Fail(Cause::NoImage(0))]);
}

#[test]
fn without_a_node_the_job_fails_once() {
    let mut job = launched(plan(Protocol::Blocking, 2, false), &[0], 2, &[0, 0]);
    after(&mut job, Fact::Down { node: 0 });
    let all = after(&mut job, Fact::Return { rank: 0 });
    let fails = all.iter().filter(|command| matches!(command, Command::Fail(_)));
    assert_eq!(fails.collect::<Vec<_>>(), [&Command::Fail(Cause::NoNode)]);
    assert_eq!(on(&all), []);
}

#[test]
fn a_node_that_is_lost_while_all_return_makes_them_return_again() {
    let mut job = launched(plan(Protocol::Blocking, 3, false), &[0, 1, 2], 2, &[0, 1, 2]);
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    after(&mut job, ended(1, 1));
    // The last awaited file goes with its node.
    let all = after(&mut job, Fact::Down { node: 2 });
    assert_eq!(on(&all), [(0, None), (1, None), (0, None)]);
    let ranks = vec![];
    assert_eq!(all.last(), Some(&Command::Lost { node: 2, ranks }));
}

#[test]
fn an_image_that_is_lost_while_what_was_in_transit_is_read_is_not_begun_from() {
    let former = |files: Vec<u64>| Former {
        asked: 4,
        files,
        ..Former::default()
    };
    let plan = plan(Protocol::ChandyLamport, 2, true);
    let mut job = Coordinator::resume(plan, vec![former(vec![3, 4]), former(vec![3, 4])], [3, 4]);
    for node in 0..2 {
        after(&mut job, up(node, 1));
    }
    after(&mut job, Fact::Placed { nodes: vec![0, 1] });
    after(&mut job, Fact::GoOn { together: false });
    after(&mut job, file_lost(1, 4));
    let again = after(&mut job, Fact::TransitKnown { number: 4 });
    assert_eq!(again, [Command::ReadTransit { number: 3 }]);
    let all = after(&mut job, Fact::TransitKnown { number: 3 });
    assert_eq!(begins(&all), [(0, From::File(3)), (1, From::File(3))]);
    assert_eq!(
        on(&all),
        [(0, None), (1, None)],
        "what a former job has written is for all"
    );
}

#[test]
fn a_resumed_job_reads_files_where_they_are() {
    let former = |places: &[Node]| Former {
        asked: 7,
        files: vec![7],
        places: BTreeMap::from([(7, places.iter().map(|node| Place::Node(*node)).collect())]),
        ..Former::default()
    };
    let resumed = || {
        let ranks = vec![former(&[0, 1]), former(&[1]), former(&[1, 2])];
        let mut job = Coordinator::resume(plan(Protocol::Blocking, 3, true), ranks, []);
        for node in 0..3 {
            after(&mut job, up(node, 1));
        }
        after(&mut job, Fact::Placed { nodes: vec![1, 0, 2] });
        job
    };
    let mut job = resumed();
    let all = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(begins(&all), [0, 1, 2].map(|rank| (rank, From::File(7))));
    assert_eq!(on(&all), [(1, None), (0, Some(1)), (2, None)]);
    // The only one that has a file is lost.
    let mut job = resumed();
    after(&mut job, Fact::Down { node: 1 });
    let all = after(&mut job, Fact::GoOn { together: true });
    assert!(all.contains(&Command::Fail(Cause::NoWave)), "{all:?}");
}

#[test]
fn ranks_that_are_added_go_where_most_slots_are_free() {
    let mut job = launched(plan(Protocol::None, 2, false), &[0, 1], 2, &[0, 0]);
    let added = after(&mut job, spawned(3));
    assert_eq!(on(&added), [(1, None), (1, None), (0, None)]);
    after(&mut job, up(5, 1));
    assert_eq!(on(&after(&mut job, spawned(1))), [(5, None)]);
}

#[test]
fn nobody_is_asked_again_before_all_have_answered() {
    let mut job = launched(plan(Protocol::ChandyLamport, 2, false), &[0, 1], 1, &[0, 1]);
    let mut tell = |fact| {
        job.handle(fact, Duration::ZERO);
        std::iter::from_fn(|| job.poll()).collect::<Vec<_>>()
    };
    let asked = tell(Fact::Wanted { unit: 0 });
    assert!(matches!(asked[..], [Command::Survey { number: 1, .. }]), "{asked:?}");
    let (rank, why) = (0, Why::Taking);
    assert_eq!(tell(Fact::Wanted { unit: 0 }), [Command::Dropped { rank, why }]);
    let lost = tell(Fact::Down { node: 1 });
    let (rank, why) = (1, Why::NodeLost);
    assert!(lost.contains(&Command::Dropped { rank, why }), "{lost:?}");
}

/// A job of two ranks that logs messages has had two waves, and loses the second rank's node. Returns the commands when
/// rank 0 has ended, too.
fn logs_lost_after_two_waves() -> (Coordinator, Vec<Command>) {
    let mut job = launched(with_partners(Protocol::Auto, 2), &[0, 1, 2], 1, &[0, 1]);
    wave_with_partners(&mut job, 1, [1, 2]);
    wave_with_partners(&mut job, 2, [1, 2]);
    after(&mut job, Fact::Down { node: 1 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    (job, all)
}

#[test]
fn logs_that_are_lost_begin_anew_with_what_the_wave_needs_and_older_images_go() {
    let (mut job, all) = logs_lost_after_two_waves();
    assert_eq!(begins(&all), [(0, From::Copy(2)), (1, From::File(2))]);
    assert_eq!(on(&all), [(0, None), (2, None)]);
    let logs = all.iter().position(|command| *command == logs_of(2));
    let first = all.iter().position(|command| matches!(command, Command::Begin { .. }));
    assert!(logs.is_some() && logs < first, "{all:?}");
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    let gone = after(&mut job, Fact::Ready { rank: 1, life: 2 });
    for rank in 0..2 {
        assert!(gone.contains(&Command::Collect { rank, number: 1 }), "{gone:?}");
    }
    // The logs are there now, and each rank cuts its own off, as ever.
    after(&mut job, Fact::Return { rank: 0 });
    after(&mut job, ended(0, 2));
    let next = after(&mut job, ended(1, 2));
    assert_eq!(begins(&next), [(0, From::Copy(2)), (1, From::File(2))]);
    assert!(!next.contains(&logs_of(2)), "{next:?}");
}

/// Messages logged before the wave are lost.
#[test]
fn nobody_begins_alone_at_the_beginning_when_logs_have_begun_anew_behind_it() {
    let (mut job, _) = logs_lost_after_two_waves();
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Ready { rank, life: 2 })));
    let (rank, number, reason) = (0, 2, String::new());
    let lost = Fact::CopyLost {
        rank,
        number,
        stored: false,
        reason: reason.clone(),
    };
    after(&mut job, lost);
    after(&mut job, Fact::FileLost { rank, number, reason });
    after(&mut job, ended(0, 2));
    let next = after(&mut job, Fact::Restart { rank });
    assert!(next.contains(&Command::CannotRecoverAlone { rank }), "{next:?}");
}

#[test]
fn logs_that_are_lost_are_put_back_by_each_attempt_to_return() {
    let (mut job, _) = logs_lost_after_two_waves();
    after(&mut job, ended(1, 2));
    let again = after(&mut job, ended(0, 2));
    assert!(again.contains(&logs_of(2)), "{again:?}");
}

#[test]
fn logs_that_are_lost_are_put_back_from_an_older_wave_if_the_newest_cannot_be_used() {
    let (mut job, _) = logs_lost_after_two_waves();
    after(&mut job, file_lost(1, 2));
    after(&mut job, Fact::NotBegun { rank: 1, life: 2 });
    let again = after(&mut job, ended(0, 2));
    assert!(again.contains(&logs_of(1)), "{again:?}");
    assert_eq!(begins(&again), [(0, From::File(1)), (1, From::File(1))]);
}

#[test]
fn a_job_that_logs_goes_on_from_a_wave_with_what_lies_beside_its_images() {
    let former = Former {
        asked: 7,
        begun: true,
        files: vec![6, 7],
        ..Former::default()
    };
    let plan = with_partners(Protocol::Auto, 2);
    let mut job = Coordinator::resume(plan, vec![former.clone(), former], []);
    let begun = after(&mut job, Fact::GoOn { together: true });
    assert!(begun.contains(&logs_of(7)), "{begun:?}");
    assert_eq!(begins(&begun), [(0, From::File(7)), (1, From::File(7))]);
}

#[test]
fn logs_that_are_lost_with_all_images_begin_anew_empty() {
    let mut job = launched(with_partners(Protocol::Auto, 2), &[0, 1, 2], 1, &[0, 1]);
    wave(&mut job, 1);
    after(&mut job, Fact::Down { node: 1 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(begins(&all), [(0, From::Beginning), (1, From::Beginning)]);
    assert!(all.contains(&Command::Reset) && !job.nodes.logs_lost, "{all:?}");
}

#[test]
fn what_only_one_node_has_after_a_loss_goes_to_another_again() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 1, &[0, 2]);
    wave_with_partners(&mut job, 1, [1, 0]);
    // Rank 1 begins on node 1 from what node 0 has; rank 0's node has its image still, and node 1, too.
    after(&mut job, Fact::Down { node: 2 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(on(&all), [(0, None), (1, Some(0))]);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 2 })));
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    let go = after(&mut job, Fact::Ready { rank: 1, life: 2 });
    let is_sent = |command: &Command| matches!(command, Command::Replicate { .. });
    assert!(!go.iter().any(is_sent), "both images are on two nodes: {go:?}");
    // So the next loss is survived, too.
    after(&mut job, up(3, 1));
    after(&mut job, Fact::Down { node: 0 });
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 2));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
    assert_eq!(on(&all), [(3, Some(1)), (1, None)]);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 3 })));
    after(&mut job, Fact::Ready { rank: 0, life: 3 });
    let go = after(&mut job, Fact::Ready { rank: 1, life: 3 });
    let sent: Vec<&Command> = go.iter().filter(|command| is_sent(command)).collect();
    let (rank, number, to) = (1, 1, 3);
    assert_eq!(sent, [&replicate(rank, number, 1, to)]);
    after(&mut job, stored(rank, number, Place::Node(to)));
    // A node without ranks that had a file.
    after(&mut job, up(4, 0));
    assert!(
        after(&mut job, Fact::Down { node: 4 })
            .iter()
            .all(|command| !is_sent(command))
    );
}

/// All ranks of two nodes are copied. Those of node 1 leave, and both have ended to go on from there.
fn leaving(job: &mut Coordinator) -> Vec<Command> {
    assert_eq!(after(job, Fact::Leave { node: 1 }), [], "it waits for a wave");
    wave(job, 1);
    let mut last = Vec::new();
    (0..2).for_each(|rank| last = after(job, ended(rank, 1)));
    last
}

#[test]
fn ranks_leave_a_node_from_a_fresh_wave() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 1]);
    assert_eq!(
        leaving(&mut job),
        [],
        "nobody begins before the image of rank 1 is elsewhere"
    );
    let written = after(&mut job, Fact::Written { rank: 1, number: 1 });
    assert_eq!(written, [replicate(1, 1, 1, 2)]);
    let all = after(&mut job, stored(1, 1, Place::Node(2)));
    assert_eq!(begins(&all), vec![(0, From::Copy(1)), (1, From::File(1))]);
    assert_eq!(on(&all), [(0, None), (2, None)]);
    let ends = Command::EndCopy { rank: 1, number: 1 };
    assert!(
        all.contains(&Command::Left { node: 1 }) && all.contains(&ends),
        "{all:?}"
    );
    // Nor does a rank come back, or leave an image there.
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    let lost = after(&mut job, Fact::Down { node: 1 });
    let ranks = vec![];
    assert!(
        lost.contains(&Command::Lost { node: 1, ranks }) && on(&lost).is_empty(),
        "{lost:?}"
    );
}

#[test]
fn a_node_that_cannot_be_left_keeps_its_ranks() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1], 2, &[0, 1]);
    leaving(&mut job);
    let reason = "no room".to_string();
    let (rank, number) = (1, 1);
    let all = after(&mut job, Fact::NotWritten { rank, number, reason });
    assert_eq!(on(&all), [(0, None), (1, None)]);
    assert_eq!(
        begins(&all),
        vec![(0, From::Copy(1)), (1, From::Copy(1))],
        "nothing is lost"
    );
    assert!(
        all.iter()
            .any(|command| matches!(command, Command::Stays { node: 1, .. }))
    );
    let other = after(&mut job, Fact::Leave { node: 0 });
    assert_eq!(other, [], "node 1 is there for its ranks");
}

/// A job of two groups, of one rank each: both are copied, and rank 1 leaves its node.
fn leaving_in_groups() -> Coordinator {
    let plan = Plan {
        groups: Grouping::Static { size: 1 },
        groups_at_once: 1,
        ends_count: false,
        ..with_partners(Protocol::Group, 2)
    };
    let mut job = launched(plan, &[0, 1, 2], 2, &[0, 1]);
    after(&mut job, Fact::Leave { node: 1 });
    after(&mut job, Fact::Wanted { unit: 0 });
    for rank in 0..2 {
        after(&mut job, stopped(rank, 1));
        let turn = Turn {
            wave: 1,
            group: rank + 1,
        };
        after(&mut job, Fact::Noticed { rank: 1 - rank, turn });
        for moved in [1, 0] {
            after(&mut job, Fact::Drained { rank, number: 1, moved });
        }
        after(&mut job, copied(rank, 1));
    }
    after(&mut job, ended(0, 1));
    job
}

#[test]
fn nobody_begins_before_those_who_leave_have_had_their_turn_to_write() {
    let mut job = leaving_in_groups();
    assert_eq!(after(&mut job, ended(1, 1)), [], "rank 0 writes, and rank 1 has yet to");
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    let next = after(&mut job, stored(0, 1, Place::Node(2)));
    assert!(next.contains(&Command::Write { rank: 1, number: 1 }), "{next:?}");
    after(&mut job, Fact::Written { rank: 1, number: 1 });
    let all = after(&mut job, stored(1, 1, Place::Node(2)));
    assert_eq!(on(&all), [(0, None), (2, None)]);
}

#[test]
fn nobody_waits_for_an_image_whose_copy_was_lost_before_its_turn_to_be_written() {
    let mut job = leaving_in_groups();
    let (rank, number, is_stored, reason) = (1, 1, false, String::new());
    after(
        &mut job,
        Fact::CopyLost {
            rank,
            number,
            stored: is_stored,
            reason,
        },
    );
    after(&mut job, ended(1, 1));
    after(&mut job, Fact::Written { rank: 0, number });
    let all = after(&mut job, stored(0, number, Place::Node(2)));
    assert_eq!(begins(&all), [(0, From::Beginning), (1, From::Beginning)]);
    assert!(!job.writes(1));
}

#[test]
fn a_node_that_is_left_takes_its_logs_along() {
    let mut job = launched(with_partners(Protocol::Auto, 2), &[0, 1, 2], 2, &[0, 1]);
    leaving(&mut job);
    after(&mut job, Fact::Written { rank: 1, number: 1 });
    let all = after(&mut job, stored(1, 1, Place::Node(2)));
    assert!(all.contains(&logs_of(1)), "{all:?}");
    assert_eq!(begins(&all), [(0, From::Copy(1)), (1, From::File(1))]);
}

#[test]
fn a_node_stays_until_all_have_begun_that_read_from_it() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 1]);
    leaving(&mut job);
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    after(&mut job, stored(0, 1, Place::Node(1)));
    after(&mut job, Fact::Written { rank: 1, number: 1 });
    after(&mut job, Fact::Down { node: 0 });
    let all = after(&mut job, stored(1, 1, Place::Node(2)));
    assert_eq!(on(&all), [(2, Some(1)), (2, None)]);
    assert!(!all.contains(&Command::Left { node: 1 }), "{all:?}");
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 2 })));
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    let last = after(&mut job, Fact::Ready { rank: 1, life: 2 });
    assert!(last.contains(&Command::Left { node: 1 }), "{last:?}");
}

#[test]
fn the_loss_of_another_node_ends_no_wait_for_ever() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1, 2], 2, &[0, 1]);
    leaving(&mut job);
    after(&mut job, Fact::Written { rank: 1, number: 1 });
    let lost = after(&mut job, Fact::Down { node: 2 });
    assert!(lost.contains(&replicate(1, 1, 1, 0)), "{lost:?}");
    let all = after(&mut job, stored(1, 1, Place::Node(0)));
    assert_eq!(on(&all), [(0, None), (0, None)]);
}

#[test]
fn a_node_without_ranks_is_left_at_once_and_the_last_one_never() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1], 2, &[0, 0]);
    assert_eq!(after(&mut job, Fact::Leave { node: 1 }), [Command::Left { node: 1 }]);
    let last = after(&mut job, Fact::Leave { node: 0 });
    assert!(matches!(last[..], [Command::Stays { node: 0, .. }]), "{last:?}");
}

use super::super::nodes::tests::{launched as on_nodes, up, with_partners};
use super::super::tests::{after, begins, ended, file_lost, wave};
use super::super::{Cause, Fact, Plan};
use super::*;
use crate::Node;
use crate::kinds::Protocol;

/// Two ranks on nodes 0 and 1 with partners; all nodes have room.
fn launched(protocol: Protocol, nodes: &[Node]) -> Coordinator {
    let replicas = u32::from(!nodes.is_empty());
    let mut job = Coordinator::new(Plan {
        replicas,
        ..with_partners(protocol, 2)
    });
    for node in nodes {
        after(&mut job, up(*node, 2));
    }
    if replicas > 0 {
        after(&mut job, Fact::Placed { nodes: vec![0, 1] });
    }
    after(&mut job, Fact::Launched);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 1 })));
    job
}

/// A wave in files; where there are nodes, each rank's is on the next one, too.
fn in_files(job: &mut Coordinator, number: u64) {
    in_files_at(job, number, |rank| rank + 1)
}

/// A wave in files, which other nodes have, too.
fn in_files_at(job: &mut Coordinator, number: u64, partner: impl Fn(Rank) -> Node) {
    wave(job, number);
    for rank in 0..job.ranks.len() as Rank {
        after(job, Fact::Written { rank, number });
        let place = Place::Node(partner(rank));
        after(job, Fact::Stored { rank, number, place });
    }
    assert_eq!(job.waves_in_files(0).first(), Some(&number));
}

fn fetches(commands: &[Command]) -> Vec<(Rank, u64, Node)> {
    let fetches = commands.iter().filter_map(|command| match command {
        Command::Fetch { rank, number, to } => Some((*rank, *number, *to)),
        _ => None,
    });
    fetches.collect()
}

fn fetched(rank: Rank, number: u64, node: Node) -> Fact {
    let place = Place::Node(node);
    Fact::Fetched { rank, number, place }
}

fn not_fetched(rank: Rank, number: u64) -> Fact {
    let reason = "it is damaged".to_string();
    Fact::NotFetched { rank, number, reason }
}

/// Both nodes with the images of rank 1 are lost; all of its files are elsewhere, if anywhere.
fn lose_two(job: &mut Coordinator) -> Vec<Command> {
    after(job, Fact::Down { node: 1 });
    after(job, Fact::Return { rank: 1 });
    after(job, Fact::Down { node: 2 });
    after(job, ended(0, 1))
}

/// Four nodes have two waves; places have these.
fn with_two_waves(protocol: Protocol, beyond: &[u64]) -> Coordinator {
    let mut job = launched(protocol, &[0, 1, 2, 3]);
    (1..=2).for_each(|number| in_files(&mut job, number));
    let waves = beyond.to_vec();
    after(&mut job, Fact::Beyond { waves });
    job
}

#[test]
fn a_node_gets_what_no_node_has_and_then_all_begin() {
    let mut job = with_two_waves(Protocol::Blocking, &[1, 2]);
    let all = lose_two(&mut job);
    assert_eq!((fetches(&all), begins(&all)), (vec![(1, 2, 3)], vec![]), "{all:?}");
    let all = after(&mut job, fetched(1, 2, 3));
    assert_eq!(begins(&all), [(0, From::Copy(2)), (1, From::File(2))]);
    assert!(!all.iter().any(|command| matches!(command, Command::Replicate { .. })));
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    let all = after(&mut job, Fact::Ready { rank: 1, life: 2 });
    // It is like any other file now: the job survives the next loss.
    let replicated = |command: &Command| matches!(command, Command::Replicate { rank: 1, from: 3, .. });
    assert!(all.iter().any(replicated), "{all:?}");
}

#[test]
fn without_a_place_all_begin_at_the_beginning() {
    let mut job = launched(Protocol::Blocking, &[0, 1, 2, 3]);
    in_files(&mut job, 1);
    let all = lose_two(&mut job);
    assert!(all.contains(&Command::Reset) && fetches(&all).is_empty(), "{all:?}");
}

#[test]
fn what_is_on_nodes_is_taken_first() {
    let mut job = with_two_waves(Protocol::Blocking, &[1, 2]);
    after(&mut job, Fact::Down { node: 1 });
    after(&mut job, Fact::Return { rank: 1 });
    let all = after(&mut job, ended(0, 1));
    assert_eq!(begins(&all), [(0, From::Copy(2)), (1, From::File(2))]);
    assert!(fetches(&all).is_empty());
}

#[test]
fn an_older_wave_does_if_the_newer_cannot_be_read() {
    let mut job = with_two_waves(Protocol::Blocking, &[1, 2]);
    lose_two(&mut job);
    let all = after(&mut job, not_fetched(1, 2));
    assert_eq!(fetches(&all), [(1, 1, 3)], "{all:?}");
    let all = after(&mut job, fetched(1, 1, 3));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
    let all = after(&mut job, fetched(1, 2, 3));
    assert_eq!(all, [Command::Collect { rank: 1, number: 2 }], "that comes too late");
}

#[test]
fn an_image_whose_node_is_lost_on_its_way_goes_to_another_one() {
    let mut job = launched(Protocol::Blocking, &[0, 1, 2, 3, 4]);
    in_files(&mut job, 1);
    after(&mut job, Fact::Beyond { waves: vec![1] });
    let all = lose_two(&mut job);
    let (_, _, to) = fetches(&all)[0];
    let all = after(&mut job, Fact::Down { node: to });
    let again = fetches(&all);
    assert!(again.len() == 1 && again[0].2 != to, "{all:?}");
    assert!(
        begins(&after(&mut job, Fact::Down { node: 0 })).is_empty(),
        "rank 0 needs its image, too"
    );
    assert!(begins(&after(&mut job, fetched(1, 1, again[0].2))).is_empty());
    let all = after(&mut job, fetched(0, 1, again[0].2));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
}

#[test]
fn what_a_place_gave_and_cannot_be_used_is_not_asked_for_again() {
    let mut job = launched(Protocol::Blocking, &[]);
    wave(&mut job, 1);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Written { rank, number: 1 })));
    after(&mut job, Fact::Beyond { waves: vec![1] });
    let gone = |rank| Fact::CopyLost {
        rank,
        number: 1,
        stored: true,
        reason: "it has ended".to_string(),
    };
    (0..2).for_each(|rank| drop(after(&mut job, gone(rank))));
    after(&mut job, Fact::Return { rank: 0 });
    (0..2).for_each(|rank| drop(after(&mut job, ended(rank, 1))));
    after(&mut job, file_lost(1, 1));
    after(&mut job, Fact::NotBegun { rank: 1, life: 2 });
    let all = after(&mut job, ended(0, 2));
    assert_eq!(fetches(&all), [(1, 1, 0)], "{all:?}");
    after(&mut job, fetched(1, 1, 0));
    after(&mut job, file_lost(1, 1));
    after(&mut job, Fact::NotBegun { rank: 1, life: 3 });
    let all = after(&mut job, ended(0, 3));
    assert!(all.contains(&Command::Reset) && fetches(&all).is_empty(), "{all:?}");
}

#[test]
fn waves_of_a_course_that_was_left_are_not_taken() {
    let mut job = with_two_waves(Protocol::Blocking, &[1]);
    let all = lose_two(&mut job);
    assert_eq!(fetches(&all), [(1, 1, 3)]);
    after(&mut job, fetched(1, 1, 3));
    // It was on its way to the place before.
    after(&mut job, Fact::Beyond { waves: vec![1, 2] });
    after(&mut job, Fact::Down { node: 3 });
    let all = after(&mut job, ended(0, 2));
    assert_eq!(fetches(&all), [(1, 1, 0)], "{all:?}");
}

#[test]
fn with_logs_all_have_their_files_and_the_logs_come_from_these() {
    let mut job = with_two_waves(Protocol::Auto, &[2]);
    let all = lose_two(&mut job);
    assert_eq!(fetches(&all), [(1, 2, 3)], "{all:?}");
    let all = after(&mut job, fetched(1, 2, 3));
    let (number, only_files) = (2, true);
    assert!(all.contains(&Command::LogsOfWave { number, only_files }), "{all:?}");
}

#[test]
fn images_of_single_ranks_are_no_waves() {
    let mut job = launched(Protocol::Auto, &[0, 1, 2, 3]);
    in_files(&mut job, 1);
    after(&mut job, Fact::Beyond { waves: vec![1] });
    after(&mut job, Fact::OnlyLogs);
    after(&mut job, Fact::WavesAgain);
    let all = lose_two(&mut job);
    assert!(all.contains(&Command::Reset) && fetches(&all).is_empty(), "{all:?}");
}

#[test]
fn a_node_on_which_all_begin_is_lost_and_that_is_one_attempt_also_if_images_are_fetched_again() {
    const RANKS: u32 = 12;
    let mut job = on_nodes(
        with_partners(Protocol::Blocking, RANKS as usize),
        &[1, 2, 3],
        RANKS,
        &[1; RANKS as usize],
    );
    in_files_at(&mut job, 1, |_| 2);
    after(&mut job, Fact::Beyond { waves: vec![1] });
    after(&mut job, Fact::Down { node: 2 });
    after(&mut job, Fact::Down { node: 1 });
    let all = after(&mut job, Fact::Return { rank: 0 });
    let to_node = |node: Node| (0..RANKS).map(|rank| (rank, 1, node)).collect::<Vec<_>>();
    assert_eq!(fetches(&all), to_node(3), "{all:?}");
    let all: Vec<Command> = (0..RANKS)
        .flat_map(|rank| after(&mut job, fetched(rank, 1, 3)))
        .collect();
    assert_eq!(begins(&all).len(), RANKS as usize);

    after(&mut job, up(4, RANKS));
    let all = after(&mut job, Fact::Down { node: 3 });
    assert!(!all.contains(&Command::Fail(Cause::NotBroughtBack)), "{all:?}");
    assert_eq!(fetches(&all), to_node(4), "{all:?}");
    let all: Vec<Command> = (0..RANKS)
        .flat_map(|rank| after(&mut job, fetched(rank, 1, 4)))
        .collect();
    assert_eq!(begins(&all).len(), RANKS as usize);
}

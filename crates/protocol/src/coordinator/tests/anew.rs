//! A life has nothing to begin from, and what it would repeat is forgotten: all ranks begin again.

use super::super::nodes::tests::{launched as launched_on, on, stored, with_partners};
use super::*;

fn anew(plan: Plan) -> Plan {
    Plan {
        begins_anew: true,
        ..plan
    }
}

/// Two groups of two ranks, with images in memory.
fn groups() -> Plan {
    Plan {
        units: Groups::consecutive(4, 2),
        ..plan(Protocol::Hierarchical, 4, false)
    }
}

/// A wave of a group, whose ranks forget what came before.
fn wave_of(job: &mut Coordinator, unit: usize, number: u64) {
    after(job, Fact::Wanted { unit });
    let ranks = job.members(unit).to_vec();
    for rank in ranks.iter().copied() {
        after(job, stopped(rank, number));
    }
    for rank in ranks.iter().copied() {
        after(job, Fact::Drained { rank, number, moved: 0 });
    }
    let copies = ranks.iter().flat_map(|rank| after(job, copied(*rank, number)));
    let forgets = copies.filter(|command| matches!(command, Command::Forget { .. }));
    assert_eq!(forgets.count(), 2);
}

fn copy_lost(rank: Rank, number: u64) -> Fact {
    Fact::CopyLost {
        rank,
        number,
        stored: false,
        reason: String::new(),
    }
}

/// The group of ranks 0 and 1 returns, and no wave of it is left. What follows.
fn first_group_returns(job: &mut Coordinator) -> Vec<Command> {
    after(job, copy_lost(0, 1));
    after(job, ended(1, 1));
    assert_eq!(
        after(job, Fact::Return { rank: 1 }),
        [Command::Kill { rank: 0, life: 1 }]
    );
    after(job, ended(0, 1))
}

fn all_at_the_beginning(ranks: Rank) -> Vec<(Rank, From)> {
    (0..ranks).map(|rank| (rank, From::Beginning)).collect()
}

/// Where all ranks' state begins anew, among these commands; no rank begins before that.
fn reset_comes_first(commands: &[Command]) {
    let reset = commands.iter().position(|command| *command == Command::Reset);
    let undo = commands
        .iter()
        .position(|command| *command == Command::Undo { number: 0 });
    assert!(undo < reset, "{commands:?}");
    let first = commands
        .iter()
        .position(|command| matches!(command, Command::Begin { .. }));
    assert!(reset.is_some() && reset < first, "{commands:?}");
}

#[test]
fn a_group_without_a_wave_takes_all_groups_to_the_beginning() {
    let mut job = launched(anew(groups()));
    (0..2).for_each(|unit| wave_of(&mut job, unit, 1));
    let kills = [2, 3].map(|rank| Command::Kill { rank, life: 1 });
    assert_eq!(first_group_returns(&mut job), kills);
    assert_eq!(after(&mut job, ended(3, 1)), [], "one is left");
    let all = after(&mut job, ended(2, 1));
    assert_eq!(begins(&all), all_at_the_beginning(4));
    reset_comes_first(&all);
    let ends = [2, 3].map(|rank| Command::EndCopy { rank, number: 1 });
    assert!(ends.iter().all(|end| all.contains(end)), "{all:?}");
    for unit in 0..2 {
        assert!(all.contains(&Command::Returned { unit, wave: 0 }), "{all:?}");
    }
    assert!((0..4).all(|rank| !job.is_returning(rank)));
    // Nothing is forgotten now: a group returns alone.
    (0..4).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 2 })));
    after(&mut job, ended(0, 2));
    after(&mut job, Fact::Return { rank: 0 });
    let alone = after(&mut job, ended(1, 2));
    assert_eq!(begins(&alone), all_at_the_beginning(2));
    assert!(!alone.contains(&Command::Reset));
}

#[test]
fn what_another_group_has_begun_from_its_wave_ends_again() {
    let mut job = launched(anew(groups()));
    (0..2).for_each(|unit| wave_of(&mut job, unit, 1));
    after(&mut job, ended(2, 1));
    after(&mut job, Fact::Return { rank: 2 });
    let from_wave = after(&mut job, ended(3, 1));
    assert_eq!(begins(&from_wave), [(2, From::Copy(1)), (3, From::Copy(1))]);
    let kills = [2, 3].map(|rank| Command::Kill { rank, life: 2 });
    assert_eq!(first_group_returns(&mut job), kills);
    assert_eq!(after(&mut job, Fact::Ready { rank: 2, life: 2 }), []);
    assert_eq!(after(&mut job, ended(2, 2)), []);
    let all = after(&mut job, Fact::NotBegun { rank: 3, life: 2 });
    assert_eq!(begins(&all), all_at_the_beginning(4));
    reset_comes_first(&all);
}

#[test]
fn ranks_that_have_ended_begin_again_with_the_others() {
    let mut job = launched(anew(groups()));
    (0..2).for_each(|unit| wave_of(&mut job, unit, 1));
    for rank in [2, 3] {
        let orderly = true;
        after(&mut job, Fact::Ended { rank, life: 1, orderly });
    }
    let all = first_group_returns(&mut job);
    assert_eq!(begins(&all), all_at_the_beginning(4));
    reset_comes_first(&all);
}

#[test]
fn a_job_that_must_not_begin_anew_fails() {
    let mut job = launched(groups());
    (0..2).for_each(|unit| wave_of(&mut job, unit, 1));
    assert_eq!(first_group_returns(&mut job), [Command::Fail(Cause::NoGroupWave(0))]);
    // A resumed one must stay the same.
    let former = || Former {
        asked: 1,
        files: vec![1],
        ..Former::default()
    };
    let ranks = (0..4).map(|_| former()).collect();
    let mut job = Coordinator::resume(anew(groups()), ranks, []);
    after(&mut job, file_lost(0, 1));
    let all = after(&mut job, Fact::GoOn { together: false });
    assert!(all.contains(&Command::Fail(Cause::NoGroupWave(0))), "{all:?}");
    assert!(!all.contains(&Command::Reset));
}

/// Each of two ranks has two images in files, and the older one's past is forgotten.
fn with_images(plan: Plan) -> Coordinator {
    let mut job = launched(plan);
    for rank in 0..2 {
        image(&mut job, rank, 1);
        let forgets = Command::Forget { rank, before: 1 };
        assert!(image(&mut job, rank, 2).contains(&forgets));
    }
    job
}

/// Rank 0 fails, and has lost its images. What follows.
fn first_rank_fails(job: &mut Coordinator) -> Vec<Command> {
    after(job, copy_lost(0, 2));
    (1..=2).for_each(|number| drop(after(job, file_lost(0, number))));
    after(job, ended(0, 1));
    after(job, Fact::Restart { rank: 0 })
}

#[test]
fn a_rank_whose_messages_are_forgotten_takes_all_to_the_beginning() {
    let mut job = with_images(anew(plan(Protocol::ChannelMemory, 2, true)));
    after(&mut job, Fact::Wanted { unit: 1 });
    let dropped = Command::Dropped {
        rank: 1,
        why: Why::Again,
    };
    let kill = Command::Kill { rank: 1, life: 1 };
    assert_eq!(first_rank_fails(&mut job), [dropped, kill]);
    // It has failed meanwhile, and is told of.
    assert_eq!(after(&mut job, Fact::Restart { rank: 0 }), []);
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), all_at_the_beginning(2));
    reset_comes_first(&all);
    let others = [1, 2].map(|number| Command::Collect { rank: 1, number });
    assert!(others.iter().all(|collect| all.contains(collect)), "{all:?}");
    assert!(all.contains(&Command::Returned { unit: 0, wave: 0 }));
    // From now on each begins alone, again.
    after(&mut job, Fact::Started { rank: 1, life: 2 });
    after(&mut job, ended(1, 2));
    let alone = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(begins(&alone), [(1, From::Beginning)]);
    assert!(!alone.contains(&Command::Reset));
}

#[test]
fn an_image_that_is_being_written_is_given_up() {
    let mut job = with_images(anew(plan(Protocol::ChannelMemory, 2, true)));
    after(&mut job, Fact::Wanted { unit: 1 });
    after(&mut job, stopped(1, 3));
    after(&mut job, copied(1, 3));
    first_rank_fails(&mut job);
    let all = after(&mut job, ended(1, 1));
    let reason = "all ranks begin again".to_string();
    let (rank, number) = (1, 3);
    assert!(all.contains(&Command::NotWritten { rank, number, reason }), "{all:?}");
    assert_eq!(begins(&all), all_at_the_beginning(2));
}

#[test]
fn a_rank_that_is_about_to_end_is_not_asked_for_an_image() {
    let mut job = with_images(anew(plan(Protocol::ChannelMemory, 2, true)));
    job.handle(Fact::Wanted { unit: 1 }, NOW);
    let survey = |command: &Command| match command {
        Command::Survey { number, .. } => Some(*number),
        _ => None,
    };
    let number = std::iter::from_fn(|| job.poll()).find_map(|command| survey(&command));
    let kill = Command::Kill { rank: 1, life: 1 };
    assert_eq!(first_rank_fails(&mut job), [kill]);
    let dropped = Command::Dropped {
        rank: 1,
        why: Why::Again,
    };
    assert_eq!(after(&mut job, surveyed(1, number.unwrap())), [dropped]);
    after(&mut job, ended(1, 1));
    // Its next life is.
    after(&mut job, Fact::Started { rank: 1, life: 2 });
    let asked = after(&mut job, Fact::Wanted { unit: 1 });
    assert!(matches!(asked[..], [Command::Ask { rank: 1, .. }]), "{asked:?}");
}

/// Logs lie on nodes alone. Ranks 0 and 1 are on node 0, ranks 2 and 3 on node 1.
fn of_logs(protocol: Protocol) -> Plan {
    let units = match protocol {
        Protocol::Hierarchical => Groups::consecutive(4, 2),
        _ => Groups::one(4),
    };
    Plan {
        units,
        ..anew(plan(protocol, 4, false))
    }
}

#[test]
fn a_node_that_takes_logs_along_takes_all_to_the_beginning() {
    for protocol in [Protocol::Pessimistic, Protocol::Causal, Protocol::Hierarchical] {
        let mut job = launched_on(of_logs(protocol), &[0, 1, 2], 2, &[0, 0, 1, 1]);
        let lost = after(&mut job, Fact::Down { node: 0 });
        let kills = lost.iter().filter(|command| matches!(command, Command::Kill { .. }));
        let of_lost = Command::Lost {
            node: 0,
            ranks: vec![0, 1],
        };
        assert_eq!((kills.count(), lost.contains(&of_lost)), (2, true), "{lost:?}");
        after(&mut job, ended(2, 1));
        // The spare node as well, before all have ended, and one that has no ranks.
        assert_eq!(begins(&after(&mut job, Fact::Down { node: 2 })), []);
        let all = after(&mut job, ended(3, 1));
        assert_eq!(begins(&all), all_at_the_beginning(4));
        assert_eq!(on(&all), [(1, None); 4]);
        reset_comes_first(&all);
    }
}

#[test]
fn a_group_stays_together_when_all_begin_again() {
    let mut job = launched_on(of_logs(Protocol::Hierarchical), &[0, 1, 2, 3], 2, &[0, 0, 1, 1]);
    after(&mut job, Fact::Down { node: 0 });
    after(&mut job, ended(2, 1));
    // The second rank would have more room on node 3.
    assert_eq!(
        on(&after(&mut job, ended(3, 1))),
        [(2, None), (2, None), (1, None), (1, None)]
    );
}

#[test]
fn a_node_is_lost_whose_ranks_have_all_finished() {
    let mut job = launched_on(of_logs(Protocol::Pessimistic), &[0, 1, 2], 2, &[0, 0, 1, 1]);
    for rank in [0, 1] {
        let orderly = true;
        after(&mut job, Fact::Ended { rank, life: 1, orderly });
    }
    // Others may need their messages.
    after(&mut job, Fact::Down { node: 0 });
    after(&mut job, ended(2, 1));
    assert_eq!(begins(&after(&mut job, ended(3, 1))), all_at_the_beginning(4));
}

#[test]
fn a_node_without_ranks_takes_nothing_along() {
    let mut job = launched_on(of_logs(Protocol::Causal), &[0, 1, 2], 2, &[0, 0, 1, 1]);
    let lost = after(&mut job, Fact::Down { node: 2 });
    assert!(
        !lost.iter().any(|command| matches!(command, Command::Kill { .. })),
        "{lost:?}"
    );
}

#[test]
fn with_spawned_ranks_there_is_no_beginning_for_all() {
    let mut job = with_images(anew(plan(Protocol::ChannelMemory, 2, true)));
    after(&mut job, spawned(1));
    assert_eq!(first_rank_fails(&mut job), [Command::Fail(Cause::NoImage(0))]);
}

#[test]
fn a_node_is_lost_together_with_the_one_that_has_its_images() {
    let plan = anew(with_partners(Protocol::ChannelMemory, 2));
    let mut job = launched_on(plan, &[0, 1, 2], 2, &[0, 1]);
    for number in [1, 2] {
        image(&mut job, 0, number);
        after(&mut job, stored(0, number, Place::Node(1)));
    }
    (0..2).for_each(|node| drop(after(&mut job, Fact::Down { node })));
    let all = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!(begins(&all), all_at_the_beginning(2));
    assert_eq!(on(&all), [(2, None), (2, None)]);
    reset_comes_first(&all);
    assert_eq!(after(&mut job, Fact::Restart { rank: 1 }), [], "it has begun");
}

/// A lost node takes logs along: ranks go on elsewhere, alone or with their groups.
fn that_moves(protocol: Protocol) -> Plan {
    let plan = anew(with_partners(protocol, 2));
    let units = match protocol {
        Protocol::Hierarchical => Groups::consecutive(2, 1),
        _ => plan.units.clone(),
    };
    Plan {
        units,
        moves: true,
        ..plan
    }
}

/// Two images of rank 0, on nodes 0 and 1.
fn two_images(job: &mut Coordinator, protocol: Protocol) {
    for number in [1, 2] {
        match protocol {
            Protocol::Hierarchical => {
                after(job, Fact::Wanted { unit: 0 });
                after(job, stopped(0, number));
                let (rank, moved) = (0, 0);
                after(job, Fact::Drained { rank, number, moved });
                after(job, copied(0, number));
                after(job, Fact::Written { rank, number });
            }
            _ => _ = image(job, 0, number),
        }
        after(job, stored(0, number, Place::Node(1)));
    }
}

/// Both nodes are lost at once, and the dispatcher says what it says then. What follows from that.
fn both_are_lost(job: &mut Coordinator, protocol: Protocol) -> Vec<Command> {
    (0..2).for_each(|node| drop(after(job, Fact::Down { node })));
    let of = |rank| match protocol {
        Protocol::Hierarchical => Fact::Return { rank },
        _ => Fact::Restart { rank },
    };
    [0, 1].into_iter().flat_map(|rank| after(job, of(rank))).collect()
}

#[test]
fn all_nodes_with_images_of_a_rank_are_lost_with_its_logs() {
    for protocol in [Protocol::Pessimistic, Protocol::Causal, Protocol::Hierarchical] {
        let mut job = launched_on(that_moves(protocol), &[0, 1, 2], 2, &[0, 1]);
        two_images(&mut job, protocol);
        let all = both_are_lost(&mut job, protocol);
        assert_eq!(begins(&all), all_at_the_beginning(2), "{protocol:?}");
        assert_eq!(on(&all), [(2, None), (2, None)]);
        reset_comes_first(&all);
        // After that each begins alone, at the beginning.
        (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 2 })));
        after(&mut job, ended(0, 2));
        let alone = match protocol {
            Protocol::Hierarchical => after(&mut job, Fact::Return { rank: 0 }),
            _ => after(&mut job, Fact::Restart { rank: 0 }),
        };
        assert_eq!(begins(&alone), [(0, From::Beginning)]);
        assert!(!alone.contains(&Command::Reset));
    }
}

#[test]
fn with_spawned_ranks_the_job_ends_and_names_the_rank() {
    for protocol in [Protocol::Pessimistic, Protocol::Hierarchical] {
        let mut job = launched_on(that_moves(protocol), &[0, 1, 2], 2, &[0, 1]);
        two_images(&mut job, protocol);
        after(&mut job, spawned(1));
        let all = both_are_lost(&mut job, protocol);
        let cause = match protocol {
            Protocol::Hierarchical => Cause::NoGroupWave(0),
            _ => Cause::NoImage(0),
        };
        assert!(all.contains(&Command::Fail(cause)), "{all:?}");
        assert!(!all.contains(&Command::Reset));
    }
}

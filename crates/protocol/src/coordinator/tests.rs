mod anew;
mod ends;
mod suspending;

use std::time::Duration;

use super::*;
use crate::group::formation::Grouping;

const NOW: Duration = Duration::from_secs(100);

pub(super) fn plan(protocol: Protocol, ranks: usize, files: bool) -> Plan {
    Plan {
        protocol,
        units: Groups::one(ranks),
        groups: Grouping::One,
        files,
        replicas: 0,
        parity: None,
        seed: 0,
        moves: false,
        keeps_logs: false,
        kept: KEPT,
        local_copies: true,
        groups_at_once: 1,
        ends_count: false,
        begins_anew: false,
    }
}

/// A job of which every rank runs.
pub(super) fn launched(plan: Plan) -> Coordinator {
    let ranks = plan.units.ranks() as Rank;
    let mut coordinator = Coordinator::new(plan);
    after(&mut coordinator, Fact::Launched);
    (0..ranks).for_each(|rank| drop(after(&mut coordinator, Fact::Started { rank, life: 1 })));
    coordinator
}

/// The commands after this fact. Surveyed ranks are live.
pub(super) fn after(coordinator: &mut Coordinator, fact: Fact) -> Vec<Command> {
    coordinator.handle(fact, NOW);
    let mut commands = Vec::new();
    while let Some(command) = coordinator.poll() {
        match command {
            Command::Survey { number, ranks, .. } => {
                for rank in ranks {
                    coordinator.handle(surveyed(rank, number), NOW);
                }
            }
            command => commands.push(command),
        }
    }
    commands
}

/// So many ranks are new, anywhere.
pub(super) fn spawned(ranks: usize) -> Fact {
    let on = vec![Vec::new(); ranks];
    Fact::Spawned { on }
}

pub(super) fn surveyed(rank: Rank, number: u64) -> Fact {
    Fact::Surveyed {
        rank,
        number,
        state: State::Live,
        held: 0,
        sent: Vec::new(),
    }
}

pub(super) fn file_lost(rank: Rank, number: u64) -> Fact {
    let reason = "it is damaged".to_string();
    Fact::FileLost { rank, number, reason }
}

pub(super) fn stopped(rank: Rank, number: u64) -> Fact {
    Fact::Stopped {
        rank,
        number,
        accounted: true,
    }
}

pub(super) fn copied(rank: Rank, number: u64) -> Fact {
    Fact::Copied {
        rank,
        number,
        sleeps: true,
        stood: Duration::from_millis(1),
    }
}

pub(super) fn ended(rank: Rank, life: u64) -> Fact {
    Fact::Ended {
        rank,
        life,
        orderly: false,
    }
}

/// A wave of the first unit under `blocking`, up to its last copy.
pub(super) fn wave(coordinator: &mut Coordinator, number: u64) -> Vec<Command> {
    let ranks = coordinator.members(0).to_vec();
    after(coordinator, Fact::Wanted { unit: 0 });
    ranks
        .iter()
        .for_each(|rank| drop(after(coordinator, stopped(*rank, number))));
    for rank in ranks.iter().copied() {
        let drained = Fact::Drained { rank, number, moved: 0 };
        after(coordinator, drained);
    }
    let copies = ranks.iter().map(|rank| after(coordinator, copied(*rank, number)));
    copies.last().unwrap_or_default()
}

/// A rank's own image, up to its file.
pub(super) fn image(coordinator: &mut Coordinator, rank: Rank, number: u64) -> Vec<Command> {
    after(coordinator, Fact::Wanted { unit: rank as usize });
    after(coordinator, stopped(rank, number));
    after(coordinator, copied(rank, number));
    after(coordinator, Fact::Written { rank, number })
}

pub(super) fn begins(commands: &[Command]) -> Vec<(Rank, From)> {
    let begins = commands.iter().filter_map(|command| match command {
        Command::Begin { rank, from, .. } => Some((*rank, *from)),
        _ => None,
    });
    begins.collect()
}

#[test]
fn nothing_is_forgotten_before_two_files_are_complete() {
    let mut job = launched(plan(Protocol::Pessimistic, 1, true));
    assert_eq!(image(&mut job, 0, 1), []);
    let forgets = Command::Forget { rank: 0, before: 1 };
    assert_eq!(image(&mut job, 0, 2), [forgets]);
    let collects = Command::Collect { rank: 0, number: 1 };
    let forgets = Command::Forget { rank: 0, before: 2 };
    assert_eq!(image(&mut job, 0, 3), [collects, forgets]);
}

#[test]
fn a_life_begins_from_its_copy_then_from_its_files_and_never_from_before_them() {
    let mut job = launched(plan(Protocol::Pessimistic, 1, true));
    (1..=2).for_each(|number| drop(image(&mut job, 0, number)));
    after(&mut job, ended(0, 1));
    let copy = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!(begins(&copy), [(0, From::Copy(2))]);
    let lost = Fact::CopyLost {
        rank: 0,
        number: 2,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, lost);
    let file = after(&mut job, Fact::NotBegun { rank: 0, life: 2 });
    assert_eq!(begins(&file), [(0, From::File(2))]);
    after(&mut job, file_lost(0, 2));
    let older = after(&mut job, Fact::NotBegun { rank: 0, life: 3 });
    assert_eq!(begins(&older), [(0, From::File(1))]);
    after(&mut job, file_lost(0, 1));
    let nothing = after(&mut job, Fact::NotBegun { rank: 0, life: 4 });
    assert_eq!(nothing, [Command::Fail(Cause::NoImage(0))]);
}

#[test]
fn an_image_that_is_not_complete_when_the_next_life_begins_never_is() {
    let mut job = launched(plan(Protocol::Pessimistic, 1, true));
    after(&mut job, Fact::Wanted { unit: 0 });
    after(&mut job, stopped(0, 1));
    let writes = Fact::Copied {
        rank: 0,
        number: 1,
        sleeps: false,
        stood: Duration::ZERO,
    };
    after(&mut job, writes);
    after(&mut job, ended(0, 1));
    let again = after(&mut job, Fact::Restart { rank: 0 });
    assert!(again.contains(&Command::GiveUp { rank: 0, number: 1 }));
    assert_eq!(begins(&again), [(0, From::Beginning)]);
    assert_eq!(after(&mut job, Fact::Written { rank: 0, number: 1 }), []);
}

#[test]
fn what_is_told_of_a_former_life_changes_nothing() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    wave(&mut job, 1);
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    assert_eq!(after(&mut job, ended(0, 1)), [], "it has been told");
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), [(0, From::Copy(1)), (1, From::Copy(1))]);
    after(&mut job, Fact::Ready { rank: 0, life: 2 });
    assert_eq!(after(&mut job, Fact::Ready { rank: 1, life: 1 }), []);
    let go = after(&mut job, Fact::Ready { rank: 1, life: 2 });
    let returned = Command::Returned { unit: 0, wave: 1 };
    assert_eq!(go, [returned, Command::Go { rank: 0 }, Command::Go { rank: 1 }]);
}

#[test]
fn there_are_never_two_waves_at_once() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    assert_eq!(after(&mut job, Fact::Wanted { unit: 0 }).len(), 3);
    let second = after(&mut job, Fact::Wanted { unit: 0 });
    assert!(matches!(second[..], [Command::Dropped { why: Why::Absent, .. }]));
}

#[test]
fn the_wave_before_goes_when_the_next_is_complete() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    let first = wave(&mut job, 1);
    assert!(!first.iter().any(|command| matches!(command, Command::EndCopy { .. })));
    let second = wave(&mut job, 2);
    for rank in 0..2 {
        assert!(second.contains(&Command::EndCopy { rank, number: 1 }));
    }
}

#[test]
fn a_rank_that_ends_drops_the_wave_and_what_was_not_yet_told_of_it() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    job.handle(Fact::Wanted { unit: 0 }, NOW);
    assert!(matches!(job.poll(), Some(Command::Survey { number: 1, .. })));
    (0..2).for_each(|rank| job.handle(surveyed(rank, 1), NOW));
    let refused = Fact::Refused {
        rank: 0,
        number: 1,
        reason: "no".to_string(),
    };
    assert!(matches!(job.poll(), Some(Command::Waves { .. })));
    assert!(matches!(job.poll(), Some(Command::Ask { rank: 0, .. })));
    let dropped = after(&mut job, refused);
    assert!(!dropped.iter().any(|command| matches!(command, Command::Ask { .. })));
    assert!(dropped.contains(&Command::Abandon { rank: 1, number: 1 }));
    assert_eq!(after(&mut job, copied(1, 1)), [Command::EndCopy { rank: 1, number: 1 }]);
}

#[test]
fn nobody_waits_longer_for_a_rank_than_patience_lasts() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    assert_eq!(job.due(), None);
    after(&mut job, Fact::Wanted { unit: 0 });
    after(&mut job, stopped(0, 1));
    let due = job.due().expect("a wave is awaited");
    job.handle(Fact::Due, due);
    let dropped = std::iter::from_fn(|| job.poll()).find(|command| matches!(command, Command::Dropped { .. }));
    let why = Why::Silent(Duration::from_secs(10));
    assert_eq!(dropped, Some(Command::Dropped { rank: 1, why }));
    assert_eq!(job.due(), None);
}

#[test]
fn all_begin_from_the_newest_wave_of_which_all_have_their_images() {
    let mut job = launched(plan(Protocol::Blocking, 2, true));
    wave(&mut job, 1);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Written { rank, number: 1 })));
    wave(&mut job, 2);
    after(&mut job, Fact::Written { rank: 0, number: 2 });
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let lost = Fact::CopyLost {
        rank: 1,
        number: 2,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, lost);
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::File(1))]);
    assert!(all.contains(&Command::EndCopy { rank: 0, number: 2 }));
}

#[test]
fn a_wave_whose_transit_cannot_be_read_is_none() {
    let former = |files: Vec<u64>| Former {
        asked: 4,
        files,
        ..Former::default()
    };
    let ranks = vec![former(vec![3, 4]), former(vec![3, 4])];
    let mut job = Coordinator::resume(plan(Protocol::ChandyLamport, 2, true), ranks, [3, 4]);
    assert_eq!(
        after(&mut job, Fact::GoOn { together: false }),
        [Command::GoOn, Command::ReadTransit { number: 4 }]
    );
    let lost = |number| Fact::TransitLost {
        number,
        reason: "damaged".to_string(),
    };
    let older = after(&mut job, lost(4));
    assert!(older.contains(&Command::Collect { rank: 1, number: 4 }));
    assert!(older.contains(&Command::ReadTransit { number: 3 }));
    let none = after(&mut job, lost(3));
    assert_eq!(
        none.last(),
        Some(&Command::Fail(Cause::NoWave)),
        "it begins nowhere else"
    );
}

#[test]
fn a_wave_that_one_rank_cannot_write_is_in_no_file_and_the_one_before_stays() {
    let mut job = launched(plan(Protocol::Blocking, 2, true));
    wave(&mut job, 1);
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Written { rank, number: 1 })));
    wave(&mut job, 2);
    after(&mut job, Fact::Written { rank: 0, number: 2 });
    let full = Fact::NotWritten {
        rank: 1,
        number: 2,
        reason: "no space".to_string(),
    };
    let commands = after(&mut job, full);
    assert!(commands.contains(&Command::Collect { rank: 0, number: 2 }));
    assert_eq!(job.waves_in_files(0), [1]);
}

#[test]
fn a_wave_stays_that_some_have_in_files_only_and_others_asleep_only() {
    let mut job = launched(plan(Protocol::Blocking, 2, true));
    wave(&mut job, 1);
    after(&mut job, Fact::Written { rank: 0, number: 1 });
    let (rank, number) = (0, 1);
    let lost = Fact::CopyLost {
        rank,
        number,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, lost);
    let reason = "no space".to_string();
    let commands = after(
        &mut job,
        Fact::NotWritten {
            rank: 1,
            number,
            reason,
        },
    );
    assert!(!commands.contains(&Command::Collect { rank, number }), "{commands:?}");
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), [(0, From::File(1)), (1, From::Copy(1))]);
    // The next wave in files takes its place.
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Started { rank, life: 2 })));
    (0..2).for_each(|rank| drop(after(&mut job, Fact::Ready { rank, life: 2 })));
    let mut last = wave(&mut job, 2);
    (0..2).for_each(|rank| last.extend(after(&mut job, Fact::Written { rank, number: 2 })));
    assert!(last.contains(&Command::Collect { rank, number }), "{last:?}");
}

#[test]
fn a_wave_that_all_return_to_is_written_down_anew_if_a_newer_one_was() {
    let plan = Plan {
        local_copies: false,
        ..plan(Protocol::Blocking, 2, true)
    };
    let mut job = launched(plan);
    for number in [1, 2] {
        wave(&mut job, number);
        let last = (0..2)
            .map(|rank| after(&mut job, Fact::Written { rank, number }))
            .last();
        let records = Command::Record {
            wave: number,
            oldest: 1,
        };
        assert!(last.is_some_and(|last| last.contains(&records)));
    }
    let return_from = |job: &mut Coordinator, life: u64| {
        after(job, file_lost(1, if life == 2 { 2 } else { 1 }));
        after(job, Fact::NotBegun { rank: 1, life });
        after(job, ended(0, life))
    };
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let newest = after(&mut job, ended(1, 1));
    assert_eq!(
        newest.first(),
        Some(&Command::Undo { number: 2 }),
        "before anything begins"
    );
    assert_eq!(begins(&newest), [(0, From::File(2)), (1, From::File(2))]);
    let is_record = |command: &Command| matches!(command, Command::Record { .. } | Command::ForgetRecord);
    assert!(!newest.iter().any(is_record), "{newest:?}");
    let older = return_from(&mut job, 2);
    assert!(older.contains(&Command::Undo { number: 1 }));
    assert_eq!(begins(&older), [(0, From::File(1)), (1, From::File(1))]);
    assert!(
        !older.iter().any(is_record),
        "that wave may be unusable, too: {older:?}"
    );
    after(&mut job, Fact::Ready { rank: 0, life: 3 });
    let gone_on = after(&mut job, Fact::Ready { rank: 1, life: 3 });
    assert_eq!(
        gone_on.iter().find(|command| is_record(command)),
        Some(&Command::Record { wave: 1, oldest: 1 })
    );
    after(&mut job, ended(0, 3));
    after(&mut job, Fact::Return { rank: 0 });
    let again = after(&mut job, ended(1, 3));
    assert_eq!(begins(&again), [(0, From::File(1)), (1, From::File(1))]);
    let beginning = return_from(&mut job, 4);
    assert_eq!(begins(&beginning), [(0, From::Beginning), (1, From::Beginning)]);
    assert!(beginning.contains(&Command::ForgetRecord), "{beginning:?}");
}

#[test]
fn a_resumed_job_that_begins_from_an_older_wave_writes_that_down() {
    let former = Former {
        asked: 4,
        files: vec![3],
        ..Former::default()
    };
    let mut job = Coordinator::resume(plan(Protocol::Blocking, 1, true), vec![former.clone()], []);
    let records = Command::Record { wave: 3, oldest: 3 };
    let begun = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(begins(&begun), [(0, From::File(3))]);
    for (life, is_written) in [(1, false), (2, false), (3, true)] {
        let gone_on = after(&mut job, Fact::Ready { rank: 0, life });
        assert_eq!(gone_on.contains(&records), !is_written, "{gone_on:?}");
        if life == 2 {
            after(&mut job, Fact::Recorded { number: 3 });
        }
        after(&mut job, ended(0, life));
        let again = after(&mut job, Fact::Return { rank: 0 });
        assert!(!begins(&again).is_empty() && !again.contains(&records), "{again:?}");
    }
    let files = vec![3, 4];
    let mut job = Coordinator::resume(plan(Protocol::Blocking, 1, true), vec![Former { files, ..former }], []);
    let begun = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(begins(&begun), [(0, From::File(4))]);
    assert!(
        !begun.iter().any(|command| matches!(command, Command::Record { .. })),
        "{begun:?}"
    );
}

#[test]
fn copies_of_a_wave_end_when_all_are_in_files_where_none_are_to_stay() {
    let plan = Plan {
        local_copies: false,
        ..plan(Protocol::Blocking, 2, true)
    };
    let mut job = launched(plan);
    wave(&mut job, 1);
    assert_eq!(after(&mut job, Fact::Written { rank: 0, number: 1 }), []);
    let ends = |rank| Command::EndCopy { rank, number: 1 };
    let recorded = Command::Record { wave: 1, oldest: 1 };
    assert_eq!(
        after(&mut job, Fact::Written { rank: 1, number: 1 }),
        [ends(0), ends(1), recorded]
    );
}

#[test]
fn only_the_failed_ranks_unit_returns() {
    let plan = Plan {
        units: Groups::consecutive(4, 2),
        ..plan(Protocol::Hierarchical, 4, false)
    };
    let mut job = launched(plan);
    after(&mut job, ended(3, 1));
    assert_eq!(
        after(&mut job, Fact::Return { rank: 3 }),
        [Command::Kill { rank: 2, life: 1 }]
    );
    let all = after(&mut job, ended(2, 1));
    assert_eq!(all[0], Command::CutInside { ranks: vec![2, 3] });
    assert_eq!(begins(&all), [(2, From::Beginning), (3, From::Beginning)]);
    assert!(!job.is_returning(0));
}

#[test]
fn a_return_that_fails_again_and_again_ends_the_job_once() {
    let mut job = launched(plan(Protocol::Blocking, 1, false));
    after(&mut job, Fact::Wanted { unit: 0 });
    after(&mut job, stopped(0, 1));
    let drained = Fact::Drained {
        rank: 0,
        number: 1,
        moved: 0,
    };
    after(&mut job, drained);
    after(&mut job, copied(0, 1));
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let failed: Vec<Command> = (2..20)
        .flat_map(|life| after(&mut job, Fact::NotBegun { rank: 0, life }))
        .filter(|command| matches!(command, Command::Fail(_)))
        .collect();
    assert_eq!(failed, [Command::Fail(Cause::NotBroughtBack)]);
}

#[test]
fn waves_that_are_given_up_and_come_back_have_lost_their_images() {
    let mut job = launched(plan(Protocol::Auto, 2, false));
    wave(&mut job, 1);
    after(&mut job, Fact::OnlyLogs);
    assert!(job.may_begin_again() && !job.has_waves());
    after(&mut job, Fact::Wanted { unit: 1 });
    after(&mut job, stopped(1, 2));
    after(&mut job, copied(1, 2));
    let again = after(&mut job, Fact::WavesAgain);
    assert!(again.contains(&Command::EndCopy { rank: 1, number: 2 }));
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 1));
    assert!(all.contains(&Command::Reset));
    assert_eq!(begins(&all), [(0, From::Beginning), (1, From::Beginning)]);
    assert_eq!(job.asked(0), 2);
}

#[test]
fn when_logs_are_let_go_for_a_rank_it_has_nothing_to_begin_from_before_its_next_image() {
    let mut job = launched(plan(Protocol::Auto, 2, false));
    after(&mut job, Fact::OnlyLogs);
    (0..2).for_each(|rank| drop(image(&mut job, rank, 1)));
    assert!(job.may_let_go(1));
    let let_go = after(&mut job, Fact::LetGo { rank: 1 });
    assert_eq!(
        let_go,
        [Command::EndCopy { rank: 1, number: 1 }, Command::LetGo { rank: 1 }]
    );
    after(&mut job, ended(0, 1));
    let alone = after(&mut job, Fact::Restart { rank: 0 });
    assert_eq!(begins(&alone), [(0, From::Copy(1))]);
    after(&mut job, ended(1, 1));
    let failed = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(failed, [Command::CannotRecoverAlone { rank: 1 }]);
    assert!(!job.may_let_go(1), "it has no process");
}

#[test]
fn logs_are_let_go_only_where_all_can_begin_again() {
    let mut job = launched(plan(Protocol::Pessimistic, 2, false));
    assert_eq!(after(&mut job, Fact::LetGo { rank: 0 }), []);
    let mut job = launched(plan(Protocol::Auto, 2, false));
    after(&mut job, Fact::OnlyLogs);
    after(&mut job, spawned(1));
    assert_eq!(after(&mut job, Fact::LetGo { rank: 0 }), []);
    let mut job = launched(plan(Protocol::Auto, 2, false));
    after(&mut job, Fact::Wanted { unit: 0 });
    assert_eq!(after(&mut job, Fact::LetGo { rank: 0 }), [], "it takes part in a wave");
}

#[test]
fn waves_that_come_back_while_ranks_run_leave_what_ranks_have_alone() {
    let mut job = launched(plan(Protocol::Auto, 2, true));
    after(&mut job, Fact::OnlyLogs);
    (0..2).for_each(|rank| drop(image(&mut job, rank, 1)));
    after(&mut job, Fact::Wanted { unit: 1 });
    let back = after(&mut job, Fact::WavesBack);
    assert!(back.contains(&Command::Abandon { rank: 1, number: 2 }));
    assert!(job.has_waves() && !job.may_begin_again());
    // The copy that was under way is part of nothing.
    assert_eq!(after(&mut job, copied(1, 2)), [Command::EndCopy { rank: 1, number: 2 }]);
    after(&mut job, ended(1, 1));
    let alone = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(begins(&alone), [(1, From::Copy(1))]);
    after(&mut job, Fact::Started { rank: 1, life: 2 });
    wave(&mut job, 3);
    let number = 3;
    let first = after(&mut job, Fact::Written { rank: 0, number });
    let is_collected = |commands: &[Command]| commands.contains(&Command::Collect { rank: 1, number: 1 });
    assert!(!is_collected(&first), "rank 1 has nothing else in a file");
    assert!(is_collected(&after(&mut job, Fact::Written { rank: 1, number })));
    assert_eq!(job.waves_in_files(0), [3]);
}

#[test]
fn images_that_ranks_have_alone_are_no_wave_although_their_numbers_are_equal() {
    let mut job = launched(plan(Protocol::Auto, 2, true));
    after(&mut job, Fact::OnlyLogs);
    (0..2).for_each(|rank| drop(image(&mut job, rank, 1)));
    after(&mut job, Fact::WavesBack);
    assert!(job.waves_in_files(0).is_empty());
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 1));
    assert_eq!(begins(&all), [(0, From::Beginning), (1, From::Beginning)]);
}

#[test]
fn waves_come_back_only_where_they_were_given_up() {
    let mut job = launched(plan(Protocol::Pessimistic, 2, false));
    assert_eq!(after(&mut job, Fact::WavesBack), []);
    let mut job = launched(plan(Protocol::Auto, 2, false));
    after(&mut job, Fact::OnlyLogs);
    after(&mut job, spawned(1));
    assert_eq!(after(&mut job, Fact::WavesBack), []);
}

#[test]
fn a_wave_waits_for_a_rank_that_comes_late_to_mpi() {
    for (state, why, passes) in [
        (State::NotOpened, Why::NotOpened, true),
        (State::Repeats, Why::Repeats, true),
        (State::Filling, Why::Filling, true),
        (State::Writing, Why::Writing, true),
        (State::Closed, Why::Closed, false),
    ] {
        let mut job = launched(plan(Protocol::Auto, 2, false));
        job.handle(Fact::Wanted { unit: 0 }, NOW);
        assert!(matches!(job.poll(), Some(Command::Survey { .. })));
        job.handle(surveyed(0, 1), NOW);
        let late = Fact::Surveyed {
            rank: 1,
            number: 1,
            state,
            held: 0,
            sent: Vec::new(),
        };
        let dropped = after(&mut job, late);
        assert!(why.is_before() && why.is_passing() == passes, "{why}");
        let [Command::Dropped { why: told, .. }] = &dropped[..] else {
            panic!("{dropped:?}");
        };
        assert_eq!(*told, why);
    }
    let said = |reason: &str| Why::Said(reason.to_string());
    assert!(said("it repeats what a former life did").is_passing());
    assert!(said("it is talking to the process manager").is_passing());
    assert!(!said("it has a device open").is_passing());
    let wrapped = said("a wrapper (former life) has started the program as its child. Run it itself");
    assert!(wrapped.is_for_good() && !wrapped.is_passing());
}

#[test]
fn nothing_begins_before_every_rank_has_said_what_it_does() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    job.handle(Fact::Wanted { unit: 0 }, NOW);
    let asked = Command::Survey {
        number: 1,
        ranks: vec![0, 1],
        traffic: false,
    };
    assert_eq!(job.poll(), Some(asked));
    assert_eq!(after(&mut job, surveyed(1, 1)), []);
    assert_eq!(after(&mut job, surveyed(1, 1)), [], "it has said so before");
    assert_eq!(after(&mut job, surveyed(0, 7)), [], "that was another question");
    assert_eq!(after(&mut job, surveyed(0, 1)).len(), 3);
}

#[test]
fn what_ranks_did_does_not_count_once_they_are_halted_or_have_no_waves() {
    let mut job = launched(plan(Protocol::Auto, 1, false));
    job.handle(Fact::Wanted { unit: 0 }, NOW);
    assert!(matches!(job.poll(), Some(Command::Survey { .. })));
    let halted = after(&mut job, Fact::Halt);
    assert_eq!(halted, [Command::Halt, Command::Kill { rank: 0, life: 1 }]);
    let late = after(&mut job, surveyed(0, 1));
    assert!(matches!(late[..], [Command::Dropped { why: Why::Absent, .. }]));
    let mut job = launched(plan(Protocol::Auto, 1, false));
    job.handle(Fact::Wanted { unit: 0 }, NOW);
    assert!(matches!(job.poll(), Some(Command::Survey { .. })));
    let given_up = after(&mut job, Fact::OnlyLogs);
    assert!(matches!(given_up[0], Command::Dropped { why: Why::NoWaves, .. }));
    assert_eq!(after(&mut job, surveyed(0, 1)), []);
}

#[test]
fn groups_are_formed_from_what_ranks_have_sent() {
    let plan = Plan {
        groups: Grouping::Dynamic { size: 1 },
        ..plan(Protocol::Group, 4, false)
    };
    let mut job = launched(plan);
    job.handle(Fact::Wanted { unit: 0 }, NOW);
    assert!(matches!(job.poll(), Some(Command::Survey { traffic: true, .. })));
    let rows = [[0, 0, 9, 0], [0, 0, 0, 1], [0; 4], [0; 4]];
    let mut commands = Vec::new();
    for (rank, row) in (0..).zip(rows) {
        let Fact::Surveyed {
            rank,
            number,
            state,
            held,
            ..
        } = surveyed(rank, 1)
        else {
            unreachable!()
        };
        let sent = row.to_vec();
        commands = after(
            &mut job,
            Fact::Surveyed {
                rank,
                number,
                state,
                held,
                sent,
            },
        );
    }
    assert!(commands.contains(&Command::Groups(Groups::new(vec![1, 2, 1, 2]))));
}

#[test]
fn nothing_begins_while_all_is_halted_although_a_wave_was_being_read() {
    let former = Former {
        files: vec![1],
        ..Former::default()
    };
    let mut job = Coordinator::resume(plan(Protocol::ChandyLamport, 1, true), vec![former], [1]);
    let reads = after(&mut job, Fact::GoOn { together: false });
    assert_eq!(reads.last(), Some(&Command::ReadTransit { number: 1 }));
    after(&mut job, Fact::Halt);
    assert_eq!(after(&mut job, Fact::TransitKnown { number: 1 }), []);
    let again = after(&mut job, Fact::GoOn { together: false });
    assert_eq!(begins(&again), [(0, From::File(1))]);
}

#[test]
fn ranks_that_take_the_places_of_failed_ones_go_where_these_leave_room() {
    use super::nodes::tests::{launched, on, with_partners};

    let mut job = launched(with_partners(Protocol::None, 3), &[0, 1], 2, &[0, 0, 1]);
    for rank in [0, 1] {
        let (life, orderly) = (1, false);
        after(&mut job, Fact::Ended { rank, life, orderly });
    }
    assert_eq!(on(&after(&mut job, spawned(2))), [(0, None), (0, None)]);
    after(&mut job, Fact::Down { node: 0 });
    assert_eq!(on(&after(&mut job, spawned(2))), [(1, None), (1, None)]);
}

//! Ranks that have finished while others go on.

use super::*;

/// Rank 2 of three has finished after the first wave, which is in files.
fn finished(protocol: Protocol) -> Coordinator {
    let mut job = launched(Plan {
        ends_count: true,
        ..plan(protocol, 3, true)
    });
    wave_of(&mut job, &[0, 1, 2], 1);
    finish(&mut job, 2, 1);
    job
}

fn finish(job: &mut Coordinator, rank: Rank, life: u64) -> Vec<Command> {
    let orderly = true;
    after(job, Fact::Ended { rank, life, orderly })
}

/// A wave of which these ranks have images, up to its files. Returns what follows from the last copy, and the rest.
fn wave_of(job: &mut Coordinator, ranks: &[Rank], number: u64) -> (Vec<Command>, Vec<Command>) {
    let asked = after(job, Fact::Wanted { unit: 0 });
    let is_asked = |rank: &Rank| {
        let manner = Manner::Together;
        let (rank, number) = (*rank, number);
        asked.contains(&Command::Ask { rank, number, manner })
    };
    let in_wave: Vec<Rank> = (0..3).filter(is_asked).collect();
    assert_eq!(in_wave, ranks);
    for rank in ranks.iter().copied() {
        after(job, stopped(rank, number));
    }
    for rank in ranks.iter().copied() {
        after(job, Fact::Drained { rank, number, moved: 0 });
    }
    let copies = ranks.iter().map(|rank| after(job, copied(*rank, number)));
    let complete = copies.last().unwrap_or_default();
    let files = ranks.iter().flat_map(|rank| {
        let rank = *rank;
        after(job, Fact::Written { rank, number })
    });
    let files = files.collect();
    (complete, files)
}

/// Rank 0 fails, and the others that run are ended.
fn fail(job: &mut Coordinator, life: u64) -> Vec<Command> {
    after(job, ended(0, life));
    after(job, Fact::Return { rank: 0 });
    after(job, ended(1, life))
}

#[test]
fn an_end_is_the_image_of_every_later_wave() {
    for protocol in [Protocol::Blocking, Protocol::Auto] {
        let mut job = finished(protocol);
        let (complete, files) = wave_of(&mut job, &[0, 1], 2);
        let is_complete = |command: &Command| matches!(command, Command::Complete(wave) if wave.number == 2);
        assert!(complete.iter().any(is_complete));
        assert!(
            complete.contains(&Command::EndCopy { rank: 2, number: 1 }),
            "it is of no use"
        );
        assert!(files.contains(&Command::Record { wave: 2, oldest: 1 }));
        let again = fail(&mut job, 1);
        assert_eq!(begins(&again), [(0, From::Copy(2)), (1, From::Copy(2))]);
        after(&mut job, Fact::Ready { rank: 0, life: 2 });
        let go = after(&mut job, Fact::Ready { rank: 1, life: 2 });
        let returned = Command::Returned { unit: 0, wave: 2 };
        assert_eq!(go, [returned, Command::Go { rank: 0 }, Command::Go { rank: 1 }]);
        assert!(job.has_finished(2) && !job.has_finished(1));
    }
}

#[test]
fn an_end_is_the_image_of_waves_that_stop_no_rank() {
    let mut job = launched(Plan {
        ends_count: true,
        ..plan(Protocol::ChandyLamport, 3, false)
    });
    finish(&mut job, 2, 1);
    let asked = after(&mut job, Fact::Wanted { unit: 0 });
    let is_asked = |rank: Rank| {
        let (number, manner) = (1, Manner::Passing);
        asked.contains(&Command::Ask { rank, number, manner })
    };
    assert!(is_asked(0) && is_asked(1) && !is_asked(2));
    after(&mut job, copied(0, 1));
    let all = after(&mut job, copied(1, 1));
    assert!(all.contains(&Command::TakeTransit { number: 1 }));
    after(&mut job, Fact::TransitKnown { number: 1 });
    let again = fail(&mut job, 1);
    assert!(again.contains(&Command::PutTransit { number: 1 }));
    assert_eq!(begins(&again), [(0, From::Copy(1)), (1, From::Copy(1))]);
}

#[test]
fn an_end_is_done_again_where_all_return_to_a_wave_from_before() {
    let mut job = finished(Protocol::Blocking);
    wave_of(&mut job, &[0, 1], 2);
    let lost = Fact::CopyLost {
        rank: 1,
        number: 2,
        stored: false,
        reason: String::new(),
    };
    after(&mut job, lost);
    after(&mut job, file_lost(1, 2));
    let all = fail(&mut job, 1);
    assert_eq!(begins(&all), [0, 1, 2].map(|rank| (rank, From::File(1))));
    assert!(!job.has_finished(2));
}

#[test]
fn who_has_finished_need_not_end_when_ranks_fail_on_their_way_back() {
    let mut job = finished(Protocol::Blocking);
    wave_of(&mut job, &[0, 1], 2);
    fail(&mut job, 1);
    after(&mut job, Fact::Started { rank: 0, life: 2 });
    let kills = after(&mut job, ended(0, 2));
    assert!(kills.contains(&Command::Kill { rank: 1, life: 2 }));
    let again = after(&mut job, ended(1, 2));
    assert_eq!(begins(&again), [(0, From::Copy(2)), (1, From::Copy(2))]);
}

#[test]
fn a_rank_that_finishes_in_a_wave_is_part_of_the_next() {
    let mut job = launched(Plan {
        ends_count: true,
        ..plan(Protocol::Blocking, 3, false)
    });
    after(&mut job, Fact::Wanted { unit: 0 });
    let dropped = finish(&mut job, 2, 1);
    let why = Why::Finished;
    assert!(why.is_passing() && dropped.contains(&Command::Dropped { rank: 2, why }));
    after(&mut job, stopped(0, 1));
    // All begin again if that is lost, too.
    let all = fail(&mut job, 1);
    assert_eq!(begins(&all), [0, 1, 2].map(|rank| (rank, From::Beginning)));
}

#[test]
fn a_job_goes_on_from_files_without_the_ranks_that_had_finished() {
    let former = |asked, finished| Former {
        asked,
        finished,
        files: (1..=asked).collect(),
        ..Former::default()
    };
    let plan = Plan {
        ends_count: true,
        ..plan(Protocol::Blocking, 3, true)
    };
    let ranks = vec![former(2, false), former(2, false), former(1, true)];
    let mut job = Coordinator::resume(plan, ranks, []);
    let begun = after(&mut job, Fact::GoOn { together: true });
    assert_eq!(begins(&begun), [(0, From::File(2)), (1, From::File(2))]);
    after(&mut job, file_lost(0, 2));
    after(&mut job, Fact::NotBegun { rank: 0, life: 1 });
    let older = after(&mut job, ended(1, 1));
    assert_eq!(begins(&older), [0, 1, 2].map(|rank| (rank, From::File(1))));
}

#[test]
fn ends_do_not_count_where_the_plan_says_so() {
    let mut job = launched(plan(Protocol::Blocking, 2, false));
    finish(&mut job, 1, 1);
    let dropped = after(&mut job, Fact::Wanted { unit: 0 });
    let why = Why::NotRunning;
    assert_eq!(dropped, [Command::Dropped { rank: 1, why }]);
    assert_eq!(job.due(), None::<Duration>);
}

use super::*;

const LIMITS: Limits = Limits {
    restarts: 5,
    restarts_per_rank: 4,
    untold: 0,
};

fn ended(rank: Rank, end: End, initialised: bool, finalised: bool) -> Ending {
    Ending {
        rank,
        end,
        initialised,
        finalised,
        is_plain: false,
        report: None,
        messages: 0,
    }
}

fn killed(rank: Rank) -> Ending {
    ended(rank, End::Signalled(9), true, false)
}

fn policy(protocol: Protocol) -> Policy {
    Policy::new(3, protocol, LIMITS)
}

fn logging() -> Policy {
    policy(Protocol::Pessimistic)
}

#[test]
fn ranks_that_finish_give_the_job_its_code() {
    let mut p = logging();
    assert_eq!(p.ended(&ended(2, End::Exited(5), true, true)), Decision::Finished);
    assert_eq!(p.ended(&ended(1, End::Exited(3), true, true)), Decision::Finished);
    assert!(!p.all_finished());
    assert_eq!(p.ended(&ended(0, End::Exited(0), false, false)), Decision::Finished);
    assert!(p.all_finished());
    assert_eq!(p.exit_code(), 3);
}

#[test]
fn spawned_ranks_count_like_all_others() {
    let mut p = logging();
    for rank in 0..3 {
        p.ended(&ended(rank, End::Exited(0), true, true));
    }
    p.grow(4);
    assert!(!p.all_finished());
    assert_eq!(p.ended(&killed(3)), Decision::Restart);
    assert_eq!(p.ended(&ended(3, End::Exited(6), true, true)), Decision::Finished);
    assert!(p.all_finished());
    assert_eq!(p.exit_code(), 6);
}

#[test]
fn failures_are_restarted() {
    for (end, initialised, finalised) in [
        (End::Signalled(9), true, false),
        (End::Signalled(11), false, false),
        (End::Signalled(9), true, true),
        (End::Exited(0), true, false),
        (End::Exited(4), true, false),
    ] {
        let ending = ended(1, end, initialised, finalised);
        assert_eq!(logging().ended(&ending), Decision::Restart);
    }
}

#[test]
fn an_exit_before_mpi_ends_the_job_unless_an_earlier_life_was_further() {
    let early = ended(1, End::Exited(4), false, false);
    assert_eq!(logging().ended(&early), Decision::EndJob(Why::BeforeMpi));
    let mut p = logging();
    p.ended(&killed(1));
    assert_eq!(p.ended(&early), Decision::Restart);
}

#[test]
fn a_program_without_mpi_ends_as_it_does() {
    let plain = |rank, end| Ending {
        is_plain: true,
        ..ended(rank, end, false, false)
    };
    let mut p = logging();
    assert_eq!(p.ended(&plain(1, End::Exited(4))), Decision::Finished);
    assert_eq!(p.ended(&plain(0, End::Exited(0))), Decision::Finished);
    assert!(!p.all_finished());
    assert_eq!(p.ended(&plain(2, End::Exited(5))), Decision::Finished);
    assert!(p.all_finished());
    assert_eq!(p.exit_code(), 4);
    let struck = plain(1, End::Signalled(9));
    assert_eq!(logging().ended(&struck), Decision::EndJob(Why::NoMpi));
    // It has started a program with MPI.
    let started = Ending {
        initialised: true,
        ..struck
    };
    assert_eq!(logging().ended(&started), Decision::Restart);
}

#[test]
fn where_nothing_is_kept_a_failure_ends_the_job() {
    let mut p = policy(Protocol::None);
    assert_eq!(p.ended(&killed(2)), Decision::EndJob(Why::NothingKept));
}

#[test]
fn a_job_that_has_lost_a_rank_does_not_end_with_0() {
    assert_eq!(Why::NothingKept.exit_code(End::Exited(0), 119), 1);
    assert_eq!(Why::NothingKept.exit_code(End::Signalled(11), 119), 139);
    assert_eq!(Why::BeforeMpi.exit_code(End::Exited(4), 119), 4);
    assert_eq!(Why::Report.exit_code(End::Exited(120), 119), 119);
}

#[test]
fn a_program_that_fails_at_the_same_place_is_given_up() {
    let mut p = logging();
    let crash = ended(1, End::Signalled(11), true, false);
    assert_eq!(p.ended(&crash), Decision::Restart);
    assert_eq!(p.ended(&crash), Decision::Restart);
    let why = Why::SamePlace { times: 3, messages: 0 };
    assert_eq!(p.ended(&crash), Decision::EndJob(why));
    // Elsewhere each time: it makes progress.
    let mut p = logging();
    for messages in 0..4 {
        assert_eq!(p.ended(&Ending { messages, ..crash }), Decision::Restart);
    }
    // A rank killed from outside is not to blame.
    let mut p = logging();
    (0..4).for_each(|_| assert_eq!(p.ended(&killed(1)), Decision::Restart));
}

#[test]
fn restarts_are_bounded_by_rank_and_by_job() {
    let mut p = logging();
    for _ in 0..4 {
        assert_eq!(p.ended(&killed(0)), Decision::Restart);
    }
    let of_rank = Why::LimitOfRank {
        restarts: 4,
        has_images: false,
    };
    assert_eq!(p.ended(&killed(0)), Decision::EndJob(of_rank));
    p.has_images();
    assert_eq!(p.ended(&killed(1)), Decision::Restart);
    let of_job = Why::LimitOfJob {
        restarts: 5,
        has_images: true,
    };
    assert_eq!(p.ended(&killed(2)), Decision::EndJob(of_job));
    assert_eq!(p.restarts(), 5);
    // A resumed job has had them, too.
    let mut later = logging();
    later.resume(p.failures().clone());
    assert_eq!(later.ended(&killed(2)), Decision::EndJob(of_job));
}

#[test]
fn a_report_ends_the_job() {
    let crash = Ending {
        report: Some(Report::Other),
        ..ended(1, End::Exited(119), true, false)
    };
    assert_eq!(logging().ended(&crash), Decision::EndJob(Why::Report));
    assert_eq!(policy(Protocol::Auto).ended(&crash), Decision::EndJob(Why::Report));
}

#[test]
fn a_program_that_does_not_repeat_ends_the_job_unless_there_are_waves() {
    let diverged = Ending {
        report: Some(Report::Diverged),
        ..ended(1, End::Exited(120), true, false)
    };
    let ends = Decision::EndJob(Why::Report);
    assert_eq!(logging().ended(&diverged), ends);
    assert_eq!(policy(Protocol::Hierarchical).ended(&diverged), ends);
    let mut auto = policy(Protocol::Auto);
    assert_eq!(auto.ended(&diverged), Decision::Restart);
    auto.goes_on_with(Protocol::Pessimistic);
    assert_eq!(auto.ended(&diverged), ends);
    auto.goes_on_with(Protocol::Auto);
    assert_eq!(auto.ended(&diverged), Decision::Restart);
}

#[test]
fn a_program_that_deals_with_failures_goes_on_without_ranks() {
    use crate::survivors::Said;

    let mut p = policy(Protocol::None).surviving(true, Vec::new());
    let nothing = Decision::EndJob(Why::NothingKept);
    assert_eq!(
        p.clone().ended(&killed(1)),
        nothing,
        "the others may still wait for it in MPI_Init"
    );
    for rank in 0..3 {
        p.survivors.as_mut().unwrap().hears(rank, Said::Joined);
    }
    assert_eq!(p.ended(&killed(1)), Decision::Lost);
    assert!(!p.all_finished());
    assert_eq!(p.ended(&ended(0, End::Exited(0), true, true)), Decision::Finished);
    let mut others = p.clone();
    assert_eq!(p.ended(&ended(2, End::Exited(4), true, true)), Decision::Finished);
    assert!(p.all_finished());
    assert_eq!(p.exit_code(), 4);
    assert_eq!(others.ended(&killed(2)), Decision::Lost);
    assert_eq!(others.exit_code(), 0);
    let mut none = policy(Protocol::None).surviving(true, Vec::new());
    none.survivors = p.survivors;
    (0..3).for_each(|rank| assert_eq!(none.ended(&killed(rank)), Decision::Lost));
    assert!(none.all_finished());
    assert_eq!(none.exit_code(), 1, "nobody has finished the job");
}

#[test]
fn new_ranks_take_places_as_often_as_restarts_are_allowed() {
    use crate::survivors::Said;

    let limits = Limits {
        restarts: 3,
        restarts_per_rank: 2,
        untold: 0,
    };
    let mut p = Policy::new(3, Protocol::None, limits).surviving(true, vec![0; 3]);
    (0..3).for_each(|rank| {
        p.survivors.as_mut().unwrap().hears(rank, Said::Joined);
    });
    assert_eq!(p.replace(&[1]), Err(Refused::Runs { rank: 1 }));
    let replace = |p: &mut Policy, of: Rank, new: Rank| {
        p.ended(&killed(of));
        p.replace(&[of])?;
        p.grow(new as usize + 1);
        let survivors = p.survivors.as_mut().unwrap();
        survivors.spawned(0, new..new + 1);
        survivors.come(&[0]);
        survivors.replaced(new, &[of]);
        Ok(survivors.place(new))
    };
    assert_eq!(replace(&mut p, 1, 3), Ok(1));
    assert_eq!(replace(&mut p, 3, 4), Ok(1));
    let often = Refused::LimitOfPlace { place: 1, restarts: 2 };
    assert_eq!(replace(&mut p, 4, 5), Err(often));
    assert_eq!(replace(&mut p, 2, 5), Ok(2));
    assert_eq!(replace(&mut p, 0, 6), Err(Refused::LimitOfJob { restarts: 3 }));
    assert_eq!(
        p.ended(&ended(5, End::Exited(0), true, true)),
        Decision::Finished,
        "a new rank ends the job like those before it"
    );
    assert!(p.all_finished());
    assert_eq!(p.exit_code(), 0);
}

#[test]
fn a_rank_recovers_some_times_before_the_program_is_told() {
    use crate::survivors::Said;

    let limits = Limits { untold: 2, ..LIMITS };
    let job = || Policy::new(3, Protocol::Pessimistic, limits).surviving(true, vec![0; 3]);
    let mut early = job();
    assert_eq!(
        early.ended(&killed(1)),
        Decision::Restart,
        "before MPI_Init has ended, too"
    );
    let survivors = early.survivors.as_mut().unwrap();
    assert!(survivors.is_repeating(1));
    survivors.hears(0, Said::Joined);
    let diverged = Ending {
        report: Some(Report::Diverged),
        ..killed(0)
    };
    assert_eq!(early.ended(&diverged), Decision::Lost, "it cannot recover");
    early.survivors.as_mut().unwrap().failed(&[0], 137);
    let not_begun = Decision::EndJob(Why::NotBegun);
    assert_eq!(early.ended(&killed(1)), not_begun, "the others wait for it in MPI_Init");
    let mut p = job();
    (0..3).for_each(|rank| assert!(p.survivors.as_mut().unwrap().hears(rank, Said::Joined).is_empty()));
    let mut spawns = p.clone();
    spawns.survivors.as_mut().unwrap().spawned(0, 3..4);
    assert_eq!(spawns.ended(&killed(1)), Decision::Lost);
    let other = Ending {
        report: Some(Report::Other),
        ..killed(0)
    };
    assert_eq!(p.clone().ended(&other), Decision::EndJob(Why::Report));
    assert_eq!(p.ended(&killed(1)), Decision::Restart);
    assert_eq!(p.ended(&killed(2)), Decision::Restart);
    assert_eq!(p.ended(&killed(1)), Decision::Restart);
    assert_eq!(p.restarts(), 3);
    assert_eq!(p.ended(&killed(1)), Decision::Lost, "so often, and no more");
    // Rank 2 may not have repeated all: the failure is told then. Nobody recovers meanwhile.
    p.survivors.as_mut().unwrap().failed(&[1], 137);
    assert_eq!(p.ended(&killed(2)), Decision::Lost);
    let few = Limits {
        restarts: 1,
        untold: 2,
        ..LIMITS
    };
    let mut p = Policy::new(3, Protocol::Pessimistic, few).surviving(true, vec![0; 3]);
    (0..3).for_each(|rank| assert!(p.survivors.as_mut().unwrap().hears(rank, Said::Joined).is_empty()));
    assert_eq!(p.ended(&killed(0)), Decision::Restart);
    assert_eq!(p.ended(&killed(2)), Decision::Lost, "the job has no more restarts");
}

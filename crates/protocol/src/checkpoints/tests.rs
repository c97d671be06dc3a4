use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_best_period_follows_costs_and_failures() {
    // Young's first order: sqrt(2 * 1 s * 5000 s) = 100 s.
    let best = daly(SECOND, 5000 * SECOND);
    assert!((99.0..=100.5).contains(&best.as_secs_f64()), "{best:?}");
    assert_eq!(daly(10 * SECOND, SECOND), SECOND);
    let mut checkpoints = Checkpoints::new(Period::Daly { mtbf: None }, Order::Periodic, 2, usize::MAX);
    assert_eq!(checkpoints.every(SECOND), Some(FIRST));
    checkpoints.answered(0, FIRST, Ok(SECOND / 2));
    checkpoints.answered(1, FIRST, Ok(SECOND / 2));
    let rare = checkpoints.every(FIRST).unwrap();
    assert_eq!(rare, daly(SECOND, CAUTIOUS_MTBF));
    checkpoints.failed();
    checkpoints.failed();
    assert_eq!(checkpoints.every(1000 * SECOND), Some(daly(SECOND, 500 * SECOND)));
}

#[test]
fn every_rank_has_its_turn_and_one_at_a_time() {
    let mut checkpoints = Checkpoints::new(Period::Every(4 * SECOND), Order::Periodic, 4, usize::MAX);
    assert_eq!(checkpoints.next_time(|_| true), Some(SECOND));
    assert_eq!(checkpoints.next(SECOND / 2, |_| true), None);
    assert_eq!(checkpoints.next(2 * SECOND, |_| true), Some(0));
    assert_eq!(checkpoints.next(3 * SECOND, |_| true), None);
    assert_eq!(checkpoints.next_time(|_| true), None);
    checkpoints.answered(0, 3 * SECOND, Ok(Duration::ZERO));
    assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(1));
    checkpoints.answered(1, 3 * SECOND, Err("busy"));
    assert_eq!(checkpoints.next(3 * SECOND, |rank| rank != 2), None);
    assert_eq!(checkpoints.next(3 * SECOND, |_| true), Some(2));
    checkpoints.answered(2, 3 * SECOND, Ok(Duration::ZERO));
    assert_eq!(checkpoints.next_time(|_| true), Some(3 * SECOND + AGAIN));
}

#[test]
fn images_that_take_longer_than_their_period_leave_as_much_time() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
    checkpoints.answered(0, 5 * SECOND, Ok(SECOND));
    assert_eq!(checkpoints.next_time(|_| true), Some(9 * SECOND));
    assert_eq!(checkpoints.next(9 * SECOND, |_| true), Some(0));
    checkpoints.answered(0, 9 * SECOND + SECOND / 2, Ok(SECOND / 2));
    assert_eq!(checkpoints.next_time(|_| true), Some(10 * SECOND + SECOND / 2));
}

#[test]
fn images_take_their_share_of_the_time_of_the_job() {
    let every = SECOND / 4;
    let new = |order| Checkpoints::new(Period::Every(every), order, 8, usize::MAX).with_share(0.1);
    for order in [Order::Periodic, Order::RoundRobin] {
        let mut checkpoints = new(order);
        // Each takes half a second on a loaded machine, of whichever rank it is.
        let (mut now, mut spent, mut had) = (Duration::ZERO, Duration::ZERO, BTreeSet::new());
        while now < 100 * SECOND {
            now = now.max(checkpoints.next_time(|_| true).unwrap());
            let rank = checkpoints.next(now, |_| true).unwrap();
            now += SECOND / 2;
            spent += SECOND / 2;
            let answer = if rank == 3 {
                Err("it has an open socket")
            } else {
                Ok(SECOND / 2)
            };
            checkpoints.answered(rank, now, answer);
            had.insert(rank);
        }
        assert!(spent > 9 * SECOND && spent <= 11 * SECOND, "{order:?}: {spent:?}");
        assert_eq!(had.len(), 8, "{order:?}: all have their turn");
    }
    // At a low cost they come as often as requested.
    let mut checkpoints = new(Order::Periodic);
    let mut count = 0;
    let mut now = Duration::ZERO;
    while now < 10 * SECOND {
        now = now.max(checkpoints.next_time(|_| true).unwrap());
        let rank = checkpoints.next(now, |_| true).unwrap();
        now += Duration::from_millis(1);
        checkpoints.answered(rank, now, Ok(Duration::from_millis(1)));
        count += 1;
        assert_eq!(checkpoints.begins_to_hold_back(), None);
    }
    assert!(count > 300, "{count}");
}

#[test]
fn who_waits_for_an_image_does_not_wait_for_the_share() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX).with_share(0.1);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
    checkpoints.answered(0, 3 * SECOND, Ok(2 * SECOND));
    assert_eq!(checkpoints.next_time(|_| true), Some(21 * SECOND));
    let told = [(); 2].map(|()| checkpoints.begins_to_hold_back());
    assert_eq!(told, [Some((SECOND, 0.1)), None]);
    // Growing logs can wait until they are full.
    checkpoints.logs_have_grown(u64::MAX >> 1, 3 * SECOND);
    assert_eq!(checkpoints.next(4 * SECOND, |_| true), None);
    checkpoints.want(0..1, Some(1), 4 * SECOND);
    assert_eq!(checkpoints.next_time(|_| true), Some(4 * SECOND));
    assert_eq!(checkpoints.next(4 * SECOND, |_| true), Some(0));
    checkpoints.answered(0, 8 * SECOND, Ok(4 * SECOND));
    assert_eq!(
        checkpoints.next_time(|_| true),
        Some(21 * SECOND),
        "it costs the others nothing"
    );
}

#[test]
fn whoever_is_refused_again_and_again_is_asked_less_and_less() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX);
    let mut now = SECOND;
    let mut refused = |checkpoints: &mut Checkpoints| {
        assert_eq!(checkpoints.next(now, |_| true), Some(0));
        checkpoints.answered(0, now, Err("it has an open socket"));
        let next = checkpoints.next_time(|_| true).unwrap();
        let pause = next - now;
        now = next;
        pause
    };
    // For two seconds as before, then after a tenth of the time.
    let pauses: Vec<Duration> = (0..100).map(|_| refused(&mut checkpoints)).collect();
    assert!(pauses[..10].iter().all(|pause| *pause == AGAIN), "{pauses:?}");
    assert!(pauses.is_sorted() && pauses[99] == LONGEST_PAUSE, "{pauses:?}");
    let five_seconds = pauses.iter().scan(Duration::ZERO, |sum, pause| {
        *sum += *pause;
        Some(*sum)
    });
    assert!(five_seconds.filter(|sum| *sum >= 5 * SECOND).min().unwrap() < 6 * SECOND);
    assert_eq!(checkpoints.next(now, |_| true), Some(0));
    checkpoints.answered(0, now, Ok(Duration::ZERO));
    assert_eq!(checkpoints.next_time(|_| true), Some(now + SECOND));
    assert_eq!(checkpoints.next(now + SECOND, |_| true), Some(0));
    checkpoints.answered(0, now + SECOND, Err("it has an open socket"));
    assert_eq!(checkpoints.next_time(|_| true), Some(now + SECOND + AGAIN));
}

#[test]
fn without_a_period_nobody_is_asked() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 3, usize::MAX);
    assert_eq!(checkpoints.next(100 * SECOND, |_| true), None);
    checkpoints.answered(1, SECOND, Ok(Duration::ZERO));
    assert_eq!(checkpoints.next_time(|_| true), None);
}

#[test]
fn whoever_wants_images_hears_of_all() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 3, usize::MAX);
    checkpoints.want(0..2, Some(7), SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
    checkpoints.answered(0, SECOND, Ok(Duration::ZERO));
    assert_eq!(checkpoints.finished(), None);
    for attempt in 1..=ATTEMPTS {
        let now = SECOND + AGAIN * attempt;
        assert_eq!(checkpoints.next(now, |_| true), Some(1));
        checkpoints.answered(1, now, Err("it has an open socket"));
    }
    let Outcome { clients, failed } = checkpoints.finished().unwrap();
    assert_eq!(
        (clients, failed),
        (vec![7], vec![(1, "it has an open socket".to_string())])
    );
    assert_eq!(checkpoints.next(1000 * SECOND, |_| true), None);
    assert_eq!(checkpoints.finished(), None);
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
    checkpoints.want(0..1, Some(1), SECOND);
    checkpoints.left(0);
    assert!(
        checkpoints
            .finished()
            .is_some_and(|outcome| outcome.clients == [1] && outcome.failed.is_empty())
    );
}

#[test]
fn whoever_waits_for_what_cannot_be_is_told() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
    checkpoints.want(0..1, Some(1), SECOND);
    checkpoints.give_up(0, "rank 3 has finished");
    let outcome = checkpoints.finished().unwrap();
    assert_eq!(outcome.failed, [(0, "rank 3 has finished".to_string())]);
}

#[test]
fn nobody_hears_of_what_was_before() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 1, usize::MAX);
    checkpoints.want(0..1, None, SECOND);
    checkpoints.give_up(0, "it has left MPI");
    assert_eq!(checkpoints.finished(), None);
    checkpoints.want(0..1, Some(1), SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
    checkpoints.answered(0, SECOND, Ok(SECOND));
    assert!(checkpoints.finished().unwrap().failed.is_empty());
}

#[test]
fn logs_that_grow_are_worth_images_that_are_cheap() {
    let mut checkpoints = Checkpoints::new(Period::Never, Order::Periodic, 2, usize::MAX);
    checkpoints.logs_have_grown(LEAST_GROWTH - 1, SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), None);
    checkpoints.logs_have_grown(1, SECOND);
    for rank in 0..2 {
        assert_eq!(checkpoints.next(SECOND, |_| true), Some(rank));
        assert!(!checkpoints.is_expected(rank));
        checkpoints.answered(rank, SECOND, Ok(SECOND / 20));
    }
    assert_eq!(checkpoints.next(SECOND, |_| true), None);
    // 0.1 s of standstill, 0.4 s in all: with 1.0 GB more, fresh memory costs as much as the images.
    checkpoints.logs_have_grown(900_000_000, SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), None);
    checkpoints.logs_have_grown(120_000_000, SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(0));
    checkpoints.answered(0, SECOND, Err("it has an open socket"));
    assert_eq!(
        checkpoints.next(2 * SECOND, |rank| rank == 0),
        None,
        "it is not asked again"
    );
    checkpoints.logs_have_grown(1_500_000_000, SECOND);
    assert_eq!(checkpoints.next(2 * SECOND, |rank| rank == 0), None, "nor soon");
    checkpoints.logs_have_grown(3_000_000_000, SECOND);
    assert_eq!(checkpoints.next(2 * SECOND, |rank| rank == 0), Some(0));
}

#[test]
fn ranks_that_join_have_their_turn() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX);
    checkpoints.grow(3, 5 * SECOND);
    assert_eq!(checkpoints.next(6 * SECOND, |rank| [false, false, true][rank]), Some(2));
}

#[test]
fn turns_are_spread_over_the_period() {
    let mut checkpoints = Checkpoints::new(Period::Every(4 * SECOND), Order::RoundRobin, 4, usize::MAX);
    let mut chosen = Vec::new();
    for tick in 1..=60 {
        let now = SECOND / 10 * tick;
        if let Some(rank) = checkpoints.next(now, |rank| rank != 1) {
            chosen.push((rank, tick));
            checkpoints.answered(rank, now, Ok(Duration::ZERO));
        }
    }
    // Three of four ranks run: a third of the period apart.
    assert_eq!(chosen, [(0, 10), (2, 24), (3, 38), (0, 52)]);
    assert_eq!(checkpoints.next_time(|_| false), None, "nobody runs");
}

#[test]
fn whoever_wants_an_image_does_not_wait_for_a_turn() {
    let mut checkpoints = Checkpoints::new(Period::Every(30 * SECOND), Order::RoundRobin, 3, usize::MAX);
    checkpoints.want(2..3, Some(1), SECOND);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(2));
    checkpoints.answered(2, SECOND, Err("it computes"));
    assert_eq!(checkpoints.next(SECOND + AGAIN, |_| true), Some(2), "asked again");
    checkpoints.answered(2, 2 * SECOND, Ok(SECOND));
    assert!(checkpoints.finished().is_some());
    assert_eq!(checkpoints.next(9 * SECOND, |_| true), None);
    assert_eq!(checkpoints.next(10 * SECOND, |_| true), Some(0));
}

#[test]
fn a_turn_waits_for_what_is_known_of_the_logs() {
    let mut checkpoints = Checkpoints::new(Period::Every(2 * SECOND), Order::MostLog, 2, usize::MAX);
    assert!(!checkpoints.wants_logs(SECOND / 2));
    assert!(checkpoints.wants_logs(SECOND));
    assert_eq!(
        (checkpoints.next(SECOND, |_| true), checkpoints.next_time(|_| true)),
        (None, None)
    );
    checkpoints.logs_are(vec![1, 2]);
    assert_eq!(checkpoints.next(SECOND, |_| true), Some(1));
    assert!(!checkpoints.wants_logs(3 * SECOND), "one is being taken");
}

#[test]
fn no_more_images_are_under_way_than_may_be() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 4, 2);
    let now = 2 * SECOND;
    for rank in 0..2 {
        assert_eq!(checkpoints.next(now, |_| true), Some(rank));
        checkpoints.answered(rank, now, Ok(Duration::ZERO));
        checkpoints.begin_writing(rank);
    }
    assert_eq!(
        (checkpoints.next(now, |_| true), checkpoints.next_time(|_| true)),
        (None, None)
    );
    checkpoints.end_writing(0);
    assert_eq!(checkpoints.next(now, |_| true), Some(2));
    checkpoints.answered(2, now, Ok(Duration::ZERO));
    checkpoints.begin_writing(2);
    assert_eq!(checkpoints.next(now, |_| true), None);
    checkpoints.left(1);
    assert_eq!(
        checkpoints.next(now, |_| true),
        Some(3),
        "what a rank that has left was writing is over"
    );
}

#[test]
fn ranks_that_write_have_had_their_turn() {
    let mut checkpoints = Checkpoints::new(Period::Every(2 * SECOND), Order::RoundRobin, 2, usize::MAX);
    for rank in 0..2 {
        checkpoints.begin_writing(rank);
    }
    assert_eq!(checkpoints.next(SECOND, |_| true), None);
    assert_eq!(checkpoints.next_time(|_| true), Some(SECOND + AGAIN));
    checkpoints.end_writing(1);
    assert_eq!(checkpoints.next(SECOND + AGAIN, |_| true), Some(1));
}

#[test]
fn images_that_are_lost_again_and_again_are_asked_for_less_and_less() {
    let mut checkpoints = Checkpoints::new(Period::Every(SECOND), Order::Periodic, 1, usize::MAX);
    let mut now = SECOND;
    let mut pauses = Vec::new();
    for _ in 0..9 {
        checkpoints.lost(0, now);
        checkpoints.lost(0, now);
        let due = checkpoints.next_time(|_| true).unwrap();
        pauses.push((due - now).as_millis());
        now = due;
        assert_eq!(checkpoints.next(now, |_| true), Some(0));
        checkpoints.answered(0, now, Ok(Duration::ZERO));
    }
    assert_eq!(pauses, [0, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    now += 21 * SECOND;
    checkpoints.lost(0, now);
    assert_eq!(checkpoints.next_time(|_| true), Some(now), "that has another reason");
}

use super::*;

fn record(source: Rank, polls: u64) -> Recorded {
    Recorded { source, polls }
}

#[test]
fn a_delivery_counts_the_reads_since_the_one_before() {
    let mut life = Pessimistic::new(1, 3, Tolerate::Process);
    life.begin_poll();
    life.begin_poll();
    assert_eq!(life.next(), Next::Any);
    let first = Determinant {
        receiver: 1,
        rclock: 1,
        source: 2,
        ssn: 1,
        polls: 2,
    };
    assert_eq!(life.deliver(2), (first, true));
    assert_eq!(
        life.deliver(2),
        (
            Determinant {
                rclock: 2,
                ssn: 2,
                polls: 0,
                ..first
            },
            true
        )
    );
    life.begin_poll();
    assert_eq!(
        life.deliver(0),
        (
            Determinant {
                rclock: 3,
                source: 0,
                ssn: 1,
                polls: 1,
                ..first
            },
            true
        )
    );
    assert_eq!((life.rclock(), life.delivered(2), life.delivered(0)), (3, 2, 1));
}

#[test]
fn a_process_never_waits() {
    let mut life = Pessimistic::new(0, 2, Tolerate::Process);
    for ssn in 1..5 {
        life.begin_poll();
        life.deliver(1);
        assert_eq!(life.send(1), Sending::Now { ssn });
    }
    life.event_logger_lost();
    assert_eq!(
        (life.send(0), life.held(), life.release()),
        (Sending::Now { ssn: 1 }, 0, None)
    );
    assert_eq!(life.first_unacknowledged(), 5);
}

#[test]
fn sends_wait_for_every_delivery_before_them_and_leave_in_order() {
    let mut life = Pessimistic::new(0, 3, Tolerate::Node);
    assert_eq!(life.send(1), Sending::Now { ssn: 1 });
    life.begin_poll();
    life.deliver(1);
    assert_eq!(life.send(1), Sending::Hold { ssn: 2 });
    life.deliver(2);
    assert_eq!(life.send(2), Sending::Hold { ssn: 1 });
    assert_eq!(life.release(), None);
    life.acknowledge(1);
    assert_eq!((life.release(), life.release()), (Some((1, 2)), None));
    assert_eq!(life.send(1), Sending::Hold { ssn: 3 }, "an earlier one is still held");
    life.acknowledge(2);
    assert_eq!(
        (life.release(), life.release(), life.release()),
        (Some((2, 1)), Some((1, 3)), None)
    );
    assert_eq!(life.send(1), Sending::Now { ssn: 4 });
}

#[test]
fn a_later_life_repeats_deliveries_in_the_same_reads() {
    let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 3, vec![0, 1]);
    assert_eq!(life.next(), Next::NeedRecord);
    life.expect(record(1, 2));
    assert_eq!(life.next(), Next::Nothing);
    life.begin_poll();
    assert_eq!(life.next(), Next::Nothing);
    life.begin_poll();
    assert_eq!(life.next(), Next::From(1));
    assert!(!life.deliver(1).1);
    life.expect(record(0, 0));
    assert_eq!(life.next(), Next::From(0));
    life.deliver(0);
    life.expect(record(1, 1));
    assert_eq!(life.next(), Next::Nothing);
    life.begin_poll();
    let last = Determinant {
        receiver: 0,
        rclock: 3,
        source: 1,
        ssn: 2,
        polls: 1,
    };
    assert_eq!(life.deliver(1), (last, false));
    // The former life sent once more before it delivered anything else.
    for _ in 0..3 {
        life.begin_poll();
        assert_eq!((life.next(), life.is_replaying()), (Next::Nothing, true));
    }
    assert_eq!(life.send(0), Sending::Now { ssn: 1 });
    assert_eq!(life.send(1), Sending::Redo { ssn: 1 });
    assert_eq!((life.next(), life.is_replaying()), (Next::Any, false));
    assert_eq!(life.send(1), Sending::Now { ssn: 2 });
    assert_eq!(life.deliver(1).0.polls, 3);
}

#[test]
fn a_later_life_that_repeats_nothing_is_live_at_once() {
    let life = Pessimistic::recovering(0, 2, Tolerate::Node, 0, vec![0, 0]);
    assert_eq!((life.next(), life.is_replaying()), (Next::Any, false));
}

#[test]
fn a_record_from_the_event_logger_is_stable_until_that_is_lost() {
    let mut life = Pessimistic::recovering(0, 2, Tolerate::Node, 2, vec![0, 1]);
    life.expect(record(1, 0));
    life.deliver(1);
    assert_eq!(
        (life.send(1), life.first_unacknowledged()),
        (Sending::Redo { ssn: 1 }, 3)
    );
    assert_eq!(life.send(1), Sending::Now { ssn: 2 });
    life.event_logger_lost();
    assert_eq!(
        (life.send(1), life.first_unacknowledged()),
        (Sending::Hold { ssn: 3 }, 1)
    );
    // The whole record is logged again, including what this life has not repeated yet.
    life.acknowledge(2);
    assert_eq!((life.release(), life.first_unacknowledged()), (Some((1, 3)), 3));
}

#[test]
fn frames_stand_to_the_cursor() {
    let mut life = Pessimistic::new(0, 2, Tolerate::Process);
    life.deliver(1);
    assert_eq!(life.accepts(1, 1), Arrival::Duplicate);
    assert_eq!(life.accepts(1, 2), Arrival::Next);
    assert_eq!(life.accepts(1, 3), Arrival::Early);
}

#[test]
#[should_panic(expected = "where the record says From(1)")]
fn a_delivery_that_is_not_dictated_is_refused() {
    let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 1, vec![0, 0]);
    life.expect(record(1, 0));
    life.deliver(0);
}

#[test]
#[should_panic(expected = "belongs into read 1")]
fn a_dictated_delivery_may_not_be_skipped() {
    let mut life = Pessimistic::recovering(0, 2, Tolerate::Process, 1, vec![0, 0]);
    life.expect(record(1, 1));
    life.begin_poll();
    life.begin_poll();
    life.next();
}

#[test]
#[should_panic(expected = "delivery 1 acknowledged, 0 made")]
fn an_acknowledgement_of_the_future_is_refused() {
    Pessimistic::new(0, 2, Tolerate::Node).acknowledge(1);
}

/// A life that has made two deliveries and two sends, and then one read that found nothing.
fn image(tolerate: Tolerate) -> Pessimistic {
    let mut life = Pessimistic::new(0, 2, tolerate);
    for ssn in 1..=2 {
        life.begin_poll();
        life.deliver(1);
        life.acknowledge(ssn);
        assert_eq!(life.send(1), Sending::Now { ssn });
    }
    life.begin_poll();
    life
}

#[test]
fn a_life_from_an_image_repeats_only_what_came_after() {
    for tolerate in [Tolerate::Process, Tolerate::Node] {
        let mut life = image(tolerate);
        assert!(life.may_checkpoint());
        life.restored(3, vec![0, 4]);
        assert_eq!(
            (life.rclock(), life.delivered(1), life.sent(1), life.is_replaying()),
            (2, 2, 2, true)
        );
        assert_eq!(life.next(), Next::NeedRecord);
        // The read before the image counts: the delivery belongs into the second one.
        life.expect(record(1, 2));
        assert_eq!(life.next(), Next::Nothing);
        life.begin_poll();
        assert_eq!((life.next(), life.owed()), (Next::From(1), 0));
        let third = Determinant {
            receiver: 0,
            rclock: 3,
            source: 1,
            ssn: 3,
            polls: 2,
        };
        assert_eq!(life.deliver(1), (third, false));
        assert_eq!(life.send(1), Sending::Redo { ssn: 3 });
        life.begin_poll();
        assert_eq!((life.next(), life.may_checkpoint()), (Next::Nothing, false));
        assert_eq!(life.owed(), 1);
        assert_eq!(life.send(1), Sending::Redo { ssn: 4 });
        assert_eq!((life.next(), life.may_checkpoint()), (Next::Any, true));
        assert_eq!(life.owed(), 0);
        assert_eq!(life.send(1), Sending::Now { ssn: 5 });
        assert_eq!(life.deliver(1).0.polls, 1);
    }
}

#[test]
fn a_life_from_an_image_of_the_last_moment_is_live_and_keeps_its_reads() {
    let mut life = image(Tolerate::Node);
    life.restored(2, vec![0, 2]);
    assert_eq!((life.next(), life.is_replaying()), (Next::Any, false));
    life.begin_poll();
    assert_eq!(life.deliver(1).0.polls, 2);
}

#[test]
fn an_image_of_a_restored_life_is_restored_in_its_turn() {
    let mut life = image(Tolerate::Node);
    life.restored(3, vec![1, 2]);
    life.expect(record(0, 1));
    life.deliver(0);
    assert!(!life.may_checkpoint());
    assert_eq!(life.send(0), Sending::Redo { ssn: 1 });
    assert!(life.may_checkpoint());
    let mut next = life.clone();
    next.restored(3, vec![2, 2]);
    assert_eq!((next.rclock(), next.next()), (3, Next::Nothing));
    assert_eq!(next.send(0), Sending::Redo { ssn: 2 });
    assert_eq!(next.next(), Next::Any);
}

#[test]
fn no_image_with_a_frame_held_or_a_delivery_unacknowledged() {
    let mut life = Pessimistic::new(0, 2, Tolerate::Node);
    assert!(life.may_checkpoint());
    life.begin_poll();
    life.deliver(1);
    assert!(!life.may_checkpoint(), "delivery 1 is not stable");
    life.send(1);
    life.acknowledge(1);
    assert!(!life.may_checkpoint(), "a frame may leave and has not");
    assert_eq!(life.release(), Some((1, 1)));
    assert!(life.may_checkpoint());
    life.event_logger_lost();
    assert!(!life.may_checkpoint());
    let mut process = Pessimistic::new(0, 2, Tolerate::Process);
    process.deliver(1);
    assert!(process.may_checkpoint());
}

#[test]
fn a_restored_record_is_stable_until_the_event_logger_is_lost() {
    let mut life = image(Tolerate::Node);
    life.restored(3, vec![0, 2]);
    assert_eq!(life.first_unacknowledged(), 4);
    life.event_logger_lost();
    // Deliveries that both retained images cover need never be logged again: the caller says so.
    life.acknowledge(1);
    assert_eq!(life.first_unacknowledged(), 2);
    life.expect(record(1, 1));
    life.deliver(1);
    assert_eq!(life.send(1), Sending::Hold { ssn: 3 });
    life.acknowledge(3);
    assert_eq!(life.release(), Some((1, 3)));
}

#[test]
#[should_panic(expected = "the image has 2 deliveries, the record 1")]
fn a_record_shorter_than_the_image_is_refused() {
    image(Tolerate::Process).restored(1, vec![0, 2]);
}

#[test]
#[should_panic(expected = "the image has 2 sends to 1, of which 1 were visible")]
fn an_image_with_sends_that_were_not_visible_is_refused() {
    image(Tolerate::Process).restored(2, vec![0, 1]);
}

#[test]
#[should_panic(expected = "with frames held")]
fn an_image_with_frames_held_is_refused() {
    let mut life = image(Tolerate::Node);
    life.begin_poll();
    life.deliver(1);
    life.send(1);
    life.restored(3, vec![0, 3]);
}

use super::*;
use crate::dispatcher::killed;
use resurgo_wire::counters::Sizes;

fn sizes(messages: u64, bytes: u64) -> Sizes {
    let mut sizes = Sizes::default();
    sizes[11] = [messages, bytes];
    sizes
}

fn last_line(mut events: Events) -> String {
    let text = String::from_utf8(events.take_text()).unwrap();
    text.lines().last().unwrap_or_default().to_string()
}

#[test]
fn a_recovery_is_told_in_plain_words() {
    let now = Instant::now();
    let mut events = Events::new(3, false, None, Wanted::default(), now);
    events.failed(&killed(2, LifeStatistics::default()), None, now);
    events.restarting(2);
    events.started(2, 2, 124, Beginning::default());
    let statistics = LifeStatistics {
        replay_deliveries: 18_204,
        first_delivery_ns: 1_000,
        caught_up_ns: 400_001_000,
        sizes: sizes(3, 2048),
        ..LifeStatistics::default()
    };
    events.caught_up(2, 2, &statistics, now + Duration::from_secs(1));
    events.summary(0, &[statistics], now + Duration::from_secs(9));
    assert_eq!(
        String::from_utf8(events.take_text()).unwrap(),
        "resurgo: rank 2 killed by SIGKILL (pid 123)\n\
         resurgo: rank 2 restarted on this node (life 2)\n\
         resurgo: rank 2 replayed 18,204 deliveries in 0.4 s\n\
         resurgo: 1 restart; 1.0 s lost, 0.4 s of it in the replay of 18,204 deliveries; 2.0 KiB sent in 3 messages\n"
    );
}

#[test]
fn a_spawned_rank_is_told_by_its_number_and_its_parent() {
    let now = Instant::now();
    let mut events = Events::new(2, false, None, Wanted::default(), now);
    events.spawned(1, 4, &["x"]);
    events.failed(&killed(3, LifeStatistics::default()), None, now);
    events.restarting(3);
    events.spawn_failed(0, "x: no such file");
    assert_eq!(
        String::from_utf8(events.take_text()).unwrap(),
        "resurgo: rank 3 killed by SIGKILL (pid 123, spawned by rank 1)\n\
         resurgo: warning: rank 0 could not spawn: x: no such file\n"
    );
}

#[test]
fn the_time_of_a_rank_that_never_caught_up_is_lost_too() {
    let now = Instant::now();
    let mut events = Events::new(3, false, None, Wanted::default(), now);
    let sent = LifeStatistics {
        sizes: sizes(3, 2048),
        ..LifeStatistics::default()
    };
    let none = LifeStatistics::default();
    events.failed(&killed(1, sent), None, now);
    events.restarting(1);
    // What the first life has sent is in the log, although the second has not come to it.
    events.summary(143, &[none, none, none], now + Duration::from_secs(3));
    assert_eq!(
        last_line(events),
        "resurgo: 1 restart; 3.0 s lost; rank 1 had not caught up when the job ended; 2.0 KiB sent in 3 messages"
    );
}

#[test]
fn several_ranks_that_never_caught_up_are_counted() {
    let now = Instant::now();
    let mut events = Events::new(3, false, None, Wanted::default(), now);
    for rank in [0, 2] {
        events.failed(&killed(rank, LifeStatistics::default()), None, now);
        events.restarting(rank);
    }
    // The agent has died: nobody knows what was logged.
    events.summary(1, &[], now + Duration::from_secs(1));
    assert_eq!(
        last_line(events),
        "resurgo: 2 restarts; 2.0 s lost; 2 ranks had not caught up when the job ended"
    );
}

#[test]
fn a_rank_that_was_not_started_again_is_not_said_to_be_behind() {
    let now = Instant::now();
    let mut events = Events::new(1, false, None, Wanted::default(), now);
    events.failed(&killed(0, LifeStatistics::default()), None, now);
    events.restarting(0);
    events.failed(
        &killed(0, LifeStatistics::default()),
        None,
        now + Duration::from_secs(1),
    );
    events.summary(137, &[LifeStatistics::default()], now + Duration::from_secs(1));
    assert_eq!(
        last_line(events),
        "resurgo: 1 restart; 1.0 s lost; 0 bytes sent in 0 messages"
    );
}

#[test]
fn a_failure_that_ends_the_job_is_told_once() {
    let now = Instant::now();
    for (error, text) in [
        (
            "rank 0 killed by SIGKILL, at last",
            "resurgo: rank 0 killed by SIGKILL (pid 123), at last\n",
        ),
        (
            "it broke",
            "resurgo: rank 0 killed by SIGKILL (pid 123)\nresurgo: it broke\n",
        ),
    ] {
        let mut events = Events::new(1, false, None, Wanted::default(), now);
        events.failed(&killed(0, LifeStatistics::default()), Some(error), now);
        assert_eq!(String::from_utf8(events.take_text()).unwrap(), text);
    }
}

#[test]
fn quiet_is_quiet_but_for_errors() {
    let now = Instant::now();
    let mut events = Events::new(1, true, None, Wanted::default(), now);
    events.output_missing(0, 5);
    events.summary(0, &[], now);
    assert!(events.take_text().is_empty());
    events.error("it broke");
    assert_eq!(events.take_text(), b"resurgo: it broke\n");
}

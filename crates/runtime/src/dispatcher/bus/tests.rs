mod golden;

use super::*;
use crate::dispatcher::killed;
use resurgo_wire::counters::Sizes;

fn sizes(messages: u64, bytes: u64) -> Sizes {
    let mut sizes = Sizes::default();
    sizes[11] = [messages, bytes];
    sizes
}

fn bus(size: usize, start: Instant) -> Bus {
    Bus::new(size, Wanted::default(), start)
}

fn last_line(mut told: Bus) -> String {
    let text = String::from_utf8(told.take_text()).unwrap();
    text.lines().last().unwrap_or_default().to_string()
}

#[test]
fn a_recovery_is_told_in_plain_words() {
    let now = Instant::now();
    let mut bus = bus(3, now);
    bus.failed_at(&killed(2, LifeStatistics::default()), None, None, now);
    bus.tell_at(Event::Restarting { rank: 2 }, now);
    bus.tell_at(
        Event::Started {
            rank: 2,
            life: 2,
            pid: 124,
            node: None,
            image: 0,
            from_file: false,
            together: false,
            beginning: Duration::ZERO,
            processors: None,
        },
        now,
    );
    let statistics = LifeStatistics {
        replay_deliveries: 18_204,
        first_delivery_ns: 1_000,
        caught_up_ns: 400_001_000,
        sizes: sizes(3, 2048),
        ..LifeStatistics::default()
    };
    bus.caught_up(2, 2, &statistics, now + Duration::from_secs(1));
    bus.ended(0, &[statistics], now + Duration::from_secs(9));
    assert_eq!(
        String::from_utf8(bus.take_text()).unwrap(),
        "resurgo: rank 2 killed by SIGKILL (pid 123)\n\
         resurgo: rank 2 restarted on this node (life 2)\n\
         resurgo: rank 2 replayed 18,204 deliveries in 0.4 s\n\
         resurgo: 1 restart; 1.0 s lost, 0.4 s of it in the replay of 18,204 deliveries; 2.0 KiB sent in 3 messages\n"
    );
}

#[test]
fn where_there_are_several_nodes_that_of_a_rank_is_named() {
    let now = Instant::now();
    let mut bus = bus(3, now);
    let started = |life, node| Event::Started {
        rank: 2,
        life,
        pid: 124,
        node,
        image: 0,
        from_file: false,
        together: false,
        beginning: Duration::ZERO,
        processors: None,
    };
    let ended = killed(2, LifeStatistics::default());
    bus.tell_at(started(1, Some("n1")), now);
    bus.failed_at(&ended, None, None, now);
    bus.tell_at(Event::Restarting { rank: 2 }, now);
    bus.tell_at(started(2, Some("n2")), now);
    let text = "it unlinked a file";
    bus.tell_at(Event::Undone { rank: 2, text }, now);
    bus.failed_at(&ended, Some(0), Some("rank 2 killed by SIGKILL, at last"), now);
    bus.tell_at(
        Event::Lost {
            rank: 2,
            left: 1,
            reason: None,
        },
        now,
    );
    // Of a rank that has not begun no node is known.
    bus.tell_at(Event::WavesOver { rank: 0 }, now);
    assert_eq!(
        String::from_utf8(bus.take_text()).unwrap(),
        "resurgo: rank 2 on node n1 killed by SIGKILL (pid 123)\n\
         resurgo: rank 2 restarted on node n2 (life 2)\n\
         resurgo: rank 2 on node n2 ends badly, and before: it unlinked a file\n\
         resurgo: rank 2 on node n2 killed by SIGKILL (pid 123, spawned by rank 0), at last\n\
         resurgo: rank 2 on node n2 is lost; the 1 other goes on without it\n\
         resurgo: warning: rank 0 has finished: there are no waves any more, and what fails goes back to the last one\n"
    );
}

#[test]
fn the_time_of_a_rank_that_never_caught_up_is_lost_too() {
    let now = Instant::now();
    let mut bus = bus(3, now);
    let sent = LifeStatistics {
        sizes: sizes(3, 2048),
        ..LifeStatistics::default()
    };
    let none = LifeStatistics::default();
    bus.failed_at(&killed(1, sent), None, None, now);
    bus.tell_at(Event::Restarting { rank: 1 }, now);
    // The log has the first life's messages, although the second has not repeated them.
    bus.ended(143, &[none, none, none], now + Duration::from_secs(3));
    assert_eq!(
        last_line(bus),
        "resurgo: 1 restart; 3.0 s lost; rank 1 had not caught up when the job ended; 2.0 KiB sent in 3 messages"
    );
}

#[test]
fn several_ranks_that_never_caught_up_are_counted() {
    let now = Instant::now();
    let mut bus = bus(3, now);
    for rank in [0, 2] {
        bus.failed_at(&killed(rank, LifeStatistics::default()), None, None, now);
        bus.tell_at(Event::Restarting { rank }, now);
    }
    // The agent has died: the number of logged messages is unknown.
    bus.ended(1, &[], now + Duration::from_secs(1));
    assert_eq!(
        last_line(bus),
        "resurgo: 2 restarts; 2.0 s lost; 2 ranks had not caught up when the job ended"
    );
}

#[test]
fn a_rank_that_was_not_started_again_is_not_said_to_be_behind() {
    let now = Instant::now();
    let mut bus = bus(1, now);
    bus.failed_at(&killed(0, LifeStatistics::default()), None, None, now);
    bus.tell_at(Event::Restarting { rank: 0 }, now);
    let last = killed(0, LifeStatistics::default());
    bus.failed_at(&last, None, None, now + Duration::from_secs(1));
    bus.ended(137, &[LifeStatistics::default()], now + Duration::from_secs(1));
    assert_eq!(
        last_line(bus),
        "resurgo: 1 restart; 1.0 s lost; 0 bytes sent in 0 messages"
    );
}

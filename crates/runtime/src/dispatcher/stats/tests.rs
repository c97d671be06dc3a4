use resurgo_wire::counters::Cost;

use serde_json::Value;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn life(messages: u64, bytes: u64, deliveries: u64) -> LifeStatistics {
    let mut life = LifeStatistics {
        deliveries,
        ..LifeStatistics::default()
    };
    life.sizes[resurgo_wire::counters::class(bytes as usize)] = [messages, messages * bytes];
    life
}

fn killed(rank: usize, life: u64, statistics: LifeStatistics) -> Ended {
    Ended {
        life,
        unnoticed_ns: Some(SECOND),
        ending_ns: SECOND / 4,
        ..crate::dispatcher::killed(rank, statistics)
    }
}

const OUTCOME: Outcome = Outcome {
    code: 0,
    wall: Duration::from_secs(20),
    is_complete: true,
};

#[test]
fn what_a_life_repeats_is_not_counted_twice_and_what_it_costs_is() {
    let now = Instant::now();
    let mut stats = Stats::new(2, now);
    let mut first = life(100, 1024, 50);
    first.costs[Cost::Sleeps as usize] = 7;
    stats.failed(&killed(1, 1, first), now);
    stats.restarting(1, now);
    // Ended in the middle of its replay: it had come less far.
    let mut second = life(40, 1024, 20);
    second.costs[Cost::Sleeps as usize] = 9;
    stats.failed(&killed(1, 2, second), now);
    stats.restarting(1, now);
    assert_eq!(stats.sent(), (100, 100 * 1024));
    assert_eq!(stats.costs()[Cost::Sleeps as usize], 9);
    let mut last = life(130, 1024, 65);
    last.costs[Cost::Sleeps as usize] = 12;
    stats.ended(&[life(10, 8, 5), last], now);
    let told = stats.json(OUTCOME);
    assert_eq!(told["total"]["messages"], 140);
    assert_eq!(told["total"]["sleeps"], 12);
    assert_eq!(told["ranks"][1]["deliveries"], 65);
    assert_eq!(told["ranks"][1]["restarts"], 2);
    assert_eq!(
        told["total"]["sizes"],
        serde_json::json!([
            {"up_to": 8, "messages": 10, "bytes": 80},
            {"up_to": 1024, "messages": 130, "bytes": 130 * 1024},
        ])
    );
}

#[test]
fn the_parts_of_a_recovery_add_up() {
    let now = Instant::now();
    let mut stats = Stats::new(2, now);
    let at = |seconds| now + Duration::from_secs_f64(seconds);
    stats.failed(&killed(1, 1, life(1, 1, 1)), at(9.25));
    stats.restarting(1, now);
    stats.started(1, 2, (4, true), Duration::from_secs(2), at(12.0));
    let caught_up = LifeStatistics {
        replay_deliveries: 5,
        collecting_ns: SECOND / 2,
        collected_ns: 3 * SECOND,
        first_delivery_ns: 4 * SECOND,
        replayed_ns: 6 * SECOND,
        caught_up_ns: 9 * SECOND,
        ..LifeStatistics::default()
    };
    let lost = stats.lost_since_failure(1, at(20.25));
    assert_eq!(lost, Some(Duration::from_secs(11)));
    stats.caught_up(1, &caught_up, Duration::from_secs(5), lost);
    assert_eq!(
        (stats.replay, stats.lost),
        (Duration::from_secs(5), Duration::from_secs(11))
    );
    let told = &stats.json(OUTCOME)["recoveries"]["each"][0];
    let expected = [
        ("detect_seconds", 1.0),
        ("end_seconds", 1.0),
        ("fetch_image_seconds", 2.0),
        ("begin_seconds", 0.5),
        ("collect_seconds", 0.5),
        ("replay_seconds", 3.0),
        ("catch_up_seconds", 3.0),
    ];
    for (name, seconds) in expected {
        assert_eq!(told[name], seconds, "{name}");
    }
    assert_eq!(told["total_seconds"], expected.iter().map(|part| part.1).sum::<f64>());
    assert_eq!((&told["time"], &told["complete"]), (&9.0.into(), &true.into()));
    assert!(
        stats.table(OUTCOME).contains(
            &"recovery of rank 1 (life 2, image 4 in a file): detect 1.00 s, end 1.00 s, fetch image 2.00 s, \
                        begin 500 ms, collect 500 ms, replay 3.00 s, catch up 3.00 s; together 11 s"
                .to_string()
        ),
        "{:#?}",
        stats.table(OUTCOME)
    );
}

#[test]
fn what_has_not_happened_is_not_told_as_no_time() {
    let now = Instant::now();
    let mut stats = Stats::new(1, now);
    let mut ended = killed(0, 1, life(1, 1, 1));
    ended.unnoticed_ns = None;
    stats.failed(&ended, now + Duration::from_secs(1));
    stats.restarting(0, now);
    let begun = now + Duration::from_secs(3);
    stats.started(0, 2, (0, false), Duration::from_secs(1), begun);
    let told = stats.json(OUTCOME);
    let one = &told["recoveries"]["each"][0];
    for name in [
        "detect_seconds",
        "begin_seconds",
        "collect_seconds",
        "replay_seconds",
        "catch_up_seconds",
        "total_seconds",
    ] {
        assert!(one[name].is_null(), "{name}: {}", one[name]);
    }
    assert_eq!(one["fetch_image_seconds"], 1.0);
    assert!(told["checkpoints"]["individual_seconds"].is_null());
}

#[test]
fn checkpoints_are_kept_one_by_one_up_to_a_bound() {
    let start = Instant::now();
    let mut stats = Stats::new(4, start);
    for number in 1..=KEPT as u64 + 3 {
        stats.take(&Event::ImageAsked { rank: 2 }, start + Duration::from_secs(1));
        stats.checkpointed(2, number, Duration::from_millis(8), start + Duration::from_secs(2));
    }
    stats.image_written(2, 5, 100, 60, Duration::from_secs(1));
    stats.image_written(2, 1, 100, 60, Duration::from_secs(1));
    let told = &stats.json(OUTCOME)["checkpoints"];
    assert_eq!((&told["left_out"], &told["written_bytes"]), (&3.into(), &120.into()));
    let each = told["each"].as_array().unwrap();
    assert_eq!(each.len(), KEPT);
    assert_eq!((&each[0]["number"], &each[0]["bytes"]), (&4.into(), &Value::Null));
    assert_eq!(
        (&each[1]["bytes"], &each[1]["written_bytes"]),
        (&100.into(), &60.into())
    );
    assert_eq!(each[0]["individual_seconds"], 0.008);
    assert_eq!(each[0]["total_seconds"], 1.0);
    assert_eq!(each[0]["effective_delay_seconds"], 0.002);
}

#[test]
fn a_wave_of_a_group_delays_the_job_by_its_part() {
    let start = Instant::now();
    let ms = Duration::from_millis;
    let mut stats = Stats::new(4, start);
    stats.wave_complete(1, ms(9), ms(8), ms(4), Some(&[1, 3]), start);
    stats.wave_complete(1, ms(9), ms(8), ms(4), Some(&[0, 2]), start);
    stats.image_written(3, 1, 70, 7, ms(1));
    assert_eq!((stats.individual(), stats.effective()), (Some(0.004), ms(4)));
    let each = &stats.json(OUTCOME)["checkpoints"]["each"];
    assert_eq!(each[0]["group"], serde_json::json!([1, 3]));
    assert_eq!(
        (&each[0]["bytes"], &each[1]["bytes"]),
        (&70.into(), &serde_json::Value::Null)
    );
    assert_eq!(each[1]["effective_delay_seconds"], 0.002);
}

#[test]
fn what_was_done_since_the_wave_is_lost_when_all_return() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut stats = Stats::new(2, start);
    stats.coordinated = true;
    let fail = |stats: &mut Stats, now| {
        stats.failed(&killed(0, 1, LifeStatistics::default()), now);
        stats.restarting(0, now);
    };
    let returned = |stats: &mut Stats, wave, now| stats.returned(wave, stats.lost_by_return(wave, now), now);
    fail(&mut stats, at(4));
    returned(&mut stats, 0, at(5));
    assert_eq!(stats.lost, Duration::from_secs(5));
    stats.wave_complete(1, Duration::ZERO, Duration::ZERO, Duration::ZERO, None, at(6));
    fail(&mut stats, at(9));
    returned(&mut stats, 1, at(10));
    assert_eq!(stats.lost, Duration::from_secs(5 + 4));
    // Again from the same wave: lost work does not count twice.
    fail(&mut stats, at(12));
    returned(&mut stats, 1, at(13));
    assert_eq!(stats.lost, Duration::from_secs(5 + 4 + 3));
    // The wave is lost, too.
    fail(&mut stats, at(15));
    returned(&mut stats, 0, at(16));
    assert_eq!(stats.lost, Duration::from_secs(16));
    fail(&mut stats, at(18));
    stats.ended(&[], at(20));
    assert_eq!(stats.lost, Duration::from_secs(20));
}

use super::*;

const HOUR: f64 = 3600.0;

fn figures() -> Figures {
    Figures {
        nodes: 64,
        work: 24.0 * HOUR,
        mtbf: 12.0 * HOUR,
        at_once: 1,
        outage: f64::INFINITY,
        image: 2e9,
        cost: 3.0,
        restart: 2.0,
        link: 100e6,
        place: 0.0,
        slowdown: 0.1,
        logging: 0.05,
        log_growth: 1e5,
        log_room: 1e9,
        replay: 0.8,
    }
}

fn near(one: f64, other: f64, part: f64, what: &str) {
    assert!((one / other - 1.0).abs() < part, "{what}: {one} is not {other}");
}

/// Waves without a place.
fn one_level(interval: f64, cost: f64, mtbf: f64, back: f64) -> Waves {
    Waves {
        interval,
        cost,
        period: 1,
        more: 0.0,
        rates: [1.0 / mtbf, 0.0],
        returns: [back, 0.0],
    }
}

#[test]
fn one_level_is_daly() {
    for (interval, cost, mtbf, back) in [
        (600.0, 3.0, HOUR, 30.0),
        (60.0, 20.0, 300.0, 5.0),
        (10.0, 0.1, 1e9, 1.0),
    ] {
        let waves = one_level(interval, cost, mtbf, back);
        // Daly 2006, equation 20.
        let daly = mtbf * (back / mtbf).exp() * ((interval + cost) / mtbf).exp_m1() * 1e5 / interval;
        near(waves.time(1e5), daly, 1e-9, "one level");
        // With the same return from both levels, they are one.
        let both = Waves {
            rates: [0.3 / mtbf, 0.7 / mtbf],
            returns: [back, back],
            ..waves
        };
        near(both.time(1e5), daly, 1e-9, "two levels that are one");
    }
}

#[test]
fn the_best_interval_is_that_of_daly() {
    for (cost, mtbf) in [(1.0, 1000.0), (10.0, 2000.0), (0.01, 1e5)] {
        let time = |interval: f64| one_level(interval, cost, mtbf, 0.0).time(1e6);
        let (best, least) = least(0.01, 1e6, time);
        let daly =
            (2.0_f64 * cost * mtbf).sqrt() * (1.0 + (cost / (2.0 * mtbf)).sqrt() / 3.0 + cost / (18.0 * mtbf)) - cost;
        near(best, daly, 0.01, "interval");
        assert!(least <= time(daly) && least <= time(best * 1.1) && least <= time(best / 1.1));
    }
}

#[test]
fn without_failures_only_images_cost() {
    let waves = Waves {
        interval: 10.0,
        cost: 1.0,
        period: 5,
        more: 2.0,
        rates: [0.0, 0.0],
        returns: [1.0, 1.0],
    };
    near(waves.time(100.0), 114.0, 1e-12, "waves");
    near(from_the_beginning(100.0, 0.0, 5.0), 100.0, 1e-12, "nothing");
    near(from_the_beginning(100.0, 1e-3, 0.0), 105.17, 1e-4, "nothing, failures");
}

#[test]
fn rare_failures_of_a_short_job_need_no_images() {
    let choices = Figures {
        work: 10.0,
        ..figures()
    }
    .choices();
    assert_eq!(choices[0].means, Means::Nothing);
}

#[test]
fn a_long_job_takes_waves_and_one_with_many_failures_logs() {
    let best = figures().choices()[0];
    assert_eq!((best.means, best.replicas, best.place_every), (Means::Waves, 1, 0));
    let often = Figures {
        mtbf: 300.0,
        replay: 0.5,
        ..figures()
    };
    assert_eq!(often.choices()[0].means, Means::Logging, "{:?}", often.choices());
}

#[test]
fn nodes_that_fail_together_need_more_replicas() {
    let replicas = |at_once: u32| {
        let several = Figures {
            at_once,
            mtbf: 2.0 * HOUR,
            ..figures()
        };
        several.choices()[0].replicas
    };
    assert_eq!(replicas(1), 1);
    assert!(replicas(8) >= 2, "{}", replicas(8));
    assert!(replicas(16) > replicas(4));
}

#[test]
fn outages_need_a_place() {
    let place = Figures {
        place: 400e6,
        outage: 100.0 * HOUR,
        work: 500.0 * HOUR,
        ..figures()
    };
    let choices = place.choices();
    let best = choices[0];
    assert!(best.place_every > 1 && best.replicas == 1, "{best:?}");
    let alone = choices
        .iter()
        .find(|choice| choice.replicas == 0 && choice.place_every == 1)
        .unwrap();
    assert!(alone.expected > best.expected);
}

#[test]
fn logs_that_are_full_soon_shorten_the_interval() {
    let growing = Figures {
        log_growth: 1e9,
        mtbf: 120.0,
        ..figures()
    };
    let choices = growing.choices();
    let logged = choices
        .iter()
        .find(|choice| choice.means == Means::Logging && choice.replicas == 1)
        .unwrap();
    assert!(logged.interval <= 40.0, "{logged:?}: a replica needs 40 s");
}

#[test]
fn every_choice_has_a_time_and_the_best_a_reason() {
    for at_once in [0, 1, 64] {
        for nodes in [1, 2, 64] {
            let at_once = at_once.min(nodes);
            for mtbf in [1.0, 60.0, 1e9] {
                for place in [0.0, 1e8] {
                    let these = Figures {
                        nodes,
                        at_once,
                        mtbf,
                        place,
                        ..figures()
                    };
                    let choices = these.choices();
                    assert!(choices.iter().all(|one| one.expected >= these.work), "{choices:?}");
                    assert!(!these.reason(&choices).contains("NaN"), "{}", these.reason(&choices));
                }
            }
        }
    }
}

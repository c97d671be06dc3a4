//! The formulas of `resurgo advise` against jobs that are played event by event.

use resurgo_protocol::advice::model::{Logging, Waves, from_the_beginning};
use resurgo_sim::random::Random;

/// A time from an exponential distribution.
fn waiting(rate: f64, random: &mut Random) -> f64 {
    if rate == 0.0 {
        return f64::INFINITY;
    }
    let part = (random.draw() >> 11) as f64 / (1_u64 << 53) as f64;
    -(1.0 - part).ln() / rate
}

/// The mean of so many jobs, and five times its standard error.
fn mean(jobs: u32, mut one: impl FnMut() -> f64) -> (f64, f64) {
    let times: Vec<f64> = (0..jobs).map(|_| one()).collect();
    let mean = times.iter().sum::<f64>() / f64::from(jobs);
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / f64::from(jobs);
    (mean, 5.0 * (variance / f64::from(jobs)).sqrt())
}

#[track_caller]
fn is_near(model: f64, (played, error): (f64, f64), more: f64, what: &str) {
    let allowed = error + more * played;
    assert!(
        (model - played).abs() <= allowed,
        "{what}: {model:.1} by the model, {played:.1} ± {error:.1} played"
    );
}

/// One job with waves. An image counts only `lag` after its wave.
fn play_waves(waves: Waves, intervals: u32, lag: f64, random: &mut Random) -> f64 {
    let rate: f64 = waves.rates.iter().sum();
    let is_far = |random: &mut Random| waiting(waves.rates[1], random) < waiting(waves.rates[0], random);
    let (mut time, mut done, mut last_wave) = (0.0, 0, 0.0);
    let mut failure = waiting(rate, random);
    while done < intervals {
        let also = if done % waves.period == waves.period - 1 {
            waves.more
        } else {
            0.0
        };
        let length = waves.interval + waves.cost + also;
        if time + length <= failure {
            time += length;
            (done, last_wave) = (done + 1, time);
            continue;
        }
        time = failure;
        let mut far = is_far(random);
        if !far && time < last_wave + lag && done > 0 {
            done -= 1;
        }
        loop {
            failure = time + waiting(rate, random);
            let back = waves.returns[usize::from(far)];
            if time + back <= failure {
                time += back;
                break;
            }
            time = failure;
            far |= is_far(random);
        }
        if far {
            done -= done % waves.period;
        }
        last_wave = f64::NEG_INFINITY;
    }
    time
}

/// One job with logging: each rank has its images at its own times, and a failed one repeats its work since.
fn play_logging(logging: Logging, ranks: u32, work: f64, random: &mut Random) -> f64 {
    let steps = work / logging.interval * f64::from(ranks);
    let step = logging.interval / f64::from(ranks);
    let cost = logging.cost / f64::from(ranks);
    let (mut time, mut failure) = (0.0, waiting(logging.rate, random));
    // When each rank had its last image, in work done.
    let mut images = vec![0.0; ranks as usize];
    for number in 0..steps as u64 {
        let begun = number as f64 * step;
        let mut left = step + cost;
        while time + left > failure {
            left -= failure - time;
            let age = begun + (step - left.min(step)) - images[random.below(u64::from(ranks)) as usize];
            // Failures meanwhile are of other ranks.
            time = failure + logging.restart + logging.replay * age;
            failure += waiting(logging.rate, random);
            while failure < time {
                let age = begun - images[random.below(u64::from(ranks)) as usize];
                time += logging.restart + logging.replay * age;
                failure += waiting(logging.rate, random);
            }
        }
        time += left;
        images[(number % u64::from(ranks)) as usize] = begun + step;
    }
    time
}

#[test]
fn waves_take_as_long_as_the_model_says() {
    let mut random = Random::new(1);
    for (interval, cost, period, more, rates, returns) in [
        (600.0, 10.0, 1, 0.0, [1e-4, 0.0], [30.0, 0.0]),
        (600.0, 10.0, 1, 0.0, [2e-3, 0.0], [60.0, 0.0]),
        (300.0, 5.0, 6, 20.0, [3e-4, 2e-5], [20.0, 400.0]),
        (100.0, 5.0, 10, 30.0, [2e-3, 5e-4], [20.0, 300.0]),
        (100.0, 5.0, 4, 0.0, [0.0, 1e-3], [20.0, 100.0]),
    ] {
        let waves = Waves {
            interval,
            cost,
            period,
            more,
            rates,
            returns,
        };
        let model = waves.time(interval * 120.0);
        let played = mean(2000, || play_waves(waves, 120, 0.0, &mut random));
        is_near(model, played, 0.0, &format!("{waves:?}"));
    }
}

#[test]
fn images_that_count_later_lose_that_time_once_more() {
    let mut random = Random::new(2);
    for lag in [20.0, 60.0] {
        let waves = Waves {
            interval: 300.0,
            cost: 5.0,
            period: 1,
            more: 0.0,
            rates: [2e-4, 0.0],
            returns: [20.0, 0.0],
        };
        let model = Waves {
            returns: [20.0 + lag, 0.0],
            ..waves
        };
        let played = mean(4000, || play_waves(waves, 200, lag, &mut random));
        is_near(model.time(300.0 * 200.0), played, 0.005, &format!("lag {lag}"));
    }
}

#[test]
fn logging_takes_as_long_as_the_model_says() {
    let mut random = Random::new(3);
    for (rate, restart, replay) in [(1e-4, 10.0, 1.0), (1e-3, 20.0, 0.5), (3e-3, 5.0, 0.8)] {
        let logging = Logging {
            interval: 200.0,
            cost: 8.0,
            rate,
            restart,
            replay,
        };
        let played = mean(1000, || play_logging(logging, 32, 40_000.0, &mut random));
        is_near(logging.time(40_000.0), played, 0.01, &format!("{logging:?}"));
    }
}

#[test]
fn a_job_without_images_takes_as_long_as_the_model_says() {
    let mut random = Random::new(4);
    let (work, rate, restart) = (1000.0, 1e-3, 50.0);
    let played = mean(20_000, || {
        let mut time = 0.0;
        loop {
            let failure = waiting(rate, &mut random);
            if failure >= work {
                return time + work;
            }
            time += failure + restart;
        }
    });
    is_near(from_the_beginning(work, rate, restart), played, 0.0, "no images");
}

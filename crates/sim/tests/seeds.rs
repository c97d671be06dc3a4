//! Thousands of random jobs with random failures: every invariant holds after every event.

use resurgo_protocol::Tolerate;
use resurgo_sim::{Options, Outcome, simulate};

fn run(tolerate: Tolerate, seeds: std::ops::Range<u64>) {
    let (mut crashes, mut lost) = (0, 0);
    let count = seeds.end - seeds.start;
    let options = Options {
        tolerate,
        mutation: None,
    };
    for seed in seeds {
        match simulate(seed, options, false) {
            Ok(report) => {
                crashes += report.crashes;
                lost += u64::from(matches!(report.outcome, Outcome::HistoryLost { .. }));
            }
            Err(failure) => {
                let again = simulate(seed, options, true).err().unwrap_or(failure);
                panic!(
                    "{}\n{again}\nreproduce: cargo run -p resurgo-sim -- --tolerate {} --seed {seed}",
                    again.trace.join("\n"),
                    format!("{tolerate:?}").to_lowercase()
                );
            }
        }
    }
    // The runs must be worth something.
    assert!(crashes > 2 * count, "{crashes} crashes in {count} seeds");
    assert!(lost < count / 10, "{lost} of {count} seeds lost more than is tolerated");
}

#[test]
fn a_lost_process_ends_no_job() {
    run(Tolerate::Process, 0..3000);
}

#[test]
fn a_lost_node_ends_no_job() {
    run(Tolerate::Node, 0..3000);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for tolerate in [Tolerate::Process, Tolerate::Node] {
        let options = Options {
            tolerate,
            mutation: None,
        };
        for seed in 0..50 {
            let (first, second) = (
                simulate(seed, options, false).unwrap(),
                simulate(seed, options, true).unwrap(),
            );
            assert_eq!(first, second);
        }
    }
}

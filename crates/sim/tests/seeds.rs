//! Thousands of random jobs with random failures: every invariant holds after every event.

use resurgo_sim::{Options, Outcome, Setting, simulate};

fn run(setting: Setting, seeds: std::ops::Range<u64>) {
    let (mut crashes, mut lost, mut from_images, mut fallbacks) = (0, 0, 0, 0);
    let count = seeds.end - seeds.start;
    let options = Options {
        setting,
        mutation: None,
    };
    for seed in seeds {
        match simulate(seed, options, false) {
            Ok(report) => {
                crashes += report.crashes;
                from_images += report.from_images;
                fallbacks += report.fallbacks;
                lost += u64::from(matches!(report.outcome, Outcome::HistoryLost { .. }));
            }
            Err(failure) => {
                let again = simulate(seed, options, true).err().unwrap_or(failure);
                panic!(
                    "{}\n{again}\nreproduce: cargo run -p resurgo-sim -- --tolerate {} --seed {seed}",
                    again.trace.join("\n"),
                    setting.name()
                );
            }
        }
    }
    // The runs must be worth something.
    assert!(crashes > 2 * count, "{crashes} crashes in {count} seeds");
    assert!(
        from_images > count / 2,
        "{from_images} lives from images in {count} seeds"
    );
    assert!(
        fallbacks > count / 10,
        "{fallbacks} images found destroyed, or waves dropped, in {count} seeds"
    );
    assert!(lost < count / 10, "{lost} of {count} seeds lost more than is tolerated");
}

#[test]
fn a_lost_process_ends_no_job() {
    run(Setting::Process, 0..3000);
}

#[test]
fn a_lost_node_ends_no_job() {
    run(Setting::Node, 0..3000);
}

#[test]
fn a_process_lost_where_nodes_may_be_ends_no_job() {
    run(Setting::InPlace, 0..3000);
}

#[test]
fn a_lost_process_sends_all_ranks_back_to_their_last_wave() {
    run(Setting::Blocking, 0..10_000);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for setting in Setting::ALL {
        let options = Options {
            setting,
            mutation: None,
        };
        for seed in 0..50 {
            let (first, second) = (
                simulate(seed, options, true).unwrap(),
                simulate(seed, options, true).unwrap(),
            );
            assert_eq!(first, second);
        }
    }
}

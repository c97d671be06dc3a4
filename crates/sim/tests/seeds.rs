//! Thousands of random jobs with random failures: every invariant holds after every event.

use resurgo_protocol::causal::Reduction;
use resurgo_sim::{Loggers, Options, Outcome, Piggybacks, Setting, Spread, simulate};

fn run(setting: Setting, seeds: std::ops::Range<u64>) {
    // Where a node takes images along, fewer begin from one.
    let images_of = if setting.has_nodes() { 6 } else { 3 };
    let (mut crashes, mut lost, mut from_images, mut fallbacks) = (0, 0, 0, 0);
    let count = seeds.end - seeds.start;
    let options = Options {
        setting,
        mutation: None,
        loggers: None,
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
        from_images > count / images_of,
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
fn ranks_return_alone_or_together() {
    run(Setting::Auto, 0..3000);
}

#[test]
fn all_return_when_a_node_is_lost_with_its_logs() {
    run(Setting::AutoOnNodes, 0..3000);
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
fn a_lost_node_ends_no_job_under_causal_logging() {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        run(Setting::Causal(reduction), 0..1500);
    }
}

#[test]
fn a_lost_process_whose_past_is_read_where_it_lies_ends_no_job() {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        run(Setting::Gathering(reduction), 0..1500);
    }
}

fn survives(seed: u64) {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        let options = Options {
            setting: Setting::Gathering(reduction),
            mutation: None,
            loggers: None,
        };
        let report = simulate(seed, options, false).map_err(|failure| failure.violation.to_string());
        assert!(report.is_ok(), "{report:?}");
    }
}

/// A life sees what another knew that has died, and what a third does that did not find that any more.
#[test]
fn two_forms_of_a_delivery_are_no_contradiction_when_somebody_has_begun_again_meanwhile() {
    survives(105_368);
}

/// Of two lives that begin at once one has told what it will know, and looks again: the other must not go by what was told first.
#[test]
fn what_a_life_takes_back_before_it_begins_was_never_known() {
    survives(50_672);
}

/// What the paper finds (Bouteiller 2005, §V): the graph leaves out events, partial order costs bytes, an event logger saves
/// most of both.
#[test]
fn piggybacks_are_as_large_as_they_should_be() {
    let total = |reduction, count| {
        let options = Options {
            setting: Setting::Causal(reduction),
            mutation: None,
            loggers: Some(Loggers {
                count,
                spread: Spread::Multicast,
            }),
        };
        let mut total = Piggybacks::default();
        (0..200).for_each(|seed| total.add(&simulate(seed, options, false).unwrap().piggybacks));
        total
    };
    for count in [0, 1, 2] {
        let (vcausal, manetho) = (total(Reduction::Vcausal, count), total(Reduction::Manetho, count));
        let logon = total(Reduction::LogOn, count);
        // Edges go with what is stable, and the two follow them at different times.
        assert!(
            manetho.events.abs_diff(logon.events) < logon.events / 100,
            "{manetho:?} {logon:?}"
        );
        assert!(manetho.events < vcausal.events, "{manetho:?} {vcausal:?}");
        assert!(manetho.bytes < logon.bytes, "{manetho:?} {logon:?}");
    }
    let (none, one) = (total(Reduction::Vcausal, 0), total(Reduction::Vcausal, 1));
    assert!(
        2 * one.events * none.messages < none.events * one.messages,
        "{one:?} {none:?}"
    );
    assert!(one.largest_graph < none.largest_graph, "{one:?} {none:?}");
}

#[test]
fn a_lost_process_sends_all_ranks_back_to_their_last_wave() {
    run(Setting::Blocking, 0..10_000);
}

#[test]
fn waves_that_stop_nobody_are_returned_to() {
    run(Setting::ChandyLamport, 0..10_000);
}

#[test]
fn waves_of_groups_in_turn_are_returned_to() {
    run(Setting::Group, 0..2_000);
}

#[test]
fn a_lost_node_sends_all_ranks_back_to_a_wave_that_is_not_lost_with_it() {
    run(Setting::BlockingOnNodes, 0..3_000);
    run(Setting::ChandyLamportOnNodes, 0..3_000);
    run(Setting::GroupOnNodes, 0..500);
}

#[test]
fn a_group_returns_alone() {
    run(Setting::Hierarchical, 0..4_000);
}

#[test]
fn a_rank_begins_again_with_its_channel_memory_alone() {
    run(Setting::ChannelMemory, 0..3000);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for setting in Setting::ALL {
        let options = Options {
            setting,
            mutation: None,
            loggers: None,
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

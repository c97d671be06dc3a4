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
fn images_of_lost_nodes_are_made_from_parity() {
    run(Setting::BlockingWithParity, 0..500);
    run(Setting::ChandyLamportWithParity, 0..500);
    run(Setting::GroupWithParity, 0..500);
}

#[test]
fn logs_beside_images_are_made_from_parity_too() {
    run(Setting::AutoWithParity, 0..1000);
}

#[test]
fn all_return_when_a_node_is_lost_with_its_logs() {
    run(Setting::AutoOnNodes, 0..3000);
}

/// Ranks and nodes fail, and the others agree, shrink and go on.
#[test]
fn survivors_have_right_answers_and_come_to_an_end() {
    let options = Options {
        setting: Setting::Survivors,
        mutation: None,
        loggers: None,
    };
    let (mut crashes, mut shrunk) = (0, 0);
    for seed in 0..3000 {
        match simulate(seed, options, false) {
            Ok(report) => (crashes, shrunk) = (crashes + report.crashes, shrunk + report.fallbacks),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    assert!(crashes > 6000 && shrunk > 6000, "{crashes} crashes, {shrunk} shrunk");
}

/// Ranks come back some times before the others are told.
#[test]
fn survivors_recover_first_and_hear_of_nothing_meanwhile() {
    let options = Options {
        setting: Setting::RecoveringSurvivors,
        mutation: None,
        loggers: None,
    };
    let (mut crashes, mut restarts, mut shrunk) = (0, 0, 0);
    for seed in 0..3000 {
        match simulate(seed, options, false) {
            Ok(report) => {
                (crashes, restarts) = (crashes + report.crashes, restarts + report.from_images);
                shrunk += report.fallbacks;
            }
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    assert!(
        crashes > restarts && restarts > 6000 && shrunk > 1000,
        "{crashes} crashes, {restarts} restarts, {shrunk} shrunk"
    );
}

/// Answers how many lives began from images.
fn run_moving(setting: Setting, seeds: u64) -> u64 {
    let options = Options {
        setting,
        mutation: None,
        loggers: None,
    };
    let (mut crashes, mut from_images) = (0, 0);
    for seed in 0..seeds {
        let report = simulate(seed, options, false).map_err(|failure| failure.violation.to_string());
        from_images += report.as_ref().map_or(0, |report| report.from_images);
        crashes += report.as_ref().map_or(0, |report| report.crashes);
        assert!(report.is_ok(), "seed {seed}: {report:?}");
    }
    assert!(crashes > 2 * seeds, "{crashes} crashes");
    from_images
}

#[test]
fn only_the_ranks_of_a_lost_node_go_back_to_images_with_what_others_have_of_their_logs() {
    let from_images = run_moving(Setting::PessimisticOnNodes, 3000);
    assert!(from_images > 2000, "{from_images} lives from images");
}

#[test]
fn only_the_ranks_of_a_lost_node_go_back_with_what_others_know_of_their_deliveries() {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        let from_images = run_moving(Setting::CausalOnNodes(reduction), 1500);
        assert!(from_images > 1000, "{from_images} lives from images");
    }
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

fn run_one(setting: Setting, seed: u64) {
    let options = Options {
        setting,
        mutation: None,
        loggers: None,
    };
    let report = simulate(seed, options, false).map_err(|failure| failure.violation.to_string());
    assert!(report.is_ok(), "{report:?}");
}

/// Nodes are lost while ranks read images of a wave from them, and images turn out to be damaged.
#[test]
fn a_wave_that_can_be_read_anywhere_is_returned_to() {
    for seed in [20_000_071, 20_004_802, 30_049_843] {
        run_one(Setting::BlockingOnNodes, seed);
    }
    for seed in [20_000_689, 20_002_691, 30_023_747] {
        run_one(Setting::ChandyLamportOnNodes, seed);
    }
    run_one(Setting::GroupOnNodes, 20_050_779);
}

/// A node is lost while all return, or fetch images; what is readable nowhere needs no replica.
#[test]
fn all_return_once_for_each_lost_node() {
    for seed in [15_186, 107_145] {
        run_one(Setting::BlockingOnNodes, seed);
    }
    for seed in [8_863, 14_318] {
        run_one(Setting::ChandyLamportOnNodes, seed);
    }
}

/// Images come to be on one node before pieces are made of them; or one is back on its own, beside too few pieces.
#[test]
fn sets_have_as_many_pieces_as_can_be_on_nodes_of_their_own() {
    run_one(Setting::BlockingWithParity, 13_647);
    run_one(Setting::GroupWithParity, 203_663);
}

/// The only image of a rank is lost that logs have begun anew behind.
#[test]
fn a_rank_that_has_lost_its_image_returns_with_all_where_logs_begin_with_the_wave() {
    run_one(Setting::AutoOnNodes, 9_106_434);
}

fn survives(seed: u64) {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        run_one(Setting::Gathering(reduction), seed);
    }
}

/// A life sees what a dead rank knew, and what a third does that did not find that any more.
#[test]
fn two_forms_of_a_delivery_are_no_contradiction_when_somebody_has_begun_again_meanwhile() {
    survives(105_368);
}

/// Of two lives that begin at once one has told what it will know, and looks again: the other must not rely on the
/// first version.
#[test]
fn what_a_life_takes_back_before_it_begins_was_never_known() {
    survives(50_672);
}

/// Copies of two ranks are lost in two of the last waves: all have written images, but not all of the same waves.
#[test]
fn nothing_is_kept_behind_waves_that_all_have_written() {
    for (setting, seed) in [(Setting::Auto, 9_065_431), (Setting::AutoOnNodes, 9_032_436)] {
        run_one(setting, seed);
    }
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
fn only_the_groups_of_a_lost_node_return() {
    let from_images = run_moving(Setting::HierarchicalOnNodes, 1500);
    assert!(from_images > 2000, "{from_images} lives from images");
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

//! The checkers see every way in which the protocol is broken on purpose.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use resurgo_sim::{Mutation, Options, Setting, Violation, simulate};

/// Seeds within which a variant must be caught; the rare ones need a conspiracy of failures.
fn seeds(mutation: Mutation, setting: Setting) -> Range<u64> {
    match mutation {
        Mutation::TellEndsUnflushed if setting == Setting::GroupOnNodes => 6_255..6_265,
        Mutation::TellEndsUnflushed if setting == Setting::AutoOnNodes => 5_480..5_490,
        Mutation::LeaveWhatEndedRanksSent if setting == Setting::AutoOnNodes => 1_430..1_440,
        Mutation::LeaveWhatEndedRanksSent if setting == Setting::AutoWithParity => 540..550,
        Mutation::LeaseFromAnswer if setting == Setting::ChandyLamportOnNodes => 4_310..4_320,
        Mutation::TellEndsUnflushed | Mutation::ForgetEpoch => 0..1_200,
        Mutation::CompleteAtOnce => 5_220..5_230,
        Mutation::ForgetWhatImagesKnow => 700..1_300,
        Mutation::PublishAndBegin => 6_470..6_480,
        Mutation::AcceptStrays => 25_255..25_265,
        Mutation::CollectBySingle
        | Mutation::LateImage
        | Mutation::ImageWithHeldFrames
        | Mutation::LoggerDoesNotFence
        | Mutation::ReceiverDoesNotFence
        | Mutation::CloseBeforeRewinding
        | Mutation::KeepFormerPieces
        | Mutation::TakeDamagedTransit
        | Mutation::LoggerWithoutOrder
        | Mutation::ForgetPlaces
        | Mutation::CountPartOfPlace
        | Mutation::StoreWithoutLaterEnds
        | Mutation::FetchOtherWave
        | Mutation::BeginBeforeFetched => 0..2_000,
        Mutation::KeepRecordOfLeftWave => 0..2_400,
        Mutation::CountUnvouched => 2_700..2_710,
        Mutation::LetGoLate => 3_550..3_570,
        Mutation::TellAgain => 7_215..7_225,
        Mutation::KeepClocksWhenAllBegin => 11_275..11_285,
        Mutation::KeepCountsWhenAllBegin if setting == Setting::HierarchicalOnNodes => 4_480..4_490,
        _ => 0..400,
    }
}

fn caught(mutation: Mutation, setting: Setting) -> Option<Violation> {
    let options = Options {
        setting,
        mutation: Some(mutation),
        loggers: None,
    };
    seeds(mutation, setting).find_map(|seed| Some(simulate(seed, options, false).err()?.violation))
}

/// Each processor takes one variant after the other.
#[test]
fn every_broken_variant_is_caught() {
    let next = AtomicUsize::new(0);
    let look = || {
        let taken = std::iter::from_fn(|| Mutation::ALL.get(next.fetch_add(1, Ordering::Relaxed)));
        taken
            .filter(|(mutation, setting)| caught(*mutation, *setting).is_none())
            .collect::<Vec<_>>()
    };
    let processors = available_parallelism().map_or(1, usize::from);
    let missed: Vec<_> = scope(|scope| {
        let all: Vec<_> = (0..processors).map(|_| scope.spawn(look)).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

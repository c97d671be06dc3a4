//! The checkers see every way in which the protocol is broken on purpose.

use std::ops::Range;

use resurgo_protocol::Tolerate;
use resurgo_sim::{Mutation, Options, Violation, simulate};

/// Seeds within which a variant must be caught; the rare ones need a conspiracy of failures.
fn seeds(mutation: Mutation) -> Range<u64> {
    match mutation {
        Mutation::AcceptStrays => 3_500..5_000,
        Mutation::LoggerDoesNotFence | Mutation::ReceiverDoesNotFence => 0..2_000,
        _ => 0..200,
    }
}

fn caught(mutation: Mutation, tolerate: Tolerate) -> Option<Violation> {
    let options = Options {
        tolerate,
        mutation: Some(mutation),
    };
    seeds(mutation).find_map(|seed| Some(simulate(seed, options, false).err()?.violation))
}

#[test]
fn every_broken_variant_is_caught() {
    for (mutation, tolerate) in Mutation::ALL {
        assert!(
            caught(mutation, tolerate).is_some(),
            "{mutation:?} ({tolerate:?}) is not caught"
        );
    }
}

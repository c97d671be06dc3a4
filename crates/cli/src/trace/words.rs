//! Times and failures in words.

use std::time::Duration;

use resurgo_runtime::units::readable_duration;
use resurgo_trace::report::Failure;

pub fn time(nanoseconds: u64) -> String {
    readable_duration(Duration::from_nanos(nanoseconds))
}

pub fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// What a failure was, and what it cost.
pub fn failure(failure: &Failure) -> String {
    let Failure { rank, life, .. } = failure;
    let what = match &failure.cause {
        Some(cause) => format!("rank {rank} {cause}"),
        None => format!("rank {rank} began again with others"),
    };
    let mut text = format!("{what} at {}: {}", time(failure.at), time(failure.cost));
    text += &match failure.is_over {
        true => format!(" until life {life} had caught up"),
        false => format!(" in life {life}, which did not catch up"),
    };
    if let Some(begins) = failure.begins {
        let replay = time(failure.replay);
        text += &format!("; {} to begin, {replay} of replay", time(begins));
    }
    text
}

//! `--checkpoint-policy`: which rank's image is taken next.

use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::{Order, Period};

use super::types::Options;
use crate::near::nearest;

/// The values of `--checkpoint-policy`.
pub const POLICIES: &[&str] = &["periodic", "round-robin", "random", "most-log", "daly"];

/// Sets what the policy means, if one is given and can be followed.
pub fn check(options: &mut Options) -> Result<(), String> {
    if !options.has("checkpoint-policy") {
        return Ok(());
    }
    let policy = options.images.policy.clone();
    let order = order(&policy).map_err(|error| format!("--checkpoint-policy: {error}"))?;
    let period = options.images.period;
    match (order, period) {
        (None, Period::Never) => options.images.period = Period::Daly { mtbf: None },
        (None, Period::Daly { .. }) => {}
        (None, Period::Every(_)) => {
            return Err(
                "--checkpoint-policy daly chooses the time between images itself; leave --checkpoint-every out, or write periodic"
                    .to_string(),
            );
        }
        (Some(_), Period::Never) => {
            return Err(format!(
                "--checkpoint-policy {policy} says whose image comes next; --checkpoint-every TIME has to say how often"
            ));
        }
        (Some(order), _) if order != Order::Periodic && options.protocol.only_waves() => {
            let protocol = options.protocol.name();
            if options.protocol == Protocol::Hierarchical {
                return Err(format!(
                    "--checkpoint-policy {policy} chooses single ranks, and under --protocol hierarchical all ranks of a group \
                     have their images together; the nearest is periodic, a wave of each group every time"
                ));
            }
            return Err(format!(
                "--checkpoint-policy {policy} chooses single ranks, and under --protocol {protocol} all ranks have their images \
                 together; the nearest is periodic, a wave every time"
            ));
        }
        (Some(order), _) => options.images.order = order,
    }
    Ok(())
}

/// Whether this policy is for single ranks, and not for waves.
pub fn is_of_single_ranks(policy: &str) -> bool {
    matches!(order(policy), Ok(Some(order)) if order != Order::Periodic)
}

/// The order that a policy stands for; None for daly, which sets times.
pub fn order(policy: &str) -> Result<Option<Order>, String> {
    let (name, seed) = match policy.split_once(',') {
        Some((name, rest)) => (name, Some(rest)),
        None => (policy, None),
    };
    if seed.is_some() && name != "random" {
        return Err(format!("{policy:?}: only random takes a seed"));
    }
    match name {
        "periodic" => Ok(Some(Order::Periodic)),
        "round-robin" => Ok(Some(Order::RoundRobin)),
        "most-log" => Ok(Some(Order::MostLog)),
        "daly" => Ok(None),
        "random" => {
            let seed = match seed {
                None => 1,
                Some(text) => text
                    .strip_prefix("seed=")
                    .and_then(|number| number.parse().ok())
                    .ok_or_else(|| format!("{policy:?}: write random,seed=N with a number N"))?,
            };
            Ok(Some(Order::Random { seed }))
        }
        _ => {
            let hint = match nearest(name, POLICIES) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("there are {}", POLICIES.join(", ")),
            };
            Err(format!("there is no policy {name:?}; {hint}"))
        }
    }
}

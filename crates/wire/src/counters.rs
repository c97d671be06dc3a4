//! What every rank counts about its own work, in the node memory ([`crate::node_memory::control`]).
//!
//! There are two kinds, because a later life repeats what a former one did:
//!
//! - *Sizes*: the messages that the program has sent, by size. They are the program's own progress: the process keeps
//!   them, its image contains them, and the node memory only shows them. A life that repeats sends counts them again
//!   from where it began. So the life that came furthest tells the truth, and nothing counts twice.
//! - *Costs*: what recovery has cost so far (waiting, memory, traffic). They lie in the node memory only. Every life
//!   adds to what it finds there, so they outlive processes; an image does not hold them.
//!
//! To count one more thing: add a variant of [`Cost`] and its line in [`COSTS`], and call `Node::add`, `most` or `put`
//! where it happens.

/// Classes of message sizes are powers of two: see [`class`].
pub const CLASSES: usize = 32;

/// The class of a message of so many bytes: 0 for none, then the smallest class c with `bytes` ≤ 2^(c-1). The last
/// class contains everything beyond 2^29 (512 MiB).
#[inline]
pub const fn class(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let class = 1 + (usize::BITS - (bytes - 1).leading_zeros()) as usize;
    if class < CLASSES { class } else { CLASSES - 1 }
}

/// The most bytes of a message in this class; None for the last one.
pub const fn up_to(class: usize) -> Option<u64> {
    match class {
        0 => Some(0),
        class if class < CLASSES - 1 => Some(1 << (class - 1)),
        _ => None,
    }
}

/// Messages and bytes sent, by class.
pub type Sizes = [[u64; 2]; CLASSES];

/// One of the costs, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cost {
    /// Bytes of memory that the message log and the record hold now, in whole segments.
    LogBytes,
    /// The most that it has been: the rank uses memory again, but gives none back.
    MostLogBytes,
    /// Bytes of the log written to the spill file.
    SpilledBytes,
    /// Times the rank went to sleep waiting for a message.
    Sleeps,
    /// Sends that waited until the event logger had the deliveries before them.
    HeldSends,
    /// How long they waited, each by itself, added up.
    HeldNs,
    /// The longest of these times.
    MostHeldNs,
    /// Answers of the event logger: the time from handing deliveries to it until it acknowledged them.
    LoggerRoundTrips,
    LoggerNs,
    MostLoggerNs,
    /// Messages that carried determinants or could have (causal logging), and those that carried none.
    Piggybacks,
    EmptyPiggybacks,
    /// Bytes that they carried besides their payload, and determinants in them.
    PiggybackBytes,
    PiggybackEvents,
    /// The time to make them, and to take in those of others; estimated from some of them.
    PrepareNs,
    AbsorbNs,
    /// The most determinants that a rank has kept at once: vertices of its antecedence graph.
    LargestGraph,
    /// Messages sent to ranks of other nodes, and their payload.
    RemoteMessages,
    RemoteBytes,
}

/// How the costs of several ranks combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    Sum,
    Greatest,
}

/// One cost, as statistics show it.
pub struct Described {
    pub cost: Cost,
    /// Its name in files. Times are counted in nanoseconds and shown in seconds.
    pub name: &'static str,
    pub together: Together,
}

const fn described(cost: Cost, name: &'static str, together: Together) -> Described {
    Described { cost, name, together }
}

/// All costs, in the order of their places.
pub const COSTS: [Described; 19] = [
    described(Cost::LogBytes, "log_bytes", Together::Sum),
    described(Cost::MostLogBytes, "most_log_bytes", Together::Greatest),
    described(Cost::SpilledBytes, "spilled_bytes", Together::Sum),
    described(Cost::Sleeps, "sleeps", Together::Sum),
    described(Cost::HeldSends, "held_sends", Together::Sum),
    described(Cost::HeldNs, "held_seconds", Together::Sum),
    described(Cost::MostHeldNs, "longest_held_seconds", Together::Greatest),
    described(Cost::LoggerRoundTrips, "event_logger_round_trips", Together::Sum),
    described(Cost::LoggerNs, "event_logger_seconds", Together::Sum),
    described(Cost::MostLoggerNs, "longest_event_logger_seconds", Together::Greatest),
    described(Cost::Piggybacks, "piggybacks", Together::Sum),
    described(Cost::EmptyPiggybacks, "empty_piggybacks", Together::Sum),
    described(Cost::PiggybackBytes, "piggyback_bytes", Together::Sum),
    described(Cost::PiggybackEvents, "piggyback_events", Together::Sum),
    described(Cost::PrepareNs, "prepare_seconds", Together::Sum),
    described(Cost::AbsorbNs, "absorb_seconds", Together::Sum),
    described(Cost::LargestGraph, "largest_graph", Together::Greatest),
    described(Cost::RemoteMessages, "messages_to_other_nodes", Together::Sum),
    described(Cost::RemoteBytes, "bytes_to_other_nodes", Together::Sum),
];

/// The costs of one rank, by place.
pub type Costs = [u64; COSTS.len()];

/// The costs of several ranks.
pub fn together<'a>(ranks: impl IntoIterator<Item = &'a Costs>) -> Costs {
    let mut all = Costs::default();
    for costs in ranks {
        for (described, (all, one)) in COSTS.iter().zip(all.iter_mut().zip(costs)) {
            *all = match described.together {
                Together::Sum => *all + one,
                Together::Greatest => (*all).max(*one),
            };
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_ends_with_a_power_of_two() {
        for (bytes, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (1024, 11), (1025, 12)] {
            assert_eq!(class(bytes), expected, "{bytes}");
        }
        assert_eq!(class(1 << 29), CLASSES - 2);
        assert_eq!(class((1 << 29) + 1), CLASSES - 1);
        assert_eq!(class(usize::MAX), CLASSES - 1);
        for class_of in 0..CLASSES - 1 {
            let most = up_to(class_of).unwrap() as usize;
            assert_eq!((class(most), class(most + 1)), (class_of, class_of + 1));
        }
        assert_eq!(up_to(CLASSES - 1), None);
    }

    #[test]
    fn costs_stand_where_their_numbers_say() {
        for (place, described) in COSTS.iter().enumerate() {
            assert_eq!(described.cost as usize, place, "{}", described.name);
        }
        let (mut one, mut other) = (Costs::default(), Costs::default());
        one[Cost::Sleeps as usize] = 2;
        other[Cost::Sleeps as usize] = 3;
        one[Cost::MostHeldNs as usize] = 7;
        other[Cost::MostHeldNs as usize] = 5;
        let all = together([&one, &other]);
        assert_eq!((all[Cost::Sleeps as usize], all[Cost::MostHeldNs as usize]), (5, 7));
    }
}

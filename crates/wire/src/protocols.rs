//! The fault-tolerance protocols: what each is, one line each. Where the rest has to do different things, it asks for one of these
//! properties and not for a protocol, so that a new one that combines them in another way is a new line here.

/// Where messages are kept for a receiver that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nowhere,
    /// In their sender's log, in the node memory.
    BySender,
    /// The same, for as long as they pass from one group to another; inside a group until its next wave.
    BetweenGroups,
    InChannelMemory,
}

/// What becomes of the order of deliveries, where the loss of a node is tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It is not kept, or not by the rank.
    None,
    /// Sends wait until an event logger has it.
    Logged,
    /// Messages carry it until an event logger has it.
    Piggybacked,
}

/// Images of several ranks that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waves {
    /// Each rank has its images alone.
    None,
    /// All stand still, with empty channels.
    Blocking,
    /// Nobody waits for others, and what is under way is kept.
    Passing,
    /// Of all ranks, one group after another.
    GroupByGroup,
    /// Each group has waves of its own, and returns alone.
    OfEachGroup,
}

struct Protocol {
    name: &'static str,
    kept: Kept,
    order: Order,
    waves: Waves,
}

const fn protocol(name: &'static str, kept: Kept, order: Order, waves: Waves) -> Protocol {
    Protocol {
        name,
        kept,
        order,
        waves,
    }
}

const COUNT: usize = 9;

/// By number.
#[rustfmt::skip]
const ALL: [Protocol; COUNT] = [
    protocol("none",           Kept::Nowhere,         Order::None,        Waves::None),
    protocol("pessimistic",    Kept::BySender,        Order::Logged,      Waves::None),
    protocol("blocking",       Kept::Nowhere,         Order::None,        Waves::Blocking),
    protocol("auto",           Kept::BySender,        Order::Logged,      Waves::Blocking),
    protocol("chandy-lamport", Kept::Nowhere,         Order::None,        Waves::Passing),
    protocol("causal",         Kept::BySender,        Order::Piggybacked, Waves::None),
    protocol("group",          Kept::Nowhere,         Order::None,        Waves::GroupByGroup),
    protocol("hierarchical",   Kept::BetweenGroups,   Order::Logged,      Waves::OfEachGroup),
    protocol("channel-memory", Kept::InChannelMemory, Order::None,        Waves::None),
];

pub const PROTOCOL_NONE: u32 = 0;
pub const PROTOCOL_PESSIMISTIC: u32 = 1;
pub const PROTOCOL_BLOCKING: u32 = 2;
pub const PROTOCOL_AUTO: u32 = 3;
pub const PROTOCOL_CHANDY_LAMPORT: u32 = 4;
pub const PROTOCOL_CAUSAL: u32 = 5;
pub const PROTOCOL_GROUP: u32 = 6;
pub const PROTOCOL_HIERARCHICAL: u32 = 7;
pub const PROTOCOL_CHANNEL_MEMORY: u32 = 8;

/// Names of the protocols, by number.
pub const PROTOCOLS: [&str; COUNT] = {
    let mut names = [""; COUNT];
    let mut number = 0;
    while number < COUNT {
        names[number] = ALL[number].name;
        number += 1;
    }
    names
};

/// Where messages are kept.
pub const fn kept(protocol: u32) -> Kept {
    ALL[protocol as usize].kept
}

/// What becomes of the order of deliveries.
pub const fn order(protocol: u32) -> Order {
    ALL[protocol as usize].order
}

/// Which waves there are.
pub const fn waves(protocol: u32) -> Waves {
    ALL[protocol as usize].waves
}

/// Messages carry the order of deliveries, so what a rank has delivered may be known to others only.
pub const fn piggybacks(protocol: u32, tolerate_node: bool) -> bool {
    tolerate_node && matches!(order(protocol), Order::Piggybacked)
}

/// Messages and the order of their deliveries are logged in the node memory: a rank can recover alone. (With channel memories it can,
/// too, and nothing of it is there.)
pub const fn logs(protocol: u32) -> bool {
    matches!(kept(protocol), Kept::BySender | Kept::BetweenGroups)
}

/// A rank that has failed begins again alone, and repeats what it did.
pub const fn recovers_alone(protocol: u32) -> bool {
    !matches!(kept(protocol), Kept::Nowhere)
}

/// Images of all ranks, or of all of a group, are taken in waves.
pub const fn has_waves(protocol: u32) -> bool {
    !matches!(waves(protocol), Waves::None)
}

/// Images are taken in waves only: no rank can have one alone.
pub const fn only_waves(protocol: u32) -> bool {
    has_waves(protocol) && (!logs(protocol) || matches!(waves(protocol), Waves::OfEachGroup))
}

/// All ranks can return to a wave, whatever they have done since.
pub const fn can_return_together(protocol: u32) -> bool {
    has_waves(protocol) && !matches!(waves(protocol), Waves::OfEachGroup)
}

/// Ranks recover alone as long as they can, and return together when they cannot: the waves may be given up.
pub const fn can_do_without_waves(protocol: u32) -> bool {
    logs(protocol) && can_return_together(protocol)
}

/// Ranks can have images.
pub const fn has_images(protocol: u32) -> bool {
    recovers_alone(protocol) || has_waves(protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn those(are: impl Fn(u32) -> bool) -> Vec<&'static str> {
        let numbers = (0..COUNT as u32).filter(|number| are(*number));
        numbers.map(|number| PROTOCOLS[number as usize]).collect()
    }

    #[test]
    fn what_follows_from_the_lines() {
        assert_eq!(those(logs), ["pessimistic", "auto", "causal", "hierarchical"]);
        assert_eq!(
            those(|number| recovers_alone(number) && !logs(number)),
            ["channel-memory"]
        );
        let waves = ["blocking", "auto", "chandy-lamport", "group", "hierarchical"];
        assert_eq!(those(has_waves), waves);
        assert_eq!(those(can_return_together), waves[..4]);
        assert_eq!(
            those(only_waves),
            ["blocking", "chandy-lamport", "group", "hierarchical"]
        );
        assert_eq!(those(can_do_without_waves), ["auto"]);
        assert_eq!(those(|number| !has_images(number)), ["none"]);
        assert_eq!(PROTOCOLS[PROTOCOL_CHANNEL_MEMORY as usize], "channel-memory");
    }
}

//! The fault-tolerance protocols, one line each. Code that depends on the protocol asks for one of these properties,
//! not for a protocol. So a new protocol that combines the properties in another way is one new line here.

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

/// How the order of deliveries survives, where the loss of a node is tolerated.
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
    /// All ranks stand still, with empty channels.
    Blocking,
    /// No rank waits for another, and messages under way are kept.
    Passing,
    /// Of all ranks, one group after another.
    GroupByGroup,
    /// Each group has waves of its own, and returns alone.
    OfEachGroup,
}

macro_rules! protocols {
    ($($number:literal $protocol:ident $name:literal $kept:ident $order:ident $waves:ident)*) => {
        /// A fault-tolerance protocol, with the number that stands for it in node memories and files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Protocol {
            $($protocol = $number,)*
        }

        impl Protocol {
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$protocol),*];
            /// Their names, in the order of [`Protocol::ALL`].
            pub const NAMES: [&str; Self::ALL.len()] = [$($name),*];

            /// As the user writes it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$protocol => $name,)* }
            }

            /// Where messages are kept.
            pub const fn kept(self) -> Kept {
                match self { $(Self::$protocol => Kept::$kept,)* }
            }

            /// How the order of deliveries survives.
            pub const fn order(self) -> Order {
                match self { $(Self::$protocol => Order::$order,)* }
            }

            /// Which waves there are.
            pub const fn waves(self) -> Waves {
                match self { $(Self::$protocol => Waves::$waves,)* }
            }
        }
    };
}

protocols! {
    0 None          "none"           Nowhere         None        None
    1 Pessimistic   "pessimistic"    BySender        Logged      None
    2 Blocking      "blocking"       Nowhere         None        Blocking
    3 Auto          "auto"           BySender        Logged      Blocking
    4 ChandyLamport "chandy-lamport" Nowhere         None        Passing
    5 Causal        "causal"         BySender        Piggybacked None
    6 Group         "group"          Nowhere         None        GroupByGroup
    7 Hierarchical  "hierarchical"   BetweenGroups   Logged      OfEachGroup
    8 ChannelMemory "channel-memory" InChannelMemory None        None
}

impl Protocol {
    /// The number that stands for it where it is stored or sent.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The protocol of a number.
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// The protocol that the user calls so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Messages carry the order of deliveries, so perhaps only other ranks know what a rank has delivered.
    pub const fn piggybacks(self, tolerate_node: bool) -> bool {
        tolerate_node && matches!(self.order(), Order::Piggybacked)
    }

    /// Messages and the order of their deliveries are logged in the node memory: a rank can recover alone. (With
    /// channel memories it can, too, and nothing is in the node memory.)
    pub const fn logs(self) -> bool {
        matches!(self.kept(), Kept::BySender | Kept::BetweenGroups)
    }

    /// A rank that has failed begins again alone, and repeats what it did.
    pub const fn recovers_alone(self) -> bool {
        !matches!(self.kept(), Kept::Nowhere)
    }

    /// The same, and nobody returns with it: what it has read in files must be as it was.
    pub const fn repeats_reads(self) -> bool {
        self.recovers_alone() && !matches!(self.waves(), Waves::OfEachGroup)
    }

    /// On several nodes, where the loss of one is tolerated, only its ranks begin again, with those that return with
    /// them, from images on other nodes with the logs that lie beside: event loggers, or other ranks, have the order of
    /// deliveries. (With channel memories they do so, too.)
    pub const fn recovers_alone_elsewhere(self) -> bool {
        let is_ordered = matches!(self.order(), Order::Logged | Order::Piggybacked);
        self.logs() && is_ordered && !self.can_return_together()
    }

    /// Images of all ranks, or of all of a group, are taken in waves.
    pub const fn has_waves(self) -> bool {
        !matches!(self.waves(), Waves::None)
    }

    /// Images are taken in waves only: no rank can have one alone.
    pub const fn only_waves(self) -> bool {
        self.has_waves() && (!self.logs() || matches!(self.waves(), Waves::OfEachGroup))
    }

    /// Ranks may write the copies of messages from ranks of other nodes. Where the loss of a node is tolerated a log
    /// may begin anew in another place, and the order of deliveries goes along.
    pub const fn may_be_direct(self, tolerate_node: bool) -> bool {
        !tolerate_node
            && matches!(self.kept(), Kept::Nowhere | Kept::BySender)
            && matches!(self.waves(), Waves::None | Waves::Blocking)
    }

    /// Ranks are put into groups.
    pub const fn has_groups(self) -> bool {
        matches!(self.waves(), Waves::GroupByGroup | Waves::OfEachGroup)
    }

    /// All ranks can return to a wave, whatever they have done since.
    pub const fn can_return_together(self) -> bool {
        self.has_waves() && !matches!(self.waves(), Waves::OfEachGroup)
    }

    /// Images are of use without the memory of their node.
    pub const fn images_outlive_nodes(self) -> bool {
        self.can_return_together() || matches!(self.kept(), Kept::InChannelMemory)
    }

    /// Ranks can have images.
    pub const fn has_images(self) -> bool {
        self.recovers_alone() || self.has_waves()
    }

    /// The protocol after this one's waves are given up, where ranks recover alone if they can, and return together if
    /// they cannot.
    pub fn without_waves(self) -> Option<Self> {
        let same = |left: &Self| !left.has_waves() && (left.kept(), left.order()) == (self.kept(), self.order());
        let may = self.logs() && self.can_return_together();
        Self::ALL.into_iter().find(|left| may && same(left))
    }

    /// The protocol that has the same logs, and waves of all ranks, where this one has none: its waves may have been
    /// given up for this one.
    pub fn with_waves(self) -> Option<Self> {
        let adds = |other: &Self| other.can_return_together() && other.kept() == self.kept();
        let lacks = self.logs() && !self.has_waves();
        Self::ALL.into_iter().find(|other| lacks && adds(other))
    }
}

/// A protocol in messages and files: its number.
#[cfg(feature = "serde")]
pub mod by_number {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use super::Protocol;

    pub fn serialize<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(protocol.number())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
        let number = u32::deserialize(deserializer)?;
        Protocol::numbered(number).ok_or_else(|| D::Error::custom(format!("there is no protocol {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn those(are: impl Fn(Protocol) -> bool) -> Vec<&'static str> {
        let all = Protocol::ALL.into_iter().filter(|protocol| are(*protocol));
        all.map(Protocol::name).collect()
    }

    #[test]
    fn what_follows_from_the_lines() {
        assert_eq!(those(Protocol::logs), ["pessimistic", "auto", "causal", "hierarchical"]);
        assert_eq!(
            those(|protocol| protocol.recovers_alone() && !protocol.logs()),
            ["channel-memory"]
        );
        let waves = ["blocking", "auto", "chandy-lamport", "group", "hierarchical"];
        assert_eq!(those(Protocol::has_waves), waves);
        assert_eq!(those(Protocol::can_return_together), waves[..4]);
        assert_eq!(
            those(Protocol::images_outlive_nodes),
            [&waves[..4], &["channel-memory"]].concat()
        );
        assert_eq!(
            those(Protocol::only_waves),
            ["blocking", "chandy-lamport", "group", "hierarchical"]
        );
        let elsewhere = ["pessimistic", "causal", "hierarchical"];
        assert_eq!(those(Protocol::recovers_alone_elsewhere), elsewhere);
        assert_eq!(those(Protocol::has_groups), ["group", "hierarchical"]);
        assert_eq!(those(|protocol| !protocol.has_images()), ["none"]);
    }

    #[test]
    fn waves_are_given_up_and_come_back() {
        assert_eq!(those(|protocol| protocol.without_waves().is_some()), ["auto"]);
        assert_eq!(Protocol::Auto.without_waves(), Some(Protocol::Pessimistic));
        assert_eq!(
            those(|protocol| protocol.with_waves().is_some()),
            ["pessimistic", "causal"]
        );
        assert_eq!(Protocol::Pessimistic.with_waves(), Some(Protocol::Auto));
        assert_eq!(Protocol::Causal.with_waves(), Some(Protocol::Auto));
    }

    #[test]
    fn a_protocol_is_found_by_its_number_and_its_name() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::numbered(protocol.number()), Some(protocol));
            assert_eq!(Protocol::named(protocol.name()), Some(protocol));
        }
        assert_eq!(Protocol::numbered(Protocol::ALL.len() as u32), None);
        assert_eq!(Protocol::named("Auto"), None);
    }
}

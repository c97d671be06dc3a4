//! What is simulated.

use resurgo_protocol::causal::Reduction;
use resurgo_protocol::{Protocol, Tolerate, kinds};

/// What is tolerated, and what fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Processes fail, and nothing more is tolerated.
    Process,
    /// Nodes fail: a crashed rank loses its logs and its record.
    Node,
    /// Nodes may fail, but what fails are processes: the record that survives them can be longer than what the
    /// event logger has.
    InPlace,
    /// Nodes fail, and causal logging with this reduction survives it; with none, one or several event loggers.
    Causal(Reduction),
    /// The same where only processes fail, and what they have sent stays: a new life looks at it (see [`crate::gathering`]).
    Gathering(Reduction),
    /// Processes fail, images are taken in waves, and sometimes all ranks return to one (see [`crate::auto`]).
    Auto,
    /// Processes fail, and all ranks return to the last complete wave, for which all had stopped (see [`crate::waves`]).
    Blocking,
    /// The same with waves that stop nobody.
    ChandyLamport,
    /// The same with waves that stop one group of ranks after the other.
    Group,
    /// As these three, on several nodes with links between them and the dispatcher; nodes fail, too (see [`crate::waves`]).
    BlockingOnNodes,
    ChandyLamportOnNodes,
    GroupOnNodes,
    /// As `auto`, on several nodes that are lost (see [`crate::auto`]).
    AutoOnNodes,
    /// Processes fail, every group of ranks has waves of its own, and all ranks of it return to its last one (see
    /// [`crate::hierarchical`]).
    Hierarchical,
    /// Nodes fail; channel memories have everything (see [`crate::channel_memory`]).
    ChannelMemory,
}

impl Setting {
    pub const ALL: [Self; 19] = [
        Self::Process,
        Self::Node,
        Self::InPlace,
        Self::Causal(Reduction::Vcausal),
        Self::Causal(Reduction::Manetho),
        Self::Causal(Reduction::LogOn),
        Self::Gathering(Reduction::Vcausal),
        Self::Gathering(Reduction::Manetho),
        Self::Gathering(Reduction::LogOn),
        Self::Auto,
        Self::Blocking,
        Self::ChandyLamport,
        Self::Group,
        Self::BlockingOnNodes,
        Self::ChandyLamportOnNodes,
        Self::GroupOnNodes,
        Self::AutoOnNodes,
        Self::Hierarchical,
        Self::ChannelMemory,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Node => "node",
            Self::InPlace => "node-in-place",
            Self::Causal(Reduction::Vcausal) => "vcausal",
            Self::Causal(Reduction::Manetho) => "manetho",
            Self::Causal(Reduction::LogOn) => "logon",
            Self::Gathering(Reduction::Vcausal) => "vcausal-in-place",
            Self::Gathering(Reduction::Manetho) => "manetho-in-place",
            Self::Gathering(Reduction::LogOn) => "logon-in-place",
            Self::BlockingOnNodes => "blocking-on-nodes",
            Self::ChandyLamportOnNodes => "chandy-lamport-on-nodes",
            Self::GroupOnNodes => "group-on-nodes",
            Self::AutoOnNodes => "auto-on-nodes",
            Self::Auto
            | Self::Blocking
            | Self::ChandyLamport
            | Self::Group
            | Self::Hierarchical
            | Self::ChannelMemory => self.protocol().name(),
        }
    }

    /// What is simulated.
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Process | Self::Node | Self::InPlace => Protocol::Pessimistic,
            Self::Causal(_) | Self::Gathering(_) => Protocol::Causal,
            Self::Auto | Self::AutoOnNodes => Protocol::Auto,
            Self::Blocking | Self::BlockingOnNodes => Protocol::Blocking,
            Self::ChandyLamport | Self::ChandyLamportOnNodes => Protocol::ChandyLamport,
            Self::Group | Self::GroupOnNodes => Protocol::Group,
            Self::Hierarchical => Protocol::Hierarchical,
            Self::ChannelMemory => Protocol::ChannelMemory,
        }
    }

    /// Each group of ranks has waves of its own, and returns alone.
    pub(crate) fn is_hierarchical(self) -> bool {
        self.protocol().waves() == kinds::Waves::OfEachGroup
    }

    /// There are several nodes, which are lost.
    pub const fn has_nodes(self) -> bool {
        matches!(
            self,
            Self::BlockingOnNodes | Self::ChandyLamportOnNodes | Self::GroupOnNodes | Self::AutoOnNodes
        )
    }

    /// The failure that must be survived.
    pub(crate) const fn tolerate(self) -> Tolerate {
        match self {
            Self::Node | Self::InPlace | Self::Causal(_) | Self::Gathering(_) | Self::ChannelMemory => Tolerate::Node,
            _ => Tolerate::Process,
        }
    }
}

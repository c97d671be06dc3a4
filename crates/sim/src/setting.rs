//! What is simulated.

use resurgo_protocol::causal::Reduction;
use resurgo_protocol::{Protocol, Tolerate, kinds};

/// The tolerated failures, and the injected ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Processes fail, and nothing more is tolerated.
    Process,
    /// Nodes fail: a crashed rank loses its logs and its record.
    Node,
    /// As `process` and `node` on several nodes, which are lost with logs and records (see [`crate::moved`]).
    PessimisticOnNodes,
    /// Nodes may fail, but only processes do: the record that survives them can be longer than the event logger's.
    InPlace,
    /// Nodes fail, and causal logging with this reduction survives it; with none, one or several event loggers.
    Causal(Reduction),
    /// The same where only processes fail, and their sent messages stay: a new life looks at them (see
    /// [`crate::gathering`]).
    Gathering(Reduction),
    /// The same on several nodes, which are lost with logs, records and what their ranks knew (see [`crate::moved`]).
    CausalOnNodes(Reduction),
    /// Processes fail, images are taken in waves, and sometimes all ranks return to one (see [`crate::auto`]).
    Auto,
    /// The same where logs become full: now and then all let go of what they have for a rank.
    AutoWithFullLogs,
    /// Processes fail, and all ranks return to the last complete wave, for which all had stopped (see [`crate::waves`]).
    Blocking,
    /// The same with waves that stop no rank.
    ChandyLamport,
    /// The same with waves that stop one group of ranks after the other.
    Group,
    /// As these three, on several nodes with links between them and the dispatcher; nodes fail, too (see [`crate::waves`]).
    BlockingOnNodes,
    ChandyLamportOnNodes,
    GroupOnNodes,
    /// As `auto`, on several nodes that are lost (see [`crate::auto`]).
    AutoOnNodes,
    /// As the four before, where images have parity instead of replicas.
    BlockingWithParity,
    ChandyLamportWithParity,
    GroupWithParity,
    AutoWithParity,
    /// Processes fail, every group of ranks has waves of its own, and all ranks of it return to its last one (see
    /// [`crate::hierarchical`]).
    Hierarchical,
    /// The same on several nodes, which are lost with logs and records (see [`crate::moved`]).
    HierarchicalOnNodes,
    /// Nodes fail; channel memories hold all messages (see [`crate::channel_memory`]).
    ChannelMemory,
    /// The program deals with failures of processes and nodes itself (see [`crate::survivors`]).
    Survivors,
    /// The same on one node, where ranks recover by themselves some times before a failure is told.
    RecoveringSurvivors,
}

impl Setting {
    pub const ALL: [Self; 31] = [
        Self::Process,
        Self::Node,
        Self::PessimisticOnNodes,
        Self::InPlace,
        Self::Causal(Reduction::Vcausal),
        Self::Causal(Reduction::Manetho),
        Self::Causal(Reduction::LogOn),
        Self::Gathering(Reduction::Vcausal),
        Self::Gathering(Reduction::Manetho),
        Self::Gathering(Reduction::LogOn),
        Self::CausalOnNodes(Reduction::Vcausal),
        Self::CausalOnNodes(Reduction::Manetho),
        Self::CausalOnNodes(Reduction::LogOn),
        Self::Auto,
        Self::AutoWithFullLogs,
        Self::Blocking,
        Self::ChandyLamport,
        Self::Group,
        Self::BlockingOnNodes,
        Self::ChandyLamportOnNodes,
        Self::GroupOnNodes,
        Self::AutoOnNodes,
        Self::BlockingWithParity,
        Self::ChandyLamportWithParity,
        Self::GroupWithParity,
        Self::AutoWithParity,
        Self::Hierarchical,
        Self::HierarchicalOnNodes,
        Self::ChannelMemory,
        Self::Survivors,
        Self::RecoveringSurvivors,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Node => "node",
            Self::PessimisticOnNodes => "pessimistic-on-nodes",
            Self::InPlace => "node-in-place",
            Self::Causal(Reduction::Vcausal) => "vcausal",
            Self::Causal(Reduction::Manetho) => "manetho",
            Self::Causal(Reduction::LogOn) => "logon",
            Self::Gathering(Reduction::Vcausal) => "vcausal-in-place",
            Self::Gathering(Reduction::Manetho) => "manetho-in-place",
            Self::Gathering(Reduction::LogOn) => "logon-in-place",
            Self::CausalOnNodes(Reduction::Vcausal) => "vcausal-on-nodes",
            Self::CausalOnNodes(Reduction::Manetho) => "manetho-on-nodes",
            Self::CausalOnNodes(Reduction::LogOn) => "logon-on-nodes",
            Self::BlockingOnNodes => "blocking-on-nodes",
            Self::ChandyLamportOnNodes => "chandy-lamport-on-nodes",
            Self::GroupOnNodes => "group-on-nodes",
            Self::AutoOnNodes => "auto-on-nodes",
            Self::AutoWithFullLogs => "auto-with-full-logs",
            Self::BlockingWithParity => "blocking-with-parity",
            Self::ChandyLamportWithParity => "chandy-lamport-with-parity",
            Self::GroupWithParity => "group-with-parity",
            Self::AutoWithParity => "auto-with-parity",
            Self::HierarchicalOnNodes => "hierarchical-on-nodes",
            Self::Survivors => "survivors",
            Self::RecoveringSurvivors => "recovering-survivors",
            Self::Auto
            | Self::Blocking
            | Self::ChandyLamport
            | Self::Group
            | Self::Hierarchical
            | Self::ChannelMemory => self.protocol().name(),
        }
    }

    /// The simulated protocol.
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Process | Self::Node | Self::PessimisticOnNodes | Self::InPlace | Self::RecoveringSurvivors => {
                Protocol::Pessimistic
            }
            Self::Causal(_) | Self::Gathering(_) | Self::CausalOnNodes(_) => Protocol::Causal,
            Self::Auto | Self::AutoWithFullLogs | Self::AutoOnNodes | Self::AutoWithParity => Protocol::Auto,
            Self::Blocking | Self::BlockingOnNodes | Self::BlockingWithParity => Protocol::Blocking,
            Self::ChandyLamport | Self::ChandyLamportOnNodes | Self::ChandyLamportWithParity => Protocol::ChandyLamport,
            Self::Group | Self::GroupOnNodes | Self::GroupWithParity => Protocol::Group,
            Self::Hierarchical | Self::HierarchicalOnNodes => Protocol::Hierarchical,
            Self::ChannelMemory => Protocol::ChannelMemory,
            Self::Survivors => Protocol::None,
        }
    }

    /// Each group of ranks has waves of its own, and returns alone.
    pub(crate) fn is_hierarchical(self) -> bool {
        self.protocol().waves() == kinds::Waves::OfEachGroup
    }

    /// There are several nodes, which are lost.
    pub const fn has_nodes(self) -> bool {
        self.has_parity()
            || matches!(
                self,
                Self::PessimisticOnNodes
                    | Self::CausalOnNodes(_)
                    | Self::BlockingOnNodes
                    | Self::ChandyLamportOnNodes
                    | Self::GroupOnNodes
                    | Self::AutoOnNodes
                    | Self::HierarchicalOnNodes
            )
    }

    /// Images of waves have parity.
    pub(crate) const fn has_parity(self) -> bool {
        matches!(
            self,
            Self::BlockingWithParity | Self::ChandyLamportWithParity | Self::GroupWithParity | Self::AutoWithParity
        )
    }

    /// Nodes are lost with logs and records, and only their ranks begin elsewhere.
    pub(crate) const fn moves(self) -> bool {
        self.has_nodes() && matches!(self.tolerate(), Tolerate::Node)
    }

    /// A rank may lose all of its images, and then all ranks begin again.
    pub(crate) fn begins_anew(self) -> bool {
        self.is_hierarchical() || self.moves() || matches!(self, Self::InPlace | Self::Gathering(_))
    }

    /// The tolerated failure.
    pub(crate) const fn tolerate(self) -> Tolerate {
        match self {
            Self::Node
            | Self::PessimisticOnNodes
            | Self::HierarchicalOnNodes
            | Self::InPlace
            | Self::Causal(_)
            | Self::Gathering(_)
            | Self::CausalOnNodes(_)
            | Self::ChannelMemory => Tolerate::Node,
            _ => Tolerate::Process,
        }
    }
}

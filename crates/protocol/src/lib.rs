//! The fault-tolerance protocols as pure state machines: no I/O, no clock, no thread, no randomness.
//!
//! Every input is a method call, every output a return value. So the same code runs inside the libfabric
//! provider and inside the simulator, there a million schedules a minute.

pub mod advice;
mod blocking;
pub mod causal;
pub mod chandy_lamport;
pub mod channel_memory;
pub mod checkpoints;
pub mod coordinator;
pub mod diskless;
pub mod event_logger;
pub mod group;
pub mod handover;
pub mod hierarchical;
pub mod kinds;
pub mod membership;
pub mod modes;
pub mod pessimistic;
pub mod placement;
pub mod policy;
pub mod random;
pub mod seats;
pub mod survival;
pub mod survivors;

pub use blocking::{Return, Step, Turn, Wave};
pub use causal::Causal;
pub use channel_memory::ChannelMemory;
pub use coordinator::{Command, Coordinator, Fact};
pub use event_logger::EventLogger;
pub use kinds::Protocol;
pub use membership::{Lease, Membership, Node};
pub use pessimistic::{Arrival, Next, Pessimistic, Sending};
pub use survivors::Survivors;

/// Number of an MPI process in its job, from 0.
pub type Rank = u32;

/// The data for repeating one delivery (Bouteiller 2005, §III; here with poll counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Determinant {
    /// Rank that made the delivery.
    pub receiver: Rank,
    /// Its receiver clock: this is its `rclock`-th delivery, from 1.
    pub rclock: u64,
    /// Rank that sent the message.
    pub source: Rank,
    /// The message's number on its channel, from 1.
    pub ssn: u64,
    /// Completion-queue reads begun since the delivery before: 0 means in the same read.
    pub polls: u64,
}

impl Determinant {
    /// The determinant as the receiver's own record keeps it.
    pub const fn recorded(&self) -> Recorded {
        Recorded {
            source: self.source,
            polls: self.polls,
        }
    }
}

/// One recorded delivery as a rank's own record keeps it. The receiver owns the record; the delivery's rclock is
/// its place in it. Its ssn is the number of earlier entries of the same source plus one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// Rank that sent the message.
    pub source: Rank,
    /// Completion-queue reads begun since the delivery before: 0 means in the same read.
    pub polls: u64,
}

/// The failure that must be survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerate {
    /// A process: data in memory of the node's agent is stable at once.
    Process,
    /// A node: only what the event logger has acknowledged is stable.
    Node,
}

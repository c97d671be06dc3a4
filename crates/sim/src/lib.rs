//! A deterministic simulator of a whole job, around the state machines of `resurgo-protocol`. Ranks run random
//! programs, the network delays and loses, and ranks, event loggers and wires fail.
//!
//! Everything follows from one seed. [`checkers`] watch what must always hold and share no code with the
//! protocol; [`subject`] breaks the protocol on purpose to show that they see it.

mod anew;
mod auto;
pub mod causal;
mod channel_memory;
pub mod checkers;
pub mod delay;
pub mod faults;
mod gathering;
mod hierarchical;
mod image;
mod kept;
mod lives;
mod log;
mod logger;
mod moved;
mod mutation;
mod network;
mod pieces;
mod process;
pub mod program;
mod queue;
pub mod random;
pub mod restarts;
mod setting;
mod store;
pub mod study;
pub mod subject;
mod survivors;
mod trace;
mod waves;
mod world;

pub use causal::{Loggers, Piggybacks, Spread};
pub use checkers::Violation;
pub use mutation::Mutation;
pub use setting::Setting;
pub use store::Storage;
pub use world::{Failure, Options, Outcome, Report, simulate};

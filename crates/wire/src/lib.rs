//! All bytes that two processes of Resurgo must agree on: the node memory that an agent shares with its ranks, and the
//! frames of the connections.

pub mod beats;
pub mod channel_memory;
#[cfg(feature = "control")]
pub mod console;
#[cfg(feature = "control")]
pub mod control;
pub mod counters;
pub mod direct;
pub mod entry;
pub mod event_logger;
pub mod frame;
pub mod handshake;
pub mod image;
pub mod mesh;
pub mod node_memory;
pub mod output;
pub mod piggyback;
pub mod places;
pub mod replica;
pub mod services;
pub mod store;
pub mod survivors;
pub mod text;
pub mod trace;
pub mod undo;

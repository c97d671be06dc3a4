//! The PMI-1 server of a job. Ranks learn here their numbers and each other's addresses, and ask for more ranks.
//!
//! A pure state machine: lines from ranks go in, lines to ranks come out. It opens no socket and reads no clock. It
//! serves ranks *through their restarts*. A rank that starts again repeats its commands from the first one, and
//! [`Server`] gives it byte for byte the answers that it got before. A barrier that the job has passed is passed at
//! once; no `put` is made twice; a key that was missing at first is missing again.

mod line;
mod server;
mod spawn;
mod world;

pub use line::{Command, LineBuffer, LineError, MAX_LINE};
pub use server::{FINALIZE_ACK, Notice, Output, Position, Progress, Server};
pub use spawn::SpawnProgram;
pub use world::{Place, kvs_name};

//! The launcher's processes: the dispatcher, the agent that it starts on each node, and what a rank's process
//! does before it becomes the program.

pub mod agent;
mod children;
mod connection;
pub mod dispatcher;
pub mod event_logger;
pub mod faults;
mod leftovers;
pub mod trampoline;
pub mod units;

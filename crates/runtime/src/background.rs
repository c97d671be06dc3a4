//! Threads whose work is not urgent.

use std::io;
use std::thread::JoinHandle;

use nix::sys::signal::SigSet;

/// Starts a thread whose priority is lower by `nice`.
pub fn spawn(name: &str, nice: i32, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_string()).spawn(move || {
        // Signals are for the process; the limit of file sizes becomes an error, not the end.
        let _ = SigSet::all().thread_block();
        // Of this thread alone; without permission it keeps its priority.
        let _ = rustix::process::nice(nice);
        work();
    })
}

//! The launcher's processes: the dispatcher, the agent of each node, and a rank's process before it becomes the
//! program.

pub mod advice;
pub mod agent;
mod background;
mod beats;
pub mod binding;
pub mod channel_memory;
mod children;
mod connection;
pub mod dispatcher;
pub mod event_logger;
pub mod faults;
mod fetch;
mod flush;
#[cfg(test)]
mod fuzz;
pub mod helper;
mod interfaces;
mod invited;
mod job_key;
pub mod jobs;
pub mod join;
mod leftovers;
mod likeness;
mod limits;
mod machine;
pub mod memory;
pub mod note;
pub mod notifier;
pub mod page;
pub mod pattern;
pub mod place_holder;
mod printed;
pub mod progress;
mod reach;
mod reception;
mod server_process;
pub mod store_server;
mod stream;
pub mod suspended;
pub mod sys;
pub mod trampoline;
mod turns;
pub mod units;

/// Descriptors the launcher uses beside those of the ranks.
pub const OWN_FILES: u64 = 40;
/// Descriptors the agent uses for a rank, and a few while it starts one.
pub const FILES_PER_RANK: u64 = 6;

/// CLOCK_MONOTONIC, in nanoseconds: the same clock in all processes of the machine.
fn monotonic_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    // It cannot fail for this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Seconds since 1970, by the clock of people.
fn unix_time() -> f64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |time| time.as_secs_f64())
}

/// Nanoseconds since 1970, by the same clock.
fn unix_ns() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as u64)
}

/// Since the machine was started, with the time that it was suspended.
fn since_boot() -> std::time::Duration {
    use nix::time::{ClockId, clock_gettime};
    // It cannot fail for this clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(std::time::Duration::ZERO, Into::into)
}

/// What to check or do when the system has refused something.
fn hint(error: &std::io::Error) -> &'static str {
    use nix::errno::Errno;
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => "; the limit of processes may be too low (ulimit -u)",
        Some(Errno::EMFILE) => "; the limit of open files may be too low (ulimit -n)",
        Some(Errno::ENFILE) => "; the system has too many open files",
        Some(Errno::ENOMEM) => "; there is not enough memory",
        Some(Errno::EADDRINUSE) => "; give another port, or 0 for any that is free",
        Some(Errno::EADDRNOTAVAIL) => "; give an address that this machine has (ip addr), or 127.0.0.1",
        Some(Errno::EFBIG) => "; the limit of file sizes may be too low (ulimit -f)",
        _ => "",
    }
}

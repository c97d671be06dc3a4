//! The clock that counts since the machine's start (CLOCK_MONOTONIC). A job that goes on after the machine has
//! restarted gets a clock of its own, which does not go backwards. Programs wait until moments of it (Python's
//! `time.sleep`, C++'s `wait_for`).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{getgid, getuid};
use resurgo_runtime::units::readable_duration;

/// The program sets this when it starts itself again for the clock, so that it does not try twice.
pub const TRIED: &str = "RESURGO_OWN_CLOCK";

/// Makes the clock of this program, and of all that it starts, at least `least`. It starts the program again in a time
/// namespace for that. Returns what the user has to know if it cannot.
pub fn never_backwards(least: Duration) -> Option<String> {
    let behind = least.checked_sub(now()).filter(|behind| !behind.is_zero())?;
    let reason = match std::env::var_os(TRIED) {
        None => begin_anew(behind).err()?.to_string(),
        Some(_) => "the kernel does not move a program into another time namespace".to_string(),
    };
    Some(format!(
        "the clock of this machine (CLOCK_MONOTONIC) is {} behind that of the suspended job, which cannot have one of its own ({reason}): \
         where its program was waiting until a moment of that clock, it waits so much longer",
        readable_duration(behind)
    ))
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Starts this program again in a time namespace whose clocks are ahead by `behind`. Returns only if that fails.
fn begin_anew(behind: Duration) -> io::Result<()> {
    enter(behind)?;
    let mut words = std::env::args_os();
    let own = words.next();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(own.as_deref().unwrap_or(OsStr::new("resurgo")));
    Err(command.args(words).env(TRIED, "1").exec())
}

fn enter(behind: Duration) -> io::Result<()> {
    let time = CloneFlags::from_bits_retain(nix::libc::CLONE_NEWTIME);
    if unshare(time).is_err() {
        // Without rights, this goes into a user namespace, where this program has them.
        let (user, group) = (getuid(), getgid());
        unshare(time | CloneFlags::CLONE_NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // Whole seconds, rounded up.
    let seconds = behind.as_secs() + 1;
    fs::write(
        "/proc/self/timens_offsets",
        format!("monotonic {seconds} 0\nboottime {seconds} 0\n"),
    )
}

//! Started processes and their descendants, and ways to end them.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use resurgo_wire::control::End;

/// The next child that has ended and has not been reaped, if there is one.
pub fn peek_ended() -> Option<(Pid, End)> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::All, flags) {
        Ok(WaitStatus::Exited(pid, code)) => Some((pid, End::Exited(code))),
        Ok(WaitStatus::Signaled(pid, signal, _)) => Some((pid, End::Signalled(signal as i32))),
        _ => None,
    }
}

/// How a reaped process ended.
pub fn end_of(status: std::process::ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(signal), _) => End::Signalled(signal),
        (None, code) => End::Exited(code.unwrap_or(1)),
    }
}

/// Reaps a child that [`peek_ended`] has named.
pub fn reap(pid: Pid) {
    let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
}

/// Kills the rest of a process group whose leader has ended; returns whether nothing of it is left.
pub fn fence(group: Pid, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match killpg(group, Signal::SIGKILL) {
            Err(Errno::ESRCH) => return true,
            // EPERM: only processes are left that have changed their user, which killing cannot reach.
            Err(_) => return false,
            Ok(()) => {}
        }
        // Members whose parent is gone are now our children.
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG))
        {}
        if Instant::now() > deadline {
            return false;
        }
        if killpg(group, None) == Err(Errno::ESRCH) {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Kills and reaps every child of this process, and the orphans that it inherits (it must be a subreaper). Returns
/// how many there were.
pub fn kill_all(patience: Duration) -> usize {
    let deadline = Instant::now() + patience;
    let mut killed = 0;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(_) => return killed,
            Ok(WaitStatus::StillAlive) => {
                for child in list() {
                    let _ = kill(child, Signal::SIGKILL);
                }
                if Instant::now() > deadline {
                    return killed;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            Ok(_) => killed += 1,
        }
    }
}

/// Sends a signal to every child but these.
pub fn signal_others(but: &[Pid], signal: Signal) {
    for child in list().into_iter().filter(|child| !but.contains(child)) {
        let _ = kill(child, signal);
    }
}

/// Kills and reaps every child but these.
pub fn kill_others(but: &[u32], patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        let mut others = list();
        others.retain(|child| !but.contains(&(child.as_raw() as u32)));
        if others.is_empty() || Instant::now() > deadline {
            return;
        }
        for child in others {
            let _ = kill(child, Signal::SIGKILL);
            reap(child);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The children of this process.
fn list() -> Vec<Pid> {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // After the command name, which may hold spaces and brackets: state, then the parent.
            let parent = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            parent == Some(own)
        })
        .map(Pid::from_raw)
        .collect()
}

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

/// What the kernel tells of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    /// It has ended and waits for its parent.
    pub has_ended: bool,
    pub parent: Pid,
    pub group: Pid,
    /// When it began, in ticks since the boot.
    pub began: u64,
}

impl State {
    /// None: there is no such process.
    pub fn of(pid: Pid) -> Option<State> {
        State::read(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<State> {
        // The command's name comes before, and may hold spaces and brackets.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
        let number = |field: usize| Some(Pid::from_raw(fields.get(field)?.parse().ok()?));
        Some(State {
            has_ended: matches!(fields.first(), Some(&"Z" | &"X")),
            parent: number(1)?,
            group: number(2)?,
            began: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes that can be seen here.
pub fn all() -> impl Iterator<Item = Pid> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
}

/// The children of this process.
fn list() -> Vec<Pid> {
    let is_child = |pid: &Pid| State::of(*pid).is_some_and(|state| state.parent == Pid::this());
    all().filter(is_child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read() {
        let pid = Pid::from_raw;
        let rest = "77 12 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 1 0 4711 2703360 188";
        for (state, has_ended) in [("S", false), ("Z", true), ("T", false)] {
            let read = State::read(&format!("12 (a) b) {state} 1 {rest}\n"));
            let (parent, group, began) = (pid(1), pid(77), 4711);
            assert_eq!(
                read,
                Some(State {
                    has_ended,
                    parent,
                    group,
                    began
                })
            );
        }
        assert_eq!(State::read("12 (a) S"), None);
        assert_eq!(State::of(Pid::this()).unwrap().parent, Pid::parent());
    }
}

//! Agents of several nodes that use a job's directory. Each locks a file there, and has written into it who it is.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use resurgo_store::own_directory::Directory;
use serde::{Deserialize, Serialize};

use crate::children::State;
use crate::machine::boot;

/// Beginning of the names of these files; the number of the node follows.
const OF_NODE: &str = "node-";
/// How long an agent may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// The run of the job, of which each has a name of its own.
    run: String,
    /// The machine's boot, and the namespace of its process numbers.
    machine: String,
    pid: i32,
    /// When it began, in ticks since the boot.
    began: u64,
}

impl Holder {
    fn own(run: &str) -> Option<Holder> {
        let own = Pid::this();
        Some(Holder {
            run: run.to_string(),
            machine: machine()?,
            pid: own.as_raw(),
            began: State::of(own)?.began,
        })
    }

    /// It is a process of this machine, and runs.
    fn is_there(&self) -> bool {
        let is_same = |state: State| state.began == self.began && !state.has_ended;
        machine().as_ref() == Some(&self.machine) && State::of(Pid::from_raw(self.pid)).is_some_and(is_same)
    }

    /// Ends it, and with it its ranks.
    fn end(&self) {
        let until = Instant::now() + PATIENCE;
        while self.is_there() && Instant::now() < until {
            // It may be stopped.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            std::thread::sleep(PAUSE);
        }
    }
}

fn machine() -> Option<String> {
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot()?, space.display()))
}

/// The files that agents have locked.
fn locked(directory: &Directory) -> impl Iterator<Item = OsString> {
    let names = directory.names().into_iter();
    names.filter(|name| name.as_encoded_bytes().starts_with(OF_NODE.as_bytes()) && directory.is_locked(name))
}

/// The agent of one of several nodes uses the directory.
pub fn are_there(directory: &Directory) -> bool {
    locked(directory).next().is_some()
}

/// Locks the directory for the agent of node `node` in this run of the job, while the file is open. First ends agents of
/// former runs on this machine: they have no dispatcher any more, and their ranks must not run beside later lives.
///
/// # Errors
/// The file cannot be made.
pub fn lock(directory: &Directory, node: u32, run: &str) -> io::Result<File> {
    for name in locked(directory) {
        let text = directory.read(name).ok();
        let holder: Option<Holder> = text.and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(holder) = holder.filter(|holder| holder.run != run) {
            holder.end();
        }
    }
    let mut file = directory.open_file(format!("{OF_NODE}{node}"), OFlag::O_RDWR | OFlag::O_CREAT)?;
    // Some file systems have no locks.
    if file.try_lock().is_ok()
        && let Some(own) = Holder::own(run)
    {
        file.set_len(0)?;
        file.write_all(&serde_json::to_vec(&own)?)?;
    }
    Ok(file)
}

/// The agent of node `node` no longer uses the directory.
pub fn unlock(directory: &Directory, node: u32) {
    let _ = directory.remove(format!("{OF_NODE}{node}"));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use resurgo_store::own_directory::Trust;

    use super::*;

    fn place(name: &str) -> (PathBuf, Directory) {
        let path = std::env::temp_dir().join(format!("resurgo-holders-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = Directory::open(&path, Trust::Groups).unwrap();
        (path, directory)
    }

    /// Whether a process that has locked the directory in run `one` is ended by run `two`. `change`: what is recorded of
    /// it otherwise than it is.
    fn is_ended(name: &str, change: impl Fn(&mut Holder)) -> bool {
        let (path, directory) = place(name);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let mut holder = Holder {
            pid,
            began: State::of(Pid::from_raw(pid)).unwrap().began,
            ..Holder::own("one").unwrap()
        };
        change(&mut holder);
        let _locked = lock(&directory, 7, "one").unwrap();
        std::fs::write(path.join("node-7"), serde_json::to_vec(&holder).unwrap()).unwrap();
        lock(&directory, 1, "two").unwrap();
        let ended = child.try_wait().unwrap().is_some();
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        std::fs::remove_dir_all(path).unwrap();
        ended
    }

    #[test]
    fn an_agent_of_a_former_run_is_ended_and_nobody_else() {
        assert!(is_ended("former", |_| {}));
        assert!(!is_ended("same", |holder| holder.run = "two".to_string()));
        assert!(!is_ended("number", |holder| holder.began += 1));
        assert!(!is_ended("machine", |holder| holder.machine.push('x')));
    }

    #[test]
    fn whoever_locks_is_recorded() {
        let (path, directory) = place("locks");
        assert!(!are_there(&directory));
        let file = lock(&directory, 3, "one").unwrap();
        let text = directory.read("node-3").unwrap();
        let holder: Holder = serde_json::from_slice(&text).unwrap();
        assert_eq!(holder, Holder::own("one").unwrap());
        assert!(are_there(&directory));
        drop(file);
        assert!(!are_there(&directory));
        unlock(&directory, 3);
        assert!(!directory.has("node-3"));
        std::fs::remove_dir_all(path).unwrap();
    }
}

//! Agents that read their invitation from standard input: how to start one, and how its starter waits for it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use resurgo_wire::control::{AGENT, INVITED, LONGEST_INVITATION};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::children;

const PASSED_ON: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// How often the starter checks whether the agent has ended, in milliseconds.
const LOOK: u8 = 50;

/// How long the processes that an agent leaves behind may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The command that starts one on this machine.
pub fn agent() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("resurgo").args([AGENT, INVITED]);
    command
}

/// The command by which `file` (or ssh) starts resurgo on a host with these words.
pub fn by_ssh(file: Option<&OsStr>, host: &str, words: &[&str]) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(file.unwrap_or("ssh".as_ref()));
    // ssh joins what follows with blanks, and the login shell there splits it again.
    let quoted = format!("'{}'", own.to_string_lossy().replace('\'', r"'\''"));
    command.args(["-T", "-x", "-o", "BatchMode=yes", "--", host]);
    command.args(["exec", &quoted]).args(words);
    Ok(command)
}

/// Invites the agent, or its launcher, whose standard input is a pipe. It stays open.
pub fn invite(process: &mut Child, invitation: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(invitation)?;
    line.push(b'\n');
    // An ended process shows itself by its exit status.
    let _ = process.stdin.as_mut().map(|stdin| stdin.write_all(&line));
    Ok(())
}

/// Reads an invitation, which names the job's version of resurgo at this JSON pointer.
pub fn read<T: DeserializeOwned>(from: &OwnedFd, version: &str) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(File::from(from.try_clone()?).take(LONGEST_INVITATION)).read_line(&mut line)?;
    let wrong = |why: String| io::Error::other(format!("what came on standard input is no invitation: {why}"));
    let told: serde_json::Value = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
    let (ours, theirs) = (env!("CARGO_PKG_VERSION"), told.pointer(version));
    if theirs.is_none_or(|theirs| theirs != ours) {
        let theirs = theirs.unwrap_or(&serde_json::Value::Null);
        return Err(io::Error::other(format!(
            "this is resurgo {ours}, and the job's is {theirs}"
        )));
    }
    serde_json::from_value(told).map_err(|error| wrong(error.to_string()))
}

/// Starts an agent, and waits until it and all that it leaves behind have ended: no other process gets its orphans.
pub fn run(command: &mut Command, invitation: Option<&impl Serialize>) -> io::Result<ExitStatus> {
    prctl::set_child_subreaper(true)?;
    let mut agent = command.spawn()?;
    let invited = invitation.map_or(Ok(()), |invitation| invite(&mut agent, invitation));
    let ended = invited.and_then(|()| wait(&mut agent));
    drop(agent.stdin.take());
    children::kill_all(PATIENCE);
    ended
}

/// Waits until the agent ends. Signals meanwhile are for the agent: they may announce that its machine is taken away.
fn wait(agent: &mut Child) -> io::Result<ExitStatus> {
    let mask: SigSet = PASSED_ON.into_iter().collect();
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let status = loop {
        if let Some(status) = agent.try_wait()? {
            break status;
        }
        let mut ready = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(LOOK));
        while let Some(heard) = signals.read_signal()? {
            let signal = Signal::try_from(heard.ssi_signo as i32)?;
            let _ = kill(Pid::from_raw(agent.id() as i32), signal);
        }
    };
    mask.thread_unblock()?;
    Ok(status)
}

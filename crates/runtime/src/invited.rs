//! Agents that find their invitation on standard input: how they are started, and the wait of what has started one.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use resurgo_wire::control::{AGENT, INVITED, Invitation};

use crate::children;

const PASSED_ON: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// How often it is looked whether the agent has ended, in milliseconds.
const LOOK: u8 = 50;

/// How long what an agent has left behind may take to be gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// What starts one on this machine.
pub fn agent() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("resurgo").args([AGENT, INVITED]);
    command
}

/// Invites the agent, or what starts it, whose standard input is a pipe. It stays open.
pub fn invite(process: &mut Child, invitation: &Invitation) -> io::Result<()> {
    let mut line = serde_json::to_vec(invitation)?;
    line.push(b'\n');
    // Who has ended already is noticed by that.
    let _ = process.stdin.as_mut().map(|stdin| stdin.write_all(&line));
    Ok(())
}

/// Starts an agent, and waits until it has ended with all that it has left behind: nobody else gets its orphans.
pub fn run(command: &mut Command, invitation: Option<&Invitation>) -> io::Result<ExitStatus> {
    prctl::set_child_subreaper(true)?;
    let mut agent = command.spawn()?;
    let invited = invitation.map_or(Ok(()), |invitation| invite(&mut agent, invitation));
    let ended = invited.and_then(|()| wait(&mut agent));
    drop(agent.stdin.take());
    children::kill_all(PATIENCE);
    ended
}

/// Waits until the agent ends. Signals that come meanwhile are for it: they may say that its machine is taken away.
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

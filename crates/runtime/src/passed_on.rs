//! The wait of what has started an agent: signals that come meanwhile are for the agent, as they may say that its machine is taken away.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

const PASSED_ON: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// How often it is looked whether the agent has ended, in milliseconds.
const LOOK: u8 = 50;

/// Waits until the agent ends.
pub fn wait(agent: &mut Child) -> io::Result<ExitStatus> {
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

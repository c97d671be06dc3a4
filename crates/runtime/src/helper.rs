//! `resurgo agent helper`: starts the agent of its own node and, by ssh, those of a few others, so that the machine of
//! `resurgo run` does not have to reach all hosts itself.
//!
//! It says on standard output what becomes of them, and ends when its standard input closes. The agents go on without
//! it: they are connected to the dispatcher, and have their leases.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::control::{AGENT, Errand, Invitation, KEPT, Told};

use crate::invited;

/// How often it looks whether a launcher has ended, in milliseconds.
const LOOK: u8 = 50;

/// A started agent, or its launcher.
struct Started {
    node: u32,
    process: Child,
    /// Its end does not end the agent.
    is_elsewhere: bool,
}

/// Returns its exit status.
pub fn run() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "resurgo: agents cannot be started from here: {error}{}",
                crate::hint(&error)
            );
            1
        }
    }
}

fn serve() -> io::Result<()> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let errand: Errand = invited::read(&stdin, "/invitation/version")?;
    say(Told::Here)?;
    let mut started = Vec::new();
    let own = errand.invitation.node;
    let mut agent = Command::new("/proc/self/exe");
    agent.args([AGENT, KEPT, &own.to_string()]);
    start(agent, &errand.invitation, false, &mut started)?;
    let file = errand.launcher_file.as_deref();
    for (node, host) in &errand.others {
        let invitation = Invitation {
            node: *node,
            ..errand.invitation.clone()
        };
        let command = invited::by_ssh(file.map(OsStr::new), host, &[AGENT, KEPT, &node.to_string()])?;
        start(command, &invitation, true, &mut started)?;
    }
    let result = watch(&stdin, &mut started);
    // What is left of ssh may wait for hosts that do not answer.
    for started in started.iter_mut().filter(|started| started.is_elsewhere) {
        let _ = started.process.kill();
    }
    result
}

/// Starts an agent, or says that it cannot: the dispatcher then starts it itself.
fn start(
    mut command: Command,
    invitation: &Invitation,
    is_elsewhere: bool,
    started: &mut Vec<Started>,
) -> io::Result<()> {
    let node = invitation.node;
    match command.stdin(Stdio::piped()).spawn() {
        Ok(mut process) => {
            invited::invite(&mut process, invitation)?;
            started.push(Started {
                node,
                process,
                is_elsewhere,
            });
            Ok(())
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "resurgo: an agent cannot be started: {error}");
            say(Told::LauncherEnded { node })
        }
    }
}

/// Waits until all have ended, or nobody is there who wants to know.
fn watch(stdin: &OwnedFd, started: &mut Vec<Started>) -> io::Result<()> {
    while !started.is_empty() {
        let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(LOOK));
        let is_ready = ready[0].any().unwrap_or(false);
        if is_ready && matches!(nix::unistd::read(stdin, &mut [0; 64]), Ok(0)) {
            return Ok(());
        }
        let has_ended = |started: &mut Started| !matches!(started.process.try_wait(), Ok(None));
        for ended in started.extract_if(.., has_ended) {
            say(Told::LauncherEnded { node: ended.node })?;
        }
    }
    Ok(())
}

fn say(told: Told) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(&told.line()?)?;
    out.flush()
}

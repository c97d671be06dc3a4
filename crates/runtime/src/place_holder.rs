//! `resurgo rank-hold`: the place holder of a program below a wrapper. The wrapper takes it for the program, which is a
//! child of the agent. It passes on the signals that the wrapper sends, and ends as the program has ended:
//! docs/internals/wrappers.md.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recv};
use resurgo_image::Socket;
use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

/// The hidden verb.
pub const VERB: &str = "rank-hold";

/// Signals that do not come from other processes, or that say nothing to the program.
const OWN: [Signal; 2] = [Signal::SIGCHLD, Signal::SIGPIPE];

/// Holds a program's place. Arguments: process id of the agent; the number of the socket to it; a mask of signals that
/// the program has already got. All signals are blocked.
pub fn run(arguments: &[OsString]) -> i32 {
    let number = |at: usize| arguments.get(at)?.to_str()?.parse().ok();
    let (Some(agent), Some(socket), Some(had)) = (number(0), number(1), number(2)) else {
        return 2;
    };
    match hold(agent, socket, had as u32) {
        Ok(end) => leave(&end),
        // The agent has gone, or has given up the wrapper: the program has no end that the wrapper could be told.
        Err(_) => leave(&Datagram::new(Kind::End, 1, Signal::SIGKILL as u64, 0)),
    }
}

/// Returns the agent's word on how the program has ended.
fn hold(agent: i32, socket: i32, mut had: u32) -> io::Result<Datagram> {
    close_all_but([socket, PMI_FD, IMAGE_FD])?;
    let _ = nix::sys::prctl::set_name(c"resurgo-hold");
    let socket = Socket::inherited(socket);
    let signals = SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    socket.send(&Datagram::new(Kind::Holds, 0, 0, 0), &[])?;
    loop {
        let mut events = [&socket.as_fd(), &signals.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        match poll(&mut events, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(got) = signals.read_signal()? {
            let Ok(signal) = Signal::try_from(got.ssi_signo as i32) else {
                continue;
            };
            let bit = 1u32 << (signal as u32 - 1);
            // The agent sends the job's signals to the program itself.
            if got.ssi_pid == agent as u32 || OWN.contains(&signal) || had & bit != 0 {
                had &= !bit;
                continue;
            }
            socket.send(&Datagram::new(Kind::Signalled, signal as u64, 0, 0), &[])?;
        }
        match socket.receive() {
            Ok((said, _)) if said.kind == Kind::End => return Ok(said),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// What the program had open must not stay open here.
fn close_all_but(kept: [i32; 3]) -> io::Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The directory's own is closed already.
    open.into_iter().filter(|fd| !kept.contains(fd)).for_each(|fd| {
        let _ = nix::unistd::close(fd);
    });
    Ok(())
}

/// Ends as the program has ended: with exit code `a`, or by signal `b`. Another program of the wrapper must not find
/// there what was meant for this one.
fn leave(end: &Datagram) -> i32 {
    let mut bytes = [0; 4096];
    for fd in [PMI_FD, IMAGE_FD] {
        while recv(fd, &mut bytes, MsgFlags::MSG_DONTWAIT).is_ok_and(|length| length > 0) {}
    }
    let Some(signal) = i32::try_from(end.b).ok().filter(|signal| *signal > 0) else {
        return end.a as i32;
    };
    // The program's own core is there already.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Ok(signal) = Signal::try_from(signal) {
        let mut only = SigSet::empty();
        only.add(signal);
        let _ = only.thread_unblock();
        // Rust's own handler of faults gives the first one back to the kernel.
        let _ = raise(signal);
        let _ = raise(signal);
    }
    128 + signal
}

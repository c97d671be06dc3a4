//! The jobs of a user on this machine, and how to talk to one.
//!
//! A dispatcher listens on a socket whose name is not in the file system (unix(7), "abstract"), so that nothing is left behind
//! however it ends. The name has the user and the dispatcher's process number in it, which is the job's number.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, getuid};
use resurgo_wire::console::{Reply, Request};
use resurgo_wire::control::{FrameBuffer, Message};

const PREFIX: &str = "resurgo";

fn address(user: Uid, number: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}/{user}/{number}"))
}

/// Listens for commands about the job of this process.
pub fn listen() -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address(getuid(), std::process::id())?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether whoever has connected may give orders: the same user, or root.
pub fn is_trusted(stream: &UnixStream) -> bool {
    let own = getuid();
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == own.as_raw() || peer.uid() == 0)
}

/// A job that runs, by its user and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    pub user: u32,
    pub number: u32,
}

/// The jobs that the caller may talk to: its own, and for root everybody's. In order of their numbers.
pub fn list() -> io::Result<Vec<Job>> {
    let own = getuid();
    let mut jobs = parse(&std::fs::read_to_string("/proc/net/unix")?);
    jobs.retain(|job| own.is_root() || job.user == own.as_raw());
    jobs.sort_by_key(|job| job.number);
    jobs.dedup();
    Ok(jobs)
}

fn parse(sockets: &str) -> Vec<Job> {
    sockets
        .lines()
        .filter_map(|line| {
            let name = line.rsplit_once(" @")?.1.strip_prefix(PREFIX)?.strip_prefix('/')?;
            let (user, number) = name.split_once('/')?;
            Some(Job {
                user: user.parse().ok()?,
                number: number.parse().ok()?,
            })
        })
        .collect()
}

/// Asks a job and waits for the answer; `progress` hears how far it has come.
pub fn ask(job: Job, request: &Request, progress: &mut dyn FnMut(&str)) -> io::Result<Reply> {
    use std::io::{Read, Write};
    let mut stream = UnixStream::connect_addr(&address(Uid::from_raw(job.user), job.number)?)?;
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    stream.write_all(&bytes)?;
    let mut frames = FrameBuffer::default();
    let mut buffer = [0u8; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => frames.extend(&buffer[..length]),
        }
        while let Some(reply) = frames.next_message().map_err(io::Error::other)? {
            match reply {
                Reply::Progress(text) => progress(&text),
                reply => return Ok(reply),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_found_among_sockets() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000: 00000002 00000000 00010000 0001 01 20 @resurgo/1000/77\n\
             0000: 00000003 00000000 00000000 0001 03 21 @resurgo/1000/77\n\
             0000: 00000002 00000000 00010000 0001 01 22 @resurgo/0/5\n\
             0000: 00000002 00000000 00010000 0001 01 23 /run/resurgo/0/6\n\
             0000: 00000002 00000000 00010000 0001 01 24\n\
             0000: 00000002 00000000 00010000 0001 01 25 @resurgo/x/7\n";
        let found: Vec<_> = parse(sockets).into_iter().map(|job| (job.user, job.number)).collect();
        assert_eq!(found, [(1000, 77), (1000, 77), (0, 5)]);
    }
}

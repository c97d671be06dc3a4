//! The jobs of a user on this machine, and how to talk to one.
//!
//! A dispatcher listens on a socket whose name is not in the file system (unix(7), "abstract"), so it leaves nothing
//! behind, however it ends. The name contains the user, the dispatcher's process number, which is the job's number, and
//! a random number, so strangers cannot take it beforehand.
//!
//! Any process may give a socket such a name. So the client asks the kernel who listens (`SO_PEERCRED`): only the
//! process of that number and user is the job. When root asks, the job may be another user's: the client trusts none of
//! its answers, and waits with a time limit.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::getuid;
use resurgo_wire::console::{Printed, Progress, Reply, Request, Status};
use resurgo_wire::control::{FrameBuffer, Message};

const PREFIX: &str = "resurgo";

/// Most jobs to connect to; the caller's own come first.
const MOST: usize = 500;
/// How long to wait for the status of all jobs together.
const TO_BE_LISTED: Duration = Duration::from_secs(3);
/// How long to wait for an immediate answer.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long to wait for an added host.
const TO_BE_THERE: Duration = Duration::from_secs(90);
/// How long to wait for a sign of life; while ranks take images there is one each second.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// Listens for commands about the job of this process.
pub fn listen() -> io::Result<UnixListener> {
    let (user, number, random) = (getuid(), std::process::id(), u64::from_ne_bytes(crate::sys::random()?));
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}/{user}/{number}/{random:016x}"))?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether the client may give orders: the same user, or root.
pub fn is_trusted(stream: &UnixStream) -> bool {
    let own = getuid();
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == own.as_raw() || peer.uid() == 0)
}

/// A running job, verified to be the one whose name it bears.
pub struct Job {
    pub user: u32,
    pub number: u32,
    socket: UnixStream,
    heard: FrameBuffer,
}

/// The name of a socket at which a job may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    user: u32,
    number: u32,
    name: String,
}

/// The jobs that the caller may talk to: its own, and for root those of all users. In order of their numbers.
pub fn list() -> io::Result<Vec<Job>> {
    let own = getuid();
    let mut names = parse(&std::fs::read("/proc/net/unix")?);
    names.retain(|named| own.is_root() || named.user == own.as_raw());
    names.sort_by_key(|named| (named.user != own.as_raw(), named.number));
    let mut jobs: Vec<Job> = Vec::new();
    for named in names {
        // A process may listen under several names.
        if jobs.len() < MOST
            && !jobs.iter().any(|job| job.number == named.number)
            && let Ok(job) = named.connect()
        {
            jobs.push(job);
        }
    }
    jobs.sort_by_key(|job| job.number);
    Ok(jobs)
}

/// The running job with this number, by another connection.
pub fn again(number: u32) -> io::Result<Option<Job>> {
    Ok(list()?.into_iter().find(|job| job.number == number))
}

/// The other user whose job has this number.
pub fn owner(number: u32) -> Option<u32> {
    let names = parse(&std::fs::read("/proc/net/unix").ok()?);
    let is_its = |named: &Named| std::fs::metadata(format!("/proc/{number}")).is_ok_and(|of| of.uid() == named.user);
    let mut others = names
        .into_iter()
        .filter(|named| named.number == number && named.user != getuid().as_raw());
    others.find(is_its).map(|named| named.user)
}

/// The names of sockets that listen. Strangers' names, even with line ends in them, make further names at worst.
fn parse(sockets: &[u8]) -> Vec<Named> {
    let number = |text: &str| {
        let number = text.parse::<u32>().ok()?;
        // Only the normal spelling, so different names have different numbers.
        (number.to_string() == text).then_some(number)
    };
    String::from_utf8_lossy(sockets)
        .lines()
        .filter_map(|line| {
            let name = line.rsplit_once(" @")?.1;
            let [PREFIX, user, own, _] = name.split('/').collect::<Vec<_>>()[..] else {
                return None;
            };
            Some(Named {
                user: number(user)?,
                number: number(own)?,
                name: name.to_string(),
            })
        })
        .collect()
}

impl Named {
    /// Connects at once or fails, and asks the kernel who listens.
    fn connect(self) -> io::Result<Job> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(self.name.as_bytes())?)?;
        let peer = getsockopt(&socket, PeerCredentials)?;
        if peer.uid() != self.user || u32::try_from(peer.pid()) != Ok(self.number) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Job {
            user: self.user,
            number: self.number,
            socket: socket.into(),
            heard: FrameBuffer::default(),
        })
    }
}

impl Job {
    /// The job of this process, by a connection from within.
    pub fn own(socket: UnixStream) -> io::Result<Job> {
        socket.set_nonblocking(true)?;
        Ok(Job {
            user: getuid().as_raw(),
            number: std::process::id(),
            socket,
            heard: FrameBuffer::default(),
        })
    }

    /// Sees the end of the job, beside whoever asks it.
    pub fn end(&self) -> io::Result<End> {
        self.socket.try_clone().map(End)
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        // A few bytes into an empty socket: the write does not block.
        self.socket.write_all(&bytes)
    }

    /// The next reply, if it has come.
    fn hear(&mut self) -> io::Result<Option<Reply>> {
        if let Some(reply) = self.heard.next_message().map_err(io::Error::other)? {
            return Ok(Some(reply));
        }
        let mut buffer = [0u8; 64 << 10];
        match self.socket.read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.heard.extend(&buffer[..length]);
                self.heard.next_message().map_err(io::Error::other)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks and waits for the answer; `progress` hears how far the job has come.
    pub fn ask(&mut self, request: &Request, progress: &mut dyn FnMut(Progress)) -> io::Result<Reply> {
        use Request::{Kill, KillRank, Losses, State, Status};
        let takes_long = !matches!(request, Status | State { .. } | Losses | KillRank { .. } | Kill);
        let patience = match request {
            Request::AddHost { .. } => TO_BE_THERE,
            _ if takes_long => SIGN_OF_LIFE,
            _ => AT_ONCE,
        };
        let mut deadline = Instant::now() + patience;
        // An answer that came too late is not the next one's.
        while self.hear()?.is_some() {}
        self.send(request)?;
        loop {
            match self.hear()? {
                Some(Reply::Progress(come)) if takes_long => {
                    progress(come);
                    deadline = Instant::now() + patience;
                }
                Some(reply) => return Ok(reply),
                None => wait(&[&*self], deadline)?,
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Job {
    /// Gives `take` what ranks print, from byte `after` on, until the job ends or says something else.
    pub fn follow_output(&mut self, after: u64, take: &mut dyn FnMut(Printed)) -> io::Result<()> {
        self.send(&Request::Output { after })?;
        loop {
            match self.hear()? {
                Some(Reply::Output(printed)) => take(printed),
                Some(_) => return Ok(()),
                None => wait(&[&*self], Instant::now() + SIGN_OF_LIFE)?,
            }
        }
    }
}

/// A look at a job's connection, which closes when the job ends.
pub struct End(UnixStream);

impl End {
    /// Returns when the job has ended.
    pub fn wait(self) {
        // Nothing is waited for but what poll always tells: that the other side is gone.
        let mut socket = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        while matches!(
            poll(&mut socket, PollTimeout::NONE),
            Ok(0) | Err(nix::errno::Errno::EINTR)
        ) {}
    }
}

/// Asks all of them for their status at the same time; for each an answer, or why there is none.
pub fn statuses(jobs: &mut [Job]) -> Vec<io::Result<Status>> {
    let deadline = Instant::now() + TO_BE_LISTED;
    let mut answers: Vec<Option<io::Result<Status>>> = jobs
        .iter_mut()
        .map(|job| job.send(&Request::Status).err().map(Err))
        .collect();
    loop {
        for (job, answer) in jobs.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            *answer = match job.hear() {
                Ok(Some(Reply::Status(status))) => Some(Ok(status)),
                Ok(Some(_)) => Some(Err(io::ErrorKind::InvalidData.into())),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            };
        }
        let silent = jobs.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let silent: Vec<&Job> = silent.map(|(job, _)| job).collect();
        if silent.is_empty() || wait(&silent, deadline).is_err() {
            break;
        }
    }
    let late = || Err(io::ErrorKind::TimedOut.into());
    answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
}

/// Waits until one of them has sent something.
fn wait(jobs: &[&Job], deadline: Instant) -> io::Result<()> {
    let sockets = jobs
        .iter()
        .map(|job| PollFd::new(job.socket.as_fd(), PollFlags::POLLIN));
    let left = deadline.saturating_duration_since(Instant::now());
    let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut sockets.collect::<Vec<_>>(), left) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        // A stranger that sends all the time does not postpone the end.
        Ok(_) if Instant::now() >= deadline => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_found_among_sockets() {
        let sockets = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000: 00000002 00000000 00010000 0001 01 20 @resurgo/1000/77/0123456789abcdef\n\
             0000: 00000003 00000000 00000000 0001 03 21 @\xff\xfe\n\
             0000: 00000002 00000000 00010000 0001 01 22 @resurgo/0/5/x\n\
             0000: 00000002 00000000 00010000 0001 01 23 /run/resurgo/0/6/x\n\
             0000: 00000002 00000000 00010000 0001 01 24\n\
             0000: 00000002 00000000 00010000 0001 01 25 @resurgo/x/7/x\n\
             0000: 00000002 00000000 00010000 0001 01 25 @resurgo/0/+7/x\n\
             0000: 00000002 00000000 00010000 0001 01 25 @resurgo/0/007/x\n\
             0000: 00000002 00000000 00010000 0001 01 25 @resurgo/0/4294967296/x\n";
        let found: Vec<_> = parse(sockets).into_iter().map(|job| (job.user, job.number)).collect();
        assert_eq!(found, [(1000, 77), (0, 5)]);
    }
}

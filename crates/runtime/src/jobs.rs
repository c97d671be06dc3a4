//! The jobs of a user on this machine, and how to talk to one.
//!
//! A dispatcher listens on a socket whose name is not in the file system (unix(7), "abstract"), so that nothing is left behind
//! however it ends. The name has the user and the dispatcher's process number in it, which is the job's number, and a random
//! number, so that nobody can take it beforehand.
//!
//! Anybody may give a socket any such name. So the kernel is asked who listens there (`SO_PEERCRED`): only the process of that
//! number and user is the job. And even a job may be another user's, when root asks: nothing that it says is relied on, and it
//! is waited for with a time limit.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::getuid;
use resurgo_wire::console::{Reply, Request, Status};
use resurgo_wire::control::{FrameBuffer, Message};

const PREFIX: &str = "resurgo";

/// Most jobs that are talked to; the caller's own come first.
const MOST: usize = 500;
/// For how long all jobs together are waited for when they are asked how they are.
const TO_BE_LISTED: Duration = Duration::from_secs(3);
/// For how long an answer that is given at once is waited for.
const AT_ONCE: Duration = Duration::from_secs(10);
/// For how long a host that is added is waited for.
const TO_BE_THERE: Duration = Duration::from_secs(90);
/// For how long a sign of life is waited for; while images are taken there is one each second.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// Listens for commands about the job of this process.
pub fn listen() -> io::Result<UnixListener> {
    let (user, number, random) = (getuid(), std::process::id(), u64::from_ne_bytes(crate::sys::random()?));
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}/{user}/{number}/{random:016x}"))?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether whoever has connected may give orders: the same user, or root.
pub fn is_trusted(stream: &UnixStream) -> bool {
    let own = getuid();
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == own.as_raw() || peer.uid() == 0)
}

/// A job that runs, and that has been found to be the one whose name it bears.
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

/// The jobs that the caller may talk to: its own, and for root everybody's. In order of their numbers.
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

/// The names of sockets that listen. What strangers have put into theirs, line ends among it, makes other names at worst.
fn parse(sockets: &[u8]) -> Vec<Named> {
    let number = |text: &str| {
        let number = text.parse::<u32>().ok()?;
        // As it is written, so that no two names have the same numbers.
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
    /// Connects at once or not at all, and asks the kernel who listens.
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
    fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        // A few bytes into a socket in which nothing is: they are not waited for.
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

    /// Asks and waits for the answer; `progress` hears how far it has come.
    pub fn ask(&mut self, request: &Request, progress: &mut dyn FnMut(&str)) -> io::Result<Reply> {
        let takes_long = !matches!(request, Request::Status | Request::Kill);
        let patience = match request {
            Request::AddHost { .. } => TO_BE_THERE,
            _ if takes_long => SIGN_OF_LIFE,
            _ => AT_ONCE,
        };
        let mut deadline = Instant::now() + patience;
        self.send(request)?;
        loop {
            match self.hear()? {
                Some(Reply::Progress(text)) if takes_long => {
                    progress(&text);
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

/// Asks all of them how they are, at the same time; an answer for each, or why there is none.
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

/// Waits until one of them has said something.
fn wait(jobs: &[&Job], deadline: Instant) -> io::Result<()> {
    let sockets = jobs
        .iter()
        .map(|job| PollFd::new(job.socket.as_fd(), PollFlags::POLLIN));
    let left = deadline.saturating_duration_since(Instant::now());
    let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut sockets.collect::<Vec<_>>(), left) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        // A stranger who says something all the time does not put the end off.
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

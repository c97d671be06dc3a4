//! A server of the job (an event logger, a channel memory) in a process of its own. The dispatcher starts it, and keeps
//! its listening socket and its file: both outlive the process.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::socket::Backlog;
use resurgo_wire::control::End;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::children;

/// The descriptor of the process's file.
const FILE_FD: i32 = 3;

/// Listens for ranks. Port 0 takes a free one.
pub fn listen(bind: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(bind)?;
    // A peer that finds the queue full tries again only after a second.
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE)?;
    // A connection that vanishes between poll and accept must not block.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The same; on every address of IPv4 where every address of IPv6 is meant and there is no IPv6.
pub fn listen_anywhere(bind: SocketAddr) -> io::Result<TcpListener> {
    let has_other = bind.ip() == Ipv6Addr::UNSPECIFIED;
    listen(bind).or_else(|error| match has_other {
        true => listen((Ipv4Addr::UNSPECIFIED, bind.port()).into()),
        false => Err(error),
    })
}

/// Listens for peers that know this machine by one of these addresses, at this port, or any (0). It listens on every
/// address, of IPv4 as well, unless all of these are local to this machine.
pub fn listen_for(addresses: &[IpAddr], port: u16) -> io::Result<TcpListener> {
    match addresses.first() {
        Some(own) if addresses.iter().all(IpAddr::is_loopback) => listen((*own, port).into()),
        _ => listen_anywhere((Ipv6Addr::UNSPECIFIED, port).into()),
    }
}

/// What a server starts with: standard input is the dispatcher's socket, standard output the listening socket.
pub struct Beginning<S> {
    /// To the dispatcher; it closes when the dispatcher ends.
    pub control: UnixStream,
    pub listener: TcpListener,
    pub settings: S,
}

impl<S> Beginning<S> {
    /// The file, opened once more.
    pub fn file(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{FILE_FD}");
        OpenOptions::new().read(true).write(true).open(path)
    }
}

/// The whole of a server's process: `serve` sends the reports to the dispatcher. Returns the exit status.
pub fn begin<S: DeserializeOwned>(name: &std::ffi::CStr, serve: impl FnOnce(Beginning<S>) -> Result<(), ()>) -> i32 {
    match find(name) {
        Ok(beginning) => i32::from(serve(beginning).is_err()),
        Err(error) => {
            eprintln!("resurgo: a server cannot start: {error}");
            1
        }
    }
}

fn find<S: DeserializeOwned>(name: &std::ffi::CStr) -> io::Result<Beginning<S>> {
    // No server outlives the dispatcher.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prctl::set_name(name)?;
    // A connection for each rank, and one for its later life.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut line = String::new();
    BufReader::new(&control).read_line(&mut line)?;
    Ok(Beginning {
        settings: serde_json::from_str(&line)?,
        listener: TcpListener::from(io::stdout().as_fd().try_clone_to_owned()?),
        control,
    })
}

/// Sends a report to the dispatcher.
pub fn say(mut control: &UnixStream, report: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}

/// A server as the dispatcher sees it: `S` is its settings, `R` its reports.
pub struct ServerProcess<S, R> {
    verb: String,
    pub settings: S,
    listener: TcpListener,
    file: Option<File>,
    running: Option<(Child, UnixStream)>,
    said: Vec<u8>,
    /// How often it has been started.
    pub starts: u64,
    reports: PhantomData<R>,
}

impl<S: Serialize, R: DeserializeOwned> ServerProcess<S, R> {
    /// `verb`: the hidden verb with which this program becomes the server.
    pub fn new(verb: impl Into<String>, settings: S, listener: TcpListener, file: Option<File>) -> Self {
        Self {
            verb: verb.into(),
            settings,
            listener,
            file,
            running: None,
            said: Vec::new(),
            starts: 0,
            reports: PhantomData,
        }
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(child, _)| child.id())
    }

    /// Starts the process, again if need be.
    pub fn start(&mut self) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        self.starts += 1;
        let mut command = Command::new("/proc/self/exe");
        let mut mappings = Vec::new();
        if let Some(file) = &self.file {
            mappings.push(FdMapping {
                parent_fd: file.try_clone()?.into(),
                child_fd: FILE_FD,
            });
        }
        command
            .arg0("resurgo")
            .arg(&self.verb)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(self.listener.try_clone()?)))
            .fd_mappings(mappings)
            .map_err(io::Error::other)?;
        // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn()?;
        let mut line = serde_json::to_vec(&self.settings)?;
        line.push(b'\n');
        (&ours).write_all(&line)?;
        ours.set_nonblocking(true)?;
        self.said.clear();
        self.running = Some((child, ours));
        Ok(())
    }

    /// Ends the process at once, and starts one that finds nothing of what it had.
    pub fn start_anew(&mut self) -> io::Result<()> {
        self.end_with_all()?;
        self.start()
    }

    /// Ends the process at once, with all that it had.
    pub fn end_with_all(&mut self) -> io::Result<()> {
        if let Some((mut child, _)) = self.running.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))
    }

    /// Readable when it has sent a report, or has ended.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// Ends it within this time, and returns its last reports.
    pub fn finish(&mut self, patience: Duration) -> Vec<R> {
        let until = Instant::now() + patience;
        let mut reports = Vec::new();
        while let Some((_, socket)) = &self.running {
            let _ = socket.shutdown(Shutdown::Write);
            let left = until.saturating_duration_since(Instant::now());
            let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
            reports.extend(self.hear().0);
            if left.is_zero() {
                break;
            }
        }
        reports
    }

    /// Its reports, and how it ended if it has.
    pub fn hear(&mut self) -> (Vec<R>, Option<End>) {
        let Some((child, socket)) = &mut self.running else {
            return (Vec::new(), None);
        };
        let mut buffer = [0; 4096];
        let gone = loop {
            match io::Read::read(socket, &mut buffer) {
                Ok(0) => break true,
                Ok(came) => self.said.extend_from_slice(&buffer[..came]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        let mut reports = Vec::new();
        while let Some(end) = self.said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.said.drain(..=end).collect();
            reports.extend(serde_json::from_slice::<R>(&line));
        }
        let mut end = None;
        if gone {
            // It has closed its socket: it ends, or is killed.
            let _ = child.kill();
            end = child.wait().ok().map(children::end_of);
            self.running = None;
        }
        (reports, end)
    }
}

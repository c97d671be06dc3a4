//! An event logger in a process of its own, which the dispatcher starts, and starts again when it dies. The dispatcher keeps
//! what the two have in common: the socket that listens, so that the port stays the same and ranks that connect meanwhile wait
//! in its queue, and the file of the journal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use resurgo_protocol::EventLogger;
use resurgo_wire::control::End;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::{Error, Server, Settings, listen};
use crate::agent::open_nameless;
use crate::children;

/// The hidden verb.
pub const VERB: &str = "event-logger";
/// Where the process finds the file of its journal.
const JOURNAL_FD: i32 = 3;

/// What a logger says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It serves, with so many deliveries from before.
    Serves { epoch: u64, deliveries: u64 },
    /// It cannot.
    Failed { reason: String },
}

/// `resurgo event-logger`: standard input is the dispatcher's socket, standard output the socket that listens.
pub fn run() -> i32 {
    let control = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => UnixStream::from(socket),
        Err(error) => {
            eprintln!("resurgo: an event logger cannot start: {error}");
            return 1;
        }
    };
    match serve(&control) {
        Ok(()) => 0,
        Err(error) => {
            let reason = error.to_string();
            // Nobody else is there to be told.
            let _ = say(&control, &Report::Failed { reason });
            1
        }
    }
}

fn say(mut control: &UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}

fn serve(control: &UnixStream) -> io::Result<()> {
    // Whatever happens to the dispatcher, nothing of it stays.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prctl::set_name(c"resurgo-evlog")?;
    let mut line = String::new();
    BufReader::new(control).read_line(&mut line)?;
    let settings: Settings = serde_json::from_str(&line)?;
    let listener = TcpListener::from(io::stdout().as_fd().try_clone_to_owned()?);
    let path = format!("/proc/self/fd/{JOURNAL_FD}");
    let file = || OpenOptions::new().read(true).write(true).open(&path);
    let (journal, logger) = match Journal::recover(file()?, settings.size)? {
        Some(found) => found,
        None => {
            let logger = match settings.epoch {
                1 => EventLogger::new(settings.size),
                epoch => EventLogger::replacement(settings.size, epoch),
            };
            (Journal::begin(file()?, &logger)?, logger)
        }
    };
    let deliveries = logger.stable_clocks().sum();
    let epoch = logger.epoch();
    say(control, &Report::Serves { epoch, deliveries })?;
    Server::new(settings, listener, Some(journal), logger).serve(control)
}

/// An event logger as the dispatcher sees it.
pub struct Process {
    settings: Settings,
    listener: TcpListener,
    journal: File,
    running: Option<(Child, UnixStream)>,
    said: Vec<u8>,
    /// How often it has been started.
    pub starts: u64,
}

impl Process {
    /// `directory`: where the file of the journal lies.
    pub fn new(settings: Settings, bind: SocketAddr, directory: &OsStr) -> Result<Process, Error> {
        let listener = listen(bind)?;
        Ok(Process {
            settings,
            listener,
            journal: open_nameless(directory).map_err(Error::Start)?,
            running: None,
            said: Vec::new(),
            starts: 0,
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The others, once all are known.
    pub fn set_peers(&mut self, peers: Vec<SocketAddr>) {
        self.settings.peers = peers;
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(child, _)| child.id())
    }

    /// Starts the process, again if need be.
    pub fn start(&mut self) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        self.starts += 1;
        self.settings.epoch = self.starts;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(VERB)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(self.listener.try_clone()?)))
            // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
            .fd_mappings(vec![FdMapping {
                parent_fd: self.journal.try_clone()?.into(),
                child_fd: JOURNAL_FD,
            }])
            .map_err(io::Error::other)?;
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

    /// Readable when it has something to say, or has ended.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// What it has said, and how it has ended if it has.
    pub fn hear(&mut self) -> (Vec<Report>, Option<End>) {
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
            reports.extend(serde_json::from_slice::<Report>(&line));
        }
        let mut end = None;
        if gone {
            // It has closed its socket: it ends, or it is made to.
            let _ = child.kill();
            end = child.wait().ok().map(children::end_of);
            self.running = None;
        }
        (reports, end)
    }
}

//! A node of the job, as the dispatcher knows it: the agent there, and the connection to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags};
use resurgo_wire::control::{ToAgent, ToDispatcher};

use super::start_error::{StartError, cannot};
use crate::connection::{Connection, Received};

pub struct Node {
    agent: Child,
    connection: Connection,
}

impl Node {
    /// Starts an agent on this node.
    pub fn start() -> Result<Node, StartError> {
        let (ours, theirs) = UnixStream::pair().map_err(cannot("make a socket"))?;
        let agent = Command::new("/proc/self/exe")
            .arg0("resurgo")
            .arg(crate::agent::VERB)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
            .process_group(0)
            .spawn()
            .map_err(cannot("start the agent"))?;
        let connection = Connection::new(ours).map_err(cannot("talk to the agent"))?;
        Ok(Node { agent, connection })
    }

    pub fn tell(&mut self, message: &ToAgent) {
        // A broken connection is noticed when it is read.
        let _ = self.connection.send(message);
    }

    /// The same, to be sent together with others.
    pub fn queue(&mut self, message: &ToAgent) {
        self.connection.queue(message);
    }

    /// Sends what is queued as far as that goes. False: the connection is broken.
    pub fn send_queued(&mut self) -> bool {
        self.connection.flush().is_ok()
    }

    /// What to wait for.
    pub fn descriptor(&self) -> PollFd<'_> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, self.connection.has_queued());
        PollFd::new(self.connection.as_fd(), flags)
    }

    /// Sends what is queued as far as that goes, and takes what has come.
    pub fn hear(&mut self) -> io::Result<Received<ToDispatcher>> {
        let flushed = self.connection.flush();
        let mut received = self.connection.receive()?;
        received.closed |= flushed.is_err();
        Ok(received)
    }

    /// Waits until all that is queued has been sent. False: the connection is broken.
    pub fn send_all(&mut self) -> bool {
        while self.connection.has_queued() {
            if self.connection.flush().is_err() {
                return false;
            }
        }
        true
    }

    /// The agent has ended: who it was, and how.
    pub fn last_words(&mut self) -> String {
        let end = match self.agent.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        format!("the agent (pid {}) has died ({end})", self.agent.id())
    }
}

//! Where agents arrive, and nodes join: a listener and its callers until they have proved a key and sent one message.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use resurgo_wire::control::{Message, first_message};
use resurgo_wire::handshake::Server;

use crate::connection::Connection;
use crate::reception::{Framing, Guest as _, Reception, Stranger};

/// How long a caller with the key may take for its message: an agent reads files for that.
const ARRIVAL: Duration = Duration::from_secs(10);

/// A listener where callers prove a key and then send one message.
pub struct Door {
    pub listener: TcpListener,
    server: Server,
    /// Numbers that callers have are below this.
    size: u32,
    pub key: [u8; 32],
    pub reception: Reception<Stranger>,
    proved: Vec<Proved>,
}

/// A caller with the key whose message has not come yet.
pub struct Proved {
    pub number: u32,
    pub connection: Connection,
    since: Instant,
}

const FRAMING: Framing = Framing {
    read: |said| first_message(said).map_err(io::Error::other),
    write: |word| {
        let mut bytes = Vec::new();
        word.encode(&mut bytes);
        bytes
    },
};

impl Door {
    pub fn new(listener: TcpListener, server: Server, size: u32, key: [u8; 32]) -> Door {
        Door {
            listener,
            server,
            size,
            key,
            reception: Reception::new(0),
            proved: Vec::new(),
        }
    }

    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let strangers = self.reception.iter().map(|(_, stranger)| stranger.line().poll(false));
        let proved = self
            .proved
            .iter()
            .map(move |proved| readable(proved.connection.as_fd()));
        [readable(self.listener.as_fd())]
            .into_iter()
            .chain(strangers)
            .chain(proved)
    }

    /// A caller is connected and has not sent its message.
    pub fn is_busy(&self) -> bool {
        self.reception.has_deadlines() || !self.proved.is_empty()
    }

    /// Lets callers in, and returns those whose message is complete.
    pub fn hear<M: Message>(&mut self) -> Vec<(Proved, M)> {
        let (server, size, key) = (self.server, self.size, self.key);
        self.reception
            .accept(&self.listener, |line| Stranger::new(line, server, size, key));
        for id in self.reception.ids() {
            let Some(mut stranger) = self.reception.take(id) else {
                continue;
            };
            match stranger.hear(&FRAMING) {
                Ok(None) => self.reception.put_back(id, stranger),
                Ok(Some(visitor)) => self
                    .proved
                    .extend(Connection::admitted(stranger.admitted()).map(|connection| Proved {
                        number: visitor.rank,
                        connection,
                        since: Instant::now(),
                    })),
                // The caller has no business here.
                Err(_) => {}
            }
        }
        self.reception.cut_late();
        let mut heard = Vec::new();
        for mut proved in std::mem::take(&mut self.proved) {
            let is_late = proved.since.elapsed() > ARRIVAL;
            match proved.hear() {
                Ok(Some(said)) => heard.push((proved, said)),
                Ok(None) if !is_late => self.proved.push(proved),
                Ok(None) | Err(_) => {}
            }
        }
        heard
    }
}

impl Proved {
    /// Reads the message; none: it is not complete.
    fn hear<M: Message>(&mut self) -> io::Result<Option<M>> {
        let closed = self.connection.read()?;
        match self.connection.next()? {
            Some(said) => Ok(Some(said)),
            _ if closed => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(None),
        }
    }
}

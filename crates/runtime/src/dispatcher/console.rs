//! Commands from outside about the running job.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use nix::poll::{PollFd, PollFlags};
use resurgo_wire::console::{Reply, Request};

use crate::connection::Connection;
use crate::jobs;

/// Most commands at a time; further ones wait.
const MOST: usize = 16;
/// Most connections accepted in a row, because strangers may open new ones all the time.
const AT_ONCE: usize = 64;

struct Client {
    number: u64,
    connection: Connection,
    gone: bool,
}

/// All connected clients.
pub struct Console {
    /// None where abstract sockets are not available: then no command can connect.
    listener: Option<UnixListener>,
    clients: Vec<Client>,
    next: u64,
}

impl Console {
    pub fn start() -> Console {
        Console {
            listener: jobs::listen().ok(),
            clients: Vec::new(),
            next: 0,
        }
    }

    /// A connection to the job from within its own process.
    pub fn own(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.add(Connection::new(ours)?);
        Ok(theirs)
    }

    fn add(&mut self, connection: Connection) {
        self.next += 1;
        self.clients.push(Client {
            number: self.next,
            connection,
            gone: false,
        });
    }

    /// What to wait for.
    pub fn descriptors(&self) -> Vec<PollFd<'_>> {
        let listener = self.listener.iter().filter(|_| self.clients.len() < MOST);
        let clients = self.clients.iter().map(|client| {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, client.connection.has_queued());
            PollFd::new(client.connection.as_fd(), flags)
        });
        listener
            .map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN))
            .chain(clients)
            .collect()
    }

    /// Takes the requests that have come, with a number of the client for the answer.
    pub fn requests(&mut self) -> Vec<(u64, Request)> {
        for _ in 0..AT_ONCE {
            if self.clients.len() >= MOST {
                break;
            }
            let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) else {
                break;
            };
            if !jobs::is_trusted(&stream) {
                continue;
            }
            if let Ok(connection) = Connection::new(stream) {
                self.add(connection);
            }
        }
        let mut requests = Vec::new();
        for client in &mut self.clients {
            let heard = client
                .connection
                .flush()
                .and_then(|()| client.connection.receive::<Request>());
            match heard {
                Ok(heard) => {
                    requests.extend(heard.messages.into_iter().map(|request| (client.number, request)));
                    client.gone = heard.closed;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => client.gone = true,
            }
        }
        self.clients.retain(|client| !client.gone);
        requests
    }

    /// Whether `client` has taken all that it was told; None: it is gone.
    pub fn takes(&self, client: u64) -> Option<bool> {
        let client = self.clients.iter().find(|other| other.number == client)?;
        Some(!client.connection.has_queued())
    }

    /// Answers `client`, if it is still there.
    pub fn answer(&mut self, client: u64, reply: &Reply) {
        if let Some(client) = self.clients.iter_mut().find(|other| other.number == client) {
            client.gone = client.connection.send(reply).is_err();
        }
    }
}

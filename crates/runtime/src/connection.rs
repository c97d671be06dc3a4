//! A non-blocking connection that sends and receives control messages.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::control::{FrameBuffer, Message};

use crate::reception::Admitted;
use crate::stream::Stream;

/// Bytes that are read at a time.
const READ: usize = 256 << 10;

/// To a process of the same machine, or of any.
enum Socket {
    Unix(UnixStream),
    Tcp(Stream),
}

/// One end of the control connection.
pub struct Connection {
    socket: Socket,
    incoming: FrameBuffer,
    /// The buffer of reads, kept because fresh memory of this size costs more than a read.
    buffer: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
}

/// The result of a read.
#[derive(Debug)]
pub struct Received<M> {
    pub messages: Vec<M>,
    /// The other side is gone.
    pub closed: bool,
}

impl Connection {
    pub fn new(socket: UnixStream) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        Ok(Connection::of(Socket::Unix(socket)))
    }

    /// To a process of another node, which has yet to prove the job's key.
    pub fn tcp(socket: Stream) -> io::Result<Connection> {
        socket.socket().set_nonblocking(true)?;
        socket.socket().set_nodelay(true)?;
        Ok(Connection::of(Socket::Tcp(socket)))
    }

    /// The same to one that has proved it, and has said more.
    pub fn admitted(visitor: Admitted) -> io::Result<Connection> {
        let mut connection = Connection::tcp(visitor.stream)?;
        connection.incoming.extend(&visitor.said);
        Ok(connection)
    }

    fn of(socket: Socket) -> Connection {
        Connection {
            socket,
            incoming: FrameBuffer::default(),
            buffer: vec![0; READ],
            outgoing: Vec::new(),
            sent: 0,
        }
    }

    /// This side's address as the other node sees it.
    pub fn own_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Unix(_) => None,
            Socket::Tcp(socket) => socket.socket().local_addr().ok(),
        }
    }

    /// The address of the other side, of a connection to another node.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Unix(_) => None,
            Socket::Tcp(socket) => socket.socket().peer_addr().ok(),
        }
    }

    /// Queues a message, to be sent together with others.
    pub fn queue<M: Message>(&mut self, message: &M) {
        message.encode(&mut self.outgoing);
    }

    /// Queues a message and sends as much as the socket takes.
    pub fn send<M: Message>(&mut self, message: &M) -> io::Result<()> {
        message.encode(&mut self.outgoing);
        self.flush()
    }

    /// Sends what is queued, as much as the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.socket.as_write().write(&self.outgoing[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent > 1 << 20 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        match self.socket.as_write().flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }

    /// Sends the queue, however slow the other side is, unless that is gone.
    pub fn flush_all(&mut self) {
        while self.has_queued() {
            let mut ready = [PollFd::new(self.as_fd(), PollFlags::POLLOUT)];
            let _ = poll(&mut ready, PollTimeout::NONE);
            if self.flush().is_err() {
                break;
            }
        }
    }

    /// Something is queued that the socket has not taken.
    pub fn has_queued(&self) -> bool {
        !self.outgoing.is_empty() || self.socket.owes()
    }

    /// Takes what has arrived.
    pub fn receive<M: Message>(&mut self) -> io::Result<Received<M>> {
        let closed = self.read()?;
        let mut messages = Vec::new();
        while let Some(message) = self.next()? {
            messages.push(message);
        }
        Ok(Received { messages, closed })
    }

    /// Takes what has arrived, for [`Connection::next`]. Returns whether the other side is gone.
    pub fn read(&mut self) -> io::Result<bool> {
        loop {
            match self.socket.as_read().read(&mut self.buffer) {
                Ok(0) => return Ok(true),
                Ok(length) => {
                    self.incoming.extend(&self.buffer[..length]);
                    if length < self.buffer.len() && !self.socket.holds() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next complete message.
    pub fn next<M: Message>(&mut self) -> io::Result<Option<M>> {
        self.incoming.next_message().map_err(io::Error::other)
    }

    /// Waits for the next message, until the other side is gone or the deadline has passed.
    pub fn wait_for<M: Message>(&mut self, deadline: Instant) -> io::Result<M> {
        loop {
            self.flush()?;
            if let Some(message) = self.next()? {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut ready = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
            if self.read()? {
                // Its last message may give the reason.
                return self.next()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The error of a connection whose other side is lost.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        // A broken pipe: it closed, and has got something since.
        Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
    )
}

impl Socket {
    /// See [`Stream::holds`].
    fn holds(&self) -> bool {
        matches!(self, Socket::Tcp(socket) if socket.holds())
    }

    /// See [`Stream::owes`].
    fn owes(&self) -> bool {
        matches!(self, Socket::Tcp(socket) if socket.owes())
    }

    fn as_read(&mut self) -> &mut dyn Read {
        match self {
            Socket::Unix(socket) => socket,
            Socket::Tcp(socket) => socket,
        }
    }

    fn as_write(&mut self) -> &mut dyn Write {
        match self {
            Socket::Unix(socket) => socket,
            Socket::Tcp(socket) => socket,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use resurgo_wire::control::{ToAgent, ToDispatcher};

    use super::*;

    #[test]
    fn what_was_said_before_the_other_side_had_gone_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let calling = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (called, _) = listener.accept().unwrap();
        let mut theirs = Connection::tcp(Stream::calling(calling, None).unwrap()).unwrap();
        let mut ours = Connection::tcp(Stream::called(called, None).unwrap()).unwrap();
        theirs.send(&ToDispatcher::Halted).unwrap();
        drop(theirs);
        // Nobody takes it, and the answer to that breaks the connection.
        ours.send(&ToAgent::Leave).unwrap();
        let mut heard = 0;
        loop {
            let received = ours.receive::<ToDispatcher>().unwrap();
            heard += received.messages.len();
            if received.closed {
                break;
            }
        }
        assert_eq!(heard, 1);
    }
}

//! A non-blocking connection that sends and receives control messages.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::control::{FrameBuffer, Message};

/// Bytes that are read at a time.
const READ: usize = 256 << 10;

/// One end of the control connection.
pub struct Connection {
    socket: UnixStream,
    incoming: FrameBuffer,
    /// What a read fills: kept, as new memory of this size costs more than what it is for.
    buffer: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
}

/// What a read has brought.
#[derive(Debug)]
pub struct Received<M> {
    pub messages: Vec<M>,
    /// The other side has gone.
    pub closed: bool,
}

impl Connection {
    pub fn new(socket: UnixStream) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        Ok(Connection {
            socket,
            incoming: FrameBuffer::default(),
            buffer: vec![0; READ],
            outgoing: Vec::new(),
            sent: 0,
        })
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
            match self.socket.write(&self.outgoing[self.sent..]) {
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
        Ok(())
    }

    /// Sends what is queued, however slow the other side is, unless that has gone.
    pub fn flush_all(&mut self) {
        while self.has_queued() {
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            let _ = poll(&mut ready, PollTimeout::NONE);
            if self.flush().is_err() {
                break;
            }
        }
    }

    /// Something is queued that the socket has not taken.
    pub fn has_queued(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes what has arrived.
    pub fn receive<M: Message>(&mut self) -> io::Result<Received<M>> {
        let mut received = Received {
            messages: Vec::new(),
            closed: false,
        };
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(0) => {
                    received.closed = true;
                    break;
                }
                Ok(length) => {
                    self.incoming.extend(&self.buffer[..length]);
                    if length < self.buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    received.closed = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        while let Some(message) = self.incoming.next_message().map_err(io::Error::other)? {
            received.messages.push(message);
        }
        Ok(received)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

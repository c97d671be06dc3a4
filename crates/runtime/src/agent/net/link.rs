//! One connection to the mover of another node: its input, its output, and its peer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use resurgo_wire::frame::Error;
use resurgo_wire::mesh::Frame;
use resurgo_wire::output::Output;

use crate::reception::Admitted;
use crate::stream::{Stream, Tls};

/// Most bytes that one read takes.
const READ: usize = 256 << 10;

/// A socket that never blocks, with its input and output.
pub struct Link {
    socket: Stream,
    input: Vec<u8>,
    /// In the input: bytes received, and bytes used.
    filled: usize,
    used: usize,
    pub output: Output,
}

/// The result of a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// There may be more.
    Some,
    /// Not now.
    Nothing,
    /// The other side is gone.
    Gone,
}

impl Link {
    fn new(socket: Stream) -> io::Result<Link> {
        socket.socket().set_nonblocking(true)?;
        socket.socket().set_nodelay(true)?;
        Ok(Link {
            socket,
            input: vec![0; READ],
            filled: 0,
            used: 0,
            output: Output::default(),
        })
    }

    /// A caller that has proved the key, and may have sent more.
    pub fn called(visitor: Admitted) -> io::Result<Link> {
        let mut link = Link::new(visitor.stream)?;
        let room = link.input.get_mut(..visitor.said.len());
        room.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(&visitor.said);
        link.filled = visitor.said.len();
        Ok(link)
    }

    /// Begins a call; the socket becomes writable on success or failure.
    ///
    /// # Errors
    /// The call cannot succeed.
    pub fn call(address: SocketAddr, tls: Option<&Tls>) -> io::Result<Link> {
        Link::new(Stream::call(address, tls)?)
    }

    /// The address of the other side.
    pub fn address(&self) -> Option<IpAddr> {
        self.socket.socket().peer_addr().ok().map(|address| address.ip())
    }

    /// Fails with the reason if the call has failed.
    pub fn is_connected(&self) -> bool {
        matches!(self.socket.socket().take_error(), Ok(None))
    }

    /// Reads the input, up to a bound.
    pub fn read(&mut self) -> Moved {
        if self.used > 0 {
            self.input.copy_within(self.used..self.filled, 0);
            (self.filled, self.used) = (self.filled - self.used, 0);
        }
        loop {
            match self.socket.read(&mut self.input[self.filled..]) {
                Ok(0) => return Moved::Gone,
                Ok(bytes) => {
                    self.filled += bytes;
                    if !self.socket.holds() || self.filled == self.input.len() {
                        return Moved::Some;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Moved::Nothing,
                Err(_) => return Moved::Gone,
            }
        }
    }

    /// The stream has input that the socket does not show.
    pub fn holds(&self) -> bool {
        self.socket.holds()
    }

    /// There is no output.
    pub fn is_empty(&self) -> bool {
        self.output.is_empty() && !self.socket.owes()
    }

    /// The next complete frame. Call [`Link::take`] with its bytes after use.
    ///
    /// # Errors
    /// It is not a frame.
    pub fn frame(&self) -> Result<Option<(Frame<'_>, usize)>, Error> {
        Frame::decode(&self.input[self.used..self.filled])
    }

    pub fn take(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Writes output, as much as the socket takes.
    pub fn write(&mut self) -> Moved {
        while !self.output.is_empty() {
            match self.socket.write(self.output.bytes()) {
                Ok(bytes) => self.output.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Moved::Nothing,
                Err(_) => return Moved::Gone,
            }
        }
        match self.socket.flush() {
            Ok(()) => Moved::Some,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Moved::Nothing,
            Err(_) => Moved::Gone,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

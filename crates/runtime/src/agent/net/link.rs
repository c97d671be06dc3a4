//! One connection to the mover of another node: bytes in and out, and who is at the other end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, socket};
use resurgo_wire::frame::Error;
use resurgo_wire::mesh::Frame;
use resurgo_wire::output::Output;

use crate::reception::Admitted;
use crate::stream::{Stream, Tls};

/// Bytes that are read at a time, at most.
const READ: usize = 256 << 10;

/// A socket that never blocks, and what has come and is to go.
pub struct Link {
    socket: Stream,
    input: Vec<u8>,
    /// Of the input, what has come, and what of that has been used.
    filled: usize,
    used: usize,
    pub output: Output,
}

/// What a read or a write has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// There may be more.
    Some,
    /// Not now.
    Nothing,
    /// The other side has gone.
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

    /// Somebody has called, and has said more already.
    pub fn called(visitor: Admitted) -> io::Result<Link> {
        let mut link = Link::new(visitor.stream)?;
        let room = link.input.get_mut(..visitor.said.len());
        room.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(&visitor.said);
        link.filled = visitor.said.len();
        Ok(link)
    }

    /// Begins to call; the socket can be written to when that has succeeded or failed.
    ///
    /// # Errors
    /// It cannot succeed.
    pub fn call(address: SocketAddr, tls: Option<&Tls>) -> io::Result<Link> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(family, SockType::Stream, flags, None)?;
        let called = match address {
            SocketAddr::V4(address) => connect(fd.as_raw_fd(), &SockaddrIn::from(address)),
            SocketAddr::V6(address) => connect(fd.as_raw_fd(), &SockaddrIn6::from(address)),
        };
        match called {
            Ok(()) | Err(Errno::EINPROGRESS) => Link::new(Stream::calling(TcpStream::from(fd), tls)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Why the call has failed, if it has.
    pub fn is_connected(&self) -> bool {
        matches!(self.socket.socket().take_error(), Ok(None))
    }

    /// Reads what has come, up to a bound.
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

    /// There is something to be read that the socket does not tell of.
    pub fn holds(&self) -> bool {
        self.socket.holds()
    }

    /// Nothing is to go.
    pub fn is_empty(&self) -> bool {
        self.output.is_empty() && !self.socket.owes()
    }

    /// The next frame that has come whole. Call [`Link::take`] with its bytes when it has been used.
    ///
    /// # Errors
    /// It is none.
    pub fn frame(&self) -> Result<Option<(Frame<'_>, usize)>, Error> {
        Frame::decode(&self.input[self.used..self.filled])
    }

    pub fn take(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Writes what is to go, as much as the socket takes.
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

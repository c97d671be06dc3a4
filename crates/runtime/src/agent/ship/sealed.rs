//! A connection between two agents with the job's key. It waits for the other side, with time limits.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use resurgo_wire::control::MOST_NODES;
use resurgo_wire::handshake::{Greeting, Hello, KEY_BYTES, Server, Word};
use resurgo_wire::replica::{Frame, RUN_HEAD, Seal, Side};

use crate::reception::Admitted;
use crate::stream::{Stream, Tls};
use crate::sys::random;

/// The time limit for one address, and for the handshake.
const CONNECT: Duration = Duration::from_secs(2);
/// Silence after which a connection counts as broken.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The same for an answer: a partner that syncs and verifies a file sends nothing meanwhile.
const FOR_ANSWERS: Duration = Duration::from_secs(120);
/// Bytes that one read takes.
const READ: usize = 512 << 10;

pub struct Sealed {
    stream: Stream,
    /// Input: bytes `taken..came` are unused.
    incoming: Vec<u8>,
    taken: usize,
    came: usize,
    seals: Option<(Seal, Seal)>,
}

/// Closes it even where another handle is open.
impl Drop for Sealed {
    fn drop(&mut self) {
        let _ = self.stream().shutdown(Shutdown::Both);
    }
}

impl Sealed {
    fn new(stream: Stream) -> io::Result<Sealed> {
        let socket = stream.socket();
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Sealed {
            stream,
            incoming: vec![0; READ],
            taken: 0,
            came: 0,
            seals: None,
        })
    }

    /// Calls the agent at one of these addresses, as node `node`.
    pub fn call(addresses: &[SocketAddr], node: u32, key: &[u8; KEY_BYTES], tls: Option<&Tls>) -> io::Result<Sealed> {
        let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
        for address in addresses {
            result = TcpStream::connect_timeout(address, CONNECT);
            if result.is_ok() {
                break;
            }
        }
        let mut this = Sealed::new(Stream::calling(result?, tls)?)?;
        this.stream().set_read_timeout(Some(CONNECT))?;
        let hello = Hello {
            rank: node,
            size: MOST_NODES,
            incarnation: 0,
            nonce: random()?,
        };
        let greeting = Greeting::new(Server::Replica, *key, hello);
        this.send(&Frame::Handshake(greeting.hello()))?;
        let Frame::Handshake(word) = this.receive()? else {
            return Err(io::Error::other("no word of the handshake"));
        };
        let challenge = match &word {
            Word::Challenge { nonce, .. } => *nonce,
            _ => [0; KEY_BYTES],
        };
        let (_, proof) = greeting.answer(word, |_| None).map_err(io::Error::other)?;
        this.send(&Frame::Handshake(proof))?;
        this.seals = Some((
            Seal::new(key, Side::Visitor, &hello.nonce, &challenge),
            Seal::new(key, Side::Server, &hello.nonce, &challenge),
        ));
        this.stream().set_read_timeout(Some(PATIENCE))?;
        Ok(this)
    }

    /// The next frame, which may take long.
    pub fn receive_answer(&mut self) -> io::Result<Frame<'_>> {
        self.stream().set_read_timeout(Some(FOR_ANSWERS))?;
        self.receive()
    }

    /// The connection of a visitor that has proved the key.
    pub fn admitted(visitor: Admitted, key: &[u8; KEY_BYTES]) -> io::Result<Sealed> {
        let Admitted {
            stream,
            said,
            hello,
            challenge,
        } = visitor;
        let mut this = Sealed::new(stream)?;
        let room = this.incoming.get_mut(..said.len());
        room.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(&said);
        this.came = said.len();
        this.seals = Some((
            Seal::new(key, Side::Server, &hello, &challenge),
            Seal::new(key, Side::Visitor, &hello, &challenge),
        ));
        Ok(this)
    }

    /// Another handle, which can cut the connection.
    pub fn stream(&self) -> &TcpStream {
        self.stream.socket()
    }

    pub fn send(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let seal = self.seals.as_mut().map(|(ours, _)| ours);
        let bytes = frame.encode(seal);
        self.stream.write_all(&bytes)
    }

    /// Sends a Run of `length` bytes, which `fill` reads into the output buffer.
    pub fn send_run(
        &mut self,
        buffer: &mut Vec<u8>,
        position: u64,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some((ours, _)) = &mut self.seals else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        buffer.resize(RUN_HEAD + length, 0);
        fill(&mut buffer[RUN_HEAD..])?;
        ours.close_run(buffer, position);
        self.stream.write_all(buffer)
    }

    /// The next frame.
    ///
    /// # Errors
    /// The connection is broken, or the input differs from what the other side sent.
    pub fn receive(&mut self) -> io::Result<Frame<'_>> {
        let length = loop {
            match Frame::length(&self.incoming[self.taken..self.came]) {
                Ok(Some(length)) if length <= self.came - self.taken => break length,
                Ok(_) => self.read()?,
                Err(error) => return Err(io::Error::other(error)),
            }
        };
        let frame = &self.incoming[self.taken..self.taken + length];
        self.taken += length;
        let seal = self.seals.as_mut().map(|(_, theirs)| theirs);
        let decoded = Frame::decode(frame, seal).map_err(io::Error::other)?;
        decoded
            .map(|(frame, _)| frame)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn read(&mut self) -> io::Result<()> {
        self.incoming.copy_within(self.taken..self.came, 0);
        (self.taken, self.came) = (0, self.came - self.taken);
        loop {
            match self.stream.read(&mut self.incoming[self.came..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    self.came += length;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

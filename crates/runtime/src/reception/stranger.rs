//! A connection to an agent, or to the dispatcher, that has yet to prove the job's key. All doors work alike; only the
//! framing of messages differs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use resurgo_wire::handshake::{Doorkeeper, Heard, KEY_BYTES, Server, Visitor, Word};

use super::{Guest, Line};
use crate::stream::Stream;
use crate::sys::random;

/// Most bytes from a peer before it has proved the key.
const MOST_SAID: usize = 64 << 10;

/// The first word of the input, and its length; none: it is incomplete.
type First = io::Result<Option<(Word, usize)>>;

/// The framing of the handshake's words.
pub struct Framing {
    pub read: fn(&[u8]) -> First,
    pub write: fn(Word) -> Vec<u8>,
}

pub struct Stranger {
    line: Line,
    said: Vec<u8>,
    doorkeeper: Doorkeeper,
    hello: [u8; KEY_BYTES],
    challenge: [u8; KEY_BYTES],
}

/// The connection of a peer that has proved the key.
pub struct Admitted {
    pub stream: Stream,
    /// Its input since.
    pub said: Vec<u8>,
    /// The nonces of both.
    pub hello: [u8; KEY_BYTES],
    pub challenge: [u8; KEY_BYTES],
}

impl Guest for Stranger {
    fn line(&self) -> &Line {
        &self.line
    }
}

impl AsFd for Stranger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.stream.as_fd()
    }
}

impl Stranger {
    /// A stranger at this door of a job with so many possible callers.
    pub fn new(line: Line, server: Server, size: u32, key: [u8; KEY_BYTES]) -> io::Result<Stranger> {
        let challenge = random()?;
        Ok(Stranger {
            line,
            said: Vec::new(),
            doorkeeper: Doorkeeper::new(server, size, 0, key, challenge),
            hello: [0; KEY_BYTES],
            challenge,
        })
    }

    /// Reads input, and returns the visitor once the key is proved.
    ///
    /// # Errors
    /// It does not belong to the job, or is gone.
    pub fn hear(&mut self, framing: &Framing) -> io::Result<Option<Visitor>> {
        let mut bytes = [0; 4096];
        while let Some(came) = self.line.read(&mut bytes)? {
            if came == 0 || self.said.len() > MOST_SAID {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.said.extend_from_slice(&bytes[..came]);
            while let Some((word, used)) = (framing.read)(&self.said)? {
                if let Word::Hello(hello) = &word {
                    self.hello = hello.nonce;
                }
                self.said.drain(..used);
                match self.doorkeeper.hear(word).map_err(io::Error::other)? {
                    Heard::Proved(visitor) => return Ok(Some(visitor)),
                    // The answer is short, and the first output of this connection.
                    Heard::Stranger(answer) => self.line.write(&(framing.write)(answer))?,
                };
            }
        }
        Ok(None)
    }

    /// The connection moves elsewhere.
    pub fn admitted(self) -> Admitted {
        Admitted {
            stream: self.line.into_stream(),
            said: self.said,
            hello: self.hello,
            challenge: self.challenge,
        }
    }
}

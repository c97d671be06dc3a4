//! Who has come to an agent, or to the dispatcher, and has yet to prove the job's key. All doors are kept alike; only how words are
//! framed differs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use resurgo_wire::handshake::{Doorkeeper, Heard, KEY_BYTES, Server, Visitor, Word};

use super::{Guest, Line};
use crate::stream::Stream;
use crate::sys::random;

/// Most bytes that anybody may say before it has proved the key.
const MOST_SAID: usize = 64 << 10;

/// The first word of what has come, and how many bytes it takes; none: it has not come whole.
type First = io::Result<Option<(Word, usize)>>;

/// How words of the handshake are framed.
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

/// What is left of one who has proved the key.
pub struct Admitted {
    pub stream: Stream,
    /// What it has said since.
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
    /// Who has come to this door of a job with so many that may come.
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

    /// Takes what has come: who it is, once that is proved.
    ///
    /// # Errors
    /// It does not belong to the job, or has gone.
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
                    // It is short, and the first that this connection has to send.
                    Heard::Stranger(answer) => self.line.write(&(framing.write)(answer))?,
                };
            }
        }
        Ok(None)
    }

    /// It goes on elsewhere.
    pub fn admitted(self) -> Admitted {
        Admitted {
            stream: self.line.into_stream(),
            said: self.said,
            hello: self.hello,
            challenge: self.challenge,
        }
    }
}

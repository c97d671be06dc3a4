//! A connection between a client and a checkpoint server: [messages](resurgo_wire::store) with proofs.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use resurgo_wire::handshake::Word;
use resurgo_wire::store::{HEAD, Head, Kind, PROOF, Proof, Prover, Side, put_word, take_word};

use crate::place::MOST_BYTES;

/// Bytes that are read and written at once.
pub const PIECE: usize = 256 << 10;

/// One connection, after the handshake.
pub struct Line {
    stream: TcpStream,
    ours: Prover,
    theirs: Prover,
}

/// A message whose content is still to be read.
pub struct Coming {
    pub kind: Kind,
    pub text: String,
    left: u64,
    proof: Proof,
}

fn wrong(error: resurgo_wire::frame::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads a word of the handshake, and nothing of what may follow it.
///
/// # Errors
/// The peer is gone, silent, or says something else.
pub fn read_word(stream: &mut impl Read) -> io::Result<Word> {
    // The length and the kind, by which a stranger is known before its length is believed.
    let mut bytes = vec![0; 5];
    stream.read_exact(&mut bytes)?;
    take_word(&bytes).map_err(wrong)?;
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    bytes.resize(4 + length, 0);
    stream.read_exact(&mut bytes[5..])?;
    match take_word(&bytes).map_err(wrong)? {
        Some((word, _)) => Ok(word),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// # Errors
/// The peer is gone.
pub fn write_word(stream: &mut impl Write, word: &Word) -> io::Result<()> {
    stream.write_all(&put_word(word))
}

impl Line {
    /// Both sides hold the key, and have chosen these nonces.
    pub fn new(stream: TcpStream, key: &[u8; 32], hello: &[u8; 32], challenge: &[u8; 32], side: Side) -> Line {
        let prover = |side| Prover::new(key, hello, challenge, side);
        let (ours, theirs) = match side {
            Side::Client => (prover(Side::Client), prover(Side::Server)),
            Side::Server => (prover(Side::Server), prover(Side::Client)),
        };
        Line { stream, ours, theirs }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// # Errors
    /// The peer is gone.
    pub fn send(&mut self, kind: Kind, text: &str, content: &[u8]) -> io::Result<()> {
        self.send_from(kind, text, content.len() as u64, &mut { content })
    }

    /// Sends a message whose content is read from somewhere.
    ///
    /// # Errors
    /// The peer is gone, or the content is not so long: the connection is of no use any more.
    pub fn send_from(&mut self, kind: Kind, text: &str, length: u64, content: &mut impl Read) -> io::Result<()> {
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let head = Head {
            kind,
            text: text.len().try_into().map_err(too_long)?,
            content: length.try_into().map_err(too_long)?,
        };
        let mut proof = self.ours.begin();
        let mut bytes = head.encode().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        let (mut left, mut piece) = (length, vec![0; PIECE.min(length as usize)]);
        while left > 0 {
            let size = left.min(PIECE as u64) as usize;
            content.read_exact(&mut piece[..size])?;
            proof.update(&bytes);
            self.stream.write_all(&bytes)?;
            bytes.clear();
            bytes.extend_from_slice(&piece[..size]);
            left -= size as u64;
        }
        proof.update(&bytes);
        bytes.extend_from_slice(&proof.end());
        self.stream.write_all(&bytes)
    }

    /// The next message. None: the peer has closed the connection.
    ///
    /// # Errors
    /// The peer is gone in the middle, or says something else.
    pub fn next(&mut self) -> io::Result<Option<Coming>> {
        let mut head = [0; HEAD];
        if self.stream.read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut head[1..])?;
        let mut proof = self.theirs.begin();
        proof.update(&head);
        let Head { kind, text, content } = Head::decode(&head).map_err(wrong)?;
        let mut bytes = vec![0; usize::from(text)];
        self.stream.read_exact(&mut bytes)?;
        proof.update(&bytes);
        let mut coming = Coming {
            kind,
            text: String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData)?,
            left: u64::from(content),
            proof,
        };
        if coming.left > MOST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if coming.left == 0 {
            self.check(&mut coming)?;
        }
        Ok(Some(coming))
    }

    /// Some more of the content; nothing after its end, when all of it is proved.
    ///
    /// # Errors
    /// The peer is gone, or the content is not what it has sent.
    pub fn more<'a>(&mut self, coming: &mut Coming, piece: &'a mut [u8]) -> io::Result<&'a [u8]> {
        if coming.left == 0 {
            return Ok(&[]);
        }
        let size = coming.left.min(piece.len() as u64) as usize;
        self.stream.read_exact(&mut piece[..size])?;
        coming.proof.update(&piece[..size]);
        coming.left -= size as u64;
        if coming.left == 0 {
            self.check(coming)?;
        }
        Ok(&piece[..size])
    }

    /// All that is left of the content.
    ///
    /// # Errors
    /// As [`Line::more`].
    pub fn rest(&mut self, coming: &mut Coming) -> io::Result<Vec<u8>> {
        let (mut all, mut piece) = (Vec::new(), vec![0; PIECE.min(coming.left as usize)]);
        while coming.left > 0 {
            all.extend_from_slice(self.more(coming, &mut piece)?);
        }
        Ok(all)
    }

    fn check(&mut self, coming: &mut Coming) -> io::Result<()> {
        let mut theirs = [0; PROOF];
        self.stream.read_exact(&mut theirs)?;
        match coming.proof.is(theirs) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message was changed on its way",
            )),
        }
    }
}

impl Coming {
    /// Bytes of the content that are still to come.
    pub fn left(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_follow_the_handshake_at_once() {
        let word = Word::Proof {
            proof: [7; 32],
            claim: None,
        };
        let bytes = [&put_word(&word)[..], b"request"].concat();
        let mut stream = &bytes[..];
        assert_eq!(read_word(&mut stream).unwrap(), word);
        assert_eq!(stream, b"request");
        for wrong in [&b"GET / HTTP/1.1"[..], &[255; 20], &[0; 20], &bytes[..20]] {
            assert!(read_word(&mut { wrong }).is_err());
        }
    }
}

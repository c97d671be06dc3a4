//! Messages between a place's client and a checkpoint server.
//!
//! After the [handshake](crate::handshake), in which the user's key has a number in place of an incarnation, the client
//! sends requests and the server answers each:
//!
//! ```text
//! kind u8   length of the text u16   length of the content u32   text   content   proof 32
//! ```
//!
//! The proof is a BLAKE3 of all before it, keyed for this connection and direction, with the message's number. So nobody
//! on the way changes, repeats or leaves out anything. Contents are secret only if they are sealed.

use crate::frame::{Error, begin, end, split};
use crate::handshake::{KEY_BYTES, NAMES, Word};

/// Bytes of a message's head, and of its proof.
pub const HEAD: usize = 7;
pub const PROOF: usize = 32;
/// Bytes of a text, at most.
pub const MOST_TEXT: usize = 1024;
/// Bytes of a frame of the handshake, at most.
const MOST_FRAME: usize = 1024;

/// What a message asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An object, whose name is the text, with this content.
    Put,
    Get,
    Has,
    /// Of a folder; the answer's content has a [line](Line) for each object.
    List,
    Delete,
    Settle,
    /// The content is 1 if nobody writes.
    Clear,
    /// It is done; the answer to Get has a content.
    Done,
    /// There is no such object.
    Missing,
    /// The text says why; the content is one byte, a [`Reason`].
    Failed,
}

const KINDS: [Kind; 10] = [
    Kind::Put,
    Kind::Get,
    Kind::Has,
    Kind::List,
    Kind::Delete,
    Kind::Settle,
    Kind::Clear,
    Kind::Done,
    Kind::Missing,
    Kind::Failed,
];

/// Why something cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    NoSpace,
    Quota,
    NoRights,
    BadName,
    Other,
}

const REASONS: [Reason; 5] = [
    Reason::NoSpace,
    Reason::Quota,
    Reason::NoRights,
    Reason::BadName,
    Reason::Other,
];

impl Reason {
    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn numbered(number: u8) -> Reason {
        REASONS.get(usize::from(number)).copied().unwrap_or(Reason::Other)
    }
}

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    pub text: u16,
    pub content: u32,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = self.kind as u8;
        bytes[1..3].copy_from_slice(&self.text.to_le_bytes());
        bytes[3..].copy_from_slice(&self.content.to_le_bytes());
        bytes
    }

    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Head, Error> {
        let kind = KINDS.get(usize::from(bytes[0]));
        let head = Head {
            kind: *kind.ok_or(Error::UnknownKind { kind: bytes[0] })?,
            text: u16::from_le_bytes([bytes[1], bytes[2]]),
            content: u32::from_le_bytes([bytes[3], bytes[4], bytes[5], bytes[6]]),
        };
        match usize::from(head.text) > MOST_TEXT {
            false => Ok(head),
            true => Err(Error::FrameTooLong {
                bytes: u64::from(head.text),
            }),
        }
    }
}

/// Which side has sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// Makes the proofs of one direction of a connection.
pub struct Prover {
    key: [u8; KEY_BYTES],
    next: u64,
}

impl Prover {
    /// From the key, and the nonces of both sides.
    pub fn new(key: &[u8; KEY_BYTES], hello: &[u8; 32], challenge: &[u8; 32], side: Side) -> Prover {
        let purpose = match side {
            Side::Client => "resurgo 2026-11-27 checkpoint server: from the client",
            Side::Server => "resurgo 2026-11-27 checkpoint server: from the server",
        };
        let bytes = [&key[..], hello, challenge].concat();
        Prover {
            key: blake3::derive_key(purpose, &bytes),
            next: 0,
        }
    }

    /// For the next message; it gets all its bytes in turn.
    pub fn begin(&mut self) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes());
        self.next += 1;
        Proof(hasher)
    }
}

/// A proof that is being made.
pub struct Proof(blake3::Hasher);

impl Proof {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn end(&self) -> [u8; PROOF] {
        self.0.finalize().into()
    }

    /// In constant time.
    pub fn is(&self, theirs: [u8; PROOF]) -> bool {
        self.0.finalize() == theirs
    }
}

/// An object in the answer to List: `NAME BYTES AGE`, the age in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub name: String,
    pub bytes: u64,
    pub age_ms: u64,
}

impl Line {
    pub fn encode(&self) -> String {
        format!("{} {} {}\n", self.name, self.bytes, self.age_ms)
    }

    pub fn decode(line: &str) -> Option<Line> {
        let mut words = line.split(' ');
        let line = Line {
            name: words.next()?.to_string(),
            bytes: words.next()?.parse().ok()?,
            age_ms: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(line)
    }
}

/// The number by which a server knows a user's key.
pub fn number_of(key: &[u8; KEY_BYTES]) -> u64 {
    let number = blake3::derive_key("resurgo 2026-11-27 checkpoint server: number of a key", key);
    u64::from_le_bytes([
        number[0], number[1], number[2], number[3], number[4], number[5], number[6], number[7],
    ])
}

/// A word of the handshake as a frame.
pub fn put_word(word: &Word) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin(&mut out, word.kind());
    word.put(&mut out);
    end(&mut out, start, 0);
    out
}

/// The word at the beginning of `bytes`, and its length; none while it is not whole.
///
/// # Errors
/// It is none.
pub fn take_word(bytes: &[u8]) -> Result<Option<(Word, usize)>, Error> {
    let Some((kind, mut reader)) = split(bytes, MOST_FRAME, &NAMES)? else {
        return Ok(None);
    };
    let used = 5 + reader.bytes.len();
    let word = Word::take(kind, &mut reader)?;
    reader.end()?;
    Ok(Some((word, used)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Hello;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            let head = Head {
                kind,
                text: 7,
                content: 1 << 28,
            };
            assert_eq!(Head::decode(&head.encode()), Ok(head));
        }
        for (number, reason) in REASONS.into_iter().enumerate() {
            assert_eq!(usize::from(reason.number()), number);
            assert_eq!(Reason::numbered(number as u8), reason);
        }
        assert!(Head::decode(&[10, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(Head::decode(&[0, 0, 255, 0, 0, 0, 0]).is_err());
        let line = Line {
            name: "a.b".to_string(),
            bytes: 7,
            age_ms: u64::MAX,
        };
        assert_eq!(Line::decode(line.encode().trim_end()), Some(line));
        for wrong in ["", "a", "a 1", "a b 1", "a 1 2 3", "a 1 -1"] {
            assert_eq!(Line::decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn words_are_framed() {
        let word = Word::Hello(Hello {
            rank: 0,
            size: 1,
            incarnation: 9,
            nonce: [1; 32],
        });
        let bytes = put_word(&word);
        assert_eq!(take_word(&bytes), Ok(Some((word, bytes.len()))));
        assert_eq!(take_word(&bytes[..bytes.len() - 1]), Ok(None));
        assert!(take_word(&[255; 40]).is_err());
    }

    #[test]
    fn a_proof_is_good_for_one_message_of_one_side() {
        let prover = |hello: u8, side| Prover::new(&[1; 32], &[hello; 32], &[3; 32], side);
        let mut proofs = Vec::new();
        for mut prover in [
            prover(2, Side::Client),
            prover(2, Side::Server),
            prover(4, Side::Client),
        ] {
            for _ in 0..2 {
                let mut proof = prover.begin();
                proof.update(b"same");
                proofs.push(proof.end());
            }
        }
        for (index, one) in proofs.iter().enumerate() {
            assert!(!proofs[..index].contains(one), "{index}");
        }
        let mut again = prover(2, Side::Client).begin();
        again.update(b"sa");
        again.update(b"me");
        assert!(again.is(proofs[0]) && !again.is(proofs[1]));
    }
}

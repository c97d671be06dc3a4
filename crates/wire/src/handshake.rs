//! How a rank and a server of the job prove to each other that both hold the job's key.
//!
//! ```text
//! rank                                     server
//! Hello  version rank size incarnation nonce →
//!                  ← Challenge  version epoch nonce proof
//! Proof  proof claim                       →
//!                                          ← the server's own welcome    (or Refused, at any time)
//! ```
//!
//! A proof is BLAKE3, keyed with the job's key. It covers a label for the kind of server and the side, the Hello, the
//! Challenge without its proof, and the claim. The claim says how many deliveries the rank knows, in the sense of that
//! server. Both sides treat received bytes as hostile until then, and as untrusted afterwards.

use resurgo_protocol::Rank;

use crate::frame::{Error, MAX_REASON, Reader, VERSION};

/// The first bytes of a Hello, which tell a stranger from a rank of another version.
const MAGIC: [u8; 4] = *b"RSEL";
/// Bytes of a key, a nonce and a proof.
pub const KEY_BYTES: usize = 32;
pub(crate) type Bytes32 = [u8; KEY_BYTES];

/// Names of the frames of the handshake. Their kinds are 1 and following on every connection.
pub(crate) const NAMES: [&str; 4] = ["Hello", "Challenge", "Proof", "Refused"];
/// The first kind of frame that is a connection's own.
pub(crate) const OWN: u8 = NAMES.len() as u8 + 1;

/// With this bit, the rank in a Hello to an event logger is event logger number `rank - LOGGER`.
pub const LOGGER: Rank = 1 << 31;

/// The kinds of servers. A proof is valid for one kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
pub enum Server {
    EventLogger,
    ChannelMemory,
    /// For agents of other nodes; node numbers stand for ranks.
    Dispatcher,
    /// The agent of another node; the visitor is a node, and says its number in place of a rank.
    Mesh,
    /// The same, for copies of images.
    Replica,
    /// For nodes that join a job with its token; there is one on each connection.
    Join,
    /// A rank, which a rank of another node calls to send to it.
    Rank,
    /// A checkpoint server; the number of a user's key is in place of the incarnation.
    Store,
}

impl Server {
    pub const ALL: [Self; 2] = [Self::EventLogger, Self::ChannelMemory];

    /// From 1.
    pub(crate) fn number(self) -> u8 {
        self as u8 + 1
    }

    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|server| server.number() == number)
    }

    /// Whether this rank may come in a job of `size` ranks.
    fn may_come(self, rank: Rank, size: u32) -> bool {
        rank < size || self == Self::EventLogger && rank >= LOGGER
    }
}

/// The side that makes a proof.
#[derive(Debug, Clone, Copy)]
enum Side {
    Visitor,
    Server,
}

/// What a rank says about itself before the server trusts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub rank: Rank,
    /// Ranks in the job.
    pub size: u32,
    pub incarnation: u64,
    /// Random, fresh for every connection.
    pub nonce: Bytes32,
}

/// One frame of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    Hello(Hello),
    Challenge {
        /// The server's epoch; 0 where it has none.
        epoch: u64,
        nonce: Bytes32,
        proof: Bytes32,
    },
    Proof {
        proof: Bytes32,
        claim: Option<u64>,
    },
    Refused {
        reason: String,
    },
}

impl Word {
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Challenge { .. } => 2,
            Self::Proof { .. } => 3,
            Self::Refused { .. } => 4,
        }
    }

    fn unexpected(&self) -> Error {
        let frame = NAMES[self.kind() as usize - 1];
        Error::Unexpected { frame }
    }

    /// Appends its fields.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => put_hello(out, hello),
            Self::Challenge { epoch, nonce, proof } => {
                out.extend_from_slice(&VERSION.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(nonce);
                out.extend_from_slice(proof);
            }
            Self::Proof { proof, claim } => {
                out.extend_from_slice(proof);
                put_claim(out, *claim);
            }
            Self::Refused { reason } => {
                let most = reason.len().min(MAX_REASON);
                let end = (0..=most).rev().find(|end| reason.is_char_boundary(*end));
                out.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
            }
        }
    }

    /// The fields of a frame whose kind is below [`OWN`].
    pub(crate) fn take(kind: u8, reader: &mut Reader) -> Result<Self, Error> {
        Ok(match kind {
            1 => Self::Hello(take_hello(reader)?),
            2 => {
                reader.version()?;
                Self::Challenge {
                    epoch: reader.u64()?,
                    nonce: reader.array()?,
                    proof: reader.array()?,
                }
            }
            3 => {
                let (proof, some, value) = (reader.array()?, reader.bool()?, reader.u64()?);
                let claim = some.then_some(value);
                Self::Proof { proof, claim }
            }
            _ => {
                let reason = reader.reason()?;
                Self::Refused { reason }
            }
        })
    }
}

fn put_hello(out: &mut Vec<u8>, hello: &Hello) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&hello.rank.to_le_bytes());
    out.extend_from_slice(&hello.size.to_le_bytes());
    out.extend_from_slice(&hello.incarnation.to_le_bytes());
    out.extend_from_slice(&hello.nonce);
}

fn take_hello(reader: &mut Reader) -> Result<Hello, Error> {
    if reader.array()? != MAGIC {
        return Err(Error::NotResurgo);
    }
    reader.version()?;
    Ok(Hello {
        rank: reader.u32()?,
        size: reader.u32()?,
        incarnation: reader.u64()?,
        nonce: reader.array()?,
    })
}

fn put_claim(out: &mut Vec<u8>, claim: Option<u64>) {
    out.push(u8::from(claim.is_some()));
    out.extend_from_slice(&claim.unwrap_or(0).to_le_bytes());
}

/// What both sides know when they make a proof.
struct Transcript<'a> {
    key: &'a Bytes32,
    server: Server,
    hello: &'a Hello,
    epoch: u64,
    nonce: &'a Bytes32,
}

impl Transcript<'_> {
    /// The proof; it compares in constant time, as `blake3::Hash` does.
    fn proof(&self, side: Side, claim: Option<u64>) -> blake3::Hash {
        let label: &[u8; 28] = match (self.server, side) {
            (Server::EventLogger, Side::Visitor) => b"resurgo event logger: rank  ",
            (Server::EventLogger, Side::Server) => b"resurgo event logger: logger",
            (Server::ChannelMemory, Side::Visitor) => b"resurgo channel memory: rank",
            (Server::ChannelMemory, Side::Server) => b"resurgo channel memory: here",
            (Server::Dispatcher, Side::Visitor) => b"resurgo dispatcher: agent   ",
            (Server::Dispatcher, Side::Server) => b"resurgo dispatcher: itself  ",
            (Server::Mesh, Side::Visitor) => b"resurgo mesh: calling node  ",
            (Server::Mesh, Side::Server) => b"resurgo mesh: called node   ",
            (Server::Replica, Side::Visitor) => b"resurgo replica: calling    ",
            (Server::Replica, Side::Server) => b"resurgo replica: called     ",
            (Server::Join, Side::Visitor) => b"resurgo join: a node        ",
            (Server::Join, Side::Server) => b"resurgo join: the job       ",
            (Server::Rank, Side::Visitor) => b"resurgo rank: calling       ",
            (Server::Rank, Side::Server) => b"resurgo rank: called        ",
            (Server::Store, Side::Visitor) => b"resurgo store: a client     ",
            (Server::Store, Side::Server) => b"resurgo store: the server   ",
        };
        let mut bytes = Vec::with_capacity(160);
        bytes.extend_from_slice(label);
        put_hello(&mut bytes, self.hello);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(self.nonce);
        put_claim(&mut bytes, claim);
        blake3::keyed_hash(self.key, &bytes)
    }
}

/// The rank's half.
pub struct Greeting {
    server: Server,
    key: Bytes32,
    hello: Hello,
}

impl Greeting {
    pub fn new(server: Server, key: Bytes32, hello: Hello) -> Self {
        Self { server, key, hello }
    }

    /// The first word.
    pub fn hello(&self) -> Word {
        Word::Hello(self.hello)
    }

    /// The server's epoch, and the answer to its challenge. `claim`: what to tell a server of that epoch.
    ///
    /// # Errors
    /// The server refuses, does not hold the key, or says something else.
    pub fn answer(&self, word: Word, claim: impl FnOnce(u64) -> Option<u64>) -> Result<(u64, Word), Error> {
        let (epoch, nonce, theirs) = match word {
            Word::Challenge { epoch, nonce, proof } => (epoch, nonce, proof),
            Word::Refused { reason } => return Err(Error::Refused { reason }),
            word => return Err(word.unexpected()),
        };
        let transcript = Transcript {
            key: &self.key,
            server: self.server,
            hello: &self.hello,
            epoch,
            nonce: &nonce,
        };
        if transcript.proof(Side::Server, None) != theirs {
            return Err(Error::NotAuthentic);
        }
        let claim = claim(epoch);
        let proof = *transcript.proof(Side::Visitor, claim).as_bytes();
        Ok((epoch, Word::Proof { proof, claim }))
    }
}

/// A rank that has proved that it belongs to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    pub rank: Rank,
    pub incarnation: u64,
    pub claim: Option<u64>,
}

/// The consequence of a word that the server heard.
#[derive(Debug)]
pub enum Heard {
    /// Not proved yet; this is the answer.
    Stranger(Word),
    /// Proved; the answer is the server's own welcome, or Refused.
    Proved(Visitor),
}

/// The server's half, for one connection.
pub struct Doorkeeper {
    server: Server,
    key: Bytes32,
    size: u32,
    epoch: u64,
    nonce: Bytes32,
    hello: Option<Hello>,
}

impl Doorkeeper {
    /// For a connection just accepted, of a job of `size` ranks. `nonce`: random, fresh for every connection.
    pub fn new(server: Server, size: u32, epoch: u64, key: Bytes32, nonce: Bytes32) -> Self {
        Self {
            server,
            key,
            size,
            epoch,
            nonce,
            hello: None,
        }
    }

    /// # Errors
    /// The stranger does not belong to the job, or says something unexpected.
    pub fn hear(&mut self, word: Word) -> Result<Heard, Error> {
        let transcript = |hello| Transcript {
            key: &self.key,
            server: self.server,
            hello,
            epoch: self.epoch,
            nonce: &self.nonce,
        };
        match (&self.hello, word) {
            (None, Word::Hello(hello)) => {
                if hello.size != self.size || !self.server.may_come(hello.rank, self.size) {
                    // Say nothing about the job to a visitor that has not proved to belong to it.
                    return Err(Error::Malformed { frame: "Hello" });
                }
                let proof = *transcript(&hello).proof(Side::Server, None).as_bytes();
                self.hello = Some(hello);
                Ok(Heard::Stranger(Word::Challenge {
                    epoch: self.epoch,
                    nonce: self.nonce,
                    proof,
                }))
            }
            (Some(hello), Word::Proof { proof: theirs, claim }) => {
                if transcript(hello).proof(Side::Visitor, claim) != theirs {
                    return Err(Error::NotAuthentic);
                }
                Ok(Heard::Proved(Visitor {
                    rank: hello.rank,
                    incarnation: hello.incarnation,
                    claim,
                }))
            }
            (_, word) => Err(word.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Bytes32 = [7; 32];
    const HELLO: Hello = Hello {
        rank: 0,
        size: 1,
        incarnation: 1,
        nonce: [1; 32],
    };

    fn door(server: Server, key: Bytes32) -> Doorkeeper {
        Doorkeeper::new(server, 1, 3, key, [2; 32])
    }

    fn challenge(door: &mut Doorkeeper, greeting: &Greeting) -> Word {
        match door.hear(greeting.hello()) {
            Ok(Heard::Stranger(word)) => word,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_prove_that_they_hold_the_key() {
        for server in Server::ALL {
            let greeting = Greeting::new(server, KEY, HELLO);
            let mut door = door(server, KEY);
            let word = challenge(&mut door, &greeting);
            let (epoch, proof) = greeting.answer(word, |epoch| Some(epoch + 6)).unwrap();
            assert_eq!(epoch, 3);
            let Ok(Heard::Proved(visitor)) = door.hear(proof) else {
                panic!("not admitted")
            };
            assert_eq!((visitor.rank, visitor.incarnation, visitor.claim), (0, 1, Some(9)));
        }
    }

    #[test]
    fn another_key_is_found_out_on_either_side() {
        let greeting = Greeting::new(Server::EventLogger, [8; 32], HELLO);
        let mut door = door(Server::EventLogger, KEY);
        let word = challenge(&mut door, &greeting);
        assert_eq!(greeting.answer(word, |_| None), Err(Error::NotAuthentic));
        // A rank that goes on anyway.
        let proof = Word::Proof {
            proof: [0; 32],
            claim: Some(1000),
        };
        assert!(matches!(door.hear(proof), Err(Error::NotAuthentic)));
    }

    #[test]
    fn a_claim_cannot_be_changed_on_its_way() {
        let greeting = Greeting::new(Server::ChannelMemory, KEY, HELLO);
        let mut door = door(Server::ChannelMemory, KEY);
        let word = challenge(&mut door, &greeting);
        let (_, word) = greeting.answer(word, |_| Some(5)).unwrap();
        let Word::Proof { proof, .. } = word else {
            panic!("{word:?}")
        };
        for claim in [None, Some(4)] {
            let word = Word::Proof { proof, claim };
            assert!(matches!(door.hear(word), Err(Error::NotAuthentic)));
        }
    }

    #[test]
    fn a_proof_is_good_for_one_side_one_server_and_one_connection() {
        let proof = |server, side, hello: &Hello, epoch, nonce: &Bytes32, claim| {
            let transcript = Transcript {
                key: &KEY,
                server,
                hello,
                epoch,
                nonce,
            };
            transcript.proof(side, claim)
        };
        let later = Hello {
            incarnation: 2,
            ..HELLO
        };
        let logger = Server::EventLogger;
        let all = [
            proof(logger, Side::Visitor, &HELLO, 1, &[2; 32], None),
            proof(logger, Side::Server, &HELLO, 1, &[2; 32], None),
            proof(Server::ChannelMemory, Side::Visitor, &HELLO, 1, &[2; 32], None),
            proof(Server::ChannelMemory, Side::Server, &HELLO, 1, &[2; 32], None),
            proof(logger, Side::Visitor, &HELLO, 2, &[2; 32], None),
            proof(logger, Side::Visitor, &HELLO, 1, &[3; 32], None),
            proof(logger, Side::Visitor, &later, 1, &[2; 32], None),
            proof(logger, Side::Visitor, &HELLO, 1, &[2; 32], Some(0)),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one), "{index}");
        }
    }

    #[test]
    fn strangers_and_words_that_are_not_due_are_refused() {
        let hello = |rank, size| Word::Hello(Hello { rank, size, ..HELLO });
        for (server, word) in [
            (Server::EventLogger, hello(1, 1)),
            (Server::EventLogger, hello(0, 2)),
            (Server::ChannelMemory, hello(LOGGER, 1)),
        ] {
            let heard = door(server, KEY).hear(word);
            assert!(matches!(heard, Err(Error::Malformed { frame: "Hello" })));
        }
        assert!(door(Server::EventLogger, KEY).hear(hello(LOGGER, 1)).is_ok());
        let proof = Word::Proof {
            proof: [0; 32],
            claim: None,
        };
        let heard = door(Server::EventLogger, KEY).hear(proof);
        assert!(matches!(heard, Err(Error::Unexpected { frame: "Proof" })));
        let greeting = Greeting::new(Server::EventLogger, KEY, HELLO);
        let reason = "no room".to_string();
        let refused = greeting.answer(Word::Refused { reason: reason.clone() }, |_| None);
        assert_eq!(refused, Err(Error::Refused { reason }));
    }
}

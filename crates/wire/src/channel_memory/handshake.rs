//! The [handshake](crate::handshake) in this connection's frames. A rank claims how many deliveries are in the image
//! that its life begins from; 0 where its messages are in another memory.

use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::Admission;

use super::{Error, Frame, Output};
use crate::handshake::{self, Bytes32, Heard, Hello, Server, Word};

/// The rank that connects.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub rank: Rank,
    /// Ranks in the job.
    pub size: u32,
    pub incarnation: u64,
    /// Deliveries in the image that the life begins from; 0 where its messages are in another memory.
    pub delivered: u64,
    /// The job's key.
    pub key: Bytes32,
    /// Random, fresh for every connection.
    pub nonce: Bytes32,
}

/// A rank that has proved that it belongs to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub rank: Rank,
    pub incarnation: u64,
    /// As in [`Identity`].
    pub delivered: u64,
}

/// The rank's half of the handshake.
pub struct Greeting {
    shared: handshake::Greeting,
    delivered: u64,
}

impl Greeting {
    /// Says Hello.
    pub fn begin(identity: Identity, output: &mut Output) -> Greeting {
        let hello = Hello {
            rank: identity.rank,
            size: identity.size,
            incarnation: identity.incarnation,
            nonce: identity.nonce,
        };
        let shared = handshake::Greeting::new(Server::ChannelMemory, identity.key, hello);
        output.push(&Frame::Handshake(shared.hello()));
        Greeting {
            shared,
            delivered: identity.delivered,
        }
    }

    /// Answers the channel memory; returns the welcome when it has come.
    pub fn hear(&self, frame: Frame, output: &mut Output) -> Result<Option<Admission>, Error> {
        match frame {
            Frame::Handshake(word) => {
                let (_, word) = self.shared.answer(word, |_| Some(self.delivered))?;
                output.push(&Frame::Handshake(word));
                Ok(None)
            }
            Frame::Welcome(admission) => Ok(Some(admission)),
            frame => Err(Error::Unexpected { frame: frame.name() }),
        }
    }
}

/// The channel memory's half of the handshake.
pub struct Doorkeeper(handshake::Doorkeeper);

impl Doorkeeper {
    /// For a connection just accepted, of a job of `size` ranks. `nonce`: random, fresh for every connection.
    pub fn new(size: u32, key: Bytes32, nonce: Bytes32) -> Self {
        Self(handshake::Doorkeeper::new(Server::ChannelMemory, size, 0, key, nonce))
    }

    /// Answers a stranger; returns the stranger's identity once that is proved.
    pub fn hear(&mut self, frame: Frame, output: &mut Output) -> Result<Option<Life>, Error> {
        let word = match frame {
            Frame::Handshake(word) => word,
            frame => return Err(Error::Unexpected { frame: frame.name() }),
        };
        match self.0.hear(word)? {
            Heard::Stranger(word) => {
                output.push(&Frame::Handshake(word));
                Ok(None)
            }
            Heard::Proved(visitor) => Ok(Some(Life {
                rank: visitor.rank,
                incarnation: visitor.incarnation,
                delivered: visitor.claim.ok_or(Error::Malformed { frame: "Proof" })?,
            })),
        }
    }
}

impl Frame<'_> {
    /// A refusal; the connection ends after it.
    pub fn refused(reason: String) -> Self {
        Frame::Handshake(Word::Refused { reason })
    }
}

//! Both ends prove that they hold the job's key.

use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::Admission;

use super::{Bytes32, Error, Frame, Output};
use crate::event_logger::{Hello, Side, proof};

/// Who connects.
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

/// Who has proved to belong to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub rank: Rank,
    pub incarnation: u64,
    /// As in [`Identity`].
    pub delivered: u64,
}

/// The rank's half of the handshake.
pub struct Greeting {
    key: Bytes32,
    delivered: u64,
    hello: Hello,
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
        output.push(&Frame::Hello(hello));
        Greeting {
            key: identity.key,
            delivered: identity.delivered,
            hello,
        }
    }

    /// Answers what the channel memory says; the welcome when that has come.
    pub fn hear(&self, frame: Frame, output: &mut Output) -> Result<Option<Admission>, Error> {
        match frame {
            Frame::Challenge { nonce, proof: theirs } => {
                if proof(&self.key, Side::ChannelMemory, &self.hello, 0, &nonce) != theirs {
                    return Err(Error::NotAuthentic);
                }
                let mine = proof(&self.key, Side::RankToMemory, &self.hello, self.delivered, &nonce);
                output.push(&Frame::Proof {
                    proof: *mine.as_bytes(),
                    delivered: self.delivered,
                });
                Ok(None)
            }
            Frame::Welcome(admission) => Ok(Some(admission)),
            Frame::Refused { reason } => Err(Error::Refused { reason }),
            frame => Err(Error::Unexpected { frame: frame.name() }),
        }
    }
}

/// The channel memory's half of the handshake.
pub struct Doorkeeper {
    key: Bytes32,
    size: u32,
    nonce: Bytes32,
    hello: Option<Hello>,
}

impl Doorkeeper {
    /// For a connection just accepted, of a job of `size` ranks. `nonce`: random, fresh for every connection.
    pub fn new(size: u32, key: Bytes32, nonce: Bytes32) -> Self {
        Self {
            key,
            size,
            nonce,
            hello: None,
        }
    }

    /// Answers what a stranger says; who it is when it has proved itself.
    pub fn hear(&mut self, frame: Frame, output: &mut Output) -> Result<Option<Life>, Error> {
        match (self.hello, frame) {
            (None, Frame::Hello(hello)) => {
                if hello.size != self.size || hello.rank >= self.size {
                    // Says nothing of the job to who has not proved to belong to it.
                    return Err(Error::Malformed { frame: "Hello" });
                }
                let proof = proof(&self.key, Side::ChannelMemory, &hello, 0, &self.nonce);
                output.push(&Frame::Challenge {
                    nonce: self.nonce,
                    proof: *proof.as_bytes(),
                });
                self.hello = Some(hello);
                Ok(None)
            }
            (
                Some(hello),
                Frame::Proof {
                    proof: theirs,
                    delivered,
                },
            ) => {
                if proof(&self.key, Side::RankToMemory, &hello, delivered, &self.nonce) != theirs {
                    return Err(Error::NotAuthentic);
                }
                Ok(Some(Life {
                    rank: hello.rank,
                    incarnation: hello.incarnation,
                    delivered,
                }))
            }
            (_, frame) => Err(Error::Unexpected { frame: frame.name() }),
        }
    }
}

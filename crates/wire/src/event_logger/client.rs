//! The rank's half of the connection.

use resurgo_protocol::{Rank, Recorded};

use super::{Buffers, Delivery, Error, Frame, MAX_RECORDS};
use crate::handshake::{Greeting, Hello, KEY_BYTES, Server, Word};

/// The rank that connects, and what it brings.
#[derive(Clone)]
pub struct Identity {
    pub rank: Rank,
    /// Ranks in the job.
    pub size: u32,
    pub incarnation: u64,
    /// The job's key.
    pub key: [u8; KEY_BYTES],
    /// Random, fresh for every connection.
    pub nonce: [u8; KEY_BYTES],
    /// Deliveries that any event logger has acknowledged or given to this life. A first life begins with `Some(0)`; one
    /// that recovers and has no record yet says `None`.
    pub acknowledged: Option<u64>,
    /// Epoch of the logger that this life was last connected to, 0: none. The same logger has lost nothing, and need
    /// not be told.
    pub epoch: u64,
}

/// What the event logger said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The connection is up. If `epoch` differs from the last connection's, the logger was lost: then
    /// `Pessimistic::event_logger_lost` is due. In any case the record from `first_unacknowledged` on is due.
    Admitted {
        epoch: u64,
        /// Deliveries of this rank that the logger holds.
        stored: u64,
    },
    /// Every delivery up to `rclock` is stable.
    Ack { rclock: u64 },
    /// A part of the answer to a query; the last has no `more`.
    Answer {
        first_rclock: u64,
        more: bool,
        records: Vec<Recorded>,
    },
    /// The rank's history was lost with an earlier event logger: it cannot recover.
    NotWhole { stored: u64 },
    /// So many deliveries of these ranks are stable.
    Clocks { clocks: Vec<(Rank, u64)> },
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Greeted,
    Proved { epoch: u64 },
    Admitted,
}

/// One connection of a rank to the event logger, without its socket.
pub struct Client {
    greeting: Greeting,
    /// As in [`Identity`].
    acknowledged: Option<u64>,
    epoch: u64,
    stage: Stage,
    buffers: Buffers,
    /// The rclock that begins the next part of an answer, while one is due.
    answer_from: Option<u64>,
}

impl Client {
    /// A new connection; its first bytes wait in [`Self::output`].
    pub fn new(identity: Identity) -> Self {
        let Identity {
            rank,
            size,
            incarnation,
            key,
            nonce,
            acknowledged,
            epoch,
        } = identity;
        let hello = Hello {
            rank,
            size,
            incarnation,
            nonce,
        };
        let greeting = Greeting::new(Server::EventLogger, key, hello);
        let mut buffers = Buffers::default();
        buffers.send(&Frame::Handshake(greeting.hello()));
        Self {
            greeting,
            acknowledged,
            epoch,
            stage: Stage::Greeted,
            buffers,
            answer_from: None,
        }
    }

    /// Bytes read from the socket.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.buffers.receive(bytes);
    }

    /// Bytes to write to the socket.
    pub fn output(&self) -> &[u8] {
        self.buffers.output()
    }

    /// Notes that the first `bytes` of [`Self::output`] are written.
    pub fn sent(&mut self, bytes: usize) {
        self.buffers.sent(bytes);
    }

    /// Whether deliveries may be logged and queries made.
    pub fn is_admitted(&self) -> bool {
        self.stage == Stage::Admitted
    }

    /// Sends deliveries `first_rclock`, `first_rclock + 1`…
    pub fn log(&mut self, first_rclock: u64, deliveries: &[Delivery]) {
        assert!(
            self.is_admitted(),
            "deliveries are logged on a connection that is not up"
        );
        let mut first_rclock = first_rclock;
        for deliveries in deliveries.chunks(MAX_RECORDS) {
            self.buffers.send(&Frame::Log {
                first_rclock,
                deliveries: deliveries.to_vec(),
            });
            first_rclock += deliveries.len() as u64;
        }
    }

    /// Says that images cover the first `rclock` deliveries: no life asks for them again.
    pub fn forget(&mut self, rclock: u64) {
        assert!(self.is_admitted(), "a word about images on a connection that is not up");
        self.buffers.send(&Frame::Forget { rclock });
    }

    /// Says which deliveries are stable.
    pub fn clocks(&mut self, clocks: &[(Rank, u64)]) {
        assert!(self.is_admitted(), "clocks are told on a connection that is not up");
        for clocks in clocks.chunks(MAX_RECORDS) {
            self.buffers.send(&Frame::Clocks {
                clocks: clocks.to_vec(),
            });
        }
    }

    /// Asks for this rank's deliveries after the first `above_rclock`.
    pub fn query(&mut self, above_rclock: u64) {
        assert!(self.is_admitted(), "a query on a connection that is not up");
        assert!(self.answer_from.is_none(), "a query while another waits for its answer");
        self.answer_from = Some(above_rclock + 1);
        self.buffers.send(&Frame::Query { above_rclock });
    }

    /// The next thing that the event logger said; None while more bytes are needed. After an error the connection is of
    /// no use.
    pub fn next_event(&mut self) -> Result<Option<ClientEvent>, Error> {
        while let Some(frame) = self.buffers.next_frame()? {
            match (&self.stage, frame) {
                (_, Frame::Handshake(Word::Refused { reason })) => return Err(Error::Refused { reason }),
                (Stage::Greeted, Frame::Handshake(word)) => {
                    let claim = |epoch| self.acknowledged.filter(|_| epoch != self.epoch);
                    let (epoch, word) = self.greeting.answer(word, claim)?;
                    self.buffers.send(&Frame::Handshake(word));
                    self.stage = Stage::Proved { epoch };
                }
                (&Stage::Proved { epoch }, Frame::Welcome { stored }) => {
                    self.stage = Stage::Admitted;
                    return Ok(Some(ClientEvent::Admitted { epoch, stored }));
                }
                (Stage::Admitted, Frame::Ack { rclock }) => return Ok(Some(ClientEvent::Ack { rclock })),
                (Stage::Admitted, Frame::Clocks { clocks }) => return Ok(Some(ClientEvent::Clocks { clocks })),
                (
                    Stage::Admitted,
                    Frame::Answer {
                        first_rclock,
                        more,
                        records,
                    },
                ) if self.answer_from == Some(first_rclock) => {
                    self.answer_from = more.then_some(first_rclock.saturating_add(records.len() as u64));
                    return Ok(Some(ClientEvent::Answer {
                        first_rclock,
                        more,
                        records,
                    }));
                }
                (Stage::Admitted, Frame::NotWhole { stored }) if self.answer_from.is_some() => {
                    self.answer_from = None;
                    return Ok(Some(ClientEvent::NotWhole { stored }));
                }
                (_, frame) => return Err(Error::Unexpected { frame: frame.name() }),
            }
        }
        Ok(None)
    }
}

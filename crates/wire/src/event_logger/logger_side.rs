//! The event logger's half of one connection.

use resurgo_protocol::{Rank, Recorded};

use super::{Buffers, Delivery, Error, Frame, MAX_RECORDS};
use crate::handshake::{Doorkeeper, Heard, KEY_BYTES, Server, Visitor, Word};

/// A request from a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The rank (from [`super::LOGGER`] on: another event logger) has proved itself. Answer with
    /// [`LoggerSide::welcome`] or [`LoggerSide::refuse`].
    Admit {
        rank: Rank,
        incarnation: u64,
        acknowledged: Option<u64>,
    },
    /// Store these deliveries. Answer with [`LoggerSide::ack`], once for several requests if they come together.
    Log {
        first_rclock: u64,
        deliveries: Vec<Delivery>,
    },
    /// So many deliveries of these ranks are stable: no answer.
    Clocks { clocks: Vec<(Rank, u64)> },
    /// No life asks for this many first deliveries again. Answer with [`LoggerSide::ack`].
    Forget { rclock: u64 },
    /// Give back the stored deliveries. Answer with [`LoggerSide::answer`] or [`LoggerSide::not_whole`].
    Query { above_rclock: u64 },
}

enum Stage {
    Stranger(Doorkeeper),
    Proved,
    Admitted,
}

/// One connection from a rank, without its socket.
pub struct LoggerSide {
    stage: Stage,
    buffers: Buffers,
}

impl LoggerSide {
    /// A connection just accepted, of a job of `size` ranks. `nonce`: random, fresh for every connection.
    pub fn new(size: u32, epoch: u64, key: [u8; KEY_BYTES], nonce: [u8; KEY_BYTES]) -> Self {
        let door = Doorkeeper::new(Server::EventLogger, size, epoch, key, nonce);
        Self {
            stage: Stage::Stranger(door),
            buffers: Buffers::default(),
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

    /// Admits the rank; `stored` of its deliveries are here.
    pub fn welcome(&mut self, stored: u64) {
        assert!(
            matches!(self.stage, Stage::Proved),
            "a welcome to a rank that has not proved itself"
        );
        self.stage = Stage::Admitted;
        self.buffers.send(&Frame::Welcome { stored });
    }

    /// Refuses the rank; the connection ends after this.
    pub fn refuse(&mut self, reason: String) {
        self.buffers.send(&Frame::Handshake(Word::Refused { reason }));
    }

    /// Says that every delivery up to `rclock` is stable.
    pub fn ack(&mut self, rclock: u64) {
        self.buffers.send(&Frame::Ack { rclock });
    }

    /// Says how many deliveries of these ranks are stable.
    pub fn clocks(&mut self, clocks: &[(Rank, u64)]) {
        for clocks in clocks.chunks(MAX_RECORDS) {
            self.buffers.send(&Frame::Clocks {
                clocks: clocks.to_vec(),
            });
        }
    }

    /// A part of an answer, at most [`super::MAX_RECORDS`] deliveries.
    pub fn answer(&mut self, first_rclock: u64, more: bool, records: Vec<Recorded>) {
        self.buffers.send(&Frame::Answer {
            first_rclock,
            more,
            records,
        });
    }

    /// Says that an earlier event logger took the rank's history with it.
    pub fn not_whole(&mut self, stored: u64) {
        self.buffers.send(&Frame::NotWhole { stored });
    }

    /// The rank's next request; None while more bytes are needed. After an error the connection is of no use.
    pub fn next_request(&mut self) -> Result<Option<Request>, Error> {
        while let Some(frame) = self.buffers.next_frame()? {
            match (&mut self.stage, frame) {
                (Stage::Stranger(door), Frame::Handshake(word)) => match door.hear(word)? {
                    Heard::Stranger(word) => self.buffers.send(&Frame::Handshake(word)),
                    Heard::Proved(visitor) => {
                        let Visitor {
                            rank,
                            incarnation,
                            claim: acknowledged,
                        } = visitor;
                        self.stage = Stage::Proved;
                        return Ok(Some(Request::Admit {
                            rank,
                            incarnation,
                            acknowledged,
                        }));
                    }
                },
                (
                    Stage::Admitted,
                    Frame::Log {
                        first_rclock,
                        deliveries,
                    },
                ) => {
                    return Ok(Some(Request::Log {
                        first_rclock,
                        deliveries,
                    }));
                }
                (Stage::Admitted, Frame::Clocks { clocks }) => return Ok(Some(Request::Clocks { clocks })),
                (Stage::Admitted, Frame::Forget { rclock }) => return Ok(Some(Request::Forget { rclock })),
                (Stage::Admitted, Frame::Query { above_rclock }) => return Ok(Some(Request::Query { above_rclock })),
                (_, frame) => return Err(Error::Unexpected { frame: frame.name() }),
            }
        }
        Ok(None)
    }
}

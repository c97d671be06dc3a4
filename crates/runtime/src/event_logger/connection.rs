//! One connection of the event logger; it never waits for the other side.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use resurgo_protocol::event_logger::Error as Refusal;
use resurgo_protocol::{EventLogger, Rank, Recorded};
use resurgo_wire::event_logger::{Client, Delivery, Identity, LOGGER, LoggerSide, MAX_RECORDS, Request};

use super::{Settings, quick};
use crate::reception::{Guest, Line};
use crate::stream::{Stream, Tls, is_passing};

/// Bytes read at once; with one incomplete frame, they are everything that a connection keeps.
const READ_BYTES: usize = 16 << 10;

/// A request from a rank or another logger.
pub enum Heard {
    Admit {
        rank: Rank,
        incarnation: u64,
        acknowledged: Option<u64>,
    },
    Log {
        rank: Rank,
        incarnation: u64,
        first_rclock: u64,
        deliveries: Vec<Delivery>,
    },
    Forget {
        rank: Rank,
        rclock: u64,
    },
    Query {
        rank: Rank,
        above_rclock: u64,
    },
    Clocks(Vec<(Rank, u64)>),
}

/// Stable clocks as the other side knows them.
#[derive(Default)]
struct Told(Vec<u64>);

impl Told {
    fn news(&mut self, clocks: &[u64]) -> Vec<(Rank, u64)> {
        self.0.resize(clocks.len(), 0);
        let news = (0..).zip(&self.0).zip(clocks);
        let news = news.filter(|((_, told), clock)| clock > told);
        let news = news.map(|((rank, _), clock)| (rank, *clock)).collect();
        for (told, clock) in self.0.iter_mut().zip(clocks) {
            *told = (*told).max(*clock);
        }
        news
    }
}

/// The rest of an answer.
struct Answer {
    first_rclock: u64,
    records: Vec<Recorded>,
}

/// A connection that was accepted.
pub struct Connection {
    line: Line,
    side: LoggerSide,
    acknowledged: u64,
    /// It has logged something since the last acknowledgement.
    owed: bool,
    told: Told,
    answer: Option<Answer>,
}

impl Guest for Connection {
    fn line(&self) -> &Line {
        &self.line
    }
}

impl Connection {
    pub fn new(line: Line, size: usize, epoch: u64, key: [u8; 32]) -> io::Result<Connection> {
        Ok(Connection {
            line,
            side: LoggerSide::new(size as u32, epoch, key, crate::sys::random()?),
            acknowledged: 0,
            owed: false,
            told: Told::default(),
            answer: None,
        })
    }

    pub fn poll(&self) -> PollFd<'_> {
        self.line.poll(!self.side.output().is_empty())
    }

    pub fn rank(&self) -> Option<Rank> {
        self.line.who().map(|(rank, _)| rank).filter(|rank| *rank < LOGGER)
    }

    /// Takes what has come and sends what waits.
    pub fn exchange(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        match self.line.read(&mut bytes)? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Do not listen to a refused rank, but read on, so that the reason arrives.
            Some(came) if !self.line.is_refused() => self.side.receive(&bytes[..came]),
            _ => {}
        }
        self.send()
    }

    /// Sends what waits. False: that is no longer possible.
    pub fn exchange_output(&mut self) -> bool {
        self.send().is_ok()
    }

    fn send(&mut self) -> io::Result<()> {
        loop {
            if self.side.output().is_empty() {
                if !self.answer_on() {
                    return Ok(());
                }
            } else {
                match self.line.write(self.side.output())? {
                    0 => return Ok(()),
                    sent => self.side.sent(sent),
                }
            }
        }
    }

    /// Makes the next part of an answer: a slow reader never has more than one waiting.
    fn answer_on(&mut self) -> bool {
        let Some(answer) = &mut self.answer else {
            return false;
        };
        let rest = answer.records.split_off(answer.records.len().min(MAX_RECORDS));
        let part = std::mem::replace(&mut answer.records, rest);
        let (first_rclock, more) = (answer.first_rclock, !answer.records.is_empty());
        answer.first_rclock += part.len() as u64;
        self.side.answer(first_rclock, more, part);
        if !more {
            self.answer = None;
        }
        true
    }

    pub fn next_heard(&mut self) -> Result<Option<Heard>, String> {
        if self.line.is_refused() {
            return Ok(None);
        }
        let request = self.side.next_request().map_err(|error| error.to_string())?;
        Ok(match (request, self.line.who()) {
            (None, _) => None,
            (
                Some(Request::Admit {
                    rank,
                    incarnation,
                    acknowledged,
                }),
                _,
            ) => {
                self.line.admit((rank, incarnation));
                Some(Heard::Admit {
                    rank,
                    incarnation,
                    acknowledged,
                })
            }
            (Some(Request::Clocks { clocks }), Some(_)) => Some(Heard::Clocks(clocks)),
            (
                Some(Request::Log {
                    first_rclock,
                    deliveries,
                }),
                Some((rank, incarnation)),
            ) if rank < LOGGER => {
                self.owed = true;
                Some(Heard::Log {
                    rank,
                    incarnation,
                    first_rclock,
                    deliveries,
                })
            }
            (Some(Request::Forget { rclock }), Some((rank, _))) if rank < LOGGER => {
                self.owed = true;
                Some(Heard::Forget { rank, rclock })
            }
            (Some(Request::Query { above_rclock }), Some((rank, _))) if rank < LOGGER => {
                Some(Heard::Query { rank, above_rclock })
            }
            (Some(_), _) => return Err("not admitted".to_string()),
        })
    }

    pub fn welcome(&mut self, stored: u64) {
        self.acknowledged = stored;
        self.side.welcome(stored);
    }

    /// `records`: the deliveries after the first `above_rclock`.
    pub fn answer(&mut self, above_rclock: u64, records: Result<&[Recorded], Refusal>) -> Result<(), String> {
        match records {
            Ok(records) if self.answer.is_none() => {
                self.answer = Some(Answer {
                    first_rclock: above_rclock + 1,
                    records: records.to_vec(),
                });
                Ok(())
            }
            Ok(_) => Err("a query while another is answered".to_string()),
            Err(Refusal::NotWhole { stored, .. }) => {
                self.side.not_whole(stored);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Refuses the rank; the connection ends after this.
    pub fn part(&mut self, reason: String) {
        self.side.refuse(reason);
        self.line.refuse();
        if self.send().is_ok() && self.side.output().is_empty() {
            self.line.hang_up();
        }
    }

    /// Tells the rank at the other end which of its deliveries are stable, and with that which of all ranks' are.
    pub fn acknowledge(&mut self, logger: &EventLogger, clocks: &[u64]) {
        let Some(rank) = self.rank() else { return };
        let stored = logger
            .stored(rank)
            .map_or(0, |(dropped, records)| dropped + records.len() as u64);
        if (self.owed || stored > self.acknowledged) && self.side.output().is_empty() {
            (self.acknowledged, self.owed) = (stored, false);
            let news = self.told.news(clocks);
            self.side.clocks(&news);
            self.side.ack(stored);
            // An error is noticed when the connection is read.
            let _ = self.send();
        }
    }

    /// Tells what is stable of all ranks, unless the other end is slow.
    pub fn tell(&mut self, clocks: &[u64]) {
        if self.rank().is_none() || !self.side.output().is_empty() {
            return;
        }
        let news = self.told.news(clocks);
        if !news.is_empty() {
            self.side.clocks(&news);
            let _ = self.send();
        }
    }
}

/// A connection to another event logger, to tell it what is stable here.
pub struct Outgoing {
    stream: Stream,
    client: Client,
    told: Told,
}

impl Outgoing {
    pub fn connect(address: SocketAddr, settings: &Settings, tls: Option<&Tls>, epoch: u64) -> io::Result<Outgoing> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(100))?;
        quick(&stream)?;
        let client = Client::new(Identity {
            rank: LOGGER + settings.number as Rank,
            size: settings.size as u32,
            incarnation: epoch,
            key: settings.key,
            nonce: crate::sys::random()?,
            acknowledged: None,
            epoch: 0,
        });
        Ok(Outgoing {
            stream: Stream::calling(stream, tls)?,
            client,
            told: Told::default(),
        })
    }

    pub fn poll(&self) -> PollFd<'_> {
        let mut flags = PollFlags::POLLIN;
        flags.set(
            PollFlags::POLLOUT,
            !self.client.output().is_empty() || self.stream.owes(),
        );
        PollFd::new(self.stream.as_fd(), flags)
    }

    pub fn exchange(&mut self) -> io::Result<()> {
        loop {
            while !self.client.output().is_empty() {
                match self.stream.write(self.client.output()) {
                    Ok(sent) => self.client.sent(sent),
                    Err(error) if is_passing(&error) => break,
                    Err(error) => return Err(error),
                }
            }
            match self.stream.flush() {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(came) => self.client.receive(&bytes[..came]),
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            while self.client.next_event().map_err(io::Error::other)?.is_some() {}
        }
    }

    /// Tells the other logger. False: not now.
    pub fn tell(&mut self, clocks: &[u64]) -> bool {
        if !self.client.is_admitted() || !self.client.output().is_empty() {
            return false;
        }
        let news = self.told.news(clocks);
        self.client.clocks(&news);
        // An error is noticed at the next exchange.
        let _ = self.exchange();
        true
    }
}

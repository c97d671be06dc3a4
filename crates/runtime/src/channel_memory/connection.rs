//! One connection of a channel memory, without waiting for the other side.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::Admission;
use resurgo_wire::channel_memory::{Doorkeeper, Envelope, Frame, Input, Life, MAX_PIECE, Output, Unset};

use super::store::{Differs, Next, Store, Trouble};

/// Time for a peer to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest time that a refused peer is listened to.
const PARTING: Duration = Duration::from_secs(1);
/// Bytes read at once; with one frame that is not whole, and one message, all that is kept of what has come.
const READ_BYTES: usize = 64 << 10;
/// Most bytes that wait for a rank that does not read; the others stay in the store.
const AHEAD: usize = 512 << 10;

/// What has come.
pub enum Heard {
    /// This life has proved itself.
    Admit(Life),
    /// Everything that was here has been dealt with.
    Nothing,
}

/// A message of which not all has come.
struct Coming {
    destination: Rank,
    ssn: u64,
    envelope: Envelope,
    unset: Unset,
    bytes: Vec<u8>,
}

/// A message of which not all has been served.
struct Going {
    next: Next,
    offset: u64,
}

pub struct Connection {
    stream: TcpStream,
    door: Doorkeeper,
    input: Input,
    output: Output,
    /// Rank and incarnation, once admitted.
    who: Option<(Rank, u64)>,
    /// Until when it must have proved itself, or have read why it was refused.
    deadline: Option<Instant>,
    refused: bool,
    coming: Option<Coming>,
    going: Option<Going>,
    /// It has reported deliveries since it was last told how many are here.
    owed: bool,
}

impl Connection {
    pub fn new(stream: TcpStream, size: usize, key: [u8; 32]) -> io::Result<Connection> {
        crate::event_logger::quick(&stream)?;
        Ok(Connection {
            stream,
            door: Doorkeeper::new(size as u32, key, crate::event_logger::nonce()?),
            input: Input::default(),
            output: Output::default(),
            who: None,
            deadline: Some(Instant::now() + HANDSHAKE),
            refused: false,
            coming: None,
            going: None,
            owed: false,
        })
    }

    pub fn poll(&self) -> PollFd<'_> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, !self.output.is_empty());
        PollFd::new(self.stream.as_fd(), flags)
    }

    pub fn rank(&self) -> Option<Rank> {
        self.who.map(|(rank, _)| rank)
    }

    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now > deadline)
    }

    /// Takes some of what has come. `Ok(0)`: the other side has closed, `None`: there is nothing more now.
    pub fn receive(&mut self) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(self.input.room(READ_BYTES)) {
                Ok(came) => {
                    // Whoever was refused is not listened to: reading on lets the reason arrive.
                    if !self.refused {
                        self.input.came(came);
                    }
                    return Ok(Some(came));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Deals with what has come, up to a rank that wants to be admitted.
    pub fn hear(&mut self, store: &mut Store) -> Result<Heard, Trouble> {
        let malformed = |error: resurgo_wire::channel_memory::Error| Trouble::Refused(error.to_string());
        if self.refused {
            return Ok(Heard::Nothing);
        }
        while let Some(frame) = self.input.frame().map_err(malformed)? {
            let Some(who) = self.who else {
                match self.door.hear(frame, &mut self.output).map_err(malformed)? {
                    Some(life) => return Ok(Heard::Admit(life)),
                    None => continue,
                }
            };
            match frame {
                Frame::Message {
                    destination,
                    ssn,
                    envelope,
                    unset,
                    bytes,
                } if self.coming.is_none() => {
                    let mut whole = Vec::with_capacity(envelope.total.min(1 << 30) as usize);
                    whole.extend_from_slice(bytes);
                    self.coming = Some(Coming {
                        destination,
                        ssn,
                        envelope,
                        unset,
                        bytes: whole,
                    });
                }
                Frame::Piece { bytes } if let Some(coming) = &mut self.coming => coming.bytes.extend_from_slice(bytes),
                Frame::Report { rclock, polls } => {
                    store.report(who.0, who.1, rclock, polls)?;
                    self.owed = true;
                }
                Frame::Forget { rclock } => store.forget(who.0, who.1, rclock)?,
                Frame::Sync => self.output.push(&Frame::Synced),
                frame => return Err(Trouble::Refused(format!("a {} frame where none is due", frame.name()))),
            }
            if let Some(coming) = self
                .coming
                .take_if(|coming| coming.bytes.len() as u64 >= coming.envelope.total)
            {
                if coming.bytes.len() as u64 > coming.envelope.total {
                    return Err(Trouble::Refused("a message is longer than it says".to_string()));
                }
                put(store, &mut self.output, who, coming)?;
            }
        }
        Ok(Heard::Nothing)
    }

    pub fn welcome(&mut self, rank: Rank, incarnation: u64, admission: Admission) {
        self.who = Some((rank, incarnation));
        // A rank may compute for days between two messages.
        self.deadline = None;
        self.output.push(&Frame::Welcome(admission));
    }

    /// The connection ends after this.
    pub fn part(&mut self, reason: String) {
        self.output.push(&Frame::Refused { reason });
        self.refused = true;
        (self.who, self.coming, self.going) = (None, None, None);
        self.deadline = Some(Instant::now() + PARTING);
        if self.send().is_ok() && self.output.is_empty() {
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Sends as much as the other side takes of what is to go, and of what is to be served. `acknowledges`: reports are
    /// acknowledged.
    pub fn serve(&mut self, store: &mut Store, acknowledges: bool) -> Result<io::Result<()>, Trouble> {
        if let Some((rank, _)) = self.who
            && std::mem::take(&mut self.owed)
            && acknowledges
        {
            let rclock = store.reported(rank);
            self.output.push(&Frame::Reported { rclock });
        }
        loop {
            while let Some((rank, _)) = self.who
                && self.output.bytes().len() < AHEAD
                && self.serve_piece(store, rank)?
            {}
            if self.output.is_empty() {
                return Ok(Ok(()));
            }
            if let Err(error) = self.send() {
                return Ok(Err(error));
            }
            if !self.output.is_empty() {
                return Ok(Ok(()));
            }
        }
    }

    /// Something is to be served, and the other side takes it.
    pub fn is_due(&self, store: &Store) -> bool {
        let Some((rank, _)) = self.who else { return false };
        self.output.is_empty() && (self.owed || self.going.is_some() || store.has_more(rank))
    }

    fn serve_piece(&mut self, store: &mut Store, rank: Rank) -> Result<bool, Trouble> {
        let mut going = match self.going.take() {
            Some(going) => going,
            None => match store.next(rank) {
                Some(next) => Going { next, offset: 0 },
                None => return Ok(false),
            },
        };
        let length = (going.next.envelope.total - going.offset).min(MAX_PIECE as u64) as usize;
        let head = if going.offset == 0 {
            Frame::Served {
                source: going.next.source,
                polls: going.next.polls,
                envelope: going.next.envelope,
                bytes: &[],
            }
        } else {
            Frame::Piece { bytes: &[] }
        };
        head.encode_before(self.output.end(), length);
        store.read(rank, going.next.rclock, going.offset, length, self.output.end())?;
        going.offset += length as u64;
        if going.offset < going.next.envelope.total {
            self.going = Some(going);
        }
        Ok(true)
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(self.output.bytes()) {
                Ok(sent) => self.output.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn put(store: &mut Store, output: &mut Output, who: (Rank, u64), coming: Coming) -> Result<(), Trouble> {
    let Coming {
        destination,
        ssn,
        envelope,
        unset,
        bytes,
    } = coming;
    if let Some(Differs {
        difference,
        before,
        now,
    }) = store.put(who, destination, ssn, envelope, &unset, bytes)?
    {
        output.push(&Frame::Differs {
            destination,
            ssn,
            difference,
            before,
            now,
        });
    }
    Ok(())
}

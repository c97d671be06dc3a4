//! One connection of a channel memory; it never waits for the other side.

use std::io;

use nix::poll::PollFd;
use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::Admission;
use resurgo_wire::channel_memory::{Doorkeeper, Envelope, Frame, Input, Life, MAX_PIECE, Output, Unset};

use crate::reception::{Guest, Line};

use super::store::{Differs, Next, Store, Trouble};

/// Bytes read at once. With one incomplete frame and one message, they are everything that is kept of what has come.
const READ_BYTES: usize = 64 << 10;
/// The most bytes that wait for a rank that does not read; the others stay in the store.
const AHEAD: usize = 512 << 10;

/// What has come.
pub enum Heard {
    /// This life has proved itself.
    Admit(Life),
    /// Everything that was here has been handled.
    Nothing,
}

/// A message that has not come whole.
struct Coming {
    destination: Rank,
    ssn: u64,
    envelope: Envelope,
    unset: Unset,
    bytes: Vec<u8>,
}

/// A message that has not been served whole.
struct Going {
    next: Next,
    offset: u64,
}

pub struct Connection {
    line: Line,
    door: Doorkeeper,
    input: Input,
    output: Output,
    coming: Option<Coming>,
    going: Option<Going>,
    /// It has reported deliveries since it was last told how many are here.
    owed: bool,
}

impl Guest for Connection {
    fn line(&self) -> &Line {
        &self.line
    }
}

impl Connection {
    pub fn new(line: Line, size: usize, key: [u8; 32]) -> io::Result<Connection> {
        Ok(Connection {
            line,
            door: Doorkeeper::new(size as u32, key, crate::sys::random()?),
            input: Input::default(),
            output: Output::default(),
            coming: None,
            going: None,
            owed: false,
        })
    }

    pub fn poll(&self) -> PollFd<'_> {
        self.line.poll(!self.output.is_empty())
    }

    /// Takes some of what has come. `Ok(0)`: the other side has closed, `None`: there is nothing more now.
    pub fn receive(&mut self) -> io::Result<Option<usize>> {
        let came = self.line.read(self.input.room(READ_BYTES))?;
        // Do not listen to a refused rank, but read on, so that the reason arrives.
        if let Some(came) = came
            && !self.line.is_refused()
        {
            self.input.came(came);
        }
        Ok(came)
    }

    /// Handles what has come, up to a rank that wants to be admitted.
    pub fn hear(&mut self, store: &mut Store) -> Result<Heard, Trouble> {
        let malformed = |error: resurgo_wire::channel_memory::Error| Trouble::Refused(error.to_string());
        if self.line.is_refused() {
            return Ok(Heard::Nothing);
        }
        while let Some(frame) = self.input.frame().map_err(malformed)? {
            let Some(who) = self.line.who() else {
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
        self.line.admit((rank, incarnation));
        self.output.push(&Frame::Welcome(admission));
    }

    /// Refuses the rank; the connection ends after this.
    pub fn part(&mut self, reason: String) {
        self.output.push(&Frame::refused(reason));
        self.line.refuse();
        (self.coming, self.going) = (None, None);
        if self.send().is_ok() && self.output.is_empty() {
            self.line.hang_up();
        }
    }

    /// Sends as much as the other side takes: first waiting words, then messages to serve. `acknowledges`: the channel
    /// memory acknowledges reports.
    pub fn serve(&mut self, store: &mut Store, acknowledges: bool) -> Result<io::Result<()>, Trouble> {
        if let Some((rank, _)) = self.line.who()
            && std::mem::take(&mut self.owed)
            && acknowledges
        {
            let rclock = store.reported(rank);
            self.output.push(&Frame::Reported { rclock });
        }
        loop {
            while let Some((rank, _)) = self.line.who()
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

    /// Whether something is to be served, and the other side takes it.
    pub fn is_due(&self, store: &Store) -> bool {
        let Some((rank, _)) = self.line.who() else { return false };
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
            match self.line.write(self.output.bytes())? {
                0 => return Ok(()),
                sent => self.output.sent(sent),
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

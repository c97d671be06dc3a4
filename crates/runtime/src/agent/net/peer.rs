//! Another node: the connection to it, what it has yet to get, and the copy of what its ranks have written.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use resurgo_wire::frame::Error;
use resurgo_wire::handshake::{Greeting, Hello, KEY_BYTES, Server};
use resurgo_wire::mesh::Frame;

use super::link::{Link, Moved};
use super::mirror::{Foreign, Mirror};
use super::outgoing::Outgoing;
use super::tail::{Damaged, Tail};
use crate::stream::Tls;

/// Bytes that are made ready to be sent at a time.
const BATCH: usize = 256 << 10;
/// Batches to one node before others have their turn.
const TURN: usize = 4;
/// Time between two calls, at first and in the end.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Who this mover is, to another.
pub struct Identity {
    pub node: u32,
    pub nodes: u32,
    pub key: [u8; KEY_BYTES],
    pub tls: Option<Tls>,
}

/// How far the connection has come.
enum Stage {
    None,
    /// This node has called, and says who it is.
    Calling(Link, Greeting),
    /// Both know each other.
    Open(Link),
}

pub struct Peer {
    pub node: u32,
    addresses: Vec<SocketAddr>,
    next_address: usize,
    calls: bool,
    stage: Stage,
    /// When it is called again, if it is.
    call_at: Option<Instant>,
    pause: Duration,
    pub outgoing: Outgoing,
    mirror: Mirror,
    /// Flushes that it has answered.
    pub flushed: Vec<u64>,
    /// There is more than the socket takes.
    pub is_full: bool,
}

/// Why the job cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error("node {node} is not one of this job, or of another version of resurgo: {error}")]
    Stranger { node: u32, error: Error },
    #[error(transparent)]
    Foreign(#[from] Foreign),
}

impl Peer {
    /// `calls`: this node calls, and not the other.
    pub fn new(node: u32, addresses: Vec<SocketAddr>, calls: bool, outgoing: Outgoing, mirror: Mirror) -> Peer {
        Peer {
            node,
            addresses,
            next_address: 0,
            calls,
            stage: Stage::None,
            call_at: calls.then(Instant::now),
            pause: FIRST_PAUSE,
            outgoing,
            mirror,
            flushed: Vec::new(),
            is_full: false,
        }
    }

    pub fn call_at(&self) -> Option<Instant> {
        self.call_at
    }

    pub fn link(&self) -> Option<&Link> {
        match &self.stage {
            Stage::None => None,
            Stage::Calling(link, _) | Stage::Open(link) => Some(link),
        }
    }

    /// Whether what comes is wanted now: not before the epoch has begun here that it belongs to.
    pub fn listens(&self) -> bool {
        !self.mirror.is_behind()
    }

    /// Whether it must be told when the socket takes more.
    pub fn wants_room(&self) -> bool {
        self.is_full || matches!(self.stage, Stage::Calling(..))
    }

    /// Calls the other node.
    pub fn call(&mut self, own: &Identity, nonce: [u8; KEY_BYTES]) {
        self.call_at = None;
        let address = self.addresses.get(self.next_address % self.addresses.len().max(1));
        self.next_address += 1;
        let link = address.and_then(|address| Link::call(*address, own.tls.as_ref()).ok());
        let Some(mut link) = link else {
            return self.hang_up();
        };
        let hello = Hello {
            rank: own.node,
            size: own.nodes,
            incarnation: 0,
            nonce,
        };
        let greeting = Greeting::new(Server::Mesh, own.key, hello);
        Frame::Handshake(greeting.hello()).encode(link.output.end());
        self.stage = Stage::Calling(link, greeting);
        self.is_full = true;
    }

    /// The other node has called, and proved who it is.
    ///
    /// # Errors
    /// What it has said at once cannot be understood.
    pub fn called(&mut self, link: Link) -> Result<(), Trouble> {
        self.outgoing.close();
        self.begin(link);
        self.hear_all()
    }

    fn begin(&mut self, mut link: Link) {
        self.mirror.begin_connection();
        self.mirror.say_where(link.output.end());
        self.stage = Stage::Open(link);
        self.is_full = false;
        self.pause = FIRST_PAUSE;
    }

    /// The connection is gone. Who has called calls again.
    pub fn hang_up(&mut self) {
        self.stage = Stage::None;
        self.is_full = false;
        self.outgoing.close();
        if self.calls {
            self.call_at = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// All logs have been emptied.
    ///
    /// # Errors
    /// What had waited for that cannot be understood.
    pub fn begin_epoch(&mut self, number: u64) -> Result<(), Trouble> {
        self.outgoing.begin_epoch(number);
        self.mirror.begin_epoch(number);
        self.hear_all()
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// The job cannot go on.
    pub fn receive(&mut self, what: EpollFlags) -> Result<(), Trouble> {
        let is_over = what.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        let moved = match &mut self.stage {
            Stage::None => return Ok(()),
            // What has come and has not been taken is sent again.
            Stage::Open(_) if self.mirror.is_behind() => match is_over {
                true => Moved::Gone,
                false => Moved::Nothing,
            },
            Stage::Calling(link, _) if !link.is_connected() => Moved::Gone,
            Stage::Calling(link, _) | Stage::Open(link) => link.read(),
        };
        match moved {
            Moved::Some => self.hear_all(),
            Moved::Nothing => Ok(()),
            Moved::Gone => {
                self.hang_up();
                Ok(())
            }
        }
    }

    /// Also what has come and the socket does not tell of any more.
    fn hear_all(&mut self) -> Result<(), Trouble> {
        self.hear()?;
        while let Stage::Calling(link, _) | Stage::Open(link) = &mut self.stage
            && link.holds()
            && !self.mirror.is_behind()
        {
            if link.read() == Moved::Gone {
                self.hang_up();
                return Ok(());
            }
            self.hear()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<(), Trouble> {
        if let Stage::Calling(link, greeting) = &mut self.stage {
            let answer = match link.frame() {
                Ok(None) => return Ok(()),
                Ok(Some((Frame::Handshake(word), used))) => {
                    greeting.answer(word, |_| None).map(|(_, word)| (word, used))
                }
                Ok(Some((frame, _))) => Err(Error::Unexpected { frame: frame.name() }),
                Err(error) => Err(error),
            };
            let (word, used) = answer.map_err(|error| Trouble::Stranger { node: self.node, error })?;
            link.take(used);
            Frame::Handshake(word).encode(link.output.end());
            if let Stage::Calling(link, _) = std::mem::replace(&mut self.stage, Stage::None) {
                self.begin(link);
            }
        }
        let Stage::Open(link) = &mut self.stage else {
            return Ok(());
        };
        let (mirror, outgoing) = (&mut self.mirror, &mut self.outgoing);
        while !mirror.is_behind() {
            let node = self.node;
            let frame = link.frame().map_err(|error| Trouble::Stranger { node, error })?;
            let Some((frame, used)) = frame else { break };
            let mut answer = None;
            match frame {
                Frame::Epoch { number } => mirror.hear_epoch(number),
                Frame::Position {
                    source,
                    destination,
                    reference,
                    place,
                } => {
                    if mirror.is_current() {
                        let place = place as usize;
                        outgoing.position(source, destination, Tail { reference, place });
                    }
                }
                Frame::Begin => outgoing.open(),
                Frame::Flush { number } => answer = Some(Frame::Flushed { number }),
                Frame::Flushed { number } => {
                    if outgoing.flushed(number) {
                        self.flushed.push(number);
                    }
                }
                frame => mirror.take(&frame)?,
            }
            link.take(used);
            if let Some(answer) = answer {
                answer.encode(link.output.end());
            }
        }
        Ok(())
    }

    /// Sends what is new. True: there is more, and the socket takes it.
    ///
    /// # Errors
    /// The job cannot go on.
    pub fn pump(&mut self) -> Result<bool, Trouble> {
        for _ in 0..TURN {
            let link = match &mut self.stage {
                Stage::None => return Ok(false),
                Stage::Calling(link, _) => link,
                Stage::Open(link) => {
                    if link.output.bytes().len() < BATCH {
                        self.outgoing.fill(link.output.end(), BATCH)?;
                    }
                    link
                }
            };
            if link.is_empty() {
                self.is_full = false;
                return Ok(false);
            }
            match link.write() {
                Moved::Some => self.is_full = false,
                Moved::Nothing => {
                    self.is_full = true;
                    return Ok(false);
                }
                Moved::Gone => {
                    self.hang_up();
                    return Ok(false);
                }
            }
        }
        Ok(self.outgoing.has_news())
    }
}

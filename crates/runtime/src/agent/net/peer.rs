//! The connection to another node: calls, input and output of a [`Conversation`].

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use resurgo_wire::control::MOST_NODES;
use resurgo_wire::frame::Error;
use resurgo_wire::handshake::{Greeting, Hello, KEY_BYTES, Server};
use resurgo_wire::mesh::Frame;

use super::link::{Link, Moved};
use super::mesh::{Conversation, Trouble};
use crate::stream::Tls;

/// Bytes prepared for sending at a time.
const BATCH: usize = 256 << 10;
/// Batches to one node before the next node's turn.
const TURN: usize = 4;
/// Time between two calls, at first and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a call waits for an answer: another program may have the port of a node that is lost, and say nothing. And
/// after a cut, TCP may take minutes until it calls again.
const ANSWER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How this mover identifies itself.
pub struct Identity {
    pub node: u32,
    pub key: [u8; KEY_BYTES],
    pub tls: Option<Tls>,
}

/// The stage of the connection.
enum Stage {
    None,
    /// This node has called, and identifies itself.
    Calling(Link, Greeting),
    /// Both know each other.
    Open(Link),
}

pub struct Peer {
    addresses: Vec<SocketAddr>,
    next_address: usize,
    calls: bool,
    stage: Stage,
    /// When to call, or to call again without an answer, if at all.
    call_at: Option<Instant>,
    pause: Duration,
    /// There is more output than the socket takes.
    pub is_full: bool,
}

impl Peer {
    /// `calls`: this node calls, and not the other.
    pub fn new(addresses: Vec<SocketAddr>, calls: bool) -> Peer {
        Peer {
            addresses,
            next_address: 0,
            calls,
            stage: Stage::None,
            call_at: calls.then(Instant::now),
            pause: FIRST_PAUSE,
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

    /// The output of the connection, if it stands.
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.stage {
            Stage::Open(link) => Some(link.output.end()),
            _ => None,
        }
    }

    /// Whether to wait for room in the socket.
    pub fn wants_room(&self) -> bool {
        self.is_full
    }

    /// Calls the other node.
    pub fn call(&mut self, with: &mut Conversation, own: &Identity, nonce: [u8; KEY_BYTES]) {
        self.call_at = Some(Instant::now() + ANSWER);
        let address = self.addresses.get(self.next_address % self.addresses.len().max(1));
        self.next_address += 1;
        let link = address.and_then(|address| Link::call(*address, own.tls.as_ref()).ok());
        let Some(mut link) = link else {
            return self.hang_up(with);
        };
        let hello = Hello {
            rank: own.node,
            size: MOST_NODES,
            incarnation: 0,
            nonce,
        };
        let greeting = Greeting::new(Server::Mesh, own.key, hello);
        Frame::Handshake(greeting.hello()).encode(link.output.end());
        self.stage = Stage::Calling(link, greeting);
        self.is_full = true;
    }

    /// The other node has called, and proved its identity.
    ///
    /// # Errors
    /// Its first input is invalid, or a rank has written a damaged log.
    pub fn called(&mut self, with: &mut Conversation, link: Link) -> Result<(), Trouble> {
        self.begin(with, link)?;
        self.hear_all(with)
    }

    fn begin(&mut self, with: &mut Conversation, mut link: Link) -> Result<(), Trouble> {
        self.call_at = None;
        if with.begin(link.address(), link.output.end())? {
            self.stage = Stage::Open(link);
            self.is_full = false;
            self.pause = FIRST_PAUSE;
        } else {
            self.hang_up(with);
        }
        Ok(())
    }

    /// Does the work that is due.
    ///
    /// # Errors
    /// A rank has written a damaged log.
    pub fn tend(&mut self, with: &mut Conversation, now: Instant) -> Result<(), Trouble> {
        with.tend(now, self.output())
    }

    /// The connection is broken. The calling side calls again.
    pub fn hang_up(&mut self, with: &mut Conversation) {
        self.stage = Stage::None;
        self.is_full = false;
        with.end();
        if self.calls {
            self.call_at = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The node is lost, and its ranks do not begin again: nobody calls.
    pub fn lose(&mut self) {
        self.calls = false;
        self.call_at = None;
        self.stage = Stage::None;
        self.is_full = false;
    }

    /// There are new ranks.
    ///
    /// # Errors
    /// Input that had waited for this is invalid.
    pub fn grow(&mut self, with: &mut Conversation) -> Result<(), Trouble> {
        if let Some(out) = self.output() {
            with.say_ranks(out);
        }
        self.hear_all(with)
    }

    /// Reads input.
    ///
    /// # Errors
    /// The job cannot go on.
    pub fn receive(&mut self, with: &mut Conversation, what: EpollFlags) -> Result<(), Trouble> {
        let is_over = what.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        let moved = match &mut self.stage {
            Stage::None => return Ok(()),
            // The other node sends unused input again.
            Stage::Open(_) if !with.listens() => match is_over {
                true => Moved::Gone,
                false => Moved::Nothing,
            },
            Stage::Calling(link, _) if !link.is_connected() => Moved::Gone,
            Stage::Calling(link, _) | Stage::Open(link) => link.read(),
        };
        match moved {
            Moved::Some => self.hear_all(with),
            Moved::Nothing => Ok(()),
            Moved::Gone => {
                self.hang_up(with);
                Ok(())
            }
        }
    }

    /// Takes all input, also what the socket no longer shows.
    ///
    /// # Errors
    /// It is invalid.
    pub fn hear_all(&mut self, with: &mut Conversation) -> Result<(), Trouble> {
        self.hear(with)?;
        while let Stage::Calling(link, _) | Stage::Open(link) = &mut self.stage
            && link.holds()
            && with.listens()
        {
            if link.read() == Moved::Gone {
                self.hang_up(with);
                return Ok(());
            }
            self.hear(with)?;
        }
        Ok(())
    }

    fn hear(&mut self, with: &mut Conversation) -> Result<(), Trouble> {
        self.hear_greeting(with)?;
        self.hear_frames(with)
    }

    /// Answers the other node's proof, if this one has called.
    fn hear_greeting(&mut self, with: &mut Conversation) -> Result<(), Trouble> {
        if let Stage::Calling(link, greeting) = &mut self.stage {
            let answer = match link.frame() {
                Ok(None) => return Ok(()),
                Ok(Some((Frame::Handshake(word), used))) => {
                    greeting.answer(word, |_| None).map(|(_, word)| (word, used))
                }
                Ok(Some((frame, _))) => Err(Error::Unexpected { frame: frame.name() }),
                Err(error) => Err(error),
            };
            let Ok((word, used)) = answer else {
                // Another program may have the port of a node that is lost. Who is lost, the dispatcher decides.
                self.hang_up(with);
                return Ok(());
            };
            link.take(used);
            Frame::Handshake(word).encode(link.output.end());
            if let Stage::Calling(link, _) = std::mem::replace(&mut self.stage, Stage::None) {
                self.begin(with, link)?;
            }
        }
        Ok(())
    }

    fn hear_frames(&mut self, with: &mut Conversation) -> Result<(), Trouble> {
        let Stage::Open(link) = &mut self.stage else {
            return Ok(());
        };
        let mut answers = Vec::new();
        while with.listens() {
            let node = with.node;
            let frame = link.frame().map_err(|error| Trouble::Garbled { node, error })?;
            let Some((frame, used)) = frame else { break };
            with.take(&frame, &mut answers)?;
            link.take(used);
        }
        link.output.end().append(&mut answers);
        Ok(())
    }

    /// Sends news. True: there is more, and the socket takes it.
    ///
    /// # Errors
    /// The job cannot go on.
    pub fn pump(&mut self, with: &mut Conversation) -> Result<bool, Trouble> {
        for _ in 0..TURN {
            let link = match &mut self.stage {
                Stage::None => return Ok(false),
                Stage::Calling(link, _) => link,
                Stage::Open(link) => {
                    if link.output.bytes().len() < BATCH {
                        with.fill(link.output.end(), BATCH)?;
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
                    self.hang_up(with);
                    return Ok(false);
                }
            }
        }
        Ok(with.has_news())
    }
}

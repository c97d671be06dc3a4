//! Another node: the connection to it, the data that it has yet to get, and the copy of its ranks' writes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use resurgo_protocol::causal::Event;
use resurgo_wire::control::MOST_NODES;
use resurgo_wire::frame::Error;
use resurgo_wire::handshake::{Greeting, Hello, KEY_BYTES, Server};
use resurgo_wire::mesh::Frame;
use resurgo_wire::node_memory::events_of;

use super::known::Unusable;
use super::link::{Link, Moved};
use super::mirror::{Foreign, Mirror};
use super::outgoing::Outgoing;
use super::tail::{Damaged, Tail};
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
    pub node: u32,
    addresses: Vec<SocketAddr>,
    next_address: usize,
    calls: bool,
    stage: Stage,
    /// When to call, or to call again without an answer, if at all.
    call_at: Option<Instant>,
    pause: Duration,
    pub outgoing: Outgoing,
    pub mirror: Mirror,
    /// Flushes that it has answered.
    pub flushed: Vec<u64>,
    /// What is known there.
    pub told: Vec<Event>,
    /// There is more output than the socket takes.
    pub is_full: bool,
    /// The node is lost, and its ranks do not begin again.
    pub is_lost: bool,
}

/// Why the job cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error("node {node} has proved the job's key, and sends what is no message: {error}")]
    Garbled { node: u32, error: Error },
    #[error(transparent)]
    Foreign(#[from] Foreign),
    #[error(transparent)]
    Unusable(#[from] Unusable),
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
            told: Vec::new(),
            is_full: false,
            is_lost: false,
        }
    }

    /// Sets the number of ranks, and which are here and on the other node.
    ///
    /// # Errors
    /// Input that had waited for this is invalid.
    pub fn grow(&mut self, ranks: usize, here: &[u32], there: &[u32]) -> Result<(), Trouble> {
        self.outgoing.grow(here, there);
        self.mirror.grow(ranks, here, there);
        if let Stage::Open(link) = &mut self.stage {
            self.mirror.say_ranks(link.output.end());
        }
        self.hear_all()
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

    /// Whether to read input now: not before its epoch has begun here.
    pub fn listens(&self) -> bool {
        !self.mirror.is_behind()
    }

    /// Whether to wait for room in the socket.
    pub fn wants_room(&self) -> bool {
        self.is_full
    }

    /// Calls the other node.
    pub fn call(&mut self, own: &Identity, nonce: [u8; KEY_BYTES]) {
        self.call_at = Some(Instant::now() + ANSWER);
        let address = self.addresses.get(self.next_address % self.addresses.len().max(1));
        self.next_address += 1;
        let link = address.and_then(|address| Link::call(*address, own.tls.as_ref()).ok());
        let Some(mut link) = link else {
            return self.hang_up();
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
    pub fn called(&mut self, link: Link) -> Result<(), Trouble> {
        self.outgoing.close();
        self.begin(link)?;
        self.hear_all()
    }

    fn begin(&mut self, mut link: Link) -> Result<(), Trouble> {
        self.call_at = None;
        self.mirror.close();
        self.mirror.settle(None)?;
        if self.mirror.waits() {
            // The ends of its copies are certain once no rank writes: soon.
            self.hang_up();
            return Ok(());
        }
        self.mirror.begin_connection(link.address());
        self.mirror.say_where(link.output.end());
        self.stage = Stage::Open(link);
        self.told.clear();
        self.is_full = false;
        self.pause = FIRST_PAUSE;
        Ok(())
    }

    /// Does the work that is due.
    ///
    /// # Errors
    /// A rank has written a damaged log.
    pub fn tend(&mut self, now: Instant) -> Result<(), Trouble> {
        let out = match &mut self.stage {
            Stage::Open(link) => Some(link.output.end()),
            _ => None,
        };
        self.mirror.settle(out)?;
        self.outgoing.look_again(now)?;
        Ok(())
    }

    /// When [`Self::tend`] is due.
    pub fn due(&self) -> Option<Instant> {
        let soon = self.mirror.waits().then(Instant::now);
        soon.into_iter().chain(self.outgoing.giving.due()).min()
    }

    /// The connection is broken. The calling side calls again.
    pub fn hang_up(&mut self) {
        self.mirror.close();
        self.stage = Stage::None;
        self.is_full = false;
        self.outgoing.close();
        if self.calls {
            self.call_at = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The node is lost, and its ranks do not begin again: nothing goes there or comes from there.
    pub fn lose(&mut self) {
        (self.is_lost, self.calls) = (true, false);
        self.call_at = None;
        self.hang_up();
        self.flushed.extend(self.outgoing.give_up_flushes());
    }

    /// All logs are emptied.
    ///
    /// # Errors
    /// Input that had waited for this is invalid.
    pub fn begin_epoch(&mut self, number: u64) -> Result<(), Trouble> {
        self.outgoing.begin_epoch(number);
        self.mirror.begin_epoch(number);
        self.hear_all()
    }

    /// Reads input.
    ///
    /// # Errors
    /// The job cannot go on.
    pub fn receive(&mut self, what: EpollFlags) -> Result<(), Trouble> {
        let is_over = what.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        let moved = match &mut self.stage {
            Stage::None => return Ok(()),
            // The other node sends unused input again.
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

    /// Also input that the socket no longer shows.
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
        self.hear_greeting()?;
        self.hear_frames()
    }

    /// Answers the other node's proof, if this one has called.
    fn hear_greeting(&mut self) -> Result<(), Trouble> {
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
                self.hang_up();
                return Ok(());
            };
            link.take(used);
            Frame::Handshake(word).encode(link.output.end());
            if let Stage::Calling(link, _) = std::mem::replace(&mut self.stage, Stage::None) {
                self.begin(link)?;
            }
        }
        Ok(())
    }

    fn hear_frames(&mut self) -> Result<(), Trouble> {
        let Stage::Open(link) = &mut self.stage else {
            return Ok(());
        };
        let (mirror, outgoing) = (&mut self.mirror, &mut self.outgoing);
        while !mirror.is_behind() {
            let node = self.node;
            let frame = link.frame().map_err(|error| Trouble::Garbled { node, error })?;
            let Some((frame, used)) = frame else { break };
            let mut answer = None;
            match frame {
                Frame::Ranks { count } => mirror.hear_ranks(count as usize),
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
                Frame::Behind {
                    source,
                    destination,
                    generation,
                    reference,
                    place,
                } => {
                    if mirror.is_current() {
                        let place = place as usize;
                        outgoing.behind((source, destination), generation, Tail { reference, place });
                    }
                }
                Frame::Begin => outgoing.open(),
                Frame::Lacks { source } => outgoing.is_lacked(source),
                Frame::Returned { source } => {
                    if mirror.is_current() {
                        mirror.has_returned(source);
                    }
                }
                Frame::Known { events } => {
                    if mirror.is_current() {
                        self.told.extend(events_of(events));
                    }
                }
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

    /// Sends news. True: there is more, and the socket takes it.
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

//! The connection on which this rank sends to a rank of another node: what stands in the log goes to it as it is.

use super::{make_fast, next_offer, raw, tcp};
use crate::clock::monotonic_ns;
use crate::log::atomic;
use crate::node::Node;
use crate::socket::{self, Socket};
use resurgo_wire::direct::{Word, from_words};
use resurgo_wire::entry::{self, ALIGN, HEADER, Mark};
use resurgo_wire::handshake::{Greeting, Hello, Server};
use resurgo_wire::mesh::{Frame, Table};
use resurgo_wire::node_memory::{self as nm, arena, control};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{Ordering, fence};

/// Time between two connections, at first and in the end; one that has lasted for long makes it short again.
const FIRST_PAUSE_NS: u64 = 2_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;
const LONG_NS: u64 = 500_000_000;
/// Room for a frame without entries.
const FRAME: usize = 48;
/// Pieces that the kernel is handed at a time.
const PIECES: usize = 32;

/// How far the connection has come.
enum Stage {
    None,
    /// This rank says who it is.
    Calling(Socket, Box<Call>),
    /// Both know each other, and the own mover has been offered this.
    Offered(Socket, u64),
    /// The connection carries the channel.
    Given(Socket, u64),
}

struct Call {
    greeting: Greeting,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    is_proved: bool,
}

/// Something that is to go.
enum Chunk {
    Frame([u8; FRAME], usize),
    /// Entries in the log, and their place. They stay where they are until the receiver has read them.
    Entries(*const u8, usize, u64),
}

pub struct Outgoing {
    destination: usize,
    stage: Stage,
    /// What the kernel has not taken, and how far the first of it is gone.
    chunks: VecDeque<Chunk>,
    gone: usize,
    /// Up to here the log is in `chunks` or has been sent.
    place: u64,
    /// What has been told of where channels of this rank begin.
    told: Vec<u64>,
    /// The kernel takes nothing now.
    is_stuck: bool,
    call_at_ns: u64,
    called_at_ns: u64,
    pause_ns: u64,
}

/// The connection is of no use any more.
struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Gone
    }
}

impl Outgoing {
    pub fn new(destination: usize) -> Outgoing {
        Outgoing {
            destination,
            stage: Stage::None,
            chunks: VecDeque::new(),
            gone: 0,
            place: 0,
            told: Vec::new(),
            is_stuck: false,
            call_at_ns: 0,
            called_at_ns: 0,
            pause_ns: FIRST_PAUSE_NS,
        }
    }

    /// In a process that has woken up: the socket was that of the one that its image is of.
    pub fn abandon(self) {
        match self.stage {
            Stage::None => {}
            Stage::Calling(socket, _) | Stage::Offered(socket, _) | Stage::Given(socket, _) => socket.abandon(),
        }
    }

    pub fn descriptor(&self) -> Option<i32> {
        match &self.stage {
            Stage::None => None,
            Stage::Calling(socket, _) | Stage::Offered(socket, _) | Stage::Given(socket, _) => {
                Some(socket.descriptor())
            }
        }
    }

    /// There is something that the kernel has not taken.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Something will go on when this rank looks again.
    pub fn wants_care(&self) -> bool {
        self.is_stuck || matches!(self.stage, Stage::Calling(..) | Stage::Offered(..))
    }

    /// The log has something new. False: the mover must be rung.
    #[inline]
    pub fn push(&mut self, node: &Node) -> bool {
        let was_stuck = self.is_stuck;
        self.tend(node);
        match self.stage {
            // When the kernel takes nothing the mover looks whether this rank goes on.
            Stage::Given(..) => !self.is_stuck || was_stuck,
            _ => false,
        }
    }

    /// Goes on with whatever is due.
    #[inline]
    pub fn tend(&mut self, node: &Node) {
        let done = match &self.stage {
            Stage::Given(_, offer) if self.given(node) == *offer => self.send(node),
            _ => self.step(node),
        };
        if let Err(Gone) = done {
            self.hang_up(node);
        }
    }

    /// The receiver has closed the connection that carries the channel, and may have read nothing of what was sent last. A
    /// rank that sends again finds out by itself; one that waits for an answer would wait for ever.
    pub fn mind_end(&mut self, node: &Node) {
        if let Stage::Offered(socket, _) | Stage::Given(socket, _) = &self.stage
            && socket.has_ended()
        {
            self.hang_up(node);
        }
    }

    fn given(&self, node: &Node) -> u64 {
        // What is in the log stands there before this is looked at.
        fence(Ordering::SeqCst);
        node.direct(self.destination, Word::Given).load(Ordering::SeqCst)
    }

    #[cold]
    fn hang_up(&mut self, node: &Node) {
        self.stage = Stage::None;
        self.is_stuck = false;
        self.chunks.clear();
        self.gone = 0;
        node.direct(self.destination, Word::Offer).store(0, Ordering::SeqCst);
        let now = monotonic_ns();
        self.pause_ns = match now - self.called_at_ns > LONG_NS {
            true => FIRST_PAUSE_NS,
            false => (self.pause_ns * 2).min(LONGEST_PAUSE_NS),
        };
        self.call_at_ns = now + self.pause_ns;
        // The mover must know.
        crate::doorbell::ring(node, self.destination);
    }

    /// Where no connection carries the channel.
    #[cold]
    fn step(&mut self, node: &Node) -> Result<(), Gone> {
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::None => {
                let door = node.of(self.destination, arena::DOOR).load(Ordering::SeqCst);
                if door != 0 && monotonic_ns() >= self.call_at_ns {
                    self.called_at_ns = monotonic_ns();
                    self.call(node, door as u16)?;
                }
                Ok(())
            }
            Stage::Calling(socket, call) => self.go_on_calling(node, socket, call),
            Stage::Offered(socket, offer) if self.given(node) == offer => self.begin(node, socket, offer),
            Stage::Offered(socket, offer) => {
                self.stage = Stage::Offered(socket, offer);
                Ok(())
            }
            // The mover has taken the channel back.
            Stage::Given(..) => Err(Gone),
        }
    }

    fn call(&mut self, node: &Node, port: u16) -> Result<(), Gone> {
        let words = [0, 1].map(|at| {
            let word = node.of(self.destination, arena::DOOR_ADDRESS.item(at));
            word.load(Ordering::SeqCst)
        });
        let address = SocketAddr::new(from_words(words), port);
        let socket = tcp(address.ip())?;
        make_fast(&socket);
        let (name, length) = raw(address);
        // SAFETY: a name of that length.
        if unsafe { libc::connect(socket.descriptor(), (&raw const name).cast(), length) } != 0
            && io::Error::last_os_error().raw_os_error() != Some(libc::EINPROGRESS)
        {
            return Err(Gone);
        }
        let hello = Hello {
            rank: node.rank as u32,
            size: node.size as u32,
            incarnation: node.control(node.rank, control::INCARNATION).load(Ordering::Acquire),
            nonce: socket::nonce()?,
        };
        let greeting = Greeting::new(Server::Rank, node.job_key, hello);
        let mut output = Vec::new();
        Frame::Handshake(greeting.hello()).encode(&mut output);
        let call = Call {
            greeting,
            input: Vec::new(),
            output,
            sent: 0,
            is_proved: false,
        };
        self.stage = Stage::Calling(socket, Box::new(call));
        Ok(())
    }

    fn go_on_calling(&mut self, node: &Node, socket: Socket, mut call: Box<Call>) -> Result<(), Gone> {
        loop {
            if call.sent < call.output.len() {
                match socket.send(&call.output[call.sent..]) {
                    Ok(Some(sent)) => call.sent += sent,
                    Ok(None) => break,
                    Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => break,
                    Err(_) => return Err(Gone),
                }
                continue;
            }
            if call.is_proved {
                let offer = next_offer();
                self.stage = Stage::Offered(socket, offer);
                node.direct(self.destination, Word::Offer)
                    .store(offer, Ordering::SeqCst);
                crate::doorbell::ring(node, self.destination);
                return Ok(());
            }
            let mut bytes = [0u8; 512];
            let Some(got) = socket.receive(&mut bytes)? else { break };
            call.input.extend_from_slice(&bytes[..got]);
            let frame = Frame::decode(&call.input).map_err(|_| Gone)?;
            let Some((frame, _)) = frame else { continue };
            let Frame::Handshake(word) = frame else {
                return Err(Gone);
            };
            let (_, proof) = call.greeting.answer(word, |_| None).map_err(|_| Gone)?;
            Frame::Handshake(proof).encode(&mut call.output);
            call.is_proved = true;
        }
        self.stage = Stage::Calling(socket, call);
        Ok(())
    }

    /// The mover has given the channel: everything from this place on goes here.
    fn begin(&mut self, node: &Node, socket: Socket, offer: u64) -> Result<(), Gone> {
        let word = |word| node.direct(self.destination, word).load(Ordering::SeqCst);
        let (generation, from) = (word(Word::Generation), word(Word::From));
        let (reference, place) = entry::place_of(from);
        self.place = from;
        self.told.clear();
        self.add(&Frame::Hand {
            source: node.rank as u32,
            destination: self.destination as u32,
            generation,
            reference,
            place: place as u32,
        });
        self.stage = Stage::Given(socket, offer);
        self.send(node)
    }

    fn add(&mut self, frame: &Frame<'_>) {
        self.add_before(frame, 0);
    }

    fn add_before(&mut self, frame: &Frame<'_>, more: usize) {
        let mut bytes = Vec::with_capacity(FRAME);
        frame.encode_before(&mut bytes, more);
        let mut room = [0; FRAME];
        room[..bytes.len()].copy_from_slice(&bytes);
        self.chunks.push_back(Chunk::Frame(room, bytes.len()));
    }

    /// Hands to the kernel what stands in the log.
    fn send(&mut self, node: &Node) -> Result<(), Gone> {
        self.gather(node);
        let Stage::Given(socket, _) = &self.stage else {
            return Ok(());
        };
        if !self.chunks.is_empty() {
            crate::doorbell::wait_for_lease(node);
        }
        while !self.chunks.is_empty() {
            let mut pieces = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; PIECES];
            let mut count = 0;
            for (chunk, piece) in self.chunks.iter().zip(&mut pieces) {
                let (base, bytes) = match chunk {
                    Chunk::Frame(frame, bytes) => (frame.as_ptr(), *bytes),
                    Chunk::Entries(base, bytes, _) => (*base, *bytes),
                };
                *piece = libc::iovec {
                    iov_base: base.cast_mut().cast(),
                    iov_len: bytes,
                };
                count += 1;
            }
            // SAFETY: inside the first chunk.
            pieces[0].iov_base = unsafe { pieces[0].iov_base.cast::<u8>().add(self.gone).cast() };
            pieces[0].iov_len -= self.gone;
            let Some(mut sent) = socket.send_pieces(&pieces[..count])? else {
                self.is_stuck = true;
                // It is looking, and does not compute.
                node.direct(self.destination, Word::Looks)
                    .fetch_add(1, Ordering::Release);
                return Ok(());
            };
            for piece in &pieces[..count] {
                if sent < piece.iov_len {
                    self.gone = sent
                        + if std::ptr::eq(piece, &raw const pieces[0]) {
                            self.gone
                        } else {
                            0
                        };
                    break;
                }
                sent -= piece.iov_len;
                self.gone = 0;
                self.chunks.pop_front();
            }
            // The mover looks whether this moves.
            node.direct(self.destination, Word::Sent)
                .store(self.reached(), Ordering::Release);
        }
        self.is_stuck = false;
        Ok(())
    }

    /// The kernel has everything up to this place.
    fn reached(&self) -> u64 {
        let first = self.chunks.iter().find_map(|chunk| match chunk {
            Chunk::Entries(_, _, place) => Some(*place),
            Chunk::Frame(..) => None,
        });
        first.unwrap_or(self.place)
    }

    /// Lists what is published and has not been listed.
    fn gather(&mut self, node: &Node) {
        loop {
            let (reference, from) = entry::place_of(self.place);
            let segment = node.segment(node.rank, nm::dereference(reference).1).cast_const();
            let (mut end, mut next) = (from, 0);
            loop {
                // SAFETY: the place of an entry or of a cleared mark in an own segment.
                let mark = Mark(unsafe { atomic(segment.add(end)) }.load(Ordering::Acquire));
                if mark.0 == 0 {
                    break;
                }
                if mark.is_jump() {
                    // SAFETY: as above.
                    next = unsafe { atomic(segment.add(end + entry::TOTAL)) }.load(Ordering::Relaxed);
                    end += HEADER;
                    break;
                }
                end = entry::next(end, mark.bytes());
            }
            if end == from {
                return;
            }
            if next != 0 {
                self.begin_segment(node, next);
            }
            let run = Frame::Run {
                source: node.rank as u32,
                destination: self.destination as u32,
                reference,
                place: from as u32,
                next,
                entries: &[],
            };
            self.add_before(&run, end - from);
            // SAFETY: inside the segment.
            let entries = unsafe { segment.add(from) };
            self.chunks.push_back(Chunk::Entries(entries, end - from, self.place));
            self.place = match next {
                0 => entry::place_word(reference, end),
                next => entry::place_word(next, ALIGN),
            };
            if next == 0 {
                return;
            }
        }
    }

    /// The log goes on in a segment that another channel may have had. That channel must not begin there any more, not
    /// even for a receiver's new life.
    fn begin_segment(&mut self, node: &Node, reference: u64) {
        self.told.resize(node.ranks(), 0);
        for other in 0..self.told.len() {
            if !node.is_elsewhere(other) {
                continue;
            }
            let begins = node.channel(node.rank, other).load(Ordering::Acquire);
            if begins != 0 && std::mem::replace(&mut self.told[other], begins) != begins {
                self.add(&Frame::Tell {
                    rank: node.rank as u32,
                    table: Table::Channel,
                    index: other as u32,
                    value: begins,
                });
            }
        }
        let segment = node.segment(node.rank, nm::dereference(reference).1).cast_const();
        // SAFETY: the head of an own segment.
        let begun = unsafe { atomic(segment) }.load(Ordering::Relaxed);
        self.add(&Frame::Head {
            source: node.rank as u32,
            reference,
            begun,
        });
    }
}

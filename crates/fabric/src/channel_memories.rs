//! The connections to channel memories (channel-memory): the rank's sends, and its served messages. The rank opens all
//! of them, once for each life; no process ever connects to it. The frames are `resurgo_wire`'s; here are the sockets.
//!
//! When a call of the provider ends, the kernel has what the life sends, and the life's channel memory has its reports.
//! The program goes on only then: whatever it does next, its process may be killed, or its node be lost. Sends that the
//! kernel still has are lost then; the next life finds out how far they came, and repeats them. A connection that
//! breaks ends the life as if it had crashed. The next life begins with what the channel memories have.
//!
//! Connections are no part of an image. A process that wakes up makes new ones, and is served what comes after the
//! deliveries in its image. What the kernel has when a connection breaks is lost. So an image is taken only when all
//! memories have said that they have everything.

use crate::clock::monotonic_ns;
use crate::message::{Envelope, KINDS, Message, Pieces};
use crate::node::Node;
use crate::padding;
use crate::socket::{self, Broken, STANDSTILL_NS, Socket};
use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::{Admission, Departures, memory_of};
use resurgo_wire::channel_memory::{
    self as wire, Difference, Error, Frame, Greeting, Identity, Input, MAX_PIECE, Output,
};
use resurgo_wire::counters::Cost;
use resurgo_wire::handshake::Word;
use resurgo_wire::node_memory::control;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// If a channel memory does not answer a beginning rank for so long, it is lost.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Bytes of room for each read.
const READ_BYTES: usize = 256 << 10;
/// Bytes of messages that may be taken from the kernel before they are delivered, to see what comes behind them: more
/// than a connection and its two ends hold.
const MOST_AHEAD: usize = 32 << 20;
/// A life with a broken connection ends after this time: if the channel memory is lost, the dispatcher says so first.
const LAST_NS: i64 = 500_000_000;

/// A message as the channel memory serves it.
pub struct Arrived {
    pub source: Rank,
    /// In which read a former life delivered it, if it did.
    pub polls: Option<u64>,
    pub envelope: Envelope,
    /// Bytes of the whole message.
    pub total: usize,
    pub bytes: Vec<u8>,
}

/// A message sent again differs from what a former life sent.
pub struct Diverged {
    pub destination: Rank,
    pub ssn: u64,
    pub what: String,
    /// Envelope and length, before and now.
    pub before: (Envelope, u64),
    pub now: (Envelope, u64),
}

/// One connection.
struct Link {
    socket: Socket,
    input: Input,
    output: Output,
    /// How many questions whether all is stored it has not answered.
    unanswered: u64,
}

impl Link {
    fn connect(to: SocketAddr) -> io::Result<Link> {
        // Where the limit of open files is that low, any number must do.
        let socket = Socket::connect(to)?.out_of_the_way().unwrap_or_else(|low| low);
        Ok(Link {
            socket,
            input: Input::default(),
            output: Output::default(),
            unanswered: 0,
        })
    }

    /// Hands the kernel what it takes now. True: that was everything.
    fn send(&mut self) -> io::Result<bool> {
        while !self.output.is_empty() {
            let Some(sent) = self.socket.send(self.output.bytes())? else {
                return Ok(false);
            };
            self.output.sent(sent);
        }
        Ok(true)
    }

    /// Takes what has come. False: nothing has.
    fn receive(&mut self) -> io::Result<bool> {
        let got = self.socket.receive(self.input.room(READ_BYTES))?;
        self.input.came(got.unwrap_or(0));
        Ok(got.is_some())
    }
}

/// The connections of one life.
pub struct ChannelMemories {
    links: Vec<Link>,
    own: usize,
    /// The own channel memory is on another machine, or behind a tunnel: even what the kernel has transmitted may be lost.
    is_far: bool,
    departures: Departures,
    /// The last delivery that this life has reported.
    reported: u64,
    /// Deliveries have been reported since [`Self::say`].
    has_reported: bool,
    /// Messages that were served and not delivered.
    arrived: VecDeque<Arrived>,
    arrived_bytes: usize,
    /// A message that has not come whole.
    coming: Option<Arrived>,
    diverged: Option<Diverged>,
    /// How many deliveries the own memory has been told to forget.
    forgotten: u64,
    /// Calls of [`Self::look_now_and_then`].
    calls: u64,
}

/// What a new life finds.
pub struct Joined {
    pub memories: ChannelMemories,
    /// How many deliveries to repeat.
    pub reported: u64,
    /// Per destination, how many messages former lives sent.
    pub sent_before: Vec<u64>,
}

impl ChannelMemories {
    /// Connects to all channel memories and hears what they have of former lives. `delivered`: deliveries in the image
    /// that this life begins from.
    pub fn join(node: &Node, delivered: u64) -> Joined {
        let own = memory_of(node.rank as Rank, node.channel_memories.len());
        let (mut reported, mut sent_before) = (0, vec![0; node.size]);
        let mut links = Vec::new();
        for (number, address) in node.channel_memories.iter().enumerate() {
            let delivered = if number == own { delivered } else { 0 };
            let greeted = greet(node, *address, delivered);
            let (link, admission) = greeted.unwrap_or_else(|reason| lost(node, number, &reason));
            for (destination, received) in admission.received {
                sent_before[destination as usize] = received;
            }
            if number == own {
                reported = admission.reported;
            }
            links.push(link);
        }
        let memories = ChannelMemories {
            links,
            own,
            is_far: !node.servers_are_here,
            departures: Departures::new(own, reported),
            reported,
            has_reported: false,
            arrived: VecDeque::new(),
            arrived_bytes: 0,
            coming: None,
            diverged: None,
            forgotten: 0,
            calls: 0,
        };
        Joined {
            memories,
            reported,
            sent_before,
        }
    }

    /// In a process that has woken up: the connections belong to the process that the image was taken of.
    pub fn abandon(self) {
        self.links.into_iter().for_each(|link| link.socket.abandon());
    }

    /// Descriptors of the connections.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.links.iter().map(|link| link.socket.descriptor())
    }

    /// Sends message `ssn` to `destination`, after `rclock` deliveries. `again`: a former life sent it, and the channel
    /// memory compares the two.
    pub fn send(&mut self, node: &Node, destination: usize, ssn: u64, again: bool, message: Message, rclock: u64) {
        let memory = memory_of(destination as Rank, self.links.len());
        let mut pieces = Pieces::new(message.iov);
        let head = Frame::Message {
            destination: destination as Rank,
            ssn,
            envelope: to_wire(message.envelope, message.total),
            unset: if again {
                padding::of(&message).ranges()
            } else {
                Default::default()
            },
            bytes: &[],
        };
        if !self.departures.may_leave(memory, rclock) {
            self.wait_for_own(node);
        }
        let mut done = 0;
        loop {
            let length = (message.total - done).min(MAX_PIECE);
            let out = self.links[memory].output.end();
            if done == 0 {
                head.encode_before(out, length);
            } else {
                Frame::Piece { bytes: &[] }.encode_before(out, length);
            }
            let begin = out.len();
            out.resize(begin + length, 0);
            pieces.copy_next(&mut out[begin..]);
            self.flush(memory);
            done += length;
            if done == message.total {
                return;
            }
        }
    }

    /// Waits until the own channel memory has the reports of all deliveries made.
    #[cold]
    fn wait_for_own(&mut self, node: &Node) {
        let since = monotonic_ns();
        self.say(node);
        self.wait_for_reports(node);
        self.departures.release();
        let held_ns = monotonic_ns() - since;
        node.add(Cost::HeldSends, 1);
        node.add(Cost::HeldNs, held_ns);
        node.most(Cost::MostHeldNs, held_ns);
    }

    /// Waits until the own channel memory has said that it has all reports.
    fn wait_for_reports(&mut self, node: &Node) {
        while self.departures.acknowledged() < self.reported {
            if !self.hear(node, self.own) && !self.receive(self.own) {
                self.wait(100_000_000);
            }
        }
    }

    /// Reports in which read delivery `rclock` was made; [`Self::say`] sends the report.
    pub fn report(&mut self, rclock: u64, polls: u64) {
        self.links[self.own].output.push(&Frame::Report { rclock, polls });
        (self.reported, self.has_reported) = (rclock, true);
    }

    /// Lets the own channel memory forget what is before delivery `rclock + 1`, unless it was told so; [`Self::say`]
    /// sends that.
    #[inline]
    pub fn forget(&mut self, rclock: u64) {
        if rclock > self.forgotten {
            self.forgotten = rclock;
            self.links[self.own].output.push(&Frame::Forget { rclock });
        }
    }

    /// Hands the kernel everything that is to go. When this returns, the reports are at the own channel memory's end.
    pub fn say(&mut self, node: &Node) {
        for memory in 0..self.links.len() {
            self.flush(memory);
        }
        if std::mem::take(&mut self.has_reported) {
            if self.is_far {
                return self.wait_for_reports(node);
            }
            let own = &self.links[self.own].socket;
            let mut pause_ns = 20_000;
            // This lasts only behind much that the channel memory has not read yet.
            while own.untransmitted() > 0 {
                if !own.lasts(pause_ns) {
                    broken();
                }
                pause_ns = (pause_ns * 2).min(1_000_000);
            }
        }
    }

    fn flush(&mut self, memory: usize) {
        loop {
            match self.links[memory].send() {
                Ok(true) => return,
                // A channel memory never waits for a client, so this does not last.
                Ok(false) => self.links[memory].socket.wait(100_000_000, true),
                Err(_) => broken(),
            }
        }
    }

    /// The next message, if it has come.
    pub fn first(&mut self, node: &Node) -> Option<&Arrived> {
        while self.arrived.is_empty() && (self.hear(node, self.own) || self.receive(self.own)) {}
        self.arrived.front()
    }

    /// Takes the message that [`Self::first`] showed.
    pub fn take(&mut self) -> Option<Arrived> {
        let arrived = self.arrived.pop_front()?;
        self.arrived_bytes -= arrived.bytes.len();
        Some(arrived)
    }

    fn receive(&mut self, memory: usize) -> bool {
        match self.links[memory].receive() {
            Ok(some) => some,
            Err(_) => broken(),
        }
    }

    /// Handles a frame from `memory`, if one has come.
    fn hear(&mut self, node: &Node, memory: usize) -> bool {
        let link = &mut self.links[memory];
        let frame = match link.input.frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return false,
            Err(error) => lost(node, memory, &error.to_string()),
        };
        match frame {
            Frame::Served {
                source,
                polls,
                envelope,
                bytes,
            } => {
                let mut whole = Vec::with_capacity(envelope.total as usize);
                whole.extend_from_slice(bytes);
                self.coming = Some(Arrived {
                    source,
                    polls,
                    envelope: from_wire(envelope),
                    total: envelope.total as usize,
                    bytes: whole,
                });
            }
            Frame::Piece { bytes } => {
                if let Some(coming) = &mut self.coming {
                    coming.bytes.extend_from_slice(bytes);
                }
            }
            Frame::Reported { rclock } => self.departures.acknowledge(rclock),
            Frame::Synced => link.unanswered = link.unanswered.saturating_sub(1),
            Frame::Differs {
                destination,
                ssn,
                difference,
                before,
                now,
            } => {
                self.diverged.get_or_insert(Diverged {
                    destination,
                    ssn,
                    what: match difference {
                        Difference::Envelope => "its envelope".to_string(),
                        Difference::Length => "its length".to_string(),
                        Difference::Content(at) => format!("its content from byte {at} on"),
                    },
                    before: (from_wire(before), before.total),
                    now: (from_wire(now), now.total),
                });
            }
            Frame::Handshake(Word::Refused { reason }) => lost(node, memory, &format!("it refuses: {reason}")),
            frame => lost(node, memory, &format!("it sends a {} frame", frame.name())),
        }
        if let Some(arrived) = self.coming.take_if(|coming| coming.bytes.len() >= coming.total) {
            self.arrived_bytes += arrived.total;
            self.arrived.push_back(arrived);
        }
        true
    }

    /// Waits until the own channel memory says something, at most `nanoseconds`.
    pub fn wait(&self, nanoseconds: u64) {
        self.links[self.own].socket.wait(nanoseconds, false);
    }

    /// As [`Self::look`], but only in some of many calls, as it costs system calls.
    pub fn look_now_and_then(&mut self, node: &Node) -> Option<Diverged> {
        self.calls += 1;
        if self.calls.is_multiple_of(1024) {
            self.look(node)
        } else {
            None
        }
    }

    /// Takes what any channel memory has said about differences.
    pub fn look(&mut self, node: &Node) -> Option<Diverged> {
        for memory in 0..self.links.len() {
            while self.arrived_bytes < MOST_AHEAD && (self.hear(node, memory) || self.receive(memory)) {}
        }
        self.diverged.take()
    }

    /// Waits until everything said is stored, and everything sent again is compared; returns a difference.
    pub fn sync(&mut self, node: &Node) -> Option<Diverged> {
        self.sync_within(node, u64::MAX);
        self.diverged.take()
    }

    /// While the rank stands still for an image: whether everything said is stored.
    pub fn have_everything(&mut self, node: &Node) -> bool {
        self.sync_within(node, STANDSTILL_NS) && self.diverged.is_none()
    }

    fn sync_within(&mut self, node: &Node, longest_ns: u64) -> bool {
        for link in &mut self.links {
            link.unanswered += 1;
            link.output.push(&Frame::Sync);
        }
        self.say(node);
        let since = monotonic_ns();
        for memory in 0..self.links.len() {
            while self.links[memory].unanswered > 0 {
                if self.hear(node, memory) || self.receive(memory) {
                    continue;
                }
                let left = longest_ns.saturating_sub(monotonic_ns() - since);
                if left == 0 {
                    return false;
                }
                self.links[memory].socket.wait(left.min(100_000_000), false);
            }
        }
        true
    }
}

fn to_wire(envelope: Envelope, total: usize) -> wire::Envelope {
    wire::Envelope {
        kind: envelope.kind as u8,
        flags: envelope.flags,
        tag: envelope.tag,
        data: envelope.data,
        total: total as u64,
    }
}

fn from_wire(envelope: wire::Envelope) -> Envelope {
    Envelope {
        kind: KINDS[envelope.kind as usize - 1],
        flags: envelope.flags,
        tag: envelope.tag,
        data: envelope.data,
    }
}

/// Connects and proves which rank it is; the error says why not. It tries again while there is no way between this machine and the other.
fn greet(node: &Node, address: SocketAddr, delivered: u64) -> Result<(Link, Admission), String> {
    let since = monotonic_ns();
    loop {
        match greet_once(node, address, delivered, since) {
            Err(Broken::Gone(_)) if !node.servers_are_here && monotonic_ns() - since < PATIENCE_NS => pause(),
            Err(Broken::Gone(why) | Broken::Refused(why)) => return Err(why),
            Ok(greeted) => return Ok(greeted),
        }
    }
}

fn greet_once(node: &Node, address: SocketAddr, delivered: u64, since: u64) -> Result<(Link, Admission), Broken> {
    let gone = |error: io::Error| Broken::Gone(format!("{address}: {error}"));
    let nonce = socket::nonce().map_err(|error| Broken::Refused(error.to_string()))?;
    let mut link = Link::connect(address).map_err(gone)?;
    let identity = Identity {
        rank: node.rank as Rank,
        size: node.size as u32,
        incarnation: node.control(node.rank, control::INCARNATION).load(Ordering::Acquire),
        delivered,
        key: node.job_key,
        nonce,
    };
    let greeting = Greeting::begin(identity, &mut link.output);
    let refused = |error: Error| Broken::Refused(error.to_string());
    loop {
        while let Some(frame) = link.input.frame().map_err(refused)? {
            if let Some(admission) = greeting.hear(frame, &mut link.output).map_err(refused)? {
                return Ok((link, admission));
            }
        }
        let sent = link.send().map_err(gone)?;
        if !link.receive().map_err(gone)? {
            link.socket.wait(100_000_000, !sent);
        }
        if monotonic_ns() - since > PATIENCE_NS {
            return Err(Broken::Refused(format!("{address}: no answer for 30 seconds")));
        }
    }
}

/// Ends the job.
fn lost(node: &Node, memory: usize, why: &str) -> ! {
    pause();
    node.report(&format!("rank {} cannot use channel memory {memory}: {why}", node.rank));
}

/// Ends the life as if it had crashed.
fn broken() -> ! {
    pause();
    // SAFETY: ends this process.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(1)
    }
}

fn pause() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: LAST_NS,
    };
    // SAFETY: sleeps.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

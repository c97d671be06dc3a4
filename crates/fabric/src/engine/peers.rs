//! The ranks that this one talks to, with the carriers of messages in each direction.
//!
//! The carrier is chosen for each peer. Messages between ranks of a node go through the sender's log, which the
//! receiver reads in shared memory; under channel-memory all go through channel memories.

use crate::arena::Arena;
use crate::channel_memories::{Arrived, ChannelMemories};
use crate::clock::monotonic_ns;
use crate::direct::{self, Direct};
use crate::doorbell;
use crate::log::{Entry, Reader, Writer};
use crate::matching::{Receive, Unexpected};
use crate::message::Envelope;
use crate::node::Node;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Deliveries in a row from the same channel before other channels have a turn.
const HOT_RUN: u32 = 16;
/// With more ranks of other nodes than this, the movers carry the messages to them.
const MOST_CONNECTIONS: usize = 256;
/// A rank that waits looks so often whether receivers have closed its connections.
const MIND_ENDS_NS: u64 = 100_000_000;

/// How messages to one peer leave.
pub enum Outgoing {
    SharedLog(Box<Log>),
    Memory,
}

/// The sender's end of a channel.
pub struct Log {
    pub writer: Writer,
    /// A reader that compares it with repeated sends.
    pub redo: Option<Reader>,
    /// Messages at the beginning of the channel that the log no longer holds, because an image of the receiver covers
    /// them: repeated ones have no counterpart.
    pub forgotten: u64,
}

impl Log {
    pub fn new(writer: Writer) -> Box<Log> {
        Box::new(Log {
            writer,
            redo: None,
            forgotten: 0,
        })
    }
}

/// How messages from one peer come.
pub enum Carrier {
    SharedLog(Reader),
    /// The message that the channel memory served last, if it is from that peer.
    Memory(Option<Arrived>),
}

/// The receiving end of one channel.
pub struct Incoming {
    pub carrier: Carrier,
    pub filling: Filling,
}

/// Where the pieces of the message being read from a channel go.
pub enum Filling {
    Nothing,
    Receive {
        receive: Receive,
        envelope: Envelope,
        total: usize,
        done: usize,
    },
    Unexpected(*mut Unexpected),
    /// No receive wants it.
    Dropped {
        total: usize,
        done: usize,
    },
    /// The answer to a remote read or write of this rank's.
    Answer {
        operation: u64,
        total: usize,
        done: usize,
    },
    /// Pieces of another rank's remote read or write, gathered before they are served.
    Rma {
        envelope: Envelope,
        total: usize,
        bytes: Vec<u8>,
    },
}

impl Carrier {
    /// The next entry, if it has come.
    #[inline]
    pub fn peek(&mut self, node: &Node) -> Option<Entry> {
        match self {
            Carrier::SharedLog(reader) => reader.peek(node),
            Carrier::Memory(arrived) => {
                let arrived = arrived.as_ref()?;
                Some(Entry::whole(arrived.envelope, arrived.total))
            }
        }
    }

    /// Copies `bytes` of the payload of the entry `peek` returned to `to`, from its byte `from` on.
    ///
    /// # Safety
    /// `to` has room for `bytes`; `from + bytes` is not more than the entry's bytes.
    #[inline]
    pub unsafe fn copy(&mut self, node: &Node, from: usize, to: *mut u8, bytes: usize) {
        match self {
            // SAFETY: as the caller promises.
            Carrier::SharedLog(reader) => unsafe { reader.copy_payload(node, from, to, bytes) },
            Carrier::Memory(arrived) => {
                let arrived = arrived.as_ref().expect("a message has been served");
                let part = &arrived.bytes[from..from + bytes];
                // SAFETY: as the caller promises.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, bytes) };
            }
        }
    }

    /// Memory for a kept message of `total` bytes: with all of them where the carrier can give its own away, otherwise
    /// empty.
    pub fn keep(&mut self, total: usize) -> Vec<u8> {
        match self {
            Carrier::Memory(Some(arrived)) => std::mem::take(&mut arrived.bytes),
            _ => Vec::with_capacity(total),
        }
    }

    /// Steps over an entry of `bytes` payload bytes.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        match self {
            Carrier::SharedLog(reader) => reader.advance(bytes),
            Carrier::Memory(arrived) => *arrived = None,
        }
    }

    /// The reader of the peer's log, if there is one.
    pub fn log(&self) -> Option<&Reader> {
        match self {
            Carrier::SharedLog(reader) => Some(reader),
            Carrier::Memory(_) => None,
        }
    }
}

/// Channels that may have news, in turn: the channel of the last delivery comes first, for a limited time.
pub struct Ready {
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    /// The channel of the last delivery, and deliveries from it in a row.
    pub hot: usize,
    run: u32,
}

impl Ready {
    fn new(size: usize, hot: usize) -> Ready {
        Ready {
            queue: VecDeque::new(),
            queued: vec![false; size],
            hot,
            run: 0,
        }
    }

    /// Whether to look first at the channel of the last delivery. True as often as is fair.
    #[inline]
    pub fn stays(&self) -> bool {
        self.run < HOT_RUN
    }

    #[inline]
    pub fn stayed(&mut self) {
        self.run += 1;
    }

    /// Takes the rung channels; the hot channel has no privilege until something is found.
    #[inline]
    pub fn hear(&mut self, node: &Node) {
        self.run = 0;
        doorbell::take_ready(node, |source| self.add(source));
    }

    #[inline]
    fn add(&mut self, source: usize) {
        if !std::mem::replace(&mut self.queued[source], true) {
            self.queue.push_back(source as u32);
        }
    }

    /// The next channel to look at.
    #[inline]
    pub fn next(&mut self) -> Option<usize> {
        let source = self.queue.pop_front()? as usize;
        self.queued[source] = false;
        Some(source)
    }

    /// It had a message, and may have more: it gets another turn.
    #[inline]
    pub fn found(&mut self, source: usize) {
        self.add(source);
        self.hot = source;
    }

    /// A former life may have taken ready bits without reading the news: looks at every channel once.
    pub fn look_at_all(&mut self, node: &Node) {
        self.queue.clear();
        self.queued.fill(false);
        for source in 0..node.ranks() {
            if node.channel(source, node.rank).load(Ordering::Acquire) != 0 {
                self.add(source);
            }
        }
    }
}

pub struct Peers {
    /// Where this rank's logs are.
    pub arena: Arena,
    pub outgoing: Vec<Option<Outgoing>>,
    pub incoming: Vec<Option<Box<Incoming>>>,
    pub ready: Ready,
    /// The carriers of messages that no log carries.
    pub memories: Option<Box<ChannelMemories>>,
    /// Connections of ranks of other nodes to this one.
    pub direct: Option<Box<Direct>>,
    /// Destinations whose direct connections go on when looked at.
    cared_for: Vec<usize>,
    /// The number of destinations with direct connections, present or wanted.
    connections: usize,
    /// When this rank last looked whether receivers have closed some.
    minded_at_ns: u64,
    /// Per source, messages taken from its channel (without a replaying protocol; waves announce them).
    pub taken: Vec<u64>,
}

impl Peers {
    pub fn new(node: &Node) -> Peers {
        Peers {
            arena: Arena::untouched(node),
            outgoing: (0..node.size).map(|_| None).collect(),
            incoming: (0..node.size).map(|_| None).collect(),
            ready: Ready::new(node.size, node.rank),
            memories: None,
            direct: None,
            cared_for: Vec::new(),
            connections: 0,
            minded_at_ns: 0,
            taken: vec![0; node.size],
        }
    }

    #[inline]
    pub fn outgoing(&mut self, node: &Node, destination: usize) -> &mut Outgoing {
        let made = || match node.channel_memories.is_empty() {
            true => Outgoing::SharedLog(Log::new(Writer::new(node, destination))),
            false => Outgoing::Memory,
        };
        self.outgoing[destination].get_or_insert_with(made)
    }

    /// This rank's log of a channel, and the arena that holds it; made if there is none yet.
    #[inline]
    pub fn log(&mut self, node: &Node, destination: usize) -> (&mut Log, &mut Arena) {
        let made = || Outgoing::SharedLog(Log::new(Writer::new(node, destination)));
        match self.outgoing[destination].get_or_insert_with(made) {
            Outgoing::SharedLog(log) => (log, &mut self.arena),
            Outgoing::Memory => unreachable!("a log carries it"),
        }
    }

    /// Tells `destination` that its channel has news.
    #[inline]
    pub fn ring(&mut self, node: &Node, destination: usize) {
        if self.direct.is_none() {
            return doorbell::ring(node, destination);
        }
        self.ring_directly(node, destination);
    }

    fn ring_directly(&mut self, node: &Node, destination: usize) {
        let Some(Outgoing::SharedLog(log)) = &mut self.outgoing[destination] else {
            return doorbell::ring(node, destination);
        };
        let writer = &mut log.writer;
        if writer.direct.is_none() && self.connections < MOST_CONNECTIONS && node.is_elsewhere(destination) {
            self.connections += 1;
            writer.direct = Some(Box::new(direct::Outgoing::new(destination)));
        }
        writer.ring(node);
        let wants_care = writer.direct.as_ref().is_some_and(|direct| direct.wants_care());
        if wants_care && !self.cared_for.contains(&destination) {
            self.cared_for.push(destination);
        }
    }

    /// Goes on with direct connections that need it.
    pub fn care(&mut self, node: &Node) {
        let outgoing = &mut self.outgoing;
        self.cared_for.retain(|destination| {
            let Some(Outgoing::SharedLog(log)) = &mut outgoing[*destination] else {
                return false;
            };
            let Some(direct) = &mut log.writer.direct else {
                return false;
            };
            direct.tend(node);
            direct.wants_care()
        });
    }

    /// Before this rank sleeps: gives up direct connections that receivers have closed. It looks now and then.
    pub fn mind_ends(&mut self, node: &Node) {
        if self.direct.is_none() {
            return;
        }
        let now = monotonic_ns();
        if now - self.minded_at_ns < MIND_ENDS_NS {
            return;
        }
        self.minded_at_ns = now;
        for outgoing in self.outgoing.iter_mut().flatten() {
            if let Outgoing::SharedLog(log) = outgoing
                && let Some(direct) = &mut log.writer.direct
            {
                direct.mind_end(node);
            }
        }
    }

    /// The same before this rank sleeps. True: some wait for room in the kernel, which will wake the rank.
    pub fn wait_for_room(&mut self, node: &Node) -> bool {
        self.care(node);
        let mut is_stuck = false;
        let (Some(direct), outgoing) = (&self.direct, &self.outgoing) else {
            return false;
        };
        for destination in &self.cared_for {
            if let Some(Outgoing::SharedLog(log)) = &outgoing[*destination]
                && let Some(stuck) = log.writer.direct.as_ref().filter(|direct| direct.is_stuck())
            {
                is_stuck = true;
                stuck
                    .descriptor()
                    .iter()
                    .for_each(|socket| direct.wake_for_room(*socket));
            }
        }
        is_stuck
    }

    /// Takes what ranks of other nodes have sent on their direct connections. True: there was something.
    #[inline]
    pub fn receive(&mut self, node: &Node) -> bool {
        let Some(direct) = &mut self.direct else { return false };
        let ready = &mut self.ready;
        direct.receive(node, |source| ready.add(source))
    }

    /// Whether direct connections, where they go on, are worth a look.
    #[inline]
    pub fn has_cares(&self) -> bool {
        !self.cared_for.is_empty()
    }

    /// In a woken process: all its connections belong to the process of the image.
    pub fn abandon_connections(&mut self) {
        self.cared_for.clear();
        self.connections = 0;
        if let Some(direct) = self.direct.take() {
            direct.abandon();
        }
        for (_, log) in self.logs() {
            if let Some(direct) = log.writer.direct.take() {
                direct.abandon();
            }
        }
    }

    /// Descriptors of connections to ranks of other nodes.
    pub fn connections(&self, each: &mut dyn FnMut(i32)) {
        let Some(direct) = &self.direct else { return };
        direct.descriptors().for_each(&mut *each);
        for outgoing in self.outgoing.iter().flatten() {
            if let Outgoing::SharedLog(log) = outgoing
                && let Some(descriptor) = log.writer.direct.as_ref().and_then(|direct| direct.descriptor())
            {
                each(descriptor);
            }
        }
    }

    /// The own logs that there are, with their destinations.
    pub fn logs(&mut self) -> impl Iterator<Item = (usize, &mut Log)> {
        let logs = self.outgoing.iter_mut().enumerate();
        logs.filter_map(|(destination, outgoing)| match outgoing.as_mut()? {
            Outgoing::SharedLog(log) => Some((destination, &mut **log)),
            Outgoing::Memory => None,
        })
    }

    /// The writer of the log to `destination`, if there is one.
    #[inline]
    pub fn writer(&self, destination: usize) -> Option<&Writer> {
        match self.outgoing[destination].as_ref()? {
            Outgoing::SharedLog(log) => Some(&log.writer),
            Outgoing::Memory => None,
        }
    }

    /// Messages begun to `destination`.
    pub fn begun(&self, destination: usize) -> u64 {
        self.writer(destination).map_or(0, Writer::begun)
    }

    #[inline]
    pub fn incoming(&mut self, node: &Node, source: usize) -> &mut Incoming {
        let made = || Incoming {
            carrier: match node.channel_memories.is_empty() {
                true => Carrier::SharedLog(Reader::new(source, node.rank)),
                false => Carrier::Memory(None),
            },
            filling: Filling::Nothing,
        };
        self.incoming[source].get_or_insert_with(|| Box::new(made()))
    }

    /// The reader of the log from `source`, if there is one.
    pub fn reader(&self, source: usize) -> Option<&Reader> {
        self.incoming[source].as_ref()?.carrier.log()
    }

    /// Frees segments that no rank needs any more.
    pub fn reclaim(&mut self, node: &Node) {
        let (outgoing, arena) = (&mut self.outgoing, &mut self.arena);
        for outgoing in outgoing.iter_mut().flatten() {
            if let Outgoing::SharedLog(log) = outgoing {
                log.writer.reclaim(arena, node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    #[test]
    fn channels_get_their_turns_and_are_queued_once() {
        let (one, two) = pair(1, true);
        let mut ready = Ready::new(2, 1);
        doorbell::ring(&one, 1);
        doorbell::ring(&one, 1);
        ready.hear(&two);
        assert_eq!((ready.next(), ready.next()), (Some(0), None));
        ready.found(0);
        assert_eq!(ready.hot, 0);
        let mut times = 0;
        while ready.stays() {
            ready.stayed();
            times += 1;
        }
        assert_eq!(times, HOT_RUN);
        doorbell::ring(&one, 1);
        ready.hear(&two);
        assert!(ready.stays());
        assert_eq!((ready.next(), ready.next()), (Some(0), None));
        // The channel has never been used.
        ready.look_at_all(&two);
        assert_eq!(ready.next(), None);
        one.channel(0, 1).store(1, Ordering::Relaxed);
        ready.look_at_all(&two);
        assert_eq!(ready.next(), Some(0));
    }

    #[test]
    fn a_message_that_a_memory_has_served_is_one_entry() {
        let (node, _other) = pair(1, true);
        let envelope = Envelope {
            kind: crate::message::Kind::Tagged,
            flags: 0,
            tag: 3,
            data: 4,
        };
        let served = || {
            Carrier::Memory(Some(Arrived {
                source: 1,
                polls: None,
                envelope,
                total: 5,
                bytes: b"abcde".to_vec(),
            }))
        };
        let mut carrier = served();
        let entry = carrier.peek(&node).expect("it has been served");
        assert_eq!((entry.envelope, entry.total, entry.bytes), (envelope, 5, 5));
        let mut copied = [0u8; 3];
        // SAFETY: bytes 1 to 3 of five.
        unsafe { carrier.copy(&node, 1, copied.as_mut_ptr(), 3) };
        assert_eq!(&copied, b"bcd");
        carrier.advance(5);
        assert!(carrier.peek(&node).is_none());
        // A kept one gives its memory away, and is still stepped over whole.
        let mut carrier = served();
        assert_eq!(carrier.keep(5), b"abcde");
        assert_eq!(carrier.peek(&node).map(|entry| entry.bytes), Some(5));
    }
}

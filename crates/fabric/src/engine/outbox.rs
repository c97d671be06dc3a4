//! Sends that have not left yet: held until an event logger has the deliveries before them, waiting for room, or
//! deferred by a wave of groups (Gao 2007, §4.3).

use super::pace::Pace;
use crate::clock::ticks;
use crate::completion::Completion;
use crate::log::{HeldMark, Progress};
use crate::message::{Envelope, Message, Pieces};
use crate::node::Node;
use resurgo_protocol::group::Buffer;
use resurgo_wire::counters::Cost;
use resurgo_wire::node_memory::control;
use std::collections::VecDeque;

/// A send without room yet (only without retention), or a deferred one.
pub struct Waiting {
    pub destination: usize,
    envelope: Envelope,
    iov: Box<[libc::iovec]>,
    /// The bytes behind `iov` when the caller has its memory back.
    copy: Box<[u8]>,
    pub total: usize,
    pub progress: Progress,
    pub completion: Option<Completion>,
    /// When it was deferred, in ticks; 0: it was not.
    pub deferred_at: u64,
    /// It is in the buffer of deferred messages: its send is complete.
    pub buffered: bool,
}

impl Waiting {
    pub fn message(&self) -> Message<'_> {
        Message {
            envelope: self.envelope,
            iov: &self.iov,
            total: self.total,
            piggyback: &[],
        }
    }

    /// The caller takes its memory back.
    fn keep_copy(&mut self) {
        let mut copy = vec![0u8; self.total].into_boxed_slice();
        Pieces::new(&self.iov).copy_next(&mut copy);
        self.iov = Box::new([libc::iovec {
            iov_base: copy.as_mut_ptr().cast(),
            iov_len: self.total,
        }]);
        self.copy = copy;
    }
}

/// A frame with a held mark, and since when.
struct Held {
    destination: u32,
    mark: HeldMark,
    since: u64,
}

#[derive(Default)]
pub struct Outbox {
    held: VecDeque<Held>,
    /// The number of held frames so far.
    held_so_far: u64,
    pub waiting: VecDeque<Waiting>,
    /// Room for small deferred messages.
    buffer: Buffer,
}

impl Outbox {
    /// A message is in the log of `destination`, except for its mark.
    pub fn hold(&mut self, node: &Node, destination: usize, mark: HeldMark) {
        self.held.push_back(Held {
            destination: destination as u32,
            mark,
            since: ticks(),
        });
        self.held_so_far += 1;
        if self.held.len() == 1 {
            self.show_held(node);
        }
    }

    #[inline]
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Releases the oldest held send; returns the receiver, which must be told.
    pub fn release(&mut self, node: &Node, pace: &Pace) -> usize {
        let held = self.held.pop_front();
        let held = held.expect("the protocol and the queue hold the same sends");
        held.mark.publish();
        count_held(node, pace.ns_since(held.since));
        held.destination as usize
    }

    /// For the agent, which makes a computing rank release them.
    pub fn show_held(&self, node: &Node) {
        let held = self.held.len() as u64;
        node.set(control::HELD, if held == 0 { 0 } else { 1 + self.held_so_far - held });
    }

    /// An earlier send to the same rank has not left.
    #[inline]
    pub fn is_before(&self, destination: usize) -> bool {
        !self.waiting.is_empty() && self.waiting.iter().any(|send| send.destination == destination)
    }

    /// Queues a send whose bytes stay where they are; `inject`: copies them, because the caller takes its memory back.
    /// Injected messages are small.
    #[cold]
    pub fn queue(
        &mut self,
        destination: usize,
        message: Message,
        progress: Progress,
        completion: Option<Completion>,
        inject: bool,
    ) {
        let mut send = Waiting {
            destination,
            envelope: message.envelope,
            iov: message.iov.into(),
            copy: Box::default(),
            total: message.total,
            progress,
            completion,
            deferred_at: 0,
            buffered: false,
        };
        if inject {
            send.keep_copy();
        }
        self.waiting.push_back(send);
    }

    /// A message may not leave now, in a wave of groups. A small one goes into the buffer, and its send is complete:
    /// returns its completion. A large one stays with the program. Err: it can do neither.
    pub fn defer(
        &mut self,
        node: &Node,
        destination: usize,
        message: Message,
        completion: Option<Completion>,
        inject: bool,
    ) -> Result<Option<Completion>, ()> {
        let buffered = self.buffer.takes(message.total);
        if inject && !buffered {
            return Err(());
        }
        let (now, later) = match buffered {
            true => (completion, None),
            false => (None, completion),
        };
        if buffered {
            self.buffer.add(message.total);
        }
        self.queue(destination, message, Progress::default(), later, buffered);
        if let Some(send) = self.waiting.back_mut() {
            send.buffered = buffered;
            send.deferred_at = ticks();
        }
        self.show_buffer(node);
        Ok(now)
    }

    /// A deferred message has left.
    #[cold]
    pub fn has_left(&mut self, node: &Node, pace: &Pace, send: &Waiting) {
        if send.buffered {
            self.buffer.remove(send.total);
            self.show_buffer(node);
        }
        count_held(node, pace.ns_since(send.deferred_at));
    }

    pub fn show_buffer(&self, node: &Node) {
        node.set(control::BUFFERED, self.buffer.messages() as u64);
    }

    pub fn has_buffered(&self) -> bool {
        self.buffer.messages() > 0
    }

    /// Drops messages for ranks that take no more. False: no completed send is left.
    pub fn keep_for(&mut self, node: &Node, takes: impl Fn(usize) -> bool) -> bool {
        self.waiting.retain(|send| !send.buffered || takes(send.destination));
        let buffered = self.waiting.iter().any(|send| send.buffered);
        if !buffered {
            self.buffer = Buffer::default();
            self.show_buffer(node);
        }
        buffered
    }

    /// No rank rings when one of these may leave.
    pub fn has_deferred(&self) -> bool {
        self.has_buffered() || self.waiting.iter().any(|send| send.deferred_at > 0)
    }

    /// The endpoint closes: sends that wait for room need copies, because the program may reuse their memory.
    pub fn keep_copies(&mut self) {
        for send in self.waiting.iter_mut().filter(|send| send.copy.len() < send.total) {
            send.keep_copy();
            send.completion = None;
        }
    }
}

fn count_held(node: &Node, ns: u64) {
    node.add(Cost::HeldSends, 1);
    node.add(Cost::HeldNs, ns);
    node.most(Cost::MostHeldNs, ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Kind;
    use crate::node::tests::pair;
    use std::sync::atomic::Ordering;

    fn with_message(bytes: &[u8], each: impl FnOnce(Message)) {
        let iov = [libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        let envelope = Envelope {
            kind: Kind::Tagged,
            flags: 0,
            tag: 1,
            data: 0,
        };
        each(Message {
            envelope,
            iov: &iov,
            total: bytes.len(),
            piggyback: &[],
        });
    }

    fn bytes_of(send: &Waiting) -> Vec<u8> {
        let mut bytes = vec![0; send.total];
        Pieces::new(send.message().iov).copy_next(&mut bytes);
        bytes
    }

    #[test]
    fn what_the_caller_takes_back_is_copied() {
        let mut outbox = Outbox::default();
        let mut bytes = *b"abc";
        with_message(&bytes, |message| {
            outbox.queue(1, message, Progress::default(), None, true)
        });
        with_message(&bytes, |message| {
            outbox.queue(1, message, Progress::default(), None, false)
        });
        assert!(outbox.is_before(1) && !outbox.is_before(0));
        bytes[0] = b'x';
        assert_eq!(bytes_of(&outbox.waiting[0]), b"abc");
        assert_eq!(bytes_of(&outbox.waiting[1]), b"xbc");
        outbox.keep_copies();
        assert_ne!(outbox.waiting[1].iov[0].iov_base, bytes.as_mut_ptr().cast());
        assert_eq!(bytes_of(&outbox.waiting[1]), b"xbc");
    }

    #[test]
    fn small_messages_are_over_when_they_are_deferred_and_counted_until_they_have_left() {
        let (node, _other) = pair(1, false);
        let buffered = || node.control(0, control::BUFFERED).load(Ordering::Relaxed);
        let mut outbox = Outbox::default();
        with_message(b"abc", |message| {
            assert!(outbox.defer(&node, 1, message, None, true).is_ok())
        });
        let large = vec![0u8; 1 << 20];
        with_message(&large, |message| {
            assert!(outbox.defer(&node, 1, message, None, true).is_err())
        });
        with_message(&large, |message| {
            assert!(outbox.defer(&node, 1, message, None, false).is_ok())
        });
        assert!(outbox.has_deferred() && outbox.waiting.len() == 2);
        assert_eq!(buffered(), 1);
        assert!(outbox.keep_for(&node, |_| true));
        let send = outbox.waiting.pop_front().expect("the small one is first");
        outbox.has_left(&node, &Pace::new(0), &send);
        assert_eq!(buffered(), 0);
        with_message(b"abc", |message| {
            assert!(outbox.defer(&node, 1, message, None, true).is_ok())
        });
        assert!(!outbox.keep_for(&node, |_| false));
        assert!(!outbox.has_buffered() && outbox.waiting.len() == 1);
    }
}

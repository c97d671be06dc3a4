//! The MPI library's requests and their results: receives, remote reads and writes, and finished operations.

use super::endpoints::Endpoints;
use crate::completion::Completion;
use crate::matching::{Match, Matching, Receive, Unexpected, flags};
use crate::message::{Envelope, Kind};
use crate::ofi::*;
use crate::rma::Rma;
use std::collections::VecDeque;
use std::ffi::c_void;

pub struct Calls {
    pub matching: Matching,
    pub completions: VecDeque<Completion>,
    /// A multi-receive buffer with less room goes back to the MPI library.
    pub min_multi_recv: usize,
    pub rma: Rma,
    /// The next multi-receive buffer is refused: the MPI library gets an error.
    pub refuses_buffer: bool,
    /// Open endpoints; all are the same to the engine.
    pub open: u32,
    /// A domain is open.
    pub in_use: bool,
    pub(super) endpoints: Endpoints,
}

impl Calls {
    pub fn new(size: usize) -> Calls {
        Calls {
            matching: Matching::default(),
            completions: VecDeque::with_capacity(1024),
            min_multi_recv: 0,
            rma: Rma::default(),
            refuses_buffer: false,
            open: 0,
            in_use: false,
            endpoints: Endpoints::new(size),
        }
    }

    /// The receive for a message that arrives.
    #[inline]
    pub fn arrive(&mut self, source: u32, envelope: Envelope, total: usize) -> Match {
        self.matching.arrive(source, envelope, total, self.min_multi_recv)
    }

    /// Posts a receive, which takes a waiting message at once.
    pub fn receive(&mut self, mut receive: Receive, tagged: bool) {
        while let Some(message) = self.matching.take(&receive, tagged) {
            if receive.multi.is_none() {
                return self.give(message, receive);
            }
            // A multi-receive buffer takes all waiting messages while there is room.
            let part = receive.part(message.total, self.min_multi_recv);
            let last = part.last_of_multi;
            self.give(message, part);
            if last {
                return;
            }
        }
        self.matching.post(receive, tagged);
    }

    /// Hands an early message to its receive, now or when its last piece is there.
    pub fn give(&mut self, mut message: Box<Unexpected>, receive: Receive) {
        if !message.complete() {
            message.taken_by = Some(receive);
            // Its channel still points to it and gives it on when it is complete.
            Box::leak(message);
            return;
        }
        let total = message.total;
        receive.room.fill(0, total, |from, to, bytes| {
            // SAFETY: `fill` keeps to the receive's memory, `from + bytes` to the message's.
            unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr().add(from), to, bytes) };
        });
        self.received(&receive, message.envelope, total, message.source);
    }

    /// A receive has its message.
    pub fn received(&mut self, receive: &Receive, envelope: Envelope, total: usize, source: u32) {
        let room = receive.room.bytes();
        let overflow = total.saturating_sub(room);
        if !receive.completes && overflow == 0 {
            return;
        }
        self.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: receive.context,
                flags: flags(envelope) | if receive.last_of_multi { FI_MULTI_RECV } else { 0 },
                len: total.min(room),
                buf: receive.room.start(),
                data: envelope.data,
                tag: if envelope.kind == Kind::Tagged { envelope.tag } else { 0 },
            },
            error: if overflow > 0 { FI_ETRUNC } else { 0 },
            overflow,
            source,
        });
    }

    /// Cancels a receive; it completes with FI_ECANCELED.
    pub fn cancel(&mut self, context: *mut c_void) -> isize {
        let Some((receive, tagged)) = self.matching.cancel(context) else {
            return -FI_ENOENT;
        };
        self.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: receive.context,
                flags: FI_RECV | if tagged { FI_TAGGED } else { FI_MSG },
                len: 0,
                buf: receive.room.start(),
                data: 0,
                tag: receive.tag,
            },
            error: FI_ECANCELED,
            overflow: 0,
            source: 0,
        });
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Room;

    const ENVELOPE: Envelope = Envelope {
        kind: Kind::Tagged,
        flags: 0,
        tag: 7,
        data: 0,
    };

    fn receive(room: &mut [u8]) -> Receive {
        let piece = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        Receive {
            context: room.as_mut_ptr().cast(),
            room: Room::of(&[piece]),
            source: None,
            tag: 7,
            ignore: 0,
            multi: None,
            last_of_multi: false,
            completes: true,
        }
    }

    fn message(bytes: &[u8], arrived: usize) -> Box<Unexpected> {
        Box::new(Unexpected {
            source: 3,
            envelope: ENVELOPE,
            total: bytes.len(),
            arrived,
            bytes: bytes[..arrived].to_vec(),
            taken_by: None,
            claimed_by: std::ptr::null_mut(),
        })
    }

    #[test]
    fn a_message_longer_than_its_receive_completes_with_an_error() {
        let mut calls = Calls::new(4);
        calls.matching.keep(message(b"abcdef", 6));
        let mut room = [0u8; 4];
        calls.receive(receive(&mut room), true);
        let done = calls.completions.pop_front().expect("the message was there");
        assert_eq!(
            (done.error, done.overflow, done.entry.len, done.source),
            (FI_ETRUNC, 2, 4, 3)
        );
        assert_eq!(&room, b"abcd");
    }

    #[test]
    fn a_receive_of_half_a_message_completes_with_the_other_half() {
        let mut calls = Calls::new(4);
        let kept = message(b"abcdef", 3);
        let place: *const Unexpected = &*kept;
        calls.matching.keep(kept);
        let mut room = [0u8; 6];
        calls.receive(receive(&mut room), true);
        assert!(calls.completions.is_empty());
        // SAFETY: leaked by `give`, and no one else has it.
        let mut kept = unsafe { Box::from_raw(place.cast_mut()) };
        let taken_by = kept.taken_by.take().expect("a receive has taken it");
        kept.bytes.extend_from_slice(b"def");
        kept.arrived = 6;
        calls.give(kept, taken_by);
        assert_eq!(
            calls.completions.pop_front().map(|done| (done.error, done.entry.len)),
            Some((0, 6))
        );
        assert_eq!(&room, b"abcdef");
    }

    #[test]
    fn a_receive_is_taken_back_once() {
        let mut calls = Calls::new(1);
        let mut room = [0u8; 1];
        let context = room.as_mut_ptr().cast();
        calls.receive(receive(&mut room), true);
        assert_eq!((calls.cancel(context), calls.cancel(context)), (0, -FI_ENOENT));
        assert_eq!(calls.completions.pop_front().map(|done| done.error), Some(FI_ECANCELED));
        assert!(matches!(calls.arrive(0, ENVELOPE, 1), Match::None));
    }
}

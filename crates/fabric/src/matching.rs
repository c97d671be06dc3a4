//! Tag matching: receives that wait for messages and messages that wait for receives.
//!
//! Both queues are searched in order, as MPI demands; a receive matches the oldest message that fits and the other way
//! round (MPI 5.0, §3.5).

use crate::message::{Envelope, HAS_DATA, Kind};
use crate::ofi::*;
use std::collections::VecDeque;
use std::ffi::c_void;

/// Memory of a receive: nearly always one piece.
pub enum Room {
    One(libc::iovec),
    Many(Box<[libc::iovec]>),
}

impl Room {
    pub fn of(iov: &[libc::iovec]) -> Room {
        match iov {
            [] => Room::One(libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }),
            [one] => Room::One(*one),
            many => Room::Many(many.into()),
        }
    }

    fn pieces(&self) -> &[libc::iovec] {
        match self {
            Room::One(one) => std::slice::from_ref(one),
            Room::Many(many) => many,
        }
    }

    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.iov_len).sum()
    }

    /// Where the first byte goes.
    pub fn start(&self) -> *mut c_void {
        self.pieces()[0].iov_base
    }

    /// Calls `copy(offset in the message, to, bytes)` for the part of `from..from + bytes` that there is room for.
    #[inline]
    pub fn fill(&self, from: usize, bytes: usize, mut copy: impl FnMut(usize, *mut u8, usize)) {
        let mut start = 0;
        for piece in self.pieces() {
            let end = start + piece.iov_len;
            let (low, high) = (from.max(start), (from + bytes).min(end));
            if low < high {
                // SAFETY: stays inside the piece the receive gave.
                copy(
                    low - from,
                    unsafe { piece.iov_base.cast::<u8>().add(low - start) },
                    high - low,
                );
            }
            start = end;
        }
    }
}

/// A posted receive.
pub struct Receive {
    pub context: *mut c_void,
    pub room: Room,
    /// Rank that it accepts messages from; None: any.
    pub source: Option<u32>,
    pub tag: u64,
    pub ignore: u64,
    /// A multi-receive buffer, which takes one message behind the other. `Some(next free byte)`.
    pub multi: Option<usize>,
    /// The last part of a multi-receive buffer: its completion gives the buffer back.
    pub last_of_multi: bool,
    pub completes: bool,
}

impl Receive {
    /// The next part of a multi-receive buffer, for a message of `total` bytes; the last when less than `min_multi`
    /// bytes are left behind it.
    pub fn part(&mut self, total: usize, min_multi: usize) -> Receive {
        let used = self.multi.expect("only a multi-receive buffer has parts");
        let room = self.room.bytes();
        let bytes = total.min(room - used);
        self.multi = Some(used + bytes);
        let place = libc::iovec {
            // SAFETY: `used` is at most the buffer's length.
            iov_base: unsafe { self.room.start().cast::<u8>().add(used).cast() },
            iov_len: bytes,
        };
        Receive {
            context: self.context,
            room: Room::One(place),
            source: self.source,
            tag: 0,
            ignore: 0,
            multi: None,
            last_of_multi: room - used - bytes < min_multi,
            completes: true,
        }
    }

    fn accepts(&self, source: u32, tag: u64) -> bool {
        self.source.is_none_or(|wanted| wanted == source) && (self.tag ^ tag) & !self.ignore == 0
    }
}

/// A message that came before its receive.
pub struct Unexpected {
    pub source: u32,
    pub envelope: Envelope,
    pub total: usize,
    pub arrived: usize,
    pub bytes: Vec<u8>,
    /// The receive that gets it when all of it is there.
    pub taken_by: Option<Receive>,
    /// Context of the probe that claimed it.
    pub claimed_by: *mut c_void,
}

impl Unexpected {
    pub fn complete(&self) -> bool {
        self.arrived == self.total
    }

    pub fn flags(&self) -> u64 {
        flags(self.envelope)
    }
}

/// Completion flags of a received message.
pub fn flags(envelope: Envelope) -> u64 {
    let kind = if envelope.kind == Kind::Tagged {
        FI_TAGGED
    } else {
        FI_MSG
    };
    let data = if envelope.flags & HAS_DATA != 0 {
        FI_REMOTE_CQ_DATA
    } else {
        0
    };
    FI_RECV | kind | data
}

/// The queues of one endpoint.
#[derive(Default)]
pub struct Matching {
    tagged: VecDeque<Receive>,
    untagged: VecDeque<Receive>,
    unexpected_tagged: VecDeque<Box<Unexpected>>,
    unexpected_untagged: VecDeque<Box<Unexpected>>,
    claimed: VecDeque<Box<Unexpected>>,
    /// Of the last probe, if that has found nothing.
    probed: Option<u32>,
}

/// What an arriving message meets.
pub enum Match {
    /// A receive, or a part of a multi-receive buffer.
    Receive(Receive),
    None,
}

impl Matching {
    /// The receive for an arriving message. A multi-receive buffer with less room than `min_multi` is given back.
    #[inline]
    pub fn arrive(&mut self, source: u32, envelope: Envelope, total: usize, min_multi: usize) -> Match {
        let tagged = envelope.kind == Kind::Tagged;
        let queue = if tagged { &mut self.tagged } else { &mut self.untagged };
        let tag = if tagged { envelope.tag } else { 0 };
        let Some(index) = queue.iter().position(|receive| receive.accepts(source, tag)) else {
            return Match::None;
        };
        match queue[index].multi {
            None if index == 0 => Match::Receive(queue.pop_front().expect("found above")),
            None => Match::Receive(queue.remove(index).expect("found above")),
            Some(_) => {
                let part = queue[index].part(total, min_multi);
                if part.last_of_multi {
                    queue.remove(index);
                }
                Match::Receive(part)
            }
        }
    }

    /// Keeps a message until its receive comes.
    pub fn keep(&mut self, message: Box<Unexpected>) {
        match message.envelope.kind {
            Kind::Tagged => self.unexpected_tagged.push_back(message),
            _ => self.unexpected_untagged.push_back(message),
        }
    }

    /// The oldest waiting message that `receive` accepts, taken out of its queue.
    pub fn take(&mut self, receive: &Receive, tagged: bool) -> Option<Box<Unexpected>> {
        let queue = if tagged {
            &mut self.unexpected_tagged
        } else {
            &mut self.unexpected_untagged
        };
        let index = queue
            .iter()
            .position(|message| receive.accepts(message.source, if tagged { message.envelope.tag } else { 0 }))?;
        queue.remove(index)
    }

    /// Looks for a message without taking it, for a probe.
    pub fn peek(&mut self, receive: &Receive) -> Option<&Unexpected> {
        let mut waiting = self.unexpected_tagged.iter();
        let found = waiting.find(|message| receive.accepts(message.source, message.envelope.tag));
        self.probed = receive.source.filter(|_| found.is_none());
        found.map(|message| &**message)
    }

    /// Sets a message aside for the receive that will name `context`.
    pub fn claim(&mut self, mut message: Box<Unexpected>, context: *mut c_void) {
        message.claimed_by = context;
        self.claimed.push_back(message);
    }

    /// The message that a probe with `context` had claimed.
    pub fn claimed(&mut self, context: *mut c_void) -> Option<Box<Unexpected>> {
        let index = self.claimed.iter().position(|message| message.claimed_by == context)?;
        self.claimed.remove(index)
    }

    pub fn post(&mut self, receive: Receive, tagged: bool) {
        if tagged {
            self.tagged.push_back(receive)
        } else {
            self.untagged.push_back(receive)
        }
    }

    /// The rank that the oldest posted receive with a tag is from, or else the last probe that has found nothing; none:
    /// from any, or there is neither.
    #[inline]
    pub fn awaits(&self) -> Option<u32> {
        match self.tagged.front() {
            Some(receive) => receive.source,
            None => self.probed,
        }
    }

    /// The context of a multi-receive buffer.
    pub fn multi(&self) -> Option<*mut c_void> {
        let buffer = self.untagged.iter().find(|receive| receive.multi.is_some())?;
        Some(buffer.context)
    }

    /// Takes out posted receives for messages with tags.
    pub fn take_out(&mut self, mut which: impl FnMut(&Receive) -> bool) -> Vec<Receive> {
        let (taken, rest): (VecDeque<_>, _) = std::mem::take(&mut self.tagged)
            .into_iter()
            .partition(|receive| which(receive));
        self.tagged = rest;
        taken.into()
    }

    /// Drops complete messages with tags that no receive will take.
    pub fn drop_unexpected(&mut self, mut which: impl FnMut(&Unexpected) -> bool) {
        self.unexpected_tagged
            .retain(|message| !message.complete() || !which(message));
    }

    /// Drops the rest of a message whose sender has failed. False: a receive has taken it.
    pub fn forget(&mut self, half: *const Unexpected) -> bool {
        let mut found = false;
        for queue in [
            &mut self.unexpected_tagged,
            &mut self.unexpected_untagged,
            &mut self.claimed,
        ] {
            queue.retain(|message| !std::ptr::eq(&**message, half) || std::mem::replace(&mut found, true));
        }
        found
    }

    /// Takes back the receive with this context.
    pub fn cancel(&mut self, context: *mut c_void) -> Option<(Receive, bool)> {
        for (queue, tagged) in [(&mut self.tagged, true), (&mut self.untagged, false)] {
            if let Some(index) = queue.iter().position(|receive| receive.context == context) {
                return queue.remove(index).map(|receive| (receive, tagged));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(context: usize, source: Option<u32>, tag: u64, ignore: u64) -> Receive {
        Receive {
            context: context as *mut c_void,
            room: Room::of(&[]),
            source,
            tag,
            ignore,
            multi: None,
            last_of_multi: false,
            completes: true,
        }
    }

    fn tagged(tag: u64) -> Envelope {
        Envelope {
            kind: Kind::Tagged,
            flags: 0,
            tag,
            data: 0,
        }
    }

    fn met(matching: &mut Matching, source: u32, tag: u64) -> Option<usize> {
        match matching.arrive(source, tagged(tag), 0, 0) {
            Match::Receive(receive) => Some(receive.context as usize),
            Match::None => None,
        }
    }

    #[test]
    fn the_oldest_receive_that_fits_gets_the_message() {
        let mut matching = Matching::default();
        matching.post(receive(1, Some(3), 5, 0), true);
        matching.post(receive(2, None, 5, 0), true);
        matching.post(receive(3, None, 0, u64::MAX), true);
        assert_eq!(met(&mut matching, 4, 5), Some(2));
        assert_eq!(met(&mut matching, 3, 5), Some(1));
        assert_eq!(met(&mut matching, 3, 6), Some(3));
        assert_eq!(met(&mut matching, 3, 6), None);
    }

    #[test]
    fn the_oldest_message_that_fits_goes_to_the_receive() {
        let mut matching = Matching::default();
        for (source, tag) in [(1, 10), (2, 10), (1, 11), (1, 10)] {
            matching.keep(Box::new(Unexpected {
                source,
                envelope: tagged(tag),
                total: 0,
                arrived: 0,
                bytes: Vec::new(),
                taken_by: None,
                claimed_by: std::ptr::null_mut(),
            }));
        }
        let probe = receive(0, None, 11, 0);
        assert_eq!(matching.peek(&probe).map(|message| message.source), Some(1));
        let take = |matching: &mut Matching, receive: Receive| {
            matching
                .take(&receive, true)
                .map(|message| (message.source, message.envelope.tag))
        };
        assert_eq!(take(&mut matching, receive(0, Some(2), 0, u64::MAX)), Some((2, 10)));
        assert_eq!(take(&mut matching, receive(0, None, 10, 0)), Some((1, 10)));
        assert_eq!(take(&mut matching, receive(0, None, 0, u64::MAX)), Some((1, 11)));
        assert_eq!(take(&mut matching, receive(0, Some(2), 0, u64::MAX)), None);
    }

    #[test]
    fn a_multi_receive_buffer_is_used_up_part_by_part() {
        let mut memory = [0u8; 100];
        let mut buffer = receive(7, None, 0, u64::MAX);
        buffer.room = Room::of(&[libc::iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: 100,
        }]);
        buffer.multi = Some(0);
        let mut matching = Matching::default();
        matching.post(buffer, false);
        let envelope = Envelope {
            kind: Kind::Untagged,
            ..tagged(0)
        };
        let mut next = |bytes| match matching.arrive(0, envelope, bytes, 30) {
            Match::Receive(part) => Some((
                part.room.start() as usize - memory.as_ptr() as usize,
                part.room.bytes(),
                part.last_of_multi,
            )),
            Match::None => None,
        };
        assert_eq!(next(40), Some((0, 40, false)));
        assert_eq!(next(30), Some((40, 30, false)));
        assert_eq!(next(10), Some((70, 10, true)));
        assert_eq!(next(1), None);
    }

    #[test]
    fn a_message_fills_scattered_room_in_order() {
        let (mut first, mut second) = ([0u8; 3], [0u8; 5]);
        let piece = |part: &mut [u8]| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        let room = Room::of(&[piece(&mut first), piece(&mut second)]);
        let message = *b"abcdefghij";
        for (from, bytes) in [(0, 2), (2, 4), (6, 4)] {
            room.fill(from, bytes, |offset, to, run| {
                // SAFETY: inside the message and the room.
                unsafe { std::ptr::copy_nonoverlapping(message.as_ptr().add(from + offset), to, run) };
            });
        }
        assert_eq!((&first, &second), (b"abc", b"defgh"));
    }
}

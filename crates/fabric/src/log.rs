//! Channel logs: the sender appends, the receiver reads, message by message.
//!
//! A log is a chain of segments in the sender's arena, of entries as in [`resurgo_wire::entry`].
//!
//! A message is one entry of its kind and, when it does not fit, More entries right behind it. Ahead entries before it
//! hold the beginning of a long piggyback. If the sender was killed before its message was there, they belong to no
//! message. The mark is stored last: an entry whose sender was killed before that does not exist. The place of the next
//! mark is cleared before an entry is published: old bytes of a recycled segment never look like an entry.

mod reader;
mod retention;
mod writer;

use crate::arena::Arena;
use crate::direct;
use crate::message::{Envelope, Kind, Message, Pieces};
use crate::node::Node;
use resurgo_wire::entry::{self, ALIGN, HEADER, Mark, PAYLOAD_END, padded};
use resurgo_wire::node_memory::{self as nm, SEGMENT};
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use reader::Reader;
pub use retention::{Outstanding, Retention};
pub use writer::{HeldMark, Progress, Writer};

/// Most payload bytes in one entry. A long message is published in pieces: the receiver copies one out while the
/// sender copies the next one in. Without retention the log stays in the outer cache, and pieces are larger.
const PIECE: usize = 12 << 10;
const WINDOW_PIECE: usize = 24 << 10;
/// So much of a message goes to another node at once.
const TOGETHER: usize = SEGMENT;
/// Longest stretch of the log that is prefetched.
const PREFETCH: usize = 8 << 10;
/// Long payloads are copied in steps of half of this, while memory so far ahead of the copy is fetched.
const AHEAD: usize = 4 << 10;
/// Most bytes of a segment that carry no payload when it is full of pieces.
const LOST: usize = 2 * ALIGN + (SEGMENT / PIECE + 2) * (HEADER + ALIGN);
/// So many bytes of a message are fetched before the copy.
const FETCH: usize = 1 << 10;
/// Bytes prefetched in one round of waiting.
const WARM: usize = 4 * ALIGN;

/// Most bytes of a piggyback in the message's own entry.
const INLINE: usize = 1024;

/// An entry for the reader; [`Reader::copy_payload`] reads its payload.
#[derive(Clone, Copy)]
pub struct Entry {
    pub envelope: Envelope,
    /// Bytes of the whole message, or offset of this piece (More).
    pub total: u64,
    pub bytes: usize,
    /// [`Arena::mark`] of the sender.
    pub mark: u16,
    /// Bytes of the piggyback in this entry, and whether Ahead entries hold more.
    piggyback: usize,
    began_ahead: bool,
}

impl Entry {
    /// A message of one entry that has not come through a log.
    pub fn whole(envelope: Envelope, bytes: usize) -> Entry {
        Entry {
            envelope,
            total: bytes as u64,
            bytes,
            mark: 0,
            piggyback: 0,
            began_ahead: false,
        }
    }

    /// See [`crate::record::stamp`].
    pub fn stamp(&self) -> u64 {
        let Envelope { kind, flags, tag, data } = self.envelope;
        crate::record::stamp([kind as u64 | (flags as u64) << 8, tag, data, self.total])
    }
}

/// # Safety
/// `place` is the 8-aligned start of an entry in a mapped segment.
#[inline]
pub(crate) unsafe fn atomic<'a>(place: *const u8) -> &'a AtomicU64 {
    // SAFETY: aligned, mapped for the life of the process, accessed only as an atomic.
    unsafe { &*place.cast::<AtomicU64>() }
}

/// Segments that a message of `bytes` may need when its channel has none.
pub fn segments_for(bytes: usize) -> usize {
    bytes / (SEGMENT - LOST) + 2
}

#[cfg(test)]
mod tests;

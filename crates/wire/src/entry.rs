//! The content of a segment of a message log: entries, one behind the other. Each starts at a multiple of [`ALIGN`]
//! bytes:
//!
//! ```text
//! 0   u64  mark: 0 nothing here (yet); else kind (low byte), flags (second byte), payload bytes here (high half).
//!          Third and fourth byte: the sender's wave (chandy-lamport); or, where determinants are piggybacked, bytes of
//!          the piggyback here (15 bits) and whether more of it came before (1 bit)
//! 8   u64  tag
//! 16  u64  first piece: bytes of the whole message; More: offset of this piece in it; Jump: reference of the next
//!          segment; Ahead: offset of these bytes in the piggyback
//! 24  u64  remote data
//! 32  ...  first piece: piggyback ([`crate::piggyback`]), up to the next multiple of 8; then payload
//! ```
//!
//! The first [`ALIGN`] bytes of a segment say how many messages of the channel begin before it. Its last ones are left
//! to a Jump.

use crate::node_memory::SEGMENT;

/// Entries start at multiples of this, and so does what follows the head of a segment.
pub const ALIGN: usize = 64;
/// Bytes of an entry before its piggyback and payload.
pub const HEADER: usize = 32;
/// Offsets of the fields in an entry; the mark is at 0.
pub const TAG: usize = 8;
pub const TOTAL: usize = 16;
pub const DATA: usize = 24;
/// No payload reaches beyond this offset in a segment.
pub const PAYLOAD_END: usize = SEGMENT - ALIGN;

/// What an entry is to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// First piece of a tagged message.
    Tagged = 1,
    /// First piece of an untagged message.
    Untagged = 2,
    /// A further piece of the message before it.
    More = 3,
    /// The log goes on in another segment.
    Jump = 4,
    /// Asks for `data` bytes at address `tag`, key in the payload (fi_read).
    ReadRequest = 5,
    /// Answers a read request; `tag` is the requester's operation.
    ReadAnswer = 6,
    /// Bytes for address `tag`, key in the remote data (fi_write).
    Write = 7,
    /// Says that a write is done; `tag` is the requester's operation.
    WriteDone = 8,
    /// The beginning of the piggyback of the message that follows.
    Ahead = 9,
    /// The messages behind it are for endpoint `tag` of the receiver.
    Endpoint = 10,
}

/// All kinds, from number 1 on.
pub const KINDS: [Kind; 10] = [
    Kind::Tagged,
    Kind::Untagged,
    Kind::More,
    Kind::Jump,
    Kind::ReadRequest,
    Kind::ReadAnswer,
    Kind::Write,
    Kind::WriteDone,
    Kind::Ahead,
    Kind::Endpoint,
];

/// The first word of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub u64);

impl Mark {
    const PIGGYBACK: u32 = 16;
    const BEGAN_AHEAD: u64 = 1 << 31;

    /// `wave`: the sender's, 0 where determinants are piggybacked.
    #[inline]
    pub const fn new(kind: Kind, flags: u8, wave: u16, bytes: usize) -> Self {
        Self(kind as u64 | (flags as u64) << 8 | (wave as u64) << 16 | (bytes as u64) << 32)
    }

    /// The same entry with so many bytes of a piggyback before its payload. `began_ahead`: more of the piggyback came
    /// before.
    #[inline]
    pub const fn with_piggyback(self, bytes: usize, began_ahead: bool) -> Self {
        let began_ahead = if began_ahead { Self::BEGAN_AHEAD } else { 0 };
        Self(self.0 | (bytes as u64) << Self::PIGGYBACK | began_ahead)
    }

    /// For an entry: the mark is not 0.
    #[inline]
    pub const fn kind(self) -> Kind {
        KINDS[(self.0 & 0xff) as usize - 1]
    }

    /// Whether it is a Jump; the mark may also be 0.
    #[inline]
    pub const fn is_jump(self) -> bool {
        self.0 & 0xff == Kind::Jump as u64
    }

    #[inline]
    pub const fn flags(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Payload bytes in this entry.
    #[inline]
    pub const fn bytes(self) -> usize {
        (self.0 >> 32) as usize
    }

    #[inline]
    pub const fn wave(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Bytes of the piggyback in this entry, and whether more of it came before. Only where determinants are
    /// piggybacked.
    #[inline]
    pub const fn piggyback(self) -> (usize, bool) {
        let bytes = (self.0 >> Self::PIGGYBACK) as usize & 0x7fff;
        (bytes, self.0 & Self::BEGAN_AHEAD != 0)
    }
}

/// Room that so many bytes of a piggyback take before the payload.
#[inline]
pub const fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// Where the entry behind one at `place` starts, if that has so many bytes behind its header.
#[inline]
pub const fn next(place: usize, bytes: usize) -> usize {
    (place + HEADER + bytes + ALIGN - 1) & !(ALIGN - 1)
}

/// One word for a place in a log: a segment's reference and an offset in it, a multiple of [`ALIGN`]. 0: before the
/// first segment.
pub const fn place_word(reference: u64, place: usize) -> u64 {
    reference << 10 | (place / ALIGN) as u64
}

/// The reference and the offset of a place.
pub const fn place_of(word: u64) -> (u64, usize) {
    (word >> 10, (word & 0x3ff) as usize * ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_it_was_made_of() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number + 1);
            let mark = Mark::new(kind, 3, 0xabcd, SEGMENT);
            assert_eq!((mark.kind(), mark.flags(), mark.wave()), (kind, 3, 0xabcd));
            assert_eq!((mark.bytes(), mark.is_jump()), (SEGMENT, kind == Kind::Jump));
            for began_ahead in [false, true] {
                let mark = Mark::new(kind, 3, 0, 7).with_piggyback(0x7fff, began_ahead);
                assert_eq!((mark.bytes(), mark.piggyback()), (7, (0x7fff, began_ahead)));
            }
        }
    }

    #[test]
    fn entries_do_not_touch() {
        for bytes in 0..300 {
            let place = next(ALIGN, bytes);
            assert!(place >= ALIGN + HEADER + bytes && place - bytes < 2 * ALIGN + HEADER);
            assert!(place.is_multiple_of(ALIGN) && padded(bytes).is_multiple_of(8) && padded(bytes) - bytes < 8);
        }
    }
}

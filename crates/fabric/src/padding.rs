//! Bytes of MPI's internal messages that nobody sets.
//!
//! MPICH builds the headers of its active messages (one-sided communication, part of its control traffic) in structures
//! on the stack and sends them whole. Padding between their fields, and fields that a message does not use, hold
//! whatever lay on the stack. They differ between the lives of a rank and mean nothing. The comparison of a send with a
//! former life's leaves them out, and compares everything else of the message.
//!
//! An active message is a 24-byte header (handler, type and size of the handler's structure in bytes 0, 1 and 2), the
//! structure, and data. The table is for `src/mpid/ch4/src/ch4_types.h` of MPICH 5.0; a message whose structure has
//! another size is compared whole. The structures of 64 bytes and more may be followed by the description of a
//! datatype, which counts to their size.

use crate::message::{Kind, Message, Pieces};

/// Bytes of the header of an active message.
pub const HEADER: usize = 24;

/// Offsets in a message, behind the header, that the comparison leaves out.
#[derive(Clone, Copy)]
pub struct Unset {
    structure: &'static [(usize, usize)],
    /// Where a message that offers its data for reading describes them: one field is never used.
    offer: (usize, usize),
}

/// Nothing is left out.
pub const NONE: Unset = Unset {
    structure: &[],
    offer: (0, 0),
};

impl Unset {
    /// The same as offsets in the message, each from and up to.
    pub fn ranges(&self) -> [(u16, u16); 4] {
        let mut ranges = [(0, 0); 4];
        for (range, &(from, to)) in ranges.iter_mut().zip(self.structure.iter().chain([&self.offer])) {
            *range = ((HEADER + from) as u16, (HEADER + to) as u16);
        }
        ranges
    }

    /// True for an offset that nobody has set.
    pub fn contains(&self, at: usize) -> bool {
        let inside = |&(from, to): &(usize, usize)| (HEADER + from..HEADER + to).contains(&at);
        self.structure.iter().any(inside) || inside(&self.offer)
    }
}

/// Handlers (first, last), size of their structure, and its unset ranges.
type Handlers = (u8, u8, u8, &'static [(usize, usize)]);
const TABLE: [Handlers; 12] = [
    // Answer to a long send: padding at the end.
    (1, 1, 24, &[(20, 24)]),
    // Start of a partitioned send.
    (4, 4, 32, &[(12, 16)]),
    // Put and get: behind the source's rank and the size of a flattened datatype.
    (7, 7, 72, &[(4, 8), (60, 64)]),
    (9, 9, 72, &[(4, 8), (60, 64)]),
    (12, 12, 64, &[(4, 8), (60, 64)]),
    // Answers to datatypes sent ahead.
    (11, 11, 24, &[(4, 8)]),
    (18, 18, 24, &[(4, 8)]),
    (23, 23, 24, &[(4, 8)]),
    // Accumulate: also behind the operation, and two fields that only others use: the result's size, a count of pieces.
    (14, 16, 72, &[(4, 8), (44, 48), (56, 68)]),
    // Get-accumulate: the size is set.
    (19, 21, 72, &[(4, 8), (44, 48), (64, 68)]),
    // Compare and swap.
    (24, 24, 40, &[(4, 8), (36, 40)]),
    // Window control: the kind of lock is set by lock requests only, and padding follows it.
    (26, 35, 16, &[(12, 16)]),
];
/// A lock request: its kind of lock counts.
const LOCK_REQUEST: u8 = 28;
/// The kind of message that offers its data for reading.
const OFFER: u8 = 4;

/// What to leave out of a message. (It looks at the message being sent: a log may have it in pieces, and the first
/// piece alone tells nothing. If the message in the log has another header, that header differs.)
pub fn of(message: &Message) -> Unset {
    if message.envelope.kind != Kind::Untagged {
        return NONE;
    }
    let mut header = [0; HEADER];
    let header = &mut header[..message.total.min(HEADER)];
    Pieces::new(message.iov).copy_next(header);
    unset(header)
}

/// The same for an untagged message that begins with `header`.
fn unset(header: &[u8]) -> Unset {
    let &[handler, kind, size, ..] = header else {
        return NONE;
    };
    if header.len() < HEADER {
        return NONE;
    }
    let offer = if kind == OFFER {
        (size as usize + 24, size as usize + 32)
    } else {
        (0, 0)
    };
    if handler == LOCK_REQUEST && size == 16 {
        return Unset {
            structure: &[(14, 16)],
            offer,
        };
    }
    TABLE
        .iter()
        .find(|&&(first, last, bytes, _)| {
            let grows = bytes >= 64;
            (first..=last).contains(&handler) && if grows { size >= bytes } else { size == bytes }
        })
        .map_or(NONE, |&(_, _, _, structure)| Unset { structure, offer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Envelope;

    fn message(handler: u8, size: u8) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        (header[0], header[2]) = (handler, size);
        header
    }

    #[test]
    fn only_padding_is_left_out() {
        // A get-accumulate: rank, padding, window, request, counts, types, operation, padding, …
        let unset = unset(&message(19, 72));
        let left_out: Vec<usize> = (0..HEADER + 72 + 8)
            .filter(|&at| unset.contains(at))
            .map(|at| at - HEADER)
            .collect();
        assert_eq!(left_out, [4, 5, 6, 7, 44, 45, 46, 47, 64, 65, 66, 67]);
    }

    #[test]
    fn ranges_are_the_same_bytes() {
        for (handler, size) in [(19, 72), (1, 24), (28, 16), (99, 8)] {
            let mut header = message(handler, size);
            for kind in [0, OFFER] {
                header[1] = kind;
                let unset = unset(&header);
                let ranges = unset.ranges();
                let in_ranges = |at| {
                    ranges
                        .iter()
                        .any(|&(from, to)| (from as usize..to as usize).contains(&at))
                };
                assert!((0..400).all(|at| unset.contains(at) == in_ranges(at)));
            }
        }
    }

    #[test]
    fn a_structure_of_another_size_is_compared_whole() {
        assert!((0..200).all(|at| !unset(&message(19, 64)).contains(at)));
        assert!((0..200).all(|at| !unset(&message(24, 48)).contains(at)));
        assert!((0..200).all(|at| !unset(&[19, 2]).contains(at)));
        assert!(unset(&message(28, 16)).contains(HEADER + 14) && !unset(&message(28, 16)).contains(HEADER + 12));
    }

    #[test]
    fn a_message_in_small_pieces_tells_as_much() {
        let mut bytes = message(31, 16).to_vec();
        bytes.resize(HEADER + 16, 1);
        let iov: Vec<libc::iovec> = bytes
            .chunks_mut(7)
            .map(|piece| libc::iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: piece.len(),
            })
            .collect();
        let message = |kind| Message {
            envelope: Envelope {
                kind,
                flags: 0,
                tag: 0,
                data: 0,
            },
            iov: &iov,
            total: HEADER + 16,
            piggyback: &[],
        };
        assert!(of(&message(Kind::Untagged)).contains(HEADER + 12));
        assert!(!of(&message(Kind::Untagged)).contains(HEADER + 11));
        assert!(!of(&message(Kind::Tagged)).contains(HEADER + 12));
    }
}

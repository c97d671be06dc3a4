//! Pieces of memory that a file is to hold.

use super::format::Record;

/// Memory to store: its pages follow one another, in the file too if they have a place there.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Piece {
    pub address: u64,
    pub length: u64,
    /// Offset in the file, or [`NOWHERE`].
    pub offset: u64,
    pub flags: u64,
}

// SAFETY: words.
unsafe impl Record for Piece {}

/// Not in the file yet.
pub const NOWHERE: u64 = u64::MAX;

impl Piece {
    /// To be written.
    pub const WRITE: u64 = 1;
    /// Pages of zeros need not be stored.
    pub const SKIP_ZEROS: u64 = 2;
    /// The first of its mapping.
    pub const FIRST: u64 = 4;
    /// The tracking does not know when this memory was written to.
    pub const UNKNOWN: u64 = 8;

    pub fn new(start: usize, end: usize, offset: Option<u64>) -> Piece {
        Piece {
            address: start as u64,
            length: (end - start) as u64,
            offset: offset.unwrap_or(NOWHERE),
            flags: 0,
        }
    }

    /// It has no place in the file yet.
    pub fn is_new(&self) -> bool {
        self.offset == NOWHERE
    }

    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

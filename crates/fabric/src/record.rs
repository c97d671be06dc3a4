//! The record: a rank's own deliveries, in order, in its arena.
//!
//! A chain of segments of 64-bit words. The first word says how many deliveries lie before the segment. Then come
//! `stamp << 53 | (source + 1) << 40 | polls`, 0 where nothing is recorded yet. The last word is the reference of the
//! next segment. One store publishes a determinant whole. The record is never spilled.

use crate::arena::Arena;
use crate::node::Node;
use resurgo_protocol::Recorded;
use resurgo_wire::node_memory::{self as nm, SEGMENT, arena};
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of the last word, and of the first determinant.
const WORDS: usize = SEGMENT / 8 - 1;
const FIRST: usize = 1;
const POLLS: u32 = 40;
const STAMP: u32 = 53;
const _: () = assert!(nm::MAX_RANKS < 1 << (STAMP - POLLS));

/// What a record says of a message besides its source: a few bits of these words, never more than fit. It is for
/// messages that no log outlives the process with, so that a repeated one can be compared.
pub fn stamp(words: [u64; 4]) -> u64 {
    let mix = |state: u64, word: &u64| (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(1, mix) >> STAMP
}

/// A place in the record: where the next determinant is read or written.
#[derive(Clone)]
pub struct Cursor {
    segment: *const AtomicU64,
    /// Reference of the segment, 0: none.
    reference: u64,
    index: usize,
    /// Stamp of the determinant read last.
    stamp: u64,
}

impl Cursor {
    pub fn start(node: &Node) -> Self {
        let mut cursor = Cursor::nowhere();
        cursor.enter(node, node.own(arena::DETERMINANTS).load(Ordering::Acquire));
        cursor
    }

    /// For the time before the first life looks for the record.
    pub fn nowhere() -> Self {
        Cursor {
            segment: std::ptr::null(),
            reference: 0,
            index: 0,
            stamp: 0,
        }
    }

    /// A record begins whose first `above` deliveries are not needed. What there was is forgotten.
    pub fn begin_anew(node: &Node, arena: &mut Arena, above: u64) -> Self {
        node.own(arena::DETERMINANTS).store(0, Ordering::Release);
        let mut cursor = Cursor::nowhere();
        cursor.extend(node, arena);
        cursor.word(0).store(above, Ordering::Release);
        cursor
    }

    /// Behind the first `deliveries`.
    ///
    /// # Errors
    /// The record begins behind that, after so many.
    pub fn at(node: &Node, deliveries: u64) -> Result<Self, u64> {
        let mut cursor = Cursor::start(node);
        let base = Self::base(node);
        let behind = deliveries.checked_sub(base).ok_or(base)?;
        (0..behind).for_each(|_| _ = cursor.read(node));
        Ok(cursor)
    }

    /// Deliveries that the record does not go back to.
    fn base(node: &Node) -> u64 {
        let start = Cursor::start(node);
        if start.segment.is_null() { 0 } else { start.clock() }
    }

    /// Deliveries that nobody will ask this rank for: images cover them, or it came here without them.
    pub fn covered(node: &Node) -> u64 {
        node.covered(node.rank).max(Self::base(node))
    }

    fn enter(&mut self, node: &Node, reference: u64) {
        if reference != 0 {
            self.segment = node.segment(node.rank, nm::dereference(reference).1).cast();
            self.reference = reference;
            self.index = FIRST;
        }
    }

    /// Reference of the segment the cursor is in, 0: none yet.
    pub fn reference(&self) -> u64 {
        self.reference
    }

    /// Deliveries recorded before this place.
    fn clock(&self) -> u64 {
        self.word(0).load(Ordering::Relaxed) + (self.index - FIRST) as u64
    }

    /// Looks for a record that a later life may have begun after an image kept this cursor.
    pub fn refresh(&mut self, node: &Node) {
        if self.segment.is_null() {
            *self = Cursor::start(node);
        }
    }

    /// Ends the record here: what was recorded behind this place is void.
    pub fn cut_off(&self, node: &Node) {
        if self.segment.is_null() {
            node.own(arena::DETERMINANTS).store(0, Ordering::Release);
            return;
        }
        (self.index..=WORDS).for_each(|index| self.word(index).store(0, Ordering::Relaxed));
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `index` is at most WORDS, the last word of the segment.
        unsafe { &*self.segment.add(index) }
    }

    /// The next determinant, or None at the end of the record.
    pub fn read(&mut self, node: &Node) -> Option<Recorded> {
        if self.segment.is_null() {
            return None;
        }
        if self.index == WORDS {
            match self.word(WORDS).load(Ordering::Acquire) {
                0 => return None,
                next => self.enter(node, next),
            }
        }
        match self.word(self.index).load(Ordering::Acquire) {
            0 => None,
            word => {
                self.index += 1;
                self.stamp = word >> STAMP;
                Some(Recorded {
                    source: (word >> POLLS) as u32 % (1 << (STAMP - POLLS)) - 1,
                    polls: word & ((1 << POLLS) - 1),
                })
            }
        }
    }

    /// The stamp of the determinant that was read last.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Deliveries after the first `above`, which must be in the record.
    pub fn read_above(node: &Node, above: u64) -> Vec<Recorded> {
        let mut cursor = Cursor::start(node);
        let dropped = if cursor.segment.is_null() { 0 } else { cursor.clock() };
        let all = std::iter::from_fn(|| cursor.read(node));
        all.skip((above - dropped) as usize).collect()
    }

    /// How many determinants there are from here to the end.
    pub fn count(mut self, node: &Node) -> u64 {
        std::iter::from_fn(|| self.read(node)).count() as u64
    }

    /// Appends a determinant; from here on it survives this process.
    #[inline]
    pub fn write(&mut self, node: &Node, arena: &mut Arena, recorded: Recorded, stamp: u64) {
        if self.segment.is_null() || self.index == WORDS {
            self.extend(node, arena);
        }
        if recorded.polls >> POLLS != 0 {
            node.report("a rank waited for more than 10^12 polls without a message: such a wait cannot be replayed");
        }
        let word = stamp << STAMP | (recorded.source as u64 + 1) << POLLS | recorded.polls;
        self.word(self.index).store(word, Ordering::Release);
        self.index += 1;
    }

    #[cold]
    fn extend(&mut self, node: &Node, arena: &mut Arena) {
        Self::forget(node, arena);
        let Some((reference, slot)) = arena.take_any(node) else {
            Arena::report_full(node)
        };
        let fresh = node.segment(node.rank, slot);
        let clock = if self.segment.is_null() { 0 } else { self.clock() };
        // SAFETY: a whole own segment, aligned.
        unsafe {
            fresh.write_bytes(0, SEGMENT);
            fresh.cast::<u64>().write(clock);
        }
        if self.segment.is_null() {
            node.own(arena::DETERMINANTS).store(reference, Ordering::Release);
        } else {
            self.word(WORDS).store(reference, Ordering::Release);
        }
        self.enter(node, reference);
    }

    /// Gives back the segments before the one in which the oldest usable image goes on.
    fn forget(node: &Node, arena: &mut Arena) {
        let needed = node.record_needed_from();
        if needed == 0 {
            return;
        }
        loop {
            let first = node.own(arena::DETERMINANTS).load(Ordering::Relaxed);
            if first == needed {
                return;
            }
            let cursor = Cursor::start(node);
            let next = cursor.word(WORDS).load(Ordering::Relaxed);
            assert!(next != 0, "an image goes on in a segment of the record");
            node.own(arena::DETERMINANTS).store(next, Ordering::Release);
            let (serial, slot) = nm::dereference(first);
            arena.forget(node, serial, slot);
        }
    }

    /// Calls `each` with the slot of every segment of the record.
    pub fn slots(node: &Node, mut each: impl FnMut(usize)) {
        let mut reference = node.own(arena::DETERMINANTS).load(Ordering::Acquire);
        while reference != 0 {
            let slot = nm::dereference(reference).1;
            each(slot);
            let cursor = Cursor {
                segment: node.segment(node.rank, slot).cast(),
                reference,
                index: 0,
                stamp: 0,
            };
            reference = cursor.word(WORDS).load(Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    #[test]
    fn a_later_life_reads_what_was_recorded_and_goes_on_behind_it() {
        let (node, _) = pair(64, true);
        let mut arena = Arena::new(&node);
        let deliveries = |from: u64, to: u64| {
            (from..to).map(|clock| Recorded {
                source: (clock % 2) as u32,
                polls: clock * clock,
            })
        };
        let mut first = Cursor::start(&node);
        // More than two segments, and ending exactly at the end of one.
        let end = 3 * (WORDS - FIRST) as u64;
        deliveries(0, end).for_each(|recorded| first.write(&node, &mut arena, recorded, 7));
        let mut second = Cursor::start(&node);
        let read: Vec<_> = std::iter::from_fn(|| second.read(&node)).collect();
        assert!(read.into_iter().eq(deliveries(0, end)));
        assert_eq!(second.stamp(), 7);
        let most = stamp([u64::MAX; 4]);
        deliveries(end, end + 10).for_each(|recorded| second.write(&node, &mut arena, recorded, most));
        let mut third = Cursor::start(&node);
        assert!(std::iter::from_fn(|| third.read(&node)).eq(deliveries(0, end + 10)));
        let mut slots = 0;
        Cursor::slots(&node, |_| slots += 1);
        assert_eq!(slots, 4);
    }
}

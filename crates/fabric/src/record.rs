//! The record: a rank's own deliveries, in order, in its arena.
//!
//! A chain of segments of 64-bit words: `(source + 1) << 40 | polls`, 0 where nothing is recorded yet; the last word of a
//! segment is the reference of the next. One store publishes a determinant whole. The record is never spilled.

use crate::arena::Arena;
use crate::node::Node;
use resurgo_protocol::Recorded;
use resurgo_wire::node_memory::{self as nm, SEGMENT, arena};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = SEGMENT / 8 - 1;
const POLLS: u32 = 40;

/// A place in the record: where the next determinant is read or written.
pub struct Cursor {
    segment: *const AtomicU64,
    index: usize,
}

impl Cursor {
    pub fn start(node: &Node) -> Self {
        let mut cursor = Cursor {
            segment: std::ptr::null(),
            index: 0,
        };
        cursor.enter(node, node.own(arena::DETERMINANTS).load(Ordering::Acquire));
        cursor
    }

    fn enter(&mut self, node: &Node, reference: u64) {
        if reference != 0 {
            self.segment = node.segment(node.rank, nm::dereference(reference).1).cast();
            self.index = 0;
        }
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
                Some(Recorded {
                    source: (word >> POLLS) as u32 - 1,
                    polls: word & ((1 << POLLS) - 1),
                })
            }
        }
    }

    /// Appends a determinant; it survives this process from here on.
    #[inline]
    pub fn write(&mut self, node: &Node, arena: &mut Arena, recorded: Recorded) {
        if self.segment.is_null() || self.index == WORDS {
            self.extend(node, arena);
        }
        if recorded.polls >> POLLS != 0 {
            node.report("a rank waited for more than 10^12 polls without a message: such a wait cannot be replayed");
        }
        let word = (recorded.source as u64 + 1) << POLLS | recorded.polls;
        self.word(self.index).store(word, Ordering::Release);
        self.index += 1;
    }

    #[cold]
    fn extend(&mut self, node: &Node, arena: &mut Arena) {
        let (reference, slot) = arena
            .take(node)
            .expect("an arena with retention always gives or reports");
        let fresh = node.segment(node.rank, slot);
        // SAFETY: a whole own segment.
        unsafe { fresh.write_bytes(0, SEGMENT) };
        if self.segment.is_null() {
            node.own(arena::DETERMINANTS).store(reference, Ordering::Release);
        } else {
            self.word(WORDS).store(reference, Ordering::Release);
        }
        self.enter(node, reference);
    }

    /// Calls `each` with the slot of every segment of the record.
    pub fn slots(node: &Node, mut each: impl FnMut(usize)) {
        let mut reference = node.own(arena::DETERMINANTS).load(Ordering::Acquire);
        while reference != 0 {
            let slot = nm::dereference(reference).1;
            each(slot);
            let cursor = Cursor {
                segment: node.segment(node.rank, slot).cast(),
                index: 0,
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
        let end = 3 * WORDS as u64;
        deliveries(0, end).for_each(|recorded| first.write(&node, &mut arena, recorded));
        let mut second = Cursor::start(&node);
        let read: Vec<_> = std::iter::from_fn(|| second.read(&node)).collect();
        assert!(read.into_iter().eq(deliveries(0, end)));
        deliveries(end, end + 10).for_each(|recorded| second.write(&node, &mut arena, recorded));
        let mut third = Cursor::start(&node);
        assert!(std::iter::from_fn(|| third.read(&node)).eq(deliveries(0, end + 10)));
        let mut slots = 0;
        Cursor::slots(&node, |_| slots += 1);
        assert_eq!(slots, 4);
    }
}

//! Future events, in order of time; at one moment, in the order of scheduling.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Scheduled<E> {
    at: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<E> Eq for Scheduled<E> {}
impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The events of a run. Times are in ticks.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    order: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            order: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub fn push(&mut self, at: u64, event: E) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Scheduled { at, order, event }));
    }

    /// Forgets the others.
    pub fn keep(&mut self, stays: impl Fn(&E) -> bool) {
        self.heap.retain(|Reverse(scheduled)| stays(&scheduled.event));
    }

    /// The next event, and its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse(Scheduled { at, event, .. }) = self.heap.pop()?;
        Some((at, event))
    }
}

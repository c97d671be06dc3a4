//! How a sender tells a receiver that a channel has news, and how a receiver sleeps until then.
//!
//! Every word is changed by single atomic instructions, so a process killed at any point leaves it usable. Ready bits may
//! be set for nothing; they are never missing: a sender publishes before it sets the bit, and one that dies in between
//! sets it again when its next life repeats the send. What is killed between two of the instructions is made good by
//! [`begin_life`].

use crate::node::Node;
use resurgo_wire::node_memory::{self as nm, control, ready};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A life begins, or goes on from an image. One before it, or the life of a sender, may have been killed between the two
/// changes of words below: a bit is set then whose word nobody looks at, and its sender does not ring again.
pub fn begin_life(node: &Node) {
    let word = node.rank / 64;
    node.control(node.rank, control::READY_SUMMARY)
        .store(u64::MAX, Ordering::SeqCst);
    for destination in 0..node.ranks() {
        node.control(destination, control::READY_SUMMARY)
            .fetch_or(1 << word, Ordering::SeqCst);
        wake(node, destination);
    }
}

/// Tells `destination` that the channel from this rank has something new. Call after publishing.
#[inline]
pub fn ring(node: &Node, destination: usize) {
    ready::say(node.rank, |field| node.control(destination, field));
    wake(node, destination);
}

/// Wakes `rank` if it sleeps. Call after whatever it waits for, and a full fence.
#[inline]
pub fn wake(node: &Node, rank: usize) {
    match node.control(rank, control::SLEEPING).load(Ordering::Relaxed) {
        0 => {}
        nm::ELSEWHERE => wake_mover(node, rank),
        _ => {
            let bell = node.control(rank, control::DOORBELL);
            bell.fetch_add(1, Ordering::SeqCst);
            // SAFETY: futex wake on a word of the shared mapping.
            unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
        }
    }
}

/// `rank` is on another node. What moves messages there is told that it has news.
fn wake_mover(node: &Node, rank: usize) {
    if !node.is_valid() {
        end_at_once();
    }
    let (news, bit) = (node.news(rank / 64), 1u64 << (rank % 64));
    if news.load(Ordering::Relaxed) & bit == 0 {
        news.fetch_or(bit, Ordering::SeqCst);
    }
    if node.mover_sleeps() {
        let one = 1u64;
        // Who is killed before this has rung for nobody; the next one rings, and its own next life does.
        // SAFETY: writes from the word.
        unsafe { libc::syscall(libc::SYS_write, nm::NET_FD, &raw const one, size_of::<u64>()) };
    }
}

/// The job has gone on without this node, and somebody else is this rank by now: nothing may leave any more.
#[cold]
fn end_at_once() -> ! {
    loop {
        // SAFETY: about the calling process only.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// A table of this rank's that `rank` reads has changed. Call after the change. A rank of this node need only be awake to see it.
#[inline]
pub fn show(node: &Node, rank: usize) {
    if node.is_elsewhere(rank) {
        ring(node, rank);
    } else {
        wake(node, rank);
    }
}

/// Sleeps until another rank rings, `nanoseconds` have passed, or `ready` says after the announcement that there is
/// something to do after all.
pub fn sleep(node: &Node, nanoseconds: u64, ready: impl FnOnce() -> bool) {
    let sleeping = node.control(node.rank, control::SLEEPING);
    let bell: &AtomicU32 = node.control(node.rank, control::DOORBELL);
    let seen = bell.load(Ordering::SeqCst);
    sleeping.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if !ready() {
        let timeout = libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        };
        // SAFETY: futex wait on a word of the shared mapping.
        unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, &timeout, 0, 0) };
    }
    sleeping.store(0, Ordering::SeqCst);
}

/// Takes every channel that may have news: calls `found` with each source.
#[inline]
pub fn take_ready(node: &Node, found: impl FnMut(usize)) {
    ready::take(|field| node.control(node.rank, field), found);
}

/// True when some channel may have news.
#[inline]
pub fn any_ready(node: &Node) -> bool {
    node.control(node.rank, control::READY_SUMMARY).load(Ordering::Acquire) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    fn ready(node: &Node) -> Vec<usize> {
        let mut found = Vec::new();
        take_ready(node, |source| found.push(source));
        found
    }

    /// What a rank leaves behind that is killed between the two words.
    fn half_rung(receiver: &Node) {
        receiver
            .control(receiver.rank, control::READY.item(0))
            .store(0b11, Ordering::SeqCst);
        receiver
            .control(receiver.rank, control::READY_SUMMARY)
            .store(0, Ordering::SeqCst);
    }

    #[test]
    fn a_bit_that_was_left_without_its_summary_is_seen_after_a_new_beginning() {
        for new_life in [0, 1] {
            let nodes = pair(1, true);
            let (sender, receiver) = (&nodes.0, &nodes.1);
            half_rung(receiver);
            ring(sender, 1);
            assert!(!any_ready(receiver), "the case that this is about");
            begin_life([sender, receiver][new_life]);
            assert!(any_ready(receiver));
            assert_eq!(ready(receiver), [0, 1]);
            assert!(ready(receiver).is_empty());
            ring(sender, 1);
            assert_eq!(ready(receiver), [0]);
        }
    }
}

//! How a sender tells a receiver that a channel has news, and how a receiver sleeps until then.
//!
//! Every word is changed by single atomic instructions, so a process killed at any point leaves it usable. Ready bits
//! may be set without news, but never missing: a sender publishes before it sets the bit. If it dies in between, its
//! next life sets the bit when it repeats the send. [`begin_life`] repairs the state when a process was killed between
//! two of the instructions.

use crate::clock::timespec;
use crate::node::Node;
use resurgo_wire::node_memory::{self as nm, control, ready};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A life begins, or goes on from an image. A process killed between the two changes of words below leaves a set bit in
/// a word that no rank looks at; its sender does not ring again.
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

/// Tells `destination` that the channel from this rank has news. Call after publishing.
#[inline]
pub fn ring(node: &Node, destination: usize) {
    ready::say(node.rank, |field| node.control(destination, field));
    wake(node, destination);
}

/// Wakes `rank` if it sleeps. Call after storing what it waits for, and a full fence.
#[inline]
pub fn wake(node: &Node, rank: usize) {
    match node.control(rank, control::SLEEPING).load(Ordering::Relaxed) {
        0 => {}
        nm::ELSEWHERE => wake_mover(node, rank),
        nm::AT_SOCKETS => wake_at_sockets(node, rank),
        _ => {
            let bell = node.control(rank, control::DOORBELL);
            bell.fetch_add(1, Ordering::SeqCst);
            // SAFETY: futex wake on a word of the shared mapping.
            unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
        }
    }
}

/// `rank` is on another node. Tells the mover there that it has news.
fn wake_mover(node: &Node, rank: usize) {
    wait_for_lease(node);
    let (news, bit) = (node.news(rank / 64), 1u64 << (rank % 64));
    if news.load(Ordering::Relaxed) & bit == 0 {
        news.fetch_or(bit, Ordering::SeqCst);
    }
    if node.mover_sleeps() {
        let one = 1u64;
        // A rank killed before this has rung for no one; the next rank rings, and so does its own next life. SAFETY:
        // writes from the word.
        unsafe { libc::syscall(libc::SYS_write, nm::NET_FD, &raw const one, size_of::<u64>()) };
    }
}

/// `rank` sleeps at its sockets. The datagram fails where the socket is full, and then the rank is awake; or if it is
/// gone.
fn wake_at_sockets(node: &Node, rank: usize) {
    // SAFETY: plain numbers.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    let number = node.control(rank, control::BELL).load(Ordering::SeqCst);
    for (at, digit) in name.sun_path[1..6].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (16 - 4 * at) & 0xf) as usize] as libc::c_char;
    }
    let length = (size_of::<libc::sa_family_t>() + 6) as libc::socklen_t;
    let byte = 0u8;
    // SAFETY: sends one byte to a name of that length.
    unsafe {
        libc::sendto(
            node.bell.load(Ordering::Relaxed),
            (&raw const byte).cast(),
            1,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            (&raw const name).cast(),
            length,
        )
    };
}

/// Returns when this node's agent has its lease. Without it the job may go on elsewhere, and another process may be this
/// rank: nothing leaves this one. The agent has the lease again, or it ends this process.
#[inline]
pub fn wait_for_lease(node: &Node) {
    if !node.is_valid() {
        stand_still(node);
    }
}

#[cold]
fn stand_still(node: &Node) {
    let pause = crate::clock::timespec(5_000_000);
    while !node.is_valid() {
        // SAFETY: reads the time.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
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

/// Sleeps until another rank rings, `nanoseconds` have passed, or `ready` says, after the announcement, that there is
/// work.
pub fn sleep(node: &Node, nanoseconds: u64, ready: impl FnOnce() -> bool) {
    let bell: &AtomicU32 = node.control(node.rank, control::DOORBELL);
    let seen = bell.load(Ordering::SeqCst);
    sleep_as(node, 1, ready, || {
        let timeout = timespec(nanoseconds);
        // SAFETY: futex wait on a word of the shared mapping.
        unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, &timeout, 0, 0) };
    });
}

/// The same at sockets: `wait` sleeps until data comes there, including the datagrams of [`wake`].
pub fn sleep_at_sockets(node: &Node, ready: impl FnOnce() -> bool, wait: impl FnOnce(&Node)) {
    sleep_as(node, nm::AT_SOCKETS, ready, || wait(node));
}

/// Announces that this rank sleeps, and `how`; then waits, unless it is `ready`.
#[inline]
fn sleep_as(node: &Node, how: u32, ready: impl FnOnce() -> bool, wait: impl FnOnce()) {
    let sleeping = node.control(node.rank, control::SLEEPING);
    sleeping.store(how, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if !ready() {
        let began = crate::trace::now();
        wait();
        crate::trace::has_waited(began);
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

    /// The state that a rank killed between the two words leaves.
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

//! What this rank notes of files ([`crate::deeds`], [`crate::undo`]) is kept off its node, too: the loss of the node would
//! take it along, and the rank's next life would not know what was done.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use resurgo_wire::node_memory::{control, header};

use crate::node::Node;

/// Words of the node memory; null: there is no agent.
static KEEPS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static ASKED: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static KEPT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static LIFE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// From here on keeps notes, where the job has several nodes.
pub fn watch(node: &Node) {
    let own = |field| node.control(node.rank, field);
    for (place, word) in [
        (&ASKED, own(control::NOTES_ASKED)),
        (&KEPT, own(control::NOTES_KEPT)),
        (&LIFE, own(control::INCARNATION)),
    ] {
        place.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
    }
    let keeps: &AtomicU32 = node.header(header::KEEPS_NOTES);
    KEEPS.store(std::ptr::from_ref(keeps).cast_mut(), Ordering::Release);
}

/// A word of the node memory.
fn word(place: &AtomicPtr<AtomicU64>) -> Option<&'static AtomicU64> {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// What has been noted goes off the node. `waits`: the call returns when it is there. The agent needs a fraction of a
/// millisecond for that. If the process has slept in an image meanwhile, nothing is left to wait for. If the agent has
/// died, the node is lost, and this process ends soon: it must not do now what nobody would know of.
pub fn keep(waits: bool) {
    // SAFETY: as above.
    let keeps = unsafe { KEEPS.load(Ordering::Acquire).as_ref() };
    if keeps.is_none_or(|keeps| keeps.load(Ordering::Relaxed) != 1) {
        return;
    }
    let (Some(asked), Some(kept), Some(life)) = (word(&ASKED), word(&KEPT), word(&LIFE)) else {
        return;
    };
    let began_in = life.load(Ordering::Acquire);
    let number = match waits {
        true => asked.fetch_add(1, Ordering::AcqRel) + 1,
        false => 0,
    };
    let goes_on = || waits && life.load(Ordering::Acquire) == began_in;
    while let Err(error) = resurgo_image::keep_notes(number) {
        // The program has closed the descriptor.
        if [libc::EBADF, libc::ENOTSOCK].contains(&error) || !goes_on() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    while kept.load(Ordering::Acquire) < number && goes_on() {
        std::thread::sleep(Duration::from_micros(50));
    }
}

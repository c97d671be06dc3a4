//! The rank's part in images of its process: whether there can be one now, what of the shared memory the image needs, and
//! what a process finds there when it has woken up from one.
//!
//! The engine itself is ordinary memory and part of the image. What it shares with other ranks is not, and has gone on.

use super::*;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// The engine of this process, once its endpoint is open.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(null_mut());

/// Lets the agent take images of this process. `engine` stays where it is for the life of the process.
pub fn enable(engine: *mut Engine) {
    // SAFETY: the engine was just made.
    let node = unsafe { &(*engine).node };
    if node.pessimistic && !node.tolerate_node {
        ENGINE.store(engine, Ordering::Release);
        resurgo_image::enable(resurgo_image::Hooks { refuses, note_cursors });
    }
}

/// The engine, while all threads of the program stand still outside of its calls.
fn engine() -> Option<&'static mut Engine> {
    // SAFETY: lives as long as the process, and nobody else runs.
    unsafe { ENGINE.load(Ordering::Acquire).as_mut() }
}

fn refuses() -> Option<&'static str> {
    let Some(engine) = engine() else {
        return Some("it has no endpoint");
    };
    if engine.endpoints == 0 {
        return Some("it has no endpoint");
    }
    // It may have woken up from an image and not looked around yet.
    if resurgo_image::is_restored()
        || engine.output_gate
        || !engine.protocol.as_ref().is_some_and(Pessimistic::may_checkpoint)
    {
        return Some("it repeats what a former life did");
    }
    if engine.waiting.is_empty() {
        None
    } else {
        Some("a send waits for room")
    }
}

fn note_cursors(slot: u64) {
    let Some(engine) = engine() else { return };
    let slot = slot as usize % nm::arena::IMAGE_SLOTS;
    for (source, incoming) in engine.incoming.iter().enumerate() {
        let serial = incoming.as_ref().map_or(0, |incoming| incoming.reader.serial());
        engine.node.image_cursor(slot, source).store(serial, Ordering::Release);
    }
    engine
        .node
        .own(nm::arena::RECORD_CURSORS + slot * 8)
        .store(engine.record.reference(), Ordering::Release);
}

impl Engine {
    /// The first call of a process that has woken up from an image: the own logs and the record have gone on since, and so
    /// has everybody else.
    #[cold]
    pub(super) fn restored(&mut self) {
        let protocol = self.protocol.as_mut().expect("only logging protocols have images");
        self.arena = Arena::new(&self.node);
        let found = Survey::of(&self.node, &mut self.arena, |destination| {
            protocol.sent(destination as u32)
        });
        self.outgoing = found.outgoing;
        self.redo = found.redo;
        self.forgotten = found.forgotten;
        self.record.refresh(&self.node);
        let behind = self.record.clone().count(&self.node);
        protocol.restored(protocol.rclock() + behind, found.sent_before);
        self.replaying = protocol.is_replaying();
        self.node.set(control::REPLAY_DELIVERIES, behind);
        let own = self.node.rank;
        self.output_gate = self.node.control(own, control::OUTPUT_BEHIND).load(Ordering::Acquire) != 0;
        let fault_at = self
            .node
            .control(own, control::FAULT_AT_MESSAGES)
            .load(Ordering::Acquire);
        self.fault_at = if fault_at == 0 { u64::MAX } else { fault_at };
        self.node.control_u32(own, control::SLEEPING).store(0, Ordering::SeqCst);
        self.ready = channels_with_entries(&self.node);
        self.queued = vec![false; self.node.size];
        for &source in &self.ready {
            self.queued[source as usize] = true;
        }
        self.node.set(control::DELIVERIES, self.deliveries);
        self.node.set(control::SENDS, self.sends);
        self.node.set(control::SENT_BYTES, self.sent_bytes);
        self.has_delivered = false;
        self.idle_since = ticks();
        self.last_read = self.idle_since;
        self.publish_phase();
    }
}

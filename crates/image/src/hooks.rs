//! What the provider, whose process this is, has to do for an image.

use std::cell::UnsafeCell;
use std::ops::Range;

/// What the provider has to say about an image.
#[derive(Clone)]
pub struct Hooks {
    /// Where its own objects are, and nothing of the program's.
    pub own_memory: fn() -> Range<usize>,
    /// Calls with the descriptor of each connection of its own: they are no part of the image, and a process that wakes up makes new ones.
    pub connections: fn(each: &mut dyn FnMut(i32)),
    /// Why there can be none now, if so. All threads stand still, outside of every [`crate::Guard`].
    pub refuses: fn() -> Option<&'static str>,
    /// Note the cursors of image `number` in this slot of the rank's arena.
    pub note_cursors: fn(number: u64, slot: u64),
    /// Say how many messages have been sent on each channel (waves only that stop all, as the next two).
    pub announce: fn(),
    /// Take what the channels to this rank hold; how many messages or parts of them that were.
    pub drain: fn() -> u64,
    /// As many messages have been taken as were announced.
    pub is_drained: fn() -> bool,
    /// Look whose turn it is in a wave of groups. Hold back messages that must not pass now, let the others go, and say
    /// how many messages were sent on each channel. All threads stand still, outside of every [`crate::Guard`].
    pub notice: fn(),
    /// This process has woken up; no thread of the program runs yet. True when all ranks return to a wave: then it waits for
    /// them.
    pub woken: fn() -> bool,
}

struct Place(UnsafeCell<Option<Hooks>>);
// SAFETY: written before the signal is in use; only read afterwards.
unsafe impl Sync for Place {}

static HOOKS: Place = Place(UnsafeCell::new(None));

/// The provider's hooks. Only after [`enable`].
pub fn hooks() -> Option<Hooks> {
    // SAFETY: written before the first signal.
    unsafe { (*HOOKS.0.get()).clone() }
}

/// Sets them.
///
/// # Safety
/// The signal is not in use yet.
pub unsafe fn set(hooks: Hooks) {
    // SAFETY: as required.
    unsafe { *HOOKS.0.get() = Some(hooks) };
}

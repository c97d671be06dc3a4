//! What the provider, whose process this is, does for an image.

use std::cell::UnsafeCell;
use std::ops::Range;

/// The provider's part in an image.
#[derive(Clone)]
pub struct Hooks {
    /// Memory that holds the provider's own objects, and nothing of the program's.
    pub own_memory: fn() -> Range<usize>,
    /// Calls `each` with the descriptor of each of the provider's own connections. They are no part of the image; a
    /// process that wakes up makes new ones.
    pub connections: fn(each: &mut dyn FnMut(i32)),
    /// Why there can be no image now, if so. All threads stand still, outside of every [`crate::Guard`].
    pub refuses: fn() -> Option<&'static str>,
    /// Note the cursors of image `number` in this slot of the rank's arena.
    pub note_cursors: fn(number: u64, slot: u64),
    /// The same without an image, and without a number; or why that is impossible now. All threads stand still, outside
    /// of every [`crate::Guard`].
    pub note_alone: fn(slot: u64) -> Result<(), &'static str>,
    /// Say how many messages were sent on each channel. Like the next two, only in waves that stop all ranks.
    pub announce: fn(),
    /// Take what the channels to this rank hold; returns how many messages, or parts of them.
    pub drain: fn() -> u64,
    /// Whether as many messages were taken as were announced.
    pub is_drained: fn() -> bool,
    /// See whose turn it is in a wave of groups. Hold back messages that must not pass now, let the others go, and say
    /// how many messages were sent on each channel. All threads stand still, outside of every [`crate::Guard`].
    pub notice: fn(),
    /// This process has woken up; no thread of the program runs yet. True when all ranks return to a wave: then this
    /// one waits for the others.
    pub woken: fn() -> bool,
}

struct Place(UnsafeCell<Option<Hooks>>);
// SAFETY: written before the signal is in use; only read afterwards.
unsafe impl Sync for Place {}

static HOOKS: Place = Place(UnsafeCell::new(None));

/// The provider's hooks. Call only after [`enable`].
pub fn hooks() -> Option<Hooks> {
    // SAFETY: written before the first signal.
    unsafe { (*HOOKS.0.get()).clone() }
}

/// Sets the hooks.
///
/// # Safety
/// The signal is not in use yet.
pub unsafe fn set(hooks: Hooks) {
    // SAFETY: as required.
    unsafe { *HOOKS.0.get() = Some(hooks) };
}

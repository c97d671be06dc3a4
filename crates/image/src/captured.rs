//! Variables of the capturing thread.

use std::cell::UnsafeCell;

/// A variable that only the capturing thread uses, while all other threads stand still. In a copy of the process, its
/// only thread uses it.
pub struct Captured<T>(UnsafeCell<T>);

// SAFETY: only that thread may call `get`.
unsafe impl<T> Sync for Captured<T> {}

impl<T> Captured<T> {
    pub const fn new(value: T) -> Captured<T> {
        Captured(UnsafeCell::new(value))
    }

    /// For threads that only read.
    pub const fn pointer(&self) -> *const T {
        self.0.get()
    }

    /// # Safety
    /// The caller is the capturing thread, or the only one; it keeps no second reference.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: as required.
        unsafe { &mut *self.0.get() }
    }
}

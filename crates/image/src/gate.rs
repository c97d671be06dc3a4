//! Where a thread may be stopped for an image, and where not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::{signal, sys};

/// Thread pointer of the thread that must not be stopped now, 0: none.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// How often the agent asked a thread inside to stop. It stops as often when it leaves: each time is about its own
/// request.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// This process has woken up from an image and the provider has not noticed.
static RESTORED: AtomicU32 = AtomicU32::new(0);
/// No images now: the endpoint is closed.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// While it lives, the calling thread is not stopped for an image. The provider lets one thread in at a time, as the
/// MPI library above does.
///
/// ```
/// let guard = resurgo_image::Guard::new();
/// // change private and shared state together
/// drop(guard);
/// ```
pub struct Guard {
    /// Not inside another guard of the same thread.
    outermost: bool,
}

impl Guard {
    #[inline]
    #[allow(clippy::new_without_default)] // It does something.
    pub fn new() -> Guard {
        let thread = sys::thread_pointer();
        let outermost = INSIDE.load(Ordering::Relaxed) != thread;
        INSIDE.store(thread, Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Guard { outermost }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        INSIDE.store(0, Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if PENDING.load(Ordering::Relaxed) != 0 {
            stop_now();
        }
    }
}

#[cold]
fn stop_now() {
    for _ in 0..PENDING.swap(0, Ordering::Relaxed) {
        let _ = signal::send(sys::getpid(), sys::gettid());
    }
}

/// In the signal handler: true when the calling thread must not stop here. It stops later, when it leaves.
pub(crate) fn must_go_on() -> bool {
    let inside = INSIDE.load(Ordering::Relaxed) == sys::thread_pointer();
    if inside {
        PENDING.fetch_add(1, Ordering::Relaxed);
    }
    inside
}

/// True while a thread inside has been asked to stop: if it sleeps there, wake it.
pub(crate) fn is_pending() -> bool {
    PENDING.load(Ordering::Relaxed) != 0
}

/// No thread needs to stop any more.
pub(crate) fn clear_pending() {
    PENDING.store(0, Ordering::Relaxed);
}

pub(crate) fn set_restored() {
    RESTORED.store(1, Ordering::Release);
}

/// True once after the process has woken up from an image.
#[inline]
pub fn take_restored() -> bool {
    RESTORED.load(Ordering::Relaxed) != 0 && RESTORED.swap(0, Ordering::AcqRel) != 0
}

/// True until [`take_restored`] has returned true.
pub fn is_restored() -> bool {
    RESTORED.load(Ordering::Acquire) != 0
}

/// From here on every image is refused, until the endpoint is open again.
pub fn disable() {
    DISABLED.store(true, Ordering::Release);
}

pub(crate) fn is_disabled() -> bool {
    DISABLED.load(Ordering::Acquire)
}

/// The endpoint is open (again).
pub(crate) fn enable() {
    DISABLED.store(false, Ordering::Release);
}

//! The capturing thread: unknown to glibc, on a stack of its own, with all signals blocked. It exists only while an
//! image is taken.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{self, Errno, call};
use crate::{clones, stop};

const STACK: usize = 256 << 10;

/// Stack and thread pointer of a capturing thread. There are two: a woken copy of a snapshot still stands on the first
/// when the agent may already ask for the next image.
#[repr(C, align(4096))]
struct Standing {
    stack: [u8; STACK],
    /// What lies below a thread pointer: glibc's errno, should anything ever write it.
    below: [u8; 8192],
    /// The thread control block: its own address first, and at 16.
    control_block: [usize; 512],
}

struct Place(UnsafeCell<Standing>);
// SAFETY: used by one capturing thread at a time.
unsafe impl Sync for Place {}

static STANDING: [Place; 2] = [const {
    Place(UnsafeCell::new(Standing {
        stack: [0; STACK],
        below: [0; 8192],
        control_block: [0; 512],
    }))
}; 2];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Lowest address, end, and thread pointer of the last capturing thread's stack. The snapshot that it made is on it,
/// too.
pub fn stack() -> (usize, usize, usize) {
    let own = STANDING[(NEXT.load(Ordering::SeqCst).wrapping_sub(1) % 2) as usize]
        .0
        .get();
    // SAFETY: addresses only.
    let (stack, control_block) = unsafe { (&raw const (*own).stack, &raw const (*own).control_block) };
    (stack as usize, stack as usize + STACK, control_block as usize)
}

/// The thread id of the capturing thread; the kernel clears it when it has left its stack.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// In the signal handler: starts the capturing thread, which runs `run`. Returns the epoch that ends when threads are
/// released.
pub fn start(run: extern "C" fn(usize) -> !) -> Result<u32, Errno> {
    // The last one may be about to leave. Or it waits for its copy, which waits for a file server.
    let deadline = sys::now_ns() + stop::PATIENCE_NS;
    loop {
        match RUNNING.load(Ordering::SeqCst) {
            0 => break,
            _ if sys::now_ns() > deadline => return Err(libc::EBUSY),
            tid => sys::futex_wait(&RUNNING, tid, Some(1_000_000)),
        }
    }
    // The epoch stays: the last thread releases nobody any more, and this one has stopped nobody yet.
    let epoch = stop::epoch();
    let own = STANDING[(NEXT.fetch_add(1, Ordering::SeqCst) % 2) as usize].0.get();
    // SAFETY: nobody else uses it: the thread that had it before last has left.
    unsafe {
        let control_block = (&raw mut (*own).control_block).cast::<usize>();
        *control_block = control_block as usize;
        *control_block.add(2) = control_block as usize;
        let stack = (&raw mut (*own).stack) as usize + STACK;
        // Signals stay blocked in the new thread: it inherits the mask of the handler.
        clones::start_service(stack, control_block as usize, &RUNNING, run, 0)?;
    }
    Ok(epoch)
}

/// In a copy of the process: the capturing thread is not running there.
pub fn reset() {
    RUNNING.store(0, Ordering::SeqCst);
}

pub fn leave() -> ! {
    loop {
        // SAFETY: ends this thread only; the kernel clears RUNNING behind it.
        let _ = unsafe { call!(libc::SYS_exit, 0) };
    }
}

//! Stops every thread of the process, and lets them go on.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::threads::{self, MOST};
use crate::{calls, gate, signal, sys};

/// How long threads may take to stop.
pub const PATIENCE_NS: u64 = 2_000_000_000;
const LOOK_NS: u64 = 1_000_000;

/// No capture is going on; a signal starts one.
const IDLE: u32 = 0;
/// A capture is going on: threads park.
const STOPPING: u32 = 1;

static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// Threads wait until it changes.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Threads that were sent the signal, and what they were doing before.
struct Signalled {
    entries: [(i32, i64, u64); MOST],
    count: usize,
}

impl Signalled {
    fn contains(&self, tid: i32) -> bool {
        self.entries[..self.count].iter().any(|entry| entry.0 == tid)
    }
}

/// Stops all threads but `own`. The thread whose signal began this stops by itself; it was in system call `first`
/// (number and pc) before. The error says why they cannot be stopped; then all go on.
pub fn all(own: i32, first: (i64, u64)) -> Result<(), &'static str> {
    let deadline = sys::now_ns() + PATIENCE_NS;
    let directory = sys::open(
        b"/proc/self/task\0",
        libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
    )
    .map_err(|_| "cannot list its threads in /proc")?;
    // 24 KiB of the capturing thread's stack.
    let mut signalled = Signalled {
        entries: [(0, 0, 0); MOST],
        count: 0,
    };
    let result = stop(directory, own, deadline, &mut signalled);
    sys::close(directory);
    // Also when some have not stopped: the others must not notice that they stopped.
    calls::restart_all(threads::parked(), |index| {
        let tid = threads::parked()[index].tid;
        let seen = signalled.entries[..signalled.count].iter().find(|entry| entry.0 == tid);
        match seen {
            Some((_, number, pc)) => Some((*number, *pc)),
            None if index == 0 => Some(first),
            None => None,
        }
    });
    result
}

fn stop(directory: i32, own: i32, deadline: u64, signalled: &mut Signalled) -> Result<(), &'static str> {
    loop {
        let seen = threads::PARKED.load(Ordering::SeqCst);
        let parked = threads::parked();
        let mut missing = 0;
        let mut new = 0;
        let listed = sys::numbers_in(directory, |tid| {
            if tid == own || parked.iter().any(|thread| thread.tid == tid) {
                return;
            }
            missing += 1;
            // The first thread stops by itself.
            if parked.is_empty() || signalled.contains(tid) || signalled.count == MOST {
                return;
            }
            let (number, pc) = current_call(tid);
            if signal::send(sys::getpid(), tid).is_ok() {
                signalled.entries[signalled.count] = (tid, number, pc);
                signalled.count += 1;
                new += 1;
            }
        });
        listed.map_err(|_| "cannot list its threads in /proc")?;
        if threads::overflowed() || signalled.count == MOST {
            return Err("it has more than 1024 threads");
        }
        if missing == 0 {
            return Ok(());
        }
        if sys::now_ns() > deadline {
            return Err(if gate::is_pending() {
                "a thread waits inside MPI for a message that another rank is about to repeat"
            } else {
                "a thread did not stop within 2 s"
            });
        }
        if new == 0 {
            sys::futex_wait(&threads::PARKED, seen, Some(LOOK_NS));
        }
    }
}

/// The system call that thread `tid` is in, and its program counter; -1: none.
fn current_call(tid: i32) -> (i64, u64) {
    let mut name = [0u8; 64];
    let mut text = [0u8; 256];
    let none = (-1, 0);
    let Ok(file) = sys::open(
        sys::path(&mut name, "/proc/self/task/", tid, "/syscall"),
        libc::O_RDONLY | libc::O_CLOEXEC,
    ) else {
        return none;
    };
    let length = sys::read(file, &mut text).unwrap_or(0);
    sys::close(file);
    parse_call(&text[..length]).unwrap_or(none)
}

/// "number 0x… (six arguments) stack-pointer pc", "-1 sp pc", or "running".
pub(crate) fn parse_call(text: &[u8]) -> Option<(i64, u64)> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    let number = text.split(' ').next()?.parse().ok()?;
    let pc = u64::from_str_radix(text.rsplit(' ').next()?.strip_prefix("0x")?, 16).ok()?;
    Some((number, pc))
}

/// Makes threads stop from here on. False: they do already.
pub fn begin() -> bool {
    let (state, seen) = (&STATE, Ordering::SeqCst);
    state.compare_exchange(IDLE, STOPPING, seen, seen).is_ok()
}

/// No capturing thread can release threads: none may stop.
pub fn cancel() {
    STATE.store(IDLE, Ordering::SeqCst);
}

/// In a stopped thread: returns when the epoch has ended.
pub fn wait_beyond(epoch: u32) {
    while EPOCH.load(Ordering::SeqCst) == epoch {
        sys::futex_wait(&EPOCH, epoch, None);
    }
}

/// The current epoch; it ends when all threads are released.
pub fn epoch() -> u32 {
    EPOCH.load(Ordering::SeqCst)
}

/// Releases all threads.
pub fn release() {
    gate::clear_pending();
    STATE.store(IDLE, Ordering::SeqCst);
    EPOCH.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&EPOCH);
}

/// In a copy of the process: no capture is going on.
pub fn reset() {
    gate::clear_pending();
    STATE.store(IDLE, Ordering::SeqCst);
    EPOCH.fetch_add(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_thread_is_understood() {
        assert_eq!(
            parse_call(b"202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f0a1\n"),
            Some((202, 0x7f0a1))
        );
        assert_eq!(parse_call(b"-1 0x7ffd 0x10\n"), Some((-1, 0x10)));
        assert_eq!(parse_call(b"running\n"), None);
        assert_eq!(parse_call(b""), None);
    }
}

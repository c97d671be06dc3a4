//! The clocks of a rank: the kernel's, and the processor's counter, which is quicker to read.

use std::sync::atomic::{AtomicU64, Ordering};

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME, which goes on while the machine is suspended, in nanoseconds.
pub fn since_boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// What this thread has used of the processors, in nanoseconds.
pub fn own_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The least time that a file gets which is changed now, in nanoseconds since 1970.
pub fn files_ns() -> u64 {
    read(libc::CLOCK_REALTIME_COARSE)
}

pub const SECOND: i128 = 1_000_000_000;

/// A time of a file, in nanoseconds since 1970.
pub fn file_time(time: libc::statx_timestamp) -> i128 {
    i128::from(time.tv_sec) * SECOND + i128::from(time.tv_nsec)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// So many nanoseconds, as the kernel takes them.
pub fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}

/// The counter when it was read last.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The time-stamp counter.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    let now = unsafe { std::arch::x86_64::_rdtsc() };
    LAST.store(now, Ordering::Relaxed);
    now
}

/// The counter when it was read last. Reading it takes longer than all else that a trace has to do for a message.
#[inline]
pub fn last_ticks() -> u64 {
    LAST.load(Ordering::Relaxed)
}

/// Somebody else has read the counter.
#[inline]
pub fn ticks_were(now: u64) {
    LAST.store(now, Ordering::Relaxed);
}

/// Time-stamp counter ticks in a microsecond.
pub fn measure_ticks() -> u64 {
    let (from_ns, from) = (monotonic_ns(), ticks());
    while monotonic_ns() - from_ns < 50_000 {
        std::hint::spin_loop();
    }
    let (ns, count) = (monotonic_ns() - from_ns, ticks() - from);
    (count * 1000 / ns).max(1)
}

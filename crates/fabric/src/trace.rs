//! The rank's part of a trace (`--trace`): records in its ring in the node memory ([`resurgo_wire::trace`]).
//!
//! All that counts is in the ring, but where it lies and when the present life began. So a woken process goes on behind
//! the records of former lives. Several threads of a program may write: each takes a place by an atomic addition. One
//! thread alone does without: the addition would wait until the record before has left the processor.

use crate::clock::{last_ticks, monotonic_ns, ticks, ticks_were};
use resurgo_wire::trace::{Clock, HEAD, Kind, RECORD, Record, head};
use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Records whose memory a rank gets at a time (1 MiB): a page fault for every 64 records would cost more.
const STEP: u64 = 16 << 10;
/// So many records ahead a line is brought into the cache: the ring is larger than that.
const AHEAD: u64 = 4;
/// Milliseconds between two notes of both clocks: first one, and then as many as the life has lasted, up to this.
const NOTE_MS: u64 = 100;
/// Attempts to read both clocks at one moment.
const ATTEMPTS: usize = 20;

/// The ring; null: the job has none.
static RING: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Its records, less one.
static MASK: AtomicU64 = AtomicU64::new(0);
/// The record from which on the ring's memory has not been asked for, and the first one of this life.
static HAS_MEMORY: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicU64 = AtomicU64::new(0);
/// Several threads of the program call MPI.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// When the present life began, or went on from its image.
static LIFE_BEGAN: AtomicU64 = AtomicU64::new(0);
/// It repeats what former lives did.
static REPEATS: AtomicBool = AtomicBool::new(false);

/// # Safety
/// `at` is the offset of an aligned word in the ring, which stays mapped as long as the process is there.
unsafe fn word<'a>(ring: *mut u8, at: usize) -> &'a AtomicU64 {
    // SAFETY: as the caller promises; words of the ring are only accessed as atomics.
    unsafe { &*ring.add(at).cast() }
}

/// The ring of this process begins at `ring`, and has so many records: a power of two.
///
/// # Safety
/// The ring is mapped, writable, and stays mapped as long as the process is there.
pub unsafe fn attach(ring: *mut u8, records: usize) {
    MASK.store(records as u64 - 1, Ordering::Relaxed);
    RING.store(ring, Ordering::Release);
}

/// The ring, if this run of the job is traced, and its clock.
#[inline]
fn ring() -> Option<(*mut u8, bool)> {
    let ring = RING.load(Ordering::Relaxed);
    if ring.is_null() {
        return None;
    }
    // SAFETY: a word in the head of the ring.
    match unsafe { word(ring, head::CLOCK) }.load(Ordering::Relaxed) {
        0 => None,
        clock => Some((ring, clock == Clock::Ticks as u64)),
    }
}

#[inline]
fn read(is_ticks: bool) -> u64 {
    if is_ticks { ticks() } else { monotonic_ns() }
}

/// Now, by the clock of the ring; 0: nothing is traced.
#[inline]
pub fn now() -> u64 {
    ring().map_or(0, |(_, is_ticks)| read(is_ticks))
}

/// About now, for a message that is sent: the time that was read last. It was, when the call began that sends.
#[inline]
pub fn moment() -> u64 {
    ring().map_or(0, |(_, is_ticks)| if is_ticks { last_ticks() } else { monotonic_ns() })
}

/// Writes a record.
#[inline]
pub fn write(record: &Record) {
    if let Some((ring, is_ticks)) = ring() {
        // SAFETY: words in the head of the ring, and those of one record in it.
        unsafe {
            let number = take_number(ring);
            if number >= HAS_MEMORY.load(Ordering::Relaxed) {
                get_memory(ring, number);
            }
            let place = place_of(number);
            _mm_prefetch::<_MM_HINT_ET0>(ring.add(place_of(number + AHEAD)).cast());
            for (at, value) in record.words().into_iter().enumerate() {
                word(ring, place + 8 + at * 8).store(value, Ordering::Relaxed);
            }
            word(ring, place).store(number + 1, Ordering::Release);
            if is_ticks && record.end >= word(ring, head::NOTE_AT).load(Ordering::Relaxed) {
                note_times(ring);
            }
        }
    }
}

/// The number of the next record.
///
/// # Safety
/// As for [`word`].
#[inline]
unsafe fn take_number(ring: *mut u8) -> u64 {
    // SAFETY: a word in the head of the ring.
    let begun = unsafe { word(ring, head::BEGUN) };
    if IS_SHARED.load(Ordering::Relaxed) {
        return begun.fetch_add(1, Ordering::Relaxed);
    }
    let number = begun.load(Ordering::Relaxed);
    begun.store(number + 1, Ordering::Relaxed);
    number
}

/// The offset of a record in the ring.
#[inline]
fn place_of(number: u64) -> usize {
    HEAD + (number & MASK.load(Ordering::Relaxed)) as usize * RECORD
}

/// The next records get their memory at once.
#[cold]
fn get_memory(ring: *mut u8, number: u64) {
    let records = MASK.load(Ordering::Relaxed) + 1;
    if number - FIRST.load(Ordering::Relaxed) >= records {
        // The life has been through the whole ring.
        return HAS_MEMORY.store(u64::MAX, Ordering::Relaxed);
    }
    let step = STEP.min(records);
    let from = number - number % step;
    // SAFETY: whole pages of the ring, whose content stays. The system call itself: see `Node::populate`.
    unsafe {
        let start = ring.add(place_of(from));
        libc::syscall(
            libc::SYS_madvise,
            start,
            step as usize * RECORD,
            libc::MADV_POPULATE_WRITE,
        );
    }
    HAS_MEMORY.store(from + step, Ordering::Relaxed);
}

/// The counter and CLOCK_MONOTONIC at one moment: another process may have the processor between the two readings.
fn both_clocks() -> (u64, u64) {
    let read = || {
        let (before, nanoseconds) = (ticks(), monotonic_ns());
        (ticks() - before, before, nanoseconds)
    };
    let (took, before, nanoseconds) = (0..ATTEMPTS).map(|_| read()).min().unwrap_or_default();
    (before + took / 2, nanoseconds)
}

/// Notes the time by both clocks.
///
/// # Safety
/// As for [`word`].
#[cold]
unsafe fn note_times(ring: *mut u8) {
    // SAFETY: words in the head of the ring.
    unsafe {
        let (now, nanoseconds) = both_clocks();
        let set = |[ticks_at, ns_at]: [usize; 2]| {
            word(ring, ns_at).store(nanoseconds, Ordering::Relaxed);
            word(ring, ticks_at).store(now, Ordering::Release);
        };
        if word(ring, head::FIRST[0]).load(Ordering::Relaxed) == 0 {
            set(head::FIRST);
        }
        set(head::LAST);
        let ms = word(ring, head::RATE).load(Ordering::Relaxed).max(1);
        let lasted = now.saturating_sub(word(ring, head::FIRST[0]).load(Ordering::Relaxed));
        let pause = lasted.clamp(ms, ms * NOTE_MS);
        word(ring, head::NOTE_AT).store(now + pause, Ordering::Relaxed);
    }
}

/// A life of this number begins, or goes on from an image. It has looked since `began` for what it has to repeat, and
/// found so many deliveries. `repeats`: it repeats something.
pub fn life_begins(ticks_per_ms: u64, began: u64, number: u64, deliveries: u64, repeats: bool) {
    let Some((ring, is_ticks)) = ring() else { return };
    // SAFETY: a word in the head of the ring.
    unsafe {
        word(ring, head::RATE).store(ticks_per_ms, Ordering::Relaxed);
        if is_ticks {
            note_times(ring);
        }
    }
    // SAFETY: a word in the head of the ring. Perhaps it is that of another node than before.
    let begun = unsafe { word(ring, head::BEGUN) }.load(Ordering::Relaxed);
    FIRST.store(begun, Ordering::Relaxed);
    HAS_MEMORY.store(begun, Ordering::Relaxed);
    LIFE_BEGAN.store(began, Ordering::Relaxed);
    REPEATS.store(repeats, Ordering::Relaxed);
    end_call_of_former_life(ring);
    write(&Record {
        is_repeated: repeats,
        bytes: deliveries,
        number,
        ..Record::alone(Kind::Life, began, read(is_ticks))
    });
}

/// The life has repeated all that former ones did.
pub fn life_has_caught_up(number: u64, deliveries: u64) {
    REPEATS.store(false, Ordering::Relaxed);
    let Some((_, is_ticks)) = ring() else { return };
    write(&Record {
        is_repeated: true,
        bytes: deliveries,
        number,
        ..Record::alone(Kind::Replay, LIFE_BEGAN.load(Ordering::Relaxed), read(is_ticks))
    });
}

/// A message is sent, or taken from its channel, at this time; 0: nothing is traced.
#[inline]
pub fn message(kind: Kind, time: u64, peer: usize, tag: Option<u64>, bytes: u64, number: u64, is_repeated: bool) {
    if time == 0 {
        return;
    }
    write(&Record {
        is_repeated,
        peer: Some(peer as u32),
        tag,
        bytes,
        number,
        ..Record::alone(kind, time, time)
    });
}

/// The rank slept from `began` on, and is awake again.
pub fn has_waited(began: u64) {
    if began > 0 {
        write(&Record::alone(Kind::Wait, began, now()));
    }
}

/// The process of the former life died in a call of MPI.
fn end_call_of_former_life(ring: *mut u8) {
    // SAFETY: words in the head of the ring.
    let [call, began] = unsafe {
        [
            word(ring, head::CALL).swap(0, Ordering::Relaxed),
            word(ring, head::CALL_BEGAN).load(Ordering::Relaxed),
        ]
    };
    if call > 0 {
        write(&Record {
            call: (call - 1) as u16,
            ..Record::alone(Kind::Call, began, began)
        });
    }
}

/// The time of the ring at which the processor's counter was `then`.
#[inline]
fn of_ticks(ring: *mut u8, is_ticks: bool, then: u64) -> u64 {
    if is_ticks {
        return then;
    }
    // SAFETY: a word in the head of the ring.
    let rate = unsafe { word(ring, head::RATE) }.load(Ordering::Relaxed).max(1);
    let since = u128::from(ticks().saturating_sub(then)) * 1_000_000 / u128::from(rate);
    monotonic_ns().saturating_sub(since as u64)
}

/// For `libresurgo-pmpi.so`, which finds these functions by their names: a call of MPI begins in the process's first
/// thread, when the processor's counter is `now`.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_trace_call_begins(call: u16, now: u64) {
    let Some((ring, is_ticks)) = ring() else { return };
    ticks_were(now);
    let began = of_ticks(ring, is_ticks, now);
    // SAFETY: words in the head of the ring.
    unsafe {
        word(ring, head::CALL_BEGAN).store(began, Ordering::Relaxed);
        word(ring, head::CALL).store(u64::from(call) + 1, Ordering::Release);
    }
}

/// A call of MPI that began when the counter was `began` is over. Threads count from 0.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_trace_call_ends(call: u16, thread: u32, began: u64) {
    let Some((ring, is_ticks)) = ring() else { return };
    match thread {
        // SAFETY: a word in the head of the ring.
        0 => unsafe { word(ring, head::CALL) }.store(0, Ordering::Relaxed),
        _ => IS_SHARED.store(true, Ordering::Relaxed),
    }
    let begin = of_ticks(ring, is_ticks, began);
    write(&Record {
        is_repeated: REPEATS.load(Ordering::Relaxed),
        call,
        thread,
        ..Record::alone(Kind::Call, begin, read(is_ticks).max(begin + 1))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::trace::{records_of, ring_bytes};

    #[test]
    fn the_ring_keeps_the_newest_records() {
        let mut ring = vec![0u64; ring_bytes(4) / 8];
        let start: *mut u8 = ring.as_mut_ptr().cast();
        // SAFETY: as large as four records need, and no other test attaches a ring.
        unsafe { attach(start, 4) };
        assert_eq!(now(), 0);
        // SAFETY: a word of the ring.
        unsafe { word(start, head::CLOCK) }.store(Clock::Ticks as u64, Ordering::Relaxed);
        life_begins(1, now(), 2, 70, true);
        (0..5).for_each(|number| message(Kind::Send, now(), 3, Some(9), 100, number, false));
        RING.store(std::ptr::null_mut(), Ordering::Relaxed);
        assert_eq!(ring[0], 6);
        assert!(ring[head::FIRST[0] / 8] > 0 && ring[head::LAST[1] / 8] >= ring[head::FIRST[1] / 8]);
        let bytes: Vec<u8> = ring[HEAD / 8..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let turned = [&bytes[2 * RECORD..], &bytes[..2 * RECORD]].concat();
        let numbers: Vec<_> = records_of(&turned, 2)
            .map(|record| record.map(|it| it.number))
            .collect();
        assert_eq!(numbers, [1, 2, 3, 4].map(Some));
    }
}

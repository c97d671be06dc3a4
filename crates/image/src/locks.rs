//! Held locks of glibc, which know their owner by its thread id, in a process whose threads have new ids.
//!
//! Recursive, error-checking, robust and priority-inheriting mutexes compare that id with the caller's. So does the
//! writer's side of read-write locks. The loader's own lock is one of them, held by a thread that loads a library.
//! Through the kernel only robust ones can be found. So this module searches the memory for the shape of a held lock
//! with the id of one of these threads. Images are taken often and woken only after a failure: so it searches when one
//! wakes.
//!
//! Left out: a thread that stops between the two instructions of glibc that load its id and store it in a lock.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::{Range, RangeInclusive};

use crate::pages::{PAGE, is_guard};
use crate::proc::{Lines, MapsLine};
use crate::sys::{self, Errno, call};
use crate::{calls, threads};

/// Why the stopped threads cannot have other ids, if so: one of them has its id in a register. It will put the id into
/// a robust or priority-inheriting mutex as soon as it gets that.
pub fn refuses() -> Option<&'static str> {
    let waits = threads::parked().iter().any(|thread| {
        // SAFETY: glibc's own list head: first entry, offset, and the lock that is being taken or given back.
        let taking = thread.robust_list != 0 && unsafe { *((thread.robust_list + 16) as *const usize) } != 0;
        taking || calls::waits_for_inheriting_mutex(thread.context)
    });
    waits.then_some("a thread waits for a mutex that is robust or inherits priority")
}

/// A thread's id when the image was taken, and its id now.
pub type Renamed = (i32, i32);

const PAGES: usize = 512;
const OWNER_BITS: u32 = 0x3fff_ffff;

/// Which memory is searched.
pub enum Where {
    /// All memory except this, which may be huge and has no locks.
    Without(Range<usize>),
    /// The mappings of files.
    Files,
}

/// Gives every lock that one of the renamed threads holds its new id. No other thread runs.
pub fn rename(renamed: &[Renamed], memory: &Where) -> Result<(), Errno> {
    if renamed.iter().all(|(old, new)| old == new) {
        return Ok(());
    }
    let is_searched = |mapping: &MapsLine| match memory {
        Where::Without(left_out) => !left_out.contains(&mapping.start),
        Where::Files => mapping.inode != 0,
    };
    let pages = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let maps = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let mut lines = Lines::new(maps);
    while let Some(line) = lines.next_line()? {
        let Some(mapping) = MapsLine::parse(line) else { continue };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        if !mapping.shared && mapping.protection & both == both && is_searched(&mapping) {
            search(pages, (mapping.start, mapping.end), renamed)?;
        }
    }
    sys::close(maps);
    sys::close(pages);
    Ok(())
}

/// Bytes before and behind the word with a lock's owner to which the lock may extend.
pub const REACH: usize = 64;

/// Whether a lock that one of these `owners` holds may be in these bytes, or begin or end in them: whole pages. It
/// fetches what follows them ahead, as that is probably next.
pub fn may_hold(bytes: &[u8], owners: &RangeInclusive<i32>) -> bool {
    let lowest = *owners.start() as u32;
    let span = *owners.end() as u32 - lowest;
    let (lines, _) = bytes.as_chunks::<64>();
    // Look at the second half of every word too, and without an early end, so that the processor compares several at
    // once.
    let found = lines.iter().fold([0; 16], |found: [u32; 16], line| {
        // SAFETY: no access.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(PAGE).cast()) };
        let (halves, _) = line.as_chunks();
        std::array::from_fn(|at| {
            let number = u32::from_le_bytes(halves[at]) & OWNER_BITS;
            found[at] | u32::from(number.wrapping_sub(lowest) <= span)
        })
    });
    found.iter().step_by(2).any(|found| *found != 0)
}

/// As [`rename`], in a copy of some memory. What lies in its first and last [`REACH`] bytes may be wrong.
pub fn rename_in(words: &mut [u64], renamed: &[Renamed]) {
    let start = words.as_mut_ptr() as usize;
    let end = start + size_of_val(words);
    for at in (start..end).step_by(8) {
        // SAFETY: inside of the words, which are nobody else's.
        unsafe { look(at, start, end, renamed) };
    }
}

/// Searches one mapping. Pages that were never written, or are the file's, hold no lock.
fn search(pagemap: i32, (start, end): (usize, usize), renamed: &[Renamed]) -> Result<(), Errno> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    // The first access to a page of a copied process takes as long as searching it, unless it is asked for early.
    const AHEAD: usize = 8;
    let owners = || renamed.iter().map(|(old, _)| *old);
    let owners = owners().min().unwrap_or(0)..=owners().max().unwrap_or(0);
    let mut about = [0u64; PAGES];
    let mut at = start;
    while at < end {
        let count = ((end - at) / PAGE).min(PAGES);
        // SAFETY: writes to the array.
        let length = unsafe { call!(libc::SYS_pread64, pagemap, about.as_mut_ptr(), count * 8, at / PAGE * 8) }?;
        if length == 0 {
            return Ok(());
        }
        for (index, page) in about[..length / 8].iter().enumerate() {
            if page & (PRESENT | SWAPPED) == 0 || page & OF_FILE != 0 {
                continue;
            }
            let first = at + index * PAGE;
            if page & PRESENT == 0 && is_guard(first) {
                continue;
            }
            // SAFETY: mapped and readable, and nobody else runs; to ask is no access.
            let bytes = unsafe {
                _mm_prefetch::<_MM_HINT_T0>((first + AHEAD * PAGE) as *const i8);
                std::slice::from_raw_parts(first as *const u8, PAGE)
            };
            if may_hold(bytes, &owners) {
                let behind = first + PAGE;
                let start = if first > start && is_guard(first - PAGE) {
                    first
                } else {
                    start
                };
                let end = if behind < end && is_guard(behind) { behind } else { end };
                for offset in (0..PAGE).step_by(8) {
                    // SAFETY: inside of the mapping.
                    unsafe { look(first + offset, start, end, renamed) };
                }
            }
        }
        at += length / 8 * PAGE;
    }
    Ok(())
}

/// Looks at a number that may be the owner of a lock.
///
/// # Safety
/// `start..end` is writable memory that nobody else uses, and `at` an address of 8 bytes in it.
unsafe fn look(at: usize, start: usize, end: usize, renamed: &[Renamed]) {
    // SAFETY: as required.
    let owner = unsafe { *(at as *const i32) };
    let Some((_, new)) = renamed.iter().find(|(old, _)| *old == owner) else {
        return;
    };
    // SAFETY: both look no further than `start` and `end`.
    unsafe {
        if at >= start + 8 && at + 32 <= end && is_mutex(&*((at - 8) as *const Mutex)) {
            let mutex = &mut *((at - 8) as *mut Mutex);
            mutex.owner = *new;
            if mutex.kind & (ROBUST | INHERIT) != 0 {
                mutex.lock = mutex.lock & !OWNER_BITS | *new as u32;
            }
        } else if at >= start + 24 && at + 32 <= end && is_write_lock(&*((at - 24) as *const ReadWriteLock)) {
            *(at as *mut i32) = *new;
        }
    }
}

/// pthread_mutex_t of glibc on x86-64.
#[repr(C)]
struct Mutex {
    lock: u32,
    count: u32,
    owner: i32,
    users: u32,
    kind: u32,
    spins: u32,
    list: [usize; 2],
}

const RECURSIVE: u32 = 1;
const ERROR_CHECKING: u32 = 2;
const ROBUST: u32 = 16;
const INHERIT: u32 = 32;
/// A mutex with a priority ceiling: the lock word has the ceiling above bit 19.
const PROTECT: u32 = 64;

/// True for a held mutex whose owner matters.
fn is_mutex(mutex: &Mutex) -> bool {
    let kind = mutex.kind & 3;
    let owner_in_lock = mutex.kind & (ROBUST | INHERIT) != 0;
    if mutex.kind >= 1 << 10 || !owner_in_lock && ![RECURSIVE, ERROR_CHECKING].contains(&kind) {
        return false;
    }
    let held = if owner_in_lock {
        mutex.lock & OWNER_BITS == mutex.owner as u32
    } else if mutex.kind & PROTECT != 0 {
        [1, 2].contains(&(mutex.lock & 0x7_ffff))
    } else {
        [1, 2].contains(&mutex.lock)
    };
    held && (owner_in_lock || kind == RECURSIVE) == (mutex.count > 0)
        // The owner, and the threads that wait at a condition.
        && (1..1 << 16).contains(&mutex.users)
        && mutex.spins == 0
        && (mutex.kind & ROBUST != 0) == (mutex.list != [0, 0])
}

/// pthread_rwlock_t of glibc on x86-64.
#[repr(C)]
struct ReadWriteLock {
    readers: u32,
    writers: u32,
    write_phase: u32,
    writers_wait: u32,
    padding: [u32; 2],
    writer: i32,
    shared: u32,
    more_padding: [usize; 2],
    flags: u32,
}

/// True for a lock that a writer holds.
fn is_write_lock(lock: &ReadWriteLock) -> bool {
    lock.readers & 3 == 3
        && lock.readers < 1 << 16
        && lock.writers & 0x7fff_ffff < 1 << 16
        && [1, 3].contains(&lock.write_phase)
        && lock.writers_wait < 4
        && lock.padding == [0, 0]
        && lock.shared < 2
        && lock.more_padding == [0, 0]
        && lock.flags < 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    const NEW: i32 = 12345;

    fn renamed_mutex(kind: i32, robust: bool, inherit: bool) -> (i32, u32) {
        // SAFETY: a mutex of this test's own, left behind held.
        unsafe {
            let mutex: &UnsafeCell<libc::pthread_mutex_t> = Box::leak(Box::new(UnsafeCell::new(std::mem::zeroed())));
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_settype(&raw mut attributes, kind);
            if robust {
                libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            }
            if inherit {
                libc::pthread_mutexattr_setprotocol(&raw mut attributes, libc::PTHREAD_PRIO_INHERIT);
            }
            libc::pthread_mutex_init(mutex.get(), &raw const attributes);
            libc::pthread_mutex_lock(mutex.get());
            let place = mutex.get() as usize;
            look(place + 8, place, place + 40, &[(1, 2), (sys::gettid(), NEW)]);
            let found = &mut *mutex.get().cast::<Mutex>();
            let result = (found.owner, found.lock & OWNER_BITS);
            // Give it back: the list of robust mutexes is this thread's.
            look(place + 8, place, place + 40, &[(NEW, sys::gettid())]);
            found.owner = sys::gettid();
            libc::pthread_mutex_unlock(mutex.get());
            result
        }
    }

    #[test]
    fn held_mutexes_get_the_new_owner() {
        let own = sys::gettid();
        assert_eq!(renamed_mutex(libc::PTHREAD_MUTEX_NORMAL, false, false), (own, 1));
        assert_eq!(renamed_mutex(libc::PTHREAD_MUTEX_RECURSIVE, false, false), (NEW, 1));
        assert_eq!(renamed_mutex(libc::PTHREAD_MUTEX_ERRORCHECK, false, false), (NEW, 1));
        for kind in [
            libc::PTHREAD_MUTEX_NORMAL,
            libc::PTHREAD_MUTEX_RECURSIVE,
            libc::PTHREAD_MUTEX_ERRORCHECK,
        ] {
            for (robust, inherit) in [(true, false), (false, true), (true, true)] {
                assert_eq!(
                    renamed_mutex(kind, robust, inherit),
                    (NEW, NEW as u32),
                    "{kind} {robust}"
                );
            }
        }
    }

    #[test]
    fn a_writer_is_renamed_and_a_reader_has_no_name() {
        // SAFETY: a lock of this test's own.
        unsafe {
            let lock: &UnsafeCell<libc::pthread_rwlock_t> = Box::leak(Box::new(UnsafeCell::new(std::mem::zeroed())));
            libc::pthread_rwlock_init(lock.get(), std::ptr::null());
            libc::pthread_rwlock_rdlock(lock.get());
            assert!(!is_write_lock(&*lock.get().cast::<ReadWriteLock>()));
            libc::pthread_rwlock_unlock(lock.get());
            libc::pthread_rwlock_wrlock(lock.get());
            let place = lock.get() as usize;
            look(place + 24, place, place + 56, &[(sys::gettid(), NEW)]);
            assert_eq!((*lock.get().cast::<ReadWriteLock>()).writer, NEW);
        }
    }

    #[test]
    fn other_numbers_are_left_alone() {
        let mut numbers = [NEW as u32; 64];
        let place = numbers.as_mut_ptr() as usize;
        for at in (place..place + 256).step_by(8) {
            // SAFETY: inside of the array.
            unsafe { look(at, place, place + 256, &[(NEW, 1)]) };
        }
        assert_eq!(numbers, [NEW as u32; 64]);
    }
}

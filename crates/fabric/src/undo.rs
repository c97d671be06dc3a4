//! Before-images of what the MPI library overwrites in files: see [`resurgo_wire::undo`].
//!
//! - Only bytes that change are kept. ROMIO reads whole blocks, changes a part and writes them back. What others have
//!   written to the rest of the block is theirs.
//! - What does not fit is not kept: then the log is not whole for returns before the rank's next image.
//! - No file is opened here: to close it would release all locks that the process has on it (POSIX, `fcntl`). So what is
//!   open for writing only is not kept.
//! - What a former life has done, and a replaying one leaves out, is in the log already.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_image::Guard;
use resurgo_wire::node_memory::arena;
use resurgo_wire::undo::{self, HALF, HEAD, Inode, MOST_ELSEWHERE, RECORD, Record, What, padded};

use crate::clock::monotonic_ns;
use crate::node::Node;

/// Bytes compared at a time.
const CHUNK: usize = 64 << 10;

/// Start of the log, in the node memory; null: there is none.
static LOG: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// The oldest image that a recovery may begin from, in the node memory.
static OLDEST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Number of this process's last image; each image contains its own.
static IMAGE: AtomicU64 = AtomicU64::new(0);
/// Files whose paths have been put into the log since the last image.
static NAMED: Mutex<Vec<Inode>> = Mutex::new(Vec::new());

fn named() -> MutexGuard<'static, Vec<Inode>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log, of which `used` bytes of `half` count.
pub struct Log {
    start: *mut u8,
    half: usize,
    pub used: usize,
    /// Of these, published.
    published: usize,
}

impl Log {
    /// The log that begins there, if there is one.
    pub fn open(start: *mut u8) -> Option<Log> {
        if start.is_null() {
            return None;
        }
        let mut log = Log {
            start,
            half: 0,
            used: 0,
            published: 0,
        };
        (log.half, log.used) = undo::of_state(log.word(undo::STATE).load(Ordering::Acquire));
        log.published = log.used;
        Some(log)
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the rank's own log, in the node memory, which stays mapped.
        unsafe { &*self.start.add(at).cast() }
    }

    fn half(&self, half: usize) -> *mut u8 {
        // SAFETY: inside the log.
        unsafe { self.start.add(HEAD + half * HALF) }
    }

    /// What counts.
    pub fn records(&self) -> &[u8] {
        // SAFETY: inside the log, which only this rank writes, under a lock.
        unsafe { std::slice::from_raw_parts(self.half(self.half), self.published) }
    }

    /// Writes behind what is there. False: it does not fit.
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        let room = padded(bytes.len());
        if room > HALF - self.used {
            return false;
        }
        // SAFETY: inside of the half, behind all that counts.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.half(self.half).add(self.used), bytes.len()) };
        self.used += room;
        true
    }

    /// The record that begins at `from` gets its first words.
    pub fn close(&mut self, from: usize, record: &Record) {
        let head = record.head(self.used - from - RECORD);
        // SAFETY: inside of the half: room was made for them.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), self.half(self.half).add(from), RECORD) };
    }

    /// From here on what has been put there counts.
    pub fn publish(&mut self) {
        self.word(undo::STATE)
            .store(undo::state(self.half, self.used), Ordering::Release);
        self.published = self.used;
    }

    /// Nothing of it is of use before the next image.
    pub fn give_up(&mut self, image: u64) {
        self.word(undo::SINCE).store(image + 1, Ordering::Release);
        self.used = 0;
        self.publish();
        self.release(self.half);
    }

    /// Gives the memory of a half back.
    fn release(&self, half: usize) {
        // SAFETY: whole pages of the rank's own log that hold nothing. The system call itself: the MPI library may have
        // replaced libc's function.
        unsafe { libc::syscall(libc::SYS_madvise, self.half(half), HALF, libc::MADV_REMOVE) };
    }

    /// Drops what no return needs: images before `oldest` are gone.
    pub fn forget(&mut self, oldest: u64) {
        let counts = |record: &Record| record.image >= oldest;
        if undo::records(self.records()).all(|(_, record)| counts(&record)) {
            return;
        }
        let mut other = Log {
            half: 1 - self.half,
            used: 0,
            published: 0,
            ..*self
        };
        for (whole, record) in undo::records(self.records()) {
            if counts(&record) {
                other.put(whole);
            }
        }
        other.publish();
        self.release(self.half);
        self.word(undo::SINCE).fetch_max(oldest, Ordering::Release);
    }

    /// The records from `from` on were made after image `image`.
    pub fn retag(&mut self, mut from: usize, image: u64) {
        while let Some((whole, _)) = undo::records(&self.records()[from..]).next() {
            let length = whole.len();
            // SAFETY: a word of a record of the rank's own log.
            unsafe {
                let word = self.half(self.half).add(from + undo::IMAGE);
                word.cast::<u64>().write(image.to_le());
            }
            from += length;
        }
    }
}

/// The oldest image that a recovery may begin from.
pub fn oldest() -> Option<u64> {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    let oldest = unsafe { OLDEST.load(Ordering::Acquire).as_ref() };
    oldest.map(|oldest| oldest.load(Ordering::Acquire))
}

/// Number of this process's last image; 0: it has none.
pub fn last_image() -> u64 {
    IMAGE.load(Ordering::Relaxed)
}

/// From here on keeps what the MPI library overwrites, if the rank has a log.
pub fn watch(node: &Node) {
    let oldest: &AtomicU64 = node.own(arena::OLDEST_WAVE);
    OLDEST.store(std::ptr::from_ref(oldest).cast_mut(), Ordering::Release);
    LOG.store(node.undo().unwrap_or_default(), Ordering::Release);
}

/// Image `number` of this process is being taken.
pub fn note_image(number: u64) {
    IMAGE.store(number, Ordering::Relaxed);
    let mut named = named();
    named.clear();
    if let Some((oldest, mut log)) = oldest().zip(Log::open(LOG.load(Ordering::Acquire))) {
        log.forget(oldest);
    }
}

/// The MPI library has opened a file: a former one may have had its number, and another path.
pub fn has_opened(file: Inode) {
    let _guard = Guard::new();
    named().retain(|named| *named != file);
}

/// The MPI library is about to write this to a file that has `end` bytes. Returns whether the log has more, which others
/// must know where a life goes on elsewhere.
pub fn will_write(fd: RawFd, file: Inode, end: u64, from: u64, bytes: &[u8]) -> bool {
    keep(fd, file, end, (from, from + bytes.len() as u64), Some(bytes))
}

/// The MPI library is about to give a file of `end` bytes this length. Returns the same.
pub fn will_cut(fd: RawFd, file: Inode, end: u64, length: u64) -> bool {
    keep(fd, file, end, (length, u64::MAX), None)
}

/// Keeps what lies at a place that becomes `new`, or is cut off. The file has `end` bytes.
fn keep(fd: RawFd, file: Inode, end: u64, place: (u64, u64), new: Option<&[u8]>) -> bool {
    let _guard = Guard::new();
    let (Some(mut log), image) = (Log::open(LOG.load(Ordering::Acquire)), last_image()) else {
        return false;
    };
    let mut named = named();
    if log.word(undo::SINCE).load(Ordering::Relaxed) > image {
        return false;
    }
    let before = log.used;
    let record = Record {
        file,
        image,
        time: monotonic_ns(),
        what: What::Changed(place.0, place.1.min(end), b""),
    };
    match note(&mut named, &mut log, &record, fd, end, place, new) {
        Some(()) => log.publish(),
        None => {
            named.clear();
            log.give_up(image);
        }
    }
    log.used != before && before <= MOST_ELSEWHERE
}

/// As [`keep`]. None: it cannot be kept.
fn note(
    named: &mut Vec<Inode>,
    log: &mut Log,
    record: &Record,
    fd: RawFd,
    length: u64,
    (from, to): (u64, u64),
    new: Option<&[u8]>,
) -> Option<()> {
    if !named.contains(&record.file) {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let (at, name) = (log.used, path.as_os_str().as_encoded_bytes());
        (log.put(&[0; RECORD]) && log.put(name)).then_some(())?;
        let what = What::Path(name);
        log.close(at, &Record { what, ..record.clone() });
        named.push(record.file);
    }
    if from < to.min(length) {
        let at = log.used;
        log.put(&[0; RECORD]).then_some(())?;
        put_changes(log, fd, (from, to.min(length)), new)?;
        log.close(at, record);
    }
    let (from, end) = match new {
        Some(_) => (length.max(from), to),
        None => (length, from),
    };
    if end > length {
        let at = log.used;
        (log.put(&[0; RECORD]) && log.put(&length.to_le_bytes())).then_some(())?;
        let what = What::Longer(from, end, length);
        log.close(at, &Record { what, ..record.clone() });
    }
    Some(())
}

/// Puts the runs of bytes that will be others.
fn put_changes(log: &mut Log, fd: RawFd, (from, to): (u64, u64), new: Option<&[u8]>) -> Option<()> {
    let is_kept = look_at(fd, (from, to), |at, there| match new {
        Some(new) => {
            let new = &new[(at - from) as usize..][..there.len()];
            differing(there, new).all(|run| put_run(log, at + run.start as u64, &there[run]))
        }
        None => put_run(log, at, there),
    });
    is_kept.then_some(())
}

/// Looks at what a file has there, a piece after the other, as long as `goes_on`. Whether it did so to the end.
pub fn look_at(fd: RawFd, (from, to): (u64, u64), mut goes_on: impl FnMut(u64, &[u8]) -> bool) -> bool {
    let mut buffer = vec![0; CHUNK.min((to - from) as usize)];
    (from..to).step_by(CHUNK).all(|at| {
        let there = &mut buffer[..CHUNK.min((to - at) as usize)];
        // SAFETY: reads into memory of that length.
        let got = unsafe { libc::pread(fd, there.as_mut_ptr().cast(), there.len(), at as libc::off_t) };
        got == there.len() as isize && goes_on(at, there)
    })
}

fn put_run(log: &mut Log, from: u64, old: &[u8]) -> bool {
    let length = old.len() as u64;
    log.put(&from.to_le_bytes()) && log.put(&length.to_le_bytes()) && log.put(old)
}

/// The longest runs without a byte in common.
fn differing<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = std::ops::Range<usize>> + 'a {
    let differs = move |at: &usize| old[*at] != new[*at];
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = (from..old.len()).find(differs)?;
        from = (start..old.len()).find(|at| !differs(at)).unwrap_or(old.len());
        Some(start..from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_kept() {
        let runs = |old: &[u8], new: &[u8]| differing(old, new).collect::<Vec<_>>();
        assert_eq!(runs(b"same", b"same"), []);
        assert_eq!(runs(b"abcdef", b"axydeZ"), [1..3, 5..6]);
        assert_eq!(runs(b"abcd", b"xycz"), [0..2, 3..4]);
    }
}

//! What the MPI library has read from files, as input of the program: a life that repeats alone what former ones did gets
//! it from the log, in order. By then this rank or others may have overwritten it.
//!
//! - A life is served as long as there is more in the log: also behind the last message that former lives sent or received.
//! - ROMIO reads whole blocks under a lock, changes a part and writes them back. Others change the rest, so these reads are
//!   done again. When all ranks write together ROMIO needs no lock: nobody goes on before the block is written.
//! - Of what does not fit, the log has a digest. Where a repeated read has another one, the life ends.
//! - A file that keeps a shared pointer is read under a lock, too. The log counts as not whole from then on.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_image::Guard;
use resurgo_wire::undo::{self, HALF, RECORD, Record, What, padded};

use crate::node::Node;
use crate::undo::{Log, last_image, oldest};

/// Once so much of a half is used, only digests are kept.
const CONTENTS: usize = HALF / 2;

/// Start of the log, in the node memory; null: there is none.
static LOG: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// How much of the log this life has read, or written itself.
static DONE: Mutex<usize> = Mutex::new(0);

fn done() -> MutexGuard<'static, usize> {
    DONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open() -> Option<Log> {
    Log::open(LOG.load(Ordering::Acquire))
}

/// A read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    pub from: u64,
    pub wanted: u64,
}

impl Read {
    /// Of the place of the end, eight bytes.
    pub const END: Read = Read {
        from: u64::MAX,
        wanted: 8,
    };
}

/// What former lives have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// None of them has come so far.
    Nothing,
    /// So many bytes, which the caller has now.
    Served(usize),
    /// Bytes of this number and with this digest.
    Digest(u64, u64),
    /// Something else: the life has taken another course.
    Other,
}

/// From here on keeps what is read, if the rank has a log.
pub fn watch(node: &Node) {
    LOG.store(node.reads().unwrap_or_default(), Ordering::Release);
}

/// A life begins, with what the process knows: it is served what was read since.
pub fn begin() {
    let Some(log) = open() else { return };
    let image = last_image();
    let is_before = |record: &Record| record.image < image;
    let before = undo::records(log.records()).take_while(|(_, record)| is_before(record));
    *done() = before.map(|(whole, _)| whole.len()).sum();
}

/// Whether the log has all that was read since this image.
pub fn is_whole(image: u64) -> bool {
    open().is_some_and(|log| log.word(undo::SINCE).load(Ordering::Acquire) <= image)
}

/// Image `number` of this process is being taken.
pub fn note_image(number: u64) {
    let (mut done, Some(mut log)) = (done(), open()) else {
        return;
    };
    let left = log.used - *done;
    log.retag(*done, number);
    if let Some(oldest) = oldest() {
        log.forget(oldest);
    }
    *done = open().map_or(0, |log| log.used) - left;
}

/// Nothing that was read since the last image is in the log.
pub fn give_up() {
    let _guard = Guard::new();
    let (mut done, Some(mut log)) = (done(), open()) else {
        return;
    };
    log.give_up(last_image());
    *done = 0;
}

/// Looks for what former lives have found there. `into` has room for what is wanted; none: it is compared only.
pub fn former(read: Read, into: Option<&mut [u8]>) -> Former {
    let _guard = Guard::new();
    let (mut done, Some(mut log)) = (done(), open()) else {
        return Former::Nothing;
    };
    let Some((whole, record)) = undo::records(&log.records()[*done..]).next() else {
        return Former::Nothing;
    };
    let behind = *done + whole.len();
    let found = match record.what {
        What::Read(from, wanted, bytes) if (Read { from, wanted }) == read => match into {
            Some(into) => {
                into[..bytes.len()].copy_from_slice(bytes);
                Former::Served(bytes.len())
            }
            None => Former::Digest(bytes.len() as u64, undo::digest(bytes)),
        },
        What::Glanced(from, wanted, length, digest) if (Read { from, wanted }) == read => {
            Former::Digest(length, digest)
        }
        _ => Former::Other,
    };
    match found {
        Former::Other => {
            log.used = *done;
            log.publish();
        }
        _ => *done = behind,
    }
    found
}

/// The read has found this. `is_glance`: only its digest is kept.
pub fn note(read: Read, bytes: &[u8], is_glance: bool) {
    let _guard = Guard::new();
    let (mut done, Some(mut log), image) = (done(), open(), last_image()) else {
        return;
    };
    if log.word(undo::SINCE).load(Ordering::Relaxed) > image {
        return;
    }
    let length = bytes.len() as u64;
    let fits = log.used + RECORD + 8 + padded(bytes.len()) <= CONTENTS;
    let (what, behind) = match fits && !is_glance {
        true => (What::Read(read.from, read.wanted, bytes), bytes),
        false => {
            let digest = undo::digest(bytes);
            let what = What::Glanced(read.from, read.wanted, length, digest);
            (what, &digest.to_le_bytes()[..])
        }
    };
    let record = Record {
        file: (0, 0),
        image,
        time: 0,
        what,
    };
    let at = log.used;
    match log.put(&[0; RECORD]) && log.put(&length.to_le_bytes()) && log.put(behind) {
        true => {
            log.close(at, &record);
            log.publish();
        }
        false => log.give_up(image),
    }
    *done = log.used;
}

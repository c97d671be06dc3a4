//! What the MPI library has read from files, and has done to them. A life that repeats alone what former ones did gets the
//! same from the log, in order, and leaves out what has been done: by then this rank or others may have overwritten or
//! removed it.
//!
//! - A life is served as long as there is more in the log: also behind the last message that former lives sent or received.
//! - ROMIO reads whole blocks under a lock, changes a part and writes them back. Others change the rest, so these reads are
//!   done again: see [`crate::under_lock`]. When all ranks write together ROMIO needs no lock: nobody goes on before the
//!   block is written.
//! - Of what does not fit, the log has a digest. Where a repeated read has another one, the life ends.
//! - While a shared pointer has been written, and the log does not say yet what was read, it counts as not whole: a life
//!   that begins then cannot know which pointer it had.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
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
/// Since when the log was whole, while it has [`stop`]ped.
static SINCE: Mutex<Option<u64>> = Mutex::new(None);
/// The MPI library holds a lock.
static LOCKED: AtomicBool = AtomicBool::new(false);
/// In place of a length, of a read that a later life does again.
const AGAIN: u64 = u64::MAX;

fn done() -> MutexGuard<'static, usize> {
    DONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open() -> Option<Log> {
    Log::open(LOG.load(Ordering::Acquire))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    End,
    Open,
    Unlink,
    Write,
    Cut,
}

/// A call of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    kind: Kind,
    pub from: u64,
    pub wanted: u64,
}

/// What the log has of calls that find no bytes: zero, or an error.
pub const OUTCOME: usize = 8;

impl Call {
    /// It asks where the file ends; eight bytes.
    pub const END: Call = Call::new(Kind::End, 0, 8);

    const fn new(kind: Kind, from: u64, wanted: u64) -> Call {
        Call { kind, from, wanted }
    }

    pub const fn read(from: u64, wanted: u64) -> Call {
        Call::new(Kind::Read, from, wanted)
    }

    pub const fn write(from: u64, length: u64) -> Call {
        Call::new(Kind::Write, from, length)
    }

    /// It gives a file this length.
    pub const fn cut(length: u64) -> Call {
        Call::new(Kind::Cut, length, 0)
    }

    pub fn open(name: &[u8]) -> Call {
        Call::new(Kind::Open, 0, undo::digest(name))
    }

    pub fn unlink(name: &[u8]) -> Call {
        Call::new(Kind::Unlink, 0, undo::digest(name))
    }

    /// It finds bytes of a file.
    pub fn is_read(&self) -> bool {
        self.kind == Kind::Read
    }

    fn is(&self, record: &Record, from: u64, wanted: u64) -> bool {
        record.file == (self.kind as u64, 0) && (self.from, self.wanted) == (from, wanted)
    }
}

/// How a call that finds no bytes went in former lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The log does not say.
    Unknown,
    /// None of them has made it.
    New,
    Done,
    /// With this error.
    Failed(c_int),
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
    /// What a life has to read again.
    Again,
    /// Something else: the life has taken another course.
    Other,
}

/// The MPI library holds a lock, under which it writes back what it reads.
pub fn is_locked() -> bool {
    LOCKED.load(Ordering::Relaxed)
}

/// The MPI library has locked a part of a file to write to it, or has given up a lock.
pub fn has_locked(to_write: bool) {
    LOCKED.store(to_write, Ordering::Relaxed);
}

/// From here on keeps what is read, if the rank has a log.
pub fn watch(node: &Node) {
    LOG.store(node.reads().unwrap_or_default(), Ordering::Release);
}

/// A life begins, with what the process knows: it is served what was read since.
pub fn begin() {
    let (Some(mut log), image) = (open(), last_image()) else {
        return;
    };
    if !is_whole() {
        // What it has is of a later image, or lacks what came before.
        log.give_up(image);
    }
    let is_before = |record: &Record| record.image < image;
    let before = undo::records(log.records()).take_while(|(_, record)| is_before(record));
    *done() = before.map(|(whole, _)| whole.len()).sum();
}

/// Whether there is a log at all.
pub fn is_kept() -> bool {
    open().is_some()
}

/// Whether the log has all that was read since the last image.
pub fn is_whole() -> bool {
    open().is_some_and(|log| log.word(undo::SINCE).load(Ordering::Acquire) <= last_image())
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

/// Until [`note_all`] the log is not whole for any image of this process.
pub fn stop() {
    let _guard = Guard::new();
    let Some(log) = open() else { return };
    let since = log.word(undo::SINCE).fetch_max(last_image() + 1, Ordering::AcqRel);
    SINCE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(since);
}

/// The next record, and how far it reaches. How many reads of a block are needed to write it back depends on the length
/// that the file has now, so some may be left out.
fn next_for(call: Call, records: &[u8]) -> Option<(usize, Record<'_>)> {
    let mut length = 0;
    undo::records(records).find_map(|(whole, record)| {
        length += whole.len();
        let is_other = matches!(record.what, What::Glanced(from, wanted, AGAIN, _) if !call.is(&record, from, wanted));
        (!is_other).then_some((length, record))
    })
}

/// How the call went in a former life. If the log says so, it goes on behind it.
pub fn outcome(call: Call) -> Outcome {
    let _guard = Guard::new();
    let (mut done, Some(log)) = (done(), open().filter(|_| is_whole())) else {
        return Outcome::Unknown;
    };
    if let Some((length, record)) = next_for(call, &log.records()[*done..])
        && let What::Read(from, wanted, bytes) = record.what
        && call.is(&record, from, wanted)
        && let Ok(code) = bytes.try_into()
    {
        *done += length;
        return match u64::from_le_bytes(code) {
            0 => Outcome::Done,
            error => Outcome::Failed(error as c_int),
        };
    }
    Outcome::New
}

/// Looks for what former lives have found there. `into` has room for what is wanted.
pub fn former(call: Call, into: &mut [u8]) -> Former {
    let _guard = Guard::new();
    let (mut done, Some(mut log)) = (done(), open()) else {
        return Former::Nothing;
    };
    let Some((length, record)) = next_for(call, &log.records()[*done..]) else {
        return Former::Nothing;
    };
    let behind = *done + length;
    let found = match record.what {
        What::Read(from, wanted, bytes) if call.is(&record, from, wanted) => {
            into[..bytes.len()].copy_from_slice(bytes);
            Former::Served(bytes.len())
        }
        What::Glanced(from, wanted, AGAIN, _) if call.is(&record, from, wanted) => Former::Again,
        What::Glanced(from, wanted, length, digest) if call.is(&record, from, wanted) => Former::Digest(length, digest),
        _ if is_locked() && call.is_read() => return Former::Again,
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

/// The call has found this.
pub fn note(call: Call, bytes: &[u8]) {
    let _guard = Guard::new();
    if is_whole() {
        note_all(std::iter::once((call, bytes, false)));
    }
}

/// What was read under a lock, and which of it a later life reads again. It has all of it, or nothing.
pub fn note_all<'a>(reads: impl Iterator<Item = (Call, &'a [u8], bool)>) {
    let _guard = Guard::new();
    let (mut done, Some(mut log), image) = (done(), open(), last_image()) else {
        return;
    };
    let stopped = SINCE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let word = log.word(undo::SINCE).load(Ordering::Relaxed);
    let since = stopped.unwrap_or(word);
    if since > image {
        return;
    }
    let (mut fits, before) = (true, log.used);
    for (call, bytes, is_again) in reads {
        fits &= match is_again {
            true => put_again(&mut log, call),
            false => put(&mut log, call, bytes),
        };
    }
    match fits {
        true => {
            log.publish();
            log.word(undo::SINCE).store(since, Ordering::Release);
        }
        false => log.give_up(image),
    }
    if log.used != before {
        *done = log.used;
    }
}

/// Puts a record there that does not count yet. False: it does not fit.
fn put(log: &mut Log, call: Call, bytes: &[u8]) -> bool {
    let length = bytes.len() as u64;
    let fits = bytes.len() <= OUTCOME || log.used + RECORD + 8 + padded(bytes.len()) <= CONTENTS;
    match fits {
        true => put_record(log, call, What::Read(call.from, call.wanted, bytes), length, bytes),
        false => {
            let digest = undo::digest(bytes);
            let what = What::Glanced(call.from, call.wanted, length, digest);
            put_record(log, call, what, length, &digest.to_le_bytes())
        }
    }
}

fn put_again(log: &mut Log, call: Call) -> bool {
    let what = What::Glanced(call.from, call.wanted, AGAIN, 0);
    put_record(log, call, what, AGAIN, &[0; 8])
}

fn put_record(log: &mut Log, call: Call, what: What, length: u64, behind: &[u8]) -> bool {
    let record = Record {
        file: (call.kind as u64, 0),
        image: last_image(),
        time: 0,
        what,
    };
    let at = log.used;
    let fits = log.put(&[0; RECORD]) && log.put(&length.to_le_bytes()) && log.put(behind);
    if fits {
        log.close(at, &record);
    }
    fits
}

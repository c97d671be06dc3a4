//! What the MPI library reads and writes while it holds a lock on a file. When it gives the lock up, it is known what the
//! reads were for. No image comes in between, as [`crate::files`] sees to.
//!
//! - *It has written to the same place*: it has read a block, changed a part, and written it back. Others change the rest,
//!   so a later life does that again.
//! - *It has not*: the program has it (atomic mode). A later life gets the same from the [`read_log`].
//! - *The file holds a shared pointer*: the program has it, although the library has written the next one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_wire::undo::Inode;

use crate::lost_reads;
use crate::read_log::{self, Call};

struct Pending {
    file: Inode,
    call: Call,
    bytes: Vec<u8>,
    /// The log has it already.
    is_known: bool,
    is_written_back: bool,
}

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

fn pending() -> MutexGuard<'static, Vec<Pending>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The call has found this.
pub fn has_found(file: Inode, call: Call, bytes: &[u8], is_known: bool) {
    let bytes = match is_known || !read_log::is_kept() {
        true => Vec::new(),
        false => bytes.to_vec(),
    };
    pending().push(Pending {
        file,
        call,
        bytes,
        is_known,
        is_written_back: false,
    });
}

/// The library writes from one place to another.
pub fn will_write(file: Inode, from: u64, to: u64) {
    if !read_log::is_locked() || lost_reads::holds_pointer(file) {
        return;
    }
    for Pending {
        call, is_written_back, ..
    } in pending().iter_mut().filter(|pending| pending.file == file)
    {
        *is_written_back |= call.is_read() && call.from < to && from < call.from + call.wanted;
    }
}

/// The library has given the lock up.
pub fn is_over() {
    let pending = std::mem::take(&mut *pending());
    let reads = pending.iter().filter(|pending| pending.call.is_read());
    for Pending { file, call, .. } in reads.filter(|pending| !pending.is_written_back) {
        lost_reads::has_read(*file, call.from, call.wanted);
    }
    let new = pending.iter().filter(|pending| !pending.is_known);
    read_log::note_all(new.map(|pending| (pending.call, &pending.bytes[..], pending.is_written_back)));
}

//! What a process that has an image says to the agent about its file.

use resurgo_wire::image::{Datagram, Kind};

use super::digest::Digest;
use crate::sys::{self, call};
use crate::talk::{self, Received};
use crate::trouble::Trouble;

/// Syncs the directory that comes with the request, if that is what the agent asks for: names in it will last.
pub fn sync(socket: i32, request: &Received) {
    if request.datagram.kind == Kind::Sync && request.count > 0 {
        // SAFETY: about the directory just received.
        let _ = unsafe { call!(libc::SYS_fsync, request.descriptors[0]) };
        let _ = talk::send(socket, &Datagram::new(Kind::Synced, request.datagram.a, 0, 0), &[]);
    }
}

/// Tells the agent what has become of the file of image `number`, begun at `start`.
pub fn say_written(socket: i32, number: u64, written: Result<(u64, Digest), Trouble>, start: u64) {
    let said = match written {
        Ok((bytes, digest)) => {
            let written = Datagram::new(Kind::Written, number, bytes, sys::now_ns() - start);
            written.with_text(std::str::from_utf8(&digest).unwrap_or_default())
        }
        Err(trouble) => Datagram::new(Kind::WriteFailed, number, trouble.errno as u64, 0).with_text(trouble.what),
    };
    let _ = talk::send(socket, &said, &[]);
}

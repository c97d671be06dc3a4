//! What a process with an image tells the agent about the image's file.

use resurgo_wire::image::{Datagram, Kind};

use super::digest::Digest;
use crate::sys::{self, call};
use crate::talk::{self, Received};
use crate::trouble::Trouble;

/// Syncs the directory that comes with the request, if the agent asks for that, so that names in it will last.
pub fn sync(socket: i32, request: &Received) {
    if request.datagram.kind == Kind::Sync && request.count > 0 {
        // SAFETY: about the directory just received.
        let _ = unsafe { call!(libc::SYS_fsync, request.descriptors[0]) };
        let _ = talk::send(socket, &Datagram::new(Kind::Synced, request.datagram.a, 0, 0), &[]);
    }
}

/// Tells the agent how writing the file of image `number` ended; writing began at `start`.
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

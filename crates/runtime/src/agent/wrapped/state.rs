//! What the agent knows of a program below a wrapper that is, or is about to be, its own child.

use std::io::PipeReader;
use std::os::unix::net::UnixStream;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_protocol::coordinator::Manner;

/// A bit in the numbers of requests to part: they are no images, and the rank must not take what is said of one for an
/// answer.
pub(super) const PART: u64 = 1 << 63;

/// Said of an image for which a rank was asked too late.
pub(super) const ENDED: &str = "its program is not running any more";

pub(super) struct Parting {
    /// The request's number.
    pub request: u64,
    /// The image that it is for.
    pub number: u64,
    pub manner: Manner,
    /// Somebody still waits for that.
    pub is_wanted: bool,
    /// The copy.
    pub process: Option<Pid>,
    /// To the place holder.
    pub holder: Socket,
}

pub(super) struct Above {
    /// It leads a process group.
    pub wrapper: Pid,
    pub holder: Socket,
    /// Its connections, once the program has others.
    pub kept: Option<Kept>,
    /// It has ended, or the place holder has been killed.
    pub is_lost: bool,
    /// Signals that it has sent the program, and those of them that no life has got yet.
    pub sent: Vec<Signal>,
    pub waiting: Vec<Signal>,
}

/// Connections of the life that began with the wrapper.
pub(super) struct Kept {
    pub pmi: UnixStream,
    pub image: Option<Socket>,
    pub outputs: [Option<PipeReader>; 2],
}

impl Above {
    pub fn new(wrapper: Pid, holder: Socket) -> Above {
        Above {
            wrapper,
            holder,
            kept: None,
            is_lost: false,
            sent: Vec::new(),
            waiting: Vec::new(),
        }
    }

    pub fn signal(&self, signal: Signal) {
        // It may be gone already.
        let _ = killpg(self.wrapper, signal);
    }
}

//! The signal that stops threads, and what the kernel knows of signals.

use crate::SIGNAL;
use crate::sys::{self, Errno, call};

/// What the kernel does with a signal.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAction {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

impl KernelAction {
    pub const DEFAULT: KernelAction = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
}

/// Marks a signal as ours: glibc uses the same signal, by tgkill, when a process with threads changes its user.
const OURS: usize = 0x7265_7375_7267_6f21;

/// The beginning of siginfo_t as rt_tgsigqueueinfo takes it.
#[repr(C)]
pub struct Information {
    signal: i32,
    error: i32,
    code: i32,
    _padding: i32,
    pid: i32,
    uid: u32,
    value: usize,
    _rest: [u64; 12],
}

/// Sends [`SIGNAL`] to a thread of process `pid`.
pub fn send(pid: i32, tid: i32) -> Result<(), Errno> {
    let information = Information {
        signal: SIGNAL,
        error: 0,
        code: libc::SI_QUEUE,
        _padding: 0,
        pid: sys::getpid(),
        uid: 0,
        value: OURS,
        _rest: [0; 12],
    };
    // SAFETY: the kernel reads 128 bytes.
    unsafe { call!(libc::SYS_rt_tgsigqueueinfo, pid, tid, SIGNAL, &raw const information) }.map(|_| ())
}

impl Information {
    /// True if [`send`] sent it.
    pub fn is_ours(&self) -> bool {
        self.code == libc::SI_QUEUE && self.value == OURS
    }
}

//! What a send asks for, and what a finished operation tells.

use crate::ofi::FiCqTaggedEntry;
use std::ffi::{c_int, c_void};

/// A finished operation, as `fi_cq_read` (error 0) or `fi_cq_readerr` reports it.
#[derive(Clone, Copy)]
pub struct Completion {
    pub entry: FiCqTaggedEntry,
    pub error: c_int,
    /// Bytes that did not fit (FI_ETRUNC).
    pub overflow: usize,
    pub source: u32,
}

/// What a send reports when it is done.
#[derive(Clone, Copy)]
pub struct SendContext {
    pub context: *mut c_void,
    pub flags: u64,
    /// False: nobody wants to know.
    pub completes: bool,
    /// The memory is the caller's again on return: it cannot wait for room.
    pub inject: bool,
}

impl SendContext {
    /// Nobody wants to know of it.
    pub const QUIET: SendContext = SendContext {
        context: std::ptr::null_mut(),
        flags: 0,
        completes: false,
        inject: false,
    };

    /// What is told when the message has left.
    #[inline]
    pub fn completion(&self) -> Option<Completion> {
        self.completes.then_some(Completion {
            entry: FiCqTaggedEntry {
                op_context: self.context,
                flags: self.flags,
                len: 0,
                buf: std::ptr::null_mut(),
                data: 0,
                tag: 0,
            },
            error: 0,
            overflow: 0,
            source: 0,
        })
    }
}

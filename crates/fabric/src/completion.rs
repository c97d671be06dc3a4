//! What a send asks for, and what a finished operation reports.

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
    /// False: the send reports no completion.
    pub completes: bool,
    /// On return the memory is the caller's again: the send cannot wait for room.
    pub inject: bool,
}

impl SendContext {
    /// A send that reports nothing.
    pub const QUIET: SendContext = SendContext {
        context: std::ptr::null_mut(),
        flags: 0,
        completes: false,
        inject: false,
    };

    /// The completion of a message that has left, if the send reports one.
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

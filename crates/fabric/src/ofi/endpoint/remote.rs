//! Remote memory: `fi_read` and `fi_write`, each in three ways, and `fi_inject_write`.

use super::{Endpoint, NO_COMPLETION, iov, pieces};
use crate::completion::SendContext;
use crate::engine::Engine;
use crate::ofi::*;
use std::ffi::c_void;

/// The calls of one family, in libfabric's order: operations of the engine with this capability.
macro_rules! family {
    ($operation:path, $kind:expr; $call:ident $callv:ident) => {
        // SAFETY of all: libfabric's contract for the call of the same name: an open endpoint, buffers of the lengths
        // given that stay valid until the operation completes.

        pub unsafe extern "C" fn $call(
            endpoint: *mut Endpoint,
            buffer: *mut c_void,
            bytes: usize,
            _desc: *mut c_void,
            target: u64,
            address: u64,
            key: u64,
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let context = (*endpoint).default_context(context, $kind);
                start(
                    $operation,
                    endpoint,
                    target,
                    &iov(buffer, bytes),
                    (address, key),
                    context,
                )
            }
        }

        pub unsafe extern "C" fn $callv(
            endpoint: *mut Endpoint,
            vector: *const libc::iovec,
            _desc: *mut *mut c_void,
            count: usize,
            target: u64,
            address: u64,
            key: u64,
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let context = (*endpoint).default_context(context, $kind);
                start(
                    $operation,
                    endpoint,
                    target,
                    pieces(vector, count),
                    (address, key),
                    context,
                )
            }
        }
    };
}

family!(Engine::read_remote, FI_RMA | FI_READ; read readv);
family!(Engine::write_remote, FI_RMA | FI_WRITE; write writev);

type Operation = fn(&mut Engine, usize, &[libc::iovec], u64, u64, SendContext) -> isize;

#[inline]
unsafe fn start(
    operation: Operation,
    endpoint: *mut Endpoint,
    target: u64,
    vector: &[libc::iovec],
    (address, key): (u64, u64),
    context: SendContext,
) -> isize {
    // SAFETY: an open endpoint; its engine lives as long as the process.
    unsafe {
        match (*endpoint).rank(target) {
            Some(rank) => operation(&mut *(*endpoint).engine, rank, vector, address, key, context),
            None => -(FI_EINVAL as isize),
        }
    }
}

pub unsafe extern "C" fn readmsg(endpoint: *mut Endpoint, message: *const FiMsgRma, op_flags: u64) -> isize {
    // SAFETY: libfabric's contract: an open endpoint, a message with whole vectors.
    unsafe {
        let message = &*message;
        if message.rma_iov_count != 1 {
            return -(FI_EINVAL as isize);
        }
        let remote = &*message.rma_iov;
        let context = (*endpoint).send_context(message.context, op_flags & !FI_INJECT, FI_RMA | FI_READ);
        let vector = pieces(message.msg_iov, message.iov_count);
        start(
            Engine::read_remote,
            endpoint,
            message.addr,
            vector,
            (remote.addr, remote.key),
            context,
        )
    }
}

pub unsafe extern "C" fn writemsg(endpoint: *mut Endpoint, message: *const FiMsgRma, op_flags: u64) -> isize {
    // SAFETY: libfabric's contract: an open endpoint, a message with whole vectors.
    unsafe {
        let message = &*message;
        if message.rma_iov_count != 1 || op_flags & FI_REMOTE_CQ_DATA != 0 {
            return -(FI_EINVAL as isize);
        }
        let remote = &*message.rma_iov;
        let context = (*endpoint).send_context(message.context, op_flags, FI_RMA | FI_WRITE);
        let vector = pieces(message.msg_iov, message.iov_count);
        start(
            Engine::write_remote,
            endpoint,
            message.addr,
            vector,
            (remote.addr, remote.key),
            context,
        )
    }
}

pub unsafe extern "C" fn inject_write(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    target: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: libfabric's contract: an open endpoint, a buffer of that length.
    unsafe {
        start(
            Engine::write_remote,
            endpoint,
            target,
            &iov(buffer, bytes),
            (address, key),
            NO_COMPLETION,
        )
    }
}

//! Sends: `fi_send` and `fi_tsend`, each in six ways.

use super::{Endpoint, NO_COMPLETION, iov, pieces};
use crate::completion::SendContext;
use crate::message::{Envelope, HAS_DATA, Kind};
use crate::ofi::*;
use std::ffi::c_void;

#[inline]
unsafe fn put(
    endpoint: *mut Endpoint,
    destination: u64,
    envelope: Envelope,
    iov: &[libc::iovec],
    context: SendContext,
) -> isize {
    // SAFETY: an open endpoint; its engine lives as long as the process.
    unsafe {
        let Some(rank) = (*endpoint).rank(destination) else {
            return -(FI_EINVAL as isize);
        };
        (*(*endpoint).engine).send(rank, envelope, iov, context)
    }
}

#[inline]
fn tagged(data: Option<u64>, tag: u64) -> Envelope {
    Envelope {
        kind: Kind::Tagged,
        flags: if data.is_some() { HAS_DATA } else { 0 },
        tag,
        data: data.unwrap_or(0),
    }
}

#[inline]
fn untagged(data: Option<u64>) -> Envelope {
    Envelope {
        kind: Kind::Untagged,
        ..tagged(data, 0)
    }
}

/// The calls of one family, in libfabric's order: of messages with this capability, envelope and, if there is one, tag.
macro_rules! family {
    ($kind:ident, $envelope:ident, $message:ident $(, $tag:ident)?;
     $send:ident $sendv:ident $sendmsg:ident $inject:ident $senddata:ident $injectdata:ident) => {
        // SAFETY of all: libfabric's contract for the call of the same name: an open endpoint, buffers of the lengths
        // given that stay valid until the operation completes, messages with whole vectors.

        pub unsafe extern "C" fn $send(
            endpoint: *mut Endpoint,
            buffer: *const c_void,
            bytes: usize,
            _desc: *mut c_void,
            destination: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let context = (*endpoint).default_context(context, $kind);
                put(endpoint, destination, $envelope(None $(, $tag)?), &iov(buffer, bytes), context)
            }
        }

        pub unsafe extern "C" fn $sendv(
            endpoint: *mut Endpoint,
            vector: *const libc::iovec,
            _desc: *mut *mut c_void,
            count: usize,
            destination: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let context = (*endpoint).default_context(context, $kind);
                put(endpoint, destination, $envelope(None $(, $tag)?), pieces(vector, count), context)
            }
        }

        pub unsafe extern "C" fn $sendmsg(endpoint: *mut Endpoint, message: *const $message, op_flags: u64) -> isize {
            unsafe {
                let message = &*message;
                let data = (op_flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
                let context = (*endpoint).send_context(message.context, op_flags, $kind);
                let vector = pieces(message.msg_iov, message.iov_count);
                put(endpoint, message.addr, $envelope(data $(, message.$tag)?), vector, context)
            }
        }

        pub unsafe extern "C" fn $inject(
            endpoint: *mut Endpoint,
            buffer: *const c_void,
            bytes: usize,
            destination: u64
            $(, $tag: u64)?
        ) -> isize {
            unsafe { put(endpoint, destination, $envelope(None $(, $tag)?), &iov(buffer, bytes), NO_COMPLETION) }
        }

        pub unsafe extern "C" fn $senddata(
            endpoint: *mut Endpoint,
            buffer: *const c_void,
            bytes: usize,
            _desc: *mut c_void,
            data: u64,
            destination: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let context = (*endpoint).default_context(context, $kind);
                put(endpoint, destination, $envelope(Some(data) $(, $tag)?), &iov(buffer, bytes), context)
            }
        }

        pub unsafe extern "C" fn $injectdata(
            endpoint: *mut Endpoint,
            buffer: *const c_void,
            bytes: usize,
            data: u64,
            destination: u64
            $(, $tag: u64)?
        ) -> isize {
            unsafe { put(endpoint, destination, $envelope(Some(data) $(, $tag)?), &iov(buffer, bytes), NO_COMPLETION) }
        }
    };
}

family!(FI_MSG, untagged, FiMsg; send sendv sendmsg inject senddata injectdata);
family!(FI_TAGGED, tagged, FiMsgTagged, tag; tsend tsendv tsendmsg tinject tsenddata tinjectdata);

//! Receives: `fi_recv` and `fi_trecv`, each in three ways, and probes.

use super::{Endpoint, iov, pieces};
use crate::completion::Completion;
use crate::engine::Engine;
use crate::matching::{Receive, Room, Unexpected, flags};
use crate::ofi::*;
use resurgo_image::Guard;
use std::ffi::c_void;
use std::ptr::null_mut;

impl Endpoint {
    fn receive(&self, room: Room, source: u64, tag: u64, ignore: u64, context: *mut c_void, op_flags: u64) -> Receive {
        Receive {
            context,
            room,
            source: self.source(source),
            tag,
            ignore,
            multi: (op_flags & FI_MULTI_RECV != 0).then_some(0),
            last_of_multi: false,
            completes: !self.selective_receive || op_flags & FI_COMPLETION != 0,
        }
    }
}

/// The calls of one family without flags: for messages with a tag, or for those without.
macro_rules! family {
    ($is_tagged:literal $(, $tag:ident, $ignore:ident)?; $recv:ident $recvv:ident) => {
        // SAFETY of all: libfabric's contract for the call of the same name: an open endpoint, buffers of the lengths
        // given that stay valid until the operation completes.

        pub unsafe extern "C" fn $recv(
            endpoint: *mut Endpoint,
            buffer: *mut c_void,
            bytes: usize,
            _desc: *mut c_void,
            source: u64,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let wanted = [$(($tag, $ignore),)? (0, u64::MAX)][0];
                receive(endpoint, Room::of(&iov(buffer, bytes)), source, wanted, context, $is_tagged)
            }
        }

        pub unsafe extern "C" fn $recvv(
            endpoint: *mut Endpoint,
            vector: *const libc::iovec,
            _desc: *mut *mut c_void,
            count: usize,
            source: u64,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            unsafe {
                let wanted = [$(($tag, $ignore),)? (0, u64::MAX)][0];
                receive(endpoint, Room::of(pieces(vector, count)), source, wanted, context, $is_tagged)
            }
        }
    };
}

family!(false; recv recvv);
family!(true, tag, ignore; trecv trecvv);

#[inline]
unsafe fn receive(
    endpoint: *mut Endpoint,
    room: Room,
    source: u64,
    (tag, ignore): (u64, u64),
    context: *mut c_void,
    is_tagged: bool,
) -> isize {
    // SAFETY: an open endpoint; its engine lives as long as the process.
    unsafe {
        let endpoint = &*endpoint;
        let receive = endpoint.receive(room, source, tag, ignore, context, endpoint.receive_flags);
        (*endpoint.engine).receive(receive, is_tagged);
    }
    0
}

/// SAFETY: libfabric's contract for the call of the same name.
pub unsafe extern "C" fn recvmsg(endpoint: *mut Endpoint, message: *const FiMsg, op_flags: u64) -> isize {
    unsafe {
        let (endpoint, message) = (&*endpoint, &*message);
        let engine = &mut *endpoint.engine;
        if op_flags & FI_MULTI_RECV != 0 && std::mem::take(&mut engine.calls.refuses_buffer) {
            return -(FI_ECANCELED as isize);
        }
        let room = Room::of(pieces(message.msg_iov, message.iov_count));
        let receive = endpoint.receive(room, message.addr, 0, u64::MAX, message.context, op_flags);
        engine.receive(receive, false);
    }
    0
}

/// SAFETY: libfabric's contract for the call of the same name.
pub unsafe extern "C" fn trecvmsg(endpoint: *mut Endpoint, message: *const FiMsgTagged, op_flags: u64) -> isize {
    let _guard = Guard::new();
    unsafe {
        let (endpoint, message) = (&*endpoint, &*message);
        let engine = &mut *endpoint.engine;
        let room = Room::of(pieces(message.msg_iov, message.iov_count));
        let receive = endpoint.receive(
            room,
            message.addr,
            message.tag,
            message.ignore,
            message.context,
            op_flags & !FI_MULTI_RECV,
        );
        if op_flags & FI_PEEK != 0 {
            return peek(engine, receive, op_flags);
        }
        if op_flags & FI_CLAIM != 0 {
            let Some(found) = engine.calls.matching.claimed(message.context) else {
                return -(FI_ENOMSG as isize);
            };
            if op_flags & FI_DISCARD != 0 {
                return discard(engine, *found, receive);
            }
            engine.calls.give(found, receive);
            return 0;
        }
        engine.receive(receive, true);
    }
    0
}

/// A probe: it looks only at delivered messages, so its answer replays.
fn peek(engine: &mut Engine, probe: Receive, op_flags: u64) -> isize {
    let Some(found) = engine.calls.matching.peek(&probe) else {
        return -(FI_ENOMSG as isize);
    };
    let completion = Completion {
        entry: FiCqTaggedEntry {
            op_context: probe.context,
            flags: found.flags(),
            len: found.total,
            buf: null_mut(),
            data: found.envelope.data,
            tag: found.envelope.tag,
        },
        error: 0,
        overflow: 0,
        source: found.source,
    };
    if op_flags & (FI_CLAIM | FI_DISCARD) != 0 {
        let context = probe.context;
        let message = engine.calls.matching.take(&probe, true).expect("found above");
        if op_flags & FI_DISCARD != 0 {
            let nowhere = Receive {
                completes: false,
                room: Room::of(&[]),
                ..probe
            };
            drop_message(engine, message, nowhere);
        } else {
            engine.calls.matching.claim(message, context);
        }
    }
    engine.calls.completions.push_back(completion);
    0
}

fn discard(engine: &mut Engine, message: Unexpected, receive: Receive) -> isize {
    let completion = Completion {
        entry: FiCqTaggedEntry {
            op_context: receive.context,
            flags: flags(message.envelope),
            len: 0,
            buf: null_mut(),
            data: message.envelope.data,
            tag: message.envelope.tag,
        },
        error: 0,
        overflow: 0,
        source: message.source,
    };
    engine.calls.completions.push_back(completion);
    0
}

/// Drops an unwanted message. If its last piece has not come, it must stay until then.
fn drop_message(engine: &mut Engine, message: Box<Unexpected>, nowhere: Receive) {
    if !message.complete() {
        engine.calls.give(message, nowhere);
    }
}

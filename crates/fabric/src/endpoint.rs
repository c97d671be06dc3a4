//! The endpoint: libfabric's calls for tagged and untagged messages and remote memory, turned into the engine's.

use crate::engine::{Completion, Engine, SendContext};
use crate::log::{Envelope, HAS_DATA, Kind};
use crate::matching::{Receive, Room, flags};
use crate::objects::{AddressVector, CompletionQueue, Domain, fid, hand_out};
use crate::ofi::*;
use crate::rma;
use resurgo_image::Guard;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

#[repr(C)]
pub struct Endpoint {
    object: FidEp,
    engine: *mut Engine,
    av: *mut AddressVector,
    send_flags: u64,
    receive_flags: u64,
    /// Sends complete only when they are asked to.
    selective_send: bool,
    selective_receive: bool,
}

static FID: FidOps = Ops::new([
    Call(close as *const ()),
    Call(bind as *const ()),
    Call(control as *const ()),
    NO,
    NO,
    NO,
]);
static EP: Ops<7> = Ops::new([
    Call(cancel as *const ()),
    Call(getopt as *const ()),
    Call(setopt as *const ()),
    NO,
    NO,
    NO,
    NO,
]);
static CM: Ops<9> = Ops::new([NO, Call(getname as *const ()), NO, NO, NO, NO, NO, NO, NO]);
static MSG: Ops<9> = Ops::new([
    Call(recv as *const ()),
    Call(recvv as *const ()),
    Call(recvmsg as *const ()),
    Call(send as *const ()),
    Call(sendv as *const ()),
    Call(sendmsg as *const ()),
    Call(inject as *const ()),
    Call(senddata as *const ()),
    Call(injectdata as *const ()),
]);
static TAGGED: Ops<9> = Ops::new([
    Call(trecv as *const ()),
    Call(trecvv as *const ()),
    Call(trecvmsg as *const ()),
    Call(tsend as *const ()),
    Call(tsendv as *const ()),
    Call(tsendmsg as *const ()),
    Call(tinject as *const ()),
    Call(tsenddata as *const ()),
    Call(tinjectdata as *const ()),
]);
static RMA: Ops<9> = Ops::new([
    Call(read as *const ()),
    Call(readv as *const ()),
    Call(readmsg as *const ()),
    Call(write as *const ()),
    Call(writev as *const ()),
    Call(writemsg as *const ()),
    Call(inject_write as *const ()),
    NO,
    NO,
]);
static ATOMIC: Ops<13> = Ops::new([NO; 13]);
static COLLECTIVE: Ops<11> = Ops::new([NO; 11]);

pub unsafe extern "C" fn open(
    domain: *mut Domain,
    info: *const FiInfo,
    ep: *mut *mut Endpoint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: an open domain and an info made by getinfo, its attributes null or whole.
    unsafe {
        if (*info)
            .ep_attr
            .as_ref()
            .is_some_and(|attr| attr.tx_ctx_cnt > 1 || attr.rx_ctx_cnt > 1)
        {
            return -FI_ENOSYS; // contexts shared between endpoints
        }
        (*(*domain).engine).endpoints += 1;
        let op_flags = |flags: Option<u64>| flags.unwrap_or(0);
        *ep = hand_out(Endpoint {
            object: FidEp {
                fid: fid(FI_CLASS_EP, context, &FID),
                ops: &EP,
                cm: &CM,
                msg: &MSG,
                rma: &RMA,
                tagged: &TAGGED,
                atomic: &ATOMIC,
                collective: &COLLECTIVE,
            },
            engine: (*domain).engine,
            av: null_mut(),
            send_flags: op_flags((*info).tx_attr.as_ref().map(|attr| attr.op_flags)),
            receive_flags: op_flags((*info).rx_attr.as_ref().map(|attr| attr.op_flags)),
            selective_send: false,
            selective_receive: false,
        });
    }
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    let endpoint = unsafe { Box::from_raw(fid.cast::<Endpoint>()) };
    // SAFETY: the engine lives as long as the process.
    unsafe {
        (*endpoint.engine).endpoints -= 1;
        if (*endpoint.engine).endpoints == 0 {
            (*endpoint.engine).close();
        }
    }
    0
}

unsafe extern "C" fn bind(endpoint: *mut Endpoint, other: *mut Fid, flags: u64) -> c_int {
    // SAFETY: an open endpoint and another open object, told apart by its class.
    unsafe {
        match (*other).fclass {
            FI_CLASS_AV => (*endpoint).av = other.cast(),
            FI_CLASS_CQ => {
                let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                if flags & FI_SEND != 0 {
                    (*endpoint).selective_send = selective;
                }
                if flags & FI_RECV != 0 {
                    (*endpoint).selective_receive = selective;
                }
                (*other.cast::<CompletionQueue>()).av = (*endpoint).av;
            }
            FI_CLASS_CNTR | FI_CLASS_EQ => (),
            _ => return -FI_EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(endpoint: *mut Endpoint, command: c_int, argument: *mut u64) -> c_int {
    match command {
        FI_ENABLE => 0,
        // SAFETY: the argument of these commands is a place for flags.
        FI_GETOPSFLAG => unsafe {
            *argument = if *argument & FI_RECV != 0 {
                (*endpoint).receive_flags
            } else {
                (*endpoint).send_flags
            };
            0
        },
        // SAFETY: as above.
        FI_SETOPSFLAG => unsafe {
            let flags = *argument & !(FI_SEND | FI_RECV);
            if *argument & FI_RECV != 0 {
                (*endpoint).receive_flags = flags
            } else {
                (*endpoint).send_flags = flags
            }
            0
        },
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn getname(endpoint: *mut Endpoint, name: *mut u8, length: *mut usize) -> c_int {
    // SAFETY: an open endpoint; room of `length` bytes.
    unsafe {
        let bytes = (*(*endpoint).engine).name().to_le_bytes();
        let room = *length;
        *length = 8;
        if room < 8 {
            return -257; // FI_ETOOSMALL
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), name, 8);
    }
    0
}

unsafe extern "C" fn setopt(
    endpoint: *mut Endpoint,
    level: c_int,
    option: c_int,
    value: *const usize,
    length: usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV || length != 8 {
        return -FI_ENOSYS;
    }
    // SAFETY: an open endpoint and a size.
    unsafe { (*(*endpoint).engine).min_multi_recv = *value };
    0
}

unsafe extern "C" fn getopt(
    endpoint: *mut Endpoint,
    level: c_int,
    option: c_int,
    value: *mut usize,
    length: *mut usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV {
        return -FI_ENOSYS;
    }
    // SAFETY: an open endpoint and room for a size.
    unsafe {
        *value = (*(*endpoint).engine).min_multi_recv;
        *length = 8;
    }
    0
}

unsafe extern "C" fn cancel(endpoint: *mut Endpoint, context: *mut c_void) -> isize {
    // SAFETY: an open endpoint.
    unsafe { (*(*endpoint).engine).cancel(context) }
}

// ---- sending ----

impl Endpoint {
    fn rank(&self, address: u64) -> Option<usize> {
        // SAFETY: bound before the endpoint is used.
        unsafe { self.av.as_ref() }.and_then(|av| av.rank(address))
    }

    fn send_context(&self, context: *mut c_void, op_flags: u64, kind: u64) -> SendContext {
        SendContext {
            context,
            flags: FI_SEND | kind,
            completes: !self.selective_send || op_flags & FI_COMPLETION != 0,
            inject: op_flags & FI_INJECT != 0,
        }
    }

    fn source(&self, address: u64) -> Option<u32> {
        if address == FI_ADDR_UNSPEC {
            None
        } else {
            self.rank(address).map(|rank| rank as u32)
        }
    }
}

fn iov(buffer: *const c_void, bytes: usize) -> [libc::iovec; 1] {
    [libc::iovec {
        iov_base: buffer.cast_mut(),
        iov_len: bytes,
    }]
}

/// # Safety
/// `pieces` points to `count` pieces, or count is 0.
unsafe fn pieces<'a>(pieces: *const libc::iovec, count: usize) -> &'a [libc::iovec] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as required above.
    unsafe { std::slice::from_raw_parts(pieces, count) }
}

const NO_INJECT_COMPLETION: SendContext = SendContext {
    context: null_mut(),
    flags: 0,
    completes: false,
    inject: true,
};

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
fn tagged(tag: u64, data: Option<u64>) -> Envelope {
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
        ..tagged(0, data)
    }
}

macro_rules! default_context {
    ($endpoint:expr, $context:expr, $kind:expr) => {
        (*$endpoint).send_context($context, (*$endpoint).send_flags & !FI_INJECT, $kind)
    };
}

// In all calls below: SAFETY: libfabric's contract for the call of the same name: an open endpoint, buffers of the
// lengths given that stay valid until the operation completes, messages with whole vectors.

unsafe extern "C" fn tsend(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    _desc: *mut c_void,
    destination: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_TAGGED);
        put(endpoint, destination, tagged(tag, None), &iov(buffer, bytes), context)
    }
}

unsafe extern "C" fn tsendv(
    endpoint: *mut Endpoint,
    vector: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    destination: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_TAGGED);
        put(endpoint, destination, tagged(tag, None), pieces(vector, count), context)
    }
}

unsafe extern "C" fn tsendmsg(endpoint: *mut Endpoint, message: *const FiMsgTagged, op_flags: u64) -> isize {
    unsafe {
        let message = &*message;
        let data = (op_flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let context = (*endpoint).send_context(message.context, op_flags, FI_TAGGED);
        let vector = pieces(message.msg_iov, message.iov_count);
        put(endpoint, message.addr, tagged(message.tag, data), vector, context)
    }
}

unsafe extern "C" fn tinject(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    destination: u64,
    tag: u64,
) -> isize {
    unsafe {
        put(
            endpoint,
            destination,
            tagged(tag, None),
            &iov(buffer, bytes),
            NO_INJECT_COMPLETION,
        )
    }
}

unsafe extern "C" fn tsenddata(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    _desc: *mut c_void,
    data: u64,
    destination: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_TAGGED);
        put(
            endpoint,
            destination,
            tagged(tag, Some(data)),
            &iov(buffer, bytes),
            context,
        )
    }
}

unsafe extern "C" fn tinjectdata(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    data: u64,
    destination: u64,
    tag: u64,
) -> isize {
    unsafe {
        put(
            endpoint,
            destination,
            tagged(tag, Some(data)),
            &iov(buffer, bytes),
            NO_INJECT_COMPLETION,
        )
    }
}

unsafe extern "C" fn send(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    _desc: *mut c_void,
    destination: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_MSG);
        put(endpoint, destination, untagged(None), &iov(buffer, bytes), context)
    }
}

unsafe extern "C" fn sendv(
    endpoint: *mut Endpoint,
    vector: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    destination: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_MSG);
        put(endpoint, destination, untagged(None), pieces(vector, count), context)
    }
}

unsafe extern "C" fn sendmsg(endpoint: *mut Endpoint, message: *const FiMsg, op_flags: u64) -> isize {
    unsafe {
        let message = &*message;
        let data = (op_flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let context = (*endpoint).send_context(message.context, op_flags, FI_MSG);
        put(
            endpoint,
            message.addr,
            untagged(data),
            pieces(message.msg_iov, message.iov_count),
            context,
        )
    }
}

unsafe extern "C" fn inject(endpoint: *mut Endpoint, buffer: *const c_void, bytes: usize, destination: u64) -> isize {
    unsafe {
        put(
            endpoint,
            destination,
            untagged(None),
            &iov(buffer, bytes),
            NO_INJECT_COMPLETION,
        )
    }
}

unsafe extern "C" fn senddata(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    _desc: *mut c_void,
    data: u64,
    destination: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_MSG);
        put(
            endpoint,
            destination,
            untagged(Some(data)),
            &iov(buffer, bytes),
            context,
        )
    }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    data: u64,
    destination: u64,
) -> isize {
    unsafe {
        put(
            endpoint,
            destination,
            untagged(Some(data)),
            &iov(buffer, bytes),
            NO_INJECT_COMPLETION,
        )
    }
}

// ---- receiving ----

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

unsafe extern "C" fn trecv(
    endpoint: *mut Endpoint,
    buffer: *mut c_void,
    bytes: usize,
    _desc: *mut c_void,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let endpoint = &*endpoint;
        let room = Room::of(&iov(buffer, bytes));
        let receive = endpoint.receive(room, source, tag, ignore, context, endpoint.receive_flags);
        (*endpoint.engine).receive(receive, true);
    }
    0
}

unsafe extern "C" fn trecvv(
    endpoint: *mut Endpoint,
    vector: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let endpoint = &*endpoint;
        let room = Room::of(pieces(vector, count));
        let receive = endpoint.receive(room, source, tag, ignore, context, endpoint.receive_flags);
        (*endpoint.engine).receive(receive, true);
    }
    0
}

unsafe extern "C" fn trecvmsg(endpoint: *mut Endpoint, message: *const FiMsgTagged, op_flags: u64) -> isize {
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
            let Some(found) = engine.matching.claimed(message.context) else {
                return -(FI_ENOMSG as isize);
            };
            if op_flags & FI_DISCARD != 0 {
                return discard(engine, *found, receive);
            }
            engine.give(found, receive);
            return 0;
        }
        engine.receive(receive, true);
    }
    0
}

/// A probe: looks only at messages that have been delivered, so its answer replays.
fn peek(engine: &mut Engine, probe: Receive, op_flags: u64) -> isize {
    let Some(found) = engine.matching.peek(&probe) else {
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
        let message = engine.matching.take(&probe, true).expect("found above");
        if op_flags & FI_DISCARD != 0 {
            let nowhere = Receive {
                completes: false,
                room: Room::of(&[]),
                ..probe
            };
            drop_message(engine, message, nowhere);
        } else {
            engine.matching.claim(message, context);
        }
    }
    engine.completions.push_back(completion);
    0
}

fn discard(engine: &mut Engine, message: crate::matching::Unexpected, receive: Receive) -> isize {
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
    engine.completions.push_back(completion);
    0
}

/// Lets a message go that nobody wants. One whose last piece has not come must stay until then.
fn drop_message(engine: &mut Engine, message: Box<crate::matching::Unexpected>, nowhere: Receive) {
    if !message.complete() {
        engine.give(message, nowhere);
    }
}

unsafe extern "C" fn recv(
    endpoint: *mut Endpoint,
    buffer: *mut c_void,
    bytes: usize,
    _desc: *mut c_void,
    source: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let endpoint = &*endpoint;
        let room = Room::of(&iov(buffer, bytes));
        let receive = endpoint.receive(room, source, 0, u64::MAX, context, endpoint.receive_flags);
        (*endpoint.engine).receive(receive, false);
    }
    0
}

unsafe extern "C" fn recvv(
    endpoint: *mut Endpoint,
    vector: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    source: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let endpoint = &*endpoint;
        let room = Room::of(pieces(vector, count));
        let receive = endpoint.receive(room, source, 0, u64::MAX, context, endpoint.receive_flags);
        (*endpoint.engine).receive(receive, false);
    }
    0
}

unsafe extern "C" fn recvmsg(endpoint: *mut Endpoint, message: *const FiMsg, op_flags: u64) -> isize {
    unsafe {
        let (endpoint, message) = (&*endpoint, &*message);
        let room = Room::of(pieces(message.msg_iov, message.iov_count));
        let receive = endpoint.receive(room, message.addr, 0, u64::MAX, message.context, op_flags);
        (*endpoint.engine).receive(receive, false);
    }
    0
}

// ---- remote memory ----

unsafe extern "C" fn read(
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
        let context = default_context!(endpoint, context, FI_RMA | FI_READ);
        let Some(rank) = (*endpoint).rank(target) else {
            return -(FI_EINVAL as isize);
        };
        rma::read(
            &mut *(*endpoint).engine,
            rank,
            &iov(buffer, bytes),
            address,
            key,
            context,
        )
    }
}

unsafe extern "C" fn readv(
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
        let context = default_context!(endpoint, context, FI_RMA | FI_READ);
        let Some(rank) = (*endpoint).rank(target) else {
            return -(FI_EINVAL as isize);
        };
        rma::read(
            &mut *(*endpoint).engine,
            rank,
            pieces(vector, count),
            address,
            key,
            context,
        )
    }
}

unsafe extern "C" fn readmsg(endpoint: *mut Endpoint, message: *const FiMsgRma, op_flags: u64) -> isize {
    unsafe {
        let message = &*message;
        if message.rma_iov_count != 1 {
            return -(FI_EINVAL as isize);
        }
        let remote = &*message.rma_iov;
        let context = (*endpoint).send_context(message.context, op_flags & !FI_INJECT, FI_RMA | FI_READ);
        let Some(rank) = (*endpoint).rank(message.addr) else {
            return -(FI_EINVAL as isize);
        };
        let vector = pieces(message.msg_iov, message.iov_count);
        rma::read(&mut *(*endpoint).engine, rank, vector, remote.addr, remote.key, context)
    }
}

unsafe extern "C" fn write(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    _desc: *mut c_void,
    target: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    unsafe {
        let context = default_context!(endpoint, context, FI_RMA | FI_WRITE);
        let Some(rank) = (*endpoint).rank(target) else {
            return -(FI_EINVAL as isize);
        };
        rma::write(
            &mut *(*endpoint).engine,
            rank,
            &iov(buffer, bytes),
            address,
            key,
            context,
        )
    }
}

unsafe extern "C" fn writev(
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
        let context = default_context!(endpoint, context, FI_RMA | FI_WRITE);
        let Some(rank) = (*endpoint).rank(target) else {
            return -(FI_EINVAL as isize);
        };
        rma::write(
            &mut *(*endpoint).engine,
            rank,
            pieces(vector, count),
            address,
            key,
            context,
        )
    }
}

unsafe extern "C" fn writemsg(endpoint: *mut Endpoint, message: *const FiMsgRma, op_flags: u64) -> isize {
    unsafe {
        let message = &*message;
        if message.rma_iov_count != 1 || op_flags & FI_REMOTE_CQ_DATA != 0 {
            return -(FI_EINVAL as isize);
        }
        let remote = &*message.rma_iov;
        let context = (*endpoint).send_context(message.context, op_flags, FI_RMA | FI_WRITE);
        let Some(rank) = (*endpoint).rank(message.addr) else {
            return -(FI_EINVAL as isize);
        };
        let vector = pieces(message.msg_iov, message.iov_count);
        rma::write(&mut *(*endpoint).engine, rank, vector, remote.addr, remote.key, context)
    }
}

unsafe extern "C" fn inject_write(
    endpoint: *mut Endpoint,
    buffer: *const c_void,
    bytes: usize,
    target: u64,
    address: u64,
    key: u64,
) -> isize {
    unsafe {
        let Some(rank) = (*endpoint).rank(target) else {
            return -(FI_EINVAL as isize);
        };
        rma::write(
            &mut *(*endpoint).engine,
            rank,
            &iov(buffer, bytes),
            address,
            key,
            NO_INJECT_COMPLETION,
        )
    }
}

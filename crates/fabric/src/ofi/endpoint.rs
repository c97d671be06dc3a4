//! The endpoint: libfabric's calls for tagged and untagged messages and remote memory, turned into the engine's.

mod receive;
mod remote;
mod send;

use super::av::AddressVector;
use super::cq::CompletionQueue;
use super::domain::Domain;
use super::*;
use crate::completion::SendContext;
use crate::engine::Engine;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

#[repr(C)]
pub struct Endpoint {
    object: FidEp,
    engine: *mut Engine,
    av: *mut AddressVector,
    send_flags: u64,
    receive_flags: u64,
    /// Sends report completion only when asked to.
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
    Call(receive::recv as *const ()),
    Call(receive::recvv as *const ()),
    Call(receive::recvmsg as *const ()),
    Call(send::send as *const ()),
    Call(send::sendv as *const ()),
    Call(send::sendmsg as *const ()),
    Call(send::inject as *const ()),
    Call(send::senddata as *const ()),
    Call(send::injectdata as *const ()),
]);
static TAGGED: Ops<9> = Ops::new([
    Call(receive::trecv as *const ()),
    Call(receive::trecvv as *const ()),
    Call(receive::trecvmsg as *const ()),
    Call(send::tsend as *const ()),
    Call(send::tsendv as *const ()),
    Call(send::tsendmsg as *const ()),
    Call(send::tinject as *const ()),
    Call(send::tsenddata as *const ()),
    Call(send::tinjectdata as *const ()),
]);
static RMA: Ops<9> = Ops::new([
    Call(remote::read as *const ()),
    Call(remote::readv as *const ()),
    Call(remote::readmsg as *const ()),
    Call(remote::write as *const ()),
    Call(remote::writev as *const ()),
    Call(remote::writemsg as *const ()),
    Call(remote::inject_write as *const ()),
    NO,
    NO,
]);
static ATOMIC: Ops<13> = Ops::new([NO; 13]);
static COLLECTIVE: Ops<11> = Ops::new([NO; 11]);

pub(super) unsafe extern "C" fn open(
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
        (*(*domain).engine).calls.open += 1;
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
        (*endpoint.engine).calls.open -= 1;
        if (*endpoint.engine).calls.open == 0 {
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
    unsafe { (*(*endpoint).engine).calls.min_multi_recv = *value };
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
        *value = (*(*endpoint).engine).calls.min_multi_recv;
        *length = 8;
    }
    0
}

unsafe extern "C" fn cancel(endpoint: *mut Endpoint, context: *mut c_void) -> isize {
    // SAFETY: an open endpoint.
    unsafe { (*(*endpoint).engine).cancel(context) }
}

impl Endpoint {
    fn rank(&self, address: u64) -> Option<usize> {
        // SAFETY: bound before the endpoint is used.
        unsafe { self.av.as_ref() }.and_then(|av| av.rank(address))
    }

    /// The context of a call without flags of its own.
    fn default_context(&self, context: *mut c_void, kind: u64) -> SendContext {
        self.send_context(context, self.send_flags & !FI_INJECT, kind)
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

/// The context of a call that reports no completion.
const NO_COMPLETION: SendContext = SendContext {
    context: null_mut(),
    flags: 0,
    completes: false,
    inject: true,
};

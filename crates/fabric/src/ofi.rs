//! The C interface of libfabric that this provider answers: structures and constants of `rdma/*.h`, version 2.5,
//! as far as they are used here. Field order is the ABI; names are libfabric's.
//!
//! Tables of functions are kept as arrays of addresses in libfabric's order. A slot this provider does not serve holds
//! [`unsupported`], which answers `-FI_ENOSYS` whatever its arguments are.

mod av;
mod counter;
mod cq;
mod domain;
mod endpoint;
pub mod fabric;
mod mr;

use std::ffi::{c_char, c_int, c_void};

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

pub const FI_ORDER_ALL: u64 = 0x1ff;

pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// A provider's own address format; MPI libraries do not care about its value.
pub const FI_ADDR_PSMX: u32 = 5;

pub const FI_AV_UNSPEC: u32 = 0;
pub const FI_AV_MAP: u32 = 1;
pub const FI_AV_TABLE: u32 = 2;

pub const FI_PROGRESS_AUTO: u32 = 1;
pub const FI_PROGRESS_MANUAL: u32 = 2;
pub const FI_THREAD_SAFE: u32 = 1;
pub const FI_THREAD_DOMAIN: u32 = 3;
pub const FI_RM_ENABLED: u32 = 2;

pub const FI_EP_UNSPEC: u32 = 0;
pub const FI_EP_RDM: u32 = 3;

pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

pub const FI_ENABLE: c_int = 6;
pub const FI_GETOPSFLAG: c_int = 2;
pub const FI_SETOPSFLAG: c_int = 3;

pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;

pub const FI_CQ_FORMAT_UNSPEC: u32 = 0;
pub const FI_CQ_FORMAT_CONTEXT: u32 = 1;
pub const FI_CQ_FORMAT_MSG: u32 = 2;
pub const FI_CQ_FORMAT_DATA: u32 = 3;
pub const FI_CQ_FORMAT_TAGGED: u32 = 4;

pub const FI_EAGAIN: isize = 11;
pub const FI_EINVAL: c_int = 22;
pub const FI_ENOSYS: c_int = 38;
pub const FI_ENODATA: c_int = 61;
pub const FI_ENOMSG: c_int = 42;
pub const FI_ECANCELED: c_int = 125;
pub const FI_ENOENT: isize = 2;
pub const FI_ETRUNC: c_int = 265;
pub const FI_EAVAIL: isize = 259;
pub const FI_EOTHER: c_int = 256;
pub const FI_ENOKEY: c_int = 266;

pub const fn fi_version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// Address of a function in one of libfabric's tables.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Call(pub *const ());
// SAFETY: a function's address is the same for every thread.
unsafe impl Sync for Call {}

/// Stands in every slot that is not served.
pub extern "C" fn unsupported() -> isize {
    -(FI_ENOSYS as isize)
}
pub const NO: Call = Call(unsupported as *const ());
/// Succeeds without doing anything.
pub extern "C" fn nothing() -> isize {
    0
}
pub const OK: Call = Call(nothing as *const ());

/// A table of `N` functions, as libfabric's `struct fi_ops_*`.
#[repr(C)]
pub struct Ops<const N: usize> {
    pub size: usize,
    pub calls: [Call; N],
}

impl<const N: usize> Ops<N> {
    pub const fn new(calls: [Call; N]) -> Self {
        Ops {
            size: std::mem::size_of::<Self>(),
            calls,
        }
    }
}

/// `struct fi_ops`: close, bind, control, ops_open, tostr, ops_set.
pub type FidOps = Ops<6>;

#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const FidOps,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const Ops<6>,
    pub api_version: u32,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const Ops<11>,
    pub mr: *const Ops<3>,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const Ops<10>,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const Ops<7>,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const Ops<5>,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const Ops<7>,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const Ops<7>,
    pub cm: *const Ops<9>,
    pub msg: *const Ops<9>,
    pub rma: *const Ops<9>,
    pub tagged: *const Ops<9>,
    pub atomic: *const Ops<13>,
    pub collective: *const Ops<11>,
}

#[repr(C)]
pub struct FiProvider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: Call,
    pub fabric: Call,
    pub cleanup: Call,
}
// SAFETY: written once when the library is loaded, before any other thread can know it.
unsafe impl Sync for FiProvider {}

#[repr(C)]
pub struct FiTxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FiRxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct FiEpAttr {
    pub ep_type: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

/// Up to the fields libfabric 1.17 knows; what later versions appended stays zero.
#[repr(C)]
pub struct FiDomainAttr {
    pub domain: *mut FidDomain,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FiFabricAttr {
    pub fabric: *mut FidFabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct FiInfo {
    pub next: *mut FiInfo,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut FiTxAttr,
    pub rx_attr: *mut FiRxAttr,
    pub ep_attr: *mut FiEpAttr,
    pub domain_attr: *mut FiDomainAttr,
    pub fabric_attr: *mut FiFabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct FiAvAttr {
    pub av_type: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FiCqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

/// Every completion format is a prefix of this one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct FiCqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub src_addr: u64,
}

#[repr(C)]
pub struct FiMsg {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct FiMsgTagged {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct FiRmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct FiMsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// The fields of `struct fi_mr_attr` that stand at its beginning.
#[repr(C)]
pub struct FiMrAttr {
    pub mr_iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}

/// Gives an object to C; [`drop_object`] takes it back.
fn hand_out<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// # Safety
/// `fid` is the first field of a `T` that `hand_out` gave, and is not used again.
unsafe fn drop_object<T>(fid: *mut Fid) -> c_int {
    // SAFETY: as required above.
    drop(unsafe { Box::from_raw(fid.cast::<T>()) });
    0
}

const fn fid(fclass: usize, context: *mut c_void, ops: &'static FidOps) -> Fid {
    Fid { fclass, context, ops }
}

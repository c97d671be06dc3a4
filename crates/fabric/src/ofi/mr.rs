//! Memory regions.

use super::domain::Domain;
use super::*;
use crate::engine::Engine;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

#[repr(C)]
struct Region {
    object: FidMr,
    engine: *mut Engine,
}

static MR_FID: FidOps = Ops::new([Call(close as *const ()), OK, OK, NO, NO, NO]);

/// Registers memory, but refuses memory that others may both read and write. An MPI library that registers a window
/// then serves it with active messages. Those also cover accumulates and atomics, and cost no acknowledgement per put.
/// Memory that others may only write is that of a receive: MPICH has no other way for it, and ignores a refusal.
unsafe fn register(
    domain: *mut Fid,
    start: *const c_void,
    bytes: usize,
    access: u64,
    key: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    if access & (FI_REMOTE_READ | FI_REMOTE_WRITE) == FI_REMOTE_READ | FI_REMOTE_WRITE {
        return -FI_ENOSYS;
    }
    // SAFETY: memory is registered with an open domain, whose fid is its first field.
    let engine = unsafe { (*domain.cast::<Domain>()).engine };
    // SAFETY: the engine lives as long as the process.
    let rma = unsafe { &mut (*engine).calls.rma };
    let wanted = (!rma.own_keys).then_some(key);
    let Some(key) = rma.register(start, bytes, wanted) else {
        return -FI_ENOKEY;
    };
    let object = FidMr {
        fid: fid(FI_CLASS_MR, context, &MR_FID),
        mem_desc: null_mut(),
        key,
    };
    // SAFETY: the caller's place for the answer.
    unsafe { *mr = hand_out(Region { object, engine }).cast() };
    0
}

pub(super) unsafe extern "C" fn reg(
    domain: *mut Fid,
    start: *const c_void,
    bytes: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's contract.
    unsafe { register(domain, start, bytes, access, key, mr, context) }
}

pub(super) unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -FI_EINVAL;
    }
    // SAFETY: libfabric's contract.
    unsafe { register(domain, (*iov).iov_base, (*iov).iov_len, access, key, mr, context) }
}

pub(super) unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const FiMrAttr,
    _flags: u64,
    mr: *mut *mut FidMr,
) -> c_int {
    // SAFETY: libfabric's contract.
    unsafe {
        if (*attr).iov_count != 1 {
            return -FI_EINVAL;
        }
        let iov = &*(*attr).mr_iov;
        register(
            domain,
            iov.iov_base,
            iov.iov_len,
            (*attr).access,
            (*attr).requested_key,
            mr,
            (*attr).context,
        )
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe {
        let region = fid.cast::<Region>();
        (*(*region).engine).calls.rma.deregister((*region).object.key);
        drop_object::<Region>(fid)
    }
}

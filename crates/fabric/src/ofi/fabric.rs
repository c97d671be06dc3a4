//! The fabric, and its event queue, which never has an event.

use super::domain;
use super::*;
use std::ffi::{c_int, c_void};

static FABRIC_FID: FidOps = Ops::new([Call(close_fabric as *const ()), NO, NO, NO, NO, NO]);
static FABRIC: Ops<6> = Ops::new([
    Call(domain::open as *const ()),
    NO,
    Call(open_eq as *const ()),
    NO,
    OK,
    NO,
]);

pub unsafe extern "C" fn open_fabric(_attr: *mut c_void, fabric: *mut *mut FidFabric, context: *mut c_void) -> c_int {
    let object = FidFabric {
        fid: fid(FI_CLASS_FABRIC, context, &FABRIC_FID),
        ops: &FABRIC,
        api_version: fi_version(1, 14),
    };
    // SAFETY: the caller's place for the answer.
    unsafe { *fabric = hand_out(object) };
    0
}

unsafe extern "C" fn close_fabric(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<FidFabric>(fid) }
}

static EQ_FID: FidOps = Ops::new([Call(close_eq as *const ()), NO, NO, NO, NO, NO]);
static EQ: Ops<5> = Ops::new([
    Call(empty as *const ()),
    Call(empty as *const ()),
    NO,
    Call(empty as *const ()),
    NO,
]);

unsafe extern "C" fn open_eq(_: *mut FidFabric, _: *mut c_void, eq: *mut *mut FidEq, context: *mut c_void) -> c_int {
    // SAFETY: the caller's place for the answer.
    unsafe {
        *eq = hand_out(FidEq {
            fid: fid(FI_CLASS_EQ, context, &EQ_FID),
            ops: &EQ,
        })
    };
    0
}

unsafe extern "C" fn close_eq(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<FidEq>(fid) }
}

extern "C" fn empty() -> isize {
    -FI_EAGAIN
}

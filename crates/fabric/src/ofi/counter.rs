//! The counter: it counts finished remote reads and writes.

use super::domain::Domain;
use super::*;
use crate::engine::Engine;
use std::ffi::{c_int, c_void};

#[repr(C)]
pub struct Counter {
    object: FidCntr,
    engine: *mut Engine,
    /// What the caller's `add` and `set` have changed, beyond finished operations.
    offset: u64,
}

static COUNTER_FID: FidOps = Ops::new([Call(close as *const ()), OK, OK, NO, NO, NO]);
static COUNTER: Ops<7> = Ops::new([
    Call(read as *const ()),
    OK,
    Call(add as *const ()),
    Call(set as *const ()),
    Call(wait as *const ()),
    OK,
    OK,
]);

pub(super) unsafe extern "C" fn open(
    domain: *mut Domain,
    _attr: *mut c_void,
    counter: *mut *mut Counter,
    context: *mut c_void,
) -> c_int {
    let object = FidCntr {
        fid: fid(FI_CLASS_CNTR, context, &COUNTER_FID),
        ops: &COUNTER,
    };
    // SAFETY: an open domain, and the caller's place for the answer.
    unsafe {
        *counter = hand_out(Counter {
            object,
            engine: (*domain).engine,
            offset: 0,
        })
    };
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<Counter>(fid) }
}

unsafe extern "C" fn read(counter: *mut Counter) -> u64 {
    // SAFETY: an open counter.
    unsafe {
        let engine = &mut *(*counter).engine;
        if engine.calls.completions.is_empty() {
            // An MPI library that flushes a window looks here even if nothing is on its way.
            if engine.calls.rma.is_busy() {
                engine.poll();
            } else {
                engine.look();
            }
        }
        engine.calls.rma.finished.wrapping_add((*counter).offset)
    }
}

unsafe extern "C" fn add(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { (*counter).offset = (*counter).offset.wrapping_add(value) };
    0
}

unsafe extern "C" fn set(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { (*counter).offset = value.wrapping_sub((*(*counter).engine).calls.rma.finished) };
    0
}

unsafe extern "C" fn wait(counter: *mut Counter, threshold: u64, timeout_ms: c_int) -> c_int {
    let start = std::time::Instant::now();
    // SAFETY: an open counter.
    while unsafe { read(counter) } < threshold {
        if timeout_ms >= 0 && start.elapsed().as_millis() >= timeout_ms as u128 {
            return -libc::ETIMEDOUT;
        }
    }
    0
}

//! The completion queue.

use super::av::AddressVector;
use super::domain::Domain;
use super::*;
use crate::completion::Completion;
use crate::engine::Engine;
use resurgo_image::Guard;
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct CompletionQueue {
    object: FidCq,
    pub engine: *mut Engine,
    entry_bytes: usize,
    /// For completions that tell their source; set when an endpoint is bound.
    pub av: *const AddressVector,
}

static CQ_FID: FidOps = Ops::new([Call(close as *const ()), OK, NO, NO, NO, NO]);
static CQ: Ops<7> = Ops::new([
    Call(read as *const ()),
    Call(readfrom as *const ()),
    Call(readerr as *const ()),
    Call(sread as *const ()),
    NO,
    OK,
    Call(strerror as *const ()),
]);

pub(super) unsafe extern "C" fn open(
    domain: *mut Domain,
    attr: *const FiCqAttr,
    cq: *mut *mut CompletionQueue,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's attributes.
    let format = unsafe { (*attr).format };
    let entry_bytes = match format {
        FI_CQ_FORMAT_CONTEXT => 8,
        FI_CQ_FORMAT_MSG => 24,
        FI_CQ_FORMAT_DATA => 40,
        FI_CQ_FORMAT_TAGGED | FI_CQ_FORMAT_UNSPEC => std::mem::size_of::<FiCqTaggedEntry>(),
        _ => return -FI_ENOSYS,
    };
    let object = FidCq {
        fid: fid(FI_CLASS_CQ, context, &CQ_FID),
        ops: &CQ,
    };
    // SAFETY: an open domain, and the caller's place for the answer.
    unsafe {
        let engine = (*domain).engine;
        *cq = hand_out(CompletionQueue {
            object,
            engine,
            entry_bytes,
            av: std::ptr::null(),
        });
    }
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<CompletionQueue>(fid) }
}

#[inline]
unsafe fn take(
    cq: *mut CompletionQueue,
    buffer: *mut u8,
    count: usize,
    mut each: impl FnMut(usize, &Completion),
) -> isize {
    let _guard = Guard::new();
    // SAFETY: an open queue; its engine lives as long as the process.
    let (engine, bytes) = unsafe { (&mut *(*cq).engine, (*cq).entry_bytes) };
    if engine.calls.completions.is_empty() {
        engine.poll();
    }
    let mut done = 0;
    while done < count {
        match engine.calls.completions.front() {
            None => break,
            Some(completion) if completion.error != 0 => {
                return if done == 0 { -FI_EAVAIL } else { done as isize };
            }
            Some(completion) => {
                let entry: *const FiCqTaggedEntry = &completion.entry;
                // SAFETY: the caller gives room for `count` entries of the queue's format, a prefix of this one.
                unsafe { std::ptr::copy_nonoverlapping(entry.cast::<u8>(), buffer.add(done * bytes), bytes) };
                each(done, completion);
            }
        }
        engine.calls.completions.pop_front();
        done += 1;
    }
    if done == 0 { -FI_EAGAIN } else { done as isize }
}

unsafe extern "C" fn read(cq: *mut CompletionQueue, buffer: *mut u8, count: usize) -> isize {
    // SAFETY: libfabric's contract.
    unsafe { take(cq, buffer, count, |_, _| ()) }
}

unsafe extern "C" fn readfrom(cq: *mut CompletionQueue, buffer: *mut u8, count: usize, sources: *mut u64) -> isize {
    // SAFETY: libfabric's contract: room for `count` entries and sources.
    unsafe {
        let av = (*cq).av;
        take(cq, buffer, count, |index, completion| {
            if !sources.is_null() && !av.is_null() {
                *sources.add(index) = (*av).address(completion.source);
            }
        })
    }
}

/// Waits by reading again and again; a read that finds nothing sleeps by itself.
unsafe extern "C" fn sread(
    cq: *mut CompletionQueue,
    buffer: *mut u8,
    count: usize,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let start = std::time::Instant::now();
    loop {
        // SAFETY: libfabric's contract.
        let answer = unsafe { read(cq, buffer, count) };
        if answer != -FI_EAGAIN || (timeout_ms >= 0 && start.elapsed().as_millis() >= timeout_ms as u128) {
            return answer;
        }
    }
}

unsafe extern "C" fn readerr(cq: *mut CompletionQueue, answer: *mut FiCqErrEntry, _flags: u64) -> isize {
    let _guard = Guard::new();
    // SAFETY: an open queue; its engine lives as long as the process.
    let engine = unsafe { &mut *(*cq).engine };
    match engine.calls.completions.front() {
        Some(completion) if completion.error != 0 => {
            // SAFETY: the caller's place for the answer; fields about error data are left as the caller set them.
            unsafe {
                let entry = completion.entry;
                (*answer).op_context = entry.op_context;
                (*answer).flags = entry.flags;
                (*answer).len = entry.len;
                (*answer).buf = entry.buf;
                (*answer).data = entry.data;
                (*answer).tag = entry.tag;
                (*answer).olen = completion.overflow;
                (*answer).err = completion.error;
                (*answer).prov_errno = completion.error;
                (*answer).err_data_size = 0;
            }
            engine.calls.completions.pop_front();
            1
        }
        _ => -FI_EAGAIN,
    }
}

unsafe extern "C" fn strerror(
    _cq: *mut CompletionQueue,
    error: c_int,
    _data: *const c_void,
    _text: *mut c_char,
    _length: usize,
) -> *const c_char {
    match error {
        FI_ECANCELED => c"operation canceled".as_ptr(),
        FI_ETRUNC => c"message longer than its receive".as_ptr(),
        _ => c"error".as_ptr(),
    }
}

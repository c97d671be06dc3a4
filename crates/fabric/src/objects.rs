//! libfabric's objects besides the endpoint: fabric, domain, address vector, completion queue, counter, memory region.
//!
//! There is one engine per process; the domain owns it, the other objects point to it.

use crate::engine::{Completion, Engine};
use crate::info::{MR_BASIC, MR_PROV_KEY, MR_VIRT_ADDR};
use crate::node::Node;
use crate::ofi::*;
use resurgo_image::Guard;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Gives an object to C; [`drop_object`] takes it back.
pub fn hand_out<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// # Safety
/// `fid` is the first field of a `T` that `hand_out` gave, and is not used again.
unsafe fn drop_object<T>(fid: *mut Fid) -> c_int {
    // SAFETY: as required above.
    drop(unsafe { Box::from_raw(fid.cast::<T>()) });
    0
}

pub const fn fid(fclass: usize, context: *mut c_void, ops: &'static FidOps) -> Fid {
    Fid { fclass, context, ops }
}

// ---- fabric ----

static FABRIC_FID: FidOps = Ops::new([Call(close_fabric as *const ()), NO, NO, NO, NO, NO]);
static FABRIC: Ops<6> = Ops::new([
    Call(open_domain as *const ()),
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

// ---- event queue: exists, and never has an event ----

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

// ---- domain ----

#[repr(C)]
pub struct Domain {
    object: FidDomain,
    pub engine: *mut Engine,
}

static DOMAIN_FID: FidOps = Ops::new([Call(close_domain as *const ()), OK, NO, NO, NO, NO]);
static DOMAIN: Ops<11> = Ops::new([
    Call(open_av as *const ()),
    Call(open_cq as *const ()),
    Call(crate::endpoint::open as *const ()),
    NO,
    Call(open_counter as *const ()),
    NO,
    NO,
    NO,
    NO,
    NO,
    NO,
]);
static DOMAIN_MR: Ops<3> = Ops::new([
    Call(mr_reg as *const ()),
    Call(mr_regv as *const ()),
    Call(mr_regattr as *const ()),
]);

unsafe extern "C" fn open_domain(
    _fabric: *mut FidFabric,
    info: *const FiInfo,
    domain: *mut *mut Domain,
    context: *mut c_void,
) -> c_int {
    let engine = match begin() {
        Ok(engine) => engine,
        Err(reason) => {
            eprintln!("resurgo: {reason}");
            return -FI_EOTHER;
        }
    };
    engine.in_use = true;
    // SAFETY: the info that getinfo made, with its attributes.
    let mr_mode = unsafe { (*info).domain_attr.as_ref().map_or(0, |attributes| attributes.mr_mode) };
    engine.rma.virtual_addresses = mr_mode & (MR_VIRT_ADDR | MR_BASIC) != 0;
    engine.rma.own_keys = mr_mode & (MR_PROV_KEY | MR_BASIC) != 0;
    let object = FidDomain {
        fid: fid(FI_CLASS_DOMAIN, context, &DOMAIN_FID),
        ops: &DOMAIN,
        mr: &DOMAIN_MR,
    };
    // SAFETY: the caller's place for the answer.
    unsafe { *domain = hand_out(Domain { object, engine }) };
    crate::claim::hide();
    0
}

/// The engine of this process: a new one, or the one that a domain had which has been closed.
fn begin() -> Result<&'static mut Engine, String> {
    // SAFETY: it lives as long as the process; MPI libraries let one thread at a time into the provider.
    if let Some(engine) = unsafe { crate::engine::images::known().as_mut() } {
        if engine.in_use {
            return Err(
                "the MPI library opens a second domain beside the first, which is not supported \
                        (is MPIR_CVAR_CH4_NUM_VCIS set? It must be 1)"
                    .into(),
            );
        }
        engine.reopen();
        return Ok(engine);
    }
    let node = Node::attach().map_err(|error| error.0)?;
    if node.replays() || node.waves {
        crate::imports::redirect(&node);
    }
    crate::engine::images::enable(&node);
    let engine = hand_out(Engine::new(node));
    crate::engine::images::know(engine);
    // SAFETY: just made, and never freed.
    Ok(unsafe { &mut *engine })
}

/// The node memory stays mapped and the engine alive: the MPI library may begin again.
unsafe extern "C" fn close_domain(fid: *mut Fid) -> c_int {
    crate::claim::show();
    // SAFETY: an open domain; its engine lives as long as the process.
    unsafe { (*(*fid.cast::<Domain>()).engine).in_use = false };
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<Domain>(fid) }
}

// ---- address vector: addresses are rank numbers, names those of endpoints ----

#[repr(C)]
pub struct AddressVector {
    object: FidAv,
    engine: *mut Engine,
    size: usize,
    map: bool,
    /// Rank per index (tables).
    pub ranks: Vec<u32>,
}

static AV_FID: FidOps = Ops::new([Call(close_av as *const ()), OK, NO, NO, NO, NO]);
static AV: Ops<10> = Ops::new([
    Call(av_insert as *const ()),
    NO,
    NO,
    OK,
    Call(av_lookup as *const ()),
    Call(av_straddr as *const ()),
    NO,
    NO,
    NO,
    NO,
]);

impl AddressVector {
    /// Rank behind an address; None for an address that was never inserted.
    #[inline]
    pub fn rank(&self, address: u64) -> Option<usize> {
        if self.map {
            (address < self.size as u64).then_some(address as usize)
        } else {
            self.ranks.get(address as usize).map(|&rank| rank as usize)
        }
    }

    /// Address of a rank, for completions that tell their source.
    pub fn address(&self, rank: u32) -> u64 {
        if self.map {
            return rank as u64;
        }
        self.ranks
            .iter()
            .position(|&known| known == rank)
            .map_or(FI_ADDR_UNSPEC, |index| index as u64)
    }
}

unsafe extern "C" fn open_av(
    domain: *mut Domain,
    attr: *mut FiAvAttr,
    av: *mut *mut AddressVector,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the domain is open, the attributes are the caller's.
    let (engine, size, map) = unsafe {
        if !(*attr).name.is_null() {
            return -FI_ENOSYS;
        }
        let engine = (*domain).engine;
        (engine, (*engine).node.size, (*attr).av_type == FI_AV_MAP)
    };
    let object = FidAv {
        fid: fid(FI_CLASS_AV, context, &AV_FID),
        ops: &AV,
    };
    // SAFETY: the caller's place for the answer.
    unsafe {
        *av = hand_out(AddressVector {
            object,
            engine,
            size,
            map,
            ranks: Vec::new(),
        })
    };
    0
}

unsafe extern "C" fn close_av(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<AddressVector>(fid) }
}

unsafe extern "C" fn av_insert(
    av: *mut AddressVector,
    addresses: *const u8,
    count: usize,
    answers: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: an open address vector.
    let av = unsafe { &mut *av };
    let mut inserted = 0;
    for index in 0..count {
        // SAFETY: `count` names of eight bytes, as getname gives them.
        let name = u64::from_le_bytes(unsafe { *addresses.add(index * 8).cast::<[u8; 8]>() });
        // SAFETY: the engine lives as long as the process.
        let rank = unsafe { (*av.engine).learn(name) };
        let answer = match rank {
            None => FI_ADDR_UNSPEC,
            Some(rank) if av.map => u64::from(rank),
            Some(rank) => {
                av.ranks.push(rank);
                av.ranks.len() as u64 - 1
            }
        };
        inserted += rank.is_some() as c_int;
        if !answers.is_null() {
            // SAFETY: room for `count` answers.
            unsafe { *answers.add(index) = answer };
        }
    }
    inserted
}

unsafe extern "C" fn av_lookup(av: *mut AddressVector, address: u64, name: *mut u8, length: *mut usize) -> c_int {
    // SAFETY: an open address vector; room of `length` bytes.
    unsafe {
        let Some(rank) = (*av).rank(address) else {
            return -FI_EINVAL;
        };
        let bytes = (*(*av).engine).name_of(rank).to_le_bytes();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), name, (*length).min(8));
        *length = 8;
    }
    0
}

unsafe extern "C" fn av_straddr(
    _av: *mut AddressVector,
    name: *const u8,
    text: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: a name of eight bytes; room of `length` bytes.
    unsafe {
        let name = u64::from_le_bytes(*name.cast::<[u8; 8]>());
        let written = libc::snprintf(text, *length, c"resurgo://%lu".as_ptr(), name & 0xffff_ffff);
        *length = written as usize + 1;
    }
    text
}

// ---- completion queue ----

#[repr(C)]
pub struct CompletionQueue {
    object: FidCq,
    pub engine: *mut Engine,
    entry_bytes: usize,
    /// For completions that tell their source; set when an endpoint is bound.
    pub av: *const AddressVector,
}

static CQ_FID: FidOps = Ops::new([Call(close_cq as *const ()), OK, NO, NO, NO, NO]);
static CQ: Ops<7> = Ops::new([
    Call(cq_read as *const ()),
    Call(cq_readfrom as *const ()),
    Call(cq_readerr as *const ()),
    Call(cq_sread as *const ()),
    NO,
    OK,
    Call(cq_strerror as *const ()),
]);

unsafe extern "C" fn open_cq(
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

unsafe extern "C" fn close_cq(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<CompletionQueue>(fid) }
}

#[inline]
unsafe fn read(
    cq: *mut CompletionQueue,
    buffer: *mut u8,
    count: usize,
    mut each: impl FnMut(usize, &Completion),
) -> isize {
    let _guard = Guard::new();
    // SAFETY: an open queue; its engine lives as long as the process.
    let (engine, bytes) = unsafe { (&mut *(*cq).engine, (*cq).entry_bytes) };
    if engine.completions.is_empty() {
        engine.poll();
    }
    let mut done = 0;
    while done < count {
        match engine.completions.front() {
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
        engine.completions.pop_front();
        done += 1;
    }
    if done == 0 { -FI_EAGAIN } else { done as isize }
}

unsafe extern "C" fn cq_read(cq: *mut CompletionQueue, buffer: *mut u8, count: usize) -> isize {
    // SAFETY: libfabric's contract.
    unsafe { read(cq, buffer, count, |_, _| ()) }
}

unsafe extern "C" fn cq_readfrom(cq: *mut CompletionQueue, buffer: *mut u8, count: usize, sources: *mut u64) -> isize {
    // SAFETY: libfabric's contract: room for `count` entries and sources.
    unsafe {
        let av = (*cq).av;
        read(cq, buffer, count, |index, completion| {
            if !sources.is_null() && !av.is_null() {
                *sources.add(index) = (*av).address(completion.source);
            }
        })
    }
}

/// Waits by reading again and again; a read that finds nothing sleeps by itself.
unsafe extern "C" fn cq_sread(
    cq: *mut CompletionQueue,
    buffer: *mut u8,
    count: usize,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let start = std::time::Instant::now();
    loop {
        // SAFETY: libfabric's contract.
        let answer = unsafe { cq_read(cq, buffer, count) };
        if answer != -FI_EAGAIN || (timeout_ms >= 0 && start.elapsed().as_millis() >= timeout_ms as u128) {
            return answer;
        }
    }
}

unsafe extern "C" fn cq_readerr(cq: *mut CompletionQueue, answer: *mut FiCqErrEntry, _flags: u64) -> isize {
    let _guard = Guard::new();
    // SAFETY: an open queue; its engine lives as long as the process.
    let engine = unsafe { &mut *(*cq).engine };
    match engine.completions.front() {
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
            engine.completions.pop_front();
            1
        }
        _ => -FI_EAGAIN,
    }
}

unsafe extern "C" fn cq_strerror(
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

// ---- counter: counts finished remote reads and writes ----

#[repr(C)]
pub struct Counter {
    object: FidCntr,
    engine: *mut Engine,
    /// What was finished or set when the count was last set.
    offset: u64,
}

static COUNTER_FID: FidOps = Ops::new([Call(close_counter as *const ()), OK, OK, NO, NO, NO]);
static COUNTER: Ops<7> = Ops::new([
    Call(counter_read as *const ()),
    OK,
    Call(counter_add as *const ()),
    Call(counter_set as *const ()),
    Call(counter_wait as *const ()),
    OK,
    OK,
]);

unsafe extern "C" fn open_counter(
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

unsafe extern "C" fn close_counter(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<Counter>(fid) }
}

unsafe extern "C" fn counter_read(counter: *mut Counter) -> u64 {
    // SAFETY: an open counter.
    unsafe {
        let engine = &mut *(*counter).engine;
        if engine.completions.is_empty() {
            // An MPI library that flushes a window looks here even if nothing is on its way.
            if engine.rma.is_busy() {
                engine.poll();
            } else {
                engine.look();
            }
        }
        engine.rma.finished.wrapping_add((*counter).offset)
    }
}

unsafe extern "C" fn counter_add(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { (*counter).offset = (*counter).offset.wrapping_add(value) };
    0
}

unsafe extern "C" fn counter_set(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { (*counter).offset = value.wrapping_sub((*(*counter).engine).rma.finished) };
    0
}

unsafe extern "C" fn counter_wait(counter: *mut Counter, threshold: u64, timeout_ms: c_int) -> c_int {
    let start = std::time::Instant::now();
    // SAFETY: an open counter.
    while unsafe { counter_read(counter) } < threshold {
        if timeout_ms >= 0 && start.elapsed().as_millis() >= timeout_ms as u128 {
            return -libc::ETIMEDOUT;
        }
    }
    0
}

// ---- memory regions ----

#[repr(C)]
struct Region {
    object: FidMr,
    engine: *mut Engine,
}

static MR_FID: FidOps = Ops::new([Call(close_mr as *const ()), OK, OK, NO, NO, NO]);

/// Memory that others may write is refused: an MPI library that registers a window then serves it with active messages,
/// which also covers accumulates and atomics and costs no acknowledgement a put.
unsafe fn register(
    domain: *mut Fid,
    start: *const c_void,
    bytes: usize,
    access: u64,
    key: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    if access & FI_REMOTE_WRITE != 0 {
        return -FI_ENOSYS;
    }
    // SAFETY: memory is registered with an open domain, whose fid is its first field.
    let engine = unsafe { (*domain.cast::<Domain>()).engine };
    // SAFETY: the engine lives as long as the process.
    let rma = unsafe { &mut (*engine).rma };
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

unsafe extern "C" fn mr_reg(
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

unsafe extern "C" fn mr_regv(
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

unsafe extern "C" fn mr_regattr(domain: *mut Fid, attr: *const FiMrAttr, _flags: u64, mr: *mut *mut FidMr) -> c_int {
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

unsafe extern "C" fn close_mr(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe {
        let region = fid.cast::<Region>();
        (*(*region).engine).rma.deregister((*region).object.key);
        drop_object::<Region>(fid)
    }
}

//! The address vector: addresses are rank numbers, names those of endpoints.

use super::domain::Domain;
use super::*;
use crate::engine::Engine;
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct AddressVector {
    object: FidAv,
    engine: *mut Engine,
    size: usize,
    map: bool,
    /// Rank per index (tables).
    pub ranks: Vec<u32>,
}

static AV_FID: FidOps = Ops::new([Call(close as *const ()), OK, NO, NO, NO, NO]);
static AV: Ops<10> = Ops::new([
    Call(insert as *const ()),
    NO,
    NO,
    OK,
    Call(lookup as *const ()),
    Call(straddr as *const ()),
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

pub(super) unsafe extern "C" fn open(
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

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<AddressVector>(fid) }
}

unsafe extern "C" fn insert(
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

unsafe extern "C" fn lookup(av: *mut AddressVector, address: u64, name: *mut u8, length: *mut usize) -> c_int {
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

unsafe extern "C" fn straddr(
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

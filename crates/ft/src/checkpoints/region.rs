//! What the program protects, and the data of a rank in a checkpoint: a table of its regions, then their bytes.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;
use std::ffi::c_int;

use super::calls::Outcome;
use crate::mpi::{COMM_SELF, Comm, ERR_NO_MEM, SUCCESS, pmpi};

/// Some of the program's memory.
#[derive(Clone, Copy)]
pub struct Region {
    pub address: usize,
    pub count: i64,
    pub datatype: c_int,
}

impl Region {
    /// The size of its data, without gaps; none: there is no such datatype.
    pub fn bytes(self) -> Option<u64> {
        let mut size = 0_i64;
        let code = pmpi!(MPI_Type_size_c(self.datatype => c_int, &mut size => *mut i64));
        let bytes = u64::try_from(size).ok()?.checked_mul(u64::try_from(self.count).ok()?);
        bytes.filter(|_| code == SUCCESS)
    }

    /// Its data has no gaps.
    pub fn is_dense(self) -> bool {
        let (mut low, mut extent, mut size) = ([0_i64; 2], [0_i64; 2], 0_i64);
        pmpi!(MPI_Type_get_extent_c(
            self.datatype => c_int, &mut low[0] => *mut i64, &mut extent[0] => *mut i64
        ));
        pmpi!(MPI_Type_get_true_extent_c(
            self.datatype => c_int, &mut low[1] => *mut i64, &mut extent[1] => *mut i64
        ));
        pmpi!(MPI_Type_size_c(self.datatype => c_int, &mut size => *mut i64));
        low == [0, 0] && extent == [size, size]
    }

    /// Copies its data to `to`, which is as long.
    fn pack(self, to: &mut [u8]) {
        if self.is_dense() {
            // SAFETY: the program has said that so much is there.
            unsafe { std::ptr::copy_nonoverlapping(self.address as *const u8, to.as_mut_ptr(), to.len()) };
            return;
        }
        let (length, mut place) = (to.len() as i64, 0_i64);
        pmpi!(MPI_Pack_c(
            self.address => usize, self.count => i64, self.datatype => c_int, to.as_mut_ptr() => *mut u8,
            length => i64, &mut place => *mut i64, COMM_SELF => Comm
        ));
    }

    /// The reverse.
    pub fn unpack(self, from: &[u8]) {
        let (length, mut place) = (from.len() as i64, 0_i64);
        pmpi!(MPI_Unpack_c(
            from.as_ptr() => *const u8, length => i64, &mut place => *mut i64, self.address => usize,
            self.count => i64, self.datatype => c_int, COMM_SELF => Comm
        ));
    }
}

/// The length of the data of these regions.
pub fn length(regions: &BTreeMap<c_int, Region>) -> Outcome<usize> {
    let bytes: Option<u64> = regions.values().map(|region| region.bytes()).sum();
    let bytes = bytes.ok_or(crate::mpi::ERR_ARG)?;
    Ok(8 + 16 * regions.len() + bytes as usize)
}

/// Writes their data there; what is behind it is zero.
pub fn write(regions: &BTreeMap<c_int, Region>, data: &mut [u8]) {
    let (table, mut rest) = data.split_at_mut(8 + 16 * regions.len());
    let mut words = vec![regions.len() as u64];
    for (id, region) in regions {
        let bytes = region.bytes().unwrap_or(0);
        words.extend([*id as u64, bytes]);
        let (place, after) = rest.split_at_mut(bytes as usize);
        region.pack(place);
        rest = after;
    }
    rest.fill(0);
    let words = words.iter().flat_map(|word| word.to_ne_bytes());
    table.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
}

/// The regions in the data of a rank: of each its id, where it begins, and its size.
pub fn table(data: &[u8]) -> Vec<(c_int, usize, usize)> {
    let word = |at: usize| {
        let bytes = data.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    let count = word(0) as usize;
    let mut start = 8 + 16 * count;
    let mut regions = Vec::new();
    for at in 0..count {
        let bytes = word(2 + 2 * at) as usize;
        regions.push((word(1 + 2 * at) as c_int, start, bytes));
        start += bytes;
    }
    regions
}

/// Memory that an earlier checkpoint has used: new pages cost more than copying into them.
#[derive(Default)]
pub struct Spare(pub Vec<Vec<u8>>);

impl Spare {
    /// So many bytes, whatever is in them.
    pub fn take(&mut self, bytes: usize) -> Outcome<Vec<u8>> {
        let fits = |spare: &Vec<u8>| spare.capacity() >= bytes && spare.capacity() / 2 <= bytes;
        if let Some(at) = self.0.iter().position(fits) {
            let mut buffer = self.0.swap_remove(at);
            buffer.resize(bytes, 0);
            return Ok(buffer);
        }
        let layout = Layout::array::<u8>(bytes).map_err(|_| ERR_NO_MEM)?;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the layout is not of length 0.
        let place = unsafe { alloc_zeroed(layout) };
        if place.is_null() {
            return Err(ERR_NO_MEM);
        }
        // SAFETY: allocated as a vector's memory is, and all of it is zero.
        Ok(unsafe { Vec::from_raw_parts(place, bytes, bytes) })
    }
}

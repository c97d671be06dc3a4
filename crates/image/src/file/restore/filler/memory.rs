//! Pages for the memory of another process.

use std::ops::Range;

use resurgo_wire::image::{Datagram, Kind};

use crate::contents;
use crate::file::reader::{Defect, Image};
use crate::locks::{self, Renamed};
use crate::sys::{Errno, call};

const UFFDIO_COPY: u32 = 0xc028_aa03;

/// The range that has `address`.
pub fn find(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let at = ranges.partition_point(|range| range.end <= address);
    ranges.get(at).filter(|range| range.contains(&address))
}

pub fn failed(defect: &Defect) -> Datagram {
    Datagram::new(Kind::Failed, 0, 0, 0).with_text(&defect.to_string())
}

/// Writes the main thread's new number into the locks that it holds, in `bytes` that belong to `address`. A lock may
/// also lie in the pages before or behind.
pub fn rename(image: &Image, address: u64, bytes: &mut [u8], renamed: Renamed) -> Result<(), Defect> {
    const REACH: usize = locks::REACH;
    if renamed.0 == renamed.1 || contents::has_copies_at(address) || !locks::may_hold(bytes, &(renamed.0..=renamed.0)) {
        return Ok(());
    }
    let mut around = vec![0; bytes.len() + 2 * REACH];
    image.read_at(address - REACH as u64, &mut around[..REACH])?;
    around[REACH..][..bytes.len()].copy_from_slice(bytes);
    image.read_at(address + bytes.len() as u64, &mut around[REACH + bytes.len()..])?;
    let (words, _) = around.as_chunks();
    let mut words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    locks::rename_in(&mut words, &[renamed]);
    for (to, word) in bytes.chunks_mut(8).zip(&words[REACH / 8..]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Ok(())
}

/// Makes pages as the kernel takes them at once, from the first on; returns their bytes.
pub fn copy_some(memory: i32, address: u64, bytes: &[u8], mode: u64) -> Result<usize, Errno> {
    let mut request = [address, bytes.as_ptr() as u64, bytes.len() as u64, mode, 0];
    // SAFETY: reads the bytes, and writes to memory of another process where nobody has seen any yet.
    let result = unsafe { call!(libc::SYS_ioctl, memory, UFFDIO_COPY, request.as_mut_ptr()) };
    // The number of bytes, or an error.
    match (result, request[4] as i64) {
        (Ok(_), _) => Ok(bytes.len()),
        (Err(_), copied @ 1..) => Ok(copied as usize),
        (Err(errno), _) => Err(errno),
    }
}

//! Compressing the data of an image on its way into the file.

use super::checksum::{self, Sum};
use super::format::DATA_OFFSET;
use super::layout;
use super::output::Output;
use super::zstd::Encoder;
use crate::pages::PAGE;
use crate::trouble::Trouble;
use crate::zone::Area;

/// The most bytes that are compressed at once.
pub const CHUNK: usize = 256 << 10;

/// Takes [`CHUNK`] bytes at once, and hands as many to the file.
pub struct Packer {
    encoder: Encoder,
    /// Pages to compress, and a place for their checksums, which are not used.
    plain: Area,
    unused: [Sum; CHUNK / PAGE],
    packed: Area,
    /// Bytes in `packed`.
    waiting: usize,
    /// Where they go in the file.
    offset: u64,
}

/// The most that `bytes` can become: incompressible data gets a header for each 128 KiB.
pub fn most(bytes: u64) -> u64 {
    bytes + bytes / 1024 + CHUNK as u64
}

impl Packer {
    pub fn new(level: u8) -> Result<Packer, Trouble> {
        let mut areas = [Area::new(19), Area::new(20)];
        for area in &mut areas {
            area.resize(CHUNK).map_err(Trouble::memory)?;
        }
        let [plain, packed] = areas;
        Ok(Packer {
            encoder: Encoder::new(21, level)?,
            plain,
            unused: [[0; 4]; CHUNK / PAGE],
            packed,
            waiting: 0,
            offset: DATA_OFFSET,
        })
    }

    /// Where to copy the next pages, at most [`CHUNK`] bytes, and memory for a checksum of each.
    pub fn room(&mut self) -> (*mut u8, &mut [Sum]) {
        (self.plain.bytes_mut().as_mut_ptr(), &mut self.unused)
    }

    /// Compresses so many bytes of the room. `sums` receives the sums of what goes to the file.
    pub fn filled(&mut self, bytes: usize, output: &mut Output, sums: &mut Area) -> Result<(), Trouble> {
        self.compress(bytes, false, output, sums)
    }

    /// Call after the last bytes. Returns the length of the data in the file, whole pages.
    pub fn end(mut self, output: &mut Output, sums: &mut Area) -> Result<u64, Trouble> {
        self.compress(0, true, output, sums)?;
        let whole = self.waiting.next_multiple_of(PAGE);
        self.packed.bytes_mut()[self.waiting..whole].fill(0);
        self.waiting = whole;
        self.put(output, sums)?;
        Ok(self.offset - DATA_OFFSET)
    }

    fn compress(&mut self, bytes: usize, last: bool, output: &mut Output, sums: &mut Area) -> Result<(), Trouble> {
        let mut done = 0;
        loop {
            let room = &mut self.packed.bytes_mut()[self.waiting..];
            let (took, gave, all) = self.encoder.step(&self.plain.bytes()[done..bytes], room, last)?;
            done += took;
            self.waiting += gave;
            if all {
                return Ok(());
            }
            self.put(output, sums)?;
        }
    }

    /// Hands what waits, whole pages, to the file.
    fn put(&mut self, output: &mut Output, sums: &mut Area) -> Result<(), Trouble> {
        let sums = checksum::sums_mut(sums, layout::sum_at(self.offset), self.waiting / PAGE);
        // SAFETY: memory of the packer's.
        unsafe { output.put(self.offset, self.packed.bytes().as_ptr(), sums, false)? };
        self.offset += self.waiting as u64;
        self.waiting = 0;
        Ok(())
    }
}

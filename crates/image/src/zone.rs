//! The writer's memory, where nothing else of the process can lie next to it: it must not become part of the image.

use std::ops::Range;

use crate::sys::{Errno, call};

/// See [`resurgo_wire::places`].
pub const ZONE: usize = 0x210_0000_0000;
pub const ZONE_END: usize = 0x300_0000_0000;
const _: () = assert!(ZONE_END <= resurgo_wire::places::HEAP.start);
const STRIDE: usize = 4 << 30;
const LEAST: usize = 1 << 20;
const AREAS: usize = 33;

/// A growing array of bytes at a place of its own.
pub struct Area {
    start: usize,
    length: usize,
    mapped: usize,
}

impl Area {
    /// The area with this number, below 33.
    pub const fn new(number: usize) -> Area {
        assert!(number < AREAS, "that many have room in the zone");
        Area {
            start: ZONE + number * STRIDE,
            length: 0,
            mapped: 0,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: mapped, and written up to its length.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.length) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.length) }
    }

    /// Its content, as words.
    pub fn words(&self) -> &[u64] {
        let bytes = self.bytes();
        if bytes.is_empty() {
            return &[];
        }
        // SAFETY: areas begin with a page, and any bytes are words.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 8) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        let bytes = self.bytes_mut();
        if bytes.is_empty() {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 8) }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let at = self.length;
        self.grow(bytes.len())?;
        self.bytes_mut()[at..].copy_from_slice(bytes);
        Ok(())
    }

    /// Makes it `length` bytes long. New bytes are zeros, unless it was longer before.
    pub fn resize(&mut self, length: usize) -> Result<(), Errno> {
        if length > self.length {
            self.grow(length - self.length)?;
        }
        self.length = length;
        Ok(())
    }

    /// Makes it longer by zeros, even where it held other bytes before.
    pub fn pad(&mut self, length: usize) -> Result<(), Errno> {
        let used = self.length;
        self.resize(length)?;
        self.bytes_mut()[used..].fill(0);
        Ok(())
    }

    /// Prepares memory for `length` bytes, which a copy of the process will not have; the content stays.
    pub fn reserve(&mut self, length: usize) -> Result<(), Errno> {
        let used = self.length;
        self.grow(length.saturating_sub(used))?;
        self.length = used;
        for (bytes, advice) in [(self.mapped, libc::MADV_DONTFORK), (length, libc::MADV_POPULATE_WRITE)] {
            // SAFETY: memory of this area. Without the second advice, the first access to each page takes longer.
            let advised = unsafe { call!(libc::SYS_madvise, self.start, (bytes + 4095) & !4095, advice) };
            if advice == libc::MADV_DONTFORK {
                advised?;
            }
        }
        Ok(())
    }

    /// Gives its memory back.
    pub fn release(&mut self) {
        if self.mapped > 0 {
            // SAFETY: memory of this area.
            let _ = unsafe { call!(libc::SYS_munmap, self.start, self.mapped) };
        }
        (self.length, self.mapped) = (0, 0);
    }

    /// Forgets its content; the memory stays.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Makes it longer: by zeros, unless it was longer before.
    pub fn grow(&mut self, by: usize) -> Result<(), Errno> {
        let needed = self.length + by;
        if needed > self.mapped {
            let mapped = needed.next_power_of_two().max(LEAST);
            if mapped > STRIDE {
                return Err(libc::EFBIG);
            }
            // SAFETY: address space that nobody has (NOREPLACE).
            unsafe {
                call!(
                    libc::SYS_mmap,
                    self.start + self.mapped,
                    mapped - self.mapped,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1i64,
                    0
                )?;
            }
            self.mapped = mapped;
        }
        self.length = needed;
        Ok(())
    }
}

/// The areas that stay from one image to the next: lists of changes, and copied pages.
pub const LISTS: Range<usize> = 12..16;
pub const WARM: Range<usize> = 21..28;

/// Where the writer maps the file that it writes, behind all areas.
pub const FILE: Range<usize> = ZONE + AREAS * STRIDE..ZONE_END;

/// Gives back what is needed only while one image is written.
pub fn clear_scratch() {
    let area = |number: usize| ZONE + number * STRIDE;
    let scratch = [
        ZONE..area(LISTS.start),
        area(LISTS.end)..area(WARM.start),
        area(WARM.end)..ZONE_END,
    ];
    for scratch in scratch {
        // SAFETY: nobody else has memory there.
        let _ = unsafe { call!(libc::SYS_munmap, scratch.start, scratch.len()) };
    }
}

/// Gives everything back.
pub fn clear() {
    // SAFETY: nobody else has memory there.
    let _ = unsafe { call!(libc::SYS_munmap, ZONE, ZONE_END - ZONE) };
}

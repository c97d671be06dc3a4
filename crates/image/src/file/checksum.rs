//! The checksum of image files: CRC-32C in four lanes, one for each quarter of every 4096-byte page. Four lanes, because the
//! processor's instruction has a latency of three cycles: so it keeps up with memory.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_crc32_u64, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
};

pub const PAGE: usize = 4096;
const LANE: usize = PAGE / 4;

/// Checksum of some pages.
pub type Sum = [u32; 4];

/// Sums up pages.
pub struct Summer {
    lanes: [u64; 4],
    fast: bool,
}

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (0x82f6_3b78 * (value & 1));
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

static TABLE: [u32; 256] = table();

impl Summer {
    pub fn new() -> Summer {
        Summer {
            lanes: [u64::from(u32::MAX); 4],
            fast: std::is_x86_feature_detected!("sse4.2"),
        }
    }

    /// Adds whole pages.
    pub fn add(&mut self, pages: &[u8]) {
        assert!(pages.len().is_multiple_of(PAGE), "sums are of whole pages");
        // SAFETY: the slice is readable, and nothing is written.
        unsafe { self.run::<false>(pages.as_ptr(), std::ptr::null_mut(), pages.len() / PAGE) }
    }

    unsafe fn run<const COPY: bool>(&mut self, from: *const u8, to: *mut u8, count: usize) {
        for page in 0..count {
            // SAFETY: as the callers say; the instruction is there when `fast` is set.
            unsafe {
                let from = from.add(page * PAGE);
                let to = if COPY { to.add(page * PAGE) } else { to };
                if self.fast {
                    fast_page::<COPY>(&mut self.lanes, from, to);
                } else {
                    slow_page::<COPY>(&mut self.lanes, from, to);
                }
            }
        }
    }

    pub fn finish(&self) -> Sum {
        self.lanes.map(|lane| !(lane as u32))
    }
}

#[target_feature(enable = "sse4.2")]
unsafe fn fast_page<const COPY: bool>(lanes: &mut [u64; 4], from: *const u8, to: *mut u8) {
    const WORDS: usize = LANE / 8;
    let [mut a, mut b, mut c, mut d] = *lanes;
    let words = from.cast::<u64>();
    for at in 0..WORDS {
        // SAFETY: inside the page. Asking for the page after the next is no access.
        unsafe {
            if at.is_multiple_of(8) {
                for lane in 0..4 {
                    _mm_prefetch::<_MM_HINT_T0>(words.wrapping_add(at + lane * WORDS + PAGE / 4).cast());
                }
            }
            a = _mm_crc32_u64(a, words.add(at).read_unaligned());
            b = _mm_crc32_u64(b, words.add(at + WORDS).read_unaligned());
            c = _mm_crc32_u64(c, words.add(at + 2 * WORDS).read_unaligned());
            d = _mm_crc32_u64(d, words.add(at + 3 * WORDS).read_unaligned());
        }
    }
    *lanes = [a, b, c, d];
    if COPY {
        let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
        for at in 0..PAGE / 16 {
            // SAFETY: inside the pages, which are aligned. The one to copy is in the processor's cache by now, and the other
            // is not wanted there.
            unsafe { _mm_stream_si128(to.add(at), _mm_load_si128(from.add(at))) };
        }
    }
}

/// For processors without the instruction (before 2009).
unsafe fn slow_page<const COPY: bool>(lanes: &mut [u64; 4], from: *const u8, to: *mut u8) {
    for (lane, sum) in lanes.iter_mut().enumerate() {
        let mut state = *sum as u32;
        for at in lane * LANE..(lane + 1) * LANE {
            // SAFETY: inside the page.
            unsafe {
                let byte = from.add(at).read();
                state = (state >> 8) ^ TABLE[(state as u8 ^ byte) as usize];
                if COPY {
                    to.add(at).write(byte);
                }
            }
        }
        *sum = u64::from(state);
    }
}

/// Copies as many pages as there are `sums`, around the cache, and sums up each.
///
/// # Safety
/// As for a copy; both are aligned to pages, and nobody writes there.
pub unsafe fn copy_and_sum(from: *const u8, to: *mut u8, sums: &mut [Sum]) {
    for (page, sum) in sums.iter_mut().enumerate() {
        let mut summer = Summer::new();
        // SAFETY: as required.
        unsafe { summer.run::<true>(from.add(page * PAGE), to.add(page * PAGE), 1) };
        *sum = summer.finish();
    }
    // SAFETY: only orders what was written before what follows.
    unsafe { _mm_sfence() };
}

/// The checksum of whole pages.
pub fn sum_of(pages: &[u8]) -> Sum {
    let mut summer = Summer::new();
    summer.add(pages);
    summer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Pages([u8; 3 * PAGE]);

    #[test]
    fn both_ways_to_sum_agree_and_copies_are_copies() {
        let mut from = Pages([0; 3 * PAGE]);
        for (index, byte) in from.0.iter_mut().enumerate() {
            *byte = (index * 7 % 251) as u8;
        }
        let mut slow = Summer::new();
        slow.fast = false;
        slow.add(&from.0);
        assert_eq!(slow.finish(), sum_of(&from.0));
        let mut to = Pages([0; 3 * PAGE]);
        let mut sums = [[0; 4]; 3];
        // SAFETY: two arrays of three pages.
        unsafe { copy_and_sum(from.0.as_ptr(), to.0.as_mut_ptr(), &mut sums) };
        assert!(
            sums.iter()
                .zip(from.0.chunks(PAGE))
                .all(|(sum, page)| *sum == sum_of(page))
                && to.0 == from.0
        );
    }

    #[test]
    fn it_is_crc_32c() {
        // A lane of "123456789" is not a whole one; the known value is of that text, so the table is tried with it.
        let state = b"123456789".iter().fold(u32::MAX, |state, byte| {
            (state >> 8) ^ TABLE[(state as u8 ^ byte) as usize]
        });
        assert_eq!(!state, 0xe306_9283);
    }

    #[test]
    fn every_flipped_bit_shows() {
        let mut page = vec![0x5au8; PAGE];
        let sum = sum_of(&page);
        for bit in (0..PAGE * 8).step_by(97) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum_of(&page), sum);
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

//! The checksum of image files: CRC-32C in four lanes, one for each quarter of every 4096-byte page. The processor's
//! instruction has a latency of three cycles; with four lanes the checksum keeps up with memory.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_crc32_u64, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
};

use crate::pages::PAGE;
use crate::zone::Area;

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

const TABLE: [u32; 256] = table();

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
        for page in pages.chunks(PAGE) {
            // SAFETY: a whole page that can be read; the instruction is there when `fast` is set.
            unsafe {
                if self.fast {
                    fast_page(&mut self.lanes, page.as_ptr());
                } else {
                    slow_page(&mut self.lanes, page);
                }
            }
        }
    }

    pub fn finish(&self) -> Sum {
        self.lanes.map(|lane| !(lane as u32))
    }
}

/// # Safety
/// `page` is a page that can be read.
#[target_feature(enable = "sse4.2")]
unsafe fn fast_page(lanes: &mut [u64; 4], page: *const u8) {
    const WORDS: usize = LANE / 8;
    let [mut a, mut b, mut c, mut d] = *lanes;
    let words = page.cast::<u64>();
    for at in 0..WORDS {
        // SAFETY: inside the page. Asking for the next one is no access.
        unsafe {
            if at.is_multiple_of(2) {
                // Line after line, as the processor itself prefetches. In the order of the lanes it takes three times
                // as long.
                _mm_prefetch::<_MM_HINT_T0>(page.wrapping_add(PAGE + at * 32).cast());
            }
            a = _mm_crc32_u64(a, words.add(at).read_unaligned());
            b = _mm_crc32_u64(b, words.add(at + WORDS).read_unaligned());
            c = _mm_crc32_u64(c, words.add(at + 2 * WORDS).read_unaligned());
            d = _mm_crc32_u64(d, words.add(at + 3 * WORDS).read_unaligned());
        }
    }
    *lanes = [a, b, c, d];
}

/// For processors without the instruction (before 2009).
fn slow_page(lanes: &mut [u64; 4], page: &[u8]) {
    for (lane, bytes) in lanes.iter_mut().zip(page.chunks(LANE)) {
        *lane = u64::from(bytes.iter().fold(*lane as u32, |state, byte| {
            (state >> 8) ^ TABLE[(state as u8 ^ byte) as usize]
        }));
    }
}

/// Sums up pages, as many as there are `sums`. With `skip_zeros` it ends at the first page of zeros. Calls `each` for
/// every page while the page is in the processor's cache. Returns the number of pages.
///
/// # Safety
/// `from` is aligned to pages, can be read, and nobody writes there.
pub unsafe fn sum_each(
    from: *const u8,
    sums: &mut [Sum],
    skip_zeros: bool,
    mut each: impl FnMut(usize, &[u8]),
) -> usize {
    // The first access to a page of a copied process walks four tables and marks the page as accessed. That takes 0.2
    // microseconds, and until then nothing of the page can be fetched ahead. Asked early, the processor does this for
    // several pages at once.
    const AHEAD: usize = 8;
    for page in 0..sums.len() {
        // SAFETY: as required. To ask is no access.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add((page + AHEAD) * PAGE).cast());
            from.add(page * PAGE).read_volatile();
        }
    }
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: as required.
        let page = unsafe { std::slice::from_raw_parts(from.add(index * PAGE), PAGE) };
        *sum = sum_of(page);
        if skip_zeros && *sum == ZEROS && page == [0; PAGE] {
            return index;
        }
        each(index, page);
    }
    sums.len()
}

/// As [`sum_each`], and copies the pages.
///
/// # Safety
/// As for a copy; both are aligned to pages, and nobody writes there.
pub unsafe fn copy_and_sum(from: *const u8, to: *mut u8, sums: &mut [Sum], skip_zeros: bool) -> usize {
    // SAFETY: as required.
    unsafe {
        sum_each(from, sums, skip_zeros, |index, page| {
            std::ptr::copy_nonoverlapping(page.as_ptr(), to.add(index * PAGE), PAGE);
        })
    }
}

/// The same past the processor's caches. An ordinary store would first read the old content into the cache, in place of
/// what the program needs there. Where nobody reads the pages soon, this takes half the time.
///
/// # Safety
/// As for [`copy_and_sum`].
pub unsafe fn stream_and_sum(from: *const u8, to: *mut u8, sums: &mut [Sum], skip_zeros: bool) -> usize {
    // SAFETY: as required. The fence has these stores done before what follows, as ordinary ones would be.
    unsafe {
        let count = sum_each(from, sums, skip_zeros, |index, page| {
            let (from, to) = (page.as_ptr().cast::<__m128i>(), to.add(index * PAGE).cast::<__m128i>());
            for at in 0..PAGE / size_of::<__m128i>() {
                _mm_stream_si128(to.add(at), _mm_load_si128(from.add(at)));
            }
        });
        _mm_sfence();
        count
    }
}

/// The checksum of a page of zeros.
const ZEROS: Sum = {
    let mut state = u32::MAX;
    let mut at = 0;
    while at < LANE {
        state = (state >> 8) ^ TABLE[(state & 0xff) as usize];
        at += 1;
    }
    [!state; 4]
};

/// The checksum of whole pages.
pub fn sum_of(pages: &[u8]) -> Sum {
    let mut summer = Summer::new();
    summer.add(pages);
    summer.finish()
}

/// Checksums in an area, from byte `at` on.
pub fn sums_mut(area: &mut Area, at: usize, count: usize) -> &mut [Sum] {
    let bytes = &mut area.bytes_mut()[at..at + count * size_of::<Sum>()];
    // SAFETY: areas begin with a page, `at` is that of a sum, and any bytes are sums.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
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
        for copy in [copy_and_sum, stream_and_sum] {
            to.0.fill(1);
            // SAFETY: two arrays of three pages.
            let copied = unsafe { copy(from.0.as_ptr(), to.0.as_mut_ptr(), &mut sums, true) };
            assert!(copied == 3 && to.0 == from.0);
            assert!(
                sums.iter()
                    .zip(from.0.chunks(PAGE))
                    .all(|(sum, page)| *sum == sum_of(page))
            );
        }
        from.0[PAGE..2 * PAGE].fill(0);
        assert_eq!(sum_of(&from.0[PAGE..2 * PAGE]), ZEROS);
        for (skip_zeros, count) in [(true, 1), (false, 3)] {
            // SAFETY: as above.
            let copied = unsafe { stream_and_sum(from.0.as_ptr(), to.0.as_mut_ptr(), &mut sums, skip_zeros) };
            assert_eq!(copied, count);
        }
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

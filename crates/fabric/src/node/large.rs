//! Large pages of the node memory: fresh small ones take longer than the copy into them.

use super::Node;
use resurgo_wire::node_memory::{self as nm, BLOCK, SEGMENT};

/// Whether large pages are available. After a failure some small ones come before the next attempt, twice as many each
/// time.
#[derive(Default)]
pub struct Large {
    /// Blocks to go.
    small: u32,
    pause: u32,
}

impl Large {
    const FIRST_PAUSE: u32 = 8;
    const LONGEST_PAUSE: u32 = 128;

    fn are_worth_it(&mut self) -> bool {
        let now = self.small == 0;
        self.small = self.small.saturating_sub(1);
        now
    }

    fn have_been_made(&mut self, were_at_hand: bool) {
        self.pause = match were_at_hand {
            true => 0,
            false => (self.pause * 2).clamp(Self::FIRST_PAUSE, Self::LONGEST_PAUSE),
        };
        self.small = self.pause;
    }
}

impl Node {
    /// Gives the rank's own segments `from..to` their memory now. Whole blocks get a large page each, if the kernel has
    /// any (MADV_COLLAPSE, Linux 6.1; needs no permission). That takes a tenth of the time of as many small ones, and
    /// address translation is faster.
    pub fn populate(&self, from: usize, to: usize, large: &mut Large) {
        let to = to.min(self.layout.log_segments);
        if from >= to {
            return;
        }
        let (start, bytes) = (self.segment(self.rank, from), (to - from) * SEGMENT);
        let blocks = from.next_multiple_of(BLOCK)..to / BLOCK * BLOCK;
        // The system call itself: the MPI library may have replaced libc's function, and the thread that captures the
        // process, unknown to libc, may run this. SAFETY: own, writable part of the mapping, whose content stays.
        // Failure only means small pages, or page faults later.
        unsafe {
            if !blocks.is_empty() && large.are_worth_it() {
                let first = self.segment(self.rank, blocks.start) as usize;
                large.have_been_made(resurgo_image::make_large_pages(first, blocks.len() * SEGMENT) != Ok(false));
            }
            libc::syscall(libc::SYS_madvise, start, bytes, libc::MADV_POPULATE_WRITE);
        }
    }

    /// Gives a block of segments of `owner`'s arena one large page. False: there is none at hand.
    pub fn make_large(&self, owner: usize, block: usize) -> bool {
        let first = self.segment(owner, block * BLOCK) as usize;
        resurgo_image::make_large_pages(first, nm::LARGE_PAGE) == Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    #[test]
    fn segments_that_get_their_memory_keep_what_they_hold() {
        let (one, _other) = pair(3 * BLOCK - 5, true);
        let held = [0, BLOCK - 1, 2 * BLOCK + 3];
        for slot in held {
            // SAFETY: an own segment.
            unsafe { one.segment(0, slot).write(slot as u8 + 1) };
        }
        one.populate(3, 2 * BLOCK + 1, &mut Large::default());
        one.populate(0, usize::MAX, &mut Large::default());
        let bytes = (3 * BLOCK - 5) * SEGMENT;
        let mut there = vec![0u8; bytes / 4096];
        // SAFETY: of as many pages.
        assert_eq!(
            unsafe { libc::mincore(one.segment(0, 0).cast(), bytes, there.as_mut_ptr()) },
            0
        );
        assert!(there.iter().all(|page| page & 1 == 1));
        // SAFETY: as above.
        assert!(
            held.iter()
                .all(|slot| unsafe { one.segment(0, *slot).read() } == *slot as u8 + 1)
        );
    }
}

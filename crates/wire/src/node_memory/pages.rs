//! Which parts of a node's copies of logs get large pages.

use std::collections::HashMap;

use super::BLOCK;

/// Whoever writes a copy asks for large pages here: filling fresh small ones takes longer than the copy itself.
#[derive(Default)]
pub struct Pages {
    /// Segments begun per rank and block, up to [`Pages::DENSE`].
    begun: HashMap<(usize, usize), u32>,
    /// So many blocks get small pages, because large ones were not available.
    small: u32,
}

impl Pages {
    /// A block with so many begun segments gets a large page: of most ranks only a few segments are copied.
    const DENSE: u32 = 4;
    const PAUSE: u32 = 16;

    /// The copy of the log of `rank` goes on in the segment `slot`. `make`: gives its block one large page; false if there
    /// is none at hand.
    pub fn touch(&mut self, rank: usize, slot: usize, make: impl FnOnce(usize) -> bool) {
        let begun = self.begun.entry((rank, slot / BLOCK)).or_insert(0);
        if *begun >= Self::DENSE {
            return;
        }
        *begun += 1;
        if *begun < Self::DENSE {
            return;
        }
        if self.small > 0 {
            self.small -= 1;
        } else if !make(slot / BLOCK) {
            self.small = Self::PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dense_blocks_get_large_pages_and_none_for_a_while_where_there_are_none() {
        let mut made = Vec::new();
        let mut pages = Pages::default();
        let mut touch = |rank, slot, is_at_hand| {
            pages.touch(rank, slot, |block| {
                made.push((rank, block));
                is_at_hand
            });
        };
        (0..3).for_each(|slot| touch(0, slot, true));
        (3..9).for_each(|slot| touch(1, BLOCK + slot, true));
        touch(0, 3, false);
        for block in 2..20 {
            (0..4).for_each(|slot| touch(0, block * BLOCK + slot, true));
        }
        assert_eq!(made, [(1, 1), (0, 0), (0, 18), (0, 19)]);
    }
}

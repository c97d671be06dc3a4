//! What has been taken of one output stream of a rank, over all its lives.
//!
//! A later life prints again what earlier ones printed. [`Taken`] drops it by offset and compares it
//! with hashes of what went before, so that every byte is passed on exactly once and a program that
//! prints something else in its replay is noticed.

use serde::{Deserialize, Serialize};

/// Bytes covered by one remembered hash.
const BLOCK: u64 = 4096;

/// One stream of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Taken {
    /// Bytes passed on over all lives.
    bytes: u64,
    /// Hash of every full block of them.
    blocks: Vec<u64>,
    /// Hash of the last block, which is not full.
    tail: u64,
    /// Bytes seen in this life, and the hash of its present block.
    seen: u64,
    seen_tail: u64,
    differs: bool,
}

/// How far a life has printed: where a later life goes on that begins from an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    bytes: u64,
    /// Hash of the present block.
    tail: u64,
}

impl Printed {
    /// The beginning of the program.
    pub const NOTHING: Printed = Printed { bytes: 0, tail: EMPTY };

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// FNV-1a: cheap, and nobody attacks a rank's own output.
fn hash(mut state: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}

const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

impl Default for Taken {
    fn default() -> Taken {
        Taken {
            bytes: 0,
            blocks: Vec::new(),
            tail: EMPTY,
            seen: 0,
            seen_tail: EMPTY,
            differs: false,
        }
    }
}

impl Taken {
    /// A new life begins, whose output starts where an earlier one's was at `from`.
    pub fn restarted(&mut self, from: Printed) {
        self.seen = from.bytes;
        self.seen_tail = from.tail;
    }

    /// How far the present life has printed.
    pub fn printed(&self) -> Printed {
        Printed {
            bytes: self.seen,
            tail: self.seen_tail,
        }
    }

    /// Bytes passed on that this life has not printed yet.
    pub fn behind(&self) -> u64 {
        self.bytes.saturating_sub(self.seen)
    }

    /// Gives up waiting for what this life has not printed again.
    pub fn forgive(&mut self) {
        self.seen = self.bytes;
        self.seen_tail = self.tail;
    }

    /// Takes what the present life has printed next. Returns the part that is new, and, the first time
    /// that a repeated part is not what it was, the offset of the block that differs.
    pub fn accept<'a>(&mut self, mut chunk: &'a [u8]) -> (&'a [u8], Option<u64>) {
        let mut differs_at = None;
        while self.behind() > 0 && !chunk.is_empty() {
            let block_end = (self.seen / BLOCK + 1) * BLOCK;
            let take = (block_end.min(self.bytes) - self.seen).min(chunk.len() as u64) as usize;
            self.seen_tail = hash(self.seen_tail, &chunk[..take]);
            self.seen += take as u64;
            chunk = &chunk[take..];
            let block = (self.seen - 1) / BLOCK;
            let expected = if self.seen.is_multiple_of(BLOCK) {
                self.blocks.get(block as usize).copied()
            } else if self.seen == self.bytes {
                Some(self.tail)
            } else {
                None
            };
            if expected.is_some_and(|expected| expected != self.seen_tail) && !self.differs {
                self.differs = true;
                differs_at = Some(block * BLOCK);
            }
            if self.seen.is_multiple_of(BLOCK) {
                self.seen_tail = EMPTY;
            }
        }
        if self.behind() == 0 {
            self.append(chunk);
            self.seen = self.bytes;
            self.seen_tail = self.tail;
        }
        (chunk, differs_at)
    }

    fn append(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let take = ((BLOCK - self.bytes % BLOCK) as usize).min(chunk.len());
            self.tail = hash(self.tail, &chunk[..take]);
            self.bytes += take as u64;
            chunk = &chunk[take..];
            if self.bytes.is_multiple_of(BLOCK) {
                self.blocks.push(self.tail);
                self.tail = EMPTY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
    }

    /// Prints `all` in pieces of `piece` bytes; what came through and the first difference.
    fn print(taken: &mut Taken, all: &[u8], piece: usize) -> (Vec<u8>, Option<u64>) {
        let mut new = Vec::new();
        let mut differs = None;
        for part in all.chunks(piece) {
            let (fresh, difference) = taken.accept(part);
            new.extend_from_slice(fresh);
            differs = differs.or(difference);
        }
        (new, differs)
    }

    #[test]
    fn every_byte_comes_through_once_wherever_lives_end() {
        let all = text(20_000);
        for (first, second) in [
            (0, 0),
            (1, 1),
            (4096, 4096),
            (5000, 3000),
            (12_288, 12_289),
            (20_000, 20_000),
        ] {
            for piece in [1, 1000, 4096, 65_536] {
                let mut taken = Taken::default();
                let mut got = Vec::new();
                for end in [first, second, all.len()] {
                    taken.restarted(Printed::NOTHING);
                    let (new, differs) = print(&mut taken, &all[..end], piece);
                    got.extend(new);
                    assert_eq!(differs, None);
                }
                assert!(got == all, "{first} {second} {piece}");
                assert_eq!(taken.behind(), 0);
            }
        }
    }

    #[test]
    fn other_bytes_in_a_replay_are_noticed_once() {
        let all = text(10_000);
        for at in [0, 4095, 4096, 9999] {
            let mut taken = Taken::default();
            print(&mut taken, &all, 777);
            let mut other = all.clone();
            other[at] ^= 1;
            taken.restarted(Printed::NOTHING);
            let (new, differs) = print(&mut taken, &other, 777);
            assert!(new.is_empty());
            assert_eq!(differs, Some(at as u64 / BLOCK * BLOCK));
            taken.restarted(Printed::NOTHING);
            assert_eq!(print(&mut taken, &other, 777).1, None);
        }
    }

    #[test]
    fn a_life_from_an_image_repeats_only_what_came_after_it() {
        let all = text(20_000);
        for image in [0, 1, 4095, 4096, 5000, 9000] {
            let mut taken = Taken::default();
            taken.accept(&all[..image]);
            let from = taken.printed();
            taken.accept(&all[image..9000]);
            taken.restarted(from);
            assert_eq!(taken.behind(), 9000 - image as u64);
            let (new, differs) = print(&mut taken, &all[image..], 1000);
            assert!(new == all[9000..] && differs.is_none(), "{image}");
        }
    }

    #[test]
    fn what_is_missing_is_counted_and_can_be_forgiven() {
        let mut taken = Taken::default();
        taken.accept(&text(100));
        taken.restarted(Printed::NOTHING);
        taken.accept(&text(40));
        assert_eq!(taken.behind(), 60);
        taken.forgive();
        assert_eq!(taken.behind(), 0);
        assert_eq!(taken.accept(b"new").0, b"new");
        assert_eq!(taken.bytes, 103);
    }
}

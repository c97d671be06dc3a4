//! Parity of shards: from those of a set the *pieces* are made, and any of the lost shards can be made again from as
//! many of the others and the pieces as the set has shards.
//!
//! All shards of a set have one length here, a multiple of [`GRAIN`]; callers count missing bytes as zeros. Shards are
//! coded block by block, and blocks do not depend on one another. With one piece that is an XOR. With more it is a
//! Reed–Solomon code of 16-bit symbols, whose work grows with n log n.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// Lengths of blocks are multiples of this; only then does it not matter how shards are cut into blocks.
pub const GRAIN: usize = 64;
/// The most shards and pieces of a set.
pub const MOST: usize = 256;
/// The most bytes of all blocks that are in work at once, about, and of one.
const IN_WORK: usize = 32 << 20;
const LONGEST: usize = 1 << 20;

/// So many shards have so many pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub shards: usize,
    pub pieces: usize,
}

/// What is given to [`decode`](Shape::decode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Shard(usize),
    Piece(usize),
}

fn wrong(error: reed_solomon_simd::Error) -> String {
    format!("parity cannot be computed: {error}")
}

/// Adds `more` to `sum`, bit by bit without carry.
fn xor(sum: &mut [u8], more: &[u8]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum ^= more);
}

impl Shape {
    /// None: there are no such sets.
    pub fn new(shards: usize, pieces: usize) -> Option<Shape> {
        let is_one = shards > 0 && pieces > 0 && shards.saturating_add(pieces) <= MOST;
        is_one.then_some(Shape { shards, pieces })
    }

    /// The length of the blocks into which shards are best cut.
    pub fn block(self) -> usize {
        let block = (IN_WORK / (self.shards + self.pieces)).min(LONGEST);
        block - block % GRAIN
    }

    /// The blocks of all pieces, from those of all shards in order.
    ///
    /// # Errors
    /// There are more or fewer, or they have other lengths.
    pub fn encode(self, shards: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        let length = shards.first().map_or(0, Vec::len);
        if shards.len() != self.shards || shards.iter().any(|shard| shard.len() != length) {
            return Err("parity needs all shards of a set, of one length".to_string());
        }
        if self.pieces == 1 {
            let mut sum = shards[0].clone();
            shards[1..].iter().for_each(|shard| xor(&mut sum, shard));
            return Ok(vec![sum]);
        }
        let mut encoder = ReedSolomonEncoder::new(self.shards, self.pieces, length).map_err(wrong)?;
        let mut shards = shards.iter();
        shards
            .try_for_each(|shard| encoder.add_original_shard(shard))
            .map_err(wrong)?;
        let made = encoder.encode().map_err(wrong)?;
        Ok(made.recovery_iter().map(<[u8]>::to_vec).collect())
    }

    /// The block of the shard `wanted`, from those of other shards and of pieces: as many as the set has shards.
    ///
    /// # Errors
    /// There are fewer, some are named twice or not of this set, or they have other lengths.
    pub fn decode(self, wanted: usize, parts: &[(Part, Vec<u8>)]) -> Result<Vec<u8>, String> {
        let length = parts.first().map_or(0, |(_, block)| block.len());
        let mut names: Vec<Part> = parts.iter().map(|(part, _)| *part).collect();
        names.sort_unstable();
        names.dedup();
        let is_right = |part: &Part| match *part {
            Part::Shard(index) => index < self.shards && index != wanted,
            Part::Piece(index) => index < self.pieces,
        };
        let are_right = names.len() == parts.len() && names.len() == self.shards && names.iter().all(is_right);
        if !are_right || wanted >= self.shards || parts.iter().any(|(_, block)| block.len() != length) {
            return Err("these parts of a set do not make up the lost one".to_string());
        }
        if self.pieces == 1 {
            let mut sum = vec![0; length];
            parts.iter().for_each(|(_, block)| xor(&mut sum, block));
            return Ok(sum);
        }
        let mut decoder = ReedSolomonDecoder::new(self.shards, self.pieces, length).map_err(wrong)?;
        for (part, block) in parts {
            match *part {
                Part::Shard(index) => decoder.add_original_shard(index, block),
                Part::Piece(index) => decoder.add_recovery_shard(index, block),
            }
            .map_err(wrong)?;
        }
        let made = decoder.decode().map_err(wrong)?;
        let made = made.restored_original(wanted);
        made.map(<[u8]>::to_vec)
            .ok_or_else(|| "the lost shard was not made".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_protocol::random::splitmix;

    /// A seed that goes on.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            (splitmix(&mut self.0) % end as u64) as usize
        }
    }

    fn shards(random: &mut Random, count: usize, length: usize) -> Vec<Vec<u8>> {
        let mut byte = || random.below(256) as u8;
        (0..count).map(|_| (0..length).map(|_| byte()).collect()).collect()
    }

    /// Any of so many parts, in any order.
    fn some(random: &mut Random, mut parts: Vec<(Part, Vec<u8>)>, count: usize) -> Vec<(Part, Vec<u8>)> {
        while parts.len() > count {
            let place = random.below(parts.len());
            parts.swap_remove(place);
        }
        parts
    }

    #[test]
    fn any_losses_up_to_the_number_of_pieces_are_made_good() {
        let mut random = Random(7);
        for _ in 0..200 {
            let (n, m) = (random.below(12) + 1, random.below(5) + 1);
            let length = (random.below(8) + 1) * GRAIN;
            let shape = Shape::new(n, m).unwrap();
            let shards = shards(&mut random, n, length);
            let pieces = shape.encode(&shards).unwrap();
            assert_eq!(pieces.len(), m);
            let wanted = random.below(n);
            let left = (0..n).map(Part::Shard).zip(shards.clone());
            let left = left.filter(|(part, _)| *part != Part::Shard(wanted));
            let left = left.chain((0..m).map(Part::Piece).zip(pieces)).collect();
            let left = some(&mut random, left, n);
            assert_eq!(
                shape.decode(wanted, &left).unwrap(),
                shards[wanted],
                "{shape:?} from {left:?}"
            );
        }
    }

    #[test]
    fn all_losses_of_a_small_set_are_made_good() {
        let mut random = Random(8);
        let (n, m) = (4, 3);
        let shape = Shape::new(n, m).unwrap();
        let shards = shards(&mut random, n, 2 * GRAIN);
        let pieces = shape.encode(&shards).unwrap();
        let all: Vec<(Part, Vec<u8>)> = (0..n).map(Part::Shard).zip(shards.clone()).collect();
        let all = [all, (0..m).map(Part::Piece).zip(pieces).collect()].concat();
        for lost in 0_u32..1 << (n + m) {
            let is_lost = |place: usize| lost & (1 << place) != 0;
            let left: Vec<_> = (0..n + m)
                .filter(|place| !is_lost(*place))
                .map(|place| all[place].clone())
                .collect();
            for wanted in (0..n).filter(|place| is_lost(*place)) {
                let made = shape.decode(wanted, &left);
                assert_eq!(made.ok().as_ref(), Some(&shards[wanted]).filter(|_| left.len() == n));
            }
        }
    }

    #[test]
    fn it_does_not_matter_how_shards_are_cut_into_blocks() {
        let mut random = Random(9);
        for (n, m) in [(3, 1), (3, 2), (8, 2), (2, 5)] {
            let shape = Shape::new(n, m).unwrap();
            let shards = shards(&mut random, n, 12 * GRAIN);
            let whole = shape.encode(&shards).unwrap();
            for block in [GRAIN, 5 * GRAIN] {
                let mut made = vec![Vec::new(); m];
                for at in (0..12 * GRAIN).step_by(block) {
                    let end = (at + block).min(12 * GRAIN);
                    let blocks: Vec<Vec<u8>> = shards.iter().map(|shard| shard[at..end].to_vec()).collect();
                    let pieces = shape.encode(&blocks).unwrap();
                    made.iter_mut().zip(pieces).for_each(|(made, piece)| made.extend(piece));
                }
                assert_eq!(made, whole, "{n}+{m} in blocks of {block}");
            }
        }
    }

    #[test]
    fn sets_and_parts_that_cannot_be_are_refused() {
        for (n, m) in [(0, 1), (1, 0), (255, 2), (usize::MAX, 1)] {
            assert_eq!(Shape::new(n, m), None);
        }
        let largest = Shape::new(200, 56).unwrap();
        assert!(largest.block().is_multiple_of(GRAIN) && largest.block() > 0);
        let shape = Shape::new(2, 2).unwrap();
        let block = || vec![1; GRAIN];
        assert!(shape.encode(&[block()]).is_err());
        assert!(shape.encode(&[block(), vec![1; 2 * GRAIN]]).is_err());
        for parts in [
            vec![],
            vec![Part::Piece(0)],
            vec![Part::Piece(0), Part::Piece(0)],
            vec![Part::Piece(0), Part::Piece(2)],
            vec![Part::Piece(0), Part::Shard(2)],
            vec![Part::Piece(0), Part::Shard(0)],
        ] {
            let parts: Vec<_> = parts.into_iter().map(|part| (part, block())).collect();
            assert!(shape.decode(0, &parts).is_err(), "{parts:?}");
        }
        let uneven = [(Part::Piece(0), block()), (Part::Piece(1), vec![1; 2 * GRAIN])];
        assert!(shape.decode(0, &uneven).is_err());
    }
}

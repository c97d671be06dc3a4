//! Files are cut into chunks where their contents say so: an insertion changes the chunks around it only.

use std::io::{self, Read};

use fastcdc::v2020::StreamCDC;

use crate::error::Kind;
use crate::key::{self, StoreKey};
use crate::name::{self, ChunkName, Hash};
use crate::pack;

const SHORTEST: usize = 256 << 10;
const USUAL: usize = 1 << 20;
/// Bytes of a chunk, at most.
pub const LONGEST: usize = 4 << 20;

/// Cuts what is read.
pub fn cut(from: impl Read) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    StreamCDC::new(from, SHORTEST, USUAL, LONGEST).map(|chunk| Ok(chunk.map_err(io::Error::from)?.data))
}

/// The name of a chunk's object.
pub fn object(job: &str, name: ChunkName) -> String {
    format!("{job}/{}/{name}", name::CHUNKS)
}

/// Bytes that a seal covers as the object's name: not the job, so that jobs can be renamed, and not the attempt.
fn sealed_name(hash: &Hash) -> String {
    format!("{}/{}", name::CHUNKS, blake3::Hash::from(*hash).to_hex())
}

/// The object with a chunk.
///
/// # Errors
/// The cipher does not work.
pub fn wrap(key: Option<&StoreKey>, hash: &Hash, plain: &[u8]) -> Result<Vec<u8>, Kind> {
    key::wrap(key, &sealed_name(hash), pack::pack(plain))
}

/// The plain bytes of a chunk, which are `length`.
///
/// # Errors
/// They are not those of the chunk with this hash.
pub fn unwrap(key: Option<&StoreKey>, hash: &Hash, length: u32, object: Vec<u8>) -> Result<Vec<u8>, Kind> {
    let body = key::unwrap(key, &sealed_name(hash), object)?;
    let plain = pack::unpack(&body, length as usize)?;
    match plain.len() == length as usize && key::hash(key, &plain) == *hash {
        true => Ok(plain),
        false => Err(Kind::Damaged("it is not the chunk that its name says".to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        });
        words.take(bytes).collect()
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let plain = noise(20 << 20, 3);
        let chunks = |bytes: &[u8]| -> Vec<Vec<u8>> { cut(bytes).map(Result::unwrap).collect() };
        let before = chunks(&plain);
        assert!(before.concat() == plain && before.iter().all(|chunk| chunk.len() <= LONGEST));
        let mut longer = plain.clone();
        longer.splice(7_000_000..7_000_000, *b"inserted");
        let after = chunks(&longer);
        let new = after.iter().filter(|chunk| !before.contains(chunk)).count();
        assert!((1..=3).contains(&new), "{new} of {}", after.len());
    }

    #[test]
    fn a_chunk_is_what_its_name_says() {
        let key = StoreKey::of(&[7; 32]);
        let plain = noise(300_000, 4);
        for key in [None, Some(&key)] {
            let hash = key::hash(key, &plain);
            let object = wrap(key, &hash, &plain).unwrap();
            assert!(unwrap(key, &hash, 300_000, object.clone()).unwrap() == plain);
            for (hash, length) in [(hash, 299_999), (hash, 300_001), ([0; 32], 300_000)] {
                let result = unwrap(key, &hash, length, object.clone());
                assert!(matches!(result, Err(Kind::Damaged(_))));
            }
        }
    }
}

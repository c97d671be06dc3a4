//! The bodies of objects: compressed where that helps.
//!
//! ```text
//! method 1   length of the plain bytes 4   bytes
//! ```

use std::cell::RefCell;

use zstd_safe::{CCtx, DCtx};

use crate::error::Kind;

const STORED: u8 = 0;
const ZSTD: u8 = 1;
const HEADER: usize = 5;
/// The fastest of zstd's ordinary levels: a place must not slow the program down.
const LEVEL: i32 = 1;

thread_local! {
    /// To make them takes longer than to compress a chunk.
    static PACKER: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static UNPACKER: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Packs at most 4 GiB.
pub fn pack(plain: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; HEADER + zstd_safe::compress_bound(plain.len())];
    packed[1..HEADER].copy_from_slice(&(plain.len() as u32).to_le_bytes());
    let length = PACKER.with_borrow_mut(|packer| packer.compress(&mut packed[HEADER..], plain, LEVEL));
    match length {
        Ok(length) if length < plain.len() => {
            packed[0] = ZSTD;
            packed.truncate(HEADER + length);
        }
        _ => {
            packed[0] = STORED;
            packed.truncate(HEADER);
            packed.extend_from_slice(plain);
        }
    }
    packed
}

/// The plain bytes, at most `most`: a larger length is damage.
///
/// # Errors
/// They are damaged.
pub fn unpack(packed: &[u8], most: usize) -> Result<Vec<u8>, Kind> {
    let damaged = |why: &str| Kind::Damaged(why.to_string());
    let Some((header, bytes)) = packed.split_first_chunk::<HEADER>() else {
        return Err(damaged("it is too short"));
    };
    let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
    if length > most {
        return Err(damaged("it is longer than it should be"));
    }
    let plain = match header[0] {
        STORED => bytes.to_vec(),
        ZSTD => {
            let mut plain = vec![0; length];
            let written = UNPACKER.with_borrow_mut(|unpacker| unpacker.decompress(&mut plain[..], bytes));
            let written = written.map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
            plain.truncate(written);
            plain
        }
        method => return Err(Kind::Damaged(format!("method {method} of compression is unknown"))),
    };
    match plain.len() == length {
        true => Ok(plain),
        false => Err(damaged("its length is wrong")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_compressible_or_not() {
        let noise: Vec<u8> = (0..100_000u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        for plain in [vec![], vec![1], vec![0; 1 << 20], noise] {
            let packed = pack(&plain);
            assert!(packed.len() <= plain.len() + HEADER);
            assert!(unpack(&packed, plain.len()).unwrap() == plain);
            if !plain.is_empty() {
                assert!(unpack(&packed, plain.len() - 1).is_err());
                assert!(unpack(&packed[..packed.len() - 1], plain.len()).is_err());
            }
        }
        assert!(pack(&[0; 1 << 20]).len() < 1000);
        assert!(unpack(&[9, 0, 0, 0, 0], 10).is_err() && unpack(&[], 10).is_err());
    }
}

//! The key by which a job recognises its own files.

use std::io;

/// The name of the file with it, in the job's directory.
pub const KEY: &str = "key";

pub type Key = [u8; 32];

/// Appends a proof that this job has written the bytes.
pub fn seal(key: &Key, bytes: &mut Vec<u8>) {
    let mac = blake3::keyed_hash(key, bytes);
    bytes.extend_from_slice(mac.as_bytes());
}

/// The sealed bytes.
///
/// # Errors
/// This job has not written them.
pub fn unseal(key: &Key, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "it is damaged, or not what this job has written there",
        )
    };
    let at = bytes.len().checked_sub(blake3::OUT_LEN).ok_or_else(wrong)?;
    let mac = bytes.split_off(at);
    match blake3::keyed_hash(key, &bytes) == *mac.as_slice() {
        true => Ok(bytes),
        false => Err(wrong()),
    }
}

//! Shared memory files of MPICH itself, which it removes when it finalises and a killed process does not.
//!
//! They must be gone when the job is over, and before a rank starts again: MPICH would take the old file, with the
//! last life's contents, for a neighbour's.

use std::path::{Path, PathBuf};

/// What MPICH appends to the name of the key-value space before it hashes it. Up to 5.0 nothing, then the number of
/// the initialisation (a program with sessions may have several).
const SUFFIXES: [&str; 5] = ["", "-0", "-1", "-2", "-3"];

/// Removes MPICH's files of `rank` in the world whose key-value space is `kvs_name`.
pub fn remove(kvs_name: &str, rank: usize) {
    for file in SUFFIXES.into_iter().flat_map(|suffix| names(kvs_name, suffix, rank)) {
        // Nearly always there is nothing to remove.
        let _ = std::fs::remove_file(file);
    }
}

/// MPICH names them after a hash (FNV-1a) and the node. PMI tells every rank that it is alone on its node, so the
/// node's number is the rank (`posix_init.c`, `mpir_pmi.c`).
fn names(kvs_name: &str, suffix: &str, rank: usize) -> [PathBuf; 2] {
    let world = kvs_name
        .bytes()
        .chain(suffix.bytes())
        .fold(2_166_136_261_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
        });
    ["shm", "vci"].map(|kind| Path::new("/dev/shm").join(format!("mpich_{kind}_{world:x}_{rank}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_mpich() {
        // Seen with MPICH 5.0.2.
        let names = names("resurgo_00006530_18ea2f33a8430d2f", "", 0);
        assert_eq!(names[0], PathBuf::from("/dev/shm/mpich_shm_3ec12a15_0"));
    }
}

//! The steps of a plan, while it is made.

use crate::file::plan::{Head, PLAN, Step};

/// Steps for the restorer, and bytes that they point to.
#[derive(Default)]
pub struct Plan {
    pub bytes: Vec<u8>,
    pub steps: Vec<Step>,
}

impl Plan {
    /// Places bytes that steps point to; returns their address.
    pub fn place(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        (PLAN + size_of::<Head>() + at) as u64
    }

    pub fn place_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.place(&bytes)
    }

    pub fn step(&mut self, call: i64, arguments: &[u64], result: u64) {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.steps.push(Step {
            call: call as u64,
            arguments: all,
            result,
        });
    }

    pub fn map(&mut self, start: u64, length: u64, protection: u32, flags: u32, file: i32, offset: u64) {
        let arguments = [
            start,
            length,
            u64::from(protection),
            u64::from(flags),
            file as u64,
            offset,
        ];
        self.step(libc::SYS_mmap, &arguments, start);
    }
}

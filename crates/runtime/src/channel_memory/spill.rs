//! The spill file of a channel memory. Parts of it are taken, written, read, and given back to be taken again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A part of the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub at: u64,
    pub length: u64,
}

#[derive(Debug)]
pub struct Spill {
    file: File,
    /// Unused parts, by their offset; no two of them touch.
    free: BTreeMap<u64, u64>,
    /// Bytes of the file.
    length: u64,
}

impl Spill {
    pub fn new(file: File) -> Spill {
        Spill {
            file,
            free: BTreeMap::new(),
            length: 0,
        }
    }

    /// Bytes of the file: the most that was in use at once, and the gaps between.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes `bytes` to a part of their own.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<Part> {
        let length = bytes.len() as u64;
        let part = self.take(length);
        match self.file.write_all_at(bytes, part.at) {
            Ok(()) => Ok(part),
            Err(error) => {
                self.give_back(part);
                Err(error)
            }
        }
    }

    pub fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// Takes the first free part that is long enough, or a new one at the end.
    fn take(&mut self, length: u64) -> Part {
        let fits = self.free.iter().find(|(_, free)| **free >= length);
        let Some((&at, &free)) = fits else {
            let part = Part {
                at: self.length,
                length,
            };
            self.length += length;
            return part;
        };
        self.free.remove(&at);
        if free > length {
            self.free.insert(at + length, free - length);
        }
        Part { at, length }
    }

    /// Gives `part` back, which nobody needs any more.
    pub fn give_back(&mut self, part: Part) {
        let Part { mut at, mut length } = part;
        if let Some((&before, &free)) = self.free.range(..at).next_back()
            && before + free == at
        {
            self.free.remove(&before);
            (at, length) = (before, length + free);
        }
        if let Some(free) = self.free.remove(&(at + length)) {
            length += free;
        }
        self.free.insert(at, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again() {
        let mut spill = Spill::new(crate::sys::open_nameless(std::env::temp_dir().as_os_str()).unwrap());
        let parts: Vec<Part> = (1..=4u8).map(|byte| spill.write(&[byte; 100]).unwrap()).collect();
        assert_eq!(spill.length(), 400);
        // Two parts that touch, the later one first.
        spill.give_back(parts[2]);
        spill.give_back(parts[1]);
        assert_eq!(spill.free, BTreeMap::from([(100, 200)]));
        assert_eq!(spill.write(&[7; 150]).unwrap(), Part { at: 100, length: 150 });
        assert_eq!(spill.write(&[8; 60]).unwrap(), Part { at: 400, length: 60 });
        assert_eq!(spill.write(&[9; 50]).unwrap(), Part { at: 250, length: 50 });
        assert!(spill.free.is_empty());
        let mut bytes = [0; 460];
        spill.read(&mut bytes, 0).unwrap();
        let expected: Vec<u8> = [(1, 100), (7, 150), (9, 50), (4, 100), (8, 60)]
            .into_iter()
            .flat_map(|(byte, count)| std::iter::repeat_n(byte, count))
            .collect();
        assert_eq!(bytes[..], expected[..]);
        for part in [
            parts[3],
            parts[0],
            Part { at: 100, length: 200 },
            Part { at: 400, length: 60 },
        ] {
            spill.give_back(part);
        }
        assert_eq!((&spill.free, spill.length()), (&BTreeMap::from([(0, 460)]), 460));
    }
}

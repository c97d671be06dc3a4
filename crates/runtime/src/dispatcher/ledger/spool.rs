//! Standard input of rank 0, kept so that a later life can read it from where it begins.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Most bytes sent to a life at once.
const PART: u64 = 32 << 10;

/// The standard input so far.
pub struct Spool {
    file: File,
    length: u64,
    ended: bool,
    /// Bytes that the present life had read when it began, plus those sent since.
    began: u64,
    sent: u64,
    /// The present life has room for more.
    wanted: bool,
}

/// The next data for the present life.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Bytes(Vec<u8>),
    End,
}

impl Spool {
    pub fn new() -> io::Result<Spool> {
        let file = File::from(memfd_create(c"resurgo-stdin", MFdFlags::MFD_CLOEXEC)?);
        Ok(Spool {
            file,
            length: 0,
            ended: false,
            began: 0,
            sent: 0,
            wanted: false,
        })
    }

    /// The path by which another process of the user opens the file.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Bytes that have come so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The input of an earlier run is in the file now.
    pub fn resume(&mut self) -> io::Result<()> {
        self.length = self.file.metadata()?.len();
        Ok(())
    }

    /// A life of rank 0 begins; it has read `from` bytes already.
    pub fn begin_life(&mut self, from: u64) {
        (self.began, self.sent, self.wanted) = (from, from, false);
    }

    /// The position in the input when the present life has read so many bytes.
    pub fn place(&self, read: u64) -> u64 {
        self.began + read
    }

    /// The present life has room for more.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The dispatcher must read more for it.
    pub fn lacks(&self) -> bool {
        self.wanted && !self.ended && self.sent == self.length
    }

    /// More has been read.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Nothing more will come.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The data to send to the present life now.
    pub fn next(&mut self) -> io::Result<Option<Part>> {
        if !self.wanted || self.lacks() {
            return Ok(None);
        }
        self.wanted = false;
        let waiting = self.length.saturating_sub(self.sent).min(PART) as usize;
        if waiting == 0 {
            return Ok(Some(Part::End));
        }
        let mut bytes = vec![0; waiting];
        self.file.read_exact_at(&mut bytes, self.sent)?;
        self.sent += waiting as u64;
        Ok(Some(Part::Bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_life_reads_all_from_where_it_begins() {
        let mut spool = Spool::new().unwrap();
        let read = |spool: &mut Spool| {
            let mut all = Vec::new();
            loop {
                spool.want();
                match spool.next().unwrap() {
                    Some(Part::Bytes(bytes)) => all.extend(bytes),
                    Some(Part::End) => return all,
                    None => assert!(spool.lacks()),
                }
                if spool.lacks() {
                    return all;
                }
            }
        };
        let (first, second) = (vec![1; 100_000], vec![2; 10]);
        spool.begin_life(0);
        assert!(!spool.lacks());
        spool.want();
        assert!(spool.lacks() && spool.next().unwrap().is_none());
        spool.push(&first).unwrap();
        assert_eq!(read(&mut spool), first);
        spool.push(&second).unwrap();
        spool.end();
        assert_eq!(read(&mut spool), second);
        for from in [0, 7, 100_003, 100_010] {
            spool.begin_life(from);
            assert_eq!(spool.place(3), from + 3);
            assert_eq!(read(&mut spool), [&first[..], &second].concat()[from as usize..]);
        }
    }
}

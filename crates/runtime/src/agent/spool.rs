//! Standard input of rank 0, kept so that a later life can read it from the start.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Most bytes taken from the dispatcher ahead of what rank 0 has read.
const AHEAD: u64 = 64 << 10;

/// The standard input so far.
pub struct Spool {
    file: File,
    length: u64,
    ended: bool,
    /// Bytes given to the present life.
    given: u64,
    pipe: Option<PipeWriter>,
    /// The other end of the pipe, once all has been given and ours is closed: what the life has yet to read is in there.
    rest: Option<File>,
    asked: bool,
}

impl Spool {
    pub fn new() -> io::Result<Spool> {
        let file = File::from(memfd_create(c"resurgo-stdin", MFdFlags::MFD_CLOEXEC)?);
        Ok(Spool {
            file,
            length: 0,
            ended: false,
            given: 0,
            pipe: None,
            rest: None,
            asked: false,
        })
    }

    /// What has come so far, in a file of its own.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes that have come so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// So much of it has been put into the file, and perhaps that was all.
    pub fn resume(&mut self, length: u64, ended: bool) {
        (self.length, self.ended) = (length, ended);
    }

    /// A life of rank 0 begins that has read `from` bytes already; `pipe` (non-blocking) leads to it.
    pub fn begin_life(&mut self, pipe: PipeWriter, from: u64) {
        self.given = from;
        self.pipe = Some(pipe);
        self.rest = None;
    }

    /// The life has ended.
    pub fn end_life(&mut self) {
        self.pipe = None;
        self.rest = None;
    }

    /// The way to rank 0, while there is something to write to it or its end to be told.
    pub fn pipe(&self) -> Option<&PipeWriter> {
        self.pipe.as_ref()
    }

    /// Bytes that the present life has read: given to it and not in its pipe any more.
    pub fn read(&self) -> u64 {
        let waiting = match (&self.pipe, &self.rest) {
            (Some(pipe), _) => resurgo_image::readable_bytes(pipe),
            (None, Some(rest)) => resurgo_image::readable_bytes(rest),
            (None, None) => 0,
        };
        self.given.saturating_sub(waiting)
    }

    /// More has come from the dispatcher.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        self.asked = false;
        Ok(())
    }

    /// Nothing more will come.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// True once each time that more input should be asked for.
    pub fn wants_more(&mut self) -> bool {
        let wants = !self.ended && !self.asked && self.pipe.is_some() && self.length - self.given < AHEAD;
        self.asked |= wants;
        wants
    }

    /// Writes what the pipe takes. Returns whether more is waiting for the pipe to have room.
    pub fn feed(&mut self) -> io::Result<bool> {
        let mut buffer = [0u8; 16 << 10];
        while let Some(pipe) = &mut self.pipe {
            let waiting = (self.length - self.given).min(buffer.len() as u64) as usize;
            if waiting == 0 {
                if self.ended {
                    self.rest = Some(other_end(pipe)?);
                    self.pipe = None;
                }
                return Ok(false);
            }
            self.file.read_exact_at(&mut buffer[..waiting], self.given)?;
            match pipe.write(&buffer[..waiting]) {
                Ok(written) => self.given += written as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The program has closed its standard input: nothing more is needed in this life.
                Err(_) => self.pipe = None,
            }
        }
        Ok(false)
    }
}

/// Another reading end of the pipe that `pipe` leads into.
fn other_end(pipe: &PipeWriter) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(format!("/proc/self/fd/{}", pipe.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn every_life_reads_all_of_it() {
        let mut spool = Spool::new().unwrap();
        for life in 0..3 {
            let (mut reader, writer) = std::io::pipe().unwrap();
            spool.begin_life(writer, 0);
            if life == 0 {
                assert!(spool.wants_more() && !spool.wants_more());
                spool.push(b"one ").unwrap();
                spool.feed().unwrap();
                spool.push(b"two").unwrap();
                spool.end();
            }
            assert!(!spool.feed().unwrap());
            let mut got = String::new();
            reader.read_to_string(&mut got).unwrap();
            assert_eq!(got, "one two");
        }
    }

    #[test]
    fn what_is_still_in_the_pipe_has_not_been_read() {
        let mut spool = Spool::new().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        spool.begin_life(writer, 0);
        spool.push(b"0123456789").unwrap();
        spool.end();
        spool.feed().unwrap();
        assert_eq!((spool.pipe().is_none(), spool.read()), (true, 0));
        reader.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(spool.read(), 4);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), spool.read()), ("456789", 10));
    }

    #[test]
    fn a_program_that_does_not_read_is_no_error() {
        let mut spool = Spool::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        spool.begin_life(writer, 0);
        drop(reader);
        spool.push(b"x").unwrap();
        assert!(!spool.feed().unwrap());
        assert!(spool.pipe().is_none());
    }
}

//! Standard input of rank 0 on its way into the rank's pipe. The dispatcher keeps it, and sends each life what it has yet to read.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

/// Most bytes that wait for the pipe before more is asked for.
const AHEAD: usize = 64 << 10;

/// The input of the present life.
#[derive(Default)]
pub struct Feed {
    /// Input that does not fit into the pipe yet.
    waiting: Vec<u8>,
    /// Nothing more will come.
    ended: bool,
    /// Bytes written into the pipe.
    given: u64,
    pipe: Option<PipeWriter>,
    /// A reading end of the pipe, once all input is in it and our writing end is closed: it tells what is still unread.
    rest: Option<File>,
    asked: bool,
    /// The pipe is in the epoll set.
    pub watched: bool,
}

impl Feed {
    /// A life of rank 0 begins; `pipe` (non-blocking) leads to it.
    pub fn begin_life(pipe: Option<PipeWriter>) -> Feed {
        Feed {
            pipe,
            ..Feed::default()
        }
    }

    /// The pipe to rank 0, while input or its end has yet to be written.
    pub fn pipe(&self) -> Option<&PipeWriter> {
        self.pipe.as_ref()
    }

    /// Bytes that the life has read: written into its pipe and no longer there.
    pub fn read(&self) -> u64 {
        let waiting = match (&self.pipe, &self.rest) {
            (Some(pipe), _) => resurgo_image::readable_bytes(pipe),
            (None, Some(rest)) => resurgo_image::readable_bytes(rest),
            (None, None) => 0,
        };
        self.given.saturating_sub(waiting)
    }

    /// The life has read all input that there will be.
    pub fn is_over(&self) -> bool {
        self.ended && self.waiting.is_empty() && self.pipe.is_none() && self.read() == self.given
    }

    /// More has come from the dispatcher.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        self.asked = false;
    }

    /// Nothing more will come.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// True once each time that the agent should ask for more input.
    pub fn wants_more(&mut self) -> bool {
        let wants = !self.ended && !self.asked && self.pipe.is_some() && self.waiting.len() < AHEAD;
        self.asked |= wants;
        wants
    }

    /// Writes what the pipe takes. Returns whether more is waiting for the pipe to have room.
    pub fn feed(&mut self) -> io::Result<bool> {
        while let Some(pipe) = &mut self.pipe {
            if self.waiting.is_empty() {
                if self.ended {
                    self.rest = Some(other_end(pipe)?);
                    self.pipe = None;
                }
                return Ok(false);
            }
            match pipe.write(&self.waiting) {
                Ok(written) => {
                    self.given += written as u64;
                    self.waiting.drain(..written);
                }
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
    fn what_is_still_in_the_pipe_has_not_been_read() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut feed = Feed::begin_life(Some(writer));
        assert!(feed.wants_more() && !feed.wants_more());
        feed.push(b"0123456789");
        assert!(feed.wants_more());
        feed.end();
        assert!(!feed.feed().unwrap());
        assert_eq!((feed.pipe().is_none(), feed.read()), (true, 0));
        reader.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(feed.read(), 4);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), feed.read()), ("456789", 10));
    }

    #[test]
    fn no_more_is_asked_for_than_the_pipe_takes() {
        let (_reader, writer) = std::io::pipe().unwrap();
        crate::sys::set_nonblocking(&writer).unwrap();
        let mut feed = Feed::begin_life(Some(writer));
        let mut pushed = 0;
        while feed.wants_more() {
            feed.push(&[7; 32 << 10]);
            pushed += 32 << 10;
            feed.feed().unwrap();
        }
        // The pipe's capacity, and the bytes that wait.
        assert!(pushed <= (64 << 10) + AHEAD + (32 << 10), "{pushed}");
        assert!(feed.feed().unwrap());
    }

    #[test]
    fn a_program_that_does_not_read_is_no_error() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut feed = Feed::begin_life(Some(writer));
        drop(reader);
        feed.push(b"x");
        assert!(!feed.feed().unwrap());
        assert!(feed.pipe().is_none());
    }
}

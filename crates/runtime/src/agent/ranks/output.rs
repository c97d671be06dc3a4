//! What ranks print: from their pipes to the dispatcher.

use std::io::{self, PipeReader, Read};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use resurgo_wire::control::{OUTPUT_WINDOW, Stream, ToDispatcher};

use super::Rank;
use crate::agent::{Agent, Source};

/// Most bytes read from one stream of a rank before the next stream's turn.
const READ: usize = 64 << 10;
/// Most bytes taken from a stream whose rank has ended: more than any pipe holds.
const DRAIN: usize = 4 << 20;

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Rank {
    /// The pipe that the agent reads.
    pub fn output(&self, stream: Stream) -> Option<&PipeReader> {
        self.outputs[index(stream)].as_ref()
    }

    /// The rank goes on with other pipes; the former ones are closed.
    pub fn set_outputs(&mut self, outputs: [Option<PipeReader>; 2]) {
        (self.outputs, self.watched) = (outputs, [false; 2]);
    }

    /// Takes its pipes away: what comes is not read.
    pub fn take_outputs(&mut self, epoll: &Epoll) -> [Option<PipeReader>; 2] {
        let watched = std::mem::take(&mut self.watched);
        let outputs = std::mem::take(&mut self.outputs);
        for (pipe, is_watched) in outputs.iter().zip(watched) {
            if let Some(pipe) = pipe.as_ref().filter(|_| is_watched) {
                let _ = epoll.delete(pipe);
            }
        }
        outputs
    }
}

impl Agent {
    /// Reads what is left in the pipes of a rank and closes them.
    pub(in crate::agent) fn drain_and_close(&mut self, rank: usize) -> io::Result<()> {
        self.drain_outputs(rank)?;
        self.close_outputs(rank)
    }

    /// Reads what is left in the pipes of a rank.
    pub(in crate::agent) fn drain_outputs(&mut self, rank: usize) -> io::Result<()> {
        for stream in Stream::ALL {
            let mut taken = 0;
            while taken < DRAIN {
                match self.read_output(rank, stream)? {
                    Some(0) | None => break,
                    Some(length) => taken += length,
                }
            }
        }
        Ok(())
    }

    pub(in crate::agent) fn close_outputs(&mut self, rank: usize) -> io::Result<()> {
        Stream::ALL
            .into_iter()
            .try_for_each(|stream| self.close_output(rank, stream))
    }

    fn close_output(&mut self, rank: usize, stream: Stream) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let Some(pipe) = this.outputs[index(stream)].take() else {
            return Ok(());
        };
        if std::mem::take(&mut this.watched[index(stream)]) {
            self.epoll.delete(&pipe)?;
        }
        self.tell_output_end(rank)
    }

    pub(in crate::agent) fn output_event(&mut self, rank: usize, stream: Stream) -> io::Result<()> {
        if self.read_output(rank, stream)? == Some(0) {
            self.close_output(rank, stream)?;
        }
        if self.work.window.contains(&0) {
            return self.watch_outputs();
        }
        Ok(())
    }

    /// Reads once from a stream; `Some(0)` at its end, `None` when it is empty.
    pub(in crate::agent) fn read_output(&mut self, rank: usize, stream: Stream) -> io::Result<Option<usize>> {
        let work = &mut self.work;
        let Some(this) = work.ranks.get_mut(rank) else {
            return Ok(None);
        };
        let Some(pipe) = &mut this.outputs[index(stream)] else {
            return Ok(None);
        };
        let mut buffer = vec![0u8; READ];
        let length = match pipe.read(&mut buffer) {
            Ok(0) => return Ok(Some(0)),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        };
        buffer.truncate(length);
        if self.has_died_below(rank)? {
            self.hold_output(rank, stream, &buffer);
            return Ok(Some(length));
        }
        self.depends_on(rank)?;
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let repeated = this.behind[index(stream)];
        if stream == Stream::Stdout && repeated && this.repeats_output {
            this.quiet_since = (!this.replaying).then(Instant::now);
        }
        let window = &mut work.window[usize::from(repeated)];
        *window = window.saturating_sub(length as u64);
        self.control.queue(&ToDispatcher::Output {
            rank,
            life: this.number,
            stream,
            repeated,
            bytes: buffer,
        });
        Ok(Some(length))
    }

    /// The dispatcher has taken so many bytes.
    pub(in crate::agent) fn output_taken(&mut self, bytes: [u64; 2]) -> io::Result<()> {
        let window = &mut self.work.window;
        let was_closed = window.contains(&0);
        for (window, bytes) in window.iter_mut().zip(bytes) {
            *window = (*window + bytes).min(OUTPUT_WINDOW);
        }
        match was_closed {
            true => self.watch_outputs(),
            false => Ok(()),
        }
    }

    /// Puts the pipes that may be read now into the epoll set and takes the others out.
    pub(in crate::agent) fn watch_outputs(&mut self) -> io::Result<()> {
        let size = self.work.ranks.len();
        (0..size).try_for_each(|rank| self.watch_output(rank))
    }

    pub(in crate::agent) fn watch_output(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        for stream in Stream::ALL {
            let i = index(stream);
            let Some(pipe) = &this.outputs[i] else { continue };
            // Output that is only dropped has a window of its own: a replay must not wait for the output's readers.
            let watch = work.window[usize::from(this.behind[i])] > 0;
            if watch && !this.watched[i] {
                let token = Source::Output(rank, stream).token();
                self.epoll.add(pipe, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
            } else if !watch && this.watched[i] {
                self.epoll.delete(pipe)?;
            }
            this.watched[i] = watch;
        }
        Ok(())
    }
}

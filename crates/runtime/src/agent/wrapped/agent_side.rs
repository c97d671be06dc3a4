//! The agent looks after programs below wrappers, and holds what comes after their deaths.

use std::io;

use resurgo_wire::control::{Stream, ToDispatcher};
use resurgo_wire::node_memory::PHASE_CLOSED;

use super::{HELD, Program};
use crate::agent::{Agent, Work};

impl Work {
    /// Learns which process the program of `rank` is, once that has opened the provider.
    pub(in crate::agent) fn find_program(&mut self, rank: usize) -> io::Result<()> {
        let attached = self.memory.attached(rank)?;
        let this = &mut self.ranks[rank];
        let known = this.wrapped.program.as_ref().map(|program| program.number);
        if let (Some(number), Some(life)) = (attached.filter(|_| attached != known), &this.life) {
            this.wrapped.program = Some(Program::of(number, life.pid));
        }
        Ok(())
    }
}

impl Agent {
    /// Whether the program of `rank` has died inside MPI, below a wrapper that goes on.
    pub(in crate::agent) fn has_died_below(&mut self, rank: usize) -> io::Result<bool> {
        if self.work.ranks[rank].wrapped.above.is_some() {
            return self.has_lost_wrapper(rank);
        }
        let wrapped = &self.work.ranks[rank].wrapped;
        if wrapped.has_died || self.work.ranks[rank].life.is_none() {
            return Ok(wrapped.has_died);
        }
        self.work.find_program(rank)?;
        let number = self.work.ranks[rank].wrapped.number();
        if number.is_none() || !self.work.ranks[rank].wrapped.has_ended() {
            return Ok(false);
        }
        // Its last words count.
        self.pmi_event(rank)?;
        let work = &mut self.work;
        let is_open = work.memory.phase(rank)? != PHASE_CLOSED;
        // Another program of the wrapper takes the rank's place first, and then opens its endpoint.
        let is_last = work.memory.attached(rank)? == number;
        let this = &mut work.ranks[rank];
        let progress = this.life.as_ref().map(|life| life.progress);
        let in_mpi = progress.is_some_and(|progress| progress.initialised && !progress.finalised);
        this.wrapped.has_died = in_mpi && is_open && is_last;
        Ok(this.wrapped.has_died)
    }

    /// Keeps what was read of `rank` after its program had died.
    pub(in crate::agent) fn hold_output(&mut self, rank: usize, stream: Stream, bytes: &[u8]) {
        let held = &mut self.work.ranks[rank].wrapped.held[stream as usize];
        let room = HELD.saturating_sub(held.len());
        held.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The job ends, and `rank` has no further life: passes on what is held of its last one.
    pub(in crate::agent) fn give_held(&mut self, rank: usize) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        let held = std::mem::take(&mut this.wrapped.held);
        let life = this.number;
        for (stream, bytes) in Stream::ALL.into_iter().zip(held) {
            if bytes.is_empty() {
                continue;
            }
            self.depends_on(rank)?;
            self.control.queue(&ToDispatcher::Output {
                rank,
                life,
                stream,
                repeated: false,
                bytes,
            });
            self.send(&ToDispatcher::OutputEnd { rank, finished: false })?;
        }
        Ok(())
    }
}

//! A wrapper whose program is the agent's child: it waits for the place holder, over all lives of the program.
//!
//! When the program has come to its end, the place holder ends in the same way. The wrapper goes on, and the life with
//! it, as if the program had been its child. The rank fails if the wrapper is lost before: no image of the program is of
//! use without it.

use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use resurgo_wire::control::{End, Stream};
use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::PHASE_CLOSED;

use super::state::{ENDED, Kept};
use crate::agent::life::Life;
use crate::agent::{Agent, PATIENCE, Source};
use crate::children;

impl super::Wrapped {
    /// The wrapper above the agent's child.
    pub(in crate::agent) fn above(&self) -> Option<Pid> {
        self.above.as_ref().map(|above| above.wrapper)
    }

    /// Passes a signal on to the wrapper, if it is above the agent's child.
    pub(in crate::agent) fn signal(&self, signal: Signal) {
        self.above.iter().for_each(|above| above.signal(signal));
    }

    fn is_lost(&self) -> bool {
        self.above.as_ref().is_some_and(|above| above.is_lost)
    }

    /// How the rank has ended, where its process has ended so, and may have said with which code. A wrapper above it may
    /// end with another one. Without its wrapper the rank has failed.
    pub(in crate::agent) fn end_of_rank(&self, end: End, said: Option<i32>) -> End {
        match said {
            Some(code) => End::Exited(code),
            None if self.is_lost() => End::Signalled(Signal::SIGKILL as i32),
            None => end,
        }
    }
}

impl Agent {
    /// The place holder says something, or has ended.
    pub(in crate::agent) fn holder_event(&mut self, rank: usize) -> io::Result<()> {
        loop {
            let wrapped = &self.work.ranks[rank].wrapped;
            let of_parting = wrapped.parting.as_ref().map(|parting| &parting.holder);
            let Some(socket) = wrapped.above.as_ref().map(|above| &above.holder).or(of_parting) else {
                return Ok(());
            };
            match socket.receive() {
                Ok((said, _)) if said.kind == Kind::Holds => self.is_held(rank)?,
                Ok((said, _)) if said.kind == Kind::Signalled => self.wrapper_signals(rank, said.a),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.mind_parting(rank),
                Err(_) => {
                    let _ = self.epoll.delete(socket);
                    return self.lose_wrapper(rank);
                }
            }
        }
    }

    /// The wrapper has sent its program a signal.
    fn wrapper_signals(&mut self, rank: usize, number: u64) {
        let this = &mut self.work.ranks[rank];
        let (Some(above), Ok(signal)) = (&mut this.wrapped.above, Signal::try_from(number as i32)) else {
            return;
        };
        if !above.sent.contains(&signal) {
            above.sent.push(signal);
        }
        match &this.life {
            Some(life) => _ = kill(life.pid, signal),
            None => above.waiting.push(signal),
        }
    }

    /// A life of `rank` has begun: it gets what the wrapper has sent meanwhile.
    pub(in crate::agent) fn life_below(&mut self, rank: usize) {
        let this = &mut self.work.ranks[rank];
        let (Some(above), Some(life)) = (&mut this.wrapped.above, &this.life) else {
            return;
        };
        for signal in std::mem::take(&mut above.waiting) {
            let _ = kill(life.pid, signal);
        }
        if above.is_lost {
            life.signal(Signal::SIGKILL);
        }
    }

    /// The rank whose wrapper, above the agent's child, is process `pid`.
    pub(in crate::agent) fn rank_below(&self, pid: Pid) -> Option<usize> {
        let mut ranks = self.work.ranks.iter();
        ranks.position(|rank| rank.wrapped.above() == Some(pid))
    }

    /// Whether the wrapper above the agent's child is lost: what it prints from now on is of no life.
    pub(super) fn has_lost_wrapper(&mut self, rank: usize) -> io::Result<bool> {
        if !self.work.ranks[rank].wrapped.is_lost() {
            self.holder_event(rank)?;
        }
        Ok(self.work.ranks[rank].wrapped.is_lost())
    }

    /// The wrapper has ended before its program, or goes on without it: the rank has failed.
    pub(in crate::agent) fn lose_wrapper(&mut self, rank: usize) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        let Some(above) = this.wrapped.above.as_mut().filter(|above| !above.is_lost) else {
            return Ok(());
        };
        above.is_lost = true;
        above.signal(Signal::SIGKILL);
        match &this.life {
            Some(life) => life.signal(Signal::SIGKILL),
            // A process that wakes is ended when it is known.
            None if this.images.is_waking() => {}
            None => self.end_wrapper(rank)?,
        }
        Ok(())
    }

    /// Ends the wrapper above the agent's child, if there is one. Images of the rank are of no use any more.
    pub(in crate::agent) fn end_wrapper(&mut self, rank: usize) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        let Some(above) = this.wrapped.above.take() else {
            return Ok(());
        };
        this.images.end_copies();
        children::fence(above.wrapper, PATIENCE);
        let Some(kept) = above.kept else { return Ok(()) };
        for (stream, pipe) in Stream::ALL.into_iter().zip(kept.outputs) {
            if let Some(mut pipe) = pipe {
                let mut rest = Vec::new();
                // Until it is empty, or closed.
                let _ = io::Read::read_to_end(&mut pipe, &mut rest);
                self.hold_output(rank, stream, &rest);
            }
        }
        Ok(())
    }

    /// The agent's child has ended, the program of a wrapper. If it has come to its end, the wrapper goes on; returns
    /// whether it does.
    pub(in crate::agent) fn hands_over(&mut self, rank: usize, end: End) -> io::Result<bool> {
        if self.work.ranks[rank].wrapped.above.is_none() || self.has_lost_wrapper(rank)? {
            return Ok(false);
        }
        let work = &mut self.work;
        let is_closed = work.memory.phase(rank)? == PHASE_CLOSED;
        let has_report = work.memory.report_code(rank)?.is_some();
        let this = &mut work.ranks[rank];
        let (Some(above), Some(life)) = (&this.wrapped.above, &this.life) else {
            return Ok(false);
        };
        let is_over = is_closed || life.progress.finalised;
        // It has ended as the wrapper wanted.
        let is_sent = |number: i32| above.sent.iter().any(|sent| *sent as i32 == number);
        let is_wanted = matches!(end, End::Signalled(number) if is_sent(number));
        let goes_on = (is_over || is_wanted) && !has_report && !this.asked.is_ended && !this.aborted;
        if goes_on {
            self.hand_over(rank, end)?;
        }
        Ok(goes_on)
    }

    fn hand_over(&mut self, rank: usize, end: End) -> io::Result<()> {
        let Some(above) = self.work.ranks[rank].wrapped.above.as_ref() else {
            return Ok(());
        };
        if above.kept.is_some() {
            self.drain_and_close(rank)?;
        }
        let this = &mut self.work.ranks[rank];
        let (Some(above), Some(life)) = (this.wrapped.above.take(), &mut this.life) else {
            return Ok(());
        };
        this.images.end_copies();
        let asked = this.images.asked;
        children::reap(std::mem::replace(&mut life.pid, above.wrapper));
        if let Some(kept) = above.kept {
            let watch = |source: Source| EpollEvent::new(EpollFlags::EPOLLIN, source.token());
            self.epoll.add(&kept.pmi, watch(Source::Pmi(rank)))?;
            if let Some(socket) = &kept.image {
                self.epoll.add(socket, watch(Source::Images(rank)))?;
            }
            (life.pmi, life.image) = (kept.pmi, kept.image);
            life.said.clear();
            life.answers.clear();
            this.set_outputs(kept.outputs);
            self.watch_output(rank)?;
        }
        let (code, signal) = match end {
            End::Exited(code) => (code, 0),
            End::Signalled(number) => (0, number),
        };
        let told = Datagram::new(Kind::End, code as u64, signal as u64, 0);
        // The wrapper may have been killed just now, and with it the place holder.
        let _ = above.holder.send(&told, &[]);
        // The socket closes behind it. Others may stand still for a wave with an image of it.
        self.refused(rank as u32, asked, ENDED);
        Ok(())
    }

    /// A life of `rank` has failed: what its wrapper needs of its connections stays. Without a wrapper, nothing does.
    pub(in crate::agent) fn end_connections(&mut self, rank: usize, life: Life) -> io::Result<()> {
        self.drain_outputs(rank)?;
        if self.work.ranks[rank].wrapped.is_lost() {
            self.end_wrapper(rank)?;
        }
        let this = &mut self.work.ranks[rank];
        let keeps = this.wrapped.above.as_ref().is_some_and(|above| above.kept.is_none());
        if !keeps {
            return self.close_outputs(rank);
        }
        let _ = self.epoll.delete(&life.pmi);
        life.image.iter().for_each(|socket| _ = self.epoll.delete(socket));
        let kept = Kept {
            pmi: life.pmi,
            image: life.image,
            outputs: this.take_outputs(&self.epoll),
        };
        if let Some(above) = &mut this.wrapped.above {
            above.kept = Some(kept);
        }
        Ok(())
    }
}

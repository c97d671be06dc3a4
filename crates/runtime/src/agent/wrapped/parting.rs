//! A program parts from its wrapper, before its first image: it goes on as a child of the agent, and a place holder
//! stays below the wrapper.
//!
//! ```text
//! agent ── Part ──► program        makes a copy, which waits, and says Parted
//!       ◄── Holds ── place holder  the program's process by now
//!       ── Go ────► the copy       is the program from here on
//!       ── the request for the image ──► the copy
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_protocol::coordinator::Manner;
use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::control;

use super::obstacles::shared_files;
use super::state::{Above, ENDED, PART, Parting};
use crate::agent::{Agent, Source};

impl Agent {
    /// If a wrapper is above the program of `rank`, an image of it is for later, or refused: the program parts first.
    /// Returns whether that is so.
    pub(in crate::agent) fn parts_first(&mut self, rank: usize, number: u64, manner: Manner) -> io::Result<bool> {
        let work = &mut self.work;
        work.find_program(rank)?;
        let Some(program) = work.ranks[rank].wrapped.number() else {
            return Ok(false);
        };
        if let Some(parting) = &mut work.ranks[rank].wrapped.parting {
            (parting.number, parting.manner, parting.is_wanted) = (number, manner, true);
            return Ok(true);
        }
        let asked = match work.why_not_below(rank, program)? {
            Some(why) => Err(io::Error::other(why)),
            None => self.ask_to_part(rank, program, number),
        };
        match asked {
            Ok(holder) => {
                let watch = EpollEvent::new(EpollFlags::EPOLLIN, Source::Holder(rank).token());
                self.epoll.add(&holder, watch)?;
                let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
                if let Some(process) = self.work.ranks[rank].wrapped.process() {
                    let _ = self
                        .epoll
                        .add(process, EpollEvent::new(once, Source::Holder(rank).token()));
                }
                self.work.ranks[rank].wrapped.parting = Some(Parting {
                    request: number | PART,
                    number,
                    manner,
                    is_wanted: true,
                    process: None,
                    holder,
                });
            }
            Err(error) => self.refused(rank as u32, number, &error.to_string()),
        }
        Ok(true)
    }

    fn ask_to_part(&self, rank: usize, program: i32, number: u64) -> io::Result<Socket> {
        let this = &self.work.ranks[rank];
        let (life, socket) = this.life_with_images().ok_or(io::ErrorKind::Unsupported)?;
        let shared = shared_files(Pid::from_raw(program), life.pid)
            .ok_or_else(|| io::Error::other("it shares an open file with its wrapper by a descriptor above 63"))?;
        let (ours, theirs): (Socket, OwnedFd) = Socket::pair()?;
        let binary = File::open("/proc/self/exe")?;
        let agent = u64::from(std::process::id());
        let request = Datagram::new(Kind::Part, number | PART, agent, shared);
        resurgo_image::ask(program, socket, request, &[binary.as_fd(), theirs.as_fd()])?;
        Ok(ours)
    }

    /// The program, or the place holder in its place, may have ended meanwhile.
    pub(super) fn mind_parting(&mut self, rank: usize) -> io::Result<()> {
        let wrapped = &mut self.work.ranks[rank].wrapped;
        if wrapped.parting.is_none() || !wrapped.has_ended() {
            return Ok(());
        }
        if let Some(parting) = wrapped.parting.take() {
            // The copy waits, and has done nothing.
            parting
                .process
                .iter()
                .for_each(|process| _ = kill(*process, Signal::SIGKILL));
            self.refused(rank as u32, parting.number, ENDED);
        }
        Ok(())
    }

    /// Nobody waits for image `number` of `rank` any more.
    pub(in crate::agent) fn image_abandoned(&mut self, rank: u32, number: u64) {
        let parting = self.work.ranks[rank as usize].wrapped.parting.as_mut();
        if let Some(parting) = parting.filter(|parting| parting.number == number) {
            parting.is_wanted = false;
        }
    }

    /// The program has refused something. If that was to part, it goes on below its wrapper; returns the number of the
    /// image that there will not be.
    pub(in crate::agent) fn not_parted(&mut self, rank: usize, number: u64) -> u64 {
        let parting = &mut self.work.ranks[rank].wrapped.parting;
        let parting = parting.take_if(|parting| parting.request == number);
        parting.map_or(number, |parting| parting.number)
    }

    /// Process `number` goes on as the program if the place holder is there.
    pub(in crate::agent) fn has_parted(&mut self, rank: usize, number: u64) {
        if let Some(parting) = &mut self.work.ranks[rank].wrapped.parting {
            parting.process = Some(Pid::from_raw(number as i32));
        }
    }

    /// Some program is about to become the agent's child.
    pub(in crate::agent) fn anyone_parts(&self) -> bool {
        let mut ranks = self.work.ranks.iter();
        ranks.any(|rank| rank.wrapped.parting.is_some())
    }

    /// The place holder is there: the copy goes on as the program.
    pub(super) fn is_held(&mut self, rank: usize) -> io::Result<()> {
        // The program's last word.
        self.image_event(rank)?;
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let (Some(parting), Some(life)) = (this.wrapped.parting.take(), &mut this.life) else {
            return Ok(());
        };
        let Some(process) = parting.process else {
            // The place holder ends with its socket, and the wrapper goes on without a program.
            return Ok(());
        };
        let wrapper = std::mem::replace(&mut life.pid, process);
        this.wrapped.above = Some(Above::new(wrapper, parting.holder));
        work.memory
            .set_control(rank, control::ATTACHED, process.as_raw() as u64)?;
        work.tell(rank as u32, Kind::Go, parting.request);
        if let Some(index) = self.unclaimed.iter().position(|(ended, _)| *ended == process) {
            let (_, end) = self.unclaimed.swap_remove(index);
            return self.rank_ended(rank, end);
        }
        match parting.is_wanted {
            true => self.ask_for_image(rank as u32, parting.number, parting.manner),
            false => Ok(()),
        }
    }
}

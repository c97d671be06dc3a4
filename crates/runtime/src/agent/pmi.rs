//! What ranks say to PMI, and the answers.

use std::io::{self, Read, Write};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};
use resurgo_pmi::{Command, LineError, Notice, Output};
use resurgo_wire::control::{ToDispatcher, WantedProgram};
use resurgo_wire::node_memory::PHASE_REPLAY;

use super::program_file::Mapped;
use super::{Agent, Work};

impl Work {
    /// The next command of `rank` that has arrived whole.
    fn next_command(&mut self, rank: usize) -> Option<Result<Command, LineError>> {
        self.ranks[rank].life.as_mut()?.lines.next_command()
    }
}

impl Agent {
    /// A rank that calls MPI_Abort while it repeats a former life, which did not, does not repeat it. Where all can return together the
    /// program has not failed yet: only that life is ended.
    fn aborted(&mut self, rank: usize, code: i32) -> io::Result<()> {
        self.tell_undone(rank)?;
        let work = &mut self.work;
        if (work.job.protocol.can_return_together() || work.coordinator.may_begin_again())
            && work.memory.phase(rank)? == PHASE_REPLAY
        {
            let this = &mut work.ranks[rank];
            this.aborted = true;
            if let Some(life) = &this.life {
                life.signal(Signal::SIGKILL);
            }
            return Ok(());
        }
        self.send(&ToDispatcher::Aborted { rank, code })
    }

    /// Reads what `rank` has said to PMI and answers.
    pub(super) fn pmi_event(&mut self, rank: usize) -> io::Result<()> {
        let mut buffer = [0u8; 16 << 10];
        loop {
            let Some(life) = self.work.ranks.get_mut(rank).and_then(|this| this.life.as_mut()) else {
                return Ok(());
            };
            match life.pmi.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    life.lines.extend(&buffer[..length]);
                    if self.work.job.piggybacks() {
                        self.work.memory.passed_on(rank)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The process has closed it or is gone; its end is noticed by itself.
                Ok(_) | Err(_) => {
                    let _ = self.epoll.delete(&life.pmi);
                    break;
                }
            }
        }
        if !self.compare_code(rank)? {
            return Ok(());
        }
        while let Some(command) = self.work.next_command(rank) {
            let name = command.as_ref().map_or("", |command| &command.name);
            if ["barrier_in", "finalize"].contains(&name) {
                self.mind_bypass(rank, name == "finalize")?;
            }
            let work = &mut self.work;
            let (answers, notice) = match command {
                Ok(command) => work.server.command(rank, &command),
                Err(error) => work.server.malformed(rank, &error),
            };
            for answer in answers {
                self.answer(&answer);
            }
            match notice {
                Some(Notice::Abort { rank, code }) => self.aborted(rank, code)?,
                Some(Notice::Malformed { rank, error }) => {
                    self.send(&ToDispatcher::PmiTrouble {
                        rank,
                        text: format!("sent {error}"),
                    })?;
                }
                Some(Notice::Spawn { rank, programs }) => {
                    let wanted = programs.into_iter().map(|program| WantedProgram {
                        ranks: program.ranks,
                        name: program.name,
                        arguments: program.arguments,
                        info: program.info,
                    });
                    let programs = wanted.collect();
                    self.send(&ToDispatcher::SpawnWanted { rank, programs })?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Compares what the process of `rank` has its code from, once it has come to MPI, with what the first life had. A
    /// difference ends the job; returns whether there is none.
    fn compare_code(&mut self, rank: usize) -> io::Result<bool> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let Some(life) = this.life.as_ref().filter(|_| !this.is_compared) else {
            return Ok(true);
        };
        let Some(pid) = work.memory.attached(rank)? else {
            return Ok(true);
        };
        this.is_compared = true;
        // In a container the number may be another process's here.
        let is_its = getpgid(Some(Pid::from_raw(pid))) == Ok(life.pid);
        let Some(mapped) = Mapped::of(pid).ok().filter(|_| is_its) else {
            return Ok(true);
        };
        let Some(first) = &this.mapped else {
            this.mapped = Some(mapped);
            return Ok(true);
        };
        let Some(what) = mapped.differs_from(first) else {
            return Ok(true);
        };
        let reason = format!("rank {rank} cannot go on: {what}");
        self.send(&ToDispatcher::Failed { reason })?;
        Ok(false)
    }

    pub(super) fn answer(&mut self, answer: &Output) {
        let Some(life) = &mut self.work.ranks[answer.rank].life else {
            return;
        };
        life.answers.extend_from_slice(answer.line.as_bytes());
        // Clients wait for each answer, so the socket has room for it but for a client that misbehaves.
        while !life.answers.is_empty() {
            match life.pmi.write(&life.answers) {
                Ok(written) => drop(life.answers.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => life.answers.clear(),
            }
        }
    }
}

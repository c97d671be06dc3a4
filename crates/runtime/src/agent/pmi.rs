//! PMI of this node's ranks: the agent hands lines to the dispatcher's PMI server, and its answers back.

use std::io::{self, Read, Write};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};
use resurgo_pmi::{FINALIZE_ACK, MAX_LINE};
use resurgo_wire::control::ToDispatcher;
use resurgo_wire::node_memory::PHASE_REPLAY;

use super::Agent;
use super::life::Life;
use super::program_file::Mapped;

/// The command of a line, as far as an agent needs it.
fn command(line: &[u8]) -> &str {
    let line = line.trim_ascii_start();
    let name = line.strip_prefix(b"cmd=").unwrap_or_default();
    let end = name.iter().position(|byte| byte.is_ascii_whitespace());
    std::str::from_utf8(&name[..end.unwrap_or(name.len())]).unwrap_or_default()
}

impl Life {
    /// The complete lines; text without an end passes when it is too long for any line.
    fn take_lines(&mut self) -> Vec<u8> {
        let end = self.said.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end = if end == 0 && self.said.len() > MAX_LINE {
            self.said.len()
        } else {
            end
        };
        self.said.drain(..end).collect()
    }

    /// Bytes of answers given to the rank; none: it is in the middle of a line.
    pub fn heard(&self) -> Option<u64> {
        self.said.is_empty().then_some(self.heard)
    }

    /// Passes on an answer of PMI.
    pub fn answer(&mut self, lines: &[u8]) {
        let known = self.ahead.min(lines.len());
        self.ahead -= known;
        self.give(&lines[known..]);
    }

    /// Gives an answer before it comes.
    fn answer_ahead(&mut self, line: &[u8]) {
        self.ahead += line.len();
        self.give(line);
    }

    fn give(&mut self, lines: &[u8]) {
        self.answers.extend_from_slice(lines);
        // Clients wait for each answer, so the socket has room, unless a client misbehaves.
        while !self.answers.is_empty() {
            match self.pmi.write(&self.answers) {
                Ok(written) => {
                    self.heard += written as u64;
                    self.answers.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.answers.clear(),
            }
        }
    }
}

impl Agent {
    /// A rank that calls MPI_Abort while it repeats a life that did not, differs from that life. Where all ranks can
    /// return together, the program has not failed yet: only that life ends. Otherwise true: the rank ends the job.
    fn aborts(&mut self, rank: usize) -> io::Result<bool> {
        self.tell_undone(rank)?;
        let work = &mut self.work;
        if (work.job.protocol.can_return_together() || work.waves.may_begin_again)
            && work.memory.phase(rank)? == PHASE_REPLAY
        {
            let this = &mut work.ranks[rank];
            this.aborted = true;
            if let Some(life) = &this.life {
                life.signal(Signal::SIGKILL);
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Reads what `rank` has said to PMI and hands it on.
    pub(super) fn pmi_event(&mut self, rank: usize) -> io::Result<()> {
        let mut buffer = [0u8; 16 << 10];
        loop {
            let Some(life) = self.work.ranks.get_mut(rank).and_then(|this| this.life.as_mut()) else {
                return Ok(());
            };
            match life.pmi.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    life.said.extend_from_slice(&buffer[..length]);
                    self.depends_on(rank)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The process has closed it or is gone; the agent sees its end by other ways.
                Ok(_) | Err(_) => {
                    let _ = self.epoll.delete(&life.pmi);
                    break;
                }
            }
        }
        self.work.find_program(rank)?;
        if !self.compare_code(rank)? {
            return Ok(());
        }
        let Some(life) = self.work.ranks[rank].life.as_mut() else {
            return Ok(());
        };
        let mut lines = life.take_lines();
        let (length, mut end) = (lines.len(), 0);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let name = command(line);
            if ["barrier_in", "finalize"].contains(&name) {
                self.mind_bypass(rank, name == "finalize")?;
            }
            if name == "abort" && !self.aborts(rank)? {
                break;
            }
            if let Some(life) = &mut self.work.ranks[rank].life {
                life.progress.said(name);
                if name == "finalize" && line.len() == length {
                    // A rank can end while the dispatcher stands still.
                    life.answer_ahead(FINALIZE_ACK.as_bytes());
                }
            }
            end += line.len();
        }
        lines.truncate(end);
        if !lines.is_empty() {
            let life = self.work.ranks[rank].number;
            // The rank soon waits for the answer, but facts before it leave first, in the same write.
            self.control.queue(&ToDispatcher::Said { rank, life, lines });
        }
        Ok(())
    }

    /// PMI's answer to a life of `rank`, if that still runs.
    pub(super) fn answer(&mut self, rank: usize, life: u64, lines: &[u8]) {
        if let Some(this) = self.work.ranks.get_mut(rank).filter(|this| this.number == life)
            && let Some(life) = &mut this.life
        {
            life.answer(lines);
        }
    }

    /// Compares the files that hold the code of `rank`, once it has come to MPI, with those of its first life. A
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
        // In a container the number may belong to another process here.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_line_is_known() {
        for (line, name) in [
            (&b"cmd=init pmi_version=1\n"[..], "init"),
            (b"cmd=barrier_in\n", "barrier_in"),
            (b" cmd=abort\r\n", "abort"),
            (b"mcmd=spawn\n", ""),
            (b"arg1=cmd=abort\n", ""),
            (b"cmd=\xff\n", ""),
        ] {
            assert_eq!(command(line), name);
        }
    }
}

//! Waves of groups that have their turns one after the other: what must not pass is deferred, and who computes is made to look.

use resurgo_protocol::group::{Buffer, Groups, Turn, Writing};
use resurgo_protocol::{Rank, Step, Wave};

use super::checkers::FORCED;
use super::rank::{Phase, Waiting};
use super::{Event, ToAgent, ToRank, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

impl World {
    /// Forms groups, and begins wave `number` with the first.
    pub(super) fn begin_groups(&mut self, number: u64) -> Result<(), Violation> {
        let groups = self.form();
        let of = (0..self.size as Rank).map(|rank| groups.of(rank)).collect();
        self.checkers.begin_groups(number, of);
        self.groups.swap(0, 1);
        self.groups[0] = groups.clone();
        self.agent.current = Some(Wave::in_groups(number, groups));
        self.ask_in_turn()
    }

    /// By size, or in any other way.
    fn form(&mut self) -> Groups {
        if self.random.one_in(2) {
            let size = self.random.between(1, self.size as u64);
            return Groups::consecutive(self.size, size as usize);
        }
        let mut names = Vec::new();
        let of = (0..self.size).map(|_| {
            let name = self.random.below(self.size as u64);
            let known = names.iter().position(|known| *known == name);
            known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            }) as u32
                + 1
        });
        Groups::new(of.collect())
    }

    /// The next group has its turn.
    pub(super) fn ask_in_turn(&mut self) -> Result<(), Violation> {
        let Some(wave) = &self.agent.current else { return Ok(()) };
        let (wave, group) = (wave.number(), wave.turn());
        self.turn = Turn { wave, group };
        self.note(|| format!("group {group} has its turn in wave {wave}"));
        for rank in 0..self.size {
            let Some(current) = &mut self.agent.current else { break };
            let in_turn = current.is_in_turn(rank as Rank);
            if !in_turn && self.mutation == Some(Mutation::NoNotice) {
                let step = current.stopped(rank as Rank);
                assert_eq!(step, Step::Wait, "the group has not stopped");
            }
            let Some(process) = self.agent.lives[rank] else {
                continue;
            };
            if in_turn {
                self.agent.taking[rank] = true;
                self.tell_rank(process, ToRank::Checkpoint(wave));
            } else {
                self.tell_rank(process, ToRank::Notice(self.turn));
            }
        }
        Ok(())
    }

    /// Whether messages from one rank to another may leave, as the first sees it.
    pub(super) fn passes(&self, process: usize, to: Rank) -> bool {
        let from = self.processes[process].rank;
        let former = usize::from(self.is(Mutation::FormerGroups) && from == 0);
        let (own, other) = (self.groups[former].of(from), self.groups[former].of(to));
        self.processes[process].seen.passes(own, other)
            || self.is(Mutation::SendToEarlier) && own > other
            || self.is(Mutation::SendToLater) && own < other
    }

    /// A message cannot leave now: a small one is copied, and its send is over; others stay with the program.
    pub(super) fn defer(&mut self, process: usize, message: &mut Waiting) -> Result<(), Violation> {
        let without_bound = self.is(Mutation::BufferWithoutBound);
        let this = &mut self.processes[process];
        if !std::mem::replace(&mut message.settled, true) {
            let buffer = &mut this.memory.buffer;
            if without_bound && buffer.messages() == 0 {
                *buffer = Buffer::new(1, usize::MAX, usize::MAX);
            }
            let copied = buffer.takes(message.next.of as usize);
            message.is_over = copied || self.mutation == Some(Mutation::CompleteLarge);
            message.is_copied = copied && self.mutation != Some(Mutation::BufferByReference);
            if message.is_copied {
                buffer.add(1);
            }
        }
        // What it has seen long ago may be over.
        if this.seen == self.turn {
            self.checkers.defers(this.rank, this.memory.buffer.messages())?;
        }
        Ok(())
    }

    /// It sees whose turn it is.
    pub(super) fn look(&mut self, process: usize) {
        self.processes[process].seen = self.turn;
    }

    /// The program uses memory again whose sends are over.
    pub(super) fn write_over(&mut self, process: usize) {
        let waiting = self.processes[process].memory.waiting.iter_mut();
        for message in waiting.filter(|message| message.is_over && !message.is_copied) {
            message.next.content ^= 1;
        }
    }

    /// It has been asked to hold back what must not pass.
    pub(super) fn notice(&mut self, process: usize, turn: Turn) -> Result<(), Violation> {
        self.has_answered(process)?;
        if self.random.one_in(300) {
            self.tell_agent(process, ToAgent::Refused(turn.wave));
            return Ok(());
        }
        self.look(process);
        self.progress(process)?;
        self.announce(process);
        self.tell_agent(process, ToAgent::Noticed(turn));
        Ok(())
    }

    /// A step of its program that was to come before it was made to look.
    pub(super) fn is_not_due(&self, process: usize) -> bool {
        let due = self.processes[process].due;
        self.in_groups && due > 0 && due != self.now
    }

    /// Whatever it does, it hears `datagram` soon.
    pub(super) fn will_be_forced(&mut self, process: usize, datagram: ToRank) {
        if self.in_groups && matches!(datagram, ToRank::Checkpoint(_) | ToRank::Notice(_)) {
            self.processes[process].asked_at = Some(self.now);
            if !self.is(Mutation::WaitForCalls) {
                let after = self.soon(FORCED);
                self.schedule(after, Event::Force(process));
            }
        }
    }

    pub(super) fn has_answered(&mut self, process: usize) -> Result<(), Violation> {
        let this = &mut self.processes[process];
        match this.asked_at.take() {
            Some(asked) => self.checkers.answers(this.rank, self.now - asked),
            None => Ok(()),
        }
    }

    pub(super) fn force(&mut self, process: usize) -> Result<(), Violation> {
        let this = &self.processes[process];
        if !this.alive || this.phase != Phase::Running || this.inbox.is_empty() {
            return Ok(());
        }
        if this.telling {
            let after = self.soon(self.latency);
            self.schedule(after, Event::Force(process));
            return Ok(());
        }
        self.progress(process)?;
        if self.stand_still(process)? {
            return self.hear(process);
        }
        Ok(())
    }

    /// The wave is complete: its groups write their images.
    pub(super) fn write_groups(&mut self, number: u64, groups: Groups) -> Result<(), Violation> {
        let at_once = match self.is(Mutation::WriteAllAtOnce) {
            true => groups.count(),
            false => self.groups_at_once,
        };
        self.writing = Some(Writing::new(number, groups, at_once));
        self.write_next()
    }

    fn write_next(&mut self) -> Result<(), Violation> {
        let Some(writing) = &mut self.writing else {
            return Ok(());
        };
        let number = writing.number();
        for rank in writing.begin() {
            self.check_writing(rank, true)?;
            let after = self.soon(self.latency * 4);
            self.schedule(after, Event::Written(rank, number));
        }
        Ok(())
    }

    fn check_writing(&mut self, rank: Rank, begins: bool) -> Result<(), Violation> {
        let groups: Vec<u32> = (0..self.size as Rank).map(|rank| self.groups[0].of(rank)).collect();
        self.checkers.writes(rank, begins, &groups, self.groups_at_once)
    }

    pub(super) fn written(&mut self, rank: Rank, wave: u64) -> Result<(), Violation> {
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.number() == wave) else {
            return Ok(());
        };
        writing.ended(rank);
        let over = writing.is_over();
        self.check_writing(rank, false)?;
        if over {
            self.writing = None;
        }
        self.write_next()
    }

    pub(super) fn stop_writing(&mut self) {
        self.writing = None;
        self.checkers.nobody_writes();
    }
}

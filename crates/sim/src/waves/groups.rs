//! Waves of groups that have their turns one after the other: messages that must not pass are deferred, and computing
//! ranks are made to look.

use resurgo_protocol::coordinator::Place;
use resurgo_protocol::group::{Buffer, Turn};
use resurgo_protocol::{Fact, Rank};

use super::checkers::FORCED;
use super::nodes::Storage;
use super::rank::{Phase, Waiting};
use super::{Event, ToAgent, ToRank, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

impl World {
    /// The traffic that ranks report: all to all, or only inside randomly drawn groups. Groups follow from that, of any
    /// size and in any order.
    pub(super) fn traffic(&mut self) -> Vec<Vec<u64>> {
        let groups = match self.random.one_in(2) {
            true => 1,
            false => self.size as u64,
        };
        let of: Vec<u64> = (0..self.size).map(|_| self.random.below(groups)).collect();
        let row = |group: &u64| of.iter().map(|other| u64::from(group == other)).collect();
        of.iter().map(row).collect()
    }

    /// Whether messages from one rank to another may leave, as the first sees it.
    pub(super) fn passes(&self, process: usize, to: Rank) -> bool {
        let from = self.processes[process].rank;
        let former = usize::from(self.is(Mutation::FormerGroups) && from == 0);
        let groups = &self.words(process).groups[former];
        let (own, other) = (groups.of(from), groups.of(to));
        self.processes[process].seen.passes(own, other)
            || self.is(Mutation::SendToEarlier) && own > other
            || self.is(Mutation::SendToLater) && own < other
    }

    /// A message cannot leave now: a small one is copied, and its send is over; others stay with the program.
    pub(super) fn defer(&mut self, process: usize, message: &mut Waiting) -> Result<(), Violation> {
        let without_bound = self.is(Mutation::BufferWithoutBound);
        let turn = self.words(process).turn;
        // The dispatcher may know that it is over, and the node may not.
        let is_news = self.nodes.linked && turn != self.agent.turn;
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
        // A turn seen long ago may be over.
        if this.seen == turn && !is_news {
            self.checkers.defers(this.rank, this.memory.buffer.messages())?;
        }
        Ok(())
    }

    /// It sees whose turn it is.
    pub(super) fn look(&mut self, process: usize) {
        self.processes[process].seen = self.words(process).turn;
    }

    /// The program reuses memory of completed sends.
    pub(super) fn write_over(&mut self, process: usize) {
        let waiting = self.processes[process].memory.waiting.iter_mut();
        for message in waiting.filter(|message| message.is_over && !message.is_copied) {
            message.next.content ^= 1;
        }
    }

    /// Its order is to hold back messages that must not pass.
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

    /// A step of its program from before it was made to look.
    pub(super) fn is_not_due(&self, process: usize) -> bool {
        let due = self.processes[process].due;
        self.grouping.one_by_one && due > 0 && due != self.now
    }

    /// Whatever it does, it reads `datagram` soon.
    pub(super) fn will_be_forced(&mut self, process: usize, datagram: ToRank) {
        if self.grouping.one_by_one && matches!(datagram, ToRank::Checkpoint(_) | ToRank::Notice(_)) {
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
            let after = self.soon(self.pace.latency);
            self.schedule(after, Event::Force(process));
            return Ok(());
        }
        self.progress(process)?;
        if self.stand_still(process)? {
            return self.hear(process);
        }
        Ok(())
    }

    /// The copy of a rank writes its file.
    pub(super) fn write(&mut self, rank: Rank, number: u64) -> Result<(), Violation> {
        self.agent.writing[rank as usize] = Some(number);
        let is_wanted = !self.nodes.given_up.contains(&(rank, number));
        self.check_writing(rank, is_wanted)?;
        let after = self.soon(self.pace.latency * 4);
        self.schedule(after, Event::Written(rank, number));
        match self.is(Mutation::CountUnwritten) {
            true => self.tell_of(rank, Fact::Written { rank, number }),
            false => Ok(()),
        }
    }

    pub(super) fn check_writing(&mut self, rank: Rank, begins: bool) -> Result<(), Violation> {
        let groups: Vec<u32> = (0..self.size as Rank).map(|rank| self.grouping.last.of(rank)).collect();
        self.checkers.writes(rank, begins, &groups, self.grouping.at_once)
    }

    pub(super) fn written(&mut self, rank: Rank, number: u64) -> Result<(), Violation> {
        let writing = &mut self.agent.writing[rank as usize];
        let copy = self.agent.copies.get(&(rank, number));
        let (Some(copy), true) = (copy, *writing == Some(number)) else {
            return Ok(());
        };
        *writing = None;
        if self.random.one_in(12) {
            self.check_writing(rank, false)?;
            let reason = "the disk is full".to_string();
            return self.tell_of(rank, Fact::NotWritten { rank, number, reason });
        }
        let memory = self.snapshots[*copy].memory.clone();
        self.agent.files.insert((rank, number), memory);
        let life = self.nodes.of[self.agent.ranks[rank as usize].node].life;
        let stored = self.nodes.stored.entry((rank, number)).or_default();
        stored.insert((life.node, life.serial));
        self.check_writing(rank, false)?;
        if self.is(Mutation::KeepOneFile) {
            self.agent.files.retain(|(of, wave), _| *of != rank || *wave == number);
        }
        if self.is(Mutation::EndCopiesEarly)
            && let Some(copy) = self.agent.copies.remove(&(rank, number))
        {
            self.snapshots[copy].alive = false;
        }
        let is_everywhere = self.nodes.storage == Storage::Shared || self.is(Mutation::FilesOutliveNodes);
        let fact = match self.nodes.linked && is_everywhere {
            true => Fact::Stored {
                rank,
                number,
                place: Place::Everywhere,
            },
            false => Fact::Written { rank, number },
        };
        self.tell_of(rank, fact)
    }

    /// The rank no longer writes this image, or any.
    pub(super) fn stop_writing(&mut self, rank: Rank, number: Option<u64>) -> Result<(), Violation> {
        let writing = &mut self.agent.writing[rank as usize];
        if writing.is_none() || number.is_some() && *writing != number {
            return Ok(());
        }
        *writing = None;
        self.check_writing(rank, false)
    }
}

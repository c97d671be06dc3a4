//! Lives of ranks, as agents see them: they begin, from a copy, a file or the beginning, are ended, and their ends
//! become known.

use resurgo_protocol::coordinator::From;
use resurgo_protocol::{Fact, Rank};

use super::agent::Known;
use super::nodes::Storage;
use super::rank::{Memory, Phase};
use super::{Announced, Event, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

impl World {
    /// The agent learns that a process has ended.
    pub(super) fn ended(&mut self, process: usize, orderly: bool) -> Result<(), Violation> {
        let known = self.agent.ranks.iter().position(|rank| rank.process == Some(process));
        match known {
            Some(rank) => self.rank_ended(rank as Rank, orderly)?,
            None if self.is(Mutation::ForgetUnclaimedEnds) => {}
            None if self.is(Mutation::HearOldLives) => {
                let rank = self.processes[process].rank;
                let life = self.agent.ranks[rank as usize].life;
                self.coordinate(Fact::Ended { rank, life, orderly })?;
            }
            // Perhaps a life whose number a copy has yet to tell.
            None => self.agent.unclaimed.push((process, orderly)),
        }
        if self.agent.ranks.iter().all(|rank| rank.waking.is_none()) {
            self.agent.unclaimed.clear();
        }
        Ok(())
    }

    fn rank_ended(&mut self, rank: Rank, orderly: bool) -> Result<(), Violation> {
        let known = &mut self.agent.ranks[rank as usize];
        known.process = None;
        let life = known.life;
        if let Some((number, at)) = known.damaged.take()
            && self.mutation != Some(Mutation::ForgetLostFiles)
        {
            self.lose_file(at, rank, number);
            self.tell_of(rank, file_lost(rank, number))?;
        }
        let ended = Fact::Ended { rank, life, orderly };
        // A rank that has finished is not done again where others lack a part of what it has sent.
        match orderly && !self.is(Mutation::TellEndsUnflushed) {
            true => self.tell_flushed(rank, ended),
            false => self.tell_of(rank, ended),
        }
    }

    /// The file cannot be read there.
    fn lose_file(&mut self, node: usize, rank: Rank, number: u64) {
        let at = self.nodes.disk_of(node);
        self.nodes.damaged.insert((rank, number, at));
    }

    /// The dispatcher knows that a rank has failed.
    pub(super) fn answer_failure(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.agent.told, true) {
            let after = self.soon(self.pace.latency);
            self.schedule(after, Event::Return(rank));
        }
    }

    /// What follows from a failure: all ranks return.
    pub(super) fn return_to_wave(&mut self, rank: Rank) -> Result<(), Violation> {
        self.note(|| "all ranks return".into());
        self.agent.told = false;
        self.coordinate(Fact::Return { rank })
    }

    pub(super) fn kill_rank(&mut self, rank: Rank) -> Result<(), Violation> {
        let known = &mut self.agent.ranks[rank as usize];
        if let Some(process) = known.process {
            self.kill(process);
        } else if known.waking.is_some() {
            known.doomed = true;
            let life = known.life;
            if self.mutation == Some(Mutation::BeginBesideUnknown) {
                known.waking = None;
                return self.tell_of(rank, Fact::NotBegun { rank, life });
            }
        }
        Ok(())
    }

    fn kill(&mut self, process: usize) {
        if self.is(Mutation::KillByGroupOnly) && !self.processes[process].grouped {
            return;
        }
        // The process may still act.
        let after = self.soon(self.pace.latency);
        self.schedule(after, Event::Dies(process));
    }

    /// Puts into the channels what was in transit at the wave.
    pub(super) fn refill(&mut self, wave: u64) {
        for from in 0..self.size {
            // The agents of receivers put what comes from lost nodes.
            let is_lost = self.nodes.linked && !self.nodes.up().iter().any(|life| life.node == self.nodes.placed[from]);
            if is_lost && self.is(Mutation::LeaveTransitOfLostNode) {
                self.transit.channels[from]
                    .iter_mut()
                    .for_each(|channel| channel.restart(Vec::new()));
                continue;
            }
            for to in 0..self.size {
                if !self.is(Mutation::KeepLostFuture) {
                    let state = self.transit.state.get(&wave).map(|state| state[from][to].clone());
                    self.transit.channels[from][to].restart(state.unwrap_or_default());
                }
                if self.is(Mutation::RefillLate) {
                    self.transit.channels[from][to].delay();
                }
            }
        }
    }

    /// All ranks are about to begin their programs, over empty channels.
    pub(super) fn reset(&mut self) -> Result<(), Violation> {
        self.note(|| "all begin".into());
        self.checkers.may_begin_anew(self.agent.usable, self.agent.is_resumed)?;
        self.agent.generation += 1;
        self.agent.beginning = Some(0);
        self.places.leave_later(0, self.agent.asked);
        self.checkers.begin_anew(self.agent.generation);
        let late = self.is(Mutation::TakeFormerEpoch).then_some(self.now);
        for channel in self.transit.channels.iter_mut().flatten() {
            match late {
                Some(now) => channel.restart_late(now),
                None => channel.restart(Vec::new()),
            }
        }
        let announced = self.transit.announced.iter_mut();
        announced.for_each(|counts| counts.fill(Announced::default()));
        Ok(())
    }

    /// A rank gets a process on `node`, which reads its file from node `reads`.
    pub(super) fn begin_life(
        &mut self,
        node: usize,
        rank: Rank,
        life: u64,
        from: From,
        reads: usize,
    ) -> Result<(), Violation> {
        let generation = self.agent.generation;
        self.agent.ranks[rank as usize] = Known {
            life,
            node,
            ..Known::default()
        };
        let from = match self.newest_image(rank) {
            Some(newest) if self.is(Mutation::BeginFromNewest) => newest,
            _ => from,
        };
        self.checkers.begins_from(rank, from.number(), self.agent.beginning)?;
        match from {
            From::Beginning => {
                let memory = Memory::new(self.job.start(rank), self.size);
                let process = self.new_process(rank, generation, Phase::Starting, memory, node);
                self.processes[process].life = life;
                self.agent.ranks[rank as usize].process = Some(process);
                let after = self.soon(self.pace.step * 3);
                self.schedule(after, Event::Step(process));
                self.tell_of(rank, Fact::Started { rank, life })
            }
            From::Copy(number) => {
                let Some(copy) = self.agent.copies.get(&(rank, number)).copied() else {
                    return self.tell_of(rank, Fact::NotBegun { rank, life });
                };
                self.agent.ranks[rank as usize].waking = Some(copy);
                let after = self.soon(self.pace.latency);
                self.schedule(after, Event::Wake(copy, generation, life));
                Ok(())
            }
            From::File(number) => self.rebuild(rank, number, reads),
        }
    }

    /// The rank's process is rebuilt from a file.
    fn rebuild(&mut self, rank: Rank, number: u64, reads: usize) -> Result<(), Violation> {
        let Known { life, node, .. } = self.agent.ranks[rank as usize];
        let generation = self.agent.generation;
        let is_there = match self.nodes.storage {
            Storage::Shared => !self.nodes.is_damaged(rank, number, reads),
            _ => self.nodes.has_file(reads, rank, number),
        };
        let Some(memory) = self.agent.files.get(&(rank, number)).filter(|_| is_there).cloned() else {
            if self.nodes.linked {
                self.tell_of(rank, file_lost(rank, number))?;
            }
            return self.tell_of(rank, Fact::NotBegun { rank, life });
        };
        let damaged = self.random.one_in(4) && self.may_be_damaged(number);
        if !damaged {
            self.nodes.has_read(node, rank, number);
        }
        let process = self.new_process(rank, generation, Phase::Waking, memory, node);
        self.note(|| format!("{rank} is rebuilt from its file as process {process}"));
        self.processes[process].life = life;
        self.processes[process].grouped = true;
        let known = &mut self.agent.ranks[rank as usize];
        known.process = Some(process);
        known.damaged = damaged.then_some((number, reads));
        let after = self.soon(self.pace.latency);
        match damaged {
            true => self.schedule(after, Event::Dies(process)),
            false => self.schedule(after, Event::Rewind(process)),
        }
        self.tell_of(rank, Fact::Started { rank, life })
    }

    /// In a variant, the rank's start whatever its order is.
    fn newest_image(&self, rank: Rank) -> Option<From> {
        let of_rank = (rank, 0)..(rank + 1, 0);
        let file = self.agent.files.range(of_rank).next_back().map(|((_, wave), _)| *wave);
        file.map(From::File)
    }

    /// The number of a process that a copy has made.
    pub(super) fn woken(&mut self, rank: Rank, process: usize) -> Result<(), Violation> {
        let life = self.processes[process].life;
        let known = &mut self.agent.ranks[rank as usize];
        if known.life != life || known.waking.take().is_none() {
            return Ok(());
        }
        known.process = Some(process);
        if known.doomed {
            self.kill(process);
        }
        self.tell_of(rank, Fact::Started { rank, life })?;
        for datagram in std::mem::take(&mut self.processes[process].unread) {
            self.said(process, datagram)?;
        }
        let unclaimed = &mut self.agent.unclaimed;
        match unclaimed.iter().position(|(ended, _)| *ended == process) {
            Some(index) => {
                let (_, orderly) = unclaimed.swap_remove(index);
                self.rank_ended(rank, orderly)
            }
            None => Ok(()),
        }
    }

    /// A copy is gone.
    pub(super) fn copy_gone(&mut self, rank: Rank, copy: usize) -> Result<(), Violation> {
        let number = self.snapshots[copy].wave;
        if self.agent.copies.get(&(rank, number)) != Some(&copy) {
            return Ok(());
        }
        self.agent.copies.remove(&(rank, number));
        if self.is(Mutation::LoseTwoWaves) && !self.agent.is_returning() {
            self.agent.broken.deaf = self.agent.coordinator.asked(rank);
        }
        let lost = Fact::CopyLost {
            rank,
            number,
            stored: false,
            reason: "it has ended".to_string(),
        };
        self.tell_from(self.snapshots[copy].node, lost)?;
        let known = &mut self.agent.ranks[rank as usize];
        if known.waking.take_if(|waking| *waking == copy).is_none() {
            return Ok(());
        }
        // A process that it made, with an unknown number, sees the end of its own socket when it reads from there.
        let life = known.life;
        let of_rank = |process: &usize| {
            let this = &self.processes[*process];
            this.alive && this.rank == rank && this.life == life
        };
        if let Some(process) = (0..self.processes.len()).find(of_rank) {
            self.processes[process].given_up = true;
            if self.processes[process].phase == Phase::Ready {
                let after = self.soon(self.pace.latency);
                self.schedule(after, Event::Dies(process));
            }
        }
        self.tell_of(rank, Fact::NotBegun { rank, life })
    }
}

fn file_lost(rank: Rank, number: u64) -> Fact {
    let reason = "it is damaged".to_string();
    Fact::FileLost { rank, number, reason }
}

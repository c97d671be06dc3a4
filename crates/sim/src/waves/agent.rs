//! What the agent does in a wave and while all ranks return to one, around the real [`Wave`] and [`Return`]: what
//! `agent/waves.rs` of the runtime does, without processes and sockets.

use resurgo_protocol::{Rank, Return, Step, Turn, Wave};

use super::rank::{Memory, Phase, Piece};
use super::{Event, ToAgent, ToRank, World};
use crate::checkers::Violation;
use crate::mutation::Mutation;

#[derive(Debug)]
pub(super) struct Agent {
    pub asked: u64,
    pub current: Option<Wave>,
    /// The ranks' processes, as far as their numbers are known.
    pub lives: Vec<Option<usize>>,
    finished: Vec<bool>,
    /// The rank has been asked for its part of the current wave.
    pub taking: Vec<bool>,
    /// Copies of the current wave, and of the last complete one.
    candidates: Vec<Option<usize>>,
    pub newest: Vec<Option<usize>>,
    /// A copy has been asked for a process, whose number is not known.
    waking: Vec<bool>,
    returning: Option<Return>,
    /// A failure has been told, and the answer is on its way.
    told: bool,
    /// Of processes: one more whenever all begin.
    generation: u64,
    /// Processes that have ended and were nobody's.
    unclaimed: Vec<(usize, bool)>,
    /// The last wave that a variant has drained too early.
    eager: u64,
}

impl Agent {
    pub fn new(size: usize) -> Self {
        Self {
            asked: 0,
            current: None,
            lives: vec![None; size],
            finished: vec![false; size],
            taking: vec![false; size],
            candidates: vec![None; size],
            newest: vec![None; size],
            waking: vec![false; size],
            returning: None,
            told: false,
            generation: 0,
            unclaimed: Vec::new(),
            eager: 0,
        }
    }

    pub fn is_returning(&self) -> bool {
        self.returning.is_some()
    }

    pub fn all_finished(&self) -> bool {
        self.finished.iter().all(|finished| *finished)
    }
}

impl World {
    fn tell_all(&mut self, datagram: ToRank) {
        for rank in 0..self.size {
            if let Some(process) = self.agent.lives[rank] {
                self.tell_rank(process, datagram);
            }
        }
    }

    /// Asks every rank to stop, if all are there.
    pub(super) fn begin_wave(&mut self) -> Result<(), Violation> {
        let after = self.soon(self.between_waves);
        self.schedule(after, Event::Wave);
        let live = |process: &usize| {
            let phase = self.processes[*process].phase;
            matches!(phase, Phase::Running | Phase::Standing(_) | Phase::Ready)
        };
        let there = self.agent.lives.iter().all(|life| life.as_ref().is_some_and(live));
        if !there
            || self.agent.taking.contains(&true)
            || self.agent.current.is_some()
            || self.agent.returning.is_some()
            || self.writing.is_some()
        {
            return Ok(());
        }
        self.agent.asked += 1;
        let number = self.agent.asked;
        self.note(|| format!("wave {number} is asked for"));
        self.waves.asked = number;
        if self.in_groups {
            return self.begin_groups(number);
        }
        self.agent.current = Some(if self.non_blocking {
            Wave::non_blocking(number, self.size)
        } else {
            Wave::new(number, self.size)
        });
        self.agent.taking.fill(true);
        self.tell_all(ToRank::Checkpoint(number));
        Ok(())
    }

    /// Tells the ranks that are to be copied now.
    fn tell_in_turn(&mut self, datagram: ToRank) {
        for rank in 0..self.size as Rank {
            let current = self.agent.current.as_ref();
            if current.is_some_and(|wave| wave.is_in_turn(rank))
                && let Some(process) = self.agent.lives[rank as usize]
            {
                self.tell_rank(process, datagram);
            }
        }
    }

    /// The agent reads what a process has said.
    pub(super) fn said(&mut self, process: usize, datagram: ToAgent) -> Result<(), Violation> {
        let rank = self.processes[process].rank as usize;
        if self.agent.lives[rank] != Some(process) {
            if self.agent.waking[rank] && self.processes[process].generation == self.agent.generation {
                self.processes[process].unread.push(datagram);
            } else {
                self.lose(datagram);
            }
            return Ok(());
        }
        let number = match datagram {
            ToAgent::Ready => {
                let turn = self.agent.returning.as_mut().map(|back| back.ready(rank as Rank));
                let turn = match turn {
                    Some(Turn::Wait) if self.is(Mutation::GoWhenOneIsReady) => Some(Turn::Go),
                    turn => turn,
                };
                return self.take_turn(turn.unwrap_or(Turn::Wait));
            }
            ToAgent::Stopped(number)
            | ToAgent::Drained(number, _)
            | ToAgent::Taken(number, _)
            | ToAgent::Refused(number) => number,
            ToAgent::Noticed(turn) => turn.wave,
        };
        let others = matches!(datagram, ToAgent::Drained(..) | ToAgent::Noticed(_))
            || self.in_groups && matches!(datagram, ToAgent::Refused(_));
        if !self.agent.taking[rank] && !others || number != self.agent.asked {
            self.lose(datagram);
            return Ok(());
        }
        let Some(wave) = &mut self.agent.current else {
            self.lose(datagram);
            return Ok(());
        };
        let own = rank as Rank;
        let all = 0..self.size as Rank;
        let step = match datagram {
            ToAgent::Stopped(_) if self.mutation == Some(Mutation::DrainBeforeAllStand) => {
                let turn = number << 16 | u64::from(wave.turn());
                if std::mem::replace(&mut self.agent.eager, turn) == turn {
                    return Ok(());
                }
                all.clone().map(|rank| wave.stopped(rank)).last().unwrap_or(Step::Wait)
            }
            ToAgent::Noticed(turn)
                if turn.group != wave.turn()
                    || matches!(self.mutation, Some(Mutation::DrainBeforeAllStand | Mutation::NoNotice)) =>
            {
                return Ok(());
            }
            ToAgent::Stopped(_) | ToAgent::Noticed(_) => wave.stopped(own),
            ToAgent::Drained(_, moved) => wave.drained(own, moved),
            ToAgent::Taken(_, copy) => {
                self.agent.taking[rank] = false;
                self.agent.candidates[rank] = Some(copy);
                self.snapshots[copy].under_way = false;
                if self.mutation == Some(Mutation::LetGoEarly) {
                    self.waves.over = number;
                }
                wave.copied(own)
            }
            _ => return self.drop_wave(),
        };
        let step = match (datagram, step, self.mutation) {
            (ToAgent::Drained(..), Step::Drain, Some(Mutation::DrainOnce))
            | (ToAgent::Stopped(_), Step::Drain, Some(Mutation::CopyUndrained)) => {
                let in_turn: Vec<Rank> = all.filter(|rank| wave.is_in_turn(*rank)).collect();
                let steps = in_turn.into_iter().map(|rank| wave.drained(rank, 0));
                steps.last().unwrap_or(Step::Wait)
            }
            (ToAgent::Taken(..), Step::Wait, Some(Mutation::PromoteIncomplete))
            | (_, Step::Turn, Some(Mutation::CompleteAfterFirstGroup)) => Step::Complete,
            (_, step, _) => step,
        };
        match step {
            Step::Drain => {
                if self.is(Mutation::TurnTooEarly) {
                    self.turn.group = self.agent.current.as_ref().map_or(0, |wave| wave.turn() + 1);
                }
                self.tell_in_turn(ToRank::Drain(number));
            }
            Step::Copy => self.tell_in_turn(ToRank::Go(number)),
            Step::Turn => return self.ask_in_turn(),
            Step::Complete => return self.promote(number),
            Step::Wait | Step::Drop => {}
        }
        Ok(())
    }

    /// The wave is complete: the one before it goes.
    fn promote(&mut self, number: u64) -> Result<(), Violation> {
        self.note(|| format!("wave {number} is complete"));
        let groups = self.agent.current.take().map(|wave| wave.groups().clone());
        self.report.images += 1;
        let state = self.channels.iter().map(|channels| {
            let channels = channels.iter();
            channels.map(|channel| channel.state(self.mutation)).collect()
        });
        let state: Vec<Vec<Vec<Piece>>> = state.collect();
        self.checkers.complete(number, |from, to| {
            state[from][to].iter().map(|piece| (piece.id, piece.index)).collect()
        })?;
        if !self.is(Mutation::StateOfWaveBefore) || self.agent.newest.contains(&None) {
            self.state = state;
        }
        self.waves.over = number;
        if !self.is(Mutation::KeepDeferring) {
            self.turn.group = 0;
        }
        for rank in 0..self.size {
            if rank == 0 && self.is(Mutation::MixWaves) && self.agent.newest[0].is_some() {
                let late = self.agent.candidates[0].take();
                self.close(late);
            } else if let Some(copy) = self.agent.candidates[rank].take() {
                let former = self.agent.newest[rank].replace(copy);
                self.close(former);
            }
        }
        self.nothing_else_is_kept()?;
        match groups.filter(|_| self.has_files) {
            Some(groups) => self.write_groups(number, groups),
            None => Ok(()),
        }
    }

    /// Closes the socket of a copy.
    fn close(&mut self, copy: Option<usize>) {
        if let Some(copy) = copy {
            self.snapshots[copy].alive = false;
        }
    }

    /// The current wave, if there is one, cannot become complete.
    fn drop_wave(&mut self) -> Result<(), Violation> {
        let Some(mut wave) = self.agent.current.take() else {
            return Ok(());
        };
        self.report.fallbacks += 1;
        self.note(|| format!("wave {} is dropped", wave.number()));
        let step = wave.failed();
        assert_eq!(step, Step::Drop, "a wave that was current was not over");
        if !self.is(Mutation::DropSilently) {
            self.waves.over = wave.number();
            self.turn.group = 0;
            self.checkers.end_groups();
            self.tell_all(ToRank::Abandon(wave.number()));
        }
        self.agent.taking.fill(false);
        let kept = usize::from(self.is(Mutation::DropKeepsACopy));
        for rank in kept..self.size {
            let copy = self.agent.candidates[rank].take();
            self.close(copy);
        }
        self.nothing_else_is_kept()
    }

    /// What copies there are: those of the last complete wave and of the current one, and some that the agent has yet to
    /// be told of.
    fn nothing_else_is_kept(&self) -> Result<(), Violation> {
        let current = self.agent.current.as_ref().map(Wave::number);
        let kept = self.snapshots.iter().filter(|copy| copy.alive && !copy.under_way);
        self.checkers.kept(kept.map(|copy| (copy.rank, copy.wave)), current)
    }

    /// The agent hears that a process has ended.
    pub(super) fn ended(&mut self, process: usize, orderly: bool) -> Result<(), Violation> {
        match self.agent.lives.iter().position(|life| *life == Some(process)) {
            Some(rank) => self.rank_ended(rank, orderly)?,
            None if self.is(Mutation::ForgetUnclaimedEnds) => {}
            // Perhaps a life whose number a copy has yet to tell.
            None => self.agent.unclaimed.push((process, orderly)),
        }
        if !self.agent.waking.contains(&true) {
            self.agent.unclaimed.clear();
        }
        Ok(())
    }

    fn rank_ended(&mut self, rank: usize, orderly: bool) -> Result<(), Violation> {
        if self.agent.returning.is_some() {
            self.agent.lives[rank] = None;
            return self.ended_for_return(rank);
        }
        self.drop_wave()?;
        self.agent.lives[rank] = None;
        self.agent.finished[rank] = orderly;
        if !orderly && !std::mem::replace(&mut self.agent.told, true) {
            let after = self.soon(self.latency);
            self.schedule(after, Event::Return);
        }
        Ok(())
    }

    pub(super) fn return_to_wave(&mut self) -> Result<(), Violation> {
        self.note(|| "all ranks return".into());
        self.agent.told = false;
        self.drop_wave()?;
        // Snapshots that are woken write no more, and are asked for no more.
        self.stop_writing();
        self.agent.finished.fill(false);
        let ranks = self.agent.lives.iter().zip(&self.agent.waking);
        let alive = ranks.map(|(life, waking)| life.is_some() || *waking).collect();
        let (returning, turn) = Return::new(alive);
        self.agent.returning = Some(returning);
        self.take_turn(turn)
    }

    fn ended_for_return(&mut self, rank: usize) -> Result<(), Violation> {
        let turn = self.agent.returning.as_mut().map(|back| back.ended(rank as Rank));
        self.take_turn(turn.unwrap_or(Turn::Wait))
    }

    fn take_turn(&mut self, turn: Turn) -> Result<(), Violation> {
        match turn {
            Turn::Wait => Ok(()),
            Turn::End => {
                for rank in 0..self.size {
                    if let Some(process) = self.agent.lives[rank] {
                        self.kill(process);
                    }
                }
                if self.is(Mutation::BeginBesideUnknown) {
                    let unknown = std::mem::replace(&mut self.agent.waking, vec![false; self.size]);
                    for rank in (0..self.size).filter(|rank| unknown[*rank]) {
                        self.ended_for_return(rank)?;
                    }
                }
                Ok(())
            }
            Turn::Begin => self.begin_again(),
            Turn::Go => {
                self.note(|| "all go on".into());
                self.agent.returning = None;
                self.report.from_images += 1;
                self.checkers.all_go_on()?;
                self.tell_all(ToRank::Go(0));
                Ok(())
            }
        }
    }

    fn kill(&mut self, process: usize) {
        if self.is(Mutation::KillByGroupOnly) && !self.processes[process].grouped {
            return;
        }
        // It may do something yet.
        let after = self.soon(self.latency);
        self.schedule(after, Event::Dies(process));
    }

    fn begin_again(&mut self) -> Result<(), Violation> {
        let copies: Option<Vec<usize>> = self.agent.newest.iter().copied().collect();
        let same = |copies: &Vec<usize>| {
            let wave = self.snapshots[copies[0]].wave;
            copies.iter().all(|copy| self.snapshots[*copy].wave == wave)
        };
        let Some(copies) = copies.filter(same) else {
            self.forget_newest();
            self.begin_anew();
            self.agent.returning = None;
            return Ok(());
        };
        self.agent.generation += 1;
        let generation = self.agent.generation;
        self.checkers.begin(generation, self.snapshots[copies[0]].wave)?;
        self.agent.waking.fill(true);
        if self.non_blocking {
            self.refill();
        }
        for copy in copies {
            let after = self.soon(self.latency);
            self.schedule(after, Event::Wake(copy, generation));
        }
        Ok(())
    }

    /// Puts into the channels what was in transit at the wave.
    fn refill(&mut self) {
        for from in 0..self.size {
            for to in 0..self.size {
                if !self.is(Mutation::KeepLostFuture) {
                    let state = self.state[from][to].clone();
                    self.channels[from][to].restart(state);
                }
                if self.is(Mutation::RefillLate) {
                    self.channels[from][to].delay();
                }
            }
        }
    }

    fn forget_newest(&mut self) {
        self.stop_writing();
        for rank in 0..self.size {
            let copy = self.agent.newest[rank].take();
            self.close(copy);
        }
    }

    /// All ranks begin their programs, over empty channels.
    pub(super) fn begin_anew(&mut self) {
        self.note(|| "all begin".into());
        self.agent.generation += 1;
        let generation = self.agent.generation;
        self.checkers.begin_anew(generation);
        self.channels
            .iter_mut()
            .flatten()
            .for_each(|channel| channel.restart(Vec::new()));
        self.announced.iter_mut().for_each(|counts| counts.fill(0));
        for rank in 0..self.size {
            let memory = Memory::new(self.job.start(rank as Rank), self.size);
            let process = self.new_process(rank as Rank, generation, Phase::Starting, memory);
            self.agent.lives[rank] = Some(process);
            let after = self.soon(self.pace * 3);
            self.schedule(after, Event::Step(process));
        }
    }

    /// The number of a process that a copy has made.
    pub(super) fn woken(&mut self, rank: Rank, process: usize) -> Result<(), Violation> {
        let rank = rank as usize;
        if !std::mem::take(&mut self.agent.waking[rank]) {
            return Ok(());
        }
        self.agent.lives[rank] = Some(process);
        if self.agent.returning.as_ref().is_some_and(Return::is_ending) {
            self.kill(process);
        }
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

    /// A copy is gone, and with it the wave.
    pub(super) fn copy_gone(&mut self, rank: Rank, copy: usize) -> Result<(), Violation> {
        let rank = rank as usize;
        if self.agent.newest[rank] != Some(copy) {
            return Ok(());
        }
        self.agent.newest[rank] = None;
        let waking = std::mem::take(&mut self.agent.waking[rank]);
        if self.agent.returning.is_none() {
            self.forget_newest();
            if self.is(Mutation::LoseTwoWaves) {
                self.agent.taking.fill(false);
            }
        } else if waking {
            // A process that it has made, and whose number nobody knows, sees the end of its own socket when it reads from
            // there.
            let generation = self.agent.generation;
            let of_rank = |process: &usize| {
                let this = &self.processes[*process];
                this.alive && this.rank as usize == rank && this.generation == generation
            };
            if let Some(process) = (0..self.processes.len()).find(of_rank) {
                self.processes[process].given_up = true;
                if self.processes[process].phase == Phase::Ready {
                    let after = self.soon(self.latency);
                    self.schedule(after, Event::Dies(process));
                }
            }
            return self.ended_for_return(rank);
        }
        Ok(())
    }
}

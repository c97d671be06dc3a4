//! The simulated agent: it tells the real [`Coordinator`] what happens, and carries out what that wants. It decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use resurgo_protocol::coordinator::{From, Plan, State, Why};
use resurgo_protocol::group::Turn;
use resurgo_protocol::{Command, Coordinator, Fact, Rank};

use super::rank::{Memory, Phase, Piece};
use super::{Event, ToAgent, ToRank, World};
use crate::checkers::{LIVENESS, Violation, violation};
use crate::mutation::Mutation;

/// A rank, as the agent knows it.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    /// The coordinator's number of its present life.
    life: u64,
    /// Its process, once the number is known.
    pub process: Option<usize>,
    /// A copy has been asked for the process, whose number is not known.
    waking: Option<usize>,
    /// It is to end as soon as it is known.
    doomed: bool,
    /// Its process is being rebuilt from this image, whose file is damaged.
    damaged: Option<u64>,
    pub finished: bool,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub coordinator: Coordinator,
    plan: Plan,
    pub ranks: Vec<Known>,
    /// Copies that have been told of, by rank and wave.
    pub copies: BTreeMap<(Rank, u64), usize>,
    /// Images in files, and those that are being written.
    pub files: BTreeMap<(Rank, u64), Memory>,
    pub writing: Vec<Option<u64>>,
    /// Waves of which what was in transit is in a file, with that.
    transit_files: BTreeMap<u64, Vec<Vec<Vec<Piece>>>>,
    /// The launcher has been lost, and the job goes on from files.
    pub is_resumed: bool,
    /// The first process and copy of this run.
    first: (usize, usize),
    /// The newest wave that all could have begun from, before the coordinator chose one.
    usable: u64,
    /// A failure has been told, and the answer is on its way.
    told: bool,
    /// Of processes: one more whenever all begin.
    generation: u64,
    /// The wave that all begin from, once the first has.
    beginning: Option<u64>,
    /// Processes that have ended and were nobody's.
    unclaimed: Vec<(usize, bool)>,
    /// Whom the coordinator has asked and made notice in this turn: for variants.
    turn: Turn,
    in_turn: Vec<Rank>,
    outside: Vec<Rank>,
    /// The last turn that a variant has drained too early, and the wave that one does not hear of.
    eager: Turn,
    deaf: u64,
    /// Copies that a variant has told of before they existed.
    promised: Vec<(Rank, u64)>,
}

impl Agent {
    pub fn new(plan: Plan, size: usize) -> Self {
        Self {
            coordinator: Coordinator::new(plan.clone()),
            plan,
            ranks: vec![Known::default(); size],
            copies: BTreeMap::new(),
            files: BTreeMap::new(),
            writing: vec![None; size],
            transit_files: BTreeMap::new(),
            is_resumed: false,
            first: (0, 0),
            usable: 0,
            told: false,
            generation: 0,
            beginning: Some(0),
            unclaimed: Vec::new(),
            turn: Turn::default(),
            in_turn: Vec::new(),
            outside: Vec::new(),
            eager: Turn::default(),
            deaf: 0,
            promised: Vec::new(),
        }
    }

    /// That of a new run, with the files of waves that are whole.
    pub fn again(former: &Self, size: usize, whole: &[u64], first: (usize, usize)) -> Self {
        let mut files = former.files.clone();
        files.retain(|(_, wave), _| whole.contains(wave));
        let mut transit_files = former.transit_files.clone();
        transit_files.retain(|wave, _| whole.contains(wave));
        Self {
            files,
            transit_files,
            first,
            generation: former.generation,
            is_resumed: former.is_resumed,
            ..Self::new(former.plan.clone(), size)
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn usable_is(&mut self, wave: u64) {
        self.usable = wave;
    }

    pub fn has_transit_file(&self, wave: u64) -> bool {
        self.transit_files.contains_key(&wave)
    }

    pub fn keep_transit_file(&mut self, wave: u64, state: Vec<Vec<Vec<Piece>>>) {
        self.transit_files.insert(wave, state);
    }

    /// What the file says. A damaged one is gone.
    pub fn take_transit_file(&mut self, wave: u64, damaged: bool) -> Option<Vec<Vec<Vec<Piece>>>> {
        match damaged {
            true => self.transit_files.remove(&wave),
            false => self.transit_files.get(&wave).cloned(),
        }
    }

    /// What is told of it comes from before the launcher was lost.
    pub fn is_gone(&self, process: usize) -> bool {
        process < self.first.0
    }

    pub fn is_copy_gone(&self, copy: usize) -> bool {
        copy < self.first.1
    }

    pub fn is_returning(&self) -> bool {
        self.coordinator.is_returning(0)
    }

    pub fn all_finished(&self) -> bool {
        self.ranks.iter().all(|rank| rank.finished)
    }

    /// The newest copy of `rank` that counts.
    pub fn newest(&self, rank: Rank) -> Option<usize> {
        let current = self.coordinator.is_in_wave(rank).then(|| self.coordinator.asked(rank));
        let copies = self.copies.range((rank, 0)..(rank + 1, 0));
        let counts = copies.filter(|((_, wave), _)| Some(*wave) != current);
        counts.map(|(_, copy)| *copy).next_back()
    }
}

impl World {
    /// Tells the coordinator, and does what it wants.
    pub(super) fn coordinate(&mut self, fact: Fact) -> Result<(), Violation> {
        let now = Duration::from_millis(self.now);
        if self.agent.is_returning() || matches!(fact, Fact::Return { .. } | Fact::GoOn { .. }) {
            self.agent.usable = self.newest_usable();
        }
        self.agent.coordinator.handle(fact, now);
        while let Some(command) = self.agent.coordinator.poll() {
            self.carry_out(command)?;
        }
        Ok(())
    }

    /// The coordinator waits for nobody for long, as nobody is ever silent here.
    pub(super) fn mind_silence(&self) -> Result<(), Violation> {
        let due = self.agent.coordinator.due();
        if due.is_some_and(|due| due <= Duration::from_millis(self.now)) {
            return violation(LIVENESS, format!("nobody says anything about a wave: {:?}", self.agent));
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Violation> {
        match command {
            Command::Waves { asked, over } => {
                self.waves.asked = asked;
                if asked != over {
                    self.checkers.asked(asked)?;
                    self.note(|| format!("wave {asked} is asked for"));
                } else if !self.is(Mutation::DropSilently) {
                    self.waves.over = over;
                }
            }
            Command::Groups(groups) => {
                let of = (0..self.size as Rank).map(|rank| groups.of(rank)).collect();
                self.checkers.begin_groups(self.waves.asked, of);
                self.grouping.last.swap(0, 1);
                self.grouping.last[0] = groups;
            }
            Command::Turn(turn) => self.turn_is(turn),
            Command::Ask { .. }
            | Command::Notice { .. }
            | Command::Drain { .. }
            | Command::Copy { .. }
            | Command::Abandon { .. } => return self.tell_of_wave(command),
            Command::TakeTransit { number } => return self.take_transit(number),
            Command::PutTransit { number } => self.refill(number),
            Command::ReadTransit { number } => return self.read_transit(number),
            Command::WriteTransit { number } => return self.write_transit(number),
            Command::CollectTransit { keep } => self.agent.transit_files.retain(|wave, _| keep.contains(wave)),
            Command::ForgetTransit { before } => self.transit.state.retain(|wave, _| *wave >= before),
            Command::EndCopy { rank, number } => self.end_copy(rank, number),
            Command::Write { rank, number } => return self.write(rank, number),
            Command::GiveUp { rank, .. } => return self.stop_writing(rank),
            Command::Collect { rank, number } => drop(self.agent.files.remove(&(rank, number))),
            Command::Kill { rank, .. } => return self.kill_rank(rank),
            Command::Reset => return self.reset(),
            Command::EmptyLogs => {
                self.agent.generation += 1;
                self.agent.beginning = None;
            }
            Command::Begin { rank, life, from, .. } => return self.begin_life(rank, life, from),
            Command::Go { rank } => self.tell(rank, ToRank::Go(0)),
            Command::Complete { number, .. } => return self.completed(number),
            Command::Dropped { why, .. } => return self.dropped(&why),
            Command::Returned { wave, .. } => {
                self.note(|| format!("all go on from wave {wave}"));
                if wave > 0 {
                    self.report.from_images += 1;
                    self.checkers.all_go_on()?;
                }
            }
            Command::Fail(cause) => return violation(LIVENESS, format!("the job cannot go on: {cause}")),
            _ => {}
        }
        Ok(())
    }

    /// What ranks are told in a wave.
    fn tell_of_wave(&mut self, command: Command) -> Result<(), Violation> {
        match command {
            Command::Ask { rank, number, .. } => {
                if self.turn_of(number) {
                    self.agent.in_turn.clear();
                    self.agent.outside.clear();
                }
                self.agent.in_turn.push(rank);
                if self.answers_itself() {
                    return self.report(rank, ToAgent::Stopped(number));
                }
                self.tell(rank, ToRank::Checkpoint(number));
            }
            Command::Notice { rank, turn } => {
                self.agent.outside.push(rank);
                if !self.answers_itself() {
                    self.tell(rank, ToRank::Notice(turn));
                }
                if self.answers_itself() || self.is(Mutation::NoNotice) {
                    return self.report(rank, ToAgent::Noticed(turn));
                }
            }
            Command::Drain { rank, number } => {
                if self.is(Mutation::TurnTooEarly) {
                    self.grouping.turn.group = self.agent.turn.group + 1;
                }
                if self.answers_itself() || self.is(Mutation::CopyUndrained) {
                    return self.report(rank, ToAgent::Drained(number, 0));
                }
                self.tell(rank, ToRank::Drain(number));
            }
            Command::Copy { .. } if self.non_blocking => {}
            Command::Copy { rank, number } if self.answers_itself() => return self.report_copy(rank, number),
            Command::Copy { rank, number } => self.tell(rank, ToRank::Go(number)),
            Command::Abandon { .. } if self.is(Mutation::DropSilently) => {}
            Command::Abandon { rank, number } => self.tell(rank, ToRank::Abandon(number)),
            _ => {}
        }
        Ok(())
    }

    fn tell(&mut self, rank: Rank, datagram: ToRank) {
        if let Some(process) = self.agent.ranks[rank as usize].process {
            self.tell_rank(process, datagram);
        }
    }

    /// Whether this is the first word of a new turn. Where there are none, each wave is one.
    fn turn_of(&mut self, number: u64) -> bool {
        if self.grouping.one_by_one {
            return self.agent.in_turn.is_empty() && self.agent.outside.is_empty();
        }
        let turn = Turn { wave: number, group: 1 };
        std::mem::replace(&mut self.agent.turn, turn) != turn
    }

    fn turn_is(&mut self, turn: Turn) {
        let is_over = turn.group == 0;
        self.agent.turn = turn;
        self.agent.in_turn.clear();
        self.agent.outside.clear();
        self.note(|| format!("group {} has its turn in wave {}", turn.group, turn.wave));
        if !is_over || !self.is(Mutation::DropSilently) && !self.is(Mutation::KeepDeferring) {
            self.grouping.turn = turn;
        }
    }

    /// A variant says for all groups but the first that they have done what they were asked for.
    fn answers_itself(&self) -> bool {
        self.is(Mutation::CompleteAfterFirstGroup) && self.agent.turn.group > 1
    }

    /// Images of all ranks are wanted.
    pub(super) fn want_wave(&mut self) -> Result<(), Violation> {
        let after = self.soon(self.pace.between_waves);
        self.schedule(after, Event::Wave);
        let state = |rank: &Known| match rank.process.map(|process| self.processes[process].phase) {
            Some(Phase::Running | Phase::Standing(_) | Phase::Ready) => State::Live,
            Some(Phase::Closed) => State::Closed,
            _ => State::NotOpened,
        };
        let states = self.agent.ranks.iter().map(state).collect();
        let groups = self.grouping.one_by_one.then(|| self.form());
        self.coordinate(Fact::Wanted {
            unit: 0,
            states,
            held: 0,
            groups,
        })
    }

    /// The agent reads what a process has said.
    pub(super) fn said(&mut self, process: usize, datagram: ToAgent) -> Result<(), Violation> {
        let (rank, life) = (self.processes[process].rank, self.processes[process].life);
        let known = &self.agent.ranks[rank as usize];
        if known.process != Some(process) && known.waking.is_some() && known.life == life {
            self.processes[process].unread.push(datagram);
            return Ok(());
        }
        if matches!(datagram, ToAgent::Ready) {
            return self.is_ready(rank, life);
        }
        if known.process != Some(process) || datagram.wave() == self.agent.deaf {
            self.lose(datagram);
            return Ok(());
        }
        let current = self.agent.coordinator.asked(rank);
        match datagram {
            // Of a wave that has been dropped.
            ToAgent::Taken(number, copy) if self.is(Mutation::CountOldCopies) && number < current => {
                self.snapshots[copy].under_way = false;
                self.agent.copies.insert((rank, current), copy);
                self.report_copy(rank, current)
            }
            ToAgent::Stopped(_) | ToAgent::Noticed(_) if self.is(Mutation::DrainBeforeAllStand) => {
                self.say_that_all_stand(datagram)
            }
            ToAgent::Noticed(_) if self.is(Mutation::NoNotice) => Ok(()),
            ToAgent::Drained(number, _) if self.is(Mutation::DrainOnce) => {
                self.report(rank, ToAgent::Drained(number, 0))
            }
            ToAgent::Taken(number, copy) => {
                self.snapshots[copy].under_way = false;
                self.agent.copies.insert((rank, number), copy);
                if self.is(Mutation::LetGoEarly) {
                    self.waves.over = number;
                }
                if self.is(Mutation::PromoteIncomplete) {
                    if self.agent.promised.contains(&(rank, number)) {
                        return Ok(());
                    }
                    let mut others = std::mem::take(&mut self.agent.in_turn);
                    others.retain(|other| *other != rank);
                    self.agent.promised.extend(others.iter().map(|other| (*other, number)));
                    for other in others {
                        self.report_copy(other, number)?;
                    }
                }
                self.report(rank, datagram)
            }
            _ => self.report(rank, datagram),
        }
    }

    /// What a rank says is a fact.
    fn report(&mut self, rank: Rank, datagram: ToAgent) -> Result<(), Violation> {
        let fact = match datagram {
            ToAgent::Stopped(number) => Fact::Stopped {
                rank,
                number,
                accounted: true,
            },
            ToAgent::Noticed(turn) => Fact::Noticed { rank, turn },
            ToAgent::Drained(number, moved) => Fact::Drained { rank, number, moved },
            ToAgent::Taken(number, _) => return self.report_copy(rank, number),
            ToAgent::Refused(number) => Fact::Refused {
                rank,
                number,
                reason: "it does not want to".to_string(),
            },
            ToAgent::Ready => return Ok(()),
        };
        self.coordinate(fact)
    }

    fn report_copy(&mut self, rank: Rank, number: u64) -> Result<(), Violation> {
        self.coordinate(Fact::Copied {
            rank,
            number,
            sleeps: true,
            stood: Duration::from_millis(1),
        })
    }

    /// In a variant, when the first stands still.
    fn say_that_all_stand(&mut self, datagram: ToAgent) -> Result<(), Violation> {
        let turn = self.agent.turn;
        if matches!(datagram, ToAgent::Noticed(_)) || self.agent.eager == turn || datagram.wave() != turn.wave {
            return Ok(());
        }
        self.agent.eager = turn;
        let outside = std::mem::take(&mut self.agent.outside);
        for rank in outside {
            self.report(rank, ToAgent::Noticed(turn))?;
        }
        for rank in std::mem::take(&mut self.agent.in_turn) {
            self.report(rank, datagram)?;
        }
        Ok(())
    }

    fn is_ready(&mut self, rank: Rank, life: u64) -> Result<(), Violation> {
        let ready = match self.is(Mutation::GoWhenOneIsReady) {
            true => (0..self.size as Rank).collect(),
            false => vec![rank],
        };
        for other in ready {
            let life = match other == rank {
                true => life,
                false => self.agent.ranks[other as usize].life,
            };
            self.coordinate(Fact::Ready { rank: other, life })?;
        }
        Ok(())
    }

    fn take_transit(&mut self, number: u64) -> Result<(), Violation> {
        let state = self.transit.channels.iter().map(|channels| {
            let channels = channels.iter();
            channels.map(|channel| channel.state(self.mutation)).collect()
        });
        let state: Vec<Vec<Vec<Piece>>> = state.collect();
        let former = self.transit.state.values().next().cloned();
        match former.filter(|_| self.is(Mutation::StateOfWaveBefore)) {
            Some(former) => {
                self.transit.checked = Some(state);
                self.transit.state.insert(number, former);
            }
            None => drop(self.transit.state.insert(number, state)),
        }
        self.coordinate(Fact::TransitKnown { number })
    }

    /// The wave is complete.
    fn completed(&mut self, number: u64) -> Result<(), Violation> {
        self.note(|| format!("wave {number} is complete"));
        self.report.images += 1;
        let state = self
            .transit
            .checked
            .take()
            .or_else(|| self.transit.state.get(&number).cloned());
        let oldest = self.agent.files.keys().map(|(_, wave)| *wave).min();
        let oldest = oldest.map(|wave| wave.min(number));
        self.checkers.complete(number, oldest.unwrap_or(number), |from, to| {
            let state = state.iter().flat_map(|state| state[from][to].iter());
            state.map(|piece| (piece.id, piece.index)).collect()
        })?;
        if self.is(Mutation::DropSilently) {
            (self.waves.over, self.grouping.turn.group) = (number, 0);
        }
        self.nothing_else_is_kept()
    }

    /// There is no wave now.
    fn dropped(&mut self, why: &Why) -> Result<(), Violation> {
        if matches!(why, Why::Absent | Why::Writing | Why::Filling) {
            return Ok(());
        }
        self.report.fallbacks += 1;
        self.note(|| format!("the wave is dropped: {why}"));
        if self.is(Mutation::KeepDeferring) {
            self.grouping.turn.group = 0;
        }
        if !self.is(Mutation::DropSilently) {
            self.checkers.end_groups();
        }
        self.nothing_else_is_kept()
    }

    /// Closes the socket of a copy.
    fn end_copy(&mut self, rank: Rank, number: u64) {
        let later = self.agent.copies.range((rank, number + 1)..(rank + 1, 0)).next_back();
        let later = later.map(|(key, copy)| (*key, *copy));
        if rank == 0
            && self.is(Mutation::DropKeepsACopy)
            && self.agent.coordinator.asked(0) == number
            && later.is_none()
        {
            return;
        }
        let Some(copy) = self.agent.copies.remove(&(rank, number)) else {
            return;
        };
        if rank == 0
            && self.is(Mutation::MixWaves)
            && let Some((key, late)) = later
        {
            self.agent.copies.insert(key, copy);
            self.snapshots[late].alive = false;
            return;
        }
        self.snapshots[copy].alive = false;
    }

    /// What copies there are: those of the last complete wave and of the current one, and some that the agent has yet to
    /// be told of.
    fn nothing_else_is_kept(&self) -> Result<(), Violation> {
        let coordinator = &self.agent.coordinator;
        let current = coordinator.is_in_wave(0).then(|| coordinator.asked(0));
        let kept = self.snapshots.iter().filter(|copy| copy.alive && !copy.under_way);
        self.checkers.kept(kept.map(|copy| (copy.rank, copy.wave)), current)
    }

    /// The agent hears that a process has ended.
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
        let returning = self.agent.is_returning();
        let known = &mut self.agent.ranks[rank as usize];
        known.process = None;
        known.finished = orderly && !returning;
        let life = known.life;
        if let Some(number) = known.damaged.take()
            && self.mutation != Some(Mutation::ForgetLostFiles)
        {
            self.agent.files.remove(&(rank, number));
            self.coordinate(Fact::FileLost { rank, number })?;
        }
        self.coordinate(Fact::Ended { rank, life, orderly })?;
        if !returning && !orderly && !std::mem::replace(&mut self.agent.told, true) {
            let after = self.soon(self.pace.latency);
            self.schedule(after, Event::Return(rank));
        }
        Ok(())
    }

    /// What follows from a failure: all ranks return.
    pub(super) fn return_to_wave(&mut self, rank: Rank) -> Result<(), Violation> {
        self.note(|| "all ranks return".into());
        self.agent.told = false;
        self.coordinate(Fact::Return { rank })
    }

    fn kill_rank(&mut self, rank: Rank) -> Result<(), Violation> {
        let known = &mut self.agent.ranks[rank as usize];
        if let Some(process) = known.process {
            self.kill(process);
        } else if known.waking.is_some() {
            known.doomed = true;
            let life = known.life;
            if self.mutation == Some(Mutation::BeginBesideUnknown) {
                known.waking = None;
                return self.coordinate(Fact::NotBegun { rank, life });
            }
        }
        Ok(())
    }

    fn kill(&mut self, process: usize) {
        if self.is(Mutation::KillByGroupOnly) && !self.processes[process].grouped {
            return;
        }
        // It may do something yet.
        let after = self.soon(self.pace.latency);
        self.schedule(after, Event::Dies(process));
    }

    /// Puts into the channels what was in transit at the wave.
    fn refill(&mut self, wave: u64) {
        for from in 0..self.size {
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
        self.checkers.begin_anew(self.agent.generation);
        self.transit
            .channels
            .iter_mut()
            .flatten()
            .for_each(|channel| channel.restart(Vec::new()));
        self.transit.announced.iter_mut().for_each(|counts| counts.fill(0));
        Ok(())
    }

    /// A rank gets a process.
    fn begin_life(&mut self, rank: Rank, life: u64, from: From) -> Result<(), Violation> {
        let generation = self.agent.generation;
        self.agent.ranks[rank as usize] = Known {
            life,
            ..Known::default()
        };
        let from = match self.newest_image(rank) {
            Some(newest) if self.is(Mutation::BeginFromNewest) => newest,
            _ => from,
        };
        let wave = from.number();
        if self.agent.beginning.is_none() {
            self.agent.beginning = Some(wave);
            self.checkers.begin(generation, wave, self.agent.usable)?;
        }
        self.checkers.begins_from(rank, wave, self.agent.beginning)?;
        match from {
            From::Beginning => {
                let memory = Memory::new(self.job.start(rank), self.size);
                let process = self.new_process(rank, generation, Phase::Starting, memory);
                self.processes[process].life = life;
                self.agent.ranks[rank as usize].process = Some(process);
                let after = self.soon(self.pace.step * 3);
                self.schedule(after, Event::Step(process));
                self.coordinate(Fact::Started { rank, life })
            }
            From::Copy(number) => {
                let Some(copy) = self.agent.copies.get(&(rank, number)).copied() else {
                    return self.coordinate(Fact::NotBegun { rank, life });
                };
                self.agent.ranks[rank as usize].waking = Some(copy);
                let after = self.soon(self.pace.latency);
                self.schedule(after, Event::Wake(copy, generation, life));
                Ok(())
            }
            From::File(number) => {
                let Some(memory) = self.agent.files.get(&(rank, number)).cloned() else {
                    return self.coordinate(Fact::NotBegun { rank, life });
                };
                let damaged = self.random.one_in(4) && self.may_be_damaged(number);
                let process = self.new_process(rank, generation, Phase::Waking, memory);
                self.note(|| format!("{rank} is rebuilt from its file as process {process}"));
                self.processes[process].life = life;
                self.processes[process].grouped = true;
                let known = &mut self.agent.ranks[rank as usize];
                known.process = Some(process);
                known.damaged = damaged.then_some(number);
                let after = self.soon(self.pace.latency);
                match damaged {
                    true => self.schedule(after, Event::Dies(process)),
                    false => self.schedule(after, Event::Rewind(process)),
                }
                self.coordinate(Fact::Started { rank, life })
            }
        }
    }

    /// In a variant, what a rank begins from whatever it is told.
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
        self.coordinate(Fact::Started { rank, life })?;
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
            self.agent.deaf = self.agent.coordinator.asked(rank);
        }
        self.coordinate(Fact::CopyLost {
            rank,
            number,
            stored: false,
        })?;
        let known = &mut self.agent.ranks[rank as usize];
        if known.waking.take_if(|waking| *waking == copy).is_none() {
            return Ok(());
        }
        // A process that it has made, and whose number nobody knows, sees the end of its own socket when it reads from
        // there.
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
        self.coordinate(Fact::NotBegun { rank, life })
    }
}

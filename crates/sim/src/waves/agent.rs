//! The simulated agent: it reports events to the real [`Coordinator`], and carries out its commands. It decides
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use resurgo_protocol::coordinator::{Plan, State, Why};
use resurgo_protocol::group::Turn;
use resurgo_protocol::{Command, Coordinator, Fact, Rank};

use super::channel::Channel;
use super::rank::{Memory, Phase, Piece};
use super::{Event, Snapshot, ToAgent, ToRank, World};
use crate::checkers::{LIVENESS, Violation, violation};
use crate::mutation::Mutation;

/// A rank, as the agent knows it.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    /// The coordinator's number of its present life.
    pub life: u64,
    /// Its process, once the number is known.
    pub process: Option<usize>,
    /// A copy was asked for the process; the number is unknown.
    pub waking: Option<usize>,
    /// It must end as soon as it is known.
    pub doomed: bool,
    /// Its process is being rebuilt from this image, whose file is damaged where it is read.
    pub damaged: Option<(u64, usize)>,
    /// Where it is.
    pub node: usize,
}

impl Known {
    /// Its node is gone, and the process with it.
    pub fn is_gone(&mut self) {
        *self = Self {
            life: self.life,
            node: self.node,
            ..Self::default()
        };
    }
}

#[derive(Debug)]
pub(super) struct Agent {
    pub coordinator: Coordinator,
    plan: Plan,
    pub ranks: Vec<Known>,
    /// Of each rank, as the dispatcher knows it: its life, and whether that has finished.
    pub lives: Vec<u64>,
    pub finished: Vec<bool>,
    /// Ranks whose ends are their images of these waves.
    pub ends: BTreeSet<(Rank, u64)>,
    /// The last wave that the dispatcher asked for.
    pub asked: u64,
    /// Known copies, by rank and wave.
    pub copies: BTreeMap<(Rank, u64), usize>,
    /// Images in files, and those that are being written.
    pub files: BTreeMap<(Rank, u64), Memory>,
    pub writing: Vec<Option<u64>>,
    /// The transit files of waves; those that are unreadable while this launcher lives.
    transit_files: BTreeMap<u64, Vec<Vec<Vec<Piece>>>>,
    transit_damaged: BTreeSet<u64>,
    /// The waves in the record.
    pub record: BTreeSet<u64>,
    /// The launcher was lost, and the job goes on from files.
    pub is_resumed: bool,
    /// The first process and copy of this run.
    first: (usize, usize),
    /// The newest wave that all could have begun from, before the coordinator chose one.
    pub usable: u64,
    /// A failure is reported, and the answer is on its way.
    pub told: bool,
    /// Of processes: one more whenever all begin.
    pub generation: u64,
    /// The wave that all begin from, once the first has.
    pub beginning: Option<u64>,
    /// Ended processes that belong to no known life.
    pub unclaimed: Vec<(usize, bool)>,
    /// The ranks that the coordinator has asked and made notice in this turn: for variants.
    pub turn: Turn,
    pub in_turn: Vec<Rank>,
    pub outside: Vec<Rank>,
    pub broken: Broken,
}

/// What variants have done wrong.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// The last turn that was drained too early, and the wave that is not reported.
    eager: Turn,
    pub deaf: u64,
    /// Copies that were reported before they existed.
    promised: Vec<(Rank, u64)>,
}

impl Agent {
    pub fn new(plan: Plan, size: usize) -> Self {
        Self {
            coordinator: Coordinator::new(plan.clone()),
            plan,
            ranks: vec![Known::default(); size],
            lives: vec![0; size],
            finished: vec![false; size],
            ends: BTreeSet::new(),
            asked: 0,
            copies: BTreeMap::new(),
            files: BTreeMap::new(),
            writing: vec![None; size],
            transit_files: BTreeMap::new(),
            transit_damaged: BTreeSet::new(),
            record: BTreeSet::new(),
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
            broken: Broken::default(),
        }
    }

    /// The agent of a new run, with the files of complete waves.
    pub fn again(former: &Self, size: usize, whole: &[u64], first: (usize, usize)) -> Self {
        let mut files = former.files.clone();
        files.retain(|(_, wave), _| whole.contains(wave));
        let mut transit_files = former.transit_files.clone();
        transit_files.retain(|wave, _| whole.contains(wave));
        let mut ends = former.ends.clone();
        ends.retain(|(_, wave)| whole.contains(wave));
        let mut finished = vec![false; size];
        ends.iter().for_each(|(rank, _)| finished[*rank as usize] = true);
        Self {
            finished,
            ends,
            files,
            transit_files,
            record: former.record.clone(),
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

    /// The job can be resumed from it, so its files stay.
    pub fn is_recorded(&self, wave: u64) -> bool {
        self.record.contains(&wave)
    }

    pub fn has_transit_file(&self, wave: u64) -> bool {
        self.transit_files.contains_key(&wave) && !self.transit_damaged.contains(&wave)
    }

    pub fn transit_file(&self, wave: u64) -> Option<Vec<Vec<Vec<Piece>>>> {
        let is_whole = !self.transit_damaged.contains(&wave);
        self.transit_files.get(&wave).filter(|_| is_whole).cloned()
    }

    pub fn keep_transit_file(&mut self, wave: u64, state: Vec<Vec<Vec<Piece>>>) {
        self.transit_files.insert(wave, state);
        self.transit_damaged.remove(&wave);
    }

    /// The contents of the file. None: it is damaged.
    pub fn read_transit_file(&mut self, wave: u64, damaged: bool) -> Option<Vec<Vec<Vec<Piece>>>> {
        if damaged {
            self.transit_damaged.insert(wave);
        }
        self.transit_file(wave)
    }

    fn collect_transit_files(&mut self, keep: &[u64]) {
        let mut files = std::mem::take(&mut self.transit_files);
        files.retain(|wave, _| keep.contains(wave) || self.is_recorded(*wave));
        self.transit_files = files;
    }

    /// Unreadable files are lost, or become readable again.
    pub fn end_transit_damage(&mut self, mut is_gone: impl FnMut() -> bool) {
        for wave in std::mem::take(&mut self.transit_damaged) {
            if is_gone() {
                self.transit_files.remove(&wave);
            }
        }
    }

    /// Its messages come from before the loss of the launcher.
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
        !self.finished.contains(&false)
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
    /// Reports to the coordinator, and carries out its commands.
    pub(super) fn coordinate(&mut self, fact: Fact) -> Result<(), Violation> {
        let now = Duration::from_millis(self.now);
        if self.agent.is_returning() || matches!(fact, Fact::Return { .. } | Fact::GoOn { .. }) {
            self.agent.usable = self.newest_usable();
        }
        self.agent.coordinator.handle(fact, now);
        self.tell_ends();
        self.mind_told();
        while let Some(command) = self.agent.coordinator.poll() {
            self.carry_out(command)?;
        }
        self.check_replicas()
    }

    /// The coordinator waits for no rank for long, because none is ever silent here.
    pub(super) fn mind_silence(&self) -> Result<(), Violation> {
        let due = self.agent.coordinator.due();
        if due.is_some_and(|due| due <= Duration::from_millis(self.now)) {
            return violation(
                LIVENESS,
                format!("nobody says anything about a wave: {}", self.state_of_all()),
            );
        }
        Ok(())
    }

    /// The states of all ranks, and what the coordinator waits for, for people.
    pub(super) fn state_of_all(&self) -> String {
        let of = |(rank, known): (usize, &Known)| {
            let process = known.process.map(|process| &self.processes[process]);
            let state = match process {
                _ if self.agent.finished[rank] => "finished".to_string(),
                Some(process) if process.alive => format!("{:?}", process.phase),
                Some(_) => "dead".to_string(),
                None if known.waking.is_some() => "woken from its copy".to_string(),
                None => "no process".to_string(),
            };
            format!("{rank}: {state}, life {}, node {}", known.life, known.node)
        };
        let ranks: Vec<String> = self.agent.ranks.iter().enumerate().map(of).collect();
        let coordinator = &self.agent.coordinator;
        format!("{}; the coordinator waits for {coordinator}", ranks.join("; "))
    }

    /// The agent of this node, or the dispatcher, carries out a command.
    pub(super) fn do_as_told(&mut self, node: usize, command: Command) -> Result<(), Violation> {
        match command {
            Command::Survey { number, ranks, traffic } => return self.survey(node, number, &ranks, traffic),
            Command::Waves { asked, over } => {
                let is_dropped = asked == over && !self.is(Mutation::DropSilently);
                let waves = &mut self.nodes.of[node].words.waves;
                waves.asked = asked;
                if is_dropped {
                    waves.over = over;
                }
            }
            Command::Groups(groups) => {
                let words = &mut self.nodes.of[node].words;
                words.groups.swap(0, 1);
                words.groups[0] = groups;
            }
            Command::Turn(turn) => self.turn_is(node, turn),
            Command::Ask { .. }
            | Command::Notice { .. }
            | Command::Drain { .. }
            | Command::Copy { .. }
            | Command::Abandon { .. } => return self.tell_of_wave(command),
            Command::TakeTransit { number } => return self.take_transit(number),
            Command::PutTransit { number } => self.refill(number),
            Command::ReadTransit { number } => return self.read_transit(number),
            Command::WriteTransit { number } => return self.write_transit(number),
            Command::CollectTransit { keep } => self.agent.collect_transit_files(&keep),
            Command::Record { wave, oldest } => {
                self.write_down(oldest..=wave);
                self.store_wave(wave)?;
                return self.coordinate(Fact::Recorded { number: wave });
            }
            Command::ForgetRecord => self.write_down(RangeInclusive::new(1, 0)),
            Command::ForgetTransit { before } => self.transit.state.retain(|wave, _| *wave >= before),
            Command::EndCopy { rank, number } => self.end_copy(rank, number),
            Command::Lost { ranks, .. } => {
                if let Some(rank) = ranks.first() {
                    self.answer_failure(*rank);
                }
            }
            Command::Kill { rank, .. } => return self.kill_rank(rank),
            Command::Reset => return self.reset(),
            Command::EmptyLogs => {
                self.agent.generation += 1;
                self.agent.beginning = None;
                self.empty_logs_of_ended();
            }
            Command::Begin {
                rank,
                life,
                from,
                reads,
                ..
            } => {
                let reads = reads.map_or(node, |node| node as usize);
                return self.begin_life(node, rank, life, from, reads);
            }
            Command::Go { rank } => self.tell(rank, ToRank::Go(0)),
            Command::Complete(wave) => return self.completed(wave.number),
            Command::Dropped { why, .. } => return self.dropped(&why),
            Command::Returned { wave, .. } => {
                self.note(|| format!("all go on from wave {wave}"));
                if wave > 0 {
                    self.report.from_images += 1;
                    self.ends_return(wave)?;
                    self.checkers.all_go_on()?;
                }
            }
            Command::Left { node } => return self.has_left(node as usize),
            Command::Fail(cause) => return violation(LIVENESS, format!("the job cannot go on: {cause}")),
            _ => return self.do_with_file(node, &command),
        }
        Ok(())
    }

    /// Commands about an image's file, its copies and its set.
    fn do_with_file(&mut self, node: usize, command: &Command) -> Result<(), Violation> {
        match *command {
            Command::Write { rank, number } => return self.write(rank, number),
            Command::GiveUp { rank, number } => {
                self.remove_file(node, rank, number);
                return self.stop_writing(rank, Some(number));
            }
            Command::Collect { rank, number } => self.remove_file(node, rank, number),
            Command::Fetch { rank, number, .. } => return self.fetch(node, rank, number),
            Command::Encode {
                number,
                set,
                ref holders,
                ..
            } => return self.encode(node, number, set, holders),
            Command::DropCopy { rank, number, .. } => self.drop_copy(node, rank, number),
            Command::Rebuild { .. } => self.rebuild_file(command),
            Command::CollectSet { number, set } => self.drop_pieces(node, number, set),
            Command::Replicate { rank, number, to, .. } => return self.replicate(node, rank, number, to as usize),
            _ => {}
        }
        Ok(())
    }

    /// Commands to ranks in a wave.
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
                    let group = self.agent.turn.group + 1;
                    self.all_words().for_each(|words| words.turn.group = group);
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

    /// Whether this is the first command of a new turn. Where there are none, each wave is one.
    fn turn_of(&mut self, number: u64) -> bool {
        if self.grouping.one_by_one {
            return self.agent.in_turn.is_empty() && self.agent.outside.is_empty();
        }
        let turn = Turn { wave: number, group: 1 };
        std::mem::replace(&mut self.agent.turn, turn) != turn
    }

    fn turn_is(&mut self, node: usize, turn: Turn) {
        let is_over = turn.group == 0;
        self.note(|| format!("group {} has its turn in wave {} on node {node}", turn.group, turn.wave));
        if !is_over || !self.is(Mutation::DropSilently) && !self.is(Mutation::KeepDeferring) {
            self.nodes.of[node].words.turn = turn;
        }
    }

    /// A variant answers for all groups but the first.
    fn answers_itself(&self) -> bool {
        self.is(Mutation::CompleteAfterFirstGroup) && self.agent.turn.group > 1
    }

    /// Requests images of all ranks.
    pub(super) fn want_wave(&mut self) -> Result<(), Violation> {
        let after = self.soon(self.pace.between_waves);
        self.schedule(after, Event::Wave);
        self.leave_some_node()?;
        self.coordinate(Fact::Wanted { unit: 0 })
    }

    /// Reports the states of the node's ranks, and their traffic where that decides on groups.
    fn survey(&mut self, node: usize, number: u64, ranks: &[Rank], traffic: bool) -> Result<(), Violation> {
        let mut sent = match traffic {
            true => self.traffic(),
            false => vec![Vec::new(); self.size],
        };
        for rank in ranks.iter().copied() {
            if self.agent.ranks[rank as usize].node != node {
                continue;
            }
            let process = self.agent.ranks[rank as usize].process;
            let state = match process.map(|process| self.processes[process].phase) {
                Some(Phase::Running | Phase::Standing(_) | Phase::Ready) => State::Live,
                Some(Phase::Closed) => State::Closed,
                _ => State::NotOpened,
            };
            let found = Fact::Surveyed {
                rank,
                number,
                state,
                held: 0,
                sent: std::mem::take(&mut sent[rank as usize]),
            };
            self.tell_from(node, found)?;
        }
        Ok(())
    }

    /// The agent reads a process's datagram.
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
        if known.process != Some(process) || datagram.wave() == self.agent.broken.deaf {
            self.lose(datagram);
            return Ok(());
        }
        let current = self.agent.coordinator.asked(rank);
        match datagram {
            // Of a dropped wave.
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
                    self.all_words().for_each(|words| words.waves.over = number);
                }
                if self.is(Mutation::PromoteIncomplete) {
                    if self.agent.broken.promised.contains(&(rank, number)) {
                        return Ok(());
                    }
                    let mut others = std::mem::take(&mut self.agent.in_turn);
                    others.retain(|other| *other != rank);
                    self.agent
                        .broken
                        .promised
                        .extend(others.iter().map(|other| (*other, number)));
                    for other in others {
                        self.report_copy(other, number)?;
                    }
                }
                self.report(rank, datagram)
            }
            _ => self.report(rank, datagram),
        }
    }

    /// Turns a rank's report into a fact.
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
        match datagram {
            ToAgent::Stopped(_) | ToAgent::Noticed(_) | ToAgent::Drained(..) => self.tell_flushed(rank, fact),
            _ => self.tell_of(rank, fact),
        }
    }

    fn report_copy(&mut self, rank: Rank, number: u64) -> Result<(), Violation> {
        let fact = Fact::Copied {
            rank,
            number,
            sleeps: true,
            stood: Duration::from_millis(1),
        };
        // Where no rank stops, the transit is looked for when all are copied.
        match self.non_blocking {
            true => self.tell_flushed(rank, fact),
            false => self.tell_of(rank, fact),
        }
    }

    /// In a variant, when the first stands still.
    fn say_that_all_stand(&mut self, datagram: ToAgent) -> Result<(), Violation> {
        let turn = self.agent.turn;
        if matches!(datagram, ToAgent::Noticed(_)) || self.agent.broken.eager == turn || datagram.wave() != turn.wave {
            return Ok(());
        }
        self.agent.broken.eager = turn;
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
            self.tell_flushed(other, Fact::Ready { rank: other, life })?;
        }
        Ok(())
    }

    fn take_transit(&mut self, number: u64) -> Result<(), Violation> {
        let has_end = |rank: usize| self.agent.coordinator.has_end(rank as Rank, number);
        let state = self.transit.channels.iter().enumerate().map(|(from, channels)| {
            let channels = channels.iter().enumerate();
            let state = |(to, channel): (usize, &Channel)| {
                let ended = (has_end(from), has_end(to));
                channel.state(ended, self.mutation, self.now)
            };
            channels.map(state).collect()
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

    /// What ended ranks have sent has been taken, and no process of them does it.
    fn empty_logs_of_ended(&mut self) {
        let ended = (0..self.size).filter(|rank| self.agent.finished[*rank]);
        for rank in ended {
            let channels = self.transit.channels[rank].iter_mut();
            channels.for_each(|channel| channel.restart(Vec::new()));
        }
    }

    /// The ends of ranks are part of a wave that is complete now.
    fn ends_count(&mut self, number: u64) {
        for rank in 0..self.size as Rank {
            let has_image = self.agent.copies.contains_key(&(rank, number));
            if self.agent.finished[rank as usize] && !has_image && self.agent.plan.ends_count {
                self.note(|| format!("the end of {rank} is its image of wave {number}"));
                self.agent.ends.insert((rank, number));
                self.checkers.copied(rank, number);
            }
        }
    }

    /// All return to this wave: ranks whose ends are part of it are as they were.
    fn ends_return(&mut self, wave: u64) -> Result<(), Violation> {
        for rank in 0..self.size as Rank {
            if self.agent.ends.contains(&(rank, wave)) {
                self.checkers.returned(rank, self.agent.generation)?;
            }
        }
        Ok(())
    }

    /// The wave is complete.
    fn completed(&mut self, number: u64) -> Result<(), Violation> {
        self.note(|| format!("wave {number} is complete"));
        self.report.images += 1;
        self.ends_count(number);
        self.check_forgotten()?;
        let state = self
            .transit
            .checked
            .take()
            .or_else(|| self.transit.state.get(&number).cloned());
        let oldest = self.agent.files.keys().map(|(_, wave)| *wave);
        let oldest = oldest.chain(self.places.oldest()).min();
        let oldest = oldest.map(|wave| wave.min(number));
        self.checkers.complete(number, oldest.unwrap_or(number), |from, to| {
            let state = state.iter().flat_map(|state| state[from][to].iter());
            state.map(|piece| (piece.id, piece.index)).collect()
        })?;
        if self.is(Mutation::DropSilently) {
            self.all_words()
                .for_each(|words| (words.waves.over, words.turn.group) = (number, 0));
        }
        self.nothing_else_is_kept()
    }

    /// There is no wave now.
    fn dropped(&mut self, why: &Why) -> Result<(), Violation> {
        if why.is_before() {
            return Ok(());
        }
        self.report.fallbacks += 1;
        self.note(|| format!("the wave is dropped: {why}"));
        if self.is(Mutation::KeepDeferring) {
            self.all_words().for_each(|words| words.turn.group = 0);
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

    /// The existing copies: those of the last complete wave and of the current one, and some that the agent does not
    /// know yet.
    fn nothing_else_is_kept(&self) -> Result<(), Violation> {
        let coordinator = &self.agent.coordinator;
        let current = coordinator.is_in_wave(0).then(|| coordinator.asked(0));
        let nodes = &self.nodes;
        let is_known = |copy: &Snapshot| {
            let image = (copy.rank, copy.wave);
            let is_told = nodes.copies.known.contains(&image) && !nodes.copies.ending.contains(&image);
            !nodes.linked || is_told && nodes.counts(copy.node, copy.serial)
        };
        let kept = self.snapshots.iter().filter(|copy| copy.alive && !copy.under_way);
        let kept = kept.filter(|copy| is_known(copy));
        self.checkers.kept(kept.map(|copy| (copy.rank, copy.wave)), current)
    }
}

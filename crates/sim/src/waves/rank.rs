//! A rank's process: its memory, which a copy keeps, the steps of its program, and its part in a wave.

use std::collections::VecDeque;

use resurgo_protocol::Rank;
use resurgo_protocol::chandy_lamport::Cut;
use resurgo_protocol::group::{Buffer, Turn};

use super::checkers::{BUFFERED, DRAINED};
use super::{Announced, Event, Snapshot, ToAgent, ToRank, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;
use crate::program::{Action, Message, Program};

/// Most deliveries of one completion-queue read.
const READ_ENTRIES: u64 = 8;

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Program,
    /// Asks the receiver's process, not its program, for something; with the number of the question.
    Question(u64),
    Answer(u64),
}

/// A part of a message in its channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Of the message; no two ever sent have the same.
    pub id: u64,
    pub index: u64,
    pub of: u64,
    pub kind: Kind,
    pub tag: u32,
    pub content: u64,
}

/// A message that has found no room, or not for all of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub to: Rank,
    pub next: Piece,
    /// It was deferred, and its send is complete because it was copied.
    pub settled: bool,
    pub is_over: bool,
    pub is_copied: bool,
}

/// The data that is in the process and nowhere else.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub program: Program,
    /// Messages begun, per destination, and taken, per source.
    begun: Vec<u64>,
    taken: Vec<u64>,
    cut: Cut,
    pub waiting: VecDeque<Waiting>,
    /// Room for deferred messages that were copied.
    pub buffer: Buffer,
    /// Per source, the partly received message.
    filling: Vec<Option<u64>>,
    /// The question that the program waits for.
    question: Option<u64>,
    questions: u64,
}

impl Memory {
    pub fn new(program: Program, size: usize) -> Self {
        Self {
            program,
            begun: vec![0; size],
            taken: vec![0; size],
            cut: Cut::default(),
            waiting: VecDeque::new(),
            buffer: Buffer::new(1, usize::MAX, BUFFERED),
            filling: vec![None; size],
            question: None,
            questions: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not opened MPI.
    Starting,
    Running,
    /// It stands still for a wave.
    Standing(u64),
    /// It has been woken from a copy.
    Waking,
    /// It is as it was at the wave, and waits for the others.
    Ready,
    /// It has left MPI.
    Closed,
}

#[derive(Debug)]
pub(super) struct Process {
    pub rank: Rank,
    /// The node that it is on, and that one's life.
    pub node: usize,
    pub serial: u64,
    pub generation: u64,
    /// The coordinator's number of this life.
    pub life: u64,
    pub alive: bool,
    pub phase: Phase,
    pub memory: Memory,
    pub inbox: VecDeque<ToRank>,
    /// Its messages from before the agent knew its number: read later.
    pub unread: Vec<ToAgent>,
    /// It has a process group of its own.
    pub grouped: bool,
    /// Its socket is closed: it ends when it waits for the others.
    pub given_up: bool,
    /// It has made a copy that the agent does not know yet.
    pub telling: bool,
    /// When the last datagrams arrive, in both directions.
    pub last_told: u64,
    pub last_heard: u64,
    /// When its next step is; 0: whenever it comes.
    pub due: u64,
    /// The turn at its last look, perhaps in the beginning of a long call.
    pub seen: Turn,
    /// When it was asked in a wave, without an answer so far.
    pub asked_at: Option<u64>,
}

impl Process {
    pub fn new(rank: Rank, generation: u64, phase: Phase, memory: Memory, now: u64) -> Self {
        Self {
            rank,
            node: 0,
            serial: 0,
            generation,
            life: 0,
            alive: true,
            phase,
            memory,
            inbox: VecDeque::new(),
            unread: Vec::new(),
            grouped: phase == Phase::Starting,
            given_up: false,
            telling: false,
            last_told: now,
            last_heard: now,
            due: 0,
            seen: Turn::default(),
            asked_at: None,
        }
    }
}

impl World {
    fn step_again(&mut self, process: usize) {
        let mut after = self.soon(self.pace.step);
        if self.grouping.one_by_one && self.random.one_in(150) {
            // It computes.
            after += self.random.between(200, 700);
        }
        self.processes[process].due = self.now + after;
        self.schedule(after, Event::Step(process));
    }

    pub(super) fn step(&mut self, process: usize) -> Result<(), Violation> {
        let (alive, phase) = (self.processes[process].alive, self.processes[process].phase);
        if !alive || self.is_not_due(process) {
            return Ok(());
        }
        match phase {
            Phase::Starting => {
                self.go_on(process);
                return Ok(());
            }
            Phase::Running => {}
            // A variant that does not stand still.
            Phase::Standing(_) if self.is(Mutation::RunWhileDraining) => {}
            _ => return Ok(()),
        }
        let (rank, generation) = (self.processes[process].rank, self.processes[process].generation);
        self.checkers.runs(rank, generation)?;
        if self.processes[process].phase == Phase::Running {
            if self.grouping.one_by_one && self.random.one_in(2) {
                self.look(process);
            }
            self.progress(process)?;
            // Inside a call of the library it does not stop.
            if self.random.one_in(2) && self.stand_still(process)? {
                return self.hear(process);
            }
        }
        self.step_again(process);
        self.write_over(process);
        let this = &self.processes[process].memory;
        if this.question.is_some() || !this.waiting.is_empty() && self.random.one_in(2) {
            return self.take_some(process).map(|_| ());
        }
        if self.size > 1 && !this.program.is_in_last_phase() && self.random.one_in(25) {
            return self.ask(process);
        }
        if self.random.one_in(6) {
            // A value from a clock or the like, for the program.
            let time = self.random.draw();
            self.processes[process].memory.program.surprise(time);
        }
        match self.processes[process].memory.program.advance() {
            Action::Send { to, tag, content } => self.put(process, to, Kind::Program, tag, content),
            Action::Read => {
                let deliveries = self.take_some(process)?;
                self.processes[process].memory.program.read_ends(deliveries);
                Ok(())
            }
            Action::Done => {
                if self.processes[process].memory.waiting.is_empty() {
                    self.finish(process);
                }
                Ok(())
            }
        }
    }

    fn finish(&mut self, process: usize) {
        let this = &mut self.processes[process];
        let rank = this.rank;
        (this.phase, this.alive) = (Phase::Closed, false);
        self.note(|| format!("{rank} has finished"));
        self.tell_end(process, true);
    }

    /// A remote read: the program waits for the answer, which the other process gives by itself.
    fn ask(&mut self, process: usize) -> Result<(), Violation> {
        let this = &mut self.processes[process];
        this.memory.questions += 1;
        let (rank, question) = (this.rank, this.memory.questions);
        this.memory.question = Some(question);
        let to = (u64::from(rank) + self.random.between(1, self.size as u64 - 1)) % self.size as u64;
        let content = self.random.draw();
        self.put(process, to as Rank, Kind::Question(question), 0, content)
    }

    /// Sends a message, as far as there is room.
    fn put(&mut self, process: usize, to: Rank, kind: Kind, tag: u32, content: u64) -> Result<(), Violation> {
        self.transit.messages += 1;
        let (id, of) = (self.transit.messages, self.random.between(1, self.transit.longest));
        let this = &mut self.processes[process];
        let rank = this.rank;
        let next = Piece {
            id,
            index: 0,
            of,
            kind,
            tag,
            content,
        };
        this.memory.waiting.push_back(Waiting {
            to,
            next,
            settled: false,
            is_over: false,
            is_copied: false,
        });
        self.checkers.send(rank, to, id, of, content);
        self.note(|| format!("{rank}→{to} message {id} of {of}: {kind:?}"));
        self.progress(process)
    }

    /// Continues messages that had no room or were deferred.
    pub(super) fn progress(&mut self, process: usize) -> Result<(), Violation> {
        let rank = self.processes[process].rank;
        let generation = self.processes[process].generation;
        let mut waiting = std::mem::take(&mut self.processes[process].memory.waiting);
        if self.is(Mutation::OvertakeDeferred) {
            waiting.make_contiguous().sort_by_key(|message| message.next.of > 1);
        }
        let mut still = VecDeque::new();
        for mut message in waiting {
            let to = message.to as usize;
            let behind = still.iter().any(|other: &Waiting| other.to == message.to);
            if self.grouping.one_by_one && self.random.one_in(8) {
                self.look(process);
            }
            let passes = self.passes(process, message.to);
            if !passes {
                self.defer(process, &mut message)?;
            }
            while passes
                && !behind
                && message.next.index < message.next.of
                && self.transit.channels[rank as usize][to].len() < self.transit.room
            {
                let piece = message.next;
                self.checkers
                    .publish(rank, message.to, generation, piece.id, piece.index)?;
                let mut mark = self.processes[process].memory.cut.mark();
                if self.is(Mutation::MarkBefore) {
                    mark = mark.wrapping_sub(1);
                }
                let (over, mutation) = (self.words(process).waves.over, self.mutation);
                let arrives = self.arrives_at(process, to);
                let channel = &mut self.transit.channels[rank as usize][to];
                channel.reclaim(over, mutation);
                channel.publish(mark, piece, arrives);
                if piece.index == 0 {
                    self.processes[process].memory.begun[to] += 1;
                }
                message.next.index += 1;
            }
            if message.next.index == message.next.of && message.is_copied {
                self.processes[process].memory.buffer.remove(1);
            }
            if message.next.index < message.next.of {
                still.push_back(message);
            }
        }
        self.processes[process].memory.waiting = still;
        Ok(())
    }

    /// One read: takes some of the available messages. Returns how many arrived completely.
    fn take_some(&mut self, process: usize) -> Result<u64, Violation> {
        let mut whole = 0;
        let first = self.random.below(self.size as u64) as usize;
        for step in 0..self.size {
            let source = (first + step) % self.size;
            while whole < READ_ENTRIES && self.may_take(process, source) && !self.random.one_in(3) {
                whole += u64::from(self.take_piece(process, source)?);
            }
        }
        Ok(whole)
    }

    fn may_take(&self, process: usize, source: usize) -> bool {
        let this = &self.processes[process];
        let channel = &self.transit.channels[source][this.rank as usize];
        let any = !self.non_blocking || self.is(Mutation::DeliverBehindMarker);
        any && !channel.is_empty(self.now) || channel.may_deliver(&this.memory.cut, self.words(process).waves, self.now)
    }

    /// Takes one piece out of its channel. True: a message for the program is whole.
    fn take_piece(&mut self, process: usize, source: usize) -> Result<bool, Violation> {
        let rank = self.processes[process].rank;
        let generation = self.processes[process].generation;
        let Some(piece) = self.transit.channels[source][rank as usize].take(self.now) else {
            return Ok(false);
        };
        self.checkers
            .consume(source as Rank, rank, generation, piece.id, piece.index)?;
        let memory = &mut self.processes[process].memory;
        if piece.index == 0 {
            memory.taken[source] += 1;
            memory.filling[source] = Some(piece.id);
        }
        if piece.index + 1 < piece.of || memory.filling[source] != Some(piece.id) {
            return Ok(false);
        }
        memory.filling[source] = None;
        self.report.deliveries += 1;
        self.checkers.whole(source as Rank, rank, piece.id, piece.content)?;
        self.note(|| format!("{rank} has message {} from {source}", piece.id));
        let memory = &mut self.processes[process].memory;
        match piece.kind {
            Kind::Program => {
                memory.program.deliver(Message {
                    source: source as Rank,
                    tag: piece.tag,
                    content: piece.content,
                });
                return Ok(true);
            }
            Kind::Answer(question) => {
                if memory.question == Some(question) {
                    memory.question = None;
                    memory.program.surprise(piece.content);
                }
            }
            Kind::Question(question) => {
                let content = piece.content + 1;
                self.put(process, source as Rank, Kind::Answer(question), 0, content)?;
            }
        }
        Ok(false)
    }

    /// Stops if the agent has asked for that. Earlier messages of the agent concern an earlier wave.
    pub(super) fn stand_still(&mut self, process: usize) -> Result<bool, Violation> {
        if self.processes[process].telling {
            return Ok(false);
        }
        while let Some(datagram) = self.processes[process].inbox.pop_front() {
            let wave = match datagram {
                ToRank::Checkpoint(wave) => wave,
                ToRank::Notice(turn) => {
                    self.notice(process, turn)?;
                    continue;
                }
                _ => continue,
            };
            self.has_answered(process)?;
            self.look(process);
            if self.random.one_in(40) {
                self.tell_agent(process, ToAgent::Refused(wave));
                return Ok(false);
            }
            if self.non_blocking {
                self.cut(process, wave);
                return Ok(false);
            }
            let this = &mut self.processes[process];
            let rank = this.rank;
            this.phase = Phase::Standing(wave);
            self.note(|| format!("{rank} stands still for wave {wave}"));
            self.announce(process);
            self.tell_agent(process, ToAgent::Stopped(wave));
            if self.is(Mutation::RunWhileDraining) {
                self.step_again(process);
            }
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn announce(&mut self, process: usize) {
        let rank = self.processes[process].rank as usize;
        for to in 0..self.size {
            let arrives = self.arrives_at(process, to);
            let former = self.announced(rank, to);
            let count = self.processes[process].memory.begun[to];
            self.transit.announced[rank][to] = Announced { count, arrives, former };
        }
    }

    /// How much a rank has sent to another, as that one sees it.
    fn announced(&self, from: usize, to: usize) -> u64 {
        let announced = self.transit.announced[from][to];
        match announced.arrives <= self.now {
            true => announced.count,
            false => announced.former,
        }
    }

    /// Reads the agent's messages, while it waits for them.
    pub(super) fn hear(&mut self, process: usize) -> Result<(), Violation> {
        loop {
            let this = &mut self.processes[process];
            if !this.alive {
                return Ok(());
            }
            match this.phase {
                Phase::Standing(wave) => match this.inbox.pop_front() {
                    Some(ToRank::Drain(number)) if number == wave => {
                        let moved = self.drain(process)?;
                        self.tell_agent(process, ToAgent::Drained(wave, moved));
                    }
                    Some(ToRank::Go(number)) if number == wave => self.copy(process, wave)?,
                    Some(ToRank::Abandon(number)) if number == wave => {
                        self.tell_agent(process, ToAgent::Refused(wave));
                        self.go_on(process);
                    }
                    // About another wave.
                    Some(_) => {}
                    None => return Ok(()),
                },
                Phase::Ready => match this.inbox.pop_front() {
                    Some(ToRank::Go(0)) => self.go_on(process),
                    Some(_) => {}
                    None => return Ok(()),
                },
                _ => return Ok(()),
            }
        }
    }

    fn go_on(&mut self, process: usize) {
        self.processes[process].phase = Phase::Running;
        self.step_again(process);
    }

    /// Takes everything in the channels to this rank; returns how many pieces.
    fn drain(&mut self, process: usize) -> Result<u64, Violation> {
        let rank = self.processes[process].rank as usize;
        let mut moved = 0;
        for source in 0..self.size {
            if self.is(Mutation::LeaveWhatEndedRanksSent) && self.has_ended(process, source) {
                continue;
            }
            while !self.transit.channels[source][rank].is_empty(self.now) {
                self.take_piece(process, source)?;
                moved += 1;
            }
        }
        if moved > 0 {
            self.announce(process);
        }
        Ok(moved)
    }

    /// Copies itself and goes on, whatever the others do.
    fn cut(&mut self, process: usize, wave: u64) {
        let this = &mut self.processes[process];
        this.memory.cut.cut(wave);
        let (rank, cut) = (this.rank as usize, this.memory.cut);
        for other in 0..self.size {
            self.transit.channels[rank][other].note_sender(&cut);
            self.transit.channels[other][rank].note_receiver(&cut);
        }
        self.copy_now(process, wave);
    }

    /// The rank has left MPI, as the node of this process knows, and will not come back before all return.
    fn has_ended(&self, process: usize, rank: usize) -> bool {
        let is_known = match self.nodes.linked {
            true => self.words(process).ends.contains(&(rank as Rank)),
            false => self.agent.finished[rank],
        };
        self.agent.plan().ends_count && is_known
    }

    fn copy(&mut self, process: usize, wave: u64) -> Result<(), Violation> {
        let this = &self.processes[process];
        let (rank, memory) = (this.rank, &this.memory);
        // Who has ended announces nothing, and has sent all that it will.
        let has_taken = |source: usize| memory.taken[source] == self.announced(source, rank as usize);
        let drained = (0..self.size).all(|source| has_taken(source) || self.has_ended(process, source));
        let unchecked = [
            Mutation::DrainOnce,
            Mutation::CopyUndrained,
            Mutation::DrainBeforeAllStand,
            Mutation::RunWhileDraining,
            Mutation::NoNotice,
        ];
        if !drained && !unchecked.iter().any(|mutation| self.is(*mutation)) {
            return violation(DRAINED, format!("{rank} lacks messages at its copy for wave {wave}"));
        }
        self.copy_now(process, wave);
        self.go_on(process);
        Ok(())
    }

    fn copy_now(&mut self, process: usize, wave: u64) {
        let this = &self.processes[process];
        let (rank, mut memory) = (this.rank, this.memory.clone());
        let (node, serial) = (this.node, this.serial);
        if self.is(Mutation::CopyWithoutWaiting) {
            memory.waiting.clear();
        }
        if self.is(Mutation::CopyWithoutFilling) {
            memory.filling.fill(None);
        }
        if self.is(Mutation::CopyWithoutBuffer) {
            memory.waiting.retain(|message| !message.is_copied);
            memory.buffer = Buffer::new(1, usize::MAX, BUFFERED);
        }
        self.note(|| format!("{rank} copies itself for wave {wave}"));
        self.checkers.copied(rank, wave);
        self.snapshots.push(Snapshot {
            rank,
            node,
            serial,
            wave,
            memory,
            alive: true,
            under_way: true,
            heard: 0,
            mute: false,
        });
        let copy = self.snapshots.len() - 1;
        self.processes[process].telling = true;
        let after = self.soon(self.pace.latency);
        self.schedule(after, Event::Tell(process, ToAgent::Taken(wave, copy)));
    }

    /// A copy makes a process.
    pub(super) fn wake(&mut self, copy: usize, generation: u64, life: u64) {
        let Snapshot { rank, node, alive, .. } = self.snapshots[copy];
        if !alive {
            return;
        }
        let memory = self.snapshots[copy].memory.clone();
        let process = self.new_process(rank, generation, Phase::Waking, memory, node);
        self.processes[process].life = life;
        self.note(|| format!("{rank} is made again as process {process}"));
        let (told, grouped) = (self.soon(self.pace.latency), self.soon(self.pace.latency));
        let rewound = grouped + self.soon(self.pace.latency);
        let closed = if self.is(Mutation::CloseBeforeRewinding) {
            told
        } else {
            told.max(rewound)
        };
        self.snapshots[copy].heard = self.now + closed;
        self.schedule(told, Event::Woken(copy, process));
        self.schedule(grouped, Event::Grouped(process));
        self.schedule(rewound, Event::Rewind(process));
    }

    /// Restores the rank's part of the node memory to the wave: where waves stop all, its channels were empty then.
    /// Otherwise the agent has put the transit into them.
    pub(super) fn rewind(&mut self, process: usize) -> Result<(), Violation> {
        let this = &mut self.processes[process];
        if !this.alive {
            return Ok(());
        }
        let (rank, generation) = (this.rank, this.generation);
        this.phase = Phase::Ready;
        self.checkers.returned(rank, generation)?;
        if !self.non_blocking && !self.is(Mutation::KeepLostFuture) {
            self.transit.channels[rank as usize]
                .iter_mut()
                .for_each(|channel| channel.restart(Vec::new()));
        }
        self.note(|| format!("{rank} is as it was at the wave"));
        if self.is(Mutation::RunWhenWoken) {
            self.go_on(process);
        }
        self.tell_agent(process, ToAgent::Ready);
        if self.processes[process].given_up {
            self.dies(process);
        }
        Ok(())
    }
}

//! One rank: what its node keeps for it, what its present life holds, and its next step.

use std::collections::VecDeque;

use resurgo_protocol::causal::{Collection, Event};
use resurgo_protocol::hierarchical::Kept;
use resurgo_protocol::{Arrival, Causal, Next, Rank, Sending, Tolerate};

use crate::checkers::{COLLECTED, NO_ORPHAN, Violation, violation};
use crate::gathering::Looking;
use crate::image::Image;
use crate::kept::KeptImages;
use crate::log::{Cursor, Entry, Log, Moving, Record};
use crate::mutation::Mutation;
use crate::program::{Action, Message, Program};
use crate::subject::Subject;
use crate::world::{self, World};

/// Most deliveries of one completion-queue read, as MPICH asks for.
const READ_ENTRIES: u64 = 8;

/// A message that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub ssn: u64,
    pub tag: u32,
    pub content: u64,
    /// Deliveries that the sender had made.
    pub after: u64,
}

/// A life that runs its program.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub subject: Subject,
    pub program: Program,
    /// Deliveries of the read under way.
    pub read: Option<u64>,
    /// Deliveries that any event logger has acknowledged or given to this life.
    pub acknowledged: u64,
    /// Deliveries sent to the present event logger.
    pub logged: u64,
    /// Per destination: what its log keeps, where it is in the same group (hierarchical).
    pub kept: Vec<Kept>,
}

impl Life {
    /// The event logger is lost; deliveries dropped from the record stay stable.
    pub fn lose_logger(&mut self, dropped: u64) {
        self.subject.event_logger_lost();
        self.subject.acknowledge(dropped);
    }
}

/// A life that asks what it must repeat (only where node memory is lost).
#[derive(Debug)]
pub(crate) struct Recovery {
    /// The image that it begins from; none: the beginning of the program.
    pub image: Option<Box<Image>>,
    /// The event logger is asked for the deliveries above this.
    pub above: Cursor,
    /// Epoch of the event logger that gave the record.
    pub record_from: Option<u64>,
    /// Per rank, the messages of this rank that it has seen.
    pub seen: Vec<Option<u64>>,
    /// Ranks that asked before the record was known.
    pub asked: Vec<Rank>,
    /// Causal logging: collects what others know.
    pub collection: Option<Box<Collection>>,
    /// Causal logging: epoch of the event logger that has answered; 0: none.
    pub answered: u64,
    /// Looks at what others know.
    pub looking: Option<Box<Looking>>,
    /// What it will know, where nodes have told that.
    pub begun: Option<Box<Causal>>,
}

impl Recovery {
    /// A life without any answer, in a job of `size` ranks.
    pub fn new(size: usize, image: Option<Box<Image>>, above: Cursor, collection: Option<Box<Collection>>) -> Self {
        Self {
            image,
            above,
            record_from: None,
            seen: vec![None; size],
            asked: Vec::new(),
            collection,
            answered: 0,
            looking: None,
            begun: None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum State {
    Down,
    Recovering(Recovery),
    Up(Box<Life>),
}

/// One rank and its node.
#[derive(Debug)]
pub(crate) struct Process {
    pub rank: Rank,
    pub incarnation: u64,
    pub state: State,
    pub finished: bool,
    /// It has finished, its process is gone, and the coordinator knows. Its state is that of its end.
    pub has_left: bool,
    /// Per destination. Survives the process, not the node.
    pub logs: Vec<Log>,
    /// Survives the process, not the node.
    pub record: Record,
    /// Per source, arrived messages that are not delivered.
    pub incoming: Vec<VecDeque<Frame>>,
    /// Per rank, its latest known life.
    pub peers: Vec<u64>,
    /// Per destination, the last message that need not be sent (again).
    pub pushed: Vec<u64>,
    /// Per destination, the messages that any life has made visible. Survives the process.
    pub sent_ever: Vec<u64>,
    /// Per source, delivered messages, as the sender may see them. Survives the process.
    pub consumed: Vec<u64>,
    /// The record was lost with the node: the next life gets it from the event logger.
    pub record_lost: bool,
    /// Per source, the messages in the record when a life knew it, as others can read it; none since a loss.
    pub counts: Option<Vec<u64>>,
    /// The knowledge of the last life that began, where others can still read it; and whether that is the present life,
    /// which has ended.
    pub left_behind: Vec<Event>,
    pub has_told: bool,
    /// What it has to do with lost nodes, under causal logging.
    pub moving: Moving,
    /// How often a life has told what it knows before it began.
    pub told: u64,
    /// Per rank, its last delivery that was known at the last image (causal logging). Survives the process.
    pub noted: Vec<u64>,
    /// The event logger this life is connected to; 0: none.
    pub logger_epoch: u64,
    /// Per life that has ended, the time after which its messages still on their way are lost.
    pub cuts: Vec<u64>,
    pub images: KeptImages<Image>,
    pub image_wanted: bool,
    /// Images still to be taken at the end of the run, where they are taken alone.
    pub images_due: usize,
    /// Where they are taken in waves: the first that is taken at the end of the run.
    pub last_waves: u64,
}

impl Process {
    pub fn new(rank: Rank, size: usize, life: Life) -> Self {
        let state = State::Up(Box::new(life));
        Self {
            state,
            incarnation: 1,
            peers: vec![1; size],
            ..Self::lost(rank, size)
        }
    }

    /// The rest of a rank when its node is gone.
    pub fn lost(rank: Rank, size: usize) -> Self {
        Self {
            rank,
            incarnation: 0,
            state: State::Down,
            finished: false,
            has_left: false,
            logs: vec![Log::default(); size],
            record: Record::new(Cursor::beginning(size), Vec::new()),
            incoming: vec![VecDeque::new(); size],
            peers: vec![0; size],
            pushed: vec![0; size],
            sent_ever: vec![0; size],
            consumed: vec![0; size],
            record_lost: false,
            counts: Some(vec![0; size]),
            left_behind: Vec::new(),
            has_told: false,
            moving: Moving::default(),
            told: 0,
            noted: vec![0; size],
            logger_epoch: 0,
            cuts: Vec::new(),
            images: KeptImages::default(),
            image_wanted: false,
            images_due: 0,
            last_waves: 0,
        }
    }

    pub fn life(&mut self) -> Option<&mut Life> {
        match &mut self.state {
            State::Up(life) => Some(life),
            _ => None,
        }
    }

    pub fn recovery(&mut self) -> Option<&mut Recovery> {
        match &mut self.state {
            State::Recovering(recovery) => Some(recovery),
            _ => None,
        }
    }

    /// It runs, in life `incarnation`.
    pub fn is_life(&self, incarnation: u64) -> bool {
        self.incarnation == incarnation && self.is_up()
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// Whether a message of life `incarnation` that would arrive `now` was lost when that life ended.
    pub fn is_cut(&self, incarnation: u64, now: u64) -> bool {
        self.cuts.get(incarnation as usize - 1).is_some_and(|cut| now > *cut)
    }

    /// The record is known: the rank can answer questions.
    pub fn knows_record(&self) -> bool {
        match &self.state {
            State::Down => false,
            State::Recovering(recovery) => recovery.record_from.is_some(),
            State::Up(_) => true,
        }
    }

    pub fn delivered(&self, source: Rank) -> u64 {
        match &self.state {
            State::Up(life) => life.subject.delivered(source),
            State::Recovering(Recovery { image: Some(image), .. }) => image.life.subject.delivered(source),
            _ => 0,
        }
    }

    /// Messages from `source` that this life holds without a gap.
    pub fn have(&self, source: Rank) -> u64 {
        let mut have = self.delivered(source);
        for frame in &self.incoming[source as usize] {
            if frame.ssn == have + 1 {
                have += 1;
            }
        }
        have
    }
}

impl World {
    /// Rank `rank` takes its next step; its next but one is scheduled unless it has finished.
    pub(crate) fn step(&mut self, rank: Rank) -> Result<(), Violation> {
        if self.waves.is_none() {
            self.consider_image(rank);
        } else if self.stands_still(rank) {
            return Ok(());
        }
        self.tidy_inside(rank);
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else {
            return Ok(());
        };
        match life.read {
            Some(deliveries) => self.continue_read(rank, deliveries)?,
            None => match life.program.advance() {
                Action::Done => {
                    process.finished = true;
                    self.log_deliveries(rank);
                    self.note(|| format!("{rank} finishes"));
                    self.refuse_wave(rank);
                    self.may_leave(rank);
                    if self.imaging.closing && self.waves.is_none() {
                        // A node that was to leave may have had an image of it before.
                        self.wants_last_images(rank);
                    }
                    return Ok(());
                }
                Action::Read => {
                    life.subject.begin_poll();
                    life.read = Some(0);
                    self.checkers.read(rank);
                }
                Action::Send { to, tag, content } => self.send(rank, to, tag, content)?,
            },
        }
        if self.rules.tolerate == Tolerate::Node && self.random.one_in(2) {
            self.log_deliveries(rank);
        }
        self.print(rank);
        let incarnation = self.ranks[rank as usize].incarnation;
        let pause = 1 + self.random.below(self.pace.step);
        self.schedule(pause, world::Event::Step { rank, incarnation });
        Ok(())
    }

    fn continue_read(&mut self, rank: Rank, deliveries: u64) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else {
            return Ok(());
        };
        let quiet = (process.image_wanted || process.images.asked.is_some()) && self.imaging.quiet;
        let next = match life.subject.next() {
            _ if deliveries == READ_ENTRIES => Next::Nothing,
            Next::NeedRecord => {
                let rclock = life.subject.rclock() + 1;
                let Some(record) = process.record.get(rclock) else {
                    return violation(COLLECTED, format!("delivery {rclock} of {rank} is not in its record"));
                };
                life.subject.expect(record);
                life.subject.next()
            }
            next => next,
        };
        let source = match next {
            Next::From(source) if self.available(rank, source) => Some(source),
            // The read lasts until the message comes.
            Next::From(_) => return Ok(()),
            // To reach a moment for an image.
            Next::Any if quiet => None,
            Next::Any if deliveries == 0 || !self.random.one_in(3) => self.any_available(rank),
            _ => None,
        };
        match source {
            Some(source) => self.deliver(rank, source),
            None => {
                if let Some(life) = self.ranks[rank as usize].life() {
                    life.program.read_ends(deliveries);
                    life.read = None;
                }
                Ok(())
            }
        }
    }

    fn any_available(&mut self, rank: Rank) -> Option<Rank> {
        let size = self.ranks.len() as u64;
        let first = self.random.below(size);
        (0..size)
            .map(|step| ((first + step) % size) as Rank)
            .find(|source| self.available(rank, *source))
    }

    /// Whether the next message from `source` is here; drops unwanted ones before it.
    fn available(&mut self, rank: Rank, source: Rank) -> bool {
        let delivered = self.ranks[rank as usize].delivered(source);
        if self.rules.memory_survives {
            return delivered < self.wires[source as usize][rank as usize].revealed;
        }
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else {
            return false;
        };
        let incoming = &mut process.incoming[source as usize];
        while let Some(frame) = incoming.front() {
            match life.subject.accepts(source, frame.ssn) {
                Arrival::Next => return true,
                // Missing messages before an early one come again, and so does this one.
                Arrival::Duplicate | Arrival::Early => incoming.pop_front(),
            };
        }
        false
    }

    fn deliver(&mut self, rank: Rank, source: Rank) -> Result<(), Violation> {
        let frame = if self.rules.memory_survives {
            let ssn = self.ranks[rank as usize].delivered(source) + 1;
            let Some(entry) = self.ranks[source as usize].logs[rank as usize].get(ssn) else {
                return violation(
                    COLLECTED,
                    format!("message {ssn} from {source} to {rank} is not in the log"),
                );
            };
            Some(Frame {
                ssn,
                tag: entry.tag,
                content: entry.content,
                after: entry.after,
            })
        } else {
            self.ranks[rank as usize].incoming[source as usize].pop_front()
        };
        if let (Some(frame), true, true) = (frame, self.rules.memory_survives, self.rules.causal.is_some()) {
            let carried = self.wires[source as usize][rank as usize].carried[frame.ssn as usize - 1].clone();
            self.absorb(rank, source, &carried)?;
        }
        let process = &mut self.ranks[rank as usize];
        let (State::Up(life), Some(frame)) = (&mut process.state, frame) else {
            return Ok(());
        };
        let (determinant, new) = life.subject.deliver(source, frame.after);
        if let Some(error) = life.subject.orphan {
            return violation(NO_ORPHAN, error.to_string());
        }
        if new {
            process.record.push(determinant.recorded());
        }
        life.read = life.read.map(|deliveries| deliveries + 1);
        process.consumed[source as usize] = frame.ssn;
        let message = Message {
            source,
            tag: frame.tag,
            content: frame.content,
        };
        life.program.deliver(message);
        self.note(|| {
            let again = if new { "" } else { " again" };
            format!(
                "{rank} delivers{again} {} = {source}→{rank} #{}",
                determinant.rclock, frame.ssn
            )
        });
        self.checkers.deliver(rank, frame.ssn, message)
    }

    fn send(&mut self, rank: Rank, to: Rank, tag: u32, content: u64) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else {
            return Ok(());
        };
        let sending = life.subject.send(to);
        let after = life.subject.rclock();
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        self.note(|| format!("{rank} sends {rank}→{to} #{ssn}: {sending:?}"));
        self.checkers.send(rank, to, ssn, tag, content)?;
        let (append, shift) = (self.is(Mutation::AppendDropped), self.is(Mutation::CompareShifted));
        let process = &mut self.ranks[rank as usize];
        process.sent_ever[to as usize] = process.sent_ever[to as usize].max(ssn);
        let log = &mut process.logs[to as usize];
        if matches!(sending, Sending::Redo { .. }) {
            let former = log.get(if shift { ssn + log.dropped() } else { ssn });
            if former.is_some_and(|former| (former.tag, former.content) != (tag, content)) {
                return violation("same history", format!("the log of {rank}→{to} differs at {ssn}"));
            }
            if former.is_some() || ssn <= log.dropped() && !append {
                return Ok(());
            }
        }
        if log.end() + 1 != ssn {
            return violation(
                "exactly once, in order",
                format!("{rank}→{to} #{ssn} follows #{}", log.end()),
            );
        }
        log.push(Entry {
            tag,
            content,
            after,
            released: false,
        });
        match sending {
            Sending::Hold { .. } => Ok(()),
            Sending::Now { .. } | Sending::Redo { .. } => self.publish(rank, to, ssn),
        }
    }
}

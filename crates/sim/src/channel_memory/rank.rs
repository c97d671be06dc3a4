//! A rank: its input, the beginning of its life, and the steps of its program.

use std::collections::VecDeque;

use resurgo_protocol::channel_memory::{Departures, memory_of};
use resurgo_protocol::{Next, Rank, Recorded, Sending, Tolerate};

use super::image::Image;
use super::{Content, Event, Life, READ_ENTRIES, Served, ToMemory, ToRank, World};
use crate::checkers::{COLLECTED, SAME_HISTORY, Violation, violation};
use crate::mutation::Mutation;
use crate::program::{Action, Message};
use crate::subject::Subject;

impl World {
    pub(super) fn rank_hears(&mut self, memory: usize, rank: Rank, frame: ToRank) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        match frame {
            ToRank::Welcome(admission) => {
                process.welcomes[memory] = Some(admission);
                let own = memory_of(rank, process.welcomes.len());
                let early = self.is(Mutation::BeginEarly) && self.ranks[rank as usize].welcomes[own].is_some();
                let process = &self.ranks[rank as usize];
                if process.life.is_none() && (early || process.welcomes.iter().all(Option::is_some)) {
                    self.begin(rank)?;
                }
            }
            ToRank::Served(message) => process.inbox.push_back(message),
            ToRank::Synced => self.synced(rank),
            ToRank::Acknowledge(rclock) => {
                if let Some(life) = &mut process.life {
                    life.departures.acknowledge(rclock);
                    self.checkers.acknowledged(rank, rclock)?;
                    self.release(rank);
                }
            }
        }
        Ok(())
    }

    /// All memories have answered: the life begins to run.
    fn begin(&mut self, rank: Rank) -> Result<(), Violation> {
        let (size, memories) = (self.ranks.len(), self.memories.len());
        let own = memory_of(rank, memories);
        let process = &self.ranks[rank as usize];
        let incarnation = process.incarnation;
        let mut sent_before = vec![0; size];
        for (to, received) in process.welcomes.iter().flatten().flat_map(|welcome| &welcome.received) {
            sent_before[*to as usize] = *received;
        }
        let reported = process.welcomes[own].as_ref().map_or(0, |welcome| welcome.reported);
        let forgotten = self.memories[own].forgotten(rank);
        let record: Vec<Recorded> = (forgotten + 1..=reported)
            .filter_map(|rclock| self.memories[own].delivery(rank, rclock))
            .collect();
        let from = self.ranks[rank as usize].from.take();
        if incarnation > 1 {
            let standing = from.as_ref().map(|image| &image.standing);
            self.checkers.begins_from(rank, standing)?;
            self.checkers.recover(rank, standing, forgotten, &record)?;
            // No read is under way in an image.
            let next = standing.and_then(|image| Some((image, self.memories[own].delivery(rank, image.rclock() + 1)?)));
            if let Some((image, next)) = next.filter(|(image, next)| image.reads() >= next.polls) {
                let (reads, rclock) = (image.reads(), image.rclock());
                let what = format!("{rank} has made {reads} reads since delivery {rclock}, the next is in {next:?}");
                return violation(SAME_HISTORY, what);
            }
            self.checkers.life_starts(rank, standing, &sent_before)?;
        }
        self.note(|| format!("{rank} has joined, {reported} deliveries are known"));
        let life = match from {
            Some(image) => self.restore(rank, image, own, reported, sent_before),
            None => Life {
                subject: Subject::recovering(rank, size, Tolerate::Process, self.mutation, reported, sent_before),
                program: self.job.start(rank),
                departures: Departures::new(own, reported),
                read: None,
                held: VecDeque::new(),
            },
        };
        self.ranks[rank as usize].life = Some(Box::new(life));
        // What a former life was about to allow.
        let delay = self.random.below(self.image_time);
        self.schedule(delay, Event::Collect(rank, incarnation));
        self.schedule(0, Event::Step(rank, incarnation));
        Ok(())
    }

    /// The life goes on from its image. Messages served to it since its last delivery are served again.
    fn restore(&mut self, rank: Rank, image: Image, own: usize, reported: u64, sent_before: Vec<u64>) -> Life {
        let mut life = image.life;
        life.subject.restored(reported, sent_before);
        if !self.is(Mutation::DeparturesOfImage) {
            life.departures = Departures::new(own, reported);
        }
        life.held.clear();
        if self.is(Mutation::KeepServed) {
            let inbox = &mut self.ranks[rank as usize].inbox;
            image
                .inbox
                .into_iter()
                .rev()
                .for_each(|served| inbox.push_front(served));
        }
        life
    }

    fn release(&mut self, rank: Rank) {
        while let Some(life) = &mut self.ranks[rank as usize].life
            && life.departures.release().is_some()
            && let Some((memory, frame)) = life.held.pop_front()
        {
            if !self.is(Mutation::ForgetHeld) {
                self.tell_memory(memory, rank, frame);
            }
        }
    }

    pub(super) fn step(&mut self, rank: Rank) -> Result<(), Violation> {
        let incarnation = self.ranks[rank as usize].incarnation;
        let stands_still = self.ranks[rank as usize].to_sync > 0;
        if stands_still || self.consider_image(rank) {
            let pause = 1 + self.random.below(self.pace);
            self.schedule(pause, Event::Step(rank, incarnation));
            return Ok(());
        }
        let process = &mut self.ranks[rank as usize];
        let Some(life) = &mut process.life else {
            return Ok(());
        };
        match life.read {
            Some(deliveries) => self.continue_read(rank, deliveries)?,
            None => match life.program.advance() {
                Action::Done => {
                    // It ends when memories have all that it has sent.
                    if life.held.is_empty() && process.under_way == 0 {
                        process.finished = true;
                        self.note(|| format!("{rank} finishes"));
                        return Ok(());
                    }
                }
                Action::Read => {
                    life.subject.begin_poll();
                    life.read = Some(0);
                    self.checkers.read(rank);
                }
                Action::Send { to, tag, content } => self.send(rank, to, tag, content)?,
            },
        }
        let pause = 1 + self.random.below(self.pace);
        self.schedule(pause, Event::Step(rank, incarnation));
        Ok(())
    }

    fn continue_read(&mut self, rank: Rank, deliveries: u64) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let Some(life) = &mut process.life else { return Ok(()) };
        let here = process.inbox.front().copied();
        let next = match life.subject.next() {
            _ if deliveries == READ_ENTRIES => Next::Nothing,
            Next::NeedRecord => {
                // The read lasts until the message comes.
                let Some(Served { source, polls, .. }) = here else {
                    return Ok(());
                };
                let Some(polls) = polls else {
                    return violation(COLLECTED, format!("a delivery of {rank} comes without its read"));
                };
                life.subject.expect(Recorded { source, polls });
                life.subject.next()
            }
            next => next,
        };
        let stops = deliveries > 0 && self.random.one_in(3);
        match (next, here) {
            (Next::From(_), Some(message)) => self.deliver(rank, message),
            (Next::From(_), None) => Ok(()),
            (Next::Any, Some(message)) if !stops => self.deliver(rank, message),
            _ => {
                if let Some(life) = &mut self.ranks[rank as usize].life {
                    life.program.read_ends(deliveries);
                    life.read = None;
                }
                Ok(())
            }
        }
    }

    fn deliver(&mut self, rank: Rank, served: Served) -> Result<(), Violation> {
        let memory = memory_of(rank, self.memories.len());
        let process = &mut self.ranks[rank as usize];
        process.inbox.pop_front();
        let Some(life) = &mut process.life else { return Ok(()) };
        let (determinant, new) = life.subject.deliver(served.source, 0);
        life.read = life.read.map(|deliveries| deliveries + 1);
        let message = Message {
            source: served.source,
            tag: served.content.tag,
            content: served.content.value,
        };
        life.program.deliver(message);
        let (rclock, ssn) = (determinant.rclock, served.content.ssn);
        self.note(|| format!("{rank} delivers {rclock} = {}→{rank} #{ssn}", served.source));
        self.checkers.deliver(rank, ssn, message)?;
        if new {
            let polls = determinant.polls;
            let report = ToMemory::Report { rclock, polls };
            if self.is(Mutation::ReportLate) {
                let before = self.ranks[rank as usize].late.replace(report);
                if let Some(before) = before {
                    self.tell_memory(memory, rank, before);
                }
            } else {
                self.tell_memory(memory, rank, report);
            }
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank, to: Rank, tag: u32, value: u64) -> Result<(), Violation> {
        let memory = memory_of(to, self.memories.len());
        let leaves_unreported = self.is(Mutation::LeaveUnreported);
        let Some(life) = &mut self.ranks[rank as usize].life else {
            return Ok(());
        };
        let sending = life.subject.send(to);
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        let rclock = life.subject.rclock();
        let content = Content { ssn, tag, value };
        let frame = ToMemory::Message {
            destination: to,
            content,
        };
        let leaves = life.departures.may_leave(memory, rclock);
        if !leaves && !leaves_unreported {
            life.held.push_back((memory, frame));
        }
        self.note(|| format!("{rank} sends {rank}→{to} #{ssn}: {sending:?}, leaves: {leaves}"));
        self.checkers.send(rank, to, ssn, tag, value)?;
        if leaves || leaves_unreported {
            self.tell_memory(memory, rank, frame);
        }
        if let Some(late) = self.ranks[rank as usize].late.take() {
            self.tell_memory(memory_of(rank, self.memories.len()), rank, late);
        }
        Ok(())
    }
}

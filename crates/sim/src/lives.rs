//! Later lives of ranks: what each finds, and how it begins.

use resurgo_protocol::hierarchical::Kept;
use resurgo_protocol::{Causal, Rank, Tolerate};

use crate::checkers::Violation;
use crate::image::Image;
use crate::log::{Cursor, Log};
use crate::mutation::Mutation;
use crate::process::{Life, Process, Recovery, State};
use crate::subject::Subject;
use crate::world::{Event, World};

impl World {
    /// The process of `rank` is gone. Some time later its next one is there.
    pub(crate) fn take_down(&mut self, rank: Rank) {
        self.checkers.crash(rank);
        let cut = self.now + self.random.below(3 * self.pace.latency);
        let pause = 1 + self.random.below(self.pace.repair);
        let size = self.ranks.len();
        let process = &mut self.ranks[rank as usize];
        process.leave_behind();
        process.state = State::Down;
        process.finished = false;
        process.cuts.push(cut);
        process.logger_epoch = 0;
        process.image_wanted = false;
        if !self.rules.memory_survives {
            let former = std::mem::replace(process, Process::lost(rank, size));
            *process = Process {
                incarnation: former.incarnation,
                cuts: former.cuts,
                images: former.images,
                ..Process::lost(rank, size)
            };
        }
        self.schedule(pause, Event::Restart { rank });
    }

    pub(crate) fn restart(&mut self, rank: Rank) -> Result<(), Violation> {
        let size = self.ranks.len();
        let process = &mut self.ranks[rank as usize];
        process.incarnation += 1;
        process.peers[rank as usize] = process.incarnation;
        let incarnation = process.incarnation;
        self.note(|| format!("{rank} restarts as incarnation {incarnation}"));
        // Messages of the new life may overtake those of the old one on the wires.
        self.logging.to[rank as usize] = 0;
        self.logging.from[rank as usize] = 0;
        let image = self.find_image(rank);
        self.goes_on()?;
        if self.logging.lost.is_some() {
            return Ok(());
        }
        if !self.rules.memory_survives {
            for to in 0..size {
                self.wires[rank as usize][to].last_arrival = 0;
            }
            let process = &mut self.ranks[rank as usize];
            let mut above = match &process.images.complete[..] {
                [(_, older), _] => older.cursor(),
                // Perhaps nothing was dropped.
                _ => Cursor::beginning(size),
            };
            if let Some(image) = &image {
                process.logs.clone_from(&image.logs);
                if self.mutation == Some(Mutation::AskAboveImage) {
                    above = image.cursor();
                }
            }
            let collection = self.begin_collection(rank, image.as_deref());
            let standing = image.as_ref().map(|image| &image.standing);
            self.checkers.begins_from(rank, standing)?;
            let collects = collection.is_some();
            self.ranks[rank as usize].state = State::Recovering(Recovery::new(size, image, above, collection));
            self.connect_logger(rank);
            if collects {
                self.ask_all(rank);
            }
            return Ok(());
        }
        if self.moves() {
            return self.begin_on_nodes(rank, image);
        }
        if !self.rules.record_survives {
            return self.begin_gathering(rank, image);
        }
        if self.is(Mutation::CutWhenRestarted) {
            self.cut(rank, self.ranks[rank as usize].images.from);
        }
        let process = &mut self.ranks[rank as usize];
        // Held entries are not part of the history: this life may send other messages there.
        process.logs.iter_mut().for_each(Log::drop_held);
        let mut sent_before: Vec<u64> = process.logs.iter().map(Log::end).collect();
        self.sent_inside(rank, &mut sent_before);
        let process = &mut self.ranks[rank as usize];
        let standing = image.as_ref().map(|image| &image.standing);
        let record = &process.record;
        self.checkers
            .recover(rank, standing, record.base.rclock, record.entries())?;
        self.checkers.life_starts(rank, standing, &sent_before)?;
        // The record is what was made, perhaps more than the event logger has acknowledged.
        let vouched = self.is(Mutation::TrustOwnRecord);
        self.begin_life(rank, image, sent_before, vouched, None);
        self.connect_logger(rank);
        Ok(())
    }

    /// A later life begins to run its program. `vouched`: the event logger has all its record.
    pub(crate) fn begin_life(
        &mut self,
        rank: Rank,
        image: Option<Box<Image>>,
        sent_before: Vec<u64>,
        vouched: bool,
        causal: Option<Causal>,
    ) {
        let size = self.ranks.len();
        let tolerate = if causal.is_some() {
            Tolerate::Process
        } else {
            self.rules.tolerate
        };
        let process = &mut self.ranks[rank as usize];
        let deliveries = process.record.end();
        let mut life = match image {
            Some(image) => {
                let mut life = image.life;
                life.subject.restored(deliveries, sent_before);
                life
            }
            None => Life {
                subject: Subject::recovering(rank, size, tolerate, self.mutation, deliveries, sent_before),
                program: self.job.start(rank),
                read: None,
                acknowledged: 0,
                logged: 0,
                kept: vec![Kept::default(); size],
            },
        };
        if !vouched {
            life.lose_logger(process.record.base.rclock);
        }
        life.acknowledged = deliveries;
        life.logged = life.subject.first_unacknowledged() - 1;
        if causal.is_some() {
            life.subject.causal = causal;
            // The logger compares what it has already.
            life.logged = process.record.base.rclock;
        }
        process.state = State::Up(Box::new(life));
        let incarnation = process.incarnation;
        let process_connected = process.logger_epoch != 0;
        self.crashes.provoked = Some(rank);
        if self.rules.causal.is_some() && process_connected {
            self.tell_logger_base(rank, 0);
        }
        self.log_deliveries(rank);
        self.schedule(0, Event::Step { rank, incarnation });
        self.resume_collection(rank);
    }
}

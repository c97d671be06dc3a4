//! Process images: when they are taken, which are kept, and what others may drop because of them.
//!
//! A rank takes images alone. An image counts from the moment it is complete. It may become complete after the end of
//! its life, but not after the beginning of the next, which may differ where nothing was dictated. For the same
//! reason an image that a recovery passes over is gone for good.
//!
//! The last two are kept, and a recovery may find the newer one destroyed. So everything up to the older one is
//! dropped, in this order: from the rank's own record, whose beginning the others see; later from its senders' logs
//! and the event logger. With one image, a recovery may still begin at the beginning, and nothing is dropped.
//!
//! Where node memory is lost, the image carries the logs too: the restored life does not make those messages again.

use resurgo_protocol::coordinator::{From, KEPT as KEPT_IMAGES};
use resurgo_protocol::{Causal, Fact, Rank};

use crate::checkers::{KEPT, Standing, Violation, violation};
use crate::log::{Cursor, Log};
use crate::logger::ToLogger;
use crate::mutation::Mutation;
use crate::network::Body;
use crate::process::{Life, State};
use crate::world::{Event, World};

/// A rank's process as it was.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub life: Life,
    /// Where node memory is lost: the channels' logs.
    pub logs: Vec<Log>,
    /// What the messages of these logs carry, where logs lie beside files.
    pub carried: Vec<Vec<Vec<u8>>>,
    /// The checkers' state of it.
    pub standing: Standing,
}

impl Image {
    pub fn cursor(&self) -> Cursor {
        let subject = &self.life.subject;
        Cursor {
            rclock: subject.rclock(),
            delivered: (0..self.logs.len() as Rank)
                .map(|source| subject.delivered(source))
                .collect(),
        }
    }
}

impl World {
    /// Perhaps asks for an image; the rank takes it as soon as the protocol allows.
    pub(crate) fn consider_image(&mut self, rank: Rank) {
        let asked = self.imaging.one_in.is_some_and(|n| self.random.one_in(n));
        let process = &mut self.ranks[rank as usize];
        if process.images.writing.is_none() {
            process.image_wanted |= asked;
            self.take_image(rank);
        }
    }

    /// Copies the process for an image.
    pub(crate) fn copy(&mut self, rank: Rank, number: u64) {
        let standing = self.checkers.standing(rank);
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &process.state else { return };
        let mut life = Life::clone(life);
        life.subject.captured();
        if let Some(causal) = &life.subject.causal {
            process.noted = causal.latest().to_vec();
        }
        let mut logs = process.logs.clone();
        if self.rules.memory_survives || self.mutation == Some(Mutation::ImageWithoutLogs) {
            logs = vec![Log::default(); logs.len()];
        }
        let image = Image {
            life,
            carried: vec![Vec::new(); logs.len()],
            logs,
            standing,
        };
        match self.waves {
            Some(_) => process.images.copies.push((number, image)),
            None => process.images.under_way = Some((number, Box::new(image))),
        }
    }

    fn take_image(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &process.state else { return };
        if !process.image_wanted || !life.subject.may_checkpoint() {
            return;
        }
        process.image_wanted = false;
        let incarnation = process.incarnation;
        self.coordinate(Fact::Wanted { unit: rank as usize });
        let delay = 1 + self.random.below(self.imaging.time);
        self.crashes.provoked = Some(rank);
        self.note(|| format!("{rank} begins to write an image"));
        self.schedule(delay, Event::ImageComplete { rank, incarnation });
        if self.is(Mutation::CollectBeforeComplete) {
            self.collect(rank);
        }
    }

    pub(crate) fn complete_image(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let Some(number) = process.images.complete() else {
            return;
        };
        process.images_due = process.images_due.saturating_sub(1);
        self.counts.images += 1;
        self.crashes.provoked = Some(rank);
        self.note(|| format!("the image of {rank} is complete"));
        if self.waves.is_none() {
            self.will_collect(rank);
        }
        self.keep_log(rank, number);
        if !self.is(Mutation::CountUnvouched) {
            self.vouch(rank);
        }
        self.coordinate(Fact::Written { rank, number });
    }

    /// The present life of `rank` soon drops what may be forgotten.
    pub(crate) fn will_collect(&mut self, rank: Rank) {
        let incarnation = self.ranks[rank as usize].incarnation;
        let delay = self.random.below(self.imaging.time);
        self.schedule(delay, Event::Collect { rank, incarnation });
    }

    /// Drops from the record what the older of two images covers, and tells the others.
    pub(crate) fn collect(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        let base = match self.has_end(rank, process.images.forgets()) {
            true => self.cursor_of_end(rank),
            false => process.images.covering(self.mutation).map(Image::cursor),
        };
        let Some(base) = base else { return };
        let newest = process.images.newest();
        let newest = newest.map_or(base.rclock, |image| image.cursor().rclock);
        if !self.is(Mutation::KeepRecords) {
            self.checkers.collects(rank, base.rclock);
            self.note(|| format!("{rank} drops its record up to {}", base.rclock));
            self.ranks[rank as usize].record.drop_to(base);
        }
        self.announce_base(rank);
        if self.ranks[rank as usize].logger_epoch != 0 {
            let early = self.is(Mutation::DropDeterminantsEarly);
            self.tell_logger_base(rank, if early { newest } else { 0 });
        }
    }

    /// A new life continues the drops that a former one began or was allowed.
    pub(crate) fn resume_collection(&mut self, rank: Rank) {
        self.will_collect(rank);
        if self.rules.memory_survives {
            for to in 0..self.ranks.len() as Rank {
                let delay = self.random.below(3 * self.pace.latency);
                self.schedule(delay, Event::DropEntries { from: rank, to });
            }
        }
    }

    /// Senders may drop messages before the beginning of the record of `rank`.
    pub(crate) fn announce_base(&mut self, rank: Rank) {
        for from in 0..self.ranks.len() as Rank {
            if self.rules.memory_survives {
                let delay = self.random.below(3 * self.pace.latency);
                self.schedule(delay, Event::DropEntries { from, to: rank });
            } else if from == rank {
                self.drop_entries(from, rank);
                self.hear_base(rank, rank, self.ranks[rank as usize].record.base.rclock);
            } else {
                let base = &self.ranks[rank as usize].record.base;
                let (covered, base) = (base.delivered[from as usize], base.rclock);
                self.transmit(rank, from, Body::Covered { covered, base });
            }
        }
    }

    /// `from` reads in node memory what it may drop. A rank that is down does it in its next life.
    pub(crate) fn drop_entries(&mut self, from: Rank, to: Rank) {
        if self.is_inside(from, to) {
            return self.tidy(from, to);
        }
        let base = &self.ranks[to as usize].record.base;
        let (covered, rclock) = (base.delivered[from as usize], base.rclock);
        if self.ranks[from as usize].life().is_some() {
            self.covered(from, to, covered);
        }
        self.hear_base(from, to, rclock);
    }

    /// Channel (from → to): the receiver never asks for the first `covered` messages again.
    pub(crate) fn covered(&mut self, from: Rank, to: Rank, covered: u64) {
        if self.is(Mutation::KeepLogs) {
            return;
        }
        let process = &mut self.ranks[from as usize];
        process.logs[to as usize].drop_to(covered);
        let pushed = &mut process.pushed[to as usize];
        if *pushed < covered {
            *pushed = covered;
            self.checkers.rewound(from, to, covered);
        }
        if self.moves() && self.wires[from as usize][to as usize].revealed < covered {
            self.see_anew(from, to);
        }
    }

    /// Tells the event logger where the record begins.
    pub(crate) fn tell_logger_base(&mut self, rank: Rank, at_least: u64) {
        let rclock = self.ranks[rank as usize].record.base.rclock.max(at_least);
        if rclock > 0 && !self.is(Mutation::KeepDeterminants) {
            self.tell_logger(rank, ToLogger::Forget { rclock });
        }
    }

    /// The image that the next life of a crashed rank begins from.
    pub(crate) fn find_image(&mut self, rank: Rank) -> Option<Box<Image>> {
        // All ranks of a group begin from images of one wave, found already.
        if !self.rules.hierarchical {
            if self.random.one_in(3) {
                self.complete_image(rank);
            }
            let destroyed = self.is_destroyed(rank);
            if self.ranks[rank as usize].images.begins.is_none() {
                self.coordinate(Fact::Restart { rank });
            }
            self.destroyed = destroyed.then_some(rank);
            let images = &self.ranks[rank as usize].images;
            let life = images.life;
            if images.begins.is_some_and(|from| !self.is_found(rank, from)) {
                self.coordinate(Fact::NotBegun { rank, life });
            }
        }
        let (life, image) = self.ranks[rank as usize].images.begin();
        let image = image.map(Box::new);
        if self.moves() {
            self.has_read(rank);
        }
        self.coordinate(Fact::Started { rank, life });
        if self.imaging.closing {
            self.wants_last_images(rank);
            self.schedule(1, Event::LastImages { rank });
        }
        if let Some(image) = &image {
            let rclock = image.standing.rclock();
            self.counts.from_images += 1;
            self.note(|| format!("{rank} begins from its image after delivery {rclock}"));
        }
        image
    }

    /// Perhaps the newest file of `rank` is destroyed, which shows when a life reads it.
    pub(crate) fn is_destroyed(&mut self, rank: Rank) -> bool {
        let destroyed = self.random.one_in(4);
        // Where another node has it, too, the life begins from that.
        destroyed && !self.nodes.are() && self.ranks[rank as usize].images.may_lose_newest()
    }

    /// Whether the image for a life is there. If not it is a file, and gone for good.
    pub(crate) fn is_found(&mut self, rank: Rank, from: From) -> bool {
        let is_kept = self.is(Mutation::KeepPassedOver);
        let is_destroyed = self
            .destroyed
            .is_some_and(|destroyed| destroyed == rank || is_kept && self.rules.hierarchical);
        let images = &mut self.ranks[rank as usize].images;
        let newest = images.complete.last().map_or(0, |(number, _)| *number);
        if !is_destroyed || from != From::File(newest) {
            return true;
        }
        if is_kept {
            // A variant uses the one before, without a report.
            let before = images.complete.iter().rev().nth(1);
            images.begins = Some(before.map_or(From::Beginning, |(number, _)| From::File(*number)));
            return true;
        }
        images.complete.pop();
        images.begins = None;
        self.destroyed = None;
        self.counts.fallbacks += 1;
        self.note(|| format!("the newest image of {rank} is destroyed"));
        self.coordinate(Fact::FileLost {
            rank,
            number: newest,
            reason: "it is damaged".to_string(),
        });
        false
    }

    /// Every rank has finished: two more images of each, after which nothing should be kept. Failures may go on.
    pub(crate) fn close(&mut self) {
        self.imaging.closing = true;
        self.imaging.one_in = None;
        self.note(|| "every rank has finished".into());
        for rank in 0..self.ranks.len() as Rank {
            self.ranks[rank as usize].image_wanted = false;
            self.wants_last_images(rank);
            self.schedule(0, Event::LastImages { rank });
        }
    }

    pub(crate) fn wants_last_images(&mut self, rank: Rank) {
        let asked = self.coordinator.asked(rank);
        let process = &mut self.ranks[rank as usize];
        process.images_due = KEPT_IMAGES + usize::from(process.images.writing.is_some());
        // Numbers grow: those of images that are taken alone, too.
        process.last_waves = match self.waves {
            Some(_) => asked + 1,
            None => process.images.last + 1,
        };
    }

    /// `rank` has yet to take images after which nothing is kept. Waves count when all files of them are there.
    pub(crate) fn is_image_due(&self, rank: Rank) -> bool {
        let process = &self.ranks[rank as usize];
        match self.waves {
            Some(_) => process.images.forgets() < process.last_waves,
            // They count when they have come to another node.
            None if self.moves() => process.images.forgets() < process.last_waves,
            None => process.images_due > 0,
        }
    }

    pub(crate) fn last_images(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if process.finished && !self.is_image_due(rank) {
            return;
        }
        if self.waves.is_some() {
            self.last_wave(rank);
        } else if process.finished && process.images.writing.is_none() {
            self.ranks[rank as usize].image_wanted = true;
            self.take_image(rank);
        }
        let pause = 1 + self.random.below(self.imaging.time);
        self.schedule(pause, Event::LastImages { rank });
    }

    /// Every rank has taken its last images, and all others know.
    pub(crate) fn nothing_is_kept(&self) -> Result<(), Violation> {
        for process in &self.ranks {
            let rank = process.rank;
            if let Some(to) = process.logs.iter().position(|log| !log.is_empty()) {
                return violation(KEPT, format!("{rank} still has messages to {to}"));
            }
            if !process.record.entries().is_empty() {
                return violation(KEPT, format!("{rank} still has a record"));
            }
            let logger = self.site(rank).and_then(|site| site.state.as_ref());
            let kept = logger.map_or(Ok(0), |logger| logger.kept(rank));
            if kept != Ok(0) {
                return violation(
                    KEPT,
                    format!("the event logger still has {kept:?} deliveries of {rank}"),
                );
            }
            let State::Up(life) = &process.state else { continue };
            let graph = life.subject.causal.as_ref().map_or(0, Causal::kept);
            if graph > 0 {
                return violation(KEPT, format!("{rank} still knows {graph} events"));
            }
        }
        Ok(())
    }
}

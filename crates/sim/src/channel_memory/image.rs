//! Images of ranks, each alone: before one is taken the channel memories must have all that the rank has sent. The last
//! two are kept, and a recovery may find the newer one destroyed. The rank lets its own memory forget what the older
//! one covers.

use std::time::Duration;

use resurgo_protocol::channel_memory::{ChannelMemory, memory_of};
use resurgo_protocol::coordinator::{From, KEPT as KEPT_IMAGES};
use resurgo_protocol::{Command, Fact, Rank, Tolerate};

use super::{Event, Life, Served, ToMemory, World};
use crate::checkers::{Checkers, KEPT, Standing, Violation, violation};
use crate::kept::{copied, is_live, stopped};
use crate::mutation::Mutation;

/// A rank's process as it was.
#[derive(Debug, Clone)]
pub(super) struct Image {
    pub life: Life,
    /// Messages served and not delivered: of no use later, because they are served again.
    pub inbox: Vec<Served>,
    /// The checkers' state of it.
    pub standing: Standing,
}

impl World {
    /// Reports to the coordinator, and carries out its commands.
    pub(super) fn coordinate(&mut self, fact: Fact) {
        self.coordinator.handle(fact, Duration::from_millis(self.now));
        while let Some(command) = self.coordinator.poll() {
            self.carry_out(&command);
        }
    }

    fn carry_out(&mut self, command: &Command) {
        match *command {
            Command::Survey { number, ref ranks, .. } => {
                for rank in ranks {
                    self.coordinate(is_live(*rank, number));
                }
            }
            Command::Ask { rank, number, .. } => self.ranks[rank as usize].images.asked = Some(number),
            Command::Copy { rank, number } => {
                match self.ranks[rank as usize].images.late.take() {
                    Some(image) if self.is(Mutation::LateImage) => {
                        self.ranks[rank as usize].images.under_way = Some((number, image));
                    }
                    _ => self.copy(rank, number),
                }
                self.coordinate(copied(rank, number, false));
            }
            Command::Dropped { rank, .. } => self.ranks[rank as usize].images.asked = None,
            Command::Kill { rank, life } => self.kill(rank, life),
            Command::Reset => self.begin_anew(),
            Command::Fail(ref cause) => self.failure = Some(cause.to_string()),
            Command::Write { rank, .. }
            | Command::GiveUp { rank, .. }
            | Command::Collect { rank, .. }
            | Command::Forget { rank, .. }
            | Command::Begin { rank, .. } => self.ranks[rank as usize].images.carry_out(command),
            _ => {}
        }
    }

    /// Now and then the images of `rank` are lost with it. Its memory may have forgotten what came before them.
    pub(super) fn lose_images(&mut self, rank: Rank) {
        if self.now % 16 != 7 {
            return;
        }
        self.note(|| format!("the images of {rank} are lost"));
        for (number, _) in std::mem::take(&mut self.ranks[rank as usize].images.complete) {
            let reason = "it is damaged".to_string();
            self.coordinate(Fact::FileLost { rank, number, reason });
        }
    }

    /// The life must end: all ranks begin again.
    fn kill(&mut self, rank: Rank, life: u64) {
        let process = &mut self.ranks[rank as usize];
        if process.up {
            return self.end(rank);
        }
        process.images.begins = None;
        self.coordinate(Fact::NotBegun { rank, life });
    }

    /// All ranks, which are down, begin again at the beginning. Their memories begin anew, and former connections with
    /// what is on its way on them are closed.
    fn begin_anew(&mut self) {
        self.note(|| "all begin".into());
        if !self.is(Mutation::KeepWhenAllBegin) {
            self.memories.fill_with(ChannelMemory::default);
        }
        let processes = self.ranks.iter_mut();
        let cuts = processes.flat_map(|process| process.cuts.iter_mut().flatten());
        cuts.for_each(|cut| *cut = 0);
        let known = Checkers::new(self.ranks.len(), Tolerate::Node, false, false);
        self.checkers.returned(known, true);
    }

    /// Perhaps `rank` stands still for an image, until the memories have all that it has sent.
    pub(super) fn consider_image(&mut self, rank: Rank) -> bool {
        let asked = self.image_one_in.is_some_and(|n| self.random.one_in(n));
        asked && self.stand_still(rank)
    }

    fn stand_still(&mut self, rank: Rank) -> bool {
        let with_held = self.is(Mutation::ImageWithHeldFrames);
        let process = &mut self.ranks[rank as usize];
        let Some(life) = &process.life else { return false };
        let all_has_left = life.departures.held() == 0 || with_held;
        if !life.subject.may_checkpoint() || life.read.is_some() || !all_has_left || process.image_is_under_way() {
            return false;
        }
        let unit = rank as usize;
        self.coordinate(Fact::Wanted { unit });
        if self.is(Mutation::ImageWithoutSync) {
            self.all_stands(rank);
            return false;
        }
        let memories = self.memories.len();
        self.ranks[rank as usize].to_sync = memories;
        self.note(|| format!("{rank} stands still"));
        (0..memories).for_each(|memory| self.tell_memory(memory, rank, ToMemory::Sync));
        true
    }

    /// A memory has all that `rank` had sent; when all have, the process is copied and goes on.
    pub(super) fn synced(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        process.to_sync -= 1;
        if process.to_sync == 0 {
            self.all_stands(rank);
        }
    }

    pub(super) fn all_stands(&mut self, rank: Rank) {
        if let Some(number) = self.ranks[rank as usize].images.asked.take() {
            self.coordinate(stopped(rank, number));
        }
    }

    fn copy(&mut self, rank: Rank, number: u64) {
        let standing = self.checkers.standing(rank);
        let process = &mut self.ranks[rank as usize];
        let Some(life) = &process.life else { return };
        let image = Image {
            life: Life::clone(life),
            inbox: process.inbox.iter().copied().collect(),
            standing,
        };
        process.images.under_way = Some((number, Box::new(image)));
        let incarnation = process.incarnation;
        let delay = 1 + self.random.below(self.image_time);
        self.note(|| format!("{rank} begins to write an image"));
        self.schedule(delay, Event::ImageComplete(rank, incarnation));
        if self.is(Mutation::CollectBeforeComplete) {
            self.collect(rank);
        }
    }

    pub(super) fn complete_image(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let Some(number) = process.images.complete() else {
            return;
        };
        process.images_due = process.images_due.saturating_sub(1);
        let incarnation = process.incarnation;
        self.images += 1;
        self.note(|| format!("the image of {rank} is complete"));
        let delay = self.random.below(self.image_time);
        self.schedule(delay, Event::Collect(rank, incarnation));
        self.coordinate(Fact::Written { rank, number });
    }

    /// Tells the rank's own memory what the older of two images covers.
    pub(super) fn collect(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if process.life.is_none() {
            return;
        }
        let Some(covering) = process.images.covering(self.mutation) else {
            return;
        };
        let rclock = covering.life.subject.rclock();
        if !self.is(Mutation::KeepLogs) {
            let own = memory_of(rank, self.memories.len());
            self.tell_memory(own, rank, ToMemory::Forget { rclock });
        }
    }

    /// The image that the next life of a crashed rank begins from.
    pub(super) fn find_image(&mut self, rank: Rank) -> Option<Image> {
        if self.random.one_in(3) {
            self.complete_image(rank);
        }
        let destroyed = self.random.one_in(4) && self.ranks[rank as usize].images.may_lose_newest();
        if self.ranks[rank as usize].images.begins.is_none() {
            self.coordinate(Fact::Restart { rank });
        }
        if destroyed {
            self.find_destroyed(rank);
        }
        let (life, image) = self.ranks[rank as usize].images.begin();
        self.coordinate(Fact::Started { rank, life });
        if self.closing {
            self.ranks[rank as usize].images_due = KEPT_IMAGES;
            self.schedule(1, Event::LastImages(rank));
        }
        if let Some(image) = &image {
            let rclock = image.standing.rclock();
            self.from_images += 1;
            self.note(|| format!("{rank} begins from its image after delivery {rclock}"));
        }
        image
    }

    /// The file that the next life of `rank` is to begin from is gone for good.
    fn find_destroyed(&mut self, rank: Rank) {
        let is_kept = self.is(Mutation::KeepPassedOver);
        let images = &mut self.ranks[rank as usize].images;
        if is_kept {
            // A variant uses the one before, without a report.
            let before = images.complete.iter().rev().nth(1);
            images.begins = Some(before.map_or(From::Beginning, |(number, _)| From::File(*number)));
            return;
        }
        let (Some((number, _)), life) = (images.complete.pop(), images.life) else {
            return;
        };
        self.fallbacks += 1;
        self.note(|| format!("the newest image of {rank} is destroyed"));
        let reason = "it is damaged".to_string();
        self.coordinate(Fact::FileLost { rank, number, reason });
        self.coordinate(Fact::NotBegun { rank, life });
    }

    /// Every rank has finished: two more images of each, after which nothing should be kept. Failures may go on.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.image_one_in = None;
        self.note(|| "every rank has finished".into());
        for rank in 0..self.ranks.len() as Rank {
            let process = &mut self.ranks[rank as usize];
            process.images_due = KEPT_IMAGES + usize::from(process.image_is_under_way());
            self.schedule(0, Event::LastImages(rank));
        }
    }

    pub(super) fn last_images(&mut self, rank: Rank) {
        let process = &self.ranks[rank as usize];
        if process.finished && process.images_due == 0 {
            return;
        }
        if process.finished {
            self.stand_still(rank);
        }
        let pause = 1 + self.random.below(self.image_time);
        self.schedule(pause, Event::LastImages(rank));
    }

    /// Every rank has taken its last images, and its memory knows.
    pub(super) fn nothing_is_kept(&self) -> Result<(), Violation> {
        for rank in 0..self.ranks.len() as Rank {
            let own = memory_of(rank, self.memories.len());
            let kept = self.memories[own].kept(rank);
            if kept > 0 {
                return violation(KEPT, format!("memory {own} still has {kept} messages for {rank}"));
            }
        }
        Ok(())
    }
}

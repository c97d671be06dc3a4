//! Files of images: which are written, which stay, and what they allow others to forget.

use std::collections::BTreeSet;

use super::state::Process;
use super::{Command, Coordinator};
use crate::Rank;
use crate::group::{Groups, Writing};

impl Coordinator {
    /// The copy writes its file.
    pub(super) fn write(&mut self, rank: Rank, number: u64) {
        let images = self.images(rank);
        images.writing = Some(number);
        // All return, and the copy may have been lost before its turn to write.
        if images.copy != Some(number) && images.writer != Some(number) {
            return self.not_written(rank, number, "the process that was to write it has ended".to_string());
        }
        self.tell(Command::Write { rank, number });
    }

    /// Writes the wave that has just become complete.
    pub(super) fn write_wave(&mut self, unit: usize, number: u64, groups: Groups) {
        if self.is_passing() {
            self.transit_files.insert(number);
            self.tell(Command::WriteTransit { number });
        }
        let at_once = self.plan.groups_at_once.max(1);
        self.units[unit].writing = Some(Writing::new(number, groups, at_once));
        self.write_in_turn(unit);
    }

    /// Lets the next groups write their images.
    fn write_in_turn(&mut self, unit: usize) {
        let this = &mut self.units[unit];
        let Some(writing) = &mut this.writing else { return };
        let number = writing.number();
        let places = writing.begin();
        let ranks: Vec<Rank> = places.iter().map(|place| this.members[*place as usize]).collect();
        for rank in ranks {
            match self.has_end(rank, number) {
                true => self.writing_ended(rank),
                false => self.write(rank, number),
            }
        }
    }

    /// Groups that have not begun to write their images no longer do: the wave will not be complete.
    pub(super) fn give_up_turns(&mut self, unit: usize, why: &str) {
        let this = &mut self.units[unit];
        let Some(writing) = &mut this.writing else { return };
        let (number, places) = (writing.number(), writing.give_up());
        let ranks: Vec<Rank> = places.iter().map(|place| this.members[*place as usize]).collect();
        for rank in ranks {
            let reason = why.to_string();
            self.tell(Command::NotWritten { rank, number, reason });
        }
    }

    /// The image of `rank` is written, or will not be.
    pub(super) fn writing_ended(&mut self, rank: Rank) {
        let unit = self.unit(rank);
        let this = &mut self.units[unit];
        let place = this.place(rank);
        let Some(writing) = &mut this.writing else { return };
        writing.ended(place);
        if writing.is_over() {
            this.writing = None;
        }
        self.write_in_turn(unit);
    }

    /// The transit could not be written, so the wave will be in no file.
    pub(super) fn transit_not_written(&mut self, number: u64, reason: &str) {
        self.transit_files.remove(&number);
        let reason = format!("what was in transit cannot be written: {reason}");
        self.give_up_turns(0, &reason);
        self.commands
            .retain(|command| !matches!(command, Command::Write { number: of, .. } if *of == number));
        for rank in self.units[0].members.clone() {
            if self.images(rank).writing == Some(number) {
                self.not_written(rank, number, reason.clone());
            }
        }
    }

    /// The file is complete, and counts.
    pub(super) fn complete_file(&mut self, rank: Rank, number: u64) {
        let images = self.images(rank);
        if images.writing.take_if(|writing| *writing == number).is_none() {
            return;
        }
        images.files.push(number);
        // Without a sleeping copy the image replaces the one before.
        if images.writer.take().is_some() {
            self.tell(Command::EndCopy { rank, number });
            self.end_copy_up_to(rank, number);
        }
        if self.has_waves() {
            let unit = self.unit(rank);
            self.tidy_waves(unit);
            self.forget_before_waves(unit);
            self.end_copies_in_files(rank);
            self.record(unit, number);
            self.writing_ended(rank);
            return self.mind_leaving(unit);
        }
        while self.images(rank).files.len() > self.plan.kept {
            let number = self.images(rank).files.remove(0);
            self.tell(Command::Collect { rank, number });
        }
        if self.images(rank).files.len() == self.plan.kept {
            let oldest = self.images(rank).files[0];
            self.forget_before(rank, oldest);
        }
        self.end_copies_in_files(rank);
        self.move_away(rank);
    }

    /// If that was the last image of the wave, records it with the one before: the job can be resumed from either.
    fn record(&mut self, unit: usize, wave: u64) -> bool {
        let waves = self.waves_in_files(unit);
        if self.is_hierarchical() || self.is_halted || waves.first() != Some(&wave) {
            return false;
        }
        let oldest = waves.get(1).copied().unwrap_or(wave);
        self.recorded = self.recorded.max(wave);
        self.tell(Command::Record { wave, oldest });
        true
    }

    /// All ranks go on from `wave`: a job that is resumed later must not begin from a newer one, although its images may
    /// be found again.
    pub(super) fn record_again(&mut self, unit: usize, wave: u64) {
        if self.recorded > wave && !self.record(unit, wave) {
            self.recorded = 0;
            self.tell(Command::ForgetRecord);
        }
    }

    pub(super) fn not_written(&mut self, rank: Rank, number: u64, reason: String) {
        let images = self.images(rank);
        if images.writing.take_if(|writing| *writing == number).is_none() {
            return;
        }
        let writer = images.writer.take();
        self.tell(Command::GiveUp { rank, number });
        if let Some(number) = writer {
            self.tell(Command::EndCopy { rank, number });
        }
        let unit = self.unit(rank);
        if self.has_waves() {
            self.tidy_waves(unit);
        }
        self.tell(Command::NotWritten { rank, number, reason });
        self.give_up_turns(unit, &format!("that of rank {rank} could not be written"));
        self.writing_ended(rank);
        self.mind_leaving(unit);
    }

    /// The waves of a unit of which every rank has its image in a file, or in a set, the newest first.
    pub fn waves_in_files(&self, unit: usize) -> Vec<u64> {
        let members = &self.units[unit].members;
        let has = |number: &u64| {
            let mut members = members.iter();
            members.all(|rank| self.is_kept(*rank, *number) || self.has_end(*rank, *number))
                && (!self.is_passing() || self.transit_files.contains(number))
        };
        let numbers = members.iter().flat_map(|rank| &self.ranks[*rank as usize].images.files);
        let in_sets = self.sets.of.values().map(|set| set.number);
        let numbers: BTreeSet<u64> = numbers.copied().chain(in_sets).collect();
        let numbers = numbers.range(self.units[unit].alone + 1..);
        numbers.rev().copied().filter(has).collect()
    }

    /// Of images in files, the last waves that all ranks have written stay, and the next one while all may come to write it. So does the
    /// wave that all would return to, if a rank has lost its copy: another one may have nothing but its copy.
    fn tidy_waves(&mut self, unit: usize) {
        let mut stay = self.waves_in_files(unit);
        stay.truncate(self.plan.kept);
        // Before the first wave, ranks have nothing but what they have alone.
        let alone = if stay.is_empty() { self.units[unit].alone } else { 0 };
        let mut members = self.units[unit].members.iter();
        let has_copy = |rank: &Rank, wave: u64| self.ranks[*rank as usize].images.copy == Some(wave);
        let in_use = self.newest_wave(unit);
        stay.extend(in_use.filter(|wave| members.any(|rank| !has_copy(rank, *wave) && !self.has_end(*rank, *wave))));
        let this = &self.units[unit];
        stay.extend(this.fetching.as_ref().map(|fetching| fetching.wave));
        let next = this.asked;
        let will_write = |rank: Rank| {
            let writing = this.writing.as_ref().filter(|writing| writing.number() == next);
            writing.is_some_and(|writing| !writing.has_begun(this.place(rank)))
        };
        let may_be = |rank: &Rank| {
            let images = &self.ranks[*rank as usize].images;
            images.has_file(next) || images.writing == Some(next) || will_write(*rank) || self.has_end(*rank, next)
        };
        if this.members.iter().all(may_be) {
            stay.push(next);
        }
        self.collect_files(unit, |number| number > alone && !stay.contains(&number));
        if self.is_passing() {
            self.transit_files.retain(|number| stay.contains(number));
            self.tell(Command::CollectTransit { keep: stay });
        }
    }

    /// With logs, once there are enough waves in files: no life will ask for what is before the oldest.
    fn forget_before_waves(&mut self, unit: usize) {
        let waves = self.waves_in_files(unit);
        let may_forget = self.plan.protocol.logs() && !self.nodes.logs_lost;
        let Some(oldest) = waves.get(self.plan.kept - 1).filter(|_| may_forget) else {
            return;
        };
        for rank in self.units[unit].members.clone() {
            self.forget_before(rank, *oldest);
        }
    }

    pub(super) fn collect_files(&mut self, unit: usize, goes: impl Fn(u64) -> bool) {
        for rank in self.units[unit].members.clone() {
            self.collect_files_of(rank, &goes);
        }
        self.collect_sets(goes);
    }

    pub(super) fn collect_files_of(&mut self, rank: Rank, goes: impl Fn(u64) -> bool) {
        let files = std::mem::take(&mut self.images(rank).files);
        let (gone, stay) = files.into_iter().partition(|number| goes(*number));
        self.images(rank).files = stay;
        let gone: Vec<u64> = gone;
        // A life that has read one of them does not bring it back.
        self.images(rank).reads.take_if(|(number, _)| gone.contains(number));
        gone.into_iter()
            .for_each(|number| self.tell(Command::Collect { rank, number }));
    }

    /// Ends all copies of a unit but those of waves that stay, and what they write.
    pub(super) fn forget_copies(&mut self, unit: usize, stays: impl Fn(u64) -> bool) {
        for rank in self.units[unit].members.clone() {
            if !self.images(rank).copy.is_some_and(&stays) {
                self.end_copies(rank);
            }
        }
    }

    /// Without local copies, a copy ends when its file is written. Copies of a wave end together, when all files are
    /// written: a wave that lacks a file is of no use.
    pub(super) fn end_copies_in_files(&mut self, rank: Rank) {
        if self.plan.local_copies {
            return;
        }
        let (ranks, in_files) = if self.has_waves() {
            let unit = self.unit(rank);
            (
                self.units[unit].members.clone(),
                self.waves_in_files(unit).first().copied(),
            )
        } else {
            (vec![rank], self.images(rank).files.last().copied())
        };
        for rank in ranks {
            self.end_copy_up_to(rank, in_files.unwrap_or(0));
        }
    }

    /// The copy ends if it is of image `number` or an older one, and is not about to become a life.
    fn end_copy_up_to(&mut self, rank: Rank, number: u64) {
        if self.ranks[rank as usize].process == Process::Asked {
            return;
        }
        if let Some(number) = self.images(rank).copy.take_if(|copy| *copy <= number) {
            self.tell(Command::EndCopy { rank, number });
        }
    }
}

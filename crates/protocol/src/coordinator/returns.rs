//! Lives: what each begins from, alone or with all ranks of its unit that return to a wave.

use super::leaving::NOT_COPIED;
use super::state::{From, Process, Unit};
use super::{Cause, Command, Coordinator, Why};
use crate::{Rank, Return, Turn};

/// Attempts to return to a wave before the job is given up.
const ATTEMPTS: u32 = 10;

impl Coordinator {
    /// The rank gets a process.
    pub(super) fn begin(&mut self, rank: Rank, from: From, together: bool) {
        // An image that is incomplete when a life begins stays so: this life may take another course.
        let late = self.images(rank).writing.filter(|number| *number > from.number());
        if let Some(number) = late {
            let reason = "its rank has begun again from an older image".to_string();
            self.not_written(rank, number, reason);
        }
        let Some((node, reads)) = self.place(rank, from) else {
            return;
        };
        let member = &mut self.ranks[rank as usize];
        member.life += 1;
        member.process = Process::Asked;
        (member.finished, member.moves) = (false, false);
        let life = member.life;
        let is_oldest = member.images.begun && member.images.files.first() == Some(&from.number());
        self.tell(Command::Begin {
            rank,
            life,
            from,
            together,
            node,
            reads,
            is_oldest,
        });
    }

    /// A rank that has failed begins again from its newest image.
    pub(super) fn begin_alone(&mut self, rank: Rank) {
        if self.ranks[rank as usize].is_alive() || self.is_halted || self.all_begin {
            return;
        }
        match self.images(rank).choose() {
            Some(from) => self.begin(rank, from, false),
            None if self.may_begin_anew() => self.all_begin_again(),
            None if self.may_begin_again || self.has_waves() && !self.is_hierarchical() => {
                self.tell(Command::CannotRecoverAlone { rank });
            }
            None => self.tell(Command::Fail(Cause::NoImage(rank))),
        }
    }

    /// The process of a life is known.
    pub(super) fn started(&mut self, rank: Rank, life: u64) {
        let member = &mut self.ranks[rank as usize];
        if member.life == life && member.process == Process::Asked {
            member.process = Process::Known;
            if !self.has_waves() {
                self.has_read(rank);
                self.replicate(rank);
                self.tell_who_has_left(false, "");
            }
            self.end_copies_in_files(rank);
            self.move_late(rank);
        }
    }

    /// A life will not exist.
    pub(super) fn not_begun(&mut self, rank: Rank, life: u64) {
        let member = &mut self.ranks[rank as usize];
        if member.life != life || !member.is_alive() {
            return;
        }
        member.process = Process::None;
        match self.is_returning(rank) {
            true => self.ended_for_return(rank),
            false => self.begin_alone(rank),
        }
    }

    pub(super) fn ended(&mut self, rank: Rank, life: u64, orderly: bool) {
        let member = &mut self.ranks[rank as usize];
        if member.life != life || !member.is_alive() {
            return;
        }
        member.process = Process::None;
        if self.is_returning(rank) {
            return self.ended_for_return(rank);
        }
        self.ranks[rank as usize].finished = orderly;
        if self.has_waves() {
            let why = if orderly { Why::Finished } else { Why::Died };
            return self.drop_wave(rank, why);
        }
        self.end_taking(rank, Why::Died);
        if orderly {
            // Images of it are not needed.
            self.end_copies(rank);
            self.tell_who_has_left(false, "");
        } else if self.ranks[rank as usize].moves {
            self.begin_alone(rank);
        }
    }

    /// All ranks of the unit of `rank` return to the last complete wave, or to the beginning if there is none.
    pub(super) fn return_unit(&mut self, rank: Rank) {
        self.drop_wave(rank, Why::Failed);
        let unit = self.unit(rank);
        if self.units[unit].returning.is_some() || self.is_halted {
            return;
        }
        let members = self.units[unit].members.iter();
        let alive = members.map(|rank| self.ranks[*rank as usize].is_alive()).collect();
        let (returning, turn) = Return::new(alive);
        self.units[unit].returning = Some(returning);
        self.take_turn(unit, turn);
    }

    fn take_turn(&mut self, unit: usize, turn: Turn) {
        match turn {
            Turn::Wait => {}
            Turn::End => {
                for rank in self.units[unit].members.clone() {
                    self.kill(rank);
                }
                self.mind_ends(unit);
            }
            Turn::Begin if self.all_begin => self.begin_all(),
            Turn::Begin if self.waits_to_leave(unit) => {}
            Turn::Begin => self.choose_wave(unit),
            Turn::Go => self.go_on(unit),
        }
    }

    /// Ranks without processes, as they had finished, need not end.
    fn mind_ends(&mut self, unit: usize) {
        for rank in self.units[unit].members.clone() {
            let this = &mut self.units[unit];
            let place = this.place(rank);
            let returning = this.returning.as_mut().filter(|returning| returning.is_ending());
            let Some(returning) = returning.filter(|_| !self.ranks[rank as usize].is_alive()) else {
                continue;
            };
            let turn = returning.ended(place);
            self.take_turn(unit, turn);
        }
    }

    pub(super) fn ended_for_return(&mut self, rank: Rank) {
        let unit = self.unit(rank);
        let place = self.units[unit].place(rank);
        let Some(returning) = &mut self.units[unit].returning else {
            return;
        };
        let before = returning.attempts();
        let turn = returning.ended(place);
        if returning.attempts() <= ATTEMPTS {
            return self.take_turn(unit, turn);
        }
        // Once, not for every rank that ends now.
        if before <= ATTEMPTS {
            self.tell(Command::Fail(Cause::NotBroughtBack));
        }
    }

    pub(super) fn ready(&mut self, rank: Rank, life: u64) {
        if self.ranks[rank as usize].life != life {
            return;
        }
        let unit = self.unit(rank);
        let place = self.units[unit].place(rank);
        // Its node has the file also where the life has ended since.
        if self.units[unit].returning.is_some() {
            self.has_read(rank);
        }
        let is_alive = self.ranks[rank as usize].is_alive();
        let returning = self.units[unit].returning.as_mut().filter(|_| is_alive);
        if let Some(turn) = returning.map(|returning| returning.ready(place)) {
            self.take_turn(unit, turn);
        }
    }

    /// The newest wave that a unit can return to. Every rank has its image of it, asleep or in a file; the messages in
    /// transit are known, or in a file.
    pub(super) fn newest_wave(&self, unit: usize) -> Option<u64> {
        let members = &self.units[unit].members;
        let all_have = |number: &u64| {
            let has_transit = self.transit.contains(number) || self.transit_files.contains(number);
            let mut members = members.iter();
            let has = |rank: &Rank| self.ranks[*rank as usize].images.has(*number) || self.has_end(*rank, *number);
            members.all(has) && (has_transit || !self.is_passing())
        };
        let images = members.iter().map(|rank| &self.ranks[*rank as usize].images);
        let numbers = images.flat_map(|images| images.files.iter().copied().chain(images.copy));
        let numbers = numbers.filter(|number| *number > self.units[unit].alone);
        numbers.filter(all_have).max()
    }

    /// Chooses the wave that all ranks of a unit begin from: the newest one, or the beginning where there is none. A rank
    /// without its copy begins from its file, which may have to come from a place. The messages in transit may have to be
    /// read first.
    pub(super) fn choose_wave(&mut self, unit: usize) {
        self.units[unit].fetching = None;
        self.choose_again(unit);
    }

    /// The same while images are on their way, which still come if it is the same wave.
    pub(super) fn choose_again(&mut self, unit: usize) {
        let wave = self.newest_wave(unit).unwrap_or(0);
        let by_parity = self.newest_by_parity(unit, wave);
        let beyond = self.newest_beyond(by_parity.unwrap_or(wave));
        match beyond.or(by_parity) {
            Some(newer) => self.fetch(unit, newer),
            None => {
                self.units[unit].fetching = None;
                self.read_or_begin(unit, wave);
            }
        }
    }

    /// All images of the wave are on nodes, or it is the beginning.
    pub(super) fn read_or_begin(&mut self, unit: usize, wave: u64) {
        if wave > 0 && self.is_passing() && !self.transit.contains(&wave) {
            self.units[unit].reading = Some(wave);
            return self.tell(Command::ReadTransit { number: wave });
        }
        self.begin_from(unit, wave);
    }

    /// All ranks of a unit begin from this wave. Forgets images that they do not begin from.
    pub(super) fn begin_from(&mut self, unit: usize, wave: u64) {
        // Later images may differ this time.
        self.collect_files(unit, |number| number > wave);
        self.forget_copies(unit, |number| number == wave);
        let this = &mut self.units[unit];
        this.writing.take_if(|writing| writing.number() != wave);
        this.chosen = wave;
        let (members, asked) = (this.members.clone(), this.asked);
        self.leave_later(wave, asked);
        if !self.is_hierarchical() {
            self.tell(Command::Undo { number: wave });
        }
        if wave == 0 && !self.prepare_beginning(unit) {
            return;
        }
        // With logs each rank cuts its own off at its image.
        if wave > 0 && !self.plan.protocol.logs() {
            self.tell(Command::EmptyLogs);
            self.tell(Command::Waves { asked, over: asked });
        } else if wave > 0 && self.nodes.logs_lost {
            let only_files = self.is_from_beyond(wave);
            self.tell(Command::LogsOfWave {
                number: wave,
                only_files,
            });
        }
        if wave > 0 && self.is_passing() {
            self.tell(Command::PutTransit { number: wave });
        }
        self.leave_copies(unit, wave);
        let (over, others): (Vec<Rank>, Vec<Rank>) = members.into_iter().partition(|rank| self.has_end(*rank, wave));
        for rank in others {
            let from = self.images(rank).choose().unwrap_or(From::Beginning);
            self.begin(rank, from, true);
        }
        // Nobody waits for those whose ends are part of the wave.
        for rank in over {
            let this = &mut self.units[unit];
            let place = this.place(rank);
            this.returning
                .iter_mut()
                .for_each(|returning| _ = returning.ready(place));
        }
        let leaves = std::mem::take(&mut self.units[unit].leaves);
        self.tell_who_has_left(leaves, NOT_COPIED);
        if wave == 0 {
            self.nodes.logs_lost = false;
            self.units[unit].returning = None;
            self.record_again(unit, wave);
            self.tell(Command::Returned { unit, wave });
        }
    }

    /// All ranks of a unit are to begin at the beginning. False: they must not.
    fn prepare_beginning(&mut self, unit: usize) -> bool {
        let members = self.units[unit].members.clone();
        let has_begun = members.iter().any(|rank| self.ranks[*rank as usize].images.begun);
        // Never restart from the beginning here: this group needs what others have sent it and have forgotten, and a
        // resumed job must stay the same job.
        if (self.is_hierarchical() || self.is_resumed) && has_begun {
            match self.is_hierarchical() {
                true if self.may_begin_anew() => self.all_begin_again(),
                true => self.tell(Command::Fail(Cause::NoGroupWave(self.without_image(&members)))),
                false => self.tell(Command::Fail(Cause::NoWave)),
            }
            return false;
        }
        if self.is_hierarchical() {
            if !self.plan.moves {
                self.tell(Command::CutInside { ranks: members });
            }
            return true;
        }
        let asked = self.units[unit].asked;
        self.tell(Command::Reset);
        self.tell(Command::Waves { asked, over: asked });
        // The logs are empty again, and must not be shortened before there are new images.
        members.into_iter().for_each(|rank| self.images(rank).begun = false);
        true
    }

    /// The first of these ranks that has no image left, or just the first one.
    fn without_image(&self, ranks: &[Rank]) -> Rank {
        let images = |rank: &Rank| &self.ranks[*rank as usize].images;
        let has_none = |rank: &&Rank| images(rank).files.is_empty() && images(rank).copy.is_none();
        ranks.iter().find(has_none).or(ranks.first()).copied().unwrap_or(0)
    }

    /// A resumed job must stay the same job. Ranks that were spawned belong to a course that would not come again.
    pub fn may_begin_anew(&self) -> bool {
        let has_spawned = self.ranks.len() > self.plan.units.ranks();
        self.plan.begins_anew && !self.is_resumed && !has_spawned
    }

    /// A life has nothing to begin from, and what it would repeat is forgotten: all ranks end, and begin again.
    pub(super) fn all_begin_again(&mut self) {
        self.all_begin = true;
        for unit in 0..self.units.len() {
            let members = self.units[unit].members.clone();
            self.drop_wave(members[0], Why::Again);
            if !self.has_waves() {
                members.iter().for_each(|rank| self.end_taking(*rank, Why::Again));
            }
            // Also where a return is under way: what has begun ends again.
            let alive = members.iter().map(|rank| self.ranks[*rank as usize].is_alive());
            let (returning, turn) = Return::new(alive.collect());
            self.units[unit].returning = Some(returning);
            if turn == Turn::End {
                self.take_turn(unit, turn);
            }
        }
        self.begin_all();
    }

    /// Once no rank has a process any more, all begin at the beginning, and nothing of the former course is left.
    fn begin_all(&mut self) {
        let has_ended = |unit: &Unit| unit.returning.as_ref().is_some_and(|returning| !returning.is_ending());
        if !self.units.iter().all(has_ended) {
            return;
        }
        self.all_begin = false;
        for unit in 0..self.units.len() {
            self.give_up_files(unit);
            self.collect_files(unit, |_| true);
            self.forget_copies(unit, |_| false);
        }
        self.tell(Command::Undo { number: 0 });
        self.tell(Command::Reset);
        for unit in 0..self.units.len() {
            let this = &mut self.units[unit];
            (this.chosen, this.returning, this.writing) = (0, None, None);
            let members = this.members.clone();
            for rank in members.iter().copied() {
                // Nothing may be forgotten before there are new images.
                self.images(rank).begun = false;
                if self.is_hierarchical() && !self.plan.moves {
                    // Messages inside a group do not leave its node.
                    self.ranks[rank as usize].node = self.ranks[members[0] as usize].node;
                }
                self.begin(rank, From::Beginning, true);
            }
            self.tell(Command::Returned { unit, wave: 0 });
        }
        self.tell_who_has_left(false, "");
    }

    /// Ranks that take images alone are told of files that will not be complete.
    fn give_up_files(&mut self, unit: usize) {
        for rank in self.units[unit].members.clone() {
            let writing = self.images(rank).writing;
            if let Some(number) = writing.filter(|_| !self.has_waves()) {
                self.not_written(rank, number, Why::Again.to_string());
            }
        }
    }

    /// All are ready: they go on.
    fn go_on(&mut self, unit: usize) {
        let this = &mut self.units[unit];
        this.returning = None;
        let (wave, members) = (this.chosen, this.members.clone());
        if std::mem::take(&mut self.nodes.logs_lost) {
            // Logs begin with this wave: no rank can recover alone from an older image.
            self.collect_files(unit, |number| number != wave);
            members.iter().for_each(|rank| self.images(*rank).begun = true);
        }
        // Not before: this wave might have been unusable, too, and the user can repair a newer one.
        self.record_again(unit, wave);
        self.tell(Command::Returned { unit, wave });
        for rank in members {
            if !self.ranks[rank as usize].finished {
                self.tell(Command::Go { rank });
            }
            self.replicate(rank);
        }
        self.tell_who_has_left(false, "");
    }
}

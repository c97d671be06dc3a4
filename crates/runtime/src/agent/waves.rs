//! Coordinated waves: images of all ranks, at one moment (`--protocol blocking`, and `auto` beside its logs) or while others go
//! on (`chandy-lamport`; one group after the other: `group`, see `groups.rs`), and the return of all ranks to the last complete wave.
//!
//! The ranks that have their waves together are a *unit*: all ranks of the job, or each group for itself (`hierarchical`).

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use resurgo_image::Socket;
use resurgo_protocol::group::{Groups, Writing};
use resurgo_protocol::{Return, Step, Turn, Wave, kinds};
use resurgo_wire::control::{End, Job, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::PHASE_LIVE;

use super::files::KEPT;
use super::images::STILL_FILLING;
use super::in_transit::InTransit;
use super::ranks::Rank;
use super::{Agent, PATIENCE, Work, patience};

/// Attempts to return to a wave before the job is given up.
const ATTEMPTS: u32 = 10;

/// The waves of one unit.
pub(super) struct Waves {
    /// Its ranks, in order. [`Wave`], [`Return`] and [`Writing`] know them by their places here.
    pub members: Vec<usize>,
    asked: u64,
    pub current: Option<(Wave, Instant)>,
    /// When a rank has last said something about it, and how long all may be silent.
    pub heard: Instant,
    pub patience: Duration,
    /// What was in transit in the last complete wave, and its number.
    in_transit: (u64, InTransit),
    /// The longest standstill of a rank in the current wave.
    longest_ns: u64,
    /// The standstills of all ranks in it.
    all_ns: u64,
    returning: Option<Return>,
    /// The wave that the ranks return to, or did last; 0: the beginning.
    chosen: u64,
    /// Groups of the last complete wave write their images one after the other.
    pub writing: Option<Writing>,
    /// Groups were to be formed by communication, and it was global.
    pub is_global: bool,
    /// When ranks are looked at that have deferred messages.
    pub buffers_at: Option<Instant>,
}

impl Waves {
    /// The number of the last wave that has been begun.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Those of each unit of a job of so many ranks.
    pub fn of(job: &Job, ranks: usize) -> Vec<Waves> {
        let groups = job.units(ranks);
        let members = |group| groups.members(group).map(|rank| rank as usize).collect();
        let of = |group| Waves {
            members: members(group),
            asked: 0,
            current: None,
            heard: Instant::now(),
            patience: Duration::ZERO,
            in_transit: (0, InTransit::default()),
            longest_ns: 0,
            all_ns: 0,
            returning: None,
            chosen: 0,
            writing: None,
            is_global: false,
            buffers_at: None,
        };
        (1..=groups.count()).map(of).collect()
    }

    /// The job goes on where it was suspended.
    pub fn resume(&mut self, ranks: &[Rank]) {
        let asked = self.members.iter().map(|rank| ranks[*rank].images.asked());
        self.asked = asked.max().unwrap_or(0);
    }

    /// The place of `rank`.
    pub fn place(&self, rank: usize) -> u32 {
        self.members.binary_search(&rank).unwrap_or(0) as u32
    }
}

impl Work {
    /// Ranks have images together.
    pub(super) fn has_waves(&self) -> bool {
        self.job.protocol.has_waves()
    }

    /// A rank can recover alone.
    pub(super) fn recovers_alone(&self) -> bool {
        self.job.protocol.recovers_alone()
    }

    /// Messages are logged in the node memory.
    pub(super) fn logs(&self) -> bool {
        self.job.protocol.logs()
    }

    /// Nobody waits for others in a wave.
    pub(super) fn is_non_blocking(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::Passing
    }

    /// The number of the unit that `rank` belongs to.
    pub(super) fn unit(&self, rank: usize) -> usize {
        let mut units = self.waves.iter();
        let is_in = |waves: &Waves| waves.members.binary_search(&rank).is_ok();
        units.position(is_in).unwrap_or(0)
    }

    /// Only the failed rank's unit returns, and repeats what it has done.
    pub(super) fn is_hierarchical(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::OfEachGroup
    }

    /// The unit of `rank` returns to a wave: the ends of its processes are no failures.
    pub(super) fn is_returning(&self, rank: usize) -> bool {
        self.waves[self.unit(rank)].returning.is_some()
    }

    /// All ranks are halted: they do not return any more.
    pub(super) fn stop_returning(&mut self) {
        self.waves.iter_mut().for_each(|waves| waves.returning = None);
    }

    /// The unit of `rank` returns, or all are halted, and processes that have been given up have not all ended.
    pub(super) fn waits_for_ends(&self, rank: usize) -> bool {
        let returning = self.waves[self.unit(rank)].returning.as_ref();
        self.is_halting() || returning.is_some_and(Return::is_ending)
    }

    /// Whoever has died meanwhile needs no answer.
    pub(super) fn tell(&self, rank: usize, datagram: &Datagram) {
        if let Some(socket) = self.ranks[rank].life.as_ref().and_then(|life| life.image.as_ref()) {
            let _ = socket.send(datagram, &[]);
        }
    }

    fn tell_all(&self, unit: usize, kind: Kind, number: u64) {
        let members = self.waves[unit].members.iter();
        members.for_each(|rank| self.tell(*rank, &Datagram::new(kind, number, 0, 0)));
    }

    fn of_unit(&self, unit: usize) -> impl Iterator<Item = &Rank> {
        self.waves[unit].members.iter().map(|rank| &self.ranks[*rank])
    }
}

impl Work {
    /// The waves of a unit of which every rank has its image in a file, the newest first.
    pub(super) fn waves_in_files(&self, unit: usize) -> Vec<u64> {
        let first = self
            .of_unit(unit)
            .take(1)
            .flat_map(|rank| rank.images.files.iter().rev());
        let has_in_transit = |number: u64| {
            let mut stores = self.store.iter();
            !self.is_non_blocking() || stores.any(|store| store.has_in_transit(number))
        };
        let all_have =
            |number: &u64| self.of_unit(unit).all(|rank| rank.images.has_file(*number)) && has_in_transit(*number);
        first.map(|file| file.number).filter(all_have).collect()
    }

    /// The newest wave of a unit of which every rank has its image, asleep or in a file.
    fn newest_wave(&self, unit: usize) -> Option<u64> {
        let has_in_transit = |number: u64| {
            let mut stores = self.store.iter();
            !self.is_non_blocking()
                || self.waves[0].in_transit.0 == number
                || stores.any(|store| store.has_in_transit(number))
        };
        let all_have =
            |number: &u64| self.of_unit(unit).all(|rank| rank.images.has(*number)) && has_in_transit(*number);
        let first = &self.of_unit(unit).next()?.images;
        let in_files = first.files.iter().map(|file| file.number);
        let numbers = in_files.chain(first.newest.as_ref().map(|image| image.number));
        numbers.filter(all_have).max()
    }

    /// Chooses the wave that all ranks begin from: the last one, of which those begin from their files whose images do not
    /// sleep any more; without one, the beginning of the program. What they do not begin from is forgotten. Returns its number,
    /// and those of waves that have turned out to be of no use, with the reasons.
    fn choose_wave(&mut self, unit: usize) -> (u64, Vec<(u64, String)>) {
        let mut lost = Vec::new();
        let mut chosen = 0;
        while let Some(wave) = self.newest_wave(unit) {
            match self.read_in_transit(wave) {
                Ok(()) => {
                    chosen = wave;
                    break;
                }
                Err(error) => lost.push((wave, format!("what was in transit cannot be read: {error}"))),
            }
            self.drop_files(unit, |number| number >= wave);
            self.forget_snapshots(unit, |number| number < wave);
        }
        // What comes after it may be something else this time.
        self.drop_files(unit, |number| number > chosen);
        self.forget_snapshots(unit, |number| number == chosen);
        let waves = &mut self.waves[unit];
        waves.writing.take_if(|writing| writing.number() != chosen);
        waves.chosen = chosen;
        (chosen, lost)
    }

    /// Forgets all snapshots of a unit but those of the waves that stay, and what they write.
    fn forget_snapshots(&mut self, unit: usize, stays: impl Fn(u64) -> bool) {
        for rank in self.waves[unit].members.clone() {
            let images = &mut self.ranks[rank].images;
            if images.newest.as_ref().is_some_and(|image| stays(image.number)) {
                continue;
            }
            if images.writing.is_some() {
                self.store.iter().for_each(|store| store.give_up(rank));
            }
            images.forget();
        }
    }

    /// Finds in its file what was in transit in `wave`, if that is not known.
    fn read_in_transit(&mut self, wave: u64) -> io::Result<()> {
        if let Some(store) = &self.store
            && self.is_non_blocking()
            && self.waves[0].in_transit.0 != wave
        {
            let bytes = store.read_in_transit(wave)?;
            self.waves[0].in_transit = (wave, InTransit::decode(&bytes, wave, self.ranks.len())?);
        }
        Ok(())
    }

    /// All ranks have been copied for `wave`: takes what was in transit to it.
    fn take_in_transit(&mut self, wave: u64) -> io::Result<()> {
        if self.is_non_blocking() {
            let found = self.memory.in_transit(self.ranks.len(), wave)?;
            self.waves[0].in_transit = (wave, found);
            self.memory.set_waves(wave, wave)?;
        }
        Ok(())
    }

    /// Of images in files, the last waves that all ranks have written stay, and the next one as long as all may come to write
    /// it.
    pub(super) fn tidy_waves(&mut self, unit: usize) {
        let mut stay = self.waves_in_files(unit);
        stay.truncate(KEPT);
        let waves = &self.waves[unit];
        let next = waves.asked;
        let will_write = |rank: usize| {
            let writing = waves.writing.as_ref();
            writing.is_some_and(|writing| writing.number() == next && !writing.has_begun(waves.place(rank)))
        };
        let may_be = |rank: &usize| {
            let images = &self.ranks[*rank].images;
            images.has_file(next) || images.is_writing(next) || will_write(*rank)
        };
        if waves.members.iter().all(may_be) {
            stay.push(next);
        }
        self.drop_files(unit, |number| !stay.contains(&number));
        if self.is_non_blocking() {
            self.store.iter().for_each(|store| store.remove_in_transit(&stay));
        }
    }

    /// With logs, once there are enough waves in files: what is before the oldest will not be asked for again.
    pub(super) fn forget_before_waves(&mut self, unit: usize) -> io::Result<()> {
        if !self.logs() || self.waves_in_files(unit).len() < KEPT {
            return Ok(());
        }
        for rank in self.waves[unit].members.clone() {
            let images = &mut self.ranks[rank].images;
            images.begun = true;
            let oldest = &images.files[0];
            self.memory.set_oldest_image(rank, oldest.slot, oldest.number)?;
        }
        Ok(())
    }

    fn drop_files(&mut self, unit: usize, goes: impl Fn(u64) -> bool) {
        for rank in self.waves[unit].members.clone() {
            let this = &mut self.ranks[rank];
            let files = std::mem::take(&mut this.images.files);
            let (gone, stay) = files.into_iter().partition(|file| goes(file.number));
            this.images.files = stay;
            for file in gone {
                self.store.iter().for_each(|store| store.collect(rank, &file.name));
            }
        }
    }
}

impl Agent {
    /// Tells every rank its group, where that stays the same.
    pub(super) fn tell_groups(&self) -> io::Result<()> {
        let work = &self.work;
        if !work.is_hierarchical() {
            return Ok(());
        }
        let units = (1..).zip(&work.waves);
        let mut groups = units.flat_map(|(group, waves)| waves.members.iter().map(move |rank| (*rank, group)));
        groups.try_for_each(|(rank, group)| work.memory.set_group(rank, group))
    }

    /// Asks every rank of a unit to stop for a wave.
    pub(super) fn begin_wave(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        let members = work.waves[unit].members.clone();
        let mut obstacle = None;
        for rank in &members {
            let this = &work.ranks[*rank];
            let live = work.memory.phase(*rank)? == PHASE_LIVE;
            if this.life.is_none() || !live || this.images.is_taking() {
                obstacle = Some(*rank);
            }
        }
        let is_busy = work.waves[unit].writing.is_some() || work.recording.is_some();
        let is_writing = |rank: &&usize| work.ranks[**rank].images.writing.is_some() || is_busy;
        if let Some(rank) = members.iter().find(is_writing).copied() {
            let reason = "its last image is still being written".to_string();
            return self.send(&ToDispatcher::NotCheckpointed { rank, reason });
        }
        if let Some(rank) = members.iter().find(|rank| work.ranks[**rank].is_filling()).copied() {
            let reason = STILL_FILLING.to_string();
            return self.send(&ToDispatcher::NotCheckpointed { rank, reason });
        }
        if work.waves[unit].current.is_some() || work.waves[unit].returning.is_some() {
            obstacle = Some(members[0]);
        }
        if let Some(rank) = obstacle {
            let reason = "it has not opened MPI, has left it, or waits for others".to_string();
            return self.send(&ToDispatcher::NotCheckpointed { rank, reason });
        }
        let waves = &mut work.waves[unit];
        waves.asked += 1;
        work.memory.set_waves(waves.asked, waves.asked - 1)?;
        (waves.longest_ns, waves.all_ns) = (0, 0);
        let (number, size) = (waves.asked, members.len());
        let wave = if work.is_non_blocking() {
            Wave::non_blocking(number, size)
        } else if work.is_in_groups() {
            Wave::in_groups(number, work.form_groups()?)
        } else {
            Wave::new(number, size)
        };
        let patience = patience::with(work, &members);
        let waves = &mut work.waves[unit];
        (waves.heard, waves.patience) = (Instant::now(), patience);
        waves.current = Some((wave, Instant::now()));
        self.ask_in_turn(unit)
    }

    /// What a rank says in a wave.
    pub(super) fn said_in_wave(&mut self, rank: usize, datagram: Datagram, snapshot: Option<Socket>) -> io::Result<()> {
        let work = &self.work;
        let unit = work.unit(rank);
        let place = work.waves[unit].place(rank);
        let current = work.waves[unit].current.as_ref();
        if datagram.kind != Kind::Noticed && current.is_none_or(|(wave, _)| wave.number() != datagram.a) {
            // About one that has been dropped.
            return Ok(());
        }
        self.work.waves[unit].heard = Instant::now();
        let step = match (datagram.kind, snapshot) {
            (Kind::Stopped, _) => {
                let account = self.account_for(rank)?;
                let work = &mut self.work;
                if account.is_none() {
                    return self.drop_wave(rank, "it is talking to the process manager");
                }
                work.ranks[rank].images.account_while_taking(account);
                if work.is_non_blocking() {
                    work.tell(rank, &Datagram::new(Kind::Go, datagram.a, 0, 0));
                    return Ok(());
                }
                work.waves[unit].current.as_mut().map(|(wave, _)| wave.stopped(place))
            }
            (Kind::Drained, _) => {
                let wave = self.work.waves[unit].current.as_mut();
                wave.map(|(wave, _)| wave.drained(place, datagram.b))
            }
            (Kind::Noticed, _) => {
                let wave = self.work.waves[unit].current.as_mut();
                wave.map(|(wave, _)| wave.stopped(place))
            }
            (Kind::Taken, Some(socket)) => {
                let work = &mut self.work;
                let waves = &mut work.waves[unit];
                waves.longest_ns = waves.longest_ns.max(datagram.c);
                waves.all_ns += datagram.c;
                work.ranks[rank].images.add_candidate(datagram, socket);
                waves.current.as_mut().map(|(wave, _)| wave.copied(place))
            }
            (Kind::Refused, _) => return self.drop_wave(rank, datagram.text()),
            _ => None,
        };
        let work = &mut self.work;
        let Some((wave, began)) = &work.waves[unit].current else {
            return Ok(());
        };
        match step {
            Some(Step::Drain) => work.tell_in_turn(unit, wave, Kind::Drain),
            Some(Step::Copy) => work.tell_in_turn(unit, wave, Kind::Go),
            Some(Step::Turn) => return self.ask_in_turn(unit),
            Some(Step::Complete) => {
                let (number, groups, began) = (wave.number(), wave.groups().clone(), *began);
                if let Err(error) = work.take_in_transit(number) {
                    return self.drop_wave(rank, &error.to_string());
                }
                let waves = &work.waves[unit];
                let members = waves.members.clone();
                let complete = ToDispatcher::WaveComplete {
                    rank,
                    number,
                    total_ns: began.elapsed().as_nanos() as u64,
                    longest_stall_ns: waves.longest_ns,
                    all_stalls_ns: waves.all_ns,
                    groups: (0..groups.ranks() as u32).map(|rank| groups.of(rank)).collect(),
                    is_global: waves.is_global,
                };
                work.end_turns(unit)?;
                for rank in members {
                    self.promote_candidate(rank)?;
                }
                self.send(&complete)?;
                self.write_wave(unit, number, groups)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Has the wave that has just become complete written to files, if there are to be files.
    fn write_wave(&mut self, unit: usize, number: u64, groups: Groups) -> io::Result<()> {
        let work = &mut self.work;
        let size = work.ranks.len();
        if let Some(store) = &work.store
            && work.is_non_blocking()
            && let Err(error) = store.write_in_transit(number, &work.waves[unit].in_transit.1.encode(number))
        {
            let reason = format!("what was in transit cannot be written: {error}");
            return (0..size).try_for_each(|rank| self.not_written(rank, number, reason.clone()));
        }
        if work.store.is_some() {
            let at_once = work.job.groups_at_once.max(1);
            work.waves[unit].writing = Some(Writing::new(number, groups, at_once));
        }
        self.write_in_turn(unit)
    }

    /// The current wave of the unit of `rank`, if there is one, cannot become complete because of `rank`.
    pub(super) fn drop_wave(&mut self, rank: usize, why: &str) -> io::Result<()> {
        let work = &mut self.work;
        let unit = work.unit(rank);
        let Some((mut wave, _)) = work.waves[unit].current.take() else {
            return Ok(());
        };
        wave.failed();
        work.end_turns(unit)?;
        work.memory.set_waves(wave.number(), wave.number())?;
        work.tell_all(unit, Kind::Abandon, wave.number());
        for rank in &work.waves[unit].members {
            work.ranks[*rank].images.drop_candidate();
        }
        let reason = why.to_string();
        self.send(&ToDispatcher::NotCheckpointed { rank, reason })
    }

    /// From now on ranks have images alone; those that they have stay good for that.
    pub(super) fn end_waves(&mut self) -> io::Result<()> {
        self.drop_wave(0, "there are no waves any more")?;
        let job = &mut self.work.job;
        job.protocol = job.protocol.without_waves().unwrap_or(job.protocol);
        self.work.may_begin_again = !self.work.is_resumed;
        Ok(())
    }

    /// Undoes [`Agent::end_waves`]. Images of single ranks are no wave, also when they have the same number.
    pub(super) fn have_waves_again(&mut self) {
        let work = &mut self.work;
        let former = work.job.protocol.with_waves_again();
        work.job.protocol = former.unwrap_or(work.job.protocol);
        work.may_begin_again = false;
        work.forget_snapshots(0, |_| false);
        work.drop_files(0, |_| true);
        work.waves[0].resume(&work.ranks);
    }

    /// All ranks of the unit of `rank` return to the last complete wave, or to the beginning if there is none.
    pub(super) fn return_to_wave(&mut self, rank: usize) -> io::Result<()> {
        self.drop_wave(rank, "it has failed")?;
        let work = &mut self.work;
        let unit = work.unit(rank);
        if work.is_returning(rank) {
            return Ok(());
        }
        let alive = |rank: &Rank| rank.life.is_some() || rank.images.is_waking();
        let (returning, turn) = Return::new(work.of_unit(unit).map(alive).collect());
        work.waves[unit].returning = Some(returning);
        self.take_turn(unit, turn)
    }

    fn take_turn(&mut self, unit: usize, turn: Turn) -> io::Result<()> {
        match turn {
            Turn::Wait => Ok(()),
            Turn::End => self.end_all(unit),
            Turn::Begin => self.begin_again(unit),
            Turn::Go => self.go_on(unit),
        }
    }

    /// Ends every process that has a number; what snapshots make has none yet and is ended as soon as it has.
    fn end_all(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        for life in work.of_unit(unit).filter_map(|rank| rank.life.as_ref()) {
            life.signal(Signal::SIGKILL);
        }
        Ok(())
    }

    /// While all ranks return: the end of an old process, or of a new one that has not been let go.
    pub(super) fn ended_while_returning(&mut self, rank: usize, end: End) -> io::Result<()> {
        let lost = self.take_failed_restore(rank, end);
        let work = &mut self.work;
        let Some(life) = work.ranks[rank].life.take() else {
            return Ok(());
        };
        life.fence(PATIENCE);
        work.end_input(rank);
        drop(life);
        self.drain_and_close(rank)?;
        if let Some(lost) = lost {
            self.send(&lost)?;
        }
        self.ended_for_return(rank)
    }

    /// The process of `rank` has ended, or its snapshot will make none.
    fn ended_for_return(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let unit = work.unit(rank);
        let place = work.waves[unit].place(rank);
        let Some(returning) = &mut work.waves[unit].returning else {
            return Ok(());
        };
        let before = returning.attempts();
        let turn = returning.ended(place);
        if returning.attempts() > ATTEMPTS {
            let reason = "the ranks could not be brought back to their last wave".to_string();
            // Once, not for every rank that ends now.
            return match before > ATTEMPTS {
                true => Ok(()),
                false => self.send(&ToDispatcher::Failed { reason }),
            };
        }
        self.take_turn(unit, turn)
    }

    fn begin_again(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        let size = work.ranks.len();
        let (wave, lost) = work.choose_wave(unit);
        let members = work.waves[unit].members.clone();
        // Where there are logs each rank cuts its own off where it was.
        if work.is_hierarchical() {
            if wave == 0 {
                work.memory.cut_off_inside(&members)?;
            }
        } else if wave == 0 || !work.logs() {
            work.memory.reset(&work.job, size)?;
            let asked = work.waves[unit].asked;
            work.memory.set_waves(asked, asked)?;
        }
        if wave > 0 && work.is_non_blocking() {
            work.memory.put_in_transit(&work.waves[unit].in_transit.1)?;
        }
        for (number, reason) in lost {
            self.send(&ToDispatcher::ImageLost {
                rank: members[0],
                number,
                reason,
            })?;
        }
        let work = &mut self.work;
        if wave == 0 {
            // Others need what a group has sent, and who resumes a job does not want another.
            if (work.is_hierarchical() || work.is_resumed) && work.of_unit(unit).any(|rank| rank.images.begun) {
                let reason = "there is no wave whose images can all be used".to_string();
                return self.send(&ToDispatcher::Failed { reason });
            }
            if !work.is_hierarchical() {
                work.server.reset();
                // The logs are empty again, and may not be shortened before there are other images.
                members.iter().for_each(|rank| work.ranks[*rank].images.begun = false);
            }
        }
        for rank in members.iter().copied() {
            if self.work.waits_for_ends(rank) {
                // The snapshot of one before it has just died: all begin once more.
                self.ended_for_return(rank)?;
                continue;
            }
            let fault = self.work.ranks[rank].fault_at_messages;
            if let Err(error) = self.start_life(rank, fault) {
                return self.not_started_again(rank, &error);
            }
        }
        if wave == 0 {
            self.work.waves[unit].returning = None;
            let rank = members[0];
            self.send(&ToDispatcher::Returned { rank, wave: 0 })?;
        }
        Ok(())
    }

    /// A woken rank waits for the others.
    pub(super) fn ready_to_go_on(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let unit = work.unit(rank);
        let place = work.waves[unit].place(rank);
        let returning = work.waves[unit].returning.as_mut();
        match returning.map(|returning| returning.ready(place)) {
            Some(turn) => self.take_turn(unit, turn),
            None => Ok(()),
        }
    }

    fn go_on(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        work.waves[unit].returning = None;
        // Images may hold messages that were deferred.
        work.look_at_buffers();
        let (rank, wave) = (work.waves[unit].members[0], work.waves[unit].chosen);
        self.send(&ToDispatcher::Returned { rank, wave })?;
        self.work.tell_all(unit, Kind::Go, 0);
        Ok(())
    }

    /// The snapshot of `rank` is gone, and with it wave `number` if the rank has no file of it.
    pub(super) fn wave_lost(&mut self, rank: usize, number: u64) -> io::Result<()> {
        let work = &mut self.work;
        let unit = work.unit(rank);
        if !work.is_returning(rank) {
            if work.ranks[rank].images.has_file(number) {
                return Ok(());
            }
            // But not what the ranks are doing for the next one.
            let members = work.waves[unit].members.clone();
            self.give_up_writing(unit, "the process that was to write it has ended")?;
            for rank in members {
                self.forget_newest(rank)?;
            }
        } else if work.ranks[rank].life.is_none() {
            // It was to be woken from it. The other snapshots tell the numbers of the processes that they have made.
            return self.ended_for_return(rank);
        }
        Ok(())
    }
}

//! Coordinated waves: images of all ranks, at one moment (`--protocol blocking`, and `auto` beside its logs) or while others go
//! on (`chandy-lamport`), and the return of all ranks to the last complete wave.

use std::io;
use std::time::Instant;

use nix::sys::signal::Signal;
use resurgo_image::Socket;
use resurgo_protocol::{Return, Step, Turn, Wave};
use resurgo_wire::control::{End, ToDispatcher};
use resurgo_wire::image::{Datagram, IN_WAVE, Kind};
use resurgo_wire::node_memory::{self as nm, PHASE_LIVE};

use super::files::KEPT;
use super::in_transit::InTransit;
use super::ranks::Rank;
use super::{Agent, PATIENCE, Work};

/// Attempts to return to a wave before the job is given up.
const ATTEMPTS: u32 = 10;

/// The waves of one job.
#[derive(Default)]
pub(super) struct Waves {
    asked: u64,
    current: Option<(Wave, Instant)>,
    /// What was in transit in the last complete wave, and its number.
    in_transit: (u64, InTransit),
    /// The longest standstill of a rank in the current wave.
    longest_ns: u64,
    /// The standstills of all ranks in it.
    all_ns: u64,
    returning: Option<Return>,
    /// The wave that the ranks return to, or did last; 0: the beginning.
    chosen: u64,
}

impl Waves {
    /// Of a job that has had so many.
    pub fn after(asked: u64) -> Waves {
        Waves {
            asked,
            ..Waves::default()
        }
    }
}

impl Work {
    /// Ranks have images together.
    pub(super) fn has_waves(&self) -> bool {
        nm::has_waves(self.job.protocol)
    }

    /// A rank can recover alone.
    pub(super) fn logs(&self) -> bool {
        nm::logs(self.job.protocol)
    }

    /// Nobody waits for others in a wave.
    fn is_non_blocking(&self) -> bool {
        self.job.protocol == nm::PROTOCOL_CHANDY_LAMPORT
    }

    /// All ranks return to a wave: the ends of their processes are no failures.
    pub(super) fn is_returning(&self) -> bool {
        self.waves.returning.is_some()
    }

    /// All ranks are halted: they do not return any more.
    pub(super) fn stop_returning(&mut self) {
        self.waves.returning = None;
    }

    /// All ranks return or are halted, and processes that have been given up have not all ended.
    pub(super) fn waits_for_ends(&self) -> bool {
        self.is_halting() || self.waves.returning.as_ref().is_some_and(Return::is_ending)
    }

    /// Whoever has died meanwhile needs no answer.
    pub(super) fn tell(&self, rank: usize, datagram: &Datagram) {
        if let Some(socket) = self.ranks[rank].life.as_ref().and_then(|life| life.image.as_ref()) {
            let _ = socket.send(datagram, &[]);
        }
    }

    fn tell_all(&self, kind: Kind, number: u64) {
        (0..self.ranks.len()).for_each(|rank| self.tell(rank, &Datagram::new(kind, number, 0, 0)));
    }
}

impl Work {
    /// The waves of which every rank has its image in a file, the newest first.
    fn waves_in_files(&self) -> Vec<u64> {
        let first = self
            .ranks
            .iter()
            .take(1)
            .flat_map(|rank| rank.images.files.iter().rev());
        let has_in_transit = |number: u64| {
            let mut stores = self.store.iter();
            !self.is_non_blocking() || stores.any(|store| store.in_transit(number).exists())
        };
        let all_have =
            |number: &u64| self.ranks.iter().all(|rank| rank.images.has_file(*number)) && has_in_transit(*number);
        first.map(|file| file.number).filter(all_have).collect()
    }

    /// Chooses the wave that all ranks begin from: the last one that is asleep, else the last one in files, else the
    /// beginning of the program. What they do not begin from is forgotten. Returns its number, and those of waves in files
    /// that have turned out to be of no use, with the reasons.
    fn choose_wave(&mut self) -> (u64, Vec<(u64, String)>) {
        let newest = self.ranks[0].images.number();
        let sleeps = newest > 0 && self.ranks.iter().all(|rank| rank.images.number() == newest);
        let mut lost = Vec::new();
        self.waves.chosen = newest;
        if !sleeps {
            for (rank, this) in self.ranks.iter_mut().enumerate() {
                if this.images.writing.is_some() {
                    self.store.iter().for_each(|store| store.give_up(rank));
                }
                this.images.forget();
            }
            self.waves.chosen = 0;
            while let Some(wave) = self.waves_in_files().first().copied() {
                match self.read_in_transit(wave) {
                    Ok(()) => {
                        self.waves.chosen = wave;
                        break;
                    }
                    Err(error) => lost.push((wave, format!("what was in transit cannot be read: {error}"))),
                }
                self.drop_files(|number| number >= wave);
            }
            // What comes after it may be something else this time.
            let chosen = self.waves.chosen;
            self.drop_files(|number| number > chosen);
        }
        (self.waves.chosen, lost)
    }

    /// Finds in its file what was in transit in `wave`, if that is not known.
    fn read_in_transit(&mut self, wave: u64) -> io::Result<()> {
        if let Some(store) = &self.store
            && self.is_non_blocking()
            && self.waves.in_transit.0 != wave
        {
            let bytes = std::fs::read(store.in_transit(wave))?;
            self.waves.in_transit = (wave, InTransit::decode(&bytes, wave, self.ranks.len())?);
        }
        Ok(())
    }

    /// All ranks have been copied for `wave`: takes what was in transit to it.
    fn take_in_transit(&mut self, wave: u64) -> io::Result<()> {
        if self.is_non_blocking() {
            let found = self.memory.in_transit(self.ranks.len(), wave)?;
            self.waves.in_transit = (wave, found);
            self.memory.set_waves(wave, wave)?;
        }
        Ok(())
    }

    /// Of images in files, the last waves that all ranks have written stay, and the next one as long as all may come to write
    /// it.
    pub(super) fn tidy_waves(&mut self) {
        let mut stay = self.waves_in_files();
        stay.truncate(KEPT);
        let next = self.waves.asked;
        let may_be = |rank: &Rank| rank.images.has_file(next) || rank.images.is_writing(next);
        if self.ranks.iter().all(may_be) {
            stay.push(next);
        }
        self.drop_files(|number| !stay.contains(&number));
        if self.is_non_blocking() {
            self.store.iter().for_each(|store| store.remove_in_transit(&stay));
        }
    }

    /// With logs, once there are enough waves in files: what is before the oldest will not be asked for again.
    pub(super) fn forget_before_waves(&mut self) -> io::Result<()> {
        if !self.logs() || self.waves_in_files().len() < KEPT {
            return Ok(());
        }
        for (rank, this) in self.ranks.iter_mut().enumerate() {
            this.images.begun = true;
            self.memory.set_oldest_image(rank, this.images.files[0].slot)?;
        }
        Ok(())
    }

    fn drop_files(&mut self, goes: impl Fn(u64) -> bool) {
        for (rank, this) in self.ranks.iter_mut().enumerate() {
            let files = std::mem::take(&mut this.images.files);
            let (gone, stay) = files.into_iter().partition(|file| goes(file.number));
            this.images.files = stay;
            for file in gone {
                self.store.iter().for_each(|store| store.collect(rank, &file.path));
            }
        }
    }
}

impl Agent {
    /// Asks every rank to stop for a wave.
    pub(super) fn begin_wave(&mut self) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        let mut obstacle = None;
        for (number, rank) in work.ranks.iter().enumerate() {
            let live = work.memory.phase(number)? == PHASE_LIVE;
            if rank.life.is_none() || !live || rank.images.is_taking() {
                obstacle = Some(number);
            }
        }
        if let Some(rank) = work.ranks.iter().position(|rank| rank.images.writing.is_some()) {
            let reason = "its last image is still being written".to_string();
            return self.send(&ToDispatcher::NotCheckpointed { rank, reason });
        }
        if work.waves.current.is_some() || work.is_returning() {
            obstacle = Some(0);
        }
        if let Some(rank) = obstacle {
            let reason = "it has not opened MPI, has left it, or waits for others".to_string();
            return self.send(&ToDispatcher::NotCheckpointed { rank, reason });
        }
        work.waves.asked += 1;
        work.memory.set_waves(work.waves.asked, work.waves.asked - 1)?;
        (work.waves.longest_ns, work.waves.all_ns) = (0, 0);
        let (number, size) = (work.waves.asked, work.ranks.len());
        let (wave, how) = if work.is_non_blocking() {
            (Wave::non_blocking(number, size), 0)
        } else {
            (Wave::new(number, size), IN_WAVE)
        };
        work.waves.current = Some((wave, Instant::now()));
        for rank in 0..size {
            let Some(work) = &mut self.work else { break };
            let how = how | work.bit_for_files();
            if let Err(error) = work.ranks[rank].ask_for_image(number, how, None) {
                return self.drop_wave(rank, &error.to_string());
            }
        }
        Ok(())
    }

    /// What a rank says in a wave.
    pub(super) fn said_in_wave(&mut self, rank: usize, datagram: Datagram, snapshot: Option<Socket>) -> io::Result<()> {
        let step = match (datagram.kind, snapshot) {
            (Kind::Stopped, _) => {
                let account = self.account_for(rank)?;
                let Some(work) = &mut self.work else { return Ok(()) };
                if account.is_none() {
                    return self.drop_wave(rank, "it is talking to the process manager");
                }
                work.ranks[rank].images.account_while_taking(account);
                if work.is_non_blocking() {
                    work.tell(rank, &Datagram::new(Kind::Go, datagram.a, 0, 0));
                    return Ok(());
                }
                work.waves.current.as_mut().map(|(wave, _)| wave.stopped(rank as u32))
            }
            (Kind::Drained, _) => {
                let wave = self.work.as_mut().and_then(|work| work.waves.current.as_mut());
                wave.map(|(wave, _)| wave.drained(rank as u32, datagram.b))
            }
            (Kind::Taken, Some(socket)) => {
                let Some(work) = &mut self.work else { return Ok(()) };
                work.waves.longest_ns = work.waves.longest_ns.max(datagram.c);
                work.waves.all_ns += datagram.c;
                work.ranks[rank].images.add_candidate(datagram, socket);
                work.waves.current.as_mut().map(|(wave, _)| wave.copied(rank as u32))
            }
            (Kind::Refused, _) => return self.drop_wave(rank, datagram.text()),
            _ => None,
        };
        let Some(work) = &mut self.work else { return Ok(()) };
        let Some((wave, began)) = &work.waves.current else {
            return Ok(());
        };
        match step {
            Some(Step::Drain) => work.tell_all(Kind::Drain, wave.number()),
            Some(Step::Copy) => work.tell_all(Kind::Go, wave.number()),
            Some(Step::Complete) => {
                let (number, began) = (wave.number(), *began);
                if let Err(error) = work.take_in_transit(number) {
                    return self.drop_wave(rank, &error.to_string());
                }
                let complete = ToDispatcher::WaveComplete {
                    number,
                    total_ns: began.elapsed().as_nanos() as u64,
                    longest_stall_ns: work.waves.longest_ns,
                    all_stalls_ns: work.waves.all_ns,
                };
                work.waves.current = None;
                let size = work.ranks.len();
                for rank in 0..size {
                    self.promote_candidate(rank)?;
                }
                self.send(&complete)?;
                self.write_wave(number)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Has the wave that has just become complete written to files, if there are to be files.
    fn write_wave(&mut self, number: u64) -> io::Result<()> {
        let Some(work) = &self.work else { return Ok(()) };
        let size = work.ranks.len();
        if let Some(store) = &work.store
            && work.is_non_blocking()
            && let Err(error) = store.write_in_transit(number, &work.waves.in_transit.1.encode(number))
        {
            let reason = format!("what was in transit cannot be written: {error}");
            return (0..size).try_for_each(|rank| self.not_written(rank, number, reason.clone()));
        }
        (0..size).try_for_each(|rank| self.write_image(rank))
    }

    /// The current wave, if there is one, cannot become complete because of `rank`.
    pub(super) fn drop_wave(&mut self, rank: usize, why: &str) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        let Some((mut wave, _)) = work.waves.current.take() else {
            return Ok(());
        };
        wave.failed();
        work.memory.set_waves(wave.number(), wave.number())?;
        work.tell_all(Kind::Abandon, wave.number());
        work.ranks.iter_mut().for_each(|rank| rank.images.drop_candidate());
        let reason = why.to_string();
        self.send(&ToDispatcher::NotCheckpointed { rank, reason })
    }

    /// From now on ranks have images alone; those that they have stay good for that.
    pub(super) fn end_waves(&mut self) -> io::Result<()> {
        self.drop_wave(0, "there are no waves any more")?;
        if let Some(work) = &mut self.work {
            work.job.protocol = nm::PROTOCOL_PESSIMISTIC;
        }
        Ok(())
    }

    /// All ranks return to the last complete wave, or to the beginning if there is none.
    pub(super) fn return_to_wave(&mut self, rank: usize) -> io::Result<()> {
        self.drop_wave(rank, "it has failed")?;
        let Some(work) = &mut self.work else { return Ok(()) };
        if work.is_returning() {
            return Ok(());
        }
        let alive = |rank: &Rank| rank.life.is_some() || rank.images.is_waking();
        let (returning, turn) = Return::new(work.ranks.iter().map(alive).collect());
        work.waves.returning = Some(returning);
        self.take_turn(turn)
    }

    fn take_turn(&mut self, turn: Turn) -> io::Result<()> {
        match turn {
            Turn::Wait => Ok(()),
            Turn::End => self.end_all(),
            Turn::Begin => self.begin_again(),
            Turn::Go => self.go_on(),
        }
    }

    /// Ends every process that has a number; what snapshots make has none yet and is ended as soon as it has.
    fn end_all(&mut self) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        for life in work.ranks.iter().filter_map(|rank| rank.life.as_ref()) {
            life.signal(Signal::SIGKILL);
        }
        Ok(())
    }

    /// While all ranks return: the end of an old process, or of a new one that has not been let go.
    pub(super) fn ended_while_returning(&mut self, rank: usize, end: End) -> io::Result<()> {
        let lost = self.take_failed_restore(rank, end);
        let Some(work) = &mut self.work else { return Ok(()) };
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
        let Some(returning) = self.work.as_mut().and_then(|work| work.waves.returning.as_mut()) else {
            return Ok(());
        };
        let turn = returning.ended(rank as u32);
        if returning.attempts() > ATTEMPTS {
            let reason = "the ranks could not be brought back to their last wave".to_string();
            return self.send(&ToDispatcher::Failed { reason });
        }
        self.take_turn(turn)
    }

    fn begin_again(&mut self) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        let size = work.ranks.len();
        let (wave, lost) = work.choose_wave();
        // Where there are logs each rank cuts its own off where it was.
        if wave == 0 || !work.logs() {
            work.memory.reset(&work.job, size)?;
            work.memory.set_waves(work.waves.asked, work.waves.asked)?;
        }
        if wave > 0 && work.is_non_blocking() {
            work.memory.put_in_transit(&work.waves.in_transit.1)?;
        }
        for (number, reason) in lost {
            self.send(&ToDispatcher::ImageLost {
                rank: 0,
                number,
                reason,
            })?;
        }
        let Some(work) = &mut self.work else { return Ok(()) };
        if wave == 0 {
            if work.ranks.iter().any(|rank| rank.images.begun) {
                let reason = "there is no wave whose images can all be used".to_string();
                return self.send(&ToDispatcher::Failed { reason });
            }
            work.server.reset();
        }
        for rank in 0..size {
            let fault = self.work.as_ref().map_or(0, |work| work.ranks[rank].fault_at_messages);
            if let Err(error) = self.start_life(rank, fault) {
                return self.not_started_again(rank, &error);
            }
        }
        if wave == 0
            && let Some(work) = &mut self.work
        {
            work.waves.returning = None;
            self.send(&ToDispatcher::Returned { wave: 0 })?;
        }
        Ok(())
    }

    /// A woken rank waits for the others.
    pub(super) fn ready_to_go_on(&mut self, rank: usize) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        let returning = work.waves.returning.as_mut();
        match returning.map(|returning| returning.ready(rank as u32)) {
            Some(turn) => self.take_turn(turn),
            None => Ok(()),
        }
    }

    fn go_on(&mut self) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        work.waves.returning = None;
        let wave = work.waves.chosen;
        self.send(&ToDispatcher::Returned { wave })?;
        if let Some(work) = &self.work {
            work.tell_all(Kind::Go, 0);
        }
        Ok(())
    }

    /// The snapshot of `rank` is gone, and with it the wave.
    pub(super) fn wave_lost(&mut self, rank: usize) -> io::Result<()> {
        let Some(work) = &mut self.work else { return Ok(()) };
        if !work.is_returning() {
            // But not what the ranks are doing for the next one.
            for rank in 0..work.ranks.len() {
                self.forget_newest(rank)?;
            }
        } else if work.ranks[rank].life.is_none() {
            // It was to be woken from it. The other snapshots tell the numbers of the processes that they have made, and are
            // forgotten then.
            return self.ended_for_return(rank);
        }
        Ok(())
    }
}

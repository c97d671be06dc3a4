//! The coordinator's hands: the agent reports facts to it by way of the dispatcher, which runs it. Its commands become
//! datagrams to ranks and snapshots, words in the node memory, and files. The agent decides nothing here; see
//! [`resurgo_protocol::coordinator`].

use std::io;
use std::time::Instant;

use nix::sys::signal::Signal;
use resurgo_protocol::coordinator::{From, Manner, State};
use resurgo_protocol::group::Turn;
use resurgo_protocol::{Command, Fact, kinds};
use resurgo_wire::control::{ToDispatcher, pieces};
use resurgo_wire::image::{Datagram, IN_WAVE, Kind};
use resurgo_wire::node_memory::{PHASE_CLOSED, PHASE_LIVE, control, header};

use super::in_transit::InTransit;
use super::ranks::Rank;
use super::suspend::Halt;
use super::{Agent, Work};
use crate::memory;
use crate::note::Counts;

/// The agent's state for waves.
#[derive(Default)]
pub(super) struct Waves {
    /// What was in transit in waves, by their numbers.
    transit: Vec<(u64, InTransit)>,
    /// The received pieces of a part that goes into the memory.
    coming: Vec<u8>,
    /// The last turn that the agent has set.
    pub turn: Turn,
    /// The wave with which logs in the memory begin, after they began anew.
    logs_since: u64,
    /// There were waves, and all ranks begin again when one cannot recover alone.
    pub may_begin_again: bool,
    /// When the agent next looks at ranks with deferred messages.
    pub buffers_at: Option<Instant>,
}

impl Waves {
    fn transit(&self, wave: u64) -> Option<&InTransit> {
        let known = self.transit.iter().find(|(number, _)| *number == wave);
        known.map(|(_, transit)| transit)
    }
}

impl Work {
    /// The rank runs on this node.
    pub(super) fn is_here(&self, rank: usize) -> bool {
        self.job.nodes.as_ref().is_none_or(|nodes| nodes.is_here(rank))
    }

    /// No node sends what is in its logs: each has to put what is in transit from it to ranks there.
    fn is_on_lost_node(&self, rank: usize) -> bool {
        self.job.nodes.as_ref().is_some_and(|nodes| nodes.is_lost(rank))
    }

    /// Ranks take images together.
    pub(super) fn has_waves(&self) -> bool {
        self.job.protocol.has_waves()
    }

    /// Messages are logged in the node memory.
    pub(super) fn logs(&self) -> bool {
        self.job.protocol.logs()
    }

    /// Only the failed rank's unit returns, and repeats its work.
    pub(super) fn is_hierarchical(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::OfEachGroup
    }

    /// A dead rank needs no answer.
    pub(super) fn tell(&self, rank: u32, kind: Kind, number: u64) {
        let life = self.ranks[rank as usize].life.as_ref();
        if let Some(socket) = life.and_then(|life| life.image.as_ref()) {
            let _ = socket.send(&Datagram::new(kind, number, 0, 0), &[]);
        }
    }

    /// The state of `rank`, for the decision on its image.
    fn state_of(&self, rank: usize) -> io::Result<State> {
        let this = &self.ranks[rank];
        let phase = self.memory.phase(rank)?;
        Ok(if self.is_recording() {
            State::Writing
        } else if this.is_filling() {
            State::Filling
        } else if phase == PHASE_LIVE && (self.has_waves() || this.is_up_to_date()) {
            State::Live
        } else if phase == PHASE_CLOSED {
            State::Closed
        } else if !this.repeats() && phase != PHASE_LIVE {
            State::NotOpened
        } else if phase == PHASE_LIVE && !this.repeats() {
            State::Behind
        } else {
            State::Repeats
        })
    }

    /// Reads from its file what was in transit in `wave`.
    pub(super) fn read_transit(&mut self, wave: u64) -> io::Result<()> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = store.read_in_transit(wave)?;
        let transit = InTransit::decode(&bytes, wave, self.ranks.len())?;
        self.waves.transit.push((wave, transit));
        Ok(())
    }

    /// Copies from the logs what was in transit in `wave`; all ranks are copied.
    fn take_transit(&mut self, wave: u64) -> io::Result<()> {
        let has_ended = |rank: usize| self.ranks[rank].has_finished();
        let transit = self.memory.in_transit(self.ranks.len(), wave, |_| true, has_ended)?;
        self.waves.transit.push((wave, transit));
        Ok(())
    }

    /// A piece of what was in transit to ranks of a node, to be put into the memory.
    pub(super) fn transit_given(&mut self, wave: u64, is_last: bool, bytes: &[u8]) -> io::Result<()> {
        self.waves.coming.extend_from_slice(bytes);
        if !is_last {
            return Ok(());
        }
        let part = InTransit::decode(&std::mem::take(&mut self.waves.coming), wave, self.ranks.len())?;
        match self.waves.transit.iter_mut().find(|(number, _)| *number == wave) {
            Some((_, transit)) => transit.add(part),
            None => self.waves.transit.push((wave, part)),
        }
        Ok(())
    }

    fn write_transit(&self, wave: u64) -> io::Result<()> {
        let known = self.waves.transit(wave).zip(self.store.as_ref());
        let (transit, store) = known.ok_or(io::ErrorKind::NotFound)?;
        store.write_in_transit(wave, transit.encode(wave))
    }

    fn put_transit(&mut self, wave: u64) -> io::Result<()> {
        if let Some(transit) = self.waves.transit(wave) {
            self.memory
                .put_in_transit(transit, |rank| self.is_here(rank) || self.is_on_lost_node(rank))?;
        }
        if let Some(net) = &self.net {
            // A rank that has finished rings no more.
            let here = (0..self.ranks.len()).filter(|rank| self.is_here(*rank));
            here.for_each(|rank| net.has_logs(rank as u32));
        }
        if self.job.nodes.is_some() {
            // The dispatcher has it.
            self.waves.transit.clear();
        }
        Ok(())
    }
}

impl Agent {
    /// Reports a fact to the coordinator. It leaves with all other messages before the agent waits again.
    pub(super) fn report(&mut self, fact: Fact) {
        self.control.queue(&ToDispatcher::Fact(fact));
    }

    /// Carries out an order of the coordinator.
    pub(super) fn carry_out(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Survey { number, ranks, traffic } => self.survey(number, ranks, traffic),
            Command::Ask { rank, number, manner } => self.ask_for_image(rank, number, manner),
            Command::Notice { rank, turn } => self.notice(rank, turn),
            Command::Drain { rank, number } => self.tell(rank, Kind::Drain, number),
            Command::Copy { rank, number } => self.tell(rank, Kind::Go, number),
            Command::Abandon { rank, number } => {
                self.image_abandoned(rank, number);
                self.tell(rank, Kind::Abandon, number)
            }
            Command::Go { rank } => {
                self.work.ranks[rank as usize].asked.waits = false;
                // Images may hold messages that were deferred.
                self.work.look_at_buffers();
                self.tell(rank, Kind::Go, 0)
            }
            Command::TakeTransit { .. }
            | Command::ReadTransit { .. }
            | Command::PutTransit { .. }
            | Command::WriteTransit { .. }
            | Command::ForgetTransit { .. }
            | Command::CollectTransit { .. } => self.mind_transit(command),
            Command::EndCopy { rank, number } => {
                self.work.ranks[rank as usize].images.end_copy(number);
                Ok(())
            }
            Command::Write { rank, number } => self.write_image(rank as usize, number),
            Command::GiveUp { rank, number } | Command::Collect { rank, number } => {
                match command {
                    Command::GiveUp { .. } => self.work.give_up_file(rank as usize, number),
                    _ => self.work.collect_file(rank as usize, number),
                }
                self.work.forget_copy(rank, number);
                self.tell_held()
            }
            Command::Forget { rank, before } => self.work.forget_before(rank as usize, before),
            Command::ForgetEnded { rank, before } => self.work.forget_ended(rank as usize, before),
            Command::LetGo { rank } => self.let_go(rank as usize),
            Command::Kill { rank, life } => {
                self.work.end_awaited(rank, life);
                self.end_waiting(rank, life);
                self.work.ranks[rank as usize].end_by_order(life);
                Ok(())
            }
            Command::Begin {
                rank,
                life,
                from,
                together,
                reads,
                is_oldest,
                ..
            } => {
                self.work.ranks[rank as usize].images.begins_from_oldest = is_oldest;
                self.begin_here(rank, life, from, together, reads)
            }
            Command::Replicate { rank, number, to, .. } => {
                self.replicate(rank, number, to);
                Ok(())
            }
            Command::Encode { .. }
            | Command::DropCopy { .. }
            | Command::CollectSet { .. }
            | Command::Rebuild { .. } => {
                self.mind_parity(command);
                self.tell_held()
            }
            Command::Record { wave, oldest } => self.begin_recording(wave, oldest),
            Command::ForgetRecord => {
                self.forget_record();
                Ok(())
            }
            Command::Probe { .. } | Command::InVain { .. } => self.mind_wait(&command),
            others => self.have_carried_out(others),
        }
    }

    fn notice(&mut self, rank: u32, turn: Turn) -> io::Result<()> {
        self.work.find_program(rank as usize)?;
        if let Err(error) = self.work.ranks[rank as usize].notice(turn) {
            self.refused(rank, turn.wave, &error.to_string());
        }
        Ok(())
    }

    /// Orders that concern all ranks. Logs may be long where they begin anew, and no rank runs then.
    fn have_carried_out(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Undo { .. } => {
                self.meanwhile(move |work| work.carry_out(command))??;
                self.tell_undo()
            }
            Command::Reset | Command::EmptyLogs | Command::LogsOfWave { .. } => {
                self.meanwhile(move |work| work.carry_out(command))?
            }
            others => self.work.carry_out(others),
        }
    }

    pub(super) fn begin(&mut self, rank: usize, life: u64, from: From, together: bool) -> io::Result<()> {
        let can_begin = match together {
            true => self.work.is_undone(rank, from.number()),
            false => Ok(()),
        };
        let Err(error) = can_begin.and_then(|()| self.start_life(rank, life, from, together)) else {
            return Ok(());
        };
        // The agent starts no other rank: the dispatcher ends the job.
        self.is_broken = true;
        let reason = format!("{error}{}", crate::hint(&error));
        self.send(&ToDispatcher::NotStarted { rank, reason })
    }

    fn tell(&mut self, rank: u32, kind: Kind, number: u64) -> io::Result<()> {
        self.work.tell(rank, kind, number);
        Ok(())
    }

    pub(super) fn refused(&mut self, rank: u32, number: u64, reason: &str) {
        let reason = reason.to_string();
        self.report(Fact::Refused { rank, number, reason });
    }

    /// Orders about what was in transit in waves.
    fn mind_transit(&mut self, command: Command) -> io::Result<()> {
        let lost = |number, reason: String| Fact::TransitLost { number, reason };
        match command {
            Command::TakeTransit { number } if self.work.job.nodes.is_some() => {
                let taken = self.meanwhile(move |work| {
                    let has_ended = |rank: usize| work.ranks[rank].has_finished();
                    let is_here = |rank: usize| work.is_here(rank);
                    let transit = work.memory.in_transit(work.ranks.len(), number, is_here, has_ended)?;
                    io::Result::Ok(transit.encode(number))
                })?;
                match taken {
                    Ok(bytes) => self.give_transit(number, &bytes),
                    Err(error) => self.report(lost(number, error.to_string())),
                }
            }
            Command::TakeTransit { number } => {
                let fact = match self.meanwhile(move |work| work.take_transit(number))? {
                    Ok(()) => Fact::TransitKnown { number },
                    Err(error) => lost(number, error.to_string()),
                };
                self.report(fact);
            }
            Command::ReadTransit { number } => match self.meanwhile(move |work| work.read_transit(number))? {
                Ok(()) => self.report(Fact::TransitKnown { number }),
                Err(error) => self.fetch_transit(number, &error),
            },
            Command::WriteTransit { number } => {
                if let Err(error) = self.meanwhile(move |work| work.write_transit(number))? {
                    let reason = error.to_string();
                    self.report(Fact::TransitNotWritten { number, reason });
                }
            }
            Command::PutTransit { number } => self.meanwhile(move |work| work.put_transit(number))??,
            Command::ForgetTransit { before } => self.work.waves.transit.retain(|(number, _)| *number >= before),
            Command::CollectTransit { keep } => {
                let store = self.work.store.iter();
                store.for_each(|store| store.remove_in_transit(&keep));
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends the dispatcher what was in transit to ranks of this node, one of several.
    fn give_transit(&mut self, number: u64, bytes: &[u8]) {
        for (piece, is_last) in pieces(bytes) {
            let bytes = piece.to_vec();
            self.control.queue(&ToDispatcher::InTransit { number, is_last, bytes });
        }
    }

    /// Reports the state of these ranks, and with `traffic` the number of messages from them to each rank.
    fn survey(&mut self, number: u64, ranks: Vec<u32>, traffic: bool) -> io::Result<()> {
        for rank in ranks {
            let work = &self.work;
            let this = rank as usize;
            if !work.is_here(this) {
                continue;
            }
            let life = work.ranks[this].life.as_ref();
            let fact = Fact::Surveyed {
                rank,
                number,
                state: work.state_of(this)?,
                held: memory::held_by(life.map(|life| life.pid.as_raw()).into_iter()),
                sent: match traffic {
                    true => work.memory.messages(this, work.ranks.len())?,
                    false => Vec::new(),
                },
            };
            self.report(fact);
        }
        Ok(())
    }

    /// Asks the running process for an image.
    pub(super) fn ask_for_image(&mut self, rank: u32, number: u64, manner: Manner) -> io::Result<()> {
        self.work.ranks[rank as usize].images.asked = number;
        if self.parts_first(rank as usize, number, manner)? {
            return Ok(());
        }
        let work = &mut self.work;
        let mut how = work.bit_for_files();
        // All images of a wave must be there before one counts.
        let former = work.store.as_ref().filter(|_| how != 0 && manner == Manner::Alone);
        let former = former.and_then(|store| store.former(rank as usize).ok());
        if manner == Manner::Together {
            how |= IN_WAVE;
        }
        let oldest = work.memory.oldest_image(rank as usize)?;
        if let Err(error) = work.ranks[rank as usize].ask_for_image(number, how, former, oldest) {
            self.refused(rank, number, &error.to_string());
        }
        Ok(())
    }
}

impl Work {
    /// Orders that concern all ranks.
    fn carry_out(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Waves { asked, over } => self.memory.set_waves(asked, over),
            Command::Groups(groups) => self.tell_groups(&groups),
            Command::Turn(turn) => self.set_turn(turn),
            Command::Reset => {
                for rank in 0..self.ranks.len() {
                    let is_here = self.is_here(rank);
                    let images = &mut self.ranks[rank].images;
                    (images.begun, images.begins_anew) = (false, is_here);
                }
                // Nobody needs logs from other nodes, or what had been known.
                (self.returning, self.vouched) = Default::default();
                self.empty_logs()
            }
            Command::Undo { number } => self.undo(number),
            Command::FilesWait { turn } => self.memory.set_header(header::FILES_WAIT, turn),
            Command::EmptyLogs => self.empty_logs(),
            Command::LogsOfWave { number, only_files } => self.begin_logs_of_wave(number, only_files),
            Command::CutInside { ranks } => {
                let ranks: Vec<usize> = ranks.into_iter().map(|rank| rank as usize).collect();
                self.memory.cut_off_inside(&ranks)
            }
            Command::Protocol {
                protocol,
                may_begin_again,
            } => {
                self.job.protocol = protocol;
                self.waves.may_begin_again = may_begin_again;
                Ok(())
            }
            Command::Halt => {
                self.halt = Halt::Ending;
                Ok(())
            }
            Command::GoOn => {
                self.halt = Halt::No;
                Ok(())
            }
            // Other orders are not the agent's.
            _ => Ok(()),
        }
    }

    /// Logs, records and all other shared state begin anew.
    fn empty_logs(&mut self) -> io::Result<()> {
        self.ranks.iter_mut().for_each(|rank| rank.images.lacks_log = false);
        self.waves.logs_since = 0;
        let quiet = self.chores.void();
        let _quiet = quiet.hold();
        let empty = || self.memory.reset(&self.job, self.ranks.len());
        match &mut self.net {
            Some(net) => net.empty(empty),
            None => empty(),
        }?;
        self.show_ends()
    }

    /// Shows in an emptied memory which ranks have finished: others wait for nothing from them.
    pub(super) fn show_ends(&self) -> io::Result<()> {
        let mut ranks = (0..).zip(&self.ranks).filter(|(_, this)| this.has_finished());
        ranks.try_for_each(|(rank, _)| self.memory.set_control(rank, control::PHASE, PHASE_CLOSED))
    }

    /// These ranks have finished. Of its own ranks this node knows more.
    pub(super) fn know_ends(&mut self, ends: &[usize]) -> io::Result<()> {
        for rank in 0..self.ranks.len() {
            if !self.is_here(rank) {
                self.ranks[rank].has_ended_elsewhere(ends.contains(&rank));
            }
        }
        self.show_ends()
    }

    /// A rank that has finished, with messages on their way to this rank at its image. The image is of no use where the
    /// log that holds them is lost: nothing lies beside an end.
    pub(super) fn awaits_ended(&self, rank: usize, image: &Counts) -> io::Result<Option<usize>> {
        let outlive_memory = self.store.is_some() || self.job.nodes.is_some();
        if !outlive_memory || !self.has_logs_of_waves() {
            return Ok(None);
        }
        for (source, this) in self.ranks.iter().enumerate() {
            let mut channels = image.channels.iter();
            let channel = channels.find(|channel| channel.peer == source);
            let delivered = channel.map_or(0, |channel| channel.delivered);
            if this.has_finished() && self.memory.announced(source, rank)? > delivered {
                return Ok(Some(source));
            }
        }
        Ok(None)
    }

    /// Per rank, the slot with the cursors of its image of this wave, where known.
    pub(super) fn slots_of_wave(&self, number: u64) -> io::Result<Vec<Option<usize>>> {
        let slots = self
            .ranks
            .iter()
            .enumerate()
            .map(|(rank, this)| match self.is_here(rank) {
                true => Ok(this.images.slot_of(number)),
                false => self.memory.slot_of_image(rank, number),
            });
        slots.collect()
    }

    /// Logs of waves are in files beside the images.
    pub(super) fn has_logs_of_waves(&self) -> bool {
        self.logs() && self.has_waves() && !self.is_hierarchical()
    }

    /// Logs begin anew with the parts that this wave needs. Parts that are not in the memory come back when lives
    /// begin.
    fn begin_logs_of_wave(&mut self, number: u64, only_files: bool) -> io::Result<()> {
        let slots = self.slots_of_wave(number)?;
        let is_in_memory = number >= self.waves.logs_since && !only_files;
        // If its end is its image, that has taken nothing along, and others need nothing of its log.
        let has_end = |rank: usize| self.ranks[rank].has_finished() && slots[rank].is_none();
        let is_kept = |rank: usize| self.is_here(rank) && !self.ranks[rank].images.lacks_log && !has_end(rank);
        let has_log = |rank: &usize| is_in_memory && is_kept(*rank);
        let own: Vec<usize> = (0..self.ranks.len()).filter(has_log).collect();
        let quiet = self.chores.void();
        let _quiet = quiet.hold();
        let (memory, job, ranks) = (&self.memory, &self.job, self.ranks.len());
        let begin = || {
            let logs = own.iter().map(|rank| memory.take_log(*rank, &slots));
            let logs = logs.collect::<io::Result<Vec<_>>>()?;
            memory.reset(job, ranks)?;
            let mut logs = own.iter().zip(&logs);
            logs.try_for_each(|(rank, log)| memory.put_log(*rank, log))
        };
        match &mut self.net {
            Some(net) => net.empty(begin),
            None => begin(),
        }?;
        self.show_ends()?;
        self.waves.logs_since = number;
        for (rank, this) in self.ranks.iter_mut().enumerate() {
            this.images.lacks_log = !own.contains(&rank);
        }
        Ok(())
    }
}

impl Rank {
    /// Ends life `life` by the coordinator's order, as soon as its process is known.
    pub(super) fn end_by_order(&mut self, life: u64) {
        if self.asked.life != life {
            return;
        }
        self.asked.is_ended = true;
        if let Some(life) = &self.life {
            life.signal(Signal::SIGKILL);
        }
    }
}

//! The coordinator's hands: what happens is told to it as facts, and its commands become datagrams to ranks and snapshots, words in
//! the node memory, files, and messages to the dispatcher. Nothing is decided here; see [`resurgo_protocol::coordinator`].

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use resurgo_protocol::coordinator::{Manner, Plan, State};
use resurgo_protocol::{Command, Fact, kinds};
use resurgo_wire::control::{Job, ToDispatcher};
use resurgo_wire::image::{Datagram, IN_WAVE, Kind};
use resurgo_wire::node_memory::{PHASE_CLOSED, PHASE_LIVE};

use super::in_transit::InTransit;
use super::ranks::Rank;
use super::{Agent, Work};
use crate::memory;

/// What the agent holds for waves.
#[derive(Default)]
pub(super) struct Waves {
    /// What was in transit in waves, by their numbers.
    transit: Vec<(u64, InTransit)>,
    /// Groups were to be formed by communication, and it was global.
    pub is_global: bool,
    /// When ranks are looked at that have deferred messages.
    pub buffers_at: Option<Instant>,
}

impl Waves {
    fn transit(&self, wave: u64) -> Option<&InTransit> {
        let known = self.transit.iter().find(|(number, _)| *number == wave);
        known.map(|(_, transit)| transit)
    }
}

/// What the coordinator of `job` is to do.
pub(super) fn plan(job: &Job, ranks: usize) -> Plan {
    Plan {
        protocol: job.protocol,
        units: job.units(ranks),
        files: job.image_files.directory.is_some(),
        partners: false,
        local_copies: job.image_files.local_copies,
        groups_at_once: job.groups_at_once,
    }
}

impl Work {
    /// Ranks have images together.
    pub(super) fn has_waves(&self) -> bool {
        self.job.protocol.has_waves()
    }

    /// Messages are logged in the node memory.
    pub(super) fn logs(&self) -> bool {
        self.job.protocol.logs()
    }

    /// Only the failed rank's unit returns, and repeats what it has done.
    pub(super) fn is_hierarchical(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::OfEachGroup
    }

    /// The unit of `rank` returns to a wave: the ends of its processes are no failures.
    pub(super) fn is_returning(&self, rank: usize) -> bool {
        self.coordinator.is_returning(rank as u32)
    }

    /// When the coordinator is to be told that nobody says anything about an image.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.coordinator.due().map(|due| self.began + due)
    }

    /// Whoever has died meanwhile needs no answer.
    pub(super) fn tell(&self, rank: u32, kind: Kind, number: u64) {
        let life = self.ranks[rank as usize].life.as_ref();
        if let Some(socket) = life.and_then(|life| life.image.as_ref()) {
            let _ = socket.send(&Datagram::new(kind, number, 0, 0), &[]);
        }
    }

    /// What `rank` does, when an image of it is wanted.
    fn state_of(&self, rank: usize) -> io::Result<State> {
        let this = &self.ranks[rank];
        let phase = self.memory.phase(rank)?;
        Ok(if self.recording.is_some() {
            State::Writing
        } else if this.is_filling() {
            State::Filling
        } else if phase == PHASE_LIVE && (self.has_waves() || this.is_up_to_date()) {
            State::Live
        } else if phase == PHASE_CLOSED {
            State::Closed
        } else if !this.repeats() && phase != PHASE_LIVE {
            State::NotOpened
        } else {
            State::Repeats
        })
    }

    /// Finds in its file what was in transit in `wave`.
    fn read_transit(&mut self, wave: u64) -> io::Result<()> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = store.read_in_transit(wave)?;
        let transit = InTransit::decode(&bytes, wave, self.ranks.len())?;
        self.waves.transit.push((wave, transit));
        Ok(())
    }

    /// Takes out of the logs what was in transit in `wave`, for which all ranks have been copied.
    fn take_transit(&mut self, wave: u64) -> io::Result<()> {
        let transit = self.memory.in_transit(self.ranks.len(), wave)?;
        self.waves.transit.push((wave, transit));
        Ok(())
    }

    fn write_transit(&self, wave: u64) -> io::Result<()> {
        let known = self.waves.transit(wave).zip(self.store.as_ref());
        let (transit, store) = known.ok_or(io::ErrorKind::NotFound)?;
        store.write_in_transit(wave, &transit.encode(wave))
    }

    fn put_transit(&self, wave: u64) -> io::Result<()> {
        match self.waves.transit(wave) {
            Some(transit) => self.memory.put_in_transit(transit),
            None => Ok(()),
        }
    }
}

impl Agent {
    /// Tells the coordinator what has happened, and does what follows.
    pub(super) fn coordinate(&mut self, fact: Fact) -> io::Result<()> {
        let now = self.work.began.elapsed();
        self.work.coordinator.handle(fact, now);
        while let Some(command) = self.work.coordinator.poll() {
            self.carry_out(command)?;
        }
        Ok(())
    }

    /// The same when ranks are started for the first time: none of them may be missing.
    pub(super) fn coordinate_starts(&mut self, fact: Fact) -> Result<(), (usize, io::Error)> {
        let now = self.work.began.elapsed();
        self.work.coordinator.handle(fact, now);
        while let Some(command) = self.work.coordinator.poll() {
            match command {
                Command::Begin {
                    rank,
                    life,
                    from,
                    together,
                    ..
                } => {
                    let rank = rank as usize;
                    self.start_life(rank, life, from, together)
                        .map_err(|error| (rank, error))?;
                }
                command => self.carry_out(command).map_err(|error| (0, error))?,
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Waves { asked, over } => self.work.memory.set_waves(asked, over),
            Command::Groups(groups) => self.work.tell_groups(&groups),
            Command::Turn(turn) => self.work.set_turn(turn),
            Command::Ask { rank, number, manner } => self.ask_for_image(rank, number, manner),
            Command::Notice { rank, turn } => match self.work.ranks[rank as usize].notice(turn) {
                Ok(()) => Ok(()),
                Err(error) => self.refused(rank, turn.wave, &error.to_string()),
            },
            Command::Drain { rank, number } => self.tell(rank, Kind::Drain, number),
            Command::Copy { rank, number } => self.tell(rank, Kind::Go, number),
            Command::Abandon { rank, number } => self.tell(rank, Kind::Abandon, number),
            Command::Go { rank } => {
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
            Command::GiveUp { rank, number } => {
                self.work.give_up_file(rank as usize, number);
                Ok(())
            }
            Command::Collect { rank, number } => {
                self.work.collect_file(rank as usize, number);
                Ok(())
            }
            Command::Forget { rank, before } => self.work.forget_before(rank as usize, before),
            Command::Kill { rank, .. } => {
                self.work.ranks[rank as usize].kill();
                Ok(())
            }
            Command::Reset => {
                self.control.queue(&ToDispatcher::BeginAnew);
                self.work.empty_logs()
            }
            Command::EmptyLogs => self.work.empty_logs(),
            Command::CutInside { unit } => {
                let members = self.work.coordinator.members(unit).iter();
                let members: Vec<usize> = members.map(|rank| *rank as usize).collect();
                self.work.memory.cut_off_inside(&members)
            }
            Command::Begin {
                rank,
                life,
                from,
                together,
                ..
            } => {
                let rank = rank as usize;
                match self.start_life(rank, life, from, together) {
                    Ok(()) => Ok(()),
                    Err(error) => self.not_started_again(rank, &error),
                }
            }
            told => {
                let message = self.work.message(told);
                message.map_or(Ok(()), |message| self.send(&message))
            }
        }
    }

    fn tell(&mut self, rank: u32, kind: Kind, number: u64) -> io::Result<()> {
        self.work.tell(rank, kind, number);
        Ok(())
    }

    pub(super) fn refused(&mut self, rank: u32, number: u64, reason: &str) -> io::Result<()> {
        let reason = reason.to_string();
        self.coordinate(Fact::Refused { rank, number, reason })
    }

    /// What was in transit in waves.
    fn mind_transit(&mut self, command: Command) -> io::Result<()> {
        let work = &mut self.work;
        let lost = |number, reason: String| Fact::TransitLost { number, reason };
        match command {
            Command::TakeTransit { number } => match work.take_transit(number) {
                Ok(()) => self.coordinate(Fact::TransitKnown { number }),
                Err(error) => self.coordinate(lost(number, error.to_string())),
            },
            Command::ReadTransit { number } => match work.read_transit(number) {
                Ok(()) => self.coordinate(Fact::TransitKnown { number }),
                Err(error) => {
                    let reason = format!("what was in transit cannot be read: {error}");
                    self.send(&ToDispatcher::ImageLost {
                        rank: 0,
                        number,
                        reason: reason.clone(),
                    })?;
                    self.coordinate(lost(number, reason))
                }
            },
            Command::WriteTransit { number } => match work.write_transit(number) {
                Ok(()) => Ok(()),
                Err(error) => {
                    let reason = error.to_string();
                    self.coordinate(Fact::TransitNotWritten { number, reason })
                }
            },
            Command::PutTransit { number } => work.put_transit(number),
            Command::ForgetTransit { before } => {
                work.waves.transit.retain(|(number, _)| *number >= before);
                Ok(())
            }
            Command::CollectTransit { keep } => {
                work.store.iter().for_each(|store| store.remove_in_transit(&keep));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The dispatcher wants images of a unit; where ranks have them alone it is a rank.
    pub(super) fn want_images(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        let members = match work.has_waves() {
            true => work
                .coordinator
                .members(unit)
                .iter()
                .map(|rank| *rank as usize)
                .collect(),
            false => vec![unit],
        };
        let states = members.iter().map(|rank| work.state_of(*rank));
        let states = states.collect::<io::Result<Vec<_>>>()?;
        let lives = members.iter().filter_map(|rank| work.ranks[*rank].life.as_ref());
        let held = memory::held_by(lives.map(|life| life.pid.as_raw()));
        let groups = match work.is_in_groups() {
            true => Some(work.form_groups()?),
            false => None,
        };
        self.coordinate(Fact::Wanted {
            unit,
            states,
            held,
            groups,
        })
    }

    /// Tells the coordinator when nobody has said anything about an image for long.
    pub(super) fn mind_silence(&mut self) -> io::Result<()> {
        match self.work.patience_ends() {
            Some(ends) if ends <= Instant::now() => self.coordinate(Fact::Due),
            _ => Ok(()),
        }
    }

    /// From now on ranks have images alone, or in waves again.
    pub(super) fn change_protocol(&mut self, fact: Fact) -> io::Result<()> {
        self.coordinate(fact)?;
        self.work.job.protocol = self.work.coordinator.protocol();
        Ok(())
    }

    /// Asks the running process for an image.
    fn ask_for_image(&mut self, rank: u32, number: u64, manner: Manner) -> io::Result<()> {
        let work = &mut self.work;
        let mut how = work.bit_for_files();
        // The images of a wave must all be there before one counts.
        let former = work.store.as_ref().filter(|_| how != 0 && manner == Manner::Alone);
        let former = former.and_then(|store| store.former(rank as usize).ok());
        if manner == Manner::Together {
            how |= IN_WAVE;
        }
        match work.ranks[rank as usize].ask_for_image(number, how, former) {
            Ok(()) => Ok(()),
            Err(error) => self.refused(rank, number, &error.to_string()),
        }
    }
}

impl Work {
    /// Logs, records and all else that ranks share begin anew.
    fn empty_logs(&mut self) -> io::Result<()> {
        let empty = || self.memory.reset(&self.job, self.ranks.len());
        match &mut self.net {
            Some(net) => net.empty(empty),
            None => empty(),
        }
    }

    /// What the dispatcher is told of a decision.
    fn message(&self, told: Command) -> Option<ToDispatcher> {
        let ns = |duration: Duration| duration.as_nanos() as u64;
        let first = |unit: usize| self.coordinator.members(unit)[0] as usize;
        Some(match told {
            Command::Taken {
                rank,
                number,
                stood,
                sleeps,
            } => ToDispatcher::Checkpointed {
                rank: rank as usize,
                number,
                stall_ns: ns(stood),
                is_snapshot: sleeps,
            },
            Command::Dropped { rank, why } => ToDispatcher::NotCheckpointed {
                rank: rank as usize,
                reason: why.to_string(),
            },
            Command::Complete {
                unit,
                number,
                total,
                longest,
                all,
                groups,
            } => ToDispatcher::WaveComplete {
                rank: first(unit),
                number,
                total_ns: ns(total),
                longest_stall_ns: ns(longest),
                all_stalls_ns: ns(all),
                groups: (0..groups.ranks() as u32).map(|rank| groups.of(rank)).collect(),
                is_global: self.waves.is_global,
            },
            Command::NotWritten { rank, number, reason } => ToDispatcher::ImageNotWritten {
                rank: rank as usize,
                number,
                reason,
            },
            Command::Returned { unit, wave } => ToDispatcher::Returned {
                rank: first(unit),
                wave,
            },
            Command::CannotRecoverAlone { rank } => {
                let rank = rank as usize;
                ToDispatcher::CannotRecoverAlone {
                    rank,
                    fault_at_messages: self.ranks[rank].fault_at_messages,
                    reason: "its last image is lost, and messages from before that image are not kept".to_string(),
                }
            }
            Command::Fail(cause) => ToDispatcher::Failed {
                reason: cause.to_string(),
            },
            _ => return None,
        })
    }
}

impl Rank {
    /// Ends the process; one that is not known yet as soon as it is.
    fn kill(&mut self) {
        match &self.life {
            Some(life) => life.signal(Signal::SIGKILL),
            None => self.is_doomed = self.images.is_waking(),
        }
    }
}

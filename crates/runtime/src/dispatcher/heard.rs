//! What the agent says, and what follows from it.

use std::path::Path;
use std::time::{Duration, Instant};

use resurgo_protocol::kinds;
use resurgo_wire::control::{Ended, ToAgent, ToDispatcher};

use super::bus::unusable_image;
use super::events::{Event, ImageCopy};
use super::images::finished;
use super::policy::Decision;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    pub(super) fn heard(&mut self, message: ToDispatcher) {
        use ToDispatcher as To;
        match message {
            To::Started { .. }
            | To::CaughtUp { .. }
            | To::Ended(_)
            | To::CannotRecoverAlone { .. }
            | To::Returned { .. } => self.heard_of_life(message),
            To::Checkpointed { .. }
            | To::LogGrows { .. }
            | To::WaveComplete { .. }
            | To::LogsMeasured { .. }
            | To::ImageWanted { .. }
            | To::NotCheckpointed { .. }
            | To::ImageWritten { .. }
            | To::ImageNotWritten { .. }
            | To::ImageLost { .. }
            | To::MemoryRead { .. } => self.heard_of_image(message),
            To::Began { .. }
            | To::BeginAnew
            | To::Said { .. }
            | To::Output { .. }
            | To::OutputAwaited { .. }
            | To::OutputEnd { .. }
            | To::AtImage { .. }
            | To::StdinWanted { .. } => self.keep_books(message),
            To::WaveInFiles { .. } | To::Recorded { .. } | To::NotRecorded { .. } => self.heard_of_record(message),
            // Those are no news of the job, and are heard elsewhere.
            To::Arrived(_) | To::Beat { .. } => {}
            To::Failed { reason } => self.cannot_go_on(&reason),
            To::Resumed => self.resumed(),
            To::ResumedElsewhere { reason } => self.resumed_elsewhere(&reason),
            To::Halted => self.halted(),
            To::Suspended { directory, bytes } => self.suspended(Path::new(&directory), bytes),
            To::NotSuspended { reason } => self.suspension_failed(&reason),
            To::Stopped { statistics } => self.stopped = Some(statistics),
            To::ProgramReplaced { rank, path } => {
                let path = Path::new(&path);
                self.bus.tell(Event::ProgramReplaced { rank, path });
            }
            To::Undone { rank, text } => self.bus.tell(Event::Undone { rank, text: &text }),
            To::Bypassed { rank, text } => self.bus.tell(Event::PmiTrouble { rank, text: &text }),
        }
    }

    /// The beginning, the way and the end of ranks' lives.
    fn heard_of_life(&mut self, message: ToDispatcher) {
        match message {
            ToDispatcher::Started {
                rank,
                life,
                pid,
                image,
                from_file,
                beginning_ns,
            } => {
                self.pids[rank] = Some(pid);
                if self.verdict.is_some() {
                    return;
                }
                self.images.unusable.remove(&rank);
                let event = Event::Started {
                    rank,
                    life,
                    pid,
                    image,
                    from_file,
                    together: self.returns(rank) && !self.is_hierarchical(),
                    beginning: Duration::from_nanos(beginning_ns),
                    processors: self
                        .about
                        .cpus
                        .get(rank % self.about.cpus.len().max(1))
                        .map(String::as_str),
                };
                self.bus.tell(event);
            }
            ToDispatcher::CaughtUp { rank, life, statistics } => {
                self.bus.caught_up(rank, life, &statistics, Instant::now());
            }
            ToDispatcher::Ended(ended) => self.rank_ended(&ended),
            ToDispatcher::CannotRecoverAlone {
                rank,
                fault_at_messages,
                reason,
            } => self.cannot_recover_alone(rank, fault_at_messages, &reason),
            ToDispatcher::Returned { rank, wave } => {
                let unit = self.unit(rank);
                self.waves.returning[unit] = false;
                let members = self.members(unit);
                self.policy.go_on(&members);
                match self.is_hierarchical() {
                    true => self.bus.tell(Event::Returned {
                        wave,
                        ranks: Some(&members),
                        lost: None,
                    }),
                    false => self.bus.returned(wave, Instant::now()),
                }
            }
            _ => {}
        }
    }

    fn rank_ended(&mut self, ended: &Ended) {
        let rank = ended.rank;
        self.pids[rank] = None;
        if let Some(codes) = &mut self.exit_codes {
            codes.insert(rank, ended.exit_code());
        }
        if self.verdict.is_some() {
            return;
        }
        let spawned_by = self.spawning.by.get(&rank).copied();
        if self.returns(rank) {
            // It had ended before the agent heard that all ranks return, and returns with them.
            self.bus.failed(ended, spawned_by, None);
            return;
        }
        if self.bus.stats().images().0 > 0 {
            self.policy.has_images();
        }
        if ended.diverged() {
            self.have_waves_again();
        }
        let decision = self.policy.ended(ended);
        if decision == Decision::Finished {
            return self.rank_finished(ended);
        }
        if self.ended_by_user(ended) {
            return;
        }
        let error = match &decision {
            Decision::EndJob { reason, .. } => Some(reason.as_str()),
            _ => None,
        };
        self.bus.failed(ended, spawned_by, error);
        self.checkpoints.failed();
        match decision {
            Decision::Restart => self.restart(ended),
            Decision::EndJob { code, .. } => self.end(code, Duration::ZERO),
            Decision::Finished => {}
        }
    }

    fn rank_finished(&mut self, ended: &Ended) {
        let rank = ended.rank;
        self.bus.tell(Event::finished(ended));
        if self.has_waves() {
            self.checkpoints.give_up(self.unit(rank), &finished(rank));
        } else {
            self.checkpoints.left(rank);
            self.suspension.rank_finished(rank);
        }
        if self.policy.all_finished() {
            let code = self.policy.exit_code();
            self.end_program(code);
        }
    }

    fn restart(&mut self, ended: &Ended) {
        let rank = ended.rank;
        if !ended.repeats {
            self.have_waves_again();
        }
        self.bus.tell(Event::Restarting { rank });
        let messages = ended.statistics.deliveries + ended.statistics.sends();
        let fault_at_messages = self.faults.next_life(rank, messages);
        if self.all_return(ended) {
            self.return_all(rank, fault_at_messages);
            return;
        }
        self.tell(ToAgent::Restart {
            rank,
            fault_at_messages,
        });
    }

    fn cannot_recover_alone(&mut self, rank: usize, fault_at_messages: u64, reason: &str) {
        if self.verdict.is_some() || self.returns(rank) {
            return;
        }
        self.have_waves_again();
        if !self.has_waves() {
            self.cannot_go_on(&format!("cannot start rank {rank} again: {reason}"));
            return;
        }
        self.all_return_from_now_on(rank, &format!("rank {rank} cannot recover alone: {reason}"));
        self.return_all(rank, fault_at_messages);
    }

    /// Images and waves, and why they are wanted.
    fn heard_of_image(&mut self, message: ToDispatcher) {
        match message {
            ToDispatcher::Checkpointed {
                rank,
                number,
                stall_ns,
                is_snapshot,
            } => self.checkpointed(rank, number, Duration::from_nanos(stall_ns), is_snapshot),
            ToDispatcher::LogGrows {
                rank, is_scarce: true, ..
            } => {
                self.bus.tell(Event::LogFills { rank });
                self.want_images(None);
            }
            ToDispatcher::LogGrows { bytes, .. } => self.checkpoints.logs_have_grown(bytes, self.start.elapsed()),
            ToDispatcher::WaveComplete { .. } => self.wave_complete(message),
            ToDispatcher::LogsMeasured { bytes } => self.checkpoints.logs_are(bytes),
            ToDispatcher::ImageWanted { rank } => {
                let unit = self.unit(rank);
                self.checkpoints.want(std::iter::once(unit), None, self.start.elapsed());
            }
            ToDispatcher::NotCheckpointed { rank, reason } => self.not_checkpointed(rank, &reason),
            ToDispatcher::ImageWritten {
                rank,
                number,
                bytes,
                written,
                write_ns,
            } => {
                let time = Duration::from_nanos(write_ns);
                self.checkpoints.end_writing(rank);
                self.bus.tell(Event::ImageWritten {
                    rank,
                    image: number,
                    bytes,
                    written,
                    time,
                });
                self.suspension.image_written(rank, time);
            }
            ToDispatcher::ImageNotWritten { rank, number, reason } => {
                self.checkpoints.end_writing(rank);
                self.bus.tell(Event::ImageNotWritten {
                    rank,
                    image: number,
                    reason: &reason,
                });
                self.image_not_written(rank, &reason);
            }
            ToDispatcher::ImageLost { rank, number, reason } => {
                // The first of them is what the rank would have begun from.
                let words = unusable_image(rank, number, &reason);
                self.images.unusable.entry(rank).or_insert(words);
                self.bus.tell(Event::ImageLost {
                    rank,
                    image: number,
                    reason: &reason,
                });
                let unit = self.unit(rank);
                self.checkpoints.lost(unit, self.start.elapsed());
            }
            ToDispatcher::MemoryRead { rank, number } => self.bus.tell(Event::MemoryRead { rank, image: number }),
            _ => {}
        }
    }

    fn checkpointed(&mut self, rank: usize, number: u64, stall: Duration, is_snapshot: bool) {
        self.checkpoints.answered(rank, self.start.elapsed(), Ok(stall));
        if self.images.are_written {
            self.checkpoints.begin_writing(rank);
        }
        self.suspension.image_taken(rank);
        self.images.refusals.taken(rank);
        self.images.unusable.remove(&rank);
        self.bus.tell(Event::Checkpointed {
            rank,
            image: number,
            stall,
            copy: match is_snapshot {
                true => ImageCopy::Forked,
                false => ImageCopy::WarmBuffer,
            },
        });
    }

    fn wave_complete(&mut self, message: ToDispatcher) {
        let ToDispatcher::WaveComplete {
            rank,
            number,
            total_ns,
            longest_stall_ns,
            all_stalls_ns,
            groups,
            is_global,
        } = message
        else {
            return;
        };
        let total = Duration::from_nanos(total_ns);
        let unit = self.unit(rank);
        self.checkpoints.answered(unit, self.start.elapsed(), Ok(total));
        let members = self.members(unit);
        members.iter().for_each(|rank| self.images.refusals.taken(*rank));
        let in_groups = self.waves.protocol.waves() == kinds::Waves::GroupByGroup;
        self.bus.tell(Event::WaveComplete {
            wave: number,
            total,
            longest: Duration::from_nanos(longest_stall_ns),
            mean: Duration::from_nanos(all_stalls_ns / members.len() as u64),
            groups: in_groups.then(|| members_of(&groups)),
            communication_is_global: in_groups.then_some(is_global),
            ranks: self.is_hierarchical().then_some(&members),
        });
        self.wave_for_suspension(&members);
    }

    fn not_checkpointed(&mut self, rank: usize, reason: &str) {
        let now = Instant::now();
        let unit = self.unit(rank);
        let why = format!("rank {rank}: {reason}");
        let is_expected = self.checkpoints.is_expected(unit);
        let asked = self.checkpoints.asked_at(unit).map_or(now, |at| self.start + at);
        self.checkpoints.answered(unit, self.start.elapsed(), Err(&why));
        let refused = self.images.refusals.refused(rank, reason, is_expected, asked, now);
        self.bus.tell(Event::NotCheckpointed {
            rank,
            reason,
            is_news: refused.is_news,
        });
        if refused.lasts && !self.waves.together {
            // One rank must not keep all others from having images.
            self.only_logs(&why);
        }
    }

    /// Ranks cannot be started. What is told last must say why, also to those who have not been told of the image.
    pub(super) fn cannot_go_on(&mut self, reason: &str) {
        let image = self.images.unusable.values().next();
        let image = image.filter(|_| self.suspension.resumed_from.is_some());
        let text = image.map(|image| format!("{reason}; {image}"));
        self.suspension.is_damaged |= text.is_some();
        self.bus.error(text.as_deref().unwrap_or(reason));
        self.end(FAILURE, Duration::ZERO);
    }
}

/// The ranks of each group, of which `groups` has each rank's number, from 1.
fn members_of(groups: &[u32]) -> Vec<Vec<usize>> {
    let last = groups.iter().copied().max().unwrap_or(0);
    let members = |group: u32| (0..groups.len()).filter(|rank| groups[*rank] == group).collect();
    (1..=last).map(members).collect()
}

//! Agents' messages, and what follows from them.

use std::path::Path;
use std::time::{Duration, Instant};

use resurgo_protocol::Fact;
use resurgo_protocol::membership::Death;
use resurgo_protocol::policy::Decision;
use resurgo_wire::control::{Ended, ToAgent, ToDispatcher};
use resurgo_wire::node_memory::EXIT_REPORT;

use super::ends::{self, reason};
use super::events::Event;
use super::images::finished;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    /// Handles a message from the agent of node number `node`.
    pub(super) fn heard(&mut self, node: usize, message: ToDispatcher) {
        use ToDispatcher as To;
        match message {
            To::Fact(fact) => self.coordinate(fact),
            To::InTransit { number, is_last, bytes } => self.transit_taken(node, number, is_last, &bytes),
            To::Started { .. } | To::CaughtUp { .. } | To::Ended(_) | To::NotStarted { .. } => {
                self.heard_of_life(message);
            }
            To::LogGrows { .. }
            | To::ImageWanted { .. }
            | To::ImageWritten { .. }
            | To::MemoryRead { .. }
            | To::SetEncoded { .. } => self.heard_of_image(message),
            To::Looked { number, ranks } => self.front.watchers.looked(node, number, ranks),
            To::Holds { images, pieces } => self.agents.holds(node, images, pieces),
            To::Began { .. }
            | To::Said { .. }
            | To::Output { .. }
            | To::OutputAwaited { .. }
            | To::OutputEnd { .. }
            | To::AtImage { .. }
            | To::Deliveries { .. }
            | To::StdinWanted { .. } => self.keep_books(message),
            To::Traced(_) | To::TraceTime { .. } => self.heard_of_trace(node, message),
            To::WaveInFiles { .. } | To::Recorded { .. } | To::NotRecorded { .. } => self.heard_of_record(message),
            To::State { wave, ranks } => self.state_told(node, wave, ranks),
            To::Flushed {
                place,
                generation,
                sent,
            } => self.flushed(node, place, &generation, sent),
            To::Shared(offer) => self.share(node, offer),
            To::FileNotes { rank, asked, notes } => self.has_noted_files(node, rank, asked, notes),
            // These are handled elsewhere and are no news of the job.
            To::Arrived(_) | To::Reached { .. } | To::Beat { .. } => {}
            To::LogsMeasured { bytes } => {
                self.agents.have_measured(node, bytes);
                self.mind_measured();
            }
            To::Served { server, reports, end } => self.server_heard(node, server, reports, end),
            To::Preempted { reason } => self.is_preempted(node, &reason),
            To::Failed { reason } => self.cannot_go_on(&reason),
            To::Resumed { ranks, transit } => self.resumed(ranks, Vec::new(), transit, None),
            To::ResumedElsewhere { reason } => self.resumed_elsewhere(&reason),
            To::Halted if self.agents.has_halted() => self.halted(),
            To::Halted => {}
            To::Suspended { directory, bytes } => self.suspended(Path::new(&directory), bytes),
            To::NotSuspended { reason } => self.not_suspended(&reason),
            To::Stopped { .. } if self.ends(node) && self.verdict.is_none() => {
                self.agents.node(node).tell(&ToAgent::Farewell);
                self.node_lost(node, Death::Ended);
            }
            To::Stopped { statistics, turns } => {
                if self.bus.trace().is_some() {
                    self.agents.node(node).tell(&ToAgent::Farewell);
                }
                if self.agents.has_stopped(node, statistics, turns) {
                    self.gather_statistics();
                }
                self.end_servers();
            }
            To::ProgramReplaced { rank, path } => {
                let path = Path::new(&path);
                self.bus.tell(Event::ProgramReplaced { rank, path });
            }
            To::Undone { rank, text } => self.bus.tell(Event::Undone { rank, text: &text }),
            To::Survivor { rank, said } => self.survivor_says(rank, said),
            To::Knows { round } => self.survivors_know(node, round),
            To::MpiTrouble { rank, text } => self.bus.tell(Event::PmiTrouble { rank, text: &text }),
        }
    }

    /// All nodes have ended the job: sums up their statistics.
    pub(super) fn gather_statistics(&mut self) {
        let of_rank = self.nodes_of_ranks();
        self.stopped = Some(self.agents.statistics(|rank| of_rank.get(rank).copied().unwrap_or(0)));
    }

    /// Beginning, course and end of ranks' lives.
    fn heard_of_life(&mut self, message: ToDispatcher) {
        match message {
            ToDispatcher::Started {
                rank,
                life,
                pid,
                image,
                from_file,
                together,
                beginning_ns,
            } => {
                self.pids[rank] = Some(pid);
                if self.verdict.is_some() {
                    return;
                }
                self.images.unusable.remove(&rank);
                let node = self.node_of(rank);
                let event = Event::Started {
                    rank,
                    life,
                    pid,
                    node: self.agents.name(node),
                    image,
                    from_file,
                    together: together && !self.is_hierarchical(),
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
                self.survivor_caught_up(rank);
            }
            ToDispatcher::Ended(ended) => self.rank_ended(&ended),
            ToDispatcher::NotStarted { rank, reason } => self.not_started(rank, &reason),
            _ => {}
        }
    }

    fn rank_ended(&mut self, ended: &Ended) {
        let rank = ended.rank;
        let returns = self.returns(rank);
        self.pids[rank] = None;
        self.coordinate(Fact::Ended {
            rank: rank as u32,
            life: ended.asked,
            orderly: ended.orderly,
        });
        if ended.by_order {
            return;
        }
        if let Some(codes) = &mut self.exit_codes {
            codes.insert(rank, ended.exit_code());
        }
        if self.verdict.is_some() {
            return;
        }
        let spawned_by = self.spawning.by.get(&rank).copied();
        if returns {
            // It ended before the agent knew that all ranks return, and returns with them.
            self.bus.failed(ended, spawned_by, None);
            return;
        }
        if self.bus.stats().images().0 > 0 {
            self.policy.has_images();
        }
        if ended.diverged() {
            self.have_waves_again();
        }
        if let Some(survivors) = self.policy.survivors.as_mut().filter(|_| !ended.repeats) {
            survivors.cannot_repeat();
        }
        let decision = self.policy.ended(&ends::ending(ended));
        if decision == Decision::Finished {
            self.survivor_finished(rank);
            return self.rank_finished(ended);
        }
        if self.ended_by_user(ended) {
            return;
        }
        let error = match &decision {
            Decision::EndJob(why) => Some(reason(ended, *why)),
            _ => None,
        };
        self.bus.failed(ended, spawned_by, error.as_deref());
        self.checkpoints.failed();
        match decision {
            Decision::Restart => self.restart(ended),
            Decision::EndJob(why) => self.end(why.exit_code(ended.end, EXIT_REPORT), Duration::ZERO),
            Decision::Lost => self.rank_lost(ended),
            Decision::Finished => {}
        }
    }

    fn rank_finished(&mut self, ended: &Ended) {
        let rank = ended.rank;
        self.bus.tell(Event::finished(ended));
        let unit = self.unit(rank);
        if !self.has_waves() {
            self.checkpoints.left(rank);
            self.suspension.rank_finished(rank);
            if self.coordinator.plan().ends_count {
                self.take_waves_again(rank);
            }
        } else if !self.ends_count() {
            if self.checkpoints.is_expected(unit) && !self.is_hierarchical() {
                self.images.refusals.are_over(rank, Instant::now());
            }
            self.checkpoints.give_up(unit, &finished(rank));
        }
        self.end_if_all_have_finished();
    }

    /// Ranks that are lost, or have finished, do nothing any more.
    pub(super) fn end_if_all_have_finished(&mut self) {
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
        self.inject_at(rank, fault_at_messages);
        match self.all_return(ended) {
            true => self.return_all(rank),
            false => self.coordinate(Fact::Restart { rank: rank as u32 }),
        }
    }

    /// A life could not be started: the job ends.
    fn not_started(&mut self, rank: usize, reason: &str) {
        if self.verdict.is_some() {
            return;
        }
        let is_first = self.ledger.life(rank) == 1;
        let name = self.agents.name(self.node_of(rank));
        let there = name.map_or(String::new(), |name| format!(" on node {name}"));
        let text = match self.spawning.by.get(&rank).filter(|_| is_first) {
            Some(by) => format!("cannot start what rank {by} spawned{there}: {reason}"),
            None if is_first => format!("cannot start rank {rank} of {}{there}: {reason}", self.pids.len()),
            None => format!("cannot start rank {rank} again{there}: {reason}"),
        };
        self.cannot_go_on(&text);
    }

    /// A rank cannot begin again: its images are lost, and others have forgotten what it needs.
    pub(super) fn cannot_recover_alone(&mut self, rank: usize) {
        let reason = "its last image is lost, and messages from before that image are not kept";
        if self.verdict.is_some() || self.returns(rank) {
            return;
        }
        self.have_waves_again();
        if !self.has_waves() {
            self.cannot_go_on(&format!("cannot start rank {rank} again: {reason}"));
            return;
        }
        // Its program repeats its work: where there are images, it can recover alone again.
        if !self.images.let_go.contains(&rank) {
            self.all_return_from_now_on(rank, &format!("rank {rank} cannot recover alone: {reason}"));
        }
        self.return_all(rank);
    }

    /// Images and waves, and requests for them.
    fn heard_of_image(&mut self, message: ToDispatcher) {
        match message {
            // Nothing makes the logs forget.
            ToDispatcher::LogGrows { .. } if self.images.without.is_some() => {}
            ToDispatcher::LogGrows {
                rank, is_scarce: true, ..
            } => {
                self.bus.tell(Event::LogFills { rank });
                self.images.scarce = (0..self.pids.len()).collect();
                self.mind_full_log();
                self.want_images(None);
            }
            ToDispatcher::LogGrows { bytes, .. } => self.checkpoints.logs_have_grown(bytes, self.start.elapsed()),
            ToDispatcher::ImageWanted { rank } => {
                let unit = self.unit(rank);
                self.checkpoints.want(std::iter::once(unit), None, self.start.elapsed());
            }
            ToDispatcher::ImageWritten {
                rank,
                number,
                bytes,
                written,
                write_ns,
            } => {
                let time = Duration::from_nanos(write_ns);
                self.mind_written(rank..rank + 1);
                self.bus.tell(Event::ImageWritten {
                    rank,
                    image: number,
                    bytes,
                    written,
                    time,
                });
                self.suspension.image_written(rank, time);
            }
            ToDispatcher::SetEncoded { set, bytes, encode_ns } => {
                let time = Duration::from_nanos(encode_ns);
                self.images.sets.made(set, bytes, time);
            }
            ToDispatcher::MemoryRead { rank, number } => self.bus.tell(Event::MemoryRead { rank, image: number }),
            _ => {}
        }
    }

    /// Ranks cannot be started. The last report gives the reason, also to a user who has not seen the image's report.
    pub(super) fn cannot_go_on(&mut self, reason: &str) {
        let image = self.images.unusable.values().next();
        let image = image.filter(|_| self.suspension.resumed_from.is_some());
        let text = image.map(|image| format!("{reason}; {image}"));
        self.suspension.is_damaged |= text.is_some();
        self.bus.error(text.as_deref().unwrap_or(reason));
        self.end(FAILURE, Duration::ZERO);
    }
}

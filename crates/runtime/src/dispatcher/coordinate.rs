//! The coordinator and its commands. The node of the rank concerned carries a command out, or all nodes do; decisions
//! are for the dispatcher. See [`resurgo_protocol::coordinator`].

use std::ops::Range;

use resurgo_protocol::causal::Gathering;
use resurgo_protocol::coordinator::{KEPT, Place, Plan, Whom};
use resurgo_protocol::kinds::{Kept, Waves};
use resurgo_protocol::{Command, Fact, Node};
use resurgo_wire::control::{Job, ToAgent};

use super::Dispatcher;
use super::bus::unusable_image;
use super::events::Event;
use super::servers::Servers;

/// The coordinator's plan for `job`. `nodes`: the job is on several.
pub(super) fn plan(job: &Job, ranks: usize, nodes: bool, servers: &Servers) -> Plan {
    let moves = nodes && job.tolerate_node && job.protocol.recovers_alone_elsewhere();
    Plan {
        protocol: job.protocol,
        units: job.units(ranks),
        groups: job.groups.clone(),
        parity: job.image_files.parity.filter(|_| job.image_files.partners),
        replicas: match job.image_files.partners {
            true => job.image_files.replicas,
            false => 0,
        },
        seed: u64::from_le_bytes(*job.key.first_chunk().unwrap_or(&[0; 8])),
        moves,
        keeps_logs: moves && !job.image_files.partners,
        // Memory here and on others holds one whole wave, and the next one while it comes.
        kept: match job.protocol.waves() {
            Waves::Blocking | Waves::Passing | Waves::GroupByGroup if job.image_files.are_memory() => 1,
            _ => KEPT,
        },
        files: job.image_files.is_any(),
        local_copies: job.image_files.local_copies,
        groups_at_once: job.groups_at_once,
        ends_count: job.protocol.can_return_together() || job.image_files.waves_to_suspend,
        begins_anew: match job.protocol.kept() {
            Kept::BetweenGroups => true,
            Kept::InChannelMemory => servers.are_here(),
            Kept::BySender => !job.protocol.can_return_together(),
            Kept::Nowhere => false,
        },
    }
}

impl Dispatcher {
    /// Reports a fact to the coordinator, and carries out what follows.
    pub(super) fn coordinate(&mut self, fact: Fact) {
        let written = match fact {
            Fact::Stored { rank, .. } | Fact::NotStored { rank, .. } => rank as usize..rank as usize + 1,
            Fact::Down { .. } | Fact::Leave { .. } | Fact::Encoded { .. } | Fact::NotEncoded { .. } => {
                0..self.pids.len()
            }
            _ => 0..0,
        };
        let ends = matches!(fact, Fact::Ended { .. });
        match fact {
            Fact::NotStored { node, ref reason, .. } => self.mind_refusal(node, reason),
            Fact::Stored {
                rank,
                number: image,
                place: Place::Node(node),
            } => {
                let is_anew = self.coordinator.has_file(rank, image);
                self.agents.has_image(node as usize, is_anew);
                let rank = rank as usize;
                self.bus.tell(Event::ImageReplicated {
                    rank,
                    image,
                    node,
                    is_anew,
                });
            }
            _ => self.hear_of_sets(&fact),
        }
        self.coordinator.handle(fact, self.start.elapsed());
        if ends {
            self.tell_ends();
        }
        self.carry_out();
        self.mind_written(written);
    }

    /// The node does not take images, which is told once.
    pub(super) fn mind_refusal(&mut self, node: Node, reason: &str) {
        if self.images.refusing.insert(node) {
            self.bus.tell(Event::FewReplicas { reason });
        }
    }

    /// Passes on the coordinator's commands.
    pub(super) fn carry_out(&mut self) {
        while let Some(command) = self.coordinator.poll() {
            let begins_anew = command == Command::Reset;
            if begins_anew {
                self.forget_former_course();
            }
            self.tell_places(&command);
            if begins_anew {
                self.ledger.course = self.plan.as_ref().map_or(0, |plan| plan.epoch);
            }
            if matches!(
                command,
                Command::Reset | Command::EmptyLogs | Command::LogsOfWave { .. }
            ) {
                self.tell_ends();
            }
            self.begin_gathering(&command);
            self.images.sets.mind(&command);
            if self.mind_transit(&command) || self.mind_fetch(&command) {
                continue;
            }
            match command.whom() {
                Whom::Nobody => self.is_told(command),
                Whom::Node(node) => self.agents.node(node as usize).queue(&ToAgent::Do(command)),
                Whom::Of(rank) => {
                    let node = self.coordinator.node(rank);
                    self.agents.node(node as usize).queue(&ToAgent::Do(command));
                }
                Whom::All => self.agents.give_all(command),
            }
        }
        // A broken connection shows when it is read.
        self.agents.send_queued();
    }

    /// All begin at the beginning, and no rank runs: what is known of what they did goes.
    fn forget_former_course(&mut self) {
        // The dispatcher has processed all that former lives said.
        self.ledger.server.reset();
        self.ledger.vouched = Gathering::new(self.pids.len());
        if let Err(error) = self.servers.begin_anew(&mut self.bus) {
            self.cannot_go_on(&format!("what serves the ranks cannot be started again: {error}"));
        }
    }

    /// Nodes learn which ranks have finished. In emptied memories nothing else says so.
    pub(super) fn tell_ends(&mut self) {
        if self.plan.is_none() || !self.ends_count() {
            return;
        }
        let ranks = 0..self.pids.len();
        let ranks = ranks
            .filter(|rank| self.coordinator.has_finished(*rank as u32))
            .collect();
        self.agents.queue_all(&ToAgent::Ends { ranks });
    }

    /// Images of these ranks may have all of their copies now.
    pub(super) fn mind_written(&mut self, ranks: Range<usize>) {
        for rank in ranks.filter(|rank| !self.coordinator.writes(*rank as u32)) {
            self.checkpoints.end_writing(rank);
        }
    }

    /// Tells the coordinator when ranks have been silent about an image for long.
    pub(super) fn mind_silent_ranks(&mut self) {
        if self.coordinator.due().is_some_and(|due| due <= self.start.elapsed()) {
            self.coordinate(Fact::Due);
        }
    }

    /// A decision of the coordinator.
    fn is_told(&mut self, command: Command) {
        match command {
            Command::Taken {
                rank,
                number,
                stood,
                sleeps,
            } => self.checkpointed(rank as usize, number, stood, sleeps),
            Command::Dropped { rank, why } => self.not_checkpointed(rank as usize, &why),
            Command::Complete(wave) => self.wave_complete(&wave),
            Command::NotWritten { rank, number, reason } => {
                let rank = rank as usize;
                self.checkpoints.end_writing(rank);
                self.bus.tell(Event::ImageNotWritten {
                    rank,
                    image: number,
                    reason: &reason,
                });
                self.image_not_written(rank, &reason);
                self.not_written_for_leaving(rank, &reason);
            }
            Command::ImageLost { rank, number, reason } => self.image_lost(rank as usize, number, &reason),
            Command::Lost { ranks, .. } => self.ranks_lost(&ranks),
            Command::Returned { unit, wave } if self.verdict.is_none() => self.has_returned(unit, wave),
            Command::CannotRecoverAlone { rank } => self.cannot_recover_alone(rank as usize),
            Command::EndNode { node } => self.end_node(node as usize),
            Command::Left { node } => self.has_left(node as usize),
            Command::Stays { node, reason } => self.stays(node as usize, &reason),
            Command::Fail(cause) => self.cannot_go_on(&cause.to_string()),
            _ => {}
        }
    }

    fn image_lost(&mut self, rank: usize, image: u64, reason: &str) {
        // The first unusable image is the one that the rank was to begin from.
        let words = unusable_image(rank, image, reason);
        self.images.unusable.entry(rank).or_insert(words);
        self.bus.tell(Event::ImageLost { rank, image, reason });
        let unit = self.unit(rank);
        self.checkpoints.lost(unit, self.start.elapsed());
    }

    /// Makes the next life of `rank` kill itself after so many messages; 0: never.
    pub(super) fn inject_at(&mut self, rank: usize, messages: u64) {
        self.tell(ToAgent::FaultAt { rank, messages });
    }
}

/// What was in transit in waves that stop no rank, of a job on several nodes.
impl Dispatcher {
    /// Carries out the dispatcher's part of the command. False: it is for agents.
    fn mind_transit(&mut self, command: &Command) -> bool {
        if self.plan.is_none() {
            return false;
        }
        let transit = &mut self.images.transit;
        match command {
            Command::TakeTransit { number } => {
                transit.begin(*number);
                return false;
            }
            Command::PutTransit { number } => {
                for (piece, is_last) in transit.pieces(*number) {
                    let (number, bytes) = (*number, piece.to_vec());
                    self.agents.queue_all(&ToAgent::InTransit { number, is_last, bytes });
                }
                return false;
            }
            Command::ReadTransit { number } => match self.read_transit(*number) {
                fact @ Fact::TransitLost { .. } if self.may_fetch_transit(*number) => drop(fact),
                fact => self.coordinate(fact),
            },
            Command::WriteTransit { number } => transit.write(*number),
            Command::ForgetTransit { before } => transit.forget(*before),
            Command::CollectTransit { keep } => transit.collect(keep),
            _ => return false,
        }
        true
    }

    pub(super) fn read_transit(&mut self, number: u64) -> Fact {
        let transit = &mut self.images.transit;
        let read = match &self.suspension.files {
            _ if transit.has(number) => return Fact::TransitKnown { number },
            Some(files) => files.read_transit(number).map_err(|error| error.to_string()),
            None => Err("nobody knows it any more".to_string()),
        };
        match read {
            Ok(bytes) => {
                transit.know(number, bytes);
                Fact::TransitKnown { number }
            }
            Err(why) => Fact::unreadable_transit(number, why),
        }
    }

    /// An agent sends what was in transit to its ranks.
    pub(super) fn transit_taken(&mut self, node: usize, number: u64, is_last: bool, bytes: &[u8]) {
        self.images.transit.take(node, number, is_last, bytes);
        if is_last {
            self.mind_transit_taken();
        }
    }

    /// Checks whether all present nodes have sent what was in transit.
    pub(super) fn mind_transit_taken(&mut self) {
        let nodes = self.agents.numbers();
        if let Some(number) = self.images.transit.known(&nodes) {
            self.coordinate(Fact::TransitKnown { number });
        }
    }
}

//! The coordinator, and what it wants: the node that it concerns carries it out, or all, and what it only tells concerns the
//! dispatcher. See [`resurgo_protocol::coordinator`].

use std::ops::Range;

use resurgo_protocol::coordinator::{Plan, Whom};
use resurgo_protocol::{Command, Fact};
use resurgo_wire::control::{Job, ToAgent};

use super::Dispatcher;
use super::bus::unusable_image;
use super::events::Event;

/// What the coordinator of `job` is to do.
pub(super) fn plan(job: &Job, ranks: usize) -> Plan {
    Plan {
        protocol: job.protocol,
        units: job.units(ranks),
        groups: job.groups.clone(),
        partners: job.image_files.partners,
        files: job.image_files.is_any(),
        local_copies: job.image_files.local_copies,
        groups_at_once: job.groups_at_once,
    }
}

impl Dispatcher {
    /// Tells the coordinator what has happened, and has done what follows.
    pub(super) fn coordinate(&mut self, fact: Fact) {
        let written = match fact {
            Fact::Stored { rank, .. } => rank as usize..rank as usize + 1,
            Fact::Down { .. } => 0..self.pids.len(),
            _ => 0..0,
        };
        self.coordinator.handle(fact, self.start.elapsed());
        while let Some(command) = self.coordinator.poll() {
            if command == Command::Reset {
                // All that former lives have said has been heard.
                self.ledger.server.reset();
            }
            self.tell_places(&command);
            self.begin_gathering(&command);
            if self.mind_transit(&command) {
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
        self.mind_written(written);
        // A broken connection is noticed when it is read.
        self.agents.send_queued();
    }

    /// Images of these ranks may be where they are to be.
    pub(super) fn mind_written(&mut self, ranks: Range<usize>) {
        for rank in ranks.filter(|rank| !self.coordinator.writes(*rank as u32)) {
            self.checkpoints.end_writing(rank);
        }
    }

    /// Tells the coordinator when nobody has said anything about an image for long.
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
            Command::Dropped { rank, why } => self.not_checkpointed(rank as usize, &why.to_string()),
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
            }
            Command::ImageLost { rank, number, reason } => self.image_lost(rank as usize, number, &reason),
            Command::Lost { ranks, .. } => self.ranks_lost(&ranks),
            Command::Returned { unit, wave } if self.verdict.is_none() => self.has_returned(unit, wave),
            Command::CannotRecoverAlone { rank } => self.cannot_recover_alone(rank as usize),
            Command::Left { node } => self.has_left(node as usize),
            Command::Stays { node, reason } => self.stays(node as usize, &reason),
            Command::Fail(cause) => self.cannot_go_on(&cause.to_string()),
            _ => {}
        }
    }

    fn image_lost(&mut self, rank: usize, image: u64, reason: &str) {
        // The first of them is what the rank would have begun from.
        let words = unusable_image(rank, image, reason);
        self.images.unusable.entry(rank).or_insert(words);
        self.bus.tell(Event::ImageLost { rank, image, reason });
        let unit = self.unit(rank);
        self.checkpoints.lost(unit, self.start.elapsed());
    }

    /// The next life of `rank` kills itself after so many messages, if that is not 0.
    pub(super) fn inject_at(&mut self, rank: usize, messages: u64) {
        self.tell(ToAgent::FaultAt { rank, messages });
    }
}

/// What was in transit in waves that stop nobody, of a job on several nodes.
impl Dispatcher {
    /// The coordinator wants this of it. False: agents are to do something.
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
            Command::ReadTransit { number } => {
                let (number, has) = (*number, transit.has(*number));
                let reason = "what was in transit is not known any more".to_string();
                self.coordinate(match has {
                    true => Fact::TransitKnown { number },
                    false => Fact::TransitLost { number, reason },
                });
            }
            Command::WriteTransit { number } => transit.write(*number),
            Command::ForgetTransit { before } => transit.forget(*before),
            Command::CollectTransit { keep } => transit.collect(keep),
            _ => return false,
        }
        true
    }

    /// An agent says what was in transit to its ranks.
    pub(super) fn transit_taken(&mut self, node: usize, number: u64, is_last: bool, bytes: &[u8]) {
        self.images.transit.take(node, number, is_last, bytes);
        if is_last {
            self.mind_transit_taken();
        }
    }

    /// All that are there may have said what was in transit.
    pub(super) fn mind_transit_taken(&mut self) {
        let nodes = self.agents.numbers();
        if let Some(number) = self.images.transit.known(&nodes) {
            self.coordinate(Fact::TransitKnown { number });
        }
    }
}

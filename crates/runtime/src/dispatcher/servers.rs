//! The processes that serve the ranks of the job: event loggers, channel memories.

mod listeners;
mod loggers;
mod memories;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use resurgo_protocol::kinds;
use resurgo_wire::control::{Arrival, End, Job, ToAgent};
use resurgo_wire::handshake::Server;
use resurgo_wire::services::{Service, Services};
use serde_json::Value;

use super::bus::Bus;
use super::events::Event;
use super::start_error::StartError;
use super::{Dispatcher, FAILURE, LAST_WORDS};
pub use listeners::Listeners;
use loggers::Loggers;
use memories::Memories;
pub(super) use memories::on_nodes;
#[cfg(test)]
pub(super) use memories::why_lost;

/// All of them.
pub(super) struct Servers {
    loggers: Loggers,
    memories: Memories,
    /// The program has come to its end by itself.
    finished: bool,
}

impl Servers {
    /// Starts those that are wanted, for a job of `ranks` ranks, and tells the job where they listen.
    pub fn start(job: &mut Job, wanted: &[Listeners], ranks: usize) -> Result<Servers, StartError> {
        job.services = Services::default();
        let of = |kind| wanted.iter().find(|listeners| listeners.kind == kind);
        Ok(Servers {
            loggers: match of(Server::EventLogger) {
                Some(wanted) => Loggers::start(job, wanted, ranks)?,
                None => Loggers::default(),
            },
            memories: match of(Server::ChannelMemory) {
                Some(wanted) => Memories::start(job, wanted, ranks)?,
                None => Memories::default(),
            },
            finished: false,
        })
    }

    /// Process numbers of servers beside the dispatcher.
    pub fn pids(&self) -> Vec<u32> {
        self.loggers.pids().chain(self.memories.children()).collect()
    }

    /// Adds servers of arrived nodes. Tells the job their addresses.
    pub fn come(&mut self, job: &mut Job, arrivals: &[Arrival]) {
        for (node, arrival) in arrivals.iter().enumerate() {
            self.memories.come(job, node, arrival);
        }
    }

    /// No node of their own runs any of them.
    pub fn are_here(&self) -> bool {
        self.memories.are_here()
    }

    /// All ranks begin again at the beginning, and none runs now: messages and deliveries of the former course go.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn begin_anew(&mut self, bus: &mut Bus) -> io::Result<()> {
        self.loggers.begin_anew()?;
        self.memories.begin_anew(bus)
    }

    /// The node runs servers, and no rank.
    pub fn are_on(&self, node: usize) -> bool {
        self.memories.has(node)
    }

    /// Reports servers that give no report themselves when they begin to serve.
    pub fn tell(&self, bus: &mut Bus) {
        for (memory, pid) in self.memories.pids().enumerate() {
            bus.tell(Event::ChannelMemoryStarted { memory, pid });
        }
    }

    /// Readable when one has something to say, or has ended.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.loggers.descriptors().chain(self.memories.descriptors())
    }

    /// When one is to be started again.
    pub fn due(&self) -> Option<Instant> {
        self.loggers.due()
    }

    /// Ends them, and reports what they held.
    pub fn finish(&mut self, bus: &mut Bus) {
        let held = self.memories.finish(LAST_WORDS);
        bus.tell(Event::ChannelMemoriesHeld { held: &held });
    }
}

/// The servers as ranks of one node reach them. See [`listeners::reached`].
pub(super) fn reached(servers: &Services, known_as: Option<IpAddr>) -> io::Result<Services> {
    let of = |service: &Service| {
        let address = listeners::reached(service.address, known_as)?;
        Ok(Service { address, ..*service })
    };
    servers.iter().map(of).collect()
}

impl Dispatcher {
    /// Reads the servers' messages.
    /// - An event logger that has ended starts again.
    /// - A channel memory that fills makes all ranks take images.
    /// - A channel memory that has ended ends the job: its messages are nowhere else.
    pub(super) fn mind_servers(&mut self) {
        let waits = self.coordinator.protocol().order() != kinds::Order::Piggybacked;
        let is_over = self.verdict.is_some();
        let without = self.servers.loggers.mind(&mut self.bus, waits, is_over);
        let heard = self.servers.memories.mind(&mut self.bus, is_over);
        if heard.fills {
            self.want_images(None);
        }
        self.end_without(without.or(heard.why_lost));
    }

    /// Server number `server` of a node has sent a report, or has ended.
    pub(super) fn server_heard(&mut self, node: usize, server: usize, reports: Vec<Value>, end: Option<End>) {
        let reports = reports
            .into_iter()
            .filter_map(|report| serde_json::from_value(report).ok());
        let (memories, is_over) = (&mut self.servers.memories, self.verdict.is_some());
        let heard = memories.heard_of((node, server), reports.collect(), end, &mut self.bus, is_over);
        if heard.fills {
            self.want_images(None);
        }
        self.end_without(heard.why_lost);
    }

    /// The node's servers are lost with it; `lost` reports that. False: it had none.
    pub(super) fn servers_lost(&mut self, node: usize, lost: &str) -> bool {
        let why = self.servers.memories.are_lost_with(node, lost, &mut self.bus);
        let had_some = why.is_some();
        self.end_without(why);
        had_some
    }

    /// Tells agents to end the job: those with servers after all others. Ranks may take `grace` to end by themselves.
    pub(super) fn tell_end(&mut self, grace: Duration, finished: bool) {
        self.servers.finished |= finished;
        let grace_ms = grace.as_millis() as u64;
        let end = ToAgent::End { grace_ms, finished };
        for node in self.agents.numbers() {
            if !self.servers.are_on(node) {
                self.agents.node(node).tell(&end);
            }
        }
        self.end_servers();
    }

    /// Ends the servers that are on nodes of their own, if no rank needs them any more.
    pub(super) fn end_servers(&mut self) {
        let mut nodes = self.agents.numbers();
        nodes.retain(|node| self.servers.are_on(*node));
        if self.verdict.is_none() || !self.agents.have_stopped_but(&nodes) {
            return;
        }
        let end = ToAgent::End {
            grace_ms: 0,
            finished: self.servers.finished,
        };
        nodes.into_iter().for_each(|node| self.agents.node(node).tell(&end));
    }

    /// Ends the job if it has lost something that it needs.
    fn end_without(&mut self, why: Option<String>) {
        if let Some(why) = why {
            self.bus.error(&why);
            self.end(FAILURE, Duration::ZERO);
        }
    }
}

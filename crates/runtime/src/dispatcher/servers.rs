//! The processes that serve the ranks of the job: event loggers, channel memories.

mod listeners;
mod loggers;
mod memories;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use resurgo_protocol::kinds;
use resurgo_wire::control::Job;
use resurgo_wire::handshake::Server;
use resurgo_wire::services::{Service, Services};

use super::bus::Bus;
use super::events::Event;
use super::start_error::StartError;
use super::{Dispatcher, FAILURE, LAST_WORDS};
pub use listeners::Listeners;
use loggers::Loggers;
use memories::Memories;
#[cfg(test)]
pub(super) use memories::why_lost;

/// All of them.
pub(super) struct Servers {
    loggers: Loggers,
    memories: Memories,
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
        })
    }

    /// Process numbers of those that run.
    pub fn pids(&self) -> Vec<u32> {
        self.loggers.pids().chain(self.memories.pids().flatten()).collect()
    }

    /// Tells of those that say nothing themselves when they begin to serve.
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

    /// Lets them end, and tells what they have had.
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
    /// Hears what servers have said. An event logger that has ended is started again; a channel memory that fills has images of all
    /// ranks taken; what one that has ended had is nowhere else, so the job ends.
    pub(super) fn mind_servers(&mut self) {
        let waits = self.coordinator.protocol().order() != kinds::Order::Piggybacked;
        let is_over = self.verdict.is_some();
        let without = self.servers.loggers.mind(&mut self.bus, waits, is_over);
        let heard = self.servers.memories.mind(&mut self.bus, is_over);
        if heard.fills {
            self.want_images(None);
        }
        if let Some(why) = without.or(heard.why_lost) {
            self.bus.error(&why);
            self.end(FAILURE, Duration::ZERO);
        }
    }
}

//! The job's channel memories: their start, and what follows when one fills or ends. They run beside the dispatcher, or on nodes of their
//! own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use resurgo_wire::control::{Arrival, End, Job, Serve};
use resurgo_wire::handshake::Server;
use resurgo_wire::node_memory::SEGMENT;

use super::listeners::Listeners;
use crate::channel_memory::{self, Held, Process, Report, Settings};
use crate::dispatcher::bus::Bus;
use crate::dispatcher::ends::how_ended;
use crate::dispatcher::events::Event;
use crate::dispatcher::start_error::{StartError, cannot};

/// The channel memories, none where there are none.
#[derive(Default)]
pub struct Memories {
    here: Vec<Process>,
    elsewhere: Vec<Elsewhere>,
}

/// One on a node of its own.
struct Elsewhere {
    node: usize,
    /// Which of those of its node.
    server: usize,
    pid: u32,
    held: Option<Held>,
}

/// What follows from reports of channel memories.
#[derive(Default)]
pub struct Heard {
    /// One fills: after images of all ranks it can forget messages.
    pub fills: bool,
    /// One has ended, or cannot go on; its messages are nowhere else.
    pub why_lost: Option<String>,
}

/// The settings of one of `count`, in a job of `ranks` ranks. `is_near`: its ranks speak to no other, and are on its
/// machine.
fn settings(job: &Job, count: usize, ranks: usize, is_near: bool, is_encrypted: bool) -> Settings {
    let served = ranks.div_ceil(count) as u64;
    Settings {
        size: job.most_ranks.max(ranks),
        key: job.key,
        is_encrypted,
        acknowledges: !is_near,
        // The logs of its ranks are here.
        bound: (job.log_segments * SEGMENT) as u64 * served,
        spills: job.spill_directory.is_some(),
    }
}

/// What nodes with `count` channel memories run for a job of `ranks` ranks, without the number on each node.
///
/// # Errors
/// It cannot be written down.
pub fn on_nodes(job: &Job, count: usize, ranks: usize, is_encrypted: bool) -> Result<Serve, StartError> {
    Ok(Serve {
        verb: channel_memory::VERB.to_string(),
        count: 0,
        settings: serde_json::to_value(settings(job, count, ranks, false, is_encrypted))?,
        file_in: job.spill_directory.clone(),
    })
}

impl Memories {
    /// Starts them, for a job of `ranks` ranks, and tells the job where they are.
    pub fn start(job: &mut Job, wanted: &Listeners, ranks: usize) -> Result<Memories, StartError> {
        let mut memories = Memories::default();
        for number in 0..wanted.count {
            let bind = wanted.bind(number);
            let is_near = wanted.count == 1 && bind.ip().is_loopback() && !wanted.are_encrypted;
            let settings = settings(job, wanted.count, ranks, is_near, wanted.are_encrypted);
            let mut process = channel_memory::make(settings, bind, job.spill_directory.as_deref())?;
            let failed = cannot("start a channel memory");
            job.services
                .add(Server::ChannelMemory, process.address().map_err(&failed)?);
            process.start().map_err(&failed)?;
            memories.here.push(process);
        }
        Ok(memories)
    }

    /// Those of a node that has come, at the address that others try first.
    pub fn come(&mut self, job: &mut Job, node: usize, arrival: &Arrival) {
        let address = arrival.mesh.first().map(SocketAddr::ip);
        for (server, (address, (port, pid))) in address.into_iter().cycle().zip(&arrival.servers).enumerate() {
            job.services.add(Server::ChannelMemory, (address, *port).into());
            self.elsewhere.push(Elsewhere {
                node,
                server,
                pid: *pid,
                held: None,
            });
        }
    }

    /// None is on a node of its own.
    pub fn are_here(&self) -> bool {
        self.elsewhere.is_empty()
    }

    /// Those on this machine begin anew, without messages.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn begin_anew(&mut self, bus: &mut Bus) -> io::Result<()> {
        for (memory, process) in self.here.iter_mut().enumerate() {
            process.start_anew()?;
            let pid = process.pid();
            bus.tell(Event::ChannelMemoryStarted { memory, pid });
        }
        Ok(())
    }

    /// Process numbers of all.
    pub fn pids(&self) -> impl Iterator<Item = Option<u32>> {
        let elsewhere = self.elsewhere.iter().map(|memory| Some(memory.pid));
        self.here.iter().map(Process::pid).chain(elsewhere)
    }

    /// The same of those that are children of this process.
    pub fn children(&self) -> impl Iterator<Item = u32> {
        self.here.iter().filter_map(Process::pid)
    }

    /// Ends them within this time, and returns what each held; none where it gives no report.
    pub fn finish(&mut self, patience: Duration) -> Vec<Option<Held>> {
        let here = self.here.iter_mut();
        let here = here.map(|process| process.finish(patience).into_iter().find_map(held));
        here.chain(self.elsewhere.iter().map(|memory| memory.held)).collect()
    }

    /// Reads the reports of those on this machine, and reports ended or failed ones, unless the job `is_over`.
    pub fn mind(&mut self, bus: &mut Bus, is_over: bool) -> Heard {
        let mut all = Heard::default();
        for (number, process) in self.here.iter_mut().enumerate() {
            let (reports, end) = process.hear();
            let heard = follows(number, reports, end, bus, is_over);
            all.fills |= heard.fills;
            all.why_lost = all.why_lost.or(heard.why_lost);
        }
        all
    }

    /// The same of one of a node.
    pub fn heard_of(
        &mut self,
        (node, server): (usize, usize),
        reports: Vec<Report>,
        end: Option<End>,
        bus: &mut Bus,
        is_over: bool,
    ) -> Heard {
        let mut elsewhere = self.elsewhere.iter_mut();
        let place = elsewhere.position(|memory| (memory.node, memory.server) == (node, server));
        let Some(number) = place else {
            return Heard::default();
        };
        if let Some(said) = reports.iter().cloned().find_map(held) {
            self.elsewhere[number].held = Some(said);
        }
        follows(number, reports, end, bus, is_over)
    }

    /// Why the job ends with this node, if it does. `lost`: how the node was lost.
    pub fn are_lost_with(&self, node: usize, lost: &str, bus: &mut Bus) -> Option<String> {
        let number = self.elsewhere.iter().position(|memory| memory.node == node)?;
        bus.tell(Event::ChannelMemoryLost {
            memory: number,
            end: None,
        });
        Some(format!(
            "{lost}, and channel memory {number} with it; its messages are nowhere else, so the job ends"
        ))
    }

    /// Channel memories run on this node, and no rank.
    pub fn has(&self, node: usize) -> bool {
        self.elsewhere.iter().any(|memory| memory.node == node)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.here.iter().filter_map(Process::socket)
    }
}

fn held(report: Report) -> Option<Held> {
    match report {
        Report::Held(held) => Some(held),
        Report::Failed { .. } | Report::Fills => None,
    }
}

/// What follows from the reports of channel memory `number`, and from its end.
fn follows(number: usize, reports: Vec<Report>, end: Option<End>, bus: &mut Bus, is_over: bool) -> Heard {
    let mut heard = Heard::default();
    if is_over {
        return heard;
    }
    if reports.contains(&Report::Fills) {
        bus.tell(Event::ChannelMemoryFills { memory: number });
        heard.fills = true;
    }
    let failed = reports.into_iter().find_map(|report| match report {
        Report::Failed { reason } => Some(reason),
        Report::Held(_) | Report::Fills => None,
    });
    if failed.is_some() || end.is_some() {
        bus.tell(Event::ChannelMemoryLost { memory: number, end });
        heard.why_lost = Some(why_lost(number, failed, end));
    }
    heard
}

/// `failed`: its own reason; otherwise it ended without one.
pub fn why_lost(number: usize, failed: Option<String>, end: Option<End>) -> String {
    match (failed, end) {
        (Some(reason), _) => format!("channel memory {number} cannot go on: {reason}"),
        (None, end) => format!(
            "channel memory {number} was lost ({}); its messages are nowhere else, so the job ends",
            end.map_or_else(|| "it said nothing".to_string(), how_ended)
        ),
    }
}

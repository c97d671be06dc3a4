//! The job's channel memories: their start, and what follows when one fills or ends.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use resurgo_wire::control::{End, Job};
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
pub struct Memories(Vec<Process>);

/// What follows from what channel memories have said.
#[derive(Default)]
pub struct Heard {
    /// One fills: images of all ranks let it forget.
    pub fills: bool,
    /// One has ended, or cannot go on; what it had is nowhere else.
    pub why_lost: Option<String>,
}

impl Memories {
    /// Starts them, for a job of `ranks` ranks, and tells the job where they are.
    pub fn start(job: &mut Job, wanted: &Listeners, ranks: usize) -> Result<Memories, StartError> {
        let mut memories = Memories::default();
        for number in 0..wanted.count {
            let served = ranks.div_ceil(wanted.count) as u64;
            let bind = wanted.bind(number);
            let settings = Settings {
                size: job.most_ranks.max(ranks),
                key: job.key,
                // To ranks that speak to others as well, or from another machine.
                acknowledges: wanted.count > 1 || !bind.ip().is_loopback(),
                // The logs of its ranks lie here.
                bound: (job.log_segments * SEGMENT) as u64 * served,
                spills: job.spill_directory.is_some(),
            };
            let mut process = channel_memory::make(settings, bind, job.spill_directory.as_deref())?;
            let failed = cannot("start a channel memory");
            job.services
                .add(Server::ChannelMemory, process.address().map_err(&failed)?);
            process.start().map_err(&failed)?;
            memories.0.push(process);
        }
        Ok(memories)
    }

    /// Process numbers of all.
    pub fn pids(&self) -> impl Iterator<Item = Option<u32>> {
        self.0.iter().map(Process::pid)
    }

    /// Lets them end, for so long at most, and answers what each has had; none where it does not say.
    pub fn finish(&mut self, patience: Duration) -> Vec<Option<Held>> {
        let held = |process: &mut Process| {
            process.finish(patience).into_iter().find_map(|report| match report {
                Report::Held(held) => Some(held),
                Report::Failed { .. } | Report::Fills => None,
            })
        };
        self.0.iter_mut().map(held).collect()
    }

    /// Hears what they have said, and tells of those that have ended, or cannot go on, unless the job `is_over`.
    pub fn mind(&mut self, bus: &mut Bus, is_over: bool) -> Heard {
        let mut heard = Heard::default();
        for (number, process) in self.0.iter_mut().enumerate() {
            let (reports, end) = process.hear();
            if is_over {
                continue;
            }
            if reports.contains(&Report::Fills) {
                bus.tell(Event::ChannelMemoryFills { memory: number });
                heard.fills = true;
            }
            let failed = reports.into_iter().find_map(|report| match report {
                Report::Failed { reason } => Some(reason),
                Report::Held(_) | Report::Fills => None,
            });
            if heard.why_lost.is_none() && (failed.is_some() || end.is_some()) {
                bus.tell(Event::ChannelMemoryLost { memory: number, end });
                heard.why_lost = Some(why_lost(number, failed, end));
            }
        }
        heard
    }

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(Process::socket)
    }
}

/// `failed`: the reason that it has given itself; otherwise it has ended without a word.
pub fn why_lost(number: usize, failed: Option<String>, end: Option<End>) -> String {
    match (failed, end) {
        (Some(reason), _) => format!("channel memory {number} cannot go on: {reason}"),
        (None, end) => format!(
            "channel memory {number} was lost ({}); its messages are nowhere else, so the job ends",
            end.map_or_else(|| "it said nothing".to_string(), how_ended)
        ),
    }
}

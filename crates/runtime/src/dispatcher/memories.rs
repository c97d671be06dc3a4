//! The job's channel memories: their start, and the end of the job when one ends.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use resurgo_wire::control::{End, Job};
use resurgo_wire::handshake::Server;
use resurgo_wire::node_memory::SEGMENT;

use super::events::Event;
use super::listeners::reached;
use super::policy::how_ended;
use super::start_error::{StartError, cannot};
use super::{Dispatcher, FAILURE, LAST_WORDS, Listeners};
use crate::channel_memory::{self, Held, Process, Report, Settings};

/// The channel memories, none where there are none.
#[derive(Default)]
pub(super) struct Memories(Vec<Process>);

impl Memories {
    /// Starts them, for a job of `ranks` ranks, and tells the job where they are.
    pub fn start(job: &mut Job, wanted: &Listeners, ranks: usize) -> Result<Memories, StartError> {
        let mut memories = Memories::default();
        for number in 0..wanted.count {
            let served = ranks.div_ceil(wanted.count) as u64;
            let settings = Settings {
                size: job.most_ranks.max(ranks),
                key: job.key,
                memories: wanted.count,
                // The logs of its ranks lie here.
                bound: (job.log_segments * SEGMENT) as u64 * served,
                spills: job.spill_directory.is_some(),
            };
            let bind = wanted.bind(number);
            let mut process = channel_memory::make(settings, bind, job.spill_directory.as_deref())?;
            let failed = cannot("start a channel memory");
            let address = process.address().and_then(|listens| reached(listens, job.node_count()));
            job.services.add(Server::ChannelMemory, address.map_err(&failed)?);
            process.start().map_err(&failed)?;
            memories.0.push(process);
        }
        Ok(memories)
    }

    /// Process numbers of all.
    pub fn pids(&self) -> impl Iterator<Item = Option<u32>> {
        self.0.iter().map(Process::pid)
    }

    /// Lets them end, and answers what each has had; none where it does not say.
    pub fn finish(&mut self) -> Vec<Option<Held>> {
        let held = |process: &mut Process| {
            process.finish(LAST_WORDS).into_iter().find_map(|report| match report {
                Report::Held(held) => Some(held),
                Report::Failed { .. } | Report::Fills => None,
            })
        };
        self.0.iter_mut().map(held).collect()
    }

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(Process::socket)
    }
}

impl Dispatcher {
    /// Hears that a channel memory fills: images of all ranks let it forget. Or why it cannot go on, or that it has ended: what it had
    /// is nowhere else, so the job ends.
    pub(super) fn mind_memories(&mut self) {
        for number in 0..self.servers.memories.0.len() {
            let (reports, end) = self.servers.memories.0[number].hear();
            if reports.contains(&Report::Fills) && self.verdict.is_none() {
                self.bus.tell(Event::ChannelMemoryFills { memory: number });
                self.want_images(None);
            }
            let failed = reports.into_iter().find_map(|report| match report {
                Report::Failed { reason } => Some(reason),
                Report::Held(_) | Report::Fills => None,
            });
            if self.verdict.is_some() || failed.is_none() && end.is_none() {
                continue;
            }
            self.bus.tell(Event::ChannelMemoryLost { memory: number, end });
            self.bus.error(&why_lost(number, failed, end));
            self.end(FAILURE, Duration::ZERO);
        }
    }
}

/// `failed`: the reason that it has given itself; otherwise it has ended without a word.
pub(super) fn why_lost(number: usize, failed: Option<String>, end: Option<End>) -> String {
    match (failed, end) {
        (Some(reason), _) => format!("channel memory {number} cannot go on: {reason}"),
        (None, end) => format!(
            "channel memory {number} was lost ({}); its messages are nowhere else, so the job ends",
            end.map_or_else(|| "it said nothing".to_string(), how_ended)
        ),
    }
}

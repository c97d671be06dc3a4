//! The job's event loggers: their start, and what follows when one ends.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use resurgo_wire::control::{End, Job};
use resurgo_wire::handshake::Server;
use resurgo_wire::node_memory::{SPREAD_BROADCAST, SPREAD_MULTICAST};

use super::listeners::{Listeners, reached};
use crate::dispatcher::bus::Bus;
use crate::dispatcher::events::Event;
use crate::dispatcher::start_error::{StartError, cannot};
use crate::event_logger::{self, Process, Report, Settings};

/// Pause before a logger is started again that has ended soon after its start.
const PAUSE: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(2);
/// The job ends if a logger cannot be started for so long: ranks would wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

struct Logger {
    process: Process,
    started: Instant,
    again_at: Option<Instant>,
    /// Since when it has been started without coming to serve.
    failing: Option<Instant>,
}

/// The event loggers, none where there are none.
#[derive(Default)]
pub struct Loggers(Vec<Logger>);

impl Loggers {
    /// Starts them for a job of `ranks` ranks, and tells the job their addresses.
    pub fn start(job: &mut Job, wanted: &Listeners, ranks: usize) -> Result<Loggers, StartError> {
        let directory = job.spill_directory.clone();
        let directory = directory.unwrap_or_else(|| std::env::temp_dir().into_os_string());
        let mut loggers = Loggers::default();
        for number in 0..wanted.count {
            let settings = Settings {
                size: job.most_ranks.max(ranks),
                key: job.key,
                is_encrypted: wanted.are_encrypted,
                number,
                peers: Vec::new(),
                broadcasts: wanted.count > 1 && job.clock_spread == SPREAD_BROADCAST,
                epoch: 1,
            };
            let process = event_logger::make(settings, wanted.bind(number), &directory)?;
            loggers.0.push(Logger {
                process,
                started: Instant::now(),
                again_at: None,
                failing: None,
            });
        }
        let failed = cannot("start an event logger");
        for logger in &loggers.0 {
            job.services
                .add(Server::EventLogger, logger.process.address().map_err(&failed)?);
        }
        let addresses = job.services.of(Server::EventLogger).into_iter();
        let addresses: std::io::Result<Vec<_>> = addresses.map(|listens| reached(listens, None)).collect();
        let addresses = addresses.map_err(&failed)?;
        for (number, logger) in loggers.0.iter_mut().enumerate() {
            if job.clock_spread == SPREAD_MULTICAST {
                let mut others = addresses.clone();
                others.remove(number);
                logger.process.settings.peers = others;
            }
            logger.begin().map_err(&failed)?;
        }
        Ok(loggers)
    }

    /// Process numbers of those that run.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|logger| logger.process.pid())
    }

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(|logger| logger.process.socket())
    }

    /// Reads their reports, and restarts ended ones unless the job `is_over`. `waits`: ranks send nothing without them.
    /// Returns why the job must end, if one cannot be started.
    pub fn mind(&mut self, bus: &mut Bus, waits: bool, is_over: bool) -> Option<String> {
        let now = Instant::now();
        for (number, logger) in self.0.iter_mut().enumerate() {
            let end = logger.hear(number, bus, now);
            if is_over {
                continue;
            }
            if let Some(end) = end {
                bus.tell(Event::LoggerLost {
                    logger: number,
                    end,
                    waits,
                });
                let soon = now.duration_since(logger.started) < SOON && logger.process.starts > 1;
                logger.again_at = Some(if soon { now + PAUSE } else { now });
            }
            if logger.again_at.is_some_and(|at| at <= now) {
                (logger.started, logger.again_at) = (now, None);
                if let Err(error) = logger.begin() {
                    logger.failed(number, &error.to_string(), bus, now);
                    logger.again_at = Some(now + PAUSE);
                }
            }
        }
        let failing = self.0.iter().position(|logger| logger.fails_for_long(now));
        let number = failing.filter(|_| !is_over)?;
        Some(format!(
            "event logger {number} cannot be started for {PATIENCE:?}, so the job ends"
        ))
    }

    /// All ranks begin again at the beginning: each begins anew as the first one in its place, to which nothing has been
    /// acknowledged. None runs before all have ended, as they tell one another what is stable.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn begin_anew(&mut self) -> std::io::Result<()> {
        for logger in &mut self.0 {
            logger.process.end_with_all()?;
        }
        for logger in &mut self.0 {
            logger.process.starts = 0;
            (logger.started, logger.again_at, logger.failing) = (Instant::now(), None, None);
            logger.begin()?;
        }
        Ok(())
    }

    /// When one is to be started again.
    pub fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|logger| logger.again_at).min()
    }
}

impl Logger {
    /// A logger that finds no journal begins an epoch.
    fn begin(&mut self) -> std::io::Result<()> {
        self.process.settings.epoch = self.process.starts + 1;
        self.process.start()
    }

    /// Passes on its reports; returns how it ended, if it has.
    fn hear(&mut self, number: usize, bus: &mut Bus, now: Instant) -> Option<End> {
        let pid = self.process.pid();
        let (reports, end) = self.process.hear();
        for report in reports {
            match report {
                Report::Serves { epoch, deliveries } => {
                    self.failing = None;
                    bus.tell(Event::LoggerStarted {
                        logger: number,
                        pid,
                        epoch,
                        deliveries,
                        again: self.process.starts > 1,
                    });
                }
                Report::WithoutJournal { reason } => bus.tell(Event::LoggerWithoutJournal {
                    logger: number,
                    reason: &reason,
                }),
                Report::Failed { reason } => self.failed(number, &reason, bus, now),
            }
        }
        end
    }

    fn failed(&mut self, number: usize, reason: &str, bus: &mut Bus, now: Instant) {
        self.failing.get_or_insert(now);
        bus.tell(Event::LoggerFailed { logger: number, reason });
    }

    fn fails_for_long(&self, now: Instant) -> bool {
        self.failing.is_some_and(|since| now - since > PATIENCE)
    }
}

//! The job's event loggers: their start, and what follows when one ends.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use resurgo_protocol::kinds;
use resurgo_wire::control::Job;
use resurgo_wire::handshake::Server;
use resurgo_wire::node_memory::{SPREAD_BROADCAST, SPREAD_MULTICAST};

use super::events::Event;
use super::listeners::reached;
use super::start_error::{StartError, cannot};
use super::{Dispatcher, FAILURE, Listeners};
use crate::event_logger::{self, Process, Report, Settings};

/// Pause before a logger is started again that has ended soon after its start.
const PAUSE: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(2);
/// A logger that cannot be started for so long ends the job: ranks would wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

struct Logger {
    process: Process,
    started: Instant,
    again_at: Option<Instant>,
    /// Since when it has not come to serve, though it was started.
    failing: Option<Instant>,
}

/// The event loggers, none where there are none.
#[derive(Default)]
pub(super) struct Loggers(Vec<Logger>);

impl Loggers {
    /// Starts them, for a job of `ranks` ranks, and tells the job where they are.
    pub fn start(job: &mut Job, wanted: &Listeners, ranks: usize) -> Result<Loggers, StartError> {
        let directory = job.spill_directory.clone();
        let directory = directory.unwrap_or_else(|| std::env::temp_dir().into_os_string());
        let mut loggers = Loggers::default();
        for number in 0..wanted.count {
            let settings = Settings {
                size: job.most_ranks.max(ranks),
                key: job.key,
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
            let address = logger
                .process
                .address()
                .and_then(|listens| reached(listens, job.node_count()));
            job.services.add(Server::EventLogger, address.map_err(&failed)?);
        }
        let addresses = job.services.of(Server::EventLogger);
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

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(|logger| logger.process.socket())
    }

    /// When one is to be started again.
    pub fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|logger| logger.again_at).min()
    }
}

impl Logger {
    /// An epoch is that of a logger that finds no journal.
    fn begin(&mut self) -> std::io::Result<()> {
        self.process.settings.epoch = self.process.starts + 1;
        self.process.start()
    }
}

impl Dispatcher {
    /// Hears what event loggers have said, and starts those again that have ended.
    pub(super) fn mind_loggers(&mut self) {
        let now = Instant::now();
        let waits = self.waves.protocol.order() != kinds::Order::Piggybacked;
        for number in 0..self.servers.loggers.0.len() {
            let logger = &mut self.servers.loggers.0[number];
            let pid = logger.process.pid();
            let (reports, end) = logger.process.hear();
            for report in reports {
                match report {
                    Report::Serves { epoch, deliveries } => {
                        let again = logger.process.starts > 1;
                        logger.failing = None;
                        self.bus.tell(Event::LoggerStarted {
                            logger: number,
                            pid,
                            epoch,
                            deliveries,
                            again,
                        });
                    }
                    Report::WithoutJournal { reason } => self.bus.tell(Event::LoggerWithoutJournal {
                        logger: number,
                        reason: &reason,
                    }),
                    Report::Failed { reason } => {
                        logger.failing.get_or_insert(now);
                        self.bus.tell(Event::LoggerFailed {
                            logger: number,
                            reason: &reason,
                        });
                    }
                }
            }
            if let Some(end) = end
                && self.verdict.is_none()
            {
                self.bus.tell(Event::LoggerLost {
                    logger: number,
                    end,
                    waits,
                });
                let soon = now.duration_since(logger.started) < SOON && logger.process.starts > 1;
                logger.again_at = Some(if soon { now + PAUSE } else { now });
            }
            if logger.again_at.is_some_and(|at| at <= now) && self.verdict.is_none() {
                (logger.started, logger.again_at) = (now, None);
                if let Err(error) = logger.begin() {
                    logger.failing.get_or_insert(now);
                    self.bus.tell(Event::LoggerFailed {
                        logger: number,
                        reason: &error.to_string(),
                    });
                    logger.again_at = Some(now + PAUSE);
                }
            }
            if logger.failing.is_some_and(|since| now - since > PATIENCE) && self.verdict.is_none() {
                self.bus.error(&format!(
                    "event logger {number} cannot be started for {PATIENCE:?}, so the job ends"
                ));
                self.end(FAILURE, Duration::ZERO);
            }
        }
    }
}

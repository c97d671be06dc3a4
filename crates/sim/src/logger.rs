//! The event logger's side of a run: its connections, its loss and its replacement.

use resurgo_protocol::event_logger::Error;
use resurgo_protocol::{EventLogger, Rank, Recorded};

use crate::checkers::{COLLECTED, Violation, violation};
use crate::log::Record;
use crate::process::State;
use crate::subject::Mutation;
use crate::world::{Event, World};

#[derive(Debug, Clone)]
pub(crate) enum ToLogger {
    Hello { acknowledged: Option<u64> },
    Log { first_rclock: u64, records: Vec<Recorded> },
    Forget { rclock: u64 },
    Query { above_rclock: u64 },
}

#[derive(Debug, Clone)]
pub(crate) enum FromLogger {
    Ack { rclock: u64 },
    Answer { records: Vec<Recorded> },
    NotWhole,
    Forgotten { kept_from: u64 },
}

impl World {
    fn logger_arrival(&mut self, last: fn(&mut World, usize) -> &mut u64, rank: Rank) -> u64 {
        let now = self.now;
        let delay = 1 + self.random.below(self.logger_latency);
        let last = last(self, rank as usize);
        *last = (*last).max(now + delay);
        *last - now
    }

    pub(crate) fn tell_logger(&mut self, rank: Rank, message: ToLogger) {
        let delay = self.logger_arrival(|world, rank| &mut world.to_logger[rank], rank);
        let process = &self.ranks[rank as usize];
        let (incarnation, epoch) = (process.incarnation, process.logger_epoch);
        self.schedule(
            delay,
            Event::ToLogger {
                rank,
                incarnation,
                epoch,
                message,
            },
        );
    }

    fn logger_tells(&mut self, rank: Rank, incarnation: u64, message: FromLogger) {
        let delay = self.logger_arrival(|world, rank| &mut world.from_logger[rank], rank);
        let epoch = self.epoch;
        self.schedule(
            delay,
            Event::FromLogger {
                rank,
                incarnation,
                epoch,
                message,
            },
        );
    }

    /// Sends the event logger what it has not been sent.
    pub(crate) fn log_deliveries(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else { return };
        if process.logger_epoch == 0 || life.logged >= process.record.end() {
            return;
        }
        let dropped = process.record.base.rclock;
        let logged = life.logged.max(dropped);
        let first_rclock = logged + 1;
        let records = process.record.entries()[(logged - dropped) as usize..].to_vec();
        life.logged = process.record.end();
        self.tell_logger(rank, ToLogger::Log { first_rclock, records });
    }

    /// Rank `rank` finds the event logger of the present epoch.
    pub(crate) fn connect_logger(&mut self, rank: Rank) {
        let epoch = self.epoch;
        let process = &mut self.ranks[rank as usize];
        if self.logger.is_none() || process.is_down() || process.logger_epoch == epoch {
            return;
        }
        let replaced = process.logger_epoch != 0;
        process.logger_epoch = epoch;
        self.provoked = replaced.then_some(rank);
        self.note(|| format!("{rank} connects to event logger {epoch}"));
        let process = &mut self.ranks[rank as usize];
        match &mut process.state {
            State::Down => {}
            State::Recovering(recovery) => {
                let known = recovery.record_from.map(|_| process.record.end());
                let above_rclock = recovery.above.rclock;
                let records = process.record.entries().to_vec();
                self.tell_logger(rank, ToLogger::Hello { acknowledged: known });
                let message = match known {
                    None => ToLogger::Query { above_rclock },
                    Some(_) => {
                        self.introduce_base(rank);
                        ToLogger::Log {
                            first_rclock: above_rclock + 1,
                            records,
                        }
                    }
                };
                self.tell_logger(rank, message);
            }
            State::Up(life) => {
                if replaced {
                    life.lose_logger(process.record.base.rclock);
                }
                life.logged = life.subject.first_unacknowledged() - 1;
                let acknowledged = Some(life.acknowledged);
                self.tell_logger(rank, ToLogger::Hello { acknowledged });
                self.introduce_base(rank);
                self.log_deliveries(rank);
            }
        }
    }

    fn introduce_base(&mut self, rank: Rank) {
        if !self.is(Mutation::ForgetBaseOnLoggerRestart) {
            self.tell_logger_base(rank, 0);
        }
    }

    pub(crate) fn crash_logger(&mut self) {
        if self.logger.take().is_some() {
            self.note(|| "the event logger crashes".into());
            self.checkers.logger_lost();
            let pause = 1 + self.random.below(self.repair);
            self.schedule(pause, Event::LoggerRestarts);
        }
    }

    pub(crate) fn restart_logger(&mut self) {
        let size = self.ranks.len();
        self.epoch += 1;
        self.whole = vec![false; size];
        self.logger = Some(if self.is(Mutation::ReplacementClaimsAll) {
            EventLogger::new(size)
        } else {
            EventLogger::replacement(size, self.epoch)
        });
        self.note(|| "the event logger is replaced".into());
        for rank in 0..size as Rank {
            let pause = 1 + self.random.below(self.repair);
            self.schedule(pause, Event::ConnectLogger { rank });
        }
    }

    pub(crate) fn logger_hears(
        &mut self,
        rank: Rank,
        incarnation: u64,
        epoch: u64,
        message: ToLogger,
    ) -> Result<(), Violation> {
        if epoch != self.epoch || self.ranks[rank as usize].is_cut(incarnation, self.now) {
            return Ok(());
        }
        let no_fence = self.is(Mutation::LoggerDoesNotFence);
        let ahead = u64::from(self.is(Mutation::LoggerAcknowledgesAhead));
        let Some(logger) = &mut self.logger else { return Ok(()) };
        let refused = |error: Error| match error {
            Error::Fenced { .. } => Ok(()),
            error => violation("same history", error.to_string()),
        };
        match message {
            ToLogger::Hello { acknowledged } => {
                if let Err(error) = logger.admit(rank, incarnation, acknowledged) {
                    return refused(error);
                }
                self.admitted(rank, acknowledged.is_some());
            }
            ToLogger::Log { first_rclock, records } => {
                let current = logger.incarnation(rank).unwrap_or(incarnation);
                let life = if no_fence { current } else { incarnation };
                let ack = match logger.log(rank, life, first_rclock, &records) {
                    Ok(ack) => ack,
                    Err(error) => return refused(error),
                };
                for (rclock, record) in (first_rclock..).zip(&records) {
                    self.checkers.stored(rank, rclock, *record)?;
                }
                self.note(|| format!("the event logger has {} of {rank}", ack.rclock));
                self.admitted(rank, self.declared[rank as usize] == self.epoch);
                self.logger_tells(
                    rank,
                    incarnation,
                    FromLogger::Ack {
                        rclock: ack.rclock + ahead,
                    },
                );
            }
            ToLogger::Forget { rclock } => {
                let ack = match logger.forget(rank, rclock) {
                    Ok(ack) => ack,
                    Err(error) => return refused(error),
                };
                self.checkers.logger_forgets(rank, rclock);
                self.note(|| {
                    format!(
                        "the event logger has {} of {rank} without the first {rclock}",
                        ack.rclock
                    )
                });
                self.admitted(rank, self.declared[rank as usize] == self.epoch);
                self.logger_tells(rank, incarnation, FromLogger::Ack { rclock: ack.rclock });
            }
            ToLogger::Query { above_rclock } => {
                if logger.incarnation(rank) != Ok(incarnation) {
                    return Ok(());
                }
                let message = match logger.query(rank, above_rclock) {
                    Ok(records) => {
                        let short = usize::from(self.mutation == Some(Mutation::AnswerShort) && !records.is_empty());
                        FromLogger::Answer {
                            records: records[..records.len() - short].to_vec(),
                        }
                    }
                    Err(Error::NotWhole { .. }) if self.whole[rank as usize] || self.epoch == 1 => {
                        return violation(
                            "liveness",
                            format!("the history of {rank} is reported lost, and is there"),
                        );
                    }
                    Err(Error::NotWhole { .. }) => FromLogger::NotWhole,
                    Err(Error::Forgotten { kept_from, .. }) => FromLogger::Forgotten { kept_from },
                    Err(error) => return refused(error),
                };
                self.logger_tells(rank, incarnation, message);
            }
        }
        Ok(())
    }

    /// Keeps, apart from the event logger, whether it could know the whole history of `rank`.
    fn admitted(&mut self, rank: Rank, declared: bool) {
        if declared {
            self.declared[rank as usize] = self.epoch;
            self.whole[rank as usize] |= self.checkers.refilled(rank);
        }
    }

    pub(crate) fn rank_hears(
        &mut self,
        rank: Rank,
        incarnation: u64,
        epoch: u64,
        message: FromLogger,
    ) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        if process.incarnation != incarnation || process.logger_epoch != epoch {
            return Ok(());
        }
        match (&mut process.state, message) {
            (State::Up(life), FromLogger::Ack { rclock }) => {
                if self.logger.is_some() && epoch == self.epoch {
                    self.checkers.acknowledged(rank, rclock)?;
                }
                life.acknowledged = life.acknowledged.max(rclock);
                life.subject.acknowledge(rclock);
                self.note(|| format!("{rank} is acknowledged {rclock}"));
                while let Some((to, ssn)) = self.ranks[rank as usize].life().and_then(|life| life.subject.release()) {
                    self.publish(rank, to, ssn)?;
                }
            }
            (State::Recovering(recovery), FromLogger::Answer { records }) if recovery.record_from.is_none() => {
                recovery.record_from = Some(epoch);
                let asked = std::mem::take(&mut recovery.asked);
                self.provoked = Some(rank);
                let standing = recovery.image.as_ref().map(|image| &image.standing);
                self.checkers.recover(rank, standing, recovery.above.rclock, &records)?;
                // What came before can no longer be told to a replacement of the event logger.
                self.checkers.collects(rank, recovery.above.rclock);
                process.record = Record::new(recovery.above.clone(), records);
                let (base, end) = (process.record.base.rclock, process.record.end());
                self.note(|| format!("{rank} has a record of the deliveries {} to {end}", base + 1));
                for peer in (0..self.ranks.len() as Rank).filter(|peer| *peer != rank) {
                    self.connect(rank, peer);
                }
                for peer in asked {
                    self.answer_seen(rank, peer);
                }
            }
            (State::Recovering(recovery), FromLogger::Forgotten { kept_from }) if recovery.record_from.is_none() => {
                // With one image left the rank cannot know whether there were two before.
                let above = process.images.first().map(|image| image.cursor());
                let Some(above) = above.filter(|above| above.rclock > recovery.above.rclock) else {
                    return violation(
                        COLLECTED,
                        format!("the event logger has dropped the deliveries of {rank} before {kept_from}"),
                    );
                };
                let above_rclock = above.rclock;
                recovery.above = above;
                self.tell_logger(rank, ToLogger::Query { above_rclock });
            }
            (State::Recovering(recovery), FromLogger::NotWhole) if recovery.record_from.is_none() => {
                self.note(|| format!("the history of {rank} is lost"));
                self.lost = Some(rank);
            }
            _ => {}
        }
        Ok(())
    }

    /// A life that lost its node begins to run when it has its record and every answer.
    pub(crate) fn start_when_told(&mut self, rank: Rank) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let State::Recovering(recovery) = &mut process.state else {
            return Ok(());
        };
        let own = process.record.of_source(rank);
        recovery.seen[rank as usize] = Some(own);
        let Some(mut sent_before) = recovery.seen.iter().copied().collect::<Option<Vec<u64>>>() else {
            return Ok(());
        };
        let image = recovery.image.take();
        if let Some(image) = &image {
            // What the image has sent is in its logs: it is as good as seen.
            for (to, before) in (0..).zip(&mut sent_before) {
                *before = image.life.subject.sent(to).max(*before);
            }
        }
        let record_from = recovery.record_from;
        process.pushed[rank as usize] = 0;
        let standing = image.as_ref().map(|image| &image.standing);
        self.checkers.life_starts(rank, standing, &sent_before)?;
        for to in 0..self.ranks.len() as Rank {
            let pushed = self.ranks[rank as usize].pushed[to as usize];
            self.checkers.rewound(rank, to, pushed);
        }
        let connected = self.ranks[rank as usize].logger_epoch;
        // Otherwise the logger that vouched for the record is gone.
        let vouched = record_from == Some(connected);
        self.begin_life(rank, image, sent_before, vouched);
        let delivered = self.ranks[rank as usize].delivered(rank);
        self.serve(rank, rank, delivered)
    }
}

//! The event logger's side of a run: its connections, its loss and its replacement.

use resurgo_protocol::causal::Event;
use resurgo_protocol::event_logger::{Ack, Error};
use resurgo_protocol::{EventLogger, Rank, Recorded};

use crate::checkers::{COLLECTED, SAME_HISTORY, Violation, violation};
use crate::log::Record;
use crate::mutation::Mutation;
use crate::process::{Recovery, State};
use crate::world::{self, Site, World};

#[derive(Debug, Clone)]
pub(crate) enum ToLogger {
    Hello {
        acknowledged: Option<u64>,
    },
    /// `clocks`: the stable clocks that the rank knows, where its event logger is one of several.
    Log {
        first_rclock: u64,
        events: Vec<Event>,
        clocks: Vec<u64>,
    },
    Forget {
        rclock: u64,
    },
    Query {
        above_rclock: u64,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum FromLogger {
    /// `clocks`, in causal logging: of all ranks.
    Ack {
        rclock: u64,
        clocks: Vec<u64>,
    },
    Answer {
        records: Vec<Recorded>,
    },
    NotWhole,
    Forgotten {
        kept_from: u64,
    },
}

/// Deliveries of `rank` after its first `above` that wait for nothing.
pub(crate) fn events(rank: Rank, above: u64, records: &[Recorded]) -> Vec<Event> {
    let numbered = (above + 1..).zip(records);
    let event = |(rclock, record): (u64, &Recorded)| Event {
        receiver: rank,
        rclock,
        record: *record,
        antecedent: 0,
    };
    numbered.map(event).collect()
}

/// The event logger may refuse messages of an ended life, and nothing else.
fn refused(error: Error) -> Result<(), Violation> {
    match error {
        Error::Fenced { .. } => Ok(()),
        error => violation("same history", error.to_string()),
    }
}

impl World {
    fn logger_arrival(&mut self, last: fn(&mut World, usize) -> &mut u64, rank: Rank) -> u64 {
        let now = self.now;
        let site = self.ranks.len() + rank as usize % self.logging.sites.len().max(1);
        let delay = 1 + self.random.below(self.pace.logger_latency) + self.parted(rank as usize, site);
        let last = last(self, rank as usize);
        *last = (*last).max(now + delay);
        *last - now
    }

    pub(crate) fn tell_logger(&mut self, rank: Rank, message: ToLogger) {
        let delay = self.logger_arrival(|world, rank| &mut world.logging.to[rank], rank);
        let process = &self.ranks[rank as usize];
        let (incarnation, epoch) = (process.incarnation, process.logger_epoch);
        self.schedule(
            delay,
            world::Event::ToLogger {
                rank,
                incarnation,
                epoch,
                message,
            },
        );
    }

    fn logger_tells(&mut self, rank: Rank, incarnation: u64, message: FromLogger) {
        let delay = self.logger_arrival(|world, rank| &mut world.logging.from[rank], rank);
        let epoch = self.site(rank).map_or(0, |site| site.epoch);
        self.schedule(
            delay,
            world::Event::FromLogger {
                rank,
                incarnation,
                epoch,
                message,
            },
        );
    }

    /// Sends the event logger the deliveries that it lacks.
    pub(crate) fn log_deliveries(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let State::Up(life) = &mut process.state else { return };
        if process.logger_epoch == 0 || life.logged >= process.record.end() {
            return;
        }
        let dropped = process.record.base.rclock;
        let logged = life.logged.max(dropped);
        let first_rclock = logged + 1;
        let records = &process.record.entries()[(logged - dropped) as usize..];
        let events = life.subject.to_log(rank, logged, records);
        life.logged = process.record.end();
        let several = self.logging.sites.len() > 1;
        let clocks = life.subject.causal.as_ref().filter(|_| several);
        let clocks = clocks.map_or(Vec::new(), |causal| causal.stable().to_vec());
        let message = ToLogger::Log {
            first_rclock,
            events,
            clocks,
        };
        self.tell_logger(rank, message);
    }

    /// Rank `rank` finds the event logger of the present epoch.
    pub(crate) fn connect_logger(&mut self, rank: Rank) {
        let Some(site) = self.site(rank) else { return };
        let (epoch, there) = (site.epoch, site.state.is_some());
        let process = &mut self.ranks[rank as usize];
        if !there || process.is_down() || process.logger_epoch == epoch {
            return;
        }
        let replaced = process.logger_epoch != 0;
        process.logger_epoch = epoch;
        self.crashes.provoked = replaced.then_some(rank);
        self.note(|| format!("{rank} connects to event logger {epoch}"));
        let process = &mut self.ranks[rank as usize];
        match &mut process.state {
            State::Down => {}
            State::Recovering(Recovery {
                collection: Some(collection),
                above,
                ..
            }) => {
                let acknowledged = collection.stored();
                let above_rclock = above.rclock;
                self.tell_logger(rank, ToLogger::Hello { acknowledged });
                if acknowledged.is_none() {
                    self.tell_logger(rank, ToLogger::Query { above_rclock });
                }
            }
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
                            events: events(rank, above_rclock, &records),
                            clocks: Vec::new(),
                        }
                    }
                };
                self.tell_logger(rank, message);
            }
            State::Up(life) => {
                if replaced {
                    life.lose_logger(process.record.base.rclock);
                }
                if life.subject.causal.is_some() {
                    // Ranks that know them to be stable may forget deliveries whose acknowledgement has not come here.
                    life.acknowledged = life.acknowledged.max(life.logged);
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

    /// Ranks that log to event logger `site`.
    fn clients(&self, site: usize) -> impl Iterator<Item = Rank> + use<> {
        (site as Rank..self.ranks.len() as Rank).step_by(self.logging.sites.len())
    }

    pub(crate) fn crash_logger(&mut self, site: usize) {
        if self.logging.sites[site].state.take().is_some() {
            self.note(|| format!("event logger {site} crashes"));
            for rank in self.clients(site) {
                self.checkers.logger_lost(rank);
            }
            let pause = 1 + self.random.below(self.pace.repair);
            self.schedule(pause, world::Event::LoggerRestarts { site });
        }
    }

    pub(crate) fn restart_logger(&mut self, site: usize) {
        let size = self.ranks.len();
        let claims = self.is(Mutation::ReplacementClaimsAll);
        let this = &mut self.logging.sites[site];
        if this.state.is_some() {
            // All have begun anew meanwhile.
            return;
        }
        this.epoch += 1;
        this.spread.clear();
        this.state = Some(if claims {
            EventLogger::new(size)
        } else {
            EventLogger::replacement(size, this.epoch)
        });
        self.note(|| format!("event logger {site} is replaced"));
        for rank in self.clients(site) {
            self.logging.whole[rank as usize] = false;
            let pause = 1 + self.random.below(self.pace.repair);
            self.schedule(pause, world::Event::ConnectLogger { rank });
        }
    }

    /// An event logger learns what is stable elsewhere.
    pub(crate) fn logger_learns(&mut self, site: usize, clocks: &[u64]) -> Result<(), Violation> {
        let Some(logger) = &mut self.logging.sites[site].state else {
            return Ok(());
        };
        logger.learn(clocks);
        self.newly_stored(site)
    }

    /// The checkers learn what event logger `site` has stored, and others learn it.
    fn newly_stored(&mut self, site: usize) -> Result<(), Violation> {
        for rank in self.clients(site) {
            let Some(logger) = &self.logging.sites[site].state else {
                break;
            };
            let (dropped, records) = logger.stored(rank).unwrap_or_default();
            let known = self.checkers.stored_by_logger(rank).saturating_sub(dropped);
            for (rclock, record) in (dropped + 1..).zip(records).skip(known as usize) {
                self.checkers.stored(rank, rclock, *record)?;
            }
            let (epoch, required) = self.logging.declared[rank as usize];
            if epoch == self.logging.sites[site].epoch && self.checkers.refilled(rank, required) {
                self.logging.whole[rank as usize] = true;
            }
        }
        self.spread_clocks(site);
        Ok(())
    }

    pub(crate) fn logger_hears(
        &mut self,
        rank: Rank,
        incarnation: u64,
        epoch: u64,
        message: ToLogger,
    ) -> Result<(), Violation> {
        let site = rank as usize % self.logging.sites.len();
        if epoch != self.logging.sites[site].epoch || self.ranks[rank as usize].is_cut(incarnation, self.now) {
            return Ok(());
        }
        let no_fence = self.is(Mutation::LoggerDoesNotFence);
        let ahead = u64::from(self.is(Mutation::LoggerAcknowledgesAhead));
        let causal = self.rules.causal.is_some();
        let waits_for_nothing = self.is(Mutation::LoggerWithoutOrder);
        let Some(logger) = &mut self.logging.sites[site].state else {
            return Ok(());
        };
        match message {
            ToLogger::Hello { acknowledged } => {
                if let Err(error) = logger.admit(rank, incarnation, acknowledged) {
                    return refused(error);
                }
                if let Some(acknowledged) = acknowledged {
                    self.logging.declared[rank as usize] = (epoch, acknowledged);
                }
                self.newly_stored(site)?;
            }
            ToLogger::Log {
                first_rclock,
                mut events,
                clocks,
            } => {
                let current = logger.incarnation(rank).unwrap_or(incarnation);
                let life = if no_fence { current } else { incarnation };
                if waits_for_nothing {
                    events.iter_mut().for_each(|event| event.antecedent = 0);
                }
                let logged = if causal {
                    logger.learn(&clocks);
                    logger.log_events(rank, life, first_rclock, &events)
                } else {
                    let records: Vec<Recorded> = events.iter().map(|event| event.record).collect();
                    logger.log(rank, life, first_rclock, &records)
                };
                let ack = match logged {
                    Ok(ack) => ack,
                    Err(error) => return refused(error),
                };
                self.note(|| format!("the event logger has {} of {rank}", ack.rclock));
                self.logger_acknowledges(rank, incarnation, ack, ahead)?;
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
                self.logger_acknowledges(rank, incarnation, ack, 0)?;
            }
            ToLogger::Query { above_rclock } => self.logger_answers(rank, incarnation, above_rclock)?,
        }
        Ok(())
    }

    /// The event logger reports what it has of `rank`; `ahead`: wrongly so many more.
    fn logger_acknowledges(&mut self, rank: Rank, incarnation: u64, ack: Ack, ahead: u64) -> Result<(), Violation> {
        let site = rank as usize % self.logging.sites.len();
        let rclock = ack.rclock + ahead;
        let clocks = self.acknowledged_clocks(site, rank, ahead);
        self.newly_stored(site)?;
        self.logger_tells(rank, incarnation, FromLogger::Ack { rclock, clocks });
        Ok(())
    }

    /// The event logger answers a rank that asks for its deliveries after the first `above_rclock`.
    fn logger_answers(&mut self, rank: Rank, incarnation: u64, above_rclock: u64) -> Result<(), Violation> {
        let Some(Site {
            state: Some(logger),
            epoch,
            ..
        }) = self.site(rank)
        else {
            return Ok(());
        };
        if logger.incarnation(rank) != Ok(incarnation) {
            return Ok(());
        }
        let message = match logger.query(rank, above_rclock) {
            Ok(records) => {
                let short = usize::from(self.is(Mutation::AnswerShort) && !records.is_empty());
                FromLogger::Answer {
                    records: records[..records.len() - short].to_vec(),
                }
            }
            Err(Error::NotWhole { .. }) if self.logging.whole[rank as usize] || *epoch == 1 => {
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
        Ok(())
    }

    /// The other clocks in an acknowledgement of causal logging to `rank`.
    fn acknowledged_clocks(&self, site: usize, rank: Rank, ahead: u64) -> Vec<u64> {
        let Some(logger) = self.logging.sites[site]
            .state
            .as_ref()
            .filter(|_| self.rules.causal.is_some())
        else {
            return Vec::new();
        };
        let mut clocks: Vec<u64> = logger.stable_clocks().collect();
        clocks[rank as usize] += ahead;
        clocks
    }

    /// A running rank learns that the event logger of `epoch` has its first `rclock` deliveries.
    fn acknowledged(&mut self, rank: Rank, epoch: u64, rclock: u64, clocks: &[u64]) -> Result<(), Violation> {
        let site = &self.logging.sites[rank as usize % self.logging.sites.len()];
        if site.state.is_some() && epoch == site.epoch {
            self.checkers.acknowledged(rank, rclock)?;
        }
        let State::Up(life) = &mut self.ranks[rank as usize].state else {
            return Ok(());
        };
        let made = life.subject.made();
        if rclock > made {
            return violation(
                SAME_HISTORY,
                format!("delivery {rclock} of {rank} is acknowledged, {made} are made"),
            );
        }
        life.acknowledged = life.acknowledged.max(rclock);
        life.subject.acknowledge(rclock);
        if !clocks.is_empty() {
            life.subject.stable(clocks);
        }
        self.note(|| format!("{rank} is acknowledged {rclock}"));
        while let Some((to, ssn)) = self.ranks[rank as usize].life().and_then(|life| life.subject.release()) {
            self.publish(rank, to, ssn)?;
        }
        Ok(())
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
            (State::Up(_), FromLogger::Ack { rclock, clocks }) => self.acknowledged(rank, epoch, rclock, &clocks)?,
            (
                State::Recovering(Recovery {
                    collection: Some(collection),
                    above,
                    answered,
                    ..
                }),
                FromLogger::Answer { records },
            ) if collection.stored().is_none() => {
                collection.logged(above.rclock, records);
                *answered = epoch;
                match self.rules.memory_survives {
                    true if self.moves() => self.take_pieces(rank)?,
                    true => self.look_around(rank),
                    false => self.advance_collection(rank)?,
                }
            }
            (State::Recovering(recovery), FromLogger::Answer { records }) if recovery.record_from.is_none() => {
                recovery.record_from = Some(epoch);
                let asked = std::mem::take(&mut recovery.asked);
                self.crashes.provoked = Some(rank);
                let standing = recovery.image.as_ref().map(|image| &image.standing);
                self.checkers.recover(rank, standing, recovery.above.rclock, &records)?;
                // The rank can no longer tell a replacement of the event logger what came before.
                self.checkers.collects(rank, recovery.above.rclock);
                process.record = Record::new(recovery.above.clone(), records);
                let (base, end) = (process.record.base.rclock, process.record.end());
                self.note(|| format!("{rank} has a record of the deliveries {} to {end}", base + 1));
                if self.rules.memory_survives {
                    self.count_record(rank);
                    return Ok(());
                }
                for peer in (0..self.ranks.len() as Rank).filter(|peer| *peer != rank) {
                    self.connect(rank, peer);
                }
                for peer in asked {
                    self.answer_seen(rank, peer);
                }
            }
            (State::Recovering(recovery), FromLogger::Forgotten { kept_from }) if recovery.record_from.is_none() => {
                // With one image left the rank cannot know whether there were two before.
                let above = process.images.oldest().map(|image| image.cursor());
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
                self.logging.lost = Some(rank);
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
        if recovery.record_from.is_none() {
            // Other collecting ranks may have answered first.
            return Ok(());
        }
        let image = recovery.image.take();
        let causal = recovery.collection.take().map(|collection| collection.finish());
        if let Some(image) = &image {
            // The image's sends are in its logs: they count as seen.
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
        self.begin_life(rank, image, sent_before, vouched, causal);
        if self.rules.causal.is_some() {
            for to in (0..self.ranks.len() as Rank).filter(|to| *to != rank) {
                let have = self.ranks[rank as usize].pushed[to as usize];
                self.serve(rank, to, have)?;
            }
        }
        let delivered = self.ranks[rank as usize].delivered(rank);
        self.serve(rank, rank, delivered)
    }
}

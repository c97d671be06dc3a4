//! Causal message logging in the run. Wires carry piggybacks, new lives collect what others know of them, and stable
//! clocks travel between event loggers and ranks.
//!
//! The sender computes a piggyback when its frame leaves, each time. The receiver takes it in when the frame arrives.
//! It is encoded and decoded as in a real job. A new life asks all ranks at once ([`Collection`]).

use resurgo_protocol::causal::{Answer, Collection, Error, Piggyback, Reduction};
use resurgo_protocol::{Causal, Rank};
use resurgo_wire::piggyback;

use crate::checkers::{COLLECTED, NO_ORPHAN, SAME_HISTORY, Violation, violation};
use crate::image::Image;
use crate::log::Record;
use crate::mutation::Mutation;
use crate::network::{Body, Told};
use crate::process::{Recovery, State};
use crate::random::{Random, mix};
use crate::world::{Event, World};

/// How ranks learn the clocks of event loggers other than their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Loggers tell one another, and pass these clocks on to ranks.
    Multicast,
    /// Loggers tell all ranks.
    Broadcast,
    /// Ranks tell one another, with their messages.
    Piggyback,
}

impl Spread {
    pub const ALL: [Self; 3] = [Self::Multicast, Self::Broadcast, Self::Piggyback];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Piggyback => "piggyback",
        }
    }
}

/// Event loggers of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loggers {
    pub count: usize,
    pub spread: Spread,
}

/// A job under causal logging.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flavour {
    pub reduction: Reduction,
    pub loggers: Loggers,
}

impl Flavour {
    /// As configured, or by chance.
    pub fn new(seed: u64, reduction: Reduction, loggers: Option<Loggers>) -> Self {
        let mut random = Random::new(mix(seed, 3));
        let loggers = loggers.unwrap_or_else(|| Loggers {
            count: [0, 0, 1, 1, 2, 3][random.below(6) as usize],
            spread: Spread::ALL[random.below(3) as usize],
        });
        Self { reduction, loggers }
    }

    pub fn spreads(&self, spread: Spread) -> bool {
        self.loggers.count > 1 && self.loggers.spread == spread
    }

    pub fn first(&self, rank: Rank, size: usize) -> Causal {
        Causal::new(rank, size, self.reduction, self.spreads(Spread::Piggyback))
    }
}

/// The piggybacks of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Piggybacks {
    pub messages: u64,
    /// Of these, without any event.
    pub empty: u64,
    pub events: u64,
    pub bytes: u64,
    /// Most events that a rank has kept.
    pub largest_graph: u64,
}

impl Piggybacks {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.empty += other.empty;
        self.events += other.events;
        self.bytes += other.bytes;
        self.largest_graph = self.largest_graph.max(other.largest_graph);
    }
}

impl World {
    pub(crate) fn reduction(&self) -> Reduction {
        self.rules
            .causal
            .map_or(Reduction::Vcausal, |flavour| flavour.reduction)
    }

    /// The piggyback of message `ssn` (from → to), sent after delivery `after`; empty under other protocols.
    pub(crate) fn piggyback(&mut self, from: Rank, to: Rank, ssn: u64, after: u64) -> Vec<u8> {
        if self.rules.causal.is_none() {
            return Vec::new();
        }
        let moves = self.moves();
        let piggyback = match &mut self.ranks[from as usize].state {
            State::Up(life) if moves => life.subject.piggyback_of(to, ssn),
            State::Up(life) => life.subject.piggyback(to),
            _ => Piggyback::default(),
        };
        let mut bytes = Vec::new();
        piggyback::encode(self.reduction(), after, &piggyback, &mut bytes);
        if from != to {
            self.piggybacks.messages += 1;
            self.piggybacks.empty += u64::from(piggyback.events.is_empty());
            self.piggybacks.events += piggyback.events.len() as u64;
            self.piggybacks.bytes += bytes.len() as u64;
        }
        bytes
    }

    /// A frame arrives at `rank`: takes in its piggyback; returns the deliveries that its sender had made.
    pub(crate) fn absorb(&mut self, rank: Rank, from: Rank, bytes: &[u8]) -> Result<u64, Violation> {
        let (clock, mut piggyback) = match piggyback::decode(self.reduction(), bytes) {
            Ok(decoded) => decoded,
            Err(error) => return violation(SAME_HISTORY, error.to_string()),
        };
        if self.is(Mutation::LosePiggybacks) && self.random.one_in(8) {
            piggyback.events.clear();
        }
        self.take_in(rank, from, &piggyback)?;
        Ok(clock)
    }

    fn take_in(&mut self, rank: Rank, from: Rank, piggyback: &Piggyback) -> Result<(), Violation> {
        let taken = match &mut self.ranks[rank as usize].state {
            State::Up(life) => life.subject.absorb(from, piggyback),
            State::Recovering(Recovery {
                collection: Some(collection),
                ..
            }) => collection.absorb(from, piggyback),
            _ => Ok(()),
        };
        taken.or_else(|error| violation(NO_ORPHAN, error.to_string()))
    }

    /// `rank` learns that images cover the first `base` deliveries of `of`.
    pub(crate) fn hear_base(&mut self, rank: Rank, of: Rank, base: u64) {
        let forgets = !self.is(Mutation::KeepEvents);
        match &mut self.ranks[rank as usize].state {
            State::Up(life) if forgets => life.subject.covered(of, base),
            State::Recovering(Recovery {
                collection: Some(collection),
                ..
            }) if forgets => collection.covered(of, base),
            _ => {}
        }
    }

    /// `rank` learns how far deliveries are stable, from an event logger, directly or not.
    pub(crate) fn hear_clocks(&mut self, rank: Rank, clocks: &[u64]) {
        if let Some(life) = self.ranks[rank as usize].life() {
            life.subject.stable(clocks);
        }
    }

    /// A life that lost its node asks all ranks what they know of it.
    pub(crate) fn begin_collection(&mut self, rank: Rank, image: Option<&Image>) -> Option<Box<Collection>> {
        let flavour = self.rules.causal?;
        let known = image.and_then(|image| image.life.subject.causal.clone());
        let known = known.filter(|_| !self.is(Mutation::ImageWithoutKnowledge));
        let causal = known.unwrap_or_else(|| flavour.first(rank, self.ranks.len()));
        let life = self.ranks[rank as usize].incarnation;
        Some(Box::new(Collection::new(causal, life, flavour.loggers.count > 0)))
    }

    pub(crate) fn ask_all(&mut self, rank: Rank) {
        for peer in (0..self.ranks.len() as Rank).filter(|peer| *peer != rank) {
            self.connect(rank, peer);
        }
    }

    /// The connection between `rank` and `peer` is a new one, or leads to a new life.
    pub(crate) fn forget_exchanged(&mut self, rank: Rank, peer: Rank) {
        if self.is(Mutation::TellNews) {
            return;
        }
        match &mut self.ranks[rank as usize].state {
            State::Up(life) => life.subject.connected(peer),
            State::Recovering(Recovery {
                collection: Some(collection),
                ..
            }) => collection.connected(peer),
            _ => {}
        }
    }

    /// `by`, in a life that is `new` here, has asked: it gets an answer at once, and again when there is more.
    pub(crate) fn asked_by(&mut self, rank: Rank, by: Rank, new: bool) {
        self.forget_exchanged(rank, by);
        let process = &mut self.ranks[rank as usize];
        let life = process.peers[by as usize];
        if let State::Recovering(Recovery {
            collection: Some(collection),
            seen,
            asked,
            ..
        }) = &mut process.state
        {
            collection.asked(by, life);
            if !asked.contains(&by) {
                asked.push(by);
            }
            if new {
                // That rank has not got the question.
                seen[by as usize] = None;
                self.connect(rank, by);
            }
        }
        self.tell(rank, by);
    }

    fn tell(&mut self, rank: Rank, to: Rank) {
        let (delta, early) = (self.is(Mutation::TellNews), self.is(Mutation::CompleteAtOnce));
        let process = &mut self.ranks[rank as usize];
        let knows_record = process.knows_record();
        let lives = process.peers.clone();
        let answer = match &mut process.state {
            State::Up(life) => Answer {
                complete: true,
                lives,
                known: if delta {
                    life.subject.piggyback(to)
                } else {
                    life.subject.everything(to)
                },
            },
            State::Recovering(Recovery {
                collection: Some(collection),
                ..
            }) => {
                let answer = collection.tell(to);
                Answer {
                    complete: answer.complete || early,
                    ..answer
                }
            }
            _ => return,
        };
        let (visible, have) = self.seen_by(rank, to);
        let process = &self.ranks[rank as usize];
        let told = Told {
            answer,
            visible: knows_record.then_some(visible),
            have,
            covered: process.record.base.delivered[to as usize],
            base: process.record.base.rclock,
        };
        self.transmit(rank, to, Body::Told(Box::new(told)));
    }

    pub(crate) fn told(&mut self, rank: Rank, from: Rank, from_life: u64, told: Told) -> Result<(), Violation> {
        let Told {
            mut answer,
            visible,
            have,
            covered,
            base,
        } = told;
        self.covered(rank, from, covered);
        self.hear_base(rank, from, base);
        if self.is(Mutation::AskAllButOne) && from == (rank + 1) % self.ranks.len() as Rank {
            answer.known = Piggyback::default();
        }
        if self.is(Mutation::CollectOwn) {
            answer.known.events.retain(|event| event.receiver == rank);
        }
        let orphan = |error: Error| violation(NO_ORPHAN, error.to_string());
        let recovery = match &mut self.ranks[rank as usize].state {
            State::Recovering(recovery) => recovery,
            State::Up(life) => return life.subject.told(from, &answer.known).or_else(orphan),
            State::Down => return Ok(()),
        };
        let Some(collection) = recovery.collection.as_mut() else {
            return Ok(());
        };
        collection.answer(from, from_life, &answer).or_else(orphan)?;
        if let Some(visible) = visible
            && recovery.seen[from as usize].is_none()
        {
            recovery.seen[from as usize] = Some(visible);
            self.note(|| format!("{rank} hears from {from}: seen {visible}, here {have}"));
            self.serve(rank, from, have)?;
        }
        self.advance_collection(rank)
    }

    /// Answers those that have asked, as far as possible now; begins the life when it has everything.
    pub(crate) fn advance_collection(&mut self, rank: Rank) -> Result<(), Violation> {
        let State::Recovering(recovery) = &mut self.ranks[rank as usize].state else {
            return Ok(());
        };
        let Some(collection) = &recovery.collection else {
            return Ok(());
        };
        let mut due = collection.due();
        if recovery.record_from.is_none() && collection.is_over() {
            due.clone_from(&recovery.asked);
            self.take_record(rank)?;
        }
        for peer in due {
            self.crashes.provoked = Some(rank);
            self.tell(rank, peer);
        }
        self.start_when_told(rank)
    }

    /// All known deliveries of `rank` are collected.
    fn take_record(&mut self, rank: Rank) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let State::Recovering(recovery) = &mut process.state else {
            return Ok(());
        };
        let Some(collection) = &recovery.collection else {
            return Ok(());
        };
        let mut record = collection.record(recovery.above.rclock);
        if let (None, [(_, only)]) = (&record, &process.images.complete[..]) {
            // There were two before, and what the older one covered is dropped.
            recovery.above = only.cursor();
            record = collection.record(recovery.above.rclock);
        }
        let above = recovery.above.clone();
        let Some(record) = record else {
            return violation(
                COLLECTED,
                format!("the deliveries of {rank} after {} cannot be collected", above.rclock),
            );
        };
        recovery.record_from = Some(recovery.answered);
        let standing = recovery.image.as_ref().map(|image| &image.standing);
        self.checkers.recover(rank, standing, above.rclock, &record)?;
        self.checkers.collects(rank, above.rclock);
        process.record = Record::new(above, record);
        let (base, end) = (process.record.base.rclock, process.record.end());
        self.note(|| format!("{rank} has collected the deliveries {} to {end}", base + 1));
        Ok(())
    }

    /// Event logger `site` may know more than before: tells others.
    pub(crate) fn spread_clocks(&mut self, site: usize) {
        let Some(flavour) = self.rules.causal else { return };
        let Some(logger) = &self.logging.sites[site].state else {
            return;
        };
        let clocks: Vec<u64> = logger.stable_clocks().collect();
        if self.logging.sites[site].spread == clocks {
            return;
        }
        self.logging.sites[site].spread.clone_from(&clocks);
        if flavour.spreads(Spread::Multicast) {
            for to in (0..self.logging.sites.len()).filter(|to| *to != site) {
                let between = self.parted(self.ranks.len() + site, self.ranks.len() + to);
                let delay = 1 + self.random.below(self.pace.logger_latency) + between;
                let clocks = clocks.clone();
                self.schedule(delay, Event::LoggerClocks { to, clocks });
            }
        }
        if flavour.spreads(Spread::Broadcast) {
            for rank in 0..self.ranks.len() as Rank {
                let between = self.parted(self.ranks.len() + site, rank as usize);
                let delay = 1 + self.random.below(self.pace.logger_latency) + between;
                let clocks = clocks.clone();
                self.schedule(delay, Event::Clocks { rank, clocks });
            }
        }
    }

    /// Every running rank knows all unstable deliveries that it depends on, and takes no unstable delivery for stable.
    pub(crate) fn check_knowledge(&mut self) -> Result<(), Violation> {
        if self.rules.causal.is_none() {
            return Ok(());
        }
        for process in &self.ranks {
            let causal = match &process.state {
                State::Up(life) => life.subject.causal.as_ref(),
                State::Recovering(recovery) => recovery.collection.as_ref().map(|collection| collection.causal()),
                State::Down => None,
            };
            let Some(causal) = causal else { continue };
            self.checkers.knows(process.rank, causal.latest(), causal.stable())?;
            let kept = causal.kept() as u64;
            self.piggybacks.largest_graph = self.piggybacks.largest_graph.max(kept);
        }
        Ok(())
    }
}

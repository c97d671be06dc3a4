//! The protocol under test: [`Pessimistic`] itself, or a variant broken on purpose to prove that the checkers
//! see it. The production protocol knows nothing of this.

use resurgo_protocol::causal::{Error, Event, Piggyback};
use resurgo_protocol::{Arrival, Causal, Determinant, Next, Pessimistic, Rank, Recorded, Sending, Tolerate};

use crate::logger;
use crate::mutation::Mutation;

/// One life of one rank, as [`Pessimistic`] describes it.
#[derive(Debug, Clone)]
pub struct Subject {
    rank: Rank,
    protocol: Pessimistic,
    /// Under causal logging, the state beside it.
    pub causal: Option<Causal>,
    /// The error that it found in the last delivery.
    pub orphan: Option<Error>,
    mutation: Option<Mutation>,
    /// The input that the real protocol would get, for variants that keep it from it.
    record: u64,
    sent_before: Vec<u64>,
    expected: Option<Recorded>,
    released: Vec<(Rank, u64)>,
    reads: u64,
    /// Reads that the image leaves out.
    lost_reads: u64,
}

impl Subject {
    pub fn new(
        rank: Rank,
        size: usize,
        tolerate: Tolerate,
        mutation: Option<Mutation>,
        causal: Option<Causal>,
    ) -> Self {
        let tolerate = if causal.is_some() { Tolerate::Process } else { tolerate };
        Self {
            rank,
            protocol: Pessimistic::new(rank, size, tolerate),
            causal,
            orphan: None,
            mutation,
            record: 0,
            sent_before: vec![0; size],
            expected: None,
            released: Vec::new(),
            reads: 0,
            lost_reads: 0,
        }
    }

    pub fn recovering(
        rank: Rank,
        size: usize,
        tolerate: Tolerate,
        mutation: Option<Mutation>,
        deliveries: u64,
        sent_before: Vec<u64>,
    ) -> Self {
        let (told_deliveries, told_sent) = match mutation {
            Some(Mutation::ForgetRecord | Mutation::IgnoreSources) => (0, vec![0; size]),
            Some(Mutation::DeliverBeforeRedo) => (deliveries, vec![0; size]),
            _ => (deliveries, sent_before.clone()),
        };
        let mut protocol = Pessimistic::recovering(rank, size, tolerate, told_deliveries, told_sent);
        if told_deliveries < deliveries && tolerate == Tolerate::Node {
            // The caller acknowledges only new deliveries; a life without a known record would wait for ever.
            protocol = Pessimistic::recovering(rank, size, Tolerate::Process, 0, vec![0; size]);
        }
        Self {
            rank,
            protocol,
            causal: None,
            orphan: None,
            mutation,
            record: deliveries,
            sent_before,
            expected: None,
            released: Vec::new(),
            reads: 0,
            lost_reads: 0,
        }
    }

    pub fn may_checkpoint(&self) -> bool {
        match self.mutation {
            Some(Mutation::ImageWithHeldFrames) => !self.protocol.is_replaying(),
            Some(Mutation::ImageNotStable) => !self.protocol.is_replaying() && self.protocol.held() == 0,
            _ => self.protocol.may_checkpoint(),
        }
    }

    /// This is the copy in an image that is being taken.
    pub fn captured(&mut self) {
        if self.is(Mutation::ImageWithHeldFrames) || self.is(Mutation::ImageNotStable) {
            self.protocol.acknowledge(self.protocol.rclock());
            while self.protocol.release().is_some() {}
        }
    }

    /// See [`Pessimistic::restored`].
    pub fn restored(&mut self, deliveries: u64, sent_before: Vec<u64>) {
        let sent = (0..sent_before.len() as Rank)
            .map(|to| self.protocol.sent(to))
            .collect();
        let (told_deliveries, told_sent) = match self.mutation {
            Some(Mutation::ForgetRecord | Mutation::IgnoreSources) => (self.rclock(), sent),
            Some(Mutation::DeliverBeforeRedo) => (deliveries, sent),
            _ => (deliveries, sent_before.clone()),
        };
        self.protocol.restored(told_deliveries, told_sent);
        self.record = deliveries;
        self.sent_before = sent_before;
        if self.is(Mutation::ImageWithoutPolls) {
            self.lost_reads = self.reads;
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// True if this variant does not get to know its record.
    fn blind(&self) -> bool {
        self.is(Mutation::IgnoreSources) || self.is(Mutation::ForgetRecord)
    }

    pub fn begin_poll(&mut self) {
        self.reads += 1;
        self.protocol.begin_poll();
    }

    pub fn next(&self) -> Next {
        if self.is(Mutation::IgnoreSources) && self.rclock() < self.record {
            return match self.expected {
                None => Next::NeedRecord,
                Some(record) if self.reads < record.polls => Next::Nothing,
                Some(_) => Next::Any,
            };
        }
        match (self.protocol.next(), self.expected) {
            (Next::Nothing, Some(record)) if self.is(Mutation::IgnorePolls) => Next::From(record.source),
            (next, _) => next,
        }
    }

    pub fn expect(&mut self, mut record: Recorded) {
        record.polls += self.lost_reads;
        self.expected = Some(record);
        if !self.blind() {
            self.protocol.expect(record);
        }
    }

    /// `antecedent`: see [`Causal::deliver`].
    pub fn deliver(&mut self, source: Rank, antecedent: u64) -> (Determinant, bool) {
        if self.is(Mutation::IgnorePolls) {
            while self.protocol.next() == Next::Nothing {
                self.protocol.begin_poll();
            }
        }
        self.expected = None;
        self.reads = 0;
        let (mut determinant, mut new) = self.protocol.deliver(source);
        match self.mutation {
            Some(Mutation::AcknowledgeEarly) => self.protocol.acknowledge(determinant.rclock),
            Some(Mutation::MiscountPolls) => determinant.polls += 1,
            Some(Mutation::LoseDeterminants) if determinant.rclock % 7 == 0 => new = false,
            _ => {}
        }
        determinant.polls -= std::mem::take(&mut self.lost_reads);
        if self.blind() {
            new = determinant.rclock > self.record;
        }
        if let Some(causal) = &mut self.causal {
            self.orphan = causal.deliver(&determinant, antecedent).err();
            if self.mutation == Some(Mutation::ForgetWhenLogged) {
                causal.covered(determinant.receiver, determinant.rclock);
            }
        }
        (determinant, new)
    }

    /// The piggyback of message `ssn` to `to`, which leaves now.
    pub fn piggyback_of(&mut self, to: Rank, ssn: u64) -> Piggyback {
        match self.causal.as_ref().filter(|_| ssn <= self.sent_before[to as usize]) {
            Some(causal) if !self.is(Mutation::TellAgain) => {
                let mut piggyback = Piggyback::default();
                causal.carry_again(&mut piggyback);
                piggyback
            }
            _ => self.piggyback(to),
        }
    }

    pub fn piggyback(&mut self, to: Rank) -> Piggyback {
        let Some(causal) = &mut self.causal else {
            return Piggyback::default();
        };
        let mut piggyback = causal.piggyback(to);
        match self.mutation {
            Some(Mutation::PiggybackOwn) => piggyback.events.retain(|event| event.receiver == self.rank),
            Some(Mutation::ReversePiggybacks) => piggyback.events.reverse(),
            Some(Mutation::OneTableForAll) => {
                for peer in 0..self.sent_before.len() as Rank {
                    causal.piggyback(peer);
                }
            }
            Some(Mutation::InferTooMuch) => piggyback.events.retain(|event| event.record.source != to),
            _ => {}
        }
        piggyback
    }

    /// See [`Causal::everything`].
    pub fn everything(&mut self, peer: Rank) -> Piggyback {
        self.causal
            .as_mut()
            .map_or_else(Piggyback::default, |causal| causal.everything(peer))
    }

    /// See [`Causal::absorb`].
    pub fn absorb(&mut self, from: Rank, piggyback: &Piggyback) -> Result<(), Error> {
        self.causal
            .as_mut()
            .map_or(Ok(()), |causal| causal.absorb(from, piggyback))
    }

    /// See [`Causal::told`].
    pub fn told(&mut self, from: Rank, known: &Piggyback) -> Result<(), Error> {
        self.causal.as_mut().map_or(Ok(()), |causal| causal.told(from, known))
    }

    /// See [`Causal::connected`].
    pub fn connected(&mut self, peer: Rank) {
        if let Some(causal) = &mut self.causal {
            causal.connected(peer);
        }
    }

    /// See [`Causal::covered`].
    pub fn covered(&mut self, rank: Rank, rclock: u64) {
        if let Some(causal) = &mut self.causal {
            causal.covered(rank, rclock);
        }
    }

    /// Deliveries of all ranks that are stable.
    pub fn stable(&mut self, clocks: &[u64]) {
        if let Some(causal) = self
            .causal
            .as_mut()
            .filter(|_| self.mutation != Some(Mutation::KeepEvents))
        {
            causal.acknowledge(clocks);
        }
    }

    /// The deliveries of `rank` after the first `above`, as sent to the event logger.
    pub fn to_log(&self, rank: Rank, above: u64, records: &[Recorded]) -> Vec<Event> {
        match &self.causal {
            Some(causal) => causal.to_log(above, records),
            None => logger::events(rank, above, records),
        }
    }

    pub fn send(&mut self, destination: Rank) -> Sending {
        let sending = self.protocol.send(destination);
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        if ssn <= self.sent_before[destination as usize] {
            return Sending::Redo { ssn };
        }
        match sending {
            Sending::Hold { .. } if self.is(Mutation::SkipHold) => Sending::Now { ssn },
            _ => sending,
        }
    }

    pub fn acknowledge(&mut self, rclock: u64) {
        let known = if self.blind() { self.rclock() } else { rclock };
        self.protocol.acknowledge(rclock.min(known));
    }

    pub fn event_logger_lost(&mut self) {
        if !self.is(Mutation::IgnoreLoggerLoss) {
            self.protocol.event_logger_lost();
        }
    }

    pub fn first_unacknowledged(&self) -> u64 {
        if self.causal.is_some() && !self.is(Mutation::ForgetRecordOnLoggerRestart) {
            return 1;
        }
        if self.is(Mutation::ForgetRecordOnLoggerRestart) {
            self.rclock() + 1
        } else {
            self.protocol.first_unacknowledged()
        }
    }

    pub fn release(&mut self) -> Option<(Rank, u64)> {
        match self.mutation {
            Some(Mutation::SkipHold) => {
                while self.protocol.release().is_some() {}
                None
            }
            Some(Mutation::ReleaseNever) => None,
            Some(Mutation::ReleaseOutOfOrder) => {
                while let Some(frame) = self.protocol.release() {
                    self.released.push(frame);
                }
                self.released.pop()
            }
            _ => self.protocol.release(),
        }
    }

    pub fn accepts(&self, source: Rank, ssn: u64) -> Arrival {
        match self.protocol.accepts(source, ssn) {
            Arrival::Duplicate if self.is(Mutation::AcceptDuplicates) => Arrival::Next,
            arrival => arrival,
        }
    }

    pub fn is_replaying(&self) -> bool {
        self.protocol.is_replaying()
    }

    /// Deliveries that this life has made or has a record of.
    pub fn made(&self) -> u64 {
        self.protocol.rclock().max(self.protocol.recorded())
    }

    pub fn rclock(&self) -> u64 {
        self.protocol.rclock()
    }

    pub fn delivered(&self, source: Rank) -> u64 {
        self.protocol.delivered(source)
    }

    pub fn sent(&self, destination: Rank) -> u64 {
        self.protocol.sent(destination)
    }
}

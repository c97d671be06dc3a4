//! The protocol under test: [`Pessimistic`] itself, or a variant broken on purpose to prove that the checkers
//! see it. The production protocol knows nothing of this.

use resurgo_protocol::{Arrival, Determinant, Next, Pessimistic, Rank, Recorded, Sending, Tolerate};

use crate::world::Setting;

/// A way to break the protocol, or what stands around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Sends leave without waiting for the event logger.
    SkipHold,
    /// Deliveries count as stable when made.
    AcknowledgeEarly,
    /// Held frames leave last first.
    ReleaseOutOfOrder,
    /// Held frames never leave.
    ReleaseNever,
    /// A recovering rank delivers anything once its record is used up.
    DeliverBeforeRedo,
    /// A replay follows the order of deliveries and ignores the poll counts.
    IgnorePolls,
    /// Determinants count one read too many.
    MiscountPolls,
    /// A replay follows the poll counts and takes whatever source has something.
    IgnoreSources,
    /// A recovering rank starts as if it had never lived.
    ForgetRecord,
    /// Every seventh determinant is not recorded.
    LoseDeterminants,
    /// Receivers take frames twice.
    AcceptDuplicates,
    /// The loss of the event logger changes nothing for a rank.
    IgnoreLoggerLoss,
    /// A record that survived its process counts as stable, whatever the event logger has.
    TrustOwnRecord,
    /// After the loss of the event logger only later deliveries are logged.
    ForgetRecordOnLoggerRestart,
    /// A replacement of the event logger claims to know every history.
    ReplacementClaimsAll,
    /// The event logger forgets the last delivery when it is asked.
    AnswerShort,
    /// The event logger acknowledges one delivery more than it stores.
    LoggerAcknowledgesAhead,
    /// The event logger takes determinants of replaced lives.
    LoggerDoesNotFence,
    /// Receivers take frames of replaced lives of the sender.
    ReceiverDoesNotFence,
    /// Receivers take frames that were meant for their own former lives.
    AcceptStrays,
    /// A receiver asked what it has seen of a channel leaves out what it has not delivered yet.
    SeenMeansDelivered,
    /// A receiver asked what it has seen of a channel forgets what is before the beginning of its record.
    SeenForgetsBase,
    /// An image is taken while frames are held, which count as sent.
    ImageWithHeldFrames,
    /// An image is taken with deliveries that the event logger has not acknowledged.
    ImageNotStable,
    /// An image does not say how many reads have found nothing since the last delivery.
    ImageWithoutPolls,
    /// Where a node is lost, the logs of its rank are not in the image.
    ImageWithoutLogs,
    /// An image becomes complete when the next life has begun.
    LateImage,
    /// An image that a recovery could not read and passed over is used by a later one.
    KeepPassedOver,
    /// What the newer of two images covers is dropped.
    CollectByNewest,
    /// What the first image covers is dropped, although it is the only one.
    CollectBySingle,
    /// Collection counts on an image that is not complete.
    CollectBeforeComplete,
    /// The event logger drops what the newer image covers; logs and record follow the older one.
    DropDeterminantsEarly,
    /// A restored rank asks the event logger for the deliveries above its image and no others.
    AskAboveImage,
    /// A replacement of the event logger is not told what the images cover.
    ForgetBaseOnLoggerRestart,
    /// A restored rank asks its senders for their messages from the beginning.
    AskFromBeginning,
    /// A send that is redone is appended to the log although its entry has been dropped.
    AppendDropped,
    /// A send that is redone is compared with the entry that is now in the place its own had.
    CompareShifted,
    /// No log is ever shortened.
    KeepLogs,
    /// No record is ever shortened.
    KeepRecords,
    /// The event logger never drops anything.
    KeepDeterminants,
    /// Waves drain one round, and no counts are compared.
    DrainOnce,
    /// Ranks copy themselves as soon as all stand still, and no counts are compared.
    CopyUndrained,
    /// Ranks drain, and then copy themselves, before all stand still; no counts are compared.
    DrainBeforeAllStand,
    /// A rank goes on with its program while the others drain; no counts are compared.
    RunWhileDraining,
    /// Copies are without messages that have found no room, or not for all of them.
    CopyWithoutWaiting,
    /// Copies are without messages of which a part has come.
    CopyWithoutFilling,
    /// A wave counts as complete when the first copy exists.
    PromoteIncomplete,
    /// When a wave is complete, one rank's copy of the wave before it is kept instead.
    MixWaves,
    /// A wave is dropped, and one of its copies is kept.
    DropKeepsACopy,
    /// A wave is dropped, and the ranks that stand still are not told.
    DropSilently,
    /// What a channel has carried since the wave is still there when all have returned.
    KeepLostFuture,
    /// A woken rank does not wait for the others.
    RunWhenWoken,
    /// All are let go when the first is ready.
    GoWhenOneIsReady,
    /// Ranks are given new processes while others are being made whose numbers are not known.
    BeginBesideUnknown,
    /// A process without a group of its own cannot be ended.
    KillByGroupOnly,
    /// The end of a process is forgotten when its number is not known yet.
    ForgetUnclaimedEnds,
    /// When a copy of the last complete wave is lost, what ranks say about the one under way is not heard any more.
    LoseTwoWaves,
    /// A new process closes the socket of its copy before it has made its part of the node memory what it was.
    CloseBeforeRewinding,
}

impl Mutation {
    /// All, with the settings in which each can do harm.
    pub const ALL: [(Self, Setting); 91] = {
        use Mutation::*;
        use Setting::{Blocking, InPlace, Node, Process};
        [
            (SkipHold, Node),
            (SkipHold, InPlace),
            (ReleaseOutOfOrder, InPlace),
            (DeliverBeforeRedo, InPlace),
            (IgnorePolls, InPlace),
            (IgnoreLoggerLoss, InPlace),
            (LoseDeterminants, InPlace),
            (TrustOwnRecord, InPlace),
            (AcknowledgeEarly, Node),
            (ReleaseOutOfOrder, Node),
            (ReleaseNever, Node),
            (DeliverBeforeRedo, Process),
            (DeliverBeforeRedo, Node),
            (IgnorePolls, Process),
            (IgnorePolls, Node),
            (MiscountPolls, Process),
            (MiscountPolls, Node),
            (IgnoreSources, Process),
            (IgnoreSources, Node),
            (ForgetRecord, Process),
            (ForgetRecord, Node),
            (LoseDeterminants, Process),
            (LoseDeterminants, Node),
            (AcceptDuplicates, Node),
            (IgnoreLoggerLoss, Node),
            (ForgetRecordOnLoggerRestart, Node),
            (ReplacementClaimsAll, Node),
            (AnswerShort, Node),
            (LoggerAcknowledgesAhead, Node),
            (LoggerDoesNotFence, Node),
            (ReceiverDoesNotFence, Node),
            (AcceptStrays, Node),
            (SeenMeansDelivered, Node),
            (SeenForgetsBase, Node),
            (ImageWithHeldFrames, Node),
            (ImageWithHeldFrames, InPlace),
            (ImageNotStable, Node),
            (ImageNotStable, InPlace),
            (ImageWithoutPolls, Process),
            (ImageWithoutPolls, Node),
            (ImageWithoutPolls, InPlace),
            (ImageWithoutLogs, Node),
            (LateImage, Process),
            (LateImage, Node),
            (LateImage, InPlace),
            (KeepPassedOver, Process),
            (KeepPassedOver, Node),
            (KeepPassedOver, InPlace),
            (CollectByNewest, Process),
            (CollectByNewest, Node),
            (CollectByNewest, InPlace),
            (CollectBySingle, Process),
            (CollectBySingle, Node),
            (CollectBySingle, InPlace),
            (CollectBeforeComplete, Process),
            (CollectBeforeComplete, Node),
            (CollectBeforeComplete, InPlace),
            (DropDeterminantsEarly, Node),
            (AskAboveImage, Node),
            (ForgetBaseOnLoggerRestart, Node),
            (ForgetBaseOnLoggerRestart, InPlace),
            (AskFromBeginning, Node),
            (AppendDropped, Process),
            (AppendDropped, Node),
            (AppendDropped, InPlace),
            (CompareShifted, Process),
            (CompareShifted, InPlace),
            (KeepLogs, Process),
            (KeepLogs, Node),
            (KeepRecords, Process),
            (KeepRecords, Node),
            (KeepDeterminants, Node),
            (KeepDeterminants, InPlace),
            (DrainOnce, Blocking),
            (CopyUndrained, Blocking),
            (DrainBeforeAllStand, Blocking),
            (RunWhileDraining, Blocking),
            (CopyWithoutWaiting, Blocking),
            (CopyWithoutFilling, Blocking),
            (PromoteIncomplete, Blocking),
            (MixWaves, Blocking),
            (DropKeepsACopy, Blocking),
            (DropSilently, Blocking),
            (KeepLostFuture, Blocking),
            (RunWhenWoken, Blocking),
            (GoWhenOneIsReady, Blocking),
            (BeginBesideUnknown, Blocking),
            (KillByGroupOnly, Blocking),
            (ForgetUnclaimedEnds, Blocking),
            (LoseTwoWaves, Blocking),
            (CloseBeforeRewinding, Blocking),
        ]
    };
}

/// One life of one rank, as [`Pessimistic`] describes it.
#[derive(Debug, Clone)]
pub struct Subject {
    protocol: Pessimistic,
    mutation: Option<Mutation>,
    /// What the real protocol would have been told, for the variants that keep it from it.
    record: u64,
    sent_before: Vec<u64>,
    expected: Option<Recorded>,
    released: Vec<(Rank, u64)>,
    reads: u64,
    /// Reads that the image did not say.
    lost_reads: u64,
}

impl Subject {
    pub fn new(rank: Rank, size: usize, tolerate: Tolerate, mutation: Option<Mutation>) -> Self {
        Self {
            protocol: Pessimistic::new(rank, size, tolerate),
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
            // The caller acknowledges only what is new; a life that knows of no record would wait for ever.
            protocol = Pessimistic::recovering(rank, size, Tolerate::Process, 0, vec![0; size]);
        }
        Self {
            protocol,
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

    /// True when this variant is kept from knowing its record.
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

    pub fn deliver(&mut self, source: Rank) -> (Determinant, bool) {
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
        (determinant, new)
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

//! The ways in which the protocols are broken on purpose, to prove that the checkers see it.

use crate::setting::Setting;
use resurgo_protocol::causal::Reduction;

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
    /// One piggyback in eight is lost.
    LosePiggybacks,
    /// Messages carry the sender's own deliveries only.
    PiggybackOwn,
    /// What has been piggybacked to one peer is held for known by the next.
    OneTableForAll,
    /// A peer is held for knowing everything that its last known delivery's source has done.
    InferTooMuch,
    /// Piggybacks are in the wrong order.
    ReversePiggybacks,
    /// A rank's deliveries count as stable when made.
    ForgetWhenLogged,
    /// What images cover and loggers have is never forgotten.
    KeepEvents,
    /// A new life is told what its former ones have not been told.
    TellNews,
    /// A new life does not listen to one of the others.
    AskAllButOne,
    /// A new life takes only its own deliveries from what it is told.
    CollectOwn,
    /// The answers of a life that collects count as complete from the beginning.
    CompleteAtOnce,
    /// An image is without what the rank knows of others' deliveries.
    ImageWithoutKnowledge,
    /// The event logger stores deliveries whose past it has not.
    LoggerWithoutOrder,
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
    /// Ranks copy themselves when each stops, and go on while others have not stopped.
    CopyWhenStopped,
    /// What is in transit inside a group is noted by each rank when it is copied, and not when all stand still.
    NoteWhenCopied,
    /// When all return, logs keep what came after the wave.
    LogsKeepFuture,
    /// When all return, records do.
    RecordKeepsFuture,
    /// When all return, each cuts its logs and its record when it comes to it, and others may have read them.
    CutWhenRestarted,
    /// When all return, receivers still hear of messages sent after the wave.
    RevealLostFuture,
    /// Ranks of a lost node begin alone.
    OnlyLostReturn,
    /// The logs of ranks of a lost node begin anew, empty.
    LogsStayLost,
    /// A file counts before another node has it.
    CountBeforeStored,
    /// A new process closes the socket of its copy before it has made its part of the node memory what it was.
    CloseBeforeRewinding,
    /// A message from behind its sender's cut is delivered before the receiver's.
    DeliverBehindMarker,
    /// Messages carry the number of the wave before the one that their sender has cut.
    MarkBefore,
    /// Waves are without what was in transit.
    ForgetChannelState,
    /// What was in transit is taken from where the receiver is when the wave is complete.
    StateFromNow,
    /// What was in transit is taken up to where the sender is when the wave is complete.
    StateToNow,
    /// What was in transit is that of the first wave, whatever wave all return to.
    StateOfWaveBefore,
    /// A sender uses a segment again as soon as it has been read.
    RecycleAtOnce,
    /// A sender that has not been copied itself keeps nothing for receivers that have.
    KeepFromOwnCut,
    /// Senders keep nothing any more from the first copy on.
    LetGoEarly,
    /// What was in transit comes behind what is sent first after the return.
    RefillLate,
    /// Nobody waits until those outside of the group have said that they hold back what must not pass.
    NoNotice,
    /// Who has not been copied sends to those who have.
    SendToEarlier,
    /// Who has been copied sends to those who have not.
    SendToLater,
    /// A group counts as copied when its ranks stand still.
    TurnTooEarly,
    /// One rank goes by the groups of the wave before.
    FormerGroups,
    /// Deferred messages are overtaken by smaller ones.
    OvertakeDeferred,
    /// Copies are without small messages that are deferred.
    CopyWithoutBuffer,
    /// The send of a large message is over when it is deferred, and nothing has been copied.
    CompleteLarge,
    /// The send of a small message is over when it is deferred, and nothing has been copied.
    BufferByReference,
    /// Small messages are buffered, however many there are.
    BufferWithoutBound,
    /// A rank that computes holds a wave up until it calls.
    WaitForCalls,
    /// When a wave is complete, messages stay deferred.
    KeepDeferring,
    /// A wave counts as complete when the first group has been copied.
    CompleteAfterFirstGroup,
    /// All groups write their images at the same time.
    WriteAllAtOnce,
    /// That a file cannot be used is told to nobody: the newer wave is chosen although a file is missing.
    ForgetLostFiles,
    /// Of a wave whose file of what was in transit is damaged, nothing was in transit.
    TakeDamagedTransit,
    /// Files count as complete when they begin to be written.
    CountUnwritten,
    /// The end of a former life of a rank counts for the present one.
    HearOldLives,
    /// A copy for a wave that has been dropped counts for the next.
    CountOldCopies,
    /// A rank begins from its newest file, whatever wave has been chosen.
    BeginFromNewest,
    /// A copy ends when its own file is complete, although others of the wave may not become so, and nobody is told.
    EndCopiesEarly,
    /// Of each rank only the newest file stays.
    KeepOneFile,
    /// When the launcher has been lost the job begins at the beginning, although a wave is in files.
    BeginResumedAnew,
    /// A job that goes on from files gives waves numbers that have been used.
    NumbersAgain,
    /// An agent does not end its ranks when its lease is over, and they do not look.
    LeaseNeverEnds,
    /// A lease is counted from when the answer came.
    LeaseFromAnswer,
    /// Ranks do not look at the lease themselves: an agent that stands still does not end them.
    RanksIgnoreLease,
    /// What comes from a life of a node that has ended is believed.
    ForgetEpoch,
    /// A node that is suspected counts as dead: its ranks begin elsewhere before they have ended there.
    LostWhenSuspected,
    /// The coordinator is not told that a node is lost.
    TellNobodyOfLoss,
    /// A rank whose node is lost begins there again.
    BeginOnLostNode,
    /// A file on a node's disk counts as being everywhere, so a wave is chosen whose image was on the lost node only.
    FilesOutliveNodes,
    /// An image counts before the partner has it.
    CountBeforePartner,
    /// That ranks have stopped, drained or been copied is told before what they have written lies on the other nodes.
    SayUnflushed,
    /// What was on its way between nodes when logs were emptied arrives nevertheless.
    TakeFormerEpoch,
    /// What arrives before a node has emptied its logs is lost with them.
    LoseEarlyEpoch,
    /// Inside a group logs do not keep what was in transit in a wave.
    ForgetInTransit,
    /// Inside a group logs keep what was in transit in the newest wave, not that of the one before.
    KeepOfNewestWave,
    /// Inside a group logs keep everything.
    KeepInside,
    /// Between groups logs keep what has not been read.
    DropBetweenGroups,
    /// The failed rank returns, and the others of its group go on.
    ReturnAlone,
    /// Records are cut off where the wave was to which the group returns.
    RecordsReturn,
    /// When a group returns, senders in it still see how far their receivers had read.
    PlacesKeepFuture,
    /// A life is told of what the logs inside its group hold and not of what had been sent.
    ForgetWhatWasSent,
    /// Sends to other channel memories leave before the own one has all reports.
    LeaveUnreported,
    /// A report goes to the channel memory behind the next send.
    ReportLate,
    /// Held sends are forgotten.
    ForgetHeld,
    /// A life that looks around reads what ranks know before it reads what messages carry.
    KnowledgeBeforeMessages,
    /// A life that looks around does not begin anew when somebody has died or begun meanwhile.
    LookOnce,
    /// A life that looks around does not count what its former life made before it sent something to itself.
    ForgetWhatItToldItself,
    /// Of messages to a rank that begins again, too, a life that looks around reads only those behind what the former life took in.
    SkipWhatWasConsumed,
    /// A life that looks around does not count what images know of ranks that have not begun again.
    ForgetWhatImagesKnow,
    /// A life begins as soon as others can read what it will know, without another look at who has died or begun.
    PublishAndBegin,
    /// A life begins when its own channel memory has answered.
    BeginEarly,
    /// A channel memory takes messages and reports of replaced lives.
    MemoryDoesNotFence,
    /// A channel memory serves a later life in another order.
    ServeInAnotherOrder,
    /// A channel memory serves a later life what the former one has not reported.
    ServeFromReported,
    /// A channel memory forgets in which reads deliveries were made.
    LoseReports,
    /// A channel memory tells a later life of one message too few.
    WelcomeShort,
    /// A channel memory takes what is sent again for something new.
    AppendAgain,
    /// A channel memory acknowledges one report more than it has.
    MemoryAcknowledgesAhead,
    /// A channel memory forgets what has been reported.
    ForgetReported,
    /// An image is taken before the channel memories have all that the rank has said.
    ImageWithoutSync,
    /// A restored rank also delivers what it had been served before its image was taken.
    KeepServed,
    /// A restored rank waits until its channel memory acknowledges deliveries that it repeats.
    DeparturesOfImage,
}

impl Mutation {
    /// All, with the settings in which each can do harm.
    pub const ALL: [(Self, Setting); 464] = {
        use Mutation::*;
        use Setting::*;
        const VCAUSAL: Setting = Setting::Causal(Reduction::Vcausal);
        const MANETHO: Setting = Setting::Causal(Reduction::Manetho);
        const LOGON: Setting = Setting::Causal(Reduction::LogOn);
        const VCAUSAL_IN_PLACE: Setting = Setting::Gathering(Reduction::Vcausal);
        const MANETHO_IN_PLACE: Setting = Setting::Gathering(Reduction::Manetho);
        const LOGON_IN_PLACE: Setting = Setting::Gathering(Reduction::LogOn);
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
            (LosePiggybacks, VCAUSAL),
            (LosePiggybacks, MANETHO),
            (LosePiggybacks, LOGON),
            (PiggybackOwn, VCAUSAL),
            (PiggybackOwn, MANETHO),
            (PiggybackOwn, LOGON),
            (OneTableForAll, VCAUSAL),
            (OneTableForAll, MANETHO),
            (OneTableForAll, LOGON),
            (InferTooMuch, VCAUSAL),
            (InferTooMuch, MANETHO),
            (InferTooMuch, LOGON),
            (ReversePiggybacks, VCAUSAL),
            (ReversePiggybacks, MANETHO),
            (ReversePiggybacks, LOGON),
            (ForgetWhenLogged, VCAUSAL),
            (ForgetWhenLogged, MANETHO),
            (ForgetWhenLogged, LOGON),
            (KeepEvents, VCAUSAL),
            (KeepEvents, MANETHO),
            (KeepEvents, LOGON),
            (TellNews, VCAUSAL),
            (TellNews, MANETHO),
            (TellNews, LOGON),
            (AskAllButOne, VCAUSAL),
            (AskAllButOne, MANETHO),
            (AskAllButOne, LOGON),
            (CollectOwn, VCAUSAL),
            (CollectOwn, MANETHO),
            (CollectOwn, LOGON),
            (CompleteAtOnce, VCAUSAL),
            (CompleteAtOnce, MANETHO),
            (CompleteAtOnce, LOGON),
            (ImageWithoutKnowledge, VCAUSAL),
            (ImageWithoutKnowledge, MANETHO),
            (ImageWithoutKnowledge, LOGON),
            (LoggerWithoutOrder, VCAUSAL),
            (LoggerWithoutOrder, MANETHO),
            (LoggerWithoutOrder, LOGON),
            (LoggerAcknowledgesAhead, VCAUSAL),
            (LoggerAcknowledgesAhead, MANETHO),
            (LoggerAcknowledgesAhead, LOGON),
            (DeliverBeforeRedo, VCAUSAL),
            (DeliverBeforeRedo, MANETHO),
            (DeliverBeforeRedo, LOGON),
            (IgnorePolls, VCAUSAL),
            (IgnorePolls, MANETHO),
            (IgnorePolls, LOGON),
            (IgnoreSources, VCAUSAL),
            (IgnoreSources, MANETHO),
            (IgnoreSources, LOGON),
            (MiscountPolls, VCAUSAL),
            (MiscountPolls, MANETHO),
            (MiscountPolls, LOGON),
            (ForgetRecord, VCAUSAL),
            (ForgetRecord, MANETHO),
            (ForgetRecord, LOGON),
            (SeenMeansDelivered, VCAUSAL),
            (SeenMeansDelivered, MANETHO),
            (SeenMeansDelivered, LOGON),
            (SeenForgetsBase, VCAUSAL),
            (SeenForgetsBase, MANETHO),
            (SeenForgetsBase, LOGON),
            (ReceiverDoesNotFence, VCAUSAL),
            (ReceiverDoesNotFence, MANETHO),
            (ReceiverDoesNotFence, LOGON),
            (AcceptDuplicates, VCAUSAL),
            (AcceptDuplicates, MANETHO),
            (AcceptDuplicates, LOGON),
            (LateImage, VCAUSAL),
            (LateImage, MANETHO),
            (LateImage, LOGON),
            (KeepPassedOver, VCAUSAL),
            (KeepPassedOver, MANETHO),
            (KeepPassedOver, LOGON),
            (CollectByNewest, VCAUSAL),
            (CollectByNewest, MANETHO),
            (CollectByNewest, LOGON),
            (CollectBySingle, VCAUSAL),
            (CollectBySingle, MANETHO),
            (CollectBySingle, LOGON),
            (CollectBeforeComplete, VCAUSAL),
            (CollectBeforeComplete, MANETHO),
            (CollectBeforeComplete, LOGON),
            (ForgetRecordOnLoggerRestart, VCAUSAL),
            (ForgetRecordOnLoggerRestart, MANETHO),
            (ForgetRecordOnLoggerRestart, LOGON),
            (ForgetBaseOnLoggerRestart, VCAUSAL),
            (ForgetBaseOnLoggerRestart, MANETHO),
            (ForgetBaseOnLoggerRestart, LOGON),
            (KnowledgeBeforeMessages, VCAUSAL_IN_PLACE),
            (KnowledgeBeforeMessages, MANETHO_IN_PLACE),
            (KnowledgeBeforeMessages, LOGON_IN_PLACE),
            (LookOnce, VCAUSAL_IN_PLACE),
            (LookOnce, MANETHO_IN_PLACE),
            (LookOnce, LOGON_IN_PLACE),
            (SkipWhatWasConsumed, VCAUSAL_IN_PLACE),
            (SkipWhatWasConsumed, MANETHO_IN_PLACE),
            (SkipWhatWasConsumed, LOGON_IN_PLACE),
            (ForgetWhatItToldItself, VCAUSAL_IN_PLACE),
            (ForgetWhatItToldItself, MANETHO_IN_PLACE),
            (ForgetWhatItToldItself, LOGON_IN_PLACE),
            (ForgetWhatImagesKnow, VCAUSAL_IN_PLACE),
            (ForgetWhatImagesKnow, MANETHO_IN_PLACE),
            (ForgetWhatImagesKnow, LOGON_IN_PLACE),
            (PublishAndBegin, VCAUSAL_IN_PLACE),
            (PublishAndBegin, MANETHO_IN_PLACE),
            (PublishAndBegin, LOGON_IN_PLACE),
            (ImageWithoutKnowledge, VCAUSAL_IN_PLACE),
            (ImageWithoutKnowledge, MANETHO_IN_PLACE),
            (ImageWithoutKnowledge, LOGON_IN_PLACE),
            (KeepEvents, VCAUSAL_IN_PLACE),
            (KeepEvents, MANETHO_IN_PLACE),
            (KeepEvents, LOGON_IN_PLACE),
            (LateImage, VCAUSAL_IN_PLACE),
            (LateImage, MANETHO_IN_PLACE),
            (LateImage, LOGON_IN_PLACE),
            (KeepPassedOver, VCAUSAL_IN_PLACE),
            (KeepPassedOver, MANETHO_IN_PLACE),
            (KeepPassedOver, LOGON_IN_PLACE),
            (CollectByNewest, VCAUSAL_IN_PLACE),
            (CollectByNewest, MANETHO_IN_PLACE),
            (CollectByNewest, LOGON_IN_PLACE),
            (CollectBySingle, VCAUSAL_IN_PLACE),
            (CollectBySingle, MANETHO_IN_PLACE),
            (CollectBySingle, LOGON_IN_PLACE),
            (CollectBeforeComplete, VCAUSAL_IN_PLACE),
            (CollectBeforeComplete, MANETHO_IN_PLACE),
            (CollectBeforeComplete, LOGON_IN_PLACE),
            (ForgetBaseOnLoggerRestart, VCAUSAL_IN_PLACE),
            (ForgetBaseOnLoggerRestart, MANETHO_IN_PLACE),
            (ForgetBaseOnLoggerRestart, LOGON_IN_PLACE),
            (AppendDropped, VCAUSAL_IN_PLACE),
            (AppendDropped, MANETHO_IN_PLACE),
            (AppendDropped, LOGON_IN_PLACE),
            (LosePiggybacks, VCAUSAL_IN_PLACE),
            (LosePiggybacks, MANETHO_IN_PLACE),
            (LosePiggybacks, LOGON_IN_PLACE),
            (PiggybackOwn, VCAUSAL_IN_PLACE),
            (PiggybackOwn, MANETHO_IN_PLACE),
            (PiggybackOwn, LOGON_IN_PLACE),
            (OneTableForAll, VCAUSAL_IN_PLACE),
            (OneTableForAll, MANETHO_IN_PLACE),
            (OneTableForAll, LOGON_IN_PLACE),
            (InferTooMuch, VCAUSAL_IN_PLACE),
            (InferTooMuch, MANETHO_IN_PLACE),
            (InferTooMuch, LOGON_IN_PLACE),
            (ReversePiggybacks, VCAUSAL_IN_PLACE),
            (ReversePiggybacks, MANETHO_IN_PLACE),
            (ReversePiggybacks, LOGON_IN_PLACE),
            (ForgetWhenLogged, VCAUSAL_IN_PLACE),
            (ForgetWhenLogged, MANETHO_IN_PLACE),
            (ForgetWhenLogged, LOGON_IN_PLACE),
            (LoggerAcknowledgesAhead, VCAUSAL_IN_PLACE),
            (LoggerAcknowledgesAhead, MANETHO_IN_PLACE),
            (LoggerAcknowledgesAhead, LOGON_IN_PLACE),
            (DeliverBeforeRedo, VCAUSAL_IN_PLACE),
            (DeliverBeforeRedo, MANETHO_IN_PLACE),
            (DeliverBeforeRedo, LOGON_IN_PLACE),
            (IgnorePolls, VCAUSAL_IN_PLACE),
            (IgnorePolls, MANETHO_IN_PLACE),
            (IgnorePolls, LOGON_IN_PLACE),
            (IgnoreSources, VCAUSAL_IN_PLACE),
            (IgnoreSources, MANETHO_IN_PLACE),
            (IgnoreSources, LOGON_IN_PLACE),
            (MiscountPolls, VCAUSAL_IN_PLACE),
            (MiscountPolls, MANETHO_IN_PLACE),
            (MiscountPolls, LOGON_IN_PLACE),
            (ForgetRecord, VCAUSAL_IN_PLACE),
            (ForgetRecord, MANETHO_IN_PLACE),
            (ForgetRecord, LOGON_IN_PLACE),
            (ForgetRecordOnLoggerRestart, VCAUSAL_IN_PLACE),
            (ForgetRecordOnLoggerRestart, MANETHO_IN_PLACE),
            (ForgetRecordOnLoggerRestart, LOGON_IN_PLACE),
            (LoseDeterminants, VCAUSAL_IN_PLACE),
            (LoseDeterminants, MANETHO_IN_PLACE),
            (LoseDeterminants, LOGON_IN_PLACE),
            (AnswerShort, VCAUSAL_IN_PLACE),
            (AnswerShort, MANETHO_IN_PLACE),
            (AnswerShort, LOGON_IN_PLACE),
            (ReplacementClaimsAll, VCAUSAL),
            (ReplacementClaimsAll, MANETHO),
            (ReplacementClaimsAll, LOGON),
            (AnswerShort, VCAUSAL),
            (AnswerShort, MANETHO),
            (AnswerShort, LOGON),
            (ImageWithoutLogs, VCAUSAL),
            (ImageWithoutLogs, MANETHO),
            (ImageWithoutLogs, LOGON),
            (ImageWithoutPolls, VCAUSAL),
            (ImageWithoutPolls, MANETHO),
            (ImageWithoutPolls, LOGON),
            (KeepLogs, VCAUSAL),
            (KeepLogs, MANETHO),
            (KeepLogs, LOGON),
            (KeepRecords, VCAUSAL),
            (KeepRecords, MANETHO),
            (KeepRecords, LOGON),
            (KeepDeterminants, VCAUSAL),
            (KeepDeterminants, MANETHO),
            (KeepDeterminants, LOGON),
            (AppendDropped, VCAUSAL),
            (AppendDropped, MANETHO),
            (AppendDropped, LOGON),
            (AskFromBeginning, VCAUSAL),
            (AskFromBeginning, MANETHO),
            (AskFromBeginning, LOGON),
            (CopyWhenStopped, Auto),
            (LogsKeepFuture, Auto),
            (RecordKeepsFuture, Auto),
            (CutWhenRestarted, Auto),
            (RevealLostFuture, Auto),
            (DropKeepsACopy, Auto),
            (OnlyLostReturn, AutoOnNodes),
            (LogsStayLost, AutoOnNodes),
            (CountBeforeStored, AutoOnNodes),
            (DeliverBeforeRedo, Auto),
            (IgnorePolls, Auto),
            (IgnoreSources, Auto),
            (LoseDeterminants, Auto),
            (CollectByNewest, Auto),
            (CollectBySingle, Auto),
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
            (ForgetLostFiles, Blocking),
            (CountUnwritten, Blocking),
            (HearOldLives, Blocking),
            (BeginFromNewest, Blocking),
            (EndCopiesEarly, Blocking),
            (KeepOneFile, Blocking),
            (BeginResumedAnew, Blocking),
            (NumbersAgain, Blocking),
            (CopyWithoutWaiting, ChandyLamport),
            (CopyWithoutFilling, ChandyLamport),
            (PromoteIncomplete, ChandyLamport),
            (MixWaves, ChandyLamport),
            (DropKeepsACopy, ChandyLamport),
            (DropSilently, ChandyLamport),
            (KeepLostFuture, ChandyLamport),
            (RunWhenWoken, ChandyLamport),
            (GoWhenOneIsReady, ChandyLamport),
            (BeginBesideUnknown, ChandyLamport),
            (KillByGroupOnly, ChandyLamport),
            (ForgetUnclaimedEnds, ChandyLamport),
            (DeliverBehindMarker, ChandyLamport),
            (MarkBefore, ChandyLamport),
            (ForgetChannelState, ChandyLamport),
            (StateFromNow, ChandyLamport),
            (StateToNow, ChandyLamport),
            (StateOfWaveBefore, ChandyLamport),
            (RecycleAtOnce, ChandyLamport),
            (KeepFromOwnCut, ChandyLamport),
            (LetGoEarly, ChandyLamport),
            (RefillLate, ChandyLamport),
            (TakeDamagedTransit, ChandyLamport),
            (CountOldCopies, ChandyLamport),
            (ForgetLostFiles, ChandyLamport),
            (CountUnwritten, ChandyLamport),
            (KeepOneFile, ChandyLamport),
            (BeginResumedAnew, ChandyLamport),
            (NumbersAgain, ChandyLamport),
            (DrainOnce, Group),
            (CopyUndrained, Group),
            (DrainBeforeAllStand, Group),
            (RunWhileDraining, Group),
            (CopyWithoutWaiting, Group),
            (CopyWithoutFilling, Group),
            (PromoteIncomplete, Group),
            (MixWaves, Group),
            (DropKeepsACopy, Group),
            (DropSilently, Group),
            (KeepLostFuture, Group),
            (RunWhenWoken, Group),
            (GoWhenOneIsReady, Group),
            (BeginBesideUnknown, Group),
            (KillByGroupOnly, Group),
            (ForgetUnclaimedEnds, Group),
            (LoseTwoWaves, Group),
            (NoNotice, Group),
            (SendToEarlier, Group),
            (SendToLater, Group),
            (TurnTooEarly, Group),
            (FormerGroups, Group),
            (OvertakeDeferred, Group),
            (CopyWithoutBuffer, Group),
            (CompleteLarge, Group),
            (BufferByReference, Group),
            (BufferWithoutBound, Group),
            (WaitForCalls, Group),
            (KeepDeferring, Group),
            (CompleteAfterFirstGroup, Group),
            (WriteAllAtOnce, Group),
            (LeaseNeverEnds, BlockingOnNodes),
            (LeaseNeverEnds, ChandyLamportOnNodes),
            (LeaseNeverEnds, GroupOnNodes),
            (LeaseFromAnswer, ChandyLamportOnNodes),
            (RanksIgnoreLease, BlockingOnNodes),
            (RanksIgnoreLease, ChandyLamportOnNodes),
            (RanksIgnoreLease, GroupOnNodes),
            (ForgetEpoch, ChandyLamportOnNodes),
            (LostWhenSuspected, BlockingOnNodes),
            (LostWhenSuspected, ChandyLamportOnNodes),
            (LostWhenSuspected, GroupOnNodes),
            (TellNobodyOfLoss, BlockingOnNodes),
            (TellNobodyOfLoss, ChandyLamportOnNodes),
            (TellNobodyOfLoss, GroupOnNodes),
            (BeginOnLostNode, BlockingOnNodes),
            (BeginOnLostNode, ChandyLamportOnNodes),
            (BeginOnLostNode, GroupOnNodes),
            (FilesOutliveNodes, BlockingOnNodes),
            (FilesOutliveNodes, ChandyLamportOnNodes),
            (FilesOutliveNodes, GroupOnNodes),
            (CountBeforePartner, BlockingOnNodes),
            (CountBeforePartner, ChandyLamportOnNodes),
            (CountBeforePartner, GroupOnNodes),
            (SayUnflushed, BlockingOnNodes),
            (SayUnflushed, ChandyLamportOnNodes),
            (SayUnflushed, GroupOnNodes),
            (TakeFormerEpoch, BlockingOnNodes),
            (TakeFormerEpoch, ChandyLamportOnNodes),
            (TakeFormerEpoch, GroupOnNodes),
            (LoseEarlyEpoch, BlockingOnNodes),
            (LoseEarlyEpoch, ChandyLamportOnNodes),
            (LoseEarlyEpoch, GroupOnNodes),
            (CopyWhenStopped, Hierarchical),
            (NoteWhenCopied, Hierarchical),
            (DropKeepsACopy, Hierarchical),
            (KeepPassedOver, Hierarchical),
            (LogsKeepFuture, Hierarchical),
            (RevealLostFuture, Hierarchical),
            (ForgetInTransit, Hierarchical),
            (KeepOfNewestWave, Hierarchical),
            (KeepInside, Hierarchical),
            (DropBetweenGroups, Hierarchical),
            (ReturnAlone, Hierarchical),
            (RecordsReturn, Hierarchical),
            (PlacesKeepFuture, Hierarchical),
            (ForgetWhatWasSent, Hierarchical),
            (DeliverBeforeRedo, Hierarchical),
            (IgnorePolls, Hierarchical),
            (IgnoreSources, Hierarchical),
            (LoseDeterminants, Hierarchical),
            (CollectByNewest, Hierarchical),
            (CollectBySingle, Hierarchical),
            (AppendDropped, Hierarchical),
            (KeepLogs, Hierarchical),
            (LeaveUnreported, ChannelMemory),
            (ReportLate, ChannelMemory),
            (ForgetHeld, ChannelMemory),
            (BeginEarly, ChannelMemory),
            (MemoryDoesNotFence, ChannelMemory),
            (ServeInAnotherOrder, ChannelMemory),
            (ServeFromReported, ChannelMemory),
            (LoseReports, ChannelMemory),
            (WelcomeShort, ChannelMemory),
            (AppendAgain, ChannelMemory),
            (MemoryAcknowledgesAhead, ChannelMemory),
            (DeliverBeforeRedo, ChannelMemory),
            (IgnorePolls, ChannelMemory),
            (MiscountPolls, ChannelMemory),
            (ForgetRecord, ChannelMemory),
            (AskFromBeginning, ChannelMemory),
            (AppendDropped, ChannelMemory),
            (CollectByNewest, ChannelMemory),
            (CollectBySingle, ChannelMemory),
            (CollectBeforeComplete, ChannelMemory),
            (KeepPassedOver, ChannelMemory),
            (LateImage, ChannelMemory),
            (ImageWithoutPolls, ChannelMemory),
            (ImageWithHeldFrames, ChannelMemory),
            (KeepLogs, ChannelMemory),
            (ForgetReported, ChannelMemory),
            (ImageWithoutSync, ChannelMemory),
            (KeepServed, ChannelMemory),
            (DeparturesOfImage, ChannelMemory),
        ]
    };
}

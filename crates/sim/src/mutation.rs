//! Broken variants of the protocols, which prove that the checkers see it.

mod all;

/// A way to break the protocol, or its surroundings.
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
    /// A replay follows the poll counts and takes any source that has a message.
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
    /// A receiver's report on a channel leaves out what it has not delivered yet.
    SeenMeansDelivered,
    /// A receiver's report on a channel forgets what is before the beginning of its record.
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
    /// A replacement of the event logger does not learn what the images cover.
    ForgetBaseOnLoggerRestart,
    /// A restored rank asks its senders for their messages from the beginning.
    AskFromBeginning,
    /// A repeated send is appended to the log although its entry was dropped.
    AppendDropped,
    /// A repeated send is compared with the entry that is now in the place of its own.
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
    /// What was piggybacked to one peer counts as known by the next.
    OneTableForAll,
    /// A peer counts as knowing everything that its last known delivery's source has done.
    InferTooMuch,
    /// Piggybacks are in the wrong order.
    ReversePiggybacks,
    /// A rank's deliveries count as stable when made.
    ForgetWhenLogged,
    /// Events that images cover and loggers have are never forgotten.
    KeepEvents,
    /// A new life gets only what its former ones did not get.
    TellNews,
    /// A new life ignores one of the others.
    AskAllButOne,
    /// A new life takes only its own deliveries from the answers.
    CollectOwn,
    /// The answers of a life that collects count as complete from the beginning.
    CompleteAtOnce,
    /// An image lacks what the rank knows of others' deliveries.
    ImageWithoutKnowledge,
    /// The event logger stores deliveries without their past.
    LoggerWithoutOrder,
    /// The coordinator does not learn which waves places have.
    ForgetPlaces,
    /// A place counts with the images of some ranks.
    CountPartOfPlace,
    /// A place counts without the images of ranks that have finished since.
    StoreWithoutLaterEnds,
    /// A place gives an image of another wave.
    FetchOtherWave,
    /// An image counts as fetched when it is asked for.
    BeginBeforeFetched,
    /// Waves do not drain what ranks have sent that have finished since.
    LeaveWhatEndedRanksSent,
    /// Nobody returns when a node is lost with the logs of ranks that had finished.
    StayWhenEndsAreLost,
    /// A node reports the end of a rank before other nodes have all that it has sent.
    TellEndsUnflushed,
    /// Nodes do not learn which ranks of others have finished.
    KeepEndsToOneself,
    /// Nodes wait for the answers of a lost one whose ranks had all finished.
    FlushForLostNode,
    /// Nobody puts into the logs what was in transit from ranks that had finished on a lost node.
    LeaveTransitOfLostNode,
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
    /// Images stay although what they need of the logs was let go of.
    KeepImagesOfLetGo,
    /// Logs are let go of when their rank has been asked for its image of the next wave.
    LetGoLate,
    /// A wave is dropped, and the ranks that stand still do not learn it.
    DropSilently,
    /// Messages sent since the wave are still in the channel when all have returned.
    KeepLostFuture,
    /// A woken rank does not wait for the others.
    RunWhenWoken,
    /// All ranks go on when the first is ready.
    GoWhenOneIsReady,
    /// Ranks get new processes while copies make others whose numbers are unknown.
    BeginBesideUnknown,
    /// A process without a group of its own cannot be ended.
    KillByGroupOnly,
    /// The end of a process is forgotten when its number is unknown.
    ForgetUnclaimedEnds,
    /// When a copy of the last complete wave is lost, ranks' reports on the one under way are ignored.
    LoseTwoWaves,
    /// Ranks copy themselves when each stops, and go on while others have not stopped.
    CopyWhenStopped,
    /// Each rank notes what is in transit inside a group when it is copied, and not when all stand still.
    NoteWhenCopied,
    /// When all return, logs keep entries after the wave.
    LogsKeepFuture,
    /// When all return, records do.
    RecordKeepsFuture,
    /// When all return, each cuts its logs and its record when it comes to it, and others may have read them.
    CutWhenRestarted,
    /// When all return, receivers still see messages sent after the wave.
    RevealLostFuture,
    /// Ranks of a lost node begin alone.
    OnlyLostReturn,
    /// The logs of ranks of a lost node begin anew, empty.
    LogsStayLost,
    /// A file counts before another node has it.
    CountBeforeStored,
    /// A node that is to be left ends at once.
    EndBeforeImages,
    /// The log beside an image lacks the last message to each rank.
    LogBesideEndsEarly,
    /// On another node the log beside the image replaces the one that has come back.
    ReadBesideOnly,
    /// A life on another node does not learn which of its messages receivers lost with its node had.
    TellLogsOnly,
    /// The same, and their earlier reports on it count.
    CountsOfFormerLives,
    /// A life on another node begins before all of its former logs are back.
    BeginWithPart,
    /// Messages on their way from a lost node arrive after its ranks have begun elsewhere.
    TakeFromLostNode,
    /// A new process closes the socket of its copy before it has restored its part of the node memory.
    CloseBeforeRewinding,
    /// A message from behind its sender's cut is delivered before the receiver's.
    DeliverBehindMarker,
    /// Messages carry the number of the wave before the one that their sender has cut.
    MarkBefore,
    /// Waves lack what was in transit.
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
    /// Messages in transit come behind the first new ones after the return.
    RefillLate,
    /// No rank waits until those outside of the group report that they hold back messages.
    NoNotice,
    /// Ranks that are not copied send to copied ones.
    SendToEarlier,
    /// Copied ranks send to those that are not.
    SendToLater,
    /// A group counts as copied when its ranks stand still.
    TurnTooEarly,
    /// One rank goes by the groups of the wave before.
    FormerGroups,
    /// Deferred messages are overtaken by smaller ones.
    OvertakeDeferred,
    /// Copies are without small messages that are deferred.
    CopyWithoutBuffer,
    /// The send of a large message is over when it is deferred, although nothing was copied.
    CompleteLarge,
    /// The send of a small message is over when it is deferred, although nothing was copied.
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
    /// An unusable file is not reported: the newer wave is chosen although a file is missing.
    ForgetLostFiles,
    /// A wave with a damaged transit file counts as having nothing in transit.
    TakeDamagedTransit,
    /// Files count as complete when they begin to be written.
    CountUnwritten,
    /// The end of a former life of a rank counts for the present one.
    HearOldLives,
    /// A copy for a wave that has been dropped counts for the next.
    CountOldCopies,
    /// A rank begins from its newest file, whatever wave is chosen.
    BeginFromNewest,
    /// A copy ends when its own file is complete, although others of the wave may not become so, without a report.
    EndCopiesEarly,
    /// Of each rank only the newest file stays.
    KeepOneFile,
    /// What is written down is not written anew when all return to an older wave, or to the beginning.
    KeepRecordOfLeftWave,
    /// When the launcher has been lost the job begins at the beginning, although a wave is in files.
    BeginResumedAnew,
    /// A job that goes on from files reuses numbers of waves.
    NumbersAgain,
    /// An agent does not end its ranks when its lease is over, and they do not check it.
    LeaseNeverEnds,
    /// A lease is counted from when the answer came.
    LeaseFromAnswer,
    /// Ranks do not check the lease themselves: an agent that stands still does not end them.
    RanksIgnoreLease,
    /// Messages from an ended life of a node count.
    ForgetEpoch,
    /// A suspected node counts as dead: its ranks begin elsewhere before they have ended there.
    LostWhenSuspected,
    /// The coordinator does not learn that a node is lost.
    TellNobodyOfLoss,
    /// A rank whose node is lost begins there again.
    BeginOnLostNode,
    /// A file on a node's disk counts as being everywhere, so a wave is chosen whose image was on the lost node only.
    FilesOutliveNodes,
    /// An image counts before other nodes have it.
    CountBeforePartner,
    /// The second replica goes to the node that has the first.
    SameNodeTwice,
    /// A lost replica is not made anew.
    LoseReplicas,
    /// A set counts before its pieces are on their nodes.
    CountBeforePieces,
    /// A piece of a set is on the node of one of its members.
    HolderIsMember,
    /// An image is made anew from one other image, or piece, too few.
    RebuildWithTooFew,
    /// An image is made anew from a damaged piece.
    UseDamagedPiece,
    /// The pieces of a wave are forgotten when those of the next one are being made.
    CollectOlderSets,
    /// A holder forgets the files of a set before it has made the pieces.
    DropCopiesEarly,
    /// A set that has lost a piece, or an image's place, stays as it is.
    LeaveSetsBroken,
    /// Nodes keep pieces that are not needed any more.
    KeepPieces,
    /// That ranks have stopped, drained or been copied is reported before their writes are on the other nodes.
    SayUnflushed,
    /// Messages on their way between nodes when logs were emptied arrive nevertheless.
    TakeFormerEpoch,
    /// Messages that arrive before a node has emptied its logs are lost with them.
    LoseEarlyEpoch,
    /// Inside a group logs keep no more than where only processes are lost, although nodes are.
    KeepLessOnNodes,
    /// Inside a group logs do not keep what was in transit in a wave.
    ForgetInTransit,
    /// Inside a group logs keep what was in transit in the newest wave, not that of the one before.
    KeepOfNewestWave,
    /// Inside a group logs keep everything.
    KeepInside,
    /// Between groups logs keep only unread messages.
    DropBetweenGroups,
    /// The failed rank returns, and the others of its group go on.
    ReturnAlone,
    /// Records are cut off at the wave to which the group returns.
    RecordsReturn,
    /// Where all ranks begin again, their records stay, or the messages in channel memories.
    KeepWhenAllBegin,
    /// The same for what event loggers have.
    KeepLoggersWhenAllBegin,
    /// What has become stable in the former course is on its way to ranks and event loggers, and counts in the next.
    KeepClocksWhenAllBegin,
    /// What the dispatcher knows of deliveries of the former course counts in the next.
    KeepVouchedWhenAllBegin,
    /// So does what ranks had known, and nodes had told.
    KeepKnownWhenAllBegin,
    /// So do the counts of messages in records.
    KeepCountsWhenAllBegin,
    /// When a group returns, senders in it still see how far their receivers had read.
    PlacesKeepFuture,
    /// A life learns what the logs inside its group hold, and not what had been sent.
    ForgetWhatWasSent,
    /// Sends to other channel memories leave before the own one has all reports.
    LeaveUnreported,
    /// A report goes to the channel memory behind the next send.
    ReportLate,
    /// Held sends are forgotten.
    ForgetHeld,
    /// A life that looks around reads what ranks know before it reads what messages carry.
    KnowledgeBeforeMessages,
    /// A life that looks around does not begin anew when a rank has died or begun meanwhile.
    LookOnce,
    /// A life that looks around does not count what its former life made before it sent something to itself.
    ForgetWhatItToldItself,
    /// A life that looks around reads only messages behind what the former life took in, even of a rank that begins
    /// again.
    SkipWhatWasConsumed,
    /// A life that looks around ignores what images know of ranks that have not begun again.
    ForgetWhatImagesKnow,
    /// Nodes do not tell what messages carry that have come from ranks which have lost their nodes.
    PiecesWithoutMessages,
    /// A rank that has lost its node begins without what one of the others knows.
    LackOnePiece,
    /// What nodes had told before another one was lost counts.
    KeepFormerPieces,
    /// What a rank prints goes without what it depends on.
    PrintAlone,
    /// An image counts although what its rank knows is only in it.
    CountUnvouched,
    /// A repeated message carries what a new one would, and counts as read.
    TellAgain,
    /// A message to a rank that does not know yet what its former life knew has arrived.
    ArriveUnknown,
    /// A life begins as soon as others can read what it will know, without another look at dead or new lives.
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
    /// A channel memory reports one message too few to a later life.
    WelcomeShort,
    /// A channel memory takes a repeated message for a new one.
    AppendAgain,
    /// A channel memory acknowledges one report more than it has.
    MemoryAcknowledgesAhead,
    /// A channel memory forgets reported deliveries.
    ForgetReported,
    /// An image is taken before the channel memories have all that the rank has sent.
    ImageWithoutSync,
    /// A restored rank also delivers messages served before its image was taken.
    KeepServed,
    /// A restored rank waits until its channel memory acknowledges deliveries that it repeats.
    DeparturesOfImage,
    /// Survivors' receives end where a failure is known, although others do not know it.
    EndAtOnce,
    /// An agent says that its survivors know of a failure, and tells them later.
    AnswerUnwritten,
    /// An agent does not say that its survivors know of failures.
    AnswerNothing,
    /// The end of a rank is told before other nodes have what it sent.
    TellUnflushed,
    /// Movers wait for a lost node.
    FlushToLost,
    /// What the dead have sent is not taken before receives from them end.
    EndBeforeTaking,
    /// Messages of ranks that have failed are taken when they come later.
    TakeFromBuried,
    /// Half a message of the dead is waited for.
    KeepHalf,
    /// Of the ranks of a lost node one is told as failed.
    OneRankOfNode,
    /// A revocation is told on one node.
    RevokeOnOneNode,
    /// Members of one agreement learn of different failures.
    TwoVerdicts,
    /// Collective calls among some members end when any member has failed.
    EndGroups,
    /// Survivors do not agree on the communicator that they have made.
    ShrinkOnce,
    /// A rank that recovers by itself counts as caught up when it begins.
    CaughtUpEarly,
    /// It wants again what a former life has wanted.
    WantAgain,
    /// It does not say when it has found a verdict.
    TookUnsaid,
}

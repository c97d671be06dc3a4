//! The messages between the coordinator and those who observe and act: facts and commands.

use std::time::Duration;

use super::state::{From, Place, State};
use super::words::{Cause, Why};
use crate::group::{Groups, Turn};
use crate::kinds::Protocol;
use crate::{Node, Rank};

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fact {
    /// The job begins.
    Launched,
    /// Ranks are new. Each runs on one of these nodes, which are up, or anywhere if none is named.
    Spawned {
        on: Vec<Vec<Node>>,
    },
    /// Images of a unit are requested; where ranks take them alone it is a rank.
    Wanted {
        unit: usize,
    },
    /// Answers [`Command::Survey`] `number` for one rank. It holds `held` bytes; `sent`: the messages that it has sent
    /// to each rank, if asked for.
    Surveyed {
        rank: Rank,
        number: u64,
        state: State,
        held: u64,
        sent: Vec<u64>,
    },
    /// All threads of the rank stand still. `accounted`: it is not in the middle of a command to the process manager.
    Stopped {
        rank: Rank,
        number: u64,
        accounted: bool,
    },
    /// It holds back messages that must not pass.
    Noticed {
        rank: Rank,
        turn: Turn,
    },
    /// Its channels are empty, after it has taken so much from them.
    Drained {
        rank: Rank,
        number: u64,
        moved: u64,
    },
    /// Its copy exists. If it `sleeps` it can be woken; otherwise it writes a file and ends. It stood still for so
    /// long.
    Copied {
        rank: Rank,
        number: u64,
        sleeps: bool,
        stood: Duration,
    },
    /// It cannot be copied, or cannot hold back messages that must not pass.
    Refused {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The transit of this wave is known, or cannot be.
    TransitKnown {
        number: u64,
    },
    TransitLost {
        number: u64,
        reason: String,
    },
    TransitNotWritten {
        number: u64,
        reason: String,
    },
    /// The record names this wave now.
    Recorded {
        number: u64,
    },
    /// The file of the image is complete, and on the disk of the rank's node.
    Written {
        rank: Rank,
        number: u64,
    },
    /// The complete file can be read there, too.
    Stored {
        rank: Rank,
        number: u64,
        place: Place,
    },
    /// These waves are whole in places beyond the nodes, and no others.
    Beyond {
        waves: Vec<u64>,
    },
    /// The file has come from such a place, or from parity, and can be read there.
    Fetched {
        rank: Rank,
        number: u64,
        place: Place,
    },
    /// No place has it whole; or what is left of its set, without what is damaged, does not make it.
    NotFetched {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The node has its piece of the set, all of it: answers [`Command::Encode`]. Each holder reports for itself.
    Encoded {
        number: u64,
        set: u64,
        node: Node,
    },
    /// The node does not get its piece; or it had it, and that is damaged or gone. Whoever finds it out reports it.
    NotEncoded {
        number: u64,
        set: u64,
        node: Node,
        reason: String,
    },
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The node does not take the file, or cannot be given it.
    NotStored {
        rank: Rank,
        number: u64,
        node: Node,
        reason: String,
    },
    /// The copy is gone. `stored`: all of its file is there.
    CopyLost {
        rank: Rank,
        number: u64,
        stored: bool,
        reason: String,
    },
    /// The rank cannot use the file that it was to read.
    FileLost {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The process of the life is known.
    Started {
        rank: Rank,
        life: u64,
    },
    /// The life will have no process, or the process could not become what the image says.
    NotBegun {
        rank: Rank,
        life: u64,
    },
    /// It is as it was at the wave, and waits for the others.
    Ready {
        rank: Rank,
        life: u64,
    },
    /// Its process has ended, in whatever way.
    Ended {
        rank: Rank,
        life: u64,
        orderly: bool,
    },
    /// The node is there: so many ranks have room on it. `spare`: it is kept for ranks whose nodes are lost. `rack`:
    /// nodes of one may be lost together.
    Up {
        node: Node,
        slots: u32,
        spare: bool,
        rack: Option<String>,
    },
    /// The node is lost, with its processes, copies, and what is on its disk. No fact from there follows.
    Down {
        node: Node,
    },
    /// The node must have no ranks any more: with the next wave they go on elsewhere. Or it may keep them, after all.
    Leave {
        node: Node,
    },
    Stay {
        node: Node,
    },
    /// In its replay the rank has long been in wait number `wait` of this life, for a message of `source`. Its agent
    /// says so again and again.
    Waits {
        rank: Rank,
        life: u64,
        wait: u64,
        source: Rank,
    },
    /// The agent of the rank answers [`Command::Probe`] `number`.
    Probed {
        rank: Rank,
        number: u64,
    },
    /// Before the job begins, or goes on: the node of each rank.
    Placed {
        nodes: Vec<Node>,
    },
    /// A rank that has failed begins again alone.
    Restart {
        rank: Rank,
    },
    /// Logs are full, and the rank has no images for which others could forget: see [`Command::LetGo`].
    LetGo {
        rank: Rank,
    },
    /// A rank has failed, and its unit returns.
    Return {
        rank: Rank,
    },
    /// From now on there are images of single ranks, and no waves.
    OnlyLogs,
    /// There are waves again, and none so far: ranks do not begin from what they have alone.
    WavesAgain,
    /// There are waves again, after [`Fact::OnlyLogs`]. Ranks run, and begin from what they have alone until there is a
    /// wave.
    WavesBack,
    /// The job is to be suspended, and what ranks have alone cannot be brought back: there are waves until
    /// [`Fact::OnlyLogs`].
    WavesToSuspend,
    /// All processes must end: the job is being suspended.
    Halt,
    /// The job goes on after that, or is resumed: `together` from a wave, although there are logs.
    GoOn {
        together: bool,
    },
    /// The time [`Coordinator::due`] has come.
    Due,
}

/// How an image is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Manner {
    /// By one rank alone.
    Alone,
    /// In a wave for which ranks stand still together.
    Together,
    /// In a wave that stops no rank.
    Passing,
}

/// A wave that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complete {
    pub unit: usize,
    pub number: u64,
    /// From the request to the last rank's copy; the longest time that a rank stood still; all of these times together.
    pub total: Duration,
    pub longest: Duration,
    pub all: Duration,
    pub groups: Groups,
    /// Groups were to be formed by communication, and it was global.
    pub is_global: bool,
}

/// An order or a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Command {
    /// Report the state of these ranks: [`Fact::Surveyed`]. With `traffic`, also to whom they have sent messages.
    Survey {
        number: u64,
        ranks: Vec<Rank>,
        traffic: bool,
    },
    /// Show the ranks how far waves have come.
    Waves {
        asked: u64,
        over: u64,
    },
    /// Show the ranks their groups in the next wave.
    Groups(Groups),
    /// Show the ranks whose turn it is; with group 0 the wave is over, and deferred messages leave.
    Turn(Turn),
    /// Ask the rank for an image.
    Ask {
        rank: Rank,
        number: u64,
        manner: Manner,
    },
    /// Make the rank hold back messages that must not pass.
    Notice {
        rank: Rank,
        turn: Turn,
    },
    /// Make the rank take all messages in its channels.
    Drain {
        rank: Rank,
        number: u64,
    },
    /// Make the rank copy itself and go on.
    Copy {
        rank: Rank,
        number: u64,
    },
    /// Let the rank go on, without an image.
    Abandon {
        rank: Rank,
        number: u64,
    },
    /// Take the wave's transit out of the logs, read it from its file, put it into the logs, or write it into its file.
    TakeTransit {
        number: u64,
    },
    ReadTransit {
        number: u64,
    },
    PutTransit {
        number: u64,
    },
    WriteTransit {
        number: u64,
    },
    /// Forget the transit of earlier waves in memory; remove transit files of other waves than these.
    ForgetTransit {
        before: u64,
    },
    CollectTransit {
        keep: Vec<u64>,
    },
    /// End the copy.
    EndCopy {
        rank: Rank,
        number: u64,
    },
    /// Make the copy write its file.
    Write {
        rank: Rank,
        number: u64,
    },
    /// Send the file from one node that has it to another one, which reports when it has all of it.
    Replicate {
        rank: Rank,
        number: u64,
        from: Node,
        to: Node,
    },
    /// Make the pieces of parity of a set, from the members' files, with what lies beside them. `holders[0]` has all of
    /// these. It keeps piece 0, and gives piece n to `holders[n]`. A piece says which ranks are the members, in this
    /// order, with the lengths of their files. No two sets of a job have the same number.
    Encode {
        number: u64,
        set: u64,
        members: Vec<Rank>,
        holders: Vec<Node>,
    },
    /// Remove the file on this node only; others have it.
    DropCopy {
        rank: Rank,
        number: u64,
        node: Node,
    },
    /// Make the file anew, with what lies beside it, on node `to`: [`Fact::Fetched`], or [`Fact::NotFetched`].
    /// `members`: those whose files are there, on these nodes. `pieces`: the pieces that are there. Together there are at
    /// least as many as the set has members; if more, any of them will do.
    Rebuild {
        rank: Rank,
        number: u64,
        set: u64,
        to: Node,
        members: Vec<(Rank, Node)>,
        pieces: Vec<(u32, Node)>,
    },
    /// The pieces of this set are not needed any more, on any node. Nor are those that are still being made.
    CollectSet {
        number: u64,
        set: u64,
    },
    /// Bring the file, with what lies beside it, from a place beyond the nodes to node `to`: [`Fact::Fetched`].
    Fetch {
        rank: Rank,
        number: u64,
        to: Node,
    },
    /// Give up the file; remove it where it is complete, on all nodes.
    GiveUp {
        rank: Rank,
        number: u64,
    },
    /// The file is not needed any more, on any node.
    Collect {
        rank: Rank,
        number: u64,
    },
    /// No life of the rank begins before this image any more.
    Forget {
        rank: Rank,
        before: u64,
    },
    /// The rank has finished, and its end is its image of this wave: no life of it begins any more.
    ForgetEnded {
        rank: Rank,
        before: u64,
    },
    /// All forget what an image of the rank at this moment would not need: its senders what it has received, and the
    /// rank its record. Nothing happens while the rank repeats what a former life did. There is no such image: the rank
    /// can begin only from later ones, or with all ranks at the beginning.
    LetGo {
        rank: Rank,
    },
    /// End the process of the life, as soon as it is known.
    Kill {
        rank: Rank,
        life: u64,
    },
    /// Begin all shared state of ranks, and their PMI, anew.
    Reset,
    /// All ranks return to this wave, or to the beginning (0), and none has a process: undo what their MPI libraries have
    /// overwritten in files since.
    Undo {
        number: u64,
    },
    /// Ranks that have an image since this was said wait before they make, remove, or open for writing a file by its
    /// name, until something else is said; 0: none waits. They would do it again when they begin from a wave, and what
    /// it takes to leave that out is in no file.
    FilesWait {
        turn: u64,
    },
    /// Empty the logs between these ranks, which send again what was there.
    CutInside {
        ranks: Vec<Rank>,
    },
    /// Begin the logs anew, empty.
    EmptyLogs,
    /// Begin the logs anew, with what the images of this wave need of them. It lies beside them, or in the memories of
    /// nodes that have not been lost. `only_files`: the memories do not reach back to it.
    LogsOfWave {
        number: u64,
        only_files: bool,
    },
    /// Give the rank a process on this node. `together`: it reports when it is ready, and waits for [`Command::Go`].
    /// `reads`: the other node from which its file comes, if any. `is_oldest`: what came before this image is forgotten.
    Begin {
        rank: Rank,
        life: u64,
        from: From,
        together: bool,
        node: Node,
        reads: Option<Node>,
        is_oldest: bool,
    },
    Go {
        rank: Rank,
    },
    /// If the rank is still in this wait: answer when all that it has sent is where the receivers are. `again`: answer
    /// when it has looked for the message again, and is still in this wait. See [`Fact::Waits`].
    Probe {
        rank: Rank,
        life: u64,
        wait: u64,
        number: u64,
        again: bool,
    },
    /// The message of this wait will never come: the rank ends itself, with a report.
    InVain {
        rank: Rank,
        life: u64,
        wait: u64,
    },
    /// The job goes on with this protocol. `may_begin_again`: if a rank cannot recover alone, all begin again.
    Protocol {
        #[cfg_attr(feature = "serde", serde(with = "crate::kinds::by_number"))]
        protocol: Protocol,
        may_begin_again: bool,
    },
    /// All processes will end, and none begins before [`Command::GoOn`]. Each agent reports when its ranks have none.
    Halt,
    GoOn,
    /// Record the job: all ranks have their images of this wave in files. The record has the waves since `oldest`. The wave of a return
    /// is recorded too, if the record has a newer one.
    Record {
        wave: u64,
        oldest: u64,
    },
    /// Remove the record: all ranks return to the beginning, or to a wave that is not complete in files.
    ForgetRecord,
    /// Decision: the rank has an image alone.
    #[cfg_attr(feature = "serde", serde(skip))]
    Taken {
        rank: Rank,
        number: u64,
        stood: Duration,
        sleeps: bool,
    },
    /// Decision: there is no image, or wave, because of this rank.
    #[cfg_attr(feature = "serde", serde(skip))]
    Dropped {
        rank: Rank,
        why: Why,
    },
    /// Decision: the wave is complete.
    #[cfg_attr(feature = "serde", serde(skip))]
    Complete(Complete),
    /// Decision: the image will be in no file.
    #[cfg_attr(feature = "serde", serde(skip))]
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// Decision: the image, from which lives could have begun, is unusable now.
    #[cfg_attr(feature = "serde", serde(skip))]
    ImageLost {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// Decision: the leaving node ends, with the processes of its ranks. It counts as lost then, and all that they begin
    /// from elsewhere is on other nodes.
    #[cfg_attr(feature = "serde", serde(skip))]
    EndNode {
        node: Node,
    },
    /// Decision: the leaving node has no rank any more; or its ranks could not leave.
    #[cfg_attr(feature = "serde", serde(skip))]
    Left {
        node: Node,
    },
    #[cfg_attr(feature = "serde", serde(skip))]
    Stays {
        node: Node,
        reason: String,
    },
    /// Decision: these ranks have failed with their node. (Of others that were there the units return already.)
    #[cfg_attr(feature = "serde", serde(skip))]
    Lost {
        node: Node,
        ranks: Vec<Rank>,
    },
    /// Decision: the ranks of the unit have returned to this wave; 0: to the beginning.
    #[cfg_attr(feature = "serde", serde(skip))]
    Returned {
        unit: usize,
        wave: u64,
    },
    /// Decision: the rank has nothing to begin from; others go on.
    #[cfg_attr(feature = "serde", serde(skip))]
    CannotRecoverAlone {
        rank: Rank,
    },
    /// Decision: the job cannot go on.
    #[cfg_attr(feature = "serde", serde(skip))]
    Fail(Cause),
}

/// The receiver of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// This node.
    Node(Node),
    /// The node of the rank.
    Of(Rank),
    /// All nodes with ranks.
    All,
    /// No node: it is a decision.
    Nobody,
}

impl Fact {
    /// What was in transit in the wave cannot be read, and why.
    pub fn unreadable_transit(number: u64, why: impl std::fmt::Display) -> Fact {
        let reason = format!("what was in transit cannot be read: {why}");
        Fact::TransitLost { number, reason }
    }
}

impl Command {
    /// Which nodes carry it out.
    pub fn whom(&self) -> Whom {
        match *self {
            Command::Ask { rank, .. }
            | Command::Notice { rank, .. }
            | Command::Drain { rank, .. }
            | Command::Copy { rank, .. }
            | Command::Abandon { rank, .. }
            | Command::EndCopy { rank, .. }
            | Command::Write { rank, .. }
            | Command::Forget { rank, .. }
            | Command::ForgetEnded { rank, .. }
            | Command::LetGo { rank }
            | Command::Kill { rank, .. }
            | Command::Probe { rank, .. }
            | Command::InVain { rank, .. }
            | Command::Go { rank } => Whom::Of(rank),
            Command::Begin { node, .. }
            | Command::Replicate { from: node, .. }
            | Command::DropCopy { node, .. }
            | Command::Rebuild { to: node, .. }
            | Command::Fetch { to: node, .. } => Whom::Node(node),
            Command::Encode { ref holders, .. } => holders.first().map_or(Whom::Nobody, |node| Whom::Node(*node)),
            Command::Survey { .. }
            | Command::Waves { .. }
            | Command::Groups(_)
            | Command::Turn(_)
            | Command::GiveUp { .. }
            | Command::Collect { .. }
            | Command::CollectSet { .. }
            | Command::TakeTransit { .. }
            | Command::ReadTransit { .. }
            | Command::PutTransit { .. }
            | Command::WriteTransit { .. }
            | Command::ForgetTransit { .. }
            | Command::CollectTransit { .. }
            | Command::Reset
            | Command::Undo { .. }
            | Command::FilesWait { .. }
            | Command::CutInside { .. }
            | Command::EmptyLogs
            | Command::LogsOfWave { .. }
            | Command::Protocol { .. }
            | Command::Halt
            | Command::GoOn
            | Command::Record { .. }
            | Command::ForgetRecord => Whom::All,
            Command::Taken { .. }
            | Command::Dropped { .. }
            | Command::Complete(_)
            | Command::NotWritten { .. }
            | Command::ImageLost { .. }
            | Command::Lost { .. }
            | Command::EndNode { .. }
            | Command::Left { .. }
            | Command::Stays { .. }
            | Command::Returned { .. }
            | Command::CannotRecoverAlone { .. }
            | Command::Fail(_) => Whom::Nobody,
        }
    }
}

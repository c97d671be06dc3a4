//! What is said between the coordinator and those who see and do: facts and commands.

use std::time::Duration;

use super::state::{From, Place, State};
use super::words::{Cause, Why};
use crate::group::{Groups, Turn};
use crate::kinds::Protocol;
use crate::{Node, Rank};

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fact {
    /// The job begins.
    Launched,
    /// So many ranks are new.
    Spawned {
        ranks: usize,
    },
    /// Images of a unit are wanted; where ranks have them alone it is a rank.
    Wanted {
        unit: usize,
    },
    /// Answers [`Command::Survey`] `number` for one rank. It holds `held` bytes; `sent`: the messages that it has sent to each rank, if
    /// that was asked.
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
    /// It holds back what must not pass.
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
    /// Its copy exists, which can be woken if it `sleeps`, and otherwise writes a file and ends. It stood still for so long.
    Copied {
        rank: Rank,
        number: u64,
        sleeps: bool,
        stood: Duration,
    },
    /// It cannot be copied, or cannot hold back what must not pass.
    Refused {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// What was in transit in this wave is known, or cannot be.
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
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The copy has gone. `stored`: all of its file is there.
    CopyLost {
        rank: Rank,
        number: u64,
        stored: bool,
        reason: String,
    },
    /// The file cannot be used where the rank has just been told to read it.
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
    /// The life will have no process, or it could not be made what the image says.
    NotBegun {
        rank: Rank,
        life: u64,
    },
    /// It is as it was at the wave, and waits for the others.
    Ready {
        rank: Rank,
        life: u64,
    },
    /// Its process has ended, as programs should or not.
    Ended {
        rank: Rank,
        life: u64,
        orderly: bool,
    },
    /// The node is there: so many ranks have room on it. `spare`: it is kept for ranks whose nodes are lost.
    Up {
        node: Node,
        slots: u32,
        spare: bool,
    },
    /// The node is lost, with its processes, copies, and what is on its disk. Nothing that comes from there is told any more.
    Down {
        node: Node,
    },
    /// The node is to have no ranks any more: with the next wave they go on elsewhere. Or it need not, after all.
    Leave {
        node: Node,
    },
    Stay {
        node: Node,
    },
    /// Before the job begins, or goes on: the node of each rank.
    Placed {
        nodes: Vec<Node>,
    },
    /// A rank that has failed begins again alone.
    Restart {
        rank: Rank,
    },
    /// A rank has failed, and its unit returns.
    Return {
        rank: Rank,
    },
    /// There are to be no waves any more, and images of single ranks.
    OnlyLogs,
    /// There are waves again, and none so far.
    WavesAgain,
    /// All processes are to end, as the job is being suspended.
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
    /// Of one rank alone.
    Alone,
    /// In a wave for which ranks stand still together.
    Together,
    /// In a wave that stops nobody.
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

/// What is to be done, or told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Command {
    /// What these ranks do is told: [`Fact::Surveyed`]. With `traffic`, whom they have sent messages, too.
    Survey {
        number: u64,
        ranks: Vec<Rank>,
        traffic: bool,
    },
    /// The ranks see how far waves have come.
    Waves {
        asked: u64,
        over: u64,
    },
    /// The ranks see their groups in the next wave.
    Groups(Groups),
    /// The ranks see whose turn it is; with group 0 that the wave is over, and what has been deferred leaves.
    Turn(Turn),
    /// The rank is asked for an image.
    Ask {
        rank: Rank,
        number: u64,
        manner: Manner,
    },
    /// The rank is made to hold back what must not pass.
    Notice {
        rank: Rank,
        turn: Turn,
    },
    /// The rank takes what its channels hold.
    Drain {
        rank: Rank,
        number: u64,
    },
    /// The rank copies itself and goes on.
    Copy {
        rank: Rank,
        number: u64,
    },
    /// The rank goes on, without an image.
    Abandon {
        rank: Rank,
        number: u64,
    },
    /// What was in transit in the wave is taken out of the logs, read from its file, put into the logs, written into its file.
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
    /// What was in transit in earlier waves is not needed in memory any more; files of other waves than these are not.
    ForgetTransit {
        before: u64,
    },
    CollectTransit {
        keep: Vec<u64>,
    },
    /// The copy ends.
    EndCopy {
        rank: Rank,
        number: u64,
    },
    /// The copy writes its file.
    Write {
        rank: Rank,
        number: u64,
    },
    /// The rank's node sends the file to another one, which says when it has all of it.
    Replicate {
        rank: Rank,
        number: u64,
        to: Node,
    },
    /// The file that was to be written is not any more, and goes where it is complete; on all nodes.
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
    /// The process of the life ends; one that is not known yet as soon as it is.
    Kill {
        rank: Rank,
        life: u64,
    },
    /// All that ranks share, and their talk with the process manager, begins anew.
    Reset,
    /// The logs between these ranks are emptied.
    CutInside {
        ranks: Vec<Rank>,
    },
    /// The logs begin anew, empty.
    EmptyLogs,
    /// The logs begin anew, with what the images of this wave need of them: a node is lost, with what lay there. Each node has that of the
    /// ranks which were there already; of the others it came with their images.
    LogsOfWave {
        number: u64,
    },
    /// The rank gets a process on this node. `together`: it says when it is ready, and waits for [`Command::Go`]. `reads`: the node
    /// from which the file comes that it begins from, where that is another one.
    Begin {
        rank: Rank,
        life: u64,
        from: From,
        together: bool,
        node: Node,
        reads: Option<Node>,
    },
    Go {
        rank: Rank,
    },
    /// The job goes on with this protocol. `may_begin_again`: if a rank cannot recover alone, all begin again.
    Protocol {
        #[cfg_attr(feature = "serde", serde(with = "crate::kinds::by_number"))]
        protocol: Protocol,
        may_begin_again: bool,
    },
    /// All processes will be ended, and none begins before [`Command::GoOn`]. Whoever sees that its ranks have none says so.
    Halt,
    GoOn,
    /// All ranks have their images of this wave in files: it is written down, with those since wave `oldest`.
    Record {
        wave: u64,
        oldest: u64,
    },
    /// Told: the rank has an image alone.
    #[cfg_attr(feature = "serde", serde(skip))]
    Taken {
        rank: Rank,
        number: u64,
        stood: Duration,
        sleeps: bool,
    },
    /// Told: there is no image, or wave, because of this rank.
    #[cfg_attr(feature = "serde", serde(skip))]
    Dropped {
        rank: Rank,
        why: Why,
    },
    /// Told: the wave is complete.
    #[cfg_attr(feature = "serde", serde(skip))]
    Complete(Complete),
    /// Told: the image will be in no file.
    #[cfg_attr(feature = "serde", serde(skip))]
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// Told: the image, from which lives could have begun, cannot be used any more.
    #[cfg_attr(feature = "serde", serde(skip))]
    ImageLost {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// Told: no rank is on the node any more, which was to leave; or it could not.
    #[cfg_attr(feature = "serde", serde(skip))]
    Left {
        node: Node,
    },
    #[cfg_attr(feature = "serde", serde(skip))]
    Stays {
        node: Node,
        reason: String,
    },
    /// Told: these ranks have failed with their node. (Of others that were there the units return already.)
    #[cfg_attr(feature = "serde", serde(skip))]
    Lost {
        node: Node,
        ranks: Vec<Rank>,
    },
    /// Told: the ranks of the unit have returned to this wave; 0: to the beginning.
    #[cfg_attr(feature = "serde", serde(skip))]
    Returned {
        unit: usize,
        wave: u64,
    },
    /// Told: the rank can begin from nowhere, and others go on.
    #[cfg_attr(feature = "serde", serde(skip))]
    CannotRecoverAlone {
        rank: Rank,
    },
    /// Told: the job cannot go on.
    #[cfg_attr(feature = "serde", serde(skip))]
    Fail(Cause),
}

/// Who carries a command out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// This node.
    Node(Node),
    /// The node of the rank.
    Of(Rank),
    /// All who have ranks.
    All,
    /// Nobody: it is told.
    Nobody,
}

impl Command {
    /// Who is to carry it out.
    pub fn whom(&self) -> Whom {
        match *self {
            Command::Ask { rank, .. }
            | Command::Notice { rank, .. }
            | Command::Drain { rank, .. }
            | Command::Copy { rank, .. }
            | Command::Abandon { rank, .. }
            | Command::EndCopy { rank, .. }
            | Command::Write { rank, .. }
            | Command::Replicate { rank, .. }
            | Command::Forget { rank, .. }
            | Command::Kill { rank, .. }
            | Command::Go { rank } => Whom::Of(rank),
            Command::Begin { node, .. } => Whom::Node(node),
            Command::Survey { .. }
            | Command::Waves { .. }
            | Command::Groups(_)
            | Command::Turn(_)
            | Command::GiveUp { .. }
            | Command::Collect { .. }
            | Command::TakeTransit { .. }
            | Command::ReadTransit { .. }
            | Command::PutTransit { .. }
            | Command::WriteTransit { .. }
            | Command::ForgetTransit { .. }
            | Command::CollectTransit { .. }
            | Command::Reset
            | Command::CutInside { .. }
            | Command::EmptyLogs
            | Command::LogsOfWave { .. }
            | Command::Protocol { .. }
            | Command::Halt
            | Command::GoOn
            | Command::Record { .. } => Whom::All,
            Command::Taken { .. }
            | Command::Dropped { .. }
            | Command::Complete(_)
            | Command::NotWritten { .. }
            | Command::ImageLost { .. }
            | Command::Lost { .. }
            | Command::Left { .. }
            | Command::Stays { .. }
            | Command::Returned { .. }
            | Command::CannotRecoverAlone { .. }
            | Command::Fail(_) => Whom::Nobody,
        }
    }
}

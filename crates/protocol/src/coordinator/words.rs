//! Why there is no image, and why a job cannot go on, for people.

use std::time::Duration;

use crate::Rank;

/// Why there is no image of a rank, or no wave because of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    #[error("the ranks are taking one, or are returning to one")]
    Absent,
    #[error("its last image is still being written")]
    Writing,
    #[error("its memory is still being read from its last image")]
    Filling,
    #[error("it is taking one")]
    Taking,
    #[error("it is outside of MPI")]
    Closed,
    #[error("it has not opened MPI")]
    NotOpened,
    #[error("it repeats what a former life did")]
    Repeats,
    #[error("it has yet to print again what a former life printed")]
    Behind,
    #[error("it is not running")]
    NotRunning,
    #[error("it is talking to the process manager")]
    Talking,
    #[error("it died meanwhile")]
    Died,
    #[error("it has just finished")]
    Finished,
    #[error("it has failed")]
    Failed,
    #[error("its node is lost")]
    NodeLost,
    #[error("its copy has ended")]
    CopyLost,
    #[error("there are no waves any more")]
    NoWaves,
    #[error("all ranks begin again")]
    Again,
    #[error("it has not answered for {} s, as if it were stopped; the others go on", .0.as_secs())]
    Silent(Duration),
    /// The rank or its agent gives the reason.
    #[error("{0}")]
    Said(String),
}

/// Parts of what ranks and agents say in the ordinary course of things.
const SAID_IN_PASSING: [&str; 5] = [
    "former life",
    "are on their way to it",
    "not running",
    "talking to the process manager",
    "no endpoint",
];

/// Part of what an agent says of a rank that has no images in any of its lives.
const SAID_FOR_GOOD: &str = "has started the program as its child";

impl Why {
    /// It will not pass while the job runs: the user may know it at once.
    pub fn is_for_good(&self) -> bool {
        matches!(self, Why::Said(reason) if reason.contains(SAID_FOR_GOOD))
    }

    /// It will pass by itself, however long that takes: the rank gets where it can have an image. A rank that has left
    /// MPI may stay outside, one that is silent may be stopped for ever, and one may never print the same again.
    pub fn is_passing(&self) -> bool {
        match self {
            Why::Absent | Why::Writing | Why::Filling | Why::Taking | Why::NotOpened | Why::Repeats => true,
            Why::NotRunning | Why::Talking | Why::Died | Why::Finished => true,
            Why::Failed | Why::NodeLost | Why::NoWaves | Why::Again => true,
            Why::Closed | Why::CopyLost | Why::Silent(_) | Why::Behind => false,
            Why::Said(_) if self.is_for_good() => false,
            Why::Said(reason) => SAID_IN_PASSING.iter().any(|passing| reason.contains(passing)),
        }
    }

    /// No wave has begun because of it.
    pub fn is_before(&self) -> bool {
        matches!(
            self,
            Why::Absent
                | Why::Writing
                | Why::Filling
                | Why::Taking
                | Why::Closed
                | Why::NotOpened
                | Why::Repeats
                | Why::Behind
                | Why::NotRunning
        )
    }
}

/// Why the job cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("no node is left on which ranks could run")]
    NoNode,
    #[error("the ranks could not be brought back to their last wave")]
    NotBroughtBack,
    #[error("there is no wave whose images can all be used")]
    NoWave,
    #[error("cannot start rank {0} again: there is no wave of its group whose images can all be used")]
    NoGroupWave(Rank),
    #[error("cannot start rank {0} again: its last image is lost, and messages from before that image are not kept")]
    NoImage(Rank),
}

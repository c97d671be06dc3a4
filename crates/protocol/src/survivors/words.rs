//! What ranks say, and what they are told.

use crate::Rank;

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Said {
    /// It has begun MPI: from here on others can go on without it.
    Joined,
    Wants(Wish),
    /// Its spawn has failed: of the ranks that it has spawned, those that have not begun MPI must end. The answer comes
    /// when they have, and also those that a rank has spawned which is gone.
    Abandons {
        ticket: u32,
    },
    Closes(Closing),
    /// No member may use this communicator any more.
    /// `key` stands for it.
    Revokes {
        key: u64,
        members: Vec<Rank>,
    },
    /// This life may repeat a wish, or the end of a call, of a former one: before it says so again, it asks.
    Repeats {
        ticket: u32,
    },
    /// It has found the verdict of this ticket, when it looked for the time of this number, from 1.
    Took {
        ticket: u32,
        look: u64,
    },
}

/// One member's part of an agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Wish {
    /// The member's own number of this wish, which the answer repeats.
    pub ticket: u32,
    /// The communicator. Others with the same number have other members.
    pub context: u32,
    /// The number of the agreement there, the same at each member.
    pub number: u32,
    pub flag: u32,
    /// The failures that this member has acknowledged.
    pub acknowledged: Vec<Rank>,
    pub members: Vec<Rank>,
}

/// One member has come to the end of a collective call, and none returns before all know how it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Closing {
    /// As of a wish.
    pub ticket: u32,
    pub context: u32,
    /// The number of the call there, the same at each member.
    pub number: u32,
    /// It has ended well, for this member.
    pub is_good: bool,
    /// The failure of another rank ends it, too.
    pub of_job: bool,
    /// Not those of these.
    pub absorbed: Vec<Rank>,
    pub members: Vec<Rank>,
}

/// What members agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Verdict {
    /// The bits that all members have set which took part.
    pub flag: u32,
    /// Members that do not live any more.
    pub failed: Vec<Rank>,
    /// How many ranks of the job had failed.
    pub failures: u64,
    /// All members that took part, and live, had acknowledged each of these.
    pub is_acknowledged: bool,
}

/// What ranks must be told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum News {
    /// The failure of this number, from 1, and the exit code of the process, as shells have it. Each node answers with
    /// the round.
    Failed {
        rank: Rank,
        number: u64,
        code: i32,
        round: u64,
    },
    /// For these ranks the communicator of this key is revoked. Each node answers with the round.
    Revoked { key: u64, ranks: Vec<Rank>, round: u64 },
    /// All nodes know this failure, or revocation: what waits in vain ends.
    Settled(Box<News>),
    /// This rank must be killed.
    Ends { rank: Rank },
    /// For this rank, which waits for it.
    Agreed { rank: Rank, ticket: u32, verdict: Verdict },
    /// For this rank: whether a former life has said the wish of this ticket, and the look that found its verdict.
    Repeated {
        rank: Rank,
        ticket: u32,
        is_known: bool,
        look: Option<u64>,
    },
}

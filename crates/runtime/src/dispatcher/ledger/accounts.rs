//! Accounts of images, and the ledger as it is written down when the job is suspended.

use resurgo_pmi::{Position, Server};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::taken::{Printed, Taken};

/// Where a rank was in everything that the ledger holds of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    pub printed: [Printed; 2],
    pub pmi: Position,
    /// Bytes of standard input that had been read.
    pub read: u64,
}

/// The ledger in the file of a suspended job.
#[derive(Serialize, Deserialize)]
pub struct State {
    pub ranks: Vec<RankState>,
    pub server: Server,
    /// Nothing more of standard input will come.
    pub input_ended: bool,
}

#[derive(Serialize, Deserialize)]
pub struct RankState {
    pub taken: [Taken; 2],
    pub accounts: Vec<(u64, Account)>,
}

/// The same as agents wrote it down, when the ledger was theirs.
#[derive(Deserialize)]
struct OfAgent {
    ranks: Vec<OfAgentRank>,
    server: Server,
    input_ended: bool,
}

#[derive(Deserialize)]
struct OfAgentRank {
    taken: [Taken; 2],
    images: OfAgentImages,
}

#[derive(Deserialize)]
struct OfAgentImages {
    files: Vec<OfAgentFile>,
}

#[derive(Deserialize)]
struct OfAgentFile {
    number: u64,
    account: Account,
}

impl State {
    /// Of a job whose agent has written it down.
    pub fn of_agent(agent: Value) -> serde_json::Result<State> {
        let OfAgent {
            ranks,
            server,
            input_ended,
        } = serde_json::from_value(agent)?;
        let ranks = ranks.into_iter().map(|rank| RankState {
            taken: rank.taken,
            accounts: rank
                .images
                .files
                .into_iter()
                .map(|file| (file.number, file.account))
                .collect(),
        });
        Ok(State {
            ranks: ranks.collect(),
            server,
            input_ended,
        })
    }
}

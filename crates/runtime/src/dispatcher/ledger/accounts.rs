//! Accounts of images, and the ledger's form in the file of a suspended job.

use std::collections::BTreeSet;

use resurgo_pmi::{Position, Server};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::taken::{Printed, Taken};

/// A rank's position in all that the ledger holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    pub printed: [Printed; 2],
    pub pmi: Position,
    /// Bytes of standard input read.
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

/// The same as older versions' agents wrote it.
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
    /// The images of which all ranks have accounts.
    pub fn accounts(&self) -> BTreeSet<u64> {
        let of = |rank: &RankState| rank.accounts.iter().map(|(number, _)| *number).collect();
        let ranks = self.ranks.iter().map(of);
        let common = ranks.reduce(|common: BTreeSet<u64>, of| &common & &of);
        common.unwrap_or_default()
    }

    /// From a job whose agent has written it.
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

//! What agents and the dispatcher tell each other of ranks and their lives.

use resurgo_protocol::policy::End;
use serde::{Deserialize, Serialize};

use crate::counters::{Cost, Costs, Sizes};

/// The longest turns of the loops of an agent: processor time from the end of one wait to the beginning of the next, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LongestTurns {
    pub agent_ns: u64,
    /// 0 where there is one node.
    pub mover_ns: u64,
}

/// Counters of one life of a rank, as it left them in the node memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LifeStatistics {
    pub phase: u32,
    pub deliveries: u64,
    pub delivered_bytes: u64,
    pub replay_deliveries: u64,
    /// Nanoseconds since the agent was told to begin the life, 0: not yet. The next three are the same.
    pub first_delivery_ns: u64,
    pub caught_up_ns: u64,
    pub replayed_ns: u64,
    pub collected_ns: u64,
    /// How long the life took to find out what it has to repeat.
    pub collecting_ns: u64,
    /// The messages that it has sent.
    pub sizes: Sizes,
    /// Costs of all lives.
    pub costs: Costs,
}

impl LifeStatistics {
    /// Messages sent.
    pub fn sends(&self) -> u64 {
        self.sizes.iter().map(|[messages, _]| messages).sum()
    }

    /// Payload bytes sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sizes.iter().map(|[_, bytes]| bytes).sum()
    }

    pub fn cost(&self, cost: Cost) -> u64 {
        self.costs[cost as usize]
    }
}

/// A rank as its node sees it while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    pub rank: usize,
    pub life: u64,
    pub statistics: LifeStatistics,
    /// It sleeps until a message comes.
    pub sleeps: bool,
    /// In its replay, or while it sleeps: the rank whose message it waits for.
    pub waits_for: Option<u32>,
    /// Deliveries that its replay has repeated.
    pub repeated: u64,
    /// Other ranks, and the messages to each by its newest image; empty in large jobs.
    pub sent_to: Vec<(u32, u64)>,
}

/// The end of one life of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub rank: usize,
    pub life: u64,
    /// The coordinator's number of the life.
    pub asked: u64,
    /// The coordinator ended it.
    pub by_order: bool,
    /// It ended as programs should, and not by order.
    pub orderly: bool,
    pub pid: i32,
    pub end: End,
    /// The life spoke to PMI (`init`).
    pub initialised: bool,
    /// The life said `finalize` to PMI.
    pub finalised: bool,
    /// Its program has no MPI.
    pub is_plain: bool,
    pub statistics: LifeStatistics,
    /// Why it ended itself, when it exited with [`crate::node_memory::EXIT_REPORT`] or
    /// [`crate::node_memory::EXIT_DIVERGED`].
    pub report: Option<String>,
    /// Nothing known keeps a rank from being replayed.
    pub repeats: bool,
    /// Nanoseconds from the injected fault that struck it until the agent saw its end. None: it died of something else,
    /// at an unknown time.
    pub unnoticed_ns: Option<u64>,
    /// Nanoseconds from then until nothing was left of the life, and the agent said this.
    pub ending_ns: u64,
}

impl Ended {
    /// The status as shells show it.
    pub fn exit_code(&self) -> i32 {
        self.end.exit_code()
    }

    /// Whether it found that it does not repeat what a former life did.
    pub fn diverged(&self) -> bool {
        self.end == End::Exited(crate::node_memory::EXIT_DIVERGED) && self.report.is_some()
    }
}

/// What a rank has noted of files in its node's memory, as far as others must know it if the node is lost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileNotes {
    /// How often the rank has made, renamed or removed something ([`crate::node_memory::deeds::COUNT`]).
    pub count: u64,
    /// Notes of that which are new or changed, with their places in the table.
    pub changed: Vec<(usize, [u64; 2])>,
    /// [`crate::node_memory::control::LOST_READS`].
    pub lost_reads: u64,
    /// [`crate::node_memory::control::NOTES_LOST_NS`].
    pub lost_ns: u64,
    pub undo: Option<Undo>,
}

/// News of a rank's undo log ([`crate::undo`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Undo {
    /// [`crate::undo::SINCE`].
    pub since: u64,
    /// So many words of what was told before still count.
    pub from: usize,
    /// The records behind them, in words.
    pub words: Vec<u64>,
}

impl FileNotes {
    /// Takes up what is new.
    pub fn update(&mut self, new: FileNotes) {
        let FileNotes {
            count,
            changed,
            lost_reads,
            lost_ns,
            undo,
        } = new;
        (self.count, self.lost_reads, self.lost_ns) = (count, lost_reads, lost_ns);
        for (place, note) in changed {
            match self.changed.binary_search_by_key(&place, |(place, _)| *place) {
                Ok(at) => self.changed[at].1 = note,
                Err(at) => self.changed.insert(at, (place, note)),
            }
        }
        if let Some(new) = undo {
            let known = self.undo.get_or_insert_default();
            known.since = new.since;
            known.words.truncate(new.from);
            known.words.extend(new.words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_files_are_brought_up_to_date() {
        let undo = |since, from, words: &[u64]| {
            let words = words.to_vec();
            Some(Undo { since, from, words })
        };
        let mut known = FileNotes::default();
        known.update(FileNotes {
            count: 3,
            changed: vec![(0, [1, 1]), (2, [3, 3])],
            undo: undo(0, 0, &[7, 8, 9]),
            ..FileNotes::default()
        });
        known.update(FileNotes {
            count: 4,
            changed: vec![(3, [4, 4]), (1, [2, 2]), (0, [1, 9])],
            lost_reads: 2,
            ..FileNotes::default()
        });
        known.update(FileNotes {
            count: 4,
            lost_reads: 2,
            undo: undo(1, 2, &[5]),
            ..FileNotes::default()
        });
        let changed = vec![(0, [1, 9]), (1, [2, 2]), (2, [3, 3]), (3, [4, 4])];
        let expected = FileNotes {
            count: 4,
            changed,
            lost_reads: 2,
            lost_ns: 0,
            undo: undo(1, 0, &[7, 8, 5]),
        };
        assert_eq!(known, expected);
    }
}

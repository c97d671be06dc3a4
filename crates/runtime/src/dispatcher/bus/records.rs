//! Failures that the program deals with itself, as `resurgo ft records` shows them: the name service of FT-MPI keeps
//! such records (Gabriel 2003, §3).

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use resurgo_wire::console::Loss;

use super::super::events::{Event, Sink};
use crate::unix_time;

/// The last failures; their numbers tell how many there were before.
const KEPT: usize = 4096;

#[derive(Default)]
pub struct Records {
    /// How ranks ended that are not yet lost.
    ended: BTreeMap<usize, String>,
    /// Why a node was lost, whose ranks are lost next.
    node: Option<String>,
    number: u64,
    kept: VecDeque<Loss>,
}

impl Records {
    pub fn all(&self) -> Vec<Loss> {
        self.kept.iter().cloned().collect()
    }
}

impl Sink for Records {
    fn take(&mut self, event: &Event, _: Instant) {
        match event {
            Event::Failed { rank, cause, .. } => {
                self.ended.insert(*rank, cause.clone());
            }
            Event::NodeLost { reason, .. } => self.node = Some(reason.to_string()),
            Event::Lost { rank, left, .. } => {
                let how = self.ended.remove(rank).or_else(|| self.node.clone());
                self.number += 1;
                self.kept.push_back(Loss {
                    number: self.number,
                    rank: *rank as u32,
                    unix_time: unix_time(),
                    how: how.unwrap_or_default(),
                    left: *left,
                });
                if self.kept.len() > KEPT {
                    self.kept.pop_front();
                }
            }
            _ => {}
        }
    }
}

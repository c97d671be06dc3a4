//! Ranks of several nodes that wait for one another for ever: the program does not repeat its sends.
//!
//! In a replay a rank waits for the next message of its record, from one source. On one node ranks find a ring of such
//! waits themselves. Between nodes a late word would be wrong: it does not tell which messages are on their way. So
//! agents report lasting waits, and the coordinator asks twice around each ring:
//!
//! 1. Each agent sees its rank in that wait, and has all that its nodes' ranks had sent moved to the other nodes. When
//!    all have answered, all earlier messages are where their receivers are.
//! 2. Each agent sees its rank in the same wait, after that rank has looked again.
//!
//! No rank of the ring has sent anything between its two answers. At the moment between the questions all of them
//! waited, and none has found anything since. So no message will come.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::state::Process;
use super::waits::{Probe, Wait};
use super::{Command, Coordinator};
use crate::Rank;

impl Coordinator {
    /// A node is lost, or a rank begins on another one: what agents have not answered yet says nothing.
    pub(super) fn forget_waits(&mut self) {
        self.vain.waits.clear();
        self.vain.probes.clear();
    }

    /// The rank has been in this wait for a while. Its agent repeats that as long as it is.
    pub(super) fn waits(&mut self, rank: Rank, life: u64, wait: u64, source: Rank) {
        self.vain.waits.insert(rank, Wait { life, wait, source });
        let Some(ring) = self.vain.ring(rank).filter(|ring| self.all_live(ring)) else {
            return;
        };
        match self.vain.probes.iter().find(|probe| probe.ring == ring) {
            Some(probe) if probe.answered.contains(&rank) => {}
            // Its agent may not have been able to answer.
            Some(probe) => {
                let (number, again) = (probe.number, probe.again);
                self.ask(rank, Wait { life, wait, source }, number, again);
            }
            None => self.ask_around(ring, false),
        }
    }

    /// Asks whether the rank is in this wait.
    fn ask(&mut self, rank: Rank, Wait { life, wait, .. }: Wait, number: u64, again: bool) {
        self.tell(Command::Probe {
            rank,
            life,
            wait,
            number,
            again,
        });
    }

    fn ask_around(&mut self, ring: Vec<(Rank, Wait)>, again: bool) {
        self.vain.asked += 1;
        let number = self.vain.asked;
        for (rank, wait) in ring.iter().copied() {
            self.ask(rank, wait, number, again);
        }
        let is_other = |probe: &Probe| !probe.ring.iter().any(|(of, _)| ring.iter().any(|(rank, _)| rank == of));
        self.vain.probes.retain(is_other);
        self.vain.probes.push(Probe {
            number,
            ring,
            answered: BTreeSet::new(),
            again,
        });
    }

    /// The agent of the rank answers [`Command::Probe`] `number`.
    pub(super) fn probed(&mut self, rank: Rank, number: u64) {
        let mut probes = self.vain.probes.iter_mut();
        let Some(place) = probes.position(|probe| probe.number == number) else {
            return;
        };
        let probe = &mut self.vain.probes[place];
        probe.answered.insert(rank);
        if probe.answered.len() < probe.ring.len() {
            return;
        }
        let Probe { ring, again, .. } = self.vain.probes.swap_remove(place);
        match (self.all_live(&ring), again) {
            (false, _) => {}
            (true, false) => self.ask_around(ring, true),
            (true, true) => {
                let (rank, Wait { life, wait, .. }) = ring[0];
                self.tell(Command::InVain { rank, life, wait });
            }
        }
    }

    /// These are waits of present lives.
    fn all_live(&self, ring: &[(Rank, Wait)]) -> bool {
        let is_live = |(rank, wait): &(Rank, Wait)| {
            let member = self.ranks.get(*rank as usize);
            member.is_some_and(|member| member.life == wait.life && member.process == Process::Known)
        };
        ring.iter().all(is_live)
    }
}

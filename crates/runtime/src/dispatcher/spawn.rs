//! What ranks spawn: found, numbered, and handed to the agent; or refused, and the rank lives on.

use resurgo_protocol::Fact;
use resurgo_wire::control::{Program, ToAgent, WantedProgram, appnums};
use resurgo_wire::node_memory::MAX_RANKS;

use super::Dispatcher;
use super::events::Event;
use crate::{FILES_PER_RANK, OWN_FILES, leftovers};

/// Finds the file of a program that a rank wants to spawn, and makes its environment; or says why it cannot be run.
pub type Find = Box<dyn Fn(&WantedProgram) -> Result<Program, String>>;

impl Dispatcher {
    /// Rank `by` wants to spawn these programs.
    pub(super) fn spawn(&mut self, by: usize, wanted: &[WantedProgram]) {
        if self.verdict.is_some() {
            return;
        }
        if self.returns(by) {
            // Whoever asked is no more.
            return;
        }
        let mut programs = match self.prepare_spawn(wanted) {
            Ok(programs) => programs,
            Err(reason) => {
                self.bus.tell(Event::SpawnFailed {
                    rank: by,
                    reason: &reason,
                });
                let answer = self.ledger.server.not_spawned(by);
                answer.into_iter().for_each(|answer| self.answer(answer));
                return;
            }
        };
        // All ranks would return to a wave that some of them are not in.
        self.only_logs("ranks are spawned");
        let first = self.pids.len();
        let ranks = first + programs.iter().map(|program| program.ranks).sum::<usize>();
        self.spawning.worlds.push(first);
        let world = self.spawning.worlds.len();
        programs.iter_mut().for_each(|program| program.world = world);
        self.output.spawned(first);
        self.pids.resize(ranks, None);
        self.policy.grow(ranks);
        self.images.refusals.grow(ranks);
        self.faults.grow(ranks);
        self.checkpoints.grow(ranks, self.start.elapsed());
        let names: Vec<&str> = wanted.iter().map(|program| program.name.as_str()).collect();
        let new: Vec<usize> = (first..ranks).collect();
        self.spawning.by.extend(new.iter().map(|rank| (*rank, by)));
        self.bus.tell(Event::Spawned {
            rank: by,
            ranks: &new,
            programs: &names,
        });
        let message_faults = (first..ranks)
            .map(|rank| (rank, self.faults.next_life(rank, 0)))
            .filter(|(_, messages)| *messages > 0)
            .collect();
        // Before any of them speaks.
        self.ledger.grow(ranks);
        let answer = self.ledger.server.spawned(by, appnums(&programs));
        self.tell(ToAgent::Spawn {
            by,
            programs,
            message_faults,
        });
        self.coordinate(Fact::Spawned { ranks: new.len() });
        answer.into_iter().for_each(|answer| self.answer(answer));
    }

    fn prepare_spawn(&self, wanted: &[WantedProgram]) -> Result<Vec<Program>, String> {
        let programs = wanted
            .iter()
            .map(|program| (self.spawning.find)(program))
            .collect::<Result<_, _>>()?;
        let ranks: usize = wanted.iter().fold(0, |sum, program| sum.saturating_add(program.ranks));
        if ranks == 0 {
            return Err("it asks for no ranks".to_string());
        }
        let left = self.spawning.most_ranks.saturating_sub(self.pids.len());
        if ranks > left {
            let most = self.spawning.most_ranks;
            let advice = match most {
                MAX_RANKS => "",
                _ => "; a smaller --log-memory leaves room for more",
            };
            return Err(format!(
                "{ranks} more ranks are asked for, and of the {most} that this job can have in all, also one after the \
                 other, {left} are left{advice}"
            ));
        }
        let running = self.pids.iter().flatten().count();
        let files = OWN_FILES + FILES_PER_RANK * (running + ranks) as u64;
        if files > self.spawning.open_files {
            return Err(format!(
                "{ranks} more ranks need {files} open files, and the hard limit is {}; raise it (ulimit -Hn {files})",
                self.spawning.open_files
            ));
        }
        Ok(programs)
    }

    /// Removes what MPICH keeps for ranks. The agent does this too, unless it has died.
    pub(super) fn remove_leftovers(&self) {
        let starts = std::iter::once(0).chain(self.spawning.worlds.iter().copied());
        let ends = self.spawning.worlds.iter().copied().chain([self.pids.len()]);
        for (world, (first, end)) in starts.zip(ends).enumerate() {
            let name = resurgo_pmi::kvs_name(&self.about.name, world);
            (0..end - first).for_each(|rank| leftovers::remove(&name, rank));
        }
    }
}

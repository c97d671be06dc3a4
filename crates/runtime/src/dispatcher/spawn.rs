//! Spawned ranks: the dispatcher finds their programs, numbers them, and orders the agents to start them. A refused
//! request leaves the asking rank alive.

use std::collections::BTreeMap;
use std::net::IpAddr;

use resurgo_protocol::{Fact, Node, Rank};
use resurgo_wire::control::{Job, Program, ToAgent, WantedProgram, appnums};
use resurgo_wire::node_memory::MAX_RANKS;
use resurgo_wire::survivors::REPLACEMENT;

use super::events::Event;
use super::{Dispatcher, Spawning};
use crate::{FILES_PER_RANK, OWN_FILES, leftovers};

/// Info keys that say where spawned ranks run.
const HOST_KEYS: [&str; 2] = ["host", "hosts"];

/// Finds the file of a program that a rank wants to spawn, and makes its environment; or says why it cannot be run.
pub type Find = Box<dyn Fn(&WantedProgram) -> Result<Program, String>>;

/// A spawn that can be carried out.
struct Prepared {
    programs: Vec<Program>,
    /// For each rank the number of its program.
    appnums: Vec<u32>,
    /// For each rank the nodes that it may run on; none: any.
    on: Vec<Vec<Node>>,
}

/// The failed ranks that others are wanted for; none: this is another spawn.
fn replaced(wanted: &[WantedProgram]) -> Option<Vec<Rank>> {
    let [program] = wanted else { return None };
    (program.name == REPLACEMENT).then(|| program.arguments.iter().filter_map(|rank| rank.parse().ok()).collect())
}

/// Whether `host` means the node of that name. Programs know it as MPI_Get_processor_name gives it, perhaps in full.
fn is_host(name: &str, host: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_address = |name: &str| name.parse::<IpAddr>().is_ok();
    name.eq_ignore_ascii_case(host) || !is_address(name) && !is_address(host) && first(name) == first(host)
}

impl Spawning {
    pub fn of(job: &Job, find: Find) -> Spawning {
        Spawning {
            find,
            programs: job.programs.clone(),
            most_ranks: job.most_ranks,
            open_files: job.open_files.1,
            worlds: Vec::new(),
            by: BTreeMap::new(),
        }
    }
}

impl Dispatcher {
    /// Rank `by` wants to spawn these programs.
    pub(super) fn spawn(&mut self, by: usize, wanted: &[WantedProgram]) {
        if self.verdict.is_some() {
            return;
        }
        if self.returns(by) {
            // The rank that asked is gone.
            return;
        }
        let replaced = replaced(wanted);
        let prepared = self.prepare_spawn(wanted, replaced.as_deref());
        let Prepared {
            mut programs,
            appnums,
            on,
        } = match prepared {
            Ok(prepared) => prepared,
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
        self.images.refusals.ended_waves = None;
        let first = self.pids.len();
        let ranks = first + programs.iter().map(|program| program.ranks).sum::<usize>();
        self.spawning.worlds.push(first);
        let world = self.spawning.worlds.len();
        programs.iter_mut().for_each(|program| program.world = world);
        self.pids.resize(ranks, None);
        self.policy.grow(ranks);
        if let Some(survivors) = &mut self.policy.survivors {
            survivors.spawned(by as u32, first as u32..ranks as u32);
            survivors.replaced(first as u32, replaced.as_deref().unwrap_or_default());
        }
        self.images.refusals.grow(ranks);
        self.faults.grow(ranks);
        self.checkpoints.grow(ranks, self.start.elapsed());
        let new: Vec<usize> = (first..ranks).collect();
        match &replaced {
            Some(replaced) => self.tell_replaced(&new, replaced),
            None => self.tell_spawned(by, &new, wanted),
        }
        let message_faults = (first..ranks)
            .map(|rank| (rank, self.faults.next_life(rank, 0)))
            .filter(|(_, messages)| *messages > 0)
            .collect();
        // Before one of them sends anything.
        self.ledger.grow(ranks);
        let answer = self.ledger.server.spawned(by, appnums);
        let fact = Fact::Spawned { on };
        self.coordinator.handle(fact, self.start.elapsed());
        let nodes: Vec<u32> = new.iter().map(|rank| self.coordinator.node(*rank as u32)).collect();
        self.output.spawned(first, &nodes);
        if let Some(plan) = &mut self.plan {
            plan.of_rank.extend(&nodes);
        }
        if let Some(survivors) = &mut self.policy.survivors {
            survivors.come(&nodes);
        }
        self.spawning.programs.extend(programs.iter().cloned());
        if let Some(coming) = &mut self.coming {
            coming.job.programs.extend(programs.iter().cloned());
        }
        self.tell(ToAgent::Spawn {
            by,
            programs,
            nodes,
            replaced: replaced.unwrap_or_default(),
            message_faults,
        });
        self.carry_out();
        answer.into_iter().for_each(|answer| self.answer(answer));
    }

    fn tell_spawned(&mut self, by: usize, new: &[usize], wanted: &[WantedProgram]) {
        let names: Vec<&str> = wanted.iter().map(|program| program.name.as_str()).collect();
        self.spawning.by.extend(new.iter().map(|rank| (*rank, by)));
        self.bus.tell(Event::Spawned {
            rank: by,
            ranks: new,
            programs: &names,
        });
    }

    fn prepare_spawn(&mut self, wanted: &[WantedProgram], replaced: Option<&[Rank]>) -> Result<Prepared, String> {
        let ranks: usize = wanted.iter().fold(0, |sum, program| sum.saturating_add(program.ranks));
        if let Some(replaced) = replaced {
            self.is_room_for(ranks)?;
            let (programs, appnums) = self.replacements(replaced)?;
            let on = vec![Vec::new(); ranks];
            return Ok(Prepared { programs, appnums, on });
        }
        // What no other number of ranks would help comes first.
        let programs = wanted.iter().map(|program| (self.spawning.find)(program));
        let programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        self.is_room_for(ranks)?;
        let appnums = appnums(&programs);
        let mut on = Vec::new();
        for program in wanted {
            let nodes = self.nodes_named(program)?;
            on.resize(on.len() + program.ranks, nodes);
        }
        Ok(Prepared { programs, appnums, on })
    }

    /// The nodes that the info key `host` names (MPI 5.0, §11.8.4), or MPICH's `hosts`. On one machine it means nothing.
    fn nodes_named(&self, program: &WantedProgram) -> Result<Vec<Node>, String> {
        let mut keys = program.info.iter();
        let Some((key, hosts)) = keys.find(|(key, _)| self.plan.is_some() && HOST_KEYS.contains(&key.as_str())) else {
            return Ok(Vec::new());
        };
        let there: Vec<(usize, &str)> = self
            .agents
            .numbers()
            .into_iter()
            .map(|node| (node, self.agents.name(node).unwrap_or_default()))
            .collect();
        let find = |host: &str| {
            let named = there.iter().find(|(_, name)| is_host(name, host));
            named.map(|(node, _)| *node as Node).ok_or_else(|| {
                let names: Vec<&str> = there.iter().map(|(_, name)| *name).collect();
                format!(
                    "the info key {key} names {host}, which is no node of the job now; there are {}",
                    names.join(", ")
                )
            })
        };
        let hosts = hosts.split(',').map(str::trim).filter(|host| !host.is_empty());
        hosts.map(find).collect()
    }

    /// Why the job cannot have so many more ranks, if so.
    fn is_room_for(&self, ranks: usize) -> Result<(), String> {
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
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_short_and_long_names() {
        assert!(is_host("n1", "n1") && is_host("n1", "N1.cluster") && is_host("n1.cluster", "n1"));
        assert!(!is_host("n1", "n10") && !is_host("10.0.0.1", "10.0.0.2") && !is_host("10", "10.0.0.2"));
    }

    #[test]
    fn only_a_replacement_names_ranks() {
        let wanted = |name: &str| WantedProgram {
            ranks: 2,
            name: name.to_string(),
            arguments: vec!["3".to_string(), "11".to_string()],
            info: Vec::new(),
        };
        assert_eq!(replaced(&[wanted(REPLACEMENT)]), Some(vec![3, 11]));
        assert_eq!(replaced(&[wanted("worker")]), None);
        assert_eq!(replaced(&[wanted(REPLACEMENT), wanted("worker")]), None);
    }
}

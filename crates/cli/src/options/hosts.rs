//! Hosts and their slots, as users name them: on the command line, in a file, and by a batch system.

use std::ffi::OsString;
use std::path::Path;

use super::types::{Hosts, Options};
use crate::batch;
use crate::host_names::{Named, of_file, of_list};

/// A host's name, and how many ranks the host takes in one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    pub host: String,
    pub count: u32,
    /// Hosts of one rack may be lost together.
    pub rack: Option<String>,
    /// The option, or the variable of a batch system, that names it.
    pub option: String,
}

impl Slots {
    /// The batch system names it, and not the user.
    pub fn is_allotted(&self) -> bool {
        !self.option.starts_with('-')
    }
}

/// The hosts of a command line with several programs.
#[derive(Debug)]
pub struct Parts {
    /// Those of the first program, and of all others that have none of their own.
    pub common: Vec<Slots>,
    /// Each program's own.
    pub own: Vec<Vec<Slots>>,
}

impl Parts {
    /// Relative file names start at `here`.
    pub fn of(options: &Options, here: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Result<Parts, String> {
        let own = options.programs.iter().map(|program| listed(&program.hosts, here));
        Ok(Parts {
            own: own.collect::<Result<_, _>>()?,
            common: named(options, here, variable)?,
        })
    }

    /// Whether some program has hosts of its own.
    pub fn has_own(&self) -> bool {
        self.own.iter().any(|own| !own.is_empty())
    }

    /// The common ones, and then those of each program.
    pub fn all(&self) -> Vec<Slots> {
        self.common.iter().chain(self.own.iter().flatten()).cloned().collect()
    }

    /// Divides what belongs to [`Parts::all`], one to one, in the common part and that of each program.
    pub fn divide<T>(&self, mut all: Vec<T>) -> (Vec<T>, Vec<Vec<T>>) {
        let own: usize = self.own.iter().map(Vec::len).sum();
        let mut rest = all.split_off(all.len() - own).into_iter();
        let own = self
            .own
            .iter()
            .map(|own| rest.by_ref().take(own.len()).collect::<Vec<T>>());
        let own: Vec<Vec<T>> = own.collect();
        (all, own)
    }
}

/// All hosts that the command line names for the whole job, or else the batch system's. None: nobody names hosts.
/// Relative file names start at `here`.
fn named(options: &Options, here: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Result<Vec<Slots>, String> {
    let mut all = listed(&options.nodes.hosts, here)?;
    if all.is_empty() && options.nodes.count.is_none() {
        let allotted = batch::hosts(|name| variable(name)?.into_string().ok())?;
        let (name, hosts) = allotted.unwrap_or_default();
        all.extend(hosts.into_iter().map(|(host, count)| Slots {
            host,
            count,
            rack: None,
            option: name.to_string(),
        }));
    }
    Ok(all)
}

fn listed(named: &[Hosts], here: &Path) -> Result<Vec<Slots>, String> {
    let mut all = Vec::new();
    for hosts in named {
        let (option, shown, listed) = match hosts {
            Hosts::Listed(option, list) => (option, list.clone(), of_list(list).map(without_racks)),
            Hosts::InFile(option, file) => (option, file.display().to_string(), of_file(&here.join(file))),
        };
        let failed = |why: String| format!("{option} {shown}: {why}");
        let listed = listed.map_err(failed)?;
        if listed.is_empty() {
            return Err(failed("names no host; leave it out".to_string()));
        }
        all.extend(listed.into_iter().map(|(host, count, rack)| Slots {
            host,
            count,
            rack,
            option: option.clone(),
        }));
    }
    Ok(all)
}

/// Sets the number of ranks if it is not given: one, or for a single program as many as the hosts take in one turn.
pub fn count_ranks(
    options: &mut Options,
    here: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), String> {
    if options.programs.iter().all(|program| program.ranks > 0) {
        return Ok(());
    }
    let mut ranks = 1;
    if options.programs.len() == 1 {
        let of_one = options.nodes.per_node;
        let hosts = without_spares(named(options, here, variable)?, options.nodes.spares);
        let slots = hosts.iter().map(|slots| of_one.unwrap_or(slots.count) as usize);
        ranks = match options.nodes.count {
            Some(nodes) => {
                let nodes = nodes.saturating_sub(options.nodes.spares).max(1);
                nodes.saturating_mul(of_one.unwrap_or(1) as usize)
            }
            None => slots.sum::<usize>().max(1),
        };
    }
    for program in options.programs.iter_mut().filter(|program| program.ranks == 0) {
        program.ranks = ranks;
    }
    Ok(())
}

/// Removes the last `spares` hosts, counted by different names.
fn without_spares(mut hosts: Vec<Slots>, spares: usize) -> Vec<Slots> {
    for _ in 0..spares {
        let Some(Slots { host: last, .. }) = hosts.last().cloned() else {
            break;
        };
        hosts.retain(|slots| slots.host != last);
    }
    hosts
}

fn without_racks(hosts: Vec<(String, u32)>) -> Vec<Named> {
    hosts.into_iter().map(|(host, count)| (host, count, None)).collect()
}

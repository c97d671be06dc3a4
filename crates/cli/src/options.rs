//! The command line of `resurgo run`: what people type at mpiexec, and our own options.

pub mod choices;
mod combinations;
pub mod config_file;
pub mod configured;
mod elsewhere;
pub mod groups;
pub mod hosts;
mod policy;
mod read;
pub mod table;
mod types;
mod values;
mod written;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use resurgo_runtime::dispatcher::Reports;
use resurgo_runtime::suspended::{Configured, Origin};

pub use elsewhere::check_variable;
pub use types::*;
pub use values::share;

/// Whether a command line begins a job that goes by configuration files.
pub fn wants_files(arguments: &[OsString], variable: impl Fn(&str) -> Option<OsString>) -> Result<bool, String> {
    let mut options = read::defaults()?;
    read::read_environment(&mut options, variable)?;
    let other = read::read(&mut options, arguments.to_vec(), false)?;
    Ok(other.is_none() && !options.without_files)
}

/// Reads a command line; `configured` is what configuration files say, and `variable` looks into the environment.
pub fn parse(
    arguments: Vec<OsString>,
    configured: &[Configured],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Request, String> {
    let mut options = read::defaults()?;
    configured::set(&mut options, configured, &variable)?;
    read::read_environment(&mut options, &variable)?;
    let before = options.given.len();
    if let Some(other) = read::read(&mut options, arguments, false)? {
        return Ok(other);
    }
    hosts::count_ranks(&mut options, Path::new(""), &variable)?;
    let words = options.given[before..].to_vec();
    combinations::check(&mut options).map_err(|error| configured::with_places(error, configured, &words))?;
    Ok(Request::Run(Box::new(options)))
}

/// Reads a command line of `resurgo resume`, which ends with the name of a job. `find` returns how the job was started.
pub fn parse_resume(
    arguments: Vec<OsString>,
    find: impl FnOnce(Option<&OsStr>) -> Result<Origin, String>,
) -> Result<Request, String> {
    let mut named = read::defaults()?;
    if let Some(other) = read::read(&mut named, arguments.clone(), true)? {
        return Ok(other);
    }
    let words: Vec<&OsString> = named.programs.iter().flat_map(|program| &program.arguments).collect();
    let job = match words[..] {
        [] => None,
        [job] => Some(job.as_os_str()),
        _ => return Err("resume takes options and then one job".to_string()),
    };
    let origin = find(job)?;
    let mut options = read::defaults()?;
    let variable = |name: &str| {
        let mut variables = origin.environment.iter();
        variables
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    configured::set(&mut options, &origin.configured, variable)?;
    read::read_environment(&mut options, variable)?;
    read::read(&mut options, origin.arguments.clone(), false)?;
    // These belong to the former run.
    options.output.reports = Reports {
        stats: options.output.reports.stats,
        ..Reports::default()
    };
    options.faults.clear();
    options.images.at.clear();
    let has_others = named.nodes.names_nodes();
    if has_others {
        options.nodes.forget_nodes();
    }
    let programs = std::mem::take(&mut options.programs);
    let store_key = options.images.store_key.take();
    read::read(&mut options, arguments, true)?;
    // A key that is not named anew is where the first run found it.
    let there = Path::new(&origin.directory);
    options.images.store_key = options.images.store_key.or(store_key.map(|key| there.join(key)));
    if has_others {
        options.nodes.name_files_from_here()?;
    }
    options.programs = programs;
    if has_others {
        options.programs.iter_mut().for_each(|program| program.hosts.clear());
    }
    hosts::count_ranks(&mut options, Path::new(&origin.directory), variable)?;
    combinations::check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

#[cfg(test)]
mod tests;

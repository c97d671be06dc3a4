//! The command line of `resurgo run`: what people type at mpiexec, and options of our own.

mod combinations;
pub mod config_file;
mod elsewhere;
pub mod groups;
pub mod hosts;
mod policy;
mod read;
pub mod table;
mod types;
mod values;
mod written;

use std::ffi::OsString;
use std::path::Path;

use resurgo_runtime::suspended::Origin;

pub use elsewhere::check_variable;
pub use types::*;

/// What is so when nothing is said.
fn defaults() -> Result<Options, String> {
    let mut options = Options::empty();
    read::set_defaults(&mut options)?;
    Ok(options)
}

/// Reads a command line; `variable` looks into the environment.
pub fn parse(arguments: Vec<OsString>, variable: impl Fn(&str) -> Option<OsString>) -> Result<Request, String> {
    let mut options = defaults()?;
    read::read_environment(&mut options, &variable)?;
    if let Some(other) = read::read(&mut options, arguments, false)? {
        return Ok(other);
    }
    hosts::count_ranks(&mut options, Path::new(""), &variable)?;
    combinations::check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

/// Reads a command line of `resurgo resume`, which ends with the name of a job. `find` says how the job was started.
pub fn parse_resume(
    arguments: Vec<OsString>,
    find: impl FnOnce(&OsString) -> Result<Origin, String>,
) -> Result<Request, String> {
    let mut named = defaults()?;
    if let Some(other) = read::read(&mut named, arguments.clone(), true)? {
        return Ok(other);
    }
    let words: Vec<&OsString> = named.programs.iter().flat_map(|program| &program.arguments).collect();
    let [job] = words[..] else {
        return Err("resume takes options and then one job".to_string());
    };
    let origin = find(job)?;
    let mut options = defaults()?;
    let variable = |name: &str| {
        let mut variables = origin.environment.iter();
        variables
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    read::read_environment(&mut options, variable)?;
    read::read(&mut options, origin.arguments.clone(), false)?;
    // These belong to the former run.
    (options.output.json_events, options.output.stats_json) = (None, None);
    options.faults.clear();
    options.images.at.clear();
    let has_others = named.nodes.names_nodes();
    if has_others {
        options.nodes.forget_nodes();
    }
    let programs = std::mem::take(&mut options.programs);
    read::read(&mut options, arguments, true)?;
    if has_others {
        options.nodes.name_files_from_here()?;
    }
    options.programs = programs;
    hosts::count_ranks(&mut options, Path::new(&origin.directory), variable)?;
    combinations::check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

#[cfg(test)]
mod tests;

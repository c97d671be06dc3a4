//! Options that configuration files give, below the environment and the command line.

use std::ffi::OsString;

use resurgo_runtime::suspended::Configured;

use super::read::{defaults, refused};
use super::table::{self, Does, Line};
use super::types::Options;
use crate::near::nearest;

/// The option that leaves the files out, so it is never in one.
const NO_FILES: &str = "no-config";

/// The options that a file may give.
pub fn configurable() -> impl Iterator<Item = &'static Line> {
    let is_of_job = |line: &&Line| matches!(line.does, Does::Job(_) | Does::JobAgain(_));
    table::options().filter(is_of_job).filter(|line| !line.is(NO_FILES))
}

/// The option with this key.
///
/// # Errors
/// There is none, or a file cannot give it.
pub fn option(key: &str) -> Result<&'static Line, String> {
    if let Some(line) = configurable().find(|line| line.words().any(|word| word == key)) {
        return Ok(line);
    }
    if let Some(line) = table::find(key) {
        let word = configurable()
            .find(|other| other.is(key))
            .and_then(|line| line.words().next());
        return Err(match word {
            Some(word) => format!("{key} is short for {word}: write that"),
            None => format!("{} belongs on the command line", line.names().next().unwrap_or(key)),
        });
    }
    let words: Vec<&str> = configurable().flat_map(Line::words).collect();
    let hint = match nearest(&key.replace('_', "-"), &words) {
        Some(near) => format!("did you mean {near}?"),
        None => "resurgo config lists them".to_string(),
    };
    Err(format!("unknown option {key}; {hint}"))
}

/// Whether its values add up, so that a file may have a list of them.
pub fn has_several(line: &Line) -> bool {
    matches!(line.does, Does::JobAgain(_)) || line.is("store")
}

/// The environment's value of an option, which wins over files.
pub fn of_environment(line: &Line, variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    line.variable()
        .and_then(|name| variable(&name))
        .filter(|value| !value.is_empty())
}

/// Sets what files give and the environment does not.
pub fn set(
    options: &mut Options,
    configured: &[Configured],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), String> {
    for entry in configured {
        let Ok(line) = option(&entry.option) else {
            // A version that knew it has written it down.
            return Err(format!("{}: unknown option {}", entry.place, entry.option));
        };
        if of_environment(line, &variable).is_none() {
            set_one(options, line, entry)?;
        }
    }
    Ok(())
}

fn set_one(options: &mut Options, line: &Line, entry: &Configured) -> Result<(), String> {
    let (Does::Job(set) | Does::JobAgain(set)) = line.does else {
        return Ok(());
    };
    if line.is_switch() && entry.values == ["0"] {
        return Ok(());
    }
    for value in &entry.values {
        set(options, value).map_err(|reason| format!("{}: {}", entry.place, refused(&entry.option, value, &reason)))?;
    }
    options.given.extend(line.bare_names());
    Ok(())
}

/// Checks all entries, also those that something else replaces.
pub fn check(configured: &[Configured]) -> Result<(), String> {
    set(&mut defaults()?, configured, |_| None)
}

/// Says of each option in the error which file has given it. `words`: the options of the command line, which replace
/// those of files.
pub fn with_places(error: String, configured: &[Configured], words: &[&str]) -> String {
    let is_named = |entry: &&Configured| {
        let name = format!("--{}", entry.option);
        let goes_on = |rest: &str| rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-');
        let mut parts = error.split(name.as_str());
        parts.next();
        parts.any(|rest| !goes_on(rest)) && !words.contains(&entry.option.as_str())
    };
    let places: Vec<String> = configured
        .iter()
        .filter(is_named)
        .map(|entry| format!("{} has {}", entry.place, entry.option))
        .collect();
    match places.is_empty() {
        true => error,
        false => format!("{error} ({})", places.join(", ")),
    }
}

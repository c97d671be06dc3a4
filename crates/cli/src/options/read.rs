//! Reads a command line, and the environment, by the table.

use std::ffi::OsString;
use std::iter::Peekable;
use std::time::Duration;
use std::vec::IntoIter;

use super::elsewhere;
use super::table::{self, Does, Line};
use super::types::{Options, ProgramOptions, Request};
use super::written::{Written, attached_number, separate, split};

/// The options of an empty command line: the table's defaults.
pub fn defaults() -> Result<Options, String> {
    let mut options = Options::empty();
    for line in table::options().filter(|line| !line.default.is_empty()) {
        if let Does::Job(set) = line.does {
            set(&mut options, line.default)?;
        }
    }
    Ok(options)
}

/// Sets the options from the environment; `variable` looks into it.
pub fn read_environment(options: &mut Options, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(value) = given("MPIEXEC_TIMEOUT") {
        // As at mpiexec: whole seconds; 0 or less means no limit.
        let seconds = value.to_str().and_then(|value| value.trim().parse::<i64>().ok());
        let seconds = seconds.ok_or_else(|| format!("MPIEXEC_TIMEOUT={}: not a number of seconds", value.display()))?;
        let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
        options.ends.timeout = seconds.map(Duration::from_secs);
    }
    for line in table::options() {
        let Some(name) = line.variable() else { continue };
        let Some(value) = given(&name) else { continue };
        let text = value.to_str().ok_or_else(|| format!("{name} is not UTF-8"))?;
        let (set, values) = match line.does {
            Does::Job(set) => (set, vec![text]),
            Does::JobAgain(set) => (set, text.split(';').collect()),
            _ => continue,
        };
        for value in values {
            if line.is_switch() {
                match value {
                    "0" | "no" | "false" => continue,
                    "1" | "yes" | "true" => {}
                    _ => return Err(format!("{name}={value:?}: write 1 or 0")),
                }
            }
            set(options, value).map_err(|reason| refused(&name, value, &reason))?;
        }
        options.given.extend(line.bare_names());
    }
    Ok(())
}

type Words = Peekable<IntoIter<OsString>>;

/// Reads a command line. `is_resume`: it is for a job that goes on, which is named instead of a program.
pub fn read(options: &mut Options, arguments: Vec<OsString>, is_resume: bool) -> Result<Option<Request>, String> {
    // Faults and places on the command line replace those of the environment.
    let mut faults_from_environment = !options.faults.is_empty();
    let mut places_from_environment = options.images.names_levels();
    let mut words = arguments.into_iter().peekable();
    loop {
        let mut program = ProgramOptions::new();
        while let Some(word) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
            if word == "--" {
                break;
            }
            let text = word
                .to_str()
                .ok_or_else(|| format!("{:?} is not UTF-8", word.display()))?;
            let (line, values) = option(text, &mut words, is_resume)?;
            if line.is("fault") && std::mem::take(&mut faults_from_environment) {
                options.faults.clear();
            }
            if line.is("store") && std::mem::take(&mut places_from_environment) {
                options.images.forget_levels();
            }
            let written = Written {
                options,
                program: &mut program,
                text,
                values,
            };
            if let Some(request) = apply(line, written)? {
                return Ok(Some(request));
            }
        }
        let more = program_words(&mut words, &mut program.arguments);
        if program.arguments.is_empty() && !is_resume {
            let words = match options.programs.is_empty() {
                true => "no program given; try: resurgo run -n 4 ./program",
                false => "no program follows the last colon; try: resurgo run -n 1 ./one : -n 3 ./other",
            };
            return Err(words.to_string());
        }
        options.programs.push(program);
        if !more {
            return Ok(None);
        }
    }
}

/// The table's line for an option as it is written, and its values.
fn option(text: &str, words: &mut Words, is_resume: bool) -> Result<(&'static Line, Vec<OsString>), String> {
    let (mut name, mut attached) = split(text);
    if attached.is_none()
        && let Some(number) = attached_number(name)
    {
        (name, attached) = ("n", Some(number));
    }
    let line = table::find(name).ok_or_else(|| elsewhere::unknown(text, name))?;
    if is_resume && !line.is_for_resume() {
        return Err(format!(
            "{text} cannot be changed for a resumed job, which keeps what it was started with"
        ));
    }
    let count = line.value_count();
    let mut values: Vec<OsString> = attached.into_iter().map(OsString::from).collect();
    if values.len() > count {
        return Err(format!("{text}: -{name} takes no value"));
    }
    while values.len() < count {
        let (what, forced) = match count {
            1 => ("a value", format!("{text}=VALUE")),
            _ => ("a name and a value", format!("{text} NAME=VALUE")),
        };
        // Only the last of several values may be any word.
        let next = words.peek().and_then(|next| next.to_str());
        if values.is_empty()
            && let Some(next) = next.filter(|next| elsewhere::is_option(next))
        {
            return Err(format!(
                "{text} needs {what}, and {next} is an option; where that is meant, write {forced}"
            ));
        }
        values.push(words.next().ok_or_else(|| format!("{text} needs {what}"))?);
        if count == 2
            && let [pair] = values.as_slice()
            && let Some(parts) = separate(pair)
        {
            values = parts.to_vec();
        }
    }
    Ok((line, values))
}

/// Does what an option says. Returns a request if it asks for something other than a job.
fn apply(line: &Line, written: Written) -> Result<Option<Request>, String> {
    let text = written.text;
    match line.does {
        Does::Help => return Ok(Some(Request::Help)),
        Does::Version => return Ok(Some(Request::Version)),
        Does::Nothing | Does::Mark => {}
        Does::Program(apply) => apply(written)?,
        Does::Job(set) | Does::JobAgain(set) => {
            let value = written.values.first().map_or(Some(""), |value| value.to_str());
            let value = value.ok_or_else(|| format!("the value of {text} is not UTF-8"))?;
            set(written.options, value).map_err(|reason| refused(text, value, &reason))?;
            written.options.given.extend(line.bare_names());
        }
    }
    Ok(None)
}

/// Why `option` cannot have this value. Adds the value if the reason only says what it must be.
pub fn refused(option: &str, value: &str, reason: &str) -> String {
    match reason.starts_with("must ") {
        true => format!("{option} {value}: {reason}"),
        false => format!("{option}: {reason}"),
    }
}

/// Takes a program's name and arguments; returns whether another program follows.
fn program_words(words: &mut Words, arguments: &mut Vec<OsString>) -> bool {
    for word in words {
        if word == ":" {
            return true;
        }
        arguments.push(word);
    }
    false
}

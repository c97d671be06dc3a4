//! `resurgo doctor`: what `resurgo run` would find out about a program, without running it.

mod hosts;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::check;
use crate::diagnosis::{self, Diagnosis};
use crate::environment::Variables;
use crate::program;
use crate::suspend::shell_word;

/// The answers about a program.
struct Finding {
    program: PathBuf,
    diagnosis: Diagnosis,
    provider: OsString,
    /// What the ranks' environment has beyond the present one.
    environment: Variables,
}

/// Prints the diagnosis; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let mut words = arguments.iter().filter(|argument| *argument != "--").peekable();
    if words.peek().is_some_and(|word| *word == "-h" || *word == "--help") {
        return crate::help::print("doctor");
    }
    let as_json = words.next_if(|word| *word == "--json").is_some();
    let words: Vec<OsString> = words.cloned().collect();
    if let Some((options, program)) = hosts::asked(&words) {
        return run_on_hosts(options, &program, as_json);
    }
    let [name, arguments @ ..] = &words[..] else {
        eprintln!("resurgo: doctor needs a program; try: resurgo doctor ./program");
        return i32::from(check::USAGE);
    };
    let (status, text) = match (examine(name, arguments), as_json) {
        (Ok(found), false) => (0, as_text(&found, &words)),
        (Ok(found), true) => (0, format!("{}\n", as_object(&found))),
        (Err((status, reason)), true) => {
            let object = json!({ "program": name.to_string_lossy(), "protected": false, "reason": reason });
            (status, format!("{object}\n"))
        }
        (Err((status, reason)), false) => {
            eprintln!("resurgo: {reason}");
            (status, String::new())
        }
    };
    crate::say::print(&text);
    status
}

/// Examines hosts; returns the exit status.
fn run_on_hosts(options: Vec<OsString>, program: &[OsString], as_json: bool) -> i32 {
    let provider = program::provider_path().map_err(|refusal| (refusal.code, refusal.text));
    let files = provider.and_then(|provider| {
        let mut files = vec![Path::new(&provider).join(program::PROVIDER).into_os_string()];
        if let [name, arguments @ ..] = program {
            files.extend(files_of(&examine(name, arguments)?));
        }
        Ok(files)
    });
    let found = files.and_then(|files| {
        let found = hosts::run(options, files, as_json);
        found.map_err(|refusal| (refusal.code, refusal.text))
    });
    match found {
        Ok((status, text)) => {
            crate::say::print(&text);
            status
        }
        Err((status, reason)) => {
            eprintln!("resurgo: {reason}");
            status
        }
    }
}

/// The files of a program that must be the same on all hosts.
fn files_of(found: &Finding) -> Vec<OsString> {
    let library = found.diagnosis.library.iter().map(|(_, file)| file.clone());
    let mut files: Vec<_> = [found.program.clone()].into_iter().chain(library).collect();
    let mut variables: Variables = std::env::vars_os().collect();
    variables.retain(|(name, _)| !found.environment.iter().any(|(other, _)| other == name));
    variables.extend(found.environment.iter().cloned());
    files.extend(diagnosis::libraries(&found.program, &variables));
    let mut all: Vec<OsString> = files.into_iter().map(|file| file.into_os_string()).collect();
    all.sort();
    all.dedup();
    all
}

fn examine(name: &OsString, arguments: &[OsString]) -> Result<Finding, (i32, String)> {
    let here =
        std::env::current_dir().map_err(|error| (2, format!("the current directory cannot be found: {error}")))?;
    let variables: Variables = std::env::vars_os().collect();
    let path = check::variable(&variables, "PATH");
    let file = check::find_program(name, &here, path).map_err(|refusal| (refusal.code, refusal.text))?;
    let diagnosis = diagnosis::diagnose(&file, arguments, &here, &variables).map_err(|error| (2, error))?;
    if let Some(note) = diagnosis.note.as_ref().filter(|_| diagnosis.is_plain) {
        return Err((2, note.clone()));
    }
    let provider = program::provider_path().map_err(|refusal| (refusal.code, refusal.text))?;
    let mut prepared = variables.clone();
    diagnosis.prepare(&mut prepared, &provider);
    prepared.retain(|pair| !variables.contains(pair));
    Ok(Finding {
        program: file,
        diagnosis,
        provider,
        environment: prepared,
    })
}

fn as_text(found: &Finding, words: &[OsString]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "program      {}", found.program.display());
    for step in &found.diagnosis.steps {
        let _ = writeln!(text, "             {step}");
    }
    let _ = match &found.diagnosis.library {
        Some((maker, library)) => writeln!(text, "MPI library  {} ({})", library.display(), maker.name()),
        None => writeln!(text, "MPI library  decided when it runs"),
    };
    let _ = writeln!(text, "provider     {}", found.provider.display());
    for (name, value) in &found.environment {
        let _ = writeln!(text, "environment  {}={}", name.display(), value.display());
    }
    for unknown in &found.diagnosis.unknown {
        let _ = writeln!(text, "unknown      {unknown}");
    }
    let words: Vec<String> = words.iter().map(|word| shell_word(Path::new(word))).collect();
    let command = format!("resurgo run -n 4 {}", words.join(" "));
    let _ = match &found.diagnosis.note {
        Some(note) => writeln!(text, "note         {note}"),
        None if found.diagnosis.unknown.is_empty() => writeln!(text, "protected    yes: {command}"),
        None => writeln!(text, "protected    as far as it could be followed: {command}"),
    };
    text + "             one rank recovers alone if the program is repeatable: the same messages lead to the same sends (no\n             \
            measured times or unseeded random numbers in messages, one thread inside MPI); otherwise all ranks\n             \
            return to their last images, or begin again\n"
}

fn as_object(found: &Finding) -> Value {
    let variables = found.environment.iter();
    let variables: Map<String, Value> = variables
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into()))
        .collect();
    let library = found.diagnosis.library.as_ref();
    let is_known = found.diagnosis.note.is_none() && found.diagnosis.unknown.is_empty();
    json!({
        "program": found.program.to_string_lossy(),
        "steps": found.diagnosis.steps,
        "library": library.map(|(_, file)| file.to_string_lossy()),
        "maker": library.map(|(maker, _)| maker.name()),
        "provider": found.provider.to_string_lossy(),
        "environment": variables,
        // Unknown if the program decides when it runs.
        "protected": is_known.then_some(true),
        "unknown": found.diagnosis.unknown,
        "note": found.diagnosis.note,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_could_not_be_followed_is_not_said_to_be_protected() {
        let found = |unknown: &[&str]| Finding {
            program: "/x/app".into(),
            diagnosis: Diagnosis {
                steps: Vec::new(),
                library: None,
                library_path: Vec::new(),
                note: None,
                unknown: unknown.iter().map(|text| text.to_string()).collect(),
                is_plain: false,
            },
            provider: "/p".into(),
            environment: Vec::new(),
        };
        let words = [OsString::from("./app")];
        let followed = found(&[]);
        assert!(as_text(&followed, &words).contains("protected    yes: resurgo run -n 4 ./app\n"));
        assert_eq!(as_object(&followed)["protected"], true);
        let reason = "libb.so.2, which /x/app needs, is not found";
        let lost = found(&[reason]);
        let text = as_text(&lost, &words);
        assert!(text.contains(&format!("unknown      {reason}\n")), "{text}");
        assert!(!text.contains("protected    yes"), "{text}");
        assert_eq!(as_object(&lost)["protected"], Value::Null);
        assert_eq!(as_object(&lost)["unknown"][0], reason);
    }
}

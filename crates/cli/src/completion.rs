//! `resurgo completion`: prints what a shell needs to complete command lines. That asks `resurgo` itself for the words
//! that may come next, so that there is one table of commands and options.

use std::ffi::OsString;

use resurgo_runtime::jobs;
use resurgo_runtime::units::one_line;

use crate::check::USAGE;
use crate::console::table::WORDS;
use crate::help::{self, Item};
use crate::options::choices;
use crate::options::table::{self, Line};
use crate::say;
use crate::suspend;

/// What shells call, with all words up to the one to complete, and that one.
pub const VERB: &str = "complete-words";

pub const SHELLS: [(&str, &str); 3] = [
    ("bash", include_str!("completion/resurgo.bash")),
    ("zsh", include_str!("completion/resurgo.zsh")),
    ("fish", include_str!("completion/resurgo.fish")),
];

/// `resurgo completion SHELL`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let wanted = match &arguments[..] {
        [shell] => SHELLS.iter().find(|(name, _)| shell == *name),
        _ => None,
    };
    match wanted {
        Some((_, script)) => {
            say::print(script);
            0
        }
        None => say::usage("completion takes the name of a shell: bash, zsh or fish"),
    }
}

/// What the shell itself adds to the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Also {
    Nothing,
    Files,
    Directories,
    /// Programs on the search path, and files.
    Programs,
}

impl Also {
    fn name(self) -> &'static str {
        match self {
            Also::Nothing => "nothing",
            Also::Files => "files",
            Also::Directories => "directories",
            Also::Programs => "programs",
        }
    }

    /// From the placeholder of a value.
    fn of(placeholder: &str) -> Also {
        match placeholder {
            "FILE" | "PATH" | "OUT" => Also::Files,
            "DIR" => Also::Directories,
            _ => Also::Nothing,
        }
    }
}

/// A word, and what it means.
type Candidate = (String, String);

struct Answer {
    words: Vec<Candidate>,
    also: Also,
}

impl Answer {
    fn only(also: Also) -> Answer {
        Answer {
            words: Vec::new(),
            also,
        }
    }

    fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Answer {
        Answer {
            words: words
                .into_iter()
                .map(|word| (word.to_string(), String::new()))
                .collect(),
            also: Also::Nothing,
        }
    }
}

/// The jobs that run, and those that can be resumed.
struct Jobs {
    running: Vec<Candidate>,
    resumable: Vec<Candidate>,
}

fn jobs() -> Jobs {
    let running = jobs::list().unwrap_or_default();
    let resumable = suspend::registered();
    Jobs {
        running: running
            .iter()
            .map(|job| (job.number.to_string(), "runs".to_string()))
            .collect(),
        resumable: resumable
            .iter()
            .map(|job| (job.header.about.number.to_string(), job.header.about.command.clone()))
            .collect(),
    }
}

/// Prints the kind of what the shell adds, and a line for each word; returns the exit status.
pub fn print_words(arguments: &[OsString]) -> i32 {
    let words: Vec<String> = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let Some((last, before)) = words.split_last() else {
        return i32::from(USAGE);
    };
    let answer = complete(before, last, jobs);
    let mut text = format!("{}\n", answer.also.name());
    for (word, about) in answer.words.iter().filter(|(word, _)| word.starts_with(last.as_str())) {
        text += &format!("{}\t{}\n", one_line(word), one_line(about));
    }
    say::print(&text);
    0
}

fn complete(before: &[String], last: &str, jobs: impl Fn() -> Jobs) -> Answer {
    let Some((verb, before)) = before.split_first() else {
        let verbs = help::commands().into_iter().map(|command| (command.verb, command.text));
        let mut answer = Answer::of(["--help", "--version"].into_iter().filter(|_| last.starts_with('-')));
        answer.words.extend(verbs);
        return answer;
    };
    match verb.as_str() {
        "run" => of_job(before, last, false, jobs),
        "resume" => of_job(before, last, true, jobs),
        _ => of_other(verb, before, last, jobs),
    }
}

/// The option that a word names, and the value that stands behind its `=`.
fn named(word: &str) -> Option<(&'static Line, bool)> {
    let bare = word.strip_prefix("--").or(word.strip_prefix('-'))?;
    let (name, has_value) = bare.split_once('=').map_or((bare, false), |(name, _)| (name, true));
    Some((table::find(name)?, has_value))
}

/// Completes a command line of `resurgo run`, or of `resurgo resume`.
fn of_job(before: &[String], last: &str, is_resume: bool, jobs: impl Fn() -> Jobs) -> Answer {
    let (mut is_program, mut waiting) = (false, None);
    for word in before {
        if word == ":" && is_program {
            is_program = false;
        } else if is_program {
            // Words behind a program are its own.
        } else if let Some((line, left)) = waiting.take() {
            waiting = Some((line, left - 1)).filter(|(_, left)| *left > 0 && !word.contains('='));
        } else if word == "--" || !word.starts_with('-') {
            is_program = word != "--";
        } else if let Some((line, has_value)) = named(word) {
            let left = line.value_count().saturating_sub(usize::from(has_value));
            waiting = Some((line, left)).filter(|(_, left)| *left > 0);
        }
    }
    if let Some((line, _)) = waiting {
        return values(line, "");
    }
    if is_program {
        return Answer::only(if is_resume { Also::Nothing } else { Also::Files });
    }
    if let (Some((line, true)), Some((name, _))) = (named(last), last.split_once('=')) {
        return values(line, &format!("{name}="));
    }
    if last.starts_with('-') {
        let lines = table::options().filter(|line| !is_resume || line.is_for_resume());
        let words = lines.flat_map(|line| line.names().map(|name| (spelt(name, last), summary(line.help))));
        return Answer {
            words: words.collect(),
            also: Also::Nothing,
        };
    }
    match is_resume {
        true => Answer {
            words: jobs().resumable,
            also: Also::Directories,
        },
        false => Answer::only(Also::Programs),
    }
}

/// An option with as many dashes as the user has written.
fn spelt(name: &str, last: &str) -> String {
    let bare = name.trim_start_matches('-');
    match last.starts_with("--") && bare.len() > 1 {
        true => format!("--{bare}"),
        false => name.to_string(),
    }
}

fn summary(help: &str) -> String {
    let first = help.split('\n').next().unwrap_or_default();
    first.trim_end_matches(':').to_string()
}

fn values(line: &Line, start: &str) -> Answer {
    let words = choices::of(line)
        .iter()
        .map(|word| (format!("{start}{word}"), String::new()));
    Answer {
        words: words.collect(),
        also: if line.is("groups") {
            Also::Files
        } else {
            Also::of(line.values)
        },
    }
}

/// Completes a command line of a command that has no table.
fn of_other(verb: &str, before: &[String], last: &str, jobs: impl Fn() -> Jobs) -> Answer {
    let items = help::items(verb);
    let options = || items.iter().filter(|item| item.term.starts_with('-'));
    let placeholder = |option: &str| options().find_map(|item| of_option(item, option)).flatten();
    if let Some(value) = before.last().and_then(|word| placeholder(word)) {
        return Answer::only(Also::of(value));
    }
    if last.starts_with('-') {
        let mut answer = Answer::of(["--help"]);
        let names = |item: &Item| {
            let words = item.term.split([' ', ',']).filter(|word| word.starts_with('-'));
            let text = item.text.clone();
            words.map(|word| (word.to_string(), text.clone())).collect::<Vec<_>>()
        };
        answer.words.extend(options().flat_map(names));
        return answer;
    }
    let is_first = before.iter().all(|word| word.starts_with('-'));
    let listed = |words: Vec<Candidate>| Answer {
        words,
        also: Also::Nothing,
    };
    match (verb, is_first) {
        ("web", true) => Answer {
            words: jobs().running,
            also: Also::Files,
        },
        ("ps" | "top" | "console" | "checkpoint" | "suspend" | "add-host" | "drain" | "remove-host", true) => {
            listed(jobs().running)
        }
        ("console", false) => Answer::of(console_words(before)),
        ("kill" | "rm", _) => {
            let Jobs { running, resumable } = jobs();
            let running = if verb == "kill" { running } else { Vec::new() };
            Answer {
                words: running.into_iter().chain(resumable).collect(),
                also: Also::Directories,
            }
        }
        ("ft", true) => Answer::of(["records"]),
        ("ft", false) => listed(jobs().running),
        ("image", true) => Answer::of(["show"]),
        ("trace", true) => Answer::of(["report"]),
        ("store", true) => Answer::of(["ls", "verify", "gc", "rm"]),
        ("bench", true) => Answer::of(["paper"]),
        ("completion", true) => Answer::of(SHELLS.map(|(name, _)| name)),
        ("help", true) => listed(
            help::commands()
                .into_iter()
                .map(|command| (command.verb, command.text))
                .collect(),
        ),
        ("doctor", true) => Answer::only(Also::Programs),
        ("advise", true) | ("image" | "doctor" | "trace", false) => Answer::only(Also::Files),
        _ => Answer::only(Also::Nothing),
    }
}

/// The words of the console, behind the number of the job.
fn console_words(before: &[String]) -> impl Iterator<Item = &'static str> {
    let is_next = before.iter().filter(|word| !word.starts_with('-')).count() == 1;
    WORDS.iter().map(|word| word.name).filter(move |_| is_next)
}

/// The placeholder of the option's value, if the item is about this option; inside, None for one without a value.
fn of_option<'a>(item: &'a Item, option: &str) -> Option<Option<&'a str>> {
    let mut parts = item.term.split(", ");
    let part = parts.find(|part| part.split(' ').next() == Some(option))?;
    Some(part.split(' ').nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> (Vec<String>, Also) {
        let mut words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let last = words.pop().unwrap();
        let job = |number: &str| vec![(number.to_string(), String::new())];
        let answer = complete(&words, &last, || Jobs {
            running: job("11"),
            resumable: job("22"),
        });
        let fitting = answer
            .words
            .into_iter()
            .map(|(word, _)| word)
            .filter(|word| word.starts_with(&last));
        (fitting.collect(), answer.also)
    }

    #[test]
    fn commands_and_options() {
        assert_eq!(words("che").0, ["checkpoint", "checkpoint-server"]);
        assert!(words("").0.len() > 20 && !words("").0.contains(&"--help".to_string()));
        assert_eq!(words("--v").0, ["--version"]);
        assert_eq!(
            words("run -n 4 --checkpoint-s").0,
            ["--checkpoint-share", "--checkpoint-signal"]
        );
        assert_eq!(words("run -ho").0, ["-hosts", "-host", "-hostfile"]);
        assert_eq!(words("run --bind").0, ["--bind-to"]);
        assert_eq!(words("resume --proto").0, Vec::<String>::new());
        assert_eq!(words("join --s").0, ["--slots"]);
        assert_eq!(words("doctor --h").0, ["--help", "--hosts"]);
    }

    #[test]
    fn values_by_their_option() {
        assert_eq!(
            words("run --protocol c"),
            (
                vec!["chandy-lamport".into(), "causal".into(), "channel-memory".into()],
                Also::Nothing
            )
        );
        assert_eq!(words("run --tolerate=n").0, ["--tolerate=node"]);
        assert_eq!(words("run -launcher s").0, ["ssh", "slurm"]);
        assert_eq!(words("run --checkpoint-dir x").1, Also::Directories);
        assert_eq!(words("run --stats-json=x").1, Also::Files);
        assert_eq!(words("run --groups ").1, Also::Files);
        // The variable, and then its value.
        assert_eq!(words("run -env A --proto"), (vec![], Also::Nothing));
        assert_eq!(words("run -env A 1 --proto").0, ["--protocol"]);
        assert_eq!(words("join --token-file ").1, Also::Files);
        assert_eq!(words("checkpoint-server --directory ").1, Also::Directories);
        assert_eq!(words("join --slots ").1, Also::Nothing);
        assert_eq!(words("trace report x --p").0, ["--picture"]);
        assert_eq!(words("trace report x --picture ").1, Also::Files);
    }

    #[test]
    fn programs_have_words_of_their_own() {
        assert_eq!(words("run -n 4 ./a"), (vec![], Also::Programs));
        assert_eq!(words("run -n 4 ./a --proto"), (vec![], Also::Files));
        assert_eq!(words("run -n 4 ./a : --proto").0, ["--protocol"]);
        assert_eq!(words("run -- "), (vec![], Also::Programs));
        assert_eq!(words("doctor "), (vec![], Also::Programs));
    }

    #[test]
    fn jobs_by_their_numbers() {
        assert_eq!(words("suspend ").0, ["11"]);
        assert_eq!(words("web "), (vec!["11".into()], Also::Files));
        assert_eq!(words("drain 11 ").0, Vec::<String>::new());
        assert_eq!(words("resume --grace 3s "), (vec!["22".into()], Also::Directories));
        assert_eq!(words("kill 22 ").0, ["11", "22"]);
        assert_eq!(words("rm ").0, ["22"]);
        assert_eq!(words("console --json ").0, ["11"]);
        assert_eq!(words("console 11 ra").0, ["ranks"]);
        assert_eq!(words("console 11 kill ").0, Vec::<String>::new());
        assert_eq!(words("ft records ").0, ["11"]);
    }
}

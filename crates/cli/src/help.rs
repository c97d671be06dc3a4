//! What `--help` prints, of all commands and of each.

use std::io::Write;

use crate::options::table::{self, Line, Section};

/// What there is, and all commands.
const COMMANDS: &str = include_str!("help.txt");
/// What is said below the options of `resurgo run`.
const BELOW: &str = "
Every option that begins with two dashes can be given in the environment: --log-memory as
RESURGO_LOG_MEMORY. The command line wins. SIGUSR1 to resurgo run takes images now;
other signals reach the ranks.
";

/// Prints the help for a command, also when its reader has gone; returns the exit status.
pub fn print(verb: &str) -> i32 {
    let _ = std::io::stdout().write_all(about(verb).as_bytes());
    0
}

/// All commands, and the options of `resurgo run`.
pub fn all() -> String {
    format!("{COMMANDS}\n{}{BELOW}", options())
}

fn about(verb: &str) -> String {
    match verb {
        "run" => format!("{RUN}\n{}{BELOW}", options()),
        "ps" => PS.to_string(),
        "checkpoint" => CHECKPOINT.to_string(),
        "suspend" => SUSPEND.to_string(),
        "resume" => {
            let lines = table::options().filter(|line| line.is_for_resume());
            format!("{RESUME}{}", lines.map(shown).collect::<String>())
        }
        "kill" => KILL.to_string(),
        "rm" => RM.to_string(),
        "image" => IMAGE.to_string(),
        "doctor" => DOCTOR.to_string(),
        "bench" => BENCH.to_string(),
        "join" => JOIN.to_string(),
        "add-host" => ADD_HOST.to_string(),
        "drain" => DRAIN.to_string(),
        "remove-host" => REMOVE_HOST.to_string(),
        _ => all(),
    }
}

/// All options, in their sections.
fn options() -> String {
    let section = |section: &Section| {
        let lines: String = section.lines.iter().map(shown).collect();
        format!("{}:\n{lines}", section.title)
    };
    let sections: Vec<String> = table::SECTIONS.iter().map(section).collect();
    sections.join("\n")
}

/// Where the text beside an option begins, and where it ends at most.
const TEXT: usize = 30;
const WIDTH: usize = 100;

/// The lines of help about an option.
fn shown(line: &Line) -> String {
    let names: Vec<&str> = line.names().filter(|name| !name.is_empty()).collect();
    let names = format!("{} {}", names.join(", "), line.values);
    let mut text = line.help.to_string();
    if !line.default.is_empty() {
        let at = text.find('\n').unwrap_or(text.len());
        let at = text[..at].trim_end_matches(':').len();
        text.insert_str(at, &format!(" (default {})", line.default));
    }
    let left = wrapped(&names, WIDTH - 2);
    let right: Vec<String> = text.split('\n').flat_map(|part| wrapped(part, WIDTH - TEXT)).collect();
    let fits = left.len() == 1 && left[0].len() + 2 < TEXT;
    let mut shown = String::new();
    for name in &left[..left.len() - usize::from(fits)] {
        shown += &format!("  {name}\n");
    }
    for (index, text) in right.iter().enumerate() {
        let name = if fits && index == 0 { left[0].as_str() } else { "" };
        shown += &format!("  {name:<width$}{text}\n", width = TEXT - 2);
    }
    shown
}

/// Words in lines of at most `width`.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.to_string();
        } else if lines[last].len() + 1 + word.len() <= width {
            lines[last] += &format!(" {word}");
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

const RUN: &str = "\
resurgo run [options] program [arguments] [: [options] program [arguments]]...

Runs an MPI program so that a crashed process does not end the job.
";

const PS: &str = "\
resurgo ps [--json]

Lists your jobs on this machine, also those that can be resumed; as root, everybody's that run.

  JOB                         the number that other commands take
  RANKS                       how many have a process now, of all; or that they are suspended, or interrupted:
                              their launcher was lost, and they go on from their last wave
  TIME                        since the job was started; of one that can be resumed, how long it has run
  IMAGES, LAST                images of single ranks, or waves, so far; and since the last (since what is resumed)

  --json                      print a list of objects instead
";

const CHECKPOINT: &str = "\
resurgo checkpoint [JOB]

Takes an image of every rank now, and waits for it. Without a number, of the only job; resurgo ps lists the
numbers. Works without --checkpoint-every, too. SIGUSR1 to resurgo run does the same.

Exit status: 0; 1 when an image could not be taken, with the reason; 2 when there is no such job.
";

const SUSPEND: &str = "\
resurgo suspend [JOB]

Takes an image of every rank into files and ends the job; resurgo resume goes on with it. The job needs
--checkpoint-dir. Without a number, the only job; resurgo ps lists the numbers.

Exit status: 0; 1 with the reason when it cannot be done, and the job goes on; 2 when there is no such job.
";

const RESUME: &str = "\
resurgo resume [options] JOB

Goes on with a job that was suspended, or whose launcher was lost after a wave. JOB is its number, its directory, or
the one that was given to --checkpoint-dir. Output, events and exit status are those of resurgo run.

Everything is as the job was started, but for these options of resurgo run, which can be given anew:
";

const JOIN: &str = "\
resurgo join [options] HOST:PORT

This node takes part in a job that resurgo run --launcher join has begun, or waits to begin, there. It does until the
job ends, or needs it no more. When the connection is lost it joins again, as another node. The token is read from the
environment (RESURGO_JOIN_TOKEN), a file, or standard input.

  --slots N                   room for so many ranks (default: the processors of this node)
  --token-file FILE           the token is in this file

Exit status: 0; 1 when the job does not answer or does not take this node, with the reason.
";

const ADD_HOST: &str = "\
resurgo add-host JOB HOST[:SLOTS]

Starts an agent on one more host, as the job has started its others. It is a spare one: it takes the ranks of nodes that
are lost. Only for jobs on several nodes.

Exit status: 0 when it is there; 1 with the reason; 2 when there is no such job.
";

const DRAIN: &str = "\
resurgo drain JOB NODE

The ranks of a node go on elsewhere: all ranks are copied at one moment, and go on from there when the images of those
that leave are on other nodes. Nothing is lost. NODE is its name, as events tell it, or its number. It stays a node of
the job without ranks, and may be switched off. Under --protocol blocking.

Exit status: 0 when no rank is there any more; 1 with the reason, and all goes on as before; 2 when there is no such
job.
";

const REMOVE_HOST: &str = "\
resurgo remove-host JOB NODE

As resurgo drain; then the agent of the node ends.

Exit status: 0; 1 with the reason, and all goes on as before; 2 when there is no such job.
";

const KILL: &str = "\
resurgo kill JOB...

Ends jobs, as SIGTERM to their resurgo run does; again, if it must be at once. Of a suspended job, by its number
or directory, it removes the files. resurgo ps lists the numbers.

Exit status: 0; 1 when a job does not answer or has ended; 2 when there is no such job.
";

const RM: &str = "\
resurgo rm JOB...

Removes the files of jobs that do not run, by their numbers or directories. Nothing asks whether you are sure.

Exit status: 0; 2 when there is no such job, it is running, or it is not yours.
";

const IMAGE: &str = "\
resurgo image show FILE...

Verifies image files (DIR/job/rank-N.image-M below --checkpoint-dir DIR), and prints what they hold.

Exit status: 0; 1 when a file is damaged or of another version.
";

const DOCTOR: &str = "\
resurgo doctor [--json] [--hosts FILE] [program [arguments]]

Tells whether the program can be protected, by which MPI library, and what is put into the environment of its
ranks; or what is missing. Nothing is run.

  --hosts FILE, -hosts A,B    examine these hosts instead, as resurgo run would before a job, and whether all
                              reach one another; with a program, also whether it and its libraries are the
                              same. -launcher and -launcher-exec as at resurgo run
  --json                      print an object instead, or a list of hosts

Exit status: 0; 1 when some host cannot have jobs; 2 when the program cannot be protected; 126, 127 when there is no
such program.
";

const BENCH: &str = "\
resurgo bench [paper FIGURE...] [options]

Repeats experiments of the papers; without arguments, lists which there are.

  --quick                     short runs, few repetitions: shows that it works, no more
  --out DIR                   where tables, numbers and pictures go (default resurgo-paper)
  --protocols LIST            only these, as in none,blocking
  --ranks LIST                numbers of ranks, as in 4,16
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_own() {
        let mut seen = vec![all()];
        for line in all().lines().filter_map(|line| line.strip_prefix("  resurgo ")) {
            let verb = line.split(' ').next().unwrap_or_default();
            let text = about(verb);
            assert!(text.starts_with(&format!("resurgo {verb} ")), "{verb}");
            assert!(!seen.contains(&text), "{verb}");
            assert!(text.lines().all(|line| line.len() <= 120), "{verb}");
            seen.push(text);
        }
        assert_eq!(seen.len(), 15);
        assert!(about("run").contains("As at mpiexec:") && !about("run").contains("resurgo ps  "));
        assert!(about("resume").contains("--time-limit") && !about("resume").contains("--protocol"));
    }

    #[test]
    fn every_option_has_its_lines() {
        let text = about("run");
        for line in table::options() {
            assert!(!line.help.is_empty(), "{:?}", line.bare_names().next());
            assert!(text.contains(&shown(line)));
        }
        let restarts = "  --max-restarts N            restarts a job may have (default 64)\n";
        assert!(text.contains(restarts), "{text}");
        assert!(text.contains("  -n, -np N                   ranks that run the program (1, or"));
        let protocol = "  --protocol NAME             what follows from a crash (default auto):\n";
        assert!(text.contains(protocol), "{text}");
    }

    #[test]
    fn long_texts_are_wrapped() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("", 7), [""]);
    }
}

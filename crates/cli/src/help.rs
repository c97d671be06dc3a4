//! What `--help` prints, of all commands and of each.

use std::borrow::Cow;
use std::io::Write;

/// All commands, and the options of `resurgo run`.
pub const ALL: &str = include_str!("help.txt");
/// Where those options begin.
const OPTIONS: &str = "As at mpiexec:\n";

/// Prints the help for a command, whoever has stopped reading; returns the exit status.
pub fn print(verb: &str) -> i32 {
    let _ = std::io::stdout().write_all(about(verb).as_bytes());
    0
}

fn about(verb: &str) -> Cow<'static, str> {
    let text = match verb {
        "run" => {
            let options = ALL.find(OPTIONS).map_or(ALL, |start| &ALL[start..]);
            return Cow::Owned(format!("{RUN}\n{options}"));
        }
        "ps" => PS,
        "checkpoint" => CHECKPOINT,
        "suspend" => SUSPEND,
        "resume" => {
            let options = crate::options::at_resume().map(|name| {
                format!(
                    "  --{name}
"
                )
            });
            return Cow::Owned(RESUME.to_string() + &options.collect::<String>());
        }
        "kill" => KILL,
        "image" => IMAGE,
        "doctor" => DOCTOR,
        "bench" => BENCH,
        _ => ALL,
    };
    Cow::Borrowed(text)
}

const RUN: &str = "\
resurgo run [options] program [arguments] [: [options] program [arguments]]...

Runs an MPI program so that a crashed process does not end the job.
";

const PS: &str = "\
resurgo ps [--json]

Lists your jobs on this machine, also suspended ones; as root, everybody's that run.

  JOB                         the number that other commands take
  RANKS                       how many have a process now, of all; or that they are suspended
  TIME                        since the job was started; of a suspended one, how long it has run
  IMAGES, LAST                images of single ranks, or waves, so far; and since the last (since the suspension)

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

Goes on with a suspended job: JOB is its number, its directory, or the one that was given to --checkpoint-dir.
Output, events and exit status are those of resurgo run.

Everything is as the job was started, but for these options of resurgo run, which can be given anew:
";

const KILL: &str = "\
resurgo kill JOB...

Ends jobs, as SIGTERM to their resurgo run does; again, if it must be at once. Of a suspended job, by its number
or directory, it removes the files. resurgo ps lists the numbers.

Exit status: 0; 1 when a job does not answer or has ended; 2 when there is no such job.
";

const IMAGE: &str = "\
resurgo image show FILE...

Verifies image files (DIR/job/rank-N.image-M below --checkpoint-dir DIR), and prints what they hold.

Exit status: 0; 1 when a file is damaged or of another version.
";

const DOCTOR: &str = "\
resurgo doctor [--json] program [arguments]

Tells whether the program can be protected, by which MPI library, and what is put into the environment of its
ranks; or what is missing. Nothing is run.

  --json                      print an object instead

Exit status: 0; 2 when it cannot be protected; 126, 127 when there is no such program.
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
        let mut seen = vec![ALL.to_string()];
        for line in ALL.lines().filter_map(|line| line.strip_prefix("  resurgo ")) {
            let verb = line.split(' ').next().unwrap_or_default();
            let text = about(verb).into_owned();
            assert!(text.starts_with(&format!("resurgo {verb} ")), "{verb}");
            assert!(!seen.contains(&text), "{verb}");
            assert!(text.lines().all(|line| line.len() <= 120), "{verb}");
            seen.push(text);
        }
        assert_eq!(seen.len(), 10);
        assert!(about("run").contains(OPTIONS) && !about("run").contains("resurgo ps  "));
        assert!(about("resume").contains("--time-limit") && !about("resume").contains("--protocol"));
    }
}

//! The text of `--help`, for all commands and for each.

mod parts;

use crate::console::table as words;
use crate::options::table::{self, Line, Section};
pub use parts::{Item, Part};

/// An introduction, and all commands.
const COMMANDS: &str = include_str!("help.txt");
/// The text below the options of `resurgo run`.
const BELOW: &str = "
Every option that begins with two dashes can be given in the environment: --log-memory as
RESURGO_LOG_MEMORY, and most options in a configuration file (resurgo config --help).
The command line wins, then the environment. SIGUSR1 to resurgo run takes images now;
other signals reach the ranks.

Exit status: 0; that of the first rank whose status is not 0, or of MPI_Abort; 128 + signal; 119 if a rank did not
repeat itself, or its log was full; 75 if the job has been suspended; 255 after -timeout; 126 and 127 as in a shell; 2
if nothing was started.
";

/// A command, as the list of all has it.
pub struct Command {
    pub verb: String,
    pub synopsis: String,
    pub text: String,
}

/// All commands.
pub fn commands() -> Vec<Command> {
    let command = |part| match part {
        Part::Item(item) => {
            let verb = item.term.split(' ').nth(1)?.to_string();
            Some(Command {
                verb,
                synopsis: item.term,
                text: item.text,
            })
        }
        _ => None,
    };
    parts::of(COMMANDS).into_iter().filter_map(command).collect()
}

/// What the program is.
pub fn introduction() -> Vec<Part> {
    parts::of(COMMANDS)
}

/// The help for a command, in parts.
pub fn parts(verb: &str) -> Vec<Part> {
    parts::of(&about(verb))
}

/// The help for `resurgo run` above its options, and below.
pub fn around_options() -> (Vec<Part>, Vec<Part>) {
    (parts::of(RUN), parts::of(BELOW))
}

/// What the help for a command has a line of its own for, such as options.
pub fn items(verb: &str) -> Vec<Item> {
    let item = |part| match part {
        Part::Item(item) => Some(item),
        _ => None,
    };
    parts(verb).into_iter().filter_map(item).collect()
}

/// Prints the help for a command, even if its reader is gone; returns the exit status.
pub fn print(verb: &str) -> i32 {
    crate::say::print(&about(verb));
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
        "top" => TOP.to_string(),
        "web" => WEB.to_string(),
        "console" => format!("{CONSOLE}{}{BELOW_CONSOLE}", words::help()),
        "checkpoint" => CHECKPOINT.to_string(),
        "suspend" => SUSPEND.to_string(),
        "resume" => {
            let lines = table::options().filter(|line| line.is_for_resume());
            format!("{RESUME}{}", lines.map(shown).collect::<String>())
        }
        "kill" => KILL.to_string(),
        "rm" => RM.to_string(),
        "image" => IMAGE.to_string(),
        "store" => STORE.to_string(),
        "checkpoint-server" => CHECKPOINT_SERVER.to_string(),
        "doctor" => DOCTOR.to_string(),
        "advise" => ADVISE.to_string(),
        "trace" => TRACE.to_string(),
        "bench" => BENCH.to_string(),
        "join" => JOIN.to_string(),
        "add-host" => ADD_HOST.to_string(),
        "drain" => DRAIN.to_string(),
        "ft" => FT.to_string(),
        "remove-host" => REMOVE_HOST.to_string(),
        "completion" => COMPLETION.to_string(),
        "demo" => DEMO.to_string(),
        "config" => CONFIG.to_string(),
        "version" => VERSION.to_string(),
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

/// Columns where the text beside an option begins, and where it ends at most.
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
resurgo ps [--json] [JOB | --store PLACE[,PLACE] [--store-key FILE]]

Lists your jobs on this machine, also those that can be resumed; as root, everybody's that run. With --store, the jobs
that can be resumed from these places. With JOB, the state of this job: its nodes, its ranks, and its last events.

  JOB                         the number that other commands take
  RANKS                       how many have a process now, of all; or that they are suspended, or interrupted:
                              their launcher was lost, and they go on from their last wave
  TIME                        since the job was started; of one that can be resumed, how long it has run
  IMAGES, LAST                images of single ranks, or waves, so far; and since the last (since what is resumed)

  JOB, WAVE, AGE, SIZE        of jobs in a place: the name for resurgo resume --from PLACE JOB, and its newest wave

  --json                      print a list of objects instead
";

const WEB: &str = "\
resurgo web [--listen ADDR:PORT] [--control] [JOB]
resurgo web [--listen ADDR:PORT] TRACE

Shows a running job in a browser: its nodes and ranks, a timeline of lives, images, waves and failures, and its events.
Without a number, the only job. Prints the address, with a token that lets in whoever has it, and ends with the job.
TRACE is a file of resurgo run --trace: it shows the picture that resurgo trace report draws, until Ctrl-C.

  --listen ADDR:PORT          where browsers find it; without it a free port of 127.0.0.1
  --control                   the page can take images, kill ranks on purpose, and drain nodes
";

const TOP: &str = "\
resurgo top [JOB]

Shows a running job, twice a second: its nodes, what each rank does, and its events. Without a number, the only job.
Without a terminal it prints one table and ends.

  q, Esc                      quit; top also ends with the job
  c                           take images now
  k                           kill the chosen rank on purpose, after y
  d                           the ranks of the chosen node go to other nodes, after y
  Tab                         the next table: ranks, events, nodes
  arrows, PgUp, PgDn, Home, End   move in it

NO_COLOR=1 in the environment: no colours.

Exit status: 0; 1 when the job does not answer; 2 when there is no such job.
";

const CONSOLE: &str = "\
resurgo console [--json] [JOB]
resurgo console [--json] JOB WORD...

Carries out words about a running job, one a line. On a terminal there is a prompt with line editing, history and
completion (Tab); otherwise the lines come from standard input, and the first word that fails ends it. With a word in
the command line it carries out that one. Without a number, the only job.

";

/// Below the words.
const BELOW_CONSOLE: &str = "
  --json                      each answer is a line of JSON

Exit status: 0, also when the job ends; 1 when a word fails that no user has typed at the prompt; 2 when there is no
such job.
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

resurgo resume [options] --from PLACE[,PLACE] [--into DIR] [JOB[@WAVE]]

Goes on with a job from places of its --store, the nearest first, on any machine. JOB is its name there (resurgo store
ls), or its number; without it, the only job there. Its files come into a new directory, in DIR or where its
--checkpoint-dir was. With several nodes all must see that directory.

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

The ranks of a node go on elsewhere, and the node may be switched off. NODE is its name, as events tell it, or its
number. Under auto, blocking, chandy-lamport and group all ranks are copied at one moment, and go on from there; under
channel-memory those of the node, one after the other. Nothing is lost, and the node stays one of the job. Under
pessimistic and causal with --tolerate node its ranks repeat their work since new images, and its agent ends.

Exit status: 0 when no rank is there any more; 1 with the reason, and all goes on as before; 2 when there is no such
job.
";

const FT: &str = "\
resurgo ft records [JOB] [--json]

The ranks that a job of resurgo run --ft has lost, in order: when, which, how it ended, and how many were left. JOB is
needed if there are several jobs. The last 4096 are shown.

Exit status: 0; 1 if the program of the job does not deal with failures itself; 2 when there is no such job.
";

const REMOVE_HOST: &str = "\
resurgo remove-host JOB NODE

As resurgo drain; then the agent of the node ends.

Exit status: 0; 1 with the reason, and all goes on as before; 2 when there is no such job.
";

const STORE: &str = "\
resurgo store ls [--json] PLACE [JOB]        jobs there, or the generations of one
resurgo store verify PLACE JOB[@GENERATION]  reads everything, and names what is damaged
resurgo store gc PLACE [JOB]                 removes what no job needs, and older generations than the newest two
resurgo store rm PLACE JOB[@GENERATION]      removes a job that does not run, or one generation

PLACE is where images of jobs are kept beyond their machines, with options after semicolons:

  dir:/PATH                   a directory, also on a shared file system
  server:HOST[:PORT][,HOST]   one or more resurgo checkpoint-server; ;key=FILE, or RESURGO_SERVER_KEY_FILE, has the key
  s3://BUCKET[/PREFIX]        an object store, also gs:// and az://; credentials are in the environment, as AWS_*, with
                              AWS_ENDPOINT_URL for a server of your own
  ;keep=N                     gc keeps so many generations (default 2)

  --store-key FILE            the key that the job was stored with
  --json                      print a list of objects instead

Exit status: 0; 1 with the reason, or when something is damaged; 2 for a wrong command line.
";

const CHECKPOINT_SERVER: &str = "\
resurgo checkpoint-server --directory DIR [options]

Keeps images of jobs for other machines, until it is killed. What it has confirmed outlives its own death and a loss of
power. Its directory belongs to it alone.

  --directory DIR             where it keeps them; made if it does not exist
  --listen ADDRESS            an address with a port, or a port (default 4717, on all addresses)
  --key-file FILE             a line USER: KEY for each user; the key has 64 hexadecimal digits (openssl rand -hex 32).
                              Without it, a key for all is made in DIR/keys. Users need the file with their line.
  --quota SIZE                each user may have so much, as in 500G
  --expire TIME               jobs that nobody has read or written for so long are removed, as in 7d
";

const KILL: &str = "\
resurgo kill JOB...
resurgo kill --rank RANK JOB

Ends jobs, as SIGTERM to their resurgo run does; again, if it must be at once. Of a suspended job, by its number
or directory, it removes the files. resurgo ps lists the numbers.

  --rank RANK                 kill this rank only, on purpose: what follows is what follows from a crash

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

const ADVISE: &str = "\
resurgo advise [FILE] [options]

Computes for each way to survive failures when a job ends, and names the best. FILE is what resurgo run has written
with --stats-json; options win.

  --time TIME                 how long the job computes, without failures and images (24h)
  --nodes N                   of the job (1)
  --mtbf TIME                 time between two failures of the job (as observed, or 24h)
  --at-once N                 a failure takes so many nodes; 0: one process (1; on one node 0)
  --outage TIME               time between losses of all nodes (never)
  --image SIZE                of all ranks of a node
  --cost TIME                 how long a wave stops the job
  --restart TIME              from a failure until ranks go on, without copying images (2s)
  --bandwidth SIZE            a second, of a node's link (117M)
  --place SIZE                a second, of a place of images for all nodes together (no place)
  --slowdown SHARE            of the program while images travel (10%)
  --logging SHARE             what logging costs (5%; 20% where nodes may be lost)
  --log-growth SIZE           that a rank logs a second (1M)
  --json                      print an object instead
";

const COMPLETION: &str = "\
resurgo completion bash|zsh|fish

Prints what this shell needs to complete commands, options, their values and jobs. make install puts it where shells
look for it. For one shell: source <(resurgo completion bash), or resurgo completion fish | source.
";

const DEMO: &str = "\
resurgo demo [--steps N]

Runs the heat equation on 4 ranks: undisturbed, and with a rank killed (kill -9) half-way; under plain MPICH and under
resurgo. Then it tells what it cost. The program is in C if there is mpicc, otherwise in Python with mpi4py.

  --steps N                   time steps (default 10000 in C, 2000 in Python)

Exit status: 0 if every run that finished gave the same answer, byte for byte; otherwise 1, with the reason.
";

const CONFIG: &str = "\
resurgo config [--json] [--no-config]

Prints the options of resurgo run that hold without a command line, and where each comes from: a default, a file, or
the environment. What is printed can be a file itself. Files are read in this order, and the later one wins; then come
the environment and the command line:

  /etc/resurgo/config.toml    of the machine
  PREFIX/etc/resurgo/config.toml   of the installation
  ~/.config/resurgo/config.toml    your own; $XDG_CONFIG_HOME instead of ~/.config, if it is set

A line is an option without its dashes: checkpoint-every = \"5m\", max-restarts = 100, quiet = true,
store = [\"dir:/scratch\"].

  --no-config                 read no files (also RESURGO_NO_CONFIG=1)
  --json                      print an object instead

Exit status: 0; 2 with one line about what is wrong, with its file and line.
";

const TRACE: &str = "\
resurgo trace report FILE [--json] [--picture OUT]

Prints what a trace of resurgo run --trace tells: how long each rank computed, was in MPI, waited and repeated work; its
calls of MPI; which ranks sent late, and how long others waited for them; and what each failure cost.

  --json                      print an object instead
  --picture OUT               also write a picture into this file (SVG): what each rank did when, failures, images, and
                              the shares of its time

Exit status: 0; 2 with one line about what is wrong.
";

const VERSION: &str = "\
resurgo version [--json]

The version, what it was built as, its protocols, and the MPI libraries of this machine, found as resurgo doctor finds
them. resurgo --version is the same. The first line is the name and the version alone.

  --json                      print an object instead
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
        assert_eq!(seen.len(), 27);
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

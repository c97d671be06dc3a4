//! `resurgo ps`, `checkpoint`, `suspend` and `kill`: commands about jobs that run or are suspended.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use resurgo_runtime::jobs::{self, Job};
use resurgo_runtime::suspended::Suspended;
use resurgo_runtime::units::{one_line, readable_duration};
use resurgo_wire::console::{Progress, Reply, Request, Status};
use serde_json::{Value, json};

use crate::say::{failed, usage};
use crate::{progress, stored, suspend};

/// `resurgo ps [--json]`: a table of the caller's jobs on this machine. With `--store PLACE`, of those in the place.
pub fn ps(arguments: Vec<OsString>) -> i32 {
    if stored::is_meant(&arguments) {
        return stored::ps(arguments);
    }
    let (options, job): (Vec<OsString>, Vec<OsString>) = arguments.into_iter().partition(|word| word == "--json");
    let as_json = !options.is_empty();
    match &job[..] {
        [] => {}
        [argument, ..] => {
            return usage(&format!(
                "ps takes no arguments but JOB, --json, --store PLACE and --store-key FILE, not {:?}",
                argument.display()
            ));
        }
    }
    let mut jobs = match jobs::list() {
        Ok(jobs) => jobs,
        Err(error) => return failed(&format!("cannot list the jobs: {error}")),
    };
    let answers = jobs::statuses(&mut jobs);
    let running = jobs.iter().zip(&answers).filter(|(_, answer)| !has_ended(answer));
    let suspended = suspend::registered();
    let objects = running.clone().map(|(job, answer)| object(job, answer));
    let objects: Vec<Value> = objects.chain(suspended.iter().map(object_of_suspended)).collect();
    let titles = [
        "JOB", "RANKS", "PROTOCOL", "TIME", "RESTARTS", "IMAGES", "LAST", "COMMAND",
    ];
    let table: String = std::iter::once(titles.map(String::from))
        .chain(running.map(|(job, answer)| row(job, answer)))
        .chain(suspended.iter().map(row_of_suspended))
        .map(|columns| line(columns) + "\n")
        .collect();
    crate::store::show(as_json, &objects, &table);
    0
}

/// Whether a job ended meanwhile: then it is not shown.
fn has_ended(answer: &io::Result<Status>) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(answer, Err(error) if [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind()))
}

/// Why a job that exists has not told its status.
fn why_silent(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::TimedOut => "(does not answer: is it stopped?)",
        _ => "(answers something else: is it of another version?)",
    }
}

fn row(job: &Job, answer: &io::Result<Status>) -> [String; 8] {
    let status = match answer {
        Ok(status) => status,
        Err(error) => {
            let [number, unknown, command] = [&job.number.to_string(), "-", why_silent(error)].map(str::to_string);
            let [ranks, protocol, time, restarts, images, last] = std::array::from_fn(|_| unknown.clone());
            return [number, ranks, protocol, time, restarts, images, last, command];
        }
    };
    [
        job.number.to_string(),
        format!("{} of {}", status.running, status.ranks),
        one_line(&status.protocol),
        time(status.seconds),
        status.restarts.to_string(),
        status.images.to_string(),
        status.seconds_since_image.map_or("-".to_string(), time),
        one_line(&status.command),
    ]
}

fn object(job: &Job, answer: &io::Result<Status>) -> Value {
    match answer {
        Ok(status) => json!({
            "job": job.number,
            "user": job.user,
            "state": "running",
            "ranks": status.ranks,
            "running": status.running,
            "protocol": status.protocol,
            "seconds": status.seconds,
            "restarts": status.restarts,
            "images": status.images,
            "seconds_since_image": status.seconds_since_image,
            "command": status.command,
        }),
        Err(_) => json!({ "job": job.number, "user": job.user, "state": "silent" }),
    }
}

fn row_of_suspended(job: &Suspended) -> [String; 8] {
    let about = &job.header.about;
    [
        about.number.to_string(),
        format!("{} {}", about.ranks, state_of(job)),
        protocol_of(job).to_string(),
        time(about.seconds),
        about.restarts.to_string(),
        "-".to_string(),
        time(seconds_suspended(job)),
        one_line(&about.command),
    ]
}

fn object_of_suspended(job: &Suspended) -> Value {
    let about = &job.header.about;
    json!({
        "job": about.number,
        "state": state_of(job),
        "ranks": about.ranks,
        "protocol": protocol_of(job),
        "seconds": about.seconds,
        "restarts": about.restarts,
        "seconds_suspended": seconds_suspended(job),
        "wave": about.wave,
        "directory": job.directory.to_string_lossy(),
        "command": about.command,
    })
}

/// The state of a job that does not run.
fn state_of(job: &Suspended) -> &'static str {
    match job.header.about.wave {
        None => "suspended",
        Some(_) => "interrupted",
    }
}

fn protocol_of(job: &Suspended) -> &'static str {
    job.header.job.protocol.name()
}

fn seconds_suspended(job: &Suspended) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs_f64() - job.header.about.unix_time).max(0.0)
}

/// A number of seconds that another process told.
fn time(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or("?".to_string(), readable_duration)
}

fn line([job, ranks, protocol, time, restarts, images, last, command]: [String; 8]) -> String {
    format!("{job:>8}  {ranks:>14}  {protocol:<14} {time:>9}  {restarts:>8}  {images:>7}  {last:>9}  {command}")
}

/// `resurgo checkpoint [JOB]`.
pub fn checkpoint(arguments: Vec<OsString>) -> i32 {
    one("checkpoint", &arguments, &Request::Checkpoint)
}

/// `resurgo suspend [JOB]`.
pub fn suspend(arguments: Vec<OsString>) -> i32 {
    one("suspend", &arguments, &Request::Suspend)
}

/// `resurgo ft records [JOB] [--json]`.
pub fn ft(arguments: Vec<OsString>) -> i32 {
    let (options, names): (Vec<OsString>, Vec<OsString>) = arguments.into_iter().partition(|word| word == "--json");
    let Some(("records", job)) = names.split_first().and_then(|(what, job)| Some((what.to_str()?, job))) else {
        return usage("there is only resurgo ft records [JOB] [--json]");
    };
    let job = match wanted("ft records", job) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let number = job.number;
    let losses = match asked(job, &Request::Losses) {
        Ok(Reply::Losses(losses)) => losses,
        Ok(_) => return failed(&strange(number)),
        Err(code) => return code,
    };
    let titles = ["FAILURE", "AGO", "RANK", "LEFT", "HOW"].map(String::from);
    let rows = losses.iter().map(|loss| {
        let ago = time(crate::store::seconds_since(loss.unix_time));
        let [rank, left] = [loss.rank.to_string(), loss.left.to_string()];
        [loss.number.to_string(), ago, rank, left, one_line(&loss.how)]
    });
    let table: String = std::iter::once(titles)
        .chain(rows)
        .map(|[number, ago, rank, left, how]| format!("{number:>7}  {ago:>9}  {rank:>6}  {left:>6}  {how}\n"))
        .collect();
    let objects: Vec<Value> = losses.iter().map(|loss| json!(loss)).collect();
    crate::store::show(!options.is_empty(), &objects, &table);
    0
}

fn one(verb: &str, arguments: &[OsString], request: &Request) -> i32 {
    match wanted(verb, arguments) {
        Ok(job) => tell(job, request),
        Err(code) => code,
    }
}

/// The job that the arguments name, or the only one; otherwise the exit status.
pub fn wanted(verb: &str, arguments: &[OsString]) -> Result<Job, i32> {
    let jobs = jobs::list().map_err(|error| failed(&format!("cannot list the jobs: {error}")))?;
    let found = match arguments {
        [] => match jobs.len() {
            0 => Err("there is no job".to_string()),
            1 => jobs.into_iter().next().ok_or_else(String::new),
            number => Err(format!("there are {number} jobs: say which; resurgo ps lists them")),
        },
        [number] => find(jobs, number),
        _ => Err(format!("{verb} takes the number of one job")),
    };
    found.map_err(|error| usage(&error))
}

/// `resurgo add-host JOB HOST[:SLOTS]`.
pub fn add_host(arguments: Vec<OsString>) -> i32 {
    let [job, host] = &arguments[..] else {
        return usage("add-host needs the number of a job and a host, as in: resurgo add-host 4711 n3:4");
    };
    match to_add(&host.to_string_lossy()) {
        Ok(request) => one("add-host", std::slice::from_ref(job), &request),
        Err(why) => usage(&format!("add-host {}: {why}", host.display())),
    }
}

/// The request to add `host`, or `host:4`.
pub fn to_add(host: &str) -> Result<Request, String> {
    let (host, slots) = crate::host_names::one(host)?;
    Ok(Request::AddHost { host, slots })
}

/// `resurgo drain JOB NODE` and `resurgo remove-host JOB NODE`.
pub fn drain(verb: &str, arguments: Vec<OsString>) -> i32 {
    let [job, node] = &arguments[..] else {
        return usage(&format!(
            "{verb} needs the number of a job and the name of a node, as in: resurgo {verb} 4711 n3"
        ));
    };
    let node = node.to_string_lossy().into_owned();
    let removed = verb == "remove-host";
    one(verb, std::slice::from_ref(job), &Request::Drain { node, removed })
}

/// `resurgo kill JOB...`: removes the files of suspended jobs. It tells each job, whatever becomes of the others.
pub fn kill(arguments: Vec<OsString>) -> i32 {
    if arguments.is_empty() {
        return usage("kill needs the number of a job; resurgo ps lists them");
    }
    if arguments.iter().any(|word| word == "--rank") {
        return kill_rank(&arguments);
    }
    let mut status = 0;
    for (place, name) in arguments.iter().enumerate() {
        // A second order would end a job at once.
        if !arguments[..place].contains(name) {
            status = status.max(kill_one(name));
        }
    }
    status
}

/// `resurgo kill --rank RANK JOB`: kills one rank on purpose.
fn kill_rank(arguments: &[OsString]) -> i32 {
    let (rank, job) = match arguments {
        [option, rank, job] if option == "--rank" => (rank, job),
        [job, option, rank] if option == "--rank" => (rank, job),
        _ => return usage("kill --rank takes a rank and the number of one job, as in: resurgo kill --rank 2 4711"),
    };
    match to_kill(&rank.to_string_lossy()) {
        Ok(request) => one("kill", std::slice::from_ref(job), &request),
        Err(why) => usage(&format!("--rank {}: {why}", rank.display())),
    }
}

/// The request to kill this rank.
pub fn to_kill(rank: &str) -> Result<Request, String> {
    let rank = rank.parse().map_err(|_| "not the number of a rank".to_string())?;
    Ok(Request::KillRank { rank })
}

/// `resurgo rm JOB|DIR...`: removes the files of jobs that do not run.
pub fn rm(arguments: Vec<OsString>) -> i32 {
    if arguments.is_empty() {
        return usage("rm needs the number of a job that does not run, or a directory; resurgo ps lists them");
    }
    let remove = |name: &OsString| match removed(name) {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(error) => usage(&error),
    };
    arguments.iter().map(remove).max().unwrap_or(0)
}

fn removed(name: &OsStr) -> Result<String, String> {
    let jobs = jobs::list().unwrap_or_default();
    match find(jobs, name) {
        Ok(Job { number, .. }) => Err(format!("job {number} is running; resurgo kill {number} ends it")),
        Err(_) => suspend::remove(name),
    }
}

fn kill_one(name: &OsStr) -> i32 {
    let jobs = match jobs::list() {
        Ok(jobs) => jobs,
        Err(error) => return failed(&format!("cannot list the jobs: {error}")),
    };
    match find(jobs, name) {
        Ok(job) => tell(job, &Request::Kill),
        Err(error) => match suspend::named(name) {
            Ok(job) => match suspend::forget(&job.directory, Some(&job)) {
                Ok(text) => {
                    println!("{text}");
                    0
                }
                Err(error) => failed(&error),
            },
            Err(_) => usage(&error),
        },
    }
}

fn tell(job: Job, request: &Request) -> i32 {
    let number = job.number;
    match asked(job, request) {
        Ok(Reply::Done(text)) => {
            let _ = writeln!(io::stdout(), "job {number}: {}", one_line(&text));
            0
        }
        Ok(_) => failed(&strange(number)),
        Err(code) => code,
    }
}

/// The job's answer, unless it refuses or there is none; then the exit status.
pub fn asked(mut job: Job, request: &Request) -> Result<Reply, i32> {
    answer(&mut job, request).map_err(|none| failed(&none.to_string()))
}

/// Why there is no answer to go on with.
#[derive(Debug)]
pub enum NoAnswer {
    HasEnded(u32),
    /// It refuses, or does not answer.
    Other(String),
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            NoAnswer::HasEnded(number) => write!(f, "job {number} has ended meanwhile"),
            NoAnswer::Other(why) => f.write_str(why),
        }
    }
}

/// The job has answered what does not fit.
pub fn strange(number: u32) -> String {
    format!("job {number} has answered something else")
}

/// The job's answer, unless it refuses or there is none. A terminal shows how it gets on.
pub fn answer(job: &mut Job, request: &Request) -> Result<Reply, NoAnswer> {
    let number = job.number;
    let bar = progress::bar();
    let tell = |progress: Progress| {
        let text = format!("job {number}: {}", progress.text);
        bar.tell(Some(Progress { text, ..progress }));
    };
    if let Request::AddHost { host, .. } = request {
        tell(Progress::of(format!("host {host} is being added")));
    } else if let Request::Drain { node, .. } = request {
        tell(Progress::of(format!("node {node} is being left")));
    }
    let answer = job.ask(request, &mut |progress| tell(progress));
    drop(bar);
    Err(NoAnswer::Other(match answer {
        Ok(Reply::Refused(text)) => format!("job {number}: {}", one_line(&text)),
        Ok(reply) => return Ok(reply),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => format!(
            "job {number} does not answer; if it has been stopped (Ctrl-Z, SIGSTOP), let it go on: kill -CONT {number}"
        ),
        Err(_) if !is_listed(number) => return Err(NoAnswer::HasEnded(number)),
        Err(error) => format!("job {number} does not answer: {}", one_line(&error.to_string())),
    }))
}

fn is_listed(number: u32) -> bool {
    jobs::list().is_ok_and(|jobs| jobs.iter().any(|other| other.number == number))
}

/// Whether this process runs a job: that takes commands from when all its nodes are there until it has ended.
fn is_launcher(process: u32) -> bool {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().and_then(|word| word.rsplit(|byte| *byte == b'/').next());
    program == Some(b"resurgo".as_slice())
        && words
            .next()
            .is_some_and(|word| [b"run".as_slice(), b"resume"].contains(&word))
}

/// The job with this number.
fn find(jobs: Vec<Job>, number: &OsStr) -> Result<Job, String> {
    let wanted = number.to_str().and_then(|number| number.parse::<u32>().ok());
    jobs.into_iter().find(|job| Some(job.number) == wanted).ok_or_else(|| {
        let shown = one_line(&number.to_string_lossy());
        let none = || match wanted.and_then(jobs::owner) {
            Some(user) => format!("there is no job {shown} of yours: it belongs to user {user}"),
            None if wanted.is_some_and(is_launcher) => {
                format!("job {shown} takes no commands now: it is starting or ending; try again in a moment")
            }
            None => format!("there is no job {shown}; resurgo ps lists them"),
        };
        wanted.and_then(suspend::renumbered).unwrap_or_else(none)
    })
}

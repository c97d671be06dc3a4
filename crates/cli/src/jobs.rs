//! `resurgo ps`, `checkpoint`, `suspend` and `kill`: commands about jobs that run, and those that are suspended.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::{SystemTime, UNIX_EPOCH};

use resurgo_runtime::jobs::{self, Job};
use resurgo_runtime::suspended::Suspended;
use resurgo_runtime::units::readable_duration;
use resurgo_wire::console::{Reply, Request, Status};
use resurgo_wire::node_memory::PROTOCOLS;

use crate::suspend;

/// `resurgo ps`: a table of the caller's jobs on this machine.
pub fn ps(arguments: Vec<OsString>) -> i32 {
    if let Some(argument) = arguments.first() {
        return usage(&format!("ps takes no arguments, not {:?}", argument.display()));
    }
    let jobs = match jobs::list() {
        Ok(jobs) => jobs,
        Err(error) => return failed(&format!("cannot list the jobs: {error}")),
    };
    let titles = [
        "JOB", "RANKS", "PROTOCOL", "TIME", "RESTARTS", "IMAGES", "LAST", "COMMAND",
    ];
    println!("{}", line(titles.map(String::from)));
    for job in jobs {
        // A job that ends meanwhile is not shown.
        if let Ok(Reply::Status(status)) = jobs::ask(job, &Request::Status, &mut |_| ()) {
            println!("{}", row(job, &status));
        }
    }
    for job in suspend::registered() {
        println!("{}", row_of_suspended(&job));
    }
    0
}

fn row_of_suspended(job: &Suspended) -> String {
    let about = &job.header.about;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    line([
        about.number.to_string(),
        format!("{} suspended", about.ranks),
        PROTOCOLS[job.header.job.protocol as usize].to_string(),
        time(about.seconds),
        about.restarts.to_string(),
        "-".to_string(),
        time((now - about.unix_time).max(0.0)),
        about.command.replace(char::is_control, " "),
    ])
}

fn time(seconds: f64) -> String {
    readable_duration(std::time::Duration::from_secs_f64(seconds))
}

fn row(job: Job, status: &Status) -> String {
    line([
        job.number.to_string(),
        format!("{} of {}", status.running, status.ranks),
        status.protocol.clone(),
        time(status.seconds),
        status.restarts.to_string(),
        status.images.to_string(),
        status.seconds_since_image.map_or("-".to_string(), time),
        // One line, whatever the arguments are.
        status.command.replace(char::is_control, " "),
    ])
}

fn line([job, ranks, protocol, time, restarts, images, last, command]: [String; 8]) -> String {
    format!("{job:>8}  {ranks:>14}  {protocol:<14} {time:>9}  {restarts:>8}  {images:>7}  {last:>9}  {command}")
}

/// `resurgo checkpoint [JOB]`.
pub fn checkpoint(arguments: Vec<OsString>) -> i32 {
    tell("checkpoint", arguments, &Request::Checkpoint)
}

/// `resurgo suspend [JOB]`.
pub fn suspend(arguments: Vec<OsString>) -> i32 {
    tell("suspend", arguments, &Request::Suspend)
}

/// `resurgo kill JOB`: of a suspended job, removes its files.
pub fn kill(arguments: Vec<OsString>) -> i32 {
    if arguments.is_empty() {
        return usage("kill needs the number of a job; resurgo ps lists them");
    }
    if let [name] = &arguments[..]
        && find("kill", &arguments).is_err()
        && let Ok(job) = suspend::named(name)
    {
        return suspend::forget(&job);
    }
    tell("kill", arguments, &Request::Kill)
}

fn tell(verb: &str, arguments: Vec<OsString>, request: &Request) -> i32 {
    let job = match find(verb, &arguments) {
        Ok(job) => job,
        Err(error) => return usage(&error),
    };
    let shows = io::stderr().is_terminal();
    let mut shown = false;
    let answer = jobs::ask(job, request, &mut |text| {
        shown = shows;
        if shows {
            eprint!("\r\x1b[Kjob {}: {text}", job.number);
        }
    });
    if shown {
        eprint!("\r\x1b[K");
    }
    match answer {
        Ok(Reply::Done(text)) => {
            println!("job {}: {text}", job.number);
            0
        }
        Ok(Reply::Refused(text)) => failed(&format!("job {}: {text}", job.number)),
        Ok(Reply::Status(_) | Reply::Progress(_)) => failed("the job has answered something else"),
        Err(_) if !is_listed(job) => failed(&format!("job {} has ended meanwhile", job.number)),
        Err(error) => failed(&format!("job {} does not answer: {error}", job.number)),
    }
}

fn is_listed(job: Job) -> bool {
    jobs::list().is_ok_and(|jobs| jobs.iter().any(|other| other.number == job.number))
}

/// The job that is meant: by its number, or the only one there is.
fn find(verb: &str, arguments: &[OsString]) -> Result<Job, String> {
    let jobs = jobs::list().map_err(|error| format!("cannot list the jobs: {error}"))?;
    match arguments {
        [] => match jobs[..] {
            [job] => Ok(job),
            [] => Err("there is no job".to_string()),
            _ => Err(format!(
                "there are {} jobs: say which; resurgo ps lists them",
                jobs.len()
            )),
        },
        [number] => {
            let wanted = number.to_str().and_then(|number| number.parse::<u32>().ok());
            jobs.into_iter().find(|job| Some(job.number) == wanted).ok_or_else(|| {
                let none = || format!("there is no job {}; resurgo ps lists them", number.display());
                wanted.and_then(suspend::renumbered).unwrap_or_else(none)
            })
        }
        _ => Err(format!("{verb} takes the number of one job")),
    }
}

fn usage(text: &str) -> i32 {
    eprintln!("resurgo: {text}");
    i32::from(crate::USAGE)
}

fn failed(text: &str) -> i32 {
    eprintln!("resurgo: {text}");
    1
}

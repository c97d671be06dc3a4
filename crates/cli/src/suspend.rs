//! Suspended jobs: `resurgo resume`, and finding the job that the user means.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use resurgo_runtime::suspended::{self, Error, FILE, Origin, Suspended};
use resurgo_store::own_directory::{Directory, Trust};

use crate::check::Refusal;
use crate::diagnosis::shim;
use crate::fetch::Wanted;
use crate::options::{self, Options, ProgramOptions, Request};
use crate::run;

/// The directory of links to the directories of suspended jobs.
pub fn registry() -> PathBuf {
    shim::cache().join("suspended")
}

/// The suspended jobs that links lead to, ordered by number.
pub fn registered() -> Vec<Suspended> {
    let mut jobs = linked();
    jobs.retain(|job| !job.is_running);
    jobs
}

/// If job `number` was suspended and now runs under another number: says so.
pub fn renumbered(number: u32) -> Option<String> {
    let runs = |job: &Suspended| job.is_running && job.header.about.had(number);
    linked()
        .iter()
        .any(runs)
        .then(|| format!("job {number} has been resumed, is running and has another number now; resurgo ps lists it"))
}

/// All jobs that links lead to, even those that run again. Removes links that lead to none.
fn linked() -> Vec<Suspended> {
    let mut jobs = Vec::new();
    // Without a registry of the user's own, the user has no suspended jobs.
    let Ok(registry) = Directory::open(&registry(), Trust::Nobody) else {
        return jobs;
    };
    for name in registry.names() {
        let Ok(directory) = registry.read_link(&name) else {
            continue;
        };
        match Suspended::find(&directory) {
            Ok(job) => jobs.push(job),
            // Unless its file system is just not there at present.
            Err(Error::Nothing(_)) if directory.parent().is_some_and(Path::is_dir) => {
                let _ = registry.remove(name);
            }
            Err(_) => {}
        }
    }
    jobs.sort_by_key(|job| job.header.about.number);
    jobs
}

/// The suspended job with this number, or in (or below) this directory.
pub fn named(name: &OsStr) -> Result<Suspended, String> {
    if let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) {
        let mut jobs = linked();
        jobs.retain(|job| job.header.about.had(number));
        let why_not = |_| renumbered(number).unwrap_or_else(|| none(number));
        return match jobs.len() {
            0 => Err(none(number)),
            1 => jobs.remove(0).unless_running().map_err(why_not),
            _ => Err(several(&jobs)),
        };
    }
    let directory = std::path::absolute(name).map_err(|error| format!("{}: {error}", name.display()))?;
    let why_not = match Suspended::find(&directory) {
        // Others may write to this directory; jobs below it have directories of their own.
        Err(why_not @ (Error::Nothing(_) | Error::OtherUser(..) | Error::Untrusted(..))) => why_not,
        found => {
            return found
                .and_then(Suspended::unless_running)
                .map_err(|error| error.to_string());
        }
    };
    let mut jobs = match below(&directory) {
        Err(error) if matches!(why_not, Error::Nothing(_)) => return Err(error),
        jobs => jobs.unwrap_or_default(),
    };
    match jobs.len() {
        0 => Err(why_not.to_string()),
        1 => jobs.remove(0).unless_running().map_err(|error| error.to_string()),
        _ => Err(several(&jobs)),
    }
}

fn none(number: u32) -> String {
    format!(
        "there is no suspended job {number}; resurgo ps lists them, and a directory of image files can be named instead"
    )
}

fn below(directory: &Path) -> Result<Vec<Suspended>, String> {
    Suspended::below(directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

fn several(jobs: &[Suspended]) -> String {
    let directories: Vec<String> = jobs.iter().map(|job| job.directory.display().to_string()).collect();
    format!("several jobs are suspended: name one of {}", directories.join(" and "))
}

/// Several jobs have the same command line: only the user can choose.
fn several_of_command(jobs: &[Suspended]) -> String {
    let directories: Vec<String> = jobs.iter().map(|job| shell_word(&job.directory)).collect();
    let first = directories.first().map_or("", String::as_str);
    format!(
        "several jobs of this command line are suspended, in {}: go on with one of them, as in resurgo resume {first}, or \
         remove it with resurgo kill {first}",
        directories.join(" and ")
    )
}

/// `resurgo resume [options] JOB`.
pub fn resume(arguments: Vec<OsString>) -> i32 {
    let mut found = None;
    let parsed = Wanted::take(arguments).and_then(|(wanted, rest)| {
        options::parse_resume(rest, |name| {
            let brought = wanted.bring(name)?;
            let name = brought
                .as_deref()
                .or(name)
                .ok_or("no job given; resurgo ps lists those that are suspended")?;
            let suspended = named(name)?;
            let origin = suspended.header.about.origin.clone();
            found = Some(suspended);
            Ok(origin)
        })
    });
    match (parsed, found) {
        (Ok(Request::Run(options)), Some(suspended)) => {
            let web = options.output.web;
            run::begin(run::resume(*options, suspended), web)
        }
        (Ok(_), _) => crate::help::print("resume"),
        (Err(error), _) => {
            eprintln!("resurgo: {error}");
            i32::from(crate::check::USAGE)
        }
    }
}

/// Removes the files of the job with this number, or in this directory, if it does not run. Returns a message.
pub fn remove(name: &OsStr) -> Result<String, String> {
    let is_number = name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let directory = std::path::absolute(name).map_err(|error| format!("{}: {error}", name.display()))?;
    match Suspended::find(&directory) {
        // A job that cannot be resumed can still be removed.
        Err(Error::OnlyImages(..) | Error::Defect(..)) if !is_number => forget(&directory, None),
        _ => named(name).and_then(|job| forget(&job.directory, Some(&job))),
    }
}

/// Removes the files of a job in its directory, unless it runs. Returns a message.
pub fn forget(directory: &Path, job: Option<&Suspended>) -> Result<String, String> {
    let shown = directory.display();
    let failed = |error: std::io::Error| format!("{shown}: {error}");
    let own = Directory::open(directory, Trust::Groups).map_err(|error| failed(error.into()))?;
    // While this holds the lock, nobody can resume the job.
    let Some(_lock) = suspended::lock_job(&own).map_err(failed)? else {
        return Err(format!("the job in {shown} is running"));
    };
    let name = own.name().to_os_string();
    // First remove what makes it a job that can be resumed: if this is interrupted, only files are left.
    match own.remove(FILE) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => own.remove_all().map_err(failed)?,
    }
    if let Ok(registry) = Directory::open(&registry(), Trust::Nobody) {
        let _ = registry.remove(name);
    }
    let job = job.map_or("the job".to_string(), |job| {
        job.remove_leftovers();
        format!("job {}", job.header.about.number)
    });
    Ok(format!("{job}: its files in {shown} have been removed"))
}

fn arguments(options: &Options) -> Vec<&[OsString]> {
    options.programs.iter().map(|program| &program.arguments[..]).collect()
}

/// The working directories of programs that were started from `here`.
fn directories(options: &Options, here: &OsStr) -> Vec<PathBuf> {
    let of = |program: &ProgramOptions| {
        let directory = Path::new(here).join(program.directory.as_deref().unwrap_or(Path::new("")));
        // By components, not as written: "run" and "run/" are the same.
        directory.components().collect()
    };
    options.programs.iter().map(of).collect()
}

/// The suspended job of the same command line, for `--resume-if-any`.
pub fn find_same(options: &Options, origin: &Origin) -> Result<Option<Suspended>, Refusal> {
    let refused = |text: String| Refusal::new(2, text);
    let Some(directory) = &options.images.directory else {
        return Ok(None);
    };
    let directory = Path::new(&origin.directory).join(directory);
    let mut same = Vec::new();
    for job in below(&directory).map_err(refused)? {
        let theirs = &job.header.about.origin;
        let variable = |name: &str| {
            let mut variables = theirs.environment.iter();
            variables
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        let Ok(Request::Run(then)) = options::parse(theirs.arguments.clone(), &theirs.configured, variable) else {
            continue;
        };
        if arguments(&then) != arguments(options) {
            continue;
        }
        if directories(&then, &theirs.directory) != directories(options, &origin.directory) {
            if !options.output.quiet {
                let (theirs, own) = (theirs.directory.display(), job.directory.display());
                crate::say::note(&format!(
                    "the job that is suspended in {own} was started in {theirs}: it stays as it is"
                ));
            }
            continue;
        }
        let ranks = |options: &Options| options.programs.iter().map(|program| program.ranks).collect::<Vec<_>>();
        if ranks(&then) != ranks(options) {
            return Err(refused(format!(
                "the job that is suspended in {} has {} ranks, and {} are asked for now; ask for as many, or remove it \
                 with: resurgo kill {}",
                job.directory.display(),
                then.size(),
                options.size(),
                shell_word(&job.directory),
            )));
        }
        if then.protocol != options.protocol {
            return Err(refused(format!(
                "the job that is suspended in {} runs with --protocol {}, and {} is asked for now",
                job.directory.display(),
                then.protocol.name(),
                options.protocol.name(),
            )));
        }
        same.push(job.unless_running().map_err(|error| refused(error.to_string()))?);
    }
    match same.len() {
        0 => Ok(None),
        1 => Ok(same.pop()),
        _ => Err(refused(several_of_command(&same))),
    }
}

/// A path or word in a form that can be typed.
pub fn shell_word(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(byte);
    let text = path.display().to_string();
    if path.as_os_str().as_bytes().iter().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

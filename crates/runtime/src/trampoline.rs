//! `resurgo rank-exec`: what a rank's process does before it becomes the program.
//!
//! The agent cannot do these things for it: they change the calling process, and some of them must
//! happen after the fork.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::personality::{self, Persona};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;
use resurgo_wire::node_memory::{IMAGE_FD, NODE_MEMORY_FD, PMI_FD, SPILL_FD};

/// The hidden verb.
pub const VERB: &str = "rank-exec";

/// Becomes the program; returns only when that fails, with the exit code to use.
///
/// Arguments: process id of the agent, `fixed` or `random` addresses, `soft:hard` limit of open files,
/// working directory, file to execute, and the program's arguments from its name on.
pub fn rank_exec(arguments: Vec<OsString>) -> i32 {
    match try_exec(arguments) {
        Ok(never) => match never {},
        Err((code, text)) => {
            eprintln!("resurgo: {text}");
            code
        }
    }
}

enum Never {}

/// The hidden verb.
pub const RESTORE_VERB: &str = "rank-restore";

/// `resurgo rank-restore`: becomes a rank again from an image file; returns only when that fails, with the exit code to use.
/// The agent has been told why.
///
/// Arguments: process id of the agent, addresses and limit of open files as above, name of the job, the file.
pub fn rank_restore(arguments: Vec<OsString>) -> i32 {
    let [agent, addresses, files, job, path] = arguments.as_slice() else {
        eprintln!("resurgo: {RESTORE_VERB}: there are five arguments");
        return 2;
    };
    match prepare(agent, addresses, files) {
        Ok(()) => resurgo_image::file::restore(path.as_ref(), &|note| check_note(job, path.as_ref(), note)),
        Err((code, text)) => {
            eprintln!("resurgo: {text}");
            code
        }
    }
}

/// A file that somebody has copied over another one may be whole, and still not the image that its name says.
fn check_note(job: &OsStr, path: &Path, note: &str) -> Result<(), String> {
    let note: serde_json::Value = serde_json::from_str(note).unwrap_or_default();
    let name = format!("rank-{}.image-{}", note["rank"], note["image"]);
    if path.file_name() == Some(OsStr::new(&name)) && note["job"].as_str().map(OsStr::new) == Some(job) {
        return Ok(());
    }
    Err(format!(
        "image file {}: it is image {} of rank {} of job {}",
        path.display(),
        note["image"],
        note["rank"],
        note["job"]
    ))
}

fn try_exec(arguments: Vec<OsString>) -> Result<Never, (i32, String)> {
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().ok_or((2, format!("{VERB}: too few arguments")));
    let (agent, addresses, files, directory, path, name) = (next()?, next()?, next()?, next()?, next()?, next()?);
    prepare(&agent, &addresses, &files)?;
    std::env::set_current_dir(&directory)
        .map_err(|error| (126, format!("cannot change to {}: {error}", directory.display())))?;
    let error = Command::new(&path).arg0(name).args(arguments).exec();
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Err((code, format!("cannot execute {}: {error}", path.display())))
}

/// What every life of a rank needs, whatever it begins from.
fn prepare(agent: &OsStr, addresses: &OsStr, files: &OsStr) -> Result<(), (i32, String)> {
    let failed = |what: &str, error: &dyn std::fmt::Display| (126, format!("cannot {what}: {error}"));

    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| failed("ask for a signal when the agent dies", &error))?;
    if agent.to_str() != Some(getppid().to_string().as_str()) {
        return Err((126, "the agent died while this rank was started".to_string()));
    }
    if addresses == "fixed" {
        fix_addresses().map_err(|error| failed("switch off address randomisation", &error))?;
    }
    if let Some((soft, hard)) = files.to_str().and_then(|files| files.split_once(':'))
        && let (Ok(soft), Ok(hard)) = (soft.parse(), hard.parse())
    {
        // A higher limit than inherited does the program no harm.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft, hard);
    }
    close_strangers().map_err(|error| failed("list the open descriptors", &error))?;
    // The launcher reads its signals from a descriptor and blocks them for that; the program gets them delivered.
    SigSet::empty()
        .thread_set_mask()
        .map_err(|error| failed("unblock signals", &error))
}

/// From its next program on this process has its memory at the same addresses in every life. Returns what was before.
fn fix_addresses() -> nix::Result<Persona> {
    let now = personality::get()?;
    personality::set(now | Persona::ADDR_NO_RANDOMIZE)
}

/// Whether address randomisation can be switched off here. The default profiles of container engines forbid it.
pub fn addresses_can_be_fixed() -> bool {
    fix_addresses().and_then(personality::set).is_ok()
}

/// Closes every descriptor but the standard ones and the rank's own, so that the numbers of those which
/// the program opens are the same in every life, whoever started the job.
fn close_strangers() -> io::Result<()> {
    let mut strangers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(fd) = number
            && fd > 2
            && ![PMI_FD, NODE_MEMORY_FD, SPILL_FD, IMAGE_FD].contains(&fd)
        {
            strangers.push(fd);
        }
    }
    for fd in strangers {
        // The descriptor of the listing itself is among them and already closed.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

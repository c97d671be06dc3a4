//! `resurgo rank-exec`: a rank's process before it becomes the program.
//!
//! The agent cannot do these things for it: they change the calling process, and some must happen after the fork.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::OFlag;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::personality::{self, Persona};
use nix::sys::prctl;
use nix::sys::resource::Resource;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use resurgo_wire::node_memory::{PROGRAM_FD, RANK_FDS, SURVIVOR_FD};

use crate::limits;
use crate::note::Note;

/// The hidden verb.
pub const VERB: &str = "rank-exec";

/// Becomes the program; returns only when that fails, with the exit code to use.
///
/// Arguments: process id of the agent; `fixed` or `random` addresses; `soft:hard` limit of open files; the processors
/// to run on (`0,2`; empty: any); `held` if the program's file is open as [`PROGRAM_FD`], or `path`; working directory;
/// path of the file to execute; and the program's arguments from its name on.
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

/// The descriptor of the image file for [`rank_restore`]: a path could lead to another file by now.
pub const IMAGE_FILE_FD: i32 = PROGRAM_FD;

/// The hidden verb.
pub const RESTORE_VERB: &str = "rank-restore";

/// `resurgo rank-restore`: becomes a rank again from an image file; returns only when that fails, with the exit code to use.
/// The agent gets the reason.
///
/// Arguments: process id of the agent, addresses, limit of open files and processors as above; name of the job; digest
/// of the image; why its file cannot be used (empty: it can, and is [`IMAGE_FILE_FD`]); and the file's path, for
/// people.
pub fn rank_restore(arguments: Vec<OsString>) -> i32 {
    let [agent, addresses, files, cpus, job, digest, unusable, path] = arguments.as_slice() else {
        eprintln!("resurgo: {RESTORE_VERB}: there are eight arguments");
        return 2;
    };
    let path: &Path = path.as_ref();
    match prepare(agent, addresses, files, cpus, Some(IMAGE_FILE_FD)) {
        Ok(()) => {
            let file = match unusable.is_empty() {
                true => File::open(format!("/proc/self/fd/{IMAGE_FILE_FD}")),
                false => Err(io::Error::other(unusable.display().to_string())),
            };
            let _ = nix::unistd::close(IMAGE_FILE_FD);
            resurgo_image::file::restore(path, file, digest.as_encoded_bytes(), &|note| {
                check_note(job, path, note)
            })
        }
        Err((code, text)) => {
            eprintln!("resurgo: {text}");
            code
        }
    }
}

/// A file copied over another one may be intact, and still not the image that its name says.
fn check_note(job: &OsStr, path: &Path, note: &str) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default();
    let checked = Note::read(note).and_then(|note| note.must_be(&job.to_string_lossy(), &name.to_string_lossy()));
    checked.map_err(|error| format!("image file {}: {error}", path.display()))
}

fn try_exec(arguments: Vec<OsString>) -> Result<Never, (i32, String)> {
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().ok_or((2, format!("{VERB}: too few arguments")));
    let (agent, addresses, files, cpus, held) = (next()?, next()?, next()?, next()?, next()?);
    let (directory, path, name) = (next()?, next()?, next()?);
    let is_held = held == "held";
    prepare(&agent, &addresses, &files, &cpus, is_held.then_some(PROGRAM_FD))?;
    std::env::set_current_dir(&directory)
        .map_err(|error| (126, format!("cannot change to {}: {error}", directory.display())))?;
    let (file, _held) = to_execute(Path::new(&path), is_held)
        .map_err(|error| (126, format!("cannot look at {}: {error}", path.display())))?;
    let error = Command::new(file).arg0(name).args(arguments).exec();
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Err((code, format!("cannot execute {}: {error}", path.display())))
}

/// The path to execute: the program's own, or that of the held file where its own leads to another file now. The kernel
/// puts the path on the new stack, so its length must not differ between lives.
fn to_execute(path: &Path, is_held: bool) -> io::Result<(PathBuf, Option<File>)> {
    if !is_held {
        return Ok((path.to_path_buf(), None));
    }
    // Opened once more: the program inherits no descriptor of it.
    let directory = Path::new("/proc/self/fd");
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_PATH.bits())
        .open(directory.join(PROGRAM_FD.to_string()))?;
    nix::unistd::close(PROGRAM_FD)?;
    let held = file.metadata()?;
    let is_named = std::fs::metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino()));
    let length = path.as_os_str().len().max(LONGEST_HELD);
    let executed = match is_named {
        true => path.to_path_buf(),
        false => directory.join(file.as_raw_fd().to_string()),
    };
    Ok((lengthened(&executed, length), Some(file)))
}

/// Longer than any path of a held file.
const LONGEST_HELD: usize = 24;

/// The same path, with slashes before its last component up to this length.
fn lengthened(path: &Path, length: usize) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let more = vec![b'/'; length.saturating_sub(bytes.len())];
    match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => OsString::from_vec([&bytes[..slash], &more, &bytes[slash..]].concat()).into(),
        None => path.to_path_buf(),
    }
}

/// The preparations for every life of a rank.
fn prepare(
    agent: &OsStr,
    addresses: &OsStr,
    files: &OsStr,
    cpus: &OsStr,
    kept: Option<i32>,
) -> Result<(), (i32, String)> {
    let failed = |what: &str, error: &dyn std::fmt::Display| (126, format!("cannot {what}: {error}"));

    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| failed("ask for a signal when the agent dies", &error))?;
    if agent.to_str() != Some(getppid().to_string().as_str()) {
        return Err((126, "the agent died while this rank was started".to_string()));
    }
    if addresses == "fixed" {
        fix_addresses().map_err(|error| failed("switch off address randomisation", &error))?;
    }
    bind(cpus);
    if let Some((soft, hard)) = files.to_str().and_then(|files| files.split_once(':'))
        && let (Ok(soft), Ok(hard)) = (soft.parse(), hard.parse())
    {
        // The launcher has raised its own.
        let _ = limits::set(Resource::RLIMIT_NOFILE, soft, hard);
    }
    close_strangers(kept).map_err(|error| failed("list the open descriptors", &error))?;
    // The launcher blocks its signals to read them from a descriptor; the program gets them delivered.
    SigSet::empty()
        .thread_set_mask()
        .map_err(|error| failed("unblock signals", &error))
}

/// Binds this process, and all that it starts, to these processors, if there are any. If they were taken away since
/// the job began, it runs where it may: that is better than not at all.
fn bind(cpus: &OsStr) {
    let mut set = CpuSet::new();
    let numbers = cpus.to_str().into_iter().flat_map(|cpus| cpus.split(','));
    let numbers: Vec<usize> = numbers.filter_map(|cpu| cpu.parse().ok()).collect();
    for cpu in &numbers {
        let _ = set.set(*cpu);
    }
    if !numbers.is_empty() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Gives this process's next program the same addresses in every life. Returns the previous setting.
fn fix_addresses() -> nix::Result<Persona> {
    let now = personality::get()?;
    personality::set(now | Persona::ADDR_NO_RANDOMIZE)
}

/// Whether address randomisation can be switched off here. The default profiles of container engines forbid it.
pub fn addresses_can_be_fixed() -> bool {
    fix_addresses().and_then(personality::set).is_ok()
}

/// Whether this process asks for the legacy layout of addresses (`setarch -L`) for its next program.
pub fn has_legacy_layout() -> bool {
    personality::get().is_ok_and(|now| now.contains(Persona::ADDR_COMPAT_LAYOUT))
}

/// Sets whether the next programs of this process and its children have the legacy layout of addresses.
pub fn set_legacy_layout(legacy: bool) -> nix::Result<()> {
    let mut wanted = personality::get()?;
    wanted.set(Persona::ADDR_COMPAT_LAYOUT, legacy);
    personality::set(wanted).map(|_| ())
}

/// Closes every descriptor but the standard ones, the `kept` one and the rank's own. Then the program's descriptors
/// have the same numbers in every life.
fn close_strangers(kept: Option<i32>) -> io::Result<()> {
    let mut strangers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(fd) = number
            && fd > 2
            && !RANK_FDS.contains(&fd)
            && fd != SURVIVOR_FD
            && kept != Some(fd)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_lengthened_to_the_same_file() {
        for (path, length, expected) in [
            ("/tmp/app", 11, "/tmp////app"),
            ("/app", 6, "///app"),
            ("/tmp/app", 3, "/tmp/app"),
            ("/proc/self/fd/3", 17, "/proc/self/fd///3"),
        ] {
            assert_eq!(lengthened(Path::new(path), length), Path::new(expected).to_path_buf());
            assert_eq!(lengthened(Path::new(path), length).as_os_str(), expected);
        }
    }
}

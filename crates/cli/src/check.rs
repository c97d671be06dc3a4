//! Checks before anything is started: the program's file, its directory, the limits.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use resurgo_protocol::Protocol;
use resurgo_runtime::trampoline::addresses_can_be_fixed;
use resurgo_runtime::{FILES_PER_RANK, OWN_FILES};
use resurgo_store::own_directory::may_hold;

/// Exit status of a wrong command line or a job that cannot be started.
pub const USAGE: u8 = 2;

/// A reason not to start, and the exit status that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub text: String,
}

impl Refusal {
    pub fn new(code: i32, text: impl Into<String>) -> Refusal {
        Refusal {
            code,
            text: text.into(),
        }
    }
}

/// Checks that image files can be below `directory`, as far as that is known before it is made.
pub fn image_directory(directory: &Path) -> Result<(), Refusal> {
    match std::fs::metadata(directory) {
        Ok(metadata) if !metadata.is_dir() => Err(Refusal::new(
            2,
            format!(
                "--checkpoint-dir {} is a file, not a directory; name another",
                directory.display()
            ),
        )),
        _ => may_hold(directory)
            .map_err(|error| Refusal::new(2, format!("--checkpoint-dir {}: {error}", directory.display()))),
    }
}

/// The file that `name` stands for, found as a shell would from `directory` with the search path `path`.
pub fn find_program(name: &OsStr, directory: &Path, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        let file: PathBuf = directory.join(name).components().collect();
        return match why_not(&file) {
            None => Ok(file),
            Some(refusal) => Err(refusal),
        };
    }
    let mut unusable = None;
    for entry in path.map(std::env::split_paths).into_iter().flatten() {
        let file = directory.join(entry).join(name);
        match why_not(&file) {
            None => return Ok(file),
            Some(refusal) if refusal.code == 126 => unusable = unusable.or(Some(refusal)),
            Some(_) => {}
        }
    }
    Err(unusable.unwrap_or_else(|| {
        let mut text = format!("{}: no such program on the search path", name.display());
        if directory.join(name).is_file() {
            text += &format!("; did you mean ./{}?", name.display());
        }
        Refusal::new(127, text)
    }))
}

fn why_not(file: &Path) -> Option<Refusal> {
    let shown = file.display();
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(Refusal::new(126, format!("{shown}: permission denied")))
        }
        Err(_) => Some(Refusal::new(127, format!("{shown}: no such file"))),
        Ok(metadata) if metadata.is_dir() => Some(Refusal::new(126, format!("{shown} is a directory"))),
        Ok(metadata) if !metadata.is_file() => Some(Refusal::new(126, format!("{shown} is not a file"))),
        Ok(_) if access(file, AccessFlags::X_OK).is_err() => Some(Refusal::new(
            126,
            format!("{shown} is not executable; {}", remedy(file)),
        )),
        Ok(_) => None,
    }
}

/// What makes a program of this file.
fn remedy(file: &Path) -> String {
    let shown = file.display();
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("py") => format!("start its interpreter: python3 {shown}"),
        Some("c") => format!("compile it: mpicc {shown}"),
        Some("cc" | "cpp" | "cxx" | "C") => format!("compile it: mpicxx {shown}"),
        Some("f" | "F" | "f90" | "F90" | "f03" | "f08" | "F08") => format!("compile it: mpifort {shown}"),
        _ => "chmod +x it, or start its interpreter".to_string(),
    }
}

/// Checks that the working directory exists.
pub fn directory(directory: &Path) -> Result<PathBuf, Refusal> {
    let refused = |why: &str| Refusal::new(2, format!("working directory {}: {why}", directory.display()));
    match std::fs::canonicalize(directory) {
        Ok(found) if found.is_dir() => Ok(directory.to_path_buf()),
        Ok(_) => Err(refused("not a directory")),
        Err(error) => Err(refused(&error.to_string())),
    }
}

/// Checks the limit of open files, and returns the limit (soft, hard) that the ranks will have.
pub fn open_files(size: usize) -> Result<(u64, u64), Refusal> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|error| Refusal::new(2, format!("cannot read the limit of open files: {error}")))?;
    let needed = OWN_FILES + FILES_PER_RANK * size as u64;
    if hard < needed {
        return Err(Refusal::new(
            2,
            format!(
                "{size} ranks need {needed} open files, and the hard limit is {hard}; raise it (ulimit -Hn {needed})"
            ),
        ));
    }
    Ok((soft, hard))
}

/// Whether ranks have the same addresses in every life. A rank that recovers alone needs that: other ranks know its
/// addresses from messages, and its repeated messages are compared.
pub fn fixed_addresses(protocol: Protocol) -> Result<bool, Refusal> {
    if protocol == Protocol::None || addresses_can_be_fixed() {
        return Ok(protocol != Protocol::None);
    }
    if !protocol.recovers_alone() {
        return Ok(false);
    }
    let protocol = protocol.name();
    Err(Refusal::new(
        2,
        format!(
            "--protocol {protocol} needs the same addresses in every life of a rank, and address randomisation cannot be switched off here: \
             personality(ADDR_NO_RANDOMIZE) is forbidden, as it is by default in containers. Start the container with \
             --security-opt seccomp=unconfined (or a profile that allows it), or run with --protocol blocking"
        ),
    ))
}

/// Bytes that MPICH 5.0.2 has in /dev/shm for each rank.
const SHARED_MEMORY_OF_RANK: u64 = 1_061_440;

/// What to tell the user if that is more than is free: the kernel would end ranks by SIGBUS.
pub fn shared_memory(size: usize) -> Option<String> {
    let about = statvfs("/dev/shm").ok()?;
    let (free, needed) = (
        about.blocks_available() * about.fragment_size(),
        SHARED_MEMORY_OF_RANK * size as u64,
    );
    let [shown, wanted] = [free, needed].map(resurgo_runtime::units::readable_size);
    (free < needed).then(|| {
        format!(
            "{shown} are free in /dev/shm, and MPICH takes {wanted} of it for {size} ranks: they may be killed by SIGBUS. Make it larger \
             (docker run --shm-size=1g; mount -o remount,size=1g /dev/shm)"
        )
    })
}

/// The value of `name` in an environment, the last one when there are several.
pub fn variable<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    environment
        .iter()
        .rev()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        let root = Path::new("/");
        assert_eq!(find_program("/bin/sh".as_ref(), root, None), Ok("/bin/sh".into()));
        assert_eq!(find_program("bin/sh".as_ref(), root, None), Ok("/bin/sh".into()));
        let path = OsStr::new("/nowhere:/usr/bin");
        assert_eq!(
            find_program("env".as_ref(), root, Some(path)),
            Ok("/usr/bin/env".into())
        );
        for (name, code) in [
            ("./nothing", 127),
            ("nothing-of-the-kind", 127),
            ("/etc/passwd", 126),
            ("/etc", 126),
        ] {
            let refusal = find_program(name.as_ref(), root, Some(path)).unwrap_err();
            // As root, a file without any execute bit is refused too.
            assert_eq!(refusal.code, code, "{refusal:?}");
        }
    }

    #[test]
    fn whoever_names_a_source_file_learns_how_to_make_a_program_of_it() {
        for (name, expected) in [
            ("heat.c", "mpicc heat.c"),
            ("a.b.cpp", "mpicxx a.b.cpp"),
            ("x.f90", "mpifort x.f90"),
            ("pi.py", "python3 pi.py"),
            ("run.sh", "chmod +x"),
            ("program", "chmod +x"),
        ] {
            assert!(remedy(Path::new(name)).contains(expected), "{name}");
        }
    }

    #[test]
    fn limits_are_checked() {
        assert!(open_files(1).is_ok());
    }
}

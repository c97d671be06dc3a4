//! Programs that another program runs: scripts and interpreters.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A program that runs others, and is no MPI program itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// Python, with this file: the MPI library depends on its modules.
    Python(PathBuf),
    /// A program that may start or load anything.
    Other,
}

/// Interpreters and commands that start others.
const RUNNERS: &[&str] = &[
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "csh",
    "tcsh",
    "fish",
    "busybox",
    "env",
    "nice",
    "ionice",
    "chrt",
    "time",
    "timeout",
    "nohup",
    "stdbuf",
    "setarch",
    "taskset",
    "numactl",
    "setsid",
    "strace",
    "ltrace",
    "gdb",
    "gdbserver",
    "lldb",
    "valgrind",
    "valgrind.bin",
    "perf",
    "rr",
    "heaptrack",
    "perl",
    "ruby",
    "julia",
    "R",
    "Rscript",
    "lua",
    "node",
    "java",
    "octave",
    "octave-cli",
    "tclsh",
];

/// How an ELF program without an MPI library of its own might get one.
pub fn runner(program: &Path) -> Option<Runner> {
    let name = program.file_name()?.to_str()?;
    if is_python(name) {
        return Some(Runner::Python(program.to_path_buf()));
    }
    let real = std::fs::canonicalize(program).ok();
    let real = real
        .as_deref()
        .and_then(Path::file_name)
        .and_then(OsStr::to_str)
        .unwrap_or(name);
    let known = |name: &str| {
        let base = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        RUNNERS.contains(&name) || RUNNERS.contains(&base)
    };
    if is_python(real) {
        return Some(Runner::Python(program.to_path_buf()));
    }
    (known(name) || known(real)).then_some(Runner::Other)
}

fn is_python(name: &str) -> bool {
    ["python", "pypy"].iter().any(|start| {
        name.strip_prefix(start)
            .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 't'))
    })
}

/// The interpreter of a script, if `file` is one: its path, searched on `path` when `env` starts it.
pub fn interpreter(file: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let mut start = [0u8; 512];
    let length = std::fs::File::open(file).ok()?.read(&mut start).ok()?;
    let line = start[..length]
        .split(|byte| *byte == b'\n')
        .next()?
        .strip_prefix(b"#!")?;
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    std::env::split_paths(path?)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// The interpreter of a launcher as Python installers write it when the path is long. It is a shell that executes
/// `'''exec' /path/python "$0" "$@"`.
pub fn python_behind_shell(file: &Path) -> Option<PathBuf> {
    let mut start = [0u8; 1024];
    let length = std::fs::File::open(file).ok()?.read(&mut start).ok()?;
    let text = String::from_utf8_lossy(&start[..length]).into_owned();
    let line = text.lines().nth(1)?.strip_prefix("'''exec' ")?.to_string();
    let python = line.trim_start().trim_start_matches('"');
    let end = python.find(['"', ' '])?;
    Some(PathBuf::from(&python[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runners_are_known_by_name() {
        for name in ["python", "python3", "python3.11", "/x/bin/python3.13t", "pypy3"] {
            assert!(matches!(runner(Path::new(name)), Some(Runner::Python(_))), "{name}");
        }
        assert_eq!(runner(Path::new("/nowhere/bash")), Some(Runner::Other));
        assert_eq!(runner(Path::new("/nowhere/perl5.36")), Some(Runner::Other));
        for name in ["pythonic", "python-config", "hostname", "cg"] {
            assert_eq!(runner(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn interpreters_are_read_from_the_first_line() {
        let file = std::env::temp_dir().join(format!("resurgo-script-{}", std::process::id()));
        for (text, expected) in [
            ("#!/bin/sh\nx", Some("/bin/sh")),
            ("#! /opt/v/bin/python3 -u\n", Some("/opt/v/bin/python3")),
            ("#!/usr/bin/env -S A=1 sh -e\n", Some("/usr/bin/sh")),
            ("no script", None),
        ] {
            std::fs::write(&file, text).unwrap();
            let found = interpreter(&file, Some(OsStr::new("/nowhere:/usr/bin")));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{text}");
        }
        std::fs::write(&file, "#!/bin/sh\n'''exec' /very/long/python \"$0\" \"$@\"\n' '''\n").unwrap();
        assert_eq!(
            python_behind_shell(&file).as_deref(),
            Some(Path::new("/very/long/python"))
        );
        std::fs::remove_file(&file).unwrap();
    }
}

//! `resurgo bench`: the papers' experiments, which are Python programs beside the binary.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::near::nearest;

/// Below the directory that contains `bin`, in an installation and in a built source tree.
const SCRIPT: &str = "share/resurgo/bench/paper.py";
const PYTHON: &str = "python3";

/// `resurgo bench [paper FIGURE...]`; returns only when it cannot begin.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let figures = match arguments.split_first() {
        None => &[],
        Some((word, rest)) if word == "paper" => rest,
        Some((word, _)) if word == "-h" || word == "--help" => return crate::help::print("bench"),
        Some((word, _)) => {
            let hint = nearest(&word.to_string_lossy(), &["paper"]);
            let hint = hint.map_or("resurgo bench lists what there is".to_string(), |near| {
                format!("did you mean \"resurgo bench {near}\"?")
            });
            eprintln!("resurgo: there is no \"resurgo bench {}\"; {hint}", word.display());
            return i32::from(crate::check::USAGE);
        }
    };
    let error = match std::env::current_exe() {
        Err(error) => format!("bench: cannot find out where resurgo is installed: {error}"),
        Ok(binary) => match script(&binary) {
            Err(missing) => format!(
                "bench: {} is missing: install Resurgo again, with make install",
                missing.display()
            ),
            Ok(script) => {
                let error = Command::new(PYTHON)
                    .arg(script)
                    .args(figures)
                    .env("RESURGO", &binary)
                    .env("PYTHONDONTWRITEBYTECODE", "1")
                    .exec();
                format!("bench needs {PYTHON} (3.10 or later) in PATH: {error}")
            }
        },
    };
    eprintln!("resurgo: {error}");
    1
}

/// The program that measures, or where it should be.
fn script(binary: &Path) -> Result<PathBuf, PathBuf> {
    let prefix = binary.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let script = prefix.join(SCRIPT);
    if script.is_file() { Ok(script) } else { Err(script) }
}

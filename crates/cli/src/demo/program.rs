//! The program of the demonstration: in C, if there is a compiler for an MPI library that can be served, otherwise in
//! Python.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check;
use crate::diagnosis;
use crate::environment::Variables;

/// Below the directory that contains `bin`, in an installation and in a built source tree.
const SOURCES: &str = "share/resurgo/tests/programs";

pub struct Program {
    /// Without its arguments.
    pub command: Vec<OsString>,
    /// The same, for people.
    pub shown: &'static str,
    pub about: String,
    /// How users of that language run a program of their own.
    pub own: Own,
    /// Of MPICH or Intel MPI, for comparison.
    pub mpiexec: Option<PathBuf>,
    /// Rows and columns, and time steps, for some seconds.
    pub side: u32,
    pub steps: u64,
}

/// A user's own program, in the language of the demonstration's.
#[derive(Clone, Copy)]
pub struct Own {
    /// What comes before it can run.
    pub build: Option<&'static str>,
    pub run: &'static str,
}

/// Below the directory that contains `bin`.
pub const EXAMPLES: &str = "share/resurgo/examples";

/// Finds the program, or builds it in `directory`.
///
/// # Errors
/// There is neither; what to install is said.
pub fn find(resurgo: &Path, directory: &Path) -> Result<Program, String> {
    let sources = prefix(resurgo).join(SOURCES);
    if !sources.join("heat.c").is_file() {
        let sources = sources.display();
        return Err(format!(
            "{sources}/heat.c is missing: install Resurgo again, with make install"
        ));
    }
    let variables: Variables = std::env::vars_os().collect();
    let in_c = of_c(&sources, directory, &variables);
    in_c.or_else(|why_not_c| {
        let found = of_python(&sources, directory, &variables);
        found.map_err(|why_not_python| format!("{why_not_c}; {why_not_python}; {}", diagnosis::INSTALL))
    })
}

/// The directory that contains `bin`, with this `resurgo`.
pub fn prefix(resurgo: &Path) -> &Path {
    resurgo.parent().and_then(Path::parent).unwrap_or(Path::new("/"))
}

/// The file of a program on the search path.
fn on_path(name: &str, directory: &Path, variables: &Variables) -> Option<PathBuf> {
    let path = check::variable(variables, "PATH");
    check::find_program(name.as_ref(), directory, path).ok()
}

/// Whether programs like this one can be protected; otherwise why not.
fn check_library(command: &[OsString], directory: &Path, variables: &Variables) -> Result<(), String> {
    let found = diagnosis::diagnose(command[0].as_ref(), &command[1..], directory, variables)?;
    match found.library {
        Some(_) => Ok(()),
        None => Err(found.note.unwrap_or_else(|| "it has no MPI library".to_string())),
    }
}

/// The mpiexec on the search path, if it is Hydra's: others cannot start programs of MPICH.
fn mpiexec(directory: &Path, variables: &Variables) -> Option<PathBuf> {
    let file = on_path("mpiexec", directory, variables)?;
    let told = Command::new(&file).arg("--version").output().ok()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    (told.contains("HYDRA") || told.contains("Intel")).then_some(file)
}

fn of_c(sources: &Path, directory: &Path, variables: &Variables) -> Result<Program, String> {
    let compiler = on_path("mpicc", directory, variables).ok_or("there is no mpicc on the search path")?;
    let heat = directory.join("heat");
    let built = Command::new(&compiler)
        // On every processor the same numbers, bit for bit.
        .args(["-O2", "-ffp-contract=off", "-o"])
        .arg(&heat)
        .arg(sources.join("heat.c"))
        .arg("-lm")
        .output()
        .map_err(|error| format!("{}: {error}", compiler.display()))?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        let first = said.lines().next().unwrap_or("no reason is given");
        return Err(format!("{} does not build programs: {first}", compiler.display()));
    }
    let command = vec![heat.into_os_string()];
    check_library(&command, directory, variables)?;
    Ok(Program {
        command,
        shown: "heat",
        about: format!("in C, built with {}", compiler.display()),
        own: Own {
            build: Some("mpicc -o app app.c"),
            run: "./app",
        },
        mpiexec: mpiexec(directory, variables),
        side: 512,
        steps: 10_000,
    })
}

fn of_python(sources: &Path, directory: &Path, variables: &Variables) -> Result<Program, String> {
    let python = on_path("python3", directory, variables).ok_or("there is no python3")?;
    let found = Command::new(&python).args(["-c", "import mpi4py"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        return Err(format!("{} has no mpi4py", python.display()));
    }
    let command = vec![
        python.clone().into_os_string(),
        sources.join("heat.py").into_os_string(),
    ];
    check_library(&command, directory, variables)?;
    Ok(Program {
        command,
        shown: "python3 heat.py",
        about: format!("in Python, run by {}", python.display()),
        own: Own {
            build: None,
            run: "python3 app.py",
        },
        mpiexec: mpiexec(directory, variables),
        side: 64,
        steps: 2_000,
    })
}

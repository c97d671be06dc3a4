//! Programs of a job: their files, MPI libraries and environments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use resurgo_runtime::suspended::Origin;
use resurgo_wire::control::Program;

use crate::check::{self, Refusal};
use crate::diagnosis;
use crate::environment;
use crate::options::{Options, ProgramOptions};

/// Finds a program's file and MPI library and makes its environment. `search`: directories to search for a program
/// named without a directory, instead of the environment's. Also returns what the user should know.
pub fn prepare(
    options: &Options,
    program: &ProgramOptions,
    origin: &Origin,
    search: Option<&OsStr>,
) -> Result<(Program, Option<String>), Refusal> {
    let here = Path::new(&origin.directory);
    let directory = check::directory(&here.join(program.directory.as_deref().unwrap_or(Path::new(""))))?;
    let mut variables = environment::of_user(origin.environment.clone(), options, program);
    let path = search
        .or_else(|| check::variable(&variables, "PATH"))
        .map(ToOwned::to_owned)
        .or_else(|| check::variable(&origin.environment, "PATH").map(ToOwned::to_owned));
    let file = check::find_program(&program.arguments[0], &directory, path.as_deref())?;
    let diagnosis = diagnosis::diagnose(&file, &program.arguments[1..], &directory, &variables)
        .map_err(|error| Refusal::new(2, error))?;
    let provider = provider_path()?;
    diagnosis.prepare(&mut variables, &provider);
    let left_out = environment::leave_out_what_crashes(&mut variables);
    if options.ends.survives {
        environment::prepend_path(
            &mut variables,
            "LD_PRELOAD",
            &[preloaded(&provider, SURVIVORS, "--ft")?],
        );
        // A target that reads a large message by itself, and dies, would leave its origin waiting in MPI_Finalize.
        environment::set_default(&mut variables, "MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0");
        // The same functions for Python.
        let python = Path::new(&provider).join("python");
        if python.is_dir() {
            environment::prepend_path(&mut variables, "PYTHONPATH", &[python.into_os_string()]);
        }
    }
    if options.output.reports.trace.is_some() && !diagnosis.is_plain {
        // Before the library of --ft: that calls MPI by other names.
        environment::prepend_path(&mut variables, "LD_PRELOAD", &[preloaded(&provider, CALLS, "--trace")?]);
    }
    if options.output.verbose {
        let of = if diagnosis.is_plain {
            "none"
        } else {
            "decided when it runs"
        };
        let library = diagnosis.library.as_ref();
        let library = library.map_or(of.to_string(), |(_, library)| library.display().to_string());
        let (file, provider) = (file.display(), provider.display());
        eprintln!("resurgo: program {file}; MPI library: {library}; provider: {provider}");
    }
    let program = Program {
        ranks: program.ranks,
        path: file.into_os_string(),
        arguments: program.arguments.clone(),
        environment: variables,
        directory: directory.into_os_string(),
        is_plain: diagnosis.is_plain,
        survives: options.ends.survives,
        modes: options.ends.modes,
        world: 0,
    };
    let notes: Vec<String> = diagnosis.note.into_iter().chain(left_out).collect();
    Ok((program, (!notes.is_empty()).then(|| notes.join("; "))))
}

/// The library for programs that deal with failures themselves.
const SURVIVORS: &str = "libresurgo-ft.so";
/// The library that names calls of MPI in traces.
const CALLS: &str = "libresurgo-pmpi.so";

/// The file of such a library, which is beside the provider; `option` needs it.
fn preloaded(provider: &OsStr, library: &str, option: &str) -> Result<OsString, Refusal> {
    let directory = Path::new(provider);
    let built = std::env::current_exe()
        .unwrap_or_default()
        .with_file_name(library.replace('-', "_"));
    match [directory.join(library), built].into_iter().find(|path| path.is_file()) {
        Some(path) => loadable(path, library, option),
        None => {
            let text = format!(
                "{option} needs {library} in {}; install Resurgo anew",
                directory.display()
            );
            Err(Refusal::new(2, text))
        }
    }
}

/// The same file under a name for `LD_PRELOAD`, where a space or a colon ends a name.
fn loadable(path: PathBuf, library: &str, option: &str) -> Result<OsString, Refusal> {
    let is_split = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte));
    if !is_split(&path) {
        return Ok(path.into_os_string());
    }
    let directory = diagnosis::shim::directory(&diagnosis::shim::cache(), &[(library, path)]);
    let link = directory.map_err(|error| Refusal::new(2, error))?.join(library);
    if is_split(&link) {
        let text = format!(
            "{option} cannot use {}: the name has a space or a colon; set XDG_CACHE_HOME to a place without",
            link.display()
        );
        return Err(Refusal::new(2, text));
    }
    Ok(link.into_os_string())
}

/// The provider's file in that directory.
pub const PROVIDER: &str = "libresurgo-fi.so";

/// The value for `FI_PROVIDER_PATH`.
pub fn provider_path() -> Result<OsString, Refusal> {
    let mut tried = Vec::new();
    if let Some(directory) = std::env::var_os("RESURGO_FABRIC_DIR") {
        let file = Path::new(&directory).join(PROVIDER);
        if file.is_file() {
            return Ok(directory);
        }
        tried.push(file);
    } else {
        let exe = std::env::current_exe()
            .map_err(|error| Refusal::new(2, format!("cannot find this program's own file: {error}")))?;
        let directory = exe.parent().unwrap_or(Path::new("/"));
        let installed = directory.join("../lib/resurgo");
        if installed.join(PROVIDER).is_file() {
            return Ok(installed.into_os_string());
        }
        tried.push(installed.join(PROVIDER));
        // Where cargo puts the provider, under a name that libfabric does not look for.
        let built = directory.join("libresurgo_fi.so");
        if built.is_file() {
            let links = [(PROVIDER, built)];
            return match diagnosis::shim::directory(&diagnosis::shim::cache(), &links) {
                Ok(directory) => Ok(directory.into_os_string()),
                Err(error) => Err(Refusal::new(2, error)),
            };
        }
        tried.push(built);
    }
    let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
    Err(Refusal::new(
        2,
        format!(
            "the provider library is missing; looked for {}; set RESURGO_FABRIC_DIR to its directory",
            tried.join(" and ")
        ),
    ))
}

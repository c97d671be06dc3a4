//! Programs of a job: their files, MPI libraries and environments.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use resurgo_runtime::suspended::Origin;
use resurgo_wire::control::Program;

use crate::check::{self, Refusal};
use crate::diagnosis;
use crate::environment;
use crate::options::{Options, ProgramOptions};

/// Finds a program's file and MPI library and makes its environment. `search`: directories in which a program without a
/// directory is looked for, instead of those of the environment. Also returns what the user should know.
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
        world: 0,
    };
    Ok((program, diagnosis.note))
}

/// The provider's file there.
pub const PROVIDER: &str = "libresurgo-fi.so";

/// What `FI_PROVIDER_PATH` has to be.
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
        // Where cargo puts it, under a name that libfabric does not look for.
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

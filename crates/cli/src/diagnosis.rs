//! Can this program be protected, and through which MPI library?
//!
//! The program is followed as the dynamic loader would follow it. The outcome is a library that talks through
//! libfabric, and the variables that make the loader take it; or a reason why not.

mod elf;
mod imports;
mod modules;
mod script;
mod search;
pub mod shim;
mod standard;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::check;
use crate::environment::{self, Variables};
use elf::Elf;
pub use elf::build_id;
use modules::Modules;
use script::Runner;
use search::Search;

/// The maker of an MPI library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    Mpich,
    Intel,
}

impl Maker {
    pub fn name(self) -> &'static str {
        match self {
            Maker::Mpich => "MPICH with libfabric",
            Maker::Intel => "Intel MPI",
        }
    }
}

/// An MPI library of this machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Installed {
    pub file: PathBuf,
    /// In words.
    pub whose: &'static str,
    pub is_usable: bool,
}

/// What the diagnosis found out about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// How the diagnosis followed the program, in words.
    pub steps: Vec<String>,
    /// The MPI library; none if the program decides on one only when it runs.
    pub library: Option<(Maker, PathBuf)>,
    /// Directories to put in front of `LD_LIBRARY_PATH`.
    pub library_path: Vec<OsString>,
    /// Something the user should know.
    pub note: Option<String>,
    /// What could not be followed, so that another MPI library may come from there.
    pub unknown: Vec<String>,
    /// It has no MPI and starts nothing that might have: it is only run.
    pub is_plain: bool,
}

pub const INSTALL: &str = "pip install mpich, in an active virtual environment, gives one";

/// A library that claims to be MPI.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Usable(Maker),
    /// MPICH without libfabric.
    WithoutFabric,
    OpenMpi,
}

fn identify(library: &Path) -> Found {
    let marks = elf::defines(
        library,
        &["I_MPI_Check_image_status", "ompi_mpi_comm_self", "fi_getinfo"],
        false,
    );
    let needs_fabric =
        elf::read(library).is_some_and(|elf| elf.needed.iter().any(|name| name.starts_with("libfabric.so")));
    if marks.contains(&"ompi_mpi_comm_self") {
        Found::OpenMpi
    } else if marks.contains(&"I_MPI_Check_image_status") {
        Found::Usable(Maker::Intel)
    } else if needs_fabric || marks.contains(&"fi_getinfo") {
        Found::Usable(Maker::Mpich)
    } else {
        Found::WithoutFabric
    }
}

/// Names of MPI libraries that can be served, as programs ask for them.
fn is_mpi(name: &str) -> bool {
    ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.0", "libmpi_abi.so.1"].contains(&name)
}

/// Names of MPI libraries with another binary interface.
fn is_foreign_mpi(name: &str) -> bool {
    let other = ["libmpi.so", "libmpich.so", "libmpi_abi.so", "libmsmpi.so", "libpmpi.so"];
    !is_mpi(name) && other.iter().any(|start| name.starts_with(start))
}

/// Examines the file `program`, which ranks with this environment are to run in `directory` with these arguments.
pub fn diagnose(
    program: &Path,
    arguments: &[OsString],
    directory: &Path,
    variables: &Variables,
) -> Result<Diagnosis, String> {
    let search = Search::of(variables);
    let path = check::variable(variables, "PATH");
    let shown = program.display().to_string();
    let mut steps = Vec::new();
    let mut file = program.to_path_buf();
    let mut arguments = arguments.to_vec();
    for _ in 0..4 {
        let Some(headers) = elf::read(&file) else {
            let next = script::python_behind_shell(&file).or_else(|| script::interpreter(&file, path));
            let Some(next) = next else {
                return Err(format!(
                    "{shown} is neither an ELF program of 64 bits nor a script that names its interpreter"
                ));
            };
            steps.push(format!("{} is a script, run by {}", file.display(), next.display()));
            arguments.insert(0, file.into_os_string());
            file = next;
            continue;
        };
        return match follow(&file, &headers, &[], &search, &mut steps)? {
            Some(mut diagnosis) => {
                diagnosis.steps = steps;
                Ok(diagnosis)
            }
            None => match script::runner(&file) {
                Some(Runner::Python(python)) => {
                    let modules = modules::follow(&python, &arguments, directory, variables);
                    of_python(&python, &headers.rpath, modules, variables, &search, steps)
                }
                Some(Runner::Other) => Ok(of_runner(&file, &search, steps)),
                None if !elf::defines(&file, &["MPI_Init", "PMPI_Init"], true).is_empty() => Err(format!(
                    "{shown} has MPI linked into it statically, so that no provider can be put under it; \
                     link it with a shared MPI library ({INSTALL})"
                )),
                None => {
                    let linked = if headers.dynamic {
                        "it needs no MPI library"
                    } else {
                        "it is linked statically"
                    };
                    let lacks = missing(&file, &search.closure(&headers, &[])).join("; ");
                    let linked = match lacks.is_empty() {
                        true => linked.to_string(),
                        false => format!("as far as it can be followed: {lacks}"),
                    };
                    let note = format!(
                        "{} is not an MPI program ({linked}): it is run as it is, and not again if it fails",
                        file.display()
                    );
                    Ok(Diagnosis {
                        steps,
                        library: None,
                        library_path: Vec::new(),
                        note: Some(note),
                        unknown: Vec::new(),
                        is_plain: true,
                    })
                }
            },
        };
    }
    Err(format!("{shown} is a script of a script of a script"))
}

/// The libraries that the loader finds for an ELF program; none for anything else.
pub fn libraries(program: &Path, variables: &Variables) -> Vec<PathBuf> {
    let closure = elf::read(program).map(|headers| Search::of(variables).closure(&headers, &[]));
    let found = closure.into_iter().flatten();
    found.filter_map(|(_, file)| file).collect()
}

/// Follows an ELF program, or a module of one with the RPATHs `inherited`, with its libraries. `None`: no MPI among
/// them.
fn follow(
    program: &Path,
    headers: &Elf,
    inherited: &[PathBuf],
    search: &Search,
    steps: &mut Vec<String>,
) -> Result<Option<Diagnosis>, String> {
    let closure = search.closure(headers, inherited);
    let shown = program.display();
    let wanted: Vec<&(String, Option<PathBuf>)> = closure.iter().filter(|(name, _)| is_mpi(name)).collect();
    if wanted.is_empty() {
        if let Some((name, file)) = closure.iter().find(|(name, _)| is_foreign_mpi(name)) {
            return Err(foreign(&shown.to_string(), name, file.as_deref()));
        }
        return Ok(None);
    }
    // A library with Debian's name brings the others along: all must lead to one library.
    let name = wanted
        .iter()
        .map(|(name, _)| name.as_str())
        .find(|name| *name == "libmpich.so.12");
    let name = name.unwrap_or(&wanted[0].0);
    let natural = wanted
        .iter()
        .find(|(other, _)| other == name)
        .and_then(|(_, file)| file.clone());
    steps.push(match &natural {
        Some(file) => format!("{shown} asks for {name}, found as {}", file.display()),
        None => format!("{shown} asks for {name}, which the loader does not find"),
    });
    let mut diagnosis = provide(&shown.to_string(), name, natural.clone(), program, search, steps)?;
    // The loader looks into an RPATH before the directories that are put in front of LD_LIBRARY_PATH.
    let loaded = search.with(&diagnosis.library_path).closure(headers, inherited);
    diagnosis.unknown = missing(program, &loaded);
    let after = loaded
        .into_iter()
        .find_map(|(other, file)| file.filter(|_| other == name));
    let real = |file: &Path| std::fs::canonicalize(file).ok();
    let provided = diagnosis.library.as_ref().and_then(|(_, library)| real(library));
    match (after, natural) {
        (Some(after), Some(natural)) if real(&after) != provided => Err(format!(
            "{shown} asks for {name}, which an RPATH leads to {}: an MPICH without libfabric (UCX only); \
             remove the RPATH (patchelf --remove-rpath), or link with an MPICH that has libfabric ({INSTALL})",
            natural.display()
        )),
        _ => Ok(Some(diagnosis)),
    }
}

/// The libraries of a program or module that the loader does not find, in words.
fn missing(program: &Path, closure: &[(String, Option<PathBuf>)]) -> Vec<String> {
    let names = closure.iter().filter(|(_, file)| file.is_none()).map(|(name, _)| name);
    names
        .map(|name| format!("{name}, which {} needs, is not found", program.display()))
        .collect()
}

fn foreign(program: &str, name: &str, file: Option<&Path>) -> String {
    let whose = if name.starts_with("libmpi.so") {
        "Open MPI's, which has a binary interface of its own and"
    } else {
        "an MPI library that"
    };
    let place = file.map(|file| format!(" ({})", file.display())).unwrap_or_default();
    format!(
        "{program} asks for {name}{place}: that is {whose} cannot be served; build the program for MPICH \
         or the MPI-5 standard interface ({INSTALL})"
    )
}

/// Finds a usable library for a program that asks for `name`.
fn provide(
    shown: &str,
    name: &str,
    natural: Option<PathBuf>,
    program: &Path,
    search: &Search,
    steps: &mut Vec<String>,
) -> Result<Diagnosis, String> {
    let mut trouble = format!("{shown} asks for {name}, and no such library is found");
    if let Some(file) = &natural {
        match identify(file) {
            Found::Usable(maker) => return finish(maker, file.clone(), Vec::new(), search),
            Found::WithoutFabric => {
                trouble = format!(
                    "{shown} asks for {name}, which is {}: an MPICH without libfabric (UCX only)",
                    file.display()
                );
            }
            Found::OpenMpi => return Err(foreign(shown, name, Some(file))),
        }
    }
    // Debian's name is only a name: the library behind it has MPICH's interface.
    let real = if name == "libmpich.so.12" { "libmpi.so.12" } else { name };
    for directory in search.candidates(program) {
        let file = directory.join(real);
        let Found::Usable(maker) = identify(&file) else {
            continue;
        };
        steps.push(format!("{} serves instead", file.display()));
        let path = if real == name {
            directory.clone()
        } else {
            let links = [
                (name, file.clone()),
                (real, file.clone()),
                // The library finds what it needs itself relative to its own place.
                ("mpich", directory.join("mpich")),
            ];
            shim::directory(&shim::cache(), &links)?
        };
        return finish(maker, file, vec![path.into_os_string()], search);
    }
    Err(format!("{trouble}; {INSTALL}"))
}

fn finish(maker: Maker, file: PathBuf, mut library_path: Vec<OsString>, search: &Search) -> Result<Diagnosis, String> {
    if maker == Maker::Intel {
        library_path.extend(libfabric_for(&file, search)?);
    }
    Ok(Diagnosis {
        steps: Vec::new(),
        library: Some((maker, file)),
        library_path,
        note: None,
        unknown: Vec::new(),
        is_plain: false,
    })
}

/// Intel's library opens libfabric by name when it runs. Returns the directory to add, if any.
fn libfabric_for(library: &Path, search: &Search) -> Result<Option<OsString>, String> {
    const NAME: &str = "libfabric.so.1";
    let mut places: Vec<PathBuf> = Vec::new();
    places.extend(std::env::var_os("RESURGO_LIBFABRIC_DIR").map(PathBuf::from));
    places.extend(search.library_path.iter().cloned());
    for lib in search
        .candidates(library)
        .into_iter()
        .chain(library.parent().map(Path::to_path_buf))
    {
        places.push(lib.join("mpich"));
        places.push(lib.join("libfabric"));
        places.push(lib.join("../opt/mpi/libfabric/lib"));
        places.push(lib.join("../libfabric/lib"));
        places.push(lib);
    }
    if let Some(place) = places.into_iter().find(|place| place.join(NAME).is_file()) {
        return Ok(Some(place.into_os_string()));
    }
    if search.system.iter().any(|place| place.join(NAME).is_file()) {
        return Ok(None);
    }
    Err(format!(
        "{} is Intel's, which needs {NAME}, and none is found; {INSTALL}, or name the directory of one in \
         RESURGO_LIBFABRIC_DIR",
        library.display()
    ))
}

/// Follows a Python program. Python loads MPI when a module asks for it: mpi4py, or a module that is linked with MPI.
fn of_python(
    python: &Path,
    rpaths: &[PathBuf],
    modules: Modules,
    variables: &Variables,
    search: &Search,
    mut steps: Vec<String>,
) -> Result<Diagnosis, String> {
    let usual = library_of_python(python, variables, search);
    if let Ok(usual) = &usual {
        steps.extend(usual.steps.iter().cloned());
    }
    let first = usual.as_ref().map_or(&[][..], |usual| &usual.library_path);
    let search = search.with(first);
    let (mut library_path, mut linked, mut note) = (Vec::new(), None, None);
    let mut unknown = unknown_modules(&modules);
    for (file, is_certain) in &modules.libraries {
        let Some(headers) = elf::read(file) else { continue };
        let mut told = Vec::new();
        match follow(file, &headers, rpaths, &search, &mut told) {
            Ok(None) if *is_certain => unknown.extend(missing(file, &search.closure(&headers, rpaths))),
            Ok(None) => {}
            Ok(Some(found)) => {
                steps.extend(told);
                if *is_certain {
                    unknown.extend(found.unknown);
                }
                let new = found.library_path.iter().filter(|path| !library_path.contains(*path));
                library_path.extend(new.cloned().collect::<Vec<_>>());
                linked = linked.or(found.library.filter(|_| *is_certain));
            }
            Err(error) if *is_certain => return Err(error),
            Err(error) => {
                note.get_or_insert(format!("a module that may be loaded cannot be protected: {error}"));
            }
        }
    }
    library_path.extend(first.iter().cloned());
    let library = match (linked, usual) {
        (Some(linked), _) => Some(linked),
        (None, usual) => usual?.library,
    };
    steps.push(modules_in_words(&modules));
    Ok(Diagnosis {
        steps,
        library,
        library_path,
        note,
        unknown,
        is_plain: false,
    })
}

/// In words, what of a program's modules could not be followed.
fn unknown_modules(modules: &Modules) -> Vec<String> {
    let name = |name: &String| format!("the module {name} is imported and not found, so what it loads is not known");
    let mut unknown: Vec<String> = modules.missing.iter().map(name).collect();
    if !modules.is_known {
        unknown.push("no script is named, as in resurgo doctor python script.py".to_string());
    }
    if modules.is_cut {
        unknown.push(format!(
            "there are more Python files than the {} that are read",
            modules.files
        ));
    }
    unknown
}

/// In words, how far a program's modules are known.
fn modules_in_words(modules: &Modules) -> String {
    let read = match modules {
        Modules { is_known: false, .. } => "no script is named, as in resurgo doctor python script.py".to_string(),
        Modules {
            is_cut: true, files, ..
        } => format!("import statements are read, but only of the first {files} Python files"),
        Modules { files, .. } => format!("import statements are read (Python files: {files})"),
    };
    format!(
        "{read}; modules that are loaded in other ways (importlib, ctypes, .pth files, imports of installed modules) are not \
         known: another MPI library that they bring is noticed in MPI_Init, and named"
    )
}

/// Files with a name of an MPI library, Open MPI's among them.
fn libraries_in(places: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    const NAMES: [&str; 5] = [
        "libmpi.so.12",
        "libmpi_abi.so.1",
        "libmpi_abi.so.0",
        "libmpich.so.12",
        "libmpi.so.40",
    ];
    let all = places
        .iter()
        .flat_map(|place| NAMES.iter().map(|name| place.join(name)));
    all.filter(|file| file.is_file())
}

/// The MPI libraries of this machine where programs with this environment find them, each once.
pub fn installed(variables: &Variables) -> Vec<Installed> {
    let search = Search::of(variables);
    let mut places = search.library_path.clone();
    places.extend(search.environments.iter().map(|environment| environment.join("lib")));
    places.extend(search.system.iter().cloned());
    let mut seen = HashSet::new();
    let is_new = |file: &PathBuf| seen.insert(std::fs::canonicalize(file).unwrap_or(file.clone()));
    let about = |file: PathBuf| {
        let (whose, is_usable) = match identify(&file) {
            Found::Usable(maker) => (maker.name(), true),
            Found::WithoutFabric => ("an MPICH without libfabric", false),
            Found::OpenMpi => ("Open MPI", false),
        };
        Installed { file, whose, is_usable }
    };
    libraries_in(&places).filter(is_new).map(about).collect()
}

/// The library that mpi4py finds.
fn library_of_python(python: &Path, variables: &Variables, search: &Search) -> Result<Diagnosis, String> {
    let environment = search::environment_of(python);
    let shown = python.display().to_string();
    let mut places: Vec<PathBuf> = Vec::new();
    // mpi4py looks into its own environment first, and asks the loader only then.
    places.extend(environment.iter().map(|environment| environment.join("lib")));
    places.extend(search.library_path.iter().cloned());
    places.extend(search.environments.iter().map(|environment| environment.join("lib")));
    places.extend(search.system.iter().cloned());
    let mut trouble = None;
    let named = check::variable(variables, "MPI4PY_LIBMPI")
        .map(PathBuf::from)
        .filter(|file| file.is_file());
    for file in named.into_iter().chain(libraries_in(&places)) {
        match identify(&file) {
            Found::Usable(maker) => {
                let step = format!("{shown} is Python, whose modules will find {}", file.display());
                let path = file.parent().map(|directory| directory.as_os_str().to_owned());
                let mut diagnosis = finish(maker, file, path.into_iter().collect(), search)?;
                diagnosis.steps.push(step);
                return Ok(diagnosis);
            }
            Found::WithoutFabric => {
                trouble.get_or_insert(format!("{} is an MPICH without libfabric (UCX only)", file.display()));
            }
            Found::OpenMpi => {
                trouble.get_or_insert(format!("{} is Open MPI's, which cannot be served", file.display()));
            }
        }
    }
    let trouble = trouble.unwrap_or_else(|| "no MPI library is found for it".to_string());
    Err(format!("{shown} is Python, and {trouble}; {INSTALL}"))
}

/// Prepares a shell or the like for any program that it may start.
fn of_runner(file: &Path, search: &Search, mut steps: Vec<String>) -> Diagnosis {
    let name = file.display();
    steps.push(format!(
        "{name} starts or loads other programs, which cannot be known beforehand"
    ));
    let mut diagnosis = Diagnosis {
        steps,
        library: None,
        library_path: Vec::new(),
        note: None,
        unknown: Vec::new(),
        is_plain: false,
    };
    let environment = search.environments.iter().map(|environment| environment.join("lib"));
    let usable = environment
        .flat_map(|lib| ["libmpi.so.12", "libmpi_abi.so.1"].map(|name| lib.join(name)))
        .find_map(|file| match identify(&file) {
            Found::Usable(maker) => Some((maker, file)),
            _ => None,
        });
    if let Some((maker, file)) = usable
        && let Some(lib) = file.parent().map(|lib| lib.as_os_str().to_owned())
        && let Ok(found) = finish(maker, file, vec![lib], search)
    {
        diagnosis.library_path = found.library_path;
    }
    diagnosis.note = Some(format!(
        "{name} is no MPI program itself; what it starts must use MPICH or Intel MPI with libfabric to be protected"
    ));
    diagnosis
}

impl Diagnosis {
    /// Puts the variables that lead MPI to the provider into `variables`.
    pub fn prepare(&self, variables: &mut Variables, provider_path: &OsString) {
        if !self.library_path.is_empty() {
            environment::prepend_path(variables, "LD_LIBRARY_PATH", &self.library_path);
        }
        environment::set(variables, "FI_PROVIDER_PATH", provider_path);
        // Without this, libfabric lists its own providers first and MPI takes the first that will do.
        environment::set(variables, "FI_PROVIDER", "resurgo");
        // A program that decides by itself gets what either library needs.
        let maker = self.library.as_ref().map(|(maker, _)| *maker);
        if maker != Some(Maker::Intel) {
            environment::set(variables, "MPIR_CVAR_CH4_NETMOD", "ofi");
            // PMI says it too: every rank is a node of its own. But for ranks of other worlds MPICH 5 compares host
            // names, which are all equal. Ranks with different views of the placement then wait for one another
            // forever.
            environment::set(variables, "MPIR_CVAR_NOLOCAL", "1");
        }
        if maker != Some(Maker::Mpich) {
            environment::set(variables, "I_MPI_FABRICS", "ofi");
            environment::set(variables, "I_MPI_OFI_PROVIDER", "resurgo");
        }
        environment::set_default(variables, "PYTHONHASHSEED", "0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnose_here(program: &str) -> Result<Diagnosis, String> {
        let variables = vec![("PATH".into(), "/usr/bin:/bin".into())];
        diagnose(Path::new(program), &[], Path::new("/"), &variables)
    }

    #[test]
    fn what_is_no_mpi_program_is_run_with_a_note() {
        let found = diagnose_here("/usr/bin/env").unwrap();
        assert!(found.note.is_some() && !found.is_plain);
        let found = diagnose_here("/bin/ls").unwrap();
        assert!(found.note.unwrap().contains("not an MPI program") && found.is_plain);
        let error = diagnose_here("/etc/passwd").unwrap_err();
        assert!(error.contains("neither an ELF program"), "{error}");
    }

    #[test]
    fn a_shell_is_run_with_a_note() {
        let found = diagnose_here("/bin/sh").unwrap();
        assert_eq!(found.library, None);
        assert!(found.note.unwrap().contains("no MPI program itself"));
    }

    #[test]
    fn libraries_that_are_not_found_are_named() {
        let closure: [(String, Option<PathBuf>); 2] = [
            ("liba.so.1".to_string(), Some("/l/liba.so.1".into())),
            ("libb.so.2".to_string(), None),
        ];
        let told = missing(Path::new("/x/app"), &closure);
        assert_eq!(told, ["libb.so.2, which /x/app needs, is not found"]);
    }

    #[test]
    fn what_of_python_cannot_be_followed_is_told() {
        let known = Modules {
            is_known: true,
            files: 3,
            ..Modules::default()
        };
        assert!(unknown_modules(&known).is_empty());
        let missing = Modules {
            missing: ["plugin".to_string()].into(),
            is_cut: true,
            ..known
        };
        let told = unknown_modules(&missing);
        assert!(told[0].contains("module plugin is imported and not found"), "{told:?}");
        assert!(told[1].contains("more Python files than the 3"), "{told:?}");
        assert!(unknown_modules(&Modules::default())[0].starts_with("no script is named"));
    }

    #[test]
    fn names_of_libraries() {
        assert!(is_mpi("libmpi.so.12") && is_mpi("libmpi_abi.so.1") && is_mpi("libmpich.so.12"));
        for name in ["libmpi.so.40", "libmpi.so.20", "libmpich.so.10", "libmpi_abi.so.2"] {
            assert!(is_foreign_mpi(name) && !is_mpi(name), "{name}");
        }
        assert!(!is_foreign_mpi("libmpifort.so.12") && !is_foreign_mpi("libmpichfort.so.12"));
    }

    #[test]
    fn the_variables_of_the_maker_are_set() {
        let of = |library| Diagnosis {
            steps: Vec::new(),
            library,
            library_path: vec!["/l".into()],
            note: None,
            unknown: Vec::new(),
            is_plain: false,
        };
        let names = |diagnosis: Diagnosis| {
            let mut variables = vec![("LD_LIBRARY_PATH".into(), "/old".into())];
            diagnosis.prepare(&mut variables, &"/p".into());
            assert_eq!(check::variable(&variables, "LD_LIBRARY_PATH"), Some("/l:/old".as_ref()));
            variables
                .into_iter()
                .map(|(name, _)| name.into_string().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let mpich = names(of(Some((Maker::Mpich, "/l/libmpi.so.12".into()))));
        assert!(mpich.contains("MPIR_CVAR_CH4_NETMOD") && !mpich.contains("I_MPI"));
        let intel = names(of(Some((Maker::Intel, "/l/libmpi.so.12".into()))));
        assert!(!intel.contains("MPIR_CVAR") && intel.contains("I_MPI_OFI_PROVIDER"));
        let both = names(of(None));
        assert!(both.contains("MPIR_CVAR") && both.contains("I_MPI_FABRICS"));
    }
}

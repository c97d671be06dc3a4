//! The extension modules of a Python program, found through the imports of its files. No Python is executed.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::imports::{self, Import};
use super::{search, standard};
use crate::check;
use crate::environment::Variables;

/// At most so many files are read, and so many bytes of them.
const FILES: usize = 200;
const BYTES: u64 = 8 << 20;
/// At most so many libraries are looked at.
const LIBRARIES: usize = 1000;

/// The libraries that a Python program brings along.
#[derive(Debug, Default)]
pub struct Modules {
    /// Shared objects, with whether the program certainly loads them; those come first.
    pub libraries: Vec<(PathBuf, bool)>,
    /// Whether the command line says what Python runs.
    pub is_known: bool,
    /// Files that were read.
    pub files: usize,
    /// There were more files than may be read.
    pub is_cut: bool,
    /// Modules that the program's own files import, and that are in none of the places where Python looks.
    pub missing: BTreeSet<String>,
}

/// What Python runs.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    Script(PathBuf),
    Module(Vec<String>),
    Code(String),
}

/// How Python was called, as far as that changes where it looks for modules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    start: Option<Start>,
    ignores_environment: bool,
    /// The script's directory is not searched.
    is_safe: bool,
    without_site: bool,
    without_user_site: bool,
}

/// Reads the command line behind `python`.
fn call(arguments: &[OsString]) -> Call {
    let mut call = Call::default();
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    'words: while let Some(word) = words.next() {
        if word == "--check-hash-based-pycs" {
            words.next();
            continue;
        }
        let Some(letters) = word.strip_prefix('-') else {
            call.start = Some(Start::Script(PathBuf::from(&*word)));
            break;
        };
        if letters.is_empty() {
            break;
        }
        for (place, letter) in letters.char_indices() {
            let mut value = || {
                let attached = &letters[place + letter.len_utf8()..];
                if attached.is_empty() {
                    words.next().map(|word| word.into_owned())
                } else {
                    Some(attached.to_string())
                }
            };
            match letter {
                '-' => break,
                'E' => call.ignores_environment = true,
                'P' => call.is_safe = true,
                'S' => call.without_site = true,
                's' => call.without_user_site = true,
                'I' => {
                    call.ignores_environment = true;
                    call.is_safe = true;
                    call.without_user_site = true;
                }
                'W' | 'X' => {
                    value();
                    break;
                }
                'c' => {
                    call.start = value().map(Start::Code);
                    break 'words;
                }
                'm' => {
                    let name = value().and_then(|name| imports::dotted(&name));
                    if name.as_ref().is_some_and(|name| name[0] == "mpi4py" && is_runner(name)) {
                        // The module's own program follows, and is named in the same way.
                        while words
                            .clone()
                            .next()
                            .is_some_and(|word| word.contains("rc") || word.contains("prof"))
                        {
                            words.next();
                            words.next();
                        }
                        continue 'words;
                    }
                    call.start = name.map(Start::Module);
                    break 'words;
                }
                _ => {}
            }
        }
    }
    call
}

/// `python -m mpi4py script.py` and `python -m mpi4py.run script.py`.
fn is_runner(name: &[String]) -> bool {
    name.len() == 1 || name[1..] == ["run"]
}

/// The version of a Python, as `3.11`, from its environment or its name.
fn version(python: &Path, environment: Option<&Path>) -> Option<String> {
    let short = |text: &str| {
        let mut parts = text.trim().split('.');
        let version = format!("{}.{}", parts.next()?, parts.next()?);
        version
            .chars()
            .all(|c| c.is_ascii_digit() || c == '.')
            .then_some(version)
    };
    let configured = environment.and_then(|environment| setting(environment, "version"));
    configured.as_deref().and_then(short).or_else(|| {
        let real = std::fs::canonicalize(python).ok()?;
        short(
            real.file_name()?
                .to_str()?
                .strip_prefix("python")?
                .trim_end_matches('t'),
        )
    })
}

/// A line of `pyvenv.cfg`.
fn setting(environment: &Path, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(environment.join("pyvenv.cfg")).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let is_wanted = |name: &str| name.trim() == key || (key == "version" && name.trim() == "version_info");
    pairs
        .find(|(name, _)| is_wanted(name))
        .map(|(_, value)| value.trim().to_string())
}

/// Where this Python keeps installed modules.
fn site(python: &Path, version: Option<&str>, call: &Call, variables: &Variables) -> Vec<PathBuf> {
    if call.without_site {
        return Vec::new();
    }
    let name = format!("python{}", version.unwrap_or("3"));
    let environment = search::environment_of(python);
    let base = match &environment {
        None => true,
        Some(environment) => {
            setting(environment, "include-system-site-packages").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        }
    };
    let within = |prefix: &Path| ["lib", "lib64"].map(|lib| prefix.join(lib).join(&name).join("site-packages"));
    let mut all: Vec<PathBuf> = environment.iter().flat_map(|environment| within(environment)).collect();
    if base {
        let set = |name: &str| check::variable(variables, name).filter(|value| !value.is_empty());
        let user = set("PYTHONUSERBASE")
            .map(PathBuf::from)
            .or_else(|| set("HOME").map(|home| Path::new(home).join(".local")));
        if !call.without_user_site && set("PYTHONNOUSERSITE").is_none() {
            all.extend(user.iter().flat_map(|user| within(user)));
        }
        let real = std::fs::canonicalize(python).ok();
        let prefix = real.as_deref().and_then(Path::parent).and_then(Path::parent);
        all.push(Path::new("/usr/local/lib").join(&name).join("dist-packages"));
        all.extend(prefix.iter().flat_map(|prefix| within(prefix)));
        all.extend(prefix.map(|prefix| prefix.join("lib/python3/dist-packages")));
    }
    all.retain(|place| place.is_dir());
    all
}

/// What a name leads to in one place, in the order that Python tries.
enum Found {
    Package(PathBuf),
    Extension(PathBuf),
    Source(PathBuf),
    /// A directory without `__init__.py`: only if nothing else is found.
    Namespace(PathBuf),
}

struct Walk {
    /// `sys.path` without the standard library: the program's own part, and the installed one.
    own: Vec<PathBuf>,
    installed: Vec<PathBuf>,
    version: Option<String>,
    /// Python files to read: those that Python certainly loads, and the others.
    certain: VecDeque<PathBuf>,
    possible: VecDeque<PathBuf>,
    seen: HashSet<PathBuf>,
    libraries: HashSet<PathBuf>,
    left: u64,
    found: Modules,
}

/// Follows the program that `python` runs with these arguments, in this working directory.
pub fn follow(python: &Path, arguments: &[OsString], directory: &Path, variables: &Variables) -> Modules {
    let call = call(arguments);
    let Some(start) = &call.start else {
        return Modules::default();
    };
    let set = |name: &str| {
        let value = check::variable(variables, name).filter(|value| !value.is_empty());
        value.filter(|_| !call.ignores_environment)
    };
    let (mut file, mut base) = (None, directory.to_path_buf());
    if let Start::Script(script) = start {
        let mut script = directory.join(script);
        if script.is_dir() {
            script.push("__main__.py");
        }
        // Like Python, look beside the file that a symbolic link leads to.
        let real = std::fs::canonicalize(&script).unwrap_or(script);
        base = real.parent().unwrap_or(directory).to_path_buf();
        file = Some(real);
    }
    let mut own = Vec::new();
    if !call.is_safe && set("PYTHONSAFEPATH").is_none() {
        own.push(base);
    }
    // An empty entry is the working directory.
    own.extend(
        set("PYTHONPATH")
            .iter()
            .flat_map(std::env::split_paths)
            .map(|entry| directory.join(entry)),
    );
    let environment = search::environment_of(python);
    let version = version(python, environment.as_deref());
    let mut walk = Walk {
        own,
        installed: site(python, version.as_deref(), &call, variables),
        version,
        certain: VecDeque::new(),
        possible: VecDeque::new(),
        seen: HashSet::new(),
        libraries: HashSet::new(),
        left: BYTES,
        found: Modules {
            is_known: true,
            ..Modules::default()
        },
    };
    match start {
        Start::Script(_) => walk.certain.extend(file),
        Start::Module(name) => {
            walk.import(&module(name.clone()), directory);
            // For a package, Python runs this module.
            let main = name.iter().cloned().chain(["__main__".into()]);
            walk.import(&module(main.collect()), directory);
        }
        Start::Code(text) => {
            for import in imports::imports(text) {
                walk.import(&import, directory);
            }
        }
    }
    walk.read_all();
    walk.found.libraries.sort_by_key(|(_, is_certain)| !is_certain);
    walk.found
}

/// The import that runs the module of this name.
fn module(name: Vec<String>) -> Import {
    Import {
        level: 0,
        name,
        members: Vec::new(),
        is_certain: true,
    }
}

impl Walk {
    fn read_all(&mut self) {
        loop {
            let (file, is_certain) = match (self.certain.pop_front(), self.possible.len()) {
                (Some(file), _) => (file, true),
                (None, 0) => return,
                (None, _) => match self.possible.pop_front() {
                    Some(file) => (file, false),
                    None => return,
                },
            };
            if !self.seen.insert(file.clone()) {
                continue;
            }
            if self.found.files == FILES || self.left == 0 {
                self.found.is_cut = true;
                return;
            }
            let Some(text) = self.read(&file) else { continue };
            self.found.files += 1;
            let place = file.parent().unwrap_or(Path::new("/"));
            for mut import in imports::imports(&text) {
                import.is_certain &= is_certain;
                self.import(&import, place);
            }
        }
    }

    fn read(&mut self, file: &Path) -> Option<String> {
        // Leave out pipes: reading one would wait.
        std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
        let mut bytes = Vec::new();
        File::open(file).ok()?.take(self.left).read_to_end(&mut bytes).ok()?;
        self.left -= bytes.len() as u64;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Follows one import of a file in the directory `place`.
    fn import(&mut self, import: &Import, place: &Path) {
        let from_own = !self.installed.iter().any(|installed| place.starts_with(installed));
        if import.level == 0 && from_own {
            self.note_missing(import);
        }
        // mpi4py has modules for several MPI libraries, and itself chooses one.
        if import.level == 0 && import.name.first().is_some_and(|first| first == "mpi4py") {
            return;
        }
        let places = match import.level {
            0 => [&self.own[..], &self.installed].concat(),
            level => place
                .ancestors()
                .nth(level - 1)
                .map(Path::to_path_buf)
                .into_iter()
                .collect(),
        };
        // Read installed files if the program's own import them. What those import in turn is only looked up.
        let inside = self.descend(&import.name, places, import.is_certain, from_own);
        for member in &import.members {
            self.descend(
                std::slice::from_ref(member),
                inside.clone(),
                import.is_certain,
                from_own,
            );
        }
    }

    /// Notes the module if it is in no place: its place may be one that the program adds when it runs.
    fn note_missing(&mut self, import: &Import) {
        let Some(first) = import.name.first() else { return };
        let mut places = self.own.iter().chain(&self.installed);
        // With --ft ranks get the module resurgo in their PYTHONPATH.
        if first != "resurgo" && !standard::has(first) && !places.any(|place| self.look(place, first).is_some()) {
            self.found.missing.insert(first.clone());
        }
    }

    /// Follows a dotted name; returns the places of the last package's modules.
    fn descend(&mut self, name: &[String], mut places: Vec<PathBuf>, is_certain: bool, to_read: bool) -> Vec<PathBuf> {
        for part in name {
            let mut namespace = Vec::new();
            let mut next = None;
            for place in &places {
                match self.look(place, part) {
                    Some(Found::Namespace(directory)) => namespace.push(directory),
                    Some(found) => {
                        next = Some(found);
                        break;
                    }
                    None => {}
                }
            }
            places = match next {
                Some(Found::Package(directory)) => {
                    self.note_file(directory.join("__init__.py"), is_certain, to_read);
                    self.note_libraries_in(&directory);
                    vec![directory]
                }
                Some(Found::Extension(file)) => {
                    self.note_library(file, is_certain);
                    Vec::new()
                }
                Some(Found::Source(file)) => {
                    self.note_file(file, is_certain, to_read);
                    Vec::new()
                }
                Some(Found::Namespace(_)) | None => namespace,
            };
        }
        places
    }

    fn look(&self, place: &Path, name: &str) -> Option<Found> {
        let directory = place.join(name);
        if directory.join("__init__.py").is_file() {
            return Some(Found::Package(directory));
        }
        let tagged = std::fs::read_dir(place)
            .ok()?
            .flatten()
            .find(|entry| self.is_extension(&entry.file_name(), name));
        if let Some(entry) = tagged {
            return Some(Found::Extension(entry.path()));
        }
        let source = place.join(format!("{name}.py"));
        if source.is_file() {
            return Some(Found::Source(source));
        }
        directory.is_dir().then_some(Found::Namespace(directory))
    }

    /// `name.so`, `name.abi3.so`, and `name.cpython-311-x86_64-linux-gnu.so` for this version.
    fn is_extension(&self, file: &OsStr, name: &str) -> bool {
        let Some(tag) = file
            .to_str()
            .and_then(|file| file.strip_prefix(name)?.strip_suffix("so"))
        else {
            return false;
        };
        match tag.strip_prefix('.').map(|tag| tag.trim_end_matches('.')) {
            None => false,
            Some("" | "abi3") => true,
            Some(tag) => self.is_for_this_version(tag),
        }
    }

    fn is_for_this_version(&self, tag: &str) -> bool {
        let Some(rest) = tag.strip_prefix("cpython-") else {
            return tag.starts_with("pypy");
        };
        let version = self.version.as_deref().map(|version| version.replace('.', ""));
        version.is_none_or(|version| {
            rest.strip_prefix(&version)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    }

    fn note_file(&mut self, file: PathBuf, is_certain: bool, to_read: bool) {
        if to_read {
            let queue = if is_certain {
                &mut self.certain
            } else {
                &mut self.possible
            };
            queue.push_back(file);
        }
    }

    /// Notes a library. A certain one replaces a possible one.
    fn note_library(&mut self, file: PathBuf, is_certain: bool) {
        if !self.libraries.insert(file.clone()) {
            let known = self.found.libraries.iter_mut().find(|(known, _)| *known == file);
            if let Some((_, certain)) = known {
                *certain |= is_certain;
            }
        } else if self.found.libraries.len() < LIBRARIES {
            self.found.libraries.push((file, is_certain));
        } else {
            self.found.is_cut = true;
        }
    }

    /// Notes the libraries in a package's directory and in the directories right below. The package may load any of
    /// them.
    fn note_libraries_in(&mut self, package: &Path) {
        if !self.seen.insert(package.to_path_buf()) {
            return;
        }
        let inside = |directory: &Path| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.take(LIBRARIES).map(|entry| entry.path()).collect();
            paths.sort();
            paths
        };
        let here = inside(package);
        let below = here
            .iter()
            .filter(|path| path.is_dir())
            .flat_map(|path| inside(path))
            .collect::<Vec<_>>();
        for file in here
            .iter()
            .chain(&below)
            .filter(|path| path.extension() == Some(OsStr::new("so")))
        {
            let tag = file
                .file_stem()
                .map(Path::new)
                .and_then(Path::extension)
                .and_then(OsStr::to_str);
            let is_foreign = tag.is_some_and(|tag| tag.starts_with("cpython-") && !self.is_for_this_version(tag));
            if !is_foreign {
                self.note_library(file.clone(), false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program `main.py` with these files beside it, and a Python 3.11 in an environment.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str, files: &[(&str, &str)]) -> Place {
            let top = std::env::temp_dir().join(format!("resurgo-modules-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&top).unwrap();
            let place = Place(top.canonicalize().unwrap());
            place.file("venv/pyvenv.cfg", "home = /nowhere\nversion = 3.11.7\n");
            place.file("venv/bin/python", "");
            for (name, text) in files {
                place.file(name, text);
            }
            place
        }

        fn file(&self, name: &str, text: &str) {
            let file = self.0.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }

        fn follow(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Modules {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let variables: Variables = variables
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
            follow(&self.0.join("venv/bin/python"), &arguments, &self.0, &variables)
        }

        /// The libraries, with `?` before those that are not certain.
        fn found(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
            let shown = |(file, is_certain): (PathBuf, bool)| {
                let mark = if is_certain { "" } else { "?" };
                format!("{mark}{}", file.strip_prefix(&self.0).unwrap().display())
            };
            self.follow(arguments, variables)
                .libraries
                .into_iter()
                .map(shown)
                .collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const SITE: &str = "venv/lib/python3.11/site-packages";

    #[test]
    fn command_lines_of_python() {
        let start = |words: &[&str]| call(&words.iter().map(OsString::from).collect::<Vec<_>>()).start;
        let script = Some(Start::Script("a.py".into()));
        assert_eq!(start(&["-u", "-Wignore", "-X", "dev", "a.py", "-m", "b"]), script);
        assert_eq!(start(&["-m", "mpi4py", "a.py"]), script);
        assert_eq!(start(&["-m", "mpi4py.run", "-rc", "threads=0", "a.py"]), script);
        assert_eq!(
            start(&["-um", "a.b"]),
            Some(Start::Module(vec!["a".into(), "b".into()]))
        );
        assert_eq!(
            start(&["-mmpi4py.bench", "x"]),
            Some(Start::Module(vec!["mpi4py".into(), "bench".into()]))
        );
        assert_eq!(start(&["-c", "x", "a.py"]), Some(Start::Code("x".into())));
        assert_eq!(start(&["-"]), None);
        assert_eq!(start(&["--version"]), None);
        let isolated = call(&["-I".into(), "a.py".into()]);
        assert!(isolated.ignores_environment && isolated.is_safe && isolated.start == script);
    }

    #[test]
    fn modules_are_found_as_by_python() {
        let place = Place::new(
            "found",
            &[
                (
                    "app/main.py",
                    "import helper, plain\nfrom pack import fast\nimport other.deep\n",
                ),
                ("app/helper.py", "import main, tagged\ndef f():\n    import later\n"),
                ("app/plain.so", ""),
                ("app/tagged.cpython-311-x86_64-linux-gnu.so", ""),
                ("app/tagged.cpython-39-x86_64-linux-gnu.so", ""),
                ("path/later.abi3.so", ""),
                (&format!("{SITE}/pack/__init__.py"), "from ._core import x\n"),
                (&format!("{SITE}/pack/_core.so"), ""),
                (&format!("{SITE}/pack/fast.so"), ""),
                (&format!("{SITE}/pack/unused.so"), ""),
                (&format!("{SITE}/pack/lib/below.so"), ""),
                (&format!("{SITE}/pack/lib/x/too_deep.so"), ""),
                (&format!("{SITE}/other/deep.so"), ""),
                (&format!("{SITE}/plain.so"), ""),
            ],
        );
        let path = place.0.join("path");
        let mut found = place.found(&["app/main.py"], &[("PYTHONPATH", path.to_str().unwrap())]);
        found.sort();
        let mut expected = vec![
            "?path/later.abi3.so".to_string(),
            format!("?{SITE}/pack/lib/below.so"),
            format!("?{SITE}/pack/unused.so"),
            "app/plain.so".into(),
            "app/tagged.cpython-311-x86_64-linux-gnu.so".into(),
            format!("{SITE}/other/deep.so"),
            format!("{SITE}/pack/_core.so"),
            format!("{SITE}/pack/fast.so"),
        ];
        expected.sort();
        assert_eq!(found, expected);
        // Without the script's own directory and PYTHONPATH.
        assert_eq!(
            place.found(&["-I", "-c", "import plain, later"], &[]),
            [format!("{SITE}/plain.so")]
        );
    }

    #[test]
    fn modules_that_are_in_no_place_are_noted() {
        let main = "import os.path, here, pack.gone, resurgo.ft\nfrom . import no\ndef f():\n    import plugin.core\n";
        let place = Place::new(
            "missing",
            &[
                ("main.py", main),
                (
                    "here.py",
                    "try:\n    from extra import x\nexcept ImportError: import _private\n",
                ),
                (&format!("{SITE}/pack/__init__.py"), "import of_others\n"),
            ],
        );
        let missing = place.follow(&["main.py"], &[]).missing;
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["extra", "plugin"]);
        let missing = place.follow(&["-c", "import numbers, gone"], &[]).missing;
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["gone"]);
    }

    #[test]
    fn packages_and_symbolic_links_are_run() {
        let place = Place::new(
            "package",
            &[
                ("pack/__init__.py", ""),
                ("pack/__main__.py", "from .sub import x\n"),
                ("pack/sub/__init__.py", "from ..fast import y\n"),
                ("pack/fast.so", ""),
                ("real/main.py", "import beside\n"),
                ("real/beside.so", ""),
            ],
        );
        assert_eq!(place.found(&["-m", "pack"], &[]), ["pack/fast.so"]);
        std::os::unix::fs::symlink(place.0.join("real/main.py"), place.0.join("link.py")).unwrap();
        assert_eq!(place.found(&["link.py"], &[]), ["real/beside.so"]);
    }

    #[test]
    fn reading_has_a_bound() {
        let place = Place::new("bound", &[]);
        for number in 0..FILES + 5 {
            place.file(
                &format!("m{number}.py"),
                &format!("import m{}, m{number}\n", number + 1),
            );
        }
        let found = place.follow(&["m0.py"], &[]);
        assert!(found.is_cut && found.files == FILES);
        place.file("large.py", &"#".repeat(BYTES as usize + 10));
        place.file("main.py", "import large, m0\n");
        let found = place.follow(&["main.py"], &[]);
        assert!(found.is_cut && found.files == 2);
        // Nor does it wait for a pipe.
        nix::unistd::mkfifo(&place.0.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(place.follow(&["pipe"], &[]).files, 0);
    }
}

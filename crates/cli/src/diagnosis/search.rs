//! Where the dynamic loader, and people, keep libraries.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use crate::check;
use crate::environment::Variables;

/// Libraries of the system that never lead to MPI.
const SYSTEM: &[&str] = &[
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread.so",
    "librt.so",
    "ld-linux",
    "libstdc++.so",
    "libgcc_s.so",
];

/// The directories that the loader would search.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// `/etc/ld.so.conf` and the built-in ones.
    pub system: Vec<PathBuf>,
    /// Virtual environments: the active one, then that of the first Python on the search path, then those that contain
    /// this program.
    pub environments: Vec<PathBuf>,
}

impl Search {
    /// The search of a rank with this environment.
    pub fn of(variables: &Variables) -> Search {
        let library_path = check::variable(variables, "LD_LIBRARY_PATH")
            .map(|path| {
                std::env::split_paths(path)
                    .filter(|entry| !entry.as_os_str().is_empty())
                    .collect()
            })
            .unwrap_or_default();
        let mut system = Vec::new();
        configured(Path::new("/etc/ld.so.conf"), &mut system, 0);
        for built_in in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            system.push(built_in.into());
        }
        let mut environments = Vec::new();
        environments.extend(check::variable(variables, "VIRTUAL_ENV").map(PathBuf::from));
        if let Some(path) = check::variable(variables, "PATH") {
            environments.extend(environment_on(path));
        }
        environments.extend(own_prefixes());
        let mut seen = HashSet::new();
        environments.retain(|environment| seen.insert(environment.clone()));
        Search {
            library_path,
            system,
            environments,
        }
    }

    /// The file that the loader would take for `name`, wanted by an object with these headers. `inherited`: the RPATHs
    /// of the objects that load it.
    pub fn resolve(&self, name: &str, wanted_by: &Elf, inherited: &[PathBuf]) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|file| file.is_file());
        }
        // If there is a RUNPATH, the loader ignores RPATHs.
        let rpaths = if wanted_by.runpath.is_empty() {
            [&wanted_by.rpath, inherited]
        } else {
            [&[][..], &[]]
        };
        let all = rpaths
            .into_iter()
            .flatten()
            .chain(&self.library_path)
            .chain(&wanted_by.runpath)
            .chain(&self.system);
        all.map(|directory| directory.join(name)).find(|file| file.is_file())
    }

    /// Directories that may have a usable MPI library, although the loader does not search them. They are those of the
    /// library path, the virtual environments, and `lib` beside the program's own directory.
    pub fn candidates(&self, program: &Path) -> Vec<PathBuf> {
        let mut all = self.library_path.clone();
        all.extend(self.environments.iter().map(|environment| environment.join("lib")));
        if let Some(prefix) = program.parent().and_then(Path::parent) {
            all.push(prefix.join("lib"));
        }
        all
    }

    /// The same search with these directories in front of `LD_LIBRARY_PATH`.
    pub fn with(&self, library_path: &[OsString]) -> Search {
        let mut search = self.clone();
        search.library_path.splice(0..0, library_path.iter().map(PathBuf::from));
        search
    }

    /// Every library that a program or module with these headers needs, directly or not: the name, and the file if it
    /// is found. `inherited`: the RPATHs of the program that loads the module.
    pub fn closure(&self, headers: &Elf, inherited: &[PathBuf]) -> Vec<(String, Option<PathBuf>)> {
        let mut found: Vec<(String, Option<PathBuf>)> = Vec::new();
        let mut open = vec![(headers.clone(), inherited.to_vec())];
        while let Some((object, inherited)) = open.pop() {
            let mut rpaths = inherited.clone();
            rpaths.extend(object.rpath.iter().cloned());
            for name in &object.needed {
                let known = found.iter().position(|(other, _)| other == name);
                // The RPATH of another object may lead to a library that was not found for the first one.
                let is_found = known.is_some_and(|known| found[known].1.is_some());
                if is_found || SYSTEM.iter().any(|system| name.starts_with(system)) {
                    continue;
                }
                let file = self.resolve(name, &object, &inherited);
                if let Some(headers) = file.as_deref().and_then(elf::read) {
                    open.push((headers, rpaths.clone()));
                }
                match known {
                    Some(known) => found[known].1 = file,
                    None => found.push((name.clone(), file)),
                }
            }
        }
        found
    }
}

fn configured(file: &Path, out: &mut Vec<PathBuf>, depth: usize) {
    let Ok(text) = std::fs::read_to_string(file) else {
        return;
    };
    for line in text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
    {
        if let Some(pattern) = line.strip_prefix("include") {
            // Only the pattern that every distribution has: all .conf files of a directory.
            let directory = Path::new(pattern.trim()).parent().unwrap_or(Path::new("/"));
            let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            files.sort();
            for file in files.iter().filter(|file| file.extension() == Some(OsStr::new("conf"))) {
                if depth < 3 {
                    configured(file, out, depth + 1);
                }
            }
        } else if !line.is_empty() {
            out.push(line.into());
        }
    }
}

/// The virtual environment of the first Python on a search path.
pub fn environment_on(path: &OsStr) -> Option<PathBuf> {
    let python = std::env::split_paths(path)
        .flat_map(|directory| [directory.join("python"), directory.join("python3")])
        .find(|file| file.is_file())?;
    environment_of(&python)
}

/// The virtual environment of a Python, by the file through which it was called.
pub fn environment_of(python: &Path) -> Option<PathBuf> {
    let prefix = python.parent()?.parent()?;
    prefix.join("pyvenv.cfg").is_file().then(|| prefix.to_path_buf())
}

/// The directories above the `bin` from which this program was called. The name that was called, or found on the search
/// path, gives one; the file itself another; the symbolic links between them give the rest.
fn own_prefixes() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    let called = std::env::args_os().next().and_then(|name| {
        let here = std::env::current_dir().ok()?;
        check::find_program(&name, &here, std::env::var_os("PATH").as_deref()).ok()
    });
    // A program may be called by any word.
    let same = |file: &PathBuf| std::fs::canonicalize(file).ok() == own;
    let mut prefixes = called.filter(same).map_or(Vec::new(), |file| prefixes(&file));
    prefixes.extend(own.iter().filter_map(|file| prefix(file)));
    prefixes
}

fn prefix(file: &Path) -> Option<PathBuf> {
    file.parent()?.parent().map(Path::to_path_buf)
}

/// The prefix of a file, and of each file that it is a symbolic link to.
fn prefixes(file: &Path) -> Vec<PathBuf> {
    let mut file = file.to_path_buf();
    let mut found = Vec::new();
    // As many links as the kernel follows.
    for _ in 0..40 {
        found.extend(prefix(&file));
        let Some(target) = std::fs::read_link(&file).ok() else {
            break;
        };
        let directory = file.parent().unwrap_or(Path::new("/"));
        // A link may lead upwards, and its directory may be a link, too.
        file = directory.join(target);
        if let (Some(parent), Some(name)) = (file.parent().and_then(|it| it.canonicalize().ok()), file.file_name()) {
            file = parent.join(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_on_the_way_has_a_prefix() {
        let top = std::env::temp_dir().join(format!("resurgo-prefix-{}", std::process::id()));
        for place in ["real/bin", "venv/bin", "home/bin"] {
            std::fs::create_dir_all(top.join(place)).unwrap();
        }
        let top = top.canonicalize().unwrap();
        std::fs::write(top.join("real/bin/resurgo"), "").unwrap();
        std::os::unix::fs::symlink("../../real/bin/resurgo", top.join("venv/bin/resurgo")).unwrap();
        std::os::unix::fs::symlink(top.join("venv/bin/resurgo"), top.join("home/bin/r")).unwrap();
        std::os::unix::fs::symlink("loop", top.join("home/bin/loop")).unwrap();
        let found = prefixes(&top.join("home/bin/r"));
        assert_eq!(found, ["home", "venv", "real"].map(|name| top.join(name)));
        assert!(prefixes(&top.join("home/bin/loop")).len() <= 40);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn the_library_path_comes_before_the_system() {
        let directory = std::env::temp_dir().join(format!("resurgo-search-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("libc.so.6"), "").unwrap();
        let mut search = Search::of(&Vec::new());
        let elf = Elf {
            dynamic: true,
            ..Elf::default()
        };
        let natural = search.resolve("libc.so.6", &elf, &[]).unwrap();
        assert!(!natural.starts_with(&directory));
        search.library_path = vec![directory.clone()];
        assert_eq!(
            search.resolve("libc.so.6", &elf, &[]),
            Some(directory.join("libc.so.6"))
        );
        search.library_path.clear();
        let runpath = Elf {
            runpath: vec![directory.clone()],
            ..elf.clone()
        };
        assert_eq!(
            search.resolve("libc.so.6", &runpath, &[]),
            Some(directory.join("libc.so.6"))
        );
        assert_eq!(
            search.resolve("libc.so.6", &elf, std::slice::from_ref(&directory)),
            Some(directory.join("libc.so.6"))
        );
        assert_eq!(search.resolve("libnothing.so", &elf, &[]), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

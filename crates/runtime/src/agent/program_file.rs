//! The files of a program, as they were when the job began: every life of a rank runs the same ones, or none.
//!
//! The agent holds the program's file open, and executes it even when its name leads to another one. An interpreter
//! opens a script by name, so the agent compares the script before each start. It compares the loaded libraries when a
//! process has come to MPI ([`Mapped`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use resurgo_wire::control::Program;

/// Scripts are compared up to this length.
const SCRIPT: u64 = 16 << 20;

/// Which file it is, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    fn is_same_file(&self, other: &Stamp) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// What a program is started from.
pub(super) struct ProgramFile {
    path: PathBuf,
    held: Option<(File, Stamp)>,
    /// Files that an interpreter reads (the program's own may be one), with the hashes of their contents.
    scripts: Vec<(PathBuf, [u8; 32])>,
    /// The user knows that the name leads to another file.
    pub is_told: bool,
}

impl ProgramFile {
    /// Holds the file that `program` names now. The path led to a file when it was checked; if that is gone by now, its
    /// execution fails.
    pub fn hold(program: &Program) -> ProgramFile {
        let path = PathBuf::from(&program.path);
        let directory = Path::new(&program.directory);
        let mut scripts: Vec<PathBuf> = Vec::new();
        scripts.extend(is_script(&path).then(|| path.clone()));
        let mut words = 1..program.arguments.len();
        scripts.extend(words.find_map(|word| {
            let file = directory.join(&program.arguments[word]);
            (is_script(&file) || is_run_by(&program.arguments[..word], &file)).then_some(file)
        }));
        let scripts = scripts
            .into_iter()
            .filter_map(|file| Some((file.clone(), content(&file)?)));
        ProgramFile {
            held: hold(&path),
            scripts: scripts.collect(),
            path,
            is_told: false,
        }
    }

    /// What is executed: the held file, unless it is a script.
    pub fn to_execute(&self) -> Option<&File> {
        let is_script = self.scripts.iter().any(|(file, _)| *file == self.path);
        self.held.as_ref().filter(|_| !is_script).map(|(file, _)| file)
    }

    /// Why a rank cannot be started from what the job began with.
    pub fn why_not(&self) -> Option<String> {
        let changed = self
            .scripts
            .iter()
            .find(|(file, hash)| content(file).as_ref() != Some(hash));
        if let Some((file, _)) = changed {
            return Some(has_changed(file));
        }
        let Some((file, stamp)) = &self.held else {
            return Some(format!(
                "{} could not be opened when the job began",
                self.path.display()
            ));
        };
        let is_same = file.metadata().is_ok_and(|now| Stamp::of(&now) == *stamp);
        (self.to_execute().is_some() && !is_same).then(|| has_changed(&self.path))
    }

    /// The name leads to another file; ranks run the held one.
    pub fn is_replaced(&self) -> bool {
        let now = std::fs::metadata(&self.path).ok().map(|now| Stamp::of(&now));
        self.to_execute().is_some()
            && self
                .held
                .as_ref()
                .is_some_and(|(_, stamp)| !now.is_some_and(|now| now.is_same_file(stamp)))
    }

    pub fn path(&self) -> OsString {
        self.path.clone().into_os_string()
    }
}

fn has_changed(file: &Path) -> String {
    format!(
        "{} has changed since the job began, and a rank can only go on with what it began with; begin the job anew, and \
         change files of programs when no job runs them",
        file.display()
    )
}

/// O_PATH: programs may be executable without being readable, and others may still write.
fn hold(path: &Path) -> Option<(File, Stamp)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_PATH.bits())
        .open(path)
        .ok()?;
    let stamp = Stamp::of(&file.metadata().ok()?);
    Some((file, stamp))
}

/// It can be read and is no ELF file: the kernel, or a shell, reads it by its name.
fn is_script(file: &Path) -> bool {
    let mut start = [0u8; 2];
    let read = |file: File| file.read_at(&mut start, 0).ok();
    let is_file = std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
    is_file && File::open(file).ok().and_then(read) == Some(2) && start == *b"#!"
}

/// One of the words before is an interpreter for files with such names. Other programs write such files.
fn is_run_by(words: &[OsString], file: &Path) -> bool {
    let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let interpreters: &[&str] = match ending {
        "py" => &["python", "pypy"],
        "sh" => &["sh", "bash", "dash", "ksh", "zsh"],
        "R" => &["R"],
        "jl" => &["julia"],
        "m" => &["octave"],
        "pl" => &["perl"],
        "rb" => &["ruby"],
        "lua" => &["lua"],
        "js" => &["node"],
        "tcl" => &["tclsh"],
        _ => &[],
    };
    let is_one = |word: &OsString| {
        let name = Path::new(word)
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        interpreters.iter().any(|interpreter| name.starts_with(interpreter))
    };
    words.iter().any(is_one) && file.is_file()
}

fn content(file: &Path) -> Option<[u8; 32]> {
    let mut bytes = Vec::new();
    File::open(file).ok()?.take(SCRIPT).read_to_end(&mut bytes).ok()?;
    Some(*blake3::hash(&bytes).as_bytes())
}

/// A file that a process has code from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Code {
    stamp: Stamp,
    build_id: Option<Vec<u8>>,
}

impl Code {
    fn of(file: &Path) -> Option<Code> {
        let metadata = std::fs::metadata(file).ok().filter(Metadata::is_file)?;
        let mut start = [0u8; 4096];
        let length = File::open(file)
            .and_then(|file| file.read_at(&mut start, 0))
            .unwrap_or(0);
        Some(Code {
            stamp: Stamp::of(&metadata),
            build_id: build_id(&start[..length]),
        })
    }

    /// The linker's build id recognises a file that was only installed again.
    fn is_same(&self, other: &Code) -> bool {
        self.stamp == other.stamp || (self.build_id.is_some() && self.build_id == other.build_id)
    }
}

/// The build id in the first page of an ELF file, where linkers put it.
fn build_id(start: &[u8]) -> Option<Vec<u8>> {
    const KIND_AND_NAME: &[u8] = b"\x03\0\0\0GNU\0";
    let at = start
        .windows(KIND_AND_NAME.len())
        .position(|window| window == KIND_AND_NAME)?;
    let length = start
        .get(at.checked_sub(4)?..at)?
        .try_into()
        .map(u32::from_le_bytes)
        .ok()?;
    let id = at + KIND_AND_NAME.len();
    (8..=64)
        .contains(&length)
        .then(|| start.get(id..id + length as usize).map(<[u8]>::to_vec))?
}

/// The files that hold a process's code: program and libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapped(BTreeMap<PathBuf, Code>);

impl Mapped {
    /// The files that process `pid` has mapped. Files without a name are left out: another file may have it now.
    pub fn of(pid: i32) -> io::Result<Mapped> {
        let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
        let maps = String::from_utf8_lossy(&maps);
        let files = executable(&maps).filter_map(|file| Some((file.into(), Code::of(file.as_ref())?)));
        Ok(Mapped(files.collect()))
    }

    /// A file that both have and that differs.
    pub fn differs_from(&self, first: &Mapped) -> Option<String> {
        let differs = |(file, code): &(&PathBuf, &Code)| first.0.get(*file).is_some_and(|first| !first.is_same(code));
        self.0.iter().find(differs).map(|(file, _)| has_changed(file))
    }
}

/// The named files whose code is mapped.
fn executable(maps: &str) -> impl Iterator<Item = &str> {
    maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ').skip(1);
        let rights = words.next()?;
        let name = words.nth(3)?.trim_start();
        (rights.contains('x') && name.starts_with('/') && !name.ends_with(" (deleted)")).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("resurgo-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn write(&self, name: &str, text: &[u8]) -> PathBuf {
            let file = self.0.join(name);
            std::fs::write(&file, text).unwrap();
            file
        }

        fn program(&self, words: &[&str]) -> ProgramFile {
            ProgramFile::hold(&Program {
                ranks: 1,
                path: self.0.join(words[0]).into_os_string(),
                arguments: words.iter().map(OsString::from).collect(),
                environment: Vec::new(),
                directory: self.0.clone().into_os_string(),
                is_plain: false,
                survives: false,
                modes: None,
                world: 0,
            })
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_program_that_was_replaced_is_still_held() {
        let folder = Folder::new("replaced");
        folder.write("app", b"\x7fELF one");
        let held = folder.program(&["app", "input.dat"]);
        assert!(held.to_execute().is_some() && held.why_not().is_none() && !held.is_replaced());
        folder.write("app.new", b"\x7fELF two");
        std::fs::rename(folder.0.join("app.new"), folder.0.join("app")).unwrap();
        assert!(held.why_not().is_none() && held.is_replaced());
        std::fs::remove_file(folder.0.join("app")).unwrap();
        assert!(held.why_not().is_none() && held.is_replaced());
    }

    #[test]
    fn a_program_that_was_written_over_is_not_started() {
        let folder = Folder::new("written-over");
        folder.write("app", b"\x7fELF one");
        let held = folder.program(&["app"]);
        folder.write("app", b"\x7fELF three");
        let why = held.why_not().unwrap();
        assert!(why.contains("/app has changed since the job began"), "{why}");
    }

    #[test]
    fn scripts_are_compared_by_what_they_say() {
        let folder = Folder::new("scripts");
        folder.write("run", b"#!/bin/sh\nexec one\n");
        folder.write("python", b"\x7fELF");
        folder.write("main.py", b"one");
        folder.write("data", b"one");
        let script = folder.program(&["run", "data"]);
        let python = folder.program(&["python", "-u", "main.py", "data"]);
        assert!(script.to_execute().is_none() && python.to_execute().is_some());
        folder.write("data", b"two");
        folder.write("main.py.new", b"one");
        std::fs::rename(folder.0.join("main.py.new"), folder.0.join("main.py")).unwrap();
        assert!(script.why_not().is_none() && python.why_not().is_none());
        folder.write("run", b"#!/bin/sh\nexec two\n");
        folder.write("main.py", b"two");
        assert!(script.why_not().is_some_and(|why| why.contains("/run has changed")));
        assert!(python.why_not().is_some_and(|why| why.contains("/main.py has changed")));
        std::fs::remove_file(folder.0.join("main.py")).unwrap();
        assert!(python.why_not().is_some());
        folder.write("main.py", b"one");
        folder.write("out.m", b"one");
        let nice = folder.program(&["python", "/usr/bin/python3.11", "main.py"]);
        let program = folder.program(&["python", "-o", "out.m", "main.pyx"]);
        folder.write("out.m", b"two");
        folder.write("main.py", b"two");
        assert!(nice.why_not().is_some() && program.why_not().is_none());
        let gone = folder.program(&["nowhere"]);
        assert!(gone.why_not().is_some_and(|why| why.contains("could not be opened")));
    }

    #[test]
    fn code_is_known_by_its_build_id_or_its_file() {
        let note = |id: u8| {
            [
                b"\x7fELF....\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0".as_slice(),
                &[id; 20],
                b"rest",
            ]
            .concat()
        };
        assert_eq!(build_id(&note(7)), Some(vec![7; 20]));
        assert_eq!(build_id(&note(7)[..30]), None);
        assert_eq!(build_id(b"GNU\0"), None);
        let folder = Folder::new("code");
        let (file, first) = (folder.write("lib", &note(1)), folder.write("lib.first", &note(1)));
        let code = |file: &Path| Code::of(file).unwrap();
        assert!(code(&file).is_same(&code(&first)));
        assert!(!code(&file).is_same(&code(&folder.write("lib.second", &note(2)))));
        assert!(!code(&folder.write("a", b"one")).is_same(&code(&folder.write("b", b"one"))));
    }

    #[test]
    fn a_process_names_the_files_of_its_code() {
        let maps = "1000-2000 r--p 00000000 08:01 12   /lib/a.so\n\
                    2000-3000 r-xp 00001000 08:01 12      /lib/a b.so\n\
                    3000-4000 r-xp 00000000 00:00 0      [vdso]\n\
                    4000-5000 r-xp 00000000 08:01 13   /lib/c.so (deleted)\n\
                    5000-6000 rwxp 00000000 00:00 0 \n";
        assert_eq!(executable(maps).collect::<Vec<_>>(), ["/lib/a b.so"]);
        let own = Mapped::of(std::process::id() as i32).unwrap();
        assert!(own.0.contains_key(&std::env::current_exe().unwrap()));
        assert_eq!(own.differs_from(&own), None);
    }
}

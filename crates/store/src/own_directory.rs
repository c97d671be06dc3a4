//! Directories that are the user's own, and files in them, on a machine with other users.
//!
//! A walk goes from the root, one name at a time, by descriptors. No other user may be able to exchange a directory on
//! the way, or own a symbolic link there. The last directory belongs to the user, and no other user may write to it.
//! From then on its descriptor is used, so it cannot be exchanged any more.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Group, Uid, UnlinkatFlags, User, geteuid, symlinkat, unlinkat};

/// Symbolic links on one way, at most.
const MOST_LINKS: usize = 40;
const BY_OTHERS: u32 = 0o002;
const BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Why a directory or a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} belongs to user {owner}, and not to user {}", path.display(), geteuid())]
    Owner { path: PathBuf, owner: u32 },
    #[error("{}: {why}", path.display())]
    Unsafe { path: PathBuf, why: String },
}

impl Error {
    /// The name does not exist, or is not a directory.
    pub fn is_missing(&self) -> bool {
        let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        matches!(self, Error::Io { source, .. } if missing.contains(&source.kind()))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Io { source, .. } => source,
            error => io::Error::new(io::ErrorKind::PermissionDenied, error.to_string()),
        }
    }
}

/// The users that may be trusted on the way to a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Groups of users, as those of a project, may write to directories above the last one: every use checks again.
    Groups,
    /// Only the user: code will be loaded from there, by its path.
    Nobody,
}

/// The user's own directory, and its place.
#[derive(Debug)]
pub struct Directory {
    file: File,
    path: PathBuf,
    /// Its parent, and its name there.
    parent: OwnedFd,
    name: OsString,
}

/// The position of a walk.
struct Place {
    at: OwnedFd,
    /// Its path, without symbolic links.
    path: PathBuf,
}

fn failed(path: &Path, errno: Errno) -> Error {
    Error::Io {
        path: path.to_path_buf(),
        source: errno.into(),
    }
}

fn is_directory(stat: &FileStat) -> bool {
    kind(stat) == SFlag::S_IFDIR
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// The group has no other members than the user: many systems give each user one, and let it write. Or it is root's.
fn is_own_group(gid: u32) -> bool {
    let user = User::from_uid(geteuid()).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    let is_own =
        |(user, group): (User, Group)| user.name == group.name && group.mem.iter().all(|member| *member == user.name);
    gid == 0 || user.zip(group).is_some_and(is_own)
}

/// Whether other users could replace an entry of this directory, and which.
fn exchangers(mode: u32, gid: u32, groups_too: bool) -> Option<&'static str> {
    match mode {
        mode if mode & STICKY != 0 => None,
        mode if mode & BY_OTHERS != 0 => Some("everybody"),
        mode if mode & BY_GROUP != 0 && groups_too && !is_own_group(gid) => Some("its group"),
        _ => None,
    }
}

impl Place {
    fn root() -> Result<Place, Error> {
        let path = PathBuf::from("/");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let at = nix::fcntl::open(&path, flags, Mode::empty()).map_err(|errno| failed(&path, errno))?;
        Ok(Place { at, path })
    }

    /// Its entries are safe from exchange.
    fn check(&self, groups_too: bool) -> Result<(), Error> {
        let stat = fstat(&self.at).map_err(|errno| failed(&self.path, errno))?;
        match exchangers(stat.st_mode, stat.st_gid, groups_too) {
            None => Ok(()),
            Some(who) => Err(Error::Unsafe {
                path: self.path.clone(),
                why: format!(
                    "{who} may write to this directory, and exchange what lies in it; name a place elsewhere, or have its owner \
                     forbid that (chmod go-w, or chmod +t)"
                ),
            }),
        }
    }

    fn open(&self, name: &OsStr, flags: OFlag) -> Result<OwnedFd, Error> {
        let flags = flags | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.at, name, flags, Mode::empty()).map_err(|errno| failed(&self.path.join(name), errno))
    }

    fn enter(&self, name: &OsStr) -> Result<Place, Error> {
        Ok(Place {
            at: self.open(name, OFlag::O_PATH)?,
            path: self.path.join(name),
        })
    }
}

/// Walks to `path`, which is absolute; `make`: makes what is missing. Returns the directory before the last one, and the name in there.
fn walk(path: &Path, make: bool, trust: Trust) -> Result<(Place, OsString), Error> {
    let (mut above, mut place) = (Vec::new(), Place::root()?);
    let names = |path: &Path| -> VecDeque<OsString> {
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        });
        parts.collect()
    };
    let (mut ahead, mut links) = (names(path), 0);
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            place = above.pop().map_or_else(Place::root, Ok)?;
            continue;
        }
        place.check(trust == Trust::Nobody || ahead.is_empty())?;
        let here = place.path.join(&name);
        let stat = match fstatat(&place.at, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) if make => {
                match mkdirat(&place.at, name.as_os_str(), Mode::S_IRWXU) {
                    // Another process was faster.
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(failed(&here, errno)),
                }
                fstatat(&place.at, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            }
            stat => stat,
        };
        let stat = stat.map_err(|errno| failed(&here, errno))?;
        if kind(&stat) == SFlag::S_IFLNK {
            let parent = fstat(&place.at).map_err(|errno| failed(&here, errno))?;
            if ![0, geteuid().as_raw(), parent.st_uid].contains(&stat.st_uid) {
                let why = format!(
                    "it is a symbolic link of user {}, who could lead you anywhere",
                    stat.st_uid
                );
                return Err(Error::Unsafe { path: here, why });
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(failed(&here, Errno::ELOOP));
            }
            let target = PathBuf::from(readlinkat(&place.at, name.as_os_str()).map_err(|errno| failed(&here, errno))?);
            if target.is_absolute() {
                (above, place) = (Vec::new(), Place::root()?);
            }
            let mut then = names(&target);
            then.append(&mut ahead);
            ahead = then;
            continue;
        }
        if !is_directory(&stat) {
            return Err(failed(&here, Errno::ENOTDIR));
        }
        if !ahead.is_empty() {
            let next = place.enter(&name)?;
            above.push(std::mem::replace(&mut place, next));
            continue;
        }
        return Ok((place, name));
    }
    // The root, or a parent directory.
    match (above.pop(), place.path.file_name()) {
        (Some(parent), Some(name)) => parent.check(true).map(|()| (parent, name.to_owned())),
        _ => Err(Error::Unsafe {
            path: path.to_path_buf(),
            why: "it is not a directory of your own".to_string(),
        }),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::Io {
        path: path.to_path_buf(),
        source,
    })
}

/// Whether the user's own directory may be made in `path`, as far as that exists.
pub fn may_hold(path: &Path) -> Result<(), Error> {
    match walk(&absolute(path)?, false, Trust::Groups).and_then(|(parent, name)| parent.enter(&name)) {
        Ok(place) => place.check(true),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error),
    }
}

impl Directory {
    fn found((parent, name): (Place, OsString)) -> Result<Directory, Error> {
        let path = parent.path.join(&name);
        let file = File::from(parent.open(&name, OFlag::O_RDONLY)?);
        check_own(
            &path,
            &file.metadata().map_err(|source| Error::Io {
                path: path.clone(),
                source,
            })?,
        )?;
        Ok(Directory {
            file,
            path,
            parent: parent.at,
            name,
        })
    }

    /// The existing directory `path`.
    pub fn open(path: &Path, trust: Trust) -> Result<Directory, Error> {
        Directory::found(walk(&absolute(path)?, false, trust)?)
    }

    /// The same, made if need be.
    pub fn make(path: &Path, trust: Trust) -> Result<Directory, Error> {
        Directory::found(walk(&absolute(path)?, true, trust)?)
    }

    /// A new directory `name` in `path`, which another user may own and which is made if need be.
    pub fn new_within(path: &Path, name: &OsStr) -> Result<Directory, Error> {
        let (parent, last) = walk(&absolute(path)?, true, Trust::Groups)?;
        let within = parent.enter(&last)?;
        within.check(true)?;
        mkdirat(&within.at, name, Mode::S_IRWXU).map_err(|errno| failed(&within.path.join(name), errno))?;
        Directory::found((within, name.to_owned()))
    }

    /// The existing directory `name` in this one.
    pub fn within(&self, name: &OsStr) -> Result<Directory, Error> {
        let at = self.file.as_fd().try_clone_to_owned();
        let at = at.map_err(|source| Error::Io {
            path: self.path.clone(),
            source,
        })?;
        let path = self.path.clone();
        Directory::found((Place { at, path }, name.to_owned()))
    }

    /// A new directory `name` in this one.
    pub fn make_within(&self, name: &OsStr) -> Result<Directory, Error> {
        mkdirat(&self.file, name, Mode::S_IRWXU).map_err(|errno| failed(&self.path.join(name), errno))?;
        self.within(name)
    }

    /// Another handle of it.
    pub fn try_clone(&self) -> io::Result<Directory> {
        Ok(Directory {
            file: self.file.try_clone()?,
            path: self.path.clone(),
            parent: self.parent.try_clone()?,
            name: self.name.clone(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Opens the regular file `name`, which belongs to the user and is not writable for others.
    pub fn open_file(&self, name: impl AsRef<OsStr>, flags: OFlag) -> Result<File, Error> {
        let name = name.as_ref();
        let path = self.path.join(name);
        // Opening a pipe would block.
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = match openat(&self.file, name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(file) => File::from(file),
            Err(Errno::ELOOP) => {
                let why = "it is a symbolic link where a file should be".to_string();
                return Err(Error::Unsafe { path, why });
            }
            Err(errno) => return Err(failed(&path, errno)),
        };
        let about = file.metadata().map_err(|source| Error::Io {
            path: path.clone(),
            source,
        })?;
        if !about.is_file() {
            let why = "it is no regular file".to_string();
            return Err(Error::Unsafe { path, why });
        }
        check_own(&path, &about)?;
        Ok(file)
    }

    /// The contents of the file `name`.
    pub fn read(&self, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut self.open_file(name, OFlag::O_RDONLY)?, &mut bytes)?;
        Ok(bytes)
    }

    /// A process has a lock on the file `name`. On file systems without locks no process has one.
    pub fn is_locked(&self, name: impl AsRef<OsStr>) -> bool {
        let file = self.open_file(name, OFlag::O_RDWR);
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// There is something called `name`.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        fstatat(&self.file, name.as_ref(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// The file `name` is this one.
    pub fn is(&self, name: impl AsRef<OsStr>, file: &File) -> bool {
        let there = fstatat(&self.file, name.as_ref(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let same = |there: &FileStat| {
            file.metadata()
                .is_ok_and(|own| (own.dev(), own.ino()) == (there.st_dev, there.st_ino))
        };
        there.as_ref().is_ok_and(same)
    }

    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.file, from.as_ref(), &self.file, to.as_ref())?)
    }

    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.file, name.as_ref(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Makes a symbolic link `name` to `target`.
    pub fn link(&self, target: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(symlinkat(target, &self.file, name.as_ref())?)
    }

    /// Where the symbolic link `name` leads.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> io::Result<PathBuf> {
        Ok(readlinkat(&self.file, name.as_ref())?.into())
    }

    pub fn names(&self) -> Vec<OsString> {
        let listed = fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        listed
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .collect()
    }

    /// What it holds: names, and what is known about them.
    ///
    /// # Errors
    /// The list would not be complete.
    pub fn entries(&self) -> io::Result<Vec<(OsString, Metadata)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()))? {
            let entry = entry?;
            match entry.metadata() {
                Ok(about) => entries.push((entry.file_name(), about)),
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// Removes it if it is empty.
    pub fn remove_empty(&self) -> io::Result<()> {
        Ok(unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::RemoveDir)?)
    }

    /// Brings names to the disk: those in it, and its own.
    pub fn sync(&self) {
        let _ = self.file.sync_all();
        let _ = self.sync_name();
    }

    /// Brings its own name to the disk.
    ///
    /// # Errors
    /// The disk refuses that. A parent that this user cannot read, or whose file system has no such call, is none: others
    /// have made it, and what is in it.
    pub fn sync_name(&self) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(parent) = openat(&self.parent, ".", flags, Mode::empty()) else {
            return Ok(());
        };
        match File::from(parent).sync_all() {
            Err(error) if error.raw_os_error() != Some(Errno::EINVAL as i32) => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes it with all files in it. Other contents stay, and with them the directory.
    pub fn remove_all(&self) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let removed = self.names().iter().filter(|name| self.remove(name).is_ok()).count();
            match self.remove_empty() {
                // A thread that had begun to write a file has just given it its name.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && (is_first || removed > 0) => {
                    is_first = false;
                }
                ended => return ended,
            }
        }
    }
}

fn check_own(path: &Path, about: &Metadata) -> Result<(), Error> {
    let path = path.to_path_buf();
    if Uid::from_raw(about.uid()) != geteuid() {
        let owner = about.uid();
        return Err(Error::Owner { path, owner });
    }
    let others = about.mode() & BY_OTHERS != 0;
    if others || about.mode() & BY_GROUP != 0 && !is_own_group(about.gid()) {
        let why =
            "others may write to it, so it is not to be trusted; if what it holds is yours, forbid that (chmod go-w)";
        let why = why.to_string();
        return Err(Error::Unsafe { path, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("resurgo-own-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        fs::canonicalize(path).unwrap()
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_may_write_to_is_refused() {
        let scratch = scratch("modes");
        let (open, own) = (scratch.join("open"), scratch.join("open/own"));
        fs::create_dir_all(&own).unwrap();
        mode(&own, 0o700);
        for (parent, child, good) in [
            (0o755, 0o700, true),
            (0o1777, 0o755, true),
            (0o777, 0o700, false),
            (0o755, 0o777, false),
            (0o1777, 0o1777, false),
        ] {
            mode(&open, parent);
            mode(&own, child);
            let opened = Directory::open(&own, Trust::Groups);
            assert_eq!(opened.is_ok(), good, "{parent:o} {child:o}: {opened:?}");
            let new = Directory::new_within(&open, OsStr::new("new"));
            assert_eq!(new.is_ok(), parent != 0o777, "{parent:o}: {new:?}");
            if let Ok(new) = new {
                new.remove_all().unwrap();
            }
        }
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn ways_lead_through_own_links_and_back() {
        let scratch = scratch("links");
        fs::create_dir_all(scratch.join("a/b")).unwrap();
        symlink("a", scratch.join("link")).unwrap();
        symlink(scratch.join("link/b"), scratch.join("far")).unwrap();
        symlink("loop", scratch.join("loop")).unwrap();
        for way in ["a/b", "link/b", "far", "a/../link/b/../b/.", "a/b/../b", "a/b/c/.."] {
            let found = Directory::make(&scratch.join(way), Trust::Nobody);
            assert_eq!(found.map(|found| found.path).unwrap(), scratch.join("a/b"), "{way}");
        }
        assert!(Directory::open(&scratch.join("loop"), Trust::Groups).is_err());
        assert!(Directory::open(Path::new("/"), Trust::Groups).is_err());
        assert!(
            Directory::open(&scratch.join("none"), Trust::Groups)
                .unwrap_err()
                .is_missing()
        );
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn only_own_files_are_opened() {
        let scratch = scratch("files");
        let directory = Directory::open(&scratch, Trust::Groups).unwrap();
        fs::write(scratch.join("good"), "x").unwrap();
        mode(&scratch.join("good"), 0o600);
        fs::write(scratch.join("open"), "x").unwrap();
        mode(&scratch.join("open"), 0o666);
        symlink("good", scratch.join("link")).unwrap();
        nix::unistd::mkfifo(&scratch.join("pipe"), Mode::S_IRWXU).unwrap();
        assert_eq!(directory.read("good").unwrap(), b"x");
        for name in ["open", "link", "pipe", "."] {
            for flags in [OFlag::O_RDONLY, OFlag::O_RDWR | OFlag::O_CREAT] {
                assert!(directory.open_file(name, flags).is_err(), "{name}");
            }
        }
        // It stays the same one, whatever takes its place.
        fs::rename(&scratch, scratch.with_extension("away")).unwrap();
        assert_eq!(directory.read("good").unwrap(), b"x");
        fs::rename(scratch.with_extension("away"), &scratch).unwrap();
        directory.remove_all().unwrap();
        assert!(!scratch.exists());
    }
}

//! `dir:/path`: a directory of the user, also on a file system that several machines share.
//!
//! An object is the file `PATH/JOB/FOLDER/LAST`. It is written under a temporary name (`.tmp-…`), brought to the disk,
//! and renamed. There are no locks. [`own_directory`](crate::own_directory) says which directories and files are used.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;

use crate::error::{Error, Kind};
use crate::name::{self, is_plain};
use crate::own_directory::{self, Directory, Trust};
use crate::place::{Entry, MOST_BYTES, Place};
use crate::random;

/// The beginning of names of files that are being written.
const TEMPORARY: &str = ".tmp-";
/// A temporary file of this age has no writer any more.
const ABANDONED: Duration = Duration::from_secs(86_400);
/// Another process may remove an empty folder while a file is to be made in it; more often than this in a row it does not.
const TRIES: usize = 20;

/// A directory as a place.
pub struct Dir {
    root: Directory,
    shown: String,
}

fn kind(error: own_directory::Error) -> Kind {
    match error {
        own_directory::Error::Io { source, .. } => Kind::of_io(source),
        error => Kind::NoRights(error.to_string()),
    }
}

impl Dir {
    /// The directory `path`. `make`: it is made if it does not exist; the one that it is in has to exist.
    ///
    /// # Errors
    /// There is no such directory, or others may write to it.
    pub fn open(path: &Path, make: bool) -> Result<Dir, Error> {
        let shown = format!("dir:{}", path.display());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // A file system that is not mounted must not be replaced by a directory.
        let may_make = make && parent.unwrap_or(Path::new(".")).is_dir();
        let opened = match may_make {
            true => Directory::make(path, Trust::Groups),
            false => Directory::open(path, Trust::Groups),
        };
        match opened {
            // Perhaps it has just been made, by this process or by one that has died since.
            Ok(root) if may_make => match root.sync_name() {
                Ok(()) => Ok(Dir { root, shown }),
                Err(error) => Err(Error::new(shown, "", Kind::of_io(error))),
            },
            Ok(root) => Ok(Dir { root, shown }),
            Err(error) if error.is_missing() => Err(Error::new(shown, "", Kind::NoPlace(error.to_string()))),
            Err(error) => Err(Error::new(shown, "", kind(error))),
        }
    }

    fn error(&self, object: &str, kind: Kind) -> Error {
        Error::new(&self.shown, object, kind)
    }

    fn parts<'a>(&self, name: &'a str) -> Result<(&'a str, &'a str, &'a str), Error> {
        let wrong = || Kind::BadName(format!("{name:?} cannot be the name of an object"));
        name::split(name).ok_or_else(|| self.error("", wrong()))
    }

    fn folder(&self, job: &str, folder: &str) -> Result<Directory, own_directory::Error> {
        self.root.within(job.as_ref())?.within(folder.as_ref())
    }

    fn made_folder(&self, job: &str, folder: &str) -> Result<Directory, own_directory::Error> {
        let made = |within: &Directory, name: &str| match within.within(name.as_ref()) {
            Err(error) if error.is_missing() => match within.make_within(name.as_ref()) {
                Err(own_directory::Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                    within.within(name.as_ref())
                }
                made => made,
            },
            found => found,
        };
        made(&made(&self.root, job)?, folder)
    }

    /// A new temporary file, and its name.
    fn temporary(&self, job: &str, folder: &str) -> Result<(Directory, String, File), Kind> {
        let mut tries = 0;
        loop {
            tries += 1;
            let temporary = format!("{TEMPORARY}{:016x}", u64::from_le_bytes(random().map_err(Kind::Io)?));
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            let opened = self.made_folder(job, folder).and_then(|folder| {
                let file = folder.open_file(&temporary, flags)?;
                Ok((folder, file))
            });
            match opened {
                Ok((folder, file)) => return Ok((folder, temporary, file)),
                Err(error) if error.is_missing() && tries < TRIES => {}
                Err(error) => return Err(kind(error)),
            }
        }
    }

    /// Puts an object; `fill` writes its bytes.
    ///
    /// # Errors
    /// As [`Place::put`], or those of `fill`.
    pub fn put_with(&self, name: &str, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
        let (job, folder, last) = self.parts(name)?;
        let (folder, temporary, mut file) = self.temporary(job, folder).map_err(|kind| self.error(name, kind))?;
        let written = fill(&mut file)
            .and_then(|()| file.sync_data())
            .and_then(|()| folder.rename(&temporary, last));
        written.map_err(|error| {
            let _ = folder.remove(&temporary);
            self.error(name, Kind::of_io(error))
        })
    }

    /// Opens an object.
    ///
    /// # Errors
    /// As [`Place::get`].
    pub fn open_object(&self, name: &str) -> Result<File, Error> {
        let (job, folder, last) = self.parts(name)?;
        let opened = self
            .folder(job, folder)
            .and_then(|folder| folder.open_file(last, OFlag::O_RDONLY));
        let file = opened.map_err(|error| match error.is_missing() {
            true => self.error(name, Kind::Missing),
            false => self.error(name, kind(error)),
        })?;
        let bytes = file
            .metadata()
            .map_err(|error| self.error(name, Kind::Io(error)))?
            .len();
        match bytes > MOST_BYTES {
            false => Ok(file),
            true => Err(self.error(
                name,
                Kind::TooLarge {
                    bytes,
                    most: MOST_BYTES,
                },
            )),
        }
    }

    /// The time by the clock of the file system.
    fn now(&self, job: &str) -> Result<SystemTime, Kind> {
        let (folder, temporary, file) = self.temporary(job, name::CLOCK)?;
        let modified = file.metadata().and_then(|about| about.modified());
        let _ = folder.remove(&temporary);
        modified.map_err(Kind::Io)
    }

    /// Removes files that nobody writes any more: those of this age.
    fn remove_temporaries(&self, job: &str, age: Duration) -> Result<(), Kind> {
        let now = self.now(job)?;
        for folder in name::FOLDERS {
            let Ok(folder) = self.folder(job, folder) else { continue };
            for (name, about) in folder.entries().map_err(Kind::of_io)? {
                let is_old = about
                    .modified()
                    .is_ok_and(|then| now.duration_since(then).unwrap_or_default() >= age);
                if is_old && name.to_string_lossy().starts_with(TEMPORARY) {
                    let _ = folder.remove(&name);
                }
            }
        }
        Ok(())
    }

    /// Removes all temporary files: there is no writer.
    ///
    /// # Errors
    /// Some may be left.
    pub fn remove_all_temporaries(&self) -> Result<(), Error> {
        for job in self.list("")? {
            let removed = self.remove_temporaries(&job.name, Duration::ZERO);
            removed.map_err(|kind| self.error(&job.name, kind))?;
        }
        Ok(())
    }
}

impl Place for Dir {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.put_with(name, |file| file.write_all(bytes))
    }

    fn settle(&self, job: &str) -> Result<(), Error> {
        let failed = |error: io::Error| self.error(job, Kind::of_io(error));
        let within = match self.root.within(job.as_ref()) {
            Err(error) if error.is_missing() => return Ok(()),
            within => within.map_err(|error| self.error(job, kind(error)))?,
        };
        for folder in name::FOLDERS {
            match within.within(folder.as_ref()) {
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(self.error(job, kind(error))),
                Ok(folder) => folder.file().sync_all().map_err(failed)?,
            }
        }
        within.file().sync_all().map_err(failed)?;
        self.root.file().sync_all().map_err(failed)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        let file = self.open_object(name)?;
        let mut bytes = Vec::new();
        let read = file.take(MOST_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| self.error(name, Kind::of_io(error)))?;
        Ok(bytes)
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        match self.open_object(name) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let found = match folder.split_once('/') {
            _ if !name::is_folder(folder) => {
                let wrong = format!("{folder:?} cannot be the name of a folder");
                return Err(self.error("", Kind::BadName(wrong)));
            }
            None => self.root.entries(),
            Some((job, last)) => match self.folder(job, last) {
                Err(error) if error.is_missing() => return Ok(Vec::new()),
                Err(error) => return Err(self.error(folder, kind(error))),
                Ok(found) => found.entries(),
            },
        };
        let found = found.map_err(|error| self.error(folder, Kind::of_io(error)))?;
        let wanted = found.into_iter().filter_map(|(name, about)| {
            let name = name.into_string().ok().filter(|name| is_plain(name))?;
            (about.is_dir() == folder.is_empty()).then_some(Entry {
                name,
                bytes: about.len(),
                modified: about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            })
        });
        Ok(wanted.collect())
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let (job, folder, last) = self.parts(name)?;
        let folder = match self.folder(job, folder) {
            Err(error) if error.is_missing() => return Ok(()),
            folder => folder.map_err(|error| self.error(name, kind(error)))?,
        };
        match folder.remove(last) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.error(name, Kind::of_io(error))),
            _ => Ok(()),
        }
    }

    fn clear(&self, job: &str, all: bool) -> Result<(), Error> {
        let Ok(within) = self.root.within(job.as_ref()) else {
            return Ok(());
        };
        self.remove_temporaries(job, if all { Duration::ZERO } else { ABANDONED })
            .map_err(|kind| self.error(job, kind))?;
        for folder in name::FOLDERS {
            // Those that are not empty stay.
            let _ = within.within(folder.as_ref()).map(|folder| folder.remove_empty());
        }
        let _ = within.remove_empty();
        Ok(())
    }
}

//! Where image files are: in the job's directory, or in memory without a name that others see.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::own_directory::Directory;

/// One for all who use it: clones are the same place.
#[derive(Debug, Clone)]
pub enum Shelf {
    Directory(Arc<Directory>),
    Memory(Arc<Mutex<HashMap<OsString, File>>>),
}

impl Shelf {
    pub fn in_memory() -> Shelf {
        Shelf::Memory(Arc::default())
    }

    fn files(of: &Mutex<HashMap<OsString, File>>) -> MutexGuard<'_, HashMap<OsString, File>> {
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new file, in place of one that has the name.
    pub fn new_file(&self, name: &OsStr) -> io::Result<File> {
        match self {
            Shelf::Directory(directory) => {
                let _ = directory.remove(name);
                Ok(directory.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?)
            }
            Shelf::Memory(files) => {
                let file = File::from(memfd_create(c"resurgo-image", MFdFlags::MFD_CLOEXEC)?);
                Shelf::files(files).insert(name.to_owned(), file.try_clone()?);
                Ok(file)
            }
        }
    }

    /// The file, to be read.
    pub fn open(&self, name: &OsStr) -> io::Result<File> {
        match self {
            Shelf::Directory(directory) => Ok(directory.open_file(name, OFlag::O_RDONLY)?),
            Shelf::Memory(files) => {
                let files = Shelf::files(files);
                let file = files.get(name).ok_or(io::ErrorKind::NotFound)?;
                // An offset of its own.
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                OpenOptions::new().read(true).open(path)
            }
        }
    }

    /// The file, to be written over; a new one if there is none.
    pub fn open_to_write(&self, name: &OsStr) -> io::Result<File> {
        match self {
            Shelf::Directory(directory) => Ok(directory.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT)?),
            Shelf::Memory(files) => {
                let file = Shelf::files(files).get(name).map(File::try_clone);
                file.unwrap_or_else(|| self.new_file(name))
            }
        }
    }

    pub fn names(&self) -> Vec<OsString> {
        match self {
            Shelf::Directory(directory) => directory.names(),
            Shelf::Memory(files) => Shelf::files(files).keys().cloned().collect(),
        }
    }

    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        match self {
            Shelf::Directory(directory) => directory.rename(from, to),
            Shelf::Memory(files) => {
                let mut files = Shelf::files(files);
                let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
                files.insert(to.to_owned(), file);
                Ok(())
            }
        }
    }

    /// Removes the file, if it is there. Whoever has it open goes on.
    pub fn remove(&self, name: &OsStr) {
        match self {
            Shelf::Directory(directory) => {
                let _ = directory.remove(name);
            }
            Shelf::Memory(files) => {
                Shelf::files(files).remove(name);
            }
        }
    }

    /// Names come to the disk.
    pub fn sync(&self) {
        match self {
            Shelf::Directory(directory) => directory.sync(),
            Shelf::Memory(_) => {}
        }
    }

    /// Why so many bytes more would be too many; a disk says so itself.
    pub fn refuses(&self, bytes: u64) -> Option<String> {
        let Shelf::Memory(_) = self else { return None };
        let left = crate::memory::available()?;
        (bytes > left).then(|| {
            format!(
                "it needs {} MiB of memory, and {} MiB are left",
                bytes >> 20,
                left >> 20
            )
        })
    }
}

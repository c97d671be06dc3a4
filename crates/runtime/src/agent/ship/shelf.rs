//! The place of image files: the job's directory, or memory without a name.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};

use resurgo_store::own_directory::Directory;

use crate::background;

/// What names of pieces of parity begin with until they are complete.
pub const PIECE: &str = "piece";

/// Bytes of a file in memory that are freed in no time.
const LONG: u64 = 64 << 20;
/// How much lower than the agent's priority that of a thread is which frees more.
const NICE: i32 = 5;

/// How a file in memory is seen from outside.
fn seen_as(name: &OsStr) -> &'static CStr {
    let name = name.as_bytes();
    if name.starts_with(PIECE.as_bytes()) {
        c"resurgo-piece"
    } else if name.windows(5).any(|part| part == b".log-") {
        c"resurgo-log"
    } else {
        c"resurgo-image"
    }
}

/// Closes a file in memory. The system frees a long one in tens of milliseconds, for which nobody waits.
fn let_go(file: File) {
    if file.metadata().is_ok_and(|about| about.len() > LONG) {
        // Without a thread it is closed here.
        let _ = background::spawn("shelf", NICE, move || drop(file));
    }
}

/// Clones share the same place.
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

    /// A new file, which replaces one of that name.
    pub fn new_file(&self, name: &OsStr) -> io::Result<File> {
        match self {
            Shelf::Directory(directory) => {
                let _ = directory.remove(name);
                Ok(directory.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?)
            }
            Shelf::Memory(files) => {
                let file = File::from(memfd_create(seen_as(name), MFdFlags::MFD_CLOEXEC)?);
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

    /// All of the file.
    pub fn read(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The file, for writing over; a new one if there is none.
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

    /// Removes the file, if it is there. Open handles stay valid.
    pub fn remove(&self, name: &OsStr) {
        match self {
            Shelf::Directory(directory) => {
                let _ = directory.remove(name);
            }
            Shelf::Memory(files) => {
                let file = Shelf::files(files).remove(name);
                file.into_iter().for_each(let_go);
            }
        }
    }

    /// Brings names to the disk.
    pub fn sync(&self) {
        match self {
            Shelf::Directory(directory) => directory.sync(),
            Shelf::Memory(_) => {}
        }
    }

    /// Why so many more bytes are too many; a disk reports that itself.
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

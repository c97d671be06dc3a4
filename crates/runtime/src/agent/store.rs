//! The image files of a job: one directory, in which every rank has at most two complete files, and one that is being
//! written or is about to be written over. Where they are only for other nodes they are in memory instead.
//!
//! A file has a temporary name until everything in it is on the disk; then it is renamed. So a file with its own name is
//! complete, or has been damaged since.
//!
//! The directory is the user's own ([`own_directory`](crate::own_directory)) and everything is done by its descriptor: whoever may exchange
//! it or plant links has no say in what is written over or read. What the files hold is authenticated: images by their digests, which the
//! agent remembers; the others by the key that lies in the directory ([`suspended::KEY`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use resurgo_wire::control::{JobDirectory, Sight};

use super::ship::Shelf;
use crate::note;
use crate::own_directory::{self, Directory, Trust};
use crate::suspended::{self, Key};
use crate::sys::random;

/// Beginning of the names of files with what is in transit in a wave; its number follows.
const WAVE: &str = "in-transit-";

/// The place of a job's image files.
pub struct Store {
    shelf: Shelf,
    key: Key,
    keep: bool,
    /// The number of this node, where there are several.
    node: Option<u32>,
    /// It is the dispatcher's directory, too, which sees to its end.
    is_dispatchers: bool,
    /// This process has made the directory.
    is_new: bool,
    /// Files that the job can be resumed from, with the ranks whose images they are.
    pinned: HashMap<OsString, Option<usize>>,
    /// The waves that the job can be resumed from.
    waves: RangeInclusive<u64>,
    /// Keeps others from resuming the job meanwhile.
    _locks: Vec<File>,
}

impl Store {
    /// Makes the directory of job `job` below `directory`, which need not be there.
    pub fn create(directory: &Path, job: &str, keep: bool) -> io::Result<Store> {
        let directory = Directory::new_within(directory, OsStr::new(job))?;
        let (key, lock) = suspended::make_key(&directory)?;
        Ok(Store::of(directory, key, vec![lock], keep))
    }

    /// The directory of a job that goes on.
    pub fn of(directory: Directory, key: Key, locks: Vec<File>, keep: bool) -> Store {
        Store::new(Shelf::Directory(Arc::new(directory)), key, locks, keep)
    }

    fn new(shelf: Shelf, key: Key, locks: Vec<File>, keep: bool) -> Store {
        Store {
            shelf,
            key,
            keep,
            node: None,
            is_dispatchers: false,
            is_new: false,
            pinned: HashMap::new(),
            waves: RangeInclusive::new(1, 0),
            _locks: locks,
        }
    }

    /// The directory of a job on several nodes, as this one sees it. It is made unless it is there.
    pub fn on_node(place: &JobDirectory, node: u32) -> io::Result<Store> {
        let path = Path::new(&place.path);
        let (above, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
        let (directory, is_new) = match Directory::new_within(above, name) {
            Err(own_directory::Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                (Directory::open(path, Trust::Groups)?, false)
            }
            made => (made?, true),
        };
        let is_dispatchers = directory.has(&place.sign);
        suspended::have_key(&directory, &place.key)?;
        let lock = suspended::lock_for_node(&directory, node)?;
        Ok(Store {
            node: Some(node),
            is_dispatchers,
            is_new,
            ..Store::of(directory, place.key, vec![lock], false)
        })
    }

    /// The job does not begin.
    pub fn leave(self) {
        let Some((directory, node)) = self.directory().zip(self.node) else {
            return;
        };
        suspended::unlock_for_node(directory, node);
        if self.is_new {
            let _ = directory.remove_all();
        }
    }

    /// Files stay when the job has ended well.
    pub fn keep(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// What it holds of images, and whose it is.
    pub fn sight(&self) -> Sight {
        let names = self.shelf.names().into_iter().filter(|name| note::is_file_name(name));
        Sight {
            is_shared: self.is_dispatchers,
            images: names.filter_map(|name| name.into_string().ok()).collect(),
        }
    }

    /// Without a directory: nothing outlives this process.
    pub fn in_memory() -> io::Result<Store> {
        Ok(Store::new(Shelf::in_memory(), random()?, Vec::new(), false))
    }

    pub fn directory(&self) -> Option<&Directory> {
        match &self.shelf {
            Shelf::Directory(directory) => Some(directory),
            Shelf::Memory(_) => None,
        }
    }

    /// The directory, for what is in no memory.
    fn lasting(&self) -> io::Result<&Directory> {
        self.directory().ok_or(io::ErrorKind::Unsupported.into())
    }

    /// Where the files are, also those that come from other nodes.
    pub fn shelf(&self) -> Shelf {
        self.shelf.clone()
    }

    /// The path of a file, for people.
    pub fn shown(&self, name: &OsStr) -> PathBuf {
        let directory = self.directory().map_or(Path::new("(memory)"), Directory::path);
        directory.join(name)
    }

    /// What is synced when a file has its name.
    pub fn to_sync(&self, name: &OsStr) -> io::Result<File> {
        match &self.shelf {
            Shelf::Directory(directory) => directory.file().try_clone(),
            Shelf::Memory(_) => self.shelf.open(name),
        }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The rank, number and name of these images: the job can be resumed from their files, so they stay, with what was in transit in
    /// the waves that they are parts of. Those that stayed before go, unless a life of this run may begin from them.
    pub fn pin(&mut self, files: Vec<(usize, u64, OsString)>, is_used: impl Fn(&OsStr) -> bool) {
        let beside = files.iter().map(|(_, number, _)| (in_transit(*number), None));
        let pinned = beside.collect::<HashMap<_, _>>().into_iter();
        let pinned = pinned.chain(files.into_iter().map(|(rank, _, name)| (name, Some(rank))));
        let former = std::mem::replace(&mut self.pinned, pinned.collect());
        for (name, rank) in former {
            match rank {
                _ if is_used(&name) => {}
                Some(rank) => self.collect(rank, &name),
                None if self.pinned.contains_key(&name) => {}
                None => self.shelf.remove(&name),
            }
        }
    }

    /// The job can be resumed from these waves: files of them stay, also those that come to this node later.
    pub fn pin_waves(&mut self, waves: RangeInclusive<u64>) {
        self.waves = waves;
    }

    /// Files of other ranks stay as long as their own nodes want.
    pub fn pin_only(&mut self, is_here: impl Fn(usize) -> bool) {
        self.pinned.retain(|_, rank| rank.is_none_or(&is_here));
    }

    /// A file has become one of this node.
    pub fn adopted(&mut self, rank: usize, number: u64, name: &OsStr) {
        if self.waves.contains(&number) {
            self.pinned.insert(name.to_owned(), Some(rank));
        }
    }

    /// Removes image files that nothing can be resumed from.
    pub fn remove_others(&self) {
        for name in self.shelf.names() {
            if name.as_encoded_bytes().starts_with(b"rank-") && !self.pinned.contains_key(&name) {
                self.shelf.remove(&name);
            }
        }
    }

    /// The file over which the next image of a rank is written, if there is one.
    pub fn former(&self, rank: usize) -> io::Result<File> {
        self.shelf.open(self.spare(rank).as_ref())
    }

    /// A complete image file.
    pub fn image(&self, name: &OsStr) -> io::Result<File> {
        self.shelf.open(name)
    }

    /// Opens the file for the next image of a rank, and writes the page of its note.
    pub fn begin(&self, rank: usize, page: &[u8]) -> io::Result<File> {
        // One that is there already has its room on the disk, or in memory.
        let new = self.temporary(rank);
        let _ = self.shelf.rename(self.spare(rank).as_ref(), new.as_ref());
        let file = self.shelf.open_to_write(new.as_ref())?;
        file.write_all_at(page, resurgo_image::file::NOTE_OFFSET)?;
        Ok(file)
    }

    /// Adds the `rest` of its note to the file that has been written, and gives it its own name. Returns that, its length, and the file
    /// if it is not all on the disk.
    pub fn complete(&self, rank: usize, number: u64, rest: &[u8]) -> io::Result<(OsString, u64, Option<File>)> {
        let mut unsynced = None;
        if !rest.is_empty() {
            let file = self.shelf.open_to_write(self.temporary(rank).as_ref())?;
            file.write_all_at(rest, file.metadata()?.len())?;
            unsynced = Some(file);
        }
        let name: OsString = note::file_name(rank, number).into();
        self.shelf.rename(self.temporary(rank).as_ref(), &name)?;
        let bytes = self.image(&name).and_then(|file| file.metadata());
        Ok((name, bytes.map_or(0, |file| file.len()), unsynced))
    }

    /// A file is not needed any more: the next image is written over it.
    pub fn collect(&self, rank: usize, name: &OsStr) {
        if self.pinned.contains_key(name) {
            return;
        }
        // It was removed by somebody else, or cannot be: then it is removed with the directory.
        let _ = self.shelf.rename(name, self.spare(rank).as_ref());
    }

    /// There is a file with what is in transit in a wave.
    pub fn has_in_transit(&self, wave: u64) -> bool {
        self.directory()
            .is_some_and(|directory| directory.has(in_transit(wave)))
    }

    /// That file.
    pub fn open_in_transit(&self, wave: u64) -> io::Result<File> {
        Ok(self.lasting()?.open_file(in_transit(wave), OFlag::O_RDONLY)?)
    }

    /// What it holds, as [`Store::write_in_transit`] has written it.
    pub fn read_in_transit(&self, wave: u64) -> io::Result<Vec<u8>> {
        let mut bytes = self.lasting()?.read(in_transit(wave))?;
        let wrong = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "it is damaged, or not what this job has written there",
            )
        };
        let at = bytes.len().checked_sub(blake3::OUT_LEN).ok_or_else(wrong)?;
        let mac = bytes.split_off(at);
        match blake3::keyed_hash(&self.key, &bytes) == *mac.as_slice() {
            true => Ok(bytes),
            false => Err(wrong()),
        }
    }

    /// Writes it. It may not be on the disk yet.
    pub fn write_in_transit(&self, wave: u64, bytes: &[u8]) -> io::Result<()> {
        let new = "in-transit.new";
        let directory = self.lasting()?;
        let _ = directory.remove(new);
        let file = directory.open_file(new, OFlag::O_WRONLY | OFlag::O_CREAT)?;
        let mac = blake3::keyed_hash(&self.key, bytes);
        let length = (bytes.len() + blake3::OUT_LEN) as i64;
        // A disk that has no room says so here.
        let room = nix::fcntl::posix_fallocate(&file, 0, length).map_err(io::Error::from);
        let written = room
            .and_then(|()| file.write_all_at(bytes, 0))
            .and_then(|()| file.write_all_at(mac.as_bytes(), bytes.len() as u64));
        let named = written.and_then(|()| directory.rename(new, in_transit(wave)));
        if named.is_err() {
            let _ = directory.remove(new);
        }
        named
    }

    /// Removes those of other waves than `stay`.
    pub fn remove_in_transit(&self, stay: &[u64]) {
        for name in self.shelf.names() {
            let number = name.to_str().and_then(|name| name.strip_prefix(WAVE)?.parse().ok());
            if number.is_some_and(|number| !stay.contains(&number)) && !self.pinned.contains_key(&name) {
                self.shelf.remove(&name);
            }
        }
    }

    /// The rank writes no more images.
    pub fn end(&self, rank: usize) {
        self.shelf.remove(self.spare(rank).as_ref());
        self.give_up(rank);
    }

    /// The file will not be written.
    pub fn give_up(&self, rank: usize) {
        self.shelf.remove(self.temporary(rank).as_ref());
    }

    /// Ends with the job: its files go when it has ended well, unless they are to be kept. A program that has come to its end
    /// cannot be resumed.
    pub fn close(self, finished: bool, well: bool) {
        let Shelf::Directory(directory) = &self.shelf else {
            return;
        };
        if let Some(node) = self.node {
            suspended::unlock_for_node(directory, node);
            if self.is_dispatchers || !finished {
                return;
            }
        }
        if finished {
            suspended::remove(directory);
        }
        if well && !self.keep {
            let _ = directory.remove_all();
        }
    }
}

impl Store {
    fn temporary(&self, rank: usize) -> String {
        self.named(rank, "new")
    }

    fn spare(&self, rank: usize) -> String {
        self.named(rank, "spare")
    }

    /// Nodes that see one directory have names of their own.
    fn named(&self, rank: usize, what: &str) -> String {
        match self.node {
            Some(node) => format!("rank-{rank}.{what}-{node}"),
            None => format!("rank-{rank}.{what}"),
        }
    }
}

fn in_transit(wave: u64) -> OsString {
    format!("{WAVE}{wave}").into()
}

//! The image files of a job, in one directory. Each rank has at most two complete files, and a third to write, or write
//! over. If only other nodes need them, they are in memory instead. Where messages are logged, the log that an image of
//! a wave needs is in a second file, which goes with it.
//!
//! A file has a temporary name until all of it is on the disk; then it is renamed. So a file with its own name is
//! complete, or was damaged later.
//!
//! The directory is the user's own ([`own_directory`](resurgo_store::own_directory)) and is used by its descriptor: exchanging
//! it or planting links gives no say in what is written or read. Digests, which the agent remembers, authenticate
//! images. The key in the directory ([`suspended::KEY`]) authenticates the other files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use resurgo_wire::control::{JobDirectory, Piece, Sight};
use resurgo_wire::replica::Offer;

use super::ship::{PIECES, Shelf, name_of, piece_in};
use crate::job_key::{seal, unseal};
use crate::note;
use crate::suspended::{self, Key, holders, transit};
use resurgo_store::own_directory::{self, Directory, Trust};

/// The place of a job's image files.
pub struct Store {
    shelf: Shelf,
    key: Key,
    keep: bool,
    /// The number of this node, where there are several.
    node: Option<u32>,
    /// The dispatcher has the same directory and removes it.
    is_dispatchers: bool,
    /// This process has made the directory.
    is_new: bool,
    /// Files that the job can be resumed from, with the ranks of the images.
    pinned: HashMap<OsString, Option<usize>>,
    /// Files that are being copied to places, and by how many copiers.
    copied: HashMap<OsString, usize>,
    /// The waves that the job can be resumed from.
    waves: RangeInclusive<u64>,
    /// Keeps other runs from resuming the job.
    _locks: Vec<File>,
}

/// See [`Store::logs`].
pub struct Logs {
    shelf: Shelf,
    key: Key,
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
            copied: HashMap::new(),
            waves: RangeInclusive::new(1, 0),
            _locks: locks,
        }
    }

    /// The directory of a job on several nodes, as this one sees it. Makes it if it is missing.
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
        let lock = holders::lock(&directory, node, &place.sign)?;
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
        holders::unlock(directory, node);
        if self.is_new {
            let _ = directory.remove_all();
        }
    }

    /// Files stay when the job has ended well.
    pub fn keep(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// Which directory this is, and which images and logs it has.
    pub fn sight(&self) -> Sight {
        let names = self.shelf.names().into_iter();
        let names = names.filter(|name| note::is_file_name(&note::image_of(name)));
        Sight {
            pieces: self.pieces().into_iter().map(|(piece, _)| piece).collect(),
            is_shared: self.is_dispatchers,
            images: names.filter_map(|name| name.into_string().ok()).collect(),
        }
    }

    /// The pieces of parity whose heads are right, and what others must know of each.
    pub fn pieces(&self) -> Vec<(Piece, Offer)> {
        let names = self.shelf.names().into_iter();
        let pieces = names.filter(|name| name.as_encoded_bytes().starts_with(PIECES.as_bytes()));
        pieces
            .filter_map(|name| piece_in(&self.shelf.open(&name).ok()?))
            .collect()
    }

    /// The job can be resumed from this wave.
    pub fn has_pinned(&self, wave: u64) -> bool {
        self.waves.contains(&wave)
    }

    /// Without a directory: nothing outlives this process. `key`: that of the job.
    pub fn in_memory(key: Key) -> Store {
        Store::new(Shelf::in_memory(), key, Vec::new(), false)
    }

    pub fn directory(&self) -> Option<&Directory> {
        match &self.shelf {
            Shelf::Directory(directory) => Some(directory),
            Shelf::Memory(_) => None,
        }
    }

    /// The directory; an error for a store in memory.
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

    /// The file to sync once a file has its name.
    pub fn to_sync(&self, name: &OsStr) -> io::Result<File> {
        match &self.shelf {
            Shelf::Directory(directory) => directory.file().try_clone(),
            Shelf::Memory(_) => self.shelf.open(name),
        }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Pins these images (rank, number, name), and the transit files of their waves: the job can be resumed from them.
    /// Unpins former ones, which go unless a life of this run may begin from them.
    pub fn pin(&mut self, files: Vec<(usize, u64, OsString)>, is_used: impl Fn(&OsStr) -> bool) {
        // On several nodes the dispatcher has it.
        let with_transit = files.iter().filter(|_| self.node.is_none());
        let beside = with_transit.map(|(_, number, _)| (transit::name(*number), None));
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

    /// Other nodes decide about the files of their ranks.
    pub fn pin_only(&mut self, is_here: impl Fn(usize) -> bool) {
        self.pinned.retain(|_, rank| rank.is_none_or(&is_here));
    }

    /// A file now belongs to this node.
    pub fn adopted(&mut self, rank: usize, number: u64, name: &OsStr) {
        if self.waves.contains(&number) {
            self.pinned.insert(name.to_owned(), Some(rank));
        }
    }

    /// Removes image files that nothing can be resumed from, and their logs.
    pub fn remove_others(&self) {
        for name in self.shelf.names() {
            let is_pinned = self.pinned.contains_key(&note::image_of(&name));
            if name.as_encoded_bytes().starts_with(b"rank-") && !is_pinned {
                self.shelf.remove(&name);
            }
        }
        let pieces = self.pieces().into_iter();
        let gone = pieces.filter(|(piece, _)| !self.waves.contains(&piece.number));
        gone.for_each(|(_, offer)| self.shelf.remove(&name_of(offer.what)));
    }

    /// The file that the next image of a rank is written over, if there is one.
    pub fn former(&self, rank: usize) -> io::Result<File> {
        self.shelf.open(self.spare(rank).as_ref())
    }

    /// A complete image file.
    pub fn image(&self, name: &OsStr) -> io::Result<File> {
        self.shelf.open(name)
    }

    /// What images need of the logs of their ranks, also for a thread.
    pub fn logs(&self) -> Logs {
        Logs {
            shelf: self.shelf.clone(),
            key: self.key,
        }
    }

    /// The same, sealed, as other nodes get and keep it.
    pub fn sealed_log(&self, name: &OsStr) -> io::Result<File> {
        self.shelf.open(&note::log_of(name))
    }

    /// So many bytes are that.
    pub fn length_of_log(&self, name: &OsStr) -> io::Result<u64> {
        self.sealed_log(name)?.metadata().map(|about| about.len())
    }

    /// Opens the file for the next image of a rank, and writes the page of its note.
    pub fn begin(&self, rank: usize, page: &[u8]) -> io::Result<File> {
        // A spare file has its room on the disk, or in memory, already.
        let new = self.temporary(rank);
        let _ = self.shelf.rename(self.spare(rank).as_ref(), new.as_ref());
        let file = self.shelf.open_to_write(new.as_ref())?;
        file.write_all_at(page, resurgo_image::file::NOTE_OFFSET)?;
        Ok(file)
    }

    /// Appends the `rest` of its note to the written file and gives it its own name. Returns the name, the length, and
    /// the file if it is not all on the disk.
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
        self.shelf.remove(&note::log_of(name));
        if self.copied.contains_key(name) {
            // Whoever copies it has it open, and must not read another image.
            return self.shelf.remove(name);
        }
        // If the file is missing or cannot be renamed, it goes with the directory.
        let _ = self.shelf.rename(name, self.spare(rank).as_ref());
    }

    /// A thread copies these files to a place: nothing is written over them.
    pub fn copying(&mut self, names: &[OsString]) {
        for name in names {
            *self.copied.entry(name.clone()).or_insert(0) += 1;
        }
    }

    /// It has, or has failed.
    pub fn end_copying(&mut self, names: &[OsString]) {
        for name in names {
            if let Some(copiers) = self.copied.get_mut(name) {
                *copiers -= 1;
            }
        }
        self.copied.retain(|_, copiers| *copiers > 0);
    }

    /// There is a file with what is in transit in a wave.
    pub fn has_in_transit(&self, wave: u64) -> bool {
        self.directory()
            .is_some_and(|directory| directory.has(transit::name(wave)))
    }

    /// That file.
    pub fn open_in_transit(&self, wave: u64) -> io::Result<File> {
        Ok(self.lasting()?.open_file(transit::name(wave), OFlag::O_RDONLY)?)
    }

    /// Its contents, as [`Store::write_in_transit`] wrote them.
    pub fn read_in_transit(&self, wave: u64) -> io::Result<Vec<u8>> {
        transit::read(self.lasting()?, &self.key, wave)
    }

    /// Writes it. It may not be on the disk yet.
    pub fn write_in_transit(&self, wave: u64, bytes: Vec<u8>) -> io::Result<()> {
        transit::write(self.lasting()?, &self.key, wave, bytes).map(|_| ())
    }

    /// Removes those of other waves than `stay`.
    pub fn remove_in_transit(&self, stay: &[u64]) {
        for name in self.shelf.names() {
            let number = transit::wave_of(&name);
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

    /// Ends with the job: removes the files of a job that ended well, unless they are to be kept. A program that has
    /// come to its end cannot be resumed.
    pub fn close(self, finished: bool, well: bool) {
        let Shelf::Directory(directory) = &self.shelf else {
            return;
        };
        if let Some(node) = self.node {
            holders::unlock(directory, node);
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

impl Logs {
    /// Writes what image `name` needs. It may not be on the disk yet.
    pub fn write(&self, name: &OsStr, mut log: Vec<u8>) -> io::Result<File> {
        seal(&self.key, &mut log);
        let mut file = self.shelf.new_file(&note::log_of(name))?;
        file.write_all(&log)?;
        Ok(file)
    }

    /// What image `name` needs.
    pub fn read(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        unseal(&self.key, self.shelf.read(&note::log_of(name))?)
    }

    /// There will be no such image.
    pub fn remove(&self, name: &OsStr) {
        self.shelf.remove(&note::log_of(name));
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

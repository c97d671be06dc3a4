//! The image files of a job: one directory, in which every rank has at most two complete files, and one that is being
//! written or is about to be written over.
//!
//! A file has a temporary name until everything in it is on the disk; then it is renamed. So a file with its own name is
//! complete, or has been damaged since.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::images::Account;
use crate::suspended;

/// Beginning of the names of files with what is in transit in a wave; its number follows.
const WAVE: &str = "in-transit-";

/// The directory of a job's image files.
pub struct Store {
    path: PathBuf,
    directory: File,
    keep: bool,
    /// Image files that belong to a suspension of the job, from which it can be resumed once more.
    pinned: HashSet<PathBuf>,
    /// Keeps others from resuming the job meanwhile.
    lock: Option<File>,
}

impl Store {
    /// Makes the directory of job `job` below `directory`, which need not be there.
    pub fn create(directory: &Path, job: &str, keep: bool) -> io::Result<Store> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join(job);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Store {
            directory: File::open(&path)?,
            path,
            keep,
            pinned: HashSet::new(),
            lock: None,
        })
    }

    /// The directory `path` of a job that was suspended.
    pub fn open(path: &Path, keep: bool) -> io::Result<Store> {
        Ok(Store {
            directory: File::open(path)?,
            path: path.to_path_buf(),
            keep,
            pinned: HashSet::new(),
            lock: None,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `files` stay, with what was in transit in the waves that they are parts of: the job can be resumed from them. The
    /// number of its image beside each.
    pub fn pin(&mut self, files: Vec<(u64, PathBuf)>, lock: File) {
        let beside: Vec<PathBuf> = files.iter().map(|(number, _)| self.in_transit(*number)).collect();
        let files = files.into_iter().map(|(_, path)| path);
        (self.pinned, self.lock) = (files.chain(beside).collect(), Some(lock));
    }

    /// Removes image files that nothing can be resumed from.
    pub fn remove_others(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b"rank-") && !self.pinned.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// For [`resurgo_wire::image::Kind::Sync`].
    pub fn directory(&self) -> &File {
        &self.directory
    }

    fn temporary(&self, rank: usize) -> PathBuf {
        self.path.join(format!("rank-{rank}.new"))
    }

    fn spare(&self, rank: usize) -> PathBuf {
        self.path.join(format!("rank-{rank}.spare"))
    }

    /// The file over which the next image of a rank is written, if there is one.
    pub fn former(&self, rank: usize) -> io::Result<File> {
        File::open(self.spare(rank))
    }

    /// Opens the file for the next image of a rank, and writes what only the agent knows.
    pub fn begin(&self, rank: usize, number: u64, job: &str, account: &Account) -> io::Result<File> {
        let note = json!({
            "job": job, "rank": rank, "image": number,
            "printed": [account.printed[0].bytes(), account.printed[1].bytes()],
            "input": account.read, "pmi": format!("{:?}", account.pmi),
        });
        let page = resurgo_image::file::note_page(&note.to_string()).ok_or(io::ErrorKind::FileTooLarge)?;
        // One that is there already has its room on the disk, or in memory.
        let _ = fs::rename(self.spare(rank), self.temporary(rank));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.temporary(rank))?;
        file.write_all_at(&page, resurgo_image::file::NOTE_OFFSET)?;
        Ok(file)
    }

    /// Gives the file that has been written its own name.
    pub fn complete(&self, rank: usize, number: u64) -> io::Result<PathBuf> {
        let path = self.path.join(format!("rank-{rank}.image-{number}"));
        fs::rename(self.temporary(rank), &path)?;
        Ok(path)
    }

    /// A file is not needed any more: the next image is written over it.
    pub fn collect(&self, rank: usize, path: &Path) {
        if self.pinned.contains(path) {
            return;
        }
        // It was removed by somebody else, or cannot be: then it is removed with the directory.
        let _ = fs::rename(path, self.spare(rank));
    }

    /// The file with what is in transit in a wave.
    pub fn in_transit(&self, wave: u64) -> PathBuf {
        self.path.join(format!("{WAVE}{wave}"))
    }

    /// Writes that file. It may not be on the disk yet.
    pub fn write_in_transit(&self, wave: u64, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.join("in-transit.new");
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        // A disk that has no room says so here.
        let room = nix::fcntl::posix_fallocate(&file, 0, bytes.len() as i64).map_err(io::Error::from);
        let written = room.and_then(|()| file.write_all_at(bytes, 0));
        let named = written.and_then(|()| fs::rename(&temporary, self.in_transit(wave)));
        if named.is_err() {
            let _ = fs::remove_file(temporary);
        }
        named
    }

    /// Removes those of other waves than `stay`.
    pub fn remove_in_transit(&self, stay: &[u64]) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let number = name.to_str().and_then(|name| name.strip_prefix(WAVE)?.parse().ok());
            if number.is_some_and(|number| !stay.contains(&number)) && !self.pinned.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// The rank writes no more images.
    pub fn end(&self, rank: usize) {
        let _ = fs::remove_file(self.spare(rank));
        self.give_up(rank);
    }

    /// The file will not be written.
    pub fn give_up(&self, rank: usize) {
        let _ = fs::remove_file(self.temporary(rank));
    }

    /// Ends with the job: its files go when it has ended well, unless they are to be kept. A program that has come to its end
    /// cannot be resumed.
    pub fn close(self, finished: bool, well: bool) {
        if finished {
            suspended::remove(&self.path);
        }
        if well && !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

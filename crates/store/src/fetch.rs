//! Reads generations back, from one place or several.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::chunk;
use crate::error::{Error, Kind};
use crate::name::{ChunkName, Generation};
use crate::records::{FileEntry, Manifest, Part};
use crate::sender::Progress;
use crate::store::Store;

/// Chunks that are read at the same time.
const WORKERS: usize = 4;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fetched {
    pub files: u64,
    pub bytes: u64,
}

/// Which files to fetch, and under which name to write each: it gets the node, and the file.
pub type Wanted<'a> = dyn Fn(u32, &FileEntry) -> Option<String> + 'a;

/// All files under their own names.
pub fn everything(_: u32, file: &FileEntry) -> Option<String> {
    Some(file.name.clone())
}

/// A generation at one of the places.
struct Copy<'a> {
    store: &'a Store,
    generation: Generation,
    manifest: Manifest,
    /// Parts that were read, or cannot be.
    parts: Mutex<HashMap<u32, Option<Arc<Part>>>>,
    bad: Mutex<Vec<ChunkName>>,
}

impl<'a> Copy<'a> {
    fn find(store: &'a Store, job: &str, number: u64) -> Result<Copy<'a>, Error> {
        let generation = store.find(job, Some(number))?;
        Ok(Copy {
            store,
            generation,
            manifest: store.manifest(job, generation)?,
            parts: Mutex::default(),
            bad: Mutex::default(),
        })
    }

    fn part(&self, job: &str, node: u32, told: &Told) -> Option<Arc<Part>> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || {
            let note = self.manifest.parts.iter().find(|note| note.node == node)?;
            match self.store.part(job, self.generation, note) {
                Ok(part) => Some(Arc::new(part)),
                Err(error) => {
                    told.tell(error);
                    None
                }
            }
        };
        parts.entry(node).or_insert_with(read).clone()
    }
}

/// Hears of each copy that cannot be used, from several threads; keeps the first.
struct Told<'a> {
    tell: &'a (dyn Fn(&Error) + Sync),
    first: Mutex<Option<Error>>,
}

impl Told<'_> {
    fn tell(&self, error: Error) {
        (self.tell)(&error);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
    }

    fn first(&self) -> Option<Error> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Fetches generation `number` of a job into new files in a directory. Each chunk comes from the first of the places
/// that has it whole; `tell` hears of copies that are missing or damaged. All bytes are those that were sent.
///
/// # Errors
/// No place has all of it; the error names the file, and what is wrong with its first copy. Or a file cannot be
/// written. No file of the generation is left then. An older generation may still be there whole.
pub fn fetch_from(
    stores: &[Store],
    job: &str,
    number: u64,
    wanted: &Wanted,
    directory: &Path,
    tell: &(dyn Fn(&Error) + Sync),
) -> Result<Fetched, Error> {
    let first = Mutex::default();
    let told = Told { tell, first };
    let found = stores.iter().filter_map(|store| match Copy::find(store, job, number) {
        Ok(copy) => Some(copy),
        Err(error) => {
            told.tell(error);
            None
        }
    });
    let copies: Vec<Copy> = found.collect();
    let Some(nearest) = copies.first() else {
        let none = || Error::new("store", job, Kind::Missing);
        return Err(told.first().unwrap_or_else(none));
    };
    let fetching = Fetching {
        job,
        copies: &copies,
        told: &told,
        directory,
    };
    let mut written = Vec::new();
    let fetched = nearest.manifest.parts.iter().try_for_each(|note| {
        let part = copies.iter().find_map(|copy| copy.part(job, note.node, &told));
        let part = part.ok_or_else(|| {
            told.first()
                .unwrap_or_else(|| fetching.missing(&format!("node {}", note.node)))
        })?;
        for file in &part.files {
            if let Some(name) = wanted(note.node, file) {
                fetching.file(note.node, file, &name)?;
                written.push((name, file.length));
            }
        }
        Ok(())
    });
    for copy in copies {
        condemn(copy.store, job, copy.bad);
    }
    match fetched {
        Ok(()) => Ok(Fetched {
            files: written.len() as u64,
            bytes: written.iter().map(|(_, length)| length).sum(),
        }),
        Err(error) => {
            for (name, _) in written {
                let _ = fs::remove_file(directory.join(name));
            }
            Err(error)
        }
    }
}

/// [`fetch_from`] one place.
///
/// # Errors
/// As there.
pub fn fetch(store: &Store, job: &str, number: u64, directory: &Path) -> Result<Fetched, Error> {
    let stores = std::slice::from_ref(store);
    fetch_from(stores, job, number, &everything, directory, &|_| {})
}

struct Fetching<'a> {
    job: &'a str,
    copies: &'a [Copy<'a>],
    told: &'a Told<'a>,
    directory: &'a Path,
}

impl Fetching<'_> {
    fn missing(&self, what: &str) -> Error {
        Error::new(self.copies[0].store.place().shown(), what, Kind::Missing)
    }

    fn file(&self, node: u32, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let path = self.directory.join(name);
        let shown = path.display().to_string();
        let failed = |error: io::Error| Error::new("fetch", &shown, Kind::of_io(error));
        // Never through a link, and never over a file.
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(failed)?;
        let filled = self.fill(node, entry, &file).and_then(|()| {
            file.set_permissions(Permissions::from_mode(entry.mode))
                .map_err(failed)?;
            match digest(&file).map_err(failed)? == entry.digest {
                true => Ok(()),
                false => {
                    let why = "its chunks are whole, but are not this file".to_string();
                    Err(Error::new(
                        self.copies[0].store.place().shown(),
                        name,
                        Kind::Damaged(why),
                    ))
                }
            }
        });
        if filled.is_err() {
            let _ = fs::remove_file(&path);
        }
        filled
    }

    fn fill(&self, node: u32, entry: &FileEntry, file: &File) -> Result<(), Error> {
        let offsets: Vec<u64> = entry
            .chunks
            .iter()
            .scan(0, |sum, (_, length)| {
                let offset = *sum;
                *sum += u64::from(*length);
                Some(offset)
            })
            .collect();
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let fail = |error| {
            _ = failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error)
        };
        let run = || loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(offset) = offsets.get(index) else { return };
            let chunk = self.chunk(node, entry, index).and_then(|plain| {
                let written = file.write_all_at(&plain, *offset);
                written.map_err(|error| Error::new("fetch", &entry.name, Kind::of_io(error)))
            });
            if let Err(error) = chunk {
                fail(error);
                next.store(offsets.len(), Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..WORKERS.min(offsets.len()) {
                scope.spawn(run);
            }
        });
        failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }

    /// A chunk of a file, from the first place that has it.
    fn chunk(&self, node: u32, entry: &FileEntry, index: usize) -> Result<Vec<u8>, Error> {
        let mut first = None;
        for copy in self.copies {
            let Some(part) = copy.part(self.job, node, self.told) else {
                continue;
            };
            let same = |file: &&FileEntry| file.name == entry.name && file.digest == entry.digest;
            let chunk = part.files.iter().find(same).and_then(|file| file.chunks.get(index));
            let Some(&(name, length)) = chunk.filter(|(_, length)| *length == entry.chunks[index].1) else {
                continue;
            };
            match read_chunk(copy.store, self.job, name, length) {
                Ok(plain) => return Ok(plain),
                Err(mut error) => {
                    if error.is_damaged() || error.is_missing() {
                        copy.bad.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                    }
                    error.object = format!("file {} of node {node}, {}", entry.name, error.object);
                    (self.told.tell)(&error);
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| self.missing(&entry.name)))
    }
}

fn digest(mut file: &File) -> io::Result<blake3::Hash> {
    let (mut digest, mut bytes) = (blake3::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(digest.finalize()),
            length => digest.update(&bytes[..length]),
        };
    }
}

fn read_chunk(store: &Store, job: &str, name: ChunkName, length: u32) -> Result<Vec<u8>, Error> {
    let object = chunk::object(job, name);
    let bytes = store.place().get(&object)?;
    let plain = chunk::unwrap(store.key(), &name.hash, length, bytes);
    plain.map_err(|kind| Error::new(store.place().shown(), object, kind))
}

/// Later generations do not rely on bad chunks.
fn condemn(store: &Store, job: &str, bad: Mutex<Vec<ChunkName>>) {
    let bad = bad.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !bad.is_empty() {
        // Perhaps only reading is allowed.
        let _ = store.condemn(job, &bad);
    }
}

/// Reads all of a generation, and tells what is damaged or missing. Later generations do not rely on that: they put it
/// anew.
///
/// # Errors
/// A part of it cannot be read, or is damaged; this is the first that was told.
pub fn check(
    store: &Store,
    job: &str,
    generation: Generation,
    tell: &(dyn Fn(&Error) + Sync),
    progress: &Progress,
) -> Result<Fetched, Error> {
    let manifest = store.manifest(job, generation)?;
    let first = Mutex::default();
    let told = Told { tell, first };
    let mut chunks = HashMap::new();
    for note in &manifest.parts {
        match store.part(job, generation, note) {
            Ok(part) => chunks.extend(part.files.into_iter().flat_map(|file| file.chunks)),
            Err(error) => told.tell(error),
        }
    }
    let chunks: Vec<(ChunkName, u32)> = chunks.into_iter().collect();
    let (next, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = || {
        while let Some(&(name, length)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = read_chunk(store, job, name, length) {
                if error.is_damaged() || error.is_missing() {
                    bad.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                }
                told.tell(error);
            }
            progress.handles(length.into());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(chunks.len()) {
            scope.spawn(run);
        }
    });
    condemn(store, job, bad);
    match told.first() {
        None => Ok(Fetched {
            files: manifest.files(),
            bytes: manifest.bytes(),
        }),
        Some(error) => Err(error),
    }
}

//! Puts the files of one node.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::chunk;
use crate::error::{Error, Kind};
use crate::key;
use crate::name::{self, ChunkName, Generation, Hash, PartName};
use crate::pace::Pace;
use crate::records::{FileEntry, Part, PartNote};
use crate::store::Store;

/// Chunks that are packed and put at the same time.
const WORKERS: usize = 4;
/// Chunks that wait for a worker.
const WAITING: usize = 2;
/// A smaller object holds no chunk: its file was made, and never written.
const SMALLEST: u64 = 54;
/// How often a sender that waits for its pace looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(100);

/// A file to put.
#[derive(Debug)]
pub struct Source {
    /// A plain file name; one name for one file of the node.
    pub name: String,
    /// Read from where it stands to its end.
    pub file: File,
}

/// How far a sender is, for other threads.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of files that were handled, and those whose chunks were there already.
    handled: AtomicU64,
    known: AtomicU64,
    /// Bytes that went to the place.
    put: AtomicU64,
    /// Objects that were removed.
    removed: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// So many bytes more are handled.
    pub fn handles(&self, bytes: u64) {
        self.handled.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }

    pub fn put(&self) -> u64 {
        self.put.load(Ordering::Relaxed)
    }

    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// An object was removed.
    pub fn removes(&self) {
        self.removed.fetch_add(1, Ordering::Relaxed);
    }

    /// The sender fails soon, and goes on if it is called again.
    pub fn stop(&self, stops: bool) {
        self.stop.store(stops, Ordering::Relaxed);
    }
}

/// Puts the files of a node, generation after generation. It remembers what the place has.
pub struct Sender {
    store: Store,
    job: String,
    node: u32,
    pace: Option<Pace>,
    progress: Arc<Progress>,
    /// The last part that this sender has put whole, and its chunks.
    last: Option<(Generation, HashMap<Hash, ChunkName>)>,
    /// The generation that it works on, and the chunks that may be relied on for it.
    current: Option<(Generation, HashMap<Hash, ChunkName>)>,
}

/// A chunk on its way: of which file, and which of its chunks.
struct Cut {
    file: usize,
    chunk: usize,
    plain: Vec<u8>,
}

/// A chunk and its length, once it is there.
type Noted = Option<(ChunkName, u32)>;

/// What the workers share.
struct Work<'a> {
    sender: &'a Sender,
    generation: Generation,
    known: Mutex<&'a mut HashMap<Hash, ChunkName>>,
    /// Of each file.
    done: Mutex<Vec<Vec<Noted>>>,
    failed: Mutex<Option<Error>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sender {
    /// `rate`: bytes a second, at most.
    pub fn new(store: Store, job: &str, node: u32, rate: Option<u64>) -> Sender {
        Sender {
            store,
            job: job.to_string(),
            node,
            pace: rate.map(Pace::new),
            progress: Arc::default(),
            last: None,
            current: None,
        }
    }

    /// Shows its progress there, and stops by that.
    pub fn with_progress(self, progress: Arc<Progress>) -> Sender {
        Sender { progress, ..self }
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Puts all these files as this node's part of a generation that has [begun](Store::begin). What the place has is
    /// not sent again; so a call that has failed can be repeated, by this or another process.
    ///
    /// # Errors
    /// The part is not there, or not certainly.
    pub fn send(&mut self, generation: Generation, sources: Vec<Source>) -> Result<PartNote, Error> {
        let mut known = self.known(generation)?;
        let sent = self.send_files(generation, sources, &mut known);
        self.current = Some((generation, known));
        let files = sent?;
        let chunks = files.iter().flat_map(|file| &file.chunks);
        let chunks: HashMap<Hash, ChunkName> = chunks.map(|(name, _)| (name.hash, *name)).collect();
        let note = self.put_part(generation, files)?;
        (self.last, self.current) = (Some((generation, chunks)), None);
        Ok(note)
    }

    /// The chunks that this generation may rely on. The order of the questions matters: see [`Store::gc`].
    fn known(&mut self, generation: Generation) -> Result<HashMap<Hash, ChunkName>, Error> {
        let unfinished = match self.current.take() {
            Some((of, known)) if of == generation => return Ok(known),
            unfinished => unfinished.is_some(),
        };
        let condemned = self.store.condemned(&self.job)?;
        let trusted = |name: &ChunkName| !condemned.contains(name);
        if let Some((last, chunks)) = &self.last
            && !unfinished
            && self.store.generations(&self.job)?.contains(last)
        {
            let chunks = chunks.iter().filter(|(_, name)| trusted(name));
            return Ok(chunks.map(|(hash, name)| (*hash, *name)).collect());
        }
        let listed = self.store.place().list(&format!("{}/{}", self.job, name::CHUNKS))?;
        let whole = listed.iter().filter(|entry| entry.bytes >= SMALLEST);
        let names = whole.filter_map(|entry| entry.name.parse::<ChunkName>().ok());
        Ok(names.filter(trusted).map(|name| (name.hash, name)).collect())
    }

    fn send_files(
        &self,
        generation: Generation,
        sources: Vec<Source>,
        known: &mut HashMap<Hash, ChunkName>,
    ) -> Result<Vec<FileEntry>, Error> {
        let work = Work {
            sender: self,
            generation,
            known: Mutex::new(known),
            done: Mutex::new(sources.iter().map(|_| Vec::new()).collect()),
            failed: Mutex::new(None),
        };
        let (give, take) = sync_channel(WAITING);
        let take = Mutex::new(take);
        let cut = std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| work.run(&take));
            }
            let files = sources.into_iter().enumerate();
            let cut: Result<Vec<FileEntry>, Error> =
                files.map(|(file, source)| work.cut(file, source, &give)).collect();
            drop(give);
            cut
        });
        if let Some(first) = locked(&work.failed).take() {
            return Err(first);
        }
        let mut files = cut?;
        for (entry, chunks) in files.iter_mut().zip(locked(&work.done).drain(..)) {
            entry.chunks = chunks.into_iter().flatten().collect();
        }
        Ok(files)
    }

    fn check_stop(&self, file: &str) -> Result<(), Error> {
        let stopped = || io::Error::new(io::ErrorKind::Interrupted, "the transfer was stopped");
        match self.progress.stop.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(self.store.error(file, Kind::Io(stopped()))),
        }
    }

    /// Waits until so many bytes may be sent.
    fn keep_pace(&self, bytes: usize) -> Result<(), Error> {
        let Some(pace) = &self.pace else { return Ok(()) };
        let now = Instant::now();
        let until = now + pace.wait_for(bytes, now);
        loop {
            self.check_stop("")?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(GLANCE));
        }
    }

    fn put_part(&self, generation: Generation, files: Vec<FileEntry>) -> Result<PartNote, Error> {
        let last = PartName {
            generation,
            node: self.node,
            number: self.store.random()?,
        };
        let failed = |kind| self.store.error(&format!("{}/{}/{last}", self.job, name::PARTS), kind);
        let part = Part::new(generation, self.node, files).map_err(failed)?;
        let written = part.written().map_err(failed)?;
        // A part never outlives its chunks.
        self.store.place().settle(&self.job)?;
        let digest = self
            .store
            .put_record(&self.job, name::PARTS, &last.to_string(), &written)?;
        self.store.place().settle(&self.job)?;
        Ok(PartNote {
            node: self.node,
            number: last.number,
            files: part.files.len() as u64,
            bytes: part.bytes(),
            digest: digest.into(),
        })
    }
}

impl Work<'_> {
    /// Cuts a file for the workers, and sums it up.
    fn cut(&self, number: usize, source: Source, give: &SyncSender<Cut>) -> Result<FileEntry, Error> {
        let store = &self.sender.store;
        let failed = |error: io::Error| store.error(&source.name, Kind::Io(error));
        let mode = source.file.metadata().map_err(failed)?.mode() & 0o777;
        let (mut digest, mut length) = (blake3::Hasher::new(), 0);
        for (chunk, plain) in chunk::cut((&source.file).take(u64::MAX)).enumerate() {
            let plain = plain.map_err(failed)?;
            length += plain.len() as u64;
            digest.update(&plain);
            let cut = Cut {
                file: number,
                chunk,
                plain,
            };
            if locked(&self.failed).is_some() || give.send(cut).is_err() {
                return Err(failed(io::ErrorKind::Interrupted.into()));
            }
            self.sender.check_stop(&source.name)?;
        }
        Ok(FileEntry {
            name: source.name,
            length,
            mode,
            digest: digest.finalize().into(),
            chunks: Vec::new(),
        })
    }

    fn run(&self, take: &Mutex<Receiver<Cut>>) {
        loop {
            let Ok(cut) = locked(take).recv() else { return };
            // After a failure the rest is only taken away, so that the one that cuts does not wait.
            if locked(&self.failed).is_some() {
                continue;
            }
            match self.put(&cut.plain) {
                Ok(name) => self.note(&cut, name),
                Err(error) => {
                    locked(&self.failed).get_or_insert(error);
                }
            }
        }
    }

    fn note(&self, cut: &Cut, name: ChunkName) {
        let length = cut.plain.len();
        let mut done = locked(&self.done);
        let chunks = &mut done[cut.file];
        if chunks.len() <= cut.chunk {
            chunks.resize(cut.chunk + 1, None);
        }
        chunks[cut.chunk] = Some((name, length as u32));
        self.sender.progress.handled.fetch_add(length as u64, Ordering::Relaxed);
    }

    fn put(&self, plain: &[u8]) -> Result<ChunkName, Error> {
        let Sender {
            store, job, progress, ..
        } = self.sender;
        let hash = key::hash(store.key(), plain);
        if let Some(name) = locked(&self.known).get(&hash) {
            progress.known.fetch_add(plain.len() as u64, Ordering::Relaxed);
            return Ok(*name);
        }
        let name = ChunkName {
            hash,
            attempt: self.generation.attempt,
            number: store.random()?,
        };
        let object = chunk::object(job, name);
        let wrapped = chunk::wrap(store.key(), &hash, plain).map_err(|kind| store.error(&object, kind))?;
        self.sender.keep_pace(wrapped.len())?;
        store.place().put(&object, &wrapped)?;
        progress.put.fetch_add(wrapped.len() as u64, Ordering::Relaxed);
        locked(&self.known).insert(hash, name);
        Ok(name)
    }
}

/// All chunks of these parts.
pub(crate) fn chunks_of<'a>(parts: impl IntoIterator<Item = &'a Part>) -> HashSet<ChunkName> {
    let files = parts.into_iter().flat_map(|part| &part.files);
    files.flat_map(|file| &file.chunks).map(|(name, _)| *name).collect()
}

//! Suspended and interrupted jobs: the file from which a job goes on, and where such files are.
//!
//! The file is in the job's directory of image files, under the name [`FILE`], and names the image files that belong to
//! it. A suspension writes it, and each wave of all ranks that is complete in files ([`About::wave`]). It has a
//! temporary name until all of it is on the disk. The next one replaces it, and the end of the program removes it.
//! Until then the job can be resumed from it any number of times.
//!
//! The agent of a job holds a lock (flock) on the file [`KEY`] while it lives: no other process resumes or removes a
//! running job.
//!
//! ```text
//! 0    "resurgoS"
//! 8    u32 format, u32 version of the node memory
//! 16   u64 bytes of the JSON
//! 24   keyed BLAKE3 of the JSON, 32 bytes
//! 56   JSON: the job, the dispatcher's part, the agent's part
//! …    sections: node memory, spill file, standard input so far (empty where there is none)
//! …    keyed BLAKE3 of everything before, 32 bytes
//! ```
//!
//! A section is a sparse file: (u64 offset, u64 length, bytes) for each part that is not zeros, then (u64 length of the
//! file, u64 0). Integers are little-endian. The key is in the file [`KEY`] beside it, which only the user can read:
//! other users can neither make nor change such a file. It names its image files with their digests, so the key vouches
//! for them too.

pub mod holders;
mod origin;
mod processors;
pub mod ranks;
pub mod transit;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::{Whence, geteuid, lseek};
use resurgo_protocol::{Protocol, kinds};
use resurgo_wire::control::{Job, Secret, Sight, Stdin};
use resurgo_wire::node_memory;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::origin::{Configured, Origin};
pub use self::processors::{lacks, processor};
pub use crate::job_key::{KEY, Key};
use crate::leftovers;
use crate::note::{self, Note};
use crate::printed::{self, Place};
use resurgo_store::own_directory::{self, Directory, Trust};

/// Its name in the directory of a job's image files.
pub const FILE: &str = "suspended";
/// Its name until it is complete.
const NEW: &str = "suspended.new";
/// The same for the one that is written while the job runs.
const NEW_OF_WAVE: &str = "wave.new";
const MAGIC: &[u8; 8] = b"resurgoS";
const FORMAT: u32 = 6;
/// The oldest readable format. It has no waves.
const OLDEST_FORMAT: u32 = 4;
/// From this format on, the logs that a wave needs are beside its images.
const LOGS_BESIDE: u32 = 6;
const HEAD: usize = 56;
/// Longest JSON accepted.
const MAX_JSON: u64 = 1 << 32;
/// Zeros are left out in pieces of this size.
const PAGE: usize = 4096;
/// How long a process that only looks at the job may hold a lock.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long the rest of a killed run may take to end: a thread of its agent may wait for the disk, and agents of other
/// nodes for the end of their leases.
const AFTER_A_KILL: Duration = Duration::from_secs(5);
/// Bytes of a section that one step writes.
const STEP: usize = 4 << 20;

/// Data of a suspended job for people and other commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The job's number when it ran.
    pub number: u32,
    /// The numbers of its earlier runs.
    #[serde(default)]
    pub former: Vec<u32>,
    /// When it was suspended, in seconds since 1970.
    pub unix_time: f64,
    /// Its CLOCK_MONOTONIC then, in nanoseconds; 0: unknown.
    #[serde(default)]
    pub monotonic_ns: u64,
    /// Its running time over all runs.
    pub seconds: f64,
    pub ranks: usize,
    /// Ranks that it was launched with.
    pub launched: usize,
    pub restarts: u64,
    /// The command line of its programs, for people.
    pub command: String,
    pub origin: Origin,
    /// The processor's abilities (the flags of /proc/cpuinfo): programs choose their instructions when they start.
    pub processor: Vec<String>,
    /// The complete wave when the file was written while the job ran; none: the job was suspended.
    #[serde(default)]
    pub wave: Option<u64>,
    /// The position of its output.
    #[serde(default)]
    pub printed: Option<Place>,
    /// By rank: the name of the node that has its images, where there are several.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Further data of the dispatcher.
    pub dispatcher: Value,
}

impl About {
    /// A run of the job had this number.
    pub fn had(&self, number: u32) -> bool {
        self.number == number || self.former.contains(&number)
    }

    /// Different for every file of a job.
    pub fn id(&self) -> String {
        format!("{}-{}", self.number, self.unix_time)
    }

    /// The instructions and registers that the program could use and a processor with `flags` does not have.
    pub fn missing(&self, flags: &[String]) -> Vec<&str> {
        lacks(&self.processor, flags)
    }
}

/// The JSON of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    /// Different for every file.
    pub id: String,
    pub about: About,
    pub job: Job,
    pub agent: Value,
}

impl Header {
    pub fn of(about: About, job: Job, agent: Value) -> Header {
        let id = about.id();
        Header { id, about, job, agent }
    }
}

/// A suspended job.
pub struct Suspended {
    /// Of its image files.
    pub directory: PathBuf,
    pub header: Header,
    /// It runs: it never stopped, or another run has resumed it.
    pub is_running: bool,
    /// The launcher of that run lives: the run is not left over from a kill.
    has_launcher: bool,
}

/// Why a job cannot be resumed from a directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no job is suspended in {}", .0.display())]
    Nothing(PathBuf),
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
    #[error("{} cannot be used: {}", .0.display(), .1)]
    Defect(PathBuf, Defect),
    #[error("{} belongs to user {}: only that user can resume the job", .0.display(), .1)]
    OtherUser(PathBuf, u32),
    #[error("no job can be resumed from {}: {}", .0.display(), .1)]
    Untrusted(PathBuf, own_directory::Error),
    #[error("the job in {} is running", .0.display())]
    InUse(PathBuf),
    #[error(
        "the job that has left its files in {} cannot be resumed: {}; resurgo rm {} removes its files", .0.display(), .1, .0.display()
    )]
    OnlyImages(PathBuf, NoWave),
}

/// The defect of a job's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    #[error("it is shorter than it should be")]
    Short,
    #[error("it is no file of a suspended job")]
    Foreign,
    #[error("another version of resurgo has written it")]
    Version,
    #[error("the job's key beside it is missing, or cannot be read")]
    NoKey,
    #[error("it is damaged: the length of its description makes no sense")]
    Length,
    #[error("it is damaged: the checksum of its description is wrong")]
    Description,
    #[error("it is damaged: its checksum is wrong")]
    Sum,
}

/// Why a lost job has left no wave.
#[derive(Debug, thiserror::Error)]
pub enum NoWave {
    #[error("it was lost before its first images were complete")]
    NoImages,
    #[error("no wave of its images was written down before it was lost")]
    Incomplete,
    /// Logs are in the node's memory, and no image contains them.
    #[error(
        "under {0} each rank has images of its own moments, and what was under way between them was in memory that is lost; with \
         --protocol auto a job leaves waves to resume from, or suspend it in time (resurgo suspend, or SIGTERM)"
    )]
    NotLogged(String),
    #[error(
        "there is no set of images of one moment with all that was under way between ranks, as a complete wave has it"
    )]
    Unknown,
}

/// The job as a later run finds it.
pub fn lasting(job: &Job) -> Job {
    let mut job = job.clone();
    if let Stdin::File(path, _) = &mut job.stdin
        && let Ok(real) = fs::read_link(&path)
    {
        // It leads through the dispatcher's process.
        *path = real.into_os_string();
    }
    job.nodes = None;
    // It stays with those who have the file with the key.
    job.image_files.secret = Secret::default();
    job
}

/// Makes the key of a job, in its directory. Returns it with the lock that keeps other runs from resuming the job.
pub fn make_key(directory: &Directory) -> io::Result<(Key, File)> {
    let key = crate::sys::random()?;
    let mut file = directory.open_file(KEY, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
    // Some file systems have no locks.
    let _ = file.try_lock();
    file.write_all(&key)?;
    file.sync_all()?;
    Ok((key, file))
}

/// Whether the job with files in `directory` runs.
pub fn runs(directory: &Directory) -> bool {
    // The agents of some versions lock the other file.
    directory.is_locked(KEY) || directory.is_locked(FILE) || holders::are_there(directory)
}

/// Puts the job's key into the directory, unless it is there.
///
/// # Errors
/// The directory has another key, or cannot have one.
pub fn have_key(directory: &Directory, key: &Key) -> io::Result<()> {
    match directory.open_file(KEY, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL) {
        Ok(mut file) => return file.write_all(key).and_then(|()| file.sync_all()),
        Err(error) => match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::AlreadyExists => {}
            error => return Err(error),
        },
    }
    let begun = Instant::now();
    loop {
        let there = directory.read(KEY)?;
        if there == key {
            return Ok(());
        }
        // Another node that sees the same directory may be writing it.
        if there.len() >= key.len() || begun.elapsed() > AFTER_A_KILL {
            return Err(io::Error::other("what lies there is of another job"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Keeps other runs from resuming the job in `directory`; none: it runs.
///
/// # Errors
/// There is no job in it.
pub fn lock_job(directory: &Directory) -> io::Result<Option<File>> {
    let file = directory.open_file(KEY, OFlag::O_RDWR)?;
    Ok((!runs(directory) && lock(&file)).then_some(file))
}

/// Locks `file`, waiting for processes that only look at it; false: another process has it.
fn lock(file: &File) -> bool {
    let begun = Instant::now();
    while let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// The beginning of the file, verified.
struct Opened {
    directory: Directory,
    key: Key,
    key_file: File,
    path: PathBuf,
    file: File,
    header: Header,
    /// The hash of the part read.
    hasher: blake3::Hasher,
}

fn open(directory: &Path) -> Result<Opened, Error> {
    let path = directory.join(FILE);
    let refused = |error: own_directory::Error| match error {
        error if error.is_missing() => without_file(directory),
        own_directory::Error::Io { path, source } => Error::Io(path, source),
        own_directory::Error::Owner { path, owner } => Error::OtherUser(path, owner),
        error => Error::Untrusted(directory.to_path_buf(), error),
    };
    let defect = |what| Error::Defect(path.clone(), what);
    let directory = Directory::open(directory, Trust::Groups).map_err(refused)?;
    let file = directory.open_file(FILE, OFlag::O_RDWR).map_err(refused)?;
    let short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => defect(Defect::Short),
        _ => Error::Io(path.clone(), error),
    };
    let mut head = [0u8; HEAD];
    (&file).read_exact(&mut head).map_err(short)?;
    let half = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = u64::from(half(16)) | u64::from(half(20)) << 32;
    if &head[..8] != MAGIC {
        return Err(defect(Defect::Foreign));
    }
    if !(OLDEST_FORMAT..=FORMAT).contains(&half(8)) || half(12) != node_memory::VERSION {
        return Err(defect(Defect::Version));
    }
    if length > MAX_JSON {
        return Err(defect(Defect::Length));
    }
    let mut json = vec![0u8; length as usize];
    (&file).read_exact(&mut json).map_err(short)?;
    let mut key = Key::default();
    let key_file = directory.open_file(KEY, OFlag::O_RDWR).ok();
    let key_file = key_file.filter(|file| file.read_exact_at(&mut key, 0).is_ok());
    let key_file = key_file.ok_or_else(|| defect(Defect::NoKey))?;
    if blake3::keyed_hash(&key, &json) != head[24..] {
        return Err(defect(Defect::Description));
    }
    let header: Header = serde_json::from_slice(&json).map_err(|_| defect(Defect::Version))?;
    if half(8) < LOGS_BESIDE && header.about.wave.is_some() && header.job.protocol.logs() {
        return Err(defect(Defect::Version));
    }
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&head);
    hasher.update(&json);
    Ok(Opened {
        directory,
        key,
        key_file,
        path,
        file,
        header,
        hasher,
    })
}

/// Why there is no file in `directory`.
fn without_file(directory: &Path) -> Error {
    let path = directory.to_path_buf();
    match Directory::open(directory, Trust::Groups) {
        Ok(directory) if !directory.has(KEY) => Error::Nothing(path),
        Ok(directory) if runs(&directory) => Error::InUse(path),
        Ok(directory) => Error::OnlyImages(path, why_no_wave(&directory)),
        Err(_) => Error::Nothing(path),
    }
}

/// For a lost job that has left only images in `directory`.
fn why_no_wave(directory: &Directory) -> NoWave {
    let names = directory.names().into_iter().filter(|name| note::is_file_name(name));
    let notes = names.map(|name| {
        let file = directory.open_file(&name, OFlag::O_RDONLY).ok()?;
        let text = resurgo_image::file::note_of(Path::new(&name), file).ok()?;
        Note::read(&text).ok()
    });
    let mut notes = notes.peekable();
    if notes.peek().is_none() {
        return NoWave::NoImages;
    }
    let protocol = notes.flatten().map(|note| note.protocol).find(|name| !name.is_empty());
    let known = protocol.as_deref().and_then(Protocol::named);
    match (known.map(Protocol::waves), protocol) {
        (Some(kinds::Waves::None | kinds::Waves::OfEachGroup), Some(protocol)) => NoWave::NotLogged(protocol),
        (Some(_), _) => NoWave::Incomplete,
        (None, _) => NoWave::Unknown,
    }
}

impl Suspended {
    /// Reads the header of the file in `directory`, without its sections.
    pub fn find(directory: &Path) -> Result<Suspended, Error> {
        let opened = open(directory)?;
        Ok(Suspended {
            directory: directory.to_path_buf(),
            header: opened.header,
            is_running: runs(&opened.directory),
            has_launcher: printed::is_counted(&opened.directory),
        })
    }

    /// The images beside the file.
    pub fn sight(&self) -> Sight {
        let names = Directory::open(&self.directory, Trust::Groups).map_or(Vec::new(), |directory| directory.names());
        Sight {
            pieces: Vec::new(),
            is_shared: true,
            images: names.into_iter().filter_map(|name| name.into_string().ok()).collect(),
        }
    }

    /// Removes what killed ranks have left in memory.
    pub fn remove_leftovers(&self) {
        let name = resurgo_pmi::kvs_name(&self.header.job.name, 0);
        (0..self.header.about.launched).for_each(|rank| leftovers::remove(&name, rank));
    }

    /// The same, if it does not run. The rest of a killed run may take a moment to end.
    pub fn unless_running(self) -> Result<Suspended, Error> {
        let (begun, mut job) = (Instant::now(), self);
        while job.is_running {
            if job.has_launcher || begun.elapsed() > AFTER_A_KILL {
                return Err(Error::InUse(job.directory));
            }
            std::thread::sleep(Duration::from_millis(10));
            job = Suspended::find(&job.directory)?;
        }
        Ok(job)
    }

    /// The user's jobs that are suspended in directories below `directory`, and those that cannot be read.
    pub fn below(directory: &Path) -> io::Result<Vec<Result<Suspended, Error>>> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        // Other users' entries do not count.
        let own = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.uid() == geteuid().as_raw());
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(own).collect();
        paths.sort();
        let found = paths.iter().map(|path| Suspended::find(path));
        Ok(found
            .filter(|found| match found {
                // Nor does a running job without a file yet.
                Err(Error::Nothing(_) | Error::OnlyImages(..) | Error::InUse(_) | Error::OtherUser(..)) => false,
                // Another user's directory.
                Err(Error::Io(_, error)) => error.kind() != io::ErrorKind::PermissionDenied,
                _ => true,
            })
            .collect())
    }
}

/// A file that the resuming agent reads. No other run can resume the job while this is open.
pub struct Reader {
    opened: Opened,
    input: BufReader<File>,
}

impl Reader {
    /// Opens the file in `directory` if it is that of suspension `id`.
    pub fn open(directory: &Path, id: &str) -> Result<Reader, Error> {
        let opened = open(directory)?;
        if !lock(&opened.key_file) || !lock(&opened.file) {
            return Err(Error::InUse(directory.to_path_buf()));
        }
        if !opened.directory.is(FILE, &opened.file) || opened.header.id != id {
            // It has been resumed, and perhaps suspended again, in the meantime.
            return Err(Error::InUse(directory.to_path_buf()));
        }
        let input = opened
            .file
            .try_clone()
            .map_err(|error| Error::Io(opened.path.clone(), error))?;
        Ok(Reader {
            input: BufReader::with_capacity(1 << 20, input),
            opened,
        })
    }

    pub fn header(&self) -> &Header {
        &self.opened.header
    }

    /// The directory that it is in, and the job's key.
    pub fn directory(&self) -> io::Result<(Directory, Key)> {
        Ok((self.opened.directory.try_clone()?, self.opened.key))
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Defect(self.opened.path.clone(), Defect::Short),
            _ => Error::Io(self.opened.path.clone(), error),
        })
    }

    fn number(&mut self) -> Result<u64, Error> {
        let mut bytes = [0u8; 8];
        self.take(&mut bytes)?;
        self.opened.hasher.update(&bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Copies the next section into `file`, which is empty or has holes only; or skips it. Returns its length.
    pub fn section(&mut self, file: Option<&File>) -> Result<u64, Error> {
        let mut buffer = vec![0u8; STEP];
        loop {
            let (mut offset, mut length) = (self.number()?, self.number()?);
            if length == 0 {
                return Ok(offset);
            }
            while length > 0 {
                let part = length.min(buffer.len() as u64) as usize;
                self.take(&mut buffer[..part])?;
                self.opened.hasher.update(&buffer[..part]);
                if let Some(file) = file {
                    file.write_all_at(&buffer[..part], offset)
                        .map_err(|error| Error::Io("what the job had in memory".into(), error))?;
                }
                offset = offset.wrapping_add(part as u64);
                length -= part as u64;
            }
        }
    }

    /// After the last section: verifies that all is as written. Returns the directory, the key, and the locks that keep
    /// other runs from resuming the job.
    pub fn finish(mut self) -> Result<(Directory, Key, [File; 2]), Error> {
        let mut sum = [0u8; 32];
        self.take(&mut sum)?;
        if self.opened.hasher.finalize() != sum {
            return Err(Error::Defect(self.opened.path, Defect::Sum));
        }
        let Opened {
            directory,
            key,
            key_file,
            file,
            ..
        } = self.opened;
        Ok((directory, key, [key_file, file]))
    }
}

/// A sparse file to copy, without its unneeded parts.
#[derive(Default)]
pub struct Section {
    /// None: it is empty.
    pub file: Option<File>,
    /// How much of it; none: all.
    pub length: Option<u64>,
    /// In order.
    pub unneeded: Vec<Range<u64>>,
}

impl Section {
    /// The standard input so far, its file and length; none: no input is kept.
    pub fn of_input(input: Option<(impl AsRef<Path>, u64)>) -> io::Result<Section> {
        Ok(Section {
            file: input.as_ref().map(|(path, _)| File::open(path)).transpose()?,
            length: input.map(|(_, length)| length),
            ..Section::default()
        })
    }

    /// The next needed part from `at` on that may have other bytes than zeros.
    fn next(&self, mut at: u64) -> io::Result<Option<Range<u64>>> {
        let Some(file) = &self.file else { return Ok(None) };
        while let Some((start, end)) = next_data(file, self.length()?, at)? {
            let later = self.unneeded.partition_point(|unneeded| unneeded.end <= start);
            match self.unneeded.get(later) {
                Some(unneeded) if unneeded.start <= start => at = unneeded.end,
                Some(unneeded) => return Ok(Some(start..end.min(unneeded.start))),
                None => return Ok(Some(start..end)),
            }
        }
        Ok(None)
    }

    fn length(&self) -> io::Result<u64> {
        let whole = self
            .file
            .as_ref()
            .map_or(Ok(0), |file| Ok::<_, io::Error>(file.metadata()?.len()))?;
        Ok(self.length.map_or(whole, |length| length.min(whole)))
    }

    /// Bytes that are needed and not in holes.
    fn used(&self) -> io::Result<u64> {
        let (mut sum, mut at) = (0, 0);
        while let Some(part) = self.next(at)? {
            sum += part.end - part.start;
            at = part.end;
        }
        Ok(sum)
    }
}

/// A file that is being written, a part at a time.
pub struct Writer {
    key: Key,
    out: BufWriter<File>,
    hasher: blake3::Hasher,
    /// The sections left, the next one last.
    sections: Vec<Section>,
    /// The position in the present section.
    at: u64,
    bytes: u64,
}

impl Writer {
    /// Begins the file in `directory`, with room for everything. `header.about.wave`: the job keeps running.
    pub fn begin(directory: &Directory, key: &Key, header: &Header, mut sections: Vec<Section>) -> io::Result<Writer> {
        let name = if header.about.wave.is_some() { NEW_OF_WAVE } else { NEW };
        let file = directory.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC)?;
        let json = serde_json::to_vec(header)?;
        let mut expected = (HEAD + json.len() + 64 * sections.len()) as u64;
        for section in &sections {
            expected += section.used()?;
        }
        reserve(&file, expected)?;
        sections.reverse();
        let mut writer = Writer {
            key: *key,
            out: BufWriter::with_capacity(1 << 20, file),
            hasher: blake3::Hasher::new_keyed(key),
            sections,
            at: 0,
            bytes: 0,
        };
        writer.put(MAGIC)?;
        writer.put(&FORMAT.to_le_bytes())?;
        writer.put(&node_memory::VERSION.to_le_bytes())?;
        writer.put(&(json.len() as u64).to_le_bytes())?;
        writer.put(blake3::keyed_hash(&writer.key, &json).as_bytes())?;
        writer.put(&json)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn part(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(&offset.to_le_bytes())?;
        self.put(&(bytes.len() as u64).to_le_bytes())?;
        self.put(bytes)
    }

    /// Writes some more; false at the end.
    pub fn step(&mut self) -> io::Result<bool> {
        let Some(section) = self.sections.last() else {
            return Ok(false);
        };
        let (Some(part), Some(file)) = (section.next(self.at)?, &section.file) else {
            let length = section.length()?;
            self.sections.pop();
            self.at = 0;
            self.part(length, &[])?;
            return Ok(true);
        };
        let start = part.start;
        let mut buffer = vec![0u8; STEP.min((part.end - start) as usize)];
        file.read_exact_at(&mut buffer, start)?;
        self.at = start + buffer.len() as u64;
        let mut done = 0;
        let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
        let pages: Vec<&[u8]> = buffer.chunks(PAGE).collect();
        for run in pages.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let length = run.iter().map(|page| page.len()).sum::<usize>();
            if !is_zero(run[0]) {
                self.part(start + done as u64, &buffer[done..done + length])?;
            }
            done += length;
        }
        Ok(true)
    }

    /// Brings all written bytes to the disk. Returns its length.
    pub fn sync(mut self) -> io::Result<u64> {
        let sum = self.hasher.finalize();
        self.put(sum.as_bytes())?;
        let bytes = self.bytes;
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.set_len(bytes)?;
        file.sync_all()?;
        Ok(bytes)
    }

    /// Makes the written file the job's file in `directory`, in place of an older one. Returns its length.
    pub fn finish(self, directory: &Directory) -> io::Result<u64> {
        let bytes = self.sync()?;
        name(directory, false)?;
        // From here on it is the job's file. The directory itself may be new.
        directory.sync();
        Ok(bytes)
    }
}

/// Makes the written and synced file the job's file in `directory`: that of a wave or of a suspension. The name may not
/// be on the disk yet.
pub fn name(directory: &Directory, is_of_wave: bool) -> io::Result<()> {
    directory.rename(if is_of_wave { NEW_OF_WAVE } else { NEW }, FILE)
}

/// Removes incomplete files.
pub fn give_up(directory: &Directory) {
    let _ = directory.remove(NEW);
    let _ = directory.remove(NEW_OF_WAVE);
}

/// The job cannot be resumed from what has been written down; it may be written down again.
pub fn forget(directory: &Directory) {
    let _ = directory.remove(FILE);
    give_up(directory);
    if let Ok(directory) = directory.try_clone() {
        // Nobody waits for the disk.
        std::thread::spawn(move || directory.sync());
    }
}

/// The job cannot be resumed any more.
pub fn remove(directory: &Directory) {
    let _ = directory.remove(FILE);
    let _ = directory.remove(KEY);
    printed::remove(directory);
}

/// The next part of the first `length` bytes of a sparse file, from `at` on, that may have other bytes than zeros.
fn next_data(file: &File, length: u64, at: u64) -> io::Result<Option<(u64, u64)>> {
    use nix::errno::Errno;
    if at >= length {
        return Ok(None);
    }
    match lseek(file, at as i64, Whence::SeekData) {
        Ok(start) => {
            let end = lseek(file, start, Whence::SeekHole)?;
            let part = (start as u64, (end as u64).min(length));
            Ok((part.0 < part.1).then_some(part))
        }
        Err(Errno::ENXIO) => Ok(None),
        // A file system without holes.
        Err(Errno::EINVAL) => Ok(Some((at, length))),
        Err(error) => Err(error.into()),
    }
}

/// Reserves room for so many bytes, where the file system can.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes as i64) {
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;

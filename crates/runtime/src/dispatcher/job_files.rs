//! The job's directory as the dispatcher of several nodes uses it, and the record there that lets the job outlive all
//! of its processes. Agents report what they know of their ranks
//! ([`ToDispatcher::State`](resurgo_wire::control::ToDispatcher::State)). A thread writes that with the dispatcher's
//! own part ([`crate::suspended`]).
//!
//! The directory is on a file system that all nodes see, or each node has its own under the same path. A file that the
//! dispatcher puts into its own tells which. Images are in the directories of nodes; a resumed job finds out which node
//! has which.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::fcntl::OFlag;
use resurgo_protocol::coordinator::{Former, FormerSet, Place};
use resurgo_wire::control::{Job, JobDirectory, Sight, appnums};
use serde_json::{Value, json};

use crate::note::log_of;
use crate::suspended::ranks::RankState;
use crate::suspended::{self, About, Header, Key, Reader, Section, Suspended, Writer, transit};
use resurgo_store::own_directory::Directory;

/// The contents of a record: a wave, with those since the oldest; or the job at its suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Wave { number: u64, oldest: u64 },
    Suspension,
}

impl What {
    fn wave(self) -> Option<u64> {
        match self {
            What::Wave { number, .. } => Some(number),
            What::Suspension => None,
        }
    }
}

/// The outcome of a record.
pub(super) enum Ended {
    Written(What, u64),
    Failed(What, io::Error),
}

/// Nodes' reports on their ranks.
struct Gathering {
    what: What,
    /// Nodes whose report is missing.
    awaited: BTreeSet<usize>,
    ranks: BTreeMap<usize, Value>,
}

enum Step {
    /// A thread writes the file.
    Writing,
    /// The file has its name, which a thread brings to the disk.
    Naming,
}

pub(super) struct JobFiles {
    directory: Arc<Directory>,
    key: Key,
    /// Keeps other runs from resuming the job.
    locks: Vec<File>,
    /// See [`JobDirectory`].
    sign: String,
    /// The files that the job goes on from, until they are read.
    reader: Option<Reader>,
    /// The job, as a later run finds it.
    job: Job,
    gathering: Option<Gathering>,
    /// Waves whose transit this run has written.
    transit: BTreeSet<u64>,
    writing: Option<(What, Step, JoinHandle<io::Result<u64>>)>,
    /// Written to when a thread has a result.
    wake: Option<PipeWriter>,
}

impl JobFiles {
    /// The directory of a job that begins.
    pub fn create(job: &Job, directory: &OsStr) -> io::Result<JobFiles> {
        let directory = Directory::new_within(Path::new(directory), OsStr::new(&job.name))?;
        let (key, lock) = suspended::make_key(&directory)?;
        JobFiles::of(directory, key, vec![lock], job)
    }

    /// That of one that goes on.
    pub fn resume(job: &Job, suspended: &Suspended) -> Result<JobFiles, String> {
        let shown = suspended.directory.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        let reader = Reader::open(&suspended.directory, &suspended.header.id).map_err(|error| error.to_string())?;
        let (directory, key) = reader.directory().map_err(failed)?;
        let files = JobFiles::of(directory, key, Vec::new(), job).map_err(failed)?;
        Ok(JobFiles {
            reader: Some(reader),
            ..files
        })
    }

    fn of(directory: Directory, key: Key, locks: Vec<File>, job: &Job) -> io::Result<JobFiles> {
        let sign = format!("here-{:016x}", u64::from_le_bytes(crate::sys::random()?));
        directory.open_file(&sign, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        Ok(JobFiles {
            directory: Arc::new(directory),
            key,
            locks,
            sign,
            reader: None,
            job: suspended::lasting(job),
            gathering: None,
            transit: BTreeSet::new(),
            writing: None,
            wake: None,
        })
    }

    /// What agents need to know of it.
    pub fn place(&self) -> JobDirectory {
        JobDirectory {
            path: self.directory.path().as_os_str().to_owned(),
            key: self.key,
            sign: self.sign.clone(),
        }
    }

    /// All agents have come.
    pub fn begin(&mut self, job: &Job, wake: PipeWriter) {
        let _ = self.directory.remove(&self.sign);
        self.job = suspended::lasting(job);
        self.wake = Some(wake);
    }

    /// Reads all files that the job goes on from; the standard input so far goes into `input`.
    pub fn read(&mut self, input: Option<&Path>) -> Result<(), String> {
        let Some(mut reader) = self.reader.take() else {
            return Ok(());
        };
        let failed = |error: io::Error| format!("cannot keep standard input: {error}");
        let spool = input.map(|path| File::options().write(true).open(path)).transpose();
        let spool = spool.map_err(failed)?;
        let mut section = |file| reader.section(file).map_err(|error| error.to_string());
        section(None)?;
        section(None)?;
        let length = section(spool.as_ref())?;
        if let Some(spool) = spool {
            // Zeros at the end are in no file.
            spool.set_len(length).map_err(failed)?;
        }
        let (_, _, locks) = reader.finish().map_err(|error| error.to_string())?;
        self.locks.extend(locks);
        Ok(())
    }

    /// Those of these waves that have a transit file.
    pub fn have_transit(&self, waves: BTreeSet<u64>) -> Vec<u64> {
        let has = |wave: &u64| self.directory.has(transit::name(*wave));
        waves.into_iter().filter(has).collect()
    }

    /// The directory.
    pub fn file(&self) -> io::Result<std::fs::File> {
        self.directory.file().try_clone()
    }

    pub fn read_transit(&self, wave: u64) -> io::Result<Vec<u8>> {
        transit::read(&self.directory, &self.key, wave)
    }

    /// Those of these waves whose transit is still to be written.
    pub fn lacks_transit(&self, waves: &[u64]) -> Vec<u64> {
        let all = waves.iter().filter(|wave| !self.transit.contains(wave));
        all.copied().collect()
    }

    /// By rank, its program.
    pub fn programs(&self) -> Vec<u32> {
        appnums(&self.job.programs)
    }

    /// Begins to gather the reports of these nodes. `ends`: ranks that may be on none of them, as they have finished.
    /// Gives up an earlier gathering.
    pub fn gather(&mut self, what: What, nodes: Vec<usize>, ends: BTreeMap<usize, Value>) {
        self.gathering = Some(Gathering {
            what,
            awaited: nodes.into_iter().collect(),
            ranks: ends,
        });
    }

    /// A node has reported. Returns what can be recorded now.
    pub fn heard(&mut self, node: usize, wave: Option<u64>, ranks: Vec<(usize, Value)>) -> Option<What> {
        let gathering = self.gathering.as_mut()?;
        if gathering.what.wave() != wave || !gathering.awaited.remove(&node) {
            return None;
        }
        gathering.ranks.extend(ranks);
        gathering.awaited.is_empty().then_some(gathering.what)
    }

    /// A node is lost. Returns what cannot be recorded because of it.
    pub fn give_up_gathering(&mut self) -> Option<What> {
        self.gathering.take().map(|gathering| gathering.what)
    }

    /// Starts a thread that writes the gathered reports with the dispatcher's part. `input`: the standard input, and
    /// how much of it. `transit`: what was in transit, by wave.
    pub fn write(
        &mut self,
        about: Value,
        input: Option<(PathBuf, u64)>,
        transit: Vec<(u64, Vec<u8>)>,
    ) -> Option<Ended> {
        let Gathering { what, ranks, .. } = self.gathering.take()?;
        self.transit.extend(transit.iter().map(|(wave, _)| *wave));
        // All may have returned to this wave while a newer one was being written down.
        let former = self.writing.take().map(|(_, _, thread)| thread);
        match self.start_writing(about, ranks.into_values().collect(), input, transit, former) {
            Ok(thread) => self.writing = Some((what, Step::Writing, thread)),
            Err(error) => return Some(self.failed(what, error)),
        }
        None
    }

    fn start_writing(
        &self,
        about: Value,
        ranks: Vec<Value>,
        input: Option<(PathBuf, u64)>,
        transit: Vec<(u64, Vec<u8>)>,
        former: Option<JoinHandle<io::Result<u64>>>,
    ) -> io::Result<JoinHandle<io::Result<u64>>> {
        let about: About = serde_json::from_value(about)?;
        if ranks.len() < about.ranks {
            return Err(io::Error::other("not all of its ranks are known"));
        }
        let header = Header::of(about, self.job.clone(), json!({ "ranks": ranks }));
        let input = Section::of_input(input)?;
        let (directory, key) = (self.directory.clone(), self.key);
        self.in_thread(move || {
            // Both use the same names.
            former.map(JoinHandle::join);
            for (wave, bytes) in transit {
                transit::write(&directory, &key, wave, bytes)?.sync_all()?;
            }
            // The logs that waves need are beside their images.
            let sections = vec![Section::default(), Section::default(), input];
            let mut writer = Writer::begin(&directory, &key, &header, sections)?;
            while writer.step()? {}
            writer.sync()
        })
    }

    fn in_thread(
        &self,
        work: impl FnOnce() -> io::Result<u64> + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<u64>>> {
        let mut wake = self.wake.as_ref().map(PipeWriter::try_clone).transpose()?;
        std::thread::Builder::new().name("record".to_string()).spawn(move || {
            let answer = work();
            drop(wake.as_mut().map(|wake| wake.write(&[0])));
            answer
        })
    }

    /// The record that is complete, or has failed. `counts`: whether it still deserves its name.
    pub fn mind(&mut self, counts: impl FnOnce(What) -> bool) -> Option<Ended> {
        let (what, step, thread) = self.writing.take_if(|(_, _, thread)| thread.is_finished())?;
        let answer = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread has failed")));
        match (step, answer) {
            (Step::Naming, Ok(bytes)) => return Some(Ended::Written(what, bytes)),
            (Step::Writing, Ok(_)) if !counts(what) => {
                let error = io::Error::other("its images are not used any more");
                return Some(self.failed(what, error));
            }
            (Step::Writing, Ok(bytes)) => {
                let directory = self.directory.clone();
                let named = suspended::name(&directory, what.wave().is_some());
                let thread = named.and_then(|()| {
                    self.in_thread(move || {
                        directory.sync();
                        Ok(bytes)
                    })
                });
                match thread {
                    Ok(thread) => self.writing = Some((what, Step::Naming, thread)),
                    Err(error) => return Some(self.failed(what, error)),
                }
            }
            (_, Err(error)) => return Some(self.failed(what, error)),
        }
        None
    }

    fn failed(&mut self, what: What, error: io::Error) -> Ended {
        suspended::give_up(&self.directory);
        // Some may not have been written.
        self.transit.clear();
        Ended::Failed(what, error)
    }

    /// Removes the record.
    pub fn forget(&mut self) {
        self.gathering = None;
        // A record that is being written gets no name, as its wave does not count any more.
        self.writing.take_if(|(_, step, _)| matches!(step, Step::Naming));
        suspended::forget(&self.directory);
    }

    /// Removes what was in transit in other waves than these.
    pub fn remove_transit(&mut self, stay: &[u64]) {
        self.transit.retain(|wave| stay.contains(wave));
        for name in self.directory.names() {
            if transit::wave_of(&name).is_some_and(|wave| !stay.contains(&wave)) {
                let _ = self.directory.remove(&name);
            }
        }
    }

    /// The job does not begin.
    pub fn leave(self) {
        let _ = self.directory.remove(&self.sign);
        if self.reader.is_none() {
            let _ = self.directory.remove_all();
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// No process of the job runs any more. `finished`: the program has come to its end.
    pub fn close(self, finished: bool, well: bool) {
        if let Some((_, _, thread)) = self.writing {
            let _ = thread.join();
            suspended::give_up(&self.directory);
        }
        let _ = self.directory.remove(&self.sign);
        if finished {
            suspended::remove(&self.directory);
            if well && !self.job.image_files.keep {
                let _ = self.directory.remove_all();
            }
        }
    }
}

/// What a later run knows of ranks from the images that its nodes have.
pub(super) struct Found {
    pub ranks: Vec<Former>,
    /// Images that are on none of the nodes: rank, number, name of the file.
    pub missing: Vec<(usize, u64, String)>,
    /// Sets of images with parity, of which these nodes have pieces.
    pub sets: Vec<FormerSet>,
}

/// The sets whose pieces nodes see.
fn sets_of(sights: &[Sight]) -> Vec<FormerSet> {
    let mut sets: BTreeMap<u64, FormerSet> = BTreeMap::new();
    for (sight, node) in sights.iter().zip(0..) {
        for piece in &sight.pieces {
            let set = sets.entry(piece.set).or_insert_with(|| FormerSet {
                number: piece.number,
                set: piece.set,
                members: piece.members.clone(),
                pieces: Vec::new(),
            });
            let is_known = set.pieces.iter().any(|(index, _)| *index == piece.index);
            if (set.number, &set.members) == (piece.number, &piece.members) && !is_known {
                set.pieces.push((piece.index, node));
            }
        }
    }
    sets.into_values().collect()
}

impl Found {
    /// `is_shared`: all nodes see what one of them sees. `has_logs`: an image is of use with its log only.
    pub fn of(states: &[RankState], sights: &[Sight], is_shared: bool, has_logs: bool) -> Found {
        let mut missing = Vec::new();
        let sees = |sight: &Sight, name: &OsStr| sight.images.iter().any(|image| OsStr::new(image) == name);
        let has = |sight: &Sight, name: &OsStr| sees(sight, name) && (!has_logs || sees(sight, &log_of(name)));
        let ranks = states.iter().enumerate().map(|(rank, state)| {
            let mut former = Former {
                asked: state.images.asked,
                begun: state.images.begun || !state.images.files.is_empty(),
                finished: state.finished,
                ..Former::default()
            };
            for file in &state.images.files {
                let nodes = sights.iter().zip(0..).filter(|(sight, _)| has(sight, &file.name));
                let places: BTreeSet<Place> = nodes.map(|(_, node)| Place::Node(node)).collect();
                if places.is_empty() {
                    missing.push((rank, file.number, file.name.to_string_lossy().into_owned()));
                    continue;
                }
                former.files.push(file.number);
                if !is_shared {
                    former.places.insert(file.number, places);
                }
            }
            former
        });
        let ranks = ranks.collect();
        let sets = sets_of(sights);
        Found { ranks, missing, sets }
    }

    /// The rank has the image, or it can be made anew.
    pub fn has(&self, rank: usize, number: u64) -> bool {
        let has = |rank: usize| self.ranks.get(rank).is_some_and(|rank| rank.files.contains(&number));
        let can_be_made = |set: &FormerSet| {
            let files = set.members.iter().filter(|rank| has(**rank as usize)).count();
            set.number == number
                && set.members.contains(&(rank as u32))
                && files + set.pieces.len() >= set.members.len()
        };
        has(rank) || self.sets.iter().any(can_be_made)
    }

    /// All waves of which something is there.
    pub fn waves(&self) -> BTreeSet<u64> {
        let of_files = self.ranks.iter().flat_map(|rank| rank.files.iter().copied());
        of_files.chain(self.sets.iter().map(|set| set.number)).collect()
    }

    /// Each rank has an image of one and the same wave, or needs none.
    pub fn has_wave(&self) -> bool {
        let ranks = self.ranks.iter().zip(0..).filter(|(rank, _)| !rank.finished);
        let is_whole = |number: u64| ranks.clone().all(|(_, rank)| self.has(rank, number));
        ranks.clone().next().is_none() || self.waves().into_iter().any(is_whole)
    }
}

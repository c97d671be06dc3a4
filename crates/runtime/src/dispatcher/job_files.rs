//! The job's directory as the dispatcher of several nodes has it, and what it writes down there so that the job outlives all of its
//! processes: agents tell what they know of their ranks ([`ToDispatcher::State`](resurgo_wire::control::ToDispatcher::State)), and a thread
//! writes that with the dispatcher's own part ([`crate::suspended`]).
//!
//! The directory is on a file system that all nodes see, or each has one of its own under the same path: a file that the dispatcher puts
//! into its own tells. Images are in the directories of nodes; which of them has one is found out when the job goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::fcntl::OFlag;
use resurgo_protocol::coordinator::{Former, Place};
use resurgo_wire::control::{Job, JobDirectory, Sight};
use serde_json::{Value, json};

use crate::own_directory::Directory;
use crate::suspended::ranks::RankState;
use crate::suspended::{self, About, Header, Key, Reader, Section, Suspended, Writer};

/// What is written down: a wave, with those since the oldest; or the job as it is when it is suspended.
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

/// What has become of it.
pub(super) enum Ended {
    Written(What, u64),
    Failed(What, io::Error),
}

/// What nodes tell of their ranks.
struct Gathering {
    what: What,
    /// Those that have yet to tell.
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
    /// Keeps others from resuming the job.
    locks: Vec<File>,
    /// See [`JobDirectory`].
    sign: String,
    /// What the job goes on from, until it is read.
    reader: Option<Reader>,
    /// As a later run is to find it.
    job: Job,
    gathering: Option<Gathering>,
    writing: Option<(What, Step, JoinHandle<io::Result<u64>>)>,
    /// Written to when a thread has something to say.
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
            writing: None,
            wake: None,
        })
    }

    /// What agents are told of it.
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

    /// Reads all that the job goes on from; the standard input so far goes into `input`.
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
            // The last of it may be zeros, which are in no file.
            spool.set_len(length).map_err(failed)?;
        }
        let (_, _, locks) = reader.finish().map_err(|error| error.to_string())?;
        self.locks.extend(locks);
        Ok(())
    }

    /// These nodes are asked for what they know of their ranks. What was asked before is not waited for any more.
    pub fn gather(&mut self, what: What, nodes: Vec<usize>) {
        self.gathering = Some(Gathering {
            what,
            awaited: nodes.into_iter().collect(),
            ranks: BTreeMap::new(),
        });
    }

    /// A node has told. Answers what can be written down now.
    pub fn heard(&mut self, node: usize, wave: Option<u64>, ranks: Vec<(usize, Value)>) -> Option<What> {
        let gathering = self.gathering.as_mut()?;
        if gathering.what.wave() != wave || !gathering.awaited.remove(&node) {
            return None;
        }
        gathering.ranks.extend(ranks);
        gathering.awaited.is_empty().then_some(gathering.what)
    }

    /// A node is lost. Answers what cannot be written down for that.
    pub fn give_up_gathering(&mut self) -> Option<What> {
        self.gathering.take().map(|gathering| gathering.what)
    }

    /// A thread begins to write what has been gathered, with the dispatcher's part. `input`: the standard input, and how much of it.
    pub fn write(&mut self, about: Value, input: Option<(PathBuf, u64)>) -> Option<Ended> {
        let Gathering { what, ranks, .. } = self.gathering.take()?;
        match self.start_writing(about, ranks.into_values().collect(), input) {
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
    ) -> io::Result<JoinHandle<io::Result<u64>>> {
        let about: About = serde_json::from_value(about)?;
        if ranks.len() < about.ranks {
            return Err(io::Error::other("not all of its ranks are known"));
        }
        let header = Header::of(about, self.job.clone(), json!({ "ranks": ranks }));
        let input = Section::of_input(input)?;
        let (directory, key) = (self.directory.clone(), self.key);
        self.in_thread(move || {
            // Logs are not written down: of what is on several nodes nothing else is in the memory.
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

    /// What has come to its end. `counts`: whether that is still worth a name.
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

    fn failed(&self, what: What, error: io::Error) -> Ended {
        suspended::give_up(&self.directory);
        Ended::Failed(what, error)
    }

    /// The job does not begin after all.
    pub fn leave(self) {
        let _ = self.directory.remove(&self.sign);
        if self.reader.is_none() {
            let _ = self.directory.remove_all();
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Nothing of the job runs any more. `finished`: the program has come to its end.
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

/// What a later run knows of ranks, by what the nodes of this one have of their images.
pub(super) struct Found {
    pub ranks: Vec<Former>,
    /// Images that are on none of the nodes: rank, number, name of the file.
    pub missing: Vec<(usize, u64, String)>,
}

impl Found {
    /// `is_shared`: all nodes see what one of them sees.
    pub fn of(states: &[RankState], sights: &[Sight], is_shared: bool) -> Found {
        let mut missing = Vec::new();
        let has = |sight: &Sight, name: &OsStr| sight.images.iter().any(|image| OsStr::new(image) == name);
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
        Found { ranks, missing }
    }

    /// There is an image of which each rank has its own, or nothing is needed of one.
    pub fn has_wave(&self) -> bool {
        let mut ranks = self.ranks.iter().filter(|rank| !rank.finished);
        let Some(first) = ranks.next() else { return true };
        let mut numbers = first.files.iter();
        numbers.any(|number| ranks.clone().all(|rank| rank.files.contains(number)))
    }
}

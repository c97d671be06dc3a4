//! Recorded waves are copied into the job's places ([`crate::flush`]): a place has all files that a record names, or
//! nothing of it counts. Nothing waits for a copy, and none that fails costs the job more than a warning.
//!
//! ```text
//! recorded ──► Begin, in the thread of the place
//! Begun ──► Flush to all agents, and Send for the dispatcher's own files
//! Flushed by all, Sent ──► Commit: the wave is there. Older ones may go
//! ```
//!
//! A place takes one wave at a time. Waves that are recorded meanwhile do not go there, but for the last.

mod dispatcher_side;
mod fetching;
mod servers;
mod servers_side;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use resurgo_store::{Described, Generation, PartNote, Source};
use resurgo_wire::replica::Offer;

use crate::fetch::{self, Fetcher};
use crate::flush::{Answer, FIRST_LOOK, Order, Site, Whole, Worker};
pub(super) use servers::StoreServers;
pub use servers::{StoreHost, Stores};

/// How long the end of a job waits for a place that is to forget it, and gets nowhere.
const PATIENCE: Duration = Duration::from_secs(10);

/// A place that has taken so many waves in a row has caught up.
const IN_TIME: u32 = 10;

/// A recorded wave, and the oldest one that its record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wave {
    pub number: u64,
    pub oldest: u64,
}

/// What a place does.
enum Step {
    Idle,
    /// Its thread begins a generation for this wave.
    Beginning(Wave),
    /// Files go there.
    Sending {
        generation: Generation,
        /// Nodes, and the dispatcher ([`DISPATCHERS`]), whose parts are missing.
        awaited: BTreeSet<u32>,
        parts: Vec<PartNote>,
        put: u64,
        /// Images of the wave that are not yet among the files.
        missing: usize,
        offers: Vec<Offer>,
    },
    /// The generation is to count, with so many bytes; so many went there.
    Committing {
        generation: Generation,
        bytes: u64,
        put: u64,
        offers: Vec<Offer>,
    },
}

impl Step {
    /// The wave that goes there.
    fn wave(&self) -> Option<u64> {
        match self {
            Step::Idle => None,
            Step::Beginning(wave) => Some(wave.number),
            Step::Sending { generation, .. } | Step::Committing { generation, .. } => Some(generation.number),
        }
    }
}

struct Level {
    place: Described,
    worker: Worker,
    step: Step,
    /// Since the last wave was to go there.
    began: Instant,
    /// Waves that have been recorded.
    waves: u64,
    /// A wave was due while another was on its way.
    is_due: bool,
    /// It has been told that waves come too fast; since then so many in a row were in time.
    behind: Option<u32>,
    /// It looks which waves of former runs it has.
    looks: bool,
    /// The waves that it has, the newest last.
    whole: Vec<Whole>,
}

impl Level {
    fn new(site: Site, tell: impl Fn(Answer) + Send + 'static) -> io::Result<Level> {
        Ok(Level {
            place: site.place.clone(),
            worker: Worker::start(site, tell)?,
            step: Step::Idle,
            began: Instant::now(),
            waves: 0,
            is_due: false,
            behind: None,
            looks: false,
            whole: Vec::new(),
        })
    }

    fn look(&mut self, numbers: BTreeSet<u64>) {
        self.looks = true;
        self.worker.order(Order::Look { numbers });
    }

    fn begin(&mut self, wave: Wave) {
        self.is_due = false;
        self.began = Instant::now();
        self.step = Step::Beginning(wave);
        self.worker.order(Order::Begin { number: wave.number });
    }
}

/// The places of the job.
pub(super) struct Flushes {
    levels: Vec<Level>,
    answers: Receiver<(usize, Answer)>,
    /// What brings back what was in transit, when it is needed first, and what it has brought.
    sites: Vec<Site>,
    fetcher: Option<Fetcher>,
    fetched: (Sender<fetch::Answer>, Receiver<fetch::Answer>),
    wake: PipeWriter,
    /// The last wave that nodes got from places.
    coming: u64,
    newest: Option<Recorded>,
    /// Until this run has recorded a wave: the one that it goes on from.
    floor: Option<u64>,
    /// The waves of former runs that this one could return to.
    former: BTreeSet<u64>,
    /// Those that the job has started itself.
    servers: StoreServers,
    /// Places that could not be reached when the job began, and why.
    away: Vec<(String, String)>,
}

/// The newest record, with those of its files that no agent has.
struct Recorded {
    wave: Wave,
    /// So many ranks have an image of the wave. The ends of all others are part of it.
    images: usize,
    files: io::Result<Vec<(String, File)>>,
}

impl Recorded {
    /// The files, each with a position of its own.
    fn sources(&self) -> Result<Vec<Source>, String> {
        let files = self.files.as_ref().map_err(io::Error::to_string)?;
        let again = files.iter().map(|(name, file)| {
            let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|error| error.to_string())?;
            let name = name.clone();
            Ok(Source { name, file })
        });
        again.collect()
    }
}

impl Flushes {
    /// `away`: places that cannot be reached yet. `wake` is written to when a place has an answer.
    pub fn start(
        sites: Vec<Site>,
        servers: StoreServers,
        away: Vec<(String, String)>,
        wake: &PipeWriter,
    ) -> io::Result<Flushes> {
        let (way, answers) = channel();
        let levels = sites.iter().cloned().enumerate().map(|(place, site)| {
            let (way, wake) = (way.clone(), wake.try_clone()?);
            Level::new(site, move |answer| {
                if way.send((place, answer)).is_ok() {
                    let _ = (&wake).write(&[0]);
                }
            })
        });
        Ok(Flushes {
            levels: levels.collect::<io::Result<_>>()?,
            answers,
            sites,
            fetcher: None,
            fetched: channel(),
            wake: wake.try_clone()?,
            coming: 0,
            newest: None,
            floor: None,
            former: BTreeSet::new(),
            servers,
            away,
        })
    }

    /// The job goes on from this wave, if it is one: a place may have newer ones, which could not be read. `former`: the
    /// waves that it could return to. Waits a moment until places have told which of these they have.
    pub fn go_on_from(&mut self, wave: Option<u64>, mut former: BTreeSet<u64>) {
        self.floor = wave;
        former.retain(|number| wave.is_none_or(|wave| *number <= wave));
        for level in &mut self.levels {
            level.look(former.clone());
        }
        self.former = former;
        let end = Instant::now() + FIRST_LOOK;
        while self.levels.iter().any(|level| level.looks)
            && let Ok((place, answer)) = self.answers.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            if let Answer::Seen(seen) = answer {
                self.seen(place, seen.unwrap_or_default());
            }
        }
    }

    /// A place has these waves of former runs.
    fn seen(&mut self, place: usize, seen: Vec<Whole>) {
        let (level, former) = (&mut self.levels[place], &self.former);
        level.looks = false;
        for whole in seen {
            if former.contains(&whole.number) && !level.has(whole.number) {
                level.whole.push(whole);
            }
        }
        level.whole.sort_by_key(|whole| whole.number);
    }

    /// The job does not go on from newer waves any more.
    fn forget(&mut self, after: u64) {
        self.former.retain(|number| *number <= after);
        for level in &mut self.levels {
            if let Step::Sending { generation, .. } = std::mem::replace(&mut level.step, Step::Idle) {
                level.worker.order(Order::Abandon { generation });
            }
            level.is_due = false;
            level.whole.retain(|whole| whole.number <= after);
            level.worker.order(Order::Forget { after });
        }
    }

    /// A server of the place does not come back: what the place has counts no more.
    fn is_away(&mut self, place: usize) {
        let gone = std::mem::take(&mut self.levels[place].whole);
        self.former.extend(gone.iter().map(|whole| whole.number));
    }

    /// It has come back: if all are there, the place tells what it has.
    fn is_back(&mut self, place: usize) {
        let mut servers = self.servers.all.iter();
        if servers.all(|server| server.place != place || !server.is_away) {
            self.levels[place].look(self.former.clone());
        }
    }

    /// The places in which something of the job is to be removed, by their names.
    pub fn to_be_left(&self, forget: bool) -> Option<String> {
        // A server that the job has started removes all itself.
        let levels = self.levels.iter().filter(|level| forget && level.place.start.is_none());
        let places: Vec<&str> = levels.map(|level| level.place.shown.as_str()).collect();
        (!places.is_empty()).then(|| places.join(", "))
    }

    /// No process of the job runs any more. `forget`: nothing of it stays in its places. Returns why something does
    /// nevertheless, and servers of the job's own whose directories stay.
    fn close(mut self, forget: bool) -> (Vec<String>, Vec<(String, PathBuf)>) {
        let mut left = Vec::new();
        if forget {
            for level in &self.levels {
                level.worker.stop_sending();
                // A server that the job has started removes all itself.
                if level.place.start.is_none() {
                    level.worker.order(Order::Remove);
                }
            }
            for level in self.levels.drain(..) {
                if !level.worker.finish(PATIENCE) && level.place.start.is_none() {
                    left.push(format!("{}: it does not answer", level.place.shown));
                }
            }
            left.extend(self.answers.try_iter().filter_map(|(_, answer)| match answer {
                Answer::Removed(removed) => removed.err(),
                _ => None,
            }));
        }
        self.levels.clear();
        (left, self.servers.end(forget, PATIENCE))
    }
}

//! The thread that copies files of a job into one of its places ([`resurgo_store`]), and does what takes long there.
//! Agents and the dispatcher have one for each place. (SCR calls this a flush: Moody 2010, §III.)
//!
//! Orders are carried out one after the other. A place that does not answer delays nothing but copies there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use resurgo_store::{
    About, Described, Error, GRACE, Generation, Kind, PartNote, Progress, STARTED_KEY, Sender as Parts, Source, Store,
    StoreKey, Variables,
};
use resurgo_wire::replica::Offer;
use serde::{Deserialize, Serialize};

use crate::{background, note};

/// The number of the part with the dispatcher's files; agents have those of their nodes.
pub const DISPATCHERS: u32 = u32::MAX;
/// How often a launcher says that it still writes a generation.
const RENEWAL: Duration = Duration::from_secs(60);
/// How long the start of a job waits for its places.
pub const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The thread's priority is lower by this.
const NICE: i32 = 10;

/// What the thread does.
pub enum Order {
    /// Begins a generation of the job.
    Begin { number: u64 },
    /// Copies files of this process's node as a part of it.
    Send {
        generation: Generation,
        sources: Vec<Source>,
    },
    /// All parts are there: the generation counts. Older ones go, but for `keep`.
    Commit {
        generation: Generation,
        about: About,
        parts: Vec<PartNote>,
        keep: usize,
    },
    /// The generation will never count.
    Abandon { generation: Generation },
    /// Finds out which of these generations are there.
    Look { numbers: BTreeSet<u64> },
    /// The job does not go on from generations with higher numbers.
    Forget { after: u64 },
    /// Nothing of the job stays there.
    Remove,
}

/// What became of an order.
pub enum Answer {
    Begun(Result<Generation, String>),
    Sent(Generation, Result<Sent, String>),
    Committed(Generation, Result<(), String>),
    /// Those that are there, in order.
    Seen(Result<Vec<Whole>, String>),
    /// The job is removed.
    Removed(Result<(), String>),
}

/// A part that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub note: PartNote,
    /// Bytes that went to the place: other chunks were there already.
    pub put: u64,
    /// So many of its files are images of the wave.
    pub images: usize,
    /// What nodes must know of these images when they come back.
    pub offers: Vec<Offer>,
}

/// A wave that is in a place, and what nodes must know of its images when they come back.
pub struct Whole {
    pub number: u64,
    pub offers: Vec<Offer>,
}

/// The name of these offers in what a manifest says about the job.
pub const IMAGES: &str = "images";

/// What processes of the job need for its places, and nobody else may know.
#[derive(Default, Serialize, Deserialize)]
pub struct Secrets {
    /// What the key of `--store-key` is made of; empty: there is none.
    pub key: Vec<u8>,
    /// What object stores need of the launcher's environment.
    variables: Variables,
}

impl Secrets {
    /// Those of this process for these places. `of_servers`: the key of servers that the job has started.
    pub fn new(key: &[u8], of_servers: [u8; 32], places: &[Described]) -> Secrets {
        let mut variables: Variables = places.iter().flat_map(Described::variables).collect();
        if places.iter().any(|place| place.start.is_some()) {
            let of_servers = blake3::Hash::from(of_servers).to_hex().to_string();
            variables.push((STARTED_KEY.to_string(), of_servers));
        }
        variables.sort();
        variables.dedup();
        let key = key.to_vec();
        Secrets { key, variables }
    }

    /// As agents get them.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// # Errors
    /// They were encoded otherwise.
    pub fn decode(bytes: &[u8]) -> Result<Secrets, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("the secrets of places: {error}"))
    }
}

/// A place as processes of the job know it.
#[derive(Clone)]
pub struct Site {
    pub place: Described,
    pub key: Option<StoreKey>,
    variables: Variables,
    pub job: String,
    /// Of the part that this process sends.
    pub node: u32,
}

impl Site {
    /// The places in `texts`, which one that has read the options has written.
    ///
    /// # Errors
    /// One of them is none.
    pub fn all(texts: &[String], secrets: &Secrets, job: &str, node: u32) -> Result<Vec<Site>, String> {
        let key = (!secrets.key.is_empty()).then(|| StoreKey::of(&secrets.key));
        let site = |text: &String| {
            Ok(Site {
                place: Described::parse(text)?,
                key: key.clone(),
                variables: secrets.variables.clone(),
                job: job.to_string(),
                node,
            })
        };
        texts.iter().map(site).collect()
    }

    /// `make`: to write there; a missing directory is made.
    pub fn store(&self, make: bool) -> Result<Store, Error> {
        let place = self.place.open_with(make, &self.variables)?;
        Ok(Store::new(place, self.key.clone()))
    }

    /// # Errors
    /// The place cannot be used.
    fn examine(&self) -> Result<(), Error> {
        self.store(true)?.generations(&self.job).map(|_| ())
    }
}

/// Looks whether places can be used, all at once. Returns those that do not answer soon, or cannot be reached, with the
/// reason: they may be there later.
///
/// # Errors
/// A place will never be usable.
pub fn examine(sites: &[Site]) -> Result<Vec<(String, String)>, Error> {
    let (way, answers) = channel();
    for (at, site) in sites.iter().enumerate() {
        let (way, site) = (way.clone(), site.clone());
        // It may wait for a server for long: nobody waits for the thread then.
        let begun = std::thread::Builder::new().spawn(move || way.send((at, site.examine())));
        begun.map_err(|error| Error::new(sites[at].place.shown.clone(), "", Kind::Io(error)))?;
    }
    let end = Instant::now() + FIRST_LOOK;
    let mut away: BTreeMap<usize, String> = (0..sites.len())
        .map(|at| (at, "it does not answer".to_string()))
        .collect();
    while !away.is_empty()
        && let Ok((at, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        match answer {
            Ok(()) => away.remove(&at),
            Err(error) if error.is_passing() => away.insert(at, error.kind.to_string()),
            Err(error) => return Err(error),
        };
    }
    let shown = |(at, why): (usize, String)| (sites[at].place.shown.clone(), why);
    Ok(away.into_iter().map(shown).collect())
}

/// The handle of the thread. Without it the thread ends after its present order.
pub struct Worker {
    orders: Option<Sender<Order>>,
    progress: Arc<Progress>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// `tell` gets each answer, in the thread.
    pub fn start(site: Site, tell: impl Fn(Answer) + Send + 'static) -> std::io::Result<Worker> {
        let (orders, taken) = channel();
        let progress = Arc::<Progress>::default();
        let at = At::new(site, progress.clone());
        let thread = background::spawn("flush", NICE, move || at.serve(&taken, &tell))?;
        Ok(Worker {
            orders: Some(orders),
            progress,
            thread: Some(thread),
        })
    }

    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Without a thread nobody waits for an answer.
            let _ = orders.send(order);
        }
    }

    /// A transfer fails soon.
    pub fn stop_sending(&self) {
        self.progress.stop(true);
    }

    /// Waits until the thread has carried out all orders, or has got nowhere for so long. Returns whether it has.
    pub fn finish(mut self, patience: Duration) -> bool {
        self.orders = None;
        let Some(thread) = self.thread.take() else { return true };
        let so_far = || (self.progress.handled(), self.progress.removed());
        let (mut seen, mut since) = (so_far(), Instant::now());
        while !thread.is_finished() && since.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(5));
            if so_far() != seen {
                (seen, since) = (so_far(), Instant::now());
            }
        }
        thread.is_finished()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        self.stop_sending();
    }
}

/// The thread's own.
struct At {
    site: Site,
    store: Option<Store>,
    parts: Option<Parts>,
    progress: Arc<Progress>,
    /// The generation that this process has begun.
    begun: Option<Generation>,
}

impl At {
    fn new(site: Site, progress: Arc<Progress>) -> At {
        At {
            site,
            store: None,
            parts: None,
            progress,
            begun: None,
        }
    }

    fn serve(mut self, orders: &Receiver<Order>, tell: &dyn Fn(Answer)) {
        let mut renewed = Instant::now();
        loop {
            let order = match self.begun {
                Some(_) => orders.recv_timeout(RENEWAL.saturating_sub(renewed.elapsed())),
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match order {
                Ok(order) => {
                    if let Some(answer) = self.carry_out(order) {
                        tell(answer);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if renewed.elapsed() >= RENEWAL {
                renewed = Instant::now();
                if let (Some(generation), Some(store)) = (self.begun, &self.store) {
                    // If it fails until the grace period is over, the generation is given up, and this is told then.
                    let _ = store.renew(&self.site.job, generation);
                }
            }
        }
    }

    fn store(&mut self) -> Result<Store, Error> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let store = self.site.store(true)?;
        self.store = Some(store.clone());
        Ok(store)
    }

    /// Of each number, the generation that readers take; none if it cannot be read, or says nothing of its images.
    fn look(&mut self, numbers: &BTreeSet<u64>) -> Result<Vec<Whole>, Error> {
        let (job, store) = (self.site.job.clone(), self.store()?);
        let there: BTreeMap<u64, Generation> = store
            .generations(&job)?
            .into_iter()
            .filter(|generation| numbers.contains(&generation.number))
            .map(|generation| (generation.number, generation))
            .collect();
        let whole = there.into_iter().filter_map(|(number, generation)| {
            let mut manifest = store.manifest(&job, generation).ok()?;
            let offers = serde_json::from_value(manifest.about.more[IMAGES].take()).ok()?;
            Some(Whole { number, offers })
        });
        Ok(whole.collect())
    }

    fn carry_out(&mut self, order: Order) -> Option<Answer> {
        let job = self.site.job.clone();
        let told = |error: Error| error.to_string();
        Some(match order {
            Order::Begin { number } => {
                let begun = self.store().and_then(|store| store.begin(&job, number));
                self.begun = begun.as_ref().ok().copied();
                Answer::Begun(begun.map_err(told))
            }
            Order::Send { generation, sources } => {
                Answer::Sent(generation, self.send(generation, sources).map_err(told))
            }
            Order::Commit {
                generation,
                about,
                parts,
                keep,
            } => {
                let committed = self
                    .store()
                    .and_then(|store| store.commit(&job, generation, about, parts));
                self.begun = None;
                if committed.is_ok()
                    && let Ok(store) = self.store()
                {
                    // What stays is removed by the next one.
                    let _ = store.gc(&job, Some(keep), GRACE);
                }
                Answer::Committed(generation, committed.map(|_| ()).map_err(told))
            }
            Order::Look { numbers } => Answer::Seen(self.look(&numbers).map_err(told)),
            Order::Abandon { generation } => {
                self.begun = None;
                // Otherwise it is given up after the grace period.
                let _ = self.store().and_then(|store| store.abandon(&job, generation));
                return None;
            }
            Order::Forget { after } => {
                self.begun = None;
                // A place that cannot be reached keeps them, and whoever resumes the job there sees their numbers.
                let _ = self.store().and_then(|store| forget(&store, &job, after));
                return None;
            }
            Order::Remove => {
                self.begun = None;
                let removed = self
                    .store()
                    .and_then(|store| store.remove_showing(&job, &self.progress));
                Answer::Removed(removed.map_err(told))
            }
        })
    }

    fn send(&mut self, generation: Generation, sources: Vec<Source>) -> Result<Sent, Error> {
        let store = self.store()?;
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let parts = Parts::new(store, &self.site.job, self.site.node, self.site.place.rate);
                self.parts.insert(parts.with_progress(self.progress.clone()))
            }
        };
        let is_of_wave = |source: &&Source| note::number_of(OsStr::new(&source.name)) == Some(generation.number);
        let images = sources.iter().filter(is_of_wave).count();
        let before = self.progress.put();
        let note = parts.send(generation, sources)?;
        let put = self.progress.put() - before;
        // Whoever has named the files describes them.
        let offers = Vec::new();
        Ok(Sent {
            note,
            put,
            images,
            offers,
        })
    }
}

fn forget(store: &Store, job: &str, after: u64) -> Result<(), Error> {
    let all = store.generations(job)?.into_iter();
    all.filter(|generation| generation.number > after)
        .try_for_each(|generation| store.remove_generation(job, generation))
}

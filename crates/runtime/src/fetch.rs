//! The thread that brings files of a wave back from the job's places while the job runs: for images of an agent's ranks,
//! and for what was in transit.
//!
//! A file gets its own name when all of it is there, is what it should be, and is on the disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use resurgo_store::{Error, Store, fetch_from};
use resurgo_wire::replica::Offer;

use crate::background;
use crate::flush::Site;
use crate::suspended::transit;

/// Ranks wait for it, but other ranks on the machine may be of other jobs.
const NICE: i32 = 5;

/// Files that belong together.
pub struct Order {
    pub wave: u64,
    /// The image, as the node that wrote it has described it. None: it is what was in transit.
    pub image: Option<Offer>,
    /// Their names, in the place and in the directory.
    pub files: Vec<String>,
}

impl Order {
    /// What was in transit in the wave.
    pub fn transit(wave: u64) -> Order {
        Order {
            wave,
            image: None,
            files: vec![transit::name(wave).to_string_lossy().into_owned()],
        }
    }
}

/// What became of an order: their bytes, or why there is nothing.
pub type Answer = (Order, Result<u64, String>);

/// The handle of the thread, which ends after its present order without it.
pub struct Fetcher {
    orders: Sender<Order>,
}

/// A file on its way, which must be what the order says.
pub type Check = fn(File, &Order) -> Result<(), String>;

impl Fetcher {
    /// `sites`: the nearest first. Files go into `directory`; `check` gets the first one of an order. `tell` gets each
    /// answer, in the thread.
    pub fn start(
        sites: Vec<Site>,
        directory: File,
        check: Check,
        tell: impl Fn(Answer) + Send + 'static,
    ) -> io::Result<Fetcher> {
        let (orders, taken) = channel::<Order>();
        background::spawn("fetch", NICE, move || {
            // By its descriptor: nobody exchanges the directory.
            let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
            while let Ok(order) = taken.recv() {
                let fetched = fetch(&sites, &path, &order, check);
                if fetched.is_ok() {
                    // If that fails, a loss of power may lose the names; then the files are fetched again.
                    let _ = directory.sync_all();
                }
                tell((order, fetched));
            }
        })?;
        Ok(Fetcher { orders })
    }

    pub fn order(&self, order: Order) {
        // Without a thread nobody waits for an answer.
        let _ = self.orders.send(order);
    }
}

fn temporary(name: &str) -> String {
    format!("fetched-{name}")
}

fn fetch(sites: &[Site], directory: &Path, order: &Order, check: Check) -> Result<u64, String> {
    let path = |name: &str| directory.join(temporary(name));
    let remove = || {
        for name in &order.files {
            let _ = fs::remove_file(path(name));
        }
    };
    // Of a former life of this process.
    remove();
    let finish = || {
        let bytes = bring(sites, directory, order)?;
        for (at, name) in order.files.iter().enumerate() {
            let failed = |error: io::Error| format!("{name}: {error}");
            let file = File::open(path(name)).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            if at == 0 {
                check(file, order)?;
            }
        }
        // The first one last: then all are there.
        for name in order.files.iter().rev() {
            let named = fs::rename(path(name), directory.join(name));
            named.map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(bytes)
    };
    let finished = finish();
    if finished.is_err() {
        remove();
    }
    finished
}

/// Brings the files from the nearest places that have them whole.
fn bring(sites: &[Site], directory: &Path, order: &Order) -> Result<u64, String> {
    let mut failed: Option<Error> = None;
    let mut stores: Vec<Store> = Vec::new();
    for site in sites {
        match site.store(false) {
            Ok(store) => stores.push(store),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let Some(site) = sites.first().filter(|_| !stores.is_empty()) else {
        return Err(failed.map_or("the job has no place".to_string(), |error| error.to_string()));
    };
    let wanted = |_: u32, file: &resurgo_store::FileEntry| {
        let is_wanted = order.files.contains(&file.name);
        is_wanted.then(|| temporary(&file.name))
    };
    let fetched = fetch_from(&stores, &site.job, order.wave, &wanted, directory, &|_| {});
    let fetched = fetched.map_err(|error| error.to_string())?;
    match fetched.files == order.files.len() as u64 {
        true => Ok(fetched.bytes),
        false => Err(format!(
            "wave {} has no {} there",
            order.wave,
            order.files.join(" with ")
        )),
    }
}

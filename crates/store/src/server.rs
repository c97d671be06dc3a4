//! A checkpoint server: `resurgo checkpoint-server`.
//!
//! Each user has the directory `users/NAME` below that of the server, which is a [place](crate::Dir) itself. So an
//! object is whole or not there, whatever happens to the server. Each connection has a thread; their number is bounded,
//! and strangers do not take the places of users.

mod client;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use resurgo_wire::store::number_of;

use crate::dir::Dir;
use crate::error::{Error, Kind};
use crate::name;
use crate::place::Place;
use crate::server_key::{self, ServerKey};
use crate::store::Store;

/// Connections of users at the same time.
const CLIENTS: usize = 512;
/// Those that have not proved a key yet.
const STRANGERS: usize = 64;
/// The user in a file of keys that the server has made.
const FIRST_USER: &str = "resurgo";
/// The file of keys, if none is named, and the one that only one server can lock.
const KEYS: &str = "keys";
const LOCK: &str = "lock";
const USERS: &str = "users";
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Old jobs are looked for so often, or more often if jobs expire sooner.
const LOOK: Duration = Duration::from_secs(600);

/// What a server is told.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub directory: PathBuf,
    pub key_file: Option<PathBuf>,
    /// Without such a file: the key of its only user, which is written into the directory.
    pub key: Option<[u8; 32]>,
    /// Bytes that each user may have.
    pub quota: Option<u64>,
    /// Jobs go that were not touched for so long.
    pub expire: Option<Duration>,
}

/// A server that may begin to serve.
pub struct Server {
    users: HashMap<u64, Arc<User>>,
    expire: Option<Duration>,
    /// Held until the process ends.
    _lock: File,
    clients: AtomicUsize,
    /// Connections that have not proved a key yet, the oldest first.
    strangers: Mutex<BTreeMap<u64, TcpStream>>,
}

/// A user of a server.
struct User {
    key: ServerKey,
    dir: Dir,
    path: PathBuf,
    quota: Option<u64>,
    /// Bytes of all objects.
    used: AtomicU64,
    /// When jobs were read; what writes shows in the directory.
    read: Mutex<HashMap<String, Instant>>,
}

/// One of the connections that are counted.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize, most: usize) -> Option<Counted<'a>> {
        let counted = Counted(count);
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl User {
    fn open(key: ServerKey, users: &Path, quota: Option<u64>) -> Result<User, Error> {
        let path = users.join(&key.user);
        let user = User {
            dir: Dir::open(&path, true)?,
            path,
            key,
            quota,
            used: AtomicU64::new(0),
            read: Mutex::default(),
        };
        user.dir.remove_all_temporaries()?;
        user.count()?;
        Ok(user)
    }

    /// Finds out what is used.
    fn count(&self) -> Result<(), Error> {
        let mut used = 0;
        for job in self.dir.list("")? {
            for folder in name::FOLDERS {
                let entries = self.dir.list(&format!("{}/{folder}", job.name))?;
                used += entries.iter().map(|entry| entry.bytes).sum::<u64>();
            }
        }
        self.used.store(used, Ordering::Relaxed);
        Ok(())
    }

    /// Takes so much of the quota; none: it has not so much.
    fn take(&self, bytes: u64) -> Option<()> {
        let quota = self.quota.unwrap_or(u64::MAX);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= quota);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then_some(())
    }

    fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// How long nobody has read or written a job.
    fn idle(&self, job: &str) -> Option<Duration> {
        let modified = |folder: &str| self.path.join(job).join(folder).metadata().ok()?.modified().ok();
        let written = name::FOLDERS.iter().filter_map(|folder| modified(folder)).max()?;
        let written = SystemTime::now().duration_since(written).unwrap_or_default();
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        Some(read.get(job).map_or(written, |at| at.elapsed().min(written)))
    }

    /// Removes the user's jobs that nobody has touched for so long. Returns the jobs that have gone.
    fn expire(self: &Arc<Self>, after: Duration) -> Result<Vec<String>, Error> {
        let mut gone = Vec::new();
        for job in self.dir.list("")? {
            if self.idle(&job.name).is_some_and(|idle| idle >= after) {
                let dir = Dir::open(&self.path, false)?;
                Store::new(Arc::new(dir), None).remove(&job.name)?;
                gone.push(job.name);
            }
        }
        if !gone.is_empty() {
            self.count()?;
        }
        Ok(gone)
    }
}

impl Server {
    /// Prepares the directory: half-written objects of an earlier server go.
    ///
    /// # Errors
    /// The text says what cannot be used.
    pub fn new(settings: &Settings) -> Result<Server, String> {
        let shown = settings.directory.display();
        let text = |error: Error| error.to_string();
        let failed = |error: io::Error| format!("{shown}: {error}");
        // Nobody else may write there.
        drop(Dir::open(&settings.directory, true).map_err(text)?);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(settings.directory.join(LOCK))
            .map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(format!("{shown}: another checkpoint server uses this directory"));
        }
        let keys = match &settings.key_file {
            Some(file) => server_key::read(file)?,
            None => {
                let file = settings.directory.join(KEYS);
                match settings.key {
                    Some(key) => server_key::write(&file, FIRST_USER, key),
                    None => server_key::make(&file, FIRST_USER).map(drop),
                }
                .map_err(failed)?;
                server_key::read(&file)?
            }
        };
        let users = settings.directory.join(USERS);
        drop(Dir::open(&users, true).map_err(text)?);
        let open = |key: ServerKey| {
            let number = number_of(&key.key);
            User::open(key, &users, settings.quota).map(|user| (number, Arc::new(user)))
        };
        Ok(Server {
            users: keys.into_iter().map(open).collect::<Result<_, _>>().map_err(text)?,
            expire: settings.expire,
            _lock: lock,
            clients: AtomicUsize::new(0),
            strangers: Mutex::default(),
        })
    }

    /// The users' names.
    pub fn users(&self) -> Vec<String> {
        let mut names: Vec<String> = self.users.values().map(|user| user.key.user.clone()).collect();
        names.sort();
        names
    }

    /// Serves for ever. `tell` hears what a person should know.
    pub fn serve(&self, listener: &TcpListener, tell: &(dyn Fn(&str) + Sync)) {
        std::thread::scope(|scope| {
            if let Some(after) = self.expire {
                scope.spawn(move || self.expire_for_ever(after, tell));
            }
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        // When there are too many, the connection closes, and its client comes again.
                        let started = std::thread::Builder::new().spawn_scoped(scope, || self.receive(stream));
                        if let Err(error) = started {
                            tell(&format!("a connection cannot be served: {error}"));
                            std::thread::sleep(ACCEPT_PAUSE);
                        }
                    }
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        });
    }

    /// Removes jobs that nobody has touched for so long.
    pub(crate) fn expire(&self, after: Duration, tell: &(dyn Fn(&str) + Sync)) {
        for user in self.users.values() {
            match user.expire(after) {
                Ok(gone) => gone.iter().for_each(|job| {
                    tell(&format!(
                        "job {job} of {} was not touched for long, and is removed",
                        user.key.user
                    ));
                }),
                Err(error) => tell(&format!("old jobs of {} cannot be removed: {error}", user.key.user)),
            }
        }
    }

    fn expire_for_ever(&self, after: Duration, tell: &(dyn Fn(&str) + Sync)) {
        loop {
            self.expire(after, tell);
            std::thread::sleep(LOOK.min(after / 4).max(Duration::from_millis(100)));
        }
    }
}

/// The reason of an error, as the client is told.
fn reason(kind: &Kind) -> resurgo_wire::store::Reason {
    use resurgo_wire::store::Reason;
    match kind {
        Kind::NoSpace(_) => Reason::NoSpace,
        Kind::Quota(_) => Reason::Quota,
        Kind::NoRights(_) => Reason::NoRights,
        Kind::BadName(_) => Reason::BadName,
        _ => Reason::Other,
    }
}

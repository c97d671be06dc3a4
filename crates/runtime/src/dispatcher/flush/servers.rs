//! Checkpoint servers that the job itself starts on hosts (`server:HOST;start`): [`crate::store_server`].
//!
//! Each has a thread here, which starts it, hears what it says, and starts it again when it ends. Its host keeps what it
//! has.

use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use resurgo_store::{Described, Location, usual_directory};
use resurgo_wire::control::{AGENT, STORE_SERVER, StoreErrand, StoreTold};

use crate::children::end_of;
use crate::dispatcher::cluster::{Launcher, on_host};
use crate::dispatcher::ends::how_ended;
use crate::dispatcher::start_error::{StartError, cannot};
use crate::sys::set_nonblocking;
use crate::units::one_line;
use crate::{background, invited};

/// How long servers may take until they serve, when a job begins.
const START: Duration = Duration::from_secs(30);
/// Pause before one is started again that has ended soon after its start.
const PAUSE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(2);
/// A server that has not come back for so long is away.
const AWAY: Duration = Duration::from_secs(10);
/// One that has said nothing for so long is started again.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of a line, or of complaints, that are kept.
const MOST: usize = 4 << 10;
/// How often a thread that waits looks whether the job is over.
const GLANCE: Duration = Duration::from_millis(20);

/// A host that a job starts a checkpoint server on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHost {
    /// As places name it, with its port: `n1:4717`.
    pub address: String,
    pub launcher: Launcher,
}

impl StoreHost {
    /// The host, and the port.
    pub fn parts(address: &str) -> (&str, u16) {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        (host, port.parse().unwrap_or(0))
    }
}

/// What a job needs for its places, beyond their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stores {
    /// What is in the file of `--store-key`; empty without one.
    pub secret: Vec<u8>,
    /// The hosts of all places with servers that the job starts.
    pub hosts: Vec<StoreHost>,
    /// The command to use instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// The job goes on, and has used its places before.
    pub are_known: bool,
}

/// What happens to a server.
pub(in crate::dispatcher) enum News {
    Serves {
        pid: u32,
        again: bool,
    },
    /// It has ended; another one follows.
    Lost {
        reason: String,
    },
    /// None has followed for long.
    Away {
        reason: String,
    },
}

/// A server, as both the dispatcher and its thread know it.
#[derive(Default)]
struct Shared {
    input: Option<ChildStdin>,
    /// Of the process here: the server, or what starts it.
    child: Option<u32>,
    serves: bool,
    /// The job is over. Whether the directory stays until then.
    ends: Option<bool>,
    removed: Option<Result<(), String>>,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(in crate::dispatcher) struct StoreServer {
    pub address: String,
    /// Its directory there.
    pub directory: PathBuf,
    /// Of the place that it belongs to.
    pub place: usize,
    pub is_away: bool,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

/// All of them. Dropped, they end; their directories go if nothing was stored there.
pub(in crate::dispatcher) struct StoreServers {
    pub all: Vec<StoreServer>,
    news: Receiver<(usize, News)>,
    /// What has come while the job waited for them.
    early: Vec<(usize, News)>,
    /// Nothing has gone there yet, in this run or an earlier one.
    pub is_new: bool,
}

impl StoreServers {
    /// Starts those of a job with this name. For a new job each must come to serve.
    ///
    /// # Errors
    /// One does not, or the user ends the job meanwhile.
    pub fn start(
        stores: &Stores,
        (places, job, key): (&[Described], &str, [u8; 32]),
        wake: &PipeWriter,
        ended: &dyn Fn() -> Option<Signal>,
    ) -> Result<StoreServers, StartError> {
        let failed = cannot("start a checkpoint server");
        let (way, news) = channel();
        let mut servers = StoreServers {
            all: Vec::new(),
            news,
            early: Vec::new(),
            is_new: !stores.are_known,
        };
        for (place, described) in places.iter().enumerate() {
            let (Some(within), Location::Servers(addresses)) = (&described.start, &described.location) else {
                continue;
            };
            for address in addresses {
                let host = stores.hosts.iter().find(|host| host.address == *address);
                let host = host.ok_or_else(|| StartError::Place(format!("nothing says how to reach {address}")))?;
                let post = (way.clone(), wake.try_clone().map_err(&failed)?, servers.all.len());
                let server = StoreServer::start(host, stores, (within, job, key), place, post);
                servers.all.push(server.map_err(&failed)?);
            }
        }
        match servers.is_new {
            true => servers.await_all(ended).map(|()| servers),
            false => Ok(servers),
        }
    }

    /// Waits until all serve.
    fn await_all(&mut self, ended: &dyn Fn() -> Option<Signal>) -> Result<(), StartError> {
        let end = Instant::now() + START;
        while !self.all.iter().all(|server| locked(&server.shared).serves) {
            let news = self.news.recv_timeout(GLANCE);
            let (number, reason) = match news {
                Ok((number, News::Lost { reason } | News::Away { reason })) => (number, reason),
                Ok(news) => {
                    self.early.push(news);
                    continue;
                }
                Err(_) if Instant::now() < end => match ended() {
                    Some(signal) => return Err(StartError::Interrupted(signal)),
                    None => continue,
                },
                Err(_) => {
                    let late = self.all.iter().position(|server| !locked(&server.shared).serves);
                    (
                        late.unwrap_or(0),
                        format!("it does not serve after {} s", START.as_secs()),
                    )
                }
            };
            let address = &self.all[number].address;
            let why = format!("the checkpoint server of {address} cannot be started: {reason}");
            return Err(StartError::Place(why));
        }
        Ok(())
    }

    /// What has happened since the last call.
    pub fn news(&mut self) -> Vec<(usize, News)> {
        let early = std::mem::take(&mut self.early).into_iter();
        early.chain(self.news.try_iter()).collect()
    }

    /// Processes here that belong to them.
    pub fn pids(&self) -> Vec<u32> {
        self.all
            .iter()
            .filter_map(|server| locked(&server.shared).child)
            .collect()
    }

    /// Ends them. `forget`: their directories go, too. Returns those that stay nevertheless.
    pub fn end(&mut self, forget: bool, patience: Duration) -> Vec<(String, PathBuf)> {
        let forget = forget || self.is_new;
        for server in &self.all {
            server.end(forget);
        }
        let end = Instant::now() + patience;
        let all = self.all.drain(..).collect::<Vec<_>>();
        all.into_iter().filter_map(|server| server.ended(forget, end)).collect()
    }
}

impl Drop for StoreServers {
    fn drop(&mut self) {
        self.end(false, SOON);
    }
}

impl StoreServer {
    fn start(
        host: &StoreHost,
        stores: &Stores,
        (within, job, key): (&Path, &str, [u8; 32]),
        place: usize,
        (way, wake, number): (Sender<(usize, News)>, PipeWriter, usize),
    ) -> io::Result<StoreServer> {
        let (name, port) = StoreHost::parts(&host.address);
        let errand = StoreErrand {
            version: env!("CARGO_PKG_VERSION").to_string(),
            within: within.into(),
            name: format!("{job}-{port}"),
            is_usual: within == usual_directory(),
            is_here: name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
            port,
            key,
        };
        let directory = within.join(&errand.name);
        let shared = Arc::<Mutex<Shared>>::default();
        let keeper = Keeper {
            host: name.to_string(),
            launcher: host.launcher,
            file: stores.launcher_file.clone(),
            errand,
            shared: shared.clone(),
            tell: Box::new(move |news| {
                if way.send((number, news)).is_ok() {
                    let _ = (&wake).write(&[0]);
                }
            }),
        };
        Ok(StoreServer {
            address: host.address.clone(),
            directory,
            place,
            is_away: false,
            shared,
            thread: Some(background::spawn("store server", 0, move || keeper.keep())?),
        })
    }

    fn end(&self, forget: bool) {
        let mut shared = locked(&self.shared);
        shared.ends = Some(forget);
        // Without one the thread waits, or is about to start it: then it looks first.
        if let Some(mut input) = shared.input.take()
            && forget
        {
            let _ = input.write_all(b"remove\n");
        }
    }

    /// Waits for its end. Returns it if its directory is still there, and should not be.
    fn ended(mut self, forget: bool, end: Instant) -> Option<(String, PathBuf)> {
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut shared = locked(&self.shared);
        if let Some(child) = shared.child.take() {
            let _ = kill(Pid::from_raw(child as i32), Signal::SIGKILL);
        }
        let removed = shared.removed.take();
        drop(shared);
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let _ = thread.join();
        }
        let stays = forget && !matches!(removed, Some(Ok(())));
        stays.then_some((self.address, self.directory))
    }
}

/// The thread of a server.
struct Keeper {
    host: String,
    launcher: Launcher,
    file: Option<PathBuf>,
    errand: StoreErrand,
    shared: Arc<Mutex<Shared>>,
    tell: Box<dyn Fn(News) + Send>,
}

/// Since when a server does not serve, and how much of that has been told.
struct Absence {
    since: Instant,
    is_away: bool,
}

impl Keeper {
    fn keep(&self) {
        // None: it serves. Whoever starts the job waits for the first one, and hears of the first trouble.
        let (mut absence, mut serves_again) = (None::<Absence>, false);
        while !self.is_over() {
            let began = Instant::now();
            let ended = self.begin().map(|child| {
                self.attend(child, |pid| {
                    let again = std::mem::replace(&mut serves_again, true);
                    absence = None;
                    (self.tell)(News::Serves { pid, again });
                })
            });
            if self.is_over() {
                return;
            }
            let reason = ended.unwrap_or_else(|error| error.to_string());
            match &mut absence {
                None => {
                    (self.tell)(News::Lost { reason });
                    let since = Instant::now();
                    absence = Some(Absence { since, is_away: false });
                }
                Some(absence) if absence.since.elapsed() > AWAY && !absence.is_away => {
                    (self.tell)(News::Away { reason });
                    absence.is_away = true;
                }
                Some(_) => {}
            }
            let end = match began.elapsed() < SOON {
                true => Instant::now() + PAUSE,
                false => began,
            };
            while !self.is_over() && Instant::now() < end {
                std::thread::sleep(GLANCE);
            }
        }
    }

    fn is_over(&self) -> bool {
        locked(&self.shared).ends.is_some()
    }

    fn begin(&self) -> io::Result<Child> {
        let words = [AGENT, STORE_SERVER];
        let mut command = on_host(self.launcher, self.file.as_deref(), &self.host, &words)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
        command.process_group(0);
        let mut shared = locked(&self.shared);
        if shared.ends.is_some() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut child = command.spawn()?;
        invited::invite(&mut child, &self.errand)?;
        (shared.input, shared.child) = (child.stdin.take(), Some(child.id()));
        Ok(child)
    }

    /// Hears a server until it ends. Returns why it has.
    fn attend(&self, mut child: Child, mut serves: impl FnMut(u32)) -> String {
        let (mut reason, mut patience) = (None, START);
        let mut said = Said::of(child.stdout.take());
        loop {
            match said.next(patience) {
                Ok(Some(StoreTold::Serves { pid })) => {
                    locked(&self.shared).serves = true;
                    serves(pid);
                }
                Ok(Some(StoreTold::Failed { reason: why })) => reason = Some(why),
                Ok(Some(StoreTold::Removed(removed))) => locked(&self.shared).removed = Some(removed),
                Ok(Some(StoreTold::Beat)) => {}
                Ok(None) => break,
                Err(silence) => {
                    reason = Some(format!("it has said nothing for {} s", silence.as_secs()));
                    break;
                }
            }
            patience = SILENCE;
        }
        let _ = child.kill();
        let complaint = child.stderr.take().and_then(last_line);
        // Whoever ends the job may have reaped it.
        let end = child.wait().map(|status| how_ended(end_of(status)));
        let mut shared = locked(&self.shared);
        (shared.input, shared.child, shared.serves) = (None, None, false);
        reason
            .or(complaint)
            .unwrap_or_else(|| end.unwrap_or_else(|error| error.to_string()))
    }
}

/// What a server says.
struct Said {
    stream: Option<ChildStdout>,
    begun: Vec<u8>,
}

impl Said {
    fn of(stream: Option<ChildStdout>) -> Said {
        Said {
            stream,
            begun: Vec::new(),
        }
    }

    /// The next word; none: it has ended.
    ///
    /// # Errors
    /// Nothing has come for so long.
    fn next(&mut self, patience: Duration) -> Result<Option<StoreTold>, Duration> {
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        loop {
            if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(told) => return Ok(Some(told)),
                    // A login shell may say anything.
                    Err(_) => continue,
                }
            }
            let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
            match poll(&mut ready, left) {
                Ok(0) => return Err(patience),
                Err(nix::errno::Errno::EINTR) => continue,
                _ => {}
            }
            let mut bytes = [0; 1024];
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return Ok(None),
                Ok(length) if self.begun.len() < MOST => self.begun.extend_from_slice(&bytes[..length]),
                Ok(_) => self.begun.clear(),
            }
        }
    }
}

/// The last line of what is there: others may hold the stream open.
fn last_line(mut stream: ChildStderr) -> Option<String> {
    set_nonblocking(&stream).ok()?;
    let mut bytes = vec![0; MOST];
    let length = stream.read(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes[..length]).trim().to_string();
    let line = text.lines().last()?;
    Some(one_line(line))
}

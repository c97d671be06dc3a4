//! The agent: one process per node that owns the node memory, starts ranks, serves PMI to them, notices
//! their ends and takes their output.
//!
//! Single-threaded, one epoll loop, nothing in it blocks. It decides nothing: what follows from the end of
//! a rank is the dispatcher's business. When the dispatcher goes away, everything that the agent has started
//! ends.

mod bypass;
mod files;
mod groups;
mod held;
mod images;
mod in_transit;
mod life;
mod node;
mod patience;
mod pmi;
mod program_file;
mod ranks;
mod spawn;
mod spool;
mod store;
mod suspend;
mod taken;
mod waves;
mod wording;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use resurgo_wire::control::{End, Job, OUTPUT_WINDOW, Stream, ToAgent, ToDispatcher};

use crate::connection::Connection;
use crate::{children, leftovers};
pub(crate) use life::set_nonblocking;
use node::NodeMemory;
pub(crate) use node::open_nameless;
use program_file::ProgramFile;
use ranks::Rank;
use spool::Spool;
use store::Store;

/// The hidden verb.
pub const VERB: &str = "agent";

/// How long the agent waits for killed processes to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a replaying rank's progress is looked at.
const TICK: Duration = Duration::from_millis(5);

/// Who an epoll event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Control,
    Children,
    Pmi(usize),
    Output(usize, Stream),
    Stdin,
    /// The socket to a running rank about images.
    Images(usize),
    /// The socket to the newest snapshot of a rank.
    Snapshot(usize),
    /// The socket to who fills a rank's memory.
    Filler(usize),
}

impl Source {
    fn token(self) -> u64 {
        match self {
            Source::Control => 0,
            Source::Children => 1,
            Source::Stdin => 2,
            Source::Pmi(rank) => (rank as u64) << 4 | 3,
            Source::Output(rank, Stream::Stdout) => (rank as u64) << 4 | 4,
            Source::Output(rank, Stream::Stderr) => (rank as u64) << 4 | 5,
            Source::Images(rank) => (rank as u64) << 4 | 6,
            Source::Snapshot(rank) => (rank as u64) << 4 | 7,
            Source::Filler(rank) => (rank as u64) << 4 | 8,
        }
    }

    fn from_token(token: u64) -> Option<Source> {
        let rank = (token >> 4) as usize;
        Some(match token & 15 {
            0 => Source::Control,
            1 => Source::Children,
            2 => Source::Stdin,
            3 => Source::Pmi(rank),
            4 => Source::Output(rank, Stream::Stdout),
            5 => Source::Output(rank, Stream::Stderr),
            6 => Source::Images(rank),
            7 => Source::Snapshot(rank),
            _ => Source::Filler(rank),
        })
    }
}

struct Agent {
    control: Connection,
    epoll: Epoll,
    children: SignalFd,
    /// The control socket is watched for room too.
    control_full: bool,
    work: Option<Work>,
    /// Processes that have ended and were nobody's, while a snapshot has yet to tell the number of a life.
    unclaimed: Vec<(Pid, End)>,
    ending: Option<Instant>,
    /// The user has stopped the ranks (SIGTSTP).
    paused: bool,
    /// The program has come to its end.
    finished: bool,
    stopped: bool,
}

/// The job, once it has been launched.
struct Work {
    /// Its programs are all that have been started, spawned ones too.
    job: Job,
    /// What they are started from.
    program_files: Vec<ProgramFile>,
    memory: NodeMemory,
    spill: Option<File>,
    server: resurgo_pmi::Server,
    ranks: Vec<Rank>,
    spool: Option<Spool>,
    /// Of each unit of ranks that have their waves together.
    waves: Vec<waves::Waves>,
    held: held::Held,
    /// Where images are written into files, if they are.
    store: Option<Store>,
    halt: suspend::Halt,
    /// It goes on where an earlier run of the job was suspended.
    is_resumed: bool,
    /// Waves have been given up, and all begin again when a rank cannot recover alone.
    may_begin_again: bool,
    /// The pipe to rank 0 is in the epoll set.
    spool_watched: bool,
    /// Bytes of output the dispatcher is willing to take.
    window: u64,
}

/// `resurgo agent`: runs until the dispatcher is satisfied or gone. The control connection is standard input.
pub fn run() -> i32 {
    match start() {
        Ok(mut agent) => {
            let result = agent.serve();
            agent.kill_everything();
            match result {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("resurgo: the agent failed: {error}");
                    1
                }
            }
        }
        Err(error) => {
            eprintln!("resurgo: the agent cannot start: {error}");
            1
        }
    }
}

fn start() -> io::Result<Agent> {
    prctl::set_child_subreaper(true)?;
    // For ps and top.
    prctl::set_name(c"resurgo agent")?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Every rank costs the agent three descriptors; the program gets back the limit that the user had.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let children = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let control = Connection::new(UnixStream::from(socket))?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&control, EpollEvent::new(EpollFlags::EPOLLIN, Source::Control.token()))?;
    epoll.add(
        &children,
        EpollEvent::new(EpollFlags::EPOLLIN, Source::Children.token()),
    )?;
    Ok(Agent {
        control,
        epoll,
        children,
        control_full: false,
        work: None,
        unclaimed: Vec::new(),
        ending: None,
        paused: false,
        finished: false,
        stopped: false,
    })
}

impl Agent {
    fn serve(&mut self) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        while !self.stopped {
            self.watch_control()?;
            let count = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..count] {
                match Source::from_token(event.data()) {
                    Some(Source::Control) if self.control_event()? => {}
                    Some(Source::Control) => return Ok(()),
                    Some(Source::Children) => while self.children.read_signal()?.is_some() {},
                    Some(Source::Pmi(rank)) => self.pmi_event(rank)?,
                    Some(Source::Output(rank, stream)) => self.output_event(rank, stream)?,
                    Some(Source::Stdin) => self.feed_stdin()?,
                    Some(Source::Images(rank)) => self.image_event(rank)?,
                    Some(Source::Snapshot(rank)) => self.snapshot_event(rank)?,
                    Some(Source::Filler(rank)) => self.filler_event(rank)?,
                    None => {}
                }
            }
            self.collect_ended()?;
            self.tick()?;
        }
        Ok(())
    }

    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let ticking = self.work.as_ref().is_some_and(Work::anyone_replays);
        let wait = match (self.ending, ticking) {
            (Some(deadline), _) => deadline.saturating_duration_since(now).min(TICK) + Duration::from_millis(1),
            (None, true) => TICK,
            (None, false) => match self.work.as_ref().and_then(|work| {
                let looks = work.looks_at_buffers().or(work.looks_at_held());
                looks.into_iter().chain(work.patience_ends()).min()
            }) {
                Some(at) => at.saturating_duration_since(now) + Duration::from_millis(1),
                None => return EpollTimeout::NONE,
            },
        };
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    fn send(&mut self, message: &ToDispatcher) -> io::Result<()> {
        self.control.send(message)
    }

    fn watch_control(&mut self) -> io::Result<()> {
        let full = self.control.has_queued();
        if full != self.control_full {
            let mut flags = EpollFlags::EPOLLIN;
            flags.set(EpollFlags::EPOLLOUT, full);
            self.epoll
                .modify(&self.control, &mut EpollEvent::new(flags, Source::Control.token()))?;
            self.control_full = full;
        }
        Ok(())
    }

    /// Returns false when the dispatcher has gone.
    fn control_event(&mut self) -> io::Result<bool> {
        if self.control.flush().is_err() {
            return Ok(false);
        }
        let received = self.control.receive::<ToAgent>()?;
        for message in received.messages {
            self.obey(message)?;
        }
        Ok(!received.closed)
    }

    fn obey(&mut self, message: ToAgent) -> io::Result<()> {
        match message {
            ToAgent::Launch(job) => {
                if let Err(error) = self.launch(*job) {
                    self.cannot_begin(error)?;
                }
            }
            ToAgent::Resume { job, directory, id } => self.resume(*job, directory.as_ref(), &id)?,
            ToAgent::Halt => self.halt(),
            ToAgent::GoOn => {
                if self.ending.is_none() {
                    self.go_on_after_halt()?;
                }
            }
            ToAgent::Suspend { about } => {
                if self.ending.is_none() {
                    self.suspend(about)?;
                }
            }
            ToAgent::Restart {
                rank,
                fault_at_messages,
            } => {
                self.start_again(rank, fault_at_messages)?;
            }
            ToAgent::Checkpoint { rank } => self.ask_for_image(rank)?,
            ToAgent::MeasureLogs => self.measure_logs()?,
            ToAgent::Wave { unit } => self.begin_wave(unit)?,
            ToAgent::Return {
                rank,
                fault_at_messages,
            } => {
                if self.ending.is_none() {
                    if let Some(work) = &mut self.work {
                        work.ranks[rank].fault_at_messages = fault_at_messages;
                    }
                    self.return_to_wave(rank)?;
                }
            }
            ToAgent::Kill { rank } => {
                if let Some(this) = self.work.as_mut().and_then(|work| work.ranks.get_mut(rank))
                    && let Some(life) = &this.life
                {
                    this.killed_ns = crate::monotonic_ns();
                    life.signal(Signal::SIGKILL);
                }
            }
            ToAgent::Spawn {
                by,
                programs,
                message_faults,
            } => {
                if self.ending.is_none()
                    && let Err(error) = self.spawn(by, programs, &message_faults)
                {
                    let reason = format!("cannot start what rank {by} spawned: {error}{}", crate::hint(&error));
                    self.send(&ToDispatcher::Failed { reason })?;
                }
            }
            ToAgent::OnlyLogs => self.end_waves()?,
            ToAgent::WavesAgain => self.have_waves_again(),
            ToAgent::SpawnRefused { by } => self.refuse_spawn(by),
            ToAgent::Signal { number } => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.signal_all(signal);
                    self.pause(signal);
                }
            }
            ToAgent::End { grace_ms, finished } => {
                self.finished |= finished;
                if grace_ms == 0 {
                    self.signal_all(Signal::SIGKILL);
                }
                let deadline = Instant::now() + Duration::from_millis(grace_ms);
                self.ending = Some(self.ending.map_or(deadline, |earlier| earlier.min(deadline)));
            }
            ToAgent::Stdin(bytes) => {
                if let Some(spool) = self.work.as_mut().and_then(|work| work.spool.as_mut()) {
                    spool.push(&bytes)?;
                }
                self.feed_stdin()?;
            }
            ToAgent::StdinEnd => {
                if let Some(spool) = self.work.as_mut().and_then(|work| work.spool.as_mut()) {
                    spool.end();
                }
                self.feed_stdin()?;
            }
            ToAgent::OutputTaken { bytes } => {
                let mut was_closed = false;
                if let Some(work) = &mut self.work {
                    was_closed = work.window == 0;
                    work.window = (work.window + bytes).min(OUTPUT_WINDOW);
                }
                if was_closed {
                    self.watch_outputs()?;
                }
            }
        }
        Ok(())
    }

    /// Sends a signal to every rank that runs, and to what it has started.
    fn signal_all(&self, signal: Signal) {
        let ranks = self.work.iter().flat_map(|work| &work.ranks);
        for life in ranks.filter_map(|rank| rank.life.as_ref()) {
            life.signal(signal);
        }
    }

    /// Ranks that have been stopped are late for nothing.
    fn pause(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP => self.paused = true,
            Signal::SIGCONT => {
                self.paused = false;
                let ranks = self.work.iter_mut().flat_map(|work| &mut work.ranks);
                ranks.for_each(|rank| rank.goes_on());
            }
            _ => {}
        }
    }

    fn launch(&mut self, job: Job) -> Result<(), String> {
        let appnums = spawn::appnums(&job.programs);
        let size = appnums.len();
        let memory = NodeMemory::create(&job, size)
            .map_err(|error| format!("cannot create the node memory (a memory file): {error}"))?;
        let spill = match &job.spill_directory {
            Some(directory) => Some(
                node::open_nameless(directory)
                    .map_err(|error| format!("cannot create a spill file in {}: {error}", directory.display()))?,
            ),
            None => None,
        };
        let spool = match job.stdin {
            resurgo_wire::control::Stdin::Stream => {
                Some(Spool::new().map_err(|error| format!("cannot keep standard input: {error}"))?)
            }
            _ => None,
        };
        let store = match &job.checkpoint_directory {
            Some(directory) => Some(
                Store::create(directory.as_ref(), &job.name, job.checkpoint_keep).map_err(|error| {
                    format!(
                        "cannot make a directory for image files in {}: {error}",
                        directory.display()
                    )
                })?,
            ),
            None => None,
        };
        let waves = waves::Waves::of(&job, size);
        let server = resurgo_pmi::Server::new(&job.name, appnums.clone());
        let ranks = appnums.into_iter().map(|program| Rank::new(program as usize)).collect();
        let faults = job.message_faults.clone();
        let program_files = job.programs.iter().map(ProgramFile::hold).collect();
        self.work = Some(Work {
            job,
            program_files,
            memory,
            spill,
            server,
            ranks,
            spool,
            waves,
            held: held::Held::new(),
            store,
            halt: suspend::Halt::No,
            is_resumed: false,
            may_begin_again: false,
            spool_watched: false,
            window: OUTPUT_WINDOW,
        });
        self.tell_groups()
            .map_err(|error| format!("cannot write to the node memory: {error}"))?;
        for rank in 0..size {
            let fault = faults.iter().find(|fault| fault.0 == rank).map_or(0, |fault| fault.1);
            self.start_life(rank, fault)
                .map_err(|error| format!("cannot start rank {rank} of {size}: {error}{}", crate::hint(&error)))?;
        }
        Ok(())
    }

    pub(super) fn cannot_begin(&mut self, reason: String) -> io::Result<()> {
        self.kill_everything();
        self.send(&ToDispatcher::Failed { reason })
    }

    /// Ends what is left of the job and tells the dispatcher.
    fn stop(&mut self) -> io::Result<()> {
        self.kill_everything();
        let mut statistics = Vec::new();
        let size = self.work.as_ref().map_or(0, |work| work.ranks.len());
        for rank in 0..size {
            self.drain_and_close(rank)?;
            if let Some(work) = &self.work {
                statistics.push(work.memory.statistics(rank)?);
            }
        }
        if let Some(work) = &mut self.work
            && let Some(store) = work.store.take()
        {
            (0..size).for_each(|rank| store.end(rank));
            store.close(self.finished, work.ranks.iter().all(Rank::has_ended_well));
        }
        self.send(&ToDispatcher::Stopped { statistics })?;
        self.finish();
        Ok(())
    }

    /// Sends what is queued, whatever the dispatcher's speed, and ends the loop.
    fn finish(&mut self) {
        while self.control.has_queued() {
            let mut ready = [nix::poll::PollFd::new(
                self.control.as_fd(),
                nix::poll::PollFlags::POLLOUT,
            )];
            let _ = nix::poll::poll(&mut ready, nix::poll::PollTimeout::NONE);
            if self.control.flush().is_err() {
                break;
            }
        }
        self.stopped = true;
    }

    fn kill_everything(&mut self) {
        self.signal_all(Signal::SIGKILL);
        children::kill_all(PATIENCE);
        if let Some(work) = &mut self.work {
            for (number, rank) in work.ranks.iter_mut().enumerate() {
                rank.life = None;
                let place = work.server.place(number);
                leftovers::remove(&place.kvs_name, place.rank);
            }
        }
    }
}

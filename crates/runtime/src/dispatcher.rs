//! The dispatcher: `resurgo run` after the options are read. It starts the agent and the event logger, decides what
//! follows from failures, moves standard input and output, and reports events.

mod books;
mod bus;
mod cluster;
mod coming;
mod console;
mod coordinate;
mod door;
mod ends;
mod events;
pub mod examine;
mod file_notes;
mod flush;
mod guests;
mod heard;
mod helpers;
mod images;
mod input;
mod job_files;
mod kept;
mod launching;
mod leaving;
mod ledger;
mod levels;
mod lines;
mod metrics;
mod node;
mod node_files;
mod node_loss;
mod output;
mod parity;
mod progress;
mod record;
mod refusals;
mod replacing;
mod reports;
mod servers;
mod sets;
mod shown;
mod signals;
mod spawn;
mod start;
mod start_error;
mod stats;
mod survivors;
mod suspend;
mod tracing;
mod transit;
mod watch;
mod watchers;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, PipeReader, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use resurgo_protocol::checkpoints::Checkpoints;
pub use resurgo_protocol::checkpoints::{Order, Period};
use resurgo_protocol::membership::Death;
use resurgo_protocol::{Coordinator, Node, Rank};
use resurgo_wire::console::{Reply, Request, Status};
use resurgo_wire::control::{Job, LifeStatistics, Nodes, Program, ToAgent, ToDispatcher};
use resurgo_wire::replica::Offer;

use crate::children;
use crate::faults::{Fault, Schedule, Victim};
use crate::suspended::{Origin, Suspended};
use crate::turns::Turns;
use bus::Bus;
pub use cluster::{Cluster, Host, Join, Launcher};
use console::Console;
use events::Event;
pub use flush::{StoreHost, Stores};
use guests::Coming;
use ledger::Ledger;
use metrics::Metrics;
use node::Agents;
pub use output::Places;
use output::{Output, Owed};
use refusals::Refusals;
pub use reports::Reports;
pub use resurgo_protocol::policy::Limits;
use resurgo_protocol::policy::Policy;
pub use servers::Listeners;
use servers::Servers;
use shown::Readers;
use signals::Signals;
pub use spawn::Find;
use start_error::StartError;
pub use suspend::SUSPENDED;
use suspend::Suspension;
use watchers::Watchers;

/// The user's settings, beyond those that agents need.
pub struct Settings {
    /// Standard input, key and event logger are filled in by [`run`].
    pub job: Job,
    pub limits: Limits,
    /// Finds the programs that ranks spawn.
    pub find: Find,
    pub faults: Vec<Fault>,
    /// Where the output of ranks goes.
    pub output: Places,
    pub quiet: bool,
    /// Standard error is a terminal that shows how far long work has come.
    pub has_bar: bool,
    /// Report every life.
    pub verbose: bool,
    /// Print at the end how every rank ended.
    pub print_exit_codes: bool,
    /// The dispatcher ends the job after this time.
    pub timeout: Option<Duration>,
    pub reports: Reports,
    pub servers: Vec<Listeners>,
    /// The nodes, where there are several; otherwise this machine is the only one.
    pub cluster: Option<Cluster>,
    /// How often each rank takes an image.
    pub checkpoint_period: Period,
    /// The part of the job's time that images may take.
    pub checkpoint_share: f64,
    /// Which rank takes the next image.
    pub checkpoint_order: Order,
    /// Most images that ranks take or write to files at the same time.
    pub images_in_flight: Option<usize>,
    /// The signal that takes images; other signals go to the ranks.
    pub checkpoint_signal: Option<Signal>,
    /// How long ranks may take to end after the user's signal.
    pub grace: Duration,
    /// Kinds of memory that MPI is asked for. A resumed job has those that it began with.
    pub memory_alloc_kinds: Option<String>,
    /// How the job was started, for a run that resumes it.
    pub origin: Origin,
    /// The job goes on from here.
    pub resumed: Option<Suspended>,
    /// The dispatcher suspends the job before this time has passed.
    pub time_limit: Option<Duration>,
    /// Where links to suspended jobs are kept.
    pub registry: Option<PathBuf>,
    /// What the job needs for the places of its images.
    pub stores: Stores,
}

/// Exit status when the launcher itself fails.
const FAILURE: i32 = 1;
/// Exit status when `-timeout` ends the job, as that of mpiexec.
const TIMED_OUT: i32 = 255;
/// Exit status when the command cannot be carried out and nothing was started.
const REFUSED: i32 = 2;
/// Output that may wait for a slow reader before the dispatcher tells agents to stop reading the ranks' pipes.
const QUEUE: usize = 2 << 20;
/// How long the rest of a job may take to end.
const GRACE: Duration = Duration::from_secs(2);
/// How long the readers of the dispatcher's output may take when the user has ended the job.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs a job; returns the exit status.
pub fn run(settings: Settings) -> i32 {
    match Dispatcher::start(settings) {
        Ok(dispatcher) => dispatcher.run(),
        Err(error) => {
            eprintln!("resurgo: {error}");
            children::kill_all(GRACE);
            match error {
                StartError::Interrupted(signal) => 128 + signal as i32,
                _ => FAILURE,
            }
        }
    }
}

struct Dispatcher {
    agents: Agents,
    /// Nodes that may come; none: the job has one.
    coming: Option<Coming>,
    /// The plan of the nodes that the agents have; none: the job has one node.
    plan: Option<Nodes>,
    front: Front,
    output: Output,
    bus: Bus,
    servers: Servers,
    about: About,
    spawning: Spawning,
    policy: Policy,
    faults: Schedule,
    checkpoints: Checkpoints,
    images: Images,
    /// Decides what follows from events of ranks and their images. Its times are since `start`.
    coordinator: Coordinator,
    /// The program does not repeat its work: all ranks return to a wave after every failure, although they log.
    together: bool,
    suspension: Suspension,
    start: Instant,
    /// Since the start; none once it is over.
    timeout: Option<Duration>,
    /// Process of every rank that runs.
    pids: Vec<Option<i32>>,
    /// Each rank's last exit code, if it is to be printed.
    exit_codes: Option<BTreeMap<usize, i32>>,
    ledger: Ledger,
    /// Output not yet acknowledged, per node.
    owed: Vec<Owed>,
    /// The job is being ended, with this exit status.
    verdict: Option<i32>,
    /// The user (or a reader that is gone) has ended it: the dispatcher does not wait for the rest of the output.
    interrupted: bool,
    /// The final report of all agents.
    stopped: Option<Vec<LifeStatistics>>,
}

/// Where users and commands reach the job.
struct Front {
    signals: Signals,
    console: Console,
    watchers: Watchers,
    readers: Readers,
    metrics: Metrics,
    /// Readable when a writer of [`Output`] has finished or failed.
    wake: PipeReader,
    /// When waiting commands get their next progress line, and the terminal the deliveries of ranks that replay.
    progress_due: Option<Instant>,
    /// Deliveries that ranks have repeated, and that they have to repeat.
    replayed: Option<(u64, u64)>,
    /// The loop's.
    turns: Turns,
}

/// The description of the job for reports.
struct About {
    /// Of the job's key-value space.
    name: String,
    /// The programs' command lines.
    command: String,
    /// The processors of ranks, which take them in turn.
    cpus: Vec<String>,
}

/// The programs that ranks may spawn, and have spawned.
struct Spawning {
    find: Find,
    /// Those of the launched ranks, and of all spawned ones after them.
    programs: Vec<Program>,
    most_ranks: usize,
    /// Hard limit of open files.
    open_files: u64,
    /// Of each spawned world, its first rank.
    worlds: Vec<usize>,
    /// For each rank spawned in this run, the rank that spawned it.
    by: BTreeMap<usize, usize>,
}

/// What is known of images beside their times.
struct Images {
    /// Why there are none, if so.
    without: Option<&'static str>,
    /// Ranks write their images into files, and these stay when the job has ended.
    are_written: bool,
    stay: bool,
    refusals: Refusals,
    /// A log is nearly full, and these ranks have not answered to the request for images since.
    scarce: BTreeSet<usize>,
    /// The job has let logs go for ranks without images.
    let_go: BTreeSet<usize>,
    /// For ranks that have not begun since: the image that could not be used, and why.
    unusable: BTreeMap<usize, String>,
    /// Nodes that have not taken an image, which has been told.
    refusing: BTreeSet<Node>,
    /// Files of images that all nodes see, by rank and number: nodes that come must know them.
    shared: BTreeMap<(Rank, u64), Offer>,
    /// Of a job on several nodes.
    transit: transit::Transit,
    sets: sets::Sets,
    /// Copies of recorded waves in other places, if the user has named some.
    flushes: Option<flush::Flushes>,
}

/// The sources that are readable, or have ended.
struct Ready {
    /// Per node, and of complaints.
    agents: Vec<bool>,
    signals: bool,
    wake: bool,
    /// Heartbeats as datagrams.
    beats: bool,
    consoles: bool,
    servers: bool,
    coming: bool,
    stdin: bool,
}

impl Dispatcher {
    fn run(mut self) -> i32 {
        let code = loop {
            match self.step() {
                Ok(Some(code)) => break code,
                Ok(None) => {}
                Err(error) => {
                    self.bus.error(&format!("the dispatcher failed: {error}"));
                    break FAILURE;
                }
            }
        };
        self.servers.finish(&mut self.bus);
        self.agents.end(GRACE);
        // Checkpoint servers go after all that they serve; what runs commands for news has the end to tell.
        let notifier: Vec<u32> = self.bus.notifier().into_iter().collect();
        children::kill_others(&[self.store_pids(), notifier.clone()].concat(), GRACE);
        if !self.suspension.is_elsewhere {
            // The run that has the job uses the same names.
            self.remove_leftovers();
        }
        if !self.suspension.is_done() && !self.suspension.is_elsewhere {
            // A suspended job prints the beginnings of lines when it goes on.
            self.output.end_all();
        }
        self.answer_readers(true);
        self.output.bar().tell(self.removing(code == 0));
        self.end_flushes(code == 0);
        self.output.bar().tell(None);
        match notifier.is_empty() {
            true => drop(children::kill_all(GRACE)),
            false => children::kill_others(&notifier, GRACE),
        }
        if let Some(files) = self.suspension.files.take() {
            files.close(self.suspension.has_finished, code == 0);
        }
        let statistics = self.stopped.take().unwrap_or_default();
        self.tell_what_can_be_resumed();
        let nodes = self.agents.figures(self.start);
        let of_rank = self.nodes_of_ranks();
        self.bus.tell(Event::NodesWere {
            nodes: &nodes,
            of_rank: &of_rank,
            turn: self.front.turns.longest(),
        });
        self.bus.ended(code, &statistics, Instant::now());
        self.end_metrics(code);
        self.bus.end_trace();
        if let Some(codes) = self.exit_codes.take() {
            let ranks = self.pids.len();
            self.bus.tell(Event::ExitCodes { ranks, codes: &codes });
        }
        self.output.say(self.bus.take_text());
        let deadline = self.interrupted.then(|| Instant::now() + LAST_WORDS);
        self.tell_who_waits_for_suspension();
        self.output.finish(deadline);
        self.bus.end_notices(deadline);
        code
    }

    /// The metrics at the end of the job.
    fn end_metrics(&mut self, code: i32) {
        let mut metrics = std::mem::take(&mut self.front.metrics);
        if let Some(why) = metrics.end(|| self.state(&BTreeMap::new()), code) {
            self.bus.error(&why);
        }
    }

    /// Sends the message to the node of the rank that it is about, or to all nodes.
    fn tell(&mut self, message: ToAgent) {
        match message.rank() {
            Some(rank) => self.agents.node(self.node_of(rank)).tell(&message),
            None => self.agents.tell(&message),
        }
    }

    /// The number of the node of `rank`.
    fn node_of(&self, rank: usize) -> usize {
        self.coordinator.node(rank as u32) as usize
    }

    /// The node numbers of all ranks.
    fn nodes_of_ranks(&self) -> Vec<usize> {
        (0..self.pids.len()).map(|rank| self.node_of(rank)).collect()
    }

    /// Waits for an event and handles it. Returns the exit status when the job is over.
    fn step(&mut self) -> io::Result<Option<i32>> {
        let now = Instant::now();
        self.output.mind_silence(now);
        self.output.say(self.bus.take_text());

        self.front.turns.end();
        let ready = self.wait(now)?;
        self.front.turns.begin();
        if ready.signals {
            while let Some(signal) = self.front.signals.next()? {
                self.signalled(signal);
            }
        }
        if ready.wake {
            let _ = self.front.wake.read(&mut [0u8; 64]);
        }
        if ready.beats {
            self.agents.answer_beats();
        }
        self.mind_writers();
        self.mind_timeout();
        if ready.consoles {
            self.hear_console();
        }
        if ready.coming
            || self
                .coming
                .as_ref()
                .is_some_and(|coming| coming.launching.due().is_some())
        {
            self.mind_coming();
        }
        if ready.servers || self.servers.due().is_some() {
            self.mind_servers();
        }
        if ready.stdin {
            self.take_stdin();
        }
        self.mind_grace();
        self.inject_faults();
        self.checkpoint();
        self.mind_trace();
        let lost = self.hear_agents(&ready.agents)?;
        self.mind_silent_ranks();
        // After all answers are read: the next event may take long to come.
        self.tell_who_waits_for_images();
        self.mind_suspension();
        self.mind_flushes();
        self.mind_watchers();
        self.answer_readers(false);
        self.tell_progress();
        if self.stopped.is_some() {
            return Ok(Some(self.verdict.unwrap_or_else(|| self.policy.exit_code())));
        }
        Ok(lost.and_then(|(node, why)| self.agent_lost(node, why)))
    }

    /// Reads the messages of ready agents. Returns a node whose agent is gone, and how that is known.
    fn hear_agents(&mut self, ready: &[bool]) -> io::Result<Option<(usize, Death)>> {
        let mut lost = None;
        for number in self
            .agents
            .numbers()
            .into_iter()
            .zip(ready)
            .filter_map(|(number, is)| is.then_some(number))
        {
            lost = lost.or(self.hear_agent(number)?.then_some(number));
        }
        if ready.contains(&true) {
            self.acknowledge();
            for broken in self.agents.send_queued() {
                // What it had said before counts.
                self.hear_agent(broken)?;
                self.agents.breaks(broken);
                lost = lost.or((!self.agents.are_several()).then_some(broken));
            }
            for complaints in self.agents.complaints() {
                self.output.say(complaints);
            }
        }
        let lost = lost.map(|node| (node, Death::Ended)).or(self.agents.lost());
        if lost.is_some() {
            // Perhaps all ranks have finished.
            for number in self.agents.readable() {
                self.hear_agent(number)?;
            }
        }
        Ok(lost)
    }

    /// Reads the messages of one agent. Returns whether it is lost, as the only one.
    fn hear_agent(&mut self, number: usize) -> io::Result<bool> {
        let (messages, is_lost) = self.agents.hear(number)?;
        for message in messages {
            match message {
                ToDispatcher::Beat { number: beat } => {
                    self.agents.node(number).queue(&ToAgent::Beat { number: beat });
                }
                message => self.heard(number, message),
            }
        }
        Ok(is_lost)
    }

    /// Waits until something is ready, or due.
    fn wait(&self, now: Instant) -> io::Result<Ready> {
        let stdin = io::stdin();
        let read_stdin = self.wants_stdin() && input::may_read();
        let readable = |socket| PollFd::new(socket, PollFlags::POLLIN);
        let mut ready = vec![readable(self.front.signals.as_fd()), readable(self.front.wake.as_fd())];
        let agents = ready.len();
        ready.extend(self.agents.descriptors());
        let beats = ready.len();
        ready.extend(self.agents.beats().map(readable));
        let consoles = ready.len();
        ready.extend(self.front.console.descriptors());
        let servers = ready.len();
        ready.extend(self.servers.descriptors().map(readable));
        let coming = ready.len();
        ready.extend(self.coming.iter().flat_map(|coming| coming.launching.descriptors()));
        let stdin_at = ready.len();
        if read_stdin {
            ready.push(readable(stdin.as_fd()));
        }
        match poll(&mut ready, self.timeout(now, read_stdin)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let any = |range: Range<usize>| ready[range].iter().any(|fd| fd.any().unwrap_or(false));
        Ok(Ready {
            signals: any(0..1),
            wake: any(1..agents),
            agents: (agents..beats).map(|at| any(at..at + 1)).collect(),
            beats: any(beats..consoles),
            consoles: any(consoles..servers),
            servers: any(servers..coming),
            coming: any(coming..stdin_at),
            stdin: any(stdin_at..ready.len()),
        })
    }

    fn timeout(&self, now: Instant, read_stdin: bool) -> PollTimeout {
        let mut wait: Option<Duration> = None;
        let mut at_most = |time: Duration| wait = Some(wait.map_or(time, |wait| wait.min(time)));
        if self.verdict.is_none()
            && let Some(due) = self.faults.next_time()
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some(due) = self.checkpoints.next_time(self.runs())
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some((_, due)) = self.images.refusals.over
        {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some(due) = self.suspension.due()
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some(due) = self.front.signals.due()
        {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.coordinator.due() {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if let Some(due) = self.front.progress_due {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.front.readers.due(&self.output.shown) {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.front.watchers.due() {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.servers.due() {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(wait) = self.output.wait() {
            at_most(wait);
        }
        if let Some(wait) = self.coming.as_ref().and_then(|coming| coming.launching.due()) {
            at_most(wait);
        }
        if let Some(wait) = self.trace_due(now) {
            at_most(wait + Duration::from_millis(1));
        }
        if let Some(wait) = self.agents.due() {
            at_most(wait + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some(due) = self.timeout
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.wants_stdin() && !read_stdin {
            // A background job checks now and then whether it is in the foreground again.
            at_most(Duration::from_millis(500));
        }
        match wait {
            Some(wait) => PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        }
    }

    /// Ends the job with this exit status, unless it is ending already. Ranks may take `grace` to end by themselves.
    fn end(&mut self, code: i32, grace: Duration) {
        if self.verdict.is_none() {
            self.verdict = Some(code);
            self.tell_end(grace, false);
        }
    }

    /// The program has come to its end by itself, with this exit status.
    fn end_program(&mut self, code: i32) {
        if self.verdict.is_none() {
            self.verdict = Some(code);
            self.suspension.unregister(&self.about.name);
            self.tell_end(Duration::ZERO, true);
        }
    }

    /// Ends the rest of the job now.
    fn end_at_once(&mut self) {
        self.tell_end(Duration::ZERO, false);
    }

    fn mind_writers(&mut self) {
        self.acknowledge();
        let Some((what, kind)) = self.output.failed() else {
            return;
        };
        if self.verdict.is_some() {
            return;
        }
        self.interrupted = true;
        if kind == io::ErrorKind::BrokenPipe {
            // As any other program whose reader is gone.
            self.end(128 + Signal::SIGPIPE as i32, Duration::ZERO);
        } else {
            self.bus.error(&format!("cannot write {what}"));
            self.end(FAILURE, Duration::ZERO);
        }
    }

    /// Ends the job, as mpiexec does, when the time of `-timeout` is over.
    fn mind_timeout(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        let Some(limit) = self.timeout.take_if(|limit| *limit <= self.start.elapsed()) else {
            return;
        };
        // A user with a limit does not wait for slow readers either.
        self.interrupted = true;
        let limit = limit.as_secs_f64();
        self.bus.error(&format!("APPLICATION TIMED OUT, TIMEOUT = {limit}s"));
        self.end(TIMED_OUT, self.front.signals.grace);
    }

    /// Commands from outside.
    fn hear_console(&mut self) {
        for (client, request) in self.front.console.requests() {
            match request {
                Request::Status => {
                    let status = self.status();
                    self.front.console.answer(client, &Reply::Status(status));
                }
                Request::State { after } => self.front.watchers.wants(client, after),
                Request::Output { after } => self.front.readers.add(client, after, Instant::now()),
                Request::KillRank { rank } => self.kill_rank(client, rank),
                Request::Losses => {
                    let reply = match self.policy.survivors {
                        Some(_) => Reply::Losses(self.bus.losses()),
                        None => Reply::Refused("its program does not deal with failures itself (--ft)".to_string()),
                    };
                    self.front.console.answer(client, &reply);
                }
                Request::Suspend => self.suspend(Some(client)),
                Request::Drain { node, removed } => self.drain(client, &node, removed),
                Request::AddHost { host, slots } => self.add_host(client, host, slots),
                Request::Kill => {
                    self.front
                        .console
                        .answer(client, &Reply::Done("is being ended".to_string()));
                    self.end_by(Signal::SIGTERM as i32);
                }
                Request::Checkpoint => match self.images.without {
                    Some(why) => self.front.console.answer(client, &Reply::Refused(why.to_string())),
                    None => self.want_images(Some(client)),
                },
            }
        }
    }

    fn status(&self) -> Status {
        let (images, last) = self.bus.stats().images();
        Status {
            ranks: self.pids.len(),
            running: self.pids.iter().flatten().count(),
            protocol: self.coordinator.protocol().name().to_string(),
            seconds: self.start.elapsed().as_secs_f64(),
            restarts: self.bus.stats().restarts(),
            images,
            seconds_since_image: last.map(|last| last.elapsed().as_secs_f64()),
            command: self.about.command.clone(),
        }
    }

    fn inject_faults(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        let running: Vec<usize> = (0..self.pids.len()).filter(|rank| self.pids[*rank].is_some()).collect();
        let mut nodes = self.agents.numbers();
        nodes.retain(|node| !self.servers.are_on(*node));
        for victim in self.faults.due(self.start.elapsed(), &running, &nodes) {
            match victim {
                _ if self.suspension.has_halted() => {}
                Victim::Rank(rank) if self.pids[rank].is_some() => {
                    self.bus.tell(Event::FaultInjected { rank });
                    self.tell(ToAgent::Kill { rank });
                }
                Victim::Rank(_) => {}
                Victim::Node(node) => {
                    self.bus.tell(Event::NodeFaultInjected { node });
                    self.agents.node(node).tell(&ToAgent::Fall);
                }
            }
        }
    }

    /// The agent is gone without a report: no process watches the ranks.
    fn agent_lost(&mut self, node: usize, why: Death) -> Option<i32> {
        if self.agents.are_several() {
            self.node_lost(node, why);
            return self.stopped.is_some().then(|| self.verdict.unwrap_or(FAILURE));
        }
        for pid in self.pids.iter().flatten() {
            // They are our unreaped children now, so their numbers are still theirs.
            let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        let agent = self.agents.node(node).last_words();
        if self.verdict.is_none() {
            self.bus.error(&format!(
                "{agent}; without it ranks cannot be watched or restarted, so the job ends"
            ));
        }
        Some(self.verdict.unwrap_or(FAILURE))
    }
}

/// The end of a rank's first life, killed while it ran.
#[cfg(test)]
fn killed(rank: usize, statistics: LifeStatistics) -> resurgo_wire::control::Ended {
    resurgo_wire::control::Ended {
        rank,
        life: 1,
        asked: 1,
        by_order: false,
        orderly: false,
        pid: 123,
        end: resurgo_wire::control::End::Signalled(9),
        initialised: true,
        finalised: false,
        is_plain: false,
        statistics,
        report: None,
        repeats: true,
        unnoticed_ns: None,
        ending_ns: 0,
    }
}

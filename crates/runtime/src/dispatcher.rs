//! The dispatcher: what `resurgo run` is once the options are read. It starts the agent and the event logger,
//! decides what follows from failures, moves standard input and output, and tells what happens.

mod checkpoints;
mod console;
mod events;
mod images;
mod input;
mod lines;
mod loggers;
mod memories;
mod output;
mod policy;
mod signals;
mod spawn;
mod start;
mod stats;
mod suspend;
mod writer;

use std::collections::BTreeMap;
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use resurgo_protocol::group::Groups;
use resurgo_protocol::{Protocol, kinds};
use resurgo_wire::console::{Reply, Request, Status};
use resurgo_wire::control::{Job, LifeStatistics, ToAgent, ToDispatcher};

use crate::children;
use crate::connection::Connection;
use crate::faults::{Fault, Schedule};
use crate::suspended::{Origin, Suspended};
use checkpoints::Checkpoints;
pub use checkpoints::{Order, Period};
use console::Console;
use events::{Beginning, Events};
use images::finished;
use loggers::Loggers;
use memories::Memories;
use output::Output;
pub use output::Places;
pub use policy::Limits;
use policy::{Decision, Policy};
use signals::Signals;
pub use spawn::Find;
pub use suspend::SUSPENDED;
use suspend::Suspension;

/// What the user has asked for, beyond what agents have to know.
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
    /// Tell of every life.
    pub verbose: bool,
    /// Print at the end how every rank has ended.
    pub print_exit_codes: bool,
    /// The job is ended when so much time has passed.
    pub timeout: Option<Duration>,
    pub json_events: Option<PathBuf>,
    /// Print the measurements at the end, and write them into a file.
    pub stats: bool,
    pub stats_json: Option<PathBuf>,
    /// Where the first event logger listens; the others are on the same address, at any port.
    pub event_logger: std::net::SocketAddrV4,
    /// How many event loggers there are.
    pub event_loggers: usize,
    /// Where the first channel memory listens, the others at any port of the same address.
    pub channel_memory: std::net::SocketAddrV4,
    /// How many channel memories there are.
    pub channel_memories: usize,
    /// How often an image of each rank is taken.
    pub checkpoint_period: Period,
    /// The part of the job's time that images may take.
    pub checkpoint_share: f64,
    /// Whose image is taken next.
    pub checkpoint_order: Order,
    /// Most images that are taken or written to files at the same time.
    pub images_in_flight: Option<usize>,
    /// The signal that takes images; the others go to the ranks.
    pub checkpoint_signal: Option<Signal>,
    /// How long ranks may take to end when the user has ended the job by a signal.
    pub grace: Duration,
    /// How the job was started, for those who resume it.
    pub origin: Origin,
    /// The job goes on from here.
    pub resumed: Option<Suspended>,
    /// The job is suspended before so much time has passed.
    pub time_limit: Option<Duration>,
    /// Where links to suspended jobs are kept.
    pub registry: Option<PathBuf>,
}

/// Exit status when the launcher itself fails.
const FAILURE: i32 = 1;
/// Exit status when `-timeout` has ended the job, as that of mpiexec.
const TIMED_OUT: i32 = 255;
/// Exit status when the command cannot be done as things are, and nothing has been started.
const REFUSED: i32 = 2;
/// Output that may wait for a slow reader before the agent is told to stop reading the ranks' pipes.
const QUEUE: usize = 2 << 20;
/// How long what is left of a job may take to be gone.
const GRACE: Duration = Duration::from_secs(2);
/// How long the dispatcher's own readers may take when the user has ended the job.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs a job; returns the exit status.
pub fn run(settings: Settings) -> i32 {
    match Dispatcher::start(settings) {
        Ok(dispatcher) => dispatcher.run(),
        Err(reason) => {
            eprintln!("resurgo: {reason}");
            children::kill_all(GRACE);
            FAILURE
        }
    }
}

struct Dispatcher {
    agent: Child,
    connection: Connection,
    signals: Signals,
    wake: PipeReader,
    output: Output,
    policy: Policy,
    faults: Schedule,
    checkpoints: Checkpoints,
    /// Why there are no images, if so.
    without_images: Option<&'static str>,
    /// Each rank's images are written into files.
    writes_images: bool,
    console: Console,
    /// The programs' command lines, for people.
    command: String,
    protocol: Protocol,
    /// The ranks that have their waves together: all, or each group of ranks for itself.
    units: Groups,
    /// Per unit: its ranks are being returned to a wave.
    returning: Vec<bool>,
    /// The program does not repeat what it does: all ranks return to a wave after every failure, although they log.
    together: bool,
    /// Waves have been given up, and all begin again when a rank cannot recover alone.
    may_begin_again: bool,
    events: Events,
    start: Instant,
    /// Name of the job's key-value space.
    name: String,
    /// Process of every rank that runs.
    pids: Vec<Option<i32>>,
    /// Of each spawned world, its first rank.
    spawned_worlds: Vec<usize>,
    most_ranks: usize,
    /// Hard limit of open files.
    open_files: u64,
    find: Find,
    stdin_wanted: bool,
    /// Bytes of output not yet acknowledged to the agent.
    owed: u64,
    /// The job is being ended, with this exit status.
    verdict: Option<i32>,
    /// The user (or a gone reader) has ended it: nobody waits for the rest of the output.
    interrupted: bool,
    /// When those who wait for images or the suspension hear again how far it has come.
    progress_due: Option<Instant>,
    stopped: Option<Vec<LifeStatistics>>,
    verbose: bool,
    /// The processors of ranks, which take them in turn, for people.
    cpus: Vec<String>,
    /// Since the start; none once it is over.
    timeout: Option<Duration>,
    /// How each rank has ended last, when that is to be told.
    exit_codes: Option<BTreeMap<usize, i32>>,
    loggers: Loggers,
    memories: Memories,
    suspension: Suspension,
}

impl Dispatcher {
    fn run(mut self) -> i32 {
        let code = loop {
            match self.step() {
                Ok(Some(code)) => break code,
                Ok(None) => {}
                Err(error) => {
                    self.events.error(&format!("the dispatcher failed: {error}"));
                    break FAILURE;
                }
            }
        };
        self.events.channel_memories_held(self.memories.finish());
        children::kill_all(GRACE);
        if !self.suspension.is_elsewhere {
            // Those of the run that has the job have the same names.
            self.remove_leftovers();
        }
        if !self.suspension.is_done() {
            // The beginnings of lines of a suspended job are printed when it goes on.
            self.output.end_all();
        }
        let statistics = self.stopped.take().unwrap_or_default();
        if let Some(directory) = &self.suspension.resumed_from {
            self.events.stays_suspended(directory, self.suspension.is_damaged);
        }
        self.events.summary(code, &statistics, Instant::now());
        if let Some(codes) = self.exit_codes.take() {
            self.events.exit_codes(self.pids.len(), &codes);
        }
        self.output.say(self.events.take_text());
        let deadline = self.interrupted.then(|| Instant::now() + LAST_WORDS);
        self.tell_who_waits_for_suspension();
        self.output.finish(deadline);
        code
    }

    fn tell(&mut self, message: ToAgent) {
        // A broken connection is noticed when it is read.
        let _ = self.connection.send(&message);
    }

    /// Waits for something and handles it. Returns the exit status when the job is over.
    fn step(&mut self) -> io::Result<Option<i32>> {
        let now = Instant::now();
        self.output.mind_silence(now);
        self.output.say(self.events.take_text());

        let stdin = io::stdin();
        let read_stdin = self.stdin_wanted && self.verdict.is_none() && input::may_read();
        let mut control = PollFlags::POLLIN;
        control.set(PollFlags::POLLOUT, self.connection.has_queued());
        let mut ready = vec![
            PollFd::new(self.connection.as_fd(), control),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
        ];
        let consoles = ready.len();
        ready.extend(self.console.descriptors());
        let loggers = ready.len();
        ready.extend(
            self.loggers
                .descriptors()
                .map(|socket| PollFd::new(socket, PollFlags::POLLIN)),
        );
        let memories = ready.len();
        let sockets = self.memories.descriptors();
        ready.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        let stdin_at = ready.len();
        if read_stdin {
            ready.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut ready, self.timeout(now, read_stdin)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened: Vec<bool> = ready.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        drop(ready);

        if happened[1] {
            while let Some(signal) = self.signals.next()? {
                self.signalled(signal);
            }
        }
        if happened[2] {
            let _ = self.wake.read(&mut [0u8; 64]);
        }
        self.mind_writers();
        self.mind_timeout();
        if happened[consoles..loggers].contains(&true) {
            self.hear_console();
        }
        if happened[loggers..memories].contains(&true) || self.loggers.due().is_some() {
            self.mind_loggers();
        }
        if happened[memories..stdin_at].contains(&true) {
            self.mind_memories();
        }
        if happened.get(stdin_at) == Some(&true) {
            self.take_stdin();
        }
        self.mind_grace();
        self.inject_faults();
        self.checkpoint();
        let mut closed = false;
        if happened[0] {
            let flushed = self.connection.flush();
            let received = self.connection.receive::<ToDispatcher>()?;
            closed = received.closed || flushed.is_err();
            for message in received.messages {
                self.heard(message);
            }
            self.acknowledge();
        }
        // After the answers have been heard: nothing else may happen for a long time.
        self.tell_who_waits_for_images();
        self.mind_suspension();
        self.tell_progress();
        if self.stopped.is_some() {
            return Ok(Some(self.verdict.unwrap_or_else(|| self.policy.exit_code())));
        }
        if closed {
            return Ok(Some(self.agent_lost()));
        }
        Ok(None)
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
            && let Some(due) = self.suspension.due()
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.verdict.is_none()
            && let Some(due) = self.signals.due()
        {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.progress_due {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(due) = self.loggers.due() {
            at_most(due.saturating_duration_since(now) + Duration::from_millis(1));
        }
        if let Some(wait) = self.output.wait() {
            at_most(wait);
        }
        if self.verdict.is_none()
            && let Some(due) = self.timeout
        {
            at_most(due.saturating_sub(now.duration_since(self.start)) + Duration::from_millis(1));
        }
        if self.stdin_wanted && !read_stdin {
            // A background job looks now and then whether it has been brought to the foreground.
            at_most(Duration::from_millis(500));
        }
        match wait {
            Some(wait) => PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        }
    }

    fn heard(&mut self, message: ToDispatcher) {
        let now = Instant::now();
        match message {
            ToDispatcher::Started {
                rank,
                life,
                pid,
                image,
                from_file,
                asked_ns,
                runs_ns,
            } => {
                self.pids[rank] = Some(pid);
                if self.verdict.is_none() {
                    if self.verbose {
                        let on = self.cpus.get(rank % self.cpus.len().max(1));
                        let on = on.map(|cpus| format!(" on processors {cpus}")).unwrap_or_default();
                        self.events
                            .say(&format!("rank {rank} runs as process {pid}{on} (life {life})"));
                    }
                    let how = Beginning {
                        image,
                        from_file,
                        together: self.returns(rank) && !self.is_hierarchical(),
                        ns: (asked_ns, runs_ns),
                    };
                    self.events.started(rank, life, pid, how);
                }
            }
            ToDispatcher::Failed { reason } => self.cannot_go_on(&reason),
            ToDispatcher::Resumed => self.resumed(),
            ToDispatcher::ResumedElsewhere { reason } => self.resumed_elsewhere(&reason),
            ToDispatcher::Ended(ended) => {
                let rank = ended.rank;
                self.pids[rank] = None;
                if let Some(codes) = &mut self.exit_codes {
                    codes.insert(rank, ended.exit_code());
                }
                if self.verdict.is_some() {
                    return;
                }
                if self.returns(rank) {
                    // It had ended before the agent heard that all ranks return, and returns with them.
                    self.events.failed(&ended, None, now);
                    return;
                }
                if self.events.images().0 > 0 {
                    self.policy.has_images();
                }
                if ended.diverged() {
                    self.have_waves_again();
                }
                let decision = self.policy.ended(&ended);
                if decision == Decision::Finished {
                    self.events.finished(&ended);
                    if self.has_waves() {
                        self.checkpoints.give_up(self.unit(rank), &finished(rank));
                    } else {
                        self.checkpoints.left(rank);
                        self.suspension.rank_finished(rank);
                    }
                    if self.policy.all_finished() {
                        let code = self.policy.exit_code();
                        self.end_program(code);
                    }
                    return;
                }
                if self.ended_by_user(&ended) {
                    return;
                }
                let error = match &decision {
                    Decision::EndJob { reason, .. } => Some(reason.as_str()),
                    _ => None,
                };
                self.events.failed(&ended, error, now);
                self.checkpoints.failed();
                match decision {
                    Decision::Restart => {
                        if !ended.repeats {
                            self.have_waves_again();
                        }
                        self.events.restarting(rank);
                        let messages = ended.statistics.deliveries + ended.statistics.sends();
                        let fault_at_messages = self.faults.next_life(rank, messages);
                        if self.all_return(&ended) {
                            self.return_all(rank, fault_at_messages);
                            return;
                        }
                        self.tell(ToAgent::Restart {
                            rank,
                            fault_at_messages,
                        });
                    }
                    Decision::EndJob { code, .. } => self.end(code, Duration::ZERO),
                    Decision::Finished => {}
                }
            }
            ToDispatcher::CannotRecoverAlone {
                rank,
                fault_at_messages,
                reason,
            } => {
                if self.verdict.is_some() || self.returns(rank) {
                    return;
                }
                self.have_waves_again();
                if !self.has_waves() {
                    self.cannot_go_on(&format!("cannot start rank {rank} again: {reason}"));
                    return;
                }
                self.all_return_from_now_on(rank, &format!("rank {rank} cannot recover alone: {reason}"));
                self.return_all(rank, fault_at_messages);
            }
            ToDispatcher::CaughtUp { rank, life, statistics } => self.events.caught_up(rank, life, &statistics, now),
            ToDispatcher::Checkpointed {
                rank,
                number,
                stall_ns,
                is_snapshot,
            } => {
                let stall = Duration::from_nanos(stall_ns);
                self.checkpoints.answered(rank, self.start.elapsed(), Ok(stall));
                if self.writes_images {
                    self.checkpoints.is_written(rank);
                }
                self.suspension.image_taken(rank);
                self.events.checkpointed(rank, number, stall, is_snapshot);
            }
            ToDispatcher::LogGrows {
                rank, is_scarce: true, ..
            } => {
                self.events.log_fills(rank);
                self.want_images(None);
            }
            ToDispatcher::LogGrows { bytes, .. } => self.checkpoints.logs_have_grown(bytes, self.start.elapsed()),
            ToDispatcher::WaveComplete {
                rank,
                number,
                total_ns,
                longest_stall_ns,
                all_stalls_ns,
                groups,
                is_global,
            } => {
                let total = Duration::from_nanos(total_ns);
                let unit = self.unit(rank);
                self.checkpoints.answered(unit, self.start.elapsed(), Ok(total));
                let members = self.members(unit);
                let mean = Duration::from_nanos(all_stalls_ns / members.len() as u64);
                let longest = Duration::from_nanos(longest_stall_ns);
                let groups = (self.protocol.waves() == kinds::Waves::GroupByGroup).then_some((groups, is_global));
                let of = self.is_hierarchical().then_some(&members[..]);
                self.events.wave_complete(number, total, longest, mean, groups, of);
                self.wave_for_suspension(&members);
            }
            ToDispatcher::LogsMeasured { bytes } => self.checkpoints.logs_are(bytes),
            ToDispatcher::ImageWanted { rank } => {
                let unit = self.unit(rank);
                self.checkpoints.want(std::iter::once(unit), None, self.start.elapsed());
            }
            ToDispatcher::Returned { rank, wave } => {
                let unit = self.unit(rank);
                self.returning[unit] = false;
                let members = self.members(unit);
                self.policy.go_on(&members);
                match self.is_hierarchical() {
                    true => self.events.group_returned(&members, wave),
                    false => self.events.returned(wave, now),
                }
            }
            ToDispatcher::NotCheckpointed { rank, reason } => {
                let unit = self.unit(rank);
                let why = format!("rank {rank}: {reason}");
                let is_expected = self.checkpoints.is_expected(unit);
                let asked = self.checkpoints.asked_at(unit).map_or(now, |at| self.start + at);
                self.checkpoints.answered(unit, self.start.elapsed(), Err(&why));
                let lasts = self.events.not_checkpointed(rank, &reason, is_expected, (asked, now));
                if lasts && !self.together {
                    // One rank must not keep all others from having images.
                    self.only_logs(&why);
                }
            }
            ToDispatcher::ImageWritten {
                rank,
                number,
                bytes,
                written,
                write_ns,
            } => {
                let time = Duration::from_nanos(write_ns);
                self.checkpoints.has_been_written(rank);
                self.events.image_written(rank, number, bytes, written, time);
                self.suspension.image_written(rank, time);
            }
            ToDispatcher::ImageNotWritten { rank, number, reason } => {
                self.checkpoints.has_been_written(rank);
                self.events.image_not_written(rank, number, &reason);
                self.image_not_written(rank, &reason);
            }
            ToDispatcher::Halted => self.halted(),
            ToDispatcher::Suspended { directory, bytes } => self.suspended(Path::new(&directory), bytes),
            ToDispatcher::NotSuspended { reason } => self.suspension_failed(&reason),
            ToDispatcher::ImageLost { rank, number, reason } => {
                self.events.image_lost(rank, number, &reason);
                let unit = self.unit(rank);
                self.checkpoints.lost(unit, self.start.elapsed());
            }
            ToDispatcher::MemoryRead { rank, number } => self.events.memory_read(rank, number),
            ToDispatcher::Aborted { rank, code } => {
                self.events.aborted(rank, code);
                // An exit status has eight bits; one that would look like success must not.
                let code = if code & 0xff == 0 { FAILURE } else { code & 0xff };
                self.end_program(code);
            }
            ToDispatcher::SpawnWanted { rank, programs } => self.spawn(rank, &programs),
            ToDispatcher::ProgramReplaced { rank, path } => self.events.program_replaced(rank, Path::new(&path)),
            ToDispatcher::Undone { rank, text } => self.events.undone(rank, &text),
            ToDispatcher::PmiTrouble { rank, text } => self.events.pmi_trouble(rank, &text),
            ToDispatcher::OutputDiffers {
                rank,
                stream,
                offset,
                anew,
            } => self.events.output_differs(rank, stream, offset, anew),
            ToDispatcher::OutputMissing { rank, bytes } => self.events.output_missing(rank, bytes),
            ToDispatcher::Output { rank, stream, bytes } => {
                self.owed += bytes.len() as u64;
                self.output.take(rank, stream, &bytes, now);
            }
            ToDispatcher::OutputEnd { rank } => {
                // A rank that failed will go on where its last life stopped, in the middle of a line if need be.
                if self.pids[rank].is_none() && self.policy.has_finished(rank) {
                    self.output.end(rank);
                }
            }
            ToDispatcher::StdinWanted => self.stdin_wanted = true,
            ToDispatcher::Stopped { statistics } => self.stopped = Some(statistics),
        }
    }

    /// Ranks cannot be started. What is told last must say why, also to those who have not been told of the image.
    fn cannot_go_on(&mut self, reason: &str) {
        let image = self
            .events
            .unusable_image()
            .filter(|_| self.suspension.resumed_from.is_some());
        let text = image.map(|image| format!("{reason}; {image}"));
        self.suspension.is_damaged |= text.is_some();
        self.events.error(text.as_deref().unwrap_or(reason));
        self.end(FAILURE, Duration::ZERO);
    }

    /// Ends the job with this exit status, unless it is being ended already. Ranks may take `grace` to end by themselves.
    fn end(&mut self, code: i32, grace: Duration) {
        if self.verdict.is_none() {
            self.verdict = Some(code);
            self.tell(ToAgent::End {
                grace_ms: grace.as_millis() as u64,
                finished: false,
            });
        }
    }

    /// The program has come to its end by itself, with this exit status.
    fn end_program(&mut self, code: i32) {
        if self.verdict.is_none() {
            self.verdict = Some(code);
            self.suspension.unregister(&self.name);
            self.tell(ToAgent::End {
                grace_ms: 0,
                finished: true,
            });
        }
    }

    /// Ends what is left now.
    fn end_at_once(&mut self) {
        self.tell(ToAgent::End {
            grace_ms: 0,
            finished: false,
        });
    }

    /// Tells the agent how much of its output is no longer on its account.
    fn acknowledge(&mut self) {
        if self.owed > 0 && self.output.queued() < QUEUE {
            let bytes = std::mem::take(&mut self.owed);
            self.tell(ToAgent::OutputTaken { bytes });
        }
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
            // Like any other program whose reader has gone.
            self.end(128 + Signal::SIGPIPE as i32, Duration::ZERO);
        } else {
            self.events.error(&format!("cannot write {what}"));
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
        // Whoever sets a limit waits for no slow reader either.
        self.interrupted = true;
        let limit = limit.as_secs_f64();
        self.events.error(&format!("APPLICATION TIMED OUT, TIMEOUT = {limit}s"));
        self.end(TIMED_OUT, self.signals.grace);
    }

    fn take_stdin(&mut self) {
        match input::take() {
            Ok(bytes) if bytes.is_empty() => {
                self.stdin_wanted = false;
                self.tell(ToAgent::StdinEnd);
            }
            Ok(bytes) => {
                self.stdin_wanted = false;
                self.tell(ToAgent::Stdin(bytes));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Sent to the background between the look and the read.
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) && !input::may_read() => {}
            Err(error) => {
                self.stdin_wanted = false;
                self.events
                    .error(&format!("cannot read standard input: {error}; rank 0 sees its end"));
                self.tell(ToAgent::StdinEnd);
            }
        }
    }

    /// Commands from outside.
    fn hear_console(&mut self) {
        for (client, request) in self.console.requests() {
            match request {
                Request::Status => {
                    let status = self.status();
                    self.console.answer(client, &Reply::Status(status));
                }
                Request::Suspend => self.suspend(Some(client)),
                Request::Kill => {
                    self.console.answer(client, &Reply::Done("is being ended".to_string()));
                    self.signalled(Signal::SIGTERM as i32);
                }
                Request::Checkpoint => match self.without_images {
                    Some(why) => self.console.answer(client, &Reply::Refused(why.to_string())),
                    None => self.want_images(Some(client)),
                },
            }
        }
    }

    fn status(&self) -> Status {
        let (images, last) = self.events.images();
        Status {
            ranks: self.pids.len(),
            running: self.pids.iter().flatten().count(),
            protocol: self.protocol.name().to_string(),
            seconds: self.start.elapsed().as_secs_f64(),
            restarts: self.events.restarts(),
            images,
            seconds_since_image: last.map(|last| last.elapsed().as_secs_f64()),
            command: self.command.clone(),
        }
    }

    fn inject_faults(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        let running: Vec<usize> = (0..self.pids.len()).filter(|rank| self.pids[*rank].is_some()).collect();
        for rank in self.faults.due(self.start.elapsed(), &running) {
            if self.pids[rank].is_some() && !self.suspension.has_halted() {
                self.events.fault_injected(rank);
                self.tell(ToAgent::Kill { rank });
            }
        }
    }

    /// The agent has gone without saying so: nothing is left that could watch the ranks.
    fn agent_lost(&mut self) -> i32 {
        for pid in self.pids.iter().flatten() {
            // They are our children now, unreaped, so their numbers are still theirs.
            let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        let end = match self.agent.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.events.error(&format!(
            "the agent (pid {}) has died ({end}); without it ranks cannot be watched or restarted, so the job ends",
            self.agent.id()
        ));
        if self.interrupted {
            self.verdict.unwrap_or(FAILURE)
        } else {
            FAILURE
        }
    }
}

/// The end of a rank's first life, killed while it ran.
#[cfg(test)]
fn killed(rank: usize, statistics: LifeStatistics) -> resurgo_wire::control::Ended {
    resurgo_wire::control::Ended {
        rank,
        life: 1,
        pid: 123,
        end: resurgo_wire::control::End::Signalled(9),
        initialised: true,
        finalised: false,
        is_plain: false,
        statistics,
        report: None,
        repeats: true,
        noticed_ns: 0,
        killed_ns: 0,
    }
}

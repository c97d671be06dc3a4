//! The agent: one process per node. It owns the node memory, starts ranks, notices their ends, and hands their output
//! and PMI lines to the dispatcher.
//!
//! Single-threaded: one epoll loop, in which nothing blocks. The dispatcher, with its coordinator
//! ([`resurgo_protocol::coordinator`]), decides what follows from a rank's end; the agent reports facts and obeys
//! (`waves.rs`). When the dispatcher goes away, the agent ends everything that it has started.

mod beside;
mod bypass;
mod chores;
mod feed;
mod file_notes;
mod files;
mod flush;
mod groups;
mod guest;
mod held;
mod images;
mod in_transit;
pub mod kept;
mod launch;
mod life;
mod logs_beside;
mod look;
mod net;
mod node;
mod node_files;
mod noted;
mod notice;
mod packed;
mod pmi;
mod preempted;
mod program_file;
mod ranks;
mod record;
mod served;
mod serving;
mod ship;
mod spawn;
mod store;
mod survivors;
mod suspend;
mod trace;
mod tunnels;
mod undo;
mod vain;
mod vouched;
mod waits;
mod wave_logs;
mod waves;
mod wrapped;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use resurgo_wire::control::{End, Job, LongestTurns, Stream, ToAgent, ToDispatcher};
use resurgo_wire::node_memory::event_of;

use crate::connection::Connection;
use crate::turns::Turns;
use crate::{children, leftovers};
use feed::Feed;
use guest::Guest;
use launch::{Launched, Waiting};
use node::NodeMemory;
use program_file::ProgramFile;
use ranks::Rank;
use store::Store;

/// How long the agent waits for killed processes to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the agent looks at a replaying rank's progress.
const TICK: Duration = Duration::from_millis(5);

/// Exit status of an agent that has lost the dispatcher.
pub const ALONE: i32 = 3;

/// The source of an epoll event.
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
    /// The socket to the process that fills a rank's memory.
    Filler(usize),
    /// The thread that writes a wave down while ranks run.
    Record,
    /// Standard input of an agent of another node.
    LifeLine,
    /// The thread that moves messages to other nodes.
    Net,
    /// The threads that move images.
    Copies,
    /// Servers of the job that run here.
    Servers,
    /// The threads that copy files into places.
    Flushes,
    /// The socket to a running rank about failures.
    Survivor(usize),
    /// The threads that work on logs.
    Chores,
    /// The place holder of a rank's program, below a wrapper.
    Holder(usize),
}

/// Sources without a rank have small tokens, and there are only so many.
const CHORES: u64 = 1 << 4;

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
            Source::Record => 9,
            Source::LifeLine => 10,
            Source::Net => 11,
            Source::Copies => 12,
            Source::Servers => 13,
            Source::Flushes => 14,
            Source::Survivor(rank) => (rank as u64) << 4 | 15,
            Source::Chores => CHORES,
            Source::Holder(rank) => (rank as u64 + 1) << 4 | 1,
        }
    }

    fn from_token(token: u64) -> Option<Source> {
        let rank = (token >> 4) as usize;
        Some(match token & 15 {
            _ if token == CHORES => Source::Chores,
            0 => Source::Control,
            1 => rank.checked_sub(1).map_or(Source::Children, Source::Holder),
            2 => Source::Stdin,
            3 => Source::Pmi(rank),
            4 => Source::Output(rank, Stream::Stdout),
            5 => Source::Output(rank, Stream::Stderr),
            6 => Source::Images(rank),
            7 => Source::Snapshot(rank),
            8 => Source::Filler(rank),
            9 => Source::Record,
            10 => Source::LifeLine,
            11 => Source::Net,
            12 => Source::Copies,
            13 => Source::Servers,
            14 => Source::Flushes,
            _ => Source::Survivor(rank),
        })
    }
}

/// The agent of a job.
struct Agent {
    control: Connection,
    /// Messages that it has not obeyed yet: while it keeps nothing but its lease, or has none, they stay here.
    deferred: VecDeque<ToAgent>,
    /// On another node than the dispatcher's: the other connections to it.
    guest: Option<Guest>,
    epoll: Epoll,
    children: SignalFd,
    /// The control socket is watched for room too.
    control_full: bool,
    work: Work,
    /// Copies into the job's places, once there was one.
    flushes: Option<flush::Flushes>,
    /// Ranks' datagrams that wait until other nodes have the data they are about.
    held_back: Vec<net::HeldBack>,
    /// Ended processes that belong to no known life: a snapshot may still name them.
    unclaimed: Vec<(Pid, End)>,
    ending: Option<Instant>,
    /// The user has stopped the ranks (SIGTSTP).
    paused: bool,
    /// They stand still because the lease has run out.
    held: bool,
    /// The machine is about to be taken away, and the dispatcher knows it.
    preempted: notice::Notice,
    /// The program has come to its end.
    finished: bool,
    /// A rank could not be started: the agent starts no other.
    is_broken: bool,
    /// The dispatcher knows that MPI_Finalize has failed in some rank.
    has_told_finalize: bool,
    stopped: bool,
}

/// The job.
struct Work {
    /// Its programs are all that have been started, spawned ones too.
    job: Job,
    /// The files that the programs are started from.
    program_files: Vec<ProgramFile>,
    memory: NodeMemory,
    spill: Option<File>,
    /// The mover of messages to and from other nodes, if there are any.
    net: Option<net::Net>,
    returning: net::Returning,
    /// What the dispatcher knows of what ranks here know.
    vouched: vouched::Vouched,
    /// Ranks that may wait in vain.
    vain: waits::Vain,
    ranks: Vec<Rank>,
    /// Standard input of rank 0.
    feed: Feed,
    waves: waves::Waves,
    held: held::Held,
    /// Where image files go, if there are any.
    store: Option<Store>,
    /// Copies of image files on other nodes, and of theirs here.
    copies: Option<ship::Copies>,
    /// Work on logs that takes long.
    chores: chores::Chores,
    /// The record that is being written, from which an interrupted job can be resumed.
    recording: Option<record::Recording>,
    halt: suspend::Halt,
    /// The memory in which survivors are told of failures, once there was one.
    survivors: Option<net::mapped::Mapped>,
    /// Bytes of output that the dispatcher still takes, and of repeated output.
    window: [u64; 2],
    /// The loop's.
    turns: Turns,
    /// What the dispatcher knows of what ranks have noted of files, where there are several nodes.
    file_notes: BTreeMap<usize, noted::Told>,
    /// Per rank, the records of its trace that the dispatcher has been sent, or gets only when this node ends in order.
    traced: BTreeMap<usize, u64>,
}

/// `resurgo agent`: runs until the dispatcher is satisfied or gone. The control connection is standard input; an agent of another
/// node (`is_invited`) reads there how to make it.
pub fn run(is_invited: bool) -> i32 {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut};
    let agent = Waiting::start(is_invited).map_err(|error| ("cannot start", error));
    let served = agent.and_then(|agent| match agent.launch() {
        Ok(Launched::Begun(mut agent)) => {
            let result = agent.serve();
            agent.kill_everything();
            result.map(|()| agent.stopped).map_err(|error| ("failed", error))
        }
        Ok(Launched::NotNeeded) => Ok(true),
        Ok(Launched::Alone) => Ok(false),
        Err(error) => Err(("failed", error)),
    });
    match served {
        Ok(true) => 0,
        Ok(false) => ALONE,
        Err((what, error)) => {
            // Standard error may lead to a helper that has gone.
            let _ = writeln!(io::stderr(), "resurgo: the agent {what}: {error}");
            match error.kind() {
                TimedOut | ConnectionReset | ConnectionAborted | BrokenPipe => ALONE,
                _ => 1,
            }
        }
    }
}

impl Agent {
    fn serve(&mut self) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        while !self.stopped {
            self.control.flush()?;
            self.watch_control()?;
            let timeout = self.timeout();
            self.work.turns.end();
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            self.work.turns.begin();
            for event in &events[..count] {
                match Source::from_token(event.data()) {
                    Some(Source::Control) if self.control_event()? => {}
                    Some(Source::Control) => return Ok(()),
                    Some(Source::Children) => self.hear_signals()?,
                    Some(Source::Pmi(rank)) => self.pmi_event(rank)?,
                    Some(Source::Output(rank, stream)) => self.output_event(rank, stream)?,
                    Some(Source::Stdin) => self.feed_stdin()?,
                    Some(Source::Images(rank)) => self.image_event(rank)?,
                    Some(Source::Snapshot(rank)) => self.snapshot_event(rank)?,
                    Some(Source::Filler(rank)) => self.filler_event(rank)?,
                    Some(Source::Record) => self.record_event()?,
                    Some(Source::LifeLine) if self.guest.as_ref().is_some_and(Guest::holds) => {}
                    Some(Source::LifeLine) => return Ok(()),
                    Some(Source::Net) => self.net_event()?,
                    Some(Source::Copies) => self.copies_event()?,
                    Some(Source::Servers) => self.servers_event()?,
                    Some(Source::Flushes) => self.flushes_event()?,
                    Some(Source::Survivor(rank)) => self.survivor_event(rank)?,
                    Some(Source::Chores) => self.chores_event()?,
                    Some(Source::Holder(rank)) => self.holder_event(rank)?,
                    None => {}
                }
            }
            self.keep_up()?;
            if !self.held && !self.deferred.is_empty() && self.obey_all(Vec::new())? {
                return Ok(());
            }
            self.collect_ended()?;
            self.look_for_notice()?;
            self.tick()?;
        }
        Ok(())
    }

    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let late = Duration::from_millis(1);
        let mut wait = match (self.ending, self.work.anyone_replays()) {
            (Some(deadline), _) => Some(deadline.saturating_duration_since(now).min(TICK) + late),
            (None, true) => Some(TICK),
            (None, false) => {
                let looks = self.work.looks_at_buffers().or(self.work.looks_at_held());
                looks.map(|at| at.saturating_duration_since(now) + late)
            }
        };
        if let Some(guest) = &self.guest {
            wait = Some(wait.map_or(guest.wait(), |wait| wait.min(guest.wait())));
        }
        wait.map_or(EpollTimeout::NONE, |wait| {
            EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
        })
    }

    fn send(&mut self, message: &ToDispatcher) -> io::Result<()> {
        self.control.send(message)
    }

    /// Tells the dispatcher that this node lives. While the user has stopped the job, the dispatcher cannot answer.
    fn keep_up(&mut self) -> io::Result<()> {
        let Some(guest) = &mut self.guest else {
            return Ok(());
        };
        if self.paused {
            guest.rests();
        }
        let kept = guest.keep_up(&mut self.control);
        self.work.memory.set_valid_until(guest.until())?;
        kept.map(|held| held.into_iter().for_each(|held| self.hold(held)))
    }

    /// The lease has run out (`held`): ranks, their images and servers of this node stand still, and no image leaves it.
    /// Or it lasts again, and they go on.
    fn hold(&mut self, held: bool) {
        if std::mem::replace(&mut self.held, held) == held {
            return;
        }
        if let Some(copies) = &self.work.copies {
            copies.shipping.hold(held);
        }
        let lives = self.work.ranks.iter().filter_map(|rank| rank.life.as_ref());
        let lives: Vec<Pid> = lives.map(|life| life.pid).collect();
        match held {
            true => {
                self.signal_all(Signal::SIGSTOP);
                children::signal_others(&lives, Signal::SIGSTOP);
            }
            false => {
                children::signal_others(&lives, Signal::SIGCONT);
                // Otherwise ranks stand still until the user continues them.
                if !self.paused {
                    self.go_on();
                }
            }
        }
    }

    fn go_on(&mut self) {
        self.signal_all(Signal::SIGCONT);
        self.work.ranks.iter_mut().for_each(|rank| rank.goes_on());
    }

    /// Ranks stand still, and no time that they take counts.
    fn stands_still(&self) -> bool {
        self.paused || self.held
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
        let has_gone = self.obey_all(received.messages)?;
        Ok(!(received.closed || has_gone))
    }

    /// Carries out all messages and keeps the lease meanwhile: starting many ranks takes long. Returns whether the
    /// dispatcher has gone.
    fn obey_all(&mut self, new: Vec<ToAgent>) -> io::Result<bool> {
        self.keep_up()?;
        self.defer(new)?;
        let mut has_gone = false;
        // While it is held, the node may have been given up: only an answer tells.
        while !self.held
            && let Some(message) = self.deferred.pop_front()
        {
            self.obey(message)?;
            if self.guest.as_ref().is_some_and(Guest::is_due) {
                self.keep_up()?;
                let received = self.control.receive()?;
                has_gone |= received.closed;
                self.defer(received.messages)?;
            }
        }
        Ok(has_gone)
    }

    /// Answers count at once, all other messages in their turn.
    fn defer(&mut self, messages: Vec<ToAgent>) -> io::Result<()> {
        for message in messages {
            match message {
                ToAgent::Beat { .. } => self.obey(message)?,
                message => self.deferred.push_back(message),
            }
        }
        Ok(())
    }

    /// Has a thread do what may take long and what everything else has to wait for. The agent keeps its lease meanwhile.
    fn meanwhile<T: Send>(&mut self, work: impl FnOnce(&mut Work) -> T + Send) -> io::Result<T> {
        let Some(guest) = &mut self.guest else {
            return Ok(work(&mut self.work));
        };
        let (mut memory, state) = (self.work.memory.again()?, &mut self.work);
        let (control, deferred, paused) = (&mut self.control, &mut self.deferred, self.paused);
        let mut held = self.held;
        let answer = std::thread::scope(|scope| {
            let (ends, end) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                let answer = work(state);
                drop(ends);
                answer
            })?;
            while end.recv_timeout(guest.wait().min(TICK)) == Err(RecvTimeoutError::Timeout) {
                if paused {
                    guest.rests();
                }
                held = guest.keep_up(control)?.unwrap_or(held);
                for message in control.receive()?.messages {
                    match message {
                        ToAgent::Beat { number } => guest.answered(number),
                        message => deferred.push_back(message),
                    }
                }
                memory.set_valid_until(guest.until())?;
            }
            thread.join().map_err(|_| io::Error::other("a thread has failed"))
        });
        self.hold(held);
        answer
    }

    fn obey(&mut self, message: ToAgent) -> io::Result<()> {
        match message {
            _ if self.stopped => {}
            ToAgent::Leave => self.stop()?,
            // This agent has its job.
            ToAgent::Launch(_)
            | ToAgent::Farewell
            | ToAgent::Resume { .. }
            | ToAgent::GoOn { .. }
            | ToAgent::Reach { .. }
            | ToAgent::Refused { .. } => {}
            ToAgent::Do(command) => self.carry_out(command)?,
            ToAgent::Suspend { .. } | ToAgent::Spawn { .. } if self.ending.is_some() => {}
            ToAgent::Suspend { about, input } => self.suspend(about, input.as_deref())?,
            ToAgent::Record { about, input } => self.record(about, input)?,
            ToAgent::TellState => self.tell_state(None)?,
            ToAgent::Look { number } => self.look(number)?,
            ToAgent::RecordEnded {
                number,
                oldest,
                is_written,
            } => self.work.record_ended(oldest..=number, is_written),
            ToAgent::Shared(offer) => self.work.know(offer),
            ToAgent::FileNotes { .. } | ToAgent::FileNotesKept { .. } => self.heard_of_file_notes(message)?,
            ToAgent::Flush(flush) => self.flush(&flush)?,
            ToAgent::Fetch(offer) => self.fetch(offer),
            ToAgent::FaultAt { rank, messages } => self.work.ranks[rank].fault_at_messages = messages,
            ToAgent::MeasureLogs => self.measure_logs()?,
            ToAgent::Kill { rank } => self.strike(rank),
            ToAgent::Spawn {
                by,
                programs,
                nodes,
                replaced,
                message_faults,
            } => {
                if let Err(error) = self.spawn(by, programs, &nodes, &replaced, &message_faults) {
                    self.is_broken = true;
                    let reason = format!("cannot start what rank {by} spawned: {error}{}", crate::hint(&error));
                    self.send(&ToDispatcher::Failed { reason })?;
                }
            }
            ToAgent::Signal { number } => Signal::try_from(number)
                .into_iter()
                .for_each(|signal| self.pass_on(signal)),
            ToAgent::End { grace_ms, finished } => {
                self.finished |= finished;
                if grace_ms == 0 {
                    self.signal_all(Signal::SIGKILL);
                }
                let deadline = Instant::now() + Duration::from_millis(grace_ms);
                self.ending = Some(self.ending.map_or(deadline, |earlier| earlier.min(deadline)));
            }
            ToAgent::Stdin { life, bytes } => self.take_stdin(life, Some(&bytes))?,
            ToAgent::StdinEnd { life } => self.take_stdin(life, None)?,
            ToAgent::Answer { rank, life, lines } => self.answer(rank, life, &lines),
            ToAgent::OutputTaken { bytes, repeated } => self.output_taken([bytes, repeated])?,
            ToAgent::Repeats { rank, life, output } => self.repeats(rank, life, output)?,
            ToAgent::Accounted { rank, image, account } => self.accounted(rank, image, account)?,
            ToAgent::Fall => {
                self.kill_everything();
                // The agent says nothing to anyone, as when a machine is lost.
                let _ = raise(Signal::SIGKILL);
            }
            ToAgent::InTransit { number, is_last, bytes } => self.work.transit_given(number, is_last, &bytes)?,
            ToAgent::Deliveries { events } => self.work.returning.vouched.extend(events.into_iter().map(event_of)),
            ToAgent::Places(nodes) => self.move_ranks(nodes)?,
            ToAgent::Known { mesh, copies } => {
                if let Some(nodes) = &mut self.work.job.nodes {
                    (nodes.mesh, nodes.copies) = (mesh, copies);
                }
            }
            ToAgent::Failures(news) => self.tell_survivors(&news)?,
            ToAgent::Ends { ranks } => self.work.know_ends(&ranks)?,
            ToAgent::NodeLost { node } => self.work.loses(node),
            ToAgent::Trace { asked_ns } => self.send_new_traces(asked_ns)?,
            ToAgent::Beat { number } => self.guest.iter_mut().for_each(|guest| guest.answered(number)),
        }
        Ok(())
    }

    /// A fault strikes the rank, if it runs.
    fn strike(&mut self, rank: usize) {
        if let Some(this) = self.work.ranks.get_mut(rank)
            && let Some(life) = &this.life
        {
            this.killed_ns = crate::monotonic_ns();
            life.signal(Signal::SIGKILL);
        }
    }

    /// Sends a signal to every running rank and to all processes that it has started.
    fn signal_all(&self, signal: Signal) {
        for rank in &self.work.ranks {
            rank.life.iter().for_each(|life| life.signal(signal));
            rank.wrapped.signal(signal);
        }
    }

    /// Sends it to all, and suspends the time limits of ranks while the user has stopped them.
    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCONT => {
                self.paused = false;
                self.go_on();
            }
            signal => {
                self.signal_all(signal);
                self.paused |= signal == Signal::SIGTSTP;
            }
        }
    }

    /// Ends what is left of the job and tells the dispatcher.
    fn stop(&mut self) -> io::Result<()> {
        self.end_servers()?;
        self.kill_everything();
        let mut statistics = Vec::new();
        let size = self.work.ranks.len();
        for rank in 0..size {
            self.drain_and_close(rank)?;
            self.end_wrapper(rank)?;
            self.give_held(rank)?;
            statistics.push(self.work.statistics(rank)?);
        }
        self.send_all_traces()?;
        let work = &mut self.work;
        if let Some(store) = work.store.take() {
            (0..size).for_each(|rank| store.end(rank));
            let mut here = work.ranks.iter().enumerate().filter(|(rank, _)| work.is_here(*rank));
            store.close(self.finished, here.all(|(_, rank)| rank.has_ended_well()));
        }
        let mover = self.work.net.as_ref().map(net::Net::longest_turn);
        let turns = LongestTurns {
            agent_ns: self.work.turns.longest().as_nanos() as u64,
            mover_ns: mover.map_or(0, |longest| longest.as_nanos() as u64),
        };
        self.send(&ToDispatcher::Stopped { statistics, turns })?;
        self.control.flush_all();
        self.await_farewell();
        self.stopped = true;
        Ok(())
    }

    fn kill_everything(&mut self) {
        self.signal_all(Signal::SIGKILL);
        children::kill_all(PATIENCE);
        for number in 0..self.work.ranks.len() {
            self.work.ranks[number].life = None;
            if !self.work.is_here(number) {
                continue;
            }
            let place = spawn::place(&self.work.job, number);
            leftovers::remove(&place.kvs_name, place.rank);
        }
    }
}

impl Work {
    /// Sets groups and message faults before the job's first lives begin.
    fn prepare_lives(&mut self) -> io::Result<()> {
        if self.is_hierarchical() {
            self.tell_groups(&self.job.units(self.ranks.len()))?;
        }
        for (rank, messages) in &self.job.message_faults {
            self.ranks[*rank].fault_at_messages = *messages;
        }
        Ok(())
    }
}

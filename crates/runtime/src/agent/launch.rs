//! An agent before it has a job, and what a job needs before its first process starts.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use resurgo_protocol::kinds::Kept;
use resurgo_wire::control::{Job, LongestTurns, OUTPUT_WINDOW, ToAgent, ToDispatcher, appnums};

use super::chores::Chores;
use super::feed::Feed;
use super::guest::Guest;
use super::node::NodeMemory;
use super::program_file::ProgramFile;
use super::ranks::Rank;
use super::store::Store;
use super::{Agent, Source, Work, held, net, notice, suspend, tunnels, vouched, waits, waves};
use crate::binding;
use crate::connection::Connection;
use crate::stream::Tls;
use crate::sys::open_nameless;
use crate::turns::Turns;

/// An agent that has no job yet, or whose job could not begin.
pub(super) struct Waiting {
    control: Connection,
    guest: Option<Guest>,
    epoll: Epoll,
    children: SignalFd,
}

/// What came of waiting for a job.
pub(super) enum Launched {
    Begun(Box<Agent>),
    /// The dispatcher has ended, or knows why the job cannot begin.
    NotNeeded,
    /// The dispatcher has gone.
    Alone,
}

impl Waiting {
    /// The control connection is standard input, unless it is invited there to make one.
    pub(super) fn start(is_invited: bool) -> io::Result<Waiting> {
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
        let (guest, control) = if is_invited {
            let (guest, control) = Guest::arrive()?;
            (Some(guest), control)
        } else {
            let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
            (None, Connection::new(UnixStream::from(socket))?)
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&control, EpollEvent::new(EpollFlags::EPOLLIN, Source::Control.token()))?;
        let children_event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Children.token());
        epoll.add(&children, children_event)?;
        if let Some(life_line) = guest.as_ref().and_then(Guest::life_line) {
            epoll.add(
                life_line,
                EpollEvent::new(EpollFlags::EPOLLIN, Source::LifeLine.token()),
            )?;
        }
        Ok(Waiting {
            control,
            guest,
            epoll,
            children,
        })
    }

    /// Waits for the job and begins it.
    pub(super) fn launch(mut self) -> io::Result<Launched> {
        let store = self.guest.as_mut().and_then(Guest::store);
        self.await_job(store)
    }

    /// The same. `store`: where image files are to be, on one of several nodes.
    fn await_job(mut self, mut store: Option<Store>) -> io::Result<Launched> {
        let mut messages = VecDeque::new();
        loop {
            if !self.wait()? {
                store.take().into_iter().for_each(Store::leave);
                return Ok(Launched::NotNeeded);
            }
            if let Some(guest) = &mut self.guest
                && let Err(error) = guest.keep_up(&mut self.control)
                && error.kind() == io::ErrorKind::TimedOut
            {
                store.take().into_iter().for_each(Store::leave);
                return Err(error);
            }
            // A broken connection shows here.
            let closed = self.receive(&mut messages)?;
            while let Some(message) = messages.pop_front() {
                let (work, is_resumed) = match message {
                    job @ (ToAgent::Launch(_) | ToAgent::GoOn { .. } | ToAgent::Resume { .. }) if !self.may_begin() => {
                        messages.push_front(job);
                        break;
                    }
                    ToAgent::Launch(job) => {
                        let launched = Work::launch(*job, store.take());
                        (
                            launched.map_err(|reason| Box::new(ToDispatcher::Failed { reason })),
                            false,
                        )
                    }
                    ToAgent::GoOn { job, ranks } => {
                        let resumed = Work::go_on(*job, store.take(), ranks);
                        (
                            resumed.map_err(|reason| Box::new(ToDispatcher::Failed { reason })),
                            false,
                        )
                    }
                    ToAgent::Resume {
                        job,
                        directory,
                        id,
                        input,
                    } => {
                        let resumed = Work::resume(*job, directory.as_ref(), &id, input.as_deref());
                        (resumed, true)
                    }
                    ToAgent::End { .. } => {
                        let statistics = Vec::new();
                        let turns = LongestTurns::default();
                        self.control.send(&ToDispatcher::Stopped { statistics, turns })?;
                        self.control.flush_all();
                        return Ok(Launched::NotNeeded);
                    }
                    other => {
                        self.hear(other)?;
                        continue;
                    }
                };
                let mesh = self.guest.as_ref().map(Guest::mesh).transpose()?;
                let copies = self.guest.as_mut().and_then(Guest::copies);
                let work = work.and_then(|work| work.share_images(copies));
                match work.and_then(|work| work.join(mesh)) {
                    Ok(work) => {
                        let begun = self.begin(work, is_resumed, messages.into());
                        return begun.map(|agent| Launched::Begun(Box::new(agent)));
                    }
                    Err(answer) => self.control.send(&*answer)?,
                }
            }
            if closed && !self.comes_again()? {
                store.take().into_iter().for_each(Store::leave);
                return Ok(Launched::Alone);
            }
        }
    }

    /// Waits until there is something to read or to do. False: the life line has closed.
    fn wait(&self) -> io::Result<bool> {
        let mut ready = vec![PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
        let life_line = self.guest.as_ref().and_then(Guest::life_line);
        ready.extend(life_line.map(|line| PollFd::new(line, PollFlags::POLLIN)));
        let patience = self.guest.as_ref().map_or(PollTimeout::NONE, |guest| {
            PollTimeout::try_from(guest.wait()).unwrap_or(PollTimeout::MAX)
        });
        match nix::poll::poll(&mut ready, patience) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_about_guest = ready.len() > 1 && ready[1].any().unwrap_or(false);
        Ok(!is_about_guest || self.guest.as_ref().is_none_or(Guest::holds))
    }

    /// Takes what has come. Returns whether the dispatcher has gone.
    fn receive(&mut self, messages: &mut VecDeque<ToAgent>) -> io::Result<bool> {
        let received = self.control.receive()?;
        if let Some(guest) = self.guest.as_mut().filter(|_| !received.messages.is_empty()) {
            guest.is_heard();
        }
        for message in received.messages {
            match message {
                // The job may wait for this.
                ToAgent::Beat { number } => self.guest.iter_mut().for_each(|guest| guest.answered(number)),
                message => messages.push_back(message),
            }
        }
        Ok(received.closed)
    }

    /// The lease of this node may begin.
    fn may_begin(&mut self) -> bool {
        self.guest.as_mut().is_none_or(Guest::begins)
    }

    /// Calls the dispatcher again. False: it has gone.
    fn comes_again(&mut self) -> io::Result<bool> {
        let Some(control) = self.guest.as_mut().and_then(Guest::come_again) else {
            return Ok(false);
        };
        // epoll drops the former one by itself.
        self.control = control;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Control.token());
        self.epoll.add(&self.control, event)?;
        Ok(true)
    }

    /// Handles a message that comes before the job.
    fn hear(&mut self, message: ToAgent) -> io::Result<()> {
        match message {
            ToAgent::Refused { reason } => {
                return Err(io::Error::other(format!("the job does not take this node: {reason}")));
            }
            ToAgent::Reach { nodes } => {
                let why_not = crate::reach::all(&nodes);
                self.control.send(&ToDispatcher::Reached { why_not })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Reports that the job is here, and obeys the messages that came with it.
    fn begin(self, work: Work, is_resumed: bool, messages: Vec<ToAgent>) -> io::Result<Agent> {
        let mut agent = Agent {
            control: self.control,
            deferred: VecDeque::new(),
            guest: self.guest,
            epoll: self.epoll,
            children: self.children,
            control_full: false,
            held_back: Vec::new(),
            work,
            flushes: None,
            unclaimed: Vec::new(),
            ending: None,
            paused: false,
            held: false,
            preempted: notice::Notice::default(),
            finished: false,
            is_broken: false,
            has_told_finalize: false,
            stopped: false,
        };
        agent.watch_net()?;
        agent.watch_copies()?;
        agent.watch_chores()?;
        agent.watch_servers()?;
        agent.hear_of_preemption()?;
        agent.keep_up()?;
        if is_resumed {
            agent.tell_what_is_resumed()?;
        } else if let Err(error) = agent.work.prepare_lives() {
            let reason = format!("cannot write to the node memory: {error}");
            agent.send(&ToDispatcher::Failed { reason })?;
        }
        agent.tell_former_file_notes()?;
        // The agent notices again whether the dispatcher has gone.
        let _ = agent.obey_all(messages)?;
        Ok(agent)
    }
}

impl Work {
    /// Prepares all that a new job needs on this node before its first process starts.
    fn launch(mut job: Job, store: Option<Store>) -> Result<Work, String> {
        let appnums = appnums(&job.programs);
        if job.nodes.is_some() {
            job.cpus = binding::of_words(&job.binding).map_err(|why| format!("-bind-to: {why}"))?;
        }
        let mut work = Work::without_ranks(job, appnums.len())?;
        let files = &work.job.image_files;
        work.store = match (store, &files.directory) {
            (Some(mut store), Some(_)) => {
                store.keep(files.keep);
                Some(store)
            }
            (None, Some(directory)) => {
                let store = Store::create(directory.as_ref(), &work.job.name, files.keep);
                let directory = directory.display();
                Some(
                    store
                        .map_err(|error| format!("cannot make a directory for image files in {directory}: {error}"))?,
                )
            }
            (_, None) => None,
        };
        work.ranks = appnums.into_iter().map(|program| Rank::new(program as usize)).collect();
        Ok(work)
    }

    /// Prepares a job of `size` ranks, new or resumed, without anything known of its ranks and without a place for
    /// files.
    pub(super) fn without_ranks(mut job: Job, size: usize) -> Result<Work, String> {
        let tunnels = |tls: Option<Tls>| tls.map(|tls| tunnels::open(&job.services, tls)).transpose();
        let opened = Tls::of_job(&job).and_then(tunnels);
        if let Some(services) = opened.map_err(|error| format!("cannot open tunnels to servers of the job: {error}"))? {
            job.services = services;
        }
        let memory = NodeMemory::create(&job, size)
            .map_err(|error| format!("cannot create the node memory (a memory file): {error}"))?;
        let spill = match &job.spill_directory {
            // Messages are not in the node memory.
            Some(_) if job.protocol.kept() == Kept::InChannelMemory => None,
            Some(directory) => Some(
                open_nameless(directory)
                    .map_err(|error| format!("cannot create a spill file in {}: {error}", directory.display()))?,
            ),
            None => None,
        };
        Ok(Work {
            program_files: job.programs.iter().map(ProgramFile::hold).collect(),
            memory,
            spill,
            net: None,
            returning: net::Returning::default(),
            vouched: vouched::Vouched::default(),
            vain: waits::Vain::default(),
            ranks: Vec::new(),
            feed: Feed::default(),
            job,
            waves: waves::Waves::default(),
            held: held::Held::new(),
            store: None,
            copies: None,
            chores: Chores::new().map_err(|error| format!("cannot make an eventfd: {error}"))?,
            halt: suspend::Halt::No,
            survivors: None,
            recording: None,
            window: [OUTPUT_WINDOW; 2],
            turns: Turns::default(),
            file_notes: BTreeMap::new(),
            traced: BTreeMap::new(),
        })
    }
}

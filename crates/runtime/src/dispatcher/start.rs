//! The start of a job, new or suspended: the dispatcher's own surroundings, the agent, and the first word to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::prctl;
use resurgo_wire::console::LONGEST_COMMAND;
use resurgo_wire::control::{Job, ToAgent};

use super::checkpoints::Checkpoints;
use super::console::Console;
use super::events::{Events, Wanted};
use super::loggers::Loggers;
use super::memories::Memories;
use super::output::Output;
use super::policy::Policy;
use super::signals::Signals;
use super::suspend::{self, State, Suspension};
use super::{Dispatcher, Settings, input};
use crate::connection::Connection;
use crate::faults::Schedule;
use crate::suspended::Suspended;

impl Dispatcher {
    pub(super) fn start(mut settings: Settings) -> Result<Dispatcher, String> {
        let start = Instant::now();
        let failed =
            |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}{}", crate::hint(&error));
        prctl::set_child_subreaper(true).map_err(|error| format!("cannot become a subreaper: {error}"))?;
        let signals = Signals::watch(settings.checkpoint_signal, settings.grace).map_err(failed("watch signals"))?;
        let create = |path: &Option<PathBuf>, option: &str| match path {
            Some(path) => File::create(path)
                .map(Some)
                .map_err(|error| format!("cannot create {} for {option}: {error}", path.display())),
            None => Ok(None),
        };
        let json = create(&settings.json_events, "--json-events")?;
        let statistics = Wanted {
            table: settings.stats,
            file: create(&settings.stats_json, "--stats-json")?,
        };
        let job = &mut settings.job;
        let size = job.programs.iter().map(|program| program.ranks).sum();
        if settings.resumed.is_none() {
            job.stdin = input::find();
            let key = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut job.key));
            key.map_err(failed("read /dev/urandom"))?;
        }
        let loggers = Loggers::start(job, settings.event_loggers, settings.event_logger, size)?;
        let memories = Memories::start(job, settings.channel_memories, settings.channel_memory, size)?;
        let launched = settings.resumed.as_ref().map_or(size, |job| job.header.about.launched);
        let mut faults = Schedule::new(&settings.faults, launched);
        faults.grow(size);
        job.message_faults = (0..size)
            .map(|rank| (rank, faults.next_life(rank, 0)))
            .filter(|(_, messages)| *messages > 0)
            .collect();

        let (wake, wake_writer) = io::pipe().map_err(failed("make a pipe"))?;
        crate::agent::set_nonblocking(&wake).map_err(failed("make a pipe"))?;
        crate::agent::set_nonblocking(&wake_writer).map_err(failed("make a pipe"))?;
        let second_wake_writer = wake_writer.try_clone().map_err(failed("make a pipe"))?;
        let mut output =
            Output::start(settings.output, [wake_writer, second_wake_writer]).map_err(failed("start a thread"))?;
        if settings.resumed.is_none() {
            output.make_files(size)?;
        }

        let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket"))?;
        let agent = Command::new("/proc/self/exe")
            .arg0("resurgo")
            .arg(crate::agent::VERB)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
            .process_group(0)
            .spawn()
            .map_err(failed("start the agent"))?;
        let connection = Connection::new(ours).map_err(failed("talk to the agent"))?;

        let mut events = Events::new(size, settings.quiet, json, statistics, start);
        events.job_started(size, job.protocol);
        for (number, pid) in memories.pids().enumerate() {
            events.channel_memory_started(number, pid);
        }
        let units = job.units(size);
        let mut dispatcher = Dispatcher {
            agent,
            connection,
            signals,
            wake,
            output,
            policy: Policy::new(size, job.protocol, settings.limits),
            faults,
            // A wave is one image of the whole job.
            checkpoints: Checkpoints::new(
                settings.checkpoint_period,
                settings.checkpoint_order,
                if job.protocol.has_waves() {
                    units.count() as usize
                } else {
                    size
                },
                settings.images_in_flight.unwrap_or(usize::MAX),
            )
            .with_share(settings.checkpoint_share),
            without_images: suspend::without_images(job),
            writes_images: job.checkpoint_directory.is_some(),
            console: Console::start(),
            command: command_line(job),
            protocol: job.protocol,
            returning: vec![false; units.count() as usize],
            units,
            together: false,
            may_begin_again: false,
            events,
            start,
            name: job.name.clone(),
            pids: vec![None; size],
            spawned_worlds: Vec::new(),
            most_ranks: job.most_ranks,
            open_files: job.open_files.1,
            find: settings.find,
            stdin_wanted: false,
            owed: 0,
            verdict: None,
            interrupted: false,
            progress_due: None,
            stopped: None,
            verbose: settings.verbose,
            cpus: (0..job.cpus.len()).filter_map(|rank| job.cpus_of(rank)).collect(),
            timeout: settings.timeout,
            exit_codes: settings.print_exit_codes.then(BTreeMap::new),
            loggers,
            memories,
            suspension: Suspension::new(
                settings.origin,
                settings.registry,
                suspend::obstacle(job),
                settings.time_limit,
            ),
        };
        let job = Box::new(settings.job);
        match settings.resumed {
            Some(suspended) => dispatcher.resume(job, suspended)?,
            None => dispatcher.tell(ToAgent::Launch(job)),
        }
        Ok(dispatcher)
    }

    /// Goes on where the job was when it was suspended.
    fn resume(&mut self, job: Box<Job>, suspended: Suspended) -> Result<(), String> {
        let about = suspended.header.about;
        let state: State = serde_json::from_value(about.dispatcher)
            .map_err(|error| format!("another version of resurgo has suspended the job: {error}"))?;
        self.policy.resume(state.policy);
        self.spawned_worlds = state.spawned_worlds;
        for path in self.output.resume(state.output)? {
            let path = path.display();
            self.events.say(&format!(
                "warning: {path} is not what the suspended job has left: lines that it had are missing, and what follows is added to it"
            ));
        }
        self.suspension.seconds_before = about.seconds;
        self.suspension.resumed_from = Some(suspended.directory.clone());
        self.tell(ToAgent::Resume {
            job,
            directory: suspended.directory.into_os_string(),
            id: suspended.header.id,
        });
        Ok(())
    }
}

/// As it was typed, more or less.
fn command_line(job: &Job) -> String {
    let programs = job.programs.iter().map(|program| {
        let words = program.arguments.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    });
    let mut line = programs.collect::<Vec<_>>().join(" : ");
    if line.len() > LONGEST_COMMAND {
        line.truncate(line.floor_char_boundary(LONGEST_COMMAND));
        line.push('…');
    }
    line
}

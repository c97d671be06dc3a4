//! The start of a job, new or suspended: the dispatcher's own surroundings, the agent, and the first word to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::sys::prctl;
use resurgo_protocol::checkpoints::Checkpoints;
use resurgo_protocol::policy::Policy;
use resurgo_protocol::{Coordinator, Fact, Protocol};
use resurgo_wire::console::LONGEST_COMMAND;
use resurgo_wire::control::{Job, Nodes, Stdin, ToAgent, appnums};

use super::bus::{Bus, Wanted};
use super::cluster::Cluster;
use super::console::Console;
use super::coordinate::plan;
use super::events::Event;
use super::launching::{self, Launched, Patience};
use super::ledger::{self, Ledger};
use super::node::{Agents, Node};
use super::output::{Output, Owed};
use super::refusals::Refusals;
use super::signals::Signals;
use super::start_error::{StartError, cannot};
use super::suspend::{self, State, Suspension};
use super::{About, Dispatcher, Front, Images, Places, Servers, Settings, Spawning, input};
use crate::faults::Schedule;
use crate::suspended::Suspended;

impl Dispatcher {
    pub(super) fn start(mut settings: Settings) -> Result<Dispatcher, StartError> {
        let start = Instant::now();
        prctl::set_child_subreaper(true).map_err(|error| cannot("become a subreaper")(error.into()))?;
        let signals = Signals::watch(settings.checkpoint_signal, settings.grace).map_err(cannot("watch signals"))?;
        let wanted = wanted(&settings)?;
        let size = settings.job.programs.iter().map(|program| program.ranks).sum();
        let faults = prepare_job(&mut settings, size)?;
        let job = &mut settings.job;
        let servers = Servers::start(job, &settings.servers, size)?;
        let (mut output, wake) = start_output(settings.output)?;
        if settings.resumed.is_none() {
            output.make_files(size)?;
        }
        let (agents, plans, missing) = start_agents(settings.cluster.as_mut(), job, &signals)?;
        let coordinator = Coordinator::new(plan(job, size));
        let ledger = Ledger::new(&job.name, appnums(&job.programs), job.stdin == Stdin::Stream);
        let mut dispatcher = Dispatcher {
            owed: (0..agents.len()).map(|_| Owed::default()).collect(),
            agents,
            plan: plans.first().cloned(),
            front: Front::of(signals, wake),
            output,
            bus: begin_to_tell(wanted, job.protocol, size, &servers, start),
            servers,
            about: About::of(job),
            spawning: Spawning {
                find: settings.find,
                most_ranks: job.most_ranks,
                open_files: job.open_files.1,
                worlds: Vec::new(),
                by: BTreeMap::new(),
            },
            policy: Policy::new(size, job.protocol, settings.limits),
            faults,
            checkpoints: Checkpoints::new(
                settings.checkpoint_period,
                settings.checkpoint_order,
                match job.protocol.has_waves() {
                    true => coordinator.units(),
                    false => size,
                },
                settings.images_in_flight.unwrap_or(usize::MAX),
            )
            .with_share(settings.checkpoint_share),
            images: Images::of(job, size),
            coordinator,
            together: false,
            suspension: Suspension::new(
                settings.origin,
                settings.registry,
                job.image_files
                    .directory
                    .as_ref()
                    .map(|directory| PathBuf::from(directory).join(&job.name))
                    .unwrap_or_default(),
                suspend::obstacle(job),
                settings.time_limit,
            ),
            start,
            timeout: settings.timeout,
            pids: vec![None; size],
            exit_codes: settings.print_exit_codes.then(BTreeMap::new),
            ledger: ledger.map_err(cannot("keep standard input"))?,
            verdict: None,
            interrupted: false,
            stopped: None,
        };
        for (name, reason) in &missing {
            dispatcher.bus.tell(Event::NodeMissing { name, reason });
        }
        let job = Box::new(settings.job);
        match settings.resumed {
            Some(suspended) => dispatcher.resume(job, suspended)?,
            None => dispatcher.launch(&job, plans, settings.cluster),
        }
        Ok(dispatcher)
    }

    /// Gives each agent the job, with its own plan of the nodes.
    fn launch(&mut self, job: &Job, plans: Vec<Nodes>, cluster: Option<Cluster>) {
        for node in 0..self.agents.len() {
            let mut job = Box::new(job.clone());
            job.nodes = plans.get(node).cloned();
            self.agents.node(node).tell(&ToAgent::Launch(job));
        }
        if let Some(cluster) = cluster {
            for (node, host) in (0..).zip(&cluster.hosts) {
                self.coordinate(Fact::Up {
                    node,
                    slots: host.slots,
                    spare: host.spare,
                });
            }
            let nodes = cluster.of_rank;
            self.coordinate(Fact::Placed { nodes });
        }
        self.coordinate(Fact::Launched);
    }

    /// Goes on where the job was when it was suspended.
    fn resume(&mut self, mut job: Box<Job>, suspended: Suspended) -> Result<(), StartError> {
        let about = suspended.header.about;
        let state: State = serde_json::from_value(about.dispatcher)?;
        let ledger = match state.ledger {
            Some(ledger) => ledger,
            None => ledger::State::of_agent(suspended.header.agent)?,
        };
        self.ledger.resume(ledger);
        let mut first = 0;
        for program in &mut job.programs {
            // The first versions did not write it down.
            program.world = state.spawned_worlds.iter().filter(|world| **world <= first).count();
            first += program.ranks;
        }
        self.policy.resume(state.policy);
        self.spawning.worlds = state.spawned_worlds;
        for path in self.output.resume(state.output)? {
            self.bus.tell(Event::OutputFileDiffers { path: &path });
        }
        self.suspension.record.began_at(about.printed);
        self.suspension.is_from_wave = about.wave.is_some();
        self.suspension.seconds_before = about.seconds;
        self.suspension.former = about.former;
        self.suspension.former.push(about.number);
        self.suspension.resumed_from = Some(suspended.directory.clone());
        self.suspension.directory = suspended.directory.clone();
        self.tell(ToAgent::Resume {
            job,
            directory: suspended.directory.into_os_string(),
            id: suspended.header.id,
            input: self.ledger.input.as_ref().map(|input| input.path().into()),
        });
        Ok(())
    }
}

impl Front {
    fn of(signals: Signals, wake: PipeReader) -> Front {
        Front {
            signals,
            console: Console::start(),
            wake,
            progress_due: None,
        }
    }
}

impl Images {
    fn of(job: &Job, size: usize) -> Images {
        Images {
            without: suspend::without_images(job),
            are_written: job.image_files.directory.is_some(),
            refusals: Refusals::new(size),
            unusable: BTreeMap::new(),
        }
    }
}

impl About {
    fn of(job: &Job) -> About {
        About {
            name: job.name.clone(),
            command: command_line(job),
            cpus: (0..job.cpus.len()).filter_map(|rank| job.cpus_of(rank)).collect(),
        }
    }
}

/// Makes the files that the user wants to have at the end.
fn wanted(settings: &Settings) -> Result<Wanted, StartError> {
    let create = |path: &Option<PathBuf>, option: &'static str| match path {
        Some(path) => File::create(path).map(Some).map_err(|error| StartError::UserFile {
            path: path.clone(),
            option,
            error,
        }),
        None => Ok(None),
    };
    Ok(Wanted {
        quiet: settings.quiet,
        verbose: settings.verbose,
        json: create(&settings.json_events, "--json-events")?,
        table: settings.stats,
        figures: create(&settings.stats_json, "--stats-json")?,
    })
}

/// Fills in what a job of `size` ranks has of this run. Answers which faults it is to have.
fn prepare_job(settings: &mut Settings, size: usize) -> Result<Schedule, StartError> {
    let job = &mut settings.job;
    if settings.resumed.is_none() {
        job.stdin = match &settings.cluster {
            // Rank 0 may be on a machine that has no such file.
            Some(cluster) if !cluster.is_here() => input::stream(),
            _ => input::find(),
        };
        job.key = crate::sys::random().map_err(cannot("read /dev/urandom"))?;
    }
    let launched = settings.resumed.as_ref().map_or(size, |job| job.header.about.launched);
    let mut faults = Schedule::new(&settings.faults, launched);
    faults.grow(size);
    job.message_faults = (0..size)
        .map(|rank| (rank, faults.next_life(rank, 0)))
        .filter(|(_, messages)| *messages > 0)
        .collect();
    Ok(faults)
}

/// The agents, what each is told of the others, and which nodes are missing, with reasons.
type Started = (Agents, Vec<Nodes>, Vec<(String, String)>);

/// Starts the agents of all nodes.
fn start_agents(cluster: Option<&mut Cluster>, job: &Job, signals: &Signals) -> Result<Started, StartError> {
    let Some(cluster) = cluster else {
        return Ok((Agents::one(Node::start()?), Vec::new(), Vec::new()));
    };
    let patience = Patience {
        signals: signals.as_fd(),
        ended: &|| signals.ended(),
    };
    let Launched { nodes, plans, missing } = launching::launch(cluster, job, &patience)?;
    Ok((Agents::several(nodes, cluster.lease), plans, missing))
}

/// Starts the writers of output, and answers what is readable when one of them has something to say.
fn start_output(places: Places) -> Result<(Output, PipeReader), StartError> {
    let (wake, wake_writer) = io::pipe().map_err(cannot("make a pipe"))?;
    crate::sys::set_nonblocking(&wake).map_err(cannot("make a pipe"))?;
    crate::sys::set_nonblocking(&wake_writer).map_err(cannot("make a pipe"))?;
    let second_wake_writer = wake_writer.try_clone().map_err(cannot("make a pipe"))?;
    let output = Output::start(places, [wake_writer, second_wake_writer]).map_err(cannot("start a thread"))?;
    Ok((output, wake))
}

/// Tells that a job of `size` ranks begins.
fn begin_to_tell(wanted: Wanted, protocol: Protocol, size: usize, servers: &Servers, start: Instant) -> Bus {
    let mut bus = Bus::new(size, wanted, start);
    bus.tell(Event::JobStarted {
        ranks: size,
        protocol: protocol.name(),
        unix_time: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |time| time.as_secs_f64()),
        coordinated: protocol.has_waves() && !protocol.logs(),
    });
    servers.tell(&mut bus);
    bus
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

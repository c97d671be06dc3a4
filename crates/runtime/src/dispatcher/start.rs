//! The start of a job, new or suspended: the dispatcher's own resources, the agent, and the first message to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use resurgo_protocol::checkpoints::Checkpoints;
use resurgo_protocol::policy::{Limits, Policy};
use resurgo_protocol::{Coordinator, Fact, Protocol};
use resurgo_store::Described;
use resurgo_wire::console::LONGEST_COMMAND;
use resurgo_wire::control::{Arrival, Job, JobDirectory, Limit, Nodes, Secret, Sight, Stdin, ToAgent, appnums};

use super::bus::{Bus, Journal, Notices, Wanted};
use super::cluster::Cluster;
use super::console::Console;
use super::coordinate::plan;
use super::events::Event;
use super::flush::{Flushes, StoreServers, Stores};
use super::guests::Coming;
use super::job_files::JobFiles;
use super::launching::{self, Launched, Launching, Patience};
use super::ledger::{self, Ledger};
use super::metrics::{self, Metrics};
use super::node::{Agents, Node};
use super::output::{Output, Owed};
use super::refusals::Refusals;
use super::servers::reached;
use super::signals::Signals;
use super::start_error::{StartError, cannot};
use super::suspend::{self, State, Suspension};
use super::{About, Dispatcher, Front, Images, Places, Servers, Settings, Spawning, input};
use crate::faults::Schedule;
use crate::flush::{self, DISPATCHERS, Secrets, Site};
use crate::limits;
use crate::suspended::Suspended;
use crate::turns::Turns;

/// For the key of checkpoint servers, which is on their disks: it tells nothing about that of the job.
const SERVERS: &str = "resurgo 2026-11-27 checkpoint servers of a job";

impl Dispatcher {
    pub(super) fn start(mut settings: Settings) -> Result<Dispatcher, StartError> {
        let start = Instant::now();
        prctl::set_child_subreaper(true).map_err(|error| cannot("become a subreaper")(error.into()))?;
        let signals = signals(&settings).map_err(cannot("watch signals"))?;
        let (wanted, metrics) = (wanted(&settings, start)?, metrics::prepare(&settings.reports)?);
        let size = settings.job.programs.iter().map(|program| program.ranks).sum();
        let faults = prepare_job(&mut settings, size)?;
        let job = &mut settings.job;
        let mut servers = Servers::start(job, &settings.servers, size)?;
        let (mut output, wake, wake_writer) = start_output(settings.output, settings.has_bar)?;
        if settings.resumed.is_none() && (settings.cluster.is_none() || !output.names_nodes()) {
            output.make_files(size)?;
        }
        let flushes = start_flushes(job, &settings.stores, &wake_writer, &signals)?;
        let (started, files) = start_nodes(
            job,
            settings.cluster.as_mut(),
            settings.resumed.as_ref(),
            &signals,
            &mut output,
            wake_writer,
        )?;
        servers.come(job, &started.arrivals);
        if let Some(cluster) = settings.cluster.as_ref().filter(|_| !settings.quiet) {
            started.warn_of_limits(cluster);
        }
        let coordinator = Coordinator::new(plan(job, size, !started.plans.is_empty(), &servers));
        let kinds = settings.memory_alloc_kinds.take();
        let ledger = Ledger::new(&job.name, appnums(&job.programs), job.stdin == Stdin::Stream)
            .map(|ledger| ledger.asking_for(kinds));
        let mut dispatcher = Dispatcher {
            owed: (0..started.agents.len()).map(|_| Owed::default()).collect(),
            agents: started.agents,
            coming: None,
            plan: started.plans.first().cloned(),
            front: Front::start(signals, wake, metrics)?,
            output,
            bus: begin_to_tell(wanted, job.protocol, size, &servers, start),
            servers,
            about: About::of(job),
            spawning: Spawning::of(job, settings.find),
            policy: failure_policy(job, settings.limits, &started.plans, size),
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
                own_directory(job),
                suspend::obstacle(job, !started.plans.is_empty()),
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
        (dispatcher.suspension.files, dispatcher.images.flushes) = (files, flushes);
        dispatcher.tell_missing(&started.missing);
        let coming = started.launching.filter(|_| settings.resumed.is_none());
        dispatcher.coming = coming.map(|launching| Coming::of(launching, &settings.job));
        let (plans, sights) = (&started.plans, &started.sights);
        dispatcher.begin(settings.job, settings.resumed, settings.cluster, plans, sights)?;
        Ok(dispatcher)
    }

    /// Nodes and places that are not there.
    fn tell_missing(&mut self, missing: &[(String, String)]) {
        for (name, reason) in missing {
            self.bus.tell(Event::NodeMissing { name, reason });
        }
        self.tell_places_away();
    }

    /// Gives agents the job, a new one or one that goes on.
    fn begin(
        &mut self,
        job: Job,
        resumed: Option<Suspended>,
        cluster: Option<Cluster>,
        plans: &[Nodes],
        sights: &[Sight],
    ) -> Result<(), StartError> {
        self.tell_levels(&job, cluster.as_ref());
        match (resumed, cluster) {
            (Some(mut suspended), Some(cluster)) => {
                let names = std::mem::take(&mut suspended.header.about.nodes);
                let ranks = suspended.header.agent["ranks"].take();
                self.take_up(suspended)?;
                self.resume_on_nodes(&job, plans, &cluster, sights, (ranks, &names))
            }
            (Some(suspended), None) => self.resume(Box::new(job), suspended),
            (None, cluster) => self.launch(&job, plans, cluster.as_ref()),
        }
    }

    /// Gives each agent the job, with its own plan of the nodes.
    fn launch(&mut self, job: &Job, plans: &[Nodes], cluster: Option<&Cluster>) -> Result<(), StartError> {
        for node in 0..self.agents.len() {
            let mut job = Box::new(job.clone());
            let known_as = self.agents.node(node).knows_this_machine_as();
            job.services = reached(&job.services, known_as).map_err(cannot("be reached by other nodes"))?;
            job.nodes = plans.get(node).cloned();
            self.agents.node(node).tell(&ToAgent::Launch(job));
        }
        self.place_ranks(cluster);
        self.coordinate(Fact::Launched);
        Ok(())
    }

    /// Resumes the job from its suspension.
    fn resume(&mut self, mut job: Box<Job>, suspended: Suspended) -> Result<(), StartError> {
        let (directory, id) = (suspended.directory.clone(), suspended.header.id.clone());
        let names = suspended.header.about.nodes.clone();
        let (ranks, sight) = (suspended.header.agent["ranks"].clone(), suspended.sight());
        let worlds = self.take_up(suspended)?;
        job.services = reached(&job.services, None).map_err(cannot("be reached"))?;
        if !names.is_empty() {
            // The job was on several nodes, which may have kept their images for themselves.
            self.find_images(ranks, &names, &[sight], true)?;
        }
        let mut first = 0;
        for program in &mut job.programs {
            // The first versions did not record it.
            program.world = worlds.iter().filter(|world| **world <= first).count();
            first += program.ranks;
        }
        self.tell(ToAgent::Resume {
            job,
            directory: directory.into_os_string(),
            id,
            input: self.ledger.input.as_ref().map(|input| input.path().into()),
        });
        Ok(())
    }

    /// Takes up the dispatcher's part of a suspended job. Returns the first ranks of the spawned worlds.
    fn take_up(&mut self, suspended: Suspended) -> Result<Vec<usize>, StartError> {
        let about = suspended.header.about;
        let state: State = serde_json::from_value(about.dispatcher)?;
        let ledger = match state.ledger {
            Some(ledger) => ledger,
            None => ledger::State::of_agent(suspended.header.agent)?,
        };
        let accounts = ledger.accounts();
        self.ledger.resume(ledger);
        self.policy.resume(state.policy);
        self.spawning.worlds = state.spawned_worlds;
        for path in self.output.resume(state.output)? {
            self.bus.tell(Event::OutputFileDiffers { path: &path });
        }
        self.suspension.record.began_at(about.printed);
        self.suspension.is_from_wave = about.wave.is_some() || !about.nodes.is_empty();
        self.suspension.seconds_before = about.seconds;
        self.suspension.former = about.former;
        self.suspension.former.push(about.number);
        if let Some(flushes) = &mut self.images.flushes {
            flushes.go_on_from(about.wave, accounts);
        }
        self.suspension.resumed_from = Some(suspended.directory.clone());
        self.suspension.directory = suspended.directory;
        Ok(self.spawning.worlds.clone())
    }
}

impl Front {
    fn start(signals: Signals, wake: PipeReader, prepared: metrics::Prepared) -> Result<Front, StartError> {
        let mut console = Console::start();
        Ok(Front {
            signals,
            metrics: Metrics::start(prepared, &mut console)?,
            console,
            watchers: Default::default(),
            readers: Default::default(),
            wake,
            progress_due: None,
            replayed: None,
            turns: Turns::default(),
        })
    }
}

impl Images {
    fn of(job: &Job, size: usize) -> Images {
        Images {
            without: suspend::without_images(job),
            are_written: job.image_files.directory.is_some(),
            stay: job.image_files.keep,
            refusals: Refusals::new(size),
            scarce: BTreeSet::new(),
            let_go: BTreeSet::new(),
            unusable: BTreeMap::new(),
            refusing: BTreeSet::new(),
            shared: BTreeMap::new(),
            transit: Default::default(),
            sets: Default::default(),
            flushes: None,
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

fn signals(settings: &Settings) -> io::Result<Signals> {
    let notice = settings.cluster.as_ref().and_then(|cluster| cluster.preemption.signal);
    let notice = notice.map(Signal::try_from).transpose()?;
    Signals::watch(settings.checkpoint_signal, notice, settings.grace)
}

/// Makes the files that the user wants at the end.
fn wanted(settings: &Settings, start: Instant) -> Result<Wanted, StartError> {
    let reports = &settings.reports;
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
        json: create(&reports.json_events, "--json-events")?,
        table: reports.stats,
        figures: create(&reports.stats_json, "--stats-json")?,
        notices: match &reports.notify {
            Some(command) => {
                let notices = Notices::start(command.clone(), settings.quiet, start);
                Some(notices.map_err(cannot("start what runs the command of --notify"))?)
            }
            None => None,
        },
        journal: reports.journal.then(|| Journal::open(start)),
        trace: create(&reports.trace, "--trace")?.and_then(|file| Some((reports.trace.clone()?, file))),
    })
}

fn failure_policy(job: &Job, limits: Limits, plans: &[Nodes], size: usize) -> Policy {
    let nodes = plans.first().map_or(vec![0; size], |plan| plan.of_rank.clone());
    Policy::new(size, job.protocol, limits).surviving(job.survives(), nodes)
}

/// Fills in this run's part of a job of `size` ranks. Returns the faults to inject.
fn prepare_job(settings: &mut Settings, size: usize) -> Result<Schedule, StartError> {
    if let Some(cluster) = &mut settings.cluster {
        cluster.limits = limits::own();
    }
    let job = &mut settings.job;
    if settings.resumed.is_none() {
        job.stdin = match &settings.cluster {
            // Rank 0 may be on a machine that has no such file.
            Some(cluster) if !cluster.is_here() => input::stream(),
            _ => input::find(),
        };
    }
    // Leftovers of a former run on other nodes must not have the key of this one.
    if settings.resumed.is_none() || settings.cluster.is_some() {
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

/// Where the job's files are.
fn own_directory(job: &Job) -> PathBuf {
    let directory = job.image_files.directory.as_ref();
    directory.map_or(PathBuf::new(), |directory| PathBuf::from(directory).join(&job.name))
}

/// The places that recorded waves are copied to. They must be usable when the job begins, but one that cannot be reached
/// costs a warning; and so does a lost one when a job goes on. The job's key is known.
fn start_flushes(
    job: &mut Job,
    stores: &Stores,
    wake: &PipeWriter,
    signals: &Signals,
) -> Result<Option<Flushes>, StartError> {
    if job.image_files.places.is_empty() {
        return Ok(None);
    }
    let places = &job.image_files.places;
    let described = places
        .iter()
        .map(|place| Described::parse(place))
        .collect::<Result<Vec<_>, _>>();
    let described = described.map_err(StartError::Place)?;
    let key = blake3::derive_key(SERVERS, &job.key);
    let ended = || signals.ended().ok().flatten();
    let servers = StoreServers::start(stores, (&described, &job.name, key), wake, &ended)?;
    let secrets = Secrets::new(&stores.secret, key, &described);
    let sites = Site::all(places, &secrets, &job.name, DISPATCHERS).map_err(StartError::Place)?;
    let away = match stores.are_known {
        true => Vec::new(),
        false => flush::examine(&sites).map_err(|error| StartError::Place(error.to_string()))?,
    };
    job.image_files.secret = Secret::masked(&secrets.encode(), &job.key);
    let flushes = Flushes::start(sites, servers, away, wake).map_err(cannot("start a thread"))?;
    Ok(Some(flushes))
}

/// Starts the agents, which find out whether they see one directory, and tells `output` where ranks run.
fn start_nodes(
    job: &mut Job,
    mut cluster: Option<&mut Cluster>,
    resumed: Option<&Suspended>,
    signals: &Signals,
    output: &mut Output,
    wake: PipeWriter,
) -> Result<(Started, Option<JobFiles>), StartError> {
    let mut files = match cluster {
        Some(_) => job_files(job, resumed)?,
        None => None,
    };
    let place = files.as_ref().map(JobFiles::place);
    let started = match start_agents(cluster.as_deref_mut(), job, place, signals) {
        Ok(started) => started,
        Err(error) => {
            files.into_iter().for_each(JobFiles::leave);
            return Err(error);
        }
    };
    if files.is_some() {
        job.image_files.shared = started.sights.iter().all(|sight| sight.is_shared);
        job.image_files.partners &= !job.image_files.shared;
    }
    let in_vain = job.image_files.parity.take_if(|_| job.image_files.shared);
    if in_vain.is_some() && resumed.is_none() {
        files.into_iter().for_each(JobFiles::leave);
        let path = job.image_files.directory.clone().unwrap_or_default().into();
        return Err(StartError::ParityInOneDirectory { path });
    }
    if let Err(error) = place_output(output, cluster.as_deref(), resumed.is_none()) {
        files.into_iter().for_each(JobFiles::leave);
        return Err(error);
    }
    if let Some(files) = &mut files {
        files.begin(job, wake);
    }
    Ok((started, files))
}

/// Where ranks run is known: so are the names of all files of a new job.
fn place_output(output: &mut Output, cluster: Option<&Cluster>, is_new: bool) -> Result<(), StartError> {
    let Some(cluster) = cluster else { return Ok(()) };
    output.set_nodes(cluster);
    match is_new {
        true => output.make_files(cluster.of_rank.len()),
        false => Ok(()),
    }
}

/// The job's directory, where its agents are on several nodes.
fn job_files(job: &Job, resumed: Option<&Suspended>) -> Result<Option<JobFiles>, StartError> {
    let Some(directory) = &job.image_files.directory else {
        return Ok(None);
    };
    let files = match resumed {
        Some(suspended) => JobFiles::resume(job, suspended).map_err(StartError::NotResumed)?,
        None => JobFiles::create(job, directory).map_err(|error| StartError::Directory {
            path: directory.into(),
            error,
        })?,
    };
    Ok(Some(files))
}

/// The agents, their plans and sights of the job's directory, and the missing nodes with reasons.
struct Started {
    agents: Agents,
    plans: Vec<Nodes>,
    sights: Vec<Sight>,
    missing: Vec<(String, String)>,
    arrivals: Vec<Arrival>,
    /// Further agents arrive here.
    launching: Option<Launching>,
}

impl Started {
    /// Warns of nodes on which ranks have lower limits than this process.
    fn warn_of_limits(&self, cluster: &Cluster) {
        let hosts = cluster.hosts.iter().map(|host| host.name.as_str());
        let limits = self.arrivals.iter().map(|arrival| &arrival.limits[..]);
        let nodes: Vec<(&str, &[Limit])> = hosts.zip(limits).collect();
        if let Some(warning) = limits::warning(&cluster.limits, &nodes) {
            eprintln!("resurgo: warning: {warning}");
        }
    }
}

/// Starts the agents of all nodes.
fn start_agents(
    cluster: Option<&mut Cluster>,
    job: &Job,
    directory: Option<JobDirectory>,
    signals: &Signals,
) -> Result<Started, StartError> {
    let Some(cluster) = cluster else {
        return Ok(Started {
            agents: Agents::one(Node::start()?),
            plans: Vec::new(),
            sights: Vec::new(),
            arrivals: Vec::new(),
            missing: Vec::new(),
            launching: None,
        });
    };
    let patience = Patience {
        signals: signals.as_fd(),
        ended: &|| signals.ended(),
    };
    let launched = launching::launch(cluster, job, directory, &patience)?;
    let Launched {
        nodes,
        helpers,
        beats,
        plans,
        sights,
        arrivals,
        missing,
        launching,
    } = launched;
    Ok(Started {
        agents: Agents::several(nodes, helpers, cluster.lease, beats),
        plans,
        sights,
        arrivals,
        missing,
        launching: Some(launching),
    })
}

/// Starts the writers of output; returns a pipe that is readable when a writer or another thread has a result.
fn start_output(places: Places, has_bar: bool) -> Result<(Output, PipeReader, PipeWriter), StartError> {
    let (wake, wake_writer) = io::pipe().map_err(cannot("make a pipe"))?;
    crate::sys::set_nonblocking(&wake).map_err(cannot("make a pipe"))?;
    crate::sys::set_nonblocking(&wake_writer).map_err(cannot("make a pipe"))?;
    let another = || wake_writer.try_clone().map_err(cannot("make a pipe"));
    let output = Output::start(places, [another()?, another()?], has_bar).map_err(cannot("start a thread"))?;
    Ok((output, wake, wake_writer))
}

/// Tells that a job of `size` ranks begins.
fn begin_to_tell(wanted: Wanted, protocol: Protocol, size: usize, servers: &Servers, start: Instant) -> Bus {
    let mut bus = Bus::new(size, wanted, start);
    bus.tell(Event::JobStarted {
        ranks: size,
        protocol: protocol.name(),
        unix_time: crate::unix_time(),
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

//! `resurgo run`: from the command line to a job.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use resurgo_protocol::kinds::Kept;
use resurgo_runtime::binding;
use resurgo_runtime::dispatcher::{self, Cluster, Limits, Places, Settings, Stores};
use resurgo_runtime::faults::{Fault, parse_image_at};
use resurgo_runtime::suspended::{Configured, Origin, Suspended, processor};
use resurgo_store::{Described, StoreKey};
use resurgo_wire::control::{Addresses, ImageFiles, Job, Program, Secret, Stdin, Trace};
use resurgo_wire::node_memory::{Layout, MAX_LOG_SEGMENTS, SEGMENT};
use resurgo_wire::services::Services;

use crate::addresses;
use crate::check::{self, Refusal};
use crate::options::{self, Options, Request, TimeLimit};
use crate::site::Beside;
use crate::{clock, configuration, hosts, program, progress, say, slurm, spawn, suspend};

/// Runs a job; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let read = options::config_file::expand(arguments).and_then(|arguments| {
        let (request, configured) = configuration::parse(arguments.clone())?;
        let mut set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        match request {
            Request::Run(_) => set.try_for_each(|(name, _)| options::check_variable(&name.to_string_lossy()))?,
            Request::Help | Request::Version => {}
        }
        Ok((request, arguments, configured))
    });
    match read {
        Ok((Request::Help, ..)) => crate::help::print("run"),
        Ok((Request::Version, ..)) => crate::version::run(&[]),
        Ok((Request::Run(options), arguments, configured)) => {
            let web = options.output.web;
            begin(begin_or_resume(*options, arguments, configured), web)
        }
        Err(error) => {
            eprintln!("resurgo: {error}");
            i32::from(crate::check::USAGE)
        }
    }
}

/// Runs a prepared job, which `web` shows to browsers; returns the exit status.
pub fn begin(prepared: Result<Settings, Refusal>, web: Option<SocketAddr>) -> i32 {
    let prepared = prepared.and_then(|settings| Ok((settings, web.map(Beside::start).transpose()?)));
    match prepared {
        Ok((settings, beside)) => {
            let code = dispatcher::run(settings);
            beside.into_iter().for_each(Beside::end);
            code
        }
        Err(refusal) => {
            eprintln!("resurgo: {}", refusal.text);
            refusal.code
        }
    }
}

fn begin_or_resume(
    options: Options,
    arguments: Vec<OsString>,
    configured: Vec<Configured>,
) -> Result<Settings, Refusal> {
    let here = std::env::current_dir().map_err(|error| {
        Refusal::new(
            2,
            format!("the current directory cannot be found: {error}; change to one that is there"),
        )
    })?;
    let origin = Origin {
        arguments,
        environment: std::env::vars_os().collect(),
        directory: here.into_os_string(),
        configured,
    };
    let cluster = hosts::cluster(&options, Path::new(&origin.directory), |name| std::env::var_os(name))?;
    if let Some(directory) = &options.images.directory {
        check::image_directory(&Path::new(&origin.directory).join(directory))?;
    }
    if options.resume_if_any
        && let Some(suspended) = suspend::find_same(&options, &origin)?
    {
        return resume(options, suspended);
    }
    prepare(options, origin, cluster)
}

/// The faults to inject into a job of so many ranks, on so many nodes.
fn faults(options: &Options, ranks: usize, nodes: usize) -> Result<Vec<Fault>, Refusal> {
    let faults = options.faults.iter().map(|fault| Fault::parse(fault, ranks, nodes));
    faults.collect::<Result<_, _>>().map_err(|error| Refusal::new(2, error))
}

/// At which numbers of messages images are taken.
fn images_at(options: &Options, size: usize) -> Result<Vec<(usize, u64)>, Refusal> {
    let mut all = Vec::new();
    for text in &options.images.at {
        all.extend(parse_image_at(text, size).map_err(|error| Refusal::new(2, error))?);
    }
    Ok(all)
}

/// The processors of this machine that ranks take in turn.
fn processors(options: &Options) -> Result<Vec<Vec<u32>>, Refusal> {
    let unit = |of: &Option<(String, binding::Unit)>| of.as_ref().map(|(_, unit)| unit.clone());
    let found = binding::of(unit(&options.binding.to).as_ref(), unit(&options.binding.by).as_ref());
    found.map_err(|why| Refusal::new(2, format!("-bind-to: {why}")))
}

/// The same, unless there are several nodes: then each agent looks at its own machine, and is told what the user asks
/// for.
fn bound(options: &Options, has_several: bool) -> Result<(Vec<Vec<u32>>, Vec<String>), Refusal> {
    if options.binding.by.is_some() && options.binding.to.is_none() {
        note(
            options,
            "-map-by says in which order -bind-to binds ranks; without it they run on any processor",
        );
    }
    Ok(match has_several {
        true => (Vec::new(), options.binding.words()),
        false => (processors(options)?, Vec::new()),
    })
}

fn time_limit(options: &Options) -> Result<Option<Duration>, Refusal> {
    match options.ends.time_limit {
        None => Ok(None),
        Some(TimeLimit::After(time)) => Ok(Some(time)),
        Some(TimeLimit::Slurm) => slurm::time_left().map_err(|error| Refusal::new(2, error)),
    }
}

/// Goes on with a suspended job. `options` add to what the job was started with.
pub fn resume(mut options: Options, suspended: Suspended) -> Result<Settings, Refusal> {
    let about = &suspended.header.about;
    let mut job = suspended.header.job.clone();
    // Without a number, a program has as many ranks as the first nodes had slots.
    for (program, then) in options.programs.iter_mut().zip(&job.programs) {
        program.ranks = then.ranks;
    }
    let here = Path::new(&about.origin.directory).to_path_buf();
    let cluster = hosts::cluster(&options, &here, |name| std::env::var_os(name))?;
    let cluster = cluster.map(|cluster| with_files(cluster, &job.programs)).transpose()?;
    // On several nodes every suspension has a wave.
    let has_wave = job.protocol.can_return_together() || job.image_files.waves_to_suspend && !about.nodes.is_empty();
    if cluster.is_some() && (!has_wave || about.ranks > about.launched) {
        return Err(Refusal::new(
            2,
            "a job that has left one machine without a wave of all ranks, or whose ranks have spawned others, cannot go on \
             on several nodes yet; resume it on one (--nodes 1)",
        ));
    }
    // Without replicas, too, images come from the nodes that have them.
    let comes_back = job.image_files.replicas > 0 || job.image_files.waves_to_suspend;
    let partners = cluster.is_some() && job.images && comes_back;
    (job.image_files.partners, job.image_files.shared) = (partners, false);
    job.open_files = check::open_files(about.ranks)?;
    let missing = about.missing(&processor());
    if !missing.is_empty() {
        return Err(Refusal::new(
            1,
            format!(
                "the job was suspended on another processor, and may use what this one does not have: {}; resume it on a \
                 machine like the first one",
                missing.join(", ")
            ),
        ));
    }
    let warning = clock::never_backwards(Duration::from_nanos(about.monotonic_ns));
    if let Some(warning) = warning.filter(|_| !options.output.quiet) {
        eprintln!("resurgo: warning: {warning}");
    }
    job.addresses.are_fixed = check::fixed_addresses(job.protocol)?;
    job.image_files.keep = options.images.keep;
    job.addresses.trace.is_on = options.output.reports.trace.is_some();
    if job.addresses.trace.is_on && job.addresses.trace.records == 0 {
        let text = "--trace: the job was started without it, so its ranks have no memory for a trace; leave it out";
        return Err(Refusal::new(2, text));
    }
    // This machine may have other processors than the one on which the job was suspended.
    job.cpus = processors(&options)?;
    job.image_at_messages = images_at(&options, about.launched)?;
    // With these, the addresses of the node memory were free.
    addresses::as_before(&job)?;
    addresses::check_limits(&job.layout(about.ranks), "")?;
    let nodes = cluster.as_ref().map_or(1, Cluster::nodes_of_ranks);
    let faults = faults(&options, about.launched, nodes)?;
    let settings = settings(options, job, faults, about.origin.clone(), Some(suspended))?;
    Ok(Settings { cluster, ..settings })
}

fn settings(
    options: Options,
    job: Job,
    faults: Vec<Fault>,
    origin: Origin,
    resumed: Option<Suspended>,
) -> Result<Settings, Refusal> {
    let stores = Stores {
        secret: store_secret(&options)?,
        hosts: hosts::of_stores(&options, &job.image_files.places, |name| std::env::var_os(name))?,
        launcher_file: options.nodes.launcher_file.clone(),
        are_known: resumed.is_some(),
    };
    Ok(Settings {
        job,
        limits: Limits {
            restarts: options.ends.restarts,
            restarts_per_rank: options.ends.restarts_per_rank,
            untold: options.ends.after,
        },
        faults,
        output: Places {
            label: options.output.label.clone(),
            files: options.output.files.clone(),
            directory: PathBuf::from(&origin.directory),
        },
        quiet: options.output.quiet,
        has_bar: !options.output.quiet && !prints_events(&options) && progress::is_seen(),
        verbose: options.output.verbose,
        print_exit_codes: options.output.exit_codes,
        timeout: options.ends.timeout,
        reports: options.output.reports.clone(),
        servers: options.servers(),
        cluster: None,
        checkpoint_period: options.images.period,
        checkpoint_share: options.images.share,
        checkpoint_order: options.images.order,
        images_in_flight: options.images.in_flight,
        checkpoint_signal: options.images.signal,
        grace: options.ends.grace,
        memory_alloc_kinds: options.memory_alloc_kinds.clone(),
        time_limit: time_limit(&options)?,
        registry: Some(suspend::registry()),
        stores,
        resumed,
        origin: origin.clone(),
        find: Box::new(move |wanted| spawn::find(&options, &origin, wanted)),
    })
}

/// Whether events go to a terminal, or another device.
fn prints_events(options: &Options) -> bool {
    let events = options.output.reports.json_events.as_ref();
    events.is_some_and(|path| path.metadata().is_ok_and(|about| about.file_type().is_char_device()))
}

/// The key that seals what goes to places.
fn store_secret(options: &Options) -> Result<Vec<u8>, Refusal> {
    let Some(path) = &options.images.store_key else {
        return Ok(Vec::new());
    };
    StoreKey::secret(path).map_err(|error| Refusal::new(2, format!("--store-key: {error}")))
}

/// Ranks whose failures are told later begin again where their messages are.
fn check_recovery(options: &Options, is_on_nodes: bool) -> Result<(), Refusal> {
    if options.ends.after == 0 || !is_on_nodes {
        return Ok(());
    }
    let text = "--ft-after is for jobs on one node, and this one has several: leave it out, and failures are told at once; or \
                name one host";
    Err(Refusal::new(2, text))
}

fn prepare(options: Options, origin: Origin, cluster: Option<Cluster>) -> Result<Settings, Refusal> {
    let size = options.size();
    let faults = faults(&options, size, cluster.as_ref().map_or(1, Cluster::nodes_of_ranks))?;
    let open_files = check::open_files(size)?;
    if let Some(directory) = options.log.spill_directory.as_ref().filter(|path| !path.is_dir()) {
        let text = format!("--spill-dir {}: not a directory", directory.display());
        return Err(Refusal::new(2, text));
    }
    if let Some(choice) = options.choice {
        note(&options, &format!("--protocol auto: {choice}"));
    }
    if let Some(warning) = check::shared_memory(size).filter(|_| !options.output.quiet) {
        eprintln!("resurgo: warning: {warning}");
    }
    check_recovery(&options, cluster.is_some())?;
    if options.images.parity.is_some() && cluster.is_none() {
        let text = "--store parity: needs other nodes, and the job has one; leave it out, or name nodes with --hosts or --nodes";
        return Err(Refusal::new(2, text));
    }
    if let Some(peers @ 1..) = options
        .images
        .peers
        .filter(|_| cluster.is_none() && !options.output.quiet)
    {
        eprintln!("resurgo: warning: --store peers:{peers}: the job has one node, so no other one has its images");
    }
    let programs = programs(&options, &origin)?;
    let node_of = cluster.as_ref().map(|cluster| cluster.of_rank.clone());
    let cluster = cluster.map(|cluster| with_files(cluster, &programs)).transpose()?;
    let (layout, place) = node_memory(&options, size)?;
    let log_segments = layout.log_segments;
    let (stack_limit, legacy_layout) = addresses::decided_by()?;
    let (cpus, binding) = bound(&options, cluster.is_some())?;
    let log_prefault = prefault(&options);
    // Lives of ranks may have other working directories.
    let here = Path::new(&origin.directory);
    let job = Job {
        name: job_name(),
        programs,
        most_ranks: layout.size,
        protocol: options.protocol,
        tolerate_node: options.tolerate_node,
        log_segments,
        prefault_segments: (log_prefault / SEGMENT as u64).min(log_segments as u64) as u32,
        spin_ns: spin_ns(&options, binding::processors(&cpus, size)),
        spill_directory: options.log.spill_directory.clone().map(PathBuf::into_os_string),
        reduction: options.loggers.reduction,
        clock_spread: options.loggers.clock_spread,
        // The servers are started after this.
        services: Services::default(),
        key: [0; 32],
        stdin: Stdin::Nothing,
        images: options.has_images(),
        groups: options::groups::on_nodes(&options, size, node_of.as_deref())
            .map_err(|error| Refusal::new(2, error))?,
        groups_at_once: options.groups.at_once,
        image_files: image_files(&options, here, cluster.is_some()),
        cpus,
        binding,
        open_files,
        addresses: Addresses {
            are_fixed: check::fixed_addresses(options.protocol)?,
            place,
            stack_limit,
            legacy_layout,
            trace: trace(&options, &layout),
        },
        message_faults: Vec::new(),
        image_at_messages: images_at(&options, size)?,
        nodes: None,
    };
    let servers = hosts::servers(&options, cluster.as_ref())?;
    let settings = settings(options, job, faults, origin, None)?;
    Ok(Settings {
        servers,
        cluster,
        ..settings
    })
}

/// A place as later runs, in other directories, can use it.
fn lasting(place: &Described, here: &Path) -> String {
    let key = place.key.as_ref().map(|key| here.join(key));
    let place = Described { key, ..place.clone() };
    place.to_string()
}

fn image_files(options: &Options, here: &Path, is_on_nodes: bool) -> ImageFiles {
    let directory = options.images.directory.as_ref().map(|path| here.join(path));
    let (has_files, outlive_nodes) = (directory.is_some(), options.outlives_nodes());
    ImageFiles {
        // Files in memory are for other nodes.
        local_copies: options.images.local_copies || !has_files,
        directory: directory.map(PathBuf::into_os_string),
        compress: options.images.compress,
        keep: options.images.keep,
        partners: is_on_nodes && outlive_nodes && options.images.peers != Some(0),
        replicas: match outlive_nodes {
            true => options.images.peers.unwrap_or(1),
            false => 0,
        },
        waves_to_suspend: is_on_nodes && has_files && !outlive_nodes && options.protocol.with_waves().is_some(),
        parity: options.images.parity,
        copy_rate: options.images.copy_rate,
        shared: false,
        are_named: options.images.names_levels(),
        places: options.images.places.iter().map(|place| lasting(place, here)).collect(),
        secret: Secret::default(),
    }
}

/// Bytes of each log that get memory at the start.
fn prefault(options: &Options) -> u64 {
    match options.protocol.kept() {
        // Then the node's memory has no log.
        Kept::InChannelMemory => 0,
        _ => options.log.prefault,
    }
}

/// Adds the files that must be the same on all nodes.
fn with_files(mut cluster: Cluster, programs: &[Program]) -> Result<Cluster, Refusal> {
    let provider = Path::new(&program::provider_path()?).join(program::PROVIDER);
    cluster.files = vec![provider.into_os_string()];
    for program in programs {
        for file in [&program.path, &program.directory] {
            if !cluster.files.contains(file) {
                cluster.files.push(file.clone());
            }
        }
    }
    Ok(cluster)
}

fn note(options: &Options, text: &str) {
    if !options.output.quiet {
        say::note(text);
    }
}

fn programs(options: &Options, origin: &Origin) -> Result<Vec<Program>, Refusal> {
    let mut programs = Vec::new();
    for program in &options.programs {
        let (program, hint) = program::prepare(options, program, origin, None)?;
        if let Some(hint) = hint {
            note(options, &hint);
        }
        programs.push(program);
    }
    Ok(programs)
}

/// The size of the node memory, and its address.
fn node_memory(options: &Options, size: usize) -> Result<(Layout, usize), Refusal> {
    let may_spawn = !options.protocol.only_waves();
    let mut layout = Layout {
        size,
        log_segments: 0,
        spills: options.log.spill_directory.is_some(),
        piggybacks: options.protocol.piggybacks(options.tolerate_node),
        trace_records: options.trace_records(),
        undoes: options.protocol.can_return_together(),
        rereads: options.protocol.repeats_reads(),
    };
    layout.log_segments = match options.log.memory {
        Some(bytes) => (bytes / SEGMENT as u64).clamp(1, MAX_LOG_SEGMENTS as u64) as usize,
        None => addresses::default_log_segments(layout, may_spawn)?,
    };
    let room = addresses::room();
    if may_spawn {
        layout = addresses::with_spare_room(layout, &room)?;
    }
    addresses::check(&layout, &room)?;
    Ok((layout, room.start))
}

fn trace(options: &Options, layout: &Layout) -> Trace {
    Trace {
        records: layout.trace_records,
        is_on: options.output.reports.trace.is_some(),
    }
}

/// `bound`: how many processors the ranks have together, if they are bound.
fn spin_ns(options: &Options, bound: Option<usize>) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    match options.spin {
        Some(spin) => spin.as_nanos() as u64,
        None if options.size() <= bound.unwrap_or(cores) => 50_000,
        None => 3_000,
    }
}

/// A name that no other job on this machine has; all jobs' names have the same length. It ends with the time
/// ([`resurgo_wire::control::Job::began_ns`]).
fn job_name() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    format!("resurgo_{:08x}_{now:016x}", std::process::id())
}

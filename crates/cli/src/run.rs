//! `resurgo run`: from the command line to a job.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::{self, Limits, Listeners, Places, Settings};
use resurgo_runtime::faults::{Fault, parse_image_at};
use resurgo_runtime::suspended::{Origin, Suspended, processor};
use resurgo_wire::control::{Job, Program, Stdin};
use resurgo_wire::node_memory::{Layout, MAX_LOG_SEGMENTS, SEGMENT};

use crate::addresses;
use crate::check::{self, Refusal};
use crate::diagnosis;
use crate::environment;
use crate::options::{self, Options, ProgramOptions, Request, TimeLimit};
use crate::{binding, clock, hosts, slurm, spawn, suspend};

/// Runs a job; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let read = options::config_file::expand(arguments).and_then(|arguments| {
        let request = options::parse(arguments.clone(), |name| std::env::var_os(name))?;
        let mut set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        match request {
            Request::Run(_) => set.try_for_each(|(name, _)| options::check_variable(&name.to_string_lossy()))?,
            Request::Help | Request::Version => {}
        }
        Ok((request, arguments))
    });
    match read {
        Ok((Request::Help, _)) => crate::help::print("run"),
        Ok((Request::Version, _)) => {
            println!("resurgo {}", env!("CARGO_PKG_VERSION"));
            0
        }
        Ok((Request::Run(options), arguments)) => begin(begin_or_resume(*options, arguments)),
        Err(error) => {
            eprintln!("resurgo: {error}");
            i32::from(crate::USAGE)
        }
    }
}

/// Runs what has been prepared; returns the exit status.
pub fn begin(prepared: Result<Settings, Refusal>) -> i32 {
    match prepared {
        Ok(settings) => dispatcher::run(settings),
        Err(refusal) => {
            eprintln!("resurgo: {}", refusal.text);
            refusal.code
        }
    }
}

fn begin_or_resume(options: Options, arguments: Vec<OsString>) -> Result<Settings, Refusal> {
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
    };
    hosts::check(&options.hosts, Path::new(&origin.directory))?;
    if let Some(directory) = &options.checkpoint_directory {
        check::image_directory(&Path::new(&origin.directory).join(directory))?;
    }
    if options.resume_if_any
        && let Some(suspended) = suspend::find_same(&options, &origin)?
    {
        return resume(options, suspended);
    }
    prepare(options, origin)
}

/// The faults that are to be injected into a job of `size` ranks.
fn faults(options: &Options, size: usize) -> Result<Vec<Fault>, Refusal> {
    let faults = options.faults.iter().map(|fault| Fault::parse(fault, size));
    faults.collect::<Result<_, _>>().map_err(|error| Refusal::new(2, error))
}

/// When images are taken by the number of messages.
fn images_at(options: &Options, size: usize) -> Result<Vec<(usize, u64)>, Refusal> {
    let mut all = Vec::new();
    for text in &options.checkpoint_at {
        all.extend(parse_image_at(text, size).map_err(|error| Refusal::new(2, error))?);
    }
    Ok(all)
}

fn time_limit(options: &Options) -> Result<Option<Duration>, Refusal> {
    match options.time_limit {
        None => Ok(None),
        Some(TimeLimit::After(time)) => Ok(Some(time)),
        Some(TimeLimit::Slurm) => slurm::time_left().map_err(|error| Refusal::new(2, error)),
    }
}

/// Goes on with a suspended job, with what `options` say beyond what it was started with.
pub fn resume(options: Options, suspended: Suspended) -> Result<Settings, Refusal> {
    let about = &suspended.header.about;
    let mut job = suspended.header.job.clone();
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
    if let Some(warning) = warning.filter(|_| !options.quiet) {
        eprintln!("resurgo: warning: {warning}");
    }
    job.fixed_addresses = check::fixed_addresses(job.protocol)?;
    job.checkpoint_keep = options.checkpoint_keep;
    // This machine may have others than the one on which the job was suspended.
    job.cpus = binding::of(&options)?;
    job.image_at_messages = images_at(&options, about.launched)?;
    // Where the node memory lies then was free under these.
    addresses::as_before(&job)?;
    addresses::check_limits(&job.layout(about.ranks), "")?;
    settings(options, job, about.launched, about.origin.clone(), Some(suspended))
}

fn settings(
    options: Options,
    job: Job,
    launched: usize,
    origin: Origin,
    resumed: Option<Suspended>,
) -> Result<Settings, Refusal> {
    Ok(Settings {
        job,
        limits: Limits {
            restarts: options.max_restarts,
            restarts_per_rank: options.max_restarts_per_rank,
        },
        faults: faults(&options, launched)?,
        output: Places {
            label: options.label.clone(),
            files: options.output_files.clone(),
            directory: PathBuf::from(&origin.directory),
        },
        quiet: options.quiet,
        verbose: options.verbose,
        print_exit_codes: options.print_exit_codes,
        timeout: options.timeout,
        json_events: options.json_events.clone(),
        stats: options.stats,
        stats_json: options.stats_json.clone(),
        event_loggers: Listeners {
            count: options.loggers(),
            first: options.event_logger,
        },
        channel_memories: Listeners {
            count: options.memories(),
            first: options.channel_memory.unwrap_or(options::ANY_PORT),
        },
        checkpoint_period: options.checkpoint_period,
        checkpoint_share: options.checkpoint_share,
        checkpoint_order: options.checkpoint_order,
        images_in_flight: options.images_in_flight,
        checkpoint_signal: options.checkpoint_signal,
        grace: options.grace,
        time_limit: time_limit(&options)?,
        registry: Some(suspend::registry()),
        resumed,
        origin: origin.clone(),
        find: Box::new(move |wanted| spawn::find(&options, &origin, wanted)),
    })
}

fn prepare(options: Options, origin: Origin) -> Result<Settings, Refusal> {
    let size = options.size();
    let here = PathBuf::from(&origin.directory);
    faults(&options, size)?;
    let open_files = check::open_files(size)?;
    if let Some(directory) = &options.spill_directory
        && !directory.is_dir()
    {
        return Err(Refusal::new(
            2,
            format!("--spill-dir {}: not a directory", directory.display()),
        ));
    }
    if let Some(choice) = options.choice.filter(|_| !options.quiet) {
        eprintln!("resurgo: note: --protocol auto: {choice}");
    }
    if let Some(warning) = check::shared_memory(size).filter(|_| !options.quiet) {
        eprintln!("resurgo: warning: {warning}");
    }
    // Lives of ranks may have other working directories.
    let checkpoint_directory = options
        .checkpoint_directory
        .as_ref()
        .map(|directory| here.join(directory));
    let mut programs = Vec::new();
    for program in &options.programs {
        let (program, note) = prepare_program(&options, program, &origin, None)?;
        if let Some(note) = note.filter(|_| !options.quiet) {
            eprintln!("resurgo: note: {note}");
        }
        programs.push(program);
    }
    // Under causal logging, what is known of whom is kept for each pair of ranks.
    let may_spawn = !options.protocol.only_waves() && !options.protocol.piggybacks(options.tolerate_node);
    let mut layout = Layout {
        size,
        log_segments: 0,
        spills: options.spill_directory.is_some(),
        piggybacks: options.protocol.piggybacks(options.tolerate_node),
    };
    layout.log_segments = match options.log_memory {
        Some(bytes) => (bytes / SEGMENT as u64).clamp(1, MAX_LOG_SEGMENTS as u64) as usize,
        None => addresses::default_log_segments(layout, may_spawn)?,
    };
    let room = addresses::room();
    if may_spawn {
        layout = addresses::with_spare_room(layout, &room)?;
    }
    addresses::check(&layout, &room)?;
    let log_segments = layout.log_segments;
    let (stack_limit, legacy_layout) = addresses::decided_by()?;
    let cpus = binding::of(&options)?;
    if options.map_by.is_some() && options.bind_to.is_none() && !options.quiet {
        eprintln!(
            "resurgo: note: -map-by says in which order -bind-to binds ranks; without it they run on any processor"
        );
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let cores = binding::processors(&cpus, size).unwrap_or(cores);
    let spin_ns = match options.spin {
        Some(spin) => spin.as_nanos() as u64,
        None if size <= cores => 50_000,
        None => 3_000,
    };
    let through_memories = options.protocol == Protocol::ChannelMemory;
    // Nothing is logged in the node's memory then.
    let log_prefault = if through_memories { 0 } else { options.log_prefault };
    let job = Job {
        name: job_name(),
        programs,
        most_ranks: layout.size,
        protocol: options.protocol,
        tolerate_node: options.tolerate_node,
        log_segments,
        prefault_segments: (log_prefault / SEGMENT as u64).min(log_segments as u64) as u32,
        spin_ns,
        spill_directory: options.spill_directory.clone().map(PathBuf::into_os_string),
        event_logger_ports: Vec::new(),
        reduction: options.reduction(),
        clock_spread: options.clock_spread(),
        event_logger_address: 0,
        channel_memory_ports: Vec::new(),
        channel_memory_address: 0,
        key: [0; 32],
        stdin: Stdin::Nothing,
        images: options.has_images(),
        groups: options::groups::grouping(&options, size).map_err(|error| Refusal::new(2, error))?,
        groups_at_once: options.groups_at_once.unwrap_or(1),
        checkpoint_directory: checkpoint_directory.map(PathBuf::into_os_string),
        checkpoint_compress: options.checkpoint_compress,
        checkpoint_keep: options.checkpoint_keep,
        local_copies: options.local_copies,
        cpus,
        open_files,
        fixed_addresses: check::fixed_addresses(options.protocol)?,
        place: room.start,
        stack_limit,
        legacy_layout,
        message_faults: Vec::new(),
        image_at_messages: images_at(&options, size)?,
    };
    settings(options, job, size, origin, None)
}

/// Finds a program's file and MPI library and makes its environment. `search`: directories in which a program without a
/// directory is looked for, instead of those of the environment. Also returns what the user should know.
pub fn prepare_program(
    options: &Options,
    program: &ProgramOptions,
    origin: &Origin,
    search: Option<&OsStr>,
) -> Result<(Program, Option<String>), Refusal> {
    let here = Path::new(&origin.directory);
    let directory = check::directory(&here.join(program.directory.as_deref().unwrap_or(Path::new(""))))?;
    let mut variables = environment::of_user(origin.environment.clone(), options, program);
    let path = search
        .or_else(|| check::variable(&variables, "PATH"))
        .map(ToOwned::to_owned)
        .or_else(|| check::variable(&origin.environment, "PATH").map(ToOwned::to_owned));
    let file = check::find_program(&program.arguments[0], &directory, path.as_deref())?;
    let diagnosis = diagnosis::diagnose(&file, &program.arguments[1..], &directory, &variables)
        .map_err(|error| Refusal::new(2, error))?;
    let provider = provider_path()?;
    diagnosis.prepare(&mut variables, &provider);
    if options.verbose {
        let of = if diagnosis.is_plain {
            "none"
        } else {
            "decided when it runs"
        };
        let library = diagnosis.library.as_ref();
        let library = library.map_or(of.to_string(), |(_, library)| library.display().to_string());
        let (file, provider) = (file.display(), provider.display());
        eprintln!("resurgo: program {file}; MPI library: {library}; provider: {provider}");
    }
    let program = Program {
        ranks: program.ranks,
        path: file.into_os_string(),
        arguments: program.arguments.clone(),
        environment: variables,
        directory: directory.into_os_string(),
        is_plain: diagnosis.is_plain,
    };
    Ok((program, diagnosis.note))
}

/// A name that no other job on this machine has, of a length that does not differ between jobs.
fn job_name() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    format!("resurgo_{:08x}_{now:016x}", std::process::id())
}

/// What `FI_PROVIDER_PATH` has to be.
pub fn provider_path() -> Result<OsString, Refusal> {
    const NAME: &str = "libresurgo-fi.so";
    let mut tried = Vec::new();
    if let Some(directory) = std::env::var_os("RESURGO_FABRIC_DIR") {
        let file = Path::new(&directory).join(NAME);
        if file.is_file() {
            return Ok(directory);
        }
        tried.push(file);
    } else {
        let exe = std::env::current_exe()
            .map_err(|error| Refusal::new(2, format!("cannot find this program's own file: {error}")))?;
        let directory = exe.parent().unwrap_or(Path::new("/"));
        let installed = directory.join("../lib/resurgo");
        if installed.join(NAME).is_file() {
            return Ok(installed.into_os_string());
        }
        tried.push(installed.join(NAME));
        // Where cargo puts it, under a name that libfabric does not look for.
        let built = directory.join("libresurgo_fi.so");
        if built.is_file() {
            let links = [(NAME, built)];
            return match diagnosis::shim::directory(&diagnosis::shim::cache(), &links) {
                Ok(directory) => Ok(directory.into_os_string()),
                Err(error) => Err(Refusal::new(2, error)),
            };
        }
        tried.push(built);
    }
    let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
    Err(Refusal::new(
        2,
        format!(
            "the provider library is missing; looked for {}; set RESURGO_FABRIC_DIR to its directory",
            tried.join(" and ")
        ),
    ))
}

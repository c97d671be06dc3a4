//! `resurgo demo`: the heat equation on 4 ranks, undisturbed and with a rank killed half-way, under plain MPICH and under
//! Resurgo. It fails unless every run that finishes gives the same answer, byte for byte.

mod program;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use resurgo_runtime::sys::random;
use serde_json::Value;

use self::program::Program;
use crate::say;

const VICTIM: u64 = 2;
const RANKS: &str = "4";
/// How often it looks at a job.
const PAUSE: Duration = Duration::from_millis(10);
/// A better mode of MPICH where ranks must share cores: it sleeps instead of polling.
const SLEEPING: [(&str, &str); 3] = [
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("FI_PROVIDER", "tcp"),
];
/// Settings of other launchers and libraries begin so. Where things are stays: MPI4PY_LIBMPI, I_MPI_ROOT.
const SETTINGS: [&str; 6] = ["PMI", "HYDRA_", "HYDI_", "MPIR_", "MPIEXEC_", "OMPI_COMM_WORLD_"];

fn say(line: &str) {
    say::print(&format!("{line}\n"));
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// `resurgo demo [--steps N]`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let steps = match &arguments[..] {
        [] => None,
        [option, steps] if option == "--steps" => match steps.to_str().and_then(|steps| steps.parse().ok()) {
            Some(steps @ 1000..=10_000_000) => Some(steps),
            _ => return say::usage("demo: --steps must be a number from 1000 to 10000000"),
        },
        _ => return say::usage("demo takes no arguments but --steps N"),
    };
    match Demo::prepare(steps).and_then(|mut demo| demo.play()) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("resurgo: demo: {why}");
            1
        }
    }
}

/// Ends what it has started, and removes its directory, when it is dropped.
struct Demo {
    directory: PathBuf,
    resurgo: PathBuf,
    program: Program,
    steps: u64,
    /// Signals that end it, and what hears them.
    ends: SigSet,
    signals: SignalFd,
    job: Option<Job>,
}

struct Job {
    name: &'static str,
    child: Child,
    begun: Instant,
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Some(mut job) = self.job.take() {
            let _ = signal(job.child.id(), Signal::SIGTERM);
            let _ = job.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn signal(process: u32, signal: Signal) -> Result<(), String> {
    let process = i32::try_from(process).map_err(|error| error.to_string())?;
    kill(Pid::from_raw(process), signal).map_err(|error| error.to_string())
}

impl Demo {
    fn prepare(steps: Option<u64>) -> Result<Demo, String> {
        let failed = |error: std::io::Error| error.to_string();
        let resurgo = std::env::current_exe().map_err(|error| format!("cannot find its own file: {error}"))?;
        let number = u64::from_ne_bytes(random().map_err(failed)?);
        let directory = std::env::temp_dir().join(format!("resurgo-demo.{number:016x}"));
        std::fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let found = program::find(&resurgo, &directory);
        let program = found.inspect_err(|_| {
            let _ = std::fs::remove_dir_all(&directory);
        })?;
        let mut ends = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            ends.add(signal);
        }
        ends.thread_block().map_err(|error| error.to_string())?;
        let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        let signals = signals.map_err(|error| error.to_string())?;
        Ok(Demo {
            directory,
            resurgo,
            steps: steps.unwrap_or(program.steps),
            program,
            ends,
            signals,
            job: None,
        })
    }

    fn play(&mut self) -> Result<(), String> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let (side, steps) = (self.program.side, self.steps);
        say(&format!(
            "The heat equation on a plate of {side} x {side}, {steps} steps, {RANKS} ranks on {cores} core(s)"
        ));
        say(&format!("    {}", self.program.about));
        let mut finished = Vec::new();
        let plain = match self.program.mpiexec.clone() {
            None => {
                say("\nThere is no mpiexec of MPICH beside the MPI library: the runs under plain MPICH are left out");
                None
            }
            Some(mpiexec) => Some(self.under_mpich(&mpiexec, cores, &mut finished)?),
        };
        let (calm, killed, away) = self.under_resurgo(&mut finished)?;
        say("\nAll runs that finished gave the same result, byte for byte:");
        for name in &finished {
            say(&format!("    {name}.plate"));
        }
        let plain = plain.map_or(String::new(), |plain| format!("plain MPICH took {}; ", seconds(plain)));
        let (calm, killed) = (seconds(calm), seconds(killed));
        say(&format!(
            "\nWhat it cost: {plain}resurgo {calm} undisturbed and {killed} with the kill."
        ));
        say(&format!(
            "From its death until it was where it had been, rank {VICTIM} was away for {away:.2} s."
        ));
        self.say_what_is_next();
        Ok(())
    }

    /// What the user can type now.
    fn say_what_is_next(&self) {
        let program::Own { build, run } = self.program.own;
        let typed = |command: &str, why: &str| say(&format!("    $ {command:<58} # {why}"));
        say("\nNext, your own program, as it is:");
        if let Some(build) = build {
            typed(build, "as ever");
        }
        typed(&format!("resurgo doctor {run}"), "can it be protected?");
        typed(&format!("resurgo run -n {RANKS} {run}"), "instead of mpiexec");
        typed(
            &format!("resurgo run -n {RANKS} --fault rank={VICTIM},at=2s {run}"),
            "… with a failure",
        );
        say("Then: man resurgo-run, or resurgo run --help");
        let examples = program::prefix(&self.resurgo).join(program::EXAMPLES);
        if examples.is_dir() {
            say(&format!("Examples, also job scripts for Slurm: {}", examples.display()));
        }
    }

    /// The runs under plain MPICH: undisturbed, and killed. Returns how long the better undisturbed one took.
    fn under_mpich(
        &mut self,
        mpiexec: &Path,
        cores: usize,
        finished: &mut Vec<&'static str>,
    ) -> Result<Duration, String> {
        let command = |settings: &[(&str, &str)]| {
            let mut command = Command::new(mpiexec);
            command.args(["-n", RANKS]).envs(settings.iter().copied());
            command
        };
        let line = self.line("plain");
        say(&format!(
            "\n1. Plain MPICH, undisturbed\n    $ mpiexec -n {RANKS} {line}"
        ));
        let mut best = self.undisturbed("plain", command(&[]), finished)?;
        say(&format!("    {}", seconds(best)));
        if cores < 4 {
            let settings = SLEEPING.map(|(name, value)| format!("{name}={value}")).join(" ");
            say(&format!("    $ export {settings}     # better with so few cores"));
            let slept = self.undisturbed("tcp", command(&SLEEPING), finished)?;
            say(&format!("    {}", seconds(slept)));
            best = best.min(slept);
        }
        let line = self.line("lost");
        say(&format!(
            "\n2. Plain MPICH, a rank is killed\n    $ mpiexec -n {RANKS} {line}"
        ));
        let mut command = command(&[]);
        // The shell only notes the process number, and then becomes the program.
        command.args(["sh", "-c", "echo $$ >\"pid.$PMI_RANK\"; exec \"$@\"", "sh"]);
        self.start("lost", command)?;
        self.half_way()?;
        let memory = self.memory_of_ranks();
        let pid = std::fs::read_to_string(self.directory.join(format!("pid.{VICTIM}")));
        let at = self.strike(pid.ok().and_then(|pid| pid.trim().parse().ok()))?;
        let (code, _) = self.finish()?;
        // A killed job of MPICH leaves it behind.
        for file in memory {
            let _ = std::fs::remove_file(file);
        }
        if code == 0 {
            return Err("plain MPICH has survived: what was killed?".to_string());
        }
        say(&format!(
            "    the job has ended with exit code {code}; no result, and {} of work on {RANKS} ranks are lost",
            seconds(at)
        ));
        Ok(best)
    }

    /// The same under Resurgo. Returns how long both took, and how long the killed rank was away, in seconds.
    fn under_resurgo(&mut self, finished: &mut Vec<&'static str>) -> Result<(Duration, Duration, f64), String> {
        let resurgo = self.resurgo.clone();
        let command = |events: &str| {
            let mut command = Command::new(&resurgo);
            command.args(["run", "--json-events", events, "-n", RANKS]);
            command
        };
        let line = self.line("calm");
        say(&format!(
            "\n3. Resurgo, undisturbed\n    $ resurgo run -n {RANKS} {line}"
        ));
        let calm = self.undisturbed("calm", command("calm.events"), finished)?;
        say(&format!("    {}", seconds(calm)));
        let line = self.line("killed");
        say(&format!(
            "\n4. Resurgo, a rank is killed\n    $ resurgo run -n {RANKS} {line}"
        ));
        self.start("killed", command("killed.events"))?;
        self.half_way()?;
        let started = self.events("started");
        let started = started.iter().rfind(|event| event["rank"] == VICTIM);
        self.strike(started.and_then(|event| u32::try_from(event["pid"].as_u64()?).ok()))?;
        let (code, took) = self.finish()?;
        for line in self.read("killed.err").lines() {
            say(&format!("    {line}"));
        }
        self.succeeded("killed", code, finished)?;
        say(&format!("    {}", seconds(took)));
        let caught_up = self.events("caught_up");
        let away = caught_up.last().and_then(|event| event["lost_seconds"].as_f64());
        Ok((calm, took, away.ok_or("no rank was restarted")?))
    }

    /// The program with its arguments, for people.
    fn line(&self, name: &str) -> String {
        let (side, steps) = (self.program.side, self.steps);
        format!("{} {side} {side} {steps} {name}.plate", self.program.shown)
    }

    fn read(&self, file: &str) -> String {
        let bytes = std::fs::read(self.directory.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The events of the killed job so far.
    fn events(&self, kind: &str) -> Vec<Value> {
        let lines = self.read("killed.events");
        let events = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["event"] == kind).collect()
    }

    /// Starts the program behind this command; its output goes into files.
    fn start(&mut self, name: &'static str, mut command: Command) -> Result<(), String> {
        let make = |kind: &str| {
            let file = File::create(self.directory.join(format!("{name}.{kind}")));
            file.map_err(|error| format!("{}: {error}", self.directory.display()))
        };
        let (out, err) = (make("out")?, make("err")?);
        let (side, steps) = (self.program.side.to_string(), self.steps.to_string());
        let variables = std::env::vars_os().map(|(name, _)| name);
        for variable in variables.filter(|name| is_setting(&name.to_string_lossy())) {
            if !command.get_envs().any(|(name, _)| name == variable) {
                command.env_remove(variable);
            }
        }
        command
            .args(&self.program.command)
            .args([&side, &side, &steps, &format!("{name}.plate")])
            .env("RESURGO_NO_CONFIG", "1")
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        // The job inherits the mask.
        self.ends.thread_unblock().map_err(|error| error.to_string())?;
        let child = command.spawn();
        self.ends.thread_block().map_err(|error| error.to_string())?;
        let child = child.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let begun = Instant::now();
        self.job = Some(Job { name, child, begun });
        Ok(())
    }

    /// Whether the job runs.
    fn runs(&mut self) -> Result<bool, String> {
        if matches!(self.signals.read_signal(), Ok(Some(_))) {
            return Err("interrupted".to_string());
        }
        let job = self.job.as_mut().ok_or("nothing runs")?;
        let status = job.child.try_wait().map_err(|error| error.to_string())?;
        Ok(status.is_none())
    }

    /// Waits until rank 0 has printed half of its lines, or the job is over.
    fn half_way(&mut self) -> Result<(), String> {
        let name = self.job.as_ref().map_or("", |job| job.name);
        let half = self.steps / 1000;
        while self.runs()? {
            let lines = self.read(&format!("{name}.out"));
            if lines.lines().filter(|line| line.starts_with("step")).count() as u64 >= half {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Kills a process: the real thing. Returns how long the job has run.
    fn strike(&mut self, process: Option<u32>) -> Result<Duration, String> {
        let process = process.ok_or_else(|| format!("the process of rank {VICTIM} was not found"))?;
        let at = self.job.as_ref().map_or(Duration::ZERO, |job| job.begun.elapsed());
        if !self.runs()? || signal(process, Signal::SIGKILL).is_err() {
            let name = self.job.as_ref().map_or("", |job| job.name);
            let said = self.read(&format!("{name}.err"));
            return Err(format!(
                "the job was over before rank {VICTIM} could be killed: {}",
                last_lines(&said)
            ));
        }
        let command = format!("kill -9 {process}");
        say(&format!("    $ {command:<42} # rank {VICTIM}, after {}", seconds(at)));
        Ok(at)
    }

    /// Waits for the end of the job; returns its exit status and how long it took.
    fn finish(&mut self) -> Result<(i32, Duration), String> {
        while self.runs()? {
            std::thread::sleep(PAUSE);
        }
        let mut job = self.job.take().ok_or("nothing runs")?;
        let took = job.begun.elapsed();
        let status = job.child.wait().map_err(|error| error.to_string())?;
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ok((code.unwrap_or(1), took))
    }

    fn undisturbed(
        &mut self,
        name: &'static str,
        command: Command,
        finished: &mut Vec<&'static str>,
    ) -> Result<Duration, String> {
        self.start(name, command)?;
        let (code, took) = self.finish()?;
        self.succeeded(name, code, finished)?;
        Ok(took)
    }

    /// Checks that the run has succeeded with the answer of the first one.
    fn succeeded(&self, name: &'static str, code: i32, finished: &mut Vec<&'static str>) -> Result<(), String> {
        if code != 0 {
            let said = self.read(&format!("{name}.err"));
            return Err(format!(
                "FAILED: the run {name} has exit code {code}: {}",
                last_lines(&said)
            ));
        }
        say(&format!(
            "    {}",
            self.read(&format!("{name}.out")).lines().last().unwrap_or_default()
        ));
        let of = |name: &str| {
            let read = |kind: &str| {
                let file = self.directory.join(format!("{name}.{kind}"));
                std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))
            };
            Ok::<_, String>((read("plate")?, read("out")?))
        };
        let first = finished.first().copied().unwrap_or(name);
        if of(name)? != of(first)? {
            return Err(format!("FAILED: the runs {first} and {name} have different results"));
        }
        finished.push(name);
        Ok(())
    }

    /// Files in /dev/shm of the ranks of plain MPICH.
    fn memory_of_ranks(&self) -> Vec<String> {
        let mut files = Vec::new();
        for rank in 0..4 {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.read(&format!("pid.{rank}")).trim()));
            let maps = maps.unwrap_or_default();
            let places = maps
                .lines()
                .filter_map(|line| line.find("/dev/shm/mpich_shm").map(|at| &line[at..]));
            files.extend(places.filter_map(|place| place.split(' ').next()).map(str::to_string));
        }
        files.sort();
        files.dedup();
        files
    }
}

fn is_setting(name: &str) -> bool {
    let of_resurgo = name.starts_with("RESURGO_") && !["RESURGO_FABRIC_DIR", "RESURGO_LIBFABRIC_DIR"].contains(&name);
    let is_ours = ["RESURGO_TEST_MARK", "RESURGO_BENCH_MARK"].contains(&name);
    !is_ours && (of_resurgo || name == "FI_PROVIDER" || SETTINGS.iter().any(|start| name.starts_with(start)))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

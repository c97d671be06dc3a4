//! `resurgo store`: what is kept of jobs beyond their machines.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use resurgo_runtime::progress::Bar;
use resurgo_runtime::units::{counted, one_line, readable_duration, readable_size};
use resurgo_store::{
    About, Described, Error, GRACE, Generation, Kind, Manifest, Progress, Sender, Source, Store, StoreKey, check, fetch,
};
use serde_json::{Value, json};

use crate::progress;
use crate::say::print;

/// Why a command does not do its work: its exit status, and what to say.
pub type Refused = (i32, String);

const VERBS: [&str; 4] = ["ls", "verify", "gc", "rm"];

/// What is on the command line.
struct Words {
    verb: String,
    as_json: bool,
    key: Option<PathBuf>,
    others: Vec<String>,
}

pub fn usage(text: impl Into<String>) -> Refused {
    (i32::from(crate::check::USAGE), text.into())
}

/// What is under way has no parts that could be counted.
fn told(text: String) -> resurgo_wire::console::Progress {
    resurgo_wire::console::Progress::of(text)
}

fn failed(error: impl std::fmt::Display) -> Refused {
    (1, error.to_string())
}

impl Words {
    fn parse(arguments: Vec<OsString>) -> Result<Words, Refused> {
        let mut words = Words {
            verb: String::new(),
            as_json: false,
            key: None,
            others: Vec::new(),
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let word = argument.to_string_lossy();
            if word == "--json" {
                words.as_json = true;
            } else if word == "--store-key" {
                let file = arguments.next();
                words.key = Some(file.ok_or_else(|| usage("--store-key needs a file"))?.into());
            } else if let Some(file) = word.strip_prefix("--store-key=") {
                words.key = Some(file.into());
            } else if word.starts_with('-') {
                return Err(usage(format!(
                    "store has no option {word:?}; there are --store-key FILE and --json"
                )));
            } else if words.verb.is_empty() {
                words.verb = word.into_owned();
            } else {
                words.others.push(word.into_owned());
            }
        }
        Ok(words)
    }

    fn store(&self, place: &Described) -> Result<Store, Refused> {
        let key = self.key.as_deref().map(StoreKey::read).transpose();
        let key = key.map_err(|error| usage(format!("--store-key {error}")))?;
        Store::open(place, self.verb == "put", key).map_err(failed)
    }
}

/// `resurgo store …`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    match Words::parse(arguments).and_then(|words| dispatch(&words)) {
        Ok(()) => 0,
        Err((code, text)) => {
            eprintln!("resurgo: {}", one_line(&text));
            code
        }
    }
}

fn dispatch(words: &Words) -> Result<(), Refused> {
    let known = VERBS.contains(&words.verb.as_str()) || ["put", "get"].contains(&words.verb.as_str());
    if !known {
        return Err(usage(match words.verb.as_str() {
            "" => "store: say what to do: ls, verify, gc or rm; resurgo store --help has more".to_string(),
            verb => {
                let near = crate::near::nearest(verb, &VERBS).unwrap_or("ls");
                format!("there is no \"resurgo store {verb}\"; did you mean \"resurgo store {near}\"?")
            }
        }));
    }
    let verb = &words.verb;
    let Some((place, others)) = words.others.split_first() else {
        return Err(usage(format!(
            "store {verb} needs a place, as in: resurgo store {verb} dir:/lustre/images"
        )));
    };
    let place = Described::parse(place).map_err(usage)?;
    // Programs that read JSON have a terminal to themselves.
    let bar = Bar::new(!words.as_json && progress::is_seen());
    bar.tell(Some(told(format!("{} is being asked", place.shown))));
    let store = words.store(&place)?;
    match (verb.as_str(), others) {
        ("ls", []) => list_jobs(&store, words.as_json, &bar),
        ("ls", [job]) => list_generations(&store, job, words.as_json, &bar),
        ("verify", [job]) => verify(&store, job, &bar),
        ("gc", []) => store
            .jobs()
            .map_err(failed)?
            .iter()
            .try_for_each(|job| sweep(&store, job, place.keep, &bar)),
        ("gc", [job]) => sweep(&store, job, place.keep, &bar),
        ("rm", [job]) => remove(&store, job, &bar),
        ("put", [job, number, node, directory]) => put(&store, &place, job, [number, node], directory.as_ref()),
        ("get", [job, directory]) => get(&store, job, directory.as_ref()),
        ("ls" | "gc", _) => Err(usage(format!("store {verb} takes a place, and at most one job"))),
        _ => Err(usage(format!(
            "store {verb} takes a place and a job, as in: resurgo store {verb} dir:/lustre/images JOB"
        ))),
    }
}

/// `JOB`, or `JOB@GENERATION`; none: what follows is no number.
pub fn job_and_number(job: &str) -> Option<(&str, Option<u64>)> {
    match job.split_once('@') {
        None => Some((job, None)),
        Some((name, number)) => number.parse().ok().map(|number| (name, Some(number))),
    }
}

fn split(job: &str) -> Result<(&str, Option<u64>), Refused> {
    job_and_number(job).ok_or_else(|| {
        usage(format!(
            "{job:?}: write JOB@NUMBER; resurgo store ls PLACE JOB shows the numbers"
        ))
    })
}

/// Bytes that the chunks of a job take.
fn stored(store: &Store, job: &str) -> Result<u64, Error> {
    let chunks = store.place().list(&format!("{job}/chunks"))?;
    Ok(chunks.iter().map(|entry| entry.bytes).sum())
}

/// Seconds since this time, which has passed.
pub fn seconds_since(unix_time: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs_f64() - unix_time).max(0.0)
}

fn age(unix_time: f64) -> String {
    let age = Duration::try_from_secs_f64(seconds_since(unix_time));
    age.map_or("?".to_string(), readable_duration)
}

fn object(job: &str, generation: Generation, manifest: &Result<Manifest, Error>) -> Value {
    match manifest {
        Ok(manifest) => json!({
            "job": job,
            "generation": generation.number,
            "nodes": manifest.parts.len(),
            "files": manifest.files(),
            "bytes": manifest.bytes(),
            "unix_time": manifest.about.unix_time,
            "ranks": manifest.about.ranks,
            "protocol": manifest.about.protocol,
            "title": manifest.about.title,
        }),
        Err(error) => json!({ "job": job, "generation": generation.number, "error": error.to_string() }),
    }
}

/// Ranks, age, protocol and title, or why they are not known.
pub fn described(manifest: &Result<Manifest, Error>) -> [String; 4] {
    match manifest {
        Ok(manifest) => [
            manifest.about.ranks.to_string(),
            age(manifest.about.unix_time),
            one_line(&manifest.about.protocol),
            one_line(&manifest.about.title),
        ],
        Err(error) => {
            let why = match &error.kind {
                Kind::KeyNeeded => "(sealed: --store-key FILE)".to_string(),
                Kind::OtherKey => "(sealed with another key)".to_string(),
                kind => format!("({})", one_line(&kind.to_string())),
            };
            ["-".to_string(), "-".to_string(), "-".to_string(), why]
        }
    }
}

fn list_jobs(store: &Store, as_json: bool, bar: &Bar) -> Result<(), Refused> {
    let mut objects = Vec::new();
    let mut table = format!(
        "{:<20}  {:>11}  {:>7}  {:>11}  {:>6}  {:>9}  {:<14} COMMAND\n",
        "JOB", "GENERATIONS", "NEWEST", "STORED", "RANKS", "AGE", "PROTOCOL"
    );
    for job in store.jobs().map_err(failed)? {
        let generations = store.generations(&job).map_err(failed)?;
        let bytes = stored(store, &job).map_err(failed)?;
        let newest = generations
            .last()
            .map(|newest| (*newest, store.manifest(&job, *newest)));
        if as_json {
            let newest = newest
                .as_ref()
                .map(|(generation, manifest)| object(&job, *generation, manifest));
            let generations: Vec<u64> = generations.iter().map(|generation| generation.number).collect();
            objects.push(json!({ "job": job, "generations": generations, "stored": bytes, "newest": newest }));
            continue;
        }
        let number = newest
            .as_ref()
            .map_or("-".to_string(), |(newest, _)| newest.number.to_string());
        let unknown = || ["-", "-", "-", "(no generation is whole)"].map(str::to_string);
        let [ranks, age, protocol, title] = newest
            .as_ref()
            .map_or_else(unknown, |(_, manifest)| described(manifest));
        let (count, bytes) = (generations.len(), readable_size(bytes));
        table += &format!(
            "{job:<20}  {count:>11}  {number:>7}  {bytes:>11}  {ranks:>6}  {age:>9}  {protocol:<14} {title}\n"
        );
    }
    progress::beside(bar, || show(as_json, &objects, &table));
    Ok(())
}

fn list_generations(store: &Store, job: &str, as_json: bool, bar: &Bar) -> Result<(), Refused> {
    let generations = store.generations(job).map_err(failed)?;
    if generations.is_empty() {
        return Err((
            1,
            format!("{}: {job} has no generation there that is whole", store.place().shown()),
        ));
    }
    let mut objects = Vec::new();
    let mut table = format!(
        "{:>10}  {:>5}  {:>6}  {:>11}  {:>6}  {:>9}  {:<14} COMMAND\n",
        "GENERATION", "NODES", "FILES", "SIZE", "RANKS", "AGE", "PROTOCOL"
    );
    for generation in generations {
        let manifest = store.manifest(job, generation);
        objects.push(object(job, generation, &manifest));
        let [ranks, age, protocol, title] = described(&manifest);
        let sizes = |manifest: &Manifest| {
            let size = readable_size(manifest.bytes());
            [manifest.parts.len().to_string(), manifest.files().to_string(), size]
        };
        let [nodes, files, size] = manifest.as_ref().map_or_else(|_| ["-"; 3].map(str::to_string), sizes);
        let number = generation.number;
        table += &format!(
            "{number:>10}  {nodes:>5}  {files:>6}  {size:>11}  {ranks:>6}  {age:>9}  {protocol:<14} {title}\n"
        );
    }
    progress::beside(bar, || show(as_json, &objects, &table));
    Ok(())
}

/// Prints a list: for programs or for people.
pub fn show(as_json: bool, objects: &[Value], table: &str) {
    match as_json {
        true => {
            let lines: Vec<String> = objects.iter().map(Value::to_string).collect();
            print(&format!("[{}]\n", lines.join(",\n ")));
        }
        false => print(table),
    }
}

fn verify(store: &Store, job: &str, bar: &Bar) -> Result<(), Refused> {
    let (job, number) = split(job)?;
    let generations = match number {
        Some(number) => vec![store.find(job, Some(number)).map_err(failed)?],
        None => store.generations(job).map_err(failed)?,
    };
    if generations.is_empty() {
        return Err((
            1,
            format!("{}: {job} has no generation there that is whole", store.place().shown()),
        ));
    }
    let mut damaged = 0;
    for generation in generations {
        let number = generation.number;
        let progress = Arc::<Progress>::default();
        let (shown, name) = (progress.clone(), format!("{job}@{number}"));
        bar.follow(move || told(format!("{name}: {} read", readable_size(shown.handled()))));
        let tell = |error: &Error| progress::beside(bar, || eprintln!("resurgo: {}", one_line(&error.to_string())));
        let checked = check(store, job, generation, &tell, &progress);
        match checked {
            Ok(read) => {
                let (files, size) = (counted(read.files, "file", "files"), readable_size(read.bytes));
                progress::beside(bar, || print(&format!("{job}@{number}: {files}, {size}: whole\n")));
            }
            // It was told.
            Err(error) if error.is_damaged() || error.is_missing() => {
                damaged += 1;
                progress::beside(bar, || print(&format!("{job}@{number}: damaged\n")));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    match damaged {
        0 => Ok(()),
        number => Err((
            1,
            format!(
                "{} of {job} cannot be used",
                counted(number, "generation", "generations")
            ),
        )),
    }
}

fn sweep(store: &Store, job: &str, keep: usize, bar: &Bar) -> Result<(), Refused> {
    bar.tell(Some(told(format!("{job}: what is not needed is being removed"))));
    let swept = store.gc(job, Some(keep), GRACE).map_err(failed)?;
    let generations = counted(swept.generations, "generation", "generations");
    let (chunks, size) = (counted(swept.chunks, "chunk", "chunks"), readable_size(swept.bytes));
    let waiting = match swept.waiting {
        0 => String::new(),
        waiting => format!(
            "; {} may be in use until the job has written its images",
            counted(waiting, "chunk", "chunks")
        ),
    };
    let line = format!("{job}: removed {generations}, {chunks} ({size}){waiting}\n");
    progress::beside(bar, || print(&line));
    Ok(())
}

fn remove(store: &Store, job: &str, bar: &Bar) -> Result<(), Refused> {
    let (job, number) = split(job)?;
    let progress = Arc::<Progress>::default();
    let (shown, name) = (progress.clone(), job.to_string());
    bar.follow(move || match shown.removed() {
        0 => told(format!("{name} is being removed")),
        removed => told(format!("{name}: {} removed", counted(removed, "object", "objects"))),
    });
    match number {
        Some(number) => {
            let generation = store.find(job, Some(number)).map_err(failed)?;
            store.remove_generation(job, generation).map_err(failed)?;
            store.gc(job, None, GRACE).map_err(failed)?;
        }
        None => {
            if !store.jobs().map_err(failed)?.iter().any(|other| other == job) {
                return Err(usage(format!("{}: there is no job {job:?}", store.place().shown())));
            }
            store.remove_showing(job, &progress).map_err(failed)?;
        }
    }
    Ok(())
}

/// For tests: `put PLACE JOB NUMBER NODE DIRECTORY` writes a generation with the files of one directory, as a job would.
fn put(store: &Store, place: &Described, job: &str, numbers: [&String; 2], directory: &Path) -> Result<(), Refused> {
    let number = |text: &String| text.parse::<u32>().map_err(|_| usage(format!("{text:?} is no number")));
    let [number, node] = [number(numbers[0])?, number(numbers[1])?];
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = File::open(entry.path()).map_err(failed)?;
        sources.push(Source { name, file });
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let about = About {
        unix_time: now.as_secs_f64(),
        title: "put".to_string(),
        ranks: 1,
        protocol: "none".to_string(),
        more: Value::Null,
    };
    let generation = store.begin(job, number.into()).map_err(failed)?;
    let mut sender = Sender::new(store.clone(), job, node, place.rate);
    let note = sender.send(generation, sources).map_err(failed)?;
    let manifest = store.commit(job, generation, about, vec![note]).map_err(failed)?;
    let progress = sender.progress();
    let (sent, known) = (progress.put(), progress.known());
    print(&format!(
        "{job}@{number}: {} bytes, {sent} sent, {known} known\n",
        manifest.bytes()
    ));
    Ok(())
}

/// For tests: `get PLACE JOB[@GENERATION] DIRECTORY`.
fn get(store: &Store, job: &str, directory: &Path) -> Result<(), Refused> {
    let (job, number) = split(job)?;
    let generation = store.find(job, number).map_err(failed)?;
    let fetched = fetch(store, job, generation.number, directory).map_err(failed)?;
    print(&format!(
        "{job}@{}: {} files, {} bytes\n",
        generation.number, fetched.files, fetched.bytes
    ));
    Ok(())
}

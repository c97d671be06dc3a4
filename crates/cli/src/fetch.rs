//! `resurgo resume JOB --from PLACE`: brings the files of a job from places of `--store` to this machine.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use resurgo_runtime::progress::Bar;
use resurgo_runtime::units::readable_size;
use resurgo_store::own_directory::{self, Directory};
use resurgo_store::{Described, Error, Manifest, Places, Store, StoreKey, everything, fetch_from};

use crate::progress;
use crate::store::job_and_number;

/// What the user wants: the places, and where the files go.
#[derive(Debug, Default)]
pub struct Wanted {
    place: Option<String>,
    into: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Wanted {
    /// Takes these options out of the arguments of `resurgo resume`. `--store-key` stays: the run goes on with it.
    ///
    /// # Errors
    /// An option has no value.
    pub fn take(arguments: Vec<OsString>) -> Result<(Wanted, Vec<OsString>), String> {
        let mut wanted = Wanted::default();
        let (mut rest, mut words) = (Vec::new(), arguments.into_iter());
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            let (name, value) = text
                .split_once('=')
                .map_or((text, None), |(name, value)| (name, Some(value)));
            let name = name.trim_start_matches('-');
            if !text.starts_with('-') || !["from", "into", "store-key"].contains(&name) {
                rest.push(word);
                continue;
            }
            let name = name.to_string();
            let value = match value {
                Some(value) => value.into(),
                None => words.next().ok_or_else(|| format!("--{name} needs a value"))?,
            };
            match &name[..] {
                "from" => wanted.place = Some(value.into_string().map_err(|_| "--from: it is no text".to_string())?),
                "into" => wanted.into = Some(value.into()),
                _ => {
                    wanted.key = Some(PathBuf::from(&value));
                    rest.extend(["--store-key".into(), value]);
                }
            }
        }
        match (&wanted.place, &wanted.into) {
            (None, Some(_)) => Err("--into is where the files of --from PLACE go; name the place, too".to_string()),
            _ => Ok((wanted, rest)),
        }
    }

    /// The job's new directory, if the user has named places.
    ///
    /// # Errors
    /// The files cannot be brought, and why.
    pub fn bring(self, name: Option<&OsStr>) -> Result<Option<OsString>, String> {
        let Some(text) = &self.place else { return Ok(None) };
        let places = Places::parse(text).map_err(|error| format!("--from: {error}"))?.0;
        let key = self.key.as_deref().map(StoreKey::read).transpose();
        let key = key.map_err(|error| format!("--store-key: {error}"))?;
        let from = Stores::open(&places, key.as_ref())?;
        let (job, number) = from.named(text, name)?;
        let waves = from.waves(&job, number)?;
        let directory = self.directory(&job, &from.manifest(&job, &waves)?)?;
        from.bring(&job, &waves, &directory)?;
        Ok(Some(directory.into_os_string()))
    }

    /// Where the files go: a new directory.
    fn directory(&self, job: &str, manifest: &Manifest) -> Result<PathBuf, String> {
        let above = match &self.into {
            Some(above) => std::path::absolute(above).map_err(|error| format!("{}: {error}", above.display()))?,
            None => {
                let path = manifest.about.more["directory"].as_str().map(PathBuf::from);
                let above = path.as_deref().and_then(Path::parent).map(Path::to_path_buf);
                above.ok_or("name a directory for the files of the job, with --into DIR")?
            }
        };
        Ok(above.join(job))
    }
}

/// The places that can be used, the nearest first.
struct Stores {
    stores: Vec<Store>,
}

fn warn(error: &Error) {
    eprintln!("resurgo: warning: {error}");
}

/// The results of the places that have one; an error if none has.
fn of_any<T>(results: impl Iterator<Item = Result<T, Error>>) -> Result<Vec<T>, String> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    results.for_each(|result| match result {
        Ok(result) => good.push(result),
        Err(error) => bad.push(error),
    });
    match (good.is_empty(), bad.first()) {
        (true, Some(error)) => Err(error.to_string()),
        _ => {
            bad.iter().filter(|error| !error.is_missing()).for_each(warn);
            Ok(good)
        }
    }
}

impl Stores {
    fn open(places: &[Described], key: Option<&StoreKey>) -> Result<Stores, String> {
        let open = |place: &Described| Store::open(place, false, key.cloned());
        let stores = of_any(places.iter().map(open))?;
        Ok(Stores { stores })
    }

    /// The job that the user means: by its name in the places, its number, or as the only one there; and a wave.
    fn named(&self, shown: &str, name: Option<&OsStr>) -> Result<(String, Option<u64>), String> {
        let jobs = of_any(self.stores.iter().map(Store::jobs))?;
        let jobs: BTreeSet<String> = jobs.into_iter().flatten().collect();
        let all = jobs.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let Some(name) = name.map(|name| name.to_string_lossy().into_owned()) else {
            return match jobs.len() {
                0 => Err(format!("{shown} has no jobs")),
                1 => Ok((all, None)),
                _ => Err(format!("{shown} has several jobs: name one of {all}")),
            };
        };
        let parts = job_and_number(&name);
        let (job, number) = parts.ok_or_else(|| format!("{name}: after @ comes the number of a wave"))?;
        let has = |known: &&String| {
            let manifest = self.waves(known, None).and_then(|waves| self.manifest(known, &waves));
            manifest.is_ok_and(|manifest| {
                manifest.about.more["number"]
                    .as_u64()
                    .is_some_and(|it| it.to_string() == job)
            })
        };
        match jobs
            .iter()
            .find(|known| *known == job)
            .or_else(|| jobs.iter().find(has))
        {
            Some(found) => Ok((found.clone(), number)),
            None if jobs.is_empty() => Err(format!("{shown} has no jobs")),
            None => Err(format!("{shown} has no job {job}; it has {all}")),
        }
    }

    /// The waves that the job could go on from, the newest first: all, or the one with this number.
    fn waves(&self, job: &str, number: Option<u64>) -> Result<Vec<u64>, String> {
        let generations = of_any(self.stores.iter().map(|store| store.generations(job)))?;
        let waves: BTreeSet<u64> = generations.into_iter().flatten().map(|one| one.number).collect();
        let waves: Vec<u64> = waves.into_iter().rev().collect();
        match number {
            _ if waves.is_empty() => Err(format!("{job} has no wave there")),
            None => Ok(waves),
            Some(number) if waves.contains(&number) => Ok(vec![number]),
            Some(number) => {
                let all: Vec<String> = waves.iter().map(u64::to_string).collect();
                Err(format!("{job} has no wave {number} there, but {}", all.join(", ")))
            }
        }
    }

    /// What is said about the newest of these waves.
    fn manifest(&self, job: &str, waves: &[u64]) -> Result<Manifest, String> {
        let of = |store: &Store| {
            let generation = store.find(job, waves.first().copied())?;
            store.manifest(job, generation)
        };
        let found = of_any(self.stores.iter().map(of))?.into_iter().next();
        found.ok_or_else(|| format!("{job} has no wave there"))
    }

    /// Shows how much of a wave is in the directory, until the bar is dropped.
    fn progress(&self, job: &str, wave: u64, directory: &Path) -> Bar {
        let all = self.manifest(job, &[wave]).map_or(0, |manifest| manifest.bytes());
        let directory = directory.to_path_buf();
        let done = move || {
            let files = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            let sizes = files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512));
            sizes.sum::<u64>()
        };
        let bar = progress::bar();
        bar.follow(move || progress::part(&format!("wave {wave}"), done(), all));
        bar
    }

    /// Brings the first of these waves that can be read.
    fn bring(&self, job: &str, waves: &[u64], directory: &Path) -> Result<(), String> {
        let (above, name) = directory
            .parent()
            .zip(directory.file_name())
            .ok_or("name a directory, with --into DIR")?;
        let shown = directory.display();
        let own = Directory::new_within(above, name).map_err(|error| match error {
            own_directory::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => format!(
                "{shown} is there already: resurgo resume {shown} goes on from it, or name another place for it with --into DIR"
            ),
            error => error.to_string(),
        })?;
        let mut first = None;
        for wave in waves {
            let bar = self.progress(job, *wave, own.path());
            let warn = |error: &Error| progress::beside(&bar, || warn(error));
            let fetched = fetch_from(&self.stores, job, *wave, &everything, own.path(), &warn);
            drop(bar);
            match fetched {
                Ok(fetched) => {
                    let size = readable_size(fetched.bytes);
                    eprintln!("resurgo: wave {wave} of {job} is in {shown} now ({size})");
                    return Ok(());
                }
                Err(error) => first = first.or(Some(error.to_string())),
            }
        }
        let _ = own.remove_all();
        Err(first.unwrap_or_else(|| format!("{job} has no wave there")))
    }
}

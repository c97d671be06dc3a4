//! `resurgo ps --store PLACE[,PLACE]`: which jobs can be resumed from places.

use std::ffi::OsString;
use std::path::PathBuf;

use resurgo_runtime::units::{one_line, readable_size};
use resurgo_store::{Described, Error, Generation, Manifest, Places, Store, StoreKey};
use serde_json::{Value, json};

use crate::store::{Refused, described, seconds_since, show, usage};

/// What is on the command line.
#[derive(Default)]
struct Words {
    places: Vec<Described>,
    key: Option<PathBuf>,
    as_json: bool,
}

/// A job of a place, its newest wave, and what is said about that.
struct Job {
    name: String,
    newest: Generation,
    manifest: Result<Manifest, Error>,
}

/// Whether the command line names a place.
pub fn is_meant(arguments: &[OsString]) -> bool {
    let mut names = arguments.iter().filter_map(|word| word.to_str());
    names.any(|word| word.starts_with("--store"))
}

/// Prints the table; returns the exit status, which is not 0 if a place cannot be read.
pub fn ps(arguments: Vec<OsString>) -> i32 {
    let listed = Words::parse(arguments).and_then(|words| words.list());
    listed.unwrap_or_else(|(code, text)| {
        eprintln!("resurgo: {}", one_line(&text));
        code
    })
}

impl Words {
    fn parse(arguments: Vec<OsString>) -> Result<Words, Refused> {
        let mut words = Words::default();
        let mut arguments = arguments.into_iter();
        while let Some(word) = arguments.next() {
            let text = word.to_string_lossy();
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name.to_string(), Some(OsString::from(value))),
                None => (text.into_owned(), None),
            };
            let mut value = || {
                let value = value.clone().or_else(|| arguments.next());
                value.ok_or_else(|| usage(format!("{name} needs a value")))
            };
            match &name[..] {
                "--json" => words.as_json = true,
                "--store-key" => words.key = Some(value()?.into()),
                "--store" => {
                    let places = Places::parse(&value()?.to_string_lossy());
                    words
                        .places
                        .extend(places.map_err(|error| usage(format!("--store: {error}")))?.0);
                }
                _ => {
                    return Err(usage(format!(
                        "ps takes --json, --store PLACE and --store-key FILE, not {name:?}"
                    )));
                }
            }
        }
        match words.places.is_empty() {
            true => Err(usage("--store-key is for ps --store PLACE; name the place, too")),
            false => Ok(words),
        }
    }

    fn list(&self) -> Result<i32, Refused> {
        let key = self.key.as_deref().map(StoreKey::read).transpose();
        let key = key.map_err(|error| usage(format!("--store-key: {error}")))?;
        let (mut code, mut objects) = (0, Vec::new());
        let mut table = format!(
            "{:<34}  {:>6}  {:>8}  {:>9}  {:>11}  {:<14} {:<24} COMMAND\n",
            "JOB", "RANKS", "WAVE", "AGE", "SIZE", "PROTOCOL", "PLACE"
        );
        for place in &self.places {
            match jobs(place, key.as_ref()) {
                Ok(jobs) => {
                    objects.extend(jobs.iter().map(|job| job.object(&place.shown)));
                    table.extend(jobs.iter().map(|job| job.row(&place.shown)));
                }
                Err(error) => {
                    eprintln!("resurgo: {}", one_line(&error.to_string()));
                    code = 1;
                }
            }
        }
        show(self.as_json, &objects, &table);
        Ok(code)
    }
}

/// The jobs there that have a whole wave.
fn jobs(place: &Described, key: Option<&StoreKey>) -> Result<Vec<Job>, Error> {
    let store = Store::open(place, false, key.cloned())?;
    let mut jobs = Vec::new();
    for name in store.jobs()? {
        let Some(newest) = store.generations(&name)?.last().copied() else {
            continue;
        };
        let manifest = store.manifest(&name, newest);
        jobs.push(Job { name, newest, manifest });
    }
    Ok(jobs)
}

impl Job {
    fn row(&self, place: &str) -> String {
        let [ranks, age, protocol, command] = described(&self.manifest);
        let size = |manifest: &Manifest| readable_size(manifest.bytes());
        let size = self.manifest.as_ref().map_or("-".to_string(), size);
        let (name, wave) = (&self.name, self.newest.number);
        format!("{name:<34}  {ranks:>6}  {wave:>8}  {age:>9}  {size:>11}  {protocol:<14} {place:<24} {command}\n")
    }

    fn object(&self, place: &str) -> Value {
        let (name, wave) = (&self.name, self.newest.number);
        let manifest = match &self.manifest {
            Ok(manifest) => manifest,
            Err(error) => return json!({ "job": name, "wave": wave, "place": place, "error": error.to_string() }),
        };
        let about = &manifest.about;
        json!({
            "job": name,
            "number": about.more["number"],
            "state": "stored",
            "place": place,
            "wave": wave,
            "seconds_since_wave": seconds_since(about.unix_time),
            "bytes": manifest.bytes(),
            "ranks": about.ranks,
            "protocol": about.protocol,
            "command": about.title,
        })
    }
}

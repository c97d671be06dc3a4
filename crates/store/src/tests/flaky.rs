//! A place in memory, and one in front of another that fails.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::Random;
use crate::{Entry, Error, Kind, Place, name};

/// Objects in memory.
#[derive(Default)]
pub struct Memory(Mutex<BTreeMap<String, (Vec<u8>, SystemTime)>>);

impl Memory {
    pub fn objects(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub fn set(&self, name: &str, bytes: Vec<u8>) {
        self.0
            .lock()
            .unwrap()
            .insert(name.to_string(), (bytes, SystemTime::now()));
    }

    /// Changes, shortens or removes an object, and returns how it was.
    pub fn damage(&self, name: &str, random: &mut Random) -> Vec<u8> {
        let (before, _) = self.0.lock().unwrap().remove(name).unwrap();
        let mut bytes = before.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            _ => return before,
        }
        self.set(name, bytes);
        before
    }
}

impl Place for Memory {
    fn shown(&self) -> &str {
        "memory"
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        assert!(name::split(name).is_some(), "{name}");
        self.set(name, bytes.to_vec());
        Ok(())
    }

    fn settle(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        let found = self.0.lock().unwrap().get(name).map(|(bytes, _)| bytes.clone());
        found.ok_or_else(|| Error::new("memory", name, Kind::Missing))
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        Ok(self.0.lock().unwrap().contains_key(name))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let prefix = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let objects = self.0.lock().unwrap();
        let below = objects.iter().filter_map(|(name, (bytes, modified))| {
            let name = name.strip_prefix(&prefix)?.split('/').next()?;
            Some(Entry {
                name: name.to_string(),
                bytes: bytes.len() as u64,
                modified: *modified,
            })
        });
        let mut entries: Vec<Entry> = below.collect();
        entries.dedup_by(|one, other| one.name == other.name);
        Ok(entries)
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        self.0.lock().unwrap().remove(name);
        Ok(())
    }

    fn clear(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

struct Mood {
    random: Random,
    /// One call of so many fails, before or after it has had its effect.
    fails: Option<u64>,
    /// Waits before and after a call, at most.
    delay: Duration,
    /// Calls until all fail.
    left: Option<u64>,
}

/// Another place, through a bad connection.
pub struct Flaky {
    behind: Arc<dyn Place>,
    mood: Mutex<Mood>,
}

impl Flaky {
    pub fn new(behind: Arc<dyn Place>, seed: u64) -> Flaky {
        let mood = Mood {
            random: Random(seed | 1),
            fails: None,
            delay: Duration::ZERO,
            left: None,
        };
        Flaky {
            behind,
            mood: Mutex::new(mood),
        }
    }

    pub fn fail(&self, one_of: u64) {
        self.mood.lock().unwrap().fails = Some(one_of);
    }

    pub fn end_after(&self, calls: u64) {
        self.mood.lock().unwrap().left = Some(calls);
    }

    pub fn delay(&self, most: Duration) {
        self.mood.lock().unwrap().delay = most;
    }

    fn pause(&self) {
        let pause = {
            let mut mood = self.mood.lock().unwrap();
            let most = mood.delay.as_micros() as u64;
            // Mostly none, sometimes a long one.
            match mood.random.below(4) {
                0 if most > 0 => Duration::from_micros(mood.random.below(most)),
                _ => return,
            }
        };
        std::thread::sleep(pause);
    }

    fn call<R>(&self, name: &str, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let lost = || {
            Error::new(
                "flaky",
                name,
                Kind::Unreachable(io::Error::from(io::ErrorKind::TimedOut).to_string()),
            )
        };
        self.pause();
        let (before, after) = {
            let mut mood = self.mood.lock().unwrap();
            if mood.left == Some(0) {
                return Err(lost());
            }
            mood.left = mood.left.map(|left| left - 1);
            let fails = mood.fails.is_some_and(|one_of| mood.random.below(one_of) == 0);
            let which = mood.random.below(2) == 0;
            (fails && which, fails && !which)
        };
        if before {
            return Err(lost());
        }
        let done = work();
        self.pause();
        if after { Err(lost()) } else { done }
    }
}

impl Place for Flaky {
    fn shown(&self) -> &str {
        "flaky"
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.call(name, || self.behind.put(name, bytes))
    }

    fn settle(&self, job: &str) -> Result<(), Error> {
        self.call(job, || self.behind.settle(job))
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.call(name, || self.behind.get(name))
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        self.call(name, || self.behind.has(name))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        self.call(folder, || self.behind.list(folder))
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        self.call(name, || self.behind.delete(name))
    }

    fn clear(&self, job: &str, all: bool) -> Result<(), Error> {
        self.call(job, || self.behind.clear(job, all))
    }
}

//! A place with jobs in it: generations that begin, count, and are given up.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Kind};
use crate::key::{self, StoreKey};
use crate::name::{self, ChunkName, Generation, PartName};
use crate::pack;
use crate::place::Place;
use crate::places::Described;
use crate::random;
use crate::records::{About, Manifest, Part, PartNote};

/// Bytes of a record before it is packed, at most.
const LONGEST_RECORD: usize = 1 << 30;

/// A place, and the key of what is there.
#[derive(Clone)]
pub struct Store {
    place: Arc<dyn Place>,
    key: Option<StoreKey>,
}

impl Store {
    pub fn new(place: Arc<dyn Place>, key: Option<StoreKey>) -> Store {
        Store { place, key }
    }

    /// The store in a place, as the user has described it. `make`: for writing; a missing directory is made.
    ///
    /// # Errors
    /// See [`Described::open`].
    pub fn open(place: &Described, make: bool, key: Option<StoreKey>) -> Result<Store, Error> {
        Ok(Store::new(place.open(make)?, key))
    }

    pub fn place(&self) -> &dyn Place {
        &*self.place
    }

    pub(crate) fn key(&self) -> Option<&StoreKey> {
        self.key.as_ref()
    }

    pub(crate) fn error(&self, object: &str, kind: Kind) -> Error {
        Error::new(self.place.shown(), object, kind)
    }

    pub(crate) fn random(&self) -> Result<u64, Error> {
        random()
            .map(u64::from_le_bytes)
            .map_err(|error| self.error("", Kind::Io(error)))
    }

    /// Seals and puts a record.
    pub(crate) fn put_record(&self, job: &str, folder: &str, last: &str, plain: &[u8]) -> Result<blake3::Hash, Error> {
        let object = format!("{job}/{folder}/{last}");
        let sealed = key::wrap(self.key(), &format!("{folder}/{last}"), pack::pack(plain));
        let sealed = sealed.map_err(|kind| self.error(&object, kind))?;
        self.place.put(&object, &sealed)?;
        Ok(blake3::hash(&sealed))
    }

    /// A record, and the digest of its object.
    pub(crate) fn record(&self, job: &str, folder: &str, last: &str) -> Result<(Vec<u8>, blake3::Hash), Error> {
        let object = format!("{job}/{folder}/{last}");
        let sealed = self.place.get(&object)?;
        let digest = blake3::hash(&sealed);
        key::unwrap(self.key(), &format!("{folder}/{last}"), sealed)
            .and_then(|body| pack::unpack(&body, LONGEST_RECORD))
            .map(|plain| (plain, digest))
            .map_err(|kind| self.error(&object, kind))
    }

    /// The names in a folder that `parse` understands, in order.
    pub(crate) fn names<N: Ord>(
        &self,
        job: &str,
        folder: &str,
        parse: impl Fn(&str) -> Option<N>,
    ) -> Result<Vec<N>, Error> {
        let entries = self.place.list(&format!("{job}/{folder}"))?;
        let mut names: Vec<N> = entries.iter().filter_map(|entry| parse(&entry.name)).collect();
        names.sort();
        Ok(names)
    }

    pub(crate) fn generations_in(&self, job: &str, folder: &str) -> Result<Vec<Generation>, Error> {
        self.names(job, folder, |name| name.parse().ok())
    }

    pub(crate) fn delete(&self, job: &str, folder: &str, last: impl std::fmt::Display) -> Result<(), Error> {
        self.place.delete(&format!("{job}/{folder}/{last}"))
    }

    fn check_job(&self, job: &str) -> Result<(), Error> {
        let wrong = || format!("{job:?} cannot be the name of a job: letters, digits, \".\", \"_\" and \"-\" can");
        match name::is_plain(job) {
            true => Ok(()),
            false => Err(self.error("", Kind::BadName(wrong()))),
        }
    }

    /// Begins a generation; only then may nodes put parts of it. Numbers go up, and repeat where an attempt has failed.
    ///
    /// # Errors
    /// Nothing has begun.
    pub fn begin(&self, job: &str, number: u64) -> Result<Generation, Error> {
        self.check_job(job)?;
        let attempt = self.random()?;
        let generation = Generation { number, attempt };
        self.renew(job, generation)?;
        // A place that is switched off must not forget that somebody writes.
        self.place.settle(job)?;
        Ok(generation)
    }

    /// Says that somebody still works on this generation. After [`GRACE`](crate::GRACE) without it anybody may give the
    /// generation up; a minute between is a good time.
    ///
    /// # Errors
    /// It was not said.
    pub fn renew(&self, job: &str, generation: Generation) -> Result<(), Error> {
        self.place
            .put(&format!("{job}/{}/{generation}", name::WRITING), b"resurgo\n")
    }

    /// The generation counts from now on: all its parts are there. A failed call can be repeated.
    ///
    /// # Errors
    /// It may count or not; with [`Kind::Revoked`] it does not.
    pub fn commit(
        &self,
        job: &str,
        generation: Generation,
        about: About,
        parts: Vec<PartNote>,
    ) -> Result<Manifest, Error> {
        let manifest = Manifest::new(generation, about, parts);
        let object = format!("{job}/{}/{generation}", name::GENERATIONS);
        let written = manifest.written().map_err(|kind| self.error(&object, kind))?;
        self.put_record(job, name::GENERATIONS, &generation.to_string(), &written)?;
        self.place.settle(job)?;
        // The order matters: see gc.
        for folder in [name::WARNED, name::REVOKED] {
            if self.place.has(&format!("{job}/{folder}/{generation}"))? {
                self.abandon(job, generation)?;
                return Err(self.error(&object, Kind::Revoked));
            }
        }
        self.delete(job, name::WRITING, generation)?;
        Ok(manifest)
    }

    /// Gives a generation up: it never counts. What was put for it can still be used by the next one. After a failed
    /// [`commit`](Store::commit), repeat that instead.
    ///
    /// # Errors
    /// It will be given up later, as nobody renews it.
    pub fn abandon(&self, job: &str, generation: Generation) -> Result<(), Error> {
        // Something that was put may come late.
        self.place
            .put(&format!("{job}/{}/{generation}", name::REVOKED), b"resurgo\n")?;
        self.place.settle(job)?;
        self.delete(job, name::GENERATIONS, generation)?;
        self.delete(job, name::WRITING, generation)
    }

    /// The names of all jobs.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn jobs(&self) -> Result<Vec<String>, Error> {
        let mut jobs: Vec<String> = self.place.list("")?.into_iter().map(|entry| entry.name).collect();
        jobs.sort();
        Ok(jobs)
    }

    /// The generations of a job that count, the newest last.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn generations(&self, job: &str) -> Result<Vec<Generation>, Error> {
        self.check_job(job)?;
        let mut there = self.generations_in(job, name::GENERATIONS)?;
        // After that: a generation that was given up before its manifest was put never counts.
        let revoked = self.generations_in(job, name::REVOKED)?;
        there.retain(|generation| !revoked.contains(generation));
        Ok(there)
    }

    /// The newest generation with this number, or of all.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, job: &str, number: Option<u64>) -> Result<Generation, Error> {
        let all = self.generations(job)?;
        let found = all.iter().rfind(|one| number.is_none_or(|number| one.number == number));
        found.copied().ok_or_else(|| match number {
            Some(number) => self.error(&format!("{job}@{number}"), Kind::Missing),
            None => self.error(job, Kind::Missing),
        })
    }

    /// # Errors
    /// It is not there, or cannot be read.
    pub fn manifest(&self, job: &str, generation: Generation) -> Result<Manifest, Error> {
        let (plain, _) = self.record(job, name::GENERATIONS, &generation.to_string())?;
        let object = || format!("{job}/{}/{generation}", name::GENERATIONS);
        Manifest::read(&plain, generation).map_err(|kind| self.error(&object(), kind))
    }

    /// The part that a manifest names.
    ///
    /// # Errors
    /// It is not there, cannot be read, or is another.
    pub fn part(&self, job: &str, generation: Generation, note: &PartNote) -> Result<Part, Error> {
        let name = PartName {
            generation,
            node: note.node,
            number: note.number,
        };
        let (part, digest) = self.part_named(job, &name)?;
        match *digest.as_bytes() == note.digest {
            true => Ok(part),
            false => {
                let why = "it is not the part that the manifest names".to_string();
                Err(self.error(&format!("{job}/{}/{name}", name::PARTS), Kind::Damaged(why)))
            }
        }
    }

    pub(crate) fn part_named(&self, job: &str, name: &PartName) -> Result<(Part, blake3::Hash), Error> {
        let (plain, digest) = self.record(job, name::PARTS, &name.to_string())?;
        let part = Part::read(&plain, name.generation, name.node);
        part.map(|part| (part, digest))
            .map_err(|kind| self.error(&format!("{job}/{}/{name}", name::PARTS), kind))
    }

    /// Chunks that must not be relied on: they are about to go, or damaged.
    pub(crate) fn condemned(&self, job: &str) -> Result<HashSet<ChunkName>, Error> {
        let mut all = HashSet::new();
        for list in self.names(job, name::CONDEMNED, |name| Some(name.to_string()))? {
            match self.condemned_in(job, &list) {
                Ok(names) => all.extend(names),
                // All of it is gone.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    pub(crate) fn condemned_in(&self, job: &str, list: &str) -> Result<Vec<ChunkName>, Error> {
        let (plain, _) = self.record(job, name::CONDEMNED, list)?;
        let read: Result<Vec<ChunkName>, _> = serde_json::from_slice(&plain);
        read.map_err(|error| {
            let object = format!("{job}/{}/{list}", name::CONDEMNED);
            self.error(&object, Kind::Damaged(error.to_string()))
        })
    }

    /// Later generations will not rely on these chunks: they are damaged, or nobody needs them.
    pub(crate) fn condemn(&self, job: &str, names: &[ChunkName]) -> Result<(), Error> {
        let list = format!("{:016x}", self.random()?);
        let plain = serde_json::to_vec(names).map_err(|error| self.error(job, Kind::BadName(error.to_string())))?;
        self.put_record(job, name::CONDEMNED, &list, &plain)?;
        self.place.settle(job)
    }
}

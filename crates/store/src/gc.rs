//! Removes what no generation needs, while others write.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::error::Error;
use crate::name::{self, ChunkName, Generation};
use crate::records::Part;
use crate::sender::{Progress, chunks_of};
use crate::store::Store;

/// A generation whose launcher was silent for so long may be given up.
pub const GRACE: Duration = Duration::from_secs(3600);

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub generations: u64,
    pub chunks: u64,
    /// Bytes of these chunks in the place.
    pub bytes: u64,
    /// Chunks that nobody needs, but that may be in use until the generations that are being written are there.
    pub waiting: u64,
}

impl Store {
    /// Keeps the newest `keep` generations of a job, and removes older ones, what is left of generations that were given
    /// up, and chunks that no generation needs. Others may write, read and remove meanwhile.
    ///
    /// Why no chunk is removed that a generation needs, with any number of writers, and without locks or clocks
    /// (`docs/internals/store.md` has the argument):
    ///
    /// - A launcher says that it writes (`writing/G`) before any node looks for chunks, and takes that back after
    ///   the manifest is there.
    /// - `gc` writes down what it will remove (`condemned/…`), and then who writes at that moment (`blockers/…`). It
    ///   removes only when none of these writes any more, and then reads all parts again.
    /// - A node reads what is condemned before it looks what is there. So a later writer does not rely on it.
    /// - The name of a chunk that was removed never comes back, so a slow `gc` cannot remove a new one.
    /// - A launcher that was silent for `grace` is warned (`warned/G`), and given up (`revoked/G`) if its manifest is not
    ///   there after that. It looks for the warning after it has put the manifest. What is given up never counts.
    ///
    /// # Errors
    /// Something cannot be read or removed; nothing needed is lost, and the next call goes on.
    pub fn gc(&self, job: &str, keep: Option<usize>, grace: Duration) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        self.give_up(job, grace)?;
        self.remove_generations(job, keep, &mut swept)?;
        self.condemn_unneeded(job)?;
        for list in self.names(job, name::CONDEMNED, |name| Some(name.to_string()))? {
            self.sweep(job, &list, &mut swept)?;
        }
        self.remove_old_blockers(job)?;
        self.place().clear(job, false)?;
        Ok(swept)
    }

    /// Gives up generations whose launchers have been silent.
    fn give_up(&self, job: &str, grace: Duration) -> Result<(), Error> {
        let writing = self.place().list(&format!("{job}/{}", name::WRITING))?;
        if writing.is_empty() {
            return Ok(());
        }
        // The place's own time.
        let clock = format!("{job}/{}/{:016x}", name::CLOCK, self.random()?);
        self.place().put(&clock, b"resurgo\n")?;
        let clocks = self.place().list(&format!("{job}/{}", name::CLOCK));
        self.place().delete(&clock)?;
        let now = clocks?.iter().map(|entry| entry.modified).max();
        let Some(now) = now else { return Ok(()) };
        for entry in writing {
            let silent = now.duration_since(entry.modified).unwrap_or_default();
            if let Ok(generation) = entry.name.parse::<Generation>()
                && silent >= grace
            {
                self.revoke(job, generation)?;
            }
        }
        Ok(())
    }

    fn revoke(&self, job: &str, generation: Generation) -> Result<(), Error> {
        let object = |folder| format!("{job}/{folder}/{generation}");
        self.place().put(&object(name::WARNED), b"resurgo\n")?;
        self.place().settle(job)?;
        // Its launcher may have died after it was whole.
        match self.place().has(&object(name::GENERATIONS))? {
            true => Ok(()),
            false => self.abandon(job, generation),
        }
    }

    /// Generations that are being written: some parts may not be there yet.
    fn writing(&self, job: &str) -> Result<Vec<Generation>, Error> {
        let mut writing = self.generations_in(job, name::WRITING)?;
        // A launcher that wakes up may say again that it writes.
        let revoked = self.generations_in(job, name::REVOKED)?;
        let whole = self.generations_in(job, name::GENERATIONS)?;
        writing.retain(|generation| !revoked.contains(generation) && !whole.contains(generation));
        Ok(writing)
    }

    /// Removes manifests and parts.
    fn remove_generations(&self, job: &str, keep: Option<usize>, swept: &mut Swept) -> Result<(), Error> {
        // In this order: who has put a part writes, or has written, and then the manifest is there.
        let parts = self.names(job, name::PARTS, name::parse_part)?;
        let begun = self.generations_in(job, name::WRITING)?;
        let all = self.generations_in(job, name::GENERATIONS)?;
        let revoked = self.generations_in(job, name::REVOKED)?;
        let mut counting = all.clone();
        counting.retain(|generation| !revoked.contains(generation));
        // A launcher may still take back a generation whose end it has not confirmed: do not rely on that.
        let mut confirmed = counting.iter().rev().filter(|generation| !begun.contains(generation));
        let oldest = keep.and_then(|keep| confirmed.nth(keep.max(1) - 1));
        let is_kept =
            |generation: &Generation| counting.contains(generation) && oldest.is_none_or(|oldest| generation >= oldest);
        let mut removed = false;
        for generation in all.iter().filter(|generation| !is_kept(generation)) {
            self.delete(job, name::GENERATIONS, generation)?;
            (removed, swept.generations) = (true, swept.generations + 1);
        }
        if removed {
            // No manifest comes back after its chunks are gone.
            self.place().settle(job)?;
        }
        for generation in all
            .iter()
            .filter(|generation| !is_kept(generation) && begun.contains(generation))
        {
            self.delete(job, name::WRITING, generation)?;
        }
        let lives =
            |generation: &Generation| is_kept(generation) || begun.contains(generation) && !all.contains(generation);
        for part in parts.iter().filter(|part| !lives(&part.generation)) {
            self.delete(job, name::PARTS, part)?;
        }
        Ok(())
    }

    /// All parts that are there now.
    fn parts(&self, job: &str) -> Result<Vec<Part>, Error> {
        let mut parts = Vec::new();
        for name in self.names(job, name::PARTS, name::parse_part)? {
            match self.part_named(job, &name) {
                Ok((part, _)) => parts.push(part),
                Err(error) if error.is_missing() => {}
                // What it needs is unknown.
                Err(error) => return Err(error),
            }
        }
        Ok(parts)
    }

    fn condemn_unneeded(&self, job: &str) -> Result<(), Error> {
        // In this order: an attempt that has put a chunk writes, or has put its part, or was given up.
        let chunks = self.names(job, name::CHUNKS, |name| name.parse::<ChunkName>().ok())?;
        let writing: HashSet<u64> = self.writing(job)?.iter().map(|generation| generation.attempt).collect();
        let needed = chunks_of(&self.parts(job)?);
        let condemned = self.condemned(job)?;
        let is_needed = |name: &ChunkName| needed.contains(name) || writing.contains(&name.attempt);
        let unneeded = chunks
            .into_iter()
            .filter(|name| !is_needed(name) && !condemned.contains(name));
        let unneeded: Vec<ChunkName> = unneeded.collect();
        match unneeded.is_empty() {
            true => Ok(()),
            false => self.condemn(job, &unneeded),
        }
    }

    /// Removes the chunks of a list, if nobody can rely on them any more.
    fn sweep(&self, job: &str, list: &str, swept: &mut Swept) -> Result<(), Error> {
        let Some(blockers) = self.blockers(job, list)? else {
            return Ok(());
        };
        let names = match self.condemned_in(job, list) {
            Err(error) if error.is_missing() => return Ok(()),
            names => names?,
        };
        let writing = self.writing(job)?;
        if writing.iter().any(|generation| blockers.contains(generation)) {
            swept.waiting += names.len() as u64;
            return Ok(());
        }
        let needed = chunks_of(&self.parts(job)?);
        let mut stays = false;
        let there = self.place().list(&format!("{job}/{}", name::CHUNKS))?;
        let there: HashMap<&str, u64> = there.iter().map(|entry| (entry.name.as_str(), entry.bytes)).collect();
        for name in names {
            if needed.contains(&name) {
                // It stays condemned until nobody needs it: another gc may have decided otherwise.
                stays = true;
            } else if let Some(bytes) = there.get(name.to_string().as_str()) {
                self.delete(job, name::CHUNKS, name)?;
                swept.chunks += 1;
                swept.bytes += bytes;
            }
        }
        if !stays {
            self.place().settle(job)?;
            self.delete(job, name::CONDEMNED, list)?;
            self.delete(job, name::BLOCKERS, list)?;
        }
        Ok(())
    }

    /// The generations that were being written when this list was there.
    fn blockers(&self, job: &str, list: &str) -> Result<Option<Vec<Generation>>, Error> {
        let read = |plain: Vec<u8>| serde_json::from_slice::<Vec<Generation>>(&plain).ok();
        match self.record(job, name::BLOCKERS, list) {
            Ok((plain, _)) => return Ok(read(plain)),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
        let blockers = self.writing(job)?;
        let plain = serde_json::to_vec(&blockers).unwrap_or_default();
        self.put_record(job, name::BLOCKERS, list, &plain)?;
        self.place().settle(job)?;
        Ok(Some(blockers))
    }

    /// Another gc may have written one just after the list was gone.
    fn remove_old_blockers(&self, job: &str) -> Result<(), Error> {
        let name = |name: &str| Some(name.to_string());
        let blockers = self.names(job, name::BLOCKERS, name)?;
        let condemned = self.names(job, name::CONDEMNED, name)?;
        for list in blockers.iter().filter(|list| !condemned.contains(list)) {
            self.delete(job, name::BLOCKERS, list)?;
        }
        Ok(())
    }

    /// Removes a generation; [`Store::gc`] then removes what only it has needed.
    ///
    /// # Errors
    /// It may still be there.
    pub fn remove_generation(&self, job: &str, generation: Generation) -> Result<(), Error> {
        self.delete(job, name::GENERATIONS, generation)?;
        self.place().settle(job)
    }

    /// Removes all of a job, which must not be running.
    ///
    /// # Errors
    /// Something of it is left.
    pub fn remove(&self, job: &str) -> Result<(), Error> {
        self.remove_showing(job, &Progress::default())
    }

    /// [`Store::remove`], which counts there what it removes.
    ///
    /// # Errors
    /// Something of it is left.
    pub fn remove_showing(&self, job: &str, progress: &Progress) -> Result<(), Error> {
        for folder in name::FOLDERS {
            for entry in self.place().list(&format!("{job}/{folder}"))? {
                self.delete(job, folder, &entry.name)?;
                progress.removes();
            }
            if folder == name::GENERATIONS {
                // No manifest comes back after its chunks are gone. The rest is of no use without one, in any order.
                self.place().settle(job)?;
            }
        }
        self.place().settle(job)?;
        self.place().clear(job, true)
    }
}

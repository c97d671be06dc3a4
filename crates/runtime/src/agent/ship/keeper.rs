//! What a node has of images of other nodes' ranks.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use resurgo_wire::replica::Offer;

use super::shelf::Shelf;
use crate::note::file_name;

/// What can be known of the files that are sent.
#[derive(Clone, Copy)]
pub struct Contents {
    /// The parts of a file that are needed, in ascending order; the rest is as good as zeros.
    pub parts: fn(&File) -> io::Result<Vec<Range<u64>>>,
    /// Whether the file is the one that is offered, by what can be known quickly; why not.
    pub is_it: fn(File, &Offer) -> Result<(), String>,
    /// Whether all of it is right; what is wrong.
    pub is_whole: fn(File, &Offer) -> Result<(), String>,
}

/// A whole copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub offer: Offer,
    /// On the shelf.
    pub name: OsString,
    pub beside: Arc<Vec<u8>>,
    /// This node has made the file, so it is its to remove.
    is_own: bool,
}

/// A file that has come in part.
pub struct Partial {
    pub offer: Offer,
    name: OsString,
    file: File,
    /// Up to here it is complete.
    position: u64,
    beside: Vec<u8>,
    /// The file was here already, and is somebody else's.
    is_seen: bool,
}

/// What is to be done about an offer.
pub enum Taking {
    /// It is here already.
    Whole,
    From(Partial),
}

pub struct Keeper {
    node: u32,
    shelf: Shelf,
    pub contents: Contents,
    held: Mutex<BTreeMap<(u32, u64), Held>>,
    /// By rank: those that nobody brings at the moment.
    partial: Mutex<HashMap<u32, Partial>>,
    begun: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of an image file of a rank, on each node.
fn image(rank: u32, number: u64) -> OsString {
    file_name(rank as usize, number).into()
}

impl Partial {
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next part has come.
    ///
    /// # Errors
    /// The file cannot be written, or the part is not one that can be next.
    pub fn write(&mut self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let end = position.checked_add(bytes.len() as u64);
        let end = end.filter(|end| position >= self.position && *end <= self.offer.length);
        let end = end.ok_or_else(|| io::Error::other("a part of the image that is not next"))?;
        self.file.write_all_at(bytes, position)?;
        self.position = end;
        Ok(())
    }

    /// The same with what does not belong to the file.
    pub fn take_beside(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.beside.len() as u64 + bytes.len() as u64 > self.offer.beside {
            return Err(io::Error::other("more comes beside the image than was said"));
        }
        self.beside.extend_from_slice(bytes);
        Ok(())
    }
}

impl Keeper {
    /// That of node `node`.
    pub fn new(node: u32, shelf: Shelf, contents: Contents) -> Keeper {
        Keeper {
            node,
            shelf,
            contents,
            held: Mutex::default(),
            partial: Mutex::default(),
            begun: AtomicU64::new(0),
        }
    }

    /// The copy of an image, if it is here whole.
    pub fn held(&self, rank: u32, number: u64) -> Option<Held> {
        lock(&self.held).get(&(rank, number)).cloned()
    }

    /// The file of a copy.
    pub fn open(&self, held: &Held) -> io::Result<File> {
        self.shelf.open(&held.name)
    }

    /// Somebody offers an image.
    ///
    /// # Errors
    /// Why it is not taken, in words for people.
    pub fn begin(&self, offer: Offer) -> Result<Taking, String> {
        let place = (offer.rank, offer.number);
        if lock(&self.held).get(&place).is_some_and(|held| held.offer == offer) {
            return Ok(Taking::Whole);
        }
        if let Some(file) = self.see(&offer) {
            if offer.beside == 0 {
                self.know(offer, false);
                return Ok(Taking::Whole);
            }
            return Ok(Taking::From(Partial {
                name: image(offer.rank, offer.number),
                file,
                position: offer.length,
                beside: Vec::new(),
                is_seen: true,
                offer,
            }));
        }
        let former = lock(&self.partial).remove(&offer.rank);
        match former {
            Some(partial) if partial.offer == offer => {
                let beside = Vec::new();
                return Ok(Taking::From(Partial { beside, ..partial }));
            }
            Some(partial) => self.discard(partial),
            None => {}
        }
        if let Some(reason) = self.shelf.refuses(offer.length.saturating_add(offer.beside)) {
            return Err(reason);
        }
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        // Nodes may have one directory.
        let name: OsString = format!("copy-{}.{}-{begun}", offer.rank, self.node).into();
        let file = self.shelf.new_file(&name).map_err(|error| error.to_string())?;
        let partial = Partial {
            name,
            file,
            position: 0,
            beside: Vec::new(),
            is_seen: false,
            offer,
        };
        match partial.file.set_len(partial.offer.length) {
            Ok(()) => Ok(Taking::From(partial)),
            Err(error) => {
                self.discard(partial);
                Err(error.to_string())
            }
        }
    }

    /// The very file is on the shelf: who offers it has the same directory.
    fn see(&self, offer: &Offer) -> Option<File> {
        let Shelf::Directory(_) = self.shelf else { return None };
        let file = self.shelf.open(&image(offer.rank, offer.number)).ok()?;
        let is_it = |file| (self.contents.is_it)(file, offer).is_ok();
        file.try_clone().is_ok_and(is_it).then_some(file)
    }

    /// The file of the image is here, and nothing beside it. `is_own`: it is this node's to remove.
    pub fn know(&self, offer: Offer, is_own: bool) {
        let name = image(offer.rank, offer.number);
        self.hold(offer, name, Vec::new(), is_own);
    }

    fn hold(&self, offer: Offer, name: OsString, beside: Vec<u8>, is_own: bool) {
        let held = Held {
            offer,
            name,
            beside: Arc::new(beside),
            is_own,
        };
        lock(&self.held).insert((held.offer.rank, held.offer.number), held);
    }

    /// The connection is broken: the rest may come later.
    pub fn put_by(&self, partial: Partial) {
        let rank = partial.offer.rank;
        let former = lock(&self.partial).insert(rank, partial);
        former.into_iter().for_each(|former| self.discard(former));
    }

    /// It will not come to anything.
    pub fn discard(&self, partial: Partial) {
        if !partial.is_seen {
            self.shelf.remove(&partial.name);
        }
    }

    /// All of it has come: it gets its name when it is on the disk, and is what was offered.
    ///
    /// # Errors
    /// Why it is not taken, in words for people.
    pub fn complete(&self, partial: Partial) -> Result<(), String> {
        if partial.beside.len() as u64 != partial.offer.beside {
            self.discard(partial);
            return Err("not all that belongs to the image has come".to_string());
        }
        if partial.is_seen {
            self.hold(partial.offer, partial.name, partial.beside, false);
            return Ok(());
        }
        let finish = || {
            partial.file.sync_all().map_err(|error| error.to_string())?;
            let file = self.shelf.open(&partial.name).map_err(|error| error.to_string())?;
            (self.contents.is_whole)(file, &partial.offer)?;
            let name = image(partial.offer.rank, partial.offer.number);
            let named = self.shelf.rename(&partial.name, &name);
            named.map_err(|error| error.to_string())?;
            self.shelf.sync();
            Ok(name)
        };
        match finish() {
            Ok(name) => {
                self.hold(partial.offer, name, partial.beside, true);
                Ok(())
            }
            Err(reason) => {
                self.discard(partial);
                Err(reason)
            }
        }
    }

    /// The copy, which becomes the image of a rank of this node.
    pub fn take(&self, rank: u32, number: u64) -> Option<Held> {
        lock(&self.held).remove(&(rank, number))
    }

    /// Nobody needs the copy.
    pub fn forget(&self, rank: u32, number: u64) {
        let partial = lock(&self.partial).remove(&rank);
        match partial {
            Some(partial) if partial.offer.number <= number => self.discard(partial),
            Some(partial) => self.put_by(partial),
            None => {}
        }
        if let Some(held) = self.take(rank, number).filter(|held| held.is_own) {
            self.shelf.remove(&held.name);
        }
    }
}

//! A node's copies of images of other nodes' ranks, and its pieces of parity.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_wire::replica::{Offer, What};

use super::shelf::{self, Shelf};
use crate::note::{file_name, log_of};

/// What names of pieces begin with.
pub const PIECES: &str = "set-";

/// The checks of the files that are sent.
#[derive(Clone, Copy)]
pub struct Contents {
    /// The needed parts of a file, in ascending order; the rest counts as zeros.
    pub parts: fn(&File) -> io::Result<Vec<Range<u64>>>,
    /// Quick check that the file is the offered one; the error says why not.
    pub is_it: fn(File, &Offer) -> Result<(), String>,
    /// Check that all of it is right; the error says what is wrong.
    pub is_whole: fn(File, &Offer) -> Result<(), String>,
}

/// A file for a partner.
pub struct Parcel {
    pub offer: Offer,
    pub file: File,
    /// The file of the data that belongs to it, if there is any: it may be long.
    pub beside: Option<File>,
}

/// A complete copy. The data beside it is in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub offer: Offer,
    /// On the shelf.
    pub name: OsString,
    /// This node has made the file, and removes it.
    is_own: bool,
}

/// A partly received file.
pub struct Partial {
    pub offer: Offer,
    name: OsString,
    file: File,
    /// The end of the complete part.
    position: u64,
    beside: Vec<u8>,
}

/// How to treat an offer.
pub enum Taking {
    /// It is here already.
    Whole,
    From(Partial),
}

pub struct Keeper {
    node: u32,
    shelf: Shelf,
    images: Contents,
    pieces: Contents,
    held: Mutex<BTreeMap<What, Held>>,
    /// Partial files without a sender at the moment.
    partial: Mutex<Vec<Partial>>,
    begun: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a file on each node.
pub fn name_of(what: What) -> OsString {
    match what {
        What::Image { rank, number } => file_name(rank as usize, number).into(),
        What::Piece { number, set, index } => format!("{PIECES}{set}.{index}-{number}").into(),
    }
}

/// A part of this file is of no use once `next` comes: an image of the same rank, or a piece of a later wave.
fn is_over(former: What, next: What) -> bool {
    match (former, next) {
        (What::Image { rank, .. }, What::Image { rank: of, .. }) => rank == of,
        (What::Piece { number, .. }, What::Piece { number: later, .. }) => number < later || former == next,
        _ => false,
    }
}

impl Partial {
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Writes the next part.
    ///
    /// # Errors
    /// The file cannot be written, or the part is out of order.
    pub fn write(&mut self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let end = position.checked_add(bytes.len() as u64);
        let end = end.filter(|end| position >= self.position && *end <= self.offer.length);
        let end = end.ok_or_else(|| io::Error::other("a part of the file that is not next"))?;
        self.file.write_all_at(bytes, position)?;
        self.position = end;
        Ok(())
    }

    /// The same for the data beside the file.
    pub fn take_beside(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.beside.len() as u64 + bytes.len() as u64 > self.offer.beside {
            return Err(io::Error::other("more comes beside the file than was said"));
        }
        self.beside.extend_from_slice(bytes);
        Ok(())
    }
}

impl Keeper {
    /// The keeper of node `node`.
    pub fn new(node: u32, shelf: Shelf, images: Contents, pieces: Contents) -> Keeper {
        Keeper {
            node,
            shelf,
            images,
            pieces,
            held: Mutex::default(),
            partial: Mutex::default(),
            begun: AtomicU64::new(0),
        }
    }

    /// The checks of such files.
    pub fn contents(&self, what: What) -> &Contents {
        match what {
            What::Image { .. } => &self.images,
            What::Piece { .. } => &self.pieces,
        }
    }

    /// Where all files are.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// The file, if it is complete.
    pub fn held(&self, what: What) -> Option<Held> {
        lock(&self.held).get(&what).cloned()
    }

    /// The file, for another node.
    pub fn parcel(&self, what: What) -> io::Result<Parcel> {
        let held = self.held(what).ok_or(io::ErrorKind::NotFound)?;
        Ok(Parcel {
            file: self.open(&held)?,
            beside: self.open_beside(&held)?,
            offer: held.offer,
        })
    }

    /// The file.
    pub fn open(&self, held: &Held) -> io::Result<File> {
        self.shelf.open(&held.name)
    }

    /// What lies beside it, if anything does.
    pub fn open_beside(&self, held: &Held) -> io::Result<Option<File>> {
        match held.offer.beside {
            0 => Ok(None),
            _ => self.shelf.open(&log_of(&held.name)).map(Some),
        }
    }

    /// Looks at all of the file.
    ///
    /// # Errors
    /// It is not there or damaged, in words.
    pub fn check(&self, what: What) -> Result<(), String> {
        let held = self.held(what).ok_or("this node does not have it")?;
        let file = self.open(&held).map_err(|error| error.to_string())?;
        (self.contents(what).is_whole)(file, &held.offer)
    }

    /// Bytes that this node holds for others: in copies, and in pieces.
    pub fn bytes(&self) -> [u64; 2] {
        let mut bytes = [0; 2];
        for (what, held) in lock(&self.held).iter().filter(|(_, held)| held.is_own) {
            bytes[usize::from(what.image().is_none())] += held.offer.length + held.offer.beside;
        }
        bytes
    }

    /// A sender offers a file.
    ///
    /// # Errors
    /// Why the node does not take it, for people.
    pub fn begin(&self, offer: Offer) -> Result<Taking, String> {
        if lock(&self.held)
            .get(&offer.what)
            .is_some_and(|held| held.offer == offer)
        {
            return Ok(Taking::Whole);
        }
        if self.sees(&offer) {
            self.know(offer, false);
            return Ok(Taking::Whole);
        }
        let former = |partial: &mut Partial| is_over(partial.offer.what, offer.what);
        let former: Vec<Partial> = lock(&self.partial).extract_if(.., former).collect();
        let mut same = None;
        for partial in former {
            match partial.offer == offer {
                true => same = Some(partial),
                false => self.discard(partial),
            }
        }
        if let Some(partial) = same {
            let beside = Vec::new();
            return Ok(Taking::From(Partial { beside, ..partial }));
        }
        if let Some(reason) = self.shelf.refuses(offer.length.saturating_add(offer.beside)) {
            return Err(reason);
        }
        let name = self.temporary(offer.what);
        let file = self.shelf.new_file(&name).map_err(|error| error.to_string())?;
        let partial = Partial {
            name,
            file,
            position: 0,
            beside: Vec::new(),
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

    /// The name of a file that is not complete. Several nodes may share one directory.
    pub fn temporary(&self, what: What) -> OsString {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        let kind = match what {
            What::Image { .. } => "copy",
            What::Piece { .. } => shelf::PIECE,
        };
        format!("{kind}-{}-{begun}", self.node).into()
    }

    /// The same file is on the shelf, with the data beside it: the sender has the same directory.
    fn sees(&self, offer: &Offer) -> bool {
        let Shelf::Directory(_) = self.shelf else { return false };
        let name = name_of(offer.what);
        let has_beside = || {
            self.beside(offer.what)
                .is_ok_and(|beside| beside.len() as u64 == offer.beside)
        };
        let file = self.shelf.open(&name);
        file.is_ok_and(|file| (self.contents(offer.what).is_it)(file, offer).is_ok()) && has_beside()
    }

    /// The data beside a local file.
    pub fn beside(&self, what: What) -> io::Result<Vec<u8>> {
        if what.image().is_none() {
            return Ok(Vec::new());
        }
        match self.shelf.read(&log_of(&name_of(what))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            beside => beside,
        }
    }

    /// The file is here. `is_own`: this node removes it.
    pub fn know(&self, offer: Offer, is_own: bool) {
        let name = name_of(offer.what);
        let held = Held { offer, name, is_own };
        lock(&self.held).insert(held.offer.what, held);
    }

    /// The connection is broken: the rest may come later.
    pub fn put_by(&self, partial: Partial) {
        let former = |former: &mut Partial| is_over(former.offer.what, partial.offer.what);
        let mut all = lock(&self.partial);
        let former: Vec<Partial> = all.extract_if(.., former).collect();
        all.push(partial);
        drop(all);
        former.into_iter().for_each(|former| self.discard(former));
    }

    /// The rest will not come.
    pub fn discard(&self, partial: Partial) {
        self.shelf.remove(&partial.name);
    }

    /// All of it is here: checks it against the offer, brings it to the disk, and names it.
    ///
    /// # Errors
    /// Why the node does not take it, for people.
    pub fn complete(&self, partial: Partial) -> Result<(), String> {
        if partial.beside.len() as u64 != partial.offer.beside {
            self.discard(partial);
            return Err("not all that belongs to it has come".to_string());
        }
        let finish = || {
            partial.file.sync_all().map_err(|error| error.to_string())?;
            let file = self.shelf.open(&partial.name).map_err(|error| error.to_string())?;
            (self.contents(partial.offer.what).is_whole)(file, &partial.offer)?;
            let named = self.put_beside(&name_of(partial.offer.what), &partial.beside);
            named.map_err(|error| error.to_string())
        };
        let named = finish().and_then(|()| {
            let named = self.name(&partial.name, partial.offer.clone());
            named.map_err(|error| error.to_string())
        });
        named.inspect_err(|_| self.discard(partial))
    }

    /// A complete file of this node gets its name, and becomes known.
    pub fn name(&self, temporary: &OsStr, offer: Offer) -> io::Result<()> {
        self.shelf.rename(temporary, &name_of(offer.what))?;
        self.shelf.sync();
        self.know(offer, true);
        Ok(())
    }

    fn put_beside(&self, name: &OsStr, beside: &[u8]) -> io::Result<()> {
        if beside.is_empty() {
            return Ok(());
        }
        let mut file = self.shelf.new_file(&log_of(name))?;
        file.write_all(beside)?;
        file.sync_all()
    }

    /// Takes the copy, which becomes an image of a rank of this node.
    pub fn take(&self, rank: u32, number: u64) -> Option<Held> {
        lock(&self.held).remove(&What::Image { rank, number })
    }

    /// The file is not needed any more.
    pub fn forget(&self, what: What) {
        let gone = |partial: &mut Partial| {
            let partial = partial.offer.what;
            is_over(partial, what) && partial.number() <= what.number()
        };
        let gone: Vec<Partial> = lock(&self.partial).extract_if(.., gone).collect();
        gone.into_iter().for_each(|partial| self.discard(partial));
        let held = lock(&self.held).remove(&what);
        if let Some(held) = held.filter(|held| held.is_own) {
            self.shelf.remove(&held.name);
            self.shelf.remove(&log_of(&held.name));
        }
    }

    /// This node's pieces of a set.
    pub fn pieces_of(&self, of: u64) -> Vec<What> {
        let held = lock(&self.held);
        let pieces = held
            .keys()
            .filter(|what| matches!(what, What::Piece { set, .. } if *set == of));
        pieces.copied().collect()
    }
}

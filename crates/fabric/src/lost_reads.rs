//! What a rank has read by MPI-IO and overwritten since: it cannot go back to before the read.
//!
//! A life that goes back repeats the read, and finds the later content. The program may then take another course
//! without any sign of it. So the provider notes what the MPI library reads. When it is about to overwrite such a place
//! with other bytes, a word in the node memory says which images count no more. A life that would begin from one of them
//! ends the job with the reason.
//!
//! - ROMIO reads whole blocks, changes a part and writes them back: that is no such case. It does so under a lock (see
//!   [`crate::under_lock`]), or, when all ranks write together, with messages in between. So a program that itself reads
//!   a place, exchanges messages, and writes back the same place before any other is not noticed.
//! - ROMIO keeps shared file pointers in files. Each write there loses the place before it.
//! - What one rank reads and another one overwrites is not noticed.
//!
//! A life that begins alone goes on if the [`read_log`] has all that was read since its image.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_image::Guard;
use resurgo_wire::node_memory::{EXIT_DIVERGED, EXIT_REPORT, control};
use resurgo_wire::undo::{self, Inode};

use crate::node::Node;
use crate::read_log;
use crate::undo::{last_image, look_at};

/// Most places that are kept apart; more of one file become a single one.
const MOST: usize = 512;
/// Places read before so many images are forgotten: no life begins from an older one.
const KEPT: u64 = 8;
/// Most files that are known; of more, the first ones are forgotten.
const MOST_FILES: usize = 256;

/// 1 + the last image that counts no more, in the node memory.
static LOST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// What the rank has received, in the node memory.
static DELIVERIES: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The MPI library has opened a file.
static HAS_FILES: AtomicBool = AtomicBool::new(false);
static SEEN: Mutex<Seen> = Mutex::new(Seen {
    places: Vec::new(),
    last: None,
    files: Vec::new(),
});

struct File {
    inode: Inode,
    born: i128,
    holds_pointer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: Inode,
    from: u64,
    to: u64,
    /// The last image at the time of the read.
    image: u64,
    /// Messages that the rank had received.
    deliveries: u64,
}

struct Seen {
    /// What has been read.
    places: Vec<Place>,
    /// The last read, if nothing has been read or written since.
    last: Option<Place>,
    files: Vec<File>,
}

impl Seen {
    fn file(&mut self, inode: Inode) -> Option<&mut File> {
        self.files.iter_mut().find(|file| file.inode == inode)
    }

    fn has_read(&mut self, place: Place) {
        if let Some(last) = self.last.replace(place) {
            self.add(last);
        }
    }

    fn add(&mut self, new: Place) {
        let touches = |old: &Place| old.file == new.file && old.from <= new.to && new.from <= old.to;
        match self.places.iter_mut().find(|old| touches(old)) {
            Some(old) => {
                (old.from, old.to) = (old.from.min(new.from), old.to.max(new.to));
                old.image = new.image;
            }
            None => self.places.push(new),
        }
        if self.places.len() > MOST {
            self.join(new.file);
        }
    }

    fn join(&mut self, file: Inode) {
        let of_file = self.places.iter().filter(|place| place.file == file);
        let all = of_file.copied().reduce(|one, other| Place {
            file,
            from: one.from.min(other.from),
            to: one.to.max(other.to),
            image: one.image.max(other.image),
            deliveries: 0,
        });
        self.places.retain(|place| place.file != file);
        // Of very many files the oldest places go.
        self.places.drain(..self.places.len().saturating_sub(MOST / 2));
        self.places.extend(all);
    }

    /// This is about to be written. The image at the last read of a part of it, if there was one.
    fn will_write(&mut self, file: Inode, from: u64, to: u64) -> Option<u64> {
        if let Some(last) = self.last.take()
            && !(last.file == file && last.from <= from && to <= last.to && last.deliveries != deliveries())
        {
            self.add(last);
        }
        let touched = |place: &&Place| place.file == file && place.from < to && from < place.to;
        self.places.iter().filter(touched).map(|place| place.image).max()
    }
}

fn seen() -> MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on notes what is lost.
pub fn watch(node: &Node) {
    let deliveries = node.control(node.rank, control::DELIVERIES);
    DELIVERIES.store(std::ptr::from_ref(deliveries).cast_mut(), Ordering::Release);
    let lost = node.control(node.rank, control::LOST_READS);
    LOST.store(std::ptr::from_ref(lost).cast_mut(), Ordering::Release);
}

/// The MPI library has opened the file with this name, which was made at that time.
pub fn has_opened(name: &[u8], inode: Inode, born: i128) {
    let _guard = Guard::new();
    let mut seen = seen();
    let holds_pointer = undo::holds_pointer(name);
    if seen.file(inode).is_some_and(|file| file.born != born) {
        // A former file had this number.
        seen.files.retain(|file| file.inode != inode);
        seen.places.retain(|place| place.file != inode);
        seen.last.take_if(|place| place.file == inode);
    }
    if seen.file(inode).is_none() {
        let more = seen.files.len().saturating_sub(MOST_FILES - 1);
        seen.files.drain(..more);
        seen.files.push(File {
            inode,
            born,
            holds_pointer,
        });
    }
    HAS_FILES.store(true, Ordering::Relaxed);
}

/// Whether the MPI library has opened any file.
pub fn has_files() -> bool {
    HAS_FILES.load(Ordering::Relaxed)
}

/// Whether it has opened this one.
pub fn is_known(file: Inode) -> bool {
    let _guard = Guard::new();
    seen().file(file).is_some()
}

/// Whether ROMIO keeps a shared pointer in the file.
pub fn holds_pointer(file: Inode) -> bool {
    let _guard = Guard::new();
    seen().file(file).is_some_and(|file| file.holds_pointer)
}

fn deliveries() -> u64 {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    unsafe { DELIVERIES.load(Ordering::Acquire).as_ref() }.map_or(0, |count| count.load(Ordering::Relaxed))
}

/// The MPI library has read this.
pub fn has_read(file: Inode, from: u64, bytes: u64) {
    if read_log::is_locked() {
        return;
    }
    let _guard = Guard::new();
    let place = Place {
        file,
        from,
        to: from + bytes,
        image: last_image(),
        deliveries: deliveries(),
    };
    seen().has_read(place);
}

/// The MPI library is about to write this. `is_done`: a former life has written it, and this one does not. Returns whether
/// others must know of it where a life goes on elsewhere: it was read here, or is a shared pointer's first write since the
/// image.
pub fn will_write(fd: RawFd, file: Inode, from: u64, bytes: &[u8], is_done: bool) -> bool {
    let _guard = Guard::new();
    let (mut seen, now) = (seen(), last_image());
    let to = from + bytes.len() as u64;
    let read = seen.will_write(file, from, to);
    if is_done {
        return false;
    }
    let is_pointer = seen.file(file).is_some_and(|file| file.holds_pointer);
    let image = match is_pointer {
        true => Some(now),
        false => read.filter(|_| !has(fd, from, bytes)),
    };
    // SAFETY: the node memory stays mapped, in the same place in every life.
    let lost = unsafe { LOST.load(Ordering::Acquire).as_ref() };
    let before = image
        .zip(lost)
        .map(|(image, lost)| (image, lost.fetch_max(image + 1, Ordering::SeqCst)));
    if is_pointer {
        // Until the lock is given up, and the log has what was read.
        read_log::stop();
    }
    before.is_some_and(|(image, before)| !is_pointer || before <= image)
}

/// The file has these bytes there already.
fn has(fd: RawFd, from: u64, bytes: &[u8]) -> bool {
    look_at(fd, (from, from + bytes.len() as u64), |at, there| {
        bytes[(at - from) as usize..].starts_with(there)
    })
}

/// Image `number` of this process is being taken.
pub fn note_image(number: u64) {
    let mut seen = seen();
    if let Some(last) = seen.last.take() {
        seen.add(last);
    }
    seen.places.retain(|place| place.image + KEPT >= number);
}

/// A life begins, with what the process knows: of the image, or nothing. Ends it if it would read what is lost. Where all
/// begin together the agents have undone what was written, or have said that they cannot.
pub fn begin(node: &Node) {
    read_log::begin();
    let is_alone = !node.begins_together() || node.is_inside(node.rank);
    if is_alone && are_lost(node) && !read_log::is_whole() {
        end(node, &undo::lost_reads(node.rank));
    }
}

/// This rank has read what has been overwritten since.
pub fn are_lost(node: &Node) -> bool {
    node.control(node.rank, control::LOST_READS).load(Ordering::SeqCst) > last_image()
}

/// This life cannot repeat what former ones did, for this reason.
pub fn end(node: &Node, why: &str) -> ! {
    let code = match node.undo().is_some() || node.survives {
        // All return together, or the others are told of its failure.
        true => EXIT_DIVERGED,
        false => EXIT_REPORT,
    };
    node.report_and_exit(why, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Inode = (1, 2);

    fn seen() -> Seen {
        Seen {
            places: Vec::new(),
            last: None,
            files: Vec::new(),
        }
    }

    fn place(from: u64, to: u64, image: u64) -> Place {
        Place {
            file: FILE,
            from,
            to,
            image,
            deliveries: 1,
        }
    }

    #[test]
    fn what_was_read_and_is_overwritten_is_lost() {
        let mut seen = seen();
        assert_eq!(seen.will_write(FILE, 0, 100), None);
        seen.has_read(place(0, 100, 3));
        assert_eq!(seen.will_write(FILE, 100, 200), None);
        assert_eq!(seen.will_write((1, 3), 0, 100), None);
        assert_eq!(seen.will_write(FILE, 99, 101), Some(3));
        seen.has_read(place(50, 60, 4));
        seen.has_read(place(300, 310, 5));
        assert_eq!(
            seen.will_write(FILE, 0, 1),
            Some(4),
            "one place, read last after image 4"
        );
    }

    #[test]
    fn a_block_that_is_read_and_written_back_is_not() {
        let mut seen = seen();
        for from in [0, 512, 1024] {
            seen.has_read(place(from, from + 512, 1));
            assert_eq!(seen.will_write(FILE, from, from + 512), None);
            assert_eq!(seen.will_write(FILE, from + 8, from + 16), None);
        }
        // The program itself reads it: nothing has come in between, or another place.
        let at_once = Place {
            deliveries: 0,
            ..place(0, 512, 1)
        };
        seen.has_read(at_once);
        assert_eq!(seen.will_write(FILE, 0, 512), Some(1));
        seen.has_read(place(4096, 5000, 2));
        seen.has_read(place(2048, 2049, 2));
        assert_eq!(seen.will_write(FILE, 4096, 5000), Some(2));
    }

    #[test]
    fn very_many_places_become_one() {
        let mut seen = seen();
        for number in 0..2000 {
            seen.has_read(place(number * 10, number * 10 + 5, number / 100));
        }
        assert!(seen.places.len() <= MOST + 1);
        assert_eq!(seen.will_write(FILE, 19_980, 19_981), Some(19));
        assert!(seen.will_write(FILE, 6, 7) > Some(10), "as a part of the whole");
        assert_eq!(seen.will_write(FILE, 30_000, 30_001), None);
    }
}

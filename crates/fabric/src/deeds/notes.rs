//! The notes of a rank, in its arena.

use std::fmt::Write;

use super::*;

/// The notes of this rank.
#[derive(Clone, Copy)]
pub(super) struct Table(pub(super) *mut u8);

/// How a call went, as its note says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was about to be made; whether its path was there.
    Begun(bool),
    Done,
    /// It was done, and this rank has removed again what it made.
    Gone,
    Failed(c_int),
}

/// The code of [`Outcome::Gone`]; no error has such a number.
pub(super) const GONE: u64 = 0x4000;

/// A call, as later lives find it again.
#[derive(Clone, Copy)]
pub(super) struct Deed {
    pub(super) hash: u64,
    /// The hash of the path that the call removes or makes.
    pub(super) path: u32,
    pub(super) removes: bool,
}

impl Deed {
    pub(super) fn new(hash: u64, path: Path, removes: bool) -> Deed {
        Deed {
            hash,
            path: path.short(),
            removes,
        }
    }
}

impl Table {
    pub(super) fn of_this_rank() -> Option<Table> {
        let table = TABLE.load(Ordering::Acquire);
        (!table.is_null() && !IS_CHILD.load(Ordering::Relaxed)).then_some(Table(table))
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the table, aligned; only accessed as atomics.
        unsafe { &*self.0.add(at).cast() }
    }

    pub(super) fn noted(&self) -> &AtomicU64 {
        self.word(deeds::COUNT)
    }

    /// The words of note `number`: first the hash; then path, the number's last bits, and outcome.
    pub(super) fn note(&self, number: u64) -> [&AtomicU64; 2] {
        let at = deeds::NOTES + number as usize % deeds::MOST * 16;
        [self.word(at), self.word(at + 8)]
    }

    pub(super) fn put(&self, number: u64, deed: Deed, outcome: Outcome) {
        let [first, second] = self.note(number);
        let code = match outcome {
            Outcome::Begun(was_there) => u64::from(was_there),
            Outcome::Done => 2,
            Outcome::Gone => GONE,
            Outcome::Failed(errno) => 2 + (errno as u64 & 0xfff),
        };
        let removes = u64::from(deed.removes) << 15;
        first.store(deed.hash, Ordering::Relaxed);
        let word = u64::from(deed.path) << 32 | (number & 0xffff) << 16 | removes | code;
        second.store(word, Ordering::Release);
    }

    /// None: a life was killed before it wrote the note.
    pub(super) fn get(&self, number: u64) -> Option<(Deed, Outcome)> {
        let [first, second] = self.note(number).map(|word| word.load(Ordering::Acquire));
        let outcome = match second & 0x7fff {
            code @ 0..=1 => Outcome::Begun(code == 1),
            2 => Outcome::Done,
            GONE => Outcome::Gone,
            code => Outcome::Failed(code as c_int - 2),
        };
        let deed = Deed {
            hash: first,
            path: (second >> 32) as u32,
            removes: second & 0x8000 != 0,
        };
        (second >> 16 & 0xffff == number & 0xffff).then_some((deed, outcome))
    }

    /// The oldest note that still stands. The place behind the newest is that of the next.
    pub(super) fn oldest(&self, noted: u64) -> u64 {
        (noted + 1).saturating_sub(deeds::MOST as u64)
    }

    /// Whether a noted call has removed `path`.
    pub(super) fn has_removed(&self, path: Path) -> bool {
        let (noted, path) = (self.noted().load(Ordering::Acquire), path.short());
        (self.oldest(noted)..noted)
            .filter_map(|number| self.get(number))
            .filter(|(deed, _)| deed.removes && deed.path == path)
            .any(|(_, outcome)| matches!(outcome, Outcome::Done | Outcome::Begun(true)))
    }

    /// The standing notes of calls that made `path`.
    pub(super) fn makers(&self, path: Path) -> impl Iterator<Item = (u64, Deed, Outcome)> {
        let (table, noted, path) = (*self, self.noted().load(Ordering::Acquire), path.short());
        (self.oldest(noted)..noted)
            .filter_map(move |number| table.get(number).map(|(deed, outcome)| (number, deed, outcome)))
            .filter(move |(_, deed, _)| !deed.removes && deed.path == path)
    }

    /// Whether lives of this rank made `path` and did not remove it again. Otherwise the file belongs to another.
    pub(super) fn owns(&self, path: Path) -> bool {
        self.makers(path)
            .any(|(_, _, outcome)| matches!(outcome, Outcome::Done | Outcome::Begun(false)))
    }

    /// Notes that this life has removed `path`, whichever life made it.
    pub(super) fn forget(&self, path: Path) {
        self.makers(path)
            .filter(|(_, _, outcome)| *outcome == Outcome::Done)
            .for_each(|(number, deed, _)| self.put(number, deed, Outcome::Gone));
    }

    /// Leaves a text that the agent tells if the rank comes to a bad end.
    pub(super) fn tell(&self, path: Path, why: &str) {
        let mut text = Text::default();
        let bytes = path.bytes();
        let name = String::from_utf8_lossy(&bytes[..bytes.len().min(deeds::TEXT_BYTES / 4)]);
        let _ = write!(text, "{} {why}", name.escape_debug());
        // SAFETY: inside the table; the length comes last.
        unsafe {
            let to = self.0.add(deeds::TEXT);
            std::ptr::copy_nonoverlapping(text.bytes.as_ptr(), to.add(4), text.length);
            (*to.cast::<AtomicU32>()).store(text.length as u32, Ordering::Release);
        }
    }
}

/// A text for places where the program's memory must not be touched.
pub(super) struct Text {
    bytes: [u8; deeds::TEXT_BYTES],
    length: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            bytes: [0; deeds::TEXT_BYTES],
            length: 0,
        }
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..][..room].copy_from_slice(&text.as_bytes()[..room]);
        self.length += room;
        Ok(())
    }
}

//! What has been taken of one output stream of a rank, over all its lives.
//!
//! A later life prints again what earlier ones printed. [`Taken`] drops it and compares it with hashes of what went before,
//! so that every byte is passed on exactly once and a program that prints something else in its replay is noticed. It is dropped
//! up to the same place in the same line: what differs is mostly a measured time, which may be longer or shorter, and the
//! lines after it are whole all the same.

use serde::{Deserialize, Serialize};

/// Bytes covered by one remembered hash.
const BLOCK: u64 = 4096;

/// Where in a text: how many lines have ended before, and bytes since then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place {
    lines: u64,
    column: u64,
}

impl Place {
    fn pass(&mut self, text: &[u8]) {
        match text.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => {
                self.lines += text[..=last].iter().filter(|byte| **byte == b'\n').count() as u64;
                self.column = (text.len() - last - 1) as u64;
            }
            None => self.column += text.len() as u64,
        }
    }

    /// The bytes of `text`, which begins here, that lie before `end`: no more than the last line has, if it is shorter.
    fn bytes_before(self, end: Place, text: &[u8]) -> usize {
        let (mut at, mut column) = (0, self.column);
        if self.lines < end.lines {
            let missing = (end.lines - self.lines - 1) as usize;
            let mut ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            match ends.nth(missing) {
                Some((last, _)) => (at, column) = (last + 1, 0),
                None => return text.len(),
            }
        }
        let line = text[at..].iter().position(|byte| *byte == b'\n');
        let length = line.unwrap_or(text.len() - at) as u64;
        at + length.min(end.column.saturating_sub(column)) as usize
    }
}

/// One stream of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Taken {
    /// Passed on over all lives: bytes, and where that is.
    bytes: u64,
    place: Place,
    /// Hash of every full block of them.
    blocks: Vec<u64>,
    /// Hash of the last block, which is not full.
    tail: u64,
    /// Seen in this life: bytes, where that is, and the hash of the present block. As above where nothing is repeated.
    seen: u64,
    seen_place: Place,
    seen_tail: u64,
    differs: bool,
}

/// How far a life has printed: where a later life goes on that begins from an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    bytes: u64,
    place: Place,
    /// Hash of the present block.
    tail: u64,
}

impl Printed {
    /// The beginning of the program.
    pub const NOTHING: Printed = Printed {
        bytes: 0,
        place: Place { lines: 0, column: 0 },
        tail: EMPTY,
    };

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// FNV-1a: cheap, and nobody attacks a rank's own output.
fn hash(mut state: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}

const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

impl Default for Taken {
    fn default() -> Taken {
        Taken {
            bytes: 0,
            place: Place::default(),
            blocks: Vec::new(),
            tail: EMPTY,
            seen: 0,
            seen_place: Place::default(),
            seen_tail: EMPTY,
            differs: false,
        }
    }
}

impl Taken {
    /// A new life begins, whose output starts where an earlier one's was at `from`.
    pub fn restarted(&mut self, from: Printed) {
        self.seen = from.bytes;
        self.seen_place = from.place;
        self.seen_tail = from.tail;
    }

    /// How far the present life has printed.
    pub fn printed(&self) -> Printed {
        Printed {
            bytes: self.seen,
            place: self.seen_place,
            tail: self.seen_tail,
        }
    }

    /// Bytes passed on that this life has not printed yet; if it prints others, about so many, but 0 only if it is there.
    pub fn behind(&self) -> u64 {
        if self.seen_place < self.place {
            self.bytes.saturating_sub(self.seen).max(1)
        } else {
            0
        }
    }

    /// Gives up waiting for what this life has not printed again.
    pub fn forgive(&mut self) {
        self.seen = self.bytes;
        self.seen_place = self.place;
        self.seen_tail = self.tail;
    }

    /// Takes what the present life has printed next. Returns the part that is new, and, the first time
    /// that a repeated part is not what it was, the offset of the block that differs.
    pub fn accept<'a>(&mut self, chunk: &'a [u8]) -> (&'a [u8], Option<u64>) {
        let mut differs_at = None;
        let mut new = chunk;
        if self.behind() > 0 {
            let (repeated, rest) = chunk.split_at(self.seen_place.bytes_before(self.place, chunk));
            new = rest;
            differs_at = self.compare(repeated);
            self.seen_place.pass(repeated);
            if self.behind() > 0 && new.is_empty() {
                return (new, self.tell(differs_at));
            }
            if (self.seen, self.seen_tail) != (self.bytes, self.tail) {
                differs_at = differs_at.or(Some(self.seen.min(self.bytes).saturating_sub(1) / BLOCK * BLOCK));
            }
        }
        self.append(new);
        self.forgive();
        (new, self.tell(differs_at))
    }

    /// A difference is told once.
    fn tell(&mut self, differs_at: Option<u64>) -> Option<u64> {
        differs_at.filter(|_| !std::mem::replace(&mut self.differs, true))
    }

    /// Goes on over what is repeated; the offset of the first block that differs.
    fn compare(&mut self, mut repeated: &[u8]) -> Option<u64> {
        let mut differs_at = None;
        while !repeated.is_empty() {
            let take = ((BLOCK - self.seen % BLOCK) as usize).min(repeated.len());
            self.seen_tail = hash(self.seen_tail, &repeated[..take]);
            self.seen += take as u64;
            repeated = &repeated[take..];
            if self.seen.is_multiple_of(BLOCK) {
                let block = self.seen / BLOCK - 1;
                if self.blocks.get(block as usize) != Some(&self.seen_tail) {
                    differs_at = differs_at.or(Some(block * BLOCK));
                }
                self.seen_tail = EMPTY;
            }
        }
        differs_at
    }

    fn append(&mut self, mut chunk: &[u8]) {
        self.place.pass(chunk);
        while !chunk.is_empty() {
            let take = ((BLOCK - self.bytes % BLOCK) as usize).min(chunk.len());
            self.tail = hash(self.tail, &chunk[..take]);
            self.bytes += take as u64;
            chunk = &chunk[take..];
            if self.bytes.is_multiple_of(BLOCK) {
                self.blocks.push(self.tail);
                self.tail = EMPTY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
    }

    /// Prints `all` in pieces of `piece` bytes; what came through and the first difference.
    fn print(taken: &mut Taken, all: &[u8], piece: usize) -> (Vec<u8>, Option<u64>) {
        let mut new = Vec::new();
        let mut differs = None;
        for part in all.chunks(piece) {
            let (fresh, difference) = taken.accept(part);
            new.extend_from_slice(fresh);
            differs = differs.or(difference);
        }
        (new, differs)
    }

    #[test]
    fn every_byte_comes_through_once_wherever_lives_end() {
        let all = text(20_000);
        for (first, second) in [
            (0, 0),
            (1, 1),
            (4096, 4096),
            (5000, 3000),
            (12_288, 12_289),
            (20_000, 20_000),
        ] {
            for piece in [1, 1000, 4096, 65_536] {
                let mut taken = Taken::default();
                let mut got = Vec::new();
                for end in [first, second, all.len()] {
                    taken.restarted(Printed::NOTHING);
                    let (new, differs) = print(&mut taken, &all[..end], piece);
                    got.extend(new);
                    assert_eq!(differs, None);
                }
                assert!(got == all, "{first} {second} {piece}");
                assert_eq!(taken.behind(), 0);
            }
        }
    }

    #[test]
    fn other_bytes_in_a_replay_are_noticed_once() {
        let all = text(10_000);
        for at in [0, 4095, 4096, 9999] {
            let mut taken = Taken::default();
            print(&mut taken, &all, 777);
            let mut other = all.clone();
            other[at] ^= 1;
            taken.restarted(Printed::NOTHING);
            let (new, differs) = print(&mut taken, &other, 777);
            assert!(new.is_empty());
            assert_eq!(differs, Some(at as u64 / BLOCK * BLOCK));
            taken.restarted(Printed::NOTHING);
            assert_eq!(print(&mut taken, &other, 777).1, None);
        }
    }

    #[test]
    fn a_life_from_an_image_repeats_only_what_came_after_it() {
        let all = text(20_000);
        for image in [0, 1, 4095, 4096, 5000, 9000] {
            let mut taken = Taken::default();
            taken.accept(&all[..image]);
            let from = taken.printed();
            taken.accept(&all[image..9000]);
            taken.restarted(from);
            assert_eq!(taken.behind(), 9000 - image as u64);
            let (new, differs) = print(&mut taken, &all[image..], 1000);
            assert!(new == all[9000..] && differs.is_none(), "{image}");
        }
    }

    #[test]
    fn lines_after_one_of_another_length_are_whole() {
        let first = b"begin\nstep 1: 0.12 s\nstep 2: 9.9 s\nresult 17\nend\n";
        let second = b"begin\nstep 1: 0.1 s\nstep 2: 10.01 s\nresult 17\nend\n";
        for lives in [[&first[..], second], [second, first]] {
            for end in 0..first.len().min(second.len()) {
                for piece in [1, 3, 7, 100] {
                    let mut taken = Taken::default();
                    let mut got = print(&mut taken, &lives[0][..end], piece).0;
                    taken.restarted(Printed::NOTHING);
                    got.extend(print(&mut taken, lives[1], piece).0);
                    let text = String::from_utf8(got).unwrap();
                    let lines: Vec<&str> = text.lines().collect();
                    assert_eq!(
                        (lines.len(), lines[0], lines[3], lines[4]),
                        (5, "begin", "result 17", "end"),
                        "{text}"
                    );
                    assert_eq!(taken.behind(), 0);
                }
            }
        }
    }

    #[test]
    fn a_line_that_is_shorter_in_the_replay_ends_where_it_ended() {
        let mut taken = Taken::default();
        taken.accept(b"took 10.5");
        taken.restarted(Printed::NOTHING);
        assert_eq!(taken.accept(b"took 9"), (&b""[..], None));
        assert!(taken.behind() > 0);
        assert_eq!(taken.accept(b"\nend"), (&b"\nend"[..], Some(0)));
        let from = taken.printed();
        assert_eq!(taken.accept(b" of it\n"), (&b" of it\n"[..], None));
        taken.restarted(from);
        assert_eq!(taken.accept(b" of it\nnew"), (&b"new"[..], None));
    }

    #[test]
    fn what_is_missing_is_counted_and_can_be_forgiven() {
        let mut taken = Taken::default();
        taken.accept(&text(100));
        taken.restarted(Printed::NOTHING);
        taken.accept(&text(40));
        assert_eq!(taken.behind(), 60);
        taken.forgive();
        assert_eq!(taken.behind(), 0);
        assert_eq!(taken.accept(b"new").0, b"new");
        assert_eq!(taken.bytes, 103);
    }
}

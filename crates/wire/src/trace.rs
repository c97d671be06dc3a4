//! The trace of a rank (`--trace`): records in a ring in its arena, which outlives its processes.
//!
//! ```text
//! 0        head of the ring, one page
//! HEAD     records of RECORD bytes each, a power of two of them, used in turn
//! ```
//!
//! A record is eight `u64`: 1 + its number, begin, end, what it is, peer, tag, bytes, number of the message. The first
//! word is written last. So a record is whole if its place holds the number that it must have; a process that dies
//! while it writes one leaves another number there.

mod calls;

pub use calls::{CALLS, call_number};

/// Bytes of the head of a ring, and of a record.
pub const HEAD: usize = 4096;
pub const RECORD: usize = 64;
const WORDS: usize = RECORD / 8;

/// Least and most memory for the records of a rank.
pub const LEAST_MEMORY: u64 = 64 << 10;
pub const MOST_MEMORY: u64 = 4 << 30;

/// Offsets in the head of a ring, each of a `u64`.
pub mod head {
    /// Records that have been begun, over all lives.
    pub const BEGUN: usize = 0;
    /// [`super::Clock`] as a number. The agent writes it before each life.
    pub const CLOCK: usize = 8;
    /// The rank notes the time of both its clocks when the first one has reached this.
    pub const NOTE_AT: usize = 16;
    /// The first and the last note: by the processor's counter, and by CLOCK_MONOTONIC in nanoseconds.
    pub const FIRST: [usize; 2] = [64, 72];
    pub const LAST: [usize; 2] = [80, 88];
    /// Ticks of the counter in a millisecond, about.
    pub const RATE: usize = 96;
    /// The call of MPI that runs: 1 + its number, 0 for none; and since when. Written by the first thread that calls.
    pub const CALL: usize = 104;
    pub const CALL_BEGAN: usize = 112;
    /// Bytes of all of them.
    pub const BYTES: usize = 120;
}

/// The clock of the times in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Nothing is recorded.
    Off = 0,
    /// The processor's counter.
    Ticks = 1,
    /// CLOCK_MONOTONIC in nanoseconds, where the counter is no clock.
    Nanoseconds = 2,
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A message is sent; its number on the channel, 0 if it has none yet.
    Send = 1,
    /// A message is taken from its channel.
    Delivery = 2,
    /// The rank sleeps, as it has no news.
    Wait = 3,
    /// A life of this number begins, or goes on from an image: it has so many deliveries (`bytes`) to repeat.
    Life = 4,
    /// The life of this number has repeated so many deliveries (`bytes`).
    Replay = 5,
    /// A call of MPI. It ends when it begins: its process has died meanwhile.
    Call = 6,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Send,
        Kind::Delivery,
        Kind::Wait,
        Kind::Life,
        Kind::Replay,
        Kind::Call,
    ];
}

/// Something that has happened in a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub kind: Kind,
    /// A former life has done it, too.
    pub is_repeated: bool,
    /// By the ring's clock.
    pub begin: u64,
    pub end: u64,
    /// The other rank.
    pub peer: Option<u32>,
    /// The bits by which MPI matches messages; none: it does not match this one.
    pub tag: Option<u64>,
    pub bytes: u64,
    pub number: u64,
    /// Of [`CALLS`], and the number of the calling thread, from 0.
    pub call: u16,
    pub thread: u32,
}

impl Record {
    /// Something without a peer.
    pub fn alone(kind: Kind, begin: u64, end: u64) -> Record {
        Record {
            kind,
            is_repeated: false,
            begin,
            end,
            peer: None,
            tag: None,
            bytes: 0,
            number: 0,
            call: 0,
            thread: 0,
        }
    }

    /// Its words, but the first.
    #[inline]
    pub fn words(&self) -> [u64; WORDS - 1] {
        let flags = u64::from(self.is_repeated) << 8 | u64::from(self.tag.is_some()) << 9;
        let what = self.kind as u64 | flags | u64::from(self.call) << 16 | u64::from(self.thread) << 32;
        let peer = self.peer.map_or(0, |peer| u64::from(peer) + 1);
        let tag = self.tag.unwrap_or(0);
        [self.begin, self.end, what, peer, tag, self.bytes, self.number]
    }

    fn of_words([begin, end, what, peer, tag, bytes, number]: [u64; WORDS - 1]) -> Option<Record> {
        Some(Record {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u64 == what & 0xff)?,
            is_repeated: what >> 8 & 1 != 0,
            begin,
            end,
            peer: peer.checked_sub(1).map(|peer| peer as u32),
            tag: (what >> 9 & 1 != 0).then_some(tag),
            bytes,
            number,
            call: (what >> 16) as u16,
            thread: (what >> 32) as u32,
        })
    }
}

/// Records in the ring of a rank for which the user gives so much memory: a power of two.
pub const fn records(memory: u64) -> usize {
    let records = memory as usize / RECORD;
    if records == 0 { 0 } else { 1 << records.ilog2() }
}

/// Bytes of a ring of so many records.
pub const fn ring_bytes(records: usize) -> usize {
    if records == 0 { 0 } else { HEAD + records * RECORD }
}

/// The records at the beginning of `bytes`, one behind the other, the first with the number `first`; none in the place
/// of one that is not whole.
pub fn records_of(bytes: &[u8], first: u64) -> impl Iterator<Item = Option<Record>> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    records.iter().zip(first..).map(|(record, number)| {
        let (words, _) = record.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let is_whole = words.next() == Some(number + 1);
        let mut rest = [0; WORDS - 1];
        rest.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        Record::of_words(rest).filter(|_| is_whole)
    })
}

/// Both clocks of a rank, as its ring has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    pub first: [u64; 2],
    pub last: [u64; 2],
    pub rate: u64,
    pub is_ticks: bool,
}

impl Times {
    /// A time of the ring by CLOCK_MONOTONIC, in nanoseconds.
    pub fn nanoseconds(&self, time: u64) -> u64 {
        if !self.is_ticks {
            return time;
        }
        let [from, from_ns] = self.first;
        let [ticks, ns] = [self.last[0].saturating_sub(from), self.last[1].saturating_sub(from_ns)];
        // Two notes that are close to each other tell less of the rate than the rank knows.
        let (ns, ticks) = match ns > 500_000 {
            true => (i128::from(ns), i128::from(ticks.max(1))),
            false => (1_000_000, i128::from(self.rate.max(1))),
        };
        let since = (i128::from(time) - i128::from(from)) * ns / ticks;
        (i128::from(from_ns) + since).max(0) as u64
    }
}

/// What a piece is of all that the dispatcher gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// The newest, while ranks run.
    #[default]
    News,
    /// A part of all that the ring holds at the end, and the last one.
    Whole,
    WholeEnds,
}

impl Part {
    const ALL: [Part; 3] = [Part::News, Part::Whole, Part::WholeEnds];
}

/// A part of a rank's ring on its way to the dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    pub rank: u32,
    pub part: Part,
    /// Number of the first record.
    pub first: u64,
    pub times: Times,
    /// See [`head::CALL`], and since when.
    pub call: [u64; 2],
    /// Records, one behind the other.
    pub records: Vec<u8>,
}

impl Piece {
    const HEAD: usize = 4 + 1 + 1 + 8 * 8;

    /// Its bytes before the records.
    pub fn head(&self) -> [u8; Piece::HEAD] {
        let mut head = [0; Piece::HEAD];
        head[..4].copy_from_slice(&self.rank.to_le_bytes());
        head[4..6].copy_from_slice(&[self.part as u8, self.times.is_ticks.into()]);
        let Times { first, last, rate, .. } = self.times;
        let [call, began] = self.call;
        let words = [self.first, first[0], first[1], last[0], last[1], rate, call, began];
        for (place, word) in head[6..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        head
    }

    /// The piece of this head and these records; none: that is no piece.
    pub fn of(bytes: &[u8]) -> Option<Piece> {
        let (head, records) = bytes.split_at_checked(Piece::HEAD)?;
        let (rank, rest) = head.split_first_chunk::<4>()?;
        let word = |at: usize| {
            rest[2..]
                .as_chunks::<8>()
                .0
                .get(at)
                .map(|word| u64::from_le_bytes(*word))
        };
        Some(Piece {
            rank: u32::from_le_bytes(*rank),
            part: *Part::ALL.get(usize::from(rest[0]))?,
            first: word(0)?,
            times: Times {
                first: [word(1)?, word(2)?],
                last: [word(3)?, word(4)?],
                rate: word(5)?,
                is_ticks: rest[1] != 0,
            },
            call: [word(6)?, word(7)?],
            records: records.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(record: &Record, number: u64) -> Vec<u8> {
        let words = [number + 1].into_iter().chain(record.words());
        words.flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let send = Record {
            is_repeated: true,
            peer: Some(7),
            tag: Some(u64::MAX),
            bytes: 1 << 40,
            number: 9,
            call: u16::MAX,
            thread: 77,
            ..Record::alone(Kind::Send, 3, 4)
        };
        let wait = Record::alone(Kind::Wait, 5, 6);
        let mut bytes = [written(&send, 10), written(&wait, 11), written(&wait, 11)].concat();
        let read: Vec<_> = records_of(&bytes, 10).collect();
        assert_eq!(
            read,
            [Some(send), Some(wait), None],
            "the third is older than it must be"
        );
        bytes[24] = 77;
        assert_eq!(records_of(&bytes, 10).next(), Some(None));
    }

    #[test]
    fn rings_have_a_power_of_two_of_records() {
        assert_eq!([0, 63, 64, 200, 16 << 20].map(records), [0, 0, 1, 2, 1 << 18]);
        assert_eq!(ring_bytes(0), 0);
        assert_eq!(ring_bytes(4), HEAD + 4 * RECORD);
    }

    #[test]
    fn ticks_are_nanoseconds_on_the_line_of_both_notes() {
        let mut times = Times {
            first: [1000, 5_000_000_000],
            last: [1000, 5_000_000_000],
            rate: 2_000_000,
            is_ticks: true,
        };
        assert_eq!(times.nanoseconds(1000 + 2_000), 5_000_001_000, "by the rate");
        assert_eq!(times.nanoseconds(0), 4_999_999_500);
        times.last = [1000 + 400_000_000, 5_100_000_000];
        assert_eq!(times.nanoseconds(1000 + 4_000), 5_000_001_000, "by the notes");
        times.is_ticks = false;
        assert_eq!(times.nanoseconds(77), 77);
    }

    #[test]
    fn pieces_survive_the_wire() {
        let piece = Piece {
            rank: 3,
            part: Part::WholeEnds,
            first: 1 << 33,
            times: Times {
                first: [1, 2],
                last: [3, 4],
                rate: 5,
                is_ticks: true,
            },
            call: [6, 7],
            records: vec![1; 128],
        };
        let bytes = [&piece.head()[..], &piece.records].concat();
        assert_eq!(Piece::of(&bytes), Some(piece));
        assert_eq!(Piece::of(&bytes[..20]), None);
    }
}

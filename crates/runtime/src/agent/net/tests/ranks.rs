//! Ranks' work on their logs, as the mover sees it: a small version of the provider's `log` and `doorbell`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nix::sys::eventfd::EventFd;
use resurgo_wire::entry::{self, ALIGN, HEADER, Kind, Mark, PAYLOAD_END};
use resurgo_wire::mesh::Table;
use resurgo_wire::node_memory::{self as nm, SEGMENT, arena, control, header};

use super::super::mapped::Mapped;
use super::super::tail::Tail;

const PIECE: usize = 12 << 10;
/// Most segments of a channel whose receiver has not read them.
const WINDOW: usize = 3;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 ^ self.0 >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn mixed(source: usize, destination: usize, number: u64, seed: u64) -> Random {
    Random((source as u64) << 40 ^ (destination as u64) << 20 ^ number ^ seed << 50)
}

/// Bytes of a message: many short ones, some of up to 1 MiB.
pub fn length(source: usize, destination: usize, number: u64, seed: u64) -> usize {
    let mut random = mixed(source, destination, number, seed);
    match random.below(8) {
        0 => 0,
        1 => random.below(1 << 20),
        2 | 3 => random.below(40 << 10),
        _ => random.below(200),
    }
}

/// Its content from byte `from` on.
fn content(source: usize, destination: usize, number: u64, seed: u64, from: usize, bytes: &mut [u8]) {
    let key = mixed(source, destination, number, seed).next() as usize;
    let all = bytes.iter_mut().zip(from..);
    all.for_each(|(byte, at)| *byte = ((key + at).wrapping_mul(0x9e37_79b1) >> 13) as u8);
}

struct Log {
    segment: usize,
    place: usize,
    begun: u64,
    /// Serial and slot.
    segments: VecDeque<(u64, usize)>,
    /// How many segments stood before them.
    gone: usize,
    consumed: u64,
    /// Written bytes of the present message.
    done: Option<usize>,
}

/// A place where a log can be cut off, with its segments at that time.
#[derive(Clone)]
pub struct Place {
    segment: usize,
    place: usize,
    begun: u64,
    /// From the first one that there has ever been.
    segments: usize,
    done: Option<usize>,
}

pub struct Sender<'a> {
    memory: &'a Arc<Mapped>,
    bell: &'a EventFd,
    rank: usize,
    logs: bool,
    serial: u64,
    taken: usize,
    free: VecDeque<usize>,
    channels: Vec<Log>,
    pub seed: u64,
}

impl<'a> Sender<'a> {
    pub fn new(memory: &'a Arc<Mapped>, bell: &'a EventFd, rank: usize, logs: bool, seed: u64) -> Self {
        let log = || Log {
            segment: 0,
            place: 0,
            begun: 0,
            segments: VecDeque::new(),
            gone: 0,
            consumed: 0,
            done: None,
        };
        Sender {
            memory,
            bell,
            rank,
            logs,
            serial: 0,
            taken: 0,
            free: VecDeque::new(),
            channels: (0..memory.layout.size).map(|_| log()).collect(),
            seed,
        }
    }

    fn table(&self, rank: usize, table: Table, index: usize) -> &std::sync::atomic::AtomicU64 {
        let layout = &self.memory.layout;
        self.memory.word(layout.arena(rank) + table.place(layout, index))
    }

    /// As `doorbell::ring` for a rank of another node.
    pub fn ring(&self, destination: usize) {
        fence(Ordering::SeqCst);
        let bit = 1u64 << self.rank;
        let ready = self.memory.control(destination, control::READY.item(0));
        if ready.load(Ordering::Relaxed) & bit == 0 {
            ready.fetch_or(bit, Ordering::SeqCst);
            self.memory
                .control(destination, control::READY_SUMMARY)
                .fetch_or(1, Ordering::SeqCst);
        }
        let sleeping = self.memory.control32(destination, control::SLEEPING);
        assert_eq!(sleeping.load(Ordering::Relaxed), nm::ELSEWHERE);
        let news = self.memory.header(header::NEWS.item(0));
        if news.load(Ordering::Relaxed) & 1 << destination == 0 {
            news.fetch_or(1 << destination, Ordering::SeqCst);
        }
        if self.memory.header32(header::MOVER_SLEEPS).load(Ordering::SeqCst) != 0 {
            self.bell.write(1).unwrap();
        }
    }

    /// This rank has read so many segments more of the channel from `source`.
    pub fn consumed(&self, source: usize, segments: u64) {
        self.table(self.rank, Table::Consumed, source)
            .fetch_add(segments, Ordering::SeqCst);
        self.ring(source);
    }

    /// Frees segments that the receiver does not need.
    fn reclaim(&mut self, destination: usize) {
        if self.logs {
            let oldest = self.memory.arena32(destination, arena::OLDEST_IMAGE);
            let needed = loop {
                let image = oldest.load(Ordering::Acquire);
                if image == 0 {
                    break 0;
                }
                let slot = Table::Cursor(image as u8 - 1);
                let needed = self.table(destination, slot, self.rank).load(Ordering::Acquire);
                if oldest.load(Ordering::SeqCst) == image {
                    break needed;
                }
            };
            let log = &mut self.channels[destination];
            let forgotten = log.segments.iter().take_while(|(serial, _)| *serial < needed).count();
            if forgotten > 0 {
                let (serial, slot) = log.segments[forgotten];
                let gone: Vec<_> = log.segments.drain(..forgotten).collect();
                log.gone += forgotten;
                self.table(self.rank, Table::Channel, destination)
                    .store(nm::reference(serial, slot), Ordering::Release);
                self.free.extend(gone.iter().map(|(_, slot)| *slot));
            }
        } else {
            let consumed = self
                .table(destination, Table::Consumed, self.rank)
                .load(Ordering::Acquire);
            let log = &mut self.channels[destination];
            while log.consumed < consumed {
                log.consumed += 1;
                let (_, slot) = log.segments.pop_front().expect("only what has been sent is read");
                self.free.push_back(slot);
            }
        }
    }

    fn next_segment(&mut self, destination: usize) -> bool {
        (0..self.channels.len()).for_each(|other| self.reclaim(other));
        if !self.logs && self.channels[destination].segments.len() >= WINDOW {
            return false;
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.taken < self.memory.layout.log_segments => {
                self.taken += 1;
                self.taken - 1
            }
            None => return false,
        };
        let serial = self.serial;
        self.serial += 1;
        let reference = nm::reference(serial, slot);
        let fresh = self.memory.segment(self.rank, slot);
        let log = &self.channels[destination];
        self.memory.word(fresh).store(log.begun, Ordering::Relaxed);
        self.memory.word(fresh + ALIGN).store(0, Ordering::Relaxed);
        if log.segment == 0 {
            let channel = self.table(self.rank, Table::Channel, destination);
            channel.store(reference, Ordering::Release);
        } else {
            let at = log.segment + log.place;
            self.memory.word(at + entry::TOTAL).store(reference, Ordering::Relaxed);
            let jump = Mark::new(Kind::Jump, 0, 0, 0).0;
            self.memory.word(at).store(jump, Ordering::Release);
        }
        let log = &mut self.channels[destination];
        log.segments.push_back((serial, slot));
        (log.segment, log.place) = (fresh, ALIGN);
        true
    }

    /// Writes as much of message `number` as there is room for. True: all of it is there.
    pub fn append(&mut self, destination: usize, number: u64, length: usize) -> bool {
        let rank = self.rank;
        let seed = self.seed;
        let mut bytes = [0; PIECE];
        loop {
            let log = &self.channels[destination];
            let done = log.done.unwrap_or(0);
            if log.done.is_some() && done == length {
                self.channels[destination].done = None;
                return true;
            }
            if (log.segment == 0 || log.place + HEADER > PAYLOAD_END) && !self.next_segment(destination) {
                return false;
            }
            let log = &mut self.channels[destination];
            let piece = (length - done).min(PAYLOAD_END - log.place - HEADER).min(PIECE);
            let at = log.segment + log.place;
            content(rank, destination, number, seed, done, &mut bytes[..piece]);
            self.memory.write(at + HEADER, &bytes[..piece]);
            let next = entry::next(log.place, piece);
            self.memory.word(log.segment + next).store(0, Ordering::Relaxed);
            let words = if log.done.is_none() {
                log.begun += 1;
                [number, length as u64, 0]
            } else {
                [0, done as u64, 0]
            };
            for (word, field) in words.into_iter().zip([entry::TAG, entry::TOTAL, entry::DATA]) {
                self.memory.word(at + field).store(word, Ordering::Relaxed);
            }
            let kind = if log.done.is_none() { Kind::Tagged } else { Kind::More };
            let mark = Mark::new(kind, 0, 0, piece).0;
            self.memory.word(at).store(mark, Ordering::Release);
            log.place = next;
            log.done = Some(done + piece);
            self.ring(destination);
        }
    }

    pub fn place(&self, destination: usize) -> Place {
        let log = &self.channels[destination];
        Place {
            segment: log.segment,
            place: log.place,
            begun: log.begun,
            segments: log.gone + log.segments.len(),
            done: log.done,
        }
    }

    /// As a rank that has returned to a wave: voids what is after this place. Returns whether a message has begun there.
    pub fn cut_off(&mut self, destination: usize, to: Place) -> bool {
        let log = &mut self.channels[destination];
        let gone: Vec<_> = log.segments.drain(to.segments - log.gone..).collect();
        (log.segment, log.place, log.begun, log.done) = (to.segment, to.place, to.begun, to.done);
        match to.segment {
            0 => {
                let channel = self.table(self.rank, Table::Channel, destination);
                channel.store(0, Ordering::Release);
            }
            segment => self.memory.word(segment + to.place).store(0, Ordering::Release),
        }
        self.free.extend(gone.iter().map(|(_, slot)| *slot));
        to.done.is_some()
    }
}

#[derive(Clone)]
pub struct Receiver<'a> {
    memory: &'a Arc<Mapped>,
    pub source: usize,
    rank: usize,
    reference: u64,
    segment: usize,
    place: usize,
    pub received: u64,
    /// Received bytes of the present message.
    done: Option<usize>,
    /// How long messages are, if not as [`length`] says.
    pub length: Option<fn(u64) -> usize>,
}

impl<'a> Receiver<'a> {
    pub fn new(memory: &'a Arc<Mapped>, source: usize, rank: usize) -> Self {
        Receiver {
            memory,
            source,
            rank,
            reference: 0,
            segment: 0,
            place: 0,
            received: 0,
            done: None,
            length: None,
        }
    }

    /// Of the segment that is being read.
    pub fn serial(&self) -> u64 {
        self.reference
            .checked_sub(1)
            .map_or(0, |_| nm::dereference(self.reference).0)
    }

    /// The place up to which it has read.
    pub fn tail(&self) -> Tail {
        Tail {
            reference: self.reference,
            place: self.place,
        }
    }

    pub fn describe(&self) -> String {
        let (source, received, tail) = (self.source, self.received, self.tail());
        format!("{received} of {source} up to {tail:x?}")
    }

    fn enter(&mut self, reference: u64) {
        let (_, slot) = nm::dereference(reference);
        self.reference = reference;
        (self.segment, self.place) = (self.memory.segment(self.source, slot), ALIGN);
    }

    /// Takes the next entry, which must be as sent. Returns the number of segments read to their end.
    pub fn receive(&mut self, seed: u64) -> Option<u64> {
        if self.segment == 0 {
            let layout = &self.memory.layout;
            let at = layout.arena(self.source) + Table::Channel.place(layout, self.rank);
            match self.memory.word(at).load(Ordering::Acquire) {
                0 => return None,
                reference => self.enter(reference),
            }
        }
        let mut segments = 0;
        loop {
            let at = self.segment + self.place;
            let mark = Mark(self.memory.word(at).load(Ordering::Acquire));
            if mark.0 == 0 {
                return (segments > 0).then_some(segments);
            }
            if mark.is_jump() {
                self.enter(self.memory.word(at + entry::TOTAL).load(Ordering::Relaxed));
                segments += 1;
                continue;
            }
            self.check(at, mark, seed);
            self.place = entry::next(self.place, mark.bytes());
            if self.done.is_none() {
                return Some(segments);
            }
        }
    }

    fn check(&mut self, at: usize, mark: Mark, seed: u64) {
        let word = |field: usize| self.memory.word(at + field).load(Ordering::Relaxed);
        let number = self.received;
        let expected = match self.length {
            Some(length) => length(number),
            None => length(self.source, self.rank, number, seed),
        };
        let done = match self.done {
            None => {
                assert_eq!(
                    (mark.kind(), word(entry::TAG), word(entry::TOTAL)),
                    (Kind::Tagged, number, expected as u64)
                );
                0
            }
            Some(done) => {
                assert_eq!((mark.kind(), word(entry::TOTAL)), (Kind::More, done as u64));
                done
            }
        };
        let mut bytes = vec![0; mark.bytes()];
        let mut wanted = bytes.clone();
        assert!(bytes.len() <= SEGMENT);
        self.memory.read(at + HEADER, &mut bytes);
        content(self.source, self.rank, number, seed, done, &mut wanted);
        assert!(
            bytes == wanted,
            "message {number} from {} to {}",
            self.source,
            self.rank
        );
        self.done = Some(done + bytes.len()).filter(|done| *done < expected);
        self.received += u64::from(self.done.is_none());
    }
}

//! The copied part of a channel's log, and what follows.

use std::sync::atomic::{Ordering, fence};

use resurgo_wire::entry::{self, ALIGN, HEADER, KINDS, Mark, PAYLOAD_END, padded};
use resurgo_wire::node_memory as nm;

use super::mapped::Mapped;

/// A place in a channel's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tail {
    /// Of the segment; 0: before the first.
    pub reference: u64,
    pub place: usize,
}

/// Consecutive published entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub at: Tail,
    pub end: usize,
    /// The segment that the last entry leads to; 0: the log ends here, for now.
    pub next: u64,
}

/// A rank has written a damaged log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} has written something else than a message log into its part of the node memory")]
pub struct Damaged {
    pub rank: usize,
}

/// The content of a place.
pub enum At {
    /// No entry yet.
    End,
    /// An entry; the next one begins there.
    Entry(usize),
    Jump(u64),
}

impl Tail {
    /// The place in a word of the node memory.
    pub fn of(word: u64) -> Tail {
        let (reference, place) = entry::place_of(word);
        Tail { reference, place }
    }

    /// The place as one word.
    pub fn word(self) -> u64 {
        entry::place_word(self.reference, self.place)
    }

    pub fn first(reference: u64) -> Tail {
        Tail {
            reference,
            place: ALIGN,
        }
    }

    /// The offset of `rank`'s segment with this place.
    pub fn segment(self, memory: &Mapped, rank: usize) -> Result<usize, Damaged> {
        match self.reference {
            0 => Err(Damaged { rank }),
            reference => match nm::dereference(reference).1 {
                slot if slot < memory.layout.log_segments => Ok(memory.segment(rank, slot)),
                _ => Err(Damaged { rank }),
            },
        }
    }

    /// What lies there.
    ///
    /// # Errors
    /// It is no log.
    pub fn look(self, memory: &Mapped, rank: usize) -> Result<At, Damaged> {
        let at = self.segment(memory, rank)? + self.place;
        let mark = Mark(memory.word(at).load(Ordering::Acquire));
        if mark.0 == 0 {
            return Ok(At::End);
        }
        if mark.is_jump() {
            let next = memory.word(at + entry::TOTAL).load(Ordering::Relaxed);
            Tail::first(next).segment(memory, rank)?;
            return Ok(At::Jump(next));
        }
        let (piggyback, _) = match memory.layout.piggybacks {
            true => mark.piggyback(),
            false => (0, false),
        };
        let next = entry::next(self.place, padded(piggyback).saturating_add(mark.bytes()));
        match (1..=KINDS.len()).contains(&((mark.0 & 0xff) as usize)) && next <= PAYLOAD_END {
            true => Ok(At::Entry(next)),
            false => Err(Damaged { rank }),
        }
    }

    /// The entries that `rank` has published from here on in this segment.
    ///
    /// # Errors
    /// The log is damaged.
    pub fn run(self, memory: &Mapped, rank: usize) -> Result<Run, Damaged> {
        let (mut end, mut next) = (self, 0);
        loop {
            match end.look(memory, rank)? {
                At::End => break,
                At::Entry(place) => end.place = place,
                At::Jump(reference) => {
                    (end.place, next) = (end.place + HEADER, reference);
                    break;
                }
            }
        }
        Ok(Run {
            at: self,
            end: end.place,
            next,
        })
    }

    /// Whether `rank` has published anything from here on.
    ///
    /// # Errors
    /// The log is damaged.
    pub fn has_more(self, memory: &Mapped, rank: usize) -> Result<bool, Damaged> {
        Ok(!matches!(self.look(memory, rank)?, At::End))
    }

    /// The present end of the log from here on.
    ///
    /// # Errors
    /// The log is damaged.
    pub fn end(self, memory: &Mapped, rank: usize) -> Result<Tail, Damaged> {
        let mut at = self;
        loop {
            let run = at.run(memory, rank)?;
            if run.is_empty() {
                return Ok(at);
            }
            at = run.behind();
        }
    }

    /// The log's first segment (0: none), and the place up to which the log is as before. The place differs where the
    /// log was cut off earlier: the rest is void.
    ///
    /// `head` reads the first segment. Meanwhile the rank may advance it and reuse the segments before it for another
    /// channel: then the search starts again.
    ///
    /// # Errors
    /// The log is damaged.
    pub fn settle(self, memory: &Mapped, rank: usize, mut head: impl FnMut() -> u64) -> Result<(u64, Tail), Damaged> {
        loop {
            let first = head();
            let found = match first {
                0 => Ok(Tail::default()),
                first => self.find(memory, rank, first),
            };
            fence(Ordering::Acquire);
            if head() == first {
                return found.map(|tail| (first, tail));
            }
        }
    }

    /// This place, or the end of the log that begins in segment `first` if the log does not contain this place.
    fn find(self, memory: &Mapped, rank: usize, first: u64) -> Result<Tail, Damaged> {
        let mut at = Tail::first(first);
        loop {
            match at.look(memory, rank)? {
                _ if at == self => return Ok(at),
                At::End => return Ok(at),
                At::Entry(place) => at.place = place,
                At::Jump(reference) => at = Tail::first(reference),
            }
        }
    }
}

impl Run {
    pub fn is_empty(&self) -> bool {
        self.end == self.at.place
    }

    /// The place after it.
    pub fn behind(&self) -> Tail {
        match self.next {
            0 => Tail {
                place: self.end,
                ..self.at
            },
            next => Tail::first(next),
        }
    }
}

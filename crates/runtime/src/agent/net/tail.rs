//! How far a channel's log has been copied to another node, and what comes next.

use std::sync::atomic::Ordering;

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

/// Published entries that lie behind one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub at: Tail,
    pub end: usize,
    /// The segment that the last of them leads to, 0: the log ends here, for now.
    pub next: u64,
}

/// A rank has written what is no log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} has written something else than a message log into its part of the node memory")]
pub struct Damaged {
    pub rank: usize,
}

/// What lies at a place.
enum At {
    /// Nothing yet.
    End,
    /// An entry; the next one begins there.
    Entry(usize),
    Jump(u64),
}

impl Tail {
    pub fn first(reference: u64) -> Tail {
        Tail {
            reference,
            place: ALIGN,
        }
    }

    /// Where `rank`'s segment lies that this place is in.
    fn segment(self, memory: &Mapped, rank: usize) -> Result<usize, Damaged> {
        match self.reference {
            0 => Err(Damaged { rank }),
            reference => match nm::dereference(reference).1 {
                slot if slot < memory.layout.log_segments => Ok(memory.segment(rank, slot)),
                _ => Err(Damaged { rank }),
            },
        }
    }

    fn look(self, memory: &Mapped, rank: usize) -> Result<At, Damaged> {
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

    /// What `rank` has published from here on, in this segment.
    ///
    /// # Errors
    /// It is no log.
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

    /// The place, of those that a log which begins in segment `head` has, up to which this one is still true. It is another where the log
    /// has been cut off before this place: all behind it is void.
    ///
    /// # Errors
    /// It is no log.
    pub fn settle(self, memory: &Mapped, rank: usize, head: u64) -> Result<Tail, Damaged> {
        let mut at = Tail::first(head);
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

    /// The place behind it.
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

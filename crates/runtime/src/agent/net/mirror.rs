//! The copy of what ranks of another node have written, as far as ranks here read it: byte for byte, at the same places.
//!
//! Nobody else writes there. What is published is stored last, as its writer does: a rank here can be killed, or look, at any moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use resurgo_wire::entry::ALIGN;
use resurgo_wire::mesh::{Frame, Table};
use resurgo_wire::node_memory::{self as nm, BLOCK, SEGMENT, arena};

use super::mapped::Mapped;
use super::tail::Tail;

/// The other node says what does not belong to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent of another node sent a {frame} frame that names no place of its own")]
pub struct Foreign {
    frame: &'static str,
}

pub struct Mirror {
    memory: Arc<Mapped>,
    /// Per rank: whether it is on this node, or on the other.
    is_here: Vec<bool>,
    is_there: Vec<bool>,
    /// What this node is in, and what comes now.
    epoch: u64,
    theirs: u64,
    /// Up to where there is a copy of each channel.
    ends: HashMap<(u32, u32), Tail>,
    pages: Pages,
}

impl Mirror {
    pub fn new(memory: Arc<Mapped>, here: &[u32], there: &[u32], epoch: u64) -> Mirror {
        let size = memory.layout.size;
        let named = |ranks: &[u32]| (0..size).map(|rank| ranks.contains(&(rank as u32))).collect();
        Mirror {
            is_here: named(here),
            is_there: named(there),
            memory,
            epoch,
            theirs: epoch,
            ends: HashMap::new(),
            pages: Pages::default(),
        }
    }

    /// All that is here has been emptied.
    pub fn begin_epoch(&mut self, number: u64) {
        self.epoch = number;
        self.ends.clear();
        self.pages = Pages::default();
    }

    /// What comes belongs to an epoch that has not begun here: it must wait.
    pub fn is_behind(&self) -> bool {
        self.theirs > self.epoch
    }

    /// Epoch and positions, for the other node to go on there.
    pub fn say_where(&self, out: &mut Vec<u8>) {
        Frame::Epoch { number: self.epoch }.encode(out);
        for ((source, destination), end) in &self.ends {
            let position = Frame::Position {
                source: *source,
                destination: *destination,
                reference: end.reference,
                place: end.place as u32,
            };
            position.encode(out);
        }
        Frame::Begin.encode(out);
    }

    /// A connection begins: what comes is of the present epoch, unless it says otherwise.
    pub fn begin_connection(&mut self) {
        self.theirs = self.epoch;
    }

    /// What follows is of this epoch.
    pub fn hear_epoch(&mut self, number: u64) {
        self.theirs = number;
    }

    /// What comes belongs to the present epoch.
    pub fn is_current(&self) -> bool {
        self.theirs == self.epoch
    }

    /// Takes over what the other node has sent, and wakes whom it is for. What is of an older epoch is nothing any more.
    ///
    /// # Errors
    /// It is of no rank of that node, or for none here, or not inside of a segment.
    pub fn take(&mut self, frame: &Frame<'_>) -> Result<(), Foreign> {
        if !self.is_current() {
            // Ranks may have been in other places then.
            return Ok(());
        }
        let foreign = Foreign { frame: frame.name() };
        match *frame {
            Frame::Head {
                source,
                reference,
                begun,
            } => {
                let segment = self.segment(source, reference).ok_or(foreign)?;
                let (_, slot) = nm::dereference(reference);
                self.pages.touch(&self.memory, source as usize, slot);
                self.memory.word(segment).store(begun, Ordering::Relaxed);
                self.memory.word(segment + ALIGN).store(0, Ordering::Release);
            }
            Frame::Run {
                source,
                destination,
                reference,
                place,
                next,
                entries,
            } => {
                let segment = self.segment(source, reference).ok_or(foreign)?;
                let (from, to) = (place as usize, place as usize + entries.len());
                let is_inside =
                    from >= ALIGN && from.is_multiple_of(ALIGN) && to.is_multiple_of(8) && to + 8 <= SEGMENT;
                let leads = next == 0 || self.segment(source, next).is_some();
                if !self.is(&self.is_here, destination) || !is_inside || !leads || (next != 0 && entries.is_empty()) {
                    return Err(foreign);
                }
                self.write(segment, from, entries, next == 0);
                let end = match next {
                    0 => Tail { reference, place: to },
                    next => Tail::first(next),
                };
                self.ends.insert((source, destination), end);
                self.memory.ring(source as usize, destination as usize);
            }
            Frame::Tell {
                rank,
                table,
                index,
                value,
            } => {
                let is_of_all = matches!(table, Table::Oldest | Table::Number(_));
                if !self.is(&self.is_there, rank) || !self.is(&self.is_here, index) && !is_of_all {
                    return Err(foreign);
                }
                self.hear(rank, table, index, value);
            }
            _ => return Err(foreign),
        }
        Ok(())
    }

    fn is(&self, ranks: &[bool], rank: u32) -> bool {
        ranks.get(rank as usize).is_some_and(|is| *is)
    }

    /// Where a segment of a rank of the other node lies.
    fn segment(&self, source: u32, reference: u64) -> Option<usize> {
        if reference == 0 || !self.is(&self.is_there, source) {
            return None;
        }
        let (_, slot) = nm::dereference(reference);
        (slot < self.memory.layout.log_segments).then(|| self.memory.segment(source as usize, slot))
    }

    /// Entries, of which the first is published last, and what they lead to.
    fn write(&self, segment: usize, from: usize, entries: &[u8], is_end: bool) {
        if is_end {
            let end = self.memory.word(segment + from + entries.len());
            end.store(0, Ordering::Release);
        }
        if let Some((mark, rest)) = entries.split_first_chunk::<8>() {
            self.memory.write(segment + from + 8, rest);
            let mark = u64::from_le_bytes(*mark);
            self.memory.word(segment + from).store(mark, Ordering::Release);
        }
    }

    fn hear(&mut self, rank: u32, table: Table, index: u32, value: u64) {
        let layout = &self.memory.layout;
        if table == Table::Oldest {
            // An image is named by its slot: there are not many.
            let image = (value as u32).min(arena::IMAGE_SLOTS as u32);
            self.memory
                .arena32(rank as usize, arena::OLDEST_IMAGE)
                .store(image, Ordering::SeqCst);
            return;
        }
        let at = layout.arena(rank as usize) + table.place(layout, index as usize);
        self.memory.word(at).store(value, Ordering::SeqCst);
        match (table, value) {
            (Table::Channel, 0) => _ = self.ends.remove(&(rank, index)),
            (Table::Channel, _) => {
                self.ends.entry((rank, index)).or_insert(Tail::first(value));
            }
            (Table::Number(_), _) => {}
            _ => self.memory.wake(index as usize),
        }
    }
}

/// Which memory of copies has large pages: writing to fresh small ones takes longer than what is written.
#[derive(Default)]
struct Pages {
    /// Per rank and block of segments, how many have been begun, up to [`Pages::DENSE`].
    begun: HashMap<(usize, usize), u32>,
    /// So many blocks get small pages, as there were no large ones at hand.
    small: u32,
}

impl Pages {
    /// A block gets a large page when so many of its segments have been begun: of most ranks only a few are copied.
    const DENSE: u32 = 4;
    const PAUSE: u32 = 16;

    fn touch(&mut self, memory: &Mapped, rank: usize, slot: usize) {
        let begun = self.begun.entry((rank, slot / BLOCK)).or_insert(0);
        if *begun >= Self::DENSE {
            return;
        }
        *begun += 1;
        if *begun < Self::DENSE {
            return;
        }
        if self.small > 0 {
            self.small -= 1;
        } else if !memory.make_large(rank, slot / BLOCK) {
            self.small = Self::PAUSE;
        }
    }
}

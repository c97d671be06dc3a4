//! The copy of what ranks of another node have written, as far as ranks here read it: byte for byte, at the same places.
//!
//! Only the mover writes there. It stores the publishing word last, as the writer does: a rank can die or read at any
//! moment.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use resurgo_wire::direct;
use resurgo_wire::entry::ALIGN;
use resurgo_wire::mesh::{Frame, Table};
use resurgo_wire::node_memory::{self as nm, Pages, SEGMENT, arena};

use super::mapped::Mapped;
use super::tail::{Damaged, Tail};
use super::taking::{Settled, Taking};

/// The other node sends data that does not belong to the job.
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
    /// The epoch of this node, and of the input.
    epoch: u64,
    theirs: u64,
    /// The number of ranks that this node knows, and that the input is about.
    ranks: usize,
    their_ranks: usize,
    /// The end of the copy of each channel.
    ends: Ends,
    /// Ranks that came here from a lost node, until the other node has sent all that it has of their logs.
    lacks: Vec<u32>,
    taking: Taking,
    /// Where the other node is.
    address: Option<IpAddr>,
    pages: Pages,
}

/// The end of a channel's copy, by source and destination.
pub type Ends = HashMap<(u32, u32), Tail>;

impl Mirror {
    pub fn new(memory: Arc<Mapped>, here: &[u32], there: &[u32], epoch: u64) -> Mirror {
        let ranks = memory.layout.size;
        let mut mirror = Mirror {
            is_here: Vec::new(),
            is_there: Vec::new(),
            taking: Taking::new(memory.clone()),
            address: None,
            memory,
            epoch,
            theirs: epoch,
            ranks,
            their_ranks: 0,
            ends: HashMap::new(),
            lacks: Vec::new(),
            pages: Pages::default(),
        };
        mirror.grow(ranks, here, there);
        mirror
    }

    /// Sets the number of ranks, and which are here and on the other node.
    pub fn grow(&mut self, ranks: usize, here: &[u32], there: &[u32]) {
        let named = |named: &[u32]| (0..ranks).map(|rank| named.contains(&(rank as u32))).collect();
        (self.is_here, self.is_there) = (named(here), named(there));
        self.ranks = ranks;
    }

    /// Copies of logs from there end here already, and these ranks have come here without their logs.
    pub fn goes_on(&mut self, ends: &Ends, lacks: &[u32]) {
        let of_there = ends.iter().filter(|((source, _), _)| self.is(&self.is_there, *source));
        self.ends = of_there.map(|(channel, tail)| (*channel, *tail)).collect();
        self.lacks = lacks.to_vec();
    }

    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// The other node has yet to send what it has of this rank's logs.
    pub fn lacks(&self, rank: u32) -> bool {
        self.lacks.contains(&rank)
    }

    /// The other node has sent all of it.
    pub fn has_returned(&mut self, source: u32) {
        self.lacks.retain(|rank| *rank != source);
    }

    /// All copies here are emptied.
    pub fn begin_epoch(&mut self, number: u64) {
        self.epoch = number;
        self.ends.clear();
        self.lacks.clear();
        self.taking.clear();
        self.pages = Pages::default();
    }

    /// The input belongs to an epoch that has not begun here, or to ranks unknown here: it must wait.
    pub fn is_behind(&self) -> bool {
        self.theirs > self.epoch || self.their_ranks > self.ranks
    }

    /// Sends ranks, epoch and positions: the other node continues there.
    pub fn say_where(&self, out: &mut Vec<u8>) {
        self.say_ranks(out);
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
        self.lacks
            .iter()
            .for_each(|source| Frame::Lacks { source: *source }.encode(out));
        Frame::Begin.encode(out);
    }

    pub fn say_ranks(&self, out: &mut Vec<u8>) {
        let count = self.ranks as u32;
        Frame::Ranks { count }.encode(out);
    }

    /// A connection begins: its input is of the present epoch, unless it says otherwise.
    pub fn begin_connection(&mut self, address: Option<IpAddr>) {
        (self.theirs, self.their_ranks) = (self.epoch, 0);
        self.address = address;
    }

    /// The following input is about so many ranks.
    pub fn hear_ranks(&mut self, ranks: usize) {
        self.their_ranks = ranks;
    }

    /// `rank`, of this node, has ended.
    pub fn ended(&mut self, rank: u32) {
        self.taking.revoke(|(_, destination)| destination == rank);
    }

    /// The connection is broken: ranks take no more themselves.
    pub fn close(&mut self) {
        self.taking.revoke(|_| true);
    }

    /// Appends the reports on channels that ranks no longer take.
    ///
    /// # Errors
    /// A rank has written a damaged log.
    pub fn settle(&mut self, out: Option<&mut Vec<u8>>) -> Result<(), Damaged> {
        let settled = self.taking.settle()?;
        for Settled { channel, tail, .. } in &settled {
            self.ends.insert(*channel, *tail);
        }
        let Some(out) = out else { return Ok(()) };
        for Settled {
            channel: (source, destination),
            generation,
            tail,
        } in settled
        {
            let behind = Frame::Behind {
                source,
                destination,
                generation,
                reference: tail.reference,
                place: tail.place as u32,
            };
            behind.encode(out);
        }
        Ok(())
    }

    /// A rank that must stop writing may still write.
    pub fn waits(&self) -> bool {
        self.taking.waits()
    }

    /// The following input is of this epoch.
    pub fn hear_epoch(&mut self, number: u64) {
        self.theirs = number;
    }

    /// The input is of the present epoch.
    pub fn is_current(&self) -> bool {
        self.theirs == self.epoch
    }

    /// Takes a frame of the other node, and wakes the rank that it is for. Frames of older epochs do not count.
    ///
    /// # Errors
    /// Its rank is not of that node, its receiver is not here, or its place is not inside a segment.
    pub fn take(&mut self, frame: &Frame<'_>) -> Result<(), Foreign> {
        if !self.is_current() {
            // Ranks may have been on other nodes then.
            return Ok(());
        }
        let foreign = Foreign { frame: frame.name() };
        if let Frame::Head { source, .. } | Frame::Run { source, .. } | Frame::Tell { rank: source, .. } = *frame
            && self.lacks(source)
        {
            return self.take_back(frame).ok_or(foreign);
        }
        match *frame {
            Frame::Head {
                source,
                reference,
                begun,
            } => {
                let segment = self.segment(source, reference).ok_or(foreign)?;
                let (_, slot) = nm::dereference(reference);
                let (memory, rank) = (&self.memory, source as usize);
                self.pages.touch(rank, slot, |block| memory.make_large(rank, block));
                self.begin_segment(segment, begun);
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
                let leads = next == 0 || self.segment(source, next).is_some();
                if !self.is(&self.is_here, destination) || !leads {
                    return Err(foreign);
                }
                self.write(segment, place, entries, next).ok_or(foreign)?;
                let end = match next {
                    0 => Tail {
                        reference,
                        place: place as usize + entries.len(),
                    },
                    next => Tail::first(next),
                };
                self.ends.insert((source, destination), end);
                self.memory.ring(source as usize, destination as usize);
            }
            Frame::Hand {
                source,
                destination,
                generation,
                reference,
                place,
            } => {
                let place = place as usize;
                self.hand((source, destination), generation, Tail { reference, place })
                    .ok_or(foreign)?;
            }
            Frame::Back {
                source,
                destination,
                generation,
            } => self.taking.back((source, destination), generation),
            Frame::Tell {
                rank,
                table,
                index,
                value,
            } => {
                let is_of_all = matches!(table, Table::Oldest | Table::Door | Table::Number(_) | Table::Clock(_));
                if !self.is(&self.is_there, rank) || !self.is(&self.is_here, index) && !is_of_all {
                    return Err(foreign);
                }
                self.hear(rank, table, index, value);
            }
            _ => return Err(foreign),
        }
        Ok(())
    }

    /// The other node's part of the logs of a rank that came here from a lost node. None: the other node cannot have
    /// that.
    fn take_back(&self, frame: &Frame<'_>) -> Option<()> {
        match *frame {
            Frame::Head {
                source,
                reference,
                begun,
            } => self.begin_segment(self.place_of(source, reference)?, begun),
            Frame::Run {
                source,
                destination,
                reference,
                place,
                next,
                entries,
            } if self.is(&self.is_there, destination) && (next == 0 || self.place_of(source, next).is_some()) => {
                return self.write(self.place_of(source, reference)?, place, entries, next);
            }
            Frame::Tell {
                rank,
                table: table @ Table::Channel,
                index,
                value,
            } if self.is(&self.is_there, index) && (value == 0 || self.place_of(rank, value).is_some()) => {
                let layout = &self.memory.layout;
                let at = layout.arena(rank as usize) + table.place(layout, index as usize);
                self.memory.word(at).store(value, Ordering::SeqCst);
            }
            _ => return None,
        }
        Some(())
    }

    fn begin_segment(&self, segment: usize, begun: u64) {
        self.memory.word(segment).store(begun, Ordering::Relaxed);
        self.memory.word(segment + ALIGN).store(0, Ordering::Release);
    }

    /// The receiver takes the channel from there on itself. None: the channel has no such place.
    fn hand(&mut self, (source, destination): (u32, u32), generation: u64, tail: Tail) -> Option<()> {
        let is_inside = (ALIGN..SEGMENT).contains(&tail.place) && tail.place.is_multiple_of(ALIGN);
        self.segment(source, tail.reference)?;
        (is_inside && self.is(&self.is_here, destination)).then(|| {
            self.taking.hand((source, destination), generation, tail);
        })
    }

    fn is(&self, ranks: &[bool], rank: u32) -> bool {
        ranks.get(rank as usize).is_some_and(|is| *is)
    }

    /// The place of a segment of a rank of the other node.
    fn segment(&self, source: u32, reference: u64) -> Option<usize> {
        let is_there = self.is(&self.is_there, source);
        self.place_of(source, reference).filter(|_| is_there)
    }

    fn place_of(&self, source: u32, reference: u64) -> Option<usize> {
        if reference == 0 {
            return None;
        }
        let (_, slot) = nm::dereference(reference);
        (slot < self.memory.layout.log_segments).then(|| self.memory.segment(source as usize, slot))
    }

    /// Writes entries and the reference after them, and publishes the first one last. None: they are not inside the
    /// segment.
    fn write(&self, segment: usize, place: u32, entries: &[u8], next: u64) -> Option<()> {
        let (from, to) = (place as usize, place as usize + entries.len());
        let is_inside = from >= ALIGN && from.is_multiple_of(ALIGN) && to.is_multiple_of(8) && to + 8 <= SEGMENT;
        if !is_inside || (next != 0 && entries.is_empty()) {
            return None;
        }
        if next == 0 {
            let end = self.memory.word(segment + from + entries.len());
            end.store(0, Ordering::Release);
        }
        if let Some((mark, rest)) = entries.split_first_chunk::<8>() {
            self.memory.write(segment + from + 8, rest);
            let mark = u64::from_le_bytes(*mark);
            self.memory.word(segment + from).store(mark, Ordering::Release);
        }
        Some(())
    }

    fn hear(&mut self, rank: u32, table: Table, index: u32, value: u64) {
        let layout = &self.memory.layout;
        if table == Table::Oldest {
            // An image has the number of its slot: there are few.
            let image = (value as u32).min(arena::IMAGE_SLOTS as u32);
            self.memory
                .arena32(rank as usize, arena::OLDEST_IMAGE)
                .store(image, Ordering::SeqCst);
            return;
        }
        if table == Table::Door {
            let door = self.address.map_or(0, |_| value);
            let address = direct::to_words(self.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()));
            let arena = layout.arena(rank as usize);
            for (at, word) in address.into_iter().enumerate() {
                let at = arena + arena::DOOR_ADDRESS.item(at).at;
                self.memory.word(at).store(word, Ordering::SeqCst);
            }
            self.memory.word(arena + arena::DOOR.at).store(door, Ordering::SeqCst);
            return;
        }
        let at = layout.arena(rank as usize) + table.place(layout, index as usize);
        let word = self.memory.word(at);
        match table {
            // A rank here may already know a later value.
            Table::Channel if value != 0 && self.taking.knows(rank) => _ = word.fetch_max(value, Ordering::SeqCst),
            _ => word.store(value, Ordering::SeqCst),
        }
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

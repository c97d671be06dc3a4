//! What one other node has yet to get: of the logs of ranks here to ranks there, and of the words that those read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use resurgo_wire::mesh::{Frame, Table, encode_run};
use resurgo_wire::node_memory::{self as nm, CutTable, arena};

use super::mapped::Mapped;
use super::tail::{Damaged, Run, Tail};

/// What ranks of the job read of one another.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Logs are kept: senders look for cursors of images. Otherwise for what has been read.
    pub logs: bool,
    /// Ranks stopped by a wave look how much has been sent to them.
    pub announces: bool,
    /// Each rank is copied at a moment of its own: others look how far it had come.
    pub cuts: bool,
}

/// Something that may be new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// The channel to a rank there, and what its source says to that.
    Channel(u32, u32),
    /// The oldest image of a rank.
    Oldest(u32),
    /// The cursors of a rank's image, and its number.
    Image(u32, u8),
    Epoch(u64),
    Flush(u64),
}

pub struct Outgoing {
    memory: Arc<Mapped>,
    habits: Habits,
    /// Ranks of this node, and of the other.
    here: Vec<u32>,
    there: Vec<u32>,
    epoch: u64,
    tails: HashMap<(u32, u32), Tail>,
    /// Channels of which it is not certain that the log is still what was copied.
    doubtful: HashSet<(u32, u32)>,
    /// What has been told last, of words that are not 0 there.
    told: HashMap<(u32, Table, u32), u64>,
    queue: VecDeque<Item>,
    queued: HashSet<(u32, u32)>,
    /// Flushes that have not been answered.
    flushes: Vec<u64>,
    /// The other node has said how far it is.
    is_open: bool,
}

impl Outgoing {
    pub fn new(memory: Arc<Mapped>, habits: Habits, here: Vec<u32>, there: Vec<u32>, epoch: u64) -> Outgoing {
        Outgoing {
            memory,
            habits,
            here,
            there,
            epoch,
            tails: HashMap::new(),
            doubtful: HashSet::new(),
            told: HashMap::new(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            flushes: Vec::new(),
            is_open: false,
        }
    }

    /// The connection is gone, or new.
    pub fn close(&mut self) {
        self.is_open = false;
        self.queue.clear();
        self.queued.clear();
        self.tails.clear();
        self.told.clear();
    }

    /// How far the other node has a channel, in the present epoch.
    pub fn position(&mut self, source: u32, destination: u32, tail: Tail) {
        self.tails.insert((source, destination), tail);
    }

    /// All positions have been told: goes on behind them.
    pub fn open(&mut self) {
        self.is_open = true;
        self.queue.push_back(Item::Epoch(self.epoch));
        if self.habits.logs {
            self.doubtful = self.tails.keys().copied().collect();
        }
        self.look_everywhere();
        self.queue
            .extend(self.flushes.iter().map(|number| Item::Flush(*number)));
    }

    /// All logs have been emptied, here.
    pub fn begin_epoch(&mut self, number: u64) {
        self.epoch = number;
        self.tails.clear();
        self.doubtful.clear();
        self.told.clear();
        self.queue.clear();
        self.queued.clear();
        if self.is_open {
            self.queue.push_back(Item::Epoch(number));
            self.look_everywhere();
            self.queue
                .extend(self.flushes.iter().map(|number| Item::Flush(*number)));
        }
    }

    /// `source` has news for `destination`.
    pub fn news(&mut self, source: u32, destination: u32) {
        if self.is_open && self.queued.insert((source, destination)) {
            self.queue.push_back(Item::Channel(source, destination));
        }
    }

    /// The oldest image of a rank is another one.
    pub fn forgets(&mut self, rank: u32) {
        if self.is_open {
            self.queue.push_back(Item::Oldest(rank));
        }
    }

    /// The cursors of an image of `rank` are in this slot.
    pub fn has_image(&mut self, rank: u32, slot: u8) {
        if self.is_open {
            self.queue.push_back(Item::Image(rank, slot));
        }
    }

    /// The logs of `rank`, which has returned to a wave and does not run yet, may end before what was copied.
    pub fn cut_off(&mut self, rank: u32) {
        let of_rank = self.tails.keys().filter(|(source, _)| *source == rank);
        self.doubtful.extend(of_rank);
        for destination in self.there.clone() {
            self.news(rank, destination);
        }
    }

    /// Asks the other node to answer when it has all of which there has been news so far.
    pub fn flush(&mut self, number: u64) {
        self.flushes.push(number);
        if self.is_open {
            self.queue.push_back(Item::Flush(number));
        }
    }

    /// The other node has everything up to this flush. False: it was not asked.
    pub fn flushed(&mut self, number: u64) -> bool {
        let known = self.flushes.len();
        self.flushes.retain(|asked| *asked != number);
        self.flushes.len() < known
    }

    fn look_everywhere(&mut self) {
        for source in self.here.clone() {
            for destination in self.there.clone() {
                self.news(source, destination);
            }
            if self.habits.logs {
                self.forgets(source);
            }
        }
    }

    /// Whether there may be something to send.
    pub fn has_news(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Appends what is new, up to about `most` bytes.
    ///
    /// # Errors
    /// A rank of this node has written what is no log.
    pub fn fill(&mut self, out: &mut Vec<u8>, most: usize) -> Result<(), Damaged> {
        while out.len() < most
            && let Some(item) = self.queue.pop_front()
        {
            match item {
                Item::Epoch(number) => Frame::Epoch { number }.encode(out),
                Item::Flush(number) => Frame::Flush { number }.encode(out),
                Item::Oldest(rank) => self.tell_oldest(rank, out),
                Item::Image(rank, slot) => self.tell_image(rank, slot, out),
                Item::Channel(source, destination) => {
                    self.queued.remove(&(source, destination));
                    if self.ship(source, destination, out, most)? {
                        self.queued.insert((source, destination));
                        // Others wait as well, but what is to be flushed stays before that.
                        match self.flushes.is_empty() {
                            true => self.queue.push_back(item),
                            false => self.queue.push_front(item),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Says what is new of one channel. True: there is more.
    fn ship(&mut self, source: u32, destination: u32, out: &mut Vec<u8>, most: usize) -> Result<bool, Damaged> {
        let channel = (source, destination);
        if self.doubtful.remove(&channel) {
            self.settle(source, destination, out)?;
        }
        let mut tail = self.tails.get(&channel).copied().unwrap_or_default();
        if tail.reference == 0 {
            let head = self.head(source, destination);
            if head != 0 {
                self.begin_segment(source, head, out);
                tail = Tail::first(head);
            }
            self.tell(source, Table::Channel, destination, head, out);
        }
        let mut is_more = false;
        while tail.reference != 0 && !is_more {
            let run = tail.run(&self.memory, source as usize)?;
            if run.is_empty() {
                break;
            }
            if run.next != 0 {
                self.begin_segment(source, run.next, out);
            }
            self.copy(source, destination, &run, out);
            tail = run.behind();
            is_more = out.len() >= most;
        }
        if tail.reference != 0 {
            self.tails.insert(channel, tail);
        }
        self.tell_words(source, destination, out);
        Ok(is_more)
    }

    fn head(&self, source: u32, destination: u32) -> u64 {
        self.table(source, Table::Channel, destination)
    }

    fn table(&self, rank: u32, table: Table, index: u32) -> u64 {
        let layout = &self.memory.layout;
        let at = layout.arena(rank as usize) + table.place(layout, index as usize);
        self.memory.word(at).load(Ordering::Acquire)
    }

    /// The source has begun a segment, which may have been another channel's: that must not begin there any more.
    fn begin_segment(&mut self, source: u32, reference: u64, out: &mut Vec<u8>) {
        for destination in self.there.clone() {
            if self.tails.contains_key(&(source, destination)) {
                let head = self.head(source, destination);
                self.tell(source, Table::Channel, destination, head, out);
            }
        }
        let slot = nm::dereference(reference).1;
        let begun = self.memory.word(self.memory.segment(source as usize, slot));
        Frame::Head {
            source,
            reference,
            begun: begun.load(Ordering::Relaxed),
        }
        .encode(out);
    }

    fn copy(&self, source: u32, destination: u32, run: &Run, out: &mut Vec<u8>) {
        let (_, slot) = nm::dereference(run.at.reference);
        let from = self.memory.segment(source as usize, slot) + run.at.place;
        let frame = Frame::Run {
            source,
            destination,
            reference: run.at.reference,
            place: run.at.place as u32,
            next: run.next,
            entries: &[],
        };
        encode_run(out, &frame, run.end - run.at.place, |to| self.memory.read(from, to));
    }

    /// The log may have been cut off, or the other node may have been told so by nobody.
    fn settle(&mut self, source: u32, destination: u32, out: &mut Vec<u8>) -> Result<(), Damaged> {
        let Some(tail) = self.tails.remove(&(source, destination)) else {
            return Ok(());
        };
        let head = self.head(source, destination);
        if head == 0 {
            // The receiver forgets its place with that.
            self.told.insert((source, Table::Channel, destination), u64::MAX);
            return Ok(());
        }
        let settled = tail.settle(&self.memory, source as usize, head)?;
        self.tails.insert((source, destination), settled);
        self.tell(source, Table::Channel, destination, head, out);
        if settled != tail {
            let end = Run {
                at: settled,
                end: settled.place,
                next: 0,
            };
            self.copy(source, destination, &end, out);
        }
        Ok(())
    }

    fn tell(&mut self, rank: u32, table: Table, index: u32, value: u64, out: &mut Vec<u8>) {
        let told = self.told.insert((rank, table, index), value).unwrap_or(0);
        if told != value {
            let word = Frame::Tell {
                rank,
                table,
                index,
                value,
            };
            word.encode(out);
        }
    }

    /// What `rank` says to `other` beside messages.
    fn tell_words(&mut self, rank: u32, other: u32, out: &mut Vec<u8>) {
        // In this order: what has been read since the cut is seen with the cut.
        let read = self.table(rank, Table::Consumed, other);
        if self.habits.cuts {
            let wave = self.table(rank, Table::CutWave, other);
            for table in [CutTable::Reading, CutTable::Writing, CutTable::WritingAt] {
                let place = self.table(rank, Table::Cut(table), other);
                self.tell(rank, Table::Cut(table), other, place, out);
            }
            self.tell(rank, Table::CutWave, other, wave, out);
        }
        if !self.habits.logs {
            self.tell(rank, Table::Consumed, other, read, out);
        }
        if self.habits.announces {
            let sent = self.table(rank, Table::Announced, other);
            self.tell(rank, Table::Announced, other, sent, out);
        }
    }

    /// From where on an image of `rank` needs the logs to it.
    fn tell_image(&mut self, rank: u32, slot: u8, out: &mut Vec<u8>) {
        for source in self.there.clone() {
            let serial = self.table(rank, Table::Cursor(slot), source);
            self.tell(rank, Table::Cursor(slot), source, serial, out);
        }
        let number = self.table(rank, Table::Number(slot), 0);
        self.tell(rank, Table::Number(slot), 0, number, out);
    }

    /// Which image is the oldest of `rank`, behind where that was in its channels.
    fn tell_oldest(&mut self, rank: u32, out: &mut Vec<u8>) {
        let oldest = || {
            let word = self.memory.arena32(rank as usize, arena::OLDEST_IMAGE);
            word.load(Ordering::SeqCst)
        };
        let (image, cursors) = loop {
            let image = oldest();
            let slot = image.checked_sub(1).map(|slot| Table::Cursor(slot as u8));
            let cursors = slot.into_iter().flat_map(|slot| {
                let sources = self.there.iter();
                sources.map(move |source| (slot, *source))
            });
            let cursors = cursors.map(|(slot, source)| (slot, source, self.table(rank, slot, source)));
            let cursors: Vec<_> = cursors.collect();
            // A slot is used again only when its image is not the oldest any more.
            if oldest() == image {
                break (image, cursors);
            }
        };
        for (slot, source, serial) in cursors {
            self.tell(rank, slot, source, serial, out);
        }
        self.tell(rank, Table::Oldest, 0, image.into(), out);
    }
}

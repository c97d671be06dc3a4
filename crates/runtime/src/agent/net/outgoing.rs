//! What one other node has yet to get: parts of the logs from ranks here to ranks there, and the words that those read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use resurgo_protocol::causal::Event;
use resurgo_wire::mesh::{Frame, Table, encode_run};
use resurgo_wire::node_memory::{self as nm, CutTable, arena};

use super::giving::{Channel, Giving};
use super::known::Knowing;
use super::mapped::Mapped;
use super::tail::{Damaged, Run, Tail};

/// Deliveries in one frame.
const KNOWN_AT_ONCE: usize = 1024;
/// No word has this value.
const UNKNOWN: u64 = u64::MAX;

/// What ranks of the job read of one another.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Logs are kept: senders read cursors of images. Otherwise they read how much was consumed.
    pub logs: bool,
    /// Ranks that a wave stops read how much others have sent to them.
    pub announces: bool,
    /// Each rank is copied at a moment of its own: others read how far it had come.
    pub cuts: bool,
    /// Nodes are lost with logs and records: later lives of senders read the records of their receivers.
    pub counts: bool,
    /// Ranks may carry channels themselves.
    pub direct: bool,
    /// The first generation of such channels, a random number.
    pub generation: u64,
}

/// Something that may be new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// The channel to a rank there, and its source's words for that rank.
    Channel(u32, u32),
    /// The oldest image of a rank.
    Oldest(u32),
    /// The cursors of a rank's image, and its number.
    Image(u32, u8),
    Epoch(u64),
    Flush(u64),
    /// What is here of the log of a rank that moved there from a lost node; and the report that this was all.
    Back(u32, u32),
    Returned(u32),
    /// What is known here, before that.
    Known,
    /// Ranks do not carry this channel any more.
    Revoke(Channel, u64),
}

pub struct Outgoing {
    memory: Arc<Mapped>,
    habits: Habits,
    /// Ranks of this node, and of the other.
    here: Vec<u32>,
    there: Vec<u32>,
    epoch: u64,
    tails: HashMap<(u32, u32), Tail>,
    /// Channels whose log may differ from the copied one.
    doubtful: HashSet<(u32, u32)>,
    /// The last values sent, or [`UNKNOWN`], of words that may differ from 0 there.
    told: HashMap<(u32, Table, u32), u64>,
    queue: VecDeque<Item>,
    queued: HashSet<(u32, u32)>,
    /// Unanswered flushes; `late`: those that wait until the mover carries all channels.
    flushes: Vec<u64>,
    /// Ranks that came here from a lost node, and whose logs are not back.
    absent: Vec<u32>,
    /// Ranks that moved there from a lost node without their logs; `backs`: how much of these was sent back.
    lacked: Vec<u32>,
    backs: HashMap<(u32, u32), Tail>,
    /// What is known here, as far as the other node has yet to be told.
    pub knowing: Option<Knowing>,
    known: VecDeque<Event>,
    /// Ranks here that have come from a lost node, and do not know yet what their former lives knew.
    pub unknown: Vec<u32>,
    late: Vec<u64>,
    pub giving: Giving,
    /// The other node has reported its positions.
    is_open: bool,
}

impl Outgoing {
    pub fn new(memory: Arc<Mapped>, habits: Habits, here: Vec<u32>, there: Vec<u32>, epoch: u64) -> Outgoing {
        Outgoing {
            giving: Giving::new(memory.clone(), habits.generation),
            late: Vec::new(),
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
            absent: Vec::new(),
            lacked: Vec::new(),
            backs: HashMap::new(),
            knowing: None,
            known: VecDeque::new(),
            unknown: Vec::new(),
            is_open: false,
        }
    }

    /// Sets the ranks on this node, and on the other. New ones there read words that ranks here wrote before, and new
    /// ones here may have written already.
    pub fn grow(&mut self, here: &[u32], there: &[u32]) {
        let senders = std::mem::replace(&mut self.here, here.to_vec());
        let receivers = std::mem::replace(&mut self.there, there.to_vec());
        for source in here {
            for destination in there {
                if !senders.contains(source) || !receivers.contains(destination) {
                    self.news(*source, *destination);
                }
            }
        }
    }

    /// These ranks have come here; their logs are not back yet.
    pub fn lacks(&mut self, ranks: Vec<u32>) {
        self.absent = ranks;
    }

    /// The logs of this rank are here.
    pub fn has_logs(&mut self, rank: u32) {
        self.absent.retain(|absent| *absent != rank);
        for destination in self.there.clone() {
            self.news(rank, destination);
        }
    }

    /// The other node wants what is here of the logs of a rank there.
    pub fn is_lacked(&mut self, source: u32) {
        if self.there.contains(&source) {
            self.lacked.push(source);
        }
    }

    fn give_back(&mut self) {
        if self.knowing.is_some() && !self.lacked.is_empty() {
            self.queue.push_back(Item::Known);
        }
        for source in std::mem::take(&mut self.lacked) {
            let logs = self.here.iter().map(|destination| Item::Back(source, *destination));
            self.queue.extend(logs);
            self.queue.push_back(Item::Returned(source));
        }
    }

    /// The connection is gone, or new.
    pub fn close(&mut self) {
        self.is_open = false;
        self.queue.clear();
        self.queued.clear();
        self.tails.clear();
        // The words may not have arrived: sends them again.
        self.told.values_mut().for_each(|value| *value = UNKNOWN);
        self.lacked.clear();
        self.backs.clear();
        self.known.clear();
        self.late.clear();
        self.giving.clear();
    }

    /// The other node's position in a channel, in the present epoch.
    pub fn position(&mut self, source: u32, destination: u32, tail: Tail) {
        self.tails.insert((source, destination), tail);
    }

    /// The other node has sent all positions: goes on behind them.
    pub fn open(&mut self) {
        self.is_open = true;
        self.queue.push_back(Item::Epoch(self.epoch));
        if self.habits.logs {
            self.doubtful = self.tails.keys().copied().collect();
        }
        self.give_back();
        self.look_everywhere();
        self.queue
            .extend(self.flushes.iter().map(|number| Item::Flush(*number)));
    }

    /// All logs here are emptied.
    pub fn begin_epoch(&mut self, number: u64) {
        self.epoch = number;
        self.tails.clear();
        self.doubtful.clear();
        self.told.clear();
        self.queue.clear();
        self.queued.clear();
        self.absent.clear();
        self.lacked.clear();
        self.backs.clear();
        self.known.clear();
        self.unknown.clear();
        self.late.clear();
        self.giving.clear();
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

    /// `rank` has another oldest image.
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

    /// `rank` has returned to a wave and does not run yet: its logs may end before the copied parts.
    pub fn cut_off(&mut self, rank: u32) {
        let of_rank = self.tails.keys().filter(|(source, _)| *source == rank);
        self.doubtful.extend(of_rank);
        for destination in self.there.clone() {
            self.news(rank, destination);
        }
    }

    /// Asks the other node to answer when it has all news so far.
    pub fn flush(&mut self, number: u64) {
        self.flushes.push(number);
        let given = self.giving.take_all_back(None);
        self.tell_back(given);
        if self.is_open {
            self.queue.push_back(Item::Flush(number));
        }
    }

    /// The other node will answer none of these any more.
    pub fn give_up_flushes(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.flushes)
    }

    /// The other node has all data before this flush. False: this node did not ask.
    pub fn flushed(&mut self, number: u64) -> bool {
        let known = self.flushes.len();
        self.flushes.retain(|asked| *asked != number);
        self.flushes.len() < known
    }

    fn tell_back(&mut self, over: Vec<(Channel, u64)>) {
        let over = over.into_iter();
        self.queue
            .extend(over.map(|(channel, generation)| Item::Revoke(channel, generation)));
    }

    /// `rank`, of this node, has ended.
    pub fn ended(&mut self, rank: u32) {
        let given = self.giving.take_all_back(Some(rank));
        self.tell_back(given);
    }

    /// Takes channels back from senders that had long enough to push.
    ///
    /// # Errors
    /// A rank of this node has written a damaged log.
    pub fn look_again(&mut self, now: Instant) -> Result<(), Damaged> {
        let over = self.giving.look_again(now)?;
        self.tell_back(over);
        Ok(())
    }

    /// The other node reports its position in a channel that ranks carried.
    pub fn behind(&mut self, channel: Channel, generation: u64, tail: Tail) {
        if !self.giving.behind(channel, generation) {
            return;
        }
        self.tails.insert(channel, tail);
        self.news(channel.0, channel.1);
        if !self.giving.waits() {
            self.queue.extend(self.late.drain(..).map(Item::Flush));
        }
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

    /// Appends news, up to about `most` bytes.
    ///
    /// # Errors
    /// A rank of this node has written a damaged log.
    pub fn fill(&mut self, out: &mut Vec<u8>, most: usize) -> Result<(), Damaged> {
        while out.len() < most
            && let Some(item) = self.queue.pop_front()
        {
            match item {
                Item::Epoch(number) => Frame::Epoch { number }.encode(out),
                Item::Flush(number) if self.giving.waits() => self.late.push(number),
                Item::Flush(number) => Frame::Flush { number }.encode(out),
                Item::Revoke((source, destination), generation) => {
                    let back = Frame::Back {
                        source,
                        destination,
                        generation,
                    };
                    back.encode(out);
                }
                Item::Known => {
                    if self.tell_known(out, most)? {
                        self.queue.push_front(item);
                    }
                }
                Item::Returned(source) => Frame::Returned { source }.encode(out),
                Item::Back(source, destination) => {
                    if self.ship_back(source, destination, out, most)? {
                        self.queue.push_front(item);
                    }
                }
                Item::Oldest(rank) => self.tell_oldest(rank, out),
                Item::Image(rank, slot) => self.tell_image(rank, slot, out),
                Item::Channel(source, destination) => {
                    self.queued.remove(&(source, destination));
                    if self.ship(source, destination, out, most)? {
                        self.queued.insert((source, destination));
                        // Other items wait as well, but items of a flush go first.
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

    /// Appends the news of one channel. True: there is more.
    fn ship(&mut self, source: u32, destination: u32, out: &mut Vec<u8>, most: usize) -> Result<bool, Damaged> {
        if self.absent.contains(&source) {
            return Ok(false);
        }
        let channel = (source, destination);
        if !self.giving.carries(channel) {
            if let Some(generation) = self.giving.look(channel)? {
                self.queue.push_back(Item::Revoke(channel, generation));
            }
            self.tell_words(source, destination, out);
            return Ok(false);
        }
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
        if self.habits.direct && !is_more && self.flushes.is_empty() {
            self.giving.offer(channel, tail, out);
        }
        Ok(is_more)
    }

    /// Sends back a log's copy. True: there is more.
    fn ship_back(&mut self, source: u32, destination: u32, out: &mut Vec<u8>, most: usize) -> Result<bool, Damaged> {
        let head = self.head(source, destination);
        if head == 0 {
            return Ok(false);
        }
        let mut tail = match self.backs.get(&(source, destination)) {
            Some(tail) => *tail,
            None => {
                self.say_head(source, head, out);
                let word = Frame::Tell {
                    rank: source,
                    table: Table::Channel,
                    index: destination,
                    value: head,
                };
                word.encode(out);
                Tail::first(head)
            }
        };
        let mut is_more = true;
        while is_more && out.len() < most {
            let run = tail.run(&self.memory, source as usize)?;
            is_more = !run.is_empty();
            if is_more {
                if run.next != 0 {
                    self.say_head(source, run.next, out);
                }
                self.copy(source, destination, &run, out);
                tail = run.behind();
            }
        }
        self.backs.insert((source, destination), tail);
        Ok(is_more)
    }

    /// Tells what is known here. True: there is more.
    fn tell_known(&mut self, out: &mut Vec<u8>, most: usize) -> Result<bool, Damaged> {
        if let Some(knowing) = self.knowing.as_ref().filter(|_| self.known.is_empty()) {
            let here = self.here.iter().copied();
            let here = here.filter(|rank| !self.unknown.contains(rank));
            self.known = knowing.tell(&self.memory, here)?.into();
        }
        while !self.known.is_empty() && out.len() < most {
            let events = self.known.drain(..self.known.len().min(KNOWN_AT_ONCE));
            let events: Vec<u8> = events.flat_map(|event| nm::event_bytes(&event)).collect();
            Frame::Known { events: &events }.encode(out);
        }
        Ok(!self.known.is_empty())
    }

    fn head(&self, source: u32, destination: u32) -> u64 {
        self.table(source, Table::Channel, destination)
    }

    fn table(&self, rank: u32, table: Table, index: u32) -> u64 {
        let layout = &self.memory.layout;
        let at = layout.arena(rank as usize) + table.place(layout, index as usize);
        self.memory.word(at).load(Ordering::Acquire)
    }

    /// The source has begun a segment, which another channel may have used: that channel no longer begins there.
    fn begin_segment(&mut self, source: u32, reference: u64, out: &mut Vec<u8>) {
        for destination in self.there.clone() {
            if self.tails.contains_key(&(source, destination)) {
                let head = self.head(source, destination);
                self.tell(source, Table::Channel, destination, head, out);
            }
        }
        self.say_head(source, reference, out);
    }

    fn say_head(&self, source: u32, reference: u64, out: &mut Vec<u8>) {
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

    /// Checks the copied place: the log may be cut off, and the other node may not know.
    fn settle(&mut self, source: u32, destination: u32, out: &mut Vec<u8>) -> Result<(), Damaged> {
        let Some(tail) = self.tails.remove(&(source, destination)) else {
            return Ok(());
        };
        let head = || self.head(source, destination);
        let (head, settled) = tail.settle(&self.memory, source as usize, head)?;
        if head == 0 {
            // The receiver then forgets its place.
            self.told.insert((source, Table::Channel, destination), UNKNOWN);
            return Ok(());
        }
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
        let told = self.told.get(&(rank, table, index)).copied().unwrap_or(0);
        if told != value {
            self.told.insert((rank, table, index), value);
            let word = Frame::Tell {
                rank,
                table,
                index,
                value,
            };
            word.encode(out);
        }
    }

    /// Appends the words of `rank` for `other`.
    fn tell_words(&mut self, rank: u32, other: u32, out: &mut Vec<u8>) {
        // In this order: a reader that sees the cut also sees what was read since.
        let read = self.table(rank, Table::Consumed, other);
        if self.habits.cuts {
            let wave = self.table(rank, Table::CutWave, other);
            for table in [CutTable::Reading, CutTable::Writing, CutTable::WritingAt] {
                let place = self.table(rank, Table::Cut(table), other);
                self.tell(rank, Table::Cut(table), other, place, out);
            }
            self.tell(rank, Table::CutWave, other, wave, out);
        }
        if !self.habits.logs || self.habits.counts {
            self.tell(rank, Table::Consumed, other, read, out);
        }
        if self.habits.direct {
            let door = self.table(rank, Table::Door, 0);
            self.tell(rank, Table::Door, 0, door, out);
        }
        if self.habits.announces {
            let sent = self.table(rank, Table::Announced, other);
            self.tell(rank, Table::Announced, other, sent, out);
        }
    }

    /// The places from which an image of `rank` needs logs.
    fn tell_image(&mut self, rank: u32, slot: u8, out: &mut Vec<u8>) {
        for source in self.there.clone() {
            let serial = self.table(rank, Table::Cursor(slot), source);
            self.tell(rank, Table::Cursor(slot), source, serial, out);
        }
        let number = self.table(rank, Table::Number(slot), 0);
        self.tell(rank, Table::Number(slot), 0, number, out);
    }

    /// The oldest image of `rank`, after its position in its channels.
    fn tell_oldest(&mut self, rank: u32, out: &mut Vec<u8>) {
        let oldest = || {
            let word = self.memory.arena32(rank as usize, arena::OLDEST_IMAGE);
            word.load(Ordering::SeqCst)
        };
        let (image, cursors) = loop {
            let image = oldest();
            let slot = image.checked_sub(1).map(|slot| slot as u8);
            let cursors = slot.into_iter().flat_map(|slot| {
                let sources = self.there.iter();
                sources.map(move |source| (Table::Cursor(slot), *source))
            });
            let clock = slot.filter(|_| self.habits.counts).map(|slot| (Table::Clock(slot), 0));
            let cursors = cursors.chain(clock);
            let cursors = cursors.map(|(slot, source)| (slot, source, self.table(rank, slot, source)));
            let cursors: Vec<_> = cursors.collect();
            // A slot is reused only after its image is not the oldest any more.
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

//! The receiver's side of a channel.

use super::*;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Reads one channel's log from its beginning.
pub struct Reader {
    pub source: usize,
    destination: usize,
    pub(super) segment: *const u8,
    slot: usize,
    serial: u64,
    pub(super) place: usize,
    /// The segment's bytes, read from the spill file because its owner has recycled it.
    pub(super) copy: Option<Box<[u8]>>,
    /// Bytes between the header and the payload of the last found entry.
    before: usize,
    /// The beginning of the piggyback of the next message, and its place ([`Self::reached`]).
    ahead: Vec<u8>,
    ahead_at: u64,
    /// The beginning of that is forgotten: the receiver has the message, or an image of it does.
    is_cut: bool,
    /// The sender may forget what it reads, because it does not wait for this reader.
    is_guest: bool,
    /// The sender has done so.
    is_lost: bool,
    /// What is stepped over first.
    skips: Option<Skipping>,
}

/// Messages that the reader's process has been delivered already: the channel may lie elsewhere now.
#[derive(Clone, Copy)]
struct Skipping {
    /// So many.
    delivered: u64,
    /// The channel's first segment, where this began. While that is so, the segments behind it are the channel's.
    head: u64,
    /// Messages begun.
    begun: u64,
}

impl Reader {
    pub fn new(source: usize, destination: usize) -> Self {
        Reader {
            source,
            destination,
            segment: std::ptr::null(),
            slot: 0,
            serial: 0,
            place: 0,
            copy: None,
            before: 0,
            ahead: Vec::new(),
            ahead_at: 0,
            is_cut: false,
            is_guest: false,
            is_lost: false,
            skips: None,
        }
    }

    /// The process has been delivered so many messages of the channel, and finds the next wherever it is.
    pub fn find_behind(&mut self, delivered: u64) {
        *self = Reader::new(self.source, self.destination);
        self.skips = (delivered > 0).then_some(Skipping {
            delivered,
            head: 0,
            begun: 0,
        });
    }

    /// Steps over what has been delivered. False: the next message has not come. The sender may forget delivered
    /// messages meanwhile, and publishes first where the channel begins then.
    #[cold]
    fn skip(&mut self, node: &Node, mut skips: Skipping) -> bool {
        let channel = node.channel(self.source, self.destination);
        loop {
            let head = channel.load(Ordering::Acquire);
            if head == 0 {
                return false;
            }
            if head != skips.head {
                self.enter(node, head);
                (skips.head, skips.begun) = (head, self.begun_before());
            }
            self.skips = None;
            let entry = self.peek_in(node);
            fence(Ordering::Acquire);
            if channel.load(Ordering::Acquire) != skips.head {
                skips.head = 0;
                continue;
            }
            self.skips = Some(skips);
            let Some(entry) = entry else { return false };
            match entry.envelope.kind {
                Kind::More => {}
                _ if skips.begun >= skips.delivered => {
                    self.skips = None;
                    return true;
                }
                Kind::Ahead => {}
                _ => skips.begun += 1,
            }
            self.advance(entry.bytes);
            self.skips = Some(skips);
        }
    }

    /// The process has returned to a wave: the channel begins with the next message.
    pub fn restart(&mut self) {
        (self.segment, self.place) = (std::ptr::null(), 0);
    }

    /// Goes to the segment that `reference` names.
    fn enter(&mut self, node: &Node, reference: u64) {
        (self.serial, self.slot) = nm::dereference(reference);
        self.copy = None;
        self.segment = node.segment(self.source, self.slot);
        self.place = ALIGN;
    }

    /// Messages that begin before the segment being read. Call after a successful `peek`.
    pub fn begun_before(&self) -> u64 {
        // SAFETY: the start of the segment or of its copy.
        unsafe { atomic(self.segment) }.load(Ordering::Relaxed)
    }

    /// Goes to the first segment of a channel, if it has one.
    pub fn open(&mut self, node: &Node) {
        if self.segment.is_null() {
            self.enter(
                node,
                node.channel(self.source, self.destination).load(Ordering::Acquire),
            );
            if !self.in_memory(node) {
                self.copy_from_spill(node);
            }
        }
    }

    /// Another reader at the same place. Only for logs of this rank.
    pub fn again(&self) -> Reader {
        let copy = self.copy.clone();
        Reader {
            segment: copy.as_ref().map_or(self.segment, |copy| copy.as_ptr()),
            copy,
            ahead: Vec::new(),
            ..*self
        }
    }

    /// False when the owner has recycled the slot: the reader must read again from the file.
    #[inline]
    fn in_memory(&self, node: &Node) -> bool {
        (!node.spill && !self.is_guest) || self.copy.is_some() || self.is_still_there(node)
    }

    fn is_still_there(&self, node: &Node) -> bool {
        fence(Ordering::Acquire);
        node.serial_in(self.source, self.slot).load(Ordering::Acquire) == self.serial + 1
    }

    /// The sender has forgotten what a reader made by [`Self::at`] was reading: its last results are invalid.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The next entry, or None when the sender has published nothing more. Steps over Ahead entries and keeps them for
    /// [`Self::piggyback`].
    #[inline]
    pub fn peek(&mut self, node: &Node) -> Option<Entry> {
        loop {
            match self.peek_any(node)? {
                entry if entry.envelope.kind == Kind::Ahead => self.take_ahead(node, entry),
                entry => return Some(entry),
            }
        }
    }

    #[cold]
    fn take_ahead(&mut self, node: &Node, entry: Entry) {
        let (from, bytes) = (entry.total as usize, entry.bytes);
        let mut ahead = std::mem::take(&mut self.ahead);
        if from == 0 {
            // Earlier Ahead entries belong to no message.
            ahead.clear();
            (self.ahead_at, self.is_cut) = (self.place_word(), false);
        }
        self.is_cut |= from != ahead.len();
        ahead.resize(from + bytes, 0);
        // SAFETY: room was just made.
        unsafe { self.copy_payload(node, 0, ahead[from..].as_mut_ptr(), bytes) };
        self.ahead = ahead;
        self.advance(bytes);
    }

    /// Replaces `bytes` by the piggyback of the message whose first entry `peek` returned. False: a reader made by
    /// [`Self::at`] came too late for its beginning; the ranks that must know it do.
    #[inline]
    pub fn piggyback(&mut self, node: &Node, entry: &Entry, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        let mut is_whole = true;
        if entry.began_ahead {
            is_whole = !std::mem::take(&mut self.is_cut) && !self.ahead.is_empty();
            bytes.append(&mut self.ahead);
        } else {
            self.ahead.clear();
        }
        let from = bytes.len();
        bytes.resize(from + entry.piggyback, 0);
        // It is between the header and the place where the payload begins otherwise.
        let before = std::mem::take(&mut self.before);
        // SAFETY: room was just made.
        unsafe { self.copy_payload(node, 0, bytes[from..].as_mut_ptr(), entry.piggyback) };
        self.before = before;
        is_whole
    }

    /// Where the next message begins or will begin, including its Ahead entries, in one word: for [`Self::at`]. 0
    /// before the first.
    pub fn reached(&self) -> u64 {
        match () {
            () if self.segment.is_null() => 0,
            () if !self.ahead.is_empty() => self.ahead_at,
            () => self.place_word(),
        }
    }

    fn place_word(&self) -> u64 {
        nm::reference(self.serial, self.slot) << 10 | (self.place / ALIGN) as u64
    }

    /// Serial of the first segment for a reader that continues where this one is ([`Self::reached`]).
    pub fn needs_from(&self) -> u64 {
        match self.reached() {
            0 => 0,
            place => nm::dereference(place >> 10).0,
        }
    }

    /// A reader of any channel for another rank than its receiver, from `place` on, as given by [`Self::reached`]; 0:
    /// the beginning. It may be lost ([`Self::is_lost`]).
    pub fn at(source: usize, destination: usize, node: &Node, place: u64) -> Reader {
        let mut reader = Reader {
            is_guest: true,
            ..Reader::new(source, destination)
        };
        if place != 0 {
            reader.enter(node, place >> 10);
            reader.place = (place & 0x3ff) as usize * ALIGN;
        }
        reader
    }

    /// The next entry of any kind.
    #[inline]
    pub fn peek_any(&mut self, node: &Node) -> Option<Entry> {
        if let Some(skips) = self.skips
            && !self.skip(node, skips)
        {
            return None;
        }
        self.peek_in(node)
    }

    #[inline]
    fn peek_in(&mut self, node: &Node) -> Option<Entry> {
        loop {
            if self.segment.is_null() {
                let reference = node.channel(self.source, self.destination).load(Ordering::Acquire);
                if reference == 0 {
                    return None;
                }
                self.enter(node, reference);
            }
            // SAFETY: `place` is the start of an entry or of a cleared mark inside the segment (or its copy).
            let (word, tag, total, data) = unsafe {
                let entry = self.segment.add(self.place);
                let word = atomic(entry).load(Ordering::Acquire);
                let field = |at: usize| atomic(entry.add(at)).load(Ordering::Relaxed);
                if word == 0 {
                    (0, 0, 0, 0)
                } else {
                    (word, field(entry::TAG), field(entry::TOTAL), field(entry::DATA))
                }
            };
            if !self.in_memory(node) {
                self.copy_from_spill(node);
                if self.is_lost {
                    return None;
                }
                continue;
            }
            if word == 0 {
                return None;
            }
            let mark = Mark(word);
            if mark.is_jump() {
                self.enter(node, total);
                retention::goes_on(node, self.source, self.destination, self.serial);
                continue;
            }
            self.fetch(mark.bytes());
            // The same bits are the sender's wave where there are waves and no piggybacks.
            let (piggyback, began_ahead) = if node.piggybacking {
                mark.piggyback()
            } else {
                (0, false)
            };
            self.before = padded(piggyback);
            return Some(Entry {
                piggyback,
                began_ahead,
                envelope: Envelope {
                    kind: mark.kind(),
                    flags: mark.flags(),
                    tag,
                    data,
                },
                total,
                bytes: mark.bytes(),
                mark: mark.wave(),
            });
        }
    }

    /// Asks for the first lines of an entry of `bytes` payload bytes before its destination is known: they come from
    /// another processor's cache.
    #[inline]
    fn fetch(&self, bytes: usize) {
        for line in (ALIGN..HEADER + bytes.min(FETCH)).step_by(ALIGN) {
            // SAFETY: asking for it is no access.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.segment.wrapping_add(self.place + line).cast()) };
        }
    }

    /// Copies `bytes` of the payload of the entry `peek` returned to `to`, from its byte `from` on.
    ///
    /// # Safety
    /// `to` has room for `bytes`; `from + bytes` is not more than the entry's bytes.
    #[inline]
    pub unsafe fn copy_payload(&mut self, node: &Node, from: usize, to: *mut u8, bytes: usize) {
        loop {
            // SAFETY: the payload lies inside the segment (or its copy).
            unsafe {
                std::ptr::copy_nonoverlapping(self.segment.add(self.place + HEADER + self.before + from), to, bytes);
            }
            fence(Ordering::Acquire);
            if self.in_memory(node) {
                return;
            }
            self.copy_from_spill(node);
            if self.is_lost {
                return;
            }
        }
    }

    /// Calls `differs` with every offset at which the payload of the entry that `peek` returned differs from the next
    /// bytes of `pieces`. Only for logs of this rank.
    pub fn compare(&mut self, pieces: &mut Pieces, bytes: usize, differs: impl FnMut(usize)) {
        // SAFETY: no one else recycles an own segment meanwhile.
        unsafe { pieces.compare(self.segment.add(self.place + HEADER + self.before), bytes, differs) }
    }

    /// Steps over an entry of `bytes` payload bytes.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.place = entry::next(self.place, self.before + bytes);
        self.before = 0;
    }

    fn copy_from_spill(&mut self, node: &Node) {
        let number = match node.spill {
            true => node.spilled_to(self.source, self.serial).load(Ordering::Acquire),
            false => 0,
        };
        if number == 0 && self.is_guest {
            self.is_lost = true;
            return;
        }
        assert!(number != 0, "a recycled segment is in the spill file");
        let mut copy = vec![0u8; SEGMENT + 8].into_boxed_slice();
        if let Err(error) = crate::arena::read_spilled(number - 1, &mut copy[..SEGMENT]) {
            node.report(&format!(
                "cannot read the message log back from the spill file: {error}"
            ));
        }
        self.segment = copy.as_ptr();
        self.copy = Some(copy);
    }

    /// The segment being read: serial and slot.
    pub fn position(&self) -> (u64, usize) {
        (self.serial, self.slot)
    }

    /// The place of the next entry, as a reference and an offset; reference 0: nothing was read.
    pub fn place(&self) -> (u64, usize) {
        if self.segment.is_null() {
            return (0, 0);
        }
        (nm::reference(self.serial, self.slot), self.place)
    }

    /// Serial of the segment being read; earlier segments are not needed any more. 0 before the first entry.
    pub fn serial(&self) -> u64 {
        self.serial
    }
}

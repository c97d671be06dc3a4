//! Channel logs: what a channel's sender appends and its receiver reads, message by message.
//!
//! A log is a chain of segments in the sender's arena. Entries start at multiples of 64 bytes:
//!
//! ```text
//! 0   u64  mark: 0 nothing here (yet); else kind (low byte), flags (second byte), payload bytes here (high half); third and
//!          fourth byte: the sender's wave (chandy-lamport), or bytes of the piggyback here (15 bits) and whether more of it came
//!          before (1 bit; where determinants are piggybacked)
//! 8   u64  tag
//! 16  u64  FIRST: bytes of the whole message; MORE: offset of this piece in it; JUMP: reference of the next segment; AHEAD:
//!          offset of these bytes in the piggyback
//! 24  u64  remote data
//! 32  ...  FIRST: piggyback (`resurgo_wire::piggyback`), up to the next multiple of 8; then payload
//! ```
//!
//! The first 64 bytes of a segment say how many messages of the channel begin before it.
//!
//! A message is one FIRST entry and, when it does not fit, MORE entries right behind it. Of a long piggyback the beginning stands
//! in AHEAD entries before it; those of a sender that was killed before its message was there belong to nothing. The mark is stored last: an entry
//! whose sender was killed before that does not exist. The place of the next mark is cleared before an entry is
//! published, so that old bytes of a recycled segment are never taken for an entry.

use crate::arena::Arena;
use crate::node::Node;
use resurgo_protocol::chandy_lamport::Place;
use resurgo_protocol::hierarchical::Kept;
use resurgo_wire::node_memory::{self as nm, SEGMENT};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub const HEADER: usize = 32;
const ALIGN: usize = 64;
/// Most payload bytes in one entry: a long message is published in pieces, so that the receiver copies one out while
/// the sender copies the next one in.
const PIECE: usize = 12 << 10;
/// Longest stretch of the log that is prefetched.
const PREFETCH: usize = 8 << 10;
/// Long payloads are copied in steps of half of this, while memory so far ahead of the copy is fetched.
const AHEAD: usize = 4 << 10;
/// Most bytes of a segment that carry no payload when it is full of pieces.
const LOST: usize = 2 * ALIGN + (SEGMENT / PIECE + 2) * (HEADER + ALIGN);
/// Bytes that are prefetched in one round of waiting.
const WARM: usize = 4 * ALIGN;
/// No payload reaches beyond this: the last 64 bytes of a segment are for the JUMP.
const PAYLOAD_END: usize = SEGMENT - ALIGN;

/// What an entry is, as far as the receiver's engine is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// First piece of a tagged message.
    Tagged = 1,
    /// First piece of an untagged message.
    Untagged = 2,
    /// A further piece of the message before it.
    More = 3,
    /// The log goes on in another segment.
    Jump = 4,
    /// Asks for `data` bytes at address `tag`, key in the payload (fi_read).
    ReadRequest = 5,
    /// Answers a read request; `tag` is the requester's operation.
    ReadAnswer = 6,
    /// Bytes for address `tag`, key in the remote data (fi_write).
    Write = 7,
    /// Says that a write has been done; `tag` is the requester's operation.
    WriteDone = 8,
    /// The beginning of the piggyback of the message that follows.
    Ahead = 9,
}

/// All kinds, from number 1 on.
pub const KINDS: [Kind; 9] = [
    Kind::Tagged,
    Kind::Untagged,
    Kind::More,
    Kind::Jump,
    Kind::ReadRequest,
    Kind::ReadAnswer,
    Kind::Write,
    Kind::WriteDone,
    Kind::Ahead,
];

/// Most bytes of a piggyback that stand in the message's own entry.
const INLINE: usize = 1024;
/// In the mark: bytes of the piggyback in this entry, and that it has begun in AHEAD entries.
const PIGGYBACK_SHIFT: u32 = 16;
const BEGAN_AHEAD: u64 = 1 << 31;

/// The message carries remote data.
pub const HAS_DATA: u8 = 1;

/// What a message is besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    pub kind: Kind,
    pub flags: u8,
    pub tag: u64,
    pub data: u64,
}

/// A message to be sent.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub envelope: Envelope,
    pub iov: &'a [libc::iovec],
    /// Bytes in all of `iov`.
    pub total: usize,
    /// What the message carries of others' deliveries, as bytes; nothing under most protocols.
    pub piggyback: &'a [u8],
}

/// An entry as the reader sees it; its payload is read with [`Reader::copy_payload`].
#[derive(Clone, Copy)]
pub struct Entry {
    pub envelope: Envelope,
    /// Bytes of the whole message (FIRST kinds) or offset of this piece (MORE).
    pub total: u64,
    pub bytes: usize,
    /// [`Arena::mark`] of the sender.
    pub mark: u16,
    /// Bytes of the piggyback in this entry, and whether there are more before it.
    piggyback: usize,
    began_ahead: bool,
}

impl Entry {
    /// See [`crate::record::stamp`].
    pub fn stamp(&self) -> u64 {
        let Envelope { kind, flags, tag, data } = self.envelope;
        crate::record::stamp([kind as u64 | (flags as u64) << 8, tag, data, self.total])
    }
}

/// Room that so much of a piggyback takes before the payload.
fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}

fn mark(kind: Kind, flags: u8, wave: u16, bytes: usize) -> u64 {
    kind as u64 | (flags as u64) << 8 | (wave as u64) << 16 | (bytes as u64) << 32
}

/// # Safety
/// `place` is the 8-aligned start of an entry in a mapped segment.
#[inline]
unsafe fn atomic<'a>(place: *const u8) -> &'a AtomicU64 {
    // SAFETY: aligned, mapped for the life of the process, accessed only as an atomic.
    unsafe { &*place.cast::<AtomicU64>() }
}

/// Pieces of memory that make up one message.
pub struct Pieces<'a> {
    iov: &'a [libc::iovec],
    index: usize,
    offset: usize,
}

impl<'a> Pieces<'a> {
    pub fn new(iov: &'a [libc::iovec]) -> Self {
        Pieces {
            iov,
            index: 0,
            offset: 0,
        }
    }

    /// Steps over the next `bytes` bytes.
    pub fn skip(&mut self, bytes: usize) {
        self.take(bytes, |_, _| ());
    }

    /// Copies the next bytes to `to`, until that is full.
    pub fn copy_next(&mut self, to: &mut [u8]) {
        // SAFETY: the slice is the room.
        unsafe { self.copy_to(to.as_mut_ptr(), to.len()) };
    }

    /// Hands the next `bytes` bytes to `each`, run by run.
    fn take(&mut self, mut bytes: usize, mut each: impl FnMut(*const u8, usize)) {
        while bytes > 0 {
            let iov = &self.iov[self.index];
            let run = bytes.min(iov.iov_len - self.offset);
            // SAFETY: stays inside the piece the caller of the send gave.
            each(unsafe { iov.iov_base.cast::<u8>().add(self.offset) }, run);
            self.offset += run;
            bytes -= run;
            if self.offset == iov.iov_len {
                self.index += 1;
                self.offset = 0;
            }
        }
    }

    /// Copies the next `bytes` bytes to `to`.
    #[inline]
    unsafe fn copy_to(&mut self, to: *mut u8, bytes: usize) {
        let mut done = 0;
        self.take(bytes, |from, run| {
            // SAFETY: the caller gives room for `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(done), run) };
            done += run;
        });
    }

    /// Calls `differs` with the offset of every one of the next `bytes` bytes that is not as it is at `there`.
    unsafe fn compare(&mut self, there: *const u8, bytes: usize, mut differs: impl FnMut(usize)) {
        let mut done = 0;
        self.take(bytes, |from, run| {
            // SAFETY: both sides are readable for `run` bytes.
            let (now, before) = unsafe {
                (
                    std::slice::from_raw_parts(from, run),
                    std::slice::from_raw_parts(there.add(done), run),
                )
            };
            if now != before {
                let unequal = now
                    .iter()
                    .zip(before)
                    .enumerate()
                    .filter(|(_, (now, before))| now != before);
                unequal.for_each(|(at, _)| differs(done + at));
            }
            done += run;
        });
    }
}

/// Segments that a message of `bytes` may need when its channel has none.
pub fn segments_for(bytes: usize) -> usize {
    bytes / (SEGMENT - LOST) + 2
}

/// The place where the next entry of a channel goes.
pub struct Writer {
    destination: usize,
    segment: *mut u8,
    place: usize,
    /// Segments of this channel, oldest first, the open one included: serial and slot.
    outstanding: VecDeque<(u64, usize)>,
    consumed: u64,
    /// Where the channel was at this rank's cut.
    cut: Place,
    /// Slots of segments that have been read and are part of what is in transit in a wave: its number beside each.
    in_transit: Vec<(u64, usize)>,
    /// What must be kept although it has been read (inside a group).
    kept: Kept,
    /// The segment that the receiver read when the group stood still for a wave.
    stood_at: u64,
    /// The segment that the receiver read, and the oldest wave there was, when segments were last given back inside a group.
    forgotten_at: (u64, u64),
    /// Messages begun on this channel.
    begun: u64,
    /// Up to where the open segment, and the one that will come next, have been prefetched while nothing else was to do.
    warm: usize,
    warm_next: usize,
}

/// A published or held entry's mark, to be stored later.
#[derive(Clone, Copy)]
pub struct HeldMark {
    place: *const u8,
    mark: u64,
}

impl HeldMark {
    pub fn publish(self) {
        // SAFETY: the place of an entry in an own segment that is not recycled while a mark is held.
        unsafe { atomic(self.place) }.store(self.mark, Ordering::Release);
    }
}

/// How far a message has been written.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    pub done: usize,
    pub started: bool,
}

impl Writer {
    pub fn new(destination: usize) -> Self {
        Writer {
            destination,
            segment: std::ptr::null_mut(),
            place: 0,
            outstanding: Default::default(),
            consumed: 0,
            cut: Place::default(),
            in_transit: Vec::new(),
            kept: Kept::default(),
            stood_at: 0,
            forgotten_at: (0, 0),
            begun: 0,
            warm: 0,
            warm_next: 0,
        }
    }

    /// Continues a log that a former life began, behind everything `reader` has read: `begun` messages, in these segments.
    pub fn behind(destination: usize, reader: &Reader, begun: u64, segments: VecDeque<(u64, usize)>) -> Self {
        let mut writer = Writer::new(destination);
        writer.begun = begun;
        writer.outstanding = segments;
        if !reader.segment.is_null() {
            assert!(reader.copy.is_none(), "the open segment of a channel is never spilled");
            writer.segment = reader.segment.cast_mut();
            writer.place = reader.place;
        }
        writer
    }

    pub fn destination(&self) -> usize {
        self.destination
    }

    /// Messages begun on this channel.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// The process has returned to a wave: the channel has no segments, and goes on.
    pub fn restart(&mut self) {
        (self.segment, self.place) = (std::ptr::null_mut(), 0);
        (self.consumed, self.warm, self.warm_next) = (0, 0, 0);
        self.outstanding.clear();
        (self.cut, self.in_transit) = (Place::default(), Vec::new());
    }

    /// After [`Writer::restart`]: goes on at `place` of the segment `last` names, behind what was in transit, which begins in
    /// segment `first`; the agent numbers segments one after another, and slots like them.
    pub fn find(&mut self, node: &Node, first: u64, last: u64, place: usize) {
        let ((first, _), (last, slot)) = (nm::dereference(first), nm::dereference(last));
        self.outstanding = (first..=last).map(|serial| (serial, serial as usize)).collect();
        (self.segment, self.place) = (node.segment(node.rank, slot), place);
    }

    /// This rank copies itself for `wave`: where the channel ends, as a reference and an offset.
    pub fn cut(&mut self, wave: u64) -> (u64, usize) {
        let (segment, reference) = match self.outstanding.back() {
            Some(&(serial, slot)) => (serial, nm::reference(serial, slot)),
            None => (0, 0),
        };
        self.cut = Place { wave, segment };
        (reference, self.place)
    }

    /// All ranks of the group stand still for a wave: where the receiver is, is where its image will be. It goes on when it has
    /// that, which may be before this rank has its own.
    pub fn stand_inside(&mut self, node: &Node) {
        self.stood_at = node.consumed(node.rank, self.destination).load(Ordering::Acquire);
    }

    /// This rank copies itself for `wave` of its group.
    pub fn cut_inside(&mut self, wave: u64) {
        if let Some(&(last, _)) = self.outstanding.back() {
            self.kept.cut(wave, self.stood_at, last);
        }
    }

    /// The group has returned to the wave of the image that this writer is part of, and the log ends where it did. Calls `each`
    /// with the slot of every segment that is still needed.
    pub fn returned_inside(&mut self, node: &Node, mut each: impl FnMut(usize)) {
        self.kept.forget_before(node.oldest_wave());
        let kept = &self.kept;
        self.outstanding.retain(|(serial, _)| kept.is_needed(*serial, u64::MAX));
        self.outstanding.iter().for_each(|(_, slot)| each(*slot));
        self.forgotten_at = (0, 0);
        (self.warm, self.warm_next) = (0, 0);
    }

    /// Something has been written.
    pub fn has_begun(&self) -> bool {
        !self.segment.is_null()
    }

    /// The log ends here: what has been written behind this place is void. The segment is still there, because no receiver
    /// has an image that has read beyond this place.
    pub fn cut_off(&self) {
        // SAFETY: the place of a mark in an own segment.
        unsafe { atomic(self.segment.add(self.place)) }.store(0, Ordering::Release);
    }

    /// True when the channel may take another segment (without retention a channel is bounded).
    pub fn has_room(&mut self, arena: &mut Arena, node: &Node) -> bool {
        if arena.retains() || !self.is_full() {
            return true;
        }
        self.reclaim(arena, node);
        self.outstanding.len() < Arena::WINDOW
    }

    /// The next entry needs another segment.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.segment.is_null() || self.place + HEADER > PAYLOAD_END
    }

    /// Segments that a message of `bytes` may need besides the open one.
    #[inline]
    pub fn segments_for(&self, bytes: usize) -> usize {
        if !self.is_full() && self.place + HEADER + bytes <= PAYLOAD_END {
            return 0;
        }
        segments_for(bytes)
    }

    /// Gives back the segments that nobody can ask for again.
    pub fn reclaim(&mut self, arena: &mut Arena, node: &Node) {
        if arena.retains() {
            self.forget(arena, node);
            return;
        }
        let consumed = node.consumed(node.rank, self.destination).load(Ordering::Acquire);
        if node.chandy_lamport {
            return self.reclaim_beside_waves(arena, node, consumed);
        }
        while self.consumed < consumed {
            self.consumed += 1;
            let (_, slot) = self
                .outstanding
                .pop_front()
                .expect("only segments handed over are consumed");
            arena.free(node, slot);
        }
    }

    /// The same where ranks copy themselves while others go on.
    fn reclaim_beside_waves(&mut self, arena: &mut Arena, node: &Node, consumed: u64) {
        // In this order: what the receiver has read since its cut is seen with the cut.
        let (receiver, over) = (node.cut_of(self.destination), node.waves().over);
        self.in_transit.retain(|(wave, slot)| {
            let needed = *wave > over;
            if !needed {
                arena.free(node, *slot);
            }
            needed
        });
        while self.consumed < consumed {
            self.consumed += 1;
            let (serial, slot) = self
                .outstanding
                .pop_front()
                .expect("only segments handed over are consumed");
            if receiver.is_needed(serial, self.cut, over) {
                self.in_transit.push((receiver.wave, slot));
            } else {
                arena.free(node, slot);
            }
        }
    }

    /// With retention: the receiver's oldest usable image has read beyond them.
    fn forget(&mut self, arena: &mut Arena, node: &Node) {
        if node.is_inside(self.destination) {
            return self.forget_inside(arena, node);
        }
        let needed = node.needed_from(node.rank, self.destination);
        let mut forgotten = self
            .outstanding
            .iter()
            .take_while(|(serial, _)| *serial < needed)
            .count();
        if forgotten == 0 {
            return;
        }
        assert!(
            forgotten < self.outstanding.len(),
            "a receiver cannot have read beyond the open segment"
        );
        // The channel begins behind them before they are used for anything else.
        let (serial, slot) = self.outstanding[forgotten];
        node.channel(node.rank, self.destination)
            .store(nm::reference(serial, slot), Ordering::Release);
        while forgotten > 0 {
            if let Some((serial, slot)) = self.outstanding.pop_front() {
                arena.forget(node, serial, slot);
            }
            forgotten -= 1;
        }
    }

    /// Inside a group: the receiver has read them, and no wave has them in transit.
    fn forget_inside(&mut self, arena: &mut Arena, node: &Node) {
        let reads = node.consumed(node.rank, self.destination).load(Ordering::Acquire);
        let oldest = node.oldest_wave();
        if std::mem::replace(&mut self.forgotten_at, (reads, oldest)) == (reads, oldest) {
            return;
        }
        self.kept.forget_before(oldest);
        let last = self.outstanding.len().saturating_sub(1);
        let is_needed =
            |(index, (serial, _)): (usize, &(u64, usize))| index == last || self.kept.is_needed(*serial, reads);
        if let Some(index) = self.outstanding.iter().enumerate().position(is_needed)
            && index > 0
        {
            // The channel begins behind them before they are used for anything else.
            let (serial, slot) = self.outstanding[index];
            node.channel(node.rank, self.destination)
                .store(nm::reference(serial, slot), Ordering::Release);
        }
        let outstanding = std::mem::take(&mut self.outstanding);
        for (index, segment) in outstanding.into_iter().enumerate() {
            if index == last || self.kept.is_needed(segment.0, reads) {
                self.outstanding.push_back(segment);
            } else {
                arena.give_back(node, segment.0, segment.1);
            }
        }
    }

    /// Moves to a fresh segment; false when the channel may not have one now.
    fn next_segment(&mut self, arena: &mut Arena, node: &Node) -> bool {
        self.reclaim(arena, node);
        if !arena.retains() && self.outstanding.len() >= Arena::WINDOW {
            return false;
        }
        let Some((reference, slot)) = arena.take(node) else {
            return false;
        };
        let fresh = node.segment(node.rank, slot);
        // SAFETY: start of an own segment, and the place of its first entry.
        unsafe {
            atomic(fresh).store(self.begun, Ordering::Relaxed);
            atomic(fresh.add(ALIGN)).store(0, Ordering::Relaxed);
        }
        if self.segment.is_null() {
            node.channel(node.rank, self.destination)
                .store(reference, Ordering::Release);
        } else {
            // SAFETY: 64 bytes are always left at `place`.
            unsafe {
                let entry = self.segment.add(self.place);
                atomic(entry.add(16)).store(reference, Ordering::Relaxed);
                atomic(entry).store(mark(Kind::Jump, 0, 0, 0), Ordering::Release);
            }
            arena.closed(node, self.segment);
        }
        self.outstanding.push_back((nm::dereference(reference).0, slot));
        self.segment = fresh;
        self.place = ALIGN;
        self.warm = std::mem::take(&mut self.warm_next);
        true
    }

    /// Writes as much of the message as there is room for and publishes it piece by piece; with `hold` the first mark is
    /// not stored but returned. `after` is called behind every published piece. True in the answer: all is written.
    pub fn append(
        &mut self,
        arena: &mut Arena,
        node: &Node,
        message: Message,
        progress: &mut Progress,
        hold: bool,
    ) -> (bool, Option<HeldMark>) {
        let Message { envelope, total, .. } = message;
        let mut pieces = Pieces::new(message.iov);
        pieces.skip(progress.done);
        let mut held = None;
        let mut piggyback = if progress.started { &[] } else { message.piggyback };
        let began_ahead = piggyback.len() > INLINE;
        if began_ahead {
            let (ahead, inline) = piggyback.split_at(piggyback.len() - INLINE);
            if !self.append_ahead(arena, node, ahead) {
                return (false, held);
            }
            piggyback = inline;
        }
        while !progress.started || progress.done < total {
            // A first piece in the last line of a segment would carry nothing but its header: fine for small messages.
            let before = padded(piggyback.len());
            let is_full = self.is_full() || self.place + HEADER + before > PAYLOAD_END;
            if is_full && !self.next_segment(arena, node) {
                return (false, held);
            }
            let room = PAYLOAD_END - self.place - HEADER - before;
            let bytes = (total - progress.done).min(room).min(PIECE);
            // SAFETY: the entry and the next mark lie inside the own segment: payload ends at PAYLOAD_END at the latest.
            unsafe {
                let entry = self.segment.add(self.place);
                std::ptr::copy_nonoverlapping(piggyback.as_ptr(), entry.add(HEADER), piggyback.len());
                if arena.retains() && bytes > AHEAD {
                    self.copy_ahead(&mut pieces, self.place + HEADER + before, bytes);
                } else {
                    pieces.copy_to(entry.add(HEADER + before), bytes);
                }
                let next = (self.place + HEADER + before + bytes + ALIGN - 1) & !(ALIGN - 1);
                atomic(self.segment.add(next)).store(0, Ordering::Relaxed);
                let word = if progress.started {
                    atomic(entry.add(16)).store(progress.done as u64, Ordering::Relaxed);
                    mark(Kind::More, 0, arena.mark, bytes)
                } else {
                    atomic(entry.add(8)).store(envelope.tag, Ordering::Relaxed);
                    atomic(entry.add(16)).store(total as u64, Ordering::Relaxed);
                    atomic(entry.add(24)).store(envelope.data, Ordering::Relaxed);
                    self.begun += 1;
                    let began_ahead = if began_ahead { BEGAN_AHEAD } else { 0 };
                    let piggyback = (piggyback.len() as u64) << PIGGYBACK_SHIFT;
                    mark(envelope.kind, envelope.flags, arena.mark, bytes) | piggyback | began_ahead
                };
                if hold && !progress.started {
                    held = Some(HeldMark {
                        place: entry,
                        mark: word,
                    });
                } else {
                    atomic(entry).store(word, Ordering::Release);
                }
                self.place = next;
            }
            piggyback = &[];
            progress.started = true;
            progress.done += bytes;
            if arena.retains() && progress.done == total {
                self.prefetch(bytes);
            }
            if !hold && progress.done < total {
                crate::doorbell::ring(node, self.destination);
            }
        }
        (true, held)
    }

    /// The beginning of a long piggyback.
    #[cold]
    fn append_ahead(&mut self, arena: &mut Arena, node: &Node, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            if self.is_full() && !self.next_segment(arena, node) {
                return false;
            }
            let run = (bytes.len() - done).min(PAYLOAD_END - self.place - HEADER);
            // SAFETY: the entry and the next mark lie inside the own segment: its bytes end at PAYLOAD_END at the latest.
            unsafe {
                let entry = self.segment.add(self.place);
                std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), entry.add(HEADER), run);
                let next = (self.place + HEADER + run + ALIGN - 1) & !(ALIGN - 1);
                atomic(self.segment.add(next)).store(0, Ordering::Relaxed);
                atomic(entry.add(16)).store(done as u64, Ordering::Relaxed);
                atomic(entry).store(mark(Kind::Ahead, 0, 0, run), Ordering::Release);
                self.place = next;
            }
            done += run;
        }
        true
    }
}

impl Writer {
    /// Copies the next `bytes` bytes to `place` of the open segment. A retained log writes to memory that is in no cache: the
    /// processor fetches some of it while it copies what came before.
    ///
    /// # Safety
    /// `bytes` from `place` on lie inside the segment.
    unsafe fn copy_ahead(&self, pieces: &mut Pieces, place: usize, bytes: usize) {
        let end = place + bytes;
        for from in (place..end).step_by(AHEAD / 2) {
            let run = (end - from).min(AHEAD / 2);
            let fetched = (from + AHEAD) & !(ALIGN - 1);
            prefetch(self.segment, fetched, fetched + run);
            // SAFETY: inside of what the caller gives.
            unsafe { pieces.copy_to(self.segment.add(from), run) };
        }
    }

    /// A retained log always writes to memory that is in no cache: asks for the lines that a next message like this one
    /// would take while nobody waits for them.
    #[inline]
    fn prefetch(&self, bytes: usize) {
        let end = (self.place + HEADER + bytes.min(PREFETCH)).min(SEGMENT);
        prefetch(self.segment, self.place.max(self.warm), end);
    }

    /// The same for a few lines further on each time, while this rank waits for somebody else.
    #[inline]
    pub fn warm_up(&mut self, arena: &Arena, node: &Node) {
        if self.segment.is_null() {
            return;
        }
        let from = self.warm.max(self.place);
        if from < SEGMENT {
            self.warm = from + WARM;
            prefetch(self.segment, from, self.warm);
        } else if self.warm_next < SEGMENT
            && let Some(slot) = arena.next_slot()
        {
            prefetch(node.segment(node.rank, slot), self.warm_next, self.warm_next + WARM);
            self.warm_next += WARM;
        }
    }
}

/// Asks for lines of an own segment in order to write to them.
#[inline]
fn prefetch(segment: *mut u8, from: usize, to: usize) {
    for line in (from..to.min(SEGMENT)).step_by(ALIGN) {
        // SAFETY: inside the segment; a prefetch changes nothing.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) segment.add(line), options(nostack, preserves_flags)) };
    }
}

/// Reads one channel's log from its beginning.
pub struct Reader {
    pub source: usize,
    destination: usize,
    segment: *const u8,
    slot: usize,
    serial: u64,
    place: usize,
    /// The segment's bytes when it was recycled by its owner and had to be read from the spill file.
    copy: Option<Box<[u8]>>,
    /// Bytes between the header and the payload of the entry that was found last.
    before: usize,
    /// The beginning of the piggyback of the message to come.
    ahead: Vec<u8>,
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
        }
    }

    /// The process has returned to a wave: the channel begins with what is sent next.
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

    /// Inside a group the sender may use what is before this place again.
    fn tell_reading(&self, node: &Node) {
        if node.is_inside(self.source) && self.destination == node.rank {
            node.consumed(self.source, self.destination)
                .store(self.serial, Ordering::Release);
        }
    }

    /// Messages that begin before the segment being read. Call after a `peek` that found something.
    pub fn begun_before(&self) -> u64 {
        // SAFETY: the start of the segment or of its copy.
        unsafe { atomic(self.segment) }.load(Ordering::Relaxed)
    }

    /// Goes to the first segment of a channel that has one.
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

    /// Another reader at the same place. Only for own logs.
    pub fn again(&self) -> Reader {
        let copy = self.copy.clone();
        Reader {
            segment: copy.as_ref().map_or(self.segment, |copy| copy.as_ptr()),
            copy,
            ahead: Vec::new(),
            ..*self
        }
    }

    /// False when the owner has recycled the slot since: what was read from it must be read again from the file.
    #[inline]
    fn in_memory(&self, node: &Node) -> bool {
        !node.spill
            || self.copy.is_some()
            || node.serial_in(self.source, self.slot).load(Ordering::Acquire) == self.serial + 1
    }

    /// The next entry, or None when the sender has published nothing more. What comes ahead of a message is stepped over and
    /// kept for [`Self::piggyback`].
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
        ahead.resize(from + bytes, 0);
        // SAFETY: room was just made.
        unsafe { self.copy_payload(node, 0, ahead[from..].as_mut_ptr(), bytes) };
        self.ahead = ahead;
        self.advance(bytes);
    }

    /// Replaces `bytes` by the piggyback of the message whose first entry `peek` returned.
    #[inline]
    pub fn piggyback(&mut self, node: &Node, entry: &Entry, bytes: &mut Vec<u8>) {
        bytes.clear();
        if entry.began_ahead {
            bytes.append(&mut self.ahead);
        }
        let from = bytes.len();
        bytes.resize(from + entry.piggyback, 0);
        // It stands between the header and what is the payload otherwise.
        let before = std::mem::take(&mut self.before);
        // SAFETY: room was just made.
        unsafe { self.copy_payload(node, 0, bytes[from..].as_mut_ptr(), entry.piggyback) };
        self.before = before;
    }

    /// Where the next entry stands or will stand, in one word: for [`Self::at`].
    pub fn reached(&self) -> u64 {
        nm::reference(self.serial, self.slot) << 10 | (self.place / ALIGN) as u64
    }

    /// A reader of a channel that goes on at `place`, as [`Self::reached`] gave it; 0: the beginning.
    pub fn at(source: usize, destination: usize, node: &Node, place: u64) -> Reader {
        let mut reader = Reader::new(source, destination);
        if place != 0 {
            reader.enter(node, place >> 10);
            reader.place = (place & 0x3ff) as usize * ALIGN;
        }
        reader
    }

    /// The next entry of any kind.
    #[inline]
    pub fn peek_any(&mut self, node: &Node) -> Option<Entry> {
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
                    (word, field(8), field(16), field(24))
                }
            };
            if !self.in_memory(node) {
                self.copy_from_spill(node);
                continue;
            }
            if word == 0 {
                return None;
            }
            let kind = KINDS[(word & 0xff) as usize - 1];
            if kind == Kind::Jump {
                if !node.logs {
                    node.consumed(self.source, self.destination)
                        .fetch_add(1, Ordering::SeqCst);
                    crate::doorbell::wake(node, self.source);
                }
                self.enter(node, total);
                self.tell_reading(node);
                continue;
            }
            // The same bits are the sender's wave where there are waves and no piggybacks.
            let carried = if node.piggybacking { word } else { 0 };
            let piggyback = (carried >> PIGGYBACK_SHIFT) as usize & 0x7fff;
            self.before = padded(piggyback);
            return Some(Entry {
                piggyback,
                began_ahead: carried & BEGAN_AHEAD != 0,
                envelope: Envelope {
                    kind,
                    flags: (word >> 8) as u8,
                    tag,
                    data,
                },
                total,
                bytes: (word >> 32) as usize,
                mark: (word >> 16) as u16,
            });
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
        }
    }

    /// Calls `differs` with every offset at which the payload of the entry `peek` returned is not as the next bytes of
    /// `pieces`. Only for own logs.
    pub fn compare(&mut self, pieces: &mut Pieces, bytes: usize, differs: impl FnMut(usize)) {
        // SAFETY: an own segment is recycled by nobody else meanwhile.
        unsafe { pieces.compare(self.segment.add(self.place + HEADER + self.before), bytes, differs) }
    }

    /// Steps over an entry of `bytes` payload bytes.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.place = (self.place + HEADER + self.before + bytes + ALIGN - 1) & !(ALIGN - 1);
        self.before = 0;
    }

    fn copy_from_spill(&mut self, node: &Node) {
        let number = node.spilled_to(self.source, self.serial).load(Ordering::Acquire);
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

    /// Where the next entry is read, as a reference and an offset; reference 0: nothing has been read.
    pub fn place(&self) -> (u64, usize) {
        if self.segment.is_null() {
            return (0, 0);
        }
        (nm::reference(self.serial, self.slot), self.place)
    }

    /// Serial of the segment being read; what lies before it is not needed any more. 0 before the first entry.
    pub fn serial(&self) -> u64 {
        self.serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::{pair, set_one_group, set_waves};
    use resurgo_wire::node_memory::{CutTable, arena as fields};

    const ENVELOPE: Envelope = Envelope {
        kind: Kind::Tagged,
        flags: HAS_DATA,
        tag: 7,
        data: 9,
    };

    fn pattern(length: usize, seed: usize) -> Vec<u8> {
        (0..length)
            .map(|index| (index * 31 + seed * 17 + index / 251) as u8)
            .collect()
    }

    fn append(writer: &mut Writer, arena: &mut Arena, node: &Node, bytes: &[u8], progress: &mut Progress) -> bool {
        // In two pieces, so that entries and pieces of memory do not end together.
        let cut = bytes.len() / 3;
        let piece = |part: &[u8]| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        let iov = [piece(&bytes[..cut]), piece(&bytes[cut..])];
        let message = Message {
            envelope: ENVELOPE,
            iov: &iov,
            total: bytes.len(),
            piggyback: &[],
        };
        writer.append(arena, node, message, progress, false).0
    }

    /// Reads what there is of one message, after `done` bytes of it.
    fn read(reader: &mut Reader, node: &Node, done: &mut Vec<u8>) -> Option<usize> {
        let mut total = None;
        while let Some(entry) = reader.peek(node) {
            let at = done.len();
            done.resize(at + entry.bytes, 0);
            // SAFETY: room was just made.
            unsafe { reader.copy_payload(node, 0, done[at..].as_mut_ptr(), entry.bytes) };
            reader.advance(entry.bytes);
            match entry.envelope.kind {
                Kind::More => assert_eq!(entry.total as usize, at),
                _ => {
                    assert_eq!(entry.envelope, ENVELOPE);
                    total = Some(entry.total as usize);
                }
            }
            if total == Some(done.len()) {
                break;
            }
        }
        total
    }

    #[test]
    fn messages_of_every_size_come_out_as_they_went_in() {
        let (sender, receiver) = pair(256, true);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let mut reader = Reader::new(0, 1);
        let sizes = [
            0,
            1,
            31,
            32,
            33,
            63,
            64,
            65,
            4095,
            32767,
            32768,
            65440,
            65472,
            65504,
            65536,
            65537,
            1 << 20,
            3,
        ];
        for (seed, &size) in sizes.iter().enumerate() {
            let bytes = pattern(size, seed);
            assert!(append(
                &mut writer,
                &mut arena,
                &sender,
                &bytes,
                &mut Progress::default()
            ));
        }
        for (seed, &size) in sizes.iter().enumerate() {
            let mut got = Vec::new();
            assert_eq!(read(&mut reader, &receiver, &mut got), Some(size));
            assert_eq!(got, pattern(size, seed));
        }
        assert!(reader.peek(&receiver).is_none());
        // A retained log is read again from its beginning by a receiver that has lost everything.
        let mut again = Reader::new(0, 1);
        let mut got = Vec::new();
        assert_eq!(read(&mut again, &receiver, &mut got), Some(0));
    }

    #[test]
    fn piggybacks_of_every_size_come_out_with_their_messages() {
        let (sender, mut receiver) = pair(256, true);
        receiver.piggybacking = true;
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let payload = pattern(40, 3);
        let iov = [libc::iovec {
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        }];
        let sizes = [0, 3, 8, 1000, 1024, 1025, 70_000, 2, 200_000, 0, 64_300, 65_400];
        for (seed, &size) in sizes.iter().enumerate() {
            if size == 200_000 {
                // A former life was killed when only the beginning of its piggyback was there.
                assert!(writer.append_ahead(&mut arena, &sender, &pattern(5000, 99)));
            }
            let piggyback = pattern(size, seed);
            let message = Message {
                envelope: ENVELOPE,
                iov: &iov,
                total: payload.len(),
                piggyback: &piggyback,
            };
            assert!(
                writer
                    .append(&mut arena, &sender, message, &mut Progress::default(), false)
                    .0
            );
        }
        let mut reader = Reader::new(0, 1);
        let (mut piggyback, mut place) = (Vec::new(), 0);
        for (seed, &size) in sizes.iter().enumerate() {
            let mut other = Reader::at(0, 1, &receiver, place);
            let entry = other.peek(&receiver).expect("as many as were written");
            other.piggyback(&receiver, &entry, &mut piggyback);
            assert!(piggyback == pattern(size, seed), "{size}");
            let entry = reader.peek(&receiver).expect("as many as were written");
            reader.piggyback(&receiver, &entry, &mut piggyback);
            assert!(piggyback == pattern(size, seed), "{size}");
            let mut got = vec![0; entry.bytes];
            // SAFETY: as much room as the entry has bytes.
            unsafe { reader.copy_payload(&receiver, 0, got.as_mut_ptr(), entry.bytes) };
            assert_eq!(got, payload);
            reader.advance(entry.bytes);
            place = reader.reached();
        }
        assert!(reader.peek(&receiver).is_none());
    }

    #[test]
    fn an_entry_whose_mark_was_not_stored_does_not_exist() {
        let (sender, receiver) = pair(16, true);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let message = Message {
            envelope: ENVELOPE,
            iov: &[],
            total: 0,
            piggyback: &[],
        };
        let (_, held) = writer.append(&mut arena, &sender, message, &mut Progress::default(), true);
        let mut reader = Reader::new(0, 1);
        assert!(reader.peek(&receiver).is_none());
        held.expect("it was to be held").publish();
        assert_eq!(reader.peek(&receiver).map(|entry| entry.envelope), Some(ENVELOPE));
    }

    #[test]
    fn a_later_life_goes_on_behind_what_the_former_wrote() {
        let (sender, receiver) = pair(64, true);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        for seed in 0..5 {
            append(
                &mut writer,
                &mut arena,
                &sender,
                &pattern(30_000, seed),
                &mut Progress::default(),
            );
        }
        let mut walk = Reader::new(0, 1);
        while let Some(entry) = walk.peek(&sender) {
            walk.advance(entry.bytes);
        }
        let mut second = Writer::behind(1, &walk, 0, VecDeque::new());
        append(
            &mut second,
            &mut arena,
            &sender,
            &pattern(100, 5),
            &mut Progress::default(),
        );
        let mut reader = Reader::new(0, 1);
        for (seed, size) in [
            (0, 30_000),
            (1, 30_000),
            (2, 30_000),
            (3, 30_000),
            (4, 30_000),
            (5, 100),
        ] {
            let mut got = Vec::new();
            assert_eq!(read(&mut reader, &receiver, &mut got), Some(size));
            assert_eq!(got, pattern(size, seed));
        }
    }

    #[test]
    fn without_retention_segments_come_back_when_they_are_read() {
        let (sender, receiver) = pair(64, false);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let mut reader = Reader::new(0, 1);
        let bytes = pattern(8 << 20, 1);
        let (mut progress, mut got) = (Progress::default(), Vec::new());
        let mut rounds = 0;
        while got.len() < bytes.len() {
            append(&mut writer, &mut arena, &sender, &bytes, &mut progress);
            read(&mut reader, &receiver, &mut got);
            rounds += 1;
            assert!(rounds < 1000, "the writer waits for ever");
        }
        assert!(got == bytes);
        assert!(rounds > 8, "a channel without retention is bounded");
    }

    /// Of what the receiver reads behind its cut, the sender keeps what it has written before its own, until the wave is over.
    #[test]
    fn what_is_in_transit_in_a_wave_is_not_written_over() {
        let (mut sender, mut receiver) = pair(64, false);
        (sender.chandy_lamport, receiver.chandy_lamport) = (true, true);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let mut reader = Reader::new(0, 1);
        let mut pass = |arena: &mut Arena, writer: &mut Writer, bytes: usize| {
            let (bytes, mut progress, mut got) = (pattern(bytes, 1), Progress::default(), Vec::new());
            while got.len() < bytes.len() {
                append(writer, arena, &sender, &bytes, &mut progress);
                read(&mut reader, &receiver, &mut got);
            }
            assert!(got == bytes);
            reader.place()
        };
        let all_are_kept = |first: u64, last: u64| {
            let kept: Vec<u64> = (0..64)
                .map(|slot| sender.serial_in(0, slot).load(Ordering::Relaxed))
                .collect();
            (first..=last).all(|serial| kept.contains(&(serial + 1)))
        };
        let (reading, _) = pass(&mut arena, &mut writer, 150_000);
        set_waves(&sender, 1, 0);
        receiver.cut(CutTable::Reading, 0).store(reading, Ordering::Relaxed);
        receiver.own(fields::CUT).store(1, Ordering::Release);
        pass(&mut arena, &mut writer, 400_000);
        writer.cut(1);
        let ((first, _), (last, _)) = (
            nm::dereference(reading),
            writer.outstanding[writer.outstanding.len() - 1],
        );
        assert!(first > 0 && last > first + 4);
        for _ in 0..20 {
            pass(&mut arena, &mut writer, 500_000);
            assert!(all_are_kept(first, last));
        }
        set_waves(&sender, 1, 1);
        for _ in 0..20 {
            pass(&mut arena, &mut writer, 500_000);
        }
        assert!(!all_are_kept(first, last));
        assert!(
            arena.next_slot().is_none_or(|slot| slot < 40),
            "segments are used again"
        );
    }

    /// Inside a group logs keep what has not been read, and what is in transit in a wave that may be returned to.
    #[test]
    fn inside_a_group_segments_come_back_when_they_are_read_but_for_what_a_wave_needs() {
        let (mut sender, mut receiver) = pair(64, true);
        set_one_group(&mut sender, 0);
        set_one_group(&mut receiver, 0);
        let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(1));
        let mut reader = Reader::new(0, 1);
        let send = |arena: &mut Arena, writer: &mut Writer, count: usize| {
            for seed in 0..count {
                let mut progress = Progress::default();
                assert!(append(writer, arena, &sender, &pattern(100_000, seed), &mut progress));
            }
        };
        let mut receive = |count: usize| {
            for seed in 0..count {
                let mut got = Vec::new();
                assert_eq!(read(&mut reader, &receiver, &mut got), Some(100_000));
                assert!(got == pattern(100_000, seed));
            }
        };
        for _ in 0..100 {
            send(&mut arena, &mut writer, 5);
            receive(5);
        }
        assert!(
            arena.next_slot().is_some_and(|slot| slot < 30),
            "segments are used again"
        );
        send(&mut arena, &mut writer, 5);
        writer.stand_inside(&sender);
        let in_transit: Vec<(u64, usize)> = writer.outstanding.iter().copied().collect();
        // The receiver has been copied, and goes on, before the sender is.
        receive(5);
        writer.cut_inside(1);
        let all_are_there = |sender: &Node| {
            let lies = |(serial, slot): &(u64, usize)| sender.serial_in(0, *slot).load(Ordering::Relaxed) == serial + 1;
            in_transit.iter().all(lies)
        };
        for _ in 0..20 {
            send(&mut arena, &mut writer, 5);
            receive(5);
            assert!(all_are_there(&sender));
        }
        // The group returns: what the image holds of the writer goes on with these segments and no others.
        let mut kept = Vec::new();
        writer.returned_inside(&sender, |slot| kept.push(slot));
        assert!(in_transit.iter().all(|(_, slot)| kept.contains(slot)));
        assert!(kept.len() <= in_transit.len() + 1, "{kept:?} {in_transit:?}");
    }
}

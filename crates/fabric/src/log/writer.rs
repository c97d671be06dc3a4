//! The sender's side of a channel.

use super::*;

/// The place where the next entry of a channel goes.
pub struct Writer {
    destination: usize,
    segment: *mut u8,
    place: usize,
    pub(super) outstanding: Outstanding,
    retention: Retention,
    /// Messages begun on this channel.
    begun: u64,
    /// The end of the prefetched part of the open segment, and of the next one.
    warm: usize,
    warm_next: usize,
    /// The connection for the log to a rank of another node, if ranks have such.
    pub direct: Option<Box<direct::Outgoing>>,
    /// Bytes published since the receiver was told.
    untold: usize,
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

/// The written part of a message.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    pub done: usize,
    pub started: bool,
}

impl Writer {
    pub fn new(node: &Node, destination: usize) -> Self {
        Writer {
            destination,
            segment: std::ptr::null_mut(),
            place: 0,
            outstanding: Default::default(),
            retention: Retention::of(node, destination),
            begun: 0,
            warm: 0,
            warm_next: 0,
            direct: None,
            untold: 0,
        }
    }

    /// Tells the receiver that the channel has news. Call after publishing.
    #[inline]
    pub fn ring(&mut self, node: &Node) {
        self.untold = 0;
        let is_told = match &mut self.direct {
            Some(direct) => direct.push(node),
            None => false,
        };
        if !is_told {
            crate::doorbell::ring(node, self.destination);
        }
    }

    /// The same when more follows at once.
    #[inline]
    fn ring_between(&mut self, node: &Node, bytes: usize) {
        self.untold += bytes;
        if self.direct.is_none() || self.untold >= TOGETHER {
            self.ring(node);
        }
    }

    /// Continues a log of a former life, behind all that `reader` has read: `begun` messages, in these segments.
    pub fn behind(node: &Node, destination: usize, reader: &Reader, begun: u64, segments: Outstanding) -> Self {
        let mut writer = Writer::new(node, destination);
        writer.begun = begun;
        writer.outstanding = segments;
        if !reader.segment.is_null() {
            assert!(reader.copy.is_none(), "the open segment of a channel is never spilled");
            writer.segment = reader.segment.cast_mut();
            writer.place = reader.place;
        }
        writer
    }

    /// Messages begun on this channel.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// The process has returned to a wave: the channel has no segments, and continues.
    pub fn restart(&mut self) {
        (self.segment, self.place) = (std::ptr::null_mut(), 0);
        (self.warm, self.warm_next) = (0, 0);
        self.outstanding.clear();
        self.retention.restart();
    }

    /// After [`Writer::restart`]: continues at `place` of the segment `last`, behind what was in transit, which begins
    /// in segment `first`. The agent numbers segments, and their slots, in a row.
    pub fn find(&mut self, node: &Node, first: u64, last: u64, place: usize) {
        let ((first, _), (last, slot)) = (nm::dereference(first), nm::dereference(last));
        self.outstanding = (first..=last).map(|serial| (serial, serial as usize)).collect();
        (self.segment, self.place) = (node.segment(node.rank, slot), place);
    }

    /// This rank copies itself for `wave`: returns the channel's end, as a reference and an offset.
    pub fn cut(&mut self, wave: u64) -> (u64, usize) {
        let last = self.outstanding.back();
        self.retention.cut(wave, last.map(|(serial, _)| *serial));
        (
            last.map_or(0, |(serial, slot)| nm::reference(*serial, *slot)),
            self.place,
        )
    }

    /// All ranks that return together stand still.
    pub fn stand(&mut self, node: &Node) {
        self.retention.stand(node, self.destination);
    }

    /// The group has returned to the wave of the image that this writer is part of; the log ends where it did then.
    /// Calls `each` with the slot of every needed segment.
    pub fn returned(&mut self, node: &Node, mut each: impl FnMut(usize)) {
        self.retention.returned(&mut self.outstanding, node);
        self.outstanding.iter().for_each(|(_, slot)| each(*slot));
        (self.warm, self.warm_next) = (0, 0);
    }

    /// Something has been written.
    pub fn has_begun(&self) -> bool {
        !self.segment.is_null()
    }

    /// Ends the log here: later entries are void. The segment still exists, because no receiver's image has read beyond
    /// this place.
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
        arena.admits(node, self.outstanding.len())
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

    /// Frees the segments that no life can ask for again.
    pub fn reclaim(&mut self, arena: &mut Arena, node: &Node) {
        self.retention
            .reclaim(&mut self.outstanding, arena, node, self.destination);
    }

    /// Moves to a fresh segment; false if the channel may not have one now.
    fn next_segment(&mut self, arena: &mut Arena, node: &Node) -> bool {
        self.reclaim(arena, node);
        if !arena.admits(node, self.outstanding.len()) {
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
                atomic(entry.add(entry::TOTAL)).store(reference, Ordering::Relaxed);
                atomic(entry).store(Mark::new(Kind::Jump, 0, 0, 0).0, Ordering::Release);
            }
            arena.closed(node, self.segment);
        }
        self.outstanding.push_back((nm::dereference(reference).0, slot));
        self.segment = fresh;
        self.place = ALIGN;
        self.warm = std::mem::take(&mut self.warm_next);
        true
    }

    /// Writes as much of the message as there is room for, and publishes it piece by piece; with `hold` returns the
    /// first mark instead of storing it. Calls `after` behind every published piece. The answer is true if all is
    /// written.
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
            let piece = if arena.retains() { PIECE } else { WINDOW_PIECE };
            let bytes = (total - progress.done).min(room).min(piece);
            // SAFETY: the entry and the next mark lie inside the own segment: payload ends at PAYLOAD_END at the latest.
            unsafe {
                let entry = self.segment.add(self.place);
                std::ptr::copy_nonoverlapping(piggyback.as_ptr(), entry.add(HEADER), piggyback.len());
                if arena.retains() && bytes > AHEAD {
                    self.copy_ahead(&mut pieces, self.place + HEADER + before, bytes);
                } else {
                    pieces.copy_to(entry.add(HEADER + before), bytes);
                }
                let next = entry::next(self.place, before + bytes);
                atomic(self.segment.add(next)).store(0, Ordering::Relaxed);
                let mark = if progress.started {
                    atomic(entry.add(entry::TOTAL)).store(progress.done as u64, Ordering::Relaxed);
                    Mark::new(Kind::More, 0, arena.mark, bytes)
                } else {
                    atomic(entry.add(entry::TAG)).store(envelope.tag, Ordering::Relaxed);
                    atomic(entry.add(entry::TOTAL)).store(total as u64, Ordering::Relaxed);
                    atomic(entry.add(entry::DATA)).store(envelope.data, Ordering::Relaxed);
                    self.begun += 1;
                    let mark = Mark::new(envelope.kind, envelope.flags, arena.mark, bytes);
                    mark.with_piggyback(piggyback.len(), began_ahead)
                };
                if hold && !progress.started {
                    held = Some(HeldMark {
                        place: entry,
                        mark: mark.0,
                    });
                } else {
                    atomic(entry).store(mark.0, Ordering::Release);
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
                self.ring_between(node, bytes);
            }
        }
        (true, held)
    }

    /// The beginning of a long piggyback.
    #[cold]
    pub(super) fn append_ahead(&mut self, arena: &mut Arena, node: &Node, bytes: &[u8]) -> bool {
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
                let next = entry::next(self.place, run);
                atomic(self.segment.add(next)).store(0, Ordering::Relaxed);
                atomic(entry.add(entry::TOTAL)).store(done as u64, Ordering::Relaxed);
                atomic(entry).store(Mark::new(Kind::Ahead, 0, 0, run).0, Ordering::Release);
                self.place = next;
            }
            done += run;
        }
        true
    }
}

impl Writer {
    /// Copies the next `bytes` bytes to `place` of the open segment. A retained log writes to uncached memory: the
    /// processor fetches some of it while it copies the part before.
    ///
    /// # Safety
    /// `bytes` from `place` on lie inside the segment.
    unsafe fn copy_ahead(&self, pieces: &mut Pieces, place: usize, bytes: usize) {
        let end = place + bytes;
        for from in (place..end).step_by(AHEAD / 2) {
            let run = (end - from).min(AHEAD / 2);
            let fetched = (from + AHEAD) & !(ALIGN - 1);
            prefetch(self.segment, fetched, fetched + run);
            // SAFETY: inside the caller's range.
            unsafe { pieces.copy_to(self.segment.add(from), run) };
        }
    }

    /// A retained log always writes to uncached memory: asks for the lines of a next message like this one while no
    /// rank waits for them.
    #[inline]
    fn prefetch(&self, bytes: usize) {
        let end = (self.place + HEADER + bytes.min(PREFETCH)).min(SEGMENT);
        prefetch(self.segment, self.place.max(self.warm), end);
    }

    /// The same for a few further lines each time, while this rank waits for another.
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
            && let Some(slot) = arena.next_slot(node)
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

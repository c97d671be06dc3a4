//! The rank's part in images of its process: whether one is possible now, what it needs of the shared memory, and what
//! a woken process finds there.
//!
//! The engine itself is ordinary memory and part of the image. The memory shared with other ranks is not, and has
//! changed since.

use super::*;
use resurgo_protocol::Rank;
use resurgo_wire::node_memory::CutTable;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// Why there is no image now.
const NO_ENDPOINT: &str = "it has no endpoint";
const REPEATS: &str = "it repeats what a former life did";

/// The engine of this process, once its endpoint is open.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(null_mut());

/// Lets the agent take images of this process. The agent asks as soon as the phase says that the rank is live, so
/// this comes before the engine.
pub fn enable(node: &Node) {
    if node.waves || node.replays() {
        resurgo_image::enable(resurgo_image::Hooks {
            own_memory: || crate::HEAP.used(),
            connections,
            refuses,
            note_cursors,
            note_alone,
            announce,
            drain,
            is_drained,
            notice,
            woken,
        });
    }
}

/// Images are possible from now on. `engine` stays where it is for the life of the process.
pub fn know(engine: *mut Engine) {
    ENGINE.store(engine, Ordering::Release);
}

/// The engine, while all threads of the program stand outside of its calls, or the thread that calls MPI does.
fn engine() -> Option<&'static mut Engine> {
    // SAFETY: lives as long as the process, and no one else uses it.
    unsafe { ENGINE.load(Ordering::Acquire).as_mut() }
}

/// The engine of this process, if it has had an endpoint.
pub fn known() -> *mut Engine {
    ENGINE.load(Ordering::Acquire)
}

/// Called by the program, outside of the provider: a process woken from an image finds what to repeat.
pub fn look_around() {
    if resurgo_image::is_restored()
        && let Some(engine) = engine()
    {
        let _guard = Guard::new();
        engine.enter();
    }
}

/// This rank's node memory, once it has opened the provider.
pub fn node() -> Option<&'static Node> {
    engine().map(|engine| &engine.node)
}

fn connections(each: &mut dyn FnMut(i32)) {
    if let Some(engine) = engine() {
        engine.connections(each);
    }
}

fn refuses() -> Option<&'static str> {
    match engine() {
        Some(engine) => engine.refuses_image(),
        None => Some(NO_ENDPOINT),
    }
}

fn note_cursors(number: u64, slot: u64) {
    if let Some(engine) = engine() {
        engine.note_image(number, slot as usize);
    }
}

fn note_alone(slot: u64) -> Result<(), &'static str> {
    engine().ok_or(NO_ENDPOINT)?.note_alone(slot as usize)
}

fn announce() {
    if let Some(engine) = engine() {
        engine.announce();
    }
}

fn drain() -> u64 {
    engine().map_or(0, Engine::drain)
}

fn is_drained() -> bool {
    engine().is_some_and(|engine| engine.is_drained())
}

fn notice() {
    if let Some(engine) = engine() {
        engine.notice();
    }
}

fn woken() -> bool {
    crate::deeds::woken();
    engine().is_some_and(Engine::woken)
}

impl Engine {
    fn connections(&self, each: &mut dyn FnMut(i32)) {
        self.peers.connections(each);
        if let Some(memories) = &self.peers.memories {
            memories.descriptors().for_each(&mut *each);
        }
        if let Some(logger) = self.history.logger() {
            logger.descriptors().for_each(each);
        }
    }

    /// Why no image is possible now.
    fn refuses_image(&mut self) -> Option<&'static str> {
        if self.calls.open == 0 {
            return Some(NO_ENDPOINT);
        }
        self.life.protocol.as_ref()?;
        if self.repeats() {
            return Some(REPEATS);
        }
        self.wait_until_stable();
        if !self.life.protocol().may_checkpoint() {
            return Some("an event logger does not answer");
        }
        if !self.outbox.waiting.is_empty() {
            return Some("a send waits for room");
        }
        let memories = self.peers.memories.as_mut();
        if memories.is_some_and(|memories| !memories.have_everything(&self.node)) {
            return Some("a channel memory does not answer");
        }
        None
    }

    /// The life has not come as far as former ones. A process that was woken from an image may not have looked around
    /// yet.
    fn repeats(&mut self) -> bool {
        // A rank that only sends learns here that its output has been seen.
        resurgo_image::is_restored()
            || self.life.protocol().is_replaying()
            || self.life.output_gate && self.life.awaits_output(&self.node)
    }

    /// Senders are to forget what this rank has received, and the rank its record, as with an image.
    fn note_alone(&mut self, slot: usize) -> Result<(), &'static str> {
        match () {
            () if self.calls.open == 0 || self.life.protocol.is_none() => Err(NO_ENDPOINT),
            () if self.repeats() => Err(REPEATS),
            () => {
                self.note_image(0, slot);
                Ok(())
            }
        }
    }

    /// Image `number` of this rank is being taken; its notes in the node memory go to `slot`.
    pub(super) fn note_image(&mut self, number: u64, slot: usize) {
        self.note_counts(slot);
        if number > 0 {
            crate::files::note_image(number);
            crate::deeds::note_image();
        }
        if self.node.waves_pass {
            return self.note_cut(number);
        }
        let node = &self.node;
        if !node.logs {
            // Channels keep nothing.
            return;
        }
        if let Some(causality) = self.history.causality() {
            causality.note_image(node);
        }
        for source in 0..node.ranks() {
            let cursor = match &self.life.protocol {
                // The source may go on elsewhere, with other segments.
                Some(protocol) if node.moves => protocol.delivered(source as Rank),
                _ => self.peers.reader(source).map_or(0, Reader::needs_from),
            };
            node.image_cursor(slot, source).store(cursor, Ordering::Release);
        }
        for (_, log) in self.peers.logs() {
            log.writer.cut(number);
        }
        let of_record = node.own(nm::arena::RECORD_CURSORS.item(slot));
        of_record.store(self.history.record.reference(), Ordering::Release);
        node.own(nm::arena::IMAGE_NUMBERS.item(slot))
            .store(number, Ordering::Release);
    }

    /// The rank leaves MPI: of each log, publishes the first segment that another life from here on would need.
    pub(super) fn note_end(&self) {
        for source in 0..self.node.ranks() {
            let cursor = self.peers.reader(source).map_or(0, Reader::needs_from);
            self.node
                .consumed(source, self.node.rank)
                .store(cursor, Ordering::Release);
        }
    }

    /// Publishes the position in its messages.
    fn note_counts(&self, slot: usize) {
        let node = &self.node;
        let mut deliveries = 0;
        for peer in 0..node.ranks() {
            let counts = match &self.life.protocol {
                Some(protocol) => [protocol.sent(peer as Rank), protocol.delivered(peer as Rank)],
                None => [self.peers.begun(peer), self.peers.taken[peer]],
            };
            deliveries += counts[1];
            for (word, count) in node.image_counts(slot, peer).into_iter().zip(counts) {
                word.store(count, Ordering::Release);
            }
        }
        let covered = self.life.protocol.as_ref().map_or(deliveries, Pessimistic::rclock);
        node.own(nm::arena::IMAGE_CLOCKS.item(slot))
            .store(covered, Ordering::Release);
    }

    /// Announces how much it has sent to each rank.
    pub(super) fn announce(&self) {
        for destination in 0..self.node.size {
            self.node
                .announced(self.node.rank, destination)
                .store(self.peers.begun(destination), Ordering::Release);
        }
        (0..self.node.ranks()).for_each(|rank| doorbell::show(&self.node, rank));
    }

    /// Takes all messages in the channels to this rank, unless logs keep them for returning ranks. All ranks stand
    /// still, so only answers to these messages are added; they are announced, too.
    pub(super) fn drain(&mut self) -> u64 {
        if self.node.logs {
            for (_, log) in self.peers.logs() {
                log.writer.stand(&self.node);
            }
            return 0;
        }
        let mut moved = 0;
        for source in 0..self.node.size {
            if self.node.channel(source, self.node.rank).load(Ordering::Acquire) == 0 {
                continue;
            }
            self.peers.incoming(&self.node, source);
            while self.has_entry(source) {
                self.deliver(source);
                moved += 1;
            }
        }
        if moved > 0 {
            self.announce();
        }
        moved
    }

    pub(super) fn is_drained(&self) -> bool {
        let node = &self.node;
        let announced = |source| node.announced(source, node.rank).load(Ordering::Acquire);
        // A wave has no ranks that have left MPI but those that have finished. These announce nothing, and all that they
        // have sent is there.
        let has_left = |source| node.control(source, control::PHASE).load(Ordering::Acquire) == nm::PHASE_CLOSED;
        let is_empty = |source| self.peers.taken[source] == announced(source) || has_left(source);
        node.logs || (0..node.size).all(is_empty)
    }

    /// The turn has changed, or there are sends that may leave.
    fn notice(&mut self) {
        if self.node.in_groups {
            self.progress_sends();
            self.announce();
        } else if !resurgo_image::is_restored() {
            self.exchange();
        }
    }

    /// A woken process, before any thread of the program runs. True: it must wait for all other returning ranks.
    fn woken(&mut self) -> bool {
        let together = self.node.begins_together();
        if self.node.replays() {
            // The first call does the rest, as for a rank that failed alone.
            if together {
                self.cut_off();
            }
        } else {
            resurgo_image::take_restored();
            self.begin(From::Wave);
        }
        together
    }

    /// This rank is being copied for wave `number`, which stops no rank.
    fn note_cut(&mut self, number: u64) {
        self.life.cut.cut(number);
        self.peers.arena.mark = self.life.cut.mark();
        let node = &self.node;
        let note = |at: CutTable, place: CutTable, other: usize, (reference, offset): (u64, usize)| {
            node.cut(at, other).store(reference, Ordering::Relaxed);
            node.cut(place, other).store(offset as u64, Ordering::Relaxed);
        };
        for other in 0..node.ranks() {
            let read = self.peers.reader(other).map_or((0, 0), Reader::place);
            note(CutTable::Reading, CutTable::ReadingAt, other, read);
            note(CutTable::Writing, CutTable::WritingAt, other, (0, 0));
        }
        for (other, log) in self.peers.logs() {
            note(CutTable::Writing, CutTable::WritingAt, other, log.writer.cut(number));
        }
        node.own(nm::arena::CUT).store(number, Ordering::Release);
        let elsewhere = (0..node.ranks()).filter(|rank| node.is_elsewhere(*rank));
        elsewhere.for_each(|rank| doorbell::ring(node, rank));
    }

    /// All ranks return to the wave of this image: what the rank's logs and the record hold beyond it is void. For a
    /// returning group this concerns the logs inside it; the record says what to repeat.
    pub(super) fn cut_off(&mut self) {
        let node = &self.node;
        let all = node.returns_together;
        for destination in (0..node.ranks()).filter(|other| all || node.is_inside(*other)) {
            match self.peers.writer(destination) {
                Some(writer) if writer.has_begun() => writer.cut_off(),
                _ => node.channel(node.rank, destination).store(0, Ordering::Release),
            }
        }
        if all {
            return self.history.record.cut_off(node);
        }
        for source in (0..node.ranks()).filter(|other| node.is_inside(*other)) {
            let reading = self.peers.reader(source).map_or(0, Reader::serial);
            node.consumed(source, node.rank).store(reading, Ordering::Release);
        }
    }
}

//! The rank's part in images of its process: whether there can be one now, what of the shared memory the image needs, and
//! what a process finds there when it has woken up from one.
//!
//! The engine itself is ordinary memory and part of the image. What it shares with other ranks is not, and has gone on.

use super::*;
use resurgo_wire::node_memory::CutTable;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// The engine of this process, once its endpoint is open.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(null_mut());

/// Lets the agent take images of this process; it asks as soon as the phase says that the rank is live, so this comes
/// before there is an engine.
pub fn enable(node: &Node) {
    if node.waves || node.replays() {
        resurgo_image::enable(resurgo_image::Hooks {
            own_memory: || crate::HEAP.used(),
            connections,
            refuses,
            note_cursors,
            announce,
            drain,
            is_drained,
            notice,
            woken,
        });
    }
}

/// From now on images can be taken. `engine` stays where it is for the life of the process.
pub fn know(engine: *mut Engine) {
    ENGINE.store(engine, Ordering::Release);
}

/// The engine, while all threads of the program stand still outside of its calls, or the one that calls MPI is outside of them.
fn engine() -> Option<&'static mut Engine> {
    // SAFETY: lives as long as the process, and nobody else uses it.
    unsafe { ENGINE.load(Ordering::Acquire).as_mut() }
}

/// The engine of this process, if it has had an endpoint.
pub fn known() -> *mut Engine {
    ENGINE.load(Ordering::Acquire)
}

/// Called by the program, outside of the provider: a process that has woken up from an image finds out what it has to repeat.
pub fn look_around() {
    if resurgo_image::is_restored()
        && let Some(engine) = engine()
    {
        let _guard = Guard::new();
        engine.enter();
    }
}

fn connections(each: &mut dyn FnMut(i32)) {
    if let Some(engine) = engine() {
        engine.connections(each);
    }
}

fn refuses() -> Option<&'static str> {
    match engine() {
        Some(engine) => engine.refuses_image(),
        None => Some("it has no endpoint"),
    }
}

fn note_cursors(number: u64, slot: u64) {
    if let Some(engine) = engine() {
        engine.note_image(number, slot as usize);
    }
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
    engine().is_some_and(Engine::woken)
}

impl Engine {
    fn connections(&self, each: &mut dyn FnMut(i32)) {
        if let Some(memories) = &self.memories {
            memories.descriptors().for_each(&mut *each);
        }
        if let Some(logger) = &self.logger {
            logger.descriptors().for_each(each);
        }
    }

    /// Why there can be no image now.
    fn refuses_image(&mut self) -> Option<&'static str> {
        if self.endpoints == 0 {
            return Some("it has no endpoint");
        }
        if !self.node.replays() {
            return None;
        }
        // It may have woken up from an image and not looked around yet.
        if resurgo_image::is_restored()
            || self.output_gate
            || self.protocol.as_ref().is_none_or(Pessimistic::is_replaying)
        {
            return Some("it repeats what a former life did");
        }
        self.wait_until_stable();
        if !self.protocol.as_ref().is_some_and(Pessimistic::may_checkpoint) {
            return Some("an event logger does not answer");
        }
        if !self.waiting.is_empty() {
            return Some("a send waits for room");
        }
        let memories = self.memories.as_mut();
        if memories.is_some_and(|memories| !memories.have_everything(&self.node)) {
            return Some("a channel memory does not answer");
        }
        None
    }

    /// Image `number` of this rank is taken now; what is noted of it in the node memory goes to `slot`.
    pub(super) fn note_image(&mut self, number: u64, slot: usize) {
        if self.node.chandy_lamport {
            return self.note_cut(number);
        }
        let covered = self.protocol.as_ref().map_or(0, Pessimistic::rclock);
        self.node
            .own(nm::arena::IMAGE_CLOCKS + slot * 8)
            .store(covered, Ordering::Release);
        if !self.node.logs {
            // Channels keep nothing.
            return;
        }
        if let Some(causality) = &mut self.causality {
            causality.note_image(&self.node);
        }
        for (source, incoming) in self.incoming.iter().enumerate().take(self.node.ranks()) {
            let serial = incoming.as_ref().map_or(0, |incoming| incoming.reader.needs_from());
            self.node.image_cursor(slot, source).store(serial, Ordering::Release);
        }
        let inside = |writer: &&mut Box<Writer>| self.node.is_inside(writer.destination());
        let writers = self.outgoing.iter_mut().flatten().filter(inside);
        writers.for_each(|writer| writer.cut_inside(number));
        let of_record = self.node.own(nm::arena::RECORD_CURSORS + slot * 8);
        of_record.store(self.record.reference(), Ordering::Release);
    }

    /// Says how much it has sent to whom.
    pub(super) fn announce(&self) {
        for destination in 0..self.node.size {
            let begun = self.outgoing[destination].as_ref().map_or(0, |writer| writer.begun());
            self.node
                .announced(self.node.rank, destination)
                .store(begun, Ordering::Release);
        }
    }

    /// Takes everything that the channels to this rank hold, unless logs keep it for those who return. All ranks stand still, so
    /// nothing is added but answers to what is taken: they are announced, too.
    pub(super) fn drain(&mut self) -> u64 {
        if self.node.logs {
            let inside = |writer: &&mut Box<Writer>| self.node.is_inside(writer.destination());
            let writers = self.outgoing.iter_mut().flatten().filter(inside);
            writers.for_each(|writer| writer.stand_inside(&self.node));
            return 0;
        }
        let mut moved = 0;
        for source in 0..self.node.size {
            if self.node.channel(source, self.node.rank).load(Ordering::Acquire) == 0 {
                continue;
            }
            self.incoming(source);
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
        let announced = |source| self.node.announced(source, self.node.rank).load(Ordering::Acquire);
        self.node.logs || (0..self.node.size).all(|source| self.taken[source] == announced(source))
    }

    /// Whose turn it is has changed, or there are sends that may leave.
    fn notice(&mut self) {
        if self.node.in_groups {
            self.progress_sends();
            self.announce();
        } else if !resurgo_image::is_restored() {
            self.exchange();
        }
    }

    /// A woken process, before any thread of the program runs. True when it must wait for all others that return.
    fn woken(&mut self) -> bool {
        let together = self.node.begins_together();
        if self.node.replays() {
            // The rest is done in the first call, as for a rank that has failed alone: see `restored`.
            if together {
                self.cut_off();
            }
        } else {
            resurgo_image::take_restored();
            self.returned_to_wave();
        }
        together
    }

    /// This rank is copied now for wave `number`, which stops nobody.
    fn note_cut(&mut self, number: u64) {
        self.cut.cut(number);
        self.arena.mark = self.cut.mark();
        let node = &self.node;
        let note = |at: CutTable, place: CutTable, other: usize, (reference, offset): (u64, usize)| {
            node.cut(at, other).store(reference, Ordering::Relaxed);
            node.cut(place, other).store(offset as u64, Ordering::Relaxed);
        };
        for other in 0..node.ranks() {
            let read = self.incoming[other]
                .as_ref()
                .map_or((0, 0), |incoming| incoming.reader.place());
            note(CutTable::Reading, CutTable::ReadingAt, other, read);
            let written = self.outgoing[other]
                .as_mut()
                .map_or((0, 0), |writer| writer.cut(number));
            note(CutTable::Writing, CutTable::WritingAt, other, written);
        }
        node.own(nm::arena::CUT).store(number, Ordering::Release);
    }

    /// The agent has emptied the node memory since the wave. Where it stopped all, the channels were empty: they go on as new
    /// ones. Otherwise the agent has put what was in transit into them.
    pub(super) fn returned_to_wave(&mut self) {
        self.arena.restart();
        self.outgoing.iter_mut().flatten().for_each(|writer| writer.restart());
        let incoming = self.incoming.iter_mut().flatten();
        incoming.for_each(|incoming| incoming.reader.restart());
        if self.node.chandy_lamport {
            self.find_in_transit();
        }
        self.begin_again();
    }

    /// All ranks return to the wave of this image: what the own logs and the record hold beyond it is void. Of a group that
    /// returns, what the logs inside it hold; the record says what is to be repeated.
    fn cut_off(&mut self) {
        let all = self.node.returns_together;
        for destination in (0..self.node.ranks()).filter(|other| all || self.node.is_inside(*other)) {
            match &self.outgoing[destination] {
                Some(writer) if writer.has_begun() => writer.cut_off(),
                _ => self
                    .node
                    .channel(self.node.rank, destination)
                    .store(0, Ordering::Release),
            }
        }
        if all {
            return self.record.cut_off(&self.node);
        }
        let own = self.node.rank;
        for source in (0..self.node.ranks()).filter(|other| self.node.is_inside(*other)) {
            let reading = self.incoming[source]
                .as_ref()
                .map_or(0, |incoming| incoming.reader.serial());
            self.node.consumed(source, own).store(reading, Ordering::Release);
        }
    }

    fn find_in_transit(&mut self) {
        let node = &self.node;
        self.arena.find(node);
        for destination in 0..node.ranks() {
            let first = node.channel(node.rank, destination).load(Ordering::Acquire);
            if first != 0 {
                let last = node.cut(CutTable::Writing, destination).load(Ordering::Acquire);
                let place = node.cut(CutTable::WritingAt, destination).load(Ordering::Acquire);
                let writer = self.outgoing[destination].get_or_insert_with(|| Box::new(Writer::new(destination)));
                writer.find(node, first, last, place as usize);
            }
        }
        self.look_at_all();
    }

    /// Words of this rank's control that belong to a life.
    fn begin_again(&mut self) {
        let own = self.node.rank;
        self.fault_at = self.node.fault_at();
        self.image_at = match self.node.image_at() {
            reached if reached <= self.deliveries + self.sends => u64::MAX,
            messages => messages,
        };
        self.event_at = self.fault_at.min(self.image_at);
        // Counts of another run of the machine.
        self.yields_from = 0;
        self.node.control_u32(own, control::SLEEPING).store(0, Ordering::SeqCst);
        doorbell::begin_life(&self.node);
        self.show_held();
        self.node.set(control::DELIVERIES, self.deliveries);
        self.node.set(control::DELIVERED_BYTES, self.delivered_bytes);
        (0..counters::CLASSES).for_each(|class| self.show_sizes(class));
        if self.node.in_groups {
            self.show_buffer();
            self.show_sent();
        }
        self.has_delivered = false;
        self.idle_since = ticks();
        self.last_read = self.idle_since;
        self.publish_phase();
    }

    /// The first call of a process that has woken up from an image: the own logs and the record, or the channel memories, have gone
    /// on since, and so has everybody else.
    #[cold]
    pub(super) fn restored(&mut self) {
        let began_ns = monotonic_ns();
        let behind = if self.memories.is_some() {
            self.join_again()
        } else {
            self.survey_again()
        };
        self.replaying = self.protocol.as_ref().is_some_and(Pessimistic::is_replaying);
        self.node.set(control::REPLAY_DELIVERIES, behind);
        let own = self.node.rank;
        self.output_gate = self.node.control(own, control::OUTPUT_BEHIND).load(Ordering::Acquire) != 0;
        self.owed = (0, 0);
        self.collected(began_ns);
        self.begin_again();
    }

    /// Answers how many deliveries of the record are to be repeated.
    fn survey_again(&mut self) -> u64 {
        if let Some(former) = self.logger.take() {
            former.abandon();
        }
        if self.causality.is_some() {
            self.collect_again();
        }
        let protocol = self.protocol.as_mut().expect("only logging protocols have images");
        self.arena = Arena::new(&self.node);
        let writers = std::mem::take(&mut self.outgoing);
        let sent = |destination| protocol.sent(destination as u32);
        let found = Survey::of(&self.node, &mut self.arena, sent, writers);
        self.outgoing = found.outgoing;
        self.redo = found.redo;
        self.forgotten = found.forgotten;
        self.record.refresh(&self.node);
        if let Some(causality) = &mut self.causality {
            let mut end = self.record.clone();
            for recorded in causality.collected.drain(..) {
                end.write(&self.node, &mut self.arena, recorded, 0);
            }
            self.record.refresh(&self.node);
        }
        let behind = self.record.clone().count(&self.node);
        let made = protocol.rclock() + behind;
        protocol.restored(made, found.sent_before);
        if !self.node.event_logger_ports.is_empty() {
            let found = self.causality.as_ref().and_then(|causality| causality.found);
            self.logger = Some(start_logging(&self.node, protocol, made, found.as_ref()));
        }
        self.look_at_all();
        behind
    }

    /// What this rank had recorded since the image counts as lost with its node: the record goes on with what can be collected.
    fn collect_again(&mut self) {
        self.record.cut_off(&self.node);
        let place =
            |incoming: &Option<Box<Incoming>>| incoming.as_ref().map_or(0, |incoming| incoming.reader.reached());
        let places: Vec<u64> = self.incoming.iter().map(place).collect();
        let above = self.protocol.as_ref().map_or(0, Pessimistic::rclock);
        if let Some(causality) = &mut self.causality {
            causality.begin_again(&self.node, above, &places);
        }
    }
}

//! The segments that a sender keeps of a channel, and when it reuses them.

use super::*;
use resurgo_protocol::chandy_lamport::Place;
use resurgo_protocol::hierarchical::Kept;
use std::collections::VecDeque;

/// What a channel keeps for its receiver.
pub enum Retention {
    /// All that the receiver has not read; a channel has only so many segments.
    Window(Window),
    /// The same, and what is in transit in a wave that stops no rank.
    Transit(Transit),
    /// All that the receiver's oldest image does not cover.
    Log,
    /// Inside a group: all that the receiver has not read, and what is in transit in a wave that the group may return
    /// to.
    Group(Group),
}

/// Segments that the receiver has read, since the channel began.
#[derive(Default)]
pub struct Window {
    consumed: u64,
}

#[derive(Default)]
pub struct Transit {
    window: Window,
    /// The channel's end at this rank's cut.
    cut: Place,
    /// Slots of read segments that are in transit, each with the wave's number.
    kept: Vec<(u64, usize)>,
}

#[derive(Default)]
pub struct Group {
    kept: Kept,
    /// The receiver's segment when the group stood still for a wave.
    stood_at: u64,
    /// The receiver's segment, and the oldest wave, when segments were last freed.
    forgotten_at: (u64, u64),
}

/// Segments of a channel in memory, oldest first, the open one included: serial and slot.
pub type Outstanding = VecDeque<(u64, usize)>;

impl Retention {
    /// That of the channel from this rank to `destination`.
    pub fn of(node: &Node, destination: usize) -> Retention {
        match () {
            () if node.is_inside(destination) => Retention::Group(Group::default()),
            () if node.logs => Retention::Log,
            () if node.waves_pass => Retention::Transit(Transit::default()),
            () => Retention::Window(Window::default()),
        }
    }

    /// The process has returned to a wave, and the channel is empty.
    pub fn restart(&mut self) {
        match self {
            Retention::Window(window) => *window = Window::default(),
            Retention::Transit(transit) => *transit = Transit::default(),
            Retention::Log | Retention::Group(_) => (),
        }
    }

    /// Frees the segments of the channel to `destination` that no life can ask for again.
    pub fn reclaim(&mut self, segments: &mut Outstanding, arena: &mut Arena, node: &Node, destination: usize) {
        match self {
            Retention::Window(window) => window.read(segments, node, destination, |_, slot| arena.free(node, slot)),
            Retention::Transit(transit) => transit.reclaim(segments, arena, node, destination),
            Retention::Log => forget(segments, arena, node, destination),
            Retention::Group(group) => group.reclaim(segments, arena, node, destination),
        }
    }

    /// This rank copies itself for `wave`; the channel ends in segment `last`, if it has any.
    pub fn cut(&mut self, wave: u64, last: Option<u64>) {
        match (self, last) {
            (Retention::Transit(transit), last) => {
                transit.cut = Place {
                    wave,
                    segment: last.unwrap_or(0),
                }
            }
            (Retention::Group(group), Some(last)) => group.kept.cut(wave, group.stood_at, last),
            _ => (),
        }
    }

    /// All ranks of the group stand still for a wave: the receiver's image will be where the receiver is now. The
    /// receiver goes on when it has that, perhaps before this rank has its own.
    pub fn stand(&mut self, node: &Node, destination: usize) {
        if let Retention::Group(group) = self {
            group.stood_at = node.consumed(node.rank, destination).load(Ordering::Acquire);
        }
    }

    /// The group has returned to the wave of the image that this is part of; the channel ends where it did then.
    pub fn returned(&mut self, segments: &mut Outstanding, node: &Node) {
        if let Retention::Group(group) = self {
            group.kept.forget_before(node.oldest_wave());
            segments.retain(|(serial, _)| group.kept.is_needed(*serial, u64::MAX));
            group.forgotten_at = (0, 0);
        }
    }
}

impl Window {
    /// Hands every newly read segment to `each`.
    fn read(&mut self, segments: &mut Outstanding, node: &Node, destination: usize, mut each: impl FnMut(u64, usize)) {
        let consumed = node.consumed(node.rank, destination).load(Ordering::Acquire);
        while self.consumed < consumed {
            self.consumed += 1;
            let (serial, slot) = segments.pop_front().expect("only segments handed over are consumed");
            each(serial, slot);
        }
    }
}

impl Transit {
    fn reclaim(&mut self, segments: &mut Outstanding, arena: &mut Arena, node: &Node, destination: usize) {
        let mut read = Vec::new();
        self.window
            .read(segments, node, destination, |serial, slot| read.push((serial, slot)));
        // In this order: a sender that sees the cut also sees what the receiver has read since.
        let (receiver, over) = (node.cut_of(destination), node.waves().over);
        self.kept.retain(|(wave, slot)| {
            let needed = *wave > over;
            if !needed {
                arena.free(node, *slot);
            }
            needed
        });
        for (serial, slot) in read {
            match receiver.is_needed(serial, self.cut, over) {
                true => self.kept.push((receiver.wave, slot)),
                false => arena.free(node, slot),
            }
        }
    }
}

/// The receiver's oldest usable image has read beyond them.
fn forget(segments: &mut Outstanding, arena: &mut Arena, node: &Node, destination: usize) {
    let needed = node.needed_from(node.rank, destination);
    let forgotten = match node.moves {
        // All messages that begin in a segment are delivered if those are that begin before the next. What another
        // message carries may begin there, too.
        true => {
            let least = u64::from(node.piggybacking);
            let next = segments.iter().skip(1);
            next.take_while(|(_, slot)| begun_before(node, *slot) + least <= needed)
                .count()
        }
        false => segments.iter().take_while(|(serial, _)| *serial < needed).count(),
    };
    if forgotten == 0 {
        return;
    }
    assert!(
        forgotten < segments.len(),
        "a receiver cannot have read beyond the open segment"
    );
    begin_at(segments[forgotten], node, destination);
    for (serial, slot) in segments.drain(..forgotten) {
        arena.forget(node, serial, slot);
    }
}

/// Messages that begin before this segment of an own channel.
fn begun_before(node: &Node, slot: usize) -> u64 {
    // SAFETY: the start of an own segment.
    unsafe { atomic(node.segment(node.rank, slot)) }.load(Ordering::Relaxed)
}

/// Makes the channel begin in this segment, before earlier ones are reused.
fn begin_at((serial, slot): (u64, usize), node: &Node, destination: usize) {
    node.channel(node.rank, destination)
        .store(nm::reference(serial, slot), Ordering::Release);
}

impl Group {
    fn reclaim(&mut self, segments: &mut Outstanding, arena: &mut Arena, node: &Node, destination: usize) {
        let reads = node.consumed(node.rank, destination).load(Ordering::Acquire);
        let oldest = node.oldest_wave();
        if std::mem::replace(&mut self.forgotten_at, (reads, oldest)) == (reads, oldest) {
            return;
        }
        self.kept.forget_before(oldest);
        let last = segments.len().saturating_sub(1);
        let is_needed = |index: usize, serial: u64| index == last || self.kept.is_needed(serial, reads);
        let first = segments
            .iter()
            .enumerate()
            .position(|(index, segment)| is_needed(index, segment.0));
        if let Some(first) = first
            && first > 0
        {
            begin_at(segments[first], node, destination);
        }
        for (index, (serial, slot)) in std::mem::take(segments).into_iter().enumerate() {
            if is_needed(index, serial) {
                segments.push_back((serial, slot));
            } else {
                arena.give_back(node, serial, slot);
            }
        }
    }
}

/// The receiver of the channel from `source` goes on in segment `serial`: publishes what its sender must know of that.
#[inline]
pub fn goes_on(node: &Node, source: usize, destination: usize, serial: u64) {
    if !node.logs {
        let read = 1 + node.consumed(source, destination).fetch_add(1, Ordering::SeqCst);
        // To tell another node takes its mover some time.
        if !node.is_elsewhere(source) || read.is_multiple_of(together(node)) {
            crate::doorbell::show(node, source);
        }
    } else if node.is_inside(source) && destination == node.rank {
        // The sender may reuse earlier segments.
        node.consumed(source, destination).store(serial, Ordering::Release);
    }
}

/// So many segments a receiver may read before it tells a sender on another node: less than a window. Of a small memory all senders'
/// untold segments take an eighth at most.
fn together(node: &Node) -> u64 {
    let share = node.layout.log_segments / (8 * node.ranks().max(1));
    share.clamp(1, Arena::WINDOW / 2) as u64
}

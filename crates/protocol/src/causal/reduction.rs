//! What a rank keeps of all ranks' deliveries, and which of them a message must carry: three ways (Bouteiller 2005,
//! §III.B). All deduce that a receiver knows less than it does, never more.

use std::collections::VecDeque;

use super::Event;
use crate::Rank;

/// One way to keep events and to piggyback few of them.
///
/// Callers add the events of one rank in order and without a gap. Each comes with its past, or after it where the past
/// is stable.
pub(super) trait Reduce {
    /// The job has so many ranks by now.
    fn grow(&mut self, _size: usize) {}

    /// The next event of its receiver. Where some before it are missing, they are stable.
    fn insert(&mut self, event: Event);

    /// Drops, of each rank, the events up to its clock in `stable`.
    fn forget(&mut self, stable: &[u64]);

    /// Puts the events above `known` into `found`, which is empty, in the order of the reduction, and without `to`'s own where
    /// it knows `itself`. `latest` is the last event of each rank that is known here; `known`, the last that `to` is known to
    /// know, is raised to what follows from the graph.
    fn lacking(&self, to: Rank, itself: bool, latest: &[u64], known: &mut Known, found: &mut Vec<Event>);

    /// The graph shows more of a peer's knowledge than was exchanged: [`Self::follow`].
    fn crosses(&self) -> bool {
        false
    }

    /// A peer's `known` has been raised: raises it to what follows from the graph.
    fn follow(&self, _known: &mut Known) {}

    /// All events, in the order of the reduction.
    fn all(&self) -> Vec<Event>;

    /// Events of `receiver` after its first `above`, in order.
    fn of(&self, receiver: Rank, above: u64) -> Vec<Event>;

    /// Events that are kept.
    fn len(&self) -> usize;
}

/// The known part of a peer's knowledge.
pub(super) struct Known<'a> {
    /// Per rank, its last event.
    pub last: &'a mut [u64],
    pub raised: &'a mut Raised,
}

/// Ranks with more known events than were followed. Memory that lasts: nothing is allocated for a message.
#[derive(Debug, Clone)]
pub(super) struct Raised {
    /// The first of these events. Each rank is there once, however often it is raised: its events are then followed
    /// once.
    ranks: Vec<(Rank, u64)>,
    is_there: Vec<bool>,
}

impl Raised {
    pub fn new(size: usize) -> Self {
        Self {
            ranks: Vec::new(),
            is_there: vec![false; size],
        }
    }

    /// The job has so many ranks by now.
    pub fn grow(&mut self, size: usize) {
        self.is_there.resize(size, false);
    }

    /// The last known event of `rank` was number `above`.
    pub fn add(&mut self, rank: Rank, above: u64) {
        if !std::mem::replace(&mut self.is_there[rank as usize], true) {
            self.ranks.push((rank, above));
        }
    }

    fn take(&mut self) -> Option<(Rank, u64)> {
        let (rank, above) = self.ranks.pop()?;
        self.is_there[rank as usize] = false;
        Some((rank, above))
    }
}

/// Per receiver the sequence of its events, without those that are stable.
#[derive(Debug, Clone)]
pub(super) struct Sequences {
    events: Vec<VecDeque<Event>>,
    /// The graph is crossed from the receiver's last known event, and what is in its past is not sent (Manetho, §III.B.2).
    /// Otherwise everything is sent that has not been exchanged with the receiver (Vcausal, §III.B.1).
    crosses: bool,
}

impl Sequences {
    pub fn new(size: usize, crosses: bool) -> Self {
        let events = vec![VecDeque::new(); size];
        Self { events, crosses }
    }

    fn above(&self, receiver: Rank, above: u64) -> impl Iterator<Item = &Event> {
        let events = &self.events[receiver as usize];
        let first = events.front().map_or(0, |event| event.rclock);
        let skipped = (above + 1).saturating_sub(first).min(events.len() as u64);
        events.range(skipped as usize..)
    }
}

impl Reduce for Sequences {
    fn grow(&mut self, size: usize) {
        self.events.resize_with(size, VecDeque::new);
    }

    fn insert(&mut self, event: Event) {
        self.events[event.receiver as usize].push_back(event);
    }

    fn crosses(&self) -> bool {
        self.crosses
    }

    /// Whoever knows an event knows its past.
    fn follow(&self, known: &mut Known) {
        while let Some((receiver, above)) = known.raised.take() {
            let upto = known.last[receiver as usize];
            for event in self.above(receiver, above).take_while(|event| event.rclock <= upto) {
                let source = event.record.source;
                let last = &mut known.last[source as usize];
                if event.antecedent > *last {
                    known.raised.add(source, std::mem::replace(last, event.antecedent));
                }
            }
        }
    }

    fn forget(&mut self, stable: &[u64]) {
        for (events, stable) in self.events.iter_mut().zip(stable) {
            while events.front().is_some_and(|event| event.rclock <= *stable) {
                events.pop_front();
            }
        }
    }

    fn lacking(&self, to: Rank, itself: bool, latest: &[u64], known: &mut Known, found: &mut Vec<Event>) {
        if itself {
            let above = std::mem::replace(&mut known.last[to as usize], latest[to as usize]);
            if self.crosses {
                known.raised.add(to, above);
                self.follow(known);
            }
        }
        for ((receiver, known), latest) in (0..).zip(&*known.last).zip(latest) {
            if known < latest {
                found.extend(self.above(receiver, *known));
            }
        }
    }

    fn all(&self) -> Vec<Event> {
        self.events.iter().flatten().copied().collect()
    }

    fn of(&self, receiver: Rank, above: u64) -> Vec<Event> {
        self.above(receiver, above).copied().collect()
    }

    fn len(&self) -> usize {
        self.events.iter().map(VecDeque::len).sum()
    }
}

/// The same graph as one list in a partial order: no event stands before one of its past. One pass from the last event
/// backwards finds a message's events; one pass forwards inserts them (§III.B.2).
#[derive(Debug, Clone, Default)]
pub(super) struct LogOn(VecDeque<Event>);

impl Reduce for LogOn {
    fn insert(&mut self, event: Event) {
        self.0.push_back(event);
    }

    fn forget(&mut self, stable: &[u64]) {
        self.0.retain(|event| event.rclock > stable[event.receiver as usize]);
    }

    fn lacking(&self, to: Rank, itself: bool, latest: &[u64], known: &mut Known, found: &mut Vec<Event>) {
        let known = &mut *known.last;
        if itself {
            known[to as usize] = latest[to as usize];
        }
        let each = latest.iter().zip(&*known);
        let mut left: u64 = each.map(|(latest, known)| latest - known).sum();
        for event in self.0.iter().rev() {
            if left == 0 {
                break;
            }
            if event.rclock > known[event.receiver as usize] {
                found.push(*event);
                left -= 1;
                continue;
            }
            // The pass has seen what comes after it in the list: its antecedent, and earlier events, are still to come.
            let source = &mut known[event.record.source as usize];
            left -= event.antecedent.saturating_sub(*source);
            *source = event.antecedent.max(*source);
        }
        found.reverse();
    }

    fn all(&self) -> Vec<Event> {
        self.0.iter().copied().collect()
    }

    fn of(&self, receiver: Rank, above: u64) -> Vec<Event> {
        let wanted = |event: &&Event| event.receiver == receiver && event.rclock > above;
        self.0.iter().filter(wanted).copied().collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The store of one rank. An enum, so that it can be copied into an image.
#[derive(Debug, Clone)]
pub(super) enum Store {
    Sequences(Sequences),
    LogOn(LogOn),
}

impl Store {
    pub fn get(&self) -> &dyn Reduce {
        match self {
            Self::Sequences(store) => store,
            Self::LogOn(store) => store,
        }
    }

    pub fn get_mut(&mut self) -> &mut dyn Reduce {
        match self {
            Self::Sequences(store) => store,
            Self::LogOn(store) => store,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_raised_often_is_followed_once_from_its_first() {
        let mut raised = Raised::new(3);
        for above in 4..9 {
            raised.add(1, above);
        }
        raised.add(2, 0);
        assert_eq!(
            [raised.take(), raised.take(), raised.take()],
            [Some((2, 0)), Some((1, 4)), None]
        );
        raised.add(1, 9);
        assert_eq!(raised.take(), Some((1, 9)));
    }
}

//! The union of what all ranks know. A life makes it where it can see all sent messages: it reads what others know
//! without asking them. No message of its former lives can escape then, and one look is a whole [`Collection`].
//!
//! Events may be added in any order. Only all of them together are closed, so the life takes them in together: it would
//! take for stable what a part lacks.

use std::collections::BTreeMap;

use super::{Causal, Collection, Error, Event, Piggyback};
use crate::{Rank, Recorded};

/// Why the events found are no history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Two sources differ about one delivery.
    #[error("delivery {rclock} of rank {receiver} is known in two forms: not the same history")]
    TwoForms { receiver: Rank, rclock: u64 },
    #[error(transparent)]
    Causal(#[from] Error),
    /// An event logger had them, and is gone.
    #[error(
        "the first {stable} deliveries of rank {rank} were known to be stable, but only the event logger had all of them, and \
         it has been lost"
    )]
    Lost { rank: Rank, stable: u64 },
}

/// Events from many places.
#[derive(Debug, Clone)]
pub struct Gathering {
    /// Per receiver, by rclock.
    events: Vec<BTreeMap<u64, Event>>,
}

impl Gathering {
    /// Of a job of `size` ranks.
    pub fn new(size: usize) -> Self {
        Self {
            events: vec![BTreeMap::new(); size],
        }
    }

    /// The job has so many ranks by now.
    pub fn grow(&mut self, size: usize) {
        self.events.resize_with(size, BTreeMap::new);
    }

    /// Adds one. Where two places know it, that with an edge is kept: the other learnt of it when its past was stable.
    pub fn add(&mut self, event: Event) -> Result<(), Contradiction> {
        let Event { receiver, rclock, .. } = event;
        let size = self.events.len();
        if let Some(rank) = [receiver, event.record.source]
            .into_iter()
            .find(|rank| *rank as usize >= size)
        {
            return Err(Error::UnknownRank { rank, size }.into());
        }
        let known = self.events[receiver as usize].entry(rclock).or_insert(event);
        if known.record != event.record {
            return Err(Contradiction::TwoForms { receiver, rclock });
        }
        known.antecedent = known.antecedent.max(event.antecedent);
        Ok(())
    }

    /// So many deliveries of a rank are stable: nobody needs to be told of them.
    pub fn forget(&mut self, rank: Rank, stable: u64) {
        if let Some(events) = self.events.get_mut(rank as usize) {
            *events = events.split_off(&(stable + 1));
        }
    }

    /// All of them.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().flat_map(BTreeMap::values)
    }

    /// In a partial order: no event before one of its past.
    pub fn ordered(self) -> Vec<Event> {
        let mut queues: Vec<_> = self
            .events
            .into_iter()
            .map(|events| events.into_values().peekable())
            .collect();
        let mut ordered = Vec::new();
        let mut progress = true;
        while std::mem::take(&mut progress) {
            for receiver in 0..queues.len() {
                while let Some(event) = queues[receiver].peek() {
                    let source = event.record.source as usize;
                    let next = queues[source].peek().map_or(u64::MAX, |event| event.rclock);
                    let event = queues[receiver].peek().copied();
                    match event.filter(|event| source == receiver || event.antecedent < next) {
                        Some(event) => ordered.push(event),
                        None => break,
                    }
                    queues[receiver].next();
                    progress = true;
                }
            }
        }
        debug_assert!(queues.iter_mut().all(|queue| queue.peek().is_none()));
        ordered
    }

    /// The knowledge with which a life begins, and the record that it repeats: its deliveries after the first `above`,
    /// which its image has. `collection`: new, with what its event logger has of it, where there is one.
    pub fn begin(self, mut collection: Collection, above: u64) -> Result<(Causal, Vec<Recorded>), Contradiction> {
        let rank = collection.causal().rank;
        for (rclock, record) in collection.stored_events() {
            if let Some(event) = self.events[rank as usize].get(&rclock)
                && event.record != *record
            {
                return Err(Contradiction::TwoForms { receiver: rank, rclock });
            }
        }
        let known = Piggyback {
            events: self.ordered(),
            stable: Vec::new(),
        };
        collection.told_all(&known)?;
        match collection.record(above) {
            Some(record) => Ok((collection.finish(), record)),
            None => Err(Contradiction::Lost {
                rank,
                stable: collection.causal().stable()[rank as usize],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causal::Reduction;

    fn event(receiver: Rank, rclock: u64, source: Rank, antecedent: u64) -> Event {
        Event {
            receiver,
            rclock,
            record: Recorded { source, polls: 1 },
            antecedent,
        }
    }

    fn gathered(events: &[Event]) -> Gathering {
        let mut gathering = Gathering::new(3);
        events.iter().for_each(|event| gathering.add(*event).unwrap());
        gathering
    }

    /// A life of rank 1 of 3, answered by a logger with these deliveries.
    fn collection(reduction: Reduction, logged: Option<Vec<Recorded>>) -> Collection {
        let causal = Causal::new(1, 3, reduction, false);
        let mut collection = Collection::new(causal, 2, logged.is_some());
        if let Some(logged) = logged {
            collection.logged(0, logged);
        }
        collection
    }

    const REDUCTIONS: [Reduction; 3] = [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn];

    #[test]
    fn what_comes_in_any_order_is_closed_in_the_end() {
        // 1 delivers from 0, 2 from 1, 0 from 2; each depends on the one before.
        let events = [
            event(0, 1, 2, 1),
            event(2, 1, 1, 1),
            event(1, 2, 0, 1),
            event(1, 1, 0, 0),
        ];
        for reduction in REDUCTIONS {
            let (causal, record) = gathered(&events).begin(collection(reduction, None), 0).unwrap();
            assert_eq!(record, [Recorded { source: 0, polls: 1 }; 2]);
            assert_eq!((causal.latest(), causal.stable()), (&[1, 2, 1][..], &[0, 0, 0][..]));
        }
    }

    #[test]
    fn the_event_logger_has_the_beginning_and_others_the_rest() {
        let stored = vec![Recorded { source: 0, polls: 1 }; 4];
        let (causal, record) = gathered(&[event(1, 4, 0, 0), event(1, 5, 2, 0)])
            .begin(collection(Reduction::Manetho, Some(stored.clone())), 0)
            .unwrap();
        assert_eq!(record[..4], stored);
        assert_eq!(record[4..], [Recorded { source: 2, polls: 1 }]);
        assert_eq!(causal.stable()[1], 4);
    }

    #[test]
    fn what_only_a_lost_event_logger_had_is_missed() {
        let logged = |records| collection(Reduction::Manetho, Some(records));
        let depends = [event(0, 1, 1, 5)];
        assert_eq!(
            gathered(&depends).begin(logged(Vec::new()), 0).err(),
            Some(Contradiction::Lost { rank: 1, stable: 5 })
        );
        let mut gathering = gathered(&depends);
        assert_eq!(
            gathering.add(event(0, 1, 2, 5)),
            Err(Contradiction::TwoForms { receiver: 0, rclock: 1 })
        );
        let other = vec![Recorded { source: 2, polls: 1 }];
        let differs = gathered(&[event(1, 1, 0, 0)]).begin(logged(other), 0);
        assert_eq!(differs.err(), Some(Contradiction::TwoForms { receiver: 1, rclock: 1 }));
    }
}

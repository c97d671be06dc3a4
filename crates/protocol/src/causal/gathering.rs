//! What is known anywhere, put together: for a life that can read what others know without asking them, because what has been
//! sent lies where it can see it. Nothing of its former lives can escape then, and one look is a whole [`Collection`].
//!
//! Events may be added in any order. Only all of them together are closed, and only together they may be taken in: what is
//! missing from a part would be taken for stable.

use std::collections::BTreeMap;

use super::{Causal, Collection, Error, Event, Piggyback};
use crate::{Rank, Recorded};

/// Why what was found is no history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Two places tell different things of one delivery.
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

    /// In a partial order: no event before one of its past.
    fn ordered(self) -> Vec<Event> {
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

    /// A life of `rank` that begins at the beginning of its program. `causal`: new. `logged`: what its event logger has of it,
    /// from the first delivery on, where there is one. Returns what it is to know, and the record that it repeats.
    pub fn begin(
        self,
        causal: Causal,
        rank: Rank,
        logged: Option<Vec<Recorded>>,
    ) -> Result<(Causal, Vec<Recorded>), Contradiction> {
        let mut collection = Collection::new(causal, 1, logged.is_some());
        if let Some(logged) = logged {
            let own = (1..).zip(logged.iter());
            for (rclock, record) in own {
                if let Some(event) = self.events[rank as usize].get(&rclock)
                    && event.record != *record
                {
                    return Err(Contradiction::TwoForms { receiver: rank, rclock });
                }
            }
            collection.logged(0, logged);
        }
        let known = Piggyback {
            events: self.ordered(),
            stable: Vec::new(),
        };
        collection.told_all(&known)?;
        match collection.record(0) {
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
            let causal = Causal::new(1, 3, reduction, false);
            let (causal, record) = gathered(&events).begin(causal, 1, None).unwrap();
            assert_eq!(record, [Recorded { source: 0, polls: 1 }; 2]);
            assert_eq!((causal.latest(), causal.stable()), (&[1, 2, 1][..], &[0, 0, 0][..]));
        }
    }

    #[test]
    fn the_event_logger_has_the_beginning_and_others_the_rest() {
        let stored = vec![Recorded { source: 0, polls: 1 }; 4];
        let causal = Causal::new(1, 3, Reduction::Manetho, false);
        let (causal, record) = gathered(&[event(1, 4, 0, 0), event(1, 5, 2, 0)])
            .begin(causal, 1, Some(stored.clone()))
            .unwrap();
        assert_eq!(record[..4], stored);
        assert_eq!(record[4..], [Recorded { source: 2, polls: 1 }]);
        assert_eq!(causal.stable()[1], 4);
    }

    #[test]
    fn what_only_a_lost_event_logger_had_is_missed() {
        let causal = || Causal::new(1, 3, Reduction::Manetho, false);
        let depends = [event(0, 1, 1, 5)];
        assert_eq!(
            gathered(&depends).begin(causal(), 1, Some(Vec::new())).err(),
            Some(Contradiction::Lost { rank: 1, stable: 5 })
        );
        let mut gathering = gathered(&depends);
        assert_eq!(
            gathering.add(event(0, 1, 2, 5)),
            Err(Contradiction::TwoForms { receiver: 0, rclock: 1 })
        );
        let other = vec![Recorded { source: 2, polls: 1 }];
        let differs = gathered(&[event(1, 1, 0, 0)]).begin(causal(), 1, Some(other));
        assert_eq!(differs.err(), Some(Contradiction::TwoForms { receiver: 1, rclock: 1 }));
    }

    const RANKS: usize = 4;

    /// Ranks that send, deliver and hear of stable deliveries at random, and keep on while one of them gathers.
    struct Others {
        ranks: Vec<Causal>,
        /// Of each channel, from and to: clock and piggyback of every message, and how many have been taken in.
        sent: Vec<Vec<Vec<(u64, Piggyback)>>>,
        taken: Vec<Vec<usize>>,
        made: Vec<Vec<Event>>,
        stable: Vec<usize>,
        draw: u64,
    }

    impl Others {
        fn new(seed: u64, reduction: Reduction) -> Others {
            let ranks = (0..RANKS as Rank).map(|rank| Causal::new(rank, RANKS, reduction, true));
            Others {
                ranks: ranks.collect(),
                sent: vec![vec![Vec::new(); RANKS]; RANKS],
                taken: vec![vec![0; RANKS]; RANKS],
                made: vec![Vec::new(); RANKS],
                stable: vec![0; RANKS],
                draw: seed,
            }
        }

        fn random(&mut self, below: usize) -> usize {
            self.draw = self
                .draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.draw >> 33) as usize % below
        }

        /// One of them does something; `dead` does nothing.
        fn step(&mut self, dead: usize) {
            let (from, to) = (self.random(RANKS), self.random(RANKS));
            match self.random(5) {
                _ if from == to => {}
                0 | 1 if from != dead => {
                    let clock = self.made[from].len() as u64;
                    let piggyback = self.ranks[from].piggyback(to as Rank);
                    self.sent[from][to].push((clock, piggyback));
                }
                2 | 3 if to != dead => self.deliver(from, to),
                _ if from != dead => {
                    // An event logger stores a delivery when it has what it depends on, and tells somebody. What a dead life
                    // had waiting is dropped.
                    if to != dead
                        && let Some(next) = self.made[to].get(self.stable[to])
                        && next.antecedent <= self.stable[next.record.source as usize] as u64
                    {
                        self.stable[to] += 1;
                    }
                    self.ranks[from].learn_stable([(to as Rank, self.stable[to] as u64)]);
                }
                _ => {}
            }
        }

        fn deliver(&mut self, from: usize, to: usize) {
            let Some((clock, piggyback)) = self.sent[from][to].get(self.taken[from][to]) else {
                return;
            };
            self.taken[from][to] += 1;
            let determinant = crate::Determinant {
                receiver: to as Rank,
                rclock: self.made[to].len() as u64 + 1,
                source: from as Rank,
                ssn: self.taken[from][to] as u64,
                polls: 1,
            };
            self.ranks[to].absorb(from as Rank, piggyback).unwrap();
            self.ranks[to].deliver(&determinant, *clock).unwrap();
            self.made[to].push(Event {
                receiver: to as Rank,
                rclock: determinant.rclock,
                record: determinant.recorded(),
                antecedent: *clock,
            });
        }

        /// `dead` begins again, and looks at one thing after the other. Whether what it finds is true.
        fn gather(&mut self, dead: usize, reduction: Reduction, messages_first: bool) -> bool {
            let logged = self.made[dead][..self.stable[dead]].iter().map(|event| event.record);
            let logged = logged.collect();
            let mut gathering = Gathering::new(RANKS);
            for look in [messages_first, !messages_first] {
                for rank in 0..RANKS {
                    for source in 0..RANKS {
                        let from = if rank == dead { 0 } else { self.taken[source][rank] };
                        let sent = if look { &self.sent[source][rank][from..] } else { &[] };
                        for event in sent.iter().flat_map(|(_, piggyback)| &piggyback.events) {
                            gathering.add(*event).unwrap();
                        }
                        self.step(dead);
                    }
                    if !look && rank != dead {
                        for event in self.ranks[rank].all() {
                            gathering.add(event).unwrap();
                        }
                        self.step(dead);
                    }
                }
            }
            let known = self.ranks.iter().enumerate().filter(|(rank, _)| *rank != dead);
            let depended_on = known.map(|(_, causal)| causal.latest()[dead]).max().unwrap();
            let new = Causal::new(dead as Rank, RANKS, reduction, true);
            gathering
                .begin(new, dead as Rank, Some(logged))
                .is_ok_and(|(causal, record)| {
                    let made = self.made[dead].iter().map(|event| event.record);
                    record.len() as u64 >= depended_on
                        && made.take(record.len()).eq(record)
                        && causal
                            .stable()
                            .iter()
                            .zip(&self.stable)
                            .all(|(stable, is)| *stable <= *is as u64)
                })
        }
    }

    fn wrong(reduction: Reduction, messages_first: bool) -> usize {
        let is_wrong = |seed: &u64| {
            let mut others = Others::new(*seed, reduction);
            for _ in 0..others.random(400) {
                others.step(RANKS);
            }
            let dead = others.random(RANKS);
            !others.gather(dead, reduction, messages_first)
        };
        (0..2000).filter(is_wrong).count()
    }

    /// A message leaves out what its receiver knows, who may have learnt it after somebody looked.
    #[test]
    fn who_looks_at_messages_first_finds_their_past_with_the_ranks() {
        for reduction in REDUCTIONS {
            assert_eq!(wrong(reduction, true), 0, "{reduction:?}");
            assert!(wrong(reduction, false) > 0, "{reduction:?}: the order does not matter");
        }
    }
}

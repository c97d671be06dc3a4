//! Causal sender-based message logging (Bouteiller 2005, §III), what one rank keeps of it.
//!
//! It stands beside a [`Pessimistic`](crate::Pessimistic) made with [`Tolerate::Process`](crate::Tolerate::Process),
//! which counts, replays and never holds a send. This module makes that enough where nodes are lost. Every message
//! carries the determinants that are not stable as far as its sender knows, and that its receiver may not know. So
//! every rank that depends on a delivery can tell it to the life that must repeat it.
//!
//! An *event* is a determinant with its edge in the antecedence graph. What a rank knows is always closed: with an
//! event, it knows everything in the event's past that is not stable. An event is *stable* when an event logger has
//! acknowledged it, or when the older of its receiver's images covers it. Event loggers store in causal order
//! ([`EventLogger::log_events`](crate::EventLogger::log_events)).
//!
//! A later life collects what other ranks know of its former lives: [`Collection`].

mod collection;
mod gathering;
mod reduction;

pub use collection::{Answer, Collection};
pub use gathering::{Contradiction, Gathering};

use crate::{Determinant, Rank, Recorded};
use reduction::{Known, LogOn, Raised, Sequences, Store};

/// How piggybacks are kept small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Per creator sequences, and what has been exchanged with each peer.
    Vcausal,
    /// The antecedence graph is crossed from the receiver's last known event.
    Manetho,
    /// The antecedence graph in a partial order, walked backwards from the sender's last event.
    LogOn,
}

impl Reduction {
    /// The one that a number of a job's settings stands for.
    pub const fn numbered(number: u32) -> Self {
        match number {
            0 => Self::Vcausal,
            1 => Self::Manetho,
            _ => Self::LogOn,
        }
    }
}

/// A delivery as it is piggybacked. Its ssn is the number of `receiver`'s earlier events of the same source, plus one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    pub receiver: Rank,
    pub rclock: u64,
    pub record: Recorded,
    /// The edge: deliveries that `record.source` had made when it sent the message; 0: none, or they were stable.
    pub antecedent: u64,
}

/// What a message carries beside its payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piggyback {
    /// In the order of the reduction; those of one receiver are in order.
    pub events: Vec<Event>,
    /// Stable clocks that are news, where ranks spread them.
    pub stable: Vec<(Rank, u64)>,
}

/// What a peer said is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another rank depends on a delivery of this rank that its present life does not know.
    #[error("rank {from} knows delivery {rclock} of rank {rank}, which has made {made}: not the same history")]
    Orphan {
        rank: Rank,
        from: Rank,
        rclock: u64,
        made: u64,
    },
    /// There is no such rank.
    #[error("rank {rank} is not one of the job's {size}")]
    UnknownRank { rank: Rank, size: usize },
}

/// What one life of one rank knows of the deliveries of all. Part of the process, and so of its images.
#[derive(Debug, Clone)]
pub struct Causal {
    rank: Rank,
    spreads_clocks: bool,
    store: Store,
    /// Per rank, its last event that is known here.
    latest: Vec<u64>,
    /// Per rank, deliveries that are stable: their events are not kept.
    stable: Vec<u64>,
    /// Per peer and rank, the last event that either has told the other; a peer without any exchange has no row.
    exchanged: Vec<Vec<u64>>,
    /// Per peer: its life has begun, and knows its own events. A life that still collects gets them too.
    begun: Vec<bool>,
    /// Per peer and rank, the last stable clock told to it.
    told_stable: Vec<Vec<u64>>,
    /// The events of this rank's former lives are being collected.
    collecting: bool,
    /// Empty between calls.
    raised: Raised,
    /// The knowledge of a peer before one of its messages; of no use between calls.
    before: Vec<u64>,
}

impl Causal {
    /// A rank's first life. `spreads_clocks`: messages carry stable clocks too (several event loggers, none of which tells
    /// ranks more than its own clocks).
    pub fn new(rank: Rank, size: usize, reduction: Reduction, spreads_clocks: bool) -> Self {
        assert!((rank as usize) < size, "rank {rank} is not one of {size}");
        let store = match reduction {
            Reduction::Vcausal => Store::Sequences(Sequences::new(size, false)),
            Reduction::Manetho => Store::Sequences(Sequences::new(size, true)),
            Reduction::LogOn => Store::LogOn(LogOn::default()),
        };
        let told_to = if spreads_clocks { size } else { 0 };
        Self {
            rank,
            spreads_clocks,
            store,
            latest: vec![0; size],
            stable: vec![0; size],
            exchanged: vec![Vec::new(); size],
            begun: vec![true; size],
            told_stable: vec![vec![0; size]; told_to],
            collecting: false,
            raised: Raised::new(size),
            before: Vec::new(),
        }
    }

    /// The job has so many ranks by now. It is as if the further ones had been there and done nothing.
    pub fn grow(&mut self, size: usize) {
        self.store.get_mut().grow(size);
        self.raised.grow(size);
        self.latest.resize(size, 0);
        self.stable.resize(size, 0);
        // Rows grow when they are used.
        self.exchanged.resize_with(size, Vec::new);
        self.begun.resize(size, true);
        if self.spreads_clocks {
            self.told_stable.iter_mut().for_each(|told| told.resize(size, 0));
            self.told_stable.resize_with(size, || vec![0; size]);
        }
    }

    /// This rank has made a delivery, new or repeated. `antecedent`: deliveries that the sender had made when it sent the
    /// message, as the message says.
    pub fn deliver(&mut self, determinant: &Determinant, antecedent: u64) -> Result<(), Error> {
        let own = &mut self.latest[self.rank as usize];
        if determinant.rclock <= *own {
            return Ok(());
        }
        assert!(
            determinant.rclock == *own + 1,
            "rank {}: delivery {} follows {own}",
            self.rank,
            determinant.rclock
        );
        *own = determinant.rclock;
        let event = Event {
            receiver: self.rank,
            rclock: determinant.rclock,
            record: determinant.recorded(),
            antecedent,
        };
        self.past_is_stable(determinant.source, &[event])?;
        self.store.get_mut().insert(event);
        Ok(())
    }

    /// The piggyback of the message that now leaves for `to`. Messages arrive in this order, or [`Self::connected`]
    /// is called. Nothing waits.
    pub fn piggyback(&mut self, to: Rank) -> Piggyback {
        let mut piggyback = Piggyback::default();
        self.carry(to, &mut piggyback);
        piggyback
    }

    /// The same, into `piggyback`, which is overwritten.
    pub fn carry(&mut self, to: Rank, piggyback: &mut Piggyback) {
        piggyback.events.clear();
        piggyback.stable.clear();
        if to == self.rank {
            return;
        }
        let known = row(&mut self.exchanged, to);
        for (known, stable) in known.iter_mut().zip(&self.stable) {
            *known = (*known).max(*stable);
        }
        let itself = self.begun[to as usize];
        let (last, raised) = (&mut known[..], &mut self.raised);
        let store = self.store.get();
        store.lacking(
            to,
            itself,
            &self.latest,
            &mut Known { last, raised },
            &mut piggyback.events,
        );
        known.clone_from(&self.latest);
        self.news_of_stable(to, &mut piggyback.stable);
    }

    /// What a repeated message for `to` carries that has to be sent once more: nothing. Its receiver has recorded it, and so
    /// knows what it depends on. Perhaps nobody ever reads it: the receiver's image may have it already. So it tells
    /// nothing.
    pub fn carry_again(&self, piggyback: &mut Piggyback) {
        piggyback.events.clear();
        piggyback.stable.clear();
    }

    fn news_of_stable(&mut self, to: Rank, news: &mut Vec<(Rank, u64)>) {
        let Some(told) = self.told_stable.get_mut(to as usize) else {
            return;
        };
        let each = (0..).zip(&self.stable).zip(&*told);
        let each = each.filter(|((_, stable), told)| stable > told);
        news.extend(each.map(|((rank, stable), _)| (rank, *stable)));
        told.clone_from(&self.stable);
    }

    /// The piggyback of a message from `from`: takes it in on arrival, whenever the message is delivered. A life that
    /// collects sends no messages.
    pub fn absorb(&mut self, from: Rank, piggyback: &Piggyback) -> Result<(), Error> {
        self.told(from, piggyback)?;
        self.begun[from as usize] = true;
        Ok(())
    }

    /// Everything that `from` knows, in answer to a question of this life.
    pub fn told(&mut self, from: Rank, piggyback: &Piggyback) -> Result<(), Error> {
        let size = self.latest.len();
        let strange = |rank: Rank| rank as usize >= size;
        let named = piggyback
            .events
            .iter()
            .flat_map(|event| [event.receiver, event.record.source]);
        let named = named
            .chain(piggyback.stable.iter().map(|(rank, _)| *rank))
            .chain([from]);
        if let Some(rank) = named.into_iter().find(|rank| strange(*rank)) {
            return Err(Error::UnknownRank { rank, size });
        }
        let crosses = self.store.get().crosses();
        if crosses {
            self.before.clone_from(row(&mut self.exchanged, from));
        }
        for event in &piggyback.events {
            self.learn(from, *event)?;
        }
        if crosses {
            let (last, raised) = (&mut self.exchanged[from as usize][..], &mut self.raised);
            let each = (0..).zip(self.before.iter().copied()).zip(&*last);
            let each = each.filter(|((_, before), known)| before < known);
            each.for_each(|((rank, before), _)| raised.add(rank, before));
            self.store.get().follow(&mut Known { last, raised });
        }
        self.past_is_stable(from, &piggyback.events)?;
        self.raise_stable(piggyback.stable.iter().copied());
        Ok(())
    }

    fn learn(&mut self, from: Rank, event: Event) -> Result<(), Error> {
        let Event { receiver, rclock, .. } = event;
        let told = &mut row(&mut self.exchanged, from)[receiver as usize];
        *told = rclock.max(*told);
        let latest = &self.latest[receiver as usize];
        if rclock <= *latest {
            return Ok(());
        }
        let missing = rclock > *latest + 1;
        self.not_of_this_life(from, receiver, rclock)?;
        self.latest[receiver as usize] = rclock;
        if missing {
            // The sender leaves out only what is known here and what is stable.
            self.raise_stable([(receiver, rclock - 1)]);
        }
        self.store.get_mut().insert(event);
        Ok(())
    }

    /// The sender of `events` leaves out of their past only what is known here and what is stable.
    fn past_is_stable(&mut self, from: Rank, events: &[Event]) -> Result<(), Error> {
        for event in events {
            let (source, antecedent) = (event.record.source, event.antecedent);
            if antecedent > self.latest[source as usize] {
                self.not_of_this_life(from, source, antecedent)?;
                self.raise_stable([(source, antecedent)]);
            }
        }
        Ok(())
    }

    /// Delivery `rclock` of `receiver` is not known here, and so must not be this rank's.
    fn not_of_this_life(&self, from: Rank, receiver: Rank, rclock: u64) -> Result<(), Error> {
        if receiver != self.rank || self.collecting {
            return Ok(());
        }
        Err(Error::Orphan {
            rank: receiver,
            from,
            rclock,
            made: self.latest[receiver as usize],
        })
    }

    /// Deliveries of each rank that are stable, as an event logger acknowledges them (§III.A): all ranks can forget
    /// them.
    pub fn acknowledge(&mut self, clocks: &[u64]) {
        assert!(
            clocks.len() == self.stable.len(),
            "{} clocks in a job of {} ranks",
            clocks.len(),
            self.stable.len()
        );
        self.raise_stable((0..).zip(clocks.iter().copied()));
    }

    /// The same for some ranks, with their clocks.
    pub fn learn_stable(&mut self, clocks: impl IntoIterator<Item = (Rank, u64)>) {
        self.raise_stable(clocks);
    }

    /// The older of two images of `rank` covers its first `rclock` deliveries.
    pub fn covered(&mut self, rank: Rank, rclock: u64) {
        self.raise_stable([(rank, rclock)]);
    }

    fn raise_stable(&mut self, clocks: impl IntoIterator<Item = (Rank, u64)>) {
        let mut raised = false;
        for (rank, clock) in clocks {
            let stable = &mut self.stable[rank as usize];
            if clock > *stable {
                *stable = clock;
                let latest = &mut self.latest[rank as usize];
                *latest = clock.max(*latest);
                raised = true;
            }
        }
        if raised {
            self.store.get_mut().forget(&self.stable);
        }
    }

    /// A later life of `peer`, or the same after its connection broke: messages to it may be lost.
    pub fn connected(&mut self, peer: Rank) {
        self.exchanged[peer as usize].fill(0);
        self.begun[peer as usize] = false;
        if let Some(told) = self.told_stable.get_mut(peer as usize) {
            told.fill(0);
        }
    }

    /// All events that are kept, in the order of the reduction.
    pub fn all(&self) -> Vec<Event> {
        self.store.get().all()
    }

    /// Everything that is known here, for a life of `peer` that begins again.
    pub fn everything(&mut self, peer: Rank) -> Piggyback {
        self.exchanged[peer as usize].clone_from(&self.latest);
        if let Some(told) = self.told_stable.get_mut(peer as usize) {
            told.clone_from(&self.stable);
        }
        Piggyback {
            events: self.store.get().all(),
            stable: (0..).zip(self.stable.iter().copied()).collect(),
        }
    }

    /// This rank's deliveries after its first `above`, as its record has them, for an event logger
    /// ([`EventLogger::log_events`](crate::EventLogger::log_events)).
    pub fn to_log(&self, above: u64, records: &[Recorded]) -> Vec<Event> {
        let numbered = (above + 1..).zip(records);
        let event = |(rclock, record): (u64, &Recorded)| Event {
            receiver: self.rank,
            rclock,
            record: *record,
            antecedent: 0,
        };
        let mut events: Vec<Event> = numbered.map(event).collect();
        // Events missing here are stable, and their past was stable before them.
        for known in self.store.get().of(self.rank, above) {
            let stable = self.stable[known.record.source as usize];
            if let Some(event) = events.get_mut((known.rclock - above - 1) as usize)
                && known.antecedent > stable
            {
                event.antecedent = known.antecedent;
            }
        }
        events
    }

    /// Per rank, deliveries that are known to be stable.
    pub fn stable(&self) -> &[u64] {
        &self.stable
    }

    /// Per rank, its last event that is known here.
    pub fn latest(&self) -> &[u64] {
        &self.latest
    }

    /// Ranks spread stable clocks with their messages.
    pub fn spreads_clocks(&self) -> bool {
        self.spreads_clocks
    }

    /// Events that are kept: vertices of the antecedence graph.
    pub fn kept(&self) -> usize {
        self.store.get().len()
    }
}

/// The row of `peer`, made when it is needed first.
fn row(rows: &mut [Vec<u64>], peer: Rank) -> &mut Vec<u64> {
    let size = rows.len();
    let row = &mut rows[peer as usize];
    row.resize(size, 0);
    row
}

#[cfg(test)]
mod tests;

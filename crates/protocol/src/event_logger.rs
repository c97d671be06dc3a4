//! The event logger: the stable store of determinants (MPICH-V2; Bouteiller 2006, §III.C; Bouteiller 2005, §IV.B).
//!
//! It keeps, per receiver, the sequence of its deliveries, acknowledges how far the sequence goes, and gives it
//! back to a later life. It knows nothing of payloads.
//!
//! **Loss.** A logger that replaces a lost one starts empty, in a later epoch. Every live rank then sends all it has
//! once more, after having told what its images cover ([`EventLogger::forget`]). Until a rank has refilled what lost
//! loggers had acknowledged to it, its history here is not whole. [`EventLogger::query`] refuses it then: other ranks
//! may depend on missing deliveries.
//!
//! **Causal order.** Where sends do not wait ([`crate::causal`]), a delivery may come here before others that it depends
//! on. It waits for them: it is neither acknowledged nor given to a later life, which could not repeat it. A later life
//! finds no waiting deliveries of its former ones, and logs them again where other ranks know them.

use std::collections::VecDeque;

use crate::causal::Event;
use crate::{Rank, Recorded};

/// Why the event logger refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such rank.
    #[error("rank {rank} is not one of the job's {size}")]
    UnknownRank { rank: Rank, size: usize },
    /// A message of a life that a later one has replaced.
    #[error("incarnation {incarnation} of rank {rank} has been replaced by incarnation {current}")]
    Fenced { rank: Rank, incarnation: u64, current: u64 },
    /// Deliveries are missing before the first one sent.
    #[error("rank {rank} sent deliveries from {first_rclock} on, but only {stored} are stored")]
    Gap { rank: Rank, first_rclock: u64, stored: u64 },
    /// A delivery differs from what is stored for it.
    #[error("rank {rank} sent a different delivery {rclock}: not the same history")]
    NotTheSameHistory { rank: Rank, rclock: u64 },
    /// Deliveries that an image of the receiver covers were asked for.
    #[error("deliveries of rank {rank} above {above_rclock} were asked for, those before {kept_from} are dropped")]
    Forgotten {
        rank: Rank,
        above_rclock: u64,
        kept_from: u64,
    },
    /// A lost logger had acknowledged more than this one has got again.
    #[error("the history of rank {rank} was lost with an earlier event logger ({stored} deliveries are stored)")]
    NotWhole { rank: Rank, stored: u64 },
}

/// Every delivery of the receiver up to `rclock` is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    pub rclock: u64,
}

#[derive(Debug, Clone, Default)]
struct History {
    incarnation: u64,
    /// What loggers acknowledged to the receiver, by its own word; none until a replacement learns it.
    required: Option<u64>,
    /// Deliveries dropped from the front.
    forgotten: u64,
    records: Vec<Recorded>,
    /// For the last records, which wait for what they depend on: deliveries of their source that must be stored before.
    waiting: VecDeque<u64>,
}

impl History {
    /// Deliveries that are here, or covered by images.
    fn received(&self) -> u64 {
        self.forgotten + self.records.len() as u64
    }

    /// Those that do not wait.
    fn stored(&self) -> u64 {
        self.received() - self.waiting.len() as u64
    }

    fn stored_records(&self) -> &[Recorded] {
        &self.records[..self.records.len() - self.waiting.len()]
    }

    fn drop_waiting(&mut self) {
        self.records.truncate(self.records.len() - self.waiting.len());
        self.waiting.clear();
    }
}

/// The event logger's state.
#[derive(Debug, Clone)]
pub struct EventLogger {
    epoch: u64,
    histories: Vec<History>,
    /// Per rank, deliveries that are stable elsewhere.
    elsewhere: Vec<u64>,
    /// Ranks from here on have no history: they may be spawned one day.
    heard_of: usize,
}

impl EventLogger {
    /// The first logger of a job of `size` ranks.
    pub fn new(size: usize) -> Self {
        let history = History {
            required: Some(0),
            ..History::default()
        };
        Self {
            epoch: 1,
            histories: vec![history; size],
            elsewhere: vec![0; size],
            heard_of: 0,
        }
    }

    /// An empty logger in the place of a lost one. `epoch`: higher than that of any before it.
    pub fn replacement(size: usize, epoch: u64) -> Self {
        assert!(
            epoch > 1,
            "epoch {epoch} of a replacement: the job's first logger has epoch 1"
        );
        Self {
            epoch,
            histories: vec![History::default(); size],
            elsewhere: vec![0; size],
            heard_of: 0,
        }
    }

    /// Number of this logger among those the job has had, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Ranks in the job.
    pub fn size(&self) -> usize {
        self.histories.len()
    }

    /// A life of `receiver` introduces itself; messages of earlier lives are refused from here on. `acknowledged`:
    /// deliveries that this or an earlier logger has acknowledged or given to this life; `None` from a life that
    /// recovers and has not asked yet. A life that does not know how much of its record that is gives all of it. Where
    /// the history is whole, no acknowledged delivery is missing, and it stays so.
    pub fn admit(&mut self, receiver: Rank, incarnation: u64, acknowledged: Option<u64>) -> Result<(), Error> {
        let history = self.history_mut(receiver)?;
        if incarnation < history.incarnation {
            let current = history.incarnation;
            return Err(Error::Fenced {
                rank: receiver,
                incarnation,
                current,
            });
        }
        if incarnation > history.incarnation {
            history.drop_waiting();
        }
        history.incarnation = incarnation;
        let is_whole = history.required.is_some_and(|required| required <= history.stored());
        if !is_whole {
            history.required = history.required.max(acknowledged);
        }
        Ok(())
    }

    /// Stores deliveries `first_rclock`, `first_rclock + 1`… of `receiver`. Compares deliveries that are already
    /// stored.
    pub fn log(
        &mut self,
        receiver: Rank,
        incarnation: u64,
        first_rclock: u64,
        records: &[Recorded],
    ) -> Result<Ack, Error> {
        self.receive(receiver, incarnation, first_rclock, records, std::iter::repeat(0))
    }

    /// The same for deliveries that may depend on others which are not stored yet: all of one receiver, from the first on.
    pub fn log_events(
        &mut self,
        receiver: Rank,
        incarnation: u64,
        first_rclock: u64,
        events: &[Event],
    ) -> Result<Ack, Error> {
        let records: Vec<Recorded> = events.iter().map(|event| event.record).collect();
        let antecedents = events.iter().map(|event| event.antecedent);
        self.receive(receiver, incarnation, first_rclock, &records, antecedents)
    }

    fn receive(
        &mut self,
        receiver: Rank,
        incarnation: u64,
        first_rclock: u64,
        records: &[Recorded],
        antecedents: impl Iterator<Item = u64>,
    ) -> Result<Ack, Error> {
        let size = self.size();
        let history = self.history_mut(receiver)?;
        if incarnation != history.incarnation {
            let current = history.incarnation;
            return Err(Error::Fenced {
                rank: receiver,
                incarnation,
                current,
            });
        }
        let stored = history.received();
        if first_rclock == 0 || first_rclock > stored + 1 {
            return Err(Error::Gap {
                rank: receiver,
                first_rclock,
                stored,
            });
        }
        if let Some(strange) = records.iter().find(|record| record.source as usize >= size) {
            return Err(Error::UnknownRank {
                rank: strange.source,
                size,
            });
        }
        let known = (stored + 1 - first_rclock).min(records.len() as u64) as usize;
        for (rclock, record) in (first_rclock..).zip(&records[..known]) {
            if rclock > history.forgotten && history.records[(rclock - history.forgotten - 1) as usize] != *record {
                return Err(Error::NotTheSameHistory { rank: receiver, rclock });
            }
        }
        history.records.extend_from_slice(&records[known..]);
        let antecedents = antecedents.take(records.len()).skip(known);
        let idle = history.waiting.is_empty();
        history
            .waiting
            .extend(antecedents.skip_while(|antecedent| idle && *antecedent == 0));
        self.settle();
        Ok(self.ack(receiver))
    }

    /// Stores deliveries that wait for nothing any more.
    fn settle(&mut self) {
        let mut heard_of = self.histories[..self.heard_of].iter();
        if heard_of.all(|history| history.waiting.is_empty()) {
            return;
        }
        let mut clocks: Vec<u64> = self.stable_clocks().collect();
        let mut progress = true;
        while std::mem::take(&mut progress) {
            for (receiver, history) in self.histories[..self.heard_of].iter_mut().enumerate() {
                while let Some(antecedent) = history.waiting.front() {
                    let record = history.records[history.records.len() - history.waiting.len()];
                    if clocks[record.source as usize] < *antecedent {
                        break;
                    }
                    history.waiting.pop_front();
                    progress = true;
                }
                clocks[receiver] = clocks[receiver].max(history.stored());
            }
        }
    }

    fn ack(&self, receiver: Rank) -> Ack {
        Ack {
            rclock: self.histories[receiver as usize].stored(),
        }
    }

    /// Stable deliveries of each rank, from another logger or a rank.
    pub fn learn(&mut self, clocks: &[u64]) {
        for (known, clock) in self.elsewhere.iter_mut().zip(clocks) {
            *known = (*known).max(*clock);
        }
        self.settle();
    }

    /// Deliveries of `receiver` after the first `above_rclock`, in order. A life restored from the newer of two
    /// images asks above the older one: its own record must be able to refill a replacement.
    pub fn query(&self, receiver: Rank, above_rclock: u64) -> Result<&[Recorded], Error> {
        let history = self.history(receiver)?;
        let stored = history.stored();
        if history.required.is_none_or(|required| stored < required) {
            return Err(Error::NotWhole { rank: receiver, stored });
        }
        if above_rclock < history.forgotten {
            let kept_from = history.forgotten + 1;
            return Err(Error::Forgotten {
                rank: receiver,
                above_rclock,
                kept_from,
            });
        }
        let records = history.stored_records();
        let skipped = (above_rclock - history.forgotten).min(records.len() as u64);
        Ok(&records[skipped as usize..])
    }

    /// Stable deliveries of every rank, in rank order (Bouteiller 2005, §III: what every rank may forget).
    pub fn stable_clocks(&self) -> impl Iterator<Item = u64> + '_ {
        let here = self.histories[..self.heard_of].iter().map(History::stored);
        let here = here.chain(std::iter::repeat(0));
        here.zip(&self.elsewhere).map(|(here, elsewhere)| here.max(*elsewhere))
    }

    /// Drops the first `rclock` deliveries of `receiver`: no recovery begins before them, because the older of its
    /// two images covers them. Where a replacement never had them, they count as stored from now on. This stays true,
    /// so it may also come from a replaced life.
    pub fn forget(&mut self, receiver: Rank, rclock: u64) -> Result<Ack, Error> {
        let history = self.history_mut(receiver)?;
        let dropped = rclock.saturating_sub(history.forgotten);
        let here = dropped.min(history.records.len() as u64);
        history.records.drain(..here as usize);
        history.forgotten += dropped;
        let waiting = history.waiting.len().saturating_sub(history.records.len());
        history.waiting.drain(..waiting);
        self.settle();
        Ok(self.ack(receiver))
    }

    /// Deliveries of `receiver` that were dropped, and those that are stored, whether they are its whole history or not.
    pub fn stored(&self, receiver: Rank) -> Result<(u64, &[Recorded]), Error> {
        let history = self.history(receiver)?;
        Ok((history.forgotten, history.stored_records()))
    }

    /// Deliveries of `receiver` that are kept here now.
    pub fn kept(&self, receiver: Rank) -> Result<u64, Error> {
        Ok(self.history(receiver)?.records.len() as u64)
    }

    /// The latest life of `receiver` that has introduced itself; 0: none.
    pub fn incarnation(&self, receiver: Rank) -> Result<u64, Error> {
        Ok(self.history(receiver)?.incarnation)
    }

    /// Deliveries of `receiver` that must be here before its history is whole; `None`: that is not known.
    pub fn required(&self, receiver: Rank) -> Result<Option<u64>, Error> {
        Ok(self.history(receiver)?.required)
    }

    fn history(&self, rank: Rank) -> Result<&History, Error> {
        let size = self.size();
        self.histories
            .get(rank as usize)
            .ok_or(Error::UnknownRank { rank, size })
    }

    fn history_mut(&mut self, rank: Rank) -> Result<&mut History, Error> {
        let size = self.size();
        let history = self.histories.get_mut(rank as usize);
        let history = history.ok_or(Error::UnknownRank { rank, size })?;
        self.heard_of = self.heard_of.max(rank as usize + 1);
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u64) -> Vec<Recorded> {
        (0..count)
            .map(|polls| Recorded {
                source: (polls % 2) as Rank,
                polls,
            })
            .collect()
    }

    fn logger() -> EventLogger {
        let mut logger = EventLogger::new(2);
        assert_eq!(logger.admit(1, 1, Some(0)), Ok(()));
        assert_eq!(logger.log(1, 1, 1, &records(5)), Ok(Ack { rclock: 5 }));
        logger
    }

    #[test]
    fn what_is_logged_twice_counts_once() {
        let mut logger = logger();
        assert_eq!(logger.log(1, 1, 3, &records(9)[2..]), Ok(Ack { rclock: 9 }));
        assert_eq!(logger.log(1, 1, 1, &records(2)), Ok(Ack { rclock: 9 }));
        assert_eq!(logger.log(1, 1, 10, &[]), Ok(Ack { rclock: 9 }));
        assert_eq!(logger.query(1, 0), Ok(&records(9)[..]));
        assert_eq!(logger.query(1, 8), Ok(&records(9)[8..]));
        assert_eq!(logger.query(1, 100), Ok(&[][..]));
        assert_eq!(logger.stable_clocks().collect::<Vec<_>>(), [0, 9]);
    }

    /// Its record is longer than what was acknowledged, and no rank depends on the rest.
    #[test]
    fn a_whole_history_stays_whole_when_a_life_finds_more_in_its_record() {
        let mut logger = logger();
        assert_eq!(logger.admit(1, 2, Some(7)), Ok(()));
        assert_eq!(logger.query(1, 0), Ok(&records(5)[..]));
        let mut replacement = EventLogger::replacement(2, 2);
        assert_eq!(replacement.admit(1, 2, Some(5)), Ok(()));
        assert_eq!(replacement.log(1, 2, 1, &records(4)), Ok(Ack { rclock: 4 }));
        assert!(replacement.query(1, 0).is_err());
        assert_eq!(replacement.admit(1, 3, Some(6)), Ok(()));
        assert_eq!(replacement.log(1, 3, 1, &records(5)), Ok(Ack { rclock: 5 }));
        assert!(replacement.query(1, 0).is_err());
        assert_eq!(replacement.log(1, 3, 6, &records(6)[5..]), Ok(Ack { rclock: 6 }));
        assert_eq!(replacement.admit(1, 4, Some(9)), Ok(()));
        assert_eq!(replacement.query(1, 0), Ok(&records(6)[..]));
    }

    #[test]
    fn gaps_strangers_and_other_histories_are_refused() {
        let mut logger = logger();
        assert_eq!(
            logger.log(1, 1, 7, &records(1)),
            Err(Error::Gap {
                rank: 1,
                first_rclock: 7,
                stored: 5
            })
        );
        assert_eq!(
            logger.log(1, 1, 0, &records(1)),
            Err(Error::Gap {
                rank: 1,
                first_rclock: 0,
                stored: 5
            })
        );
        assert_eq!(
            logger.log(1, 1, 5, &records(1)),
            Err(Error::NotTheSameHistory { rank: 1, rclock: 5 })
        );
        assert_eq!(logger.log(2, 1, 1, &[]), Err(Error::UnknownRank { rank: 2, size: 2 }));
        let strange = [Recorded { source: 2, polls: 0 }];
        assert_eq!(
            logger.log(1, 1, 6, &strange),
            Err(Error::UnknownRank { rank: 2, size: 2 })
        );
        assert_eq!(
            logger.query(1, 0),
            Ok(&records(5)[..]),
            "a refused log leaves nothing behind"
        );
    }

    #[test]
    fn a_replaced_life_is_fenced() {
        let mut logger = logger();
        assert_eq!(logger.admit(1, 2, None), Ok(()));
        let fenced = Err(Error::Fenced {
            rank: 1,
            incarnation: 1,
            current: 2,
        });
        assert_eq!(logger.log(1, 1, 6, &records(1)).map(|_| ()), fenced);
        assert_eq!(logger.admit(1, 1, Some(5)), fenced);
        assert_eq!(logger.query(1, 0), Ok(&records(5)[..]));
    }

    #[test]
    fn a_replacement_refuses_histories_it_was_not_told() {
        let mut logger = EventLogger::replacement(2, 2);
        let lost = |stored| Err(Error::NotWhole { rank: 1, stored });
        assert_eq!(logger.query(1, 0), lost(0));
        assert_eq!(logger.admit(1, 1, Some(5)), Ok(()));
        assert_eq!(logger.log(1, 1, 1, &records(4)), Ok(Ack { rclock: 4 }));
        assert_eq!(logger.query(1, 0), lost(4));
        assert_eq!(logger.log(1, 1, 5, &records(5)[4..]), Ok(Ack { rclock: 5 }));
        assert_eq!(logger.admit(1, 2, None), Ok(()));
        assert_eq!(logger.query(1, 0), Ok(&records(5)[..]));
        assert_eq!(logger.admit(0, 2, None), Ok(()));
        assert_eq!(logger.query(0, 0), Err(Error::NotWhole { rank: 0, stored: 0 }));
    }

    #[test]
    fn what_an_image_covers_is_forgotten() {
        let mut logger = logger();
        assert_eq!(logger.forget(1, 3), Ok(Ack { rclock: 5 }));
        assert_eq!((logger.kept(1), logger.kept(0)), (Ok(2), Ok(0)));
        assert_eq!(logger.query(1, 3), Ok(&records(5)[3..]));
        assert_eq!(
            logger.query(1, 2),
            Err(Error::Forgotten {
                rank: 1,
                above_rclock: 2,
                kept_from: 4
            })
        );
        assert_eq!(logger.log(1, 1, 2, &records(7)[1..]), Ok(Ack { rclock: 7 }));
        assert_eq!(logger.forget(1, 1), Ok(Ack { rclock: 7 }));
        assert_eq!(logger.query(1, 3), Ok(&records(7)[3..]));
        assert_eq!(logger.forget(1, 7), Ok(Ack { rclock: 7 }));
        assert_eq!(
            (logger.query(1, 7), logger.stable_clocks().last()),
            (Ok(&[][..]), Some(7))
        );
    }

    #[test]
    fn a_replacement_is_refilled_from_what_the_images_do_not_cover() {
        let mut logger = EventLogger::replacement(2, 2);
        assert_eq!(logger.admit(1, 1, Some(5)), Ok(()));
        assert_eq!(logger.forget(1, 3), Ok(Ack { rclock: 3 }));
        assert_eq!(logger.query(1, 3), Err(Error::NotWhole { rank: 1, stored: 3 }));
        assert_eq!(logger.log(1, 1, 4, &records(5)[3..]), Ok(Ack { rclock: 5 }));
        assert_eq!(logger.query(1, 3), Ok(&records(5)[3..]));
        assert_eq!(logger.query(1, 4), Ok(&records(5)[4..]));
    }
}

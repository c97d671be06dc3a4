//! How a life that begins again collects the events of its former lives, and all that others know.
//!
//! It asks every rank, and its event logger if it has one. The question fences: after its answer, a rank takes no more
//! messages of a former life. Others may be collecting too, so answers come in two kinds:
//!
//! - At once: every rank that is there says what it knows now. [`Answer::complete`] is false while it collects itself.
//! - *Complete*: a rank gives it when its life has begun, or when every rank and its event logger have answered it at
//!   once. Only then no message of its former lives can escape: all ranks that took one have reported it.
//!
//! A collection is over with a complete answer of every rank. Each must come from the latest life that the other ranks
//! know. Then no rank, alive or later, depends on a delivery of this rank that the collection lacks. With less, a
//! message of a dead life that is still on its way can make an orphan.

use super::{Causal, Error, Event, Piggyback};
use crate::{Rank, Recorded};

/// What a rank tells a life that collects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The sender is not collecting, or nothing can escape from its former lives any more.
    pub complete: bool,
    /// Per rank, the latest life that the sender knows of.
    pub lives: Vec<u64>,
    /// [`Causal::everything`].
    pub known: Piggyback,
}

#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    life: u64,
    complete: bool,
}

/// What this life has told a peer that collects too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    NotAsked,
    Something,
    Complete,
}

/// A life that collects.
#[derive(Debug, Clone)]
pub struct Collection {
    causal: Causal,
    heard: Vec<Heard>,
    told: Vec<Told>,
    /// Per rank, the latest life that any rank has named.
    lives: Vec<u64>,
    /// The event logger's part: the events after the first so many.
    logged: Option<(u64, Vec<Recorded>)>,
}

impl Collection {
    /// `causal`: from the image that life `life` of the rank begins from, or new. `event_logger`: there is one to ask.
    pub fn new(mut causal: Causal, life: u64, event_logger: bool) -> Self {
        let size = causal.latest.len();
        causal.collecting = true;
        (0..size as Rank).for_each(|peer| causal.connected(peer));
        let mut heard = vec![Heard::default(); size];
        heard[causal.rank as usize] = Heard { life, complete: true };
        let mut lives = vec![0; size];
        lives[causal.rank as usize] = life;
        Self {
            causal,
            heard,
            told: vec![Told::NotAsked; size],
            lives,
            logged: (!event_logger).then_some((0, Vec::new())),
        }
    }

    /// Life `life` of `peer` asks, and must get an answer ([`Self::tell`]). It may not have got this life's question,
    /// and a former life's answer is no longer enough.
    pub fn asked(&mut self, peer: Rank, life: u64) {
        self.hear_of(peer, life);
        self.told[peer as usize] = Told::Something;
    }

    fn hear_of(&mut self, peer: Rank, life: u64) {
        let known = &mut self.lives[peer as usize];
        *known = life.max(*known);
    }

    /// An answer of life `life` of `from`.
    pub fn answer(&mut self, from: Rank, life: u64, answer: &Answer) -> Result<(), Error> {
        self.causal.told(from, &answer.known)?;
        self.hear_of(from, life);
        for (peer, life) in (0..).zip(&answer.lives) {
            self.hear_of(peer, *life);
        }
        let heard = &mut self.heard[from as usize];
        let complete = answer.complete || heard.life == life && heard.complete;
        if life >= heard.life {
            *heard = Heard { life, complete };
        }
        Ok(())
    }

    /// All that any rank knows, at once.
    pub fn told_all(&mut self, known: &Piggyback) -> Result<(), Error> {
        self.causal.told(self.causal.rank, known)
    }

    /// The piggyback of a message from `from`.
    pub fn absorb(&mut self, from: Rank, piggyback: &Piggyback) -> Result<(), Error> {
        self.causal.absorb(from, piggyback)
    }

    /// See [`Causal::connected`].
    pub fn connected(&mut self, peer: Rank) {
        self.causal.connected(peer);
    }

    /// See [`Causal::covered`].
    pub fn covered(&mut self, rank: Rank, rclock: u64) {
        self.causal.covered(rank, rclock);
    }

    /// The event logger has admitted this life and has these deliveries after the first `above`.
    pub fn logged(&mut self, above: u64, records: Vec<Recorded>) {
        self.logged = Some((above, records));
    }

    /// Deliveries of this rank that the event logger has, once it has answered.
    pub fn stored(&self) -> Option<u64> {
        let (above, records) = self.logged.as_ref()?;
        Some(above + records.len() as u64)
    }

    /// The event logger's deliveries of this rank, with rclocks.
    pub(super) fn stored_events(&self) -> impl Iterator<Item = (u64, &Recorded)> {
        let logged = self.logged.iter();
        logged.flat_map(|(above, records)| (above + 1..).zip(records))
    }

    fn heard_of_all(&self, complete: bool) -> bool {
        let mut heard = self.heard.iter().zip(&self.lives);
        heard.all(|(heard, life)| heard.life > 0 && heard.life >= *life && (heard.complete || !complete))
    }

    /// What this life knows for `peer`, which collects too.
    pub fn tell(&mut self, peer: Rank) -> Answer {
        let complete = self.has_heard();
        if complete {
            self.told[peer as usize] = Told::Complete;
        }
        Answer {
            complete,
            lives: self.lives.clone(),
            known: self.causal.everything(peer),
        }
    }

    /// The peers that get a second answer, now that this life can tell them everything.
    pub fn due(&self) -> Vec<Rank> {
        let due = (0..).zip(&self.told).filter(|(_, told)| **told == Told::Something);
        due.filter(|_| self.has_heard()).map(|(peer, _)| peer).collect()
    }

    /// Every present rank and the event logger have answered: no message of former lives can escape any more.
    fn has_heard(&self) -> bool {
        self.logged.is_some() && self.heard_of_all(false)
    }

    /// All answers are complete.
    pub fn is_over(&self) -> bool {
        self.logged.is_some() && self.heard_of_all(true)
    }

    /// The deliveries to repeat and to keep: all that are known after the first `above`. `None` when some have been lost:
    /// an event logger had them, and is gone.
    pub fn record(&self, above: u64) -> Option<Vec<Recorded>> {
        let (from, logged) = self.logged.as_ref()?;
        let logged_to = from + logged.len() as u64;
        let own = self.causal.rank as usize;
        if logged_to.max(above) < self.causal.stable[own] || *from > above && !logged.is_empty() {
            return None;
        }
        let skipped = above.saturating_sub(*from).min(logged.len() as u64);
        let mut record = logged[skipped as usize..].to_vec();
        let rest = self.causal.store.get().of(self.causal.rank, logged_to.max(above));
        record.extend(rest.iter().map(|event: &Event| event.record));
        Some(record)
    }

    /// The life begins.
    pub fn finish(mut self) -> Causal {
        self.causal.collecting = false;
        if let Some((from, logged)) = &self.logged {
            let stored = from + logged.len() as u64;
            self.causal.covered(self.causal.rank, stored);
        }
        self.causal
    }

    /// What is known so far.
    pub fn causal(&self) -> &Causal {
        &self.causal
    }
}

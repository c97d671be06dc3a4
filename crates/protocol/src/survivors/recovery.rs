//! Ranks that recover by themselves before their failures are told (`--ft-after`).
//!
//! What a rank was answered has decided what it did next. So each answer is kept, with the look at which the rank took
//! it: a later life gets the same answer at the same look. And while a rank repeats what former lives did, it must hear
//! nothing that those had not heard. So failures and revocations are held back until it has come to their end.
//!
//! All of this is over with the first failure, or revocation: what ranks hear of it is in no record. It is over with the
//! first spawn as well.

use std::collections::BTreeMap;

use super::words::Verdict;
use crate::Rank;

/// To a wish that a rank has said.
#[derive(Debug, Clone, Default)]
struct Answer {
    verdict: Option<Verdict>,
    /// The look of the rank that found the verdict, from 1.
    look: Option<u64>,
    /// The present life has said this wish.
    is_asked: bool,
}

/// What a life has repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Repeated {
    #[default]
    Nothing,
    Messages,
    /// And output.
    All,
}

/// What ranks must know, later.
#[derive(Debug, Clone)]
pub(super) enum Held {
    Failed(Vec<Rank>, i32),
    Revoked { key: u64, ranks: Vec<Rank> },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Recovery {
    is_on: bool,
    /// Of each rank, by tickets.
    answers: BTreeMap<Rank, BTreeMap<u32, Answer>>,
    /// Ranks that may not have repeated all yet.
    repeating: BTreeMap<Rank, Repeated>,
    held: Vec<Held>,
}

impl Recovery {
    pub fn on() -> Recovery {
        Recovery {
            is_on: true,
            ..Recovery::default()
        }
    }

    /// A rank that fails may recover.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// No rank recovers any more. Those that repeat something still do.
    pub fn end(&mut self) {
        self.is_on = false;
        let repeating = &self.repeating;
        self.answers.retain(|rank, _| repeating.contains_key(rank));
    }

    /// The present life of `rank` wants something for the first time.
    pub fn asks(&mut self, rank: Rank, ticket: u32) {
        if self.is_on || self.repeating.contains_key(&rank) {
            let answer = self.answers.entry(rank).or_default().entry(ticket).or_default();
            answer.is_asked = true;
        }
    }

    /// The present life of `rank` may repeat a wish. None: no life has said it. Otherwise the look that found the
    /// verdict, and the verdict, as far as there are any.
    pub fn repeats(&mut self, rank: Rank, ticket: u32) -> Option<(Option<u64>, Option<Verdict>)> {
        let answer = self.answers.get_mut(&rank)?.get_mut(&ticket)?;
        answer.is_asked = true;
        Some((answer.look, answer.verdict.clone()))
    }

    /// `rank` has taken a verdict.
    pub fn takes(&mut self, rank: Rank, ticket: u32, look: u64) {
        let answers = self.answers.get_mut(&rank);
        if let Some(answer) = answers.and_then(|answers| answers.get_mut(&ticket)) {
            answer.look.get_or_insert(look);
        }
    }

    /// There is a verdict for `rank`. False: its present life has yet to ask for it.
    pub fn decides(&mut self, rank: Rank, ticket: u32, verdict: &Verdict) -> bool {
        let answers = self.answers.get_mut(&rank);
        let Some(answer) = answers.and_then(|answers| answers.get_mut(&ticket)) else {
            return true;
        };
        answer.verdict.get_or_insert_with(|| verdict.clone());
        answer.is_asked
    }

    /// Another life of `rank` begins.
    pub fn begins_again(&mut self, rank: Rank) {
        self.repeating.insert(rank, Repeated::Nothing);
        let answers = self.answers.entry(rank).or_default();
        answers.values_mut().for_each(|answer| answer.is_asked = false);
    }

    /// `rank` has repeated its messages.
    pub fn caught_up(&mut self, rank: Rank) {
        if let Some(repeated @ Repeated::Nothing) = self.repeating.get_mut(&rank) {
            *repeated = Repeated::Messages;
        }
    }

    /// Its present life owes no output. Before it has repeated its messages this may be about a former life.
    pub fn has_printed(&mut self, rank: Rank) {
        if let Some(repeated @ Repeated::Messages) = self.repeating.get_mut(&rank) {
            *repeated = Repeated::All;
        }
    }

    /// It has also said again what former lives wanted.
    fn is_done(&self, rank: Rank, repeated: Repeated) -> bool {
        let answers = self.answers.get(&rank);
        repeated == Repeated::All && answers.is_none_or(|answers| answers.values().all(|answer| answer.is_asked))
    }

    /// `rank` does not live any more, or has nothing to repeat.
    pub fn is_over(&mut self, rank: Rank) {
        self.repeating.remove(&rank);
        if !self.is_on {
            self.answers.remove(&rank);
        }
    }

    /// Nobody may be told now.
    pub fn holds(&self) -> bool {
        !self.repeating.is_empty()
    }

    pub fn is_repeating(&self, rank: Rank) -> bool {
        self.repeating.contains_key(&rank)
    }

    pub fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    /// What must be told now.
    pub fn release(&mut self) -> Vec<Held> {
        let done = self
            .repeating
            .iter()
            .filter(|(rank, repeated)| self.is_done(**rank, **repeated));
        let done: Vec<Rank> = done.map(|(rank, _)| *rank).collect();
        done.into_iter().for_each(|rank| self.is_over(rank));
        match self.holds() {
            true => Vec::new(),
            false => std::mem::take(&mut self.held),
        }
    }
}

#[cfg(test)]
mod tests;

//! The images of one rank, as the real [`Coordinator`](resurgo_protocol::Coordinator) has them kept.

use std::time::Duration;

use resurgo_protocol::coordinator::{From, KEPT, State};
use resurgo_protocol::{Command, Fact, Rank};

use crate::mutation::Mutation;

#[derive(Debug, Clone)]
pub(crate) struct KeptImages<I> {
    /// Files that are complete, with their numbers, the oldest first; they survive everything.
    pub complete: Vec<(u64, I)>,
    /// One that the rank takes alone and that is being written.
    pub under_way: Option<(u64, Box<I>)>,
    /// Copies of waves, which sleep.
    pub copies: Vec<(u64, I)>,
    /// The copy that writes its file.
    pub writing: Option<u64>,
    /// The image that the rank was asked for.
    pub asked: Option<u64>,
    /// What the next life begins from, once decided.
    pub begins: Option<From>,
    /// The coordinator's number of the last life that it ordered.
    pub life: u64,
    /// The image from which it begins, with its number: the copy may be lost before it runs, and the file may go, which
    /// the agent has opened.
    opened: Option<(u64, I)>,
    /// The image that the present life began from.
    pub from: u64,
    /// Number of the last image whose writing has begun.
    pub last: u64,
    /// In a variant: an image that should be given up.
    pub late: Option<Box<I>>,
    /// No life begins before this image any more.
    forgets: Option<u64>,
}

impl<I> Default for KeptImages<I> {
    fn default() -> Self {
        Self {
            complete: Vec::new(),
            under_way: None,
            copies: Vec::new(),
            writing: None,
            asked: None,
            begins: None,
            life: 0,
            opened: None,
            from: 0,
            last: 0,
            late: None,
            forgets: None,
        }
    }
}

impl<I: Clone> KeptImages<I> {
    /// Carries out the coordinator's command, if it is about kept images.
    pub fn carry_out(&mut self, command: &Command) {
        match *command {
            Command::EndCopy { number, .. } => self.copies.retain(|(copy, _)| *copy != number),
            Command::Write { number, .. } => (self.writing, self.last) = (Some(number), number),
            Command::GiveUp { number, .. } => {
                self.writing = None;
                // Another node had its file, too.
                self.complete.retain(|(file, _)| *file != number);
                self.late = self.under_way.take().map(|(_, image)| image);
            }
            Command::Collect { number, .. } => self.complete.retain(|(file, _)| *file != number),
            Command::Forget { before, .. } | Command::ForgetEnded { before, .. } => self.forgets = Some(before),
            Command::Begin { life, from, reads, .. } => {
                (self.life, self.begins) = (life, Some(from));
                let number = from.number();
                let opened = self.get(number).filter(|_| reads.is_none()).cloned();
                self.opened = opened.map(|image| (number, image));
            }
            _ => {}
        }
    }

    /// The file of the one under way, or of a copy, is complete: its number, if there was one.
    pub fn complete(&mut self) -> Option<u64> {
        let number = self.writing.take()?;
        let image = match self.under_way.take() {
            Some((_, image)) => *image,
            None => self.get(number)?.clone(),
        };
        self.complete.push((number, image));
        Some(number)
    }

    /// The present life begins: its number, and its image.
    pub fn begin(&mut self) -> (u64, Option<I>) {
        self.from = self.begins.take().map_or(0, From::number);
        let opened = self.opened.take().filter(|(number, _)| *number == self.from);
        let image = opened.map(|(_, image)| image).or_else(|| self.get(self.from).cloned());
        (self.life, image)
    }

    /// Image `number`.
    pub fn get(&self, number: u64) -> Option<&I> {
        let images = self.copies.iter().chain(&self.complete);
        images.rev().find(|(of, _)| *of == number).map(|(_, image)| image)
    }

    /// The same, to be changed.
    pub fn all(&mut self, number: u64) -> impl Iterator<Item = &mut I> {
        let images = self.copies.iter_mut().chain(&mut self.complete);
        images.filter(move |(of, _)| *of == number).map(|(_, image)| image)
    }

    pub fn newest(&self) -> Option<&I> {
        self.complete.last().map(|(_, image)| image)
    }

    pub fn oldest(&self) -> Option<&I> {
        self.complete.first().map(|(_, image)| image)
    }

    /// Nothing before this image is needed; 0: everything is.
    pub fn forgets(&self) -> u64 {
        self.forgets.unwrap_or(0)
    }

    /// All is needed again: lives begin at the beginning.
    pub fn forget_nothing(&mut self) {
        self.forgets = None;
    }

    /// What this one covers may be dropped: a recovery that finds the newer one destroyed begins from it.
    pub fn covering(&self, mutation: Option<Mutation>) -> Option<&I> {
        let mut images: Vec<&I> = self.complete.iter().map(|(_, image)| image).collect();
        if mutation == Some(Mutation::CollectBeforeComplete) {
            images.extend(self.under_way.as_ref().map(|(_, image)| &**image));
            images.drain(..images.len().saturating_sub(KEPT));
        }
        match images[..] {
            [_, newer] if mutation == Some(Mutation::CollectByNewest) => Some(newer),
            [older, _] if mutation == Some(Mutation::CollectBeforeComplete) => Some(older),
            [only] if mutation == Some(Mutation::CollectBySingle) => Some(only),
            _ => self.get(self.forgets?),
        }
    }

    /// Whether the newest may be lost. The only one left after older ones were given up may not: that is more than is
    /// tolerated.
    pub fn may_lose_newest(&self) -> bool {
        self.complete.len() == KEPT || (self.forgets.is_none() && !self.complete.is_empty())
    }
}

/// The copy of `rank` exists.
pub(crate) fn copied(rank: Rank, number: u64, sleeps: bool) -> Fact {
    Fact::Copied {
        rank,
        number,
        sleeps,
        stood: Duration::from_millis(1),
    }
}

/// `rank` stands still.
pub(crate) fn stopped(rank: Rank, number: u64) -> Fact {
    Fact::Stopped {
        rank,
        number,
        accounted: true,
    }
}

/// `rank` runs and repeats nothing.
pub(crate) fn is_live(rank: Rank, number: u64) -> Fact {
    Fact::Surveyed {
        rank,
        number,
        state: State::Live,
        held: 0,
        sent: Vec::new(),
    }
}

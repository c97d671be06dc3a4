//! Causal logging where sent messages are in memory that outlives their sender. A new life looks for itself at what the
//! others know, and at the messages that they have not taken in ([`Gathering`]). It looks at one item after the other,
//! while the others go on.
//!
//! This is how ranks of one machine recover. What the former life had recorded and known counts as lost, as it is with
//! the memory of a node.

use resurgo_protocol::causal::{Contradiction, Event, Gathering, Piggyback};
use resurgo_protocol::{Causal, Rank, Recorded};
use resurgo_wire::piggyback;

use crate::checkers::{COLLECTED, NO_ORPHAN, Violation, violation};
use crate::image::Image;
use crate::log::{Cursor, Record};
use crate::mutation::Mutation;
use crate::process::{Process, Recovery, State};
use crate::world::{self, World};

/// A life that looks around.
#[derive(Debug)]
pub(crate) struct Looking {
    found: Gathering,
    lives: Vec<Standing>,
    /// The number of looks so far.
    taken: usize,
    /// No rank died or began before the last look.
    has_all: bool,
    /// What it will know, which others can read from now on, and the record that it will repeat.
    begun: Option<(Causal, Vec<Recorded>)>,
}

/// The state of a rank when another begins to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    incarnation: u64,
    /// That life has told what it knows.
    has_told: bool,
    /// How often any life of it has.
    told: u64,
}

/// The item of a look.
enum Look {
    /// The piggybacks of a channel's messages that were not taken in.
    Messages {
        from: Rank,
        to: Rank,
    },
    Knowledge(Rank),
}

impl Process {
    /// Deliveries that it knows, where others can read them. They stay when the process ends, until its next life
    /// begins.
    pub fn published(&self) -> Vec<Event> {
        match &self.state {
            State::Up(life) => life.subject.causal.as_ref().map_or(Vec::new(), |causal| causal.all()),
            State::Recovering(_) | State::Down => self.left_behind.clone(),
        }
    }

    /// The process ends.
    pub fn leave_behind(&mut self) {
        self.left_behind = self.published();
        self.has_told |= self.is_up();
    }
}

impl World {
    /// Of all but `rank`.
    fn lives_beside(&self, rank: Rank) -> Vec<Standing> {
        let standing = |process: &Process| Standing {
            incarnation: process.incarnation,
            has_told: process.rank != rank && (process.has_told || process.is_up()),
            told: if process.rank == rank { 0 } else { process.told },
        };
        self.ranks.iter().map(standing).collect()
    }

    /// A later life of `rank` asks its event logger, if it has one, and then looks around.
    pub(crate) fn begin_gathering(&mut self, rank: Rank, image: Option<Box<Image>>) -> Result<(), Violation> {
        let size = self.ranks.len();
        let collection = self.begin_collection(rank, image.as_deref());
        let has_logger = !self.logging.sites.is_empty();
        self.checkers
            .begins_from(rank, image.as_ref().map(|image| &image.standing))?;
        let process = &mut self.ranks[rank as usize];
        // Up to the image it is part of that.
        match &image {
            Some(image) => process.record.cut(image.cursor().rclock),
            None => process.record = Record::new(Cursor::beginning(size), Vec::new()),
        }
        let above = process.record.base.clone();
        process.has_told = false;
        process.state = State::Recovering(Recovery::new(size, image, above, collection));
        match has_logger {
            true => self.connect_logger(rank),
            false => self.look_around(rank),
        }
        Ok(())
    }

    /// Looks at all items, from the first on.
    pub(crate) fn look_around(&mut self, rank: Rank) {
        let (lives, size) = (self.lives_beside(rank), self.ranks.len());
        let process = &mut self.ranks[rank as usize];
        let incarnation = process.incarnation;
        if let State::Recovering(recovery) = &mut process.state {
            recovery.looking = Some(Box::new(Looking {
                found: Gathering::new(size),
                lives,
                taken: 0,
                has_all: false,
                begun: None,
            }));
        }
        self.schedule(0, world::Event::Look { rank, incarnation });
    }

    /// Messages first: the others go on, and a message leaves out what its sender knew the receiver to know.
    fn next_look(&self, taken: usize) -> Option<Look> {
        let size = self.ranks.len();
        let messages = size * size;
        let taken = match self.is(Mutation::KnowledgeBeforeMessages) {
            true if taken < size => taken + messages,
            true if taken < size + messages => taken - size,
            _ => taken,
        };
        match taken {
            taken if taken < messages => Some(Look::Messages {
                from: (taken % size) as Rank,
                to: (taken / size) as Rank,
            }),
            taken if taken < messages + size => Some(Look::Knowledge((taken - messages) as Rank)),
            _ => None,
        }
    }

    /// `rank` takes its next look, or has taken all.
    pub(crate) fn look(&mut self, rank: Rank) -> Result<(), Violation> {
        // A rank died or restarted while we looked: what we saw may be incomplete.
        let lives = self.lives_beside(rank);
        let Some(recovery) = self.ranks[rank as usize].recovery() else {
            return Ok(());
        };
        let Some(mut looking) = recovery.looking.take() else {
            return Ok(());
        };
        let is_outdated = lives != looking.lives && !self.is(Mutation::LookOnce);
        let Some(look) = self.next_look(looking.taken) else {
            return match looking.begun.take() {
                // A rank that begins at the same time, and has not seen what is known here, is seen here.
                Some(_) if is_outdated => {
                    self.ranks[rank as usize].has_told = false;
                    self.look_around(rank);
                    Ok(())
                }
                Some((causal, record)) => self.begin_gathered(rank, causal, record),
                None if looking.has_all => self.publish_gathered(rank, looking),
                None if is_outdated => {
                    self.look_around(rank);
                    Ok(())
                }
                None => {
                    looking.has_all = true;
                    self.look_later(rank, looking);
                    Ok(())
                }
            };
        };
        looking.taken += 1;
        for event in self.seen(rank, &look, &looking.lives)? {
            match looking.found.add(event) {
                Ok(()) => {}
                // A rank restarted: its new life may differ from the one that another, now dead, rank knew. Look again.
                Err(_) if is_outdated => {
                    self.look_around(rank);
                    return Ok(());
                }
                Err(contradiction) => return violation(NO_ORPHAN, contradiction.to_string()),
            }
        }
        self.look_later(rank, looking);
        Ok(())
    }

    fn look_later(&mut self, rank: Rank, looking: Box<Looking>) {
        let process = &mut self.ranks[rank as usize];
        let incarnation = process.incarnation;
        if let Some(recovery) = process.recovery() {
            recovery.looking = Some(looking);
        }
        let pause = self.random.below(self.pace.step);
        self.schedule(pause, world::Event::Look { rank, incarnation });
    }

    /// What `rank` finds. It does not find what its former lives knew, except what they sent to themselves. Of ranks that
    /// have not begun again it finds only what their images know.
    fn seen(&self, rank: Rank, look: &Look, lives: &[Standing]) -> Result<Vec<Event>, Violation> {
        let is_known = |of: Rank| of != rank && lives[of as usize].has_told;
        match *look {
            Look::Knowledge(of) if is_known(of) => Ok(self.ranks[of as usize].published()),
            Look::Knowledge(of) if of == rank && !self.is(Mutation::ForgetWhatItToldItself) => {
                let to_itself = self.carried(rank, rank, 0)?.last().map_or(0, |(clock, _)| *clock);
                let mut own = self.ranks[of as usize].published();
                own.retain(|event| event.receiver == rank && event.rclock <= to_itself);
                Ok(own)
            }
            Look::Knowledge(of) if of == rank || self.is(Mutation::ForgetWhatImagesKnow) => Ok(Vec::new()),
            Look::Knowledge(of) => {
                let process = &self.ranks[of as usize];
                let is_in_image = |event: &Event| event.rclock <= process.noted[event.receiver as usize];
                Ok(process.published().into_iter().filter(is_in_image).collect())
            }
            Look::Messages { from, to } => {
                let skips = is_known(to) || self.is(Mutation::SkipWhatWasConsumed);
                let taken_in = if skips {
                    self.ranks[to as usize].consumed[from as usize]
                } else {
                    0
                };
                let carried = self.carried(from, to, taken_in)?;
                Ok(carried
                    .into_iter()
                    .flat_map(|(_, piggyback)| piggyback.events)
                    .collect())
            }
        }
    }

    /// The piggybacks of messages from `from` to `to` that the log still has, without the first `taken_in`; with their
    /// sender's clocks.
    pub(crate) fn carried(&self, from: Rank, to: Rank, taken_in: u64) -> Result<Vec<(u64, Piggyback)>, Violation> {
        let taken_in = taken_in.max(self.ranks[from as usize].logs[to as usize].dropped());
        let carried = self.wires[from as usize][to as usize].carried.iter();
        let decoded = carried
            .skip(taken_in as usize)
            .map(|bytes| piggyback::decode(self.reduction(), bytes));
        let decoded: Result<_, _> = decoded.collect();
        decoded.or_else(|error| violation(NO_ORPHAN, error.to_string()))
    }

    /// Lets other ranks read what this life will know, and so what it depends on. It begins if no rank has died or
    /// begun meanwhile.
    fn publish_gathered(&mut self, rank: Rank, mut looking: Box<Looking>) -> Result<(), Violation> {
        let size = self.ranks.len();
        let process = &mut self.ranks[rank as usize];
        let Some(recovery) = process.recovery() else {
            return Ok(());
        };
        let Some(collection) = recovery.collection.as_deref().cloned() else {
            return Ok(());
        };
        let image = recovery.image.as_ref().map(|image| image.cursor());
        let from = image.unwrap_or_else(|| Cursor::beginning(size));
        let in_image = recovery
            .image
            .as_ref()
            .and_then(|image| image.life.subject.causal.as_ref());
        let noted = in_image.map_or_else(|| vec![0; size], |causal| causal.latest().to_vec());
        let found = std::mem::replace(&mut looking.found, Gathering::new(0));
        let (causal, record) = match found.begin(collection, from.rclock) {
            Ok(begun) => begun,
            Err(contradiction @ Contradiction::Lost { .. }) => return violation(COLLECTED, contradiction.to_string()),
            Err(contradiction) => return violation(NO_ORPHAN, contradiction.to_string()),
        };
        // The life reads its channels from there: others must find there what it does not know yet.
        (process.consumed, process.noted) = (from.delivered, noted);
        process.left_behind = causal.all();
        (process.has_told, process.told) = (true, process.told + 1);
        if self.is(Mutation::PublishAndBegin) {
            return self.begin_gathered(rank, causal, record);
        }
        looking.begun = Some((causal, record));
        self.look_later(rank, looking);
        Ok(())
    }

    fn begin_gathered(&mut self, rank: Rank, causal: Causal, record: Vec<Recorded>) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        let Some(recovery) = process.recovery() else {
            return Ok(());
        };
        let (image, answered) = (recovery.image.take(), recovery.answered);
        let vouched = answered == process.logger_epoch;
        let sent_before: Vec<u64> = process.logs.iter().map(|log| log.end()).collect();
        let collected = record.len();
        record.into_iter().for_each(|recorded| process.record.push(recorded));
        let standing = image.as_ref().map(|image| &image.standing);
        let base = process.record.base.rclock;
        self.checkers.recover(rank, standing, base, process.record.entries())?;
        self.checkers.life_starts(rank, standing, &sent_before)?;
        self.note(|| format!("{rank} has gathered {collected} deliveries"));
        self.begin_life(rank, image, sent_before, vouched, Some(causal));
        Ok(())
    }
}

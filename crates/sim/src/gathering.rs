//! Causal logging where what has been sent lies in memory that outlives its sender: a new life looks for itself at what the
//! others know and at what they have not taken in, one thing after the other, while they go on ([`Gathering`]).
//!
//! This is how ranks of one machine recover. What the former life had recorded and known counts as lost, as it would be with
//! the memory of a node.

use resurgo_protocol::causal::{Contradiction, Event, Gathering, Piggyback};
use resurgo_protocol::{Rank, Recorded};
use resurgo_wire::piggyback;

use crate::checkers::{COLLECTED, NO_ORPHAN, Violation, violation};
use crate::log::{Cursor, Record};
use crate::mutation::Mutation;
use crate::process::{Process, Recovery, State};
use crate::world::{self, World};

/// A life that looks around.
#[derive(Debug)]
pub(crate) struct Looking {
    found: Gathering,
    /// Per rank, when looking began: its life, and whether that has told what it knows.
    lives: Vec<(u64, bool)>,
    /// Looks that have been taken.
    taken: usize,
}

/// What a look is at.
enum Look {
    /// What messages of a channel carry that have not been taken in.
    Messages {
        from: Rank,
        to: Rank,
    },
    Knowledge(Rank),
}

impl Process {
    /// Deliveries that it knows of, where others can read that. It stays when the process ends, until its next life begins.
    fn published(&self) -> Vec<Event> {
        match &self.state {
            State::Up(life) => life.subject.causal.as_ref().map_or(Vec::new(), |causal| causal.all()),
            State::Recovering(_) | State::Down => self.left_behind.clone(),
        }
    }

    /// The process ends.
    pub fn leave_behind(&mut self) {
        self.left_behind = self.published();
        self.has_told = self.is_up();
    }
}

impl World {
    fn lives(&self) -> Vec<(u64, bool)> {
        let life = |process: &Process| (process.incarnation, process.has_told || process.is_up());
        self.ranks.iter().map(life).collect()
    }

    /// A later life of `rank` asks its event logger, if it has one, and then looks around.
    pub(crate) fn begin_gathering(&mut self, rank: Rank) {
        let size = self.ranks.len();
        let collection = self.begin_collection(rank, None);
        let has_logger = !self.loggers.is_empty();
        let process = &mut self.ranks[rank as usize];
        process.record = Record::new(Cursor::beginning(size), Vec::new());
        process.has_told = false;
        process.state = State::Recovering(Recovery::new(size, None, Cursor::beginning(size), collection));
        match has_logger {
            true => self.connect_logger(rank),
            false => self.look_around(rank),
        }
    }

    /// Looks at everything, from the first thing on.
    pub(crate) fn look_around(&mut self, rank: Rank) {
        let (lives, size) = (self.lives(), self.ranks.len());
        let process = &mut self.ranks[rank as usize];
        let incarnation = process.incarnation;
        if let State::Recovering(recovery) = &mut process.state {
            recovery.looking = Some(Box::new(Looking {
                found: Gathering::new(size),
                lives,
                taken: 0,
            }));
        }
        self.schedule(0, world::Event::Look { rank, incarnation });
    }

    /// Messages first: the others go on, and a message leaves out what its sender knew to be known to the receiver.
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
        let State::Recovering(recovery) = &mut self.ranks[rank as usize].state else {
            return Ok(());
        };
        let Some(mut looking) = recovery.looking.take() else {
            return Ok(());
        };
        // Of who has died meanwhile too little has been looked at.
        let is_outdated = self.lives() != looking.lives && !self.is(Mutation::LookOnce);
        let Some(look) = self.next_look(looking.taken) else {
            if is_outdated {
                self.look_around(rank);
                return Ok(());
            }
            return self.begin_gathered(rank, looking.found);
        };
        looking.taken += 1;
        for event in self.seen(rank, &look, &looking.lives)? {
            match looking.found.add(event) {
                Ok(()) => {}
                // Of who has begun again nobody may know what a life does that knew of it: the new one does something else.
                Err(_) if is_outdated => {
                    self.look_around(rank);
                    return Ok(());
                }
                Err(contradiction) => return violation(NO_ORPHAN, contradiction.to_string()),
            }
        }
        let process = &mut self.ranks[rank as usize];
        let incarnation = process.incarnation;
        if let State::Recovering(recovery) = &mut process.state {
            recovery.looking = Some(looking);
        }
        let pause = self.random.below(self.pace);
        self.schedule(pause, world::Event::Look { rank, incarnation });
        Ok(())
    }

    /// What `rank` finds. Not what a former life of it knew (but for what it has sent to itself, which is there), nor what one of
    /// others did that have not begun again.
    fn seen(&self, rank: Rank, look: &Look, lives: &[(u64, bool)]) -> Result<Vec<Event>, Violation> {
        let is_known = |of: Rank| of != rank && lives[of as usize].1;
        match *look {
            Look::Knowledge(of) if is_known(of) => Ok(self.ranks[of as usize].published()),
            Look::Knowledge(of) if of == rank && !self.is(Mutation::ForgetWhatItToldItself) => {
                let to_itself = self.carried(rank, rank, 0)?.last().map_or(0, |(clock, _)| *clock);
                let mut own = self.ranks[of as usize].published();
                own.retain(|event| event.receiver == rank && event.rclock <= to_itself);
                Ok(own)
            }
            Look::Knowledge(_) => Ok(Vec::new()),
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

    /// What messages from `from` to `to` carry, but the first `taken_in`, with the clocks of their sender.
    fn carried(&self, from: Rank, to: Rank, taken_in: u64) -> Result<Vec<(u64, Piggyback)>, Violation> {
        let carried = self.wires[from as usize][to as usize].carried.iter();
        let decoded = carried
            .skip(taken_in as usize)
            .map(|bytes| piggyback::decode(self.reduction(), bytes));
        let decoded: Result<_, _> = decoded.collect();
        decoded.or_else(|error| violation(NO_ORPHAN, error.to_string()))
    }

    fn begin_gathered(&mut self, rank: Rank, found: Gathering) -> Result<(), Violation> {
        let (Some(flavour), size) = (self.causal, self.ranks.len()) else {
            return Ok(());
        };
        let process = &mut self.ranks[rank as usize];
        let State::Recovering(Recovery {
            collection: Some(collection),
            answered,
            ..
        }) = &mut process.state
        else {
            return Ok(());
        };
        let logged: Option<Vec<Recorded>> = collection.record(0).filter(|_| !self.loggers.is_empty());
        let vouched = *answered == process.logger_epoch;
        let (causal, record) = match found.begin(flavour.first(rank, size), rank, logged) {
            Ok(begun) => begun,
            Err(contradiction @ Contradiction::Lost { .. }) => return violation(COLLECTED, contradiction.to_string()),
            Err(contradiction) => return violation(NO_ORPHAN, contradiction.to_string()),
        };
        let sent_before: Vec<u64> = process.logs.iter().map(|log| log.end()).collect();
        // It reads its channels from their beginnings: others must find there what it does not know yet.
        process.consumed.fill(0);
        self.checkers.recover(rank, None, 0, &record)?;
        self.checkers.life_starts(rank, None, &sent_before)?;
        self.note(|| format!("{rank} has gathered {} deliveries", record.len()));
        self.ranks[rank as usize].record = Record::new(Cursor::beginning(size), record);
        self.begin_life(rank, None, sent_before, vouched, Some(causal));
        Ok(())
    }
}

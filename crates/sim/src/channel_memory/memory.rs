//! A channel memory's input, and what it serves.

use resurgo_protocol::Rank;
use resurgo_protocol::channel_memory::{Error, Put};

use super::{Content, Event, Served, ToMemory, ToRank, World};
use crate::checkers::{COLLECTED, SAME_HISTORY, Violation, violation};
use crate::mutation::Mutation;

impl World {
    pub(super) fn memory_hears(
        &mut self,
        memory: usize,
        rank: Rank,
        incarnation: u64,
        frame: ToMemory,
    ) -> Result<(), Violation> {
        // A broken variant takes data of a dead life for the present one's.
        let speaker = if self.is(Mutation::MemoryDoesNotFence) {
            self.ranks[rank as usize].incarnation
        } else {
            incarnation
        };
        match frame {
            ToMemory::Hello { mut delivered } => {
                if self.is(Mutation::AskFromBeginning) {
                    delivered = self.memories[memory].forgotten(rank);
                }
                let mut admission = match self.memories[memory].admit(rank, incarnation, delivered) {
                    Ok(admission) => admission,
                    Err(Error::Superseded { .. }) => return Ok(()),
                    Err(error) => return violation(COLLECTED, error.to_string()),
                };
                self.note(|| format!("memory {memory} admits {rank}: {admission:?}"));
                if self.ranks[rank as usize].incarnation == incarnation {
                    if self.is(Mutation::WelcomeShort) {
                        admission.received.iter_mut().for_each(|(_, received)| *received -= 1);
                    }
                    if self.is(Mutation::ServeFromReported) {
                        for _ in delivered..admission.reported {
                            self.memories[memory].serve(rank);
                        }
                    }
                    self.tell_rank(memory, rank, ToRank::Welcome(admission));
                    self.schedule(1, Event::Serve(memory, rank, incarnation));
                }
            }
            ToMemory::Report { rclock, polls } => {
                match self.memories[memory].report(rank, speaker, rclock, polls) {
                    Ok(()) => {}
                    Err(Error::Superseded { .. }) => return Ok(()),
                    Err(error) => return violation(SAME_HISTORY, error.to_string()),
                }
                let Some(record) = self.memories[memory].delivery(rank, rclock) else {
                    return violation(COLLECTED, format!("delivery {rclock} of {rank} is not there"));
                };
                self.checkers.stored(rank, rclock, record)?;
                if self.ranks[rank as usize].incarnation == incarnation {
                    let ahead = u64::from(self.is(Mutation::MemoryAcknowledgesAhead));
                    self.tell_rank(memory, rank, ToRank::Acknowledge(rclock + ahead));
                }
                if self.is(Mutation::ForgetReported) {
                    self.memory_forgets(memory, rank, speaker, rclock)?;
                }
            }
            ToMemory::Forget { rclock } => self.memory_forgets(memory, rank, speaker, rclock)?,
            ToMemory::Sync => {
                if self.memories[memory].is_life(rank, speaker) && self.ranks[rank as usize].incarnation == incarnation
                {
                    self.tell_rank(memory, rank, ToRank::Synced);
                }
            }
            ToMemory::Message { destination, content } => {
                self.memory_stores(memory, rank, speaker, destination, content)?;
            }
        }
        Ok(())
    }

    /// Gives up what the oldest image of `rank` covers.
    fn memory_forgets(&mut self, memory: usize, rank: Rank, life: u64, rclock: u64) -> Result<(), Violation> {
        match self.memories[memory].forget(rank, life, rclock) {
            Ok(forgotten) => drop(forgotten),
            Err(Error::Superseded { .. }) => return Ok(()),
            Err(error) => return violation(COLLECTED, error.to_string()),
        }
        self.note(|| format!("memory {memory} forgets {rank} up to delivery {rclock}"));
        self.checkers.collects(rank, rclock);
        Ok(())
    }

    fn memory_stores(
        &mut self,
        memory: usize,
        source: Rank,
        incarnation: u64,
        destination: Rank,
        content: Content,
    ) -> Result<(), Violation> {
        let ssn = content.ssn;
        let (append, append_dropped) = (self.is(Mutation::AppendAgain), self.is(Mutation::AppendDropped));
        let put = self.memories[memory].put(source, incarnation, destination, ssn, content);
        match put {
            Ok(Put::New { rclock }) => {
                self.note(|| format!("memory {memory} has {source}→{destination} #{ssn} as delivery {rclock}"));
                self.checkers.publish(source, destination, ssn, true)?;
            }
            Ok(Put::Forgotten) if append_dropped => {
                let next = (ssn..).find(|next| {
                    let put = self.memories[memory].put(source, incarnation, destination, *next, content);
                    matches!(put, Ok(Put::New { .. }))
                });
                self.note(|| format!("memory {memory} takes #{ssn}, which is forgotten, as {next:?}"));
            }
            Ok(Put::Forgotten) => {}
            Ok(Put::Again { before, now }) if before.tag == now.tag && before.value == now.value => {
                if append {
                    let next = (ssn..).find(|next| {
                        let put = self.memories[memory].put(source, incarnation, destination, *next, content);
                        matches!(put, Ok(Put::New { .. }))
                    });
                    self.note(|| format!("memory {memory} takes #{ssn} again as {next:?}"));
                }
            }
            Ok(Put::Again { .. }) => {
                return violation(SAME_HISTORY, format!("{source}→{destination} #{ssn} differs"));
            }
            // The connection of a dead life ends here.
            Err(Error::Superseded { .. }) => return Ok(()),
            Err(error) => return violation(COLLECTED, error.to_string()),
        }
        let process = &self.ranks[destination as usize];
        let welcomed = process.incarnation;
        let after = 1 + self.random.below(self.latency);
        self.schedule(after, Event::Serve(memory, destination, welcomed));
        Ok(())
    }

    pub(super) fn serve(&mut self, memory: usize, rank: Rank, incarnation: u64) {
        let process = &self.ranks[rank as usize];
        // It serves only admitted lives.
        if process.incarnation != incarnation || !process.up || !self.memories[memory].is_life(rank, incarnation) {
            return;
        }
        let mut served: Vec<Served> = Vec::new();
        let most = self.random.between(1, 4) as usize;
        while served.len() < most
            && let Some(next) = self.memories[memory].serve(rank)
        {
            served.push(Served {
                source: next.source,
                polls: next.polls,
                content: *next.content,
            });
        }
        if self.is(Mutation::ServeInAnotherOrder)
            && incarnation > 1
            && served.len() > 1
            && served[0].source != served[1].source
        {
            let polls = (served[0].polls, served[1].polls);
            served.swap(0, 1);
            (served[0].polls, served[1].polls) = polls;
        }
        if self.is(Mutation::LoseReports) {
            let forget = |served: &mut Served| served.polls = served.polls.map(|_| 1);
            served.iter_mut().for_each(forget);
        }
        for message in served {
            self.tell_rank(memory, rank, ToRank::Served(message));
        }
        if self.memories[memory].has_more(rank) {
            let after = 1 + self.random.below(self.pace);
            self.schedule(after, Event::Serve(memory, rank, incarnation));
        }
    }
}

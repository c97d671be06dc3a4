//! Ranks that deal with failures themselves: the agent passes on what they say, and tells them who has failed and which
//! communicators are revoked. The dispatcher decides.

use std::io;
use std::sync::atomic::Ordering;

use resurgo_protocol::Rank;
use resurgo_protocol::survivors::News;
use resurgo_wire::control::ToDispatcher;
use resurgo_wire::node_memory::{Control, Field, REVOCATIONS, control, header};
use resurgo_wire::survivors::{BYTES, decode, encode_repeated, encode_verdict, place_of_revoked};

use super::net::mapped::Mapped;
use super::{Agent, Work};

/// Keys of revoked communicators in the control of a rank.
type Table = Field<Control, [u64; REVOCATIONS]>;

impl Agent {
    /// Hands on what `rank` has said.
    pub(super) fn survivor_event(&mut self, rank: usize) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let life = self.work.ranks.get(rank).and_then(|this| this.life.as_ref());
            let Some(socket) = life.and_then(|life| life.survivor.as_ref()) else {
                return Ok(());
            };
            buffer.resize(BYTES, 0);
            match socket.recv(&mut buffer) {
                // Only our library writes there; other bytes mean nothing.
                Ok(length) => {
                    if let Some(said) = decode(&buffer[..length]) {
                        self.control.queue(&ToDispatcher::Survivor { rank, said });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// Ranks here must know this.
    pub(super) fn tell_survivors(&mut self, news: &News) -> io::Result<()> {
        let work = &mut self.work;
        match news {
            News::Failed {
                rank,
                number,
                code,
                round,
            } => {
                let (rank, memory) = (*rank as usize, &work.memory);
                memory.set_control(rank, control::FAILED_AT, crate::unix_ns())?;
                memory.set_control(rank, control::FAILED_BY, *code as u64)?;
                memory.set_control(rank, control::FAILED, *number)?;
                work.count_news()?;
                self.control.queue(&ToDispatcher::Knows { round: *round });
            }
            News::Revoked { key, ranks, round } => {
                work.note_revoked(control::REVOKED, *key, ranks)?;
                work.count_news()?;
                self.control.queue(&ToDispatcher::Knows { round: *round });
            }
            News::Settled(known) => {
                match &**known {
                    News::Failed { rank, .. } => work.memory.set_control(*rank as usize, control::BURIED, 1)?,
                    News::Revoked { key, ranks, .. } => work.note_revoked(control::CLOSED, *key, ranks)?,
                    News::Settled(_) | News::Agreed { .. } | News::Repeated { .. } | News::Ends { .. } => return Ok(()),
                }
                work.wake_survivors()?;
            }
            News::Agreed { rank, ticket, verdict } => {
                self.answer_survivor(*rank as usize, &encode_verdict(*ticket, verdict));
            }
            News::Repeated {
                rank,
                ticket,
                is_known,
                look,
            } => self.answer_survivor(*rank as usize, &encode_repeated(*ticket, *is_known, *look)),
            // The dispatcher has it killed.
            News::Ends { .. } => {}
        }
        Ok(())
    }

    /// It takes answers whenever it waits for one, so its socket has room, unless it is gone.
    fn answer_survivor(&mut self, rank: usize, answer: &[u8]) {
        let life = self.work.ranks.get(rank).and_then(|this| this.life.as_ref());
        if let Some(socket) = life.and_then(|life| life.survivor.as_ref()) {
            let _ = socket.send(answer);
        }
    }
}

impl Work {
    fn note_revoked(&self, table: Table, key: u64, ranks: &[Rank]) -> io::Result<()> {
        let field = table.item(place_of_revoked(key));
        let mut ranks = ranks.iter();
        ranks.try_for_each(|rank| self.memory.set_control(*rank as usize, field, key))
    }

    /// What survivors must know is in the node memory: counts it.
    fn count_news(&mut self) -> io::Result<&Mapped> {
        let mapped = match &mut self.survivors {
            Some(mapped) => mapped,
            none => none.insert(Mapped::new(self.memory.file(), self.memory.layout)?),
        };
        mapped.header(header::NEWS_OF_FAILURES).fetch_add(1, Ordering::SeqCst);
        Ok(mapped)
    }

    /// The same, and wakes those that sleep.
    fn wake_survivors(&mut self) -> io::Result<()> {
        let ranks = self.ranks.iter().enumerate();
        let living = ranks.filter(|(_, rank)| rank.life.is_some());
        let living: Vec<usize> = living.map(|(rank, _)| rank).collect();
        let mapped = self.count_news()?;
        living.into_iter().for_each(|rank| mapped.wake(rank));
        Ok(())
    }
}

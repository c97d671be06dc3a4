//! Ranks that wait in their replays for ranks of other nodes, perhaps for ever: the agent reports lasting waits, and
//! answers the coordinator's questions about them ([`resurgo_protocol::coordinator`], `vain.rs`).

use std::io;
use std::time::{Duration, Instant};

use resurgo_protocol::{Command, Fact};
use resurgo_wire::node_memory::{WAIT_LOOKS, WAIT_SOURCE_BITS, control};

use super::net::{Held, HeldBack};
use super::node::NodeMemory;
use super::waits::Asked;
use super::{Agent, Work};

/// How often the agent looks. A wait that it sees twice is a lasting one.
const LOOK: Duration = Duration::from_millis(250);

impl NodeMemory {
    fn waits_for(&self, rank: usize) -> io::Result<u64> {
        self.control(rank, control::WAITS_FOR)
    }

    /// It holds sends, which may leave while it waits.
    fn holds(&self, rank: usize) -> io::Result<bool> {
        Ok(self.control(rank, control::HELD)? > 0)
    }

    fn set_in_vain(&self, rank: usize, wait: u64) -> io::Result<()> {
        self.set_control(rank, control::IN_VAIN, wait)
    }
}

impl Work {
    /// Only ranks of lost nodes wait for others that may be on another node.
    fn may_wait_in_vain(&self) -> bool {
        self.net.is_some() && self.job.moves_ranks()
    }

    /// The present life of `rank` and its wait; none: it does not wait, or other nodes do not have all that it has sent.
    fn waiting(&self, rank: usize) -> io::Result<Option<(u64, u64)>> {
        let this = &self.ranks[rank];
        let is_whole =
            !self.returning.lacks.contains(&(rank as u32)) && !self.returning.returned.contains(&(rank as u32));
        if this.life.is_none() || !self.is_here(rank) || !is_whole || self.memory.holds(rank)? {
            return Ok(None);
        }
        let wait = self.memory.waits_for(rank)? & !WAIT_LOOKS;
        Ok((wait > 0).then_some((this.asked.life, wait)))
    }

    /// Second questions whose ranks have looked again.
    fn answered(&mut self) -> io::Result<Vec<Fact>> {
        let mut facts = Vec::new();
        for asked in std::mem::take(&mut self.vain.asked) {
            let rank = asked.rank as usize;
            let word = self.memory.waits_for(rank)?;
            let looks = word.wrapping_sub(asked.word) & WAIT_LOOKS;
            match self.waiting(rank)? == Some((asked.life, asked.wait)) {
                true if looks >> WAIT_SOURCE_BITS >= 2 => facts.push(Fact::Probed {
                    rank: asked.rank,
                    number: asked.number,
                }),
                true => self.vain.asked.push(asked),
                false => {}
            }
        }
        Ok(facts)
    }
}

impl Agent {
    /// Reports lasting waits, and answers what can be answered.
    pub(super) fn mind_vain_waits(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let stands_still = self.stands_still();
        let work = &mut self.work;
        if !work.may_wait_in_vain() || stands_still {
            return Ok(());
        }
        for fact in work.answered()? {
            self.report(fact);
        }
        let work = &mut self.work;
        if work.vain.at.is_some_and(|at| at > now) {
            return Ok(());
        }
        work.vain.at = Some(now + LOOK);
        work.vain.seen.resize(work.ranks.len(), None);
        for rank in 0..self.work.ranks.len() {
            let waiting = self.work.waiting(rank)?;
            let before = std::mem::replace(&mut self.work.vain.seen[rank], waiting);
            if let Some((life, wait)) = waiting.filter(|_| waiting == before) {
                self.report(Fact::Waits {
                    rank: rank as u32,
                    life,
                    wait,
                    source: (wait & ((1 << WAIT_SOURCE_BITS) - 1)) as u32 - 1,
                });
            }
        }
        Ok(())
    }

    /// The coordinator asks about a wait, or knows that it is in vain.
    pub(super) fn mind_wait(&mut self, command: &Command) -> io::Result<()> {
        match *command {
            Command::Probe {
                rank,
                life,
                wait,
                number,
                again,
            } if self.work.waiting(rank as usize)? == Some((life, wait)) => {
                let Some(net) = &mut self.work.net else { return Ok(()) };
                if again {
                    let word = self.work.memory.waits_for(rank as usize)?;
                    self.work
                        .vain
                        .asked
                        .retain(|asked| asked.number == number && asked.rank != rank);
                    self.work.vain.asked.push(Asked {
                        rank,
                        life,
                        wait,
                        number,
                        word,
                    });
                } else {
                    let what = Held::Fact(Fact::Probed { rank, number });
                    self.held_back.push(HeldBack {
                        flush: net.flush(),
                        what,
                    });
                }
            }
            Command::InVain { rank, life, wait } if self.work.waiting(rank as usize)? == Some((life, wait)) => {
                self.work.memory.set_in_vain(rank as usize, wait)?;
            }
            _ => {}
        }
        Ok(())
    }
}

//! Ranks that finish long before the others: their processes are gone, and their ends are part of later waves.
//!
//! Nothing of an end lies beside images. So an image counts only when its rank has taken all that such ranks had sent to
//! it, and nothing of their logs is needed with a wave that has their ends.

use resurgo_protocol::{Fact, Rank};

use crate::log::{Cursor, Log, Record};
use crate::mutation::Mutation;
use crate::process::State;
use crate::program::Job;
use crate::random::mix;
use crate::world::{Event, World};

/// The process of the rank ends with its program. In no run those of all ranks do.
fn leaves(seed: u64, size: usize, rank: Rank) -> bool {
    mix(seed, 20 + u64::from(rank)).is_multiple_of(2) && seed % size as u64 != u64::from(rank)
}

/// The same job; in most runs that may have it, the ranks that leave do so long before the others.
pub(crate) fn with_ends(job: Job, seed: u64, may: bool) -> Job {
    let size = job.size;
    match may && !mix(seed, 19).is_multiple_of(3) {
        true => job.ends_early(|rank| leaves(seed, size, rank), mix(seed, 18)),
        false => job,
    }
}

impl World {
    /// The program of the rank has come to its end.
    pub(crate) fn may_leave(&mut self, rank: Rank) {
        let leaves = leaves(self.seed, self.ranks.len(), rank);
        if self.coordinator.plan().ends_count && leaves && !self.imaging.closing {
            let incarnation = self.ranks[rank as usize].incarnation;
            self.schedule(1, Event::Leaves { rank, incarnation });
        }
    }

    /// Its end is reported when others have all that it has sent.
    pub(crate) fn leaves(&mut self, rank: Rank, incarnation: u64) {
        let process = &self.ranks[rank as usize];
        if !process.is_life(incarnation) || !process.finished {
            return;
        }
        let ends: Vec<u64> = process.logs.iter().map(Log::end).collect();
        let mut wires = self.wires[rank as usize].iter().zip(ends);
        let is_there = wires.all(|(wire, end)| wire.revealed >= end);
        if !is_there && !self.is(Mutation::TellEndsUnflushed) {
            return self.schedule(1, Event::Leaves { rank, incarnation });
        }
        self.note(|| format!("{rank} leaves"));
        let process = &mut self.ranks[rank as usize];
        process.has_left = true;
        let life = process.images.life;
        let orderly = true;
        self.coordinate(Fact::Ended { rank, life, orderly });
    }

    /// A rank that has left, and had sent what `rank` has yet to take, as the node of `rank` knows.
    pub(crate) fn awaits_ended(&self, rank: Rank) -> Option<Rank> {
        let awaits = |source: &Rank| {
            let sent = self.wires[*source as usize][rank as usize].revealed;
            self.ranks[*source as usize].has_left && sent > self.ranks[rank as usize].delivered(*source)
        };
        let mut sources = 0..self.ranks.len() as Rank;
        sources.find(|source| self.nodes.are() && awaits(source) && !self.is(Mutation::LeaveWhatEndedRanksSent))
    }

    /// It is part of the wave with its end.
    pub(crate) fn has_end(&self, rank: Rank, number: u64) -> bool {
        self.ranks[rank as usize].has_left && self.coordinator.has_end(rank, number)
    }

    /// A rank that has left was as it is when it was part of a wave: as if it had an image of that.
    pub(crate) fn cursor_of_end(&self, rank: Rank) -> Option<Cursor> {
        let size = self.ranks.len() as Rank;
        let State::Up(life) = &self.ranks[rank as usize].state else {
            return None;
        };
        Some(Cursor {
            rclock: life.subject.rclock(),
            delivered: (0..size).map(|source| life.subject.delivered(source)).collect(),
        })
    }

    /// Logs begin anew, and others need nothing of this rank's.
    pub(crate) fn log_of_end(&mut self, rank: Rank) {
        if let Some(cursor) = self.cursor_of_end(rank) {
            let process = &mut self.ranks[rank as usize];
            process.logs.iter_mut().for_each(|log| *log = Log::default());
            process.record = Record::new(cursor, Vec::new());
            // What has not arrived does not come any more.
            self.wires[rank as usize]
                .iter_mut()
                .for_each(|wire| wire.connection += 1);
        }
    }

    /// It begins again, as its end is not part of the wave that all return to.
    pub(crate) fn comes_back(&mut self, rank: Rank) {
        if std::mem::take(&mut self.ranks[rank as usize].has_left) {
            self.note(|| format!("{rank} is to do its end again"));
            self.take_down(rank);
        }
    }
}

//! Waves of groups: one group after the other is copied and writes its images (`--protocol group`). A wave that stops
//! all ranks is a wave of one group.

use std::io;
use std::time::{Duration, Instant};

use resurgo_protocol::group::{Groups, Turn};
use resurgo_protocol::kinds;
use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{control, header};

use super::node::NodeMemory;
use super::ranks::Rank;
use super::{Agent, Work};

/// How often the agent makes ranks send the messages that they have deferred (Gao 2007, §4.4).
const FORCED: Duration = Duration::from_millis(100);

impl Rank {
    /// Makes the running process see whose turn it is, and send what it has deferred or held.
    pub(super) fn notice(&self, turn: Turn) -> io::Result<()> {
        let (life, socket) = self.life_with_images().ok_or(io::ErrorKind::Unsupported)?;
        let request = Datagram::new(Kind::Notice, turn.word(), 0, 0);
        let program = self.wrapped.number().unwrap_or(life.pid.as_raw());
        resurgo_image::ask(program, socket, request, &[])
    }
}

impl Work {
    pub(super) fn is_in_groups(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::GroupByGroup
    }

    /// Tells every rank its group.
    pub(super) fn tell_groups(&self, groups: &Groups) -> io::Result<()> {
        let mut ranks = 0..groups.ranks();
        ranks.try_for_each(|rank| self.memory.set_group(rank, groups.of(rank as u32)))
    }

    /// Tells all ranks whose turn it is. After the wave all messages may pass, and deferred ones leave soon, also from
    /// ranks that compute.
    pub(super) fn set_turn(&mut self, turn: Turn) -> io::Result<()> {
        self.memory.set_turn(turn)?;
        self.waves.turn = turn;
        if turn.group == 0 {
            self.look_at_buffers();
        }
        Ok(())
    }

    /// Ranks may have deferred messages that can leave now.
    pub(super) fn look_at_buffers(&mut self) {
        if self.is_in_groups() {
            self.waves.buffers_at = Some(Instant::now());
        }
    }

    /// When the next look at the buffers of ranks is due.
    pub(super) fn looks_at_buffers(&self) -> Option<Instant> {
        self.waves.buffers_at
    }
}

impl Agent {
    /// Between waves: makes computing ranks send what they have deferred.
    pub(super) fn mind_buffers(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let work = &mut self.work;
        if work.waves.buffers_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        work.waves.buffers_at = None;
        let turn = work.waves.turn;
        for (rank, this) in work.ranks.iter().enumerate() {
            let waits = this.life.is_some() && work.memory.buffered(rank)? > 0;
            if waits && turn.group == 0 && !this.asked.waits {
                // A dead rank is not an error here: its next life sees the turn.
                let _ = this.notice(turn);
            }
            if waits {
                work.waves.buffers_at = Some(now + FORCED);
            }
        }
        Ok(())
    }
}

impl NodeMemory {
    /// Messages that `rank` has sent to each of the first `ranks` ranks.
    pub(super) fn messages(&self, rank: usize, ranks: usize) -> io::Result<Vec<u64>> {
        self.table(self.layout.arena(rank) + self.layout.sent(), ranks)
    }

    pub(super) fn set_group(&self, rank: usize, group: u32) -> io::Result<()> {
        self.set_control(rank, control::GROUP, group.into())
    }

    fn set_turn(&self, turn: Turn) -> io::Result<()> {
        self.set_header(header::TURN, turn.word())
    }

    /// Deferred messages in the buffer of `rank`.
    fn buffered(&self, rank: usize) -> io::Result<u64> {
        self.control(rank, control::BUFFERED)
    }
}

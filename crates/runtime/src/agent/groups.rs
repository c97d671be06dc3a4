//! Waves of groups that are copied, and write their images, one after the other (`--protocol group`). A wave for which all
//! stop is one of a single group.

use std::io;
use std::time::{Duration, Instant};

use resurgo_protocol::group::formation::{self, Formed};
use resurgo_protocol::group::{Groups, Turn};
use resurgo_protocol::{Wave, kinds};
use resurgo_wire::control::{Grouping, ToDispatcher};
use resurgo_wire::image::{Datagram, IN_WAVE, Kind};
use resurgo_wire::node_memory as nm;

use super::node::NodeMemory;
use super::ranks::Rank;
use super::{Agent, Work};

/// How often ranks are made to go on with messages that they have deferred (Gao 2007, §4.4).
const FORCED: Duration = Duration::from_millis(100);

impl Rank {
    /// Makes the running process see whose turn it is, and go on with what it has deferred or held.
    pub(super) fn notice(&self, turn: Turn) -> io::Result<()> {
        let Some((life, socket)) = self.life.as_ref().and_then(|life| Some((life, life.image.as_ref()?))) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let request = Datagram::new(Kind::Notice, turn.word(), 0, 0);
        resurgo_image::ask(life.pid.as_raw(), socket, request, &[])
    }
}

impl Work {
    pub(super) fn is_in_groups(&self) -> bool {
        self.job.protocol.waves() == kinds::Waves::GroupByGroup
    }

    /// The groups of the next wave, which all ranks can see then.
    pub(super) fn form_groups(&mut self) -> io::Result<Groups> {
        let ranks = self.ranks.len();
        self.waves[0].is_global = false;
        let groups = match &self.job.groups {
            Grouping::Dynamic { size } => {
                let sent = self.memory.messages(ranks)?;
                let between = |one: usize, other: usize| sent[one][other] + sent[other][one];
                let (groups, formed) = formation::dynamic(ranks, *size, between);
                self.waves[0].is_global = formed == Formed::CommunicationIsGlobal;
                groups
            }
            lasting => lasting.lasting(ranks),
        };
        (0..ranks).try_for_each(|rank| self.memory.set_group(rank, groups.of(rank as u32)))?;
        Ok(groups)
    }

    /// Tells the ranks of the group whose turn it is.
    pub(super) fn tell_in_turn(&self, unit: usize, wave: &Wave, kind: Kind) {
        let members = self.waves[unit].members.iter().enumerate();
        let ranks = members.filter(|(place, _)| wave.is_in_turn(*place as u32));
        ranks.for_each(|(_, rank)| self.tell(*rank, &Datagram::new(kind, wave.number(), 0, 0)));
    }

    /// The wave is over: everything may pass again, and what has been buffered leaves soon, also from ranks that compute.
    pub(super) fn end_turns(&mut self, unit: usize) -> io::Result<()> {
        self.waves[unit].current = None;
        if self.is_in_groups() {
            let over = Turn {
                wave: self.waves[unit].asked(),
                group: 0,
            };
            self.memory.set_turn(over)?;
            self.look_at_buffers();
        }
        Ok(())
    }

    /// Ranks may have deferred messages that can leave now.
    pub(super) fn look_at_buffers(&mut self) {
        if self.is_in_groups() {
            self.waves[0].buffers_at = Some(Instant::now());
        }
    }

    /// When the next look at the buffers of ranks is due.
    pub(super) fn looks_at_buffers(&self) -> Option<Instant> {
        self.waves[0].buffers_at
    }
}

impl Agent {
    /// Asks the ranks whose turn it is for their images, and has all others hold back what must not pass.
    pub(super) fn ask_in_turn(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        let waves = &work.waves[unit];
        let Some((wave, _)) = &waves.current else {
            return Ok(());
        };
        let how = work.bit_for_files() | if work.is_non_blocking() { 0 } else { IN_WAVE };
        let turn = Turn {
            wave: wave.number(),
            group: wave.turn(),
        };
        if work.is_in_groups() {
            work.memory.set_turn(turn)?;
        }
        let patience = waves.patience;
        for (place, rank) in waves.members.iter().copied().enumerate() {
            let asked = match wave.is_in_turn(place as u32) {
                true => work.ranks[rank].ask_for_image(turn.wave, how, None, patience),
                false => work.ranks[rank].notice(turn),
            };
            if let Err(error) = asked {
                return self.drop_wave(rank, &error.to_string());
            }
        }
        Ok(())
    }

    /// A rank has seen whose turn it is, or cannot.
    pub(super) fn noticed(&mut self, rank: usize, datagram: Datagram) -> io::Result<()> {
        let work = &self.work;
        let turn = Turn::from_word(datagram.a);
        let is_asked = |wave: &Wave| wave.number() == turn.wave && wave.turn() == turn.group;
        if !work.waves[0].current.as_ref().is_some_and(|(wave, _)| is_asked(wave)) {
            return Ok(());
        }
        match datagram.text() {
            "" => self.said_in_wave(rank, datagram, None),
            why => self.drop_wave(rank, why),
        }
    }

    /// Outside of waves: ranks that compute go on with what they have deferred.
    pub(super) fn mind_buffers(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let work = &mut self.work;
        if work.waves[0].buffers_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        work.waves[0].buffers_at = None;
        let over = Turn {
            wave: work.waves[0].asked(),
            group: 0,
        };
        for (rank, this) in work.ranks.iter().enumerate() {
            let waits = this.life.is_some() && work.memory.buffered(rank)? > 0;
            if waits && work.waves[0].current.is_none() && !work.is_returning(rank) {
                // Whoever has died meanwhile goes on elsewhere.
                let _ = this.notice(over);
            }
            if waits {
                work.waves[0].buffers_at = Some(now + FORCED);
            }
        }
        Ok(())
    }

    /// The groups that may write their images now do.
    pub(super) fn write_in_turn(&mut self, unit: usize) -> io::Result<()> {
        let work = &mut self.work;
        let waves = &mut work.waves[unit];
        let places = waves
            .writing
            .as_mut()
            .map(|writing| writing.begin())
            .unwrap_or_default();
        let ranks: Vec<usize> = places.iter().map(|place| waves.members[*place as usize]).collect();
        for rank in ranks {
            self.write_image(rank)?;
        }
        Ok(())
    }

    /// Groups that have not begun to write their images do not: the wave will not be whole.
    pub(super) fn give_up_writing(&mut self, unit: usize, why: &str) -> io::Result<()> {
        let work = &mut self.work;
        let waves = &mut work.waves[unit];
        let Some(writing) = &mut waves.writing else {
            return Ok(());
        };
        let (number, places) = (writing.number(), writing.give_up());
        let ranks: Vec<usize> = places.iter().map(|place| waves.members[*place as usize]).collect();
        for rank in ranks {
            let reason = why.to_string();
            self.send(&ToDispatcher::ImageNotWritten { rank, number, reason })?;
        }
        Ok(())
    }

    /// The image of `rank` has been written, or will not be.
    pub(super) fn writing_ended(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let unit = work.unit(rank);
        let place = work.waves[unit].place(rank);
        let Some(writing) = &mut work.waves[unit].writing else {
            return Ok(());
        };
        writing.ended(place);
        if writing.is_over() {
            work.waves[unit].writing = None;
        }
        self.write_in_turn(unit)
    }
}

impl NodeMemory {
    /// Messages that each of the first `ranks` ranks has sent to each.
    fn messages(&self, ranks: usize) -> io::Result<Vec<Vec<u64>>> {
        let row = |rank: usize| self.table(self.layout.arena(rank) + self.layout.sent(), ranks);
        (0..ranks).map(row).collect()
    }

    pub(super) fn set_group(&self, rank: usize, group: u32) -> io::Result<()> {
        self.write_u64(self.layout.control(rank) + nm::control::GROUP, group.into())
    }

    fn set_turn(&self, turn: Turn) -> io::Result<()> {
        self.write_u64(nm::header::TURN, turn.word())
    }

    /// Deferred messages in the buffer of `rank`.
    fn buffered(&self, rank: usize) -> io::Result<u64> {
        self.read_u64(self.layout.control(rank) + nm::control::BUFFERED)
    }
}

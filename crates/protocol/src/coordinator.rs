//! The coordinator: it hears what happens to ranks and to their images, and decides what follows. It begins waves, carries
//! them on and drops them. It chooses what a life begins from, and how all ranks of a unit return. It says which images
//! stay, and what others may forget.
//!
//! It has three kinds of methods, to be called in this order:
//!
//! 1. [`Coordinator::handle`] takes a [`Fact`], and the time since the start of the job;
//! 2. [`Coordinator::poll`] gives the [`Command`]s that follow from it, until there are none; they are carried out in this order. What
//!    carrying one out shows is the next fact, also while others are left;
//! 3. [`Coordinator::due`] says when [`Fact::Due`] is to be told, if nothing else happens before.
//!
//! The ranks that have their waves together are a *unit*: all ranks of the job, or each group for itself. Without waves every rank has
//! its images alone. An image is a *copy* of the rank's process, which sleeps, or a *file*, or both. The last [`KEPT`] complete files
//! stay. What others may forget follows the oldest of them: a life begins from it when the newer one cannot be used.
//!
//! Each life has a number: the n-th process that has been asked for its rank. What is told of another life than the present one is
//! old news, and changes nothing.

mod files;
mod images;
mod leaving;
mod messages;
mod nodes;
mod returns;
mod state;
mod surveys;
#[cfg(test)]
mod tests;
mod waves;
mod words;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::group::Groups;
use crate::group::formation::Grouping;
use crate::kinds::{Protocol, Waves};
use crate::{Node, Rank};
pub use messages::{Command, Complete, Fact, Manner, Whom};
pub use state::{Former, From, Place, State};
use state::{Found, Images, Member, Nodes, Process, Survey, Unit};
pub use words::{Cause, Why};

/// Complete files of a rank that stay.
pub const KEPT: usize = 2;

/// What the job wants; it does not change but for the protocol, see [`Fact::OnlyLogs`].
#[derive(Debug, Clone)]
pub struct Plan {
    pub protocol: Protocol,
    /// The ranks that have their waves together.
    pub units: Groups,
    /// How the ranks of a wave are put into groups that are copied one after the other, where they are.
    pub groups: Grouping,
    /// Images are written into files.
    pub files: bool,
    /// With several nodes an image counts when another node has its file, too: [`Command::Replicate`].
    pub partners: bool,
    /// Copies sleep on when they have been written.
    pub local_copies: bool,
    /// Most groups that write their images at the same time.
    pub groups_at_once: u32,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    ranks: Vec<Member>,
    units: Vec<Unit>,
    nodes: Nodes,
    /// Questions that have not been answered for all their ranks, and how many there have been.
    surveys: Vec<Survey>,
    surveyed: u64,
    /// Waves of which what was in transit is known, and those of which it is in a file.
    transit: BTreeSet<u64>,
    transit_files: BTreeSet<u64>,
    is_halted: bool,
    /// Nobody begins at the beginning any more: the programs may have been changed.
    is_resumed: bool,
    /// Waves have been given up, and all begin again when a rank cannot recover alone.
    may_begin_again: bool,
    commands: VecDeque<Command>,
}

impl Coordinator {
    /// That of a job of as many ranks as `plan` has units for, none of which has begun.
    pub fn new(plan: Plan) -> Coordinator {
        let units = (1..=plan.units.count()).map(|group| Unit::new(plan.units.members(group).collect()));
        Coordinator {
            units: units.collect(),
            ranks: (0..plan.units.ranks()).map(|_| Member::default()).collect(),
            nodes: Nodes::default(),
            surveys: Vec::new(),
            surveyed: 0,
            transit: BTreeSet::new(),
            transit_files: BTreeSet::new(),
            is_halted: false,
            is_resumed: false,
            may_begin_again: false,
            commands: VecDeque::new(),
            plan,
        }
    }

    /// That of a job that was suspended, or whose coordinator was lost: what is in files. `transit`: the waves of which what was
    /// in transit is in a file.
    pub fn resume(plan: Plan, ranks: Vec<Former>, transit: impl IntoIterator<Item = u64>) -> Coordinator {
        let mut this = Coordinator::new(plan);
        this.ranks.resize_with(ranks.len(), Member::default);
        this.is_resumed = true;
        this.transit_files = transit.into_iter().collect();
        for (member, former) in this.ranks.iter_mut().zip(ranks) {
            member.finished = former.finished;
            member.images = Images::resumed(former);
        }
        this.count_on();
        this
    }

    /// Numbers of waves go on behind those of all images.
    fn count_on(&mut self) {
        for unit in &mut self.units {
            let asked = unit.members.iter().map(|rank| self.ranks[*rank as usize].images.asked);
            unit.asked = unit.asked.max(asked.max().unwrap_or(0));
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When nobody has said anything about some image for too long.
    pub fn due(&self) -> Option<Duration> {
        let of_waves = self
            .units
            .iter()
            .filter(|unit| unit.current.is_some())
            .map(Unit::silent_at);
        let alone = self.ranks.iter().filter(|_| !self.has_waves());
        of_waves.chain(alone.filter_map(|member| member.images.taking)).min()
    }

    /// Something has happened at `now`.
    pub fn handle(&mut self, fact: Fact, now: Duration) {
        match fact {
            Fact::Launched => (0..self.ranks.len() as Rank).for_each(|rank| self.begin(rank, From::Beginning, false)),
            Fact::Spawned { ranks } => self.spawned(ranks),
            Fact::Wanted { unit } => self.survey(unit),
            Fact::Surveyed {
                rank,
                number,
                state,
                held,
                sent,
            } => self.surveyed(rank, number, Found { state, held, sent }, now),
            Fact::Stopped {
                rank,
                number,
                accounted,
            } => self.stopped(rank, number, accounted, now),
            Fact::Noticed { rank, turn } => self.noticed(rank, turn, now),
            Fact::Drained { rank, number, moved } => self.drained(rank, number, moved, now),
            Fact::Copied {
                rank,
                number,
                sleeps,
                stood,
            } => self.copied(rank, number, sleeps, stood, now),
            Fact::Refused { rank, number, reason } => self.refused(rank, number, reason),
            Fact::TransitKnown { number } => self.transit_known(number, now),
            Fact::TransitLost { number, reason } => self.transit_lost(number, reason),
            Fact::TransitNotWritten { number, reason } => self.transit_not_written(number, &reason),
            Fact::Written { rank, number } => self.written(rank, number),
            Fact::NotWritten { rank, number, reason } => self.not_written(rank, number, reason),
            Fact::CopyLost {
                rank,
                number,
                stored,
                reason,
            } => self.copy_lost(rank, number, stored, reason),
            Fact::Stored { rank, number, place } => self.stored(rank, number, place),
            Fact::FileLost { rank, number, reason } => self.file_lost(rank, number, reason),
            Fact::Started { rank, life } => self.started(rank, life),
            Fact::NotBegun { rank, life } => self.not_begun(rank, life),
            Fact::Ready { rank, life } => self.ready(rank, life),
            Fact::Ended { rank, life, orderly } => self.ended(rank, life, orderly),
            Fact::Up { node, slots, spare } => self.node_comes(node, slots, spare),
            Fact::Down { node } => self.lost(node),
            Fact::Leave { node } => self.leave(node),
            Fact::Stay { node } => self.stay(node),
            Fact::Placed { nodes } => self.placed(&nodes),
            Fact::Restart { rank } => self.begin_alone(rank),
            Fact::Return { rank } => self.return_unit(rank),
            Fact::OnlyLogs => self.only_logs(),
            Fact::WavesAgain => self.waves_again(),
            Fact::Halt => self.halt(),
            Fact::GoOn { together } => self.go_on_after_halt(together),
            Fact::Due => self.mind_silence(now),
        }
    }

    fn tell(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    pub fn has_waves(&self) -> bool {
        self.plan.protocol.has_waves()
    }

    /// Its protocol is as it is now: see [`Fact::OnlyLogs`].
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// As it is now.
    pub fn protocol(&self) -> Protocol {
        self.plan.protocol
    }

    /// Waves have been given up, and all begin again when a rank cannot recover alone.
    pub fn may_begin_again(&self) -> bool {
        self.may_begin_again
    }

    /// Where `rank` runs, or did last.
    pub fn node(&self, rank: Rank) -> Node {
        self.ranks[rank as usize].node
    }

    /// The unit of `rank`.
    pub fn unit(&self, rank: Rank) -> usize {
        let has = |unit: &Unit| unit.members.binary_search(&rank).is_ok();
        self.units.iter().position(has).unwrap_or(0)
    }

    /// The last image of the rank is being written, or has yet to come to another node.
    pub fn writes(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].images.writing.is_some()
    }

    /// How many units there are.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The ranks of a unit.
    pub fn members(&self, unit: usize) -> &[Rank] {
        &self.units[unit].members
    }

    /// Its unit returns to a wave: the ends of its processes are no failures.
    pub fn is_returning(&self, rank: Rank) -> bool {
        self.units[self.unit(rank)].returning.is_some()
    }

    /// The number of the last wave that the unit of `rank` has been asked for.
    pub fn asked(&self, rank: Rank) -> u64 {
        self.units[self.unit(rank)].asked
    }

    /// A wave of its unit is under way.
    pub fn is_in_wave(&self, rank: Rank) -> bool {
        self.units[self.unit(rank)].current.is_some()
    }

    /// Only the failed rank's unit returns, and repeats what it has done.
    pub fn is_hierarchical(&self) -> bool {
        self.plan.protocol.waves() == Waves::OfEachGroup
    }

    fn is_passing(&self) -> bool {
        self.plan.protocol.waves() == Waves::Passing
    }

    fn is_in_groups(&self) -> bool {
        self.plan.protocol.waves() == Waves::GroupByGroup
    }

    fn images(&mut self, rank: Rank) -> &mut Images {
        &mut self.ranks[rank as usize].images
    }

    fn spawned(&mut self, ranks: usize) {
        // There is no way back to where they were not.
        if std::mem::take(&mut self.may_begin_again) {
            self.tell_protocol();
        }
        for rank in self.ranks.len()..self.ranks.len() + ranks {
            let node = self.roomiest();
            self.ranks.push(Member {
                node,
                ..Member::default()
            });
            self.begin(rank as Rank, From::Beginning, false);
        }
    }

    /// Ranks have images alone from now on; those that they have stay good for that.
    fn only_logs(&mut self) {
        self.drop_surveys(&Why::NoWaves, |_| true);
        self.drop_wave(0, Why::NoWaves);
        if let Some(protocol) = self.plan.protocol.without_waves() {
            self.plan.protocol = protocol;
            self.may_begin_again = !self.is_resumed;
            self.tell_protocol();
        }
    }

    fn tell_protocol(&mut self) {
        self.tell(Command::Protocol {
            protocol: self.plan.protocol,
            may_begin_again: self.may_begin_again,
        });
    }

    /// Images of single ranks are no wave, also when they have the same number.
    fn waves_again(&mut self) {
        let former = self.plan.protocol.with_waves_again();
        let Some(protocol) = former.filter(|_| self.may_begin_again) else {
            return;
        };
        self.drop_surveys(&Why::NoWaves, |_| true);
        self.plan.protocol = protocol;
        self.may_begin_again = false;
        self.tell_protocol();
        self.forget_copies(0, |_| false);
        self.collect_files(0, |_| true);
        self.count_on();
    }

    fn halt(&mut self) {
        self.is_halted = true;
        self.tell(Command::Halt);
        for unit in &mut self.units {
            (unit.returning, unit.reading) = (None, None);
            (unit.leaves, unit.is_held) = (false, false);
        }
        for rank in 0..self.ranks.len() as Rank {
            self.kill(rank);
        }
    }

    fn go_on_after_halt(&mut self, together: bool) {
        self.is_halted = false;
        self.tell(Command::GoOn);
        if together || !self.plan.protocol.logs() || self.is_hierarchical() {
            for unit in 0..self.units.len() {
                let mut members = self.units[unit].members.iter();
                // Where a whole unit has finished nobody needs it any more.
                if members.any(|rank| !self.ranks[*rank as usize].finished) {
                    self.return_unit(self.units[unit].members[0]);
                }
            }
            return;
        }
        for rank in 0..self.ranks.len() as Rank {
            if !self.ranks[rank as usize].finished {
                self.begin_alone(rank);
            }
        }
    }

    fn kill(&mut self, rank: Rank) {
        let Member { life, process, .. } = self.ranks[rank as usize];
        if process != Process::None {
            self.tell(Command::Kill { rank, life });
        }
    }
}

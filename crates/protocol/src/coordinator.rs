//! The coordinator: it gets facts about ranks and their images, and decides what follows. It begins waves, carries them
//! on and drops them. It chooses what a life begins from, and how all ranks of a unit return. It decides which images
//! stay, and what others may forget.
//!
//! It has three kinds of methods, to be called in this order:
//!
//! 1. [`Coordinator::handle`] takes a [`Fact`], and the time since the start of the job;
//! 2. [`Coordinator::poll`] gives the [`Command`]s that follow from it, until there are none; the caller carries them
//!    out in this order. The result of one is the next fact, also while others are left;
//! 3. [`Coordinator::due`] says when to pass in [`Fact::Due`], if no other fact comes before.
//!
//! The ranks that have their waves together are a *unit*: all ranks of the job, or each group for itself. Without waves
//! every rank has its images alone. An image is a *copy* of the rank's process, which sleeps, or a *file*, or both. The
//! last [`Plan::kept`] complete files stay. What others may forget follows the oldest of them: a life begins from it when
//! the newer one cannot be used.
//!
//! Each life has a number: the n-th process asked for its rank. Facts about another life than the present one are old,
//! and change nothing.

mod beyond;
mod files;
mod images;
mod leaving;
mod messages;
mod nodes;
mod parity;
mod replicas;
mod returns;
mod state;
mod surveys;
#[cfg(test)]
mod tests;
mod vain;
mod waiting;
mod waits;
mod waves;
mod words;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::group::Groups;
use crate::group::formation::Grouping;
use crate::kinds::{Protocol, Waves};
use crate::placement::Parity;
use crate::{Node, Rank};
pub use messages::{Command, Complete, Fact, Manner, Whom};
use state::{Beyond, Found, Images, Member, Nodes, Process, Sets, Survey, Unit};
pub use state::{Former, FormerSet, From, Place, State};
use waits::Vain;
pub use words::{Cause, Why};

/// Complete files of a rank that stay in directories.
pub const KEPT: usize = 2;

/// The job's settings; only the protocol can change, see [`Fact::OnlyLogs`].
#[derive(Debug, Clone)]
pub struct Plan {
    pub protocol: Protocol,
    /// The ranks that have their waves together.
    pub units: Groups,
    /// How the ranks of a wave form groups that are copied one after the other, where they do.
    pub groups: Grouping,
    /// Images are written into files.
    pub files: bool,
    /// With several nodes an image counts when so many other nodes have its file, too, or all that there are:
    /// [`Command::Replicate`]. 0: it counts without, and is lost with its node.
    pub replicas: u32,
    /// Images of waves have parity instead of replicas. Those that ranks have alone have `replicas`.
    pub parity: Option<Parity>,
    /// Which nodes these are follows from this.
    pub seed: u64,
    /// A lost node takes logs along: only its ranks start again, with those that return with them and with what others
    /// have. Logs inside a group are kept like all others.
    pub moves: bool,
    /// It takes images along, too: its ranks start from the beginning, and nothing that they need for that is
    /// forgotten.
    pub keeps_logs: bool,
    /// Complete files of a rank that stay, at least 1. Where files are memory, each costs what the rank has written to.
    pub kept: usize,
    /// Copies sleep on after writing.
    pub local_copies: bool,
    /// Most groups that write their images at the same time.
    pub groups_at_once: u32,
    /// A rank that has finished is part of later waves: its end is its image.
    pub ends_count: bool,
    /// When a life has nothing to begin from, because images are lost and what came before them is forgotten, all ranks
    /// begin again at the beginning. (Those that return together do so in any case.)
    pub begins_anew: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    ranks: Vec<Member>,
    units: Vec<Unit>,
    nodes: Nodes,
    beyond: Beyond,
    sets: Sets,
    /// Surveys without answers of all their ranks, and the number of surveys so far.
    surveys: Vec<Survey>,
    surveyed: u64,
    /// Waves with known transit, and those with their transit in a file.
    transit: BTreeSet<u64>,
    transit_files: BTreeSet<u64>,
    /// The newest wave that the record may name, as far as is known; 0: none.
    recorded: u64,
    is_halted: bool,
    /// All ranks end, to begin again at the beginning.
    all_begin: bool,
    /// No rank may start from the beginning any more: the programs may have changed.
    is_resumed: bool,
    /// Waves were given up, and can come back while ranks run.
    may_come_back: bool,
    /// Waves were given up, and all ranks begin again when one cannot recover alone.
    may_begin_again: bool,
    /// There are waves for a suspension only. The job goes on with this protocol, which has none.
    without_waves: Option<Protocol>,
    /// Waits of ranks of several nodes in their replays.
    vain: Vain,
    commands: VecDeque<Command>,
}

impl Coordinator {
    /// For a job of as many ranks as `plan` has units for; none has begun.
    pub fn new(plan: Plan) -> Coordinator {
        let units = (1..=plan.units.count()).map(|group| Unit::new(plan.units.members(group).collect()));
        Coordinator {
            units: units.collect(),
            ranks: (0..plan.units.ranks()).map(|_| Member::default()).collect(),
            nodes: Nodes::default(),
            beyond: Beyond::default(),
            sets: Sets::default(),
            surveys: Vec::new(),
            surveyed: 0,
            transit: BTreeSet::new(),
            transit_files: BTreeSet::new(),
            recorded: 0,
            is_halted: false,
            all_begin: false,
            is_resumed: false,
            may_come_back: false,
            may_begin_again: false,
            without_waves: None,
            vain: Vain::default(),
            commands: VecDeque::new(),
            plan,
        }
    }

    /// For a job that was suspended, or whose coordinator was lost: what is in files. `transit`: the waves with their
    /// transit in a file.
    pub fn resume(plan: Plan, ranks: Vec<Former>, transit: impl IntoIterator<Item = u64>) -> Coordinator {
        let mut this = Coordinator::new(plan);
        this.ranks.resize_with(ranks.len(), Member::default);
        this.is_resumed = true;
        this.transit_files = transit.into_iter().collect();
        for (member, former) in this.ranks.iter_mut().zip(ranks) {
            // Images of it may be missing now, and come back.
            this.recorded = this.recorded.max(former.asked);
            member.finished = former.finished;
            member.images = Images::resumed(former);
        }
        this.count_on();
        this
    }

    /// The sets whose pieces the nodes of a resumed job have. What [`Former::files`] lists are files on nodes, as without
    /// sets; the others of a set may be made anew.
    pub fn with_sets(mut self, sets: Vec<FormerSet>) -> Coordinator {
        self.has_sets(sets);
        self
    }

    /// Numbers of waves continue after those of all images.
    fn count_on(&mut self) {
        for unit in &mut self.units {
            let asked = unit.members.iter().map(|rank| self.ranks[*rank as usize].images.asked);
            unit.asked = unit.asked.max(asked.max().unwrap_or(0));
        }
    }

    /// The next command.
    pub fn poll(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When ranks count as silent about some image.
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
            Fact::Spawned { on } => self.spawned(on),
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
            Fact::Recorded { number } => self.recorded = number,
            Fact::Written { .. }
            | Fact::NotWritten { .. }
            | Fact::NotStored { .. }
            | Fact::CopyLost { .. }
            | Fact::Fetched { .. }
            | Fact::NotFetched { .. }
            | Fact::Encoded { .. }
            | Fact::NotEncoded { .. }
            | Fact::Stored { .. }
            | Fact::FileLost { .. } => self.handle_file(fact),
            Fact::Beyond { waves } => self.are_beyond(waves),
            Fact::Started { rank, life } => self.started(rank, life),
            Fact::NotBegun { rank, life } => self.not_begun(rank, life),
            Fact::Ready { rank, life } => self.ready(rank, life),
            Fact::Ended { rank, life, orderly } => self.ended(rank, life, orderly),
            Fact::Up {
                node,
                slots,
                spare,
                rack,
            } => self.node_comes(node, slots, spare, rack),
            Fact::Down { node } => self.lost(node),
            Fact::Leave { node } => self.leave(node),
            Fact::Stay { node } => self.stay(node),
            Fact::Placed { nodes } => self.placed(&nodes),
            Fact::Waits {
                rank,
                life,
                wait,
                source,
            } => self.waits(rank, life, wait, source),
            Fact::Probed { rank, number } => self.probed(rank, number),
            Fact::Restart { rank } => self.begin_alone(rank),
            Fact::LetGo { rank } => self.let_go(rank),
            Fact::Return { rank } => self.return_unit(rank),
            Fact::OnlyLogs => self.only_logs(),
            Fact::WavesAgain => self.waves_again(),
            Fact::WavesBack => self.waves_back(),
            Fact::WavesToSuspend => self.waves_to_suspend(),
            Fact::Halt => self.halt(),
            Fact::GoOn { together } => self.go_on_after_halt(together),
            Fact::Due => self.mind_silence(now),
        }
        self.mind_sets();
    }

    /// Facts about an image's file, its copies and its set.
    fn handle_file(&mut self, fact: Fact) {
        match fact {
            Fact::Written { rank, number } => self.written(rank, number),
            Fact::NotWritten { rank, number, reason } => self.not_written(rank, number, reason),
            Fact::NotStored {
                rank,
                number,
                node,
                reason,
            } => self.not_stored(rank, number, node, reason),
            Fact::CopyLost {
                rank,
                number,
                stored,
                reason,
            } => self.copy_lost(rank, number, stored, reason),
            Fact::Fetched { rank, number, place } => self.fetched(rank, number, place),
            Fact::NotFetched { rank, number, reason } => self.not_fetched(rank, number, reason),
            Fact::Encoded { number, set, node } => self.encoded(number, set, node),
            Fact::NotEncoded {
                number,
                set,
                node,
                reason,
            } => self.not_encoded(number, set, node, reason),
            Fact::Stored { rank, number, place } => self.stored(rank, number, place),
            Fact::FileLost { rank, number, reason } => self.file_lost(rank, number, reason),
            _ => {}
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

    /// Waves were given up, and all ranks begin again when one cannot recover alone.
    pub fn may_begin_again(&self) -> bool {
        self.may_begin_again
    }

    /// There are waves for a suspension only.
    pub fn has_waves_to_suspend(&self) -> bool {
        self.without_waves.is_some()
    }

    /// The protocol after [`Fact::OnlyLogs`], if the job can do without the waves that it has.
    pub fn without_waves(&self) -> Option<Protocol> {
        self.without_waves.or_else(|| self.plan.protocol.without_waves())
    }

    /// Where `rank` runs, or did last.
    pub fn node(&self, rank: Rank) -> Node {
        self.ranks[rank as usize].node
    }

    /// The oldest image that a life of `rank` may begin from, on whatever node, or that it is taking.
    pub fn oldest_image(&self, rank: Rank) -> Option<u64> {
        self.ranks[rank as usize].images.oldest()
    }

    /// The unit of `rank`.
    pub fn unit(&self, rank: Rank) -> usize {
        let has = |unit: &Unit| unit.members.binary_search(&rank).is_ok();
        self.units.iter().position(has).unwrap_or(0)
    }

    /// The last image of the rank is being written, or another node does not have it yet.
    pub fn writes(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].images.writing.is_some()
    }

    /// All of the image is in a file, which counts.
    pub fn has_file(&self, rank: Rank, number: u64) -> bool {
        self.ranks[rank as usize].images.has_file(number)
    }

    /// How many units there are.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The ranks of a unit.
    pub fn members(&self, unit: usize) -> &[Rank] {
        &self.units[unit].members
    }

    /// It has a process, or will have one.
    pub fn is_alive(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].is_alive()
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

    /// The rank had finished before this wave was asked for, and its end is its image of the wave.
    pub fn has_end(&self, rank: Rank, number: u64) -> bool {
        let member = &self.ranks[rank as usize];
        self.plan.ends_count && member.finished && number > member.images.asked
    }

    /// The number of the last image that `rank` was asked for.
    pub fn last_asked(&self, rank: Rank) -> u64 {
        self.ranks[rank as usize].images.asked
    }

    /// Its end is its image of all waves from now on.
    fn is_over(&self, rank: Rank) -> bool {
        self.plan.ends_count && self.ranks[rank as usize].finished
    }

    /// The rank has finished, and need not begin again.
    pub fn has_finished(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].finished
    }

    fn images(&mut self, rank: Rank) -> &mut Images {
        &mut self.ranks[rank as usize].images
    }

    fn spawned(&mut self, on: Vec<Vec<Node>>) {
        // Ranks cannot return to the time before.
        self.may_come_back = false;
        if std::mem::take(&mut self.may_begin_again) {
            self.tell_protocol();
        }
        for named in on {
            let (rank, node) = (self.ranks.len(), self.for_one_more(&named));
            self.ranks.push(Member {
                node,
                ..Member::default()
            });
            self.begin(rank as Rank, From::Beginning, false);
        }
        if self.all_begin {
            // The rank that spawned them has ended, and may spawn other ones when it begins again.
            self.tell(Command::Fail(Cause::NotBroughtBack));
        }
    }

    /// From now on each rank takes images alone; present images stay valid for that.
    fn only_logs(&mut self) {
        self.drop_surveys(&Why::NoWaves, |_| true);
        self.drop_wave(0, Why::NoWaves);
        self.nothing_is_beyond();
        if let Some(protocol) = self.without_waves() {
            self.plan.protocol = protocol;
            if self.without_waves.take().is_none() {
                self.may_come_back = true;
                self.may_begin_again = !self.is_resumed;
            }
            self.tell_protocol();
            self.end_parity();
        }
    }

    fn tell_protocol(&mut self) {
        self.tell(Command::Protocol {
            protocol: self.plan.protocol,
            may_begin_again: self.may_begin_again,
        });
    }

    /// Images of single ranks are no wave, even with equal numbers.
    fn waves_again(&mut self) {
        let former = self.plan.protocol.with_waves();
        let Some(protocol) = former.filter(|_| self.may_begin_again) else {
            return;
        };
        self.drop_surveys(&Why::NoWaves, |_| true);
        self.plan.protocol = protocol;
        (self.may_come_back, self.may_begin_again) = (false, false);
        self.tell_protocol();
        self.forget_copies(0, |_| false);
        self.collect_files(0, |_| true);
        self.count_on();
    }

    /// The reason for giving up waves has gone, and ranks go on. What they have alone is no wave, but a rank that fails
    /// begins from it while there is none.
    fn waves_back(&mut self) {
        let former = self.plan.protocol.with_waves();
        if let Some(protocol) = former.filter(|_| self.may_come_back) {
            (self.may_come_back, self.may_begin_again) = (false, false);
            self.waves_come(protocol);
        }
    }

    /// Where ranks have images alone, and nobody can bring their logs back, a suspension has a wave. Not where ranks have
    /// been spawned: they do not begin with the others.
    fn waves_to_suspend(&mut self) {
        let has_spawned = self.ranks.len() > self.plan.units.ranks();
        let with_waves = self.plan.protocol.with_waves().filter(|_| !has_spawned);
        if let Some(protocol) = with_waves {
            self.without_waves = Some(self.plan.protocol);
            self.waves_come(protocol);
        }
    }

    /// Ranks run, and have waves from now on.
    fn waves_come(&mut self, protocol: Protocol) {
        self.drop_surveys(&Why::NoWaves, |_| true);
        for rank in 0..self.ranks.len() as Rank {
            if self.images(rank).taking.is_some() {
                let number = self.images(rank).asked;
                self.tell(Command::Abandon { rank, number });
                self.end_taking(rank, Why::NoWaves);
            }
        }
        self.plan.protocol = protocol;
        self.tell_protocol();
        self.count_on();
        for unit in &mut self.units {
            unit.alone = unit.asked;
        }
    }

    fn halt(&mut self) {
        (self.is_halted, self.all_begin) = (true, false);
        self.tell(Command::Halt);
        for unit in &mut self.units {
            (unit.returning, unit.reading, unit.fetching) = (None, None, None);
            (unit.leaves, unit.is_held) = (false, false);
        }
        for rank in 0..self.ranks.len() as Rank {
            self.kill(rank);
        }
    }

    fn go_on_after_halt(&mut self, together: bool) {
        self.is_halted = false;
        self.tell(Command::GoOn);
        if let Some(protocol) = self.plan.protocol.with_waves().filter(|_| together) {
            // What it goes on from is a wave of its suspension.
            self.without_waves = Some(self.plan.protocol);
            self.plan.protocol = protocol;
            self.tell_protocol();
        }
        // The nodes' memory is empty; the logs that the wave needs are beside its images.
        self.nodes.logs_lost |= together && self.plan.protocol.logs();
        if together || self.nodes.logs_lost || !self.plan.protocol.logs() || self.is_hierarchical() {
            for unit in 0..self.units.len() {
                let mut members = self.units[unit].members.iter();
                // A wholly finished unit is not needed any more.
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

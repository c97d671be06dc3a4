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
mod nodes;
mod returns;
mod state;
#[cfg(test)]
mod tests;
mod waves;
mod words;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::group::{Groups, Turn};
use crate::kinds::{Protocol, Waves};
use crate::{Node, Rank};
pub use state::{Former, From, Place};
use state::{Images, Member, Nodes, Process, Unit};
pub use words::{Cause, Why};

/// Complete files of a rank that stay.
pub const KEPT: usize = 2;

/// What the job wants; it does not change but for the protocol, see [`Fact::OnlyLogs`].
#[derive(Debug, Clone)]
pub struct Plan {
    pub protocol: Protocol,
    /// The ranks that have their waves together.
    pub units: Groups,
    /// Images are written into files.
    pub files: bool,
    /// With several nodes an image counts when another node has its file, too: [`Command::Replicate`].
    pub partners: bool,
    /// Copies sleep on when they have been written.
    pub local_copies: bool,
    /// Most groups that write their images at the same time.
    pub groups_at_once: u32,
}

/// What a rank does when an image of it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is inside MPI, and repeats nothing.
    Live,
    NotOpened,
    Closed,
    Repeats,
    /// It runs, and its memory is not all there.
    Filling,
    /// Its last images are still being written down.
    Writing,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The job begins.
    Launched,
    /// So many ranks are new.
    Spawned {
        ranks: usize,
    },
    /// Images of a unit are wanted; where ranks have them alone it is a rank. `states` and `held`, the bytes that they hold, are of its
    /// ranks; `groups` are those of the next wave, where there are some.
    Wanted {
        unit: usize,
        states: Vec<State>,
        held: u64,
        groups: Option<Groups>,
    },
    /// All threads of the rank stand still. `accounted`: it is not in the middle of a command to the process manager.
    Stopped {
        rank: Rank,
        number: u64,
        accounted: bool,
    },
    /// It holds back what must not pass.
    Noticed {
        rank: Rank,
        turn: Turn,
    },
    /// Its channels are empty, after it has taken so much from them.
    Drained {
        rank: Rank,
        number: u64,
        moved: u64,
    },
    /// Its copy exists, which can be woken if it `sleeps`, and otherwise writes a file and ends. It stood still for so long.
    Copied {
        rank: Rank,
        number: u64,
        sleeps: bool,
        stood: Duration,
    },
    /// It cannot be copied, or cannot hold back what must not pass.
    Refused {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// What was in transit in this wave is known, or cannot be.
    TransitKnown {
        number: u64,
    },
    TransitLost {
        number: u64,
        reason: String,
    },
    TransitNotWritten {
        number: u64,
        reason: String,
    },
    /// The file of the image is complete, and on the disk of the rank's node.
    Written {
        rank: Rank,
        number: u64,
    },
    /// The complete file can be read there, too.
    Stored {
        rank: Rank,
        number: u64,
        place: Place,
    },
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// The copy has gone. `stored`: all of its file is there.
    CopyLost {
        rank: Rank,
        number: u64,
        stored: bool,
    },
    /// The file cannot be used where the rank has just been told to read it.
    FileLost {
        rank: Rank,
        number: u64,
    },
    /// The process of the life is known.
    Started {
        rank: Rank,
        life: u64,
    },
    /// The life will have no process, or it could not be made what the image says.
    NotBegun {
        rank: Rank,
        life: u64,
    },
    /// It is as it was at the wave, and waits for the others.
    Ready {
        rank: Rank,
        life: u64,
    },
    /// Its process has ended, as programs should or not.
    Ended {
        rank: Rank,
        life: u64,
        orderly: bool,
    },
    /// The node is there: so many ranks have room on it. `spare`: it is kept for ranks whose nodes are lost.
    Up {
        node: Node,
        slots: u32,
        spare: bool,
    },
    /// The node is lost, with its processes, copies, and what is on its disk. Nothing that comes from there is told any more.
    Down {
        node: Node,
    },
    /// Before the job begins, or goes on: the node of each rank.
    Placed {
        nodes: Vec<Node>,
    },
    /// A rank that has failed begins again alone.
    Restart {
        rank: Rank,
    },
    /// A rank has failed, and its unit returns.
    Return {
        rank: Rank,
    },
    /// There are to be no waves any more, and images of single ranks.
    OnlyLogs,
    /// There are waves again, and none so far.
    WavesAgain,
    /// All processes are to end, as the job is being suspended.
    Halt,
    /// The job goes on after that, or is resumed: `together` from a wave, although there are logs.
    GoOn {
        together: bool,
    },
    /// The time [`Coordinator::due`] has come.
    Due,
}

/// How an image is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Of one rank alone.
    Alone,
    /// In a wave for which ranks stand still together.
    Together,
    /// In a wave that stops nobody.
    Passing,
}

/// What is to be done, or told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The ranks see how far waves have come.
    Waves {
        asked: u64,
        over: u64,
    },
    /// The ranks see their groups in the next wave.
    Groups(Groups),
    /// The ranks see whose turn it is; with group 0 that the wave is over, and what has been deferred leaves.
    Turn(Turn),
    /// The rank is asked for an image.
    Ask {
        rank: Rank,
        number: u64,
        manner: Manner,
    },
    /// The rank is made to hold back what must not pass.
    Notice {
        rank: Rank,
        turn: Turn,
    },
    /// The rank takes what its channels hold.
    Drain {
        rank: Rank,
        number: u64,
    },
    /// The rank copies itself and goes on.
    Copy {
        rank: Rank,
        number: u64,
    },
    /// The rank goes on, without an image.
    Abandon {
        rank: Rank,
        number: u64,
    },
    /// What was in transit in the wave is taken out of the logs, read from its file, put into the logs, written into its file.
    TakeTransit {
        number: u64,
    },
    ReadTransit {
        number: u64,
    },
    PutTransit {
        number: u64,
    },
    WriteTransit {
        number: u64,
    },
    /// What was in transit in earlier waves is not needed in memory any more; files of other waves than these are not.
    ForgetTransit {
        before: u64,
    },
    CollectTransit {
        keep: Vec<u64>,
    },
    /// The copy ends.
    EndCopy {
        rank: Rank,
        number: u64,
    },
    /// The copy writes its file.
    Write {
        rank: Rank,
        number: u64,
    },
    /// The rank's node sends the file to another one, which says when it has all of it.
    Replicate {
        rank: Rank,
        number: u64,
        to: Node,
    },
    /// The file that was to be written is not any more, and goes where it is complete; on all nodes.
    GiveUp {
        rank: Rank,
        number: u64,
    },
    /// The file is not needed any more, on any node.
    Collect {
        rank: Rank,
        number: u64,
    },
    /// No life of the rank begins before this image any more.
    Forget {
        rank: Rank,
        before: u64,
    },
    /// The process of the life ends; one that is not known yet as soon as it is.
    Kill {
        rank: Rank,
        life: u64,
    },
    /// All that ranks share, and their talk with the process manager, begins anew.
    Reset,
    /// The logs inside the unit are emptied.
    CutInside {
        unit: usize,
    },
    /// The logs begin anew, empty.
    EmptyLogs,
    /// The rank gets a process on this node. `together`: it says when it is ready, and waits for [`Command::Go`]. `reads`: the node
    /// from which the file comes that it begins from, where that is another one.
    Begin {
        rank: Rank,
        life: u64,
        from: From,
        together: bool,
        node: Node,
        reads: Option<Node>,
    },
    Go {
        rank: Rank,
    },
    /// Told: the rank has an image alone.
    Taken {
        rank: Rank,
        number: u64,
        stood: Duration,
        sleeps: bool,
    },
    /// Told: there is no image, or wave, because of this rank.
    Dropped {
        rank: Rank,
        why: Why,
    },
    /// Told: the wave is complete.
    Complete {
        unit: usize,
        number: u64,
        total: Duration,
        longest: Duration,
        all: Duration,
        groups: Groups,
    },
    /// Told: the image will be in no file.
    NotWritten {
        rank: Rank,
        number: u64,
        reason: String,
    },
    /// Told: the ranks of the unit have returned to this wave; 0: to the beginning.
    Returned {
        unit: usize,
        wave: u64,
    },
    /// Told: these ranks have failed with their node. (Of others that were there the units return already.)
    Lost {
        node: Node,
        ranks: Vec<Rank>,
    },
    /// Told: the rank can begin from nowhere, and others go on.
    CannotRecoverAlone {
        rank: Rank,
    },
    /// Told: the job cannot go on.
    Fail(Cause),
}

/// See the head of this file.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    ranks: Vec<Member>,
    units: Vec<Unit>,
    nodes: Nodes,
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

    /// What would be needed to go on from files.
    pub fn former(&self, rank: Rank) -> Former {
        let member = &self.ranks[rank as usize];
        Former {
            asked: member.images.asked,
            begun: member.images.begun,
            files: member.images.files.clone(),
            finished: member.finished,
        }
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
            Fact::Wanted {
                unit,
                states,
                held,
                groups,
            } => match self.has_waves() {
                true => self.begin_wave(unit, &states, held, groups, now),
                false => self.begin_image(unit as Rank, states[0], held, now),
            },
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
            Fact::CopyLost { rank, number, stored } => self.copy_lost(rank, number, stored),
            Fact::Stored { rank, number, place } => self.stored(rank, number, place),
            Fact::FileLost { rank, number } => self.file_lost(rank, number),
            Fact::Started { rank, life } => self.started(rank, life),
            Fact::NotBegun { rank, life } => self.not_begun(rank, life),
            Fact::Ready { rank, life } => self.ready(rank, life),
            Fact::Ended { rank, life, orderly } => self.ended(rank, life, orderly),
            Fact::Up { node, slots, spare } => self.node_comes(node, slots, spare),
            Fact::Down { node } => self.lost(node),
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

    /// As it is now: see [`Fact::OnlyLogs`].
    pub fn protocol(&self) -> Protocol {
        self.plan.protocol
    }

    /// A life can begin from the copy: it is not part of a wave that is under way.
    pub fn counts(&self, rank: Rank, copy: u64) -> bool {
        self.ranks[rank as usize].images.copy == Some(copy)
    }

    /// The unit of `rank`.
    pub fn unit(&self, rank: Rank) -> usize {
        let has = |unit: &Unit| unit.members.binary_search(&rank).is_ok();
        self.units.iter().position(has).unwrap_or(0)
    }

    /// The ranks of a unit.
    pub fn members(&self, unit: usize) -> &[Rank] {
        &self.units[unit].members
    }

    /// Its unit returns to a wave: the ends of its processes are no failures.
    pub fn is_returning(&self, rank: Rank) -> bool {
        self.units[self.unit(rank)].returning.is_some()
    }

    /// Waves have been given up, and all begin again when a rank cannot recover alone.
    pub fn may_begin_again(&self) -> bool {
        self.may_begin_again
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
    fn is_hierarchical(&self) -> bool {
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
        self.may_begin_again = false;
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
        self.drop_wave(0, Why::NoWaves);
        if let Some(protocol) = self.plan.protocol.without_waves() {
            self.plan.protocol = protocol;
            self.may_begin_again = !self.is_resumed;
        }
    }

    /// Images of single ranks are no wave, also when they have the same number.
    fn waves_again(&mut self) {
        let Some(protocol) = self.plan.protocol.with_waves_again() else {
            return;
        };
        self.plan.protocol = protocol;
        self.may_begin_again = false;
        self.forget_copies(0, |_| false);
        self.collect_files(0, |_| true);
        self.count_on();
    }

    fn halt(&mut self) {
        self.is_halted = true;
        self.units.iter_mut().for_each(|unit| unit.returning = None);
        for rank in 0..self.ranks.len() as Rank {
            self.kill(rank);
        }
    }

    fn go_on_after_halt(&mut self, together: bool) {
        self.is_halted = false;
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

//! The coordinator's state: ranks, their images, and the units that have waves together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::group::Writing;
use crate::{Node, Rank, Return, Wave};

/// What a life begins from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum From {
    /// The beginning of its program.
    Beginning,
    Copy(u64),
    File(u64),
}

impl From {
    /// The image's number; 0: the beginning.
    pub fn number(self) -> u64 {
        match self {
            From::Beginning => 0,
            From::Copy(number) | From::File(number) => number,
        }
    }
}

/// The state of a rank when an image of it is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// It is inside MPI, and repeats nothing.
    Live,
    #[default]
    NotOpened,
    Closed,
    Repeats,
    /// It makes new messages, and has yet to print what a former life printed. In waves it counts as live.
    Behind,
    /// It runs, with parts of its memory missing.
    Filling,
    /// Its last images are still being recorded.
    Writing,
}

/// The nodes that are up, with their slots. A job without any such fact runs on one node, which is number 0.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub up: BTreeMap<Node, Slots>,
    /// Some node has been lost.
    pub lost: bool,
    /// Ranks' logs are lost, and not put back: no rank can recover alone.
    pub logs_lost: bool,
    /// Nodes that must have no ranks, and whether they have none.
    pub leaving: BTreeMap<Node, bool>,
}

#[derive(Debug)]
pub(super) struct Slots {
    pub count: u32,
    pub spare: bool,
    pub rack: Option<String>,
}

/// Where a file of an image can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Place {
    /// From each node, whichever others are lost.
    Everywhere,
    /// On this node's disk, while it is up.
    Node(Node),
}

/// The known state of a rank of a suspended job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Former {
    /// Images asked for so far.
    pub asked: u64,
    /// What came before some image is forgotten.
    pub begun: bool,
    /// Its complete files, the older one first.
    pub files: Vec<u64>,
    pub finished: bool,
    /// Where they can be read; those not listed can be read everywhere.
    pub places: BTreeMap<u64, BTreeSet<Place>>,
}

/// A set of images with parity, as the nodes of a resumed job have it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FormerSet {
    pub number: u64,
    pub set: u64,
    /// In the order that the pieces know.
    pub members: Vec<Rank>,
    /// Those that are there, and where.
    pub pieces: Vec<(u32, Node)>,
}

/// A part of a set that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    File(Rank, Node),
    Piece(u32, Node),
}

impl Source {
    pub fn node(self) -> Node {
        match self {
            Source::File(_, node) | Source::Piece(_, node) => node,
        }
    }
}

/// How far a set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Making {
    /// Files are being written, or the holder is at work for another set.
    Waits,
    /// The first holder gets the files.
    Gathers,
    /// It makes the pieces, and other holders get theirs.
    Encoding,
    /// All pieces were there.
    Made,
}

/// Images of a wave that are made anew from one another and from pieces of parity.
#[derive(Debug)]
pub(super) struct Set {
    pub number: u64,
    pub members: Vec<Rank>,
    /// The node of each piece.
    pub holders: Vec<Node>,
    /// The pieces that are there.
    pub pieces: BTreeMap<u32, Node>,
    pub step: Making,
    /// No file can be made from these alone: some are damaged.
    pub failed: BTreeSet<Source>,
}

#[derive(Debug, Default)]
pub(super) struct Sets {
    pub of: BTreeMap<u64, Set>,
    /// By number of the images and member.
    by_member: BTreeMap<(u64, Rank), BTreeSet<u64>>,
    /// The number of the last one.
    pub last: u64,
    /// Why a node has no piece.
    pub reason: Option<String>,
    /// Nodes have come or gone.
    pub look_again: bool,
}

impl Sets {
    pub fn insert(&mut self, id: u64, set: Set) {
        for rank in &set.members {
            self.by_member.entry((set.number, *rank)).or_default().insert(id);
        }
        self.of.insert(id, set);
    }

    pub fn remove(&mut self, id: u64) -> Option<Set> {
        let set = self.of.remove(&id)?;
        for rank in &set.members {
            if let Entry::Occupied(mut entry) = self.by_member.entry((set.number, *rank)) {
                entry.get_mut().remove(&id);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        Some(set)
    }

    /// Those with the image of this number of this rank.
    pub fn with(&self, number: u64, rank: Rank) -> impl Iterator<Item = (u64, &Set)> {
        let ids = self.by_member.get(&(number, rank)).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.of.get(id)?)))
    }
}

/// A file on its way from its set.
#[derive(Debug)]
pub(super) struct Rebuilding {
    pub set: u64,
    pub sources: BTreeSet<Source>,
    /// A node of these is lost.
    pub is_stale: bool,
}

/// The present life of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Process {
    #[default]
    None,
    /// It is ordered, and its process is unknown.
    Asked,
    Known,
}

#[derive(Debug, Default)]
pub(super) struct Member {
    pub life: u64,
    pub process: Process,
    /// Where it runs, or did last.
    pub node: Node,
    /// The last life has ended as programs should.
    pub finished: bool,
    /// Its process is ended so that its next life begins on another node.
    pub moves: bool,
    pub images: Images,
}

impl Member {
    /// It has a process, or will have one.
    pub fn is_alive(&self) -> bool {
        self.process != Process::None
    }
}

/// Images of one rank over all its lives, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// The last image asked for.
    pub asked: u64,
    /// Images up to this one are older than the request to leave the node.
    pub stale: u64,
    /// The present life is taking image `asked`; when to stop waiting for its answer.
    pub taking: Option<Duration>,
    /// The newest copy that can be woken.
    pub copy: Option<u64>,
    /// A copy that can only write: it counts when its file is complete.
    pub writer: Option<u64>,
    /// Part of a wave that is not complete.
    pub candidate: Option<u64>,
    /// Files that are complete, the older one first.
    pub files: Vec<u64>,
    /// A file that is being written, or sent to other nodes: it does not count yet.
    pub writing: Option<u64>,
    /// Where these can be read; those not listed can be read everywhere.
    pub places: BTreeMap<u64, BTreeSet<Place>>,
    /// Of these, the node that sends it to another one, and that one.
    pub going: BTreeMap<u64, (Node, Node)>,
    /// Nodes that do not take a file, or have damaged it.
    pub refused: BTreeSet<(u64, Node)>,
    /// The file that the present life begins from, and the place where it reads it.
    pub reads: Option<(u64, Place)>,
    /// What came before some image may be forgotten.
    pub begun: bool,
}

impl Images {
    pub fn resumed(former: Former) -> Images {
        Images {
            asked: former.asked,
            // A changed program must not start from its beginning where its image cannot be used.
            begun: former.begun || !former.files.is_empty(),
            files: former.files,
            places: former.places,
            ..Images::default()
        }
    }

    /// The file has come there from elsewhere, and counts.
    pub fn has_come(&mut self, number: u64, place: Place) {
        if !self.has_file(number) {
            self.files.push(number);
            self.files.sort_unstable();
        }
        self.is_at(number, place);
    }

    /// All of the file can be read there.
    pub fn is_at(&mut self, number: u64, place: Place) {
        let Images {
            files,
            writing,
            places,
            going,
            refused,
            ..
        } = self;
        let is_known = |known: &u64| files.contains(known) || *writing == Some(*known);
        places.retain(|known, _| is_known(known));
        going.retain(|known, _| is_known(known));
        refused.retain(|(known, _)| is_known(known));
        places.entry(number).or_default().insert(place);
    }

    /// Everything on the node is gone; files that are nowhere else no longer exist.
    pub fn is_nowhere_on(&mut self, node: Node) {
        self.going.retain(|_, (from, to)| *from != node && *to != node);
        self.refused.retain(|(_, refused)| *refused != node);
        let places = &mut self.places;
        for places in places.values_mut() {
            places.remove(&Place::Node(node));
        }
        self.files
            .retain(|number| places.get(number).is_none_or(|places| !places.is_empty()));
    }

    /// The oldest image, also of those that do not count yet.
    pub fn oldest(&self) -> Option<u64> {
        let reads = self.reads.map(|(number, _)| number);
        let others = [self.copy, self.writer, self.candidate, self.writing, reads];
        self.files.iter().copied().chain(others.into_iter().flatten()).min()
    }

    pub fn has_file(&self, number: u64) -> bool {
        self.files.contains(&number)
    }

    /// A life can begin from image `number`.
    pub fn has(&self, number: u64) -> bool {
        self.copy == Some(number) || self.has_file(number)
    }

    /// The start of the next life: the copy, or the newest file if that is newer or there is no copy, or else the
    /// beginning. None: there is none, because what came before the lost images is forgotten.
    pub fn choose(&self) -> Option<From> {
        let in_file = self.files.last().copied();
        match self.copy {
            Some(number) if in_file.is_none_or(|file| number >= file) => Some(From::Copy(number)),
            _ => match in_file {
                Some(number) => Some(From::File(number)),
                None => (!self.begun).then_some(From::Beginning),
            },
        }
    }
}

/// A rank's state, the bytes that it holds, and its messages to each rank.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub state: State,
    pub held: u64,
    pub sent: Vec<u64>,
}

/// A survey without answers of all its ranks.
#[derive(Debug)]
pub(super) struct Survey {
    pub number: u64,
    pub unit: usize,
    pub ranks: Vec<Rank>,
    /// By the places of the ranks.
    pub found: Vec<Option<Found>>,
}

/// How long ranks may be silent about an image that is being taken. Ranks stop within milliseconds, or refuse after 2
/// s.
pub(super) const LEAST: Duration = Duration::from_secs(10);
/// The additional time for each GiB that the ranks hold: a fork takes some 20 ms.
const FOR_EACH_GIB: Duration = Duration::from_millis(100);

/// How long ranks that hold so many bytes may be silent while images are taken of them.
pub(super) fn patience_for(held: u64) -> Duration {
    LEAST + FOR_EACH_GIB * u32::try_from(held >> 30).unwrap_or(u32::MAX / 100)
}

/// A wave that is under way.
#[derive(Debug)]
pub(super) struct Current {
    pub wave: Wave,
    /// Groups were to be formed by communication, and it was global.
    pub is_global: bool,
    pub began: Duration,
    /// When a rank last reported on it.
    pub heard: Duration,
    pub patience: Duration,
    /// Of the rank that stood still for longest, and of all.
    pub longest: Duration,
    pub all: Duration,
}

/// What is known of places beyond the nodes.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    /// Waves that are whole in some place.
    pub waves: BTreeSet<u64>,
    /// Waves that cannot be read there, or that the job does not go on from any more.
    pub bad: BTreeSet<u64>,
    /// Images that have come from there.
    pub fetched: BTreeSet<(Rank, u64)>,
}

/// A wave whose images come from sets or places, and the ranks whose are not there yet.
#[derive(Debug)]
pub(super) struct Fetching {
    pub wave: u64,
    pub missing: BTreeSet<Rank>,
    /// Of these, those that come from sets.
    pub rebuilding: BTreeMap<Rank, Rebuilding>,
}

/// The waves of a unit.
#[derive(Debug)]
pub(super) struct Unit {
    /// Its ranks, in order. [`Wave`], [`Return`] and [`Writing`] know them by their places here.
    pub members: Vec<Rank>,
    /// The last wave begun.
    pub asked: u64,
    /// Images up to this number are of ranks alone, and no waves.
    pub alone: u64,
    pub current: Option<Current>,
    pub returning: Option<Return>,
    /// The wave that the ranks return to, or did last; 0: the beginning.
    pub chosen: u64,
    /// They return to let some leave their nodes.
    pub leaves: bool,
    /// None of them begins before the images of leaving ranks are elsewhere.
    pub is_held: bool,
    /// Images come from sets or places.
    pub fetching: Option<Fetching>,
    /// The transit of this wave is being read.
    pub reading: Option<u64>,
    /// Groups of the last complete wave write their images one after the other.
    pub writing: Option<Writing>,
}

impl Unit {
    pub fn new(members: Vec<Rank>) -> Unit {
        Unit {
            members,
            asked: 0,
            alone: 0,
            current: None,
            returning: None,
            chosen: 0,
            leaves: false,
            is_held: false,
            fetching: None,
            reading: None,
            writing: None,
        }
    }

    /// The place of `rank`.
    pub fn place(&self, rank: Rank) -> u32 {
        self.members.binary_search(&rank).unwrap_or(0) as u32
    }

    /// When ranks count as silent about the current wave.
    pub fn silent_at(&self) -> Duration {
        let current = self.current.as_ref();
        current.map_or(Duration::MAX, |current| current.heard + current.patience)
    }
}

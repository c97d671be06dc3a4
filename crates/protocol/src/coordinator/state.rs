//! What the coordinator knows of ranks, their images, and the units that have waves together.

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
    /// Of the image; 0: the beginning.
    pub fn number(self) -> u64 {
        match self {
            From::Beginning => 0,
            From::Copy(number) | From::File(number) => number,
        }
    }
}

/// What a rank does when an image of it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

/// The nodes that are up, with their slots. A job that has never been told of any runs on one, which is number 0.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub up: BTreeMap<Node, Slots>,
    /// Some node has been lost.
    pub lost: bool,
    /// What its ranks had logged is lost, too, and has not been put back: nobody can recover alone.
    pub logs_lost: bool,
    /// Those that are to have no ranks, and whether they have none.
    pub leaving: BTreeMap<Node, bool>,
}

#[derive(Debug)]
pub(super) struct Slots {
    pub count: u32,
    pub spare: bool,
}

/// Where a file of an image can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Place {
    /// From each node, whatever becomes of others.
    Everywhere,
    /// On this one's disk, as long as it is up.
    Node(Node),
}

/// What is known of a rank of a job that was suspended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Former {
    /// Images asked for so far.
    pub asked: u64,
    /// What came before some image has been forgotten.
    pub begun: bool,
    /// Its complete files, the older one first.
    pub files: Vec<u64>,
    pub finished: bool,
    /// Where they can be read; what is not here can be read everywhere.
    pub places: BTreeMap<u64, BTreeSet<Place>>,
}

/// The present life of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Process {
    #[default]
    None,
    /// It has been asked for, and its process is not known.
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
    pub images: Images,
}

impl Member {
    /// There is a process, or will be.
    pub fn is_alive(&self) -> bool {
        self.process != Process::None
    }
}

/// Images of one rank over all its lives, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// The last that has been asked for.
    pub asked: u64,
    /// The present life is taking image `asked`; until when an answer is waited for.
    pub taking: Option<Duration>,
    /// The newest copy that can be woken.
    pub copy: Option<u64>,
    /// A copy that can do nothing but write: it counts when its file is complete.
    pub writer: Option<u64>,
    /// Part of a wave that is not complete.
    pub candidate: Option<u64>,
    /// Files that are complete, the older one first.
    pub files: Vec<u64>,
    /// A file that is being written, or sent to a partner: it does not count yet.
    pub writing: Option<u64>,
    /// Where these can be read; what is not here can be read everywhere.
    pub places: BTreeMap<u64, BTreeSet<Place>>,
    /// The file that the present life begins from, and where it is read.
    pub reads: Option<(u64, Place)>,
    /// What came before some image may have been forgotten.
    pub begun: bool,
}

impl Images {
    pub fn resumed(former: Former) -> Images {
        Images {
            asked: former.asked,
            // A program that has been changed must not begin again where its image cannot be used.
            begun: former.begun || !former.files.is_empty(),
            files: former.files,
            places: former.places,
            ..Images::default()
        }
    }

    /// All of the file can be read there.
    pub fn is_at(&mut self, number: u64, place: Place) {
        let Images {
            files, writing, places, ..
        } = self;
        places.retain(|known, _| files.contains(known) || *writing == Some(*known));
        places.entry(number).or_default().insert(place);
    }

    /// What was on the node is gone; files that are nowhere else are none any more.
    pub fn is_nowhere_on(&mut self, node: Node) {
        let places = &mut self.places;
        for places in places.values_mut() {
            places.remove(&Place::Node(node));
        }
        self.files
            .retain(|number| places.get(number).is_none_or(|places| !places.is_empty()));
    }

    pub fn has_file(&self, number: u64) -> bool {
        self.files.contains(&number)
    }

    /// A life can begin from image `number`.
    pub fn has(&self, number: u64) -> bool {
        self.copy == Some(number) || self.has_file(number)
    }

    /// What the next life begins from: the copy, or the newest file if that is newer or there is none, or else the beginning. None:
    /// from nowhere, as what came before the lost images is forgotten.
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

/// What a rank does, the bytes that it holds, and the messages that it has sent to each rank.
#[derive(Debug)]
pub(super) struct Found {
    pub state: State,
    pub held: u64,
    pub sent: Vec<u64>,
}

/// A question that has not been answered for all its ranks.
#[derive(Debug)]
pub(super) struct Survey {
    pub number: u64,
    pub unit: usize,
    pub ranks: Vec<Rank>,
    /// By the places of the ranks.
    pub found: Vec<Option<Found>>,
}

/// How long nobody may say anything about an image that is being taken. Ranks stop within milliseconds, or refuse after 2 s.
pub(super) const LEAST: Duration = Duration::from_secs(10);
/// What comes to that for each GiB that the ranks hold: a fork takes some 20 ms.
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
    /// When a rank has last said something about it.
    pub heard: Duration,
    pub patience: Duration,
    /// Of the rank that stood still for longest, and of all.
    pub longest: Duration,
    pub all: Duration,
}

/// The waves of a unit.
#[derive(Debug)]
pub(super) struct Unit {
    /// Its ranks, in order. [`Wave`], [`Return`] and [`Writing`] know them by their places here.
    pub members: Vec<Rank>,
    /// The last wave that has been begun.
    pub asked: u64,
    pub current: Option<Current>,
    pub returning: Option<Return>,
    /// The wave that the ranks return to, or did last; 0: the beginning.
    pub chosen: u64,
    /// They return so that some can leave their nodes.
    pub leaves: bool,
    /// None of them begins before images of those that leave are elsewhere.
    pub is_held: bool,
    /// What was in transit in this wave is being read.
    pub reading: Option<u64>,
    /// Groups of the last complete wave write their images one after the other.
    pub writing: Option<Writing>,
}

impl Unit {
    pub fn new(members: Vec<Rank>) -> Unit {
        Unit {
            members,
            asked: 0,
            current: None,
            returning: None,
            chosen: 0,
            leaves: false,
            is_held: false,
            reading: None,
            writing: None,
        }
    }

    /// The place of `rank`.
    pub fn place(&self, rank: Rank) -> u32 {
        self.members.binary_search(&rank).unwrap_or(0) as u32
    }

    /// When nobody has said anything about the current wave for too long.
    pub fn silent_at(&self) -> Duration {
        let current = self.current.as_ref();
        current.map_or(Duration::MAX, |current| current.heard + current.patience)
    }
}

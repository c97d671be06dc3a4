//! Sets of images with parity, and where their pieces are.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_protocol::Rank;
use resurgo_protocol::placement::Parity;

pub(super) type Image = (Rank, u64);
/// A node, and the serial of its life.
pub(super) type Alive = (usize, u64);
/// An image or a piece, and its place.
pub(super) type Source = (Option<Rank>, u32, Alive);

/// A set, as the dispatcher has ordered it.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub number: u64,
    pub members: Vec<Rank>,
    pub holders: Vec<usize>,
    /// The holders whose pieces it knows; all of them were there at some time.
    pub known: BTreeMap<u32, Alive>,
    pub made: bool,
    /// These do not make a lost image, as it has learned.
    pub failed: BTreeSet<Source>,
    /// When it ordered to forget it.
    pub collected: Option<u64>,
}

/// All sets of a job.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// None: images have no parity.
    pub rule: Option<Parity>,
    pub of: BTreeMap<u64, Set>,
    /// Pieces that are on nodes, and those that cannot be read there.
    pub pieces: BTreeMap<(u64, u32), Alive>,
    pub damaged: BTreeSet<(u64, u32)>,
    /// Of each rank, the set from which its image comes, and the nodes that give something.
    pub coming: BTreeMap<Rank, (u64, BTreeSet<Source>)>,
}

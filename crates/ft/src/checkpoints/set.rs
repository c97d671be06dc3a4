//! A checkpoint as one rank has it.

use std::collections::BTreeMap;
use std::ffi::c_int;

use resurgo_parity::{GRAIN, Shape};
use resurgo_protocol::diskless::{Has, Id, Layout, Scheme};

/// Parity is computed of so many bytes of each shard at a time.
pub const BLOCK: usize = 1 << 20;

/// The regions of all places, once they have been looked for.
#[derive(Clone, Default)]
pub struct Directory {
    /// The rank that has the data of each place.
    pub keepers: Vec<usize>,
    /// This rank, and the communicator that these numbers are of.
    pub own: usize,
    pub context: Option<u32>,
    /// By id and place: where it begins, and its size.
    pub regions: BTreeMap<(c_int, usize), (usize, usize)>,
}

pub struct Set {
    pub id: Id,
    pub version: c_int,
    pub layout: Layout,
    /// The place that this rank had then.
    pub origin: Option<usize>,
    /// The place that it stands for now.
    pub place: Option<usize>,
    /// The ranks of the places, as the program counted them then.
    pub labels: Vec<c_int>,
    /// The length of the data of each place.
    pub lengths: Vec<usize>,
    /// The data of places.
    pub whole: BTreeMap<usize, Vec<u8>>,
    /// Pieces of parity, by their index.
    pub pieces: Vec<Vec<u8>>,
    pub directory: Directory,
}

impl Set {
    /// The length of the shards of the set of this place.
    pub fn shard(&self, place: usize) -> usize {
        shard(self.layout, &self.lengths, place)
    }

    /// The length of the data of a place, with what is missing to a number of whole shards.
    pub fn padded(&self, place: usize) -> usize {
        padded(self.layout, &self.lengths, place)
    }

    pub fn shape(&self, place: usize) -> Option<Shape> {
        Shape::new(self.layout.shards(self.layout.set(place).len()), self.layout.losses)
    }

    pub fn has(&self) -> Has {
        Has {
            origin: self.origin,
            place: self.place,
            whole: self.whole.keys().copied().collect(),
        }
    }

    /// The memory of it all.
    pub fn into_buffers(self) -> Vec<Vec<u8>> {
        self.whole.into_values().chain(self.pieces).collect()
    }

    /// The place whose region of this id a rank means: of this rank's number then; if any will do, its own, or else the
    /// first that has one.
    pub fn find(&self, label: Option<c_int>, id: c_int) -> Option<usize> {
        let has = |place: &usize| self.directory.regions.contains_key(&(id, *place));
        match label {
            Some(label) => self.labels.iter().position(|known| *known == label).filter(has),
            None => self.place.filter(has).or_else(|| {
                let mut all = self.directory.regions.range((id, 0)..=(id, usize::MAX));
                all.next().map(|((_, place), _)| *place)
            }),
        }
    }
}

fn shard(layout: Layout, lengths: &[usize], place: usize) -> usize {
    let set = layout.set(place);
    let longest = set.iter().map(|place| lengths[*place]).max().unwrap_or(0);
    longest.div_ceil(layout.shards(set.len())).next_multiple_of(GRAIN)
}

pub fn padded(layout: Layout, lengths: &[usize], place: usize) -> usize {
    match layout.scheme == Scheme::Parity && layout.losses > 0 {
        true => shard(layout, lengths, place) * layout.shards(layout.set(place).len()),
        false => lengths[place],
    }
}

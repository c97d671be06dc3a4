//! Checkpoints in the memory of ranks ("diskless": Plank, Li, Puening 1998): who keeps copies or parity of whom, which
//! checkpoint counts after a failure, and how lost parts of it are made whole again.
//!
//! A *place* is a rank of the communicator that the checkpoint was made on. Ranks of another communicator, after a
//! failure, stand for places; or they are newcomers.
//!
//! A checkpoint counts for a rank that knows that all have it whole; then the rank drops the one before. Until then it
//! keeps both. So of those that live either all have the new one whole, or all have the one before.

use std::collections::BTreeSet;

/// Sets of parity have so many members with data, about.
const DATA_OF_A_SET: usize = 8;

/// What makes up for lost data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Whole copies at other ranks.
    Partner,
    /// Members of a set keep parity of one another.
    Parity,
}

impl Scheme {
    pub fn number(self) -> u64 {
        match self {
            Scheme::Partner => 0,
            Scheme::Parity => 1,
        }
    }

    pub fn of_number(number: u64) -> Option<Scheme> {
        [Scheme::Partner, Scheme::Parity]
            .into_iter()
            .find(|scheme| scheme.number() == number)
    }
}

/// Who keeps what of whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub places: usize,
    pub scheme: Scheme,
    /// So many may be lost at once: of all, or of each set of parity.
    pub losses: usize,
}

/// Some of the data of a stripe: a shard, or a piece of parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Of the data of this place.
    Shard { index: usize, place: usize },
    /// That the rank keeps which had this place.
    Piece { index: usize, place: usize },
}

impl Layout {
    /// With few places it covers fewer losses.
    pub fn new(places: usize, scheme: Scheme, losses: usize) -> Layout {
        let mut layout = Layout {
            places,
            scheme,
            losses: losses.min(places.saturating_sub(1)),
        };
        if scheme == Scheme::Parity {
            let smallest = places / layout.sets();
            layout.losses = layout.losses.min(smallest.saturating_sub(1));
        }
        layout
    }

    /// The places whose ranks have copies of the data of this one. The first is half of all ranks away, so on another
    /// node where ranks are placed in blocks.
    pub fn partners(self, place: usize) -> impl Iterator<Item = usize> {
        let copies = if self.scheme == Scheme::Partner { self.losses } else { 0 };
        (1..=copies).map(move |copy| (place + copy * self.places / (copies + 1)) % self.places)
    }

    /// The places whose data this one has copies of.
    pub fn copied(self, place: usize) -> impl Iterator<Item = usize> {
        let copies = if self.scheme == Scheme::Partner { self.losses } else { 0 };
        (1..=copies).map(move |copy| (place + self.places - copy * self.places / (copies + 1)) % self.places)
    }

    fn sets(self) -> usize {
        self.places.div_ceil(DATA_OF_A_SET + self.losses).max(1)
    }

    /// The set of a place: neighbours, which may be on one node, are in different ones.
    pub fn set(self, place: usize) -> Vec<usize> {
        let sets = self.sets();
        (place % sets..self.places).step_by(sets).collect()
    }

    /// How many shards a stripe of a set with so many members has; the others keep its pieces.
    pub fn shards(self, members: usize) -> usize {
        members - self.losses
    }

    /// The stripe in which a member keeps its shard of this index. (Members and stripes have the same numbers, as each
    /// member computes the parity of one.)
    pub fn stripe(self, members: usize, member: usize, shard: usize) -> usize {
        (member + 2 * members - self.losses - shard) % members
    }

    /// The member whose shard of this index is in a stripe.
    pub fn member_of_shard(self, members: usize, stripe: usize, shard: usize) -> usize {
        (stripe + self.losses + shard) % members
    }

    /// The member that keeps this piece of a stripe. The first piece stays with the one that has computed it.
    pub fn member_of_piece(self, members: usize, stripe: usize, piece: usize) -> usize {
        (stripe + piece) % members
    }
}

/// A checkpoint's number, and a hash of the ranks that it was made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub number: u64,
    pub of: u64,
}

/// The checkpoints that a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// It knows that all others have had it whole.
    pub counts: Option<Id>,
    /// It has this one whole.
    pub newer: Option<Id>,
    /// The last that it has begun. Whoever has one whole knows that all its members have begun it.
    pub begun: Option<Id>,
}

impl Kept {
    fn all(self) -> impl Iterator<Item = Id> {
        self.counts.into_iter().chain(self.newer)
    }

    pub fn has(self, id: Id) -> bool {
        self.all().any(|kept| kept == id)
    }
}

/// The checkpoint that counts for ranks which have these: the newest that no member lacks. A rank for which none has
/// counted is none, unless it has begun that one.
pub fn newest(all: &[Kept]) -> Option<Id> {
    let ids: BTreeSet<Id> = all.iter().copied().flat_map(Kept::all).collect();
    let is_newcomer = |kept: &Kept, id: Id| kept.counts.is_none() && kept.begun != Some(id);
    let have_all = |id: &Id| all.iter().all(|kept| is_newcomer(kept, *id) || kept.has(*id));
    let common = ids.into_iter().rev().find(have_all);
    // Some have another, which they have made without these.
    common.or_else(|| all.iter().filter_map(|kept| kept.counts).max())
}

/// The number of the next checkpoint.
pub fn next_number(all: &[Kept]) -> u64 {
    let numbers = all.iter().copied().flat_map(Kept::all).map(|id| id.number);
    numbers.max().unwrap_or(0) + 1
}

/// What a rank has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Has {
    /// The place that it had when the checkpoint was made: it keeps what that place does.
    pub origin: Option<usize>,
    /// The place that it stands for.
    pub place: Option<usize>,
    /// Places whose data it has whole.
    pub whole: BTreeSet<usize>,
}

/// How the data of a place gets to the rank that keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    IsThere,
    From(usize),
    /// For each of its shards the parts that make it up, with the ranks that have them.
    Decoded(Vec<Vec<(Part, usize)>>),
}

/// How a checkpoint is made whole again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// For each place the rank that keeps its data from now on.
    pub keepers: Vec<usize>,
    pub ways: Vec<Way>,
    /// For each rank the place that it stands for.
    pub places: Vec<Option<usize>>,
}

/// None: more is lost than the checkpoint covers.
pub fn plan(layout: Layout, all: &[Has]) -> Option<Plan> {
    let places = stand_for(layout, all);
    let mut keepers = Vec::new();
    let mut ways = Vec::new();
    for place in 0..layout.places {
        let keeper = keeper(layout, all, &places, place)?;
        keepers.push(keeper);
        ways.push(way(layout, all, place, keeper)?);
    }
    Some(Plan { keepers, ways, places })
}

/// With as many ranks as before each stands for the place of its own number. With fewer those that have a place keep it,
/// and newcomers stand for the first places that are free.
fn stand_for(layout: Layout, all: &[Has]) -> Vec<Option<usize>> {
    if all.len() == layout.places {
        return (0..layout.places).map(Some).collect();
    }
    let taken: BTreeSet<usize> = all.iter().filter_map(|has| has.place).collect();
    let mut free = (0..layout.places).filter(|place| !taken.contains(place));
    all.iter().map(|has| has.place.or_else(|| free.next())).collect()
}

/// The rank that stands for a place. Of others one that has its data, else the next.
fn keeper(layout: Layout, all: &[Has], places: &[Option<usize>], place: usize) -> Option<usize> {
    let stands = |wanted: usize| places.iter().position(|stands| *stands == Some(wanted));
    let has_copy = || all.iter().position(|has| has.whole.contains(&place));
    let next = || (1..layout.places).find_map(|step| stands((place + step) % layout.places));
    stands(place).or_else(has_copy).or_else(next)
}

/// The rank that has the data of a place: best the one that stands for it.
fn holder(all: &[Has], place: usize) -> Option<usize> {
    let has = |rank: &usize| all[*rank].whole.contains(&place);
    let stands = (0..all.len()).find(|rank| all[*rank].place == Some(place) && has(rank));
    stands.or_else(|| (0..all.len()).find(has))
}

fn way(layout: Layout, all: &[Has], place: usize, keeper: usize) -> Option<Way> {
    if all[keeper].whole.contains(&place) {
        return Some(Way::IsThere);
    }
    if let Some(rank) = holder(all, place) {
        return Some(Way::From(rank));
    }
    if layout.scheme != Scheme::Parity {
        return None;
    }
    let set = layout.set(place);
    let member = set.iter().position(|member| *member == place)?;
    let shards = layout.shards(set.len());
    let parts_of = |shard| {
        let stripe = layout.stripe(set.len(), member, shard);
        let others = (0..shards).filter(|index| *index != shard).filter_map(|index| {
            let place = set[layout.member_of_shard(set.len(), stripe, index)];
            Some((Part::Shard { index, place }, holder(all, place)?))
        });
        let pieces = (0..layout.losses).filter_map(|index| {
            let place = set[layout.member_of_piece(set.len(), stripe, index)];
            let rank = all.iter().position(|has| has.origin == Some(place))?;
            Some((Part::Piece { index, place }, rank))
        });
        let parts: Vec<_> = others.chain(pieces).take(shards).collect();
        (parts.len() == shards).then_some(parts)
    };
    let decoded: Option<Vec<_>> = (0..shards).map(parts_of).collect();
    decoded.map(Way::Decoded)
}

#[cfg(test)]
mod tests;

//! Finds the checkpoint that counts, makes it whole again, and gives its data to those that want it.

use std::collections::BTreeMap;
use std::ffi::c_int;

use resurgo_parity::Part as ParityPart;
use resurgo_protocol::diskless::{Has, Id, Layout, Part, Plan, Scheme, Way, newest, plan};

use super::calls::{Members, Move, Outcome};
use super::memory::{KEPT_WORDS, Memory, kept_of};
use super::region::{self, Region, Spare};
use super::set::{BLOCK, Directory, Set};
use crate::layer;
use crate::mpi::{ERR_ARG, ERR_OTHER, ERR_TRUNCATE};

pub enum Found {
    Nothing,
    /// More is lost than the checkpoint covers.
    Lost,
    Version(c_int),
}

pub fn find(members: Members, memory: &mut Memory) -> Outcome<Found> {
    let places = |set: &Option<Set>| set.as_ref().map_or(0, |set| set.labels.len() as u64);
    let words = [
        &memory.kept_words()[..],
        &[places(&memory.counts), places(&memory.newer)],
    ]
    .concat();
    let all = members.gather(&words)?;
    let each: Vec<&[u64]> = all.chunks(words.len()).collect();
    let kept: Vec<_> = each.iter().map(|words| kept_of(words)).collect();
    let Some(id) = newest(&kept) else {
        return Ok(Found::Nothing);
    };
    memory.settle(Some(id));
    let Some(root) = kept.iter().position(|kept| kept.has(id)) else {
        return Ok(Found::Nothing);
    };
    let count = each[root][KEPT_WORDS + usize::from(kept[root].counts != Some(id))];
    let set = describe(members, memory.counts.take(), id, root, count as usize)?;
    let set = memory.counts.insert(set);
    let has = set.has();
    let place = |place: Option<usize>| place.map_or(0, |place| place as u64 + 1);
    let own = [place(has.origin), place(has.place)].into_iter();
    let own: Vec<u64> = own.chain(has.whole.iter().map(|place| *place as u64)).collect();
    let all: Vec<Has> = members.gather_lists(&own)?.iter().map(|words| has_of(words)).collect();
    let Some(plan) = plan(set.layout, &all) else {
        return Ok(Found::Lost);
    };
    make_whole(members, set, &plan, &mut memory.spare)?;
    set.place = plan.places[members.own];
    set.directory = directory(members, set, &plan)?;
    members.agree(Ok(()))?;
    Ok(Found::Version(set.version))
}

fn has_of(words: &[u64]) -> Has {
    let place = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.checked_sub(1))
            .map(|place| place as usize)
    };
    Has {
        origin: place(0),
        place: place(1),
        whole: words.iter().skip(2).map(|place| *place as usize).collect(),
    }
}

/// All members get to know what the checkpoint is; newcomers have nothing of it.
fn describe(members: Members, set: Option<Set>, id: Id, root: usize, count: usize) -> Outcome<Set> {
    let mut words = vec![0; 3 + 2 * count];
    if let Some(set) = set.as_ref().filter(|_| root == members.own) {
        let head = [set.version as u64, set.layout.scheme.number(), set.layout.losses as u64];
        let labels = set.labels.iter().map(|label| *label as u64);
        let lengths = set.lengths.iter().map(|length| *length as u64);
        words = head.into_iter().chain(labels).chain(lengths).collect();
    }
    if let Err(class) = members.spread(&mut words, root) {
        return set.ok_or(class);
    }
    let (labels, lengths) = words[3..].split_at(count);
    Ok(set.unwrap_or_else(|| Set {
        id,
        version: words[0] as c_int,
        layout: Layout {
            places: count,
            scheme: Scheme::of_number(words[1]).unwrap_or(Scheme::Partner),
            losses: words[2] as usize,
        },
        origin: None,
        place: None,
        labels: labels.iter().map(|label| *label as c_int).collect(),
        lengths: lengths.iter().map(|length| *length as usize).collect(),
        whole: BTreeMap::new(),
        pieces: Vec::new(),
        directory: Directory::default(),
    }))
}

/// The data of each place gets to the rank that keeps it.
fn make_whole(members: Members, set: &mut Set, plan: &Plan, spare: &mut Spare) -> Outcome {
    let is_missing = |(_, way): &(usize, &Way)| **way != Way::IsThere;
    let missing: Vec<(usize, &Way)> = plan.ways.iter().enumerate().filter(is_missing).collect();
    let mut room = BTreeMap::new();
    let mut so_far = Ok(());
    for (place, _) in missing.iter().filter(|(place, _)| plan.keepers[*place] == members.own) {
        match spare.take(set.padded(*place)) {
            Ok(buffer) => drop(room.insert(*place, buffer)),
            Err(class) => so_far = Err(class),
        }
    }
    members.agree(so_far)?;
    copy(members, set, plan, &missing, &mut room)?;
    let longest = (0..set.layout.places).map(|place| set.shard(place)).max().unwrap_or(0);
    let shards = |way: &Way| {
        if let Way::Decoded(shards) = way {
            shards.len()
        } else {
            0
        }
    };
    let most = missing.iter().map(|(_, way)| shards(way)).max().unwrap_or(0);
    for index in 0..most {
        for start in (0..longest).step_by(BLOCK) {
            decode(members, set, plan, &missing, &mut room, (index, start))?;
        }
    }
    set.whole.extend(room);
    Ok(())
}

fn copy(
    members: Members,
    set: &Set,
    plan: &Plan,
    missing: &[(usize, &Way)],
    room: &mut BTreeMap<usize, Vec<u8>>,
) -> Outcome {
    let from = |(place, way): &(usize, &Way)| match way {
        Way::From(rank) => Some((*rank, plan.keepers[*place], *place)),
        _ => None,
    };
    let all: Vec<(usize, usize, usize)> = missing.iter().filter_map(from).collect();
    let rounds = Members::rounds(all.iter().map(|(from, to, place)| (*from, *to, set.padded(*place))));
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for (from, to, place) in all {
        let bytes = set.padded(place);
        if from == members.own {
            let at = set.whole.get(&place).map_or(0, |data| data.as_ptr() as usize);
            sends.push(Move { peer: to, at, bytes });
        }
        if let Some(buffer) = room.get_mut(&place).filter(|_| to == members.own) {
            let at = buffer.as_mut_ptr() as usize;
            receives.push(Move { peer: from, at, bytes });
        }
    }
    // SAFETY: data of places is so long.
    unsafe { members.deliver(rounds, &sends, &receives) }
}

/// Computes a block of the shard of this index, of all places that nobody has.
fn decode(
    members: Members,
    set: &Set,
    plan: &Plan,
    missing: &[(usize, &Way)],
    room: &mut BTreeMap<usize, Vec<u8>>,
    (index, start): (usize, usize),
) -> Outcome {
    let bytes = |place: usize| BLOCK.min(set.shard(place).saturating_sub(start));
    let parts = |(place, way): &(usize, &Way)| match way {
        Way::Decoded(shards) if bytes(*place) > 0 => Some((*place, shards.get(index)?.clone())),
        _ => None,
    };
    let all: Vec<(usize, Vec<(Part, usize)>)> = missing.iter().filter_map(parts).collect();
    let moves = all.iter().flat_map(|(place, parts)| {
        let to = plan.keepers[*place];
        parts.iter().map(move |(_, from)| (*from, to, bytes(*place)))
    });
    let rounds = Members::rounds(moves);
    let (mut sends, mut receives, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for (place, parts) in &all {
        let (bytes, to) = (bytes(*place), plan.keepers[*place]);
        for (part, from) in parts {
            if *from == members.own {
                let at = part_of(set, part).map_or(0, |part| part[start..].as_ptr() as usize);
                sends.push(Move { peer: to, at, bytes });
            }
            if to == members.own {
                let mut block = vec![0_u8; bytes];
                receives.push(Move {
                    peer: *from,
                    at: block.as_mut_ptr() as usize,
                    bytes,
                });
                let name = match *part {
                    Part::Shard { index, .. } => ParityPart::Shard(index),
                    Part::Piece { index, .. } => ParityPart::Piece(index),
                };
                blocks.push((*place, (name, block)));
            }
        }
    }
    // SAFETY: shards and pieces of a set have one length.
    unsafe { members.deliver(rounds, &sends, &receives)? };
    let mut so_far = Ok(());
    for (place, buffer) in room {
        let of_place = blocks
            .iter()
            .filter(|(of, _)| of == place)
            .map(|(_, block)| block.clone());
        let of_place: Vec<_> = of_place.collect();
        let made = set.shape(*place).map(|shape| shape.decode(index, &of_place));
        match made.filter(|_| !of_place.is_empty()) {
            Some(Ok(block)) => buffer[index * set.shard(*place) + start..][..block.len()].copy_from_slice(&block),
            Some(Err(_)) => so_far = Err(ERR_OTHER),
            None => {}
        }
    }
    members.agree(so_far)
}

fn part_of<'a>(set: &'a Set, part: &Part) -> Option<&'a [u8]> {
    match *part {
        Part::Shard { index, place } => {
            let shard = set.shard(place);
            set.whole.get(&place)?.get(index * shard..(index + 1) * shard)
        }
        Part::Piece { index, .. } => set.pieces.get(index).map(Vec::as_slice),
    }
}

/// The regions of all places, from those that keep them.
fn directory(members: Members, set: &Set, plan: &Plan) -> Outcome<Directory> {
    let mut own = Vec::new();
    for (place, data) in &set.whole {
        if plan.keepers[*place] == members.own {
            let regions = region::table(data);
            own.extend([*place as u64, regions.len() as u64]);
            for (id, start, bytes) in regions {
                own.extend([id as u64, start as u64, bytes as u64]);
            }
        }
    }
    let mut regions = BTreeMap::new();
    for words in members.gather_lists(&own)? {
        let mut words = words.into_iter().map(|word| word as usize);
        while let (Some(place), Some(count)) = (words.next(), words.next()) {
            for _ in 0..count {
                if let (Some(id), Some(start), Some(bytes)) = (words.next(), words.next(), words.next()) {
                    regions.insert((id as c_int, place), (start, bytes));
                }
            }
        }
    }
    Ok(Directory {
        keepers: plan.keepers.clone(),
        own: members.own,
        context: layer::context(members.comm),
        regions,
    })
}

/// What a rank wants: the region of this id, of the place with this number or of any, in its memory.
#[derive(Clone, Copy)]
pub struct Want {
    pub label: Option<c_int>,
    pub id: c_int,
    pub to: Region,
}

/// Gives each member what it wants, from those that keep it.
pub fn fetch(members: Members, set: Option<&Set>, wants: &[Want]) -> Outcome {
    let is_here = |set: &&Set| set.directory.context.is_some() && set.directory.context == layer::context(members.comm);
    let Some(set) = set.filter(is_here) else {
        return members.agree(Err(ERR_ARG));
    };
    let found = wants.iter().map(|want| {
        let place = set.find(want.label, want.id).ok_or(ERR_ARG)?;
        let (_, bytes) = set.directory.regions[&(want.id, place)];
        let is_as_long = want.to.bytes() == Some(bytes as u64);
        if is_as_long { Ok(place) } else { Err(ERR_TRUNCATE) }
    });
    let found: Outcome<Vec<usize>> = found.collect();
    members.agree(found.as_ref().map(drop).map_err(|class| *class))?;
    let own = found.unwrap_or_default().into_iter().zip(wants);
    let own: Vec<u64> = own.flat_map(|(place, want)| [place as u64, want.id as u64]).collect();
    let lists = members.gather_lists(&own)?;
    let all = lists.iter().enumerate().flat_map(|(to, list)| {
        list.chunks(2).filter_map(move |words| {
            let place = words[0] as usize;
            let (start, bytes) = set.directory.regions.get(&(words[1] as c_int, place))?;
            Some((set.directory.keepers[place], to, place, *start, *bytes))
        })
    });
    let all: Vec<_> = all.collect();
    let rounds = Members::rounds(all.iter().map(|(from, to, .., bytes)| (*from, *to, *bytes)));
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    let mut wants = wants.iter();
    let mut packed = Vec::new();
    for (from, to, place, start, bytes) in all {
        if from == members.own {
            let at = set.whole.get(&place).map_or(0, |data| data[start..].as_ptr() as usize);
            sends.push(Move { peer: to, at, bytes });
        }
        if let Some(want) = (to == members.own).then(|| wants.next()).flatten() {
            let mut at = want.to.address;
            if !want.to.is_dense() {
                let mut place = vec![0_u8; bytes];
                at = place.as_mut_ptr() as usize;
                packed.push((want.to, place));
            }
            receives.push(Move { peer: from, at, bytes });
        }
    }
    // SAFETY: the data of places, and the program's memory of the same sizes.
    let outcome = unsafe { members.deliver(rounds, &sends, &receives) };
    if outcome.is_ok() {
        packed.iter().for_each(|(to, place)| to.unpack(place));
    }
    members.agree(outcome)
}

//! Makes a checkpoint.

use std::collections::BTreeMap;
use std::ffi::c_int;

use resurgo_protocol::diskless::{Id, Layout, Scheme, newest, next_number};

use resurgo_wire::survivors::hash;

use super::calls::{Members, Move, Outcome};
use super::memory::{KEPT_WORDS, Memory, kept_of};
use super::region::{self, Spare};
use super::set::{BLOCK, Set, padded};
use crate::layer::{self, Known};
use crate::mpi::{ERR_ARG, ERR_OTHER};

/// A rank that covers more has less room for anything else.
const MOST_LOSSES: usize = 64;

/// What the program asks for. All members ask for the same.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub version: c_int,
    pub scheme: c_int,
    pub losses: c_int,
}

impl Wanted {
    fn words(self) -> [u64; 3] {
        [self.version as u64, self.scheme as u64, self.losses as u64]
    }

    fn layout(self, places: usize) -> Outcome<Layout> {
        let scheme = Scheme::of_number(self.scheme as u64).ok_or(ERR_ARG)?;
        let losses = usize::try_from(self.losses).map_err(|_| ERR_ARG)?;
        if losses > MOST_LOSSES {
            return Err(ERR_ARG);
        }
        Ok(Layout::new(places, scheme, losses))
    }
}

/// Each member's number, as the program counts.
fn labels(known: &Known) -> Vec<c_int> {
    let ranks = 0..known.members.len() as c_int;
    match &known.gaps {
        Some(gaps) => ranks.map(|rank| gaps.place(rank)).collect(),
        None => ranks.collect(),
    }
}

pub fn save(members: Members, memory: &mut Memory, wanted: Wanted) -> Outcome {
    let Some(known) = layer::with(members.comm, |known| known.clone()) else {
        return Err(ERR_OTHER);
    };
    let length = region::length(&memory.regions);
    let layout = wanted.layout(members.count);
    let own = [*length.as_ref().unwrap_or(&0) as u64];
    let words = [&memory.kept_words()[..], &wanted.words(), &own].concat();
    let all = members.gather(&words)?;
    let each: Vec<&[u64]> = all.chunks(words.len()).collect();
    let kept: Vec<_> = each.iter().map(|words| kept_of(words)).collect();
    memory.settle(newest(&kept));
    let asks_alike = each.iter().all(|words| words[KEPT_WORDS..][..3] == wanted.words());
    let lengths: Vec<usize> = each.iter().map(|words| words[KEPT_WORDS + 3] as usize).collect();
    let mut set = Set {
        id: Id {
            number: next_number(&kept),
            of: hash(&known.members),
        },
        version: wanted.version,
        layout: layout.unwrap_or(Layout::new(members.count, Scheme::Partner, 0)),
        origin: Some(members.own),
        place: Some(members.own),
        labels: labels(&known),
        lengths,
        whole: BTreeMap::new(),
        pieces: Vec::new(),
        directory: Default::default(),
    };
    memory.begun = Some(set.id);
    let is_ready = match (asks_alike, length, layout) {
        (true, Ok(_), Ok(_)) => prepare(&mut set, memory),
        _ => Err(ERR_ARG),
    };
    let outcome = members.agree(is_ready).and_then(|()| exchange(members, &mut set));
    if outcome.is_err() {
        memory.spare.0.extend(set.into_buffers());
        return outcome;
    }
    memory.newer = Some(set);
    members.agree(Ok(()))?;
    // All have it.
    memory.newer_counts();
    Ok(())
}

/// Copies the program's data, and makes room for what others send.
fn prepare(set: &mut Set, memory: &mut Memory) -> Outcome {
    let own = set.origin.unwrap_or(0);
    let spare: &mut Spare = &mut memory.spare;
    let mut data = spare.take(set.padded(own))?;
    region::write(&memory.regions, &mut data);
    set.whole.insert(own, data);
    for of in set.layout.copied(own) {
        set.whole.insert(of, spare.take(padded(set.layout, &set.lengths, of))?);
    }
    if set.layout.scheme == Scheme::Parity {
        let pieces = (0..set.layout.losses).map(|_| spare.take(set.shard(own)));
        set.pieces = pieces.collect::<Outcome<_>>()?;
    }
    Ok(())
}

fn exchange(members: Members, set: &mut Set) -> Outcome {
    match set.layout.scheme {
        _ if set.layout.losses == 0 => Ok(()),
        Scheme::Partner => exchange_copies(members, set),
        Scheme::Parity => exchange_parity(members, set),
    }
}

fn exchange_copies(members: Members, set: &mut Set) -> Outcome {
    let own = members.own;
    let all = (0..members.count).flat_map(|from| {
        let bytes = set.lengths[from];
        set.layout.partners(from).map(move |to| (from, to, bytes))
    });
    let rounds = Members::rounds(all);
    let at = |place: usize| set.whole.get(&place).map_or(0, |data| data.as_ptr() as usize);
    let sends = set.layout.partners(own).map(|peer| Move {
        peer,
        at: at(own),
        bytes: set.lengths[own],
    });
    let receives = set.layout.copied(own).map(|peer| Move {
        peer,
        at: at(peer),
        bytes: set.lengths[peer],
    });
    // SAFETY: the set has memory for the data of these places.
    unsafe { members.deliver(rounds, &sends.collect::<Vec<_>>(), &receives.collect::<Vec<_>>()) }
}

/// Each member of a set of parity computes that of one stripe, block by block, and gives pieces of it to others.
fn exchange_parity(members: Members, set: &mut Set) -> Outcome {
    let group = set.layout.set(members.own);
    let (count, losses, shards) = (group.len(), set.layout.losses, set.layout.shards(group.len()));
    let own = group.iter().position(|member| *member == members.own).unwrap_or(0);
    let shape = set.shape(members.own).ok_or(ERR_ARG)?;
    let shard = set.shard(members.own);
    let longest = (0..members.count).map(|place| set.shard(place)).max().unwrap_or(0);
    let data = set.whole.get(&members.own).map_or(0, |data| data.as_ptr() as usize);
    for start in (0..longest).step_by(BLOCK) {
        let bytes = BLOCK.min(shard.saturating_sub(start));
        let mut blocks = vec![vec![0_u8; bytes]; shards];
        let sends = (0..shards).map(|index| Move {
            peer: group[set.layout.stripe(count, own, index)],
            at: data + index * shard + start,
            bytes,
        });
        let receives = blocks.iter_mut().enumerate().map(|(index, block)| Move {
            peer: group[set.layout.member_of_shard(count, own, index)],
            at: block.as_mut_ptr() as usize,
            bytes,
        });
        // SAFETY: the data is as long as all shards.
        unsafe { members.deliver(1, &sends.collect::<Vec<_>>(), &receives.collect::<Vec<_>>())? };
        let made = if bytes == 0 {
            vec![Vec::new(); losses]
        } else {
            shape.encode(&blocks).map_err(|_| ERR_OTHER)?
        };
        set.pieces[0][start.min(shard)..][..bytes].copy_from_slice(&made[0]);
        if losses == 1 {
            continue;
        }
        let sends = (1..losses).map(|piece| Move {
            peer: group[set.layout.member_of_piece(count, own, piece)],
            at: made[piece].as_ptr() as usize,
            bytes,
        });
        let receives = set.pieces.iter_mut().enumerate().skip(1).map(|(piece, place)| Move {
            peer: group[(own + count - piece) % count],
            at: place[start.min(shard)..].as_mut_ptr() as usize,
            bytes,
        });
        // SAFETY: pieces are as long as shards.
        unsafe { members.deliver(1, &sends.collect::<Vec<_>>(), &receives.collect::<Vec<_>>())? };
    }
    Ok(())
}

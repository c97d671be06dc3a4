//! Makes the pieces of parity of a set of images, all of which are here.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use resurgo_wire::replica::{Offer, What};

use super::keeper::{Held, Keeper};
use super::party::Made;
use super::piece::Head;
use super::shard::Here;

/// A set whose pieces are to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub number: u64,
    pub set: u64,
    /// The ranks of its images, in order.
    pub members: Vec<u32>,
    pub pieces: u32,
}

/// A piece that is being made.
struct Growing {
    name: OsString,
    file: File,
    head: Head,
    /// Bytes before its own.
    body: u64,
    hasher: blake3::Hasher,
}

fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Leaves the pieces on the shelf. `goes_on`: they are still wanted.
///
/// # Errors
/// Why not, in words; then there is none.
pub fn encode(keeper: &Keeper, set: &Set, goes_on: impl Fn() -> bool) -> Result<Made, String> {
    let begun = Instant::now();
    let mut growing = Vec::new();
    let made = grow(keeper, set, goes_on, &mut growing).and_then(|()| {
        let done = growing.iter_mut().map(|piece| finish(keeper, piece));
        done.sum::<Result<u64, String>>()
    });
    if made.is_err() {
        growing.iter().for_each(|piece| keeper.shelf().remove(&piece.name));
        keeper
            .pieces_of(set.set)
            .into_iter()
            .for_each(|what| keeper.forget(what));
    }
    let time = begun.elapsed();
    made.map(|bytes| Made { bytes, time })
}

/// Makes the bytes of all pieces, block by block.
fn grow(keeper: &Keeper, set: &Set, goes_on: impl Fn() -> bool, growing: &mut Vec<Growing>) -> Result<(), String> {
    let number = set.number;
    let image = |rank: &u32| {
        let what = What::Image { rank: *rank, number };
        keeper.held(what).ok_or_else(|| format!("{what} is not on this node"))
    };
    let held: Vec<Held> = set.members.iter().map(image).collect::<Result<_, String>>()?;
    let members: Vec<Offer> = held.iter().map(|held| held.offer.clone()).collect();
    let open = |held: &Held| Here::open(keeper, held).map_err(|error| format!("{}: {error}", held.offer.what));
    let mut shards = held.iter().map(open).collect::<Result<Vec<_>, String>>()?;
    let mut head = Head::new(number, set.set, 0, set.pieces, members)?;
    let shape = head.shape().ok_or("there is no such set")?;
    let length = head.shard;
    if let Some(reason) = keeper.shelf().refuses(length.saturating_mul(u64::from(set.pieces))) {
        return Err(reason);
    }
    for index in 0..set.pieces {
        head.index = index;
        let name = keeper.temporary(What::Piece {
            number,
            set: set.set,
            index,
        });
        let file = keeper.shelf().new_file(&name).map_err(shown)?;
        growing.push(Growing {
            name,
            file,
            body: head.encode(blake3::Hash::from([0; 32]))?.0.len() as u64,
            head: head.clone(),
            hasher: blake3::Hasher::new(),
        });
    }
    let mut blocks = vec![Vec::new(); shards.len()];
    let mut at = 0;
    while at < length {
        if !goes_on() {
            return Err("it is not wanted any more".to_string());
        }
        let block = (length - at).min(shape.block() as u64);
        for ((shard, held), bytes) in shards.iter_mut().zip(&held).zip(&mut blocks) {
            bytes.resize(block as usize, 0);
            let read = shard.read(bytes);
            read.map_err(|error| format!("{}: {error}", held.offer.what))?;
        }
        for (piece, bytes) in growing.iter_mut().zip(shape.encode(&blocks)?) {
            piece.hasher.update(&bytes);
            piece.file.write_all_at(&bytes, piece.body + at).map_err(shown)?;
        }
        at += block;
    }
    Ok(())
}

/// Writes the head, and names the file. Returns its length.
fn finish(keeper: &Keeper, piece: &mut Growing) -> Result<u64, String> {
    let (head, offer) = piece.head.encode(piece.hasher.finalize())?;
    let length = offer.length;
    let written = piece.file.write_all_at(&head, 0).and_then(|()| piece.file.sync_all());
    written.and_then(|()| keeper.name(&piece.name, offer)).map_err(shown)?;
    Ok(length)
}

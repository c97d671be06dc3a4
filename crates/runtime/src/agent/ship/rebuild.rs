//! Makes a lost image anew, from other images of its set and from pieces of parity, wherever they are. All of them come
//! at the same time, block by block; nothing of them stays.
//!
//! Each node looks at all of its file before it gives it. So a damaged one is known by its node, and another piece is
//! taken instead. The image counts only if it has the digest that its writer has given it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread;

use resurgo_parity::Part;
use resurgo_wire::replica::{Offer, What};

use super::keeper::{Partial, Taking};
use super::party::Party;
use super::piece::Head;
use super::shard::{Here, Source, There};

/// An image to be made anew.
#[derive(Debug, Clone)]
pub struct Order {
    pub rank: u32,
    pub number: u64,
    pub set: u64,
    /// The images of the set that are there, and pieces, each with its node.
    pub members: Vec<(u32, u32)>,
    pub pieces: Vec<(u32, u32)>,
    /// Of the agents of these nodes.
    pub addresses: HashMap<u32, Vec<SocketAddr>>,
}

/// Something that a node does not have as it should.
pub type Defect = (What, u32, String);

/// A file of the set that is being read.
struct Opened {
    what: What,
    node: u32,
    offer: Offer,
    source: Source,
}

/// Why a file is of no use.
struct Useless {
    what: What,
    node: u32,
    reason: String,
    /// The node has said so itself; otherwise it cannot be reached.
    is_defect: bool,
}

impl Useless {
    fn shown(&self) -> String {
        format!("{} on node {}: {}", self.what, self.node, self.reason)
    }
}

/// The set as it can be read now.
struct Gathered {
    head: Head,
    parts: Vec<(Part, Opened)>,
    wanted: usize,
}

/// The work on one order.
struct Rebuild<'a> {
    party: &'a Party,
    order: &'a Order,
    useless: Vec<Useless>,
}

/// Leaves the image on the shelf. Also returns what is damaged.
///
/// # Errors
/// Why not, with the names of what is missing or damaged.
pub fn rebuild(party: &Party, order: &Order) -> (Result<Offer, String>, Vec<Defect>) {
    let mut rebuild = Rebuild {
        party,
        order,
        useless: Vec::new(),
    };
    let result = rebuild.run();
    let defects = rebuild.useless.into_iter().filter(|useless| useless.is_defect);
    let defects = defects.map(|useless| (useless.what, useless.node, useless.reason));
    (result, defects.collect())
}

impl Rebuild<'_> {
    fn run(&mut self) -> Result<Offer, String> {
        loop {
            let mut gathered = self.gather()?;
            let offer = gathered.head.members[gathered.wanted].clone();
            let keeper = &self.party.keeper;
            let mut partial = match keeper.begin(offer.clone())? {
                Taking::Whole => return Ok(offer),
                Taking::From(partial) => partial,
            };
            match read(&mut gathered, &mut partial) {
                Ok(()) => {
                    let complete = keeper.complete(partial);
                    return complete.map(|()| offer).map_err(|why| self.because(&why));
                }
                Err(Stop::Useless(useless)) => {
                    keeper.discard(partial);
                    self.useless.push(useless);
                }
                Err(Stop::NotMade(why)) => {
                    keeper.discard(partial);
                    return Err(why);
                }
            }
        }
    }

    fn because(&self, why: &str) -> String {
        let useless: Vec<String> = self.useless.iter().map(Useless::shown).collect();
        match useless.is_empty() {
            true => why.to_string(),
            false => format!("{why} ({})", useless.join("; ")),
        }
    }

    fn is_usable(&self, what: What) -> bool {
        !self.useless.iter().any(|useless| useless.what == what)
    }

    /// Opens these files, each with a thread: nodes look at them first.
    fn open(&mut self, files: Vec<(What, u32)>) -> Vec<Opened> {
        let (party, addresses) = (self.party, &self.order.addresses);
        let opened: Vec<Result<Opened, Useless>> = thread::scope(|scope| {
            let open = |(what, node)| {
                let to = addresses.get(&node).map_or(&[][..], Vec::as_slice);
                let thread = thread::Builder::new().name("ship".to_string());
                thread.spawn_scoped(scope, move || open(party, what, node, to))
            };
            let threads: Vec<_> = files.into_iter().map(|file| (file, open(file))).collect();
            let join = |((what, node), thread): (_, std::io::Result<thread::ScopedJoinHandle<'_, _>>)| {
                let useless = |reason: String| Useless {
                    what,
                    node,
                    reason,
                    is_defect: false,
                };
                let thread = thread.map_err(|error| useless(error.to_string()))?;
                let opened = thread.join();
                opened.unwrap_or_else(|_| Err(useless("its thread has failed".to_string())))
            };
            threads.into_iter().map(join).collect()
        });
        let (opened, useless): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        self.useless.extend(useless.into_iter().filter_map(Result::err));
        opened.into_iter().filter_map(Result::ok).collect()
    }

    /// Opens as many files of the set as are needed.
    fn gather(&mut self) -> Result<Gathered, String> {
        let (number, set) = (self.order.number, self.order.set);
        let image = |(rank, node): &(u32, u32)| (What::Image { rank: *rank, number }, *node);
        let piece = |(index, node): &(u32, u32)| {
            let index = *index;
            (What::Piece { number, set, index }, *node)
        };
        let mut spare: Vec<(What, u32)> = self.order.pieces.iter().map(piece).collect();
        spare.retain(|(what, _)| self.is_usable(*what));
        // The last is taken first.
        spare.reverse();
        let mut files: Vec<(What, u32)> = self.order.members.iter().map(image).collect();
        files.retain(|(what, _)| self.is_usable(*what));
        files.extend(spare.pop());
        let mut head: Option<Head> = None;
        let mut parts: Vec<(Part, Opened)> = Vec::new();
        let mut waiting: Vec<Opened> = Vec::new();
        loop {
            waiting.extend(self.open(files));
            // Pieces say what the members should be.
            waiting.sort_by_key(|opened| opened.what);
            for mut opened in std::mem::take(&mut waiting) {
                match (part_of(&mut opened, &mut head), &head) {
                    (Ok(Some(part)), _) => parts.push((part, opened)),
                    (Ok(None), _) => waiting.push(opened),
                    (Err(reason), _) => self.useless.push(Useless {
                        what: opened.what,
                        node: opened.node,
                        reason,
                        is_defect: true,
                    }),
                }
            }
            let missing = head
                .as_ref()
                .map_or(1, |head| head.members.len().saturating_sub(parts.len()));
            if missing == 0 {
                break;
            }
            files = spare.split_off(spare.len().saturating_sub(missing));
            if files.is_empty() {
                return Err(self.because(&format!("not enough of set {set} of wave {number} is left")));
            }
        }
        let head = head.ok_or("no piece of the set is there")?;
        let rank = self.order.rank;
        let wanted = What::Image { rank, number };
        let wanted = head.members.iter().position(|member| member.what == wanted);
        let wanted = wanted.ok_or_else(|| format!("set {set} of wave {number} has no image of rank {rank}"))?;
        parts.truncate(head.members.len());
        Ok(Gathered { head, parts, wanted })
    }
}

fn open(party: &Party, what: What, node: u32, addresses: &[SocketAddr]) -> Result<Opened, Useless> {
    let useless = |is_defect| {
        move |reason: String| Useless {
            what,
            node,
            reason,
            is_defect,
        }
    };
    if node != party.node {
        let there = There::open(party, addresses, what).map_err(|(reason, is_defect)| useless(is_defect)(reason))?;
        let offer = there.offer.clone();
        let source = Source::There(Box::new(there));
        return Ok(Opened {
            what,
            node,
            offer,
            source,
        });
    }
    let keeper = &party.keeper;
    keeper.check(what).map_err(useless(true))?;
    let held = keeper
        .held(what)
        .ok_or_else(|| useless(true)("it is gone".to_string()))?;
    let here = Here::open(keeper, &held).map_err(|error| useless(true)(error.to_string()))?;
    Ok(Opened {
        what,
        node,
        offer: held.offer,
        source: Source::Here(here),
    })
}

/// Which part of the set it is. None: no piece has said yet what the set is.
///
/// # Errors
/// It is not of the set.
fn part_of(opened: &mut Opened, set: &mut Option<Head>) -> Result<Option<Part>, String> {
    let offer = &opened.offer;
    if opened.what.image().is_some() {
        let Some(set) = set else { return Ok(None) };
        let is_it = |member: &Offer| {
            let described = |offer: &Offer| (offer.what, offer.length, offer.beside);
            described(member) == described(offer) && member.digest == offer.digest
        };
        let place = set.members.iter().position(is_it);
        return match place {
            Some(place) => Ok(Some(Part::Shard(place))),
            None => Err("it is not the image that the set was made of".to_string()),
        };
    }
    let (head, digest, _) = Head::read(|bytes| opened.source.read(bytes))?;
    let is_offered = digest.to_hex().as_str() == offer.digest && head.what() == opened.what;
    let of = |head: &Head| (head.number, head.set, head.pieces, head.members.clone());
    if !is_offered || set.as_ref().is_some_and(|set| of(set) != of(&head)) {
        return Err("it is a piece of another set".to_string());
    }
    let part = Part::Piece(head.index as usize);
    set.get_or_insert(head);
    Ok(Some(part))
}

/// Why the image is not made.
enum Stop {
    /// This has to be left out.
    Useless(Useless),
    NotMade(String),
}

/// Makes all of the image.
fn read(gathered: &mut Gathered, partial: &mut Partial) -> Result<(), Stop> {
    let Gathered { head, parts, wanted } = gathered;
    let offer = partial.offer.clone();
    let (file, all) = (offer.length, offer.length + offer.beside);
    let shape = head.shape();
    let shape = shape.ok_or_else(|| Stop::NotMade("there is no such set".to_string()))?;
    let mut blocks: Vec<(Part, Vec<u8>)> = parts.iter().map(|(part, _)| (*part, Vec::new())).collect();
    let mut at = 0;
    while at < all {
        let block = (head.shard - at).min(shape.block() as u64);
        for ((_, opened), (_, bytes)) in parts.iter_mut().zip(&mut blocks) {
            bytes.resize(block as usize, 0);
            opened.source.read(bytes).map_err(|error| {
                Stop::Useless(Useless {
                    what: opened.what,
                    node: opened.node,
                    reason: error.to_string(),
                    is_defect: false,
                })
            })?;
        }
        let made = shape.decode(*wanted, &blocks).map_err(Stop::NotMade)?;
        let cut = |position: u64| (position.clamp(at, at + block) - at) as usize;
        let (of_file, beside) = (&made[..cut(file)], &made[cut(file)..cut(all)]);
        let written = put(partial, at, of_file).and_then(|()| partial.take_beside(beside));
        written.map_err(|error| Stop::NotMade(error.to_string()))?;
        at += block;
    }
    Ok(())
}

/// Writes a part of the file, but for zeros, which are there already.
fn put(partial: &mut Partial, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    const PART: usize = 4096;
    let mut begins = 0;
    while begins < bytes.len() {
        let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
        let parts = bytes[begins..].chunks(PART);
        let zeros: usize = parts.take_while(|part| is_zero(part)).map(<[u8]>::len).sum();
        begins += zeros;
        let parts = bytes[begins..].chunks(PART);
        let length: usize = parts.take_while(|part| !is_zero(part)).map(<[u8]>::len).sum();
        let end = begins + length;
        // What a broken attempt has written is the same.
        let known = partial.position().saturating_sub(at) as usize;
        let begins_anew = begins.max(known.min(end));
        if begins_anew < end {
            partial.write(at + begins_anew as u64, &bytes[begins_anew..end])?;
        }
        begins = end;
    }
    Ok(())
}

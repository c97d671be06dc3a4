//! Copies of images on other nodes: the loss of a node does not lose them.
//!
//! The image file of a rank is streamed to *partners*, agents of other nodes ([`resurgo_wire::replica`]), to one after
//! the other: those that have it send it on. A partner keeps it where its own image files are, or in memory. The copy
//! counts when the partner reports ([`Event::Holds`]) that all of it is on its disk and is that image. A life on another
//! node fetches it from there ([`Event::Fetched`]).
//!
//! The agent's loop does none of this. Each partner has a thread here ([`sender`]) with one connection while there is
//! something to send; each connected agent has one ([`receiver`]). The threads have a low priority.
//!
//! - After a break the sender connects again, and the stream goes on behind the last complete part.
//! - A partner whose directory has the same file already (shared file system, nodes of one machine) says so, and the
//!   sender sends nothing.
//! - A stream is paced ([`pace`]), as ranks have messages to send.
//!
//! With parity, one node gets the images of a set, makes pieces from them ([`encode`]), keeps one and sends the others on
//! in the same way. A lost image is made anew from the others and from pieces ([`rebuild`]).

mod agent_side;
mod encode;
mod keeper;
mod pace;
mod parity;
mod party;
mod piece;
mod rebuild;
mod receiver;
mod sealed;
mod sender;
mod shard;
mod shelf;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use resurgo_wire::replica::What;

use crate::stream::Tls;
use encode::Set;
use keeper::{Contents, Keeper, Parcel};
pub use keeper::{PIECES, name_of};
pub use party::Event;
use party::{Events, Party, spawn};
pub use piece::piece_in;
pub use shelf::Shelf;

/// The content is an image.
pub const IMAGES: Contents = Contents {
    parts: |file| {
        let image = resurgo_image::file::Image::of(Path::new("sent"), file.try_clone()?);
        image.map(|image| image.parts()).map_err(io::Error::other)
    },
    is_it: |file, offer| {
        let image = resurgo_image::file::Image::of(Path::new("here"), file);
        let is_it = image.and_then(|image| image.must_be(offer.digest.as_bytes()).map(|()| image));
        is_it.map(|_| ()).map_err(|defect| defect.to_string())
    },
    is_whole: |file, offer| {
        let image = resurgo_image::file::Image::of(Path::new("received"), file);
        let is_whole = image.and_then(|image| image.must_be(offer.digest.as_bytes()).and_then(|()| image.verify()));
        is_whole.map_err(|defect| defect.to_string())
    },
};

/// A life that begins when its image has come.
pub struct Awaited {
    pub rank: u32,
    pub life: u64,
    pub number: u64,
    pub together: bool,
    pub is_ended: bool,
}

/// A set whose pieces are being made here.
struct Making {
    set: u64,
    /// Piece 0 stays on the first of these nodes, this one; piece n goes to the n-th after it.
    holders: Vec<u32>,
    /// The set is not wanted any more.
    is_over: Arc<AtomicBool>,
}

/// This node's copies for others, and its requests.
pub struct Copies {
    pub shipping: Shipping,
    pub awaited: Vec<Awaited>,
    /// Sets whose pieces this node makes or sends.
    making: Vec<Making>,
    /// The bytes that this node holds for others, as the dispatcher knows them.
    told: [u64; 2],
}

/// The agent's handle of all this.
pub struct Shipping {
    party: Party,
    events: Receiver<Event>,
    partners: HashMap<u32, sender::Sender>,
    /// The thread that lets agents in ends with it.
    _door: receiver::Door,
}

impl Shipping {
    /// The sharing of node `node`. Other agents connect to `listener`; their images go onto the shelf. `rate`: the most
    /// that this node sends, in bytes a second; none: half of its link.
    pub fn start(
        node: u32,
        key: [u8; 32],
        tls: Option<Tls>,
        listener: TcpListener,
        shelf: Shelf,
        contents: Contents,
        rate: Option<u64>,
    ) -> io::Result<Shipping> {
        let (way, events) = channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Arc::new(bell);
        let party = Party {
            node,
            key,
            tls,
            keeper: Arc::new(Keeper::new(node, shelf, contents, piece::PIECES)),
            streams: Arc::default(),
            rate: rate.map(|rate| rate as usize),
            encoding: Arc::default(),
            rebuilding: Arc::default(),
            events: Events { way, bell },
        };
        Ok(Shipping {
            _door: receiver::Door::open(listener, party.clone())?,
            party,
            events,
            partners: HashMap::new(),
        })
    }

    /// This node's copies of others' images, and its pieces.
    pub fn keeper(&self) -> &Keeper {
        &self.party.keeper
    }

    /// Sends the file to node `node`, whose agent has these addresses.
    pub fn ship(&mut self, parcel: Parcel, node: u32, addresses: &[SocketAddr]) -> io::Result<()> {
        let sender = match self.partners.remove(&node) {
            Some(sender) => sender,
            None => sender::Sender::start(self.party.clone(), node)?,
        };
        sender.send(parcel, addresses);
        self.partners.insert(node, sender);
        Ok(())
    }

    /// No file leaves this node while it is held.
    pub fn hold(&self, is_held: bool) {
        self.partners.values().for_each(|sender| sender.hold(is_held));
    }

    /// Forgets all partners but these: the others are lost.
    pub fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.partners.retain(|node, _| is_there(*node));
    }

    /// These files are not sent any more.
    pub fn give_up(&self, is_over: impl Fn(What) -> bool) {
        let partners = self.partners.values();
        partners.for_each(|sender| sender.give_up(&is_over));
    }

    /// Makes the pieces of a set, unless `is_over`, and says [`Event::Encoded`].
    fn encode(&self, set: Set, is_over: Arc<AtomicBool>) -> io::Result<()> {
        let party = self.party.clone();
        spawn(move || {
            let turn = party.encoding.lock().unwrap_or_else(PoisonError::into_inner);
            let result = encode::encode(&party.keeper, &set, || !is_over.load(Ordering::Relaxed));
            drop(turn);
            let (number, set) = (set.number, set.set);
            party.events.say(Event::Encoded { number, set, result });
        })
    }

    /// Makes an image from others of its set, and says [`Event::Rebuilt`].
    fn rebuild(&self, order: rebuild::Order) -> io::Result<()> {
        let party = self.party.clone();
        spawn(move || {
            let turn = party.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
            let (result, defects) = rebuild::rebuild(&party, &order);
            drop(turn);
            party.events.say(Event::Rebuilt {
                rank: order.rank,
                number: order.number,
                set: order.set,
                result,
                defects,
            });
        })
    }

    /// Brings the image from the node at one of these addresses, and says [`Event::Fetched`].
    pub fn fetch(&self, rank: u32, number: u64, addresses: &[SocketAddr]) -> io::Result<()> {
        let (party, addresses) = (self.party.clone(), addresses.to_vec());
        spawn(move || {
            let result = sender::fetch(&party, rank, number, &addresses);
            party.events.say(Event::Fetched { rank, number, result });
        })
    }

    /// Events since the last call.
    pub fn events(&self) -> Vec<Event> {
        let _ = self.party.events.bell.read();
        self.events.try_iter().collect()
    }
}

/// Readable when there are events.
impl AsFd for Shipping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.party.events.bell.as_fd()
    }
}

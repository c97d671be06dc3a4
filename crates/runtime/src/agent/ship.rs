//! Copies of images of ranks on other nodes, so that the loss of a node does not lose them.
//!
//! The image file of a rank is streamed to a *partner*, the agent of another node ([`resurgo_wire::replica`]). That keeps it where its
//! own image files are, or in memory. The copy counts when all of it is on the partner's disk and the partner has found it to be that
//! image: the partner itself says so ([`Event::Holds`]). A life on a third node fetches it from there ([`Event::Fetched`]).
//!
//! Nothing of this is done by the agent's loop: each partner has a thread here ([`sender`]) with one connection, while there is
//! something to send; each agent that has connected has one ([`receiver`]). They take a low priority.
//!
//! - A connection that breaks is made again, and the stream goes on behind the last part that came whole.
//! - A partner whose directory has the very file already (a shared file system, several nodes of one machine) says so at once, and
//!   nothing is sent.
//! - A stream is paced ([`pace`]), as ranks have messages to send.

mod agent_side;
mod keeper;
mod pace;
mod party;
mod receiver;
mod sealed;
mod sender;
mod shelf;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::stream::Tls;
use keeper::{Contents, Keeper};
use party::{Event, Events, Parcel, Party, spawn};
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

/// What this node does for, and wants of, others.
pub struct Copies {
    pub shipping: Shipping,
    pub awaited: Vec<Awaited>,
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
    /// That of node `node`. Other agents find it at `listener`; what they bring goes onto the shelf.
    pub fn start(
        node: u32,
        key: [u8; 32],
        tls: Option<Tls>,
        listener: TcpListener,
        shelf: Shelf,
        contents: Contents,
    ) -> io::Result<Shipping> {
        let (way, events) = channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Arc::new(bell);
        let party = Party {
            node,
            key,
            tls,
            keeper: Arc::new(Keeper::new(node, shelf, contents)),
            events: Events { way, bell },
        };
        Ok(Shipping {
            _door: receiver::Door::open(listener, party.clone())?,
            party,
            events,
            partners: HashMap::new(),
        })
    }

    /// What this node has of others' images.
    pub fn keeper(&self) -> &Keeper {
        &self.party.keeper
    }

    /// The image goes to node `node`, whose agent is at one of these addresses.
    pub fn ship(&mut self, parcel: Parcel, node: u32, addresses: &[SocketAddr]) -> io::Result<()> {
        let sender = match self.partners.remove(&node) {
            Some(sender) => sender,
            None => sender::Sender::start(self.party.clone(), node)?,
        };
        sender.send(parcel, addresses);
        self.partners.insert(node, sender);
        Ok(())
    }

    /// The image need not go anywhere any more.
    pub fn give_up(&self, rank: u32, number: u64) {
        let partners = self.partners.values();
        partners.for_each(|sender| sender.give_up(rank, number));
    }

    /// Brings the image from the node at one of these addresses, and says [`Event::Fetched`].
    pub fn fetch(&self, rank: u32, number: u64, addresses: &[SocketAddr]) -> io::Result<()> {
        let (party, addresses) = (self.party.clone(), addresses.to_vec());
        spawn(move || {
            let result = sender::fetch(&party, rank, number, &addresses);
            party.events.say(Event::Fetched { rank, number, result });
        })
    }

    /// What has happened since the last call.
    pub fn events(&self) -> Vec<Event> {
        let _ = self.party.events.bell.read();
        self.events.try_iter().collect()
    }
}

/// Readable when something has happened.
impl AsFd for Shipping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.party.events.bell.as_fd()
    }
}

//! The agent's part in copies of images: it has them sent, reports what this node has, and begins lives from them.

use std::fs::File;
use std::io;
use std::net::TcpListener;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::{From, Place};
use resurgo_wire::control::ToDispatcher;
use resurgo_wire::replica::{Offer, What};
use serde::{Deserialize, Serialize};

use super::keeper::{Parcel, name_of};
use super::party::Event;
use super::{Awaited, Copies, IMAGES, Shipping};
use crate::agent::files::ImageFile;
use crate::agent::net::Waiting;
use crate::agent::store::Store;
use crate::agent::{Agent, Source, Work};
use crate::note;
use crate::stream::Tls;

/// What an agent must know of an image file.
#[derive(Serialize, Deserialize)]
struct About {
    /// See [`ImageFile`].
    slot: usize,
    delivered: u64,
    /// Deliveries of the rank at the image, which does not need earlier ones.
    #[serde(default)]
    deliveries: u64,
    /// Where ranks of lost nodes begin again alone: the same for each source, and by the image before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<u64>,
    #[serde(default)]
    above: u64,
}

impl Work {
    /// Sends images to other nodes and takes theirs, if the job wants that. `listener`: where their agents connect.
    pub fn share_images(mut self, listener: Option<TcpListener>) -> Result<Work, Box<ToDispatcher>> {
        let failed = |what: &str, error: io::Error| {
            let reason = format!("cannot {what}: {error}");
            Box::new(ToDispatcher::Failed { reason })
        };
        let files = &self.job.image_files;
        let plan = self.job.nodes.as_ref().filter(|_| files.partners || files.shared);
        if let Some((plan, listener)) = plan.zip(listener) {
            let store = self.store.take();
            let store = store.unwrap_or_else(|| Store::in_memory(self.job.key));
            let tls = Tls::of_job(&self.job).map_err(|error| failed("encrypt", error))?;
            let (key, rate) = (self.job.key, files.copy_rate);
            let shipping = Shipping::start(plan.own, key, tls, listener, store.shelf(), IMAGES, rate);
            self.store = Some(store);
            self.copies = Some(Copies {
                shipping: shipping.map_err(|error| failed("listen for images of other nodes", error))?,
                awaited: Vec::new(),
                making: Vec::new(),
                told: [0; 2],
            });
            let sorted = self.sort_files();
            sorted.map_err(|error| failed("read image files", error))?;
        }
        Ok(self)
    }

    /// The image is in a file of this node, which has come from elsewhere. Returns where it can be read.
    pub fn take_in(&mut self, offer: Offer) -> io::Result<Place> {
        let own = self.own_node();
        if self.copies.is_some() {
            self.know(offer);
            return Ok(match self.job.image_files.shared {
                true => Place::Everywhere,
                false => Place::Node(own),
            });
        }
        let about: About = serde_json::from_slice(&offer.about)?;
        let (rank, number) = offer.what.image().ok_or(io::ErrorKind::InvalidInput)?;
        let rank = rank as usize;
        let mut file = ImageFile::new(number, about.slot);
        (file.name, file.digest) = (note::file_name(rank, number).into(), offer.digest);
        (file.delivered, file.above) = (about.delivered, about.above);
        let store = self.store.iter_mut();
        store.for_each(|store| store.adopted(rank, number, &file.name));
        let files = &mut self.ranks[rank].images.files;
        files.retain(|file| file.number != number);
        files.push(file);
        files.sort_by_key(|file| file.number);
        Ok(Place::Node(own))
    }

    /// What other nodes must know of the image file of a rank, and the file.
    fn described(&self, rank: u32, file: &ImageFile) -> io::Result<(Offer, File)> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about = About {
            slot: file.slot,
            delivered: file.delivered,
            deliveries: self.memory.deliveries_of_image(rank as usize, file.slot)?,
            sources: match self.job.moves_ranks() {
                true => self
                    .memory
                    .delivered_by_image(rank as usize, file.slot, self.ranks.len())?,
                false => Vec::new(),
            },
            above: file.above,
        };
        let content = store.image(&file.name)?;
        let number = file.number;
        let offer = Offer {
            what: What::Image { rank, number },
            length: content.metadata()?.len(),
            beside: match self.has_logs_beside() {
                true => store.length_of_log(&file.name)?,
                false => 0,
            },
            digest: file.digest.clone(),
            about: serde_json::to_vec(&about)?,
        };
        Ok((offer, content))
    }

    /// What other nodes must know of the image file of a rank.
    pub fn offer(&self, rank: u32, file: &ImageFile) -> io::Result<Offer> {
        self.described(rank, file).map(|(offer, _)| offer)
    }

    /// The image file of a rank for another node.
    fn parcel(&self, rank: u32, image: &ImageFile) -> io::Result<Parcel> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let (offer, file) = self.described(rank, image)?;
        let beside = match self.has_logs_beside() {
            true => Some(store.sealed_log(&image.name)?),
            false => None,
        };
        Ok(Parcel { offer, file, beside })
    }

    /// A file here belongs to a rank of another node.
    pub fn know_file(&self, rank: u32, file: &ImageFile) -> io::Result<()> {
        self.know(self.offer(rank, file)?);
        Ok(())
    }

    /// The image is in a file that this node sees.
    pub fn know(&self, offer: Offer) {
        let is_own = !self.job.image_files.shared;
        let copies = self.copies.iter();
        copies.for_each(|copies| copies.shipping.keeper().know(offer.clone(), is_own));
    }

    /// With parity other nodes may ask for the file of a rank of this node, too. The rank's images own it.
    pub fn know_own_file(&self, rank: u32, number: u64) -> io::Result<()> {
        let file = self.ranks[rank as usize].images.file(number);
        let keeper = self.copies.as_ref().map(|copies| copies.shipping.keeper());
        if let Some((file, keeper)) = file.zip(keeper) {
            keeper.know(self.offer(rank, file)?, false);
        }
        Ok(())
    }

    /// Sends the complete image to node `to`: the rank's own, or this node's copy.
    fn ship(&mut self, rank: u32, number: u64, to: u32) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let file = self.ranks[rank as usize].images.file(number);
        let own = file.map(|file| self.parcel(rank, file)).transpose()?;
        let plan = self.job.nodes.as_ref().ok_or_else(missing)?;
        let copies = self.copies.as_mut().ok_or_else(missing)?;
        let parcel = match own {
            Some(parcel) => parcel,
            None => copies.shipping.keeper().parcel(What::Image { rank, number })?,
        };
        copies.shipping.keep(|node| !plan.copies_at(node).is_empty());
        copies.shipping.ship(parcel, to, &plan.copies_at(to))
    }

    /// Neither sends nor keeps copies of an image any more.
    pub fn forget_copy(&self, rank: u32, number: u64) {
        if let Some(Copies { shipping, .. }) = &self.copies {
            let image = What::Image { rank, number };
            shipping.give_up(|what| what == image);
            shipping.keeper().forget(image);
        }
    }

    /// Makes the copy of an image a file of a rank of this node. False: there is none.
    fn adopt(&mut self, rank: u32, number: u64) -> io::Result<bool> {
        let copies = self.copies.as_ref();
        let Some(held) = copies.and_then(|copies| copies.shipping.keeper().take(rank, number)) else {
            return Ok(false);
        };
        if let Some(copies) = copies.filter(|_| self.job.image_files.parity.is_some()) {
            // Others may ask for it.
            copies.shipping.keeper().know(held.offer.clone(), false);
        }
        let about: About = serde_json::from_slice(&held.offer.about)?;
        self.memory
            .set_deliveries_of_image(rank as usize, about.slot, about.deliveries, &about.sources)?;
        let mut file = ImageFile::new(number, about.slot);
        file.above = about.above;
        (file.name, file.digest, file.delivered) = (held.name, held.offer.digest, about.delivered);
        let store = self.store.iter_mut();
        store.for_each(|store| store.adopted(rank as usize, number, &file.name));
        let files = &mut self.ranks[rank as usize].images.files;
        files.push(file);
        files.sort_by_key(|file| file.number);
        Ok(true)
    }

    /// A life that waits for its image does not begin.
    pub fn end_awaited(&mut self, rank: u32, life: u64) {
        let awaited = self.copies.iter_mut().flat_map(|copies| &mut copies.awaited);
        awaited
            .filter(|awaited| (awaited.rank, awaited.life) == (rank, life))
            .for_each(|awaited| awaited.is_ended = true);
    }
}

impl Agent {
    pub fn watch_copies(&self) -> io::Result<()> {
        if let Some(Copies { shipping, .. }) = &self.work.copies {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Copies.token());
            self.epoll.add(shipping, event)?;
        }
        Ok(())
    }

    /// Node `to` gets the image, too.
    pub fn replicate(&mut self, rank: u32, number: u64, to: u32) {
        if let Err(error) = self.work.ship(rank, number, to) {
            self.not_replicated(rank, number, to, &error.to_string());
        }
    }

    fn not_replicated(&mut self, rank: u32, number: u64, node: u32, why: &str) {
        let reason = format!("node {node} cannot have it: {why}");
        self.report(Fact::NotStored {
            rank,
            number,
            node,
            reason,
        });
    }

    /// Begins a life; `reads`: the node that has its image, if that is another one.
    pub fn begin_here(
        &mut self,
        rank: u32,
        life: u64,
        from: From,
        together: bool,
        reads: Option<u32>,
    ) -> io::Result<()> {
        let waiting = Waiting {
            rank,
            life,
            from,
            together,
            reads,
        };
        if self.waits_for_logs(waiting) {
            return Ok(());
        }
        let number = from.number();
        let awaited = Awaited {
            rank,
            life,
            number,
            together,
            is_ended: false,
        };
        let work = &mut self.work;
        let images = &work.ranks[rank as usize].images;
        let (is_here, is_unusable) = (images.file(number).is_some(), images.unusable.contains(&number));
        if !matches!(from, From::File(_)) || is_here || work.adopt(rank, number)? {
            match work.put_back(rank as usize, number) {
                Ok(true) => {
                    if let Some(copies) = &mut work.copies {
                        copies.awaited.push(awaited);
                    }
                }
                Ok(false) => {
                    self.has_all_logs(rank);
                    self.begin(rank as usize, life, from, together)?;
                }
                Err(error) => {
                    self.file_lost(rank as usize, number, format!("what it needs of the log: {error}"));
                    self.report(Fact::NotBegun { rank, life });
                }
            }
            return Ok(());
        }
        let addresses = reads.zip(work.job.nodes.as_ref());
        let addresses = addresses.map_or(Vec::new(), |(node, plan)| plan.copies_at(node));
        let copies = work.copies.as_mut().filter(|_| !addresses.is_empty());
        match copies {
            Some(copies) => {
                if is_unusable {
                    // Otherwise it would be taken for what comes.
                    let keeper = copies.shipping.keeper();
                    keeper.shelf().remove(&name_of(What::Image { rank, number }));
                }
                copies.awaited.push(awaited);
                copies.shipping.fetch(rank, number, &addresses)
            }
            None => {
                self.image_is_nowhere(&awaited, "no node has it");
                Ok(())
            }
        }
    }

    /// The file of an image is complete: on this node, or where all nodes see it, which have to know of it.
    pub fn file_is_whole(&mut self, rank: u32, number: u64) -> io::Result<()> {
        self.image_depends_on(rank as usize)?;
        if self.work.job.image_files.parity.is_some()
            && let Err(error) = self.work.know_own_file(rank, number)
        {
            let reason = error.to_string();
            self.report(Fact::NotWritten { rank, number, reason });
            return Ok(());
        }
        let work = &self.work;
        let file = work.ranks[rank as usize].images.file(number);
        let Some(file) = file.filter(|_| work.job.image_files.shared) else {
            self.report(Fact::Written { rank, number });
            return Ok(());
        };
        match work.offer(rank, file) {
            Ok(offer) => {
                self.send(&ToDispatcher::Shared(offer))?;
                let place = Place::Everywhere;
                self.report(Fact::Stored { rank, number, place });
            }
            Err(error) => {
                let reason = error.to_string();
                self.report(Fact::NotWritten { rank, number, reason });
            }
        }
        Ok(())
    }

    fn image_is_nowhere(&mut self, awaited: &Awaited, why: &str) {
        let (rank, life, number) = (awaited.rank, awaited.life, awaited.number);
        // No file here is damaged: another copy may still come.
        let reason = why.to_string();
        self.report(Fact::FileLost { rank, number, reason });
        self.report(Fact::NotBegun { rank, life });
    }

    /// Handles events of images on their way.
    pub fn copies_event(&mut self) -> io::Result<()> {
        let events = self.work.copies.as_ref().map(|copies| copies.shipping.events());
        for event in events.into_iter().flatten() {
            match event {
                Event::Holds { what } => self.holds(what),
                Event::Refused { what, node, reason } => match what {
                    What::Image { rank, number } => self.not_replicated(rank, number, node, &reason),
                    What::Piece { number, set, .. } => self.not_encoded(number, set, node, reason),
                },
                Event::Encoded { number, set, result } => self.encoded(number, set, result)?,
                Event::Rebuilt {
                    rank,
                    number,
                    set,
                    result,
                    defects,
                } => self.rebuilt((rank, number), set, result, defects),
                Event::Fetched { rank, number, result } => self.fetched(rank, number, result)?,
            }
        }
        self.tell_held()
    }

    /// An image has arrived, or is not available.
    fn fetched(&mut self, rank: u32, number: u64, result: Result<(), String>) -> io::Result<()> {
        let Some(copies) = &mut self.work.copies else {
            return Ok(());
        };
        let is_it = |awaited: &mut Awaited| (awaited.rank, awaited.number) == (rank, number);
        let ready: Vec<Awaited> = copies.awaited.extract_if(.., is_it).collect();
        for awaited in ready {
            if let Err(why) = &result {
                self.image_is_nowhere(&awaited, why);
                continue;
            }
            // What has come is another copy.
            self.work.ranks[rank as usize].images.unusable.remove(&number);
            self.begin_awaited(&awaited)?;
        }
        Ok(())
    }

    /// A life that has waited for its image, or for what it needs beside it, begins, unless it has been ended meanwhile.
    pub fn begin_awaited(&mut self, awaited: &Awaited) -> io::Result<()> {
        let (rank, life) = (awaited.rank, awaited.life);
        if awaited.is_ended {
            self.report(Fact::NotBegun { rank, life });
            return Ok(());
        }
        self.begin_here(rank, life, From::File(awaited.number), awaited.together, None)
    }
}

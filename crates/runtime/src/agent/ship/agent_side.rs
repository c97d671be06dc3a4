//! What the agent does about copies of images: it has them sent, says what this node has, and begins lives from them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::{From, Place};
use resurgo_wire::control::ToDispatcher;
use resurgo_wire::replica::Offer;
use serde::{Deserialize, Serialize};

use super::party::{Event, Parcel};
use super::{Awaited, Copies, IMAGES, Shipping};
use crate::agent::files::ImageFile;
use crate::agent::store::Store;
use crate::agent::wave_logs::LogOfWave;
use crate::agent::{Agent, Source, Work};
use crate::stream::Tls;

/// What an agent has to know of an image file beside.
#[derive(Serialize, Deserialize)]
struct About {
    /// See [`ImageFile`].
    slot: usize,
    delivered: u64,
    /// How many deliveries the rank had made: what is before them is not needed by this image.
    #[serde(default)]
    deliveries: u64,
}

impl Work {
    /// Images go to other nodes, and theirs come here, if the job wants that. `listener`: where their agents call.
    pub fn share_images(mut self, listener: Option<TcpListener>) -> Result<Work, Box<ToDispatcher>> {
        let failed = |what: &str, error: io::Error| {
            let reason = format!("cannot {what}: {error}");
            Box::new(ToDispatcher::Failed { reason })
        };
        let files = &self.job.image_files;
        let plan = self.job.nodes.as_ref().filter(|_| files.partners || files.shared);
        if let Some((plan, listener)) = plan.zip(listener) {
            let store = self.store.take().map_or_else(Store::in_memory, Ok);
            let store = store.map_err(|error| failed("have image files in memory", error))?;
            let tls = Tls::of_job(&self.job).map_err(|error| failed("encrypt", error))?;
            let shipping = Shipping::start(plan.own, self.job.key, tls, listener, store.shelf(), IMAGES);
            self.store = Some(store);
            self.copies = Some(Copies {
                shipping: shipping.map_err(|error| failed("listen for images of other nodes", error))?,
                awaited: Vec::new(),
            });
            let sorted = self.sort_files();
            sorted.map_err(|error| failed("read image files", error))?;
        }
        Ok(self)
    }

    /// The image file of a rank, with what other nodes have to know of it.
    fn parcel(&self, rank: u32, file: &ImageFile) -> io::Result<Parcel> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about = About {
            slot: file.slot,
            delivered: file.delivered,
            deliveries: self.memory.deliveries_of_image(rank as usize, file.slot)?,
        };
        let content = store.image(&file.name)?;
        let beside = self.log_of_wave(rank as usize, file.number)?;
        let offer = Offer {
            rank,
            number: file.number,
            length: content.metadata()?.len(),
            beside: beside.len() as u64,
            digest: file.digest.clone(),
            about: serde_json::to_vec(&about)?,
        };
        Ok(Parcel {
            offer,
            file: content,
            beside: Arc::new(beside),
        })
    }

    /// A file that is here is of a rank of another node.
    pub fn know_file(&self, rank: u32, file: &ImageFile) -> io::Result<()> {
        let offer = self.parcel(rank, file)?.offer;
        self.know(offer);
        Ok(())
    }

    /// The image is in a file that this node sees.
    pub fn know(&self, offer: Offer) {
        let is_own = !self.job.image_files.shared;
        let copies = self.copies.iter();
        copies.for_each(|copies| copies.shipping.keeper().know(offer.clone(), is_own));
    }

    /// The image, which is complete, goes to node `to`.
    fn ship(&mut self, rank: u32, number: u64, to: u32) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let file = self.ranks[rank as usize].images.file(number).ok_or_else(missing)?;
        let parcel = self.parcel(rank, file)?;
        let plan = self.job.nodes.as_ref().ok_or_else(missing)?;
        let copies = self.copies.as_mut().ok_or_else(missing)?;
        // A partner that is lost does not get it any more.
        copies.shipping.give_up(rank, number);
        copies.shipping.ship(parcel, to, &plan.copies_at(to))
    }

    /// An image need not go anywhere, and nobody else's needs to be here.
    pub fn forget_copy(&self, rank: u32, number: u64) {
        if let Some(Copies { shipping, .. }) = &self.copies {
            shipping.give_up(rank, number);
            shipping.keeper().forget(rank, number);
        }
    }

    /// The copy of an image becomes one of a rank of this node. False: there is none.
    fn adopt(&mut self, rank: u32, number: u64) -> io::Result<bool> {
        let copies = self.copies.as_ref();
        let Some(held) = copies.and_then(|copies| copies.shipping.keeper().take(rank, number)) else {
            return Ok(false);
        };
        let about: About = serde_json::from_slice(&held.offer.about)?;
        let images = &mut self.ranks[rank as usize].images;
        if std::mem::take(&mut images.lacks_log) && !held.beside.is_empty() {
            self.memory.put_log(rank as usize, &LogOfWave::decode(&held.beside)?)?;
        }
        self.memory
            .set_deliveries_of_image(rank as usize, about.slot, about.deliveries)?;
        let mut file = ImageFile::new(number, about.slot);
        (file.name, file.digest, file.delivered) = (held.name, held.offer.digest, about.delivered);
        let store = self.store.iter_mut();
        store.for_each(|store| store.adopted(rank as usize, number, &file.name));
        let files = &mut self.ranks[rank as usize].images.files;
        files.push(file);
        files.sort_by_key(|file| file.number);
        Ok(true)
    }

    /// A life whose image has yet to come ends when it has begun.
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

    fn not_replicated(&mut self, rank: u32, number: u64, to: u32, why: &str) {
        let reason = format!("node {to} cannot have it: {why}");
        self.report(Fact::NotWritten { rank, number, reason });
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
        let From::File(number) = from else {
            return self.begin(rank as usize, life, from, together);
        };
        let work = &mut self.work;
        let is_here = work.ranks[rank as usize].images.file(number).is_some();
        if is_here || work.adopt(rank, number)? {
            return self.begin(rank as usize, life, from, together);
        }
        let awaited = Awaited {
            rank,
            life,
            number,
            together,
            is_ended: false,
        };
        let addresses = reads.zip(work.job.nodes.as_ref());
        let addresses = addresses.map_or(Vec::new(), |(node, plan)| plan.copies_at(node));
        let copies = work.copies.as_mut().filter(|_| !addresses.is_empty());
        match copies {
            Some(copies) => {
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
        let work = &self.work;
        let file = work.ranks[rank as usize].images.file(number);
        let Some(file) = file.filter(|_| work.job.image_files.shared) else {
            self.report(Fact::Written { rank, number });
            return Ok(());
        };
        match work.parcel(rank, file) {
            Ok(parcel) => {
                self.send(&ToDispatcher::Shared(parcel.offer))?;
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
        let (rank, life, number, reason) = (awaited.rank, awaited.life, awaited.number, why.to_string());
        self.report(Fact::FileLost { rank, number, reason });
        self.report(Fact::NotBegun { rank, life });
    }

    /// Something has happened to images on their way.
    pub fn copies_event(&mut self) -> io::Result<()> {
        let events = self.work.copies.as_ref().map(|copies| copies.shipping.events());
        for event in events.into_iter().flatten() {
            match event {
                Event::Holds { rank, number } => {
                    let own = self.work.job.nodes.as_ref().map_or(0, |plan| plan.own);
                    let place = Place::Node(own);
                    self.report(Fact::Stored { rank, number, place });
                }
                Event::Refused {
                    rank,
                    number,
                    node,
                    reason,
                } => self.not_replicated(rank, number, node, &reason),
                Event::Fetched { rank, number, result } => self.fetched(rank, number, result)?,
            }
        }
        Ok(())
    }

    /// An image is here, or cannot be had.
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
            self.begin_here(rank, awaited.life, From::File(number), awaited.together, None)?;
            if awaited.is_ended {
                self.work.ranks[rank as usize].end_by_order(awaited.life);
            }
        }
        Ok(())
    }
}

//! What the agent does for copies into places: it opens the files, and reports what became of them.

use std::ffi::OsString;
use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::Place;
use resurgo_store::{Generation, Source as Parcel};
use resurgo_wire::control::{Flush, ToDispatcher};
use resurgo_wire::replica::Offer;

use super::{Flushes, OnTheirWay};
use crate::agent::{Agent, Source, Work};
use crate::fetch;
use crate::flush::{Answer, Order, Secrets, Sent, Site};
use crate::note::{self, log_of};
use crate::suspended::transit;

impl Work {
    /// The files that this node has of the waves which a record names. Those of older waves may be gone already.
    fn recorded_files(&self, waves: (u64, u64)) -> io::Result<Vec<Parcel>> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut parcels: Vec<Parcel> = Vec::new();
        let mut add = |number: u64, name: OsString| -> io::Result<()> {
            match store.shelf().open(&name) {
                Ok(file) => {
                    let name = name.to_string_lossy().into_owned();
                    parcels.push(Parcel { name, file });
                    Ok(())
                }
                Err(error) if number == waves.1 => Err(error),
                Err(_) => Ok(()),
            }
        };
        for (rank, number, name) in self.files_of(|number| (waves.0..=waves.1).contains(&number)) {
            if self.is_here(rank) {
                if self.has_logs_beside() {
                    add(number, log_of(&name))?;
                }
                add(number, name)?;
            }
        }
        // On several nodes the dispatcher has the messages in transit.
        for number in (waves.0..=waves.1).filter(|_| self.job.nodes.is_none()) {
            let name = transit::name(number);
            if store.shelf().names().contains(&name) {
                add(number, name)?;
            }
        }
        Ok(parcels)
    }

    /// What nodes must know of the images that this one has of a wave.
    fn offers(&self, wave: u64) -> io::Result<Vec<Offer>> {
        let here = self.ranks.iter().enumerate().filter(|(rank, _)| self.is_here(*rank));
        let files = here.filter_map(|(rank, this)| Some((rank as u32, this.images.file(wave)?)));
        files.map(|(rank, file)| self.offer(rank, file)).collect()
    }
}

impl Agent {
    /// Copies the files of these waves into a place. They are opened at once, so they may be removed meanwhile.
    pub(in crate::agent) fn flush(&mut self, flush: &Flush) -> io::Result<()> {
        let ordered = self.order_flush(flush);
        ordered.or_else(|error| self.flushed(flush.place, &flush.generation, Err(error.to_string())))
    }

    fn order_flush(&mut self, flush: &Flush) -> io::Result<()> {
        let sources = self.work.recorded_files(flush.waves)?;
        let offers = self.work.offers(flush.waves.1)?;
        let generation: Generation = flush.generation.parse().map_err(io::Error::other)?;
        let flushes = self.threads_of_places()?;
        let worker = flushes.workers.get(flush.place).ok_or(io::ErrorKind::NotFound)?;
        let names: Vec<OsString> = sources.iter().map(|source| OsString::from(&source.name)).collect();
        worker.order(Order::Send { generation, sources });
        flushes.sent.push(OnTheirWay {
            place: flush.place,
            generation,
            names: names.clone(),
            offers,
        });
        self.work.store.iter_mut().for_each(|store| store.copying(&names));
        Ok(())
    }

    /// Those that copy waves into places and bring images back; they begin with the first work for them.
    fn threads_of_places(&mut self) -> io::Result<&mut Flushes> {
        if self.flushes.is_none() {
            let job = &self.work.job;
            let node = job.nodes.as_ref().map_or(0, |nodes| nodes.own);
            let secrets = Secrets::decode(&job.image_files.secret.opened(&job.key)).map_err(io::Error::other)?;
            let sites = Site::all(&job.image_files.places, &secrets, &job.name, node).map_err(io::Error::other)?;
            let directory = self.work.store.as_ref().and_then(|store| store.directory());
            let directory = directory.ok_or(io::ErrorKind::NotFound)?.file().try_clone()?;
            let flushes = Flushes::start(sites, directory)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Flushes.token());
            self.epoll.add(&flushes, event)?;
            self.flushes = Some(flushes);
        }
        self.flushes.as_mut().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Brings an image back from the places of the job.
    pub(in crate::agent) fn fetch(&mut self, offer: Offer) {
        let Some((rank, number)) = offer.what.image() else {
            return;
        };
        let image = note::file_name(rank as usize, number);
        let mut files = vec![image.clone()];
        if offer.beside > 0 {
            files.push(log_of(image.as_ref()).to_string_lossy().into_owned());
        }
        let order = fetch::Order {
            wave: number,
            image: Some(offer),
            files,
        };
        match self.threads_of_places() {
            Ok(threads) => threads.fetcher.order(order),
            Err(error) => {
                let reason = error.to_string();
                self.report(Fact::NotFetched { rank, number, reason });
            }
        }
    }

    /// What was in transit in a wave is not here, for this reason: a place may have it.
    pub(in crate::agent) fn fetch_transit(&mut self, number: u64, error: &io::Error) {
        let order = fetch::Order::transit(number);
        let has_places = !self.work.job.image_files.places.is_empty();
        match self.threads_of_places() {
            Ok(threads) if has_places => threads.fetcher.order(order),
            _ => self.report(Fact::unreadable_transit(number, error)),
        }
    }

    /// Files have come from a place, or cannot.
    fn brought(&mut self, (order, result): fetch::Answer) -> io::Result<()> {
        let number = order.wave;
        let Some(offer) = order.image else {
            let work = &mut self.work;
            let read = result.and_then(|_| work.read_transit(number).map_err(|error| error.to_string()));
            self.report(match read {
                Ok(()) => Fact::TransitKnown { number },
                Err(why) => Fact::unreadable_transit(number, why),
            });
            return Ok(());
        };
        let Some((rank, _)) = offer.what.image() else {
            return Ok(());
        };
        let work = &mut self.work;
        let taken = result.and_then(|_| work.take_in(offer.clone()).map_err(|error| error.to_string()));
        match taken {
            Ok(place) => {
                if place == Place::Everywhere {
                    self.send(&ToDispatcher::Shared(offer))?;
                }
                self.report(Fact::Fetched { rank, number, place });
            }
            Err(reason) => self.report(Fact::NotFetched { rank, number, reason }),
        }
        Ok(())
    }

    /// Threads have answers.
    pub(in crate::agent) fn flushes_event(&mut self) -> io::Result<()> {
        let Some(flushes) = &mut self.flushes else {
            return Ok(());
        };
        let _ = flushes.bell.read();
        let mut sent = Vec::new();
        for (place, answer) in flushes.answers.try_iter() {
            if let Answer::Sent(generation, outcome) = answer {
                let is_it = |one: &mut OnTheirWay| (one.place, one.generation) == (place, generation);
                let Some(one) = flushes.sent.extract_if(.., is_it).next() else {
                    continue;
                };
                let (names, offers) = (one.names, one.offers);
                self.work.store.iter_mut().for_each(|store| store.end_copying(&names));
                sent.push((place, generation, outcome.map(|sent| Sent { offers, ..sent })));
            }
        }
        let fetched: Vec<fetch::Answer> = flushes.fetched.try_iter().collect();
        fetched.into_iter().try_for_each(|answer| self.brought(answer))?;
        for (place, generation, outcome) in sent {
            let outcome = outcome.and_then(|sent| serde_json::to_value(sent).map_err(|error| error.to_string()));
            self.flushed(place, &generation.to_string(), outcome)?;
        }
        Ok(())
    }

    fn flushed(&mut self, place: usize, generation: &str, sent: Result<serde_json::Value, String>) -> io::Result<()> {
        let generation = generation.to_string();
        self.send(&ToDispatcher::Flushed {
            place,
            generation,
            sent,
        })
    }
}

//! Waves in places as a source while the job runs: the coordinator learns which are there, and nodes get what they lack.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use resurgo_protocol::{Command, Fact};
use resurgo_wire::control::ToAgent;
use resurgo_wire::replica::Offer;

use super::{Flushes, Level};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::events::Event;
use crate::fetch::{self, Fetcher, Order};

impl Level {
    pub(super) fn has(&self, wave: u64) -> bool {
        self.whole.iter().any(|whole| whole.number == wave)
    }
}

impl Flushes {
    /// Waves that some place has whole.
    fn whole(&self) -> BTreeSet<u64> {
        let whole = self.levels.iter().flat_map(|level| &level.whole);
        whole.map(|whole| whole.number).collect()
    }

    /// What nodes must know of the image.
    fn offer(&self, rank: u32, number: u64) -> Option<Offer> {
        let whole = self.levels.iter().flat_map(|level| &level.whole);
        let mut offers = whole.flat_map(|whole| &whole.offers);
        offers.find(|offer| offer.what.image() == Some((rank, number))).cloned()
    }

    /// Brings what was in transit in a wave into a directory.
    fn fetch_transit(&mut self, wave: u64, directory: File) -> io::Result<()> {
        let fetcher = match self.fetcher.take() {
            Some(fetcher) => fetcher,
            None => {
                let (way, wake) = (self.fetched.0.clone(), self.wake.try_clone()?);
                Fetcher::start(
                    self.sites.clone(),
                    directory,
                    |_, _| Ok(()),
                    move |answer: fetch::Answer| {
                        if way.send(answer).is_ok() {
                            let _ = (&wake).write(&[0]);
                        }
                    },
                )?
            }
        };
        fetcher.order(Order::transit(wave));
        self.fetcher = Some(fetcher);
        Ok(())
    }
}

impl Dispatcher {
    /// The waves that could be brought back.
    pub(in crate::dispatcher) fn waves_in_places(&self) -> BTreeSet<u64> {
        self.images.flushes.as_ref().map_or(BTreeSet::new(), Flushes::whole)
    }

    /// Places have other waves now, or will have. The accounts of these waves stay.
    pub(in crate::dispatcher) fn tell_whole(&mut self) {
        let Some(flushes) = &self.images.flushes else { return };
        let whole = flushes.whole();
        let on_their_way = flushes.levels.iter().filter_map(|level| level.step.wave());
        let looks = flushes.levels.iter().any(|level| level.looks);
        let perhaps = flushes.former.iter().copied().filter(|_| looks);
        self.ledger.lasting = on_their_way.chain(perhaps).chain(whole.iter().copied()).collect();
        let waves = whole.into_iter().collect();
        self.coordinate(Fact::Beyond { waves });
    }

    /// Has an image come from the places. False: the command is about something else.
    pub(in crate::dispatcher) fn mind_fetch(&mut self, command: &Command) -> bool {
        let Command::Fetch { rank, number, to } = *command else {
            return false;
        };
        let flushes = self.images.flushes.as_mut();
        let offer = flushes.as_ref().and_then(|flushes| flushes.offer(rank, number));
        let Some((flushes, offer)) = flushes.zip(offer) else {
            let reason = "no place has it any more".to_string();
            self.coordinate(Fact::NotFetched { rank, number, reason });
            return true;
        };
        if std::mem::replace(&mut flushes.coming, number) != number {
            let levels = flushes.levels.iter().filter(|level| level.has(number));
            let places: Vec<&str> = levels.map(|level| level.place.shown.as_str()).collect();
            let places = places.join(" or ");
            self.bus.tell(Event::WaveComes {
                wave: number,
                places: &places,
            });
        }
        self.agents.node(to as usize).queue(&ToAgent::Fetch(offer));
        true
    }

    /// What was in transit in the wave is not here. True: it comes from a place.
    pub(in crate::dispatcher) fn may_fetch_transit(&mut self, wave: u64) -> bool {
        let Some(files) = &self.suspension.files else {
            return false;
        };
        let directory = files.file();
        let flushes = self
            .images
            .flushes
            .as_mut()
            .filter(|flushes| flushes.whole().contains(&wave));
        flushes
            .zip(directory.ok())
            .is_some_and(|(flushes, directory)| flushes.fetch_transit(wave, directory).is_ok())
    }

    pub(super) fn transit_fetched(&mut self, number: u64, result: Result<u64, String>) {
        let fact = match result {
            Ok(_) => self.read_transit(number),
            Err(why) => Fact::unreadable_transit(number, why),
        };
        self.coordinate(fact);
    }
}

//! Recorded waves are copied into places, some time later or not at all, and nodes get back what they have lost.

use resurgo_protocol::coordinator::Place;
use resurgo_protocol::{Fact, Rank};

use super::nodes::{Life, Storage};
use super::places::InPlace;
use super::rank::{Memory, Piece};
use super::{Event, Whole, World};
use crate::checkers::{KEPT, Violation, violation};
use crate::mutation::Mutation;

impl World {
    /// The wave is recorded: it may go to a place, if none is on its way.
    pub(super) fn store_wave(&mut self, number: u64) -> Result<(), Violation> {
        let latency = self.pace.latency;
        let size = self.size as Rank;
        let (files, ends) = (&self.agent.files, &self.agent.ends);
        let forgets = self.mutation == Some(Mutation::StoreWithoutLaterEnds);
        let image = |rank: Rank| match files.get(&(rank, number)).cloned() {
            Some(_) if forgets && self.agent.finished[rank as usize] => Some(None),
            None if ends.contains(&(rank, number)) => Some(None),
            image => image.map(Some),
        };
        let images: Option<Vec<Option<Memory>>> = (0..size).map(image).collect();
        let transit = self.agent.transit_file(number);
        let places = &mut self.places;
        let Some((random, mut images)) = places.random.as_mut().zip(images) else {
            return Ok(());
        };
        if places.on_its_way.is_some() || random.one_in(3) {
            return Ok(());
        }
        let after = 1 + random.below(latency * 20);
        let launcher = places.launcher;
        if self.mutation == Some(Mutation::CountPartOfPlace) {
            // The rest has not come.
            images.truncate(images.len() / 2);
            let starts = images.len() as Rank..size;
            images.extend(starts.map(|rank| Some(Memory::new(self.job.start(rank), self.size))));
        }
        self.places.on_its_way = Some((number, Whole { images, transit }));
        self.schedule(after, Event::Place(InPlace::Copied(launcher)));
        Ok(())
    }

    pub(super) fn happens_in_place(&mut self, what: InPlace) -> Result<(), Violation> {
        match what {
            InPlace::Copied(launcher) if launcher == self.places.launcher => self.wave_copied(),
            InPlace::Fetched(launcher, rank, number, life) if launcher == self.places.launcher => {
                self.image_fetched(rank, number, life)
            }
            _ => Ok(()),
        }
    }

    fn wave_copied(&mut self) -> Result<(), Violation> {
        let places = &mut self.places;
        let Some(((number, whole), random)) = places.on_its_way.take().zip(places.random.as_mut()) else {
            return Ok(());
        };
        if random.one_in(4) {
            self.note(|| format!("wave {number} could not be stored"));
            return Ok(());
        }
        places.whole.insert(number, whole);
        while places.whole.len() > places.keep {
            places.whole.pop_first();
        }
        let waves: Vec<u64> = places.whole.keys().copied().collect();
        self.note(|| format!("places have waves {waves:?}"));
        match self.is(Mutation::ForgetPlaces) {
            true => Ok(()),
            false => self.coordinate(Fact::Beyond { waves }),
        }
    }

    /// The agent of the node brings an image.
    pub(super) fn fetch(&mut self, node: usize, rank: Rank, number: u64) -> Result<(), Violation> {
        let latency = self.pace.latency;
        let Some(random) = &mut self.places.random else {
            return Ok(());
        };
        let after = 1 + random.below(latency * 10);
        self.note(|| format!("node {node} gets image {number} of {rank} from a place"));
        let (launcher, life) = (self.places.launcher, self.nodes.of[node].life);
        self.schedule(after, Event::Place(InPlace::Fetched(launcher, rank, number, life)));
        match self.is(Mutation::BeginBeforeFetched) {
            true => self.tell_fetched(node, rank, number),
            false => Ok(()),
        }
    }

    fn image_fetched(&mut self, rank: Rank, number: u64, life: Life) -> Result<(), Violation> {
        if self.nodes.linked && !self.nodes.is_alive(life.node, life.serial) {
            return Ok(());
        }
        let other = self
            .is(Mutation::FetchOtherWave)
            .then(|| self.places.whole.keys().min());
        let read = other.flatten().copied().unwrap_or(number);
        let whole = self.places.whole.get(&read);
        let image = whole.map(|whole| whole.images[rank as usize].clone());
        if image.as_ref().is_some_and(Option::is_none) && other.is_none() {
            return violation(
                KEPT,
                format!("places have no image {number} of {rank}, which is needed"),
            );
        }
        let image = image.flatten();
        let places = &mut self.places;
        let is_damaged = places.random.as_mut().is_none_or(|random| random.one_in(8));
        let Some(image) = image.filter(|_| !is_damaged) else {
            places.bad.insert(number);
            let reason = "it is damaged".to_string();
            self.note(|| format!("no place has image {number} of {rank} whole"));
            return self.tell_from(life.node, Fact::NotFetched { rank, number, reason });
        };
        places.fetched.insert((rank, number));
        self.agent.files.insert((rank, number), image);
        let at = self.nodes.disk_of(life.node);
        self.nodes.damaged.remove(&(rank, number, at));
        let stored = self.nodes.stored.entry((rank, number)).or_default();
        stored.insert((life.node, life.serial));
        self.nodes.come_back.insert((rank, number));
        match self.is(Mutation::BeginBeforeFetched) {
            true => Ok(()),
            false => {
                self.tell_fetched(life.node, rank, number)?;
                self.spite(life.node)
            }
        }
    }

    fn tell_fetched(&mut self, node: usize, rank: Rank, number: u64) -> Result<(), Violation> {
        let place = match self.nodes.linked && self.nodes.storage == Storage::Shared {
            true => Place::Everywhere,
            false => Place::Node(node as u32),
        };
        self.tell_from(node, Fact::Fetched { rank, number, place })
    }

    /// The dispatcher hears of images from places.
    pub(super) fn hears_of_places(&mut self, fact: &Fact) {
        match *fact {
            Fact::Fetched { rank, number, place } => {
                self.nodes.given_up.remove(&(rank, number));
                self.nodes.come_back.remove(&(rank, number));
                self.nodes.told.insert((rank, number));
                // It was on no node that counts.
                self.nodes.going.remove(&(rank, number));
                self.nodes.known.remove(&(rank, number));
                if let Place::Node(node) = place {
                    self.nodes.is_known_on(node as usize, rank, number);
                }
            }
            Fact::FileLost { rank, number, .. } if self.places.fetched.contains(&(rank, number)) => {
                self.places.bad.insert(number);
            }
            _ => {}
        }
    }

    /// What was in transit in the wave comes from a place, if one has it.
    pub(super) fn transit_from_place(&mut self, number: u64) -> Option<Vec<Vec<Vec<Piece>>>> {
        let is_there = self.places.has(number);
        let transit = self.places.whole.get(&number).filter(|_| is_there)?.transit.clone()?;
        let is_damaged = self.places.random.as_mut().is_some_and(|random| random.one_in(8));
        if is_damaged {
            return None;
        }
        self.agent.keep_transit_file(number, transit.clone());
        Some(transit)
    }

    /// What the place has of the wave is of no use.
    pub(super) fn is_bad_in_places(&mut self, number: u64) {
        self.places.bad.insert(number);
    }
}

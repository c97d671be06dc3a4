//! When recorded waves go to the job's places, and what follows from the answers.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use resurgo_store::own_directory::{Directory, Trust};
use resurgo_store::{About, Generation};
use resurgo_wire::control::{Flush, ToAgent};
use serde_json::{Value, json};

use super::{IN_TIME, Level, Recorded, Step, Wave};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::events::Event;
use crate::fetch;
use crate::flush::{Answer, DISPATCHERS, IMAGES, Order, Sent, Whole};
use crate::job_key::KEY;
use crate::suspended::{FILE, transit};

impl Dispatcher {
    pub(in crate::dispatcher) fn tell_places_away(&mut self) {
        let away = self
            .images
            .flushes
            .as_mut()
            .map(|flushes| std::mem::take(&mut flushes.away));
        for (place, reason) in away.unwrap_or_default() {
            let (place, reason) = (&place, &reason);
            self.bus.tell(Event::PlaceAway { place, reason });
        }
    }

    /// A wave is recorded. It goes to the places whose turn it is.
    pub(in crate::dispatcher) fn flush_wave(&mut self, number: u64, directory: &Path) {
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        let newest = flushes.newest.as_ref().map(|newest| newest.wave.number);
        if let Some(gone_on_from) = flushes
            .floor
            .take()
            .or(newest.filter(|newest| *newest > number).map(|_| number))
        {
            // All have gone on from an older wave than there was.
            flushes.forget(gone_on_from);
        }
        let oldest = self
            .coordinator
            .waves_in_files(0)
            .into_iter()
            .filter(|wave| *wave <= number)
            .min();
        let wave = Wave {
            number,
            oldest: oldest.unwrap_or(number),
        };
        // Of other ranks their ends, which the record has, are part of the wave.
        let images = (0..self.pids.len())
            .filter(|rank| !self.coordinator.has_end(*rank as u32, number))
            .count();
        // The next record replaces them.
        let files = self.own_files(wave, directory);
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        flushes.newest = Some(Recorded { wave, images, files });
        let mut behind = Vec::new();
        for level in &mut flushes.levels {
            level.waves += 1;
            if level.waves % level.place.every != 0 {
                continue;
            }
            if matches!(level.step, Step::Idle) {
                level.behind = level.behind.map(|waves| waves + 1).filter(|waves| *waves < IN_TIME);
                level.begin(wave);
                continue;
            }
            level.is_due = true;
            if level.behind.replace(0).is_none() {
                behind.push((level.place.shown.clone(), level.began.elapsed()));
            }
        }
        self.tell_whole();
        for (place, since) in behind {
            self.bus.tell(Event::PlaceBehind { place: &place, since });
        }
    }

    /// The job is suspended in files, which all go to the places.
    pub(in crate::dispatcher) fn flush_suspension(&mut self, directory: &Path) {
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        let Some(wave) = self.coordinator.waves_in_files(0).into_iter().max() else {
            let reason = "it has images of single ranks only, which stay where they are";
            return self.bus.tell(Event::SuspensionNotFlushed { reason });
        };
        // The record of this wave, or of one that is damaged.
        flushes.forget(wave.saturating_sub(1));
        for level in &mut flushes.levels {
            level.place.every = 1;
        }
        self.flush_wave(wave, directory);
    }

    /// No place has anything to do.
    pub(in crate::dispatcher) fn have_flushed(&self) -> bool {
        let mut levels = self.images.flushes.iter().flat_map(|flushes| &flushes.levels);
        levels.all(|level| matches!(level.step, Step::Idle))
    }

    /// Takes up what the places have answered.
    pub(in crate::dispatcher) fn mind_flushes(&mut self) {
        let Some(flushes) = &self.images.flushes else { return };
        let answers: Vec<(usize, Answer)> = flushes.answers.try_iter().collect();
        let fetched: Vec<fetch::Answer> = flushes.fetched.1.try_iter().collect();
        fetched
            .into_iter()
            .for_each(|(order, result)| self.transit_fetched(order.wave, result));
        for (place, answer) in answers {
            match answer {
                Answer::Begun(Ok(generation)) => {
                    let flushes = self.images.flushes.iter_mut();
                    flushes.for_each(|flushes| flushes.servers.is_new = false);
                    self.begun(place, generation);
                }
                Answer::Begun(Err(reason)) => self.not_flushed(place, None, &reason),
                Answer::Sent(generation, sent) => self.part_is_there(place, DISPATCHERS, generation, sent),
                Answer::Committed(generation, Ok(())) => self.committed(place, generation),
                Answer::Committed(generation, Err(reason)) => self.not_flushed(place, Some(generation), &reason),
                Answer::Seen(seen) => {
                    if let Some(flushes) = &mut self.images.flushes {
                        flushes.seen(place, seen.unwrap_or_default());
                    }
                    self.tell_whole();
                }
                Answer::Removed(_) => {}
            }
        }
        self.mind_store_servers();
    }

    /// Tells where what is stored stays, if the job has started servers for it.
    fn tell_what_servers_keep(&mut self) {
        let Some(flushes) = &self.images.flushes else { return };
        let servers = flushes.servers.all.iter();
        let kept: Vec<(String, PathBuf)> = servers
            .map(|server| (server.address.clone(), server.directory.clone()))
            .collect();
        if !kept.is_empty() && !flushes.servers.is_new {
            self.bus.tell(Event::StoreServersKeep { kept: &kept });
        }
    }

    fn level(&mut self, place: usize) -> Option<&mut Level> {
        self.images.flushes.as_mut()?.levels.get_mut(place)
    }

    /// All send their files of the wave, if these are still there.
    fn begun(&mut self, place: usize, generation: Generation) {
        let nodes = self.agents.numbers();
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        let level = &mut flushes.levels[place];
        let wave = match level.step {
            Step::Beginning(wave) if wave.number == generation.number => wave,
            // It was begun before all went on from an older wave.
            _ => return level.worker.order(Order::Abandon { generation }),
        };
        let newest = flushes.newest.as_ref();
        let Some(recorded) = newest.filter(|recorded| recorded.wave == wave) else {
            // Files of the former record may be gone.
            level.worker.order(Order::Abandon { generation });
            match newest {
                Some(newest) => level.begin(newest.wave),
                None => level.step = Step::Idle,
            }
            return;
        };
        let sources = match recorded.sources() {
            Ok(sources) => sources,
            Err(reason) => return self.not_flushed(place, Some(generation), &reason),
        };
        level.worker.order(Order::Send { generation, sources });
        level.step = Step::Sending {
            generation,
            awaited: nodes.iter().map(|node| *node as u32).chain([DISPATCHERS]).collect(),
            parts: Vec::new(),
            put: 0,
            missing: recorded.images,
            offers: Vec::new(),
        };
        self.tell(ToAgent::Flush(Flush {
            place,
            generation: generation.to_string(),
            waves: (wave.oldest, wave.number),
        }));
    }

    /// The files of the record that no agent has.
    fn own_files(&self, wave: Wave, directory: &Path) -> io::Result<Vec<(String, File)>> {
        let directory = Directory::open(directory, Trust::Groups)?;
        let mut names = vec![FILE.to_string(), KEY.to_string()];
        if self.agents.are_several() {
            let in_transit = (wave.oldest..=wave.number).map(transit::name);
            let there = in_transit.filter(|name| directory.has(name));
            names.extend(there.map(|name| name.to_string_lossy().into_owned()));
        }
        let opened = names.into_iter().map(|name| {
            let file = directory.open_file(&name, OFlag::O_RDONLY)?;
            Ok((name, file))
        });
        opened.collect()
    }

    /// An agent has sent its part, or could not.
    pub(in crate::dispatcher) fn flushed(
        &mut self,
        node: usize,
        place: usize,
        generation: &str,
        sent: Result<Value, String>,
    ) {
        let Ok(generation) = generation.parse() else { return };
        let sent = sent.and_then(|sent| serde_json::from_value(sent).map_err(|error| error.to_string()));
        self.part_is_there(place, node as u32, generation, sent);
    }

    fn part_is_there(&mut self, place: usize, node: u32, generation: Generation, sent: Result<Sent, String>) {
        let Some(level) = self.level(place) else { return };
        let Step::Sending {
            generation: present,
            awaited,
            parts,
            put,
            missing,
            offers,
        } = &mut level.step
        else {
            return;
        };
        if *present != generation || !awaited.remove(&node) {
            return;
        }
        let sent = match sent {
            Ok(sent) => sent,
            Err(reason) => return self.not_flushed(place, Some(generation), &reason),
        };
        parts.push(sent.note);
        offers.extend(sent.offers);
        *put += sent.put;
        *missing = missing.saturating_sub(sent.images);
        if !awaited.is_empty() {
            return;
        }
        if *missing > 0 {
            // Ranks have come to other nodes since.
            return self.not_flushed(place, Some(generation), "no node has all images of its ranks");
        }
        let (parts, put, offers) = (std::mem::take(parts), *put, std::mem::take(offers));
        let images = json!(offers);
        let bytes = parts.iter().map(|part| part.bytes).sum();
        level.step = Step::Committing {
            generation,
            bytes,
            put,
            offers,
        };
        let about = self.about_generation(images);
        if let Some(level) = self.level(place) {
            let keep = level.place.keep;
            level.worker.order(Order::Commit {
                generation,
                about,
                parts,
                keep,
            });
        }
    }

    /// `images`: what nodes must know of them, also in later runs.
    fn about_generation(&self, images: Value) -> About {
        About {
            unix_time: crate::unix_time(),
            title: self.about.command.clone(),
            ranks: self.pids.len() as u32,
            protocol: self.coordinator.protocol().name().to_string(),
            more: json!({
                "number": std::process::id(),
                "directory": self.suspension.directory.to_string_lossy(),
                IMAGES: images,
            }),
        }
    }

    fn committed(&mut self, place: usize, generation: Generation) {
        let Some(level) = self.level(place) else { return };
        let (bytes, put, offers) = match &mut level.step {
            Step::Committing {
                generation: present,
                bytes,
                put,
                offers,
            } if *present == generation => (*bytes, *put, std::mem::take(offers)),
            _ => return,
        };
        let number = generation.number;
        level.whole.retain(|whole| whole.number != number);
        level.whole.push(Whole { number, offers });
        let too_many = level.whole.len().saturating_sub(level.place.keep);
        level.whole.drain(..too_many);
        let (shown, took) = (level.place.shown.clone(), level.began.elapsed());
        self.bus.tell(Event::WaveFlushed {
            wave: generation.number,
            place: &shown,
            bytes,
            put,
            took,
        });
        self.go_on_flushing(place);
        self.tell_whole();
    }

    fn not_flushed(&mut self, place: usize, generation: Option<Generation>, reason: &str) {
        let Some(level) = self.level(place) else { return };
        let wave = match (&level.step, generation) {
            (Step::Beginning(wave), None) => wave.number,
            (Step::Beginning(wave), Some(given)) if wave.number == given.number => given.number,
            (Step::Sending { generation, .. } | Step::Committing { generation, .. }, Some(given))
                if *generation == given =>
            {
                given.number
            }
            // The place was told to do something else meanwhile.
            _ => return,
        };
        if let Some(generation) = generation {
            level.worker.order(Order::Abandon { generation });
        }
        let shown = level.place.shown.clone();
        self.bus.tell(Event::WaveNotFlushed {
            wave,
            place: &shown,
            reason,
        });
        self.go_on_flushing(place);
    }

    fn go_on_flushing(&mut self, place: usize) {
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        let level = &mut flushes.levels[place];
        level.step = Step::Idle;
        if let Some(newest) = flushes.newest.as_ref().filter(|_| level.is_due) {
            level.begin(newest.wave);
        }
    }

    /// A node is lost: its part will not come.
    pub(in crate::dispatcher) fn flushes_lack(&mut self, node: u32) {
        let levels = self
            .images
            .flushes
            .iter()
            .flat_map(|flushes| flushes.levels.iter().enumerate());
        let lacking = levels.filter_map(|(place, level)| match &level.step {
            Step::Sending {
                generation, awaited, ..
            } if awaited.contains(&node) => Some((place, *generation)),
            _ => None,
        });
        for (place, generation) in lacking.collect::<Vec<_>>() {
            self.not_flushed(place, Some(generation), "a node is lost");
        }
    }

    /// What a place gets at present, or has to do for it, by the names of the places.
    pub(in crate::dispatcher) fn busy_places(&self) -> String {
        let levels = self.images.flushes.iter().flat_map(|flushes| &flushes.levels);
        let busy = levels.filter(|level| !matches!(level.step, Step::Idle));
        busy.map(|level| level.place.shown.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// At the end of the job nothing of it stays in its places.
    pub(in crate::dispatcher) fn forgets_places(&self, well: bool) -> bool {
        self.suspension.has_finished && well && !self.images.stay
    }

    /// No process of the job runs any more.
    pub(in crate::dispatcher) fn end_flushes(&mut self, well: bool) {
        let forget = self.forgets_places(well);
        if !forget {
            self.tell_what_servers_keep();
        }
        let Some(flushes) = self.images.flushes.take() else {
            return;
        };
        let (reasons, kept) = flushes.close(forget);
        for reason in reasons {
            self.bus.tell(Event::PlaceKeeps { reason: &reason });
        }
        if !kept.is_empty() {
            self.bus.tell(Event::StoreServersKeep { kept: &kept });
        }
    }

    /// The job cannot be resumed from what is recorded.
    pub(in crate::dispatcher) fn nothing_to_flush(&mut self) {
        if let Some(flushes) = &mut self.images.flushes {
            flushes.newest = None;
            flushes.forget(0);
        }
    }
}

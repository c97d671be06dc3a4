//! What lies beside images of logs. It may be long: threads take it and put it back, as the agent has its lease to
//! keep.

use std::ffi::OsString;
use std::fs::File;
use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_wire::image::Datagram;

use super::chores::Done;
use super::logs_beside::LogBeside;
use super::node::NodeMemory;
use super::ship::Awaited;
use super::wave_logs::LogOfWave;
use super::{Agent, Source, Work};
use crate::note;

/// What an image needs of its rank's log.
enum Needs {
    /// What the rank had sent to so many ranks, by the counts in a slot: it has the image alone.
    Sent { slot: usize, ranks: usize },
    /// What was under way in its wave; per rank, the slot of its cursors.
    UnderWay(Vec<Option<usize>>),
}

impl Needs {
    fn take(&self, memory: &NodeMemory, image: (usize, u64)) -> io::Result<Vec<u8>> {
        let (rank, _) = image;
        match self {
            Needs::Sent { slot, ranks } => memory.take_log_beside(rank, *slot, *ranks)?.encode(image),
            Needs::UnderWay(slots) => memory.take_log(rank, slots)?.encode(image),
        }
    }
}

fn name_of(rank: usize, number: u64) -> OsString {
    note::file_name(rank, number).into()
}

impl Work {
    /// What images need of logs lies beside them.
    pub(super) fn has_logs_beside(&self) -> bool {
        self.job.moves_ranks() || self.has_logs_of_waves()
    }

    /// Takes what the image needs of its rank's log: [`Done::LogTaken`] follows.
    fn take_log(&self, rank: usize, number: u64) -> io::Result<()> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let needs = match self.job.moves_ranks() {
            true => Needs::Sent {
                slot: self.ranks[rank].images.slot_of(number).ok_or(io::ErrorKind::NotFound)?,
                ranks: self.ranks.len(),
            },
            false => Needs::UnderWay(self.slots_of_wave(number)?),
        };
        let (memory, logs) = (self.memory.again()?, store.logs());
        self.chores.order(move |is_void| {
            let written = match is_void {
                true => Err(io::Error::other("logs have begun anew")),
                false => needs.take(&memory, (rank, number)),
            };
            let written = written.and_then(|log| logs.write(&name_of(rank, number), log));
            // It is on the disk before its image counts.
            let synced = written.as_ref().map_or(Ok(()), File::sync_all);
            let written = written.and(synced);
            Done::LogTaken {
                rank: rank as u32,
                number,
                result: written.map_err(|error| error.to_string()),
            }
        })
    }

    /// A life begins from this image, and its rank's log is not in the memory, or not all of it: it lies beside the
    /// image. True: it is being put back, and [`Done::LogPut`] follows.
    pub(super) fn put_back(&mut self, rank: usize, number: u64) -> io::Result<bool> {
        let moves = self.job.moves_ranks();
        let images = &self.ranks[rank].images;
        if !images.lacks_log || !(moves || self.has_logs_of_waves()) {
            return Ok(false);
        }
        if number == 0 {
            if moves {
                // All of its record is needed.
                self.memory.lose_record(rank, 0)?;
                self.ranks[rank].images.lacks_log = false;
            }
            return Ok(false);
        }
        let (file, store) = images
            .file(number)
            .zip(self.store.as_ref())
            .ok_or(io::ErrorKind::NotFound)?;
        let (memory, logs, name) = (self.memory.again()?, store.logs(), file.name.clone());
        let above = match images.begins_from_oldest {
            // Event loggers may have forgotten what is before it.
            true if moves => self.memory.deliveries_of_image(rank, file.slot)?,
            _ => file.above,
        };
        let putting = Some((number, self.chores.anew()));
        if images.putting == putting {
            return Ok(true);
        }
        let ranks = self.ranks.len();
        let put = move || {
            let log = logs.read(&name)?;
            if !moves {
                return memory.put_log(rank, &LogOfWave::decode(&log, (rank, number))?);
            }
            memory.put_log_beside(rank, ranks, &LogBeside::decode(&log, (rank, number))?)?;
            memory.lose_record(rank, above)
        };
        if self.copies.is_none() {
            // The job has one node, and nothing runs yet.
            put()?;
            self.ranks[rank].images.lacks_log = false;
            return Ok(false);
        }
        self.chores.order(move |is_void| Done::LogPut {
            rank: rank as u32,
            number,
            result: match is_void {
                true => Ok(()),
                false => put().map_err(|error| error.to_string()),
            },
        })?;
        self.ranks[rank].images.putting = putting;
        Ok(true)
    }
}

impl Agent {
    pub(super) fn watch_chores(&self) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Chores.token());
        Ok(self.epoll.add(&self.work.chores, event)?)
    }

    /// Threads have worked on logs.
    pub(super) fn chores_event(&mut self) -> io::Result<()> {
        for (done, is_void) in self.work.chores.done() {
            match done {
                Done::LogTaken { rank, number, result } => self.log_taken(rank as usize, number, result),
                Done::LogPut { rank, number, .. } if is_void => self.log_put_in_vain(rank, number),
                Done::LogPut { rank, number, result } => self.log_put(rank, number, &result)?,
            }
        }
        self.tell_held()
    }

    /// All of an image's file is written. It counts when what it needs of the log lies beside it.
    pub(super) fn image_is_written(&mut self, rank: usize, said: Datagram) {
        let number = said.a;
        let has_log = self.work.has_logs_beside();
        let writing = self.work.ranks[rank].images.writing.as_mut();
        let done = match writing.filter(|_| has_log) {
            Some(writing) => {
                writing.said = Some(said);
                self.work.take_log(rank, number)
            }
            None => self.work.name_file(rank, &said),
        };
        if let Err(error) = done {
            self.not_written(rank, number, error.to_string());
        }
    }

    /// What the image needs of the log has been written beside it.
    pub(super) fn log_taken(&mut self, rank: usize, number: u64, result: Result<(), String>) {
        let writing = self.work.ranks[rank].images.writing.as_mut();
        let said = writing
            .filter(|file| file.number == number)
            .and_then(|file| file.said.take());
        let Some(said) = said else {
            // It has been given up.
            let store = self.work.store.iter();
            return store.for_each(|store| store.logs().remove(&name_of(rank, number)));
        };
        let named = result.and_then(|()| self.work.name_file(rank, &said).map_err(|error| error.to_string()));
        if let Err(reason) = named {
            self.not_written(rank, number, reason);
        }
    }

    /// What lay beside the image is in the memory: the life that waits for that begins.
    fn log_put(&mut self, rank: u32, number: u64, result: &Result<(), String>) -> io::Result<()> {
        let Some(copies) = &mut self.work.copies else {
            return Ok(());
        };
        let is_it = |awaited: &mut Awaited| (awaited.rank, awaited.number) == (rank, number);
        let ready: Vec<Awaited> = copies.awaited.extract_if(.., is_it).collect();
        let images = &mut self.work.ranks[rank as usize].images;
        images.lacks_log &= result.is_err();
        images.putting = None;
        for awaited in ready {
            let life = awaited.life;
            if let Err(why) = result {
                self.file_lost(rank as usize, number, format!("what it needs of the log: {why}"));
                self.report(Fact::NotBegun { rank, life });
                continue;
            }
            self.begin_awaited(&awaited)?;
        }
        Ok(())
    }

    /// The same, and since then the memory has begun anew. Lives of that time have been ended; a later one has an order
    /// of its own.
    fn log_put_in_vain(&mut self, rank: u32, number: u64) {
        let of = |awaited: &mut Awaited| (awaited.rank, awaited.number) == (rank, number) && awaited.is_ended;
        let awaited = self
            .work
            .copies
            .iter_mut()
            .flat_map(|copies| copies.awaited.extract_if(.., of));
        for life in awaited.map(|awaited| awaited.life).collect::<Vec<_>>() {
            self.report(Fact::NotBegun { rank, life });
        }
    }
}

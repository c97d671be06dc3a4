//! What lies beside images of logs. Where ranks have images alone it may be long: threads take it and put it back, as
//! the agent has its lease to keep.

use std::ffi::OsString;
use std::io;

use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::From;
use resurgo_wire::image::Datagram;

use super::logs_beside::LogBeside;
use super::ship::{Awaited, Event};
use super::{Agent, Work};
use crate::note;

fn name_of(rank: usize, number: u64) -> OsString {
    note::file_name(rank, number).into()
}

impl Work {
    /// What images need of logs lies beside them.
    pub(super) fn has_logs_beside(&self) -> bool {
        self.job.moves_ranks() || self.has_logs_of_waves()
    }

    /// Takes what the image needs of its rank's log: [`Event::LogTaken`] follows.
    fn take_log(&self, rank: usize, number: u64) -> io::Result<()> {
        let slot = self.ranks[rank].images.slot_of(number);
        let places = slot.zip(self.copies.as_ref()).zip(self.store.as_ref());
        let ((slot, copies), store) = places.ok_or(io::ErrorKind::NotFound)?;
        let (memory, logs, ranks) = (self.memory.again()?, store.logs(), self.ranks.len());
        copies.shipping.have_done(move || {
            let taken = memory.take_log_beside(rank, slot, ranks);
            let taken = taken.and_then(|log| log.encode((rank, number)));
            let written = taken.and_then(|log| logs.write(&name_of(rank, number), log));
            Event::LogTaken {
                rank: rank as u32,
                number,
                result: written.map(|_| ()).map_err(|error| error.to_string()),
            }
        })
    }

    /// A life begins from this image, and its rank's log is not in the memory, or not all of it: it lies beside the
    /// image. True: it is being put back, and [`Event::LogPut`] follows.
    pub(super) fn put_back(&mut self, rank: usize, number: u64) -> io::Result<bool> {
        if !self.job.moves_ranks() {
            return self.put_back_log(rank, number).map(|()| false);
        }
        let ranks = self.ranks.len();
        let images = &mut self.ranks[rank].images;
        if !images.lacks_log {
            return Ok(false);
        }
        if number == 0 {
            images.lacks_log = false;
            // All of its record is needed.
            return self.memory.lose_record(rank, 0).map(|()| false);
        }
        let places = images.file(number).zip(self.copies.as_ref()).zip(self.store.as_ref());
        let ((file, copies), store) = places.ok_or(io::ErrorKind::NotFound)?;
        let (memory, logs) = (self.memory.again()?, store.logs());
        let name = file.name.clone();
        let above = match images.begins_from_oldest {
            // Event loggers may have forgotten what is before it.
            true => self.memory.deliveries_of_image(rank, file.slot)?,
            false => file.above,
        };
        let put = move || {
            let log = LogBeside::decode(&logs.read(&name)?, (rank, number))?;
            memory.put_log_beside(rank, ranks, &log)?;
            memory.lose_record(rank, above)
        };
        copies.shipping.have_done(move || Event::LogPut {
            rank: rank as u32,
            number,
            result: put().map_err(|error| error.to_string()),
        })?;
        Ok(true)
    }
}

impl Agent {
    /// All of an image's file is written. It counts when what it needs of the log lies beside it.
    pub(super) fn image_is_written(&mut self, rank: usize, said: Datagram) {
        let number = said.a;
        let moves = self.work.job.moves_ranks();
        let writing = self.work.ranks[rank].images.writing.as_mut();
        let done = match writing.filter(|_| moves) {
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
    pub(super) fn log_put(&mut self, rank: u32, number: u64, result: Result<(), String>) -> io::Result<()> {
        let Some(copies) = &mut self.work.copies else {
            return Ok(());
        };
        let is_it = |awaited: &mut Awaited| (awaited.rank, awaited.number) == (rank, number);
        let ready: Vec<Awaited> = copies.awaited.extract_if(.., is_it).collect();
        self.work.ranks[rank as usize].images.lacks_log &= result.is_err();
        for awaited in ready {
            let life = awaited.life;
            if let Err(why) = &result {
                self.file_lost(rank as usize, number, format!("what it needs of the log: {why}"));
                self.report(Fact::NotBegun { rank, life });
                continue;
            }
            self.begin_here(rank, life, From::File(number), awaited.together, None)?;
            if awaited.is_ended {
                self.work.ranks[rank as usize].end_by_order(life);
            }
        }
        Ok(())
    }
}

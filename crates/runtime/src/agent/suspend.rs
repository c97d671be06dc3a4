//! Suspending a job, and resuming a suspended or interrupted one.
//!
//! The agent kills all ranks at one moment. They can go on from their image files, logs and records, as if all had
//! failed at once. The agent writes down the node memory, the spill file and the list of image files. The dispatcher
//! adds its ledger and the standard input so far. See `record.rs` for the record that is written while they run.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use resurgo_protocol::coordinator::Former;
use resurgo_wire::control::{Job, ToDispatcher};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::ImageFile;
use super::net::{Held, HeldBack};
use super::ranks::Rank;
use super::store::Store;
use super::{Agent, Work};
use crate::suspended::ranks::{FileState, RankState};
use crate::suspended::{self, About, Header, Reader, Section, Writer};
use resurgo_store::own_directory::Directory;

/// How far the suspension of a job has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    #[default]
    No,
    /// All ranks are killed, and some have not ended yet.
    Ending,
    /// No rank has a process.
    Done,
}

/// The agent's part of the file.
#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub ranks: Vec<RankState>,
}

impl Work {
    /// The directory, on a disk, of image files and all else that a later run needs.
    pub(super) fn directory(&self) -> Option<&Directory> {
        self.store.as_ref()?.directory()
    }

    pub(super) fn is_halting(&self) -> bool {
        self.halt != Halt::No
    }

    pub(super) fn state(&self) -> State {
        State {
            ranks: self.ranks.iter().map(Rank::state).collect(),
        }
    }

    /// The same with what the file of the suspended job needs of the node memory, if that is in no file.
    pub(super) fn state_with_notes(&self, rank: usize) -> io::Result<RankState> {
        let mut state = self.ranks[rank].state();
        state.noted = self.memory.noted(rank)?;
        Ok(state)
    }

    /// Takes up ranks of a job without its node memory.
    pub(super) fn take_up(&mut self, ranks: Vec<RankState>) -> io::Result<()> {
        for (rank, state) in ranks.iter().enumerate() {
            self.memory.set_noted(rank, &state.noted)?;
        }
        let ranks = ranks.into_iter().map(|state| {
            let are_lost = state.noted.is_empty() && state.number > 0;
            let mut rank = Rank::from_state(state);
            if are_lost {
                rank.notes_lost_ns = rank.rested_ns;
            }
            rank
        });
        self.ranks = ranks.collect();
        Ok(())
    }

    /// Takes up all ranks. `has_memory`: their node memory has come from the file.
    fn take_up_all(&mut self, ranks: Vec<RankState>, has_memory: bool) -> io::Result<()> {
        if has_memory {
            self.memory.know_layout()?;
        }
        self.memory.forget_costs(ranks.len())?;
        match has_memory {
            true => self.ranks = ranks.into_iter().map(Rank::from_state).collect(),
            false => self.take_up(ranks)?,
        }
        Ok(())
    }

    /// A job that goes on begins from images of a wave, with logs beside them.
    pub(super) fn begin_from_wave(&mut self) {
        self.ranks.iter_mut().for_each(|rank| rank.images.lacks_log = true);
        if let Some(with_waves) = self.job.protocol.with_waves() {
            self.job.protocol = with_waves;
        }
    }

    /// The job can be resumed from the files that its ranks have; others are of no use.
    fn pin_files(&mut self) {
        let files = self.files_of(|_| true);
        if let Some(store) = &mut self.store {
            store.pin(files, |_| true);
            store.remove_others();
        }
    }

    fn begin_writing(&self, store: &Store, about: Value, input: Option<&OsStr>) -> io::Result<Writer> {
        let about: About = serde_json::from_value(about)?;
        let mut state = self.state();
        if !self.logs() {
            let ranks = (0..self.ranks.len()).map(|rank| self.state_with_notes(rank));
            state.ranks = ranks.collect::<io::Result<_>>()?;
        }
        let state = serde_json::to_value(state)?;
        let header = Header::of(about, suspended::lasting(&self.job), state);
        let whole = |file: Option<&File>| -> io::Result<Section> {
            Ok(Section {
                file: file.map(File::try_clone).transpose()?,
                ..Section::default()
            })
        };
        // Without logs, images of a wave need nothing of it.
        let mut memory = whole(self.logs().then(|| self.memory.file()))?;
        memory.unneeded = self.memory.free_segments(self.ranks.len())?;
        let input = input.map(File::open).transpose()?;
        let sections = vec![memory, whole(self.spill.as_ref())?, whole(input.as_ref())?];
        let directory = store.directory().ok_or(io::ErrorKind::NotFound)?;
        Writer::begin(directory, store.key(), &header, sections)
    }
}

impl Agent {
    /// Tells the dispatcher when no rank has a process any more.
    pub(super) fn mind_halt(&mut self) -> io::Result<()> {
        let work = &mut self.work;
        let runs = |rank: &Rank| rank.life.is_some() || rank.images.is_waking();
        let is_end = |held: &HeldBack| matches!(held.what, Held::Ended(_));
        if work.halt != Halt::Ending || work.ranks.iter().any(runs) || self.held_back.iter().any(is_end) {
            return Ok(());
        }
        work.halt = Halt::Done;
        for rank in 0..work.ranks.len() {
            // Also for finished ranks whose children may still print.
            self.drain_and_close(rank)?;
        }
        self.send(&ToDispatcher::Halted)
    }

    /// Writes the file from which the job can be resumed. If that fails, the ranks go on.
    pub(super) fn suspend(&mut self, about: Value, input: Option<&OsStr>) -> io::Result<()> {
        self.give_up_recording();
        let work = &self.work;
        let Some(directory) = work.directory() else {
            let reason = "there is no directory for files".to_string();
            return self.send(&ToDispatcher::NotSuspended { reason });
        };
        let directory = directory.path().to_path_buf();
        let written = self.write_state(about, input);
        if !matches!(written, Ok(Some(_)))
            && let Some(directory) = self.work.directory()
        {
            suspended::give_up(directory);
        }
        match written {
            Ok(Some(bytes)) => {
                let directory = directory.into_os_string();
                self.send(&ToDispatcher::Suspended { directory, bytes })
            }
            // The job is being ended.
            Ok(None) => Ok(()),
            Err(error) => {
                let reason = format!("{}: {error}", directory.display());
                self.send(&ToDispatcher::NotSuspended { reason })
            }
        }
    }

    /// None: the job is being ended.
    fn write_state(&mut self, about: Value, input: Option<&OsStr>) -> io::Result<Option<u64>> {
        let work = &self.work;
        let Some(store) = &work.store else { return Ok(None) };
        let mut writer = work.begin_writing(store, about, input)?;
        while writer.step()? {
            // Writing may take long, and the dispatcher may have messages.
            if !self.control_event()? || self.ending.is_some() {
                return Ok(None);
            }
        }
        let Some(directory) = self.work.directory() else {
            return Ok(None);
        };
        let bytes = writer.finish(directory)?;
        self.work.pin_files();
        Ok(Some(bytes))
    }

    /// The job is ours: tells the coordinator what it needs to go on with it.
    pub(super) fn tell_what_is_resumed(&mut self) -> io::Result<()> {
        let work = &self.work;
        let numbers = work.files_of(|_| true).into_iter().map(|(_, number, _)| number);
        let has_transit = |number: &u64| work.store.as_ref().is_some_and(|store| store.has_in_transit(*number));
        let message = ToDispatcher::Resumed {
            ranks: work.ranks.iter().map(Rank::former).collect(),
            transit: numbers.filter(has_transit).collect(),
        };
        self.send(&message)
    }
}

impl Rank {
    /// The rank's part of that.
    fn former(&self) -> Former {
        Former {
            asked: self.images.asked,
            begun: self.images.begun,
            files: self.images.files.iter().map(|file| file.number).collect(),
            finished: self.has_finished(),
            ..Former::default()
        }
    }
}

impl Work {
    /// Reads the job that was suspended in `directory`; if another run has it, or it cannot be read, returns the
    /// message to send.
    pub(super) fn resume(
        job: Job,
        directory: &Path,
        id: &str,
        input: Option<&OsStr>,
    ) -> Result<Work, Box<ToDispatcher>> {
        let failed = |reason| Box::new(ToDispatcher::Failed { reason });
        let reader = Reader::open(directory, id).map_err(|error| match error {
            // The job was there when we got the order: another run has it, or has ended it.
            suspended::Error::InUse(_) | suspended::Error::Nothing(_) => {
                let reason = error.to_string();
                Box::new(ToDispatcher::ResumedElsewhere { reason })
            }
            error => failed(error.to_string()),
        })?;
        let faults = job.message_faults.clone();
        let mut work = load(job, directory, reader, input).map_err(failed)?;
        for (rank, messages) in faults {
            work.ranks[rank].fault_at_messages = messages;
        }
        Ok(work)
    }
}

fn load(job: Job, directory: &Path, mut reader: Reader, input: Option<&OsStr>) -> Result<Work, String> {
    let header = reader.header();
    // The file holds no node memory.
    let is_of_wave = header.about.wave.is_some() || !header.about.nodes.is_empty();
    let state: State = serde_json::from_value(header.agent.clone()).map_err(|error| {
        format!(
            "{}: another version of resurgo has written it: {error}",
            directory.display()
        )
    })?;
    // Ranks of a resumed job begin from images, but ranks that they spawn need the program files.
    let mut work = Work::without_ranks(job, state.ranks.len())?;
    let spool = input.map(|path| OpenOptions::new().write(true).open(path)).transpose();
    let spool = spool.map_err(|error| format!("cannot keep standard input: {error}"))?;
    let mut section = |file| reader.section(file).map_err(|error| error.to_string());
    section(Some(work.memory.file()))?;
    section(work.spill.as_ref())?;
    let length = section(spool.as_ref())?;
    if let Some(spool) = spool {
        // Zeros at the end are in no file.
        let is_whole = spool.set_len(length);
        is_whole.map_err(|error| format!("cannot keep standard input: {error}"))?;
    }
    let (directory, key, locks) = reader.finish().map_err(|error| error.to_string())?;
    let store = Store::of(directory, key, locks.into(), work.job.image_files.keep);
    let has_memory = !is_of_wave && work.logs();
    let taken_up = work.take_up_all(state.ranks, has_memory);
    taken_up.map_err(|error| format!("cannot use the node memory: {error}"))?;
    if is_of_wave {
        work.begin_from_wave();
    }
    work.store = Some(store);
    // An interrupted run may have left useless files.
    work.pin_files();
    Ok(work)
}

impl ImageFile {
    pub(super) fn from_state(state: FileState) -> ImageFile {
        let mut file = ImageFile::new(state.number, state.slot);
        (file.name, file.digest) = (state.name, state.digest);
        file
    }

    pub(super) fn state(&self) -> FileState {
        FileState {
            number: self.number,
            slot: self.slot,
            name: self.name.clone(),
            digest: self.digest.clone(),
        }
    }
}

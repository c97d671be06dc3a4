//! The dispatcher's part of the record of each wave: see `agent/record.rs`.

use std::ffi::OsString;
use std::path::Path;

use resurgo_protocol::Fact;
use resurgo_wire::control::{ToAgent, ToDispatcher};
use serde_json::Value;

use super::Dispatcher;
use super::events::Event;
use crate::printed::Place;

/// Records of waves.
#[derive(Default)]
pub(super) struct Record {
    /// The part for a wave in files, until all earlier output is written.
    waiting: Option<Waiting>,
    /// The wave from which the job can be resumed, and the job's name.
    resumable: Option<(u64, String)>,
    /// The position of output when the last record began; at first, that of the record which this run goes on from.
    place: Option<Place>,
}

impl Record {
    /// The job goes on, and its output stood there.
    pub fn began_at(&mut self, place: Option<Place>) {
        self.place = place;
    }
}

struct Waiting {
    about: Value,
    /// The file of the input so far, and its length.
    input: Option<(OsString, u64)>,
    /// For each of our streams, bytes that must have been written.
    printed: [u64; 2],
}

impl Dispatcher {
    /// An agent's message about recorded waves.
    pub(super) fn heard_of_record(&mut self, message: ToDispatcher) {
        match message {
            ToDispatcher::WaveInFiles { number } => self.wave_in_files(number),
            ToDispatcher::Recorded {
                number,
                directory,
                bytes,
            } => self.recorded(number, Path::new(&directory), bytes),
            ToDispatcher::NotRecorded { number, reason } => self.bus.tell(Event::WaveNotRecorded {
                wave: number,
                reason: &reason,
            }),
            _ => {}
        }
    }

    /// A wave is in files. All that ranks had printed before the agent noted its part is here.
    pub(super) fn wave_in_files(&mut self, wave: u64) {
        let place = self.place_of_output();
        self.output.sync();
        let about = serde_json::to_value(self.about(Some(wave), place)).unwrap_or_default();
        let printed = self.output.progress().map(|(taken, _)| taken);
        let input = self.ledger.input.as_ref();
        let input = input.map(|input| (input.path().into(), input.length()));
        self.suspension.record.waiting = Some(Waiting { about, input, printed });
    }

    /// The position of output for a new record; from here on all output is noted.
    pub(super) fn place_of_output(&mut self) -> Option<Place> {
        let directory = self.suspension.directory.clone();
        match self.output.place(&directory) {
            Ok(place) => {
                self.suspension.record.place = Some(place);
                Some(place)
            }
            Err(error) => {
                self.output.not_kept = Some(error);
                None
            }
        }
    }

    /// The record is complete.
    pub(super) fn forget_output(&mut self) {
        if let Some(place) = self.suspension.record.place {
            self.output.forget_before(place);
        }
    }

    /// The resumed job is ours: does not repeat the output of an interrupted run.
    pub(super) fn go_on_with_output(&mut self) {
        let (Some(directory), Some(place)) = (&self.suspension.resumed_from, self.suspension.record.place) else {
            return;
        };
        if let Err(error) = self.ledger.go_on(directory, place) {
            self.cannot_go_on(&format!("what was printed last: {error}"));
        } else if let Err(error) = self.output.go_on(directory, place) {
            self.output.not_kept = Some(error);
        }
    }

    /// Gives the agent the dispatcher's part, once all output that a later run does not repeat is written.
    pub(super) fn mind_record(&mut self) {
        if let Some(error) = self.output.not_kept.take() {
            let reason = error.to_string();
            self.bus.tell(Event::OutputNotKept { reason: &reason });
        }
        let progress = self.output.progress().map(|(_, written)| written);
        let record = &mut self.suspension.record;
        let is_written = |waiting: &mut Waiting| progress.iter().zip(waiting.printed).all(|(now, then)| *now >= then);
        if let Some(Waiting { about, input, .. }) = record.waiting.take_if(is_written) {
            match self.suspension.files {
                Some(_) => self.write_down(about, input),
                None => self.tell(ToAgent::Record { about, input }),
            }
        }
        self.mind_files();
    }

    /// Gives up a record.
    pub(super) fn give_up_waiting(&mut self) {
        self.suspension.record.waiting = None;
    }

    /// The job cannot be resumed from what has been written down.
    pub(super) fn forget_record(&mut self) {
        self.give_up_waiting();
        self.suspension.record.resumable = None;
        self.nothing_to_flush();
        if let Some(files) = &mut self.suspension.files {
            files.forget();
        }
    }

    /// The job can be resumed from `wave`.
    pub(super) fn recorded(&mut self, wave: u64, directory: &Path, bytes: u64) {
        if self.suspension.has_finished {
            // The program has come to its end meanwhile.
            return;
        }
        let name = match self.suspension.record.resumable.take() {
            Some((_, name)) => name,
            None => self.suspension.register(directory),
        };
        self.forget_output();
        self.suspension.record.resumable = Some((wave, name));
        self.flush_wave(wave, directory);
        self.bus.tell(Event::WaveRecorded { wave, bytes });
        self.coordinate(Fact::Recorded { number: wave });
    }

    /// This run ends, perhaps before the program does.
    pub(super) fn tell_what_can_be_resumed(&mut self) {
        if let Some((wave, name)) = &self.suspension.record.resumable {
            self.bus.tell(Event::CanBeResumed { wave: *wave, name });
        } else if let Some(directory) = &self.suspension.resumed_from {
            let is_damaged = self.suspension.is_damaged;
            self.bus.tell(Event::StaysSuspended { directory, is_damaged });
        }
    }
}

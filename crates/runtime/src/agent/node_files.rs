//! The files of an agent on one of several nodes, which let the job outlive all of its processes. The dispatcher writes
//! the record; lives begin from the files.

use std::io;
use std::ops::RangeInclusive;

use resurgo_wire::control::{Job, ToDispatcher};
use serde_json::Value;

use super::files::ImageFile;
use super::store::Store;
use super::{Agent, Work};
use crate::suspended::ranks::RankState;

impl Agent {
    /// Reports the ranks of this node for the record: of wave `number`, with those since `oldest`, or of a suspension.
    pub(super) fn tell_state(&mut self, wave: Option<(u64, u64)>) -> io::Result<()> {
        if wave.is_none() {
            // The record of a wave would be too old.
            self.work.recording = None;
        }
        let work = &self.work;
        let here = (0..work.ranks.len()).filter(|rank| work.is_here(*rank));
        let ranks = here.map(|rank| {
            let state = match wave {
                Some((number, oldest)) => work.ranks[rank].state().of_wave(number, oldest),
                None => work.state_with_notes(rank)?,
            };
            Ok((rank, serde_json::to_value(state)?))
        });
        let ranks = ranks.collect::<io::Result<Vec<_>>>()?;
        let wave = wave.map(|(number, _)| number);
        self.send(&ToDispatcher::State { wave, ranks })
    }
}

impl Work {
    /// The dispatcher has recorded these waves, or could not.
    pub(super) fn record_ended(&mut self, waves: RangeInclusive<u64>, is_written: bool) {
        self.recording = None;
        if !is_written {
            return;
        }
        self.pin_waves(&waves);
        if let Some(store) = &mut self.store {
            store.pin_waves(waves);
        }
    }

    /// Takes up the job as recorded; its nodes may differ from the former ones. The files that this node has of other
    /// nodes' ranks become known when it shares images.
    pub(super) fn go_on(job: Job, store: Option<Store>, ranks: Value) -> Result<Work, String> {
        let ranks: Vec<RankState> = serde_json::from_value(ranks).map_err(|error| error.to_string())?;
        let mut work = Work::without_ranks(job, ranks.len())?;
        let mut store = store.ok_or("there is no directory for image files")?;
        store.keep(work.job.image_files.keep);
        let numbers = ranks
            .iter()
            .flat_map(|rank| rank.images.files.iter().map(|file| file.number));
        let (oldest, newest) = (numbers.clone().min().unwrap_or(1), numbers.max().unwrap_or(0));
        store.pin_waves(oldest..=newest);
        let all = ranks.iter().enumerate();
        let named = all.flat_map(|(rank, state)| {
            let files = state.images.files.iter();
            files.map(move |file| (rank, file.number, file.name.clone()))
        });
        store.pin(named.collect(), |_| true);
        store.remove_others();
        store.pin_only(|rank| work.is_here(rank));
        let taken_up = work.take_up(ranks);
        taken_up.map_err(|error| format!("cannot use the node memory: {error}"))?;
        work.begin_from_wave();
        work.store = Some(store);
        Ok(work)
    }

    /// Keeps the recorded files that belong to ranks of this node. Other nodes keep those of their ranks.
    pub(super) fn sort_files(&mut self) -> io::Result<()> {
        for rank in 0..self.ranks.len() {
            let files = std::mem::take(&mut self.ranks[rank].images.files);
            let has_logs = self.has_logs_beside();
            let is_whole = |store: &Store, file: &ImageFile| {
                store.image(&file.name).is_ok() && (!has_logs || store.sealed_log(&file.name).is_ok())
            };
            let has = |file: &ImageFile| self.store.as_ref().is_some_and(|store| is_whole(store, file));
            let found: Vec<ImageFile> = files.into_iter().filter(has).collect();
            if self.is_here(rank) {
                let numbers: Vec<u64> = found.iter().map(|file| file.number).collect();
                self.ranks[rank].images.files = found;
                if self.job.image_files.parity.is_some() {
                    let mut numbers = numbers.into_iter();
                    numbers.try_for_each(|number| self.know_own_file(rank as u32, number))?;
                }
                continue;
            }
            for file in found {
                self.know_file(rank as u32, &file)?;
            }
        }
        if let Some(store) = self.store.as_ref().filter(|_| self.job.image_files.parity.is_some()) {
            let pieces = store.pieces().into_iter();
            let pieces = pieces.filter(|(piece, _)| store.has_pinned(piece.number));
            pieces.for_each(|(_, offer)| self.know(offer));
        }
        Ok(())
    }
}

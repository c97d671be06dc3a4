//! What is written down of each rank: agents tell it, and go on from it.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// A rank, as it is written down.
#[derive(Serialize, Deserialize)]
pub struct RankState {
    pub program: usize,
    pub number: u64,
    pub finished: bool,
    pub ended_well: bool,
    pub images: ImagesState,
}

#[derive(Serialize, Deserialize)]
pub struct ImagesState {
    pub asked: u64,
    pub last_slot: usize,
    pub begun: bool,
    pub files: Vec<FileState>,
}

#[derive(Serialize, Deserialize)]
pub struct FileState {
    pub number: u64,
    pub slot: usize,
    /// In the job's directory.
    pub name: OsString,
    /// By which it is known again.
    pub digest: String,
}

impl RankState {
    /// All ranks have run at this wave, and do so again; it is written down with those since `oldest`.
    pub fn of_wave(mut self, wave: u64, oldest: u64) -> RankState {
        (self.finished, self.ended_well) = (false, false);
        self.images.asked = wave;
        self.images.files.retain(|file| (oldest..=wave).contains(&file.number));
        self
    }
}

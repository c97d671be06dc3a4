//! The recorded data of each rank: agents report it, and go on from it.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// The recorded data of a rank.
#[derive(Serialize, Deserialize)]
pub struct RankState {
    pub program: usize,
    pub number: u64,
    pub finished: bool,
    pub ended_well: bool,
    pub images: ImagesState,
    /// What the rank has noted that it made and removed in the file system, where no file has the node memory: how often
    /// that was, and two words for each note. Empty: that is lost.
    #[serde(default)]
    pub noted: Vec<u64>,
    /// Until when others are lost ([`resurgo_wire::node_memory::control::NOTES_LOST_NS`]).
    #[serde(default)]
    pub notes_lost_ns: u64,
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
    /// By which the file is recognised.
    pub digest: String,
}

impl RankState {
    /// All ranks that have images of this wave run again from it; of others their ends are part of it. The record has
    /// the waves since `oldest`.
    pub fn of_wave(mut self, wave: u64, oldest: u64) -> RankState {
        if !self.finished || self.images.asked >= wave {
            (self.finished, self.ended_well) = (false, false);
            self.images.asked = wave;
        }
        // What it did after the wave will be missing.
        self.noted.clear();
        self.images.files.retain(|file| (oldest..=wave).contains(&file.number));
        self
    }
}

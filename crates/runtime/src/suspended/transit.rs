//! Files with what was in transit in waves that stop no rank, beside the images of these waves.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::fcntl::OFlag;

use crate::job_key::{Key, seal, unseal};
use resurgo_store::own_directory::Directory;

/// Beginning of their names; the number of the wave follows.
const WAVE: &str = "in-transit-";
const NEW: &str = "in-transit.new";

pub fn name(wave: u64) -> OsString {
    format!("{WAVE}{wave}").into()
}

/// The wave of the file with this name, if it is such a file.
pub fn wave_of(name: &OsStr) -> Option<u64> {
    name.to_str()?.strip_prefix(WAVE)?.parse().ok()
}

/// The contents of the file of a wave.
pub fn read(directory: &Directory, key: &Key, wave: u64) -> io::Result<Vec<u8>> {
    unseal(key, directory.read(name(wave))?)
}

/// Writes it. It may not be on the disk yet.
pub fn write(directory: &Directory, key: &Key, wave: u64, mut bytes: Vec<u8>) -> io::Result<File> {
    seal(key, &mut bytes);
    let _ = directory.remove(NEW);
    let file = directory.open_file(NEW, OFlag::O_WRONLY | OFlag::O_CREAT)?;
    // A full disk shows here.
    let room = nix::fcntl::posix_fallocate(&file, 0, bytes.len() as i64).map_err(io::Error::from);
    let written = room.and_then(|()| file.write_all_at(&bytes, 0));
    let named = written.and_then(|()| directory.rename(NEW, name(wave)));
    if named.is_err() {
        let _ = directory.remove(NEW);
    }
    named.map(|()| file)
}

//! Output that a later run of the job must know if this one is killed: see [`crate::printed`].

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::printed::{Journal, Regular};
use resurgo_store::own_directory::Directory;

/// Kinds of entries without printed text.
pub(super) const END: u32 = 2;
pub(super) const END_ALL: u32 = 3;

/// Kept output, and its file.
#[derive(Default)]
pub(super) struct Kept {
    pub journal: Option<(Directory, Journal)>,
    /// Written bytes are counted.
    pub counts: bool,
    /// The target of standard output when this run began, and the bytes that earlier runs had written to it.
    pub began: Option<Regular>,
    pub before: u64,
}

impl Kept {
    pub fn new() -> Kept {
        let own = |stream: &dyn AsFd| stream.as_fd().try_clone_to_owned().map(File::from);
        let began = match (own(&io::stdout()), own(&io::stderr())) {
            (Ok(out), Ok(err)) => Regular::of(&out, &err),
            _ => None,
        };
        Kept {
            began,
            ..Kept::default()
        }
    }

    /// Notes text that is printed but not yet at its destination. Returns why it could not be noted.
    pub fn note(&mut self, rank: usize, kind: u32, bytes: &[u8]) -> Option<io::Error> {
        let (_, journal) = self.journal.as_mut()?;
        let error = journal.append(rank, kind, bytes).err()?;
        (self.journal, self.counts) = (None, false);
        Some(error)
    }
}

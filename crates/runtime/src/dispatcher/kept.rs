//! Output that a later run of the job must know of, should this one be killed: see [`crate::printed`].

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::own_directory::Directory;
use crate::printed::{Journal, Regular};

/// Kinds of entries that nothing was printed for.
pub(super) const END: u32 = 2;
pub(super) const END_ALL: u32 = 3;

/// What is kept of the output, and where.
#[derive(Default)]
pub(super) struct Kept {
    pub journal: Option<(Directory, Journal)>,
    /// What is written is counted.
    pub counts: bool,
    /// What standard output led to when this run began, and what the runs before had written to it.
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

    /// Something is printed that has not gone where it goes to. Answers why it could not be noted.
    pub fn note(&mut self, rank: usize, kind: u32, bytes: &[u8]) -> Option<io::Error> {
        let (_, journal) = self.journal.as_mut()?;
        let error = journal.append(rank, kind, bytes).err()?;
        (self.journal, self.counts) = (None, false);
        Some(error)
    }
}

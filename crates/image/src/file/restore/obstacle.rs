//! What stands in the way of rebuilding a process from a file.

use std::io;

use crate::file::reader::Defect;

/// Why the process of an image cannot be rebuilt here.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    #[error(transparent)]
    Image(#[from] Defect),
    /// The image is of another rank or job, by what the agent says in it.
    #[error("{0}")]
    Note(String),
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    #[error("descriptor {fd}: {source}")]
    Descriptor { fd: i32, source: Box<Obstacle> },
    #[error("its file is not among those before it")]
    Order,
    #[error("{0} is another file than it was")]
    Exchanged(String),
    #[error("{0} has become shorter")]
    Shorter(String),
    #[error("{path}, which the program had mapped, has changed since: {what}")]
    Changed { path: String, what: String },
    #[error("the image was taken under another kernel, while a thread was in that one's own code (vDSO)")]
    InVdso,
    #[error("the image was taken under another kernel, whose vDSO has other functions than are known")]
    UnknownVdso,
}

impl Obstacle {
    /// Of a failure that is about `what`.
    pub fn with(what: impl Into<String>) -> impl FnOnce(io::Error) -> Obstacle {
        let what = what.into();
        |source| Obstacle::System { what, source }
    }

    /// The system call that was made last failed; it was about `what`.
    pub fn last(what: impl Into<String>) -> Obstacle {
        Obstacle::with(what)(io::Error::last_os_error())
    }

    /// It is about this descriptor of the program.
    pub fn of(self, fd: i32) -> Obstacle {
        Obstacle::Descriptor {
            fd,
            source: Box::new(self),
        }
    }
}

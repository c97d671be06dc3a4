//! The reasons that keep a process from being rebuilt from a file.

use std::io;

use crate::file::reader::Defect;

/// Why the process of an image cannot be rebuilt here.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    #[error(transparent)]
    Image(#[from] Defect),
    /// The agent's note says that the image is of another rank or job.
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
    /// A failure that concerns `what`.
    pub fn with(what: impl Into<String>) -> impl FnOnce(io::Error) -> Obstacle {
        let what = what.into();
        |source| Obstacle::System { what, source }
    }

    /// The last system call failed; it concerned `what`.
    pub fn last(what: impl Into<String>) -> Obstacle {
        Obstacle::with(what)(io::Error::last_os_error())
    }

    /// The same, for this descriptor of the program.
    pub fn of(self, fd: i32) -> Obstacle {
        Obstacle::Descriptor {
            fd,
            source: Box::new(self),
        }
    }
}

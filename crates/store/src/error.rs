//! Why a place does not do what it is asked for.

use std::io;

/// What is wrong, with which object of which place.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {}{kind}", prefixed(object))]
pub struct Error {
    pub place: String,
    /// The name of the object, or of a file of the job; empty where the place itself is meant.
    pub object: String,
    pub kind: Kind,
}

fn prefixed(object: &str) -> String {
    match object {
        "" => String::new(),
        object => format!("{object}: "),
    }
}

/// What is wrong, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Kind {
    #[error("it is not there")]
    Missing,
    /// Its bytes are not those that were put.
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it is sealed with another key: give the --store-key that the job was stored with")]
    OtherKey,
    #[error("it is sealed: give the key that the job was stored with, --store-key FILE")]
    KeyNeeded,
    #[error("it is not sealed: the job was stored without a --store-key; leave that out, or name another job")]
    NotSealed,
    #[error("there is no space left ({0}): make some (resurgo store ls, gc, rm), or name another place")]
    NoSpace(String),
    #[error("the quota is used up ({0}): make space (resurgo store ls, gc, rm), or have the quota raised")]
    Quota(String),
    #[error("access is refused ({0}): check the owner, the rights, and the credentials")]
    NoRights(String),
    /// The directory, or the bucket, does not exist.
    #[error("there is no such place ({0}): make it, or correct the name")]
    NoPlace(String),
    /// It may be reachable later.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error(
        "the generation was given up, as its launcher did not say for long that it still works on it: begin another"
    )]
    Revoked,
    #[error("{bytes} bytes are more than the {most} that an object may have")]
    TooLarge { bytes: u64, most: u64 },
    #[error("{0}")]
    BadName(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Error {
    pub fn new(place: impl Into<String>, object: impl Into<String>, kind: Kind) -> Error {
        Error {
            place: place.into(),
            object: object.into(),
            kind,
        }
    }

    /// The object does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.kind, Kind::Missing)
    }

    /// The object is there, and its bytes are wrong.
    pub fn is_damaged(&self) -> bool {
        matches!(self.kind, Kind::Damaged(_))
    }

    /// The same may succeed later without any change by a person.
    pub fn is_passing(&self) -> bool {
        matches!(self.kind, Kind::Unreachable(_))
    }
}

impl Kind {
    /// The meaning of an error of the system, where a file of a place is written or read.
    pub fn of_io(error: io::Error) -> Kind {
        use io::ErrorKind as Io;
        match error.kind() {
            Io::NotFound => Kind::Missing,
            Io::StorageFull => Kind::NoSpace(error.to_string()),
            Io::QuotaExceeded => Kind::Quota(error.to_string()),
            Io::PermissionDenied | Io::ReadOnlyFilesystem => Kind::NoRights(error.to_string()),
            // The server of a network file system.
            Io::StaleNetworkFileHandle | Io::TimedOut | Io::HostUnreachable | Io::NetworkUnreachable => {
                Kind::Unreachable(error.to_string())
            }
            _ => Kind::Io(error),
        }
    }
}

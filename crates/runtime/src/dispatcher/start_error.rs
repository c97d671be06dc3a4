//! Why a job does not begin.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use super::ends::signal_name;
use crate::{channel_memory, event_logger, hint};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot {what}: {error}{}", hint(.error))]
    Cannot { what: &'static str, error: io::Error },
    #[error("cannot create {} for {option}: {error}", .path.display())]
    UserFile {
        path: PathBuf,
        option: &'static str,
        error: io::Error,
    },
    #[error("cannot listen at {address} for {option}: {error}")]
    Address {
        address: SocketAddr,
        option: &'static str,
        error: io::Error,
    },
    #[error("cannot write output of ranks to {}: {error}", .path.display())]
    Output { path: PathBuf, error: io::Error },
    #[error("node {name}: {why}")]
    Node { name: String, why: String },
    #[error(
        "--store parity: all nodes see one directory {}, whose images outlive nodes without parity; leave one of both out",
        .path.display()
    )]
    ParityInOneDirectory { path: PathBuf },
    #[error("a directory for image files cannot be made in {}: {error}{}", .path.display(), hint(.error))]
    Directory { path: PathBuf, error: io::Error },
    #[error(
        "image {image} of rank {rank} is in {}{node}, which none of these nodes has, and there is no older wave; name that node, too",
        .file.display()
    )]
    Missing {
        rank: usize,
        image: u64,
        file: PathBuf,
        node: String,
    },
    #[error("{0}")]
    NotResumed(String),
    /// One that images are to be copied to.
    #[error("{0}")]
    Place(String),
    #[error("ended by {} before its nodes were there", signal_name(*.0 as i32))]
    Interrupted(Signal),
    #[error(transparent)]
    EventLogger(#[from] event_logger::Error),
    #[error(transparent)]
    ChannelMemory(#[from] channel_memory::MakeError),
    #[error("another version of resurgo has suspended the job: {0}")]
    OtherVersion(#[from] serde_json::Error),
}

/// Something that could not be done.
pub fn cannot(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::Cannot { what, error }
}

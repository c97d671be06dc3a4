//! An event logger in a process of its own, which the dispatcher starts, and starts again when it dies. The dispatcher keeps
//! what the two have in common: the socket that listens, so that the port stays the same and ranks that connect meanwhile wait
//! in its queue, and the file of the journal.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;

use resurgo_protocol::EventLogger;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::{Error, Server, Settings, listen};
use crate::agent::open_nameless;
use crate::server_process::{Beginning, ServerProcess, begin};

/// The hidden verb.
pub const VERB: &str = "event-logger";

/// What a logger says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It serves, with so many deliveries from before.
    Serves { epoch: u64, deliveries: u64 },
    /// It cannot.
    Failed { reason: String },
}

/// An event logger as the dispatcher sees it.
pub type Process = ServerProcess<Settings, Report>;

/// `directory`: where the file of the journal lies.
pub fn make(settings: Settings, bind: SocketAddr, directory: &OsStr) -> Result<Process, Error> {
    let listener = listen(bind)?;
    let journal = open_nameless(directory).map_err(Error::Start)?;
    Ok(ServerProcess::new(VERB, settings, listener, Some(journal)))
}

/// `resurgo event-logger`.
pub fn run() -> i32 {
    begin(c"resurgo-evlog", |beginning| {
        let control = &beginning.control;
        serve(&beginning).map_err(|error| {
            let reason = error.to_string();
            // Nobody else is there to be told.
            let _ = crate::server_process::say(control, &Report::Failed { reason });
        })
    })
}

fn serve(beginning: &Beginning<Settings>) -> io::Result<()> {
    let Beginning { control, settings, .. } = beginning;
    let (journal, logger) = match Journal::recover(beginning.file()?, settings.size)? {
        Some(found) => found,
        None => {
            let logger = match settings.epoch {
                1 => EventLogger::new(settings.size),
                epoch => EventLogger::replacement(settings.size, epoch),
            };
            (Journal::begin(beginning.file()?, &logger)?, logger)
        }
    };
    let deliveries = logger.stable_clocks().sum();
    let epoch = logger.epoch();
    crate::server_process::say(control, &Report::Serves { epoch, deliveries })?;
    let listener = beginning.listener.try_clone()?;
    Server::new(settings.clone(), listener, Some(journal), logger).serve(control)
}

//! An event logger in a process of its own. The dispatcher starts it, and starts it again when it dies. The dispatcher
//! keeps what both processes share: the listening socket and the journal's file. So the port stays the same, and ranks
//! that connect meanwhile wait in the socket's queue.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use resurgo_protocol::EventLogger;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::{Error, Server, Settings, listen};
use crate::server_process::{Beginning, ServerProcess, begin};
use crate::sys::open_nameless;

/// The hidden verb.
pub const VERB: &str = "event-logger";

/// What a logger says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It serves, with so many deliveries from earlier.
    Serves { epoch: u64, deliveries: u64 },
    /// It goes on without a file: what it has is lost if it dies.
    WithoutJournal { reason: String },
    /// It cannot go on.
    Failed { reason: String },
}

/// An event logger as the dispatcher sees it.
pub type Process = ServerProcess<Settings, Report>;

/// `directory`: for the journal's file.
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
            // The dispatcher may be gone.
            let _ = crate::server_process::say(control, &Report::Failed { reason });
        })
    })
}

fn serve(beginning: &Beginning<Settings>) -> io::Result<()> {
    let Beginning { control, settings, .. } = beginning;
    // An unreadable journal is as good as lost: another epoch begins.
    let (journal, logger) = match Journal::recover(beginning.file()?, settings.size) {
        Ok(Some((journal, logger))) => (Some(journal), logger),
        Ok(None) | Err(_) => {
            let logger = match settings.epoch {
                1 => EventLogger::new(settings.size),
                epoch => EventLogger::replacement(settings.size, epoch),
            };
            let file = beginning.file()?;
            match Journal::begin(file.try_clone()?, &logger) {
                Ok(journal) => (Some(journal), logger),
                Err(error) => {
                    file.set_len(0)?;
                    without_journal(control, &error)?;
                    (None, logger)
                }
            }
        }
    };
    let deliveries = logger.stable_clocks().sum();
    let epoch = logger.epoch();
    crate::server_process::say(control, &Report::Serves { epoch, deliveries })?;
    let listener = beginning.listener.try_clone()?;
    Server::new(settings.clone(), listener, journal, logger)?.serve(control)
}

/// Tells the dispatcher that there is no journal any more.
pub(super) fn without_journal(control: &UnixStream, why: &io::Error) -> io::Result<()> {
    let reason = why.to_string();
    crate::server_process::say(control, &Report::WithoutJournal { reason })
}

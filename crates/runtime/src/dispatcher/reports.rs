//! What programs are told about the job, beside what agents and users are.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What programs are told about the job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    pub json_events: Option<PathBuf>,
    /// Print the measurements at the end, and write them into a file.
    pub stats: bool,
    pub stats_json: Option<PathBuf>,
    /// Metrics go into this file, and to whoever asks at this address.
    pub metrics_file: Option<PathBuf>,
    pub metrics: Option<SocketAddr>,
    /// A shell runs this when ranks fail, recover, and at the end.
    pub notify: Option<OsString>,
    /// The journal of the system gets what fails and recovers, and the end.
    pub journal: bool,
    /// A trace goes into this file, in the format of Perfetto.
    pub trace: Option<PathBuf>,
}

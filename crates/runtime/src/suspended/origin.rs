//! How a job was started.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// How the job was started: data for finding programs that ranks spawn later, and for telling jobs apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The command line after `resurgo run`.
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub directory: OsString,
    /// What configuration files said then.
    #[serde(default)]
    pub configured: Vec<Configured>,
}

/// An option that a configuration file has given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// Its name, without dashes.
    pub option: String,
    /// As a user would write them; of a switch `1` or `0`.
    pub values: Vec<String>,
    /// The file and the line.
    pub place: String,
}

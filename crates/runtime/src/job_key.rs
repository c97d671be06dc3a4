//! The key by which a job knows what it has written.

/// The name of the file with it, in the job's directory.
pub const KEY: &str = "key";

pub type Key = [u8; 32];

//! Whether the machine of this agent is about to be taken away.

use std::time::Instant;

#[derive(Debug, Default)]
pub struct Notice {
    /// The dispatcher knows.
    pub is_told: bool,
    /// When it was looked last.
    pub looked: Option<Instant>,
}

//! Whether the machine of this agent is about to be taken away.

use std::sync::mpsc::Receiver;
use std::time::Instant;

#[derive(Debug, Default)]
pub struct Notice {
    /// The dispatcher knows.
    pub is_told: bool,
    /// The time of the last look.
    pub looked: Option<Instant>,
    /// The channel from a thread that polls a page: a message is the notice.
    pub page: Option<Receiver<()>>,
}

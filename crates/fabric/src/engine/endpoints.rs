//! MPI may be left and entered again in one process (MPI sessions, or MPI_Init after a session). Each time the MPI library opens a
//! new endpoint; the channels, the logs and the record below go on.
//!
//! What was sent to one endpoint must not reach another. So endpoints are numbered from 0, and the number is part of the name
//! under which the MPI library tells others of it. A sender that has learned another number says so in its channel, once, before
//! its next message ([`Kind::Endpoint`], an ordinary message to the protocol). A receiver drops what is for a former endpoint, and
//! keeps what is for a later one until it has opened that: its former life, or all before they returned, had told others of it.

use crate::matching::Unexpected;
use crate::message::{Envelope, Kind};
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Endpoints of this rank and of others, by their numbers.
pub struct Endpoints {
    /// The present one of this rank.
    pub own: u32,
    /// Per source, for which of this rank's endpoints its messages are.
    meant: Vec<u32>,
    /// Per destination, the endpoint that messages are for, and what the channel says.
    pub wanted: Vec<u32>,
    pub said: Vec<u32>,
    /// Some destination has had more than one.
    pub some_are_new: bool,
    /// Messages for endpoints to come, with their numbers, in the order of their deliveries.
    pub early: VecDeque<(u32, Box<Unexpected>)>,
}

impl Endpoints {
    pub fn new(size: usize) -> Endpoints {
        Endpoints {
            own: 0,
            meant: vec![0; size],
            wanted: vec![0; size],
            said: vec![0; size],
            some_are_new: false,
            early: VecDeque::new(),
        }
    }

    /// Which endpoint a message that is delivered is for.
    #[inline]
    pub fn hear(&mut self, source: usize, envelope: Envelope) -> For {
        if envelope.kind == Kind::Endpoint {
            self.meant[source] = envelope.tag as u32;
            return For::None;
        }
        let meant = self.meant[source];
        match meant.cmp(&self.own) {
            Ordering::Equal => For::This,
            // Other kinds need something of that endpoint first.
            Ordering::Greater if matches!(envelope.kind, Kind::Tagged | Kind::Untagged) => For::Later(meant),
            _ => For::None,
        }
    }
}

/// For which endpoint of its receiver a message is: none that is or comes, where it is dropped.
pub enum For {
    None,
    This,
    Later(u32),
}

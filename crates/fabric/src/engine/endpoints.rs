//! A program may leave and enter MPI again in one process (MPI sessions, or MPI_Init after a session). Each time the
//! MPI library opens a new endpoint; the channels, the logs and the record below go on.
//!
//! A message for one endpoint must not reach another. So endpoints have numbers, from 0, as part of the name under
//! which the MPI library announces them. A sender that learns another number says so in its channel, once, before its
//! next message ([`Kind::Endpoint`], an ordinary message to the protocol). A receiver drops messages for a former
//! endpoint, and keeps those for a later one until it opens that. Its former life, or all before a return, had
//! announced it.

use crate::matching::Unexpected;
use crate::message::{Envelope, Kind};
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Endpoints of this rank and of others, by their numbers.
pub struct Endpoints {
    /// The present one of this rank.
    pub own: u32,
    /// Per source, the endpoint of this rank that its messages are for.
    meant: Vec<u32>,
    /// Per destination, the endpoint that messages are for, and the one last named in the channel.
    pub wanted: Vec<u32>,
    pub said: Vec<u32>,
    /// Some destination has more than one.
    pub some_are_new: bool,
    /// Messages for later endpoints, with their numbers, in the order of their deliveries.
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

    /// The endpoint that a delivered message is for.
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

/// The endpoint that a message is for: the present one, a later one, or a former one, which drops it.
pub enum For {
    None,
    This,
    Later(u32),
}

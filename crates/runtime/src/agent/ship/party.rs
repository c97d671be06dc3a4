//! The common part of threads that send, receive and make files.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use resurgo_wire::replica::{Offer, What};

use super::keeper::Keeper;
use crate::background;
use crate::stream::Tls;

/// How much lower than the agent's priority that of these threads is.
const NICE: i32 = 5;

/// Events for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// This node holds the complete file for others.
    Holds { what: What },
    /// The partner does not take the file.
    Refused { what: What, node: u32, reason: String },
    /// The pieces of the set are on the shelf, or cannot be made.
    Encoded {
        number: u64,
        set: u64,
        result: Result<Made, String>,
    },
    /// A lost image is made anew from its set, or cannot be. These nodes do not have what they should, for these reasons.
    Rebuilt {
        rank: u32,
        number: u64,
        set: u64,
        result: Result<Offer, String>,
        defects: Vec<(What, u32, String)>,
    },
    /// A wanted image is here, or is not available.
    Fetched {
        rank: u32,
        number: u64,
        result: Result<(), String>,
    },
}

/// What making the pieces of a set took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Of all pieces.
    pub bytes: u64,
    pub time: Duration,
}

/// This node's identity, and what connections with other agents need.
#[derive(Clone)]
pub struct Party {
    pub node: u32,
    pub key: [u8; 32],
    pub tls: Option<Tls>,
    pub keeper: Arc<Keeper>,
    /// How many partners are being sent files now.
    pub streams: Arc<AtomicUsize>,
    /// The most that all of them get together, in bytes a second, where the user says so.
    pub rate: Option<usize>,
    /// Held by the thread that makes pieces, and by the one that makes an image from them.
    pub encoding: Arc<Mutex<()>>,
    pub rebuilding: Arc<Mutex<()>>,
    pub events: Events,
}

/// The way from threads to the agent's events.
#[derive(Clone)]
pub struct Events {
    pub way: Sender<Event>,
    pub bell: Arc<EventFd>,
}

impl Events {
    pub fn say(&self, event: Event) {
        // The agent is gone, or reads it.
        if self.way.send(event).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Starts a thread of low priority.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    background::spawn("ship", NICE, work).map(|_| ())
}

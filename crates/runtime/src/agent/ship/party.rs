//! What the threads that send and receive images share.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use nix::sys::eventfd::EventFd;
use nix::sys::signal::SigSet;
use resurgo_wire::replica::Offer;

use super::keeper::Keeper;
use crate::stream::Tls;

/// How much lower than the agent's the priority of these threads is.
const NICE: i32 = 5;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// This node has the image whole, for others.
    Holds { rank: u32, number: u64 },
    /// The partner does not take the image.
    Refused {
        rank: u32,
        number: u64,
        node: u32,
        reason: String,
    },
    /// An image that was wanted is here, or cannot be had.
    Fetched {
        rank: u32,
        number: u64,
        result: Result<(), String>,
    },
}

/// An image file that is to go to a partner.
pub struct Parcel {
    pub offer: Offer,
    pub file: File,
    /// What belongs to the image and is not in its file.
    pub beside: Arc<Vec<u8>>,
}

/// Who this is, and what it takes to speak with agents of other nodes.
#[derive(Clone)]
pub struct Party {
    pub node: u32,
    pub key: [u8; 32],
    pub tls: Option<Tls>,
    pub keeper: Arc<Keeper>,
    pub events: Events,
}

/// Where threads say what has happened.
#[derive(Clone)]
pub struct Events {
    pub way: Sender<Event>,
    pub bell: Arc<EventFd>,
}

impl Events {
    pub fn say(&self, event: Event) {
        // The agent has gone, or hears it.
        if self.way.send(event).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Starts a thread of low priority.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("ship".to_string());
    thread.spawn(|| {
        // A signal for the agent is none of its business; a limit of the size of files is an error and not the end.
        let _ = SigSet::all().thread_block();
        // Of this thread alone; whoever may not have it goes on as it is.
        let _ = rustix::process::nice(NICE);
        work();
    })?;
    Ok(())
}

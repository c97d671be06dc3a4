//! The messages between the agent and its mover.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::EventFd;
use resurgo_protocol::Fact;
use resurgo_protocol::causal::Event;
use resurgo_protocol::coordinator::From;
use resurgo_wire::control::{Ended, Nodes};
use resurgo_wire::image::Datagram;

use super::mapped::Mapped;

/// Orders to the mover.
#[derive(Debug, Clone)]
pub enum Command {
    Oldest(u32),
    /// This rank has an image with cursors in this slot.
    Image(u32, u8),
    CutOff(u32),
    /// All of its logs is here that there is.
    HasLogs(u32),
    Ended(u32),
    Flush(u64),
    /// This node is lost, and its ranks do not begin again.
    Lost(u32),
    Epoch(u64),
    /// There are new, spawned ranks.
    Grow(Nodes),
    Stop,
}

/// Answers of the mover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All other nodes have what ranks here had rung for before the request.
    Flushed(u64),
    /// All other nodes have sent back what they have of the logs of this rank, which came here from a lost node.
    Returned(u32),
    /// The mover cannot move messages any more.
    Failed(String),
}

/// What the agent and its mover share.
pub struct Shared {
    pub memory: Arc<Mapped>,
    /// The holder has the node memory alone, except for ranks.
    pub held: Mutex<()>,
    pub commands: Mutex<Vec<Command>>,
    pub answers: Mutex<Vec<Answer>>,
    /// Wakes the mover: ranks have it as [`resurgo_wire::node_memory::NET_FD`].
    pub bell: Arc<EventFd>,
    /// Wakes the agent.
    pub told: EventFd,
    /// Of the mover's loop, [`crate::turns`].
    pub longest_turn_ns: AtomicU64,
}

impl Shared {
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self, command: Command) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push(command);
        drop(commands);
        // It fails when the count is full, and then the mover is awake.
        let _ = self.bell.write(1);
    }

    /// The agent's orders since the last call.
    pub fn commands(&self) -> Vec<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut commands)
    }

    pub fn answer(&self, answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answer);
        drop(answers);
        let _ = self.told.write(1);
    }
}

/// A report that waits until other nodes have its data, and the flush that it waits for.
pub struct HeldBack {
    pub flush: u64,
    pub what: Held,
}

pub enum Held {
    /// A report of this life of a rank.
    Said {
        rank: usize,
        life: u64,
        said: Box<Datagram>,
    },
    Fact(Fact),
    /// The end of a rank that has failed, in a program that deals with that.
    Ended(Box<Ended>),
}

/// Ranks that came here from a lost node.
#[derive(Default)]
pub struct Returning {
    /// Ranks whose logs other nodes have yet to send.
    pub lacks: Vec<u32>,
    /// That has come, and what lies beside their images may have to be put behind it.
    pub returned: Vec<u32>,
    /// All that have ever lost their nodes, here or elsewhere.
    pub lost: Vec<u32>,
    pub waiting: Vec<Waiting>,
    /// What the dispatcher has told of deliveries.
    pub vouched: Vec<Event>,
}

/// A life that begins then.
pub struct Waiting {
    pub rank: u32,
    pub life: u64,
    pub from: From,
    pub together: bool,
    pub reads: Option<u32>,
}

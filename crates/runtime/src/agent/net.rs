//! Messages to and from ranks of other nodes.
//!
//! Each node has a whole node memory, and what ranks of other nodes have written is there as a copy, as far as ranks here read it: byte
//! for byte, at the same places, only later. So a rank sends to all others in the same way, and reads what all of them have sent.
//! The *mover*, a thread of the agent, keeps the copies. Here it is the receiver of all that ranks send to other nodes
//! ([`resurgo_wire::node_memory::ELSEWHERE`]). There it is the sender. It has one connection to the mover of each other node
//! ([`resurgo_wire::mesh`]).

mod agent_side;
mod link;
mod mapped;
mod mirror;
mod mover;
mod outgoing;
mod peer;
mod shared;
mod tail;

#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use resurgo_protocol::kinds::Waves;
use resurgo_wire::control::{Job, Nodes};
use resurgo_wire::node_memory::{ELSEWHERE, control};

use super::node::NodeMemory;
use crate::stream::Tls;
use mapped::Mapped;
use mirror::Mirror;
use mover::Mover;
use outgoing::{Habits, Outgoing};
use peer::{Identity, Peer};
use shared::{Command, Shared};

pub(super) use shared::{Answer, HeldBack};

const FLAGS: EfdFlags = EfdFlags::EFD_CLOEXEC.union(EfdFlags::EFD_NONBLOCK);

/// The agent's end of the mover.
pub(super) struct Net {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Ranks of other nodes.
    elsewhere: Vec<usize>,
    epoch: u64,
    flushes: u64,
}

impl Net {
    /// Starts the mover of a job on several nodes, whose memory is new. `listener`: where movers of other nodes call.
    ///
    /// # Errors
    /// The system does not give what it needs.
    pub fn start(job: &Job, plan: &Nodes, memory: &NodeMemory, listener: TcpListener) -> io::Result<Net> {
        Net::with_bell(job, plan, memory, listener, Arc::new(EventFd::from_flags(FLAGS)?))
    }

    /// The same with a bell that ranks may have: images of them go on ringing it.
    fn with_bell(
        job: &Job,
        plan: &Nodes,
        memory: &NodeMemory,
        listener: TcpListener,
        bell: Arc<EventFd>,
    ) -> io::Result<Net> {
        let shared = Arc::new(Shared {
            memory: Arc::new(Mapped::new(memory.file(), memory.layout)?),
            held: Mutex::new(()),
            commands: Mutex::default(),
            answers: Mutex::default(),
            bell,
            told: EventFd::from_flags(FLAGS)?,
        });
        let habits = Habits {
            logs: job.protocol.logs(),
            announces: job.protocol.has_waves() && !job.protocol.logs(),
            cuts: job.protocol.waves() == Waves::Passing,
        };
        let ranks_of = |node: u32| -> Vec<u32> { plan.ranks_of(node).map(|rank| rank as u32).collect() };
        let here = ranks_of(plan.own);
        let mut peer_of = vec![None; plan.of_rank.len()];
        let mut peers = Vec::new();
        // Nodes that are lost have no address, and nobody has anything to say to one without ranks, or waits for its answers.
        let has_ranks = |node: u32| plan.of_rank.contains(&node);
        let is_peer = |node: u32| node != plan.own && has_ranks(node) && has_ranks(plan.own);
        let others = (0..)
            .zip(&plan.mesh)
            .filter(|(node, addresses)| is_peer(*node) && !addresses.is_empty());
        for (node, addresses) in others {
            let there = ranks_of(node);
            there
                .iter()
                .for_each(|rank| peer_of[*rank as usize] = Some(peers.len()));
            let mirror = Mirror::new(shared.memory.clone(), &here, &there, plan.epoch);
            let outgoing = Outgoing::new(shared.memory.clone(), habits, here.clone(), there, plan.epoch);
            peers.push(Peer::new(node, addresses.clone(), node < plan.own, outgoing, mirror));
        }
        let own = Identity {
            node: plan.own,
            nodes: plan.mesh.len() as u32,
            key: job.key,
            tls: Tls::of_job(job)?,
        };
        let mut net = Net {
            elsewhere: (0..plan.of_rank.len()).filter(|rank| !plan.is_here(*rank)).collect(),
            thread: None,
            epoch: plan.epoch,
            flushes: 0,
            shared,
        };
        net.say_who_is_elsewhere();
        let mover = Mover::new(net.shared.clone(), own, listener, peers, peer_of)?;
        let thread = std::thread::Builder::new().name("resurgo mover".into());
        net.thread = Some(thread.spawn(|| mover.run())?);
        Ok(net)
    }

    /// Ranks of other nodes do not sleep here: the mover takes what is for them.
    fn say_who_is_elsewhere(&self) {
        for rank in &self.elsewhere {
            let word = self.shared.memory.control32(*rank, control::SLEEPING);
            word.store(ELSEWHERE, Ordering::SeqCst);
        }
    }

    /// What ranks wake the mover with.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Empties the node memory: logs begin anew on all nodes.
    ///
    /// # Errors
    /// Those of `empty`.
    pub fn empty(&mut self, empty: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let held = self.shared.hold();
        empty()?;
        self.epoch += 1;
        self.say_who_is_elsewhere();
        self.shared.tell(Command::Epoch(self.epoch));
        drop(held);
        Ok(())
    }

    /// The oldest image of `rank` is another one. What is of another node comes from there.
    pub fn forgets(&self, rank: usize) {
        if !self.elsewhere.contains(&rank) {
            self.shared.tell(Command::Oldest(rank as u32));
        }
    }

    /// `rank`, of this node, has an image whose cursors are in `slot`.
    pub fn has_image(&self, rank: usize, slot: usize) {
        self.shared.tell(Command::Image(rank as u32, slot as u8));
    }

    /// `rank`, of this node, has returned to a wave and cut off its logs. It does not run yet.
    pub fn cut_off(&self, rank: usize) {
        self.shared.tell(Command::CutOff(rank as u32));
    }

    /// Asks for [`Answer::Flushed`] with this number when other nodes have all that ranks here have rung for so far.
    pub fn flush(&mut self) -> u64 {
        self.flushes += 1;
        self.shared.tell(Command::Flush(self.flushes));
        self.flushes
    }

    /// What the mover has said since the last time. There is something when [`Net::as_fd`] can be read.
    pub fn answers(&self) -> Vec<Answer> {
        let _ = self.shared.told.read();
        let mut answers = self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut answers)
    }
}

impl AsFd for Net {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.shared.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It ends by itself; if it has failed, that has been said.
            let _ = thread.join();
        }
    }
}

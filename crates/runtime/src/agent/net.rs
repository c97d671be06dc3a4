//! Messages to and from ranks of other nodes.
//!
//! Each node has a whole node memory. It holds copies of what ranks of other nodes have written, as far as ranks here
//! read it: byte for byte, at the same places, only later. So a rank sends to all others in the same way, and reads the
//! messages of all in the same way. The *mover*, a thread of the agent, keeps the copies. On this node it receives all
//! that ranks send to other nodes ([`resurgo_wire::node_memory::ELSEWHERE`]). On the other node it is the sender. It
//! has one connection to the mover of each other node ([`resurgo_wire::mesh`]).

mod agent_side;
mod giving;
mod known;
mod link;
pub(super) mod mapped;
mod mesh;
mod mirror;
mod mover;
mod outgoing;
mod peer;
mod shared;
mod tail;
mod taking;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use resurgo_protocol::causal::Event;
use resurgo_protocol::kinds::Waves;
use resurgo_wire::control::{Job, Nodes};
use resurgo_wire::direct;
use resurgo_wire::node_memory::{ELSEWHERE, control, header};

use super::node::NodeMemory;
use crate::stream::Tls;
use crate::sys::random;
use known::Knowing;
use mapped::Mapped;
use mesh::Mesh;
use mirror::Ends;
use mover::Mover;
use outgoing::Habits;
use peer::Identity;
use shared::{Command, Shared};

pub(super) use shared::{Answer, Held, HeldBack, Returning, Waiting};

const FLAGS: EfdFlags = EfdFlags::EFD_CLOEXEC.union(EfdFlags::EFD_NONBLOCK);

/// The state that a mover leaves for the next one.
struct Former {
    /// Ranks may have it, and their images go on ringing it.
    bell: Arc<EventFd>,
    /// The ends of the copies of other nodes' logs.
    ends: Ends,
    /// Ranks that came here from a lost node without their logs; and those whose logs have come back, perhaps in part.
    lacks: Vec<u32>,
    returned: Vec<u32>,
    /// All ranks that have ever lost their nodes, here or elsewhere.
    lost: Vec<u32>,
    /// What the dispatcher knows of deliveries.
    vouched: Vec<Event>,
    longest_turn_ns: u64,
}

/// The agent's end of the mover.
pub(super) struct Net {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Ends>>,
    /// Ranks of other nodes.
    elsewhere: Vec<usize>,
    epoch: u64,
    flushes: u64,
    /// This node's address, where ranks may call ranks of other nodes.
    direct: Option<IpAddr>,
}

/// Ranks on this machine: of this node, and of nodes with the same address.
fn ranks_beside(plan: &Nodes) -> usize {
    let addresses = |node: u32| plan.mesh.get(node as usize).into_iter().flatten();
    let is_beside =
        |node: u32| node == plan.own || addresses(node).any(|one| addresses(plan.own).any(|own| own.ip() == one.ip()));
    plan.of_rank.iter().filter(|node| is_beside(**node)).count()
}

impl Net {
    /// Starts the mover of a job on several nodes, whose memory is new. `listener`: where movers of other nodes call.
    ///
    /// # Errors
    /// The system lacks a resource.
    pub fn start(job: &Job, plan: &Nodes, memory: &NodeMemory, listener: TcpListener) -> io::Result<Net> {
        let former = Former {
            bell: Arc::new(EventFd::from_flags(FLAGS)?),
            ends: Ends::new(),
            lacks: Vec::new(),
            returned: Vec::new(),
            lost: Vec::new(),
            vouched: Vec::new(),
            longest_turn_ns: 0,
        };
        Net::after(former, job, plan, memory, listener)
    }

    /// Starts the mover that follows another one.
    fn after(former: Former, job: &Job, plan: &Nodes, memory: &NodeMemory, listener: TcpListener) -> io::Result<Net> {
        let Former {
            bell,
            ends,
            lacks,
            returned,
            lost,
            vouched,
            longest_turn_ns,
        } = former;
        let shared = Arc::new(Shared {
            memory: Arc::new(Mapped::new(memory.file(), memory.layout)?),
            held: Mutex::new(()),
            commands: Mutex::default(),
            answers: Mutex::default(),
            bell,
            told: EventFd::from_flags(FLAGS)?,
            longest_turn_ns: longest_turn_ns.into(),
        });
        let tls = Tls::of_job(job)?;
        let may = job.protocol.may_be_direct(job.tolerate_node);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let is_direct = may && job.spill_directory.is_none() && tls.is_none() && ranks_beside(plan) <= cores;
        let habits = Habits {
            direct: is_direct,
            generation: u64::from_le_bytes(random()?),
            logs: job.protocol.logs(),
            announces: job.protocol.waves() != Waves::OfEachGroup,
            cuts: job.protocol.waves() == Waves::Passing,
            counts: job.moves_ranks(),
        };
        let direct = listener.local_addr()?.ip();
        let direct = is_direct.then_some(direct);
        let own = Identity {
            node: plan.own,
            key: job.key,
            tls,
        };
        let mut net = Net {
            elsewhere: elsewhere(plan),
            thread: None,
            epoch: plan.epoch,
            flushes: 0,
            direct,
            shared,
        };
        net.tell_ranks();
        let knowing = Knowing::new(job, &lost, vouched);
        let of_lost = (ends, lacks, returned);
        let mesh = Mesh::new(net.shared.memory.clone(), habits, of_lost, knowing);
        let mover = Mover::new(net.shared.clone(), own, mesh, listener, plan)?;
        let thread = std::thread::Builder::new().name("resurgo mover".into());
        net.thread = Some(thread.spawn(move || mover.run())?);
        Ok(net)
    }

    /// Ranks have been spawned. `tell` tells those here of them: all that they wrote before that the mover finds by
    /// itself, and for all that they write later they ring.
    ///
    /// # Errors
    /// The error of `tell`.
    pub fn grow(&mut self, plan: &Nodes, tell: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.elsewhere = elsewhere(plan);
        self.tell_ranks();
        tell()?;
        let epoch = self.epoch;
        self.shared.tell(Command::Grow(Nodes { epoch, ..plan.clone() }));
        Ok(())
    }

    /// Ends the mover's use of the memory and of the other nodes. Ranks go on, and ring as before.
    fn stop(mut self) -> Former {
        self.shared.tell(Command::Stop);
        let ends = self.thread.take().and_then(|thread| thread.join().ok());
        Former {
            bell: self.shared.bell.clone(),
            ends: ends.unwrap_or_default(),
            lacks: Vec::new(),
            returned: Vec::new(),
            lost: Vec::new(),
            vouched: Vec::new(),
            longest_turn_ns: self.shared.longest_turn_ns.load(Ordering::Relaxed),
        }
    }

    /// The longest turn of the mover's loop.
    pub fn longest_turn(&self) -> Duration {
        Duration::from_nanos(self.shared.longest_turn_ns.load(Ordering::Relaxed))
    }

    /// Ranks of other nodes do not sleep here: the mover takes what is for them, unless ranks here call them.
    fn tell_ranks(&self) {
        let memory = &self.shared.memory;
        if let Some(address) = self.direct {
            for (at, word) in direct::to_words(address).into_iter().enumerate() {
                memory.header(header::ADDRESS.item(at)).store(word, Ordering::SeqCst);
            }
        }
        let is_direct = memory.header32(header::DIRECT);
        is_direct.store(self.direct.is_some().into(), Ordering::SeqCst);
        for rank in &self.elsewhere {
            let word = self.shared.memory.control32(*rank, control::SLEEPING);
            word.store(ELSEWHERE, Ordering::SeqCst);
        }
    }

    /// How often the node memory has begun anew, or ranks have changed nodes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The bell with which ranks wake the mover.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Empties the node memory: logs begin anew on all nodes.
    ///
    /// # Errors
    /// The error of `empty`.
    pub fn empty(&mut self, empty: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let held = self.shared.hold();
        empty()?;
        self.epoch += 1;
        self.tell_ranks();
        self.shared.tell(Command::Epoch(self.epoch));
        drop(held);
        Ok(())
    }

    /// `rank` has another oldest image. For a rank of another node, that node reports it.
    pub fn forgets(&self, rank: usize) {
        if !self.elsewhere.contains(&rank) {
            self.shared.tell(Command::Oldest(rank as u32));
        }
    }

    /// The process of `rank`, of this node, is gone.
    pub fn ended(&self, rank: usize) {
        let writes = self.shared.memory.control(rank, control::WRITES);
        writes.store(0, Ordering::SeqCst);
        self.shared.tell(Command::Ended(rank as u32));
    }

    /// `rank`, of this node, has an image whose cursors are in `slot`.
    pub fn has_image(&self, rank: usize, slot: usize) {
        self.shared.tell(Command::Image(rank as u32, slot as u8));
    }

    /// All of the logs of `rank`, which has come from a lost node, is here that there is.
    pub fn has_logs(&self, rank: u32) {
        self.shared.tell(Command::HasLogs(rank));
    }

    /// `rank`, of this node, has returned to a wave and cut off its logs. It does not run yet.
    pub fn cut_off(&self, rank: usize) {
        self.shared.tell(Command::CutOff(rank as u32));
    }

    /// Asks for [`Answer::Flushed`] with this number once other nodes have all that ranks here have rung for.
    pub fn flush(&mut self) -> u64 {
        self.flushes += 1;
        self.shared.tell(Command::Flush(self.flushes));
        self.flushes
    }

    /// The node is lost, and its ranks do not begin again: flushes do not wait for it.
    pub fn loses(&self, node: u32) {
        self.shared.tell(Command::Lost(node));
    }

    /// The mover's answers since the last call. There is something when [`Net::as_fd`] can be read.
    pub fn answers(&self) -> Vec<Answer> {
        let _ = self.shared.told.read();
        let mut answers = self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut answers)
    }
}

/// Ranks of other nodes.
fn elsewhere(plan: &Nodes) -> Vec<usize> {
    (0..plan.of_rank.len()).filter(|rank| !plan.is_here(*rank)).collect()
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
            // It ends by itself and has reported any failure.
            let _ = thread.join();
        }
    }
}

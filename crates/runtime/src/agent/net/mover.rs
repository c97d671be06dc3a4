//! The mover's thread. Ranks of this node, the agent, and sockets wake it; without work it blocks.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use resurgo_wire::control::{MOST_NODES, Nodes};
use resurgo_wire::handshake::Server;
use resurgo_wire::mesh::Frame;
use resurgo_wire::node_memory::header;

use super::link::Link;
use super::mesh::{Conversation, Mesh, Trouble};
use super::mirror::Ends;
use super::peer::{Identity, Peer};
use super::shared::{Answer, Command, Shared};
use crate::reception::{Framing, Reception, Stranger};
use crate::sys::random;
use crate::turns::Turns;

/// How often it looks for strangers that are too slow to prove the key.
const LOOK: Duration = Duration::from_millis(200);

const BELL: u64 = 0;
const LISTENER: u64 = 1;
const PEER: u64 = 1 << 32;
const STRANGER: u64 = 2 << 32;

const FRAMING: Framing = Framing {
    read: |said| match Frame::decode(said).map_err(io::Error::other)? {
        None => Ok(None),
        Some((Frame::Handshake(word), used)) => Ok(Some((word, used))),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
    },
    write: |word| {
        let mut bytes = Vec::new();
        Frame::Handshake(word).encode(&mut bytes);
        bytes
    },
};

pub struct Mover {
    shared: Arc<Shared>,
    own: Identity,
    mesh: Mesh,
    /// The connections of its conversations.
    peers: Vec<Peer>,
    epoll: Epoll,
    listener: TcpListener,
    /// The events that epoll watches of each peer's link.
    watched: Vec<Option<EpollFlags>>,
    reception: Reception<Stranger>,
    stopped: bool,
}

impl Mover {
    pub fn new(
        shared: Arc<Shared>,
        own: Identity,
        mesh: Mesh,
        listener: TcpListener,
        plan: &Nodes,
    ) -> std::io::Result<Mover> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        listener.set_nonblocking(true)?;
        // An event for each ring, read or unread.
        let rung = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(shared.bell.as_fd(), EpollEvent::new(rung, BELL))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let reception = Reception::new(plan.mesh.len()).encrypted(own.tls.clone());
        let mut mover = Mover {
            shared,
            own,
            mesh,
            peers: Vec::new(),
            epoll,
            listener,
            watched: Vec::new(),
            reception,
            stopped: false,
        };
        mover.grow(plan).map_err(io::Error::other)?;
        Ok(mover)
    }

    /// Each connection with its conversation.
    fn pairs(&mut self) -> impl Iterator<Item = (&mut Peer, &mut Conversation)> {
        self.peers.iter_mut().zip(&mut self.mesh.conversations)
    }

    /// The job has more ranks than before.
    fn grow(&mut self, plan: &Nodes) -> Result<(), Trouble> {
        for addresses in self.mesh.grow(plan) {
            let node = self.mesh.conversations[self.peers.len()].node;
            self.peers.push(Peer::new(addresses.to_vec(), node < plan.own));
            self.watched.push(None);
        }
        self.pairs().try_for_each(|(peer, with)| peer.grow(with))
    }

    /// Runs until the agent stops it, or it cannot go on. Returns the ends of the copies.
    pub fn run(mut self) -> Ends {
        self.serve();
        self.mesh.ends()
    }

    fn serve(&mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut count = 0;
        let shared = self.shared.clone();
        let mut turns = Turns::default();
        loop {
            turns.begin();
            let held = shared.hold();
            let done = self.turn(&events[..count], &held);
            let is_busy = match done {
                Ok(is_busy) => is_busy,
                Err(trouble) => {
                    shared.answer(Answer::Failed(trouble.to_string()));
                    return;
                }
            };
            if self.stopped {
                return;
            }
            let timeout = match is_busy || !self.announce_sleep() {
                true => EpollTimeout::ZERO,
                false => self.timeout(),
            };
            drop(held);
            let longest = turns.end().as_nanos() as u64;
            shared.longest_turn_ns.fetch_max(longest, Ordering::Relaxed);
            count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        }
    }

    /// One round; meanwhile the memory cannot be emptied. True: there is more work.
    fn turn(&mut self, events: &[EpollEvent], _held: &MutexGuard<'_, ()>) -> Result<bool, Trouble> {
        let sleeps = self.shared.memory.header32(header::MOVER_SLEEPS);
        sleeps.store(0, Ordering::SeqCst);
        self.obey()?;
        for event in events {
            match event.data() {
                BELL => {}
                LISTENER => self.accept(),
                token if token & STRANGER != 0 => self.greet(token as u32)?,
                token => {
                    let place = token as u32 as usize;
                    self.peers[place].receive(&mut self.mesh.conversations[place], event.events())?;
                }
            }
        }
        self.reception.cut_late();
        self.call_who_is_due();
        self.mesh.hear_ranks();
        let mut is_busy = false;
        let now = Instant::now();
        for (peer, with) in self.pairs() {
            peer.tend(with, now)?;
            is_busy |= peer.pump(with)?;
        }
        for answer in self.mesh.answers()? {
            self.shared.answer(answer);
        }
        self.watch();
        Ok(is_busy)
    }

    /// Announces that it sleeps. False: there is news already.
    fn announce_sleep(&self) -> bool {
        let memory = &self.shared.memory;
        memory.header32(header::MOVER_SLEEPS).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.mesh.is_quiet()
    }

    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let looks = self.reception.has_deadlines().then(|| now + LOOK);
        let calls = self.peers.iter().map(Peer::call_at);
        let due = self.mesh.conversations.iter().map(|with| with.due(now));
        let due = calls.chain(due).flatten().chain(looks).min();
        let Some(due) = due else {
            return EpollTimeout::NONE;
        };
        let wait = due.saturating_duration_since(now) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    fn obey(&mut self) -> Result<(), Trouble> {
        for command in self.shared.commands() {
            self.mesh.obey(&command);
            match command {
                // Input may have waited for this.
                Command::Epoch(_) => self.pairs().try_for_each(|(peer, with)| peer.hear_all(with))?,
                Command::Lost(_) => {
                    let lost = self.pairs().filter(|(_, with)| with.is_lost);
                    lost.for_each(|(peer, _)| peer.lose());
                }
                Command::Grow(plan) => self.grow(&plan)?,
                Command::Stop => self.stopped = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn call_who_is_due(&mut self) {
        let now = Instant::now();
        let pairs = self.peers.iter_mut().zip(&mut self.mesh.conversations);
        for (place, (peer, with)) in pairs.enumerate() {
            if peer.call_at().is_some_and(|at| at <= now) {
                // Without random bytes the mover tries again.
                match random() {
                    Ok(nonce) => peer.call(with, &self.own, nonce),
                    Err(_) => peer.hang_up(with),
                }
                self.watched[place] = None;
            }
        }
    }

    /// Watches each link for the events that it waits for. epoll drops a closed link by itself.
    fn watch(&mut self) {
        for (place, (peer, with)) in self.peers.iter().zip(&self.mesh.conversations).enumerate() {
            let Some(link) = peer.link() else {
                self.watched[place] = None;
                continue;
            };
            let mut wanted = EpollFlags::empty();
            wanted.set(EpollFlags::EPOLLIN, with.listens());
            wanted.set(EpollFlags::EPOLLOUT, peer.wants_room());
            let event = EpollEvent::new(wanted, PEER | place as u64);
            let done = match self.watched[place] {
                Some(watched) if watched == wanted => continue,
                Some(_) => self.epoll.modify(link, &mut { event }),
                None => self.epoll.add(link, event),
            };
            self.watched[place] = done.is_ok().then_some(wanted);
        }
    }

    fn accept(&mut self) {
        let (key, before) = (self.own.key, self.reception.newest());
        self.reception.accept(&self.listener, |line| {
            Stranger::new(line, Server::Mesh, MOST_NODES, key)
        });
        for (number, stranger) in self.reception.iter().filter(|(number, _)| *number > before) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, STRANGER | u64::from(number as u32));
            // An unwatched stranger is cut off as too slow.
            let _ = self.epoll.add(stranger, event);
        }
    }

    /// A connection that has yet to prove the key has input.
    fn greet(&mut self, number: u32) -> Result<(), Trouble> {
        let Some(mut stranger) = self.reception.take(number.into()) else {
            return Ok(());
        };
        match stranger.hear(&FRAMING) {
            Ok(None) => self.reception.put_back(number.into(), stranger),
            Ok(Some(visitor)) => {
                let is_meant = |with: &Conversation| with.node == visitor.rank && !with.is_lost;
                let place = self.mesh.conversations.iter().position(is_meant);
                let is_forgotten = self.epoll.delete(&stranger).is_ok();
                let link = Link::called(stranger.admitted()).ok();
                if let Some((place, link)) = place.zip(link).filter(|_| is_forgotten) {
                    self.watched[place] = None;
                    self.peers[place].called(&mut self.mesh.conversations[place], link)?;
                }
            }
            Err(_) => {}
        }
        Ok(())
    }
}

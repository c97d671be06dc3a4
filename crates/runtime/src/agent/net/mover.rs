//! The mover's thread: woken by ranks of this node, by the agent, and by sockets; it blocks when there is nothing to do.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use resurgo_wire::handshake::Server;
use resurgo_wire::mesh::Frame;
use resurgo_wire::node_memory::header;

use super::link::Link;
use super::peer::{Identity, Peer, Trouble};
use super::shared::{Answer, Command, Shared};
use crate::reception::{Framing, Reception, Stranger};
use crate::sys::random;

/// How often those are looked for who are late to prove who they are.
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
    epoll: Epoll,
    listener: TcpListener,
    peers: Vec<Peer>,
    /// What epoll watches of each peer's link.
    watched: Vec<Option<EpollFlags>>,
    /// Per rank on another node: the peer, by its place.
    peer_of: Vec<Option<usize>>,
    reception: Reception<Stranger>,
    /// Flushes and how many nodes have yet to answer.
    flushes: Vec<(u64, usize)>,
    stopped: bool,
}

impl Mover {
    /// `peer_of`: per rank, its place in `peers` if it is on another node.
    pub fn new(
        shared: Arc<Shared>,
        own: Identity,
        listener: TcpListener,
        peers: Vec<Peer>,
        peer_of: Vec<Option<usize>>,
    ) -> std::io::Result<Mover> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        listener.set_nonblocking(true)?;
        // Each time it is rung, whether it has been read or not.
        let rung = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(shared.bell.as_fd(), EpollEvent::new(rung, BELL))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let reception = Reception::new(peers.len()).encrypted(own.tls.clone());
        Ok(Mover {
            watched: vec![None; peers.len()],
            shared,
            own,
            epoll,
            listener,
            peers,
            peer_of,
            reception,
            flushes: Vec::new(),
            stopped: false,
        })
    }

    /// Runs until it is told to stop, or cannot go on.
    pub fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut count = 0;
        let shared = self.shared.clone();
        loop {
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
            count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        }
    }

    /// One round, while nobody empties the memory. True: there is more to do.
    fn turn(&mut self, events: &[EpollEvent], _held: &MutexGuard<'_, ()>) -> Result<bool, Trouble> {
        let sleeps = self.shared.memory.header32(header::MOVER_SLEEPS);
        sleeps.store(0, Ordering::SeqCst);
        self.obey()?;
        for event in events {
            match event.data() {
                BELL => {}
                LISTENER => self.accept(),
                token if token & STRANGER != 0 => self.greet(token as u32)?,
                token => self.peers[token as u32 as usize].receive(event.events())?,
            }
        }
        self.reception.cut_late();
        self.call_who_is_due();
        self.hear_ranks();
        let mut is_busy = false;
        for peer in &mut self.peers {
            is_busy |= peer.pump()?;
        }
        self.hear_flushed();
        self.watch();
        Ok(is_busy)
    }

    /// Says that it sleeps. False: there is news already.
    fn announce_sleep(&self) -> bool {
        let memory = &self.shared.memory;
        memory.header32(header::MOVER_SLEEPS).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let words = self.peer_of.len().div_ceil(64);
        (0..words).all(|word| memory.header(header::NEWS.item(word)).load(Ordering::SeqCst) == 0)
    }

    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let looks = self.reception.has_deadlines().then(|| now + LOOK);
        let due = self.peers.iter().filter_map(Peer::call_at).chain(looks).min();
        let Some(due) = due else {
            return EpollTimeout::NONE;
        };
        let wait = due.saturating_duration_since(now) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    fn obey(&mut self) -> Result<(), Trouble> {
        for command in self.shared.commands() {
            match command {
                Command::Oldest(rank) => self.peers.iter_mut().for_each(|peer| peer.outgoing.forgets(rank)),
                Command::Image(rank, slot) => {
                    let peers = self.peers.iter_mut();
                    peers.for_each(|peer| peer.outgoing.has_image(rank, slot));
                }
                Command::CutOff(rank) => self.peers.iter_mut().for_each(|peer| peer.outgoing.cut_off(rank)),
                Command::Epoch(number) => {
                    for peer in &mut self.peers {
                        peer.begin_epoch(number)?;
                    }
                }
                Command::Flush(number) => {
                    // What is to be flushed has been rung for before.
                    self.hear_ranks();
                    self.flushes.push((number, self.peers.len()));
                    self.peers.iter_mut().for_each(|peer| peer.outgoing.flush(number));
                }
                Command::Stop => self.stopped = true,
            }
        }
        Ok(())
    }

    /// Takes what ranks here have said to ranks on other nodes.
    fn hear_ranks(&mut self) {
        let memory = &self.shared.memory;
        for word in 0..self.peer_of.len().div_ceil(64) {
            let news = memory.header(header::NEWS.item(word));
            if news.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = news.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let rank = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(Some(peer)) = self.peer_of.get(rank) {
                    let outgoing = &mut self.peers[*peer].outgoing;
                    memory.take_ready(rank, |source| outgoing.news(source as u32, rank as u32));
                }
            }
        }
    }

    fn hear_flushed(&mut self) {
        for peer in &mut self.peers {
            for number in peer.flushed.drain(..) {
                let asked = self.flushes.iter_mut().find(|(asked, _)| *asked == number);
                asked.into_iter().for_each(|(_, missing)| *missing -= 1);
            }
        }
        for (number, _) in self.flushes.extract_if(.., |(_, missing)| *missing == 0) {
            self.shared.answer(Answer::Flushed(number));
        }
    }

    fn call_who_is_due(&mut self) {
        let now = Instant::now();
        for (place, peer) in self.peers.iter_mut().enumerate() {
            if peer.call_at().is_some_and(|at| at <= now) {
                // Without random bytes it is tried again.
                match random() {
                    Ok(nonce) => peer.call(&self.own, nonce),
                    Err(_) => peer.hang_up(),
                }
                self.watched[place] = None;
            }
        }
    }

    /// Asks to be told of what each link is waiting for. A link that is gone has left by itself.
    fn watch(&mut self) {
        for (place, peer) in self.peers.iter().enumerate() {
            let Some(link) = peer.link() else {
                self.watched[place] = None;
                continue;
            };
            let mut wanted = EpollFlags::empty();
            wanted.set(EpollFlags::EPOLLIN, peer.listens());
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
        let (nodes, key, before) = (self.own.nodes, self.own.key, self.reception.newest());
        self.reception
            .accept(&self.listener, |line| Stranger::new(line, Server::Mesh, nodes, key));
        for (number, stranger) in self.reception.iter().filter(|(number, _)| *number > before) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, STRANGER | u64::from(number as u32));
            // Who cannot be heard is late in the end.
            let _ = self.epoll.add(stranger, event);
        }
    }

    /// A connection that has yet to prove who it is says something.
    fn greet(&mut self, number: u32) -> Result<(), Trouble> {
        let Some(mut stranger) = self.reception.take(number.into()) else {
            return Ok(());
        };
        match stranger.hear(&FRAMING) {
            Ok(None) => self.reception.put_back(number.into(), stranger),
            Ok(Some(visitor)) => {
                let place = self.peers.iter().position(|peer| peer.node == visitor.rank);
                let is_forgotten = self.epoll.delete(&stranger).is_ok();
                let link = Link::called(stranger.admitted()).ok();
                if let Some((place, link)) = place.zip(link).filter(|_| is_forgotten) {
                    self.watched[place] = None;
                    self.peers[place].called(link)?;
                }
            }
            Err(_) => {}
        }
        Ok(())
    }
}

//! The mover's thread: woken by ranks of this node, by the agent, and by sockets; it blocks when there is nothing to do.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use resurgo_wire::handshake::{Doorkeeper, Heard, Server};
use resurgo_wire::mesh::Frame;
use resurgo_wire::node_memory::header;

use super::link::{Link, Moved};
use super::peer::{Identity, Peer, Trouble};
use super::shared::{Answer, Command, Shared};
use crate::sys::random;

/// Connections that have yet to prove who they are: of more the oldest are closed.
const MOST_STRANGERS: usize = 64;

const BELL: u64 = 0;
const LISTENER: u64 = 1;
const PEER: u64 = 1 << 32;
const STRANGER: u64 = 2 << 32;

/// A connection that somebody else has made.
struct Stranger {
    number: u32,
    link: Link,
    doorkeeper: Doorkeeper,
}

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
    strangers: Vec<Stranger>,
    next_stranger: u32,
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
        Ok(Mover {
            watched: vec![None; peers.len()],
            shared,
            own,
            epoll,
            listener,
            peers,
            peer_of,
            strangers: Vec::new(),
            next_stranger: 0,
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
                token if token & STRANGER != 0 => self.greet(token as u32),
                token => self.peers[token as u32 as usize].receive(event.events())?,
            }
        }
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
        let due = self.peers.iter().filter_map(Peer::call_at).min();
        let Some(due) = due else {
            return EpollTimeout::NONE;
        };
        let wait = due.saturating_duration_since(Instant::now()) + std::time::Duration::from_millis(1);
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
        while let Ok((socket, _)) = self.listener.accept() {
            let (Ok(link), Ok(nonce)) = (Link::new(socket), random()) else {
                continue;
            };
            let number = self.next_stranger;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, STRANGER | u64::from(number));
            if self.epoll.add(&link, event).is_err() {
                continue;
            }
            if self.strangers.len() >= MOST_STRANGERS {
                self.strangers.remove(0);
            }
            self.next_stranger = self.next_stranger.wrapping_add(1);
            self.strangers.push(Stranger {
                number,
                link,
                doorkeeper: Doorkeeper::new(Server::Mesh, self.own.nodes, 0, self.own.key, nonce),
            });
        }
    }

    /// A connection that has yet to prove who it is says something. Who does not is left alone.
    fn greet(&mut self, number: u32) {
        let Some(place) = self.strangers.iter().position(|stranger| stranger.number == number) else {
            return;
        };
        let mut stranger = self.strangers.remove(place);
        match stranger.hear() {
            Ok(None) => self.strangers.push(stranger),
            Ok(Some(node)) => {
                let place = self.peers.iter().position(|peer| peer.node == node);
                if let Some(place) = place.filter(|_| self.epoll.delete(&stranger.link).is_ok()) {
                    self.peers[place].called(stranger.link);
                    self.watched[place] = None;
                }
            }
            Err(()) => {}
        }
    }
}

impl Stranger {
    /// The node that it is, once that is proved.
    fn hear(&mut self) -> Result<Option<u32>, ()> {
        if self.link.read() == Moved::Gone {
            return Err(());
        }
        let Some((frame, used)) = self.link.frame().map_err(|_| ())? else {
            return Ok(None);
        };
        let Frame::Handshake(word) = frame else { return Err(()) };
        match self.doorkeeper.hear(word).map_err(|_| ())? {
            Heard::Stranger(word) => {
                self.link.take(used);
                Frame::Handshake(word).encode(self.link.output.end());
                // So few bytes always find room.
                (self.link.write() == Moved::Some).then_some(None).ok_or(())
            }
            Heard::Proved(visitor) => {
                self.link.take(used);
                Ok(Some(visitor.rank))
            }
        }
    }
}

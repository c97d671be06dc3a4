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

use super::known::{self, Knowing};
use super::link::Link;
use super::mirror::{Ends, Mirror};
use super::outgoing::{Habits, Outgoing};
use super::peer::{Identity, Peer, Trouble};
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
    habits: Habits,
    epoll: Epoll,
    listener: TcpListener,
    peers: Vec<Peer>,
    /// The events that epoll watches of each peer's link.
    watched: Vec<Option<EpollFlags>>,
    /// Ranks of this node.
    here: Vec<u32>,
    /// Per rank on another node: the peer, by its place.
    peer_of: Vec<Option<usize>>,
    reception: Reception<Stranger>,
    /// Flushes, and how many nodes have yet to answer.
    flushes: Vec<(u64, usize)>,
    /// Ranks that came here from a lost node, until all other nodes have sent back their logs.
    lacks: Vec<u32>,
    /// Those whose logs have, and may not be whole yet.
    returned: Vec<u32>,
    /// Other nodes are told what is known here.
    knowing: Option<Knowing>,
    /// The ends of the copies when it began.
    ends: Ends,
    stopped: bool,
}

impl Mover {
    pub fn new(
        shared: Arc<Shared>,
        own: Identity,
        habits: Habits,
        listener: TcpListener,
        plan: &Nodes,
        (ends, lacks, returned): (Ends, Vec<u32>, Vec<u32>),
        knowing: Option<Knowing>,
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
            habits,
            epoll,
            listener,
            peers: Vec::new(),
            watched: Vec::new(),
            here: Vec::new(),
            peer_of: Vec::new(),
            reception,
            flushes: Vec::new(),
            lacks,
            returned,
            knowing,
            ends,
            stopped: false,
        };
        mover.grow(plan).map_err(io::Error::other)?;
        Ok(mover)
    }

    /// The job has more ranks than before.
    fn grow(&mut self, plan: &Nodes) -> Result<(), Trouble> {
        let ranks_of = |node: u32| -> Vec<u32> { plan.ranks_of(node).map(|rank| rank as u32).collect() };
        let here = ranks_of(plan.own);
        self.here.clone_from(&here);
        // Lost nodes have no address; nodes without ranks need no connection.
        for (node, addresses) in (0..).zip(&plan.mesh) {
            let is_known = self.peers.iter().any(|peer| peer.node == node);
            let lacks_ranks = here.is_empty() || !plan.of_rank.contains(&node);
            if node == plan.own || is_known || lacks_ranks || addresses.is_empty() {
                continue;
            }
            let (memory, there) = (&self.shared.memory, ranks_of(node));
            let mut mirror = Mirror::new(memory.clone(), &here, &there, plan.epoch);
            mirror.goes_on(&self.ends, &self.lacks);
            let mut outgoing = Outgoing::new(memory.clone(), self.habits, here.clone(), there, plan.epoch);
            outgoing.lacks([&self.lacks[..], &self.returned].concat());
            outgoing.knowing.clone_from(&self.knowing);
            outgoing.unknown.clone_from(&self.lacks);
            let peer = Peer::new(node, addresses.clone(), node < plan.own, outgoing, mirror);
            self.peers.push(peer);
            self.watched.push(None);
        }
        let new = self.peer_of.len()..plan.of_rank.len();
        self.peer_of.resize(new.end, None);
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let there = ranks_of(peer.node);
            let places = there.iter().map(|rank| *rank as usize);
            places.for_each(|rank| self.peer_of[rank] = Some(place));
            peer.grow(new.end, &here, &there)?;
        }
        // Ranks here may have rung for them before.
        new.for_each(|rank| self.take_news(rank));
        Ok(())
    }

    /// Runs until the agent stops it, or it cannot go on. Returns the ends of the copies.
    pub fn run(mut self) -> Ends {
        self.serve();
        let mut ends = self.ends;
        for peer in &self.peers {
            ends.extend(peer.mirror.ends());
        }
        ends
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
                token => self.peers[token as u32 as usize].receive(event.events())?,
            }
        }
        self.reception.cut_late();
        self.call_who_is_due();
        self.hear_ranks();
        let mut is_busy = false;
        let now = Instant::now();
        for peer in &mut self.peers {
            peer.tend(now)?;
            is_busy |= peer.pump()?;
        }
        self.hear_flushed();
        self.hear_returned()?;
        self.watch();
        Ok(is_busy)
    }

    /// Announces that it sleeps. False: there is news already.
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
        let due = self.peers.iter().flat_map(|peer| [peer.call_at(), peer.due()]);
        let due = due.flatten().chain(looks).min();
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
                Command::Ended(rank) => {
                    for peer in &mut self.peers {
                        peer.outgoing.ended(rank);
                        peer.mirror.ended(rank);
                    }
                }
                Command::Image(rank, slot) => {
                    let peers = self.peers.iter_mut();
                    peers.for_each(|peer| peer.outgoing.has_image(rank, slot));
                }
                Command::CutOff(rank) => self.peers.iter_mut().for_each(|peer| peer.outgoing.cut_off(rank)),
                Command::HasLogs(rank) => self.peers.iter_mut().for_each(|peer| peer.outgoing.has_logs(rank)),
                Command::Epoch(number) => {
                    for peer in &mut self.peers {
                        peer.begin_epoch(number)?;
                    }
                }
                Command::Flush(number) => {
                    // Ranks have rung before for all that is to be flushed.
                    self.hear_ranks();
                    let there = self.peers.iter_mut().filter(|peer| !peer.is_lost);
                    let asked = there.map(|peer| peer.outgoing.flush(number)).count();
                    self.flushes.push((number, asked));
                }
                Command::Lost(node) => {
                    let lost = self.peers.iter_mut().filter(|peer| peer.node == node);
                    lost.for_each(Peer::lose);
                }
                Command::Grow(plan) => self.grow(&plan)?,
                Command::Stop => self.stopped = true,
            }
        }
        Ok(())
    }

    /// Takes the news that ranks here have for ranks on other nodes.
    fn hear_ranks(&mut self) {
        for word in 0..self.peer_of.len().div_ceil(64) {
            let news = self.shared.memory.header(header::NEWS.item(word));
            if news.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = news.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let rank = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.take_news(rank);
            }
        }
    }

    /// Takes the news for `rank`, of another node.
    fn take_news(&mut self, rank: usize) {
        if let Some(Some(peer)) = self.peer_of.get(rank) {
            let outgoing = &mut self.peers[*peer].outgoing;
            let memory = &self.shared.memory;
            // A spawned rank may ring before this mover and the other one know of it.
            let known = self.peer_of.len();
            memory.take_ready(rank, |source| {
                if source < known {
                    outgoing.news(source as u32, rank as u32);
                }
            });
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

    /// Checks whether all logs of some rank are back.
    fn hear_returned(&mut self) -> Result<(), Trouble> {
        let peers = &self.peers;
        let is_whole = |rank: &mut u32| !peers.iter().any(|peer| peer.mirror.lacks(*rank));
        let whole: Vec<u32> = self.lacks.extract_if(.., is_whole).collect();
        self.leave_known(&whole)?;
        for rank in whole {
            let peers = self.peers.iter_mut();
            peers.for_each(|peer| peer.outgoing.unknown.retain(|unknown| *unknown != rank));
            self.shared.answer(Answer::Returned(rank));
        }
        Ok(())
    }

    /// These ranks know what all nodes have told, and what is known here.
    fn leave_known(&mut self, ranks: &[u32]) -> Result<(), Trouble> {
        let Some(knowing) = self.knowing.as_ref().filter(|_| !ranks.is_empty()) else {
            return Ok(());
        };
        let memory = &self.shared.memory;
        let lacking = [ranks, &self.lacks].concat();
        let here: Vec<u32> = self
            .here
            .iter()
            .copied()
            .filter(|rank| !lacking.contains(rank))
            .collect();
        let own = knowing.tell(memory, here.into_iter())?;
        for rank in ranks {
            let told = self.peers.iter().flat_map(|peer| peer.told.iter());
            let told = told.chain(&own).chain(knowing.vouched.iter());
            known::leave(memory, *rank, told.copied())?;
        }
        Ok(())
    }

    fn call_who_is_due(&mut self) {
        let now = Instant::now();
        for (place, peer) in self.peers.iter_mut().enumerate() {
            if peer.call_at().is_some_and(|at| at <= now) {
                // Without random bytes the mover tries again.
                match random() {
                    Ok(nonce) => peer.call(&self.own, nonce),
                    Err(_) => peer.hang_up(),
                }
                self.watched[place] = None;
            }
        }
    }

    /// Watches each link for the events that it waits for. epoll drops a closed link by itself.
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
                let is_meant = |peer: &Peer| peer.node == visitor.rank && !peer.is_lost;
                let place = self.peers.iter().position(is_meant);
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

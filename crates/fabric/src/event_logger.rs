//! The rank's connections to event loggers (`--tolerate node`). The rank hands every new determinant to its own logger,
//! which acknowledges it. Under causal logging its own logger also says what of other ranks is stable, and the other
//! loggers may say so too. The frames are `resurgo_wire`'s; here is the socket.
//!
//! A connection that breaks is made anew, without waiting: the dispatcher restarts an event logger that has died.

use crate::clock::monotonic_ns;
use crate::node::Node;
use crate::record::Cursor;
use crate::socket::{self, Broken, Socket};
use resurgo_protocol::{Rank, Recorded};
use resurgo_wire::counters::Cost;
use resurgo_wire::event_logger::{Client, ClientEvent, Delivery, Error, Identity};
use resurgo_wire::node_memory::{self as nm, control};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// An event logger that says nothing for so long to a waiting rank is lost for good.
const PATIENCE_NS: u64 = 30_000_000_000;
/// How long a rank waits for the handshake, which takes a round trip. The logger keeps a place only for a short time
/// for a rank that has not proved to belong to the job. This rank may compute for hours before it looks again.
const HANDSHAKE_NS: u64 = 100_000_000;
/// Time between two attempts to connect again.
const AGAIN_NS: u64 = 50_000_000;

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { .. } | Error::NotAuthentic | Error::Version { .. } => Broken::Refused(error.to_string()),
            error => Broken::Gone(error.to_string()),
        }
    }
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// One connection.
struct Link {
    socket: Socket,
    client: Client,
}

impl Link {
    fn connect(node: &Node, to: SocketAddr, acknowledged: Option<u64>, epoch: u64) -> std::io::Result<Link> {
        let nonce = socket::nonce()?;
        let client = Client::new(Identity {
            rank: node.rank as Rank,
            size: node.size as u32,
            incarnation: node.control(node.rank, control::INCARNATION).load(Ordering::Acquire),
            key: node.job_key,
            nonce,
            acknowledged,
            epoch,
        });
        let socket = Socket::connect(to)?.out_of_the_way().map_err(|_| last_error())?;
        Ok(Link { socket, client })
    }

    /// Sends what is waiting and takes what has come, without waiting.
    fn exchange(&mut self) -> Result<(), Broken> {
        while !self.client.output().is_empty() {
            let Some(sent) = self.socket.send(self.client.output())? else {
                break;
            };
            self.client.sent(sent);
        }
        let mut bytes = [0u8; 16 << 10];
        if let Some(got) = self.socket.receive(&mut bytes)? {
            self.client.receive(&bytes[..got]);
        }
        Ok(())
    }
}

/// What the event loggers have said since the last look.
#[derive(Default)]
pub struct News {
    /// The own logger was replaced by an empty one.
    pub replaced: bool,
    /// The own logger has so many deliveries of this rank, and wants the later ones again.
    pub wanted_above: Option<u64>,
    /// How many deliveries of these ranks are stable.
    pub clocks: Vec<(Rank, u64)>,
}

/// What an event logger had of the former lives of a rank: how many deliveries.
#[derive(Clone, Copy)]
pub struct Found {
    pub epoch: u64,
    pub stored: u64,
}

/// The connections of one life.
pub struct EventLogger {
    /// The own logger first, then those that tell their clocks too.
    addresses: Vec<SocketAddr>,
    links: Vec<Option<Link>>,
    again_at_ns: u64,
    /// Epoch of the own logger; 0: not known yet.
    epoch: u64,
    /// How many deliveries are to be logged in all.
    made: u64,
    /// Deliveries not yet handed to the client; the last is number `made`. Without a connection none are kept here.
    pending: Vec<Delivery>,
    /// What is on its way: the last rclock of each part that was handed over, and the time of that.
    under_way: VecDeque<(u64, u64)>,
    /// Everything up to this rclock is acknowledged.
    acknowledged: u64,
    /// Up to here event loggers have been told of deliveries, or have told of them: others may have heard that they are
    /// stable.
    said: u64,
    /// How many deliveries images cover, and how many of them the own logger was told to forget.
    covered: u64,
    forgets: u64,
    /// What this rank knows to be stable and the own logger may not (several loggers, ranks spread the clocks).
    heard: Vec<(Rank, u64)>,
}

impl EventLogger {
    /// `made`: deliveries that this life has a record of already; it logs them when the logger says that it misses
    /// them. `found`: what the logger had of former lives, where the rank asked.
    pub fn new(node: &Node, made: u64, found: Option<&Found>) -> EventLogger {
        let count = node.event_loggers.len();
        let own = node.rank % count;
        let others = (0..count).filter(|logger| *logger != own && node.clock_spread == nm::SPREAD_BROADCAST);
        let addresses: Vec<SocketAddr> = [own]
            .into_iter()
            .chain(others)
            .map(|logger| node.event_loggers[logger])
            .collect();
        EventLogger {
            links: addresses.iter().map(|_| None).collect(),
            addresses,
            again_at_ns: 0,
            epoch: found.map_or(0, |found| found.epoch),
            pending: Vec::new(),
            under_way: VecDeque::new(),
            made,
            acknowledged: 0,
            said: found.map_or(made, |found| found.stored),
            covered: 0,
            forgets: 0,
            heard: Vec::new(),
        }
    }

    /// In a process that has woken up from an image: see [`Socket::abandon`].
    pub fn abandon(self) {
        let links = self.links.into_iter().flatten();
        links.for_each(|link| link.socket.abandon());
    }

    /// Descriptors of the connections.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.links.iter().flatten().map(|link| link.socket.descriptor())
    }

    /// What the logger has of former lives of this rank, after its first `above` deliveries. Ends the job if the logger
    /// is lost.
    pub fn recover(node: &Node, above: u64) -> (Found, Vec<Recorded>) {
        let own = node.event_loggers[node.rank % node.event_loggers.len()];
        let since = monotonic_ns();
        loop {
            match Self::ask(node, own, above) {
                Ok(found) => return found,
                Err(Broken::Gone(reason)) if monotonic_ns() - since > PATIENCE_NS => lost(node, own, &reason),
                Err(Broken::Gone(_)) => {
                    // SAFETY: sleeps.
                    unsafe { libc::usleep(20_000) };
                }
                Err(Broken::Refused(reason)) => lost(node, own, &reason),
            }
        }
    }

    fn ask(node: &Node, logger: SocketAddr, above: u64) -> Result<(Found, Vec<Recorded>), Broken> {
        let link =
            Link::connect(node, logger, None, 0).map_err(|error| Broken::Gone(format!("cannot connect: {error}")));
        let mut link = link?;
        let (mut records, mut of) = (Vec::new(), 0);
        let since = monotonic_ns();
        loop {
            link.exchange()?;
            while let Some(event) = link.client.next_event()? {
                match event {
                    ClientEvent::Admitted { epoch, .. } => {
                        of = epoch;
                        link.client.query(above);
                    }
                    ClientEvent::Answer {
                        records: part, more, ..
                    } => {
                        records.extend(part);
                        if !more {
                            let stored = above + records.len() as u64;
                            return Ok((Found { epoch: of, stored }, records));
                        }
                    }
                    ClientEvent::NotWhole { stored } => {
                        return Err(Broken::Refused(format!(
                            "it has been replaced, and only {stored} deliveries have been told to the new one"
                        )));
                    }
                    ClientEvent::Ack { .. } | ClientEvent::Clocks { .. } => {}
                }
            }
            if link.client.output().is_empty() {
                link.socket.wait(100_000_000, false);
            }
            if monotonic_ns() - since > PATIENCE_NS {
                return Err(Broken::Gone("no answer for 30 seconds".to_string()));
            }
        }
    }

    /// How many deliveries the own logger holds.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Logs a new delivery, which the rank has recorded.
    pub fn log(&mut self, delivery: Delivery) {
        self.made += 1;
        if self.is_connected() {
            self.pending.push(delivery);
        }
    }

    fn is_connected(&self) -> bool {
        self.links[0].as_ref().is_some_and(|link| link.client.is_admitted())
    }

    /// Logs the last deliveries once more, as [`News::wanted_above`] asked.
    pub fn log_again(&mut self, deliveries: Vec<Delivery>) {
        self.pending = deliveries;
    }

    /// Notes what other loggers have.
    pub fn heard(&mut self, clocks: &[(Rank, u64)]) {
        self.heard.extend_from_slice(clocks);
    }

    /// True while some delivery is not acknowledged.
    pub fn is_behind(&self) -> bool {
        self.acknowledged < self.made
    }

    /// How many deliveries have not been sent.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Sends what is waiting and takes what has come, without waiting.
    pub fn pump(&mut self, node: &Node) -> News {
        let mut news = News::default();
        self.covered = Cursor::covered(node);
        for at in 0..self.links.len() {
            if let Err(broken) = self.pump_link(node, at, &mut news) {
                self.links[at] = None;
                self.again_at_ns = monotonic_ns() + AGAIN_NS;
                if let Broken::Refused(reason) = broken {
                    lost(node, self.addresses[at], &reason);
                }
            }
        }
        news
    }

    fn pump_link(&mut self, node: &Node, at: usize, news: &mut News) -> Result<(), Broken> {
        if self.links[at].is_some() {
            return self.exchange(node, at, news);
        }
        if monotonic_ns() < self.again_at_ns {
            return Ok(());
        }
        self.connect(node, at)?;
        let until = monotonic_ns() + HANDSHAKE_NS;
        loop {
            self.exchange(node, at, news)?;
            let now = monotonic_ns();
            match &self.links[at] {
                Some(link) if !link.client.is_admitted() && now < until => link.socket.wait(until - now, false),
                _ => return Ok(()),
            }
        }
    }

    fn connect(&mut self, node: &Node, at: usize) -> Result<(), Broken> {
        let acknowledged = Some(if at == 0 { self.said } else { 0 });
        let epoch = if at == 0 { self.epoch } else { 0 };
        let link = Link::connect(node, self.addresses[at], acknowledged, epoch);
        self.links[at] = Some(link.map_err(|error| Broken::Gone(error.to_string()))?);
        if at == 0 {
            self.forgets = 0;
        }
        Ok(())
    }

    /// Says what there is to say and hears what has come on one connection, without waiting.
    fn exchange(&mut self, node: &Node, at: usize, news: &mut News) -> Result<(), Broken> {
        let Some(link) = &mut self.links[at] else {
            return Ok(());
        };
        if at == 0 && link.client.is_admitted() {
            if !self.heard.is_empty() {
                link.client.clocks(&self.heard);
                self.heard.clear();
            }
            // A logger that was replaced must hear how much to forget before it hears what comes after.
            if self.forgets < self.covered {
                link.client.forget(self.covered);
                self.forgets = self.covered;
            }
            if !self.pending.is_empty() {
                link.client
                    .log(self.made + 1 - self.pending.len() as u64, &self.pending);
                self.said = self.said.max(self.made);
                self.pending.clear();
                self.under_way.push_back((self.made, monotonic_ns()));
            }
        }
        link.exchange()?;
        while let Some(event) = link.client.next_event()? {
            match event {
                ClientEvent::Admitted { epoch, stored } if at == 0 => {
                    news.replaced |= self.epoch != 0 && self.epoch != epoch;
                    if news.replaced {
                        self.acknowledged = 0;
                    }
                    self.epoch = epoch;
                    self.acknowledged = self.acknowledged.max(stored);
                    news.wanted_above = Some(stored.max(self.covered));
                }
                ClientEvent::Ack { rclock } if at == 0 => {
                    self.acknowledged = self.acknowledged.max(rclock);
                    let now = monotonic_ns();
                    while let Some((_, since)) = self.under_way.pop_front_if(|(last, _)| *last <= self.acknowledged) {
                        node.add(Cost::LoggerRoundTrips, 1);
                        node.add(Cost::LoggerNs, now - since);
                        node.most(Cost::MostLoggerNs, now - since);
                    }
                }
                ClientEvent::Clocks { clocks } => news.clocks.extend(clocks),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the own logger says something, at most `milliseconds`.
    pub fn wait(&self, milliseconds: i32) {
        match &self.links[0] {
            Some(link) => link.socket.wait(milliseconds as u64 * 1_000_000, false),
            // SAFETY: sleeps.
            None => unsafe {
                libc::usleep(1000 * milliseconds as u32);
            },
        }
    }
}

fn lost(node: &Node, logger: SocketAddr, what: &str) -> ! {
    node.report(&format!(
        "rank {} has lost the event logger on {logger}: {what}. What it had of this rank cannot be had elsewhere, so the job \
         ends",
        node.rank
    ));
}

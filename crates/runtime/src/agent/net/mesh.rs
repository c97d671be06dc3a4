//! What the mover decides, without sockets and clocks: the [`Mesh`] of a node has a [`Conversation`] with each other
//! node. The mover gives it orders of the agent, the input of connections, and the time; it gets output and answers. The
//! tests have it in simulated networks (`tests/simulated.rs`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use resurgo_protocol::causal::Event;
use resurgo_wire::control::Nodes;
use resurgo_wire::frame::Error;
use resurgo_wire::mesh::Frame;
use resurgo_wire::node_memory::{events_of, header};

use super::known::{self, Knowing, Unusable};
use super::mapped::Mapped;
use super::mirror::{Ends, Foreign, Mirror};
use super::outgoing::{Habits, Outgoing};
use super::shared::{Answer, Command};
use super::tail::{Damaged, Tail};

/// Why the job cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error("node {node} has proved the job's key, and sends what is no message: {error}")]
    Garbled { node: u32, error: Error },
    #[error(transparent)]
    Foreign(#[from] Foreign),
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// With one other node: the data that it has yet to get, and the copy of its ranks' writes.
pub struct Conversation {
    pub node: u32,
    outgoing: Outgoing,
    mirror: Mirror,
    /// Flushes that it has answered.
    flushed: Vec<u64>,
    /// What is known there.
    told: Vec<Event>,
    /// The node is lost, and its ranks do not begin again.
    pub is_lost: bool,
}

impl Conversation {
    pub fn new(node: u32, outgoing: Outgoing, mirror: Mirror) -> Conversation {
        Conversation {
            node,
            outgoing,
            mirror,
            flushed: Vec::new(),
            told: Vec::new(),
            is_lost: false,
        }
    }

    /// A connection begins, to a node with this address. True: `out` says how far the copies go. False: that is not
    /// certain before no rank writes them any more, which is soon; the connection must end.
    ///
    /// # Errors
    /// A rank has written a damaged log.
    pub fn begin(&mut self, address: Option<IpAddr>, out: &mut Vec<u8>) -> Result<bool, Trouble> {
        self.end();
        self.mirror.settle(None)?;
        if self.mirror.waits() {
            return Ok(false);
        }
        self.mirror.begin_connection(address);
        self.mirror.say_where(out);
        self.told.clear();
        Ok(true)
    }

    /// The connection is broken, or has never been.
    pub fn end(&mut self) {
        self.mirror.close();
        self.outgoing.close();
    }

    /// Nothing goes there or comes from there any more.
    fn lose(&mut self) {
        self.is_lost = true;
        self.end();
        self.flushed.extend(self.outgoing.give_up_flushes());
    }

    /// Says, on a connection that stands, how many ranks are known here.
    pub fn say_ranks(&self, out: &mut Vec<u8>) {
        self.mirror.say_ranks(out);
    }

    /// Whether to take input now: not before its epoch has begun here, or its ranks are known.
    pub fn listens(&self) -> bool {
        !self.mirror.is_behind()
    }

    /// Does the work that is due. `out`: of the connection, if it stands.
    ///
    /// # Errors
    /// A rank has written a damaged log.
    pub fn tend(&mut self, now: Instant, out: Option<&mut Vec<u8>>) -> Result<(), Trouble> {
        self.mirror.settle(out)?;
        self.outgoing.look_again(now)?;
        Ok(())
    }

    /// When [`Self::tend`] is due; `now`: at once.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let soon = self.mirror.waits().then_some(now);
        soon.into_iter().chain(self.outgoing.giving.due()).min()
    }

    /// Takes a frame of the other node. `out` gets the answer, if there is one.
    ///
    /// # Errors
    /// It does not belong to the job.
    pub fn take(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let (mirror, outgoing) = (&mut self.mirror, &mut self.outgoing);
        match *frame {
            // Of another epoch.
            Frame::Position { .. }
            | Frame::Behind { .. }
            | Frame::Lacks { .. }
            | Frame::Returned { .. }
            | Frame::Known { .. }
                if !mirror.is_current() => {}
            Frame::Ranks { count } => mirror.hear_ranks(count as usize),
            Frame::Epoch { number } => mirror.hear_epoch(number),
            Frame::Position {
                source,
                destination,
                reference,
                place,
            } => {
                let place = place as usize;
                outgoing.position(source, destination, Tail { reference, place });
            }
            Frame::Behind {
                source,
                destination,
                generation,
                reference,
                place,
            } => {
                let place = place as usize;
                outgoing.behind((source, destination), generation, Tail { reference, place });
            }
            Frame::Begin => outgoing.open(),
            Frame::Lacks { source } => outgoing.is_lacked(source),
            Frame::Returned { source } => mirror.has_returned(source),
            Frame::Known { events } => self.told.extend(events_of(events)),
            Frame::Flush { number } => Frame::Flushed { number }.encode(out),
            Frame::Flushed { number } => {
                if outgoing.flushed(number) {
                    self.flushed.push(number);
                }
            }
            _ => mirror.take(frame)?,
        }
        Ok(())
    }

    /// Appends news, up to about `most` bytes.
    ///
    /// # Errors
    /// A rank of this node has written a damaged log.
    pub fn fill(&mut self, out: &mut Vec<u8>, most: usize) -> Result<(), Damaged> {
        self.outgoing.fill(out, most)
    }

    /// Whether there may be something to send.
    pub fn has_news(&self) -> bool {
        self.outgoing.has_news()
    }

    /// The other node has yet to send what it has of this rank's logs.
    #[cfg(test)]
    pub fn lacks(&self, rank: u32) -> bool {
        self.mirror.lacks(rank)
    }
}

/// Of one node.
pub struct Mesh {
    memory: Arc<Mapped>,
    habits: Habits,
    pub conversations: Vec<Conversation>,
    /// Ranks of this node.
    here: Vec<u32>,
    /// Per rank on another node: the conversation, by its place.
    with: Vec<Option<usize>>,
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
}

impl Mesh {
    /// Of a node without other nodes, until it [grows](Mesh::grow). `ends`: of the copies of logs that are here already;
    /// `lacks`, `returned`: ranks that came here from lost nodes.
    pub fn new(
        memory: Arc<Mapped>,
        habits: Habits,
        (ends, lacks, returned): (Ends, Vec<u32>, Vec<u32>),
        knowing: Option<Knowing>,
    ) -> Mesh {
        Mesh {
            memory,
            habits,
            conversations: Vec::new(),
            here: Vec::new(),
            with: Vec::new(),
            flushes: Vec::new(),
            lacks,
            returned,
            knowing,
            ends,
        }
    }

    /// The job has more ranks than before. Returns the addresses of nodes with which conversations are added.
    pub fn grow<'a>(&mut self, plan: &'a Nodes) -> Vec<&'a [SocketAddr]> {
        let ranks_of = |node: u32| -> Vec<u32> { plan.ranks_of(node).map(|rank| rank as u32).collect() };
        let here = ranks_of(plan.own);
        self.here.clone_from(&here);
        let mut added = Vec::new();
        // Lost nodes have no address; nodes without ranks need no connection.
        for (node, addresses) in (0..).zip(&plan.mesh) {
            let is_known = self.conversations.iter().any(|with| with.node == node);
            let lacks_ranks = here.is_empty() || !plan.of_rank.contains(&node);
            if node == plan.own || is_known || lacks_ranks || addresses.is_empty() {
                continue;
            }
            let there = ranks_of(node);
            let mut mirror = Mirror::new(self.memory.clone(), &here, &there, plan.epoch);
            mirror.goes_on(&self.ends, &self.lacks);
            let mut outgoing = Outgoing::new(self.memory.clone(), self.habits, here.clone(), there, plan.epoch);
            outgoing.lacks([&self.lacks[..], &self.returned].concat());
            outgoing.knowing.clone_from(&self.knowing);
            outgoing.unknown.clone_from(&self.lacks);
            self.conversations.push(Conversation::new(node, outgoing, mirror));
            added.push(&addresses[..]);
        }
        let ranks = plan.of_rank.len();
        let new = self.with.len()..ranks;
        self.with.resize(new.end, None);
        for (place, with) in self.conversations.iter_mut().enumerate() {
            let there = ranks_of(with.node);
            let places = there.iter().map(|rank| *rank as usize);
            places.for_each(|rank| self.with[rank] = Some(place));
            with.outgoing.grow(&here, &there);
            with.mirror.grow(ranks, &here, &there);
        }
        // Ranks here may have rung for them before.
        new.for_each(|rank| self.take_news(rank));
        added
    }

    /// The ends of all copies.
    pub fn ends(self) -> Ends {
        let mut ends = self.ends;
        for with in &self.conversations {
            ends.extend(with.mirror.ends());
        }
        ends
    }

    /// Carries out an order of the agent, except those that are about connections, too.
    pub fn obey(&mut self, command: &Command) {
        let conversations = self.conversations.iter_mut();
        match *command {
            Command::Oldest(rank) => conversations.for_each(|with| with.outgoing.forgets(rank)),
            Command::Ended(rank) => conversations.for_each(|with| {
                with.outgoing.ended(rank);
                with.mirror.ended(rank);
            }),
            Command::Image(rank, slot) => conversations.for_each(|with| with.outgoing.has_image(rank, slot)),
            Command::CutOff(rank) => conversations.for_each(|with| with.outgoing.cut_off(rank)),
            Command::HasLogs(rank) => conversations.for_each(|with| with.outgoing.has_logs(rank)),
            Command::Flush(number) => {
                // Ranks have rung before for all that is to be flushed.
                self.hear_ranks();
                let there = self.conversations.iter_mut().filter(|with| !with.is_lost);
                let asked = there.map(|with| with.outgoing.flush(number)).count();
                self.flushes.push((number, asked));
            }
            // All logs are emptied, and nobody lacks any.
            Command::Epoch(number) => {
                conversations.for_each(|with| {
                    with.told.clear();
                    with.outgoing.begin_epoch(number);
                    with.mirror.begin_epoch(number);
                });
                self.lacks.clear();
                self.returned.clear();
            }
            Command::Lost(node) => conversations
                .filter(|with| with.node == node)
                .for_each(Conversation::lose),
            Command::Grow(_) | Command::Stop => {}
        }
    }

    /// Takes the news that ranks here have for ranks on other nodes.
    pub fn hear_ranks(&mut self) {
        for word in 0..self.words() {
            let news = self.memory.header(header::NEWS.item(word));
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

    /// Words of the header with bits of ranks.
    fn words(&self) -> usize {
        self.with.len().div_ceil(64)
    }

    /// No rank has rung since the last look.
    pub fn is_quiet(&self) -> bool {
        let news = |word: usize| self.memory.header(header::NEWS.item(word)).load(Ordering::SeqCst);
        (0..self.words()).all(|word| news(word) == 0)
    }

    /// Takes the news for `rank`, of another node.
    fn take_news(&mut self, rank: usize) {
        if let Some(Some(with)) = self.with.get(rank) {
            let outgoing = &mut self.conversations[*with].outgoing;
            // A spawned rank may ring before this mover and the other one know of it.
            let known = self.with.len();
            self.memory.take_ready(rank, |source| {
                if source < known {
                    outgoing.news(source as u32, rank as u32);
                }
            });
        }
    }

    /// What the agent has to hear.
    ///
    /// # Errors
    /// What nodes have told is of no use.
    pub fn answers(&mut self) -> Result<Vec<Answer>, Trouble> {
        for with in &mut self.conversations {
            for number in with.flushed.drain(..) {
                let asked = self.flushes.iter_mut().find(|(asked, _)| *asked == number);
                asked.into_iter().for_each(|(_, missing)| *missing -= 1);
            }
        }
        let over = self.flushes.extract_if(.., |(_, missing)| *missing == 0);
        let mut answers: Vec<Answer> = over.map(|(number, _)| Answer::Flushed(number)).collect();
        let conversations = &self.conversations;
        let is_whole = |rank: &mut u32| !conversations.iter().any(|with| with.mirror.lacks(*rank));
        let whole: Vec<u32> = self.lacks.extract_if(.., is_whole).collect();
        self.leave_known(&whole)?;
        for rank in whole {
            let conversations = self.conversations.iter_mut();
            conversations.for_each(|with| with.outgoing.unknown.retain(|unknown| *unknown != rank));
            answers.push(Answer::Returned(rank));
        }
        Ok(answers)
    }

    /// These ranks know what all nodes have told, and what is known here.
    fn leave_known(&mut self, ranks: &[u32]) -> Result<(), Trouble> {
        let Some(knowing) = self.knowing.as_ref().filter(|_| !ranks.is_empty()) else {
            return Ok(());
        };
        let lacking = [ranks, &self.lacks].concat();
        let here = self.here.iter().copied().filter(|rank| !lacking.contains(rank));
        let own = knowing.tell(&self.memory, here)?;
        for rank in ranks {
            let told = self.conversations.iter().flat_map(|with| with.told.iter());
            let told = told.chain(&own).chain(knowing.vouched.iter());
            known::leave(&self.memory, *rank, told.copied())?;
        }
        Ok(())
    }
}

//! A rank: what its provider has heard, the library above MPI, and its program.

use std::collections::{BTreeSet, VecDeque};

use resurgo_protocol::Rank;
use resurgo_protocol::survivors::{Said, Verdict, Wish};

use super::node::Item;
use super::repeating::{Lives, Replay};
use super::{AGREED, Down, Event, Up, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;
use crate::random::mix;

const RIGHT: &str = "what a call returns as its result is the result";
const FIRST: &str = "what the dead have sent is received first";
const SAME: &str = "a later life repeats what former ones did";
const STEPS: u32 = 8;

/// The kinds of calls that receives belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    PointToPoint,
    Collective,
    /// Among some members: it makes a communicator of those that live.
    Group,
}

/// Where a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag {
    comm: u32,
    kind: Kind,
    call: u64,
}

/// A message of one to three pieces. `is_tainted`: it is made of what came of a receive that was ended.
#[derive(Debug, Clone, Copy)]
struct Message {
    tag: Tag,
    value: u64,
    is_tainted: bool,
    pieces: u64,
}

/// From one rank to another.
#[derive(Debug, Clone, Default)]
pub struct Channel {
    sent: Vec<Message>,
    /// Pieces: in the memory of the sender's node, of the receiver's, and taken.
    published: usize,
    pub arrived: usize,
    taken: usize,
    /// The message that is being taken, its pieces so far, and whether a receive waits for it.
    filling: Option<(Message, u64, bool)>,
}

#[derive(Debug, Clone, Copy)]
struct Receive {
    source: Rank,
    tag: Tag,
}

/// A call under way.
#[derive(Debug, Clone)]
struct Call {
    tag: Tag,
    among: Vec<Rank>,
    /// Receives that have not ended.
    waits: usize,
    value: u64,
    is_tainted: bool,
    /// Collective calls: this rank has the total.
    has_total: bool,
    /// How many such calls the step still has; for a group, the agreement before and those that have failed.
    more: u32,
    failed: Vec<Rank>,
}

#[derive(Debug, Clone)]
enum Stage {
    Computes,
    Calls(Call),
    /// For the verdict on a step; on shrinking, whoever has failed; on what has been made.
    AwaitsStep {
        good: bool,
    },
    AwaitsFailed,
    AwaitsMade(Call),
    Over,
}

pub struct Process {
    rank: Rank,
    pub is_alive: bool,
    has_finished: bool,
    comm: u32,
    members: Vec<Rank>,
    step: u32,
    calls: u64,
    agreements: u32,
    is_revoked: BTreeSet<u32>,
    stage: Stage,
    pub verdict: Option<Verdict>,
    pub lives: Lives,
    /// The provider.
    pub heard: u64,
    buried: Vec<bool>,
    posted: Vec<Receive>,
    unexpected: Vec<(Rank, Message)>,
    /// Pieces that are to be published: the receiver, and the message with its first.
    outgoing: VecDeque<(Rank, Option<Message>)>,
    pub channels: Vec<Channel>,
}

/// What a rank gives to a sum.
fn part(rank: Rank, call: u64) -> u64 {
    mix(u64::from(rank), call) % 1000
}

impl Process {
    pub fn new(rank: Rank, size: usize) -> Process {
        Process {
            rank,
            is_alive: true,
            has_finished: false,
            comm: 0,
            members: (0..size as Rank).collect(),
            step: 0,
            calls: 0,
            agreements: 0,
            is_revoked: BTreeSet::new(),
            stage: Stage::Computes,
            verdict: None,
            lives: Lives::default(),
            heard: 0,
            buried: vec![false; size],
            posted: Vec::new(),
            unexpected: Vec::new(),
            outgoing: VecDeque::new(),
            channels: vec![Channel::default(); size],
        }
    }

    pub fn is_over(&self) -> bool {
        !self.is_alive || self.has_finished
    }

    pub fn is_struck_at(&self) -> bool {
        !self.is_over()
    }

    pub fn describe(&self) -> String {
        format!("{} in step {} on {}: {:?}", self.rank, self.step, self.comm, self.stage)
    }

    fn send(&mut self, to: Rank, message: Message) {
        if !self.buried[to as usize] {
            self.outgoing.push_back((to, Some(message)));
            (1..message.pieces).for_each(|_| self.outgoing.push_back((to, None)));
        }
    }
}

/// The provider.
impl World {
    /// A rank gets the processor.
    pub(super) fn turn(&mut self, rank: Rank) -> Result<(), Violation> {
        if self.ranks[rank as usize].is_over() {
            return Ok(());
        }
        if self.ranks[rank as usize].lives.repeats() {
            self.goes_on_as_before(rank)?;
            if !self.ranks[rank as usize].is_over() {
                self.soon(self.pace.turn, Event::Turn(rank));
            }
            return Ok(());
        }
        for _ in 0..self.random.below(3) {
            self.publish(rank);
        }
        self.hear(rank)?;
        for _ in 0..self.random.below(4) {
            self.hear(rank)?;
            self.deliver_one(rank)?;
        }
        if self.random.below(3) > 0 {
            self.go_on(rank)?;
        }
        if !self.ranks[rank as usize].is_over() {
            let pace = self.pace.turn * if self.random.one_in(30) { 20 } else { 1 };
            self.soon(pace, Event::Turn(rank));
        }
        Ok(())
    }

    /// One more piece is in the memory of the sender's node.
    fn publish(&mut self, from: Rank) {
        let Some((to, message)) = self.ranks[from as usize].outgoing.pop_front() else {
            return;
        };
        let (here, there) = (self.node_of[from as usize], self.node_of[to as usize]);
        let channel = &mut self.ranks[to as usize].channels[from as usize];
        channel.sent.extend(message);
        channel.published += 1;
        match here == there {
            true => channel.arrived += 1,
            false => self.post(here, there, Item::Piece { from, to }),
        }
    }

    /// Hears of failures and revocations.
    fn hear(&mut self, rank: Rank) -> Result<(), Violation> {
        let news = self.place_of(rank).news;
        if std::mem::replace(&mut self.ranks[rank as usize].heard, news) == news {
            return Ok(());
        }
        for other in 0..self.ranks.len() as Rank {
            let is_buried = self.place_of(rank).buried[other as usize];
            if is_buried && !self.ranks[rank as usize].buried[other as usize] {
                self.bury(rank, other)?;
            }
        }
        let posted = std::mem::take(&mut self.ranks[rank as usize].posted);
        for receive in posted {
            match self.is_in_vain(rank, &receive) {
                true => self.received(rank, None),
                false => self.ranks[rank as usize].posted.push(receive),
            }
        }
        Ok(())
    }

    fn bury(&mut self, rank: Rank, dead: Rank) -> Result<(), Violation> {
        if !self.is(Mutation::EndBeforeTaking) {
            while self.deliver(rank, dead)? {}
        }
        let is_there = self.places[self.node_of[dead as usize] as usize].is_up;
        let process = &mut self.ranks[rank as usize];
        process.buried[dead as usize] = true;
        let channel = &mut process.channels[dead as usize];
        if is_there && channel.taken < channel.published {
            let (taken, published) = (channel.taken, channel.published);
            return violation(
                FIRST,
                format!("{rank} has taken {taken} of {published} pieces of {dead}"),
            );
        }
        let half = channel.filling.take().is_some_and(|(_, _, is_awaited)| is_awaited);
        process.outgoing.retain(|(to, _)| *to != dead);
        if half && !self.is(Mutation::KeepHalf) {
            self.received(rank, None);
        }
        Ok(())
    }

    fn is_in_vain(&mut self, rank: Rank, receive: &Receive) -> bool {
        let comm = receive.tag.comm;
        let closed = self.place_of(rank).closed[rank as usize].contains(&comm);
        let buried = &self.ranks[rank as usize].buried;
        let members_have = self.comms[&comm].iter().any(|member| buried[*member as usize]);
        buried[receive.source as usize]
            || match receive.tag.kind {
                Kind::Group => self.is(Mutation::EndGroups) && members_have,
                Kind::PointToPoint => closed,
                Kind::Collective => closed || members_have,
            }
    }

    /// Takes a piece from a channel that has one.
    fn deliver_one(&mut self, rank: Rank) -> Result<(), Violation> {
        let first = self.random.below(self.ranks.len() as u64) as usize;
        let sources = (0..self.ranks.len()).map(|at| ((at + first) % self.ranks.len()) as Rank);
        for source in sources.collect::<Vec<_>>() {
            let is_buried = self.ranks[rank as usize].buried[source as usize];
            if (!is_buried || self.is(Mutation::TakeFromBuried)) && self.deliver(rank, source)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the next piece. False: there is none.
    fn deliver(&mut self, rank: Rank, source: Rank) -> Result<bool, Violation> {
        let process = &mut self.ranks[rank as usize];
        let channel = &mut process.channels[source as usize];
        if channel.taken == channel.arrived {
            return Ok(false);
        }
        if process.buried[source as usize] {
            return violation(FIRST, format!("{rank} takes something of {source} that it has buried"));
        }
        channel.taken += 1;
        self.report.deliveries += 1;
        let (message, pieces, is_awaited) = channel.filling.take().unwrap_or_else(|| {
            let message = channel.sent.remove(0);
            let wanted = |receive: &Receive| receive.source == source && receive.tag == message.tag;
            let at = process.posted.iter().position(wanted);
            at.map(|at| process.posted.remove(at));
            (message, 0, at.is_some())
        });
        match (pieces + 1 == message.pieces, is_awaited) {
            (false, _) => channel.filling = Some((message, pieces + 1, is_awaited)),
            (true, true) => self.received(rank, Some(message)),
            (true, false) => process.unexpected.push((source, message)),
        }
        Ok(true)
    }

    /// A receive of the call under way has ended, with a message or without.
    fn received(&mut self, rank: Rank, message: Option<Message>) {
        let Stage::Calls(call) = &mut self.ranks[rank as usize].stage else {
            return;
        };
        call.waits -= 1;
        call.value += message.map_or(7, |message| message.value);
        call.is_tainted |= message.is_none_or(|message| message.is_tainted);
    }

    fn receive(&mut self, rank: Rank, source: Rank, tag: Tag) {
        let receive = Receive { source, tag };
        let is_in_vain = self.is_in_vain(rank, &receive);
        let process = &mut self.ranks[rank as usize];
        if let Stage::Calls(call) = &mut process.stage {
            call.waits += 1;
        }
        let filling = process.channels[source as usize].filling.as_mut();
        if let Some((_, _, is_awaited)) = filling.filter(|(message, ..)| message.tag == tag) {
            *is_awaited = true;
            return;
        }
        let came = |(from, message): &(Rank, Message)| *from == source && message.tag == tag;
        let at = process.unexpected.iter().position(came);
        let message = at.map(|at| process.unexpected.remove(at).1);
        match message {
            Some(message) if !is_in_vain || tag.kind == Kind::PointToPoint => self.received(rank, Some(message)),
            _ if is_in_vain => self.received(rank, None),
            _ => process.posted.push(receive),
        }
    }
}

/// The library, and the program.
impl World {
    /// Whether the communicator is revoked, and whether a member has failed, as the library sees it.
    fn trouble(&mut self, rank: Rank) -> (bool, bool) {
        let comm = self.ranks[rank as usize].comm;
        let told = self.place_of(rank).revoked[rank as usize].contains(&comm);
        let process = &self.ranks[rank as usize];
        let place = &self.places[self.node_of[rank as usize] as usize];
        let have_failed = process.members.iter().any(|member| place.failed[*member as usize] != 0);
        (told || process.is_revoked.contains(&comm), have_failed)
    }

    fn go_on(&mut self, rank: Rank) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        match process.stage.clone() {
            Stage::Computes => self.begin(rank),
            Stage::Calls(call) if call.waits == 0 => return self.ends_call(rank, call),
            Stage::AwaitsStep { .. } | Stage::AwaitsFailed | Stage::AwaitsMade(_) => {
                if let Some(verdict) = self.looks(rank) {
                    let process = &self.ranks[rank as usize];
                    let (comm, number) = (process.comm, process.agreements);
                    self.agrees(comm, number, &verdict)?;
                    return self.learns(rank, verdict);
                }
            }
            Stage::Calls(_) | Stage::Over => {}
        }
        Ok(())
    }

    fn begin(&mut self, rank: Rank) {
        let process = &mut self.ranks[rank as usize];
        let (step, members) = (process.step, process.members.clone());
        match step % 3 {
            1 => self.begin_chain(rank, members),
            other => self.begin_sum(rank, Kind::Collective, members, u32::from(other == 2), Vec::new()),
        }
    }

    fn next_tag(&mut self, rank: Rank, kind: Kind) -> Tag {
        let process = &mut self.ranks[rank as usize];
        process.calls += 1;
        Tag {
            comm: process.comm,
            kind,
            call: match kind {
                Kind::Group => u64::from(process.agreements),
                _ => process.calls,
            },
        }
    }

    /// Each adds its part to what comes from the left, and passes that on to the right.
    fn begin_chain(&mut self, rank: Rank, members: Vec<Rank>) {
        if self.trouble(rank).0 {
            return self.wants_step(rank, false);
        }
        let tag = self.next_tag(rank, Kind::PointToPoint);
        let left = members.iter().take_while(|member| **member != rank).last().copied();
        self.ranks[rank as usize].stage = Stage::Calls(Call {
            tag,
            among: members,
            waits: 0,
            value: 0,
            is_tainted: false,
            has_total: false,
            more: 0,
            failed: Vec::new(),
        });
        left.into_iter().for_each(|left| self.receive(rank, left, tag));
    }

    /// Without a message from the left there is none to the right.
    fn ends_chain(&mut self, rank: Rank, call: &Call) -> Result<(), Violation> {
        let before = call.among.iter().take_while(|member| **member != rank);
        let sum: u64 = before.map(|member| part(*member, call.tag.call)).sum();
        if !call.is_tainted && call.value != sum {
            return violation(
                RIGHT,
                format!("{rank} has {} instead of {sum} from the left", call.value),
            );
        }
        let right = call.among.iter().skip_while(|member| **member != rank).nth(1).copied();
        let mut is_good = !call.is_tainted;
        if let Some(right) = right.filter(|_| is_good) {
            is_good = self.place_of(rank).failed[right as usize] == 0;
            let message = Message {
                tag: call.tag,
                value: sum + part(rank, call.tag.call),
                is_tainted: false,
                pieces: self.random.between(1, 3),
            };
            self.ranks[rank as usize].send(right, message);
        }
        self.wants_step(rank, is_good);
        Ok(())
    }

    /// The first of `among` adds up what the others send, and sends the total to them.
    fn begin_sum(&mut self, rank: Rank, kind: Kind, among: Vec<Rank>, more: u32, failed: Vec<Rank>) {
        let (is_revoked, have_failed) = self.trouble(rank);
        if kind == Kind::Collective && (is_revoked || have_failed) {
            return self.wants_step(rank, false);
        }
        let tag = self.next_tag(rank, kind);
        let own = part(rank, tag.call);
        let is_first = among[0] == rank;
        let pieces = self.random.between(1, 3);
        let process = &mut self.ranks[rank as usize];
        process.stage = Stage::Calls(Call {
            tag,
            among: among.clone(),
            waits: 0,
            value: if is_first { own } else { 0 },
            is_tainted: false,
            has_total: !is_first,
            more,
            failed,
        });
        if is_first {
            among[1..].iter().for_each(|other| self.receive(rank, *other, tag));
            return;
        }
        let message = Message {
            tag,
            value: own,
            is_tainted: false,
            pieces,
        };
        process.send(among[0], message);
        self.receive(rank, among[0], tag);
    }

    fn ends_call(&mut self, rank: Rank, mut call: Call) -> Result<(), Violation> {
        if call.tag.kind == Kind::PointToPoint {
            return self.ends_chain(rank, &call);
        }
        let pieces = self.random.between(1, 3);
        let process = &mut self.ranks[rank as usize];
        if !std::mem::replace(&mut call.has_total, true) {
            let message = Message {
                tag: call.tag,
                value: call.value,
                is_tainted: call.is_tainted,
                pieces,
            };
            call.among[1..].iter().for_each(|other| process.send(*other, message));
        }
        if call.tag.kind == Kind::Group {
            if self.is(Mutation::ShrinkOnce) {
                return self.has_made(rank, &call);
            }
            self.wants(rank, 1);
            self.ranks[rank as usize].stage = Stage::AwaitsMade(call);
            return Ok(());
        }
        let (is_revoked, have_failed) = self.trouble(rank);
        if is_revoked || have_failed {
            self.wants_step(rank, false);
            return Ok(());
        }
        self.is_right(rank, &call)?;
        match call.more {
            0 => self.wants_step(rank, true),
            more => self.begin_sum(rank, Kind::Collective, call.among, more - 1, Vec::new()),
        }
        Ok(())
    }

    fn is_right(&self, rank: Rank, call: &Call) -> Result<(), Violation> {
        let total: u64 = call.among.iter().map(|member| part(*member, call.tag.call)).sum();
        match !call.is_tainted && call.value == total {
            true => Ok(()),
            false => violation(
                RIGHT,
                format!("{rank} has {} instead of {total} from {:?}", call.value, call.tag),
            ),
        }
    }

    fn wants(&mut self, rank: Rank, flag: u32) {
        let process = &mut self.ranks[rank as usize];
        process.agreements += 1;
        let wish = Wish {
            ticket: process.lives.next_ticket(),
            context: process.comm,
            number: process.agreements,
            flag,
            acknowledged: Vec::new(),
            members: process.members.clone(),
        };
        process.lives.wants(wish.clone());
        self.say(rank, Said::Wants(wish));
    }

    fn wants_step(&mut self, rank: Rank, good: bool) {
        let process = &mut self.ranks[rank as usize];
        if !good && process.is_revoked.insert(process.comm) {
            let (key, members) = (u64::from(process.comm), process.members.clone());
            self.say(rank, Said::Revokes { key, members });
        }
        self.wants(rank, u32::from(good));
        self.ranks[rank as usize].stage = Stage::AwaitsStep { good };
    }

    fn learns(&mut self, rank: Rank, verdict: Verdict) -> Result<(), Violation> {
        let process = &mut self.ranks[rank as usize];
        match process.stage.clone() {
            Stage::AwaitsStep { good } if verdict.is_acknowledged && verdict.flag & 1 == 1 => {
                if !good {
                    return violation(AGREED, format!("{rank} has an error, and all are said to have none"));
                }
                process.step += 1;
                process.stage = Stage::Computes;
                if process.step == STEPS {
                    process.stage = Stage::Over;
                    process.has_finished = true;
                    let ended = Up::Ended { rank, finalised: true };
                    self.send_up(self.node_of[rank as usize], ended);
                }
            }
            Stage::AwaitsStep { .. } => {
                self.wants(rank, u32::MAX);
                self.ranks[rank as usize].stage = Stage::AwaitsFailed;
            }
            Stage::AwaitsMade(call) if call.failed == verdict.failed => return self.has_made(rank, &call),
            _ => {
                let among = process.members.iter().filter(|member| !verdict.failed.contains(member));
                let among = among.copied().collect();
                self.begin_sum(rank, Kind::Group, among, 0, verdict.failed);
            }
        }
        Ok(())
    }

    /// All that live have the new communicator.
    fn has_made(&mut self, rank: Rank, call: &Call) -> Result<(), Violation> {
        self.is_right(rank, call)?;
        let process = &mut self.ranks[rank as usize];
        let comm = mix(u64::from(process.comm), call.tag.call) as u32;
        (process.comm, process.members) = (comm, call.among.clone());
        (process.agreements, process.calls) = (0, 0);
        process.stage = Stage::Computes;
        self.report.fallbacks += 1;
        let first = self.comms.entry(comm).or_insert_with(|| call.among.clone());
        match *first == call.among {
            true => Ok(()),
            false => violation(AGREED, format!("{comm} has the members {first:?} and {:?}", call.among)),
        }
    }
}

/// A rank that recovers by itself.
impl World {
    /// A later life begins.
    pub(super) fn begins_again(&mut self, rank: Rank) -> Result<(), Violation> {
        self.note(|| format!("{rank} begins again"));
        if self.place_of(rank).news != self.ranks[rank as usize].heard {
            return violation(SAME, format!("{rank} begins again after failures were told"));
        }
        let process = &mut self.ranks[rank as usize];
        process.is_alive = true;
        process.verdict = None;
        let lives = &mut process.lives;
        (lives.looks, lives.repeated) = (0, None);
        (lives.is_live, lives.has_told) = (false, false);
        lives.replay = Some(Replay::default());
        self.report.from_images += 1;
        if self.is(Mutation::CaughtUpEarly) {
            self.tells_caught_up(rank);
            self.ranks[rank as usize].lives.is_live = false;
        }
        self.soon(20, Event::Turn(rank));
        Ok(())
    }

    fn tells_caught_up(&mut self, rank: Rank) {
        let lives = &mut self.ranks[rank as usize].lives;
        lives.is_live = true;
        if !std::mem::replace(&mut lives.has_told, true) {
            self.send_up(self.node_of[rank as usize], Up::Replayed(rank));
        }
    }

    /// The life goes on as its former ones did.
    pub(super) fn goes_on_as_before(&mut self, rank: Rank) -> Result<(), Violation> {
        let Some(mut replay) = self.ranks[rank as usize].lives.replay else {
            return Ok(());
        };
        // Once all is said and sent again, nobody has seen what former lives did after that: only that they found a verdict.
        let left = self.ranks[rank as usize].lives.wanted.len() - replay.said;
        let has_said_all = left == 0 || left == 1 && replay.has_asked;
        let is_done = has_said_all && self.ranks[rank as usize].lives.is_live;
        if !is_done && self.place_of(rank).news != self.ranks[rank as usize].heard {
            return violation(
                SAME,
                format!("{rank} can hear of a failure that its former lives had not heard of"),
            );
        }
        // Its messages may be repeated before the last of what it wants.
        let is_early = self.random.one_in(8) && replay.said + 1 >= self.ranks[rank as usize].lives.wanted.len();
        if is_early {
            self.tells_caught_up(rank);
        }
        let lives = &self.ranks[rank as usize].lives;
        let Some(wanted) = lives.wanted.get(replay.said).cloned() else {
            self.ranks[rank as usize].lives.replay = None;
            self.tells_caught_up(rank);
            return Ok(());
        };
        let ticket = wanted.wish.ticket;
        if self.is(Mutation::WantAgain) {
            self.say(rank, Said::Wants(wanted.wish));
            replay.said += 1;
        } else if !std::mem::replace(&mut replay.has_asked, true) {
            self.say(rank, Said::Repeats { ticket });
        } else if let Some(repeated) = self.ranks[rank as usize].lives.repeated.take() {
            if (repeated.ticket, repeated.is_known) != (ticket, true) {
                return violation(SAME, format!("{rank} asks for {ticket}, and hears {repeated:?}"));
            }
            let look = wanted.found.as_ref().map(|(look, _)| *look);
            if repeated.look != look {
                return violation(SAME, format!("{rank} had {ticket} at look {look:?}, now {repeated:?}"));
            }
            replay.due = look;
            self.ranks[rank as usize].lives.looks = 0;
            if look.is_none() {
                replay = Replay {
                    said: replay.said + 1,
                    ..Replay::default()
                };
            }
        } else if let Some(due) = replay.due {
            let process = &mut self.ranks[rank as usize];
            process.lives.looks = due.min(process.lives.looks + 1);
            if process.lives.looks == due
                && let Some(verdict) = process.verdict.take()
            {
                if Some(&verdict) != wanted.found.as_ref().map(|(_, verdict)| verdict) {
                    return violation(AGREED, format!("{rank} had {:?}, and now {verdict:?}", wanted.found));
                }
                replay = Replay {
                    said: replay.said + 1,
                    ..Replay::default()
                };
            }
        }
        self.ranks[rank as usize].lives.replay = Some(replay);
        Ok(())
    }

    /// A rank looks for a verdict.
    pub(super) fn looks(&mut self, rank: Rank) -> Option<Verdict> {
        let process = &mut self.ranks[rank as usize];
        let lives = &mut process.lives;
        lives.looks += 1;
        let verdict = process.verdict.take()?;
        let look = lives.looks;
        let last = lives.wanted.last_mut()?;
        last.found = Some((look, verdict.clone()));
        let ticket = last.wish.ticket;
        if self.recovers && !self.is(Mutation::TookUnsaid) {
            self.say(rank, Said::Took { ticket, look });
        }
        Some(verdict)
    }

    pub(super) fn begin_life(&mut self, rank: Rank) {
        self.send_down(self.node_of[rank as usize], Down::Begin(rank));
    }
}

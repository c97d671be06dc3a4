//! The invariants, checked after every event from a view of the whole system that no rank has.
//!
//! The checkers share no code with the protocol: they count reads, deliveries and sends themselves. Per rank they
//! keep its *history*, the deliveries and sends that count. These are those of the current life and, while it replays,
//! those of former lives that it must repeat. Every send carries the vector clock of its sender's deliveries, so
//! that the past of every state is known.

use resurgo_protocol::{Rank, Recorded, Tolerate};

use crate::program::{Action, Job, Message};

/// Deliveries of each rank that a state depends on.
type Past = [u32; MAX_RANKS];

/// Most ranks of a simulated job.
pub const MAX_RANKS: usize = 8;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {what}")]
pub struct Violation {
    /// The name of the invariant.
    pub rule: &'static str,
    pub what: String,
}

const EXACTLY_ONCE: &str = "exactly once, in order";
pub const NO_ORPHAN: &str = "no orphan";
pub const SAME_HISTORY: &str = "same history";
pub const COLLECTED: &str = "nothing needed is collected";
/// Nothing that is not needed stays.
pub const KEPT: &str = "nothing kept for ever";
/// Name of the invariant that the simulator itself watches over.
pub const LIVENESS: &str = "liveness";

pub(crate) fn violation<T>(rule: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { rule, what })
}

macro_rules! check {
    ($holds:expr, $rule:expr, $($what:tt)+) => {
        if !$holds {
            return violation($rule, format!($($what)+));
        }
    };
}

#[derive(Debug, Clone, Copy)]
struct Delivery {
    source: Rank,
    polls: u64,
    ssn: u64,
    content: u64,
    tag: u32,
    /// After the delivery.
    past: Past,
}

#[derive(Debug, Clone, Copy)]
struct Send {
    tag: u32,
    content: u64,
    /// Deliveries of the sender before it.
    after: u64,
    past: Past,
}

#[derive(Debug, Clone, Default)]
struct History {
    deliveries: Vec<Delivery>,
    /// Per destination.
    sends: Vec<Vec<Send>>,
    // The current life.
    up: bool,
    /// The rank has read its record: `deliveries` holds nothing that the life will not make.
    knows_record: bool,
    rclock: u64,
    reads: u64,
    delivered: Vec<u64>,
    sent: Vec<u64>,
    published: Vec<u64>,
    /// Per destination, the last send that ever left.
    visible: Vec<u64>,
    past: Past,
    /// Most deliveries that an event logger has ever stored for this history.
    ever_stored: u64,
    /// Deliveries that the present event logger stores, or knows to be covered.
    stored: u64,
    /// Deliveries that no recovery will ask for: images cover them.
    covered: u64,
    /// Deliveries of the image that the present life begins from.
    image: u64,
}

/// A life's position in its rank's history, for an image of it.
#[derive(Debug, Clone)]
pub struct Standing {
    rclock: u64,
    reads: u64,
    delivered: Vec<u64>,
    sent: Vec<u64>,
    past: Past,
}

impl Standing {
    pub fn rclock(&self) -> u64 {
        self.rclock
    }

    /// Reads begun since the last delivery.
    pub fn reads(&self) -> u64 {
        self.reads
    }
}

/// The whole system as it should be.
#[derive(Debug, Clone)]
pub struct Checkers {
    tolerate: Tolerate,
    memory_survives: bool,
    /// Sends wait for nothing.
    causal: bool,
    histories: Vec<History>,
}

impl Checkers {
    pub fn new(size: usize, tolerate: Tolerate, memory_survives: bool, causal: bool) -> Self {
        let history = History {
            sends: vec![Vec::new(); size],
            up: true,
            knows_record: true,
            delivered: vec![0; size],
            sent: vec![0; size],
            published: vec![0; size],
            visible: vec![0; size],
            ..History::default()
        };
        Self {
            tolerate,
            memory_survives,
            causal,
            histories: vec![history; size],
        }
    }

    fn of(&mut self, rank: Rank) -> &mut History {
        &mut self.histories[rank as usize]
    }

    /// A completion-queue read begins.
    pub fn read(&mut self, rank: Rank) {
        self.of(rank).reads += 1;
    }

    /// The program of `rank` sends.
    pub fn send(&mut self, rank: Rank, to: Rank, ssn: u64, tag: u32, content: u64) -> Result<(), Violation> {
        let history = self.of(rank);
        let sent = &mut history.sent[to as usize];
        *sent += 1;
        check!(
            *sent == ssn,
            EXACTLY_ONCE,
            "send {sent} from {rank} to {to} is numbered {ssn}"
        );
        let former = &mut history.sends[to as usize];
        match former.get(ssn as usize - 1) {
            Some(send) => check!(
                send.content == content && send.tag == tag && send.after == history.rclock,
                SAME_HISTORY,
                "message {ssn} from {rank} to {to} was {:x} after delivery {} and is now {content:x} after {}",
                send.content,
                send.after,
                history.rclock
            ),
            None => former.push(Send {
                tag,
                content,
                after: history.rclock,
                past: history.past,
            }),
        }
        Ok(())
    }

    /// A frame leaves its sender. `logger_noticed`: the sender is connected to the event logger there is.
    pub fn publish(&mut self, rank: Rank, to: Rank, ssn: u64, logger_noticed: bool) -> Result<(), Violation> {
        let node = self.tolerate == Tolerate::Node && !self.causal;
        let history = self.of(rank);
        let before = std::mem::replace(&mut history.published[to as usize], ssn);
        check!(
            before + 1 == ssn,
            EXACTLY_ONCE,
            "message {ssn} from {rank} to {to} leaves after message {before}"
        );
        let Some(after) = history.sends[to as usize].get(ssn as usize - 1).map(|send| send.after) else {
            return violation(
                SAME_HISTORY,
                format!("message {ssn} from {rank} to {to} leaves, and is not in the sender's history"),
            );
        };
        let first = ssn > history.visible[to as usize];
        if first {
            history.visible[to as usize] = ssn;
        }
        if node && first {
            // Stable in a lost event logger is good enough only for what left before the loss was noticed.
            let stable = if logger_noticed {
                history.stored.max(history.covered)
            } else {
                history.ever_stored
            };
            check!(
                after <= stable,
                NO_ORPHAN,
                "message {ssn} from {rank} to {to} leaves after delivery {after}, {stable} are stable"
            );
        }
        Ok(())
    }

    /// The receiver wants the channel from message `have + 1` on.
    pub fn rewound(&mut self, rank: Rank, to: Rank, have: u64) {
        self.of(rank).published[to as usize] = have;
    }

    /// `rank` delivers message `ssn` of the channel from `message.source`.
    pub fn deliver(&mut self, rank: Rank, ssn: u64, message: Message) -> Result<(), Violation> {
        let Message { source, tag, content } = message;
        let Some(send) = self.histories[source as usize].sends[rank as usize]
            .get(ssn as usize - 1)
            .copied()
        else {
            return violation(
                SAME_HISTORY,
                format!("{rank} delivers message {ssn} from {source}, which never sent it"),
            );
        };
        check!(
            send.content == content && send.tag == tag,
            SAME_HISTORY,
            "{rank} delivers {content:x} as message {ssn} from {source}, whose history has {:x}",
            send.content
        );
        let stable: [u64; MAX_RANKS] =
            std::array::from_fn(|other| self.histories.get(other).map_or(u64::MAX, |other| other.ever_stored));
        let node = self.tolerate == Tolerate::Node && !self.causal;
        let history = self.of(rank);
        let delivered = &mut history.delivered[source as usize];
        *delivered += 1;
        check!(
            *delivered == ssn,
            EXACTLY_ONCE,
            "{rank} delivers message {ssn} from {source} as number {delivered}"
        );
        let polls = std::mem::take(&mut history.reads);
        for (mine, theirs) in history.past.iter_mut().zip(send.past) {
            *mine = (*mine).max(theirs);
        }
        history.rclock += 1;
        history.past[rank as usize] = history.rclock as u32;
        for (other, stable) in stable
            .iter()
            .enumerate()
            .filter(|(other, _)| node && *other != rank as usize)
        {
            check!(
                u64::from(history.past[other]) <= *stable,
                NO_ORPHAN,
                "{rank} depends on delivery {} of {other}, {stable} are stable",
                history.past[other]
            );
        }
        match history.deliveries.get(history.rclock as usize - 1) {
            Some(former) => check!(
                (former.source, former.ssn, former.polls, former.content) == (source, ssn, polls, content),
                SAME_HISTORY,
                "delivery {} of {rank} was message {} from {} in read {} and is now message {ssn} from {source} in read {polls}",
                history.rclock,
                former.ssn,
                former.source,
                former.polls
            ),
            None => {
                let past = history.past;
                history.deliveries.push(Delivery {
                    source,
                    polls,
                    ssn,
                    content,
                    tag,
                    past,
                });
            }
        }
        Ok(())
    }

    /// The event logger stores delivery `rclock` of `rank`.
    pub fn stored(&mut self, rank: Rank, rclock: u64, record: Recorded) -> Result<(), Violation> {
        let history = self.of(rank);
        let made = history.deliveries.get(rclock as usize - 1);
        check!(
            made.is_some_and(|made| (made.source, made.polls) == (record.source, record.polls)),
            SAME_HISTORY,
            "the event logger stores delivery {rclock} of {rank} from {} in read {}, made: {:?}",
            record.source,
            record.polls,
            made.map(|made| (made.source, made.polls))
        );
        history.stored = history.stored.max(rclock);
        history.ever_stored = history.ever_stored.max(rclock);
        Ok(())
    }

    /// The event logger's acknowledgement reaches `rank`.
    pub fn acknowledged(&mut self, rank: Rank, rclock: u64) -> Result<(), Violation> {
        let stored = self.of(rank).stored;
        check!(
            rclock <= stored,
            NO_ORPHAN,
            "delivery {rclock} of {rank} is acknowledged, {stored} are stored"
        );
        Ok(())
    }

    /// The event logger is told that images cover the first `rclock` deliveries of `rank`.
    pub fn logger_forgets(&mut self, rank: Rank, rclock: u64) {
        let history = self.of(rank);
        history.stored = history.stored.max(rclock);
    }

    /// The deliveries of `rank` before `rclock + 1` are being dropped.
    pub fn collects(&mut self, rank: Rank, rclock: u64) {
        let history = self.of(rank);
        history.covered = history.covered.max(rclock);
    }

    /// The position for an image of `rank` that is taken now.
    pub fn standing(&self, rank: Rank) -> Standing {
        let history = &self.histories[rank as usize];
        Standing {
            rclock: history.rclock,
            reads: history.reads,
            delivered: history.delivered.clone(),
            sent: history.sent.clone(),
            past: history.past,
        }
    }

    /// The event logger of `rank` is lost with all it stored.
    pub fn logger_lost(&mut self, rank: Rank) {
        self.of(rank).stored = 0;
    }

    /// Deliveries of `rank` that its event logger stores, or knows to be covered.
    pub fn stored_by_logger(&self, rank: Rank) -> u64 {
        self.histories[rank as usize].stored
    }

    /// Every delivery of `rank` that was ever stable, and the first `required`, are stored in its present event logger.
    pub fn refilled(&self, rank: Rank, required: u64) -> bool {
        let history = &self.histories[rank as usize];
        history.stored >= history.ever_stored.max(required)
    }

    /// Causal logging: the deliveries of all ranks that `rank`, which runs, knows, and takes for stable.
    pub fn knows(&self, rank: Rank, latest: &[u64], stable: &[u64]) -> Result<(), Violation> {
        let past = &self.histories[rank as usize].past;
        for (other, history) in self.histories.iter().enumerate() {
            let truth = history.ever_stored.max(history.covered);
            let (depends, known) = (u64::from(past[other]), latest[other]);
            check!(
                !self.histories[rank as usize].up || depends <= known.max(truth),
                NO_ORPHAN,
                "{rank} depends on delivery {depends} of {other} and knows of {known}, {truth} are stable"
            );
            let held = stable[other];
            check!(
                held <= truth,
                NO_ORPHAN,
                "{rank} holds delivery {held} of {other} for stable, {truth} are"
            );
        }
        Ok(())
    }

    /// The next life of `rank` will begin from this image, or from the beginning.
    pub fn begins_from(&mut self, rank: Rank, image: Option<&Standing>) -> Result<(), Violation> {
        let history = self.of(rank);
        history.image = image.map_or(0, Standing::rclock);
        let (image, left) = (history.image, history.deliveries.len() as u64);
        check!(
            image <= left,
            NO_ORPHAN,
            "the image of {rank} has delivery {image}, and {left} can be repeated"
        );
        Ok(())
    }

    /// `rank` crashes.
    pub fn crash(&mut self, rank: Rank) {
        let history = self.of(rank);
        history.up = false;
        history.knows_record = false;
        history.image = 0;
    }

    /// All ranks, which are down, return to the state `known`. `begins`: that is the beginning, and nothing was
    /// dropped.
    pub fn returned(&mut self, known: Self, begins: bool) {
        let former = std::mem::replace(self, known);
        for (history, former) in self.histories.iter_mut().zip(former.histories) {
            if !begins {
                history.covered = history.covered.max(former.covered);
            }
            history.up = false;
            history.knows_record = false;
        }
    }

    /// All have returned but for `rank`, which has left.
    pub fn has_left(&mut self, rank: Rank) {
        let history = self.of(rank);
        (history.up, history.knows_record) = (true, true);
    }

    /// A later life of `rank`, restored from an image or from the beginning, has read its record, which starts
    /// after delivery `base`.
    pub fn recover(
        &mut self,
        rank: Rank,
        image: Option<&Standing>,
        base: u64,
        record: &[Recorded],
    ) -> Result<(), Violation> {
        let len = base + record.len() as u64;
        let from = image.map_or(0, Standing::rclock);
        check!(
            base <= from,
            COLLECTED,
            "{rank} recovers from delivery {from}, its record starts after delivery {base}"
        );
        check!(
            from <= len,
            NO_ORPHAN,
            "the image of {rank} has delivery {from}, {len} are recorded"
        );
        let history = self.of(rank);
        check!(
            history.covered <= from,
            COLLECTED,
            "{rank} recovers from delivery {from}, what came before delivery {} is dropped",
            history.covered
        );
        let next = history.deliveries.get(from as usize).filter(|_| from < len);
        if let (Some(image), Some(next)) = (image, next) {
            check!(
                image.reads <= next.polls,
                SAME_HISTORY,
                "the image of {rank} is {} reads past delivery {from}, and the next was made in read {}",
                image.reads,
                next.polls
            );
        }
        for (rclock, record) in (base + 1..).zip(record) {
            let made = history.deliveries.get(rclock as usize - 1);
            check!(
                made.is_some_and(|made| (made.source, made.polls) == (record.source, record.polls)),
                SAME_HISTORY,
                "delivery {rclock} of {rank} is recorded from {} in read {}, made: {:?}",
                record.source,
                record.polls,
                made.map(|made| (made.source, made.polls))
            );
        }
        if self.memory_survives {
            let made = self.of(rank).deliveries.len() as u64;
            check!(
                len == made,
                COLLECTED,
                "{rank} made {made} deliveries, {len} are recorded"
            );
        }
        for other in (0..self.histories.len() as Rank).filter(|other| *other != rank) {
            let depends = u64::from(self.past_that_counts(other)[rank as usize]);
            check!(
                depends <= len,
                NO_ORPHAN,
                "{other} depends on delivery {depends} of {rank}, which can repeat {len}"
            );
        }
        let history = self.of(rank);
        history.deliveries.truncate(len as usize);
        history.ever_stored = history.ever_stored.min(len);
        history.knows_record = true;
        self.void(rank, len);
        Ok(())
    }

    /// States that depend on more than the first `len` deliveries of `rank` never count. Ranks that are down, or do not
    /// know yet what they repeat, must not repeat them.
    fn void(&mut self, rank: Rank, len: u64) {
        for history in self.histories.iter_mut().filter(|history| !history.knows_record) {
            let left = history
                .deliveries
                .partition_point(|delivery| u64::from(delivery.past[rank as usize]) <= len);
            history.deliveries.truncate(left);
            history.ever_stored = history.ever_stored.min(left as u64);
        }
    }

    /// A later life of `rank` begins to run: what it knows stays, the rest of its history is void. Without an image
    /// it begins at the beginning.
    pub fn life_starts(&mut self, rank: Rank, image: Option<&Standing>, sent_before: &[u64]) -> Result<(), Violation> {
        let record = self.of(rank).deliveries.len() as u64;
        for to in 0..self.histories.len() as Rank {
            let told = sent_before[to as usize];
            let seen = self
                .deliveries_that_count(to)
                .iter()
                .filter(|delivery| delivery.source == rank)
                .count() as u64;
            check!(
                seen <= told,
                COLLECTED,
                "{to} has seen {seen} messages from {rank}, which is told of {told}"
            );
            let sent = image.map_or(0, |image| image.sent[to as usize]);
            check!(
                sent <= told,
                COLLECTED,
                "the image of {rank} has sent message {sent} to {to}, and {told} can still be had"
            );
            let visible = self.histories[rank as usize].visible[to as usize];
            let sends = &mut self.histories[rank as usize].sends[to as usize];
            check!(
                told <= sends.len() as u64,
                SAME_HISTORY,
                "{rank} is told of message {told} to {to}, never sent"
            );
            if let Some(last) = told.checked_sub(1).map(|last| sends[last as usize]) {
                check!(
                    last.after <= record,
                    NO_ORPHAN,
                    "{to} has message {told} from {rank}, sent after delivery {}, and {record} can be repeated",
                    last.after
                );
            }
            if self.memory_survives {
                check!(
                    told == visible,
                    COLLECTED,
                    "{rank} logged {told} of {visible} visible messages to {to}"
                );
            }
            sends.truncate(told as usize);
            self.histories[rank as usize].visible[to as usize] = told;
        }
        let history = self.of(rank);
        let ranks = history.sent.len();
        history.up = true;
        let beginning = Standing {
            rclock: 0,
            reads: 0,
            delivered: vec![0; ranks],
            sent: vec![0; ranks],
            past: Past::default(),
        };
        let standing = image.cloned().unwrap_or(beginning);
        history.rclock = standing.rclock;
        history.reads = standing.reads;
        history.delivered = standing.delivered;
        history.sent = standing.sent;
        history.past = standing.past;
        Ok(())
    }

    /// The deliveries of a rank that survive any next failure: all while its life lasts or replays, and the stored
    /// ones when it is down.
    fn deliveries_that_count(&self, rank: Rank) -> &[Delivery] {
        let history = &self.histories[rank as usize];
        if history.knows_record || self.memory_survives {
            &history.deliveries
        } else {
            let left = history.stored.max(history.covered).max(history.image);
            &history.deliveries[..left.min(history.deliveries.len() as u64) as usize]
        }
    }

    fn past_that_counts(&self, rank: Rank) -> Past {
        self.deliveries_that_count(rank)
            .last()
            .map_or(Past::default(), |delivery| delivery.past)
    }

    /// Deliveries in all histories.
    pub fn deliveries(&self) -> u64 {
        self.histories
            .iter()
            .map(|history| history.deliveries.len() as u64)
            .sum()
    }

    /// At the end: every rank's history is that of its program, run alone with these deliveries. Returns the answers.
    pub fn replay_alone(&self, job: &Job) -> Result<Vec<u64>, Violation> {
        (0..self.histories.len())
            .map(|rank| self.replay_one(job, rank as Rank))
            .collect()
    }

    fn replay_one(&self, job: &Job, rank: Rank) -> Result<u64, Violation> {
        let history = &self.histories[rank as usize];
        let mut program = job.start(rank);
        let mut deliveries = history.deliveries.iter().peekable();
        let mut sent = vec![0; job.size];
        let mut polls = 0;
        loop {
            match program.advance() {
                Action::Done => break,
                Action::Send { to, tag, content } => {
                    let send = history.sends[to as usize].get(sent[to as usize]);
                    sent[to as usize] += 1;
                    check!(
                        send.is_some_and(|send| (send.tag, send.content) == (tag, content)),
                        SAME_HISTORY,
                        "{rank} alone sends another message {} to {to}",
                        sent[to as usize]
                    );
                }
                Action::Read => {
                    check!(polls < 1_000_000, SAME_HISTORY, "{rank} alone does not end");
                    polls += 1;
                    let mut here = 0;
                    while let Some(delivery) = deliveries.next_if(|delivery| delivery.polls == polls) {
                        let Delivery {
                            source, tag, content, ..
                        } = *delivery;
                        program.deliver(Message { source, tag, content });
                        here += 1;
                        polls = 0;
                    }
                    program.read_ends(here);
                }
            }
        }
        check!(
            deliveries.peek().is_none(),
            SAME_HISTORY,
            "{rank} alone ends before its last delivery"
        );
        check!(
            sent.iter()
                .zip(&history.sends)
                .all(|(sent, sends)| *sent == sends.len()),
            SAME_HISTORY,
            "{rank} alone sends fewer messages"
        );
        Ok(program.state())
    }
}

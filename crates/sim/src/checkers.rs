//! What must always hold, checked after every event from a view of the whole system that no rank has.
//!
//! The checkers share no code with the protocol: they count reads, deliveries and sends themselves. Per rank they
//! keep its *history*, the deliveries and sends that count: those of the current life, and, while it replays,
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
    /// The invariant, by its name in the list of what must always hold.
    pub rule: &'static str,
    pub what: String,
}

const EXACTLY_ONCE: &str = "exactly once, in order";
const NO_ORPHAN: &str = "no orphan";
const SAME_HISTORY: &str = "same history";
const COLLECTED: &str = "nothing needed is collected";
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
    /// The record has been read: `deliveries` holds nothing that the life will not make.
    knows_record: bool,
    rclock: u64,
    reads: u64,
    delivered: Vec<u64>,
    sent: Vec<u64>,
    published: Vec<u64>,
    /// Per destination, the last send that has ever left.
    visible: Vec<u64>,
    past: Past,
    /// Most deliveries that an event logger has ever stored for this history.
    ever_stored: u64,
    /// Deliveries that the present event logger stores.
    stored: u64,
}

/// The whole system as it should be.
#[derive(Debug, Clone)]
pub struct Checkers {
    tolerate: Tolerate,
    memory_survives: bool,
    histories: Vec<History>,
}

impl Checkers {
    pub fn new(size: usize, tolerate: Tolerate, memory_survives: bool) -> Self {
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
        let node = self.tolerate == Tolerate::Node;
        let history = self.of(rank);
        let before = std::mem::replace(&mut history.published[to as usize], ssn);
        check!(
            before + 1 == ssn,
            EXACTLY_ONCE,
            "message {ssn} from {rank} to {to} leaves after message {before}"
        );
        let after = history.sends[to as usize][ssn as usize - 1].after;
        let first = ssn > history.visible[to as usize];
        if first {
            history.visible[to as usize] = ssn;
        }
        if node && first {
            // Stable in a lost event logger is good enough only for what left before the loss was noticed.
            let stable = if logger_noticed {
                history.stored
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
        let node = self.tolerate == Tolerate::Node;
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

    /// The event logger is lost with all it stored.
    pub fn logger_lost(&mut self) {
        for history in &mut self.histories {
            history.stored = 0;
        }
    }

    /// Every delivery of `rank` that was ever stable is stored in the present event logger.
    pub fn refilled(&self, rank: Rank) -> bool {
        let history = &self.histories[rank as usize];
        history.stored >= history.ever_stored
    }

    /// `rank` crashes.
    pub fn crash(&mut self, rank: Rank) {
        let history = self.of(rank);
        history.up = false;
        history.knows_record = false;
    }

    /// A later life of `rank` has read its record.
    pub fn recover(&mut self, rank: Rank, record: &[Recorded]) -> Result<(), Violation> {
        let history = self.of(rank);
        for (at, record) in record.iter().enumerate() {
            let made = history.deliveries.get(at);
            check!(
                made.is_some_and(|made| (made.source, made.polls) == (record.source, record.polls)),
                SAME_HISTORY,
                "delivery {} of {rank} is recorded from {} in read {}, made: {:?}",
                at + 1,
                record.source,
                record.polls,
                made.map(|made| (made.source, made.polls))
            );
        }
        if self.memory_survives {
            let made = self.of(rank).deliveries.len();
            check!(
                record.len() == made,
                COLLECTED,
                "{rank} made {made} deliveries, {} are recorded",
                record.len()
            );
        }
        let len = record.len() as u64;
        for other in (0..self.histories.len() as Rank).filter(|other| *other != rank) {
            let depends = u64::from(self.past_that_counts(other)[rank as usize]);
            check!(
                depends <= len,
                NO_ORPHAN,
                "{other} depends on delivery {depends} of {rank}, which can repeat {len}"
            );
        }
        let history = self.of(rank);
        history.deliveries.truncate(record.len());
        history.ever_stored = history.ever_stored.min(len);
        history.knows_record = true;
        Ok(())
    }

    /// A later life of `rank` begins to run: all that it has been told is kept, the rest of its history is void.
    pub fn life_starts(&mut self, rank: Rank, sent_before: &[u64]) -> Result<(), Violation> {
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
        history.rclock = 0;
        history.reads = 0;
        history.delivered = vec![0; ranks];
        history.sent = vec![0; ranks];
        history.past = Past::default();
        Ok(())
    }

    /// What is left of a rank's deliveries whatever fails next: all while its life lasts or replays, and what is
    /// stored when it is down.
    fn deliveries_that_count(&self, rank: Rank) -> &[Delivery] {
        let history = &self.histories[rank as usize];
        if history.knows_record || self.memory_survives {
            &history.deliveries
        } else {
            &history.deliveries[..history.stored.min(history.deliveries.len() as u64) as usize]
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

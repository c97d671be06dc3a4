//! Programs that deal with failures themselves: who has failed, what survivors agree on, and which communicators are
//! revoked (User-Level Failure Mitigation).
//!
//! There is one such state in a job, beside its failure policy. So an agreement is decided once: no member can learn
//! another decision, whoever dies meanwhile.
//!
//! With several nodes a failure, or a revocation, is told twice. First every node gets to know it, and says so; then what
//! waits in vain ends. So nobody takes for a result what came of a call that was ended elsewhere.

mod closings;
mod recovery;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use crate::{Node, Rank};
use closings::Closings;
use recovery::{Held, Recovery};
pub use words::{Closing, News, Said, Verdict, Wish};

/// A member has said what it wants.
#[derive(Debug, Clone)]
struct Arrived {
    rank: Rank,
    ticket: u32,
    acknowledged: BTreeSet<Rank>,
}

/// An agreement under way.
#[derive(Debug, Clone)]
struct Agreement {
    context: u32,
    number: u32,
    members: BTreeSet<Rank>,
    flag: u32,
    arrived: Vec<Arrived>,
}

impl Agreement {
    fn is_of(&self, wish: &Wish) -> bool {
        (self.context, self.number) == (wish.context, wish.number)
            && self.members == wish.members.iter().copied().collect()
    }

    fn has(&self, rank: Rank) -> bool {
        self.arrived.iter().any(|arrived| arrived.rank == rank)
    }
}

/// A failure, or revocation, that some node may not know.
#[derive(Debug, Clone)]
struct Spreading {
    round: u64,
    news: News,
    known_at: BTreeSet<Node>,
}

/// The failures of a job whose program deals with them.
#[derive(Debug, Clone, Default)]
pub struct Survivors {
    /// The node of each rank.
    nodes: Vec<Node>,
    joined: BTreeSet<Rank>,
    /// In the order of their failures.
    failed: Vec<Rank>,
    /// Finished or failed.
    gone: BTreeSet<Rank>,
    agreements: Vec<Agreement>,
    closings: Closings,
    recovery: Recovery,
    rounds: u64,
    spreading: Vec<Spreading>,
    worlds: Vec<World>,
    /// Of ranks that were started in the place of another: that place.
    places: BTreeMap<Rank, Rank>,
}

/// The number of no communicator: what a rank waits for alone.
const NO_CONTEXT: u32 = u32::MAX;

/// Ranks that one rank has spawned together.
#[derive(Debug, Clone)]
struct World {
    by: Rank,
    ranks: std::ops::Range<Rank>,
}

impl Survivors {
    /// `nodes`: that of each rank.
    pub fn on(nodes: Vec<Node>) -> Survivors {
        Survivors {
            nodes,
            ..Survivors::default()
        }
    }

    /// The same, and ranks recover by themselves as long as nothing has been told.
    pub fn recovering(self) -> Survivors {
        Survivors {
            recovery: Recovery::on(),
            ..self
        }
    }

    /// A rank that fails now can recover by itself.
    pub fn may_recover(&self) -> bool {
        self.recovery.is_on()
    }

    /// Ranks do what no life can repeat: from now on none recovers by itself.
    pub fn cannot_repeat(&mut self) {
        self.recovery.end();
    }

    /// A rank has failed, and begins again by itself.
    pub fn begins_again(&mut self, rank: Rank) {
        self.recovery.begins_again(rank);
    }

    /// This rank begins again, and may not have repeated all that former lives did.
    pub fn is_repeating(&self, rank: Rank) -> bool {
        self.recovery.is_repeating(rank)
    }

    /// It has repeated its messages.
    pub fn caught_up(&mut self, rank: Rank) -> Vec<News> {
        self.recovery.caught_up(rank);
        self.release()
    }

    /// The same, and its output.
    pub fn has_printed(&mut self, rank: Rank) -> Vec<News> {
        self.recovery.has_printed(rank);
        self.release()
    }

    /// Tells what was held back, if nobody repeats anything.
    fn release(&mut self) -> Vec<News> {
        let held = self.recovery.release();
        held.into_iter().flat_map(|held| self.tell(held)).collect()
    }

    fn tell(&mut self, held: Held) -> Vec<News> {
        match held {
            Held::Failed(ranks, code) => self.tell_failed(&ranks, code),
            Held::Revoked { key, ranks } => {
                let ranks = ranks.into_iter().filter(|member| !self.gone.contains(member));
                let ranks = ranks.collect();
                let mut news = vec![self.spread(|round| News::Revoked { key, ranks, round })];
                news.extend(self.settle());
                news
            }
        }
    }

    /// Tells it, or holds it back while a rank repeats what former lives did.
    fn tell_or_hold(&mut self, held: Held) -> Vec<News> {
        self.recovery.end();
        self.recovery.hold(held);
        self.release()
    }

    /// More ranks have come, on these nodes.
    pub fn come(&mut self, nodes: &[Node]) {
        self.nodes.extend(nodes);
    }

    /// Others can go on without `rank`: it has begun MPI, as far as they know.
    pub fn can_do_without(&self, rank: Rank) -> bool {
        self.joined.contains(&rank) || self.worlds.iter().any(|world| world.ranks.contains(&rank))
    }

    /// `by` has spawned these ranks. They begin MPI together, with it: or none of them does.
    pub fn spawned(&mut self, by: Rank, ranks: std::ops::Range<Rank>) {
        self.recovery.end();
        self.worlds.push(World { by, ranks });
    }

    /// Ranks of these worlds that have not begun MPI, and live.
    fn newcomers(&self, which: impl Fn(&World) -> bool) -> Vec<Rank> {
        let worlds = self.worlds.iter().filter(|world| which(world));
        let ranks = worlds.flat_map(|world| world.ranks.clone());
        ranks
            .filter(|rank| !self.joined.contains(rank) && !self.gone.contains(rank))
            .collect()
    }

    /// The failures so far.
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// The ranks from `first` on are started in the places of these, one for each.
    pub fn replaced(&mut self, first: Rank, of: &[Rank]) {
        let places: Vec<Rank> = of.iter().map(|rank| self.place(*rank)).collect();
        self.places.extend((first..).zip(places));
    }

    /// The rank of the job's beginning, or of a spawn, in whose place `rank` is: its own, or that of one before it.
    pub fn place(&self, rank: Rank) -> Rank {
        self.places.get(&rank).copied().unwrap_or(rank)
    }

    /// These ranks have failed, at one moment and with this exit code. What they said before has been handled, or never
    /// will be. What they have sent is on all nodes, or never will be.
    pub fn failed(&mut self, ranks: &[Rank], code: i32) -> Vec<News> {
        ranks.iter().for_each(|rank| self.recovery.is_over(*rank));
        self.tell_or_hold(Held::Failed(ranks.to_vec(), code))
    }

    fn tell_failed(&mut self, ranks: &[Rank], code: i32) -> Vec<News> {
        let mut news = Vec::new();
        for rank in ranks.iter().copied() {
            if !self.failed.contains(&rank) {
                self.failed.push(rank);
                self.gone.insert(rank);
                let number = self.failed.len() as u64;
                news.push(self.spread(|round| News::Failed {
                    rank,
                    number,
                    code,
                    round,
                }));
            }
        }
        news.extend(self.decide());
        news.extend(self.close());
        news.extend(self.settle());
        let begins = |rank: &Rank| !self.joined.contains(rank);
        let newcomers = self.newcomers(|world| {
            ranks.contains(&world.by) || ranks.iter().any(|rank| world.ranks.contains(rank) && begins(rank))
        });
        news.extend(newcomers.into_iter().map(|rank| News::Ends { rank }));
        news
    }

    /// `rank` has finished: it takes part in nothing any more.
    pub fn finished(&mut self, rank: Rank) -> Vec<News> {
        self.gone.insert(rank);
        self.recovery.is_over(rank);
        let mut news = self.decide();
        news.extend(self.close());
        news.extend(self.settle());
        news.extend(self.release());
        news
    }

    /// Ends calls that can end.
    fn close(&mut self) -> Vec<News> {
        let news = self.closings.close(&self.failed, &self.gone);
        self.answer(news)
    }

    /// Those of these verdicts that go out now: the others wait until a life asks for them again.
    fn answer(&mut self, mut news: Vec<News>) -> Vec<News> {
        news.retain(|news| match news {
            News::Agreed { rank, ticket, verdict } => self.recovery.decides(*rank, *ticket, verdict),
            _ => true,
        });
        news
    }

    /// All ranks of `node` know the news of this round.
    pub fn is_known(&mut self, node: Node, round: u64) -> Vec<News> {
        if let Some(spreading) = self.spreading.iter_mut().find(|spreading| spreading.round == round) {
            spreading.known_at.insert(node);
        }
        self.settle()
    }

    /// All nodes must know this.
    fn spread(&mut self, news: impl FnOnce(u64) -> News) -> News {
        self.rounds += 1;
        let round = self.rounds;
        let news = news(round);
        self.spreading.push(Spreading {
            round,
            news: news.clone(),
            known_at: BTreeSet::new(),
        });
        news
    }

    /// What all nodes know on which anybody lives. A single one gets all news in order.
    fn settle(&mut self) -> Vec<News> {
        let nodes = (0..).zip(&self.nodes);
        let living: BTreeSet<Node> = nodes
            .filter(|(rank, _)| !self.gone.contains(rank))
            .map(|(_, node)| *node)
            .collect();
        let is_known = |spreading: &mut Spreading| living.len() < 2 || living.is_subset(&spreading.known_at);
        let known = self.spreading.extract_if(.., is_known);
        known.map(|spreading| News::Settled(Box::new(spreading.news))).collect()
    }

    /// `rank` says something. Its last words may come after its end is known; nothing waits for them then.
    pub fn hears(&mut self, rank: Rank, said: Said) -> Vec<News> {
        if self.gone.contains(&rank) {
            return Vec::new();
        }
        match said {
            Said::Joined => {
                self.joined.insert(rank);
                Vec::new()
            }
            Said::Revokes { key, members } => self.tell_or_hold(Held::Revoked { key, ranks: members }),
            Said::Repeats { ticket } => self.repeats(rank, ticket),
            Said::Took { ticket, look } => {
                self.recovery.takes(rank, ticket, look);
                Vec::new()
            }
            Said::Wants(wish) => {
                self.recovery.asks(rank, wish.ticket);
                self.take(rank, wish);
                let mut news = self.decide();
                news.extend(self.release());
                news
            }
            Said::Closes(closing) => {
                self.recovery.asks(rank, closing.ticket);
                self.closings.take(rank, closing);
                let mut news = self.close();
                news.extend(self.release());
                news
            }
            Said::Abandons { ticket } => self.abandons(rank, ticket),
        }
    }

    /// A life that repeats a wish is answered as the one before.
    fn repeats(&mut self, rank: Rank, ticket: u32) -> Vec<News> {
        let known = self.recovery.repeats(rank, ticket);
        let is_known = known.is_some();
        let (look, verdict) = known.unwrap_or_default();
        let mut news = vec![News::Repeated {
            rank,
            ticket,
            is_known,
            look,
        }];
        news.extend(verdict.map(|verdict| News::Agreed { rank, ticket, verdict }));
        news.extend(self.release());
        news
    }

    /// It is an agreement with them, in which they do not take part.
    fn abandons(&mut self, rank: Rank, ticket: u32) -> Vec<News> {
        let newcomers = self.newcomers(|world| world.by == rank);
        let orphans = self.newcomers(|world| self.gone.contains(&world.by));
        let wish = Wish {
            ticket,
            context: NO_CONTEXT,
            number: ticket,
            flag: 0,
            acknowledged: Vec::new(),
            members: newcomers.iter().copied().chain(orphans).chain([rank]).collect(),
        };
        self.take(rank, wish);
        let ends = newcomers.into_iter().map(|rank| News::Ends { rank });
        ends.chain(self.decide()).collect()
    }

    fn take(&mut self, rank: Rank, wish: Wish) {
        let known = self.agreements.iter().position(|agreement| agreement.is_of(&wish));
        let at = known.unwrap_or_else(|| {
            self.agreements.push(Agreement {
                context: wish.context,
                number: wish.number,
                members: wish.members.iter().copied().collect(),
                flag: u32::MAX,
                arrived: Vec::new(),
            });
            self.agreements.len() - 1
        });
        let agreement = &mut self.agreements[at];
        if agreement.has(rank) || !agreement.members.contains(&rank) {
            return;
        }
        agreement.flag &= wish.flag;
        agreement.arrived.push(Arrived {
            rank,
            ticket: wish.ticket,
            acknowledged: wish.acknowledged.into_iter().collect(),
        });
    }

    /// Ends each agreement to which all its living members have come.
    fn decide(&mut self) -> Vec<News> {
        let gone = &self.gone;
        let is_complete = |agreement: &Agreement| {
            agreement
                .members
                .iter()
                .all(|member| agreement.has(*member) || gone.contains(member))
        };
        let (complete, rest) = std::mem::take(&mut self.agreements).into_iter().partition(is_complete);
        self.agreements = rest;
        let complete: Vec<Agreement> = complete;
        let verdicts = complete.iter().flat_map(|agreement| self.verdicts(agreement));
        let verdicts = verdicts.collect();
        self.answer(verdicts)
    }

    fn verdicts(&self, agreement: &Agreement) -> Vec<News> {
        let failed: Vec<Rank> = agreement.members.intersection(&self.gone).copied().collect();
        let living = agreement
            .arrived
            .iter()
            .filter(|arrived| !self.gone.contains(&arrived.rank));
        let has_all = |arrived: &Arrived| failed.iter().all(|rank| arrived.acknowledged.contains(rank));
        let verdict = Verdict {
            flag: agreement.flag,
            is_acknowledged: living.clone().all(has_all),
            failed: failed.clone(),
            failures: self.failed.len() as u64,
        };
        living
            .map(|arrived| News::Agreed {
                rank: arrived.rank,
                ticket: arrived.ticket,
                verdict: verdict.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;

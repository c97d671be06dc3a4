//! The closing barrier of collective calls (FT-MPI's strict way; Gabriel 2003, §3): a call ends well for all members, or
//! for none of those that live.
//!
//! It is no agreement of all that live, which would wait for members that have left because of a failure. A call ends
//! well when all members have come to its end, well; and otherwise when a rank has failed without which it cannot. That
//! stays so for those that come later.

use std::collections::BTreeSet;

use super::words::{Closing, News, Verdict};
use crate::Rank;

#[derive(Debug, Clone)]
struct Call {
    of: Closing,
    is_good: bool,
    /// With their tickets.
    arrived: Vec<(Rank, u32)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Closings(Vec<Call>);

impl Closings {
    pub fn take(&mut self, rank: Rank, closing: Closing) {
        let is_same = |call: &&mut Call| {
            let of = &call.of;
            (of.context, of.number, &of.members) == (closing.context, closing.number, &closing.members)
        };
        let arrived = (rank, closing.ticket);
        if let Some(call) = self.0.iter_mut().find(is_same) {
            call.is_good &= closing.is_good;
            call.arrived.push(arrived);
            return;
        }
        self.0.push(Call {
            is_good: closing.is_good,
            arrived: vec![arrived],
            of: closing,
        });
    }

    pub fn close(&mut self, failed: &[Rank], gone: &BTreeSet<Rank>) -> Vec<News> {
        let ends = |call: &mut Call| call.are_all_there() || !call.missed(failed, gone).is_empty();
        let ended: Vec<Call> = self.0.extract_if(.., ends).collect();
        let mut news = Vec::new();
        for call in ended {
            let verdict = Verdict {
                flag: u32::from(call.are_all_there() && call.is_good),
                failed: call.missed(failed, gone),
                failures: failed.len() as u64,
                is_acknowledged: false,
            };
            let living = call.arrived.into_iter().filter(|(rank, _)| !gone.contains(rank));
            news.extend(living.map(|(rank, ticket)| News::Agreed {
                rank,
                ticket,
                verdict: verdict.clone(),
            }));
        }
        news
    }
}

impl Call {
    fn are_all_there(&self) -> bool {
        let has_come = |member: &Rank| self.arrived.iter().any(|(rank, _)| rank == member);
        self.of.members.iter().all(has_come)
    }

    /// Ranks without which it cannot end well, unless all have come to its end. Members that have finished are such.
    fn missed(&self, failed: &[Rank], gone: &BTreeSet<Rank>) -> Vec<Rank> {
        let members = self.of.members.iter().filter(|member| gone.contains(member));
        let others = failed
            .iter()
            .filter(|rank| self.of.of_job && !self.of.members.contains(rank));
        let missed = members.chain(others).filter(|rank| !self.of.absorbed.contains(rank));
        missed.copied().collect()
    }
}

//! Ranks without images: since when, and whether the user knows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use resurgo_protocol::coordinator::Why;

/// How long a rank can be without an image before the user gets a report.
const WITHOUT_IMAGE: Duration = Duration::from_secs(5);

/// How long a reason for a refusal lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// It passes by itself.
    InPassing,
    /// It may pass.
    Perhaps,
    /// It does not pass while the job runs, and most ranks have the same: the user hears of it at once, and of one rank.
    ForGood,
}

impl Lasts {
    pub fn of(why: &Why) -> Lasts {
        if why.is_passing() {
            Lasts::InPassing
        } else if why.is_for_good() {
            Lasts::ForGood
        } else {
            Lasts::Perhaps
        }
    }
}

/// The meaning of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// It has lasted, and the user has no report yet.
    pub is_news: bool,
    /// It has lasted, with more than one refusal.
    pub lasts: bool,
}

#[derive(Clone, Default)]
struct Refusal {
    /// When the first refused image since the last success was asked for.
    since: Option<Instant>,
    told: bool,
}

/// The refusals of each rank.
pub struct Refusals {
    of: Vec<Refusal>,
    /// The user knows that a rank has no images for good.
    told_for_good: bool,
    /// Units that last had no images for a reason that passes by itself.
    in_passing: BTreeSet<usize>,
    /// The rank for whose sake waves were given up.
    pub ended_waves: Option<usize>,
    /// The rank that was the first to finish, where there are no waves after that; and when to say so, if others are
    /// still at work.
    pub over: Option<(usize, Instant)>,
    is_over: bool,
}

impl Refusals {
    pub fn new(ranks: usize) -> Refusals {
        Refusals {
            of: vec![Refusal::default(); ranks],
            told_for_good: false,
            in_passing: BTreeSet::new(),
            ended_waves: None,
            over: None,
            is_over: false,
        }
    }

    /// The rank has finished, and there are no waves any more.
    pub fn are_over(&mut self, rank: usize, now: Instant) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.over = Some((rank, now + WITHOUT_IMAGE));
        }
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize) {
        self.of.resize(ranks, Refusal::default());
    }

    /// There is an image of `rank`.
    pub fn taken(&mut self, rank: usize) {
        self.of[rank].since = None;
    }

    /// A unit has no images for a reason that passes by itself, or for another.
    pub fn note(&mut self, unit: usize, passes: bool) {
        match passes {
            true => self.in_passing.insert(unit),
            false => self.in_passing.remove(&unit),
        };
    }

    /// The images that the unit lacks will be possible by themselves, sooner or later.
    pub fn is_in_passing(&self, unit: usize) -> bool {
        self.in_passing.contains(&unit)
    }

    /// An image of `rank`, asked for at `asked`, has been refused. `is_expected`: the user asked for images, or the job
    /// needs them.
    pub fn refused(&mut self, rank: usize, lasts: Lasts, is_expected: bool, asked: Instant, now: Instant) -> Refused {
        let refusal = &mut self.of[rank];
        let is_first = refusal.since.is_none();
        if !is_expected || lasts == Lasts::InPassing {
            refusal.since = None;
            return Refused {
                is_news: false,
                lasts: false,
            };
        }
        let has_lasted = now - *refusal.since.get_or_insert(asked) >= WITHOUT_IMAGE;
        let is_news = match lasts {
            Lasts::ForGood => !std::mem::replace(&mut self.told_for_good, true),
            _ => has_lasted && !std::mem::replace(&mut refusal.told, true),
        };
        Refused {
            is_news,
            lasts: has_lasted && !is_first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_news_when_it_has_lasted_and_only_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut refusals = Refusals::new(2);
        let mut refused = |passes, asked, now| {
            let lasts = if passes { Lasts::InPassing } else { Lasts::Perhaps };
            refusals.refused(1, lasts, true, at(asked), at(now))
        };
        let told = |is_news, lasts| Refused { is_news, lasts };
        assert_eq!(refused(true, 0, 9), told(false, false));
        assert_eq!(refused(false, 9, 10), told(false, false));
        assert_eq!(refused(false, 10, 13), told(false, false));
        assert_eq!(refused(false, 13, 14), told(true, true));
        assert_eq!(refused(false, 15, 20), told(false, true));
        assert_eq!(refused(true, 20, 21), told(false, false));
    }

    #[test]
    fn what_passes_never_lasts() {
        let start = Instant::now();
        let mut refusals = Refusals::new(2);
        for minutes in 0..9 {
            let now = start + Duration::from_secs(60 * minutes);
            let refused = refusals.refused(1, Lasts::InPassing, true, start, now);
            assert!(!refused.is_news && !refused.lasts);
        }
        for passes in [true, false] {
            refusals.note(0, passes);
            assert_eq!(refusals.is_in_passing(0), passes);
        }
    }

    #[test]
    fn a_first_refusal_does_not_last_however_late_it_is() {
        let start = Instant::now();
        let now = start + Duration::from_secs(9);
        let mut refusals = Refusals::new(1);
        let is_first = refusals.refused(0, Lasts::Perhaps, true, start, now);
        assert_eq!(
            is_first,
            Refused {
                is_news: true,
                lasts: false
            }
        );
        refusals.taken(0);
        assert!(!refusals.refused(0, Lasts::Perhaps, true, now, now).lasts);
    }

    #[test]
    fn what_does_not_pass_is_told_at_once_of_one_rank() {
        let start = Instant::now();
        let mut refusals = Refusals::new(2);
        let mut refused = |rank, seconds| {
            let now = start + Duration::from_secs(seconds);
            refusals.refused(rank, Lasts::ForGood, true, start, now).is_news
        };
        assert!(refused(0, 0));
        assert!(!refused(0, 9) && !refused(1, 0) && !refused(1, 9));
    }

    #[test]
    fn what_nobody_expects_is_no_news() {
        let start = Instant::now();
        let mut refusals = Refusals::new(1);
        for now in [start, start + Duration::from_secs(60)] {
            assert_eq!(
                refusals.refused(0, Lasts::Perhaps, false, start, now),
                Refused {
                    is_news: false,
                    lasts: false
                }
            );
        }
    }
}

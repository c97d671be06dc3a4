//! Ranks without images: since when, and whether the user knows.

use std::time::{Duration, Instant};

/// How long a rank can be without an image before the user gets a report.
const WITHOUT_IMAGE: Duration = Duration::from_secs(5);

/// Reasons of short duration, in the ordinary course of things.
const IN_PASSING: [&str; 5] = [
    "former life",
    "not running",
    "died meanwhile",
    "still being written",
    "no waves any more",
];

/// Whether this reason will soon pass by itself.
pub fn is_in_passing(reason: &str) -> bool {
    IN_PASSING.iter().any(|passing| reason.contains(passing))
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
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    pub fn new(ranks: usize) -> Refusals {
        Refusals(vec![Refusal::default(); ranks])
    }

    /// The job has so many ranks now.
    pub fn grow(&mut self, ranks: usize) {
        self.0.resize(ranks, Refusal::default());
    }

    /// There is an image of `rank`.
    pub fn taken(&mut self, rank: usize) {
        self.0[rank].since = None;
    }

    /// An image of `rank`, asked for at `asked`, has been refused for this reason. `is_expected`: the user asked for images, or the job
    /// needs them.
    pub fn refused(&mut self, rank: usize, reason: &str, is_expected: bool, asked: Instant, now: Instant) -> Refused {
        let refusal = &mut self.0[rank];
        let is_first = refusal.since.is_none();
        let mut is_news = false;
        if !is_expected || is_in_passing(reason) {
            refusal.since = None;
        } else if now - *refusal.since.get_or_insert(asked) >= WITHOUT_IMAGE {
            is_news = !std::mem::replace(&mut refusal.told, true);
        }
        Refused {
            is_news,
            lasts: refusal.told && !is_first && !is_in_passing(reason),
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
        let mut refused = |reason, asked, now| refusals.refused(1, reason, true, at(asked), at(now));
        let told = |is_news, lasts| Refused { is_news, lasts };
        assert_eq!(refused("not running", 0, 9), told(false, false));
        assert_eq!(refused("it has a device open", 9, 10), told(false, false));
        assert_eq!(refused("it has a device open", 10, 13), told(false, false));
        assert_eq!(refused("it has a device open", 13, 14), told(true, true));
        assert_eq!(refused("it has a device open", 15, 20), told(false, true));
        assert_eq!(refused("there are no waves any more", 20, 21), told(false, false));
    }

    #[test]
    fn a_first_refusal_does_not_last_however_late_it_is() {
        let start = Instant::now();
        let now = start + Duration::from_secs(9);
        let mut refusals = Refusals::new(1);
        let is_first = refusals.refused(0, "it has a device open", true, start, now);
        assert_eq!(
            is_first,
            Refused {
                is_news: true,
                lasts: false
            }
        );
        refusals.taken(0);
        assert!(!refusals.refused(0, "it has a device open", true, now, now).lasts);
    }

    #[test]
    fn what_nobody_expects_is_no_news() {
        let start = Instant::now();
        let mut refusals = Refusals::new(1);
        for now in [start, start + Duration::from_secs(60)] {
            assert_eq!(
                refusals.refused(0, "x", false, start, now),
                Refused {
                    is_news: false,
                    lasts: false
                }
            );
        }
    }
}

//! Who is where in a communicator that is filled again after failures (FT-MPI's mode REBUILD).

use crate::Rank;
use crate::modes::Becomes;

/// The ranks of a communicator, in its new order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seats {
    /// Of each member that lives, in their order.
    pub survivors: Vec<u32>,
    /// Of each new rank.
    pub newcomers: Vec<u32>,
    /// The ranks of the job for which these come.
    pub replaced: Vec<Rank>,
}

impl Seats {
    /// `before`: the members by rank, of which these live, in the same order.
    pub fn new(before: &[Rank], living: &[Rank], becomes: Becomes) -> Seats {
        let empty = (0..).zip(before).filter(|(_, rank)| !living.contains(rank));
        let (places, replaced): (Vec<u32>, Vec<Rank>) = empty.unzip();
        let (survivors, newcomers) = match becomes {
            Becomes::RebuildShrink => {
                let left = living.len() as u32;
                ((0..left).collect(), (left..before.len() as u32).collect())
            }
            _ => {
                let taken = (0..).zip(before).filter(|(_, rank)| living.contains(rank));
                (taken.map(|(place, _)| place).collect(), places)
            }
        };
        Seats {
            survivors,
            newcomers,
            replaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::splitmix;

    #[test]
    fn newcomers_are_in_the_empty_places_or_behind_the_others() {
        let (before, living) = ([0, 7, 2, 3, 9], [0, 2, 9]);
        let seats = |survivors: &[u32], newcomers: &[u32]| Seats {
            survivors: survivors.to_vec(),
            newcomers: newcomers.to_vec(),
            replaced: vec![7, 3],
        };
        assert_eq!(
            Seats::new(&before, &living, Becomes::Rebuild),
            seats(&[0, 2, 4], &[1, 3])
        );
        assert_eq!(
            Seats::new(&before, &living, Becomes::RebuildShrink),
            seats(&[0, 1, 2], &[3, 4])
        );
    }

    #[test]
    fn each_seat_is_taken_once_after_any_failures() {
        let mut state = 5;
        let mut below = |most: u64| splitmix(&mut state) % most;
        for _ in 0..1000 {
            let before: Vec<Rank> = (0..1 + below(9) as Rank).map(|rank| 100 - 7 * rank).collect();
            let living: Vec<Rank> = before.iter().copied().filter(|_| below(3) > 0).collect();
            for becomes in [Becomes::Rebuild, Becomes::RebuildShrink] {
                let seats = Seats::new(&before, &living, becomes);
                let mut all: Vec<u32> = seats.survivors.iter().chain(&seats.newcomers).copied().collect();
                assert!(seats.survivors.is_sorted() && seats.newcomers.is_sorted());
                all.sort_unstable();
                assert_eq!(all, (0..before.len() as u32).collect::<Vec<_>>());
                assert_eq!(seats.replaced.len(), seats.newcomers.len());
                assert!(seats.replaced.iter().all(|rank| !living.contains(rank)));
            }
        }
    }
}

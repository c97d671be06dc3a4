//! Sets of moments.

/// Intervals that lie apart, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Times(Vec<(u64, u64)>);

impl Times {
    /// All that lies in any of these.
    pub fn of(intervals: impl Iterator<Item = (u64, u64)>) -> Times {
        let mut intervals: Vec<_> = intervals.filter(|(begin, end)| begin < end).collect();
        intervals.sort_unstable();
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in intervals {
            match all.last_mut() {
                Some((_, last)) if *last >= begin => *last = end.max(*last),
                _ => all.push((begin, end)),
            }
        }
        Times(all)
    }

    pub fn and(&self, other: &Times) -> Times {
        Times::of(self.0.iter().chain(&other.0).copied())
    }

    pub fn without(&self, other: &Times) -> Times {
        let (mut left, mut at) = (Vec::new(), 0);
        for (mut begin, end) in self.0.iter().copied() {
            while other.0.get(at).is_some_and(|(_, gone)| *gone <= begin) {
                at += 1;
            }
            let inside = other.0[at..].iter().take_while(|(from, _)| *from < end);
            for (from, to) in inside {
                if begin < *from {
                    left.push((begin, *from));
                }
                begin = begin.max(*to);
            }
            if begin < end {
                left.push((begin, end));
            }
        }
        Times(left)
    }

    pub fn intervals(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    pub fn length(&self) -> u64 {
        self.0.iter().map(|(begin, end)| end - begin).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_joined_and_taken_away() {
        let times = Times::of([(5, 9), (1, 3), (8, 12), (20, 20)].into_iter());
        assert_eq!(times.0, [(1, 3), (5, 12)]);
        let gone = Times::of([(0, 2), (6, 7), (8, 9), (11, 30)].into_iter());
        assert_eq!(times.without(&gone).0, [(2, 3), (5, 6), (7, 8), (9, 11)]);
        assert_eq!(times.and(&gone).0, [(0, 3), (5, 30)]);
        assert_eq!(times.length(), 9);
    }
}

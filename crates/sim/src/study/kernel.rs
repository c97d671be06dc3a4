//! The communication of the NAS benchmarks CG, LU, BT and FT, class A, step by step, without their start and their checks. Up to 16
//! ranks share the grid of the class; more have as much of a larger one each as 16 have.

use std::collections::VecDeque;

use resurgo_protocol::Rank;

use super::Costs;

/// Bytes of a number, and of the five unknowns of a cell.
const NUMBER: u64 = 8;
const CELL: u64 = 5 * NUMBER;
/// Of a line of BT, what a slab passes on to the next.
const FORTH: u64 = 30 * NUMBER;
/// Ranks that share the grid of class A.
const SHARED: u64 = 16;
/// Points along an edge of LU's and BT's.
const EDGE: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    Cg,
    Lu,
    Bt,
    Ft,
    /// One byte, to and fro.
    PingPong,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Nanoseconds.
    Compute(u64),
    Send {
        to: Rank,
        bytes: u64,
    },
    Receive {
        from: Rank,
    },
}

impl Kernel {
    pub const ALL: [Self; 5] = [Self::Cg, Self::Lu, Self::Bt, Self::Ft, Self::PingPong];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Cg => "cg",
            Self::Lu => "lu",
            Self::Bt => "bt",
            Self::Ft => "ft",
            Self::PingPong => "pingpong",
        }
    }

    pub const fn accepts(self) -> &'static str {
        match self {
            Self::Bt => "square numbers, 4 to 4096",
            Self::Cg | Self::Ft => "powers of two, 2 to 4096",
            Self::Lu => "2 to 4096",
            Self::PingPong => "2",
        }
    }

    pub fn runs_on(self, ranks: Rank) -> bool {
        let in_bounds = (2..=4096).contains(&ranks);
        match self {
            Self::Bt => in_bounds && ranks.isqrt().pow(2) == ranks,
            Self::Cg | Self::Ft => in_bounds && ranks.is_power_of_two(),
            Self::Lu => in_bounds,
            Self::PingPong => ranks == 2,
        }
    }

    /// Ranks that one rank exchanges messages with, at most.
    pub fn peers(self, ranks: Rank) -> u64 {
        let ranks = u64::from(ranks);
        match self {
            Self::Cg => 2 + u64::from(ranks.ilog2()),
            Self::Lu => 4,
            Self::Bt => 6,
            Self::Ft => ranks,
            Self::PingPong => 1,
        }
    }

    /// Points of the grid of class A: rows of the matrix (CG), cells.
    const fn points(self) -> u64 {
        match self {
            Self::Cg => 14_000,
            Self::Lu | Self::Bt => EDGE * EDGE * EDGE,
            Self::Ft => 256 * 256 * 128,
            Self::PingPong => 0,
        }
    }

    /// Nanoseconds for a point of the grid in a step, by the operations that the NAS benchmark of the name needs for it.
    /// The paper's processors (AthlonXP 2800+) are taken to do 400 million operations a second.
    fn usual_point(self) -> u64 {
        match self {
            Self::Cg => 700,
            Self::Lu => 4500,
            Self::Bt => 8000,
            Self::Ft => 400,
            Self::PingPong => 0,
        }
    }

    /// Appends the next step of `rank`.
    pub(crate) fn steps(self, rank: Rank, size: Rank, costs: &Costs, steps: &mut VecDeque<Step>) {
        let shared = u64::from(size).min(SHARED);
        let points = self.points() / shared;
        let compute = points * costs.point.unwrap_or(self.usual_point());
        match self {
            Self::Cg => cg(rank, size, points, compute, steps),
            Self::Lu => lu(rank, size, EDGE / shared.isqrt(), compute, steps),
            Self::Bt => bt(rank, size, compute, steps),
            Self::Ft => ft(rank, size, points, compute, steps),
            Self::PingPong => {
                let other = 1 - rank;
                let receive = Step::Receive { from: other };
                let send = Step::Send { to: other, bytes: 1 };
                steps.extend(if rank == 0 { [send, receive] } else { [receive, send] });
            }
        }
    }
}

/// Ranks in rows and columns: parts of the vector are added up along the row, and exchanged with the rank across the diagonal;
/// then two sums over all, also along rows.
fn cg(rank: Rank, size: Rank, points: u64, compute: u64, steps: &mut VecDeque<Step>) {
    let doublings = size.ilog2().div_ceil(2);
    let (columns, rows) = (1 << doublings, size >> doublings);
    let part = points * u64::from(size) / u64::from(rows) * NUMBER;
    let mut exchange = |other: Rank, bytes| {
        steps.push_back(Step::Send { to: other, bytes });
        steps.push_back(Step::Receive { from: other });
    };
    let along = || (0..doublings).map(|bit| rank ^ (1 << bit));
    along().for_each(|other| exchange(other, part));
    // With twice as many columns as rows, two neighbours of a row stand for one.
    let wide = columns / rows;
    let (row, column) = (rank / columns, rank % columns);
    let across = column / wide * columns + row * wide + column % wide;
    if across != rank {
        exchange(across, part / u64::from(wide));
    }
    along().for_each(|other| exchange(other, NUMBER));
    along().for_each(|other| exchange(other, NUMBER));
    steps.push_front(Step::Compute(compute));
}

/// A wave front over a grid of ranks, plane by plane, forth and back. `edge`: points of a plane along an edge of this rank's part.
fn lu(rank: Rank, size: Rank, edge: u64, compute: u64, steps: &mut VecDeque<Step>) {
    let across = (1..=size.isqrt())
        .rev()
        .find(|across| size.is_multiple_of(*across))
        .unwrap_or(1);
    let down = size / across;
    let (x, y) = (rank % across, rank / across);
    let bytes = edge * CELL;
    let west = (x > 0).then(|| rank - 1);
    let east = (x + 1 < across).then(|| rank + 1);
    let north = (y > 0).then(|| rank - across);
    let south = (y + 1 < down).then(|| rank + across);
    for (before, after) in [([west, north], [east, south]), ([east, south], [west, north])] {
        for _ in 0..EDGE {
            steps.extend(before.into_iter().flatten().map(|from| Step::Receive { from }));
            steps.push_back(Step::Compute(compute / EDGE / 2));
            steps.extend(after.into_iter().flatten().map(|to| Step::Send { to, bytes }));
        }
    }
    // The faces, with two layers of points each.
    let neighbours = [west, east, north, south];
    let faces = 2 * edge * EDGE * CELL;
    steps.extend(
        neighbours
            .into_iter()
            .flatten()
            .map(|to| Step::Send { to, bytes: faces }),
    );
    steps.extend(neighbours.into_iter().flatten().map(|from| Step::Receive { from }));
}

/// Cells of a cube shared out in diagonals: the faces of all cells, then in each direction from slab to slab, forth and back.
fn bt(rank: Rank, size: Rank, compute: u64, steps: &mut VecDeque<Step>) {
    let q = size.isqrt();
    let (a, b) = (rank / q, rank % q);
    let at = |a: Rank, b: Rank| a % q * q + b % q;
    let next = [at(a + q - 1, b + q - 1), at(a + 1, b), at(a, b + 1)];
    let before = [at(a + 1, b + 1), at(a + q - 1, b), at(a, b + q - 1)];
    let face = (EDGE / u64::from(q.min(4))).pow(2);
    for direction in 0..3 {
        let faces = u64::from(q - 1).min(3) * face * CELL;
        let pair = [next[direction], before[direction]];
        steps.extend(pair.map(|to| Step::Send { to, bytes: faces }));
        steps.extend(pair.map(|from| Step::Receive { from }));
    }
    let part = compute / 3 / u64::from(q) / 2;
    for direction in 0..3 {
        for (from, to, bytes) in [
            (before[direction], next[direction], face * FORTH),
            (next[direction], before[direction], face * CELL),
        ] {
            for stage in 0..q {
                if stage > 0 {
                    steps.push_back(Step::Receive { from });
                }
                steps.push_back(Step::Compute(part));
                if stage + 1 < q {
                    steps.push_back(Step::Send { to, bytes });
                }
            }
        }
    }
}

/// A transform in three dimensions, in which all ranks exchange all they have. `points`: of this rank.
fn ft(rank: Rank, size: Rank, points: u64, compute: u64, steps: &mut VecDeque<Step>) {
    let bytes = points * 2 * NUMBER / u64::from(size);
    steps.push_back(Step::Compute(compute));
    steps.extend((1..size).map(|step| Step::Send {
        to: (rank + step) % size,
        bytes,
    }));
    steps.extend((1..size).map(|step| Step::Receive {
        from: (rank + size - step) % size,
    }));
}

//! The programs of Gao 2007, §6.1 and §6.2.

use std::collections::VecDeque;

use resurgo_protocol::Rank;

use crate::study::Step;

const SECOND: u64 = 1_000_000_000;

/// The program. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Ranks of a group compute and exchange messages all the time; every `barrier`, if that is not 0, all meet.
    Groups { size: Rank, barrier: u64, length: u64 },
    /// Linpack on rows of [`Program::COLUMNS`] ranks, with panels of so many columns of the matrix.
    Linpack { panel: u64 },
}

/// Computed between two exchanges of a group.
const WORK: u64 = SECOND / 100;
const BYTES: u64 = 1024;

/// Linpack: rows of the matrix, and operations a second of a rank (a Xeon at 3.6 GHz, §6).
const ORDER: u64 = 30_000;
const OPERATIONS: f64 = 3e9;
const NUMBER: u64 = 8;

impl Program {
    /// In a row of ranks that pass panels on to one another (§6.2).
    pub const COLUMNS: Rank = 4;

    pub const fn name(self) -> &'static str {
        match self {
            Self::Groups { .. } => "groups",
            Self::Linpack { .. } => "linpack",
        }
    }

    pub const fn accepts(self) -> &'static str {
        match self {
            Self::Groups { .. } => "2 to 4096, so that all groups have their size",
            Self::Linpack { .. } => "multiples of 4, to 4096",
        }
    }

    pub fn runs_on(self, ranks: Rank) -> bool {
        let in_bounds = (2..=4096).contains(&ranks);
        match self {
            Self::Groups { size, .. } => in_bounds && size > 0 && ranks.is_multiple_of(size),
            Self::Linpack { .. } => in_bounds && ranks.is_multiple_of(Self::COLUMNS),
        }
    }

    /// Appends the steps of `rank` in `round`; none: it ends.
    pub(super) fn steps(self, rank: Rank, ranks: Rank, round: u64, steps: &mut VecDeque<Step>) {
        match self {
            Self::Groups { size, barrier, length } => {
                if round * WORK < length {
                    groups(rank, size, steps);
                    if barrier > 0 && (round + 1).is_multiple_of((barrier / WORK).max(1)) {
                        meet(rank, ranks, steps);
                    }
                }
            }
            Self::Linpack { panel } => linpack(rank, ranks, panel, round, steps),
        }
    }
}

fn groups(rank: Rank, size: Rank, steps: &mut VecDeque<Step>) {
    steps.push_back(Step::Compute(WORK));
    if size > 1 {
        let first = rank / size * size;
        steps.push_back(Step::Send {
            to: first + (rank + 1) % size,
            bytes: BYTES,
        });
        steps.push_back(Step::Receive {
            from: first + (rank + size - 1) % size,
        });
    }
}

/// A barrier by dissemination.
fn meet(rank: Rank, ranks: Rank, steps: &mut VecDeque<Step>) {
    for distance in (0..).map(|bit| 1 << bit).take_while(|distance| *distance < ranks) {
        steps.push_back(Step::Send {
            to: (rank + distance) % ranks,
            bytes: 0,
        });
        steps.push_back(Step::Receive {
            from: (rank + ranks - distance) % ranks,
        });
    }
}

/// The columns of ranks have their turns to factor a panel, which goes along the rows from neighbour to neighbour. Then rows are
/// swapped along the columns, from neighbour to neighbour as well, and all ranks compute with what they have.
fn linpack(rank: Rank, ranks: Rank, panel: u64, round: u64, steps: &mut VecDeque<Step>) {
    if (round + 1) * panel > ORDER {
        return;
    }
    let (columns, rows) = (Program::COLUMNS, ranks / Program::COLUMNS);
    let (row, column) = (rank / columns, rank % columns);
    let left = ORDER - round * panel;
    let time = |operations: u64| (operations as f64 / OPERATIONS * SECOND as f64) as u64;
    let own_rows = left / u64::from(rows);
    let along_row = |step: Rank| row * columns + (column + step) % columns;
    let along_column = |step: Rank| (row + step) % rows * columns + column;
    let owner = (round % u64::from(columns)) as Rank;
    if column == owner {
        steps.push_back(Step::Compute(time(own_rows * panel * panel)));
        // Pivots, once for all rows of the panel.
        exchange_with_neighbours(rows, along_column, panel * NUMBER, steps);
    } else {
        steps.push_back(Step::Receive {
            from: along_row(columns - 1),
        });
    }
    if (column + 1) % columns != owner {
        steps.push_back(Step::Send {
            to: along_row(1),
            bytes: own_rows * panel * NUMBER,
        });
    }
    let own_columns = left / u64::from(columns);
    exchange_with_neighbours(
        rows,
        along_column,
        own_columns * panel / u64::from(rows) * NUMBER,
        steps,
    );
    steps.push_back(Step::Compute(time(2 * own_rows * own_columns * panel)));
}

/// All ranks of a ring pass on what they have until each has it.
fn exchange_with_neighbours(size: Rank, along: impl Fn(Rank) -> Rank, bytes: u64, steps: &mut VecDeque<Step>) {
    for _ in 1..size {
        steps.push_back(Step::Send { to: along(1), bytes });
        steps.push_back(Step::Receive { from: along(size - 1) });
    }
}

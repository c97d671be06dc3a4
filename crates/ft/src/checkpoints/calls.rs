//! Collective calls of checkpoints, on the program's own communicator: messages of collective calls never meet those of
//! the program, and none of them waits for a rank that has failed or left the checkpoint because of a failure.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;

use crate::layer;
use crate::mpi::{BYTE, Comm, SUCCESS, pmpi};

/// The most bytes that go to a rank in one call.
const PIECE: usize = 64 << 20;
const MAX: c_int = 0x5800_0001;
const INT: c_int = 0x4c00_0405;

/// Fine, or a class of errors.
pub type Outcome<T = ()> = Result<T, c_int>;

/// The members of a communicator, and which of them this one is.
#[derive(Clone, Copy)]
pub struct Members {
    pub comm: Comm,
    pub count: usize,
    pub own: usize,
}

/// Bytes to or from a member.
#[derive(Clone, Copy)]
pub struct Move {
    pub peer: usize,
    pub at: usize,
    pub bytes: usize,
}

impl Members {
    pub fn of(comm: Comm) -> Members {
        let (mut count, mut own) = (0, 0);
        pmpi!(MPI_Comm_size(comm => Comm, &mut count => *mut c_int));
        pmpi!(MPI_Comm_rank(comm => Comm, &mut own => *mut c_int));
        Members {
            comm,
            count: usize::try_from(count).unwrap_or(0),
            own: usize::try_from(own).unwrap_or(0),
        }
    }

    fn call(self, call: impl FnOnce(Comm) -> c_int) -> Outcome {
        if let Some(class) = layer::trouble(self.comm) {
            return Err(class);
        }
        let code = call(self.comm);
        match (layer::trouble(self.comm), code) {
            (Some(class), _) => Err(class),
            (None, SUCCESS) => Ok(()),
            (None, code) => Err(code),
        }
    }

    /// The words of all, one after the other. Each has as many.
    pub fn gather(self, words: &[u64]) -> Outcome<Vec<u64>> {
        let mut all = vec![0_u64; words.len() * self.count];
        let bytes = size_of_val(words) as i64;
        self.call(|comm| {
            pmpi!(MPI_Allgather_c(
                words.as_ptr() => *const u64, bytes => i64, BYTE => c_int,
                all.as_mut_ptr() => *mut u64, bytes => i64, BYTE => c_int, comm => Comm
            ))
        })?;
        Ok(all)
    }

    /// The words of each.
    pub fn gather_lists(self, words: &[u64]) -> Outcome<Vec<Vec<u64>>> {
        let counts = self.gather(&[words.len() as u64])?;
        let bytes: Vec<i64> = counts.iter().map(|count| 8 * *count as i64).collect();
        let starts: Vec<i64> = (0..bytes.len()).map(|at| bytes[..at].iter().sum()).collect();
        let mut all = vec![0_u64; counts.iter().sum::<u64>() as usize];
        self.call(|comm| {
            pmpi!(MPI_Allgatherv_c(
                words.as_ptr() => *const u64, size_of_val(words) as i64 => i64, BYTE => c_int,
                all.as_mut_ptr() => *mut u64, bytes.as_ptr() => *const i64, starts.as_ptr() => *const i64,
                BYTE => c_int, comm => Comm
            ))
        })?;
        let mut rest = all.as_slice();
        let mut lists = Vec::new();
        for count in counts {
            let (list, after) = rest.split_at(count as usize);
            lists.push(list.to_vec());
            rest = after;
        }
        Ok(lists)
    }

    /// The words of `root`, in the place of everybody's.
    pub fn spread(self, words: &mut [u64], root: usize) -> Outcome {
        let bytes = size_of_val(words) as i64;
        self.call(|comm| {
            pmpi!(MPI_Bcast_c(
                words.as_mut_ptr() => *mut u64, bytes => i64, BYTE => c_int, root as c_int => c_int, comm => Comm
            ))
        })
    }

    /// All come here, and all have gone well so far; otherwise the same error for all.
    pub fn agree(self, so_far: Outcome) -> Outcome {
        let (own, mut all) = (so_far.err().unwrap_or(SUCCESS), SUCCESS);
        self.call(|comm| {
            pmpi!(MPI_Allreduce(
                &own => *const c_int, &mut all => *mut c_int, 1 => c_int, INT => c_int, MAX => c_int, comm => Comm
            ))
        })?;
        if all == SUCCESS { Ok(()) } else { Err(all) }
    }

    /// In how many calls all of these moves are made: from whom, to whom, how many bytes.
    pub fn rounds(all: impl Iterator<Item = (usize, usize, usize)>) -> usize {
        let mut pieces: HashMap<(usize, usize), usize> = HashMap::new();
        for (from, to, bytes) in all.filter(|(from, to, _)| from != to) {
            *pieces.entry((from, to)).or_default() += bytes.div_ceil(PIECE);
        }
        pieces.into_values().max().unwrap_or(0)
    }

    /// Makes moves in so many calls. Both members of a pair name theirs in the same order.
    ///
    /// # Safety
    /// The bytes are there, and no other has those that are received.
    pub unsafe fn deliver(self, rounds: usize, sends: &[Move], receives: &[Move]) -> Outcome {
        let to_own = |moves: &[Move]| {
            let own = moves.iter().copied().filter(|one| one.peer == self.own);
            own.collect::<Vec<_>>()
        };
        for (from, to) in to_own(sends).iter().zip(&to_own(receives)) {
            // SAFETY: as the caller promises.
            unsafe { std::ptr::copy(from.at as *const u8, to.at as *mut u8, from.bytes.min(to.bytes)) };
        }
        let (mut sends, mut receives) = (self.pieces(sends), self.pieces(receives));
        for _ in 0..rounds {
            let from = Call::next(&mut sends, self.count);
            let to = Call::next(&mut receives, self.count);
            self.call(|comm| {
                pmpi!(MPI_Alltoallv_c(
                    from.base => usize, from.counts.as_ptr() => *const i64, from.starts.as_ptr() => *const i64,
                    BYTE => c_int,
                    to.base => usize, to.counts.as_ptr() => *const i64, to.starts.as_ptr() => *const i64,
                    BYTE => c_int, comm => Comm
                ))
            })?;
        }
        Ok(())
    }

    /// Moves to and from others, by member, in pieces; the first at the end.
    fn pieces(self, moves: &[Move]) -> BTreeMap<usize, Vec<Move>> {
        let mut pieces: BTreeMap<usize, Vec<Move>> = BTreeMap::new();
        for one in moves.iter().filter(|one| one.peer != self.own) {
            let all = (0..one.bytes).step_by(PIECE).map(|at| Move {
                at: one.at + at,
                bytes: PIECE.min(one.bytes - at),
                ..*one
            });
            pieces.entry(one.peer).or_default().extend(all);
        }
        pieces.values_mut().for_each(|pieces| pieces.reverse());
        pieces
    }
}

/// One side of a call: so many bytes at these places for each member.
struct Call {
    base: usize,
    counts: Vec<i64>,
    starts: Vec<i64>,
}

impl Call {
    fn next(pieces: &mut BTreeMap<usize, Vec<Move>>, members: usize) -> Call {
        let mut call = Call {
            // Without moves MPI wants an address nevertheless, another on each side.
            base: std::ptr::from_ref(pieces) as usize,
            counts: vec![0; members],
            starts: vec![0; members],
        };
        let mut is_first = true;
        for piece in pieces.values_mut().filter_map(Vec::pop) {
            if std::mem::take(&mut is_first) {
                call.base = piece.at;
            }
            call.counts[piece.peer] = piece.bytes as i64;
            call.starts[piece.peer] = (piece.at as i64).wrapping_sub(call.base as i64);
        }
        call
    }
}

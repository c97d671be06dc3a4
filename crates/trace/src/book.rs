//! The book of a job's trace: it takes what agents and the dispatcher tell, and writes the file.
//!
//! The rings of a node come whole when the node ends in order, and are written at once. Before that the newest records
//! come now and then. They are written at the end, and only for a node that has been lost.

use std::collections::BTreeMap;
use std::io::{self, Write};

use resurgo_wire::trace::{Part, Piece};

use crate::perfetto::Writer;
use crate::ring::Records;
use crate::span::Span;

/// The most of the newest records of a rank that are kept (1 MiB).
const KEPT: u64 = 16 << 10;

/// Something for the book.
pub enum Told {
    /// From a node.
    Piece(usize, Piece),
    /// What must be added to the clock of a node, in nanoseconds.
    Offset(usize, i64),
    /// Of the dispatcher. Those of one track lie inside one another or apart.
    Spans(Vec<Span>),
}

#[derive(Default)]
struct OfRank {
    newest: Records,
    whole: Records,
}

pub struct Book<W> {
    writer: Writer<W>,
    offsets: BTreeMap<usize, i64>,
    /// By node and rank.
    records: BTreeMap<(usize, u32), OfRank>,
}

impl<W: Write> Book<W> {
    pub fn new(out: W) -> Book<W> {
        Book {
            writer: Writer::new(out),
            offsets: BTreeMap::new(),
            records: BTreeMap::new(),
        }
    }

    pub fn take(&mut self, told: Told) -> io::Result<()> {
        match told {
            Told::Piece(node, piece) => self.take_piece(node, piece),
            Told::Offset(node, offset) => {
                self.offsets.insert(node, offset);
                Ok(())
            }
            Told::Spans(spans) => self.writer.write(spans),
        }
    }

    fn take_piece(&mut self, node: usize, piece: Piece) -> io::Result<()> {
        let (rank, part) = (piece.rank, piece.part);
        let of_rank = self.records.entry((node, rank)).or_default();
        if part == Part::News {
            of_rank.newest.add(piece);
            of_rank.newest.forget_beyond(KEPT);
            return Ok(());
        }
        of_rank.whole.add(piece);
        if part == Part::WholeEnds {
            let whole = std::mem::take(&mut of_rank.whole);
            self.records.remove(&(node, rank));
            self.write(node, rank, &whole)?;
        }
        Ok(())
    }

    fn write(&mut self, node: usize, rank: u32, records: &Records) -> io::Result<()> {
        let offset = self.offsets.get(&node).copied().unwrap_or(0);
        self.writer.write(records.spans(rank as usize, offset))
    }

    /// Writes what is left of nodes that were lost.
    pub fn end(mut self) -> io::Result<()> {
        for ((node, rank), of_rank) in std::mem::take(&mut self.records) {
            self.write(node, rank, &of_rank.newest)?;
        }
        self.writer.flush()
    }
}

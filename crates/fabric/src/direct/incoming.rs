//! A connection on which a rank of another node sends: what comes is written into this node's copy of its log.

use crate::log::atomic;
use crate::node::Node;
use crate::socket::Socket;
use resurgo_wire::direct::Word;
use resurgo_wire::entry::{self, ALIGN};
use resurgo_wire::mesh::{Frame, RUN_HEAD, Table};
use resurgo_wire::node_memory::{self as nm, Pages, SEGMENT, control};
use std::sync::atomic::Ordering;

/// Bytes that are taken beside those of a run whose place is known.
const INPUT: usize = 8 << 10;
/// Reads of one connection before anything else is looked at.
const READS: usize = 64;

/// What a look at a connection has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    Nothing,
    /// The log goes on.
    Entries,
    /// The connection is of no use any more.
    End,
}

/// A run of which not all has come.
struct Run {
    /// Where it begins, in this node's copy.
    at: *mut u8,
    bytes: usize,
    /// What has come of it. Its first eight bytes are kept in `mark` until all is there.
    done: usize,
    mark: [u8; 8],
    /// Where the copy ends then.
    end: u64,
    is_last: bool,
}

pub struct Incoming {
    pub(super) socket: Socket,
    /// There may be something to read.
    pub(super) may_have: bool,
    /// What it is part of: the movers know it by that, and say whether it counts.
    generation: Option<u64>,
    /// This rank has written some of it: when it does not count any more, it never will again.
    has_counted: bool,
    run: Option<Run>,
    input: Box<[u8; INPUT]>,
    filled: usize,
    used: usize,
    pages: Pages,
}

/// The other side breaks the protocol, or has closed the connection.
struct Over;

impl Incoming {
    pub fn new(socket: Socket, begun: &[u8]) -> Incoming {
        let mut input = Box::new([0; INPUT]);
        input[..begun.len()].copy_from_slice(begun);
        Incoming {
            socket,
            may_have: true,
            generation: None,
            has_counted: false,
            run: None,
            input,
            filled: begun.len(),
            used: 0,
            pages: Pages::default(),
        }
    }

    /// Takes what has come. Only while the receiver's mover lets this rank write is anything written: see `control::WRITES`.
    #[inline]
    pub fn receive(&mut self, node: &Node, source: usize) -> Took {
        if self.is_over(node, source) {
            return match self.has_counted {
                true => Took::End,
                false => self.wait_for_end(),
            };
        }
        self.has_counted = self.generation.is_some();
        let writes = node.control(node.rank, control::WRITES);
        writes.store(1, Ordering::SeqCst);
        let took = match self.take(node, source) {
            Ok(true) => Took::Entries,
            Ok(false) => Took::Nothing,
            Err(Over) => Took::End,
        };
        writes.store(0, Ordering::SeqCst);
        took
    }

    /// The receiver's mover does not let this rank write what comes here: not yet, or no more.
    #[inline]
    fn is_over(&self, node: &Node, source: usize) -> bool {
        let hand = || node.direct(source, Word::Hand).load(Ordering::SeqCst);
        self.generation.is_some_and(|generation| hand() != generation)
    }

    /// Of a connection that does not count yet, or did so before this rank looked.
    #[cold]
    fn wait_for_end(&mut self) -> Took {
        match self.socket.has_ended() {
            true => Took::End,
            false => Took::Nothing,
        }
    }

    /// True: the log goes on.
    fn take(&mut self, node: &Node, source: usize) -> Result<bool, Over> {
        let mut goes_on = false;
        for _ in 0..READS {
            goes_on |= self.hear(node, source)?;
            if self.is_over(node, source) {
                return Ok(goes_on);
            }
            let (into, wanted) = match &self.run {
                // SAFETY: inside the run.
                Some(run) => (unsafe { run.at.add(run.done) }, run.bytes - run.done),
                None => (std::ptr::null_mut(), 0),
            };
            // SAFETY: the rest of the input.
            let rest = (unsafe { self.input.as_mut_ptr().add(self.filled) }, INPUT - self.filled);
            // SAFETY: the run lies in this node's copy of the sender's arena, of which this rank writes this part alone.
            let got = unsafe { self.socket.receive_at([(into, wanted), rest]) };
            let Some(got) = got.map_err(|_| Over)? else {
                self.may_have = false;
                return Ok(goes_on);
            };
            let of_run = got.min(wanted);
            if let Some(run) = &mut self.run {
                run.done += of_run;
            }
            self.filled += got - of_run;
            // With room left all has been taken: a further look finds nothing.
            if got < wanted + rest.1 && self.run.as_ref().is_none_or(|run| run.done == run.bytes) {
                goes_on |= self.hear(node, source)?;
                return Ok(goes_on);
            }
        }
        Ok(goes_on)
    }

    /// Deals with what has been read. True: the log goes on.
    fn hear(&mut self, node: &Node, source: usize) -> Result<bool, Over> {
        let mut goes_on = false;
        loop {
            if let Some(run) = &mut self.run {
                let here = (run.bytes - run.done).min(self.filled - self.used);
                // SAFETY: inside the run, and of the input.
                unsafe {
                    run.at
                        .add(run.done)
                        .copy_from_nonoverlapping(self.input.as_ptr().add(self.used), here)
                };
                (run.done, self.used) = (run.done + here, self.used + here);
                if run.done < run.bytes {
                    (self.filled, self.used) = (0, 0);
                    return Ok(goes_on);
                }
                run.publish(node, source);
                goes_on = true;
                self.run = None;
            }
            let bytes = &self.input[self.used..self.filled];
            if let Some((Frame::Run { .. }, _)) = Frame::decode_run_head(bytes).map_err(|_| Over)? {
                if bytes.len() < RUN_HEAD + 8 || self.generation.is_none() {
                    break;
                }
                self.begin_run(node, source)?;
                continue;
            }
            let Some((frame, used)) = Frame::decode(bytes).map_err(|_| Over)? else {
                break;
            };
            if let Frame::Head { reference, .. } = frame
                && segment(node, source, reference).is_some()
            {
                let (_, slot) = nm::dereference(reference);
                self.pages.touch(source, slot, |block| node.make_large(source, block));
            }
            let is_due = take_frame(&mut self.generation, node, source, frame)?;
            self.used += used;
            if !is_due {
                return Err(Over);
            }
            if self.is_over(node, source) {
                break;
            }
        }
        self.input.copy_within(self.used..self.filled, 0);
        (self.filled, self.used) = (self.filled - self.used, 0);
        Ok(goes_on)
    }

    /// A run whose head and first eight bytes are there.
    fn begin_run(&mut self, node: &Node, source: usize) -> Result<(), Over> {
        let bytes = &self.input[self.used..self.filled];
        let Ok(Some((
            Frame::Run {
                source: from,
                destination,
                reference,
                place,
                next,
                ..
            },
            length,
        ))) = Frame::decode_run_head(bytes)
        else {
            return Err(Over);
        };
        let (place, end) = (place as usize, place as usize + length);
        let segment = segment(node, source, reference).ok_or(Over)?;
        let is_inside = place >= ALIGN && place.is_multiple_of(ALIGN) && length >= 8 && end.is_multiple_of(8);
        let leads = next == 0 || self::segment(node, source, next).is_some();
        if (from, destination) != (source as u32, node.rank as u32) || !is_inside || end + 8 > SEGMENT || !leads {
            return Err(Over);
        }
        let mark = bytes[RUN_HEAD..RUN_HEAD + 8].try_into().map_err(|_| Over)?;
        self.used += RUN_HEAD + 8;
        self.run = Some(Run {
            // SAFETY: inside the segment.
            at: unsafe { segment.add(place) },
            bytes: length,
            done: 8,
            mark,
            end: match next {
                0 => entry::place_word(reference, end),
                next => entry::place_word(next, ALIGN),
            },
            is_last: next == 0,
        });
        Ok(())
    }
}

/// Does what a frame says that is no run. False: it does not belong here.
fn take_frame(generation: &mut Option<u64>, node: &Node, source: usize, frame: Frame<'_>) -> Result<bool, Over> {
    Ok(match frame {
        Frame::Hand {
            source: from,
            destination,
            generation: of,
            ..
        } if generation.is_none() => {
            *generation = Some(of);
            (from, destination) == (source as u32, node.rank as u32) && of != 0
        }
        _ if generation.is_none() => false,
        Frame::Head {
            source: from,
            reference,
            begun,
        } => {
            let segment = segment(node, source, reference).ok_or(Over)?;
            // SAFETY: the head and the first mark of a segment of the copy.
            unsafe {
                atomic(segment).store(begun, Ordering::Relaxed);
                atomic(segment.add(ALIGN)).store(0, Ordering::Release);
            }
            from == source as u32
        }
        Frame::Tell {
            rank,
            table: Table::Channel,
            index,
            value,
        } => {
            let is_due = rank == source as u32 && (index as usize) < node.ranks() && value != 0;
            if is_due {
                // The movers may have told it by now.
                node.channel(source, index as usize).fetch_max(value, Ordering::SeqCst);
            }
            is_due
        }
        _ => false,
    })
}

impl Run {
    /// All of it has come: the first mark is stored last.
    fn publish(&self, node: &Node, source: usize) {
        // SAFETY: the mark behind the run and the first of it, inside a segment of the copy.
        unsafe {
            if self.is_last {
                atomic(self.at.add(self.bytes)).store(0, Ordering::Release);
            }
            atomic(self.at).store(u64::from_le_bytes(self.mark), Ordering::Release);
        }
        node.direct(source, Word::Wrote).store(self.end, Ordering::Release);
    }
}

fn segment(node: &Node, source: usize, reference: u64) -> Option<*mut u8> {
    let slot = (reference != 0).then(|| nm::dereference(reference).1)?;
    (slot < node.layout.log_segments).then(|| node.segment(source, slot))
}

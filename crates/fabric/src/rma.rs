//! Remote reads and writes (`fi_read`, `fi_write`), made of messages: the target serves them in its completion-queue
//! reads, so they are deliveries like any other and replay with them.

use crate::completion::{Completion, SendContext};
use crate::engine::Engine;
use crate::matching::Room;
use crate::message::{Envelope, Kind};
use crate::ofi::*;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Memory that other ranks may reach.
#[derive(Clone, Copy)]
struct Region {
    start: usize,
    bytes: usize,
}

/// A read or write whose answer has not come.
struct Operation {
    context: *mut c_void,
    flags: u64,
    completes: bool,
    room: Room,
    /// Its number as a write sends it in front of its bytes; here because such a send may have to wait for room.
    number: Box<[u8; 8]>,
}

#[derive(Default)]
pub struct Rma {
    regions: BTreeMap<u64, Region>,
    next_key: u64,
    operations: BTreeMap<u64, Operation>,
    next_operation: u64,
    /// Addresses in requests are the target's own addresses and not offsets.
    pub virtual_addresses: bool,
    /// Keys are given by the provider and not by who registers.
    pub own_keys: bool,
    /// Operations finished since the endpoint was opened: what its counter shows.
    pub finished: u64,
}

impl Rma {
    /// Registers memory under the key asked for, or under one of its own; None: the key is taken.
    pub fn register(&mut self, start: *const c_void, bytes: usize, key: Option<u64>) -> Option<u64> {
        let key = key.unwrap_or_else(|| {
            self.next_key += 1;
            self.next_key
        });
        if self.regions.contains_key(&key) {
            return None;
        }
        self.regions.insert(
            key,
            Region {
                start: start as usize,
                bytes,
            },
        );
        Some(key)
    }

    /// The endpoint is a new one. Numbers of operations go on: a late answer belongs to none.
    pub fn reopen(&mut self) {
        self.regions.clear();
        self.operations.clear();
        self.finished = 0;
    }

    /// Answers are still to come.
    pub fn is_busy(&self) -> bool {
        !self.operations.is_empty()
    }

    pub fn deregister(&mut self, key: u64) {
        self.regions.remove(&key);
    }

    fn place(&self, key: u64, address: u64, bytes: usize) -> Option<*mut u8> {
        let region = self.regions.get(&key)?;
        let address = address as usize;
        let offset = if self.virtual_addresses {
            address.checked_sub(region.start)?
        } else {
            address
        };
        (offset.checked_add(bytes)? <= region.bytes).then(|| (region.start + offset) as *mut u8)
    }

    /// Where the answer to operation `number` goes.
    pub fn room(&self, number: u64) -> &Room {
        &self
            .operations
            .get(&number)
            .expect("an answer belongs to an operation")
            .room
    }

    fn begin(&mut self, room: Room, send: SendContext) -> u64 {
        self.next_operation += 1;
        let operation = Operation {
            context: send.context,
            flags: send.flags,
            completes: send.completes,
            room,
            number: Box::new(self.next_operation.to_le_bytes()),
        };
        self.operations.insert(self.next_operation, operation);
        self.next_operation
    }
}

fn internal(kind: Kind, tag: u64, data: u64) -> Envelope {
    Envelope {
        kind,
        flags: 0,
        tag,
        data,
    }
}

const QUIET: SendContext = SendContext {
    context: std::ptr::null_mut(),
    flags: 0,
    completes: false,
    inject: false,
};

fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Small messages of this module live on the stack and must be taken at once.
fn send_small(engine: &mut Engine, target: usize, envelope: Envelope, bytes: &[u8]) -> isize {
    engine.send(target, envelope, &[piece(bytes)], SendContext { inject: true, ..QUIET })
}

/// Starts a read of `iov`'s length from `target`. Answers 0 or -FI_EAGAIN.
pub fn read(
    engine: &mut Engine,
    target: usize,
    iov: &[libc::iovec],
    address: u64,
    key: u64,
    send: SendContext,
) -> isize {
    let room = Room::of(iov);
    let bytes = room.bytes() as u64;
    let operation = engine.rma.begin(room, send);
    let mut request = [0u8; 16];
    request[..8].copy_from_slice(&bytes.to_le_bytes());
    request[8..].copy_from_slice(&operation.to_le_bytes());
    let answer = send_small(engine, target, internal(Kind::ReadRequest, address, key), &request);
    if answer != 0 {
        engine.rma.operations.remove(&operation);
    }
    answer
}

/// Starts a write of `iov` to `target`. Answers 0 or -FI_EAGAIN.
pub fn write(
    engine: &mut Engine,
    target: usize,
    iov: &[libc::iovec],
    address: u64,
    key: u64,
    send: SendContext,
) -> isize {
    let operation = engine.rma.begin(Room::of(&[]), send);
    let mut pieces = vec![piece(&*engine.rma.operations[&operation].number)];
    pieces.extend_from_slice(iov);
    let context = SendContext {
        inject: send.inject,
        ..QUIET
    };
    let answer = engine.send(target, internal(Kind::Write, address, key), &pieces, context);
    if answer != 0 {
        engine.rma.operations.remove(&operation);
    }
    answer
}

/// A whole message of this module has arrived from `source`.
pub fn serve(engine: &mut Engine, source: usize, envelope: Envelope, bytes: Vec<u8>) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    match envelope.kind {
        Kind::ReadRequest => {
            let (length, operation) = (word(0) as usize, word(8));
            let Some(place) = engine.rma.place(envelope.data, envelope.tag, length) else {
                bad_access(engine, source, envelope, length);
            };
            // SAFETY: registered memory, inside its bounds.
            let wanted = unsafe { std::slice::from_raw_parts(place, length) };
            engine.send(
                source,
                internal(Kind::ReadAnswer, operation, 0),
                &[piece(wanted)],
                QUIET,
            );
        }
        Kind::Write => {
            let (operation, payload) = (word(0), &bytes[8..]);
            let Some(place) = engine.rma.place(envelope.data, envelope.tag, payload.len()) else {
                bad_access(engine, source, envelope, payload.len());
            };
            // SAFETY: registered memory, inside its bounds.
            unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place, payload.len()) };
            engine.send(source, internal(Kind::WriteDone, operation, 0), &[], QUIET);
        }
        _ => unreachable!("only this module's messages come here"),
    }
}

/// The operation `number` has been answered with `bytes` bytes, which lie in its room.
pub fn finish(engine: &mut Engine, source: usize, number: u64, bytes: usize) {
    let operation = engine
        .rma
        .operations
        .remove(&number)
        .expect("an answer belongs to an operation");
    engine.rma.finished += 1;
    if operation.completes {
        engine.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: operation.context,
                flags: operation.flags,
                len: bytes,
                buf: std::ptr::null_mut(),
                data: 0,
                tag: 0,
            },
            error: 0,
            overflow: 0,
            source: source as u32,
        });
    }
}

fn bad_access(engine: &Engine, source: usize, envelope: Envelope, bytes: usize) -> ! {
    engine.node.report(&format!(
        "rank {source} asked for {bytes} bytes at {:#x} of rank {} under key {:#x}, which no registered memory covers: \
         a window access out of bounds?",
        envelope.tag, engine.node.rank, envelope.data
    ));
}

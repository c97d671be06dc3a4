//! Remote memory: what other ranks may reach here, and this rank's unfinished reads and writes.

use crate::completion::{Completion, SendContext};
use crate::matching::Room;
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
    target: usize,
    context: *mut c_void,
    flags: u64,
    completes: bool,
    room: Room,
    /// Its number, which a write sends in front of its bytes. It is kept here because such a send may have to wait for
    /// room.
    number: Box<[u8; 8]>,
}

#[derive(Default)]
pub struct Rma {
    regions: BTreeMap<u64, Region>,
    next_key: u64,
    operations: BTreeMap<u64, Operation>,
    next_operation: u64,
    /// Addresses in requests are the target's own addresses, not offsets.
    pub virtual_addresses: bool,
    /// The provider chooses keys, not the caller that registers.
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

    /// The endpoint is a new one. Numbers of operations go on, so that a late answer belongs to none.
    pub fn reopen(&mut self) {
        self.regions.clear();
        self.operations.clear();
        self.finished = 0;
    }

    /// Whether answers are still to come.
    pub fn is_busy(&self) -> bool {
        !self.operations.is_empty()
    }

    pub fn deregister(&mut self, key: u64) {
        self.regions.remove(&key);
    }

    /// Where `bytes` bytes at `address` of a request lie; None: no registered memory covers them.
    pub fn place(&self, key: u64, address: u64, bytes: usize) -> Option<*mut u8> {
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

    /// Begins a read or write whose answer goes to `room`; returns its number.
    pub fn begin(&mut self, target: usize, room: Room, send: SendContext) -> u64 {
        self.next_operation += 1;
        let operation = Operation {
            target,
            context: send.context,
            flags: send.flags,
            completes: send.completes,
            room,
            number: Box::new(self.next_operation.to_le_bytes()),
        };
        self.operations.insert(self.next_operation, operation);
        self.next_operation
    }

    /// Its number as bytes that stay where they are until the answer.
    pub fn number(&self, number: u64) -> &[u8] {
        &*self.operations[&number].number
    }

    /// Forgets an operation that has not left.
    pub fn give_up(&mut self, number: u64) {
        self.operations.remove(&number);
    }

    /// Ends all operations on `target`, which has failed.
    pub fn abandon(&mut self, target: usize) -> Vec<Completion> {
        let numbers = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.target == target);
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        numbers
            .into_iter()
            .filter_map(|number| self.finish(target, number, 0))
            .collect()
    }

    /// Ends operation `number`: `source` has answered with `bytes` bytes, which lie in its room.
    pub fn finish(&mut self, source: usize, number: u64, bytes: usize) -> Option<Completion> {
        let operation = self.operations.remove(&number);
        let operation = operation.expect("an answer belongs to an operation");
        self.finished += 1;
        operation.completes.then_some(Completion {
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
        })
    }
}

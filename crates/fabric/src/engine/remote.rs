//! Remote reads and writes (`fi_read`, `fi_write`), made of messages: the target serves them in its completion-queue
//! reads, so they are deliveries like any other and replay with them.

use super::*;
use crate::matching::Room;

fn internal(kind: Kind, tag: u64, data: u64) -> Envelope {
    Envelope {
        kind,
        flags: 0,
        tag,
        data,
    }
}

fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

impl Engine {
    /// Starts a read of `iov`'s length from `target`. Returns 0 or -FI_EAGAIN.
    pub fn read_remote(
        &mut self,
        target: usize,
        iov: &[libc::iovec],
        address: u64,
        key: u64,
        send: SendContext,
    ) -> isize {
        let room = Room::of(iov);
        let bytes = room.bytes() as u64;
        let operation = self.calls.rma.begin(target, room, send);
        let mut request = [0u8; 16];
        request[..8].copy_from_slice(&bytes.to_le_bytes());
        request[8..].copy_from_slice(&operation.to_le_bytes());
        // It is on the stack, so the read must copy it at once.
        let context = SendContext {
            inject: true,
            ..SendContext::QUIET
        };
        let answer = self.send(
            target,
            internal(Kind::ReadRequest, address, key),
            &[piece(&request)],
            context,
        );
        if answer != 0 {
            self.calls.rma.give_up(operation);
        } else if self.is_lost_on(target) {
            let done = self.calls.rma.abandon(target);
            self.calls.completions.extend(done);
        }
        answer
    }

    /// Starts a write of `iov` to `target`. Returns 0 or -FI_EAGAIN.
    pub fn write_remote(
        &mut self,
        target: usize,
        iov: &[libc::iovec],
        address: u64,
        key: u64,
        send: SendContext,
    ) -> isize {
        let operation = self.calls.rma.begin(target, Room::of(&[]), send);
        let mut pieces = vec![piece(self.calls.rma.number(operation))];
        pieces.extend_from_slice(iov);
        let context = SendContext {
            inject: send.inject,
            ..SendContext::QUIET
        };
        let answer = self.send(target, internal(Kind::Write, address, key), &pieces, context);
        if answer != 0 {
            self.calls.rma.give_up(operation);
        } else if self.is_lost_on(target) {
            let done = self.calls.rma.abandon(target);
            self.calls.completions.extend(done);
        }
        answer
    }

    /// A whole message of this module has arrived from `source`.
    pub(super) fn serve(&mut self, source: usize, envelope: Envelope, bytes: Vec<u8>) {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        match envelope.kind {
            Kind::ReadRequest => {
                let (length, operation) = (word(0) as usize, word(8));
                let Some(place) = self.calls.rma.place(envelope.data, envelope.tag, length) else {
                    self.bad_access(source, envelope, length);
                };
                // SAFETY: registered memory, inside its bounds.
                let wanted = unsafe { std::slice::from_raw_parts(place, length) };
                let answer = internal(Kind::ReadAnswer, operation, 0);
                self.send(source, answer, &[piece(wanted)], SendContext::QUIET);
            }
            Kind::Write => {
                let (operation, payload) = (word(0), &bytes[8..]);
                let Some(place) = self.calls.rma.place(envelope.data, envelope.tag, payload.len()) else {
                    self.bad_access(source, envelope, payload.len());
                };
                // SAFETY: registered memory, inside its bounds.
                unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place, payload.len()) };
                self.send(source, internal(Kind::WriteDone, operation, 0), &[], SendContext::QUIET);
            }
            _ => unreachable!("only this module's messages come here"),
        }
    }

    fn bad_access(&self, source: usize, envelope: Envelope, bytes: usize) -> ! {
        self.node.report(&format!(
            "rank {source} asked for {bytes} bytes at {:#x} of rank {} under key {:#x}, which no registered memory covers: \
             a window access out of bounds?",
            envelope.tag, self.node.rank, envelope.data
        ));
    }
}

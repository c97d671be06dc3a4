//! The comparison of repeated sends with the first ones, and the report of a replay on another course.

use super::*;
use crate::padding;

impl Engine {
    /// A send that a former life made: it must be the same, byte for byte.
    #[cold]
    pub(super) fn redo(&mut self, destination: usize, ssn: u64, message: Message) {
        let (log, _) = self.peers.log(&self.node, destination);
        if ssn <= log.forgotten {
            return;
        }
        let mut former = log.redo.take();
        let found = former.as_mut().and_then(|reader| reader.peek(&self.node));
        let Some((mut reader, first)) = former.zip(found) else {
            return self.make_again(destination, message);
        };
        let mut pieces = Pieces::new(message.iov);
        if first.envelope != message.envelope {
            self.differs(destination, ssn, first, message, "its envelope");
        }
        if first.total != message.total as u64 {
            self.differs(destination, ssn, first, message, "its length");
        }
        let unset = padding::of(&message);
        let mut progress = Progress { done: 0, started: true };
        let mut entry = Some(first);
        while let Some(piece) = entry {
            let mut different = None;
            reader.compare(&mut pieces, piece.bytes, |at| {
                let at = progress.done + at;
                if different.is_none() && !unset.contains(at) {
                    different = Some(at);
                }
            });
            if let Some(at) = different {
                self.differs(
                    destination,
                    ssn,
                    first,
                    message,
                    &format!("its content from byte {at} on"),
                );
            }
            reader.advance(piece.bytes);
            progress.done += piece.bytes;
            entry = if progress.done < message.total {
                reader.peek(&self.node)
            } else {
                None
            };
        }
        if progress.done < message.total {
            // The former life was killed in the middle of this message: its receiver may wait for the rest.
            self.append(destination, message, &mut progress, false);
        }
        self.peers.log(&self.node, destination).0.redo = Some(reader);
        self.peers.ring(&self.node, destination);
    }

    /// A former life's send that was lost with the node: its receiver was there, too, and begins again.
    #[cold]
    fn make_again(&mut self, destination: usize, message: Message) {
        assert!(self.node.moves, "the log holds every send to redo");
        self.append_with_piggyback(destination, message, &mut Progress::default(), true);
        doorbell::ring(&self.node, destination);
    }

    fn differs(&self, destination: usize, ssn: u64, before: Entry, now: Message, what: &str) -> ! {
        let (before, now) = ((before.envelope, before.total), (now.envelope, now.total as u64));
        self.diverged(destination, ssn, before, now, what)
    }

    /// A repeated send differs from the first one: the envelopes and lengths of both.
    pub(super) fn diverged(
        &self,
        destination: usize,
        ssn: u64,
        before: (Envelope, u64),
        now: (Envelope, u64),
        what: &str,
    ) -> ! {
        let describe = |envelope: Envelope, bytes: u64| match envelope.kind {
            Kind::Tagged => {
                format!(
                    "tag {} ({bytes} bytes, match bits {:#x})",
                    envelope.tag & 0x7fff_ffff,
                    envelope.tag
                )
            }
            _ => format!("no tag, an internal message of MPI ({bytes} bytes)"),
        };
        self.not_deterministic(&format!(
            "rank {} sent something else to rank {destination} as send number {ssn}; {what} differs: before the failure {}, \
             now {}",
            self.node.rank,
            describe(before.0, before.1),
            describe(now.0, now.1),
        ))
    }

    /// Inside the group no log shows the difference earlier.
    #[cold]
    pub(super) fn sent_other(&self, source: usize, what: &str) -> ! {
        self.not_deterministic(&format!("rank {source} sent {what} to rank {}", self.node.rank))
    }

    #[cold]
    pub(super) fn sent_more(&self, destination: usize) -> ! {
        let own = self.node.rank;
        self.not_deterministic(&format!("rank {own} sent a message more to rank {destination}"))
    }

    #[cold]
    pub(super) fn reads_differ(&self) -> ! {
        self.not_deterministic(&format!("rank {} looked for messages at other times", self.node.rank))
    }

    #[cold]
    pub(super) fn waits_in_vain(&self, source: usize) -> ! {
        let own = self.node.rank;
        self.not_deterministic(&format!(
            "rank {source} did not send what it had sent to rank {own}: each waits for another's message"
        ))
    }

    #[cold]
    pub(super) fn sends_nothing(&self, owed: u64) -> ! {
        self.not_deterministic(&format!(
            "rank {} waits for a message before it has repeated its last sends ({owed} of them), which had not waited for any",
            self.node.rank
        ))
    }

    fn not_deterministic(&self, what: &str) -> ! {
        let text = format!(
            "the program is not piecewise deterministic: in its replay {what}. Messages must not depend on measured time, \
             unseeded random numbers, process ids or several threads calling MPI; find the source of that message, or run \
             with --protocol auto, under which all ranks return to images of one moment instead",
        );
        self.node.report_and_exit(&text, nm::EXIT_DIVERGED)
    }
}

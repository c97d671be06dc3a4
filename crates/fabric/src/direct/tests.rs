//! A sender and a receiver with a node memory each, and what movers would do between them done by hand.

use super::*;
use crate::arena::Arena;
use crate::log::{Progress, Reader, Writer};
use crate::message::{Envelope, Kind, Message};
use crate::node::tests::pair;
use resurgo_wire::{entry, node_memory as nm};
use std::time::{Duration, Instant};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

struct Both {
    sender: Node,
    arena: Arena,
    writer: Writer,
    receiver: Node,
    direct: Box<Direct>,
    reader: Reader,
    sent: u64,
    received: u64,
}

fn message(number: u64) -> Vec<u8> {
    let length = match number % 5 {
        0 => 100_000 + number as usize % 7777,
        other => other as usize * 300,
    };
    (0..length).map(|at| (at as u64 * 31 + number * 17) as u8).collect()
}

impl Both {
    /// Two ranks of two nodes, which know where to find each other. The mover has carried the first message.
    fn new() -> Both {
        let (sender, receiver) = (pair(64, true).0, pair(64, true).1);
        for (node, other) in [(&sender, 1), (&receiver, 0)] {
            node.be_direct("127.0.0.1".parse().expect("an address"));
            node.control(other, control::SLEEPING)
                .store(nm::ELSEWHERE, Ordering::Relaxed);
        }
        let direct = Direct::open(&receiver).expect("it listens");
        for (at, word) in resurgo_wire::direct::to_words("127.0.0.1".parse().expect("an address"))
            .into_iter()
            .enumerate()
        {
            sender
                .of(1, arena::DOOR_ADDRESS.item(at))
                .store(word, Ordering::Relaxed);
        }
        let door = receiver.own(arena::DOOR).load(Ordering::Relaxed);
        sender.of(1, arena::DOOR).store(door, Ordering::Relaxed);
        let mut writer = Writer::new(&sender, 1);
        writer.direct = Some(Box::new(Outgoing::new(1)));
        Both {
            arena: Arena::untouched(&sender),
            reader: Reader::new(0, 1),
            sent: 0,
            received: 0,
            sender,
            writer,
            receiver,
            direct,
        }
    }

    fn send(&mut self) {
        let bytes = message(self.sent);
        let iov = [libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        let message = Message {
            envelope: Envelope {
                kind: Kind::Tagged,
                flags: 0,
                tag: self.sent,
                data: 0,
            },
            iov: &iov,
            total: bytes.len(),
            piggyback: &[],
        };
        let mut progress = Progress::default();
        let (arena, sender) = (&mut self.arena, &self.sender);
        assert!(self.writer.append(arena, sender, message, &mut progress, false).0);
        self.writer.ring(sender);
        self.sent += 1;
    }

    /// The movers copy everything up to where the log ends; that place.
    fn carry(&self) -> u64 {
        let first = self.sender.channel(0, 1).load(Ordering::Acquire);
        let mut copied = Reader::new(0, 1);
        while let Some(entry) = copied.peek_any(&self.sender) {
            copied.advance(entry.bytes);
        }
        let last = copied.position().0;
        for slot in 0..=nm::dereference(nm::reference(last, last as usize)).1 {
            let (from, to) = (self.sender.segment(0, slot), self.receiver.segment(0, slot));
            // SAFETY: a segment of each of the two memories.
            unsafe { to.copy_from_nonoverlapping(from, nm::SEGMENT) };
        }
        self.receiver.channel(0, 1).store(first, Ordering::Release);
        let (reference, place) = copied.place();
        entry::place_word(reference, place)
    }

    /// They give the channel to the connection.
    fn give(&mut self, generation: u64) {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.writer.ring(&self.sender);
            self.direct.looks = LOOKS;
            self.direct.receive(&self.receiver, |_| {});
            let offer = self.sender.direct(1, Word::Offer).load(Ordering::SeqCst);
            if offer != 0 {
                let from = self.carry();
                self.receiver.direct(0, Word::Wrote).store(from, Ordering::SeqCst);
                self.receiver.direct(0, Word::Hand).store(generation, Ordering::SeqCst);
                self.sender
                    .direct(1, Word::Generation)
                    .store(generation, Ordering::SeqCst);
                self.sender.direct(1, Word::From).store(from, Ordering::SeqCst);
                self.sender.direct(1, Word::Given).store(offer, Ordering::SeqCst);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no offer");
    }

    /// Everything sent so far arrives as it was sent.
    fn receive(&mut self) {
        let mut message = Vec::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(direct) = &mut self.writer.direct {
                direct.tend(&self.sender);
            }
            self.direct.receive(&self.receiver, |source| assert_eq!(source, 0));
            while let Some(entry) = self.reader.peek(&self.receiver) {
                let from = message.len();
                message.resize(from + entry.bytes, 0);
                // SAFETY: room was just made.
                unsafe {
                    self.reader
                        .copy_payload(&self.receiver, 0, message[from..].as_mut_ptr(), entry.bytes);
                }
                self.reader.advance(entry.bytes);
                if message.len() == self::message(self.received).len() {
                    assert!(message == self::message(self.received), "message {}", self.received);
                    message.clear();
                    self.received += 1;
                }
            }
            if self.received == self.sent {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        panic!("{} of {} have come", self.received, self.sent);
    }
}

#[test]
fn a_log_goes_on_where_the_movers_left_it_and_stops_when_they_take_it_back() {
    let mut both = Both::new();
    both.send();
    both.carry();
    for generation in 1..4 {
        both.give(generation * 10);
        (0..12).for_each(|_| both.send());
        both.receive();
        let wrote = both.receiver.direct(0, Word::Wrote).load(Ordering::SeqCst);
        assert_eq!(wrote, both.carry(), "it says how far it came");
        assert_eq!(both.receiver.control(1, control::WRITES).load(Ordering::SeqCst), 0);
        // They take it back: what comes on the connection is not taken any more, and it is given up.
        both.receiver.direct(0, Word::Hand).store(0, Ordering::SeqCst);
        both.send();
        both.direct.receive(&both.receiver, |_| {});
        assert_eq!(both.receiver.direct(0, Word::Wrote).load(Ordering::SeqCst), wrote);
        both.sender.direct(1, Word::Given).store(0, Ordering::SeqCst);
        both.send();
        assert_eq!(both.sender.direct(1, Word::Offer).load(Ordering::SeqCst), 0);
        both.carry();
        both.receive();
    }
}

#[test]
fn a_receiver_that_has_not_looked_for_long_hears_what_has_been_said_meanwhile() {
    let mut both = Both::new();
    both.send();
    both.carry();
    let end = Instant::now() + PATIENCE;
    loop {
        both.writer.ring(&both.sender);
        if both.sender.direct(1, Word::Offer).load(Ordering::SeqCst) != 0 {
            break;
        }
        assert!(Instant::now() < end, "no offer");
        both.direct.hear(&both.receiver, 1_000_000);
    }
    // The sender has proved who it is, which the receiver has yet to read.
    assert!(both.direct.sources.is_empty());
    both.direct.strangers[0].called_ns -= 2 * PATIENCE_NS;
    both.give(10);
    both.send();
    both.receive();
}

#[test]
fn a_sender_that_only_waits_sees_that_its_connection_is_closed() {
    let mut both = Both::new();
    both.send();
    both.carry();
    both.give(10);
    both.send();
    both.receive();
    let offer = || both.sender.direct(1, Word::Offer).load(Ordering::SeqCst);
    let mind = |writer: &mut Writer| {
        writer
            .direct
            .iter_mut()
            .for_each(|direct| direct.mind_end(&both.sender))
    };
    mind(&mut both.writer);
    assert_ne!(offer(), 0);
    both.direct.incoming[0] = None;
    let end = Instant::now() + PATIENCE;
    while offer() != 0 && Instant::now() < end {
        mind(&mut both.writer);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(offer(), 0);
}

#[test]
fn who_does_not_hold_the_key_is_let_down() {
    let mut both = Both::new();
    both.sender.job_key = [1; 32];
    both.send();
    for _ in 0..100 {
        both.writer.ring(&both.sender);
        both.direct.looks = LOOKS;
        both.direct.receive(&both.receiver, |_| {});
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(both.sender.direct(1, Word::Offer).load(Ordering::SeqCst), 0);
    assert!(both.direct.sources.is_empty());
}

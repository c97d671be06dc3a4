use super::*;
use crate::message::HAS_DATA;
use crate::node::tests::{pair, set_one_group, set_waves};
use resurgo_wire::node_memory::{CutTable, arena as fields};
use std::collections::VecDeque;

const ENVELOPE: Envelope = Envelope {
    kind: Kind::Tagged,
    flags: HAS_DATA,
    tag: 7,
    data: 9,
};

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 31 + seed * 17 + index / 251) as u8)
        .collect()
}

fn append(writer: &mut Writer, arena: &mut Arena, node: &Node, bytes: &[u8], progress: &mut Progress) -> bool {
    // In two pieces: entries and pieces of memory do not end together.
    let cut = bytes.len() / 3;
    let piece = |part: &[u8]| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    };
    let iov = [piece(&bytes[..cut]), piece(&bytes[cut..])];
    let message = Message {
        envelope: ENVELOPE,
        iov: &iov,
        total: bytes.len(),
        piggyback: &[],
    };
    writer.append(arena, node, message, progress, false).0
}

/// Reads the available part of one message, after `done` bytes of it.
fn read(reader: &mut Reader, node: &Node, done: &mut Vec<u8>) -> Option<usize> {
    let mut total = None;
    while let Some(entry) = reader.peek(node) {
        let at = done.len();
        done.resize(at + entry.bytes, 0);
        // SAFETY: room was just made.
        unsafe { reader.copy_payload(node, 0, done[at..].as_mut_ptr(), entry.bytes) };
        reader.advance(entry.bytes);
        match entry.envelope.kind {
            Kind::More => assert_eq!(entry.total as usize, at),
            _ => {
                assert_eq!(entry.envelope, ENVELOPE);
                total = Some(entry.total as usize);
            }
        }
        if total == Some(done.len()) {
            break;
        }
    }
    total
}

#[test]
fn messages_of_every_size_come_out_as_they_went_in() {
    let (sender, receiver) = pair(256, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let mut reader = Reader::new(0, 1);
    let sizes = [
        0,
        1,
        31,
        32,
        33,
        63,
        64,
        65,
        4095,
        32767,
        32768,
        65440,
        65472,
        65504,
        65536,
        65537,
        1 << 20,
        3,
    ];
    for (seed, &size) in sizes.iter().enumerate() {
        let bytes = pattern(size, seed);
        assert!(append(
            &mut writer,
            &mut arena,
            &sender,
            &bytes,
            &mut Progress::default()
        ));
    }
    for (seed, &size) in sizes.iter().enumerate() {
        let mut got = Vec::new();
        assert_eq!(read(&mut reader, &receiver, &mut got), Some(size));
        assert_eq!(got, pattern(size, seed));
    }
    assert!(reader.peek(&receiver).is_none());
    // A receiver that has lost everything reads a retained log again from its beginning.
    let mut again = Reader::new(0, 1);
    let mut got = Vec::new();
    assert_eq!(read(&mut again, &receiver, &mut got), Some(0));
}

#[test]
fn piggybacks_of_every_size_come_out_with_their_messages() {
    let (mut sender, mut receiver) = pair(256, true);
    (sender.piggybacking, receiver.piggybacking) = (true, true);
    sender.moves = true;
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let payload = pattern(40, 3);
    let iov = [libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    }];
    let mut sizes = vec![70_000, 0, 3, 8, 1000, 1024, 1025, 70_000, 2, 200_000, 0, 64_300, 65_400];
    // Some message begins with a segment, and its Ahead entries end with the segment before.
    sizes.extend((50_000..66_000).step_by(100));
    for (seed, &size) in sizes.iter().enumerate() {
        if size == 200_000 {
            // A former life was killed when only the beginning of its piggyback was there.
            assert!(writer.append_ahead(&mut arena, &sender, &pattern(5000, 99)));
        }
        let piggyback = pattern(size, seed);
        let message = Message {
            envelope: ENVELOPE,
            iov: &iov,
            total: payload.len(),
            piggyback: &piggyback,
        };
        assert!(
            writer
                .append(&mut arena, &sender, message, &mut Progress::default(), false)
                .0
        );
        // No image covers anything.
        writer.reclaim(&mut arena, &sender);
    }
    let mut reader = Reader::new(0, 1);
    let (mut piggyback, mut place) = (Vec::new(), 0);
    for (seed, &size) in sizes.iter().enumerate() {
        let mut other = Reader::at(0, 1, &receiver, place);
        let entry = other.peek(&receiver).expect("as many as were written");
        other.piggyback(&receiver, &entry, &mut piggyback);
        assert!(piggyback == pattern(size, seed), "{size}");
        let entry = reader.peek(&receiver).expect("as many as were written");
        reader.piggyback(&receiver, &entry, &mut piggyback);
        assert!(piggyback == pattern(size, seed), "{size}");
        let mut got = vec![0; entry.bytes];
        // SAFETY: as much room as the entry has bytes.
        unsafe { reader.copy_payload(&receiver, 0, got.as_mut_ptr(), entry.bytes) };
        assert_eq!(got, payload);
        reader.advance(entry.bytes);
        place = reader.reached();
    }
    assert!(reader.peek(&receiver).is_none());
    // The sender forgets one segment after the other: no remains of their messages are taken for anything.
    let segments: Vec<_> = writer.outstanding.iter().copied().collect();
    let mut cut = 0;
    for (serial, slot) in segments {
        sender
            .channel(0, 1)
            .store(nm::reference(serial, slot), Ordering::Release);
        let mut guest = Reader::at(0, 1, &receiver, 0);
        let mut found = Vec::new();
        while let Some(entry) = guest.peek(&receiver) {
            let is_whole = guest.piggyback(&receiver, &entry, &mut piggyback);
            found.push(is_whole.then(|| piggyback.clone()));
            guest.advance(entry.bytes);
        }
        cut += found.iter().filter(|piggyback| piggyback.is_none()).count();
        assert!(found.iter().skip(1).all(Option::is_some));
        for (seed, found) in (sizes.len() - found.len()..).zip(&found) {
            assert!(found.as_ref().is_none_or(|found| *found == pattern(sizes[seed], seed)));
        }
    }
    assert!(cut > 2, "{cut}");
    // A reader behind the beginning of a piggyback needs that again.
    let mut waiting = Reader::new(0, 1);
    while let Some(entry) = waiting.peek(&receiver) {
        waiting.piggyback(&receiver, &entry, &mut piggyback);
        waiting.advance(entry.bytes);
    }
    let before = (waiting.reached(), waiting.needs_from());
    assert!(writer.append_ahead(&mut arena, &sender, &pattern(150_000, 7)));
    assert!(waiting.peek(&receiver).is_none() && waiting.serial() > before.1);
    assert_eq!((waiting.reached(), waiting.needs_from()), before);
}

#[test]
fn an_entry_whose_mark_was_not_stored_does_not_exist() {
    let (sender, receiver) = pair(16, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let message = Message {
        envelope: ENVELOPE,
        iov: &[],
        total: 0,
        piggyback: &[],
    };
    let (_, held) = writer.append(&mut arena, &sender, message, &mut Progress::default(), true);
    let mut reader = Reader::new(0, 1);
    assert!(reader.peek(&receiver).is_none());
    held.expect("it was to be held").publish();
    assert_eq!(reader.peek(&receiver).map(|entry| entry.envelope), Some(ENVELOPE));
}

#[test]
fn a_later_life_goes_on_behind_what_the_former_wrote() {
    let (sender, receiver) = pair(64, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    for seed in 0..5 {
        append(
            &mut writer,
            &mut arena,
            &sender,
            &pattern(30_000, seed),
            &mut Progress::default(),
        );
    }
    let mut walk = Reader::new(0, 1);
    while let Some(entry) = walk.peek(&sender) {
        walk.advance(entry.bytes);
    }
    let mut second = Writer::behind(&sender, 1, &walk, 0, VecDeque::new());
    append(
        &mut second,
        &mut arena,
        &sender,
        &pattern(100, 5),
        &mut Progress::default(),
    );
    let mut reader = Reader::new(0, 1);
    for (seed, size) in [
        (0, 30_000),
        (1, 30_000),
        (2, 30_000),
        (3, 30_000),
        (4, 30_000),
        (5, 100),
    ] {
        let mut got = Vec::new();
        assert_eq!(read(&mut reader, &receiver, &mut got), Some(size));
        assert_eq!(got, pattern(size, seed));
    }
}

#[test]
fn without_retention_segments_come_back_when_they_are_read() {
    let (sender, receiver) = pair(600, false);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let mut reader = Reader::new(0, 1);
    let bytes = pattern(40 << 20, 1);
    let (mut progress, mut got) = (Progress::default(), Vec::new());
    let mut rounds = 0;
    while got.len() < bytes.len() {
        append(&mut writer, &mut arena, &sender, &bytes, &mut progress);
        read(&mut reader, &receiver, &mut got);
        rounds += 1;
        assert!(rounds < 1000, "the writer waits for ever");
    }
    assert!(got == bytes);
    assert!(rounds > 8, "a channel without retention is bounded");
    let used = || sender.own(fields::SLOTS_TAKEN).load(Ordering::Relaxed);
    assert!(used() <= 64, "{} segments", used());
    // Also when the receiver reads each message before the next one, the channel uses all segments in turn.
    let mut slots = VecDeque::new();
    for seed in 0..400 {
        let bytes = pattern(70_000, seed);
        let (mut progress, mut got) = (Progress::default(), Vec::new());
        assert!(append(&mut writer, &mut arena, &sender, &bytes, &mut progress));
        assert_eq!(read(&mut reader, &receiver, &mut got), Some(bytes.len()));
        let slot = writer.outstanding.back().expect("the open one").1;
        if slots.back() != Some(&slot) {
            assert!(!slots.contains(&slot), "{slot} is used again too soon");
            slots.push_back(slot);
        }
        if slots.len() > 20 {
            slots.pop_front();
        }
    }
    assert_eq!(used(), 64);
}

/// Of what the receiver reads behind its cut, the sender keeps what it has written before its own, until the wave is over.
#[test]
fn what_is_in_transit_in_a_wave_is_not_written_over() {
    let (mut sender, mut receiver) = pair(64, false);
    (sender.waves_pass, receiver.waves_pass) = (true, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let mut reader = Reader::new(0, 1);
    let mut pass = |arena: &mut Arena, writer: &mut Writer, bytes: usize| {
        let (bytes, mut progress, mut got) = (pattern(bytes, 1), Progress::default(), Vec::new());
        while got.len() < bytes.len() {
            append(writer, arena, &sender, &bytes, &mut progress);
            read(&mut reader, &receiver, &mut got);
        }
        assert!(got == bytes);
        reader.place()
    };
    let all_are_kept = |first: u64, last: u64| {
        let kept: Vec<u64> = (0..64)
            .map(|slot| sender.serial_in(0, slot).load(Ordering::Relaxed))
            .collect();
        (first..=last).all(|serial| kept.contains(&(serial + 1)))
    };
    let (reading, _) = pass(&mut arena, &mut writer, 150_000);
    set_waves(&sender, 1, 0);
    receiver.cut(CutTable::Reading, 0).store(reading, Ordering::Relaxed);
    receiver.own(fields::CUT).store(1, Ordering::Release);
    pass(&mut arena, &mut writer, 400_000);
    writer.cut(1);
    let ((first, _), (last, _)) = (
        nm::dereference(reading),
        writer.outstanding[writer.outstanding.len() - 1],
    );
    assert!(first > 0 && last > first + 4);
    for _ in 0..20 {
        pass(&mut arena, &mut writer, 500_000);
        assert!(all_are_kept(first, last));
    }
    let before = arena.unused(&sender);
    assert!(before > 40, "segments are used again");
    set_waves(&sender, 1, 1);
    pass(&mut arena, &mut writer, 500_000);
    assert!(arena.unused(&sender) > before + 3);
}

/// Inside a group logs keep what has not been read, and what is in transit in a wave that may be returned to.
#[test]
fn inside_a_group_segments_come_back_when_they_are_read_but_for_what_a_wave_needs() {
    let (mut sender, mut receiver) = pair(64, true);
    set_one_group(&mut sender, 0);
    set_one_group(&mut receiver, 0);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let mut reader = Reader::new(0, 1);
    let send = |arena: &mut Arena, writer: &mut Writer, count: usize| {
        for seed in 0..count {
            let mut progress = Progress::default();
            assert!(append(writer, arena, &sender, &pattern(100_000, seed), &mut progress));
        }
    };
    let mut receive = |count: usize| {
        for seed in 0..count {
            let mut got = Vec::new();
            assert_eq!(read(&mut reader, &receiver, &mut got), Some(100_000));
            assert!(got == pattern(100_000, seed));
        }
    };
    for _ in 0..100 {
        send(&mut arena, &mut writer, 5);
        receive(5);
    }
    assert!(
        arena.next_slot(&sender).is_some_and(|slot| slot < 30),
        "segments are used again"
    );
    send(&mut arena, &mut writer, 5);
    writer.stand(&sender);
    let in_transit: Vec<(u64, usize)> = writer.outstanding.iter().copied().collect();
    // The receiver is copied, and goes on, before the sender is.
    receive(5);
    writer.cut(1);
    let all_are_there = |sender: &Node| {
        let lies = |(serial, slot): &(u64, usize)| sender.serial_in(0, *slot).load(Ordering::Relaxed) == serial + 1;
        in_transit.iter().all(lies)
    };
    for _ in 0..20 {
        send(&mut arena, &mut writer, 5);
        receive(5);
        assert!(all_are_there(&sender));
    }
    // The group returns: the writer in the image continues with these segments and no others.
    let mut kept = Vec::new();
    writer.returned(&sender, |slot| kept.push(slot));
    assert!(in_transit.iter().all(|(_, slot)| kept.contains(slot)));
    assert!(kept.len() <= in_transit.len() + 1, "{kept:?} {in_transit:?}");
}

/// Sends messages `from..to`, each of another size.
fn send_run(writer: &mut Writer, arena: &mut Arena, node: &Node, from: u64, to: u64) {
    for number in from..to {
        let bytes = pattern(number as usize * 7919 % 50_000, number as usize);
        assert!(append(writer, arena, node, &bytes, &mut Progress::default()));
    }
}

/// The next message is number `number`.
fn finds(reader: &mut Reader, node: &Node, number: u64) {
    let mut done = Vec::new();
    assert!(read(reader, node, &mut done).is_some(), "message {number} is not found");
    assert_eq!(done, pattern(number as usize * 7919 % 50_000, number as usize));
}

#[test]
fn a_reader_finds_the_next_message_wherever_the_channel_lies() {
    let (sender, receiver) = pair(256, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    send_run(&mut writer, &mut arena, &sender, 0, 40);
    let mut reader = Reader::new(0, 1);
    for delivered in [0, 1, 7, 39] {
        reader.find_behind(delivered);
        finds(&mut reader, &receiver, delivered);
    }
    assert!(reader.peek(&receiver).is_none());
    // It may have had more than has been sent again.
    for delivered in [40, 43] {
        reader.find_behind(delivered);
        assert!(reader.peek(&receiver).is_none());
    }
    send_run(&mut writer, &mut arena, &sender, 40, 43);
    assert!(reader.peek(&receiver).is_none());
    send_run(&mut writer, &mut arena, &sender, 43, 45);
    finds(&mut reader, &receiver, 43);
    finds(&mut reader, &receiver, 44);
}

#[test]
fn where_ranks_move_logs_forget_what_images_have_had_by_its_number() {
    let (mut sender, mut receiver) = pair(64, true);
    (sender.moves, receiver.moves) = (true, true);
    let (mut arena, mut writer) = (Arena::new(&sender), Writer::new(&sender, 1));
    let mut reader = Reader::new(0, 1);
    let mut slow = Reader::new(0, 1);
    slow.find_behind(159);
    let mut most = 0;
    for part in 0..20 {
        send_run(&mut writer, &mut arena, &sender, part * 10, part * 10 + 10);
        most = most.max(writer.outstanding.len());
        // It looks on its way, and loses it.
        assert!(part >= 15 || slow.peek(&receiver).is_none());
        if part == 15 {
            finds(&mut slow, &receiver, 159);
        }
        let slot = (part % 2) as usize;
        receiver.image_cursor(slot, 0).store(part * 10 + 3, Ordering::Release);
        receiver
            .own(fields::OLDEST_IMAGE)
            .store(1 + slot as u32, Ordering::Release);
        writer.reclaim(&mut arena, &sender);
        reader.find_behind(part * 10 + 3);
        finds(&mut reader, &receiver, part * 10 + 3);
    }
    assert!(most < 12, "{most} segments");
}

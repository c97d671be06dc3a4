//! Two engines over one node memory, stepped by hand: each does what one rank's MPI library would.

use super::*;
use crate::log::Writer;
use crate::matching::Room;
use crate::node::tests::pair;

/// Segments of each log: more than a test sends, while a channel without a log takes less than a large message.
const SEGMENTS: usize = 256;
const LARGE: usize = 5 << 20;

fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Hands a message to the provider. `bytes` must stay where they are until it is gone.
pub fn send(engine: &mut Engine, to: usize, tag: u64, bytes: &[u8]) {
    let envelope = Envelope {
        kind: Kind::Tagged,
        flags: 0,
        tag,
        data: 0,
    };
    let context = SendContext {
        context: std::ptr::null_mut(),
        flags: 0,
        completes: false,
        inject: bytes.len() <= 64,
    };
    assert_eq!(engine.send(to, envelope, &[piece(bytes)], context), 0);
}

/// Posts a receive of anything from `source` with `tag`. `room` is its context, too.
pub fn post(engine: &mut Engine, source: u32, tag: u64, room: &[u8]) {
    let receive = Receive {
        context: room.as_ptr().cast_mut().cast(),
        room: Room::of(&[piece(room)]),
        source: Some(source),
        tag,
        ignore: 0,
        multi: None,
        last_of_multi: false,
        completes: true,
    };
    engine.receive(receive, true);
}

/// Reads until an operation finishes.
fn complete(engine: &mut Engine) -> Completion {
    for _ in 0..1000 {
        if let Some(completion) = engine.calls.completions.pop_front() {
            return completion;
        }
        engine.poll();
    }
    panic!("nothing has come to rank {}", engine.node.rank);
}

/// Reads as `receiver` until an operation finishes, while the sender reads all the time.
fn complete_beside(sender: &mut Engine, receiver: &mut Engine) -> Completion {
    for _ in 0..1000 {
        sender.poll();
        if receiver.calls.completions.is_empty() {
            receiver.poll();
        }
    }
    let completion = receiver.calls.completions.pop_front();
    completion.unwrap_or_else(|| panic!("nothing has come to rank {}", receiver.node.rank))
}

fn receive(engine: &mut Engine, source: u32, tag: u64) -> u64 {
    let word = [0u8; 8];
    post(engine, source, tag, &word);
    assert_eq!(complete(engine).entry.len, 8);
    u64::from_le_bytes(word)
}

fn is_quiet(engine: &mut Engine) -> bool {
    let delivered = engine.meters.deliveries;
    (0..50).for_each(|_| engine.poll());
    engine.meters.deliveries == delivered && engine.calls.completions.is_empty()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3 % 251) as u8).collect()
}

#[test]
fn a_small_message_is_there_after_the_send_and_meets_its_receive() {
    for logs in [false, true] {
        let (one, two) = pair(SEGMENTS, logs);
        let (mut one, mut two) = (Engine::new(one), Engine::new(two));
        // Later than its message, earlier, and out of turn.
        send(&mut one, 1, 1, &7u64.to_le_bytes());
        assert_eq!(receive(&mut two, 0, 1), 7);
        let word = [0u8; 8];
        post(&mut two, 0, 2, &word);
        assert!(is_quiet(&mut two));
        send(&mut one, 1, 2, &8u64.to_le_bytes());
        complete(&mut two);
        assert_eq!(u64::from_le_bytes(word), 8);
        send(&mut one, 1, 3, &9u64.to_le_bytes());
        send(&mut one, 1, 4, &10u64.to_le_bytes());
        assert_eq!(receive(&mut two, 0, 4), 10);
        assert_eq!(receive(&mut two, 0, 3), 9);
        send(&mut two, 1, 5, &11u64.to_le_bytes());
        assert_eq!(receive(&mut two, 1, 5), 11, "to itself");
        assert!(is_quiet(&mut one) && is_quiet(&mut two));
    }
}

#[test]
fn a_message_longer_than_a_window_passes_as_its_receiver_reads() {
    for logs in [false, true] {
        let (one, two) = pair(SEGMENTS, logs);
        let (mut one, mut two) = (Engine::new(one), Engine::new(two));
        let sent = pattern(LARGE);
        // Once before its receive, once after.
        for early in [false, true] {
            let room = vec![0u8; LARGE];
            if !early {
                post(&mut two, 0, 5, &room);
            }
            send(&mut one, 1, 5, &sent);
            send(&mut one, 1, 6, &sent[..100]);
            two.poll();
            assert_eq!(
                one.outbox.waiting.len(),
                if logs { 0 } else { 2 },
                "logs have no window"
            );
            if early {
                post(&mut two, 0, 5, &room);
            }
            assert_eq!(complete_beside(&mut one, &mut two).entry.len, LARGE);
            assert!(room == sent);
            let behind = [0u8; 100];
            post(&mut two, 0, 6, &behind);
            assert_eq!(complete(&mut two).entry.len, 100);
            assert!(behind == sent[..100]);
            assert!(one.outbox.waiting.is_empty());
        }
    }
}

/// Steps of rank 1 in a program: it answers each word of rank 0, with unsuccessful probes now and then.
fn answer(two: &mut Engine, step: u64) {
    if step.is_multiple_of(3) {
        two.poll();
    }
    let word = receive(two, 0, step);
    send(two, 0, step, &(word * word + step).to_le_bytes());
    if step.is_multiple_of(2) {
        send(two, 1, step, &word.to_le_bytes());
        assert_eq!(receive(two, 1, step), word);
    }
}

const STEPS: u64 = 7;

/// Rank 0 sends the word for this step.
fn ask(one: &mut Engine, step: u64) {
    send(one, 1, step, &(step + 40).to_le_bytes());
}

fn hears_each_answer_once(one: &mut Engine) {
    for step in 0..STEPS {
        assert_eq!(receive(one, 1, step), (step + 40) * (step + 40) + step);
    }
    assert!(is_quiet(one), "no answer has come twice");
}

/// The process of this engine is gone, and the agent starts another.
fn die(engine: Engine) -> Node {
    let Engine { node, .. } = engine;
    node.control(node.rank, control::INCARNATION)
        .fetch_add(1, Ordering::SeqCst);
    node
}

fn pair_of(causal: bool) -> (Engine, Engine) {
    let (mut one, mut two) = pair(SEGMENTS, true);
    for node in [&mut one, &mut two] {
        (node.tolerate_node, node.piggybacking) = (causal, causal);
        node.control(node.rank, control::INCARNATION).store(1, Ordering::SeqCst);
    }
    (Engine::new(one), Engine::new(two))
}

#[test]
fn a_later_life_repeats_what_the_former_ones_did_wherever_they_died() {
    for (causal, died_after, has_delivered) in [false, true]
        .into_iter()
        .flat_map(|causal| (0..2 * STEPS).map(move |at| (causal, at / 2, at % 2 == 1)))
    {
        let (mut one, mut two) = pair_of(causal);
        for step in 0..died_after {
            ask(&mut one, step);
            answer(&mut two, step);
        }
        ask(&mut one, died_after);
        if has_delivered {
            receive(&mut two, 0, died_after);
        }
        two = Engine::new(die(two));
        assert_eq!(two.life.replaying, died_after > 0 || has_delivered && !causal);
        for step in 0..STEPS {
            if step > died_after {
                ask(&mut one, step);
            }
            answer(&mut two, step);
        }
        assert!(!two.life.replaying);
        hears_each_answer_once(&mut one);
    }
}

/// Posts receives for words 0 to `count` of rank 0, and reads until they are there. Returns how many finished in each
/// read.
fn take_flood(two: &mut Engine, count: usize) -> Vec<usize> {
    let words = vec![[0u8; 8]; count];
    for (tag, word) in words.iter().enumerate() {
        post(two, 0, tag as u64, word);
    }
    let mut reads = Vec::new();
    while reads.iter().sum::<usize>() < count {
        two.poll();
        let contexts: Vec<_> = two
            .calls
            .completions
            .iter()
            .map(|done| done.entry.op_context.cast_const())
            .collect();
        let first = reads.iter().sum::<usize>();
        let expected = words[first..].iter().take(contexts.len());
        assert!(
            contexts
                .iter()
                .zip(expected)
                .all(|(context, word)| *context == word.as_ptr().cast())
        );
        two.calls.completions.clear();
        reads.push(contexts.len());
    }
    for (tag, word) in words.iter().enumerate() {
        assert_eq!(u64::from_le_bytes(*word), tag as u64 + 9);
    }
    reads
}

#[test]
fn messages_that_come_fast_share_reads_and_a_later_life_repeats_the_same_reads() {
    const COUNT: usize = 30;
    let flood = |one: &mut Engine| (0..COUNT as u64).for_each(|tag| send(one, 1, tag, &(tag + 9).to_le_bytes()));
    let (one, two) = pair(SEGMENTS, false);
    let (mut one, mut two) = (Engine::new(one), Engine::new(two));
    flood(&mut one);
    assert_eq!(take_flood(&mut two, COUNT), [1, 1, 1, 1, 8, 8, 8, 2]);
    let (mut one, mut two) = pair_of(false);
    two.poll();
    flood(&mut one);
    let reads = take_flood(&mut two, COUNT);
    assert_eq!(reads, [1, 1, 1, 1, 8, 8, 8, 2]);
    // The next life repeats them, whatever its own pace.
    two = Engine::new(die(two));
    two.poll();
    assert!(two.life.replaying && two.calls.completions.is_empty());
    assert_eq!(take_flood(&mut two, COUNT), reads);
    assert!(!two.life.replaying && is_quiet(&mut two));
}

/// Another view of the same rank's memory, for use while an image is kept.
fn twin(node: &Node) -> Node {
    // SAFETY: it owns only lists of a pair's node, which are empty and have no memory.
    unsafe { std::ptr::read(node) }
}

#[test]
fn a_process_that_wakes_up_repeats_what_was_done_after_its_image() {
    for image_at in 0..STEPS {
        let (mut one, mut two) = pair_of(false);
        for step in 0..image_at {
            ask(&mut one, step);
            answer(&mut two, step);
        }
        two.note_image(1, 0);
        let mut image = two;
        let mut later = Engine::new(twin(&image.node));
        for step in 0..STEPS {
            if step >= image_at {
                ask(&mut one, step);
            }
            answer(&mut later, step);
        }
        drop(later);
        image.begin(From::FormerLives);
        assert!(image.life.replaying);
        for step in image_at..STEPS {
            answer(&mut image, step);
        }
        assert!(!image.life.replaying);
        hears_each_answer_once(&mut one);
    }
}

#[test]
fn ranks_with_logs_that_return_together_find_what_was_under_way_and_nothing_that_came_later() {
    let (mut one, mut two) = pair(SEGMENTS, true);
    for node in [&mut one, &mut two] {
        (node.waves, node.returns_together) = (true, true);
    }
    let (mut one, mut two) = (Engine::new(one), Engine::new(two));
    ask(&mut one, 0);
    answer(&mut two, 0);
    ask(&mut one, 1);
    one.note_image(1, 0);
    two.note_image(1, 0);
    // Later lives of both go on beyond their images.
    let mut later = (Engine::new(twin(&one.node)), Engine::new(twin(&two.node)));
    (0..4).for_each(|step| ask(&mut later.0, step));
    (0..4).for_each(|step| answer(&mut later.1, step));
    drop(later);
    one.cut_off();
    two.cut_off();
    one.begin(From::FormerLives);
    two.begin(From::FormerLives);
    assert!(!one.life.replaying && !two.life.replaying, "there is nothing to repeat");
    answer(&mut two, 1);
    assert!(is_quiet(&mut two));
    // They may act differently.
    send(&mut one, 1, 2, &5u64.to_le_bytes());
    assert_eq!(receive(&mut two, 0, 2), 5);
    for step in 0..2 {
        assert_eq!(receive(&mut one, 1, step), (step + 40) * (step + 40) + step);
    }
    assert!(is_quiet(&mut one));
}

#[test]
fn the_rest_of_a_message_comes_from_the_next_life() {
    let (one, two) = pair(SEGMENTS, true);
    let (mut one, mut two) = (Engine::new(one), Engine::new(two));
    let sent = pattern(200_000);
    let envelope = Envelope {
        kind: Kind::Tagged,
        flags: 0,
        tag: 3,
        data: 0,
    };
    let cut = Message {
        envelope,
        iov: &[piece(&sent[..60_000])],
        total: sent.len(),
        piggyback: &[],
    };
    // As if killed while copying: the first pieces are there.
    let first = Message { total: 60_000, ..cut };
    Writer::new(&two.node, 0).append(&mut two.peers.arena, &two.node, first, &mut Progress::default(), false);
    let (_, slot) = nm::dereference(two.node.channel(1, 0).load(Ordering::Acquire));
    // SAFETY: the total of the first entry of an own segment.
    unsafe {
        two.node
            .segment(1, slot)
            .add(64 + 16)
            .cast::<u64>()
            .write(sent.len() as u64)
    };
    two = Engine::new(die(two));
    send(&mut two, 0, 3, &sent);
    let room = vec![0u8; sent.len()];
    post(&mut one, 1, 3, &room);
    assert_eq!(complete(&mut one).entry.len, sent.len());
    assert!(room == sent);
}

/// Empties the node memory as the agent does before ranks return to a wave.
fn empty(node: &Node) {
    let fields = [nm::arena::SLOTS_TAKEN, nm::arena::NEXT_SERIAL];
    fields
        .iter()
        .for_each(|field| node.own(*field).store(0, Ordering::SeqCst));
    for other in 0..2 {
        node.channel(node.rank, other).store(0, Ordering::SeqCst);
        node.consumed(other, node.rank).store(0, Ordering::SeqCst);
        node.announced(node.rank, other).store(0, Ordering::SeqCst);
    }
}

#[test]
fn ranks_that_return_to_a_wave_find_what_was_under_way_and_nothing_that_came_later() {
    let (mut one, mut two) = pair(SEGMENTS, false);
    (one.waves, two.waves) = (true, true);
    let (mut one, mut two) = (Engine::new(one), Engine::new(two));
    send(&mut one, 1, 1, &7u64.to_le_bytes());
    assert_eq!(receive(&mut two, 0, 1), 7);
    // Under way at the wave: a small message, and one with a part that had no room.
    let sent = pattern(LARGE);
    send(&mut two, 0, 2, &8u64.to_le_bytes());
    send(&mut one, 1, 3, &sent);
    assert!(!one.outbox.waiting.is_empty());
    one.announce();
    two.announce();
    assert!(!one.is_drained() && !two.is_drained());
    while one.drain() + two.drain() > 0 {}
    assert!(one.is_drained() && two.is_drained());
    // These two are the images. Other lives returned to them before, and sent messages that are void now.
    empty(&one.node);
    empty(&two.node);
    let junk = Envelope {
        kind: Kind::Tagged,
        flags: 0,
        tag: 2,
        data: 0,
    };
    for engine in [&mut one, &mut two] {
        let (destination, iov) = (1 - engine.node.rank, [piece(&[9; 8])]);
        let message = Message {
            envelope: junk,
            iov: &iov,
            total: 8,
            piggyback: &[],
        };
        let mut arena = Arena::new(&engine.node);
        Writer::new(&engine.node, destination).append(
            &mut arena,
            &engine.node,
            message,
            &mut Progress::default(),
            false,
        );
        doorbell::ring(&engine.node, destination);
    }
    empty(&one.node);
    empty(&two.node);
    one.begin(From::Wave);
    two.begin(From::Wave);
    assert_eq!(receive(&mut one, 1, 2), 8);
    let room = vec![0u8; LARGE];
    post(&mut two, 0, 3, &room);
    assert_eq!(complete_beside(&mut one, &mut two).entry.len, LARGE);
    assert!(room == sent);
    assert!(is_quiet(&mut one) && is_quiet(&mut two));
}

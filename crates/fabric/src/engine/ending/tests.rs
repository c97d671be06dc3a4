//! Two engines over one node memory; the first one's process fails.

use super::*;
use crate::engine::tests::{post, send};
use crate::matching::Room;
use crate::node::tests::pair;
use crate::survivors::Known;
use resurgo_wire::node_memory::header;
use std::sync::{Mutex, MutexGuard};

const CONTEXT: u32 = 9;
/// Tags on the context: of the program, of a collective call, and of one among a group.
const OWN: u64 = (CONTEXT as u64) << 35 | 5;
const COLLECTIVE: u64 = OWN | 1 << 31;
const OF_GROUP: u64 = COLLECTIVE | 1 << 30;

/// What the library says is the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

fn survivors() -> (Engine, Engine, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    survivors::with(|known| *known = Known::default());
    let (mut one, mut two) = pair(64, false);
    (one.survives, two.survives) = (true, true);
    (Engine::new(one), Engine::new(two), alone)
}

fn has_members(members: Vec<u32>) {
    let key = resurgo_wire::survivors::key(CONTEXT, members.iter().copied());
    survivors::with(|known| {
        known.comms.insert(
            CONTEXT,
            survivors::Comm {
                key,
                other: None,
                members,
                watched: Vec::new(),
            },
        )
    });
}

fn tell(engine: &Engine) {
    engine
        .node
        .header(header::NEWS_OF_FAILURES)
        .fetch_add(1, Ordering::Release);
}

fn fail(engine: &Engine, rank: usize) {
    engine.node.control(rank, control::BURIED).store(1, Ordering::Release);
    tell(engine);
}

/// Tags, lengths and data of what has ended.
fn ended(engine: &mut Engine) -> Vec<(u64, usize, u64)> {
    (0..20).for_each(|_| engine.look());
    let ended = engine.calls.completions.drain(..);
    ended
        .map(|done| (done.entry.tag, done.entry.len, done.entry.data))
        .collect()
}

#[test]
fn receives_from_the_dead_end_and_what_it_sent_before_comes_first() {
    let (mut one, mut two, _alone) = survivors();
    let rooms = [[0u8; 8]; 3];
    post(&mut two, 0, OWN, &rooms[0]);
    post(&mut two, 0, OWN + 1, &rooms[1]);
    send(&mut one, 1, OWN + 1, &7u64.to_le_bytes());
    fail(&two, 0);
    let (gone, context) = (OWN | ENDED, u64::from(CONTEXT));
    assert_eq!(ended(&mut two), [(OWN + 1, 8, 0), (gone, 8, context)]);
    assert_eq!(u64::from_le_bytes(*std::hint::black_box(&rooms[1])), 7);
    // Posted later; a message to the dead is gone at once.
    post(&mut two, 0, OWN, &rooms[2]);
    send(&mut two, 0, OWN, &[0; 100]);
    assert_eq!(ended(&mut two), [(gone, 8, context)]);
}

#[test]
fn a_rank_that_is_late_in_mpi_init_gets_what_the_dead_has_sent() {
    let (mut one, mut two, _alone) = survivors();
    let rooms = [[0u8; 8]; 2];
    send(&mut one, 1, COLLECTIVE, &7u64.to_le_bytes());
    fail(&two, 0);
    assert_eq!(ended(&mut two), []);
    // No communicator is known yet.
    post(&mut two, 0, COLLECTIVE, &rooms[0]);
    assert_eq!(ended(&mut two), [(COLLECTIVE, 8, 0)]);
    assert_eq!(u64::from_le_bytes(*std::hint::black_box(&rooms[0])), 7);
    // It has sent no more.
    post(&mut two, 0, COLLECTIVE, &rooms[1]);
    assert_eq!(ended(&mut two), [(COLLECTIVE, 8, 0)]);
    assert_eq!(u64::from_le_bytes(*std::hint::black_box(&rooms[1])), 0);
}

#[test]
fn collective_calls_end_where_a_member_is_dead_and_only_there() {
    let (_one, mut two, _alone) = survivors();
    let rooms = [[1u8; 8]; 4];
    for (members, expected) in [(vec![0, 1], true), (vec![1], false)] {
        has_members(members);
        post(&mut two, 1, COLLECTIVE, &rooms[0]);
        fail(&two, 0);
        let all = ended(&mut two);
        assert_eq!(all.contains(&(COLLECTIVE, 8, 0)), expected);
        two.calls.matching.take_out(|_| true);
    }
    has_members(vec![0, 1]);
    // Another member of a group goes on; the dead does not.
    post(&mut two, 1, OF_GROUP, &rooms[1]);
    post(&mut two, 0, OF_GROUP + 1, &rooms[2]);
    assert_eq!(ended(&mut two), [(OF_GROUP + 1, 8, 0)]);
    assert_eq!(rooms[2], [1; 8], "what lies there stays");
}

#[test]
fn a_revoked_communicator_ends_all_receives() {
    let (_one, mut two, _alone) = survivors();
    let rooms = [[0u8; 8]; 2];
    post(&mut two, 1, OWN, &rooms[0]);
    post(&mut two, 1, COLLECTIVE, &rooms[1]);
    assert_eq!(ended(&mut two), []);
    has_members(vec![1]);
    let key = resurgo_wire::survivors::key(CONTEXT, [1].into_iter());
    let field = control::CLOSED.item(resurgo_wire::survivors::place_of_revoked(key));
    two.node.control(1, field).store(key + (1 << 16), Ordering::Release);
    tell(&two);
    assert_eq!(ended(&mut two), [], "another one with this context");
    two.node.control(1, field).store(key, Ordering::Release);
    tell(&two);
    assert_eq!(ended(&mut two).len(), 2);
}

#[test]
fn half_a_message_of_the_dead_ends_its_receive() {
    let (mut one, mut two, _alone) = survivors();
    let (sent, room) = (vec![3u8; 5 << 20], vec![0u8; 5 << 20]);
    post(&mut two, 0, OWN, &room);
    send(&mut one, 1, OWN, &sent);
    two.look();
    fail(&two, 0);
    assert_eq!(ended(&mut two), [(OWN | ENDED, room.len(), u64::from(CONTEXT))]);
}

#[test]
fn a_rank_sends_nothing_in_collective_calls_that_have_ended() {
    let (mut one, _two, _alone) = survivors();
    has_members(vec![0, 1]);
    send(&mut one, 1, COLLECTIVE, &[0; 8]);
    assert_eq!(one.peers.begun(1), 1);
    let key = resurgo_wire::survivors::key(CONTEXT, [0, 1].into_iter());
    let field = control::CLOSED.item(resurgo_wire::survivors::place_of_revoked(key));
    one.node.control(0, field).store(key, Ordering::Release);
    tell(&one);
    one.look();
    // What an ended receive has brought may be longer than what this rank has. It reads nothing of it.
    let nowhere = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(8),
        iov_len: 1 << 20,
    };
    let envelope = Envelope {
        kind: Kind::Tagged,
        flags: 0,
        tag: COLLECTIVE,
        data: 0,
    };
    one.calls.completions.clear();
    let context = SendContext {
        completes: true,
        ..SendContext::QUIET
    };
    assert_eq!(one.send(1, envelope, &[nowhere], context), 0);
    assert_eq!((one.peers.begun(1), one.calls.completions.len()), (1, 1));
    // Messages of the program, and calls among a group, go on; so do those to the other side of an intercommunicator,
    // whose context is another's here.
    for (at, tag) in [OWN, OF_GROUP].into_iter().enumerate() {
        send(&mut one, 1, tag, &[0; 8]);
        assert_eq!(one.peers.begun(1), 2 + at as u64);
    }
    let comm = survivors::Comm {
        key: 1,
        other: Some(CONTEXT),
        members: vec![0, 1],
        watched: Vec::new(),
    };
    survivors::with(|known| known.comms.insert(CONTEXT + 1, comm));
    send(&mut one, 1, COLLECTIVE, &[0; 8]);
    assert_eq!(one.peers.begun(1), 4);
}

/// A communicator of both ranks, for which the calling thread makes a call on a file or a window.
fn is_in_call(object: survivors::Object) {
    has_members(vec![0, 1]);
    let makes = if object == survivors::Object::Window { 3 } else { 2 };
    // SAFETY: no group.
    unsafe { survivors::resurgo_ft_running(makes, CONTEXT.into(), std::ptr::null(), 0, -1, -1) };
}

fn call_ends() {
    // SAFETY: as above.
    unsafe { survivors::resurgo_ft_running(0, -1, std::ptr::null(), 0, -1, -1) };
}

#[test]
fn receives_of_a_file_end_with_zeros_between_the_living_too() {
    let (_one, mut two, _alone) = survivors();
    const OF_FILE: u64 = (CONTEXT as u64 + 1) << 35 | 5;
    let rooms = [[7u8; 8]; 3];
    is_in_call(survivors::Object::File);
    post(&mut two, 1, OF_FILE, &rooms[0]);
    call_ends();
    fail(&two, 0);
    let gone = OF_FILE | ENDED;
    assert_eq!(ended(&mut two), [(gone, 8, u64::from(CONTEXT) + 1)]);
    assert_eq!(*std::hint::black_box(&rooms[0]), [0; 8]);
    // Later ones, outside of calls, too; not once there is no such file.
    post(&mut two, 1, OF_FILE, &rooms[1]);
    assert_eq!(ended(&mut two).len(), 1);
    survivors::resurgo_ft_freed(CONTEXT);
    post(&mut two, 1, OF_FILE, &rooms[2]);
    assert_eq!(ended(&mut two), []);
}

#[test]
fn a_call_on_a_broken_window_gets_a_buffer_back() {
    let (_one, mut two, _alone) = survivors();
    let mut memory = [0u8; 64];
    let place = memory.as_mut_ptr();
    two.calls.matching.post(
        Receive {
            context: place.cast(),
            room: Room::of(&[]),
            source: None,
            tag: 0,
            ignore: u64::MAX,
            multi: Some(0),
            last_of_multi: false,
            completes: true,
        },
        false,
    );
    is_in_call(survivors::Object::Window);
    two.look();
    assert!(two.calls.completions.is_empty() && !two.calls.refuses_buffer);
    fail(&two, 0);
    two.look();
    let done = two.calls.completions.pop_front().expect("it leaves the call");
    assert_eq!((done.entry.op_context, done.entry.flags), (place.cast(), FI_MULTI_RECV));
    assert!(two.calls.refuses_buffer && two.calls.matching.multi().is_some());
    two.calls.refuses_buffer = false;
    call_ends();
    two.look();
    assert!(two.calls.completions.is_empty());
}

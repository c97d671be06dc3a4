//! Movers of several nodes in one process, with threads that play ranks, over connections that break.

mod ranks;
mod simulated;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_protocol::Protocol;
use resurgo_wire::mesh::{Frame, Table};
use resurgo_wire::node_memory::{arena, header};

use super::mesh::Conversation;
use super::mirror::Mirror;
use super::outgoing::Outgoing;
use super::peer::Peer;
use super::tail::Tail;
use super::*;
use crate::agent::node::tests::job;
use crate::sys::PATIENCE;
use ranks::{Random, Receiver, Sender};

/// A node: its memory, its mover, and where that can be called.
struct Node {
    memory: NodeMemory,
    net: Net,
}

/// Passes connections on to `to` until `done`, and breaks each of them at a random byte.
fn proxy(listener: &TcpListener, to: SocketAddr, seed: u64, done: &AtomicBool) {
    let mut random = Random(seed);
    listener.set_nonblocking(true).unwrap();
    while !done.load(Ordering::Relaxed) {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        near.set_nonblocking(false).unwrap();
        let far = TcpStream::connect(to).unwrap();
        let mut left = [(); 2].map(|()| random.below(1 << 20));
        let mut buffer = vec![0; 64 << 10];
        'passing: while !done.load(Ordering::Relaxed) {
            let mut both = [&near, &far].map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
            poll(&mut both, PollTimeout::from(10u8)).unwrap();
            let ready = both.map(|end| end.any() == Some(true));
            for (side, (mut from, mut to)) in [(&near, &far), (&far, &near)].into_iter().enumerate() {
                if !ready[side] {
                    continue;
                }
                let got = from.read(&mut buffer).unwrap_or(0);
                let passed = got.min(left[side]);
                left[side] -= passed;
                if to.write_all(&buffer[..passed]).is_err() || passed < got || got == 0 {
                    break 'passing;
                }
            }
        }
        let _ = [near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both)];
    }
}

const LOGS_ALONE: Habits = Habits {
    logs: true,
    announces: false,
    cuts: false,
    counts: false,
    direct: false,
    generation: 0,
};

/// Ends the proxies, whatever becomes of the test.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nodes of a job under `protocol` with ranks as `of_rank` says. Movers call each other at `doors`.
fn nodes(protocol: Protocol, of_rank: &[u32], listeners: Vec<TcpListener>, doors: &[SocketAddr]) -> (Job, Vec<Node>) {
    let job = Job { protocol, ..job() };
    let nodes = (0..).zip(listeners).map(|(own, listener)| {
        let memory = NodeMemory::create(&job, of_rank.len()).unwrap();
        let plan = Nodes {
            copies: Vec::new(),
            is_encrypted: protocol == Protocol::None,
            own,
            epoch: 3,
            mesh: doors.iter().map(|door| vec![*door]).collect(),
            of_rank: of_rank.to_vec(),
        };
        let net = Net::start(&job, &plan, &memory, listener).unwrap();
        Node { memory, net }
    });
    let nodes = nodes.collect();
    (job, nodes)
}

fn listeners(count: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let addresses = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    (listeners, addresses)
}

/// Waits for the mover's answer.
fn answer(net: &Net) -> Answer {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = net.answers().pop() {
            return answer;
        }
        assert!(Instant::now() < until, "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until other nodes have all that ranks have rung for.
fn flush(net: &mut Net) {
    let number = net.flush();
    assert_eq!(answer(net), Answer::Flushed(number));
}

/// Senders may forget what is before the image.
fn take_image(node: &Node, rank: usize, receivers: &[Receiver]) {
    let memory = &node.net.shared.memory;
    let word = memory.arena32(rank, arena::OLDEST_IMAGE);
    let slot = word.load(Ordering::Relaxed) % 8;
    for receiver in receivers {
        let at = memory.layout.arena(rank) + memory.layout.cursors(slot as usize) + receiver.source * 8;
        memory.word(at).store(receiver.serial(), Ordering::Release);
    }
    word.store(slot + 1, Ordering::Release);
    node.net.forgets(rank);
}

/// Answers of movers, and each channel's written and copied ends: for a test that hangs.
fn state(of_rank: &[u32], all: &[Arc<Shared>]) -> String {
    let ranks = 0..of_rank.len();
    let pairs = ranks
        .clone()
        .flat_map(|source| ranks.clone().map(move |destination| (source, destination)));
    let pairs = pairs.filter(|(source, destination)| of_rank[*source] != of_rank[*destination]);
    let lines = pairs.map(|(source, destination)| {
        let [there, here] = [source, destination].map(|rank| {
            let memory = &all[of_rank[rank] as usize].memory;
            let at = memory.layout.arena(source) + Table::Channel.place(&memory.layout, destination);
            let head = || memory.word(at).load(Ordering::Acquire);
            format!("{:x?}", Tail::default().settle(memory, source, head))
        });
        let source_memory = &all[of_rank[source] as usize].memory;
        let ready = source_memory.control(destination, control::READY.item(0));
        let news = source_memory.header(header::NEWS.item(0));
        let oldest = [source, destination].map(|rank| {
            let memory = &all[of_rank[rank] as usize].memory;
            memory.arena32(destination, arena::OLDEST_IMAGE).load(Ordering::Relaxed)
        });
        format!(
            "{source} to {destination}: head and end {there}, of the copy {here}; ready {:b}, news {:b}, oldest image {oldest:?}",
            ready.load(Ordering::Relaxed),
            news.load(Ordering::Relaxed)
        )
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    let said: Vec<_> = all.iter().map(|shared| shared.answers.lock().unwrap()).collect();
    format!("{lines}\nanswers: {said:?}")
}

/// `rank` sends `count` messages to each rank of another node and receives as many, each as sent.
fn play(node: &Node, (of_rank, all, rank): (&[u32], &[Arc<Shared>], usize), count: u64, logs: bool, seed: u64) {
    let memory = &node.net.shared.memory;
    let others = (0..of_rank.len()).filter(|other| of_rank[*other] != of_rank[rank]);
    let others: Vec<usize> = others.collect();
    let mut random = Random(seed ^ rank as u64);
    let mut sender = Sender::new(memory, &node.net.shared.bell, rank, logs, seed);
    let mut receivers: Vec<Receiver> = others.iter().map(|other| Receiver::new(memory, *other, rank)).collect();
    let mut sent = vec![0; others.len()];
    let until = Instant::now() + Duration::from_secs(120);
    while receivers.iter().any(|receiver| receiver.received < count) || sent.iter().any(|sent| *sent < count) {
        let mut moved = false;
        for (place, other) in others.iter().enumerate() {
            if sent[place] < count {
                let length = ranks::length(rank, *other, sent[place], seed);
                if sender.append(*other, sent[place], length) {
                    sent[place] += 1;
                    moved = true;
                }
            }
        }
        for receiver in &mut receivers {
            while let Some(segments) = receiver.receive(seed) {
                moved = true;
                if !logs && segments > 0 {
                    sender.consumed(receiver.source, segments);
                }
            }
        }
        if logs && random.below(8) == 0 {
            take_image(node, rank, &receivers);
        }
        if Instant::now() > until {
            let reads = receivers.iter().map(Receiver::describe).collect::<Vec<_>>().join(", ");
            panic!(
                "rank {rank} has sent {sent:?} and read {reads}\n{}",
                state(of_rank, all)
            );
        }
        if !moved {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    if logs {
        // Senders that have not finished need the room.
        take_image(node, rank, &receivers);
    }
}

/// Ranks of three nodes send to one another while all connections break; then all logs are emptied, and they do it again.
fn ranks_talk(protocol: Protocol, breaks: bool, count: u64) {
    let of_rank = [0, 1, 2, 1];
    let (real, addresses) = listeners(3);
    let (outer, doors) = listeners(3);
    let (job, mut nodes) = nodes(protocol, &of_rank, real, if breaks { &doors } else { &addresses });
    let all: Vec<_> = nodes.iter().map(|node| node.net.shared.clone()).collect();
    let all = &all;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        for (number, (listener, to)) in outer.iter().zip(&addresses).enumerate() {
            // One caller at a time for each: node 0 is called by two.
            for caller in 0..2 {
                let done = &done;
                scope.spawn(move || proxy(listener, *to, (number * 2 + caller) as u64 + 7, done));
            }
        }
        for round in 0..2 {
            let barrier = Barrier::new(nodes.len());
            std::thread::scope(|scope| {
                for (number, node) in nodes.iter_mut().enumerate() {
                    let (barrier, job) = (&barrier, &job);
                    scope.spawn(move || {
                        if round > 0 {
                            barrier.wait();
                            std::thread::sleep(Duration::from_millis(20 * number as u64));
                            let memory = &node.memory;
                            node.net.empty(|| memory.reset(job, of_rank.len())).unwrap();
                        }
                        let node = &*node;
                        std::thread::scope(|scope| {
                            for rank in (0..of_rank.len()).filter(|rank| of_rank[*rank] as usize == number) {
                                let place = (&of_rank[..], &all[..], rank);
                                scope.spawn(move || play(node, place, count, protocol.logs(), round));
                            }
                        });
                    });
                }
            });
        }
    });
    for node in &nodes {
        assert_eq!(node.net.answers(), [], "nothing failed");
    }
}

#[test]
fn what_ranks_of_other_nodes_have_read_is_used_again() {
    ranks_talk(Protocol::None, false, 60);
}

#[test]
fn messages_arrive_as_they_were_although_connections_break() {
    ranks_talk(Protocol::None, true, 60);
}

#[test]
fn logs_arrive_although_connections_break_and_are_forgotten_behind_images() {
    ranks_talk(Protocol::Pessimistic, true, 60);
}

/// Two nodes with one rank each.
fn two(protocol: Protocol) -> Vec<Node> {
    let (real, addresses) = listeners(2);
    nodes(protocol, &[0, 1], real, &addresses).1
}

#[test]
fn what_has_been_flushed_is_there() {
    let mut nodes = two(Protocol::Blocking);
    for round in 1..50 {
        let memory = &nodes[0].net.shared.memory;
        let at = memory.layout.arena(0) + memory.layout.announced() + 8;
        memory.word(at).store(round, Ordering::Release);
        Sender::new(memory, &nodes[0].net.shared.bell, 0, false, 0).ring(1);
        flush(&mut nodes[0].net);
        assert_eq!(nodes[1].net.shared.memory.word(at).load(Ordering::Acquire), round);
    }
}

#[test]
fn ranks_that_are_spawned_talk_to_all_also_where_they_are_not_known_yet() {
    let (real, addresses) = listeners(3);
    let (_, mut nodes) = nodes(Protocol::Pessimistic, &[0, 1], real, &addresses);
    let of_rank = [0, 1, 2, 0];
    let plan = Nodes {
        copies: Vec::new(),
        is_encrypted: false,
        own: 0,
        epoch: 3,
        mesh: addresses.iter().map(|address| vec![*address]).collect(),
        of_rank: of_rank.to_vec(),
    };
    // Nodes that know one another begin; node 1 learns of it later.
    let known = |node: &mut Node, own| {
        let plan = Nodes { own, ..plan.clone() };
        node.net.grow(&plan, || node.memory.set_ranks(4)).unwrap();
    };
    known(&mut nodes[0], 0);
    known(&mut nodes[2], 2);
    let all: Vec<_> = nodes.iter().map(|node| node.net.shared.clone()).collect();
    let (first, last) = nodes.split_at_mut(1);
    let (middle, last) = last.split_at_mut(1);
    std::thread::scope(|scope| {
        let (of_rank, all) = (&of_rank[..], &all[..]);
        for (node, rank) in [(&first[0], 0), (&first[0], 3), (&last[0], 2)] {
            scope.spawn(move || play(node, (of_rank, all, rank), 40, true, 5));
        }
        std::thread::sleep(Duration::from_millis(100));
        known(&mut middle[0], 1);
        let middle = &middle[0];
        scope.spawn(move || play(middle, (of_rank, all, 1), 40, true, 5));
    });
    for node in &nodes {
        assert_eq!(node.net.answers(), [], "nothing failed");
    }
}

#[test]
fn a_spawned_rank_may_ring_before_its_mover_knows_of_it() {
    let (real, addresses) = listeners(2);
    let (_, mut nodes) = nodes(Protocol::Pessimistic, &[0, 1], real, &addresses);
    nodes[0].memory.set_ranks(3).unwrap();
    let shared = nodes[0].net.shared.clone();
    let mut sender = Sender::new(&shared.memory, &shared.bell, 2, true, 5);
    assert!(sender.append(1, 0, ranks::length(2, 1, 0, 5)));
    flush(&mut nodes[0].net);
    for (own, node) in (0..).zip(&mut nodes) {
        let plan = Nodes {
            copies: Vec::new(),
            is_encrypted: false,
            own,
            epoch: 3,
            mesh: addresses.iter().map(|address| vec![*address]).collect(),
            of_rank: vec![0, 1, 0],
        };
        node.net.grow(&plan, || node.memory.set_ranks(3)).unwrap();
    }
    flush(&mut nodes[0].net);
    let mut receiver = Receiver::new(&nodes[1].net.shared.memory, 2, 1);
    receiver.receive(5).expect("it has come");
}

#[test]
fn a_log_that_is_cut_off_is_cut_off_everywhere() {
    for kept in [0, 1, 6, 19, 20] {
        let mut nodes = two(Protocol::Auto);
        let shared = nodes[0].net.shared.clone();
        let copy = nodes[1].net.shared.memory.clone();
        let mut sender = Sender::new(&shared.memory, &shared.bell, 0, true, 1);
        let mut places = Vec::new();
        let length = |number| ranks::length(0, 1, number, 1) % 60_000;
        for number in 0..20 {
            places.push(sender.place(1));
            assert!(sender.append(1, number, length(number)));
        }
        places.push(sender.place(1));
        flush(&mut nodes[0].net);
        let mut receiver = Receiver::new(&copy, 0, 1);
        receiver.length = Some(length);
        (0..20).for_each(|_| _ = receiver.receive(1).expect("all are there"));
        // It goes on from the middle, with the same messages of other content.
        sender.cut_off(1, places[kept as usize].clone());
        nodes[0].net.cut_off(0);
        flush(&mut nodes[0].net);
        let mut receiver = Receiver::new(&copy, 0, 1);
        receiver.length = Some(length);
        (0..kept).for_each(|_| _ = receiver.receive(1).expect("what is before the cut"));
        assert_eq!(receiver.receive(1), None, "{kept} are left");
        sender.seed = 9;
        for number in kept..20 {
            assert!(sender.append(1, number, length(number)));
        }
        flush(&mut nodes[0].net);
        (kept..20).for_each(|_| _ = receiver.receive(9).expect("what is behind it"));
    }
}

/// A memory whose rank 0 sends to ranks of other nodes, and a bell.
fn sending() -> (Arc<Mapped>, EventFd) {
    let memory = NodeMemory::create(&job(), 3).unwrap();
    let memory = Arc::new(Mapped::new(memory.file(), memory.layout).unwrap());
    for rank in [1, 2] {
        let word = memory.control32(rank, control::SLEEPING);
        word.store(ELSEWHERE, Ordering::SeqCst);
    }
    (memory, EventFd::from_flags(FLAGS).unwrap())
}

#[test]
fn a_log_whose_beginning_is_used_again_while_it_is_walked_is_not_cut_off() {
    let (memory, bell) = sending();
    let mut sender = Sender::new(&memory, &bell, 0, true, 1);
    let mut receiver = Receiver::new(&memory, 0, 1);
    receiver.length = Some(|_| 50_000);
    for number in 0..4 {
        assert!(sender.append(1, number, 50_000));
        receiver.receive(1).expect("it has been sent");
    }
    let end = receiver.tail();
    let word = || {
        let at = memory.layout.arena(0) + Table::Channel.place(&memory.layout, 1);
        memory.word(at).load(Ordering::Acquire)
    };
    let mut looks = 0;
    let head = || {
        let head = word();
        looks += 1;
        if looks == 1 {
            // The receiver has an image: the sender gives the segment back, and takes it for another channel.
            let cursors = memory.layout.arena(1) + memory.layout.cursors(0);
            memory.word(cursors).store(receiver.serial(), Ordering::Release);
            memory.arena32(1, arena::OLDEST_IMAGE).store(1, Ordering::Release);
            assert!(sender.append(2, 0, 5_000));
            assert_ne!(word(), head);
        }
        head
    };
    let settled = end.settle(&memory, 0, head).unwrap();
    assert_eq!(settled, (word(), end));
}

#[test]
fn a_node_that_is_called_and_says_nothing_is_waited_for_asleep() {
    let (memory, _) = sending();
    let (_listeners, doors) = listeners(1);
    let outgoing = Outgoing::new(memory.clone(), LOGS_ALONE, vec![1], vec![0], 3);
    let mirror = Mirror::new(memory, &[1], &[0], 3);
    let mut with = Conversation::new(0, outgoing, mirror);
    let mut peer = Peer::new(doors, true);
    let own = Identity {
        node: 1,
        key: [7; 32],
        tls: None,
    };
    peer.call(&mut with, &own, [1; 32]);
    assert!(peer.wants_room(), "until the connection stands");
    let until = Instant::now() + PATIENCE;
    while peer.wants_room() {
        peer.pump(&mut with).unwrap();
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(peer.link().is_some());
}

#[test]
fn what_became_0_while_there_was_no_connection_is_told() {
    let (memory, _) = sending();
    let mut outgoing = Outgoing::new(memory.clone(), LOGS_ALONE, vec![0], vec![1, 2], 3);
    let oldest = memory.arena32(0, arena::OLDEST_IMAGE);
    for value in [2, 0] {
        oldest.store(value, Ordering::SeqCst);
        outgoing.open();
        let mut sent = Vec::new();
        outgoing.fill(&mut sent, usize::MAX).unwrap();
        let mut expected = Vec::new();
        Frame::Epoch { number: 3 }.encode(&mut expected);
        Frame::Tell {
            rank: 0,
            table: Table::Oldest,
            index: 0,
            value: value.into(),
        }
        .encode(&mut expected);
        assert_eq!(sent, expected, "the oldest image is {value}");
        outgoing.close();
    }
}

#[test]
fn new_ranks_are_told_what_was_written_before_they_were_there() {
    let (memory, _) = sending();
    let habits = Habits {
        counts: true,
        ..LOGS_ALONE
    };
    let mut outgoing = Outgoing::new(memory.clone(), habits, vec![0], vec![1], 3);
    let count = memory.layout.arena(0) + Table::Consumed.place(&memory.layout, 2);
    memory.word(count).store(1, Ordering::SeqCst);
    outgoing.open();
    let mut sent = Vec::new();
    outgoing.fill(&mut sent, usize::MAX).unwrap();
    sent.clear();
    outgoing.grow(&[0], &[1, 2]);
    outgoing.fill(&mut sent, usize::MAX).unwrap();
    let mut expected = Vec::new();
    Frame::Tell {
        rank: 0,
        table: Table::Consumed,
        index: 2,
        value: 1,
    }
    .encode(&mut expected);
    assert_eq!(sent, expected);
}

#[test]
fn pages_that_no_rank_has_touched_get_no_memory() {
    let mut nodes = two(Protocol::Pessimistic);
    flush(&mut nodes[0].net);
    for node in &nodes {
        let blocks = std::os::unix::fs::MetadataExt::blocks(&node.memory.file().metadata().unwrap());
        assert!(blocks * 512 < 128 << 10, "{blocks} blocks");
    }
}

/// Accepts one connection, and passes it on to `to` until one side ends it.
fn pass(door: &TcpListener, to: SocketAddr) {
    let (near, _) = door.accept().unwrap();
    let far = TcpStream::connect(to).unwrap();
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(&near, &far), (&far, &near)] {
            scope.spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = [from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)];
            });
        }
    });
}

/// Others have the port of node 0 before it does.
#[test]
fn strangers_in_the_place_of_a_node_end_nothing() {
    let (mut real, addresses) = listeners(4);
    let (wrong_listener, door) = (real.pop().unwrap(), real.pop().unwrap());
    let doors = [addresses[2], addresses[1]];
    let (right, mut nodes) = nodes(Protocol::Pessimistic, &[0, 1], real, &doors);
    let plan = Nodes {
        copies: Vec::new(),
        is_encrypted: false,
        own: 0,
        epoch: 3,
        mesh: doors.iter().map(|door| vec![*door]).collect(),
        of_rank: vec![0, 1],
    };
    let memory = NodeMemory::create(&job(), 2).unwrap();
    let wrong = Job { key: [8; 32], ..right };
    let other = Net::start(&wrong, &plan, &memory, wrong_listener).unwrap();
    let places = [addresses[3], addresses[0]];
    std::thread::spawn(move || {
        for words in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
            let (mut caller, _) = door.accept().unwrap();
            caller.write_all(words).unwrap();
            // The caller ends this connection, if it has been told anything.
            while !words.is_empty() && caller.read(&mut [0; 256]).is_ok_and(|length| length > 0) {}
        }
        // Another says nothing and hears all. Then it is a node of another job, and at last the right one.
        let _silent = door.accept().unwrap();
        places.into_iter().for_each(|place| pass(&door, place));
    });
    flush(&mut nodes[1].net);
    assert_eq!((nodes[0].net.answers(), other.answers()), (vec![], vec![]));
}

#[test]
fn what_is_of_an_older_epoch_is_nothing_wherever_ranks_are_now() {
    let memory = NodeMemory::create(&job(), 4).unwrap();
    let memory = Arc::new(Mapped::new(memory.file(), memory.layout).unwrap());
    let mut mirror = Mirror::new(memory.clone(), &[0, 1], &[2], 4);
    let word = Frame::Tell {
        rank: 3,
        table: Table::Consumed,
        index: 0,
        value: 7,
    };
    assert!(mirror.take(&word).is_err(), "no rank of that node");
    mirror.hear_epoch(3);
    assert_eq!(mirror.take(&word), Ok(()));
    let at = |rank| memory.layout.arena(rank) + memory.layout.consumed();
    assert_eq!(memory.word(at(3)).load(Ordering::Relaxed), 0);
    mirror.hear_epoch(4);
    let word = Frame::Tell {
        rank: 2,
        table: Table::Consumed,
        index: 0,
        value: 7,
    };
    assert_eq!(mirror.take(&word), Ok(()));
    assert_eq!(memory.word(at(2)).load(Ordering::Relaxed), 7);
}

/// Of node `own`: rank 0 is on node 0, rank 1 on node 1. `lacks`: ranks that came here from a lost node.
fn mesh_of(own: u32, epoch: u64, lacks: Vec<u32>) -> Mesh {
    let memory = NodeMemory::create(&job(), 2).unwrap();
    let memory = Arc::new(Mapped::new(memory.file(), memory.layout).unwrap());
    let mut mesh = Mesh::new(memory, LOGS_ALONE, (Ends::new(), lacks, Vec::new()), None);
    mesh.grow(&Nodes {
        copies: Vec::new(),
        is_encrypted: false,
        own,
        epoch,
        mesh: vec![vec![SocketAddr::from(([127, 0, 0, 1], 1))]; 2],
        of_rank: vec![0, 1],
    });
    mesh
}

/// The other node, in this epoch, says that it lacks what is here of the logs of rank 0. Whether it gets it.
fn gives_back(mesh: &mut Mesh, epoch: u64) -> bool {
    let with = &mut mesh.conversations[0];
    let mut out = Vec::new();
    assert!(with.begin(None, &mut out).unwrap());
    for frame in [Frame::Epoch { number: epoch }, Frame::Lacks { source: 0 }, Frame::Begin] {
        with.take(&frame, &mut Vec::new()).unwrap();
    }
    out.clear();
    with.fill(&mut out, 1 << 20).unwrap();
    let mut rest = &out[..];
    while let Some((frame, used)) = Frame::decode(rest).unwrap() {
        if matches!(frame, Frame::Returned { .. }) {
            return true;
        }
        rest = &rest[used..];
    }
    false
}

#[test]
fn where_all_is_emptied_nobody_lacks_logs_any_more() {
    let mut mesh = mesh_of(0, 1, vec![0]);
    assert!(mesh.conversations[0].lacks(0));
    mesh.obey(&Command::Epoch(2));
    assert!(!mesh.conversations[0].lacks(0));
    assert_eq!(mesh.answers().unwrap(), [], "nothing has come back");
    // The other node may hear so before, or later.
    assert!(gives_back(&mut mesh_of(1, 1, Vec::new()), 1));
    let mut other = mesh_of(1, 1, Vec::new());
    other.obey(&Command::Epoch(2));
    assert!(!gives_back(&mut other, 1));
}

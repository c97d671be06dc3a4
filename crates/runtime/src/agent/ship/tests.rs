mod parity;

use super::*;
use crate::stream::Tls;
use crate::sys::PATIENCE;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, SndBuf};

use resurgo_wire::replica::{Offer, What};

use resurgo_store::own_directory::{Directory, Trust};

const KEY: [u8; 32] = [9; 32];
/// What the kernel may hold of a connection to an agent, at either end, before it doubles it for its own needs. Its
/// own choice is up to 6 MiB, and differs from machine to machine.
const BUFFER: usize = 64 << 10;
/// The position of the hole, and the length of the head, in a test's file.
const HEAD: u64 = 16;

/// A file with a hole, recognised by the sum of all of it. The hole holds the data beside the file.
const HOLED: Contents = Contents {
    parts: |file| {
        let hole = hole(file)?;
        Ok(vec![0..hole.start, hole.end..file.metadata()?.len()])
    },
    is_it,
    is_whole: is_it,
};

fn hole(file: &File) -> io::Result<std::ops::Range<u64>> {
    let mut head = [0; HEAD as usize];
    file.read_exact_at(&mut head, 0)?;
    let [start, end] = [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap()));
    Ok(start..end)
}

fn is_it(file: File, offer: &Offer) -> Result<(), String> {
    match digest(&file) == offer.digest {
        true => Ok(()),
        false => Err("it is another file".to_string()),
    }
}

fn digest(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let hole = hole(file).unwrap_or(0..0);
    if let Some(hole) = bytes.get_mut(hole.start as usize..hole.end as usize) {
        hole.fill(0);
    }
    blake3::hash(&bytes).to_hex().to_string()
}

/// xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn image(rank: u32, number: u64) -> What {
    What::Image { rank, number }
}

fn has_come(rank: u32, number: u64) -> Event {
    let what = image(rank, number);
    Event::Holds { what }
}

/// A new file of `length` bytes, as an image of a rank; a third of it is a hole.
fn parcel(rank: u32, number: u64, length: u64) -> Parcel {
    let file = File::from(memfd_create(c"image", MFdFlags::MFD_CLOEXEC).unwrap());
    let mut random = Random(number * 1000 + u64::from(rank) + 1);
    let words = length / 8;
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes[..8].copy_from_slice(&(length / 3).to_le_bytes());
    bytes[8..16].copy_from_slice(&(length / 3 * 2).to_le_bytes());
    file.write_all_at(&bytes, 0).unwrap();
    let offer = Offer {
        what: What::Image { rank, number },
        length: bytes.len() as u64,
        beside: 0,
        digest: digest(&file),
        about: vec![1, 2, 3],
    };
    Parcel {
        offer,
        file,
        beside: None,
    }
}

/// The same with so many bytes beside: the last ones of the file, from the end on.
fn with_beside(mut parcel: Parcel, count: u64) -> Parcel {
    parcel.offer.beside = count;
    let file = File::from(memfd_create(c"beside", MFdFlags::MFD_CLOEXEC).unwrap());
    file.write_all_at(&last(&parcel.file, count), 0).unwrap();
    parcel.beside = Some(file);
    parcel
}

fn last(file: &File, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize];
    let from = file.metadata().unwrap().len() - count;
    file.read_exact_at(&mut bytes, from).unwrap();
    bytes.reverse();
    bytes
}

/// A directory of its own.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("resurgo-ship-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn shelf(&self) -> Shelf {
        Shelf::Directory(Arc::new(Directory::make(&self.0, Trust::Groups).unwrap()))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The agent of a node, and where it is found.
fn agent(node: u32, shelf: Shelf) -> (Shipping, SocketAddr) {
    agent_with(node, KEY, shelf)
}

fn agent_with(node: u32, key: [u8; 32], shelf: Shelf) -> (Shipping, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    setsockopt(&listener, RcvBuf, &BUFFER).unwrap();
    (
        Shipping::start(node, key, Some(Tls::of(&key).unwrap()), listener, shelf, HOLED, None).unwrap(),
        address,
    )
}

/// The next events, as many as expected.
fn events(shipping: &Shipping, count: usize) -> Vec<Event> {
    let begun = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{all:?}");
        let mut ready = [nix::poll::PollFd::new(shipping.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut ready, 100u16).unwrap();
        all.extend(shipping.events());
    }
    all
}

/// The node has a complete copy.
fn assert_has(shipping: &Shipping, offer: &Offer) {
    let held = shipping.keeper().held(offer.what).expect("it is held");
    assert_eq!(held.offer, *offer);
    let file = shipping.keeper().open(&held).unwrap();
    let beside = shipping.keeper().beside(offer.what).unwrap();
    assert!(beside == last(&file, offer.beside), "what comes beside");
    is_it(file, offer).unwrap();
}

/// What a proxy does to the next connection, after so many bytes to the server.
#[derive(Clone, Copy)]
enum Blow {
    Cut(u64),
    /// The rest passes.
    Flip(u64),
}

/// Stands between two agents.
struct Proxy {
    address: SocketAddr,
    /// Bytes passed to the server.
    passed: Arc<AtomicU64>,
    blows: Arc<Mutex<Vec<Blow>>>,
}

impl Proxy {
    fn to(server: SocketAddr, blows: Vec<Blow>) -> Proxy {
        Proxy::up_to(u64::MAX, server, blows)
    }

    /// The same; after so many bytes to the server nothing passes on further connections.
    fn up_to(most: u64, server: SocketAddr, blows: Vec<Blow>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap(),
            passed: Arc::default(),
            blows: Arc::new(Mutex::new(blows)),
        };
        let (passed, blows) = (proxy.passed.clone(), proxy.blows.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                setsockopt(&server, SndBuf, &BUFFER).unwrap();
                let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || pass(back, forth, None, &AtomicU64::new(0)));
                let blow = match passed.load(Ordering::Relaxed) < most {
                    true => blows.lock().unwrap().pop(),
                    false => Some(Blow::Cut(0)),
                };
                let passed = passed.clone();
                std::thread::spawn(move || pass(client, server, blow, &passed));
            }
        });
        proxy
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, blow: Option<Blow>, passed: &AtomicU64) {
    let mut bytes = vec![0; 64 << 10];
    let mut sum = 0;
    while let Ok(came @ 1..) = from.read(&mut bytes) {
        let (mut end, next) = (came, sum + came as u64);
        match blow {
            Some(Blow::Cut(at)) if (sum..next).contains(&at) => end = (at - sum) as usize,
            Some(Blow::Flip(at)) if (sum..next).contains(&at) => bytes[(at - sum) as usize] ^= 16,
            _ => {}
        }
        if to.write_all(&bytes[..end]).is_err() || end < came {
            break;
        }
        passed.fetch_add(end as u64, Ordering::Relaxed);
        sum = next;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn images_come_whole_over_connections_that_are_cut_and_go_on_where_they_were() {
    let mut random = Random(11);
    for round in 0..4 {
        let place = Place::new();
        let shelf = if round % 2 == 0 {
            place.shelf()
        } else {
            Shelf::in_memory()
        };
        let (partner, address) = agent(1, shelf);
        let (mut own, _) = agent(0, Shelf::in_memory());
        let cuts: Vec<Blow> = (0..8).map(|_| Blow::Cut(random.below(1_000_000))).collect();
        let proxy = Proxy::to(address, cuts);
        let made = |rank: u32| with_beside(parcel(rank, 4, 6_000_000), u64::from(rank) * 300_000);
        let sent: Vec<Offer> = (0..3).map(|rank| made(rank).offer).collect();
        for rank in 0..3 {
            own.ship(made(rank), 1, &[proxy.address]).unwrap();
        }
        assert_eq!(events(&partner, 3), [0, 1, 2].map(|rank| has_come(rank, 4)));
        sent.iter().for_each(|offer| assert_has(&partner, offer));
        assert_eq!(own.events(), []);
        assert!(proxy.blows.lock().unwrap().is_empty(), "all cuts were made");
        // 12 MB without the holes. For each cut connection the sender repeats at most a part, and what was on its way.
        let passed = proxy.passed.load(Ordering::Relaxed);
        assert!(passed < 12_000_000 + 8 * 600_000, "{passed} bytes");
        if round % 2 == 0 {
            let names = place.names();
            let images = ["rank-0.image-4", "rank-1.image-4", "rank-2.image-4"];
            let mut expected = [images.as_slice(), &["rank-1.log-4", "rank-2.log-4"]].concat();
            expected.sort();
            assert_eq!(names, expected);
        }
    }
}

#[test]
fn a_copy_is_sent_on_by_a_node_that_has_it() {
    let place = Place::new();
    let (mut first, at_first) = agent(1, place.shelf());
    let (second, at_second) = agent(2, Shelf::in_memory());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let sent = with_beside(parcel(3, 7, 4_000_000), 70_000);
    let offer = sent.offer.clone();
    own.ship(sent, 1, &[at_first]).unwrap();
    let holds = has_come(3, 7);
    assert_eq!(events(&first, 1), std::slice::from_ref(&holds));
    drop(own);
    let copy = first.keeper().parcel(image(3, 7)).unwrap();
    first.ship(copy, 2, &[at_second]).unwrap();
    assert_eq!(events(&second, 1), [holds]);
    [&first, &second].into_iter().for_each(|node| assert_has(node, &offer));
    assert!(first.keeper().parcel(image(3, 8)).is_err());
    // The thread that sends to a lost node ends, and may begin again.
    first.keep(|node| node != 2);
    first.ship(parcel(0, 8, 1_000_000), 2, &[at_second]).unwrap();
    assert_eq!(events(&second, 1), [has_come(0, 8)]);
}

#[test]
fn damage_on_the_way_is_noticed_where_it_happens() {
    let mut random = Random(12);
    let (partner, address) = agent(1, Shelf::in_memory());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let flips = (0..8).map(|_| Blow::Flip(random.below(1_000_000)));
    // Also in the handshake and the offer. (A receiver that gets too large a length waits for the rest of the frame.)
    let early = [10, 40, 70, 100, 110, 130, 150, 200, 230, 236, 240].map(Blow::Flip);
    let proxy = Proxy::to(address, flips.chain(early).collect());
    let (first, second) = (parcel(0, 1, 9_000_000), parcel(0, 2, 9_000_000));
    let offers = [first.offer.clone(), second.offer.clone()];
    own.ship(first, 1, &[proxy.address]).unwrap();
    own.ship(second, 1, &[proxy.address]).unwrap();
    let expected = [1, 2].map(|number| has_come(0, number));
    assert_eq!(events(&partner, 2), expected);
    offers.iter().for_each(|offer| assert_has(&partner, offer));
    assert_eq!(own.events(), []);
}

#[test]
fn an_image_that_is_not_what_was_offered_is_refused() {
    let place = Place::new();
    let (partner, address) = agent(1, place.shelf());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let damaged = parcel(3, 5, 900_000);
    damaged.file.write_all_at(&[1], 800_000).unwrap();
    own.ship(damaged, 1, &[address]).unwrap();
    let refused = Event::Refused {
        what: What::Image { rank: 3, number: 5 },
        node: 1,
        reason: "it is another file".to_string(),
    };
    assert_eq!(events(&own, 1), [refused]);
    assert_eq!(place.names(), [""; 0]);
    // The next one comes all the same.
    let next = parcel(3, 6, 900_000);
    let offer = next.offer.clone();
    own.ship(next, 1, &[address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(3, 6)]);
    assert_has(&partner, &offer);
}

/// The limit applies to the whole process, so another process runs this.
#[test]
fn a_partner_without_room_says_so() {
    const ALONE: &str = "RESURGO_TEST_FILE_SIZE";
    if std::env::var_os(ALONE).is_none() {
        let name = "agent::ship::tests::a_partner_without_room_says_so";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("was refused"),
            "{output:?}"
        );
        return;
    }
    let place = Place::new();
    let (partner, address) = agent(1, place.shelf());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let (large, small) = (parcel(0, 1, 8_000_000), parcel(0, 2, 900_000));
    let offer = small.offer.clone();
    setrlimit(Resource::RLIMIT_FSIZE, 1_000_000, 1_000_000).unwrap();
    own.ship(large, 1, &[address]).unwrap();
    let refused = events(&own, 1);
    let Event::Refused {
        what: What::Image { rank: 0, number: 1 },
        node: 1,
        reason,
    } = &refused[0]
    else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("File too large"), "{reason}");
    assert_eq!(place.names(), [""; 0]);
    own.ship(small, 1, &[address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(0, 2)]);
    assert_has(&partner, &offer);
    println!("was refused");
}

#[test]
fn a_stranger_without_the_key_neither_brings_nor_gets_anything_nor_keeps_others_out() {
    let (partner, address) = agent(1, Shelf::in_memory());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let (mut stranger, _) = agent_with(0, [8; 32], Shelf::in_memory());
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    stranger.ship(parcel(0, 1, 900_000), 1, &[address]).unwrap();
    let sent = parcel(1, 1, 900_000);
    let offer = sent.offer.clone();
    own.ship(sent, 1, &[address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(1, 1)]);
    assert_has(&partner, &offer);
    stranger.fetch(1, 1, &[address]).unwrap();
    let answer = events(&stranger, 1);
    let Event::Fetched { result: Err(why), .. } = &answer[0] else {
        panic!("{answer:?}");
    };
    assert!(why.contains("this is not the key of this job"), "{why}");
    assert_eq!(partner.keeper().held(image(0, 1)), None);
    // A frame of a peer, without a proof.
    let mut rude = TcpStream::connect(address).unwrap();
    let want = resurgo_wire::replica::Frame::Want {
        what: What::Image { rank: 1, number: 1 },
        checked: false,
    };
    rude.write_all(&want.encode(None)).unwrap();
    let mut heard = Vec::new();
    let _ = rude.read_to_end(&mut heard);
    assert!(heard.len() < 16, "an alert of TLS is all that it hears: {heard:?}");
    drop(silent);
}

#[test]
fn nothing_is_sent_to_who_has_the_same_directory() {
    let place = Place::new();
    let (mut partner, address) = agent(1, place.shelf());
    let (mut own, own_address) = agent(0, place.shelf());
    let proxy = Proxy::to(address, Vec::new());
    let sent = parcel(2, 7, 9_000_000);
    let offer = sent.offer.clone();
    let mut bytes = vec![0; offer.length as usize];
    sent.file.read_exact_at(&mut bytes, 0).unwrap();
    std::fs::write(place.0.join("rank-2.image-7"), bytes).unwrap();
    own.ship(sent, 1, &[proxy.address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(2, 7)]);
    assert_has(&partner, &offer);
    assert!(proxy.passed.load(Ordering::Relaxed) < 2000);
    // The partner does not own the file, and must not remove it.
    partner.keeper().forget(image(2, 7));
    assert_eq!(place.names(), ["rank-2.image-7"]);
    // Nor the data beside it.
    let with_more = with_beside(parcel(2, 8, 90_000), 7);
    let offer = with_more.offer.clone();
    let mut bytes = vec![0; 90_000];
    with_more.file.read_exact_at(&mut bytes, 0).unwrap();
    std::fs::write(place.0.join("rank-2.image-8"), bytes).unwrap();
    std::fs::write(place.0.join("rank-2.log-8"), last(&with_more.file, 7)).unwrap();
    own.ship(with_more, 1, &[proxy.address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(2, 8)]);
    assert_has(&partner, &offer);
    assert!(proxy.passed.load(Ordering::Relaxed) < 4000);
    partner.keeper().forget(image(2, 8));
    assert_eq!(place.names(), ["rank-2.image-7", "rank-2.image-8", "rank-2.log-8"]);
    // A different file of that name is no reason to send nothing.
    std::fs::write(place.0.join("rank-1.image-7"), [7; 100]).unwrap();
    let other = parcel(1, 7, 90_000);
    let offer = other.offer.clone();
    partner.ship(other, 0, &[own_address]).unwrap();
    assert_eq!(events(&own, 1), [has_come(1, 7)]);
    assert_has(&own, &offer);
}

#[test]
fn a_third_node_gets_an_image_from_the_partner() {
    let (partner, address) = agent(1, Shelf::in_memory());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let place = Place::new();
    let (third, _) = agent(2, place.shelf());
    let sent = with_beside(parcel(0, 3, 9_000_000), 1000);
    let offer = sent.offer.clone();
    own.ship(sent, 1, &[address]).unwrap();
    events(&partner, 1);
    drop(own);
    let mut random = Random(13);
    let cuts = (0..3).map(|_| Blow::Cut(random.below(100) + 300)).collect();
    let proxy = Proxy::to(address, cuts);
    third.fetch(0, 3, &[proxy.address]).unwrap();
    let fetched = |number, result| Event::Fetched {
        rank: 0,
        number,
        result,
    };
    assert_eq!(events(&third, 1), [fetched(3, Ok(()))]);
    assert_has(&third, &offer);
    third.fetch(0, 4, &[address]).unwrap();
    let none = "the copy of the image cannot be read: entity not found";
    assert_eq!(events(&third, 1), [fetched(4, Err(none.to_string()))]);
    // A file that becomes the rank's own image is not a copy any more.
    assert!(third.keeper().take(0, 3).is_some());
    third.keeper().forget(image(0, 3));
    assert_eq!(place.names(), ["rank-0.image-3", "rank-0.log-3"]);
}

#[test]
fn what_is_given_up_or_forgotten_is_gone() {
    let place = Place::new();
    let (partner, address) = agent(1, place.shelf());
    let (mut own, _) = agent(0, Shelf::in_memory());
    // It comes in small pieces, and not to its end.
    let proxy = Proxy::up_to(1_000_000, address, vec![Blow::Cut(400_000); 1000]);
    own.ship(parcel(0, 1, 90_000_000), 1, &[proxy.address]).unwrap();
    let end = Instant::now() + PATIENCE;
    while proxy.passed.load(Ordering::Relaxed) < 1_000_000 {
        assert!(Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    own.give_up(|what| what == image(0, 1));
    own.ship(parcel(0, 2, 900_000), 1, &[address]).unwrap();
    assert_eq!(events(&partner, 1), [has_come(0, 2)]);
    assert_eq!(place.names(), ["rank-0.image-2"], "what came in part has gone, too");
    partner.keeper().forget(image(0, 2));
    assert_eq!(place.names(), [""; 0]);
    assert_eq!(partner.keeper().held(image(0, 2)), None);
}

#[test]
fn what_cannot_come_to_one_partner_goes_to_another_one_older_images_first() {
    let (_taken, nowhere) = crate::sys::nobodys_address();
    let (partner, address) = agent(2, Shelf::in_memory());
    let (mut own, _) = agent(0, Shelf::in_memory());
    let images = [(0, 2), (1, 1), (0, 1)];
    for (rank, number) in images {
        own.ship(parcel(rank, number, 90_000), 1, &[nowhere]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    images
        .iter()
        .for_each(|(rank, number)| own.give_up(|what| what == image(*rank, *number)));
    for (rank, number) in images {
        own.ship(parcel(rank, number, 90_000), 2, &[nowhere, address]).unwrap();
    }
    let mut expected = images.map(|(rank, number)| has_come(rank, number)).to_vec();
    for event in events(&partner, 3) {
        let place = expected.iter().position(|one| *one == event);
        expected.remove(place.expect("each comes once"));
    }
}

#[test]
fn a_copy_in_memory_that_has_no_room_is_refused_before_it_comes() {
    let keeper = Keeper::new(1, Shelf::in_memory(), HOLED, piece::PIECES);
    let offer = Offer {
        length: 1 << 50,
        ..parcel(0, 1, 900).offer
    };
    let refused = keeper.begin(offer).err().expect("nobody has so much");
    assert!(refused.contains("1073741824 MiB of memory"), "{refused}");
}

use super::*;

fn envelope(total: usize) -> Envelope {
    Envelope {
        kind: 1,
        flags: 0,
        tag: 5,
        data: 0,
        total: total as u64,
    }
}

fn bytes(ssn: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 7 + ssn * 31) as u8).collect()
}

fn put(store: &mut Store, life: u64, ssn: u64, bytes: Vec<u8>) -> Result<Option<Differs>, Trouble> {
    store.put(
        (1, life),
        0,
        ssn,
        envelope(bytes.len()),
        &[(3, 5), (0, 0), (0, 0), (0, 0)],
        bytes,
    )
}

fn spill() -> File {
    crate::sys::open_nameless(std::env::temp_dir().as_os_str()).unwrap()
}

#[test]
fn what_is_spilled_is_served_and_compared_as_what_is_not() {
    let mut store = Store::new(3 << 20, Some(spill()));
    store.admit(0, 1, 0).unwrap();
    store.admit(1, 1, 0).unwrap();
    let length = |ssn: u64| (ssn as usize * 77_777) % 500_000;
    for ssn in 1..=60 {
        assert_eq!(put(&mut store, 1, ssn, bytes(ssn, length(ssn))).unwrap(), None);
        assert!(store.in_memory <= 3 << 20);
    }
    let held = store.held();
    assert!(
        held.spilled_bytes > 5 << 20 && held.most_memory_bytes <= 3 << 20,
        "{held:?}"
    );
    assert_eq!(held.spill_file_bytes, held.spilled_bytes);
    for life in 1..3 {
        store.admit(0, 1 + life, 0).unwrap();
        for ssn in 1..=60 {
            let next = store.next(0).unwrap();
            assert_eq!(
                (next.rclock, next.source, next.envelope),
                (ssn, 1, envelope(length(ssn)))
            );
            if life == 1 {
                store.report(0, 1 + life, ssn, 1).unwrap();
            }
            let mut got = Vec::new();
            let half = length(ssn) / 2;
            store.read(0, ssn, 0, half, &mut got).unwrap();
            store.read(0, ssn, half as u64, length(ssn) - half, &mut got).unwrap();
            assert_eq!(got, bytes(ssn, length(ssn)));
        }
        assert_eq!(store.next(0), None);
    }
    store.admit(1, 2, 0).unwrap();
    for ssn in 1..=60 {
        assert_eq!(put(&mut store, 2, ssn, bytes(ssn, length(ssn))).unwrap(), None);
        let mut other = bytes(ssn, length(ssn));
        if let Some(last) = other.last_mut() {
            *last ^= 1;
            let differs = put(&mut store, 2, ssn, other).unwrap().unwrap();
            assert_eq!(differs.difference, Difference::Content(length(ssn) as u64 - 1));
        }
    }
    let mut padded = bytes(1, length(1));
    padded[3] ^= 1;
    padded[4] ^= 1;
    assert_eq!(put(&mut store, 2, 1, padded).unwrap(), None);
    let longer = put(&mut store, 2, 1, bytes(1, length(1) + 1)).unwrap().unwrap();
    assert_eq!(longer.difference, Difference::Length);
}

#[test]
fn what_is_forgotten_makes_room_in_memory_and_in_the_file() {
    let mut store = Store::new(3 << 20, Some(spill()));
    for rank in 0..3 {
        store.admit(rank, 1, 0).unwrap();
    }
    // Some messages are for a rank that forgets nothing.
    for ssn in 1..=20 {
        let kept = store.put((1, 1), 2, ssn, envelope(50_000), &Unset::default(), bytes(ssn, 50_000));
        assert_eq!(kept.unwrap(), None);
    }
    let mut largest = 0;
    for ssn in 1..=600 {
        assert_eq!(put(&mut store, 1, ssn, bytes(ssn, 100_000)).unwrap(), None);
        assert_eq!(store.next(0).unwrap().rclock, ssn);
        store.report(0, 1, ssn, 1).unwrap();
        if ssn % 20 == 0 {
            store.forget(0, 1, ssn.saturating_sub(50)).unwrap();
        }
        largest = largest.max(store.held().spill_file_bytes);
    }
    let held = store.held();
    assert_eq!((held.bytes, held.forgotten_bytes), (61_000_000, 55_000_000));
    assert!(
        held.most_bytes < 9_000_000 && held.most_memory_bytes <= 3 << 20,
        "{held:?}"
    );
    assert!(held.spilled_bytes > 30_000_000 && largest < 12_000_000, "{held:?}");
    // The rest is unchanged.
    store.admit(0, 2, 550).unwrap();
    for (rank, first, last, length) in [(0, 551, 600, 100_000), (2, 1, 20, 50_000)] {
        for rclock in first..=last {
            assert_eq!(store.next(rank).unwrap().rclock, rclock);
            let mut got = Vec::new();
            store.read(rank, rclock, 0, length, &mut got).unwrap();
            assert_eq!(got, bytes(rclock, length));
        }
    }
    // All of it: the file and the memory are free.
    (0..50).for_each(|more| store.report(0, 2, 551 + more, 1).unwrap_or(()));
    store.forget(0, 2, 600).unwrap();
    assert!(store.in_memory <= 1_000_000, "{}", store.in_memory);
    assert!(matches!(
        store.read(0, 600, 0, 10, &mut Vec::new()),
        Err(Trouble::Refused(_))
    ));
    // If a life sends again what is forgotten, there is nothing to compare it with.
    store.admit(1, 2, 0).unwrap();
    assert_eq!(put(&mut store, 2, 1, bytes(9, 9)).unwrap(), None);
}

#[test]
fn a_memory_that_fills_says_so_now_and_then() {
    let mut store = Store::new(32_000, None);
    (0..2).for_each(|rank| drop(store.admit(rank, 1, 0).unwrap()));
    let mut told = Vec::new();
    for ssn in 1..=24 {
        put(&mut store, 1, ssn, bytes(ssn, 1000)).unwrap();
        told.extend(store.fills().then_some(ssn));
    }
    assert_eq!(told, [17, 19, 21, 23]);
    for ssn in 1..=6 {
        store.next(0).unwrap();
        store.report(0, 1, ssn, 1).unwrap();
    }
    store.forget(0, 1, 6).unwrap();
    assert!(!store.fills());
    put(&mut store, 1, 25, bytes(25, 1000)).unwrap();
    assert!(!store.fills());
    put(&mut store, 1, 26, bytes(26, 1000)).unwrap();
    assert!(store.fills(), "2,000 bytes more than it had forgotten to");
    let mut spilling = Store::new(32_000, Some(spill()));
    (0..2).for_each(|rank| drop(spilling.admit(rank, 1, 0).unwrap()));
    put(&mut spilling, 1, 1, bytes(1, 30_000)).unwrap();
    assert!(!spilling.fills());
}

#[test]
fn a_rank_is_served_so_much_more_than_it_has_reported() {
    let mut store = Store::new(64 << 20, None);
    (0..2).for_each(|rank| drop(store.admit(rank, 1, 0).unwrap()));
    for ssn in 1..=12 {
        put(&mut store, 1, ssn, bytes(ssn, 1 << 20)).unwrap();
    }
    let served = |store: &mut Store| std::iter::from_fn(|| store.next(0)).map(|next| next.rclock).last();
    assert_eq!(served(&mut store), Some(8));
    assert!(!store.has_more(0));
    store.report(0, 1, 1, 1).unwrap();
    assert_eq!(served(&mut store), Some(9));
    // Reported messages do not count in a later life.
    store.admit(0, 2, 0).unwrap();
    assert_eq!(served(&mut store), Some(9));
    (2..=9).for_each(|rclock| store.report(0, 2, rclock, 1).unwrap());
    assert_eq!(served(&mut store), Some(12));
    assert!(!store.has_more(0));
}

#[test]
fn a_full_memory_without_a_file_says_what_to_do() {
    let mut store = Store::new(1 << 20, None);
    store.admit(1, 1, 0).unwrap();
    assert!(put(&mut store, 1, 1, bytes(1, 1 << 20)).is_ok());
    let Err(Trouble::Fatal(reason)) = put(&mut store, 1, 2, bytes(2, 1)) else {
        panic!("there is no room");
    };
    assert!(reason.contains("1 MiB") && reason.contains("--spill-dir"), "{reason}");
}

#[test]
fn a_full_disk_is_told() {
    let full = File::options().write(true).read(true).open("/dev/full").unwrap();
    let mut store = Store::new(1 << 20, Some(full));
    store.admit(1, 1, 0).unwrap();
    put(&mut store, 1, 1, bytes(1, 1 << 20)).unwrap();
    let Err(Trouble::Fatal(reason)) = put(&mut store, 1, 2, bytes(2, 1)) else {
        panic!("there is no room");
    };
    assert!(reason.contains("No space left"), "{reason}");
}

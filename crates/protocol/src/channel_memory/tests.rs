use super::*;

#[test]
fn messages_come_in_the_order_of_their_arrival_and_again_from_the_first() {
    let mut memory = ChannelMemory::default();
    for rank in 0..3 {
        assert_eq!(memory.admit(rank, 1, 0).map(|admission| admission.reported), Ok(0));
    }
    assert_eq!(memory.put(1, 1, 0, 1, 'a'), Ok(Put::New { rclock: 1 }));
    assert_eq!(memory.put(2, 1, 0, 1, 'b'), Ok(Put::New { rclock: 2 }));
    assert_eq!(memory.put(1, 1, 0, 2, 'c'), Ok(Put::New { rclock: 3 }));
    let take = |memory: &mut ChannelMemory<char>| {
        let served = memory.serve(0)?;
        Some((served.rclock, served.source, served.polls, *served.content))
    };
    assert_eq!(take(&mut memory), Some((1, 1, None, 'a')));
    assert_eq!(take(&mut memory), Some((2, 2, None, 'b')));
    assert_eq!(memory.report(0, 1, 1, 7), Ok(()));
    assert_eq!(memory.admit(0, 2, 0).map(|admission| admission.reported), Ok(1));
    assert_eq!(take(&mut memory), Some((1, 1, Some(7), 'a')));
    assert_eq!(take(&mut memory), Some((2, 2, None, 'b')));
    assert_eq!(take(&mut memory), Some((3, 1, None, 'c')));
    assert_eq!(take(&mut memory), None);
    assert!(!memory.has_more(0));
}

#[test]
fn what_is_sent_again_is_compared_and_what_is_missing_or_of_a_dead_life_is_refused() {
    let mut memory = ChannelMemory::default();
    memory.admit(1, 1, 0).unwrap();
    memory.put(1, 1, 0, 1, 'a').unwrap();
    let admission = memory.admit(1, 2, 0).unwrap();
    assert_eq!(admission.received, [(0, 1)]);
    let superseded = Error::Superseded {
        rank: 1,
        incarnation: 1,
        admitted: 2,
    };
    assert_eq!(memory.put(1, 1, 0, 2, 'b'), Err(superseded));
    assert_eq!(memory.report(1, 1, 1, 1), Err(superseded));
    assert_eq!(memory.admit(1, 1, 0), Err(superseded));
    let again = Put::Again {
        before: &mut 'a',
        now: 'x',
    };
    assert_eq!(memory.put(1, 2, 0, 1, 'x'), Ok(again));
    assert!(matches!(
        memory.put(1, 2, 0, 3, 'c'),
        Err(Error::Gap { received: 1, .. })
    ));
    memory.admit(0, 1, 0).unwrap();
    assert!(matches!(
        memory.report(0, 1, 2, 1),
        Err(Error::Report { reported: 0, .. })
    ));
    memory.report(0, 1, 1, 1).unwrap();
    assert!(matches!(
        memory.report(0, 1, 2, 1),
        Err(Error::Report { messages: 1, .. })
    ));
}

#[test]
fn a_send_to_another_memory_waits_until_the_own_has_all_reports() {
    let mut departures = Departures::new(0, 3);
    assert!(departures.may_leave(1, 3));
    assert!(departures.may_leave(0, 4));
    assert!(!departures.may_leave(1, 4));
    assert!(!departures.may_leave(2, 5));
    departures.acknowledge(4);
    assert_eq!(departures.release(), Some(1));
    assert_eq!(departures.release(), None);
    departures.acknowledge(5);
    assert_eq!(departures.release(), Some(2));
    assert_eq!(departures.held(), 0);
}

#[test]
fn what_an_image_covers_is_forgotten_and_a_life_begins_behind_it() {
    let mut memory = ChannelMemory::default();
    for rank in 0..3 {
        memory.admit(rank, 1, 0).unwrap();
    }
    for (ssn, text) in (1..).zip('a'..='d') {
        memory.put(1, 1, 0, ssn, text).unwrap();
        memory.put(2, 1, 0, ssn, text.to_ascii_uppercase()).unwrap();
    }
    for rclock in 1..=6 {
        memory.serve(0).unwrap();
        memory.report(0, 1, rclock, 10 * rclock).unwrap();
    }
    let forget = |memory: &mut ChannelMemory<char>, life, rclock| {
        memory
            .forget(0, life, rclock)
            .map(|contents| contents.collect::<String>())
    };
    assert_eq!(forget(&mut memory, 1, 3).as_deref(), Ok("aAb"));
    assert_eq!(
        forget(&mut memory, 1, 2).as_deref(),
        Ok(""),
        "they are forgotten already"
    );
    assert!(matches!(
        forget(&mut memory, 1, 7),
        Err(Error::Forget {
            reported: 6,
            served: 6,
            ..
        })
    ));
    assert_eq!((memory.forgotten(0), memory.kept(0), memory.reported(0)), (3, 5, 6));
    assert_eq!(memory.delivery(0, 3), None);
    assert_eq!(memory.delivery(0, 4), Some(Recorded { source: 2, polls: 40 }));
    // Lives whose images are older than the held messages, or newer than the reports.
    assert!(matches!(memory.admit(0, 2, 2), Err(Error::Begin { forgotten: 3, .. })));
    assert!(matches!(memory.admit(0, 2, 7), Err(Error::Begin { reported: 6, .. })));
    assert_eq!(memory.admit(0, 2, 5).map(|admission| admission.reported), Ok(6));
    let take = |memory: &mut ChannelMemory<char>| {
        let served = memory.serve(0)?;
        Some((served.rclock, served.source, served.polls, *served.content))
    };
    assert!(matches!(
        forget(&mut memory, 2, 6),
        Err(Error::Forget { served: 5, .. })
    ));
    assert_eq!(take(&mut memory), Some((6, 2, Some(60), 'C')));
    assert_eq!(take(&mut memory), Some((7, 1, None, 'd')));
    // Repeated messages: forgotten, still held, and new.
    let admission = memory.admit(1, 2, 0).unwrap();
    assert_eq!(admission.received, [(0, 4)]);
    assert_eq!(memory.put(1, 2, 0, 1, 'x'), Ok(Put::Forgotten));
    assert_eq!(memory.put(1, 2, 0, 2, 'x'), Ok(Put::Forgotten));
    let again = Put::Again {
        before: &mut 'c',
        now: 'c',
    };
    assert_eq!(memory.put(1, 2, 0, 3, 'c'), Ok(again));
    assert_eq!(memory.put(1, 2, 0, 5, 'e'), Ok(Put::New { rclock: 9 }));
}

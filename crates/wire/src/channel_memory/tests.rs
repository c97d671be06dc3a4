use super::*;
use crate::handshake::{Bytes32, Hello};

const ENVELOPE: Envelope = Envelope {
    kind: 1,
    flags: 1,
    tag: 7,
    data: 9,
    total: 5,
};

fn frames() -> Vec<Frame<'static>> {
    vec![
        Frame::Handshake(Word::Hello(Hello {
            rank: 1,
            size: 4,
            incarnation: 2,
            nonce: [3; 32],
        })),
        Frame::Handshake(Word::Challenge {
            epoch: 0,
            nonce: [1; 32],
            proof: [2; 32],
        }),
        Frame::Handshake(Word::Proof {
            proof: [9; 32],
            claim: Some(1 << 33),
        }),
        Frame::Welcome(Admission {
            reported: 7,
            received: vec![(0, 1), (3, 1 << 40)],
        }),
        Frame::refused("no".into()),
        Frame::Message {
            destination: 2,
            ssn: 8,
            envelope: ENVELOPE,
            unset: [(1, 2), (3, 4), (0, 0), (0, 0)],
            bytes: b"hello",
        },
        Frame::Piece { bytes: b"more" },
        Frame::Report { rclock: 4, polls: 5 },
        Frame::Reported { rclock: 4 },
        Frame::Served {
            source: 2,
            polls: None,
            envelope: ENVELOPE,
            bytes: b"",
        },
        Frame::Served {
            source: 2,
            polls: Some(3),
            envelope: ENVELOPE,
            bytes: b"hello",
        },
        Frame::Sync,
        Frame::Synced,
        Frame::Differs {
            destination: 1,
            ssn: 3,
            difference: Difference::Content(77),
            before: ENVELOPE,
            now: ENVELOPE,
        },
        Frame::Forget { rclock: 1 << 35 },
    ]
}

#[test]
fn frames_come_out_as_they_went_in_however_they_are_cut() {
    let mut bytes = Vec::new();
    frames().iter().for_each(|frame| frame.encode(&mut bytes));
    let mut input = Input::default();
    let mut got = 0;
    for part in bytes.chunks(3) {
        input.room(3)[..part.len()].copy_from_slice(part);
        input.came(part.len());
        while let Some(frame) = input.frame().unwrap() {
            assert_eq!(frame, frames()[got]);
            got += 1;
        }
    }
    assert_eq!(got, frames().len());
}

#[test]
fn every_damaged_length_is_an_error_or_not_whole() {
    for frame in frames() {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..cut]).unwrap(), None);
        }
        // A frame shorter than its fields.
        if let Some(shorter) = (bytes.len() - 4)
            .checked_sub(2)
            .filter(|_| !matches!(frame, Frame::Handshake(Word::Refused { .. })))
        {
            bytes[..4].copy_from_slice(&(shorter as u32).to_le_bytes());
            let decoded = Frame::decode(&bytes);
            assert!(decoded.is_err() || decoded.is_ok_and(|decoded| decoded.is_some_and(|(other, _)| other != frame)));
        }
    }
    assert!(matches!(
        Frame::decode(&[255, 255, 255, 255, 6]),
        Err(Error::FrameTooLong { .. })
    ));
    assert!(matches!(
        Frame::decode(&[9, 0, 0, 0, b'G']),
        Err(Error::UnknownKind { .. })
    ));
}

fn shake(rank_key: Bytes32, memory_key: Bytes32) -> Result<Option<Life>, Error> {
    let identity = Identity {
        rank: 1,
        size: 4,
        incarnation: 2,
        delivered: 6,
        key: rank_key,
        nonce: [1; 32],
    };
    let (mut to_memory, mut to_rank) = (Output::default(), Output::default());
    let greeting = Greeting::begin(identity, &mut to_memory);
    let mut door = Doorkeeper::new(4, memory_key, [2; 32]);
    let take = |output: &mut Output| {
        let mut input = Input::default();
        let bytes = output.bytes().to_vec();
        output.sent(bytes.len());
        input.room(bytes.len())[..bytes.len()].copy_from_slice(&bytes);
        input.came(bytes.len());
        input
    };
    let mut input = take(&mut to_memory);
    assert_eq!(door.hear(input.frame()?.unwrap(), &mut to_rank)?, None);
    let mut input = take(&mut to_rank);
    assert_eq!(greeting.hear(input.frame()?.unwrap(), &mut to_memory)?, None);
    let mut input = take(&mut to_memory);
    door.hear(input.frame()?.unwrap(), &mut to_rank)
}

#[test]
fn only_who_holds_the_key_comes_in() {
    let life = Life {
        rank: 1,
        incarnation: 2,
        delivered: 6,
    };
    assert_eq!(shake([5; 32], [5; 32]), Ok(Some(life)));
    assert_eq!(shake([5; 32], [6; 32]), Err(Error::NotAuthentic));
    // A rank is not let in before it has proved itself.
    let mut door = Doorkeeper::new(4, [5; 32], [2; 32]);
    let early = door.hear(Frame::Report { rclock: 1, polls: 1 }, &mut Output::default());
    assert_eq!(early, Err(Error::Unexpected { frame: "Report" }));
}

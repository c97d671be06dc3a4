use super::*;
use crate::frame::MAX_REASON;
use crate::handshake::Hello;

const KEY: [u8; 32] = [7; 32];

fn identity() -> Identity {
    Identity {
        rank: 2,
        size: 4,
        incarnation: 3,
        key: KEY,
        nonce: [1; 32],
        acknowledged: Some(9),
        epoch: 4,
    }
}

fn records(count: usize) -> Vec<Recorded> {
    (0..count)
        .map(|at| Recorded {
            source: (at % 4) as u32,
            polls: at as u64 * 3,
        })
        .collect()
}

fn deliveries(count: usize) -> Vec<Delivery> {
    (7..)
        .step_by(2)
        .zip(records(count))
        .map(|(antecedent, record)| (record, antecedent))
        .collect()
}

fn carry(client: &mut Client, side: &mut LoggerSide) {
    let bytes = client.output().to_vec();
    client.sent(bytes.len());
    // Byte by byte: no frame may need to come in one piece.
    bytes.chunks(1).for_each(|byte| side.receive(byte));
    let bytes = side.output().to_vec();
    side.sent(bytes.len());
    client.receive(&bytes);
}

/// The two have proved who they are; the logger is of `epoch`. The rank tells it of what was `acknowledged`.
fn greeted(epoch: u64, acknowledged: Option<u64>) -> (Client, LoggerSide) {
    let (mut client, mut side) = (Client::new(identity()), LoggerSide::new(4, epoch, KEY, [2; 32]));
    carry(&mut client, &mut side);
    assert_eq!(side.next_request(), Ok(None));
    carry(&mut client, &mut side);
    assert_eq!(client.next_event(), Ok(None));
    carry(&mut client, &mut side);
    let admit = Request::Admit {
        rank: 2,
        incarnation: 3,
        acknowledged,
    };
    assert_eq!(side.next_request(), Ok(Some(admit)));
    (client, side)
}

fn admitted() -> (Client, LoggerSide) {
    let (mut client, mut side) = greeted(5, Some(9));
    side.welcome(11);
    carry(&mut client, &mut side);
    assert_eq!(
        client.next_event(),
        Ok(Some(ClientEvent::Admitted { epoch: 5, stored: 11 }))
    );
    (client, side)
}

/// A logger that has lost nothing must not think that it lost what never came to it: it would refuse the rank's next
/// life.
#[test]
fn only_another_logger_is_told_what_was_acknowledged() {
    for (epoch, acknowledged) in [(4, None), (5, Some(9))] {
        greeted(epoch, acknowledged);
    }
}

#[test]
fn every_frame_survives_encoding() {
    let frames = [
        Frame::Handshake(Word::Hello(Hello {
            rank: 1,
            size: 2,
            incarnation: u64::MAX,
            nonce: [9; 32],
        })),
        Frame::Handshake(Word::Challenge {
            epoch: 4,
            nonce: [1; 32],
            proof: [2; 32],
        }),
        Frame::Handshake(Word::Proof {
            proof: [3; 32],
            claim: None,
        }),
        Frame::Handshake(Word::Proof {
            proof: [3; 32],
            claim: Some(0),
        }),
        Frame::Welcome { stored: 8 },
        Frame::Handshake(Word::Refused {
            reason: "no room".into(),
        }),
        Frame::Log {
            first_rclock: 1,
            deliveries: deliveries(MAX_RECORDS),
        },
        Frame::Log {
            first_rclock: 1,
            deliveries: vec![],
        },
        Frame::Clocks {
            clocks: vec![(3, 9), (Rank::MAX, u64::MAX)],
        },
        Frame::Ack { rclock: 77 },
        Frame::Query { above_rclock: 0 },
        Frame::Answer {
            first_rclock: 5,
            more: true,
            records: records(3),
        },
        Frame::NotWhole { stored: 2 },
        Frame::Forget { rclock: 6 },
    ];
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    let mut rest = &bytes[..];
    for frame in &frames {
        let (decoded, used) = Frame::decode(rest).unwrap().unwrap();
        assert_eq!(&decoded, frame);
        for short in 0..used.min(200) {
            assert_eq!(
                Frame::decode(&rest[..short]),
                Ok(None),
                "{} cut at {short}",
                frame.name()
            );
        }
        rest = &rest[used..];
    }
    assert!(rest.is_empty());
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let mut bytes = Vec::new();
    Frame::Handshake(Word::Refused {
        reason: "é".repeat(MAX_REASON),
    })
    .encode(&mut bytes);
    let (frame, _) = Frame::decode(&bytes).unwrap().unwrap();
    assert_eq!(
        frame,
        Frame::Handshake(Word::Refused {
            reason: "é".repeat(MAX_REASON / 2)
        })
    );
}

#[test]
fn deliveries_go_there_and_back() {
    let (mut client, mut side) = admitted();
    let all = records(MAX_RECORDS + 10);
    let logged = deliveries(MAX_RECORDS + 10);
    client.log(12, &logged);
    client.clocks(&[(1, 5)]);
    client.query(11);
    carry(&mut client, &mut side);
    let (first, second) = all.split_at(MAX_RECORDS);
    assert_eq!(
        side.next_request(),
        Ok(Some(Request::Log {
            first_rclock: 12,
            deliveries: logged[..MAX_RECORDS].to_vec()
        }))
    );
    let rclock = 12 + MAX_RECORDS as u64;
    assert_eq!(
        side.next_request(),
        Ok(Some(Request::Log {
            first_rclock: rclock,
            deliveries: logged[MAX_RECORDS..].to_vec()
        }))
    );
    let clocks = vec![(1, 5)];
    assert_eq!(side.next_request(), Ok(Some(Request::Clocks { clocks })));
    assert_eq!(side.next_request(), Ok(Some(Request::Query { above_rclock: 11 })));
    side.ack(rclock + 9);
    side.clocks(&[(0, 1), (2, 3)]);
    side.answer(12, true, first.to_vec());
    side.answer(rclock, false, second.to_vec());
    carry(&mut client, &mut side);
    assert_eq!(client.next_event(), Ok(Some(ClientEvent::Ack { rclock: rclock + 9 })));
    let clocks = vec![(0, 1), (2, 3)];
    assert_eq!(client.next_event(), Ok(Some(ClientEvent::Clocks { clocks })));
    for (first_rclock, more, part) in [(12, true, first), (rclock, false, second)] {
        let answer = ClientEvent::Answer {
            first_rclock,
            more,
            records: part.to_vec(),
        };
        assert_eq!(client.next_event(), Ok(Some(answer)));
    }
    assert_eq!(client.next_event(), Ok(None));
}

#[test]
fn an_answer_with_a_gap_is_refused() {
    let (mut client, mut side) = admitted();
    client.query(0);
    side.answer(2, false, records(1));
    carry(&mut client, &mut side);
    assert_eq!(client.next_event(), Err(Error::Unexpected { frame: "Answer" }));
}

#[test]
fn neither_side_trusts_another_key() {
    let (mut client, mut side) = (Client::new(identity()), LoggerSide::new(4, 1, [8; 32], [2; 32]));
    carry(&mut client, &mut side);
    side.next_request().unwrap();
    carry(&mut client, &mut side);
    assert_eq!(client.next_event(), Err(Error::NotAuthentic));

    // A rank that goes on anyway.
    let mut bytes = Vec::new();
    Frame::Handshake(Word::Proof {
        proof: [0; 32],
        claim: Some(1000),
    })
    .encode(&mut bytes);
    side.receive(&bytes);
    assert_eq!(side.next_request(), Err(Error::NotAuthentic));
}

#[test]
fn nothing_is_taken_before_the_proof() {
    for frame in [
        Frame::Query { above_rclock: 0 },
        Frame::Log {
            first_rclock: 1,
            deliveries: vec![],
        },
        Frame::Clocks { clocks: vec![] },
        Frame::Forget { rclock: 1 },
    ] {
        let mut side = LoggerSide::new(4, 1, KEY, [2; 32]);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        side.receive(&bytes);
        assert_eq!(side.next_request(), Err(Error::Unexpected { frame: frame.name() }));
    }
}

#[test]
fn strangers_are_told_early() {
    assert!(matches!(
        Frame::decode(b"GET / HTTP/1.1\r\n"),
        Err(Error::FrameTooLong { .. })
    ));
    assert_eq!(Frame::decode(&[9, 0, 0, 0, 99]), Err(Error::UnknownKind { kind: 99 }));
    let mut bytes = Vec::new();
    Frame::Handshake(Word::Hello(Hello {
        rank: 0,
        size: 1,
        incarnation: 1,
        nonce: [0; 32],
    }))
    .encode(&mut bytes);
    bytes[9] = 200;
    assert_eq!(Frame::decode(&bytes), Err(Error::Version { theirs: 200 }));
    bytes[5] = b'x';
    assert_eq!(Frame::decode(&bytes), Err(Error::NotResurgo));
}

/// Damaged frames give an error or another frame, never a panic, and never a frame larger than its bytes.
#[test]
fn damage_is_survived() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..20_000 {
        let frame = match round % 4 {
            0 => Frame::Log {
                first_rclock: draw(),
                deliveries: deliveries((draw() % 9) as usize),
            },
            1 => Frame::Answer {
                first_rclock: draw(),
                more: true,
                records: records((draw() % 9) as usize),
            },
            2 => Frame::Handshake(Word::Proof {
                proof: [4; 32],
                claim: Some(draw()),
            }),
            _ => Frame::Handshake(Word::Hello(Hello {
                rank: 1,
                size: 2,
                incarnation: draw(),
                nonce: [5; 32],
            })),
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        for _ in 0..1 + draw() % 3 {
            let at = draw() as usize % bytes.len();
            bytes[at] = draw() as u8;
        }
        bytes.truncate(1 + draw() as usize % bytes.len());
        if let Ok(Some((_, used))) = Frame::decode(&bytes) {
            assert!(used <= bytes.len());
        }
        let mut side = LoggerSide::new(2, 1, KEY, [0; 32]);
        side.receive(&bytes);
        while let Ok(Some(_)) = side.next_request() {}
        let mut client = Client::new(identity());
        client.receive(&bytes);
        while let Ok(Some(_)) = client.next_event() {}
    }
}

use std::io::Read;

use resurgo_protocol::Recorded;
use resurgo_wire::event_logger::{Client, ClientEvent, Error as WireError, Identity};

use super::*;
use crate::reception::HANDSHAKE;
use crate::sys::PATIENCE;

pub(crate) const KEY: [u8; 32] = [42; 32];
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(crate) struct Peer {
    client: Client,
    pub(crate) stream: TcpStream,
}

pub(crate) fn identity(rank: Rank, incarnation: u64, acknowledged: Option<u64>) -> Identity {
    Identity {
        rank,
        size: 4,
        incarnation,
        key: KEY,
        nonce: [rank as u8; 32],
        acknowledged,
        epoch: 0,
    }
}

impl Peer {
    fn new(server: &EventLoggerServer, identity: Identity) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            client: Client::new(identity),
            stream,
        }
    }

    pub(crate) fn admitted(server: &EventLoggerServer, identity: Identity) -> Self {
        let mut peer = Self::new(server, identity);
        let epoch = server.epoch();
        assert!(matches!(peer.event(), Ok(ClientEvent::Admitted { epoch: e, .. }) if e == epoch));
        peer
    }

    fn push(&mut self) -> io::Result<()> {
        let bytes = self.client.output().len();
        self.stream.write_all(self.client.output())?;
        self.client.sent(bytes);
        Ok(())
    }

    /// The next event; if the connection ends, the I/O error as text.
    fn event(&mut self) -> Result<ClientEvent, String> {
        let mut bytes = [0; 5000];
        loop {
            if let Some(event) = self.client.next_event().map_err(|error| error.to_string())? {
                return Ok(event);
            }
            self.push().map_err(|error| error.to_string())?;
            match self.stream.read(&mut bytes).map_err(|error| error.to_string())? {
                0 => return Err("closed".into()),
                came => self.client.receive(&bytes[..came]),
            }
        }
    }

    pub(crate) fn log(&mut self, first_rclock: u64, records: &[Recorded]) -> Result<u64, String> {
        let deliveries: Vec<Delivery> = records.iter().map(|record| (*record, 0)).collect();
        self.client.log(first_rclock, &deliveries);
        let last = first_rclock + records.len() as u64 - 1;
        loop {
            match self.event()? {
                ClientEvent::Ack { rclock } if rclock >= last => return Ok(rclock),
                ClientEvent::Ack { .. } | ClientEvent::Clocks { .. } => {}
                other => panic!("{other:?} instead of an acknowledgement"),
            }
        }
    }

    pub(crate) fn query(&mut self) -> Result<Vec<Recorded>, ClientEvent> {
        self.client.query(0);
        let mut all = Vec::new();
        loop {
            match self.event().unwrap() {
                ClientEvent::Answer { records, more, .. } => {
                    all.extend(records);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(other),
            }
        }
    }
}

pub(crate) fn records(count: u64) -> Vec<Recorded> {
    (0..count)
        .map(|at| Recorded {
            source: (at % 4) as Rank,
            polls: at,
        })
        .collect()
}

#[test]
fn deliveries_are_acknowledged_and_given_to_the_next_life() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let all = records(10_000);
    let mut first = Peer::admitted(&server, identity(1, 1, Some(0)));
    assert_eq!(first.log(1, &all[..1]), Ok(1));
    assert_eq!(first.log(2, &all[1..]), Ok(10_000));
    assert_eq!(first.log(9_000, &all[8_999..]), Ok(10_000));
    drop(first);
    let mut second = Peer::admitted(&server, identity(1, 2, None));
    assert_eq!(second.query(), Ok(all));
}

#[test]
fn a_later_life_replaces_an_earlier_one() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let mut first = Peer::admitted(&server, identity(0, 1, Some(0)));
    first.log(1, &records(3)).unwrap();
    let mut second = Peer::admitted(&server, identity(0, 2, None));
    assert!(first.log(4, &records(1)).is_err());
    assert_eq!(second.query(), Ok(records(3)));
    let refused = Peer::new(&server, identity(0, 1, Some(3))).event().unwrap_err();
    assert!(refused.contains("replaced by incarnation 2"), "{refused}");
    assert_eq!(second.log(4, &records(2)), Ok(5));
}

#[test]
fn another_history_is_refused() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let mut peer = Peer::admitted(&server, identity(0, 1, Some(0)));
    peer.log(1, &records(3)).unwrap();
    let refused = peer
        .log(1, &records(3).into_iter().rev().collect::<Vec<_>>())
        .unwrap_err();
    assert!(refused.contains("not the same history"), "{refused}");
}

#[test]
fn strangers_are_cut_and_disturb_nobody() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let mut good = Peer::admitted(&server, identity(0, 1, Some(0)));
    let mut answer = Vec::new();
    for junk in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[255; 100],
        &[1, 0, 0, 0, 6],
        &[3, 0, 0, 0, 1, 2, 3],
    ] {
        let mut stranger = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stranger.write_all(junk).unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        answer.clear();
        let end = Instant::now() + PATIENCE;
        while let Err(error) = stranger.read_to_end(&mut answer) {
            assert!(
                error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end,
                "{error}"
            );
            // Who has said too little is cut off when its time is over.
            server.clock.put_forward(HANDSHAKE);
        }
        assert!(answer.len() < 200, "{answer:?}");
    }
    let mut thief = Peer::new(
        &server,
        Identity {
            key: [0; 32],
            incarnation: 99,
            ..identity(0, 1, Some(0))
        },
    );
    assert_eq!(thief.event().unwrap_err(), WireError::NotAuthentic.to_string());
    let mut outsider = Peer::new(
        &server,
        Identity {
            size: 5,
            ..identity(4, 1, Some(0))
        },
    );
    assert!(outsider.event().is_err());
    assert_eq!(good.log(1, &records(5)), Ok(5));
}

#[test]
fn a_replacement_knows_a_history_only_when_it_has_been_told() {
    let server = EventLoggerServer::start_replacement(ANY_PORT, 4, KEY, 2).unwrap();
    let mut lost = Peer::admitted(&server, identity(0, 2, None));
    assert_eq!(lost.query(), Err(ClientEvent::NotWhole { stored: 0 }));
    let mut alive = Peer::admitted(&server, identity(1, 1, Some(7)));
    alive.log(1, &records(6)).unwrap();
    assert_eq!(alive.query(), Err(ClientEvent::NotWhole { stored: 6 }));
    alive.log(7, &records(7)[6..]).unwrap();
    let mut next = Peer::admitted(&server, identity(1, 2, None));
    assert_eq!(next.query(), Ok(records(7)));
}

#[test]
fn a_port_in_use_is_said_clearly() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let error = EventLoggerServer::start(SocketAddr::new(ANY_PORT.ip(), server.port()), 4, KEY).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains(&format!("cannot listen on 127.0.0.1:{}", server.port())),
        "{said}"
    );
    assert!(said.to_lowercase().contains("in use"), "{said}");
}

#[test]
fn stopping_cuts_connections_and_frees_the_port() {
    let (_taken, address) = crate::sys::address_to_share();
    let server = EventLoggerServer::start(address, 4, KEY).unwrap();
    let mut idle = Peer::admitted(&server, identity(0, 1, Some(0)));
    let _silent = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    // The clock stands still: it waits for none of them.
    server.stop();
    assert!(idle.event().is_err());
    assert!(TcpStream::connect(address).is_err());
    EventLoggerServer::start(address, 4, KEY).unwrap();
}

#[test]
fn ranks_log_side_by_side() {
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut peer = Peer::admitted(server, identity(rank, 1, Some(0)));
                let all = records(500);
                for (at, record) in all.iter().enumerate() {
                    peer.log(at as u64 + 1, std::slice::from_ref(record)).unwrap();
                }
                assert_eq!(peer.query(), Ok(all));
            });
        }
    });
}

//! Agents of other nodes that connect: they bring images, or ask for some.

use std::collections::HashMap;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::control::MOST_NODES;
use resurgo_wire::handshake::Server;
use resurgo_wire::replica::{Frame, Offer, What};

use super::pace;
use super::party::{Event, Party, spawn};
use super::sealed::Sealed;
use super::transfer::{give, not_due, take};
use crate::reception::{Admitted, Framing, Guest, Reception, Stranger};

/// Places at the door for agents, beside those for strangers.
const PLACES: usize = 64;
/// How often the door looks for slow strangers.
const LOOK: u16 = 200;

/// While it exists, agents can connect.
pub struct Door {
    _open: PipeWriter,
}

impl Door {
    pub fn open(listener: TcpListener, party: Party) -> io::Result<Door> {
        let (closed, open) = io::pipe()?;
        listener.set_nonblocking(true)?;
        spawn(move || let_in(&listener, &closed, &party))?;
        Ok(Door { _open: open })
    }
}

const FRAMING: Framing = Framing {
    read: |said| match Frame::decode(said, None).map_err(io::Error::other)? {
        None => Ok(None),
        Some((Frame::Handshake(word), used)) => Ok(Some((word, used))),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
    },
    write: |word| Frame::Handshake(word).encode(None),
};

/// By node: the connection that brings images, and the lock of its thread.
type Bringing = Arc<Mutex<HashMap<u32, (TcpStream, Arc<Mutex<()>>)>>>;

/// The thread that accepts connections.
fn let_in(listener: &TcpListener, closed: &PipeReader, party: &Party) {
    let mut reception = Reception::new(PLACES).encrypted(party.tls.clone());
    let bringing = Bringing::default();
    loop {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut ready = vec![readable(closed.as_fd()), readable(listener.as_fd())];
        ready.extend(
            reception
                .iter()
                .map(|(_, stranger): (_, &Stranger)| stranger.line().poll(false)),
        );
        let patience = match reception.has_deadlines() {
            true => PollTimeout::from(LOOK),
            false => PollTimeout::NONE,
        };
        let _ = poll(&mut ready, patience);
        let is_closed = ready[0].any() == Some(true);
        if is_closed {
            return;
        }
        reception.accept(listener, |line| {
            Stranger::new(line, Server::Replica, MOST_NODES, party.key)
        });
        for id in reception.ids() {
            let Some(mut stranger) = reception.take(id) else {
                continue;
            };
            match stranger.hear(&FRAMING) {
                Ok(None) => reception.put_back(id, stranger),
                Ok(Some(visitor)) => {
                    let (stranger, node) = (stranger.admitted(), visitor.rank);
                    let (party, bringing) = (party.clone(), bringing.clone());
                    // Without a thread the connection is cut off, and the agent tries again.
                    let _ = spawn(move || {
                        let _ = serve(stranger, node, &party, &bringing);
                    });
                }
                Err(_) => {}
            }
        }
        reception.cut_late();
    }
}

/// The thread of one connection.
fn serve(stranger: Admitted, node: u32, party: &Party, bringing: &Bringing) -> io::Result<()> {
    let mut stream = Sealed::admitted(stranger, &party.key)?;
    match stream.receive()? {
        Frame::Want { what, checked } => hand_out(&mut stream, what, checked, party),
        Frame::Offer(offer) => {
            let own = Arc::new(Mutex::new(()));
            let busy = own.lock().unwrap_or_else(PoisonError::into_inner);
            let former = {
                let mut all = bringing.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert(node, (stream.stream().try_clone()?, own.clone()))
            };
            if let Some((former, its)) = former {
                // The former connection's thread keeps its partial file when it ends.
                let _ = former.shutdown(Shutdown::Both);
                drop(its.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let result = bring(&mut stream, offer, party);
            drop(busy);
            result
        }
        frame => Err(not_due(&frame)),
    }
}

/// One image after the other.
fn bring(stream: &mut Sealed, first: Offer, party: &Party) -> io::Result<()> {
    let mut offer = first;
    loop {
        let what = offer.what;
        if take(stream, offer, &party.keeper)?.is_err() {
            // The refused agent connects again.
            return Ok(());
        }
        party.events.say(Event::Holds { what });
        offer = match stream.receive()? {
            Frame::Offer(offer) => offer,
            frame => return Err(not_due(&frame)),
        };
    }
}

/// The other agent waits for the file.
fn hand_out(stream: &mut Sealed, what: What, checked: bool, party: &Party) -> io::Result<()> {
    let keeper = &party.keeper;
    let defect = match checked {
        true => keeper.check(what).err(),
        false => None,
    };
    let parcel = match defect {
        Some(defect) => Err(defect),
        None => keeper.parcel(what).map_err(|error| error.to_string()),
    };
    match parcel {
        Ok(parcel) => {
            pace::set_free(stream.stream());
            give(stream, &parcel, keeper.contents(what).parts, |_| true).map(|_| ())
        }
        Err(error) => {
            let reason = match what {
                What::Image { .. } => format!("the copy of the image cannot be read: {error}"),
                What::Piece { .. } => format!("the piece cannot be read: {error}"),
            };
            stream.send(&Frame::No { reason })
        }
    }
}

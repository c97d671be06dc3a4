//! Sends files to one partner, and fetches images.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use resurgo_wire::replica::{Frame, What};

use super::keeper::Parcel;
use super::pace;
use super::party::{Event, Party, spawn};
use super::sealed::Sealed;
use super::transfer::{Outcome, give, not_due, take};

/// Pauses before a connection is made again: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How often a fetch tries again.
const ATTEMPTS: u32 = 8;

/// By number: all of a wave goes before the next.
type Queue = BTreeMap<(u64, What), Arc<Parcel>>;

fn turn(what: What) -> (u64, What) {
    (what.number(), what)
}

#[derive(Default)]
struct State {
    queue: Queue,
    addresses: Vec<SocketAddr>,
    /// Of the present connection, for cutting it.
    stream: Option<TcpStream>,
    /// Nothing is sent until the node has its lease again.
    is_held: bool,
    is_over: bool,
}

impl State {
    fn cut(&self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits `pause`, and then for the next parcel; none: the job is over.
    fn next(&self, pause: Duration) -> Option<(Arc<Parcel>, Vec<SocketAddr>)> {
        let state = self.lock();
        let waited = self.news.wait_timeout_while(state, pause, |state| !state.is_over);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut State| (state.queue.is_empty() || state.is_held) && !state.is_over;
        let waited = self.news.wait_while(state, idle);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let first = state.queue.first_key_value().filter(|_| !state.is_over);
        first.map(|(_, parcel)| (parcel.clone(), state.addresses.clone()))
    }

    /// The number of later numbers that wait behind it; none: it is not to be sent any more.
    fn waiting(&self, parcel: &Parcel) -> Option<usize> {
        let state = self.lock();
        let place = turn(parcel.offer.what);
        if state.is_over || !state.queue.contains_key(&place) {
            return None;
        }
        let mut later: Vec<u64> = state.queue.keys().map(|(number, _)| *number).collect();
        later.dedup();
        Some(later.iter().filter(|number| **number > place.0).count())
    }

    fn remove(&self, parcel: &Parcel) {
        let place = turn(parcel.offer.what);
        self.lock().queue.remove(&place);
    }
}

/// The agent's end of the sending thread.
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// To node `node`.
    pub fn start(party: Party, node: u32) -> io::Result<Sender> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        spawn(move || run(&party, node, &theirs))?;
        Ok(Sender { shared })
    }

    pub fn send(&self, parcel: Parcel, addresses: &[SocketAddr]) {
        let mut state = self.shared.lock();
        state.addresses = addresses.to_vec();
        let place = turn(parcel.offer.what);
        state.queue.insert(place, Arc::new(parcel));
        self.shared.news.notify_all();
    }

    pub fn give_up(&self, is_over: impl Fn(What) -> bool) {
        self.shared.lock().queue.retain(|(_, what), _| !is_over(*what));
    }

    /// Sends nothing while the node is held.
    pub fn hold(&self, is_held: bool) {
        let mut state = self.shared.lock();
        state.is_held = is_held;
        if is_held {
            state.cut();
        }
        self.shared.news.notify_all();
    }

    fn close(&self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        state.cut();
        self.shared.news.notify_all();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread.
fn run(party: &Party, node: u32, shared: &Shared) {
    let mut connection: Option<Sealed> = None;
    let mut pause = Duration::ZERO;
    while let Some((parcel, addresses)) = shared.next(pause) {
        let sent =
            connect(party, shared, &mut connection, &addresses).and_then(|stream| send(party, shared, stream, &parcel));
        let is_idle = shared.lock().queue.len() <= 1;
        match sent {
            Ok(outcome) => {
                pause = Duration::ZERO;
                shared.remove(&parcel);
                // The partner limits its wait for the next image, and ends the connection after a refused one.
                connection = connection.filter(|_| !is_idle && outcome.is_ok());
                if let Err(reason) = outcome {
                    let what = parcel.offer.what;
                    party.events.say(Event::Refused { what, node, reason });
                }
            }
            Err(error) => {
                pause = match (connection.take(), error.kind()) {
                    (_, io::ErrorKind::Interrupted) => Duration::ZERO,
                    (Some(_), _) => PAUSE,
                    // The partner is not reachable.
                    (None, _) => (pause * 2).clamp(PAUSE, LONGEST_PAUSE),
                };
            }
        }
    }
}

fn connect<'a>(
    party: &Party,
    shared: &Shared,
    connection: &'a mut Option<Sealed>,
    addresses: &[SocketAddr],
) -> io::Result<&'a mut Sealed> {
    let stream = match connection.take() {
        Some(stream) => stream,
        None => {
            let stream = Sealed::call(addresses, party.node, &party.key, party.tls.as_ref())?;
            shared.lock().stream = Some(stream.stream().try_clone()?);
            stream
        }
    };
    Ok(connection.insert(stream))
}

fn send(party: &Party, shared: &Shared, stream: &mut Sealed, parcel: &Parcel) -> io::Result<Outcome> {
    let mut paced = None;
    party.streams.fetch_add(1, Ordering::Relaxed);
    let parts = party.keeper.contents(parcel.offer.what).parts;
    let given = give(stream, parcel, parts, |stream| {
        let waiting = shared.waiting(parcel);
        let pace = waiting.map(|waiting| (waiting, party.streams.load(Ordering::Relaxed)));
        if let Some((waiting, streams)) = pace.filter(|_| paced != pace) {
            pace::set(stream, party.rate, waiting, streams);
            paced = pace;
        }
        waiting.is_some()
    });
    party.streams.fetch_sub(1, Ordering::Relaxed);
    given
}

/// Brings the image from the node at one of these addresses.
pub fn fetch(party: &Party, rank: u32, number: u64, addresses: &[SocketAddr]) -> Outcome {
    let mut pause = PAUSE;
    let mut broken = String::new();
    for _ in 0..ATTEMPTS {
        match ask(party, rank, number, addresses) {
            Ok(outcome) => return outcome,
            Err(error) => broken = error.to_string(),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(broken)
}

fn ask(party: &Party, rank: u32, number: u64, addresses: &[SocketAddr]) -> io::Result<Outcome> {
    let mut stream = Sealed::call(addresses, party.node, &party.key, party.tls.as_ref())?;
    let what = What::Image { rank, number };
    stream.send(&Frame::Want { what, checked: false })?;
    let offer = match stream.receive()? {
        Frame::Offer(offer) if offer.what == what => offer,
        Frame::No { reason } => return Ok(Err(reason)),
        frame => return Err(not_due(&frame)),
    };
    take(&mut stream, offer, &party.keeper)
}

//! MPI may be left and entered again in one process (MPI sessions, or MPI_Init after a session). Each time the MPI library opens a
//! new endpoint; the channels, the logs and the record below go on.
//!
//! What was sent to one endpoint must not reach another. So endpoints are numbered from 0, and the number is part of the name
//! under which the MPI library tells others of it. A sender that has learned another number says so in its channel, once, before
//! its next message ([`Kind::Endpoint`], an ordinary message to the protocol). A receiver drops what is for a former endpoint, and
//! keeps what is for a later one until it has opened that: its former life, or all before they returned, had told others of it.

use super::*;
use std::cmp::Ordering;

/// Endpoints of this rank and of others, by their numbers.
pub(super) struct Endpoints {
    /// The present one of this rank.
    own: u32,
    /// Per source, for which of this rank's endpoints its messages are.
    meant: Vec<u32>,
    /// Per destination, the endpoint that messages are for, and what the channel says.
    wanted: Vec<u32>,
    said: Vec<u32>,
    /// Some destination has had more than one.
    pub(super) some_are_new: bool,
    /// Messages for endpoints to come, with their numbers, in the order of their deliveries.
    early: VecDeque<(u32, Box<Unexpected>)>,
}

impl Endpoints {
    pub fn new(size: usize) -> Endpoints {
        Endpoints {
            own: 0,
            meant: vec![0; size],
            wanted: vec![0; size],
            said: vec![0; size],
            some_are_new: false,
            early: VecDeque::new(),
        }
    }

    /// Which endpoint a message that is delivered is for.
    #[inline]
    fn hear(&mut self, source: usize, envelope: Envelope) -> For {
        if envelope.kind == Kind::Endpoint {
            self.meant[source] = envelope.tag as u32;
            return For::None;
        }
        let meant = self.meant[source];
        match meant.cmp(&self.own) {
            Ordering::Equal => For::This,
            // Other kinds need something of that endpoint first.
            Ordering::Greater if matches!(envelope.kind, Kind::Tagged | Kind::Untagged) => For::Later(meant),
            _ => For::None,
        }
    }
}

/// For which endpoint of its receiver a message is: none that is or comes, where it is dropped.
pub(super) enum For {
    None,
    This,
    Later(u32),
}

impl Engine {
    /// What the MPI library tells others of the present endpoint.
    pub fn name(&self) -> u64 {
        self.node.rank as u64 | u64::from(self.numbers.own) << 32
    }

    /// The same of another rank, as far as this one knows.
    pub fn name_of(&self, rank: usize) -> u64 {
        rank as u64 | u64::from(self.numbers.wanted[rank]) << 32
    }

    /// The rank behind such a name, to which messages go from now on; None: it is no name.
    pub fn learn(&mut self, name: u64) -> Option<u32> {
        let (rank, number) = (name as u32, (name >> 32) as u32);
        let wanted = self.numbers.wanted.get_mut(rank as usize)?;
        *wanted = number;
        self.numbers.some_are_new |= self.numbers.said[rank as usize] != number;
        Some(rank)
    }

    /// Before a message leaves for `destination`.
    #[cold]
    pub(super) fn say_endpoint(&mut self, destination: usize) {
        let number = self.numbers.wanted[destination];
        if std::mem::replace(&mut self.numbers.said[destination], number) == number {
            return;
        }
        let envelope = Envelope {
            kind: Kind::Endpoint,
            flags: 0,
            tag: u64::from(number),
            data: 0,
        };
        let quiet = SendContext {
            context: std::ptr::null_mut(),
            flags: 0,
            completes: false,
            inject: false,
        };
        // Without bytes and not injected: it can always wait for room.
        self.send(destination, envelope, &[], quiet);
    }

    /// Which endpoint a message is for that is delivered now.
    #[inline]
    pub(super) fn is_for(&mut self, source: usize, envelope: Envelope) -> For {
        self.numbers.hear(source, envelope)
    }

    /// Keeps a message for endpoint `number`.
    #[cold]
    pub(super) fn keep_early(&mut self, number: u32, message: Box<Unexpected>) {
        self.numbers.early.push_back((number, message));
    }

    /// The endpoint is closed: the memory of sends that wait for room is the program's, which may use it for something else.
    pub(super) fn keep_waiting_sends(&mut self) {
        for send in self.waiting.iter_mut().filter(|send| send._copy.len() < send.total) {
            let mut copy = vec![0u8; send.total].into_boxed_slice();
            Pieces::new(&send.iov).copy_next(&mut copy);
            send.iov = Box::new([libc::iovec {
                iov_base: copy.as_mut_ptr().cast(),
                iov_len: send.total,
            }]);
            send._copy = copy;
            send.completion = None;
        }
    }

    /// The MPI library begins again, with a new endpoint.
    pub fn reopen(&mut self) {
        let _guard = Guard::new();
        self.numbers.own += 1;
        let own = self.numbers.own;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.numbers.early)
            .into_iter()
            .partition(|(number, _)| *number <= own);
        self.numbers.early = later.into();
        let kept = |message: *mut Unexpected| {
            let all = now.iter().filter(|(number, _)| *number == own);
            let mut all = all.chain(&self.numbers.early);
            all.any(|(_, kept)| std::ptr::eq(&**kept, message))
        };
        // The rest of what was on its way to memory that may be something else by now.
        for incoming in self.incoming.iter_mut().flatten() {
            incoming.filling = match std::mem::replace(&mut incoming.filling, Filling::Nothing) {
                Filling::Nothing => Filling::Nothing,
                Filling::Dropped { total, done }
                | Filling::Receive { total, done, .. }
                | Filling::Answer { total, done, .. } => Filling::Dropped { total, done },
                Filling::Rma { total, bytes, .. } => Filling::Dropped {
                    total,
                    done: bytes.len(),
                },
                Filling::Unexpected(message) if kept(message) => Filling::Unexpected(message),
                Filling::Unexpected(message) => {
                    // SAFETY: it lives until its last piece is there: in the queues, which are emptied below, or leaked by `give`
                    // when a receive took it.
                    let (total, done, is_leaked) =
                        unsafe { ((*message).total, (*message).arrived, (*message).taken_by.is_some()) };
                    if is_leaked {
                        // SAFETY: as above.
                        drop(unsafe { Box::from_raw(message) });
                    }
                    Filling::Dropped { total, done }
                }
            };
        }
        self.matching = Matching::default();
        for (_, message) in now.into_iter().filter(|(number, _)| *number == own) {
            self.matching.keep(message);
        }
        self.completions.clear();
        self.min_multi_recv = 0;
        self.rma.reopen();
        (self.last_read, self.idle_since) = (0, ticks());
        let phase = match self.replaying {
            true => nm::PHASE_REPLAY,
            false => nm::PHASE_LIVE,
        };
        self.node
            .control_u32(self.node.rank, control::PHASE)
            .store(phase, std::sync::atomic::Ordering::Release);
        resurgo_image::enable_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Room;
    use crate::node::tests::pair;

    fn piece(bytes: &[u8]) -> libc::iovec {
        libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }
    }

    fn send(engine: &mut Engine, word: u64) {
        let envelope = Envelope {
            kind: Kind::Tagged,
            flags: 0,
            tag: 7,
            data: 0,
        };
        let context = SendContext {
            context: std::ptr::null_mut(),
            flags: 0,
            completes: false,
            inject: true,
        };
        assert_eq!(engine.send(1, envelope, &[piece(&word.to_le_bytes())], context), 0);
    }

    /// What the next receive of `engine` gets.
    fn received(engine: &mut Engine) -> Option<u64> {
        let word = [0u8; 8];
        let context = word.as_ptr().cast_mut().cast();
        let receive = Receive {
            context,
            room: Room::of(&[piece(&word)]),
            source: Some(0),
            tag: 7,
            ignore: 0,
            multi: None,
            last_of_multi: false,
            completes: true,
        };
        engine.receive(receive, true);
        for _ in 0..20 {
            engine.poll();
        }
        match engine.completions.pop_front() {
            Some(_) => Some(u64::from_le_bytes(word)),
            None => {
                engine.cancel(context);
                engine.completions.clear();
                None
            }
        }
    }

    #[test]
    fn an_endpoint_gets_what_is_for_it_and_nothing_else() {
        for logs in [false, true] {
            let (one, two) = pair(64, logs);
            let (mut one, mut two) = (Engine::new(one), Engine::new(two));
            assert_eq!((one.name(), two.name()), (0, 1));
            send(&mut one, 11);
            assert_eq!(received(&mut two), Some(11));
            // Nobody receives this one, and that one comes too late.
            send(&mut one, 12);
            two.poll();
            send(&mut one, 13);
            two.reopen();
            send(&mut one, 14);
            assert_eq!(received(&mut two), None);
            assert_eq!(one.learn(two.name()), Some(1));
            assert_eq!(one.name_of(1), two.name());
            send(&mut one, 15);
            send(&mut one, 16);
            assert_eq!(received(&mut two), Some(15));
            assert_eq!(received(&mut two), Some(16));
            // As one that replays, or has returned: others know already what it will open.
            one.learn(two.name() + (1 << 32));
            send(&mut one, 17);
            send(&mut one, 18);
            assert_eq!(received(&mut two), None);
            two.reopen();
            assert_eq!(received(&mut two), Some(17));
            assert_eq!(received(&mut two), Some(18));
            // Two markers, and no name of a rank that there is not.
            assert_eq!(two.deliveries, 10);
            assert_eq!(one.learn(2), None);
        }
    }
}

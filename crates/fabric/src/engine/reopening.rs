//! The MPI library opens an endpoint again: see [`super::endpoints`].

use super::*;

impl Engine {
    /// The name of the present endpoint that the MPI library announces.
    pub fn name(&self) -> u64 {
        self.node.rank as u64 | u64::from(self.calls.endpoints.own) << 32
    }

    /// The same for another rank, as far as this one knows.
    pub fn name_of(&self, rank: usize) -> u64 {
        rank as u64 | u64::from(self.calls.endpoints.wanted[rank]) << 32
    }

    /// The rank of such a name, to which messages go from now on; None: it is not a name.
    pub fn learn(&mut self, name: u64) -> Option<u32> {
        let (rank, number) = (name as u32, (name >> 32) as u32);
        let wanted = self.calls.endpoints.wanted.get_mut(rank as usize)?;
        *wanted = number;
        self.calls.endpoints.some_are_new |= self.calls.endpoints.said[rank as usize] != number;
        Some(rank)
    }

    /// Before a message leaves for `destination`.
    #[cold]
    pub(super) fn say_endpoint(&mut self, destination: usize) {
        let number = self.calls.endpoints.wanted[destination];
        if std::mem::replace(&mut self.calls.endpoints.said[destination], number) == number {
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

    /// Its only endpoint so far is open. A later one may be that of a session, which MPI_Finalize does not concern.
    pub fn is_open_since_the_beginning(&self) -> bool {
        self.calls.open > 0 && self.calls.endpoints.own == 0
    }

    /// Keeps a message for endpoint `number`.
    #[cold]
    pub(super) fn keep_early(&mut self, number: u32, message: Box<Unexpected>) {
        self.calls.endpoints.early.push_back((number, message));
    }

    /// The MPI library begins again, with a new endpoint.
    pub fn reopen(&mut self) {
        let _guard = Guard::new();
        self.calls.endpoints.own += 1;
        let own = self.calls.endpoints.own;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.calls.endpoints.early)
            .into_iter()
            .partition(|(number, _)| *number <= own);
        self.calls.endpoints.early = later.into();
        let kept = |message: *mut Unexpected| {
            let all = now.iter().filter(|(number, _)| *number == own);
            let mut all = all.chain(&self.calls.endpoints.early);
            all.any(|(_, kept)| std::ptr::eq(&**kept, message))
        };
        // Drops the rest of messages on their way to memory that may have another use now.
        for incoming in self.peers.incoming.iter_mut().flatten() {
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
        self.calls.matching = Matching::default();
        for (_, message) in now.into_iter().filter(|(number, _)| *number == own) {
            self.calls.matching.keep(message);
        }
        self.calls.completions.clear();
        self.calls.min_multi_recv = 0;
        self.calls.rma.reopen();
        self.pace.begin_again();
        self.life.show(&self.node);
        resurgo_image::enable_again();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{post, send};
    use super::*;
    use crate::node::tests::pair;

    /// The value that the next receive of `engine` gets.
    fn received(engine: &mut Engine) -> Option<u64> {
        let word = [0u8; 8];
        post(engine, 0, 7, &word);
        for _ in 0..20 {
            engine.poll();
        }
        match engine.calls.completions.pop_front() {
            Some(_) => Some(u64::from_le_bytes(word)),
            None => {
                engine.cancel(word.as_ptr().cast_mut().cast());
                engine.calls.completions.clear();
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
            send(&mut one, 1, 7, &11u64.to_le_bytes());
            assert_eq!(received(&mut two), Some(11));
            // No receive takes this one, and that one comes too late.
            send(&mut one, 1, 7, &12u64.to_le_bytes());
            two.poll();
            send(&mut one, 1, 7, &13u64.to_le_bytes());
            two.reopen();
            send(&mut one, 1, 7, &14u64.to_le_bytes());
            assert_eq!(received(&mut two), None);
            assert_eq!(one.learn(two.name()), Some(1));
            assert_eq!(one.name_of(1), two.name());
            send(&mut one, 1, 7, &15u64.to_le_bytes());
            send(&mut one, 1, 7, &16u64.to_le_bytes());
            assert_eq!(received(&mut two), Some(15));
            assert_eq!(received(&mut two), Some(16));
            // Like a rank that replays, or has returned: others already know what it will open.
            one.learn(two.name() + (1 << 32));
            send(&mut one, 1, 7, &17u64.to_le_bytes());
            send(&mut one, 1, 7, &18u64.to_le_bytes());
            assert_eq!(received(&mut two), None);
            two.reopen();
            assert_eq!(received(&mut two), Some(17));
            assert_eq!(received(&mut two), Some(18));
            // Two markers, and no name of a missing rank.
            assert_eq!(two.meters.deliveries, 10);
            assert_eq!(one.learn(2), None);
        }
    }
}

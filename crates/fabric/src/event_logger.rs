//! The rank's connection to the event logger (`--tolerate node`): hands it every new determinant and takes its
//! acknowledgements. The frames are `resurgo_wire`'s; here is the socket.

use crate::engine::monotonic_ns;
use crate::node::Node;
use resurgo_protocol::Recorded;
use resurgo_wire::counters::Cost;
use resurgo_wire::event_logger::{Client, ClientEvent, Identity};
use resurgo_wire::node_memory::control;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// File descriptors from here on are used, so that the program's own numbers stay what they are without a logger.
const LOWEST_FD: i32 = 64;
/// An event logger that says nothing for so long is lost.
const PATIENCE_MS: i32 = 30_000;

/// The connection of one life.
pub struct EventLogger {
    socket: i32,
    client: Client,
    /// Determinants not handed to the client yet, and the rclock of the first.
    pending: Vec<Recorded>,
    first_pending: u64,
    /// Everything up to this rclock is acknowledged.
    acknowledged: u64,
    /// What is on its way: the last rclock of each part that was handed over, and when that was.
    under_way: VecDeque<(u64, u64)>,
}

fn lost(node: &Node, what: &str) -> ! {
    node.report(&format!(
        "rank {} has lost the event logger on {}:{}: {what}. Deliveries can no longer be made safe against the loss \
         of a node, so the job ends",
        node.rank, node.event_logger_address, node.event_logger_port
    ));
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

fn connect(node: &Node) -> std::io::Result<i32> {
    // SAFETY: plain socket calls with structures on the stack.
    unsafe {
        let low = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if low < 0 {
            return Err(last_error());
        }
        let socket = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST_FD);
        libc::close(low);
        if socket < 0 {
            return Err(last_error());
        }
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = (node.event_logger_port as u16).to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes(node.event_logger_address.octets());
        let bytes = std::mem::size_of_val(&address) as u32;
        if libc::connect(socket, (&raw const address).cast(), bytes) != 0 {
            return Err(last_error());
        }
        let yes: i32 = 1;
        libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const yes).cast(), 4);
        Ok(socket)
    }
}

impl EventLogger {
    /// Connects and proves the job's key. `record` is what the node memory kept of former lives; what the logger holds must
    /// be its beginning.
    pub fn open(node: &Node, record: &[Recorded]) -> EventLogger {
        let socket = connect(node).unwrap_or_else(|error| lost(node, &format!("cannot connect: {error}")));
        let mut nonce = [0u8; 32];
        // SAFETY: fills the array.
        if unsafe { libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0) } != nonce.len() as isize {
            lost(node, "the system gives no random numbers");
        }
        let client = Client::new(Identity {
            rank: node.rank as u32,
            size: node.size as u32,
            incarnation: node.control(node.rank, control::INCARNATION).load(Ordering::Acquire),
            key: node.job_key,
            nonce,
            acknowledged: Some(record.len() as u64),
        });
        let mut logger = EventLogger {
            socket,
            client,
            pending: Vec::new(),
            first_pending: 1,
            acknowledged: 0,
            under_way: VecDeque::new(),
        };
        let ClientEvent::Admitted { stored, .. } = logger.wait_event(node) else {
            lost(node, "it did not admit this rank");
        };
        if stored > record.len() as u64 {
            lost(node, "it holds more deliveries than this rank has made");
        }
        // Logged again from the beginning: the logger compares what it holds with what it is given, so a record that
        // differs from it is found out and not replayed.
        logger.acknowledged = stored;
        logger.pending.extend_from_slice(record);
        logger
    }

    /// Deliveries that the logger holds.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// A new delivery has been recorded.
    pub fn log(&mut self, recorded: Recorded) {
        self.pending.push(recorded);
    }

    /// True while some delivery is not acknowledged.
    pub fn is_behind(&self) -> bool {
        self.acknowledged + 1 < self.first_pending + self.pending.len() as u64
    }

    /// Sends what is to be sent and takes what has come, without waiting.
    pub fn pump(&mut self, node: &Node) {
        if !self.pending.is_empty() {
            self.client.log(self.first_pending, &self.pending);
            self.first_pending += self.pending.len() as u64;
            self.pending.clear();
            self.under_way.push_back((self.first_pending - 1, monotonic_ns()));
        }
        self.write(node);
        self.read(node);
        while let Some(event) = self.event(node) {
            if let ClientEvent::Ack { rclock } = event {
                self.acknowledged = self.acknowledged.max(rclock);
                self.count_round_trips(node);
            }
        }
    }

    fn count_round_trips(&mut self, node: &Node) {
        let now = monotonic_ns();
        while let Some((_, since)) = self.under_way.pop_front_if(|(last, _)| *last <= self.acknowledged) {
            node.add(Cost::LoggerRoundTrips, 1);
            node.add(Cost::LoggerNs, now - since);
            node.most(Cost::MostLoggerNs, now - since);
        }
    }

    /// Waits until the logger says something, at most so long.
    pub fn wait(&mut self, milliseconds: i32) -> bool {
        let mut waiting = libc::pollfd {
            fd: self.socket,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: polls one descriptor.
        unsafe { libc::poll(&mut waiting, 1, milliseconds) > 0 }
    }

    fn wait_event(&mut self, node: &Node) -> ClientEvent {
        loop {
            self.write(node);
            if let Some(event) = self.event(node) {
                return event;
            }
            self.write(node);
            if !self.wait(PATIENCE_MS) {
                lost(node, "no answer for 30 seconds");
            }
            self.read(node);
        }
    }

    fn event(&mut self, node: &Node) -> Option<ClientEvent> {
        self.client
            .next_event()
            .unwrap_or_else(|error| lost(node, &error.to_string()))
    }

    fn write(&mut self, node: &Node) {
        while !self.client.output().is_empty() {
            let bytes = self.client.output();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: sends from the slice.
            let sent = unsafe { libc::send(self.socket, bytes.as_ptr().cast(), bytes.len(), flags) };
            if sent < 0 {
                if last_error().kind() == std::io::ErrorKind::WouldBlock {
                    return;
                }
                lost(node, &last_error().to_string());
            }
            self.client.sent(sent as usize);
        }
    }

    fn read(&mut self, node: &Node) {
        let mut bytes = [0u8; 16 << 10];
        // SAFETY: receives into the array.
        let got = unsafe { libc::recv(self.socket, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        match got {
            0 => lost(node, "it closed the connection"),
            got if got < 0 => {
                let kind = last_error().kind();
                if kind != std::io::ErrorKind::WouldBlock && kind != std::io::ErrorKind::Interrupted {
                    lost(node, &last_error().to_string());
                }
            }
            got => self.client.receive(&bytes[..got as usize]),
        }
    }
}
